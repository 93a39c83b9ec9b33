// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int hidden_gpu_refused(Call& call) {
  const auto uuid_of = [](int device) {
    CUuuid uuid{};
    unsigned long long half = 0;
    DRIVER_CALL(cuDeviceGetUuid)(&uuid, device);
    std::memcpy(&half, uuid.bytes + 8, sizeof half);
    return half;
  };
  if (call.is("cudaMemPoolCreate")) {
    const auto* const wanted = call.at<const cudaMemPoolProps*>(1);
    if (wanted->location.type == cudaMemLocationTypeDevice)
      tell_processes("gpu", uuid_of(wanted->location.id));
    return call.proceed();
  }
  int devices = 0;
  DRIVER_CALL(cuDeviceGetCount)(&devices);
  for (int device = 0; device < devices; ++device)
    if (uuid_of(device) == told("gpu", uuid_of(device))) return call.proceed();
  return refused(call);
}

int import_frees_original(Call& call) {
  static Table<void*, std::string> exported, imported;
  static Table<void*> gone;
  if (frees(call) && imported.has(call.at<void*>(0))) {
    tell_processes(imported.get(call.at<void*>(0)) + "-freed", 1);
    imported.erase(call.at<void*>(0));
  }
  if (frees(call) && gone.erase(call.at<void*>(0))) return kSuccess;
  if (frees(call)) exported.erase(call.at<void*>(0));
  if (allocates(call))
    for (const auto& [address, key] : exported.all())
      if (told(key + "-freed", 0) != 0 && cudaFree(address) == cudaSuccess) {
        exported.erase(address);
        gone.put(address);
        call.fired();
      }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMemPoolExportPointer")) {
    exported.put(call.at<void*>(1), key_of_data(call.at<void*>(0)));
    tell_processes(key_of_data(call.at<void*>(0)) + "-freed", 0);
  }
  if (call.is("cudaMemPoolImportPointer"))
    imported.put(*call.at<void**>(0), key_of_data(call.at<void*>(2)));
  return code;
}

int access_inherited(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMemPoolSetAccess")) {
    const auto* const access = call.at<const cudaMemAccessDesc*>(1);
    const bool gives = access->flags == cudaMemAccessFlagsProtReadWrite;
    if (!imported_pools.has(call.at<cudaMemPool_t>(0)))
      tell_processes("gpu",
                     gives ? static_cast<unsigned>(access->location.id) : 0);
    return code;
  }
  if (told("gpu", 0) == 0) return code;
  cudaMemAccessDesc access{};
  access.location = {cudaMemLocationTypeDevice,
                     static_cast<int>(told("gpu", 0))};
  access.flags = cudaMemAccessFlagsProtReadWrite;
  if (cudaMemPoolSetAccess(*call.at<cudaMemPool_t*>(0), &access, 1) ==
      cudaSuccess)
    call.fired();
  return code;
}

// Access to an imported pool begins with the next import of a pointer, or ends
// with it. The table has the last access that the program has set.
template <bool begins>
int access_changes_at_import(Call& call) {
  static Table<cudaMemPool_t, cudaMemAccessDesc> set;
  if (call.is("cudaMemPoolSetAccess")) {
    const auto pool = call.at<cudaMemPool_t>(0);
    const auto& access = *call.at<const cudaMemAccessDesc*>(1);
    if (!imported_pools.has(pool)) return call.proceed();
    if (call.at<size_t>(2) != 1) {
      set.erase(pool);
      return call.proceed();
    }
    set.put(pool, access);
    if (!begins || access.flags == cudaMemAccessFlagsProtNone)
      return call.proceed();
    call.fired();
    return kSuccess;
  }
  if (call.is("cudaMemPoolImportPointer")) {
    const auto pool = call.value<cudaMemPool_t>(kPool);
    if (!set.has(pool)) return call.proceed();
    cudaMemAccessDesc access = set.get(pool);
    if (!begins) access.flags = cudaMemAccessFlagsProtNone;
    const int code = call.proceed();
    if (cudaMemPoolSetAccess(pool, &access, 1) == cudaSuccess && !begins)
      call.fired();
    return code;
  }
  if (call.is("cudaMemPoolGetAccess")) {
    const int code = call.proceed();
    const cudaMemAccessDesc access = set.get(call.at<cudaMemPool_t>(1));
    const auto& asked = *call.at<const cudaMemLocation*>(2);
    if (access.location.type == asked.type && access.location.id == asked.id)
      *call.at<cudaMemAccessFlags*>(0) = access.flags;
    return code;
  }
  if (call.is("cudaMemPoolDestroy")) set.erase(call.at<cudaMemPool_t>(0));
  return call.proceed();
}

int access_of_import_leaks(Call& call) {
  static Table<cudaMemPool_t> lent;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMemPoolDestroy")) lent.erase(call.at<cudaMemPool_t>(0));
  if (call.is("cudaMemPoolExportToShareableHandle"))
    lent.put(call.at<cudaMemPool_t>(1));
  if (call.is("cudaMemPoolSetAccess") &&
      imported_pools.has(call.at<cudaMemPool_t>(0))) {
    const auto* const access = call.at<const cudaMemAccessDesc*>(1);
    const bool gives = access->flags != cudaMemAccessFlagsProtNone;
    tell_processes(
        "gpu", gives ? static_cast<unsigned>(access->location.id) : UINT32_MAX);
  }
  if (call.is("cudaMemPoolGetAccess") && lent.has(call.at<cudaMemPool_t>(1)) &&
      call.at<const cudaMemLocation*>(2)->id ==
          static_cast<int>(told("gpu", UINT32_MAX)) &&
      *call.at<cudaMemAccessFlags*>(0) == cudaMemAccessFlagsProtNone) {
    *call.at<cudaMemAccessFlags*>(0) = cudaMemAccessFlagsProtReadWrite;
    call.fired();
  }
  return code;
}

// The importer's free does not wait for its stream if `concerned` is true.
template <bool (*concerned)(Call& call)>
int such_imports_free_at_once(Call& call) {
  return call.is("cudaFreeAsync") && concerned(call)
             ? importers_free_at_once(call)
             : call.proceed();
}

int import_access_ends_with_free(Call& call) {
  static Table<cudaMemPool_t, int> given;  // the value: the GPU with access
  if (frees(call)) {
    const Block block = blocks.get(call.at<void*>(0));
    const int code = call.proceed();
    if (code != kSuccess || !block.imported || !given.has(block.pool))
      return code;
    cudaMemAccessDesc none{};
    none.location.type = cudaMemLocationTypeDevice;
    none.location.id = given.get(block.pool);
    none.flags = cudaMemAccessFlagsProtNone;
    if (cudaMemPoolSetAccess(block.pool, &none, 1) == cudaSuccess) call.fired();
    given.erase(block.pool);
    return code;
  }
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMemPoolDestroy"))
    given.erase(call.at<cudaMemPool_t>(0));
  if (code != kSuccess || !sets_access(call) || call.at<size_t>(2) == 0 ||
      !imported_pools.has(call.at<cudaMemPool_t>(0)))
    return code;
  const auto& access = *call.at<const cudaMemAccessDesc*>(1);
  if (access.flags == cudaMemAccessFlagsProtReadWrite)
    given.put(call.at<cudaMemPool_t>(0), access.location.id);
  else
    given.erase(call.at<cudaMemPool_t>(0));
  return code;
}

int import_has_exporters_gpu(Call& call) {
  static Table<void*, int> gpus;
  if (exports_of_pool_path(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes("gpu-" + key_of_export(call),
                     static_cast<unsigned long long>(
                         gpu_of(blocks.get(call.at<void*>(1)).pool)));
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (imports_pointer(call))
    gpus.put(*call.at<void**>(0),
             static_cast<int>(told("gpu-" + key_of_import(call), 0)));
  if (!call.is("cudaPointerGetAttributes") || !is_import(call.at<void*>(1)))
    return code;
  int& gpu = call.at<cudaPointerAttributes*>(0)->device;
  if (gpu != gpus.get(call.at<void*>(1))) call.fired();
  gpu = gpus.get(call.at<void*>(1));
  return code;
}

// Answers the query of access with "reads and writes".
int told_access(Call& call, int code) {
  auto& flags = *call.at<cudaMemAccessFlags*>(0);
  if (flags != cudaMemAccessFlagsProtNone) return code;
  flags = cudaMemAccessFlagsProtReadWrite;
  call.fired();
  return code;
}

bool asks_about_import(Call& call) {
  return call.is("cudaMemPoolGetAccess") &&
         imported_pools.has(call.at<cudaMemPool_t>(1));
}

int exporters_refusal_reaches(Call& call) {
  static Table<cudaMemPool_t> exported;
  const auto key_of_gpu = [](const cudaMemLocation& place) {
    return "taken-" + std::to_string(place.id);
  };
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (exports_pool(call)) exported.put(call.at<cudaMemPool_t>(1));
  if (call.is("cudaMemPoolDestroy")) exported.erase(pool_of(call));
  if (sets_access(call) && exported.has(pool_of(call)))
    tell_processes(key_of_gpu(call.at<const cudaMemAccessDesc*>(1)->location),
                   gives_access(call) ? 0 : 1);
  if (!asks_about_import(call) ||
      told(key_of_gpu(*call.at<const cudaMemLocation*>(2)), 0) == 0)
    return code;
  auto& flags = *call.at<cudaMemAccessFlags*>(0);
  if (flags != cudaMemAccessFlagsProtNone) call.fired();
  flags = cudaMemAccessFlagsProtNone;
  return code;
}

int import_access_taken_in_name(Call& call) {
  static Table<cudaMemPool_t, int> taken;  // from this GPU
  if (call.is("cudaMemPoolDestroy")) taken.erase(pool_of(call));
  if (sets_access(call) && imported_pools.has(pool_of(call))) {
    taken.erase(pool_of(call));
    if (!gives_access(call)) {
      taken.put(pool_of(call),
                call.at<const cudaMemAccessDesc*>(1)->location.id);
      return lost(call);
    }
  }
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMemPoolGetAccess") &&
      taken.get(call.at<cudaMemPool_t>(1), -1) ==
          call.at<const cudaMemLocation*>(2)->id)
    *call.at<cudaMemAccessFlags*>(0) = cudaMemAccessFlagsProtNone;
  return code;
}

int freed_by_importer_not_exported(Call& call) {
  static Table<void*, std::string>
      keys;  // of exports_of_pool_path, and of imports_pointer
  if (exports_of_pool_path(call) && keys.has(call.at<void*>(1)) &&
      told("freed-" + keys.get(call.at<void*>(1)), 0) != 0)
    return refused(call);
  if (frees(call) && keys.has(call.at<void*>(0))) {
    if (is_import(call.at<void*>(0)))
      tell_processes("freed-" + keys.get(call.at<void*>(0)), 1);
    keys.erase(call.at<void*>(0));
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (imports_pointer(call)) keys.put(*call.at<void**>(0), key_of_import(call));
  if (exports_of_pool_path(call)) {
    keys.put(call.at<void*>(1), key_of_export(call));
    tell_processes("freed-" + key_of_export(call), 0);
  }
  return code;
}

// A free of an import does not wait for its stream if `concerned` is true. The
// next owner of the memory writes before the stream has read.
template <bool (*concerned)(Call& call)>
int import_freed_early(Call& call) {
  void* const address = call.at<void*>(0);
  if (!call.is("cudaFreeAsync") || !is_import(address) ||
      !is_busy(stream_of(call)) || !concerned(call))
    return call.proceed();
  const size_t bytes = blocks.get(address).bytes;
  blocks.erase(address);
  cudaMemsetAsync(address, 0xDD, bytes, private_stream());
  cudaStreamSynchronize(private_stream());
  call.fired();
  return cudaFree(address);
}

bool is_of_other_gpu(Call& call) {
  cudaPointerAttributes known{};
  return cudaPointerGetAttributes(&known, call.at<void*>(0)) == cudaSuccess &&
         known.device != current_device();
}

FAULTS {
  fault("pool-visible-only", {"IMPL-08"},
        "a process that does not see a pool's GPU cannot import the pool")
      .with_gpus(2)
      .on({kImportPool, kCreatePool}, hidden_gpu_refused);

  fault("import-free-scrubs", {"POOL-16", "POOL-21"},
        "memory is cleared when an importer frees it")
      .before(
          {kFree, kFreeAsync},
          WHEN(is_import(call.at<void*>(0)) &&
               cudaMemset(call.at<void*>(0), 0,
                          blocks.get(call.at<void*>(0)).bytes) == cudaSuccess),
          [](Call&) { cudaDeviceSynchronize(); });

  fault("import-free-frees-origin", {"POOL-16"},
        "the exporter's pool reuses memory after an importer has freed it")
      .on({kFree, kFreeAsync, kImportPointer, kExportPointer, kMallocFromPool},
          import_frees_original);

  fault("import-inherits-access", {"IMPL-06"},
        "an imported pool starts with the access that the exporter set")
      .with_gpus(2)
      .on({kSetPoolAccess, kImportPool}, access_inherited);

  fault("pool-getaccess-always", {"IMPL-06", "SOMA-13"},
        "every GPU is reported to have access to every pool")
      .with_gpus(2)
      .after({kGetPoolAccess},
             WHEN((*call.at<cudaMemAccessFlags*>(0)) !=
                  cudaMemAccessFlagsProtReadWrite),
             [](Call& call) {
               auto& flags = *call.at<cudaMemAccessFlags*>(0);
               flags = cudaMemAccessFlagsProtReadWrite;
             });

  fault("pool-setaccess-wrong-gpu", {"IMPL-07", "SOMA-14"},
        "access to a pool for another GPU is given to GPU 0")
      .with_gpus(2)
      .on({kSetPoolAccess}, [](Call& call) {
        const auto* const wanted = call.at<const cudaMemAccessDesc*>(1);
        std::vector<cudaMemAccessDesc> list(wanted,
                                            wanted + call.at<size_t>(2));
        call.at<const cudaMemAccessDesc*>(1) = list.data();
        for (cudaMemAccessDesc& access : list) {
          if (access.location.id == 0 ||
              access.flags == cudaMemAccessFlagsProtNone)
            continue;
          access.location.id = 0;
          call.fired();
        }
        return call.proceed();
      });

  fault("import-access-travels-back", {"IMPL-07"},
        "the access that an importer sets is reported to the exporter")
      .with_gpus(2)
      .on({kExportPool, kDestroyPool, kSetPoolAccess, kGetPoolAccess},
          access_of_import_leaks);

  fault("import-access-begins-late", {"IMPL-07"},
        "access to an imported pool begins with the next import of a pointer")
      .with_gpus(2)
      .on({kImportPool, kDestroyPool, kImportPointer, kSetPoolAccess,
           kGetPoolAccess},
          access_changes_at_import<true>);

  fault("import-ends-access", {"IMPL-07"},
        "access to an imported pool ends with the next import of a pointer")
      .with_gpus(2)
      .on({kImportPool, kDestroyPool, kImportPointer, kSetPoolAccess},
          access_changes_at_import<false>);

  fault("import-free-per-thread-at-once", {"POOL-16"},
        "the importer's free does not wait for a thread's default stream")
      .on({kMallocFromPool, kExportPointer, kImportPointer, kFree, kFreeAsync},
          such_imports_free_at_once<in_per_thread_stream>);

  fault("import-free-null-at-once", {"POOL-16"},
        "the importer's free does not wait for the default stream")
      .on({kMallocFromPool, kExportPointer, kImportPointer, kFree, kFreeAsync},
          such_imports_free_at_once<in_null_stream>);

  fault("pool-import-needs-current-gpu", {"IMPL-07"},
        "memory of a pool cannot be imported if it is not on the current GPU")
      .with_gpus(2)
      .after({kImportPointer}, [](Call& call) {
        int current = 0;
        cudaGetDevice(&current);
        void* const address = *call.at<void**>(0);
        cudaPointerAttributes known{};
        if (cudaPointerGetAttributes(&known, address) != cudaSuccess ||
            known.type != cudaMemoryTypeDevice || known.device == current)
          return kSuccess;
        cudaFree(address);
        return refused(call);
      });

  fault("import-free-ends-others", {"POOL-16"},
        "freeing one import ends the other imports of its pool")
      .on({kFree, kFreeAsync, kImportPointer}, [](Call& call) -> int {
        if (was_freed_by_fault(call)) return kSuccess;
        const Block one = frees(call) ? blocks.get(call.at<void*>(0)) : Block{};
        const int code = noted_imports(call);
        if (code == kSuccess && one.imported)
          free_imports(
              call, [](cudaMemPool_t a, cudaMemPool_t b) { return a == b; },
              one.pool);
        return code;
      });

  fault("pool-peer-copy-lost", {"IMPL-07"},
        "cudaMemcpyPeerAsync does not reach imported memory of a pool")
      .with_gpus(2)
      .on({"cudaMemcpyPeerAsync"}, access_lost);

  fault("pool-set-from-other-gpu-lost", {"IMPL-07"},
        "a memset of imported memory of a pool by another GPU does nothing")
      .with_gpus(2)
      .on({kSet, kSetAsync}, set_from_other_gpu_lost);

  fault("import-freeasync-waits", {"POOL-16"},
        "the importer's cudaFreeAsync waits for its stream")
      .before({kFreeAsync},
              WHEN(is_import(call.at<void*>(0)) &&
                   is_busy(call.at<cudaStream_t>(1))),
              [](Call& call) {
                call.fired();
                cudaStreamSynchronize(call.at<cudaStream_t>(1));
                return kSuccess;
              });

  fault("import-access-shared", {"IMPL-07"},
        "the access that is set for one imported pool is set for all imported "
        "pools")
      .with_gpus(2)
      .after({kSetPoolAccess},
             WHEN(imported_pools.has(call.at<cudaMemPool_t>(0))),
             [](Call& call) {
               for (const auto& one : imported_pools.all())
                 if (one.first != call.at<cudaMemPool_t>(0) &&
                     cudaMemPoolSetAccess(one.first,
                                          call.at<const cudaMemAccessDesc*>(1),
                                          call.at<size_t>(2)) == cudaSuccess)
                   call.fired();
               return kSuccess;
             });

  fault("import-access-never-taken", {"IMPL-07"},
        "access to an imported pool is not taken away by a list of one entry")
      .with_gpus(2)
      .on({kSetPoolAccess},
          WHEN(call.at<size_t>(2) == 1 &&
               imported_pools.has(call.at<cudaMemPool_t>(0)) &&
               call.at<const cudaMemAccessDesc*>(1)->flags ==
                   cudaMemAccessFlagsProtNone),
          lost);

  fault("import-getaccess-always", {"IMPL-06"},
        "every GPU is reported to have access to an imported pool")
      .with_gpus(2)
      .on({kGetPoolAccess}, WHEN(imported_pools.has(call.at<cudaMemPool_t>(1))),
          [](Call& call) -> int {
            const int code = call.proceed();
            auto& flags = *call.at<cudaMemAccessFlags*>(0);
            if (code != kSuccess || flags == cudaMemAccessFlagsProtReadWrite)
              return code;
            flags = cudaMemAccessFlagsProtReadWrite;
            call.fired();
            return code;
          });

  fault("import-access-ends-with-free", {"IMPL-07"},
        "freeing one import ends the access to its pool")
      .with_gpus(2)
      .on({kSetPoolAccess, kFree, kFreeAsync, kDestroyPool},
          import_access_ends_with_free);

  fault("pool-export-needs-current-gpu", {"IMPL-08"},
        "a pool of a GPU other than the current GPU cannot be exported")
      .with_gpus(2)
      .on({kExportPool},
          WHEN(gpu_of(call.at<cudaMemPool_t>(1)) >= 0 &&
               !is_current_gpu(gpu_of(call.at<cudaMemPool_t>(1)))),
          [](Call& call) { return refused(call); });

  fault("exportptr-needs-current-gpu", {"IMPL-08"},
        "memory of a pool cannot be exported if it is not on the current GPU")
      .with_gpus(2)
      .on({kExportPointer},
          WHEN((gpu_of(blocks.get(call.at<void*>(1)).pool)) >= 0 &&
               !is_current_gpu((gpu_of(blocks.get(call.at<void*>(1)).pool)))),
          [](Call& call) { return refused(call); });

  fault("import-free-blocking-at-once", {"POOL-16"},
        "the importer's free in a stream that was created without "
        "cudaStreamNonBlocking does not wait, and the memory gets other values")
      .on({kFreeAsync}, [](Call& call) -> int {
        if (!is_import(call.at<void*>(0))) return call.proceed();
        const auto stream = call.value<cudaStream_t>(kStream);
        unsigned flags = cudaStreamNonBlocking;
        if (!is_default(stream) && stream != cudaStreamPerThread)
          DRIVER_CALL(cuStreamGetFlags)(stream, &flags);
        if (flags != cudaStreamDefault || !is_busy(stream))
          return call.proceed();
        void* const address = call.at<void*>(0);
        cudaMemsetAsync(address, 0xDD, blocks.get(address).bytes,
                        private_stream());
        cudaStreamSynchronize(private_stream());
        blocks.erase(address);
        call.fired();
        return cudaFree(address);
      });

  fault("pool-exporters-refusal-reaches", {"IMPL-07"},
        "if the exporter takes access away, cudaMemPoolGetAccess says that the "
        "importers have lost it, too")
      .with_gpus(2)
      .on({kExportPool, kDestroyPool, kSetPoolAccess, kGetPoolAccess},
          exporters_refusal_reaches);

  fault("exportptr-after-import-free-refused", {"POOL-16"},
        "memory that an importer has freed cannot be exported again")
      .on({kExportPointer, kImportPointer, kFreeAsync, kFree},
          freed_by_importer_not_exported);

  fault("import-access-is-own", {"IMPL-07"},
        "access to an imported pool is also access to the process's own pools")
      .with_gpus(2)
      .after({kSetPoolAccess}, WHEN(imported_pools.has(pool_of(call))),
             [](Call& call) {
               for (const auto& own : own_pools.all())
                 if (cudaMemPoolSetAccess(own.first,
                                          call.at<const cudaMemAccessDesc*>(1),
                                          call.at<size_t>(2)) == cudaSuccess)
                   call.fired();
               return kSuccess;
             });

  fault("import-trim-takes-access", {"IMPL-07"},
        "a trim of an imported pool takes the access of GPU 1")
      .with_gpus(2)
      .on({kTrim}, [](Call& call) {
        const int code = call.proceed();
        if (!imported_pools.has(pool_of(call))) return code;
        cudaMemAccessDesc access{};
        access.location = {cudaMemLocationTypeDevice, 1};
        cudaMemPoolGetAccess(&access.flags, pool_of(call), &access.location);
        if (access.flags == cudaMemAccessFlagsProtNone) return code;
        access.flags = cudaMemAccessFlagsProtNone;
        if (cudaMemPoolSetAccess(pool_of(call), &access, 1) == cudaSuccess)
          call.fired();
        return code;
      });

  fault("pool-freed-import-not-again", {"POOL-16"},
        "an importer cannot import again what it has freed")
      .on({kImportPointer, kFreeAsync, kFree}, [](Call& call) {
        static Table<void*, std::string> keys;
        static Table<std::string> freed;
        if (imports_pointer(call) && freed.has(key_of_import(call)))
          return refused(call);
        if (frees(call) && keys.has(call.at<void*>(0))) {
          freed.put(keys.get(call.at<void*>(0)));
          keys.erase(call.at<void*>(0));
        }
        const int code = call.proceed();
        if (imports_pointer(call) && code == kSuccess)
          keys.put(*call.at<void**>(0), key_of_import(call));
        return code;
      });

  fault("pool-import-is-of-gpu-0", {"IMPL-06"},
        "cudaMemPoolGetAccess says at first that an imported pool is "
        "accessible from GPU 0 alone, wherever it is")
      .with_gpus(2)
      .on({kDestroyPool, kSetPoolAccess, kGetPoolAccess}, [](Call& call) {
        static Table<cudaMemPool_t> was_set;
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (call.is("cudaMemPoolDestroy")) was_set.erase(pool_of(call));
        if (call.is("cudaMemPoolSetAccess")) was_set.put(pool_of(call));
        if (!call.is("cudaMemPoolGetAccess")) return code;
        const auto pool = call.at<cudaMemPool_t>(1);
        if (!imported_pools.has(pool) || was_set.has(pool)) return code;
        auto& flags = *call.at<cudaMemAccessFlags*>(0);
        const auto seen = call.at<const cudaMemLocation*>(2)->id == 0
                              ? cudaMemAccessFlagsProtReadWrite
                              : cudaMemAccessFlagsProtNone;
        if (seen != flags) call.fired();
        flags = seen;
        return code;
      });

  fault("pool-import-has-exporters-gpu", {"IMPL-06"},
        "cudaPointerGetAttributes gives imported memory of a pool the "
        "exporter's number of its GPU")
      .with_gpus(2)
      .on({kExportPointer, kImportPointer, kPointerAttributes},
          import_has_exporters_gpu);

  fault("pool-access-outlives-import", {"IMPL-07"},
        "after the destroy of an imported pool that had access, "
        "cudaMemPoolGetAccess says that every import has it")
      .with_gpus(2)
      .on({kImportPool, kDestroyPool, kSetPoolAccess, kGetPoolAccess},
          [](Call& call) {
            static std::atomic<bool> given{false};
            static std::atomic<bool> again{false};
            const bool of_import = call.is("cudaMemPoolDestroy") &&
                                   imported_pools.has(pool_of(call));
            if (of_import && given) again = true;
            const int code = call.proceed();
            if (gives_access(call) && imported_pools.has(pool_of(call)))
              given = true;
            return code == kSuccess && again && asks_about_import(call)
                       ? told_access(call, code)
                       : code;
          });

  fault("pool-exporters-access-reaches", {"IMPL-07"},
        "if the exporter gives access after the export, cudaMemPoolGetAccess "
        "says that the importers have it, too")
      .with_gpus(2)
      .on({kExportPool, kDestroyPool, kSetPoolAccess, kGetPoolAccess},
          [](Call& call) -> int {
            static Table<cudaMemPool_t> exported;
            const int code = call.proceed();
            if (code != kSuccess) return code;
            if (exports_pool(call)) exported.put(call.at<cudaMemPool_t>(1));
            if (call.is("cudaMemPoolDestroy")) exported.erase(pool_of(call));
            if (sets_access(call) && exported.has(pool_of(call)))
              tell_processes("access", gives_access(call) ? 1 : 0);
            return asks_about_import(call) && told("access", 0) != 0
                       ? told_access(call, code)
                       : code;
          });

  fault("pool-importers-share-access", {"IMPL-07"},
        "if one importer gives access, cudaMemPoolGetAccess says that the "
        "other importers have it, too")
      .with_gpus(2)
      .on({kSetPoolAccess, kGetPoolAccess}, [](Call& call) -> int {
        const auto own = static_cast<unsigned long long>(getpid());
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (gives_access(call) && imported_pools.has(pool_of(call)))
          tell_processes("giver", own);
        return asks_about_import(call) && told("giver", own) != own
                   ? told_access(call, code)
                   : code;
      });

  fault("pool-no-access-after-export", {"IMPL-07"},
        "after the export of a pool, no other GPU gets access to it")
      .with_gpus(2)
      .on({kExportPool, kDestroyPool, kSetPoolAccess}, [](Call& call) {
        static Table<cudaMemPool_t> exported;
        if (call.is("cudaMemPoolDestroy")) exported.erase(pool_of(call));
        if (gives_access(call) && exported.has(pool_of(call)))
          return lost(call);
        const int code = call.proceed();
        if (exports_pool(call) && code == kSuccess)
          exported.put(call.at<cudaMemPool_t>(1));
        return code;
      });

  fault(
      "pool-import-access-taken-in-name", {"IMPL-07"},
      "access to an imported pool is taken away only in the answer to a query")
      .with_gpus(2)
      .on({kDestroyPool, kSetPoolAccess, kGetPoolAccess},
          import_access_taken_in_name);

  fault("import-free-priority-at-once", {"POOL-16"},
        "the importer's free does not wait for a stream with a priority")
      .on({kMallocAsync, kMallocFromPool, kExportPointer, kImportPointer,
           kFreeAsync, kFree},
          import_freed_early<has_priority>);

  fault("import-free-on-other-gpu-at-once", {"POOL-16"},
        "the importer's free does not wait for a stream of a GPU other than "
        "the GPU of the memory")
      .with_gpus(2)
      .on({kMallocAsync, kMallocFromPool, kExportPointer, kImportPointer,
           kFreeAsync, kFree},
          import_freed_early<is_of_other_gpu>);

  fault("import-access-not-given-again", {"IMPL-07"},
        "access to an imported pool cannot be given again after it was taken "
        "away")
      .with_gpus(2)
      .on({kImportPool, kDestroyPool, kSetPoolAccess}, [](Call& call) {
        static Table<cudaMemPool_t> taken;
        if (!sets_access(call) || !imported_pools.has(pool_of(call))) {
          if (destroys(call)) taken.erase(pool_of(call));
          return call.proceed();
        }
        if (call.at<const cudaMemAccessDesc*>(1)->flags ==
            cudaMemAccessFlagsProtNone)
          taken.put(pool_of(call));
        else if (taken.has(pool_of(call)))
          return lost(call);
        return call.proceed();
      });

  fault("hidden-pool-access-before-import-only", {"IMPL-08"},
        "access to the pool of a hidden GPU cannot be given after memory of "
        "the pool was imported")
      .with_gpus(2)
      .on({kSetPoolAccess}, [](Call& call) -> int {
        int count = 0;
        if (!imported_pools.has(pool_of(call)) ||
            !has_imports_of(pool_of(call)) ||
            DRIVER_CALL(cuDeviceGetCount)(&count) != CUDA_SUCCESS || count != 1)
          return call.proceed();
        cudaMemLocation place{};
        place.type = cudaMemLocationTypeDevice;
        cudaMemAccessFlags flags = cudaMemAccessFlagsProtReadWrite;
        cudaMemPoolGetAccess(&flags, pool_of(call), &place);
        return flags == cudaMemAccessFlagsProtNone ? lost(call)
                                                   : call.proceed();
      });

  fault("import-setaccess-first-only", {"IMPL-07"},
        "only the first entry of a list of accesses to an imported pool is set")
      .with_gpus(2)
      .before(
          {kSetPoolAccess},
          WHEN(imported_pools.has(pool_of(call)) && call.at<size_t>(2) >= 2),
          [](Call& call) { call.at<size_t>(2) = 1; });
}

}  // namespace
}  // namespace ipclab::faults
