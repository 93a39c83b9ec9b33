// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "harness/faults/words/pool_work.h"
#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// Serves a call from the current pool of the current device. Ignores the device
// of its stream, or a pool of another device that it names.
int from_current_device(Call& call) {
  if (call.is("cudaMallocFromPoolAsync")) {
    int device = 0;
    cudaGetDevice(&device);
    const int owner = gpu_of(call.at<cudaMemPool_t>(2));
    if (owner == -1 || owner == device) return call.proceed();
  }
  using Allocate = cudaError_t(void**, size_t, cudaMemPool_t, cudaStream_t);
  static const auto allocate =
      reinterpret_cast<Allocate*>(resolve_runtime("cudaMallocFromPoolAsync"));
  CUcontext current = nullptr, of_stream = nullptr;
  CUgreenCtx green = nullptr;
  const cudaStream_t stream = call.value<cudaStream_t>(kStream);
  DRIVER_CALL(cuCtxGetCurrent)(&current);
  // For this name, the driver returns the second form since CUDA 12.5.
  driver<decltype(cuStreamGetCtx_v2)>("cuStreamGetCtx")(stream, &of_stream,
                                                        &green);
  if (call.is("cudaMallocFromPoolAsync") || of_stream != current) call.fired();
  return allocate(call.at<void**>(0), call.at<size_t>(1), current_pool(),
                  stream);
}

// Memory of cudaMalloc, which cudaFreeAsync must also free, and its size.
Table<void*, size_t> of_malloc;

// Proceeds, and updates this table.
int noted_malloc(Call& call) {
  if (frees(call)) of_malloc.erase(call.at<void*>(0));
  const int code = call.proceed();
  if (call.is("cudaMalloc") && code == kSuccess)
    of_malloc.put(*call.at<void**>(0), call.at<size_t>(1));
  return code;
}

int free_async_of_small_frees_block(Call& call) {
  constexpr uintptr_t kBlock = 2 << 20;
  static std::atomic<uintptr_t> free_block{0};
  static auto& lent = *new Table<void*>;
  const auto block_of = [](void* at) {
    return reinterpret_cast<uintptr_t>(at) / kBlock;
  };
  if (frees(call) && lent.erase(call.at<void*>(0))) return lost(call);
  if (call.is("cudaFreeAsync") && of_malloc.has(call.at<void*>(0)) &&
      of_malloc.get(call.at<void*>(0)) < kBlock)
    free_block = block_of(call.at<void*>(0));
  const int code = noted_malloc(call);
  if (!call.is("cudaMalloc") || code != kSuccess || free_block == 0)
    return code;
  void*& memory = *call.at<void**>(0);
  const size_t bytes = call.at<size_t>(1);
  for (const auto& [neighbour, size] : of_malloc.all())
    if (neighbour != memory && block_of(neighbour) == free_block &&
        size >= bytes) {
      free_block = 0;
      cudaFree(memory);
      of_malloc.erase(memory);
      memory = neighbour;
      lent.put(memory);
      return accepted(call);
    }
  return code;
}

// Stream-ordered memory reports `value`.
template <class T>
int pointer_says(Call& call, CUpointer_attribute which, T value) {
  const int code = call.proceed();
  if (!call.is("cuPointerGetAttribute") || code != kSuccess ||
      call.at<CUpointer_attribute>(1) != which ||
      !blocks.has(call.at<void*>(2)) || *call.at<T*>(0) == value)
    return code;
  *call.at<T*>(0) = value;
  call.fired();
  return code;
}

int pool_told_of_malloc(Call& call) {
  static auto& blocks = *new Table<CUdeviceptr>;
  if (call.is("cudaMalloc")) {
    const int code = call.proceed();
    if (code == kSuccess) blocks.put(*call.at<CUdeviceptr*>(0));
    return code;
  }
  if (call.is("cudaFree")) {
    blocks.erase(call.at<CUdeviceptr>(0));
    return call.proceed();
  }
  return attribute_wrong<CUmemoryPool>(
      call, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
      [](CUdeviceptr address, CUmemoryPool& pool) {
        if (blocks.has(address))
          DRIVER_CALL(cuDeviceGetDefaultMemPool)(&pool, 0);
      });
}

bool names_pool(const void* handle) {
  return *static_cast<const cudaMemPool_t*>(handle) != nullptr;
}

int freed_in_first_stream(Call& call) {
  static Table<void*, cudaStream_t> allocated_in;
  void* const address = call.is("cudaFreeAsync") ? call.at<void*>(0) : nullptr;
  if (address != nullptr && is_own_block(address) && busy_free(call) &&
      allocated_in.get(address) != stream_of(call)) {
    late_frees.put(address, {stream_of(call), this_thread()});
    blocks.erase(address);
    return kSuccess;
  }
  if (address == nullptr)
    for (const auto& [late, free] : late_frees.all()) {
      const bool first =
          allocates(call) && stream_of(call) == allocated_in.get(late);
      settle(call, late, free, first ? Now::kAtOnce : Now::kInOrder);
    }
  const int code = call.proceed();
  if (allocates(call) && code == kSuccess)
    allocated_in.put(*call.at<void**>(0), stream_of(call));
  return code;
}

FAULTS {
  fault("malloc-per-thread-stream-refused", {"SOMA-02"},
        "an allocation in a thread's default stream is refused")
      .on({kMallocAsync, kMallocFromPool},
          WHEN(call.value<cudaStream_t>(kStream) == cudaStreamPerThread),
          refuses());

  fault("free-elsewhere-at-once", {"SOMA-04", "SOMA-26"},
        "if a free and its allocation are in different streams, the free does "
        "not wait for its stream")
      .on({kMallocFromPool, kMallocAsync, kFreeAsync}, [](Call& call) {
        static Table<void*, cudaStream_t> streams;
        if (allocates(call)) {
          const int code = call.proceed();
          if (code == kSuccess)
            streams.put(*call.at<void**>(0), call.value<cudaStream_t>(kStream));
          return code;
        }
        auto& stream = call.value<cudaStream_t>(kStream);
        if (streams.get(call.at<void*>(0), stream) == stream ||
            !is_busy(stream))
          return call.proceed();
        stream = private_stream();
        call.fired();
        const int code = call.proceed();
        cudaStreamSynchronize(private_stream());
        return code;
      });

  fault("mempool-attr-current", {"SOMA-28", "SOMA-08"},
        "memory of any pool reports the current pool as its own")
      .after({kGetAttribute},
             WHEN(call.at<CUpointer_attribute>(1) ==
                  CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE),
             [](Call& call) -> int {
               auto& pool = *call.at<cudaMemPool_t*>(0);
               if (pool == nullptr || pool == current_pool()) return kSuccess;
               call.fired();
               pool = current_pool();
               return kSuccess;
             });

  fault("ordinal-attr-zero", {"SOMA-28", "SOMA-03"},
        "memory of every GPU reports GPU 0")
      .with_gpus(2)
      .after({kGetAttribute},
             WHEN(call.at<CUpointer_attribute>(1) ==
                  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL),
             [](Call& call) {
               auto& ordinal = *call.at<int*>(0);
               if (ordinal != 0) call.fired();
               ordinal = 0;
               return kSuccess;
             });

  fault("pool-create-on-gpu-0", {"SOMA-03", "SOMA-08"},
        "a pool is always on GPU 0")
      .with_gpus(2)
      .on({kCreatePool}, [](Call& call) {
        cudaMemPoolProps wanted = *call.at<const cudaMemPoolProps*>(1);
        int devices = 0;
        DRIVER_CALL(cuDeviceGetCount)(&devices);
        if (wanted.location.type != cudaMemLocationTypeDevice ||
            wanted.location.id <= 0 || wanted.location.id >= devices)
          return call.proceed();
        wanted.location.id = 0;
        call.at<const cudaMemPoolProps*>(1) = &wanted;
        const int code = call.proceed();
        if (code == kSuccess) call.fired();
        return code;
      });

  fault(
      "mallocasync-blocks", {"SOMA-02"},
      "an allocation call blocks until the earlier work of its stream is done")
      .after({kMallocAsync, kMallocFromPool}, [](Call& call) -> int {
        const auto stream = call.value<cudaStream_t>(kStream);
        if (!is_busy(stream)) return kSuccess;
        call.fired();
        cudaStreamSynchronize(stream);
        return kSuccess;
      });

  fault("async-current-device", {"SOMA-03"},
        "memory lies on the current device, not on the stream's device")
      .with_gpus(2)
      .on({kMallocAsync}, from_current_device);

  fault("frompool-current-device", {"SOMA-03"},
        "memory lies on the current device, not on the pool's device")
      .with_gpus(2)
      .on({kMallocFromPool}, from_current_device);

  fault("wait-noop-local", {"SOMA-04"},
        "a stream does not wait for an event of its own process")
      .on({kWaitEvent, kOpenEvent, kDestroyEvent}, [](Call& call) -> int {
        static Table<cudaEvent_t> imported;
        if (call.is("cudaIpcOpenEventHandle")) {
          const int code = call.proceed();
          if (code == kSuccess) imported.put(*call.at<cudaEvent_t*>(0));
          return code;
        }
        if (call.is("cudaEventDestroy")) {
          imported.erase(call.at<cudaEvent_t>(0));
          return call.proceed();
        }
        const auto event = call.at<cudaEvent_t>(1);
        return imported.has(event) || !is_pending(event) ? call.proceed()
                                                         : lost(call);
      });

  fault("freeasync-malloc-refused", {"SOMA-05"},
        "cudaFreeAsync refuses memory of cudaMalloc")
      .on({kFreeAsync, kMalloc, kFree}, [](Call& call) {
        return call.is("cudaFreeAsync") && of_malloc.has(call.at<void*>(0))
                   ? refused(call)
                   : noted_malloc(call);
      });

  fault("freeasync-malloc-leaks", {"SOMA-05"},
        "cudaFreeAsync does not free memory of cudaMalloc")
      .on({kFreeAsync, kMalloc, kFree}, [](Call& call) {
        return call.is("cudaFreeAsync") && of_malloc.erase(call.at<void*>(0))
                   ? lost(call)
                   : noted_malloc(call);
      });

  fault("freeasync-small-takes-neighbour", {"SOMA-05"},
        "after cudaFreeAsync of small memory of cudaMalloc, other memory of "
        "its block of 2 MiB is given out again")
      .on({kFreeAsync, kMalloc, kFree}, free_async_of_small_frees_block);

  fault("freeasync-malloc-early", {"SOMA-05"},
        "cudaFreeAsync frees memory of cudaMalloc before its stream reaches "
        "the free")
      .on({kFreeAsync, kMalloc, kFree}, [](Call& call) -> int {
        if (!call.is("cudaFreeAsync")) return noted_malloc(call);
        void* const address = call.at<void*>(0);
        const size_t bytes = of_malloc.get(address);
        if (bytes != 0 && is_busy(call.at<cudaStream_t>(1))) {
          cudaMemsetAsync(address, 0xDD, bytes, private_stream());
          cudaStreamSynchronize(private_stream());
          call.fired();
        }
        return noted_malloc(call);
      });

  fault("free-waits", {"SOMA-05"},
        "cudaFree of stream-ordered memory waits for all streams")
      .before({kFree}, WHEN(blocks.has(call.at<void*>(0))), [](Call& call) {
        call.fired();
        cudaDeviceSynchronize();
        return kSuccess;
      });

  fault("context-attr-not-null", {"SOMA-28"},
        "cuPointerGetAttribute reports a context for stream-ordered memory")
      .on({kGetAttribute, kMallocAsync, kMallocFromPool, kFree, kFreeAsync},
          [](Call& call) {
            CUcontext context = nullptr;
            DRIVER_CALL(cuCtxGetCurrent)(&context);
            return pointer_says(call, CU_POINTER_ATTRIBUTE_CONTEXT, context);
          });

  fault("ordinal-attr-current", {"SOMA-28"},
        "cuPointerGetAttribute reports the current device for stream-ordered "
        "memory")
      .with_gpus(2)
      .on({kGetAttribute, kMallocAsync, kMallocFromPool, kFree, kFreeAsync},
          [](Call& call) {
            int device = 0;
            cudaGetDevice(&device);
            return pointer_says(call, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                device);
          });

  fault("mempool-attr-default", {"SOMA-28"},
        "cuPointerGetAttribute reports the default pool for stream-ordered "
        "memory")
      .on({kGetAttribute, kMallocAsync, kMallocFromPool, kFree, kFreeAsync},
          [](Call& call) {
            return pointer_says(call, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                default_pool());
          });

  fault("async-named-default-no-context-ok", {"SOMA-36"},
        "in a thread without a context, CU_STREAM_LEGACY and "
        "CU_STREAM_PER_THREAD are accepted")
      .on({kMallocAsync, kMallocFromPool, kFreeAsync}, [](Call& call) -> int {
        const int code = call.proceed();
        const auto stream = call.value<CUstream>(kStream);
        if (code != CUDA_ERROR_INVALID_CONTEXT ||
            (stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD))
          return code;
        CUcontext context = nullptr;
        DRIVER_CALL(cuDevicePrimaryCtxRetain)(&context, 0);
        DRIVER_CALL(cuCtxPushCurrent)(context);
        const int now = call.proceed();
        DRIVER_CALL(cuCtxPopCurrent)(&context);
        call.fired();
        return now;
      });

  fault("mempool-attr-of-mapped", {"SOMA-28"},
        "mapped memory of cuMemCreate reports the default pool")
      .on({kGetAttribute, kMap, kUnmap}, [](Call& call) {
        return attribute_wrong<CUmemoryPool>(
            call, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
            [](CUdeviceptr address, CUmemoryPool& pool) {
              if (is_mapped_at(address))
                DRIVER_CALL(cuDeviceGetDefaultMemPool)(&pool, 0);
            });
      });

  fault("mempool-attr-of-malloc", {"SOMA-28"},
        "memory of cudaMalloc reports the default pool")
      .on({kGetAttribute, kMalloc, kFree}, pool_told_of_malloc);

  fault("legacy-stream-refused", {"SOMA-02", "SOMA-08"},
        "the allocator's calls of the runtime API refuse cudaStreamLegacy")
      .on({kMallocAsync, kMallocFromPool, kFreeAsync},
          WHEN(call.is_runtime() &&
               call.value<cudaStream_t>(kStream) == cudaStreamLegacy),
          refuses(cudaErrorInvalidResourceHandle));

  fault("async-no-context-as-value", {"SOMA-36"},
        "in a thread without a context, the default stream is refused as an "
        "invalid value")
      .on({kMallocAsync, kMallocFromPool, kFreeAsync}, [](Call& call) {
        const int code = call.proceed();
        return code == CUDA_ERROR_INVALID_CONTEXT ? refused(call) : code;
      });

  fault("async-no-context-ok", {"SOMA-36"},
        "in a thread without a context, the default stream allocates and frees "
        "on GPU 0")
      .on({kMallocAsync, kMallocFromPool, kFreeAsync}, [](Call& call) -> int {
        const int code = call.proceed();
        if (code != CUDA_ERROR_INVALID_CONTEXT) return code;
        CUcontext context = nullptr;
        DRIVER_CALL(cuDevicePrimaryCtxRetain)(&context, 0);
        DRIVER_CALL(cuCtxPushCurrent)(context);
        const int now = call.proceed();
        if (now == kSuccess) call.fired();
        DRIVER_CALL(cuCtxPopCurrent)(&context);
        return now;
      });

  fault("device-sync-of-default-stream", {"SOMA-04", "SOMA-27"},
        "cudaDeviceSynchronize waits for the default stream only")
      .on({kSyncDevice, "cudaStreamCreateWithFlags", kDestroyStream},
          [](Call& call) {
            static Table<cudaStream_t> streams;
            if (call.is("cudaStreamCreateWithFlags")) {
              const int code = call.proceed();
              if (code == kSuccess) streams.put(*call.at<cudaStream_t*>(0));
              return code;
            }
            if (call.is("cudaStreamDestroy")) {
              streams.erase(call.at<cudaStream_t>(0));
              return call.proceed();
            }
            const int code = cudaStreamSynchronize(cudaStreamLegacy);
            for (const auto& one : streams.all())
              if (is_busy(one.first)) call.fired();
            return code;
          });

  fault("freeasync-malloc-first-only", {"SOMA-05"},
        "cudaFreeAsync frees only the first memory of cudaMalloc that it gets")
      .on({kFreeAsync, kFree, kMalloc}, [](Call& call) {
        static auto& of_malloc = *new Table<void*>;
        static std::atomic<int> freed{0};
        if (call.is("cudaFreeAsync") && of_malloc.erase(call.at<void*>(0)) &&
            freed++ > 0)
          return accepted(call);
        if (call.is("cudaFree")) of_malloc.erase(call.at<void*>(0));
        const int code = call.proceed();
        if (call.is("cudaMalloc") && code == kSuccess)
          of_malloc.put(*call.at<void**>(0));
        return code;
      });

  fault("async-named-stream-needs-context", {"SOMA-36"},
        "in a thread without a context, the driver API also refuses streams "
        "that are not default streams")
      .on({kMallocAsync, kMallocFromPool, kFreeAsync},
          WHEN(!call.is_runtime() &&
               !is_default(call.value<cudaStream_t>(kStream)) &&
               call.value<cudaStream_t>(kStream) != cudaStreamPerThread &&
               current_context() == nullptr),
          [](Call& call) { return refused(call, CUDA_ERROR_INVALID_CONTEXT); });

  fault("mempool-attr-first-byte-only", {"SOMA-28"},
        "only the start of an allocation is reported as memory of a pool")
      .after({kGetAttribute},
             WHEN(!blocks.has(call.at<void*>(2)) &&
                  call.at<CUpointer_attribute>(1) ==
                      CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE &&
                  names_pool(call.at<void*>(0))),
             [](Call& call) {
               *call.at<cudaMemPool_t*>(0) = nullptr;
               return accepted(call);
             });

  fault("mempool-attr-not-among-several", {"SOMA-28"},
        "a query of several attributes at once reports no pool")
      .after({kGetAttributes}, [](Call& call) {
        const auto* const wanted = call.at<const CUpointer_attribute*>(1);
        void** const results = call.at<void**>(2);
        for (unsigned i = 0; i < call.at<unsigned>(0); ++i)
          if (wanted[i] == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE &&
              names_pool(results[i])) {
            *static_cast<cudaMemPool_t*>(results[i]) = nullptr;
            call.fired();
          }
        return kSuccess;
      });

  fault(
      "freeasync-malloc-default-stream-leaks", {"SOMA-05"},
      "in the default stream, cudaFreeAsync does not free memory of cudaMalloc")
      .on({kFreeAsync, kFree, kMalloc}, [](Call& call) -> int {
        static auto& of_malloc = *new Table<void*>;
        if (call.is("cudaMalloc")) {
          const int code = call.proceed();
          if (code == kSuccess) of_malloc.put(*call.at<void**>(0));
          return code;
        }
        const bool is_of_malloc = of_malloc.erase(call.at<void*>(0));
        return is_of_malloc && call.is("cudaFreeAsync") &&
                       is_default(stream_of(call))
                   ? lost(call)
                   : call.proceed();
      });

  fault("free-counts-in-first-stream", {"SOMA-04"},
        "the stream that has allocated memory gets it again although its free "
        "in another stream is pending")
      .on({kPoolWork, kSyncEvent, kSyncContext}, freed_in_first_stream);

  fault("stream-ordered-told-on-current-gpu", {"SOMA-03"},
        "the runtime says that stream-ordered memory is on the current GPU")
      .with_gpus(2)
      .after({kPointerAttributes}, WHEN(is_own_block(call.at<void*>(1))),
             [](Call& call) -> int {
               int& gpu = call.at<cudaPointerAttributes*>(0)->device;
               if (gpu == current_device()) return kSuccess;
               gpu = current_device();
               call.fired();
               return kSuccess;
             });

  fault("driver-free-waits", {"SOMA-05"},
        "cuMemFree of memory of a pool waits for all work of the context")
      .before({kFree},
              WHEN(!call.is_runtime() && blocks.has(call.at<void*>(0))),
              [](Call& call) {
                call.fired();
                cudaDeviceSynchronize();
                return kSuccess;
              });

  fault("malloc-freed-at-once-by-default-stream", {"SOMA-05"},
        "a free of memory of cudaMalloc in a default stream does not wait for "
        "this stream")
      .on({kMalloc, kFree, kFreeAsync}, [](Call& call) -> int {
        static Table<void*> allocated;
        if (call.is("cudaFree")) allocated.erase(call.at<void*>(0));
        if (call.is("cudaFreeAsync") && allocated.erase(call.at<void*>(0)) &&
            (is_default(stream_of(call)) || is_per_thread(call)) &&
            is_busy(stream_of(call)))
          return freed_at_once(call);
        const int code = call.proceed();
        if (code == kSuccess && call.is("cudaMalloc"))
          allocated.put(*call.at<void**>(0));
        return code;
      });
}

}  // namespace
}  // namespace ipclab::faults
