// A ring of slots between a producer and its consumers: their streams wait for
// words in shared memory, and no host takes part. Mirror of
// samples/74_pipeline; the ring is in the lesson's header.
//
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <string>

#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"
#include "samples/74_pipeline/ring.h"

using namespace ipclab;

namespace {

constexpr int kItems = 200;
constexpr int kAhead = 2 * kSlots;  // items before a consumer takes one
constexpr int kConsumers = 2;

// The three ways to share the ring. Each has the memory that the producer makes
// and sends to each consumer (Lent), and the memory that a consumer opens
// (Borrowed). `memory` has the slots, and words() has the words of the ring.
struct Legacy {
  struct Lent {
    DeviceBuffer memory{kBytes};
    void* words() const { return words_after(memory.data); }
    void send(Role& me) const { me.send("handle", memory.legacy_handle()); }
  };
  struct Borrowed {
    LegacyMapping memory;
    explicit Borrowed(Role& me)
        : memory(me.receive<cudaIpcMemHandle_t>("handle"), kBytes) {}
    void* words() const { return words_after(memory.data); }
  };
};

size_t whole_granules() {
  return (kBytes + granule() - 1) / granule() * granule();
}

struct ByDescriptor {
  struct Lent {
    Chunk chunk = Chunk::create(whole_granules());
    Mapping memory{chunk, whole_granules()};
    void* words() const { return words_after(memory.data); }
    void send(Role& me) const {
      for (int c = 0; c < kConsumers; ++c)
        me.send_descriptor("chunk", chunk.descriptor().get());
    }
  };
  struct Borrowed {
    Mapping memory;
    explicit Borrowed(Role& me)
        : memory(Chunk::import(me.receive_descriptor("chunk")),
                 whole_granules()) {}
    void* words() const { return words_after(memory.data); }
  };
};

// The words are not in the pool: it is not documented whether stream memory
// operations work on memory of a pool (FLAG-06).
struct ByPool {
  struct Lent {
    Pool pool{shareable()};
    AsyncBuffer memory{pool, kBytes};
    DeviceBuffer beside{kBytes};
    void* words() const { return beside.data; }
    void send(Role& me) const {
      for (int c = 0; c < kConsumers; ++c)
        me.send_descriptor("pool", pool.exported().get());
      me.send("pointer", memory.exported());
      me.send("words", beside.legacy_handle());
    }
  };
  struct Borrowed {
    Pool pool;
    AsyncBuffer memory;
    LegacyMapping beside;
    explicit Borrowed(Role& me)
        : pool(me.receive_descriptor("pool")),
          memory(pool, me.receive<cudaMemPoolPtrExportData>("pointer"), kBytes),
          beside(me.receive<cudaIpcMemHandle_t>("words"), kBytes) {}
    void* words() const { return beside.data; }
  };
};

template <class Side>
Ring ring_in(const Side& side) {
  return {side.memory.data, side.words()};
}

constexpr size_t kItemBytes = kCount * sizeof(uint32_t);

Words slot(const Ring& ring, int item) { return {ring.slot(item), kItemBytes}; }

Pattern item_pattern(int item) {
  return pattern("item " + std::to_string(item));
}

// Kernels are loaded before a stream waits: loading a kernel may wait for that
// stream.
void load_kernels() {
  const DeviceBuffer memory(kBytes);
  memory.fill(pattern("loads the kernel"));
  const WrongWords loads;
}

// Some items are copied, always by the same slot, and from or to the same
// memory of the process's own. They are few, because more work in the stream of
// a producer that waits could fill the queue of the driver.
bool is_copied(int item) { return item % (2 * kSlots) == kSlots - 1; }

void queue_copy(const Words& to, const Words& from, cudaStream_t stream) {
  CALL(cudaMemcpyAsync(to.data, from.data, kItemBytes, cudaMemcpyDeviceToDevice,
                       stream));
}

void queue_item(const Ring& ring, int item, const Words& own,
                cudaStream_t stream) {
  for (int c = 0; c < kConsumers && item >= kSlots; ++c) {
    note_call("cuStreamWaitValue32(taken)");
    wait_for(stream, ring.taken(c), item - kSlots + 1);
  }
  const Words filled = is_copied(item) ? own : slot(ring, item);
  filled.queue_fill(item_pattern(item), stream);
  if (is_copied(item)) queue_copy(slot(ring, item), own, stream);
  note_call("cuStreamWriteValue32(made)");
  write(stream, ring.made(), item + 1);
}

void take_item(const Ring& ring, int consumer, int item, WrongWords* wrong,
               const Words& own, cudaStream_t stream) {
  note_call("cuStreamWaitValue32(made)");
  wait_for(stream, ring.made(), item + 1);
  if (is_copied(item)) queue_copy(own, slot(ring, item), stream);
  const Words counted = is_copied(item) ? own : slot(ring, item);
  wrong->queue_count(counted, item_pattern(item), stream);
  note_call("cuStreamWriteValue32(taken)");
  write(stream, ring.taken(consumer), item + 1);
}

template <class Way>
void producer(Role& me, bool one_is_killed) {
  load_kernels();
  typename Way::Lent lent;
  CALL(cudaDeviceSynchronize());
  lent.memory.poison();
  CALL(cudaMemset(lent.words(), 0, kWordBytes));
  CALL(cudaDeviceSynchronize());
  lent.send(me);
  me.wait("borrowed", kConsumers);
  const Ring ring = ring_in(lent);
  const DeviceBuffer own(kItemBytes);
  const Stream stream, other;
  for (int item = 0; item < kAhead; ++item) queue_item(ring, item, own, stream);
  EXPECT_TRUE(is_held(stream)) << "nobody has taken an item";
  me.signal("ahead");
  for (int item = kAhead; item < kItems; ++item)
    queue_item(ring, item, own, stream);
  if (one_is_killed) {
    me.wait_for_end("consumer 1");
    write(other, ring.taken(1), kItems);
    EXPECT_TRUE(passes(other));
  }
  EXPECT_TRUE(passes(stream, 30s));
  me.wait("closed", one_is_killed ? kConsumers - 1 : kConsumers);
}

template <class Way>
void consumer(Role& me) {
  load_kernels();
  WrongWords wrong;
  const DeviceBuffer own(kItemBytes);
  {
    const typename Way::Borrowed borrowed(me);
    me.signal("borrowed");
    me.wait("ahead");
    const Ring ring = ring_in(borrowed);
    const Stream stream;
    for (int item = 0; item < kItems; ++item)
      take_item(ring, me.index(), item, &wrong, own, stream);
    EXPECT_TRUE(passes(stream, 30s));
    EXPECT_EQ(wrong.so_far(), 0u);
  }
  me.signal("closed");
}

template <class Way>
void all_items_pass() {
  Scenario scenario(Scenario::kShared);
  scenario.role("producer", [](Role& me) { producer<Way>(me, false); });
  scenario.roles("consumer", kConsumers, consumer<Way>);
  scenario.run(60s);
}

}  // namespace

TEST(Pipeline, EveryItemPassesByALegacyHandle) {
  covers("PIPE-01");
  needs(gpus(1), legacy_memory, progress);
  all_items_pass<Legacy>();
}

TEST(Pipeline, EveryItemPassesByADescriptor) {
  covers("PIPE-02");
  needs(gpus(1), vmm_fd, progress);
  all_items_pass<ByDescriptor>();
}

TEST(Pipeline, EveryItemPassesByAPool) {
  covers("PIPE-03");
  needs(gpus(1), pool_fd, legacy_memory, progress);
  all_items_pass<ByPool>();
}

// A consumer is killed after `after` items, with work in its stream.
TEST(Pipeline, AKilledConsumerStopsNobody) {
  covers("PIPE-04");
  needs(gpus(1), legacy_memory, progress);
  for (const int after : {0, 9, 90}) {
    Scenario scenario(Scenario::kShared);
    scenario.role("producer", [](Role& me) { producer<Legacy>(me, true); });
    scenario.role("consumer 0", consumer<Legacy>);
    auto& victim = scenario.role("consumer 1", [after](Role& me) {
      load_kernels();
      WrongWords& wrong = *new WrongWords;
      auto& own = abandoned<DeviceBuffer>(kItemBytes);
      auto& borrowed = *new Legacy::Borrowed(me);
      const Ring ring = ring_in(borrowed);
      const Stream& stream = *new Stream;
      me.signal("borrowed");
      me.wait("ahead");
      for (int item = 0; item < after + 40; ++item) {
        if (item == after) EXPECT_TRUE(passes(stream, 30s));
        take_item(ring, 1, item, &wrong, own, stream);
      }
      EXPECT_EQ(wrong.so_far(), 0u);
      me.die(SIGKILL);
    });
    victim.in_new_process();
    scenario.run(60s);
  }
}
