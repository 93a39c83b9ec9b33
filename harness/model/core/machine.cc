// SPDX-License-Identifier: Apache-2.0
// The machine as this process sees it.
#include "core/machine.h"

namespace ipclab::model {
namespace {

struct OnlyOne {
  std::mutex mutex;
  Machine machine;
};

// Never destroyed: streams work until the process ends.
OnlyOne& only_one() {
  static auto& only = *new OnlyOne;
  return only;
}

}  // namespace

Locked::Locked() : lock_(only_one().mutex), machine_(&only_one().machine) {}

}  // namespace ipclab::model
