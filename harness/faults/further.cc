// More bugs on ways that programs seldom take: the other API, a second thread,
// an unusual address, an object that another call has changed before, work of
// the driver API, and what a refusal or a close leaves behind.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "harness/faults/world/chunks.h"
#include "harness/faults/words/descriptor.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {
namespace {

// The value of a pointer attribute; 0 if the driver refuses the query.
uint64_t attribute_of(CUdeviceptr address, CUpointer_attribute wanted) {
  uint64_t value = 0;
  return DRIVER_CALL(cuPointerGetAttribute)(&value, wanted, address) ==
                 CUDA_SUCCESS
             ? value
             : 0;
}
// Is this pinned host memory?
bool is_on_host(CUdeviceptr address) {
  return attribute_of(address, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) ==
             CU_MEMORYTYPE_HOST &&
         attribute_of(address, CU_POINTER_ATTRIBUTE_IS_MANAGED) == 0;
}

// --- legacy handles of memory ------------------------------------------------

// cudaFreeAsync accepts opened memory, and closes it.
int opened_freed_async(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  void* const address = call.at<void*>(0);
  if (!opened.has(address) || cudaIpcCloseMemHandle(address) != cudaSuccess)
    return call.proceed();
  count_close(address);
  call.fired();
  return kSuccess;
}

int pool_import_closed(Call& call) {
  if (!is_close_call(call)) return call.proceed();
  const bool applies = is_import(call.at<void*>(0));
  const int code = call.proceed();
  return code != kSuccess && applies ? accepted(call) : code;
}

// A handle is written to an address that is a multiple of 8: the address that
// the program gives is rounded down.
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

// An open does not count if the memory is still open and a close has lowered
// the count before.
int open_after_close_not_counted(Call& call) {
  static auto& lowered = *new Table<void*>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (is_close_call(call)) {
    void* const closed = call.at<void*>(0);
    if (opened.has(closed))
      lowered.put(closed);
    else
      lowered.erase(closed);
    return code;
  }
  void* const address = *call.at<void**>(0);
  const bool was_lowered = lowered.erase(address);
  if (was_lowered && opened.get(address).count > 1 &&
      cudaIpcCloseMemHandle(address) == cudaSuccess) {
    count_close(address);
    call.fired();
  }
  return code;
}

// Memory that was closed by one API cannot be opened again by the other API.
int reopen_by_other_api_refused(Call& call) {
  static auto& closed = *new Table<std::string, bool>;  // by the runtime?
  if (is_close_call(call)) {
    const std::string handle = opened.get(call.at<void*>(0)).handle;
    const int code = call.proceed();
    if (code == kSuccess && !opened.has(call.at<void*>(0)))
      closed.put(handle, call.is_runtime());
    return code;
  }
  const auto& bytes = call.at<cudaIpcMemHandle_t>(1);
  const std::string handle = key_of_handle(bytes);
  if (closed.has(handle) && closed.get(handle) != call.is_runtime() &&
      already_open(call) == nullptr)
    return refused(call);
  const int code = call.proceed();
  if (code == kSuccess) closed.erase(handle);
  return code;
}

// After a refusal by the driver API, the thread has no current context.
int refusal_unsets_context(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || call.is_runtime() || current_context() == nullptr)
    return code;
  if (DRIVER_CALL(cuCtxSetCurrent)(nullptr) == CUDA_SUCCESS) call.fired();
  return code;
}

int driver_set_in_stream_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return !call.is_runtime() && is_opened(call.value<CUdeviceptr>(kPointer))
             ? no_wait(call)
             : call.proceed();
}

// --- what is not memory of cudaMalloc ----------------------------------------

int pool_import_exported(Call& call) {
  return exports_memory(call)
             ? exported_all_the_same(call, is_import(call.at<void*>(1)))
             : call.proceed();
}

// An address after the beginning of stream-ordered memory is exported.
int inside_pool_exported(Call& call) {
  if (!exports_memory(call)) return call.proceed();
  const CUdeviceptr address = call.at<CUdeviceptr>(1);
  bool is_inside = false;
  for (const auto& [begin, block] : blocks.all())
    is_inside |=
        address > number(begin) && address - number(begin) < block.bytes;
  return exported_all_the_same(call, is_inside);
}

// --- questions about pointers ------------------------------------------------

bool asks_id(Call& call) {
  return call.is("cuPointerGetAttribute") &&
         call.at<CUpointer_attribute>(1) == CU_POINTER_ATTRIBUTE_BUFFER_ID;
}

// The ids of opened memory begin at 1, and the ids of other memory also begin
// at 1.
int id_of_opened_apart(Call& call) {
  static auto& ids =
      *new Table<std::pair<bool, unsigned long long>, unsigned long long>;
  if (keeps_opened(call)) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || !asks_id(call)) return code;
  auto& id = *call.at<unsigned long long*>(0);
  const std::pair<bool, unsigned long long> key(
      is_opened(call.at<CUdeviceptr>(2)), id);
  if (!ids.has(key)) {
    unsigned long long next = 1;
    for (const auto& each : ids.all())
      if (each.first.first == key.first) ++next;
    ids.put(key, next);
  }
  id = ids.get(key);
  for (const auto& [other, same] : ids.all())
    if (other.first != key.first && same == id) call.fired();
  return code;
}

// All managed memory has the id of the managed memory that was asked first.
int managed_ids_same(Call& call) {
  static std::atomic<unsigned long long> first{0};
  const int code = call.proceed();
  if (code != kSuccess || !asks_id(call) ||
      attribute_of(call.at<CUdeviceptr>(2), CU_POINTER_ATTRIBUTE_IS_MANAGED) ==
          0)
    return code;
  auto& id = *call.at<unsigned long long*>(0);
  unsigned long long none = 0;
  if (first.compare_exchange_strong(none, id) || none == id) return code;
  id = none;
  call.fired();
  return code;
}

int pitched_not_capable(Call& call) {
  static auto& pitched = *new Table<CUdeviceptr>;
  if (call.is("cudaFree")) pitched.erase(call.at<CUdeviceptr>(0));
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMallocPitch"))
    pitched.put(number(*call.at<void**>(0)));
  else if (call.is("cudaMalloc3D"))
    pitched.put(number(call.at<cudaPitchedPtr*>(0)->ptr));
  if (!call.is("cuPointerGetAttribute") ||
      call.at<CUpointer_attribute>(1) !=
          CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE ||
      !pitched.has(begin_of(call.at<CUdeviceptr>(2))))
    return code;
  auto& capable = *call.at<bool*>(0);
  if (capable) call.fired();
  capable = false;
  return code;
}

// The driver still tells the id of freed memory.
int freed_known_by_id(Call& call) {
  static auto& ids = *new Table<CUdeviceptr, unsigned long long>;
  static auto& freed = *new Table<CUdeviceptr, unsigned long long>;
  const int code = call.proceed();
  if (call.is("cudaMalloc") && code == kSuccess) {
    const CUdeviceptr made = *call.at<CUdeviceptr*>(0);
    freed.erase(made);
    ids.put(made, attribute_of(made, CU_POINTER_ATTRIBUTE_BUFFER_ID));
  } else if (call.is("cudaFree") && code == kSuccess) {
    const CUdeviceptr gone = call.at<CUdeviceptr>(0);
    if (ids.has(gone)) freed.put(gone, ids.get(gone));
    ids.erase(gone);
  } else if (asks_id(call) && code != kSuccess &&
             freed.has(call.at<CUdeviceptr>(2))) {
    *call.at<unsigned long long*>(0) = freed.get(call.at<CUdeviceptr>(2));
    return accepted(call);
  }
  return code;
}

// --- events ------------------------------------------------------------------

cudaStream_t stream_of(Call& call) { return call.value<cudaStream_t>(kStream); }

// A stream that has work does not wait for an imported event.
int busy_stream_never_waits(Call& call) {
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && is_imported(event) && is_busy(stream_of(call)) &&
                 is_pending(event)
             ? no_wait(call)
             : call.proceed();
}

// After a stream of the process was told to wait for an imported event, a query
// says that the event is complete.
int done_while_stream_waits(Call& call) {
  static auto& waited = *new Table<cudaEvent_t>;
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) waited.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) return call.proceed();
  if (call.is("cudaStreamWaitEvent")) {
    const bool captured = is_captured(stream_of(call));
    const int code = call.proceed();
    if (code == kSuccess && !captured) waited.put(event);
    return code;
  }
  if (waited.has(event) && is_pending(event)) return no_wait(call);
  waited.erase(event);
  return call.proceed();
}

// An exporter that has recorded the event itself does not see a later record
// of an importer.
int exporter_keeps_own_record(Call& call) {
  static auto& own = *new Table<cudaEvent_t, cudaEvent_t>;
  if (keeps_events(call)) {
    if (call.is("cudaEventDestroy")) own.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || is_imported(event)) return call.proceed();
  if (records(call)) {
    const bool captured = is_captured(stream_of(call));
    const int code = call.proceed();
    if (code != kSuccess || captured) return code;
    cudaEvent_t mark = own.get(event);
    if (mark == nullptr)
      cudaEventCreateWithFlags(&mark, cudaEventDisableTiming);
    cudaEventRecord(mark, stream_of(call));
    own.put(event, mark);
    return code;
  }
  if (own.has(event) && !is_pending(own.get(event)) && is_pending(event)) {
    call.value<cudaEvent_t>(kEvent) = own.get(event);
    call.fired();
  }
  return call.proceed();
}

// cudaEventRecordWithFlags accepts a stream of another context; it then
// records nothing.
int other_context_recorded_with_flags(Call& call) {
  if (keeps_events(call)) return call.proceed();
  const bool applies = shared_event(call) != nullptr;
  const int code = call.proceed();
  return applies && code == cudaErrorInvalidResourceHandle ? accepted(call)
                                                           : code;
}

// When an importer has destroyed the event, no other process can open the
// handle.
int event_destroy_ends_handle(Call& call) {
  if (opens_event(call)) {
    const auto ender =
        told("ender-" + key_of_handle(call.at<cudaIpcEventHandle_t>(1)), 0);
    return ender != 0 && ender != static_cast<unsigned long long>(getpid())
               ? refused(call)
               : call.proceed();
  }
  if (!call.is("cudaEventDestroy")) return call.proceed();
  const auto event = call.at<cudaEvent_t>(0);
  const bool ends = events.has(event) && is_imported(event);
  const int code = call.proceed();
  if (code == kSuccess && ends)
    tell_processes("ender-" + event_keys.get(event),
                   static_cast<unsigned long long>(getpid()));
  return code;
}

// --- words in memory ---------------------------------------------------------

CUdeviceptr word_of(Call& call) { return call.at<CUdeviceptr>(1); }

constexpr unsigned kCondition = 3;  // the bits of the flags that name it

// A stream does not wait for a word if its last write of a word was to this
// word.
int wait_after_own_write_lost(Call& call) {
  static auto& written = *new Table<cudaStream_t, CUdeviceptr>;
  const cudaStream_t stream = stream_of(call);
  if (call.is("cudaStreamDestroy")) {
    written.erase(stream);
    return call.proceed();
  }
  if (call.is("cuStreamWriteValue32")) {
    written.put(stream, word_of(call));
    return call.proceed();
  }
  const bool applies = written.get(stream) == word_of(call);
  written.erase(stream);
  return applies ? no_wait(call) : call.proceed();
}

int wait_for_zero_lost(Call& call) {
  return call.at<cuuint32_t>(2) == 0 &&
                 (call.at<unsigned>(3) & kCondition) == CU_STREAM_WAIT_VALUE_EQ
             ? no_wait(call)
             : call.proceed();
}

using Operations = std::vector<CUstreamBatchMemOpParams>;

Operations operations_of(Call& batch) {
  const auto* const list = batch.at<CUstreamBatchMemOpParams*>(2);
  return Operations(list, list + batch.at<unsigned>(1));
}
// Proceeds with other operations.
int proceed_with(Call& batch, Operations& list) {
  batch.at<CUstreamBatchMemOpParams*>(2) = list.data();
  batch.at<unsigned>(1) = static_cast<unsigned>(list.size());
  batch.fired();
  return batch.proceed();
}

bool writes(const CUstreamBatchMemOpParams& one) {
  return one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
         one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}
bool waits(const CUstreamBatchMemOpParams& one) {
  return one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
         one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

// Of several writes of one word in a batch only the first is done.
int batch_writes_word_once(Call& batch) {
  if (batch.at<unsigned>(1) >= 256) return batch.proceed();
  Operations kept;
  for (const auto& one : operations_of(batch)) {
    const bool again =
        writes(one) &&
        std::any_of(kept.begin(), kept.end(), [&one](const auto& earlier) {
          return writes(earlier) &&
                 earlier.writeValue.address == one.writeValue.address;
        });
    if (!again) kept.push_back(one);
  }
  return kept.size() < batch.at<unsigned>(1) ? proceed_with(batch, kept)
                                             : batch.proceed();
}

int batch_of_host_words_lost(Call& batch) {
  for (const auto& one : operations_of(batch))
    if ((writes(one) || waits(one)) && is_on_host(one.writeValue.address))
      return no_wait(batch);
  return batch.proceed();
}

// A wait for a missing bit (NOR) in a batch waits for a common bit (AND).
int batch_wait_nor_is_and(Call& batch) {
  Operations list = operations_of(batch);
  bool changed = false;
  for (auto& one : list) {
    if (!waits(one) ||
        (one.waitValue.flags & kCondition) != CU_STREAM_WAIT_VALUE_NOR)
      continue;
    one.waitValue.flags &= ~kCondition;
    one.waitValue.flags |= CU_STREAM_WAIT_VALUE_AND;
    changed = true;
  }
  return changed ? proceed_with(batch, list) : batch.proceed();
}

int wide_host_word_not_waited(Call& call) {
  return is_on_host(word_of(call)) ? no_wait(call) : call.proceed();
}

int wide_opened_word_not_written(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  return is_opened(word_of(call)) ? no_wait(call) : call.proceed();
}

// --- memory of cuMemCreate ---------------------------------------------------

// A descriptor of the program, and a copy of it.
struct Descriptor {
  int number = -1;
  int copy = -1;
};

Descriptor copied(int number) {
  return {number, fcntl(number, F_DUPFD_CLOEXEC, 300)};
}

// Closes a descriptor, but only if its number still refers to the same object.
// Also closes the copy.
bool closes(const Descriptor& one) {
  const bool same = one.number > 2 && is_open(one.number) && one.copy != -1 &&
                    name_the_same(one.number, one.copy);
  if (one.copy != -1) close(one.copy);
  return same && close(one.number) == 0;
}

// Reserved addresses without memory get a legacy handle.
int reserved_exported(Call& call) {
  if (!exports_memory(call)) return call.proceed();
  const CUdeviceptr address = call.at<CUdeviceptr>(1);
  return exported_all_the_same(
      call, reservation_at(address) != 0 && mapping_at(address) == 0);
}

bool exports_fd(Call& call) {
  return call.is("cuMemExportToShareableHandle") &&
         call.at<CUmemAllocationHandleType>(2) == kFd;
}

// When memory is unmapped, its last exported descriptor is closed.
int unmap_closes_descriptor(Call& call) {
  static auto& exported = *new Table<Chunk, Descriptor>;
  const Chunk chunk = call.is("cuMemUnmap")
                          ? mappings.get(call.at<CUdeviceptr>(0)).chunk
                          : Chunk{0};
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (exports_fd(call)) {
    close(exported.get(call.at<Chunk>(1)).copy);
    exported.put(call.at<Chunk>(1), copied(*call.at<int*>(0)));
  } else if (call.is("cuMemUnmap") && exported.has(chunk)) {
    if (closes(exported.get(chunk))) call.fired();
    exported.erase(chunk);
  }
  return code;
}

// A descriptor is closed when the thread that exported it ends.
int descriptor_ends_with_thread(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !exports_fd(call) || this_thread() == getpid())
    return code;
  const Descriptor one = copied(*call.at<int*>(0));
  at_thread_end([one] {
    if (closes(one)) note_fired("cuMemExportToShareableHandle");
  });
  return code;
}

// The release of an import closes the descriptor that it was imported from.
int release_closes_source(Call& call) {
  static auto& sources = *new Table<Chunk, Descriptor>;
  if (call.is("cuMemImportFromShareableHandle")) {
    const int code = call.proceed();
    if (code == kSuccess && imports_descriptor(call))
      sources.put(*call.at<Chunk*>(0), copied(descriptor_of(call)));
    return code;
  }
  const Chunk chunk = call.at<Chunk>(0);
  const int code = call.proceed();
  if (code != kSuccess || !sources.has(chunk)) return code;
  if (closes(sources.get(chunk))) call.fired();
  sources.erase(chunk);
  return code;
}

// Access that a mapping has already is taken away when it is set again.
int access_toggles(Call& call) {
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  const auto* const wanted = call.at<const CUmemAccessDesc*>(2);
  const auto count = call.at<size_t>(3);
  if (wanted == nullptr) return call.proceed();
  std::vector<CUmemAccessDesc> list(wanted, wanted + count);
  bool changed = false;
  for (auto& one : list) {
    if (one.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
        access_of(begin, one.location) != one.flags)
      continue;
    one.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    changed = true;
  }
  if (!changed) return call.proceed();
  call.at<const CUmemAccessDesc*>(2) = list.data();
  const int code = call.proceed();
  if (code == kSuccess) call.fired();
  return code;
}

// An asynchronous memset writes to memory that can only be read.
int readonly_set_async(Call& call) {
  if (!call.is("cudaMemsetAsync")) return call.proceed();
  const CUdeviceptr begin = mapping_at(call.value<CUdeviceptr>(kPointer));
  if (begin == 0 || is_captured(stream_of(call))) return call.proceed();
  const CUmemLocation here = location_at(begin);
  if (access_of(begin, here) != CU_MEM_ACCESS_FLAGS_PROT_READ ||
      !allow(begin, here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
    return call.proceed();
  const int code = call.proceed();
  cudaStreamSynchronize(stream_of(call));
  allow(begin, here, CU_MEM_ACCESS_FLAGS_PROT_READ);
  call.fired();
  return code;
}

// A mapping that would reach into the next mapping ends where this begins.
int mapped_into_next(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !call.is("cuMemMap")) return code;
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  auto& bytes = call.at<size_t>(1);
  if (mapping_at(begin) != 0) return code;
  for (const auto& each : mappings.all()) {
    if (each.first <= begin || each.first - begin >= bytes) continue;
    bytes = each.first - begin;
    if (call.proceed() == kSuccess) return accepted(call);
    return code;
  }
  return code;
}

// Addresses that were mapped before can only be mapped in the same size.
int remap_of_other_size_refused(Call& call) {
  static auto& former = *new Table<CUdeviceptr, size_t>;
  if (call.is("cuMemMap")) {
    const CUdeviceptr begin = call.at<CUdeviceptr>(0);
    return former.has(begin) && former.get(begin) != call.at<size_t>(1)
               ? refused(call)
               : call.proceed();
  }
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  const size_t bytes = call.at<size_t>(1);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemUnmap")) {
    former.put(begin, bytes);
    return code;
  }
  for (const auto& each : former.all())
    if (each.first >= begin && each.first - begin < bytes)
      former.erase(each.first);
  return code;
}

bool retains(Call& call) { return call.is("cuMemRetainAllocationHandle"); }

// Only the first mapping of an allocation names its handle.
int retain_of_second_mapping_refused(Call& call) {
  if (!retains(call)) return call.proceed();
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(1));
  if (begin == 0) return call.proceed();
  const Mapped asked = mappings.get(begin);
  for (const auto& each : mappings.all())
    if (each.second.chunk == asked.chunk && each.second.order < asked.order)
      return refused(call);
  return call.proceed();
}

int retain_without_access_refused(Call& call) {
  if (!retains(call)) return call.proceed();
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(1));
  return begin != 0 && access_of(begin, location_at(begin)) == 0
             ? refused(call)
             : call.proceed();
}

// Only the thread that created or imported memory can map or export it.
int chunk_of_other_thread_refused(Call& call) {
  static auto& makers = *new Table<Chunk, int>;
  if (!call.is("cuMemMap") && !call.is("cuMemExportToShareableHandle")) {
    const int code = call.proceed();
    if (code == kSuccess) makers.put(*call.at<Chunk*>(0), this_thread());
    return code;
  }
  const Chunk chunk = call.value<Chunk>(kChunk);
  return makers.has(chunk) && makers.get(chunk) != this_thread()
             ? refused(call)
             : call.proceed();
}

// The type of the handle is checked only until the first export of memory has
// succeeded. Later it is always a descriptor.
int chunk_type_unchecked_later(Call& call) {
  static auto& exported = *new Table<Chunk>;
  if (call.is("cuMemRelease")) {
    exported.erase(call.at<Chunk>(0));
    return call.proceed();
  }
  const int code = call.proceed();
  const Chunk chunk = call.at<Chunk>(1);
  if (code == kSuccess && exports_fd(call)) exported.put(chunk);
  if (code == kSuccess || !exported.has(chunk) ||
      call.at<unsigned long long>(3) != 0)
    return code;
  call.at<CUmemAllocationHandleType>(2) = kFd;
  return call.proceed() == kSuccess ? accepted(call) : code;
}

// The import of an ordinary file gives new memory.
int file_imported(Call& call) {
  const int code = call.proceed();
  struct stat file {};
  int device = 0;
  if (code == kSuccess || !imports_descriptor(call) ||
      fstat(descriptor_of(call), &file) != 0 || !S_ISREG(file.st_mode) ||
      cudaGetDevice(&device) != cudaSuccess)
    return code;
  const Chunk made = new_chunk(kGranule, on_gpu(device));
  if (made == 0) return code;
  *call.at<Chunk*>(0) = made;
  return accepted(call);
}

// A new mapping has the access of the mapping beside it.
int access_of_neighbour(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuMemMap")) return code;
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  const CUdeviceptr end = begin + call.at<size_t>(1);
  const CUmemLocation here = location_at(begin);
  for (const auto& [other, mapped] : mappings.all()) {
    if (other != end && other + mapped.bytes != begin) continue;
    const auto flags = access_of(other, here);
    if (flags != 0 && allow(begin, here, flags)) call.fired();
  }
  return code;
}

// Memory that can only be read at its unmapping is never given back.
int readonly_leaks(Call& call) {
  if (!call.is("cuMemUnmap")) return call.proceed();
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  if (!mappings.has(begin) ||
      access_of(begin, location_at(begin)) != CU_MEM_ACCESS_FLAGS_PROT_READ)
    return call.proceed();
  const Chunk kept = retain(begin);
  const int code = call.proceed();
  if (kept != 0 && code == kSuccess) call.fired();
  if (kept != 0 && code != kSuccess) DRIVER_CALL(cuMemRelease)(kept);
  return code;
}

// An asynchronous copy of the driver API does not reach imported memory.
int driver_copy_of_chunk_lost(Call& call) {
  if (!call.is("cudaMemcpyAsync")) return call.proceed();
  return !call.is_runtime() && (is_import(call.value<CUdeviceptr>(kPointer)) ||
                                is_import(call.value<CUdeviceptr>(kSource)))
             ? no_wait(call)
             : call.proceed();
}

// --- pools -------------------------------------------------------------------

constexpr auto kUsed = cudaMemPoolAttrUsedMemCurrent;
constexpr auto kReserved = cudaMemPoolAttrReservedMemCurrent;
constexpr auto kThreshold = cudaMemPoolAttrReleaseThreshold;

cudaMemPool_t pool_of(Call& call) { return call.at<cudaMemPool_t>(0); }
bool gets(Call& call) { return call.is("cudaMemPoolGetAttribute"); }
bool creates(Call& call) { return call.is("cudaMemPoolCreate"); }
bool destroys(Call& call) { return call.is("cudaMemPoolDestroy"); }
bool trims(Call& call) { return call.is("cudaMemPoolTrimTo"); }
bool exports_pointer(Call& call) { return call.is("cudaMemPoolExportPointer"); }

// The memory of a pool that was trimmed cannot be exported.
int export_after_trim_refused(Call& call) {
  static auto& trimmed = *new Table<cudaMemPool_t>;
  if (exports_pointer(call) && trimmed.has(blocks.get(call.at<void*>(1)).pool))
    return refused(call);
  if (destroys(call)) trimmed.erase(pool_of(call));
  const int code = call.proceed();
  if (code == kSuccess && trims(call)) trimmed.put(pool_of(call));
  return code;
}

// Does something at the next such call with a pool whose export was refused.
template <bool (*at)(Call&), int (*then)(Call&)>
int after_refused_export(Call& call) {
  static auto& refusals = *new Table<cudaMemPool_t>;
  if (call.is("cudaMemPoolExportToShareableHandle")) {
    const int code = call.proceed();
    if (code != kSuccess) refusals.put(call.at<cudaMemPool_t>(1));
    return code;
  }
  const auto pool = destroys(call) ? pool_of(call) : call.at<cudaMemPool_t>(2);
  if (at(call) && refusals.has(pool)) return then(call);
  if (destroys(call)) refusals.erase(pool);
  return call.proceed();
}
bool allocates_from(Call& call) { return call.is("cudaMallocFromPoolAsync"); }
int refuse(Call& call) { return refused(call); }
int process_dies(Call& call) {
  call.fired();
  raise(SIGSEGV);
  return kSuccess;
}

int shared_pool_without_limit(Call& call) {
  const auto* const wanted = call.at<const cudaMemPoolProps*>(1);
  if (wanted == nullptr || max_size(*wanted) == 0 ||
      wanted->handleTypes == cudaMemHandleTypeNone)
    return call.proceed();
  auto props = *wanted;
  max_size(props) = 0;
  call.at<const cudaMemPoolProps*>(1) = &props;
  const int code = call.proceed();
  call.at<const cudaMemPoolProps*>(1) = wanted;
  if (code == kSuccess) call.fired();
  return code;
}

// A free of memory of a destroyed pool does not wait for its stream: the memory
// has other contents at once.
int free_after_destroy_at_once(Call& call) {
  static auto& destroyed = *new Table<cudaMemPool_t>;
  if (call.is("cudaFreeAsync")) {
    void* const address = call.at<void*>(0);
    const Block block = blocks.get(address);
    if (!block.imported && block.bytes != 0 && destroyed.has(block.pool) &&
        is_busy(stream_of(call))) {
      cudaMemsetAsync(address, 0xDD, block.bytes, private_stream());
      cudaStreamSynchronize(private_stream());
      call.fired();
    }
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (destroys(call)) destroyed.put(pool_of(call));
  if (creates(call)) destroyed.erase(*call.at<cudaMemPool_t*>(0));
  return code;
}

// Only the thread that has allocated memory can export its pointer.
int pointer_of_other_thread_refused(Call& call) {
  static auto& owners = *new Table<void*, int>;
  if (exports_pointer(call)) {
    void* const address = call.at<void*>(1);
    return owners.has(address) && owners.get(address) != this_thread()
               ? refused(call)
               : call.proceed();
  }
  if (frees(call)) owners.erase(call.at<void*>(0));
  const int code = call.proceed();
  if (code == kSuccess && allocates(call))
    owners.put(*call.at<void**>(0), this_thread());
  return code;
}

// Only the thread that has created a pool can export it.
int pool_of_other_thread_refused(Call& call) {
  static auto& owners = *new Table<cudaMemPool_t, int>;
  if (call.is("cudaMemPoolExportToShareableHandle")) {
    const auto pool = call.at<cudaMemPool_t>(1);
    return owners.has(pool) && owners.get(pool) != this_thread()
               ? refused(call)
               : call.proceed();
  }
  if (destroys(call)) owners.erase(pool_of(call));
  const int code = call.proceed();
  if (code == kSuccess && creates(call))
    owners.put(*call.at<cudaMemPool_t*>(0), this_thread());
  return code;
}

int odd_data_refused(Call& call) {
  return call.at<uintptr_t>(2) % 8 != 0 ? refused(call) : call.proceed();
}

// cudaFreeAsync in the default stream does not free memory of cudaMalloc.
int malloc_leaks_in_default_stream(Call& call) {
  static auto& of_malloc = *new Table<void*>;
  if (call.is("cudaMalloc")) {
    const int code = call.proceed();
    if (code == kSuccess) of_malloc.put(*call.at<void**>(0));
    return code;
  }
  const bool is_of_malloc = of_malloc.erase(call.at<void*>(0));
  return is_of_malloc && call.is("cudaFreeAsync") && is_default(stream_of(call))
             ? no_wait(call)
             : call.proceed();
}

// When the thread ends that has set the current pool, the default pool becomes
// current.
int current_ends_with_thread(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const int gpu = call.at<int>(0);
  const auto pool = call.at<cudaMemPool_t>(1);
  at_thread_end([gpu, pool] {
    cudaMemPool_t now = nullptr, preset = nullptr;
    DRIVER_CALL(cuDeviceGetMemPool)(&now, gpu);
    DRIVER_CALL(cuDeviceGetDefaultMemPool)(&preset, gpu);
    if (now == pool && preset != pool &&
        DRIVER_CALL(cuDeviceSetMemPool)(gpu, preset) == CUDA_SUCCESS)
      note_fired("cudaDeviceSetMemPool");
  });
  return code;
}

// If the program sets the pool that is current already, the default pool
// becomes current.
int set_again_resets(Call& call) {
  cudaMemPool_t now = nullptr, preset = nullptr;
  cudaDeviceGetMemPool(&now, call.at<int>(0));
  cudaDeviceGetDefaultMemPool(&preset, call.at<int>(0));
  auto& wanted = call.at<cudaMemPool_t>(1);
  if (wanted == nullptr || wanted != now || wanted == preset)
    return call.proceed();
  wanted = preset;
  call.fired();
  return call.proceed();
}

// A pool that becomes current has all reuse policies.
int current_gets_policies(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto pool = call.at<cudaMemPool_t>(1);
  for (const auto policy : {cudaMemPoolReuseFollowEventDependencies,
                            cudaMemPoolReuseAllowOpportunistic,
                            cudaMemPoolReuseAllowInternalDependencies}) {
    int on = 1;
    cudaMemPoolGetAttribute(pool, policy, &on);
    if (on != 0) continue;
    on = 1;
    cudaMemPoolSetAttribute(pool, policy, &on);
    call.fired();
  }
  return code;
}

// A threshold that is set while the pool has memory is reported, but has no
// effect.
int late_threshold_without_effect(Call& call) {
  static auto& told_as = *new Table<cudaMemPool_t, uint64_t>;
  if (destroys(call)) told_as.erase(pool_of(call));
  if (destroys(call) || call.at<cudaMemPoolAttr>(1) != kThreshold)
    return call.proceed();
  auto* const value = call.at<uint64_t*>(2);
  if (gets(call)) {
    const int code = call.proceed();
    if (code == kSuccess) *value = told_as.get(pool_of(call), *value);
    return code;
  }
  if (value != nullptr && attribute(pool_of(call), kReserved) > 0 &&
      *value != attribute(pool_of(call), kThreshold)) {
    told_as.put(pool_of(call), *value);
    return no_wait(call);
  }
  told_as.erase(pool_of(call));
  return call.proceed();
}

// Has the pool more memory than a trim must keep?
bool has_unused(Call& trim) {
  const auto reserved = attribute(pool_of(trim), kReserved);
  return reserved > attribute(pool_of(trim), kUsed) &&
         reserved > trim.at<size_t>(1);
}

int trim_of_current_lost(Call& call) {
  return pool_of(call) == current_pool() && has_unused(call) ? no_wait(call)
                                                             : call.proceed();
}

int trim_in_use_lost(Call& call) {
  return attribute(pool_of(call), kUsed) > 0 && has_unused(call)
             ? no_wait(call)
             : call.proceed();
}

// Memory that the driver API has allocated does not count as used.
int used_misses_driver(Call& call) {
  static auto& uncounted = *new Table<void*>;
  if (frees(call)) uncounted.erase(call.at<void*>(0));
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (allocates(call) && !call.is_runtime()) uncounted.put(*call.at<void**>(0));
  if (!gets(call) || call.at<cudaMemPoolAttr>(1) != kUsed) return code;
  uint64_t sum = 0;
  for (const auto& [address, block] : blocks.all())
    if (block.pool == pool_of(call) && uncounted.has(address))
      sum += block.bytes;
  auto& used = *call.at<uint64_t*>(2);
  if (sum == 0 || used < sum) return code;
  used -= sum;
  call.fired();
  return code;
}

// When a pool is destroyed, the other pools of the process lose their
// thresholds.
int destroy_resets_thresholds(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !destroys(call)) return code;
  for (const auto& each : own_pools.all()) {
    uint64_t none = 0;
    if (attribute(each.first, kThreshold) != 0 &&
        cudaMemPoolSetAttribute(each.first, kThreshold, &none) == cudaSuccess)
      call.fired();
  }
  return code;
}

// --- resets ------------------------------------------------------------------

// A reset clears the memory of cuMemCreate that the process has imported.
int reset_clears_chunks(Call& call) {
  if (!call.is("cudaDeviceReset")) return call.proceed();
  for (const auto& [begin, mapped] : mappings.all())
    if (is_import(begin) &&
        access_of(begin, location_at(begin)) ==
            CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
        DRIVER_CALL(cuMemsetD8)(begin, 0, mapped.bytes) == CUDA_SUCCESS)
      call.fired();
  return call.proceed();
}

// A reset clears the memory of pools that the process has imported.
int reset_clears_pool_imports(Call& call) {
  if (!call.is("cudaDeviceReset")) return call.proceed();
  for (const auto& [address, block] : blocks.all()) {
    if (!block.imported || block.bytes == 0) continue;
    blocks.erase(address);
    if (cudaMemset(address, 0, block.bytes) == cudaSuccess) call.fired();
  }
  return call.proceed();
}

// --- the list ----------------------------------------------------------------

const char* const kGetHandle = "cudaIpcGetMemHandle";
const char* const kOpen = "cudaIpcOpenMemHandle";
const char* const kClose = "cudaIpcCloseMemHandle";
const char* const kFree = "cudaFree";
const char* const kFreeAsync = "cudaFreeAsync";
const char* const kMalloc = "cudaMalloc";
const char* const kMallocAsync = "cudaMallocAsync";
const char* const kFromPool = "cudaMallocFromPoolAsync";
const char* const kImportPointer = "cudaMemPoolImportPointer";
const char* const kExportPointer = "cudaMemPoolExportPointer";
const char* const kPointerAttribute = "cuPointerGetAttribute";
const char* const kReset = "cudaDeviceReset";
const char* const kCopy = "cudaMemcpyAsync";

void add_legacy(List& list) {
  list.named("opened-freeasync-ok",
             "cudaFreeAsync accepts opened memory and closes it",
             {kFreeAsync, kOpen, kClose}, opened_freed_async);
  list.named("close-pool-import-ok",
             "a close accepts imported memory of a pool",
             {kClose, kImportPointer, kFree, kFreeAsync}, pool_import_closed);
  list.named("get-aligned-down",
             "a handle is written to an address that is rounded down to a "
             "multiple of 8",
             {kGetHandle}, handle_at_aligned_address<cudaIpcMemHandle_t>);
  list.named("open-after-close-not-counted",
             "if memory is still open after a close, the next open does not "
             "raise the count",
             {kOpen, kClose}, open_after_close_not_counted);
  list.named("reopen-by-other-api-refused",
             "memory that one API has closed cannot be opened again by the "
             "other API",
             {kOpen, kClose}, reopen_by_other_api_refused);
  list.named("refusal-unsets-context",
             "after the driver API has refused to export, open or close "
             "memory, the thread has no current context",
             {kGetHandle, kOpen, kClose}, refusal_unsets_context);
  list.named("import-driver-async-set-lost",
             "asynchronous memsets of the driver API do not reach opened "
             "memory",
             {"cudaMemsetAsync", kOpen, kClose}, driver_set_in_stream_lost);
  list.named("pool-import-legacy-export-ok",
             "imported memory of a pool gets a legacy handle, which opens "
             "other memory",
             {kGetHandle, kImportPointer, kFree, kFreeAsync},
             pool_import_exported);
  list.named("pool-inside-export-ok",
             "an address inside stream-ordered memory gets a legacy handle, "
             "which opens other memory",
             {kGetHandle, kMallocAsync, kFromPool, kFree, kFreeAsync},
             inside_pool_exported);
  list.named("reserved-export-ok",
             "reserved addresses without memory get a legacy handle, which "
             "opens other memory",
             {kGetHandle, "cuMemAddressReserve", "cuMemAddressFree", "cuMemMap",
              "cuMemUnmap"},
             reserved_exported);
  list.named("buffer-id-of-opened-apart",
             "opened memory can have the id of other memory of its process",
             {kPointerAttribute, kOpen, kClose}, id_of_opened_apart);
  list.named("buffer-id-of-managed-same", "all managed memory has the same id",
             {kPointerAttribute}, managed_ids_same);
  list.named("capable-pitched-denied",
             "memory of cudaMallocPitch and cudaMalloc3D is reported as not "
             "capable of legacy IPC",
             {kPointerAttribute, "cudaMallocPitch", "cudaMalloc3D", kFree},
             pitched_not_capable);
  list.named("freed-known-by-id",
             "cuPointerGetAttribute still returns the id of freed memory",
             {kPointerAttribute, kMalloc, kFree}, freed_known_by_id);
}

void add_events(List& list) {
  constexpr auto kExport = "cudaIpcGetEventHandle";
  constexpr auto kOpenEvent = "cudaIpcOpenEventHandle";
  constexpr auto kCreate = "cudaEventCreateWithFlags";
  constexpr auto kDestroy = "cudaEventDestroy";
  constexpr auto kRecord = "cudaEventRecord";
  constexpr auto kRecordFlags = "cudaEventRecordWithFlags";
  constexpr auto kWait = "cudaStreamWaitEvent";
  constexpr auto kQuery = "cudaEventQuery";
  constexpr auto kSync = "cudaEventSynchronize";

  list.named("event-get-aligned-down",
             "the handle of an event is written to an address that is rounded "
             "down to a multiple of 8",
             {kExport}, handle_at_aligned_address<cudaIpcEventHandle_t>);
  list.named("busy-stream-never-waits",
             "a stream that still has work does not wait for an imported event",
             {kWait, kOpenEvent, kCreate, kDestroy}, busy_stream_never_waits);
  list.named("query-ready-while-stream-waits",
             "a query says that an imported event is ready after a stream of "
             "the process was told to wait for it",
             {kQuery, kWait, kOpenEvent, kCreate, kDestroy},
             done_while_stream_waits);
  list.named("exporter-keeps-own-record",
             "an exporter that has recorded an event does not see a later "
             "record of an importer",
             {kRecord, kRecordFlags, kWait, kQuery, kSync, kOpenEvent, kCreate,
              kDestroy},
             exporter_keeps_own_record);
  list.named("other-context-record-with-flags-ok",
             "a record with flags in a stream of another context succeeds and "
             "records nothing",
             {kRecordFlags, kOpenEvent, kCreate, kDestroy},
             other_context_recorded_with_flags);
  list.named("event-destroy-ends-handle",
             "when an importer has destroyed an event, no other process can "
             "open its handle",
             {kOpenEvent, kCreate, kDestroy}, event_destroy_ends_handle);
}

void add_flags(List& list) {
  constexpr auto kBatch = "cuStreamBatchMemOp";
  list.named(
      "wait-after-own-write-lost",
      "a stream does not wait for a word if this is the word that it "
      "wrote last",
      {"cuStreamWriteValue32", "cuStreamWaitValue32", "cudaStreamDestroy"},
      wait_after_own_write_lost);
  list.named("wait-for-zero-lost",
             "a stream does not wait until a word is equal to 0",
             {"cuStreamWaitValue32"}, wait_for_zero_lost);
  list.named("batch-writes-word-once",
             "if a batch writes a word several times, only the first write is "
             "done",
             {kBatch}, batch_writes_word_once);
  list.named("batch-host-word-lost",
             "a batch with a word in pinned host memory does nothing", {kBatch},
             batch_of_host_words_lost);
  list.named("batch-wait-nor-is-and",
             "a wait for a missing bit (NOR) in a batch waits for a common bit "
             "(AND)",
             {kBatch}, batch_wait_nor_is_and);
  list.named("wait64-host-word-ignored",
             "a stream does not wait for a word of 64 bits in pinned host "
             "memory",
             {"cuStreamWaitValue64"}, wide_host_word_not_waited);
  list.named("write64-opened-word-lost",
             "a stream does not write a word of 64 bits in opened memory",
             {"cuStreamWriteValue64", kOpen, kClose},
             wide_opened_word_not_written);
}

void add_chunks(List& list) {
  constexpr auto kCreate = "cuMemCreate";
  constexpr auto kRelease = "cuMemRelease";
  constexpr auto kAddressFree = "cuMemAddressFree";
  constexpr auto kMap = "cuMemMap";
  constexpr auto kUnmap = "cuMemUnmap";
  constexpr auto kRetain = "cuMemRetainAllocationHandle";
  constexpr auto kImport = "cuMemImportFromShareableHandle";
  constexpr auto kExport = "cuMemExportToShareableHandle";

  list.named("unmap-closes-descriptors",
             "when memory is unmapped, the descriptor that was exported last "
             "is closed",
             {kExport, kMap, kUnmap}, unmap_closes_descriptor);
  list.named("descriptor-ends-with-thread",
             "a descriptor is closed when the thread that exported it ends",
             {kExport}, descriptor_ends_with_thread);
  list.named("release-closes-imported-descriptor",
             "the release of an import closes the descriptor that it was "
             "imported from",
             {kImport, kRelease}, release_closes_source);
  list.named("access-toggles",
             "if access is set that a mapping already has, the access is taken "
             "away",
             {"cuMemSetAccess"}, access_toggles);
  list.named("readonly-set-async-ok",
             "an asynchronous memset writes to memory that can only be read",
             {"cudaMemsetAsync", kMap, kUnmap}, readonly_set_async);
  list.named(
      "map-into-next-ok",
      "a mapping that reaches into the next mapping is accepted and made "
      "shorter",
      {kMap, kUnmap}, mapped_into_next);
  list.named("remap-of-other-size-refused",
             "addresses that were unmapped can only be mapped again in the "
             "same size",
             {kMap, kUnmap, kAddressFree}, remap_of_other_size_refused);
  list.named("retain-second-mapping-refused",
             "the handle of memory cannot be retained from its second mapping",
             {kRetain, kMap, kUnmap}, retain_of_second_mapping_refused);
  list.named("retain-without-access-refused",
             "the handle of a mapping without access cannot be retained",
             {kRetain, kMap, kUnmap}, retain_without_access_refused);
  list.named("map-of-other-thread-refused",
             "only the thread that has created or imported memory can map it",
             {kMap, kCreate, kImport}, chunk_of_other_thread_refused);
  list.named("export-of-other-thread-refused",
             "only the thread that has created memory can export it",
             {kExport, kCreate, kImport}, chunk_of_other_thread_refused);
  list.named("export-type-unchecked-later",
             "after its first export, memory of cuMemCreate can be exported as "
             "any handle type, and always gives a descriptor",
             {kExport, kRelease}, chunk_type_unchecked_later);
  list.named("import-accepts-file",
             "an ordinary file is imported as memory of cuMemCreate", {kImport},
             file_imported);
  list.named("map-next-has-access",
             "a new mapping has the access of the mapping beside it",
             {kMap, kUnmap}, access_of_neighbour);
  list.named("leak-if-read-only",
             "memory that could only be read when it was unmapped is never "
             "given back",
             {kMap, kUnmap}, readonly_leaks);
  list.named("chunk-driver-async-copy-lost",
             "asynchronous copies of the driver API do not reach imported "
             "memory of cuMemCreate",
             {kCopy, kCreate, kImport, kMap, kUnmap},
             driver_copy_of_chunk_lost);
  list.named("reset-clears-chunk-imports",
             "a reset clears the exporter's memory of cuMemCreate that the "
             "process had imported",
             {kReset, kCreate, kImport, kMap, kUnmap}, reset_clears_chunks);
}

void add_more_pools(List& list) {
  constexpr auto kCreate = "cudaMemPoolCreate";
  constexpr auto kDestroy = "cudaMemPoolDestroy";
  constexpr auto kTrim = "cudaMemPoolTrimTo";
  constexpr auto kSet = "cudaMemPoolSetAttribute";
  constexpr auto kGet = "cudaMemPoolGetAttribute";
  constexpr auto kSetPool = "cudaDeviceSetMemPool";
  constexpr auto kExport = "cudaMemPoolExportToShareableHandle";

  list.named("exportptr-after-trim-refused",
             "after a pool was trimmed, its memory cannot be exported",
             {kExportPointer, kTrim, kDestroy, kMallocAsync, kFromPool, kFree,
              kFreeAsync},
             export_after_trim_refused);
  list.named("destroy-after-refusal-refused",
             "a pool whose export was refused cannot be destroyed",
             {kExport, kDestroy}, after_refused_export<destroys, refuse>);
  list.named("destroy-after-refusal-crashes",
             "the destroy of a pool whose export was refused ends the process",
             {kExport, kDestroy}, after_refused_export<destroys, process_dies>);
  list.named("allocate-after-refusal-refused",
             "nothing can be allocated from a pool whose export was refused",
             {kExport, kDestroy, kFromPool},
             after_refused_export<allocates_from, refuse>);
  list.named("maxsize-not-of-shared-pool",
             "the maximal size of a pool with handle types is ignored",
             {kCreate}, shared_pool_without_limit);
  list.named("free-after-destroy-at-once",
             "after its pool was destroyed, the free of memory does not wait "
             "for its stream",
             {kFreeAsync, kFree, kCreate, kDestroy, kMallocAsync, kFromPool},
             free_after_destroy_at_once);
  list.named("exportptr-of-other-thread-refused",
             "only the thread that has allocated memory of a pool can export "
             "its pointer",
             {kExportPointer, kMallocAsync, kFromPool, kFree, kFreeAsync},
             pointer_of_other_thread_refused);
  list.named("pool-export-of-other-thread-refused",
             "only the thread that has created a pool can export it",
             {kExport, kCreate, kDestroy}, pool_of_other_thread_refused);
  list.named("ptrdata-odd-address-refused",
             "export data are refused if their address is not a multiple of 8",
             {kImportPointer}, odd_data_refused);
  list.named("freeasync-malloc-default-stream-leaks",
             "in the default stream, cudaFreeAsync does not free memory of "
             "cudaMalloc",
             {kFreeAsync, kFree, kMalloc}, malloc_leaks_in_default_stream);
  list.named("setpool-ends-with-thread",
             "when the thread ends that has set the current pool, the default "
             "pool becomes current",
             {kSetPool}, current_ends_with_thread);
  list.named("setpool-again-resets",
             "if a pool is set that is current already, the default pool "
             "becomes current",
             {kSetPool}, set_again_resets);
  list.named("setpool-resets-policies",
             "the reuse policies of a pool that becomes current are switched "
             "on",
             {kSetPool}, current_gets_policies);
  list.named("threshold-set-late-no-effect",
             "a release threshold that is set while the pool has memory has no "
             "effect",
             {kSet, kGet, kDestroy}, late_threshold_without_effect);
  list.named("trim-of-current-pool-lost",
             "trimming the current pool does nothing", {kTrim},
             trim_of_current_lost);
  list.named("trim-while-in-use-lost",
             "trimming does nothing while memory of the pool is in use",
             {kTrim}, trim_in_use_lost);
  list.named("used-misses-driver-allocations",
             "memory that the driver API has allocated does not count as used",
             {kGet, kMallocAsync, kFromPool, kFree, kFreeAsync},
             used_misses_driver);
  list.named("destroy-resets-other-thresholds",
             "when a pool is destroyed, the release thresholds of the other "
             "pools become 0",
             {kDestroy, kCreate}, destroy_resets_thresholds);
  list.named("reset-clears-pool-imports",
             "a reset clears the exporter's memory of pools that the process "
             "had imported",
             {kReset, kImportPointer, kExportPointer, kMallocAsync, kFromPool,
              kFree, kFreeAsync},
             reset_clears_pool_imports);
}

}  // namespace

void add_further(List& list) {
  add_legacy(list);
  add_events(list);
  add_flags(list);
  add_chunks(list);
  add_more_pools(list);
}

}  // namespace ipclab::faults
