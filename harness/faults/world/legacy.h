// Tables of the memory that a process has opened by legacy handles, and of the
// events that it shares. Faults of memory and faults of events use them.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstring>
#include <string>

#include "harness/faults/engine/fault.h"
#include "harness/faults/engine/table.h"

namespace ipclab::faults {

/// The context of the calling thread.
inline CUcontext current_context() {
  CUcontext context = nullptr;
  DRIVER_CALL(cuCtxGetCurrent)(&context);
  return context;
}

/// The GPU that is current in the calling thread.
inline int current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

/// A pointer as a number, as the driver API has it.
inline CUdeviceptr number(const void* address) {
  return reinterpret_cast<CUdeviceptr>(address);
}
/// The first address of the allocation in which an address lies; 0 if there is
/// none.
inline CUdeviceptr begin_of(CUdeviceptr address) {
  CUdeviceptr begin = 0;
  DRIVER_CALL(cuMemGetAddressRange)(&begin, nullptr, address);
  return begin;
}
/// The size of the allocation in which an address lies; 0 if there is none.
inline size_t size_of(CUdeviceptr address) {
  size_t bytes = 0;
  DRIVER_CALL(cuMemGetAddressRange)(nullptr, &bytes, address);
  return bytes;
}

/// The key that names the handle of memory in all processes.
inline std::string key_of_handle(const cudaIpcMemHandle_t& handle) {
  return key_of(&handle, sizeof handle);
}
/// The key that names the handle of an event in all processes.
inline std::string key_of_handle(const cudaIpcEventHandle_t& handle) {
  return key_of(&handle, sizeof handle);
}

/// Opened memory.
struct Opened {
  std::string handle;  ///< the key of the handle
  cudaIpcMemHandle_t bytes{};
  CUcontext context = nullptr;
  int thread = 0;
  int count = 0;
};
/// All opened memory, by address.
inline Table<void*, Opened> opened;
/// The keys of all handles, of memory and of events, that this process has
/// exported.
inline Table<std::string> own_handles;

/// Does the call export memory?
inline bool exports_memory(Call& call) {
  return call.is("cudaIpcGetMemHandle");
}
/// Does the call open memory?
inline bool is_open_call(Call& call) { return call.is("cudaIpcOpenMemHandle"); }
/// Does the call close memory?
inline bool is_close_call(Call& call) {
  return call.is("cudaIpcCloseMemHandle");
}
/// Does the call open or close memory?
inline bool keeps_opened(Call& call) {
  return is_open_call(call) || is_close_call(call);
}

/// The GPU of this number, as all processes name it: its place in the machine.
/// GPUs of one machine may have the same number on their bus.
inline unsigned long long place_of(int device) {
  int domain = 0, bus = 0, number = 0;
  cudaDeviceGetAttribute(&domain, cudaDevAttrPciDomainId, device);
  cudaDeviceGetAttribute(&bus, cudaDevAttrPciBusId, device);
  cudaDeviceGetAttribute(&number, cudaDevAttrPciDeviceId, device);
  return static_cast<unsigned long long>(domain) << 32 |
         static_cast<unsigned long long>(bus) << 16 |
         static_cast<unsigned long long>(number);
}
/// The current GPU, as all processes name it.
inline unsigned long long current_place() {
  int device = 0;
  cudaGetDevice(&device);
  return place_of(device);
}

/// Proceeds with an export, and tells the other processes whose memory it is.
/// (A driver may report opened memory as memory of the current GPU.)
inline int told_owner(Call& get) {
  const int code = get.proceed();
  if (code != kSuccess) return code;
  int device = 0;
  DRIVER_CALL(cuPointerGetAttribute)
  (&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
   reinterpret_cast<CUdeviceptr>(get.at<void*>(1)));
  tell_processes("owner-" + key_of_handle(*get.at<cudaIpcMemHandle_t*>(0)),
                 place_of(device));
  return code;
}
/// The GPU whose memory a handle stands for; the current GPU if no process said
/// it.
inline unsigned long long owner_of(const cudaIpcMemHandle_t& handle) {
  return told("owner-" + key_of_handle(handle), current_place());
}

/// The opened pointer of a handle in the current context; null if the handle is
/// not open there.
inline void* already_open(Call& open) {
  const auto& handle = open.at<cudaIpcMemHandle_t>(1);
  for (const auto& [address, one] : opened.all())
    if (std::memcmp(&one.bytes, &handle, sizeof handle) == 0 &&
        one.context == current_context())
      return address;
  return nullptr;
}

/// The opened memory in which an address lies; null if there is none.
inline void* opened_around(const void* address) {
  // A thread that has no context yet cannot ask for the allocation.
  void* const same = const_cast<void*>(address);
  if (opened.has(same)) return same;
  const CUdeviceptr begin = begin_of(number(address));
  if (begin == 0) return nullptr;
  for (const auto& each : opened.all())
    if (begin_of(number(each.first)) == begin) return each.first;
  return nullptr;
}
/// Does an address lie in opened memory?
inline bool is_opened(const void* address) {
  return opened_around(address) != nullptr;
}
/// Does an address lie in opened memory?
inline bool is_opened(CUdeviceptr address) {
  return is_opened(reinterpret_cast<const void*>(address));
}

/// Counts one close of memory. Returns how many opens are left; -1 if the
/// memory was not open.
inline int count_close(void* address) {
  return opened.change([&](auto& all) {
    const auto one = all.find(address);
    if (one == all.end()) return -1;
    const int left = one->second.count - 1;
    if (left > 0)
      one->second.count = left;
    else
      all.erase(one);
    return left;
  });
}
/// Updates the facts about opened memory and handles after an accepted call.
void note_opened(Call& call);

/// The events that processes share, and whether each of them is imported.
inline Table<cudaEvent_t, bool> events;
/// The keys of the handles of these events. A key is the same in all processes.
inline Table<cudaEvent_t, std::string> event_keys;

constexpr unsigned kInterprocess = cudaEventInterprocess;

/// Does the call make an event, with flags?
inline bool makes_event(Call& call) {
  return call.is("cudaEventCreateWithFlags");
}
/// Does the call open an event?
inline bool opens_event(Call& call) {
  return call.is("cudaIpcOpenEventHandle");
}
/// Does the call export an event?
inline bool exports_event(Call& call) {
  return call.is("cudaIpcGetEventHandle");
}

/// Does the call record an event?
inline bool records(Call& call) {
  return call.is("cudaEventRecord") || call.is("cudaEventRecordWithFlags");
}

/// Does the call make, export, open or destroy an event?
inline bool keeps_events(Call& call) {
  return makes_event(call) || opens_event(call) || exports_event(call) ||
         call.is("cudaEventDestroy");
}

/// Updates the facts about events after an accepted call.
void note_events(Call& call);

/// The event that a call uses; null if processes do not share this event, and
/// null for a call that destroys or exports an event.
inline cudaEvent_t shared_event(Call& call) {
  if (call.find(kEvent) == nullptr || call.is("cudaEventDestroy") ||
      exports_event(call))
    return nullptr;
  const auto event = call.value<cudaEvent_t>(kEvent);
  return events.has(event) ? event : nullptr;
}

/// Does another process own the event?
inline bool is_imported(cudaEvent_t event) { return events.get(event); }

/// Does the event stand for work that is not done? Leaves no error in the
/// runtime.
inline bool is_pending(cudaEvent_t event) {
  // The query needs a context, and a new thread has none yet.
  if (current_context() == nullptr) cudaFree(nullptr);
  return DRIVER_CALL(cuEventQuery)(event) == CUDA_ERROR_NOT_READY;
}

/// Is this stream the legacy default stream?
inline bool is_default(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy;
}

/// Is the work of the stream captured into a graph?
inline bool is_captured(cudaStream_t stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return DRIVER_CALL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
         status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

/// Has the stream work that is not done? False while its work is captured: a
/// query would spoil the capture.
inline bool is_busy(cudaStream_t stream) {
  return !is_captured(stream) &&
         DRIVER_CALL(cuStreamQuery)(stream) == CUDA_ERROR_NOT_READY;
}

/// An event of this process with which faults mark a place in this stream.
inline cudaEvent_t mark_of(cudaStream_t stream) {
  static Table<cudaStream_t, cudaEvent_t> marks;
  if (!marks.has(stream)) {
    cudaEvent_t made = nullptr;
    cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
    marks.put(stream, made);
  }
  return marks.get(stream);
}

/// Exports memory. If the driver refuses the call and `applies` is true, the
/// program gets a handle of other memory.
inline int exported_all_the_same(Call& call, bool applies) {
  static void* other = nullptr;
  const int code = call.proceed();
  if (code == kSuccess || !applies) return code;
  if (call.is_runtime()) cudaGetLastError();
  if (other == nullptr && cudaMalloc(&other, 2 << 20) != cudaSuccess)
    return code;
  call.at<void*>(1) = other;
  call.fired();
  return call.proceed();
}

}  // namespace ipclab::faults
