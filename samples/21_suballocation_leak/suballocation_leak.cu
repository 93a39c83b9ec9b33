// Lesson 21: sharing a small allocation can expose other memory.
//
//   exporter                            importer
//   cudaMalloc twice: one to
//   lend, one for a secret
//   handle of the first  -- handle -->  cudaIpcOpenMemHandle
//                                       search 2 MiB for the secret,
//                                       and change the secret
//   check the secret     <- closed ---  cudaIpcCloseMemHandle
//   the same again, with a size that is a multiple of 2 MiB
//
// nvcc -cudart shared
//   samples/21_suballocation_leak/suballocation_leak.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cstdint>

#include "../common/data.h"
#include "../common/roles.h"

constexpr int kCount = 1024;
constexpr size_t kBytes = kCount * sizeof(int);  // much less than 2 MiB

constexpr unsigned kLoan = 0x1e1e1e1e;
constexpr unsigned kSecret = 0x5e5e5e5e;
constexpr unsigned kForged = 0xf0f0f0f0;

//! [shareable]
constexpr size_t kBlock = 2 << 20;  // a handle maps whole blocks

// Returns the size to allocate so that the handle shares only the loan:
// `bytes`, rounded up to whole blocks, or 0 if this is too large.
constexpr size_t shareable(size_t bytes) {
  const size_t blocks = bytes / kBlock + (bytes % kBlock != 0);
  return blocks > SIZE_MAX / kBlock ? 0 : blocks * kBlock;
}
//! [shareable]

//! [search]
__managed__ int forged;  // how many words forge() has changed

__global__ void forge(unsigned* block) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (block[i] != kSecret) return;
  block[i] = kForged;
  atomicAdd(&forged, 1);
}

// Changes the secret if it is in the same block as `data`. Returns
// how many words were changed. If the driver maps only the loan, the
// kernel faults, the context is lost, and the result is 0.
int forge_around(void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  forged = 0;
  forge<<<kBlock / sizeof(int) / 256, 256>>>(
      reinterpret_cast<unsigned*>(address / kBlock * kBlock));
  cudaError_t code = cudaGetLastError();  // may report the fault
  if (code == cudaSuccess) code = cudaDeviceSynchronize();
  if (code == cudaErrorIllegalAddress) return 0;
  CUDA_CHECK(code);
  return forged;
}
//! [search]

//! [exporter]
int exporter(Channel& channel, size_t bytes) {
  const int count = static_cast<int>(bytes / sizeof(int));
  void* loan = allocate_values(count, kLoan, 0);
  void* secret = allocate_values(kCount, kSecret, 0);

  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, loan));
  say("lends %zu bytes, keeps a secret of %zu bytes", bytes, kBytes);
  channel.send("handle", handle);

  channel.wait("closed");
  const int lost = count_wrong(secret, kCount, kSecret, 0);
  say("reads its secret: %d of %d words forged", lost, kCount);
  CUDA_CHECK(cudaFree(secret));
  CUDA_CHECK(cudaFree(loan));

  // Only a loan that is smaller than a block may expose the secret.
  return bytes < kBlock || lost == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  const int wrong = count_wrong(data, kCount, kLoan, 0);
  say("opens the handle, reads the loan: %d wrong", wrong);

  const int found = forge_around(data);
  say("searches the 2 MiB around it: forges %d words", found);
  if (cudaPeekAtLastError() == cudaSuccess)  // no fault
    CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

//! [main]
int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();

  for (const size_t bytes : {kBytes, shareable(kBytes)}) {
    Child child = start_again(argv);
    const int result = child.finish(exporter(child.channel, bytes));
    if (result != EXIT_SUCCESS) return result;
  }

  return EXIT_SUCCESS;
}
//! [main]
