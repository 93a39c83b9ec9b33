// Batches of copies (CUDA 12.8), and copies with attributes (CUDA 13.2), from
// and to memory that another process has lent: opened, mapped or of a pool.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "harness/scenario/endpoint.h"
#include "harness/scenario/kernels.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 128 << 10;
constexpr uint32_t kPoison = 0xEEEEEEEE;
// A held stream goes on after this time: a driver may make a call wait for its
// stream, if the source must be read during the call.
constexpr double kHeldSeconds = 3;

constexpr auto kInOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
constexpr auto kDuringCall = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
constexpr auto kAnyOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
constexpr CUmemcpySrcAccessOrder kOrders[] = {kInOrder, kDuringCall, kAnyOrder};

std::string name_of_order(CUmemcpySrcAccessOrder order) {
  return order == kInOrder      ? "in stream order"
         : order == kDuringCall ? "during the call"
         : order == kAnyOrder   ? "in any order"
                                : "order " + std::to_string(order);
}

// --- the four functions ------------------------------------------------------

// One copy, for each of the functions.
struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  CUmemcpySrcAccessOrder order = kInOrder;
  unsigned flags = 0;
  CUmemLocation hint{};  // of both sides
};

// The four functions, by the driver API and by the runtime API.
enum class Function { kBatch, kBoxes, kAttributes, kBox };
struct Way {
  Function function;
  bool by_runtime;
  const char* name;
};
constexpr Way kWays[] = {
    {Function::kBatch, false, "cuMemcpyBatchAsync"},
    {Function::kBoxes, false, "cuMemcpy3DBatchAsync"},
    {Function::kAttributes, false, "cuMemcpyWithAttributesAsync"},
    {Function::kBox, false, "cuMemcpy3DWithAttributesAsync"},
    {Function::kBatch, true, "cudaMemcpyBatchAsync"},
    {Function::kBoxes, true, "cudaMemcpy3DBatchAsync"},
    {Function::kAttributes, true, "cudaMemcpyWithAttributesAsync"},
    {Function::kBox, true, "cudaMemcpy3DWithAttributesAsync"},
};

bool any_way(const Way&) { return true; }
bool is_batch(const Way& way) {
  return way.function == Function::kBatch || way.function == Function::kBoxes;
}
bool is_of_boxes(const Way& way) {
  return way.function == Function::kBoxes || way.function == Function::kBox;
}

// Has this program the function? The runtime API has its form of CUDA 13 only
// in a build with such a toolkit. A driver of CUDA 12.8 or 12.9 has other forms
// of the batches.
bool is_known(const Way& way) {
  int driver = 0, runtime = 0;
  CALL(cudaDriverGetVersion(&driver));
  CALL(cudaRuntimeGetVersion(&runtime));
  const int first = is_batch(way) ? 13000 : 13020;
  return driver >= first &&
         (!way.by_runtime || (CUDART_VERSION >= first && runtime >= first));
}

// Calls `body` for each of these functions that this program has. The report
// says which ones it lacks; if it lacks all, the test does not apply.
template <class Body>
void for_each_way(Role& me, bool (*is_meant)(const Way&), Body body) {
  int known = 0;
  for (const Way& way : kWays) {
    if (!is_meant(way)) continue;
    SCOPED_TRACE(way.name);
    if (!is_known(way)) {
      me.observe(std::string("without ") + way.name);
      continue;
    }
    ++known;
    body(way);
  }
  if (known == 0)
    me.not_applicable("this driver has no batches of copies of CUDA 13.0");
}

// The code of the runtime API as one of the driver API: success and refusals of
// values have the same numbers. Clears the last error.
[[maybe_unused]] CUresult same_code(cudaError_t code) {
  cudaGetLastError();
  return static_cast<CUresult>(code);
}

CUmemcpyAttributes attributes_of(const Copy& copy) {
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = copy.order;
  attributes.srcLocHint = attributes.dstLocHint = copy.hint;
  attributes.flags = copy.flags;
  return attributes;
}

bool are_equal(const CUmemcpyAttributes& a, const CUmemcpyAttributes& b) {
  return a.srcAccessOrder == b.srcAccessOrder && a.flags == b.flags &&
         a.srcLocHint.type == b.srcLocHint.type &&
         a.srcLocHint.id == b.srcLocHint.id;
}

// The arguments of cuMemcpyBatchAsync. Copies one after the other with equal
// attributes share one entry.
struct Arguments {
  std::vector<CUdeviceptr> to, from;
  std::vector<size_t> sizes, first;
  std::vector<CUmemcpyAttributes> attributes;

  explicit Arguments(const std::vector<Copy>& copies) {
    for (const Copy& one : copies) {
      const CUmemcpyAttributes wanted = attributes_of(one);
      if (attributes.empty() || !are_equal(attributes.back(), wanted)) {
        first.push_back(to.size());
        attributes.push_back(wanted);
      }
      to.push_back(address_of(one.to));
      from.push_back(address_of(one.from));
      sizes.push_back(one.bytes);
    }
  }
  // Makes the call with these arrays, and with these numbers of copies and of
  // attributes.
  CUresult queue(const Way& way, size_t count, size_t kinds,
                 cudaStream_t stream) {
#if CUDART_VERSION >= 13000
    if (way.by_runtime)
      return same_code(NOTED(cudaMemcpyBatchAsync(
          reinterpret_cast<void**>(to.data()),
          reinterpret_cast<const void**>(from.data()), sizes.data(), count,
          reinterpret_cast<cudaMemcpyAttributes*>(attributes.data()),
          first.data(), kinds, stream)));
#endif
    static_cast<void>(way);
    return NOTED(NEWER(cuMemcpyBatchAsync)(to.data(), from.data(), sizes.data(),
                                           count, attributes.data(),
                                           first.data(), kinds, stream));
  }
};

// A side of a box. Zeros: it has no gaps.
CUmemcpy3DOperand side_of(const void* memory, CUmemLocation hint = {},
                          size_t row = 0, size_t rows = 0) {
  CUmemcpy3DOperand side{};
  side.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  side.op.ptr.ptr = address_of(memory);
  side.op.ptr.rowLength = row;
  side.op.ptr.layerHeight = rows;
  side.op.ptr.locHint = hint;
  return side;
}

CUDA_MEMCPY3D_BATCH_OP box_of(const Copy& copy) {
  CUDA_MEMCPY3D_BATCH_OP box{};
  box.dst = side_of(copy.to, copy.hint);
  box.src = side_of(copy.from, copy.hint);
  box.extent = {copy.bytes, 1, 1};
  box.srcAccessOrder = copy.order;
  box.flags = copy.flags;
  return box;
}

CUresult queue_batch_of_boxes(const Way& way,
                              std::vector<CUDA_MEMCPY3D_BATCH_OP>& boxes,
                              cudaStream_t stream, unsigned long long flags) {
#if CUDART_VERSION >= 13000
  if (way.by_runtime)
    return same_code(NOTED(cudaMemcpy3DBatchAsync(
        boxes.size(), reinterpret_cast<cudaMemcpy3DBatchOp*>(boxes.data()),
        flags, stream)));
#endif
  static_cast<void>(way);
  return NOTED(
      NEWER(cuMemcpy3DBatchAsync)(boxes.size(), boxes.data(), flags, stream));
}

CUresult queue_box(const Way& way, CUDA_MEMCPY3D_BATCH_OP& box,
                   cudaStream_t stream, unsigned long long flags) {
#if CUDART_VERSION >= 13020
  if (way.by_runtime)
    return same_code(NOTED(cudaMemcpy3DWithAttributesAsync(
        reinterpret_cast<cudaMemcpy3DBatchOp*>(&box), flags, stream)));
#endif
  static_cast<void>(way);
  return NOTED(NEWER(cuMemcpy3DWithAttributesAsync)(&box, flags, stream));
}

CUresult queue_one(const Way& way, const Copy& copy, cudaStream_t stream) {
  CUmemcpyAttributes attributes = attributes_of(copy);
#if CUDART_VERSION >= 13020
  if (way.by_runtime)
    return same_code(NOTED(cudaMemcpyWithAttributesAsync(
        copy.to, copy.from, copy.bytes,
        reinterpret_cast<cudaMemcpyAttributes*>(&attributes), stream)));
#endif
  static_cast<void>(way);
  return NOTED(NEWER(cuMemcpyWithAttributesAsync)(
      address_of(copy.to), address_of(copy.from), copy.bytes, &attributes,
      stream));
}

// Queues the boxes: as one batch, or one call after the other.
CUresult queue_boxes(const Way& way, std::vector<CUDA_MEMCPY3D_BATCH_OP> boxes,
                     cudaStream_t stream, unsigned long long flags = 0) {
  if (is_batch(way)) return queue_batch_of_boxes(way, boxes, stream, flags);
  for (CUDA_MEMCPY3D_BATCH_OP& box : boxes) {
    const CUresult code = queue_box(way, box, stream, flags);
    if (code != CUDA_SUCCESS) return code;
  }
  return CUDA_SUCCESS;
}

// Queues the copies: as one batch, or one call after the other.
CUresult queue(const Way& way, const std::vector<Copy>& copies,
               cudaStream_t stream) {
  if (way.function == Function::kBatch) {
    Arguments all(copies);
    return all.queue(way, copies.size(), all.first.size(), stream);
  }
  if (way.function == Function::kAttributes) {
    for (const Copy& one : copies) {
      const CUresult code = queue_one(way, one, stream);
      if (code != CUDA_SUCCESS) return code;
    }
    return CUDA_SUCCESS;
  }
  std::vector<CUDA_MEMCPY3D_BATCH_OP> boxes;
  for (const Copy& one : copies) boxes.push_back(box_of(one));
  return queue_boxes(way, boxes, stream);
}

// --- the two roles -----------------------------------------------------------

// How the exporter lends its memory.
enum class Kind { kOpened, kMapped, kPool };

// Lends kBytes, and frees them when the importer has closed them.
void lend(Role& me, Kind kind, const std::function<void(const Words&)>& body) {
  load_kernels();
  if (kind == Kind::kOpened) {
    const DeviceBuffer buffer(kBytes);
    me.send("handle", buffer.legacy_handle());
    body(buffer);
    me.wait("closed");
  } else if (kind == Kind::kMapped) {
    const Chunk chunk = Chunk::create(granule());
    const Mapping mapping(chunk, granule());
    me.send_descriptor("descriptor", chunk.descriptor().get());
    body(Words(mapping.data, kBytes));
    me.wait("closed");
  } else {
    const Pool pool(shareable());
    const AsyncBuffer buffer(pool, kBytes);
    CALL(cudaStreamSynchronize(nullptr));
    me.send_descriptor("pool", pool.exported().get());
    me.send("pointer", buffer.exported());
    body(buffer);
    me.wait("closed");
  }
}

void borrow(Role& me, Kind kind,
            const std::function<void(const Words&)>& body) {
  load_kernels();
  if (kind == Kind::kOpened) {
    const LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"),
                                kBytes);
    body(mapping);
  } else if (kind == Kind::kMapped) {
    const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    const Mapping mapping(chunk, granule());
    body(Words(mapping.data, kBytes));
  } else {
    const Pool pool(me.receive_descriptor("pool"));
    const AsyncBuffer buffer(
        pool, me.receive<cudaMemPoolPtrExportData>("pointer"), kBytes);
    body(buffer);
  }
  me.signal("closed");
}

// The exporter serves rounds until the importer says that there are no more.
void serve(Role& me, const std::function<void(int round)>& body) {
  for (int round = 0; me.receive<bool>("another round"); ++round) body(round);
}

Pattern round_pattern(const char* name, int round) {
  return pattern(name + std::to_string(round));
}

// One of four equal parts.
Words quarter(const Words& memory, size_t index) {
  const size_t count = memory.count / 4;
  return Words(memory.data + index * count, count * sizeof(uint32_t));
}

// Has every word this value?
testing::AssertionResult all_are(const Words& words, uint32_t value) {
  std::vector<uint32_t> seen(words.count);
  CALL(cudaMemcpy(seen.data(), words.data, words.bytes(), cudaMemcpyDefault));
  for (size_t i = 0; i < seen.size(); ++i)
    if (seen[i] != value)
      return testing::AssertionFailure()
             << "word " << i << " is " << hexadecimal(seen[i]);
  return testing::AssertionSuccess();
}

}  // namespace

// --- batches that mix memory -------------------------------------------------

static void expect_a_mixed_batch(Kind kind) {
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [kind](Role& me) {
    lend(me, kind, [&](const Words& memory) {
      serve(me, [&](int round) {
        for (size_t i = 0; i < 4; ++i)
          quarter(memory, i).fill(round_pattern("exporter ", 4 * round + i));
        me.signal("filled");
        me.wait("copied");
        const auto before = [&](size_t i) {
          return round_pattern("exporter ", 4 * round + i);
        };
        EXPECT_READS(quarter(memory, 0), before(0));
        EXPECT_READS(quarter(memory, 1), pattern("own 0"));
        EXPECT_READS(quarter(memory, 2), before(2));
        EXPECT_READS(quarter(memory, 3), before(2));
        me.signal("checked");
      });
    });
  });
  scenario.role("importer", [kind](Role& me) {
    borrow(me, kind, [&](const Words& lent) {
      const DeviceBuffer own(kBytes), result(kBytes);
      const PinnedBuffer written(kBytes / 4), read(kBytes / 4);
      quarter(own, 0).fill(pattern("own 0"));
      quarter(own, 2).fill(pattern("own 2"));
      host_writes(written, pattern("host"));
      const Stream stream;
      int round = 0;
      for_each_way(me, is_batch, [&](const Way& way) {
        me.send("another round", true);
        me.wait("filled");
        result.poison();
        std::fill_n(read.data, read.count, kPoison);
        const size_t part = kBytes / 4, few = 12;
        std::vector<Copy> copies = {
            {quarter(lent, 1).data, quarter(own, 0).data, part},
            {quarter(result, 0).data, quarter(lent, 0).data, part},
            {quarter(lent, 3).data, quarter(lent, 2).data, part},
            {quarter(result, 2).data, quarter(own, 2).data, part},
            {read.data, quarter(lent, 2).data, few},
            {quarter(result, 3).data, written.data, part / 2}};
        for (size_t i = 3; i < copies.size(); ++i)
          copies[i].flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
        EXPECT_SUCCESS(queue(way, copies, stream));
        EXPECT_TRUE(passes(stream));
        const Pattern first = round_pattern("exporter ", 4 * round);
        const Pattern third = round_pattern("exporter ", 4 * round + 2);
        EXPECT_READS(quarter(result, 0), first);
        EXPECT_TRUE(all_are(quarter(result, 1), kPoison));
        EXPECT_READS(quarter(result, 2), pattern("own 2"));
        const Words last = quarter(result, 3);
        const size_t half = last.count / 2;
        EXPECT_READS(Words(last.data, part / 2), pattern("host"));
        EXPECT_TRUE(all_are(Words(last.data + half, part / 2), kPoison));
        EXPECT_TRUE(host_reads(Words(read.data, few), third));
        EXPECT_EQ(read.data[few / sizeof(uint32_t)], kPoison);
        me.signal("copied");
        me.wait("checked");
        ++round;
      });
      me.send("another round", false);
    });
  });
  scenario.run(20s);
}

TEST(CopyBatch, OneBatchMixesOpenedAndOwnMemory) {
  covers("COPY-01");
  needs(gpus(1), legacy_memory);
  expect_a_mixed_batch(Kind::kOpened);
}

TEST(CopyBatch, OneBatchMixesMappedAndOwnMemory) {
  covers("COPY-01");
  needs(gpus(1), vmm_fd);
  expect_a_mixed_batch(Kind::kMapped);
}

TEST(CopyBatch, OneBatchMixesMemoryOfAPoolAndOwnMemory) {
  covers("COPY-01");
  needs(gpus(1), pool_fd);
  expect_a_mixed_batch(Kind::kPool);
}

// --- when the source is read -------------------------------------------------

// The exporter's stream writes the source, and the event of the exporter comes
// after it. The exporter writes again after the importer's event.
TEST(CopyBatch, ASourceIsReadInTheOrderOfTheStream) {
  covers("COPY-02");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const SharedEvent written;
    me.send("written", written.handle());
    const SharedEvent copied(me.receive<cudaIpcEventHandle_t>("copied"));
    lend(me, Kind::kOpened, [&](const Words& memory) {
      const Stream stream;
      memory.fill(pattern("early"));
      serve(me, [&](int round) {
        Latch latch;
        latch.hold(stream);
        memory.queue_fill(round_pattern("in order ", round), stream);
        CALL(cudaEventRecord(written, stream));
        me.signal("recorded");
        me.wait("queued");
        CALL(cudaStreamWaitEvent(stream, copied, 0));
        memory.queue_fill(round_pattern("late ", round), stream);
        latch.release();
        EXPECT_TRUE(passes(stream));
        me.signal("done");
      });
    });
  });
  scenario.role("importer", [](Role& me) {
    const SharedEvent copied;
    me.send("copied", copied.handle());
    const SharedEvent written(me.receive<cudaIpcEventHandle_t>("written"));
    borrow(me, Kind::kOpened, [&](const Words& lent) {
      const DeviceBuffer result(kBytes);
      const Stream stream;
      int round = 0;
      for_each_way(me, any_way, [&](const Way& way) {
        result.poison();
        CALL(cudaDeviceSynchronize());
        me.send("another round", true);
        me.wait("recorded");
        CALL(cudaStreamWaitEvent(stream, written, 0));
        EXPECT_SUCCESS(
            queue(way, {{result.data, lent.data, kBytes, kInOrder}}, stream));
        EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
        CALL(cudaEventRecord(copied, stream));
        me.signal("queued");
        EXPECT_TRUE(passes(stream));
        me.wait("done");
        EXPECT_READS(result, round_pattern("in order ", round));
        ++round;
      });
      me.send("another round", false);
    });
  });
  scenario.run(60s);
}

// The exporter of the tests of sources that are read at another time: it
// changes the source when the importer's call has returned.
static void changes_the_source(Role& me, Kind kind) {
  lend(me, kind, [&](const Words& memory) {
    serve(me, [&](int round) {
      memory.fill(round_pattern("before ", round));
      me.signal("filled");
      me.wait("returned");
      memory.fill(round_pattern("changed ", round));
      me.signal("changed");
    });
  });
}

// The importer calls while its stream is held; `judge` gets the target. Each of
// `orders` is for an equal part of the memory. If a driver lets the call wait
// for the stream, the stream goes on by itself. The order ANY is a question, so
// a refusal of it is only observed.
static void copies_in_a_held_stream(
    Role& me, Kind kind, bool (*is_meant)(const Way&),
    const std::vector<CUmemcpySrcAccessOrder>& orders,
    const std::function<void(const Way&, const Words&, int round)>& judge) {
  borrow(me, kind, [&](const Words& lent) {
    const DeviceBuffer result(kBytes);
    const Stream stream;
    std::vector<Copy> copies;
    for (size_t i = 0; i < orders.size(); ++i) {
      const size_t words = result.count / orders.size();
      copies.push_back({result.data + i * words, lent.data + i * words,
                        words * sizeof(uint32_t), orders[i]});
    }
    int round = 0;
    for_each_way(me, is_meant, [&](const Way& way) {
      me.send("another round", true);
      me.wait("filled");
      result.poison();
      CALL(cudaDeviceSynchronize());
      Latch latch;
      latch.hold(stream, kHeldSeconds);
      bool is_queued = true;
      if (orders.front() == kAnyOrder) {
        const CUresult code = queue(way, copies, stream);
        is_queued = code == CUDA_SUCCESS;
        if (!is_queued)
          me.observe(std::string(way.name) + " returns " + name_of(code));
      } else {
        EXPECT_SUCCESS(queue(way, copies, stream));
      }
      me.signal("returned");
      me.wait("changed");
      latch.release();
      EXPECT_TRUE(passes(stream));
      if (is_queued) judge(way, result, round);
      ++round;
    });
    me.send("another round", false);
  });
}

static void expect_a_read_during_the_call(Kind kind) {
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [kind](Role& me) { changes_the_source(me, kind); });
  scenario.role("importer", [kind](Role& me) {
    copies_in_a_held_stream(me, kind, any_way, {kDuringCall},
                            [](const Way&, const Words& result, int round) {
                              EXPECT_READS(result,
                                           round_pattern("before ", round));
                            });
  });
  scenario.run(60s);
}

TEST(CopyBatch, OpenedMemoryIsReadDuringTheCall) {
  covers("COPY-03");
  needs(gpus(1), legacy_memory, progress);
  expect_a_read_during_the_call(Kind::kOpened);
}

TEST(CopyBatch, MappedMemoryIsReadDuringTheCall) {
  covers("COPY-03");
  needs(gpus(1), vmm_fd, progress);
  expect_a_read_during_the_call(Kind::kMapped);
}

TEST(CopyBatch, MemoryOfAPoolIsReadDuringTheCall) {
  covers("COPY-03");
  needs(gpus(1), pool_fd, progress);
  expect_a_read_during_the_call(Kind::kPool);
}

// Two of four copies are read during the call. An entry that was used for a
// copy before or after its own would let one of them read later.
TEST(CopyBatch, EachEntryOfTheAttributesHoldsForItsCopies) {
  covers("COPY-01");
  needs(gpus(1), legacy_memory, progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter",
                [](Role& me) { changes_the_source(me, Kind::kOpened); });
  scenario.role("importer", [](Role& me) {
    copies_in_a_held_stream(
        me, Kind::kOpened, is_batch,
        {kInOrder, kDuringCall, kDuringCall, kInOrder},
        [](const Way&, const Words& result, int round) {
          const Pattern before = round_pattern("before ", round);
          std::vector<uint32_t> seen(result.count);
          CALL(cudaMemcpy(seen.data(), result.data, result.bytes(),
                          cudaMemcpyDefault));
          size_t wrong = 0;
          for (size_t i = seen.size() / 4; i < seen.size() / 4 * 3; ++i)
            wrong += seen[i] == before.at(i) ? 0 : 1;
          EXPECT_EQ(wrong, 0u) << "words of the second and the third copy";
        });
  });
  scenario.run(60s);
}

TEST(CopyBatch, WhenASourceOfAnyOrderIsRead) {
  covers("COPY-04");
  needs(gpus(1), legacy_memory, progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter",
                [](Role& me) { changes_the_source(me, Kind::kOpened); });
  scenario.role("importer", [](Role& me) {
    copies_in_a_held_stream(
        me, Kind::kOpened, any_way, {kAnyOrder},
        [&me](const Way& way, const Words& result, int round) {
          std::vector<uint32_t> seen(result.count);
          CALL(cudaMemcpy(seen.data(), result.data, result.bytes(),
                          cudaMemcpyDefault));
          const Pattern before = round_pattern("before ", round);
          const Pattern changed = round_pattern("changed ", round);
          size_t early = 0, late = 0;
          for (size_t i = 0; i < seen.size(); ++i) {
            early += seen[i] == before.at(i) ? 1 : 0;
            late += seen[i] == changed.at(i) ? 1 : 0;
          }
          EXPECT_EQ(early + late, seen.size()) << "words of the source";
          me.observe(std::string(way.name) + " copies " +
                     (late == 0    ? "the values before the change"
                      : early == 0 ? "the values after the change"
                                   : "values before and after the change"));
        });
  });
  scenario.run(60s);
}

// --- when the target is written ----------------------------------------------

TEST(CopyBatch, ATargetIsWrittenInTheOrderOfTheStream) {
  covers("COPY-05");
  needs(gpus(1), legacy_memory, progress);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    lend(me, Kind::kOpened, [&](const Words& memory) {
      serve(me, [&](int round) {
        memory.fill(round_pattern("before ", round));
        me.signal("filled");
        me.wait("queued");
        const auto reads =
            kernel_reads(memory, round_pattern("before ", round));
        me.send("is unchanged", static_cast<bool>(reads));
        me.wait("passed");
        EXPECT_READS(memory, round_pattern("after ", round));
      });
    });
  });
  scenario.role("importer", [](Role& me) {
    borrow(me, Kind::kOpened, [&](const Words& lent) {
      const DeviceBuffer own(kBytes), seen(kBytes);
      const Stream stream;
      const SharedEvent held(cudaEventDisableTiming);
      int round = 0;
      for_each_way(me, any_way, [&](const Way& way) {
        for (const CUmemcpySrcAccessOrder order : kOrders) {
          SCOPED_TRACE(name_of_order(order));
          me.send("another round", true);
          own.fill(round_pattern("own ", round));
          me.wait("filled");
          Latch latch;
          latch.hold(stream, kHeldSeconds);
          CALL(cudaEventRecord(held, stream));
          lent.queue_fill(pattern("earlier work"), stream);
          EXPECT_SUCCESS(
              queue(way, {{lent.data, own.data, kBytes, order}}, stream));
          launch_copy(seen, lent, stream);
          lent.queue_fill(round_pattern("after ", round), stream);
          me.signal("queued");
          const bool unchanged = me.receive<bool>("is unchanged");
          if (cudaEventQuery(held) == cudaErrorNotReady) {
            EXPECT_TRUE(unchanged) << "written while the stream is held";
          }
          latch.release();
          EXPECT_TRUE(passes(stream));
          me.signal("passed");
          EXPECT_READS(seen, round_pattern("own ", round));
          ++round;
        }
      });
      me.send("another round", false);
    });
  });
  scenario.run(60s);
}

// --- refusals ----------------------------------------------------------------

// An exporter whose memory nobody may change until the end.
static void keeps_its_memory(Role& me) {
  lend(me, Kind::kOpened, [&](const Words& memory) {
    memory.fill(pattern("exporter"));
    me.signal("filled");
    me.wait("tried");
    EXPECT_READS(memory, pattern("exporter"));
    me.signal("checked");
  });
}

// After attempts that are refused, a right copy works.
static void expect_copies_still_work(Way way, const Words& lent,
                                     const Words& result,
                                     const Stream& stream) {
  result.poison();
  CALL(cudaDeviceSynchronize());
  EXPECT_SUCCESS(queue(way, {{result.data, lent.data, kBytes}}, stream));
  EXPECT_TRUE(passes(stream));
  EXPECT_READS(result, pattern("exporter"));
}

TEST(CopyBatch, EachCopyHasAValidOrder) {
  covers("COPY-06");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", keeps_its_memory);
  scenario.role("importer", [](Role& me) {
    borrow(me, Kind::kOpened, [&](const Words& lent) {
      me.wait("filled");
      const DeviceBuffer own(kBytes), result(kBytes);
      own.fill(pattern("own"));
      const Stream stream;
      constexpr size_t kHalf = kBytes / 2;
      for_each_way(me, any_way, [&](const Way& way) {
        for (const int number : {0, 4, 0x7FFFFFFF}) {
          SCOPED_TRACE("order " + std::to_string(number));
          const auto wrong = static_cast<CUmemcpySrcAccessOrder>(number);
          result.poison();
          CALL(cudaDeviceSynchronize());
          const Copy out = {result.data, lent.data, kHalf, wrong};
          const Copy in = {lent.data, own.data, kHalf, wrong};
          Copy right = {result.data + result.count / 2, lent.data, kHalf};
          std::vector<std::vector<Copy>> attempts = {{out}, {in}};
          if (is_batch(way)) {
            attempts.push_back({out, right});
            attempts.push_back({right, in});
            attempts.push_back({right, out});
          }
          for (const std::vector<Copy>& copies : attempts)
            EXPECT_REFUSED(queue(way, copies, stream),
                           CUDA_ERROR_INVALID_VALUE);
          EXPECT_TRUE(passes(stream));
          EXPECT_TRUE(all_are(result, kPoison)) << "by a copy that is refused";
        }
        expect_copies_still_work(way, lent, result, stream);
      });
      EXPECT_TRUE(context_is_usable());
      me.signal("tried");
      me.wait("checked");
    });
  });
  scenario.run(20s);
}

namespace {

// The forms of CUDA 12.8 of both batches; null if the driver is older.
class OldForms {
 public:
  OldForms()
      : batch_(reinterpret_cast<decltype(batch_)>(
            driver_entry("cuMemcpyBatchAsync", 12080))),
        boxes_(reinterpret_cast<decltype(boxes_)>(
            driver_entry("cuMemcpy3DBatchAsync", 12080))) {
    cudaGetLastError();
  }
  bool are_known() const { return batch_ != nullptr && boxes_ != nullptr; }
  CUresult batch(Arguments& all, size_t* failed, cudaStream_t stream) const {
    note_call("cuMemcpyBatchAsync of CUDA 12.8");
    return batch_(all.to.data(), all.from.data(), all.sizes.data(),
                  all.sizes.size(), all.attributes.data(), all.first.data(),
                  all.first.size(), failed, stream);
  }
  CUresult boxes(std::vector<CUDA_MEMCPY3D_BATCH_OP> list, size_t* failed,
                 unsigned long long flags, cudaStream_t stream) const {
    note_call("cuMemcpy3DBatchAsync of CUDA 12.8");
    return boxes_(list.size(), list.data(), failed, flags, stream);
  }

 private:
  decltype(&cuMemcpyBatchAsync_v1) batch_;
  decltype(&cuMemcpy3DBatchAsync_v1) boxes_;
};

// In a batch of right copies, one has no valid order.
void expect_the_wrong_copy_is_named(Role& me, const OldForms& forms,
                                    const std::vector<Copy>& right,
                                    size_t wrong, const Stream& stream) {
  SCOPED_TRACE("copy " + std::to_string(wrong) + " has no valid order");
  std::vector<CUDA_MEMCPY3D_BATCH_OP> list;
  for (const Copy& one : right) list.push_back(box_of(one));
  list[wrong].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  Sentinel<size_t> failed;
  EXPECT_REFUSED(forms.boxes(list, failed.out(), 0, stream),
                 CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(failed.value, wrong) << "cuMemcpy3DBatchAsync";

  // An entry of the attributes is wrong, and it is for one copy.
  Arguments arguments(right);
  arguments.first = {0, 1, 2, 3};
  arguments.attributes.resize(4, arguments.attributes.front());
  arguments.attributes[wrong].srcAccessOrder =
      CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  Sentinel<size_t> index;
  EXPECT_REFUSED(forms.batch(arguments, index.out(), stream),
                 CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(index.value == wrong || index.value == SIZE_MAX)
      << "cuMemcpyBatchAsync says " << index.value;
  me.observe("cuMemcpyBatchAsync of CUDA 12.8 names " +
             std::string(index.value == wrong ? "the copy" : "no copy") +
             " whose attributes are wrong");
}

}  // namespace

TEST(CopyBatch, TheFormsOfCuda128SayWhichCopyIsWrong) {
  covers("COPY-07");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", keeps_its_memory);
  scenario.role("importer", [](Role& me) {
    borrow(me, Kind::kOpened, [&](const Words& lent) {
      me.wait("filled");
      const OldForms forms;
      if (!forms.are_known()) {
        me.not_applicable("this driver has no batches of copies of CUDA 12.8");
        me.signal("tried");
        return me.wait("checked");
      }
      const DeviceBuffer result(kBytes);
      const Stream stream;
      std::vector<Copy> right;
      for (size_t i = 0; i < 4; ++i)
        right.push_back(
            {quarter(result, i).data, quarter(lent, i).data, kBytes / 4});
      for (size_t wrong = 0; wrong < right.size(); ++wrong)
        expect_the_wrong_copy_is_named(me, forms, right, wrong, stream);
      Sentinel<size_t> failed;
      const CUresult code =
          forms.boxes({box_of(right.front())}, failed.out(), 1, stream);
      me.observe("a flag of the batch: " + name_of(code));
      EXPECT_TRUE(code == CUDA_SUCCESS || failed.value == SIZE_MAX)
          << "a flag of the batch concerns copy " << failed.value;
      EXPECT_TRUE(passes(stream));

      // A right batch in the old form.
      result.poison();
      CALL(cudaDeviceSynchronize());
      Arguments arguments(right);
      Sentinel<size_t> index;
      EXPECT_SUCCESS(forms.batch(arguments, index.out(), stream));
      EXPECT_TRUE(passes(stream));
      EXPECT_READS(result, pattern("exporter"));
      me.signal("tried");
      me.wait("checked");
    });
  });
  scenario.run(20s);
}

// --- what the caller must not do ---------------------------------------------

// Wrong arguments for cuMemcpyBatchAsync. No array is shorter than the number
// that the call gets.
struct Mistake {
  const char* name;
  std::vector<size_t> first;
  size_t kinds;
  bool in_the_legacy_stream;
};

static const Mistake kMistakes[] = {
    {"the first index is not 0", {1, 1, 1}, 1, false},
    {"an index twice", {0, 0, 1}, 2, false},
    {"an index after the last copy", {0, 2, 3}, 2, false},
    {"more attributes than copies", {0, 1, 2}, 3, false},
    {"no attributes", {0, 1, 2}, 0, false},
    {"the legacy NULL stream", {0, 1, 2}, 1, true},
};

// After an attempt: a refused batch has copied nothing; another batch may have
// copied, but to its targets only.
static void expect_no_harm(Role& me, const std::string& what, CUresult code,
                           const Words& result) {
  me.observe(what + ": " + name_of(code));
  CALL(cudaDeviceSynchronize());
  if (code != CUDA_SUCCESS) {
    EXPECT_TRUE(all_are(result, kPoison)) << what;
  }
  for (const size_t beside : {size_t{2}, size_t{3}})
    EXPECT_TRUE(all_are(quarter(result, beside), kPoison)) << what;
}

static void try_wrong_batches(Role& me, const Way& way,
                              const std::vector<Copy>& right,
                              const Words& result, cudaStream_t stream) {
  for (const Mistake& mistake : kMistakes) {
    result.poison();
    CALL(cudaDeviceSynchronize());
    Arguments arguments(right);
    arguments.first = mistake.first;
    arguments.attributes.resize(3, arguments.attributes.front());
    const CUresult code = arguments.queue(
        way, 2, mistake.kinds, mistake.in_the_legacy_stream ? nullptr : stream);
    expect_no_harm(me, std::string(way.name) + ", " + mistake.name, code,
                   result);
  }
}

static void try_wrong_boxes(Role& me, const Way& way,
                            const std::vector<Copy>& right, const Words& result,
                            cudaStream_t stream) {
  const CUDA_MEMCPY3D_BATCH_OP good = box_of(right[0]);
  const CUDA_MEMCPY3D_BATCH_OP other = box_of(right[1]);
  CUDA_MEMCPY3D_BATCH_OP flat = other, thin = other, empty = other;
  flat.extent.depth = 0;
  thin.extent.height = 0;
  empty.extent.width = 0;
  const struct {
    const char* name;
    CUDA_MEMCPY3D_BATCH_OP second;
    unsigned long long flags;
    cudaStream_t where;
  } attempts[] = {{"a box without depth", flat, 0, stream},
                  {"a box without height", thin, 0, stream},
                  {"a box without width", empty, 0, stream},
                  {"a flag of the call", other, 1, stream},
                  {"boxes in the NULL stream", other, 0, nullptr}};
  for (const auto& [name, second, flags, where] : attempts) {
    result.poison();
    CALL(cudaDeviceSynchronize());
    std::vector<CUDA_MEMCPY3D_BATCH_OP> boxes = {good, second};
    if (!is_batch(way)) boxes = {second};
    expect_no_harm(me, std::string(way.name) + ", " + name,
                   queue_boxes(way, boxes, where, flags), result);
  }
}

TEST(CopyBatch, AWrongBatchHarmsNobody) {
  covers("COPY-08");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", keeps_its_memory);
  scenario.role("importer", [](Role& me) {
    borrow(me, Kind::kOpened, [&](const Words& lent) {
      me.wait("filled");
      const DeviceBuffer result(kBytes);
      const Stream stream;
      constexpr size_t kPart = kBytes / 4;
      const std::vector<Copy> right = {
          {quarter(result, 0).data, quarter(lent, 0).data, kPart},
          {quarter(result, 1).data, quarter(lent, 1).data, kPart}};
      for_each_way(me, any_way, [&](const Way& way) {
        if (way.function == Function::kBatch)
          try_wrong_batches(me, way, right, result, stream);
        if (is_of_boxes(way)) try_wrong_boxes(me, way, right, result, stream);
        expect_copies_still_work(way, lent, result, stream);
      });
      EXPECT_TRUE(context_is_usable());
      me.signal("tried");
      me.wait("checked");
    });
  });
  scenario.run(20s);
}

// --- hints and boxes ---------------------------------------------------------

TEST(CopyBatch, HintsAreIgnoredForOpenedMemory) {
  covers("COPY-09");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    lend(me, Kind::kOpened, [&](const Words& memory) {
      serve(me, [&](int round) {
        quarter(memory, 0).fill(round_pattern("exporter ", round));
        me.signal("filled");
        me.wait("copied");
        EXPECT_READS(quarter(memory, 0), round_pattern("exporter ", round));
        EXPECT_READS(quarter(memory, 1), round_pattern("own ", round));
        me.signal("checked");
      });
    });
  });
  scenario.role("importer", [](Role& me) {
    borrow(me, Kind::kOpened, [&](const Words& lent) {
      constexpr size_t kPart = kBytes / 4;
      const DeviceBuffer own(kPart), result(kPart);
      const Stream stream;
      const CUmemLocation hints[] = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                     {CU_MEM_LOCATION_TYPE_HOST, 0},
                                     {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}};
      int round = 0;
      for_each_way(me, any_way, [&](const Way& way) {
        for (const CUmemLocation& hint : hints) {
          SCOPED_TRACE("a hint of type " + std::to_string(hint.type));
          me.send("another round", true);
          me.wait("filled");
          own.fill(round_pattern("own ", round));
          result.poison();
          CALL(cudaDeviceSynchronize());
          const unsigned flags =
              round % 2 == 0 ? 0 : CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
          EXPECT_SUCCESS(queue(
              way,
              {{result.data, quarter(lent, 0).data, kPart, kInOrder, flags,
                hint},
               {quarter(lent, 1).data, own.data, kPart, kInOrder, flags, hint}},
              stream));
          EXPECT_TRUE(passes(stream));
          EXPECT_READS(result, round_pattern("exporter ", round));
          me.signal("copied");
          me.wait("checked");
          ++round;
        }
      });
      me.send("another round", false);
    });
  });
  scenario.run(20s);
}

// A box with gaps after its rows and layers: where its bytes are, and their
// values.
namespace {
constexpr CUextent3D kBox = {100, 5, 3};
constexpr size_t kRow = 256, kRows = 8, kFirst = 36;
constexpr size_t kBoxBytes = 100 * 5 * 3;

template <class Body>
void for_each_byte_of_the_box(Body body) {
  size_t tight = 0;
  for (size_t z = 0; z < kBox.depth; ++z)
    for (size_t y = 0; y < kBox.height; ++y)
      for (size_t x = 0; x < kBox.width; ++x)
        body(kFirst + (z * kRows + y) * kRow + x, tight++);
}

using Bytes = std::vector<unsigned char>;
// Bytes of a role; those of two roles differ.
Bytes bytes_of(size_t count, size_t start) {
  Bytes bytes(count);
  for (size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<unsigned char>(start + i % 101);
  return bytes;
}
Bytes bytes_at(const Words& memory, size_t count) {
  Bytes seen(count);
  CALL(cudaMemcpy(seen.data(), memory.data, count, cudaMemcpyDefault));
  return seen;
}
}  // namespace

TEST(CopyBatch, ABoxOfOpenedMemoryHasGaps) {
  covers("COPY-10");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    lend(me, Kind::kOpened, [&](const Words& memory) {
      const Bytes mine = bytes_of(kBytes, 1), theirs = bytes_of(kBoxBytes, 120);
      Bytes expected = mine;
      for_each_byte_of_the_box(
          [&](size_t at, size_t tight) { expected[at] = theirs[tight]; });
      serve(me, [&](int) {
        CALL(cudaMemcpy(memory.data, mine.data(), kBytes, cudaMemcpyDefault));
        CALL(cudaDeviceSynchronize());  // the copy may return before its end
        me.signal("filled");
        me.wait("copied");
        EXPECT_TRUE(bytes_at(memory, kBytes) == expected)
            << "the box, or the bytes beside it";
        me.signal("checked");
      });
    });
  });
  scenario.role("importer", [](Role& me) {
    borrow(me, Kind::kOpened, [&](const Words& lent) {
      const Bytes mine = bytes_of(kBytes, 1), theirs = bytes_of(kBoxBytes, 120);
      Bytes expected(kBytes, 0xEE);
      for_each_byte_of_the_box(
          [&](size_t at, size_t tight) { expected[tight] = mine[at]; });
      const DeviceBuffer own(kBytes), result(kBytes);
      CALL(cudaMemcpy(own.data, theirs.data(), kBoxBytes, cudaMemcpyDefault));
      const Stream stream;
      const auto box = side_of(
          reinterpret_cast<const char*>(lent.data) + kFirst, {}, kRow, kRows);
      for_each_way(me, is_of_boxes, [&](const Way& way) {
        me.send("another round", true);
        me.wait("filled");
        result.poison();
        CALL(cudaDeviceSynchronize());
        CUDA_MEMCPY3D_BATCH_OP out{}, in{};
        out.src = box;
        out.dst = side_of(result.data);
        in.src = side_of(own.data);
        in.dst = box;
        out.extent = in.extent = kBox;
        out.srcAccessOrder = in.srcAccessOrder = kInOrder;
        EXPECT_SUCCESS(queue_boxes(way, {out}, stream));
        EXPECT_SUCCESS(queue_boxes(way, {in}, stream));
        EXPECT_TRUE(passes(stream));
        EXPECT_TRUE(bytes_at(result, kBytes) == expected)
            << "the box that was copied out, or the bytes beside it";
        me.signal("copied");
        me.wait("checked");
      });
      me.send("another round", false);
    });
  });
  scenario.run(20s);
}
