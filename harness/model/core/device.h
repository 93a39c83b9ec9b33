// SPDX-License-Identifier: Apache-2.0
// Devices and contexts: the devices that the program sees, the current context,
// and the checks at the beginning of every call.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace ipclab::model {

class Stream;
struct ContextWait;

constexpr int kMaxGpus = 8;

/// A GPU that the program sees. `gpu` is its number in the profile; the index
/// in the list of devices is the ordinal that CUDA_VISIBLE_DEVICES gives it.
struct Device {
  int gpu = 0;
  CUcontext primary = nullptr;  ///< made once, activated by the first retain
};

}  // namespace ipclab::model

/// A context. This object is never deleted. So a call may read it through the
/// handle of a destroyed context: `active` is false then.
struct CUctx_st {
  int device = 0;  ///< ordinal
  int gpu = 0;     ///< number in the profile
  bool primary = false;
  /// Of a green context: the primary context, whose memory, events and modules
  /// it uses. A green context only has streams of its own. Null otherwise.
  CUcontext green_of = nullptr;
  std::atomic<bool> active{false};
  int retained = 0;  ///< references to a primary context
  std::atomic<unsigned> flags{0};
  unsigned long long id = 0;
  /// The first fault, returned by every later call of the context.
  std::atomic<int> sticky{0};
  // These three are guarded by the lock of the machine.
  std::set<int> peers;            ///< GPUs enabled with cuCtxEnablePeerAccess
  std::map<int, int> lazy_peers;  ///< GPU -> imports that need it
  std::map<int, size_t> limits;   ///< CUlimit -> value

  /// Guards the order in which work is given to the streams of this context.
  std::mutex submit_mutex;
  std::shared_ptr<ipclab::model::Stream> legacy;  ///< the default stream
  /// The other streams. A primary context also has all those of its green
  /// contexts here.
  std::vector<std::shared_ptr<ipclab::model::Stream>> streams;
  /// The stream of cuCtxRecordEvent, made by the first call.
  std::shared_ptr<ipclab::model::Stream> recorder;
  /// What later streams wait for (cuCtxWaitEvent), also those of green
  /// contexts.
  std::vector<std::shared_ptr<ipclab::model::ContextWait>> waits;
};

/// The object of a CUgreenCtx; never deleted.
struct CUgreenCtx_st {
  CUcontext context = nullptr;
};

namespace ipclab::model {

/// cuInit: reads profile, choice and CUDA_VISIBLE_DEVICES, and reserves
/// addresses. Returns CUDA_ERROR_NO_DEVICE if no GPU is visible, and
/// CUDA_ERROR_NOT_INITIALIZED in a child that was forked after cuInit.
/// From then on, the end of the process shuts the driver down: static objects
/// that were made before cuInit are destroyed after the driver.
CUresult initialise();

/// The checks of every call: CUDA_ERROR_DEINITIALIZED when the process ends
/// ("the CUDA driver is in the process of shutting down"),
/// CUDA_ERROR_NOT_INITIALIZED before cuInit and in a
/// child that was forked after cuInit, CUDA_ERROR_NOT_PERMITTED inside a host
/// function of a stream.
CUresult enter();

/// Does what enter() does, then finds the current context; if this is a green
/// context, its primary context. Returns
/// CUDA_ERROR_INVALID_CONTEXT if there is none, CUDA_ERROR_CONTEXT_IS_DESTROYED
/// if the context was destroyed, and otherwise the context's sticky error.
CUresult enter(CUcontext* context);

/// enter() for calls that need no context. If the current context has a sticky
/// error, these calls return it.
CUresult enter_without_context();

/// True while a stream runs a host function on this thread.
extern thread_local bool inside_host_function;

/// The visible devices, by ordinal. They do not change after initialise().
std::vector<Device>& devices();
bool is_device(int ordinal);
const Device& device_at(int ordinal);
/// The ordinal of a GPU of the profile; -1 if the GPU is not visible.
int ordinal_of_gpu(int gpu);
/// True if the GPU `from` can access memory of the GPU `to`; false if `from`
/// and `to` are the same GPU.
bool can_access_peer(int from, int to);
/// The UUID of a GPU: the same in every process with this profile.
CUuuid gpu_uuid(int gpu);
/// Returns CUDA_ERROR_INVALID_VALUE for an attribute that does not exist.
CUresult device_attribute(int* value, int attribute, int gpu);

/// The PCI bus of all GPUs. A GPU's number on this bus is its number in the
/// machine: real machines, too, have several GPUs on one bus.
inline constexpr int kPciBus = 0x10;

/// The stack of current contexts of this thread.
CUcontext current_context();
void set_current_context(CUcontext context);  ///< null: pops the top
void push_context(CUcontext context);
CUresult pop_context(CUcontext* context);

/// The primary context of a green context; any other context itself.
CUcontext whole_of(CUcontext context);
/// False for anything else, so for a green context that was not converted.
bool is_context(CUcontext context);

CUresult context_create(CUcontext* context, unsigned flags, int device);
/// Waits for all work of the context and frees everything that belongs to the
/// context.
CUresult context_destroy(CUcontext context);
CUresult primary_retain(CUcontext* context, int device);
CUresult primary_release(int device);
CUresult primary_reset(int device);

/// Retains the primary context.
CUresult green_create(CUgreenCtx* green, int device);
/// Waits for the green context's work and ends its streams.
CUresult green_destroy(CUgreenCtx green);
/// The context of a green context that exists; otherwise null.
CUcontext context_of(CUgreenCtx green);
/// The green context of its context; null for any other context.
CUgreenCtx green_of(CUcontext context);

/// cuCtxSetLimit and cuCtxGetLimit, for limits that exist.
void context_set_limit(CUcontext context, CUlimit limit, size_t value);
size_t context_limit(CUcontext context, CUlimit limit);

/// Waits for all work of the context, of a primary context also for the work of
/// its green contexts; returns its sticky error if it has one.
CUresult context_synchronize(CUcontext context);
/// Waits for all work on one device, in all contexts.
void device_drain(int device);

}  // namespace ipclab::model
