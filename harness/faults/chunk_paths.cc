// More bugs of memory of cuMemCreate, words, fabric and endpoints: work
// directly after a wait for a word, numbers at the sign bit, the second entry
// of a list, memory on a node of the host, addresses and handles that are used
// again, the second granule, the next mapping.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/faults/world/chunks.h"
#include "harness/faults/words/descriptor.h"
#include "harness/toolkit/newer.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {
namespace {

cudaStream_t& stream_of(Call& call) {
  return call.value<cudaStream_t>(kStream);
}
CUdeviceptr word_of(Call& call) { return call.at<CUdeviceptr>(1); }

bool waits(Call& call) {
  return call.is("cuStreamWaitValue32") || call.is("cuStreamWaitValue64");
}

int in_private_stream(Call& call) {
  stream_of(call) = private_stream();
  call.fired();
  return call.proceed();
}

// --- words: work of one kind -------------------------------------------------

// Is this the first call in its stream after a wait for a word, which the
// stream still waits for?
bool is_next_after_wait(Call& call) {
  static Table<cudaStream_t> waiting;
  const auto stream = stream_of(call);
  if (waits(call)) {
    waiting.put(stream);
    return false;
  }
  return waiting.erase(stream) && is_busy(stream);
}

// A host function directly after the wait for a word does not wait.
int host_function_not_held(Call& call) {
  return is_next_after_wait(call) && call.is("cudaLaunchHostFunc")
             ? in_private_stream(call)
             : call.proceed();
}

// A copy of one direction directly after the wait for a word does not wait.
template <cudaMemcpyKind kind>
int copy_not_held(Call& call) {
  return is_next_after_wait(call) && call.is("cudaMemcpyAsync") &&
                 call.is_runtime() && call.at<cudaMemcpyKind>(3) == kind
             ? in_private_stream(call)
             : call.proceed();
}

// The record of an event for several processes, directly after the wait for a
// word, does not wait.
int shared_record_not_held(Call& call) {
  if (keeps_events(call)) return call.proceed();
  return is_next_after_wait(call) && shared_event(call) != nullptr
             ? in_private_stream(call)
             : call.proceed();
}

// A word is written before the host function that was submitted to its stream
// last.
int word_before_host_function(Call& call) {
  static Table<cudaStream_t> concerned;
  const auto stream = stream_of(call);
  if (call.is("cuStreamWriteValue32"))
    return concerned.erase(stream) && is_busy(stream) ? in_private_stream(call)
                                                      : call.proceed();
  if (call.is("cudaLaunchHostFunc"))
    concerned.put(stream);
  else
    concerned.erase(stream);
  return call.proceed();
}

// The streams that were told to wait for a word, with their contexts, and the
// events that were recorded in them while they waited.
Table<cudaStream_t, CUcontext> told_to_wait;
Table<cudaEvent_t> behind_a_word;

// Does the stream wait for a word now?
bool waits_for_word(cudaStream_t stream) {
  return told_to_wait.has(stream) && is_pending(mark_of(stream));
}

// Does the call concern these tables?
bool concerns_waits(Call& call) {
  return waits(call) || call.is("cudaStreamDestroy") || records(call);
}

// Proceeds and updates these tables.
int noted_wait(Call& call) {
  if (call.is("cudaStreamDestroy")) {
    told_to_wait.erase(call.at<cudaStream_t>(0));
  } else if (records(call)) {
    const auto event = call.value<cudaEvent_t>(kEvent);
    if (waits_for_word(stream_of(call)))
      behind_a_word.put(event);
    else
      behind_a_word.erase(event);
  }
  const int code = call.proceed();
  if (code == kSuccess && waits(call) && !is_captured(stream_of(call))) {
    told_to_wait.put(stream_of(call), current_context());
    DRIVER_CALL(cuEventRecord)(mark_of(stream_of(call)), stream_of(call));
  }
  return code;
}

// A stream does not wait for an event that was recorded after the wait for a
// word.
int event_behind_word_holds_nothing(Call& call) {
  if (concerns_waits(call)) return noted_wait(call);
  const auto event = call.value<cudaEvent_t>(kEvent);
  return behind_a_word.has(event) && is_pending(event) ? no_wait(call)
                                                       : call.proceed();
}

// A host does not wait for work that waits for a word.
int host_does_not_wait(Call& call) {
  if (concerns_waits(call)) return noted_wait(call);
  // A query needs a context, and a new thread has none yet.
  if (current_context() == nullptr) cudaFree(nullptr);
  bool concerned = false;
  if (call.is("cudaStreamSynchronize")) {
    concerned = waits_for_word(stream_of(call));
  } else if (call.is("cudaEventSynchronize")) {
    const auto event = call.value<cudaEvent_t>(kEvent);
    concerned = behind_a_word.has(event) && is_pending(event);
  } else {
    for (const auto& [stream, context] : told_to_wait.all())
      concerned |= context == current_context() && waits_for_word(stream);
  }
  return concerned ? no_wait(call) : call.proceed();
}

// --- words: numbers and batches ----------------------------------------------

// A wait for a greater value compares signed numbers. (No signed number is
// greater than the largest one.)
template <class Signed>
int signed_comparison(Call& call) {
  using Number = std::make_unsigned_t<Signed>;
  auto& flags = call.at<unsigned>(3);
  if (flags == CU_STREAM_WAIT_VALUE_GEQ &&
      call.at<Number>(2) ==
          static_cast<Number>(std::numeric_limits<Signed>::max())) {
    flags = CU_STREAM_WAIT_VALUE_EQ;
    call.fired();
  }
  return call.proceed();
}

// A wait for a greater value computes the difference the wrong way round: a
// word that is half of all numbers away counts as greater.
// (The fault looks at the word once, when the wait is queued.)
int half_away_is_greater(Call& call) {
  uint32_t now = 0;
  // A synchronous copy would wait for other streams.
  return call.at<unsigned>(3) == CU_STREAM_WAIT_VALUE_GEQ &&
                 DRIVER_CALL(cuMemcpyDtoHAsync)(&now, word_of(call), sizeof now,
                                                private_stream()) ==
                     CUDA_SUCCESS &&
                 DRIVER_CALL(cuStreamSynchronize)(private_stream()) ==
                     CUDA_SUCCESS &&
                 now - call.at<uint32_t>(2) == 0x80000000
             ? no_wait(call)
             : call.proceed();
}

using Operations = std::vector<CUstreamBatchMemOpParams>;

Operations operations_of(Call& batch) {
  const auto* const list = batch.at<CUstreamBatchMemOpParams*>(2);
  const auto count = batch.at<unsigned>(1);
  // The driver has to refuse 256 operations and more.
  return list == nullptr || count >= 256 ? Operations{}
                                         : Operations(list, list + count);
}
int proceed_with(Call& batch, Operations& list) {
  batch.at<CUstreamBatchMemOpParams*>(2) = list.data();
  batch.at<unsigned>(1) = static_cast<unsigned>(list.size());
  batch.fired();
  return batch.proceed();
}
bool waits(const CUstreamBatchMemOpParams& one) {
  return one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
         one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

// In a batch, a wait for a greater number compares signed numbers.
int signed_comparison_in_batch(Call& batch) {
  Operations list = operations_of(batch);
  bool changed = false;
  for (auto& one : list)
    if (one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 &&
        one.waitValue.flags == CU_STREAM_WAIT_VALUE_GEQ &&
        one.waitValue.value == 0x7FFFFFFF) {
      one.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
      changed = true;
    }
  return changed ? proceed_with(batch, list) : batch.proceed();
}

// A batch waits only once.
int batch_waits_once(Call& batch) {
  Operations list = operations_of(batch);
  const auto is_wait = [](const auto& one) { return waits(one); };
  const auto first = std::find_if(list.begin(), list.end(), is_wait);
  if (first == list.end()) return batch.proceed();
  list.erase(std::remove_if(first + 1, list.end(), is_wait), list.end());
  return list.size() < batch.at<unsigned>(1) ? proceed_with(batch, list)
                                             : batch.proceed();
}

// All waits of a batch have the condition of the first.
int batch_has_one_condition(Call& batch) {
  Operations list = operations_of(batch);
  const CUstreamBatchMemOpParams* first = nullptr;
  bool changed = false;
  for (auto& one : list) {
    if (!waits(one)) continue;
    if (first == nullptr) first = &one;
    changed |= one.waitValue.flags != first->waitValue.flags;
    one.waitValue.flags = first->waitValue.flags;
  }
  return changed ? proceed_with(batch, list) : batch.proceed();
}

// In a batch, a wait for a greater number of 64 bits waits for an equal number.
int batch_waits_for_equal_64(Call& batch) {
  Operations list = operations_of(batch);
  bool changed = false;
  for (auto& one : list)
    if (one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 &&
        one.waitValue.flags == CU_STREAM_WAIT_VALUE_GEQ) {
      one.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
      changed = true;
    }
  return changed ? proceed_with(batch, list) : batch.proceed();
}

// --- words: the memory -------------------------------------------------------

// Only the first word of pinned host memory is written.
int word_inside_host_memory_lost(Call& call) {
  unsigned type = 0;
  DRIVER_CALL(cuPointerGetAttribute)
  (&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, word_of(call));
  return type == CU_MEMORYTYPE_HOST && begin_of(word_of(call)) != word_of(call)
             ? no_wait(call)
             : call.proceed();
}

// A word in managed memory is accepted if this memory is attached to the host.
int word_attached_to_host_accepted(Call& call) {
  static Table<CUdeviceptr> on_host;
  const int code = call.proceed();
  if (!call.is("cudaMallocManaged"))
    return code != kSuccess && on_host.has(word_of(call)) ? accepted(call)
                                                          : code;
  if (code != kSuccess) return code;
  if (call.at<unsigned>(2) == cudaMemAttachHost)
    on_host.put(*call.at<CUdeviceptr*>(0));
  else
    on_host.erase(*call.at<CUdeviceptr*>(0));
  return code;
}

// The write of an odd word also clears the word before it.
int word_before_is_cleared(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess && word_of(call) % 8 == 4 &&
      DRIVER_CALL(cuStreamWriteValue32)(stream_of(call), word_of(call) - 4, 0,
                                        CU_STREAM_WRITE_VALUE_DEFAULT) ==
          CUDA_SUCCESS)
    call.fired();
  return code;
}

// An address more than 4 GiB inside its memory is taken modulo 4 GiB.
int address_modulo_4_gib(Call& call) {
  constexpr size_t k4Gib = size_t{4} << 30;
  const bool sets = call.is("cudaMemset");
  if (!sets && !call.is("cuStreamWriteValue32")) return call.proceed();
  auto& address = call.at<CUdeviceptr>(sets ? 0 : 1);
  const CUdeviceptr begin = mapping_at(address);
  if (begin != 0 && is_import(begin) && address - begin >= k4Gib) {
    address -= k4Gib;
    call.fired();
  }
  return call.proceed();
}

// --- access ------------------------------------------------------------------

// The address that a call writes.
CUdeviceptr target_of(Call& call) {
  if (call.is("cuStreamBatchMemOp"))
    return call.at<CUstreamBatchMemOpParams*>(2)->writeValue.address;
  return call.is("cuStreamWriteValue32") ? word_of(call)
                                         : call.value<CUdeviceptr>(kPointer);
}

// A call writes to memory that can only be read, or to which no access was
// set. (Of copies, only those from device to device.)
template <CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READ>
int writes_without_access(Call& call) {
  if (call.is("cuMemMap") || call.is("cuMemUnmap")) return call.proceed();
  if (call.is("cudaMemcpy") &&
      (!call.is_runtime() ||
       call.at<cudaMemcpyKind>(3) != cudaMemcpyDeviceToDevice))
    return call.proceed();
  const CUdeviceptr begin = mapping_at(target_of(call));
  if (begin == 0) return call.proceed();
  const CUmemLocation here = location_at(begin);
  if (access_of(begin, here) != flags ||
      !allow(begin, here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
    return call.proceed();
  const int code = call.proceed();
  cudaDeviceSynchronize();
  allow(begin, here, flags);
  call.fired();
  return code;
}

// Is this a copy from device to device, as the runtime says it?
bool is_device_copy(Call& call) {
  return call.is("cudaMemcpy") && call.is_runtime() &&
         call.at<cudaMemcpyKind>(3) == cudaMemcpyDeviceToDevice;
}

// A call writes to memory whose access was taken away. (Of copies, only those
// from device to device.)
int writes_where_access_was_taken(Call& call) {
  static Table<CUdeviceptr> given;
  if (!call.is("cudaMemset") && !call.is("cudaMemcpy")) {
    const int code = call.proceed();
    if (code != kSuccess || call.is("cuMemMap")) return code;
    const auto begin = call.at<CUdeviceptr>(0);
    if (call.is("cuMemUnmap"))
      given.erase(begin);
    else if (mappings.has(begin) && access_of(begin, on_gpu(0)) != 0)
      given.put(begin);
    return code;
  }
  if (call.is("cudaMemcpy") && !is_device_copy(call)) return call.proceed();
  return given.has(mapping_at(call.value<CUdeviceptr>(kPointer)))
             ? writes_without_access<CU_MEM_ACCESS_FLAGS_PROT_NONE>(call)
             : call.proceed();
}

// A copy from device to device reads memory to which no access was set.
int reads_without_access(Call& call) {
  if (!call.is("cudaMemcpy")) return call.proceed();
  const CUdeviceptr begin =
      is_device_copy(call) ? mapping_at(call.value<CUdeviceptr>(kSource)) : 0;
  if (begin == 0) return call.proceed();
  const CUmemLocation here = location_at(begin);
  if (access_of(begin, here) != 0 ||
      !allow(begin, here, CU_MEM_ACCESS_FLAGS_PROT_READ))
    return call.proceed();
  const int code = call.proceed();
  cudaDeviceSynchronize();
  allow(begin, here, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  call.fired();
  return code;
}

// A refused setting of access takes the access that GPU 0 has.
int refused_setting_takes_access(Call& call) {
  const int code = call.proceed();
  if (!call.is("cuMemSetAccess") || code == kSuccess) return code;
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
  if (begin != 0 && access_of(begin, on_gpu(0)) != 0 &&
      allow(begin, on_gpu(0), CU_MEM_ACCESS_FLAGS_PROT_NONE))
    call.fired();
  return code;
}

// A copy from device to device moves nothing out of memory that can only be
// read.
int read_only_not_copied(Call& call) {
  if (!call.is("cudaMemcpy")) return call.proceed();
  const CUdeviceptr begin = mapping_at(call.value<CUdeviceptr>(kSource));
  return call.is_runtime() && begin != 0 &&
                 call.at<cudaMemcpyKind>(3) == cudaMemcpyDeviceToDevice &&
                 access_of(begin, location_at(begin)) ==
                     CU_MEM_ACCESS_FLAGS_PROT_READ
             ? no_wait(call)
             : call.proceed();
}

// Memory that is mapped again at its old address has the access that it had
// there before.
int same_memory_keeps_access(Call& call) {
  static auto& former = *new Table<CUdeviceptr, std::pair<Chunk, int>>;
  if (call.is("cuMemUnmap")) {
    const CUdeviceptr begin = call.at<CUdeviceptr>(0);
    if (mappings.has(begin))
      former.put(begin, {mappings.get(begin).chunk,
                         static_cast<int>(access_of(begin, on_gpu(0)))});
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  if (call.is("cuMemAddressFree")) {
    for (const auto& each : former.all())
      if (each.first - begin < call.at<size_t>(1)) former.erase(each.first);
    return code;
  }
  if (call.is("cuMemCreate")) {  // with the number of earlier memory
    for (const auto& each : former.all())
      if (each.second.first == *call.at<Chunk*>(0)) former.erase(each.first);
    return code;
  }
  const auto before = former.get(begin);
  if (former.has(begin) && before.first == call.at<Chunk>(3) &&
      before.second != 0 &&
      allow(begin, on_gpu(0), static_cast<unsigned>(before.second)))
    call.fired();
  return code;
}

// Addresses where memory could only be read stay so for all later mappings.
int addresses_stay_read_only(Call& call) {
  static auto& marked = *new Table<CUdeviceptr>;
  const CUdeviceptr begin = call.at<CUdeviceptr>(0);
  if (call.is("cuMemUnmap") && mappings.has(begin) &&
      access_of(begin, on_gpu(0)) == CU_MEM_ACCESS_FLAGS_PROT_READ)
    marked.put(begin);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemAddressFree")) {
    for (const auto& each : marked.all())
      if (each.first - begin < call.at<size_t>(1)) marked.erase(each.first);
  } else if (call.is("cuMemSetAccess") && marked.has(begin) &&
             access_of(begin, on_gpu(0)) ==
                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
             allow(begin, on_gpu(0), CU_MEM_ACCESS_FLAGS_PROT_READ)) {
    call.fired();
  }
  return code;
}

// Of a list of two accesses, only the first one is checked. If the second one
// is wrong, it is left out.
int second_access_unchecked(Call& set) {
  const int code = set.proceed();
  if (code == kSuccess || set.at<size_t>(3) != 2) return code;
  set.at<size_t>(3) = 1;
  return set.proceed() == kSuccess ? accepted(set) : code;
}

// Access is accepted for the number after the last GPU.
int access_after_last_gpu(Call& set) {
  int count = 0;
  const int code = set.proceed();
  const auto& location = set.at<const CUmemAccessDesc*>(2)->location;
  return code != kSuccess &&
                 DRIVER_CALL(cuDeviceGetCount)(&count) == CUDA_SUCCESS &&
                 location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                 location.id == count
             ? accepted(set)
             : code;
}

// Of a list of accesses, all get the greatest access: reading only becomes
// reading and writing.
int list_has_one_access(Call& set) {
  const auto* const first = set.at<const CUmemAccessDesc*>(2);
  std::vector<CUmemAccessDesc> list(first, first + set.at<size_t>(3));
  if (list.size() != 2 || list[0].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
      list[1].flags != CU_MEM_ACCESS_FLAGS_PROT_READ)
    return set.proceed();
  list[1].flags = list[0].flags;
  set.at<const CUmemAccessDesc*>(2) = list.data();
  set.fired();
  return set.proceed();
}

// --- addresses ---------------------------------------------------------------

// Reservations of one size with an alignment wider than a granule get the
// addresses of the first of them.
int wide_alignments_overlap(Call& call) {
  static std::atomic<CUdeviceptr> shared{0};
  static std::atomic<size_t> bytes{0};
  static std::atomic<int> users{0};
  if (call.is("cuMemAddressFree")) {
    if (call.at<CUdeviceptr>(0) != shared) return call.proceed();
    if (--users > 0) return no_wait(call);
    shared = 0;
    return call.proceed();
  }
  if (call.at<size_t>(2) <= kGranule ||
      call.at<size_t>(2) % (2 * kGranule) != 0)
    return call.proceed();
  if (shared % call.at<size_t>(2) == 0 && shared != 0 &&
      call.at<size_t>(1) == bytes) {
    *call.at<CUdeviceptr*>(0) = shared;
    ++users;
    return no_wait(call);
  }
  const int code = call.proceed();
  if (code == kSuccess && shared == 0) {
    shared = *call.at<CUdeviceptr*>(0);
    bytes = call.at<size_t>(1);
    users = 1;
  }
  return code;
}

// A wanted address is given although other memory is there: memory of the host,
// or of a GPU.
template <bool of_device>
int wanted_address_taken(Call& call) {
  static auto& given = *new Table<CUdeviceptr>;
  if (call.is("cuMemAddressFree"))
    return given.erase(call.at<CUdeviceptr>(0)) ? kSuccess : call.proceed();
  const auto wanted = call.at<CUdeviceptr>(3);
  unsigned type = 0;
  const bool known = wanted != 0 && DRIVER_CALL(cuPointerGetAttribute)(
                                        &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        wanted) == CUDA_SUCCESS;
  const bool used = of_device ? known && type == CU_MEMORYTYPE_DEVICE
                              : wanted != 0 && !known &&
                                    msync(reinterpret_cast<void*>(wanted), 4096,
                                          MS_ASYNC) == 0;
  if (!used || wanted % 4096 != 0 || reservation_at(wanted) != 0)
    return call.proceed();
  *call.at<CUdeviceptr*>(0) = wanted;
  given.put(wanted);
  return no_wait(call);
}

// A copy of one direction ends where the first of several chunks ends.
template <cudaMemcpyKind kind>
int copy_ends_with_chunk(Call& call) {
  if (call.is("cuMemMap") || call.is("cuMemUnmap")) return call.proceed();
  if (!call.is_runtime() || call.at<cudaMemcpyKind>(3) != kind)
    return call.proceed();
  auto& bytes = call.value<size_t>(kBytes);
  for (const Role role : {kPointer, kSource}) {
    const auto address = call.value<CUdeviceptr>(role);
    const CUdeviceptr begin = mapping_at(address);
    if (begin == 0) continue;
    const size_t room = begin + mappings.get(begin).bytes - address;
    if (bytes <= room) continue;
    bytes = room;
    call.fired();
  }
  return call.proceed();
}

// --- the life of memory ------------------------------------------------------

// Every mapping of imported memory names the handle of the first import of the
// same memory.
int retain_gives_first_import(Call& call) {
  struct Import {
    Chunk chunk = 0;
    int descriptor = -1;  // a duplicate
  };
  static auto& imports = *new Table<int, Import>;  // in their order
  static auto& given = *new Table<Chunk, int>;  // how often, instead of others
  static std::atomic<int> count{0};
  if (call.is("cuMemRelease")) {
    const auto chunk = call.at<Chunk>(0);
    const int times = given.get(chunk);
    if (times == 0) return call.proceed();
    given.put(chunk, times - 1);
    return kSuccess;
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemImportFromShareableHandle")) {
    if (imports_descriptor(call))
      imports.put(count++, {*call.at<Chunk*>(0),
                            fcntl(descriptor_of(call), F_DUPFD_CLOEXEC, 300)});
    return code;
  }
  if (!call.is("cuMemRetainAllocationHandle")) return code;
  auto& found = *call.at<Chunk*>(0);
  int own = -1;
  for (const auto& each : imports.all())
    if (each.second.chunk == found) own = each.second.descriptor;
  if (own < 0) return code;
  for (const auto& each : imports.all()) {
    const auto& [chunk, descriptor] = each.second;
    if (released.has(chunk) || !name_the_same(descriptor, own)) continue;
    if (chunk == found) break;
    DRIVER_CALL(cuMemRelease)(found);  // the program does not get this one
    given.put(chunk, given.get(chunk) + 1);
    found = chunk;
    call.fired();
    break;
  }
  return code;
}

// When a retained handle is released and no other handle is left, the memory is
// given back and cleared, although it is mapped.
int retained_release_clears(Call& call) {
  static auto& retained = *new Table<Chunk>;
  const bool last = call.is("cuMemRelease") &&
                    retained.has(call.at<Chunk>(0)) &&
                    released.has(call.at<Chunk>(0));
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemRetainAllocationHandle")) retained.put(*call.at<Chunk*>(0));
  if (!last) return code;
  const CUdeviceptr begin = mapping_of(call.at<Chunk>(0));
  if (begin != 0 && DRIVER_CALL(cuMemsetD8)(
                        begin, 0, mappings.get(begin).bytes) == CUDA_SUCCESS)
    call.fired();
  return code;
}

// While a thread imports memory, an import of another thread gets this memory.
int imports_get_mixed_up(Call& call) {
  static auto& under_way = *new Table<int, int>;  // descriptors of threads
  if (!imports_descriptor(call)) return call.proceed();
  const int own = descriptor_of(call);
  under_way.put(this_thread(), own);
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
  bool mixed = false;
  while (!mixed && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
    for (const auto& [thread, other] : under_way.all()) {
      if (thread == this_thread() || !is_open(other) ||
          name_the_same(own, other))
        continue;
      call.at<void*>(1) = reinterpret_cast<void*>(intptr_t{other});
      mixed = true;
    }
  }
  const int code = call.proceed();
  under_way.erase(this_thread());
  if (mixed && code == kSuccess) call.fired();
  return code;
}

bool is_on_node(CUmemLocation location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

// Memory on a node of the host is cleared when the process that exported it
// unmaps it.
int exported_node_cleared(Call& call) {
  if (call.is("cuMemUnmap")) {
    const CUdeviceptr begin = call.at<CUdeviceptr>(0);
    const Mapped mapped = mappings.get(begin);
    if (mapped.bytes == call.at<size_t>(1) && exports.has(mapped.chunk) &&
        is_on_node(location_at(begin)) &&
        DRIVER_CALL(cuMemsetD8)(begin, 0, mapped.bytes) == CUDA_SUCCESS)
      call.fired();
  }
  return call.proceed();
}

// Memory is cleared when its creator maps it for the first time, although it
// was exported before.
int first_mapping_clears(Call& call) {
  static auto& mapped_before = *new Table<Chunk>;
  static auto& fresh = *new Table<CUdeviceptr>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto begin = call.at<CUdeviceptr>(0);
  if (call.is("cuMemMap")) {
    const auto chunk = call.at<Chunk>(3);
    fresh.erase(begin);
    if (created.has(chunk) && mapped_before.put(chunk) && exports.has(chunk))
      fresh.put(begin);
  } else if (call.is("cuMemSetAccess") && fresh.erase(begin) &&
             DRIVER_CALL(cuMemsetD8)(begin, 0, mappings.get(begin).bytes) ==
                 CUDA_SUCCESS) {
    call.fired();
  } else if (call.is("cuMemCreate")) {
    mapped_before.erase(*call.at<Chunk*>(0));
  }
  return code;
}

// A handle that was released has no properties, although another reference
// holds the memory.
int released_without_properties(Call& call) {
  return call.is("cuMemGetAllocationPropertiesFromHandle") &&
                 released.has(call.at<Chunk>(1))
             ? refused(call)
             : call.proceed();
}

// The unmap of several mappings succeeds, and unmaps the first one only.
int unmap_ends_first_only(Call& call) {
  const auto begin = call.at<CUdeviceptr>(0);
  auto& bytes = call.at<size_t>(1);
  const size_t first = mappings.get(begin).bytes;
  if (!call.is("cuMemUnmap") || !mappings.has(begin) ||
      mapping_at(begin + first) == 0 || first >= bytes)
    return call.proceed();
  bytes = first;
  call.fired();
  return call.proceed();
}

// After memory was created for descriptors, later memory without handle types
// can be exported, too.
int exported_like_earlier(Call& call) {
  // The sizes of memory that was created after memory for descriptors.
  static Table<Chunk, size_t> plain;
  static std::atomic<bool> shareable{false};
  const int code = call.proceed();
  if (call.is("cuMemCreate")) {
    if (code != kSuccess) return code;
    plain.erase(*call.at<Chunk*>(0));
    const auto types =
        call.at<const CUmemAllocationProp*>(2)->requestedHandleTypes;
    if (types == kFd) shareable = true;
    if (types == CU_MEM_HANDLE_TYPE_NONE && shareable)
      plain.put(*call.at<Chunk*>(0), call.at<size_t>(1));
    return code;
  }
  if (code == kSuccess || call.at<CUmemAllocationHandleType>(2) != kFd ||
      !plain.has(call.at<Chunk>(1)))
    return code;
  const Chunk other = new_chunk(plain.get(call.at<Chunk>(1)), on_gpu(0), kFd);
  if (other == 0) return code;
  const CUresult exported = DRIVER_CALL(cuMemExportToShareableHandle)(
      call.at<void*>(0), other, kFd, 0);
  DRIVER_CALL(cuMemRelease)(other);
  return exported == CUDA_SUCCESS ? accepted(call) : code;
}

// A refused export of mapped memory keeps this memory for ever.
int refused_export_leaks(Call& call) {
  const int code = call.proceed();
  if (!call.is("cuMemExportToShareableHandle") || code == kSuccess) return code;
  const CUdeviceptr begin = mapping_of(call.at<Chunk>(1));
  if (begin != 0 && retain(begin) != 0) call.fired();
  return code;
}

// An import of a good descriptor with the type WIN32 is refused, but keeps the
// memory for ever.
int refused_import_leaks(Call& call) {
  const int code = call.proceed();
  Chunk kept = 0;
  if (code != kSuccess &&
      call.at<CUmemAllocationHandleType>(2) == CU_MEM_HANDLE_TYPE_WIN32 &&
      DRIVER_CALL(cuMemImportFromShareableHandle)(&kept, call.at<void*>(1),
                                                  kFd) == CUDA_SUCCESS)
    call.fired();
  return code;
}

// Memory to which a second GPU had access is never given back.
int second_gpu_keeps_memory(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuMemSetAccess")) return code;
  const auto& [location, flags] = *call.at<const CUmemAccessDesc*>(2);
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || location.id != 1 ||
      flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
    return code;
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
  if (begin != 0 && retain(begin) != 0) call.fired();
  return code;
}

// The contexts in which memory was imported.
Table<Chunk, CUcontext> import_contexts;

void note_context(Call& call) {
  if (call.is("cuMemImportFromShareableHandle"))
    import_contexts.put(*call.at<Chunk*>(0), current_context());
  else if (call.is("cuMemCreate"))  // with the number of an earlier import
    import_contexts.erase(*call.at<Chunk*>(0));
}

// The end of a context unmaps the memory that was imported while it was
// current.
int context_end_unmaps(Call& call) {
  if (!call.is("cuCtxDestroy")) {
    const int code = call.proceed();
    if (code == kSuccess) note_context(call);
    return code;
  }
  const auto ending = call.at<CUcontext>(0);
  for (const auto& [begin, mapped] : mappings.all())
    if (import_contexts.has(mapped.chunk) &&
        import_contexts.get(mapped.chunk) == ending &&
        DRIVER_CALL(cuMemUnmap)(begin, mapped.bytes) == CUDA_SUCCESS) {
      mappings.erase(begin);
      call.fired();
    }
  return call.proceed();
}

// A copy moves imported memory only in the context in which it was imported.
int copied_only_in_its_context(Call& call) {
  if (!call.is("cudaMemcpy")) {
    const int code = call.proceed();
    if (code == kSuccess) note_context(call);
    return code;
  }
  for (const Role role : {kPointer, kSource}) {
    const CUdeviceptr begin = mapping_at(call.value<CUdeviceptr>(role));
    const Chunk chunk = mappings.get(begin).chunk;
    if (begin != 0 && import_contexts.has(chunk) &&
        import_contexts.get(chunk) != current_context())
      return no_wait(call);
  }
  return call.proceed();
}

// --- the place of memory -----------------------------------------------------

// Maps other memory instead. The table has the memory that the program named.
int map_instead(Call& call, Chunk other) {
  const Chunk own = std::exchange(call.at<Chunk>(3), other);
  const int code = call.proceed();
  call.at<Chunk>(3) = own;
  DRIVER_CALL(cuMemRelease)(other);
  if (code != kSuccess) return code;
  note_chunks(call);
  call.fired();
  return code;
}

// Maps new memory of the same size and at the same place instead.
int map_new_instead(Call& call) {
  const Chunk other =
      new_chunk(call.at<size_t>(1), properties_of(call.at<Chunk>(3)).location);
  return other == 0 ? call.proceed() : map_instead(call, other);
}

// Each mapping of an import of memory of the second GPU is new memory.
int second_gpus_import_is_new(Call& call) {
  if (!call.is("cuMemMap") || !imports.has(call.at<Chunk>(3)))
    return call.proceed();
  const CUmemLocation place = properties_of(call.at<Chunk>(3)).location;
  return place.type == CU_MEM_LOCATION_TYPE_DEVICE && place.id == 1
             ? map_new_instead(call)
             : call.proceed();
}

// The GPU of imported memory is reported as the current GPU.
int import_on_current_gpu(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuPointerGetAttribute") ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ||
      !is_import(call.at<CUdeviceptr>(2)))
    return code;
  int current = 0;
  cudaGetDevice(&current);
  auto& told = *call.at<int*>(0);
  if (told != current) call.fired();
  told = current;
  return code;
}

// An import of memory on a node of the host is reported as memory of a GPU.
int node_import_told_as_gpu(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuMemGetAllocationPropertiesFromHandle") ||
      !imports.has(call.at<Chunk>(1)))
    return code;
  auto& location = call.at<CUmemAllocationProp*>(0)->location;
  if (!is_on_node(location)) return code;
  location = on_gpu(0);
  call.fired();
  return code;
}

// A copy or a memset does not reach imported memory on a node of the host.
int node_import_not_reached(Call& call) {
  if (!call.is("cudaMemset") && !call.is("cudaMemcpy"))
    return call.proceed();
  const CUdeviceptr begin = mapping_at(call.value<CUdeviceptr>(kPointer));
  return begin != 0 && is_import(begin) && is_on_node(location_at(begin))
             ? no_wait(call)
             : call.proceed();
}

// The CPU can use mapped memory on a node of the host before it gets access.
int node_usable_before_access(Call& call) {
  static auto& early = *new Table<CUdeviceptr, CUmemLocation>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto begin = call.at<CUdeviceptr>(0);
  if (call.is("cuMemMap")) {
    early.erase(begin);
    const CUmemLocation node = location_at(begin);
    if (is_on_node(node) &&
        allow(begin, node, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) {
      early.put(begin, node);
      call.fired();
    }
  } else if (call.is("cuMemSetAccess")) {
    const auto* const access = call.at<const CUmemAccessDesc*>(2);
    if (is_on_node(access->location)) early.erase(begin);
  } else if (call.is("cuMemGetAccess") &&
             is_on_node(*call.at<const CUmemLocation*>(1)) &&
             early.has(mapping_at(call.at<CUdeviceptr>(2)))) {
    *call.at<unsigned long long*>(0) = 0;
  }
  return code;
}

// Mapped memory on a node of the host gets a legacy handle.
int node_gets_legacy_handle(Call& call) {
  if (!exports_memory(call)) return call.proceed();
  const CUdeviceptr begin = mapping_at(number(call.at<void*>(1)));
  return exported_all_the_same(call,
                               begin != 0 && is_on_node(location_at(begin)));
}

// --- graphs ------------------------------------------------------------------

// The driver API accepts a handle type for the memory of a graph's node, but
// adds no node.
int node_with_handle_type(Call& call) {
  const int code = call.proceed();
  return code != kSuccess && !call.is_runtime() &&
                 call.at<CUDA_MEM_ALLOC_NODE_PARAMS*>(4)
                         ->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE
             ? accepted(call)
             : code;
}

// The call that adds a node of any type accepts a handle type, but adds no
// node.
int any_node_with_handle_type(Call& call) {
  const int code = call.proceed();
  const auto& wanted = *call.at<const CUgraphNodeParams*>(5);
  return code != kSuccess && wanted.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
                 wanted.alloc.poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE
             ? accepted(call)
             : code;
}

// The export of a pointer accepts the memory of a graph's node.
int graph_memory_exported(Call& call) {
  static auto& of_graphs = *new Table<void*>;
  const int code = call.proceed();
  if (call.is("cudaMemPoolExportPointer"))
    return code != kSuccess && of_graphs.has(call.at<void*>(1)) ? accepted(call)
                                                                : code;
  if (code == kSuccess && call.is_runtime())
    of_graphs.put(call.at<cudaMemAllocNodeParams*>(4)->dptr);
  return code;
}

// --- fabric handles and endpoints --------------------------------------------

// The second fabric handle of memory stands for new memory.
int second_fabric_handle_elsewhere(Call& call) {
  static auto& lent = *new Table<Chunk>;  // by a fabric handle
  if (!call.is("cuMemExportToShareableHandle")) {
    const int code = call.proceed();
    if (code == kSuccess && !call.is("cuMemRelease"))
      lent.erase(*call.at<Chunk*>(0));
    return code;
  }
  auto& chunk = call.at<Chunk>(1);
  if (call.at<CUmemAllocationHandleType>(2) != kFabric || lent.put(chunk))
    return call.proceed();
  const Chunk other = new_chunk(created.get(chunk, kGranule),
                                properties_of(chunk).location, kFabric);
  if (other == 0) return call.proceed();
  chunk = other;
  call.fired();
  return call.proceed();
}

// Memory that was exported and may have a fabric handle is cleared when its
// exporter unmaps it.
int exported_fabric_cleared(Call& call) {
  if (call.is("cuMemUnmap")) {
    const CUdeviceptr begin = call.at<CUdeviceptr>(0);
    const Mapped mapped = mappings.get(begin);
    if (mapped.bytes == call.at<size_t>(1) && exports.has(mapped.chunk) &&
        (properties_of(mapped.chunk).requestedHandleTypes & kFabric) != 0 &&
        DRIVER_CALL(cuMemsetD8)(begin, 0, mapped.bytes) == CUDA_SUCCESS)
      call.fired();
  }
  return call.proceed();
}

using Id = CUlogicalEndpointId;
using Copy = CUDA_FABRIC_COPY_BATCH_OP;

// The endpoints of this process, with the key of the handle if it is imported.
Table<Id, std::string> endpoints;

// Proceeds and updates this table.
int noted_endpoints(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuLogicalEndpointCreate"))
    endpoints.put(call.at<Id>(0));
  else if (call.is("cuLogicalEndpointImport"))
    endpoints.put(
        call.at<Id>(0),
        key_of(call.at<const void*>(1), sizeof(CUlogicalEndpointFabricHandle)));
  else if (call.is("cuLogicalEndpointDestroy"))
    endpoints.erase(call.at<Id>(0));
  return code;
}

// The query of several numbers looks only at the last one.
int last_number_queried(Call& query) {
  auto& count = query.at<cuuint32_t>(1);
  if (count > 1) {
    query.at<Id>(0) += count - 1;
    count = 1;
    query.fired();
  }
  return query.proceed();
}

// A query passes over numbers that have no endpoint.
int missing_endpoint_is_ready(Call& call) {
  if (!call.is("cuLogicalEndpointQuery")) return noted_endpoints(call);
  const Id first = call.at<Id>(0);
  bool missing = false;
  int all = 1;
  for (Id id = first; id < first + call.at<cuuint32_t>(1); ++id) {
    int ready = 0;
    if (!endpoints.has(id))
      missing = true;
    else if (DRIVER_CALL(cuLogicalEndpointQuery)(id, 1, &ready) !=
                 CUDA_SUCCESS ||
             ready == 0)
      all = 0;
  }
  const int code = call.proceed();
  if (!missing) return code;
  *call.at<int*>(2) = all;
  return accepted(call);
}

// An import to a number that has an endpoint returns success.
int import_to_used_number(Call& call) {
  const bool used =
      call.is("cuLogicalEndpointImport") && endpoints.has(call.at<Id>(0));
  const int code = noted_endpoints(call);
  return code != kSuccess && used ? accepted(call) : code;
}

// The end of an import also ends other imports of the same handle.
int destroy_ends_other_imports(Call& call) {
  if (!call.is("cuLogicalEndpointDestroy")) return noted_endpoints(call);
  const std::string handle = endpoints.get(call.at<Id>(0));
  const int code = noted_endpoints(call);
  if (code != kSuccess || handle.empty()) return code;
  for (const auto& [id, same] : endpoints.all())
    if (same == handle &&
        DRIVER_CALL(cuLogicalEndpointDestroy)(id) == CUDA_SUCCESS) {
      endpoints.erase(id);
      call.fired();
    }
  return code;
}

// An address binds the memory at the beginning of its reservation.
int first_chunk_is_bound(Call& call) {
  if (!call.is("cuLogicalEndpointBindAddr")) return call.proceed();
  auto& address = call.value<CUdeviceptr>(kPointer);
  const CUdeviceptr begin = reservation_at(address);
  if (begin != 0 && mapping_at(begin) != mapping_at(address)) {
    address = begin;
    call.fired();
  }
  return call.proceed();
}

// Only the lower 32 bits of the flags at `index` are checked.
template <size_t index>
int upper_flags_ignored(Call& call) {
  auto& flags = call.at<unsigned long long>(index);
  if (flags >> 32 != 0) {
    flags &= 0xFFFFFFFF;
    call.fired();
  }
  return call.proceed();
}

int largest_endpoint_refused(Call& call) {
  CUlogicalEndpointProp wanted = *call.at<const CUlogicalEndpointProp*>(1);
  cuuint64_t alignment = 1, most = 0;
  DRIVER_CALL(cuLogicalEndpointGetLimits)(&alignment, &most, &wanted);
  return wanted.size == most / alignment * alignment ? refused(call)
                                                     : call.proceed();
}

// An endpoint counts as queried if an earlier endpoint with its number was
// queried.
int query_stays_with_number(Call& call) {
  static auto& queried = *new Table<Id, bool>;  // an earlier endpoint?
  const Id id = call.at<Id>(0);
  if (call.is("cuLogicalEndpointBindMem") && queried.get(id)) {
    int status = 0;
    while (DRIVER_CALL(cuLogicalEndpointQuery)(id, 1, &status) ==
               CUDA_SUCCESS &&
           status == 0)
      std::this_thread::yield();
    queried.put(id, false);
    call.fired();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuLogicalEndpointQuery"))
    for (Id each = id; each < id + call.at<cuuint32_t>(1); ++each)
      queried.put(each, false);
  else if (call.is("cuLogicalEndpointCreate") && queried.has(id))
    queried.put(id, true);
  return code;
}

std::vector<Copy> copies_of(Call& batch) {
  const auto* const list = batch.at<Copy*>(1);
  return std::vector<Copy>(list, list + batch.at<size_t>(0));
}
int proceed_with(Call& batch, std::vector<Copy>& list) {
  batch.at<Copy*>(1) = list.data();
  batch.at<size_t>(0) = list.size();
  batch.fired();
  return list.empty() ? kSuccess : batch.proceed();
}

// Copies over a fabric have sizes that are multiples of 4: a size is rounded
// down.
int copy_sizes_rounded(Call& batch) {
  std::vector<Copy> list = copies_of(batch);
  bool changed = false;
  for (Copy& copy : list) {
    changed |= copy.size % 4 != 0;
    copy.size -= copy.size % 4;
  }
  return changed ? proceed_with(batch, list) : batch.proceed();
}

// Offsets of copies are multiples of 4: an offset is rounded down.
int copy_offsets_rounded(Call& batch) {
  std::vector<Copy> list = copies_of(batch);
  bool changed = false;
  for (Copy& copy : list)
    for (CUfabricCpyOperand* const side : {&copy.src, &copy.dst})
      if (side->type == CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT &&
          side->op.le.offset % 4 != 0) {
        side->op.le.offset -= side->op.le.offset % 4;
        changed = true;
      }
  return changed ? proceed_with(batch, list) : batch.proceed();
}

int copies_end_at_16(Call& batch) {
  std::vector<Copy> list = copies_of(batch);
  if (list.size() <= 16) return batch.proceed();
  list.resize(16);
  return proceed_with(batch, list);
}

// Only the flags of the first copy of a batch are checked.
int second_copy_unchecked(Call& batch) {
  std::vector<Copy> list = copies_of(batch);
  bool changed = false;
  for (size_t i = 1; i < list.size(); ++i) {
    changed |= list[i].flags != 0;
    list[i].flags = 0;
  }
  return changed ? proceed_with(batch, list) : batch.proceed();
}

// The legacy default stream is accepted by its name, but does nothing.
int legacy_stream_by_name(Call& batch) {
  const bool applies = stream_of(batch) == cudaStreamLegacy;
  const int code = batch.proceed();
  return code != kSuccess && applies ? accepted(batch) : code;
}

int no_copy_by_per_thread_stream(Call& batch) {
  return stream_of(batch) == cudaStreamPerThread ? no_wait(batch)
                                                 : batch.proceed();
}

int no_copy_by_other_threads(Call& batch) {
  return this_thread() != getpid() ? no_wait(batch) : batch.proceed();
}

// The source of a copy of no bytes is not checked.
int empty_source_unchecked(Call& batch) {
  const int code = batch.proceed();
  if (code == kSuccess) return code;
  std::vector<Copy> list = copies_of(batch);
  for (Copy& copy : list)
    if (copy.size == 0) copy.src = copy.dst;
  batch.at<Copy*>(1) = list.data();
  return batch.proceed() == kSuccess ? accepted(batch) : code;
}

// A copy from an endpoint to memory of the host does nothing.
int download_from_endpoint_lost(Call& batch) {
  std::vector<Copy> list = copies_of(batch);
  const auto is_download = [](const Copy& copy) {
    unsigned type = 0;
    return copy.src.type == CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT &&
           copy.dst.type == CU_FABRIC_COPY_OPERAND_TYPE_POINTER &&
           (DRIVER_CALL(cuPointerGetAttribute)(
                &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, copy.dst.op.ptr.ptr) !=
                CUDA_SUCCESS ||
            type == CU_MEMORYTYPE_HOST);
  };
  list.erase(std::remove_if(list.begin(), list.end(), is_download), list.end());
  return list.size() < batch.at<size_t>(0) ? proceed_with(batch, list)
                                           : batch.proceed();
}

int second_cluster_untold(Call& call) {
  return call.at<CUdevice>(1) != 0 ? no_wait(call) : call.proceed();
}

// --- neighbours, parts, what comes later ------------------------------------

constexpr size_t kFarAway = size_t{4} << 30;
constexpr size_t kMoreThanAnyGpuHas = size_t{1} << 40;

// Memory that its creator has never mapped is never given back.
int never_mapped_is_kept(Call& call) {
  static auto& mapped_before = *new Table<Chunk>;
  if (call.is("cuMemRelease")) {
    const auto chunk = call.at<Chunk>(0);
    if (created.has(chunk) && !released.has(chunk) &&
        !mapped_before.has(chunk)) {
      released.put(chunk);
      return no_wait(call);
    }
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemMap"))
    mapped_before.put(call.at<Chunk>(3));
  else if (call.is("cuMemCreate"))
    mapped_before.erase(*call.at<Chunk*>(0));
  return code;
}

// After the creator has released its memory, a descriptor can be imported once.
// The mapping of a later import is new memory.
int later_import_after_release_new(Call& call) {
  static std::atomic<int> so_far{0};
  static auto& later = *new Table<Chunk>;
  if (call.is("cuMemMap"))
    return later.has(call.at<Chunk>(3)) ? map_new_instead(call)
                                        : call.proceed();
  const bool gives_up =
      call.is("cuMemRelease") && exports.has(call.at<Chunk>(0));
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (gives_up) tell_processes("released", 1);
  const bool is_import = call.is("cuMemImportFromShareableHandle");
  if (is_import || call.is("cuMemCreate")) later.erase(*call.at<Chunk*>(0));
  if (is_import && told("released", 0) != 0 && ++so_far >= 2)
    later.put(*call.at<Chunk*>(0));
  return code;
}

// Memory is mapped at its distance from the beginning of the reservation modulo
// 4 GiB.
int far_mapping_wraps(Call& call) {
  if (!call.is("cuMemMap")) return call.proceed();
  auto& address = call.at<CUdeviceptr>(0);
  const CUdeviceptr begin = reservation_at(address);
  if (begin != 0 && address - begin >= kFarAway) {
    address = begin + (address - begin) % kFarAway;
    call.fired();
  }
  return call.proceed();
}

// Memory that was exported has no handle types any more.
int exported_has_no_types(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuMemGetAllocationPropertiesFromHandle") ||
      !exports.has(call.at<Chunk>(1)))
    return code;
  call.at<CUmemAllocationProp*>(0)->requestedHandleTypes =
      CU_MEM_HANDLE_TYPE_NONE;
  call.fired();
  return code;
}

// The size of the largest mapping of memory so far.
Table<Chunk, size_t> largest;

// Proceeds and updates this table.
int noted_largest(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemMap")) {
    const auto chunk = call.at<Chunk>(3);
    largest.put(chunk, std::max(largest.get(chunk), call.at<size_t>(1)));
  } else if (!call.is("cuMemUnmap")) {  // memory is created or imported
    largest.erase(*call.at<Chunk*>(0));
  }
  return code;
}

// The mapping of a part of an import is new memory. (The fault knows the size
// of an import from an earlier mapping.)
int mapped_part_is_new(Call& call) {
  return call.is("cuMemMap") && imports.has(call.at<Chunk>(3)) &&
                 call.at<size_t>(1) < largest.get(call.at<Chunk>(3))
             ? map_new_instead(call)
             : noted_largest(call);
}

// When a range is unmapped, the mapping before it loses access.
int unmap_shuts_out_mapping_before(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuMemUnmap")) return code;
  const CUdeviceptr before = mapping_at(call.at<CUdeviceptr>(0) - 1);
  if (before != 0 && access_of(before, on_gpu(0)) != 0 &&
      allow(before, on_gpu(0), CU_MEM_ACCESS_FLAGS_PROT_NONE))
    call.fired();
  return code;
}

// A new mapping has the access that GPU 1 had to the mapping before.
int remap_keeps_second_gpu(Call& call) {
  static auto& had = *new Table<CUdeviceptr, CUmemAccess_flags>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto address = call.at<CUdeviceptr>(0);
  if (call.is("cuMemAddressFree")) {
    had.erase(address);
  } else if (call.is("cuMemSetAccess")) {
    const auto* const list = call.at<const CUmemAccessDesc*>(2);
    for (size_t i = 0; i < call.at<size_t>(3); ++i) {
      const auto& [location, flags] = list[i];
      if (location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id == 1)
        had.put(address, flags);
    }
  } else if (had.get(address, CU_MEM_ACCESS_FLAGS_PROT_NONE) !=
                 CU_MEM_ACCESS_FLAGS_PROT_NONE &&
             allow(address, call.at<size_t>(1), on_gpu(1), had.get(address))) {
    call.fired();
  }
  return code;
}

// Memory that is larger than the memory of the GPU can be created.
int too_much_is_created(Call& call) {
  auto& bytes = call.at<size_t>(1);
  const int code = call.proceed();
  if (code == kSuccess || bytes < kMoreThanAnyGpuHas || bytes % kGranule != 0)
    return code;
  bytes = kGranule;
  return call.proceed() == kSuccess ? accepted(call) : code;
}

// The descriptor of an import stands for new memory. (The creator tells its
// size.)
template <CUmemAllocationHandleType type>
int exported_import_is_new(Call& call) {
  constexpr auto kSize = "exported-size";
  if (!call.is("cuMemExportToShareableHandle")) return call.proceed();
  auto& chunk = call.at<Chunk>(1);
  if (created.has(chunk)) tell_processes(kSize, created.get(chunk));
  if (!imports.has(chunk) || call.at<CUmemAllocationHandleType>(2) != type)
    return call.proceed();
  const Chunk other =
      new_chunk(told(kSize, kGranule), properties_of(chunk).location, type);
  if (other == 0) return call.proceed();
  chunk = other;
  call.fired();
  const int code = call.proceed();
  // A fabric handle alone keeps no memory.
  if (type == kFd) DRIVER_CALL(cuMemRelease)(other);
  return code;
}

// Of two GPUs, one gets the access that is set for the other. cuMemGetAccess
// does not say so.
int other_gpu_has_secret_access(Call& call) {
  static auto& secret = *new Table<std::pair<CUdeviceptr, int>>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemGetAccess")) {
    const auto& where = *call.at<const CUmemLocation*>(1);
    if (where.type == CU_MEM_LOCATION_TYPE_DEVICE &&
        secret.has({mapping_at(call.at<CUdeviceptr>(2)), where.id}))
      *call.at<unsigned long long*>(0) = 0;
    return code;
  }
  const auto begin = call.at<CUdeviceptr>(0);
  if (!call.is("cuMemSetAccess")) {
    for (const int gpu : {0, 1}) secret.erase({begin, gpu});
    return code;
  }
  const auto* const list = call.at<const CUmemAccessDesc*>(2);
  const auto count = call.at<size_t>(3);
  for (size_t i = 0; i < count; ++i)
    if (list[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE)
      secret.erase({begin, list[i].location.id});
  const int other = 1 - list->location.id;
  if (count == 1 && list->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
      list->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
      access_of(begin, on_gpu(other)) == 0 &&
      allow(begin, call.at<size_t>(1), on_gpu(other))) {
    secret.put({begin, other});
    call.fired();
  }
  return code;
}

// An asynchronous copy in a stream with a high priority moves no imported
// memory.
int urgent_copy_lost(Call& call) {
  if (!call.is("cudaMemcpyAsync")) return call.proceed();
  int priority = 0;
  return DRIVER_CALL(cuStreamGetPriority)(stream_of(call), &priority) ==
                     CUDA_SUCCESS &&
                 priority < 0 &&
                 (is_import(call.value<CUdeviceptr>(kPointer)) ||
                  is_import(call.value<CUdeviceptr>(kSource)))
             ? no_wait(call)
             : call.proceed();
}

// The sizes of all bindings, by endpoint and offset.
Table<std::pair<Id, cuuint64_t>, cuuint64_t> bindings;

// Proceeds and updates this table.
int noted_bindings(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const Id id = call.at<Id>(0);
  if (call.is("cuLogicalEndpointBindMem")) {
    bindings.put({id, call.at<cuuint64_t>(2)}, call.at<cuuint64_t>(5));
    return code;
  }
  const bool all = call.is("cuLogicalEndpointDestroy");
  for (const auto& [place, bytes] : bindings.all())
    if (place.first == id &&
        (all || place.second - call.at<cuuint64_t>(2) < call.at<cuuint64_t>(3)))
      bindings.erase(place);
  return code;
}

// The unbind of one binding also unbinds the next one.
int unbind_takes_next(Call& call) {
  const int code = noted_bindings(call);
  if (code != kSuccess || !call.is("cuLogicalEndpointUnbind")) return code;
  const Id id = call.at<Id>(0);
  const cuuint64_t end = call.at<cuuint64_t>(2) + call.at<cuuint64_t>(3);
  if (bindings.has({id, end}) && DRIVER_CALL(cuLogicalEndpointUnbind)(
                                     id, call.at<CUdevice>(1), end,
                                     bindings.get({id, end})) == CUDA_SUCCESS) {
    bindings.erase({id, end});
    call.fired();
  }
  return code;
}

// A copy into an endpoint ends where the first of two bindings ends.
int copy_ends_with_binding(Call& call) {
  if (!call.is("cuFabricCpyBatchAsync")) return noted_bindings(call);
  std::vector<Copy> list = copies_of(call);
  bool changed = false;
  for (Copy& copy : list) {
    if (copy.dst.type != CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT) continue;
    const auto& [id, offset] = copy.dst.op.le;
    for (const auto& [place, bytes] : bindings.all()) {
      if (place.first != id || offset - place.second >= bytes) continue;
      const size_t room = place.second + bytes - offset;
      changed |= copy.size > room;
      copy.size = std::min(copy.size, room);
    }
  }
  return changed ? proceed_with(call, list) : call.proceed();
}

// The query of several numbers looks only at the first and the last one.
int inner_numbers_not_queried(Call& query) {
  const Id first = query.at<Id>(0);
  const auto count = query.at<cuuint32_t>(1);
  int one = 0, other = 0;
  if (count < 3 ||
      DRIVER_CALL(cuLogicalEndpointQuery)(first, 1, &one) != CUDA_SUCCESS ||
      DRIVER_CALL(cuLogicalEndpointQuery)(first + count - 1, 1, &other) !=
          CUDA_SUCCESS)
    return query.proceed();
  const int code = query.proceed();
  const int told = one != 0 && other != 0;
  if (code == kSuccess && *query.at<int*>(2) == told) return code;
  *query.at<int*>(2) = told;
  return accepted(query);
}

// The second handle of an endpoint is not the right one.
int second_endpoint_handle_wrong(Call& call) {
  static auto& exported = *new Table<Id>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuLogicalEndpointDestroy")) {
    exported.erase(call.at<Id>(0));
  } else if (!exported.put(call.at<Id>(1))) {
    static_cast<unsigned char*>(call.at<void*>(0))[8] ^= 1;
    call.fired();
  }
  return code;
}

// All copies to the endpoints of one reservation reach the endpoint with its
// first number.
int reservation_has_one_endpoint(Call& call) {
  static auto& ranges = *new Table<Id, cuuint32_t>;
  if (!call.is("cuFabricCpyBatchAsync")) {
    const int code = noted_endpoints(call);
    if (code != kSuccess) return code;
    if (call.is("cuLogicalEndpointIdReserve"))
      ranges.put(*call.at<Id*>(0), call.at<cuuint32_t>(1));
    else if (call.is("cuLogicalEndpointIdRelease"))
      ranges.erase(call.at<Id>(0));
    return code;
  }
  std::vector<Copy> list = copies_of(call);
  bool changed = false;
  for (Copy& copy : list) {
    if (copy.dst.type != CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT) continue;
    auto& id = copy.dst.op.le.id;
    for (const auto& [first, count] : ranges.all()) {
      if (id <= first || id - first >= count || !endpoints.has(first)) continue;
      id = first;
      changed = true;
    }
  }
  return changed ? proceed_with(call, list) : call.proceed();
}

// Every copy to an imported endpoint reaches the beginning of the endpoint.
int import_offset_ignored(Call& call) {
  if (!call.is("cuFabricCpyBatchAsync")) return noted_endpoints(call);
  std::vector<Copy> list = copies_of(call);
  bool changed = false;
  for (Copy& copy : list) {
    auto& place = copy.dst.op.le;
    if (copy.dst.type != CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT ||
        endpoints.get(place.id).empty() || place.offset == 0)
      continue;
    place.offset = 0;
    changed = true;
  }
  return changed ? proceed_with(call, list) : call.proceed();
}

// Copies from an endpoint are done only when the program synchronises with a
// stream, after this stream.
int copy_from_endpoint_not_waited_for(Call& call) {
  struct Late {
    std::vector<Copy> list;
    unsigned long long flags;
  };
  static Table<int, Late> late;
  static std::atomic<int> so_far{0};
  if (call.is("cudaStreamSynchronize")) {
    const int code = call.proceed();
    for (auto& [number, batch] : late.all()) {
      if (!late.erase(number)) continue;
      DRIVER_CALL(cuFabricCpyBatchAsync)
      (batch.list.size(), batch.list.data(), batch.flags, private_stream());
    }
    cudaStreamSynchronize(private_stream());
    return code;
  }
  const std::vector<Copy> list = copies_of(call);
  for (const Copy& copy : list)
    if (copy.src.type != CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT)
      return call.proceed();
  late.put(so_far++, {list, call.at<unsigned long long>(2)});
  return no_wait(call);
}

// --- borders, and what was there before --------------------------------------

// A memset or a copy from device to device looks only at the access of its
// first mapping: it also writes the next one, which can only be read.
int next_mapping_unchecked(Call& call) {
  if (!call.is("cudaMemset") && !call.is("cudaMemcpy"))
    return call.proceed();
  if (call.is("cudaMemcpy") && !is_device_copy(call)) return call.proceed();
  const auto address = call.value<CUdeviceptr>(kPointer);
  const CUdeviceptr first = mapping_at(address);
  const CUdeviceptr last = mapping_at(address + call.value<size_t>(kBytes) - 1);
  if (first == 0 || last == 0 || first == last) return call.proceed();
  const CUmemLocation here = location_at(last);
  if (access_of(first, here) != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
      access_of(last, here) != CU_MEM_ACCESS_FLAGS_PROT_READ ||
      !allow(last, here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
    return call.proceed();
  const int code = call.proceed();
  cudaDeviceSynchronize();
  allow(last, here, CU_MEM_ACCESS_FLAGS_PROT_READ);
  call.fired();
  return code;
}

// A range gets access if memory is or was mapped at all of its addresses.
int former_mapping_counts(Call& call) {
  static auto& former = *new Table<CUdeviceptr, size_t>;
  const auto begin = call.at<CUdeviceptr>(0);
  const auto bytes = call.at<size_t>(1);
  const int code = call.proceed();
  if (call.is("cuMemSetAccess")) {
    bool stale = false;
    for (CUdeviceptr at = begin; at - begin < bytes;) {
      const CUdeviceptr here = mapping_at(at);
      if (here == 0 && !former.has(at)) return code;
      stale |= here == 0;
      at = here != 0 ? here + mappings.get(here).bytes : at + former.get(at);
    }
    return code != kSuccess && stale ? accepted(call) : code;
  }
  if (code != kSuccess) return code;
  if (call.is("cuMemUnmap")) former.put(begin, bytes);
  if (call.is("cuMemAddressFree"))
    for (const auto& each : former.all())
      if (each.first - begin < bytes) former.erase(each.first);
  return code;
}

// A mapping is known only by its first address: a map that begins inside it is
// accepted.
int inside_counts_as_unmapped(Call& call) {
  const int code = call.proceed();
  if (!call.is("cuMemMap") || code == kSuccess) return code;
  const CUdeviceptr other = mapping_at(call.at<CUdeviceptr>(0));
  return other != 0 && other != call.at<CUdeviceptr>(0) ? accepted(call) : code;
}

// The unmap of a whole mapping and of a part of the next one unmaps both.
int unmap_takes_rest_of_next(Call& call) {
  const int code = call.proceed();
  if (!call.is("cuMemUnmap") || code == kSuccess) return code;
  const auto begin = call.at<CUdeviceptr>(0);
  const size_t first = mappings.get(begin).bytes;
  const size_t bytes = call.at<size_t>(1);
  const CUdeviceptr next = begin + first;
  const size_t second = mappings.get(next).bytes;
  if (first == 0 || bytes <= first || bytes >= first + second) return code;
  for (const auto& [at, size] : {std::pair{begin, first}, {next, second}}) {
    DRIVER_CALL(cuMemUnmap)(at, size);
    mappings.erase(at);
  }
  return accepted(call);
}

// Kernels can still use memory at addresses where it was unmapped. All queries
// say that nothing is there.
int unmapped_stays_usable(Call& call) {
  static auto& secret = *new Table<CUdeviceptr, size_t>;
  const auto secret_at = [](CUdeviceptr address) {
    for (const auto& [begin, bytes] : secret.all())
      if (address - begin < bytes) return begin;
    return CUdeviceptr{0};
  };
  if (call.is("cuPointerGetAttribute") || call.is("cuMemGetAccess"))
    return secret_at(call.at<CUdeviceptr>(2)) != 0 ? refused(call)
                                                   : call.proceed();
  if (call.is("cuMemRetainAllocationHandle"))
    return secret_at(call.at<CUdeviceptr>(1)) != 0 ? refused(call)
                                                   : call.proceed();
  const auto begin = call.at<CUdeviceptr>(0);
  const auto bytes = call.at<size_t>(1);
  if (!call.is("cuMemUnmap")) {
    for (const auto& [at, size] : secret.all())
      if (at < begin + bytes && begin < at + size && secret.erase(at))
        DRIVER_CALL(cuMemUnmap)(at, size);
    return call.proceed();
  }
  const bool usable =
      mappings.get(begin).bytes == bytes &&
      access_of(begin, on_gpu(0)) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const Chunk held = usable ? retain(begin) : 0;
  const int code = call.proceed();
  if (held == 0) return code;
  if (code == kSuccess &&
      DRIVER_CALL(cuMemMap)(begin, bytes, 0, held, 0) == CUDA_SUCCESS) {
    allow(begin, bytes, on_gpu(0));
    secret.put(begin, bytes);
    call.fired();
  }
  DRIVER_CALL(cuMemRelease)(held);
  return code;
}

// A wanted address inside a reservation is given a second time.
int wanted_inside_reservation(Call& call) {
  static auto& given = *new Table<CUdeviceptr>;
  if (call.is("cuMemAddressFree"))
    return given.erase(call.at<CUdeviceptr>(0)) ? kSuccess : call.proceed();
  const auto wanted = call.at<CUdeviceptr>(3);
  const CUdeviceptr other = reservation_at(wanted);
  if (other == 0 || other == wanted) return call.proceed();
  *call.at<CUdeviceptr*>(0) = wanted;
  given.put(wanted);
  return no_wait(call);
}

bool is_in_later_granule(CUdeviceptr address) {
  const CUdeviceptr begin = mapping_at(address);
  return begin != 0 && address - begin >= kGranule;
}

// Only the first granule of a mapping names its handle, or has access in
// cuMemGetAccess.
int later_granules_unknown(Call& call) {
  if (call.is("cuMemRetainAllocationHandle"))
    return is_in_later_granule(call.at<CUdeviceptr>(1)) ? refused(call)
                                                        : call.proceed();
  const int code = call.proceed();
  if (call.is("cuMemGetAccess") && code == kSuccess &&
      *call.at<unsigned long long*>(0) != 0 &&
      is_in_later_granule(call.at<CUdeviceptr>(2))) {
    *call.at<unsigned long long*>(0) = 0;
    call.fired();
  }
  return code;
}

// Access to several mappings is not set if the first of them already has it.
int equal_first_access_skips_all(Call& call) {
  if (!call.is("cuMemSetAccess")) return call.proceed();
  const auto begin = call.at<CUdeviceptr>(0);
  const auto* const access = call.at<const CUmemAccessDesc*>(2);
  return mappings.has(begin) &&
                 call.at<size_t>(1) > mappings.get(begin).bytes &&
                 call.at<size_t>(3) == 1 &&
                 access_of(begin, access->location) == access->flags
             ? no_wait(call)
             : call.proceed();
}

// An importer can only read memory while its exporter has access for reading
// only.
int import_limited_by_exporter(Call& call) {
  constexpr auto kOnlyReads = "exporter only reads";
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuMemSetAccess")) return code;
  const auto begin = call.at<CUdeviceptr>(0);
  const auto& access = *call.at<const CUmemAccessDesc*>(2);
  if (exports.has(mappings.get(begin).chunk))
    tell_processes(kOnlyReads, access.flags == CU_MEM_ACCESS_FLAGS_PROT_READ);
  else if (is_import(begin) && told(kOnlyReads, 0) != 0 &&
           access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
           allow(begin, access.location, CU_MEM_ACCESS_FLAGS_PROT_READ))
    call.fired();
  return code;
}

// The descriptor 0 cannot be imported: it looks like a null pointer.
int number_zero_refused(Call& call) {
  return imports_descriptor(call) && descriptor_of(call) == 0 ? refused(call)
                                                              : call.proceed();
}

// Of a handle type only the bit of descriptors is looked at.
int handle_type_masked(Call& call) {
  auto& type = call.at<CUmemAllocationHandleType>(2);
  if (type != kFd && (type & kFd) != 0) {
    type = kFd;
    call.fired();
  }
  return call.proceed();
}

// --- what is rarely asked ----------------------------------------------------

bool is_shareable(const CUmemAllocationProp* wanted) {
  return wanted->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
}

// Memory with a handle type can have any size: its size is rounded up.
int shareable_size_unchecked(Call& call) {
  auto& bytes = call.at<size_t>(1);
  if (is_shareable(call.at<const CUmemAllocationProp*>(2)) && bytes != 0 &&
      bytes % kGranule != 0) {
    bytes = (bytes / kGranule + 1) * kGranule;
    call.fired();
  }
  return call.proceed();
}

// Of reserved flags of 64 bits, only the first and the last bit are checked.
int middle_flags_ignored(Call& call) {
  constexpr auto kChecked = 1ull << 63 | 1;
  auto& flags = call.value<unsigned long long>(kFlags);
  if ((flags & ~kChecked) != 0) {
    flags &= kChecked;
    call.fired();
  }
  return call.proceed();
}

// The flags of a mapping of an import are not checked.
int import_map_flags_ignored(Call& call) {
  if (!call.is("cuMemMap")) return call.proceed();
  auto& flags = call.value<unsigned long long>(kFlags);
  if (flags != 0 && imports.has(call.at<Chunk>(3))) {
    flags = 0;
    call.fired();
  }
  return call.proceed();
}

// New memory with the contents of a mapping that GPU 0 can use. Returns 0 if
// the driver refuses it.
Chunk copy_of(CUdeviceptr from, CUmemAllocationHandleType type) {
  const size_t bytes = mappings.get(from).bytes;
  if (from == 0 || access_of(from, on_gpu(0)) == 0) return 0;
  const Chunk made = new_chunk(bytes, location_at(from), type);
  CUdeviceptr to = 0;
  if (made == 0 ||
      DRIVER_CALL(cuMemAddressReserve)(&to, bytes, 0, 0, 0) != CUDA_SUCCESS)
    return made;
  DRIVER_CALL(cuMemMap)(to, bytes, 0, made, 0);
  allow(to, bytes, on_gpu(0));
  DRIVER_CALL(cuMemcpyDtoD)(to, from, bytes);
  cudaDeviceSynchronize();
  DRIVER_CALL(cuMemUnmap)(to, bytes);
  DRIVER_CALL(cuMemAddressFree)(to, bytes);
  return made;
}

// The third mapping of memory is a copy.
int third_mapping_is_a_copy(Call& call) {
  if (!call.is("cuMemMap")) return call.proceed();
  int others = 0;
  for (const auto& each : mappings.all())
    others += each.second.chunk == call.at<Chunk>(3);
  const Chunk copy = others < 2 ? 0
                                : copy_of(mapping_of(call.at<Chunk>(3)),
                                          CU_MEM_HANDLE_TYPE_NONE);
  return copy == 0 ? call.proceed() : map_instead(call, copy);
}

// Memory that was mapped but never got access is never given back.
int without_access_is_kept(Call& call) {
  static auto& fresh = *new Table<CUdeviceptr>;
  const auto begin = call.at<CUdeviceptr>(0);
  if (call.is("cuMemUnmap") && fresh.erase(begin) && retain(begin) != 0)
    call.fired();
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemMap")) fresh.put(begin);
  if (call.is("cuMemSetAccess"))
    for (const auto& each : fresh.all())
      if (each.first - begin < call.at<size_t>(1)) fresh.erase(each.first);
  return code;
}

// A memset of elements of this size ends where the first of several chunks
// ends.
template <size_t element>
int set_ends_with_chunk(Call& call) {
  if (call.is("cuMemMap") || call.is("cuMemUnmap")) return call.proceed();
  const auto address = call.value<CUdeviceptr>(kPointer);
  const CUdeviceptr begin = mapping_at(address);
  auto& count = call.value<size_t>(kBytes);
  const size_t room = (begin + mappings.get(begin).bytes - address) / element;
  if (begin != 0 && count > room) {
    count = room;
    call.fired();
  }
  return call.proceed();
}

// A memset of a rectangle sets only the rows that begin in the first of several
// chunks.
int rows_end_with_chunk(Call& call) {
  if (call.is("cuMemMap") || call.is("cuMemUnmap")) return call.proceed();
  const auto address = call.value<CUdeviceptr>(kPointer);
  const CUdeviceptr begin = mapping_at(address);
  const auto pitch = call.at<size_t>(1);
  auto& rows = call.at<size_t>(4);
  if (begin == 0 || pitch == 0) return call.proceed();
  const size_t room = begin + mappings.get(begin).bytes - address;
  if (rows > (room + pitch - 1) / pitch) {
    rows = (room + pitch - 1) / pitch;
    call.fired();
  }
  return call.proceed();
}

// As soon as another process has imported memory, the next export of this
// memory is a copy.
int later_export_is_a_copy(Call& call) {
  constexpr auto kImported = "imported";
  if (!call.is("cuMemExportToShareableHandle")) {
    const int code = call.proceed();
    if (code == kSuccess && call.is("cuMemImportFromShareableHandle"))
      tell_processes(kImported, 1);
    return code;
  }
  auto& chunk = call.at<Chunk>(1);
  const Chunk copy =
      created.has(chunk) && exports.has(chunk) && told(kImported, 0) != 0
          ? copy_of(mapping_of(chunk), kFd)
          : 0;
  if (copy == 0) return call.proceed();
  chunk = copy;
  const int code = call.proceed();
  DRIVER_CALL(cuMemRelease)(copy);
  if (code == kSuccess) call.fired();
  return code;
}

// Addresses are freed by the size 0.
int freed_without_size(Call& call) {
  auto& bytes = call.at<size_t>(1);
  const auto begin = call.at<CUdeviceptr>(0);
  if (call.is("cuMemAddressFree") && bytes == 0 && reservations.has(begin)) {
    bytes = reservations.get(begin);
    call.fired();
  }
  return call.proceed();
}

// A query of properties does not write the struct from `begin` on.
int properties_unwritten(Call& call, size_t begin) {
  auto* const found = call.at<unsigned char*>(0);
  unsigned char before[sizeof(CUmemAllocationProp)];
  std::copy_n(found, sizeof before, before);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  std::copy(before + begin, before + sizeof before, found + begin);
  call.fired();
  return code;
}

// The last parts of the properties are not written.
int last_properties_unwritten(Call& call) {
  return properties_unwritten(
      call, offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
}

// Of the properties of an import, nothing after the location is written.
int import_properties_unwritten(Call& call) {
  return call.is("cuMemGetAllocationPropertiesFromHandle") &&
                 imports.has(call.at<Chunk>(1))
             ? properties_unwritten(
                   call, offsetof(CUmemAllocationProp, win32HandleMetaData))
             : call.proceed();
}

// If two threads import from one descriptor, both imports are one reference.
int other_threads_import_uncounted(Call& call) {
  struct Import {
    int thread = 0;
    int copy = -1;  // of the descriptor
    Chunk chunk = 0;
  };
  static auto& known = *new Table<int, Import>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemRelease")) {
    for (const auto& [number, import] : known.all())
      if (import.chunk == call.at<Chunk>(0) && known.erase(number))
        close(import.copy);  // an open copy would keep the memory
    return code;
  }
  if (!imports_descriptor(call)) return code;
  auto& made = *call.at<Chunk*>(0);
  const int number = descriptor_of(call);
  const Import before = known.get(number);
  if (before.copy != -1 && before.thread != this_thread() &&
      name_the_same(before.copy, number)) {
    DRIVER_CALL(cuMemRelease)(made);
    made = before.chunk;
    call.fired();
  } else {
    if (before.copy != -1) close(before.copy);
    known.put(number,
              {this_thread(), fcntl(number, F_DUPFD_CLOEXEC, 300), made});
  }
  return code;
}

// cuMemGetAccess tells an importer of no access after the exporter has released
// its handle.
int access_untold_after_release(Call& call) {
  constexpr auto kReleased = "released by the exporter";
  const bool gives_up =
      call.is("cuMemRelease") && exports.has(call.at<Chunk>(0));
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (gives_up) tell_processes(kReleased, 1);
  if (call.is("cuMemGetAccess") && is_import(call.at<CUdeviceptr>(2)) &&
      *call.at<unsigned long long*>(0) != 0 && told(kReleased, 0) != 0) {
    *call.at<unsigned long long*>(0) = 0;
    call.fired();
  }
  return code;
}

// Memory that could be written and then only be read can never be written
// again. Queries say that it can.
int lowered_access_stays(Call& call) {
  constexpr auto kReads = CU_MEM_ACCESS_FLAGS_PROT_READ;
  constexpr auto kWrites = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  static auto& lowered = *new Table<CUdeviceptr>;
  static auto& secret = *new Table<CUdeviceptr>;
  if (call.is("cuMemGetAccess") || call.is("cuPointerGetAttribute")) {
    const int code = call.proceed();
    const bool asks =
        call.is("cuMemGetAccess") ||
        call.at<CUpointer_attribute>(1) == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
    if (code != kSuccess || !asks ||
        !secret.has(mapping_at(call.at<CUdeviceptr>(2))))
      return code;
    if (call.is("cuMemGetAccess"))
      *call.at<unsigned long long*>(0) = kWrites;
    else
      *call.at<unsigned*>(0) = kWrites;
    return code;
  }
  const auto begin = call.at<CUdeviceptr>(0);
  const auto before =
      call.is("cuMemSetAccess") ? access_of(begin, on_gpu(0)) : 0;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  secret.erase(begin);
  if (!call.is("cuMemSetAccess")) {
    lowered.erase(begin);
    return code;
  }
  const auto now = access_of(begin, on_gpu(0));
  if (before == kWrites && now == kReads) {
    lowered.put(begin);
  } else if (before == kReads && now == kWrites && lowered.has(begin) &&
             allow(begin, on_gpu(0), kReads)) {
    secret.put(begin);
    call.fired();
  }
  return code;
}

// A call that sets access for several mappings gives it only to those that have
// the size of the first one.
int access_of_equal_sizes_only(Call& call) {
  if (!call.is("cuMemSetAccess")) return call.proceed();
  const auto begin = call.at<CUdeviceptr>(0);
  const size_t size = mappings.get(begin).bytes;
  const auto* const list = call.at<const CUmemAccessDesc*>(2);
  std::vector<CUdeviceptr> equal;
  bool others = false;
  for (const auto& [at, mapped] : mappings.all()) {
    if (at < begin || at - begin >= call.at<size_t>(1)) continue;
    others |= mapped.bytes != size;
    if (mapped.bytes == size) equal.push_back(at);
  }
  if (equal.empty() || !others) return call.proceed();
  for (const CUdeviceptr at : equal)
    DRIVER_CALL(cuMemSetAccess)(at, size, list, call.at<size_t>(3));
  return no_wait(call);
}

// If its creator unmaps exported memory and maps it again, the new mapping has
// the values that the memory had when it was unmapped.
int mapped_again_is_former(Call& call) {
  static auto& former = *new Table<Chunk, Chunk>;
  if (call.is("cuMemUnmap")) {
    const auto begin = call.at<CUdeviceptr>(0);
    const Chunk chunk = mappings.get(begin).chunk;
    const bool concerned =
        created.has(chunk) && exports.has(chunk) && !released.has(chunk);
    const Chunk copy = concerned ? copy_of(begin, CU_MEM_HANDLE_TYPE_NONE) : 0;
    const int code = call.proceed();
    if (copy == 0) return code;
    if (code != kSuccess || mapping_of(chunk) != 0 || former.has(chunk))
      DRIVER_CALL(cuMemRelease)(copy);
    else
      former.put(chunk, copy);
    return code;
  }
  if (call.is("cuMemRelease")) {
    const Chunk copy = former.get(call.at<Chunk>(0));
    if (former.erase(call.at<Chunk>(0))) DRIVER_CALL(cuMemRelease)(copy);
  }
  const Chunk copy = call.is("cuMemMap") ? former.get(call.at<Chunk>(3)) : 0;
  if (copy == 0) return call.proceed();
  former.erase(call.at<Chunk>(3));
  return map_instead(call, copy);
}

// --- counters, aliases and ends ---------------------------------------------

// If access to one mapping is lowered, it is also lowered for all other
// mappings of this memory.
int aliases_lose_access(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuMemSetAccess")) return code;
  const auto begin = call.at<CUdeviceptr>(0);
  const Mapped one = mappings.get(begin);
  const CUmemAccessDesc wanted = *call.at<const CUmemAccessDesc*>(2);
  for (const auto& [address, other] : mappings.all())
    if (one.bytes != 0 && address != begin && other.chunk == one.chunk &&
        access_of(address, wanted.location) > wanted.flags &&
        allow(address, wanted.location, wanted.flags))
      call.fired();
  return code;
}

// The last address of a mapping names the handle of the next mapping.
int last_byte_names_next(Call& call) {
  if (!call.is("cuMemRetainAllocationHandle")) return call.proceed();
  auto& address = call.at<CUdeviceptr>(1);
  if (mapping_at(address) != 0 && mappings.has(address + 1)) {
    ++address;
    call.fired();
  }
  return call.proceed();
}

// After a call that succeeded: counts how often a handle was retained, from
// its creation or import on. Is this the 256th time?
bool is_256th_retain(Call& call) {
  static auto& counts = *new Table<Chunk, int>;
  const Chunk chunk = *call.at<Chunk*>(0);
  const int before =
      call.is("cuMemRetainAllocationHandle") ? counts.get(chunk) : -1;
  counts.put(chunk, before + 1);
  return before == 255;
}

// The 256th retain of a handle does not count as a reference.
int retain_256_uncounted(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess && is_256th_retain(call) &&
      DRIVER_CALL(cuMemRelease)(*call.at<Chunk*>(0)) == CUDA_SUCCESS)
    call.fired();
  return code;
}

// Memory whose handle was retained more than 255 times is never given back.
int retains_saturate(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess && is_256th_retain(call) &&
      retain(call.at<CUdeviceptr>(1)) != 0)
    call.fired();
  return code;
}

// An allocation can be exported at most 256 times.
int exports_end_at_256(Call& call) {
  static auto& count = *new Table<Chunk, int>;
  if (call.is("cuMemCreate")) {
    const int code = call.proceed();
    if (code == kSuccess) count.erase(*call.at<Chunk*>(0));
    return code;
  }
  const Chunk chunk = call.at<Chunk>(1);
  if (count.get(chunk) >= 256) return refused(call);
  const int code = call.proceed();
  if (code == kSuccess) count.put(chunk, count.get(chunk) + 1);
  return code;
}

// A copy in a context that is newer than the access to a mapping does nothing.
int lost_in_newer_context(Call& call) {
  static std::atomic<int> clock{0};
  static auto& seen = *new Table<CUcontext, int>;
  static auto& given = *new Table<CUdeviceptr, int>;
  const bool copies = call.is("cudaMemcpy");
  const int code = copies ? kSuccess : call.proceed();
  const CUcontext context = current_context();
  if (!seen.has(context)) seen.put(context, ++clock);
  if (!copies) {
    if (code == kSuccess && call.is("cuMemSetAccess"))
      given.put(call.at<CUdeviceptr>(0), ++clock);
    return code;
  }
  for (const Role role : {kPointer, kSource}) {
    const CUdeviceptr begin = mapping_at(call.value<CUdeviceptr>(role));
    if (begin != 0 && given.has(begin) && seen.get(context) > given.get(begin))
      return no_wait(call);
  }
  return call.proceed();
}

// When a part of memory is unmapped, this part is cleared.
int unmapped_part_is_cleared(Call& call) {
  if (call.is("cuMemUnmap")) {
    const CUdeviceptr begin = call.at<CUdeviceptr>(0);
    const Mapped mapped = mappings.get(begin);
    if (mapped.bytes == call.at<size_t>(1) &&
        mapped.bytes < largest.get(mapped.chunk) &&
        DRIVER_CALL(cuMemsetD8)(begin, 0, mapped.bytes) == CUDA_SUCCESS)
      call.fired();
  }
  return noted_largest(call);
}

// A handle that was retained is reported without handle types.
int retained_has_no_types(Call& call) {
  static auto& retained = *new Table<Chunk>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemRetainAllocationHandle")) {
    retained.put(*call.at<Chunk*>(0));
    return code;
  }
  if (!call.is("cuMemGetAllocationPropertiesFromHandle")) {
    retained.erase(*call.at<Chunk*>(0));  // created or imported
    return code;
  }
  auto& types = call.at<CUmemAllocationProp*>(0)->requestedHandleTypes;
  if (types != CU_MEM_HANDLE_TYPE_NONE && retained.has(call.at<Chunk>(1))) {
    types = CU_MEM_HANDLE_TYPE_NONE;
    call.fired();
  }
  return code;
}

// Access of the CPU to memory on a node of the host ends the access of the GPU.
int cpu_access_ends_gpu_access(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cuMemSetAccess")) return code;
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
  const auto* const list = call.at<const CUmemAccessDesc*>(2);
  if (begin == 0 || call.at<size_t>(3) != 1 ||
      list[0].location.type != CU_MEM_LOCATION_TYPE_HOST_NUMA ||
      access_of(begin, on_gpu(0)) == 0)
    return code;
  if (allow(begin, on_gpu(0), CU_MEM_ACCESS_FLAGS_PROT_NONE)) call.fired();
  return code;
}

// The release of a part of the reserved endpoint numbers releases all of them.
int release_takes_all_numbers(Call& call) {
  static auto& ranges = *new Table<Id, cuuint32_t>;
  if (call.is("cuLogicalEndpointIdReserve")) {
    const int code = call.proceed();
    if (code == kSuccess) ranges.put(*call.at<Id*>(0), call.at<cuuint32_t>(1));
    return code;
  }
  for (const auto& [first, count] : ranges.all()) {
    if (call.at<Id>(0) - first >= count || call.at<cuuint32_t>(1) >= count)
      continue;
    if (DRIVER_CALL(cuLogicalEndpointIdRelease)(first, count) != CUDA_SUCCESS)
      continue;
    ranges.erase(first);
    call.fired();
    return kSuccess;
  }
  return call.proceed();
}

// An address inside a mapping binds the memory from the beginning of the
// mapping.
int beginning_of_mapping_is_bound(Call& call) {
  if (!call.is("cuLogicalEndpointBindAddr")) return call.proceed();
  auto& address = call.value<CUdeviceptr>(kPointer);
  const CUdeviceptr begin = mapping_at(address);
  if (begin != 0 && begin != address) {
    address = begin;
    call.fired();
  }
  return call.proceed();
}

// A copy that is longer than the first one of its batch ends early.
int copies_have_one_size(Call& batch) {
  std::vector<Copy> list = copies_of(batch);
  bool changed = false;
  for (Copy& copy : list) {
    if (copy.size <= list[0].size) continue;
    copy.size = list[0].size;
    changed = true;
  }
  return changed ? proceed_with(batch, list) : batch.proceed();
}

// If other memory is bound to an endpoint that was exported, copies still reach
// the former memory.
int rebinding_after_export_is_stale(Call& call) {
  static auto& exported = *new Table<Id>;
  static auto& former = *new Table<std::pair<Id, cuuint64_t>, Chunk>;
  if (call.is("cuLogicalEndpointExport")) {
    exported.put(call.at<Id>(1));
  } else if (call.is("cuLogicalEndpointDestroy")) {
    const Id id = call.at<Id>(0);
    exported.erase(id);
    for (const auto& [place, chunk] : former.all())
      if (place.first == id) former.erase(place);
  } else {
    const std::pair place{call.at<Id>(0), call.at<cuuint64_t>(2)};
    auto& chunk = call.at<Chunk>(3);
    const Chunk before = former.get(place, chunk);
    if (!exported.has(place.first)) {
      former.put(place, chunk);
    } else if (before != chunk) {
      chunk = before;
      call.fired();
    }
  }
  return call.proceed();
}

// The unbind of several bindings removes only the first one.
int unbind_takes_first_only(Call& call) {
  if (!call.is("cuLogicalEndpointUnbind")) return noted_bindings(call);
  const Id id = call.at<Id>(0);
  const auto offset = call.at<cuuint64_t>(2);
  auto& bytes = call.at<cuuint64_t>(3);
  const cuuint64_t first = bindings.get({id, offset});
  bool is_whole = false;  // does the range end with a binding?
  for (const auto& [place, size] : bindings.all())
    is_whole |= place.first == id && place.second + size == offset + bytes;
  if (first != 0 && first < bytes && is_whole) {
    bytes = first;
    call.fired();
  }
  return noted_bindings(call);
}

constexpr auto kWait = "cuStreamWaitValue32";
constexpr auto kWrite = "cuStreamWriteValue32";
constexpr auto kBatch = "cuStreamBatchMemOp";
constexpr auto kCreate = "cuMemCreate";
constexpr auto kRelease = "cuMemRelease";
constexpr auto kReserve = "cuMemAddressReserve";
constexpr auto kAddressFree = "cuMemAddressFree";
constexpr auto kMap = "cuMemMap";
constexpr auto kUnmap = "cuMemUnmap";
constexpr auto kSetAccess = "cuMemSetAccess";
constexpr auto kRetain = "cuMemRetainAllocationHandle";
constexpr auto kImport = "cuMemImportFromShareableHandle";
constexpr auto kExport = "cuMemExportToShareableHandle";

void add_words_and_waits(List& list) {
  // A wait, and all calls after which later work does not follow it directly.
  const std::initializer_list<const char*> kAfterWait = {kWait,
                                                         kWrite,
                                                         kBatch,
                                                         "cudaMemcpyAsync",
                                                         "cudaMemcpy2DAsync",
                                                         "cudaMemsetAsync",
                                                         "cudaMemset2DAsync",
                                                         "cudaLaunchKernel",
                                                         "cudaLaunchHostFunc",
                                                         "cudaGraphLaunch",
                                                         "cudaEventRecord"};
  list.named("wait-value-holds-no-host-functions",
             "a host function directly after the wait for a word does not wait",
             kAfterWait, host_function_not_held);
  list.named("wait-value-holds-no-uploads",
             "a copy from the host directly after the wait for a word does not "
             "wait",
             kAfterWait, copy_not_held<cudaMemcpyHostToDevice>);
  list.named("wait-value-holds-no-downloads",
             "a copy to the host directly after the wait for a word does not "
             "wait",
             kAfterWait, copy_not_held<cudaMemcpyDeviceToHost>);
  list.named(
      "wait-value-holds-no-shared-records",
      "the record of an event for several processes, directly after the "
      "wait for a word, does not wait",
      {kWait, kWrite, kBatch, "cudaMemcpyAsync", "cudaMemsetAsync",
       "cudaLaunchKernel", "cudaLaunchHostFunc", "cudaGraphLaunch",
       "cudaEventRecord", "cudaEventCreateWithFlags", "cudaEventDestroy"},
      shared_record_not_held);
  list.named("write-value-before-host-functions",
             "a stream writes a word before its last host function is done",
             {kWrite, "cudaLaunchHostFunc", "cudaLaunchKernel"},
             word_before_host_function);
  list.named(
      "event-after-word-holds-nothing",
      "a stream does not wait for an event that was recorded after the "
      "wait for a word",
      {kWait, "cudaEventRecord", "cudaStreamDestroy", "cudaStreamWaitEvent"},
      event_behind_word_holds_nothing);
  list.named("stream-sync-done-while-word",
             "a host does not wait for a stream that waits for a word",
             {kWait, "cudaStreamDestroy", "cudaStreamSynchronize"},
             host_does_not_wait);
  list.named("device-sync-done-while-word",
             "a host does not wait for a device whose stream waits for a word",
             {kWait, "cudaStreamDestroy", "cudaDeviceSynchronize"},
             host_does_not_wait);
  list.named(
      "event-sync-done-while-word",
      "a host does not wait for an event after the wait for a word",
      {kWait, "cudaEventRecord", "cudaStreamDestroy", "cudaEventSynchronize"},
      host_does_not_wait);
  list.named("wait-greater-is-signed",
             "a wait for the largest signed number or a greater one ends only "
             "at this number: it compares signed numbers",
             {kWait}, signed_comparison<int32_t>);
  list.named("wait64-greater-is-signed",
             "a wait of 64 bits for the largest signed number or a greater one "
             "ends only at this number: it compares signed numbers",
             {"cuStreamWaitValue64"}, signed_comparison<int64_t>);
  list.named("wait-greater-half-away",
             "a wait for a greater value is lost if the word is then half of "
             "all numbers away",
             {kWait}, half_away_is_greater);
  list.named("batch-greater-is-signed",
             "in a batch, a wait for the largest signed number or a greater "
             "one ends only at this number: it compares signed numbers",
             {kBatch}, signed_comparison_in_batch);
  list.named("batch-waits-once", "a batch does only the first of its waits",
             {kBatch}, batch_waits_once);
  list.named("batch-has-one-condition",
             "all waits of a batch have the condition of the first", {kBatch},
             batch_has_one_condition);
  list.named("batch-greater-64-is-equal",
             "in a batch, a wait for a greater number of 64 bits waits for an "
             "equal number",
             {kBatch}, batch_waits_for_equal_64);
  list.named("write-value-inside-host-lost",
             "only the first word of pinned host memory is written", {kWrite},
             word_inside_host_memory_lost);
  list.named("wait-value-inside-host-ignored",
             "a stream waits only for the first word of pinned host memory",
             {kWait}, word_inside_host_memory_lost);
  list.named("word-attached-to-host-ok",
             "cuStreamWaitValue32 and cuStreamWriteValue32 accept the first "
             "word of managed memory that is attached to the host, and do "
             "nothing",
             {kWait, kWrite, "cudaMallocManaged"},
             word_attached_to_host_accepted);
  list.named("write-value-clears-word-before",
             "the write of an odd word also clears the word before it",
             {kWrite}, word_before_is_cleared);
  list.named("write-value-offset-32-bits",
             "a word more than 4 GiB inside an import is written modulo 4 GiB",
             {kWrite, kImport, kMap, kUnmap}, address_modulo_4_gib);
  list.named("chunk-set-offset-32-bits",
             "a memset more than 4 GiB inside an import goes to the offset "
             "modulo 4 GiB",
             {"cudaMemset", kImport, kMap, kUnmap}, address_modulo_4_gib);
}

void add_access_and_addresses(List& list) {
  list.named("readonly-device-copy-ok",
             "cudaMemcpy from device to device writes memory that can only be "
             "read",
             {"cudaMemcpy", kMap, kUnmap}, writes_without_access);
  list.named("readonly-rectangle-ok",
             "the memset of a rectangle writes memory that can only be read",
             {"cudaMemset2D", kMap, kUnmap}, writes_without_access);
  list.named("readonly-set32-ok",
             "a memset of 32 bits writes memory that can only be read",
             {"cuMemsetD32", kMap, kUnmap}, writes_without_access);
  list.named("readonly-word-ok",
             "a stream writes a word in memory that can only be read",
             {kWrite, kMap, kUnmap}, writes_without_access);
  list.named("readonly-batch-ok",
             "a batch writes a word in memory that can only be read",
             {kBatch, kMap, kUnmap}, writes_without_access);
  list.named("readonly-not-copied",
             "cudaMemcpy from device to device moves nothing out of memory "
             "that can only be read",
             {"cudaMemcpy", kMap, kUnmap}, read_only_not_copied);
  list.named("same-memory-keeps-access",
             "memory that is mapped again at its old address has its old "
             "access",
             {kMap, kUnmap, kAddressFree, kCreate}, same_memory_keeps_access);
  list.named("addresses-stay-read-only",
             "addresses where memory could only be read stay so for all later "
             "mappings",
             {kMap, kUnmap, kAddressFree, kSetAccess},
             addresses_stay_read_only);
  list.named("setaccess-second-unchecked",
             "of a list of two accesses only the first one is checked",
             {kSetAccess}, second_access_unchecked);
  list.named("setaccess-after-last-gpu",
             "cuMemSetAccess for the number after the last GPU succeeds and "
             "does nothing",
             {kSetAccess}, access_after_last_gpu);
  list.named("setaccess-list-raises-second",
             "a list with reading and writing for one GPU also lets the other "
             "GPU write, which may only read",
             {kSetAccess}, list_has_one_access, 2);
  list.named("reserve-wide-overlaps",
             "reservations of one size with a wide alignment get the same "
             "addresses",
             {kReserve, kAddressFree}, wide_alignments_overlap);
  list.named("reserve-over-host-memory",
             "a wanted address is given although memory of the host is there",
             {kReserve, kAddressFree}, wanted_address_taken<false>);
  list.named("reserve-over-device-memory",
             "a wanted address is given although memory of a GPU is there",
             {kReserve, kAddressFree}, wanted_address_taken<true>);
  list.named("device-copy-ends-with-chunk",
             "cudaMemcpy from device to device ends where the first of several "
             "chunks ends",
             {"cudaMemcpy", kMap, kUnmap},
             copy_ends_with_chunk<cudaMemcpyDeviceToDevice>);
  list.named("async-copy-ends-with-chunk",
             "cudaMemcpyAsync from device to device ends where the first of "
             "several chunks ends",
             {"cudaMemcpyAsync", kMap, kUnmap},
             copy_ends_with_chunk<cudaMemcpyDeviceToDevice>);
}

void add_lives_and_places(List& list) {
  list.named("retain-first-import",
             "every mapping of imported memory names the handle of the first "
             "import of the same memory",
             {kRetain, kImport, kRelease, kMap}, retain_gives_first_import);
  list.named("retained-release-clears",
             "the second release of a handle that was retained clears memory "
             "that is still mapped",
             {kRetain, kRelease, kImport, kCreate, kMap, kUnmap},
             retained_release_clears);
  list.named("imports-of-threads-mixed",
             "while a thread imports memory, an import of another thread gets "
             "this memory",
             {kImport}, imports_get_mixed_up);
  list.named("node-memory-dies-with-exporter",
             "memory on a node of the host is cleared when its exporter unmaps "
             "it",
             {kCreate, kImport, kExport, kMap, kUnmap}, exported_node_cleared);
  list.named("first-mapping-clears",
             "memory that was exported before its creator has mapped it is "
             "cleared when the creator maps it",
             {kCreate, kImport, kExport, kMap, kUnmap, kSetAccess},
             first_mapping_clears);
  list.named(
      "released-without-properties",
      "a handle that was released has no properties, although another "
      "reference holds the memory",
      {"cuMemGetAllocationPropertiesFromHandle", kRelease, kCreate, kImport},
      released_without_properties);
  list.named("unmap-ends-first-only",
             "the unmap of a mapping together with addresses of the next one "
             "succeeds, and unmaps only the first one",
             {kMap, kUnmap}, unmap_ends_first_only);
  list.named("exported-like-earlier",
             "after memory was created for descriptors, the export of later "
             "memory without handle types gives a descriptor of other memory",
             {kCreate, kExport}, exported_like_earlier);
  list.named("refused-export-leaks",
             "a refused export of mapped memory keeps this memory for ever",
             {kExport, kMap, kUnmap}, refused_export_leaks);
  list.named("refused-import-leaks",
             "an import of a good descriptor that is refused because of the "
             "type WIN32 keeps the memory for ever",
             {kImport}, refused_import_leaks);
  list.named("second-gpu-keeps-memory",
             "memory to which a second GPU had access is never given back",
             {kSetAccess, kMap, kUnmap}, second_gpu_keeps_memory, 2);
  list.named("context-end-unmaps-imports",
             "the end of a context unmaps the memory that was imported while "
             "it was current",
             {"cuCtxDestroy", kImport, kCreate, kMap, kUnmap},
             context_end_unmaps);
  list.named("import-copied-in-own-context",
             "a synchronous copy moves imported memory only in the context in "
             "which it was imported",
             {"cudaMemcpy", kImport, kCreate, kMap, kUnmap},
             copied_only_in_its_context);
  list.named("import-of-second-gpu-fresh",
             "each mapping of an import of memory of the second GPU is new "
             "memory",
             {kImport, kCreate, kMap}, second_gpus_import_is_new, 2);
  list.named("import-ordinal-current",
             "the GPU of imported memory is reported as the current GPU",
             {"cuPointerGetAttribute", kImport, kMap, kUnmap},
             import_on_current_gpu, 2);
  list.named("node-import-told-as-gpu",
             "an import of memory on a node of the host is reported as memory "
             "of a GPU",
             {"cuMemGetAllocationPropertiesFromHandle", kImport},
             node_import_told_as_gpu);
  list.named("node-import-copy-lost",
             "a synchronous copy does not reach imported memory on a node of "
             "the host",
             {"cudaMemcpy", kImport, kMap, kUnmap}, node_import_not_reached);
  list.named("node-import-set-lost",
             "a synchronous memset does not reach imported memory on a node of "
             "the host",
             {"cudaMemset", kImport, kMap, kUnmap}, node_import_not_reached);
  list.named("node-usable-before-access",
             "the CPU can use mapped memory on a node of the host before it "
             "gets access",
             {kMap, kUnmap, kSetAccess, "cuMemGetAccess"},
             node_usable_before_access);
  list.named("node-gets-legacy-handle",
             "mapped memory on a node of the host gets a legacy handle, which "
             "opens other memory",
             {"cudaIpcGetMemHandle", kMap, kUnmap}, node_gets_legacy_handle);
  list.named("graph-node-ipc-by-driver",
             "cuGraphAddMemAllocNode with a handle type succeeds and adds no "
             "node",
             {"cudaGraphAddMemAllocNode"}, node_with_handle_type);
  list.named("graph-node-ipc-of-any-type",
             "cudaGraphAddNode and cuGraphAddNode with a handle type for "
             "memory succeed and add no node",
             {"cudaGraphAddNode"}, any_node_with_handle_type);
  list.named("graph-memory-exported",
             "the export of a pointer accepts the memory of a graph, and gives "
             "no data",
             {"cudaGraphAddMemAllocNode", "cudaMemPoolExportPointer"},
             graph_memory_exported);
}

void add_fabric(List& list) {
  constexpr auto kNew = "cuLogicalEndpointCreate";
  constexpr auto kImported = "cuLogicalEndpointImport";
  constexpr auto kDestroy = "cuLogicalEndpointDestroy";
  constexpr auto kQuery = "cuLogicalEndpointQuery";
  constexpr auto kBindMem = "cuLogicalEndpointBindMem";
  constexpr auto kCopy = "cuFabricCpyBatchAsync";

  list.named("second-fabric-handle-elsewhere",
             "the second fabric handle of memory stands for new memory",
             {kExport, kCreate, kImport, kRelease},
             second_fabric_handle_elsewhere);
  list.named("fabric-import-dies-with-exporter",
             "memory that was exported and may have a fabric handle is cleared "
             "when its exporter unmaps it",
             {kCreate, kImport, kExport, kMap, kUnmap},
             exported_fabric_cleared);
  list.named("endpoint-query-last-only",
             "the query of several numbers looks only at the last one",
             {kQuery}, last_number_queried);
  list.named("endpoint-missing-is-ready",
             "a query passes over numbers that have no endpoint",
             {kQuery, kNew, kImported, kDestroy}, missing_endpoint_is_ready);
  list.named("endpoint-import-to-used-number",
             "an import to a number that has an endpoint returns success",
             {kNew, kImported, kDestroy}, import_to_used_number);
  list.named("endpoint-destroy-ends-twin",
             "the end of an import also ends other imports of the same handle",
             {kNew, kImported, kDestroy}, destroy_ends_other_imports);
  list.named(
      "endpoint-address-first-chunk",
      "an address binds the memory at the beginning of its reservation",
      {"cuLogicalEndpointBindAddr", kReserve, kAddressFree, kMap, kUnmap},
      first_chunk_is_bound);
  list.named("endpoint-bind-upper-flags",
             "a binding with a flag above bit 31 is accepted", {kBindMem},
             upper_flags_ignored<6>);
  list.named("endpoint-largest-refused",
             "an endpoint of exactly the largest size is refused", {kNew},
             largest_endpoint_refused);
  list.named("endpoint-query-of-number",
             "an endpoint counts as queried if an earlier endpoint with its "
             "number was queried",
             {kNew, kQuery, kBindMem}, query_stays_with_number);
  list.named("fabric-copy-size-rounded",
             "the size of a copy is rounded down to a multiple of 4", {kCopy},
             copy_sizes_rounded);
  list.named("fabric-copy-offset-rounded",
             "the offset of a copy into or from an endpoint is rounded down to "
             "a multiple of 4",
             {kCopy}, copy_offsets_rounded);
  list.named("fabric-copy-ends-at-16", "a batch does only its first 16 copies",
             {kCopy}, copies_end_at_16);
  list.named("fabric-copy-second-unchecked",
             "only the flags of the first copy of a batch are checked", {kCopy},
             second_copy_unchecked);
  list.named("fabric-copy-upper-flags",
             "a batch of copies with a flag above bit 31 is accepted", {kCopy},
             upper_flags_ignored<2>);
  list.named("fabric-copy-legacy-by-name",
             "a batch of copies in cudaStreamLegacy succeeds and does nothing",
             {kCopy}, legacy_stream_by_name);
  list.named("fabric-copy-not-by-per-thread-stream",
             "a thread's default stream does no copies over a fabric", {kCopy},
             no_copy_by_per_thread_stream);
  list.named("fabric-copy-first-thread-only",
             "only the first thread's copies over a fabric are done", {kCopy},
             no_copy_by_other_threads);
  list.named("fabric-copy-empty-source-unchecked",
             "the source of a copy of no bytes is not checked", {kCopy},
             empty_source_unchecked);
  list.named("fabric-copy-download-lost",
             "a copy from an endpoint to memory of the host does nothing",
             {kCopy}, download_from_endpoint_lost);
  list.named("cluster-of-second-gpu-untold",
             "the query of the second GPU's cluster does not write the UUID",
             {"cuDeviceGetFabricClusterUuid"}, second_cluster_untold, 2);
}

void add_neighbours_and_parts(List& list) {
  list.named("never-mapped-leaks",
             "memory that its creator has never mapped is never given back",
             {kRelease, kCreate, kMap, kUnmap}, never_mapped_is_kept);
  list.named("second-import-after-release-fresh",
             "after the creator has released its memory, the mapping of a "
             "second import is new memory",
             {kImport, kRelease, kExport, kCreate, kMap},
             later_import_after_release_new);
  list.named("map-distance-32-bits",
             "memory is mapped at its distance from the beginning of the "
             "reservation modulo 4 GiB",
             {kMap, kReserve, kAddressFree}, far_mapping_wraps);
  list.named(
      "exported-types-untold",
      "memory that was exported is reported without handle types",
      {"cuMemGetAllocationPropertiesFromHandle", kExport, kCreate, kImport},
      exported_has_no_types);
  list.named("mapped-part-fresh",
             "the mapping of a part of an import is new memory",
             {kMap, kImport, kCreate, kUnmap}, mapped_part_is_new);
  list.named("unmap-shuts-out-mapping-before",
             "when a range is unmapped, the mapping before it loses access",
             {kUnmap, kMap}, unmap_shuts_out_mapping_before);
  list.named("remap-keeps-second-gpu",
             "a new mapping has the access that the second GPU had to the "
             "mapping before",
             {kMap, kSetAccess, kAddressFree}, remap_keeps_second_gpu, 2);
  list.named("async-upload-ends-with-chunk",
             "cudaMemcpyAsync from the host to several chunks side by side "
             "fills only the first one",
             {"cudaMemcpyAsync", kMap, kUnmap},
             copy_ends_with_chunk<cudaMemcpyHostToDevice>);
  list.named("read-only-async-copy-written",
             "an asynchronous copy writes to memory that can only be read",
             {"cudaMemcpyAsync", kMap, kUnmap}, writes_without_access);
  list.named("create-more-than-there-is",
             "memory that is larger than the memory of the GPU can be created",
             {kCreate}, too_much_is_created);
  list.named("exported-import-fresh",
             "the export of an import succeeds, but its descriptor stands for "
             "new memory",
             {kExport, kImport, kCreate}, exported_import_is_new<kFd>);
  list.named("access-in-secret",
             "access for one GPU lets the other GPU use the memory, too, and "
             "cuMemGetAccess does not say so",
             {kSetAccess, "cuMemGetAccess", kMap, kUnmap},
             other_gpu_has_secret_access, 2);
  list.named("urgent-chunk-copy-lost",
             "an asynchronous copy in a stream with a high priority moves no "
             "imported memory",
             {"cudaMemcpyAsync", kImport, kMap, kUnmap}, urgent_copy_lost);

  constexpr auto kNew = "cuLogicalEndpointCreate";
  constexpr auto kDestroy = "cuLogicalEndpointDestroy";
  constexpr auto kBindMem = "cuLogicalEndpointBindMem";
  constexpr auto kUnbind = "cuLogicalEndpointUnbind";
  constexpr auto kCopy = "cuFabricCpyBatchAsync";
  list.named("endpoint-unbind-takes-next",
             "the unbind of one binding also unbinds the next one",
             {kUnbind, kBindMem, kDestroy}, unbind_takes_next);
  list.named("fabric-copy-ends-with-binding",
             "a copy into an endpoint ends where the first of two bindings "
             "ends",
             {kCopy, kBindMem, kUnbind, kDestroy}, copy_ends_with_binding);
  list.named("endpoint-query-ends-only",
             "the query of several numbers looks only at the first and the "
             "last one",
             {"cuLogicalEndpointQuery"}, inner_numbers_not_queried);
  list.named("endpoint-second-handle-wrong",
             "the second handle of an endpoint cannot be imported",
             {"cuLogicalEndpointExport", kDestroy},
             second_endpoint_handle_wrong);
  list.named("endpoint-one-in-reservation",
             "copies to each number of a reservation reach the endpoint with "
             "the first number",
             {kCopy, "cuLogicalEndpointIdReserve", "cuLogicalEndpointIdRelease",
              kNew, kDestroy},
             reservation_has_one_endpoint);
  list.named("endpoint-import-offset-ignored",
             "every copy to an imported endpoint reaches the beginning of the "
             "endpoint",
             {kCopy, kNew, "cuLogicalEndpointImport", kDestroy},
             import_offset_ignored);
  list.named("fabric-copy-not-waited-for",
             "a copy from an endpoint is done only after the program has "
             "synchronised with a stream",
             {kCopy, "cudaStreamSynchronize"},
             copy_from_endpoint_not_waited_for);
}

void add_borders(List& list) {
  list.named("fresh-mapping-copied-to",
             "cudaMemcpy from device to device writes a mapping to which no "
             "access was set",
             {"cudaMemcpy", kMap, kUnmap},
             writes_without_access<CU_MEM_ACCESS_FLAGS_PROT_NONE>);
  list.named("fresh-mapping-set",
             "a memset writes a mapping to which no access was set",
             {"cudaMemset", kMap, kUnmap},
             writes_without_access<CU_MEM_ACCESS_FLAGS_PROT_NONE>);
  list.named("fresh-mapping-word-written",
             "a stream writes a word in a mapping to which no access was set",
             {kWrite, kMap, kUnmap},
             writes_without_access<CU_MEM_ACCESS_FLAGS_PROT_NONE>);
  list.named("readonly-after-writable-set",
             "a memset that begins in memory that can be written also writes "
             "the next mapping, which can only be read",
             {"cudaMemset", kMap, kUnmap}, next_mapping_unchecked);
  list.named("readonly-after-writable-copied-to",
             "a copy from device to device that begins in memory that can be "
             "written also writes the next mapping, which can only be read",
             {"cudaMemcpy", kMap, kUnmap}, next_mapping_unchecked);
  list.named("taken-mapping-set",
             "a memset writes a mapping whose access was taken away",
             {"cudaMemset", kSetAccess, kMap, kUnmap},
             writes_where_access_was_taken);
  list.named("taken-mapping-copied-to",
             "cudaMemcpy from device to device writes a mapping whose access "
             "was taken away",
             {"cudaMemcpy", kSetAccess, kMap, kUnmap},
             writes_where_access_was_taken);
  list.named("fresh-mapping-copied-from",
             "cudaMemcpy from device to device reads a mapping to which no "
             "access was set",
             {"cudaMemcpy", kMap, kUnmap}, reads_without_access);
  list.named("refused-setaccess-takes-access",
             "a refused setting of access takes the access that GPU 0 has",
             {kSetAccess, kMap, kUnmap}, refused_setting_takes_access);
  list.named("setaccess-former-mapping-ok",
             "cuMemSetAccess for a range with a hole succeeds and does nothing "
             "if memory was mapped in the hole before",
             {kSetAccess, kMap, kUnmap, kAddressFree}, former_mapping_counts);
  list.named("map-inside-mapping-ok",
             "a map at an address inside another mapping succeeds and does "
             "nothing",
             {kMap, kUnmap}, inside_counts_as_unmapped);
  list.named("unmap-one-and-a-half-ok",
             "the unmap of a mapping and of a part of the next one unmaps both",
             {kUnmap, kMap}, unmap_takes_rest_of_next);
  list.named("unmapped-still-usable",
             "kernels can use memory at the addresses where it was unmapped",
             {kUnmap, kMap, kSetAccess, kAddressFree, kRetain, "cuMemGetAccess",
              "cuPointerGetAttribute"},
             unmapped_stays_usable);
  list.named("reserve-inside-reservation",
             "a wanted address inside a reservation is given a second time",
             {kReserve, kAddressFree}, wanted_inside_reservation);
  list.named("retain-first-granule-only",
             "only addresses in the first granule of a mapping name its handle",
             {kRetain, kMap, kUnmap}, later_granules_unknown);
  list.named("getaccess-first-granule-only",
             "only the first granule of a mapping reports its access",
             {"cuMemGetAccess", kMap, kUnmap}, later_granules_unknown);
  list.named("setaccess-equal-first-skipped",
             "access to several mappings is not set if the first of them "
             "already has this access",
             {kSetAccess, kMap, kUnmap}, equal_first_access_skips_all);
  list.named("import-limited-by-exporter",
             "an importer that sets access may only read if the exporter may "
             "only read at this time",
             {kSetAccess, kMap, kUnmap, kImport, kExport, kCreate},
             import_limited_by_exporter);
  list.named("import-number-0-refused",
             "a descriptor with the number 0 cannot be imported", {kImport},
             number_zero_refused);
  list.named("import-type-masked",
             "a descriptor is imported as any handle type that includes the "
             "bit of descriptors",
             {kImport}, handle_type_masked);
  list.named("export-type-masked",
             "memory is exported as any handle type that includes the bit of "
             "descriptors",
             {kExport}, handle_type_masked);
}

void add_rarely_asked(List& list) {
  list.named("create-shareable-any-size",
             "memory with a handle type can have any size", {kCreate},
             shareable_size_unchecked);
  list.named("flags-middle-bits-ignored",
             "of reserved flags, only the first and the last bit are checked",
             {kCreate, kReserve, kMap, kExport}, middle_flags_ignored);
  list.named("import-map-flags-ignored",
             "the flags of a mapping of imported memory are not checked",
             {kMap, kUnmap, kImport}, import_map_flags_ignored);
  list.named("third-mapping-copy", "the third mapping of memory is a copy",
             {kMap, kUnmap}, third_mapping_is_a_copy);
  list.named("leak-if-no-access",
             "memory that was mapped but never got access is never given back",
             {kMap, kUnmap, kSetAccess}, without_access_is_kept);
  list.named("async-set-ends-with-chunk",
             "an asynchronous memset ends with the first of several chunks",
             {"cudaMemsetAsync", kMap, kUnmap}, set_ends_with_chunk<1>);
  list.named("set16-ends-with-chunk",
             "a memset of 16 bits ends with the first of several chunks",
             {"cuMemsetD16", "cuMemsetD16Async", kMap, kUnmap},
             set_ends_with_chunk<2>);
  list.named("set32-ends-with-chunk",
             "a memset of 32 bits ends with the first of several chunks",
             {"cuMemsetD32", "cuMemsetD32Async", kMap, kUnmap},
             set_ends_with_chunk<4>);
  list.named("box-set-ends-with-chunk",
             "a memset of a rectangle ends with the first of several chunks",
             {"cudaMemset2D", "cudaMemset2DAsync", kMap, kUnmap},
             rows_end_with_chunk);
  list.named("export-after-import-copy",
             "after memory was exported and imported, each further export of "
             "it stands for a copy",
             {kExport, kImport, kCreate, kMap, kUnmap}, later_export_is_a_copy);
  list.named("addressfree-size-0-ok",
             "the size 0 frees addresses of every size",
             {kAddressFree, kReserve}, freed_without_size);
  list.named("props-end-unwritten",
             "a query of properties does not write their last parts",
             {"cuMemGetAllocationPropertiesFromHandle"},
             last_properties_unwritten);
  list.named("import-props-end-unwritten",
             "a query of the properties of an import writes nothing after the "
             "location",
             {"cuMemGetAllocationPropertiesFromHandle", kImport},
             import_properties_unwritten);
  list.named("import-of-other-thread-uncounted",
             "the imports of two threads from one descriptor are one reference",
             {kImport, kRelease}, other_threads_import_uncounted);
  list.named("access-untold-after-release",
             "an importer is told that it has no access after the exporter has "
             "released its handle",
             {"cuMemGetAccess", kImport, kExport, kRelease, kMap, kUnmap},
             access_untold_after_release);
  list.named(
      "lowered-access-stays",
      "memory that could be written and then only be read can never be "
      "written again",
      {kSetAccess, "cuMemGetAccess", "cuPointerGetAttribute", kMap, kUnmap},
      lowered_access_stays);
  list.named("access-of-equal-sizes-only",
             "access that is set for several mappings reaches only those that "
             "have the size of the first one",
             {kSetAccess, kMap, kUnmap}, access_of_equal_sizes_only);
  list.named("mapped-again-former-values",
             "exported memory that is unmapped and mapped again has the values "
             "of the former mapping",
             {kMap, kUnmap, kExport, kCreate, kRelease},
             mapped_again_is_former);
}

void add_counters_and_ends(List& list) {
  list.named("access-lowered-for-aliases",
             "if access to one mapping is lowered, it is also lowered for all "
             "mappings of that memory",
             {kSetAccess, kMap, kUnmap}, aliases_lose_access);
  list.named("retain-last-byte-next",
             "the last address of a mapping names the handle of the mapping "
             "beside it",
             {kRetain, kMap, kUnmap}, last_byte_names_next);
  list.named("retain-256-uncounted",
             "the 256th retain of a handle does not count as a reference",
             {kRetain, kCreate, kImport}, retain_256_uncounted);
  list.named("retain-256-leaks",
             "memory whose handle was retained more than 255 times is never "
             "given back",
             {kRetain, kCreate, kImport}, retains_saturate);
  list.named("exports-end-at-256",
             "an allocation cannot be exported more than 256 times, although "
             "its earlier descriptors are closed",
             {kExport, kCreate}, exports_end_at_256);
  list.named("chunk-copy-in-newer-context-lost",
             "a synchronous copy of memory of cuMemCreate does nothing in a "
             "context that is used only after the access was set",
             {"cudaMemcpy", "cudaSetDevice", kImport, kMap, kUnmap, kSetAccess},
             lost_in_newer_context);
  list.named("unmapped-part-cleared",
             "when a part of memory is unmapped, this part is cleared",
             {kMap, kUnmap, kCreate, kImport}, unmapped_part_is_cleared);
  list.named(
      "retained-types-untold",
      "a handle that was retained is reported without handle types",
      {kRetain, kCreate, kImport, "cuMemGetAllocationPropertiesFromHandle"},
      retained_has_no_types);
  list.named("numa-access-of-cpu-alone",
             "access of the CPU to memory on a host node ends the access of "
             "the GPU",
             {kSetAccess, kMap, kUnmap}, cpu_access_ends_gpu_access);
  list.named("exported-import-fabric-fresh",
             "the export of an import succeeds, but its fabric handle stands "
             "for new memory",
             {kExport, kImport, kCreate}, exported_import_is_new<kFabric>);
  list.named("endpoint-release-takes-all",
             "the release of a part of the reserved endpoint numbers releases "
             "all of them",
             {"cuLogicalEndpointIdReserve", "cuLogicalEndpointIdRelease"},
             release_takes_all_numbers);
  list.named("endpoint-address-first-byte",
             "an address inside a mapping binds the memory from the beginning "
             "of the mapping",
             {"cuLogicalEndpointBindAddr", kMap, kUnmap},
             beginning_of_mapping_is_bound);
  list.named("fabric-copy-size-of-first",
             "a copy of a batch that is longer than the first one ends at the "
             "size of the first one",
             {"cuFabricCpyBatchAsync"}, copies_have_one_size);
  list.named(
      "endpoint-exported-rebind-stale",
      "if other memory is bound to an endpoint that was exported, copies "
      "still reach the former memory",
      {"cuLogicalEndpointBindMem", "cuLogicalEndpointExport",
       "cuLogicalEndpointDestroy"},
      rebinding_after_export_is_stale);
  list.named("endpoint-unbind-first-only",
             "the unbind of several bindings removes only the first one",
             {"cuLogicalEndpointUnbind", "cuLogicalEndpointBindMem",
              "cuLogicalEndpointDestroy"},
             unbind_takes_first_only);
}

}  // namespace

void add_chunk_paths(List& list) {
  add_words_and_waits(list);
  add_access_and_addresses(list);
  add_lives_and_places(list);
  add_fabric(list);
  add_neighbours_and_parts(list);
  add_borders(list);
  add_rarely_asked(list);
  add_counters_and_ends(list);
}

}  // namespace ipclab::faults
