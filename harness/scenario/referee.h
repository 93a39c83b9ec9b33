// Runs the roles of one scenario once: starts them, passes on their steps,
// notices when no role can continue, ends them at the deadline, and reports how
// each role ended.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "board.h"
#include "idle.h"
#include "leaks.h"
#include "record.h"
#include "scenario.h"
#include "wire.h"

namespace ipclab {

class Referee {
 public:
  using RoleSpecs = std::vector<std::unique_ptr<Scenario::RoleSpec>>;

  /// `run` counts the runs of this TEST; `order` is empty unless the scenario
  /// has an every_order(). If `shared`, the processes may have played earlier
  /// roles and may play later ones. `input` is the index of the first input
  /// that has not been tried; see Scenario::run_inputs().
  Referee(const RoleSpecs& specs, int run, std::vector<std::string> order,
          bool shared, size_t input = 0);
  ~Referee();
  Referee(const Referee&) = delete;

  /// Runs until every role has ended; see Scenario::run(). At `limit` it ends
  /// also roles that still report new calls or steps.
  std::map<std::string, Ended> run(std::chrono::milliseconds deadline,
                                   std::chrono::milliseconds limit);

 private:
  struct Post {
    size_t from;
    std::string data;
    bool carries_descriptor;
    Descriptor descriptor;
  };

  struct Player {
    const Scenario::RoleSpec* spec = nullptr;
    RoleProcess process;
    bool had_played = false;  // its process has played an earlier role
    bool rests = false;       // its process waits for another role
    bool connected = true;
    bool alive = true;
    std::string waits_for;
    bool waiting = false;
    std::map<std::string, size_t> read;  // step -> posts already seen
    std::vector<std::string> received_from;
    std::string last_step;
    std::optional<size_t> last_input;
    std::string printed;
    size_t dropped = 0;  // bytes of output in the middle
    bool reached_end = false;
    bool failed = false;
    bool hung = false;
    int dies_by = 0;
    std::vector<std::string> steps_of_its_end;
    int status = 0;
    std::string ended = "was still there";
  };

  void start(size_t index);
  RoleProcess new_process(const Scenario::RoleSpec& spec, size_t index);
  /// When a role last reported a call or a step; 0 if none has.
  int64_t last_entry() const;
  void wait_for_events(int milliseconds);
  bool read_output(Player& player);  // false: nothing there now
  bool read_frames(Player& player);  // likewise
  void take(Player& player, Frame frame);
  void deliver(Player& player);
  void conclude(Player& player);
  void let_rest(Player& player);
  size_t index_of(const Player& player) const;
  void post_for(const Player& player, const std::string& step);
  bool stuck() const;
  void end_all();
  void end_idle_processes();
  void report_leaks();
  void collect();

  bool anyone_alive() const;
  std::string situation() const;
  std::string where(const Player& player) const;
  void fail(const Player* player, Record::Outcome outcome,
            const std::string& message);
  void fail_check(Player& player, const std::vector<std::string>& fields);

  const RoleSpecs& specs_;
  int run_;
  std::vector<std::string> order_;
  bool shared_;
  size_t input_;
  int64_t began_ns_;
  std::vector<std::unique_ptr<Player>> players_;
  std::map<std::string, std::vector<Post>> posts_;
  bool failed_ = false;
  bool stopped_ = false;  // a role has found that there is nothing to judge

  std::map<int, std::string> descriptors_before_;
  std::set<std::string> names_before_;
  std::vector<unsigned long long> memory_before_;
};

}  // namespace ipclab
