// Makes a failing program as small as possible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>
#include <functional>
#include <optional>

#include "harness/explore/world/failure.h"
#include "harness/explore/world/program.h"

namespace ipclab::explore {

struct Shrunk {
  Program program;  ///< every step is defined; the last one fails
  Failure failure;
  int runs = 0;
  bool finished = false;  ///< false: the time was over before
};

/// Shrinks a program that fails with `failure`: fewer steps first, then simpler
/// ones. `run` runs a program in new processes and returns its failure. Only
/// programs that fail in the same way are kept.
Shrunk shrink(const Machine& machine, Program program, Failure failure,
              const std::function<std::optional<Failure>(const Program&)>& run,
              std::chrono::steady_clock::time_point end);

/// The program without the steps that are not defined in it.
Program defined_part(const Machine& machine, const Program& program);

}  // namespace ipclab::explore
