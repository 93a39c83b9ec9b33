// SPDX-License-Identifier: Apache-2.0
// What the documentation leaves to a driver. The model has one answer to each,
// and can be told to have the other: a suite that holds drivers to the
// documentation must take both.
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
