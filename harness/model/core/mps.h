// SPDX-License-Identifier: Apache-2.0
// Is this process a client of MPS?
#pragma once

namespace ipclab::model {

/// Connects to the control daemon in CUDA_MPS_PIPE_DIRECTORY; false if there is
/// none. The daemon is a program of the model (mps/control.cc), and its only
/// effect is this answer. Only the first call connects; later calls return the
/// same answer. The connection ends with the process.
bool is_mps_client();

}  // namespace ipclab::model
