// Bugs of legacy event handles.
//
// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

namespace ipclab::faults {

void add_legacy_events(List&) {}

}  // namespace ipclab::faults
