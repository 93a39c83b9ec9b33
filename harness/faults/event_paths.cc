// More bugs of legacy events: records and waits beside other work.
//
// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

namespace ipclab::faults {

void add_event_paths(List& list) { (void)list; }

}  // namespace ipclab::faults
