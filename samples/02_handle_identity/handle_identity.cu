// Lesson 02: a handle names an allocation, not a pointer.
//
//   exporter                            importer
//   cudaMalloc, write
//   handle and offset    -- handle -->  open, add the offset, read
//   of row 3                            and write row 3
//   read row 3           <- closed ---  close
//   free, allocate again
//   handle and offset    -- handle -->  try the old handle, open the
//   of row 3                            new one, read row 3
//   free                 <- closed ---  close
//
// nvcc -cudart shared samples/02_handle_identity/handle_identity.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/roles.h"

constexpr int kRow = 256;  // values in a row
constexpr int kCount = 4096 * kRow;

constexpr int kFirstValue = 1000000;  // in the first allocation
constexpr int kLaterValue = 2000000;  // in the second allocation
constexpr int kImporterValue = 3000000;

//! [lend]
// What an importer needs to use a pointer, and to cache the handle.
struct Loan {
  cudaIpcMemHandle_t handle;  // of the allocation
  size_t offset;              // of the pointer, in bytes
  unsigned long long id;      // of the allocation, in the exporter
};

Loan lend(void* pointer) {
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  CUdeviceptr base = 0;
  CU_CHECK(DRIVER(cuMemGetAddressRange)(&base, nullptr, address));

  Loan loan{};
  loan.offset = address - base;
  CUDA_CHECK(
      cudaIpcGetMemHandle(&loan.handle, reinterpret_cast<void*>(base)));
  CU_CHECK(DRIVER(cuPointerGetAttribute)(
      &loan.id, CU_POINTER_ATTRIBUTE_BUFFER_ID, base));
  return loan;
}
//! [lend]

//! [exporter]
int exporter(Channel& channel) {
  int* data = static_cast<int*>(allocate_values(kCount, kFirstValue));
  const Loan loan = lend(data + 3 * kRow);
  say("lends row 3, %zu bytes into its allocation", loan.offset);
  channel.send("handle", loan);

  channel.wait("closed");
  const int wrong = count_wrong(data + 3 * kRow, kRow, kImporterValue);
  say("reads the importer's values in row 3: %d wrong", wrong);

  CUDA_CHECK(cudaFree(data));
  data = static_cast<int*>(allocate_values(kCount, kLaterValue));
  const Loan later = lend(data + 3 * kRow);
  say("frees it and allocates again; the id is %s",
      later.id == loan.id ? "the SAME" : "different");
  channel.send("handle", later);

  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  const bool good = wrong == 0 && later.id != loan.id;
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto loan = channel.receive<Loan>("handle");
  void* base = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&base, loan.handle,
                                  cudaIpcMemLazyEnablePeerAccess));

  void* row = static_cast<char*>(base) + loan.offset;
  const int expected = kFirstValue + 3 * kRow;
  int wrong = count_wrong(row, kRow, expected);
  const int lost = count_wrong(base, kRow, expected);
  say("reads row 3: %d wrong; without the offset %d wrong", wrong,
      lost);

  write_values(row, kRow, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaIpcCloseMemHandle(base));
  channel.signal("closed");

  // The documentation does not say what an old handle opens.
  const auto later = channel.receive<Loan>("handle");
  void* old = nullptr;
  const cudaError_t code = cudaIpcOpenMemHandle(
      &old, loan.handle, cudaIpcMemLazyEnablePeerAccess);
  say("tries the old handle: [%s]", cudaGetErrorName(code));
  cudaGetLastError();  // clears the error
  if (code == cudaSuccess) CUDA_CHECK(cudaIpcCloseMemHandle(old));

  CUDA_CHECK(cudaIpcOpenMemHandle(&base, later.handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  row = static_cast<char*>(base) + later.offset;
  wrong += count_wrong(row, kRow, kLaterValue + 3 * kRow);
  say("opens the new handle and reads row 3: %d wrong", wrong);
  CUDA_CHECK(cudaIpcCloseMemHandle(base));
  channel.signal("closed");

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
