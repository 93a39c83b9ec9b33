// The program of the CTest `probe`.
//
//   probe           prints what this machine can share
//   probe --hold    opens the GPUs, prints "held", and keeps the GPUs open
//                   until its input ends
//   probe --start   makes a context, as every role does first, and ends
//   probe --peers N proves that the N GPUs of this machine reach each other
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ipclab {
void print_probe();
bool hold_gpus();
bool start_once();
int prove_peers(int count, const char* program);
int be_peer(int rank, int count, int socket);
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
  if (argc == 3 && std::strcmp(argv[1], "--peers") == 0) {
    const int count = std::atoi(argv[2]);
    if (count > 1 && count <= 64) return ipclab::prove_peers(count, argv[0]);
  }
  if (argc == 5 && std::strcmp(argv[1], "--peer") == 0) {
    return ipclab::be_peer(std::atoi(argv[2]), std::atoi(argv[3]),
                           std::atoi(argv[4]));
  }
  std::fprintf(stderr, "usage: probe [--hold | --start | --peers N]\n");
  return 2;
}
