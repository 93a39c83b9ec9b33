// Functions that programs get by name instead of linking them.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ipclab::faults {

/// glibc's dlsym, which this library replaces.
void* real_dlsym(void* library, const char* name);

/// Is this code one of CUDA's own libraries? Their calls to each other are not
/// the program's.
bool is_of_cuda(const void* caller);

}  // namespace ipclab::faults
