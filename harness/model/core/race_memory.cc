// SPDX-License-Identifier: Apache-2.0
// The shared memory of the race detector.
#include "core/race_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/log.h"
#include "core/race_file.h"

namespace ipclab::model::race {

File* file = nullptr;

namespace {

constexpr char kMagic[8] = "ipcrace";

bool open_file() {
  const char* path = std::getenv("IPCLAB_MODEL_RACE");
  if (path == nullptr || *path == '\0') return false;
  // In another PID namespace the path is missing, or names another file. Such a
  // process is not watched.
  constexpr char kName[] = "/memfd:ipclab-race";
  char name[sizeof kName] = "";
  const ssize_t length = readlink(path, name, sizeof name - 1);
  if (length < 0 || std::strcmp(name, kName) != 0) {
    say(std::string("IPCLAB_MODEL_RACE: ") + path +
        " is not the file of ipclab model --race, so nobody looks for races of "
        "this process");
    return false;
  }
  const int descriptor = open(path, O_RDWR | O_CLOEXEC);
  if (descriptor < 0)
    die(std::string("IPCLAB_MODEL_RACE: ") + path + ": " +
        std::strerror(errno));
  struct stat status;
  if (fstat(descriptor, &status) != 0 ||
      (static_cast<uint64_t>(status.st_size) < sizeof(File) &&
       ftruncate(descriptor, sizeof(File)) != 0))
    die("IPCLAB_MODEL_RACE: the file cannot have the size that it needs");
  void* place = mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  close(descriptor);
  if (place == MAP_FAILED)
    die("IPCLAB_MODEL_RACE: no room for the addresses of the race detector "
        "(raise 'ulimit -v')");
  file = static_cast<File*>(place);
  std::memcpy(file->magic, kMagic, sizeof kMagic);
  return true;
}

}  // namespace

uint32_t take(std::atomic<uint32_t>& counter, uint32_t most) {
  const uint32_t number = ++counter;
  if (number < most) return number;
  counter = most;
  file->full = 1;
  return 0;
}

namespace {

// ---- pages of this process

uint64_t window_begin = 0, window_size = 0;
/// What the window shows at a page. Much memory is never accessed, so the page
/// gets its number in the file at the first access.
struct Shown {
  uint64_t inode;   ///< 0: nothing that is watched
  uint32_t page;    ///< of the memfd
  uint32_t number;  ///< among the pages of the file, plus 1, and kOnHost
};
Shown* shown = nullptr;
constexpr uint32_t kOnHost = 1u << 31;

/// The number of a page in the file, plus 1; 0 if it has none and gets none.
uint32_t number_of(const Shown& one, bool make) {
  const Guard guard(&file->lock);
  uint64_t at =
      (one.inode * 0x9E3779B97F4A7C15u + one.page) * 0x9E3779B97F4A7C15u >> 32;
  for (uint32_t tries = 0; tries < kPages; ++tries, ++at) {
    Page& page = file->page[at % kPages];
    if (page.file == 0 && !make) return 0;
    if (page.file == 0) page = {one.inode, one.page};
    if (page.file == one.inode && page.number == one.page)
      return static_cast<uint32_t>(at % kPages) + 1;
  }
  if (make) file->full = 1;
  return 0;
}

/// The groups of an address, or null. `make`: also if nobody has accessed them.
Group* groups_at(uint64_t address, bool make, bool* on_host) {
  const uint64_t offset = address - window_begin;
  if (offset >= window_size) {
    *on_host = true;
    return nullptr;
  }
  Shown& one = shown[offset / kPageBytes];
  uint32_t number = __atomic_load_n(&one.number, __ATOMIC_RELAXED);
  *on_host = (number & kOnHost) != 0;
  if ((number & ~kOnHost) == 0) {
    if (one.inode == 0) return nullptr;
    const uint32_t found = number_of(one, make);
    if (found == 0) return nullptr;
    number = __atomic_or_fetch(&one.number, found, __ATOMIC_RELAXED);
  }
  return &file->group[(number & ~kOnHost) - 1]
                     [offset % kPageBytes / kGroupBytes];
}

// ---- clocks in slots

}  // namespace

bool is_over(uint32_t actor) {
  return __atomic_load_n(&file->actor[actor % kActors].over,
                         __ATOMIC_ACQUIRE) != 0;
}

namespace {

/// Forgets a destroyed stream whose last step the clock knows.
bool forget_closed(const Entry& e) {
  if ((e.step & kActor) == 0) return false;
  Closed& actor = file->actor[(e.step & ~kActor) % kActors];
  const uint32_t steps = __atomic_load_n(&actor.steps, __ATOMIC_ACQUIRE);
  if (steps == 0 || e.clock + 1 < steps) return false;
  __atomic_store_n(&actor.over, 1, __ATOMIC_RELEASE);
  return true;
}

/// Makes a clock short enough for a slot. It then says that more comes before
/// than really does, so no finding is false.
void shorten(Clock* clock) {
  while (clock->entries().size() > Slot::kMost) {
    uint32_t longest = 0;
    size_t most = 0;
    const auto& entries = clock->entries();
    for (size_t k = 0; k < entries.size();) {
      size_t end = k;
      while (end < entries.size() && entries[end].step == entries[k].step) {
        ++end;
      }
      if (end - k > most) {
        most = end - k;
        longest = entries[k].step;
      }
      k = end;
    }
    if ((longest & kActor) != 0) {  // more streams than entries
      clock->remove_if(forget_closed);
      if (clock->entries().size() <= Slot::kMost) return;
      file->full = 1;
      clock->remove_if([&](const Entry& e) { return e.step == longest; });
      continue;
    }
    const Step step = step_of(longest);
    clock->remove_if([&](const Entry& e) { return e.step == longest; });
    clock->raise({kActor | step.actor, 0, 0, step.number});
  }
}

}  // namespace

void put(Slot* slot, Clock clock) {
  tidy(&clock);
  shorten(&clock);
  slot->count = static_cast<uint32_t>(clock.entries().size());
  std::copy(clock.entries().begin(), clock.entries().end(), slot->entries);
}

void add(Slot* slot, const Clock& clock) {
  Clock both = clock;
  both.join(slot->entries, slot->entries + slot->count);
  put(slot, std::move(both));
}

namespace {

// ---- findings

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return result + "\"";
}

const char* word_for(uint64_t kind) {
  return kind == ptx::Effect::kRead    ? "read"
         : kind == ptx::Effect::kWrite ? "write"
                                       : "atomic";
}

const char* name_of(uint64_t scope) {
  constexpr const char* kNames[] = {"cta", "cluster", "gpu", "sys"};
  return kNames[scope];
}

/// The place of a block's cluster: two blocks are in one cluster if it is
/// equal.
std::array<unsigned, 3> cluster_of(const ptx::Launch& launch, uint32_t block) {
  const unsigned* grid = launch.grid;
  return {block % grid[0] / launch.cluster[0],
          block / grid[0] % grid[1] / launch.cluster[1],
          block / grid[0] / grid[1] / launch.cluster[2]};
}

Scope needed_between(const Step& a, uint32_t step_a, uint32_t block_a,
                     const View& b, ptx::Touch::Memory memory) {
  block_a &= ~kCopies;
  if (step_a == b.step && block_a == b.block) return Scope::kBlock;
  if (memory == ptx::Touch::kShared ||
      (step_a == b.step && b.launch != nullptr &&
       cluster_of(*b.launch, block_a) == cluster_of(*b.launch, b.block)))
    return Scope::kCluster;
  const Step& other = step_of(b.step);
  return a.pid == other.pid && a.gpu == other.gpu ? Scope::kGpu
                                                  : Scope::kSystem;
}

std::string described(const Access& access) {
  const Step& step = step_of(access.step);
  std::string text =
      "{\"process\":" + std::to_string(step.pid) +
      ",\"gpu\":" + std::to_string(step.gpu) +
      ",\"kind\":" + quoted(word_for(access.kind)) + ",\"order\":" +
      quoted(access.strong
                 ? std::string("strong, scope ") + name_of(access.scope)
                 : "weak") +
      ",\"place\":" + quoted(file->site[access.site].text);
  if (access.clock != 0) {
    text += ",\"block\":" + std::to_string(access.block & ~kCopies);
    if (access.span == kThread && (access.block & kCopies) == 0)
      text += ",\"thread\":" + std::to_string(access.thread);
  }
  return text + "}";
}

std::string advice(const Access& prior, const Access& access, Scope needed,
                   bool first_has_waited) {
  if (prior.strong && access.strong)
    return std::string("the scope is too small: both accesses need scope ") +
           name_of(needed) +
           (needed == Scope::kSystem ? " (thread_scope_system, "
                                       "atomicAdd_system)"
                                     : "");
  const Step& a = step_of(prior.step);
  const Step& b = step_of(access.step);
  if (prior.step == access.step && (prior.block & kCopies) != 0)
    return "the end of the asynchronous copy: the thread that started it waits "
           "(cp.async.wait_group; cp.async.bulk.wait_group without .read), "
           "then "
           "a barrier; or all wait for the mbarrier that counts the copy";
  if (prior.step == access.step && prior.block == access.block)
    return prior.span == kThread && prior.thread / 32 == access.thread / 32
               ? "__syncwarp() or __syncthreads() between the two"
               : "__syncthreads() between the two";
  if (prior.step == access.step)
    return needed == Scope::kCluster
               ? "a flag between the blocks, released and acquired at scope "
                 "cluster, or barrier.cluster"
               : "a flag between the blocks, released and acquired at scope "
                 "gpu, or grid.sync()";
  if (a.pid == b.pid)
    return "one stream, cudaStreamWaitEvent, an edge of their graph, or a host "
           "that synchronises before it submits the later one";
  if (first_has_waited)
    return "a message to the other process: the first one waited for its GPU, "
           "but only time orders the two hosts; or cudaStreamWaitEvent for an "
           "interprocess event";
  return "cudaStreamWaitEvent for an interprocess event, a host that "
         "synchronises before it tells the other process, or a flag that is "
         "released and acquired at scope sys";
}

/// Has any host waited for the step?
bool known_to_any(uint32_t number) {
  const Step& step = step_of(number);
  Clock clock;
  clock.join(file->any_host.entries,
             file->any_host.entries + file->any_host.count);
  return clock.of_actor(step.actor) >= step.number;
}

uint64_t hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037ull;
  for (const char c : text)
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

/// The pairs of sites that this thread has reported last. Programs with one
/// race often have it at many addresses.
thread_local uint64_t reported[8];
thread_local size_t next_reported = 0;

uint64_t pair_of(const Access& prior, const Access& access) {
  return (uint64_t{prior.site} << 32 | uint64_t{prior.kind} << 30 |
          uint64_t{access.site} << 2 | access.kind);
}

bool is_reported(const Access& prior, const Access& access) {
  const uint64_t pair = pair_of(prior, access);
  return std::find(std::begin(reported), std::end(reported), pair) !=
         std::end(reported);
}

void report(const Access& prior, const Access& access, const Where& where,
            Scope needed) {
  reported[next_reported++ % std::size(reported)] = pair_of(prior, access);
  const auto key_of = [](const Access& one) {
    return hash_of(std::string(file->site[one.site].text) + word_for(one.kind));
  };
  const uint64_t key = key_of(prior) + key_of(access);
  const Guard guard(&file->lock);
  if (file->full != 0) return;
  const uint32_t count = file->findings;
  for (uint32_t k = 0; k < count; ++k)
    if (file->finding[k].key == key) return;
  if (count == kFindings) {
    file->full = 1;
    return;
  }
  const char* memory = where.memory == ptx::Touch::kShared ? "shared"
                       : where.memory == ptx::Touch::kGrid ? "grid"
                                                           : "global";
  char address[32];
  std::snprintf(address, sizeof address, "0x%llx",
                static_cast<unsigned long long>(where.address));
  const std::string text =
      "{\"memory\":" + quoted(memory) + ",\"address\":" + quoted(address) +
      ",\"accesses\":[" + described(prior) + "," + described(access) +
      "],\"needs\":" +
      quoted(advice(prior, access, needed, known_to_any(prior.step))) + "}";
  Finding& finding = file->finding[count];
  finding.key = key;
  std::snprintf(finding.text, sizeof finding.text, "%s", text.c_str());
  file->findings = count + 1;
}

// ---- what comes before

bool knows_of_threads(const View& view, const Access& prior, uint32_t first,
                      uint32_t end) {
  for (uint32_t thread = first; thread < end; ++thread) {
    const bool me = prior.step == view.step && prior.block == view.block &&
                    thread == view.thread;
    if (!me &&
        view.known->of_thread(prior.step, prior.block, thread) < prior.clock)
      return false;
  }
  return true;
}

bool knows_step(const View& view, uint32_t number) {
  const Step& step = step_of(number);
  return view.known->of_actor(step.actor) >= step.number || is_over(step.actor);
}

bool knows_part(const View& view, const Access& prior) {
  const bool same_step = prior.step == view.step;
  if (same_step && prior.block == view.block) {
    if (prior.clock <= view.floor) return true;
    if (prior.span == kThread && prior.thread == view.thread) return true;
  }
  if (!same_step && knows_step(view, prior.step)) return true;
  switch (prior.span) {
    case kThread:
      return view.known->of_thread(prior.step, prior.block,
                                   static_cast<uint32_t>(prior.thread)) >=
             prior.clock;
    case kWholeWarp: {
      const auto first = static_cast<uint32_t>(prior.thread) / 32 * 32;
      const bool mine = same_step && prior.block == view.block;
      return knows_of_threads(
          view, prior, first,
          mine ? std::min(first + 32, view.threads) : first + 32);
    }
    case kWholeBlock:
      if (view.known->of_block(prior.step, prior.block) >= prior.clock)
        return true;
      return same_step && prior.block == view.block &&
             knows_of_threads(view, prior, 0, view.threads);
    default:
      // Too many threads to know which of them come before. No finding is
      // better than a false one.
      return same_step || view.known->knows_of(prior.step);
  }
}

/// A clock that was too long for its slot says that it knows all of a step,
/// also of the step that still runs.
bool comes_before(const View& view, const Access& prior) {
  return knows_part(view, prior) ||
         (prior.step == view.step && knows_step(view, prior.step));
}

/// Do both accesses synchronise with each other, as far as their scopes go?
bool morally_strong(const Access& a, const Access& b, Scope needed) {
  return a.strong && b.strong && a.scope >= needed && b.scope >= needed;
}

/// The usual case of morally_strong(), for which nothing is looked up.
bool are_atomics_of_a_kernel(const Access& a, const Access& b) {
  return a.step == b.step && morally_strong(a, b, Scope::kGpu);
}

void check(const Access& prior, const View& view, const Access& access,
           const Where& where) {
  if (are_atomics_of_a_kernel(prior, access)) return;
  if (prior.step == 0 || (prior.bytes & access.bytes) == 0 ||
      comes_before(view, prior) || is_reported(prior, access))
    return;
  const bool same_warp = prior.step == access.step &&
                         prior.block == access.block &&
                         prior.thread / 32 == access.thread / 32;
  // "If a non-atomic instruction executed by a warp writes to the same location
  // … for more than one of the threads of the warp", one of them writes last
  // (CUDA C++ Programming Guide, "SIMT Architecture"): no race.
  if (same_warp && prior.site == access.site && prior.kind == access.kind &&
      access.kind == ptx::Effect::kWrite)
    return;
  const Scope needed = needed_between(step_of(prior.step), prior.step,
                                      prior.block, view, where.memory);
  if (morally_strong(prior, access, needed)) return;
  report(prior, access, where, needed);
}

/// comes_before() for all threads of two accesses of a group; false if only the
/// cells can tell.
bool comes_whole_before(const View& view, const Access& prior,
                        const Access& access) {
  if (prior.step == 0) return true;
  if (prior.step != access.step) {
    const Step& step = step_of(prior.step);
    return view.known->of_actor(step.actor) >= step.number ||
           is_over(step.actor) || is_reported(prior, access);
  }
  return prior.block == access.block &&
         (prior.clock <= view.floor ||
          (prior.thread == access.thread && prior.width == access.width));
}

Stripe& stripe_of(const Group* group) {
  const auto number = static_cast<uint64_t>(group - file->group[0]);
  return file->stripe[0][number / kGroupsOfStripe];
}

Group* first_of(const Stripe& stripe) {
  return file->group[0] +
         static_cast<uint64_t>(&stripe - file->stripe[0]) * kGroupsOfStripe;
}

/// Says of each group what is known of the whole stripe, which is held.
void split(Stripe* stripe) {
  if (stripe->state == Stripe::kGroups) return;
  Group* groups = first_of(*stripe);
  for (uint64_t k = 0; k < kGroupsOfStripe; ++k) {
    if (stripe->state == Stripe::kWhole)
      groups[k] = {stripe->write, stripe->read, 0, 0};
    else
      groups[k].read = stripe->read;
  }
  stripe->state = Stripe::kGroups;
}

/// The groups of the stripe say the same again, after an access of all of them.
void unite(Stripe* stripe, const Access& access) {
  const Group* groups = first_of(*stripe);
  stripe->read = {};
  stripe->write = access;
  stripe->state = Stripe::kWhole;
  if (access.kind != ptx::Effect::kRead) return;
  stripe->read = access;
  stripe->write = groups[0].write;
  stripe->state = Stripe::kRead;
  for (uint64_t k = 1; k < kGroupsOfStripe; ++k) {
    const Access& one = groups[k].write;
    if (one.step != stripe->write.step || one.site != stripe->write.site ||
        one.kind != stripe->write.kind)
      stripe->state = Stripe::kGroups;
  }
}

/// What an access of a whole group says of its cell `k`. If several threads
/// access the cell, it remembers one of them.
Access part_of(const Access& whole, uint64_t k) {
  Access part = whole;
  part.width = 0;
  if (whole.step == 0 || whole.width == kOneThread) return part;
  part.thread = (whole.thread + (k * kCellBytes >> whole.width)) & 1023;
  part.bytes = whole.width == 0 ? 1 : whole.width == 1 ? 3 : 15;
  return part;
}

bool same_thread(const Access& a, const Access& b) {
  return a.step == b.step && a.block == b.block && a.thread == b.thread &&
         a.span == b.span;
}

template <class Visit>
void each_reader(Cell* cell, Visit visit) {
  for (Access& one : cell->read) visit(one);
  for (uint32_t at = cell->more; at != 0; at = file->more[at].next)
    for (Access& one : file->more[at].read) visit(one);
}

/// If more than `most` readers have this span and are in the same group, one
/// reader with a wider span stands for all of them.
template <class Same>
void merge_readers(Cell* cell, Span from, int most, const Access& pattern,
                   Same same) {
  int count = 0;
  uint64_t bytes = 0;
  each_reader(cell, [&](Access& one) {
    if (one.step == 0 || one.span != from || !same(one)) return;
    ++count;
    bytes |= one.bytes;
  });
  if (count <= most) return;
  Access merged = pattern;
  merged.span = (from + 1) & 3;
  merged.bytes = bytes & 15;
  bool placed = false;
  each_reader(cell, [&](Access& one) {
    if (one.step == 0 || one.span != from || !same(one)) return;
    one = placed ? Access{} : merged;
    placed = true;
  });
}

bool stands_for(const Access& wide, const Access& one) {
  if (wide.step != one.step || wide.strong != one.strong ||
      (one.bytes & ~wide.bytes) != 0)
    return false;
  if (wide.span == kWholeStep) return true;
  if (wide.block != one.block || wide.clock != one.clock) return false;
  return wide.span == kWholeBlock ||
         (wide.span == kWholeWarp && wide.thread / 32 == one.thread / 32) ||
         same_thread(wide, one);
}

void remember_read(Cell* cell, const View& view, const Access& access) {
  Access* free = nullptr;
  bool known = false;
  int readers = 0;
  each_reader(cell, [&](Access& one) {
    if (known) return;
    if (one.step != 0 && stands_for(one, access)) {
      known = true;
      return;
    }
    const bool replaced = one.step != 0 && one.strong == access.strong &&
                          (one.bytes & ~access.bytes) == 0 &&
                          comes_before(view, one);
    if (replaced) one = {};
    if (one.step == 0) {
      if (free == nullptr) free = &one;
    } else {
      ++readers;
    }
  });
  if (known) return;
  if (free == nullptr) {
    const uint32_t number = take(file->readers, kReaders);
    if (number == 0) return;
    Readers& made = file->more[number];
    made.next = cell->more;
    cell->more = number;
    free = &made.read[0];
  }
  *free = access;
  if (readers < 4) return;
  merge_readers(cell, kThread, 4, access, [&](const Access& one) {
    return one.step == access.step && one.block == access.block &&
           one.clock == access.clock && one.strong == access.strong &&
           one.thread / 32 == access.thread / 32;
  });
  merge_readers(cell, kWholeWarp, 4, access, [&](const Access& one) {
    return one.step == access.step && one.block == access.block &&
           one.clock == access.clock && one.strong == access.strong;
  });
  merge_readers(cell, kWholeBlock, 8, access, [&](const Access& one) {
    return one.step == access.step && one.strong == access.strong;
  });
}

/// Checks the last write of a cell. Who comes after a strong read that saw a
/// strong write comes after this write, too ("observation" and "causality
/// order" in the memory model).
void check_write(Cell* cell, const View& view, const Access& access,
                 const Where& where) {
  const Access& prior = cell->write;
  if (prior.step == 0 || are_atomics_of_a_kernel(prior, access)) return;
  bool observed = false;
  if (prior.strong && !comes_before(view, prior))
    each_reader(cell, [&](const Access& one) {
      if (one.step == 0 || !one.strong || one.scope < prior.scope) return;
      observed = observed || comes_before(view, one);
    });
  if (!observed) check(prior, view, access, where);
}

}  // namespace

const bool active = open_file();

uint32_t new_actor() { return take(file->actors, kActors); }

void close_actor(uint32_t actor, uint32_t steps) {
  __atomic_store_n(&file->actor[actor % kActors].steps, steps + 1,
                   __ATOMIC_RELEASE);
}

void tidy(Clock* clock) {
  const Clock whole = *clock;
  clock->remove_if([&](const Entry& e) {
    if ((e.step & kActor) != 0) return is_over(e.step & ~kActor);
    const Step& step = step_of(e.step);
    return is_over(step.actor) || whole.of_actor(step.actor) >= step.number;
  });
}

uint32_t new_step(uint32_t actor, uint32_t number, uint32_t gpu) {
  const uint32_t step = take(file->steps, kSteps);
  if (step != 0)
    file->step[step] = {actor, number, static_cast<uint32_t>(getpid()), gpu, 0};
  return step;
}

const Step& step_of(uint32_t step) { return file->step[step % kSteps]; }

void set_start(uint32_t step, const Clock& clock) {
  const uint32_t slot = take(file->slots, kSlots);
  if (slot == 0) return;
  put(&file->slot[slot], clock);
  __atomic_store_n(&file->step[step].start, slot, __ATOMIC_RELEASE);
}

uint32_t new_site(const std::string& text) {
  const uint32_t site = take(file->sites, kSites);
  std::snprintf(file->site[site].text, sizeof file->site[site].text, "%s",
                site == 0 ? "somewhere" : text.c_str());
  return site;
}

void set_window(uint64_t begin, uint64_t size) {
  void* table =
      mmap(nullptr, size / kPageBytes * sizeof(Shown), PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table == MAP_FAILED) die("no room for the pages of the race detector");
  shown = static_cast<Shown*>(table);
  window_begin = begin;
  window_size = size;
}

void shown_to_host(uint64_t address, uint64_t size) {
  for (uint64_t done = 0; done < size; done += kPageBytes)
    shown[(address - window_begin + done) / kPageBytes].number |= kOnHost;
}

void mapped(uint64_t address, uint64_t size, int descriptor, uint64_t offset) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) return;
  const bool aligned = (address - window_begin - offset) % kPageBytes == 0;
  for (uint64_t done = 0; done < size; done += kPageBytes)
    shown[(address - window_begin + done) / kPageBytes] = {
        aligned ? status.st_ino : 0,
        static_cast<uint32_t>((offset + done) / kPageBytes), 0};
}

Group* group_of(uint64_t address, bool* on_host) {
  return groups_at(address, true, on_host);
}

Cell* cell_in(Group* group, uint64_t address) {
  if (group->cells == 0) {
    group->cells = take(file->split, kSplit);
    if (group->cells == 0) return nullptr;
    for (uint64_t k = 0; k < kCellsOfGroup; ++k) {
      Cell& cell = file->cells[group->cells][k];
      cell.write = part_of(group->write, k);
      cell.read[0] = part_of(group->read, k);
    }
  }
  return &file->cells[group->cells][address % kGroupBytes / kCellBytes];
}

uint64_t access_run(Group* first, uint64_t groups, const View& view,
                    Access access, uint32_t threads) {
  const bool reads = access.kind == ptx::Effect::kRead;
  uint32_t known = 0;  // a step that comes before
  const auto is_before = [&](const Access& prior) {
    if (prior.step == 0 || prior.step == known) return true;
    if (!comes_whole_before(view, prior, access)) return false;
    if (prior.step != access.step) known = prior.step;
    return true;
  };
  const bool uniform = threads == 0 && access.width == kOneThread;
  for (uint64_t k = 0; k < groups;) {
    Stripe& stripe = stripe_of(first + k);
    Group* const all = first_of(stripe);
    const uint64_t end = std::min(
        groups, k + static_cast<uint64_t>(all + kGroupsOfStripe - (first + k)));
    const bool whole = uniform && end - k == kGroupsOfStripe;
    const Guard guard(&stripe.lock);
    if (whole && stripe.state != Stripe::kGroups && is_before(stripe.write) &&
        is_before(stripe.read)) {
      stripe.read = reads ? access : Access{};
      if (!reads) {
        stripe.write = access;
        stripe.state = Stripe::kWhole;
      }
      k = end;
      continue;
    }
    split(&stripe);
    for (; k < end; ++k) {
      Group& group = first[k];
      if (group.cells != 0 || !is_before(group.write) || !is_before(group.read))
        return k;
      group.read = reads ? access : Access{};
      if (!reads) group.write = access;
      access.thread = (access.thread + threads) & 1023;
    }
    if (whole) unite(&stripe, access);
  }
  return groups;
}

void renew(uint64_t address, uint64_t size) {
  const uint64_t end = address + size;
  while (address < end) {
    const uint64_t next =
        std::min(end, address / kStripeBytes * kStripeBytes + kStripeBytes);
    bool on_host;
    Group* group = groups_at(address, false, &on_host);
    if (group == nullptr) {  // nobody has accessed the page
      address = std::min(end, address / kPageBytes * kPageBytes + kPageBytes);
      continue;
    }
    Stripe& stripe = stripe_of(group);
    if (address % kPageBytes == 0 && end - address >= kPageBytes) {
      madvise(group, kGroupsOfPage * sizeof(Group), MADV_REMOVE);
      madvise(&stripe, kStripesOfPage * sizeof(Stripe), MADV_REMOVE);
      address += kPageBytes;
      continue;
    }
    const Guard guard(&stripe.lock);
    if (next - address == kStripeBytes) {
      stripe.write = stripe.read = {};
      stripe.state = Stripe::kWhole;
    } else if (stripe.state != Stripe::kWhole || stripe.write.step != 0 ||
               stripe.read.step != 0) {
      split(&stripe);
      std::memset(
          static_cast<void*>(group), 0,
          (next - address + kGroupBytes - 1) / kGroupBytes * sizeof(Group));
    }
    address = next;
  }
}

void Holder::hold(Group* group) {
  Stripe* stripe = &stripe_of(group);
  if (stripe == held_) return;
  release();
  lock(&stripe->lock);
  split(stripe);
  held_ = stripe;
}

void Holder::release() {
  if (held_ != nullptr) unlock(&held_->lock);
  held_ = nullptr;
}

void read(Cell* cell, const View& view, const Access& access,
          const Where& where) {
  if (std::memcmp(&cell->read[0], &access, sizeof access) == 0) return;
  check_write(cell, view, access, where);
  remember_read(cell, view, access);
}

void write(Cell* cell, const View& view, const Access& access,
           const Where& where) {
  check_write(cell, view, access, where);
  if (cell->read[0].step != 0 || cell->read[1].step != 0 || cell->more != 0)
    each_reader(cell, [&](Access& one) {
      check(one, view, access, where);
      one = {};
    });
  const uint64_t before =
      same_thread(cell->write, access) && cell->write.clock == access.clock
          ? cell->write.bytes
          : 0;
  cell->write = access;
  cell->write.bytes |= before & 15;
}

void release_to(Cell* cell, const View& view, const Clock& clock, Scope scope,
                bool join) {
  if (cell->word == 0) cell->word = take(file->slots, kSlots);
  if (cell->word == 0) return;
  Slot& slot = file->slot[cell->word];
  const Step& step = step_of(view.step);
  if (join && slot.count != 0) {
    add(&slot, clock);
    scope = std::min(scope, static_cast<Scope>(slot.scope));
  } else {
    put(&slot, clock);
  }
  slot.scope = static_cast<uint32_t>(scope);
  slot.pid = step.pid;
  slot.gpu = step.gpu;
  slot.step = view.step;
  slot.block = view.block;
}

void forget_word(Cell* cell) {
  if (cell->word != 0) file->slot[cell->word].count = 0;
}

bool acquire_from(const Cell* cell, const View& view, Scope scope,
                  Scope* needed, Clock* into) {
  bool found = false;
  const auto take_clock = [&](const Slot& slot) {
    into->join(slot.entries, slot.entries + slot.count);
    found = true;
  };
  const Access& write = cell->write;
  if (write.step != 0 && write.step != view.step && write.strong) {
    const Step& step = step_of(write.step);
    *needed = needed_between(step, write.step, write.block, view,
                             ptx::Touch::kGlobal);
    const uint32_t start = __atomic_load_n(&step.start, __ATOMIC_ACQUIRE);
    if (start != 0 && write.scope >= *needed && scope >= *needed)
      take_clock(file->slot[start]);
  }
  if (cell->word == 0) return found;
  const Slot& slot = file->slot[cell->word];
  if (slot.count == 0) return found;
  *needed = needed_between({0, 0, slot.pid, slot.gpu, 0}, slot.step, slot.block,
                           view, ptx::Touch::kGlobal);
  if (slot.scope >= *needed && scope >= *needed) take_clock(slot);
  return found;
}

void keep(uint64_t id, uint32_t record, const Clock& clock) {
  const Guard guard(&file->lock);
  id = id * kEventRing + record % kEventRing + 1;
  uint64_t at = id * 0x9E3779B97F4A7C15u >> 32;
  for (uint32_t tries = 0; tries < kEvents; ++tries, ++at) {
    Event& event = file->event[at % kEvents];
    if (event.id == 0) event = {id, record, take(file->slots, kSlots)};
    if (event.id != id) continue;
    event.record = record;
    if (event.slot != 0) put(&file->slot[event.slot], clock);
    return;
  }
  file->full = 1;
}

void fetch(uint64_t id, uint32_t record, Clock* into) {
  const Guard guard(&file->lock);
  id = id * kEventRing + record % kEventRing + 1;
  uint64_t at = id * 0x9E3779B97F4A7C15u >> 32;
  for (uint32_t tries = 0; tries < kEvents; ++tries, ++at) {
    const Event& event = file->event[at % kEvents];
    if (event.id == 0) return;
    if (event.id != id) continue;
    const Slot& slot = file->slot[event.slot];
    into->join(slot.entries, slot.entries + slot.count);
    return;
  }
}

}  // namespace ipclab::model::race
