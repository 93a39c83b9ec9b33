// SPDX-License-Identifier: Apache-2.0
// Branches, calls, barriers, the ends of threads and kernels, nanosleep.
#include "decode.h"
#include "grid.h"

namespace ipclab::ptx {
namespace {

void decode_bra(Decoder& d) {
  d.ignore({"uni"});
  d.expect_operands(1, 1);
  if (d.operand(0).kind != Operand::kName) d.unsupported();
  d.branch_to(d.operand(0).name);
}

void decode_brx(Decoder& d) {
  if (!d.take("idx")) d.unsupported();
  d.ignore({"uni"});
  d.expect_operands(2, 2);
  d.i.a = d.source(0, Type::kB32);
  d.branch_list(d.operand(1).name);
}

void decode_call(Decoder& d) {
  d.ignore({"uni"});
  d.call();
}

void decode_ret(Decoder& d) {
  d.ignore({"uni"});
  d.i.flow = Flow::kReturn;
}

void decode_exit(Decoder& d) { d.i.flow = Flow::kExit; }

void trap(Warp& warp, const Instruction& i, uint32_t) {
  warp.block->grid->fault(warp, i, 719, "trap");
}

void decode_trap(Decoder& d) { d.i.run = trap; }

void nothing(Warp&, const Instruction&, uint32_t) {}

void decode_nothing(Decoder& d) { d.i.run = nothing; }

/// bar.warp.sync mask: lanes meet, but exchange no values.
void decode_warp_barrier(Decoder& d) {
  if (!d.take("sync")) d.unsupported();
  d.expect_operands(1, 1);
  d.i.flow = Flow::kWarpSync;
  d.i.mode = kMeetOnly;
  d.i.e = d.source(0, Type::kB32);
  d.i.run = nothing;
}

void arrive_at_cluster(Warp& warp, const Instruction&, uint32_t mask) {
  Cluster& cluster = *warp.block->cluster;
  each_lane(mask, [&](int l) { warp.arrived_in[l] = cluster.phase; });
  const Grid& grid = *warp.block->grid;
  if (Observer* observer = grid.launch.observer)
    observer->arrive_at_cluster(grid.number_of(*warp.block), warp.index, mask,
                                grid.number_of(*cluster.blocks[0]));
  cluster.arrived += lane_count(mask);
  cluster.complete_barrier_if_done();
}

void decode_cluster_barrier(Decoder& d) {
  d.ignore({"release", "relaxed", "acquire", "aligned"});
  d.expect_operands(0, 0);
  if (d.take("arrive")) {
    d.i.run = arrive_at_cluster;
  } else if (d.take("wait")) {
    d.i.flow = Flow::kClusterWait;
  } else {
    d.unsupported();
  }
}

void decode_bar(Decoder& d) {
  if (d.take("cluster")) return decode_cluster_barrier(d);
  if (d.take("warp")) return decode_warp_barrier(d);
  d.ignore({"cta", "aligned"});
  const int what = d.take_one_of({"sync", "arrive", "red"});
  if (what < 0) d.unsupported();
  d.i.flow = Flow::kBarrier;
  d.i.mode = what == 1 ? kBarrierArrive : kBarrierSync;
  size_t next = 0;
  if (what == 2) {
    const int reduction = d.take_one_of({"popc", "and", "or"});
    if (reduction < 0) d.unsupported();
    d.i.mode = static_cast<uint8_t>(kBarrierPopc + reduction);
    d.i.d = d.destination(next++, d.take_type());
  }
  d.i.a = d.source(next++, Type::kB32);
  const size_t last = d.operands() - (what == 2 ? 1 : 0);
  if (next < last) d.i.b = d.source(next++, Type::kB32);
  if (what == 2) d.i.c = d.source(next, Type::kPred);
}

void decode_nanosleep(Decoder& d) {
  d.take_type();
  d.expect_operands(1, 1);
  d.i.a = d.source(0, Type::kB32);
  d.i.flow = Flow::kYield;  // any duration from zero on is allowed
  d.i.run = nothing;
}

void decode_dependency(Decoder& d) {
  d.ignore({"wait", "launch_dependents"});
  d.i.run = nothing;
}

}  // namespace

const DecodeTable& control_instructions() {
  static const auto& table = *new DecodeTable{
      {"bra", decode_bra},         {"brx", decode_brx},
      {"call", decode_call},       {"ret", decode_ret},
      {"exit", decode_exit},       {"trap", decode_trap},
      {"brkpt", decode_trap},      {"bar", decode_bar},
      {"barrier", decode_bar},     {"nanosleep", decode_nanosleep},
      {"pmevent", decode_nothing}, {"griddepcontrol", decode_dependency},
  };
  return table;
}

}  // namespace ipclab::ptx
