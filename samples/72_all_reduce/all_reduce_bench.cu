// Compares the time of lesson 72's all-reduce with NCCL in one run:
// fp16, in place, graph replays, one rank for each GPU.
//
//   all_reduce_bench             the table
//   all_reduce_bench --check N   N calls of random sizes: do all ranks
//                                have the bits of a sum on the host?
//
// The table compares with NCCL if CMake has found NCCL. NCCL does not
// use multicast unless NCCL_NVLS_ENABLE=1 is set.
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda_fp16.h>
#ifdef USE_NCCL
#include <nccl.h>
#endif

#include <cmath>
#include <random>

#include "all_reduce.h"
#include "ranks.h"

constexpr size_t kLargest = size_t{512} << 20;
constexpr int kTrials = 7;

struct Device {
  cudaStream_t stream;
  Team team;
  char* data;
  Arrays arrays;
};

template <class Ranks>
Device set_up(Ranks& ranks, size_t bytes) {
  int gpus = 0;
  Device device{};
  CUDA_CHECK(cudaGetDeviceCount(&gpus));
  CUDA_CHECK(cudaSetDevice(ranks.rank % gpus));
  CUDA_CHECK(cudaStreamCreate(&device.stream));
  device.team = join_team(ranks);
  CUDA_CHECK(cudaMalloc(&device.data, bytes));
  CUDA_CHECK(cudaMemset(device.data, 0, bytes));
  CUDA_CHECK(cudaDeviceSynchronize());
  device.arrays = share(ranks, device.data);
  return device;
}

void give_back(Ranks& ranks, const Device& device) {
  unshare(ranks, device.arrays);
  CUDA_CHECK(cudaFree(device.data));
  leave_team(ranks, device.team);
  CUDA_CHECK(cudaStreamDestroy(device.stream));
}

void finish(const Device& device) {
  CUDA_CHECK(cudaStreamSynchronize(device.stream));
  if (unanswered(device.team) == -1) return;
  say("gives up: rank %d has not answered", unanswered(device.team));
  std::exit(EXIT_FAILURE);
}

// --- the check
// ----------------------------------------------------------

// Returns a random number below 1, of either sign; sometimes -0.
__half value_of(unsigned rank, unsigned call, unsigned i) {
  unsigned x = (i * 0x9e3779b9u) ^ (call * 0x85ebca6bu) ^ (rank << 20);
  x = (x ^ (x >> 15)) * 0x2c1b3c6du;
  x ^= x >> 13;
  if (x % 16 == 0) return __ushort_as_half(0x8000);  // -0
  return __ushort_as_half(x & 0xbbff);  // below 1: no infinity
}

int count_wrong_sums(const Device& device,
                     const std::vector<__half>& seen, unsigned call) {
  int wrong = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    float sum = 0;
    for (int rank = 0; rank < device.team.size; ++rank)
      sum += __half2float(value_of(rank, call, i));
    wrong += __half_as_ushort(seen[i]) !=
             __half_as_ushort(__float2half_rn(sum));
  }
  return wrong;
}

int check(Ranks& ranks, int calls) {
  constexpr int kBatch = 8;  // calls without a pause between them
  constexpr size_t kPart = size_t{8} << 20;
  const Device device = set_up(ranks, kBatch * kPart);
  std::mt19937 random(72);  // the same sizes on all ranks
  std::uniform_real_distribution<double> exponent(0, 19);
  int wrong = 0;

  for (int call = 0; call < calls; call += kBatch) {
    std::vector<__half> values[kBatch];
    for (int k = 0; k < kBatch; ++k) {
      values[k].resize(
          8 * static_cast<size_t>(std::exp2(exponent(random))));
      for (size_t i = 0; i < values[k].size(); ++i)
        values[k][i] = value_of(ranks.rank, call + k, i);
      CUDA_CHECK(
          cudaMemcpyAsync(device.data + k * kPart, values[k].data(),
                          values[k].size() * sizeof(__half),
                          cudaMemcpyHostToDevice, device.stream));
    }
    for (int k = 0; k < kBatch; ++k) {
      Arrays part = device.arrays;
      for (int rank = 0; rank < ranks.size; ++rank)
        part.of[rank] = static_cast<char*>(part.of[rank]) + k * kPart;
      all_reduce<__half>(device.team, part, values[k].size(),
                         device.stream);
    }
    finish(device);
    for (int k = 0; k < kBatch; ++k) {
      CUDA_CHECK(cudaMemcpy(values[k].data(), device.data + k * kPart,
                            values[k].size() * sizeof(__half),
                            cudaMemcpyDeviceToHost));
      wrong += count_wrong_sums(device, values[k], call + k);
    }
    if (ranks.rank == 0 && (call + kBatch) % 1000 == 0)
      say("%d calls of %d", call + kBatch, calls);
  }

  int all = 0;
  for (const int of_rank : ranks.gather(wrong)) all += of_rank;
  if (ranks.rank == 0)
    say("%d ranks, %d calls of 16 B to 8 MiB: %d values are wrong",
        ranks.size, calls, all);
  give_back(ranks, device);
  return all == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

// --- the table
// ----------------------------------------------------------

struct Graph {
  cudaGraphExec_t replay;
  int calls, replays;
};

template <class Call>
Graph capture(const Device& device, size_t bytes, Call call) {
  Graph made{nullptr, bytes > (16 << 20) ? 4 : 40,
             bytes > (16 << 20) ? 3 : 10};
  cudaGraph_t graph;
  call();  // once before the capture, for setup
  CUDA_CHECK(cudaStreamSynchronize(device.stream));
  CUDA_CHECK(cudaStreamBeginCapture(device.stream,
                                    cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < made.calls; ++i) call();
  CUDA_CHECK(cudaStreamEndCapture(device.stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&made.replay, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  return made;
}

// Returns the microseconds of one call, on the slowest rank.
double measure(Ranks& ranks, const Device& device, const Graph& graph) {
  cudaEvent_t begin, end;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  CUDA_CHECK(cudaGraphLaunch(graph.replay, device.stream));
  CUDA_CHECK(cudaStreamSynchronize(device.stream));
  ranks.gather(0);
  CUDA_CHECK(cudaGraphLaunch(graph.replay, device.stream));  // warm-up
  CUDA_CHECK(cudaEventRecord(begin, device.stream));
  for (int i = 0; i < graph.replays; ++i)
    CUDA_CHECK(cudaGraphLaunch(graph.replay, device.stream));
  CUDA_CHECK(cudaEventRecord(end, device.stream));
  CUDA_CHECK(cudaStreamSynchronize(device.stream));
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  const auto all =
      ranks.gather(1000.0 * ms / (graph.calls * graph.replays));
  return *std::max_element(all.begin(), all.end());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

#ifdef USE_NCCL
#define NCCL_CHECK(call)                                    \
  do {                                                      \
    const ncclResult_t code_ = (call);                      \
    if (code_ != ncclSuccess)                               \
      call_failed(__FILE__, __LINE__, #call, "NCCL", code_, \
                  ncclGetErrorString(code_));               \
  } while (0)
#endif

std::string size_name(size_t bytes) {
  return bytes < (1 << 20) ? std::to_string(bytes >> 10) + " KiB"
                           : std::to_string(bytes >> 20) + " MiB";
}

// Returns the goal for two H200s: time / NCCL's time. 0: no goal.
double wanted(size_t bytes) {
  if (bytes <= size_t{256} << 10) return 0.40;
  if (bytes <= size_t{1} << 20) return 0.45;
  return bytes >= size_t{64} << 20 ? 1 / 1.05 : 0;
}

int table(Ranks& ranks) {
  const Device device = set_up(ranks, kLargest);
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, ranks.rank));
  if (ranks.rank == 0)
    say("%d ranks on %s, fp16, graph replays, medians of %d",
        ranks.size, properties.name, kTrials);
#ifdef USE_NCCL
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  ncclUniqueId id{};
  if (ranks.rank == 0) NCCL_CHECK(ncclGetUniqueId(&id));
  ncclComm_t nccl;
  NCCL_CHECK(ncclCommInitRank(&nccl, ranks.size, ranks.gather(id)[0],
                              ranks.rank));
  int version = 0;
  NCCL_CHECK(ncclGetVersion(&version));
  if (ranks.rank == 0)
    say("%9s %21s %21s %9s   (NCCL %d.%d.%d, NCCL_NVLS_ENABLE=%s)",
        "bytes", "lesson 72", "NCCL", "ratio", version / 10000,
        version / 100 % 100, version % 100, getenv("NCCL_NVLS_ENABLE"));
#else
  if (ranks.rank == 0)
    say("%9s %21s   (built without NCCL)", "bytes", "lesson 72");
#endif

  for (size_t bytes = 1 << 10; bytes <= kLargest; bytes *= 2) {
    const size_t count = bytes / sizeof(__half);
    const double bus = 2e-3 * (ranks.size - 1) / ranks.size * bytes;
    const Graph ours = capture(device, bytes, [&] {
      all_reduce<__half>(device.team, device.arrays, count,
                         device.stream);
    });
#ifdef USE_NCCL
    const Graph theirs = capture(device, bytes, [&] {
      NCCL_CHECK(ncclAllReduce(device.data, device.data, count,
                               ncclHalf, ncclSum, nccl, device.stream));
    });
#endif
    std::vector<double> our_us, their_us;
    for (int trial = 0; trial < kTrials; ++trial) {
      our_us.push_back(measure(ranks, device, ours));
#ifdef USE_NCCL
      their_us.push_back(measure(ranks, device, theirs));
#endif
    }
    finish(device);
    CUDA_CHECK(cudaGraphExecDestroy(ours.replay));
    const double us = median(our_us);
    if (their_us.empty()) {
      if (ranks.rank == 0)
        say("%9s %8.2f us %6.1f GB/s", size_name(bytes).c_str(), us,
            bus / us);
      continue;
    }
#ifdef USE_NCCL
    CUDA_CHECK(cudaGraphExecDestroy(theirs.replay));
#endif
    const double nccl_us = median(their_us);
    const double limit = wanted(bytes);
    char verdict[64] = "";
    if (limit != 0)
      std::snprintf(verdict, sizeof verdict, "at most %.2f: %s", limit,
                    us / nccl_us <= limit ? "reached" : "NOT REACHED");
    if (ranks.rank == 0)
      say("%9s %8.2f us %6.1f GB/s %8.2f us %6.1f GB/s %6.2f   %s",
          size_name(bytes).c_str(), us, bus / us, nccl_us,
          bus / nccl_us, us / nccl_us, verdict);
  }

#ifdef USE_NCCL
  NCCL_CHECK(ncclCommDestroy(nccl));
#endif
  give_back(ranks, device);
  return EXIT_SUCCESS;
}

int main(int argc, char** argv) {
  const bool child =
      argc == 3 && std::strcmp(argv[1], kImporterFlag) == 0;
  const bool checks = argc == 3 && std::strcmp(argv[1], "--check") == 0;
  int calls = checks ? std::atoi(argv[2]) : 0;
  if (!child && (checks ? calls < 1 : argc != 1)) {
    std::fprintf(stderr, "usage: %s [--check CALLS]\n", argv[0]);
    return 2;
  }

  const auto take_part = [&](Ranks& ranks) {
    calls = ranks.gather(calls)[0];
    return calls > 0 ? check(ranks, calls) : table(ranks);
  };
  if (child) {
    Ranks ranks(channel_from_parent(argv));
    return take_part(ranks);
  }

  require_gpus(2);
  require_legacy_ipc();
  int gpus = 0;
  CUDA_CHECK(cudaGetDeviceCount(&gpus));
  char* alone[] = {argv[0], nullptr};
  Ranks ranks(alone, std::min(gpus, kMaxRanks));
  return ranks.finish(take_part(ranks));
}
