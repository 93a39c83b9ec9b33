// A program: the machine that it needs, and its steps. Programs are files.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "harness/explore/world/step.h"

namespace ipclab::explore {

constexpr int kMostGpus = 2;  ///< that one program uses

/// What a program may assume of the machine. A role reports it once.
struct Machine {
  int64_t granule = 0;   ///< bytes; 0: no virtual memory management
  bool legacy = false;   ///< legacy handles of memory and events
  bool pools = false;    ///< pools that descriptors share
  bool words = false;    ///< streams wait for words
  bool managed = false;  ///< managed memory, also while the host uses it
  bool nodes = false;    ///< chunks on node 0 of the host, of the same granule
  bool batches = false;  ///< batches of copies
  /// Work of a stream is done while another stream is held. Without it, no
  /// program holds a stream.
  bool side_by_side = true;
  int gpus = 1;      ///< that programs use; each is a peer of the others
  bool nor = false;  ///< streams wait for a bit that is missing (NOR)
  /// The driver is known to let a record wait for an earlier one of the event
  /// in another stream (LEVT-13): no program has such a record.
  bool records_wait = false;

  /// The GPU that a process of a program uses.
  int gpu_of(int process) const { return process % gpus; }
};

struct Program {
  uint64_t seed = 0;
  int processes = 2;
  int gpus = 1;  ///< that the processes use in turn
  std::vector<Step> steps;
};

/// The program as the text of a replay file.
std::string to_text(const Program& program);
/// The program of such a text. Throws std::invalid_argument with the number of
/// the wrong line.
Program program_from(const std::string& text);
/// Reads a file. Throws std::invalid_argument if it cannot be read.
Program read_program(const std::string& path);
/// Writes text to a file. Throws std::runtime_error if that is not possible.
void write_file(const std::string& path, const std::string& text);

}  // namespace ipclab::explore
