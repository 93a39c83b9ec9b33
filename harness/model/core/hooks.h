// SPDX-License-Identifier: Apache-2.0
// The behaviours that only the model can change, to prove the suite: what a
// kernel reaches, where memory lies, what the simulated GPU does with its
// bytes. Everything else is broken from outside, by harness/faults.
#pragma once

namespace ipclab::model {

/// One hook is one line of the table in hooks.cc and one question in the code.
enum class Hook {
  kOtherAddress,
  kOnlyTheAllocation,
  kPoolsRelease,
};

/// True if IPCLAB_MUTANT chose this hook when the library was loaded.
bool hooked(Hook hook);

/// Aborts with one line if IPCLAB_MUTANT is not the name of a hook: a typo must
/// not look like "nothing noticed".
void check_hook();

}  // namespace ipclab::model
