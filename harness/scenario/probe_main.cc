// The program of the CTest `probe`.
//
//   probe           prints what this machine can share
//   probe --hold    opens the GPUs, prints "held", and keeps the GPUs open
//                   until its input ends
//   probe --start   makes a context, as every role does first, and ends
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstring>

namespace ipclab {
void print_probe();
bool hold_gpus();
bool start_once();
}  // namespace ipclab

int main(int argc, char** argv) {
  const bool again = argc == 2 && std::strcmp(argv[1], "--ipclab_probe") == 0;
  if (argc == 1 || again) {  // a probe starts itself a second time
    ipclab::print_probe();
    return 0;
  }
  if (argc == 2 && std::strcmp(argv[1], "--hold") == 0) {
    return ipclab::hold_gpus() ? 0 : 1;
  }
  if (argc == 2 && std::strcmp(argv[1], "--start") == 0) {
    return ipclab::start_once() ? 0 : 1;
  }
  std::fprintf(stderr, "usage: probe [--hold | --start]\n");
  return 2;
}
