// SPDX-License-Identifier: Apache-2.0
// What the processes of a run share when races are looked for: a file, which
// IPCLAB_MODEL_RACE names. For each word of memory it says who wrote it last
// and who has read it since. It also has clocks, which go from one process to
// another, and the findings.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "core/race_clock.h"
#include "ptx/ptx.h"

namespace ipclab::model::race {

using Scope = ptx::Effect::Scope;

/// Which threads an Access stands for.
enum Span : uint32_t { kThread, kWholeWarp, kWholeBlock, kWholeStep };

/// One access that a cell remembers.
struct Access {
  uint32_t step;  ///< 0: none
  uint32_t block;
  uint64_t clock : 22;
  uint64_t site : 18;
  uint64_t thread : 10;
  uint64_t span : 2;
  uint64_t kind : 2;  ///< ptx::Effect::Kind
  uint64_t strong : 1;
  uint64_t scope : 2;
  uint64_t bytes : 4;  ///< one bit for each byte of the cell
  uint64_t width : 3;  ///< in a Group: a thread accesses 1 << width bytes
};
static_assert(sizeof(Access) == 16);
/// Access::block of an asynchronous copy. It has a clock of its own: `thread`
/// is its warp * 32 + ptx::Effect::Copies. Who waits for it comes after it.
constexpr uint32_t kCopies = 1u << 31;
constexpr uint64_t kClockMask = (1 << 22) - 1;
constexpr uint64_t kSiteMask = (1 << 18) - 1;

/// What is known of four bytes of memory.
struct Cell {
  Access write;
  Access read[2];
  uint32_t word;  ///< the slot with the clock of the last release
  uint32_t more;  ///< the first Readers
};
constexpr uint64_t kCellBytes = 4;

constexpr uint64_t kOneThread = 7;  ///< Access::width: all bytes, one thread

/// What is known of 32 bytes of memory. As long as all accesses are of whole
/// groups, two accesses say it: thread `thread` accesses the first 1 << width
/// bytes, the next thread the next ones. Otherwise there are cells.
struct Group {
  Access write;
  Access read;
  uint32_t cells;  ///< the number of its cells; 0: none
  uint32_t unused;
};
constexpr uint64_t kGroupBytes = 32;

/// What is known of 1 KiB of memory. As long as copies and memsets access all
/// of it, two accesses say it. Otherwise there are groups.
struct Stripe {
  enum State : uint32_t {
    kWhole,   ///< `write` and `read` say it all
    kGroups,  ///< the groups say it
    kRead,  ///< the groups have their writes, which are like `write`: the same
            ///< step, place and kind; `read` has been the last one in all
  };
  Access write;
  Access read;
  uint32_t lock;  ///< of the stripe, its groups and their cells
  uint32_t state;
};
constexpr uint64_t kStripeBytes = 1024;

/// More readers of a cell.
struct Readers {
  Access read[15];
  uint32_t next;
  uint32_t unused[3];
};

/// A clock in the file, with who released it.
struct Slot {
  static constexpr uint32_t kMost = 126;
  uint32_t count;
  uint32_t scope;
  uint32_t pid;
  uint32_t gpu;
  uint32_t step;
  uint32_t block;
  uint32_t unused[2];
  Entry entries[kMost];
};
static_assert(sizeof(Slot) == 2048);

/// A kernel, a copy or another item of a stream.
struct Step {
  uint32_t actor;
  uint32_t number;  ///< among the steps of the actor, from 1
  uint32_t pid;
  uint32_t gpu;
  uint32_t start;  ///< of a kernel: the slot with what came before it, or 0
};

/// Who accesses memory, and what comes before that access.
struct View {
  uint32_t step;
  uint32_t block;
  uint32_t thread;
  uint32_t clock;
  uint32_t floor;    ///< up to here the block's barrier has ordered all threads
  uint32_t threads;  ///< of the block
  const Clock* known;
  const ptx::Launch* launch = nullptr;  ///< of a kernel: says its clusters
};

/// What a finding says about the place of the bytes.
struct Where {
  ptx::Touch::Memory memory = ptx::Touch::kGlobal;
  uint64_t address = 0;
};

extern const bool active;
/// Are races looked for?
inline bool on() { return active; }

uint32_t new_actor();
/// An actor's stream is destroyed, after so many steps. When the hosts know the
/// last step, all later work comes after it, and no clock needs the actor.
void close_actor(uint32_t actor, uint32_t steps);
/// Drops from a clock what need not be said: parts of steps that are over, and
/// actors of whom the hosts know all.
void tidy(Clock* clock);
/// A new step. 0 if the file is full; then nothing is recorded.
uint32_t new_step(uint32_t actor, uint32_t number, uint32_t gpu);
const Step& step_of(uint32_t step);
/// All work before a kernel is performed for all observers. So a thread that
/// sees a strong write of the kernel comes after that work.
void set_start(uint32_t step, const Clock& clock);
/// The number of a place in a program, for findings: "kernel k, PTX line 5".
uint32_t new_site(const std::string& text);

/// The group of a device address, or null if it is not watched. `on_host` says
/// if the host may access the bytes, too; it does so unseen.
Group* group_of(uint64_t address, bool* on_host);
/// The cell of an address of the group, which is held. The group gets cells if
/// it has none. Null if there is no room.
Cell* cell_in(Group* group, uint64_t address);
/// A weak access of whole groups, one after the other; nothing is held. In each
/// group `threads` more threads have accessed the groups before. Stops at a
/// group that has cells, or that needs them to find a race, and does nothing
/// there. Returns how many groups it has done.
uint64_t access_run(Group* first, uint64_t groups, const View& view,
                    Access access, uint32_t threads);
/// How many groups of the memory from an address on are one array, at most.
inline uint64_t groups_in_a_row(uint64_t address, uint64_t end) {
  constexpr uint64_t kPageBytes = 2u << 20;
  const uint64_t last = address / kPageBytes * kPageBytes + kPageBytes;
  return ((end < last ? end : last) - address) / kGroupBytes;
}

/// Holds the lock of one stripe after the other, for groups in it.
class Holder {
 public:
  Holder() = default;
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder() { release(); }
  void hold(Group* group);
  void release();

 private:
  Stripe* held_ = nullptr;
};

/// Looks for a race of a read, and remembers the read. The cell is held.
void read(Cell* cell, const View& view, const Access& access,
          const Where& where);
/// The same for a write or an update.
void write(Cell* cell, const View& view, const Access& access,
           const Where& where);

/// Puts a clock into the word of a cell, or adds it if `join`. The cell is
/// held.
void release_to(Cell* cell, const View& view, const Clock& clock, Scope scope,
                bool join);
/// A plain write ends what earlier releases to the word mean.
void forget_word(Cell* cell);
/// Adds what a strong read of the cell learns: what its word released, and what
/// came before the kernel that wrote it. `needed` is the scope that both sides
/// need. Returns false if nothing is learned, or a scope is too small.
bool acquire_from(const Cell* cell, const View& view, Scope scope,
                  Scope* needed, Clock* into);

/// Clocks with a name: of the records of interprocess events.
void keep(uint64_t id, uint32_t record, const Clock& clock);
void fetch(uint64_t id, uint32_t record, Clock* into);

/// The window shows these bytes of a file at an address.
void mapped(uint64_t address, uint64_t size, int descriptor, uint64_t offset);
/// The host may access the bytes, too.
void shown_to_host(uint64_t address, uint64_t size);
void set_window(uint64_t begin, uint64_t size);
/// The memory is new: nobody has accessed it.
void renew(uint64_t address, uint64_t size);

}  // namespace ipclab::model::race
