// SPDX-License-Identifier: Apache-2.0
// A libnvrtc.so.13 in front of NVIDIA's. NVIDIA's library compiles. A program
// that asks for machine code (a cubin) gets the PTX of the same compilation,
// because the model runs PTX. The functions that load an image accept PTX in
// place of a cubin.
//
// nvrtc.h is not needed to build this library, because the library passes
// handles on without a change.
#include <dlfcn.h>

#include <cstddef>

#include "nvrtc/nvidia.h"

namespace {

constexpr int kInternalError = 11;  // NVRTC_ERROR_INTERNAL_ERROR

template <class Signature>
Signature* real(const char* name) {
  static void* const library = ipclab::model::nvidia_library(
      "libnvrtc.so.13", "compiles with NVRTC", "nvidia-cuda-nvrtc");
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
