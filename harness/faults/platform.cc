// Bugs of attributes, contexts, errors and peers.
//
// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

namespace ipclab::faults {

void add_platform(List&) {}

}  // namespace ipclab::faults
