// When memory that was freed in stream order may be reused.
// Mirror of samples/43_reuse_policies.
//
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/scenario/both_apis.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;    // what is checked word by word
constexpr size_t kBlock = 256 << 20;  // more than a pool has to spare
constexpr int kParts = 4;             // of kBytes
constexpr int kRounds = 1000;

constexpr cudaMemPoolAttr kPolicies[] = {
    cudaMemPoolReuseFollowEventDependencies, cudaMemPoolReuseAllowOpportunistic,
    cudaMemPoolReuseAllowInternalDependencies};

// Switches off all policies that are not in this list, and makes the pool keep
// its memory when the host synchronises.
template <class Api>
void allow_only(Api api, cudaMemPool_t pool,
                const std::vector<cudaMemPoolAttr>& allowed) {
  for (const cudaMemPoolAttr policy : kPolicies) {
    int on = 0;
    for (const cudaMemPoolAttr one : allowed) on = on || one == policy;
    CALL(api.mem_pool_set_attribute(pool, policy, &on));
  }
  set_attribute(pool, cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
}

// Is the stream idle within that time? The function only queries: a wait of the
// host would change which memory may be reused.
bool is_idle(cudaStream_t stream, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const cudaError_t code = NOTED(cudaStreamQuery(stream));
    cudaGetLastError();
    if (code == cudaSuccess) return true;
    if (std::chrono::steady_clock::now() > deadline) return false;
  }
}

// A block is used and freed in one stream and allocated again in another
// stream. Each stream fills the first words with its own values.
class Handover {
 public:
  template <class Api>
  Handover(Api api, const std::vector<cudaMemPoolAttr>& allowed,
           const cudaMemPoolProps& wanted = pool_properties())
      : pool_(wanted) {
    allow_only(api, pool_, allowed);
    CALL(cudaEventCreateWithFlags(&freed_, cudaEventDisableTiming));
    AsyncBuffer loader(kBytes);  // of another pool
    loader.fill(pattern("loads the kernel"));
  }
  ~Handover() { cudaEventDestroy(freed_); }

  void hold() { latch_.hold(first_); }
  void use_and_free() {
    AsyncBuffer block(pool_, kBlock, first_);
    const Words front(block.data, kBytes);
    front.queue_fill(pattern("first"), first_);
    wrong_.queue_count(front, pattern("first"), first_);
    block.free_async(first_);
    CALL(cudaEventRecord(freed_, first_));
    before_ = reserved(pool_);
  }
  void order() { CALL(cudaStreamWaitEvent(second_, freed_)); }
  // Replaces the event by an event that was not recorded. The new event may
  // have the same handle.
  void replace_event() {
    CALL(cudaEventDestroy(freed_));
    CALL(cudaEventCreateWithFlags(&freed_, cudaEventDisableTiming));
  }

  void make_current() { CALL(cudaDeviceSetMemPool(0, pool_)); }
  // Allocates in the second stream, and queues work that uses the memory. The
  // call names the pool, or the pool is current. Returns the code of the
  // allocation.
  template <class Api = RuntimeApi>
  cudaError_t ask_again(Api api = {}, bool current = false) {
    void* memory = nullptr;
    const auto code = static_cast<cudaError_t>(
        current ? api.malloc_async(&memory, kBlock, second_)
                : api.malloc_from_pool_async(&memory, kBlock, pool_, second_));
    cudaGetLastError();
    if (code != cudaSuccess) return code;
    again_ = Words(memory, kBytes);
    reused_ = reserved(pool_) == before_;
    again_.queue_fill(pattern("second"), second_);
    wrong_.queue_count(again_, pattern("second"), second_);
    return code;
  }
  bool reused() const { return reused_; }

  // Lets the first stream continue and checks the values of both owners. If the
  // second stream waits for nothing, this stream is idle before the first
  // stream continues.
  void expect_no_overlap() {
    waited_ = !is_idle(second_, 300ms);
    latch_.release();
    EXPECT_TRUE(passes(first_));
    EXPECT_TRUE(passes(second_));
    EXPECT_EQ(wrong_.so_far(), 0u) << "a kernel met values of the other stream";
    if (again_.data == nullptr) return;
    EXPECT_READS(again_, pattern("second"));
    CALL(cudaFree(again_.data));
  }
  bool waited() const { return waited_; }

  cudaMemPool_t pool() const { return pool_; }
  cudaStream_t first() const { return first_; }
  cudaStream_t second() const { return second_; }
  cudaEvent_t freed() const { return freed_; }

 private:
  const Pool pool_;
  const Stream first_, second_;
  cudaEvent_t freed_ = nullptr;
  Latch latch_;
  WrongWords wrong_;
  Words again_;
  uint64_t before_ = 0;
  bool reused_ = false, waited_ = false;
};

const char* in_words(bool reused) { return reused ? "reused" : "new memory"; }

}  // namespace

TEST(ReusePolicies, EachIsOnAndCanBeSwitched) {
  covers("SOMA-21");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  const auto switches = [](auto api) {
    const Pool pool, other;
    for (const cudaMemPoolAttr policy : kPolicies) {
      SCOPED_TRACE("attribute " + std::to_string(policy));
      struct {
        int value = -1, after = 0x5a5a5a5a;
      } seen;
      EXPECT_SUCCESS(api.mem_pool_get_attribute(pool, policy, &seen.value));
      EXPECT_EQ(seen.value, 1);
      EXPECT_EQ(seen.after, 0x5a5a5a5a) << "wrote more than an int";
      for (const int wanted : {0, 1}) {
        int given[] = {wanted, 0x5a5a5a5a};  // the second int is not read
        EXPECT_SUCCESS(api.mem_pool_set_attribute(pool, policy, given));
        EXPECT_SUCCESS(api.mem_pool_get_attribute(pool, policy, &seen.value));
        EXPECT_EQ(seen.value, wanted);
        // No other policy, and no other pool, has changed.
        const Pool later;
        for (const cudaMemPoolAttr one : kPolicies) {
          if (one != policy)
            EXPECT_EQ(attribute(pool, one), 1u) << "attribute " << one;
          EXPECT_EQ(attribute(other, one), 1u) << "of another pool";
          EXPECT_EQ(attribute(later, one), 1u) << "of a later pool";
        }
      }
    }
    allow_only(api, pool, {});  // sets the threshold last
    for (const cudaMemPoolAttr policy : kPolicies)
      EXPECT_EQ(attribute(pool, policy), 0u) << policy;
    // Until its destroy, the pool is the current pool.
    CALL(api.device_set_mem_pool(0, pool));
    for (const cudaMemPoolAttr policy : kPolicies)
      EXPECT_EQ(attribute(pool, policy), 0u) << policy << " of a current pool";
    EXPECT_EQ(attribute(pool, cudaMemPoolAttrReleaseThreshold), UINT64_MAX)
        << "of a current pool";
  };
  scenario.role("owner", [=](Role&) { by_both_apis(switches); });
  scenario.run(20s);
}

// A default stream also reuses at once what it has freed.
template <class Api>
static void expect_reuse_at_once(Api api, cudaStream_t stream) {
  const Pool pool;
  allow_only(api, pool, {});
  for (int round = 0; round < 10; ++round) {
    AsyncBuffer block = allocated(api, pool, kBlock, stream);
    expect_free_async(api, block, stream);
  }
  EXPECT_LT(attribute(pool, cudaMemPoolAttrReservedMemHigh), 2 * kBlock)
      << "default stream " << stream;
}

TEST(ReusePolicies, OneStreamReusesAtOnce) {
  covers("SOMA-22");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("allocator", [](Role&) {
    const Stream stream;
    const Pool pool;
    allow_only(RuntimeApi{}, pool, {});
    WrongWords wrong;
    const auto use = [&](int round) {
      const Pattern mine = pattern("round " + std::to_string(round));
      AsyncBuffer block(pool, kBlock, stream);
      const Words front(block.data, 4096);
      front.queue_fill(mine, stream);
      wrong.queue_count(front, mine, stream);
      block.free_async(stream);
    };
    use(0);
    CALL(cudaStreamSynchronize(stream));
    const uint64_t once = reserved(pool);

    Latch latch;
    latch.hold(stream);
    for (int round = 1; round <= 20; ++round) use(round);
    // If the pool grows, more rounds would use up the memory.
    ASSERT_LT(reserved(pool), once + kBlock) << "while the stream was held";
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    latch.release();
    for (int round = 21; round < kRounds; ++round) use(round);
    EXPECT_LT(attribute(pool, cudaMemPoolAttrReservedMemHigh), once + kBlock);
    EXPECT_TRUE(passes(stream, 20s));
    EXPECT_EQ(wrong.so_far(), 0u);
    by_both_apis([](auto api) {
      for (const cudaStream_t preset :
           {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread})
        expect_reuse_at_once(api, preset);
    });
  });
  scenario.run(60s);
}

// The policies are switched off after an allocation that still had them.
template <class Api>
static void expect_no_reuse_once_switched_off(Api api) {
  Handover late(api, std::vector(std::begin(kPolicies), std::end(kPolicies)));
  late.use_and_free();
  CALL(cudaStreamSynchronize(late.first()));
  allow_only(api, late.pool(), {});
  late.hold();
  late.use_and_free();
  late.order();
  EXPECT_EQ(late.ask_again(), cudaSuccess);
  late.expect_no_overlap();
  EXPECT_FALSE(late.reused()) << "switched off after an allocation";
}

// If the policy is on, the driver may reuse the memory after an event. Without
// an event the driver must not reuse the memory while the first stream is held.
TEST(ReusePolicies, AnEventBehindTheFreeAllowsReuse) {
  covers("SOMA-23");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  const auto follows_events = [](Role& me, auto api) {
    const auto reuses = [&](bool policy, bool ordered) {
      SCOPED_TRACE(std::string(policy ? "policy on" : "policy off") +
                   (ordered ? ", ordered" : ", not ordered"));
      Handover handover(
          api, policy ? std::vector{cudaMemPoolReuseFollowEventDependencies}
                      : std::vector<cudaMemPoolAttr>{});
      handover.hold();
      handover.use_and_free();
      if (ordered) handover.order();
      EXPECT_EQ(handover.ask_again(), cudaSuccess);
      handover.expect_no_overlap();
      return handover.reused();
    };
    EXPECT_FALSE(reuses(true, false)) << "nothing orders the two uses";
    const bool on = reuses(true, true);
    const bool off = reuses(false, true);
    me.observe(std::string("after an event: policy on ") + in_words(on) +
               ", off " + in_words(off));
    EXPECT_FALSE(off) << "reused where that is switched off";

    // The opportunistic policy alone allows reuse only after a free is
    // complete.
    Handover pending(api, {cudaMemPoolReuseAllowOpportunistic});
    pending.hold();
    pending.use_and_free();
    pending.order();
    EXPECT_EQ(pending.ask_again(), cudaSuccess);
    pending.expect_no_overlap();
    EXPECT_FALSE(pending.reused()) << "allowed by AllowOpportunistic";

    Handover early(api, {cudaMemPoolReuseFollowEventDependencies});
    early.hold();
    CALL(cudaEventRecord(early.freed(), early.first()));
    early.order();
    early.use_and_free();
    EXPECT_EQ(early.ask_again(), cudaSuccess);
    early.expect_no_overlap();
    EXPECT_FALSE(early.reused()) << "the event is older than the free";
    expect_no_reuse_once_switched_off(api);
  };
  scenario.role("allocator", [=](Role& me) {
    by_both_apis([&](auto api) { follows_events(me, api); });
  });
  scenario.run(60s);
}

// Two streams wait for events, but nothing lets the second stream wait for the
// free in the first stream. `beside` holds the events until the allocation.
template <class Api>
static void expect_no_reuse_in_another_order(Api api) {
  const std::vector follow{cudaMemPoolReuseFollowEventDependencies};
  cudaEvent_t event = nullptr;
  CALL(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  for (const bool third : {false, true}) {
    SCOPED_TRACE(third ? "a third stream waits after its event"
                       : "the first stream waits for the second");
    const Stream other;
    Handover handover(api, follow);
    Latch beside;
    const cudaStream_t recorder = third ? other : handover.second();
    beside.hold(recorder);
    CALL(cudaEventRecord(event, recorder));
    if (!third) CALL(cudaStreamWaitEvent(handover.first(), event));
    handover.hold();
    handover.use_and_free();
    if (third) {
      CALL(cudaStreamWaitEvent(other, handover.freed()));
      CALL(cudaStreamWaitEvent(handover.second(), event));
    }
    EXPECT_EQ(handover.ask_again(api), cudaSuccess);
    beside.release();
    handover.expect_no_overlap();
    EXPECT_FALSE(handover.reused()) << "nothing orders the two uses";
  }
  CALL(cudaEventDestroy(event));
}

// The second stream waits for an event that was not recorded. Such a wait waits
// for nothing.
static void expect_no_reuse_by_a_later_event() {
  Handover handover(RuntimeApi{}, {cudaMemPoolReuseFollowEventDependencies});
  handover.hold();
  handover.use_and_free();
  handover.replace_event();
  handover.order();
  EXPECT_EQ(handover.ask_again(), cudaSuccess);
  handover.expect_no_overlap();
  EXPECT_FALSE(handover.reused()) << "nothing orders the two uses";
}

TEST(ReusePolicies, AnEventOrdersOnlyWhatIsBeforeIt) {
  covers("SOMA-23");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("allocator", [](Role&) {
    by_both_apis([](auto api) { expect_no_reuse_in_another_order(api); });
    expect_no_reuse_by_a_later_event();
  });
  scenario.run(30s);
}

// The policies of a pool hold for each function that allocates from it, and
// also if the pool can be shared.
TEST(ReusePolicies, APolicyIsForEachCallAndEachPool) {
  covers("SOMA-23");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  const auto expect_no_reuse = [](auto api, bool current,
                                  const cudaMemPoolProps& wanted) {
    SCOPED_TRACE(current ? "the current pool" : "a named pool");
    Handover handover(api, {}, wanted);
    if (current) handover.make_current();
    handover.hold();
    handover.use_and_free();
    handover.order();
    EXPECT_EQ(handover.ask_again(api, current), cudaSuccess);
    handover.expect_no_overlap();
    EXPECT_FALSE(handover.reused()) << "all policies are off";
  };
  scenario.role("allocator", [=](Role&) {
    by_both_apis([&](auto api) {
      for (const bool current : {false, true}) {
        expect_no_reuse(api, current, pool_properties());
        expect_no_reuse(api, current, shareable());
      }
    });
  });
  scenario.run(30s);
}

// A query that says that work is pending makes no free complete.
template <class Api>
static void expect_no_reuse_by_a_query(Api api) {
  for (const bool policy : {true, false}) {
    Handover pending(api, policy
                              ? std::vector{cudaMemPoolReuseAllowOpportunistic}
                              : std::vector<cudaMemPoolAttr>{});
    pending.hold();
    pending.use_and_free();
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(pending.first()));
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(pending.freed()));
    EXPECT_EQ(pending.ask_again(api), cudaSuccess);
    pending.expect_no_overlap();
    EXPECT_FALSE(pending.reused()) << "a query has seen that work is pending";
  }
}

TEST(ReusePolicies, CompletedFreesAreReusedOnceSeen) {
  covers("SOMA-24");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  const auto frees_and_asks = [](Role& me, auto api) {
    const auto reuses = [&](bool policy, bool synchronise) {
      Handover handover(api,
                        policy ? std::vector{cudaMemPoolReuseAllowOpportunistic}
                               : std::vector<cudaMemPoolAttr>{});
      handover.use_and_free();
      if (synchronise)
        CALL(cudaStreamSynchronize(handover.first()));
      else
        EXPECT_TRUE(passes(handover.first()));
      EXPECT_EQ(handover.ask_again(), cudaSuccess);
      handover.expect_no_overlap();
      return handover.reused();
    };
    EXPECT_TRUE(reuses(false, true)) << "the host has synchronised";
    const bool on = reuses(true, false);
    const bool off = reuses(false, false);
    me.observe(std::string("once the free is over: policy on ") + in_words(on) +
               ", off " + in_words(off));
    expect_no_reuse_by_a_query(api);
  };
  scenario.role("allocator", [=](Role& me) {
    by_both_apis([&](auto api) { frees_and_asks(me, api); });
  });
  scenario.run(30s);
}

TEST(ReusePolicies, AFullPoolMayLetAStreamWait) {
  covers("SOMA-25");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  const auto fills_the_pool = [](Role& me, auto api) {
    for (const bool policy : {true, false}) {
      SCOPED_TRACE(policy ? "policy on" : "policy off");
      Handover handover(
          api,
          policy ? std::vector{cudaMemPoolReuseAllowInternalDependencies}
                 : std::vector<cudaMemPoolAttr>{},
          pool_properties(cudaMemHandleTypeNone, kBlock));
      handover.hold();
      handover.use_and_free();
      const cudaError_t code = handover.ask_again();
      EXPECT_TRUE(code == cudaSuccess || code == cudaErrorMemoryAllocation)
          << name_of(code);
      handover.expect_no_overlap();
      EXPECT_FALSE(handover.reused() && !policy)
          << "the first stream is held, and a dependency is switched off";
      me.observe(std::string("full pool, policy ") + (policy ? "on" : "off") +
                 ": " + name_of(code) +
                 (code != cudaSuccess
                      ? ""
                      : std::string(", ") + in_words(handover.reused()) +
                            (handover.waited() ? ", the stream waits"
                                               : ", the stream goes on")));
      EXPECT_TRUE(context_is_usable());
    }
  };
  scenario.role("allocator", [=](Role& me) {
    by_both_apis([&](auto api) { fills_the_pool(me, api); });
  });
  scenario.run(30s);
}

// Random streams, sizes, owners and orders; one stream is held at first, so
// that its frees are pending while other streams allocate.
static void allocates_at_random(Role&) {
  constexpr int kStreams = 4;
  constexpr int kHeld = 100;
  constexpr int kSteps = 400;
  constexpr size_t kLive = 6;
  const Pool pool;
  cudaMemPool_t preset = nullptr;
  CALL(cudaDeviceGetMemPool(&preset, 0));
  CALL(cudaDeviceSetMemPool(0, pool));  // for cudaMallocAsync
  const Stream streams[kStreams];
  WrongWords wrong;
  cudaEvent_t done;
  CALL(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  std::minstd_rand random(pattern("random").key);
  const auto below = [&](size_t limit) { return random() % limit; };
  struct Owned {
    AsyncBuffer block;
    Pattern pattern;
    size_t stream;
  };
  std::deque<Owned> live;
  // Checks and frees the oldest block, sometimes in another stream.
  const auto leave = [&] {
    Owned owned = std::move(live.front());
    live.pop_front();
    size_t last = owned.stream;
    if (below(4) == 0) {
      last = below(kStreams);
      CALL(cudaEventRecord(done, streams[owned.stream]));
      CALL(cudaStreamWaitEvent(streams[last], done));
    }
    wrong.queue_count(owned.block, owned.pattern, streams[last]);
    owned.block.free_async(streams[last]);
  };
  AsyncBuffer first(pool, kBytes);
  first.fill(pattern("loads the kernel"));
  first.free_async();
  CALL(cudaDeviceSynchronize());

  Latch latch;
  latch.hold(streams[0]);
  for (int step = 0; step < kSteps; ++step) {
    if (step == kHeld) latch.release();
    const size_t stream = below(kStreams);
    const size_t bytes = below(3) == 0 ? sizeof(uint32_t) * (1 + below(200))
                                       : size_t{1024} << below(10);
    live.push_back({below(2) == 0 ? AsyncBuffer(bytes, streams[stream])
                                  : AsyncBuffer(pool, bytes, streams[stream]),
                    pattern("step " + std::to_string(step)), stream});
    live.back().block.queue_fill(live.back().pattern, streams[stream]);
    if (live.size() > kLive) leave();
  }
  while (!live.empty()) leave();
  for (const Stream& stream : streams) EXPECT_TRUE(passes(stream, 20s));
  EXPECT_EQ(wrong.so_far(), 0u);
  CALL(cudaEventDestroy(done));
  CALL(cudaDeviceSynchronize());
  CALL(cudaDeviceSetMemPool(0, preset));
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemCurrent), 0u);
}

TEST(ReusePolicies, NoTwoOwnersAtOnce) {
  covers("SOMA-26");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("allocator", allocates_at_random);
  scenario.run(60s);
}

// No stream waits for the free in another stream, and the pool keeps its
// memory.
static void never_wait(cudaMemPool_t pool) {
  set_attribute(pool, cudaMemPoolReuseAllowInternalDependencies, 0);
  set_attribute(pool, cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
}

// The first stream is held before a copy and a free. The next stream, which
// waits for nothing, must not get the memory or a part of it.
template <class Api>
static void expect_freed_in_order(Api api, cudaStream_t first,
                                  cudaStream_t next) {
  const Pool pool;
  never_wait(pool);
  const DeviceBuffer copy(kBytes);
  AsyncBuffer buffer = allocated(api, pool, kBytes, first);
  buffer.fill(pattern("owner"), first);

  Latch latch;
  latch.hold(first);
  CALL(cudaMemcpyAsync(copy.data, buffer.data, kBytes, cudaMemcpyDeviceToDevice,
                       first));
  expect_free_async(api, buffer, first);
  const AsyncBuffer later = allocated(api, pool, kBytes, next);
  CALL(cudaMemsetAsync(later.data, 0xEE, kBytes, next));
  std::vector<AsyncBuffer> parts;
  for (int i = 0; i < 2 * kParts; ++i) {
    parts.push_back(allocated(api, pool, kBytes / kParts, next));
    CALL(cudaMemsetAsync(parts.back().data, 0xEE, kBytes / kParts, next));
  }
  // A GPU may put both streams into one hardware queue. If not, the work of the
  // next stream is done now.
  (void)is_held(next);
  latch.release();
  EXPECT_TRUE(passes(first));
  EXPECT_TRUE(passes(next));
  EXPECT_TRUE(kernel_reads(copy, pattern("owner")));
}

// A blocking stream is held before a copy. Then the legacy default stream,
// which waits for this stream, frees the memory. The next stream waits for
// neither.
template <class Api>
static void expect_freed_after_blocking_streams(Api api, cudaStream_t preset) {
  SCOPED_TRACE("a free after the work of a blocking stream");
  const Stream blocking(Stream::Kind::kBlocking), next;
  const Pool pool;
  never_wait(pool);
  const DeviceBuffer copy(kBytes);
  AsyncBuffer buffer = allocated(api, pool, kBytes, preset);
  buffer.fill(pattern("owner"), preset);
  CALL(cudaStreamSynchronize(preset));
  Latch latch;
  latch.hold(blocking);
  CALL(cudaMemcpyAsync(copy.data, buffer.data, kBytes, cudaMemcpyDeviceToDevice,
                       blocking));
  expect_free_async(api, buffer, preset);
  const AsyncBuffer later = allocated(api, pool, kBytes, next);
  CALL(cudaMemsetAsync(later.data, 0xEE, kBytes, next));
  (void)is_held(next);  // as in expect_freed_in_order()
  latch.release();
  EXPECT_TRUE(passes(blocking));
  EXPECT_TRUE(passes(next));
  EXPECT_TRUE(kernel_reads(copy, pattern("owner")));
}

// The default streams of two threads are two streams.
static void expect_default_streams_of_threads_apart() {
  const cudaStream_t mine = cudaStreamPerThread;  // in each thread
  const Pool pool;
  never_wait(pool);
  const DeviceBuffer copy(kBytes);
  AsyncBuffer buffer(pool, kBytes, mine);
  buffer.fill(pattern("owner"), mine);
  Latch latch;
  latch.hold(mine);
  CALL(cudaMemcpyAsync(copy.data, buffer.data, kBytes, cudaMemcpyDeviceToDevice,
                       mine));
  buffer.free_async(mine);
  CALL(in_a_thread([&] {
    AsyncBuffer next(pool, kBytes, mine);
    CALL(cudaMemsetAsync(next.data, 0xEE, kBytes, mine));
    (void)is_held(mine);  // as in expect_freed_in_order()
    next.free_async(mine);
    return cudaSuccess;
  }));
  latch.release();
  EXPECT_TRUE(passes(mine));
  EXPECT_TRUE(kernel_reads(copy, pattern("owner")));
}

// A default stream, a blocking stream, or a stream with a priority is held at
// its free; another stream must not get the memory. Then a non-blocking stream
// is held, and a default stream must not get the memory. Then, of two streams
// that wait for the legacy default stream, one is held. Last, the legacy
// default stream frees what a blocking stream still uses.
TEST(ReusePolicies, DefaultStreamsFreeInTheirOrder) {
  covers("SOMA-26");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  const auto by_each_stream = [](auto api) {
    const Stream other, urgent(Stream::Kind::kUrgent);
    const Stream blocking(Stream::Kind::kBlocking);
    const Stream blocking_too(Stream::Kind::kBlocking);
    const std::pair<const char*, cudaStream_t> streams[] = {
        {"0", nullptr},
        {"legacy", cudaStreamLegacy},
        {"per thread", cudaStreamPerThread},
        {"blocking", blocking},
        {"with a priority", urgent}};
    for (const auto& [name, stream] : streams) {
      SCOPED_TRACE(name);
      expect_freed_in_order(api, stream, other);
    }
    for (const cudaStream_t next :
         {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread})
      expect_freed_in_order(api, other, next);
    // These streams wait for the legacy default stream, but not for each other.
    expect_freed_in_order(api, blocking, blocking_too);
    expect_freed_in_order(api, blocking, cudaStreamPerThread);
    expect_freed_in_order(api, cudaStreamPerThread, blocking);
    for (const cudaStream_t preset : {cudaStream_t{}, cudaStreamLegacy})
      expect_freed_after_blocking_streams(api, preset);
  };
  scenario.role("allocator", [=](Role&) {
    by_both_apis(by_each_stream);
    expect_default_streams_of_threads_apart();
  });
  scenario.run(30s);
}

// A stream is destroyed while its free is pending. Memory that it has allocated
// lives on, and no other stream gets the memory before the free.
TEST(ReusePolicies, FreesOutliveTheirStream) {
  covers("SOMA-26");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("allocator", [](Role& me) {
    const Pool pool;
    never_wait(pool);
    const DeviceBuffer copy(kBytes);
    cudaStream_t gone = nullptr;
    CALL(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking));
    AsyncBuffer stays(pool, kBytes, gone), leaves(pool, kBytes, gone);
    stays.fill(pattern("stays"), gone);
    leaves.fill(pattern("leaves"), gone);
    Latch latch;
    latch.hold(gone);
    CALL(cudaMemcpyAsync(copy.data, leaves.data, kBytes,
                         cudaMemcpyDeviceToDevice, gone));
    leaves.free_async(gone);
    CALL(cudaStreamDestroy(gone));
    const Stream later;  // may get the handle of the destroyed stream
    AsyncBuffer next(pool, kBytes, later);
    CALL(cudaMemsetAsync(next.data, 0xEE, kBytes, later));
    // A GPU may put both streams into one hardware queue.
    if (is_held(later))
      me.observe("the new stream waits for the destroyed one");
    latch.release();
    CALL(cudaDeviceSynchronize());
    EXPECT_TRUE(kernel_reads(copy, pattern("leaves")));
    EXPECT_TRUE(kernel_reads(stays, pattern("stays"))) << "outlives its stream";
    EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemCurrent), 2 * kBytes);
    expect_free_async(RuntimeApi{}, stays, later);
    expect_free_async(RuntimeApi{}, next, later);
    CALL(cudaDeviceSynchronize());
    EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemCurrent), 0u);
  });
  scenario.run(20s);
}

// Hundreds of frees are pending in one stream. Another stream, which waits for
// nothing, gets none of this memory.
TEST(ReusePolicies, HundredsOfFreesArePending) {
  covers("SOMA-26");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("allocator", [](Role&) {
    constexpr size_t kPending = 300, kEach = 4096, kCopied = 30;
    const Stream first, next;
    const Pool pool;
    never_wait(pool);
    std::vector<AsyncBuffer> blocks, later;
    for (size_t i = 0; i < kPending; ++i) {
      blocks.emplace_back(pool, kEach, first);
      CALL(cudaMemsetAsync(blocks.back().data, 0x11, kEach, first));
    }
    const DeviceBuffer copies(kPending / kCopied * kEach);
    CALL(cudaStreamSynchronize(first));
    Latch latch;
    latch.hold(first);
    for (size_t i = 0; i < kPending; i += kCopied)
      CALL(cudaMemcpyAsync(copies.data + i / kCopied * kEach / sizeof(uint32_t),
                           blocks[i].data, kEach, cudaMemcpyDeviceToDevice,
                           first));
    for (AsyncBuffer& block : blocks) block.free_async(first);
    for (size_t i = 0; i < kPending; ++i) {
      later.emplace_back(pool, kEach, next);
      CALL(cudaMemsetAsync(later.back().data, 0xEE, kEach, next));
    }
    (void)is_held(next);  // as in expect_freed_in_order()
    latch.release();
    EXPECT_TRUE(passes(first));
    EXPECT_TRUE(passes(next));
    std::vector<unsigned char> seen(copies.bytes());
    CALL(cudaMemcpy(seen.data(), copies.data, seen.size(), cudaMemcpyDefault));
    EXPECT_TRUE(seen == std::vector<unsigned char>(seen.size(), 0x11))
        << "the next owner of a block wrote before its free";
  });
  scenario.run(30s);
}

// The documentation of cuCtxDestroy: it "will not destroy memory allocations by
// […] cuMemAllocAsync() and cuMemAllocFromPoolAsync(). These memory allocations
// are not associated with any CUDA context".
TEST(ReusePolicies, MemoryOutlivesItsContext) {
  covers("SOMA-26");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  const auto outlives = [](auto api) {
    const Pool pool;
    cudaMemPool_t preset = nullptr;
    CALL(cudaDeviceGetMemPool(&preset, 0));
    const auto used = [](cudaMemPool_t which) {
      return attribute(which, cudaMemPoolAttrUsedMemCurrent);
    };
    const uint64_t before = used(preset);
    CUcontext context = nullptr;
    CALL(create_context(&context, 0));  // now it is current
    AsyncBuffer of_pool = allocated(api, pool, kBytes);
    AsyncBuffer of_preset = allocated(api, kBytes);
    EXPECT_SUCCESS(synchronize_context());
    CALL(cudaSetDevice(0));  // the primary context is current again
    of_pool.fill(pattern("of the pool"));
    of_preset.fill(pattern("of the default pool"));
    CALL(cudaDeviceSynchronize());
    const uint64_t in_pool = used(pool), in_preset = used(preset);
    EXPECT_GE(in_pool, kBytes);
    EXPECT_GE(in_preset, before + kBytes);
    CALL(DRIVER(cuCtxDestroy)(context));
    EXPECT_EQ(used(pool), in_pool) << "its context has ended";
    EXPECT_EQ(used(preset), in_preset) << "its context has ended";
    for (const char* time : {"first", "second"}) {
      SCOPED_TRACE(std::string(time) + " use after the end of the context");
      EXPECT_READS(of_pool, pattern("of the pool"));
      EXPECT_TRUE(kernel_reads(of_preset, pattern("of the default pool")));
      AsyncBuffer next(pool, kBytes);  // must be other memory
      next.fill(pattern("next"));
      next.free_async();
    }
    expect_free_async(api, of_pool);
    expect_free_async(api, of_preset);
    CALL(cudaDeviceSynchronize());
    EXPECT_EQ(used(pool), 0u);
    EXPECT_EQ(used(preset), before);
  };
  scenario.role("allocator", [=](Role&) { by_both_apis(outlives); });
  scenario.run(20s);
}

// Threads that allocate from one pool at the same time get different memory.
TEST(ReusePolicies, ThreadsAllocateAtTheSameTime) {
  covers("SOMA-26");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("allocator", [](Role&) {
    constexpr size_t kThreads = 4, kEach = 64, kSmall = 4096;
    const Pool pool;
    std::vector<uintptr_t> all;
    std::mutex mutex;
    std::atomic<size_t> ready{0};
    cudaError_t codes[kThreads]{};
    std::vector<std::thread> threads;
    note_call("cudaMallocFromPoolAsync in threads");
    for (cudaError_t& code : codes)
      threads.emplace_back([&] {
        for (++ready; ready < kThreads;) std::this_thread::yield();
        for (size_t i = 0; i < kEach && code == cudaSuccess; ++i) {
          void* memory = nullptr;
          code = cudaMallocFromPoolAsync(&memory, kSmall, pool,
                                         cudaStreamPerThread);
          const std::lock_guard lock(mutex);
          all.push_back(reinterpret_cast<uintptr_t>(memory));
        }
        if (code == cudaSuccess)
          code = cudaStreamSynchronize(cudaStreamPerThread);
      });
    for (std::thread& thread : threads) thread.join();
    for (const cudaError_t code : codes) EXPECT_EQ(code, cudaSuccess);
    std::sort(all.begin(), all.end());
    ASSERT_EQ(all.size(), kThreads * kEach);
    for (size_t i = 1; i < all.size(); ++i)
      ASSERT_GE(all[i] - all[i - 1], kSmall) << "two owners";
    EXPECT_GE(attribute(pool, cudaMemPoolAttrUsedMemCurrent),
              kThreads * kEach * kSmall);
    for (const uintptr_t memory : all)
      CALL(cudaFreeAsync(reinterpret_cast<void*>(memory), nullptr));
    CALL(cudaDeviceSynchronize());
    EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemCurrent), 0u);
  });
  scenario.run(20s);
}

// A synchronise of another stream, or of an event in it, covers no free of a
// stream that is held. An event that is older than the free does not cover the
// free either.
static void expect_no_reuse_by_another_synchronise(
    const std::vector<cudaMemPoolAttr>& allowed) {
  const Stream beside;
  for (const bool older : {true, false}) {
    SCOPED_TRACE(older ? "an older event" : "another stream");
    Handover pending(RuntimeApi{}, allowed);
    cudaEvent_t event = nullptr;
    CALL(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    if (older) CALL(cudaEventRecord(event, pending.first()));
    pending.hold();
    pending.use_and_free();
    if (!older) {
      CALL(cudaEventRecord(event, beside));
      CALL(cudaStreamSynchronize(beside));
    }
    CALL(cudaEventSynchronize(event));
    EXPECT_EQ(pending.ask_again(), cudaSuccess);
    EXPECT_FALSE(pending.reused()) << "the stream of the free is held";
    pending.expect_no_overlap();
    CALL(cudaEventDestroy(event));
  }
}

// A default stream does not wait for a non-blocking stream. A synchronise of
// the default stream, or a copy in it for which the host waits, covers no free
// of such a stream.
static void expect_no_reuse_by_a_default_stream(
    const std::vector<cudaMemPoolAttr>& allowed) {
  const AsyncBuffer word(sizeof(uint32_t));
  CALL(cudaDeviceSynchronize());
  for (const cudaStream_t stream :
       {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
    Handover pending(RuntimeApi{}, allowed);
    pending.hold();
    pending.use_and_free();
    uint32_t copy = 0;
    CALL(cudaMemcpy(&copy, word.data, sizeof copy, cudaMemcpyDeviceToHost));
    CALL(cudaStreamSynchronize(stream));
    EXPECT_EQ(pending.ask_again(), cudaSuccess);
    EXPECT_FALSE(pending.reused()) << "the stream of the free is held";
    pending.expect_no_overlap();
  }
}

// Each thread has its own default stream, which has the same handle in all
// threads. A synchronise of this stream by another thread covers no free of
// this thread.
static void expect_no_reuse_by_the_stream_of_another_thread() {
  const cudaStream_t mine = cudaStreamPerThread;  // in each thread
  const Stream next;
  const Pool pool;
  allow_only(RuntimeApi{}, pool, {cudaMemPoolReuseAllowOpportunistic});
  const DeviceBuffer copy(kBytes);
  AsyncBuffer buffer(pool, kBytes, mine);
  buffer.fill(pattern("owner"), mine);
  CALL(cudaStreamSynchronize(mine));
  Latch latch;
  latch.hold(mine);
  CALL(cudaMemcpyAsync(copy.data, buffer.data, kBytes, cudaMemcpyDeviceToDevice,
                       mine));
  buffer.free_async(mine);
  HostWait other("cudaStreamSynchronize in another thread", [=] {
    const cudaError_t code = cudaSetDevice(0);  // the thread's context
    return code == cudaSuccess ? cudaStreamSynchronize(mine) : code;
  });
  // A GPU may put the streams of both threads into one hardware queue.
  if (other.is_held()) latch.release();
  EXPECT_EQ(other.join(), cudaSuccess);
  const AsyncBuffer later(pool, kBytes, next);
  CALL(cudaMemsetAsync(later.data, 0xEE, kBytes, next));
  (void)is_held(next);  // as in expect_freed_in_order()
  latch.release();
  EXPECT_TRUE(passes(mine));
  EXPECT_TRUE(passes(next));
  EXPECT_TRUE(kernel_reads(copy, pattern("owner")));
}

// A synchronise of a default stream covers the frees in it.
static void expect_reuse_after_default_stream(cudaStream_t stream) {
  const Stream other;
  const Pool pool;
  allow_only(RuntimeApi{}, pool, {});
  AsyncBuffer(pool, kBlock, stream).free_async(stream);
  const uint64_t before = reserved(pool);
  CALL(cudaStreamSynchronize(stream));
  const AsyncBuffer again(pool, kBlock, other);
  EXPECT_EQ(reserved(pool), before) << "freed in default stream " << stream;
}

// A synchronise of the context also gives back memory above the threshold,
// which is 0.
static void expect_release_by_context_synchronise() {
  const Stream stream;
  const Pool pool;
  AsyncBuffer(pool, kBlock, stream).free_async(stream);
  EXPECT_SUCCESS(synchronize_context());
  EXPECT_LT(reserved(pool), kBlock) << "after cuCtxSynchronize";
}

TEST(ReusePolicies, ASynchroniseEndsFreesForAllStreams) {
  covers("SOMA-27");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("allocator", [](Role&) {
    const auto expect_reuse = [](const char* name, auto synchronise) {
      SCOPED_TRACE(name);
      Handover handover(RuntimeApi{}, {});
      handover.use_and_free();
      synchronise(handover);
      EXPECT_EQ(handover.ask_again(), cudaSuccess);
      EXPECT_TRUE(handover.reused());
      handover.expect_no_overlap();
    };
    expect_reuse("stream", [](Handover& handover) {
      CALL(cudaStreamSynchronize(handover.first()));
    });
    expect_reuse("event", [](Handover& handover) {
      CALL(cudaEventSynchronize(handover.freed()));
    });
    for (const unsigned flags : {cudaEventDefault, cudaEventBlockingSync})
      expect_reuse("another kind of event", [=](Handover& handover) {
        cudaEvent_t event = nullptr;
        CALL(cudaEventCreateWithFlags(&event, flags));
        CALL(cudaEventRecord(event, handover.first()));
        CALL(cudaEventSynchronize(event));
        CALL(cudaEventDestroy(event));
      });
    expect_reuse("device", [](Handover&) { CALL(cudaDeviceSynchronize()); });
    expect_reuse("context",
                 [](Handover&) { EXPECT_SUCCESS(synchronize_context()); });
    expect_reuse("stream, driver API", [](Handover& handover) {
      CALL(DRIVER(cuStreamSynchronize)(handover.first()));
    });
    expect_reuse("event, driver API", [](Handover& handover) {
      CALL(DriverApi::event_synchronize(handover.freed()));
    });
    expect_reuse("stream, in another thread", [](Handover& handover) {
      CALL(
          in_a_thread([&] { return cudaStreamSynchronize(handover.first()); }));
    });
    for (const cudaStream_t stream :
         {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread})
      expect_reuse_after_default_stream(stream);
    expect_no_reuse_by_the_stream_of_another_thread();
    expect_release_by_context_synchronise();
    for (const auto& allowed :
         {std::vector<cudaMemPoolAttr>{},
          std::vector{cudaMemPoolReuseAllowOpportunistic}}) {
      expect_no_reuse_by_another_synchronise(allowed);
      expect_no_reuse_by_a_default_stream(allowed);
    }
  });
  scenario.run(30s);
}

TEST(ReusePolicies, AnotherGpusSynchroniseEndsNoFree) {
  covers("SOMA-27");
  needs(gpus(2), pools);
  Scenario scenario;
  scenario.role("allocator", [](Role&) {
    const std::pair<const char*, void (*)()> synchronises[] = {
        {"device", [] { CALL(cudaDeviceSynchronize()); }},
        {"context", [] { EXPECT_SUCCESS(synchronize_context()); }},
        {"default stream", [] { CALL(cudaStreamSynchronize(nullptr)); }}};
    CALL(cudaSetDevice(1));
    CALL(cudaFree(nullptr));  // creates its context while no stream is held
    for (const auto& [name, synchronise] : synchronises) {
      SCOPED_TRACE(name);
      CALL(cudaSetDevice(0));
      Handover pending(RuntimeApi{}, {});
      pending.hold();
      pending.use_and_free();
      CALL(cudaSetDevice(1));
      synchronise();
      CALL(cudaSetDevice(0));
      EXPECT_EQ(pending.ask_again(), cudaSuccess);
      EXPECT_FALSE(pending.reused()) << "the stream of the free is held";
      pending.expect_no_overlap();
    }
  });
  scenario.run(30s);
}

TEST(ReusePolicies, ACapturedMemsetWorks) {
  covers("SOMA-29");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("capturer", [](Role& me) {
    const Stream stream;
    const AsyncBuffer buffer(kBytes, stream), other(kBytes, stream);
    buffer.fill(pattern("before"), stream);
    CALL(cudaMemsetAsync(other.data, 0x55, kBytes, stream));
    cudaGraph_t graph = nullptr;
    CALL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    EXPECT_SUCCESS(cudaMemsetAsync(buffer.data, 0x3C, kBytes, stream));
    CALL(cudaStreamEndCapture(stream, &graph));
    const auto launch = [&](cudaGraph_t work) {
      cudaGraphExec_t executable = nullptr;
      cudaError_t code = NOTED(cudaGraphInstantiate(&executable, work, 0));
      if (code != cudaSuccess) return code;
      code = NOTED(cudaGraphLaunch(executable, stream));
      if (code == cudaSuccess) code = NOTED(cudaStreamSynchronize(stream));
      CALL(cudaGraphExecDestroy(executable));
      return code;
    };
    const auto holds = [&](unsigned char byte) {
      std::vector<unsigned char> seen(kBytes, 0);
      CALL(cudaMemcpy(seen.data(), buffer.data, kBytes, cudaMemcpyDefault));
      return seen == std::vector<unsigned char>(kBytes, byte);
    };
    EXPECT_TRUE(kernel_reads(buffer, pattern("before"))) << "only captured";
    EXPECT_EQ(launch(graph), cudaSuccess);
    EXPECT_TRUE(holds(0x3C));
    CALL(cudaGraphDestroy(graph));

    CALL(cudaGraphCreate(&graph, 0));
    cudaMemsetParams wanted{};
    wanted.dst = buffer.data;
    wanted.elementSize = 1;
    wanted.height = 1;
    wanted.width = kBytes;
    wanted.value = 0x7E;
    cudaGraphNode_t node;
    cudaError_t code =
        NOTED(cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &wanted));
    if (code == cudaSuccess) code = launch(graph);
    cudaGetLastError();
    me.observe("an explicit memset node: " + name_of(code));
    if (code == cudaSuccess && holds(0x7E))
      me.lifted("cudaGraphAddMemsetNode works with stream-ordered memory");
    CALL(cudaGraphDestroy(graph));
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

// Captures an allocation from a shared pool, or from a pool that cannot be
// shared. The call names the pool, or the pool is current.
template <class Api>
static void captures_an_allocation(Role& me, Api api, bool shared,
                                   bool current) {
  const std::string which = std::string(api.kName) + ", " +
                            (current ? "the current pool" : "a named pool") +
                            (shared ? ": " : " without handle types: ");
  const Stream stream;
  const Pool pool = created(api, shared ? shareable() : pool_properties());
  if (shared) exported(api, pool);
  const AsyncBuffer neighbour = allocated(api, pool, kBytes, stream);
  neighbour.fill(pattern("neighbour"), stream);
  if (current) CALL(api.device_set_mem_pool(0, pool));
  cudaGraph_t graph = nullptr;
  CALL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  void* memory = nullptr;
  const auto code =
      current ? api.malloc_async(&memory, kBytes, stream)
              : api.malloc_from_pool_async(&memory, kBytes, pool, stream);
  me.observe(which + "captured: " + name_of(code));
  const bool captured = code == typename Api::Code{};
  if (captured) CALL(api.free_async(memory, stream));
  const cudaError_t ended = NOTED(cudaStreamEndCapture(stream, &graph));
  cudaGetLastError();
  me.observe(which + "end of the capture: " + name_of(ended));
  if (captured) {
    cudaMemPoolPtrExportData data{};
    me.observe(which + "export of the node's pointer: " +
               name_of(api.mem_pool_export_pointer(&data, memory)));
    cudaGetLastError();
    const uint64_t used = attribute(pool, cudaMemPoolAttrUsedMemCurrent);
    me.observe(which + std::to_string(used - kBytes) +
               " bytes of the pool are in use for the node");
    if (!shared) EXPECT_EQ(used, kBytes) << "the node is not of the pool";
  }
  if (graph != nullptr) CALL(cudaGraphDestroy(graph));
  EXPECT_READS(neighbour, pattern("neighbour"));
  EXPECT_TRUE(context_is_usable());
}

TEST(ReusePolicies, ACapturedAllocationOfASharedPool) {
  covers("SOMA-33");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("capturer", [](Role& me) {
    by_both_apis([&](auto api) {
      for (const bool shared : {true, false})
        for (const bool current : {false, true})
          captures_an_allocation(me, api, shared, current);
    });
  });
  scenario.run(20s);
}
