// For programs of scenarios that do not use CUDA.
//
// SPDX-License-Identifier: Apache-2.0
#include "scenario.h"

int main(int argc, char** argv) {
  return ipclab::scenario_main(argc, argv, nullptr, nullptr);
}
