// Answers that differ from the usual ones and that no documented sentence
// forbids: no test may fail.
//
// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

namespace ipclab::faults {

void add_allowed(List&) {}

}  // namespace ipclab::faults
