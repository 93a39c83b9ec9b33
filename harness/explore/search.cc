// SPDX-License-Identifier: Apache-2.0
#include "harness/explore/search.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>

#include "harness/explore/executor.h"
#include "harness/explore/times.h"
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
// A call that did not answer in ten seconds gets less time when it is replayed.
constexpr std::chrono::milliseconds kHangAgain{3000};

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
        machine_(first_answer()),
        coverage_(machine_) {}

  int run();

 private:
  Machine first_answer();
  bool is_known(const Failure& failure);
  void progress(bool last);
  void tick();
  void one_program();
  int share_of_lives();
  void examine(const Program& program, const Failure& failure);
  void examine_once(const Program& program, const Failure& failure);
  void replay_and_shrink(const Program& program, const Failure& failure,
                         Json& event);
  std::optional<Failure> in_new_processes(const Program& program, int tries,
                                          int* failed, bool all_new = true);
  Shrunk smallest(const Program& whole, const Failure& failure, int tries,
                  bool all_new, Times::Clock::time_point end);
  std::optional<Failure> leaks(const Program& program);
  double passed() const {
    return std::chrono::duration<double>(Times::Clock::now() - begin_).count();
  }
  Times::Clock::time_point after(double seconds) const {
    return begin_ + std::chrono::duration_cast<Times::Clock::duration>(
                        std::chrono::duration<double>(seconds));
  }

  const Options options_;
  const Known known_;
  const Times::Clock::time_point begin_ = Times::Clock::now();
  double told_ = 0;
  std::string unfinished_;  // what was waited for at the end of the time
  long programs_ = 0;
  long long on_memory_ = 0;  // steps that are work on memory
  std::map<std::string, int> deviations_;
  std::map<std::string, bool> met_;  // rows of known deviations
  std::map<std::string, int> failures_;
  std::set<std::string> examined_;  // from then on they are known
  std::vector<Program> history_;
  int role_starts_ = 0;
  Executor::Rest rest_;  // after the program before, in the same processes
  bool judges_leak_ = false;
  int vain_leaks_ = 0, skipped_leaks_ = 0;
  Executor executor_;
  const Machine machine_;
  Coverage coverage_;
  Random seeds_{options_.seed};
};

std::string signature(const Failure& failure) {
  return failure.row + "\t" + name_of(failure.step.op) + "\t" + failure.check;
}

bool Search::is_known(const Failure& failure) {
  if (examined_.count(signature(failure)) != 0) return true;
  if (!known_.matches(failure)) return false;
  met_[failure.row] = true;
  if (++deviations_[signature(failure)] == 1)
    tell(event_of("known", failure).raw("seconds", std::to_string(passed())));
  return true;
}

Machine Search::first_answer() {
  executor_.set_gpus(options_.gpus);
  executor_.set_end(after(options_.seconds + kExtraSeconds));
  executor_.set_on_wait([this] { tick(); });
  return executor_.machine();
}

void Search::progress(bool last) {
  told_ = passed();
  Json event = Json::object()
                   .add("event", last ? "end" : "progress")
                   .add("programs", programs_)
                   .add("steps", executor_.steps())
                   .add("on_memory", on_memory_)
                   .add("processes", executor_.started())
                   .raw("seconds", std::to_string(passed()))
                   .add("times", executor_.times().to_json());
  if (last)
    event.add("slowest", executor_.slowest(10)).add("unfinished", unfinished_);
  else
    event.add("doing", std::string(executor_.times().activity()) + ": " +
                           executor_.doing());
  tell(event);
}

void Search::tick() {
  if (passed() - told_ >= 1) progress(false);
}

std::optional<Failure> Search::in_new_processes(const Program& program,
                                                int tries, int* failed,
                                                bool all_new) {
  std::optional<Failure> seen;
  for (int i = 0; i < tries; ++i) {
    if (all_new) executor_.end_roles();
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
  // To look costs many processes. A driver that makes something for itself now
  // and then is looked at less and less often.
  if (skipped_leaks_++ < (1 << vain_leaks_) - 1) return std::nullopt;
  skipped_leaks_ = 0;
  rest_ = {};
  executor_.times().set_activity("leak");
  auto failure = executor_.leak(program, options_.alone);
  executor_.times().set_activity("search");
  if (!failure && vain_leaks_ < 20) ++vain_leaks_;
  return failure;
}

// A failure counts only if it comes again in new processes. If it needs what
// the processes did before, the program gets the programs before it.
void Search::examine(const Program& program, const Failure& failure) {
  if (++failures_[signature(failure)] > 1) return;
  examine_once(program, failure);
  examined_.insert(signature(failure));
}

void Search::examine_once(const Program& program, const Failure& failure) {
  Json event = event_of("failure", failure);
  event.add("program", programs_).raw("seconds", std::to_string(passed()));
  if (options_.shrink_seconds <= 0) {
    tell(event);
    return;
  }
  // If the search is ended from outside, the failure has been told.
  tell(event_of("found", failure)
           .add("program", programs_)
           .raw("seconds", std::to_string(passed())));
  // What is found later has its share of the time.
  const double end = options_.seconds + kExtraSeconds;
  const double budget = std::min(options_.shrink_seconds,
                                 std::max(kExtraSeconds, (end - passed()) / 2));
  executor_.set_end(after(std::min(end, passed() + budget)));
  judges_leak_ = failure.check == "leak";
  executor_.set_ahead(!judges_leak_);
  if (failure.check == "hang") executor_.set_patience(kHangAgain);
  try {
    replay_and_shrink(program, failure, event);
  } catch (const OutOfTime&) {
    event.add("why", "the time was over in " + executor_.doing());
  }
  executor_.set_patience(Deadlines().answer);
  executor_.set_ahead(false);
  executor_.set_steady(false);
  executor_.set_lasting(false);
  judges_leak_ = false;
  executor_.end_roles();
  executor_.set_end(after(end));
  executor_.times().set_activity("search");
  tell(event.raw("examined", std::to_string(passed())));
}

// Tries smaller programs until `end`. Without `all_new`, processes that still
// answer run one after the other.
Shrunk Search::smallest(const Program& whole, const Failure& failure, int tries,
                        bool all_new, Times::Clock::time_point end) {
  executor_.set_lasting(!all_new);
  const auto fails = [&](const Program& trial) {
    int count = 0;
    try {
      return in_new_processes(trial, tries, &count, all_new);
    } catch (const OutOfTime&) {
      return std::optional<Failure>();  // the shrinker sees the time, too
    }
  };
  const Shrunk small = shrink(machine_, whole, failure, fails, end);
  executor_.set_lasting(false);
  return small;
}

void Search::replay_and_shrink(const Program& program, const Failure& failure,
                               Json& event) {
  const std::string name =
      options_.out.empty()
          ? ""
          : options_.out + "/failure-" + std::to_string(failures_.size());
  event.add("files", name);
  Program whole = program;
  if (!name.empty()) write_file(name + ".whole.program", to_text(whole));
  executor_.times().set_activity("replay");
  int failed = 0, of = 0;
  std::optional<Failure> again;
  bool with_history = false;
  const auto repeat = [&](const Program& one) {
    failed = of = 0;
    for (; of < kRepeats; ++of)
      if (auto seen = in_new_processes(one, 1, &failed)) again = seen;
  };
  const auto add_counts = [&] {
    event.add("failed", failed).add("of", of).add("with_history", with_history);
    if (!name.empty() && again)
      write_file(name + ".whole.program", to_text(whole));
  };
  try {
    repeat(whole);
    // After many streams, two of them may share a queue of the GPU.
    const bool needs_history = failure.seen != kWaitsForHeld;
    for (size_t back = 1; !again && needs_history && !history_.empty();
         back *= 4) {
      const size_t from = history_.size() - std::min(back, history_.size());
      std::vector<Program> all(history_.begin() + static_cast<long>(from),
                               history_.end());
      all.push_back(program);
      whole = joined(all);
      with_history = true;
      repeat(whole);
      if (from == 0) break;
    }
  } catch (const OutOfTime&) {
    add_counts();
    throw;
  }
  add_counts();
  if (!again) {
    event.add("why", "it did not come again");
    return;
  }
  executor_.times().set_activity("shrink");
  // A flaky failure gets more than one chance to show itself.
  const int tries = failed == kRepeats ? 1 : kRepeats;
  const auto in_time = [&](const Program& trial, int times) {
    int count = 0;
    try {
      return in_new_processes(trial, times, &count);
    } catch (const OutOfTime&) {
      return std::optional<Failure>();
    }
  };
  // What also fails if no work is left between two steps is shrunk in this way,
  // so that the small program does not depend on speed.
  executor_.set_steady(!judges_leak_);
  const auto calm = in_time(whole, 1);
  const bool steady = !judges_leak_ && calm.has_value();
  executor_.set_steady(steady);
  if (steady) again = calm;
  // It is tried in living processes first. What these found has to fail in new
  // ones, too. A leak, or a failure that needs what was before, has new ones.
  const bool all_new = judges_leak_ || with_history;
  const auto now = Times::Clock::now();
  Shrunk small = smallest(
      whole, *again, tries, all_new,
      all_new ? executor_.end() : now + (executor_.end() - now) * 3 / 4);
  if (!all_new && small.runs > 0) {
    const auto alone = in_time(small.program, tries);
    if (Times::Clock::now() >= executor_.end())
      event.add("why", "no time was left to try the small program once more");
    else if (!alone || !alone->same_as(small.failure))
      small = smallest(whole, *again, tries, true, executor_.end());
  }
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
      .add("story", story_of_it);
}

// How many percent of the programs end processes and start new ones. Where a
// start takes longer than five programs, it may take a fifth of the time.
int Search::share_of_lives() {
  constexpr int kUsual = 10, kRare = 2;
  constexpr double kDear = 0.1;
  const double starts = executor_.times().seconds("search", "start");
  return starts / std::max(executor_.started(), 1) > kDear ? kRare : kUsual;
}

void Search::one_program() {
  const uint64_t seed = seeds_.next();
  Random choice(seed);
  const int processes =
      options_.processes != 0 ? options_.processes : 2 + choice.below(3);
  const Program program = [&] {
    const Times::Phase phase(executor_.times(), "generate");
    Machine machine = machine_;
    // Its hangs cost more than all else, and one sight of it is enough.
    machine.records_wait = met_["LEVT-13"];
    Generator generator(machine, processes, coverage_, seed);
    const int steps = 70 + choice.below(80);
    return generator.make(steps, choice.chance(share_of_lives()));
  }();
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
  }
}

int Search::run() {
  tell(Json::object()
           .add("event", "machine")
           .add("granule", machine_.granule)
           .add("legacy", machine_.legacy)
           .add("pools", machine_.pools)
           .add("words", machine_.words)
           .add("managed", machine_.managed)
           .add("gpus", machine_.gpus)
           .add("side_by_side", machine_.side_by_side));
  double written = 0;
  const auto write_pairs = [&] {
    if (options_.out.empty()) return;
    write_file(options_.out + "/pairs.json", coverage_.to_json());
    written = passed();
  };
  try {
    while ((options_.programs == 0 || programs_ < options_.programs) &&
           passed() <= options_.seconds &&
           static_cast<int>(failures_.size()) < options_.failures) {
      one_program();
      tick();
      if (passed() - written >= 1) write_pairs();
    }
  } catch (const OutOfTime&) {
    unfinished_ = executor_.doing();  // in a program, which is not judged
  }
  executor_.end_roles();
  write_pairs();
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
  executor.set_gpus(program.gpus);
  if (executor.machine().gpus < program.gpus)
    throw std::invalid_argument(path + ": the program needs " +
                                std::to_string(program.gpus) +
                                " GPUs that are peers");
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
