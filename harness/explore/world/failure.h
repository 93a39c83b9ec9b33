// What a driver did that the documentation does not allow.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "harness/explore/world/step.h"

namespace ipclab::explore {

struct Failure {
  size_t index = 0;    ///< of the step in its program
  Step step;           ///< whose answer was wrong
  std::string row;     ///< whose promise was broken
  std::string check;   ///< code, bytes, value, address, last error, returned
                       ///< early, hang, died, leak
  std::string seen;    ///< the value, without numbers that vary
  std::string wanted;  ///< what the row allows

  /// Do two failures look like the same fault?
  bool same_as(const Failure& other) const {
    return check == other.check && row == other.row &&
           (check == "leak" || step.op == other.step.op);
  }
};

}  // namespace ipclab::explore
