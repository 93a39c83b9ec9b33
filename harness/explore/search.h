// The search: programs until the time is over, and what is made of a failure.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "harness/explore/world/failure.h"

namespace ipclab::explore {

struct Options {
  double seconds = 60;         ///< of the search, with all that it shrinks
  uint64_t seed = 1;           ///< of the sequence of programs
  long programs = 0;           ///< at most so many; 0: no limit
  int processes = 0;           ///< of each program; 0: 2 to 4
  int gpus = 2;                ///< that programs use at most
  double shrink_seconds = 60;  ///< most for each failure; 0: do not shrink
  int failures = 5;            ///< different ones after which the search ends
  bool alone = false;          ///< nobody else uses the GPU: judge its memory
  std::string out;             ///< folder for programs; empty: write none
  std::string known;           ///< file of known deviations; empty: none
};

/// Known deviations of a driver: lines of row, operation, check and value seen,
/// with tabs between. A field may be *.
class Known {
 public:
  Known() = default;
  /// Reads a file. Throws std::invalid_argument if a line is wrong.
  explicit Known(const std::string& path);
  bool matches(const Failure& failure) const;

 private:
  struct Entry {
    std::string row, operation, check, seen;
  };
  std::vector<Entry> entries_;
};

/// Seconds after those of the search until it ends, whatever the driver does:
/// time to shrink what was found last.
constexpr double kExtraSeconds = 7;

/// Runs random programs. Prints an event as a line of JSON when something
/// happens, and each second. Returns 0, or 1 if something failed.
int search(const Options& options);

/// Runs the program of a file `times` times in new processes. Returns 1 if it
/// failed at least once.
int replay(const std::string& path, int times, const Options& options);

}  // namespace ipclab::explore
