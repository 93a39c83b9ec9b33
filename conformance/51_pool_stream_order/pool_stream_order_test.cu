// Allocations of a shared pool that are shared before their stream has made
// them.
// Mirror of samples/51_pool_stream_order.
//
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <string>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;

using PointerData = cudaMemPoolPtrExportData;

}  // namespace

// An exporter of an allocation that this stream makes after the import.
template <class Api>
static void lends_in_a_held_stream(Role& me, Api api, cudaStream_t stream) {
  const Pool pool = created(api, shareable());
  me.send_descriptor("pool", exported(api, pool).get());
  load_kernels();
  Latch latch;
  latch.hold(stream);
  AsyncBuffer buffer = allocated(api, pool, kBytes, stream);
  buffer.queue_fill(pattern("exporter"), stream);
  me.send("pointer", exported(api, buffer));
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));

  me.wait("imported");
  // The pointer was exported and imported while this stream was held.
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
  latch.release();
  EXPECT_TRUE(passes(stream));
  me.signal("written");
  me.wait("freed");
  expect_free_async(api, buffer, stream);
  EXPECT_TRUE(passes(stream));
}

template <class Api>
static void borrows_from_a_held_stream(Role& me, Api api) {
  const Pool pool = imported(api, me.receive_descriptor("pool"));
  AsyncBuffer buffer =
      imported(api, pool, me.receive<PointerData>("pointer"), kBytes);
  me.signal("imported");
  me.wait("written");
  EXPECT_READS(buffer, pattern("exporter"));
  expect_free(api, buffer);
  me.signal("freed");
}

TEST(PoolStreamOrder, SharingWaitsForNoStream) {
  covers("POOL-11");
  needs(gpus(1), pool_fd);
  static constexpr int kStreams = 3;
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const Stream usual, blocking(Stream::Kind::kBlocking);
    const cudaStream_t streams[kStreams] = {usual, blocking, cudaStreamLegacy};
    for (const cudaStream_t stream : streams)
      by_both_apis([&](auto api) { lends_in_a_held_stream(me, api, stream); });
  });
  scenario.role("importer", [](Role& me) {
    for (int i = 0; i < kStreams; ++i)
      by_both_apis([&](auto api) { borrows_from_a_held_stream(me, api); });
  });
  scenario.run(20s);
}

// The read is undefined: the test notes what the reader sees. Only the reader
// may fail.
TEST(PoolStreamOrder, ReadingBeforeTheAllocationHarmsNobodyElse) {
  covers("POOL-13");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    me.send_descriptor("pool", pool.exported().get());
    const AsyncBuffer other(pool, kBytes);
    other.fill(pattern("other"));
    const Stream stream;
    Latch latch;
    latch.hold(stream);
    const AsyncBuffer buffer(pool, kBytes, stream);
    buffer.queue_fill(pattern("exporter"), stream);
    me.send("pointer", buffer.exported());
    me.wait_until_done("importer");
    latch.release();
    EXPECT_TRUE(passes(stream));
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    EXPECT_TRUE(kernel_reads(other, pattern("other")));
  });

  scenario
      .role("importer",
            [](Role& me) {
              const Pool pool(me.receive_descriptor("pool"));
              const AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"),
                                       kBytes);
              me.observe("a kernel reads before the allocation: " +
                         seen_by_kernel(buffer, pattern("exporter")));
            })
      .may_end_by(SIGSEGV);

  scenario.run(20s);
}
