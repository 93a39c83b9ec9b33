// SPDX-License-Identifier: Apache-2.0
// Says what code the processor of this machine can run.
#pragma once

namespace ipclab::ptx::testing {

/// Can this processor run the interpreter for x86-64-v3?
inline bool runs_x86_64_v3() {
#if !defined __x86_64__
  return false;
#elif defined __clang__
  // Older versions of Clang do not know the name of this level. Processors with
  // these three features also have its other features.
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("fma");
#else
  return __builtin_cpu_supports("x86-64-v3");
#endif
}

}  // namespace ipclab::ptx::testing
