// SPDX-License-Identifier: Apache-2.0
// The variables and kernels that nvcc's code registers when a program starts.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace ipclab::runtime {

/// Address and size of a __device__, __constant__ or __managed__ variable in
/// the current context, by the address of its shadow on the host. Returns
/// cudaErrorInvalidSymbol if there is no such variable.
cudaError_t find_symbol(const void* shadow, CUdeviceptr* address, size_t* size);

/// The kernel of a host function, or of a cudaKernel_t. Returns
/// cudaErrorInvalidDeviceFunction if there is no such kernel.
cudaError_t kernel_of(const void* function, CUfunction* kernel);

}  // namespace ipclab::runtime
