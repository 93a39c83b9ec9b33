// SPDX-License-Identifier: Apache-2.0
// How arguments are written: by their type. If the type does not say what the
// arguments of a call mean, a function for this call writes them.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "line.h"
#include "recorder.h"

namespace ipclab::trace {

inline void write_value(Line& line, const CUipcMemHandle& handle) {
  line.bytes(&handle, sizeof handle);
}
inline void write_value(Line& line, const CUipcEventHandle& handle) {
  line.bytes(&handle, sizeof handle);
}
inline void write_value(Line& line, const CUmemPoolPtrExportData& data) {
  line.bytes(&data, sizeof data);
}
inline void write_value(Line& line, const CUmemAllocationProp& properties) {
  line.raw("{\"handles\":")
      .number(static_cast<int>(properties.requestedHandleTypes))
      .raw(",\"place\":")
      .number(static_cast<int>(properties.location.type))
      .raw(",\"device\":")
      .number(properties.location.id)
      .raw("}");
}
inline void write_value(Line& line, const CUmemPoolProps& properties) {
  line.raw("{\"handles\":")
      .number(static_cast<int>(properties.handleTypes))
      .raw(",\"place\":")
      .number(static_cast<int>(properties.location.type))
      .raw(",\"device\":")
      .number(properties.location.id)
      .raw("}");
}
inline void write_value(Line& line, const CUmemAccessDesc& access) {
  line.raw("{\"device\":")
      .number(access.location.id)
      .raw(",\"flags\":")
      .number(static_cast<int>(access.flags))
      .raw("}");
}

// Of a copy in two or three dimensions, only the addresses are written.
template <class Copy>
void write_copy(Line& line, const Copy& copy) {
  const uint64_t to = copy.dstMemoryType == CU_MEMORYTYPE_HOST
                          ? reinterpret_cast<uintptr_t>(copy.dstHost)
                          : copy.dstDevice;
  const uint64_t from = copy.srcMemoryType == CU_MEMORYTYPE_HOST
                            ? reinterpret_cast<uintptr_t>(copy.srcHost)
                            : copy.srcDevice;
  line.raw("{\"dst\":").number(to).raw(",\"src\":").number(from).raw("}");
}
inline void write_value(Line& line, const CUDA_MEMCPY2D& copy) {
  write_copy(line, copy);
}
inline void write_value(Line& line, const CUDA_MEMCPY3D& copy) {
  write_copy(line, copy);
}

// For these types the line has the values to which a pointer points, because
// they are more useful than the pointer.
template <class T>
constexpr bool kWritten =
    std::is_integral_v<T> || std::is_pointer_v<T> ||
    std::is_same_v<T, CUipcMemHandle> || std::is_same_v<T, CUipcEventHandle> ||
    std::is_same_v<T, CUmemPoolPtrExportData> ||
    std::is_same_v<T, CUmemAllocationProp> ||
    std::is_same_v<T, CUmemPoolProps> || std::is_same_v<T, CUmemAccessDesc> ||
    std::is_same_v<T, CUDA_MEMCPY2D> || std::is_same_v<T, CUDA_MEMCPY3D>;

#if CUDA_VERSION >= 12040
using GreenContext = CUgreenCtx;
#else
using GreenContext = CUcontext;
#endif

template <class T>
constexpr bool kHandle =
    std::is_same_v<T, CUcontext> || std::is_same_v<T, GreenContext> ||
    std::is_same_v<T, CUstream> || std::is_same_v<T, CUevent> ||
    std::is_same_v<T, CUmemoryPool> || std::is_same_v<T, CUgraph> ||
    std::is_same_v<T, CUgraphExec> || std::is_same_v<T, CUfunction> ||
    std::is_same_v<T, CUhostFn> || std::is_same_v<T, CUexternalMemory>;

template <class T>
Line& Line::value(const T& argument, bool ok) {
  if constexpr (std::is_enum_v<T>) {
    number(static_cast<int>(argument));
  } else if constexpr (std::is_integral_v<T>) {
    number(argument);
  } else if constexpr (kHandle<T>) {
    number(reinterpret_cast<uintptr_t>(argument));
  } else if constexpr (std::is_pointer_v<T>) {
    using Pointee = std::remove_cv_t<std::remove_pointer_t<T>>;
    constexpr bool kInput = std::is_const_v<std::remove_pointer_t<T>>;
    if constexpr (std::is_void_v<Pointee>) {
      address(argument);
    } else if constexpr (kWritten<Pointee>) {
      if ((!ok && !kInput) || argument == nullptr) {
        raw("null");
      } else if constexpr (kHandle<Pointee> || std::is_integral_v<Pointee>) {
        value(*argument, ok);
      } else if constexpr (std::is_pointer_v<Pointee>) {
        address(*argument);
      } else {
        write_value(*this, *argument);
      }
    } else {
      raw("null");
    }
  } else {
    write_value(*this, argument);
  }
  return *this;
}

template <class P>
void write_launch(Line& line, const P& p, CUstream stream) {
  line.comma()
      .number(kernel_number(p.f))
      .comma()
      .number(uint64_t{p.gridDimX} * p.gridDimY * p.gridDimZ)
      .comma()
      .number(uint64_t{p.blockDimX} * p.blockDimY * p.blockDimZ)
      .comma()
      .value(stream, true)
      .comma();
  write_pointers(line, p.f, p.kernelParams);
}

template <class P>
void cuLaunchKernel(Line& line, const P& p, bool) {
  write_launch(line, p, p.hStream);
}

template <class P>
void cuLaunchCooperativeKernel(Line& line, const P& p, bool) {
  write_launch(line, p, p.hStream);
}

template <class P>
void cuLaunchKernelEx(Line& line, const P& p, bool) {
  struct {
    CUfunction f;
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ;
    void** kernelParams;
  } launch{p.f, 0, 0, 0, 0, 0, 0, p.kernelParams};
  if (p.config != nullptr) {
    launch.gridDimX = p.config->gridDimX;
    launch.gridDimY = p.config->gridDimY;
    launch.gridDimZ = p.config->gridDimZ;
    launch.blockDimX = p.config->blockDimX;
    launch.blockDimY = p.config->blockDimY;
    launch.blockDimZ = p.config->blockDimZ;
  }
  write_launch(line, launch, p.config == nullptr ? nullptr : p.config->hStream);
}

// Writes a handle for another process: a descriptor, or the bytes of a fabric
// handle. Writes null if the call failed or the type is another one.
inline void write_exported(Line& line, const void* place,
                           CUmemAllocationHandleType type, bool ok) {
  line.comma();
  const bool written = ok && place != nullptr;
  if (written && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    write_descriptor(line, *static_cast<const int*>(place), true);
  } else if (written && type == CU_MEM_HANDLE_TYPE_FABRIC) {
    line.bytes(place, sizeof(CUmemFabricHandle));
  } else {
    line.raw("null");
  }
}

inline void write_imported(Line& line, const void* given,
                           CUmemAllocationHandleType type, bool ok) {
  line.comma();
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    write_descriptor(line, static_cast<int>(reinterpret_cast<uintptr_t>(given)),
                     ok);
  } else if (type == CU_MEM_HANDLE_TYPE_FABRIC && given != nullptr) {
    line.bytes(given, sizeof(CUmemFabricHandle));
  } else {
    line.raw("null");
  }
}

template <class P>
void cuMemExportToShareableHandle(Line& line, const P& p, bool ok) {
  write_exported(line, p.shareableHandle, p.handleType, ok);
  line.comma().value(p.handle, ok).comma().value(p.handleType, ok);
  line.comma().value(p.flags, ok);
}

template <class P>
void cuMemPoolExportToShareableHandle(Line& line, const P& p, bool ok) {
  write_exported(line, p.handle_out, p.handleType, ok);
  line.comma().value(p.pool, ok).comma().value(p.handleType, ok);
  line.comma().value(p.flags, ok);
}

template <class P>
void cuMemImportFromShareableHandle(Line& line, const P& p, bool ok) {
  line.comma().value(p.handle, ok);
  write_imported(line, p.osHandle, p.shHandleType, ok);
  line.comma().value(p.shHandleType, ok);
}

template <class P>
void cuMemGetHandleForAddressRange(Line& line, const P& p, bool ok) {
  line.comma();
  if (ok && p.handleType == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) {
    write_descriptor(line, *static_cast<const int*>(p.handle), true);
  } else {
    line.raw("null");
  }
  line.comma().value(p.dptr, ok).comma().value(p.size, ok);
  line.comma().value(p.handleType, ok).comma().value(p.flags, ok);
}

template <class P>
void cuImportExternalMemory(Line& line, const P& p, bool ok) {
  line.comma().value(p.extMem_out, ok).comma();
  if (p.memHandleDesc == nullptr) {
    line.raw("null,null,null");
    return;
  }
  if (p.memHandleDesc->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) {
    write_given_away(line, p.memHandleDesc->handle.fd);
  } else {
    line.raw("null");
  }
  line.comma().value(p.memHandleDesc->type, ok);
  line.comma().value(p.memHandleDesc->size, ok);
}

template <class P>
void cuExternalMemoryGetMappedBuffer(Line& line, const P& p, bool ok) {
  line.comma().value(p.devPtr, ok).comma().value(p.extMem, ok);
  if (p.bufferDesc == nullptr) {
    line.raw(",null,null");
    return;
  }
  line.comma().value(p.bufferDesc->offset, ok);
  line.comma().value(p.bufferDesc->size, ok);
}

template <class P>
void cuMemPoolImportFromShareableHandle(Line& line, const P& p, bool ok) {
  line.comma().value(p.pool_out, ok);
  write_imported(line, p.handle, p.handleType, ok);
  line.comma().value(p.handleType, ok).comma().value(p.flags, ok);
}

}  // namespace ipclab::trace
