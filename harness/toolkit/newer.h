// Declarations from cuda.h of CUDA 12.1 to 13.5 that the suite needs, for a
// build with an older toolkit, from CUDA 12.0 on: a program may look up these
// functions by name in a newer driver. With a toolkit that has the functions,
// this header declares nothing. The assertions below hold for this header and
// for the toolkit.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda.h>

#include <cstddef>

#include "samples/common/toolkit.h"

#define IPCLAB_NEWER_ATTRIBUTE(name, number) \
  constexpr auto name = static_cast<CUdevice_attribute>(number)

#if CUDA_VERSION < 12020
using CUgraphNodeParams = struct CUgraphNodeParams_st {
  CUgraphNodeType type;
  int reserved0[3];
  union {
    long long reserved1[29];
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
  };
  long long reserved2;
};
#endif

#if CUDA_VERSION < 12030
extern "C" CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph,
                                      const CUgraphNode* before,
                                      const struct CUgraphEdgeData_st* edges,
                                      size_t count,
                                      struct CUgraphNodeParams_st* wanted);
#endif
#if CUDA_VERSION < 13000
// A look-up by name returns this form, which CUDA 13 also declares.
#define cuGraphAddNode cuGraphAddNode_v2
#endif

#if CUDA_VERSION < 12040
using CUgreenCtx = struct CUgreenCtx_st*;
using CUdevResourceDesc = struct CUdevResourceDesc_st*;
enum CUdevResourceType {
  CU_DEV_RESOURCE_TYPE_INVALID = 0,
  CU_DEV_RESOURCE_TYPE_SM = 1,
};
struct CUdevSmResource {
  unsigned smCount;
};
struct CUdevResource {
  CUdevResourceType type;
  unsigned char _internal_padding[92];
  union {
    CUdevSmResource sm;
    unsigned char _oversize[48];
  };
};
constexpr unsigned CU_GREEN_CTX_DEFAULT_STREAM = 1;
extern "C" {
CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource,
                                CUdevResourceType type);
CUresult cuDevSmResourceSplitByCount(CUdevResource* result, unsigned* groups,
                                     const CUdevResource* input,
                                     CUdevResource* remaining, unsigned flags,
                                     unsigned least);
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* description,
                                   CUdevResource* resources, unsigned count);
CUresult cuGreenCtxCreate(CUgreenCtx* green, CUdevResourceDesc description,
                          CUdevice device, unsigned flags);
CUresult cuGreenCtxDestroy(CUgreenCtx green);
CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green);
CUresult cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event);
CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event);
}
#endif

#if CUDA_VERSION < 12050
extern "C" {
CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext* context,
                           CUgreenCtx* green);
CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx green,
                                unsigned flags, int priority);
CUresult cuCtxRecordEvent(CUcontext context, CUevent event);
CUresult cuCtxWaitEvent(CUcontext context, CUevent event);
}
#endif

#if CUDA_VERSION < 12080
enum CUprocessState {
  CU_PROCESS_STATE_RUNNING = 0,
  CU_PROCESS_STATE_LOCKED = 1,
  CU_PROCESS_STATE_CHECKPOINTED = 2,
  CU_PROCESS_STATE_FAILED = 3,
};
struct CUcheckpointLockArgs {
  unsigned timeoutMs;
  unsigned reserved0;
  cuuint64_t reserved1[7];
};
struct CUcheckpointCheckpointArgs {
  cuuint64_t reserved[8];
};
struct CUcheckpointRestoreArgs {
  cuuint64_t reserved[8];
};
struct CUcheckpointUnlockArgs {
  cuuint64_t reserved[8];
};
extern "C" {
CUresult cuStreamGetDevice(CUstream stream, CUdevice* device);
CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int* tid);
CUresult cuCheckpointProcessGetState(int pid, CUprocessState* state);
CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args);
CUresult cuCheckpointProcessCheckpoint(int pid,
                                       CUcheckpointCheckpointArgs* args);
CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* args);
CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs* args);
}
#endif

#if CUDA_VERSION < 12080
constexpr unsigned CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE = 1;
#endif

#if CUDA_VERSION < 13000
IPCLAB_NEWER_ATTRIBUTE(CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED, 144);
IPCLAB_NEWER_ATTRIBUTE(
    CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 145);
IPCLAB_NEWER_ATTRIBUTE(CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED, 146);
constexpr auto CU_MEM_ALLOCATION_TYPE_MANAGED =
    static_cast<CUmemAllocationType>(2);
extern "C" {
CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* place,
                                CUmemAllocationType type);
CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* place,
                         CUmemAllocationType type);
CUresult cuMemSetMemPool(CUmemLocation* place, CUmemAllocationType type,
                         CUmemoryPool pool);
}
#endif

#if CUDA_VERSION < 13050
IPCLAB_NEWER_ATTRIBUTE(CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_SUPPORTED,
                       153);
IPCLAB_NEWER_ATTRIBUTE(CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_MULTICAST_SUPPORTED,
                       154);
IPCLAB_NEWER_ATTRIBUTE(
    CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_ACCESS_ON_OWNER_DEVICE_SUPPORTED,
    156);
IPCLAB_NEWER_ATTRIBUTE(
    CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_SUPPORTED_HANDLE_TYPES, 158);

// Cliques of a fabric (CUDA 13.4).
enum CUcliqueType {
  CU_CLIQUE_TYPE_UNICAST_POINTER = 0,
  CU_CLIQUE_TYPE_MULTICAST_POINTER = 1,
  CU_CLIQUE_TYPE_UNICAST_LOGICAL_ENDPOINT = 2,
  CU_CLIQUE_TYPE_MULTICAST_LOGICAL_ENDPOINT = 3,
};
struct CUcliqueInfo {
  CUcliqueType type;
  unsigned id;
};

// Logical endpoints (CUDA 13.3).
using CUlogicalEndpointId = cuuint32_t;
enum CUlogicalEndpointIpcHandleType {
  CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_NONE = 0,
  CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC = 1,
};
enum CUlogicalEndpointType {
  CU_LOGICAL_ENDPOINT_TYPE_INVALID = 0,
  CU_LOGICAL_ENDPOINT_TYPE_UNICAST = 1,
  CU_LOGICAL_ENDPOINT_TYPE_MULTICAST = 2,
};
enum CUlogicalEndpointFlag {
  CU_LOGICAL_ENDPOINT_FLAG_NONE = 0,
  CU_LOGICAL_ENDPOINT_FLAG_COUNTED_OPS = 1,
};
struct CUlogicalEndpointFabricHandle {
  unsigned char data[CU_IPC_HANDLE_SIZE];
};
struct CUlogicalEndpointProp {
  CUlogicalEndpointType type;
  union {
    struct {
      CUdevice device;
    } unicast;
    struct {
      unsigned numDevices;
    } multicast;
  };
  unsigned long long size;
  unsigned ipcHandleTypes;
  unsigned flags;
};

// Copies over a fabric (CUDA 13.5).
enum CUfabricCpyOperandType {
  CU_FABRIC_COPY_OPERAND_TYPE_POINTER = 1,
  CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT = 2,
};
struct CUfabricCpyOperand {
  CUfabricCpyOperandType type;
  union {
    struct {
      CUdeviceptr ptr;
      CUmemLocation locHint;
    } ptr;
    struct {
      CUlogicalEndpointId id;
      cuuint64_t offset;
    } le;
  } op;
};
struct CUDA_FABRIC_COPY_BATCH_OP {
  CUfabricCpyOperand src;
  CUfabricCpyOperand dst;
  size_t size;
  unsigned flags;
};

extern "C" {
CUresult cuDeviceGetFabricClusterUuid(CUuuid* uuid, CUdevice device);
CUresult cuDeviceGetCliqueCount(size_t* count, CUdevice device);
CUresult cuDeviceGetCliqueInfo(CUcliqueInfo* cliques, size_t* count,
                               CUdevice device);
CUresult cuLogicalEndpointIdReserve(CUlogicalEndpointId* first,
                                    cuuint32_t count);
CUresult cuLogicalEndpointIdRelease(CUlogicalEndpointId first,
                                    cuuint32_t count);
CUresult cuLogicalEndpointCreate(CUlogicalEndpointId id,
                                 const CUlogicalEndpointProp* wanted);
CUresult cuLogicalEndpointAddDevice(CUlogicalEndpointId id, CUdevice device);
CUresult cuLogicalEndpointDestroy(CUlogicalEndpointId id);
CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId id, CUdevice device,
                                   cuuint64_t offset, void* address,
                                   cuuint64_t size, unsigned long long flags);
CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId id, CUdevice device,
                                  cuuint64_t offset,
                                  CUmemGenericAllocationHandle memory,
                                  cuuint64_t memory_offset, cuuint64_t size,
                                  unsigned long long flags);
CUresult cuLogicalEndpointUnbind(CUlogicalEndpointId id, CUdevice device,
                                 cuuint64_t offset, cuuint64_t size);
CUresult cuLogicalEndpointExport(void* handle, CUlogicalEndpointId id,
                                 CUlogicalEndpointIpcHandleType type);
CUresult cuLogicalEndpointImport(CUlogicalEndpointId id, const void* handle,
                                 CUlogicalEndpointIpcHandleType type);
CUresult cuLogicalEndpointGetLimits(cuuint64_t* alignment, cuuint64_t* most,
                                    const CUlogicalEndpointProp* wanted);
CUresult cuLogicalEndpointQuery(CUlogicalEndpointId id, cuuint32_t count,
                                int* status);
CUresult cuFabricCpyBatchAsync(size_t count, CUDA_FABRIC_COPY_BATCH_OP* list,
                               unsigned long long flags, CUstream stream);
}
#endif

// Batches of copies (CUDA 12.8; CUDA 13.0 has another form), and single copies
// with attributes (CUDA 13.2).
#if CUDA_VERSION < 12080
enum CUmemcpyFlags {
  CU_MEMCPY_FLAG_DEFAULT = 0,
  CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE = 1,
};
enum CUmemcpySrcAccessOrder {
  CU_MEMCPY_SRC_ACCESS_ORDER_INVALID = 0,
  CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1,
  CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL = 2,
  CU_MEMCPY_SRC_ACCESS_ORDER_ANY = 3,
  CU_MEMCPY_SRC_ACCESS_ORDER_MAX = 0x7FFFFFFF,
};
struct CUmemcpyAttributes {
  CUmemcpySrcAccessOrder srcAccessOrder;
  CUmemLocation srcLocHint;
  CUmemLocation dstLocHint;
  unsigned flags;
};
enum CUmemcpy3DOperandType {
  CU_MEMCPY_OPERAND_TYPE_POINTER = 1,
  CU_MEMCPY_OPERAND_TYPE_ARRAY = 2,
};
struct CUoffset3D {
  size_t x, y, z;
};
struct CUextent3D {
  size_t width, height, depth;
};
struct CUmemcpy3DOperand {
  CUmemcpy3DOperandType type;
  union {
    struct {
      CUdeviceptr ptr;
      size_t rowLength;
      size_t layerHeight;
      CUmemLocation locHint;
    } ptr;
    struct {
      CUarray array;
      CUoffset3D offset;
    } array;
  } op;
};
struct CUDA_MEMCPY3D_BATCH_OP {
  CUmemcpy3DOperand src;
  CUmemcpy3DOperand dst;
  CUextent3D extent;
  CUmemcpySrcAccessOrder srcAccessOrder;
  unsigned flags;
};
#endif

#if CUDA_VERSION < 13000
#undef cuMemcpyBatchAsync
#undef cuMemcpy3DBatchAsync
// A look-up by name in a driver of CUDA 13 returns these forms.
#define cuMemcpyBatchAsync cuMemcpyBatchAsync_v2
#define cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_v2
extern "C" {
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from,
                               size_t* sizes, size_t count,
                               CUmemcpyAttributes* attributes,
                               size_t* first_copies, size_t kinds,
                               CUstream stream);
CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP* list,
                                 unsigned long long flags, CUstream stream);
}
#endif

extern "C" {
#if CUDA_VERSION < 13020
CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from,
                                     size_t size,
                                     CUmemcpyAttributes* attributes,
                                     CUstream stream);
CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP* wanted,
                                       unsigned long long flags,
                                       CUstream stream);
#endif
// The forms of CUDA 12.8 and 12.9, which drivers keep under the names
// cuMemcpyBatchAsync and cuMemcpy3DBatchAsync of these versions. No library has
// the names below.
CUresult cuMemcpyBatchAsync_v1(CUdeviceptr* to, CUdeviceptr* from,
                               size_t* sizes, size_t count,
                               CUmemcpyAttributes* attributes,
                               size_t* first_copies, size_t kinds,
                               size_t* failed, CUstream stream);
CUresult cuMemcpy3DBatchAsync_v1(size_t count, CUDA_MEMCPY3D_BATCH_OP* list,
                                 size_t* failed, unsigned long long flags,
                                 CUstream stream);
}

#if CUDA_VERSION < 13000
enum CUatomicOperation : unsigned {};
extern "C" CUresult cuDeviceGetP2PAtomicCapabilities(
    unsigned* capabilities, const CUatomicOperation* operations, unsigned count,
    CUdevice from, CUdevice to);
#endif
#undef IPCLAB_NEWER_ATTRIBUTE

static_assert(CU_DEV_RESOURCE_TYPE_SM == 1);
static_assert(CU_GREEN_CTX_DEFAULT_STREAM == 1);
static_assert(sizeof(CUdevResource) == 144);
static_assert(offsetof(CUdevResource, sm) == 96);
static_assert(CU_PROCESS_STATE_FAILED == 3);
static_assert(sizeof(CUcheckpointLockArgs) == 64);
static_assert(offsetof(CUcheckpointLockArgs, timeoutMs) == 0);
static_assert(sizeof(CUcheckpointRestoreArgs) == 64);
static_assert(CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED == 144);
static_assert(CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ==
              145);
static_assert(CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED == 146);
static_assert(CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE == 1);
static_assert(CU_MEM_ALLOCATION_TYPE_MANAGED == 2);
static_assert(CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_SUPPORTED == 153);
static_assert(CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_MULTICAST_SUPPORTED == 154);
static_assert(
    CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_ACCESS_ON_OWNER_DEVICE_SUPPORTED ==
    156);
static_assert(CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_SUPPORTED_HANDLE_TYPES ==
              158);
static_assert(CU_CLIQUE_TYPE_MULTICAST_LOGICAL_ENDPOINT == 3);
static_assert(sizeof(CUcliqueInfo) == 8);
static_assert(CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC == 1);
static_assert(CU_LOGICAL_ENDPOINT_TYPE_MULTICAST == 2);
static_assert(CU_LOGICAL_ENDPOINT_FLAG_COUNTED_OPS == 1);
static_assert(sizeof(CUlogicalEndpointFabricHandle) == 64);
static_assert(sizeof(CUlogicalEndpointProp) == 24);
static_assert(offsetof(CUlogicalEndpointProp, unicast) == 4);
static_assert(offsetof(CUlogicalEndpointProp, size) == 8);
static_assert(offsetof(CUlogicalEndpointProp, flags) == 20);
static_assert(CU_FABRIC_COPY_OPERAND_TYPE_POINTER == 1);
static_assert(CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT == 2);
static_assert(sizeof(CUfabricCpyOperand) == 24);
static_assert(offsetof(CUfabricCpyOperand, op) == 8);
static_assert(offsetof(CUfabricCpyOperand, op.le.offset) == 16);
static_assert(sizeof(CUDA_FABRIC_COPY_BATCH_OP) == 64);
static_assert(offsetof(CUDA_FABRIC_COPY_BATCH_OP, size) == 48);
static_assert(CU_MEMCPY_SRC_ACCESS_ORDER_ANY == 3);
static_assert(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE == 1);
static_assert(CU_MEMCPY_OPERAND_TYPE_ARRAY == 2);
static_assert(sizeof(CUmemcpyAttributes) == 24);
static_assert(offsetof(CUmemcpyAttributes, flags) == 20);
static_assert(sizeof(CUmemcpy3DOperand) == 40);
static_assert(offsetof(CUmemcpy3DOperand, op.ptr.locHint) == 32);
static_assert(sizeof(CUDA_MEMCPY3D_BATCH_OP) == 112);
static_assert(offsetof(CUDA_MEMCPY3D_BATCH_OP, srcAccessOrder) == 104);
