// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// A pool of GPU 0 that can be exported to descriptors.
cudaMemPool_t shareable_pool() {
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.handleTypes = kPoolFd;
  cudaMemPool_t pool = nullptr;
  cudaMemPoolCreate(&pool, &wanted);
  return pool;
}

int none_is_exported(Call& call) {
  static Table<cudaMemPool_t> none;
  if (call.is("cudaMemPoolExportToShareableHandle")) {
    const int code = call.proceed();
    if (code == kSuccess && none.has(call.at<cudaMemPool_t>(1))) call.fired();
    return code;
  }
  cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
  const bool applies = wanted.handleTypes == cudaMemHandleTypeNone &&
                       wanted.allocType == cudaMemAllocationTypePinned &&
                       wanted.location.type == cudaMemLocationTypeDevice;
  if (applies) {
    wanted.handleTypes = kPoolFd;
    call.at<const cudaMemPoolProps*>(1) = &wanted;
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (applies)
    none.put(*call.at<cudaMemPool_t*>(0));
  else
    none.erase(*call.at<cudaMemPool_t*>(0));
  return code;
}

int imported_exported_again(Call& call) {
  static Table<cudaMemPool_t, int> descriptors;
  const int code = call.proceed();
  if (call.is("cudaMemPoolDestroy")) {
    descriptors.erase(call.at<cudaMemPool_t>(0));
    return code;
  }
  if (call.is("cudaMemPoolImportFromShareableHandle")) {
    if (code == kSuccess && call.at<Handles>(2) == kPoolFd)
      descriptors.put(*call.at<cudaMemPool_t*>(0),
                      fcntl(descriptor_of(call), F_DUPFD_CLOEXEC, 0));
    return code;
  }
  const int descriptor = descriptors.get(call.at<cudaMemPool_t>(1), -1);
  if (code == kSuccess || descriptor == -1 || call.at<Handles>(2) != kPoolFd)
    return code;
  *call.at<int*>(0) = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  return accepted(call);
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

int error_of_all_threads(Call& call) {
  static std::atomic<int> last{kSuccess}, teller{0};
  const int code = call.proceed();
  if (exports_of_pool_path(call)) {
    if (code != kSuccess && call.is_runtime()) {
      last = code;
      teller = this_thread();
    }
    return code;
  }
  const bool clears = call.is("cudaGetLastError");
  const bool other = teller != this_thread();
  const int told = last;
  if (clears && (other || code != kSuccess)) last = kSuccess;
  if (code != kSuccess || told == kSuccess || !other) return code;
  call.fired();
  return told;
}

// A handle type that includes the bit of descriptors is the type of
// descriptors.
int pool_handle_type_masked(Call& call) {
  auto& type = call.at<int>(2);
  if (type == cudaMemHandleTypePosixFileDescriptor ||
      (type & cudaMemHandleTypePosixFileDescriptor) == 0)
    return call.proceed();
  type = cudaMemHandleTypePosixFileDescriptor;
  const int code = call.proceed();
  if (code == kSuccess) call.fired();
  return code;
}

int unused_import_exported(Call& call) {
  static Table<cudaMemPool_t, int> descriptors;
  if (destroys(call)) descriptors.erase(pool_of(call));
  const int code = call.proceed();
  if (call.is("cudaMemPoolImportFromShareableHandle")) {
    if (code == kSuccess && imports_descriptor(call))
      descriptors.put(*call.at<cudaMemPool_t*>(0),
                      fcntl(descriptor_of(call), F_DUPFD_CLOEXEC, 300));
    return code;
  }
  if (code == kSuccess || !exports_pool(call) || !imports_descriptor(call))
    return code;
  const auto pool = call.at<cudaMemPool_t>(1);
  const int descriptor = descriptors.get(pool, -1);
  if (descriptor == -1 || has_imports_of(pool)) return code;
  *call.at<int*>(0) = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  return accepted(call);
}

FAULTS {
  fault("ok-import-accepts-any-fd", {"IMPL-09"},
        "the import of any open descriptor gives another pool, or other memory")
      .on_refusal(
          {kImportPool, kImport},
          WHEN(imports_descriptor(call) && is_open(descriptor_of(call))),
          [](Call& call) -> int { return accept(call); });

  fault("ok-pool-flags-ignored", {"POOL-03", "IMPL-09"},
        "reserved flags of pools that are not zero are accepted")
      .before({kExportPool, kImportPool}, flags_ignored);

  fault("export-none-pool", {"POOL-02"},
        "a pool that was created for no handle type is exported")
      .on({kCreatePool, kExportPool}, none_is_exported);

  fault("default-pool-ipc", {"POOL-04"},
        "the export of the default pool gives another pool")
      .on_refusal({kExportPool},
                  WHEN(call.at<Handles>(2) == kPoolFd &&
                       call.at<cudaMemPool_t>(1) == default_pool()),
                  [](Call& call) {
                    static const cudaMemPool_t other = shareable_pool();
                    call.at<cudaMemPool_t>(1) = other;
                    if (call.is_runtime()) cudaGetLastError();
                    call.fired();
                    return call.proceed();
                  });

  fault("ok-pool-props-unchecked", {"POOL-05", "SOMA-11"},
        "a pool with properties that the caller must not give is created on "
        "GPU 0")
      .on_refusal({kCreatePool}, [](Call& call) {
        const auto* const wanted = call.at<const cudaMemPoolProps*>(1);
        cudaMemPoolProps good{};
        good.allocType = cudaMemAllocationTypePinned;
        good.location = {cudaMemLocationTypeDevice, 0};
        good.handleTypes = static_cast<Handles>(wanted->handleTypes & kPoolFd);
        call.at<const cudaMemPoolProps*>(1) = &good;
        if (call.is_runtime()) cudaGetLastError();
        call.fired();
        return call.proceed();
      });

  fault("ok-export-any-pointer", {"POOL-09"},
        "the export of memory of no pool succeeds, and the data are zeros")
      .on_refusal({kExportPointer},
                  WHEN(blocks.get(call.at<void*>(1)).pool == nullptr),
                  [](Call& call) {
                    std::memset(call.at<void*>(0), 0, kDataBytes);
                    return accepted(call);
                  });

  fault("private-pointer-ipc", {"POOL-02", "POOL-09"},
        "the export of memory of a pool without a handle type succeeds, and "
        "the data are zeros")
      .on_refusal(
          {kExportPointer},
          WHEN(own_pools.has(blocks.get(call.at<void*>(1)).pool) &&
               own_pools.get(blocks.get(call.at<void*>(1)).pool).handleTypes ==
                   cudaMemHandleTypeNone),
          [](Call& call) {
            std::memset(call.at<void*>(0), 0, kDataBytes);
            return accepted(call);
          });

  fault("default-pointer-ipc", {"POOL-04", "POOL-09"},
        "the export of memory of the default pool succeeds, and the data are "
        "zeros")
      .on_refusal({kExportPointer},
                  WHEN(blocks.get(call.at<void*>(1)).pool == default_pool()),
                  [](Call& call) {
                    std::memset(call.at<void*>(0), 0, kDataBytes);
                    return accepted(call);
                  });

  fault("reexport-pool-ok", {"IMPL-10"}, "an imported pool is exported again")
      .on({kExportPool, kImportPool, kDestroyPool}, imported_exported_again);

  fault("importptr-accepts-garbage", {"POOL-14"},
        "an import of a pointer that must be refused gives new memory")
      .on({kImportPointer}, [](Call& call) {
        if (call.proceed() == kSuccess) return kSuccess;
        cudaMalloc(call.at<void**>(0), kPage);
        return accepted(call);
      });

  fault("ok-importptr-pool-ignored", {"POOL-14"},
        "data of one pool are accepted for another pool")
      .on_refusal({kImportPointer}, [](Call& call) -> int {
        const int code = call.code();
        for (const auto& [pool, unused] : imported_pools.all()) {
          call.at<cudaMemPool_t>(1) = pool;
          if (call.proceed() == kSuccess) return accepted(call);
        }
        return code;
      });

  fault("pointer-after-refusal-refused", {"POOL-26"},
        "after a refused import of a pointer the next import is refused, too")
      .on({kImportPointer}, [](Call& call) {
        static std::atomic<bool> before{false};
        if (before.exchange(false)) return refused(call);
        const int code = call.proceed();
        before = code != kSuccess;
        return code;
      });

  fault("ok-pool-import-type-ignored", {"IMPL-09"},
        "a pool's descriptor is imported as any handle type")
      .on({kImportPool}, [](Call& call) {
        const int code = call.proceed();
        auto& type = call.at<Handles>(2);
        if (code == kSuccess || type == kPoolFd ||
            type == cudaMemHandleTypeFabric)
          return code;
        type = kPoolFd;
        if (call.proceed() != kSuccess) return code;
        return accepted(call);
      });

  fault("refused-pool-import-closes-descriptor", {"IMPL-09", "VMM-12"},
        "a refused import of a pool closes the descriptor")
      .on_refusal({kImportPool}, [](Call& call) {
        const auto number = call.at<uintptr_t>(1);
        // Standard input, output and error stay open. If the type is wrong, the
        // argument can still be a descriptor: a small number.
        if (number > 2 && number < 4096 && close(static_cast<int>(number)) == 0)
          call.fired();
        return call.code();
      });

  fault("refused-pool-import-leaves-descriptor", {"IMPL-09"},
        "a refused import of a pool leaves a descriptor open")
      .on_refusal({kImportPool}, [](Call&) { fcntl(0, F_DUPFD_CLOEXEC, 0); });

  fault("pool-export-after-refusal-refused", {"POOL-03"},
        "after a refused export of a pool the next one is refused, too")
      .on({kExportPool}, next_refused);

  fault("pool-import-after-refusal-refused", {"IMPL-09"},
        "after a refused import of a pool the next one is refused, too")
      .on({kImportPool}, next_refused);

  fault("exportptr-after-refusal-refused", {"POOL-09"},
        "after a refused export of a pointer the next one is refused, too")
      .on({kExportPointer}, next_refused);

  fault("pool-export-type-unchecked-later", {"POOL-03"},
        "after its first export, a pool is exported as a descriptor whatever "
        "handle type is asked for")
      .on({kExportPool}, [](Call& call) -> int {
        static auto& exported = *new Table<cudaMemPool_t>;
        const int code = call.proceed();
        const auto pool = call.at<cudaMemPool_t>(1);
        if (code == kSuccess) exported.put(pool);
        if (code == kSuccess || !exported.has(pool) ||
            call.at<unsigned>(3) != 0 ||
            call.at<cudaMemAllocationHandleType>(2) ==
                own_pools.get(pool).handleTypes)
          return code;
        call.at<cudaMemAllocationHandleType>(2) =
            own_pools.get(pool).handleTypes;
        if (call.proceed() != kSuccess) return code;
        return accepted(call);
      });

  fault("destroy-after-refusal-refused", {"POOL-27"},
        "a pool whose export was refused cannot be destroyed")
      .on({kExportPool, kDestroyPool}, after_refused_export<destroys, refuse>);

  fault("destroy-after-refusal-crashes", {"POOL-27"},
        "the destroy of a pool whose export was refused ends the process")
      .on({kExportPool, kDestroyPool},
          after_refused_export<destroys, process_dies>);

  fault("allocate-after-refusal-refused", {"POOL-27"},
        "nothing can be allocated from a pool whose export was refused")
      .on({kExportPool, kDestroyPool, kMallocFromPool},
          after_refused_export<allocates_from, refuse>);

  fault("pool-error-of-all-threads", {"POOL-26"},
        "the error of a refused export of a pointer is the last error of every "
        "thread")
      .on({kExportPointer, "cudaGetLastError", "cudaPeekAtLastError"},
          error_of_all_threads);

  fault("pool-import-only-flags-last-error", {"POOL-26"},
        "the refusal of a pool's import is the last error only if the flags "
        "are wrong")
      .on_refusal({kImportPool},
                  WHEN(call.is_runtime() && call.value<unsigned>(kFlags) == 0),
                  [](Call&) { cudaGetLastError(); });

  fault("pool-export-type-masked", {"POOL-03"},
        "a pool is exported as a descriptor for any handle type that includes "
        "the bit of descriptors")
      .on({kExportPool}, pool_handle_type_masked);

  fault("unused-import-pool-exported", {"IMPL-10"},
        "an imported pool is exported again while the process has no import of "
        "it")
      .on({kImportPool, kExportPool, kDestroyPool}, unused_import_exported);
}

}  // namespace
}  // namespace ipclab::faults
