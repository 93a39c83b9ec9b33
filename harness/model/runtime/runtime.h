// SPDX-License-Identifier: Apache-2.0
// Declarations that the files of the runtime API share. The runtime is a thin
// layer on the driver API. The runtime itself keeps only each thread's last
// error and device, and the code that the program registers.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>

#if IPCLAB_CUDART == 12
#include "runtime/major12.h"
#else
namespace ipclab::runtime {
using DeviceProperties = cudaDeviceProp;
constexpr size_t kPointerAttributesBytes = sizeof(cudaPointerAttributes);
constexpr int kBuiltVersion = CUDART_VERSION;
}  // namespace ipclab::runtime
#endif

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
/// if it is one of this library's major version, otherwise the version of the
/// headers, or 12.9 for libcudart.so.12.
int version();

/// The primary context of a device, retained once for the whole runtime.
CUresult retain_primary(int device, CUcontext* context);

/// The device that this thread uses.
int current_device();
cudaError_t set_device(int device);
cudaError_t reset_device();

/// What cudaGetDeviceProperties does.
cudaError_t device_properties(DeviceProperties* properties, int device);

/// What cudaGraphAddNode does. `edges` says which form of the driver's function
/// it calls: the newer form has an argument for the edges.
cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph,
                     const cudaGraphNode_t* after, size_t count,
                     cudaGraphNodeParams* wanted, bool edges,
                     const cudaGraphEdgeData* data = nullptr);

/// Translates a copy of a cuboid into the driver's form. Returns
/// cudaErrorNotSupported for arrays.
cudaError_t cuboid_of(const cudaMemcpy3DParms* wanted, CUDA_MEMCPY3D* copy);

}  // namespace ipclab::runtime

/// Begins a runtime call that needs a context.
#define IPCLAB_BIND()                                                \
  do {                                                               \
    if (cudaError_t failed = ipclab::runtime::bind()) return failed; \
  } while (false)
