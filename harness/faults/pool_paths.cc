// More bugs of pools: streams, threads, exporters, GPUs.
//
// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

namespace ipclab::faults {

void add_pool_paths(List& list) { (void)list; }

}  // namespace ipclab::faults
