// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int destroyed_for_all(Call& call) {
  static Table<cudaMemPool_t, unsigned long long> origins;  // of imported pools
  const auto own = [](cudaMemPool_t pool) {
    return static_cast<unsigned long long>(getpid()) << 48 ^
           reinterpret_cast<uintptr_t>(pool);
  };
  const auto end_of = [](unsigned long long origin) {
    return "destroyed-" + std::to_string(origin);
  };
  const auto is_gone = [&](unsigned long long origin) {
    return told(end_of(origin), 0) != 0;
  };
  if (call.is("cudaMallocFromPoolAsync") &&
      is_gone(own(call.at<cudaMemPool_t>(2))))
    return refused(call);
  if (call.is("cudaMemPoolImportPointer")) {
    const auto origin = told(key_of_data(call.at<void*>(2)) + "-of", 0);
    if (is_gone(origin)) return refused(call);
    if (origin != 0) origins.put(call.at<cudaMemPool_t>(1), origin);
  }
  if (call.is("cudaMemPoolDestroy") && origins.has(call.at<cudaMemPool_t>(0))) {
    tell_processes(end_of(origins.get(call.at<cudaMemPool_t>(0))), 1);
    origins.erase(call.at<cudaMemPool_t>(0));
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMemPoolCreate"))
    tell_processes(end_of(own(*call.at<cudaMemPool_t*>(0))), 0);
  if (call.is("cudaMemPoolExportPointer"))
    tell_processes(key_of_data(call.at<void*>(0)) + "-of",
                   own(blocks.get(call.at<void*>(1)).pool));
  return code;
}

int free_ends_siblings(Call& call) {
  struct Import {
    std::string key;
    unsigned long long time = 0;
  };
  static Table<void*, Import> imports;
  const auto end_of = [](const Import& one) { return one.key + "-freed"; };
  if (frees(call) && imports.has(call.at<void*>(0))) {
    tell_processes(end_of(imports.get(call.at<void*>(0))), now());
    imports.erase(call.at<void*>(0));
  }
  if (is_use(call))
    for (const auto& [address, one] : imports.all())
      if (told(end_of(one), 0) > one.time && imports.erase(address) &&
          cudaFree(address) == cudaSuccess)
        call.fired();
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMemPoolImportPointer"))
    imports.put(*call.at<void**>(0), {key_of_data(call.at<void*>(2)), now()});
  return code;
}

bool asks_import_for_use(Call& call) {
  return call.is("cudaMemPoolGetAttribute") &&
         imported_pools.has(call.at<cudaMemPool_t>(0)) &&
         call.at<cudaMemPoolAttr>(1) == cudaMemPoolAttrUsedMemCurrent;
}

int reimport_refused(Call& call) {
  static Table<cudaMemPool_t, int> copies;  // of the descriptors
  static Table<int> gone;
  if (call.is("cudaMemPoolDestroy")) {
    const auto pool = call.at<cudaMemPool_t>(0);
    if (copies.has(pool)) gone.put(copies.get(pool));
    copies.erase(pool);
    return call.proceed();
  }
  if (!imports_descriptor(call)) return call.proceed();
  const int descriptor = descriptor_of(call);
  for (const auto& each : gone.all())
    if (is_open(descriptor) && name_the_same(each.first, descriptor))
      return refused(call);
  const int code = call.proceed();
  if (code == kSuccess)
    copies.put(*call.at<cudaMemPool_t*>(0),
               fcntl(descriptor, F_DUPFD_CLOEXEC, 300));
  return code;
}

int second_export_of_other_pool(Call& call) {
  static Table<cudaMemPool_t> exported;
  if (call.is("cudaMemPoolDestroy")) {
    exported.erase(call.at<cudaMemPool_t>(0));
    return call.proceed();
  }
  auto& pool = call.at<cudaMemPool_t>(1);
  if (call.at<cudaMemAllocationHandleType>(2) !=
      cudaMemHandleTypePosixFileDescriptor)
    return call.proceed();
  if (exported.has(pool)) {
    cudaMemPoolProps wanted{};
    wanted.allocType = cudaMemAllocationTypePinned;
    wanted.location = {cudaMemLocationTypeDevice, 0};
    wanted.handleTypes = cudaMemHandleTypePosixFileDescriptor;
    cudaMemPool_t other = nullptr;
    if (cudaMemPoolCreate(&other, &wanted) == cudaSuccess) {
      pool = other;
      call.fired();
    }
    return call.proceed();
  }
  const int code = call.proceed();
  if (code == kSuccess) exported.put(pool);
  return code;
}

// The imported pools from which an allocation was refused.
Table<cudaMemPool_t> refused_pools;

bool asks_import(Call& call, cudaMemPoolAttr which) {
  return gets(call) && pool_attribute(call) == which &&
         imported_pools.has(pool_of(call));
}

int dead_importer_keeps_memory(Call& call) {
  static Table<void*, std::string> keys;
  if (imports_pointer(call)) {
    const auto holder =
        static_cast<pid_t>(told("holder-" + key_of_import(call), 0));
    if (holder != 0 && holder != getpid() && has_ended(holder))
      return refused(call);
  }
  if (frees(call) && keys.has(call.at<void*>(0))) {
    tell_processes("holder-" + keys.get(call.at<void*>(0)), 0);
    keys.erase(call.at<void*>(0));
  }
  const int code = call.proceed();
  if (imports_pointer(call) && code == kSuccess) {
    keys.put(*call.at<void**>(0), key_of_import(call));
    tell_processes("holder-" + key_of_import(call),
                   static_cast<unsigned long long>(getpid()));
  }
  return code;
}

// An imported pool gives out memory if `gives` is true.
template <bool (*gives)(Call& call)>
int imported_pool_gives(Call& call) {
  if (call.is("cudaMallocFromPoolAsync") &&
      imported_pools.has(call.at<cudaMemPool_t>(2)) && gives(call)) {
    call.at<cudaMemPool_t>(2) = default_pool();
    call.fired();
  }
  return call.proceed();
}

bool has_named_stream(Call& call) {
  return !is_default(stream_of(call)) && !is_per_thread(call);
}

bool has_imports(Call& call) {
  return has_imports_of(call.at<cudaMemPool_t>(2));
}

bool is_below_64_kib(Call& call) { return call.at<size_t>(1) < 64 << 10; }

FAULTS {
  fault("pool-single-importer", {"POOL-21"},
        "only the first process that imports a pool can import pools")
      .on({kImportPool}, [](Call& call) {
        static const bool first = first_of_all_processes("importer");
        return first ? call.proceed() : refused(call);
      });

  fault("import-pool-allocates", {"IMPL-01"},
        "an allocation from an imported pool gets memory of the default pool")
      .before(
          {kMallocFromPool, kImportPool, kDestroyPool},
          WHEN(imported_pools.has(
              allocates(call) ? call.value<cudaMemPool_t>(kPool) : nullptr)),
          [](Call& call) {
            call.value<cudaMemPool_t>(kPool) = default_pool();
          });

  fault(
      "ok-import-pool-current", {"IMPL-02"},
      "the call that makes an imported pool current succeeds and does nothing")
      .on({kSetPool, "cudaMemSetMemPool"},
          WHEN(imported_pools.has(call.value<cudaMemPool_t>(kPool))), accepted);

  fault("refused-set-resets-current", {"IMPL-02"},
        "if a pool is refused as current, the default pool becomes current")
      .on_refusal({kSetPool, "cudaMemSetMemPool"},
                  WHEN(current_pool() != default_pool()), [](Call&) {
                    int gpu = 0;
                    cudaGetDevice(&gpu);
                    cudaDeviceSetMemPool(gpu, default_pool());
                  });

  fault("import-destroy-global", {"IMPL-12"},
        "destroying an imported pool also destroys the exporter's pool")
      .on({kCreatePool, kDestroyPool, kExportPointer, kImportPointer,
           kMallocFromPool},
          destroyed_for_all);

  fault("pool-second-process-fresh", {"POOL-21"},
        "all processes that import pointers, except the first, get pointers to "
        "new memory")
      .on({kImportPointer, kExportPointer, kMallocFromPool, kFree, kFreeAsync},
          [](Call& call) {
            static std::atomic<bool> first{true}, known{false};
            if (call.is("cudaMemPoolImportPointer") && !known.exchange(true))
              first = first_of_all_processes("importer");
            return first ? call.proceed() : import_fresh(call);
          });

  fault("pool-free-breaks-siblings", {"POOL-21"},
        "a free in one importer ends the imports of the same memory in the "
        "other importers")
      .on({kFree, kFreeAsync, kImportPointer, kLaunch, kCopy},
          free_ends_siblings);

  fault("import-stats-global", {"IMPL-05"},
        "an imported pool reports how much memory the exporter uses")
      .on({kGetPoolAttribute, kMallocFromPool, kFree, kFreeAsync, kImportPool,
           kDestroyPool},
          [](Call& call) {
            const bool changes = allocates(call) ||
                                 (frees(call) && blocks.has(call.at<void*>(0)));
            const int code = call.proceed();
            if (asks_import_for_use(call)) {
              *call.at<cuuint64_t*>(2) = told("used", 0);
              return accepted(call);
            }
            if (code == kSuccess && changes) {
              size_t used = 0;
              for (const auto& [address, block] : blocks.all())
                used += block.bytes;
              tell_processes("used", used);
            }
            return code;
          });

  fault("import-stats-keep-freed", {"IMPL-05"},
        "freed memory of an imported pool still counts as used")
      .on({kGetPoolAttribute, kDestroyPool}, [](Call& call) {
        static Table<cudaMemPool_t, cuuint64_t> most;
        if (call.is("cudaMemPoolDestroy"))
          most.erase(call.at<cudaMemPool_t>(0));
        const int code = call.proceed();
        if (!asks_import_for_use(call)) return code;
        const cudaMemPool_t pool = call.at<cudaMemPool_t>(0);
        const cuuint64_t used = lent_by(pool);
        most.put(pool, std::max(used, most.get(pool)));
        *call.at<cuuint64_t*>(2) = most.get(pool);
        return code == kSuccess && used == most.get(pool) ? code
                                                          : accepted(call);
      });

  fault("import-types-told", {"IMPL-15"},
        "an imported pool reports that it can be exported as a descriptor")
      .on_machine("driver-13.5")
      .after({kGetPoolAttribute},
             WHEN(call.at<cudaMemPoolAttr>(1) == kTypesForExport &&
                  imported_pools.has(call.at<cudaMemPool_t>(0))),
             [](Call& call) { *call.at<int*>(2) = kPoolFd; });

  fault("mempool-attr-foreign", {"IMPL-13"},
        "an imported pointer reports the exporter's pool as its own")
      .on({kGetAttribute, kExportPointer}, [](Call& call) {
        if (call.is("cudaMemPoolExportPointer"))
          tell_processes("pool", reinterpret_cast<uintptr_t>(
                                     blocks.get(call.at<void*>(1)).pool));
        const int code = call.proceed();
        if (call.is("cuPointerGetAttribute") && code == kSuccess &&
            call.at<CUpointer_attribute>(1) ==
                CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE &&
            is_import(call.at<void*>(2))) {
          *call.at<uintptr_t*>(0) = told("pool", 0);
          call.fired();
        }
        return code;
      });

  fault("pool-third-process-copy", {"POOL-21"},
        "all processes that import pointers, except the first two, get other "
        "memory")
      .on({kImportPointer, kFree, kFreeAsync}, [](Call& call) {
        static std::atomic<bool> early{true}, known{false};
        if (call.is("cudaMemPoolImportPointer") && !known.exchange(true))
          early =
              first_of_all_processes("one") || first_of_all_processes("two");
        return early ? call.proceed() : import_fresh(call);
      });

  fault(
      "mempool-attr-first-import", {"IMPL-13"},
      "memory of every imported pool reports the pool that was imported first")
      .on({kImportPool, kGetAttribute}, [](Call& call) {
        static std::atomic<cudaMemPool_t> first{nullptr};
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (call.is("cudaMemPoolImportFromShareableHandle") && first == nullptr)
          first = *call.at<cudaMemPool_t*>(0);
        if (call.is("cuPointerGetAttribute") &&
            call.at<CUpointer_attribute>(1) ==
                CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE &&
            is_import(call.at<void*>(2)) &&
            *call.at<cudaMemPool_t*>(0) != first) {
          *call.at<cudaMemPool_t*>(0) = first;
          call.fired();
        }
        return code;
      });

  fault("export-pointer-once", {"POOL-21"},
        "memory of a pool can be exported only once")
      .on({kExportPointer, kFree, kFreeAsync}, [](Call& call) {
        static Table<void*> exported;
        if (frees(call)) {
          exported.erase(call.at<void*>(0));
          return call.proceed();
        }
        if (exported.has(call.at<void*>(1))) return refused(call);
        const int code = call.proceed();
        if (code == kSuccess) exported.put(call.at<void*>(1));
        return code;
      });

  fault("pool-reimport-refused", {"IMPL-12"},
        "after the destroy of an imported pool, its descriptor cannot be "
        "imported again")
      .on({kImportPool, kDestroyPool}, reimport_refused);

  fault("pool-second-export-elsewhere", {"POOL-21"},
        "the second descriptor of a pool names another pool")
      .on({kExportPool, kDestroyPool}, second_export_of_other_pool);

  fault("pool-third-importer-refused", {"POOL-21"},
        "only the first two processes that import pools can import them")
      .on({kImportPool}, third_process_refused);

  fault("import-destroy-after-refusal-refused", {"IMPL-12"},
        "an imported pool from which an allocation was refused cannot be "
        "destroyed")
      .on({kImportPool, kDestroyPool, kMallocFromPool}, [](Call& call) -> int {
        if (call.is("cudaMallocFromPoolAsync")) {
          const auto pool = call.at<cudaMemPool_t>(2);
          const int code = call.proceed();
          if (code != kSuccess && imported_pools.has(pool))
            refused_pools.put(pool);
          return code;
        }
        if (call.is("cudaMemPoolDestroy") &&
            refused_pools.erase(call.at<cudaMemPool_t>(0)))
          return refused(call, cudaErrorInvalidValue);
        return call.proceed();
      });

  fault("import-watermark-not-reset", {"IMPL-05"},
        "the reset of a watermark of an imported pool does nothing")
      .on({kSetPoolAttribute},
          WHEN(is_watermark(call.at<cudaMemPoolAttr>(1)) &&
               imported_pools.has(call.at<cudaMemPool_t>(0))),
          [](Call& call) { return lost(call); });

  fault("import-uses-nothing", {"IMPL-05"},
        "an imported pool reports that none of its memory is in use")
      .after({kGetPoolAttribute},
             WHEN(pool_attribute(call) == cudaMemPoolAttrUsedMemCurrent &&
                  imported_pools.has(pool_of(call)) && number_of(call) != 0),
             [](Call& call) { number_of(call) = 0; });

  fault("setpool-after-refusal-refused", {"IMPL-02"},
        "after a pool was refused as current the next one is refused, too")
      .on({kSetPool}, next_refused);

  fault("import-watermark-zero", {"IMPL-05"},
        "the watermark of memory in use of an imported pool is always 0")
      .after({kGetPoolAttribute, kImportPool, kDestroyPool},
             WHEN(asks_import(call, kUsedHigh) && number_of(call) != 0),
             [](Call& call) {
               number_of(call) = 0;
               return accepted(call);
             });

  fault("import-unused-after-free", {"IMPL-05"},
        "after one free, an imported pool reports that nothing is in use")
      .on({kGetPoolAttribute, kImportPool, kDestroyPool, kImportPointer, kFree,
           kFreeAsync},
          [](Call& call) {
            static auto& freed = *new Table<cudaMemPool_t>;
            if (frees(call) && is_import(call.at<void*>(0)))
              freed.put(blocks.get(call.at<void*>(0)).pool);
            if (destroys(call)) freed.erase(pool_of(call));
            const int code = call.proceed();
            if (code != kSuccess || !asks_import(call, kUsed) ||
                !freed.has(pool_of(call)) || number_of(call) == 0)
              return code;
            number_of(call) = 0;
            return accepted(call);
          });

  fault("pool-exports-end-at-16", {"POOL-21"},
        "a pool cannot be exported more than 16 times")
      .on({kExportPool, kDestroyPool}, [](Call& call) {
        static auto& exports = *new Table<cudaMemPool_t, int>;
        if (destroys(call)) exports.erase(pool_of(call));
        if (destroys(call)) return call.proceed();
        const auto pool = call.at<cudaMemPool_t>(1);
        if (exports.get(pool) >= 16) return refused(call);
        const int code = call.proceed();
        if (code == kSuccess) exports.put(pool, exports.get(pool) + 1);
        return code;
      });

  fault("import-pool-allocates-in-default-stream", {"IMPL-01"},
        "in the default stream, an allocation from an imported pool takes "
        "memory of the default pool")
      .before({kMallocFromPool},
              WHEN(imported_pools.has(call.at<cudaMemPool_t>(2)) &&
                   !(!is_default(call.value<cudaStream_t>(kStream)) &&
                     !is_per_thread(call))),
              [](Call& call) {
                auto& pool = call.at<cudaMemPool_t>(2);
                pool = default_pool();
              });

  fault("import-pool-allocates-in-named-stream", {"IMPL-01"},
        "in a stream that the program has created, an imported pool gives out "
        "memory")
      .on({kImportPool, kDestroyPool, kMallocFromPool},
          imported_pool_gives<has_named_stream>);

  fault(
      "import-pool-allocates-while-used", {"IMPL-01"},
      "an imported pool gives out memory while the process has an import of it")
      .on({kImportPool, kDestroyPool, kImportPointer, kFreeAsync, kFree,
           kMallocFromPool},
          imported_pool_gives<has_imports>);

  fault(
      "older-import-allocates", {"IMPL-01"},
      "an imported pool gives out memory if another pool was imported after it")
      .on({kMallocFromPool, kImportPool}, [](Call& call) {
        static std::atomic<cudaMemPool_t> last{nullptr};
        if (call.is("cudaMallocFromPoolAsync") &&
            imported_pools.has(call.at<cudaMemPool_t>(2)) &&
            call.at<cudaMemPool_t>(2) != last) {
          call.at<cudaMemPool_t>(2) = default_pool();
          call.fired();
        }
        const int code = call.proceed();
        if (code == kSuccess && call.is("cudaMemPoolImportFromShareableHandle"))
          last = *call.at<cudaMemPool_t*>(0);
        return code;
      });

  fault("pool-freed-by-one-for-all", {"POOL-21"},
        "after one importer's free no other process can import the memory")
      .on({kImportPointer, kFreeAsync, kFree}, [](Call& call) {
        static Table<void*, std::string> keys;
        const auto own = static_cast<unsigned long long>(getpid());
        if (imports_pointer(call)) {
          const auto freed = told("freed-" + key_of_import(call), own);
          if (freed != own) return refused(call);
        }
        if (frees(call) && keys.has(call.at<void*>(0))) {
          tell_processes("freed-" + keys.get(call.at<void*>(0)), own);
          keys.erase(call.at<void*>(0));
        }
        const int code = call.proceed();
        if (imports_pointer(call) && code == kSuccess)
          keys.put(*call.at<void**>(0), key_of_import(call));
        return code;
      });

  fault("pool-dead-importer-keeps-memory", {"POOL-21"},
        "memory that a killed process had imported cannot be imported again")
      .on({kImportPointer, kFreeAsync, kFree}, dead_importer_keeps_memory);

  fault("pool-import-resets-current", {"IMPL-02"},
        "the import of a pool makes the default pool current")
      .on({kImportPool}, default_becomes_current);

  fault("pool-import-allocates-after-free", {"IMPL-01"},
        "an imported pool gives out memory after an import was freed")
      .before({kImportPool, kDestroyPool, kImportPointer, kFreeAsync, kFree,
               kMallocFromPool},
              [](Call& call) {
                static std::atomic<bool> freed{false};
                if (frees(call) && is_import(call.at<void*>(0))) freed = true;
                if (call.is("cudaMallocFromPoolAsync") && freed &&
                    imported_pools.has(call.at<cudaMemPool_t>(2))) {
                  call.at<cudaMemPool_t>(2) = default_pool();
                  call.fired();
                }
                return kSuccess;
              });

  fault("pool-export-ends-data", {"POOL-21"},
        "a further export of a pool makes data invalid that were exported "
        "before it")
      .on({kMallocAsync, kMallocFromPool, kExportPool, kExportPointer,
           kImportPointer, kFreeAsync, kFree},
          [](Call& call) -> int {
            static auto& pools = *new Table<std::string, cudaMemPool_t>;
            const auto is_old = [](const std::string& key) {
              return "old-" + key;
            };
            if (imports_pointer(call) &&
                told(is_old(key_of_import(call)), 0) == 1)
              return refused(call);
            const int code = call.proceed();
            if (code != kSuccess) return code;
            if (exports_of_pool_path(call)) {
              pools.put(key_of_export(call),
                        blocks.get(call.at<void*>(1)).pool);
              tell_processes(is_old(key_of_export(call)), 0);
            } else if (exports_pool(call)) {
              for (const auto& [key, pool] : pools.all())
                if (pool == call.at<cudaMemPool_t>(1))
                  tell_processes(is_old(key), 1);
            }
            return code;
          });

  fault("import-pool-allocates-small", {"IMPL-01"},
        "an imported pool gives out memory of less than 64 KiB")
      .on({kImportPool, kDestroyPool, kMallocFromPool},
          imported_pool_gives<is_below_64_kib>);

  fault("imports-count-in-current-pool", {"IMPL-05"},
        "the used memory of the current pool also counts the memory that the "
        "process has imported")
      .after({kGetPoolAttribute},
             WHEN(pool_attribute(call) == cudaMemPoolAttrUsedMemCurrent &&
                  pool_of(call) == current_pool()),
             [](Call& call) {
               for (const auto& each : blocks.all()) {
                 if (!each.second.imported) continue;
                 *call.at<uint64_t*>(2) += each.second.bytes;
                 call.fired();
               }
               return kSuccess;
             });

  fault("ok-imports-wait",
        {"IMPL-01", "IMPL-02", "IMPL-03", "IMPL-05", "IMPL-12", "IMPL-16",
         "POOL-14", "POOL-26"},
        "the import of a pool or of a pointer waits for all work of the "
        "context")
      .before({kImportPool, kImportPointer},
              [](Call&) { cudaDeviceSynchronize(); });
}

}  // namespace
}  // namespace ipclab::faults
