// SPDX-License-Identifier: Apache-2.0
// Events of whole contexts and of green contexts.
#include <vector>

#include "gpu.h"

using namespace ipclab::model::test;

namespace {

class GreenContext {
 public:
  GreenContext() {
    CUdevResource all, half;
    unsigned groups = 1;
    CUdevResourceDesc description = nullptr;
    EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
    EXPECT_EQ(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM),
              CUDA_SUCCESS);
    EXPECT_EQ(cuDevSmResourceSplitByCount(&half, &groups, &all, nullptr, 0,
                                          all.sm.minSmPartitionSize),
              CUDA_SUCCESS);
    EXPECT_EQ(groups, 1u);
    EXPECT_EQ(cuDevResourceGenerateDesc(&description, &half, 1), CUDA_SUCCESS);
    EXPECT_EQ(
        cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM),
        CUDA_SUCCESS);
    EXPECT_EQ(cuCtxFromGreenCtx(&context, green), CUDA_SUCCESS);
  }
  ~GreenContext() { EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS); }

  cudaStream_t stream() const {
    CUstream made = nullptr;
    EXPECT_EQ(cuGreenCtxStreamCreate(&made, green, CU_STREAM_NON_BLOCKING, 0),
              CUDA_SUCCESS);
    return made;
  }

  CUgreenCtx green = nullptr;
  CUcontext context = nullptr;
};

CUcontext primary() {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  CUcontext context = nullptr;
  EXPECT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
  return context;
}

cudaEvent_t new_event() {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
            cudaSuccess);
  return event;
}

// A call that needs no stream, so that a test sees what only the GPU does.
bool is_done(cudaEvent_t event) { return cuEventQuery(event) == CUDA_SUCCESS; }
bool is_done(cudaStream_t stream) {
  return cuStreamQuery(stream) == CUDA_SUCCESS;
}

TEST(ContextEvent, ARecordCapturesTheWorkOfAllStreams) {
  const CUcontext context = primary();
  const GreenContext green;
  const cudaEvent_t event = new_event();
  const std::vector<cudaStream_t> streams{stream_with(cudaStreamDefault),
                                          stream_with(cudaStreamNonBlocking),
                                          green.stream()};
  for (const cudaStream_t held : streams) {
    Latch latch(held);
    EXPECT_EQ(cuCtxRecordEvent(context, event), CUDA_SUCCESS);
    EXPECT_FALSE(is_done(event));
    Latch later(streams[0] == held ? streams[1] : streams[0]);
    latch.let_go();
    EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
    later.let_go();
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
  for (const cudaStream_t stream : streams) {
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST(ContextEvent, AWaitHoldsAllStreamsAndThoseOfLater) {
  const CUcontext context = primary();
  CUcontext other = nullptr;
  ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
  CUstream elsewhere = nullptr;
  ASSERT_EQ(cuStreamCreate(&elsewhere, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const cudaEvent_t event = new_event();
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  const GreenContext green;
  const cudaStream_t early = stream_with(cudaStreamNonBlocking);
  const cudaStream_t part = green.stream();
  {
    ASSERT_EQ(cuCtxSetCurrent(other), CUDA_SUCCESS);
    Latch latch(elsewhere);
    ASSERT_EQ(cuEventRecord(event, elsewhere), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxRecordEvent(context, event), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxWaitEvent(context, event), CUDA_SUCCESS);
    const cudaStream_t late = stream_with(cudaStreamNonBlocking);
    const cudaStream_t late_part = green.stream();
    for (const cudaStream_t stream : {early, part, late, late_part}) {
      EXPECT_FALSE(is_done(stream));
    }
    latch.let_go();
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    for (const cudaStream_t stream : {early, part, late, late_part}) {
      EXPECT_TRUE(is_done(stream));
      EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    }
  }
  EXPECT_EQ(cuCtxDestroy(other), CUDA_SUCCESS);
}

TEST(ContextEvent, AGreenContextRecordsAndWaitsForItselfOnly) {
  const CUcontext context = primary();
  const GreenContext first, second;
  const cudaEvent_t event = new_event();
  const cudaStream_t whole = stream_with(cudaStreamNonBlocking);
  const cudaStream_t mine = first.stream(), other = second.stream();
  {
    Latch latch(whole), latch_of_other(other);
    EXPECT_EQ(cuGreenCtxRecordEvent(first.green, event), CUDA_SUCCESS);
    EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
    EXPECT_EQ(cuCtxRecordEvent(first.context, event), CUDA_SUCCESS);
    EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
    latch.let_go();
    latch_of_other.let_go();
  }
  {
    Latch latch(mine);
    EXPECT_EQ(cuGreenCtxRecordEvent(first.green, event), CUDA_SUCCESS);
    EXPECT_FALSE(is_done(event));
    EXPECT_EQ(cuGreenCtxWaitEvent(second.green, event), CUDA_SUCCESS);
    EXPECT_FALSE(is_done(other));
    EXPECT_TRUE(is_done(whole));
    latch.let_go();
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_TRUE(is_done(other));
  }
  for (const cudaStream_t stream : {whole, mine, other}) {
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(primary(), context);
}

TEST(ContextEvent, ACaptureIsInvalidAfterwards) {
  const CUcontext context = primary();
  const GreenContext green;
  const cudaEvent_t event = new_event();
  const cudaStream_t stream = stream_with(cudaStreamNonBlocking);
  for (const auto call : {cuCtxRecordEvent, cuCtxWaitEvent}) {
    ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED),
              CUDA_SUCCESS);
    EXPECT_EQ(call(green.context, event), CUDA_SUCCESS);
    EXPECT_EQ(call(context, event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(stream, &graph),
              CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  // A captured event.
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED),
            CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuGreenCtxWaitEvent(green.green, event),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(stream, &graph),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST(GreenContext, SharesMemoryAndKernelsWithThePrimaryContext) {
  const CUcontext context = primary();
  int* data = nullptr;
  {
    const GreenContext green;
    const auto unconverted = reinterpret_cast<CUcontext>(green.green);
    EXPECT_EQ(cuCtxRecordEvent(unconverted, nullptr),
              CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_EQ(cuCtxSetCurrent(green.context), CUDA_SUCCESS);
    data = allocate<int>(1);
    CUstream blocking = nullptr;
    ASSERT_EQ(cuStreamCreate(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
    CUgreenCtx found = nullptr;
    CUcontext of_stream = nullptr;
    EXPECT_EQ(cuStreamGetCtx_v2(blocking, &of_stream, &found), CUDA_SUCCESS);
    EXPECT_EQ(found, green.green);
    EXPECT_EQ(of_stream, context);
    {
      // The two default streams do not wait for each other.
      Latch latch(blocking);
      ASSERT_EQ(launch("write_one", 1, 1, nullptr, data, 7), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
      ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
      latch.let_go();
      EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuStreamDestroy(blocking), CUDA_SUCCESS);
  }
  EXPECT_EQ(read_back(data, 1)[0], 7);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

}  // namespace
