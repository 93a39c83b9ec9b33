// SPDX-License-Identifier: Apache-2.0
// Is this process a client of MPS?
#include "core/mps.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace ipclab::model {
namespace {

bool connects() {
  // Without the variable NVIDIA's driver looks into /tmp/nvidia-mps. The model
  // does not look there, because a daemon there may be NVIDIA's.
  const char* folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  if (folder == nullptr) return false;
  const std::string path = std::string(folder) + "/control";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  std::strcpy(address.sun_path, path.c_str());
  const int end = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (end == -1) return false;
  if (connect(end, reinterpret_cast<const sockaddr*>(&address),
              sizeof address) == 0) {
    return true;  // stays open, so the daemon knows that the client lives
  }
  close(end);
  return false;
}

}  // namespace

bool is_mps_client() {
  static const bool answer = connects();
  return answer;
}

}  // namespace ipclab::model
