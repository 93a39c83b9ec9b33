// Bugs of the stream-ordered allocator.
//
// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

namespace ipclab::faults {

void add_allocator(List&) {}

}  // namespace ipclab::faults
