// For programs of scenarios that test CUDA.
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/scenario/scenario.h"

namespace ipclab {
void print_probe();
bool cuda_is_as_new();
}  // namespace ipclab

int main(int argc, char** argv) {
  return ipclab::scenario_main(argc, argv, ipclab::print_probe,
                               ipclab::cuda_is_as_new);
}
