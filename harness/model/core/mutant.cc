// SPDX-License-Identifier: Apache-2.0
// Mutants: which one is active, and which exist (mutant_names.inc is generated
// from mutants.json).
#include "core/mutant.h"

#include <cstdlib>

#include "core/log.h"

namespace ipclab::model {
namespace {

constexpr const char* kNames[] = {
#include "mutant_names.inc"
};

const char* from_environment() {
  const char* name = std::getenv("IPCLAB_MUTANT");
  return name != nullptr && *name != '\0' ? name : nullptr;
}

}  // namespace

const char* const active_mutant = from_environment();

void check_mutant() {
  if (active_mutant == nullptr) return;
  for (const char* name : kNames) {
    if (mutant(name)) return;
  }
  die(std::string("IPCLAB_MUTANT=") + active_mutant +
      " names no mutant: harness/model/mutants.json has the list");
}

}  // namespace ipclab::model
