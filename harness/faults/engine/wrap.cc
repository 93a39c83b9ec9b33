// The functions of calls.inc that programs call. Each function runs the chosen
// fault around the driver's own function.
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/engine/call.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

using ipclab::faults::Face;
using ipclab::faults::Function;
using ipclab::faults::Parameter;
using ipclab::faults::Result;
using ipclab::faults::Wrapper;

// Defines the exported function `symbol` with the types of the declared
// function `like`, and its Function. init_priority creates each Function before
// fault.cc looks for the chosen fault's functions.
#define P(like, index) Parameter<decltype(like), index> a##index
#define EXPORT_0(symbol, like, text, roles, canonical, face)             \
  EXPORTED Result<decltype(like)> symbol();                              \
  namespace {                                                            \
  __attribute__((init_priority(1000)))                                   \
  Function slot_##symbol(text, #symbol, canonical, face, roles,          \
                         reinterpret_cast<void*>(&symbol));              \
  }                                                                      \
  EXPORTED Result<decltype(like)> symbol() {                             \
    return Wrapper<decltype(like)>::around(slot_##symbol,                \
                                           __builtin_return_address(0)); \
  }

#define EXPORT_1(symbol, like, text, roles, canonical, face)                 \
  EXPORTED Result<decltype(like)> symbol(P(like, 0));                        \
  namespace {                                                                \
  __attribute__((init_priority(1000)))                                       \
  Function slot_##symbol(text, #symbol, canonical, face, roles,              \
                         reinterpret_cast<void*>(&symbol));                  \
  }                                                                          \
  EXPORTED Result<decltype(like)> symbol(P(like, 0)) {                       \
    return Wrapper<decltype(like)>::around(slot_##symbol,                    \
                                           __builtin_return_address(0), a0); \
  }

#define EXPORT_2(symbol, like, text, roles, canonical, face)       \
  EXPORTED Result<decltype(like)> symbol(P(like, 0), P(like, 1));  \
  namespace {                                                      \
  __attribute__((init_priority(1000)))                             \
  Function slot_##symbol(text, #symbol, canonical, face, roles,    \
                         reinterpret_cast<void*>(&symbol));        \
  }                                                                \
  EXPORTED Result<decltype(like)> symbol(P(like, 0), P(like, 1)) { \
    return Wrapper<decltype(like)>::around(                        \
        slot_##symbol, __builtin_return_address(0), a0, a1);       \
  }

#define EXPORT_3(symbol, like, text, roles, canonical, face)                   \
  EXPORTED Result<decltype(like)> symbol(P(like, 0), P(like, 1), P(like, 2));  \
  namespace {                                                                  \
  __attribute__((init_priority(1000)))                                         \
  Function slot_##symbol(text, #symbol, canonical, face, roles,                \
                         reinterpret_cast<void*>(&symbol));                    \
  }                                                                            \
  EXPORTED Result<decltype(like)> symbol(P(like, 0), P(like, 1), P(like, 2)) { \
    return Wrapper<decltype(like)>::around(                                    \
        slot_##symbol, __builtin_return_address(0), a0, a1, a2);               \
  }

#define EXPORT_4(symbol, like, text, roles, canonical, face)                 \
  EXPORTED Result<decltype(like)> symbol(P(like, 0), P(like, 1), P(like, 2), \
                                         P(like, 3));                        \
  namespace {                                                                \
  __attribute__((init_priority(1000)))                                       \
  Function slot_##symbol(text, #symbol, canonical, face, roles,              \
                         reinterpret_cast<void*>(&symbol));                  \
  }                                                                          \
  EXPORTED Result<decltype(like)> symbol(P(like, 0), P(like, 1), P(like, 2), \
                                         P(like, 3)) {                       \
    return Wrapper<decltype(like)>::around(                                  \
        slot_##symbol, __builtin_return_address(0), a0, a1, a2, a3);         \
  }

#define EXPORT_5(symbol, like, text, roles, canonical, face)                 \
  EXPORTED Result<decltype(like)> symbol(P(like, 0), P(like, 1), P(like, 2), \
                                         P(like, 3), P(like, 4));            \
  namespace {                                                                \
  __attribute__((init_priority(1000)))                                       \
  Function slot_##symbol(text, #symbol, canonical, face, roles,              \
                         reinterpret_cast<void*>(&symbol));                  \
  }                                                                          \
  EXPORTED Result<decltype(like)> symbol(P(like, 0), P(like, 1), P(like, 2), \
                                         P(like, 3), P(like, 4)) {           \
    return Wrapper<decltype(like)>::around(                                  \
        slot_##symbol, __builtin_return_address(0), a0, a1, a2, a3, a4);     \
  }

#define EXPORT_6(symbol, like, text, roles, canonical, face)                   \
  EXPORTED Result<decltype(like)> symbol(P(like, 0), P(like, 1), P(like, 2),   \
                                         P(like, 3), P(like, 4), P(like, 5));  \
  namespace {                                                                  \
  __attribute__((init_priority(1000)))                                         \
  Function slot_##symbol(text, #symbol, canonical, face, roles,                \
                         reinterpret_cast<void*>(&symbol));                    \
  }                                                                            \
  EXPORTED Result<decltype(like)> symbol(P(like, 0), P(like, 1), P(like, 2),   \
                                         P(like, 3), P(like, 4), P(like, 5)) { \
    return Wrapper<decltype(like)>::around(                                    \
        slot_##symbol, __builtin_return_address(0), a0, a1, a2, a3, a4, a5);   \
  }

#define EXPORT_7(symbol, like, text, roles, canonical, face)                 \
  EXPORTED Result<decltype(like)> symbol(P(like, 0), P(like, 1), P(like, 2), \
                                         P(like, 3), P(like, 4), P(like, 5), \
                                         P(like, 6));                        \
  namespace {                                                                \
  __attribute__((init_priority(1000)))                                       \
  Function slot_##symbol(text, #symbol, canonical, face, roles,              \
                         reinterpret_cast<void*>(&symbol));                  \
  }                                                                          \
  EXPORTED Result<decltype(like)> symbol(P(like, 0), P(like, 1), P(like, 2), \
                                         P(like, 3), P(like, 4), P(like, 5), \
                                         P(like, 6)) {                       \
    return Wrapper<decltype(like)>::around(slot_##symbol,                    \
                                           __builtin_return_address(0), a0,  \
                                           a1, a2, a3, a4, a5, a6);          \
  }

#define EXPORT_8(symbol, like, text, roles, canonical, face)                 \
  EXPORTED Result<decltype(like)> symbol(P(like, 0), P(like, 1), P(like, 2), \
                                         P(like, 3), P(like, 4), P(like, 5), \
                                         P(like, 6), P(like, 7));            \
  namespace {                                                                \
  __attribute__((init_priority(1000)))                                       \
  Function slot_##symbol(text, #symbol, canonical, face, roles,              \
                         reinterpret_cast<void*>(&symbol));                  \
  }                                                                          \
  EXPORTED Result<decltype(like)> symbol(P(like, 0), P(like, 1), P(like, 2), \
                                         P(like, 3), P(like, 4), P(like, 5), \
                                         P(like, 6), P(like, 7)) {           \
    return Wrapper<decltype(like)>::around(slot_##symbol,                    \
                                           __builtin_return_address(0), a0,  \
                                           a1, a2, a3, a4, a5, a6, a7);      \
  }

#define EXPORT_9(symbol, like, text, roles, canonical, face)                   \
  EXPORTED Result<decltype(like)> symbol(P(like, 0), P(like, 1), P(like, 2),   \
                                         P(like, 3), P(like, 4), P(like, 5),   \
                                         P(like, 6), P(like, 7), P(like, 8));  \
  namespace {                                                                  \
  __attribute__((init_priority(1000)))                                         \
  Function slot_##symbol(text, #symbol, canonical, face, roles,                \
                         reinterpret_cast<void*>(&symbol));                    \
  }                                                                            \
  EXPORTED Result<decltype(like)> symbol(P(like, 0), P(like, 1), P(like, 2),   \
                                         P(like, 3), P(like, 4), P(like, 5),   \
                                         P(like, 6), P(like, 7), P(like, 8)) { \
    return Wrapper<decltype(like)>::around(slot_##symbol,                      \
                                           __builtin_return_address(0), a0,    \
                                           a1, a2, a3, a4, a5, a6, a7, a8);    \
  }

#define EXPORT(count, symbol, like, text, roles, canonical, face) \
  EXPORT_##count(symbol, like, text, roles, canonical, face)

#define RUNTIME(count, name, roles) \
  EXPORT(count, name, name, #name, roles, #name, Face::kRuntime)
#define RUNTIME_PTSZ(count, name, roles) \
  RUNTIME(count, name, roles)            \
  EXPORT(count, name##_ptsz, name, #name, roles, #name, Face::kRuntime)
#define RUNTIME_PTDS(count, name, roles) \
  RUNTIME(count, name, roles)            \
  EXPORT(count, name##_ptds, name, #name, roles, #name, Face::kRuntime)
#define LAUNCH(count, name, roles, canonical)                         \
  EXPORT(count, name, name, #name, roles, #canonical, Face::kRuntime) \
  EXPORT(count, name##_ptsz, name, #name, roles, #canonical, Face::kRuntime)
// The headers define many names of the driver API as macros for the newest
// version: `name` becomes cuMemAlloc_v2, #name stays cuMemAlloc.
#define DRIVER(count, name, roles, canonical) \
  EXPORT(count, name, name, #name, roles, #canonical, Face::kDriver)

#define SYMBOL(count, name, roles) \
  EXPORT(count, name, name, "symbol " #name, roles, #name, Face::kDriver)

// The function that <<<>>> calls in programs of CUDA 13. Its declaration is in
// a header for nvcc only.
#if CUDART_VERSION < 12010
using cudaKernel_t = struct CUkern_st*;
#endif
extern "C" cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**,
                                          size_t, cudaStream_t);

#include "harness/faults/engine/calls.inc"
