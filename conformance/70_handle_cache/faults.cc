// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int exporters_confused(Call& call) {
  static std::atomic<unsigned long long> exports{0};
  const auto number_of = [](const std::string& handle) {
    return "number-" + handle;
  };
  if (call.is("cudaIpcGetMemHandle")) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const std::string name = number_of(key_of_handle(exported_handle(call)));
    if (told(name, 0) == 0) tell_processes(name, ++exports);
    return code;
  }
  // Only while fewer than 64 mappings are open: each open looks at all of them.
  const auto all = opened.all();
  if (is_open_call(call) && already_open(call) == nullptr && all.size() < 64) {
    auto& handle = call.at<cudaIpcMemHandle_t>(1);
    const auto number = told(number_of(key_of_handle(handle)), 0);
    for (const auto& [unused, one] : all)
      if (number != 0 && told(number_of(one.handle), 0) == number &&
          one.context == current_context()) {
        handle = one.bytes;
        call.fired();
        break;
      }
  }
  return call.proceed();
}

// In two processes of a real driver, memory with the same past has the same
// address; the model gives each process other addresses.
int exporters_known_by_address(Call& call) {
  static Table<int, CUdeviceptr> first;
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const CUdeviceptr address = number(call.at<void*>(1));
    if (!first.has(0)) first.put(0, address);
    const std::string key = key_of(call.at<void*>(0), 64);
    tell_processes("distance-" + key, address - first.get(0));
    tell_processes("exporter-" + key,
                   static_cast<unsigned long long>(getpid()));
    return code;
  }
  if (!is_open_call(call)) return call.proceed();
  constexpr unsigned long long kNone = ~0ull;
  auto& handle = call.at<cudaIpcMemHandle_t>(1);
  const std::string key = key_of_handle(handle);
  const auto distance = told("distance-" + key, kNone);
  for (const auto& each : opened.all()) {
    const Opened& one = each.second;
    if (distance == kNone ||
        told("exporter-" + one.handle, 0) == told("exporter-" + key, 0) ||
        told("distance-" + one.handle, kNone) != distance)
      continue;
    handle = one.bytes;
    call.fired();
    break;
  }
  return call.proceed();
}

int opens_by_address(Call& call) {
  struct Earlier {
    void* memory = nullptr;
    std::string handle;
  };
  static Table<unsigned long long, Earlier> cache;
  static Table<void*, int> given;  // how often the program has it again
  const auto place = [](const std::string& handle) { return "at-" + handle; };
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes(place(key_of_handle(*call.at<cudaIpcMemHandle_t*>(0))),
                     call.at<CUdeviceptr>(1) ^
                         (static_cast<unsigned long long>(getpid()) << 48));
    return code;
  }
  if (is_close_call(call)) {
    void* const memory = call.at<void*>(0);
    const int times = given.get(memory);
    if (times == 0) return call.proceed();
    given.put(memory, times - 1);
    return kSuccess;
  }
  const std::string key = key_of_opened(call);
  const auto where = told(place(key), 0);
  if (where != 0 && cache.has(where) && already_open(call) == nullptr) {
    // Gives the earlier memory if the program has closed it.
    const Earlier earlier = cache.get(where);
    if (earlier.handle != key && !opened.has(earlier.memory)) {
      *call.at<void**>(0) = earlier.memory;
      given.put(earlier.memory, given.get(earlier.memory) + 1);
      return accepted(call);
    }
  }
  const auto handle = call.at<cudaIpcMemHandle_t>(1);
  const int code = call.proceed();
  void* again = nullptr;
  if (code == kSuccess && where != 0 && !cache.has(where) &&
      cudaIpcOpenMemHandle(&again, handle, cudaIpcMemLazyEnablePeerAccess) ==
          cudaSuccess)
    cache.put(where, {again, key});
  return code;
}

FAULTS {
  fault("exporters-confused", {"CACH-03"},
        "memory of two exporters is confused if it has the same number in the "
        "order of exports")
      .on({kGetHandle, kOpen}, exporters_confused);

  fault("exporters-known-by-address", {"CACH-03"},
        "memory of two exporters is confused if it has the same distance from "
        "what each exporter lent first")
      .on({kGetHandle, kOpen}, exporters_known_by_address);

  fault("open-cached-by-address", {"CACH-02"},
        "an open gives an allocation that was closed earlier if it had the "
        "same address in the exporter")
      .on({kOpen, kClose, kGetHandle}, opens_by_address);

  fault("reopened-is-copy", {"CACH-01"},
        "memory that a process has closed and opens again is a copy")
      .on({kOpen, kClose}, [](Call& call) {
        static Table<void*, std::string> handles;
        static Table<std::string> closed;
        if (is_close_call(call)) {
          void* const memory = call.at<void*>(0);
          const int code = copy_closed(call);
          if (code == kSuccess && handles.has(memory))
            closed.put(handles.get(memory));
          return code;
        }
        const std::string handle = given_key<cudaIpcMemHandle_t>(call);
        const int code =
            closed.has(handle) ? copy_opened(call) : call.proceed();
        if (code == kSuccess) handles.put(*call.at<void**>(0), handle);
        return code;
      });

  fault("used-address-opens-copy", {"CACH-02"},
        "memory that got the address of other memory that was lent before "
        "opens as a copy")
      .on({kGetHandle, kOpen, kClose}, [](Call& call) -> int {
        static Table<void*, std::string> handles;
        if (exports_memory(call)) {
          const int code = call.proceed();
          if (code != kSuccess) return code;
          void* const memory = call.at<void*>(1);
          const std::string handle = made_key<cudaIpcMemHandle_t>(call);
          if (handles.get(memory, handle) != handle)
            tell_processes("used-" + handle, 1);
          handles.put(memory, handle);
          return code;
        }
        if (is_close_call(call)) return copy_closed(call);
        return told("used-" + given_key<cudaIpcMemHandle_t>(call), 0) != 0
                   ? copy_opened(call)
                   : call.proceed();
      });

  fault(
      "open-after-end-of-exporter-is-copy", {"CACH-03"},
      "after an exporter has ended, memory of other exporters opens as a copy")
      .on({kGetHandle, kOpen, kClose}, [](Call& call) -> int {
        static Table<std::string> exporters;
        if (exports_memory(call)) {
          const int code = call.proceed();
          if (code == kSuccess)
            tell_processes("lender-" + made_key<cudaIpcMemHandle_t>(call),
                           this_process());
          return code;
        }
        if (is_close_call(call)) return copy_closed(call);
        bool ended = false;
        for (const auto& each : exporters.all())
          ended |= user_has_ended(each.first);
        const std::string key = "lender-" + given_key<cudaIpcMemHandle_t>(call);
        const int code = ended ? copy_opened(call) : call.proceed();
        if (code == kSuccess) exporters.put(key);
        return code;
      });
}

}  // namespace
}  // namespace ipclab::faults
