// SPDX-License-Identifier: Apache-2.0
// A block of another process that was opened by a legacy handle.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>

#include "core/block.h"

namespace ipclab::model {

/// One block of another process, mapped for one context. The memory of several
/// handles may lie in it.
struct Import {
  uint32_t pid = 0;
  uint64_t origin = 0;  ///< id of the exporter's block
  CUcontext context = nullptr;
  std::shared_ptr<Block> block;
  uint64_t address = 0;
  uint64_t size = 0;              ///< bytes mapped
  std::map<uint64_t, int> opens;  ///< offset in the block -> reference count
};

}  // namespace ipclab::model
