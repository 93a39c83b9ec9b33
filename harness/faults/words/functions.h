// Functions that many faults break, and groups of them, by short names.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ipclab::faults {

constexpr auto kGetHandle = "cudaIpcGetMemHandle";
constexpr auto kOpen = "cudaIpcOpenMemHandle";
constexpr auto kClose = "cudaIpcCloseMemHandle";
constexpr auto kGetEventHandle = "cudaIpcGetEventHandle";
constexpr auto kOpenEvent = "cudaIpcOpenEventHandle";
constexpr auto kCreateEvent = "cudaEventCreateWithFlags";
constexpr auto kDestroyEvent = "cudaEventDestroy";
constexpr auto kRecord = "cudaEventRecord";
constexpr auto kRecordFlags = "cudaEventRecordWithFlags";
constexpr auto kQueryEvent = "cudaEventQuery";
constexpr auto kSyncEvent = "cudaEventSynchronize";
constexpr auto kWaitEvent = "cudaStreamWaitEvent";
constexpr auto kDestroyStream = "cudaStreamDestroy";
constexpr auto kSyncStream = "cudaStreamSynchronize";
constexpr auto kQueryStream = "cudaStreamQuery";
constexpr auto kSyncDevice = "cudaDeviceSynchronize";
constexpr auto kSyncContext = "cuCtxSynchronize";
constexpr auto kReset = "cudaDeviceReset";
constexpr auto kLaunch = "cudaLaunchKernel";
constexpr auto kHostFunction = "cudaLaunchHostFunc";
constexpr auto kLaunchGraph = "cudaGraphLaunch";
constexpr auto kMalloc = "cudaMalloc";
constexpr auto kFree = "cudaFree";
constexpr auto kCopy = "cudaMemcpy";
constexpr auto kCopyAsync = "cudaMemcpyAsync";
constexpr auto kCopy2D = "cudaMemcpy2D";
constexpr auto kCopy2DAsync = "cudaMemcpy2DAsync";
constexpr auto kSet = "cudaMemset";
constexpr auto kSetAsync = "cudaMemsetAsync";
constexpr auto kSet2DAsync = "cudaMemset2DAsync";
constexpr auto kWaitWord = "cuStreamWaitValue32";
constexpr auto kWaitWord64 = "cuStreamWaitValue64";
constexpr auto kWriteWord = "cuStreamWriteValue32";
constexpr auto kWriteWord64 = "cuStreamWriteValue64";
constexpr auto kBatch = "cuStreamBatchMemOp";
constexpr auto kGetAttribute = "cuPointerGetAttribute";
constexpr auto kGetAttributes = "cuPointerGetAttributes";
constexpr auto kPointerAttributes = "cudaPointerGetAttributes";
constexpr auto kCreate = "cuMemCreate";
constexpr auto kRelease = "cuMemRelease";
constexpr auto kRetain = "cuMemRetainAllocationHandle";
constexpr auto kExport = "cuMemExportToShareableHandle";
constexpr auto kImport = "cuMemImportFromShareableHandle";
constexpr auto kReserve = "cuMemAddressReserve";
constexpr auto kFreeAddress = "cuMemAddressFree";
constexpr auto kGetProperties = "cuMemGetAllocationPropertiesFromHandle";
constexpr auto kGetRange = "cuMemGetHandleForAddressRange";
constexpr auto kMap = "cuMemMap";
constexpr auto kUnmap = "cuMemUnmap";
constexpr auto kSetAccess = "cuMemSetAccess";
constexpr auto kGetAccess = "cuMemGetAccess";
constexpr auto kMallocAsync = "cudaMallocAsync";
constexpr auto kMallocFromPool = "cudaMallocFromPoolAsync";
constexpr auto kFreeAsync = "cudaFreeAsync";
constexpr auto kCreatePool = "cudaMemPoolCreate";
constexpr auto kDestroyPool = "cudaMemPoolDestroy";
constexpr auto kTrim = "cudaMemPoolTrimTo";
constexpr auto kSetPoolAttribute = "cudaMemPoolSetAttribute";
constexpr auto kGetPoolAttribute = "cudaMemPoolGetAttribute";
constexpr auto kSetPoolAccess = "cudaMemPoolSetAccess";
constexpr auto kGetPoolAccess = "cudaMemPoolGetAccess";
constexpr auto kExportPool = "cudaMemPoolExportToShareableHandle";
constexpr auto kImportPool = "cudaMemPoolImportFromShareableHandle";
constexpr auto kExportPointer = "cudaMemPoolExportPointer";
constexpr auto kImportPointer = "cudaMemPoolImportPointer";
constexpr auto kSetPool = "cudaDeviceSetMemPool";
constexpr auto kFabricCopies = "cuFabricCpyBatchAsync";

}  // namespace ipclab::faults
