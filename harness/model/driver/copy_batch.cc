// SPDX-License-Identifier: Apache-2.0
// The driver API: batches of copies, and copies with attributes.
#include <cstdint>

#include "core/copy.h"
#include "core/profile.h"
#include "driver/driver.h"

using namespace ipclab::model;

namespace {

bool is_order(CUmemcpySrcAccessOrder order) {
  return order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
         order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
         order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

// One copy of a batch.
struct Copy {
  Region to, from;
  Extent extent;
  CUmemcpySrcAccessOrder order;
};

// "Must not be legacy NULL stream."
CUresult enter_batch(CUstream handle, std::shared_ptr<Stream>* stream) {
  if (CUresult error = enter_stream(handle, stream)) return error;
  return (*stream)->is_legacy() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// Checks all copies, then queues them: a batch that is refused copies nothing.
CUresult queue_copies(const std::shared_ptr<Stream>& stream,
                      const std::vector<Copy>& copies, size_t* failed) {
  CUcontext context = stream->context();
  for (size_t i = 0; i < copies.size(); ++i) {
    const Copy& one = copies[i];
    const Extent& size = one.extent;
    const auto bytes = [&](const Region& side) {
      return (size.depth - 1) * side.slice + (size.height - 1) * side.pitch +
             size.width;
    };
    Span to, from;
    CUresult error =
        find_span(context, context, one.to.address, bytes(one.to), true, &to);
    if (error == CUDA_SUCCESS) {
      error = find_span(context, context, one.from.address, bytes(one.from),
                        false, &from);
    }
    if (error == CUDA_SUCCESS) continue;
    if (failed != nullptr) *failed = i;
    return error;
  }
  for (const Copy& one : copies) {
    const bool now = one.order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    if (CUresult error =
            copy(stream, context, one.to, one.from, one.extent, true, now)) {
      return error;
    }
  }
  return CUDA_SUCCESS;
}

CUresult copy_batch(const CUdeviceptr* to, const CUdeviceptr* from,
                    const size_t* sizes, size_t count,
                    const CUmemcpyAttributes* attributes,
                    const size_t* first_copies, size_t kinds, size_t* failed,
                    CUstream handle) {
  if (failed != nullptr) *failed = SIZE_MAX;
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_batch(handle, &stream)) return error;
  if (to == nullptr || from == nullptr || sizes == nullptr || count == 0 ||
      attributes == nullptr || first_copies == nullptr || kinds == 0 ||
      kinds > count || first_copies[0] != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<Copy> copies;
  for (size_t kind = 0; kind < kinds; ++kind) {
    const size_t end = kind + 1 < kinds ? first_copies[kind + 1] : count;
    if (end <= first_copies[kind] || end > count) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_order(attributes[kind].srcAccessOrder)) {
      if (failed != nullptr) *failed = first_copies[kind];
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = first_copies[kind]; i < end; ++i) {
      if (sizes[i] == 0) continue;
      copies.push_back({{to[i], sizes[i], sizes[i]},
                        {from[i], sizes[i], sizes[i]},
                        {sizes[i], 1, 1},
                        attributes[kind].srcAccessOrder});
    }
  }
  return queue_copies(stream, copies, failed);
}

// "For pointer-to-pointer copies, the element size is considered to be 1."
CUresult region_of(const CUmemcpy3DOperand& operand, const Extent& extent,
                   Region* region) {
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (operand.type != CU_MEMCPY_OPERAND_TYPE_POINTER) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto& place = operand.op.ptr;
  const uint64_t row = place.rowLength != 0 ? place.rowLength : extent.width;
  const uint64_t rows =
      place.layerHeight != 0 ? place.layerHeight : extent.height;
  if (row < extent.width || rows < extent.height) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *region = {place.ptr, row, row * rows};
  return CUDA_SUCCESS;
}

CUresult cuboid_batch(const CUDA_MEMCPY3D_BATCH_OP* list, size_t count,
                      size_t* failed, unsigned long long flags,
                      CUstream handle) {
  if (failed != nullptr) *failed = SIZE_MAX;
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_batch(handle, &stream)) return error;
  if (list == nullptr || count == 0 || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<Copy> copies(count);
  for (size_t i = 0; i < count; ++i) {
    const CUDA_MEMCPY3D_BATCH_OP& wanted = list[i];
    Copy& one = copies[i];
    one.extent = {wanted.extent.width, wanted.extent.height,
                  wanted.extent.depth};
    one.order = wanted.srcAccessOrder;
    CUresult error = region_of(wanted.dst, one.extent, &one.to);
    if (error == CUDA_SUCCESS) {
      error = region_of(wanted.src, one.extent, &one.from);
    }
    if (one.extent.width == 0 || one.extent.height == 0 ||
        one.extent.depth == 0 || !is_order(one.order)) {
      error = CUDA_ERROR_INVALID_VALUE;
    }
    if (error == CUDA_SUCCESS) continue;
    if (failed != nullptr) *failed = i;
    return error;
  }
  return queue_copies(stream, copies, failed);
}

// A real driver of an older version does not have the symbol; see newer.cc.
CUresult absent_before_13_2() {
  constexpr int kVersion = 13020;
  return profile().driver_version < kVersion
             ? static_cast<CUresult>(36)  // cudaErrorCallRequiresNewerDriver
             : CUDA_SUCCESS;
}

}  // namespace

#undef cuMemcpyBatchAsync
IPCLAB_DRIVER_API CUresult
cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes,
                      size_t count, CUmemcpyAttributes* attributes,
                      size_t* first_copies, size_t kinds, CUstream stream) {
  return copy_batch(to, from, sizes, count, attributes, first_copies, kinds,
                    nullptr, stream);
}

// The forms of CUDA 12.8 can say which copy is wrong. newer.cc calls them by
// these names; cuda.h has macros of the names that programs use.
IPCLAB_DRIVER_API CUresult ipclab_cuMemcpyBatchAsync(
    CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
    CUmemcpyAttributes* attributes, size_t* first_copies, size_t kinds,
    size_t* failed, CUstream stream) {
  return copy_batch(to, from, sizes, count, attributes, first_copies, kinds,
                    failed, stream);
}

#undef cuMemcpy3DBatchAsync
IPCLAB_DRIVER_API CUresult cuMemcpy3DBatchAsync_v2(size_t count,
                                                   CUDA_MEMCPY3D_BATCH_OP* list,
                                                   unsigned long long flags,
                                                   CUstream stream) {
  return cuboid_batch(list, count, nullptr, flags, stream);
}

IPCLAB_DRIVER_API CUresult ipclab_cuMemcpy3DBatchAsync(
    size_t count, CUDA_MEMCPY3D_BATCH_OP* list, size_t* failed,
    unsigned long long flags, CUstream stream) {
  return cuboid_batch(list, count, failed, flags, stream);
}

IPCLAB_DRIVER_API CUresult
cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t size,
                            CUmemcpyAttributes* attributes, CUstream stream) {
  if (CUresult error = absent_before_13_2()) return error;
  const size_t first = 0;
  return copy_batch(&to, &from, &size, 1, attributes, &first, 1, nullptr,
                    stream);
}

IPCLAB_DRIVER_API CUresult cuMemcpy3DWithAttributesAsync(
    CUDA_MEMCPY3D_BATCH_OP* wanted, unsigned long long flags, CUstream stream) {
  if (CUresult error = absent_before_13_2()) return error;
  return cuboid_batch(wanted, 1, nullptr, flags, stream);
}
