// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int export_unrequested(Call& call) {
  static Table<Chunk> unrequested;
  if (call.is("cuMemCreate")) {
    CUmemAllocationProp wanted = *call.at<const CUmemAllocationProp*>(2);
    const bool is_meant = wanted.requestedHandleTypes == 0;
    if (is_meant) wanted.requestedHandleTypes = kFd;
    call.at<const CUmemAllocationProp*>(2) = &wanted;
    const int made = call.proceed();
    if (made != kSuccess) return made;
    unrequested.erase(*call.at<Chunk*>(0));  // earlier memory had the handle
    if (is_meant) unrequested.put(*call.at<Chunk*>(0));
    return made;
  }
  const int code = call.proceed();
  if (code == kSuccess) {
    if (call.is("cuMemExportToShareableHandle") &&
        unrequested.has(call.at<Chunk>(1)))
      call.fired();
    return code;
  }
  auto& type = call.at<CUmemAllocationHandleType>(2);
  type = kFd;
  const int again = call.proceed();
  if (again == kSuccess) call.fired();
  return again;
}

// Is a pool imported as a chunk, or a chunk as a pool?
bool is_of_the_other_kind(Call& call) {
  if (call.is("cuMemImportFromShareableHandle")) {
    CUmemoryPool pool = nullptr;
    if (DRIVER_CALL(cuMemPoolImportFromShareableHandle)(
            &pool, call.at<void*>(1), kFd, 0) != CUDA_SUCCESS)
      return false;
    DRIVER_CALL(cuMemPoolDestroy)(pool);
    return true;
  }
  Chunk chunk = 0;
  if (DRIVER_CALL(cuMemImportFromShareableHandle)(&chunk, call.at<void*>(1),
                                                  kFd) != CUDA_SUCCESS)
    return false;
  DRIVER_CALL(cuMemRelease)(chunk);
  return true;
}

int kinds_confused(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || !imports_descriptor(call) ||
      !is_of_the_other_kind(call))
    return code;
  return accept(call);
}

constexpr size_t kMoreThanAnyGpuHas = size_t{1} << 40;

// Of a handle type only the bit of descriptors is looked at.
int handle_type_masked(Call& call) {
  auto& type = call.at<CUmemAllocationHandleType>(2);
  if (type != kFd && (type & kFd) != 0) {
    type = kFd;
    call.fired();
  }
  return call.proceed();
}

FAULTS {
  fault("ok-create-any-size", {"VMM-04"},
        "a size that is not a multiple of the granularity is rounded up")
      .before({kCreate}, [](Call& call) -> bool {
        size_t& bytes = call.at<size_t>(1);
        const size_t unit = granule();
        if (bytes != 0 && bytes % unit == 0) return false;
        bytes = (bytes / unit + 1) * unit;
        return true;
      });

  fault("ok-flags-ignored", {"VMM-05"},
        "reserved flags of memory that are not zero are accepted")
      .before({kCreate, kReserve, kMap, kExport}, flags_ignored);

  fault("refused-flags-map", {"VMM-05"},
        "a mapping that is refused because of its flags exists all the same")
      .on_refusal({kMap}, WHEN(call.value<unsigned long long>(kFlags) != 0),
                  [](Call& call) {
                    DRIVER_CALL(cuMemMap)
                    (call.at<CUdeviceptr>(0), call.at<size_t>(1), 0,
                     call.at<Chunk>(3), 0);
                  });

  fault("export-unrequested", {"VMM-09", "POOL-03"},
        "memory is exported as a descriptor although it was created for "
        "another type or for none")
      .on({kExport, kCreate, kExportPool}, export_unrequested);

  fault("ok-fd-kind-confused", {"VMM-12"},
        "a pool's descriptor is imported as other memory, and the descriptor "
        "of memory as another pool")
      .on({kImport, kImportPool}, kinds_confused);

  fault("import-after-refusal-refused", {"VMM-11", "VMM-12"},
        "after a refused import the next import is also refused")
      .on({kImport}, [](Call& call) {
        static std::atomic<bool> before{false};
        if (before.exchange(false)) return refused(call);
        const int code = call.proceed();
        before = code != kSuccess;
        return code;
      });

  fault("ok-import-type-ignored", {"VMM-11", "VMM-30"},
        "a descriptor is imported as any handle type")
      .on({kImport}, [](Call& call) -> int {
        const int code = call.proceed();
        auto& type = call.at<CUmemAllocationHandleType>(2);
        if (code == kSuccess || type == kFd || type == kFabric) return code;
        type = kFd;
        const int again = call.proceed();
        if (again == kSuccess) call.fired();
        return again;
      });

  fault("chunks-end-at-64", {"VMM-04"},
        "a process cannot create more than 64 allocations at once")
      .on({kCreate, kRelease}, [](Call& call) {
        return refused_beyond<64>(call, "cuMemCreate", 0);
      });

  fault("create-after-refusal-refused", {"VMM-04"},
        "after a refused cuMemCreate the next one is refused, too")
      .on({kCreate}, next_refused);

  fault("export-after-refusal-refused", {"VMM-09"},
        "after a refused export of memory the next one is refused, too")
      .on({kExport}, next_refused);

  fault("refused-import-closes-descriptor", {"VMM-11"},
        "a refused import closes the descriptor")
      .on({kImport}, [](Call& call) {
        const int code = call.proceed();
        if (code == kSuccess || !imports_descriptor(call)) {
          // If the type is wrong, the argument can still be a descriptor: a
          // small number.
          const auto number = call.at<uintptr_t>(1);
          if (code == kSuccess || number > 4096) return code;
        }
        const int number = descriptor_of(call);
        // Standard input, output and error stay open.
        if (number > 2 && close(number) == 0) call.fired();
        return code;
      });

  fault("fabric-unrequested-ok", {"VMM-09"},
        "an export of memory that was created for descriptors as a fabric "
        "handle returns success and a handle of zeros")
      .on_refusal(
          {kExport},
          WHEN(call.at<CUmemAllocationHandleType>(2) == kFabric &&
               properties_of(call.at<Chunk>(1)).requestedHandleTypes == kFd),
          [](Call& call) {
            std::memset(call.at<void*>(0), 0, sizeof(CUmemFabricHandle));
            return accepted(call);
          });

  fault("export-type-unchecked-later", {"VMM-09"},
        "after its first export, memory of cuMemCreate can be exported as any "
        "handle type, and always gives a descriptor")
      .on({kExport, kRelease}, [](Call& call) {
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
      });

  fault("ok-import-accepts-file", {"VMM-11"},
        "an ordinary file is imported as memory of cuMemCreate")
      .on({kImport}, [](Call& call) {
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
      });

  fault("create-more-than-there-is", {"VMM-04"},
        "memory that is larger than the memory of the GPU can be created")
      .on({kCreate}, [](Call& call) {
        auto& bytes = call.at<size_t>(1);
        const int code = call.proceed();
        if (code == kSuccess || bytes < kMoreThanAnyGpuHas ||
            bytes % kGranule != 0)
          return code;
        bytes = kGranule;
        return call.proceed() == kSuccess ? accepted(call) : code;
      });

  fault("export-type-masked", {"VMM-09"},
        "memory is exported as any handle type that includes the bit of "
        "descriptors")
      .on({kExport}, handle_type_masked);
}

}  // namespace
}  // namespace ipclab::faults
