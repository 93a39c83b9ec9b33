// SPDX-License-Identifier: Apache-2.0
// Peer access: which contexts can access the memory of which other GPUs.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace ipclab::model {

struct Machine;

/// cuCtxEnablePeerAccess. May return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED or
/// CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED. Returns CUDA_ERROR_TOO_MANY_PEERS if
/// the hardware of the profile has no room for another peer.
CUresult peer_enable(CUcontext context, CUcontext peer);
/// cuCtxDisablePeerAccess. May return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED.
CUresult peer_disable(CUcontext context, CUcontext peer);

/// Gives access to a range of a GPU's memory to this GPU, and to each GPU whose
/// primary context has peer access to it.
void grant(Machine& machine, int gpu, uint64_t address, uint64_t size);
/// CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: peer access as long as an import needs
/// it. Returns CUDA_ERROR_TOO_MANY_PEERS as above.
CUresult add_lazy_peer(Machine& machine, CUcontext context, int gpu);
void remove_lazy_peer(Machine& machine, CUcontext context, int gpu);
void forget_peers(Machine& machine, CUcontext context);

}  // namespace ipclab::model
