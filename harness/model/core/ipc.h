// SPDX-License-Identifier: Apache-2.0
// Legacy interprocess communication: handles of memory and of events, reference
// counts and the one-context rule (Driver API, cuIpc*; Programming Guide,
// interprocess communication).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace ipclab::model {

struct Machine;

/// Returns CUDA_ERROR_INVALID_VALUE unless the address lies in cuMemAlloc
/// memory.
CUresult ipc_get_memory(void* handle, uint64_t address);
/// Returns these codes. Each code was observed on an H200 unless the
/// documentation is named. CUDA_ERROR_INVALID_VALUE for bytes that are not a
/// handle, for flags other than CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, and for
/// memory that was freed; CUDA_ERROR_INVALID_CONTEXT in the process that
/// exported the memory; CUDA_ERROR_INVALID_HANDLE when the exporter has ended,
/// and for a second context of a device (from the documentation: the context is
/// valid, but the handle is not for this context); CUDA_ERROR_MAP_FAILED when
/// this process may not open the exporter's descriptors, and between GPUs that
/// are not peers (the documentation names no other code for this);
/// CUDA_ERROR_TOO_MANY_PEERS as peer_enable() returns it.
CUresult ipc_open_memory(CUcontext context, uint64_t* address,
                         const void* handle, unsigned flags);
/// Returns CUDA_ERROR_INVALID_VALUE for an address that ipc_open_memory did not
/// return, or that was already closed as often as it was opened.
CUresult ipc_close_memory(uint64_t address);
/// Unmaps everything that a context has open.
void close_imports(Machine& machine, CUcontext context);

/// Returns CUDA_ERROR_INVALID_HANDLE for an event without CU_EVENT_INTERPROCESS
/// and for an imported event.
CUresult ipc_get_event(void* handle, CUevent event);
/// Returns CUDA_ERROR_MAP_FAILED for bytes that are not a handle, if the event
/// no longer exists, and if the exporter has another /dev/shm. Returns
/// CUDA_ERROR_INVALID_CONTEXT in the process that exported the event.
CUresult ipc_open_event(CUcontext context, CUevent* event, const void* handle);

}  // namespace ipclab::model
