// Lesson 01: lend an allocation of cudaMalloc to another process.
//
//   exporter                            importer
//   cudaMalloc, write
//   cudaIpcGetMemHandle  -- handle -->  cudaIpcOpenMemHandle
//                                       read the exporter's values
//                                       write its own values
//   read the importer's  <- closed ---  cudaIpcCloseMemHandle
//   values, cudaFree
//
// nvcc -cudart shared samples/01_legacy_memory/legacy_memory.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);

// The two sides write different values, so a value shows its writer.
constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 2000000;

//! [exporter]
int exporter(Channel& channel) {
  void* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kBytes));
  CUDA_CHECK(cudaMemset(data, kPoison, kBytes));
  write_values(data, kCount, kExporterValue);  // launches a kernel

  // A handle does not order work: wait for the kernel first.
  CUDA_CHECK(cudaDeviceSynchronize());

  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  say("writes %d values at %p, sends a handle of %zu bytes", kCount,
      data, sizeof handle);
  channel.send("handle", handle);

  // Free only what no other process has open.
  channel.wait("closed");
  const int wrong = count_wrong(data, kCount, kImporterValue);
  say("reads the importer's values in its own memory: %d wrong", wrong);
  CUDA_CHECK(cudaFree(data));
  say("frees the memory");

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");

  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("opens the handle at %p, reads the exporter's values: %d wrong",
      data, wrong);

  write_values(data, kCount, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  say("writes %d values of its own", kCount);

  CUDA_CHECK(cudaIpcCloseMemHandle(data));  // close, never cudaFree
  say("closes the handle");
  channel.signal("closed");

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

//! [main]
int main(int argc, char** argv) {
  if (is_child(argc, argv))  // the second start of this same program
    return importer(channel_from_parent(argv));

  require_gpus(1);  // or exits with 77 ("skipped") and says why
  require_legacy_ipc();

  Child child = start_again(argv);  // exec: CUDA does not survive fork
  const int mine = exporter(child.channel);

  return child.finish(mine);  // fails if either role has failed
}
//! [main]
