// Programs one after the other in the same processes, as one program.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "harness/explore/world/program.h"

namespace ipclab::explore {

/// The steps of all programs in their order, with new numbers for objects,
/// gates and groups, so that the parts do not meet.
Program joined(const std::vector<Program>& programs);

}  // namespace ipclab::explore
