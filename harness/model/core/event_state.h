// SPDX-License-Identifier: Apache-2.0
// The state of an event, in memory that processes may share. It says which
// records were made and which are complete.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/shared_file.h"

namespace ipclab::model {

/// Records are numbered from 1; 0 means that nothing was recorded, which counts
/// as complete. A wait takes the number of the newest record at the time of the
/// call, so later records do not change the wait.
class EventState {
 public:
  /// A state for one process.
  static std::shared_ptr<EventState> local();
  /// A state in a memfd that another process may open; null if resources are
  /// missing.
  static std::shared_ptr<EventState> shared();
  /// The state of an event of another process; null if the file is not such a
  /// state.
  static std::shared_ptr<EventState> adopt(SharedFile file);

  ~EventState();
  EventState(const EventState&) = delete;
  EventState& operator=(const EventState&) = delete;

  int descriptor() const { return file_.descriptor(); }
  uint64_t id() const { return id_; }

  /// Begins a new record and returns its number. Waits while the ring is full
  /// of unfinished records.
  uint32_t begin_record();
  /// Call this when all work before the record is done.
  void complete(uint32_t record);
  uint32_t latest() const;
  /// True when the record is complete, or when the process that made it has
  /// ended and can no longer complete it.
  bool is_complete(uint32_t record) const;
  void wait(uint32_t record) const;
  /// The time at which the newest complete record completed, in nanoseconds.
  uint64_t completed_at() const { return page_->completed_ns; }

 private:
  static constexpr uint32_t kRing = 1024;

  struct Slot {
    std::atomic<uint32_t> completed;  ///< the newest complete record here
    std::atomic<uint32_t> recorder;   ///< who made the newest record here
  };
  struct Page {
    char magic[8];
    uint64_t id;
    std::atomic<uint32_t> participants;
    std::atomic<uint32_t> begun;     ///< records that have a number
    std::atomic<uint32_t> recorded;  ///< the newest record that waits see
    std::atomic<uint32_t> changes;   ///< futex
    std::atomic<uint64_t> completed_ns;
    Slot ring[kRing];
  };

  EventState() = default;
  bool map(bool fresh);
  bool join();
  bool recorder_is_alive(uint32_t recorder) const;
  Slot& slot(uint32_t record) const { return page_->ring[record % kRing]; }

  SharedFile file_;  ///< not valid if the state is local()
  Page* page_ = nullptr;
  uint64_t id_ = 0;
  uint32_t me_ = 0;  ///< number of this process among the participants
};

}  // namespace ipclab::model
