// What the driver has accepted from this process so far. Call::proceed() keeps
// it; it owns nothing and tells other processes nothing that no fault needs.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "harness/faults/engine/call.h"

namespace ipclab::faults {

/// Updates all facts after a call that the driver has accepted.
void note(Call& call);
/// Do facts depend on calls of this function?
bool is_noted(const Function& function);

}  // namespace ipclab::faults
