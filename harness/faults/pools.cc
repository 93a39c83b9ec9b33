// Bugs of IPC pools.
//
// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

namespace ipclab::faults {

void add_pools(List&) {}

}  // namespace ipclab::faults
