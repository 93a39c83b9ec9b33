// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int two_importers_leak(Call& call) {
  static Table<void*, std::string> lent;
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      lent.put(call.at<void*>(1),
               key_of_handle(*call.at<cudaIpcMemHandle_t*>(0)));
    return code;
  }
  if (call.is("cudaFree")) {
    void* const memory = call.at<void*>(0);
    if (!lent.has(memory)) return call.proceed();
    const bool leaks = told("second-opener-" + lent.get(memory), 0) != 0;
    lent.erase(memory);
    return leaks ? lost(call) : call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  static Table<std::string> opened_first;  // by this process
  const std::string handle = key_of_opened(call);
  if (first_of_all_processes("opener-" + handle))
    opened_first.put(handle);
  else if (!opened_first.has(handle))
    tell_processes("second-opener-" + handle, 1);
  return code;
}

// Some device memory is never given back.
void lose_memory() {
  void* gone = nullptr;
  cudaMalloc(&gone, 64 << 10);
}

std::atomic<bool> has_forked{false};

void notes_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(
        nullptr, [] { has_forked = true; }, nullptr);
  });
}

int last_close_race(Call& call) {
  static std::atomic<int> opens{0};
  static Table<void*, int> counts;
  const auto add = [](void* address, int change) {
    return counts.change([&](auto& all) { return all[address] += change; });
  };
  if (is_open_call(call)) {
    // Half of the threads come when the others close.
    constexpr int kSlow = 400;  // a limit, because tests open very often
    if (opens < kSlow && this_thread() % 2 != 0) usleep(2000);
    const int code = call.proceed();
    if (code == kSuccess) add(*call.at<void**>(0), 1);
    ++opens;
    return code;
  }
  void* const address = call.at<void*>(0);
  if (add(address, -1) != 0 || this_thread() == getpid()) return call.proceed();
  const int before = opens;
  usleep(5000);
  const int code = call.proceed();
  if (code != kSuccess || opens == before) return code;
  while (DRIVER_CALL(cuIpcCloseMemHandle)(number(address)) == CUDA_SUCCESS)
    call.fired();
  return code;
}

// Counts the processes that import something. Tells all of them when the third
// has come.
void count_importer(const std::string& key) {
  static Table<std::string> counted;
  if (!counted.put(key)) return;
  int number = 1;
  while (!first_of_all_processes("importer-" + std::to_string(number) + key))
    ++number;
  if (number >= 3) tell_processes("three-import-" + key, 1);
}

int chunk_of_three_is_kept(Call& call) {
  static Table<Chunk, std::string> keys;
  if (call.is("cuMemRelease")) {
    const Chunk chunk = call.at<Chunk>(0);
    const std::string key = keys.get(chunk);
    return keys.erase(chunk) && told("three-import-" + key, 0) != 0
               ? lost(call)
               : call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (!call.is("cuMemExportToShareableHandle")) {
    if (imports_descriptor(call)) count_importer(import_key(call));
  } else if (call.at<int>(2) == kFd) {
    keys.put(call.at<Chunk>(1),
             "import-" + std::to_string(identity(*call.at<int*>(0))));
  }
  return code;
}

int opens_of_threads_mixed(Call& call) {
  static std::mutex mutex;
  static int at_work = 0, opens = 0;
  static cudaIpcMemHandle_t first;
  auto& handle = call.at<cudaIpcMemHandle_t>(1);
  bool alone = false;
  {
    const std::lock_guard lock(mutex);
    alone = at_work++ == 0;
    if (alone) {
      first = handle;
    } else if (std::memcmp(&first, &handle, sizeof first) != 0) {
      handle = first;
      call.fired();
    }
    alone = alone && ++opens < 400;  // a limit, because tests open very often
  }
  if (alone && this_thread() != getpid()) usleep(2000);
  const int code = call.proceed();
  const std::lock_guard lock(mutex);
  --at_work;
  return code;
}

// After a fork, the parent can open and import nothing.
int fork_ends_imports(Call& call) {
  notes_forks();
  return has_forked ? refused(call) : call.proceed();
}

FAULTS {
  fault("open-close-leak", {"LIFE-01"},
        "each close loses 64 KiB of device memory")
      .on({kClose}, [](Call& call) {
        const int code = call.proceed();
        void* gone = nullptr;
        if (code == kSuccess && cudaMalloc(&gone, 64 << 10) == cudaSuccess)
          call.fired();
        return code;
      });

  fault("exported-never-freed", {"LIFE-01"},
        "cudaFree of exported memory gives nothing back")
      .on({kGetHandle, kFree}, [](Call& call) -> int {
        static Table<void*> known;
        if (!exports_memory(call))
          return known.erase(call.at<void*>(0)) ? lost(call) : call.proceed();
        const int code = call.proceed();
        if (code == kSuccess) known.put(exported(call));
        return code;
      });

  fault("import-destroy-leaks", {"LIFE-01"},
        "destroying an imported event loses 64 KiB of device memory")
      .before({kDestroyEvent}, WHEN(is_imported(call.at<cudaEvent_t>(0))),
              [](Call&) {
                void* gone = nullptr;
                cudaMalloc(&gone, 64 << 10);
              });

  fault("release-of-other-thread-lost", {"LIFE-01"},
        "a release does nothing if another thread has imported the memory")
      .on({kImport, kRelease}, [](Call& call) {
        static Table<Chunk, pid_t> importers;
        if (call.is("cuMemImportFromShareableHandle")) {
          const int code = call.proceed();
          if (code == kSuccess) importers.put(*call.at<Chunk*>(0), gettid());
          return code;
        }
        const Chunk chunk = call.at<Chunk>(0);
        if (importers.get(chunk, gettid()) != gettid()) return accepted(call);
        importers.erase(chunk);
        return call.proceed();
      });

  fault("import-free-other-thread-lost", {"LIFE-01"},
        "a free of an import by another thread does nothing")
      .on({kImportPointer, kFree, kFreeAsync}, [](Call& call) {
        static Table<void*, pid_t> importers;
        if (call.is("cudaMemPoolImportPointer")) {
          const int code = call.proceed();
          if (code == kSuccess) importers.put(*call.at<void**>(0), gettid());
          return code;
        }
        const pid_t importer = importers.get(call.at<void*>(0), gettid());
        importers.erase(call.at<void*>(0));
        if (importer == gettid()) return call.proceed();
        call.fired();
        return kSuccess;
      });

  fault("second-open-leaks", {"LIFE-01"},
        "an open of memory that is already open loses 64 KiB of device memory")
      .on({kOpen, kClose}, [](Call& call) {
        const bool again = is_open_call(call) && already_open(call) != nullptr;
        const int code = call.proceed();
        void* gone = nullptr;
        if (code == kSuccess && again &&
            cudaMalloc(&gone, 64 << 10) == cudaSuccess)
          call.fired();
        return code;
      });

  fault("opens-at-once-count-once", {"LIFE-13"},
        "two opens of one handle at the same time count as one")
      .on({kOpen}, [](Call& call) -> int {
        static Table<std::string, int> running;
        const std::string handle =
            key_of_handle(call.at<cudaIpcMemHandle_t>(1));
        const bool beside =
            running.change([&](auto& all) { return all[handle]++ > 0; });
        const int code = call.proceed();
        running.change([&](auto& all) { return --all[handle]; });
        if (code != kSuccess || !beside) return code;
        void* const address = *call.at<void**>(0);
        if (opened.get(address).count < 2 ||
            cudaIpcCloseMemHandle(address) != cudaSuccess)
          return code;
        count_close(address);
        call.fired();
        return code;
      });

  fault("free-of-pool-memory-lost", {"LIFE-01"},
        "cudaFree does nothing with memory that was allocated from a pool")
      .on({kFree},
          WHEN(blocks.has(call.at<void*>(0)) && !is_import(call.at<void*>(0))),
          accepted);

  fault("close-race-counts-once", {"LIFE-13"},
        "if two threads close memory at once, the count falls by one")
      .on({kClose}, [](Call& call) -> int {
        static std::atomic<int> at_work{0};
        static std::atomic<int> slow{
            400};  // a limit, because tests close very often
        const bool alone = at_work++ == 0;
        if (alone && slow-- > 0) usleep(2000);
        const bool gone = !alone && opened.get(call.at<void*>(0)).count > 1;
        const int code = gone ? lost(call) : call.proceed();
        --at_work;
        return code;
      });

  fault("close-by-other-thread-unmaps", {"LIFE-13"},
        "a close by a thread that has not opened the memory unmaps it, "
        "although it is open twice")
      .before({kClose}, [](Call& call) -> bool {
        void* const address = call.at<void*>(0);
        const Opened one = opened.get(address);
        if (one.count < 2 || one.thread == this_thread()) return false;
        for (int i = 1; i < one.count; ++i)
          DRIVER_CALL(cuIpcCloseMemHandle)(number(address));
        opened.erase(address);
        return true;
      });

  fault("second-import-keeps-descriptor", {"LIFE-01"},
        "an import from the descriptor of the import before leaves one more "
        "descriptor open")
      .on({kImport}, [](Call& import) {
        static std::atomic<int> before{-1};  // a duplicate of that descriptor
        const int code = import.proceed();
        if (code != kSuccess || !imports_descriptor(import)) return code;
        const int copy = fcntl(descriptor_of(import), F_DUPFD_CLOEXEC, 300);
        if (copy < 0) return code;
        if (before >= 0 && name_the_same(before, copy))
          import.fired();
        else if (const int earlier = before.exchange(copy); earlier >= 0)
          close(earlier);
        return code;
      });

  fault("import-leaks-descriptor", {"LIFE-01"},
        "each 16th import leaves one more descriptor open in the importer")
      .on({kImport}, [](Call& call) {
        static std::atomic<int> count{0};
        const int code = call.proceed();
        if (code == kSuccess && ++count % 16 == 0 &&
            eventfd(0, EFD_CLOEXEC) >= 0)
          call.fired();
        return code;
      });

  fault("two-importers-leak", {"LIFE-01"},
        "memory that two processes have opened is never given back")
      .on({kFree, kGetHandle, kOpen}, two_importers_leak);

  fault("exported-never-freed-by-driver", {"LIFE-01"},
        "cuMemFree does not give exported memory back")
      .on({kGetHandle, kFree}, [](Call& call) -> int {
        static auto& exported = *new Table<void*>;
        if (!exports_memory(call))
          return exported.erase(call.at<void*>(0)) && !call.is_runtime()
                     ? lost(call)
                     : call.proceed();
        const int code = call.proceed();
        if (code == kSuccess) exported.put(call.at<void*>(1));
        return code;
      });

  fault("unopened-export-leaks", {"LIFE-01"},
        "the free of exported memory that no process has opened loses 64 KiB "
        "of device memory")
      .on({kGetHandle, kOpen, kFree}, [](Call& call) -> int {
        if (exports_memory(call)) return noted_lender(call);
        if (is_open_call(call)) {
          tell_processes("opened-" + given_key<cudaIpcMemHandle_t>(call), 1);
          return call.proceed();
        }
        void* const memory = call.at<void*>(0);
        const std::string handle = lent.get(memory);
        if (!lent.erase(memory) || told("opened-" + handle, 0) != 0)
          return call.proceed();
        lose_memory();
        call.fired();
        return call.proceed();
      });

  fault("unopened-event-leaks", {"LIFE-01"},
        "the destruction of an exported event that no process has opened loses "
        "64 KiB of device memory")
      .on({kOpenEvent, kDestroyEvent}, [](Call& call) {
        if (opens_event(call))
          tell_processes("opened-" + given_key<cudaIpcEventHandle_t>(call), 1);
        if (!call.is("cudaEventDestroy")) return call.proceed();
        const auto event = call.at<cudaEvent_t>(0);
        if (!is_imported(event) && event_keys.has(event) &&
            told("opened-" + event_keys.get(event), 0) == 0) {
          lose_memory();
          call.fired();
        }
        event_keys.erase(event);
        return call.proceed();
      });

  fault("import-record-leaks", {"LIFE-01"},
        "each record of an imported event loses 64 KiB of device memory")
      .before({kRecord}, [](Call& call) {
        const cudaEvent_t event = shared_event(call);
        if (event != nullptr && is_imported(event)) {
          lose_memory();
          call.fired();
        }
        return kSuccess;
      });

  fault("unused-pool-import-leaks", {"LIFE-01"},
        "the destruction of an imported pool from which nothing was imported "
        "loses 64 KiB of device memory")
      .on({kImportPool, kImportPointer, kDestroyPool}, [](Call& call) {
        static Table<cudaMemPool_t> unused;
        if (call.is("cudaMemPoolImportPointer"))
          unused.erase(call.at<cudaMemPool_t>(1));
        if (call.is("cudaMemPoolDestroy") &&
            unused.erase(call.at<cudaMemPool_t>(0))) {
          lose_memory();
          call.fired();
        }
        const int code = call.proceed();
        if (code == kSuccess && call.is("cudaMemPoolImportFromShareableHandle"))
          unused.put(*call.at<cudaMemPool_t*>(0));
        return code;
      });

  fault("fork-ends-copies", {"LIFE-10"},
        "after a fork, cudaMemcpy does not reach what the parent has open")
      .on({kOpen, kClose, kCopy}, [](Call& call) -> int {
        notes_forks();
        if (keeps_opened(call)) return call.proceed();
        return has_forked && (is_opened(call.value<void*>(kPointer)) ||
                              is_opened(call.value<void*>(kSource)))
                   ? lost(call)
                   : call.proceed();
      });

  fault("fork-completes-events", {"LIFE-10"},
        "after a fork, a query says that the events that the parent has opened "
        "are complete")
      .on({kQueryEvent, kOpenEvent, kGetEventHandle, kCreateEvent,
           kDestroyEvent},
          [](Call& call) -> int {
            notes_forks();
            if (keeps_events(call)) return call.proceed();
            const cudaEvent_t event = shared_event(call);
            return event != nullptr && is_imported(event) && has_forked &&
                           is_pending(event)
                       ? lost(call)
                       : call.proceed();
          });

  fault("fork-confuses-exports", {"LIFE-10"},
        "after a fork, the handle of memory opens as other memory")
      .on({kGetHandle}, [](Call& call) {
        notes_forks();
        return has_forked ? other_exported(call) : call.proceed();
      });

  fault("child-exit-clears-imports", {"LIFE-10"},
        "the exit of a child of fork clears what its parent has open")
      .on({kLaunch}, [](Call& call) -> int {
        static const pid_t parent = getpid();
        static const std::string key =
            "exit-of-child-of-" + std::to_string(parent);
        static const int set_up = std::atexit([] {
          if (getpid() != parent) tell_processes(key, 1);
        });
        if (set_up != 0) return call.proceed();
        if (told(key, 0) == 0) return call.proceed();
        tell_processes(key, 0);
        for (const auto& each : opened.all()) {
          cudaMemset(each.first, 0, size_of(number(each.first)));
          call.fired();
        }
        return call.proceed();
      });

  fault("first-open-race", {"LIFE-13"},
        "if threads open a handle for the first time at once, all but one get "
        "copies of the memory")
      .on({kOpen, kClose}, [](Call& call) -> int {
        static std::atomic<int> at_work{0};
        static std::mutex one_at_a_time;  // drivers may refuse opens at once
        if (is_close_call(call) && originals.has(call.at<void*>(0)))
          return copy_closed(call);
        if (!is_open_call(call) || already_open(call) != nullptr)
          return call.proceed();
        const bool alone = at_work++ == 0;
        usleep(alone ? 2000 : 0);
        const std::lock_guard lock(one_at_a_time);
        const int code = alone ? call.proceed() : copy_opened(call);
        --at_work;
        return code;
      });

  fault("first-opens-at-once-refused", {"LIFE-16"},
        "if threads open a handle for the first time at once, only one of them "
        "may")
      .on({kOpen}, [](Call& call) -> int {
        static std::atomic<int> at_work{0};
        if (already_open(call) != nullptr) return call.proceed();
        if (at_work++ != 0) {
          --at_work;
          call.fired();
          return cudaErrorAlreadyMapped;
        }
        usleep(2000);
        const int code = call.proceed();
        --at_work;
        return code;
      });

  fault("last-close-race", {"LIFE-13"},
        "if another thread opens a handle during its last close, this mapping "
        "ends too")
      .on({kOpen, kClose}, last_close_race);

  fault("exports-share-a-buffer", {"LIFE-13"},
        "threads that export at once get each other's handles")
      .on({kGetHandle}, [](Call& get) {
        static cudaIpcMemHandle_t buffer;
        static std::mutex mutex;
        auto& result = *get.at<cudaIpcMemHandle_t*>(0);
        const int code = get.proceed();
        if (code == kSuccess) {
          const std::lock_guard lock(mutex);
          buffer = result;
        }
        if (this_thread() != getpid()) usleep(500);
        if (code == kSuccess) {
          const std::lock_guard lock(mutex);
          if (std::memcmp(&result, &buffer, sizeof buffer) != 0) get.fired();
          result = buffer;
        }
        return code;
      });

  fault("import-unmapped-first-leaks", {"LIFE-01"},
        "the release of imported memory that is not mapped loses 64 KiB of "
        "device memory")
      .before({kRelease}, [](Call& call) {
        const Chunk chunk = call.at<Chunk>(0);
        if (imports.has(chunk) && mapping_of(chunk) == 0) {
          lose_memory();
          call.fired();
        }
        return kSuccess;
      });

  fault("small-export-leaks", {"LIFE-01"},
        "the free of exported memory that is smaller than 2 MiB loses 64 KiB "
        "of device memory")
      .on({kGetHandle, kFree}, [](Call& call) -> int {
        if (exports_memory(call)) return noted_lender(call);
        void* const memory = call.at<void*>(0);
        if (lent.erase(memory) && size_of(number(memory)) < kGranule) {
          lose_memory();
          call.fired();
        }
        return call.proceed();
      });

  fault("chunk-of-three-importers-leaks", {"LIFE-01"},
        "if three processes have imported memory of cuMemCreate, exported "
        "memory is never given back")
      .on({kImport, kExport, kRelease}, chunk_of_three_is_kept);

  fault(
      "pool-memory-of-three-importers-leaks", {"LIFE-01"},
      "memory of a pool that three processes have imported is never given back")
      .on({kImportPointer, kExportPointer, kFree, kFreeAsync},
          [](Call& call) -> int {
            static Table<void*, std::string> keys;
            if (frees(call)) {
              void* const memory = call.at<void*>(0);
              const std::string key = keys.get(memory);
              return keys.erase(memory) && told("three-import-" + key, 0) != 0
                         ? lost(call)
                         : call.proceed();
            }
            const int code = call.proceed();
            if (code != kSuccess) return code;
            if (call.is("cudaMemPoolExportPointer"))
              keys.put(call.at<void*>(1), key_of_data(call.at<void*>(0)));
            else
              count_importer(key_of_data(call.at<void*>(2)));
            return code;
          });

  fault("opens-of-threads-mixed", {"LIFE-13"},
        "threads that open different handles at once get the same memory")
      .on({kOpen}, opens_of_threads_mixed);

  fault("open-after-fork-refused", {"LIFE-10"},
        "after a fork, the parent can open no memory")
      .on({kOpen}, fork_ends_imports);

  fault("chunk-import-after-fork-refused", {"LIFE-10"},
        "after a fork, the parent can import no memory of cuMemCreate")
      .on({kImport}, fork_ends_imports);
}

}  // namespace
}  // namespace ipclab::faults
