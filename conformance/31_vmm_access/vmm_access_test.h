// What several files of these tests use.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "harness/scenario/cuda.h"
#include "harness/scenario/vmm.h"

namespace ipclab {

inline constexpr auto kRead = CU_MEM_ACCESS_FLAGS_PROT_READ;
inline constexpr auto kReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
inline constexpr unsigned long long kNone = 0;
inline constexpr uint32_t kLanded = 0x1badbad1;

inline constexpr size_t kFourGib = size_t{4} << 30;

inline uint32_t* pointer_to(CUdeviceptr address) {
  return reinterpret_cast<uint32_t*>(address);
}

// The codes that cuMemMap and cuMemUnmap document. No sentence says which one
// a call gets that they cannot do.
#define MAP_REFUSALS                                       \
  CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,      \
      CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_INVALID_DEVICE, \
      CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_ILLEGAL_STATE
#define UNMAP_REFUSALS \
  CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_PERMITTED

/// Judges the result of a kernel that uses memory without access. After a fault
/// the context is lost, so the role has to end.
inline void expect_fault(Role& me, const char* kernel) {
  const cudaError_t code = NOTED(cudaDeviceSynchronize());
  me.observe(std::string(kernel) + ": " + name_of(code));
  EXPECT_NE(code, cudaSuccess) << kernel;
}

inline CUresult set_access(CUdeviceptr address, size_t bytes,
                           const CUmemAccessDesc& access) {
  return NOTED(DRIVER(cuMemSetAccess)(address, bytes, &access, 1));
}

inline void allow(CUdeviceptr address, size_t bytes,
                  CUmemAccess_flags flags = kReadWrite) {
  CALL(set_access(address, bytes, access_for(0, flags)));
}

/// Does the driver say that memory is mapped at an address?
inline bool has_memory(CUdeviceptr address) {
  unsigned long long mapped = 0;  // room for a boolean of any width
  const CUresult code = NOTED(DRIVER(cuPointerGetAttribute)(
      &mapped, CU_POINTER_ATTRIBUTE_MAPPED, address));
  return code == CUDA_SUCCESS && mapped != 0;
}

/// The access of the current GPU at an address, by
/// CU_POINTER_ATTRIBUTE_ACCESS_FLAGS.
inline unsigned long long access_told(CUdeviceptr address) {
  unsigned long long flags = 0;  // room for an enumerator of any width
  CALL(DRIVER(cuPointerGetAttribute)(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
                                     address));
  return flags;
}

/// Has each granule of a mapping the access, not only the first one?
inline void expect_access_everywhere(CUdeviceptr address, size_t bytes,
                                     unsigned long long flags) {
  for (size_t at = 0; at < bytes; at += granule())
    EXPECT_EQ(access_at(address + at), flags) << "at byte " << at;
}

/// A mapping without access.
struct Mapped {
  Reservation range;
  Mapped(const Chunk& chunk, size_t bytes) : range(bytes) {
    range.map(0, bytes, chunk);
  }
  ~Mapped() { DRIVER(cuMemUnmap)(range.at(0), range.bytes()); }
  CUdeviceptr address() const { return range.at(0); }
};

}  // namespace ipclab
