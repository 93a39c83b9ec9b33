// Bugs of legacy memory handles.
//
// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

namespace ipclab::faults {

void add_legacy_memory(List&) {}

}  // namespace ipclab::faults
