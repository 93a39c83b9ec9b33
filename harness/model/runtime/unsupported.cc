// SPDX-License-Identifier: Apache-2.0
// The runtime API: functions that the reference model does not have (yet). Each
// function reports this at its first call. Every call returns "not supported",
// or "call requires newer driver" if the runtime is newer than the driver. The
// list comes from cuda_runtime_api.h (unsupported.cmake), as the list in
// driver/unsupported.cc comes from cuda.h.
#include <unistd.h>

#include <atomic>
#include <string>

extern "C" int ipclab_runtime_refuse(const char* name, std::atomic<bool>* said);

#define IPCLAB_UNSUPPORTED(name)                                       \
  extern "C" __attribute__((weak, visibility("default"))) int name() { \
    static std::atomic<bool> said{false};                              \
    return ipclab_runtime_refuse(#name, &said);                        \
  }

#if IPCLAB_CUDART == 12
#include "runtime12_unsupported.inc"
#else
#include "runtime_unsupported.inc"
#endif
