// A shared pool that another GPU uses. Mirror of
// samples/55_pool_two_gpus.
//
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <string>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;
constexpr auto kNone = cudaMemAccessFlagsProtNone;
constexpr auto kReadWrite = cudaMemAccessFlagsProtReadWrite;

using PointerData = cudaMemPoolPtrExportData;

// Judges that a kernel and a copy of this GPU read the pattern.
void expect_reads(int gpu, const Words& words, Pattern written) {
  SCOPED_TRACE("on GPU " + std::to_string(gpu));
  int before = 0;
  CALL(cudaGetDevice(&before));
  CALL(cudaSetDevice(gpu));
  EXPECT_READS(words, written);
  CALL(cudaSetDevice(before));
}

// Gives GPU 0 and GPU 1 access to a pool with one call.
cudaError_t give_access_to_both(cudaMemPool_t pool) {
  cudaMemAccessDesc access[2] = {};
  for (const int gpu : {0, 1}) {
    access[gpu].location = {cudaMemLocationTypeDevice, gpu};
    access[gpu].flags = kReadWrite;
  }
  return NOTED(cudaMemPoolSetAccess(pool, access, 2));
}

// An importer whose kernel on this GPU tries to read before access was given.
std::function<void(Role&)> trespasses(int gpu) {
  return [gpu](Role& me) {
    const Pool pool(me.receive_descriptor("pool"));
    const AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"), kBytes);
    CALL(cudaSetDevice(gpu));
    EXPECT_TRUE(context_is_usable());
    EXPECT_TRUE(kernel_faults(buffer));
  };
}

}  // namespace

TEST(PoolTwoGpus, AccessIsNotInherited) {
  covers("IMPL-06");
  needs(gpus(2), pool_fd, peer_access);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    CALL(give_access(1, pool));
    for (int i = 0; i < 2; ++i)
      me.send_descriptor("pool", pool.exported().get());
    const AsyncBuffer buffer(pool, kBytes);
    buffer.fill(pattern("exporter"));
    expect_reads(1, buffer, pattern("exporter"));
    me.send("pointer", buffer.exported());
    me.wait("freed");
    me.wait_for_end("trespasser");
    EXPECT_EQ(access_of(1, pool), kReadWrite);
    expect_reads(1, buffer, pattern("exporter"));
  });

  scenario.role("importer", [](Role& me) {
    const Pool pool(me.receive_descriptor("pool"));
    EXPECT_EQ(access_of(0, pool), kReadWrite);
    EXPECT_EQ(access_of(1, pool), kNone);
    AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"), kBytes);
    EXPECT_EQ(access_of(1, pool), kNone);
    expect_reads(0, buffer, pattern("exporter"));
    buffer.free();
    me.signal("freed");
  });

  // A kernel of GPU 1 confirms what the query says.
  scenario.role("trespasser", trespasses(1));

  scenario.run(30s);
}

// An importer of a pool whose GPU has the number `here` in this process.
static std::function<void(Role&)> finds_the_pool_on(int here) {
  return [here](Role& me) {
    const Pool pool(me.receive_descriptor("pool"));
    EXPECT_EQ(access_of(here, pool), kReadWrite);
    EXPECT_EQ(access_of(1 - here, pool), kNone);
    AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"), kBytes);
    EXPECT_EQ(access_of(here, pool), kReadWrite);
    EXPECT_EQ(access_of(1 - here, pool), kNone);
    cudaPointerAttributes told{};
    CALL(cudaPointerGetAttributes(&told, buffer.data));
    EXPECT_EQ(told.device, here);
    // The documentation does not promise that these queries succeed.
    Sentinel<int> ordinal, location;
    if (NOTED(DRIVER(cuPointerGetAttribute)(
            ordinal.out(), CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            address_of(buffer.data))) == CUDA_SUCCESS)
      EXPECT_EQ(ordinal.result(), here);
    constexpr auto kLocationId = static_cast<CUmemPool_attribute>(11);
    if (NOTED(DRIVER(cuMemPoolGetAttribute)(pool, kLocationId,
                                            location.out())) == CUDA_SUCCESS)
      EXPECT_EQ(location.result(), here);
    expect_reads(here, buffer, pattern("exporter"));
    if (here == 0)
      EXPECT_SUCCESS(DriverApi::mem_pool_set_access(pool, 1, kReadWrite));
    else
      EXPECT_SUCCESS(give_access(1 - here, pool));
    expect_reads(1 - here, buffer, pattern("exporter"));
    buffer.free();
    me.signal("freed");
  };
}

// The pool is on GPU 1, and one of the importers gives the GPUs other numbers.
TEST(PoolTwoGpus, AccessIsThatOfThePoolsGpu) {
  covers("IMPL-06");
  needs(gpus(2), pool_fd, peer_access);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    CALL(cudaSetDevice(1));
    const Pool pool(shareable(0, 1));
    for (int i = 0; i < 2; ++i)
      me.send_descriptor("pool", pool.exported().get());
    const AsyncBuffer buffer(pool, kBytes);
    buffer.fill(pattern("exporter"));
    me.send("pointer", buffer.exported());
    me.wait("freed", 2);
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
  });
  scenario.role("importer", finds_the_pool_on(1));
  scenario.role("importer with other numbers", finds_the_pool_on(0))
      .env("CUDA_VISIBLE_DEVICES", visible_gpus({1, 0}));
  scenario.run(30s);
}

// An exporter that gives access only after its importers have used the pool.
static void gives_access_last(Role& me) {
  const Pool pool(shareable());
  me.send_descriptor("pool", pool.exported().get());
  me.send_descriptor("pool without access", pool.exported().get());
  const AsyncBuffer before(pool, kBytes), after(pool, kBytes);
  before.fill(pattern("before"));
  after.fill(pattern("after"));
  me.send("before", before.exported());
  me.send("after", after.exported());
  me.wait("written");
  EXPECT_EQ(access_of(1, pool), kNone);
  EXPECT_TRUE(kernel_reads(before, pattern("importer, before")));
  EXPECT_TRUE(kernel_reads(after, pattern("importer, after")));
  me.wait("freed");
  EXPECT_SUCCESS(give_access(1, pool)) << "after the export";
  EXPECT_EQ(access_of(1, pool), kReadWrite);
  expect_reads(1, before, pattern("importer, before"));
  me.signal("given by the exporter");
  me.wait("asked", 2);
}

TEST(PoolTwoGpus, TheImporterGivesAccessItself) {
  covers("IMPL-07");
  needs(gpus(2), pool_fd, peer_access);
  Scenario scenario;

  scenario.role("exporter", gives_access_last);

  scenario.role("importer", [](Role& me) {
    const Descriptor shared = me.receive_descriptor("pool");
    Pool pool(shared);
    AsyncBuffer before(pool, me.receive<PointerData>("before"), kBytes);
    EXPECT_SUCCESS(give_access(1, pool));
    EXPECT_EQ(access_of(1, pool), kReadWrite);
    CALL(cudaSetDevice(1));
    AsyncBuffer after(pool, me.receive<PointerData>("after"), kBytes);
    const DeviceBuffer copy(kBytes);
    CALL(cudaMemcpyPeerAsync(copy.data, 1, after.data, 0, kBytes, nullptr));
    EXPECT_TRUE(kernel_reads(copy, pattern("after")));
    EXPECT_READS(before, pattern("before"));
    EXPECT_READS(after, pattern("after"));
    CALL(cudaMemset(before.data, 0x3C, kBytes));
    uint32_t word = 0;
    CALL(cudaMemcpy(&word, before.data, sizeof word, cudaMemcpyDefault));
    EXPECT_EQ(word, 0x3C3C3C3Cu) << "set by GPU 1";
    before.fill(pattern("importer, before"));
    after.fill(pattern("importer, after"));
    me.signal("written");
    before.free();
    after.free();
    me.signal("freed");
    CALL(cudaSetDevice(0));
    CALL(cudaDeviceSynchronize());
    pool.destroy();
    me.wait("given by the exporter");
    EXPECT_EQ(access_of(1, Pool(shared)), kNone) << "a new import";
    me.signal("asked");
  });

  scenario.role("importer that gives nothing", [](Role& me) {
    const Pool pool(me.receive_descriptor("pool without access"));
    for (const char* step : {"written", "given by the exporter"}) {
      me.wait(step);
      EXPECT_EQ(access_of(1, pool), kNone) << step;
    }
    me.signal("asked");
  });

  scenario.run(30s);
}

// An importer that gives access to its pool and takes it away again. After that
// a kernel cannot read.
static void takes_access_away(Role& me) {
  const Pool pool(me.receive_descriptor("pool for the trespasser"));
  const AsyncBuffer first(pool, me.receive<PointerData>("first"), kBytes);
  CALL(give_access(1, pool));
  expect_reads(1, first, pattern("first"));
  CALL(give_access(1, pool, kNone));
  CALL(cudaSetDevice(1));
  EXPECT_TRUE(kernel_faults(first)) << "access was taken away";
}

// An exporter that gives its own GPU 1 access to a pool, and takes it away
// while an importer has access.
static void lends_two_pools(Role& me) {
  const Pool pool(shareable()), other(shareable());
  const AsyncBuffer first(pool, kBytes), second(pool, kBytes);
  first.fill(pattern("first"));
  second.fill(pattern("second"));
  me.send_descriptor("pool", pool.exported().get());
  me.send_descriptor("other", other.exported().get());
  me.send_descriptor("pool for the trespasser", pool.exported().get());
  for (int i = 0; i < 2; ++i) me.send("first", first.exported());
  me.send("second", second.exported());
  CALL(give_access(1, pool));
  me.wait("given");
  EXPECT_SUCCESS(give_access(1, pool, kNone));
  EXPECT_EQ(access_of(1, pool), kNone) << "taken by the exporter";
  me.signal("taken by the exporter");
  me.wait("freed");
  me.wait_for_end("trespasser");
}

// Access is given to one of two imported pools, stays when the exporter takes
// its own access away, when a part of the memory of this pool is freed and when
// the pool is trimmed, and is taken away.
TEST(PoolTwoGpus, AccessIsThatOfOneImportedPool) {
  covers("IMPL-07");
  needs(gpus(2), pool_fd, peer_access);
  Scenario scenario;

  scenario.role("exporter", lends_two_pools);
  scenario.role("trespasser", takes_access_away);

  scenario.role("importer", [](Role& me) {
    const Pool pool(me.receive_descriptor("pool"));
    const Pool other(me.receive_descriptor("other")), own;
    AsyncBuffer first(pool, me.receive<PointerData>("first"), kBytes);
    AsyncBuffer second(pool, me.receive<PointerData>("second"), kBytes);
    EXPECT_SUCCESS(give_access(1, pool));
    EXPECT_EQ(access_of(1, pool), kReadWrite);
    EXPECT_EQ(access_of(1, other), kNone) << "the other pool";
    EXPECT_EQ(access_of(1, own), kNone) << "a pool of this process";
    expect_reads(1, first, pattern("first"));
    me.signal("given");
    me.wait("taken by the exporter");
    EXPECT_EQ(access_of(1, pool), kReadWrite) << "the exporter lost its own";
    expect_reads(1, first, pattern("first"));
    first.free();
    EXPECT_EQ(access_of(1, pool), kReadWrite) << "after a free";
    NOTED(cudaMemPoolTrimTo(pool, 0));  // IMPL-04 judges the code
    cudaGetLastError();
    EXPECT_EQ(access_of(1, pool), kReadWrite) << "after a trim";
    expect_reads(1, second, pattern("second"));
    EXPECT_SUCCESS(give_access(1, pool, kNone));
    EXPECT_EQ(access_of(1, pool), kNone) << "it was taken away";
    expect_reads(0, second, pattern("second"));
    EXPECT_SUCCESS(give_access(1, pool));
    EXPECT_EQ(access_of(1, pool), kReadWrite) << "it was given again";
    expect_reads(1, second, pattern("second"));
    CALL(give_access(1, pool, kNone));
    EXPECT_SUCCESS(give_access_to_both(pool));
    for (const int gpu : {0, 1}) {
      EXPECT_EQ(access_of(gpu, pool), kReadWrite) << "given to both";
      expect_reads(gpu, second, pattern("second"));
    }
    second.free();
    me.signal("freed");
  });

  scenario.run(30s);
}

// An importer that frees in a stream of the other GPU, after a copy that has
// not begun.
static void frees_in_a_stream_of_the_other_gpu(Role& me) {
  const Pool pool(me.receive_descriptor("pool"));
  AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"), kBytes);
  CALL(give_access(1, pool));
  CALL(cudaSetDevice(1));
  EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
  const Stream stream;
  const DeviceBuffer copy(kBytes);
  load_kernels();
  Latch latch;
  latch.hold(stream);
  launch_copy(copy, buffer, stream);
  buffer.free_async(stream);
  latch.release();
  EXPECT_TRUE(passes(stream));
  EXPECT_TRUE(kernel_reads(copy, pattern("exporter")));
  CALL(cudaSetDevice(0));
  me.signal("freed");
}

TEST(PoolTwoGpus, AFreeWaitsForAStreamOfTheOtherGpu) {
  covers("POOL-16");
  needs(gpus(2), pool_fd, peer_access);
  Scenario scenario;
  scenario.role("exporter", lends_from_pool(pattern("exporter"), kBytes));
  scenario.role("importer", frees_in_a_stream_of_the_other_gpu);
  scenario.run(30s);
}

// The test runs in both directions. The hidden GPU is always the GPU of the
// pool.
TEST(PoolTwoGpus, ThePoolsGpuMayBeHidden) {
  covers("IMPL-08");
  needs(gpus(2), pool_fd, peer_access);
  for (const int resident : {0, 1}) {
    SCOPED_TRACE("a pool on GPU " + std::to_string(resident));
    Scenario scenario;

    scenario.role("exporter", [resident](Role& me) {
      CALL(cudaSetDevice(resident));
      const Pool pool(shareable(0, resident));
      const AsyncBuffer buffer(pool, kBytes);
      buffer.fill(pattern("exporter"));
      CALL(cudaSetDevice(1 - resident));  // not the pool's GPU
      for (int i = 0; i < 2; ++i)
        me.send_descriptor("pool", pool.exported().get());
      me.send("pointer", buffer.exported());
      CALL(cudaSetDevice(resident));
      const AsyncBuffer early(pool, kBytes);
      early.fill(pattern("early"));
      me.send("early", early.exported());
      me.wait("written");
      EXPECT_READS(buffer, pattern("importer"));
      me.wait("freed");
      me.wait_for_end("trespasser");
    });
    scenario.role("trespasser", trespasses(0))
        .env("CUDA_VISIBLE_DEVICES", visible_gpus({1 - resident}));

    scenario
        .role("importer",
              [](Role& me) {
                int visible = 0;
                CALL(cudaGetDeviceCount(&visible));
                ASSERT_EQ(visible, 1);
                const Pool pool(me.receive_descriptor("pool"));
                EXPECT_EQ(access_of(0, pool), kNone) << "nobody gave it";
                AsyncBuffer early(pool, me.receive<PointerData>("early"),
                                  kBytes);
                EXPECT_SUCCESS(give_access(0, pool));
                EXPECT_EQ(access_of(0, pool), kReadWrite);
                AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"),
                                   kBytes);
                EXPECT_READS(early, pattern("early"));
                EXPECT_READS(buffer, pattern("exporter"));
                buffer.fill(pattern("importer"));
                me.signal("written");
                early.free();
                buffer.free();
                me.signal("freed");
              })
        .env("CUDA_VISIBLE_DEVICES", visible_gpus({1 - resident}));

    scenario.run(30s);
  }
}
