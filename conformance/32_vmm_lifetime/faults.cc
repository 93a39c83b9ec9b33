// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// Gives a mapping other memory. Returns false if this fails.
bool replace(CUdeviceptr begin) {
  const size_t bytes = mappings.get(begin).bytes;
  const CUmemLocation place = location_at(begin);
  const Chunk other = new_chunk(bytes, place);
  if (other == 0) return false;
  cudaDeviceSynchronize();
  DRIVER_CALL(cuMemUnmap)(begin, bytes);
  DRIVER_CALL(cuMemMap)(begin, bytes, 0, other, 0);
  allow(begin, bytes, on_gpu(place.id));
  DRIVER_CALL(cuMemRelease)(other);
  return true;
}

// Replaces the memory of all mappings of imports, or of all mappings of
// exported memory. Returns false if nothing was replaced.
bool replace_all(bool imported) {
  bool any = false;
  for (const auto& [begin, mapped] : mappings.all())
    if (imports.has(mapped.chunk) == imported &&
        (imported || exports.has(mapped.chunk)))
      any = replace(begin) || any;
  return any;
}

// Has the process that exported the memory ended?
bool owner_is_dead() {
  const auto pid = static_cast<pid_t>(told("owner", 0));
  return pid != 0 && has_ended(pid);
}

// Tells other processes when the exporter has released and unmapped a chunk
// that it had exported.
int tell_when_given_up(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  static Table<Chunk> held;  // only by mappings
  if (call.is("cuMemExportToShareableHandle"))
    tell_processes("owner", static_cast<unsigned long long>(getpid()));
  if (call.is("cuMemRelease") && exports.has(call.at<Chunk>(0)))
    held.put(call.at<Chunk>(0));
  for (const auto& [chunk, unused] : held.all())
    if (!is_mapped(chunk)) {
      held.erase(chunk);
      exports.erase(chunk);
      tell_processes("given up", 1);
    }
  return code;
}

bool owner_gave_up() { return told("given up", 0) != 0 || owner_is_dead(); }

// When an importer gives up a reference (`by`), the exporter loses the memory.
int importer_takes(Call& call, const char* by) {
  if (call.is(by) && (call.is("cuMemUnmap") ? is_import(call.at<CUdeviceptr>(0))
                                            : imports.has(call.at<Chunk>(0))))
    tell_processes("taken", 1);
  if (is_use(call) && imports.all().empty() && told("taken", 0) != 0) {
    static std::atomic<bool> done{false};
    if (!done.exchange(true) && replace_all(false)) call.fired();
  }
  return call.proceed();
}

int memory_back_at_address_free(Call& call) {
  static Table<CUdeviceptr, std::vector<Chunk>> kept;
  if (call.is("cuMemUnmap")) {
    const CUdeviceptr begin = call.at<CUdeviceptr>(0);
    const Chunk held = retain(begin);
    const int code = call.proceed();
    if (held == 0) return code;
    if (code != kSuccess) {
      DRIVER_CALL(cuMemRelease)(held);
      return code;
    }
    kept.change([&](auto& all) { all[begin].push_back(held); });
    call.fired();
    return code;
  }
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  const size_t bytes = call.at<size_t>(1);
  const int code = call.proceed();
  for (const auto& [address, chunks] : kept.all())
    if (code == kSuccess && address >= begin && address < begin + bytes) {
      for (const Chunk chunk : chunks) DRIVER_CALL(cuMemRelease)(chunk);
      kept.erase(address);
    }
  return code;
}

int import_needs_open_descriptor(Call& call) {
  struct Source {
    int number = -1;
    ino_t file = 0;
  };
  static Table<Chunk, Source> sources;
  if (call.is("cuMemCreate")) {
    const int code = call.proceed();
    if (code == kSuccess) sources.erase(*call.at<Chunk*>(0));
    return code;
  }
  if (call.is("cuMemImportFromShareableHandle")) {
    const int number = imports_descriptor(call) ? descriptor_of(call) : -1;
    const int code = call.proceed();
    if (code == kSuccess)
      sources.put(*call.at<Chunk*>(0), {number, identity(number)});
    return code;
  }
  const Source source = sources.get(call.at<Chunk>(3));
  if (source.file == identity(source.number)) return call.proceed();
  return refused(call);
}

Table<CUdeviceptr, std::pair<size_t, Import>> mapped;

// Updates the tables above after a call that succeeded.
void note_exporter(Call& call) {
  if (call.is("cuMemExportToShareableHandle")) {
    if (call.at<CUmemAllocationHandleType>(2) == kFd)
      tell_processes(key_of_descriptor(*call.at<int*>(0)),
                     static_cast<unsigned long long>(getpid()));
  } else if (call.is("cuMemImportFromShareableHandle")) {
    if (!imports_descriptor(call)) return;
    const std::string key = key_of_descriptor(descriptor_of(call));
    const auto exporter = told(key, 0);
    imported.put(*call.at<Chunk*>(0), {exporter, has_died(exporter)});
  } else if (call.is("cuMemRelease")) {
    imported.erase(call.at<Chunk>(0));
  } else if (call.is("cuMemMap")) {
    if (imported.has(call.at<Chunk>(3)))
      mapped.put(call.at<CUdeviceptr>(0),
                 {call.at<size_t>(1), imported.get(call.at<Chunk>(3))});
  } else if (call.is("cuMemUnmap")) {
    mapped.erase(call.at<CUdeviceptr>(0));
  }
}

int noted_exporter(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess) note_exporter(call);
  return code;
}

int exit_ends_descriptors(Call& call) {
  static Table<std::string> exported;
  static const int set_up = std::atexit([] {
    for (const auto& each : exported.all())
      tell_processes("exited-" + each.first, 1);
  });
  if (call.is("cuMemExportToShareableHandle")) {
    const int code = call.proceed();
    if (code == kSuccess && call.at<CUmemAllocationHandleType>(2) == kFd)
      exported.put(key_of_descriptor(*call.at<int*>(0)));
    return code;
  }
  if (set_up != 0 || !imports_descriptor(call)) return call.proceed();
  const std::string key = key_of_descriptor(descriptor_of(call));
  if (told("exited-" + key, 0) != 0 && told("imported-" + key, 0) == 0)
    return refused(call);
  const int code = call.proceed();
  if (code == kSuccess) tell_processes("imported-" + key, 1);
  return code;
}

// Only exports of 1 GiB and more count.
int imports_count_as_memory(Call& call) {
  constexpr auto kLarge = "bytes of a large export";
  static std::atomic<size_t> used{0};
  static auto& counted = *new Table<Chunk, size_t>;
  if (call.is("cuMemExportToShareableHandle")) {
    const int code = call.proceed();
    const size_t bytes = created.get(call.at<Chunk>(1));
    if (code == kSuccess && bytes >= size_t{1} << 30)
      tell_processes(kLarge, bytes);
    return code;
  }
  if (call.is("cuMemRelease")) {
    used -= counted.get(call.at<Chunk>(0));
    counted.erase(call.at<Chunk>(0));
  }
  if (!call.is("cuMemImportFromShareableHandle")) return call.proceed();
  size_t total = 0;
  DRIVER_CALL(cuDeviceTotalMem)(&total, 0);
  const size_t bytes = told(kLarge, 0);
  if (used + bytes > total) return refused(call, CUDA_ERROR_OUT_OF_MEMORY);
  const int code = call.proceed();
  if (code == kSuccess && counted.put(*call.at<Chunk*>(0), bytes))
    used += bytes;
  return code;
}

// The contexts in which memory was imported.
Table<Chunk, CUcontext> import_contexts;

void note_context(Call& call) {
  if (call.is("cuMemImportFromShareableHandle"))
    import_contexts.put(*call.at<Chunk*>(0), current_context());
  else if (call.is("cuMemCreate"))  // with the number of an earlier import
    import_contexts.erase(*call.at<Chunk*>(0));
}

int never_mapped_is_kept(Call& call) {
  static auto& mapped_before = *new Table<Chunk>;
  if (call.is("cuMemRelease")) {
    const auto chunk = call.at<Chunk>(0);
    if (created.has(chunk) && !released.has(chunk) &&
        !mapped_before.has(chunk)) {
      released.put(chunk);
      return lost(call);
    }
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemMap"))
    mapped_before.put(call.at<Chunk>(3));
  else if (call.is("cuMemCreate"))
    mapped_before.erase(*call.at<Chunk*>(0));
  return code;
}

// After a call that succeeded: counts how often a handle was retained, from
// its creation or import on. Is this the 256th time?
bool is_256th_retain(Call& call) {
  static auto& counts = *new Table<Chunk, int>;
  const Chunk chunk = *call.at<Chunk*>(0);
  const int before =
      call.is("cuMemRetainAllocationHandle") ? counts.get(chunk) : -1;
  counts.put(chunk, before + 1);
  return before == 255;
}

int lost_in_newer_context(Call& call) {
  static std::atomic<int> clock{0};
  static auto& seen = *new Table<CUcontext, int>;
  static auto& given = *new Table<CUdeviceptr, int>;
  const bool copies = call.is("cudaMemcpy");
  const int code = copies ? kSuccess : call.proceed();
  const CUcontext context = current_context();
  if (!seen.has(context)) seen.put(context, ++clock);
  if (!copies) {
    if (code == kSuccess && call.is("cuMemSetAccess"))
      given.put(call.at<CUdeviceptr>(0), ++clock);
    return code;
  }
  for (const Role role : {kPointer, kSource}) {
    const CUdeviceptr begin = mapping_at(call.value<CUdeviceptr>(role));
    if (begin != 0 && given.has(begin) && seen.get(context) > given.get(begin))
      return lost(call);
  }
  return call.proceed();
}

// The chunks that this process has imported, and the processes that had
// exported them. (All descriptors of NVIDIA's driver have one key. Therefore
// this is the last process that had exported a chunk when this process imported
// it.)
Table<Chunk, unsigned long long> creators;

bool creator_has_ended(unsigned long long creator) {
  return creator != 0 && creator != this_process() &&
         has_ended(static_cast<pid_t>(creator));
}

std::string creator_key(int descriptor) {
  return "creator-" + std::to_string(identity(descriptor));
}

int noted_creator(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemExportToShareableHandle") && call.at<int>(2) == kFd) {
    const std::string key = creator_key(*call.at<int*>(0));
    tell_processes(key, this_process());
    tell_processes("size-of-" + key, created.get(call.at<Chunk>(1)));
  }
  if (call.is("cuMemImportFromShareableHandle") && imports_descriptor(call))
    creators.put(*call.at<Chunk*>(0),
                 told(creator_key(descriptor_of(call)), 0));
  if (call.is("cuMemCreate")) creators.erase(*call.at<Chunk*>(0));
  return code;
}

// New memory with the values of a chunk; 0 if the driver refuses it.
Chunk copied_memory(Chunk chunk, size_t bytes) {
  const CUmemLocation location = properties_of(chunk).location;
  const Chunk copy = new_chunk(bytes, location);
  CUdeviceptr place = 0;
  cudaFree(nullptr);  // the copy needs a context
  if (copy == 0 || DRIVER_CALL(cuMemAddressReserve)(&place, 2 * bytes, 0, 0,
                                                    0) != CUDA_SUCCESS)
    return 0;
  DRIVER_CALL(cuMemMap)(place, bytes, 0, chunk, 0);
  DRIVER_CALL(cuMemMap)(place + bytes, bytes, 0, copy, 0);
  allow(place, 2 * bytes, location);
  DRIVER_CALL(cuMemcpyDtoD)(place + bytes, place, bytes);
  cudaDeviceSynchronize();
  DRIVER_CALL(cuMemUnmap)(place, 2 * bytes);
  DRIVER_CALL(cuMemAddressFree)(place, 2 * bytes);
  return copy;
}

int late_import_is_copy(Call& call) {
  static Table<std::string> known;
  if (!call.is("cuMemImportFromShareableHandle") || !imports_descriptor(call))
    return noted_creator(call);
  const std::string key = creator_key(descriptor_of(call));
  const bool late = !known.has(key) && user_has_ended(key);
  const int code = noted_creator(call);
  if (code != kSuccess) return code;
  if (!late) {
    known.put(key);
    return code;
  }
  Chunk& made = *call.at<Chunk*>(0);
  const Chunk copy = copied_memory(made, told("size-of-" + key, kGranule));
  if (copy == 0) return code;
  DRIVER_CALL(cuMemRelease)(made);
  made = copy;
  call.fired();
  return code;
}

// A copy or a memset that waits in a stream of the importer when the creator
// ends is lost: the memory gets its old values back.
int queued_work_ends_with_creator(Call& call) {
  struct Queued {
    void* before = nullptr;
    size_t bytes = 0;
    unsigned long long creator = 0;
    cudaStream_t stream = nullptr;
  };
  static Table<CUdeviceptr, Queued> queued;
  if (is_use(call)) {
    for (const auto& [place, one] : queued.all()) {
      const bool gone = creator_has_ended(one.creator);
      if (is_busy(one.stream)) continue;
      queued.erase(place);
      if (!gone) continue;  // the work was done before the end
      DRIVER_CALL(cuMemcpyDtoD)(place, number(one.before), one.bytes);
      cudaDeviceSynchronize();
      call.fired();
    }
    return call.proceed();
  }
  if (call.find(kStream) == nullptr) return noted_creator(call);
  const auto place = call.value<CUdeviceptr>(kPointer);
  Queued one;
  one.bytes = call.value<size_t>(kBytes);
  one.stream = call.value<cudaStream_t>(kStream);
  one.creator = creators.get(mappings.get(mapping_at(place)).chunk);
  if (one.creator == 0 || creator_has_ended(one.creator) ||
      !is_busy(one.stream) || cudaMalloc(&one.before, one.bytes) != cudaSuccess)
    return call.proceed();
  DRIVER_CALL(cuMemcpyDtoDAsync)
  (number(one.before), place, one.bytes, one.stream);
  queued.put(place, one);
  return call.proceed();
}

FAULTS {
  fault("release-frees-mapped", {"VMM-27"},
        "releasing the handle frees memory that is still mapped")
      .before({kRelease, kMap, kUnmap}, [](Call& call) {
        if (call.is("cuMemRelease"))
          for (const auto& [begin, mapped] : mappings.all())
            if (mapped.chunk == call.at<Chunk>(0) && replace(begin)) {
              // Other chunks may get the same handle.
              mappings.put(begin, {mapped.bytes, 0});
              call.fired();
            }
        return kSuccess;
      });

  fault("vmm-owner-frees", {"VMM-28", "VMM-30", "LIFE-06"},
        "all imports end when an exporter gives up memory that it has "
        "exported, or ends")
      .on({kRelease, kUnmap, kMap, kExport, kImport, kLaunch, kCopy},
          [](Call& call) {
            if (is_use(call) && !imports.all().empty() && owner_gave_up()) {
              static std::atomic<bool> done{false};
              if (!done.exchange(true) && replace_all(true)) call.fired();
            }
            return tell_when_given_up(call);
          });

  fault("fd-does-not-pin", {"VMM-29", "LIFE-07"},
        "after an exporter has given up memory that it has exported, or has "
        "ended, each import gives other memory")
      .on({kRelease, kUnmap, kMap, kExport, kImport}, [](Call& call) -> int {
        if (call.is("cuMemImportFromShareableHandle"))
          return noted_import(call, owner_gave_up());
        if (call.is("cuMemMap")) return map_other_memory(call, false);
        return tell_when_given_up(call);
      });

  fault("import-needs-owner", {"VMM-29", "LIFE-07"},
        "after an exporter has given up memory that it has exported, or has "
        "ended, each import is refused")
      .on({kImport, kRelease, kUnmap, kMap, kExport}, [](Call& call) -> int {
        if (!call.is("cuMemImportFromShareableHandle"))
          return tell_when_given_up(call);
        if (!owner_gave_up()) return call.proceed();
        return refused(call);
      });

  fault("importer-release-frees", {"VMM-27"},
        "an exporter loses all memory that it has exported when an importer "
        "releases a handle")
      .on({kRelease, kUnmap, kMap, kExport, kImport, kLaunch, kCopy},
          [](Call& call) { return importer_takes(call, "cuMemRelease"); });

  fault("importer-unmap-frees", {"VMM-27"},
        "an exporter loses all memory that it has exported when an importer "
        "unmaps memory")
      .on({kUnmap, kRelease, kMap, kExport, kImport, kLaunch, kCopy},
          [](Call& call) { return importer_takes(call, "cuMemUnmap"); });

  fault("unmap-ends-aliases", {"VMM-27"},
        "when one mapping of an allocation is unmapped, its other mappings "
        "lose their memory")
      .on({kUnmap, kMap}, [](Call& call) {
        const Chunk chunk = call.is("cuMemUnmap")
                                ? mappings.get(call.at<CUdeviceptr>(0)).chunk
                                : Chunk{0};
        const int code = call.proceed();
        if (code != kSuccess || chunk == 0) return code;
        for (const auto& [begin, mapped] : mappings.all())
          if (mapped.chunk == chunk && replace(begin)) call.fired();
        return code;
      });

  fault("vmm-leak", {"VMM-30", "SERV-02"},
        "memory that was mapped once is never given back")
      .before({kUnmap}, [](Call& call) -> bool {
        return retain(call.at<CUdeviceptr>(0)) != 0;
      });

  fault("memory-back-at-address-free", {"VMM-30"},
        "unmapped memory is given back when its addresses are freed")
      .on({kUnmap, kFreeAddress}, memory_back_at_address_free);

  fault("retained-release-lost", {"VMM-30"},
        "the release of a retained handle does nothing")
      .on({kRetain, kRelease}, [](Call& call) {
        static Table<Chunk, int> retained;
        if (call.is("cuMemRetainAllocationHandle")) {
          const int code = call.proceed();
          const Chunk chunk = *call.at<Chunk*>(0);
          if (code == kSuccess) retained.put(chunk, retained.get(chunk) + 1);
          return code;
        }
        const Chunk chunk = call.at<Chunk>(0);
        if (retained.get(chunk) == 0) return call.proceed();
        retained.put(chunk, retained.get(chunk) - 1);
        return accepted(call);
      });

  fault("leak-if-released-first", {"VMM-30", "LIFE-01"},
        "memory is never given back if its handle was released before the "
        "memory was unmapped")
      .on({kRelease}, WHEN(is_mapped(call.at<Chunk>(0))), accepted);

  fault("leak-if-unmapped-first", {"VMM-30"},
        "memory is never given back if the memory was unmapped before its "
        "handle was released")
      .before({kUnmap}, [](Call& call) -> bool {
        const CUdeviceptr begin = call.at<CUdeviceptr>(0);
        return mappings.has(begin) &&
               !released.has(mappings.get(begin).chunk) && retain(begin) != 0;
      });

  fault("import-needs-open-descriptor", {"VMM-15", "VMM-25", "VMM-27"},
        "an import cannot be mapped after its descriptor is closed")
      .on({kImport, kMap, kCreate}, import_needs_open_descriptor);

  fault("import-unmapped-ends-with-owner", {"LIFE-06"},
        "an import that is not mapped when the exporter dies is lost")
      .on({kExport, kImport, kRelease, kMap, kUnmap}, [](Call& call) -> int {
        if (!call.is("cuMemMap")) return noted_exporter(call);
        const Import import = imported.get(call.at<Chunk>(3));
        return !import.orphan && has_died(import.exporter)
                   ? refused(call, CUDA_ERROR_INVALID_VALUE)
                   : noted_exporter(call);
      });

  fault("access-needs-owner", {"LIFE-07"},
        "access to an import cannot be set after the exporter has died")
      .on({kExport, kImport, kRelease, kMap, kUnmap, kSetAccess},
          [](Call& call) -> int {
            if (!call.is("cuMemSetAccess")) return noted_exporter(call);
            const auto one = mapped.get(call.at<CUdeviceptr>(0));
            return has_died(one.second.exporter) ? refused(call)
                                                 : noted_exporter(call);
          });

  fault("import-frozen-at-death", {"LIFE-06"},
        "after the exporter has died, synchronous copies and memsets to an "
        "import do nothing")
      .on({kExport, kImport, kRelease, kMap, kUnmap, kCopy, kSet},
          [](Call& call) -> int {
            if (call.find(kBytes) == nullptr || call.is("cuMemMap") ||
                call.is("cuMemUnmap"))
              return noted_exporter(call);
            for (const auto& [begin, one] : mapped.all())
              if (call.value<CUdeviceptr>(kPointer) - begin < one.first &&
                  has_died(one.second.exporter))
                return lost(call);
            return call.proceed();
          });

  fault("second-import-needs-owner", {"LIFE-07"},
        "a second import is refused after the exporter has died")
      .on({kExport, kImport}, [](Call& call) -> int {
        static Table<int>
            before;  // a duplicate of each descriptor that was imported
        if (!call.is("cuMemImportFromShareableHandle") ||
            !imports_descriptor(call))
          return noted_exporter(call);
        const int descriptor = descriptor_of(call);
        for (const auto& each : before.all())
          if (name_the_same(each.first, descriptor))
            return has_died(told(key_of_descriptor(descriptor), 0))
                       ? refused(call)
                       : noted_exporter(call);
        const int code = noted_exporter(call);
        if (code == kSuccess)
          before.put(fcntl(descriptor, F_DUPFD_CLOEXEC, 300));
        return code;
      });

  fault("exit-ends-descriptors", {"LIFE-07"},
        "if an exporter has exited before the first import, its descriptors "
        "cannot be imported")
      .on({kExport, kImport}, exit_ends_descriptors);

  fault("leak-if-mapped-twice", {"VMM-30"},
        "memory that has two mappings at once is never given back")
      .on({kMap, kUnmap}, [](Call& call) {
        const CUdeviceptr first =
            call.is("cuMemMap") ? mapping_of(call.at<Chunk>(3)) : 0;
        const int code = call.proceed();
        if (code == kSuccess && first != 0 && retain(first) != 0) call.fired();
        return code;
      });

  fault("second-import-leaks", {"VMM-15", "VMM-30", "LIFE-01"},
        "the memory of every second import of a process is never given back")
      .on({kImport}, [](Call& call) {
        static std::atomic<int> count{0};
        const int code = call.proceed();
        if (code != kSuccess || ++count % 2 != 0) return code;
        Chunk kept = 0;
        if (DRIVER_CALL(cuMemImportFromShareableHandle)(
                &kept, call.at<void*>(1),
                call.at<CUmemAllocationHandleType>(2)) == CUDA_SUCCESS)
          call.fired();
        return code;
      });

  fault("handle-ends-with-context", {"VMM-27"},
        "memory cannot be mapped after the end of the context in which it was "
        "created or imported")
      .on({kCreate, kImport, kMap, "cuCtxDestroy"}, [](Call& call) {
        static auto& contexts = *new Table<Chunk, CUcontext>;
        static auto& ended = *new Table<CUcontext>;
        if (call.is("cuMemMap") &&
            ended.has(contexts.get(call.at<Chunk>(3), nullptr)))
          return refused(call);
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (call.is("cuCtxDestroy")) {
          ended.put(call.at<CUcontext>(0));
        } else if (!call.is("cuMemMap")) {
          ended.erase(current_context());
          contexts.put(*call.at<Chunk*>(0), current_context());
        }
        return code;
      });

  fault("reservation-ends-with-context", {"VMM-27"},
        "memory cannot be mapped at addresses after the end of the context in "
        "which they were reserved")
      .on({kReserve, kFreeAddress, kMap, "cuCtxDestroy"}, [](Call& call) {
        static auto& contexts = *new Table<CUdeviceptr, CUcontext>;
        static auto& ended = *new Table<CUcontext>;
        if (call.is("cuMemMap") &&
            ended.has(
                contexts.get(reservation_at(call.at<CUdeviceptr>(0)), nullptr)))
          return refused(call);
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (call.is("cuCtxDestroy")) {
          ended.put(call.at<CUcontext>(0));
        } else if (call.is("cuMemAddressReserve")) {
          ended.erase(current_context());
          contexts.put(*call.at<CUdeviceptr*>(0), current_context());
        }
        return code;
      });

  fault("chunk-set-in-own-context", {"VMM-27"},
        "a memset is lost in a context other than that in which memory was "
        "mapped")
      .on({kSet, kMap, kUnmap}, [](Call& call) -> int {
        static auto& contexts = *new Table<CUdeviceptr, CUcontext>;
        if (!call.is("cudaMemset")) {
          const int code = call.proceed();
          if (code == kSuccess && call.is("cuMemMap"))
            contexts.put(call.at<CUdeviceptr>(0), current_context());
          return code;
        }
        const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
        if (begin == 0 || contexts.get(begin) == current_context())
          return call.proceed();
        return lost(call);
      });

  fault("imports-count-as-memory", {"VMM-15"},
        "a process can import memory of 1 GiB or more only as often as it "
        "would fit into the GPU")
      .on({kImport, kExport, kRelease}, imports_count_as_memory);

  fault("second-export-leaks", {"VMM-30"},
        "memory that was exported twice is never given back")
      .on({kExport, kCreate, kImport}, [](Call& call) {
        const bool again = call.is("cuMemExportToShareableHandle") &&
                           exports.has(call.at<Chunk>(1));
        const int code = call.proceed();
        if (code == kSuccess && again &&
            call.at<CUmemAllocationHandleType>(2) == kFd &&
            fcntl(*call.at<int*>(0), F_DUPFD_CLOEXEC, 300) >= 0)
          call.fired();
        return code;
      });

  fault("retain-counts-twice", {"VMM-30"},
        "retaining a handle takes two references, so that memory is never "
        "given back")
      .on({kRetain}, [](Call& call) {
        const int code = call.proceed();
        if (code == kSuccess && retain(call.at<CUdeviceptr>(1)) != 0)
          call.fired();
        return code;
      });

  fault("leak-in-used-place", {"VMM-30"},
        "memory is never given back if it is mapped where other memory was "
        "mapped before")
      .on({kMap, kFreeAddress}, [](Call& call) {
        static auto& former = *new Table<CUdeviceptr, Chunk>;
        const CUdeviceptr begin = call.at<CUdeviceptr>(0);
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (call.is("cuMemAddressFree")) {
          for (const auto& [each, chunk] : former.all())
            if (each - begin < call.at<size_t>(1)) former.erase(each);
          return code;
        }
        const auto chunk = call.at<Chunk>(3);
        if (former.get(begin, chunk) != chunk && retain(begin) != 0)
          call.fired();
        former.put(begin, chunk);
        return code;
      });

  fault("unmapped-import-leaks", {"VMM-15"},
        "the release of an import that was never mapped does nothing")
      .on({kImport, kMap, kRelease}, [](Call& call) -> int {
        static auto& idle = *new Table<Chunk>;
        if (call.is("cuMemRelease"))
          return idle.erase(call.at<Chunk>(0)) ? accepted(call)
                                               : call.proceed();
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (call.is("cuMemMap"))
          idle.erase(call.at<Chunk>(3));
        else
          idle.put(*call.at<Chunk*>(0));
        return code;
      });

  fault("refused-map-leaks", {"VMM-30"},
        "memory of a refused mapping is never given back")
      .on_refusal({kMap}, [](Call& call) {
        const auto bytes = call.at<size_t>(1);
        CUdeviceptr aside = 0;
        DRIVER_CALL(cuMemAddressReserve)(&aside, bytes, 0, 0, 0);
        if (DRIVER_CALL(cuMemMap)(aside, bytes, 0, call.at<Chunk>(3), 0) ==
            CUDA_SUCCESS)
          call.fired();
        return call.code();
      });

  fault(
      "leak-if-read-only", {"VMM-30"},
      "memory that could only be read when it was unmapped is never given back")
      .on({kUnmap}, [](Call& call) {
        const CUdeviceptr begin = call.at<CUdeviceptr>(0);
        if (!mappings.has(begin) || access_of(begin, location_at(begin)) !=
                                        CU_MEM_ACCESS_FLAGS_PROT_READ)
          return call.proceed();
        const Chunk kept = retain(begin);
        const int code = call.proceed();
        if (kept != 0 && code == kSuccess) call.fired();
        if (kept != 0 && code != kSuccess) DRIVER_CALL(cuMemRelease)(kept);
        return code;
      });

  fault("retained-release-clears", {"VMM-27"},
        "the second release of a handle that was retained clears memory that "
        "is still mapped")
      .on({kRetain, kRelease, kImport, kCreate, kMap, kUnmap}, [](Call& call) {
        static auto& retained = *new Table<Chunk>;
        const bool last = call.is("cuMemRelease") &&
                          retained.has(call.at<Chunk>(0)) &&
                          released.has(call.at<Chunk>(0));
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (call.is("cuMemRetainAllocationHandle"))
          retained.put(*call.at<Chunk*>(0));
        if (!last) return code;
        const CUdeviceptr begin = mapping_of(call.at<Chunk>(0));
        if (begin != 0 &&
            DRIVER_CALL(cuMemsetD8)(begin, 0, mappings.get(begin).bytes) ==
                CUDA_SUCCESS)
          call.fired();
        return code;
      });

  fault("refused-export-leaks", {"VMM-30"},
        "a refused export of mapped memory keeps this memory for ever")
      .on_refusal({kExport}, [](Call& call) {
        const CUdeviceptr begin = mapping_of(call.at<Chunk>(1));
        return begin != 0 && retain(begin) != 0;
      });

  fault("refused-import-leaks", {"VMM-30"},
        "an import of a good descriptor that is refused because of the type "
        "WIN32 keeps the memory for ever")
      .on({kImport}, [](Call& call) {
        const int code = call.proceed();
        Chunk kept = 0;
        if (code != kSuccess &&
            call.at<CUmemAllocationHandleType>(2) == CU_MEM_HANDLE_TYPE_WIN32 &&
            DRIVER_CALL(cuMemImportFromShareableHandle)(
                &kept, call.at<void*>(1), kFd) == CUDA_SUCCESS)
          call.fired();
        return code;
      });

  fault("second-gpu-keeps-memory", {"VMM-30"},
        "memory to which a second GPU had access is never given back")
      .with_gpus(2)
      .after({kSetAccess}, [](Call& call) -> int {
        const auto& [location, flags] = *call.at<const CUmemAccessDesc*>(2);
        if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || location.id != 1 ||
            flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
          return kSuccess;
        const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
        if (begin != 0 && retain(begin) != 0) call.fired();
        return kSuccess;
      });

  fault("context-end-unmaps-imports", {"VMM-27"},
        "the end of a context unmaps the memory that was imported while it was "
        "current")
      .on({"cuCtxDestroy", kImport, kCreate, kMap, kUnmap}, [](Call& call) {
        if (!call.is("cuCtxDestroy")) {
          const int code = call.proceed();
          if (code == kSuccess) note_context(call);
          return code;
        }
        const auto ending = call.at<CUcontext>(0);
        for (const auto& [begin, mapped] : mappings.all())
          if (import_contexts.has(mapped.chunk) &&
              import_contexts.get(mapped.chunk) == ending &&
              DRIVER_CALL(cuMemUnmap)(begin, mapped.bytes) == CUDA_SUCCESS) {
            mappings.erase(begin);
            call.fired();
          }
        return call.proceed();
      });

  fault("import-copied-in-own-context", {"VMM-27"},
        "a synchronous copy moves imported memory only in the context in which "
        "it was imported")
      .on({kCopy, kImport, kCreate, kMap, kUnmap}, [](Call& call) {
        if (!call.is("cudaMemcpy")) {
          const int code = call.proceed();
          if (code == kSuccess) note_context(call);
          return code;
        }
        for (const Role role : {kPointer, kSource}) {
          const CUdeviceptr begin = mapping_at(call.value<CUdeviceptr>(role));
          const Chunk chunk = mappings.get(begin).chunk;
          if (begin != 0 && import_contexts.has(chunk) &&
              import_contexts.get(chunk) != current_context())
            return lost(call);
        }
        return call.proceed();
      });

  fault("never-mapped-leaks", {"VMM-30"},
        "memory that its creator has never mapped is never given back")
      .on({kRelease, kCreate, kMap, kUnmap}, never_mapped_is_kept);

  fault("second-import-after-release-fresh", {"VMM-29"},
        "after the creator has released its memory, the mapping of a second "
        "import is new memory")
      .on({kImport, kRelease, kExport, kCreate, kMap}, [](Call& call) -> int {
        static std::atomic<int> so_far{0};
        static auto& later = *new Table<Chunk>;
        if (call.is("cuMemMap"))
          return later.has(call.at<Chunk>(3)) ? map_new_instead(call)
                                              : call.proceed();
        const bool gives_up =
            call.is("cuMemRelease") && exports.has(call.at<Chunk>(0));
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (gives_up) tell_processes("released", 1);
        const bool is_import = call.is("cuMemImportFromShareableHandle");
        if (is_import || call.is("cuMemCreate"))
          later.erase(*call.at<Chunk*>(0));
        if (is_import && told("released", 0) != 0 && ++so_far >= 2)
          later.put(*call.at<Chunk*>(0));
        return code;
      });

  fault("leak-if-no-access", {"VMM-30"},
        "memory that was mapped but never got access is never given back")
      .on({kMap, kUnmap, kSetAccess}, [](Call& call) {
        static auto& fresh = *new Table<CUdeviceptr>;
        const auto begin = call.at<CUdeviceptr>(0);
        if (call.is("cuMemUnmap") && fresh.erase(begin) && retain(begin) != 0)
          call.fired();
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (call.is("cuMemMap")) fresh.put(begin);
        if (call.is("cuMemSetAccess"))
          for (const auto& each : fresh.all())
            if (each.first - begin < call.at<size_t>(1))
              fresh.erase(each.first);
        return code;
      });

  fault("access-untold-after-release", {"VMM-28"},
        "an importer is told that it has no access after the exporter has "
        "released its handle")
      .on({kGetAccess, kImport, kExport, kRelease, kMap, kUnmap},
          [](Call& call) {
            constexpr auto kReleased = "released by the exporter";
            const bool gives_up =
                call.is("cuMemRelease") && exports.has(call.at<Chunk>(0));
            const int code = call.proceed();
            if (code != kSuccess) return code;
            if (gives_up) tell_processes(kReleased, 1);
            if (call.is("cuMemGetAccess") &&
                is_import(call.at<CUdeviceptr>(2)) &&
                *call.at<unsigned long long*>(0) != 0 &&
                told(kReleased, 0) != 0) {
              *call.at<unsigned long long*>(0) = 0;
              call.fired();
            }
            return code;
          });

  fault("retain-256-uncounted", {"VMM-30"},
        "the 256th retain of a handle does not count as a reference")
      .on({kRetain, kCreate, kImport}, [](Call& call) {
        const int code = call.proceed();
        if (code == kSuccess && is_256th_retain(call) &&
            DRIVER_CALL(cuMemRelease)(*call.at<Chunk*>(0)) == CUDA_SUCCESS)
          call.fired();
        return code;
      });

  fault("retain-256-leaks", {"VMM-30"},
        "memory whose handle was retained more than 255 times is never given "
        "back")
      .on({kRetain, kCreate, kImport}, [](Call& call) {
        const int code = call.proceed();
        if (code == kSuccess && is_256th_retain(call) &&
            retain(call.at<CUdeviceptr>(1)) != 0)
          call.fired();
        return code;
      });

  fault("chunk-copy-in-newer-context-lost", {"VMM-27"},
        "a synchronous copy of memory of cuMemCreate does nothing in a context "
        "that is used only after the access was set")
      .on({kCopy, "cudaSetDevice", kImport, kMap, kUnmap, kSetAccess},
          lost_in_newer_context);

  fault("exit-clears-exported-chunk", {"LIFE-06"},
        "when a process exits that has exported memory of cuMemCreate mapped, "
        "all imported memory of cuMemCreate is cleared")
      .on({kCreate, kImport, kExport, kMap, kUnmap, kLaunch, kCopy},
          exit_clears_chunks<&exports, &imports>);

  fault("reset-clears-exported-chunk", {"LIFE-06"},
        "when the creator of memory of cuMemCreate resets its device, the "
        "memory is cleared")
      .before({kReset}, [](Call& call) { clear_mapped(exports, call); });

  fault("death-clears-rest-of-chunk", {"LIFE-06"},
        "when the creator of memory of cuMemCreate ends, only the first 2 MiB "
        "of the memory keep their values")
      .on({kImport, kExport, kMap, kUnmap, kLaunch, kCopy},
          [](Call& call) -> int {
            if (!is_use(call)) return noted_creator(call);
            for (const auto& [begin, mapped] : mappings.all()) {
              if (mapped.bytes <= kGranule ||
                  !creator_has_ended(creators.get(mapped.chunk)))
                continue;
              creators.erase(mapped.chunk);
              DRIVER_CALL(cuMemsetD8)
              (begin + kGranule, 0, mapped.bytes - kGranule);
              call.fired();
            }
            return call.proceed();
          });

  fault("late-chunk-import-is-copy", {"LIFE-07"},
        "a process that imports memory of cuMemCreate for the first time after "
        "the end of its creator gets a copy")
      .on({kCreate, kImport, kExport}, late_import_is_copy);

  fault("queued-copy-ends-with-creator", {"LIFE-06"},
        "a copy to memory of cuMemCreate is lost if the creator ends while the "
        "copy waits in its stream")
      .on({kCreate, kImport, kExport, kMap, kUnmap, kLaunch, kCopy, kCopyAsync},
          queued_work_ends_with_creator);

  fault("queued-set-ends-with-creator", {"LIFE-06"},
        "a memset of memory of cuMemCreate is lost if the creator ends while "
        "the memset waits in its stream")
      .on({kCreate, kImport, kExport, kMap, kUnmap, kLaunch, kCopy, kSetAsync},
          queued_work_ends_with_creator);

  fault("reset-ends-descriptors", {"LIFE-07"},
        "after a process that has exported memory of cuMemCreate has reset its "
        "device, no other process can import such memory")
      .on({kReset, kExport, kImport}, [](Call& call) -> int {
        // All descriptors of NVIDIA's driver have one identity.
        static const std::string key = "reset-of-an-exporter";
        static std::atomic<bool> exported{false};
        if (resets(call)) {
          if (exported) tell_processes(key, this_process());
          return call.proceed();
        }
        if (call.is("cuMemExportToShareableHandle")) {
          const int code = call.proceed();
          if (code == kSuccess && call.at<CUmemAllocationHandleType>(2) == kFd)
            exported = true;
          return code;
        }
        const auto by = imports_descriptor(call) ? told(key, 0) : 0;
        return by != 0 && by != this_process() ? refused(call) : call.proceed();
      });
}

}  // namespace
}  // namespace ipclab::faults
