// SPDX-License-Identifier: Apache-2.0
#include "scenario.h"

#include <algorithm>
#include <stdexcept>

#include "capabilities.h"
#include "process.h"
#include "record.h"
#include "referee.h"

namespace ipclab {
namespace {

// Leaves the TEST. This exception means that GoogleTest already knows the
// verdict.
[[noreturn]] void leave_test() {
  throw testing::AssertionException(
      testing::TestPartResult(testing::TestPartResult::kSkip, nullptr, 0, ""));
}

void skip(const std::string& reason) { GTEST_SKIP() << reason; }

}  // namespace

void covers(const char* requirement) {
  Record::current().requirement = requirement;
}

void observe(const std::string& what) {
  Record::current().notes.push_back(what);
}

void tabulate(const std::string& table, const std::string& input,
              const Outcome& outcome) {
  Record::current().outcomes.push_back(
      {table, input, name_of(outcome.kind), outcome.code});
}

void lifted(const std::string& what) {
  Record::current().outcome(Record::kLifted, what);
}

void not_applicable(const std::string& why) { skip(why); }

void needs(const std::vector<Need>& wanted) {
  Record& record = Record::current();
  for (const Need& need : wanted)
    record.gpus = std::max(record.gpus, need.gpus);
  for (const Need& need : wanted) record.alone |= need.alone;
  for (const Need& need : wanted) record.second_gpu |= need.second_gpu;
  if (Process::self().listing || in_role()) return;
  for (const Need& need : wanted) {
    std::optional<std::string> reason;
    try {
      reason = missing(need);
    } catch (const std::exception& error) {
      record.outcome(Record::kBroken, error.what());
      ADD_FAILURE() << error.what();
      leave_test();
    }
    if (!reason) continue;
    record.outcome(Record::kNotApplicable, *reason);
    skip(*reason);
    leave_test();
  }
}

Outcome outcome_of(const Ended& ended) {
  if (ended.hung) return {Outcome::kHang, ""};
  return {Outcome::kCrash, ended.signal != 0
                               ? signal_name(ended.signal)
                               : "exit " + std::to_string(ended.exit_code)};
}

void tabulate_end(const Scenario& scenario, const std::string& role,
                  const std::string& table) {
  const Ended& ended = scenario.ended(role);
  if (!ended.reached_end) tabulate(table, ended.last_step, outcome_of(ended));
}

Scenario::Scenario(Processes processes) : shared_(processes == kShared) {
  Record::current().shared = shared_;
}

Scenario::RoleSpec& Scenario::role(const std::string& name,
                                   std::function<void(Role&)> body) {
  roles_.push_back(std::make_unique<RoleSpec>());
  RoleSpec& spec = *roles_.back();
  spec.name = name;
  spec.body = std::move(body);
  return spec;
}

void Scenario::roles(const std::string& name, int count,
                     const std::function<void(Role&)>& body) {
  for (int i = 0; i < count; ++i)
    role(name + " " + std::to_string(i), body).index = i;
}

void Scenario::every_order(std::vector<std::string> steps) {
  steps_ = std::move(steps);
  std::sort(steps_.begin(), steps_.end());
}

static const int64_t kStart = now_ns();  // of the program

// The referee of a slow scenario waits for twice its deadline, and at most this
// long: CTest ends a test after 120 seconds.
static constexpr std::chrono::milliseconds kLongest = 110s;

// `deadline`, or less if the runner ends the program earlier: IPCLAB_SECONDS
// after its start. Then the record has what the roles had reported.
static std::chrono::milliseconds within(std::chrono::milliseconds deadline) {
  const char* seconds = std::getenv("IPCLAB_SECONDS");
  if (seconds == nullptr) return deadline;
  const std::chrono::nanoseconds left(
      static_cast<int64_t>(std::atof(seconds) * 1e9) - (now_ns() - kStart));
  return std::clamp(std::chrono::duration_cast<std::chrono::milliseconds>(left),
                    std::chrono::milliseconds(1), deadline);
}

void Scenario::run(std::chrono::milliseconds deadline) {
  if (Process::self().listing) leave_test();
  std::vector<std::string> order = steps_;
  do {
    run_once(deadline, Process::self().runs++, order, 0);
    if (!in_role() && testing::Test::HasFailure()) return;
  } while (std::next_permutation(order.begin(), order.end()));
}

std::vector<Death> Scenario::run_inputs(const std::string& role,
                                        const std::vector<std::string>& inputs,
                                        std::chrono::milliseconds deadline) {
  if (Process::self().listing) leave_test();
  inputs_ = inputs;
  std::vector<Death> deaths;
  // One number for all these runs: a role of a later run does not know how many
  // runs there were.
  const int run = Process::self().runs++;
  for (size_t next = 0; next < inputs.size();) {
    run_once(deadline, run, {}, next);
    if (in_role() || testing::Test::HasFailure()) break;
    const Ended& end = ended(role);
    if (!end.last_input) {
      ADD_FAILURE() << role << " has ended before it tried an input";
      break;
    }
    if (!end.reached_end)
      deaths.push_back({inputs.at(*end.last_input), outcome_of(end)});
    next = *end.last_input + 1;
  }
  return deaths;
}

void Scenario::run_once(std::chrono::milliseconds deadline, int run,
                        const std::vector<std::string>& order, size_t input) {
  Process& self = Process::self();
  if (self.is_role) {
    if (run < self.place.run) return;  // this role is of a later run
    const RoleSpec& spec = *roles_.at(static_cast<size_t>(self.place.role));
    const auto body = [&](Role& me) {
      me.give_inputs(inputs_, self.place.input);
      spec.body(me);
    };
    play_role(spec.name, spec.index, order, body, shared_ && spec.may_share());
    leave_test();
  }
  const auto limit = std::max(deadline, std::min(2 * deadline, kLongest));
  ended_ = Referee(roles_, run, order, shared_, input)
               .run(within(deadline), within(limit));
}

const Ended& Scenario::ended(const std::string& role) const {
  static const Ended kUnknown;
  if (in_role()) return kUnknown;  // only the referee continues after a run
  const auto found = ended_.find(role);
  if (found == ended_.end())
    throw std::invalid_argument("no role '" + role + "' has run");
  return found->second;
}

}  // namespace ipclab
