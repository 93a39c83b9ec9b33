// SPDX-License-Identifier: Apache-2.0
// Declarations that the files of the runtime API share. The runtime is a thin
// layer on the driver API. The runtime itself keeps only each thread's last
// error and device, and the code that the program registers.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#define IPCLAB_RUNTIME_API extern "C" __attribute__((visibility("default")))

namespace ipclab::runtime {

/// Keeps an error for cudaGetLastError and returns it. cudaErrorNotReady is not
/// an error and is not kept (Programming Guide, Error Checking).
cudaError_t remember(cudaError_t error);
inline cudaError_t remember(CUresult error) {
  return remember(static_cast<cudaError_t>(error));
}

/// Initialises the driver. May return cudaErrorInsufficientDriver,
/// cudaErrorNoDevice, and, in a forked child, cudaErrorInitializationError.
cudaError_t start();
/// Does what start() does. If there is no current context, makes the primary
/// context of this thread's device current. Returns the fault of the current
/// context if it has one.
cudaError_t bind();

/// The answer of cudaRuntimeGetVersion: the version that the profile names,
/// otherwise the version of the headers.
int version();

/// The device that this thread uses.
int current_device();
cudaError_t set_device(int device);
cudaError_t reset_device();

/// Translates a copy of a cuboid into the driver's form. Returns
/// cudaErrorNotSupported for arrays.
cudaError_t cuboid_of(const cudaMemcpy3DParms* wanted, CUDA_MEMCPY3D* copy);

}  // namespace ipclab::runtime

/// Begins a runtime call that needs a context.
#define IPCLAB_BIND()                                                \
  do {                                                               \
    if (cudaError_t failed = ipclab::runtime::bind()) return failed; \
  } while (false)
