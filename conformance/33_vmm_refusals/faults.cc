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

bool is_shareable_of_held(const CUmemAllocationProp* wanted) {
  return wanted->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
}

FAULTS(list) {
  list.fault("create-any-size",
             "a size that is not a multiple of the granularity is rounded up",
             {"VMM-04"})
      .on({kCreate}, [](Call& call) {
        size_t& bytes = call.at<size_t>(1);
        const size_t unit = granule();
        if (bytes != 0 && bytes % unit == 0) return call.proceed();
        bytes = (bytes / unit + 1) * unit;
        call.fired();
        return call.proceed();
      });

  list.fault("flags-ignored", "reserved flags that are not zero are accepted",
             {"VMM-05", "POOL-03", "IMPL-09"})
      .before({kCreate, kReserve, kMap, kExport, kExportPool, kImportPool},
              [](Call& call) {
                Argument& flags = *call.find(kFlags);
                static constexpr char kNone[8] = {};
                if (std::memcmp(flags.place, kNone, flags.size) != 0) {
                  std::memset(flags.place, 0, flags.size);
                  call.fired();
                }
              });

  list.fault("export-unrequested",
             "memory is exported as a descriptor although it was created for "
             "another type or for none",
             {"VMM-09", "POOL-03"})
      .on({kExport, kCreate, kExportPool}, export_unrequested);

  list.fault("import-accepts-any-fd",
             "the import of any open descriptor gives other memory, or another "
             "pool",
             {"VMM-11", "IMPL-09"})
      .on({kImport, kImportPool}, [](Call& call) -> int {
        const int code = call.proceed();
        if (code == kSuccess || !imports_descriptor(call) ||
            !is_open(descriptor_of(call)))
          return code;
        return accept(call);
      });

  list.fault("fd-kind-confused",
             "a pool's descriptor is imported as other memory, and the "
             "descriptor of memory as another pool",
             {"VMM-12"})
      .on({kImport, kImportPool}, kinds_confused);

  list.fault("chunk-taken-for-pool",
             "an allocation's descriptor is imported as another pool",
             {"VMM-12"})
      .on({kImportPool}, kinds_confused);

  list.fault("import-after-refusal-refused",
             "after a refused import the next import is also refused",
             {"VMM-11"})
      .on({kImport}, [](Call& call) {
        static std::atomic<bool> before{false};
        if (before.exchange(false)) return refused(call);
        const int code = call.proceed();
        before = code != kSuccess;
        return code;
      });

  list.fault("import-type-ignored",
             "a descriptor is imported as any handle type", {"VMM-11"})
      .on({kImport}, [](Call& call) -> int {
        const int code = call.proceed();
        auto& type = call.at<CUmemAllocationHandleType>(2);
        if (code == kSuccess || type == kFd || type == kFabric) return code;
        type = kFd;
        const int again = call.proceed();
        if (again == kSuccess) call.fired();
        return again;
      });

  list.fault("flags-upper-half-ignored",
             "the upper half of reserved flags is not checked", {"VMM-05"})
      .on({kCreate, kReserve, kMap, kExport}, [](Call& call) {
        auto& flags = call.value<unsigned long long>(kFlags);
        if (flags <= UINT32_MAX) return call.proceed();
        flags &= UINT32_MAX;
        call.fired();
        return call.proceed();
      });

  list.fault("chunks-end-at-64",
             "a process cannot create more than 64 allocations at once",
             {"VMM-04"})
      .on({kCreate, kRelease}, [](Call& call) {
        return refused_beyond<64>(call, "cuMemCreate", 0);
      });

  list.fault("create-after-refusal-refused",
             "after a refused cuMemCreate the next one is refused, too",
             {"VMM-04"})
      .on({kCreate}, next_refused);

  list.fault("export-after-refusal-refused",
             "after a refused export of memory the next one is refused, too",
             {"VMM-09"})
      .on({kExport}, next_refused);

  list.fault("refused-import-closes-descriptor",
             "a refused import closes the descriptor", {"VMM-11"})
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

  list.fault("fabric-unrequested-ok",
             "an export of memory that was created for descriptors as a fabric "
             "handle returns success and a handle of zeros",
             {"VMM-09"})
      .on({kExport}, [](Call& call) {
        const int code = call.proceed();
        if (code == kSuccess ||
            call.at<CUmemAllocationHandleType>(2) != kFabric ||
            properties_of(call.at<Chunk>(1)).requestedHandleTypes != kFd)
          return code;
        std::memset(call.at<void*>(0), 0, sizeof(CUmemFabricHandle));
        return accepted(call);
      });

  list.fault("create-64-kib-multiple-ok",
             "cuMemCreate rounds a multiple of 64 KiB up to whole granules",
             {"VMM-04"})
      .on({kCreate}, [](Call& call) {
        constexpr size_t kPage = 64 << 10;
        const int code = call.proceed();
        auto& bytes = call.at<size_t>(1);
        if (code == kSuccess || bytes == 0 || bytes % kPage != 0 ||
            bytes % kGranule == 0)
          return code;
        bytes += kGranule - bytes % kGranule;
        call.fired();
        return call.proceed();
      });

  list.fault("export-type-unchecked-later",
             "after its first export, memory of cuMemCreate can be exported as "
             "any handle type, and always gives a descriptor",
             {"VMM-09"})
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

  list.fault("import-accepts-file",
             "an ordinary file is imported as memory of cuMemCreate",
             {"VMM-11"})
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

  list.fault("create-more-than-there-is",
             "memory that is larger than the memory of the GPU can be created",
             {"VMM-04"})
      .on({kCreate}, [](Call& call) {
        auto& bytes = call.at<size_t>(1);
        const int code = call.proceed();
        if (code == kSuccess || bytes < kMoreThanAnyGpuHas ||
            bytes % kGranule != 0)
          return code;
        bytes = kGranule;
        return call.proceed() == kSuccess ? accepted(call) : code;
      });

  list.fault("import-type-masked",
             "a descriptor is imported as any handle type that includes the "
             "bit of descriptors",
             {"VMM-11"})
      .on({kImport}, handle_type_masked);

  list.fault("export-type-masked",
             "memory is exported as any handle type that includes the bit of "
             "descriptors",
             {"VMM-09"})
      .on({kExport}, handle_type_masked);

  list.fault("create-shareable-any-size",
             "memory with a handle type can have any size", {"VMM-04"})
      .before({kCreate}, [](Call& call) {
        auto& bytes = call.at<size_t>(1);
        if (is_shareable_of_held(call.at<const CUmemAllocationProp*>(2)) &&
            bytes != 0 && bytes % kGranule != 0) {
          bytes = (bytes / kGranule + 1) * kGranule;
          call.fired();
        }
      });

  list.fault("flags-middle-bits-ignored",
             "of reserved flags, only the first and the last bit are checked",
             {"VMM-05"})
      .before({kCreate, kReserve, kMap, kExport}, [](Call& call) {
        constexpr auto kChecked = 1ull << 63 | 1;
        auto& flags = call.value<unsigned long long>(kFlags);
        if ((flags & ~kChecked) != 0) {
          flags &= kChecked;
          call.fired();
        }
      });

  list.fault("import-map-flags-ignored",
             "the flags of a mapping of imported memory are not checked",
             {"VMM-05"})
      .before({kMap}, [](Call& call) {
        auto& flags = call.value<unsigned long long>(kFlags);
        if (flags != 0 && imports.has(call.at<Chunk>(3))) {
          flags = 0;
          call.fired();
        }
      });
}

}  // namespace
}  // namespace ipclab::faults
