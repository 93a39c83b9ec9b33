// SPDX-License-Identifier: Apache-2.0
// Fabric handles: 64 bytes of plain data that name memory on another node. The
// model has no second node. So an exporter answers requests for its handles on
// a socket that has a name but no file. The importer needs neither a descriptor
// from the program nor the exporter's entry in /proc. Both sides must have
// access to the same IMEX channel.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

namespace ipclab::model {

/// May this process create fabric memory? The process needs an IMEX channel.
/// IPCLAB_MODEL_IMEX_CHANNEL names the channel (a number, or "none"). Without
/// the variable, the process has channel 0 if the profile has a channel.
bool has_imex_channel();

/// CUDA_ERROR_FABRIC_NOT_READY (CUDA 13.4) if the profile has a late fabric,
/// for a fifth of a second from the first call in this process on; then
/// CUDA_SUCCESS.
CUresult fabric_is_ready();

/// Writes a handle for a descriptor that is open as long as `owner` exists;
/// `id` identifies the memory. The handle does not keep the memory: after the
/// owner has ended, the handle names nothing.
void fabric_export(uint64_t id, int descriptor,
                   const std::shared_ptr<const void>& owner, void* handle);

/// Gets a new descriptor of the object that a handle names. `*descriptor` must
/// be -1 before the call. Returns CUDA_ERROR_NOT_PERMITTED without the
/// exporter's channel, CUDA_ERROR_INVALID_VALUE for bytes that are not a
/// handle, for another user's handle, and if the exporter has ended or has
/// freed the memory.
CUresult fabric_import(const void* handle, int* descriptor);

}  // namespace ipclab::model
