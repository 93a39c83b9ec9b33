// Lesson 01: lend an allocation of cudaMalloc to another process.
//
//   exporter                            importer
//   cudaMalloc, write
//   cudaIpcGetMemHandle  -- handle -->  cudaIpcOpenMemHandle
//                                       read the exporter's values
//   read the importer's  <- written --  write its own
//   values
//                        <-- closed --  cudaIpcCloseMemHandle
//   cudaFree
//
// nvcc -cudart shared samples/01_legacy_memory/legacy_memory.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "../common/channel.h"
#include "../common/check.h"
#include "../common/require.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kPoison = -1;
constexpr int kExporterValue = 1000000;  // the two sides differ, so
constexpr int kImporterValue = 2000000;  // each proves who wrote

__global__ void write_values(int* data, int first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) data[i] = first + i;
}

// Do all values stand where write_values() put them?
bool holds(const int* data, int first) {
  std::vector<int> seen(kCount, kPoison);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kBytes, cudaMemcpyDefault));

  for (int i = 0; i < kCount; ++i) {
    if (seen[i] == first + i) continue;
    say("value %d is %d, expected %d", i, seen[i], first + i);
    return false;
  }
  return true;
}

//! [exporter]
int exporter(Channel& channel) {
  int* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kBytes));
  CUDA_CHECK(cudaMemset(data, kPoison, kBytes));
  write_values<<<kCount / 256, 256>>>(data, kExporterValue);
  CUDA_CHECK(cudaGetLastError());
  // A handle orders nothing: finish writing before you send it.
  CUDA_CHECK(cudaDeviceSynchronize());

  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  say("wrote %d values at %p, sends a handle of %zu bytes", kCount,
      static_cast<void*>(data), sizeof handle);
  channel.send("handle", handle);

  channel.wait("written");
  const bool good = holds(data, kImporterValue);
  say("finds %s values in its own allocation",
      good ? "the importer's" : "WRONG");
  channel.signal("seen");

  // Free only what nobody has open any more.
  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));
  say("frees the allocation");
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");

  void* opened = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&opened, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  int* data = static_cast<int*>(opened);
  const bool good = holds(data, kExporterValue);
  say("opened the handle at %p, finds %s values", opened,
      good ? "the exporter's" : "WRONG");

  write_values<<<kCount / 256, 256>>>(data, kImporterValue);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  say("writes %d values of its own", kCount);
  channel.signal("written");
  channel.wait("seen");

  CUDA_CHECK(cudaIpcCloseMemHandle(opened));  // close, never cudaFree
  say("closes the handle");
  channel.signal("closed");
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

//! [main]
int main(int argc, char** argv) {
  if (is_child(argc, argv))  // the second start of this same program
    return importer(channel_from_parent(argv));

  require_gpus(1);  // exits 77 ("skipped") and says why
  require(cudaDevAttrIpcEventSupport, "CUDA IPC");

  Child child = start_again(argv);  // exec: CUDA does not survive fork
  const int mine = exporter(child.channel);
  const int theirs = child.wait(10s);  // a dead peer is an error

  return mine != EXIT_SUCCESS ? mine : theirs;
}
//! [main]
