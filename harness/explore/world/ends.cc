// SPDX-License-Identifier: Apache-2.0
#include "harness/explore/world/ends.h"

#include <algorithm>
#include <iterator>

namespace ipclab::explore {
namespace {

Op end_of(const View& view) {
  const Kind kind = view.memory->kind;
  if (is_mapped(kind)) return Op::kUnmap;
  if (kind == Kind::kPool) return Op::kFree;
  if (kind != Kind::kLegacy) return Op::kHostFree;
  return view.imported ? Op::kCloseMemory : Op::kFree;
}

Step step_of(Op op, int process) {
  Step step;
  step.op = op;
  step.process = process;
  return step;
}

void open_gates(const Shadow& shadow,
                const std::function<bool(const Step&)>& make) {
  std::vector<Step> closed;
  for (const auto& [id, gate] : shadow.gates) {
    if (gate.open) continue;
    closed.push_back(step_of(Op::kOpenGate, gate.process));
    closed.back().on = id;
    closed.back().value = gate.word;
  }
  std::for_each(closed.begin(), closed.end(), make);
}

void end_captures(const Shadow& shadow,
                  const std::function<bool(const Step&)>& make) {
  std::vector<Step> all;
  for (const auto& [id, graph] : shadow.graphs) {
    if (graph.ready) continue;
    all.push_back(step_of(Op::kEndCapture, graph.process));
    all.back().on = id;
    all.back().thread = graph.thread;
    all.back().stream = graph.stream;
  }
  std::for_each(all.begin(), all.end(), make);
}

}  // namespace

std::vector<Step> ends_of(const Shadow& shadow) {
  std::vector<Step> all;
  const auto add = [&](Op op, int process, int id) {
    all.push_back(step_of(op, process));
    all.back().on = id;
  };
  const auto add_each = [&](const auto& objects, Op op) {
    for (const auto& [id, one] : objects) add(op, one.process, id);
  };
  for (const auto& [id, view] : shadow.views)
    add(end_of(view), view.process, id);
  add_each(shadow.chunks, Op::kReleaseChunk);
  add_each(shadow.ranges, Op::kUnreserve);
  add_each(shadow.pools, Op::kDestroyPool);
  add_each(shadow.events, Op::kDestroyEvent);
  for (const auto& [id, graph] : shadow.graphs)
    if (graph.ready) add(Op::kDestroyGraph, graph.process, id);
  add_each(shadow.handles, Op::kDropHandle);
  for (const auto& [id, stream] : shadow.streams)
    if (id > 0) add(Op::kDestroyStream, stream.process, id);
  return all;
}

void end_all(const Shadow& shadow,
             const std::function<bool(const Step&)>& make) {
  open_gates(shadow, make);
  end_captures(shadow, make);
  for (int p = 0; p < shadow.processes; ++p) {
    if (shadow.process[static_cast<size_t>(p)].current_pool != 0)
      make(step_of(Op::kSetPool, p));
    make(step_of(Op::kSyncDevice, p));
  }
  // An import goes before its owner, and a mapping before its reservation.
  for (bool more = true; more && !shadow.is_clean();) {
    const std::vector<Step> ends = ends_of(shadow);
    more = std::count_if(ends.begin(), ends.end(), make) != 0;
  }
}

}  // namespace ipclab::explore
