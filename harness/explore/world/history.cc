// SPDX-License-Identifier: Apache-2.0
#include "harness/explore/world/history.h"

#include <algorithm>

namespace ipclab::explore {

Program joined(const std::vector<Program>& programs) {
  Program all;
  all.processes = 1;
  int ids = 0, groups = 0;
  int64_t gates = 0;
  for (const Program& program : programs) {
    int last_id = ids, last_group = groups;
    int64_t last_gate = gates;
    for (Step step : program.steps) {
      if (step.id > 0) step.id += ids;
      if (step.on > 0) step.on += ids;
      if (step.from > 0) step.from += ids;
      if (step.stream > 0) step.stream += ids;
      if (step.group > 0) step.group += groups;
      if (step.op == Op::kGate || step.op == Op::kOpenGate) {
        step.value += gates;
        last_gate = std::max(last_gate, step.value + 1);
      }
      last_id = std::max(last_id, step.id);
      last_group = std::max(last_group, step.group);
      all.steps.push_back(step);
    }
    ids = last_id;
    groups = last_group;
    gates = last_gate;
    all.processes = std::max(all.processes, program.processes);
    all.seed = program.seed;
    all.gpus = program.gpus;
  }
  return all;
}

}  // namespace ipclab::explore
