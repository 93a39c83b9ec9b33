// SPDX-License-Identifier: Apache-2.0
// Logical endpoints: ranges of offsets to which processes bind memory. Each
// process has its own number for an endpoint. This file also has the copies to
// and from endpoints.
//
// The processes share one memfd for each endpoint: its properties, its team and
// its bindings. A binding names memory by a fabric handle. So all processes
// also see memory that is bound after the export.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/stream.h"
#include "harness/toolkit/newer.h"

namespace ipclab::model {

/// All GPUs of a profile with endpoints are in this cluster and this clique.
constexpr char kFabricCluster[16] = "ipclab fabric 1";
constexpr unsigned kCliqueId = 1;

/// Returns CUDA_ERROR_NOT_SUPPORTED unless the profile has endpoints. All
/// functions below do the same.
CUresult endpoint_ids_reserve(uint32_t count, CUlogicalEndpointId* first);
/// All numbers must be reserved and have no endpoint. Otherwise the call
/// releases no number and returns CUDA_ERROR_INVALID_VALUE.
CUresult endpoint_ids_release(CUlogicalEndpointId first, uint32_t count);
CUresult endpoint_limits(const CUlogicalEndpointProp& wanted,
                         uint64_t* alignment, uint64_t* most);
CUresult endpoint_create(CUlogicalEndpointId id,
                         const CUlogicalEndpointProp& wanted);
/// Returns CUDA_ERROR_INVALID_VALUE for a unicast endpoint, a device that is
/// already in the team, and a team that is complete.
CUresult endpoint_add_device(CUlogicalEndpointId id, int device);
CUresult endpoint_destroy(CUlogicalEndpointId id);
/// Sets `*status` to 1 if all of these endpoints are ready, otherwise to 0.
CUresult endpoint_query(CUlogicalEndpointId first, uint32_t count, int* status);

/// Returns CUDA_ERROR_INVALID_VALUE for everything that the documentation
/// forbids.
CUresult endpoint_bind_address(CUlogicalEndpointId id, int device,
                               uint64_t offset, uint64_t address,
                               uint64_t size);
CUresult endpoint_bind_memory(CUlogicalEndpointId id, int device,
                              uint64_t offset,
                              CUmemGenericAllocationHandle memory,
                              uint64_t memory_offset, uint64_t size);
/// Removes one or more whole bindings of this process, without a hole.
CUresult endpoint_unbind(CUlogicalEndpointId id, int device, uint64_t offset,
                         uint64_t size);

/// Returns CUDA_ERROR_INVALID_VALUE unless the type was requested at the
/// creation.
CUresult endpoint_export(CUlogicalEndpointId id,
                         CUlogicalEndpointIpcHandleType type, void* handle);
/// Returns CUDA_ERROR_NOT_PERMITTED without the exporter's IMEX channel.
CUresult endpoint_import(CUlogicalEndpointId id, const void* handle,
                         CUlogicalEndpointIpcHandleType type);

/// Does all copies in the order of the stream, or no copy. Returns
/// CUDA_ERROR_INVALID_VALUE for the legacy default stream, for operands that
/// the documentation forbids, and for offsets to which no memory is bound.
CUresult endpoint_copy(const std::shared_ptr<Stream>& stream, CUcontext current,
                       const std::vector<CUDA_FABRIC_COPY_BATCH_OP>& list);

}  // namespace ipclab::model
