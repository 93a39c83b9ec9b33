// SPDX-License-Identifier: Apache-2.0
// Streams, host functions and local events.
#include <atomic>
#include <ctime>
#include <functional>
#include <vector>

#include "gpu.h"
#include "peer.h"

using namespace ipclab::model::test;

namespace {

TEST(Stream, LaunchesAreAsynchronous) {
  int* flag = shared_word();
  cudaStream_t stream = stream_with(cudaStreamNonBlocking);
  ASSERT_EQ(launch("spin_until", 1, 1, stream, flag, 1), CUDA_SUCCESS);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  release(flag);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  EXPECT_EQ(cudaFreeHost(flag), cudaSuccess);
}

TEST(Stream, LegacyStreamWaitsForBlockingStreams) {
  int* flag = shared_word();
  int* data = allocate<int>(1);
  cudaStream_t stream = stream_with(cudaStreamDefault);
  ASSERT_EQ(launch("spin_until", 1, 1, stream, flag, 1), CUDA_SUCCESS);
  ASSERT_EQ(launch("write_one", 1, 1, stream, data, 7), CUDA_SUCCESS);
  ASSERT_EQ(launch("write_one", 1, 1, nullptr, data, 8), CUDA_SUCCESS);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  release(flag);
  EXPECT_EQ(read_back(data, 1)[0], 8);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(flag), cudaSuccess);
}

TEST(Stream, NonBlockingStreamIgnoresTheLegacyStream) {
  int* flag = shared_word();
  cudaStream_t stream = stream_with(cudaStreamNonBlocking);
  ASSERT_EQ(launch("spin_until", 1, 1, nullptr, flag, 1), CUDA_SUCCESS);
  int* word = shared_word();
  ASSERT_EQ(launch("write_one", 1, 1, stream, word, 3), CUDA_SUCCESS);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(*word, 3);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  release(flag);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(word), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(flag), cudaSuccess);
}

TEST(Stream, HostFunctionsRunInOrderAndMayNotCallCuda) {
  struct State {
    std::atomic<int> calls{0};
    cudaError_t refused = cudaSuccess;
  } state;
  cudaStream_t stream = stream_with(cudaStreamNonBlocking);
  ASSERT_EQ(cudaLaunchHostFunc(
                stream,
                [](void* data) {
                  auto* seen = static_cast<State*>(data);
                  void* pointer = nullptr;
                  seen->refused = cudaMalloc(&pointer, 4);
                  ++seen->calls;
                },
                &state),
            cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(state.calls, 1);
  EXPECT_EQ(state.refused, cudaErrorNotPermitted);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(Stream, PageableSourcesMayChangeAfterTheCall) {
  int* flag = shared_word();
  int* data = allocate<int>(1);
  cudaStream_t stream = stream_with(cudaStreamNonBlocking);
  ASSERT_EQ(launch("spin_until", 1, 1, stream, flag, 1), CUDA_SUCCESS);
  int source = 11;
  ASSERT_EQ(cudaMemcpyAsync(data, &source, sizeof source,
                            cudaMemcpyHostToDevice, stream),
            cudaSuccess);
  source = 12;
  release(flag);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(read_back(data, 1)[0], 11);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(flag), cudaSuccess);
}

TEST(Event, OrdersStreamsAndReportsItsState) {
  int* flag = shared_word();
  int* data = allocate<int>(1);
  cudaStream_t first = stream_with(cudaStreamNonBlocking);
  cudaStream_t second = stream_with(cudaStreamNonBlocking);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);  // never recorded
  ASSERT_EQ(launch("spin_until", 1, 1, first, flag, 1), CUDA_SUCCESS);
  ASSERT_EQ(launch("write_one", 1, 1, first, data, 1), CUDA_SUCCESS);
  ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second, event), cudaSuccess);
  ASSERT_EQ(launch("write_one", 1, 1, second, data, 2), CUDA_SUCCESS);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  release(flag);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_EQ(read_back(data, 1)[0], 2);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  EXPECT_EQ(cudaStreamDestroy(first), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(second), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(flag), cudaSuccess);
}

TEST(Event, IsRecordedInItsOwnContextOnly) {
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  CUcontext other = nullptr;
  ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  EXPECT_EQ(cuEventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxDestroy(other), CUDA_SUCCESS);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST(Stream, ACallThatCannotBeCapturedSpoilsTheCapture) {
  cudaStream_t stream = stream_with(cudaStreamNonBlocking);
  for (const auto& call : std::vector<std::function<cudaError_t()>>{
           [&] { return cudaStreamSynchronize(stream); },
           [&] { return cudaStreamQuery(stream); }}) {
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal),
              cudaSuccess);
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    cudaStreamCaptureStatus status;
    EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
    EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph),
              cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(Event, IsRecordedAndAwaitedByEachLaunchOfAGraph) {
  int* flag = shared_word();
  int* data = allocate<int>(1);
  cudaStream_t other = stream_with(cudaStreamNonBlocking);
  cudaStream_t stream = stream_with(cudaStreamNonBlocking);
  cudaEvent_t before = nullptr, behind = nullptr;
  ASSERT_EQ(cudaEventCreate(&before), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&behind), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal),
            cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream, before, cudaEventWaitExternal),
            cudaSuccess);
  EXPECT_EQ(launch("write_one", 1, 1, stream, data, 7), CUDA_SUCCESS);
  EXPECT_EQ(cudaEventRecordWithFlags(behind, stream, cudaEventRecordExternal),
            cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);

  // The launch waits for the event that is recorded after the capture.
  ASSERT_EQ(launch("spin_until", 1, 1, other, flag, 1), CUDA_SUCCESS);
  ASSERT_EQ(launch("write_one", 1, 1, other, data, 1), CUDA_SUCCESS);
  ASSERT_EQ(cudaEventRecord(before, other), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  cudaGetLastError();
  EXPECT_EQ(cudaEventQuery(behind), cudaSuccess);  // never recorded
  release(flag);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(read_back(data, 1)[0], 7);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, before, behind), cudaSuccess);
  EXPECT_GE(milliseconds, 0);

  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(before), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(behind), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(flag), cudaSuccess);
}

TEST(Event, MeasuresTime) {
  cudaEvent_t start, stop, untimed;
  ASSERT_EQ(cudaEventCreate(&start), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&stop), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming),
            cudaSuccess);
  float ms = -1;
  EXPECT_EQ(cudaEventElapsedTime(&ms, start, stop),
            cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaEventRecord(start), cudaSuccess);
  ASSERT_EQ(cudaLaunchHostFunc(
                nullptr,
                [](void*) {
                  const timespec pause{0, 5000000};
                  nanosleep(&pause, nullptr);
                },
                nullptr),
            cudaSuccess);
  ASSERT_EQ(cudaEventRecord(stop), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(untimed), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(untimed), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&ms, start, stop), cudaSuccess);
  EXPECT_GE(ms, 4.9f);
  EXPECT_EQ(cudaEventElapsedTime(&ms, start, untimed),
            cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  for (cudaEvent_t event : {start, stop, untimed}) {
    EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  }
}

TEST(Module, VariablesAndUnknownNames) {
  ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoad(&module, IPCLAB_TEST_PTX), CUDA_SUCCESS);
  CUdeviceptr counter = 0;
  size_t size = 0;
  ASSERT_EQ(cuModuleGetGlobal(&counter, &size, module, "counter"),
            CUDA_SUCCESS);
  EXPECT_EQ(size, sizeof(int));
  CUfunction bump = nullptr;
  ASSERT_EQ(cuModuleGetFunction(&bump, module, "bump"), CUDA_SUCCESS);
  ASSERT_EQ(
      cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
      CUDA_SUCCESS);
  EXPECT_EQ(read_back(reinterpret_cast<int*>(counter), 1)[0], 42);
  EXPECT_EQ(cuModuleGetFunction(&bump, module, "nothing"),
            CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleLoadData(&module, "no image"),
            CUDA_ERROR_NO_BINARY_FOR_GPU);
}

TEST(Module, AStaleFunctionIsRefused) {
  ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoad(&module, IPCLAB_TEST_PTX), CUDA_SUCCESS);
  CUfunction bump = nullptr;
  ASSERT_EQ(cuModuleGetFunction(&bump, module, "bump"), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  const auto refused = [](CUfunction function) {
    EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr,
                             nullptr),
              CUDA_ERROR_INVALID_HANDLE);
    int value = 0;
    EXPECT_EQ(cuFuncGetAttribute(
                  &value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function),
              CUDA_ERROR_INVALID_HANDLE);
  };
  refused(bump);
  refused(reinterpret_cast<CUfunction>(&module));
}

TEST(Module, EntryPointsByName) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status;
  ASSERT_EQ(cuGetProcAddress("cuMemAlloc", &function, 13000, 0, &status),
            CUDA_SUCCESS);
  EXPECT_EQ(function, reinterpret_cast<void*>(&cuMemAlloc));
  EXPECT_EQ(cuGetProcAddress("cuCtxGetDevice", &function, 12000, 0, &status),
            CUDA_SUCCESS);
  EXPECT_EQ(function, reinterpret_cast<void*>(&cuCtxGetDevice));
  EXPECT_EQ(cuGetProcAddress("cuNothing", &function, 13000, 0, &status),
            CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  cudaDriverEntryPointQueryResult found;
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuIpcOpenMemHandle", &function,
                                             13000, cudaEnableDefault, &found),
            cudaSuccess);
  EXPECT_EQ(function, reinterpret_cast<void*>(&cuIpcOpenMemHandle));
}

}  // namespace
