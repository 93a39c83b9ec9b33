// What tests of a caller's preconditions share: descriptors of other things,
// and the codes of calls that a caller must not make.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <climits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/cuda.h"
#include "harness/scenario/scenario.h"

namespace ipclab {

/// A descriptor and its kind.
struct Candidate {
  std::string what;
  Descriptor owned;  ///< or none, for numbers that are not open
  int number;

  Candidate(std::string name, int number)
      : what(std::move(name)), number(number) {}
  Candidate(std::string name, Descriptor descriptor)
      : what(std::move(name)),
        owned(std::move(descriptor)),
        number(owned.get()) {}
};

/// Numbers that are no open descriptor, and descriptors of objects other than
/// memory and pools of CUDA, as far as this machine has them.
inline std::vector<Candidate> foreign_descriptors() {
  std::vector<Candidate> found;
  const auto add = [&](const char* what, int number) {
    if (number != -1) found.emplace_back(what, Descriptor(number));
  };
  found.emplace_back("-1", -1);
  found.emplace_back("INT_MAX", INT_MAX);
  const int closed = fcntl(0, F_DUPFD_CLOEXEC, 500);
  close(closed);
  found.emplace_back("a closed descriptor", closed);

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) == 0) {
    add("the reading end of a pipe", ends[0]);
    add("the writing end of a pipe", ends[1]);
  }
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0) {
    add("a socket", ends[0]);
    close(ends[1]);
  }
  const int memory = memfd_create("host memory", MFD_CLOEXEC);
  if (ftruncate(memory, 4 << 20) == 0) add("a memfd", memory);
  add("/dev/null", open("/dev/null", O_RDWR | O_CLOEXEC));
  add("/dev/null by O_PATH", open("/dev/null", O_PATH | O_CLOEXEC));
  add("a folder", open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  add("an eventfd", eventfd(0, EFD_CLOEXEC));
  add("the GPU's device node", open("/dev/nvidia0", O_RDWR | O_CLOEXEC));
  add("the driver's control node", open("/dev/nvidiactl", O_RDWR | O_CLOEXEC));
  return found;
}

/// The codes of one call that a caller must not make, with the number of each.
class Answers {
 public:
  /// Notes a code. Returns true if the call was accepted.
  template <class Code>
  bool accepted(Code code) {
    ++counts_[name_of(code)];
    return code == Code{};
  }
  /// Reports the codes.
  void tell(Role& me, const std::string& call) const {
    std::string told = call + ":";
    for (const auto& [code, count] : counts_)
      told += " " + std::to_string(count) + " x " + code;
    me.observe(told);
  }

 private:
  std::map<std::string, int> counts_;
};

}  // namespace ipclab
