// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// Memory that a process had open when it died stays in use. Each process that
// opens a handle has its own number for this handle.
std::string key_of_opener(const std::string& handle, int number) {
  return "user-" + handle + "-" + std::to_string(number);
}

int own_number(const std::string& handle) {
  static Table<std::string, int> numbers;
  if (!numbers.has(handle)) {
    int number = 0;
    while (!first_of_all_processes("taken-" + key_of_opener(handle, number)))
      ++number;
    numbers.put(handle, number);
  }
  return numbers.get(handle);
}

int noted_user(Call& call) {
  const std::string handle =
      is_close_call(call) ? opened.get(call.at<void*>(0)).handle : "";
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto tell = [](const std::string& opened_handle, pid_t user) {
    tell_processes(key_of_opener(opened_handle, own_number(opened_handle)),
                   static_cast<unsigned long long>(user));
  };
  if (is_open_call(call))
    tell(opened.get(*call.at<void**>(0)).handle, getpid());
  else if (!handle.empty() && !opened.has(call.at<void*>(0)))
    tell(handle, 0);
  return code;
}

bool user_died(const std::string& handle) {
  constexpr unsigned long long kNone = ~0ull;
  for (int number = 0;; ++number) {
    const auto user = told(key_of_opener(handle, number), kNone);
    if (user == kNone) return false;
    if (user != 0 && kill(static_cast<pid_t>(user), 0) != 0 && errno == ESRCH)
      return true;
  }
}

int record_of_other_session(Call& call) {
  static Table<cudaEvent_t> foreign;
  if (records(call))
    return foreign.has(call.value<cudaEvent_t>(kEvent)) ? lost(call)
                                                        : call.proceed();
  if (call.is("cudaEventDestroy")) {
    foreign.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto session = static_cast<unsigned long long>(getsid(0));
  if (exports_event(call))
    tell_processes(
        "session-" + key_of_handle(*call.at<cudaIpcEventHandle_t*>(0)),
        session);
  else if (told("session-" + key_of_handle(call.at<cudaIpcEventHandle_t>(1)),
                session) != session)
    foreign.put(*call.at<cudaEvent_t*>(0));
  return code;
}

int death_clears_memory(Call& call) {
  static Table<void*, std::string> lent;
  if (call.is("cudaIpcGetMemHandle")) {
    const int code = call.proceed();
    if (code == kSuccess)
      lent.put(call.at<void*>(1), key_of(call.at<void*>(0), 64));
    return code;
  }
  if (call.is("cudaFree")) {
    lent.erase(call.at<void*>(0));
    return call.proceed();
  }
  if (call.find(kBytes) == nullptr) return noted_client(call);
  for (const auto& [address, handle] : lent.all()) {
    if (!client_died(handle) || !first_of_all_processes("clear-" + handle))
      continue;
    CUdeviceptr begin = 0;
    size_t bytes = 0;
    DRIVER_CALL(cuMemGetAddressRange)
    (&begin, &bytes, reinterpret_cast<CUdeviceptr>(address));
    DRIVER_CALL(cuMemsetD8)(begin, 0, bytes);
    call.fired();
  }
  return call.proceed();
}

// A session may be 0: its leader is then outside this PID namespace, as in a
// container.
bool is_of_other_session(const std::string& key) {
  const auto own = static_cast<unsigned long long>(getsid(0));
  return told("session-" + key, own) != own;
}

void tell_session(const std::string& key) {
  tell_processes("session-" + key, static_cast<unsigned long long>(getsid(0)));
}

int relatives_open(Call& call) {
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const std::string key = key_of(call.at<void*>(0), CUDA_IPC_HANDLE_SIZE);
    tell_processes("exporter-" + key,
                   static_cast<unsigned long long>(getpid()));
    tell_processes("parent-" + key, static_cast<unsigned long long>(getppid()));
    return code;
  }
  const std::string key = key_of_handle(call.at<cudaIpcMemHandle_t>(1));
  const auto exporter = static_cast<pid_t>(told("exporter-" + key, 0));
  const auto parent = static_cast<pid_t>(told("parent-" + key, 0));
  return exporter == 0 || exporter == getppid() || parent == getpid() ||
                 parent == getppid()
             ? call.proceed()
             : refused(call);
}

int death_on_other_gpu_keeps_memory(Call& call) {
  if (exports_memory(call)) {
    const int code = told_owner(call);
    if (code == kSuccess)
      lent.put(call.at<void*>(1), made_key<cudaIpcMemHandle_t>(call));
    return code;
  }
  if (call.is("cudaFree")) {
    void* const memory = call.at<void*>(0);
    const std::string handle = lent.get(memory);
    return lent.erase(memory) && user_has_ended("far-" + handle)
               ? lost(call)
               : call.proceed();
  }
  const bool opens = is_open_call(call);
  const bool far =
      opens && owner_of(call.at<cudaIpcMemHandle_t>(1)) != current_place();
  const std::string handle = opens ? given_key<cudaIpcMemHandle_t>(call)
                                   : opened.get(call.at<void*>(0)).handle;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (far) tell_processes("far-" + handle, this_process());
  if (!opens && !opened.has(call.at<void*>(0)) &&
      told("far-" + handle, 0) == this_process())
    tell_processes("far-" + handle, 0);
  return code;
}

int descriptor_for_each_client(Call& call) {
  static Table<std::string, int> counted;
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      counted.change([&](auto& all) {
        all.emplace(made_key<cudaIpcMemHandle_t>(call), 0);
        return 0;
      });
    return code;
  }
  const auto user = [](const std::string& handle, int client) {
    return "client-" + std::to_string(client) + "-" + handle;
  };
  if (is_open_call(call)) {
    static Table<std::string> before;
    const std::string handle = given_key<cudaIpcMemHandle_t>(call);
    int client = 0;
    if (!before.put(handle)) return call.proceed();
    while (!first_of_all_processes("is-" + user(handle, client))) ++client;
    tell_processes(user(handle, client), 1);
    return call.proceed();
  }
  for (auto [handle, count] : counted.all()) {
    for (; told(user(handle, count), 0) != 0; ++count)
      if (eventfd(0, EFD_CLOEXEC) >= 0) call.fired();
    counted.put(handle, count);
  }
  return call.proceed();
}

FAULTS {
  fault("ok-death-keeps-memory", {"SERV-02"},
        "memory that an importer had open when it died is never given back")
      .on({kGetHandle, kOpen, kClose, kFree}, [](Call& call) -> int {
        static Table<void*, std::string> handles;
        if (call.is("cudaIpcGetMemHandle")) {
          const int code = call.proceed();
          if (code == kSuccess)
            handles.put(call.at<void*>(1),
                        key_of_handle(exported_handle(call)));
          return code;
        }
        if (!call.is("cudaFree")) return noted_user(call);
        void* const address = call.at<void*>(0);
        const std::string handle = handles.get(address);
        return handles.erase(address) && user_died(handle) ? lost(call)
                                                           : call.proceed();
      });

  fault("ok-death-ends-handle", {"SERV-02"},
        "after an importer died that had memory open, no process can open the "
        "handle of this memory")
      .on({kOpen, kClose}, [](Call& call) {
        return is_open_call(call) &&
                       user_died(key_of_handle(call.at<cudaIpcMemHandle_t>(1)))
                   ? refused(call)
                   : noted_user(call);
      });

  fault("other-session-record-lost", {"SERV-01"},
        "a process of another session records an imported event in vain")
      .on({kGetEventHandle, kOpenEvent, kRecord, kRecordFlags, kDestroyEvent},
          record_of_other_session);

  fault("death-clears-memory", {"SERV-02"},
        "if a process that has memory open dies, the memory is cleared")
      .on({kGetHandle, kOpen, kClose, kFree, kCopy, kSet}, death_clears_memory);

  fault("death-ends-other-mappings", {"SERV-02"},
        "if a process that has memory open dies, synchronous copies and "
        "memsets of other importers do not reach this memory")
      .on({kOpen, kClose, kCopy, kSet}, [](Call& call) -> int {
        if (call.find(kBytes) == nullptr) return noted_client(call);
        for (const Role role : {kPointer, kSource}) {
          if (call.find(role) == nullptr) continue;
          void* const begin = opened_around(call.value<void*>(role));
          if (begin != nullptr && client_died(opened.get(begin).handle))
            return lost(call);
        }
        return call.proceed();
      });

  fault("other-session-refused", {"SERV-01"},
        "a process of another session cannot open memory")
      .on({kGetHandle, kOpen}, [](Call& call) -> int {
        if (call.is("cudaIpcOpenMemHandle"))
          return is_of_other_session(key_of(&call.at<cudaIpcMemHandle_t>(1),
                                            CUDA_IPC_HANDLE_SIZE))
                     ? refused(call)
                     : call.proceed();
        const int code = call.proceed();
        if (code == kSuccess)
          tell_session(key_of(call.at<void*>(0), CUDA_IPC_HANDLE_SIZE));
        return code;
      });

  fault("other-session-event-unconnected", {"SERV-01"},
        "a process of another session opens an event that no process records")
      .on({kGetEventHandle, kOpenEvent}, [](Call& call) {
        if (exports_event(call)) {
          const int code = call.proceed();
          if (code == kSuccess)
            tell_session(key_of(call.at<void*>(0), CUDA_IPC_HANDLE_SIZE));
          return code;
        }
        const bool foreign = is_of_other_session(
            key_of(&call.at<cudaIpcEventHandle_t>(1), CUDA_IPC_HANDLE_SIZE));
        const int code = call.proceed();
        if (code != kSuccess || !foreign) return code;
        cudaEvent_t& event = *call.at<cudaEvent_t*>(0);
        cudaEventDestroy(event);
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
        call.fired();
        return code;
      });

  fault("other-session-import-refused", {"SERV-01"},
        "a process of another session cannot import memory of cuMemCreate")
      .on({kExport, kImport}, [](Call& call) -> int {
        if (call.is("cuMemImportFromShareableHandle"))
          return imports_descriptor(call) &&
                         is_of_other_session(
                             key_of_descriptor(descriptor_of(call)))
                     ? refused(call)
                     : call.proceed();
        const int code = call.proceed();
        if (code == kSuccess && call.at<CUmemAllocationHandleType>(2) == kFd)
          tell_session(key_of_descriptor(*call.at<int*>(0)));
        return code;
      });

  fault(
      "relatives-open", {"SERV-01"},
      "only a parent, a child or a brother of the exporter can open its memory")
      .on({kGetHandle, kOpen}, relatives_open);

  fault("exit-keeps-opened-memory", {"SERV-02"},
        "memory that a process has open when it exits is never given back")
      .on({kGetHandle, kFree}, [](Call& call) -> int {
        static const int set_up = std::atexit([] {
          for (const auto& each : opened.all())
            tell_processes("kept-" + each.second.handle, 1);
        });
        if (exports_memory(call)) return noted_lender(call);
        if (!call.is("cudaFree") || set_up != 0) return call.proceed();
        void* const memory = call.at<void*>(0);
        const std::string handle = lent.get(memory);
        return lent.erase(memory) && told("kept-" + handle, 0) != 0
                   ? lost(call)
                   : call.proceed();
      });

  fault("death-on-other-gpu-keeps-memory", {"SERV-02"},
        "memory that a process on another GPU has open when it dies is never "
        "given back")
      .with_gpus(2)
      .on({kGetHandle, kOpen, kClose, kFree}, death_on_other_gpu_keeps_memory);

  fault("descriptor-for-each-client", {"SERV-02"},
        "the exporter keeps a descriptor for each process that has opened its "
        "memory")
      .on({kGetHandle, kOpen, kCopy}, descriptor_for_each_client);
}

}  // namespace
}  // namespace ipclab::faults
