// SPDX-License-Identifier: Apache-2.0
// Legacy event handles.
#include <sys/stat.h>

#include <cstring>

#include "core/device.h"
#include "core/event.h"
#include "core/handle.h"
#include "core/ipc.h"
#include "core/profile.h"

namespace ipclab::model {
namespace {

// Drivers keep the state of a shared event in a file of /dev/shm, so processes
// without a common /dev/shm cannot share events.
uint64_t shared_memory_filesystem() {
  struct stat found {};
  return stat("/dev/shm", &found) == 0 ? found.st_dev : 0;
}

}  // namespace

CUresult ipc_get_event(void* out, CUevent handle) {
  if (!profile().ipc_events) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const std::shared_ptr<CUevent_st> event = find_event(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const bool exportable =
      (event->flags & CU_EVENT_INTERPROCESS) != 0 && !event->imported;
  if (!exportable) return CUDA_ERROR_INVALID_HANDLE;
  Handle made{};
  made.object = event->state->id();
  made.descriptor = event->state->descriptor();
  made.gpu = static_cast<uint32_t>(event->context->gpu);
  made.occupant = shared_memory_filesystem();
  seal(HandleKind::kEvent, &made);
  std::memcpy(out, &made, sizeof made);
  return CUDA_SUCCESS;
}

CUresult ipc_open_event(CUcontext context, CUevent* event, const void* bytes) {
  if (!profile().ipc_events) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  Handle handle;
  std::memcpy(&handle, bytes, sizeof handle);
  if (!is_sealed(HandleKind::kEvent, handle)) return CUDA_ERROR_MAP_FAILED;
  if (is_own(handle)) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle.occupant != shared_memory_filesystem()) {
    return CUDA_ERROR_MAP_FAILED;
  }
  std::shared_ptr<EventState> state = EventState::adopt(open_remote(handle));
  if (state == nullptr || state->id() != handle.object) {
    return CUDA_ERROR_MAP_FAILED;
  }
  *event = adopt_event(context, std::move(state));
  return CUDA_SUCCESS;
}

}  // namespace ipclab::model
