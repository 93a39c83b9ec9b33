// Lesson 76: ranks of one node lend each other memory of their GPUs.
//
//   every rank
//   choose a GPU, cudaMalloc, write
//   all-gather: UUID of the GPU, handle
//   for every other rank:
//     which of my GPUs has this UUID? perhaps none has it
//     cudaIpcOpenMemHandle, read, cudaIpcCloseMemHandle
//   barrier: nobody has my memory open any more
//   cudaFree
//
// As two processes that play ranks:
// nvcc -cudart shared samples/76_mpi_ranks/mpi_ranks.cu
// As ranks of `mpirun -n 8`: the same with -DUSE_MPI -ccbin mpicxx
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "mpi_ranks.h"

constexpr int kCount = 1 << 20;
constexpr int kFirst = 1000000;  // the first value of rank 0

//! [card]
// What every rank sends to all other ranks.
struct Card {
  CUuuid gpu;  // the same in every process, unlike an ordinal
  cudaIpcMemHandle_t memory;
};
//! [card]

//! [uuid]
CUuuid uuid_of(int device) {
  CUuuid uuid;
  CU_CHECK(DRIVER(cuDeviceGetUuid)(&uuid, device));
  return uuid;
}

// Returns the GPU's ordinal in this process, or -1 if it has none.
int ordinal_of(const CUuuid& gpu) {
  int devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  for (int device = 0; device < devices; ++device) {
    const CUuuid uuid = uuid_of(device);
    if (std::memcmp(&uuid, &gpu, sizeof gpu) == 0) return device;
  }
  return -1;
}
//! [uuid]

//! [rank]
int run(MpiRanks& ranks) {
  int devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  const int own = ranks.rank() / 2 % devices;  // 0, 0, 1, 1 …
  CUDA_CHECK(cudaSetDevice(own));
  void* data = allocate_values(kCount, kFirst * (ranks.rank() + 1));

  Card card{uuid_of(own), {}};
  CUDA_CHECK(cudaIpcGetMemHandle(&card.memory, data));
  const std::vector<Card> cards = ranks.all_gather(card);
  ranks.say_in_turn("uses its GPU " + std::to_string(own));

  bool good = true;
  std::string seen;
  for (int other = 0; other < ranks.size(); ++other) {
    if (other == ranks.rank()) continue;  // its own: refused
    const int gpu = ordinal_of(cards[other].gpu);
    int reachable = 1;
    if (gpu != -1 && gpu != own)
      CUDA_CHECK(cudaDeviceCanAccessPeer(&reachable, own, gpu));
    if (!reachable) continue;

    void* theirs = nullptr;
    CUDA_CHECK(cudaIpcOpenMemHandle(&theirs, cards[other].memory,
                                    cudaIpcMemLazyEnablePeerAccess));
    const int wrong = count_wrong(theirs, kCount, kFirst * (other + 1));
    CUDA_CHECK(cudaIpcCloseMemHandle(theirs));
    good &= wrong == 0;
    seen += (seen.empty() ? "reads rank " : ", rank ") +
            std::to_string(other) + " on its GPU " +
            std::to_string(gpu) + ": " + std::to_string(wrong) +
            " wrong";
  }
  ranks.say_in_turn(seen.empty() ? "can access no other GPU" : seen);

  ranks.barrier();  // all ranks have closed this memory
  CUDA_CHECK(cudaFree(data));
  if (seen.empty()) return kSkipped;  // proved nothing
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [rank]

int main(int argc, char** argv) {
  MpiRanks ranks(argc, argv);
  if (ranks.rank() == 0) {  // one SKIP is enough
    require_gpus(1);
    require_legacy_ipc();
  }
  see_gpus_in_another_order(ranks);

  return ranks.finish(run(ranks));
}
