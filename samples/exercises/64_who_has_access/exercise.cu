// Exercise 64: predict who has access.
//
// A pool is on GPU 0. Which GPU has access to it, in which process, and
// when? Write kYes or kNo for each question, and then run the program.
// The exercise fails now because no question is answered.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr Answer kGpu0OfANewPool = kUnknown;
constexpr Answer kGpu1OfANewPool = kUnknown;
constexpr Answer kGpu1AfterPeerAccess = kUnknown;
constexpr Answer kGpu1InTheImporter = kUnknown;
constexpr Answer kGpu0InTheImporter = kUnknown;

bool has_access(int gpu, cudaMemPool_t pool) {
  cudaMemLocation place{cudaMemLocationTypeDevice, gpu};
  cudaMemAccessFlags flags;
  CUDA_CHECK(cudaMemPoolGetAccess(&flags, pool, &place));
  return flags == cudaMemAccessFlagsProtReadWrite;
}

void give_gpu_1_access(cudaMemPool_t pool) {
  cudaMemAccessDesc access{};
  access.location = {cudaMemLocationTypeDevice, 1};
  access.flags = cudaMemAccessFlagsProtReadWrite;
  CUDA_CHECK(cudaMemPoolSetAccess(pool, &access, 1));
}

int exporter(Channel& channel) {
  cudaMemPool_t pool = create_pool();
  bool good = predicted("A new pool. Does GPU 0 have access?",
                        kGpu0OfANewPool, has_access(0, pool));
  good &= predicted("A new pool. Does GPU 1 have access?",
                    kGpu1OfANewPool, has_access(1, pool));

  CUDA_CHECK(cudaSetDevice(1));
  CUDA_CHECK(cudaDeviceEnablePeerAccess(0, 0));
  CUDA_CHECK(cudaSetDevice(0));
  good &= predicted("Peer access is enabled. Does GPU 1 have access?",
                    kGpu1AfterPeerAccess, has_access(1, pool));

  give_gpu_1_access(pool);
  send_pool(channel, pool);
  channel.wait("closed");
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

int importer(Channel channel) {
  cudaMemPool_t pool = receive_pool(channel);
  bool good = predicted("The exporter gave GPU 1 access. Here, too?",
                        kGpu1InTheImporter, has_access(1, pool));
  good &= predicted("Does GPU 0 have access here?", kGpu0InTheImporter,
                    has_access(0, pool));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("closed");

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(2);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
