// SPDX-License-Identifier: Apache-2.0
// Decoded code and the state of the machine that runs it: a warp executes one
// instruction for 32 lanes at a time through a function pointer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "ptx.h"
#include "syntax.h"

namespace ipclab::ptx {

constexpr uint32_t kAllLanes = ~0u;
constexpr uint32_t kNone = ~0u;  ///< no register

/// Generic addresses of the memories that are not in the device window. The top
/// byte of an address names the memory. The other bytes are the offset. No
/// pointer of a process has such a value.
constexpr uint64_t kSharedWindow = 1ull << 56;
constexpr uint64_t kLocalWindow = 2ull << 56;
constexpr uint64_t kParameterWindow = 3ull << 56;
constexpr uint64_t kCodeWindow = 4ull << 56;
constexpr uint64_t kGridWindow = 5ull << 56;  ///< cooperative launch workspace

enum class Space : uint8_t {
  kGeneric,
  kGlobal,
  kShared,
  kLocal,
  kParameter,
  kFrame,  ///< variables of the running function, relative to its frame
};

/// The action after an instruction. The scheduler does all actions except
/// kNext.
enum class Flow : uint8_t {
  kNext,
  kBranch,
  kBranchIndex,
  kCall,
  kReturn,
  kExit,
  kBarrier,
  kWarpSync,     ///< kNext, when all lanes of the member mask have arrived
  kYield,        ///< kNext, but first other warps may run
  kPoll,         ///< a load: kYield if it reads the same place again
  kClusterWait,  ///< kNext, when all threads of the cluster have arrived
};

/// Instruction::mode of Flow::kBarrier and of Flow::kWarpSync.
enum : uint8_t {
  kBarrierSync,
  kBarrierArrive,
  kBarrierPopc,
  kBarrierAnd,
  kBarrierOr
};
constexpr uint8_t kMeetOnly = 0xff;  ///< a warp sync that exchanges nothing

struct Warp;
struct Instruction;
using Handler = void (*)(Warp&, const Instruction&, uint32_t mask);

/// Operands are byte offsets into the frame's registers. A register holds 32
/// values one after the other, a predicate one bit for each lane.
struct Instruction {
  Handler run = nullptr;
  uint32_t d = kNone, a = kNone, b = kNone, c = kNone, e = kNone;
  uint32_t guard = kNone;
  int64_t immediate = 0;
  int32_t target = -1;  ///< of a branch: index in the function's code
  uint32_t list = 0;    ///< first entry in Function::lists
  int line = 0;
  Flow flow = Flow::kNext;
  Space space = Space::kGeneric;
  bool guard_negated = false;
  uint8_t mode = 0;            ///< its meaning depends on the handler
  uint8_t count = 1;           ///< elements of a vector
  uint8_t register_bytes = 0;  ///< of d (or the vector's elements)
  uint8_t address_bytes = 8;   ///< of the address register
  /// The instruction only computes registers, from registers and from values
  /// that never change while a warp exists. It cannot fault and may run earlier
  /// than its place in the code.
  bool pure = false;
  /// This many instructions from here on always run one after the other: no
  /// instruction has a guard, no lanes join between them, and all instructions
  /// except the last are pure.
  uint16_t straight = 0;
  Effect effect = {};
};

/// A value that is put into a register before the function runs.
struct Constant {
  uint32_t offset, bytes;
  uint64_t value;
  std::string symbol;  ///< link() sets value to its address plus addend
  int64_t addend = 0;
};

struct Function;
struct Call {
  std::string name;                  ///< empty: through a register
  const Function* callee = nullptr;  ///< null: through a register, or built in
  std::vector<uint32_t> arguments, results;  ///< frame offsets in the caller
};

struct Function {
  std::string name;
  int unit = 0;
  uint32_t index = 0;
  std::vector<Instruction> once;  ///< run when the registers are made
  std::vector<Instruction> code;
  std::vector<Constant> constants;
  std::vector<uint32_t> lists;
  std::vector<Call> calls;
  uint32_t register_bytes = 0;
  uint32_t frame_bytes = 0;
  std::vector<std::pair<uint32_t, uint32_t>> parameters, results;  ///< off,size
  std::string unsupported;
};

struct Program {
  std::deque<Function> functions;
  /// What the `.loc` directives say, in the order of the text.
  struct Source {
    int line;  ///< in the PTX text
    std::string place;
  };
  std::vector<Source> sources;
  // For link():
  std::vector<int> variable_unit;
  Names<size_t> variable_names, function_names;
};

/// One activation of a function by some lanes of a warp.
struct Frame {
  const Function* function;
  char* registers;
  Frame* caller;
  int return_to;
  const Call* call;
  uint32_t lanes;  ///< lanes that have not returned yet
  uint32_t base;   ///< of its variables in each lane's local memory
  int depth;
};

/// Lanes of a warp that are at the same place.
struct Split {
  enum State : uint8_t { kReady, kAtWarpSync, kAtBarrier } state = kReady;
  uint32_t mask;
  int pc;
  Frame* frame;
  uint32_t wanted = 0;  ///< at a warp sync: the lanes that the split waits for;
                        ///< at a barrier: its number
  uint64_t last_run = 0;
};

struct Block;
struct Cluster;
struct Warp {
  char* registers = nullptr;  ///< of `frame`
  Frame* frame = nullptr;     ///< of the split that runs
  Block* block = nullptr;
  char* local = nullptr;  ///< stack_bytes for each lane
  uint32_t stack_bytes = 0;
  uint32_t live = 0;
  uint32_t index = 0;
  uint64_t clock = 0;                 ///< scheduling decisions, for fairness
  uint64_t polled[4] = {0, 0, 0, 0};  ///< what the last Flow::kPolls read
  uint32_t thread_index[3][kLanes];
  uint64_t arrived_in[kLanes];  ///< phase of the cluster's barrier
  std::vector<Split> splits;
  std::vector<Frame*> free_frames;
};

class Grid;
struct Barrier {
  uint32_t expected = 0;  ///< threads; 0: all of the block
  uint32_t arrived = 0;
  uint32_t count = 0;  ///< threads whose predicate was true (bar.red)
};

struct Block;
/// The blocks of a cluster, by rank. All of them are resident until the last
/// one has ended, so each may access the shared memory of the others.
struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  unsigned ended = 0;
  uint32_t index[3] = {0, 0, 0};
  // Its barrier.
  uint32_t live = 0;  ///< threads that have not ended
  uint32_t arrived = 0;
  uint64_t phase = 0;

  void complete_barrier_if_done() {
    if (arrived == 0 || arrived < live) return;
    arrived = 0;
    ++phase;
  }
};

/// The address of shared memory of another block of the cluster has the block's
/// rank plus 1 in these bits.
constexpr int kRankShift = 24;

struct Block {
  Grid* grid = nullptr;
  Cluster* cluster = nullptr;
  uint32_t rank = 0;  ///< in the cluster
  char* shared = nullptr;
  uint32_t shared_bytes = 0;
  uint32_t dynamic_shared = 0;  ///< offset of extern __shared__
  uint32_t index[3] = {0, 0, 0};
  std::vector<Warp> warps;
  uint32_t live = 0;     ///< threads that have not ended
  uint32_t waiting = 0;  ///< arrivals at barriers that are not complete
  Barrier barriers[16];
};

template <class T>
inline T* lanes_of(Warp& warp, uint32_t offset) {
  return reinterpret_cast<T*>(warp.registers + offset);
}

inline uint32_t& predicate(Warp& warp, uint32_t offset) {
  return *lanes_of<uint32_t>(warp, offset);
}

inline void set_predicate(Warp& warp, uint32_t offset, uint32_t mask,
                          uint32_t bits) {
  uint32_t& value = predicate(warp, offset);
  value = (value & ~mask) | (bits & mask);
}

inline uint32_t lane_count(uint32_t mask) {
  return mask == kAllLanes ? 32
                           : static_cast<uint32_t>(__builtin_popcount(mask));
}

/// Write this before a loop whose rounds do not depend on each other. g++ and
/// Clang have different pragmas for that.
#ifdef __clang__
#define IPCLAB_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define IPCLAB_INDEPENDENT _Pragma("GCC ivdep")
#endif

/// Calls body(lane) for the lanes of the mask. For full warps it uses a loop
/// that the compiler can vectorise.
template <class Body>
inline void each_lane(uint32_t mask, Body body) {
  if (mask == kAllLanes) {
    IPCLAB_INDEPENDENT
    for (int lane = 0; lane < kLanes; ++lane) body(lane);
  } else {
    for (; mask != 0; mask &= mask - 1) body(__builtin_ctz(mask));
  }
}

/// The value of a register of 2, 4 or 8 bytes in one lane, zero-extended.
inline uint64_t lane_value(Warp& warp, uint32_t offset, uint32_t bytes,
                           int lane) {
  uint64_t value = 0;
  std::memcpy(&value, warp.registers + offset + ptrdiff_t{lane} * bytes,
              bytes < 8 ? bytes : 8);
  return value;
}

inline void set_lane_value(Warp& warp, uint32_t offset, uint32_t bytes,
                           int lane, uint64_t value) {
  std::memcpy(warp.registers + offset + ptrdiff_t{lane} * bytes, &value,
              bytes < 8 ? bytes : 8);
}

}  // namespace ipclab::ptx
