// SPDX-License-Identifier: Apache-2.0
// The driver API: functions that came after CUDA 12.0. If the simulated driver
// is older than a function, the function refuses without any effect. A real
// driver does not have the symbol. The answer is the answer of the runtime in
// this case; the driver API has no such code.
//
// Each function begins here with a comparison of the versions and continues in
// the model's own function, which has another name (newer_names.h).
#include "core/profile.h"

extern "C" {
__attribute__((visibility("hidden"))) int ipclab_driver_version = 0;
__attribute__((visibility("hidden"))) int ipclab_absent() {
  return 36;  // cudaErrorCallRequiresNewerDriver
}
}

namespace {
__attribute__((constructor)) void read_version() {
  ipclab_driver_version = ipclab::model::profile().driver_version;
}
}  // namespace

#if defined(__x86_64__)
#define IPCLAB_CONTINUE(name, version) \
  "cmpl $" #version                    \
  ", ipclab_driver_version(%rip)\n"    \
  "jl ipclab_absent\n"                 \
  "jmp ipclab_" #name "@PLT\n"
#elif defined(__aarch64__)
#define IPCLAB_CONTINUE(name, version)            \
  "adrp x16, ipclab_driver_version\n"             \
  "ldr w16, [x16, :lo12:ipclab_driver_version]\n" \
  "mov w17, #" #version                           \
  "\n"                                            \
  "cmp w16, w17\n"                                \
  "b.ge 1f\n"                                     \
  "b ipclab_absent\n"                             \
  "1: b ipclab_" #name "\n"
#else
#error "no instructions are known for this processor"
#endif

#define IPCLAB_NEWER(name, version)                                     \
  __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name \
          ":\n" IPCLAB_CONTINUE(name, version) ".size " #name ", .-" #name);

#include "newer_functions.inc"
