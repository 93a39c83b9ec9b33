// SPDX-License-Identifier: Apache-2.0
// The driver API: the linker.
#include "core/link.h"

#include <fstream>
#include <iterator>
#include <string>

#include "core/log.h"
#include "driver/driver.h"

using namespace ipclab::model;

namespace {

// Reads the options about messages. The other options only matter for a
// compiler that makes machine code.
LinkLog log_of(unsigned count, const CUjit_option* options, void** values) {
  LinkLog log;
  for (unsigned i = 0; i < count; ++i) {
    switch (options[i]) {
      case CU_JIT_INFO_LOG_BUFFER:
        log.information = static_cast<char*>(values[i]);
        break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        log.information_size = reinterpret_cast<uintptr_t>(values[i]);
        break;
      case CU_JIT_ERROR_LOG_BUFFER:
        log.errors = static_cast<char*>(values[i]);
        break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        log.errors_size = reinterpret_cast<uintptr_t>(values[i]);
        break;
      default:
        break;
    }
  }
  return log;
}

// Returns CUDA_ERROR_NOT_SUPPORTED, with a line on standard error, for all
// types except PTX and fat binaries, and CUDA_ERROR_INVALID_VALUE for a type
// that does not exist.
CUresult check_type(CUjitInputType type) {
  if (type == CU_JIT_INPUT_PTX || type == CU_JIT_INPUT_FATBINARY) {
    return CUDA_SUCCESS;
  }
  if (type >= CU_JIT_NUM_INPUT_TYPES) return CUDA_ERROR_INVALID_VALUE;
  say("linking anything but PTX and fat binaries is not part of the reference "
      "model");
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

IPCLAB_DRIVER_API CUresult cuLinkCreate_v2(unsigned count,
                                           CUjit_option* options, void** values,
                                           CUlinkState* state) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  const bool given = options != nullptr && values != nullptr;
  if (state == nullptr || (count > 0 && !given)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return link_create(log_of(count, options, values), state);
}

IPCLAB_DRIVER_API CUresult cuLinkAddData_v2(CUlinkState state,
                                            CUjitInputType type, void* data,
                                            size_t, const char*, unsigned,
                                            CUjit_option*, void**) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = check_type(type)) return error;
  return link_add(state, data);
}

IPCLAB_DRIVER_API CUresult cuLinkAddFile_v2(CUlinkState state,
                                            CUjitInputType type,
                                            const char* path, unsigned,
                                            CUjit_option*, void**) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  if (CUresult error = check_type(type)) return error;
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  return link_add(state, bytes.c_str());
}

IPCLAB_DRIVER_API CUresult cuLinkComplete(CUlinkState state, void** image,
                                          size_t* size) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return link_complete(state, image, size);
}

IPCLAB_DRIVER_API CUresult cuLinkDestroy(CUlinkState state) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  return link_destroy(state);
}
