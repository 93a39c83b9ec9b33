// SPDX-License-Identifier: Apache-2.0
// What the hosts tell each other. Each process knows work of GPUs for which it
// has waited; a message takes that knowledge to another process. messages/ sees
// the messages, in all processes of a run.
//
// All functions here may only be called if on().
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "core/race_clock.h"

namespace ipclab::model::race {

/// What comes before all that this process does from now on.
void fetch_host(Clock* into);
void tell_host(const Clock& clock);
/// What any process knows, for words that hosts write unseen.
void fetch_any_host(Clock* into);

/// The process uses the model, whose own calls are no messages of a program.
void host_uses_gpu();

// ---- for the library that sees messages

/// This process begins, after exec or another start. The child of a fork knows
/// what its parent knows.
void host_began();
void host_forked(pid_t parent);
/// Is this the address of a call by the model?
bool is_by_model(const void* address);

/// Adds what the process knows to the channel, for its receivers.
void sent(uint64_t channel);
/// It has received. `unseen`: if nobody of whom we know has sent, somebody else
/// has, who may know anything.
void received(uint64_t channel, bool unseen);
/// It shares memory, which it reads, and also writes if `writes`.
void shares(uint64_t channel, bool writes);
/// It knows what this process knew (which has ended, or whose memory it reads);
/// the other one knows what it knows.
void learned_from(pid_t pid);
void told(pid_t pid);
/// It has seen that some other process has ended: a pipe or a socket says so.
void learned_from_ended();

}  // namespace ipclab::model::race
