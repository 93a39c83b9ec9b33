// SPDX-License-Identifier: Apache-2.0
// The linker of the driver API. Its inputs are PTX and its image is PTX: the
// interpreter needs no machine code.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>

namespace ipclab::model {

/// The program's buffers for messages, with their sizes in bytes; null if the
/// program has no buffers.
struct LinkLog {
  char* information = nullptr;
  size_t information_size = 0;
  char* errors = nullptr;
  size_t errors_size = 0;
};

}  // namespace ipclab::model

/// The object of a CUlinkState.
struct CUlinkState_st {
  std::string ptx;  ///< of all inputs, one after the other
  ipclab::model::LinkLog log;
};

namespace ipclab::model {

/// Makes a state and empties the program's buffers.
CUresult link_create(const LinkLog& log, CUlinkState* state);
/// Adds PTX, or the PTX of a fat binary. Returns CUDA_ERROR_INVALID_PTX for
/// wrong PTX and CUDA_ERROR_NO_BINARY_FOR_GPU for an image without PTX. The
/// reason is then in the program's buffer for errors.
CUresult link_add(CUlinkState state, const void* image);
/// Returns the image. The state owns it.
CUresult link_complete(CUlinkState state, void** image, size_t* size);
CUresult link_destroy(CUlinkState state);

}  // namespace ipclab::model
