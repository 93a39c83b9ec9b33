// Kernels that several tests launch. A test without its own kernel is plain
// C++, which compiles faster.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "harness/scenario/cuda.h"

namespace ipclab {

/// Queues a kernel that copies all words of `from`, with 256 threads in each
/// block. If the launch fails, the role ends with a failure.
void launch_copy(const Words& to, const Words& from,
                 cudaStream_t stream = nullptr);

/// Queues a kernel of 256 threads; each adds 1 to the counter, `times` times,
/// by atomicAdd_system.
void launch_add(unsigned* counter, unsigned times);

/// Queues a kernel of one thread that writes a word at any address. If the
/// kernel faults, the next synchronisation returns the error.
void launch_write(uint32_t* word, uint32_t value);

/// Loads the kernels of Words::fill() and launch_copy(), because loading a
/// kernel later may wait for a stream that is held.
void load_kernels();

/// Lets a kernel read memory with undefined values, and says what the kernel
/// read: "the values that come later" if they match this pattern, else "other
/// values". If the kernel fails, returns the name of the error code.
std::string seen_by_kernel(const Words& words, Pattern expected);

}  // namespace ipclab
