// SPDX-License-Identifier: Apache-2.0
// The tests of the interpreter for x86-64-v3 are skipped if this processor
// cannot run it.
#include <unistd.h>

#include <cstdio>

#include "processor.h"

namespace {

[[gnu::constructor]] void skip_on_older_processors() {
  if (ipclab::ptx::testing::runs_x86_64_v3()) return;
  std::puts("SKIP: this processor is older than x86-64-v3");
  std::fflush(stdout);
  _exit(77);
}

}  // namespace
