// SPDX-License-Identifier: Apache-2.0
// The state of an event.
#include "core/event_state.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "core/block.h"
#include "core/log.h"

namespace ipclab::model {
namespace {

constexpr char kMagic[8] = {'i', 'p', 'c', 'l', 'e', 'v', '0', '1'};
// A waiter checks at this interval whether the recorder still lives.
constexpr long kLivenessNs = 20'000'000;

void futex_wait(std::atomic<uint32_t>* word, uint32_t seen) {
  const timespec limit{0, kLivenessNs};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, seen,
          &limit, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, 1 << 30,
          nullptr, nullptr, 0);
}

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000ull +
         static_cast<uint64_t>(now.tv_nsec);
}

// Record numbers may wrap around.
bool at_least(uint32_t a, uint32_t b) {
  return static_cast<int32_t>(a - b) >= 0;
}

}  // namespace

std::shared_ptr<EventState> EventState::local() {
  auto state = std::shared_ptr<EventState>(new EventState);
  return state->map(true) ? state : nullptr;
}

std::shared_ptr<EventState> EventState::shared() {
  auto state = std::shared_ptr<EventState>(new EventState);
  state->file_ =
      SharedFile::create("event", sizeof(Page), SharedFile::Size::kFixed);
  const bool made = state->file_.valid() && state->map(true) && state->join();
  return made ? state : nullptr;
}

std::shared_ptr<EventState> EventState::adopt(SharedFile file) {
  auto state = std::shared_ptr<EventState>(new EventState);
  state->file_ = std::move(file);
  const bool good =
      state->file_.valid() && state->file_.size() == sizeof(Page) &&
      state->map(false) &&
      std::memcmp(state->page_->magic, kMagic, sizeof kMagic) == 0 &&
      state->join();
  return good ? state : nullptr;
}

bool EventState::map(bool fresh) {
  const int flags = file_.valid() ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* place = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, flags,
                     file_.descriptor(), 0);
  if (place == MAP_FAILED) return false;
  // In a forked child, this mapping would keep the lock that shows that this
  // process lives.
  madvise(place, sizeof(Page), MADV_DONTFORK);
  page_ = static_cast<Page*>(place);  // zero bytes are a valid empty state
  if (fresh) {
    std::memcpy(page_->magic, kMagic, sizeof kMagic);
    page_->id = unique_id();
  }
  id_ = page_->id;
  return true;
}

// Each participant locks one byte. When its process ends, the byte is free
// again; this also works across pid namespaces.
bool EventState::join() {
  me_ = ++page_->participants;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(sizeof(Page)) + me_;
  lock.l_len = 1;
  return fcntl(file_.descriptor(), F_OFD_SETLK, &lock) == 0;
}

bool EventState::recorder_is_alive(uint32_t recorder) const {
  if (!file_.valid() || recorder == me_) return true;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(sizeof(Page)) + recorder;
  lock.l_len = 1;
  return fcntl(file_.descriptor(), F_OFD_GETLK, &lock) != 0 ||
         lock.l_type != F_UNLCK;
}

EventState::~EventState() {
  if (page_ != nullptr) munmap(page_, sizeof(Page));
}

uint32_t EventState::begin_record() {
  const uint32_t record = ++page_->begun;
  if (record > kRing) wait(record - kRing);
  slot(record).recorder = me_;
  uint32_t newest = page_->recorded;
  while (!at_least(newest, record) &&
         !page_->recorded.compare_exchange_weak(newest, record)) {
  }
  return record;
}

void EventState::complete(uint32_t record) {
  page_->completed_ns = now_ns();
  slot(record).completed.store(record, std::memory_order_release);
  ++page_->changes;
  futex_wake(&page_->changes);
}

uint32_t EventState::latest() const { return page_->recorded; }

bool EventState::is_complete(uint32_t record) const {
  if (record == 0) return true;
  const Slot& made = slot(record);
  if (at_least(made.completed.load(std::memory_order_acquire), record)) {
    return true;
  }
  if (recorder_is_alive(made.recorder)) return false;
  // The process may have completed the record and ended meanwhile.
  if (!at_least(made.completed, record)) {
    say("the process that recorded an event has ended before the work was "
        "done: its waiters are released");
  }
  return true;
}

void EventState::wait(uint32_t record) const {
  if (record == 0) return;
  const Slot& made = slot(record);
  for (;;) {
    const uint32_t seen = page_->changes;
    if (at_least(made.completed.load(std::memory_order_acquire), record)) {
      return;
    }
    futex_wait(&page_->changes, seen);
    if (is_complete(record)) return;
  }
}

}  // namespace ipclab::model
