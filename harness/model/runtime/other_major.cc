// SPDX-License-Identifier: Apache-2.0
// libcudart.so.12 of the model. A program that was built for CUDA 12 finds this
// library, and ends with a line that says what to do.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

// The loader looks for the version node of the library. A version node needs a
// function.
extern "C" __attribute__((visibility("default"))) void cudaWrongMajor() {}

namespace {
__attribute__((constructor)) void refuse() {
  std::fprintf(stderr,
               "ipclab model [%d]: this program was built for CUDA 12, the "
               "model is CUDA 13: build it again with the CUDA 13 toolkit\n",
               static_cast<int>(getpid()));
  std::_Exit(EXIT_FAILURE);
}
}  // namespace
