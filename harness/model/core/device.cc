// SPDX-License-Identifier: Apache-2.0
// Devices and contexts.
#include "core/device.h"

#include <pthread.h>

#include <cstring>

#include "core/event.h"
#include "core/hooks.h"
#include "core/ipc.h"
#include "core/memory.h"
#include "core/module.h"
#include "core/profile.h"
#include "core/stream.h"
#include "core/visible.h"

namespace ipclab::model {
namespace {

std::atomic<bool> initialised{false};
std::atomic<bool> forked{false};
thread_local std::vector<CUcontext> context_stack;

// Contexts are kept for ever, see CUctx_st.
std::vector<std::unique_ptr<CUctx_st>>& all_contexts() {
  static auto& contexts = *new std::vector<std::unique_ptr<CUctx_st>>;
  return contexts;
}

CUcontext new_context(int device, bool primary, unsigned flags) {
  auto context = std::make_unique<CUctx_st>();
  context->device = device;
  context->gpu = devices()[device].gpu;
  context->primary = primary;
  context->flags = flags;
  all_contexts().push_back(std::move(context));
  return all_contexts().back().get();
}

void activate(CUcontext context) {
  static unsigned long long next_id = 1;
  context->id = next_id++;
  context->sticky = 0;
  context->legacy = std::make_shared<Stream>(context, 0, 0, true);
  context->active = true;
}

// Work is ended before the state is locked: a worker may need the lock.
void deactivate(CUcontext context) {
  context->active = false;
  context_synchronize(context);
  destroy_streams(context);
  destroy_events(context);
  destroy_modules(context);
  const std::lock_guard lock(state_mutex());
  close_imports(context);
  free_memory_of(context);
  for (int peer : context->peers) revoke_peer(context, peer);
  context->peers.clear();
  context->lazy_peers.clear();
}

}  // namespace

thread_local bool inside_host_function = false;

std::mutex& state_mutex() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

std::vector<Device>& devices() {
  static auto& list = *new std::vector<Device>;
  return list;
}

CUresult initialise() {
  if (forked) return CUDA_ERROR_NOT_INITIALIZED;
  const std::lock_guard lock(state_mutex());
  if (initialised) return CUDA_SUCCESS;
  check_hook();
  const std::vector<int> visible = visible_gpus(profile().gpus);
  if (visible.empty()) return CUDA_ERROR_NO_DEVICE;
  if (CUresult error = reserve_addresses(static_cast<int>(visible.size()))) {
    return error;
  }
  for (int gpu : visible) {
    Device device;
    device.gpu = gpu;
    devices().push_back(device);
    const int ordinal = static_cast<int>(devices().size()) - 1;
    devices().back().primary = new_context(ordinal, true, 0);
  }
  // CUDA does not survive fork: the worker threads are gone in the child.
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
  initialised = true;
  return CUDA_SUCCESS;
}

CUresult enter() {
  if (forked || !initialised) return CUDA_ERROR_NOT_INITIALIZED;
  if (inside_host_function) return CUDA_ERROR_NOT_PERMITTED;
  return CUDA_SUCCESS;
}

CUresult enter(CUcontext* context) {
  if (CUresult error = enter()) return error;
  *context = current_context();
  if (*context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!(*context)->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return static_cast<CUresult>((*context)->sticky.load());
}

CUresult enter_without_context() {
  if (CUresult error = enter()) return error;
  const CUcontext context = current_context();
  return context == nullptr ? CUDA_SUCCESS
                            : static_cast<CUresult>(context->sticky.load());
}

int ordinal_of_gpu(int gpu) {
  for (size_t i = 0; i < devices().size(); ++i) {
    if (devices()[i].gpu == gpu) return static_cast<int>(i);
  }
  return -1;
}

bool can_access_peer(int from, int to) { return from != to && profile().peers; }

CUcontext current_context() {
  return context_stack.empty() ? nullptr : context_stack.back();
}

void set_current_context(CUcontext context) {
  if (!context_stack.empty()) context_stack.pop_back();
  if (context != nullptr) context_stack.push_back(context);
}

void push_context(CUcontext context) { context_stack.push_back(context); }

CUresult pop_context(CUcontext* context) {
  if (context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = context_stack.back();
  context_stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult context_create(CUcontext* context, unsigned flags, int device) {
  {
    const std::lock_guard lock(state_mutex());
    *context = new_context(device, false, flags);
    activate(*context);
  }
  push_context(*context);
  return CUDA_SUCCESS;
}

CUresult context_destroy(CUcontext context) {
  deactivate(context);
  if (current_context() == context) context_stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult primary_retain(CUcontext* context, int device) {
  const std::lock_guard lock(state_mutex());
  *context = devices()[device].primary;
  if ((*context)->retained++ == 0) activate(*context);
  return CUDA_SUCCESS;
}

CUresult primary_release(int device) {
  CUcontext context = devices()[device].primary;
  {
    const std::lock_guard lock(state_mutex());
    if (context->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--context->retained > 0) return CUDA_SUCCESS;
  }
  deactivate(context);
  return CUDA_SUCCESS;
}

CUresult primary_reset(int device) {
  CUcontext context = devices()[device].primary;
  {
    const std::lock_guard lock(state_mutex());
    if (!context->active) return CUDA_SUCCESS;
    context->retained = 0;
  }
  deactivate(context);
  context->sticky = 0;
  return CUDA_SUCCESS;
}

CUresult add_peer(CUcontext context, int gpu, bool lazy) {
  std::set<int> reached = context->peers;
  for (const auto& entry : context->lazy_peers) reached.insert(entry.first);
  reached.insert(gpu);
  const size_t room = static_cast<size_t>(profile().max_peers);
  if (reached.size() > room) {
    return CUDA_ERROR_TOO_MANY_PEERS;
  }
  if (lazy) {
    ++context->lazy_peers[gpu];
  } else {
    context->peers.insert(gpu);
  }
  return CUDA_SUCCESS;
}

void remove_lazy_peer(CUcontext context, int gpu) {
  const auto peer = context->lazy_peers.find(gpu);
  if (peer == context->lazy_peers.end()) return;
  if (--peer->second == 0) context->lazy_peers.erase(peer);
}

CUresult context_synchronize(CUcontext context) {
  for (const std::shared_ptr<Stream>& stream : streams_of(context)) {
    stream->wait_all();
  }
  return static_cast<CUresult>(context->sticky.load());
}

void device_drain(int device) {
  std::vector<CUcontext> busy;
  {
    const std::lock_guard lock(state_mutex());
    for (const auto& context : all_contexts()) {
      if (context->device == device && context->active) {
        busy.push_back(context.get());
      }
    }
  }
  for (CUcontext context : busy) context_synchronize(context);
}

}  // namespace ipclab::model
