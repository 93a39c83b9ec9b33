// SPDX-License-Identifier: Apache-2.0
// Races between items of streams.
#include "core/race.h"

#include <map>
#include <mutex>

namespace ipclab::model::race {
namespace {

thread_local Turn* current_turn = nullptr;

uint32_t site_of(const std::string& text) {
  static std::mutex mutex;
  static auto& sites = *new std::map<std::string, uint32_t>;
  const std::lock_guard lock(mutex);
  uint32_t& site = sites[text];
  if (site == 0) site = new_site(text);
  return site;
}

/// A view without threads: of a copy, of an operation of a stream.
View view_of(uint32_t step, const Clock& clock) {
  return {step, 0, 0, 0, 0, 1, &clock};
}

Access access_of(uint32_t step, uint32_t site, ptx::Effect::Kind kind,
                 bool strong) {
  Access access{};
  access.step = step;
  access.site = site & kSiteMask;
  access.span = kWholeStep;
  access.kind = kind & 3;
  access.strong = strong;
  access.scope = Scope::kSystem;
  access.bytes = 15;
  access.width = kOneThread;
  return access;
}

/// The bytes of a cell that a range covers, one bit for each.
uint64_t covered(uint64_t cell, uint64_t begin, uint64_t end) {
  uint64_t bytes = 15;
  if (begin > cell) bytes &= 15u << (begin - cell);
  if (end < cell + kCellBytes) bytes &= 15u >> (cell + kCellBytes - end);
  return bytes;
}

/// Tells that a step accesses a range of bytes.
void access_range(const View& view, Access access, uint64_t begin,
                  uint64_t size) {
  Holder holder;
  const uint64_t end = begin + size;
  for (uint64_t at = begin / kCellBytes * kCellBytes; at < end;) {
    bool on_host;
    Group* group = group_of(at, &on_host);
    if (group == nullptr) return;
    access.bytes = 15;
    if (!access.strong && at >= begin && at % kGroupBytes == 0 &&
        at + kGroupBytes <= end) {
      holder.release();
      const uint64_t done =
          access_run(group, groups_in_a_row(at, end), view, access, 0);
      at += done * kGroupBytes;
      if (done != 0) continue;
    }
    holder.hold(group);
    Cell* cell = cell_in(group, at);
    if (cell == nullptr) return;
    access.bytes = covered(at, begin, end) & 15;
    Access part = access;
    part.width = 0;
    if (access.kind == ptx::Effect::kRead)
      read(cell, view, part, {ptx::Touch::kGlobal, at});
    else
      write(cell, view, part, {ptx::Touch::kGlobal, at});
    if (access.kind == ptx::Effect::kWrite && !access.strong) forget_word(cell);
    at += kCellBytes;
  }
}

void access_region(const View& view, const Access& access, const Region& region,
                   const Extent& extent) {
  for (uint64_t z = 0; z < extent.depth; ++z)
    for (uint64_t y = 0; y < extent.height; ++y)
      access_range(view, access,
                   region.address + z * region.slice + y * region.pitch,
                   extent.width);
}

}  // namespace

Turn::Turn(Actor* actor, uint32_t gpu, const std::vector<After>& before,
           const After& host, After done)
    : actor_(actor), gpu_(gpu), done_(std::move(done)), outer_(current_turn) {
  if (host != nullptr) clock_.join(*host);
  for (const After& one : before) clock_.join(*one);
  tidy(&clock_);
  current_turn = this;
}

Turn::~Turn() {
  *done_ = std::move(clock_);
  current_turn = outer_;
}

Turn* Turn::current() { return current_turn; }

uint32_t Turn::begin_step() {
  return new_step(actor_->id(), actor_->next(), gpu_);
}

void Turn::end_step() {
  clock_.raise({kActor | actor_->id(), 0, 0, actor_->steps()});
}

After host_now() {
  auto clock = std::make_shared<Clock>();
  fetch_host(clock.get());
  return clock;
}

void recorded(uint64_t event, uint32_t record) {
  keep(event, record, current_turn->clock());
}

void waited(uint64_t event, uint32_t record) {
  if (record != 0) fetch(event, record, &current_turn->clock());
}

void host_waited(uint64_t event, uint32_t record) {
  if (record == 0) return;
  Clock clock;
  fetch(event, record, &clock);
  tell_host(clock);
}

void copied(const char* what, const Region* to, const Region* from,
            const Extent& extent) {
  const uint32_t step = current_turn->begin_step();
  if (step == 0) return;
  const uint32_t site = site_of(what);
  const View view = view_of(step, current_turn->clock());
  if (from != nullptr)
    access_region(view, access_of(step, site, ptx::Effect::kRead, false), *from,
                  extent);
  if (to != nullptr)
    access_region(view, access_of(step, site, ptx::Effect::kWrite, false), *to,
                  extent);
  current_turn->end_step();
}

void word_written(uint64_t address, unsigned bytes) {
  const uint32_t step = current_turn->begin_step();
  if (step == 0) return;
  const Clock& clock = current_turn->clock();
  const View view = view_of(step, clock);
  access_range(
      view,
      access_of(step, site_of("cuStreamWriteValue"), ptx::Effect::kWrite, true),
      address, bytes);
  bool on_host;
  if (Group* group = group_of(address, &on_host)) {
    Holder holder;
    holder.hold(group);
    current_turn->end_step();
    if (Cell* cell = cell_in(group, address))
      release_to(cell, view, clock, Scope::kSystem, false);
  }
  current_turn->end_step();
  if (on_host) tell_host(clock);
}

void word_seen(uint64_t address, unsigned bytes) {
  const uint32_t step = current_turn->begin_step();
  if (step == 0) return;
  Clock& clock = current_turn->clock();
  const View view = view_of(step, clock);
  access_range(
      view,
      access_of(step, site_of("cuStreamWaitValue"), ptx::Effect::kRead, true),
      address, bytes);
  bool on_host;
  Clock learned;
  if (Group* group = group_of(address, &on_host)) {
    Holder holder;
    holder.hold(group);
    Scope needed;
    if (Cell* cell = cell_in(group, address))
      acquire_from(cell, view, Scope::kSystem, &needed, &learned);
  }
  if (on_host) fetch_any_host(&learned);
  clock.join(learned);
  current_turn->end_step();
}

void host_begins() { tell_host(current_turn->clock()); }

void host_ends() { fetch_host(&current_turn->clock()); }

}  // namespace ipclab::model::race
