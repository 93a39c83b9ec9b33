// dlsym, cuGetProcAddress and cudaGetDriverEntryPoint…: a program that asks for
// a function of calls.inc by its name gets the wrapper.
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/engine/names.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "harness/faults/engine/call.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {
void* wrapper_of(void* library, const char* name);
}

namespace ipclab::faults {
namespace {

// The wrapper of an exported name: cuMemAlloc_v2, cudaMemcpyAsync_ptsz. Null if
// calls.inc does not have it.
Function* of_symbol(const char* symbol) {
  for (Function* function : functions())
    if (std::strcmp(function->symbol, symbol) == 0) return function;
  return nullptr;
}

// The wrapper of a driver function by its name without version; null if
// calls.inc does not have it.
Function* of_name(const char* name) {
  for (Function* function : functions())
    if (function->face == Face::kDriver &&
        std::strcmp(function->name, name) == 0)
      return function;
  return nullptr;
}

// The batches of copies have other arguments since CUDA 13.0. The forms of
// before have names of their own in calls.inc.
const char* older_form(const char* name, int version) {
  if (version >= 13000) return nullptr;
  if (std::strcmp(name, "cuMemcpyBatchAsync") == 0)
    return "cuMemcpyBatchAsync_v1";
  if (std::strcmp(name, "cuMemcpy3DBatchAsync") == 0)
    return "cuMemcpy3DBatchAsync_v1";
  return nullptr;
}

// Replaces the driver's function in `entry` by the wrapper. A version of an
// older major release may have other arguments, so this function leaves such a
// version in `entry`.
void hand_out(const char* name, int version, void** entry) {
  if (entry == nullptr || *entry == nullptr) return;
  if (const char* const form = older_form(name, version))
    name = form;
  else if (version / 1000 < CUDA_VERSION / 1000)
    return;
  if (std::strcmp(name, "cuGetProcAddress") == 0) {
    *entry = reinterpret_cast<void*>(&cuGetProcAddress_v2);
    return;
  }
  Function* const function = of_name(name);
  if (function == nullptr || *entry == function->wrapper) return;
  function->real = *entry;
  *entry = function->wrapper;
}

const char* library_of(Face face) {
  if (face == Face::kDriver) return "libcuda.so.1";
  return CUDART_VERSION < 13000 ? "libcudart.so.12" : "libcudart.so.13";
}

}  // namespace

void* real_dlsym(void* library, const char* name) noexcept {
  using Dlsym = void*(void*, const char*) noexcept;
  static const auto dlsym_of_libc = [] {
    for (const char* version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"})
      if (void* found = dlvsym(RTLD_NEXT, "dlsym", version))
        return reinterpret_cast<Dlsym*>(found);
    return static_cast<Dlsym*>(nullptr);
  }();
  return dlsym_of_libc(library, name);
}

namespace {

// The function of that name in the next library; null if there is none.
void* next(Face face, const char* symbol) {
  if (void* const found = real_dlsym(RTLD_NEXT, symbol)) return found;
  // Perhaps the program has loaded the library by dlopen, with local names.
  void* const library = dlopen(library_of(face), RTLD_LAZY | RTLD_NOLOAD);
  return library == nullptr ? nullptr : real_dlsym(library, symbol);
}

}  // namespace

void* resolve(Function& function) {
  if (void* const known = function.real) return known;
  void* const found = next(function.face, function.symbol);
  if (found != nullptr) function.real = found;
  return found;
}

namespace {

bool lies_in_cuda(const void* caller) {
  Dl_info info;
  if (dladdr(caller, &info) == 0 || info.dli_fname == nullptr) return false;
  const char* const slash = std::strrchr(info.dli_fname, '/');
  const char* const file = slash != nullptr ? slash + 1 : info.dli_fname;
  return std::strncmp(file, "libcudart.so", 12) == 0 ||
         std::strncmp(file, "libcuda.so", 10) == 0;
}

}  // namespace

// dladdr searches a whole table of symbols, and a program calls from few
// places. So each entry keeps one caller and, in the lowest bit, the answer.
bool is_of_cuda(const void* caller) {
  static std::array<std::atomic<uint64_t>, 256> answers;
  const uint64_t key = reinterpret_cast<uint64_t>(caller) << 1;
  auto& entry = answers[(key ^ key >> 8 ^ key >> 16) % answers.size()];
  const uint64_t kept = entry.load(std::memory_order_relaxed);
  if (key != 0 && (kept & ~uint64_t{1}) == key) return (kept & 1) != 0;
  const bool answer = lies_in_cuda(caller);
  entry.store(key | (answer ? 1 : 0), std::memory_order_relaxed);
  return answer;
}

void* resolve_driver(const char* name) {
  using ByVersion =
      cudaError_t(const char*, void**, unsigned, unsigned long long,
                  cudaDriverEntryPointQueryResult*);
  static const auto entry = reinterpret_cast<ByVersion*>(
      next(Face::kRuntime, "cudaGetDriverEntryPointByVersion"));
  // A runtime before CUDA 12.5 does not have that function.
  static const auto get = reinterpret_cast<decltype(&cuGetProcAddress_v2)>(
      next(Face::kDriver, "cuGetProcAddress_v2"));
  constexpr int kNewest = 13050;  // for harness/toolkit/newer.h
  for (const int version : {int{CUDART_VERSION}, kNewest}) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    if (entry != nullptr)
      entry(name, &found, static_cast<unsigned>(version), cudaEnableDefault,
            &result);
    else if (get != nullptr)
      get(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr);
    if (found != nullptr) return found;
  }
  return nullptr;
}

void* resolve_runtime(const char* name) { return next(Face::kRuntime, name); }

}  // namespace ipclab::faults

using namespace ipclab::faults;

// RTLD_NEXT depends on the caller's library, which glibc finds by the return
// address. So the last line must be compiled to a jump. This needs the options
// of this file in CMakeLists.txt, and that no function called last can throw.
EXPORTED void* dlsym(void* library, const char* name) noexcept {
  if (library != RTLD_NEXT && name[0] == 'c' && name[1] == 'u' &&
      !is_of_cuda(__builtin_return_address(0))) {
    if (void* const wrapper = wrapper_of(library, name)) return wrapper;
  }
  return real_dlsym(library, name);
}

#define ENTRY_POINT(symbol)                                                    \
  EXPORTED cudaError_t symbol(const char* name, void** entry,                  \
                              unsigned version, unsigned long long flags,      \
                              cudaDriverEntryPointQueryResult* result) {       \
    static const auto real =                                                   \
        reinterpret_cast<decltype(&symbol)>(next(Face::kRuntime, #symbol));    \
    if (real == nullptr) return cudaErrorSymbolNotFound;                       \
    const cudaError_t code = real(name, entry, version, flags, result);        \
    if (code == cudaSuccess) hand_out(name, static_cast<int>(version), entry); \
    return code;                                                               \
  }
ENTRY_POINT(cudaGetDriverEntryPointByVersion)
ENTRY_POINT(cudaGetDriverEntryPointByVersion_ptsz)

#define ENTRY_POINT_OF_TODAY(symbol)                                        \
  EXPORTED cudaError_t symbol(const char* name, void** entry,               \
                              unsigned long long flags,                     \
                              cudaDriverEntryPointQueryResult* result) {    \
    static const auto real =                                                \
        reinterpret_cast<decltype(&symbol)>(next(Face::kRuntime, #symbol)); \
    if (real == nullptr) return cudaErrorSymbolNotFound;                    \
    const cudaError_t code = real(name, entry, flags, result);              \
    if (code == cudaSuccess) hand_out(name, CUDA_VERSION, entry);           \
    return code;                                                            \
  }
ENTRY_POINT_OF_TODAY(cudaGetDriverEntryPoint)
ENTRY_POINT_OF_TODAY(cudaGetDriverEntryPoint_ptsz)

EXPORTED CUresult cuGetProcAddress_v2(const char* name, void** entry,
                                      int version, cuuint64_t flags,
                                      CUdriverProcAddressQueryResult* result) {
  static const auto real = reinterpret_cast<decltype(&cuGetProcAddress_v2)>(
      next(Face::kDriver, "cuGetProcAddress_v2"));
  if (real == nullptr) return CUDA_ERROR_NOT_FOUND;
  const CUresult code = real(name, entry, version, flags, result);
  if (code == CUDA_SUCCESS && !is_of_cuda(__builtin_return_address(0)))
    hand_out(name, version, entry);
  return code;
}

namespace {

// The wrapper for a program that asks a library for `name`; null if there is
// none.
void* wrapper_of(void* library, const char* name) {
  if (std::strcmp(name, "cuGetProcAddress_v2") == 0 &&
      real_dlsym(library, name) != nullptr)
    return reinterpret_cast<void*>(&cuGetProcAddress_v2);
  Function* const function = of_symbol(name);
  if (function == nullptr) return nullptr;
  void* const real = real_dlsym(library, name);
  if (real == nullptr) return nullptr;
  if (real != function->wrapper) function->real = real;
  return function->wrapper;
}

}  // namespace
