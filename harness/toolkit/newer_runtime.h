// Declarations of newer functions, as in newer.h, for cuda_runtime_api.h. An
// older runtime does not have these functions: a program must first see that
// the address is not null.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include "samples/common/toolkit.h"

/// Has the runtime of this build functions that find a pool by a location?
constexpr bool kPoolsOfLocations = CUDART_VERSION >= 13000;
/// Has the toolkit of this build the function that adds a node of any type to a
/// graph, in the form that also takes the data of the edges?
#define IPCLAB_NODES_OF_ANY_TYPE (CUDART_VERSION >= 12030)

#if CUDART_VERSION < 12030
extern "C" cudaError_t cudaGraphAddNode_v2(
    cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* before,
    const struct cudaGraphEdgeData* edges, size_t count,
    struct cudaGraphNodeParams* wanted);
#endif
#if CUDART_VERSION < 13000
// The form that CUDA 13 declares.
#define cudaGraphAddNode cudaGraphAddNode_v2
#endif

/// Moves managed memory to a GPU, which becomes its preferred place. In CUDA 12
/// by the functions that take a device: a driver before 12.2 does not know the
/// functions that take a place.
inline cudaError_t move_to_gpu(void* memory, size_t bytes, int device) {
#if CUDART_VERSION < 13000
  const int place = device;
  const auto prefetch = [&] {
    return cudaMemPrefetchAsync(memory, bytes, place, cudaStream_t{});
  };
#else
  const cudaMemLocation place{cudaMemLocationTypeDevice, device};
  const auto prefetch = [&] {
    return cudaMemPrefetchAsync(memory, bytes, place, 0, cudaStream_t{});
  };
#endif
  const cudaError_t code =
      cudaMemAdvise(memory, bytes, cudaMemAdviseSetPreferredLocation, place);
  return code == cudaSuccess ? prefetch() : code;
}

#if CUDART_VERSION < 12030
constexpr auto cudaLaunchAttributeLaunchCompletionEvent =
    static_cast<cudaLaunchAttributeID>(12);
// This field of cudaLaunchAttributeValue begins like the older field.
#define launchCompletionEvent programmaticEvent
#endif

#if CUDART_VERSION < 12090
constexpr auto cudaDevAttrHostNumaMemoryPoolsSupported =
    static_cast<cudaDeviceAttr>(142);
#endif

#if CUDART_VERSION < 13000
enum cudaAtomicOperation : unsigned {};
constexpr auto cudaMemLocationTypeNone = static_cast<cudaMemLocationType>(0);
constexpr auto cudaMemAllocationTypeManaged =
    static_cast<cudaMemAllocationType>(2);
extern "C" {
[[gnu::weak]] cudaError_t cudaMemGetDefaultMemPool(cudaMemPool_t* pool,
                                                   cudaMemLocation* place,
                                                   cudaMemAllocationType type);
[[gnu::weak]] cudaError_t cudaMemGetMemPool(cudaMemPool_t* pool,
                                            cudaMemLocation* place,
                                            cudaMemAllocationType type);
[[gnu::weak]] cudaError_t cudaDeviceGetP2PAtomicCapabilities(
    unsigned* capabilities, const cudaAtomicOperation* operations,
    unsigned count, int from, int to);
[[gnu::weak]] cudaError_t cudaMemSetMemPool(cudaMemLocation* place,
                                            cudaMemAllocationType type,
                                            cudaMemPool_t pool);
}
#endif

#if CUDART_VERSION < 13010
extern "C" cudaError_t cudaGraphGetId(cudaGraph_t graph, unsigned* id);
#endif

static_assert(cudaDevAttrHostNumaMemoryPoolsSupported == 142);
static_assert(cudaMemAllocationTypeManaged == 2);
