// Bugs that show only with a second object: two imports in one call, a stream
// of another kind, the second operation of a batch, a second thread, a chunk in
// the middle, or an attempt after the object was used.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "harness/faults/world/chunks.h"
#include "harness/faults/words/descriptor.h"
#include "harness/faults/world/legacy.h"

namespace ipclab::faults {
namespace {

// --- words -------------------------------------------------------------------

// The operations of a batch. A fault changes a copy, not the program's array.
std::vector<CUstreamBatchMemOpParams> operations_of(Call& batch) {
  const auto* const first = batch.at<const CUstreamBatchMemOpParams*>(2);
  return {first, first + batch.at<unsigned>(1)};
}

// A wait in a batch for a greater value, or for a common bit, waits for an
// equal value.
int batch_waits_for_equal(Call& batch) {
  auto operations = operations_of(batch);
  batch.at<CUstreamBatchMemOpParams*>(2) = operations.data();
  for (auto& operation : operations) {
    auto& wait = operation.waitValue;
    if (wait.operation != CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
        (wait.flags != CU_STREAM_WAIT_VALUE_GEQ &&
         wait.flags != CU_STREAM_WAIT_VALUE_AND))
      continue;
    wait.flags = CU_STREAM_WAIT_VALUE_EQ;
    batch.fired();
  }
  return batch.proceed();
}

// A stream that waits for the null stream does nothing with a word.
int blocking_stream_does_nothing(Call& call) {
  const auto stream = call.at<CUstream>(0);
  unsigned flags = CU_STREAM_NON_BLOCKING;
  if (!is_default(stream) && stream != cudaStreamPerThread)
    DRIVER_CALL(cuStreamGetFlags)(stream, &flags);
  if (flags != CU_STREAM_DEFAULT) return call.proceed();
  call.fired();
  return kSuccess;
}

// A wrong batch of two operations does nothing and returns success.
int second_operation_unchecked(Call& batch) {
  const int code = batch.proceed();
  return code != kSuccess && batch.at<unsigned>(1) == 2 ? accepted(batch)
                                                        : code;
}

// A stream does not write the first word of registered host memory.
int registered_word_lost(Call& call) {
  static Table<CUdeviceptr> registered;
  if (call.is("cudaHostRegister")) {
    const int code = call.proceed();
    if (code == kSuccess) registered.put(call.at<CUdeviceptr>(0));
    return code;
  }
  if (!registered.has(call.at<CUdeviceptr>(1))) return call.proceed();
  call.fired();
  return kSuccess;
}

// --- legacy handles ----------------------------------------------------------

// A copy from opened memory to other opened memory moves nothing.
int copy_between_imports_lost(Call& call) {
  if (keeps_opened(call)) return call.proceed();
  void* const to = opened_around(call.at<void*>(0));
  void* const from = opened_around(call.at<void*>(1));
  return to != nullptr && from != nullptr && to != from ? no_wait(call)
                                                        : call.proceed();
}

// A close accepts memory of cuMemCreate.
int close_accepts_mapped(Call& call) {
  if (!is_close_call(call)) return call.proceed();
  const int code = call.proceed();
  return code != kSuccess && mapping_at(number(call.at<void*>(0))) != 0
             ? accepted(call)
             : code;
}

// After another call, memory of any kind gets a handle, which opens other
// memory.
int export_after_use(Call& call) {
  static std::atomic<bool> used{false};
  if (!exports_memory(call)) {
    used = true;
    return call.proceed();
  }
  return exported_all_the_same(call, used);
}

// An address inside pinned host memory gets a handle, which opens other memory.
int export_inside_pinned(Call& get) {
  const CUdeviceptr address = number(get.at<void*>(1));
  unsigned type = 0;
  if (begin_of(address) != address) {
    DRIVER_CALL(cuPointerGetAttribute)
    (&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  }
  return exported_all_the_same(get, type == CU_MEMORYTYPE_HOST);
}

// A second thread of the exporter opens the exporter's own event and gets
// another event.
int self_open_by_thread(Call& call) {
  if (exports_event(call)) return call.proceed();
  const std::string key = key_of_handle(call.at<cudaIpcEventHandle_t>(1));
  const int code = call.proceed();
  if (code == kSuccess || this_thread() == getpid() || !own_handles.has(key) ||
      cudaEventCreateWithFlags(call.at<cudaEvent_t*>(0),
                               cudaEventDisableTiming) != cudaSuccess)
    return code;
  return accepted(call);
}

// --- memory of cuMemCreate ---------------------------------------------------

// The unmap of one import ends the mappings of the other imports.
int unmap_ends_other_imports(Call& call) {
  if (!call.is("cuMemUnmap") || !is_import(call.at<CUdeviceptr>(0)))
    return call.proceed();
  const CUdeviceptr own = mapping_at(call.at<CUdeviceptr>(0));
  const Chunk chunk = mappings.get(own).chunk;
  for (const auto& [begin, mapped] : mappings.all()) {
    if (mapped.chunk == chunk || !imports.has(mapped.chunk) ||
        DRIVER_CALL(cuMemUnmap)(begin, mapped.bytes) != CUDA_SUCCESS)
      continue;
    mappings.erase(begin);
    call.fired();
  }
  return call.proceed();
}

// The export of a retained handle gives a descriptor of new memory.
int retained_exports_other(Call& call) {
  static Table<Chunk, size_t> retained;  // the size of the mapping
  if (!call.is("cuMemExportToShareableHandle")) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    if (call.is("cuMemRetainAllocationHandle"))
      retained.put(*call.at<Chunk*>(0),
                   mappings.get(mapping_at(number(call.at<void*>(1)))).bytes);
    else if (call.is("cuMemCreate") ||
             call.is("cuMemImportFromShareableHandle"))
      retained.erase(*call.at<Chunk*>(0));
    return code;
  }
  auto& chunk = call.at<Chunk>(1);
  const CUmemAllocationProp wanted = properties_of(chunk);
  Chunk other = 0;
  if (!retained.has(chunk) ||
      DRIVER_CALL(cuMemCreate)(&other, retained.get(chunk), &wanted, 0) !=
          CUDA_SUCCESS)
    return call.proceed();
  chunk = other;
  call.fired();
  const int code = call.proceed();
  DRIVER_CALL(cuMemRelease)(other);
  return code;
}

bool takes_access(Call& set) {
  return set.at<const CUmemAccessDesc*>(2)->flags ==
         CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

// Access that was taken away cannot be given again.
int access_not_given_again(Call& call) {
  static Table<CUdeviceptr> taken;
  const auto address = call.at<CUdeviceptr>(0);
  if (call.is("cuMemSetAccess") && !takes_access(call) && taken.has(address))
    return no_wait(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemUnmap")) {
    for (const auto& each : taken.all())
      if (each.first - address < call.at<size_t>(1)) taken.erase(each.first);
  } else if (takes_access(call)) {
    taken.put(address);
  }
  return code;
}

// Access that is taken from chunks in the middle of a reservation is taken from
// its first chunks.
int access_taken_from_the_start(Call& call) {
  if (!call.is("cuMemSetAccess")) return call.proceed();
  auto& address = call.at<CUdeviceptr>(0);
  const CUdeviceptr begin = reservation_at(address);
  if (begin != 0 && begin != address && takes_access(call)) {
    address = begin;
    call.fired();
  }
  return call.proceed();
}

// A thread without a current context may not make the call.
int refused_without_context(Call& call) {
  return current_context() == nullptr
             ? refused(call, CUDA_ERROR_INVALID_CONTEXT)
             : call.proceed();
}

// The recommended granularity is one and a half times what it should be.
int recommended_is_no_multiple(Call& query) {
  const int code = query.proceed();
  if (code != kSuccess || query.at<CUmemAllocationGranularity_flags>(2) !=
                              CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
    return code;
  auto& granularity = *query.at<size_t*>(0);
  granularity += granularity / 2;
  query.fired();
  return code;
}

// If the exporter may only read at the export, the importer can only read.
int export_tells_access(Call& call) {
  constexpr auto kOnlyReads = "read-only at the export";
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemExportToShareableHandle")) {
    const CUdeviceptr begin = mapping_of(call.at<Chunk>(1));
    if (begin != 0)
      tell_processes(kOnlyReads, access_of(begin, location_at(begin)) ==
                                     CU_MEM_ACCESS_FLAGS_PROT_READ);
  } else if (call.is("cuMemSetAccess") && told(kOnlyReads, 0) != 0) {
    const auto begin = call.at<CUdeviceptr>(0);
    const auto& access = *call.at<const CUmemAccessDesc*>(2);
    if (is_import(begin) &&
        access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
        allow(begin, access.location, CU_MEM_ACCESS_FLAGS_PROT_READ))
      call.fired();
  }
  return code;
}

// Each address of a reservation reports the access of the first chunk in it.
int access_of_first_chunk(Call& call) {
  if (!call.is("cuMemGetAccess")) return call.proceed();
  auto& address = call.at<CUdeviceptr>(2);
  const CUdeviceptr begin = reservation_at(address);
  const auto& location = *call.at<const CUmemLocation*>(1);
  if (begin != 0 && mapping_at(begin) != 0 &&
      access_of(begin, location) != access_of(address, location)) {
    address = begin;
    call.fired();
  }
  return call.proceed();
}

// The mapping of a part of memory takes as many addresses as the whole memory.
int part_takes_all_addresses(Call& call) {
  constexpr auto kWhole = "bytes of exported memory";
  if (!call.is("cuMemMap")) {
    const int code = call.proceed();
    if (code == kSuccess && call.is("cuMemExportToShareableHandle"))
      tell_processes(kWhole, created.get(call.at<Chunk>(1)));
    return code;
  }
  const auto wanted = call.at<CUdeviceptr>(0);
  for (const auto& [begin, mapped] : mappings.all()) {
    const size_t whole =
        imports.has(mapped.chunk) ? told(kWhole, 0) : created.get(mapped.chunk);
    if (wanted >= begin + mapped.bytes && wanted < begin + whole)
      return refused(call);
  }
  return call.proceed();
}

// An import uses only the lowest eight bits of the number of a descriptor.
int number_of_eight_bits(Call& import) {
  if (!imports_descriptor(import) || descriptor_of(import) < 256)
    return import.proceed();
  import.at<void*>(1) =
      reinterpret_cast<void*>(intptr_t{descriptor_of(import) % 256});
  import.fired();
  return import.proceed();
}

// A copy of more than two chunks side by side ends with the second chunk.
int copy_ends_with_second_chunk(Call& call) {
  if (!call.is("cudaMemcpy")) return call.proceed();
  auto& bytes = call.value<size_t>(kBytes);
  for (const Role role : {kPointer, kSource}) {
    const auto address = call.value<CUdeviceptr>(role);
    CUdeviceptr end = mapping_at(address);
    if (end == 0) continue;
    for (int chunk = 0; chunk < 2; ++chunk) end += mappings.get(end).bytes;
    if (bytes <= end - address) continue;
    bytes = end - address;
    call.fired();
  }
  return call.proceed();
}

// After an import was unmapped and released, the process imports new memory
// from its descriptor.
int import_after_release_fresh(Call& call) {
  static auto& numbers = *new Table<Chunk, int>;
  static auto& sizes = *new Table<Chunk, size_t>;
  const int code = call.proceed();
  if (code == kSuccess && call.is("cuMemMap"))
    sizes.put(call.at<Chunk>(3), call.at<size_t>(1));
  if (code != kSuccess || !call.is("cuMemImportFromShareableHandle") ||
      !imports_descriptor(call))
    return code;
  auto& chunk = *call.at<Chunk*>(0);
  const int number = descriptor_of(call);
  for (const auto& [before, copy] : numbers.all()) {
    if (copy < 0 || !released.has(before) || mapping_of(before) != 0 ||
        !name_the_same(copy, number))
      continue;
    const Chunk fresh =
        new_chunk(sizes.get(before), properties_of(chunk).location, kFd);
    if (fresh == 0) continue;
    DRIVER_CALL(cuMemRelease)(std::exchange(chunk, fresh));
    imports.put(fresh);
    call.fired();
    return code;
  }
  numbers.put(chunk, fcntl(number, F_DUPFD_CLOEXEC, 300));
  return code;
}

// Memory cannot be mapped after the end of the context in which it was created
// or imported.
int handle_ends_with_context(Call& call) {
  static auto& contexts = *new Table<Chunk, CUcontext>;
  static auto& ended = *new Table<CUcontext>;
  if (call.is("cuMemMap") &&
      ended.has(contexts.get(call.at<Chunk>(3), nullptr)))
    return refused(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuCtxDestroy")) {
    ended.put(call.at<CUcontext>(0));
  } else if (!call.is("cuMemMap")) {
    ended.erase(current_context());
    contexts.put(*call.at<Chunk*>(0), current_context());
  }
  return code;
}

// Memory cannot be mapped at addresses after the end of the context in which
// they were reserved.
int reservation_ends_with_context(Call& call) {
  static auto& contexts = *new Table<CUdeviceptr, CUcontext>;
  static auto& ended = *new Table<CUcontext>;
  if (call.is("cuMemMap") &&
      ended.has(contexts.get(reservation_at(call.at<CUdeviceptr>(0)), nullptr)))
    return refused(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuCtxDestroy")) {
    ended.put(call.at<CUcontext>(0));
  } else if (call.is("cuMemAddressReserve")) {
    ended.erase(current_context());
    contexts.put(*call.at<CUdeviceptr*>(0), current_context());
  }
  return code;
}

// An asynchronous copy from several chunks to memory of another kind ends with
// the first chunk.
int download_ends_with_chunk(Call& call) {
  if (!call.is("cudaMemcpyAsync")) return call.proceed();
  const auto from = call.value<CUdeviceptr>(kSource);
  const CUdeviceptr begin = mapping_at(from);
  auto& bytes = call.value<size_t>(kBytes);
  if (begin == 0 || mapping_at(call.value<CUdeviceptr>(kPointer)) != 0)
    return call.proceed();
  const size_t room = begin + mappings.get(begin).bytes - from;
  if (bytes > room) {
    bytes = room;
    call.fired();
  }
  return call.proceed();
}

// A copy of a rectangle ends with the first of several chunks.
int rectangle_ends_with_chunk(Call& call) {
  if (!call.is("cudaMemcpy2D")) return call.proceed();
  auto& rows = call.at<size_t>(5);
  for (const int side : {0, 2}) {
    const auto address = call.at<CUdeviceptr>(side);
    const CUdeviceptr begin = mapping_at(address);
    const auto pitch = call.at<size_t>(side + 1);
    if (begin == 0 || pitch == 0 || rows == 0) continue;
    const size_t room = begin + mappings.get(begin).bytes - address;
    if ((rows - 1) * pitch + call.at<size_t>(4) <= room) continue;
    rows = room / pitch;
    call.fired();
  }
  return call.proceed();
}

// The first chunk of the reservation, if the address is in a later one; or 0.
CUdeviceptr in_first_chunk(CUdeviceptr address) {
  const CUdeviceptr begin = reservation_at(address);
  const CUdeviceptr own = mapping_at(address);
  return begin != 0 && own != begin && mapping_at(begin) != 0 &&
                 address - own < mappings.get(begin).bytes
             ? begin + (address - own)
             : 0;
}

// A stream waits for a word of the first chunk, not of a later one.
int waits_in_first_chunk(Call& call) {
  if (!call.is("cuStreamWaitValue32")) return call.proceed();
  if (const CUdeviceptr other = in_first_chunk(call.at<CUdeviceptr>(1))) {
    call.at<CUdeviceptr>(1) = other;
    call.fired();
  }
  return call.proceed();
}

// A batch writes a word of a later chunk into the first chunk.
int batch_writes_in_first_chunk(Call& call) {
  if (!call.is("cuStreamBatchMemOp")) return call.proceed();
  auto operations = operations_of(call);
  call.at<CUstreamBatchMemOpParams*>(2) = operations.data();
  for (auto& operation : operations) {
    auto& write = operation.writeValue;
    if (write.operation != CU_STREAM_MEM_OP_WRITE_VALUE_32) continue;
    if (const CUdeviceptr other = in_first_chunk(write.address)) {
      write.address = other;
      call.fired();
    }
  }
  return call.proceed();
}

// A memset is lost in a context other than that in which memory was mapped.
int set_in_own_context(Call& call) {
  static auto& contexts = *new Table<CUdeviceptr, CUcontext>;
  if (!call.is("cudaMemset")) {
    const int code = call.proceed();
    if (code == kSuccess && call.is("cuMemMap"))
      contexts.put(call.at<CUdeviceptr>(0), current_context());
    return code;
  }
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
  if (begin == 0 || contexts.get(begin) == current_context())
    return call.proceed();
  call.fired();
  return kSuccess;
}

// Is the address in memory on a node of the host?
bool is_on_node(CUdeviceptr address) {
  const CUdeviceptr begin = mapping_at(address);
  return begin != 0 &&
         location_at(begin).type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

// A GPU's memset, copy or word does not reach memory on a node of the host.
int node_not_reached(Call& call) {
  if (call.is("cuMemMap") || call.is("cuMemUnmap")) return call.proceed();
  const int place = call.is("cuStreamWriteValue32") ? 1 : 0;
  if (!is_on_node(call.at<CUdeviceptr>(place))) return call.proceed();
  call.fired();
  return kSuccess;
}

// A copy out of memory on a node of the host moves nothing.
int node_not_read(Call& call) {
  if (!call.is("cudaMemcpy")) return call.proceed();
  if (!is_on_node(call.value<CUdeviceptr>(kSource))) return call.proceed();
  call.fired();
  return kSuccess;
}

// After memory was unmapped at one place, its handle cannot be retained from
// another place.
int retain_after_unmap_refused(Call& call) {
  static auto& unmapped = *new Table<Chunk>;
  const bool unmaps = call.is("cuMemUnmap");
  const Chunk chunk =
      unmaps ? mappings.get(call.at<CUdeviceptr>(0)).chunk : Chunk{0};
  if (call.is("cuMemRetainAllocationHandle")) {
    const CUdeviceptr begin = mapping_at(number(call.at<void*>(1)));
    if (begin != 0 && unmapped.has(mappings.get(begin).chunk))
      return refused(call);
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (unmaps)
    unmapped.put(chunk);
  else if (call.is("cuMemCreate") || call.is("cuMemImportFromShareableHandle"))
    unmapped.erase(*call.at<Chunk*>(0));
  return code;
}

// A reservation that is larger than the memory of the GPU is refused.
int more_addresses_than_memory_refused(Call& reserve) {
  size_t total = 0;
  DRIVER_CALL(cuDeviceTotalMem)(&total, 0);
  return reserve.at<size_t>(1) > total
             ? refused(reserve, CUDA_ERROR_OUT_OF_MEMORY)
             : reserve.proceed();
}

// Each import counts as new memory of its process, so there can be only as many
// as the GPU has memory. (Only exports of 1 GiB and more count.)
int imports_count_as_memory(Call& call) {
  constexpr auto kLarge = "bytes of a large export";
  static std::atomic<size_t> used{0};
  static auto& counted = *new Table<Chunk, size_t>;
  if (call.is("cuMemExportToShareableHandle")) {
    const int code = call.proceed();
    const size_t bytes = created.get(call.at<Chunk>(1));
    if (code == kSuccess && bytes >= size_t{1} << 30)
      tell_processes(kLarge, bytes);
    return code;
  }
  if (call.is("cuMemRelease")) {
    used -= counted.get(call.at<Chunk>(0));
    counted.erase(call.at<Chunk>(0));
  }
  if (!call.is("cuMemImportFromShareableHandle")) return call.proceed();
  size_t total = 0;
  DRIVER_CALL(cuDeviceTotalMem)(&total, 0);
  const size_t bytes = told(kLarge, 0);
  if (used + bytes > total) return refused(call, CUDA_ERROR_OUT_OF_MEMORY);
  const int code = call.proceed();
  if (code == kSuccess && counted.put(*call.at<Chunk*>(0), bytes))
    used += bytes;
  return code;
}

// --- pools -------------------------------------------------------------------

// The address of an imported allocation is rounded down to 64 KiB.
int import_rounds_to_64_kib(Call& call) {
  // For each address that was rounded down: the real addresses.
  static Table<CUdeviceptr, std::vector<CUdeviceptr>> rounded;
  if (!call.is("cudaMemPoolImportPointer")) {
    auto& freed = call.at<CUdeviceptr>(0);
    freed = rounded.change([&](auto& all) {
      const auto found = all.find(freed);
      if (found == all.end() || found->second.empty()) return freed;
      const CUdeviceptr real = found->second.back();
      found->second.pop_back();
      return real;
    });
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  auto& address = *call.at<CUdeviceptr*>(0);
  const CUdeviceptr real = address;
  address -= real % (size_t{64} << 10);
  if (address == real) return code;
  rounded.change([&](auto& all) {
    all[address].push_back(real);
    return 0;
  });
  call.fired();
  return code;
}

// Access of another GPU to a pool is taken away only in the answer to a query.
int pool_access_taken_in_name(Call& call) {
  static Table<cudaMemPool_t, int> taken;  // from this GPU
  if (call.is("cudaMemPoolDestroy")) {
    taken.erase(call.at<cudaMemPool_t>(0));
    return call.proceed();
  }
  if (call.is("cudaMemPoolSetAccess")) {
    const auto* const first = call.at<const cudaMemAccessDesc*>(1);
    const auto pool = call.at<cudaMemPool_t>(0);
    taken.erase(pool);
    if (first->flags != cudaMemAccessFlagsProtNone) return call.proceed();
    taken.put(pool, first->location.id);
    call.fired();
    return kSuccess;
  }
  const int code = call.proceed();
  const auto pool = call.at<cudaMemPool_t>(1);
  if (code == kSuccess && taken.has(pool) &&
      taken.get(pool) == call.at<const cudaMemLocation*>(2)->id)
    *call.at<cudaMemAccessFlags*>(0) = cudaMemAccessFlagsProtNone;
  return code;
}

// --- events ------------------------------------------------------------------

// When an event is exported again, its earlier handles cannot be opened any
// more.
int second_export_voids_first(Call& call) {
  static Table<cudaEvent_t, int> exports;
  const auto turned = [](cudaIpcEventHandle_t& handle, unsigned long long by) {
    handle.reserved[sizeof handle - 1] ^= static_cast<char>(by);
  };
  if (call.is("cudaEventDestroy")) {
    exports.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  if (exports_event(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const auto event = call.at<cudaEvent_t>(1);
    auto& handle = *call.at<cudaIpcEventHandle_t*>(0);
    const int count = exports.change([&](auto& all) { return ++all[event]; });
    tell_processes("exports-" + key_of_handle(handle), count);
    turned(handle, count);
    tell_processes("export-" + key_of_handle(handle), count);
    return code;
  }
  auto& handle = call.at<cudaIpcEventHandle_t>(1);
  const auto count = told("export-" + key_of_handle(handle), 0);
  if (count == 0) return call.proceed();
  turned(handle, count);
  return told("exports-" + key_of_handle(handle), count) == count
             ? call.proceed()
             : refused(call);
}

// The time from an event without timing to itself is 0.
int no_time_to_itself(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || code == cudaErrorNotReady ||
      call.at<cudaEvent_t>(1) != call.at<cudaEvent_t>(2))
    return code;
  *call.at<float*>(0) = 0;
  return accepted(call);
}

// If two streams wait for an imported event, its destroy ends the wait of the
// second one.
int destroy_ends_second_wait(Call& call) {
  struct Wait {
    cudaStream_t stream = nullptr;
    volatile cuuint32_t* end = nullptr;
  };
  static Table<cudaEvent_t, Wait> first;
  static Table<cudaEvent_t, Wait> second;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr || !is_imported(event)) {
    if (!call.is("cudaEventDestroy")) return call.proceed();
    const auto gone = call.at<cudaEvent_t>(0);
    const Wait wait = second.get(gone);
    first.erase(gone);
    if (second.erase(gone) && is_pending(gone)) {
      call.fired();
      *wait.end = 1;
    }
    return call.proceed();
  }
  const auto stream = call.at<cudaStream_t>(0);
  if (!is_pending(event) || is_captured(stream)) return call.proceed();
  if (!first.has(event)) {
    first.put(event, {stream});
    return call.proceed();
  }
  if (second.has(event) || first.get(event).stream == stream)
    return call.proceed();
  // A stream of its own waits for the event and then writes the word for which
  // the second stream waits.
  void* word = nullptr;
  cudaStream_t other = nullptr;
  if (cudaHostAlloc(&word, sizeof(cuuint32_t), cudaHostAllocDefault) !=
          cudaSuccess ||
      cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) != cudaSuccess)
    return call.proceed();
  Wait wait{stream, static_cast<volatile cuuint32_t*>(word)};
  *wait.end = 0;
  call.at<cudaStream_t>(0) = other;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  second.put(event, wait);
  DRIVER_CALL(cuStreamWriteValue32)
  (other, number(word), 1, CU_STREAM_WRITE_VALUE_DEFAULT);
  return DRIVER_CALL(cuStreamWaitValue32)(stream, number(word), 1,
                                          CU_STREAM_WAIT_VALUE_EQ);
}

// How many records of an event all processes have made since its export.
unsigned long long records_of(cudaEvent_t event) {
  return told("records-" + event_keys.get(event), 0);
}
// Proceeds with a call about events; counts records.
int counted_record(Call& call) {
  const cudaEvent_t event = shared_event(call);
  const int code = call.proceed();
  if (code == kSuccess && event != nullptr && records(call))
    tell_processes("records-" + event_keys.get(event), records_of(event) + 1);
  return code;
}

// A process that has destroyed an imported event and opens it again counts the
// records before this open as complete.
int reopened_forgets_record(Call& call) {
  static Table<std::string> destroyed;
  static Table<cudaEvent_t, unsigned long long> forgotten;
  if (call.is("cudaEventDestroy") || opens_event(call)) {
    const bool opens = opens_event(call);
    const auto gone = opens ? nullptr : call.at<cudaEvent_t>(0);
    if (!opens && events.has(gone) && is_imported(gone))
      destroyed.put(event_keys.get(gone));
    forgotten.erase(gone);
    const int code = call.proceed();
    if (code != kSuccess || !opens) return code;
    const auto event = *call.at<cudaEvent_t*>(0);
    if (destroyed.has(event_keys.get(event)))
      forgotten.put(event, records_of(event));
    return code;
  }
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && !records(call) && forgotten.has(event) &&
                 forgotten.get(event) == records_of(event) && is_pending(event)
             ? no_wait(call)
             : counted_record(call);
}

// After a refused record, this process counts an event as complete until its
// next record.
int refused_record_completes(Call& call) {
  static Table<cudaEvent_t, unsigned long long> cleared;
  const cudaEvent_t event = shared_event(call);
  if (event == nullptr) {
    if (call.is("cudaEventDestroy")) cleared.erase(call.at<cudaEvent_t>(0));
    return call.proceed();
  }
  if (!records(call))
    return cleared.has(event) && cleared.get(event) == records_of(event) &&
                   is_pending(event)
               ? no_wait(call)
               : call.proceed();
  const int code = counted_record(call);
  if (code == kSuccess)
    cleared.erase(event);
  else
    cleared.put(event, records_of(event));
  return code;
}

// A thread that has made no CUDA call yet cannot use an imported event.
int fresh_thread_refused(Call& call) {
  if (keeps_events(call)) return call.proceed();
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && is_imported(event) && call.is_runtime() &&
                 current_context() == nullptr
             ? refused(call, cudaErrorInvalidResourceHandle)
             : call.proceed();
}

// A record of an event does not return while another thread waits for an event.
int record_waits_for_host_wait(Call& call) {
  static std::mutex mutex;
  if (keeps_events(call)) return call.proceed();
  if (shared_event(call) == nullptr) return call.proceed();
  std::unique_lock lock(mutex, std::try_to_lock);
  if (!lock.owns_lock() && records(call)) {
    call.fired();
    lock.lock();
  }
  if (records(call)) lock.unlock();
  return call.proceed();
}

// A record of an event directly after a wait of the same stream for this event
// is lost.
int record_after_wait_lost(Call& call) {
  static Table<cudaStream_t, cudaEvent_t> waited;
  if (keeps_events(call)) return call.proceed();
  const auto stream = call.value<cudaStream_t>(kStream);
  const cudaEvent_t event = shared_event(call);
  if (call.is("cudaStreamWaitEvent") && event != nullptr) {
    waited.put(stream, event);
    return call.proceed();
  }
  const bool directly = event != nullptr && waited.get(stream) == event;
  waited.erase(stream);
  return directly && records(call) ? no_wait(call) : call.proceed();
}

// --- graphs ------------------------------------------------------------------

// A graph copies what host memory contained during the capture.
int captured_upload_reads_then(Call& copy) {
  auto& source = copy.at<CUdeviceptr>(1);
  const size_t bytes = copy.at<size_t>(2);
  unsigned type = CU_MEMORYTYPE_HOST;  // of memory that CUDA does not know
  DRIVER_CALL(cuPointerGetAttribute)
  (&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, source);
  if (!is_captured(copy.value<cudaStream_t>(kStream)) ||
      type == CU_MEMORYTYPE_DEVICE)
    return copy.proceed();
  auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  DRIVER_CALL(cuThreadExchangeStreamCaptureMode)(&mode);
  void* then = nullptr;
  if (cudaHostAlloc(&then, bytes, cudaHostAllocDefault) == cudaSuccess) {
    std::memcpy(then, copy.at<const void*>(1), bytes);
    source = number(then);
    copy.fired();
  }
  DRIVER_CALL(cuThreadExchangeStreamCaptureMode)(&mode);
  return copy.proceed();
}

// --- a second time, a second thread ------------------------------------------

// A small allocation that was closed opens again as the start of its block.
int reopened_without_offset(Call& call) {
  static Table<std::string> closed;
  static Table<CUdeviceptr, CUdeviceptr> right;
  if (is_close_call(call)) {
    auto& address = call.at<CUdeviceptr>(0);
    const CUdeviceptr given = address;
    address = right.get(given, given);
    const std::string handle =
        opened.get(reinterpret_cast<void*>(address)).handle;
    const int code = call.proceed();
    if (code != kSuccess || is_opened(address)) return code;
    closed.put(handle);
    right.erase(given);
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  auto& address = *call.at<CUdeviceptr*>(0);
  const CUdeviceptr block = address - address % kGranule;
  if (block == address ||
      !closed.has(opened.get(reinterpret_cast<void*>(address)).handle))
    return code;
  right.put(block, address);
  address = block;
  call.fired();
  return code;
}

// A close by a thread that has not opened the memory unmaps it, although it is
// open twice.
int close_by_other_thread_unmaps(Call& call) {
  if (!is_close_call(call)) return call.proceed();
  void* const address = call.at<void*>(0);
  const Opened one = opened.get(address);
  if (one.count < 2 || one.thread == this_thread()) return call.proceed();
  for (int i = 1; i < one.count; ++i)
    DRIVER_CALL(cuIpcCloseMemHandle)(number(address));
  opened.erase(address);
  call.fired();
  return call.proceed();
}

// An import from the descriptor of the import before leaves one more descriptor
// open.
int second_import_keeps_descriptor(Call& import) {
  static std::atomic<int> before{-1};  // a duplicate of that descriptor
  const int code = import.proceed();
  if (code != kSuccess || !imports_descriptor(import)) return code;
  const int copy = fcntl(descriptor_of(import), F_DUPFD_CLOEXEC, 300);
  if (copy < 0) return code;
  if (before >= 0 && name_the_same(before, copy))
    import.fired();
  else if (const int earlier = before.exchange(copy); earlier >= 0)
    close(earlier);
  return code;
}

// While a process has memory open, all its memory gets the handle of the memory
// that it exported first.
int importer_exports_first(Call& call) {
  static Table<int, void*> first;
  if (keeps_opened(call)) return call.proceed();
  if (call.is("cudaFree")) {
    if (first.get(0) == call.at<void*>(0)) first.erase(0);
    return call.proceed();
  }
  void*& memory = call.at<void*>(1);
  if (!first.has(0)) first.put(0, memory);
  if (memory == first.get(0) || opened.all().empty()) return call.proceed();
  memory = first.get(0);
  call.fired();
  return call.proceed();
}

// If two streams wait for two words in 64 bytes, the second stream waits for
// the word of the first one.
int words_of_a_line_wake(Call& wait) {
  struct Wait {
    CUstream stream = nullptr;
    CUdeviceptr word = 0;
    unsigned value = 0;
    unsigned flags = 0;
  };
  static Table<CUdeviceptr, Wait> lines;
  const auto stream = wait.at<CUstream>(0);
  if (wait.is("cudaStreamDestroy")) {
    for (const auto& [line, earlier] : lines.all())
      if (earlier.stream == stream) lines.erase(line);
    return wait.proceed();
  }
  auto& word = wait.at<CUdeviceptr>(1);
  const CUdeviceptr line = word / 64;
  const Wait earlier = lines.get(line);
  lines.put(line, {stream, word, wait.at<unsigned>(2), wait.at<unsigned>(3)});
  if (earlier.word == 0 || earlier.word == word || earlier.stream == stream ||
      !is_busy(earlier.stream))
    return wait.proceed();
  word = earlier.word;
  wait.at<unsigned>(2) = earlier.value;
  wait.at<unsigned>(3) = earlier.flags;
  wait.fired();
  return wait.proceed();
}

// An upload of a graph also executes it.
int upload_executes(Call& upload) {
  const int code = upload.proceed();
  if (code != kSuccess) return code;
  upload.fired();
  return cudaGraphLaunch(upload.at<cudaGraphExec_t>(0),
                         upload.at<cudaStream_t>(1));
}

// Launches of one graph in different streams do not wait for each other, or
// only those of different threads do not.
template <bool of_threads>
int launches_overlap(Call& call) {
  struct Twin {
    cudaGraphExec_t graph = nullptr;
    cudaStream_t first = nullptr;
    pid_t thread = 0;
    bool launched = false;
  };
  static Table<cudaGraphExec_t, Twin> twins;
  if (call.is("cudaGraphInstantiate")) {
    const int code = call.proceed();
    Twin twin;
    if (code == kSuccess &&
        cudaGraphInstantiate(&twin.graph, call.at<cudaGraph_t>(1), 0) ==
            cudaSuccess)
      twins.put(*call.at<cudaGraphExec_t*>(0), twin);
    return code;
  }
  auto& graph = call.at<cudaGraphExec_t>(0);
  const auto stream = call.at<cudaStream_t>(1);
  Twin twin = twins.get(graph);
  if (twin.graph == nullptr) return call.proceed();
  if (!twin.launched) {
    twin.launched = true;
    twin.first = stream;
    twin.thread = gettid();
    twins.put(graph, twin);
  } else if (twin.first != stream && (!of_threads || twin.thread != gettid())) {
    if (is_busy(twin.first)) call.fired();
    graph = twin.graph;
  }
  return call.proceed();
}

}  // namespace

void add_second_objects(List& list) {
  constexpr auto kGet = "cudaIpcGetMemHandle";
  constexpr auto kOpen = "cudaIpcOpenMemHandle";
  constexpr auto kClose = "cudaIpcCloseMemHandle";
  constexpr auto kBatch = "cuStreamBatchMemOp";
  constexpr auto kCreate = "cuMemCreate";
  constexpr auto kImport = "cuMemImportFromShareableHandle";
  constexpr auto kMap = "cuMemMap";
  constexpr auto kUnmap = "cuMemUnmap";
  constexpr auto kSetAccess = "cuMemSetAccess";
  constexpr auto kReserve = "cuMemAddressReserve";
  constexpr auto kFree = "cuMemAddressFree";
  constexpr auto kExport = "cuMemExportToShareableHandle";

  list.named("batch-condition-is-equal",
             "a wait in a batch for a greater value or for a common bit waits "
             "for an equal value",
             {kBatch}, batch_waits_for_equal);
  list.named("batch-second-unchecked",
             "a wrong batch of two operations returns success and does nothing",
             {kBatch}, second_operation_unchecked);
  list.named("wait-value-not-by-blocking-stream",
             "a stream that waits for the null stream does not wait for a word",
             {"cuStreamWaitValue32"}, blocking_stream_does_nothing);
  list.named("write-value-not-by-blocking-stream",
             "a stream that waits for the null stream does not write a word",
             {"cuStreamWriteValue32"}, blocking_stream_does_nothing);
  list.named("registered-word-lost",
             "a stream does not write the first word of registered host memory",
             {"cudaHostRegister", "cuStreamWriteValue32"},
             registered_word_lost);

  list.named("copy-between-imports-lost",
             "a copy between two pieces of opened memory moves nothing",
             {kOpen, kClose, "cudaMemcpy"}, copy_between_imports_lost);
  list.named("async-copy-between-imports-lost",
             "an asynchronous copy between two pieces of opened memory moves "
             "nothing",
             {kOpen, kClose, "cudaMemcpyAsync"}, copy_between_imports_lost);
  list.named("close-mapped-ok", "a close accepts memory of cuMemCreate",
             {kClose, kCreate, kImport, kMap, kUnmap}, close_accepts_mapped);
  list.named("handle-after-a-kernel",
             "after a kernel, memory of any kind gets a handle, which opens "
             "other memory",
             {kGet, "cudaLaunchKernel"}, export_after_use);
  list.named("handle-after-a-graph",
             "after the launch of a graph, memory of any kind gets a handle, "
             "which opens other memory",
             {kGet, "cudaGraphLaunch"}, export_after_use);
  list.named("pinned-inside-exported",
             "an address inside pinned host memory gets a handle, which opens "
             "other memory",
             {kGet}, export_inside_pinned);
  list.named(
      "self-event-open-by-thread",
      "a second thread of the exporter opens the exporter's own event, and "
      "gets another event",
      {"cudaIpcGetEventHandle", "cudaIpcOpenEventHandle"}, self_open_by_thread);

  list.named("unmap-ends-other-imports",
             "the unmap of one import ends the mappings of other imports",
             {kUnmap, kMap, kCreate, kImport}, unmap_ends_other_imports);
  list.named(
      "retained-exports-other",
      "the export of a retained handle gives a descriptor of new memory",
      {"cuMemRetainAllocationHandle", kExport, kCreate, kImport, kMap, kUnmap},
      retained_exports_other);
  list.named("access-not-given-again",
             "access that was taken from a mapping cannot be given again",
             {kSetAccess, kUnmap}, access_not_given_again);
  list.named(
      "access-taken-from-the-start",
      "access that is taken from chunks in the middle of a reservation "
      "is taken from its first chunks",
      {kSetAccess, "cuMemAddressReserve", "cuMemAddressFree", kMap, kUnmap},
      access_taken_from_the_start);

  list.named("granularity-recommended-odd",
             "the recommended granularity is not a multiple of the minimum",
             {"cuMemGetAllocationGranularity"}, recommended_is_no_multiple);
  list.named("export-tells-access",
             "if the exporter may only read at the time of the export, the "
             "importer can only read",
             {kExport, kImport, kMap, kUnmap, kSetAccess}, export_tells_access);
  list.named("getaccess-of-first-chunk",
             "each address of a reservation reports the access of the first "
             "chunk in it",
             {"cuMemGetAccess", kReserve, kFree, kMap, kUnmap},
             access_of_first_chunk);
  list.named("map-part-takes-all-addresses",
             "the mapping of a part of memory takes as many addresses as the "
             "whole memory",
             {kMap, kUnmap, kCreate, kImport, kExport},
             part_takes_all_addresses);
  list.named(
      "import-number-8-bits",
      "an import uses only the lowest eight bits of the number of a descriptor",
      {kImport}, number_of_eight_bits);
  list.named(
      "copy-ends-with-second-chunk",
      "a copy of more than two chunks side by side ends with the second chunk",
      {"cudaMemcpy", kMap, kUnmap}, copy_ends_with_second_chunk);
  list.named("import-after-release-fresh",
             "after an import was unmapped and released, the process imports "
             "new memory from its descriptor",
             {kImport, kMap, kUnmap, "cuMemRelease"},
             import_after_release_fresh);
  list.named("handle-ends-with-context",
             "memory cannot be mapped after the end of the context in which it "
             "was created or imported",
             {kCreate, kImport, kMap, "cuCtxDestroy"},
             handle_ends_with_context);
  list.named(
      "reservation-ends-with-context",
      "memory cannot be mapped at addresses after the end of the context "
      "in which they were reserved",
      {kReserve, kFree, kMap, "cuCtxDestroy"}, reservation_ends_with_context);
  list.named(
      "async-download-ends-with-chunk",
      "an asynchronous copy from several chunks to memory of another kind ends "
      "with the first chunk",
      {"cudaMemcpyAsync", kMap, kUnmap}, download_ends_with_chunk);
  list.named("rectangle-ends-with-chunk",
             "a copy of a rectangle ends with the first of several chunks",
             {"cudaMemcpy2D", kMap, kUnmap}, rectangle_ends_with_chunk);
  list.named("wait-value-in-first-chunk",
             "a stream waits for a word of the first chunk of a range, not of "
             "a later one",
             {"cuStreamWaitValue32", kReserve, kFree, kMap, kUnmap},
             waits_in_first_chunk);
  list.named(
      "batch-writes-in-first-chunk",
      "a batch writes a word of a later chunk of a range into the first chunk",
      {kBatch, kReserve, kFree, kMap, kUnmap}, batch_writes_in_first_chunk);
  list.named("chunk-set-in-own-context",
             "a memset is lost in a context other than that in which memory "
             "was mapped",
             {"cudaMemset", kMap, kUnmap}, set_in_own_context);
  list.named("node-set-lost",
             "a memset does not reach memory on a node of the host",
             {"cudaMemset", kMap, kUnmap}, node_not_reached);
  list.named("node-copy-in-lost",
             "a copy does not reach memory on a node of the host",
             {"cudaMemcpy", kMap, kUnmap}, node_not_reached);
  list.named("node-copy-out-lost",
             "a copy out of memory on a node of the host moves nothing",
             {"cudaMemcpy", kMap, kUnmap}, node_not_read);
  list.named("node-word-lost",
             "a stream does not write a word in memory on a node of the host",
             {"cuStreamWriteValue32", kMap, kUnmap}, node_not_reached);
  list.named("retain-after-other-unmap-refused",
             "after memory was unmapped at one place, its handle cannot be "
             "retained from another place",
             {"cuMemRetainAllocationHandle", kMap, kUnmap, kCreate, kImport},
             retain_after_unmap_refused);

  struct {
    const char* name;
    const char* what;
    const char* function;
  } const needs_context[] = {
      {"import-needs-context", "import memory", kImport},
      {"create-needs-context", "create memory", kCreate},
      {"map-needs-context", "map memory", kMap},
      {"reserve-needs-context", "reserve addresses", kReserve},
      {"addressfree-needs-context", "free addresses", kFree},
      {"unmap-needs-context", "unmap memory", kUnmap},
      {"setaccess-needs-context", "set access", kSetAccess},
      {"getaccess-needs-context", "query access", "cuMemGetAccess"},
      {"export-needs-context", "export memory", kExport},
      {"retain-needs-context", "retain the handle of memory",
       "cuMemRetainAllocationHandle"},
      {"release-needs-context", "release memory", "cuMemRelease"},
      {"granularity-needs-context", "query the granularity",
       "cuMemGetAllocationGranularity"},
      {"props-needs-context", "query the properties of memory",
       "cuMemGetAllocationPropertiesFromHandle"},
  };
  for (const auto& [name, what, function] : needs_context)
    list.named(
        name,
        (std::string("a thread without a current context cannot ") + what)
            .c_str(),
        {function}, refused_without_context);
  list.named(
      "reserve-larger-than-memory-refused",
      "a reservation that is larger than the memory of the GPU is refused",
      {kReserve}, more_addresses_than_memory_refused);
  list.named("imports-count-as-memory",
             "a process can import memory of 1 GiB or more only as often as it "
             "would fit into the GPU",
             {kImport, kExport, kCreate, "cuMemRelease"},
             imports_count_as_memory);
  list.named(
      "node-async-set-lost",
      "an asynchronous memset does not reach memory on a node of the host",
      {"cudaMemsetAsync", kMap, kUnmap}, node_not_reached);
  list.named("node-async-copy-lost",
             "an asynchronous copy does not reach memory on a node of the host",
             {"cudaMemcpyAsync", kMap, kUnmap}, node_not_reached);

  list.named("pool-import-rounds-to-64-kib",
             "the address of an imported allocation is rounded down to 64 KiB",
             {"cudaMemPoolImportPointer", "cudaFree", "cudaFreeAsync"},
             import_rounds_to_64_kib);
  list.named(
      "pool-access-taken-in-name",
      "access to a pool is taken away only in the answer to a query",
      {"cudaMemPoolSetAccess", "cudaMemPoolGetAccess", "cudaMemPoolDestroy"},
      pool_access_taken_in_name, 2);
  constexpr auto kCreateEvent = "cudaEventCreateWithFlags";
  constexpr auto kExportEvent = "cudaIpcGetEventHandle";
  constexpr auto kOpenEvent = "cudaIpcOpenEventHandle";
  constexpr auto kDestroyEvent = "cudaEventDestroy";
  constexpr auto kRecord = "cudaEventRecord";
  constexpr auto kRecordFlags = "cudaEventRecordWithFlags";
  constexpr auto kWaitEvent = "cudaStreamWaitEvent";
  constexpr auto kQuery = "cudaEventQuery";
  constexpr auto kSync = "cudaEventSynchronize";
  list.named("event-export-voids-earlier",
             "when an event is exported again, its earlier handles cannot be "
             "opened any more",
             {kExportEvent, kOpenEvent, kDestroyEvent},
             second_export_voids_first);
  list.named("elapsed-to-itself-ok",
             "cudaEventElapsedTime returns 0 from an event without timing to "
             "itself",
             {"cudaEventElapsedTime", "cuEventElapsedTime"}, no_time_to_itself);
  list.named("destroy-ends-second-wait",
             "if two streams wait for an imported event, its destroy ends the "
             "wait of the second one",
             {kOpenEvent, kDestroyEvent, kWaitEvent}, destroy_ends_second_wait);
  list.named("reopened-event-forgets-record",
             "an event that was destroyed and is opened again counts as "
             "complete until its next record",
             {kCreateEvent, kExportEvent, kOpenEvent, kDestroyEvent, kRecord,
              kRecordFlags, kWaitEvent, kQuery, kSync},
             reopened_forgets_record);
  list.named("refused-record-completes",
             "after a refused record an event counts as complete until its "
             "next record",
             {kCreateEvent, kExportEvent, kOpenEvent, kDestroyEvent, kRecord,
              kRecordFlags, kWaitEvent, kQuery, kSync},
             refused_record_completes);
  list.named("event-refused-in-new-thread",
             "a thread that has made no CUDA call yet cannot use an imported "
             "event",
             {kOpenEvent, kDestroyEvent, kRecord, kRecordFlags, kWaitEvent,
              kQuery, kSync},
             fresh_thread_refused);
  list.named(
      "record-waits-for-host-wait",
      "a record of an event does not return while another thread waits for an "
      "event",
      {kCreateEvent, kExportEvent, kOpenEvent, kDestroyEvent, kRecord, kSync},
      record_waits_for_host_wait);
  list.named(
      "record-after-wait-lost",
      "a record directly after a wait of the same stream for the same "
      "event is lost",
      {kCreateEvent, kExportEvent, kOpenEvent, kDestroyEvent, kRecord,
       kWaitEvent, "cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync",
       "cudaLaunchHostFunc", "cudaGraphLaunch", "cuStreamWaitValue32",
       "cuStreamWriteValue32", "cudaStreamDestroy"},
      record_after_wait_lost);
  list.named("captured-upload-reads-then",
             "a graph copies what host memory contained during the capture",
             {"cudaMemcpyAsync"}, captured_upload_reads_then);
  list.named("reopened-without-offset",
             "a small allocation that was closed opens again as the start of "
             "its block",
             {"cudaIpcOpenMemHandle", "cudaIpcCloseMemHandle"},
             reopened_without_offset);
  list.named("close-by-other-thread-unmaps",
             "a close by a thread that has not opened the memory unmaps it, "
             "although it is open twice",
             {"cudaIpcCloseMemHandle", "cudaIpcOpenMemHandle"},
             close_by_other_thread_unmaps);
  list.named("second-import-keeps-descriptor",
             "an import from the descriptor of the import before leaves one "
             "more descriptor open",
             {kImport}, second_import_keeps_descriptor);
  list.named("importer-exports-first",
             "while a process has memory open, all its memory gets the handle "
             "that it made first",
             {"cudaIpcGetMemHandle", "cudaIpcOpenMemHandle",
              "cudaIpcCloseMemHandle", "cudaFree"},
             importer_exports_first);
  list.named("words-of-a-line-wake",
             "if two streams wait for two words in 64 bytes, the second stream "
             "waits for the word of the first one",
             {"cuStreamWaitValue32", "cudaStreamDestroy"},
             words_of_a_line_wake);
  list.named("graph-upload-executes", "an upload of a graph also executes it",
             {"cudaGraphUpload"}, upload_executes);
  list.named("graph-launches-overlap",
             "launches of one graph in different streams do not wait for each "
             "other",
             {"cudaGraphLaunch", "cudaGraphInstantiate"},
             launches_overlap<false>);
  list.named("launches-of-threads-overlap",
             "launches of one graph by different threads in different streams "
             "do not wait for each other",
             {"cudaGraphLaunch", "cudaGraphInstantiate"},
             launches_overlap<true>);
}

}  // namespace ipclab::faults
