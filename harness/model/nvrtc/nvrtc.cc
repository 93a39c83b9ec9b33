// SPDX-License-Identifier: Apache-2.0
// A libnvrtc.so.13 in front of NVIDIA's. NVIDIA's library compiles. A program
// that asks for machine code (a cubin) gets the PTX of the same compilation,
// because the model runs PTX. The functions that load an image accept PTX in
// place of a cubin.
//
// nvrtc.h is not needed to build this library, because the library passes
// handles on without a change.
#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <sys/stat.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "core/log.h"

namespace {

using ipclab::model::say;

constexpr char kName[] = "libnvrtc.so.13";
constexpr int kInternalError = 11;  // NVRTC_ERROR_INTERNAL_ERROR

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The folder of the installation that a program belongs to: .venv for
/// .venv/bin/python.
std::string prefix_of_program() {
  std::string path = program_invocation_name;
  if (path.find('/') == std::string::npos) {
    std::istringstream folders(variable("PATH"));
    for (std::string folder; std::getline(folders, folder, ':');) {
      struct stat there;
      const std::string candidate = folder.append("/").append(path);
      if (stat(candidate.c_str(), &there) != 0) continue;
      path = candidate;
      break;
    }
  }
  return path.substr(0, path.rfind('/')) + "/..";
}

/// Patterns for the places where NVIDIA's library may be. The most likely place
/// is first.
std::vector<std::string> places() {
  std::vector<std::string> folders;
  std::istringstream listed(variable("LD_LIBRARY_PATH"));
  for (std::string folder; std::getline(listed, folder, ':');) {
    folders.push_back(folder);
  }
  for (const std::string& prefix :
       {variable("VIRTUAL_ENV"), prefix_of_program()}) {
    const std::string wheels = prefix + "/lib/python3*/site-packages/nvidia/";
    folders.push_back(wheels + "cu13/lib");
    folders.push_back(wheels + "cuda_nvrtc/lib");
  }
  for (const std::string& toolkit :
       {variable("CUDA_PATH"), variable("CUDA_HOME"),
        std::string("/usr/local/cuda"), std::string("/usr/local/cuda-13*")}) {
    folders.push_back(toolkit + "/lib64");
  }
  folders.emplace_back("/usr/lib/*-linux-gnu");
  folders.emplace_back("/usr/lib64");
  return folders;
}

bool is_this_library(const std::string& path) {
  Dl_info own;
  struct stat a, b;
  return dladdr(reinterpret_cast<void*>(&is_this_library), &own) != 0 &&
         stat(own.dli_fname, &a) == 0 && stat(path.c_str(), &b) == 0 &&
         a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

void* open_first(const std::string& folder) {
  glob_t found{};
  void* library = nullptr;
  if (glob((folder + "/" + kName).c_str(), 0, nullptr, &found) == 0) {
    for (size_t i = 0; library == nullptr && i < found.gl_pathc; ++i) {
      const std::string path = found.gl_pathv[i];
      if (path[0] != '/' || is_this_library(path)) continue;
      library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
  }
  globfree(&found);
  return library;
}

/// NVIDIA's library. If there is none, prints a line that says what to do, and
/// returns null.
void* nvidia() {
  static void* const library = [] {
    for (const std::string& folder : places()) {
      if (void* found = open_first(folder)) return found;
    }
    say("this program compiles with NVRTC, and there is no " +
        std::string(kName) +
        ": install the wheel nvidia-cuda-nvrtc or name its folder in "
        "LD_LIBRARY_PATH");
    return static_cast<void*>(nullptr);
  }();
  return library;
}

template <class Signature>
Signature* real(const char* name) {
  void* library = nvidia();
  return library == nullptr
             ? nullptr
             : reinterpret_cast<Signature*>(dlsym(library, name));
}

}  // namespace

using Program = void*;

#define IPCLAB_NVRTC extern "C" __attribute__((visibility("default")))

// name, (parameters), (arguments): the same function of NVIDIA's library.
#define IPCLAB_FORWARD(name, parameters, arguments) \
  IPCLAB_NVRTC int name parameters {                \
    auto* function = real<int parameters>(#name);   \
    if (function == nullptr) return kInternalError; \
    return function arguments;                      \
  }

IPCLAB_FORWARD(nvrtcVersion, (int* major, int* minor), (major, minor))
IPCLAB_FORWARD(nvrtcGetNumSupportedArchs, (int* count), (count))
IPCLAB_FORWARD(nvrtcGetSupportedArchs, (int* list), (list))
IPCLAB_FORWARD(nvrtcCreateProgram,
               (Program * program, const char* source, const char* name,
                int count, const char* const* headers,
                const char* const* names),
               (program, source, name, count, headers, names))
IPCLAB_FORWARD(nvrtcDestroyProgram, (Program * program), (program))
IPCLAB_FORWARD(nvrtcCompileProgram,
               (Program program, int count, const char* const* options),
               (program, count, options))
IPCLAB_FORWARD(nvrtcGetPTXSize, (Program program, size_t* size),
               (program, size))
IPCLAB_FORWARD(nvrtcGetPTX, (Program program, char* text), (program, text))
IPCLAB_FORWARD(nvrtcGetLTOIRSize, (Program program, size_t* size),
               (program, size))
IPCLAB_FORWARD(nvrtcGetLTOIR, (Program program, char* code), (program, code))
IPCLAB_FORWARD(nvrtcGetOptiXIRSize, (Program program, size_t* size),
               (program, size))
IPCLAB_FORWARD(nvrtcGetOptiXIR, (Program program, char* code), (program, code))
IPCLAB_FORWARD(nvrtcGetProgramLogSize, (Program program, size_t* size),
               (program, size))
IPCLAB_FORWARD(nvrtcGetProgramLog, (Program program, char* log), (program, log))
IPCLAB_FORWARD(nvrtcAddNameExpression, (Program program, const char* name),
               (program, name))
IPCLAB_FORWARD(nvrtcGetLoweredName,
               (Program program, const char* name, const char** lowered),
               (program, name, lowered))
IPCLAB_FORWARD(nvrtcGetPCHHeapSize, (size_t * size), (size))
IPCLAB_FORWARD(nvrtcSetPCHHeapSize, (size_t size), (size))
IPCLAB_FORWARD(nvrtcGetPCHCreateStatus, (Program program), (program))
IPCLAB_FORWARD(nvrtcGetPCHHeapSizeRequired, (Program program, size_t* size),
               (program, size))
IPCLAB_FORWARD(nvrtcSetFlowCallback,
               (Program program, int (*callback)(void*, void*), void* payload),
               (program, callback, payload))

IPCLAB_NVRTC const char* nvrtcGetErrorString(int result) {
  auto* function = real<const char*(int)>("nvrtcGetErrorString");
  return function == nullptr ? "NVRTC_ERROR_INTERNAL_ERROR" : function(result);
}

// If the program named a virtual architecture, NVRTC made no machine code. Then
// this function also returns a size of 0.
IPCLAB_NVRTC int nvrtcGetCUBINSize(Program program, size_t* size) {
  auto* function = real<int(Program, size_t*)>("nvrtcGetCUBINSize");
  if (function == nullptr) return kInternalError;
  const int error = function(program, size);
  if (error != 0 || *size == 0) return error;
  return nvrtcGetPTXSize(program, size);
}

IPCLAB_NVRTC int nvrtcGetCUBIN(Program program, char* code) {
  size_t size = 0;
  const int error = nvrtcGetCUBINSize(program, &size);
  if (error != 0 || size == 0) return error;
  return nvrtcGetPTX(program, code);
}
