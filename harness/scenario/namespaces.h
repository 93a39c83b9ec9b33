// New namespaces for a process, as a container creates them.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sched.h>

#include <optional>
#include <string>

namespace ipclab {

/// Continues in new namespaces: CLONE_NEWIPC, CLONE_NEWNS with a /dev/shm of
/// its own, and CLONE_NEWPID (only together with CLONE_NEWNS) with a /proc of
/// its own, as the process with this number. Call it before CUDA: with
/// CLONE_NEWPID a child returns; the caller waits for the child and ends as it
/// does. Process 1 of a namespace cannot Role::die(): signals that it sends to
/// itself have no effect. Returns the first step that was refused, and why.
std::optional<std::string> enter_namespaces(int kinds, int number = 1);

}  // namespace ipclab
