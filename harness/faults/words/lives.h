// Words that faults of several folders use: lives.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "harness/faults/words/borrowed.h"
#include "harness/faults/words/descriptor.h"
#include "harness/faults/world/chunks.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {

/// The value of a pointer attribute; 0 if the driver refuses the query.
inline uint64_t attribute_of_further(CUdeviceptr address,
                                     CUpointer_attribute wanted) {
  uint64_t value = 0;
  return DRIVER_CALL(cuPointerGetAttribute)(&value, wanted, address) ==
                 CUDA_SUCCESS
             ? value
             : 0;
}

/// A handle is written to an address that is a multiple of 8: the address that
/// the program gives is rounded down.
template <class Handle>
int handle_at_aligned_address(Call& call) {
  auto& target = call.at<char*>(0);
  char* const wanted = target;
  const auto odd = reinterpret_cast<uintptr_t>(wanted) % 8;
  if (odd == 0) return call.proceed();
  Handle handle{};
  target = reinterpret_cast<char*>(&handle);
  const int code = call.proceed();
  target = wanted;
  if (code != kSuccess) return code;
  std::memcpy(wanted - odd, &handle, sizeof handle);
  call.fired();
  return code;
}

inline bool asks_id(Call& call) {
  return call.is("cuPointerGetAttribute") &&
         call.at<CUpointer_attribute>(1) == CU_POINTER_ATTRIBUTE_BUFFER_ID;
}

inline bool exports_fd(Call& call) {
  return call.is("cuMemExportToShareableHandle") &&
         call.at<CUmemAllocationHandleType>(2) == kFd;
}

inline unsigned long long this_process() {
  return static_cast<unsigned long long>(getpid());
}

/// Has a process ended whose number was stored under a key? A process that has
/// given up what the key names has stored 0.
inline bool user_has_ended(const std::string& key) {
  const auto process = told(key, 0);
  return process != 0 && process != this_process() &&
         has_ended(static_cast<pid_t>(process));
}

/// The program gets an event that is not connected to any other event.
inline int opened_unconnected(Call& open) {
  cudaEvent_t& event = *open.at<cudaEvent_t*>(0);
  cudaEventDestroy(event);
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  open.fired();
  return kSuccess;
}

/// The key of the handle that an open gets.
template <class Handle>
std::string given_key(Call& open) {
  return key_of_handle(open.at<Handle>(1));
}

/// The key of the handle that an export has made.
template <class Handle>
std::string made_key(Call& get) {
  return key_of_handle(*get.at<Handle*>(0));
}

/// An open gives a copy of the memory.
inline Table<void*, void*> originals;

inline int copy_opened(Call& open) {
  const int code = open.proceed();
  if (code != kSuccess) return code;
  void*& memory = *open.at<void**>(0);
  void* copy = nullptr;
  const size_t bytes = size_of(number(memory));
  if (cudaMalloc(&copy, bytes) != cudaSuccess) return code;
  cudaMemcpy(copy, memory, bytes, cudaMemcpyDeviceToDevice);
  cudaStreamSynchronize(nullptr);
  originals.put(copy, memory);
  memory = copy;
  open.fired();
  return code;
}

/// The close of memory that may be a copy.
inline int copy_closed(Call& close) {
  void*& memory = close.at<void*>(0);
  void* const copy = memory;
  memory = originals.get(copy, copy);
  if (originals.erase(copy)) cudaFree(copy);
  const int code = close.proceed();
  memory = copy;
  return code;
}

/// Clears all memory of cuMemCreate that this process has mapped and that is in
/// the table.
inline void clear_mapped(const Table<Chunk>& chunks, Call& call) {
  for (const auto& [begin, mapped] : mappings.all())
    if (chunks.has(mapped.chunk) &&
        DRIVER_CALL(cuMemsetD8)(begin, 0, mapped.bytes) == CUDA_SUCCESS)
      call.fired();
}

/// Tells the other processes at the exit of this process that it has memory of
/// the table mapped. Then they clear the memory of their own table.
template <const Table<Chunk>* mine, const Table<Chunk>* theirs>
int exit_clears_chunks(Call& call) {
  static Table<unsigned long long> known;
  static const std::string key = mine == &exports ? "creator" : "importer";
  static const int set_up = std::atexit([] {
    for (const auto& each : mappings.all())
      if (mine->has(each.second.chunk)) tell_processes(key, this_process());
  });
  if (!is_use(call) || set_up != 0) return call.proceed();
  const auto exited = told(key, 0);
  if (exited != 0 && exited != this_process() && known.put(exited))
    clear_mapped(*theirs, call);
  return call.proceed();
}

inline std::string import_key(Call& call) {
  return "import-" + std::to_string(identity(descriptor_of(call)));
}

inline bool resets(Call& call) { return call.is("cudaDeviceReset"); }

/// An export gives the handle of new memory of the same size. A refusal stays a
/// refusal.
inline int other_exported(Call& get) {
  void* other = nullptr;
  const int code = get.proceed();
  const size_t bytes = size_of(number(get.at<void*>(1)));
  if (code != kSuccess || bytes == 0 ||
      cudaMalloc(&other, bytes) != cudaSuccess)
    return code;
  get.at<void*>(1) = other;
  get.fired();
  return get.proceed();
}

inline int noted_lender(Call& get) {
  const int code = get.proceed();
  if (code == kSuccess)
    lent.put(get.at<void*>(1), made_key<cudaIpcMemHandle_t>(get));
  return code;
}

/// The objects that threads have made, and these threads; -1 instead of a
/// thread that has ended.
template <class Object>
class Made {
 public:
  void by_this_thread(Object made) {
    threads_.put(made, this_thread());
    at_thread_end([this, made] {
      if (threads_.get(made) == this_thread()) threads_.put(made, -1);
    });
  }
  void erase(Object gone) { threads_.erase(gone); }
  bool by_ended_thread(Object object) { return threads_.get(object) == -1; }

 private:
  Table<Object, int> threads_;
};

}  // namespace ipclab::faults
