// What else a handle of a small allocation shares.
// Mirror of samples/21_suballocation_leak.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kBlock = 2 << 20;  // the size that the documentation mentions
constexpr size_t kSmall = 1 << 10;
constexpr uint32_t kPoison = 0xEEEEEEEE;

// Secrets and forgeries repeat one word, so that a search needs no offset.
uint32_t secret() { return pattern("secret").key; }
uint32_t forgery() { return pattern("forgery").key; }

__device__ unsigned long long replaced;

__global__ void replace_words(uint32_t* data, size_t count, uint32_t from,
                              uint32_t to) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < count; i += step) {
    if (data[i] != from) continue;
    if (from != to) data[i] = to;
    atomicAdd(&replaced, 1ull);
  }
}

// Replaces the words `from` by `to` with a kernel, and returns how many words
// were `from`. A copy would not work: CUDA treats an address that it does not
// know as an address of the host. Returns nothing if the GPU stopped the
// kernel. Then this process has lost its context, and only the end of the
// process closes what it opened.
std::optional<size_t> replace(const void* at, size_t bytes, uint32_t from,
                              uint32_t to) {
  unsigned long long count = 0;
  CALL(cudaMemcpyToSymbol(replaced, &count, sizeof count));
  note_call("replace_words<<<>>>");
  replace_words<<<64, 256>>>(static_cast<uint32_t*>(const_cast<void*>(at)),
                             bytes / 4, from, to);
  const cudaError_t code = NOTED(cudaDeviceSynchronize());
  if (code == cudaErrorIllegalAddress) return {};
  CALL(code);
  CALL(cudaGetLastError());
  CALL(cudaMemcpyFromSymbol(&count, replaced, sizeof count));
  return count;
}

std::optional<size_t> secret_words(const void* at, size_t bytes) {
  return replace(at, bytes, secret(), secret());
}

// A buffer of cudaMalloc that is full of the secret.
struct Secret : DeviceBuffer {
  explicit Secret(size_t bytes) : DeviceBuffer(bytes) {
    EXPECT_EQ(replace(data, bytes, kPoison, secret()), bytes / 4) << "planted";
  }
};

std::string text_of(const std::optional<size_t>& words) {
  return words ? std::to_string(*words) + " words of the secret"
               : "the GPU stops the kernel";
}

int64_t distance(const Words& from, const Words& to) {
  return reinterpret_cast<const char*>(to.data) -
         reinterpret_cast<const char*>(from.data);
}

const char* at_distance(const Words& from, int64_t bytes) {
  return reinterpret_cast<const char*>(from.data) + bytes;
}

// Where a search for the neighbour begins, and its direction. A search ends
// when its kernel faults. So the test searches both sides of the mapping, and
// each side from both ends.
struct Search {
  const char* name;
  bool before, from_far;
};
constexpr Search kSearches[] = {{"before, from near", true, false},
                                {"before, from far", true, true},
                                {"after, from near", false, false},
                                {"after, from far", false, true}};

std::vector<std::string> names_of_searches() {
  std::vector<std::string> names;
  for (const Search& search : kSearches) names.emplace_back(search.name);
  return names;
}

// Searches the `bytes` beside a mapping piece by piece, until the GPU stops a
// kernel. Returns how many words of the secret were found.
size_t secrets_beside(Role& me, const Words& mapping, size_t bytes,
                      const Search& search) {
  constexpr size_t kPiece = 64 << 10;
  const size_t pieces = bytes / kPiece;
  const int64_t from = search.before ? -static_cast<int64_t>(bytes)
                                     : static_cast<int64_t>(mapping.bytes());
  size_t found = 0, piece = 0;
  for (; piece < pieces; ++piece) {
    const bool upwards = search.before == search.from_far;
    const size_t place = upwards ? piece : pieces - 1 - piece;
    const auto seen = secret_words(
        at_distance(mapping, from + static_cast<int64_t>(place * kPiece)),
        kPiece);
    if (!seen) break;
    found += *seen;
  }
  me.observe(std::string(search.name) + ": " + std::to_string(found) +
             " words of the secret" +
             (piece == pieces ? ""
                              : "; the GPU stops the kernel in piece " +
                                    std::to_string(piece) + " of " +
                                    std::to_string(pieces)));
  return found;
}

bool in_one_block(const Words& a, const Words& b) {
  return reinterpret_cast<uintptr_t>(a.data) / kBlock ==
         reinterpret_cast<uintptr_t>(b.data) / kBlock;
}

// An attribute of a pointer as text, or the name of the code if the call fails.
std::string answer(CUpointer_attribute which, const void* pointer) {
  uint64_t value = 0;
  const CUresult code = NOTED(DRIVER(cuPointerGetAttribute)(
      &value, which, reinterpret_cast<CUdeviceptr>(pointer)));
  return code == CUDA_SUCCESS ? std::to_string(value) : name_of(code);
}

// The size of the whole range that a mapping is in, from cuMemGetAddressRange.
size_t extent(const Words& mapping) {
  Sentinel<size_t> size;
  CALL(DRIVER(cuMemGetAddressRange)(
      nullptr, size.out(), reinterpret_cast<CUdeviceptr>(mapping.data)));
  return size.result();
}

void observe_extent(Role& me, const Words& mapping) {
  size_t size = 0;
  const CUresult code = NOTED(DRIVER(cuMemGetAddressRange)(
      nullptr, &size, reinterpret_cast<CUdeviceptr>(mapping.data)));
  me.observe("of " + std::to_string(mapping.bytes()) +
             " bytes, cuMemGetAddressRange says " +
             (code == CUDA_SUCCESS ? std::to_string(size) : name_of(code)) +
             ", CU_POINTER_ATTRIBUTE_MAPPING_SIZE says " +
             answer(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, mapping.data));
}

}  // namespace

TEST(SuballocationLeak, SmallAllocationsMayShareABlock) {
  covers("SUBA-01");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    for (const size_t bytes :
         {size_t{4}, size_t{256}, size_t{512}, kSmall, size_t{4} << 10,
          size_t{64} << 10, size_t{1} << 20, kBlock, kBlock + kBlock / 2}) {
      const DeviceBuffer first(bytes), second(bytes);
      me.observe("two allocations of " + std::to_string(bytes) +
                 " bytes stand " + std::to_string(distance(first, second)) +
                 " bytes apart, " +
                 (in_one_block(first, second) ? "in one 2 MiB block"
                                              : "in two blocks"));
    }
    const Secret first(kSmall);
    const DeviceBuffer second(kSmall);
    second.fill(pattern("lent"));
    if (!in_one_block(first, second))
      me.lifted("two allocations of 1 KiB lie in two 2 MiB blocks");
    me.send("distance", distance(second, first));
    me.send("handle", second.legacy_handle());
    me.wait_until_done("importer");
    EXPECT_TRUE(copy_reads(second, pattern("lent")));
  });

  scenario.role("importer", [](Role& me) {
    const auto neighbour = me.receive<int64_t>("distance");
    const LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"),
                                kSmall);
    EXPECT_READS(mapping, pattern("lent"));
    const auto seen = secret_words(at_distance(mapping, neighbour), kSmall);
    if (seen != kSmall / 4)
      me.lifted("the block is not shared with its importer: " + text_of(seen));
  });

  scenario.run(20s);
}

TEST(SuballocationLeak, AHolderOfOneHandleFindsTheNeighboursSecret) {
  covers("SUBA-02");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer lent(kSmall);
    lent.fill(pattern("lent"));
    const Secret kept(kSmall);
    me.send("distance", distance(lent, kept));
    me.send("handle", lent.legacy_handle());
    const auto forged = me.receive<size_t>("forged");
    me.wait_until_done("importer");
    // Both sides count the forged words of the same range.
    EXPECT_EQ(replace(kept.data, kSmall, forgery(), forgery()), forged);
    EXPECT_EQ(secret_words(kept.data, kSmall), kSmall / 4 - forged);
    EXPECT_TRUE(kernel_reads(lent, pattern("lent")));
  });

  scenario.role("importer", [](Role& me) {
    const auto neighbour = me.receive<int64_t>("distance");
    const LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"),
                                kSmall);
    EXPECT_TRUE(kernel_reads(mapping, pattern("lent")));
    observe_extent(me, mapping);
    const auto forged =
        replace(at_distance(mapping, neighbour), kSmall, secret(), forgery());
    me.observe(forged.value_or(0) != 0
                   ? "leak demonstrated: the neighbour's secret was read and "
                     "overwritten"
                   : "not reachable: " + text_of(forged));
    me.send("forged", forged.value_or(0));
  });

  scenario.run(20s);
}

// An importer that searches until the GPU stops a kernel. Its process is new,
// so nothing that an earlier role left lies beside the mapping.
static void searches_beside_an_allocation(Role& me) {
  const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
  LegacyMapping two(me.receive<cudaIpcMemHandle_t>("two blocks"), 2 * kBlock);
  EXPECT_EQ(extent(two), 2 * kBlock) << "what the driver says of two blocks";
  two.close();
  while (const auto input = me.next_input()) {
    const LegacyMapping mapping(handle, kBlock);
    EXPECT_EQ(extent(mapping), kBlock) << "what the driver says is mapped";
    EXPECT_TRUE(kernel_reads(mapping, pattern("lent")));
    EXPECT_EQ(secrets_beside(me, mapping, kBlock, kSearches[*input]), 0u);
    if (!context_is_usable()) return;  // the GPU has stopped a kernel
  }
}

// The exporter has secrets in small neighbours of the lent allocation, and in
// neighbours of the same size.
TEST(SuballocationLeak, AnAllocationOfWholeBlocksGivesNothingAway) {
  covers("SUBA-03");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    std::deque<Secret> secrets;
    for (int i = 0; i < 500; ++i) secrets.emplace_back(512);
    secrets.emplace_back(kBlock);
    const DeviceBuffer lent(kBlock);
    lent.fill(pattern("lent"));
    secrets.emplace_back(kBlock);
    for (int i = 0; i < 500; ++i) secrets.emplace_back(512);
    const DeviceBuffer two_blocks(2 * kBlock);
    me.send("handle", lent.legacy_handle());
    me.send("two blocks", two_blocks.legacy_handle());
    me.wait_until_done("importer");
    EXPECT_TRUE(kernel_reads(lent, pattern("lent")));
    for (const Secret& secret : secrets)
      EXPECT_EQ(secret_words(secret.data, secret.bytes()), secret.count);
  });

  scenario.role("importer", searches_beside_an_allocation).in_new_process();
  scenario.run_inputs("importer", names_of_searches(), 30s);
}

TEST(SuballocationLeak, TheTailOfTheLastBlockMayHaveNeighbours) {
  covers("SUBA-04");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  static constexpr size_t kBytes = kBlock + kSmall;

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer lent(kBytes);
    lent.fill(pattern("lent"));
    std::deque<Secret> secrets;
    for (int i = 0; i < 64; ++i) secrets.emplace_back(512);
    me.send("handle", lent.legacy_handle());
    me.wait_until_done("importer");
    EXPECT_TRUE(kernel_reads(lent, pattern("lent")));
  });

  scenario.role("importer", [](Role& me) {
    const LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"),
                                kBytes);
    observe_extent(me, mapping);
    EXPECT_TRUE(kernel_reads(mapping, pattern("lent")));
    me.observe("2 MiB + 1 KiB lent; the rest of the second block: " +
               text_of(secret_words(at_distance(mapping, kBytes),
                                    2 * kBlock - kBytes)));
  });

  scenario.run(20s);
}

// Sets each mapping, and then judges that each has what was set.
static void expect_writes_stay_inside(
    const std::deque<LegacyMapping>& mappings) {
  const auto byte_of = [](size_t i) { return static_cast<int>(i + 1); };
  for (size_t i = 0; i < mappings.size(); ++i)
    CALL(cudaMemset(mappings[i].data, byte_of(i), mappings[i].bytes()));
  CALL(cudaDeviceSynchronize());
  for (size_t i = 0; i < mappings.size(); ++i) {
    const uint32_t set = 0x01010101u * static_cast<uint32_t>(byte_of(i));
    EXPECT_EQ(replace(mappings[i].data, mappings[i].bytes(), set, set),
              mappings[i].count)
        << "the memset of allocation " << i;
  }
}

// Copies each mapping to the first one, which then gets its old values back.
static void expect_copies_between(const std::deque<LegacyMapping>& mappings,
                                  std::function<Pattern(size_t)> in) {
  const Words& first = mappings.front();
  const Stream stream;
  for (size_t i = 1; i < mappings.size(); ++i) {
    const uint32_t* const from = mappings[i].data;
    CALL(i % 4 < 2 ? cudaMemcpy(first.data, from, first.bytes(),
                                cudaMemcpyDeviceToDevice)
                   : cudaMemcpyAsync(first.data, from, first.bytes(),
                                     cudaMemcpyDeviceToDevice, stream));
    CALL(cudaDeviceSynchronize());
    EXPECT_TRUE(kernel_reads(first, in(i)))
        << "a copy from allocation " << i << " to allocation 0";
  }
  first.fill(in(0));
}

TEST(SuballocationLeak, EverySuballocationHasAHandleOfItsOwn) {
  covers("SUBA-05");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  static constexpr int kCount = 32;
  // Because of the larger allocations, later allocations lie far from the start
  // of the block.
  static const auto bytes_of = [](int i) {
    return size_t{i % 2 == 0 ? 512u : 96u << 10};
  };
  static const auto number = [](int i) {
    return "allocation " + std::to_string(i);
  };

  scenario.role("exporter", [](Role& me) {
    std::deque<DeviceBuffer> buffers;
    std::set<std::string> handles;
    for (int i = 0; i < kCount; ++i) {
      buffers.emplace_back(bytes_of(i)).fill(pattern(number(i)));
      const auto handle = buffers.back().legacy_handle();
      me.send(number(i), handle);
      handles.emplace(reinterpret_cast<const char*>(&handle), sizeof handle);
    }
    EXPECT_EQ(handles.size(), size_t{kCount}) << "two handles are alike";
    me.wait("closed");
    for (int i = 0; i < kCount; ++i)
      EXPECT_TRUE(kernel_reads(buffers[i], pattern("written " + number(i))))
          << number(i);
  });

  scenario.role("importer", [](Role& me) {
    const DeviceBuffer source(bytes_of(1));
    std::deque<LegacyMapping> mappings;
    for (int i = 0; i < kCount; ++i)
      mappings.emplace_back(me.receive<cudaIpcMemHandle_t>(number(i)),
                            bytes_of(i));
    for (int i = 0; i < kCount; ++i) {
      SCOPED_TRACE(number(i));
      EXPECT_READS(mappings[i], pattern(number(i)));
    }
    expect_writes_stay_inside(mappings);
    for (int i = 0; i < kCount; ++i) {
      Words(source.data, bytes_of(i)).fill(pattern("written " + number(i)));
      CALL(cudaMemcpy(mappings[i].data, source.data, bytes_of(i),
                      cudaMemcpyDeviceToDevice));
    }
    CALL(cudaDeviceSynchronize());
    expect_copies_between(mappings, [](size_t i) {
      return pattern("written " + number(static_cast<int>(i)));
    });
    for (LegacyMapping& mapping : mappings) mapping.close();
    me.signal("closed");
  });

  scenario.run(20s);
}

// An importer of two sub-allocations. It closes one of them and then the other.
// A third one, which it has closed before, is freed meanwhile.
static void closes_one_of_two(Role& me) {
  const bool closes_a = me.index() == 0;
  const auto handle_a = me.receive<cudaIpcMemHandle_t>("a");
  const auto handle_b = me.receive<cudaIpcMemHandle_t>("b");
  LegacyMapping early(handle_a, kSmall);
  LegacyMapping freed(me.receive<cudaIpcMemHandle_t>("c"), kSmall);
  EXPECT_TRUE(kernel_reads(freed, pattern("c")));
  freed.close();
  me.signal("c closed");
  me.wait("c freed");
  EXPECT_TRUE(kernel_reads(early, pattern("a"))) << "opened before the free";
  early.close();
  for (const char* name : {"a", "b"}) {
    const std::string step = name + std::string(", exported after the free");
    LegacyMapping later(me.receive<cudaIpcMemHandle_t>(step), kSmall);
    EXPECT_TRUE(kernel_reads(later, pattern(name))) << step;
    later.close();
  }
  by_both_apis([&](auto api) {
    MappingBy a(api, handle_a, kSmall), b(api, handle_b, kSmall);
    auto& first = closes_a ? a : b;
    auto& other = closes_a ? b : a;
    const Pattern in_first = pattern(closes_a ? "a" : "b");
    const Pattern in_other = pattern(closes_a ? "b" : "a");
    EXPECT_TRUE(kernel_reads(first, in_first));
    first.close();
    EXPECT_TRUE(copy_reads(other, in_other));
    EXPECT_TRUE(kernel_reads(other, in_other));
    // At least one of a and b does not begin the block.
    EXPECT_EQ(open_handle(api, closes_a ? handle_b : handle_a), other.data)
        << "the second open";
    EXPECT_SUCCESS(api.ipc_close_mem_handle(other.data));
    EXPECT_TRUE(kernel_reads(other, in_other)) << "one open is left";
    other.close();
  });
  me.signal("closed");
}

TEST(SuballocationLeak, ClosingOneSuballocationLeavesTheOtherOpen) {
  covers("SUBA-06");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer a(kSmall), b(kSmall);
    DeviceBuffer c(kSmall);
    c.fill(pattern("c"));
    me.observe(in_one_block(a, b) ? "one block" : "two blocks");
    me.send("a", a.legacy_handle());
    me.send("b", b.legacy_handle());
    me.send("c", c.legacy_handle());
    me.wait("c closed", 2);
    c.free();
    a.fill(pattern("a"));
    b.fill(pattern("b"));
    me.signal("c freed");
    me.send("a, exported after the free", a.legacy_handle());
    me.send("b, exported after the free", b.legacy_handle());
    me.wait("closed", 2);
  });

  // One importer closes the mapping that it opened first, and the other
  // importer closes the mapping that it opened second.
  scenario.roles("importer", 2, closes_one_of_two);

  scenario.run(20s);
}

TEST(SuballocationLeak, ALaterAllocationMayLandInASharedBlock) {
  covers("SUBA-07");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer lent(kSmall);
    lent.fill(pattern("lent"));
    me.send("handle", lent.legacy_handle());
    me.wait("opened");
    const Secret later(kSmall);
    me.send("distance", distance(lent, later));
    me.wait_until_done("importer");
    EXPECT_TRUE(copy_reads(lent, pattern("lent")));
  });

  scenario.role("importer", [](Role& me) {
    const LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"),
                                kSmall);
    me.signal("opened");
    const auto later = me.receive<int64_t>("distance");
    EXPECT_TRUE(kernel_reads(mapping, pattern("lent")));
    me.observe("an allocation made after the open: " +
               text_of(secret_words(at_distance(mapping, later), kSmall)));
  });

  scenario.run(20s);
}

TEST(SuballocationLeak, FreshMemoryMayHoldOldBytes) {
  covers("SUBA-08");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer keeper(kSmall);  // keeps the block in use
    for (const size_t bytes : {kSmall, kBlock}) {
      Secret(bytes).free();
      void* fresh = nullptr;
      CALL(cudaMalloc(&fresh, bytes));
      const auto old = secret_words(fresh, bytes);
      me.observe(std::to_string(bytes) +
                 " bytes freed and allocated again: " + text_of(old) +
                 " are left; " + std::to_string(bytes / 4) + " were written");
      cudaIpcMemHandle_t handle;
      CALL(cudaIpcGetMemHandle(&handle, fresh));
      me.send("old", *old);
      me.send("handle", handle);
      me.wait("closed");
      CALL(cudaFree(fresh));
    }
  });

  scenario.role("importer", [](Role& me) {
    for (const size_t bytes : {kSmall, kBlock}) {
      const auto old = me.receive<size_t>("old");
      LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"), bytes);
      // The contents are not specified, but both sides must see the same
      // contents.
      EXPECT_EQ(secret_words(mapping.data, bytes), old);
      mapping.close();
      me.signal("closed");
    }
  });

  scenario.run(20s);
}

// An importer that makes only one search, because each search destroys the
// context.
static void searches_beside_a_chunk(Role& me) {
  const size_t bytes = granule();
  const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
  const Reservation range(3 * bytes);
  EXPECT_NE(
      NOTED(DRIVER(cuMemMap)(range.at(0), 2 * bytes, 0, chunk.handle(), 0)),
      CUDA_SUCCESS);

  range.map(bytes, bytes, chunk);
  const CUmemAccessDesc access = access_for(0);
  CALL(DRIVER(cuMemSetAccess)(range.at(bytes), bytes, &access, 1));
  const Words middle = words_at(range.at(bytes), bytes);
  EXPECT_READS(middle, pattern("lent"));
  CUdeviceptr base = 0;
  size_t size = 0;
  CALL(DRIVER(cuMemGetAddressRange)(&base, &size, range.at(bytes)));
  EXPECT_EQ(base, range.at(bytes));
  EXPECT_EQ(size, bytes);
  EXPECT_EQ(answer(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, middle.data),
            std::to_string(bytes));

  const size_t search = me.next_input().value();
  EXPECT_EQ(secrets_beside(me, middle, bytes, kSearches[search]), 0u);
  EXPECT_CODE(cudaErrorIllegalAddress, cudaDeviceSynchronize())
      << "nothing is mapped there, so the GPU stops the kernel";
}

TEST(SuballocationLeak, AChunkSharesNothingElse) {
  covers("SUBA-09");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    std::deque<Chunk> chunks;
    std::deque<Mapping> mappings;
    for (int i = 0; i < 3; ++i) {
      chunks.push_back(Chunk::create(bytes));
      mappings.emplace_back(chunks.back(), bytes).poison();
      EXPECT_EQ(replace(mappings.back().data, bytes, kPoison, secret()),
                bytes / 4);
    }
    mappings[1].fill(pattern("lent"));
    me.send_descriptor("descriptor", chunks[1].descriptor().get());
    me.wait_until_done("importer");
    EXPECT_TRUE(kernel_reads(mappings[1], pattern("lent")));
    for (const int kept : {0, 2})
      EXPECT_EQ(secret_words(mappings[kept].data, bytes), bytes / 4);
  });

  scenario.role("importer", searches_beside_a_chunk).in_new_process();
  scenario.run_inputs("importer", names_of_searches(), 20s);
}

TEST(SuballocationLeak, WhatAPointerOfAPoolGivesAway) {
  covers("SUBA-10");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    const AsyncBuffer lent(pool, kSmall), kept(pool, kSmall);
    CALL(cudaStreamSynchronize(nullptr));
    lent.fill(pattern("lent"));
    kept.poison();
    EXPECT_EQ(replace(kept.data, kSmall, kPoison, secret()), kSmall / 4);
    me.send_descriptor("pool", pool.exported().get());
    me.send("pointer", lent.exported());
    me.send("distance", distance(lent, kept));
    me.wait_until_done("importer");
    EXPECT_TRUE(kernel_reads(lent, pattern("lent")));
  });

  scenario.role("importer", [](Role& me) {
    const Pool pool(me.receive_descriptor("pool"));
    const AsyncBuffer imported(
        pool, me.receive<cudaMemPoolPtrExportData>("pointer"), kSmall);
    EXPECT_READS(imported, pattern("lent"));
    observe_extent(me, imported);
    uint64_t reserved = 0;
    const cudaError_t code = NOTED(cudaMemPoolGetAttribute(
        pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
    cudaGetLastError();
    me.observe(
        "cudaMemPoolAttrReservedMemCurrent of the imported pool: " +
        (code == cudaSuccess ? std::to_string(reserved) : name_of(code)));
    const auto neighbour = me.receive<int64_t>("distance");
    me.observe("a neighbour " + std::to_string(neighbour) + " bytes away: " +
               text_of(secret_words(at_distance(imported, neighbour), kSmall)));
  });

  scenario.run(20s);
}
