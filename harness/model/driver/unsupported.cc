// SPDX-License-Identifier: Apache-2.0
// The driver API: functions that the reference model does not have (yet). Each
// function reports this at its first call. Every call returns "not supported".
// The list comes from cuda.h (unsupported.cmake). The model's own functions
// replace these weak functions. This file must not include the CUDA headers:
// the arguments do not matter, so all functions are declared without arguments.
#include <atomic>
#include <string>

#include "core/log.h"
#include "newer_names.h"

#define IPCLAB_UNSUPPORTED(name)                                       \
  extern "C" __attribute__((weak, visibility("default"))) int name() { \
    static std::atomic<bool> said{false};                              \
    if (!said.exchange(true)) {                                        \
      ipclab::model::say(#name " is not part of the reference model"); \
    }                                                                  \
    return 801; /* CUDA_ERROR_NOT_SUPPORTED */                         \
  }

#include "driver_unsupported.inc"
