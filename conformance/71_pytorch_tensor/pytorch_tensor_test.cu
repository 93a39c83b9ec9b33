// Tensors in one block of a caching allocator; another process uses the
// tensors. Each tensor has its own offsets, strides and event. Mirror of
// samples/71_pytorch_tensor.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <vector>

#include "harness/scenario/cuda.h"
#include "samples/71_pytorch_tensor/tensor.h"

using namespace ipclab;

namespace {

constexpr size_t kBlock = 8 << 20;
constexpr int kTensors = 48;
constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 2000000;

// A layout that depends on `i` (storage, elements, strides): whole matrices,
// transposed matrices, and matrices of every second or third element.
Tensor layout(int i) {
  Tensor tensor{};
  const int64_t step = 1 + i % 3, columns = 5 + i % 32;
  const int64_t pitch = columns * step + i % 7;
  tensor.storage_offset = kBlock / kTensors / 512 * 512 * i;
  tensor.offset = i % 50;
  tensor.size[0] = 3 + i % 40;
  tensor.size[1] = columns;
  tensor.stride[0] = pitch;
  tensor.stride[1] = step;
  if (i % 2 == 1) {
    std::swap(tensor.size[0], tensor.size[1]);
    std::swap(tensor.stride[0], tensor.stride[1]);
  }
  return tensor;
}

// How many words of the block are not poison any more?
size_t touched(const Words& block) {
  std::vector<uint32_t> seen(block.count);
  CALL(cudaMemcpy(seen.data(), block.data, block.bytes(), cudaMemcpyDefault));
  return seen.size() - std::count(seen.begin(), seen.end(), 0xEEEEEEEEu);
}

}  // namespace

TEST(PytorchTensor, AViewIsItsElementsAndNoOther) {
  covers("TENS-01");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer block(kBlock);
    me.send("block", block.legacy_handle());
    for (int i = 0; i < kTensors; ++i) {
      const Tensor tensor = layout(i);
      block.poison();
      visit(block.data, tensor, kAnything, kExporterValue + i);
      CALL(cudaDeviceSynchronize());
      me.send("tensor", tensor);
      me.wait("released");
      EXPECT_EQ(touched(block), size_t(tensor.size[0] * tensor.size[1]));
      visit(block.data, tensor, kImporterValue + i, kAnything);
      EXPECT_EQ(wrong_so_far(), 0) << "tensor " << i;
    }
    me.wait("closed");
  });

  scenario.role("importer", [](Role& me) {
    LegacyMapping block(me.receive<cudaIpcMemHandle_t>("block"), kBlock);
    for (int i = 0; i < kTensors; ++i) {
      const Tensor tensor = me.receive<Tensor>("tensor");
      visit(block.data, tensor, kExporterValue + i, kImporterValue + i);
      EXPECT_EQ(wrong_so_far(), 0) << "tensor " << i;
      me.signal("released");
    }
    block.close();
    me.signal("closed");
  });

  scenario.run(60s);
}

// Queues a wait and work for each tensor while the exporter's stream is held.
static void waits_for_each_tensor(Role& me) {
  LegacyMapping block(me.receive<cudaIpcMemHandle_t>("block"), kBlock);
  const DeviceBuffer own(kBlock);
  visit(own.data, layout(0), kAnything, kAnything);  // loads the kernel
  CALL(cudaDeviceSynchronize());
  std::vector<std::unique_ptr<SharedEvent>> events;
  std::vector<Tensor> tensors;
  for (int i = 0; i < kTensors; ++i) {
    tensors.push_back(me.receive<Tensor>("tensor"));
    events.push_back(std::make_unique<SharedEvent>(tensors.back().event));
  }
  // In one stream, a wait that does nothing would be after waits that work.
  // The GPU has fewer queues than streams, and a stream that shares a queue
  // is held by the streams before it: the last tensors come first here.
  const std::vector<Stream> streams(kTensors);
  for (int i = kTensors - 1; i >= 0; --i) {
    EXPECT_SUCCESS(cudaStreamWaitEvent(streams[i], *events[i], 0));
    visit(block.data, tensors[i], kExporterValue + i, kImporterValue + i,
          streams[i]);
  }
  EXPECT_TRUE(is_held(streams.back()));
  EXPECT_TRUE(is_held(streams.front()));
  for (int i = 0; i < kTensors; ++i)
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(streams[i]))
        << "the stream of tensor " << i;
  me.signal("all are queued");
  for (const Stream& stream : streams) EXPECT_TRUE(passes(stream));
  EXPECT_EQ(wrong_so_far(), 0);
  events.clear();
  block.close();
  me.signal("closed");
}

TEST(PytorchTensor, EachEventOrdersItsTensor) {
  covers("TENS-02");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer block(kBlock);
    visit(block.data, layout(0), kAnything, kAnything);  // loads the kernel
    CALL(cudaDeviceSynchronize());
    std::vector<std::unique_ptr<SharedEvent>> events;
    Latch latch;
    const Stream stream;
    latch.hold(stream);
    me.send("block", block.legacy_handle());
    for (int i = 0; i < kTensors; ++i) {
      events.push_back(std::make_unique<SharedEvent>());
      Tensor tensor = layout(i);
      visit(block.data, tensor, kAnything, kExporterValue + i, stream);
      CALL(cudaEventRecord(*events.back(), stream));
      tensor.event = events.back()->handle();
      me.send("tensor", tensor);
    }
    me.wait("all are queued");
    latch.release();
    me.wait("closed");
    for (int i = 0; i < kTensors; ++i)
      visit(block.data, layout(i), kImporterValue + i, kAnything);
    EXPECT_EQ(wrong_so_far(), 0);
  });

  scenario.role("importer", waits_for_each_tensor);

  scenario.run(30s);
}

TEST(PytorchTensor, ATensorGoesAndItsNeighbourStays) {
  covers("TENS-03");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer block(kBlock);
    visit(block.data, layout(1), kAnything, kExporterValue);
    visit(block.data, layout(2), kAnything, kExporterValue + 1);
    CALL(cudaDeviceSynchronize());
    for (int i = 0; i < 2; ++i) me.send("block", block.legacy_handle());
    me.wait("first released");
    // The allocator gives the first storage to another owner.
    visit(block.data, layout(1), kImporterValue, kExporterValue + 2);
    EXPECT_EQ(wrong_so_far(), 0);
    me.signal("reused");
    me.wait("second released");
    visit(block.data, layout(1), kExporterValue + 2, kAnything);
    visit(block.data, layout(2), kImporterValue + 1, kAnything);
    EXPECT_EQ(wrong_so_far(), 0);
  });

  scenario.role("importer", [](Role& me) {
    LegacyMapping first(me.receive<cudaIpcMemHandle_t>("block"), kBlock);
    LegacyMapping second(me.receive<cudaIpcMemHandle_t>("block"), kBlock);
    EXPECT_EQ(first.data, second.data);
    visit(first.data, layout(1), kExporterValue, kImporterValue);
    CALL(cudaDeviceSynchronize());
    first.close();
    me.signal("first released");
    me.wait("reused");
    visit(second.data, layout(2), kExporterValue + 1, kImporterValue + 1);
    EXPECT_EQ(wrong_so_far(), 0);
    second.close();
    me.signal("second released");
  });

  scenario.run(30s);
}
