// Ends what a program has left, so that its processes can run another one.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <vector>

#include "harness/explore/world/shadow.h"

namespace ipclab::explore {

/// For each object that is there, the step that ends it; memory comes first.
/// Not each of them is defined now.
std::vector<Step> ends_of(const Shadow& shadow);

/// Opens all gates, and ends all objects in a legal order. `make` applies a
/// step to the shadow, and makes it; it says whether the step was defined.
/// What cannot be ended stays: shadow.is_clean() says so.
void end_all(const Shadow& shadow,
             const std::function<bool(const Step&)>& make);

}  // namespace ipclab::explore
