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

// One form of a function: the name that programs request, the first version of
// CUDA with this form, and its symbol. The newest form comes first.
struct Form {
  const char* name;
  int version;
  const char* symbol;
};
constexpr Form kForms[] = {
    // The one form whose name is not the name of the function with a suffix.
    {"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"},
#define IPCLAB_ENTRY(name, version, symbol) {name, version, symbol},
#include "entry_points.inc"
#undef IPCLAB_ENTRY
};

// The functions that toolkit/newer.h declares: the beginning of their names,
// and the first CUDA version with them.
struct Newer {
  const char* names;
  int version;
};
constexpr Newer kNewer[] = {
    {"cuMemcpyWithAttributesAsync", 13020},
    {"cuMemcpy3DWithAttributesAsync", 13020},
    {"cuLogicalEndpoint", 13030},
    {"cuDeviceGetFabricClusterUuid", 13040},
    {"cuDeviceGetClique", 13040},
    {"cuFabricCpyBatchAsync", 13050},
};

// The first version of CUDA with a symbol that kForms does not find by its
// name.
int version_of(const std::string& symbol) {
  for (const Form& form : kForms) {
    if (symbol == form.symbol) return form.version;
  }
  for (const Newer& newer : kNewer) {
    if (symbol.rfind(newer.names, 0) == 0) return newer.version;
  }
  return 0;
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

// The function that has a name in a version of CUDA; null if there is none.
void* entry_point(const std::string& name, int version,
                  CUdriverProcAddressQueryResult* status) {
  const int driver = profile().driver_version;
  const int newest = std::min(version, driver);
  *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  bool listed = false;
  void* found = nullptr;
  for (const Form& form : kForms) {
    if (name != form.name) continue;
    listed = true;
    if (form.version <= newest) {
      found = own_symbol(form.symbol);
      break;
    }
    if (form.version <= driver) {
      *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    }
  }
  if (!listed && version_of(name) <= newest) found = own_symbol(name);
  if (found != nullptr) *status = CU_GET_PROC_ADDRESS_SUCCESS;
  return found;
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
  CUdriverProcAddressQueryResult found;
  *function = entry_point(name, version, &found);
  if (status != nullptr) *status = found;
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

#undef cuGetProcAddress
IPCLAB_DRIVER_API CUresult cuGetProcAddress(const char* name, void** function,
                                            int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

// Only NVIDIA's own libraries request these undocumented tables. NVIDIA's
// runtime needs them; NVRTC and nvJitLink work without them.
IPCLAB_DRIVER_API CUresult cuGetExportTable(const void**, const CUuuid*) {
  static std::atomic<bool> said{false};
  Dl_info caller;
  const bool known = dladdr(__builtin_return_address(0), &caller) != 0;
  const std::string path = known ? caller.dli_fname : "";
  const std::string name = path.substr(path.rfind('/') + 1);
  for (const char* other : {"libnvrtc.so", "libnvJitLink.so"})
    if (name.rfind(other, 0) == 0) return CUDA_ERROR_NOT_FOUND;
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
