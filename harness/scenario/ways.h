// Every way to write and to read device memory: a driver may take a different
// path for each.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "harness/scenario/cuda.h"

namespace ipclab {

/// Writes a quarter of the words by each of a kernel, cudaMemcpy,
/// cudaMemcpyAsync and cudaMemset, and waits for them.
void write_in_every_way(const Words& words, Pattern pattern);

/// Does the memory hold what write_in_every_way() wrote? Reads with a kernel,
/// cudaMemcpy and cudaMemcpyAsync. The failure names the quarter.
testing::AssertionResult reads_in_every_way(const Words& words,
                                            Pattern pattern);

}  // namespace ipclab
