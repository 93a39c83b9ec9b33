// SPDX-License-Identifier: Apache-2.0
// Races of the threads of a kernel. Rules: PTX ISA, "Memory Consistency Model":
// two accesses of which one is weak need an order; two strong accesses need an
// order or scopes that include each other. Order comes from barriers, and from
// a word that one thread releases and another acquires. One point is wider than
// the rules, because programs rely on it: a fence of a thread before
// __syncthreads() also counts for a flag that another thread of its block
// writes after it.
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <unordered_map>
#include <utility>

#include "core/race.h"

namespace ipclab::model::race {
namespace {

using ptx::Effect;
using ptx::Touch;
using Known = std::shared_ptr<const Clock>;

constexpr int kScopes = 4;
constexpr uint32_t kLanes = 32;

Known joined(const Known& known, const Clock& other) {
  if (known != nullptr &&
      known->contains(other.entries().data(),
                      other.entries().data() + other.entries().size()))
    return known;
  auto both = known == nullptr ? std::make_shared<Clock>()
                               : std::make_shared<Clock>(*known);
  both->join(other);
  return both;
}

/// What a fence makes of later writes: for each scope, what they release.
struct Fenced {
  Known by_scope[kScopes];
};

/// A thread that knows or has done more than its block.
struct Thread {
  Known known;
  uint32_t clock = 0;
  Fenced fenced;
  /// What relaxed reads have seen; a fence of that scope acquires it.
  Known seen[kScopes];
};

struct Arrival {
  uint32_t warp;
  uint32_t lanes;
};

struct Block {
  Known known;
  uint32_t clock = 1;
  uint32_t floor = 0;
  uint32_t threads = 0;
  Fenced fenced;
  Known seen[kScopes];
  std::unordered_map<uint32_t, Thread> own;  ///< by number
  std::vector<Cell> shared;
  struct Barrier {
    Clock passed;  ///< of threads that did not wait
    std::vector<Arrival> waiting;
    bool all_wait = true;
  } barriers[16];
  /// Copies of a warp that run beside its threads: the number of their open
  /// group, from 1, by warp * 32 + ptx::Effect::Copies.
  std::unordered_map<uint32_t, uint32_t> copies;
};

std::string demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = text != nullptr ? text : name;
  std::free(text);
  constexpr char kUnnamed[] = "(anonymous namespace)::";
  for (size_t at; (at = result.find(kUnnamed)) != std::string::npos;)
    result.erase(at, sizeof kUnnamed - 1);
  return result.substr(0, std::min(result.find('('), size_t{160}));
}

template <class Body>
void each(uint32_t lanes, Body body) {
  for (; lanes != 0; lanes &= lanes - 1)
    body(static_cast<uint32_t>(__builtin_ctz(lanes)));
}

class Watch : public ptx::Observer {
 public:
  Watch(Turn& turn, const ptx::Launch& launch)
      : turn_(turn),
        step_(turn.begin_step()),
        start_(std::make_shared<Clock>(turn.clock())),
        launch_(launch),
        name_("kernel " + demangled(launch.kernel->name())),
        grid_(kGridCells) {}

  ~Watch() override { turn_.end_step(); }

  void begin(uint32_t number, uint32_t threads,
             uint32_t shared_bytes) override {
    Block& block = blocks_[number];
    block = Block{};
    block.known = start_;
    block.threads = threads;
    block.shared.resize((shared_bytes + kCellBytes - 1) / kCellBytes);
  }

  void end(uint32_t number) override {
    // Other steps of the item come after all that this kernel knows.
    const Block& block = blocks_.at(number);
    turn_.clock().join(*block.known);
    // The end of a kernel is also a fence.
    const auto learn_seen = [&](const Known(&seen)[kScopes]) {
      for (const Known& one : seen)
        if (one != nullptr) turn_.clock().join(*one);
    };
    learn_seen(block.seen);
    for (const auto& [thread, own] : block.own) {
      turn_.clock().join(*own.known);
      learn_seen(own.seen);
    }
    turn_.clock().remove_if([&](const Entry& e) { return e.step == step_; });
    blocks_.erase(number);
    last_block_ = nullptr;
  }

  void before(const Touch& touch) override {
    if (access_groups(touch)) return;
    each_lane(touch, [&](Block& block, uint32_t number, uint64_t address) {
      access(touch, block, number, address);
      if (touch.effect.order != Effect::kWeak)
        release(touch, block, number, address);
    });
  }

  void after(const Touch& touch) override {
    if (access_groups(touch)) return;
    each_lane(touch, [&](Block& block, uint32_t number, uint64_t address) {
      if (touch.effect.kind == Effect::kRead)
        access(touch, block, number, address);
      if (touch.effect.order != Effect::kWeak)
        acquire(touch, block, number, address);
    });
  }

  void fence(uint32_t number, uint32_t warp, uint32_t lanes,
             Effect::Scope scope) override {
    Block& block = blocks_.at(number);
    each(lanes, [&](uint32_t lane) {
      const uint32_t thread = warp * kLanes + lane;
      Thread& own = own_of(block, thread);
      for (int s = 0; s <= scope; ++s)
        if (own.seen[s] != nullptr) own.known = joined(own.known, *own.seen[s]);
      const Known all = snapshot(number, block, thread);
      for (int s = 0; s <= scope; ++s) own.fenced.by_scope[s] = all;
      ++own.clock;
    });
  }

  void arrive(uint32_t number, uint32_t warp, uint32_t lanes, uint32_t barrier,
              bool waits) override {
    Block& block = blocks_.at(number);
    Block::Barrier& at = block.barriers[barrier];
    if (waits) {
      at.waiting.push_back({warp, lanes});
      return;
    }
    at.all_wait = false;
    each(lanes, [&](uint32_t lane) {
      const uint32_t thread = warp * kLanes + lane;
      at.passed.join(*snapshot(number, block, thread));
      ++own_of(block, thread).clock;
    });
  }

  void complete(uint32_t number, uint32_t barrier, bool all) override {
    Block& block = blocks_.at(number);
    Block::Barrier at = std::move(block.barriers[barrier]);
    block.barriers[barrier] = {};
    if (all && at.all_wait) return join_all(number, block);
    Clock joint = std::move(at.passed);
    for (const Arrival& one : at.waiting)
      each(one.lanes, [&](uint32_t lane) {
        joint.join(*snapshot(number, block, one.warp * kLanes + lane));
      });
    for (const Arrival& one : at.waiting)
      learn(block, one.warp, one.lanes, joint);
  }

  void meet(uint32_t number, uint32_t warp, uint32_t lanes) override {
    Block& block = blocks_.at(number);
    const uint32_t threads = block.threads - warp * kLanes;
    const uint32_t all = threads >= kLanes ? ~0u : (1u << threads) - 1;
    if (lanes == all) return meet_all(number, block, warp, lanes);
    Clock joint;
    each(lanes, [&](uint32_t lane) {
      joint.join(*snapshot(number, block, warp * kLanes + lane));
    });
    learn(block, warp, lanes, joint);
  }

  void arrive_at_cluster(uint32_t number, uint32_t warp, uint32_t lanes,
                         uint32_t cluster) override {
    Block& block = blocks_.at(number);
    each(lanes, [&](uint32_t lane) {
      const uint32_t thread = warp * kLanes + lane;
      clusters_[cluster].join(*snapshot(number, block, thread));
      ++own_of(block, thread).clock;
    });
  }

  void leave_cluster(uint32_t number, uint32_t warp, uint32_t lanes,
                     uint32_t cluster) override {
    learn(blocks_.at(number), warp, lanes, clusters_[cluster]);
  }

  // Lanes that run apart share the numbers of their warp. So a wait may count
  // as a wait for more copies than it is: no finding is false.
  void group_copies(uint32_t number, uint32_t warp, uint32_t lanes,
                    Effect::Copies copies, bool commits,
                    uint32_t left) override {
    Block& block = blocks_.at(number);
    const uint32_t agent = warp * kLanes + copies;
    uint32_t& open = open_group(block, agent);
    if (commits) ++open;
    if (left >= open - 1) return;
    Clock done;
    done.raise({step_, number | kCopies, agent, open - 1 - left});
    learn(block, warp, lanes, done);
  }

 private:
  static constexpr size_t kGridCells = 64;

  static Thread& own_of(Block& block, uint32_t thread) {
    const auto [place, made] = block.own.try_emplace(thread);
    Thread& own = place->second;
    if (made) {
      own = {block.known, block.clock, block.fenced, {}};
      std::copy(block.seen, block.seen + kScopes, own.seen);
    }
    return own;
  }

  static uint32_t& open_group(Block& block, uint32_t agent) {
    return block.copies.try_emplace(agent, 1).first->second;
  }

  static const Thread* find_own(const Block& block, uint32_t thread) {
    if (block.own.empty()) return nullptr;
    const auto found = block.own.find(thread);
    return found == block.own.end() ? nullptr : &found->second;
  }

  /// What comes before whatever comes after this thread's work so far.
  std::shared_ptr<Clock> snapshot(uint32_t number, Block& block,
                                  uint32_t thread) {
    const Thread* own = find_own(block, thread);
    auto all =
        std::make_shared<Clock>(own != nullptr ? *own->known : *block.known);
    all->raise(
        {step_, number, thread, own != nullptr ? own->clock : block.clock});
    return all;
  }

  /// A barrier of all threads of the block.
  void join_all(uint32_t number, Block& block) {
    auto joint = std::make_shared<Clock>(*block.known);
    Fenced fenced = block.fenced;
    for (const auto& [thread, own] : block.own) {
      joint->join(*own.known);
      block.clock = std::max(block.clock, own.clock);
      for (int s = 0; s < kScopes; ++s) {
        if (own.fenced.by_scope[s] != nullptr)
          fenced.by_scope[s] =
              joined(fenced.by_scope[s], *own.fenced.by_scope[s]);
        if (own.seen[s] != nullptr)
          block.seen[s] = joined(block.seen[s], *own.seen[s]);
      }
    }
    block.own.clear();
    joint->remove_if(
        [&](const Entry& e) { return e.step == step_ && e.block == number; });
    joint->raise({step_, number, kAllThreads, block.clock});
    block.known = joint;
    block.fenced = fenced;
    block.floor = block.clock++;
  }

  /// All threads of a warp have met: one entry says it.
  void meet_all(uint32_t number, Block& block, uint32_t warp, uint32_t lanes) {
    auto joint = std::make_shared<Clock>(*block.known);
    uint32_t clock = block.clock;
    const Clock* last = nullptr;
    each(lanes, [&](uint32_t lane) {
      const Thread* own = find_own(block, warp * kLanes + lane);
      if (own == nullptr) return;
      clock = std::max(clock, own->clock);
      if (own->known.get() != last) joint->join(*own->known);
      last = own->known.get();
    });
    joint->remove_if([&](const Entry& e) {
      return e.step == step_ && e.block == number && e.thread / kLanes == warp;
    });
    joint->raise({step_, number, kWarp | warp, clock});
    each(lanes, [&](uint32_t lane) {
      Thread& own = own_of(block, warp * kLanes + lane);
      own.known = joint;
      own.clock = clock + 1;
    });
  }

  /// Lanes go on after all that `joint` knows.
  void learn(Block& block, uint32_t warp, uint32_t lanes, const Clock& joint) {
    Known all;
    each(lanes, [&](uint32_t lane) {
      Thread& own = own_of(block, warp * kLanes + lane);
      if (all == nullptr || !all->contains(own.known->entries().data(),
                                           own.known->entries().data() +
                                               own.known->entries().size()))
        all = joined(own.known, joint);
      own.known = all;
      ++own.clock;
    });
  }

  template <class Body>
  void each_lane(const Touch& touch, Body body) {
    if (step_ == 0) return;
    Block& block = block_at(touch.block);
    each(touch.lanes, [&](uint32_t lane) {
      body(block, touch.warp * kLanes + lane, touch.address[lane]);
    });
    holder_.release();
  }

  /// The usual case: 32 threads access neighbouring values. Returns false, and
  /// does nothing, in other cases.
  bool access_groups(const Touch& touch) {
    if (touch.memory != Touch::kGlobal || touch.lanes != ~0u ||
        touch.effect.order != Effect::kWeak || step_ == 0 ||
        (touch.bytes & (touch.bytes - 1)) != 0 || touch.bytes > 16)
      return false;
    const uint64_t begin = touch.address[0];
    if (begin % kGroupBytes != 0) return false;
    uint64_t difference = 0;
    for (uint32_t lane = 1; lane < kLanes; ++lane)
      difference |= touch.address[lane] ^ (begin + lane * touch.bytes);
    if (difference != 0) return false;
    Block& block = block_at(touch.block);
    if (!block.own.empty()) return false;
    const uint32_t first = touch.warp * kLanes;
    const View view = view_of(touch, block, first);
    Access access = access_of(touch, view);
    access.bytes = 15;
    access.width = static_cast<uint64_t>(__builtin_ctz(touch.bytes)) & 7;
    const uint64_t end = begin + uint64_t{kLanes} * touch.bytes;
    const auto threads = static_cast<uint32_t>(kGroupBytes / touch.bytes);
    for (uint64_t at = begin; at < end; at += kGroupBytes) {
      bool on_host;
      Group* group = group_of(at, &on_host);
      if (group == nullptr) break;
      auto lane = static_cast<uint32_t>((at - begin) / touch.bytes);
      access.thread = (first + lane) & 1023;
      at += kGroupBytes *
            access_run(group, groups_in_a_row(at, end), view, access, threads);
      if (at >= end) break;
      if (group_of(at, &on_host) == nullptr) break;
      lane = static_cast<uint32_t>((at - begin) / touch.bytes);
      for (uint32_t k = lane; k < lane + threads; ++k)
        this->access(touch, block, first + k, touch.address[k]);
      holder_.release();
    }
    return true;
  }

  Block& block_at(uint32_t number) {
    if (last_block_ == nullptr || number != last_number_) {
      last_block_ = &blocks_.at(number);
      last_number_ = number;
    }
    return *last_block_;
  }

  /// The cell of an address, held if others may use it.
  Cell* cell_at(const Touch& touch, uint64_t address, bool* on_host) {
    *on_host = false;
    if (touch.memory == Touch::kGlobal) {
      Group* group = group_of(address, on_host);
      if (group == nullptr) return nullptr;
      holder_.hold(group);
      return cell_in(group, address);
    }
    const uint64_t at = address / kCellBytes;
    if (touch.memory == Touch::kGrid)
      return at < grid_.size() ? &grid_[at] : nullptr;
    const auto owner = blocks_.find(touch.owner);
    if (owner == blocks_.end() || at >= owner->second.shared.size())
      return nullptr;
    return &owner->second.shared[at];
  }

  View view_of(const Touch& touch, const Block& block, uint32_t thread) const {
    const Thread* own = find_own(block, thread);
    return {step_,
            touch.block,
            thread,
            own != nullptr ? own->clock : block.clock,
            block.floor,
            block.threads,
            own != nullptr ? own->known.get() : block.known.get(),
            &launch_};
  }

  uint32_t site_of(int line) {
    if (line == last_line_) return last_site_;
    uint32_t& site = sites_[line];
    if (site == 0) {
      const std::string source = launch_.kernel->source_of(line);
      site = new_site(name_ + ", PTX line " + std::to_string(line) +
                      (source.empty() ? "" : " (" + source + ")"));
    }
    last_line_ = line;
    return last_site_ = site;
  }

  Access access_of(const Touch& touch, const View& view) {
    Access access{};
    access.step = step_;
    access.block = touch.block;
    access.clock = view.clock & kClockMask;
    access.site = site_of(touch.line) & kSiteMask;
    access.thread = view.thread & 1023;
    access.span = kThread;
    access.kind = touch.effect.kind & 3;
    access.strong = touch.effect.order != Effect::kWeak;
    access.scope = touch.effect.scope;
    return access;
  }

  void access(const Touch& touch, Block& block, uint32_t thread,
              uint64_t address) {
    const View view = view_of(touch, block, thread);
    Access access = access_of(touch, view);
    if (touch.effect.copies != Effect::kNoCopies &&
        touch.effect.order <= Effect::kRelaxed) {
      const uint32_t agent = thread / kLanes * kLanes + touch.effect.copies;
      access.block |= kCopies;
      access.thread = agent & 1023;
      access.clock = open_group(block, agent) & kClockMask;
    }
    const uint64_t end = address + touch.bytes;
    for (uint64_t at = address / kCellBytes * kCellBytes; at < end;
         at += kCellBytes) {
      bool on_host;
      Cell* cell = cell_at(touch, at, &on_host);
      if (cell == nullptr) return;
      uint64_t bytes = 15;
      if (at < address) bytes &= 15u << (address - at);
      if (end < at + kCellBytes) bytes &= 15u >> (at + kCellBytes - end);
      access.bytes = bytes & 15;
      const Where where{touch.memory, at};
      if (touch.effect.kind == Effect::kRead) {
        read(cell, view, access, where);
      } else {
        write(cell, view, access, where);
        if (touch.effect.order == Effect::kWeak) forget_word(cell);
      }
    }
  }

  /// A strong write or update.
  void release(const Touch& touch, Block& block, uint32_t thread,
               uint64_t address) {
    if (!told_start_) set_start(step_, *start_);
    told_start_ = true;
    const bool update = touch.effect.kind == Effect::kUpdate;
    const bool releases = touch.effect.order == Effect::kRelease ||
                          touch.effect.order == Effect::kAcquireRelease;
    auto scope = static_cast<Scope>(touch.effect.scope);
    const Thread* own = find_own(block, thread);
    Known clock;
    if (releases) {
      auto all = snapshot(touch.block, block, thread);
      ++own_of(block, thread).clock;
      if (touch.effect.copies !=
          Effect::kNoCopies) {  // an mbarrier counts them
        const uint32_t agent = thread / kLanes * kLanes + touch.effect.copies;
        all->raise(
            {step_, touch.block | kCopies, agent, open_group(block, agent)++});
      }
      clock = std::move(all);
    } else {
      const Fenced& fenced = own != nullptr ? own->fenced : block.fenced;
      int s = scope;
      while (s >= 0 && fenced.by_scope[s] == nullptr) --s;
      if (s >= 0) {
        clock = fenced.by_scope[s];
        scope = static_cast<Scope>(s);
      }
    }
    if (clock == nullptr && update) return;
    bool on_host;
    Cell* cell = cell_at(touch, address, &on_host);
    if (cell != nullptr) {
      if (clock != nullptr)
        release_to(cell, view_of(touch, block, thread), *clock, scope, update);
      else
        forget_word(cell);
    }
    if (on_host && clock != nullptr && scope == Scope::kSystem) {
      holder_.release();
      tell_host(*clock);
    }
  }

  /// A strong read or update.
  void acquire(const Touch& touch, Block& block, uint32_t thread,
               uint64_t address) {
    if (touch.effect.order == Effect::kRelease) return;
    const bool acquires = touch.effect.order != Effect::kRelaxed;
    const auto scope = static_cast<Scope>(touch.effect.scope);
    Clock learned;
    Scope needed = Scope::kSystem;
    bool on_host;
    Cell* cell = cell_at(touch, address, &on_host);
    bool found =
        cell != nullptr && acquire_from(cell, view_of(touch, block, thread),
                                        scope, &needed, &learned);
    if (on_host && scope == Scope::kSystem) {
      // The host's writes are not seen. It may have told anything.
      holder_.release();
      fetch_any_host(&learned);
      needed = found ? needed : Scope::kSystem;
      found = true;
    }
    if (!found) return;
    const Thread* before = find_own(block, thread);
    const Known& known = before != nullptr ? before->known : block.known;
    if (known->contains(learned.entries().data(),
                        learned.entries().data() + learned.entries().size()))
      return;
    Thread& own = own_of(block, thread);
    if (acquires)
      own.known = joined(own.known, learned);
    else
      own.seen[needed] = joined(own.seen[needed], learned);
  }

  Turn& turn_;
  const uint32_t step_;
  const Known start_;
  const ptx::Launch& launch_;
  const std::string name_;
  std::unordered_map<uint32_t, Block> blocks_;
  bool told_start_ = false;
  Block* last_block_ = nullptr;
  uint32_t last_number_ = 0;
  std::unordered_map<uint32_t, Clock> clusters_;
  std::vector<Cell> grid_;
  std::unordered_map<int, uint32_t> sites_;
  int last_line_ = -1;
  uint32_t last_site_ = 0;
  Holder holder_;
};

}  // namespace

std::unique_ptr<ptx::Observer> watch_kernel(const ptx::Launch& launch) {
  return std::make_unique<Watch>(*Turn::current(), launch);
}

}  // namespace ipclab::model::race
