// Bugs of processes that die, are in another session or use MPS; of graphs; and
// of imports that a second GPU uses.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "harness/faults/world/chunks.h"
#include "harness/faults/words/descriptor.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {
namespace {

// --- memory whose exporter died ----------------------------------------------

std::string key_of_descriptor(int descriptor) {
  struct stat status {};
  fstat(descriptor, &status);
  return "chunk-" + std::to_string(status.st_dev) + "-" +
         std::to_string(status.st_ino);
}
bool has_died(unsigned long long process) {
  return process != 0 && kill(static_cast<pid_t>(process), 0) != 0 &&
         errno == ESRCH;
}

struct Import {
  unsigned long long exporter = 0;
  bool orphan = false;  // the exporter was dead at the time of the import
};
Table<Chunk, Import> imported;
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

int import_lost_before_map(Call& call) {
  if (!call.is("cuMemMap")) return noted_exporter(call);
  const Import import = imported.get(call.at<Chunk>(3));
  return !import.orphan && has_died(import.exporter)
             ? refused(call, CUDA_ERROR_INVALID_VALUE)
             : noted_exporter(call);
}

int access_lost_at_death(Call& call) {
  if (!call.is("cuMemSetAccess")) return noted_exporter(call);
  const auto one = mapped.get(call.at<CUdeviceptr>(0));
  return has_died(one.second.exporter) ? refused(call) : noted_exporter(call);
}

int frozen_at_death(Call& call) {
  if (call.find(kBytes) == nullptr || call.is("cuMemMap") ||
      call.is("cuMemUnmap"))
    return noted_exporter(call);
  for (const auto& [begin, one] : mapped.all())
    if (call.value<CUdeviceptr>(kPointer) - begin < one.first &&
        has_died(one.second.exporter))
      return no_wait(call);
  return call.proceed();
}

int second_import_after_death_refused(Call& call) {
  static Table<int> before;  // a duplicate of each descriptor that was imported
  if (!call.is("cuMemImportFromShareableHandle") || !imports_descriptor(call))
    return noted_exporter(call);
  const int descriptor = descriptor_of(call);
  for (const auto& each : before.all())
    if (name_the_same(each.first, descriptor))
      return has_died(told(key_of_descriptor(descriptor), 0))
                 ? refused(call)
                 : noted_exporter(call);
  const int code = noted_exporter(call);
  if (code == kSuccess) before.put(fcntl(descriptor, F_DUPFD_CLOEXEC, 300));
  return code;
}

// --- clients that die --------------------------------------------------------

// The key for one of the processes that open a handle. The value that is stored
// under the key is the id of the process, or 0 after the close.
std::string key_of_user(const std::string& handle, int number) {
  return "client-" + handle + "-" + std::to_string(number);
}
int noted_client(Call& call) {
  static Table<std::string, int> numbers;
  const std::string handle =
      is_close_call(call) ? opened.get(call.at<void*>(0)).handle : "";
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (is_open_call(call)) {
    const std::string key = opened.get(*call.at<void**>(0)).handle;
    if (!numbers.has(key)) {
      int number = 0;
      while (!first_of_all_processes("is-" + key_of_user(key, number)))
        ++number;
      numbers.put(key, number);
    }
    tell_processes(key_of_user(key, numbers.get(key)),
                   static_cast<unsigned long long>(getpid()));
  } else if (!handle.empty() && !opened.has(call.at<void*>(0))) {
    tell_processes(key_of_user(handle, numbers.get(handle)), 0);
  }
  return code;
}
bool client_died(const std::string& handle) {
  constexpr unsigned long long kNone = ~0ull;
  for (int number = 0;; ++number) {
    const auto user = told(key_of_user(handle, number), kNone);
    if (user == kNone) return false;
    if (has_died(user)) return true;
  }
}

// If a process that has memory open dies, the memory is cleared.
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

// If a process that has memory open dies, synchronous copies and memsets of
// other importers do not reach this memory.
int death_ends_other_mappings(Call& call) {
  if (call.find(kBytes) == nullptr) return noted_client(call);
  for (const Role role : {kPointer, kSource}) {
    if (call.find(role) == nullptr) continue;
    void* const begin = opened_around(call.value<void*>(role));
    if (begin != nullptr && client_died(opened.get(begin).handle))
      return no_wait(call);
  }
  return call.proceed();
}

// --- processes of another session --------------------------------------------

// A session may be 0: its leader is then outside this PID namespace, as in a
// container.
bool is_of_other_session(const std::string& key) {
  const auto own = static_cast<unsigned long long>(getsid(0));
  return told("session-" + key, own) != own;
}
void tell_session(const std::string& key) {
  tell_processes("session-" + key, static_cast<unsigned long long>(getsid(0)));
}

int other_session_refused(Call& call) {
  if (call.is("cudaIpcOpenMemHandle"))
    return is_of_other_session(
               key_of(&call.at<cudaIpcMemHandle_t>(1), CUDA_IPC_HANDLE_SIZE))
               ? refused(call)
               : call.proceed();
  const int code = call.proceed();
  if (code == kSuccess)
    tell_session(key_of(call.at<void*>(0), CUDA_IPC_HANDLE_SIZE));
  return code;
}

int other_session_event_unconnected(Call& call) {
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
}

// A process of another session cannot import memory of cuMemCreate.
int other_session_import_refused(Call& call) {
  if (call.is("cuMemImportFromShareableHandle"))
    return imports_descriptor(call) &&
                   is_of_other_session(key_of_descriptor(descriptor_of(call)))
               ? refused(call)
               : call.proceed();
  const int code = call.proceed();
  if (code == kSuccess && call.at<CUmemAllocationHandleType>(2) == kFd)
    tell_session(key_of_descriptor(*call.at<int*>(0)));
  return code;
}

// --- MPS ---------------------------------------------------------------------

int mps_event_unconnected(Call& open) {
  const int code = open.proceed();
  if (code != kSuccess || !is_mps_client()) return code;
  cudaEvent_t& event = *open.at<cudaEvent_t*>(0);
  cudaEventDestroy(event);
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  open.fired();
  return code;
}

// Copies and memsets by a client of MPS do not reach opened memory.
int mps_client_writes_lost(Call& call) {
  if (call.find(kBytes) == nullptr) return call.proceed();
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  DRIVER_CALL(cuMemGetAddressRange)
  (&begin, &bytes, call.value<CUdeviceptr>(kPointer));
  return opened.has(reinterpret_cast<void*>(begin)) && is_mps_client()
             ? no_wait(call)
             : call.proceed();
}

// --- graphs ------------------------------------------------------------------

bool is_captured(cudaStream_t stream) {
  using Ask = cudaError_t(cudaStream_t, cudaStreamCaptureStatus*);
  static const auto ask =
      reinterpret_cast<Ask*>(resolve_runtime("cudaStreamIsCapturing"));
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return ask != nullptr && ask(stream, &status) == cudaSuccess &&
         status == cudaStreamCaptureStatusActive;
}
int not_captured(Call& call) {
  return is_captured(call.value<cudaStream_t>(kStream)) ? no_wait(call)
                                                        : call.proceed();
}

int launches_to_32(Call& launch) {
  static Table<void*, int> launches;
  if (launch.is("cudaGraphInstantiate")) {
    const int code = launch.proceed();
    // An earlier graph may have had the same address.
    if (code == kSuccess) launches.erase(*launch.at<void**>(0));
    return code;
  }
  void* const graph = launch.at<void*>(0);
  launches.put(graph, launches.get(graph) + 1);
  return launches.get(graph) > 32 ? no_wait(launch) : launch.proceed();
}

int launch_of_other_thread_lost(Call& launch) {
  return gettid() != getpid() ? no_wait(launch) : launch.proceed();
}

int launch_in_default_stream_lost(Call& launch) {
  return is_default(launch.at<cudaStream_t>(1)) ? no_wait(launch)
                                                : launch.proceed();
}

int second_graph_is_first(Call& launch) {
  static Table<int, void*> first;
  void*& graph = launch.at<void*>(0);
  if (!first.has(0)) first.put(0, graph);
  if (graph != first.get(0)) {
    graph = first.get(0);
    launch.fired();
  }
  return launch.proceed();
}

// --- imports and a second GPU ------------------------------------------------

int current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

int import_device_current(Call& call) {
  if (!call.is("cudaPointerGetAttributes")) return call.proceed();
  const int code = call.proceed();
  auto& found = *call.at<cudaPointerAttributes*>(0);
  if (code != kSuccess || !opened.has(call.at<void*>(1)) ||
      found.device == current_device())
    return code;
  found.device = current_device();
  call.fired();
  return code;
}

// Queries of other threads do not know memory that a thread has opened.
int import_unknown_to_other_threads(Call& call) {
  if (!call.is("cudaPointerGetAttributes")) return call.proceed();
  const int code = call.proceed();
  const Opened one = opened.get(call.at<void*>(1));
  if (code != kSuccess || one.count == 0 || one.thread == this_thread())
    return code;
  *call.at<cudaPointerAttributes*>(0) = {};
  call.fired();
  return code;
}

// Synchronous copies into or out of opened memory are lost if the process sees
// one GPU of several.
int hidden_gpu_copy_lost(Call& call) {
  if (call.find(kBytes) == nullptr) return call.proceed();
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr || std::strchr(visible, ',') != nullptr)
    return call.proceed();
  for (const Role role : {kPointer, kSource})
    if (is_opened(call.value<void*>(role))) return no_wait(call);
  return call.proceed();
}

// The driver API does not open memory of a GPU other than the current GPU.
int driver_opens_current_gpu_only(Call& call) {
  if (call.is("cudaIpcGetMemHandle")) return told_owner(call);
  const int code = call.proceed();
  if (code != kSuccess || call.is_runtime() ||
      owner_of(call.at<cudaIpcMemHandle_t>(1)) == current_place())
    return code;
  DRIVER_CALL(cuIpcCloseMemHandle)(*call.at<CUdeviceptr*>(0));
  return refused(call);
}

bool sets_access(Call& call) { return call.is("cudaMemPoolSetAccess"); }

// The access that is set for one imported pool is set for all imported pools.
int import_access_shared(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !sets_access(call) ||
      !imported_pools.has(call.at<cudaMemPool_t>(0)))
    return code;
  for (const auto& one : imported_pools.all())
    if (one.first != call.at<cudaMemPool_t>(0) &&
        cudaMemPoolSetAccess(one.first, call.at<const cudaMemAccessDesc*>(1),
                             call.at<size_t>(2)) == cudaSuccess)
      call.fired();
  return code;
}

int import_access_never_taken(Call& call) {
  return sets_access(call) && call.at<size_t>(2) == 1 &&
                 imported_pools.has(call.at<cudaMemPool_t>(0)) &&
                 call.at<const cudaMemAccessDesc*>(1)->flags ==
                     cudaMemAccessFlagsProtNone
             ? no_wait(call)
             : call.proceed();
}

int import_getaccess_of_resident(Call& call) {
  if (!call.is("cudaMemPoolGetAccess") ||
      !imported_pools.has(call.at<cudaMemPool_t>(1)))
    return call.proceed();
  const int code = call.proceed();
  auto& flags = *call.at<cudaMemAccessFlags*>(0);
  if (code != kSuccess || flags == cudaMemAccessFlagsProtReadWrite) return code;
  flags = cudaMemAccessFlagsProtReadWrite;
  call.fired();
  return code;
}

// Freeing one import ends the access that was set for its pool.
int import_access_ends_with_free(Call& call) {
  static Table<cudaMemPool_t, int> given;  // the value: the GPU with access
  if (frees(call)) {
    const Block block = blocks.get(call.at<void*>(0));
    const int code = call.proceed();
    if (code != kSuccess || !block.imported || !given.has(block.pool))
      return code;
    cudaMemAccessDesc none{};
    none.location.type = cudaMemLocationTypeDevice;
    none.location.id = given.get(block.pool);
    none.flags = cudaMemAccessFlagsProtNone;
    if (cudaMemPoolSetAccess(block.pool, &none, 1) == cudaSuccess) call.fired();
    given.erase(block.pool);
    return code;
  }
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMemPoolDestroy"))
    given.erase(call.at<cudaMemPool_t>(0));
  if (code != kSuccess || !sets_access(call) || call.at<size_t>(2) == 0 ||
      !imported_pools.has(call.at<cudaMemPool_t>(0)))
    return code;
  const auto& access = *call.at<const cudaMemAccessDesc*>(1);
  if (access.flags == cudaMemAccessFlagsProtReadWrite)
    given.put(call.at<cudaMemPool_t>(0), access.location.id);
  else
    given.erase(call.at<cudaMemPool_t>(0));
  return code;
}

// --- descriptors and imports of pools ----------------------------------------

bool is_descriptor(Call& export_call) {
  return export_call.at<cudaMemAllocationHandleType>(2) ==
         cudaMemHandleTypePosixFileDescriptor;
}

// The export of a pool writes a descriptor as a number of 8 bytes.
int pool_export_writes_8_bytes(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !is_descriptor(call)) return code;
  std::memset(call.at<char*>(0) + sizeof(int), 0, sizeof(int));
  call.fired();
  return code;
}

// The descriptor of a pool is closed when the thread that exported it ends.
int pool_descriptor_ends_with_thread(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !is_descriptor(call) || gettid() == getpid())
    return code;
  const int made = *call.at<int*>(0);
  const int copy = fcntl(made, F_DUPFD_CLOEXEC, 300);
  at_thread_end([made, copy] {
    // The number may belong to another descriptor now.
    if (is_open(made) && name_the_same(made, copy) && close(made) == 0)
      note_fired("cudaMemPoolExportToShareableHandle");
    close(copy);
  });
  return code;
}

// A refused import of a pool closes the descriptor.
int pool_refusal_closes_descriptor(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess) return code;
  const auto number = call.at<uintptr_t>(1);
  // Standard input, output and error stay open. If the type is wrong, the
  // argument can still be a descriptor: a small number.
  if (number > 2 && number < 4096 && close(static_cast<int>(number)) == 0)
    call.fired();
  return code;
}

// If an address of the exporter was imported before with another size, the size
// of the import is reported as the earlier size.
int import_has_earlier_size(Call& call) {
  static Table<unsigned long long, unsigned long long> sizes;
  static Table<CUdeviceptr, size_t> wrong;
  if (call.is("cuMemGetAddressRange")) {
    const int code = call.proceed();
    const auto address = call.at<CUdeviceptr>(2);
    if (code == kSuccess && call.at<size_t*>(1) != nullptr &&
        wrong.has(address)) {
      *call.at<size_t*>(1) = wrong.get(address);
      call.fired();
    }
    return code;
  }
  if (frees(call)) wrong.erase(call.at<CUdeviceptr>(0));
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMemPoolExportPointer"))
    tell_processes("address-" + key_of_data(call.at<void*>(0)),
                   number(call.at<void*>(1)));
  if (code != kSuccess || !call.is("cudaMemPoolImportPointer")) return code;
  const std::string key = key_of_data(call.at<void*>(2));
  const auto address = told("address-" + key, 0);
  const auto bytes = told(key, 0);
  if (sizes.has(address) && sizes.get(address) != bytes)
    wrong.put(*call.at<CUdeviceptr*>(0), sizes.get(address));
  sizes.put(address, bytes);
  return code;
}

// The importer's free in a stream waits for this stream.
int import_free_waits(Call& call) {
  if (call.is("cudaFreeAsync") && is_import(call.at<void*>(0)) &&
      is_busy(call.at<cudaStream_t>(1))) {
    call.fired();
    cudaStreamSynchronize(call.at<cudaStream_t>(1));
  }
  return call.proceed();
}

// --- processes that end, and processes that are not related ------------------

// If the exporter has exited before the first import, its descriptors cannot be
// imported.
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

// A stream does not write a word in memory that a process had open when it
// died.
int word_of_the_dead_lost(Call& call) {
  static Table<CUdeviceptr, std::string> lent;
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      lent.put(number(call.at<void*>(1)), key_of(call.at<void*>(0), 64));
    return code;
  }
  if (call.is("cudaFree")) {
    lent.erase(call.at<CUdeviceptr>(0));
    return call.proceed();
  }
  if (keeps_opened(call)) return noted_client(call);
  const std::string handle = lent.get(begin_of(call.at<CUdeviceptr>(1)));
  return !handle.empty() && client_died(handle) ? no_wait(call)
                                                : call.proceed();
}

// After a kernel of another process has faulted, the exporter's calls fail,
// too.
int fault_reaches_exporter(Call& call) {
  if (exports_memory(call)) return call.proceed();
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
}

// The exporter cannot free memory of a pool if the last process that imported
// it has ended without a free.
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

// Only a parent, a child or a brother of the exporter can open its memory.
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

// Opened memory is known by its distance from the memory that its exporter lent
// first: the handle of a second exporter opens the memory of the first one. (In
// two processes of a real driver, memory with the same past has the same
// address; the model gives each process other addresses.)
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

// Two opens of one handle at the same time count as one.
int opens_at_once_count_once(Call& call) {
  static Table<std::string, int> running;
  if (!is_open_call(call)) return call.proceed();
  const std::string handle = key_of_handle(call.at<cudaIpcMemHandle_t>(1));
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
}

// A process that is no client of MPS opens a copy of the memory of a client.
int mps_outsider_opens_copy(Call& call) {
  static Table<void*, void*> originals;
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess && is_mps_client())
      tell_processes("client-of-mps-" + key_of(call.at<void*>(0), 64), 1);
    return code;
  }
  if (is_close_call(call)) {
    void*& memory = call.at<void*>(0);
    void* const copy = memory;
    memory = originals.get(copy, copy);
    if (originals.erase(copy)) cudaFree(copy);
    return call.proceed();
  }
  const std::string key = key_of_handle(call.at<cudaIpcMemHandle_t>(1));
  const int code = call.proceed();
  if (code != kSuccess || is_mps_client() ||
      told("client-of-mps-" + key, 0) == 0)
    return code;
  void*& memory = *call.at<void**>(0);
  const size_t bytes = size_of(number(memory));
  void* copy = nullptr;
  if (cudaMalloc(&copy, bytes) != cudaSuccess) return code;
  cudaMemcpy(copy, memory, bytes, cudaMemcpyDeviceToDevice);
  cudaDeviceSynchronize();
  originals.put(copy, memory);
  memory = copy;
  call.fired();
  return code;
}

// On a GPU other than GPU 0, a record of an opened event does not wait for the
// work before it.
int record_on_later_gpu_early(Call& call) {
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  auto& stream = call.value<cudaStream_t>(kStream);
  if (event == nullptr || !is_imported(event) || current_device() == 0 ||
      !is_busy(stream))
    return call.proceed();
  stream = private_stream();
  call.fired();
  return call.proceed();
}

}  // namespace

static void add_processes_with_pools(List& list) {
  constexpr auto kExport = "cudaMemPoolExportToShareableHandle";
  constexpr auto kExportPointer = "cudaMemPoolExportPointer";
  constexpr auto kImportPointer = "cudaMemPoolImportPointer";
  list.named("pool-export-writes-8-bytes",
             "the export of a pool writes a descriptor as a number of 8 bytes",
             {kExport}, pool_export_writes_8_bytes);
  list.named("pool-descriptor-ends-with-thread",
             "the descriptor of a pool is closed when the thread that exported "
             "it ends",
             {kExport}, pool_descriptor_ends_with_thread);
  list.named("refused-pool-import-closes-descriptor",
             "a refused import of a pool closes the descriptor",
             {"cudaMemPoolImportFromShareableHandle"},
             pool_refusal_closes_descriptor);
  list.named("pool-import-has-earlier-size",
             "if an address of the exporter was imported before with another "
             "size, cuMemGetAddressRange reports the earlier size",
             {kExportPointer, kImportPointer, "cudaMallocAsync",
              "cudaMallocFromPoolAsync", "cudaFree", "cudaFreeAsync",
              "cuMemGetAddressRange"},
             import_has_earlier_size);
  list.named("import-freeasync-waits",
             "the importer's cudaFreeAsync waits for its stream",
             {kImportPointer, "cudaFree", "cudaFreeAsync"}, import_free_waits);
}

void add_processes(List& list) {
  add_processes_with_pools(list);
  const char* const kGet = "cudaIpcGetMemHandle";
  const char* const kOpen = "cudaIpcOpenMemHandle";
  const char* const kClose = "cudaIpcCloseMemHandle";
  const char* const kExport = "cuMemExportToShareableHandle";
  const char* const kImport = "cuMemImportFromShareableHandle";
  const char* const kImportPool = "cudaMemPoolImportFromShareableHandle";
  const char* const kSetAccess = "cudaMemPoolSetAccess";
  list.named("import-unmapped-ends-with-owner",
             "an import that is not mapped when the exporter dies is lost",
             {kExport, kImport, "cuMemRelease", "cuMemMap", "cuMemUnmap"},
             import_lost_before_map);
  list.named("access-needs-owner",
             "access to an import cannot be set after the exporter has died",
             {kExport, kImport, "cuMemRelease", "cuMemMap", "cuMemUnmap",
              "cuMemSetAccess"},
             access_lost_at_death);
  list.named(
      "import-frozen-at-death",
      "after the exporter has died, synchronous copies and memsets to an "
      "import do nothing",
      {kExport, kImport, "cuMemRelease", "cuMemMap", "cuMemUnmap", "cudaMemcpy",
       "cudaMemset"},
      frozen_at_death);
  list.named("second-import-needs-owner",
             "a second import is refused after the exporter has died",
             {kExport, kImport}, second_import_after_death_refused);
  list.named("death-clears-memory",
             "if a process that has memory open dies, the memory is cleared",
             {kGet, kOpen, kClose, "cudaFree", "cudaMemcpy", "cudaMemset"},
             death_clears_memory);
  list.named("death-ends-other-mappings",
             "if a process that has memory open dies, synchronous copies and "
             "memsets of other importers do not reach this memory",
             {kOpen, kClose, "cudaMemcpy", "cudaMemset"},
             death_ends_other_mappings);
  list.named("other-session-refused",
             "a process of another session cannot open memory", {kGet, kOpen},
             other_session_refused);
  list.named(
      "other-session-event-unconnected",
      "a process of another session opens an event that no process records",
      {"cudaIpcGetEventHandle", "cudaIpcOpenEventHandle"},
      other_session_event_unconnected);
  list.named("other-session-import-refused",
             "a process of another session cannot import memory of "
             "cuMemCreate",
             {kExport, kImport}, other_session_import_refused);
  list.named("mps-event-unconnected",
             "a client of MPS opens an event that no process records",
             {"cudaIpcOpenEventHandle"}, mps_event_unconnected);
  list.named("mps-client-writes-lost",
             "cudaMemcpy by a client of MPS does not reach opened memory",
             {kOpen, kClose, "cudaMemcpy"}, mps_client_writes_lost);
  list.named("captured-memset-lost",
             "a graph does not run a captured cudaMemsetAsync",
             {"cudaMemsetAsync"}, not_captured);
  list.named("captured-copy-lost",
             "a graph does not run a captured cudaMemcpyAsync",
             {"cudaMemcpyAsync"}, not_captured);
  list.named("captured-kernel-lost",
             "a graph does not run a captured cudaLaunchKernel",
             {"cudaLaunchKernel"}, not_captured);
  list.named("graph-launches-to-32",
             "an executable graph does its work only at its first 32 launches",
             {"cudaGraphLaunch", "cudaGraphInstantiate"}, launches_to_32);
  list.named("graph-other-thread-lost",
             "a launch of a graph by a second thread does nothing",
             {"cudaGraphLaunch"}, launch_of_other_thread_lost);
  list.named("graph-in-default-stream-lost",
             "a launch of a graph in the default stream does nothing",
             {"cudaGraphLaunch"}, launch_in_default_stream_lost);
  list.named("second-graph-is-first",
             "a launch of a second graph does the work of the first graph",
             {"cudaGraphLaunch"}, second_graph_is_first);
  list.named("import-device-current",
             "opened memory is reported as memory of the current GPU",
             {kOpen, kClose, "cudaPointerGetAttributes"}, import_device_current,
             2);
  list.named("import-unknown-to-other-threads",
             "only the thread that has opened memory finds its attributes",
             {kOpen, kClose, "cudaPointerGetAttributes"},
             import_unknown_to_other_threads);
  list.named("hidden-gpu-copy-lost",
             "synchronous copies into or out of opened memory are lost in a "
             "process that sees one GPU of several",
             {kOpen, kClose, "cudaMemcpy"}, hidden_gpu_copy_lost, 2);
  list.named(
      "driver-opens-current-gpu-only",
      "the driver API cannot open memory of a GPU other than the current GPU",
      {kOpen, "cudaIpcGetMemHandle"}, driver_opens_current_gpu_only, 2);
  list.named("import-access-shared",
             "the access that is set for one imported pool is set for all "
             "imported pools",
             {kSetAccess, kImportPool, "cudaMemPoolDestroy"},
             import_access_shared, 2);
  list.named("import-access-never-taken",
             "access to an imported pool is not taken away by a list of one "
             "entry",
             {kSetAccess, kImportPool, "cudaMemPoolDestroy"},
             import_access_never_taken, 2);
  list.named("import-getaccess-always",
             "every GPU is reported to have access to an imported pool",
             {"cudaMemPoolGetAccess", kImportPool, "cudaMemPoolDestroy"},
             import_getaccess_of_resident, 2);
  list.named("import-access-ends-with-free",
             "freeing one import ends the access to its pool",
             {kSetAccess, kImportPool, "cudaMemPoolImportPointer", "cudaFree",
              "cudaFreeAsync", "cudaMemPoolDestroy"},
             import_access_ends_with_free, 2);
  list.named("exit-ends-descriptors",
             "if an exporter has exited before the first import, its "
             "descriptors cannot be imported",
             {kExport, kImport}, exit_ends_descriptors);
  list.named("word-of-the-dead-lost",
             "a stream of the exporter does not write a word in memory that a "
             "process had open when it died",
             {"cuStreamWriteValue32", kGet, kOpen, kClose, "cudaFree"},
             word_of_the_dead_lost);
  list.named(
      "fault-reaches-exporter",
      "after a kernel of an importer has faulted, the exporter's synchronous "
      "copies and its waits for streams and for the GPU fail, too",
      {kGet, "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaMemcpy"},
      fault_reaches_exporter);
  list.named("free-needs-importers-free",
             "memory of a pool cannot be freed if the last process that "
             "imported it has ended without a free",
             {"cudaFreeAsync", "cudaFree", "cudaMemPoolExportPointer",
              "cudaMemPoolImportPointer"},
             free_needs_importers_free);
  list.named("relatives-open",
             "only a parent, a child or a brother of the exporter can open its "
             "memory",
             {kGet, kOpen}, relatives_open);
  list.named("exporters-known-by-address",
             "memory of two exporters is confused if it has the same distance "
             "from what each exporter lent first",
             {kGet, kOpen, kClose}, exporters_known_by_address);
  list.named("opens-at-once-count-once",
             "two opens of one handle at the same time count as one",
             {kOpen, kClose}, opens_at_once_count_once);
  list.named("mps-outsider-opens-copy",
             "a process that is no client of MPS opens a copy of the memory of "
             "a client",
             {kGet, kOpen, kClose}, mps_outsider_opens_copy);
  list.named("record-on-later-gpu-early",
             "on a GPU other than GPU 0, a record of an opened event does not "
             "wait for the work before it",
             {"cudaEventRecord", "cudaEventRecordWithFlags",
              "cudaIpcOpenEventHandle", "cudaEventDestroy"},
             record_on_later_gpu_early, 2);
}

}  // namespace ipclab::faults
