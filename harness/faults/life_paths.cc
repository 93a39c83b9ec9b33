// More bugs of what ends or begins again: processes, contexts, resets,
// namespaces, MPS.
//
// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

namespace ipclab::faults {

void add_life_paths(List& list) { (void)list; }

}  // namespace ipclab::faults
