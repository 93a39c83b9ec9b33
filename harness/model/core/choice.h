// SPDX-License-Identifier: Apache-2.0
// What the documentation leaves to a driver. The model gives one answer to each
// question, and can be set to give the other: a suite that follows the
// documentation must accept both.
#pragma once

namespace ipclab::model {

/// One choice is one line of the table in choice.cc and one question in the
/// code.
enum class Choice {
  kOtherAddress,       ///< where an import is mapped
  kOnlyTheAllocation,  ///< what of an imported block kernels reach
  kPoolsRelease,       ///< whether a pool for IPC gives memory back
};

/// True if IPCLAB_CHOICE names this one: the other answer is wanted.
bool chosen(Choice choice);

/// Aborts with one line if IPCLAB_CHOICE names nothing here: a typo must not
/// look like the other answer.
void check_choice();

}  // namespace ipclab::model
