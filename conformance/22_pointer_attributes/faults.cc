// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <atomic>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// All memory reports these handle types.
template <unsigned long long types>
int allows(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto answer = [&](CUpointer_attribute which, void* place) {
    if (which != CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) return;
    auto& value = *static_cast<unsigned long long*>(place);
    if (value != types) call.fired();
    value = types;
  };
  if (call.is("cuPointerGetAttribute")) {
    answer(call.at<CUpointer_attribute>(1), call.at<void*>(0));
    return code;
  }
  for (unsigned i = 0; i < call.at<unsigned>(0); ++i)
    answer(call.at<CUpointer_attribute*>(1)[i], call.at<void**>(2)[i]);
  return code;
}

int pointer_attribute(Call& call, CUpointer_attribute wanted, bool value) {
  const int code = call.proceed();
  if (call.at<CUpointer_attribute>(1) != wanted || code != kSuccess)
    return code;
  bool& told = *call.at<bool*>(0);
  if (told != value) call.fired();
  told = value;
  return code;
}

bool* capable_in(Call& call) {
  return answer<CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, bool>(call);
}

// Memory from these functions is reported as capable of legacy IPC.
int such_memory_capable(Call& call) {
  static Table<void*> concerned;
  const int code = call.proceed();
  if (call.find(kOut) != nullptr) {
    if (code == kSuccess) concerned.put(*call.at<void**>(0));
  } else if (code == kSuccess && capable_in(call) != nullptr &&
             concerned.has(call.at<void*>(2))) {
    *capable_in(call) = true;
    call.fired();
  }
  return code;
}

// The place of the answer, if the call asks for the attribute `wanted`; null if
// the call asks for another attribute.
template <CUpointer_attribute wanted, class Value>
Value* answer_to_query(Call& call) {
  return call.is("cuPointerGetAttribute") &&
                 call.at<CUpointer_attribute>(1) == wanted
             ? call.at<Value*>(0)
             : nullptr;
}

bool* capable_in_query(Call& call) {
  return answer_to_query<CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, bool>(
      call);
}

unsigned long long* types_in(Call& call) {
  return answer_to_query<CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                         unsigned long long>(call);
}

int told_capable(Call& call, bool value) {
  if (*capable_in_query(call) != value) call.fired();
  *capable_in_query(call) = value;
  return kSuccess;
}

// Changes each answer about one attribute, in both queries. The step gets the
// address and the driver's answer, and returns the new answer.
template <CUpointer_attribute wanted, class Value, class Step>
int answered_by(Call& call, Step step) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto change = [&](Value& value, CUdeviceptr address) {
    const Value changed = step(address, value);
    if (changed != value) call.fired();
    value = changed;
  };
  if (call.is("cuPointerGetAttribute")) {
    if (auto* const value = answer_to_query<wanted, Value>(call))
      change(*value, call.at<CUdeviceptr>(2));
    return code;
  }
  for (unsigned i = 0; i < call.at<unsigned>(0); ++i)
    if (call.at<const CUpointer_attribute*>(1)[i] == wanted)
      change(*static_cast<Value*>(call.at<void**>(2)[i]),
             call.at<CUdeviceptr>(3));
  return code;
}

// The query of many attributes reports 0 for this attribute.
template <CUpointer_attribute wanted, class Value>
int zero_in_plural(Call& call) {
  const int code = call.proceed();
  const auto* const attributes = call.at<const CUpointer_attribute*>(1);
  for (unsigned i = 0; code == kSuccess && i < call.at<unsigned>(0); ++i) {
    if (attributes[i] != wanted) continue;
    auto& value = *static_cast<Value*>(call.at<void**>(2)[i]);
    if (value != Value{}) call.fired();
    value = Value{};
  }
  return code;
}

// The id of an allocation, which no later allocation gets; 0 if there is none.
unsigned long long id_of(CUdeviceptr address) {
  unsigned long long id = 0;
  DRIVER_CALL(cuPointerGetAttribute)
  (&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
  return id;
}

// An attribute says that memory can be exported as a descriptor.
int said_to_allow_descriptors(Call& call, bool applies) {
  const int code = call.proceed();
  if (code != kSuccess || !applies ||
      call.at<CUpointer_attribute>(1) !=
          CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
    return code;
  *call.at<unsigned long long*>(0) = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
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

int small_freed_still_capable(Call& call) {
  static auto& freed = *new Table<CUdeviceptr, size_t>;
  if (call.is("cudaFree")) {
    const auto address = call.at<CUdeviceptr>(0);
    const size_t bytes = size_of(address);
    const int code = call.proceed();
    if (code == kSuccess && bytes > 0 && bytes < kBlock)
      freed.put(address, bytes);
    return code;
  }
  const int code = call.proceed();
  const auto address = call.at<CUdeviceptr>(2);
  if (call.at<CUpointer_attribute>(1) !=
          CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE ||
      size_of(address) > 0)  // later memory is there
    return code;
  for (const auto& [begin, bytes] : freed.all()) {
    if (address < begin || address - begin >= bytes) continue;
    *call.at<bool*>(0) = true;
    return accepted(call);
  }
  return code;
}

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

FAULTS {
  fault("allowed-types-lies", {"MNGD-14"},
        "all memory reports that it can be exported as a descriptor")
      .on({kGetAttributes, kGetAttribute},
          allows<CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR>);

  fault("allowed-types-none", {"MNGD-14"},
        "all memory reports that it cannot be exported")
      .on({kGetAttributes, kGetAttribute}, allows<CU_MEM_HANDLE_TYPE_NONE>);

  fault("range-is-the-mapping", {"VMM-45"},
        "the range of an address is what is mapped, not what was reserved")
      .on({kGetAttributes, kGetAttribute}, [](Call& call) {
        return answered_by<CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CUdeviceptr>(
            call, [](CUdeviceptr address, CUdeviceptr told) {
              CUdeviceptr base = told;
              DRIVER_CALL(cuPointerGetAttribute)
              (&base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, address);
              return base;
            });
      });

  fault("mapping-is-the-range", {"VMM-45"},
        "the base of a mapping is the beginning of the reservation")
      .on({kGetAttributes, kGetAttribute}, [](Call& call) {
        return answered_by<CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, CUdeviceptr>(
            call, [](CUdeviceptr address, CUdeviceptr told) {
              CUdeviceptr base = told;
              DRIVER_CALL(cuPointerGetAttribute)
              (&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address);
              return base;
            });
      });

  fault("block-id-of-each-address", {"VMM-46"},
        "each mapping of memory has an id of its own")
      .on({kGetAttributes, kGetAttribute}, [](Call& call) {
        return answered_by<CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID,
                           unsigned long long>(
            call, [](CUdeviceptr address, unsigned long long) {
              return static_cast<unsigned long long>(address);
            });
      });

  fault("block-id-of-all-imports", {"VMM-46"}, "all memory has one id")
      .on({kGetAttributes, kGetAttribute}, [](Call& call) {
        return answered_by<CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID,
                           unsigned long long>(
            call, [](CUdeviceptr, unsigned long long) { return 1ull; });
      });

  fault("legacy-capable-lies", {"LMEM-37"},
        "cuPointerGetAttribute reports all memory as capable of legacy IPC")
      .on({kGetAttribute}, [](Call& call) {
        return pointer_attribute(
            call, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, true);
      });

  fault("legacy-capable-denied", {"LMEM-37"},
        "cuPointerGetAttribute reports no memory as capable of legacy IPC")
      .on({kGetAttribute}, [](Call& call) {
        return pointer_attribute(
            call, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, false);
      });

  fault("capable-at-begin-only", {"LMEM-37"},
        "only the first address of memory is reported as capable of legacy IPC")
      .after({kGetAttribute},
             WHEN(capable_in(call) != nullptr && *capable_in(call) &&
                  range_of(call.at<void*>(2)).begin != call.at<CUdeviceptr>(2)),
             [](Call& call) { *capable_in(call) = false; });

  fault("capable-until-export", {"LMEM-37"},
        "exported memory is reported as not capable of legacy IPC")
      .on({kGetAttribute, kGetHandle, kFree}, [](Call& call) {
        static Table<void*> exported;
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (call.is("cudaFree")) {
          exported.erase(call.at<void*>(0));
        } else if (call.is("cudaIpcGetMemHandle")) {
          exported.put(call.at<void*>(1));
        } else if (capable_in(call) != nullptr &&
                   exported.has(call.at<void*>(2))) {
          *capable_in(call) = false;
          call.fired();
        }
        return code;
      });

  fault("capable-async", {"LMEM-37"},
        "stream-ordered memory is reported as capable of legacy IPC")
      .on({kGetAttribute, kMallocAsync, kMallocFromPool}, such_memory_capable);

  fault("capable-host", {"LMEM-37"},
        "pinned host memory is reported as capable of legacy IPC")
      .on({kGetAttribute, "cudaHostAlloc"}, such_memory_capable);

  fault("allowed-types-at-begin-only", {"MNGD-14"},
        "only the first address of a mapping has its handle types")
      .after({kGetAttribute},
             WHEN(types_in(call) != nullptr && *types_in(call) != 0 &&
                  begin_of(call.at<CUdeviceptr>(2)) != call.at<CUdeviceptr>(2)),
             [](Call& call) { *types_in(call) = 0; });

  fault("allowed-types-of-first-chunk", {"MNGD-14"},
        "each address of a reservation has the handle types of the chunk at "
        "its beginning")
      .after({kGetAttribute}, WHEN(types_in(call) != nullptr), [](Call& call) {
        const auto first = attribute_of<CUdeviceptr>(
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, call.at<CUdeviceptr>(2));
        const auto types = attribute_of<unsigned long long>(
            CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, first);
        if (*types_in(call) != types) call.fired();
        *types_in(call) = types;
        return kSuccess;
      });

  fault("allowed-types-of-first-query", {"MNGD-14"},
        "the handle types of an address stay the same when other memory is "
        "mapped there")
      .on({kGetAttribute, kGetAttributes, kFreeAddress}, [](Call& call) -> int {
        static Table<CUdeviceptr, unsigned long long> first;
        if (call.is("cuMemAddressFree")) {
          const auto begin = call.at<CUdeviceptr>(0);
          for (const auto& each : first.all())
            if (each.first - begin < call.at<size_t>(1))
              first.erase(each.first);
        }
        if (!call.is("cuPointerGetAttribute") &&
            !call.is("cuPointerGetAttributes"))
          return call.proceed();
        return answered_by<CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                           unsigned long long>(
            call, [](CUdeviceptr address, unsigned long long types) {
              if (reservation_at(address) == 0) return types;
              if (!first.has(address)) first.put(address, types);
              return first.get(address);
            });
      });

  fault("capable-registered", {"LMEM-37"},
        "memory of cudaHostRegister is reported as capable of legacy IPC")
      .on({kGetAttribute, kGetAttributes, "cudaHostRegister"},
          [](Call& call) -> int {
            static Table<CUdeviceptr> registered;
            if (call.is("cudaHostRegister")) {
              const int code = call.proceed();
              if (code == kSuccess) registered.put(call.at<CUdeviceptr>(0));
              return code;
            }
            return answered_by<CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                               bool>(call, [](CUdeviceptr address, bool value) {
              return value ||
                     (registered.has(address) &&
                      attribute_of<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                             address) == CU_MEMORYTYPE_HOST);
            });
          });

  fault("capable-graph-memory", {"LMEM-37"},
        "memory of a graph's node is reported as capable of legacy IPC")
      .on({kGetAttribute, kGetAttributes, "cudaGraphAddMemAllocNode"},
          [](Call& call) -> int {
            static Table<CUdeviceptr> of_graphs;
            if (call.is("cudaGraphAddMemAllocNode")) {
              const int code = call.proceed();
              if (code == kSuccess)
                of_graphs.put(call.at<CUDA_MEM_ALLOC_NODE_PARAMS*>(4)->dptr);
              return code;
            }
            return answered_by<CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                               bool>(call, [](CUdeviceptr address, bool value) {
              return value || of_graphs.has(address);
            });
          });

  fault("capable-managed-inside", {"LMEM-37"},
        "an address inside managed memory is reported as capable of legacy IPC")
      .on({kGetAttribute, kGetAttributes}, [](Call& call) {
        return answered_by<CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                           bool>(call, [](CUdeviceptr address, bool value) {
          return value || (attribute_of<unsigned>(
                               CU_POINTER_ATTRIBUTE_IS_MANAGED, address) != 0 &&
                           begin_of(address) != address);
        });
      });

  fault("many-allowed-types-zero", {"MNGD-14"},
        "the query of many attributes reports that memory has no handle types")
      .on({kGetAttributes},
          zero_in_plural<CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                         unsigned long long>);

  fault("many-capable-zero", {"LMEM-37"},
        "the query of many attributes reports that no memory is capable of "
        "legacy IPC")
      .on({kGetAttributes},
          zero_in_plural<CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                         bool>);

  fault("capable-mapped", {"LMEM-37"},
        "mapped memory of cuMemCreate is reported as capable of legacy IPC")
      .after({kGetAttribute, kMap, kUnmap},
             WHEN(capable_in_query(call) != nullptr &&
                  mappings.has(call.at<CUdeviceptr>(2))),
             [](Call& call) { return told_capable(call, true); });

  fault("capable-managed", {"LMEM-37"},
        "managed memory is reported as capable of legacy IPC")
      .after({kGetAttribute},
             WHEN(capable_in_query(call) != nullptr &&
                  attribute_of<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                         call.at<CUdeviceptr>(2)) != 0),
             [](Call& call) { return told_capable(call, true); });

  fault("capable-only-if-large", {"LMEM-37"},
        "memory of less than 2 MiB is reported as not capable of legacy IPC")
      .on({kGetAttribute}, [](Call& call) {
        const int code = call.proceed();
        return code != kSuccess || capable_in_query(call) == nullptr ||
                       size_of(call.at<CUdeviceptr>(2)) >= 2 << 20
                   ? code
                   : told_capable(call, false);
      });

  fault("capable-only-if-small", {"LMEM-37"},
        "memory of 2 MiB or more is reported as not capable of legacy IPC")
      .on({kGetAttribute}, [](Call& call) {
        const int code = call.proceed();
        return code != kSuccess || capable_in_query(call) == nullptr ||
                       size_of(call.at<CUdeviceptr>(2)) < 2 << 20
                   ? code
                   : told_capable(call, false);
      });

  fault("capable-in-first-thread", {"LMEM-37"},
        "in a second thread, memory is reported as not capable of legacy IPC")
      .on({kGetAttribute}, [](Call& call) {
        const int code = call.proceed();
        return code != kSuccess || capable_in_query(call) == nullptr ||
                       gettid() == getpid()
                   ? code
                   : told_capable(call, false);
      });

  fault("capable-of-runtime-only", {"LMEM-37"},
        "memory of cuMemAlloc is reported as not capable of legacy IPC")
      .on({kGetAttribute, kMalloc, kFree}, [](Call& call) -> int {
        static Table<CUdeviceptr> concerned;
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (call.is("cudaMalloc")) {
          if (!call.is_runtime()) concerned.put(*call.at<CUdeviceptr*>(0));
        } else if (call.is("cudaFree")) {
          concerned.erase(call.at<CUdeviceptr>(0));
        } else if (capable_in_query(call) != nullptr &&
                   concerned.has(call.at<CUdeviceptr>(2))) {
          return told_capable(call, false);
        }
        return code;
      });

  fault("capable-on-current-gpu", {"LMEM-37"},
        "memory of a GPU other than the current GPU is reported as not capable "
        "of legacy IPC")
      .with_gpus(2)
      .on({kGetAttribute}, [](Call& call) {
        int current = 0;
        cudaGetDevice(&current);
        const int code = call.proceed();
        return code != kSuccess || capable_in_query(call) == nullptr ||
                       attribute_of<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                         call.at<CUdeviceptr>(2)) == current
                   ? code
                   : told_capable(call, false);
      });

  fault("capable-odd-size-denied", {"LMEM-37"},
        "cuPointerGetAttribute says that memory is not capable of legacy IPC "
        "if its size is not a multiple of 4")
      .after({kGetAttribute},
             WHEN(call.at<CUpointer_attribute>(1) ==
                      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE &&
                  allocation_around(call.at<CUdeviceptr>(2)).second % 4 != 0),
             [](Call& call) {
               auto& capable = *call.at<bool*>(0);
               if (capable) call.fired();
               capable = false;
               return kSuccess;
             });

  fault("freed-still-capable", {"LMEM-37"},
        "cuPointerGetAttribute says that freed memory is capable of legacy IPC")
      .on({kGetAttribute, kFree}, [](Call& call) -> int {
        if (call.is("cudaFree")) return noted_free(call);
        const int code = call.proceed();
        if (code == kSuccess || !is_gone(call.at<CUdeviceptr>(2)) ||
            call.at<CUpointer_attribute>(1) !=
                CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
          return code;
        *call.at<bool*>(0) = true;
        return accepted(call);
      });

  fault("capable-until-sync-memops", {"LMEM-37"},
        "cuPointerGetAttribute says that memory is not capable of legacy IPC "
        "after its CU_POINTER_ATTRIBUTE_SYNC_MEMOPS was set")
      .on({kGetAttribute, "cuPointerSetAttribute"}, [](Call& call) {
        static Table<unsigned long long> changed;  // by the ids
        const int code = call.proceed();
        if (code != kSuccess) return code;
        const auto id = id_of(call.at<CUdeviceptr>(2));
        const auto which = call.at<CUpointer_attribute>(1);
        if (call.is("cuPointerSetAttribute")) {
          if (which == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) changed.put(id);
        } else if (which == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE &&
                   changed.has(id)) {
          if (*call.at<bool*>(0)) call.fired();
          *call.at<bool*>(0) = false;
        }
        return code;
      });

  fault("import-allows-descriptors", {"MNGD-14"},
        "cuPointerGetAttribute says that opened memory can be exported as a "
        "descriptor")
      .on({kGetAttribute}, [](Call& call) {
        return said_to_allow_descriptors(call,
                                         is_opened(call.at<CUdeviceptr>(2)));
      });

  fault("exported-allows-descriptors", {"MNGD-14"},
        "cuPointerGetAttribute says that memory that has a legacy handle can "
        "be exported as a descriptor")
      .on({kGetAttribute, kGetHandle}, [](Call& call) -> int {
        static Table<unsigned long long> exported;  // by the ids
        if (!exports_memory(call))
          return said_to_allow_descriptors(
              call, exported.has(id_of(call.at<CUdeviceptr>(2))));
        const int code = call.proceed();
        if (code == kSuccess) exported.put(id_of(call.at<CUdeviceptr>(1)));
        return code;
      });

  fault("capable-pitched-denied", {"LMEM-37"},
        "memory of cudaMallocPitch and cudaMalloc3D is reported as not capable "
        "of legacy IPC")
      .on({kGetAttribute, "cudaMallocPitch", "cudaMalloc3D", kFree},
          pitched_not_capable);

  fault("allowed-types-of-first-mapping", {"MNGD-14"},
        "only the first mapping of memory has handle types")
      .after({kGetAttribute},
             WHEN(mapping_at(call.at<CUdeviceptr>(2)) != 0 &&
                  call.at<CUpointer_attribute>(1) ==
                      CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES),
             [](Call& call) {
               const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(2));
               const Mapped mapped = mappings.get(begin);
               auto& types = *call.at<unsigned long long*>(0);
               for (const auto& [other, one] : mappings.all())
                 if (types != 0 && one.chunk == mapped.chunk &&
                     one.order < mapped.order) {
                   types = 0;
                   call.fired();
                 }
               return kSuccess;
             });

  fault("small-freed-still-capable", {"LMEM-37"},
        "cuPointerGetAttribute says that freed memory of less than 2 MiB is "
        "capable of legacy IPC")
      .on({kGetAttribute, kFree}, small_freed_still_capable);

  fault("exported-like-earlier", {"MNGD-14"},
        "after memory was created for descriptors, the export of later memory "
        "without handle types gives a descriptor of other memory")
      .on({kCreate, kExport}, exported_like_earlier);

  fault("ok-unknown-not-capable", {"LMEM-37"},
        "an unknown pointer is reported as not capable of legacy IPC")
      .on_refusal({kGetAttribute},
                  WHEN(call.at<CUpointer_attribute>(1) ==
                       CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE),
                  [](Call& call) {
                    *call.at<bool*>(0) = false;
                    return accepted(call);
                  });

  fault("ok-buffer-ids-large",
        {"LMEM-37", "MNGD-14", "VMM-45", "VMM-46", "LMEM-01", "LMEM-06",
         "LMEM-36", "VMM-31"},
        "the numbers of buffers begin at 2^40")
      .on({kGetAttributes, kGetAttribute}, [](Call& call) {
        return answered_by<CU_POINTER_ATTRIBUTE_BUFFER_ID, unsigned long long>(
            call, [](CUdeviceptr, unsigned long long told) {
              return told == 0 ? told : told + (1ull << 40);
            });
      });
}

}  // namespace
}  // namespace ipclab::faults
