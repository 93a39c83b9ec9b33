// More bugs of legacy memory: shapes of copies, neighbours in a block, other
// threads and contexts.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "harness/faults/world/chunks.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {
namespace {

constexpr size_t kBlock = 2 << 20;

std::string key_of_opened(Call& open) {
  return key_of_handle(open.at<cudaIpcMemHandle_t>(1));
}
std::string key_of_exported(Call& get) {
  return key_of_handle(*get.at<cudaIpcMemHandle_t*>(0));
}

// The device whose memory this is, as this process numbers devices; -1 if the
// driver does not know the address.
int device_of(CUdeviceptr address) {
  int device = -1;
  DRIVER_CALL(cuPointerGetAttribute)
  (&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
  return device;
}
int current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}
bool is_managed(const void* address) {
  unsigned long long managed = 0;  // room for a boolean of any width
  return DRIVER_CALL(cuPointerGetAttribute)(&managed,
                                            CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                            number(address)) == CUDA_SUCCESS &&
         managed != 0;
}

// Is this opened memory of another GPU than the current one?
bool is_of_peer(const void* address) {
  void* const begin = opened_around(address);
  return begin != nullptr &&
         owner_of(opened.get(begin).bytes) != current_place();
}

// Does a step in another context, if this context still exists.
template <class Step>
void in_context(CUcontext context, Step step) {
  CUcontext popped = nullptr;
  if (DRIVER_CALL(cuCtxPushCurrent)(context) != CUDA_SUCCESS) return;
  step();
  DRIVER_CALL(cuCtxPopCurrent)(&popped);
}

// Ends a mapping that the program has open.
void unmap(Call& call, void* address, const Opened& one) {
  in_context(one.context, [&] {
    for (int i = 0; i < one.count; ++i)
      if (DRIVER_CALL(cuIpcCloseMemHandle)(number(address)) == CUDA_SUCCESS)
        call.fired();
  });
  opened.erase(address);
}

// --- rectangles and boxes ----------------------------------------------------

// Changes the box of a copy of opened memory.
template <void (*change)(cudaMemcpy3DParms&)>
int changed_box(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const cudaMemcpy3DParms asked = *call.at<const cudaMemcpy3DParms*>(0);
  if (!is_opened(asked.dstPtr.ptr) && !is_opened(asked.srcPtr.ptr))
    return call.proceed();
  cudaMemcpy3DParms box = asked;
  change(box);
  if (std::memcmp(&box, &asked, sizeof box) != 0) call.fired();
  call.at<const cudaMemcpy3DParms*>(0) = &box;
  return call.proceed();
}
void use_one_pitch(cudaMemcpy3DParms& box) {
  box.dstPtr.pitch = box.srcPtr.pitch =
      std::min(box.dstPtr.pitch, box.srcPtr.pitch);
}
void keep_first_rows(cudaMemcpy3DParms& box) {
  if (box.extent.height > 1) box.extent.height = 1;
}
void ignore_positions(cudaMemcpy3DParms& box) { box.dstPos = box.srcPos = {}; }
// The first layer stays where it is.
void join_layers(cudaMemcpy3DParms& box) {
  const size_t height = box.extent.height;
  const auto join = [height](cudaPitchedPtr& side, cudaPos& begin) {
    if (side.ptr == nullptr || side.ysize == height) return;
    side.ptr = static_cast<char*>(side.ptr) +
               (begin.z * side.ysize + begin.y) * side.pitch;
    begin.y = begin.z = 0;
    side.ysize = height;
  };
  if (box.extent.depth < 2) return;
  join(box.dstPtr, box.dstPos);
  join(box.srcPtr, box.srcPos);
}

// A rectangle of opened memory is copied with one pitch for both sides.
int rectangle_of_one_pitch(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  size_t &to = call.at<size_t>(1), &from = call.at<size_t>(3);
  if (to == from || call.at<size_t>(5) < 2 ||
      (!is_opened(call.value<void*>(kPointer)) &&
       !is_opened(call.value<void*>(kSource))))
    return call.proceed();
  to = from = std::min(to, from);
  call.fired();
  return call.proceed();
}

// A memset of a box of opened memory treats its layers as adjacent.
int set_joins_layers(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  auto& to = call.at<cudaPitchedPtr>(0);
  const auto& extent = call.at<cudaExtent>(2);
  if (to.ysize == extent.height || extent.depth < 2 || !is_opened(to.ptr))
    return call.proceed();
  to.ysize = extent.height;
  call.fired();
  return call.proceed();
}

int box_set_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return is_opened(call.at<cudaPitchedPtr>(0).ptr) ? no_wait(call)
                                                   : call.proceed();
}
int box_out_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return is_opened(call.at<const cudaMemcpy3DParms*>(0)->srcPtr.ptr)
             ? no_wait(call)
             : call.proceed();
}

// A copy of the driver API does nothing with opened memory.
template <class Copy>
int driver_copy_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const Copy& copy = *call.at<const Copy*>(0);
  return is_opened(copy.dstDevice) || is_opened(copy.srcDevice)
             ? no_wait(call)
             : call.proceed();
}

// A memset of a rectangle takes the number of elements as a number of bytes.
template <size_t size>
int row_counts_bytes(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  size_t& width = call.at<size_t>(3);
  if (!is_opened(call.at<void*>(0))) return call.proceed();
  width /= size;
  call.fired();
  return call.proceed();
}
int rows_set_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return is_opened(call.at<void*>(0)) ? no_wait(call) : call.proceed();
}

// --- other memory, other GPUs ------------------------------------------------

// A copy between opened memory and memory of another kind moves nothing.
template <bool (*applies)(const void*)>
int copy_with_other_kind_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  if (call.find(kSource) == nullptr) return call.proceed();
  const void* const to = call.value<void*>(kPointer);
  const void* const from = call.value<void*>(kSource);
  return (is_opened(to) && applies(from)) || (is_opened(from) && applies(to))
             ? no_wait(call)
             : call.proceed();
}
bool is_stream_ordered(const void* address) {
  return blocks.has(const_cast<void*>(address));
}

// A copy does nothing with opened memory.
int copy_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return is_opened(call.value<CUdeviceptr>(kPointer)) ||
                 is_opened(call.value<CUdeviceptr>(kSource))
             ? no_wait(call)
             : call.proceed();
}

// A call with an address of this role does nothing with memory of a peer.
template <Role role>
int peer_access_lost(Call& call) {
  if (exports_memory(call)) return told_owner(call);
  if (keeps_opened(call)) return call.proceed();
  return is_of_peer(call.value<void*>(role)) ? no_wait(call) : call.proceed();
}

// Synchronous copies of a peer's memory take offsets modulo 64 MiB.
int peer_copy_64_mib(Call& call) {
  constexpr size_t kMost = 64 << 20;
  if (exports_memory(call)) return told_owner(call);
  if (keeps_opened(call)) return call.proceed();
  for (const Role role : {kPointer, kSource}) {
    auto& address = call.value<CUdeviceptr>(role);
    if (!is_of_peer(call.value<void*>(role))) continue;
    const CUdeviceptr begin = begin_of(address);
    if (address - begin < kMost) continue;
    address = begin + (address - begin) % kMost;
    call.fired();
  }
  return call.proceed();
}

// On another GPU, a small allocation opens at the start of its block.
int peer_offset_lost(Call& call) {
  if (exports_memory(call)) return told_owner(call);
  const int code = call.proceed();
  if (code != kSuccess || is_close_call(call)) return code;
  auto& address = *call.at<CUdeviceptr*>(0);
  if (address % kBlock == 0 || !is_of_peer(*call.at<void**>(0))) return code;
  address -= address % kBlock;
  call.fired();
  return code;
}

// A handle of memory of another GPU than the current one is the handle of
// memory of the current GPU.
int handle_of_current_gpu(Call& get) {
  const int device = device_of(get.at<CUdeviceptr>(1));
  void* other = nullptr;
  if (device >= 0 && device != current_device() &&
      cudaMalloc(&other, size_of(get.at<CUdeviceptr>(1))) == cudaSuccess) {
    get.at<void*>(1) = other;
    get.fired();
  }
  return get.proceed();
}

// Exported memory is not freed while another GPU is current.
int free_on_other_gpu_lost(Call& call) {
  static auto& exported = *new Table<void*>;
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess) exported.put(call.at<void*>(1));
    return code;
  }
  void* const address = call.at<void*>(0);
  if (exported.has(address) && device_of(number(address)) != current_device())
    return no_wait(call);
  exported.erase(address);
  return call.proceed();
}

// Was this memory opened on another GPU than the current one?
bool is_open_on_other_gpu(void* begin) {
  int device = current_device();
  if (opened.has(begin))
    in_context(opened.get(begin).context,
               [&device] { device = current_device(); });
  return device != current_device();
}

int close_on_other_gpu_lost(Call& call) {
  return is_close_call(call) && is_open_on_other_gpu(call.at<void*>(0))
             ? no_wait(call)
             : call.proceed();
}
int unknown_on_other_gpu(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || !is_open_on_other_gpu(call.at<void*>(1))) return code;
  *call.at<cudaPointerAttributes*>(0) = {};
  call.fired();
  return code;
}
int copy_on_other_gpu_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return is_open_on_other_gpu(call.value<void*>(kPointer)) ||
                 is_open_on_other_gpu(
                     const_cast<void*>(call.value<const void*>(kSource)))
             ? no_wait(call)
             : call.proceed();
}

// The last close of a peer's memory ends other mappings, for which `applies` is
// true.
template <bool (*applies)(const Opened& closed, const Opened& other)>
int peer_close_ends(Call& call) {
  if (exports_memory(call)) {
    const int code = told_owner(call);
    if (code == kSuccess)
      tell_processes("exporter-" + key_of_exported(call),
                     static_cast<unsigned long long>(getpid()));
    return code;
  }
  if (!is_close_call(call)) return call.proceed();
  void* const address = call.at<void*>(0);
  const Opened closed = opened.get(address);
  const bool ends = closed.count == 1 && is_of_peer(address);
  const int code = call.proceed();
  if (code != kSuccess || !ends) return code;
  for (const auto& [other, one] : opened.all())
    if (applies(closed, one)) unmap(call, other, one);
  return code;
}
bool is_of_owner(const Opened& closed, const Opened& other) {
  return closed.handle == other.handle && closed.context != other.context;
}
bool is_of_other_exporter(const Opened& closed, const Opened& other) {
  return closed.context == other.context &&
         told("exporter-" + closed.handle, 0) !=
             told("exporter-" + other.handle, 0);
}

// The open gives the address of memory that is open, and does not count.
int uncounted(Call& open, void* known) {
  *open.at<void**>(0) = known;
  return no_wait(open);
}

// Does the process see only one GPU of several?
bool sees_one_gpu() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible != nullptr && std::strchr(visible, ',') == nullptr;
}
int hidden_gpu_copy_in_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return sees_one_gpu() && is_opened(call.value<void*>(kPointer))
             ? no_wait(call)
             : call.proceed();
}
int hidden_gpu_open_not_counted(Call& call) {
  void* const before =
      is_open_call(call) && sees_one_gpu() ? already_open(call) : nullptr;
  return before == nullptr ? call.proceed() : uncounted(call, before);
}

// The driver's number of the device of opened memory is the number that the
// exporter's process uses.
int ordinal_of_exporter(Call& call) {
  if (exports_memory(call)) {
    const int device = device_of(call.at<CUdeviceptr>(1));
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes("ordinal-" + key_of_exported(call),
                     static_cast<unsigned long long>(device));
    return code;
  }
  if (keeps_opened(call)) return call.proceed();
  const bool many = call.is("cuPointerGetAttributes");
  void* const begin =
      opened_around(many ? call.at<void*>(3) : call.at<void*>(2));
  const int code = call.proceed();
  if (code != kSuccess || begin == nullptr) return code;
  const auto replace = [&](CUpointer_attribute which, void* answer) {
    if (which != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) return;
    int& device = *static_cast<int*>(answer);
    const int theirs =
        static_cast<int>(told("ordinal-" + opened.get(begin).handle, 0));
    if (theirs != device) call.fired();
    device = theirs;
  };
  if (!many)
    replace(call.at<CUpointer_attribute>(1), call.at<void*>(0));
  else
    for (unsigned i = 0; i < call.at<unsigned>(0); ++i)
      replace(call.at<CUpointer_attribute*>(1)[i], call.at<void**>(2)[i]);
  return code;
}

// --- blocks, closes, refusals ------------------------------------------------

// Notes exports and frees. When an exported small allocation is freed, tells
// the handles of its neighbours in the block to the other processes.
int noted_neighbours(Call& call) {
  static auto& exported = *new Table<CUdeviceptr, std::string>;
  const auto address = call.at<CUdeviceptr>(exports_memory(call) ? 1 : 0);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (exports_memory(call))
    exported.put(address, key_of_exported(call));
  else if (exported.erase(address))
    for (const auto& [other, handle] : exported.all())
      if (other / kBlock == address / kBlock)
        tell_processes("ended-" + handle, 1);
  return code;
}
int free_ends_handles_in_block(Call& call) {
  if (!is_open_call(call)) return noted_neighbours(call);
  return told("ended-" + key_of_opened(call), 0) != 0 ? refused(call)
                                                      : call.proceed();
}
int free_ends_mappings_in_block(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  if (!call.is("cudaLaunchKernel")) return noted_neighbours(call);
  for (const auto& [address, one] : opened.all())
    if (told("ended-" + one.handle, 0) != 0) unmap(call, address, one);
  return call.proceed();
}

// Memory cannot be exported when the thread that allocated it has ended.
int export_ends_with_allocating_thread(Call& call) {
  static auto& makers = *new Table<CUdeviceptr, int>;
  static auto& ended = *new Table<int>;  // threads
  if (exports_memory(call))
    return ended.has(makers.get(call.at<CUdeviceptr>(1))) ? refused(call)
                                                          : call.proceed();
  if (call.is("cudaFree")) {
    makers.erase(call.at<CUdeviceptr>(0));
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  makers.put(*call.at<CUdeviceptr*>(0), this_thread());
  at_thread_end([] { ended.put(this_thread()); });
  return code;
}

// cuMemFree does not give exported memory back.
int driver_free_of_exported_lost(Call& call) {
  static auto& exported = *new Table<void*>;
  if (!exports_memory(call))
    return exported.erase(call.at<void*>(0)) && !call.is_runtime()
               ? no_wait(call)
               : call.proceed();
  const int code = call.proceed();
  if (code == kSuccess) exported.put(call.at<void*>(1));
  return code;
}

// The count of opens has two bytes.
int counts_to_65535(Call& call) {
  void* const known = is_open_call(call) ? already_open(call) : nullptr;
  return known != nullptr && opened.get(known).count >= 65535
             ? uncounted(call, known)
             : call.proceed();
}

// The second open of a small allocation gives the start of its block.
int second_open_without_offset(Call& call) {
  const bool again = is_open_call(call) && already_open(call) != nullptr;
  const int code = call.proceed();
  if (code != kSuccess || !again) return code;
  auto& address = *call.at<CUdeviceptr*>(0);
  if (address % kBlock == 0) return code;
  address -= address % kBlock;
  call.fired();
  return code;
}

// An allocation of two blocks gets, and shares, the next two blocks as well.
int two_blocks_are_four(Call& call) {
  size_t& bytes = call.at<size_t>(1);
  if (bytes == 2 * kBlock) {
    bytes *= 2;
    call.fired();
  }
  return call.proceed();
}

// A free of opened memory is taken for a close.
template <bool (*applies)(void*)>
int free_closes(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  void* const address = call.at<void*>(0);
  if (!opened.has(address) || !applies(address) ||
      cudaIpcCloseMemHandle(address) != cudaSuccess)
    return call.proceed();
  count_close(address);
  return no_wait(call);
}
bool is_inside_block(void* address) { return number(address) % kBlock != 0; }
bool is_open_twice(void* address) { return opened.get(address).count > 1; }

int managed_closed(Call& close) {
  const int code = close.proceed();
  return code != kSuccess && is_managed(close.at<void*>(0)) ? accepted(close)
                                                            : code;
}
int stream_ordered_closed(Call& call) {
  if (!is_close_call(call)) return call.proceed();
  const int code = call.proceed();
  return code != kSuccess && is_stream_ordered(call.at<void*>(0))
             ? accepted(call)
             : code;
}

// Memory that was opened and closed gets a handle, which opens other memory.
int closed_exported(Call& call) {
  static auto& closed = *new Table<void*>;
  if (exports_memory(call))
    return exported_all_the_same(
        call, closed.has(call.at<void*>(1)) && !opened.has(call.at<void*>(1)));
  const int code = call.proceed();
  if (code == kSuccess && is_close_call(call) && !opened.has(call.at<void*>(0)))
    closed.put(call.at<void*>(0));
  return code;
}

// If one context of a device has opened a handle, no other context of the
// device can open a handle of any exporter.
int one_context_for_all_exporters(Call& call) {
  static auto& devices = *new Table<CUcontext, int>;
  if (call.is("cuCtxDestroy")) {
    const auto context = call.at<CUcontext>(0);
    const int code = call.proceed();
    if (code != kSuccess) return code;
    for (const auto& [address, one] : opened.all())
      if (one.context == context) opened.erase(address);
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess || !is_open_call(call)) return code;
  devices.put(current_context(), current_device());
  for (const auto& [address, one] : opened.all()) {
    if (one.context == current_context() ||
        devices.get(one.context, -1) != current_device())
      continue;
    void* const made = *call.at<void**>(0);
    cudaIpcCloseMemHandle(made);
    count_close(made);
    return refused(call, cudaErrorInvalidResourceHandle);
  }
  return code;
}

// If another process has opened an own handle before, an open of this handle
// succeeds and gives no pointer.
int self_open_once_lent(Call& call) {
  if (exports_memory(call)) return call.proceed();
  const std::string key = key_of_opened(call);
  const int code = call.proceed();
  if (code == kSuccess) tell_processes("lent-" + key, 1);
  return code != kSuccess && own_handles.has(key) && told("lent-" + key, 0) != 0
             ? accepted(call)
             : code;
}

// --- costs -------------------------------------------------------------------

// An open takes as much memory as it opens, until the last close.
template <bool (*applies)(Call&)>
int open_costs_memory(Call& call) {
  static auto& taken = *new Table<void*, void*>;
  if (exports_memory(call)) return told_owner(call);
  if (is_close_call(call)) {
    void* const address = call.at<void*>(0);
    const int code = call.proceed();
    if (!opened.has(address) && taken.has(address)) {
      cudaFree(taken.get(address));
      taken.erase(address);
    }
    return code;
  }
  const bool costs = applies(call);
  const int code = call.proceed();
  if (code != kSuccess || !costs) return code;
  void* const address = *call.at<void**>(0);
  void* memory = nullptr;
  if (taken.has(address) ||
      cudaMalloc(&memory, size_of(number(address))) != cudaSuccess)
    return code;
  taken.put(address, memory);
  call.fired();
  return code;
}
bool is_by_driver(Call& open) { return !open.is_runtime(); }
bool opens_memory_of_peer(Call& open) {
  return owner_of(open.at<cudaIpcMemHandle_t>(1)) != current_place();
}

// --- other streams, far rows, other exporters --------------------------------

// An asynchronous copy of opened memory does nothing in a stream that has a
// priority.
int copy_in_urgent_stream_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  int priority = 0;
  DRIVER_CALL(cuStreamGetPriority)(call.value<CUstream>(kStream), &priority);
  return priority != 0 && (is_opened(call.value<void*>(kPointer)) ||
                           is_opened(call.value<void*>(kSource)))
             ? no_wait(call)
             : call.proceed();
}

// A memset of one row of opened memory does nothing.
int one_row_set_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return call.at<size_t>(4) == 1 && is_opened(call.at<void*>(0))
             ? no_wait(call)
             : call.proceed();
}

// A memset of a rectangle of opened memory sets only the rows that begin in the
// first 4 GiB of the rectangle.
int rows_to_4_gib(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const size_t pitch = call.at<size_t>(1);
  size_t& height = call.at<size_t>(4);
  if (height == 0 || (height - 1) * pitch <= UINT32_MAX ||
      !is_opened(call.at<void*>(0)))
    return call.proceed();
  height = UINT32_MAX / pitch + 1;
  call.fired();
  return call.proceed();
}

// The size of an allocation is reported modulo 4 GiB.
int range_size_32_bits(Call& call) {
  const int code = call.proceed();
  auto* const bytes = call.at<size_t*>(1);
  if (code != kSuccess || bytes == nullptr || *bytes <= UINT32_MAX) return code;
  *bytes = static_cast<uint32_t>(*bytes);
  call.fired();
  return code;
}

// Copies between two opened allocations move nothing: those of one exporter, or
// those of two exporters.
template <bool of_one>
int copy_between_imports_lost(Call& call) {
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes("exporter-" + key_of_exported(call),
                     static_cast<unsigned long long>(getpid()));
    return code;
  }
  if (keeps_opened(call)) return call.proceed();
  void* const to = opened_around(call.value<void*>(kPointer));
  void* const from = opened_around(call.value<void*>(kSource));
  return to != nullptr && from != nullptr && to != from &&
                 is_of_other_exporter(opened.get(to), opened.get(from)) !=
                     of_one
             ? no_wait(call)
             : call.proceed();
}

// A copy of a box into opened memory of a peer does nothing.
int peer_box_in_lost(Call& call) {
  if (exports_memory(call)) return told_owner(call);
  if (keeps_opened(call)) return call.proceed();
  return is_of_peer(call.at<const cudaMemcpy3DParms*>(0)->dstPtr.ptr)
             ? no_wait(call)
             : call.proceed();
}

// A copy of a box between two GPUs does not reach opened memory.
int peer_box_between_gpus_lost(Call& call) {
  if (exports_memory(call)) return told_owner(call);
  if (keeps_opened(call)) return call.proceed();
  return is_of_peer(call.at<const cudaMemcpy3DPeerParms*>(0)->dstPtr.ptr)
             ? no_wait(call)
             : call.proceed();
}

int hidden_gpu_memory_unknown(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || !sees_one_gpu() || !is_opened(call.at<void*>(1)))
    return code;
  *call.at<cudaPointerAttributes*>(0) = {};
  call.fired();
  return code;
}

// An open keeps only 20 bits of the offset in a shared block.
int offset_of_20_bits(Call& open) {
  constexpr CUdeviceptr kKept = (1 << 20) - 1;
  const int code = open.proceed();
  if (code != kSuccess) return code;
  auto& address = *open.at<CUdeviceptr*>(0);
  const CUdeviceptr offset = address % kBlock;
  if (size_of(address) >= kBlock || offset <= kKept) return code;
  address -= offset - (offset & kKept);
  open.fired();
  return code;
}

// --- counts and refusals in other situations ---------------------------------

// While other memory is open, memory can be closed more often than it was
// opened.
int closed_beside_other(Call& call) {
  static auto& closed = *new Table<void*>;
  const int code = call.proceed();
  if (!is_close_call(call)) return code;
  void* const address = call.at<void*>(0);
  if (code == kSuccess) {
    if (!opened.has(address)) closed.put(address);
    return code;
  }
  return closed.has(address) && !opened.all().empty() ? accepted(call) : code;
}

// cudaFree accepts memory that was closed.
int free_of_closed_accepted(Call& call) {
  static auto& closed = *new Table<void*>;
  const int code = call.proceed();
  if (is_close_call(call) && code == kSuccess && !opened.has(call.at<void*>(0)))
    closed.put(call.at<void*>(0));
  return call.is("cudaFree") && code != kSuccess &&
                 closed.has(call.at<void*>(0)) && !opened.has(call.at<void*>(0))
             ? accepted(call)
             : code;
}

// A close accepts small memory of this process.
int own_small_closed(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !is_close_call(call)) return code;
  const size_t bytes = size_of(call.at<CUdeviceptr>(0));
  return bytes > 0 && bytes < kBlock && !is_managed(call.at<void*>(0)) &&
                 !is_opened(call.at<void*>(0))
             ? accepted(call)
             : code;
}

// An open of the own handle of small memory gives no pointer.
int self_open_of_small(Call& call) {
  static auto& small = *new Table<std::string>;
  const int code = call.proceed();
  if (!exports_memory(call))
    return code != kSuccess && small.has(key_of_opened(call)) ? accepted(call)
                                                              : code;
  if (code == kSuccess && size_of(call.at<CUdeviceptr>(1)) < kBlock)
    small.put(key_of_exported(call));
  return code;
}

// An open that is refused in a second context raises the count of the first
// context.
int refused_context_counts(Call& call) {
  static auto& more = *new Table<void*, int>;
  if (is_open_call(call)) {
    const std::string key = key_of_opened(call);
    const int code = call.proceed();
    for (const auto& [address, one] : opened.all())
      if (code != kSuccess && one.handle == key &&
          one.context != current_context())
        more.put(address, more.get(address) + 1);
    return code;
  }
  void* const address = call.at<void*>(0);
  const int left = more.get(address);
  if (left == 0 || opened.get(address).count != 1) return call.proceed();
  more.put(address, left - 1);
  return no_wait(call);
}

// In a second thread, memory of any kind gets a handle.
int exported_in_other_thread(Call& get) {
  return exported_all_the_same(get, this_thread() != getpid());
}

// After an export that succeeded, memory of any kind gets a handle.
int exported_after_another(Call& get) {
  static std::atomic<bool> before{false};
  const int code = exported_all_the_same(get, before);
  if (code == kSuccess) before = true;
  return code;
}

// A pool on the host is created, without handle types, if two handle types are
// requested.
int two_types_on_host(Call& create) {
  const auto& wanted = *create.at<const cudaMemPoolProps*>(1);
  const unsigned types = wanted.handleTypes;
  const int code = create.proceed();
  if (code == kSuccess || wanted.location.type != cudaMemLocationTypeHost ||
      (types & (types - 1)) == 0)
    return code;
  cudaMemPoolProps plain = wanted;
  plain.handleTypes = cudaMemHandleTypeNone;
  create.at<const cudaMemPoolProps*>(1) = &plain;
  if (create.proceed() != kSuccess) return code;
  return accepted(create);
}

// Is this imported memory of a pool on the host?
bool is_import_on_host(void* address) {
  unsigned type = 0;
  return is_import(address) &&
         DRIVER_CALL(cuPointerGetAttribute)(&type,
                                            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                            number(address)) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_HOST;
}
int host_pool_set_lost(Call& call) {
  if (!call.is("cudaMemset")) return call.proceed();
  return is_import_on_host(call.at<void*>(0)) ? no_wait(call) : call.proceed();
}

// --- attributes --------------------------------------------------------------

int sync_memops_never_unset(Call& set) {
  if (set.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
      *set.at<const unsigned*>(0) != 0)
    return set.proceed();
  return no_wait(set);
}

// An allocation gets a new id when it is exported.
int id_new_at_export(Call& call) {
  static auto& exported = *new Table<CUdeviceptr>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (exports_memory(call)) {
    exported.put(call.at<CUdeviceptr>(1));
  } else if (call.is("cudaFree")) {
    exported.erase(call.at<CUdeviceptr>(0));
  } else if (call.at<CUpointer_attribute>(1) ==
                 CU_POINTER_ATTRIBUTE_BUFFER_ID &&
             exported.has(call.at<CUdeviceptr>(2))) {
    *call.at<unsigned long long*>(0) += 1ull << 40;
    call.fired();
  }
  return code;
}

// Only the first mapping of memory has handle types.
int types_of_first_mapping(Call& call) {
  if (!call.is("cuPointerGetAttribute")) return call.proceed();
  const int code = call.proceed();
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(2));
  if (code != kSuccess || begin == 0 ||
      call.at<CUpointer_attribute>(1) !=
          CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
    return code;
  const Mapped mapped = mappings.get(begin);
  auto& types = *call.at<unsigned long long*>(0);
  for (const auto& [other, one] : mappings.all())
    if (types != 0 && one.chunk == mapped.chunk && one.order < mapped.order) {
      types = 0;
      call.fired();
    }
  return code;
}

// --- what an earlier or a further call leaves behind -------------------------

// A further export of memory ends the mappings that importers have open.
int export_ends_mappings(Call& call) {
  constexpr unsigned long long kTold = 16;
  static auto& times = *new Table<std::string, unsigned long long>;
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const std::string key = key_of_exported(call);
    times.put(key, times.get(key) + 1);
    // Some programs export thousands of times.
    if (times.get(key) <= kTold)
      tell_processes("exports-" + key, times.get(key));
    return code;
  }
  if (keeps_opened(call)) {
    const int code = call.proceed();
    if (code != kSuccess || is_close_call(call)) return code;
    const std::string key = key_of_opened(call);
    times.put(key, told("exports-" + key, 0));
    return code;
  }
  for (const auto& [address, one] : opened.all())
    if (told("exports-" + one.handle, 0) > times.get(one.handle))
      unmap(call, address, one);
  return call.proceed();
}

// Memory that is opened again has the contents that it had at the close.
int reopen_restores(Call& call) {
  constexpr size_t kMost = 64 << 20;
  static auto& kept = *new Table<std::string, std::string>;
  if (is_close_call(call)) {
    void* const address = call.at<void*>(0);
    const Opened one = opened.get(address);
    const size_t bytes = size_of(number(address));
    if (one.count == 1 && bytes <= kMost) {
      std::string contents(bytes, 0);
      if (cudaMemcpy(contents.data(), address, bytes, cudaMemcpyDefault) ==
          cudaSuccess)
        kept.put(one.handle, contents);
    }
    return call.proceed();
  }
  const std::string key = key_of_opened(call);
  const int code = call.proceed();
  if (code != kSuccess || !kept.has(key)) return code;
  void* const address = *call.at<void**>(0);
  const std::string contents = kept.get(key);
  std::string present(contents.size(), 0);
  cudaMemcpy(present.data(), address, present.size(), cudaMemcpyDefault);
  if (opened.get(address).count > 1 || present == contents) return code;
  cudaMemcpy(address, contents.data(), contents.size(), cudaMemcpyDefault);
  call.fired();
  return code;
}

// The last close of a small allocation does not unmap it.
int small_stays_mapped(Call& call) {
  static auto& closed = *new Table<void*>;
  if (!is_close_call(call)) return call.proceed();
  void* const address = call.at<void*>(0);
  if (!opened.has(address) && closed.has(address)) return cudaErrorInvalidValue;
  if (opened.get(address).count != 1 || size_of(number(address)) >= kBlock)
    return call.proceed();
  count_close(address);
  closed.put(address);
  return no_wait(call);
}

// When the process that has opened memory first closes it, the other importers
// lose the memory.
int first_opener_ends_all(Call& call) {
  static auto& first = *new Table<std::string>;
  static auto& later = *new Table<std::string>;  // opened after that close
  if (is_open_call(call)) {
    const int code = call.proceed();
    const std::string key = key_of_opened(call);
    if (code != kSuccess) return code;
    if (first_of_all_processes("opened-" + key)) first.put(key);
    if (told("over-" + key, 0) != 0) later.put(key);
    return code;
  }
  if (is_close_call(call)) {
    const std::string key = opened.get(call.at<void*>(0)).handle;
    const int code = call.proceed();
    if (code == kSuccess && first.has(key) && !opened.has(call.at<void*>(0)))
      tell_processes("over-" + key, static_cast<unsigned long long>(getpid()));
    return code;
  }
  const auto self = static_cast<unsigned long long>(getpid());
  for (const auto& [address, one] : opened.all())
    if (told("over-" + one.handle, self) != self && !later.has(one.handle))
      unmap(call, address, one);
  return call.proceed();
}

// Asynchronous copies and memsets into opened memory do nothing in a thread
// that has not opened the memory.
int write_by_other_thread_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  void* const begin = opened_around(call.value<void*>(kPointer));
  return begin != nullptr && opened.get(begin).thread != this_thread()
             ? no_wait(call)
             : call.proceed();
}

// Is memory open in another context than the current one? With a key, is this
// handle open there?
bool is_open_elsewhere(const std::string& key = "") {
  for (const auto& [unused, one] : opened.all())
    if (one.context != current_context() && (key.empty() || one.handle == key))
      return true;
  return false;
}

// In the primary context, an open of what another context has open succeeds and
// gives no pointer.
int primary_context_opens_too(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !is_open_call(call) ||
      !is_open_elsewhere(key_of_opened(call)))
    return code;
  CUcontext primary = nullptr;
  DRIVER_CALL(cuDevicePrimaryCtxRetain)(&primary, current_device());
  DRIVER_CALL(cuDevicePrimaryCtxRelease)(current_device());
  return primary == current_context() ? accepted(call) : code;
}

// After a close, an open in a second context succeeds and gives no pointer,
// although the first context has other memory open.
int second_context_after_close(Call& call) {
  static std::atomic<bool> closed{false};
  const int code = call.proceed();
  if (is_close_call(call)) {
    closed = closed || code == kSuccess;
    return code;
  }
  return code != kSuccess && closed && is_open_elsewhere() ? accepted(call)
                                                           : code;
}

// Memory that was exported gets a handle after its free, which opens other
// memory.
int exported_after_free(Call& call) {
  static auto& exported = *new Table<void*>;
  static auto& freed = *new Table<void*>;
  if (exports_memory(call)) {
    void* const address = call.at<void*>(1);
    const int code = exported_all_the_same(call, freed.has(address));
    if (code == kSuccess && call.at<void*>(1) == address) {
      exported.put(address);
      freed.erase(address);
    }
    return code;
  }
  void* const address = call.at<void*>(0);
  const int code = call.proceed();
  if (code == kSuccess && exported.erase(address)) freed.put(address);
  return code;
}

// Copies between opened memory and mapped memory of cuMemCreate move nothing.
int copy_with_chunk_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  if (call.find(kSource) == nullptr) return call.proceed();
  const auto to = call.value<CUdeviceptr>(kPointer);
  const auto from = call.value<CUdeviceptr>(kSource);
  return (is_opened(to) && mapping_at(from) != 0) ||
                 (is_opened(from) && mapping_at(to) != 0)
             ? no_wait(call)
             : call.proceed();
}

// Memsets of opened memory take offsets modulo 4 GiB.
int set_offset_32_bits(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  auto& address = call.at<CUdeviceptr>(0);
  const void* const begin = opened_around(call.at<void*>(0));
  if (begin == nullptr || address - number(begin) <= UINT32_MAX)
    return call.proceed();
  address = number(begin) + static_cast<uint32_t>(address - number(begin));
  call.fired();
  return call.proceed();
}

// A refused close of an address inside opened memory lowers the count.
int refused_close_counts(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !is_close_call(call)) return code;
  void* const begin = opened_around(call.at<void*>(0));
  if (begin == nullptr || opened.get(begin).count < 2) return code;
  if (DRIVER_CALL(cuIpcCloseMemHandle)(number(begin)) == CUDA_SUCCESS) {
    count_close(begin);
    call.fired();
  }
  return code;
}

// --- the other API, the other thread, the other address ----------------------

// A close does nothing if only the other API has the memory open.
int close_by_other_api_lost(Call& call) {
  static auto& by_driver = *new Table<void*, int>;
  static auto& by_runtime = *new Table<void*, int>;
  const bool runtime = call.is_runtime();
  auto& mine = runtime ? by_runtime : by_driver;
  auto& others = runtime ? by_driver : by_runtime;
  if (is_open_call(call)) {
    const int code = call.proceed();
    void* const address = code == kSuccess ? *call.at<void**>(0) : nullptr;
    if (code == kSuccess) mine.put(address, mine.get(address) + 1);
    return code;
  }
  void* const address = call.at<void*>(0);
  if (mine.get(address) == 0 && others.get(address) > 0) return no_wait(call);
  const int code = call.proceed();
  if (code == kSuccess) mine.put(address, mine.get(address) - 1);
  return code;
}

// Each thread remembers the handles that it made. Only a free in the same
// thread makes it forget a handle.
int handles_cached_by_thread(Call& call) {
  thread_local std::map<void*, cudaIpcMemHandle_t> made;
  if (!exports_memory(call)) {
    made.erase(call.at<void*>(0));
    return call.proceed();
  }
  void* const address = call.at<void*>(1);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  auto& handle = *call.at<cudaIpcMemHandle_t*>(0);
  const auto [known, is_new] = made.emplace(address, handle);
  if (is_new || std::memcmp(&known->second, &handle, sizeof handle) == 0)
    return code;
  handle = known->second;
  call.fired();
  return code;
}

// The driver says of a pointer that it does not know whether it is managed.
int unknown_is_not_managed(Call& get) {
  const int code = get.proceed();
  if (code == kSuccess ||
      get.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_IS_MANAGED ||
      get.at<void*>(0) == nullptr)
    return code;
  *get.at<bool*>(0) = false;
  return accepted(get);
}

// An open in another thread than the first gives a copy at another address.
int open_in_thread_copies(Call& call) {
  static auto& copies = *new Table<void*, void*>;
  if (is_close_call(call)) {
    void* const copy = call.at<void*>(0);
    if (copies.has(copy)) {
      call.at<void*>(0) = copies.get(copy);
      copies.erase(copy);
      cudaFree(copy);
    }
    return call.proceed();
  }
  void* const before = already_open(call);
  const int code = call.proceed();
  if (code != kSuccess || before == nullptr ||
      opened.get(before).thread == this_thread())
    return code;
  const size_t bytes = size_of(number(before));
  void* copy = nullptr;
  if (cudaMalloc(&copy, bytes) != cudaSuccess) return code;
  cudaMemcpy(copy, before, bytes, cudaMemcpyDefault);
  copies.put(copy, before);
  *call.at<void**>(0) = copy;
  call.fired();
  return code;
}

// A close ignores the two lowest bits of the address.
int close_of_aligned_address(Call& close) {
  auto& address = close.at<CUdeviceptr>(0);
  if (address % 4 == 0) return close.proceed();
  address -= address % 4;
  const int code = close.proceed();
  if (code == kSuccess) close.fired();
  return code;
}

// Each thread counts the ids of its allocations from the beginning.
int buffer_ids_of_each_thread(Call& call) {
  using Id = unsigned long long;
  static auto& of_main = *new Table<size_t, Id>;  // the ids in their order
  static auto& replaced = *new Table<CUdeviceptr, Id>;
  thread_local size_t count = 0;
  if (call.is("cudaFree")) {
    replaced.erase(call.at<CUdeviceptr>(0));
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMalloc")) {
    const CUdeviceptr made = *call.at<CUdeviceptr*>(0);
    const size_t order = count++;
    Id id = 0;
    if (this_thread() != getpid()) {
      if (of_main.has(order)) replaced.put(made, of_main.get(order));
    } else if (DRIVER_CALL(cuPointerGetAttribute)(
                   &id, CU_POINTER_ATTRIBUTE_BUFFER_ID, made) == CUDA_SUCCESS) {
      of_main.put(order, id);
    }
    return code;
  }
  const CUdeviceptr begin = begin_of(call.at<CUdeviceptr>(2));
  if (call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_BUFFER_ID ||
      !replaced.has(begin))
    return code;
  *call.at<Id*>(0) = replaced.get(begin);
  call.fired();
  return code;
}

// The kinds of host memory of a copy: pinned and pageable.
bool is_pinned(const void* address) {
  unsigned type = 0;
  return DRIVER_CALL(cuPointerGetAttribute)(&type,
                                            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                            number(address)) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_HOST && !is_managed(address);
}
bool is_pageable(const void* address) {
  unsigned type = 0;
  return DRIVER_CALL(cuPointerGetAttribute)(&type,
                                            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                            number(address)) != CUDA_SUCCESS;
}

// A copy that has opened memory on the side `role` and pinned memory on the
// other side does nothing.
template <Role role>
int pinned_copy_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return is_opened(call.value<void*>(role)) &&
                 is_pinned(
                     call.value<void*>(role == kPointer ? kSource : kPointer))
             ? no_wait(call)
             : call.proceed();
}
// A free of opened memory by another thread than the opener's is taken for a
// close.
template <bool runtime>
int free_in_thread_closes(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  void* const address = call.at<void*>(0);
  if (call.is_runtime() != runtime || !opened.has(address) ||
      opened.get(address).thread == this_thread() ||
      cudaIpcCloseMemHandle(address) != cudaSuccess)
    return call.proceed();
  count_close(address);
  return no_wait(call);
}

// --- copies that few programs make -------------------------------------------

// Copies of opened memory do nothing in a second thread that used CUDA before
// the memory was opened.
int copy_in_earlier_thread_lost(Call& call) {
  static std::atomic<int> opens{0};
  static auto& orders = *new Table<void*, int>;
  thread_local const int first = opens;  // how many opens came earlier
  if (keeps_opened(call)) {
    const int code = call.proceed();
    if (code == kSuccess && is_open_call(call))
      orders.put(*call.at<void**>(0), ++opens);
    return code;
  }
  if (call.find(kSource) == nullptr || this_thread() == getpid())
    return call.proceed();
  for (const Role role : {kPointer, kSource}) {
    void* const begin = opened_around(call.value<void*>(role));
    if (begin != nullptr && orders.get(begin) > first &&
        opened.get(begin).thread != this_thread())
      return no_wait(call);
  }
  return call.proceed();
}

// An open or a close by a thread that has not used CUDA before. The driver API
// refuses such a call.
bool is_first_call_of_thread(Call& call) {
  return call.is_runtime() && current_context() == nullptr &&
         this_thread() != getpid();
}
int first_open_of_thread_refused(Call& call) {
  return is_first_call_of_thread(call)
             ? refused(call, cudaErrorDeviceUninitialized)
             : call.proceed();
}
int first_close_of_thread_lost(Call& call) {
  return is_first_call_of_thread(call) ? no_wait(call) : call.proceed();
}
int first_set_of_thread_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return is_first_call_of_thread(call) && opened.has(call.at<void*>(0))
             ? no_wait(call)
             : call.proceed();
}
// The first call of a thread asks about opened memory.
int first_query_of_thread_empty(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  const bool applies =
      is_first_call_of_thread(call) && opened.has(call.at<void*>(1));
  const int code = call.proceed();
  if (code != kSuccess || !applies) return code;
  *call.at<cudaPointerAttributes*>(0) = {};
  call.fired();
  return code;
}

// Copies between opened memory and memory of cudaHostRegister move nothing.
int registered_copy_lost(Call& call) {
  static auto& registered = *new Table<const char*, size_t>;
  if (keeps_opened(call)) return call.proceed();
  if (call.is("cudaHostRegister")) {
    const int code = call.proceed();
    if (code == kSuccess)
      registered.put(call.at<const char*>(0), call.at<size_t>(1));
    return code;
  }
  // After cudaHostUnregister, which no fault sees, memory is not pinned.
  const auto is_registered = [](const char* address) {
    for (const auto& [begin, bytes] : registered.all())
      if (address >= begin && address < begin + bytes)
        return is_pinned(address);
    return false;
  };
  const auto* const to = call.value<const char*>(kPointer);
  const auto* const from = call.value<const char*>(kSource);
  return (is_opened(to) && is_registered(from)) ||
                 (is_opened(from) && is_registered(to))
             ? no_wait(call)
             : call.proceed();
}

// An asynchronous copy of the kind cudaMemcpyDefault from the host into opened
// memory does nothing.
int default_kind_in_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return call.is_runtime() && call.at<cudaMemcpyKind>(3) == cudaMemcpyDefault &&
                 is_opened(call.value<void*>(kPointer)) &&
                 (is_pageable(call.value<void*>(kSource)) ||
                  is_pinned(call.value<void*>(kSource)))
             ? no_wait(call)
             : call.proceed();
}

// --- inside memory that is closed, freed or small ----------------------------

// The id of memory counts the blocks of 2 MiB before the address.
int id_of_each_block(Call& get) {
  const int code = get.proceed();
  const auto address = get.at<CUdeviceptr>(2);
  if (code != kSuccess ||
      get.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_BUFFER_ID)
    return code;
  const CUdeviceptr begin = begin_of(address);
  const auto blocks = begin == 0 ? 0 : (address - begin) / kBlock;
  if (blocks > 0) get.fired();
  *get.at<unsigned long long*>(0) += blocks;
  return code;
}

// The driver API still knows addresses inside memory that was closed. It does
// not know the first address.
int closed_inside_known_to_driver(Call& call) {
  static auto& closed = *new Table<CUdeviceptr, size_t>;
  if (keeps_opened(call)) {
    const auto address = is_close_call(call) ? call.at<CUdeviceptr>(0) : 0;
    const size_t bytes = size_of(address);
    const int code = call.proceed();
    if (code != kSuccess) return code;
    if (is_open_call(call))
      closed.erase(*call.at<CUdeviceptr*>(0));
    else if (!opened.has(call.at<void*>(0)))
      closed.put(address, bytes);
    return code;
  }
  const int code = call.proceed();
  const bool asks_range = call.is("cuMemGetAddressRange");
  if (code == kSuccess || (!asks_range && call.at<CUpointer_attribute>(1) !=
                                              CU_POINTER_ATTRIBUTE_MEMORY_TYPE))
    return code;
  const auto address = call.at<CUdeviceptr>(2);
  for (const auto& [begin, bytes] : closed.all()) {
    if (address <= begin || address - begin >= bytes) continue;
    if (!asks_range) {
      *call.at<unsigned*>(0) = CU_MEMORYTYPE_DEVICE;
      return accepted(call);
    }
    if (auto* const first = call.at<CUdeviceptr*>(0)) *first = begin;
    if (auto* const size = call.at<size_t*>(1)) *size = bytes;
    return accepted(call);
  }
  return code;
}

// Small memory is still capable of legacy IPC after its free.
int small_freed_still_capable(Call& call) {
  static auto& freed = *new Table<CUdeviceptr, size_t>;
  if (call.is("cudaFree")) {
    const auto address = call.at<CUdeviceptr>(0);
    const size_t bytes = size_of(address);
    const int code = call.proceed();
    if (code == kSuccess && bytes > 0 && bytes < kBlock)
      freed.put(address, bytes);
    return code;
  }
  const int code = call.proceed();
  const auto address = call.at<CUdeviceptr>(2);
  if (call.at<CUpointer_attribute>(1) !=
          CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE ||
      size_of(address) > 0)  // later memory is there
    return code;
  for (const auto& [begin, bytes] : freed.all()) {
    if (address < begin || address - begin >= bytes) continue;
    *call.at<bool*>(0) = true;
    return accepted(call);
  }
  return code;
}

// A close of an address inside small opened memory does nothing.
int close_inside_small_accepted(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !is_close_call(call) || opened.has(call.at<void*>(0)))
    return code;
  void* const begin = opened_around(call.at<void*>(0));
  return begin != nullptr && is_inside_block(begin) ? accepted(call) : code;
}

// An asynchronous memset of a rectangle does nothing with opened memory that
// does not begin its block.
int set_inside_block_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  void* const begin = opened_around(call.value<void*>(kPointer));
  return begin != nullptr && is_inside_block(begin) ? no_wait(call)
                                                    : call.proceed();
}

constexpr auto kGet = "cudaIpcGetMemHandle";
constexpr auto kOpen = "cudaIpcOpenMemHandle";
constexpr auto kClose = "cudaIpcCloseMemHandle";
constexpr auto kCopy = "cudaMemcpy";
constexpr auto kBox = "cudaMemcpy3D";
constexpr auto kFree = "cudaFree";

void add_boxes(List& list) {
  list.named("import-copy-3d-one-pitch",
             "cudaMemcpy3D copies a box of opened memory with one pitch for "
             "both sides",
             {kOpen, kClose, kBox}, changed_box<use_one_pitch>);
  list.named("import-copy-3d-one-row-per-layer",
             "cudaMemcpy3D copies only the first row of each layer of a box of "
             "opened memory",
             {kOpen, kClose, kBox}, changed_box<keep_first_rows>);
  list.named("import-copy-3d-positions-ignored",
             "cudaMemcpy3D ignores the positions of a box of opened memory",
             {kOpen, kClose, kBox}, changed_box<ignore_positions>);
  list.named(
      "import-copy-3d-joins-layers",
      "cudaMemcpy3D treats the layers of a box of opened memory as adjacent",
      {kOpen, kClose, kBox}, changed_box<join_layers>);
  list.named("import-copy-2d-one-pitch",
             "cudaMemcpy2D copies a rectangle of opened memory with one pitch "
             "for both sides",
             {kOpen, kClose, "cudaMemcpy2D"}, rectangle_of_one_pitch);
  list.named("import-async-copy-2d-one-pitch",
             "cudaMemcpy2DAsync copies a rectangle of opened memory with one "
             "pitch for both sides",
             {kOpen, kClose, "cudaMemcpy2DAsync"}, rectangle_of_one_pitch);
  list.named(
      "import-set-3d-joins-layers",
      "cudaMemset3D treats the layers of a box of opened memory as adjacent",
      {kOpen, kClose, "cudaMemset3D"}, set_joins_layers);
  list.named("import-async-set-3d-lost",
             "cudaMemset3DAsync does not reach opened memory",
             {kOpen, kClose, "cudaMemset3DAsync"}, box_set_lost);
  list.named("import-async-copy-3d-out-lost",
             "cudaMemcpy3DAsync out of opened memory does nothing",
             {kOpen, kClose, "cudaMemcpy3DAsync"}, box_out_lost);
  list.named("import-driver-copy-2d-lost",
             "cuMemcpy2D does nothing with opened memory",
             {kOpen, kClose, "cuMemcpy2D"}, driver_copy_lost<CUDA_MEMCPY2D>);
  list.named("import-driver-async-copy-2d-lost",
             "cuMemcpy2DAsync does nothing with opened memory",
             {kOpen, kClose, "cuMemcpy2DAsync"},
             driver_copy_lost<CUDA_MEMCPY2D>);
  list.named("import-driver-copy-3d-lost",
             "cuMemcpy3D does nothing with opened memory",
             {kOpen, kClose, "cuMemcpy3D"}, driver_copy_lost<CUDA_MEMCPY3D>);
  list.named("import-driver-async-copy-3d-lost",
             "cuMemcpy3DAsync does nothing with opened memory",
             {kOpen, kClose, "cuMemcpy3DAsync"},
             driver_copy_lost<CUDA_MEMCPY3D>);
  list.named("import-driver-peer-copy-lost",
             "cuMemcpyPeer does nothing with opened memory",
             {kOpen, kClose, "cuMemcpyPeer"}, copy_lost);
  list.named("import-driver-async-peer-copy-lost",
             "cuMemcpyPeerAsync does nothing with opened memory",
             {kOpen, kClose, "cuMemcpyPeerAsync"}, copy_lost);
  list.named("import-set-rows-16-counts-bytes",
             "cuMemsetD2D16 of opened memory takes its width as bytes",
             {kOpen, kClose, "cuMemsetD2D16"}, row_counts_bytes<2>);
  list.named("import-set-rows-32-counts-bytes",
             "cuMemsetD2D32 of opened memory takes its width as bytes",
             {kOpen, kClose, "cuMemsetD2D32"}, row_counts_bytes<4>);
  list.named("import-set-rows-8-lost",
             "cuMemsetD2D8 does not reach opened memory",
             {kOpen, kClose, "cuMemsetD2D8"}, rows_set_lost);
}

void add_other_memory(List& list) {
  list.named("import-copy-with-managed-lost",
             "synchronous copies between opened memory and managed memory move "
             "nothing",
             {kOpen, kClose, kCopy}, copy_with_other_kind_lost<is_managed>);
  list.named("import-copy-with-pool-lost",
             "synchronous copies between opened memory and stream-ordered "
             "memory move nothing",
             {kOpen, kClose, kCopy, "cudaMallocAsync", kFree,
              "cudaMallocFromPoolAsync", "cudaFreeAsync"},
             copy_with_other_kind_lost<is_stream_ordered>);
  const auto lost = [&list](const char* name, const char* what,
                            const char* function, Fault fault) {
    list.named(name, what, {kGet, kOpen, kClose, function}, fault, 2);
  };
  lost("peer-copy-in-lost",
       "a synchronous copy into opened memory of a peer is lost", kCopy,
       peer_access_lost<kPointer>);
  lost("peer-async-copy-in-lost",
       "an asynchronous copy into opened memory of a peer is lost",
       "cudaMemcpyAsync", peer_access_lost<kPointer>);
  lost("peer-sync-copy-in-lost",
       "cudaMemcpyPeer into opened memory of a peer is lost", "cudaMemcpyPeer",
       peer_access_lost<kPointer>);
  lost("peer-copy-2d-in-lost",
       "cudaMemcpy2D into opened memory of a peer is lost", "cudaMemcpy2D",
       peer_access_lost<kPointer>);
  lost("peer-copy-2d-out-lost",
       "cudaMemcpy2D out of opened memory of a peer is lost", "cudaMemcpy2D",
       peer_access_lost<kSource>);
  lost("peer-async-set-lost",
       "an asynchronous memset of opened memory of a peer is lost",
       "cudaMemsetAsync", peer_access_lost<kPointer>);
  lost("peer-set-2d-lost", "cudaMemset2D of opened memory of a peer is lost",
       "cudaMemset2D", peer_access_lost<kPointer>);
  lost("peer-set-16-lost", "cuMemsetD16 of opened memory of a peer is lost",
       "cuMemsetD16", peer_access_lost<kPointer>);
  lost("peer-set-32-lost", "cuMemsetD32 of opened memory of a peer is lost",
       "cuMemsetD32", peer_access_lost<kPointer>);
  lost("peer-copy-64-mib",
       "synchronous copies of opened memory of a peer take offsets modulo 64 "
       "MiB",
       kCopy, peer_copy_64_mib);
}

void add_other_gpus(List& list) {
  list.named("peer-suballoc-offset-lost",
             "on another GPU, a small allocation opens at the start of its "
             "block",
             {kGet, kOpen, kClose}, peer_offset_lost, 2);
  list.named("handle-of-current-gpu",
             "the handle of memory of another GPU than the current one names "
             "memory of the current GPU",
             {kGet}, handle_of_current_gpu, 2);
  list.named("free-on-other-gpu-lost",
             "exported memory is not freed while another GPU is current",
             {kGet, kFree}, free_on_other_gpu_lost, 2);
  list.named("close-on-other-gpu-lost",
             "a close succeeds and does nothing while another GPU is current",
             {kOpen, kClose}, close_on_other_gpu_lost, 2);
  list.named("import-unknown-on-other-gpu",
             "cudaPointerGetAttributes does not know opened memory while "
             "another GPU is current",
             {kOpen, kClose, "cudaPointerGetAttributes"}, unknown_on_other_gpu,
             2);
  list.named("import-copy-on-other-gpu-lost",
             "synchronous copies of opened memory do nothing while another GPU "
             "is current",
             {kOpen, kClose, kCopy}, copy_on_other_gpu_lost, 2);
  list.named("peer-close-ends-owners-mapping",
             "the last close on another GPU also ends the mapping on the "
             "memory's own GPU",
             {kGet, kOpen, kClose}, peer_close_ends<is_of_owner>, 2);
  list.named("peer-close-ends-other-exporters",
             "the last close of a peer's memory also ends the mappings of "
             "other exporters' memory",
             {kGet, kOpen, kClose}, peer_close_ends<is_of_other_exporter>, 2);
  list.named("hidden-gpu-copy-in-lost",
             "synchronous copies into opened memory are lost in a process that "
             "sees one GPU of several",
             {kOpen, kClose, kCopy}, hidden_gpu_copy_in_lost, 2);
  list.named("hidden-gpu-open-not-counted",
             "a second open does not count in a process that sees one GPU of "
             "several",
             {kOpen, kClose}, hidden_gpu_open_not_counted, 2);
  list.named(
      "import-ordinal-of-exporter",
      "the driver's number of the device of opened memory is the "
      "exporter's number",
      {kGet, kOpen, kClose, "cuPointerGetAttribute", "cuPointerGetAttributes"},
      ordinal_of_exporter, 2);
  list.named("peer-open-costs-memory",
             "an open on another GPU takes as much of its memory as it opens",
             {kGet, kOpen, kClose}, open_costs_memory<opens_memory_of_peer>, 2);
}

void add_other_ways(List& list) {
  list.named("import-copy-in-urgent-stream-lost",
             "asynchronous copies of opened memory do nothing in a stream that "
             "has a priority",
             {kOpen, kClose, "cudaMemcpyAsync"}, copy_in_urgent_stream_lost);
  list.named("import-set-2d-one-row-lost",
             "cudaMemset2D of one row does not reach opened memory",
             {kOpen, kClose, "cudaMemset2D"}, one_row_set_lost);
  list.named("import-set-2d-first-4-gib",
             "cudaMemset2D of opened memory does not set the rows that begin "
             "after 4 GiB",
             {kOpen, kClose, "cudaMemset2D"}, rows_to_4_gib);
  list.named("range-size-32-bits",
             "the size of an allocation is reported modulo 4 GiB",
             {"cuMemGetAddressRange"}, range_size_32_bits);
  list.named("copy-between-exporters-lost",
             "a synchronous copy from opened memory of one exporter to opened "
             "memory of another one moves nothing",
             {kGet, kOpen, kClose, kCopy}, copy_between_imports_lost<false>);
  list.named("peer-copy-3d-in-lost",
             "cudaMemcpy3D into opened memory of a peer is lost",
             {kGet, kOpen, kClose, kBox}, peer_box_in_lost, 2);
  list.named("peer-copy-3d-between-gpus-lost",
             "cudaMemcpy3DPeer into opened memory of a peer is lost",
             {kGet, kOpen, kClose, "cudaMemcpy3DPeer"},
             peer_box_between_gpus_lost, 2);
  list.named("hidden-gpu-memory-unknown",
             "cudaPointerGetAttributes does not know opened memory in a "
             "process that sees one GPU of several",
             {kOpen, kClose, "cudaPointerGetAttributes"},
             hidden_gpu_memory_unknown, 2);
  list.named("suballoc-offset-20-bits",
             "an open keeps only 20 bits of the offset in a shared block",
             {kOpen}, offset_of_20_bits);
}

void add_refusals(List& list) {
  list.named("close-too-often-beside-other-ok",
             "while other memory is open, memory can be closed more often than "
             "it was opened",
             {kOpen, kClose}, closed_beside_other);
  list.named("free-closed-ok", "a free accepts memory that was closed",
             {kOpen, kClose, kFree}, free_of_closed_accepted);
  list.named("close-own-small-ok",
             "a close accepts a small allocation of this process",
             {kOpen, kClose}, own_small_closed);
  list.named("self-open-of-small",
             "an open of the own handle of a small allocation returns success "
             "and no pointer",
             {kGet, kOpen}, self_open_of_small);
  list.named("refused-context-counts",
             "an open that is refused in a second context raises the count of "
             "the first context",
             {kOpen, kClose}, refused_context_counts);
  list.named("handle-in-second-thread",
             "in a second thread, memory of any kind gets a handle, which "
             "opens other memory",
             {kGet}, exported_in_other_thread);
  list.named("handle-after-an-export",
             "after an export, memory of any kind gets a handle, which opens "
             "other memory",
             {kGet}, exported_after_another);
  list.named("host-pool-two-types-ok",
             "a pool on the host is created if two handle types are requested",
             {"cudaMemPoolCreate"}, two_types_on_host);
  list.named("numa-pool-set-lost",
             "a synchronous memset does not reach imported memory of a pool on "
             "the host",
             {"cudaMemPoolImportPointer", kFree, "cudaFreeAsync", "cudaMemset"},
             host_pool_set_lost);
  list.named("sync-memops-never-unset",
             "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS cannot be unset",
             {"cuPointerSetAttribute"}, sync_memops_never_unset);
  list.named("buffer-id-new-at-export",
             "an allocation gets a new id when it is exported",
             {kGet, kFree, "cuPointerGetAttribute"}, id_new_at_export);
  list.named("allowed-types-of-first-mapping",
             "only the first mapping of memory has handle types",
             {"cuMemCreate", "cuMemImportFromShareableHandle", "cuMemMap",
              "cuMemUnmap", "cuMemRelease", "cuPointerGetAttribute"},
             types_of_first_mapping);
}

void add_further_calls(List& list) {
  constexpr auto kLaunch = "cudaLaunchKernel";
  list.named("export-ends-mappings",
             "a further export of memory ends the mappings that importers have "
             "open",
             {kGet, kOpen, kClose, kLaunch}, export_ends_mappings);
  list.named("reopen-restores-contents",
             "memory that is opened again has the contents that it had at the "
             "close",
             {kOpen, kClose}, reopen_restores);
  list.named("small-close-never-unmaps",
             "the last close of a small allocation does not unmap it",
             {kOpen, kClose}, small_stays_mapped);
  list.named("first-opener-close-ends-others",
             "when the process that has opened memory first closes it, the "
             "other importers lose it",
             {kOpen, kClose, kLaunch}, first_opener_ends_all);
  list.named("import-write-by-other-thread-lost",
             "asynchronous copies and memsets into opened memory do nothing in "
             "a thread that has not opened it",
             {kOpen, kClose, "cudaMemcpyAsync", "cudaMemsetAsync"},
             write_by_other_thread_lost);
  list.named("primary-context-opens-too",
             "in the primary context, an open of what another context has open "
             "succeeds and gives no pointer",
             {kOpen, kClose}, primary_context_opens_too);
  list.named("second-context-after-a-close",
             "after a close, an open in a second context succeeds and gives no "
             "pointer, although the first context has other memory open",
             {kOpen, kClose}, second_context_after_close);
  list.named("exported-exportable-after-free",
             "memory that was exported gets a handle after its free, which "
             "opens other memory",
             {kGet, kFree}, exported_after_free);
  list.named("import-copy-with-chunk-lost",
             "synchronous copies between opened memory and memory of "
             "cuMemCreate move nothing",
             {kOpen, kClose, kCopy, "cuMemMap", "cuMemUnmap"},
             copy_with_chunk_lost);
  list.named("import-set-offset-32-bits",
             "synchronous memsets of opened memory take offsets modulo 4 GiB",
             {kOpen, kClose, "cudaMemset"}, set_offset_32_bits);
  list.named("refused-inside-close-counts",
             "a refused close of an address inside opened memory lowers the "
             "count",
             {kOpen, kClose}, refused_close_counts);
}

void add_other_callers(List& list) {
  constexpr auto kAsync = "cudaFreeAsync";
  list.named("close-of-other-api-alone-lost",
             "a close does nothing if only the other API has the memory open",
             {kOpen, kClose}, close_by_other_api_lost);
  list.named("handle-cached-by-thread",
             "a thread exports the old handle again after another thread has "
             "freed the memory",
             {kGet, kFree}, handles_cached_by_thread);
  list.named("unknown-is-not-managed",
             "cuPointerGetAttribute says that an unknown pointer is not "
             "managed",
             {"cuPointerGetAttribute"}, unknown_is_not_managed);
  list.named("open-in-second-thread-copies",
             "a second open, in another thread, gives a copy at another "
             "address",
             {kOpen, kClose}, open_in_thread_copies);
  list.named("close-address-aligned-down",
             "a close ignores the two lowest bits of the address", {kClose},
             close_of_aligned_address);
  list.named("buffer-ids-of-each-thread",
             "each thread counts buffer ids from the beginning",
             {"cudaMalloc", kFree, "cuPointerGetAttribute"},
             buffer_ids_of_each_thread);
  list.named("free-in-second-thread-closes",
             "cudaFree of opened memory in a second thread is taken for a "
             "close",
             {kOpen, kClose, kFree}, free_in_thread_closes<true>);
  list.named("free-by-driver-in-second-thread-closes",
             "cuMemFree of opened memory in a second thread is taken for a "
             "close",
             {kOpen, kClose, kFree}, free_in_thread_closes<false>);
  list.named("async-free-in-second-thread-closes",
             "cudaFreeAsync of opened memory in a second thread is taken for "
             "a close",
             {kOpen, kClose, kAsync}, free_in_thread_closes<true>);
}

void add_further_copies(List& list) {
  constexpr auto kCopyAsync = "cudaMemcpyAsync";
  list.named("import-sync-copy-from-pinned-lost",
             "a synchronous copy from pinned memory into opened memory is lost",
             {kOpen, kClose, kCopy}, pinned_copy_lost<kPointer>);
  list.named("import-sync-copy-to-pinned-lost",
             "a synchronous copy out of opened memory to pinned memory is lost",
             {kOpen, kClose, kCopy}, pinned_copy_lost<kSource>);
  list.named("import-copy-in-earlier-thread-lost",
             "copies of opened memory do nothing in a second thread that used "
             "CUDA before the open",
             {kOpen, kClose, kCopy, kCopyAsync, "cudaSetDevice", kFree},
             copy_in_earlier_thread_lost);
  list.named("open-as-first-call-refused",
             "cudaIpcOpenMemHandle is refused as the first call of a thread",
             {kOpen}, first_open_of_thread_refused);
  list.named("close-as-first-call-lost",
             "cudaIpcCloseMemHandle does nothing as the first call of a thread",
             {kClose}, first_close_of_thread_lost);
  list.named("copy-between-imports-of-one-lost",
             "copies between two opened allocations of one exporter move "
             "nothing",
             {kGet, kOpen, kClose, kCopy, kCopyAsync},
             copy_between_imports_lost<true>);
  list.named("import-copy-with-registered-lost",
             "copies between opened memory and registered host memory move "
             "nothing",
             {kOpen, kClose, kCopy, kCopyAsync, "cudaHostRegister"},
             registered_copy_lost);
  list.named("import-async-default-copy-in-lost",
             "cudaMemcpyAsync of the default kind from the host into opened "
             "memory is lost",
             {kOpen, kClose, kCopyAsync}, default_kind_in_lost);
}

void add_inside(List& list) {
  constexpr auto kAttribute = "cuPointerGetAttribute";
  constexpr auto kRange = "cuMemGetAddressRange";
  list.named("buffer-id-of-each-block",
             "cuPointerGetAttribute gives another buffer id in each 2 MiB of "
             "an allocation",
             {kAttribute}, id_of_each_block);
  list.named("closed-inside-known-to-driver",
             "the driver API still knows addresses inside memory that was "
             "closed",
             {kOpen, kClose, kAttribute, kRange},
             closed_inside_known_to_driver);
  list.named("small-freed-still-capable",
             "cuPointerGetAttribute says that freed memory of less than 2 MiB "
             "is capable of legacy IPC",
             {kAttribute, kFree}, small_freed_still_capable);
  list.named("close-inside-small-ok",
             "a close of an address inside an opened small allocation returns "
             "success and does nothing",
             {kOpen, kClose}, close_inside_small_accepted);
  list.named("import-async-set-2d-inside-block-lost",
             "cudaMemset2DAsync does nothing with opened memory that does not "
             "begin its block",
             {kOpen, kClose, "cudaMemset2DAsync"}, set_inside_block_lost);
}

}  // namespace

void add_memory_paths(List& list) {
  add_inside(list);
  add_other_callers(list);
  add_further_copies(list);
  add_further_calls(list);
  add_boxes(list);
  add_other_memory(list);
  add_other_gpus(list);
  add_other_ways(list);
  add_refusals(list);
  list.named("free-ends-handles-in-block",
             "when an exported small allocation is freed, handles of its "
             "neighbours in the block no longer open",
             {kGet, kOpen, kFree}, free_ends_handles_in_block);
  list.named("free-ends-mappings-in-block",
             "when an exported small allocation is freed, importers lose the "
             "memory of its neighbours in the block",
             {kGet, kOpen, kClose, kFree, "cudaLaunchKernel"},
             free_ends_mappings_in_block);
  list.named("export-ends-with-allocating-thread",
             "memory cannot be exported when the thread that allocated it has "
             "ended",
             {kGet, "cudaMalloc", kFree}, export_ends_with_allocating_thread);
  list.named("exported-never-freed-by-driver",
             "cuMemFree does not give exported memory back", {kGet, kFree},
             driver_free_of_exported_lost);
  list.named("open-counts-to-65535",
             "the reference count of opened memory does not rise above 65535",
             {kOpen, kClose}, counts_to_65535);
  list.named("second-open-without-offset",
             "the second open of a small allocation gives the start of its "
             "block",
             {kOpen, kClose}, second_open_without_offset);
  list.named("two-blocks-are-four",
             "an allocation of 4 MiB gets 8 MiB, and shares all of them",
             {"cudaMalloc"}, two_blocks_are_four);
  list.named("free-closes-small",
             "a free of an opened small allocation is taken for a close",
             {kOpen, kClose, kFree}, free_closes<is_inside_block>);
  list.named("free-closes-one-of-two",
             "a free of memory that is open twice is taken for a close",
             {kOpen, kClose, kFree}, free_closes<is_open_twice>);
  list.named("close-managed-ok", "a close accepts managed memory", {kClose},
             managed_closed);
  list.named("close-stream-ordered-ok",
             "a close accepts stream-ordered memory of this process",
             {kClose, "cudaMallocAsync", kFree, "cudaMallocFromPoolAsync",
              "cudaFreeAsync"},
             stream_ordered_closed);
  list.named("export-as-first-call-refused",
             "cudaIpcGetMemHandle is refused as the first call of a thread",
             {kGet}, first_open_of_thread_refused);
  list.named("memset-as-first-call-lost",
             "cudaMemset of opened memory does nothing as the first call of a "
             "thread",
             {"cudaMemset", kOpen, kClose}, first_set_of_thread_lost);
  list.named("attributes-as-first-call-unknown",
             "cudaPointerGetAttributes does not know opened memory as the "
             "first call of a thread",
             {"cudaPointerGetAttributes", kOpen, kClose},
             first_query_of_thread_empty);
  list.named("closed-memory-exported",
             "memory that was opened and closed gets a handle, which opens "
             "other memory",
             {kGet, kOpen, kClose}, closed_exported);
  list.named("one-context-for-all-exporters",
             "two contexts of a device cannot open handles of two exporters",
             {kOpen, kClose, "cuCtxDestroy"}, one_context_for_all_exporters);
  list.named("self-open-once-lent",
             "an open of an own handle returns success and no pointer if "
             "another process has opened it before",
             {kGet, kOpen}, self_open_once_lent);
  list.named("driver-open-costs-memory",
             "an open by the driver API takes as much memory as it opens",
             {kGet, kOpen, kClose}, open_costs_memory<is_by_driver>);
}

}  // namespace ipclab::faults
