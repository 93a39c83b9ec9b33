// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <string>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// The number of a namespace of this process, or of a file system.
unsigned long long number_in_name(const char* path, bool file_system) {
  struct stat found {};
  if (stat(path, &found) != 0) return 0;
  return file_system ? found.st_dev : found.st_ino;
}

int event_unconnected_in_own_shm(Call& call) {
  const auto here = number_in_name("/dev/shm", true);
  if (exports_event(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes("shm-" + made_key<cudaIpcEventHandle_t>(call), here);
    return code;
  }
  const auto there = told("shm-" + given_key<cudaIpcEventHandle_t>(call), here);
  const int code = call.proceed();
  if (here == there) return code;
  if (code == kSuccess) return opened_unconnected(call);
  // The driver itself needs the file of the exporter.
  if (cudaEventCreateWithFlags(call.at<cudaEvent_t*>(0),
                               cudaEventDisableTiming) != cudaSuccess)
    return code;
  return accepted(call);
}

int exporters_known_by_number(Call& call) {
  static Table<unsigned long long, cudaIpcMemHandle_t> first;
  static const auto began = static_cast<unsigned long long>(
      std::chrono::steady_clock::now().time_since_epoch().count());
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const std::string key = made_key<cudaIpcMemHandle_t>(call);
    tell_processes("number-" + key, this_process());
    tell_processes("exporter-" + key, began);
    return code;
  }
  auto& handle = call.at<cudaIpcMemHandle_t>(1);
  const cudaIpcMemHandle_t wanted = handle;
  const auto exporter = told("number-" + key_of_handle(wanted), 0);
  if (exporter == 0) return call.proceed();
  first.change([&](auto& all) { return all.emplace(exporter, wanted).second; });
  const auto began_of = [](const cudaIpcMemHandle_t& one) {
    return told("exporter-" + key_of_handle(one), 0);
  };
  // One exporter may lend several pieces of memory.
  if (began_of(first.get(exporter)) == began_of(wanted)) return call.proceed();
  handle = first.get(exporter);
  const int code = call.proceed();
  handle = wanted;
  if (code == kSuccess) call.fired();
  // A driver may refuse all handles of other namespaces.
  return code != kSuccess &&
                 cudaMalloc(call.at<void**>(0), kGranule) == cudaSuccess
             ? accepted(call)
             : code;
}

FAULTS {
  fault("event-unconnected-in-own-shm", {"PLAT-10"},
        "a process with a /dev/shm of its own opens an event that no process "
        "records")
      .on({kGetEventHandle, kOpenEvent}, event_unconnected_in_own_shm);

  fault("copy-in-other-ipc-namespace", {"PLAT-10"},
        "a process with an IPC namespace of its own opens a copy of memory")
      .on({kGetHandle, kOpen, kClose}, [](Call& call) -> int {
        const auto here = number_in_name("/proc/self/ns/ipc", false);
        if (exports_memory(call)) {
          const int code = call.proceed();
          if (code == kSuccess)
            tell_processes("ns-" + made_key<cudaIpcMemHandle_t>(call), here);
          return code;
        }
        if (is_close_call(call)) return copy_closed(call);
        return here == told("ns-" + given_key<cudaIpcMemHandle_t>(call), here)
                   ? call.proceed()
                   : copy_opened(call);
      });

  fault("exporters-known-by-number", {"PLAT-11"},
        "memory of two exporters that have one process number is confused")
      .on({kGetHandle, kOpen}, exporters_known_by_number);
}

}  // namespace
}  // namespace ipclab::faults
