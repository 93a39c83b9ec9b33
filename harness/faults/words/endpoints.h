// Words that faults of several folders use: endpoints.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "harness/faults/words/descriptor.h"
#include "harness/faults/words/lives.h"
#include "harness/faults/world/chunks.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {

/// Nothing is done, and the call returns success.
inline int nothing_done(Call& call) {
  call.fired();
  return kSuccess;
}

}  // namespace ipclab::faults
