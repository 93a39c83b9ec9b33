// SPDX-License-Identifier: Apache-2.0
// Is this process a client of MPS?
#pragma once

namespace ipclab::model {

/// Connects to the control daemon that CUDA_MPS_PIPE_DIRECTORY names, if there
/// is one. The daemon is that of the model (mps/control.cc), and its only
/// effect is this answer. The first call decides. The connection ends with the
/// process.
bool is_mps_client();

}  // namespace ipclab::model
