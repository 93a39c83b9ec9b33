// SPDX-License-Identifier: Apache-2.0
// Devices and contexts.
#include "core/device.h"

#include <pthread.h>

#include <cstdlib>
#include <cstring>

#include "core/checkpoint.h"
#include "core/choice.h"
#include "core/event.h"
#include "core/external_memory.h"
#include "core/ipc.h"
#include "core/machine.h"
#include "core/memory.h"
#include "core/module.h"
#include "core/mps.h"
#include "core/peers.h"
#include "core/profile.h"
#include "core/stream.h"
#include "core/visible.h"
#include "ptx/per_thread.h"

namespace ipclab::model {
namespace {

std::atomic<bool> initialised{false};
std::atomic<bool> forked{false};
std::atomic<bool> unloading{false};

std::vector<CUcontext>& context_stack() {
  struct Stack;
  return of_this_thread<std::vector<CUcontext>, Stack>();
}

CUcontext new_context(Machine& machine, int device, bool primary,
                      unsigned flags) {
  auto context = std::make_unique<CUctx_st>();
  context->device = device;
  context->gpu = device_at(device).gpu;
  context->primary = primary;
  context->flags = flags;
  machine.contexts.push_back(std::move(context));
  return machine.contexts.back().get();
}

void activate(Machine&, CUcontext context) {
  static unsigned long long next_id = 1;
  context->id = next_id++;
  context->sticky = 0;
  context->legacy = std::make_shared<Stream>(context, 0, 0, true);
  context->active = true;
}

// The work ends before the machine is locked, because a worker thread may need
// the lock.
void deactivate(CUcontext context) {
  context->active = false;
  context_synchronize(context);
  {
    const Locked machine;
    for (const auto& other : machine->contexts) {
      if (other->green_of == context) other->active = false;
    }
  }
  destroy_streams(context);
  destroy_events(context);
  destroy_modules(context);
  const Locked machine;
  destroy_external_memory(context);
  close_imports(*machine, context);
  free_memory_of(*machine, context);
  forget_peers(*machine, context);
}

}  // namespace

thread_local bool inside_host_function = false;

std::vector<Device>& devices() {
  static auto& list = *new std::vector<Device>;
  return list;
}

CUresult initialise() {
  if (unloading) return CUDA_ERROR_DEINITIALIZED;
  if (forked) return CUDA_ERROR_NOT_INITIALIZED;
  const Locked machine;
  if (initialised) return CUDA_SUCCESS;
  check_choice();
  is_mps_client();  // connects now, as NVIDIA's driver does
  const std::vector<int> visible = visible_gpus(profile().gpus);
  if (visible.empty()) return CUDA_ERROR_NO_DEVICE;
  const int count = static_cast<int>(visible.size());
  if (CUresult error = machine->window.reserve(count)) {
    return error;
  }
  for (int gpu : visible) {
    Device device;
    device.gpu = gpu;
    devices().push_back(device);
    const int ordinal = static_cast<int>(devices().size()) - 1;
    devices().back().primary = new_context(*machine, ordinal, true, 0);
  }
  // A forked child cannot use CUDA, because it has no worker threads.
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
  std::atexit([] { unloading = true; });
  start_restore_thread();
  initialised = true;
  return CUDA_SUCCESS;
}

CUresult enter() {
  if (unloading) return CUDA_ERROR_DEINITIALIZED;
  if (forked || !initialised) return CUDA_ERROR_NOT_INITIALIZED;
  if (inside_host_function) return CUDA_ERROR_NOT_PERMITTED;
  wait_until_unlocked();
  return CUDA_SUCCESS;
}

CUresult enter(CUcontext* context) {
  if (CUresult error = enter()) return error;
  *context = current_context();
  if (*context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!(*context)->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *context = whole_of(*context);
  return static_cast<CUresult>((*context)->sticky.load());
}

CUresult enter_without_context() {
  if (CUresult error = enter()) return error;
  const CUcontext context = current_context();
  return context == nullptr
             ? CUDA_SUCCESS
             : static_cast<CUresult>(whole_of(context)->sticky.load());
}

bool is_device(int ordinal) {
  return ordinal >= 0 && ordinal < static_cast<int>(devices().size());
}

const Device& device_at(int ordinal) {
  return devices()[static_cast<size_t>(ordinal)];
}

int ordinal_of_gpu(int gpu) {
  for (size_t i = 0; i < devices().size(); ++i) {
    if (devices()[i].gpu == gpu) return static_cast<int>(i);
  }
  return -1;
}

bool can_access_peer(int from, int to) { return from != to && profile().peers; }

CUcontext current_context() {
  const std::vector<CUcontext>& stack = context_stack();
  return stack.empty() ? nullptr : stack.back();
}

void set_current_context(CUcontext context) {
  std::vector<CUcontext>& stack = context_stack();
  if (!stack.empty()) stack.pop_back();
  if (context != nullptr) stack.push_back(context);
}

void push_context(CUcontext context) { context_stack().push_back(context); }

CUresult pop_context(CUcontext* context) {
  std::vector<CUcontext>& stack = context_stack();
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}

CUcontext whole_of(CUcontext context) {
  return context->green_of != nullptr ? context->green_of : context;
}

bool is_context(CUcontext context) {
  const Locked machine;
  for (const auto& known : machine->contexts) {
    if (known.get() == context) return true;
  }
  return false;
}

CUresult context_create(CUcontext* context, unsigned flags, int device) {
  {
    const Locked machine;
    *context = new_context(*machine, device, false, flags);
    activate(*machine, *context);
  }
  push_context(*context);
  return CUDA_SUCCESS;
}

CUresult context_destroy(CUcontext context) {
  deactivate(context);
  if (current_context() == context) context_stack().pop_back();
  return CUDA_SUCCESS;
}

CUresult primary_retain(CUcontext* context, int device) {
  const Locked machine;
  *context = device_at(device).primary;
  ++(*context)->retained;
  if (!(*context)->active) activate(*machine, *context);
  return CUDA_SUCCESS;
}

CUresult primary_release(int device) {
  CUcontext context = device_at(device).primary;
  {
    const Locked machine;
    if (context->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--context->retained > 0 || !context->active) return CUDA_SUCCESS;
  }
  deactivate(context);
  return CUDA_SUCCESS;
}

// A reset leaves the references as they are.
CUresult primary_reset(int device) {
  CUcontext context = device_at(device).primary;
  {
    const Locked machine;
    if (!context->active) return CUDA_SUCCESS;
  }
  deactivate(context);
  context->sticky = 0;
  return CUDA_SUCCESS;
}

namespace {
// Guarded by the lock of the machine.
std::vector<std::unique_ptr<CUgreenCtx_st>>& green_contexts() {
  static auto& list = *new std::vector<std::unique_ptr<CUgreenCtx_st>>;
  return list;
}
}  // namespace

CUresult green_create(CUgreenCtx* green, int device) {
  CUcontext primary = nullptr;
  if (CUresult error = primary_retain(&primary, device)) return error;
  auto made = std::make_unique<CUgreenCtx_st>();
  *green = made.get();
  CUcontext context = nullptr;
  {
    const Locked machine;
    context = made->context = new_context(*machine, device, false, 0);
    context->green_of = primary;
    green_contexts().push_back(std::move(made));
    activate(*machine, context);
  }
  give_stream(context, context->legacy);
  return CUDA_SUCCESS;
}

CUresult green_destroy(CUgreenCtx green) {
  const CUcontext context = context_of(green);
  context->active = false;
  context_synchronize(context);
  destroy_streams(context);
  return primary_release(context->device);
}

CUcontext context_of(CUgreenCtx green) {
  const Locked machine;
  for (const auto& known : green_contexts()) {
    if (known.get() == green) {
      return green->context->active ? green->context : nullptr;
    }
  }
  return nullptr;
}

CUgreenCtx green_of(CUcontext context) {
  const Locked machine;
  for (const auto& known : green_contexts()) {
    if (known->context == context) return known.get();
  }
  return nullptr;
}

void context_set_limit(CUcontext context, CUlimit limit, size_t value) {
  const Locked machine;
  context->limits[limit] = value;
}

size_t context_limit(CUcontext context, CUlimit limit) {
  const Locked machine;
  const auto set = context->limits.find(limit);
  if (set != context->limits.end()) return set->second;
  switch (limit) {
    case CU_LIMIT_STACK_SIZE:
      return 1024;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      return 1 << 20;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
      return 8 << 20;
    default:
      return 0;
  }
}

CUresult context_synchronize(CUcontext context) {
  for (const std::shared_ptr<Stream>& stream : streams_of(context)) {
    stream->wait_all();
  }
  return static_cast<CUresult>(whole_of(context)->sticky.load());
}

void device_drain(int device) {
  std::vector<CUcontext> busy;
  {
    const Locked machine;
    for (const auto& context : machine->contexts) {
      if (context->device == device && context->active) {
        busy.push_back(context.get());
      }
    }
  }
  for (CUcontext context : busy) context_synchronize(context);
}

}  // namespace ipclab::model
