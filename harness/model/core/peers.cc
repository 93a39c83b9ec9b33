// SPDX-License-Identifier: Apache-2.0
// Peer access.
#include "core/peers.h"

#include <set>

#include "core/device.h"
#include "core/machine.h"
#include "core/profile.h"

namespace ipclab::model {
namespace {

bool has_room_for(const CUctx_st& context, int gpu) {
  std::set<int> reached = context.peers;
  for (const auto& entry : context.lazy_peers) reached.insert(entry.first);
  reached.insert(gpu);
  return reached.size() <= static_cast<size_t>(profile().max_peers);
}

// Changes the access to memory of cuMemAlloc and to variables of modules. Pools
// and mappings have their own access.
void set_peer_access(Machine& machine, CUcontext context, int gpu,
                     Access access) {
  for (const auto& [address, allocation] : machine.memory) {
    const bool on_device =
        allocation.kind == Kind::kDevice || allocation.kind == Kind::kVariable;
    if (!on_device || allocation.gpu != gpu) continue;
    machine.window.set_access(context->device, allocation.mapping,
                              allocation.mapping_size, access);
  }
}

}  // namespace

CUresult peer_enable(CUcontext context, CUcontext peer) {
  if (!can_access_peer(context->gpu, peer->gpu)) {
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  const Locked machine;
  if (context->peers.count(peer->gpu) > 0) {
    return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  }
  if (!has_room_for(*context, peer->gpu)) return CUDA_ERROR_TOO_MANY_PEERS;
  context->peers.insert(peer->gpu);
  set_peer_access(*machine, context, peer->gpu, kReadWrite);
  return CUDA_SUCCESS;
}

CUresult peer_disable(CUcontext context, CUcontext peer) {
  context_synchronize(context);
  const Locked machine;
  if (context->peers.erase(peer->gpu) == 0) {
    return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  }
  set_peer_access(*machine, context, peer->gpu, kNone);
  return CUDA_SUCCESS;
}

void grant(Machine& machine, int gpu, uint64_t address, uint64_t size) {
  for (size_t i = 0; i < devices().size(); ++i) {
    const Device& device = devices()[i];
    const bool reaches =
        device.gpu == gpu || device.primary->peers.count(gpu) > 0;
    if (reaches) {
      machine.window.set_access(static_cast<int>(i), address, size, kReadWrite);
    }
  }
}

CUresult add_lazy_peer(Machine&, CUcontext context, int gpu) {
  if (!has_room_for(*context, gpu)) return CUDA_ERROR_TOO_MANY_PEERS;
  ++context->lazy_peers[gpu];
  return CUDA_SUCCESS;
}

void remove_lazy_peer(Machine&, CUcontext context, int gpu) {
  const auto peer = context->lazy_peers.find(gpu);
  if (peer == context->lazy_peers.end()) return;
  if (--peer->second == 0) context->lazy_peers.erase(peer);
}

void forget_peers(Machine& machine, CUcontext context) {
  for (const int peer : context->peers) {
    set_peer_access(machine, context, peer, kNone);
  }
  context->peers.clear();
  context->lazy_peers.clear();
}

}  // namespace ipclab::model
