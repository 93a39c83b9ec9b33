// A program for people: as a story, and as one file of plain CUDA.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "harness/explore/world/failure.h"
#include "harness/explore/world/program.h"

namespace ipclab::explore {

/// Each step in words, with its actor: "p1 s4  m9: write 64 bytes at 128". The
/// last line is what failed.
std::string story(const Program& program, const Failure& failure);

/// One file of CUDA without any header of this project. It makes the steps in
/// their order and exits with 1 if the driver does not answer as documented.
/// The steps of a group come one after the other.
std::string standalone(const Machine& machine, const Program& program,
                       const Failure& failure);

}  // namespace ipclab::explore
