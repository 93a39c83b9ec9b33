// SPDX-License-Identifier: Apache-2.0
// The driver API: entry points by name, and the names of errors.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "core/log.h"
#include "core/profile.h"
#include "driver/driver.h"

using namespace ipclab::model;

namespace {

struct Error {
  int number;
  const char* name;
  const char* text;
};

constexpr Error kErrors[] = {
#define IPCLAB_ERROR(number, driver, runtime, text) {number, driver, text},
#include "core/errors.inc"
#undef IPCLAB_ERROR
};

const Error* find_error(CUresult code) {
  for (const Error& error : kErrors) {
    if (error.number == code && error.name != nullptr) return &error;
  }
  return nullptr;
}

// Functions whose newest form does not have the highest suffix, or that
// programs may request in an older form. `version` is the first CUDA version
// with the symbol.
struct Version {
  const char* name;
  int version;
  const char* symbol;
};
constexpr Version kVersions[] = {
    {"cuCtxCreate", 12050, "cuCtxCreate_v4"},
    {"cuCtxCreate", 11040, "cuCtxCreate_v3"},
    {"cuCtxCreate", 3020, "cuCtxCreate_v2"},
    {"cuCtxGetDevice", 13000, "cuCtxGetDevice_v2"},
    {"cuCtxGetDevice", 2000, "cuCtxGetDevice"},
    {"cuCtxSynchronize", 13000, "cuCtxSynchronize_v2"},
    {"cuCtxSynchronize", 2000, "cuCtxSynchronize"},
    {"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"},
    {"cuGraphInstantiate", 11000, "cuGraphInstantiate_v2"},
    {"cuStreamGetCtx", 12050, "cuStreamGetCtx_v2"},
    {"cuStreamGetCtx", 9020, "cuStreamGetCtx"},
    {"cuDeviceGetUuid", 9020, "cuDeviceGetUuid_v2"},
};

// Functions that the drivers of some profiles do not have: the beginning of
// their names, and the first CUDA version with them. A model that is built with
// a newer toolkit exports all of them; those that it does not implement return
// "not supported".
struct Newer {
  const char* names;
  int version;
};
constexpr Newer kNewer[] = {
    {"cuGraphExecGetId", 13010},
    {"cuGraphGetId", 13010},
    {"cuGraphNodeGetContainingGraph", 13010},
    {"cuGraphNodeGetLocalId", 13010},
    {"cuGraphNodeGetToolsId", 13010},
    {"cuStreamBeginCaptureToCig", 13010},
    {"cuStreamEndCaptureToCig", 13010},
    {"cuStreamGetDevResource", 13010},
    {"cuCoredumpDeregister", 13020},
    {"cuCoredumpRegister", 13020},
    {"cuFuncGetParamCount", 13020},
    {"cuGraphNodeGetParams", 13020},
    {"cuKernelGetParamCount", 13020},
    {"cuMemcpy3DWithAttributesAsync", 13020},
    {"cuMemcpyWithAttributesAsync", 13020},
    {"cuLogicalEndpoint", 13030},
    {"cuStreamBeginRecaptureToGraph", 13030},
    {"cuCheckpointOperationComplete", 13040},
    {"cuDeviceGetFabricClusterUuid", 13040},
    {"cuDeviceGetClique", 13040},
    {"cuMemGetLocationInfo", 13040},
    {"cuFabricCpyBatchAsync", 13050},
    {"cuTensorMapSetAllocationClass", 13050},
};

// Is a function of this name newer than the driver that the model simulates, or
// than the version that the program requests?
bool is_too_new(const std::string& name, int version) {
  for (const Newer& newer : kNewer) {
    if (name.rfind(newer.names, 0) == 0) {
      return std::min(version, profile().driver_version) < newer.version;
    }
  }
  return false;
}

void* own_symbol(const std::string& name) {
  static void* self = [] {
    Dl_info info;
    return dladdr(reinterpret_cast<void*>(&find_error), &info) != 0
               ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
               : nullptr;
  }();
  return self == nullptr ? nullptr : dlsym(self, name.c_str());
}

// The function that has a base name in a version of CUDA; null if there is
// none.
void* entry_point(const std::string& name, int version) {
  if (is_too_new(name, version)) return nullptr;
  bool listed = false;
  for (const Version& candidate : kVersions) {
    if (name != candidate.name) continue;
    listed = true;
    if (version >= candidate.version) return own_symbol(candidate.symbol);
  }
  if (listed) return nullptr;
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    if (void* found = own_symbol(name + suffix)) return found;
  }
  return nullptr;
}

}  // namespace

IPCLAB_DRIVER_API CUresult cuGetErrorName(CUresult code, const char** name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Error* error = find_error(code);
  *name = error == nullptr ? nullptr : error->name;
  return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuGetErrorString(CUresult code, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Error* error = find_error(code);
  *text = error == nullptr ? nullptr : error->text;
  return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult
cuGetProcAddress_v2(const char* name, void** function, int version,
                    cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  if (name == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  // "If the specified CUDA version is greater than the driver version, the API
  // will return CUDA_ERROR_INVALID_VALUE."
  if (version > profile().driver_version) return CUDA_ERROR_INVALID_VALUE;
  // NVIDIA's runtime requests an empty name first, and then all functions, even
  // those that the program does not need. So after an empty name, this function
  // prints nothing, and cuGetExportTable says what is wrong.
  static std::atomic<bool> said{false};
  if (*name == '\0') said = true;
  if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0) {
    if (!said.exchange(true)) {
      say("per-thread default streams are not part of the reference model");
    }
    if (status != nullptr) *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
  }
  *function = entry_point(name, version);
  if (status != nullptr) {
    *status = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                                   : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

#undef cuGetProcAddress
IPCLAB_DRIVER_API CUresult cuGetProcAddress(const char* name, void** function,
                                            int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

// Only NVIDIA's own libraries request these undocumented tables. NVIDIA's
// runtime needs them; NVRTC works without them.
IPCLAB_DRIVER_API CUresult cuGetExportTable(const void**, const CUuuid*) {
  static std::atomic<bool> said{false};
  Dl_info caller;
  const bool known = dladdr(__builtin_return_address(0), &caller) != 0;
  const std::string path = known ? caller.dli_fname : "";
  const std::string name = path.substr(path.rfind('/') + 1);
  if (name.rfind("libnvrtc.so", 0) == 0) return CUDA_ERROR_NOT_FOUND;
  if (!said.exchange(true)) {
    if (name.rfind("lib", 0) == 0 && name.rfind("libcudart", 0) != 0) {
      say(name +
          " brings NVIDIA's runtime, which needs a driver; the reference model "
          "cannot stand in for it");
    } else {
      say("this program brings NVIDIA's runtime: build it with '-cudart "
          "shared' and without an RPATH to the toolkit, so that it finds the "
          "model's runtime");
    }
  }
  return CUDA_ERROR_NOT_FOUND;
}
