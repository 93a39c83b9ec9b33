// Functions that programs get by name instead of linking them.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ipclab::faults {

/// glibc's dlsym, which this library replaces.
void* real_dlsym(void* library, const char* name) noexcept;

/// Does this code belong to one of CUDA's own libraries? A call that such a
/// library makes is not a call of the program.
bool is_of_cuda(const void* caller);

}  // namespace ipclab::faults
