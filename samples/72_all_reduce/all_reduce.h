// All-reduce over legacy memory handles. A rank is one process with one
// GPU. Each rank has an array. At the end each array is the sum of all
// arrays.
//
// Small arrays are pushed: every rank writes its values into a mailbox
// on each other GPU and adds the values in its own mailbox. The values
// are their own flags: a word that still has the bits kEmpty has not
// arrived. Large arrays are summed in two phases: each rank sums one
// slice of all arrays and writes the sum to all ranks.
//
// Every rank adds in the order of the ranks, starting with 0, in fp32.
// So all ranks and a sum on the host get the same bits.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cuda/atomic>
#include <vector>

#include "../common/data.h"

constexpr int kMaxRanks = 8;
/// A larger array, in bytes, is summed in two phases. With more than
/// three ranks the limit is lower: see all_reduce().
constexpr size_t kMaxPushed = 1 << 20;
constexpr int kMaxBlocks = 1024;  ///< the most blocks of a kernel

/// -0 as a float; 0 and -0 as two halves. No rank sends this word. A
/// rank sends 0 instead of it.
constexpr unsigned kEmpty = 0x80000000;

constexpr size_t kPackets = kMaxPushed / sizeof(uint4);

/// What a block reads at the beginning of a push.
struct alignas(8) Turn {
  unsigned box;      ///< of this push: 0, 1, 2, 0 …
  unsigned packets;  ///< of the previous push
};

/// What other ranks send to this rank, and this rank's own counters.
struct Mailbox {
  uint4 pushed[3][kMaxRanks][kPackets];     ///< by box and sender
  unsigned arrived[kMaxBlocks][kMaxRanks];  ///< meetings, by sender
  unsigned met[kMaxBlocks];  ///< how many meetings each block had
  Turn turns[kMaxBlocks];    ///< of each block
  unsigned unanswered;       ///< 1 + the lost rank; 0: none
};

/// One rank's view of all ranks. Kernels get it by value.
struct Team {
  int rank;                   ///< this rank
  int size;                   ///< how many ranks
  int blocks;                 ///< that can run at once on every GPU
  Mailbox* mail[kMaxRanks];   ///< the mailbox of each rank
  volatile unsigned* failed;  ///< as `unanswered`, for the host
  unsigned long long limit;   ///< of a wait, in ns of the GPU's clock
};

/// The array of each rank, as pointers of this process.
struct Arrays {
  void* of[kMaxRanks];  ///< of[rank] is the array of this rank
};

/// Returns the k-th rank after this rank; rank 0 comes after the last
/// rank. (The operator % would cost 50 ns.)
__device__ inline int peer_of(const Team& team, int k) {
  const int peer = team.rank + k;
  return peer < team.size ? peer : peer - team.size;
}

using SystemWord =
    cuda::atomic_ref<unsigned, cuda::thread_scope_system>;

//! [patience]
/// Returns true if a wait for rank `awaited` must end after `waited`
/// ns: the wait took too long, or another thread or rank has given up.
/// Then reports the lost rank to the host, and to all ranks if this
/// rank is the first to know it. The function is not inlined, so that a
/// wait has few instructions.
__device__ __noinline__ inline bool gives_up(
    const Team& team, int awaited, unsigned long long waited) {
  const SystemWord told(team.mail[team.rank]->unanswered);
  const unsigned known = told.load(cuda::memory_order_relaxed);
  if (known == 0 && waited < team.limit) return false;

  const unsigned lost = known != 0 ? known : 1 + awaited;
  *team.failed = lost;
  if (known == 0)
    for (int i = 0; i < team.size; ++i)
      SystemWord(team.mail[i]->unanswered).store(lost);
  return true;
}

/// A wait for one rank. The wait ends after the team's limit, or soon
/// after another thread or rank gave up.
struct Patience {
  const Team& team;
  int awaited;  ///< the rank
  unsigned polls = 0;
  unsigned long long began = 0;

  __device__ bool is_over() {
    if (++polls % 256 != 0)
      return false;  // a read of the clock is slow
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (began == 0) began = now;
    return gives_up(team, awaited, now - began);
  }
};
//! [patience]

//! [packets]
__device__ inline void send(uint4* to, const uint4& packet) {
  asm volatile(
      "st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to),
      "r"(packet.x), "r"(packet.y), "r"(packet.z), "r"(packet.w));
}

__device__ inline uint4 look(const uint4* from) {
  uint4 packet;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(packet.x), "=r"(packet.y), "=r"(packet.z),
                 "=r"(packet.w)
               : "l"(from));
  return packet;
}

__device__ inline Turn look(const Turn* from) {
  Turn turn;
  asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(turn.box), "=r"(turn.packets)
               : "l"(from));
  return turn;
}

// Checks each word: the documentation does not say that the four
// words of a packet arrive together. Returns an incomplete packet if
// the wait is over.
__device__ inline uint4 receive(const uint4* from, Patience patience) {
  for (;;) {
    const uint4 packet = look(from);
    if (packet.x != kEmpty && packet.y != kEmpty &&
        packet.z != kEmpty && packet.w != kEmpty)
      return packet;
    if (patience.is_over()) return packet;
  }
}

/// Empties packet `i` of each other rank in `box`.
__device__ inline void clear(const Team& team,
                             uint4 (&box)[kMaxRanks][kPackets],
                             size_t i) {
#pragma unroll 1
  for (int rank = 0; rank < team.size; ++rank)
    if (rank != team.rank)
      box[rank][i] = {kEmpty, kEmpty, kEmpty, kEmpty};
}

__device__ inline uint4 never_empty(uint4 packet) {
  if (packet.x == kEmpty) packet.x = 0;
  if (packet.y == kEmpty) packet.y = 0;
  if (packet.z == kEmpty) packet.z = 0;
  if (packet.w == kEmpty) packet.w = 0;
  return packet;
}

/// The sum of packets of T (float, __half, __nv_bfloat16), in fp32.
template <class T>
struct Sum {
  static constexpr int kValues = sizeof(uint4) / sizeof(T);
  float values[kValues] = {};

  __device__ void add(const uint4& packet) {
    T parts[kValues];
    memcpy(parts, &packet, sizeof packet);
    for (int i = 0; i < kValues; ++i)
      values[i] += static_cast<float>(parts[i]);
  }
  __device__ uint4 rounded() const {
    T parts[kValues];
    for (int i = 0; i < kValues; ++i)
      parts[i] = static_cast<T>(values[i]);
    uint4 packet;
    memcpy(&packet, parts, sizeof packet);
    return packet;
  }
};
//! [packets]

//! [push]
/// One store carries data and flag, and no rank waits for anything
/// else. A call clears the box of the previous call, because this rank
/// has read that box. The peers write into that box again two calls
/// later. Before that, they wait for this rank's mail of the next call.
template <class T>
__global__ void push_and_sum(const __grid_constant__ Team team,
                             uint4* array, size_t packets) {
  Mailbox& mine = *team.mail[team.rank];
  const size_t step = gridDim.x * blockDim.x;
  size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  // The three loads overlap: nothing is computed between them.
  uint4 own = look(&array[i < packets ? i : 0]);
  const unsigned lost =
      SystemWord(mine.unanswered).load(cuda::memory_order_relaxed);
  const Turn turn = look(&mine.turns[blockIdx.x]);
  const unsigned before = (turn.box + 2) % 3;
  if (lost != 0) return;  // the team has failed

  for (; i < packets; i += step) {
    const uint4 packet = never_empty(own);
#pragma unroll 1
    for (int k = 1; k < team.size; ++k)
      send(&team.mail[peer_of(team, k)]->pushed[turn.box][team.rank][i],
           packet);
    if (i < turn.packets) clear(team, mine.pushed[before], i);

    Sum<T> sum;
#pragma unroll 1
    for (int rank = 0; rank < team.size; ++rank)
      sum.add(
          rank == team.rank
              ? own
              : receive(&mine.pushed[turn.box][rank][i], {team, rank}));
    array[i] = sum.rounded();
    if (i + step < packets) own = look(&array[i + step]);
  }
  for (; i < turn.packets; i += step)
    clear(team, mine.pushed[before], i);

  // The turns are in GPU memory, so that a graph can be replayed. Each
  // block has its own turn, so a block needs no wait and no atomic. A
  // block also updates the turns of blocks that only larger grids have.
  __syncthreads();  // the whole block has read its turn
  for (int b = blockIdx.x + threadIdx.x * gridDim.x; b < team.blocks;
       b += step)
    mine.turns[b] = {(turn.box + 1) % 3,
                     static_cast<unsigned>(packets)};
}
//! [push]

//! [phases]
/// Each block waits for the blocks with the same number of all ranks;
/// they may be one meeting ahead. After that it sees everything that
/// they, and the earlier work of their streams, have written.
__device__ inline void meet(const Team& team) {
  Mailbox& mine = *team.mail[team.rank];
  __syncthreads();
  const unsigned meeting = mine.met[blockIdx.x] + 1;
  if (threadIdx.x < team.size) {
    const int peer = threadIdx.x;
    Patience patience{team, peer};
    SystemWord(team.mail[peer]->arrived[blockIdx.x][team.rank])
        .store(meeting, cuda::memory_order_release);
    const SystemWord arrived(mine.arrived[blockIdx.x][peer]);
    while (arrived.load(cuda::memory_order_acquire) - meeting > 1)
      if (patience.is_over()) break;
  }
  __syncthreads();
  if (threadIdx.x == 0) mine.met[blockIdx.x] = meeting;
}

/// Each rank sums its slice of all arrays, and writes the sum to all
/// arrays. Between the two meetings no other rank uses that slice, so
/// the arrays need no copy.
template <class T>
__global__ void __launch_bounds__(256, 2)
    sum_in_two_phases(const __grid_constant__ Team team,
                      const __grid_constant__ Arrays arrays,
                      size_t packets) {
  constexpr int kInFlight = 4;  // loads at once keep the link busy
  const size_t end = packets * (team.rank + 1) / team.size;
  const size_t step = gridDim.x * blockDim.x;
  size_t at = packets * team.rank / team.size +
              blockIdx.x * blockDim.x + threadIdx.x;

  if (team.mail[team.rank]->unanswered != 0) return;
  meet(team);  // all arrays are ready
  for (; at < end; at += kInFlight * step) {
    Sum<T> sums[kInFlight];
    for (int rank = 0; rank < team.size; ++rank) {
      const uint4* array = static_cast<uint4*>(arrays.of[rank]);
      uint4 packet[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k)
        if (at + k * step < end) packet[k] = array[at + k * step];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k)
        if (at + k * step < end) sums[k].add(packet[k]);
    }
    for (int k = 1; k <= team.size; ++k) {
      uint4* array = static_cast<uint4*>(arrays.of[peer_of(team, k)]);
#pragma unroll
      for (int u = 0; u < kInFlight; ++u)
        if (at + u * step < end)
          array[at + u * step] = sums[u].rounded();
    }
  }
  meet(team);  // all sums are written
}
//! [phases]

//! [setup]
/// Opens the memory of all other ranks. Returns the addresses of `mine`
/// and of this memory. `ranks` has rank, size, and gather(value), which
/// returns the values of all ranks. `mine` comes from cudaMalloc. All
/// ranks call this. Ends the process if a call fails.
template <class Ranks>
Arrays share(Ranks& ranks, void* mine) {
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, mine));
  const auto handles = ranks.gather(handle);
  Arrays arrays{};
  for (int i = 0; i < ranks.size; ++i)
    if (i == ranks.rank)
      arrays.of[i] = mine;
    else
      CUDA_CHECK(cudaIpcOpenMemHandle(&arrays.of[i], handles[i],
                                      cudaIpcMemLazyEnablePeerAccess));
  return arrays;
}

/// Closes the memory that share() has opened. Returns when all ranks
/// have done this. After that this rank may free its own memory.
template <class Ranks>
void unshare(Ranks& ranks, const Arrays& arrays) {
  for (int i = 0; i < ranks.size; ++i)
    if (i != ranks.rank)
      CUDA_CHECK(cudaIpcCloseMemHandle(arrays.of[i]));
  ranks.gather(0);
}

/// Makes a mailbox on the current GPU, and opens the other ranks'
/// mailboxes. All ranks call this. A kernel that has waited for
/// `limit_s` seconds gives up.
template <class Ranks>
Team join_team(Ranks& ranks, int limit_s = 10) {
  Team team{};
  team.rank = ranks.rank;
  team.size = ranks.size;
  team.limit = limit_s * 1'000'000'000ULL;

  int device = 0, processors = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(
      &processors, cudaDevAttrMultiProcessorCount, device));
  const auto all = ranks.gather(processors);
  team.blocks = std::min(2 * *std::min_element(all.begin(), all.end()),
                         kMaxBlocks);

  Mailbox* mine = nullptr;
  // Whole pages of 2 MiB: a handle of them shares nothing else.
  CUDA_CHECK(cudaMalloc(&mine, round_up(sizeof *mine, 2 << 20)));
  CUDA_CHECK(cudaMemset(mine, 0, sizeof *mine));
  write_values(mine->pushed, sizeof mine->pushed / sizeof kEmpty,
               kEmpty, nullptr, 0);
  CUDA_CHECK(cudaDeviceSynchronize());
  const Arrays mail = share(ranks, mine);
  for (int i = 0; i < team.size; ++i)
    team.mail[i] = static_cast<Mailbox*>(mail.of[i]);

  void* failed = nullptr;
  CUDA_CHECK(
      cudaHostAlloc(&failed, sizeof(unsigned), cudaHostAllocMapped));
  team.failed = static_cast<unsigned*>(failed);
  *team.failed = 0;
  return team;
}

/// Releases everything that join_team() has made. All ranks call this.
template <class Ranks>
void leave_team(Ranks& ranks, const Team& team) {
  Arrays mail{};
  std::copy(team.mail, team.mail + team.size, mail.of);
  unshare(ranks, mail);
  CUDA_CHECK(cudaFree(team.mail[team.rank]));
  CUDA_CHECK(cudaFreeHost(const_cast<unsigned*>(team.failed)));
}
//! [setup]

//! [call]
/// Queues the sum of `count` values of T of each rank, in place. Every
/// rank makes the same calls, in the same order. The size has to be a
/// whole number of packets of 16 bytes. Does nothing if `count` is 0.
/// Ends the process if the size is wrong or the launch fails.
template <class T>
void all_reduce(const Team& team, const Arrays& arrays, size_t count,
                cudaStream_t stream) {
  const size_t bytes = count * sizeof(T);
  const size_t packets = bytes / sizeof(uint4);
  if (bytes % sizeof(uint4) != 0) {
    print_role(stderr);
    std::fprintf(stderr,
                 "all_reduce: %zu bytes are not a multiple of 16: pad "
                 "the array\n",
                 bytes);
    std::exit(EXIT_FAILURE);
  }
  if (packets == 0) return;

  if (bytes <= kMaxPushed / (team.size > 2 ? team.size / 2 : 1)) {
    const int threads = packets > 64u * team.blocks ? 256 : 128;
    const int blocks = static_cast<int>(std::min<size_t>(
        (packets + threads - 1) / threads, team.blocks));
    push_and_sum<T><<<blocks, threads, 0, stream>>>(
        team, static_cast<uint4*>(arrays.of[team.rank]), packets);
    CUDA_CHECK(cudaGetLastError());
  } else {
    sum_in_two_phases<T>
        <<<team.blocks, 256, 0, stream>>>(team, arrays, packets);
    CUDA_CHECK(cudaGetLastError());
  }
}

/// Returns the rank that has not answered in time, or -1. Call this
/// after the work is done. If a rank has not answered, the sums are
/// wrong and the team cannot be used any more.
inline int unanswered(const Team& team) {
  return static_cast<int>(*team.failed) - 1;
}
//! [call]
