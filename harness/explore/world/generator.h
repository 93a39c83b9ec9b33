// Makes random programs whose results are defined, and goes for the pairs that
// no program has combined yet.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "harness/explore/world/coverage.h"
#include "harness/explore/world/program.h"
#include "harness/explore/world/shadow.h"

namespace ipclab::explore {

/// The same numbers on every machine (splitmix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  /// 0 to count - 1; count must not be 0.
  int below(int count) {
    return static_cast<int>(next() % static_cast<uint64_t>(count));
  }
  /// True in `percent` of 100 calls.
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  const T& of(const std::vector<T>& all) {
    return all[static_cast<size_t>(below(static_cast<int>(all.size())))];
  }
  int of(std::initializer_list<int> all) {
    return all.begin()[below(static_cast<int>(all.size()))];
  }

 private:
  uint64_t state_;
};

class Generator {
 public:
  /// `coverage` is read to choose what is missing, and counts each program.
  Generator(const Machine& machine, int processes, Coverage& coverage,
            uint64_t seed);

  /// A program of about `steps` steps that ends with nothing left. `lives` is
  /// whether processes may end in it, which costs a start.
  Program make(int steps, bool lives);

 private:
  struct Place {
    int64_t at, bytes;
  };
  using Action = void (Generator::*)();

  bool emit(Step step);
  void name_gpus(Step& step) const;
  Step by(int process);
  Step by(int process, int thread);
  int number() { return next_id_++; }
  int some_process();
  int other_process(int than);
  int free_thread(int process);
  int some_stream(const Step& actor);
  int own_stream(int process);
  int gate_kind();
  std::vector<int> views_of(int process) const;
  std::vector<int> views_of(int process, const Memory* memory) const;
  Place some_place(int64_t bytes, int64_t most);
  Place place_of(int view);
  bool write_somewhere(const Step& actor, int view, Place place, int stream);
  Step some_read(Step actor, int view, Place place, int stream);
  void look_at(int view);
  bool look_at_unread();
  void open_gates(int percent);
  void settle(int process);

  // Objects, with what they need.
  int new_memory(int process);
  int new_memory(int process, Kind kind);
  int memory_of(int process, Kind kind, bool imported);
  int share(int view, int process);
  int share_legacy(int view, int process);
  int share_chunk(int view, int process);
  int room_for(int64_t bytes, int process, int64_t* at) const;
  int share_pool(int view, int process);
  int new_event(int process);
  int event_in(int event, int process);

  // What a program does next.
  void work();
  void hand_over();
  void hand_over(int event);
  void peek();
  void hold_host();
  void words();
  void graph();
  void set_up();
  void take_down();
  void ask();
  bool call(Op op);
  void refuse();
  void inquire();
  void change_thread();
  void current_pool();
  void together();
  void synchronise();
  void remap();
  void pool_round();
  void hold(int process);
  void end_process();
  bool give_access(int mapping, int access);
  void ask_access(int mapping);
  void capture(const Step& actor, int graph, int stream, bool kernels);
  bool node(Step step, int view, bool kernel);
  bool update(int graph);
  void crowd();

  bool single(Op op, int process = -1, int stream = 0);
  bool missing_copy();
  void chase();
  bool take_down_one(bool all);
  void finish();

  const Machine machine_;
  const int processes_;
  Coverage& coverage_;
  Random random_;
  uint64_t seed_;
  Shadow shadow_;
  Program program_;
  int next_id_ = 1, next_gate_ = 0, next_group_ = 1;
  int group_ = 0;
  bool lives_ = false;
  /// What was written, and not looked at since.
  struct Unread {
    std::weak_ptr<Memory> memory;
    Place place;
  };
  std::vector<Unread> unread_;
};

}  // namespace ipclab::explore
