// SPDX-License-Identifier: Apache-2.0
// The runtime API: names of errors, versions and entry points of the driver.
#include <dlfcn.h>

#include <algorithm>
#include <string>

#include "runtime/runtime.h"

using namespace ipclab::runtime;

namespace {

struct Error {
  int number;
  const char* name;
  const char* text;
};

constexpr Error kErrors[] = {
#define IPCLAB_ERROR(number, driver, runtime, text) {number, runtime, text},
#include "core/errors.inc"
#undef IPCLAB_ERROR
};

const Error* find_error(cudaError_t code) {
  for (const Error& error : kErrors) {
    if (error.number == code && error.name != nullptr) return &error;
  }
  return nullptr;
}

}  // namespace

IPCLAB_RUNTIME_API const char* cudaGetErrorName(cudaError_t code) {
  const Error* error = find_error(code);
  return error == nullptr ? "unrecognized error code" : error->name;
}

IPCLAB_RUNTIME_API const char* cudaGetErrorString(cudaError_t code) {
  const Error* error = find_error(code);
  return error == nullptr ? "unrecognized error code" : error->text;
}

IPCLAB_RUNTIME_API cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return remember(cudaErrorInvalidValue);
  *version = ipclab::runtime::version();
  return cudaSuccess;
}

IPCLAB_RUNTIME_API cudaError_t cudaDriverGetVersion(int* version) {
  return remember(cuDriverGetVersion(version));
}

IPCLAB_RUNTIME_API cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned version,
    unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  if (cudaError_t error = start()) return error;
  if (name == nullptr || function == nullptr) {
    return remember(cudaErrorInvalidValue);
  }
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
  const CUresult error = cuGetProcAddress(
      name, function, static_cast<int>(version), flags, &found);
  if (status != nullptr) {
    *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  }
  // It is not an error if the name does not exist: the call reports this in
  // `status`.
  return error == CUDA_ERROR_NOT_FOUND ? cudaSuccess : remember(error);
}

#undef cudaGetDriverEntryPoint
IPCLAB_RUNTIME_API cudaError_t cudaGetDriverEntryPoint(
    const char* name, void** function, unsigned long long flags,
    cudaDriverEntryPointQueryResult* status) {
  int driver = 0;
  cuDriverGetVersion(&driver);
  return cudaGetDriverEntryPointByVersion(
      name, function, std::min(ipclab::runtime::version(), driver), flags,
      status);
}
