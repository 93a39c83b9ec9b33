// SPDX-License-Identifier: Apache-2.0
// Messages of the model to a person: one line on standard error.
#pragma once

#include <string>

namespace ipclab::model {

/// Prints "ipclab model [pid]: text" on standard error with one write.
void say(const std::string& text);

/// say(), then abort(): for settings with which every answer of the model would
/// be wrong (unknown profile, unknown choice), and if the model cannot make a
/// thread or change a mapping.
[[noreturn]] void die(const std::string& text);

}  // namespace ipclab::model
