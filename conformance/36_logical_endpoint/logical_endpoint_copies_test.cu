// Copies over a fabric, from and to logical endpoints.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "conformance/36_logical_endpoint/logical_endpoint_test.h"
#include "harness/scenario/kernels.h"
#include "harness/scenario/pool.h"

using namespace ipclab;

TEST(FabricCopy, ABatchIsDoneInStreamOrder) {
  covers("FCPY-01");
  needs(gpus(1), endpoints);
  run_alone([](Role&) {
    const size_t bytes = endpoint_granule();
    const Chunk chunk = fabric_chunk(bytes);
    const Mapping mapped(chunk, bytes);
    mapped.fill(pattern("before"));
    const Endpoint endpoint(unicast_on(0, bytes));
    endpoint.bind(0, chunk, bytes);
    CALL(cudaSetDevice(device_that_reaches_endpoints()));
    const DeviceBuffer source(bytes), result(bytes);
    source.fill(pattern("too early"));
    const Stream stream;
    Latch latch;
    latch.hold(stream);
    source.queue_fill(pattern("in order"), stream);
    CALL(queue_copies(
        {copy_op(operand(endpoint.id(), 0), operand(source.data), bytes)},
        stream));
    CALL(queue_copies(
        {copy_op(operand(result.data), operand(endpoint.id(), 0), bytes)},
        stream));
    source.queue_fill(pattern("too late"), stream);
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    latch.release();
    CALL(cudaStreamSynchronize(stream));
    EXPECT_TRUE(kernel_reads(result, pattern("in order")));
    in_two_threads([&](int thread) {
      SCOPED_TRACE("in thread " + std::to_string(thread));
      result.poison();
      EXPECT_SUCCESS(queue_copies(
          {copy_op(operand(result.data), operand(endpoint.id(), 0), bytes)},
          cudaStreamPerThread));
      CALL(cudaStreamSynchronize(cudaStreamPerThread));
      EXPECT_TRUE(copy_reads(result, pattern("in order")));
    });
    CALL(cudaSetDevice(0));
    EXPECT_TRUE(kernel_reads(mapped, pattern("in order")));
  });
}

// Work that is queued after a copy from an endpoint sees its values: in the
// same stream, and in another stream that waits for an event.
TEST(FabricCopy, LaterWorkSeesABatch) {
  covers("FCPY-01");
  needs(gpus(1), endpoints);
  run_alone([](Role&) {
    const size_t bytes = endpoint_granule();
    const Chunk chunk = fabric_chunk(bytes);
    const Mapping mapped(chunk, bytes);
    mapped.fill(pattern("bound"));
    const Endpoint endpoint(unicast_on(0, bytes));
    endpoint.bind(0, chunk, bytes);
    CALL(cudaSetDevice(device_that_reaches_endpoints()));
    const DeviceBuffer result(bytes), seen(bytes), elsewhere(bytes);
    const Stream stream, other;
    launch_copy(seen, result, stream);  // loads the kernel
    CALL(cudaDeviceSynchronize());
    cudaEvent_t done = nullptr;
    CALL(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    Latch latch;
    latch.hold(stream);
    CALL(queue_copies(
        {copy_op(operand(result.data), operand(endpoint.id(), 0), bytes)},
        stream));
    launch_copy(seen, result, stream);
    CALL(cudaEventRecord(done, stream));
    CALL(cudaStreamWaitEvent(other, done, 0));
    launch_copy(elsewhere, result, other);
    latch.release();
    CALL(cudaStreamSynchronize(other));
    CALL(cudaStreamSynchronize(stream));
    EXPECT_TRUE(kernel_reads(seen, pattern("bound"))) << "in its stream";
    EXPECT_TRUE(kernel_reads(elsewhere, pattern("bound"))) << "after an event";
    CALL(cudaEventDestroy(done));
    CALL(cudaSetDevice(0));
  });
}

// One batch of 100 small copies fills a part of an endpoint, from its offset
// `offset`. `source` has the values of the part.
static void copy_in_100_pieces(const Endpoint& endpoint, size_t offset,
                               const Words& source, const Stream& stream) {
  constexpr size_t kPieces = 100;
  const size_t piece = source.bytes() / kPieces;
  std::vector<CUDA_FABRIC_COPY_BATCH_OP> batch;
  for (size_t i = 0; i < kPieces; ++i) {
    const size_t rest = source.bytes() - i * piece;
    batch.push_back(
        copy_op(operand(endpoint.id(), offset + i * piece),
                operand(reinterpret_cast<char*>(source.data) + i * piece),
                i + 1 == kPieces ? rest : piece));
  }
  EXPECT_SUCCESS(queue_copies(batch, stream));
  CALL(cudaStreamSynchronize(stream));
}

// A copy has a size, and offsets, that are multiples of nothing. The bytes
// beside the copied ones stay as they were. `memory` is bound at the offset
// `offset`, and every byte of it is 0xEE.
static void expect_odd_copies(const Endpoint& endpoint, size_t offset,
                              const Words& memory, const Stream& stream) {
  constexpr size_t kFrom = 3, kTo = 5, kSize = 1021;
  const int reaching = device_that_reaches_endpoints();
  std::vector<unsigned char> written(kFrom + kSize), seen(kTo + kSize + 1);
  for (size_t i = 0; i < written.size(); ++i)
    written[i] = static_cast<unsigned char>(1 + i % 199);
  CALL(cudaSetDevice(reaching));
  const DeviceBuffer source(4096);
  CALL(cudaMemcpy(source.data, written.data(), written.size(),
                  cudaMemcpyDefault));
  EXPECT_SUCCESS(queue_copies(
      {copy_op(operand(endpoint.id(), offset + kTo),
               operand(reinterpret_cast<char*>(source.data) + kFrom), kSize)},
      stream));
  CALL(cudaStreamSynchronize(stream));
  CALL(cudaSetDevice(0));
  CALL(cudaMemcpy(seen.data(), memory.data, seen.size(), cudaMemcpyDefault));
  std::vector<unsigned char> expected(seen.size(), 0xEE);
  std::copy(written.begin() + kFrom, written.end(), expected.begin() + kTo);
  EXPECT_TRUE(seen == expected) << "a copy of " << kSize << " bytes";
}

TEST(FabricCopy, ABatchMixesAddressesAndEndpoints) {
  covers("FCPY-02");
  needs(gpus(1), endpoints);
  run_alone([](Role&) {
    const size_t bytes = endpoint_granule(), part = bytes / 4;
    const Chunk chunk = fabric_chunk(bytes);
    const Mapping mapped(chunk, bytes);
    mapped.poison();
    const Words read = words_at(mapped.address() + part, part);
    read.fill(pattern("read"));
    const Endpoint endpoint(unicast_on(0, bytes));
    endpoint.bind(0, chunk, bytes);
    CALL(cudaSetDevice(device_that_reaches_endpoints()));
    const DeviceBuffer source(part), result(part), beside(part);
    source.fill(pattern("source"));
    std::vector<uint32_t> host(part / sizeof(uint32_t));
    const Words on_host(host.data(), part);
    host_writes(on_host, pattern("host"));
    std::vector<uint32_t> back(part / sizeof(uint32_t));
    const Stream stream;
    EXPECT_SUCCESS(queue_copies(
        {copy_op(operand(endpoint.id(), 0), operand(source.data), part),
         copy_op(operand(result.data), operand(endpoint.id(), part), part),
         copy_op(operand(beside.data), operand(source.data), part),
         copy_op(operand(endpoint.id(), 2 * part), operand(host.data()), part),
         copy_op(operand(back.data()), operand(endpoint.id(), part), part)},
        stream));
    CALL(cudaStreamSynchronize(stream));
    EXPECT_TRUE(kernel_reads(result, pattern("read")));
    EXPECT_TRUE(host_reads(Words(back.data(), part), pattern("read")));
    EXPECT_TRUE(kernel_reads(beside, pattern("source")));
    CALL(cudaSetDevice(0));
    const auto at = [&](size_t offset) {
      return words_at(mapped.address() + offset, part);
    };
    EXPECT_TRUE(kernel_reads(at(0), pattern("source")));
    EXPECT_TRUE(kernel_reads(at(part), pattern("read")));
    EXPECT_TRUE(kernel_reads(at(2 * part), pattern("host")));
    expect_odd_copies(endpoint, 3 * part, at(3 * part), stream);
    CALL(cudaSetDevice(device_that_reaches_endpoints()));
    copy_in_100_pieces(endpoint, 2 * part, source, stream);
    CALL(cudaSetDevice(0));
    EXPECT_TRUE(kernel_reads(at(2 * part), pattern("source"))) << "100 copies";
  });
}

TEST(FabricCopy, NoBytesAreNoCopyAndStillChecked) {
  covers("FCPY-03");
  needs(gpus(1), endpoints);
  run_alone([](Role&) {
    const size_t bytes = endpoint_granule();
    const Chunk chunk = fabric_chunk(bytes);
    const Mapping mapped(chunk, bytes);
    mapped.fill(pattern("kept"));
    const Endpoint endpoint(unicast_on(0, bytes));
    endpoint.bind(0, chunk, bytes);
    CALL(cudaSetDevice(device_that_reaches_endpoints()));
    const DeviceBuffer source(bytes), result(bytes);
    source.fill(pattern("source"));
    const Stream stream;
    EXPECT_SUCCESS(queue_copies(
        {copy_op(operand(endpoint.id(), 0), operand(source.data), 0),
         copy_op(operand(result.data), operand(endpoint.id(), 0), bytes)},
        stream));
    CALL(cudaStreamSynchronize(stream));
    EXPECT_TRUE(kernel_reads(result, pattern("kept")));
    const EndpointIds none;
    const auto expect_checked = [&](const char* what, CUfabricCpyOperand to) {
      SCOPED_TRACE(what);
      EXPECT_INVALID(
          queue_copies({copy_op(to, operand(source.data), 0)}, stream));
      EXPECT_INVALID(
          queue_copies({copy_op(operand(source.data), to, 0)}, stream))
          << "as the source";
    };
    expect_checked("a number without endpoint", operand(none[0], 0));
    expect_checked("after the end", operand(endpoint.id(), 2 * bytes));
    CUfabricCpyOperand neither = operand(result.data);
    neither.type = static_cast<CUfabricCpyOperandType>(0);
    expect_checked("neither address nor endpoint", neither);
    CALL(cudaStreamSynchronize(stream));
    CALL(cudaSetDevice(0));
    EXPECT_TRUE(kernel_reads(mapped, pattern("kept")));
  });
}

// The caller must not queue these batches, and no sentence says that they are
// refused. A batch that is refused copies nothing.
TEST(FabricCopy, FlagsAreZeroAndTheStreamIsNotTheLegacyOne) {
  covers("FCPY-04");
  needs(gpus(1), endpoints);
  run_alone([](Role& me) {
    CALL(cudaSetDevice(device_that_reaches_endpoints()));
    const DeviceBuffer source(kBytes), target(kBytes);
    source.fill(pattern("source"));
    const Stream stream;
    const auto copy =
        copy_op(operand(target.data), operand(source.data), kBytes);
    auto flagged = copy;
    flagged.flags = 1;
    const auto try_batch = [&](const char* what, auto queue) {
      SCOPED_TRACE(what);
      target.fill(pattern("kept"));
      const CUresult code = queue();
      me.observe(std::string(what) + ": " + name_of(code));
      EXPECT_SUCCESS(cudaDeviceSynchronize());
      if (code != CUDA_SUCCESS)
        EXPECT_TRUE(kernel_reads(target, pattern("kept")));
      EXPECT_SUCCESS(queue_copies({copy}, stream)) << "a right one afterwards";
      CALL(cudaStreamSynchronize(stream));
      EXPECT_TRUE(kernel_reads(target, pattern("source")));
    };
    for (const unsigned long long flags : {1ull, 1ull << 63})
      try_batch("a flag of the batch", [&] {
        auto one = copy;
        return NOTED(NEWER(cuFabricCpyBatchAsync)(1, &one, flags, stream));
      });
    try_batch("the legacy NULL stream",
              [&] { return NOTED(queue_copies({copy}, nullptr)); });
    try_batch("another name of this stream",
              [&] { return NOTED(queue_copies({copy}, cudaStreamLegacy)); });
    try_batch("a flag of the copy",
              [&] { return NOTED(queue_copies({flagged}, stream)); });
    try_batch("a flag of the second copy", [&] {
      return NOTED(queue_copies({copy, flagged}, stream));
    });
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(FabricCopy, OneSideIsLocal) {
  covers("FCPY-05");
  needs(gpus(2), endpoints, peer_access);
  run_alone([](Role& me) {
    const size_t bytes = endpoint_granule();
    const Endpoint endpoint(unicast_on(0, bytes));
    const Chunk chunk = fabric_chunk(bytes);
    endpoint.bind(0, chunk, bytes);
    const Mapping mapped(chunk, bytes);
    mapped.poison();
    const DeviceBuffer far(bytes), far_too(bytes);
    far.fill(pattern("far"));
    CALL(cudaSetDevice(1));
    CALL(cudaDeviceEnablePeerAccess(0, 0));
    const DeviceBuffer near(bytes);
    near.poison();
    const Stream stream;
    const auto tries = [&](const char* what, auto operation) {
      const CUresult code = NOTED(queue_copies({operation}, stream));
      me.observe(std::string(what) + ": " + name_of(code));
      EXPECT_SUCCESS(cudaStreamSynchronize(stream)) << what;
    };
    tries("both on the other GPU",
          copy_op(operand(far_too.data), operand(far.data), bytes));
    tries("beside an endpoint",
          copy_op(operand(endpoint.id(), 0), operand(far.data), bytes));
    EXPECT_TRUE(kernel_reads(far, pattern("far")));
    mapped.poison();  // a copy that is accepted may have filled it
    EXPECT_SUCCESS(queue_copies(
        {copy_op(operand(near.data), operand(far.data), bytes)}, stream));
    CALL(cudaStreamSynchronize(stream));
    EXPECT_TRUE(kernel_reads(near, pattern("far")));
    // The endpoint accepts the same copy from a local address.
    EXPECT_SUCCESS(queue_copies(
        {copy_op(operand(endpoint.id(), 0), operand(near.data), bytes)},
        stream));
    CALL(cudaStreamSynchronize(stream));
    CALL(cudaSetDevice(0));
    EXPECT_TRUE(kernel_reads(mapped, pattern("far")));
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(FabricCopy, NotSupportedWithoutEndpoints) {
  covers("FCPY-06");
  needs(gpus(1));
  run_alone([](Role& me) {
    for (const CUdevice_attribute which :
         {CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_SUPPORTED,
          CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_MULTICAST_SUPPORTED}) {
      int value = 0;
      const CUresult code =
          NOTED(DRIVER(cuDeviceGetAttribute)(&value, which, 0));
      if (code != CUDA_SUCCESS)
        return me.not_applicable("this driver does not know endpoints: " +
                                 name_of(code));
      if (value != 0) return me.not_applicable("this GPU has endpoints");
    }
    const DeviceBuffer source(kBytes), target(kBytes);
    target.fill(pattern("kept"));
    const Stream stream;
    EXPECT_CODE(CUDA_ERROR_NOT_SUPPORTED,
                queue_copies({copy_op(operand(target.data),
                                      operand(source.data), kBytes)},
                             stream));
    CALL(cudaDeviceSynchronize());
    EXPECT_TRUE(kernel_reads(target, pattern("kept")));
    EXPECT_TRUE(context_is_usable());
  });
}

namespace {

// A node that makes a batch of copies, as CUDA 13.5 declares it.
struct FabricCopies {
  size_t count;
  CUDA_FABRIC_COPY_BATCH_OP* list;
  unsigned long long flags;
  CUcontext context;
};

// A graph of such nodes.
class CopyGraph {
 public:
  CopyGraph() { CALL(cudaGraphCreate(&graph_, 0)); }
  CopyGraph(const CopyGraph&) = delete;
  ~CopyGraph() {
    if (replay_ != nullptr) cudaGraphExecDestroy(replay_);
    cudaGraphDestroy(graph_);
  }
  // Adds a node after the one that was added last.
  CUresult add(std::vector<CUDA_FABRIC_COPY_BATCH_OP> wanted_copies,
               unsigned long long flags = 0) {
    constexpr int kType = 18;  // CU_GRAPH_NODE_TYPE_FABRIC_CPY_BATCH
    auto& batch = batches_.emplace_back(std::move(wanted_copies));
    CUcontext current = nullptr;
    CALL(DRIVER(cuCtxGetCurrent)(&current));
    const FabricCopies copies{batch.size(), batch.data(), flags, current};
    CUgraphNodeParams wanted{};
    std::memcpy(&wanted.type, &kType, sizeof kType);
    static_assert(sizeof copies <= sizeof wanted.reserved1);
    std::memcpy(&wanted.reserved1, &copies, sizeof copies);
    CUgraphNode node = nullptr;
    const CUresult code = NOTED(NEWER(cuGraphAddNode)(
        &node, graph_, last_ == nullptr ? nullptr : &last_, nullptr,
        last_ == nullptr ? 0 : 1, &wanted));
    if (code == CUDA_SUCCESS) last_ = node;
    return code;
  }
  cudaError_t instantiate() {
    return NOTED(cudaGraphInstantiate(&replay_, graph_, 0));
  }
  void launch(cudaStream_t stream) const {
    CALL(cudaGraphLaunch(replay_, stream));
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t replay_ = nullptr;
  CUgraphNode last_ = nullptr;
  // No sentence says that a node does not need its array any more.
  std::deque<std::vector<CUDA_FABRIC_COPY_BATCH_OP>> batches_;
};

}  // namespace

TEST(FabricCopy, EachLaunchOfAGraphMakesTheCopiesOfItsNodes) {
  covers("FCPY-07");
  needs(gpus(1), endpoints);
  run_alone([](Role&) {
    const size_t bytes = endpoint_granule(), half = bytes / 2;
    const Chunk chunk = fabric_chunk(bytes);
    const Mapping mapped(chunk, bytes);
    mapped.fill(pattern("bound"));
    const Endpoint endpoint(unicast_on(0, bytes));
    endpoint.bind(0, chunk, bytes);
    CALL(cudaSetDevice(device_that_reaches_endpoints()));
    const DeviceBuffer source(bytes), result(bytes);
    source.fill(pattern("not launched"));
    result.fill(pattern("before"));
    CopyGraph graph;
    const auto at = [](const Words& words, size_t offset) {
      return operand(reinterpret_cast<char*>(words.data) + offset);
    };
    EXPECT_SUCCESS(graph.add(
        {copy_op(operand(endpoint.id(), 0), at(source, 0), half),
         copy_op(operand(endpoint.id(), half), at(source, half), half)}));
    EXPECT_SUCCESS(graph.add(
        {copy_op(at(result, 0), operand(endpoint.id(), 0), half),
         copy_op(at(result, half), operand(endpoint.id(), half), half)}));
    EXPECT_SUCCESS(graph.instantiate());
    CALL(cudaDeviceSynchronize());
    EXPECT_TRUE(copy_reads(result, pattern("before"))) << "before a launch";
    CALL(cudaSetDevice(0));
    EXPECT_TRUE(copy_reads(mapped, pattern("bound"))) << "before a launch";
    CALL(cudaSetDevice(device_that_reaches_endpoints()));
    const Stream stream;
    for (const char* const name : {"first launch", "second launch"}) {
      SCOPED_TRACE(name);
      Latch latch;
      latch.hold(stream);
      source.queue_fill(pattern(name), stream);
      graph.launch(stream);
      source.queue_fill(pattern("too late"), stream);
      EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
      latch.release();
      EXPECT_TRUE(passes(stream));
      EXPECT_READS(result, pattern(name));
      CALL(cudaSetDevice(0));
      EXPECT_READS(mapped, pattern(name));
      CALL(cudaSetDevice(device_that_reaches_endpoints()));
    }
    CALL(cudaSetDevice(0));
  });
}

TEST(FabricCopy, ANodeWithAFlagHarmsNobody) {
  covers("FCPY-08");
  needs(gpus(1), endpoints);
  run_alone([](Role& me) {
    const size_t bytes = endpoint_granule();
    const Chunk chunk = fabric_chunk(bytes);
    const Mapping mapped(chunk, bytes);
    mapped.fill(pattern("bound"));
    const Endpoint endpoint(unicast_on(0, bytes));
    endpoint.bind(0, chunk, bytes);
    CALL(cudaSetDevice(device_that_reaches_endpoints()));
    const DeviceBuffer result(bytes);
    const auto out =
        copy_op(operand(result.data), operand(endpoint.id(), 0), bytes);
    {
      CopyGraph wrong;
      const CUresult code = wrong.add({out}, 1);
      me.observe("a node with the lowest flag: " + name_of(code));
    }
    CopyGraph graph;
    EXPECT_SUCCESS(graph.add({out}));
    EXPECT_SUCCESS(graph.instantiate());
    const Stream stream;
    graph.launch(stream);
    EXPECT_TRUE(passes(stream));
    EXPECT_READS(result, pattern("bound"));
    CALL(cudaSetDevice(0));
    EXPECT_READS(mapped, pattern("bound"));
    EXPECT_TRUE(context_is_usable());
  });
}
