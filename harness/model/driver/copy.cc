// SPDX-License-Identifier: Apache-2.0
// The driver API: copies, and calls that set memory.
#include "core/copy.h"

#include <cstring>

#include "driver/driver.h"

using namespace ipclab::model;

namespace {

CUresult linear_copy(uint64_t to, uint64_t from, size_t size, CUstream stream,
                     bool asynchronous, bool between_peers = false) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  const std::shared_ptr<Stream> queue = resolve_stream(stream, context);
  if (queue == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return copy(queue, between_peers ? nullptr : context, {to, size, size},
              {from, size, size}, {size, 1, 1}, asynchronous);
}

uint64_t number(const void* address) {
  return reinterpret_cast<uint64_t>(address);
}

CUresult rectangle_set(CUdeviceptr to, size_t pitch, uint32_t value,
                       unsigned element, size_t width, size_t height,
                       CUstream stream, bool asynchronous) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  const std::shared_ptr<Stream> queue = resolve_stream(stream, context);
  if (queue == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  size_t bytes = 0, all = 0;
  if (__builtin_mul_overflow(width, size_t{element}, &bytes) ||
      __builtin_mul_overflow(pitch, height, &all) ||
      (height > 1 && pitch < bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return set(queue, {to, pitch, all}, value, element, {bytes, height, 1},
             asynchronous);
}

CUresult side(CUmemorytype type, const void* host, CUdeviceptr device,
              uint64_t* address) {
  switch (type) {
    case CU_MEMORYTYPE_HOST:
      *address = number(host);
      return CUDA_SUCCESS;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
      *address = device;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;  // arrays
  }
}

CUresult copy_2d(const CUDA_MEMCPY2D* c, CUstream stream, bool asynchronous) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (c == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Stream> queue = resolve_stream(stream, context);
  if (queue == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Region to, from;
  if (CUresult error =
          side(c->dstMemoryType, c->dstHost, c->dstDevice, &to.address)) {
    return error;
  }
  if (CUresult error =
          side(c->srcMemoryType, c->srcHost, c->srcDevice, &from.address)) {
    return error;
  }
  to.pitch = c->dstPitch != 0 ? c->dstPitch : c->WidthInBytes;
  from.pitch = c->srcPitch != 0 ? c->srcPitch : c->WidthInBytes;
  if (to.pitch < c->WidthInBytes || from.pitch < c->WidthInBytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  to.address += c->dstY * to.pitch + c->dstXInBytes;
  from.address += c->srcY * from.pitch + c->srcXInBytes;
  return copy(queue, context, to, from, {c->WidthInBytes, c->Height, 1},
              asynchronous);
}

CUresult copy_3d(const CUDA_MEMCPY3D* c, CUstream stream, bool asynchronous,
                 bool between_peers = false) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (c == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Stream> queue = resolve_stream(stream, context);
  if (queue == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return copy_cuboid(queue, between_peers ? nullptr : context, *c,
                     asynchronous);
}

// An address says which GPU it is on, so the contexts do not matter.
CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER* c, CUstream stream,
                      bool asynchronous) {
  if (c == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D same;
  static_assert(sizeof same == sizeof *c);
  std::memcpy(&same, c, sizeof same);
  return copy_3d(&same, stream, asynchronous, true);
}

}  // namespace

CUresult ipclab::model::copy_cuboid(const std::shared_ptr<Stream>& queue,
                                    CUcontext context, const CUDA_MEMCPY3D& c,
                                    bool asynchronous) {
  Region to, from;
  if (CUresult error =
          side(c.dstMemoryType, c.dstHost, c.dstDevice, &to.address)) {
    return error;
  }
  if (CUresult error =
          side(c.srcMemoryType, c.srcHost, c.srcDevice, &from.address)) {
    return error;
  }
  to.pitch = c.dstPitch != 0 ? c.dstPitch : c.WidthInBytes;
  from.pitch = c.srcPitch != 0 ? c.srcPitch : c.WidthInBytes;
  if (to.pitch < c.WidthInBytes || from.pitch < c.WidthInBytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  to.slice = to.pitch * (c.dstHeight != 0 ? c.dstHeight : c.Height);
  from.slice = from.pitch * (c.srcHeight != 0 ? c.srcHeight : c.Height);
  to.address += c.dstZ * to.slice + c.dstY * to.pitch + c.dstXInBytes;
  from.address += c.srcZ * from.slice + c.srcY * from.pitch + c.srcXInBytes;
  return copy(queue, context, to, from, {c.WidthInBytes, c.Height, c.Depth},
              asynchronous);
}

IPCLAB_DRIVER_API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from,
                                    size_t size) {
  return linear_copy(to, from, size, nullptr, false);
}
IPCLAB_DRIVER_API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from,
                                         size_t size, CUstream stream) {
  return linear_copy(to, from, size, stream, true);
}
IPCLAB_DRIVER_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from,
                                           size_t size) {
  return linear_copy(to, number(from), size, nullptr, false);
}
IPCLAB_DRIVER_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to,
                                                const void* from, size_t size,
                                                CUstream stream) {
  return linear_copy(to, number(from), size, stream, true);
}
IPCLAB_DRIVER_API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from,
                                           size_t size) {
  return linear_copy(number(to), from, size, nullptr, false);
}
IPCLAB_DRIVER_API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from,
                                                size_t size, CUstream stream) {
  return linear_copy(number(to), from, size, stream, true);
}
IPCLAB_DRIVER_API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from,
                                           size_t size) {
  return linear_copy(to, from, size, nullptr, false);
}
IPCLAB_DRIVER_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to,
                                                CUdeviceptr from, size_t size,
                                                CUstream stream) {
  return linear_copy(to, from, size, stream, true);
}
IPCLAB_DRIVER_API CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext,
                                        CUdeviceptr from, CUcontext,
                                        size_t size) {
  return linear_copy(to, from, size, nullptr, false, true);
}
IPCLAB_DRIVER_API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext,
                                             CUdeviceptr from, CUcontext,
                                             size_t size, CUstream stream) {
  return linear_copy(to, from, size, stream, true, true);
}
IPCLAB_DRIVER_API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* c) {
  return copy_2d(c, nullptr, false);
}
IPCLAB_DRIVER_API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* c) {
  return copy_2d(c, nullptr, false);
}
IPCLAB_DRIVER_API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* c,
                                              CUstream stream) {
  return copy_2d(c, stream, true);
}
IPCLAB_DRIVER_API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* c) {
  return copy_3d(c, nullptr, false);
}
IPCLAB_DRIVER_API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* c,
                                              CUstream stream) {
  return copy_3d(c, stream, true);
}

IPCLAB_DRIVER_API CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* c) {
  return copy_3d_peer(c, nullptr, false);
}
IPCLAB_DRIVER_API CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* c,
                                               CUstream stream) {
  return copy_3d_peer(c, stream, true);
}

IPCLAB_DRIVER_API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value,
                                         size_t count) {
  return rectangle_set(to, count, value, 1, count, 1, nullptr, false);
}
IPCLAB_DRIVER_API CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value,
                                          size_t count) {
  return rectangle_set(to, 2 * count, value, 2, count, 1, nullptr, false);
}
IPCLAB_DRIVER_API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value,
                                          size_t count) {
  return rectangle_set(to, 4 * count, value, 4, count, 1, nullptr, false);
}
IPCLAB_DRIVER_API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value,
                                           size_t count, CUstream stream) {
  return rectangle_set(to, count, value, 1, count, 1, stream, true);
}
IPCLAB_DRIVER_API CUresult cuMemsetD16Async(CUdeviceptr to,
                                            unsigned short value, size_t count,
                                            CUstream stream) {
  return rectangle_set(to, 2 * count, value, 2, count, 1, stream, true);
}
IPCLAB_DRIVER_API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value,
                                            size_t count, CUstream stream) {
  return rectangle_set(to, 4 * count, value, 4, count, 1, stream, true);
}
IPCLAB_DRIVER_API CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch,
                                           unsigned char value, size_t width,
                                           size_t height) {
  return rectangle_set(to, pitch, value, 1, width, height, nullptr, false);
}
IPCLAB_DRIVER_API CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch,
                                            unsigned short value, size_t width,
                                            size_t height) {
  return rectangle_set(to, pitch, value, 2, width, height, nullptr, false);
}
IPCLAB_DRIVER_API CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch,
                                            unsigned value, size_t width,
                                            size_t height) {
  return rectangle_set(to, pitch, value, 4, width, height, nullptr, false);
}
IPCLAB_DRIVER_API CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch,
                                             unsigned char value, size_t width,
                                             size_t height, CUstream stream) {
  return rectangle_set(to, pitch, value, 1, width, height, stream, true);
}
IPCLAB_DRIVER_API CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch,
                                              unsigned short value,
                                              size_t width, size_t height,
                                              CUstream stream) {
  return rectangle_set(to, pitch, value, 2, width, height, stream, true);
}
IPCLAB_DRIVER_API CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch,
                                              unsigned value, size_t width,
                                              size_t height, CUstream stream) {
  return rectangle_set(to, pitch, value, 4, width, height, stream, true);
}
