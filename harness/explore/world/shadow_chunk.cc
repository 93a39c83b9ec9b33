// Memory of cuMemCreate: handles, descriptors, reservations, mappings.
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/explore/world/shadow.h"

namespace ipclab::explore {

bool Shadow::chunk_step(const Step& step, Expected* expected) {
  if (step.op == Op::kDropHandle) {
    if (handles.erase(step.on) == 0) return no("no such handle");
    return true;
  }
  const int me = step.process;
  if (machine.granule == 0) return no("no virtual memory management here");
  const int64_t granule = machine.granule;
  const auto chunk = chunks.find(step.on);
  const bool has_chunk = chunk != chunks.end() && chunk->second.process == me;
  const auto range_of = [&](int id) {
    const auto found = ranges.find(id);
    return found != ranges.end() && found->second.process == me ? &found->second
                                                                : nullptr;
  };
  const View* view = view_of(step.on, me);
  const bool is_mapping = view != nullptr && view->range != 0;
  // Of these calls, the ones that change a mapping may wait for work.
  const bool calm = quiet(me);
  switch (step.op) {
    case Op::kCreateChunk: {
      if (!fresh(step.id) || step.bytes <= 0 || step.bytes % granule != 0 ||
          step.bytes > 8 * granule)
        return no("no such size of a chunk");
      if (!calm) return no("the process holds work");
      if (step.how != kOnGpu && !(step.how == kOnNode && machine.nodes))
        return no("no such place");
      const Kind kind = step.how == kOnNode ? Kind::kNode : Kind::kChunk;
      chunks[step.id] = {me, std::make_shared<Memory>(kind, me, step.bytes),
                         false, step.id};
      expected->row = step.how == kOnNode ? "MNGD-15" : "VMM-01";
      return true;
    }
    case Op::kExportChunk: {
      // Not described: another export of memory that was imported.
      if (!has_chunk || chunk->second.imported || !fresh(step.id))
        return no("no such chunk of this process");
      Handle made;
      made.made_by = step.op;
      made.memory = chunk->second.memory;
      made.process = me;
      handles[step.id] = made;
      expected->row = "VMM-08";
      return true;
    }
    case Op::kImportChunk: {
      const auto handle = handles.find(step.on);
      if (handle == handles.end() ||
          handle->second.made_by != Op::kExportChunk || !fresh(step.id))
        return no("no such handle");
      // Not described: an import in the process that exported.
      if (handle->second.process == me) return no("its own export");
      if (!calm) return no("the process holds work");
      chunks[step.id] = {me, handle->second.memory, true, step.id};
      expected->row = "VMM-13";
      return true;
    }
    case Op::kReleaseChunk: {
      if (!has_chunk) return no("no such chunk");
      if (!calm) return no("the process holds work");
      if (chunk->second.memory.use_count() == 1 &&
          !unused(chunk->second.memory))
        return no("it may be in use");
      chunks.erase(chunk);
      expected->row = "VMM-27";
      return true;
    }
    case Op::kRetainChunk: {
      if (!is_mapping || !fresh(step.id)) return no("no such mapping");
      chunks[step.id] = {me, view->memory, view->imported, view->origin};
      expected->row = "VMM-32";
      return true;
    }
    case Op::kReserve: {
      if (!fresh(step.id) || step.bytes <= 0 || step.bytes % granule != 0 ||
          step.bytes > 16 * granule)
        return no("no such size of a reservation");
      if (!calm) return no("the process holds work");
      ranges[step.id] = {me, step.bytes};
      expected->row = "VMM-44";
      return true;
    }
    case Op::kUnreserve: {
      if (range_of(step.on) == nullptr) return no("no such reservation");
      for (const auto& [id, other] : views)
        if (other.range == step.on) return no("something is mapped there");
      if (!calm) return no("the process holds work");
      ranges.erase(step.on);
      expected->row = "VMM-26";
      return true;
    }
    case Op::kMap: {
      const Range* range = range_of(step.from);
      if (!has_chunk || range == nullptr || !fresh(step.id))
        return no("no such chunk or reservation");
      const MemoryPtr memory = chunk->second.memory;
      if (step.bytes != memory->bytes) return no("not the whole chunk");
      if (step.at < 0 || step.at % granule != 0 ||
          step.at + memory->bytes > range->bytes)
        return no("beyond the reservation");
      for (const auto& [id, other] : views)
        if (other.range == step.from && other.at < step.at + memory->bytes &&
            step.at < other.at + other.memory->bytes)
          return no("something is mapped there");
      if (!calm) return no("the process holds work");
      View made;
      made.process = me;
      made.memory = memory;
      made.imported = chunk->second.imported;
      made.range = step.from;
      made.at = step.at;
      made.access = made.cpu = 0;
      made.origin = chunk->second.origin;
      views[step.id] = made;
      expected->row = "VMM-25";
      return true;
    }
    case Op::kSetAccess: {
      if (!is_mapping ||
          (step.value != 0 && step.value != 1 && step.value != 3))
        return no("no such mapping or access");
      if (!calm) return no("the process holds work");
      // One call may reach several mappings, each after the last.
      std::vector<View*> reached;
      int64_t bytes = 0;
      for (int id = step.on; id != 0;) {
        View& one = views.at(id);
        if (!unused_by(one.memory, id)) return no("it may be in use");
        if (step.how < 0 || step.how > (one.memory->kind == Kind::kNode))
          return no("only the host's memory has access of the CPU");
        reached.push_back(&one);
        bytes += one.memory->bytes;
        id = 0;
        for (const auto& [next, other] : views)
          if (static_cast<int>(reached.size()) < step.rows &&
              other.range == one.range &&
              other.at == one.at + one.memory->bytes)
            id = next;
      }
      if (step.rows > 1 &&
          (bytes != step.bytes ||
           static_cast<int>(reached.size()) != step.rows || step.group != 0))
        return no("no such mappings in a row");
      for (View* one : reached)
        (step.how == kOnNode ? one->cpu : one->access) =
            static_cast<int>(step.value);
      expected->row = step.how == kOnNode ? "MNGD-15" : "VMM-18";
      return true;
    }
    default: {  // kUnmap
      if (!is_mapping) return no("no such mapping");
      if (!calm) return no("the process holds work");
      if (!unused_by(view->memory, step.on)) return no("it may be in use");
      views.erase(step.on);
      expected->row = "VMM-25";
      return true;
    }
  }
}

}  // namespace ipclab::explore
