// SPDX-License-Identifier: Apache-2.0
// The callers of a call, recorded if IPCLAB_TRACE_STACKS is set.
#pragma once

namespace ipclab::trace {

/// The number of the stack of this thread, from the caller of the driver's
/// function on; 0 if stacks are not recorded. The first call with a stack
/// writes its addresses, and what the loader knows about each address.
int stack_number();

}  // namespace ipclab::trace
