// Namespaces of one's own, such as a container gives its processes.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sched.h>

#include <optional>
#include <string>

namespace ipclab {

/// Goes on in new namespaces: CLONE_NEWIPC, CLONE_NEWNS with a /dev/shm of its
/// own, and CLONE_NEWPID (not without CLONE_NEWNS) with a /proc of its own, as
/// the process with this number. Call it before CUDA: for CLONE_NEWPID it is a
/// child that returns; the caller waits for it and ends as it does.
/// Process 1 of a namespace cannot Role::die(): its own signals pass it by.
/// Returns the first step that was refused and why.
std::optional<std::string> enter_namespaces(int kinds, int number = 1);

}  // namespace ipclab
