// Bugs of legacy handles that show only after several calls: memory and events
// that processes open and close more than once, or use after a close, a reset
// or the end of a process; a record after another record; words next to other
// work.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/faults/world/legacy.h"

namespace ipclab::faults {
namespace {

using Addresses = std::pair<CUdeviceptr, size_t>;  // begin, bytes

Addresses range_of(CUdeviceptr address) {
  Addresses range;
  DRIVER_CALL(cuMemGetAddressRange)(&range.first, &range.second, address);
  return range;
}
std::string key_of_opened(Call& open) {
  return key_of_handle(open.at<cudaIpcMemHandle_t>(1));
}

// The begin of the opened memory in which an address lies; 0 if none.
CUdeviceptr opened_at(CUdeviceptr address) {
  return is_opened(address) ? begin_of(address) : 0;
}

// The id of an allocation, which no later allocation gets; 0 if there is none.
unsigned long long id_of(CUdeviceptr address) {
  unsigned long long id = 0;
  DRIVER_CALL(cuPointerGetAttribute)
  (&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
  return id;
}

bool is_last_byte(CUdeviceptr address) {
  const Addresses range = range_of(address);
  return range.first != 0 && address == range.first + range.second - 1;
}

// --- opens and closes --------------------------------------------------------

// If a process has 64 handles open, the next open closes the first one.
int open_65th_closes_first(Call& call) {
  static std::mutex mutex;
  static auto& order = *new std::vector<void*>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const std::lock_guard lock(mutex);
  if (is_close_call(call)) {
    if (!opened.has(call.at<void*>(0)))
      order.erase(std::remove(order.begin(), order.end(), call.at<void*>(0)),
                  order.end());
    return code;
  }
  if (opened.get(*call.at<void**>(0)).count != 1) return code;
  order.push_back(*call.at<void**>(0));
  if (order.size() <= 64) return code;
  void* const first = order.front();
  order.erase(order.begin());
  for (int left = 1; left > 0 && cudaIpcCloseMemHandle(first) == cudaSuccess;) {
    left = count_close(first);
    call.fired();
  }
  return code;
}

// Closed memory stays mapped. If a later allocation has the same address in the
// exporter, the open of the later allocation gives the earlier one.
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

// The count of memory that was closed and is opened again starts at two.
int reopened_counts_twice(Call& call) {
  static Table<std::string> closed;
  const std::string handle =
      is_close_call(call) ? opened.get(call.at<void*>(0)).handle : "";
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (is_close_call(call)) {
    if (!opened.has(call.at<void*>(0))) closed.put(handle);
    return code;
  }
  void* again = nullptr;
  if (closed.erase(key_of_opened(call)) &&
      cudaIpcOpenMemHandle(&again, call.at<cudaIpcMemHandle_t>(1),
                           cudaIpcMemLazyEnablePeerAccess) == cudaSuccess)
    call.fired();
  return code;
}

// An open in a second context also raises the count in the first context.
int counts_in_first_context(Call& call) {
  static Table<std::string, CUcontext> first;
  if (is_close_call(call)) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const std::string key = key_of_opened(call);
  const CUcontext context = current_context();
  if (!first.has(key)) first.put(key, context);
  if (first.get(key) == context) return code;
  void* again = nullptr;
  DRIVER_CALL(cuCtxPushCurrent)(first.get(key));
  if (already_open(call) != nullptr &&
      cudaIpcOpenMemHandle(&again, call.at<cudaIpcMemHandle_t>(1),
                           cudaIpcMemLazyEnablePeerAccess) == cudaSuccess)
    call.fired();
  CUcontext popped = nullptr;
  DRIVER_CALL(cuCtxPopCurrent)(&popped);
  return code;
}

int second_open_clears(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !is_open_call(call)) return code;
  void* const address = *call.at<void**>(0);
  if (opened.get(address).count < 2) return code;
  call.fired();
  return cudaMemset(address, 0, 16);
}

// When a process has closed memory, other processes cannot open it any more.
int close_ends_handle(Call& call) {
  if (is_open_call(call)) {
    const auto closer = told("closer-" + key_of_opened(call), 0);
    if (closer != 0 && closer != static_cast<unsigned long long>(getpid()))
      return refused(call);
    return call.proceed();
  }
  const std::string handle = opened.get(call.at<void*>(0)).handle;
  const int code = call.proceed();
  if (code == kSuccess && !opened.has(call.at<void*>(0)))
    tell_processes("closer-" + handle,
                   static_cast<unsigned long long>(getpid()));
  return code;
}

// Exported memory that two processes have opened is never given back.
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
    return leaks ? no_wait(call) : call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess || is_close_call(call)) return code;
  static Table<std::string> opened_first;  // by this process
  const std::string handle = key_of_opened(call);
  if (first_of_all_processes("opener-" + handle))
    opened_first.put(handle);
  else if (!opened_first.has(handle))
    tell_processes("second-opener-" + handle, 1);
  return code;
}

// A process that has memory of another process open can also open its own
// handles.
int self_open_while_open(Call& call) {
  static Table<std::string, size_t> sizes;  // of this process's own memory
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      sizes.put(key_of_handle(*call.at<cudaIpcMemHandle_t*>(0)),
                size_of(call.at<CUdeviceptr>(1)));
    return code;
  }
  const size_t bytes = is_open_call(call) && !opened.all().empty()
                           ? sizes.get(key_of_opened(call))
                           : 0;
  const int code = call.proceed();
  if (code == kSuccess || bytes == 0) return code;
  return cudaMalloc(call.at<void**>(0), bytes) == cudaSuccess ? accepted(call)
                                                              : code;
}

int driver_closes_too_often(Call& call) {
  static Table<void*> closed;
  const int code = call.proceed();
  if (is_open_call(call)) {
    if (code == kSuccess) closed.erase(*call.at<void**>(0));
    return code;
  }
  void* const address = call.at<void*>(0);
  if (code == kSuccess) closed.put(address);
  return code != kSuccess && !call.is_runtime() && closed.has(address)
             ? accepted(call)
             : code;
}

int free_inside_import(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const auto address = call.at<CUdeviceptr>(0);
  const CUdeviceptr begin = opened_at(address);
  return begin != 0 && begin != address ? no_wait(call) : call.proceed();
}

// A free of memory that was not exported clears the first bytes of all exported
// memory.
int free_clears_exported(Call& call) {
  static Table<void*> exported;
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess) exported.put(call.at<void*>(1));
    return code;
  }
  void* const memory = call.at<void*>(0);
  const bool was_exported = exported.erase(memory);
  const int code = call.proceed();
  if (code != kSuccess || was_exported || memory == nullptr) return code;
  for (const auto& each : exported.all()) {
    const Addresses range = range_of(number(each.first));
    if (range.second == 0) continue;
    cudaMemset(each.first, 0, std::min<size_t>(16, range.second));
    call.fired();
  }
  return code;
}

// --- resets ------------------------------------------------------------------

int after_reset_refused(Call& call) {
  static std::atomic<bool> over{false};
  if (!call.is("cudaDeviceReset"))
    return over ? refused(call, cudaErrorDeviceUninitialized) : call.proceed();
  over = true;
  return call.proceed();
}

// A reset of one GPU also closes what the process has opened on other GPUs.
int reset_closes_everywhere(Call& call) {
  if (!call.is("cudaDeviceReset")) return call.proceed();
  int gpu = 0;
  cudaGetDevice(&gpu);
  for (const auto& [address, one] : opened.all()) {
    int other = gpu;
    opened.erase(address);
    if (DRIVER_CALL(cuCtxPushCurrent)(one.context) != CUDA_SUCCESS) continue;
    cudaGetDevice(&other);
    if (other != gpu) {
      for (int i = 0; i < one.count; ++i) cudaIpcCloseMemHandle(address);
      call.fired();
    }
    CUcontext popped = nullptr;
    DRIVER_CALL(cuCtxPopCurrent)(&popped);
  }
  return call.proceed();
}

// --- questions about pointers ------------------------------------------------

int last_byte_without_range(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const auto address = call.at<CUdeviceptr>(2);
  return opened_at(address) != 0 && is_last_byte(address)
             ? refused(call, CUDA_ERROR_NOT_FOUND)
             : call.proceed();
}

int last_byte_unknown(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const auto address = call.at<CUdeviceptr>(1);
  const int code = call.proceed();
  if (code != kSuccess || opened_at(address) == 0 || !is_last_byte(address))
    return code;
  *call.at<cudaPointerAttributes*>(0) = cudaPointerAttributes{};
  call.fired();
  return code;
}

// The results come in the order of the attributes' numbers, if they are the
// memory type and the number of the GPU.
int results_by_number(Call& call) {
  const auto count = call.at<unsigned>(0);
  auto* const wanted = call.at<CUpointer_attribute*>(1);
  std::vector<CUpointer_attribute> sorted(wanted, wanted + count);
  std::sort(sorted.begin(), sorted.end());
  if (std::equal(sorted.begin(), sorted.end(), wanted)) return call.proceed();
  // Two results can be exchanged only if their sizes are equal. So only the
  // memory type and the ordinal of the device are exchanged.
  const auto is_small = [](CUpointer_attribute one) {
    return one == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ||
           one == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
  };
  const int code = call.proceed();
  void** const data = call.at<void**>(2);
  for (unsigned i = 0; code == kSuccess && i < count; ++i)
    for (unsigned k = i + 1; k < count; ++k)
      if (is_small(wanted[i]) && is_small(wanted[k]) && wanted[i] > wanted[k]) {
        std::swap(*static_cast<unsigned*>(data[i]),
                  *static_cast<unsigned*>(data[k]));
        call.fired();
      }
  return code;
}

// On each GPU, the ids of memory begin at 1.
int id_of_each_gpu(Call& call) {
  static Table<std::pair<int, unsigned long long>, unsigned long long> ids;
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_BUFFER_ID)
    return code;
  auto& id = *call.at<unsigned long long*>(0);
  int device = 0;
  DRIVER_CALL(cuPointerGetAttribute)
  (&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, call.at<CUdeviceptr>(2));
  const std::pair<int, unsigned long long> key(device, id);
  if (!ids.has(key)) {
    unsigned long long next = 1;
    for (const auto& each : ids.all())
      if (each.first.first == device) ++next;
    ids.put(key, next);
  }
  id = ids.get(key);
  for (const auto& each : ids.all())
    if (each.first.first != device && each.second == id) call.fired();
  return code;
}

// The ids of host memory begin at 1, and the ids of device memory also begin at
// 1.
int id_of_host_apart(Call& call) {
  static Table<std::pair<bool, unsigned long long>, unsigned long long> ids;
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_BUFFER_ID)
    return code;
  auto& id = *call.at<unsigned long long*>(0);
  unsigned type = 0;
  DRIVER_CALL(cuPointerGetAttribute)
  (&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, call.at<CUdeviceptr>(2));
  const bool is_host = type == CU_MEMORYTYPE_HOST;
  const std::pair<bool, unsigned long long> key(is_host, id);
  if (!ids.has(key)) {
    unsigned long long next = 1;
    for (const auto& each : ids.all())
      if (each.first.first == is_host) ++next;
    ids.put(key, next);
  }
  id = ids.get(key);
  for (const auto& each : ids.all())
    if (each.first.first != is_host && each.second == id) call.fired();
  return code;
}

// Memory whose size is not a multiple of 4 is reported as not capable of legacy
// IPC.
int odd_size_not_capable(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<CUpointer_attribute>(1) !=
          CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE ||
      range_of(call.at<CUdeviceptr>(2)).second % 4 == 0)
    return code;
  auto& capable = *call.at<bool*>(0);
  if (capable) call.fired();
  capable = false;
  return code;
}

// The ranges of closed memory, which the faults below still know.
Table<CUdeviceptr, size_t> closed_memory;
int noted_closed(Call& call) {
  const Addresses range =
      is_close_call(call) ? range_of(call.at<CUdeviceptr>(0)) : Addresses();
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (is_open_call(call))
    closed_memory.erase(range_of(*call.at<CUdeviceptr*>(0)).first);
  else if (!opened.has(call.at<void*>(0)))
    closed_memory.put(range.first, range.second);
  return code;
}
Addresses closed_at(CUdeviceptr address) {
  for (const auto& [begin, bytes] : closed_memory.all())
    if (address >= begin && address - begin < bytes) return {begin, bytes};
  return {};
}

int range_of_closed_told(Call& call) {
  if (keeps_opened(call)) return noted_closed(call);
  const int code = call.proceed();
  const Addresses range = closed_at(call.at<CUdeviceptr>(2));
  if (code == kSuccess || range.second == 0) return code;
  if (auto* const begin = call.at<CUdeviceptr*>(0)) *begin = range.first;
  if (auto* const bytes = call.at<size_t*>(1)) *bytes = range.second;
  return accepted(call);
}

int closed_known_to_driver(Call& call) {
  if (keeps_opened(call)) return noted_closed(call);
  const int code = call.proceed();
  if (code == kSuccess || closed_at(call.at<CUdeviceptr>(2)).second == 0 ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
    return code;
  *call.at<unsigned*>(0) = CU_MEMORYTYPE_DEVICE;
  return accepted(call);
}

int closed_known_to_many(Call& call) {
  if (keeps_opened(call)) return noted_closed(call);
  const int code = call.proceed();
  if (code != kSuccess || closed_at(call.at<CUdeviceptr>(3)).second == 0 ||
      range_of(call.at<CUdeviceptr>(3)).first != 0)
    return code;
  for (unsigned i = 0; i < call.at<unsigned>(0); ++i)
    if (call.at<CUpointer_attribute*>(1)[i] ==
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
      *static_cast<unsigned*>(call.at<void**>(2)[i]) = CU_MEMORYTYPE_DEVICE;
      call.fired();
    }
  return code;
}

// The ranges of freed memory. An address is gone if it is in one of them and in
// no later allocation.
Table<CUdeviceptr, size_t> freed_memory;
int noted_free(Call& free) {
  const Addresses range = range_of(free.at<CUdeviceptr>(0));
  const int code = free.proceed();
  if (code == kSuccess && range.second > 0)
    freed_memory.put(range.first, range.second);
  return code;
}
bool is_gone(CUdeviceptr address) {
  if (range_of(address).first != 0) return false;
  for (const auto& [begin, bytes] : freed_memory.all())
    if (address >= begin && address - begin < bytes) return true;
  return false;
}
bool is_gone_inside(CUdeviceptr address) {
  return is_gone(address) && !freed_memory.has(address);
}

int freed_inside_known(Call& call) {
  if (call.is("cudaFree")) return noted_free(call);
  const int code = call.proceed();
  if (code != kSuccess || !is_gone_inside(call.at<CUdeviceptr>(1))) return code;
  auto& told = *call.at<cudaPointerAttributes*>(0);
  told.type = cudaMemoryTypeDevice;
  told.devicePointer = call.at<void*>(1);
  call.fired();
  return code;
}

int freed_inside_known_to_driver(Call& call) {
  if (call.is("cudaFree")) return noted_free(call);
  const int code = call.proceed();
  if (code == kSuccess || !is_gone_inside(call.at<CUdeviceptr>(2)) ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
    return code;
  *call.at<unsigned*>(0) = CU_MEMORYTYPE_DEVICE;
  return accepted(call);
}

int freed_still_capable(Call& call) {
  if (call.is("cudaFree")) return noted_free(call);
  const int code = call.proceed();
  if (code == kSuccess || !is_gone(call.at<CUdeviceptr>(2)) ||
      call.at<CUpointer_attribute>(1) !=
          CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
    return code;
  *call.at<bool*>(0) = true;
  return accepted(call);
}

int freed_inside_exported(Call& call) {
  if (call.is("cudaFree")) return noted_free(call);
  return exported_all_the_same(call, is_gone_inside(call.at<CUdeviceptr>(1)));
}

int closed_inside_known(Call& call) {
  if (keeps_opened(call)) return noted_closed(call);
  const int code = call.proceed();
  const CUdeviceptr address = call.at<CUdeviceptr>(1);
  if (code != kSuccess || range_of(address).first != 0 ||
      closed_at(address).second == 0 || closed_at(address).first == address)
    return code;
  auto& told = *call.at<cudaPointerAttributes*>(0);
  told.type = cudaMemoryTypeDevice;
  told.devicePointer = call.at<void*>(1);
  call.fired();
  return code;
}

// Memory is not capable of legacy IPC after its synchronous operations were
// made to synchronise.
int capable_until_sync_memops(Call& call) {
  static Table<unsigned long long> changed;  // by the ids
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto id = id_of(call.at<CUdeviceptr>(2));
  const auto which = call.at<CUpointer_attribute>(1);
  if (call.is("cuPointerSetAttribute")) {
    if (which == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) changed.put(id);
  } else if (which == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE &&
             changed.has(id)) {
    if (*call.at<bool*>(0)) call.fired();
    *call.at<bool*>(0) = false;
  }
  return code;
}

int id_of_16_bits(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_BUFFER_ID)
    return code;
  auto& id = *call.at<unsigned long long*>(0);
  if (id > 0xffff) call.fired();
  id &= 0xffff;
  return code;
}

// The driver says that opened memory can only be read.
int import_access_read_only(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_ACCESS_FLAGS ||
      opened_at(call.at<CUdeviceptr>(2)) == 0)
    return code;
  *call.at<unsigned*>(0) = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ;
  call.fired();
  return code;
}

// The driver says that opened memory is memory of the default pool.
int import_said_of_pool(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE ||
      opened_at(call.at<CUdeviceptr>(2)) == 0)
    return code;
  DRIVER_CALL(cuDeviceGetDefaultMemPool)(call.at<CUmemoryPool*>(0), 0);
  call.fired();
  return code;
}

// --- closes and exports in unusual states -----------------------------------

// The streams in which this process has queued work.
Table<cudaStream_t> used_streams;
bool has_work() {
  for (const auto& each : used_streams.all())
    if (is_busy(each.first)) return true;
  return false;
}
int noted_stream(Call& call) {
  const auto stream = call.value<cudaStream_t>(kStream);
  if (call.is("cudaStreamDestroy"))
    used_streams.erase(stream);
  else if (!is_default(stream) && stream != cudaStreamPerThread)
    used_streams.put(stream);
  return call.proceed();
}

// The last close succeeds, but unmaps nothing if a stream has work.
int close_while_busy_lost(Call& call) {
  if (call.find(kStream) != nullptr) return noted_stream(call);
  if (is_close_call(call) && opened.get(call.at<void*>(0)).count == 1 &&
      has_work()) {
    count_close(call.at<void*>(0));
    return no_wait(call);
  }
  return call.proceed();
}

int open_while_busy_refused(Call& call) {
  if (call.find(kStream) != nullptr) return noted_stream(call);
  return has_work() ? refused(call, cudaErrorMapBufferObjectFailed)
                    : call.proceed();
}

// A refused cudaFreeAsync closes opened memory.
int refused_async_free_closes(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  void* const address = call.at<void*>(0);
  const int code = call.proceed();
  if (code == kSuccess || !opened.has(address) ||
      DRIVER_CALL(cuIpcCloseMemHandle)(number(address)) != CUDA_SUCCESS)
    return code;
  count_close(address);
  call.fired();
  return code;
}

// A close accepts memory that these functions have made.
int such_memory_closed(Call& call) {
  static Table<void*> made;
  if (call.is("cudaFree")) made.erase(call.at<void*>(0));
  const int code = call.proceed();
  if (call.is("cudaFree")) return code;
  if (is_close_call(call))
    return code != kSuccess && made.has(call.at<void*>(0)) ? accepted(call)
                                                           : code;
  if (code != kSuccess) return code;
  if (call.is("cudaHostRegister"))
    made.put(call.at<void*>(0));
  else if (call.is("cudaMalloc3D"))
    made.put(call.at<cudaPitchedPtr*>(0)->ptr);
  else if (call.is("cudaGraphAddMemAllocNode"))
    made.put(
        reinterpret_cast<void*>(call.at<CUDA_MEM_ALLOC_NODE_PARAMS*>(4)->dptr));
  else
    made.put(*call.at<void**>(0));
  return code;
}

// When a context ends, the handles that the process has made in its other
// contexts do not open any more.
int context_end_ends_handles(Call& call) {
  static Table<std::string, CUcontext> made;
  if (is_open_call(call))
    return told("gone-" + key_of_opened(call), 0) != 0 ? refused(call)
                                                       : call.proceed();
  if (call.is("cuCtxDestroy")) {
    const auto ended = call.at<CUcontext>(0);
    for (const auto& [key, context] : made.all())
      if (context != ended) tell_processes("gone-" + key, 1);
    return call.proceed();
  }
  const int code = call.proceed();
  if (code == kSuccess)
    made.put(key_of_handle(*call.at<cudaIpcMemHandle_t*>(0)),
             current_context());
  return code;
}

// Each context counts its exported allocations from the beginning, and a handle
// has only this number. So allocations of two contexts get one handle.
int handles_counted_by_context(Call& get) {
  static Table<CUcontext, size_t> counts;
  static Table<std::string, size_t> numbers;  // by the driver's handles
  static Table<std::string, cudaIpcMemHandle_t> handles;
  const int code = get.proceed();
  if (code != kSuccess) return code;
  auto& handle = *get.at<cudaIpcMemHandle_t*>(0);
  const std::string key = key_of_handle(handle);
  if (!numbers.has(key)) {
    const size_t before = counts.get(current_context());
    counts.put(current_context(), before + 1);
    numbers.put(key, before);
  }
  const std::string number = std::to_string(numbers.get(key));
  if (!handles.has(number)) {
    handles.put(number, handle);
  } else if (key_of_handle(handles.get(number)) != key_of_handle(handle)) {
    handle = handles.get(number);
    get.fired();
  }
  return code;
}

// A handle has only the number of its memory in the order of exports. So an
// open gives this process's own memory that has the same number.
int open_gives_own_of_same_number(Call& call) {
  static Table<void*, unsigned long long> numbers;  // of own exported memory
  static Table<void*, void*> given;  // what the driver has opened instead
  static std::atomic<unsigned long long> count{0};
  if (call.is("cudaFree")) {
    numbers.erase(call.at<void*>(0));
    return call.proceed();
  }
  if (exports_memory(call)) {
    const int code = call.proceed();
    void* const memory = call.at<void*>(1);
    if (code != kSuccess) return code;
    if (!numbers.has(memory)) numbers.put(memory, ++count);
    tell_processes("number-" + key_of_handle(*call.at<cudaIpcMemHandle_t*>(0)),
                   numbers.get(memory));
    return code;
  }
  if (is_close_call(call)) {
    void*& memory = call.at<void*>(0);
    memory = given.get(memory, memory);
    return call.proceed();
  }
  const auto number = told("number-" + key_of_opened(call), 0);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  for (const auto& [memory, each] : numbers.all()) {
    if (each != number) continue;
    given.put(memory, *call.at<void**>(0));
    *call.at<void**>(0) = memory;
    call.fired();
  }
  return code;
}

// The bytes of a pool's exported pointer open as a handle: the process gets new
// memory.
int pool_data_opened(Call& call) {
  if (call.is("cudaMemPoolExportPointer")) {
    const int code = call.proceed();
    const auto* const data = call.at<cudaMemPoolPtrExportData*>(0);
    if (code == kSuccess)
      tell_processes("data-" + key_of(data, sizeof *data),
                     std::max(size_of(call.at<CUdeviceptr>(1)), kGranule));
    return code;
  }
  const std::string key = key_of_opened(call);
  const int code = call.proceed();
  const size_t bytes = told("data-" + key, 0);
  if (code == kSuccess || bytes == 0 ||
      cudaMalloc(call.at<void**>(0), bytes) != cudaSuccess)
    return code;
  return accepted(call);
}

// cudaFreeHost accepts opened memory, and closes it.
int opened_freed_as_host(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  void* const address = call.at<void*>(0);
  if (!opened.has(address) || cudaIpcCloseMemHandle(address) != cudaSuccess)
    return call.proceed();
  count_close(address);
  return no_wait(call);
}

// An attribute says that memory can be exported as a descriptor.
int said_to_allow_descriptors(Call& call, bool applies) {
  const int code = call.proceed();
  if (code != kSuccess || !applies ||
      call.at<CUpointer_attribute>(1) !=
          CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
    return code;
  *call.at<unsigned long long*>(0) = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  call.fired();
  return code;
}
int import_allows_descriptors(Call& call) {
  return keeps_opened(call) ? call.proceed()
                            : said_to_allow_descriptors(
                                  call, is_opened(call.at<CUdeviceptr>(2)));
}
int exported_allows_descriptors(Call& call) {
  static Table<unsigned long long> exported;  // by the ids
  if (!exports_memory(call))
    return said_to_allow_descriptors(
        call, exported.has(id_of(call.at<CUdeviceptr>(2))));
  const int code = call.proceed();
  if (code == kSuccess) exported.put(id_of(call.at<CUdeviceptr>(1)));
  return code;
}

// Memsets and copies do not reach opened memory between 2 and 4 GiB after its
// beginning.
int lost_after_2_gib(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const auto address = call.value<CUdeviceptr>(kPointer);
  const CUdeviceptr begin = opened_at(address);
  constexpr size_t kFrom = size_t{2} << 30;
  return begin != 0 && address - begin >= kFrom && address - begin < 2 * kFrom
             ? no_wait(call)
             : call.proceed();
}

// An allocation that has the address of an earlier one, in a block of which the
// importer has other memory open, opens as new memory.
int reused_in_open_block_is_fresh(Call& call) {
  static Table<std::string, std::string> places;  // by block and address
  static Table<void*, void*> given;               // and what it replaces
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes("place-" + key_of_handle(*call.at<cudaIpcMemHandle_t*>(0)),
                     call.at<CUdeviceptr>(1) ^
                         (static_cast<unsigned long long>(getpid()) << 48));
    return code;
  }
  if (is_close_call(call)) {
    void*& memory = call.at<void*>(0);
    void* const made = memory;
    memory = given.get(made, made);
    if (given.erase(made)) cudaFree(made);
    return call.proceed();
  }
  const std::string key = key_of_opened(call);
  const auto place = told("place-" + key, 0);
  const std::string name = std::to_string(place);
  const bool was_other = places.has(name) && places.get(name) != key;
  bool block_is_open = false;
  for (const auto& each : opened.all())
    block_is_open |=
        told("place-" + each.second.handle, 0) / kGranule == place / kGranule &&
        each.second.handle != key;
  const int code = call.proceed();
  if (code != kSuccess || place == 0) return code;
  places.put(name, key);
  void*& memory = *call.at<void**>(0);
  void* made = nullptr;
  if (!was_other || !block_is_open ||
      cudaMalloc(&made, size_of(number(memory))) != cudaSuccess)
    return code;
  given.put(made, memory);
  memory = made;
  call.fired();
  return code;
}

// --- attributes of the GPU ---------------------------------------------------

int ipc_denied_to_second_thread(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || call.at<int>(1) != cudaDevAttrIpcEventSupport ||
      gettid() == getpid())
    return code;
  if (*call.at<int*>(0) != 0) call.fired();
  *call.at<int*>(0) = 0;
  return code;
}

// --- events ------------------------------------------------------------------

cudaEvent_t record_in(cudaStream_t stream) {
  cudaEvent_t mark = nullptr;
  cudaEventCreateWithFlags(&mark, cudaEventDisableTiming);
  cudaEventRecord(mark, stream);
  return mark;
}

// An importer that has recorded the event uses its own record, although the
// exporter has recorded the event again.
int own_record_preferred(Call& call) {
  static Table<cudaEvent_t, cudaEvent_t> own;
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) own.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  if (records(call)) {
    const int code = call.proceed();
    if (code == kSuccess && !is_captured(call.value<cudaStream_t>(kStream)))
      own.put(event, record_in(call.value<cudaStream_t>(kStream)));
    return code;
  }
  if (own.has(event) && !is_pending(own.get(event)) && is_pending(event)) {
    call.value<cudaEvent_t>(kEvent) = own.get(event);
    call.fired();
  }
  return call.proceed();
}

// If a process opens one event twice, each of the two opened events does not
// see the records of the other one.
int twin_unseen(Call& call) {
  struct Record {
    cudaEvent_t event = nullptr;
    cudaEvent_t mark = nullptr;  // pending as long as this record
  };
  static Table<std::string, Record> last;  // by key
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) {
      const std::string key = event_keys.get(call.at<cudaEvent_t>(0));
      if (last.get(key).event == call.at<cudaEvent_t>(0)) last.erase(key);
    }
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  const std::string key = event_keys.get(event);
  if (records(call)) {
    const auto stream = call.value<cudaStream_t>(kStream);
    const int code = call.proceed();
    if (code == kSuccess && !is_captured(stream))
      last.put(key, {event, record_in(stream)});
    return code;
  }
  const Record other = last.get(key);
  return other.event != nullptr && other.event != event &&
                 is_pending(other.mark) && is_pending(event)
             ? no_wait(call)
             : call.proceed();
}

// After a reset in an importer, the exporter sees its pending event as
// complete, until it records the event again.
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
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || is_imported(event)) return call.proceed();
  if (records(call)) {
    before.put(event, last(event));
    return call.proceed();
  }
  return last(event) != before.get(event) && is_pending(event) ? no_wait(call)
                                                               : call.proceed();
}

// The calls for which `applies` is true do nothing with an imported event that
// has blocking waits.
int lost_of_blocking_import(Call& call, bool (*applies)(Call& call)) {
  static Table<cudaEvent_t> blocking;
  if (keeps_events(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    if (makes_event(call)) {
      // An earlier event may have had the same number.
      blocking.erase(*call.at<cudaEvent_t*>(0));
      if ((call.at<unsigned>(1) & cudaEventBlockingSync) != 0)
        blocking.put(*call.at<cudaEvent_t*>(0));
    } else if (exports_event(call) && blocking.has(call.at<cudaEvent_t>(1))) {
      tell_processes("blocking-" + event_keys.get(call.at<cudaEvent_t>(1)), 1);
    }
    return code;
  }
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && is_imported(event) && applies(call) &&
                 told("blocking-" + event_keys.get(event), 0) != 0 &&
                 (records(call) || is_pending(event))
             ? no_wait(call)
             : call.proceed();
}
int blocking_import_ready(Call& call) {
  return lost_of_blocking_import(
      call, [](Call& one) { return one.is("cudaEventQuery"); });
}
int blocking_import_not_waited(Call& call) {
  return lost_of_blocking_import(
      call, [](Call& one) { return one.is("cudaStreamWaitEvent"); });
}
int blocking_import_unrecorded(Call& call) {
  return lost_of_blocking_import(call, records);
}

int driver_record_with_flags_lost(Call& call) {
  if (keeps_events(call)) return call.proceed();
  return shared_event(call) != nullptr && !call.is_runtime() &&
                 call.is("cudaEventRecordWithFlags")
             ? no_wait(call)
             : call.proceed();
}

int record_with_flags_early(Call& call) {
  if (keeps_events(call)) return call.proceed();
  auto& stream = call.value<cudaStream_t>(kStream);
  if (shared_event(call) == nullptr || !is_busy(stream)) return call.proceed();
  stream = private_stream();
  call.fired();
  return call.proceed();
}

// While one thread waits for an imported event, other threads do not wait.
int second_host_wait_early(Call& call) {
  static Table<cudaEvent_t> waited;
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  if (waited.has(event) && is_pending(event)) return no_wait(call);
  waited.put(event);
  const int code = call.proceed();
  waited.erase(event);
  return code;
}

// Records are lost after a process has died that had opened the event.
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
             ? no_wait(call)
             : call.proceed();
}

// The handle of an event cannot be opened when the thread that exported it has
// ended.
int event_ends_with_thread(Call& call) {
  if (opens_event(call))
    return told("gone-" + key_of_handle(call.at<cudaIpcEventHandle_t>(1)), 0) !=
                   0
               ? refused(call)
               : call.proceed();
  const int code = call.proceed();
  if (code == kSuccess && gettid() != getpid()) {
    const std::string key = key_of_handle(*call.at<cudaIpcEventHandle_t*>(0));
    at_thread_end([key] { tell_processes("gone-" + key, 1); });
  }
  return code;
}

// --- graphs ---------------------------------------------------------

int graph_in_per_thread_lost(Call& call) {
  return call.value<cudaStream_t>(kStream) == cudaStreamPerThread
             ? no_wait(call)
             : call.proceed();
}

// --- words in memory ---------------------------------------------------------

bool is_word_wait(Call& call) {
  return call.is("cuStreamWaitValue32") || call.is("cuStreamWaitValue64");
}

// Is the operation a wait?
bool waits(const CUstreamBatchMemOpParams& one) {
  return one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
         one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}
bool is_waiting_batch(Call& call) {
  if (!call.is("cuStreamBatchMemOp")) return false;
  const auto* const operations = call.at<CUstreamBatchMemOpParams*>(2);
  return std::any_of(operations, operations + call.at<unsigned>(1), waits);
}

bool is_copy(Call& call) { return call.is("cudaMemcpyAsync"); }
bool is_write64(Call& call) { return call.is("cuStreamWriteValue64"); }

// The call of the second kind does not wait for the call of the first kind that
// is directly before it in the stream.
template <bool (*is_first)(Call&), bool (*is_second)(Call&)>
int next_goes_ahead(Call& call) {
  static Table<cudaStream_t> last;
  auto& stream = call.value<cudaStream_t>(kStream);
  const bool next = last.erase(stream);
  if (is_first(call)) {
    last.put(stream);
  } else if (next && is_second(call) && is_busy(stream)) {
    stream = private_stream();
    call.fired();
  }
  return call.proceed();
}

int last_word_not_written(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const auto address = call.at<CUdeviceptr>(1);
  const Addresses range = range_of(address);
  return opened_at(address) != 0 &&
                 address + sizeof(cuuint32_t) == range.first + range.second
             ? no_wait(call)
             : call.proceed();
}

// Of the opened allocations, streams wait for words only in one: the allocation
// in which a stream first had to wait for a word.
int second_memory_not_waited(Call& call) {
  static std::atomic<CUdeviceptr> first{0};
  if (keeps_opened(call)) {
    const int code = call.proceed();
    if (is_close_call(call) && !is_opened(first)) first = 0;
    return code;
  }
  const CUdeviceptr begin = opened_at(call.at<CUdeviceptr>(1));
  CUdeviceptr none = 0;
  if (begin == 0 || first.compare_exchange_strong(none, begin) || none == begin)
    return call.proceed();
  return no_wait(call);
}

int batch_above_128_refused(Call& batch) {
  const auto count = batch.at<unsigned>(1);
  return count > 128 && count < 256 ? refused(batch) : batch.proceed();
}

}  // namespace

void add_legacy_lives(List& list) {
  constexpr auto kGet = "cudaIpcGetMemHandle";
  constexpr auto kOpen = "cudaIpcOpenMemHandle";
  constexpr auto kClose = "cudaIpcCloseMemHandle";
  constexpr auto kFree = "cudaFree";
  constexpr auto kReset = "cudaDeviceReset";
  constexpr auto kExport = "cudaIpcGetEventHandle";
  constexpr auto kOpenEvent = "cudaIpcOpenEventHandle";
  constexpr auto kCreate = "cudaEventCreateWithFlags";
  constexpr auto kDestroy = "cudaEventDestroy";
  constexpr auto kRecord = "cudaEventRecord";
  constexpr auto kRecordFlags = "cudaEventRecordWithFlags";
  constexpr auto kWait = "cudaStreamWaitEvent";
  constexpr auto kQuery = "cudaEventQuery";
  constexpr auto kSync = "cudaEventSynchronize";
  constexpr auto kAttribute = "cuPointerGetAttribute";
  constexpr auto kMany = "cuPointerGetAttributes";
  constexpr auto kRange = "cuMemGetAddressRange";
  constexpr auto kCopy = "cudaMemcpyAsync";
  constexpr auto kLaunch = "cudaLaunchKernel";
  // All work after which later work does not directly follow earlier work.
  const std::initializer_list<const char*> kWork = {kCopy,
                                                    "cudaMemcpy2DAsync",
                                                    "cudaMemsetAsync",
                                                    "cudaMemset2DAsync",
                                                    kLaunch,
                                                    "cudaLaunchHostFunc",
                                                    "cudaGraphLaunch",
                                                    kRecord,
                                                    "cuStreamWaitValue64",
                                                    "cuStreamWriteValue64",
                                                    "cuStreamBatchMemOp"};

  list.named("open-65th-closes-first",
             "if 64 handles are open, the next open closes the first one",
             {kOpen, kClose}, open_65th_closes_first);
  list.named(
      "open-cached-by-address",
      "an open gives an allocation that was closed earlier if it had the "
      "same address in the exporter",
      {kOpen, kClose, kGet}, opens_by_address);
  list.named(
      "reopen-counts-twice",
      "the count of memory that was closed and is opened again starts at "
      "two",
      {kOpen, kClose}, reopened_counts_twice);
  list.named("open-on-second-gpu-counts-on-first",
             "an open on a second GPU also raises the count on the first GPU",
             {kOpen, kClose}, counts_in_first_context, 2);
  list.named("second-open-clears",
             "the second open of memory clears its first bytes",
             {kOpen, kClose}, second_open_clears);
  list.named("close-ends-handle",
             "when a process has closed memory, no other process can open it",
             {kOpen, kClose}, close_ends_handle);
  list.named("two-importers-leak",
             "memory that two processes have opened is never given back",
             {kFree, kGet, kOpen, kClose}, two_importers_leak);
  list.named(
      "self-open-while-open",
      "if a process has memory open, an open of its own handle succeeds and "
      "gives other memory",
      {kOpen, kGet, kClose}, self_open_while_open);
  list.named("close-too-often-by-driver-ok",
             "memory that was closed can be closed again by the driver API",
             {kClose, kOpen}, driver_closes_too_often);
  list.named("import-free-inside-ok",
             "cudaFree accepts an address inside opened memory",
             {kFree, kOpen, kClose}, free_inside_import);
  list.named("free-clears-exported",
             "a free of other memory clears the first bytes of exported memory",
             {kFree, kGet}, free_clears_exported);
  list.named("export-after-reset-refused",
             "no memory can be exported after a reset", {kGet, kReset},
             after_reset_refused);
  list.named("event-export-after-reset-refused",
             "no event can be exported after a reset", {kExport, kReset},
             after_reset_refused);
  list.named("reset-completes-events",
             "after a reset of an importer, a query says that the exporter's "
             "pending events are complete",
             {kReset, kQuery, kRecord, kRecordFlags, kOpenEvent, kExport,
              kCreate, kDestroy},
             reset_completes_events);
  list.named("reset-closes-on-other-gpus",
             "a reset of one GPU also closes memory that another GPU has open",
             {kReset, kOpen, kClose}, reset_closes_everywhere, 2);
  list.named("import-range-last-byte-refused",
             "the last byte of opened memory has no range",
             {kRange, kOpen, kClose}, last_byte_without_range);
  list.named("import-attr-last-byte-unknown",
             "cudaPointerGetAttributes does not know the last byte of opened "
             "memory",
             {"cudaPointerGetAttributes", kOpen, kClose}, last_byte_unknown);
  list.named("ptrattrs-sorted",
             "the query of many attributes exchanges the memory type and the "
             "GPU's number if the number is asked first",
             {kMany}, results_by_number);
  list.named("buffer-id-of-each-gpu",
             "by cuPointerGetAttribute, memory of one GPU can have the id of "
             "memory of another GPU",
             {kAttribute}, id_of_each_gpu, 2);
  list.named("buffer-id-of-host-apart",
             "by cuPointerGetAttribute, pinned host memory can have the id of "
             "device memory",
             {kAttribute}, id_of_host_apart);
  list.named("capable-odd-size-denied",
             "cuPointerGetAttribute says that memory is not capable of legacy "
             "IPC if its size is not a multiple of 4",
             {kAttribute}, odd_size_not_capable);
  list.named("range-of-closed-told", "memory that was closed still has a range",
             {kRange, kOpen, kClose}, range_of_closed_told);
  list.named("closed-known-to-driver",
             "cuPointerGetAttribute still tells the type of memory that was "
             "closed",
             {kAttribute, kOpen, kClose}, closed_known_to_driver);
  list.named("closed-known-to-many",
             "the query of many attributes still tells the type of memory that "
             "was closed",
             {kMany, kOpen, kClose}, closed_known_to_many);
  list.named("ipc-attr-second-thread-no",
             "the IPC attribute says no in a second thread",
             {"cudaDeviceGetAttribute"}, ipc_denied_to_second_thread);
  list.named("import-own-record-preferred",
             "an importer uses its own record after the exporter has recorded "
             "the event again",
             {kWait, kQuery, kSync, kRecord, kRecordFlags, kOpenEvent, kDestroy,
              kCreate},
             own_record_preferred);
  list.named("twin-records-unseen",
             "if a process opens one event twice, each of the two opened "
             "events does not see the records of the other one",
             {kWait, kQuery, kSync, kRecord, kRecordFlags, kOpenEvent, kDestroy,
              kCreate},
             twin_unseen);
  list.named(
      "blocking-import-always-ready",
      "a query says that an imported event with blocking waits is always "
      "complete",
      {kQuery, kOpenEvent, kExport, kCreate, kDestroy}, blocking_import_ready);
  list.named("blocking-import-never-waited",
             "a stream does not wait for an imported event with blocking waits",
             {kWait, kOpenEvent, kExport, kCreate, kDestroy},
             blocking_import_not_waited);
  list.named("blocking-import-never-recorded",
             "an importer's record of an event with blocking waits is lost",
             {kRecord, kRecordFlags, kOpenEvent, kExport, kCreate, kDestroy},
             blocking_import_unrecorded);
  list.named("driver-record-with-flags-lost",
             "cuEventRecordWithFlags records no interprocess event",
             {kRecordFlags, kOpenEvent, kCreate, kDestroy},
             driver_record_with_flags_lost);
  list.named(
      "record-with-flags-early",
      "a record with flags of an interprocess event does not wait for the "
      "work before it",
      {kRecordFlags, kOpenEvent, kCreate, kDestroy}, record_with_flags_early);
  list.named("second-host-wait-early",
             "a thread does not wait for an imported event while another "
             "thread waits for it",
             {kSync, kOpenEvent, kCreate, kDestroy}, second_host_wait_early);
  list.named("event-lost-after-death",
             "records of an event are lost when a process that had opened it "
             "has died",
             {kRecord, kRecordFlags, kOpenEvent, kExport, kCreate, kDestroy},
             lost_after_death);
  list.named("event-handle-ends-with-thread",
             "the handle of an event cannot be opened when the thread that "
             "exported it has ended",
             {kOpenEvent, kExport}, event_ends_with_thread);
  list.named("graph-in-per-thread-stream-lost",
             "a launch of a graph in a thread's default stream does nothing",
             {"cudaGraphLaunch"}, graph_in_per_thread_lost);
  list.named("write64-before-copies",
             "a write of 64 bits does not wait for the copy directly before it",
             kWork, next_goes_ahead<is_copy, is_write64>);
  list.named("wait64-holds-no-records",
             "a record directly after the wait for 64 bits does not wait",
             kWork, next_goes_ahead<is_word_wait, records>);
  list.named("batch-holds-no-copies",
             "a copy directly after a batch that waits does not wait", kWork,
             next_goes_ahead<is_waiting_batch, is_copy>);
  list.named(
      "write-last-word-lost",
      "cuStreamWriteValue32 does not write the last word of opened memory",
      {"cuStreamWriteValue32", kOpen, kClose}, last_word_not_written);
  list.named("wait-second-memory-ignored",
             "of several opened allocations, streams wait for words of 32 bits "
             "only in one",
             {"cuStreamWaitValue32", kOpen, kClose}, second_memory_not_waited);
  list.named("batch-above-128-refused",
             "a batch of 129 to 255 operations is refused",
             {"cuStreamBatchMemOp"}, batch_above_128_refused);
  constexpr auto kQueryOfRuntime = "cudaPointerGetAttributes";
  list.named("freed-inside-known",
             "cudaPointerGetAttributes still knows addresses inside freed "
             "memory",
             {kQueryOfRuntime, kFree}, freed_inside_known);
  list.named("freed-inside-known-to-driver",
             "cuPointerGetAttribute still tells the type of memory for "
             "addresses inside freed memory",
             {kAttribute, kFree}, freed_inside_known_to_driver);
  list.named(
      "freed-still-capable",
      "cuPointerGetAttribute says that freed memory is capable of legacy "
      "IPC",
      {kAttribute, kFree}, freed_still_capable);
  list.named("freed-inside-export-ok",
             "an address inside freed memory gets a legacy handle, which opens "
             "other memory",
             {kGet, kFree}, freed_inside_exported);
  list.named("closed-inside-known",
             "cudaPointerGetAttributes still knows addresses inside memory "
             "that was closed",
             {kQueryOfRuntime, kOpen, kClose}, closed_inside_known);
  list.named("capable-until-sync-memops",
             "cuPointerGetAttribute says that memory is not capable of legacy "
             "IPC after its CU_POINTER_ATTRIBUTE_SYNC_MEMOPS was set",
             {kAttribute, "cuPointerSetAttribute"}, capable_until_sync_memops);
  list.named("buffer-id-16-bits",
             "cuPointerGetAttribute gives only 16 bits of buffer ids",
             {kAttribute}, id_of_16_bits);
  list.named("import-access-read-only",
             "cuPointerGetAttribute says that opened memory can only be read",
             {kAttribute, kOpen, kClose}, import_access_read_only);
  list.named("import-said-of-pool",
             "cuPointerGetAttribute says that opened memory is of the default "
             "pool of GPU 0",
             {kAttribute, kOpen, kClose}, import_said_of_pool);
  list.named("close-while-busy-lost",
             "the last close unmaps nothing while a created stream has work",
             {kClose, kOpen, kLaunch, kCopy, "cudaMemsetAsync",
              "cuStreamWaitValue32", "cudaStreamDestroy"},
             close_while_busy_lost);
  list.named("open-while-busy-refused",
             "no memory can be opened while a created stream of the importer "
             "has work",
             {kOpen, kLaunch, kCopy, "cudaMemsetAsync", "cuStreamWaitValue32",
              "cudaStreamDestroy"},
             open_while_busy_refused);
  list.named("refused-async-free-closes",
             "a refused cudaFreeAsync of opened memory closes it",
             {"cudaFreeAsync", kOpen, kClose}, refused_async_free_closes);
  list.named("close-registered-ok",
             "a close accepts host memory of cudaHostRegister",
             {kClose, "cudaHostRegister"}, such_memory_closed);
  list.named("close-graph-memory-ok",
             "a close accepts memory of a graph's node",
             {kClose, "cudaGraphAddMemAllocNode"}, such_memory_closed);
  list.named("close-pitched-ok",
             "a close accepts memory of cudaMallocPitch and cudaMalloc3D",
             {kClose, "cudaMallocPitch", "cudaMalloc3D", kFree},
             such_memory_closed);
  list.named("context-end-ends-handles",
             "when a context of the exporter ends, the handles that were made "
             "in its other contexts do not open",
             {kGet, kOpen, "cuCtxDestroy"}, context_end_ends_handles);
  list.named("handles-counted-by-context",
             "memory of a second context gets the handle of memory of the "
             "first context",
             {kGet}, handles_counted_by_context);
  list.named(
      "pool-data-opens-as-memory",
      "the exported pointer of a pool opens as a memory handle and gives "
      "new memory",
      {kOpen, "cudaMemPoolExportPointer"}, pool_data_opened);
  list.named("import-freehost-ok",
             "cudaFreeHost accepts opened memory and closes it",
             {"cudaFreeHost", kOpen, kClose}, opened_freed_as_host);
  list.named("import-allows-descriptors",
             "cuPointerGetAttribute says that opened memory can be exported as "
             "a descriptor",
             {kAttribute, kOpen, kClose}, import_allows_descriptors);
  list.named("exported-allows-descriptors",
             "cuPointerGetAttribute says that memory that has a legacy handle "
             "can be exported as a descriptor",
             {kAttribute, kGet}, exported_allows_descriptors);
  list.named("import-set-after-2-gib-lost",
             "cudaMemset does nothing if it begins between 2 and 4 GiB after "
             "the beginning of opened memory",
             {"cudaMemset", kOpen, kClose}, lost_after_2_gib);
  list.named(
      "import-copy-after-2-gib-lost",
      "cudaMemcpy does nothing if its destination is between 2 and 4 GiB "
      "after the beginning of opened memory",
      {"cudaMemcpy", kOpen, kClose}, lost_after_2_gib);
  list.named("reused-in-open-block-is-fresh",
             "while a process has other memory of a block open, a small "
             "allocation at an address that was used before opens as new "
             "memory",
             {kGet, kOpen, kClose}, reused_in_open_block_is_fresh);
  list.named("open-gives-own-of-same-number",
             "an open gives this process's own memory that has the same number "
             "in the order of exports",
             {kGet, kOpen, kClose, kFree}, open_gives_own_of_same_number);
}

}  // namespace ipclab::faults
