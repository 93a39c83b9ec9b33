// More bugs of memory of cuMemCreate, words, fabric and endpoints.
//
// SPDX-License-Identifier: Apache-2.0
#include "fault.h"

namespace ipclab::faults {

void add_chunk_paths(List& list) { (void)list; }

}  // namespace ipclab::faults
