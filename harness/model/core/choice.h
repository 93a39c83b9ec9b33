// SPDX-License-Identifier: Apache-2.0
// Questions that the documentation leaves to the driver. The model gives one
// answer to each question. A setting makes the model give the other answer. A
// suite that follows the documentation must accept both answers.
#pragma once

namespace ipclab::model {

/// One choice is one line of the table in choice.cc and one question in the
/// code.
enum class Choice {
  kOtherAddress,       ///< where an import is mapped
  kOnlyTheAllocation,  ///< which part of an imported block kernels reach
  kPoolsRelease,       ///< whether a pool for IPC gives memory back
  kCheckpointsShared,  ///< whether a process that shares memory can be
                       ///< checkpointed
  kRestoresNoImports,  ///< the same, but an importer cannot be restored
};

/// True if IPCLAB_CHOICE names this choice. Then the model gives the other
/// answer.
bool chosen(Choice choice);

/// Aborts with one line if IPCLAB_CHOICE is not the name of a choice. Otherwise
/// a typing error would have no effect, and nobody would notice it.
void check_choice();

}  // namespace ipclab::model
