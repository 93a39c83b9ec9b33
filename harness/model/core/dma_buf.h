// SPDX-License-Identifier: Apache-2.0
// Descriptors of device memory for drivers of other devices and for processes
// without CUDA: dma-bufs (Driver API, cuMemGetHandleForAddressRange).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace ipclab::model {

/// Makes a descriptor (close-on-exec) of the memory of a range. The memory
/// lives as long as the descriptor is open in any process. Returns
/// CUDA_ERROR_INVALID_VALUE unless all of the range is memory of cuMemAlloc or
/// of cuMemMap on one GPU or, in some profiles, of cuMemHostAlloc, and
/// CUDA_ERROR_NOT_SUPPORTED for memory of another kind on a GPU. Where a
/// process can map the descriptor, the range must also lie in one block and
/// begin at the block's beginning; otherwise returns CUDA_ERROR_NOT_SUPPORTED.
CUresult dma_buf_export(uint64_t address, uint64_t size, int* descriptor);

}  // namespace ipclab::model
