// SPDX-License-Identifier: Apache-2.0
// How much memory a GPU has and how much of it is free. Here the bytes that
// this process allocates are counted. The files of all processes count the
// bytes of the whole machine (core/shared_file.h). These functions need no
// lock.
#pragma once

#include <cstdint>

namespace ipclab::model {

uint64_t total_bytes(int gpu);
/// Counts bytes of a GPU as used by this process; false if there are not enough
/// free bytes. For less than 256 MiB, the bytes of other processes are not
/// considered. `gpu` -1 is the host, which is not counted.
bool take_bytes(int gpu, uint64_t size);
void give_back_bytes(int gpu, uint64_t size);
/// The numbers of bytes that cuMemGetInfo calls free and total.
void memory_info(int gpu, uint64_t* free_bytes, uint64_t* total);

}  // namespace ipclab::model
