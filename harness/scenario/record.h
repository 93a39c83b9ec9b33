// The results of a test, and the JSON line that has them. harness/README.md,
// section 2, describes the format of this line.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace ipclab {

struct Failure {
  std::string role, step, call, expected, seen, message, file;
  int line = 0;
};

/// One line of a table of the report.
struct TabulatedOutcome {
  std::string table, input, outcome, code;
};

struct RoleReport {
  std::string name;
  pid_t pid = 0;
  std::string ended;      // "reached its end", "killed by SIGSEGV" …
  std::string last_step;  // empty: none
  std::string last_call;
  std::string output;
  bool shared = false;  // its process has already played another role
};

struct TimelineEntry {
  int64_t time_us = 0;  // since the scenario began
  std::string role, kind, text, from;
  int64_t bytes = -1;  // -1: has none
};

/// Everything that one TEST will report. The worst outcome wins.
class Record {
 public:
  /// The record of the running TEST.
  static Record& current();

  /// In order of rank: a later outcome in this list replaces an earlier one.
  enum Outcome {
    kConforms,
    kLifted,
    kNotApplicable,
    kViolates,
    kHung,
    kCrashed,
    kBroken
  };

  void begin(const std::string& test);
  /// The record keeps the `reason` of the outcome with the highest rank.
  void outcome(Outcome outcome, const std::string& reason);
  Outcome outcome() const { return outcome_; }
  void fail(Failure failure) { failures.push_back(std::move(failure)); }

  /// The JSON line; `milliseconds` is how long the TEST took.
  std::string json(double milliseconds) const;

  std::string test, requirement;
  int gpus = 0;             // how many the test needs
  bool alone = false;       // whether no other test may use the GPUs
  bool shared = false;      // whether its processes may also run other tests
  bool second_gpu = false;  // whether it sees a second GPU if there is one
  bool told = false;  // whether the failure that GoogleTest hears next is here
  std::vector<std::string> notes;
  std::vector<TabulatedOutcome> outcomes;
  std::vector<Failure> failures;
  std::vector<RoleReport> roles;
  std::vector<TimelineEntry> timeline;
  std::set<std::string> functions;  // of CUDA, that roles of any run called

 private:
  Outcome outcome_ = kConforms;
  std::string reason_;
};

/// The seed of all random choices: IPCLAB_SEED, or 1 without it.
unsigned long long seed();

}  // namespace ipclab
