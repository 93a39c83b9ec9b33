// Allocations of a shared pool that importer and exporter free in the order of
// their streams.
// Mirror of samples/56_pool_free_order.
//
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <string>
#include <type_traits>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;
constexpr int kNextOwners = 64;
constexpr uint64_t kKeepAll = UINT64_MAX;

using PointerData = cudaMemPoolPtrExportData;

// Judges that a copy that is queued before the free reads the written values.
void expect_freed_in_order(AsyncBuffer* buffer, Pattern written,
                           cudaStream_t stream) {
  const DeviceBuffer copy(kBytes);
  Latch latch;
  latch.hold(stream);
  CALL(cudaMemcpyAsync(copy.data, buffer->data, kBytes,
                       cudaMemcpyDeviceToDevice, stream));
  buffer->free_async(stream);
  latch.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_TRUE(kernel_reads(copy, written));
}

}  // namespace

// Frees with one of the two functions of an API and judges the call.
template <class Api>
static void give_back(Api api, AsyncBuffer& buffer, bool async,
                      const Stream& on) {
  if (!async) return expect_free(api, buffer);
  expect_free_async(api, buffer, on);
  EXPECT_TRUE(passes(on));
}

static constexpr int kCases = 4;
// Which side frees in stream order in case i.
static constexpr bool importer_async(int i) { return (i & 1) != 0; }
static constexpr bool exporter_async(int i) { return (i & 2) != 0; }

template <class Api>
static void frees_last(Role& me, Api api) {
  const Pool pool = created(api, shareable());
  me.send_descriptor("pool", exported(api, pool).get());
  const Stream stream;
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemCurrent), 0u);
  for (int i = 0; i < kCases; ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    AsyncBuffer buffer = allocated(api, pool, kBytes);
    buffer.fill(pattern("exporter"));
    me.send("pointer", exported(api, buffer));
    me.wait("freed");
    give_back(api, buffer, exporter_async(i), stream);
  }
  CALL(cudaDeviceSynchronize());
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemCurrent), 0u);
  EXPECT_TRUE(context_is_usable());
}

template <class Api>
static void frees_first(Role& me, Api api) {
  const Pool pool = imported(api, me.receive_descriptor("pool"));
  const Stream stream;
  for (int i = 0; i < kCases; ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    AsyncBuffer buffer =
        imported(api, pool, me.receive<PointerData>("pointer"), kBytes);
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    give_back(api, buffer, importer_async(i), stream);
    me.signal("freed");
  }
  CALL(cudaDeviceSynchronize());
  // IMPL-05 judges whether an importer may query the memory in use. Here only
  // the value is judged.
  Sentinel<uint64_t> used;
  const auto code = api.mem_pool_get_attribute(
      pool, cudaMemPoolAttrUsedMemCurrent, used.out());
  cudaGetLastError();
  if (code == typename Api::Code{})
    EXPECT_EQ(used.result(), 0u);
  else
    me.observe("the importer cannot ask what is in use: " + name_of(code));
  EXPECT_TRUE(context_is_usable());
}

TEST(PoolFreeOrder, ImporterFirstThenExporterByEitherCall) {
  covers("POOL-15");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) { frees_last(me, api); });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) { frees_first(me, api); });
  });

  scenario.run(20s);
}

// The exporter's allocation still belongs to the exporter.
static void expect_not_given_out(cudaMemPool_t pool, const Words& buffer) {
  // If the block counted as free, one allocation would get this block.
  for (int i = 0; i < 4; ++i) {
    const AsyncBuffer next(pool, kBytes);
    EXPECT_NE(next.data, buffer.data);
    next.fill(pattern("next"));
    EXPECT_TRUE(kernel_reads(next, pattern("next")));
  }
}

// Imports an allocation that was imported and freed before.
static void imports_again(cudaMemPool_t pool, const PointerData& data,
                          cudaStream_t stream) {
  for (const char* time : {"first", "second", "third"}) {
    SCOPED_TRACE(time);
    AsyncBuffer buffer(pool, data, kBytes);
    EXPECT_READS(buffer, pattern("exporter"));
    buffer.free_async(stream);
    CALL(cudaStreamSynchronize(stream));
  }
}

// An exporter that goes on using an allocation that its importer has freed.
static void uses_what_the_importer_freed(Role& me) {
  const Pool pool(shareable());
  me.send_descriptor("pool", pool.exported().get());
  const AsyncBuffer buffer(pool, kBytes), other(pool, kBytes);
  buffer.fill(pattern("exporter"));
  other.fill(pattern("other"));
  me.send("pointer", buffer.exported());
  me.send("other pointer", other.exported());
  const AsyncBuffer third(pool, kBytes);
  third.fill(pattern("third"));
  me.send("third pointer", third.exported());
  const AsyncBuffer fourth(pool, kBytes);
  fourth.fill(pattern("fourth"));
  me.send("fourth pointer", fourth.exported());
  const AsyncBuffer fifth(pool, kBytes);
  fifth.fill(pattern("fifth"));
  me.send("fifth pointer", fifth.exported());

  me.wait("freed");
  expect_not_given_out(pool, buffer);
  EXPECT_READS(buffer, pattern("exporter"));
  buffer.fill(pattern("again"));
  EXPECT_TRUE(kernel_reads(buffer, pattern("again")));
  EXPECT_GE(attribute(pool, cudaMemPoolAttrUsedMemCurrent), kBytes);
  by_both_apis(
      [&](auto api) { me.send("exported again", exported(api, buffer)); });
  me.wait("freed again", 2);
  EXPECT_TRUE(kernel_reads(buffer, pattern("again")));
}

TEST(PoolFreeOrder, TheImportersFreeEndsItsOwnUseOnly) {
  covers("POOL-16");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", uses_what_the_importer_freed);

  scenario.role("importer", [](Role& me) {
    const Pool pool(me.receive_descriptor("pool"));
    const Stream stream;
    const auto data = me.receive<PointerData>("pointer");
    AsyncBuffer buffer(pool, data, kBytes);
    AsyncBuffer other(pool, me.receive<PointerData>("other pointer"), kBytes);
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    buffer.free_async(stream);
    EXPECT_TRUE(passes(stream));
    imports_again(pool, data, stream);
    EXPECT_TRUE(kernel_reads(other, pattern("other"))) << "another import";
    EXPECT_TRUE(copy_reads(other, pattern("other"))) << "another import";

    // Streams of every kind free in stream order.
    AsyncBuffer third(pool, me.receive<PointerData>("third pointer"), kBytes);
    AsyncBuffer fourth(pool, me.receive<PointerData>("fourth pointer"), kBytes);
    AsyncBuffer fifth(pool, me.receive<PointerData>("fifth pointer"), kBytes);
    expect_freed_in_order(&fourth, pattern("fourth"),
                          Stream(Stream::Kind::kBlocking));
    expect_freed_in_order(&fifth, pattern("fifth"),
                          Stream(Stream::Kind::kUrgent));
    expect_freed_in_order(&other, pattern("other"), cudaStreamPerThread);
    expect_freed_in_order(&third, pattern("third"), cudaStreamLegacy);
    me.signal("freed");
    by_both_apis([&](auto api) {
      AsyncBuffer again = imported(
          api, pool, me.receive<PointerData>("exported again"), kBytes);
      EXPECT_READS(again, pattern("again"));
      expect_free(api, again);
      CALL(cudaDeviceSynchronize());
      me.signal("freed again");
    });
  });

  scenario.run(20s);
}

// A stream that is held before it has read and freed memory of the pool.
// Nothing orders another stream of the test after it.
template <class Api>
class HeldFree {
 public:
  HeldFree(Api api, cudaMemPool_t pool) {
    AsyncBuffer buffer = allocated(api, pool, kBytes, stream_);
    buffer.fill(pattern("local"), stream_);
    latch_.hold(stream_);
    launch_copy(copy_, buffer, stream_);
    freed_ = buffer.data;
    expect_free_async(api, buffer, stream_);
  }
  // The memory whose free is pending.
  const void* freed() const { return freed_; }
  // Lets the stream continue, and judges what it has read.
  void expect_kept() {
    latch_.release();
    EXPECT_TRUE(passes(stream_));
    EXPECT_TRUE(kernel_reads(copy_, pattern("local")));
  }

 private:
  const Stream stream_;
  const DeviceBuffer copy_{kBytes};
  Latch latch_;
  const void* freed_ = nullptr;
};

// An exporter whose free is ordered by an event after the importer's free.
template <class Api>
static void frees_before_the_importer_has(Role& me, Api api) {
  const Pool pool = created(api, shareable());
  // An allocation in another stream must not be ordered after the free.
  set_attribute(pool, cudaMemPoolReuseAllowInternalDependencies, 0);
  // Memory that is freed too early stays in the pool, so the next owner writes
  // to it. If the pool gave the memory back to the system, the importer would
  // see no change.
  set_attribute(pool, cudaMemPoolAttrReleaseThreshold, kKeepAll);
  me.send_descriptor("pool", exported(api, pool).get());
  const Stream stream, other;
  load_kernels();
  AsyncBuffer buffer = allocated(api, pool, kBytes, stream);
  buffer.fill(pattern("exporter"), stream);
  me.send("pointer", exported(api, buffer));

  SharedEvent freed(me.receive<cudaIpcEventHandle_t>("event"));
  HeldFree local(api, pool);
  me.wait("importer's free is queued");
  CALL(api.stream_wait_event(stream, freed));
  const void* const lent = buffer.data;
  expect_free_async(api, buffer, stream);
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));

  // No next owner may write before the importer has read. Most of them get
  // different memory; the last owner is ordered after the importer. The owners
  // allocate more than the pool has left, so one of them would get a block that
  // counts as free.
  std::vector<AsyncBuffer> others;
  for (int i = 0; i < kNextOwners; ++i) {
    others.push_back(allocated(api, pool, kBytes, other));
    EXPECT_NE(others.back().data, lent);
    CALL(cudaMemsetAsync(others.back().data, 0xEE, kBytes, other));
  }
  const AsyncBuffer& beside = others.front();
  beside.queue_fill(pattern("beside"), other);
  const AsyncBuffer after = allocated(api, pool, kBytes, stream);
  after.queue_fill(pattern("after"), stream);
  // The importer's event orders the stream after no other stream.
  const AsyncBuffer further = allocated(api, pool, kBytes, stream);
  CALL(cudaMemsetAsync(further.data, 0xEE, kBytes, stream));
  EXPECT_NE(after.data, local.freed());
  EXPECT_NE(further.data, local.freed());
  EXPECT_TRUE(passes(other));
  EXPECT_TRUE(is_held(stream));
  me.signal("next owners are there");

  me.wait("read");
  EXPECT_TRUE(passes(stream));
  local.expect_kept();
  EXPECT_TRUE(kernel_reads(after, pattern("after")));
  EXPECT_TRUE(kernel_reads(beside, pattern("beside")));
  freed.destroy();
  me.signal("event is given back");
}

// An importer whose free is queued after a copy that has not begun.
template <class Api>
static void frees_after_its_copy(Role& me, Api api) {
  const Pool pool = imported(api, me.receive_descriptor("pool"));
  const SharedEvent freed;
  const Stream stream;
  const DeviceBuffer copy(kBytes);
  load_kernels();
  me.send("event", freed.handle());
  AsyncBuffer buffer =
      imported(api, pool, me.receive<PointerData>("pointer"), kBytes);
  Latch latch;
  latch.hold(stream);
  launch_copy(copy, buffer, stream);
  expect_free_async(api, buffer, stream);
  CALL(api.event_record(freed, stream));
  me.signal("importer's free is queued");

  me.wait("next owners are there");
  latch.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_READS(copy, pattern("exporter"));
  me.signal("read");
  me.wait("event is given back");
}

// The exporter's free is queued while the importer's kernel has not even
// begun; only the order of the streams keeps the memory.
TEST(PoolFreeOrder, AnEventLetsTheExporterFreeBeforeTheImporterHas) {
  covers("POOL-17");
  needs(gpus(1), pool_fd, legacy_events);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) { frees_before_the_importer_has(me, api); });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) { frees_after_its_copy(me, api); });
  });

  scenario.run(20s);
}

// The result is undefined: the test notes what the importer sees. Only the
// importer may fail.
TEST(PoolFreeOrder, AnExporterThatFreesFirstHarmsNobodyElse) {
  covers("POOL-18");
  needs(gpus(1), pool_fd);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    me.send_descriptor("pool", pool.exported().get());
    const AsyncBuffer other(pool, kBytes);
    other.fill(pattern("other"));
    AsyncBuffer buffer(pool, kBytes);
    buffer.fill(pattern("exporter"));
    me.send("pointer", buffer.exported());
    me.wait("imported");
    buffer.free();
    AsyncBuffer next(pool, kBytes);
    next.fill(pattern("next"));
    me.signal("freed too early");
    me.wait_until_done("importer");
    EXPECT_TRUE(kernel_reads(other, pattern("other")));
    EXPECT_TRUE(kernel_reads(next, pattern("next")));
    EXPECT_TRUE(context_is_usable());
  });

  scenario
      .role("importer",
            [](Role& me) {
              const Pool pool(me.receive_descriptor("pool"));
              const AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"),
                                       kBytes);
              EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
              me.signal("imported");
              me.wait("freed too early");
              me.observe("a kernel reads what the exporter freed: " +
                         seen_by_kernel(buffer, pattern("next")));
            })
      .may_end_by(SIGSEGV);

  scenario.run(20s);
}

// "If cudaFree(devPtr) has already been called before, an error is returned."
// The driver API has no such sentence, so its answer is only recorded.
TEST(PoolFreeOrder, ASecondFreeOfAnImportIsRefused) {
  covers("IMPL-16");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    me.send_descriptor("pool", pool.exported().get());
    const AsyncBuffer buffer(pool, kBytes), other(pool, kBytes);
    buffer.fill(pattern("exporter"));
    other.fill(pattern("other"));
    me.send("pointer", buffer.exported());
    me.send("other pointer", other.exported());
    me.wait("freed");
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    EXPECT_TRUE(kernel_reads(other, pattern("other")));
  });
  scenario.role("importer", [](Role& me) {
    const Pool pool(me.receive_descriptor("pool"));
    const auto data = me.receive<PointerData>("pointer");
    AsyncBuffer other(pool, me.receive<PointerData>("other pointer"), kBytes);
    by_both_apis([&](auto api) {
      AsyncBuffer buffer = imported(api, pool, data, kBytes);
      void* const gone = buffer.data;
      expect_free(api, buffer);
      if constexpr (std::is_same_v<decltype(api), RuntimeApi>)
        EXPECT_REFUSED(cudaFree(gone), cudaErrorInvalidValue);
      else
        me.observe("a second cuMemFree returns " + name_of(api.mem_free(gone)));
      EXPECT_TRUE(kernel_reads(other, pattern("other")));
      AsyncBuffer again = imported(api, pool, data, kBytes);
      EXPECT_TRUE(kernel_reads(again, pattern("exporter")));
      expect_free(api, again);
    });
    other.free();
    EXPECT_TRUE(context_is_usable());
    me.signal("freed");
  });
  scenario.run(20s);
}
