// SPDX-License-Identifier: Apache-2.0
// Mutants: IPCLAB_MUTANT=<name> takes one documented behaviour away from the
// model, at one place, to prove that the suite notices. mutants.json is the
// list.
#pragma once

#include <cstring>

namespace ipclab::model {

/// The value of IPCLAB_MUTANT, or null. Set once while the library is loaded.
extern const char* const active_mutant;

/// True if the model has to misbehave in the way called `name`.
inline bool mutant(const char* name) {
  return active_mutant != nullptr && std::strcmp(active_mutant, name) == 0;
}

/// Aborts with one line if IPCLAB_MUTANT names a mutant that mutants.json does
/// not list: a typo must not look like "not detected".
void check_mutant();

}  // namespace ipclab::model
