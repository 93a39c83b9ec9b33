// SPDX-License-Identifier: Apache-2.0
// Pauses at random moments, to find tests that depend on the speed of a role.
#pragma once

#include "board.h"

namespace ipclab {

/// Pauses this thread of a role for up to 40 ms before some of its calls and
/// steps, if IPCLAB_DELAYS is set; does nothing otherwise. Between two steps a
/// role makes no pauses, short ones or long ones: so each role is sometimes
/// much slower than the others. `kind` says what comes next.
void delay(Board::Kind kind);

}  // namespace ipclab
