// SPDX-License-Identifier: Apache-2.0
// A libnvJitLink.so.13 in front of NVIDIA's. NVIDIA's library links. A program
// that asks for the linked machine code (a cubin) gets PTX, because the model
// runs PTX: the PTX that NVIDIA's library makes from LTO IR, and the inputs
// that are PTX. Inputs with machine code cannot be linked.
//
// nvJitLink.h is not needed to build this library, because the library passes
// handles on without a change.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/log.h"
#include "nvrtc/nvidia.h"

namespace {

using Handle = void*;

constexpr int kInternal = 6, kUnrecognizedInput = 8;  // nvJitLinkResult
// nvJitLinkInputType
constexpr int kCubin = 1, kPtx = 2, kLtoIr = 3, kIndex = 7, kAny = 10;

template <class Signature>
Signature* real(const char* name) {
  static void* const library = ipclab::model::nvidia_library(
      "libnvJitLink.so.13", "links with nvJitLink", "nvidia-nvjitlink");
  return library == nullptr
             ? nullptr
             : reinterpret_cast<Signature*>(dlsym(library, name));
}

struct Link {
  bool lto = false;
  bool machine_code = false;
  std::string ptx;  ///< of the inputs, one after the other
};

std::mutex mutex;
std::map<Handle, Link>& links() {
  static auto& all = *new std::map<Handle, Link>;
  return all;
}

bool is_ptx(const std::string& data) {
  const size_t at = data.find(".version");
  return at != std::string::npos &&
         data.substr(0, at).find('\0') == std::string::npos;
}

/// The image; `error` gets the result.
std::string image_of(Handle handle, int* error) {
  const std::lock_guard lock(mutex);
  const Link& link = links()[handle];
  *error = 0;
  if (link.machine_code) {
    ipclab::model::say(
        "nvJitLink has an input with machine code, and the model runs only "
        "PTX: link PTX or LTO IR");
    *error = kInternal;
    return "";
  }
  std::string image;
  if (link.lto) {
    size_t size = 0;
    auto* size_of = real<int(Handle, size_t*)>("nvJitLinkGetLinkedPtxSize");
    auto* get = real<int(Handle, char*)>("nvJitLinkGetLinkedPtx");
    if (size_of == nullptr || get == nullptr) *error = kInternal;
    if (*error == 0) *error = size_of(handle, &size);
    image.resize(size);
    if (*error == 0) *error = get(handle, image.data());
    image = image.c_str();  // without the last zero byte
  }
  return image + link.ptx;
}

int add(Handle handle, int type, const std::string& data, const char* name) {
  auto* function = real<int(Handle, int, const void*, size_t, const char*)>(
      "nvJitLinkAddData");
  if (function == nullptr) return kInternal;
  // What the model calls a cubin is PTX.
  const bool text =
      (type == kCubin || type == kPtx || type == kAny) && is_ptx(data);
  if (text) type = kPtx;
  const int error = function(handle, type, data.data(), data.size(), name);
  if (error != 0) return error;
  const std::lock_guard lock(mutex);
  Link& link = links()[handle];
  if (text)
    link.ptx += std::string(data.c_str()) + "\n";
  else if (type != kLtoIr && type != kIndex && !(type == kAny && link.lto))
    link.machine_code = true;
  return 0;
}

}  // namespace

// Programs that use nvJitLink.h call names with the version of their header.
#define IPCLAB_LINK(name, parameters, arguments)                     \
  static int link_##name parameters;                                 \
  IPCLAB_NAME(nvJitLink##name, name, parameters, arguments)          \
  IPCLAB_NAME(__nvJitLink##name##_13_0, name, parameters, arguments) \
  IPCLAB_NAME(__nvJitLink##name##_13_1, name, parameters, arguments) \
  IPCLAB_NAME(__nvJitLink##name##_13_2, name, parameters, arguments) \
  IPCLAB_NAME(__nvJitLink##name##_13_3, name, parameters, arguments) \
  IPCLAB_NAME(__nvJitLink##name##_13_4, name, parameters, arguments) \
  IPCLAB_NAME(__nvJitLink##name##_13_5, name, parameters, arguments) \
  static int link_##name parameters
#define IPCLAB_NAME(full, name, parameters, arguments)                    \
  extern "C" __attribute__((visibility("default"))) int full parameters { \
    return link_##name arguments;                                         \
  }

// The same function of NVIDIA's library.
#define IPCLAB_FORWARD(name, parameters, arguments)              \
  IPCLAB_LINK(name, parameters, arguments) {                     \
    auto* function = real<int parameters>("nvJitLink" #name);    \
    return function == nullptr ? kInternal : function arguments; \
  }

IPCLAB_FORWARD(Complete, (Handle handle), (handle))
IPCLAB_FORWARD(GetErrorLogSize, (Handle handle, size_t* size), (handle, size))
IPCLAB_FORWARD(GetErrorLog, (Handle handle, char* log), (handle, log))
IPCLAB_FORWARD(GetInfoLogSize, (Handle handle, size_t* size), (handle, size))
IPCLAB_FORWARD(GetInfoLog, (Handle handle, char* log), (handle, log))
IPCLAB_FORWARD(GetLinkedPtxSize, (Handle handle, size_t* size), (handle, size))
IPCLAB_FORWARD(GetLinkedPtx, (Handle handle, char* ptx), (handle, ptx))
IPCLAB_FORWARD(GetLinkedLTOIRSize, (Handle handle, size_t* size),
               (handle, size))
IPCLAB_FORWARD(GetLinkedLTOIR, (Handle handle, void* code), (handle, code))

IPCLAB_LINK(Create, (Handle * handle, uint32_t count, const char** options),
            (handle, count, options)) {
  auto* function =
      real<int(Handle*, uint32_t, const char**)>("nvJitLinkCreate");
  if (function == nullptr) return kInternal;
  std::vector<const char*> all(options, options + count);
  bool lto = false, ptx = false;
  for (const char* option : all) {
    lto = lto || std::strcmp(option, "-lto") == 0;
    ptx = ptx || std::strcmp(option, "-ptx") == 0;
  }
  if (lto && !ptx) all.push_back("-ptx");
  const int error =
      function(handle, static_cast<uint32_t>(all.size()), all.data());
  if (error != 0) return error;
  const std::lock_guard lock(mutex);
  links()[*handle] = {lto, false, ""};
  return 0;
}

IPCLAB_LINK(Destroy, (Handle * handle), (handle)) {
  auto* function = real<int(Handle*)>("nvJitLinkDestroy");
  if (function == nullptr) return kInternal;
  if (handle != nullptr) {
    const std::lock_guard lock(mutex);
    links().erase(*handle);
  }
  return function(handle);
}

IPCLAB_LINK(AddData,
            (Handle handle, int type, const void* data, size_t size,
             const char* name),
            (handle, type, data, size, name)) {
  if (data == nullptr) return kUnrecognizedInput;
  return add(handle, type, {static_cast<const char*>(data), size}, name);
}

IPCLAB_LINK(AddFile, (Handle handle, int type, const char* name),
            (handle, type, name)) {
  std::ifstream file(name == nullptr ? "" : name, std::ios::binary);
  if (!file) return kUnrecognizedInput;
  return add(
      handle, type,
      {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()},
      name);
}

IPCLAB_LINK(GetLinkedCubinSize, (Handle handle, size_t* size), (handle, size)) {
  int error = 0;
  const std::string image = image_of(handle, &error);
  if (error == 0) *size = image.size() + 1;
  return error;
}

IPCLAB_LINK(GetLinkedCubin, (Handle handle, void* cubin), (handle, cubin)) {
  int error = 0;
  const std::string image = image_of(handle, &error);
  if (error == 0) std::memcpy(cubin, image.c_str(), image.size() + 1);
  return error;
}

extern "C" __attribute__((visibility("default"))) int nvJitLinkVersion(
    unsigned* major, unsigned* minor) {
  auto* function = real<int(unsigned*, unsigned*)>("nvJitLinkVersion");
  return function == nullptr ? kInternal : function(major, minor);
}
