// Lesson 72: sum the arrays of several processes.
//
//   rank 0, GPU 0                          rank 1, GPU 1
//   cudaMalloc: array, mailbox             the same
//                  <----- handles ----->
//   open the others' arrays and mailboxes
//   small: push the array, -- values -->   push the array,
//     add the mail to it   <- values ---     add the mail to it
//   large: sum the first half of both      sum the second half of both
//     arrays, write the sum to both          arrays, write it to both
//                  <----- closed ------>
//   cudaFree
//
// No host takes part in a sum, so a graph can contain the sum.
//
// nvcc -cudart shared samples/72_all_reduce/all_reduce.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "all_reduce.h"
#include "ranks.h"

constexpr int kSmall = 1 << 14;  // values: 64 KiB
constexpr int kLarge = 1 << 20;  // values: 4 MiB
constexpr int kReplays = 5;
constexpr int kLimit = 5;  // seconds to wait for a rank

//! [values]
// A third has no exact binary form, so another order of the additions
// could give other bits.
__host__ __device__ float value_of(int rank, int i) {
  return (1 + i % 1000) / (rank + 3.0f);
}

__global__ void write_own_values(float* array, int rank, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) array[i] = value_of(rank, i);
}

// Returns what each rank must have after `times` sums in a row.
float sum_on_host(int ranks, int i, int times) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += value_of(rank, i);
  for (; times > 1; --times) {
    const float same = sum;
    sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += same;
  }
  return sum;
}
//! [values]

// Returns how many sums of all ranks are wrong. Rank 0 prints this.
int count_wrong_sums(Ranks& ranks, const void* array, int count,
                     int times) {
  std::vector<float> seen(count);
  CUDA_CHECK(cudaMemcpy(seen.data(), array, count * sizeof(float),
                        cudaMemcpyDefault));
  int wrong = 0;
  for (int i = 0; i < count; ++i)
    wrong += seen[i] != sum_on_host(ranks.size, i, times);

  int all = 0;
  for (const int of_rank : ranks.gather(wrong)) all += of_rank;
  if (ranks.rank == 0)
    say("[%d ranks] sum %d values %d times: %d wrong", ranks.size,
        count, times, all);
  return all;
}

// Waits for the sums. Ends this process if a rank did not answer.
void finish_sums(const Team& team, cudaStream_t stream) {
  CUDA_CHECK(cudaStreamSynchronize(stream));
  if (unanswered(team) == -1) return;
  say("gives up: rank %d has not answered for %d s", unanswered(team),
      kLimit);
  std::exit(EXIT_FAILURE);
}

//! [rank]
int take_part(Ranks& ranks) {
  int gpus = 0;
  CUDA_CHECK(cudaGetDeviceCount(&gpus));
  CUDA_CHECK(cudaSetDevice(ranks.rank % gpus));
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreate(&stream));

  Team team = join_team(ranks, kLimit);
  void* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kLarge * sizeof(float)));
  CUDA_CHECK(cudaMemset(data, kPoison, kLarge * sizeof(float)));
  float* array = static_cast<float*>(data);
  const Arrays arrays = share(ranks, data);
  int wrong = 0;

  for (const int count : {kSmall, kLarge}) {
    write_own_values<<<kLarge / 256, 256, 0, stream>>>(
        array, ranks.rank, count);
    CUDA_CHECK(cudaGetLastError());
    all_reduce<float>(team, arrays, count, stream);
    finish_sums(team, stream);
    wrong += count_wrong_sums(ranks, data, count, 1);
  }

  // Each replay sums the results of the sum before it.
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  CUDA_CHECK(
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  all_reduce<float>(team, arrays, kSmall, stream);
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&replay, graph, 0));
  for (int i = 0; i < kReplays; ++i)
    CUDA_CHECK(cudaGraphLaunch(replay, stream));
  finish_sums(team, stream);
  wrong += count_wrong_sums(ranks, data, kSmall, 1 + kReplays);
  CUDA_CHECK(cudaGraphExecDestroy(replay));
  CUDA_CHECK(cudaGraphDestroy(graph));

  unshare(ranks, arrays);
  CUDA_CHECK(cudaFree(data));
  leave_team(ranks, team);
  CUDA_CHECK(cudaStreamDestroy(stream));

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [rank]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) {
    Ranks ranks(channel_from_parent(argv));
    return take_part(ranks);
  }

  require_gpus(1);
  require_legacy_ipc();
  int gpus = 0;
  CUDA_CHECK(cudaGetDeviceCount(&gpus));
  for (int gpu = 1; gpu < gpus; ++gpu) {
    int can = 0;
    CUDA_CHECK(cudaDeviceCanAccessPeer(&can, 0, gpu));
    if (can == 0) skip("GPU 0 cannot access the memory of GPU %d", gpu);
  }

  // Ranks that share a GPU take turns. This is correct, but slow.
  Ranks ranks(argv, std::min(std::max(gpus, 2), kMaxRanks));
  return ranks.finish(take_part(ranks));
}
