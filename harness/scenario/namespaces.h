// New namespaces for a process, as a container creates them.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sched.h>

#include <optional>
#include <string>

namespace ipclab {

/// Continues in new namespaces: CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWUSER as
/// user 0 (the same user outside), CLONE_NEWNS with its own /dev/shm, and
/// CLONE_NEWPID (only together with CLONE_NEWNS) with its own /proc, as the
/// process with this number. Call it before the first CUDA call.
/// With CLONE_NEWPID a child returns from this function; the caller waits for
/// the child and ends in the same way. Process 1 of a namespace cannot call
/// Role::die(), because signals that it sends to itself have no effect. Returns
/// the first step that was refused and the reason, or std::nullopt if no step
/// was refused.
std::optional<std::string> enter_namespaces(int kinds, int number = 1);

}  // namespace ipclab
