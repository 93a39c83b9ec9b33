// SPDX-License-Identifier: Apache-2.0
// NVIDIA's library of the same name as a library in front of it.
#pragma once

namespace ipclab::model {

/// The library `name` (a soname) that is not this one: from LD_LIBRARY_PATH,
/// the wheels of the program's environment, the toolkit, or the system. If
/// there is none, prints a line that says what the program `does` and which
/// `wheel` has the library, and returns null.
void* nvidia_library(const char* name, const char* does, const char* wheel);

}  // namespace ipclab::model
