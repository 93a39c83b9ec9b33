// SPDX-License-Identifier: Apache-2.0
// The runtime API: how the runtime finds its context and keeps its last error.
#include "runtime/runtime.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <set>

#include "core/profile.h"

namespace ipclab::runtime {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int chosen_device = 0;

std::mutex retain_mutex;
// The devices whose primary context the runtime has retained; kept for ever,
// because a static destructor may still call the runtime.
std::set<int>& retained() {
  static auto& devices = *new std::set<int>;
  return devices;
}

}  // namespace

CUresult retain_primary(int device, CUcontext* context) {
  const std::lock_guard lock(retain_mutex);
  int active = 0;
  unsigned flags = 0;
  if (CUresult error = cuDevicePrimaryCtxGetState(device, &flags, &active)) {
    return error;
  }
  const bool again = active == 0 || retained().insert(device).second;
  if (CUresult error = cuDevicePrimaryCtxRetain(context, device)) return error;
  if (again) {
    retained().insert(device);
    return CUDA_SUCCESS;
  }
  return cuDevicePrimaryCtxRelease(device);
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

int version() {
  const int wanted = model::profile().runtime_version;
  return wanted / 1000 == kBuiltVersion / 1000 ? wanted : kBuiltVersion;
}

namespace {
bool is_driver_too_old() {
  static const bool answer = [] {
    int driver = 0;
    cuDriverGetVersion(&driver);
    return driver / 1000 < version() / 1000;
  }();
  return answer;
}
}  // namespace

cudaError_t start() {
  return remember(is_driver_too_old() ? cudaErrorInsufficientDriver
                                      : static_cast<cudaError_t>(cuInit(0)));
}

namespace {

bool is_no_context(CUresult state) {
  return state == CUDA_ERROR_INVALID_CONTEXT ||
         state == CUDA_ERROR_NOT_INITIALIZED ||
         state == CUDA_ERROR_NOT_PERMITTED ||
         state == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

// Can the current context still be used? The question is a call of the driver,
// so a trace of the driver's calls also shows a fault.
CUresult state_of_context() {
  unsigned flags = 0;
  const CUresult state = cuCtxGetFlags(&flags);
  return state == CUDA_SUCCESS || is_no_context(state) ? state
                                                       : cuCtxSynchronize();
}

}  // namespace

cudaError_t bind() {
  if (is_driver_too_old()) return remember(cudaErrorInsufficientDriver);
  CUcontext context = nullptr;
  const CUresult current = cuCtxGetCurrent(&context);
  if (current == CUDA_ERROR_NOT_INITIALIZED) {
    if (cudaError_t error = start()) return error;
  } else if (current != CUDA_SUCCESS) {
    return remember(current);
  }
  const CUresult usable =
      context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : state_of_context();
  if (usable == CUDA_SUCCESS) return cudaSuccess;
  const bool needs_primary = usable == CUDA_ERROR_INVALID_CONTEXT ||
                             usable == CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (!needs_primary) return remember(usable);
  CUcontext primary = nullptr;
  if (CUresult error = retain_primary(chosen_device, &primary)) {
    return remember(error);
  }
  return remember(cuCtxSetCurrent(primary));
}

int current_device() {
  CUdevice device = 0;
  return cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : chosen_device;
}

cudaError_t set_device(int device) {
  int count = 0;
  if (CUresult error = cuDeviceGetCount(&count)) return remember(error);
  if (device < 0 || device >= count) return remember(cudaErrorInvalidDevice);
  CUcontext primary = nullptr;
  if (CUresult error = retain_primary(device, &primary)) {
    return remember(error);
  }
  chosen_device = device;
  return remember(cuCtxSetCurrent(primary));
}

namespace {
// Is the current context one that the program has created?
bool is_in_own_context(int device) {
  CUcontext current = nullptr, primary = nullptr;
  unsigned flags = 0;
  int active = 0;
  if (cuCtxGetCurrent(&current) != CUDA_SUCCESS || current == nullptr ||
      cuCtxGetFlags(&flags) != CUDA_SUCCESS) {
    return false;
  }
  cuDevicePrimaryCtxGetState(device, &flags, &active);
  if (active == 0 || cuDevicePrimaryCtxRetain(&primary, device)) return true;
  cuDevicePrimaryCtxRelease(device);
  return current != primary;
}
}  // namespace

cudaError_t reset_device() {
  if (cudaError_t error = start()) return error;
  const int device = current_device();
  // "If a non-primary CUcontext is current to the thread, cudaDeviceReset()
  // will destroy only the internal CUDA RT state for that CUcontext": the
  // objects of the driver stay.
  if (is_in_own_context(device)) {
    last_error = cudaSuccess;
    return cudaSuccess;
  }
  const CUresult error = cuDevicePrimaryCtxReset(device);
  const std::lock_guard lock(retain_mutex);
  // Also gives up the runtime's own reference; the next call takes a new one.
  if (error == CUDA_SUCCESS && retained().erase(device) > 0) {
    cuDevicePrimaryCtxRelease(device);
  }
  last_error = cudaSuccess;
  return remember(error);
}

namespace {
// The fault of the context. cudaGetLastError does not clear it, because it is
// not the error of one call.
cudaError_t fault_of_context() {
  const CUresult state = state_of_context();
  return is_no_context(state) ? cudaSuccess : static_cast<cudaError_t>(state);
}
}  // namespace

}  // namespace ipclab::runtime

IPCLAB_RUNTIME_API cudaError_t cudaPeekAtLastError() {
  using namespace ipclab::runtime;
  if (cudaError_t fault = fault_of_context()) last_error = fault;
  return last_error;
}

IPCLAB_RUNTIME_API cudaError_t cudaGetLastError() {
  using namespace ipclab::runtime;
  const cudaError_t error = cudaPeekAtLastError();
  last_error = fault_of_context();
  return error;
}

/// For unsupported.cc: prints one line at the first call of a function. If the
/// runtime is newer than the driver, the driver may lack any of these
/// functions. Then returns cudaErrorCallRequiresNewerDriver, otherwise
/// cudaErrorNotSupported.
extern "C" int ipclab_runtime_refuse(const char* name,
                                     std::atomic<bool>* said) {
  if (!said->exchange(true)) {
    std::fprintf(stderr,
                 "ipclab model [%d]: %s is not part of the reference model\n",
                 static_cast<int>(getpid()), name);
  }
  int driver = 0;
  cuDriverGetVersion(&driver);
  return ipclab::runtime::remember(driver < ipclab::runtime::version()
                                       ? cudaErrorCallRequiresNewerDriver
                                       : cudaErrorNotSupported);
}
