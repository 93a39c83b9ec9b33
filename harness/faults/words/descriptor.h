// The descriptors that processes send for memory and for pools. Faults of
// memory and faults of pools use this file.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "harness/faults/engine/fault.h"
#include "harness/faults/engine/table.h"

namespace ipclab::faults {

/// Is a descriptor of this number open?
inline bool is_open(int descriptor) { return fcntl(descriptor, F_GETFD) != -1; }

/// A key that is the same for all descriptors of one file in all processes. It
/// is 0 if the descriptor is not open. All descriptors of NVIDIA's driver refer
/// to one file, the driver's device.
inline ino_t identity(int descriptor) {
  struct stat file {};
  return fstat(descriptor, &file) == 0 ? file.st_ino : 0;
}

/// Is this a descriptor of a device, as those of NVIDIA's driver are?
inline bool is_of_device(int descriptor) {
  struct stat file {};
  return fstat(descriptor, &file) == 0 && S_ISCHR(file.st_mode);
}

/// Do both descriptors refer to the same object? If they refer to a device, is
/// one a copy of the other?
inline bool name_the_same(int one, int other) {
  if (!is_of_device(one)) return identity(one) == identity(other);
  return syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, one, other) == 0;
}

/// The descriptor of an import.
inline int descriptor_of(Call& call) {
  return static_cast<int>(reinterpret_cast<intptr_t>(call.at<void*>(1)));
}
/// Does an import read a descriptor? The handle type has the same value for
/// memory and for pools.
inline bool imports_descriptor(Call& call) {
  return call.at<int>(2) == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

/// The fault: if a descriptor has the number of the descriptor of an earlier
/// import, the import returns the object of the earlier import.
inline int import_by_known_number(Call& call) {
  static Table<int, int> copies;
  if (!imports_descriptor(call)) return call.proceed();
  const int number = descriptor_of(call);
  if (copies.has(number) && !name_the_same(copies.get(number), number)) {
    call.at<void*>(1) = reinterpret_cast<void*>(intptr_t{copies.get(number)});
    call.fired();
    return call.proceed();
  }
  const int code = call.proceed();
  if (code == kSuccess && !copies.has(number))
    copies.put(number, fcntl(number, F_DUPFD_CLOEXEC, 300));
  return code;
}

}  // namespace ipclab::faults
