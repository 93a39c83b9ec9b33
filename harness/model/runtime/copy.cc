// SPDX-License-Identifier: Apache-2.0
// The runtime API: copies, and calls that set memory. With unified addressing,
// the direction that a program names is redundant; only a direction that does
// not exist is refused.
#include <cstring>

#include "runtime/module.h"
#include "runtime/runtime.h"

using namespace ipclab::runtime;

namespace {

CUdeviceptr number(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

bool is_direction(cudaMemcpyKind kind) {
  return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;
}

CUDA_MEMCPY2D rectangle(void* to, size_t to_pitch, const void* from,
                        size_t from_pitch, size_t width, size_t height) {
  CUDA_MEMCPY2D copy{};
  copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.dstDevice = number(to);
  copy.dstPitch = to_pitch;
  copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = number(from);
  copy.srcPitch = from_pitch;
  copy.WidthInBytes = width;
  copy.Height = height;
  return copy;
}

// Sets the rows of a box. The memory has `ysize` rows for each layer, and the
// box may have fewer. `set` sets a rectangle: rows that follow each other.
template <class Set>
cudaError_t set_layers(const cudaPitchedPtr& to, const cudaExtent& extent,
                       Set set) {
  if (extent.height == to.ysize || extent.depth < 2)
    return set(to.ptr, extent.height * extent.depth);
  for (size_t layer = 0; layer < extent.depth; ++layer) {
    void* const first =
        static_cast<char*>(to.ptr) + layer * to.ysize * to.pitch;
    if (cudaError_t error = set(first, extent.height)) return error;
  }
  return cudaSuccess;
}

cudaError_t copy_3d(const cudaMemcpy3DParms* p, CUstream stream,
                    bool asynchronous) {
  IPCLAB_BIND();
  CUDA_MEMCPY3D copy;
  if (cudaError_t error = cuboid_of(p, &copy)) return remember(error);
  return remember(asynchronous ? cuMemcpy3DAsync(&copy, stream)
                               : cuMemcpy3D(&copy));
}

cudaError_t copy_3d_peer(const cudaMemcpy3DPeerParms* p, cudaStream_t stream,
                         bool asynchronous) {
  IPCLAB_BIND();
  if (p == nullptr) return remember(cudaErrorInvalidValue);
  cudaMemcpy3DParms box{};
  box.srcArray = p->srcArray;
  box.srcPos = p->srcPos;
  box.srcPtr = p->srcPtr;
  box.dstArray = p->dstArray;
  box.dstPos = p->dstPos;
  box.dstPtr = p->dstPtr;
  box.extent = p->extent;
  box.kind = cudaMemcpyDefault;
  CUDA_MEMCPY3D copy;
  if (cudaError_t error = cuboid_of(&box, &copy)) return remember(error);
  CUDA_MEMCPY3D_PEER between{};  // of any two contexts: an address has its GPU
  static_assert(sizeof between == sizeof copy);
  std::memcpy(&between, &copy, sizeof copy);
  return remember(asynchronous ? cuMemcpy3DPeerAsync(&between, stream)
                               : cuMemcpy3DPeer(&between));
}

}  // namespace

cudaError_t ipclab::runtime::cuboid_of(const cudaMemcpy3DParms* p,
                                       CUDA_MEMCPY3D* converted) {
  if (p == nullptr) return cudaErrorInvalidValue;
  if (p->srcArray != nullptr || p->dstArray != nullptr) {
    return cudaErrorNotSupported;
  }
  CUDA_MEMCPY3D copy{};
  copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.dstDevice = number(p->dstPtr.ptr);
  copy.dstPitch = p->dstPtr.pitch;
  copy.dstHeight = p->dstPtr.ysize;
  copy.dstXInBytes = p->dstPos.x;
  copy.dstY = p->dstPos.y;
  copy.dstZ = p->dstPos.z;
  copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = number(p->srcPtr.ptr);
  copy.srcPitch = p->srcPtr.pitch;
  copy.srcHeight = p->srcPtr.ysize;
  copy.srcXInBytes = p->srcPos.x;
  copy.srcY = p->srcPos.y;
  copy.srcZ = p->srcPos.z;
  copy.WidthInBytes = p->extent.width;
  copy.Height = p->extent.height;
  copy.Depth = p->extent.depth;
  *converted = copy;
  return cudaSuccess;
}

IPCLAB_RUNTIME_API cudaError_t cudaMemcpy(void* to, const void* from,
                                          size_t size, cudaMemcpyKind kind) {
  IPCLAB_BIND();
  if (!is_direction(kind)) return remember(cudaErrorInvalidMemcpyDirection);
  return remember(cuMemcpy(number(to), number(from), size));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemcpyAsync(void* to, const void* from,
                                               size_t size, cudaMemcpyKind kind,
                                               cudaStream_t stream) {
  IPCLAB_BIND();
  if (!is_direction(kind)) return remember(cudaErrorInvalidMemcpyDirection);
  return remember(cuMemcpyAsync(number(to), number(from), size, stream));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemcpyPeer(void* to, int, const void* from,
                                              int, size_t size) {
  IPCLAB_BIND();
  return remember(
      cuMemcpyPeer(number(to), nullptr, number(from), nullptr, size));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemcpyPeerAsync(void* to, int,
                                                   const void* from, int,
                                                   size_t size,
                                                   cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(cuMemcpyPeerAsync(number(to), nullptr, number(from), nullptr,
                                    size, stream));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemcpy2D(void* to, size_t to_pitch,
                                            const void* from, size_t from_pitch,
                                            size_t width, size_t height,
                                            cudaMemcpyKind kind) {
  IPCLAB_BIND();
  if (!is_direction(kind)) return remember(cudaErrorInvalidMemcpyDirection);
  if (width > to_pitch || width > from_pitch) {
    return remember(cudaErrorInvalidPitchValue);
  }
  const CUDA_MEMCPY2D copy =
      rectangle(to, to_pitch, from, from_pitch, width, height);
  return remember(cuMemcpy2D(&copy));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemcpy2DAsync(
    void* to, size_t to_pitch, const void* from, size_t from_pitch,
    size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  IPCLAB_BIND();
  if (!is_direction(kind)) return remember(cudaErrorInvalidMemcpyDirection);
  if (width > to_pitch || width > from_pitch) {
    return remember(cudaErrorInvalidPitchValue);
  }
  const CUDA_MEMCPY2D copy =
      rectangle(to, to_pitch, from, from_pitch, width, height);
  return remember(cuMemcpy2DAsync(&copy, stream));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* p) {
  return copy_3d(p, nullptr, false);
}

IPCLAB_RUNTIME_API cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* p,
                                                 cudaStream_t stream) {
  return copy_3d(p, stream, true);
}

IPCLAB_RUNTIME_API cudaError_t
cudaMemcpy3DPeer(const cudaMemcpy3DPeerParms* p) {
  return copy_3d_peer(p, nullptr, false);
}

IPCLAB_RUNTIME_API cudaError_t
cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms* p, cudaStream_t stream) {
  return copy_3d_peer(p, stream, true);
}

IPCLAB_RUNTIME_API cudaError_t cudaMemset(void* to, int value, size_t size) {
  IPCLAB_BIND();
  return remember(
      cuMemsetD8(number(to), static_cast<unsigned char>(value), size));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemsetAsync(void* to, int value, size_t size,
                                               cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(cuMemsetD8Async(number(to), static_cast<unsigned char>(value),
                                  size, stream));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemset2D(void* to, size_t pitch, int value,
                                            size_t width, size_t height) {
  IPCLAB_BIND();
  return remember(cuMemsetD2D8(
      number(to), pitch, static_cast<unsigned char>(value), width, height));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemset2DAsync(void* to, size_t pitch,
                                                 int value, size_t width,
                                                 size_t height,
                                                 cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(cuMemsetD2D8Async(number(to), pitch,
                                    static_cast<unsigned char>(value), width,
                                    height, stream));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemset3D(cudaPitchedPtr to, int value,
                                            cudaExtent extent) {
  return set_layers(to, extent, [&](void* first, size_t rows) {
    return cudaMemset2D(first, to.pitch, value, extent.width, rows);
  });
}

IPCLAB_RUNTIME_API cudaError_t cudaMemset3DAsync(cudaPitchedPtr to, int value,
                                                 cudaExtent extent,
                                                 cudaStream_t stream) {
  return set_layers(to, extent, [&](void* first, size_t rows) {
    return cudaMemset2DAsync(first, to.pitch, value, extent.width, rows,
                             stream);
  });
}

IPCLAB_RUNTIME_API cudaError_t cudaGetSymbolAddress(void** pointer,
                                                    const void* symbol) {
  IPCLAB_BIND();
  if (pointer == nullptr) return remember(cudaErrorInvalidValue);
  CUdeviceptr address = 0;
  size_t size = 0;
  if (cudaError_t error = find_symbol(symbol, &address, &size)) {
    return remember(error);
  }
  *pointer = reinterpret_cast<void*>(address);
  return cudaSuccess;
}

IPCLAB_RUNTIME_API cudaError_t cudaGetSymbolSize(size_t* size,
                                                 const void* symbol) {
  IPCLAB_BIND();
  if (size == nullptr) return remember(cudaErrorInvalidValue);
  CUdeviceptr address = 0;
  return remember(find_symbol(symbol, &address, size));
}

namespace {
// The address of a part of a symbol. A copy must not go beyond the symbol.
cudaError_t find_part(const void* symbol, size_t count, size_t offset,
                      CUdeviceptr* address) {
  size_t size = 0;
  if (cudaError_t error = find_symbol(symbol, address, &size)) return error;
  if (offset > size || count > size - offset) return cudaErrorInvalidValue;
  *address += offset;
  return cudaSuccess;
}
}  // namespace

IPCLAB_RUNTIME_API cudaError_t cudaMemcpyToSymbolAsync(
    const void* symbol, const void* from, size_t count, size_t offset,
    cudaMemcpyKind kind, cudaStream_t stream) {
  IPCLAB_BIND();
  CUdeviceptr address = 0;
  if (cudaError_t error = find_part(symbol, count, offset, &address)) {
    return remember(error);
  }
  if (kind != cudaMemcpyHostToDevice && kind != cudaMemcpyDeviceToDevice &&
      kind != cudaMemcpyDefault) {
    return remember(cudaErrorInvalidMemcpyDirection);
  }
  return remember(cuMemcpyAsync(address, number(from), count, stream));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemcpyToSymbol(const void* symbol,
                                                  const void* from,
                                                  size_t count, size_t offset,
                                                  cudaMemcpyKind kind) {
  if (cudaError_t error =
          cudaMemcpyToSymbolAsync(symbol, from, count, offset, kind, nullptr)) {
    return error;
  }
  return kind == cudaMemcpyDeviceToDevice
             ? cudaSuccess
             : remember(cuStreamSynchronize(nullptr));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemcpyFromSymbolAsync(
    void* to, const void* symbol, size_t count, size_t offset,
    cudaMemcpyKind kind, cudaStream_t stream) {
  IPCLAB_BIND();
  CUdeviceptr address = 0;
  if (cudaError_t error = find_part(symbol, count, offset, &address)) {
    return remember(error);
  }
  if (kind != cudaMemcpyDeviceToHost && kind != cudaMemcpyDeviceToDevice &&
      kind != cudaMemcpyDefault) {
    return remember(cudaErrorInvalidMemcpyDirection);
  }
  return remember(cuMemcpyAsync(number(to), address, count, stream));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemcpyFromSymbol(void* to,
                                                    const void* symbol,
                                                    size_t count, size_t offset,
                                                    cudaMemcpyKind kind) {
  if (cudaError_t error =
          cudaMemcpyFromSymbolAsync(to, symbol, count, offset, kind, nullptr)) {
    return error;
  }
  return kind == cudaMemcpyDeviceToDevice
             ? cudaSuccess
             : remember(cuStreamSynchronize(nullptr));
}

// The structures of both APIs have the same layout.
static_assert(sizeof(cudaMemcpyAttributes) == sizeof(CUmemcpyAttributes));
static_assert(sizeof(cudaMemcpy3DBatchOp) == sizeof(CUDA_MEMCPY3D_BATCH_OP));

#if IPCLAB_CUDART != 12  // which has other forms, see major12.cc
IPCLAB_RUNTIME_API cudaError_t cudaMemcpyBatchAsync(
    void* const* to, const void* const* from, const size_t* sizes, size_t count,
    cudaMemcpyAttributes* attributes, size_t* first_copies, size_t kinds,
    cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(cuMemcpyBatchAsync(
      reinterpret_cast<CUdeviceptr*>(const_cast<void**>(to)),
      reinterpret_cast<CUdeviceptr*>(
          const_cast<void**>(const_cast<void* const*>(from))),
      const_cast<size_t*>(sizes), count,
      reinterpret_cast<CUmemcpyAttributes*>(attributes), first_copies, kinds,
      stream));
}

IPCLAB_RUNTIME_API cudaError_t cudaMemcpy3DBatchAsync(size_t count,
                                                      cudaMemcpy3DBatchOp* list,
                                                      unsigned long long flags,
                                                      cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(cuMemcpy3DBatchAsync(
      count, reinterpret_cast<CUDA_MEMCPY3D_BATCH_OP*>(list), flags, stream));
}

extern "C" CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to,
                                                CUdeviceptr from, size_t size,
                                                CUmemcpyAttributes* attributes,
                                                CUstream stream);
extern "C" CUresult cuMemcpy3DWithAttributesAsync(
    CUDA_MEMCPY3D_BATCH_OP* wanted, unsigned long long flags, CUstream stream);

// These two came with CUDA 13.2.
IPCLAB_RUNTIME_API cudaError_t cudaMemcpyWithAttributesAsync(
    void* to, const void* from, size_t size, cudaMemcpyAttributes* attributes,
    cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(cuMemcpyWithAttributesAsync(
      reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
      size, reinterpret_cast<CUmemcpyAttributes*>(attributes), stream));
}

IPCLAB_RUNTIME_API cudaError_t
cudaMemcpy3DWithAttributesAsync(cudaMemcpy3DBatchOp* wanted,
                                unsigned long long flags, cudaStream_t stream) {
  IPCLAB_BIND();
  return remember(cuMemcpy3DWithAttributesAsync(
      reinterpret_cast<CUDA_MEMCPY3D_BATCH_OP*>(wanted), flags, stream));
}
#endif
