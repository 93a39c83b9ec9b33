// SPDX-License-Identifier: Apache-2.0
// The table of hooks. mutants.json says which rows each concerns.
#include "core/hooks.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "core/log.h"

namespace ipclab::model {
namespace {

struct Entry {
  Hook hook;
  const char* name;
  const char* reason;  // why this cannot be done in front of a driver
};

constexpr Entry kHooks[] = {
    {Hook::kOtherAddress, "ok-different-va",
     "only the driver chooses the address at which it maps an import"},
    {Hook::kOnlyTheAllocation, "ok-isolated-suballoc",
     "only the GPU can keep a kernel from a part of a block"},
    {Hook::kPoolsRelease, "ok-trim-releases",
     "only the driver can give physical memory of a pool back"},
};

const Entry* chosen_entry() {
  const char* name = std::getenv("IPCLAB_MUTANT");
  if (name == nullptr || *name == '\0') return nullptr;
  for (const Entry& entry : kHooks) {
    if (std::strcmp(entry.name, name) == 0) return &entry;
  }
  return nullptr;
}

const Entry* const chosen = chosen_entry();

}  // namespace

bool hooked(Hook hook) { return chosen != nullptr && chosen->hook == hook; }

void check_hook() {
  const char* name = std::getenv("IPCLAB_MUTANT");
  if (chosen != nullptr || name == nullptr || *name == '\0') return;
  std::string known;
  for (const Entry& entry : kHooks) {
    known += std::string(known.empty() ? "" : ", ") + entry.name;
  }
  die(std::string("IPCLAB_MUTANT=") + name + " is no hook of the model: use " +
      known + "; other faults are chosen with IPCLAB_FAULT");
}

}  // namespace ipclab::model
