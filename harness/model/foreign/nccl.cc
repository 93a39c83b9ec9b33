// SPDX-License-Identifier: Apache-2.0
// One process for each GPU; all of them add vectors with NCCL, and each checks
// every value.
//
//   nccl RANKS VALUES ROUNDS
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr unsigned kDeadlineSeconds = 570;

#define CHECK(call, good, text)                                           \
  do {                                                                    \
    const auto result = call;                                             \
    if (result == (good)) break;                                          \
    std::fprintf(stderr, "rank %d: %s: %s\n", rank, #call, text(result)); \
    std::exit(1);                                                         \
  } while (false)
#define CUDA(call) CHECK(call, cudaSuccess, cudaGetErrorString)
#define NCCL(call) CHECK(call, ncclSuccess, ncclGetErrorString)

// Small integers, so that each sum is exact in any order.
float value_of(int rank, size_t index, int round) {
  return static_cast<float>((index * 7 + static_cast<size_t>(rank) * 13 +
                             static_cast<size_t>(round) * 5) %
                            1000);
}

int run(int rank, int ranks, size_t count, int rounds, ncclUniqueId id) {
  CUDA(cudaSetDevice(rank));
  cudaStream_t stream = nullptr;
  CUDA(cudaStreamCreate(&stream));
  float *in = nullptr, *out = nullptr;
  CUDA(cudaMalloc(&in, count * sizeof(float)));
  CUDA(cudaMalloc(&out, count * sizeof(float)));
  ncclComm_t all = nullptr;
  NCCL(ncclCommInitRank(&all, ranks, id, rank));
  std::vector<float> host(count);
  size_t wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < count; ++i) host[i] = value_of(rank, i, round);
    CUDA(cudaMemcpyAsync(in, host.data(), count * sizeof(float),
                         cudaMemcpyHostToDevice, stream));
    NCCL(ncclAllReduce(in, out, count, ncclFloat, ncclSum, all, stream));
    CUDA(cudaMemcpyAsync(host.data(), out, count * sizeof(float),
                         cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int other = 0; other < ranks; ++other)
        sum += value_of(other, i, round);
      wrong += host[i] != sum;
    }
  }
  NCCL(ncclCommFinalize(all));
  NCCL(ncclCommDestroy(all));
  CUDA(cudaFree(in));
  CUDA(cudaFree(out));
  CUDA(cudaStreamDestroy(stream));
  if (wrong != 0) std::printf("rank %d: %zu values are wrong\n", rank, wrong);
  return wrong != 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: nccl RANKS VALUES ROUNDS\n");
    return 2;
  }
  const int ranks = std::atoi(argv[1]);
  const auto count = static_cast<size_t>(std::atoll(argv[2]));
  const int rounds = std::atoi(argv[3]);
  int ends[2];
  if (pipe(ends) != 0) return 1;
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      alarm(kDeadlineSeconds);
      ncclUniqueId id;
      if (rank == 0) {
        NCCL(ncclGetUniqueId(&id));
        for (int other = 1; other < ranks; ++other)
          if (write(ends[1], &id, sizeof id) != sizeof id) std::exit(1);
      } else if (read(ends[0], &id, sizeof id) != sizeof id) {
        std::exit(1);
      }
      std::exit(run(rank, ranks, count, rounds, id));
    }
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
      std::printf("a rank ended by signal %d\n", WTERMSIG(status));
    failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  }
  std::printf("%d of %d ranks are right\n", ranks - failed, ranks);
  return failed == 0 ? 0 : 1;
}
