// SPDX-License-Identifier: Apache-2.0
// What the files of the driver API have in common.
#pragma once

#include <cuda.h>

#include "core/device.h"

/// The functions of cuda.h leave the library; nothing else does.
#define IPCLAB_DRIVER_API extern "C" __attribute__((visibility("default")))

namespace ipclab::model {

inline bool is_device(CUdevice device) {
  return device >= 0 && device < static_cast<int>(devices().size());
}

}  // namespace ipclab::model
