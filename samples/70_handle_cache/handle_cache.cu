// Lesson 70: open each handle once, and notice a new allocation.
//
//   exporter                               importer, with a cache
//   allocate 3 blocks, cut into tensors
//                       -- 16 tensors -->  opens a block if it is not
//                                          open; at most 2 stay open
//   wants to free block 0  -- forget --->  closes block 0
//   frees, allocates at    <- closed ----
//   the same address       -- tensor --->  opens the new block
//   ends                   <- closed ----  closes all open blocks
//   starts again, as a new process         the same once more
//
// nvcc -cudart shared samples/70_handle_cache/handle_cache.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <iterator>

#include "../common/data.h"
#include "../common/roles.h"
#include "handle_cache.h"

constexpr int kBlocks = 3;
constexpr int kOrder[] = {0, 1, 2, 0};  // blocks in sending order
constexpr int kTensors = 4;             // in a block
constexpr int kTensor = 1 << 18;        // values in a tensor
constexpr int kBlock = kTensors * kTensor;
constexpr size_t kKept = 2;  // blocks that the cache keeps open

constexpr int kFirstValue = 10000000;   // of the first exporter
constexpr int kSecondValue = 50000000;  // of the second exporter

//! [exporter]
struct Tensor {
  Part part;
  int first;  // the tensor's first value
};

int exporter(Channel channel) {
  const int first = channel.receive<int>("first");
  int* blocks[kBlocks];
  for (int b = 0; b < kBlocks; ++b)
    blocks[b] =
        static_cast<int*>(allocate_values(kBlock, first + b * kBlock));

  const auto send = [&](int b, int t, int value) {
    const Part part = describe(blocks[b] + t * kTensor);
    channel.send("tensor", Tensor{part, value + t * kTensor});
  };
  for (const int b : kOrder)
    for (int t = 0; t < kTensors; ++t) send(b, t, first + b * kBlock);

  // An importer may keep an unused block open for a long time.
  channel.send("forget", describe(blocks[0]));
  if (!channel.receive<bool>("closed")) return EXIT_FAILURE;
  const void* const before = blocks[0];
  CUDA_CHECK(cudaFree(blocks[0]));
  const int later = first + kBlocks * kBlock;
  blocks[0] = static_cast<int*>(allocate_values(kBlock, later));
  say("frees a block, and gets one at %s address",
      blocks[0] == before ? "[the same]" : "[another]");
  send(0, 1, later);

  if (!channel.receive<bool>("closed")) return EXIT_FAILURE;
  for (int* block : blocks) CUDA_CHECK(cudaFree(block));
  say("ends");
  return EXIT_SUCCESS;
}
//! [exporter]

//! [importer]
int read_tensor(Channel& channel, HandleCache& cache,
                unsigned long long* exporter) {
  const auto tensor = channel.receive<Tensor>("tensor");
  *exporter = tensor.part.exporter;
  void* data = cache.acquire(tensor.part);
  const int wrong = count_wrong(data, kTensor, tensor.first);
  cache.release(tensor.part);
  return wrong;
}

int importer(Channel& channel, HandleCache& cache, int first) {
  channel.send("first", first);
  unsigned long long exporter = 0;
  int before = cache.opens();
  int wrong = 0;
  constexpr int kRead = std::size(kOrder) * kTensors;
  for (int i = 0; i < kRead; ++i)
    wrong += read_tensor(channel, cache, &exporter);
  say("reads %d tensors: %d opens, %zu blocks are open, %d wrong",
      kRead, cache.opens() - before, cache.open_now(), wrong);

  bool closed = cache.forget(channel.receive<Part>("forget"));
  channel.send("closed", closed);
  before = cache.opens();
  wrong += read_tensor(channel, cache, &exporter);
  say("reads a tensor of the new block: %d opens, %d wrong",
      cache.opens() - before, wrong);

  closed &= cache.forget_exporter(exporter);
  say("closes all of this exporter: %zu blocks are open",
      cache.open_now());
  channel.send("closed", closed);

  return closed && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  // Here the exporter is the child, because it is started twice.
  const bool child = is_child(argc, argv);
  role_name() = child ? "exporter" : "importer";
  if (child) return exporter(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();

  HandleCache cache(kKept);
  for (const int first : {kFirstValue, kSecondValue}) {
    Child other = start_again(argv);
    const int mine = importer(other.channel, cache, first);
    const int result = other.finish(mine);
    if (result != EXIT_SUCCESS) return result;
  }
  return EXIT_SUCCESS;
}
