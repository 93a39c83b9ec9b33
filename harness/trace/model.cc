// SPDX-License-Identifier: Apache-2.0
// The recorder on the reference model: a library that is loaded before the
// model (LD_PRELOAD), has the driver's functions and passes every call on. This
// does not work with NVIDIA's own runtime, which finds the driver in another
// way. With NVIDIA's runtime the recorder uses CUPTI.
#include <cuda.h>
#include <dlfcn.h>
#include <generated_cuda_meta.h>

#include <iterator>

#include "log.h"
#include "recorder.h"

namespace ipclab::trace {
namespace {

struct NoParameters {};

// Calls that the driver makes itself do not belong to the program.
thread_local bool inside = false;

// The driver's function: the next function of that name, or the function in
// libcuda.so.1 if the program has opened that library itself.
void* real_function(const char* symbol) {
  if (void* next = dlsym(RTLD_NEXT, symbol)) return next;
  static void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  return library == nullptr ? nullptr : dlsym(library, symbol);
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
  if (begin_calls()[index].waits) record_wait(index, context());
  const CUresult result = call();
  record({index, began, context(), &parameters, result, nullptr});
  inside = false;
  return result;
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
