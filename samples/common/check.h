// What a lesson does with a call that fails: two lines, role and call
// first, and exit code 1. Wrong data ends the same way.
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

/// Set by roles.h; every message begins with it.
inline const char*& role_name() {
  static const char* name = nullptr;
  return name;
}

/// Prints "[role pid] " and nothing else, for a line that goes on.
inline void print_role(FILE* out) {
  if (role_name())
    std::fprintf(out, "[%s %d] ", role_name(),
                 static_cast<int>(getpid()));
}

/// A line of the lesson's story, with the role that tells it.
[[gnu::format(printf, 1, 2)]] inline void say(const char* text, ...) {
  std::printf("%-8s  ", role_name());
  va_list arguments;
  va_start(arguments, text);
  std::vprintf(text, arguments);
  va_end(arguments);
  std::printf("\n");
  std::fflush(stdout);  // keeps the order when stdout is a pipe
}

/// Ends the process: the call as it is written, then what it answered.
[[noreturn]] inline void call_failed(const char* file, int line,
                                     const char* call, const char* name,
                                     int code, const char* text) {
  std::fflush(stdout);
  print_role(stderr);
  std::fprintf(stderr, "%s:%d: %s\n  -> %s (%d): %s\n", file, line,
               call, name, code, text);
  std::exit(EXIT_FAILURE);
}

/// The address of a driver function; null if the driver has it not.
/// Asked of the runtime: what links libcuda.so.1 needs it to start.
inline void* driver_entry(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion(name, &entry, CUDART_VERSION,
                                       cudaEnableDefault,
                                       &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess)
    return nullptr;
  return entry;
}

/// The same with its type; ends the process where it is missing.
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

/// The name and the description of a driver API code.
inline const char* driver_error(CUresult code, bool describe = false) {
  const char* text = nullptr;
  const auto get =
      describe ? DRIVER(cuGetErrorString) : DRIVER(cuGetErrorName);
  if (get == nullptr || get(code, &text) != CUDA_SUCCESS) return "?";
  return text;
}

/// A runtime call that has to succeed.
#define CUDA_CHECK(call)                                              \
  do {                                                                \
    const cudaError_t code_ = (call);                                 \
    if (code_ != cudaSuccess)                                         \
      call_failed(__FILE__, __LINE__, #call, cudaGetErrorName(code_), \
                  code_, cudaGetErrorString(code_));                  \
  } while (0)

/// A driver call that has to succeed.
#define CU_CHECK(call)                                            \
  do {                                                            \
    const CUresult code_ = (call);                                \
    if (code_ != CUDA_SUCCESS)                                    \
      call_failed(__FILE__, __LINE__, #call, driver_error(code_), \
                  code_, driver_error(code_, true));              \
  } while (0)

/// A system call that has to return something other than -1.
#define SYS_CHECK(call)                                      \
  do {                                                       \
    if ((call) == -1)                                        \
      call_failed(__FILE__, __LINE__, #call, "errno", errno, \
                  std::strerror(errno));                     \
  } while (0)
