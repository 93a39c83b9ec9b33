// SPDX-License-Identifier: Apache-2.0
// Declarations that the files of the driver API share.
#pragma once

#include <cuda.h>

#include <memory>

#include "core/device.h"
#include "core/module.h"
#include "core/stream.h"
#include "newer_names.h"

/// The library exports the functions of the driver API and nothing else.
#define IPCLAB_DRIVER_API extern "C" __attribute__((visibility("default")))

namespace ipclab::model {

/// Does what enter(&context) does, then finds the stream of a handle. Returns
/// CUDA_ERROR_INVALID_HANDLE if there is none.
inline CUresult enter_stream(CUstream handle, std::shared_ptr<Stream>* stream) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  *stream = resolve_stream(handle, context);
  return *stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

/// enter_stream() for calls that cannot become part of a graph. If the stream
/// captures, returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and makes the
/// capture invalid.
inline CUresult enter_live_stream(CUstream handle,
                                  std::shared_ptr<Stream>* stream) {
  if (CUresult error = enter_stream(handle, stream)) return error;
  return (*stream)->spoil_capture() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                    : CUDA_SUCCESS;
}

/// The copy of cuMemcpy3D and of its graph node. Returns
/// CUDA_ERROR_NOT_SUPPORTED for arrays.
CUresult copy_cuboid(const std::shared_ptr<Stream>& stream, CUcontext current,
                     const CUDA_MEMCPY3D& copy, bool asynchronous);
/// Calls a host function in the order of the stream.
CUresult call_host(const std::shared_ptr<Stream>& stream, CUhostFn function,
                   void* data);
/// Launches a kernel in the order of the stream. `parameters` and `extra` are
/// the same as in cuLaunchKernel. Returns CUDA_ERROR_INVALID_HANDLE if the
/// function does not exist.
CUresult launch_kernel(const std::shared_ptr<Stream>& stream,
                       CUfunction function, const LaunchShape& shape,
                       void** parameters, void** extra);

}  // namespace ipclab::model
