// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstring>
#include <string>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int foreign_channel_accepted(Call& call) {
  const int code = call.proceed();
  return code == CUDA_ERROR_NOT_PERMITTED && is_fabric(call) ? accept(call)
                                                             : code;
}

int fabric_stale_opens_other(Call& call) {
  constexpr size_t kWords = kFabricBytes / sizeof(unsigned long long);
  unsigned long long words[kWords] = {};
  const auto key = [](size_t i) { return "fabric-" + std::to_string(i); };
  const int code = call.proceed();
  if (!is_fabric(call)) return code;
  if (call.is("cuMemExportToShareableHandle")) {
    if (code != kSuccess || !first_of_all_processes("fabric")) return code;
    std::memcpy(words, call.at<void*>(0), sizeof words);
    for (size_t i = 0; i < kWords; ++i) tell_processes(key(i), words[i]);
    return code;
  }
  if (code == kSuccess) return code;
  for (size_t i = 0; i < kWords; ++i) words[i] = told(key(i), 0);
  call.at<void*>(1) = words;
  const int again = call.proceed();
  if (again == kSuccess) call.fired();
  return again;
}

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

// CUDA_ERROR_FABRIC_NOT_READY, which came with CUDA 13.4.
constexpr int kFabricNotReady = 919;

// Does the call create or import memory, or a pool, with a fabric handle?
bool is_for_fabric(Call& call) {
  if (call.is("cuMemCreate")) {
    const auto* wanted = call.at<const CUmemAllocationProp*>(2);
    return wanted != nullptr && (wanted->requestedHandleTypes & kFabric) != 0;
  }
  if (call.is("cudaMemPoolCreate")) {
    const auto* wanted = call.at<const cudaMemPoolProps*>(1);
    return wanted != nullptr &&
           (wanted->handleTypes & cudaMemHandleTypeFabric) != 0;
  }
  return is_fabric(call);
}

int not_ready_at_first(Call& call) {
  static std::atomic<unsigned> told{0};  // a bit for each function
  const unsigned bit = call.is("cuMemCreate")                      ? 1
                       : call.is("cudaMemPoolCreate")              ? 2
                       : call.is("cuMemImportFromShareableHandle") ? 4
                                                                   : 8;
  if (!is_for_fabric(call) || (told.fetch_or(bit) & bit) != 0)
    return call.proceed();
  call.fired();
  return kFabricNotReady;
}

FAULTS {
  fault("fabric-no-imex-ok", {"FABR-02"},
        "cuMemCreate for a fabric handle succeeds where no IMEX channel is "
        "usable, but the memory has no handle type")
      .on({kCreate}, [](Call& call) {
        CUmemAllocationProp wanted = *call.at<const CUmemAllocationProp*>(2);
        const int code = call.proceed();
        if (code == kSuccess || (wanted.requestedHandleTypes & kFabric) == 0)
          return code;
        wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
        call.at<const CUmemAllocationProp*>(2) = &wanted;
        call.fired();
        return call.proceed();
      });

  fault("imex-check-missing", {"FABR-05"},
        "the import of a fabric handle without access to its IMEX channel "
        "gives other memory")
      .on_machine("fabric")
      .on({kImport, kImportPool}, foreign_channel_accepted);

  fault("imex-pool-check-missing", {"FABR-05"},
        "the import of a pool's fabric handle without access to its IMEX "
        "channel gives another pool")
      .on_machine("fabric")
      .on({kImportPool}, foreign_channel_accepted);

  fault("fabric-stale-maps", {"FABR-07"},
        "a fabric handle of memory that is gone opens other memory")
      .on_machine("fabric")
      .on({kImport, kExport}, fabric_stale_opens_other);

  fault("fabric-single-use", {"FABR-04"},
        "a fabric handle can be imported only once")
      .on_machine("fabric")
      .on({kImport},
          WHEN(is_fabric(call) && !first_of_all_processes(
                                      key_of(call.at<void*>(1), kFabricBytes))),
          refuses());

  fault("fabric-opens-first", {"FABR-04"},
        "every fabric handle opens the memory of the first handle")
      .on_machine("fabric")
      .on({kImport}, [](Call& call) {
        static CUmemFabricHandle first{};
        static std::atomic<bool> known{false};
        if (!is_fabric(call)) return call.proceed();
        if (!known.exchange(true))
          std::memcpy(&first, call.at<void*>(1), kFabricBytes);
        if (std::memcmp(&first, call.at<void*>(1), kFabricBytes) != 0)
          call.fired();
        call.at<void*>(1) = &first;
        return call.proceed();
      });

  fault("fabric-pool-single-use", {"FABR-04"},
        "a pool's fabric handle can be imported only once")
      .on_machine("fabric")
      .on({kImportPool},
          WHEN(call.at<Handles>(2) == cudaMemHandleTypeFabric &&
               !first_of_all_processes(
                   key_of(call.at<void*>(1), sizeof(cudaMemFabricHandle_t)))),
          refuses());

  fault(
      "imex-refused-as-value", {"FABR-05"},
      "a fabric handle of another IMEX channel is refused as an invalid value")
      .on_machine("fabric")
      .on({kImport}, [](Call& call) {
        const int code = call.proceed();
        return code == CUDA_ERROR_NOT_PERMITTED ? refused(call) : code;
      });

  fault("ok-fabric-beside-fd-refused", {"FABR-06"},
        "memory that was created for descriptors and fabric handles can only "
        "be exported as a descriptor")
      .on_machine("fabric")
      .on({kExport}, [](Call& call) {
        constexpr int kBoth = kFd | kFabric;
        const int types = properties_of(call.at<Chunk>(1)).requestedHandleTypes;
        return (types & kBoth) == kBoth &&
                       call.at<CUmemAllocationHandleType>(2) == kFabric
                   ? refused(call)
                   : call.proceed();
      });

  fault("fabric-beside-fd-fresh", {"FABR-06"},
        "the fabric handle of memory that was also created for descriptors "
        "opens other memory")
      .on_machine("fabric")
      .before({kExport}, [](Call& call) -> bool {
        if (call.at<CUmemAllocationHandleType>(2) != kFabric) return false;
        CUmemAllocationProp wanted = properties_of(call.at<Chunk>(1));
        const size_t bytes = created.get(call.at<Chunk>(1));
        Chunk other = 0;
        if (wanted.requestedHandleTypes != (kFabric | kFd) || bytes == 0 ||
            DRIVER_CALL(cuMemCreate)(&other, bytes, &wanted, 0) != CUDA_SUCCESS)
          return false;
        call.at<Chunk>(1) = other;
        return true;
      });

  fault("second-fabric-handle-elsewhere", {"FABR-04"},
        "the second fabric handle of memory stands for new memory")
      .on_machine("fabric-13.5")
      .on({kExport, kCreate, kImport, kRelease},
          second_fabric_handle_elsewhere);

  fault("fabric-import-dies-with-exporter", {"FABR-04"},
        "memory that was exported and may have a fabric handle is cleared when "
        "its exporter unmaps it")
      .on_machine("fabric-13.5")
      .before({kUnmap}, [](Call& call) -> bool {
        const CUdeviceptr begin = call.at<CUdeviceptr>(0);
        const Mapped mapped = mappings.get(begin);
        return mapped.bytes == call.at<size_t>(1) &&
               exports.has(mapped.chunk) &&
               (properties_of(mapped.chunk).requestedHandleTypes & kFabric) !=
                   0 &&
               DRIVER_CALL(cuMemsetD8)(begin, 0, mapped.bytes) == CUDA_SUCCESS;
      });

  fault("exported-import-fabric-fresh", {"FABR-04"},
        "the export of an import succeeds, but its fabric handle stands for "
        "new memory")
      .on_machine("fabric-13.5")
      .on({kExport, kImport, kCreate}, exported_import_is_new<kFabric>);

  fault("fabric-not-ready-keeps-memory", {"FABR-10"},
        "a creation that is refused because the fabric is not ready has "
        "created the memory")
      .on_machine("late-fabric")
      .on_refusal({kCreate}, [](Call& call) {
        if (call.code() != kFabricNotReady) return;
        CUmemAllocationProp plain = *call.at<const CUmemAllocationProp*>(2);
        plain.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
        Chunk kept = 0;
        DRIVER_CALL(cuMemCreate)(&kept, call.at<size_t>(1), &plain, 0);
      });

  fault("fabric-not-ready-is-final", {"FABR-10"},
        "after a call for which the fabric was not ready, further calls are "
        "refused")
      .on_machine("late-fabric")
      .on({kCreate, kImport}, [](Call& call) {
        static std::atomic<bool> was_refused{false};
        const int code = was_refused ? refused(call) : call.proceed();
        if (code == kFabricNotReady) was_refused = true;
        return code;
      });

  fault("fabric-not-ready-import-elsewhere", {"FABR-10"},
        "an import that is tried again because the fabric was not ready gives "
        "new memory")
      .on_machine("late-fabric")
      .on({kImport, kMap, kUnmap}, [](Call& call) {
        static std::atomic<bool> was_refused{false};
        if (!call.is("cuMemImportFromShareableHandle"))
          return map_other_memory(call, false);
        const int code = noted_import(call, was_refused);
        if (code == kFabricNotReady) was_refused = true;
        return code;
      });

  fault("ok-fabric-not-ready-at-first", {"FABR-10", "FABR-02", "FABR-04"},
        "each function answers the first call for the fabric that it is not "
        "ready")
      .on_machine("fabric-13.5")
      .on({kCreate, kImport, kCreatePool, kImportPool}, not_ready_at_first);
}

}  // namespace
}  // namespace ipclab::faults
