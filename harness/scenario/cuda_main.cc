// For programs of scenarios that test CUDA.
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/scenario/scenario.h"

namespace ipclab {
void print_probe();
}

int main(int argc, char** argv) {
  return ipclab::scenario_main(argc, argv, ipclab::print_probe);
}
