// Lesson 74: a ring of slots between streams, without the host.
//
//   exporter, the producer                 importers, the consumers
//   make words and 4 slots  -- memory -->  borrow them
//   queue for each item:                   queue for each item:
//     wait until all have taken              wait until it is there
//     the item that was in the slot          check it
//     write the item                         write "taken"
//     write "made"
//   write "taken" for a consumer
//   that has ended         <-- closed ---  give back
//
// The lesson does this with a legacy handle, a descriptor and a pool.
//
// nvcc -cudart shared samples/74_pipeline/pipeline.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/roles.h"
#include "ring.h"
#include "ways.h"

constexpr int kItems = 60;
constexpr int kConsumers = 2;
constexpr int kKilledAt = 20;  // items of importer 1 in the last run

__global__ void check(const int* item, int first, int* wrong) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (item[i] != first + i) atomicAdd(wrong, 1);
}

//! [exporter]
bool has_ended(pid_t process) {
  siginfo_t info{};
  SYS_CHECK(waitid(P_PID, process, &info, WEXITED | WNOHANG | WNOWAIT));
  return info.si_pid == process;
}

// Waits up to 20 s for the stream. Writes the word of a consumer that
// has ended: otherwise the producer's stream would wait forever.
void finish(cudaStream_t stream, Ring ring, std::vector<Child>& all) {
  cudaStream_t other;
  CUDA_CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (cudaStreamQuery(stream) == cudaErrorNotReady &&
         std::chrono::steady_clock::now() < end)
    for (int c = 0; c < kConsumers; ++c)
      if (has_ended(all[c].pid)) write(other, ring.taken(c), kItems);
  CUDA_CHECK(cudaStreamQuery(stream));
  CUDA_CHECK(cudaStreamSynchronize(other));
  CUDA_CHECK(cudaStreamDestroy(other));
}

template <class Way>
int produce(std::vector<Child>& consumers, bool one_is_killed) {
  Way way;
  way.make();
  const Ring ring{way.data, way.words()};
  CUDA_CHECK(cudaMemset(way.data, kPoison, kBytes));
  CUDA_CHECK(cudaMemset(way.words(), 0, kWordBytes));
  CUDA_CHECK(cudaDeviceSynchronize());
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (Child& consumer : consumers) way.lend(consumer.channel);

  for (int item = 0; item < kItems; ++item) {
    for (int c = 0; c < kConsumers && item >= kSlots; ++c)
      wait_for(stream, ring.taken(c), item - kSlots + 1);
    write_values(ring.slot(item), kCount, item * kCount, stream);
    write(stream, ring.made(), item + 1);
  }
  finish(stream, ring, consumers);

  int wrong = 0;
  const int left = one_is_killed ? kConsumers - 1 : kConsumers;
  for (int c = 0; c < left; ++c)
    wrong += consumers[c].channel.receive<int>("closed");
  say("%d items by %s, %d of %d importers end: %d values wrong", kItems,
      Way::kName, left, kConsumers, wrong);
  CUDA_CHECK(cudaStreamDestroy(stream));
  way.release();
  return wrong;
}
//! [exporter]

//! [importer]
template <class Way>
void consume(Channel& channel, int me, int items) {
  Way way;
  way.borrow(channel);
  const Ring ring{way.data, way.words()};
  int* wrong = static_cast<int*>(allocate_values(1, 0));
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  for (int item = 0; item < items; ++item) {
    wait_for(stream, ring.made(), item + 1);
    check<<<kCount / 256, 256, 0, stream>>>(ring.slot(item),
                                            item * kCount, wrong);
    CUDA_CHECK(cudaGetLastError());
    write(stream, ring.taken(me), item + 1);
  }
  CUDA_CHECK(cudaStreamSynchronize(stream));
  if (items < kItems) SYS_CHECK(kill(getpid(), SIGKILL));

  int seen = 0;
  CUDA_CHECK(cudaMemcpy(&seen, wrong, sizeof seen, cudaMemcpyDefault));
  CUDA_CHECK(cudaStreamDestroy(stream));
  CUDA_CHECK(cudaFree(wrong));
  way.give_back();
  channel.send("closed", seen);
}
//! [importer]

int importer(Channel channel) {
  const int me = channel.receive<int>("number");
  consume<LegacyHandle>(channel, me, kItems);
  consume<Descriptor>(channel, me, kItems);
  consume<Pool>(channel, me, kItems);
  consume<LegacyHandle>(channel, me, me == 1 ? kKilledAt : kItems);
  return EXIT_SUCCESS;
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");

  std::vector<Child> consumers;
  for (int c = 0; c < kConsumers; ++c) {
    consumers.push_back(start_again(argv));
    consumers[c].channel.send("number", c);
  }
  int wrong = produce<LegacyHandle>(consumers, false);
  wrong += produce<Descriptor>(consumers, false);
  wrong += produce<Pool>(consumers, false);
  wrong += produce<LegacyHandle>(consumers, true);

  SYS_CHECK(waitpid(consumers[1].pid, nullptr, 0));  // was killed
  return consumers[0].finish(wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
}
