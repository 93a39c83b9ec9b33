// SPDX-License-Identifier: Apache-2.0
// The recorder on the reference model: a library that is loaded before the
// model (LD_PRELOAD), has the driver's functions and passes every call on. This
// does not work with NVIDIA's own runtime, which finds the driver in another
// way. With NVIDIA's runtime the recorder uses CUPTI.
#include <cuda.h>
#include <dlfcn.h>
#include <generated_cuda_meta.h>

#include <cstring>
#include <iterator>

#include "log.h"
#include "recorder.h"

namespace ipclab::trace {
namespace {

struct NoParameters {};

// Calls that the driver makes itself do not belong to the program.
thread_local bool inside = false;

// glibc's dlsym, which this library replaces.
void* real_dlsym(void* library, const char* name) noexcept {
  using Dlsym = void*(void*, const char*) noexcept;
  static const auto dlsym_of_libc = [] {
    for (const char* version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"}) {
      if (void* found = dlvsym(RTLD_NEXT, "dlsym", version)) {
        return reinterpret_cast<Dlsym*>(found);
      }
    }
    return static_cast<Dlsym*>(nullptr);
  }();
  return dlsym_of_libc(library, name);
}

// The driver's function: the next function of that name, or the function in
// libcuda.so.1 if the program has opened that library itself.
void* real_function(const char* symbol) {
  if (void* next = real_dlsym(RTLD_NEXT, symbol)) return next;
  static void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  return library == nullptr ? nullptr : real_dlsym(library, symbol);
}

CUcontext context() {
  static const auto ask = reinterpret_cast<CUresult (*)(CUcontext*)>(
      real_function("cuCtxGetCurrent"));
  CUcontext current = nullptr;
  if (ask != nullptr) ask(&current);
  return current;
}

template <class Parameters, class Function>
CUresult pass_on(int index, const Parameters& parameters,
                 const Function& call) {
  if (inside || !tracing()) return call();
  static const bool said = (record_source("calls"), true);
  static_cast<void>(said);
  inside = true;
  const uint64_t began = now();
  if (begin_calls()[index].waits) {
    record_wait(index, context(), &parameters);
  }
  if (begin_calls()[index].takes) record_taking(&parameters);
  const CUresult result = call();
  record({index, began, context(), &parameters, result, nullptr});
  inside = false;
  return result;
}

// A host function belongs to the program, although the driver calls it. A graph
// may call it again, so what is needed for that stays.
struct HostFunction {
  CUhostFn function;
  void* data;
};

void call_from_outside(void* given) {
  const HostFunction host = *static_cast<const HostFunction*>(given);
  const bool before = inside;
  inside = false;
  host.function(host.data);
  inside = before;
}

template <class... Arguments>
void prepare(const Arguments&...) {}
void prepare(CUstream&, CUhostFn& function, void*& data) {
  if (!tracing() || function == nullptr) return;
  data = new HostFunction{function, data};
  function = call_from_outside;
}

}  // namespace
}  // namespace ipclab::trace

// Each function has its own C++ name, and in the library the driver's name,
// because some of the driver's names are macros in cuda.h.
#define DEFINE(symbol, declared)                      \
  extern "C" __attribute__((visibility("default")))   \
  CUresult traced_##symbol declared __asm__(#symbol); \
  CUresult traced_##symbol declared
#define REAL(symbol, declared)                                     \
  static const auto real = reinterpret_cast<CUresult(*) declared>( \
      ipclab::trace::real_function(#symbol));                      \
  if (real == nullptr) return CUDA_ERROR_NOT_SUPPORTED
#define WITHOUT_BRACKETS(...) __VA_ARGS__
#define WRAP(symbol, index, Parameters, declared, passed)           \
  DEFINE(symbol, declared) {                                        \
    using namespace ipclab::trace;                                  \
    REAL(symbol, declared);                                         \
    const Parameters parameters{WITHOUT_BRACKETS passed};           \
    prepare passed;                                                 \
    return pass_on(index, parameters, [&] { return real passed; }); \
  }
#include "wrappers.inc"
#undef WRAP

namespace {

// The function of this library that stands in front of the driver's `function`;
// `function` itself if there is none.
void* traced_form(void* function) {
  struct Pair {
    void* real;
    void* traced;
  };
#define WRAP(symbol, index, Parameters, declared, passed) \
  {ipclab::trace::real_function(#symbol),                 \
   reinterpret_cast<void*>(traced_##symbol)},
  static const Pair kPairs[] = {
#include "wrappers.inc"
  };
#undef WRAP
  for (const Pair& pair : kPairs) {
    if (pair.real == function) return pair.traced;
  }
  return function;
}

}  // namespace

// Gives the function of this library to a caller that finds a function by its
// name, for example to cudaGetDriverEntryPoint.
DEFINE(cuGetProcAddress,
       (const char* name, void** function, int version, cuuint64_t flags)) {
  REAL(cuGetProcAddress, (const char*, void**, int, cuuint64_t));
  const CUresult result = real(name, function, version, flags);
  if (result == CUDA_SUCCESS) *function = traced_form(*function);
  return result;
}

DEFINE(cuGetProcAddress_v2,
       (const char* name, void** function, int version, cuuint64_t flags,
        CUdriverProcAddressQueryResult* status)) {
  REAL(cuGetProcAddress_v2,
       (const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*));
  const CUresult result = real(name, function, version, flags, status);
  if (result == CUDA_SUCCESS) *function = traced_form(*function);
  return result;
}

namespace {

// The runtime's function; the runtime may have been loaded by dlopen.
void* runtime_function(const char* symbol) {
  if (void* next = ipclab::trace::real_dlsym(RTLD_NEXT, symbol)) return next;
  for (const char* name : {"libcudart.so.13", "libcudart.so.12"}) {
    void* const library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (library != nullptr) return ipclab::trace::real_dlsym(library, symbol);
  }
  return nullptr;
}

}  // namespace

// The runtime refuses a device that does not exist without a call of the
// driver.
extern "C" __attribute__((visibility("default"))) int traced_cudaSetDevice(
    int device) __asm__("cudaSetDevice");
int traced_cudaSetDevice(int device) {
  static const auto real =
      reinterpret_cast<int (*)(int)>(runtime_function("cudaSetDevice"));
  if (real == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const int result = real(device);
  if (result == CUDA_ERROR_INVALID_DEVICE) {
    ipclab::trace::record_refused("cudaSetDevice", result, device);
  }
  return result;
}

namespace {

// The function of this library with the name of a function of the driver, or
// of the runtime; null if there is none.
void* traced_name(const char* name) noexcept {
  struct Pair {
    const char* name;
    void* traced;
  };
#define WRAP(symbol, index, Parameters, declared, passed) \
  {#symbol, reinterpret_cast<void*>(traced_##symbol)},
  static const Pair kPairs[] = {
#include "wrappers.inc"
      {"cuGetProcAddress", reinterpret_cast<void*>(traced_cuGetProcAddress)},
      {"cuGetProcAddress_v2",
       reinterpret_cast<void*>(traced_cuGetProcAddress_v2)},
      {"cudaSetDevice", reinterpret_cast<void*>(traced_cudaSetDevice)},
  };
#undef WRAP
  for (const Pair& pair : kPairs) {
    if (std::strcmp(pair.name, name) == 0) return pair.traced;
  }
  return nullptr;
}

}  // namespace

// Gives the function of this library to a program that has loaded the driver by
// dlopen: a binding for Python, or a static runtime. RTLD_NEXT depends on the
// caller, which glibc finds by the return address. So the last line must be
// compiled to a jump (CMakeLists.txt has the options of this file).
extern "C" __attribute__((visibility("default"))) void* dlsym(
    void* library, const char* name) noexcept {
  using namespace ipclab::trace;
  if (library != RTLD_NEXT && name[0] == 'c' && name[1] == 'u') {
    if (void* const wrapper = traced_name(name)) {
      void* const found = real_dlsym(library, name);
      void* const real =
          name[2] == 'd' ? runtime_function(name) : real_function(name);
      return found != nullptr && found == real ? wrapper : found;
    }
  }
  return real_dlsym(library, name);
}
