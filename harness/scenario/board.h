// The calls and steps of a role so far, in memory that the role shares with the
// referee. So the referee can read the last call even after the role has
// crashed or hung.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>
#include <ctime>
#include <string>

namespace ipclab {

/// Nanoseconds of CLOCK_MONOTONIC, the same clock in every process.
inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/// The last `kEntries` calls and steps of one role.
struct Board {
  static constexpr uint64_t kEntries = 1024;

  enum Kind : int32_t { kCall, kSend, kWait, kReceive, kFailure, kEnd };

  struct Entry {
    int64_t time_ns;
    int64_t bytes;
    Kind kind;
    char text[108];  // the call or the step, cut if it is longer
  };

  static constexpr uint32_t kFunctions = 128;

  std::atomic<uint64_t>
      written;  // number of entries so far, overwritten ones included
  Entry entries[kEntries];
  // The CUDA functions of all calls so far, also of those that are overwritten.
  std::atomic<uint32_t> known;
  char functions[kFunctions][48];

  /// Adds an entry; any thread may call this. If a thread repeats the same
  /// call, only the first two entries are kept.
  void note(Kind kind, const char* text, int64_t bytes = 0);

  /// Forgets everything, before the process plays another role.
  void clear() { written = known = 0; }

  /// The text of the last entry of this kind, empty if there is none.
  std::string last(Kind kind) const;

  /// The time of the last entry; 0 if there is none.
  int64_t last_ns() const {
    const uint64_t count = written;
    return count == 0 ? 0 : entries[(count - 1) % kEntries].time_ns;
  }

 private:
  void learn_function(const char* text);
};
static_assert(sizeof(Board::Entry) == 128);

/// The board of this process, null unless this process is a role.
Board*& this_board();

}  // namespace ipclab
