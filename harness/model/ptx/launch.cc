// SPDX-License-Identifier: Apache-2.0
// Runs a grid. At first one cluster of blocks is resident, which usually is one
// block. If no resident block ends in a pass, more clusters become resident. So
// a block may spin until another block does something.
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>

#include "grid.h"
#include "per_thread.h"

namespace ipclab::ptx {
namespace {

// The first four numbers count instructions of a warp.
constexpr uint32_t kQuantum = 2048;        // between two checks of the limits
constexpr uint32_t kYieldAfter = 1 << 19;  // of a kernel that makes progress
constexpr uint64_t kAloneBudget = 32768;   // for a block that runs alone
constexpr uint64_t kSharedBudget = 4096;   // if other blocks are resident
constexpr unsigned kIdlePasses = 200;      // before a waiting kernel sleeps
constexpr unsigned kBurst = 64;            // passes between two naps
constexpr long kShortestNap = 100'000;     // nanoseconds
constexpr long kLongestNap = 1'000'000;    // nanoseconds, after a long wait
constexpr size_t kMaxResident = 256;
constexpr size_t kKeptArena = 64u << 20;

unsigned configured_threads() {
  static const unsigned threads = [] {
    const char* text = std::getenv("IPCLAB_MODEL_THREADS");
    const int value = text != nullptr ? std::atoi(text) : 1;
    return static_cast<unsigned>(std::clamp(value, 1, 64));
  }();
  return threads;
}

std::string hexadecimal(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx",
                static_cast<unsigned long long>(value));
  return text;
}

Arena& thread_arena() { return of_this_thread<Arena, Arena>(); }

}  // namespace

uint64_t steady_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u +
         static_cast<uint64_t>(now.tv_nsec);
}

// --- Arena -----------------------------------------------------------------

Arena::~Arena() {
  for (const Chunk& chunk : chunks_) std::free(chunk.begin);
}

char* Arena::take(size_t bytes) {
  bytes = (bytes + 255) / 256 * 256;
  while (current_ < chunks_.size() && used_ + bytes > chunks_[current_].size) {
    ++current_;
    used_ = 0;
  }
  if (current_ == chunks_.size()) {
    const size_t size = std::max<size_t>(bytes, 1u << 20);
    auto* begin = static_cast<char*>(std::aligned_alloc(256, size));
    if (begin == nullptr) throw std::bad_alloc();
    chunks_.push_back({begin, size});
    used_ = 0;
  }
  char* result = chunks_[current_].begin + used_;
  used_ += bytes;
  return result;
}

void Arena::reset() {
  size_t kept = 0, total = 0;
  while (kept < chunks_.size() && total + chunks_[kept].size <= kKeptArena)
    total += chunks_[kept++].size;
  for (size_t k = kept; k < chunks_.size(); ++k) std::free(chunks_[k].begin);
  chunks_.resize(kept);
  current_ = used_ = 0;
}

// --- Grid ------------------------------------------------------------------

/// One host thread's share of a launch.
class Worker {
 public:
  Worker(Grid& grid, unsigned index) : grid_(grid), next_(index) {}

  void run() {
    if (grid_.launch.cooperative) {
      while (start_cluster()) {
      }
    }
    while (!grid_.stopped()) {
      if (resident_.empty() && !start_cluster()) break;
      if (pass()) continue;
      const size_t wanted = std::min(2 * resident_.size(), kMaxResident);
      while (resident_.size() < wanted && start_cluster()) {
      }
    }
  }

 private:
  /// The number of the next cluster. In a cooperative grid every thread has its
  /// own share of the clusters; otherwise a thread takes the next cluster that
  /// no thread has.
  bool next_cluster(uint64_t* number) {
    if (grid_.launch.cooperative) {
      *number = next_;
      next_ += grid_.threads_;
    } else {
      *number = grid_.next_cluster_.fetch_add(1, std::memory_order_relaxed);
    }
    return *number < grid_.clusters_;
  }

  bool start_cluster() {
    uint64_t number;
    if (!next_cluster(&number)) return false;
    if (free_.empty()) {
      all_.push_back(std::make_unique<Cluster>());
      prepare(*all_.back());
      free_.push_back(all_.back().get());
    }
    Cluster& cluster = *free_.back();
    free_.pop_back();
    start(cluster, number);
    for (const auto& block : cluster.blocks) resident_.push_back(block.get());
    return true;
  }

  void prepare(Cluster& cluster) {
    const unsigned* size = grid_.launch.cluster;
    for (uint32_t rank = 0; rank < size[0] * size[1] * size[2]; ++rank) {
      cluster.blocks.push_back(std::make_unique<Block>());
      Block& block = *cluster.blocks.back();
      block.cluster = &cluster;
      block.rank = rank;
      prepare(block);
    }
  }

  void prepare(Block& block) {
    const Launch& launch = grid_.launch;
    const unsigned* size = launch.block;
    const unsigned threads = size[0] * size[1] * size[2];
    block.grid = &grid_;
    block.dynamic_shared = grid_.dynamic_shared_offset;
    block.shared_bytes = block.dynamic_shared + launch.dynamic_shared_bytes;
    block.shared = arena_.take(block.shared_bytes);
    block.warps.resize((threads + kLanes - 1) / kLanes);
    const uint32_t stack = launch.kernel->stack_bytes_;
    uint32_t at[3] = {0, 0, 0};
    for (size_t w = 0; w < block.warps.size(); ++w) {
      Warp& warp = block.warps[w];
      warp.block = &block;
      warp.index = static_cast<uint32_t>(w);
      warp.stack_bytes = stack;
      if (stack != 0)
        warp.local = arena_.take(static_cast<size_t>(stack) * kLanes);
      for (int lane = 0; lane < kLanes; ++lane) {
        for (int k = 0; k < 3; ++k) warp.thread_index[k][lane] = at[k];
        if (++at[0] == size[0]) {
          at[0] = 0;
          if (++at[1] == size[1]) {
            at[1] = 0;
            ++at[2];
          }
        }
      }
    }
  }

  void start(Cluster& cluster, uint64_t number) {
    const unsigned* size = grid_.launch.cluster;
    for (int k = 0; k < 3; ++k) {
      const unsigned clusters = grid_.launch.grid[k] / size[k];
      cluster.index[k] = static_cast<uint32_t>(number % clusters);
      number /= clusters;
    }
    cluster.ended = 0;
    cluster.live = 0;
    cluster.arrived = 0;
    for (const auto& block : cluster.blocks) {
      uint32_t rank = block->rank;
      for (int k = 0; k < 3; ++k) {
        block->index[k] = cluster.index[k] * size[k] + rank % size[k];
        rank /= size[k];
      }
      start(*block);
      cluster.live += block->live;
    }
  }

  void start(Block& block) {
    const unsigned* size = grid_.launch.block;
    for (Barrier& barrier : block.barriers) barrier = Barrier{};
    unsigned threads = size[0] * size[1] * size[2];
    block.live = threads;
    block.waiting = 0;
    if (Observer* observer = grid_.launch.observer)
      observer->begin(grid_.number_of(block), threads, block.shared_bytes);
    for (Warp& warp : block.warps) {
      const uint32_t lanes =
          threads >= kLanes ? kAllLanes : (1u << threads) - 1;
      start_warp(warp, arena_, *grid_.launch.kernel->function_, lanes);
      threads -= std::min<unsigned>(threads, kLanes);
    }
  }

  /// Runs every resident block for a short time. Returns true if a block ended.
  bool pass() {
    const uint64_t budget =
        resident_.size() == 1 ? kAloneBudget : kSharedBudget;
    bool ended = false;
    moved_ = false;
    for (size_t k = 0; k < resident_.size() && !grid_.stopped();) {
      if (run_block(*resident_[k], budget)) {
        ended = true;
        if (Observer* observer = grid_.launch.observer)
          observer->end(grid_.number_of(*resident_[k]));
        Cluster& cluster = *resident_[k]->cluster;
        if (++cluster.ended == cluster.blocks.size()) free_.push_back(&cluster);
        resident_.erase(resident_.begin() + static_cast<ptrdiff_t>(k));
        if (resident_.empty()) start_cluster();
      } else {
        ++k;
      }
    }
    if (ended || moved_) {
      idle_passes_ = 0;
    } else {
      wait();
    }
    return ended;
  }

  /// Call this when all blocks poll. After many passes the thread sleeps most
  /// of the time, so other work gets the processor; the longer it has waited,
  /// the longer it sleeps. It does not sleep all the time, because a kernel may
  /// count its polls.
  void wait() {
    if (++idle_passes_ <= kIdlePasses) return rest();
    since_yield_ = 0;
    if (idle_passes_ % kBurst != 0) return;
    const long naps = (idle_passes_ - kIdlePasses) / kBurst;
    const timespec nap{0, std::min(kShortestNap + naps * 50'000L, kLongestNap)};
    nanosleep(&nap, nullptr);
    look();
  }

  /// Runs the block's warps in turn. Returns true if the block has ended.
  /// Returns false if all warps wait or poll, or if about `budget` instructions
  /// are done.
  bool run_block(Block& block, uint64_t budget) {
    for (uint64_t done = 0; done < budget;) {
      bool moved = false;
      bool alive = false;
      for (Warp& warp : block.warps) {
        if (warp.live == 0) continue;
        bool polled = false;
        const uint32_t ran = run_warp(warp, arena_, kQuantum, &polled);
        if (grid_.stopped()) return false;
        count(ran);
        done += ran;
        moved |= ran != 0 && !polled;
        alive |= warp.live != 0;
      }
      if (!alive) return true;
      if (!moved) return false;
      moved_ = true;
    }
    return false;
  }

  void count(uint32_t instructions) {
    since_look_ += instructions;
    since_yield_ += instructions;
    if (since_yield_ >= kYieldAfter) {
      rest();
    } else if (since_look_ >= kQuantum) {
      look();
    }
  }

  /// Yields, because the work that this kernel waits for may need this
  /// processor. On a busy machine a yield costs many milliseconds, so a kernel
  /// that makes progress yields rarely.
  void rest() {
    since_yield_ = 0;
    sched_yield();
    look();
  }

  void look() {
    since_look_ = 0;
    grid_.check_limits();
  }

  Grid& grid_;
  Arena& arena_ = thread_arena();
  uint64_t next_;
  uint32_t since_yield_ = 0;
  uint32_t since_look_ = 0;
  unsigned idle_passes_ = 0;  ///< in a row
  bool moved_ = false;        ///< did a warp make progress in this pass?
  std::vector<std::unique_ptr<Cluster>> all_;
  std::vector<Cluster*> free_;
  std::vector<Block*> resident_;
};

Grid::Grid(const Launch& l)
    : launch(l), space(*l.space), program(*l.kernel->program_) {
  const Kernel& kernel = *launch.kernel;
  dynamic_shared_offset = (kernel.static_shared_bytes_ + 15) / 16 * 16;
  clusters_ = 1;
  for (int k = 0; k < 3; ++k) clusters_ *= launch.grid[k] / launch.cluster[k];
  threads_ = static_cast<unsigned>(
      std::min<uint64_t>(launch.observer == nullptr ? configured_threads() : 1,
                         std::max<uint64_t>(clusters_, 1)));
  if (launch.limit_seconds > 0)
    deadline_ns_ =
        steady_ns() + static_cast<uint64_t>(launch.limit_seconds * 1e9);
}

std::optional<Fault> Grid::run() {
  std::vector<std::thread> helpers;
  const auto work = [this](unsigned index) {
    Worker(*this, index).run();
    thread_arena().reset();
  };
  for (unsigned k = 1; k < threads_; ++k) helpers.emplace_back(work, k);
  work(0);
  for (std::thread& helper : helpers) helper.join();
  return fault_;
}

void Grid::fault(Fault fault) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (fault_) return;
  fault.kernel = launch.kernel->name();
  fault_ = std::move(fault);
  stop_.store(true, std::memory_order_relaxed);
}

void Grid::fault(Warp&, const Instruction& at, int code,
                 const std::string& what) {
  Fault result;
  result.code = code;
  result.line = at.line;
  result.what = "kernel " + launch.kernel->name() + ": " + what +
                " (PTX line " + std::to_string(at.line) + ")";
  fault(std::move(result));
}

void Grid::memory_fault(Warp& warp, const Instruction& at, int code,
                        uint64_t address, uint32_t size, bool write) {
  (void)warp;
  Fault result;
  result.code = code;
  result.address = address;
  result.size = size;
  result.write = write;
  result.line = at.line;
  result.what = "kernel " + launch.kernel->name() + ": " +
                (code == 716 ? "misaligned " : "illegal ") +
                (write ? "write of " : "read of ") + std::to_string(size) +
                " bytes at " + hexadecimal(address) + " (PTX line " +
                std::to_string(at.line) + ")";
  fault(std::move(result));
}

void Grid::check_limits() {
  const bool late = deadline_ns_ != 0 && steady_ns() > deadline_ns_;
  const bool cancelled = launch.cancel != nullptr &&
                         launch.cancel->load(std::memory_order_relaxed);
  if (!late && !cancelled) return;
  Fault result;
  result.code = 702;
  result.what = "kernel " + launch.kernel->name() + ": " +
                (cancelled ? "cancelled" : "still running at its time limit");
  fault(std::move(result));
}

void Grid::print(const std::string& text) {
  if (launch.print != nullptr) {
    launch.print(launch.print_context, text.c_str());
  } else {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }
}

std::optional<Fault> run(const Launch& launch) {
  const Kernel& kernel = *launch.kernel;
  if (!kernel.unsupported().empty()) {
    Fault fault;
    fault.code = 218;
    fault.kernel = kernel.name();
    fault.what = "kernel " + kernel.name() + ": " + kernel.unsupported();
    return fault;
  }
  return Grid(launch).run();
}

}  // namespace ipclab::ptx
