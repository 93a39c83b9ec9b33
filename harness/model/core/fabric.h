// SPDX-License-Identifier: Apache-2.0
// Fabric handles: 64 bytes of plain data that name memory on another node. The
// model has no second node, so an exporter answers for its handles on a socket
// that has a name but no file; descriptors and /proc are not shared. Both sides
// must have been granted the same IMEX channel.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace ipclab::model {

/// The channel that this process may use: IPCLAB_MODEL_IMEX_CHANNEL (a number,
/// or "none"), else channel 0 where the profile has one.
std::optional<uint64_t> imex_channel();

/// Writes a handle of the memory behind a descriptor, of a chunk or of a pool.
/// It does not keep the memory: when the exporter has let go of `owner`, the
/// handle names nothing. `id` is the memory's own.
void fabric_export(uint64_t id, const std::shared_ptr<const void>& owner,
                   int descriptor, void* handle);

/// A new descriptor of what a handle names. CUDA_ERROR_NOT_PERMITTED without
/// the exporter's channel, CUDA_ERROR_INVALID_VALUE for bytes that are no
/// handle and when exporter or memory are gone.
CUresult fabric_import(const void* handle, int* descriptor);

}  // namespace ipclab::model
