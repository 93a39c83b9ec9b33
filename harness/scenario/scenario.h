// A test whose roles are real processes. The test body is the referee and never
// uses CUDA. It starts this program again by exec for each role, and each new
// process runs one lambda. The referee passes on their steps and reports how
// each role ended.
//
//   TEST(LegacyMemory, ImporterSeesExporterWrites) {
//     covers("LMEM-01");
//     Scenario scenario;
//     scenario.role("exporter", [](Role& me) { … me.send("handle", handle); });
//     scenario.role("importer", [](Role& me) { me.receive<Handle>("handle");
//     }); scenario.run(10s);
//   }
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "role.h"

namespace ipclab {

using namespace std::chrono_literals;

/// Names the row of rows.json that this TEST judges. This is the first
/// statement of every conformance test.
void covers(const char* requirement);

/// Notes, in the referee, what was seen, without judging it.
void observe(const std::string& what);

/// Adds, in the referee, a line to a table of the report; see Role::tabulate().
/// Use this for a role that ended before it could add the line itself.
void tabulate(const std::string& table, const std::string& input,
              const Outcome& outcome);

/// Reports that a documented limit is not there any more: the verdict is
/// `lifted`.
void lifted(const std::string& what);

/// Reports that there is nothing to judge here; see Role::not_applicable().
void not_applicable(const std::string& why);

/// Something that a test needs from the machine: `gpus(2)`, `second_gpu`,
/// `alone`, or the name of a capability of capabilities.h.
struct Need {
  std::string capability;   ///< of capabilities.h; empty: none
  int gpus = 0;             ///< how many
  bool alone = false;       ///< no other test uses its GPUs meanwhile
  bool second_gpu = false;  ///< sees a second GPU if the machine has one
};
/// The machine has at least `count` GPUs.
inline Need gpus(int count) { return {"", count, false}; }
/// The test also judges a second GPU if the machine has one. A test without
/// this need sees only the GPUs that it asks for.
inline const Need second_gpu{"", 0, false, true};
/// No other test may use the same GPUs meanwhile: this test measures memory of
/// the whole device, starts very many processes, or waits for the GPU
/// very often. A test that is alone makes the run longer.
inline const Need alone{"", 0, true};

/// Skips the TEST, with the reason, unless the machine has all of these. If the
/// probe does not know whether the machine has them, the TEST is `broken`.
void needs(const std::vector<Need>& wanted);
/// The same for needs that are written one by one.
template <class... Needs>
void needs(const Need& first, const Needs&... more) {
  needs(std::vector<Need>{first, more...});
}

/// How a role ended.
struct Ended {
  bool reached_end = false;  ///< its body returned
  int signal = 0;            ///< 0: not by a signal
  int exit_code = -1;        ///< -1: by a signal
  bool hung = false;         ///< the referee had to end it
  std::string last_step;     ///< empty: none
  std::string last_call;     ///< of CUDA; empty: none
  /// The number of the last input that it tried; see Scenario::run_inputs().
  std::optional<size_t> last_input;
  std::string output;  ///< what it printed, capped
};

/// The outcome of the input at which a role stopped before its end: a crash, or
/// a hang if the referee had to end the role.
Outcome outcome_of(const Ended& ended);

/// An input at which a process died.
struct Death {
  std::string input;  ///< its name
  Outcome outcome;    ///< how the process died
};

/// The roles of a test and their run. See the example at the top of the file.
class Scenario {
 public:
  /// One role; configure it with .env(…), .may_end_by(…) and
  /// .in_new_process().
  class RoleSpec {
   public:
    /// Sets an environment variable of this role.
    RoleSpec& env(const std::string& name, const std::string& value) {
      environment[name] = value;
      return *this;
    }
    /// The role may be ended by this signal instead of reaching its end.
    RoleSpec& may_end_by(int signal) {
      signals.push_back(signal);
      return *this;
    }
    /// In a scenario that says kShared, this role gets a new process, which
    /// plays no other role. Use this if the test waits for the end of the
    /// process, ends the process, or changes it in a way that CUDA does not
    /// show.
    RoleSpec& in_new_process() {
      fresh = true;
      return *this;
    }

   private:
    friend class Scenario;
    friend class Referee;
    std::string name;
    int index = 0;
    std::function<void(Role&)> body;
    std::map<std::string, std::string> environment;
    std::vector<int> signals;
    bool fresh = false;

    bool may_share() const { return !fresh && environment.empty(); }
  };

  /// Which processes play the roles.
  enum Processes {
    kFresh,  ///< new processes, which start with the scenario
    /// If possible, processes of earlier roles of this program. Such a role was
    /// kShared and reached its end, no check failed, nothing is open, and
    /// CUDA's state is as in a new process. Use kShared only if the verdict
    /// does not depend on what a process did before, if the test does not wait
    /// for the end of a process, and if it measures no memory.
    kShared,
  };

  explicit Scenario(Processes processes = kFresh);  ///< Without roles yet.

  /// Adds a role, and the body that it runs in its own process.
  RoleSpec& role(const std::string& name, std::function<void(Role&)> body);

  /// `count` roles of one kind, "importer 0" to "importer <count - 1>". The
  /// number is Role::index().
  void roles(const std::string& name, int count,
             const std::function<void(Role&)>& body);

  /// Runs the whole scenario once for each order of these steps. The roles do
  /// the steps with Role::in_order().
  void every_order(std::vector<std::string> steps);

  /// Runs all roles to their end. Each failed check, crash and hang, and
  /// everything that a role leaves behind, becomes a failure of this TEST. At
  /// the deadline the scenario counts as hung. As long as roles still report
  /// new calls or steps, they get up to as much time again.
  void run(std::chrono::milliseconds deadline);

  /// Runs the scenario until the role of that name has tried each of `inputs`.
  /// The role gets them from Role::next_input(). Use this for inputs at which a
  /// process may die or lose its context. One process tries the inputs one
  /// after the other. If the role dies or returns early, all roles run again,
  /// and the role continues with the next input. So a role that cannot continue
  /// must return. Returns the inputs at which a process died.
  std::vector<Death> run_inputs(const std::string& role,
                                const std::vector<std::string>& inputs,
                                std::chrono::milliseconds deadline);

  /// How the role of that name ended in the last run. Throws
  /// std::invalid_argument if no such role has run.
  const Ended& ended(const std::string& role) const;

 private:
  void run_once(std::chrono::milliseconds deadline, int run,
                const std::vector<std::string>& order, size_t input);

  bool shared_;
  std::vector<std::unique_ptr<RoleSpec>> roles_;
  std::vector<std::string> steps_;
  std::vector<std::string> inputs_;
  std::map<std::string, Ended> ended_;
};

/// If a role died or hung, adds a line to the table for the input at which this
/// happened. The input is the role's last step.
void tabulate_end(const Scenario& scenario, const std::string& role,
                  const std::string& table);

/// Sets the expected and the seen value of the check that fails next in this
/// role, so that both are separate fields of the record.
void expected_but_saw(const std::string& expected, const std::string& seen);

/// main() of a program of scenarios. `print_probe` prints the probe's document
/// (harness/README.md, section 3). `as_new` says whether CUDA's state in this
/// process is as in a new process. Both are null in programs without CUDA.
int scenario_main(int argc, char** argv, void (*print_probe)(),
                  bool (*as_new)());

}  // namespace ipclab
