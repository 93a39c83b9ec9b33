// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "harness/faults/words/streams.h"
#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int free_needs_importers_free(Call& call) {
  static Table<void*, std::string> keys;
  const auto self = static_cast<unsigned long long>(getpid());
  if (!frees(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const bool imports = call.is("cudaMemPoolImportPointer");
    const std::string key = key_of_data(call.at<void*>(imports ? 2 : 0));
    keys.put(imports ? *call.at<void**>(0) : call.at<void*>(1), key);
    if (imports) tell_processes("user-" + key, self);
    return code;
  }
  void* const memory = call.at<void*>(0);
  const std::string key = keys.get(memory);
  const auto user = key.empty() ? 0 : told("user-" + key, 0);
  if (user != 0 && user != self && has_ended(static_cast<pid_t>(user)))
    return refused(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  keys.erase(memory);
  if (user == self) tell_processes("user-" + key, 0);
  return code;
}

// A reset does not give back the memory of the table.
int reset_keeps(Call& reset, Table<void*>& kept) {
  size_t bytes = 0;
  for (const auto& each : kept.all()) {
    bytes += size_of(number(each.first));
    kept.erase(each.first);
  }
  const int code = reset.proceed();
  void* gone = nullptr;
  if (bytes > 0 && cudaMalloc(&gone, bytes) == cudaSuccess) reset.fired();
  return code;
}

int context_end_keeps_memory(Call& call) {
  static Table<void*, CUcontext> owners;
  if (!call.is("cuCtxDestroy")) {
    const int code = call.proceed();
    if (call.is("cudaFree"))
      owners.erase(call.at<void*>(0));
    else if (code == kSuccess)
      owners.put(*call.at<void**>(0), current_context());
    return code;
  }
  const int device = current_device();
  size_t bytes = 0;
  for (const auto& [memory, owner] : owners.all())
    if (owner == call.at<CUcontext>(0)) {
      bytes += size_of(number(memory));
      owners.erase(memory);
    }
  const int code = call.proceed();
  CUcontext primary = nullptr;
  CUdeviceptr gone = 0;
  if (bytes == 0 ||
      DRIVER_CALL(cuDevicePrimaryCtxRetain)(&primary, device) != CUDA_SUCCESS)
    return code;
  DRIVER_CALL(cuCtxPushCurrent)(primary);
  if (DRIVER_CALL(cuMemAlloc)(&gone, bytes) == CUDA_SUCCESS) call.fired();
  DRIVER_CALL(cuCtxPopCurrent)(&primary);
  return code;
}

int importer_death_clears(Call& call) {
  if (is_use(call)) {
    const auto importer = static_cast<pid_t>(told("importer", 0));
    if (importer != 0 && !exports.all().empty() && has_ended(importer)) {
      tell_processes("importer", 0);
      for (const auto& [begin, mapped] : mappings.all())
        if (exports.has(mapped.chunk) && cleared(begin, mapped.bytes))
          call.fired();
    }
    return call.proceed();
  }
  const bool gives_back =
      call.is("cuMemUnmap") && is_import(call.at<CUdeviceptr>(0));
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemImportFromShareableHandle"))
    tell_processes("importer", static_cast<unsigned long long>(getpid()));
  else if (gives_back)
    tell_processes("importer", 0);
  return code;
}

int reset_completes_events(Call& call) {
  static Table<cudaEvent_t, unsigned long long> before;  // the last reset
  static std::atomic<unsigned> resets{0};
  const auto last = [](cudaEvent_t event) {
    return told("reset-" + event_keys.get(event), 0);
  };
  if (call.is("cudaDeviceReset")) {
    const auto self = static_cast<unsigned long long>(getpid());
    const auto reset = self << 32 | ++resets;
    for (const auto& [event, imported] : events.all()) {
      if (imported) tell_processes("reset-" + event_keys.get(event), reset);
      events.erase(event);
    }
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || is_imported(event)) return call.proceed();
  if (records(call)) {
    before.put(event, last(event));
    return call.proceed();
  }
  return last(event) != before.get(event) && is_pending(event) ? lost(call)
                                                               : call.proceed();
}

int lost_after_death(Call& call) {
  if (keeps_events(call)) {
    const std::string key = call.is("cudaEventDestroy")
                                ? event_keys.get(call.at<cudaEvent_t>(0))
                                : "";
    const bool ends =
        call.is("cudaEventDestroy") && is_imported(call.at<cudaEvent_t>(0));
    const int code = call.proceed();
    if (code == kSuccess && opens_event(call))
      tell_processes("opener-" + event_keys.get(*call.at<cudaEvent_t*>(0)),
                     static_cast<unsigned long long>(getpid()));
    if (code == kSuccess && ends) tell_processes("opener-" + key, 0);
    return code;
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !event_keys.has(event)) return call.proceed();
  const auto user = told("opener-" + event_keys.get(event), 0);
  return user != 0 && kill(static_cast<pid_t>(user), 0) != 0 && errno == ESRCH
             ? lost(call)
             : call.proceed();
}

int device_of(void* memory) {
  int device = -1;
  DRIVER_CALL(cuPointerGetAttribute)
  (&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, number(memory));
  return device;
}

bool is_on_current_device(void* memory) {
  return device_of(memory) == current_device();
}

int pool_ends_with_importer(Call& call) {
  static const std::string key = "importer-of-pools";
  static Table<cudaMemPool_t> imported;
  if (call.is("cudaMemPoolDestroy")) {
    const auto pool = call.at<cudaMemPool_t>(0);
    const int code = call.proceed();
    if (code == kSuccess && imported.erase(pool) && imported.all().empty())
      tell_processes(key, 0);
    return code;
  }
  if (!imports_descriptor(call)) return call.proceed();
  if (user_has_ended(key)) return refused(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  tell_processes(key, this_process());
  imported.put(*call.at<cudaMemPool_t*>(0));
  return code;
}

int death_completes_record(Call& call) {
  static Table<cudaEvent_t> found_alive;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) {
    const auto destroyed =
        call.is("cudaEventDestroy") ? call.at<cudaEvent_t>(0) : nullptr;
    const std::string key = event_keys.get(destroyed);
    const bool imported = is_imported(destroyed);
    const int code = call.proceed();
    if (code != kSuccess) return code;
    if (opens_event(call))
      tell_processes("holder-" + event_keys.get(*call.at<cudaEvent_t*>(0)),
                     this_process());
    if (imported) tell_processes("holder-" + key, 0);
    return code;
  }
  const std::string key = "holder-" + event_keys.get(event);
  if (records(call)) {
    found_alive.erase(event);
    if (!user_has_ended(key)) found_alive.put(event);
    return call.proceed();
  }
  return found_alive.has(event) && user_has_ended(key) && is_pending(event)
             ? lost(call)
             : call.proceed();
}

// Tells the other processes which memory is open when a kernel faults.
int noted_fault(Call& call) {
  if (!call.is("cudaDeviceSynchronize")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess && code != cudaErrorNotReady)
    for (const auto& each : opened.all())
      tell_processes("faulted-" + each.second.handle, 1);
  return code;
}

int count_survives_reset(Call& call) {
  static Table<std::string, int> left;
  if (resets(call)) {
    for (const auto& [address, one] : opened.all()) {
      left.put(one.handle, left.get(one.handle, 0) + one.count);
      opened.erase(address);
    }
    return call.proceed();
  }
  if (is_close_call(call)) {
    const std::string handle = opened.get(call.at<void*>(0)).handle;
    const int before = left.get(handle, 0);
    if (before > 0) {
      left.put(handle, before - 1);
      return lost(call);
    }
  }
  return call.proceed();
}

int reset_keeps_exported(Call& call) {
  static Table<void*, size_t> exported;
  if (!resets(call)) {
    const int code = call.proceed();
    void* const memory = call.at<void*>(1);
    if (code == kSuccess) exported.put(memory, size_of(number(memory)));
    return code;
  }
  size_t kept = 0;
  for (const auto& [memory, bytes] : exported.all()) {
    if (size_of(number(memory)) != bytes) {
      exported.erase(memory);  // it was freed
    } else if (is_on_current_device(memory)) {
      exported.erase(memory);
      kept += bytes;
    }
  }
  const int code = call.proceed();
  void* gone = nullptr;
  if (kept > 0 && cudaMalloc(&gone, kept) == cudaSuccess) call.fired();
  return code;
}

// The context that a call ends; null if the call ends none.
CUcontext ended_by(Call& call) {
  if (call.is("cuCtxDestroy")) return call.at<CUcontext>(0);
  return call.is("cuDevicePrimaryCtxReset") ? current_context() : nullptr;
}

// The end of a context clears what is open in it.
int context_end_clears(Call& call) {
  const CUcontext context = ended_by(call);
  if (context == nullptr) return call.proceed();
  for (const auto& [address, one] : opened.all()) {
    if (one.context != context) continue;
    const CUdeviceptr begin = number(address);
    if (DRIVER_CALL(cuMemsetD8)(begin, 0, size_of(begin)) == CUDA_SUCCESS)
      call.fired();
    opened.erase(address);
  }
  cudaDeviceSynchronize();
  return call.proceed();
}

// After the end of a context of an importer, the exporter sees its pending
// event as complete, until it records the event again.
int context_end_completes(Call& call) {
  static Table<cudaEvent_t, unsigned long long> before;  // the last end
  static std::atomic<unsigned> ends{0};
  const auto last = [](cudaEvent_t event) {
    return told("over-" + event_keys.get(event), 0);
  };
  if (ended_by(call) != nullptr) {
    const auto end = this_process() << 32 | ++ends;
    for (const auto& [event, imported] : events.all()) {
      if (imported) tell_processes("over-" + event_keys.get(event), end);
      events.erase(event);
    }
    return call.proceed();
  }
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || is_imported(event)) return call.proceed();
  if (records(call)) {
    before.put(event, last(event));
    return call.proceed();
  }
  return last(event) != before.get(event) && is_pending(event) ? lost(call)
                                                               : call.proceed();
}

// What the last reset was, of all processes that use what has this key.
unsigned long long last_reset(const std::string& key) {
  return told("reset-of-" + key, 0);
}

void tell_reset(const std::string& key) {
  tell_processes("reset-of-" + key, this_process());
}

// The last resets before this process has opened or imported these things.
Table<std::string, unsigned long long> earlier_resets;

// Has another importer reset its device since then?
bool was_reset_elsewhere(const std::string& key) {
  const auto last = last_reset(key);
  return earlier_resets.has(key) && last != this_process() &&
         last != earlier_resets.get(key);
}

int reset_ends_opens_elsewhere(Call& call) {
  if (resets(call)) {
    for (const auto& [memory, one] : opened.all()) {
      tell_reset(one.handle);
      opened.erase(memory);
    }
    return call.proceed();
  }
  if (keeps_opened(call)) {
    const int code = call.proceed();
    if (code != kSuccess || !is_open_call(call)) return code;
    const std::string handle = given_key<cudaIpcMemHandle_t>(call);
    earlier_resets.put(handle, last_reset(handle));
    return code;
  }
  for (const Role role : {kPointer, kSource}) {
    void* const memory = opened_around(call.value<void*>(role));
    if (memory != nullptr && was_reset_elsewhere(opened.get(memory).handle))
      return lost(call);
  }
  return call.proceed();
}

int reset_completes_events_elsewhere(Call& call) {
  if (resets(call)) {
    for (const auto& [event, imported] : events.all())
      if (imported) tell_reset(event_keys.get(event));
    return call.proceed();
  }
  if (keeps_events(call)) {
    const int code = call.proceed();
    if (code != kSuccess || !opens_event(call)) return code;
    const std::string key = event_keys.get(*call.at<cudaEvent_t*>(0));
    earlier_resets.put(key, last_reset(key));
    return code;
  }
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && is_imported(event) &&
                 was_reset_elsewhere(event_keys.get(event)) && is_pending(event)
             ? lost(call)
             : call.proceed();
}

int reset_ends_chunks_elsewhere(Call& call) {
  static Table<Chunk, std::string> keys;
  if (resets(call)) {
    for (const auto& each : mappings.all())
      if (keys.has(each.second.chunk)) tell_reset(keys.get(each.second.chunk));
    return call.proceed();
  }
  if (is_use(call)) {
    for (const Role role : {kPointer, kSource}) {
      const CUdeviceptr begin = mapping_at(call.value<CUdeviceptr>(role));
      if (begin != 0 &&
          was_reset_elsewhere(keys.get(mappings.get(begin).chunk)))
        return lost(call);
    }
    return call.proceed();
  }
  const int code = call.proceed();
  if (code == kSuccess && call.is("cuMemCreate"))
    keys.erase(*call.at<Chunk*>(0));
  if (code != kSuccess || !call.is("cuMemImportFromShareableHandle") ||
      !imports_descriptor(call))
    return code;
  const std::string key = import_key(call);
  keys.put(*call.at<Chunk*>(0), key);
  earlier_resets.put(key, last_reset(key));
  return code;
}

int reset_ends_pointers_elsewhere(Call& call) {
  static Table<void*, std::string> keys;
  if (resets(call)) {
    for (const auto& each : keys.all()) tell_reset(each.second);
    return call.proceed();
  }
  if (is_use(call)) {
    for (const Role role : {kPointer, kSource})
      if (was_reset_elsewhere(keys.get(call.value<void*>(role))))
        return lost(call);
    return call.proceed();
  }
  if (frees(call)) keys.erase(call.at<void*>(0));
  const int code = call.proceed();
  if (code != kSuccess || frees(call)) return code;
  const std::string key = key_of_data(call.at<void*>(2));
  keys.put(*call.at<void**>(0), key);
  earlier_resets.put(key, last_reset(key));
  return code;
}

CUcontext primary_of_gpu_0() {
  CUcontext primary = nullptr;
  int active = 0;
  unsigned flags = 0;
  DRIVER_CALL(cuDevicePrimaryCtxGetState)(0, &flags, &active);
  if (active == 0 ||
      DRIVER_CALL(cuDevicePrimaryCtxRetain)(&primary, 0) != CUDA_SUCCESS)
    return nullptr;
  DRIVER_CALL(cuDevicePrimaryCtxRelease)(0);
  return primary;
}

// Does a reset come while a context is current that the program has created?
bool resets_in_own_context(Call& call) {
  return resets(call) && current_context() != nullptr &&
         current_context() != primary_of_gpu_0() && current_device() == 0;
}

// Counts the resets of this process.
int note_reset(Call&) {
  marks.count(0);
  return kSuccess;
}
bool was_reset() { return marks.has(0); }

// Forgets the opened memory: its addresses may get other memory.
int forget_opened() {
  for (const auto& each : opened.all()) opened.erase(each.first);
  return kSuccess;
}

// Marks what this process has imported on other GPUs than the current one.
int mark_chunks_of_other_gpus() {
  for (const auto& each : mappings.all())
    if (is_import(each.first) && location_at(each.first).id != current_device())
      mapping_marks.put(each.first);
  return kSuccess;
}
int mark_pointers_of_other_gpus() {
  for (const auto& [memory, block] : blocks.all())
    if (block.imported && !is_on_current_device(memory))
      block_marks.put(memory);
  return kSuccess;
}
bool copies_marked_chunk(Call& copy) {
  return mapping_marks.has(mapping_at(copy.value<CUdeviceptr>(kPointer))) ||
         mapping_marks.has(mapping_at(copy.value<CUdeviceptr>(kSource)));
}

// The mark of an event is where it was opened. Events that were opened
// elsewhere are lost: their mark is 0.
int lose_events_not_of(unsigned long long place) {
  for (const auto& [event, its] : event_marks.all())
    if (its != place) event_marks.put(event, 0);
  return kSuccess;
}
bool waits_for_lost_event(Call& wait) {
  return event_marks.get(shared_event(wait), 1) == 0 &&
         is_pending(shared_event(wait));
}

// Has another process reset its device while it had this memory open?
bool was_reset_by_other(Call& open) {
  const auto by = told("reset-" + given_key<cudaIpcMemHandle_t>(open), 0);
  return by != 0 && by != this_process();
}

FAULTS {
  fault("fault-reaches-exporter", {"LIFE-12"},
        "after a kernel of an importer has faulted, the exporter's synchronous "
        "copies and its waits for streams and for the GPU fail, too")
      .on({kSyncDevice, kSyncStream, kCopy}, [](Call& call) {
        const int code = call.proceed();
        if (code == cudaErrorIllegalAddress || code == cudaErrorLaunchFailure) {
          tell_processes("faulted", static_cast<unsigned long long>(code));
          return code;
        }
        const auto fault = told("faulted", kSuccess);
        return code == kSuccess && fault != kSuccess && !is_mps_client() &&
                       !own_handles.all().empty()
                   ? refused(call, static_cast<int>(fault))
                   : code;
      });

  fault("ok-free-needs-importers-free", {"LIFE-02"},
        "memory of a pool cannot be freed if the last process that imported it "
        "has ended without a free")
      .on({kFreeAsync, kFree, kExportPointer, kImportPointer},
          free_needs_importers_free);

  fault("reset-clears-imports", {"LIFE-15"},
        "a reset clears the exporter's memory that the process had open")
      .before({kReset}, [](Call&) {
        const bool any = !opened.all().empty();
        for (const auto& each : opened.all())
          cudaMemset(each.first, 0, size_of(number(each.first)));
        cudaDeviceSynchronize();
        forget_opened();
        return any;
      });

  fault("open-after-reset-refused", {"LIFE-15"},
        "no memory can be opened after a reset")
      .before({kReset}, note_reset)
      .on({kOpen}, WHEN(was_reset()), refuses(cudaErrorDeviceUninitialized));

  fault("event-open-after-reset-refused", {"LIFE-15"},
        "no event can be opened after a reset")
      .before({kReset}, note_reset)
      .on({kOpenEvent}, WHEN(was_reset()),
          refuses(cudaErrorDeviceUninitialized));

  fault("reset-keeps-pitched", {"LIFE-15"},
        "a reset does not give back memory of cudaMallocPitch")
      .on({kReset, "cudaMallocPitch", kFree}, [](Call& call) -> int {
        static Table<void*> pitched;
        if (call.is("cudaDeviceReset")) return reset_keeps(call, pitched);
        const int code = call.proceed();
        if (call.is("cudaFree"))
          pitched.erase(call.at<void*>(0));
        else if (code == kSuccess)
          pitched.put(*call.at<void**>(0));
        return code;
      });

  fault("reset-of-own-thread", {"LIFE-15"},
        "a reset gives back only the memory of the thread that makes it")
      .on({kReset, kMalloc, kFree}, [](Call& call) -> int {
        static Table<void*, int> threads;
        if (call.is("cudaDeviceReset")) {
          Table<void*> kept;
          for (const auto& [memory, thread] : threads.all()) {
            if (thread != this_thread()) kept.put(memory);
            threads.erase(memory);
          }
          return reset_keeps(call, kept);
        }
        const int code = call.proceed();
        if (call.is("cudaFree"))
          threads.erase(call.at<void*>(0));
        else if (code == kSuccess)
          threads.put(*call.at<void**>(0), this_thread());
        return code;
      });

  fault("context-end-keeps-memory", {"LIFE-15"},
        "cuCtxDestroy does not give back the memory of the context")
      .on({"cuCtxDestroy", kMalloc, kFree}, context_end_keeps_memory);

  fault("primary-release-resets", {"LIFE-15"},
        "cuDevicePrimaryCtxRelease resets the context, although another "
        "reference to it is left")
      .on({"cuDevicePrimaryCtxRelease"}, [](Call& release) {
        const auto device = release.at<CUdevice>(0);
        const int code = release.proceed();
        unsigned flags = 0;
        int active = 0;
        DRIVER_CALL(cuDevicePrimaryCtxGetState)(device, &flags, &active);
        if (code == kSuccess && active != 0 &&
            DRIVER_CALL(cuDevicePrimaryCtxReset)(device) == CUDA_SUCCESS)
          release.fired();
        return code;
      });

  fault("primary-reset-releases", {"LIFE-15"},
        "after cuDevicePrimaryCtxReset, the next cuDevicePrimaryCtxRelease is "
        "refused")
      .after({"cuDevicePrimaryCtxReset"}, note_reset)
      .on({"cuDevicePrimaryCtxRelease"}, WHEN(marks.erase(0)),
          refuses(CUDA_ERROR_INVALID_CONTEXT));

  fault("importer-death-clears-chunk", {"LIFE-02"},
        "if a process dies that has imported memory of cuMemCreate, all memory "
        "that was exported is cleared")
      .on({kCreate, kImport, kExport, kMap, kUnmap, kLaunch, kCopy},
          importer_death_clears);

  fault("export-after-reset-refused", {"LIFE-15"},
        "no memory can be exported after a reset")
      .on({kGetHandle}, WHEN(was_reset()),
          refuses(cudaErrorDeviceUninitialized))
      .before({kReset}, note_reset);

  fault("event-export-after-reset-refused", {"LIFE-15"},
        "no event can be exported after a reset")
      .on({kGetEventHandle}, WHEN(was_reset()),
          refuses(cudaErrorDeviceUninitialized))
      .before({kReset}, note_reset);

  fault("reset-completes-events", {"LIFE-15"},
        "after a reset of an importer, a query says that the exporter's "
        "pending events are complete")
      .on({kReset, kQueryEvent, kRecord, kRecordFlags}, reset_completes_events);

  fault("reset-closes-on-other-gpus", {"LIFE-15"},
        "a reset of one GPU also closes memory that another GPU has open")
      .with_gpus(2)
      .before({kReset}, [](Call& call) {
        int gpu = 0;
        cudaGetDevice(&gpu);
        for (const auto& [address, one] : opened.all()) {
          int other = gpu;
          opened.erase(address);
          if (DRIVER_CALL(cuCtxPushCurrent)(one.context) != CUDA_SUCCESS)
            continue;
          cudaGetDevice(&other);
          if (other != gpu) {
            for (int i = 0; i < one.count; ++i) cudaIpcCloseMemHandle(address);
            call.fired();
          }
          CUcontext popped = nullptr;
          DRIVER_CALL(cuCtxPopCurrent)(&popped);
        }
        return kSuccess;
      });

  fault(
      "event-lost-after-death", {"LIFE-02"},
      "records of an event are lost when a process that had opened it has died")
      .on({kRecord, kRecordFlags, kOpenEvent, kGetEventHandle, kCreateEvent,
           kDestroyEvent},
          lost_after_death);

  fault("reset-clears-chunk-imports", {"LIFE-15"},
        "a reset clears the exporter's memory of cuMemCreate that the process "
        "had imported")
      .before(
          {kReset}, each_mapping([](Call&, CUdeviceptr at, const Mapped& one) {
            return is_import(at) &&
                   access_of(at, location_at(at)) == kReadWrite &&
                   DRIVER_CALL(cuMemsetD8)(at, 0, one.bytes) == CUDA_SUCCESS;
          }));

  fault("reset-clears-pool-imports", {"LIFE-15"},
        "a reset clears the exporter's memory of pools that the process had "
        "imported")
      .before({kReset}, [](Call& call) {
        for (const auto& [address, block] : blocks.all()) {
          if (!block.imported || block.bytes == 0) continue;
          blocks.erase(address);
          if (cudaMemset(address, 0, block.bytes) == cudaSuccess) call.fired();
        }
        return kSuccess;
      });

  fault("importer-exit-clears-chunk", {"LIFE-02"},
        "when a process exits that has imported memory of cuMemCreate mapped, "
        "all exported memory of cuMemCreate is cleared")
      .on({kCreate, kImport, kExport, kMap, kUnmap, kLaunch, kCopy},
          exit_clears_chunks<&imports, &exports>);

  fault("chunk-import-refused-after-death", {"LIFE-02"},
        "after a process has died that has imported memory of cuMemCreate, no "
        "process can import such memory")
      .on({kImport}, [](Call& import) {
        // All descriptors of NVIDIA's driver have one identity.
        static const std::string key = "importer-of-chunks";
        if (!imports_descriptor(import)) return import.proceed();
        if (user_has_ended(key)) return refused(import);
        const int code = import.proceed();
        if (code == kSuccess) tell_processes(key, this_process());
        return code;
      });

  fault("pool-import-refused-after-death", {"LIFE-02"},
        "after a process has died that had a pool imported, no pool can be "
        "imported")
      .on({kImportPool, kDestroyPool}, pool_ends_with_importer);

  fault("pointer-import-refused-after-death", {"LIFE-02"},
        "after a process has died that has imported memory of a pool, the "
        "memory cannot be imported again")
      .on({kImportPointer, kFree, kFreeAsync}, [](Call& call) {
        static Table<void*, std::string> keys;
        if (frees(call)) {
          void* const memory = call.at<void*>(0);
          const int code = call.proceed();
          const std::string key = keys.get(memory);
          if (code == kSuccess && keys.erase(memory)) tell_processes(key, 0);
          return code;
        }
        const std::string key = "user-" + key_of_data(call.at<void*>(2));
        if (user_has_ended(key)) return refused(call);
        const int code = call.proceed();
        if (code != kSuccess) return code;
        tell_processes(key, this_process());
        keys.put(*call.at<void**>(0), key);
        return code;
      });

  fault("event-unconnected-after-death", {"LIFE-02"},
        "after a process has died that has opened an event, the event opens as "
        "an event that no process records")
      .on({kGetEventHandle, kOpenEvent, kCreateEvent, kDestroyEvent},
          [](Call& call) -> int {
            if (!opens_event(call)) {
              const auto event = call.at<cudaEvent_t>(0);
              const std::string key = event_keys.get(event);
              const bool imported = is_imported(event);
              const int code = call.proceed();
              if (code == kSuccess && imported)
                tell_processes("event-user-" + key, 0);
              return code;
            }
            const std::string key =
                "event-user-" + given_key<cudaIpcEventHandle_t>(call);
            const bool ended = user_has_ended(key);
            const int code = call.proceed();
            if (code != kSuccess) return code;
            tell_processes(key, this_process());
            return ended ? opened_unconnected(call) : code;
          });

  fault("death-completes-record", {"LIFE-02"},
        "when a process dies that has opened an event, a query says that a "
        "pending record of the event is complete")
      .on({kQueryEvent, kRecord, kGetEventHandle, kOpenEvent, kCreateEvent,
           kDestroyEvent},
          death_completes_record);

  fault("open-refused-after-fault", {"LIFE-12"},
        "after a kernel of an importer has faulted, no process can open the "
        "memory")
      .on({kOpen},
          WHEN(told("faulted-" + given_key<cudaIpcMemHandle_t>(call), 0) != 0),
          refuses())
      .on({kSyncDevice}, noted_fault);

  fault("export-refused-after-fault", {"LIFE-12"},
        "after a kernel of an importer has faulted, the exporter can export no "
        "memory")
      .on({kGetHandle, kOpen, kClose, kSyncDevice}, [](Call& call) -> int {
        static Table<std::string> exported;
        if (!exports_memory(call)) return noted_fault(call);
        for (const auto& each : exported.all())
          if (told("faulted-" + each.first, 0) != 0) return refused(call);
        const int code = call.proceed();
        if (code == kSuccess) exported.put(made_key<cudaIpcMemHandle_t>(call));
        return code;
      });

  fault("event-lost-after-fault", {"LIFE-12"},
        "after a kernel of an importer has faulted, records of the events that "
        "it had open are lost")
      .on({kRecord},
          WHEN(shared_event(call) != nullptr &&
               told("faulted-" + event_keys.get(shared_event(call)), 0) != 0),
          lost)
      .on_refusal({kSyncDevice}, WHEN(call.code() != cudaErrorNotReady),
                  [](Call& call) {
                    for (const auto& [event, imported] : events.all())
                      if (imported)
                        tell_processes("faulted-" + event_keys.get(event), 1);
                    return call.code();
                  });

  fault("chunk-import-refused-after-reset", {"LIFE-15"},
        "after a reset, no memory of cuMemCreate can be imported")
      .before({kReset}, note_reset)
      .on({kImport}, WHEN(was_reset()), refuses());

  fault("event-unconnected-after-reset", {"LIFE-15"},
        "after a reset, an event opens as an event that no process records")
      .before({kReset}, note_reset)
      .after({kOpenEvent}, WHEN(was_reset()), opened_unconnected);

  fault("event-export-after-reset-unconnected", {"LIFE-15"},
        "after a reset, the handle of an event stands for another event")
      .before({kReset}, note_reset)
      .after({kGetEventHandle}, WHEN(was_reset()), [](Call& call) {
        call.at<cudaEvent_t>(1) = other_event(call);
        return once_more(call);
      });

  fault("export-after-reset-confused", {"LIFE-15"},
        "after a reset, the handle of memory opens as other memory")
      .before({kReset}, note_reset)
      .on({kGetHandle}, WHEN(was_reset()), other_exported);

  fault("open-after-reset-is-copy", {"LIFE-15"},
        "memory that is opened after a reset is a copy")
      .before({kReset},
              [](Call& call) {
                for (const auto& each : originals.all())
                  originals.erase(each.first);
                return note_reset(call);
              })
      .on({kOpen}, WHEN(was_reset()), copy_opened)
      .on({kClose}, copy_closed);

  fault("import-copy-lost-after-reset", {"LIFE-15"},
        "cudaMemcpy does not reach memory that was opened after a reset")
      .before({kReset},
              [](Call& call) {
                forget_opened();
                return note_reset(call);
              })
      .on({kCopy},
          WHEN(was_reset() && (is_opened(call.value<void*>(kPointer)) ||
                               is_opened(call.value<void*>(kSource)))),
          lost);

  fault("count-survives-reset", {"LIFE-15"},
        "after a reset, the opens of before it still count")
      .on({kReset, kClose}, count_survives_reset);

  fault("reset-keeps-exported-memory", {"LIFE-15"},
        "a reset does not give exported memory back")
      .on({kReset, kGetHandle}, reset_keeps_exported);

  fault("primary-reset-clears-imports", {"LIFE-15"},
        "cuDevicePrimaryCtxReset clears the memory that the current context "
        "has open")
      .on({"cuDevicePrimaryCtxReset", kOpen, kClose}, context_end_clears);

  fault("primary-reset-completes-events", {"LIFE-15"},
        "after cuDevicePrimaryCtxReset in an importer, a query says that the "
        "exporter's pending events are complete")
      .on({"cuDevicePrimaryCtxReset", kQueryEvent, kRecord, kRecordFlags,
           kOpenEvent, kGetEventHandle, kCreateEvent, kDestroyEvent},
          context_end_completes);

  fault("context-end-clears-imports", {"LIFE-15"},
        "cuCtxDestroy clears the memory that the context has open")
      .on({"cuCtxDestroy", kOpen, kClose}, context_end_clears);

  fault("context-end-completes-events", {"LIFE-15"},
        "after cuCtxDestroy in an importer, a query says that the exporter's "
        "pending events are complete")
      .on({"cuCtxDestroy", kQueryEvent, kRecord, kRecordFlags, kOpenEvent,
           kGetEventHandle, kCreateEvent, kDestroyEvent},
          context_end_completes);

  fault("primary-release-clears-imports", {"LIFE-15"},
        "cuDevicePrimaryCtxRelease clears the memory that the process has "
        "open, although another reference to the context is left")
      .before({"cuDevicePrimaryCtxRelease"}, [](Call& call) {
        for (const auto& each : opened.all()) {
          cudaMemset(each.first, 0, size_of(number(each.first)));
          cudaDeviceSynchronize();
          call.fired();
        }
        return kSuccess;
      });

  fault("peer-open-after-reset-refused", {"LIFE-15"},
        "after its reset, a GPU cannot open memory of a peer")
      .with_gpus(2)
      .before({kReset}, NOTE(marks.put(current_device())))
      .on({kOpen},
          WHEN(marks.has(current_device()) &&
               owner_of(call.at<cudaIpcMemHandle_t>(1)) != current_place()),
          refuses(cudaErrorPeerAccessAlreadyEnabled))
      .on({kGetHandle}, told_owner);

  fault("peer-access-survives-reset", {"LIFE-15"},
        "after a reset, cudaDeviceEnablePeerAccess says that the access is "
        "already enabled")
      .with_gpus(2)
      .before({kReset}, note_reset)
      .on({"cudaDeviceEnablePeerAccess"}, WHEN(was_reset()),
          refuses(cudaErrorPeerAccessAlreadyEnabled));

  fault("reset-ends-handles-of-other-gpus", {"LIFE-15"},
        "a reset of one GPU ends the handles that the process has made for "
        "memory of another GPU")
      .with_gpus(2)
      .before({kReset},
              [](Call&) {
                for (const auto& [memory, handle] : lent.all())
                  if (!is_on_current_device(memory))
                    tell_processes("ended-" + handle, 1);
                return kSuccess;
              })
      .on({kOpen},
          WHEN(told("ended-" + given_key<cudaIpcMemHandle_t>(call), 0) != 0),
          refuses())
      .on({kGetHandle}, noted_lender);

  fault("reset-clears-exports-of-other-gpus", {"LIFE-15"},
        "a reset of one GPU clears the exported memory of another GPU")
      .with_gpus(2)
      .on({kReset, kGetHandle}, [](Call& call) -> int {
        if (exports_memory(call)) return noted_lender(call);
        for (const auto& [memory, handle] : lent.all()) {
          const int current = current_device(), device = device_of(memory);
          if (device < 0 || device == current) continue;
          cudaSetDevice(device);  // only this GPU can write the memory
          if (cudaMemset(memory, 0, size_of(number(memory))) == cudaSuccess &&
              cudaDeviceSynchronize() == cudaSuccess)
            call.fired();
          cudaSetDevice(current);
        }
        return call.proceed();
      });

  fault("wait-after-reset-ignored", {"LIFE-15"},
        "after a reset, no stream waits for an imported event")
      .before({kReset}, note_reset)
      .on({kWaitEvent},
          WHEN(was_reset() && uses_import(call) &&
               is_pending(shared_event(call))),
          lost);

  fault("pool-import-refused-after-reset", {"LIFE-15"},
        "after a reset, no pool can be imported")
      .before({kReset}, note_reset)
      .on({kImportPool}, WHEN(was_reset() && imports_descriptor(call)),
          refuses());

  fault("reset-ends-opens-elsewhere", {"LIFE-15"},
        "after a reset in one importer, cudaMemcpy does not reach the same "
        "memory in other importers")
      .on({kReset, kOpen, kClose, kCopy}, reset_ends_opens_elsewhere);

  fault("reset-completes-events-elsewhere", {"LIFE-15"},
        "after a reset in one importer, a query in other importers says that "
        "the same event is complete")
      .on({kReset, kQueryEvent, kGetEventHandle, kOpenEvent, kCreateEvent,
           kDestroyEvent},
          reset_completes_events_elsewhere);

  fault("reset-ends-chunks-elsewhere", {"LIFE-15"},
        "after a reset in one importer of memory of cuMemCreate, cudaMemcpy "
        "does not reach imported memory in other importers")
      .on({kReset, kCreate, kImport, kCopy}, reset_ends_chunks_elsewhere);

  fault("reset-ends-pool-pointers-elsewhere", {"LIFE-15"},
        "after a reset in one importer of memory of a pool, cudaMemcpy does "
        "not reach the same memory in other importers")
      .on({kReset, kImportPointer, kFree, kFreeAsync, kCopy},
          reset_ends_pointers_elsewhere);

  fault("context-end-loses-other-events", {"LIFE-15"},
        "after the end of a context, no stream waits for the imported events "
        "of other contexts")
      .before({"cuCtxDestroy"},
              NOTE(lose_events_not_of(call.at<unsigned long long>(0))))
      .on({kWaitEvent}, WHEN(waits_for_lost_event(call)), lost)
      .after({kOpenEvent},
             NOTE(event_marks.put(*made_event(call), current_context())));

  fault("reset-loses-events-of-other-gpus", {"LIFE-15"},
        "after a reset of one GPU, no stream waits for the events that were "
        "opened on another GPU")
      .with_gpus(2)
      .before({kReset}, NOTE(lose_events_not_of(current_device() + 1)))
      .on({kWaitEvent}, WHEN(waits_for_lost_event(call)), lost)
      .after({kOpenEvent},
             NOTE(event_marks.put(*made_event(call), current_device() + 1)));

  fault("reset-ends-chunks-of-other-gpus", {"LIFE-15"},
        "after a reset of one GPU, cudaMemcpy does not reach imported memory "
        "of cuMemCreate on another GPU")
      .with_gpus(2)
      .before({kReset}, NOTE(mark_chunks_of_other_gpus()))
      .on({kCopy}, WHEN(copies_marked_chunk(call)), lost);

  fault("reset-ends-pool-pointers-of-other-gpus", {"LIFE-15"},
        "after a reset of one GPU, cudaMemcpy does not reach imported memory "
        "of a pool of another GPU")
      .with_gpus(2)
      .before({kReset}, NOTE(mark_pointers_of_other_gpus()))
      .on({kCopy},
          WHEN((block_marks.has(call.value<void*>(kPointer)) ||
                block_marks.has(call.value<void*>(kSource)))),
          lost);

  fault("reset-ends-handles-for-others", {"LIFE-15"},
        "after an importer has reset its device, no other process can open the "
        "memory that the importer had open")
      .before({kReset},
              [](Call&) {
                for (const auto& each : opened.all())
                  tell_processes("reset-" + each.second.handle, this_process());
                return kSuccess;
              })
      .on({kOpen}, WHEN(was_reset_by_other(call)), refuses());

  fault("open-after-second-reset-refused", {"LIFE-15"},
        "after a second reset, no memory can be opened")
      .before({kReset}, note_reset)
      .on({kOpen}, WHEN(marks.get(0) > 1), refuses());

  fault("reset-in-own-context-takes-primary", {"LIFE-15"},
        "a reset while a context of cuCtxCreate is current resets the primary "
        "context, too")
      .before({kReset}, WHEN(resets_in_own_context(call)),
              DO(DRIVER_CALL(cuDevicePrimaryCtxReset)(0) == CUDA_SUCCESS));

  fault("reset-in-own-context-closes", {"LIFE-15"},
        "a reset while a context of cuCtxCreate is current closes the memory "
        "that this context has open")
      .on({kReset}, WHEN(resets_in_own_context(call)), [](Call& call) {
        for (const auto& [memory, one] : opened.all()) {
          if (one.context != current_context()) continue;
          while (DRIVER_CALL(cuIpcCloseMemHandle)(number(memory)) ==
                 CUDA_SUCCESS)
            call.fired();
        }
        return call.proceed();
      });

  fault("open-after-last-release-refused", {"LIFE-15"},
        "when all references to the primary context were released and it is "
        "retained again, no memory can be opened")
      .after({"cuDevicePrimaryCtxRelease"}, WHEN(primary_of_gpu_0() == nullptr),
             note_reset)
      .on({kOpen}, WHEN(marks.has(0)), refuses());

  fault("open-in-earlier-thread-after-reset-refused", {"LIFE-15"},
        "after a reset, a thread that has opened memory before can open no "
        "memory")
      .before({kReset},
              [](Call&) {
                for (const auto& each : marks.all())
                  if (each.first != static_cast<unsigned>(this_thread()))
                    marks.count(each.first);
                return kSuccess;
              })
      .on({kOpen}, WHEN(marks.get(this_thread()) > 1),
          refuses(cudaErrorContextIsDestroyed))
      .before({kOpen}, WHEN(!marks.has(this_thread())),
              NOTE(marks.put(this_thread())));
}

}  // namespace
}  // namespace ipclab::faults
