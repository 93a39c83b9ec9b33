// SPDX-License-Identifier: Apache-2.0
// Messages of the model to a person: one line on standard error.
#include "core/log.h"

#include <unistd.h>

#include <cstdlib>

namespace ipclab::model {

void say(const std::string& text) {
  const std::string line =
      "ipclab model [" + std::to_string(getpid()) + "]: " + text + "\n";
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

void die(const std::string& text) {
  say(text);
  std::abort();
}

}  // namespace ipclab::model
