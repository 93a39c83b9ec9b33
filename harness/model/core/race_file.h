// SPDX-License-Identifier: Apache-2.0
// The layout of the file that the processes of a run share when races are
// looked for, and its locks. Only race_memory.cc and race_host.cc use it.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/race_memory.h"

namespace ipclab::model::race {

constexpr uint64_t kPageBytes = 2u << 20;
constexpr uint64_t kGroupsOfPage = kPageBytes / kGroupBytes;
constexpr uint64_t kGroupsOfStripe = kStripeBytes / kGroupBytes;
constexpr uint64_t kStripesOfPage = kPageBytes / kStripeBytes;
constexpr uint64_t kCellsOfGroup = kGroupBytes / kCellBytes;
constexpr uint32_t kPages = 1 << 16, kSteps = 1 << 20, kSites = 1 << 18;
constexpr uint32_t kActors = 1 << 18;
constexpr uint32_t kSplit = 1 << 24;  // groups with cells
constexpr uint32_t kSlots = 1 << 22, kReaders = 1 << 22, kEvents = 1 << 21;
constexpr uint32_t kFindings = 256, kEventRing = 16;
constexpr uint32_t kHosts = 1 << 12, kChannels = 1 << 16, kShared = 64;

struct Site {
  char text[256];
};

/// Pages of memory, by the file that has the bytes.
struct Page {
  uint64_t file;  ///< inode; 0: free
  uint64_t number;
};

/// A stream that is destroyed.
struct Closed {
  uint32_t steps;  ///< how many it had, plus 1; 0: it still exists
  uint32_t over;   ///< the hosts know all of them
};

struct Event {
  uint64_t id;  ///< 0: free
  uint32_t record;
  uint32_t slot;
};

/// A line of JSON for the command that reads the file. Its keys are the two
/// sites and kinds, so each pair is reported once.
struct Finding {
  uint64_t key;
  char text[2040];
};

/// A process, and what its threads know.
struct Host {
  uint32_t pid;
  uint32_t uses_gpu;  ///< it has begun to use the model
  uint64_t text_begin,
      text_end;  ///< the model's code, whose calls do not count
  /// Channels that are memory, which both sides may use at any time.
  uint32_t shared[kShared];
  uint32_t writes[kShared];  ///< the process may write there
  uint32_t shared_count;
  uint32_t unused[5];
  Slot knows;
};

/// A pipe, a file or another way between hosts.
struct Channel {
  uint64_t key;   ///< 0: free
  uint32_t slot;  ///< what its senders knew
  uint32_t sent;  ///< somebody of whom we know has sent
};

struct File {
  char magic[8];
  uint32_t lock;
  std::atomic<uint32_t> full;      ///< a table below had no room
  std::atomic<uint32_t> findings;  ///< these are at offset 4096
  std::atomic<uint32_t> actors;
  /// A process whose messages nobody sees. Then the order between hosts is the
  /// order of time.
  std::atomic<uint32_t> unseen;
  std::atomic<uint32_t> steps, sites, slots, readers, split, hosts;
  char header_end[4096 - 8 - 11 * 4];
  Finding finding[kFindings];
  Slot any_host;  ///< what any host has learned
  Closed actor[kActors];
  Step step[kSteps];
  Site site[kSites];
  Page page[kPages];
  Event event[kEvents];
  Host host[kHosts];
  Channel channel[kChannels];
  Slot slot[kSlots];
  Readers more[kReaders];
  alignas(4096) Stripe stripe[kPages][kStripesOfPage];
  alignas(4096) Group group[kPages][kGroupsOfPage];
  Cell cells[kSplit][kCellsOfGroup];
};
static_assert(offsetof(File, finding) == 4096);

extern File* file;

/// Spins for a lock in the file. A process may be killed while it has the lock,
/// so after a long time the lock counts as free.
inline void lock(uint32_t* word) {
  constexpr int kEager = 64, kMost = 100'000;
  for (int tries = 0; __atomic_exchange_n(word, 1, __ATOMIC_ACQUIRE) != 0;
       ++tries) {
    if (tries > kMost) return;
    if (tries > kEager) sched_yield();
  }
}

inline void unlock(uint32_t* word) {
  __atomic_store_n(word, 0, __ATOMIC_RELEASE);
}

class Guard {
 public:
  explicit Guard(uint32_t* word) : word_(word) { lock(word_); }
  ~Guard() { unlock(word_); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  uint32_t* const word_;
};

/// A new number from 1 on; 0 if there is none left.
uint32_t take(std::atomic<uint32_t>& counter, uint32_t most);
/// The hosts know all of a destroyed stream.
bool is_over(uint32_t actor);
/// Puts a clock into a slot, or adds it.
void put(Slot* slot, Clock clock);
void add(Slot* slot, const Clock& clock);

}  // namespace ipclab::model::race
