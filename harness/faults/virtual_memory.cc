// Bugs of virtual memory management and of its shareable handles.
//
// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

namespace ipclab::faults {

void add_virtual_memory(List&) {}

}  // namespace ipclab::faults
