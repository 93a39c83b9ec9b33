// SPDX-License-Identifier: Apache-2.0
#include "harness/explore/search.h"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

#include "harness/explore/executor.h"
#include "harness/explore/world/coverage.h"
#include "harness/explore/world/generator.h"
#include "harness/explore/world/history.h"
#include "harness/explore/world/shrink.h"
#include "harness/explore/world/story.h"
#include "harness/scenario/json.h"

namespace ipclab::explore {
namespace {

constexpr int kRepeats = 3;      // of a failing program in new processes
constexpr size_t kHistory = 64;  // programs that are kept for a replay

void tell(const Json& event) {
  std::printf("%s\n", event.text().c_str());
  std::fflush(stdout);
}

Json event_of(const char* event, const Failure& failure) {
  return Json::object()
      .add("event", event)
      .add("row", failure.row)
      .add("step", to_text(failure.step))
      .add("operation", name_of(failure.step.op))
      .add("check", failure.check)
      .add("seen", failure.seen)
      .add("wanted", failure.wanted);
}

class Search {
 public:
  explicit Search(const Options& options)
      : options_(options),
        known_(options.known.empty() ? Known() : Known(options.known)),
        executor_([this](const Failure& failure) { return is_known(failure); }),
        machine_(executor_.machine()),
        coverage_(machine_) {}

  int run();

 private:
  bool is_known(const Failure& failure);
  void progress(bool last);
  void examine(const Program& program, const Failure& failure);
  void report(const Program& program, const Failure& failure);
  std::optional<Failure> in_new_processes(const Program& program, int tries,
                                          int* failed);
  std::optional<Failure> leaks(const Program& program);
  double passed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         begin_)
               .count() -
           shrinking_;
  }

  const Options options_;
  const Known known_;
  Executor executor_;
  const Machine machine_;
  Coverage coverage_;
  const std::chrono::steady_clock::time_point begin_ =
      std::chrono::steady_clock::now();
  double shrinking_ = 0;  // seconds, which do not count for the search
  long programs_ = 0;
  long long on_memory_ = 0;  // steps that are work on memory
  std::map<std::string, int> deviations_;
  std::map<std::string, int> failures_;
  std::vector<Program> history_;
  int role_starts_ = 0;
  Executor::Rest rest_;  // after the program before, in the same processes
  bool judges_leak_ = false;
};

std::string signature(const Failure& failure) {
  return failure.row + "\t" + name_of(failure.step.op) + "\t" + failure.check;
}

bool Search::is_known(const Failure& failure) {
  if (!known_.matches(failure)) return false;
  if (++deviations_[signature(failure)] == 1)
    tell(event_of("known", failure).raw("seconds", std::to_string(passed())));
  return true;
}

void Search::progress(bool last) {
  tell(Json::object()
           .add("event", last ? "end" : "progress")
           .add("programs", programs_)
           .add("steps", executor_.steps())
           .add("on_memory", on_memory_)
           .add("processes", executor_.started())
           .raw("seconds", std::to_string(passed())));
  if (!options_.out.empty())
    write_file(options_.out + "/pairs.json", coverage_.to_json());
}

std::optional<Failure> Search::in_new_processes(const Program& program,
                                                int tries, int* failed) {
  std::optional<Failure> seen;
  for (int i = 0; i < tries; ++i) {
    executor_.end_roles();
    auto failure = judges_leak_ ? executor_.leak(program, options_.alone)
                                : executor_.run(program);
    if (failure) {
      ++*failed;
      seen = std::move(failure);
    }
  }
  return seen;
}

// If less is left than after the program before, the program may leak.
std::optional<Failure> Search::leaks(const Program& program) {
  const Executor::Rest before = rest_, after = executor_.rest();
  rest_ = executor_.started() == role_starts_ ? after : Executor::Rest{};
  if (!before.known || !rest_.known) return std::nullopt;
  const bool less = options_.alone && after.free_bytes < before.free_bytes;
  if (!less && after.open_files <= before.open_files) return std::nullopt;
  rest_ = {};
  return executor_.leak(program, options_.alone);
}

// A failure counts only if it comes again in new processes. If it needs what
// the processes did before, the program gets the programs before it.
void Search::examine(const Program& program, const Failure& failure) {
  if (++failures_[signature(failure)] > 1) return;
  const auto begin = std::chrono::steady_clock::now();
  report(program, failure);
  shrinking_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
}

void Search::report(const Program& program, const Failure& failure) {
  Json event = event_of("failure", failure);
  event.add("program", programs_).raw("seconds", std::to_string(passed()));
  if (options_.shrink_seconds <= 0) {
    tell(event);
    return;
  }
  int failed = 0;
  Program whole = program;
  judges_leak_ = failure.check == "leak";
  std::optional<Failure> again = in_new_processes(whole, kRepeats, &failed);
  bool with_history = false;
  for (size_t back = 1; !again && !history_.empty(); back *= 4) {
    const size_t from = history_.size() - std::min(back, history_.size());
    std::vector<Program> all(history_.begin() + static_cast<long>(from),
                             history_.end());
    all.push_back(program);
    const Program longer = joined(all);
    failed = 0;
    again = in_new_processes(longer, kRepeats, &failed);
    if (again) {
      whole = longer;
      with_history = true;
    }
    if (from == 0) break;
  }
  event.add("failed", failed)
      .add("of", kRepeats)
      .add("with_history", with_history);
  const std::string name =
      options_.out.empty()
          ? ""
          : options_.out + "/failure-" + std::to_string(failures_.size());
  if (!name.empty()) write_file(name + ".whole.program", to_text(whole));
  if (!again) {
    judges_leak_ = false;
    tell(event.add("files", name));
    return;
  }
  // What also fails if no work is left between two steps is shrunk in this way,
  // so that the small program does not depend on speed.
  int slow = 0;
  executor_.set_steady(!judges_leak_);
  const auto calm = in_new_processes(whole, 1, &slow);
  const bool steady = !judges_leak_ && calm.has_value();
  if (steady) again = calm;
  // A flaky failure gets more than one chance to show itself.
  const int tries = failed == kRepeats ? 1 : kRepeats;
  const Shrunk small = shrink(
      machine_, whole, *again,
      [&](const Program& trial) {
        int count = 0;
        executor_.set_steady(steady);
        return in_new_processes(trial, tries, &count);
      },
      std::chrono::milliseconds(
          static_cast<long>(1000 * options_.shrink_seconds)));
  executor_.set_steady(false);
  const std::string story_of_it = story(small.program, small.failure);
  if (!name.empty()) {
    write_file(name + ".program", to_text(small.program));
    write_file(name + ".txt", story_of_it);
    write_file(name + ".cu",
               standalone(machine_, small.program, small.failure));
  }
  event.add("shrunk_row", small.failure.row)
      .add("shrunk_step", to_text(small.failure.step))
      .add("shrunk_seen", small.failure.seen)
      .add("shrunk_wanted", small.failure.wanted)
      .add("steps", small.program.steps.size())
      .add("runs", small.runs)
      .add("finished", small.finished)
      .add("steady", steady)
      .add("story", story_of_it)
      .add("files", name);
  judges_leak_ = false;
  tell(event);
}

int Search::run() {
  tell(Json::object()
           .add("event", "machine")
           .add("granule", machine_.granule)
           .add("legacy", machine_.legacy)
           .add("pools", machine_.pools)
           .add("words", machine_.words)
           .add("managed", machine_.managed));
  Random seeds(options_.seed);
  double told = 0;
  while (options_.programs == 0 || programs_ < options_.programs) {
    if (passed() > options_.seconds) break;
    const uint64_t seed = seeds.next();
    Random choice(seed);
    const int processes =
        options_.processes != 0 ? options_.processes : 2 + choice.below(3);
    Generator generator(machine_, processes, coverage_, seed);
    const int steps = 80 + choice.below(100);
    const Program program = generator.make(steps, choice.chance(10));
    for (const Step& step : program.steps)
      on_memory_ += step.op >= Op::kWriteWord && step.op <= Op::kHostRead;
    ++programs_;
    if (executor_.started() != role_starts_) history_.clear();
    role_starts_ = executor_.started();
    auto failure = executor_.run(program);
    if (!failure) failure = leaks(program);
    if (executor_.started() == role_starts_ || !history_.empty()) {
      history_.push_back(program);
      if (history_.size() > kHistory) history_.erase(history_.begin());
    }
    if (failure) {
      if (!history_.empty()) history_.pop_back();
      examine(program, *failure);
      executor_.end_roles();
      history_.clear();
      if (static_cast<int>(failures_.size()) >= options_.failures) break;
    }
    if (passed() - told >= 1) {
      told = passed();
      progress(false);
    }
  }
  progress(true);
  return failures_.empty() ? 0 : 1;
}

}  // namespace

Known::Known(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::invalid_argument(path + ": cannot be read");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    Entry entry;
    if (!std::getline(fields, entry.row, '\t') ||
        !std::getline(fields, entry.operation, '\t') ||
        !std::getline(fields, entry.check, '\t') ||
        !std::getline(fields, entry.seen, '\t'))
      throw std::invalid_argument(path + ": not four fields: " + line);
    entries_.push_back(entry);
  }
}

bool Known::matches(const Failure& failure) const {
  const auto fits = [](const std::string& wanted, const std::string& seen) {
    return wanted == "*" || wanted == seen;
  };
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& one) {
    return fits(one.row, failure.row) &&
           fits(one.operation, name_of(failure.step.op)) &&
           fits(one.check, failure.check) && fits(one.seen, failure.seen);
  });
}

int search(const Options& options) { return Search(options).run(); }

int replay(const std::string& path, int times, const Options& options) {
  const Program program = read_program(path);
  const Known known = options.known.empty() ? Known() : Known(options.known);
  Executor executor(
      [&](const Failure& failure) { return known.matches(failure); });
  int failed = 0;
  std::optional<Failure> seen;
  for (int i = 0; i < times; ++i) {
    executor.end_roles();
    if (auto failure = executor.run(program)) {
      ++failed;
      seen = std::move(failure);
    }
  }
  Json event = seen ? event_of("failure", *seen)
                    : Json::object().add("event", "no failure");
  tell(event.add("failed", failed)
           .add("of", times)
           .add("steps", executor.steps() / times)
           .add("story", seen ? story(program, *seen) : ""));
  return failed == 0 ? 0 : 1;
}

}  // namespace ipclab::explore
