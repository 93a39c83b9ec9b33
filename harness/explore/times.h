// Where the time of a search goes.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "harness/scenario/json.h"

namespace ipclab::explore {

/// Adds up seconds for each activity of a search (search, leak, replay, shrink)
/// and each phase in it. Each moment counts for the innermost phase only.
class Times {
 public:
  using Clock = std::chrono::steady_clock;

  /// What the search does from now on.
  void set_activity(const char* activity) {
    charge();
    activity_ = activity;
  }
  const char* activity() const { return activity_; }

  /// A phase from here to the end of the block.
  class Phase {
   public:
    Phase(Times& times, const char* name) : times_(times) {
      times_.charge();
      times_.phases_.push_back(name);
    }
    Phase(const Phase&) = delete;
    ~Phase() {
      times_.charge();
      times_.phases_.pop_back();
    }

   private:
    Times& times_;
  };

  /// The last `seconds` of this phase count for another one, which became
  /// known only now.
  void were(const char* phase, double seconds) {
    charge();
    auto& phases = seconds_[activity_];
    phases[phases_.empty() ? "other" : phases_.back()] -= seconds;
    phases[phase] += seconds;
  }

  /// Seconds of a phase of an activity so far.
  double seconds(const char* activity, const char* phase) {
    charge();
    return seconds_[activity][phase];
  }

  /// {"search": {"start": 1.5, "run": 7.25}, …} in seconds.
  Json to_json() {
    charge();
    Json all = Json::object();
    for (const auto& [activity, phases] : seconds_) {
      Json one = Json::object();
      for (const auto& [phase, seconds] : phases)
        one.raw(phase, std::to_string(seconds));
      all.add(activity, one);
    }
    return all;
  }

 private:
  void charge() {
    const auto now = Clock::now();
    seconds_[activity_][phases_.empty() ? "other" : phases_.back()] +=
        std::chrono::duration<double>(now - since_).count();
    since_ = now;
  }

  const char* activity_ = "search";
  Clock::time_point since_ = Clock::now();
  std::vector<const char*> phases_;
  std::map<std::string, std::map<std::string, double>> seconds_;
};

}  // namespace ipclab::explore
