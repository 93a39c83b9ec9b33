// SPDX-License-Identifier: Apache-2.0
// Races between kernels, copies, streams and processes (`ipclab model --race`).
// Each stream is an actor and each item of its queue a step. A step knows which
// steps come before it: by the order of the stream, by events, by the host that
// submitted it, and by words that kernels release and acquire. Two accesses of
// which neither comes before the other, and of which one writes, are a race.
//
// All functions here may only be called if on().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/copy.h"
#include "core/race_host.h"
#include "core/race_memory.h"

namespace ipclab::model::race {

/// What comes before the end of an item of a stream. It is filled when the item
/// has run.
using After = std::shared_ptr<Clock>;

/// The steps of one stream.
class Actor {
 public:
  Actor() : id_(new_actor()) {}
  ~Actor() { close_actor(id_, steps_); }
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;
  uint32_t id() const { return id_; }
  uint32_t next() { return ++steps_; }
  uint32_t steps() const { return steps_; }

 private:
  uint32_t id_;
  uint32_t steps_ = 0;
};

/// An item of a stream while it runs, on the thread that runs it.
class Turn {
 public:
  /// `before` are the items that are done before this one, `host` is what the
  /// host knew when it submitted the item, `done` gets the result.
  Turn(Actor* actor, uint32_t gpu, const std::vector<After>& before,
       const After& host, After done);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  /// The item that runs on this thread, or null.
  static Turn* current();
  /// Begins a kernel, a copy or a similar part of the item, and ends it.
  uint32_t begin_step();
  void end_step();
  Clock& clock() { return clock_; }
  uint32_t gpu() const { return gpu_; }

 private:
  Actor* const actor_;
  const uint32_t gpu_;
  After done_;
  Clock clock_;
  Turn* const outer_;
};

/// What the host knows now.
After host_now();
/// The host goes on after this work.
inline void host_goes_on_after(const Clock& clock) { tell_host(clock); }

/// Records of events: when a stream reaches the record, when work or the host
/// goes on after it.
void recorded(uint64_t event, uint32_t record);
void waited(uint64_t event, uint32_t record);
void host_waited(uint64_t event, uint32_t record);

/// The item copies, or sets memory; `from` may be null.
void copied(const char* what, const Region* to, const Region* from,
            const Extent& extent);
/// The item has written a word for others, or has seen what it waited for.
void word_written(uint64_t address, unsigned bytes);
void word_seen(uint64_t address, unsigned bytes);
/// A host function of the item begins or ends.
void host_begins();
void host_ends();

/// Runs a kernel as a part of the item of this thread.
std::unique_ptr<ptx::Observer> watch_kernel(const ptx::Launch& launch);

}  // namespace ipclab::model::race
