// Lesson 02: a handle names an allocation, not a pointer.
//
//   exporter                            importer
//   row 3: handle, offset  -- loan -->  open the base, add the offset,
//                                       write row 3
//   free, allocate anew    <- closed -
//   and lend that          -- loan -->  the old handle opens nothing,
//                          <- closed -  the new one does
//
// nvcc -cudart shared samples/02_handle_identity/handle_identity.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/channel.h"
#include "../common/check.h"
#include "../common/require.h"
#include "../common/roles.h"

constexpr int kRows = 4096, kRow = 256;  // row r holds first + r
constexpr size_t kBytes = kRows * kRow * sizeof(int);
constexpr unsigned kFlag = cudaIpcMemLazyEnablePeerAccess;
constexpr int kFirst = 1000, kLater = 5000, kImporterValue = 9000;

__global__ void write_rows(int* data, int first) {
  data[blockIdx.x * kRow + threadIdx.x] = first + blockIdx.x;
}

int* allocate(int first) {
  int* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kBytes));
  CUDA_CHECK(cudaMemset(data, 0xEE, kBytes));
  write_rows<<<kRows, kRow>>>(data, first);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  return data;
}

int value_at(const void* data) {
  int value = -1;
  CUDA_CHECK(cudaMemcpy(&value, data, sizeof value, cudaMemcpyDefault));
  return value;
}

//! [exporter]
struct Loan {  // what travels for a pointer into an allocation
  cudaIpcMemHandle_t handle;
  size_t offset;
};

Loan lend(const int* pointer) {
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  CUdeviceptr base = 0;
  CU_CHECK(DRIVER(cuMemGetAddressRange)(&base, nullptr, address));
  Loan loan{{}, address - base};
  CUDA_CHECK(cudaIpcGetMemHandle(&loan.handle, (void*)base));
  return loan;
}

int exporter(Channel& channel) {
  int* data = allocate(kFirst);
  const Loan loan = lend(data + 3 * kRow);
  say("lends row 3, %zu bytes into its allocation", loan.offset);
  channel.send("loan", loan);
  channel.wait("closed");  // before that nothing may be freed
  const int row0 = value_at(data), row3 = value_at(data + 3 * kRow);
  say("finds %d in row 3, still %d in row 0", row3, row0);
  CUDA_CHECK(cudaFree(data));
  data = allocate(kLater);
  say("frees, allocates as much at %p", static_cast<void*>(data));
  channel.send("loan", lend(data + 3 * kRow));
  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));
  return row3 == kImporterValue && row0 == kFirst ? 0 : 1;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const Loan loan = channel.receive<Loan>("loan");
  void* base = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&base, loan.handle, kFlag));
  int* row = static_cast<int*>(base) + loan.offset / sizeof(int);
  const int seen = value_at(row), lost = value_at(base);
  say("reads %d in row 3; offset lost: %d, the WRONG row", seen, lost);
  write_rows<<<1, kRow>>>(row, kImporterValue);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaIpcCloseMemHandle(base));
  channel.signal("closed");

  const Loan next = channel.receive<Loan>("loan");
  const char* answer = "it is refused";
  void* old = nullptr;
  if (cudaIpcOpenMemHandle(&old, loan.handle, kFlag) == cudaSuccess) {
    answer = value_at(old) == kLater ? "it shows the LATER memory"
                                     : "it shows something";
    CUDA_CHECK(cudaIpcCloseMemHandle(old));
  }
  cudaGetLastError();
  say("tries the old handle: [%s]", answer);
  CUDA_CHECK(cudaIpcOpenMemHandle(&base, next.handle, kFlag));
  row = static_cast<int*>(base) + next.offset / sizeof(int);
  const int later = value_at(row);
  say("opens the new handle, row 3 has %d", later);
  CUDA_CHECK(cudaIpcCloseMemHandle(base));
  channel.signal("closed");
  return seen == kFirst + 3 && later == kLater + 3 ? 0 : 1;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(cudaDevAttrIpcEventSupport, "CUDA IPC");
  Child child = start_again(argv);
  const int mine = exporter(child.channel);
  const int theirs = child.wait(10s);
  return mine != EXIT_SUCCESS ? mine : theirs;
}
