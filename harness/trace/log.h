// SPDX-License-Identifier: Apache-2.0
// The file that a process writes its trace into.
#pragma once

#include <cstdint>
#include <string_view>

namespace ipclab::trace {

class Line;

/// Nanoseconds of CLOCK_MONOTONIC, the same clock for all processes.
uint64_t now();

/// Does this process write a trace? It does if IPCLAB_TRACE names a folder and
/// give_up() was not called.
bool tracing();

/// The moment at which this process's file begins; 0 if there is no file. Times
/// in the file count from this moment.
uint64_t beginning();

/// Adds a line with its newline; any thread may call this. The file is a shared
/// mapping: the kernel keeps what was written, in whatever way the process
/// ends.
void write(const Line& line);

/// Is this the process that the file belongs to? A child of vfork is not.
bool own_process();

/// Writes {"what":NAME,"t":TIME to the line; the caller adds the closing brace.
void begin_event(Line& line, std::string_view name, uint64_t at = now());

/// Reports once that recording has failed, for example because the disk is
/// full. Then stops recording.
void give_up(std::string_view reason);

/// Adds CUDA_VISIBLE_DEVICES, if it is set.
void write_visible(Line& line);

}  // namespace ipclab::trace
