// SPDX-License-Identifier: Apache-2.0
// The table of choices. choices.json says which rows each choice concerns.
#include "core/choice.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "core/log.h"

namespace ipclab::model {
namespace {

struct Entry {
  Choice choice;
  const char* name;
  const char* reason;  // why no library in front of a driver can do the same
};

constexpr Entry kChoices[] = {
    {Choice::kOtherAddress, "ok-different-va",
     "only the driver chooses the address at which it maps an import"},
    {Choice::kOnlyTheAllocation, "ok-isolated-suballoc",
     "only the GPU can keep a kernel from a part of a block"},
    {Choice::kPoolsRelease, "ok-trim-releases",
     "only the driver can give back physical memory of a pool"},
    {Choice::kCheckpointsShared, "ok-checkpoint-shared",
     "only the driver can checkpoint a process"},
    {Choice::kRestoresNoImports, "ok-checkpoint-lost",
     "only the driver can checkpoint a process"},
};

const char* wanted_name() {
  const char* name = std::getenv("IPCLAB_CHOICE");
  return name != nullptr && *name != '\0' ? name : nullptr;
}

const Entry* wanted_entry() {
  const char* name = wanted_name();
  if (name == nullptr) return nullptr;
  for (const Entry& entry : kChoices) {
    if (std::strcmp(entry.name, name) == 0) return &entry;
  }
  return nullptr;
}

const Entry* const wanted = wanted_entry();

}  // namespace

bool chosen(Choice choice) {
  return wanted != nullptr && wanted->choice == choice;
}

void check_choice() {
  if (wanted != nullptr || wanted_name() == nullptr) return;
  std::string known;
  for (const Entry& entry : kChoices) {
    known += std::string(known.empty() ? "" : ", ") + entry.name;
  }
  die(std::string("IPCLAB_CHOICE=") + wanted_name() +
      " is not a choice of the model: use " + known);
}

}  // namespace ipclab::model
