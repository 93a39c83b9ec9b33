// SPDX-License-Identifier: Apache-2.0
// The file that a process writes its trace into.
#pragma once

#include <cstdint>
#include <string_view>

namespace ipclab::trace {

class Line;

/// Nanoseconds of CLOCK_MONOTONIC, the same clock for all processes.
uint64_t now();

/// Does IPCLAB_TRACE name a folder? Without one nothing is ever written.
bool tracing();

/// When this process's file began: times in it count from there.
uint64_t beginning();

/// Adds a line, and its end. The file is a shared mapping, so all that was
/// written is kept by the kernel whatever ends the process. Any thread.
void write(const Line& line);

/// Is this the process that the file belongs to? A child of vfork is not.
bool own_process();

/// "{"what":NAME,"t":TIME", to be ended by the caller with "}".
void begin_event(Line& line, std::string_view name, uint64_t at = now());

/// The folder was lost, the disk is full …: says so once, then records no more.
void give_up(std::string_view reason);

}  // namespace ipclab::trace
