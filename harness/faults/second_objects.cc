// Bugs that show only with a second object: two imports in one call, a stream
// of another kind, the second operation of a batch, a second thread, a chunk in
// the middle, or an attempt after the object was used.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <atomic>

#include "chunk_calls.h"
#include "legacy_calls.h"

namespace ipclab::faults {
namespace {

// --- words -------------------------------------------------------------------

// A wait in a batch for a greater value, or for a common bit, waits for an
// equal value.
int batch_waits_for_equal(Call& batch) {
  auto* const operations = batch.at<CUstreamBatchMemOpParams*>(2);
  for (unsigned i = 0; i < batch.at<unsigned>(1); ++i) {
    auto& wait = operations[i].waitValue;
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

// A batch of two operations is checked only at its first operation.
int second_operation_unchecked(Call& batch) {
  const int code = batch.proceed();
  return code != kSuccess && batch.at<unsigned>(1) == 2 ? accepted(batch)
                                                        : code;
}

// A stream does not write a word in registered host memory.
int registered_word_lost(Call& call) {
  static Table<CUdeviceptr> registered;
  if (call.is("cudaHostRegister")) {
    registered.put(number(call.at<void*>(0)));
    return call.proceed();
  }
  if (!registered.has(call.at<CUdeviceptr>(1))) return call.proceed();
  call.fired();
  return kSuccess;
}

// --- legacy handles ----------------------------------------------------------

// A copy from opened memory to other opened memory moves nothing.
int copy_between_imports_lost(Call& call) {
  if (keeps_opened(call)) return noted_open(call);
  if (!opened.has(call.at<void*>(0)) ||
      !opened.has(const_cast<void*>(call.at<const void*>(1))))
    return call.proceed();
  call.fired();
  return kSuccess;
}

// A close accepts memory of cuMemCreate.
int close_accepts_mapped(Call& call) {
  if (!is_close_call(call)) return noted_chunks(call);
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
int self_open_by_thread(Call& open) {
  const int code = open.proceed();
  if (code == kSuccess || this_thread() == getpid() ||
      cudaEventCreateWithFlags(open.at<cudaEvent_t*>(0),
                               cudaEventDisableTiming) != cudaSuccess)
    return code;
  return accepted(open);
}

// --- memory of cuMemCreate ---------------------------------------------------

// The unmap of one import ends the mappings of the other imports.
int unmap_ends_other_imports(Call& call) {
  if (!call.is("cuMemUnmap") || !is_import(call.at<CUdeviceptr>(0)))
    return noted_chunks(call);
  const CUdeviceptr own = mapping_at(call.at<CUdeviceptr>(0));
  const Chunk chunk = mappings.get(own).chunk;
  for (const auto& [begin, mapped] : mappings.all()) {
    if (mapped.chunk == chunk || !imports.has(mapped.chunk) ||
        DRIVER_CALL(cuMemUnmap)(begin, mapped.bytes) != CUDA_SUCCESS)
      continue;
    mappings.erase(begin);
    call.fired();
  }
  return noted_chunks(call);
}

// The export of a retained handle gives a descriptor of new memory.
int retained_exports_other(Call& call) {
  static Table<Chunk> retained;
  if (call.is("cuMemRetainAllocationHandle")) {
    const int code = call.proceed();
    if (code == kSuccess) retained.put(*call.at<Chunk*>(0));
    return code;
  }
  auto& chunk = call.at<Chunk>(1);
  const CUmemAllocationProp wanted = properties_of(chunk);
  Chunk other = 0;
  if (!retained.has(chunk) ||
      DRIVER_CALL(cuMemCreate)(&other, kGranule, &wanted, 0) != CUDA_SUCCESS)
    return call.proceed();
  chunk = other;
  call.fired();
  return call.proceed();
}

bool takes_access(Call& set) {
  return set.at<const CUmemAccessDesc*>(2)->flags ==
         CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

// Access that was taken away cannot be given again.
int access_not_given_again(Call& set) {
  static Table<CUdeviceptr> taken;
  const auto address = set.at<CUdeviceptr>(0);
  if (takes_access(set)) taken.put(address);
  if (takes_access(set) || !taken.has(address)) return set.proceed();
  set.fired();
  return kSuccess;
}

// Access that is taken from chunks in the middle of a reservation is taken from
// its first chunks.
int access_taken_from_the_start(Call& call) {
  if (!call.is("cuMemSetAccess")) return noted_chunks(call);
  auto& address = call.at<CUdeviceptr>(0);
  const CUdeviceptr begin = reservation_at(address);
  if (begin != 0 && begin != address && takes_access(call)) {
    address = begin;
    call.fired();
  }
  return call.proceed();
}

// --- pools -------------------------------------------------------------------

// The address of an imported allocation is rounded down to 64 KiB.
int import_rounds_to_64_kib(Call& import) {
  const int code = import.proceed();
  if (code != kSuccess) return code;
  auto& address = *import.at<char**>(0);
  const auto beyond = number(address) % (size_t{64} << 10);
  if (beyond == 0) return code;
  address -= beyond;
  import.fired();
  return code;
}

// Access of another GPU to a pool is taken away only in the answer to a query.
int pool_access_taken_in_name(Call& call) {
  static Table<cudaMemPool_t, int> taken;  // from this GPU
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

  list.named("batch-condition-is-equal",
             "a wait in a batch for a greater value or for a common bit waits "
             "for an equal value",
             {kBatch}, batch_waits_for_equal);
  list.named("batch-second-unchecked",
             "only the first of two operations of a batch is checked", {kBatch},
             second_operation_unchecked);
  list.named("wait-value-not-by-blocking-stream",
             "a stream that waits for the null stream does not wait for a word",
             {"cuStreamWaitValue32"}, blocking_stream_does_nothing);
  list.named("write-value-not-by-blocking-stream",
             "a stream that waits for the null stream does not write a word",
             {"cuStreamWriteValue32"}, blocking_stream_does_nothing);
  list.named("registered-word-lost",
             "a stream does not write a word in registered host memory",
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
      {"cudaIpcOpenEventHandle"}, self_open_by_thread);

  list.named("unmap-ends-other-imports",
             "the unmap of one import ends the mappings of other imports",
             {kUnmap, kMap, kCreate, kImport}, unmap_ends_other_imports);
  list.named("retained-exports-other",
             "the export of a retained handle gives a descriptor of new memory",
             {"cuMemRetainAllocationHandle", "cuMemExportToShareableHandle"},
             retained_exports_other);
  list.named("access-not-given-again",
             "access that was taken away cannot be given again", {kSetAccess},
             access_not_given_again);
  list.named(
      "access-taken-from-the-start",
      "access that is taken from chunks in the middle of a reservation "
      "is taken from its first chunks",
      {kSetAccess, "cuMemAddressReserve", "cuMemAddressFree", kMap, kUnmap},
      access_taken_from_the_start);

  list.named("pool-import-rounds-to-64-kib",
             "the address of an imported allocation is rounded down to 64 KiB",
             {"cudaMemPoolImportPointer"}, import_rounds_to_64_kib);
  list.named("pool-access-taken-in-name",
             "access to a pool is taken away only in the answer to a query",
             {"cudaMemPoolSetAccess", "cudaMemPoolGetAccess"},
             pool_access_taken_in_name, 2);
}

}  // namespace ipclab::faults
