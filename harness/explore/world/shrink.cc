// SPDX-License-Identifier: Apache-2.0
#include "harness/explore/world/shrink.h"

#include <algorithm>
#include <set>

#include "harness/explore/world/shadow.h"

namespace ipclab::explore {
namespace {

// A run of so many steps is tried before single objects. If each try costs the
// start of a process, there may be time for thirty of them.
constexpr size_t kLongRun = 6;

class Shrinker {
 public:
  Shrinker(const Machine& machine, Shrunk* best,
           const std::function<std::optional<Failure>(const Program&)>& run,
           std::chrono::steady_clock::time_point end)
      : machine_(machine), best_(*best), run_(run), end_(end) {}

  void work() {
    // Runs of many steps go first, because they go most often.
    bool smaller = true;
    while (smaller && !late()) {
      smaller = drop_processes();
      size_t size = best_.program.steps.size() / 2;
      for (; size >= kLongRun; size /= 2) smaller = drop_runs(size) || smaller;
      smaller = drop_objects() || smaller;
      for (; size > 0; size /= 2) smaller = drop_runs(size) || smaller;
      smaller = drop_pairs() || smaller;
      smaller = simplify() || smaller;
    }
    best_.finished = !late();
  }

 private:
  bool late() const { return std::chrono::steady_clock::now() >= end_; }

  bool keep_if_it_fails(Program trial) {
    trial = defined_part(machine_, trial);
    if (late() || trial.steps.empty() || !tried_.insert(to_text(trial)).second)
      return false;
    ++best_.runs;
    const std::optional<Failure> failure = run_(trial);
    if (!failure || !failure->same_as(best_.failure)) return false;
    if (failure->index + 1 < trial.steps.size())
      trial.steps.resize(std::max<size_t>(1, failure->index + 1));
    best_.program = std::move(trial);
    best_.failure = *failure;
    return true;
  }

  bool drop(const std::function<bool(const Step&)>& goes) {
    Program trial = best_.program;
    auto& steps = trial.steps;
    steps.erase(std::remove_if(steps.begin(), steps.end(), goes), steps.end());
    return steps.size() < best_.program.steps.size() && keep_if_it_fails(trial);
  }

  bool drop_processes() {
    bool smaller = false;
    for (int p = 0; p < best_.program.processes; ++p)
      smaller =
          drop([&](const Step& step) { return step.process == p; }) || smaller;
    return smaller;
  }

  // An object with all that is done with it.
  bool drop_objects() {
    bool smaller = false;
    std::set<int> ids;
    for (const Step& step : best_.program.steps)
      if (step.id != 0) ids.insert(step.id);
    for (auto id = ids.rbegin(); id != ids.rend(); ++id)
      smaller = drop([&](const Step& step) {
                  return step.id == *id || step.on == *id || step.from == *id ||
                         step.stream == *id;
                }) ||
                smaller;
    return smaller;
  }

  bool drop_runs(size_t size) {
    bool smaller = false;
    for (size_t to = best_.program.steps.size(); to > 0 && !late();) {
      const size_t from = to > size ? to - size : 0;
      Program trial = best_.program;
      auto& steps = trial.steps;
      steps.erase(steps.begin() + static_cast<long>(from),
                  steps.begin() + static_cast<long>(to));
      if (keep_if_it_fails(trial)) {
        smaller = true;
        to = std::min(from, best_.program.steps.size());
      } else {
        to = from;
      }
    }
    return smaller;
  }

  // Two steps that only go together, such as a gate and its opening.
  bool drop_pairs() {
    if (best_.program.steps.size() > 40) return false;
    for (size_t i = 0; i < best_.program.steps.size(); ++i)
      for (size_t j = i + 1; j < best_.program.steps.size(); ++j) {
        Program trial = best_.program;
        trial.steps.erase(trial.steps.begin() + static_cast<long>(j));
        trial.steps.erase(trial.steps.begin() + static_cast<long>(i));
        if (keep_if_it_fails(trial)) return true;
        if (late()) return false;
      }
    return false;
  }

  bool change(size_t index, const std::function<void(Step&)>& edit) {
    if (index >= best_.program.steps.size()) return false;
    Program trial = best_.program;
    edit(trial.steps[index]);
    return !(trial.steps[index] == best_.program.steps[index]) &&
           defined_part(machine_, trial).steps.size() == trial.steps.size() &&
           keep_if_it_fails(trial);
  }

  bool simplify() {
    bool simpler = false;
    const std::function<void(Step&)> edits[] = {
        [](Step& step) {  // bytes from elsewhere, if only their target matters
          if (step.op != Op::kCopy && step.op != Op::kUpload &&
              step.op != Op::kWrite)
            return;
          step.op = Op::kSet;
          step.how = kSet8;
          step.from = 0;
          step.from_at = step.from_pitch = 0;
          step.value = 77;
        },
        [](Step& step) {  // a call that needs no object
          if (step.op == Op::kQuestion || step.op == Op::kRefuse)
            step.on = step.from = 0, step.at = 0;
        },
        [](Step& step) { step.group = 0; },
        [](Step& step) { step.api = 0; },
        [](Step& step) { step.thread = 0; },
        [](Step& step) { step.rows = step.layers = 0; },
        [](Step& step) { step.how = 0; },
        [](Step& step) {  // the simplest call, in the default stream
          if (step.op == Op::kRead) step.how = kReadSync;
          if (step.op == Op::kSet) step.how = kSet8Sync;
          if (step.op == Op::kRead || step.op == Op::kSet)
            step.stream = legacy_stream(step.process);
        },
        [](Step& step) { step.at = 0; },
        [](Step& step) { step.from_at = 0; },
        [](Step& step) {
          const bool sized = step.op == Op::kWrite || step.op == Op::kSet ||
                             step.op == Op::kCopy || step.op == Op::kRead ||
                             step.op == Op::kUpload;
          if (sized) step.bytes = 4;
        },
    };
    for (size_t i = 0; i < best_.program.steps.size(); ++i)
      for (const auto& edit : edits) simpler = change(i, edit) || simpler;
    return simpler;
  }

  const Machine& machine_;
  Shrunk& best_;
  const std::function<std::optional<Failure>(const Program&)>& run_;
  const std::chrono::steady_clock::time_point end_;
  std::set<std::string> tried_;
};

}  // namespace

Program defined_part(const Machine& machine, const Program& program) {
  Program part = program;
  part.steps.clear();
  Shadow shadow(machine, program.processes);
  Expected expected;
  for (const Step& step : program.steps)
    if (shadow.apply(step, &expected)) part.steps.push_back(step);
  return part;
}

Shrunk shrink(const Machine& machine, Program program, Failure failure,
              const std::function<std::optional<Failure>(const Program&)>& run,
              std::chrono::steady_clock::time_point end) {
  Shrunk best;
  if (failure.index + 1 < program.steps.size())
    program.steps.resize(failure.index + 1);
  best.program = defined_part(machine, program);
  best.failure = std::move(failure);
  Shrinker(machine, &best, run, end).work();
  return best;
}

}  // namespace ipclab::explore
