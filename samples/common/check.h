// If a call fails, a lesson prints two lines and ends with exit code 1.
// The first line has the role and the call; the second line has the
// error. If a call has to be refused, the lesson prints the answer.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fabric.h"
#include "toolkit.h"

/// roles.h sets this name. It is null in a lesson with one process.
inline const char*& role_name() {
  static const char* name = nullptr;
  return name;
}

/// Prints "[role pid] " if the process has a role.
inline void print_role(FILE* out) {
  if (role_name())
    std::fprintf(out, "[%s %d] ", role_name(),
                 static_cast<int>(getpid()));
}

/// Prints a line. The line begins with the role if there is a role.
[[gnu::format(printf, 1, 2)]] inline void say(const char* text, ...) {
  if (role_name()) std::printf("%-8s  ", role_name());
  va_list arguments;
  va_start(arguments, text);
  std::vprintf(text, arguments);
  va_end(arguments);
  std::printf("\n");
  std::fflush(stdout);  // keeps the order when stdout is a pipe
}

/// Prints the text of a call and its error. Ends the process. If the
/// fabric is not ready, the lesson is skipped (77).
[[noreturn]] inline void call_failed(const char* file, int line,
                                     const char* call, const char* name,
                                     int code, const char* text) {
  if (code == kFabricNotReady) {
    std::printf("SKIP: the fabric is not ready: %s\n", call);
    std::exit(77);
  }
  std::fflush(stdout);
  print_role(stderr);
  std::fprintf(stderr, "%s:%d: %s\n  -> %s (%d): %s\n", file, line,
               call, name, code, text);
  std::exit(EXIT_FAILURE);
}

/// Returns the address of a driver function in the form of a version of
/// CUDA, or null if the driver does not have it. The runtime finds the
/// address: a program that is linked with libcuda.so.1 does not start
/// without a driver and cannot skip.
inline void* driver_entry(const char* name,
                          int version = CUDART_VERSION) {
  int newest = 0;  // no driver accepts a version newer than its own
  cudaDriverGetVersion(&newest);
  if (version > newest) version = newest;
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  const bool good = cudaGetDriverEntryPointByVersion(
                        name, &entry, version, cudaEnableDefault,
                        &found) == cudaSuccess;
#else  // this runtime finds only the form of its own version
  void* get = nullptr;
  const bool good =
      cudaGetDriverEntryPoint("cuGetProcAddress", &get,
                              cudaEnableDefault,
                              &found) == cudaSuccess &&
      get != nullptr &&
      reinterpret_cast<decltype(&cuGetProcAddress)>(get)(
          name, &entry, version, CU_GET_PROC_ADDRESS_DEFAULT,
          nullptr) == CUDA_SUCCESS;
#endif
  return good ? entry : nullptr;
}

/// Returns a driver function. Ends the process if there is none.
template <class Function>
Function driver_function(const char* name) {
  void* entry = driver_entry(name);
  if (entry == nullptr) {
    print_role(stderr);
    std::fprintf(stderr, "this driver has no function %s\n", name);
    std::exit(EXIT_FAILURE);
  }
  return reinterpret_cast<Function>(entry);
}

/// DRIVER(cuMemCreate)(&handle, ...) calls a driver API function.
#define DRIVER(function) driver_function<decltype(&function)>(#function)

/// Makes a context and makes it current. Each version of CUDA has its
/// own form of cuCtxCreate; all drivers have the form of CUDA 3.2.
inline CUresult create_context(CUcontext* context, CUdevice device) {
  using Form = CUresult (*)(CUcontext*, unsigned, CUdevice);
  const auto cuCtxCreate =
      reinterpret_cast<Form>(driver_entry("cuCtxCreate", 3020));
  return cuCtxCreate(context, 0, device);
}

/// Returns the name of a driver code, its text if `describe`, or "?".
inline const char* driver_error(CUresult code, bool describe = false) {
  const char* text = nullptr;
  const auto get =
      describe ? DRIVER(cuGetErrorString) : DRIVER(cuGetErrorName);
  if (get == nullptr || get(code, &text) != CUDA_SUCCESS) return "?";
  return text;
}

/// Makes a runtime call that has to succeed.
#define CUDA_CHECK(call)                                              \
  do {                                                                \
    const cudaError_t code_ = (call);                                 \
    if (code_ != cudaSuccess)                                         \
      call_failed(__FILE__, __LINE__, #call, cudaGetErrorName(code_), \
                  code_, cudaGetErrorString(code_));                  \
  } while (0)

/// Makes a driver call that has to succeed.
#define CU_CHECK(call)                                            \
  do {                                                            \
    const CUresult code_ = (call);                                \
    if (code_ != CUDA_SUCCESS)                                    \
      call_failed(__FILE__, __LINE__, #call, driver_error(code_), \
                  code_, driver_error(code_, true));              \
  } while (0)

/// Makes a system call. A result of -1 is a failure.
#define SYS_CHECK(call)                                      \
  do {                                                       \
    if ((call) == -1)                                        \
      call_failed(__FILE__, __LINE__, #call, "errno", errno, \
                  std::strerror(errno));                     \
  } while (0)

/// Returns true if the call was refused. Prints `what` and the code, in
/// brackets because it depends on the driver. Clears the code that the
/// runtime keeps; otherwise the next check would find this code.
inline bool refused(const char* what, cudaError_t code) {
  cudaGetLastError();
  if (code == cudaSuccess)
    say("%s: NOT REFUSED", what);
  else
    say("%s: refused [%s]", what, cudaGetErrorName(code));
  return code != cudaSuccess;
}

/// The same for a driver call. The driver API keeps no code.
inline bool refused(const char* what, CUresult code) {
  if (code == CUDA_SUCCESS)
    say("%s: NOT REFUSED", what);
  else
    say("%s: refused [%s]", what, driver_error(code));
  return code != CUDA_SUCCESS;
}
