// What a handle names: one whole allocation, and never a later allocation.
// Mirror of samples/02_handle_identity.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

using Handle = cudaIpcMemHandle_t;

constexpr size_t kSmall = 4096;     // shares a block with others
constexpr size_t kLarge = 4 << 20;  // has its own block
constexpr int kExports = 150000;
constexpr int kTries = 64;          // at most, until an address comes back
constexpr int kGenerations = 4;     // of memory at one address
constexpr size_t kIds = 300;        // more than a byte can count
constexpr size_t kMostIds = 65537;  // more than two bytes can count
constexpr size_t kOfThread = 8;     // allocations of another thread
constexpr size_t kAllocations = 64;
constexpr unsigned kProbes = 16;  // at most, bytes checked in one allocation

std::string bytes_of(const Handle& handle) {
  return {reinterpret_cast<const char*>(&handle), sizeof handle};
}

// Allocates `bytes` at `address`. If no try returns this address, returns an
// allocation at another address. The allocations of earlier tries are kept
// until the end, so each try gets a different address.
std::unique_ptr<DeviceBuffer> allocate_at(const void* address, size_t bytes) {
  std::vector<std::unique_ptr<DeviceBuffer>> others;
  for (int i = 0; i < kTries; ++i) {
    auto buffer = std::make_unique<DeviceBuffer>(bytes);
    if (buffer->data == address) return buffer;
    others.push_back(std::move(buffer));
  }
  return std::move(others.back());
}

// An attribute of a pointer as text, or the name of the code if the call fails.
// The documentation promises no answer for an opened pointer.
template <class T>
std::string answer_for(CUpointer_attribute which, const void* pointer) {
  T value{};
  const CUresult code = NOTED(DRIVER(cuPointerGetAttribute)(
      &value, which, reinterpret_cast<CUdeviceptr>(pointer)));
  return code == CUDA_SUCCESS ? std::to_string(value) : name_of(code);
}

// --- single bytes of allocations of any size --------------------------------

struct Probes {
  size_t at[kProbes];
  unsigned count = 0;
};

// Places at both ends and in the middle of an allocation, and at the edges of
// parts that a driver might map separately, for example one page or 4 GiB.
Probes probes_of(size_t bytes) {
  std::set<size_t> places{0, bytes / 2, bytes - 1};
  for (const size_t edge : {size_t{512}, size_t{4096}, size_t{2} << 20,
                            size_t{4} << 20, size_t{4} << 30})
    for (const size_t place : {edge - 1, edge})
      if (place < bytes) places.insert(place);
  Probes probes;
  for (const size_t place : places) probes.at[probes.count++] = place;
  return probes;
}

// The byte at a place: neither 0 nor the poison 0xEE. The upper half of `place`
// also changes the byte. Otherwise two places that are 4 GiB apart would always
// have equal bytes.
__host__ __device__ unsigned char byte_at(Pattern pattern, size_t place) {
  return static_cast<unsigned char>(1 +
                                    pattern.at(place + (place >> 32)) % 200);
}

__global__ void write_bytes(unsigned char* data, Probes probes,
                            Pattern pattern) {
  const size_t place = probes.at[threadIdx.x];
  data[place] = byte_at(pattern, place);
}

__global__ void read_bytes(const unsigned char* data, Probes probes,
                           unsigned char* seen) {
  seen[threadIdx.x] = data[probes.at[threadIdx.x]];
}

void write_by_kernel(void* data, size_t bytes, Pattern pattern) {
  const Probes probes = probes_of(bytes);
  note_call("write_bytes<<<>>>");
  write_bytes<<<1, probes.count>>>(static_cast<unsigned char*>(data), probes,
                                   pattern);
  CALL(cudaGetLastError());
  CALL(cudaDeviceSynchronize());
}

// Judges that a kernel and a copy both find the bytes of the pattern.
void expect_bytes(const void* data, size_t bytes, Pattern pattern) {
  SCOPED_TRACE("an allocation of " + std::to_string(bytes) + " bytes");
  const Probes probes = probes_of(bytes);
  const auto* begin = static_cast<const unsigned char*>(data);
  const DeviceBuffer by_kernel(kProbes);
  note_call("read_bytes<<<>>>");
  read_bytes<<<1, probes.count>>>(
      begin, probes, reinterpret_cast<unsigned char*>(by_kernel.data));
  CALL(cudaGetLastError());
  unsigned char seen[kProbes];
  CALL(cudaMemcpy(seen, by_kernel.data, sizeof seen, cudaMemcpyDefault));
  for (unsigned i = 0; i < probes.count; ++i) {
    const size_t place = probes.at[i];
    EXPECT_EQ(seen[i], byte_at(pattern, place)) << "by kernel, byte " << place;
    unsigned char copied = 0xEE;
    CALL(cudaMemcpy(&copied, begin + place, 1, cudaMemcpyDefault));
    EXPECT_EQ(copied, byte_at(pattern, place)) << "by copy, byte " << place;
  }
}

// Judges that the queries know the memory up to its last byte.
void expect_known_to_the_end(const void* data, size_t bytes) {
  SCOPED_TRACE("an allocation of " + std::to_string(bytes) + " bytes");
  const char* const last = static_cast<const char*>(data) + bytes - 1;
  Sentinel<cudaPointerAttributes> told;
  EXPECT_SUCCESS(cudaPointerGetAttributes(told.out(), last));
  EXPECT_EQ(told.result().type, cudaMemoryTypeDevice);
  EXPECT_EQ(told.result().devicePointer, last);
  for (const void* place : {data, static_cast<const void*>(last)}) {
    Sentinel<CUdeviceptr> begin;
    Sentinel<size_t> length;
    EXPECT_SUCCESS(DRIVER(cuMemGetAddressRange)(begin.out(), length.out(),
                                                address_of(place)));
    EXPECT_LE(begin.result(), address_of(data));
    EXPECT_GT(begin.result() + length.result(), address_of(last));
  }
}

// Copies the whole memory to other memory and back.
void expect_copies_of_all(void* data, size_t bytes, Pattern pattern) {
  void* own = nullptr;
  CALL(cudaMalloc(&own, bytes));
  CALL(cudaMemcpy(own, data, bytes, cudaMemcpyDeviceToDevice));
  CALL(cudaDeviceSynchronize());
  expect_bytes(own, bytes, pattern);
  CALL(cudaMemset(data, 0, bytes));
  CALL(cudaMemcpy(data, own, bytes, cudaMemcpyDeviceToDevice));
  CALL(cudaDeviceSynchronize());
  expect_bytes(data, bytes, pattern);
  CALL(cudaFree(own));
}

// Sets the whole memory, whose size does not fit in 32 bits, to zero.
void expect_sets_of_all(void* data, size_t bytes, Pattern pattern) {
  const Probes probes = probes_of(bytes);
  const DeviceBuffer result(kProbes);
  for (const bool asynchronous : {false, true}) {
    SCOPED_TRACE(asynchronous ? "cudaMemsetAsync" : "cudaMemset");
    write_by_kernel(data, bytes, pattern);
    CALL(asynchronous ? cudaMemsetAsync(data, 0, bytes)
                      : cudaMemset(data, 0, bytes));
    CALL(cudaDeviceSynchronize());
    note_call("read_bytes<<<>>>");
    read_bytes<<<1, probes.count>>>(
        static_cast<const unsigned char*>(data), probes,
        reinterpret_cast<unsigned char*>(result.data));
    CALL(cudaGetLastError());
    unsigned char seen[kProbes];
    CALL(cudaMemcpy(seen, result.data, sizeof seen, cudaMemcpyDefault));
    for (unsigned i = 0; i < probes.count; ++i)
      EXPECT_EQ(seen[i], 0) << "byte " << probes.at[i];
  }
}

// Sets and copies a rectangle whose last row begins after 4 GiB.
void expect_far_rows(void* data) {
  constexpr size_t kPitch = (size_t{1} << 30) + 4096, kRows = 5;
  constexpr uint32_t kSet = 0x3C3C3C3C;
  CALL(cudaMemset2D(data, kPitch, 0x3C, sizeof kSet, kRows));
  CALL(cudaDeviceSynchronize());
  for (size_t row = 0; row < kRows; ++row) {
    uint32_t seen = 0;
    CALL(cudaMemcpy(&seen, static_cast<char*>(data) + row * kPitch, sizeof seen,
                    cudaMemcpyDefault));
    EXPECT_EQ(seen, kSet) << "cudaMemset2D, row " << row;
  }
  std::array<uint32_t, kRows> rows{};
  CALL(cudaMemcpy2D(rows.data(), sizeof kSet, data, kPitch, sizeof kSet, kRows,
                    cudaMemcpyDefault));
  for (size_t row = 0; row < kRows; ++row)
    EXPECT_EQ(rows[row], kSet) << "cudaMemcpy2D, row " << row;
}

// Sets bytes, and copies to bytes, that lie `distance` after other bytes, which
// must not change. A kernel reads both.
void expect_far_writes(void* data, size_t distance) {
  SCOPED_TRACE(std::to_string(distance) + " bytes after the beginning");
  constexpr size_t kNear = 12344;
  const size_t far_offset = distance + kNear;
  constexpr unsigned char kOther = 0xEE;
  auto* const bytes = static_cast<unsigned char*>(data);
  const CUdeviceptr far = address_of(bytes + far_offset);
  const DeviceBuffer result(kProbes);
  Probes both;
  both.at[both.count++] = kNear;
  both.at[both.count++] = far_offset;
  uint32_t word = 0x10101010;
  const auto expect_written = [&](const char* way, auto write) {
    word += 0x01010101;  // four bytes of one value
    CALL(cudaMemset(bytes + kNear, kOther, sizeof word));
    CALL(write());
    CALL(cudaDeviceSynchronize());
    note_call("read_bytes<<<>>>");
    read_bytes<<<1, both.count>>>(
        bytes, both, reinterpret_cast<unsigned char*>(result.data));
    CALL(cudaGetLastError());
    unsigned char seen[2] = {};
    CALL(cudaMemcpy(seen, result.data, sizeof seen, cudaMemcpyDefault));
    EXPECT_EQ(seen[0], kOther) << way << " changes another byte";
    EXPECT_EQ(seen[1], word & 0xff) << way;
  };
  const Stream stream;
  expect_written("cudaMemset", [&] {
    return cudaMemset(bytes + far_offset, static_cast<int>(word & 0xff),
                      sizeof word);
  });
  expect_written("cudaMemsetAsync", [&] {
    return cudaMemsetAsync(bytes + far_offset, static_cast<int>(word & 0xff),
                           sizeof word, stream);
  });
  expect_written("cuMemsetD32",
                 [&] { return DRIVER(cuMemsetD32)(far, word, 1); });
  expect_written("cudaMemcpy", [&] {
    return cudaMemcpy(bytes + far_offset, &word, sizeof word,
                      cudaMemcpyDefault);
  });
  expect_written("cudaMemcpyAsync", [&] {
    return cudaMemcpyAsync(bytes + far_offset, &word, sizeof word,
                           cudaMemcpyDefault, stream);
  });
}

}  // namespace

// An exporter that exports one buffer many times. It sends the first handle,
// one from the middle and the last.
template <class Api>
static void exports_again_and_again(Role& me, Api api) {
  const DeviceBuffer buffer(kLarge);
  buffer.fill(pattern(api.kName));
  std::array<Handle, 3> kept;
  kept[0] = handle_of(api, buffer);
  // Other programs may allocate at the same time. So a round in which free
  // memory shrinks proves nothing, and one round in which it does not shrink
  // is enough. Free memory is told in blocks of 2 MiB: in one round, 16 bytes
  // for each export become a block.
  constexpr int kRounds = 5;
  bool shrinks = true;
  std::set<std::string> different;
  size_t before = free_memory();
  for (int round = 0; round < kRounds && shrinks; ++round) {
    for (int i = 0; i < kExports; ++i) {
      const Handle handle = handle_of(api, buffer);
      different.insert(bytes_of(handle));
      if (i == kExports / 2) kept[1] = handle;
      kept[2] = handle;
    }
    const size_t after = free_memory();
    shrinks = after < before;
    before = after;
  }
  EXPECT_FALSE(shrinks) << "device memory shrinks in each of " << kRounds
                        << " rounds of " << kExports << " exports";
  me.observe(std::string(api.kName) + ": exports of one allocation have " +
             std::to_string(different.size()) + " different handle(s)");
  me.send("handles", kept);
  me.wait("closed");
}

TEST(HandleIdentity, ExportingAgainAndAgainDoesNoHarm) {
  covers("LMEM-05");
  needs(gpus(1), alone, legacy_memory);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) { exports_again_and_again(me, api); });
  });

  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) {
      const auto handles = me.receive<std::array<Handle, 3>>("handles");
      for (const Handle& handle : handles) {
        MappingBy mapping(api, handle, kLarge);
        EXPECT_READS(mapping, pattern(api.kName));
        mapping.close();
      }
      me.signal("closed");
    });
  });

  scenario.run(90s);
}

// Exports memory while a stream waits to write it. Whether an export waits for
// this work is not documented.
template <class Api>
static void exports_busy_memory(Role& me, Api api, const Words& buffer,
                                Pattern later) {
  const Stream stream;
  Latch latch;
  latch.hold(stream);
  buffer.queue_fill(later, stream);
  Sentinel<Handle> handle;
  HostWait exported("an export of memory in use", [&] {
    const cudaError_t code = cudaSetDevice(0);  // the thread's context
    return code != cudaSuccess
               ? code
               : static_cast<cudaError_t>(
                     api.ipc_get_mem_handle(handle.out(), buffer.data));
  });
  me.observe(std::string("an export of memory in use, by the ") + api.kName +
             (exported.is_held() ? ", waits" : ", does not wait"));
  latch.release();
  EXPECT_SUCCESS(exported.join());
  EXPECT_TRUE(passes(stream));
  me.send("handle of busy memory", handle.result());
}

// The importer has the memory open while the exporter exports it again.
TEST(HandleIdentity, AFurtherExportLeavesOpenMemoryAlone) {
  covers("LMEM-05");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      const DeviceBuffer buffer(kLarge);
      buffer.fill(pattern("before"));
      me.send("handle", handle_of(api, buffer));
      me.wait("opened");
      for_each_api([&](auto other) { handle_of(other, buffer); });
      expect_known_to_the_end(buffer.data, kLarge);
      EXPECT_TRUE(kernel_reads(buffer, pattern("before")));
      exports_busy_memory(me, api, buffer, pattern("after"));
      me.wait("written");
      EXPECT_TRUE(kernel_reads(buffer, pattern("importer")));
      me.wait("closed");
    });
  });

  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) {
      MappingBy mapping(api, me.receive<Handle>("handle"), kLarge);
      EXPECT_TRUE(kernel_reads(mapping, pattern("before")));
      me.signal("opened");
      const auto again = me.receive<Handle>("handle of busy memory");
      EXPECT_READS(mapping, pattern("after"));
      // Only now: an open could restore a mapping that the export has ended.
      EXPECT_EQ(open_handle(api, again), mapping.data);
      EXPECT_SUCCESS(api.ipc_close_mem_handle(mapping.data));
      mapping.fill(pattern("importer"));
      me.signal("written");
      mapping.close();
      me.signal("closed");
    });
  });

  scenario.run(20s);
}

// An exporter of several generations of memory at one address. One API exports
// the memory, and both APIs free it in turn. Returns whether an address came
// back.
template <class Api>
static bool exports_every_generation(Role& me, Api api) {
  const DeviceBuffer neighbour(kSmall);  // keeps the block after a free
  bool came_back = false;
  for (const size_t bytes : {kSmall, kLarge}) {
    int freed = 0;
    const auto frees = [&](DeviceBuffer& buffer) {
      void* const memory = std::exchange(buffer.data, nullptr);
      if (++freed % 2 == 0)
        CALL(RuntimeApi::mem_free(memory));
      else
        CALL(DriverApi::mem_free(memory));
    };
    DeviceBuffer first(bytes);
    first.fill(pattern("first"));
    const void* address = first.data;
    std::set<std::string> handles{bytes_of(handle_of(api, first))};
    frees(first);
    for (int i = 2; i <= kGenerations; ++i) {
      const auto next = allocate_at(address, bytes);
      next->fill(pattern("last"));
      const Handle handle = handle_of(api, *next);
      if (next->data != address)
        me.observe("the address of " + std::to_string(bytes) +
                   " bytes does not come back");
      came_back |= next->data == address;
      EXPECT_TRUE(handles.insert(bytes_of(handle)).second)
          << bytes << " bytes, allocation " << i;
      if (i == kGenerations) {
        me.send("handle", handle);
        me.wait("closed");
      }
      frees(*next);
    }
  }
  return came_back;
}

TEST(HandleIdentity, AReusedAddressGetsANewHandle) {
  covers("LMEM-06");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      if (!exports_every_generation(me, api))
        me.not_applicable("no address comes back");
    });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) {
      for (const size_t bytes : {kSmall, kLarge}) {
        MappingBy mapping(api, me.receive<Handle>("handle"), bytes);
        EXPECT_READS(mapping, pattern("last"));
        mapping.close();
        me.signal("closed");
      }
    });
  });
  scenario.run(20s);
}

// The importer has other memory of the block open while it opens the memory
// that got the address of memory that it had opened before.
TEST(HandleIdentity, AReusedAddressInAnOpenBlockOpensTheNewMemory) {
  covers("LMEM-06");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      const DeviceBuffer neighbour(kSmall);  // usually in one block with it
      DeviceBuffer first(kSmall);
      neighbour.fill(pattern("neighbour"));
      first.fill(pattern("first"));
      me.send("neighbour", handle_of(api, neighbour));
      me.send("first", handle_of(api, first));
      me.wait("first closed");
      const void* const address = first.data;
      first.free();
      const auto later = allocate_at(address, kSmall);
      later->fill(pattern("later"));
      if (later->data != address) me.not_applicable("no address comes back");
      me.send("later", handle_of(api, *later));
      me.wait("closed");
      EXPECT_TRUE(kernel_reads(*later, pattern("importer")));
    });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) {
      MappingBy neighbour(api, me.receive<Handle>("neighbour"), kSmall);
      MappingBy first(api, me.receive<Handle>("first"), kSmall);
      EXPECT_TRUE(kernel_reads(first, pattern("first")));
      first.close();
      me.signal("first closed");
      MappingBy later(api, me.receive<Handle>("later"), kSmall);
      EXPECT_READS(later, pattern("later"));
      EXPECT_TRUE(kernel_reads(neighbour, pattern("neighbour")));
      later.fill(pattern("importer"));
      later.close();
      neighbour.close();
      me.signal("closed");
    });
  });
  scenario.run(20s);
}

// One thread exports, and another thread frees the memory and allocates again.
// The memory is large, because then it does not share a block with others.
TEST(HandleIdentity, AReuseByAnotherThreadGetsANewHandle) {
  covers("LMEM-06");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      auto buffer = std::make_unique<DeviceBuffer>(kLarge);
      const void* const address = buffer->data;
      const std::string before = bytes_of(handle_of(api, *buffer));
      CALL(in_a_thread([&] {
        buffer->free();
        buffer = allocate_at(address, kLarge);
        return cudaSuccess;
      }));
      buffer->fill(pattern("later"));
      const Handle handle = handle_of(api, *buffer);
      if (buffer->data != address) me.not_applicable("no address comes back");
      EXPECT_NE(bytes_of(handle), before) << "an export of later memory";
      me.send("handle", handle);
      me.wait("closed");
    });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) {
      MappingBy mapping(api, me.receive<Handle>("handle"), kLarge);
      EXPECT_TRUE(kernel_reads(mapping, pattern("later")));
      mapping.close();
      me.signal("closed");
    });
  });
  scenario.run(20s);
}

// An exporter that frees memory, writes a secret into new memory at the same
// address if possible, and then sends the handle of the freed memory.
template <class Api>
static void hides_a_secret(Role& me, Api api) {
  const DeviceBuffer neighbour(kSmall);  // keeps the block after a free
  for (const size_t bytes : {kSmall, kLarge}) {
    DeviceBuffer first(bytes);
    const void* address = first.data;
    const Handle stale = handle_of(api, first);
    CALL(api.mem_free(std::exchange(first.data, nullptr)));
    const auto second = allocate_at(address, bytes);
    second->fill(pattern("secret"));
    me.observe(std::to_string(bytes) + " bytes: the address " +
               (second->data == address ? "came back" : "did not come back"));
    // This allocation is exported, because only exported memory can be opened.
    handle_of(api, *second);
    me.send("stale handle", stale);
    me.wait("tried");
    EXPECT_TRUE(kernel_reads(*second, pattern("secret")));
  }
}

// The importer, which tries to open the handle of the freed memory.
template <class Api>
static void looks_for_the_secret(Role& me, Api api) {
  for (const size_t bytes : {kSmall, kLarge}) {
    const auto stale = me.receive<Handle>("stale handle");
    void* opened = nullptr;
    const auto code = api.ipc_open_mem_handle(&opened, stale);
    cudaGetLastError();
    me.observe(std::string("opening a stale handle by the ") + api.kName +
               ": " + name_of(code));
    if (code == decltype(code){}) {
      const Words words(opened, bytes);
      EXPECT_FALSE(kernel_reads(words, pattern("secret")));
      EXPECT_FALSE(copy_reads(words, pattern("secret")));
      CALL(api.ipc_close_mem_handle(opened));
    }
    EXPECT_TRUE(context_is_usable());
    me.signal("tried");
  }
}

TEST(HandleIdentity, AStaleHandleShowsNoLaterSecret) {
  covers("LMEM-07");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) { hides_a_secret(me, api); });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) { looks_for_the_secret(me, api); });
  });
  scenario.run(20s);
}

// Before the second open, the importer allocates memory of its own and, if
// possible, reserves the exporter's address.
TEST(HandleIdentity, AnyAddressShowsTheSameMemory) {
  covers("LMEM-15");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kLarge);
    buffer.fill(pattern("exporter"));
    me.send("address", buffer.data);
    me.send("handle", buffer.legacy_handle());
    me.wait("closed");
  });

  scenario.role("importer", [](Role& me) {
    const auto address = me.receive<uint32_t*>("address");
    const auto handle = me.receive<Handle>("handle");
    const auto borrow = [&] {
      by_both_apis([&](auto api) {
        MappingBy mapping(api, handle, kLarge);
        EXPECT_READS(mapping, pattern("exporter"));
        me.observe(std::string(api.kName) + ": opens at " +
                   (mapping.data == address ? "the exporter's address"
                                            : "another address"));
        mapping.close();
      });
    };
    borrow();
    const DeviceBuffer own(kLarge);
    CUdeviceptr reserved = 0;
    const CUresult code = NOTED(DRIVER(cuMemAddressReserve)(
        &reserved, kLarge, 0, reinterpret_cast<CUdeviceptr>(address), 0));
    me.observe("reserving the exporter's address first: " + name_of(code));
    borrow();
    if (code == CUDA_SUCCESS) CALL(DRIVER(cuMemAddressFree)(reserved, kLarge));
    me.signal("closed");
  });

  scenario.run(20s);
}

// Copies from one import into another in both ways.
static void expect_copied(const Words& from, const Words& to, size_t bytes,
                          const Pattern& written) {
  const Words target(to.data, bytes);
  CALL(cudaMemcpy(target.data, from.data, bytes, cudaMemcpyDeviceToDevice));
  EXPECT_TRUE(kernel_reads(target, written)) << "by cudaMemcpy";
  target.poison();
  CALL(cudaMemcpyAsync(target.data, from.data, bytes, cudaMemcpyDeviceToDevice,
                       nullptr));
  EXPECT_TRUE(kernel_reads(target, written)) << "by cudaMemcpyAsync";
}

TEST(HandleIdentity, EveryHandleMapsItsOwnAllocation) {
  covers("LMEM-17");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  struct Loan {
    Handle handle;
    size_t number;
  };
  using Loans = std::array<Loan, kAllocations>;
  // Most allocations share a block with their neighbours; every eighth has its
  // own block.
  const auto size_of = [](size_t number) {
    return number % 8 == 7 ? (size_t{2} << 20) + number * 4
                           : 512 * (number + 1);
  };
  const auto of = [](size_t number) {
    return pattern("allocation " + std::to_string(number));
  };

  scenario.role("exporter", [=](Role& me) {
    std::vector<std::unique_ptr<DeviceBuffer>> buffers;
    Loans loans;
    std::set<std::string> handles;
    for (size_t i = 0; i < kAllocations; ++i) {
      buffers.push_back(std::make_unique<DeviceBuffer>(size_of(i)));
      buffers.back()->fill(of(i));
      loans[i] = {buffers.back()->legacy_handle(), i};
      handles.insert(bytes_of(loans[i].handle));
    }
    EXPECT_EQ(handles.size(), kAllocations) << "handles are not distinct";
    DeviceBuffer(kSmall).free();  // not exported: changes no other allocation
    std::shuffle(loans.begin(), loans.end(),
                 std::mt19937(pattern("order").key));
    me.send("loans", loans);
    me.wait("closed");
  });

  scenario.role("importer", [=](Role& me) {
    std::vector<std::unique_ptr<LegacyMapping>> mappings(kAllocations);
    for (const Loan& loan : me.receive<Loans>("loans"))
      mappings.at(loan.number) =
          std::make_unique<LegacyMapping>(loan.handle, size_of(loan.number));
    for (size_t i = 0; i < kAllocations; ++i) {
      EXPECT_TRUE(kernel_reads(*mappings[i], of(i))) << "allocation " << i;
      EXPECT_TRUE(copy_reads(*mappings[i], of(i))) << "allocation " << i;
    }
    // The other import is larger.
    expect_copied(*mappings[7], *mappings[15], size_of(7), of(7));
    expect_copied(*mappings[23], *mappings[31], size_of(23), of(23));
    mappings.clear();
    me.signal("closed");
  });

  scenario.run(30s);
}

TEST(HandleIdentity, TheWholeAllocationIsReachable) {
  covers("LMEM-18");
  needs(gpus(1), legacy_memory);
  static constexpr size_t kMiB = 1 << 20;
  static constexpr std::array kSizes{
      size_t{1},    size_t{511},   size_t{4097},
      2 * kMiB - 1, 2 * kMiB,      2 * kMiB + 1,
      3 * kMiB,     64 * kMiB + 5, 4096 * kMiB + 2 * kMiB + 1};
  using Handles = std::array<Handle, kSizes.size()>;
  Scenario scenario(Scenario::kShared);

  // The memory is not a DeviceBuffer, because a DeviceBuffer would poison
  // several GiB.
  scenario.role("exporter", [](Role& me) {
    std::array<void*, kSizes.size()> memory;
    Handles handles;
    for (size_t i = 0; i < kSizes.size(); ++i) {
      CALL(cudaMalloc(&memory[i], kSizes[i]));
      write_by_kernel(memory[i], kSizes[i], pattern("exporter"));
      CALL(cudaIpcGetMemHandle(&handles[i], memory[i]));
    }
    me.send("handles", handles);
    me.wait("closed");
    for (size_t i = 0; i < kSizes.size(); ++i) {
      expect_bytes(memory[i], kSizes[i], pattern("importer"));
      CALL(cudaFree(memory[i]));
    }
  });

  scenario.role("importer", [](Role& me) {
    const auto handles = me.receive<Handles>("handles");
    for (size_t i = 0; i < kSizes.size(); ++i) {
      LegacyMapping mapping(handles[i], kSizes[i]);
      expect_known_to_the_end(mapping.data, kSizes[i]);
      expect_bytes(mapping.data, kSizes[i], pattern("exporter"));
      // A copy of the largest allocation would take too long.
      if (i + 1 < kSizes.size()) {
        expect_copies_of_all(mapping.data, kSizes[i], pattern("exporter"));
      } else {
        expect_sets_of_all(mapping.data, kSizes[i], pattern("exporter"));
        expect_far_rows(mapping.data);
        for (const size_t gib : {2, 4})
          expect_far_writes(mapping.data, gib << 30);
      }
      write_by_kernel(mapping.data, kSizes[i], pattern("importer"));
      mapping.close();
    }
    me.signal("closed");
  });

  scenario.run(60s);
}

TEST(HandleIdentity, SyncMemopsOnBothSides) {
  covers("LMEM-46");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  const auto seen = [](Role& me, const char* when, const void* pointer) {
    me.observe(std::string("SYNC_MEMOPS ") + when + ": " +
               answer_for<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pointer));
  };
  const auto set = [](void* pointer, unsigned value) {
    return NOTED(
        DRIVER(cuPointerSetAttribute)(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                                      reinterpret_cast<CUdeviceptr>(pointer)));
  };
  const auto told = [](const void* pointer) {
    return pointer_attribute<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                                       pointer);
  };

  scenario.role("exporter", [=](Role& me) {
    const DeviceBuffer buffer(kLarge), other(kLarge);
    buffer.fill(pattern("exporter"));
    seen(me, "in the exporter at first", buffer.data);
    const unsigned of_other = told(other.data);
    CALL(set(buffer.data, 1));
    EXPECT_EQ(told(buffer.data), 1u);
    EXPECT_EQ(told(other.data), of_other) << "it was set on other memory";
    me.send("handle", buffer.legacy_handle());
    me.wait("closed");
    EXPECT_EQ(told(buffer.data), 1u) << "after the export";
    CALL(set(buffer.data, 0));
    EXPECT_EQ(told(buffer.data), 0u);
    const uint32_t* const inside = buffer.data + buffer.count / 2;
    CALL(set(buffer.data + buffer.count / 2, 1));
    EXPECT_EQ(told(inside), 1u) << "set at an address inside the memory";
    CALL(set(buffer.data + buffer.count / 2, 0));
    EXPECT_EQ(told(inside), 0u);
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
  });

  scenario.role("importer", [=](Role& me) {
    LegacyMapping mapping(me.receive<Handle>("handle"), kLarge);
    seen(me, "in the importer, set by the exporter", mapping.data);
    me.observe("setting it in the importer: " + name_of(set(mapping.data, 1)));
    seen(me, "in the importer, set by the importer", mapping.data);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    mapping.close();
    me.signal("closed");
  });

  scenario.run(20s);
}

// Sets SYNC_MEMOPS of opened memory, and judges what is promised about memory
// for which it is set: a memset returns when it is done. No sentence says that
// the attribute can be set for opened memory.
static void sets_memory_that_synchronizes(Role& me) {
  LegacyMapping mapping(me.receive<Handle>("handle"), kLarge);
  const unsigned on = 1;
  const CUresult code = NOTED(DRIVER(cuPointerSetAttribute)(
      &on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address_of(mapping.data)));
  if (code != CUDA_SUCCESS) {
    me.not_applicable("SYNC_MEMOPS of opened memory: " + name_of(code));
  } else {
    EXPECT_EQ(pointer_attribute<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                                          mapping.data),
              1u);
    // The default stream, in which the memset is, waits for this stream.
    const Stream stream(Stream::Kind::kBlocking);
    Latch latch;
    latch.hold(stream);
    HostWait memset("cudaMemset of memory with SYNC_MEMOPS", [&] {
      const cudaError_t set = cudaSetDevice(0);  // the thread's context
      return set != cudaSuccess
                 ? set
                 : cudaMemset(mapping.data, 0x21, mapping.bytes());
    });
    EXPECT_TRUE(memset.is_held()) << "it returns before it is done";
    latch.release();
    EXPECT_SUCCESS(memset.join());
    EXPECT_TRUE(passes(stream));
  }
  mapping.close();
  me.send("set", code == CUDA_SUCCESS);
}

TEST(HandleIdentity, AMemsetOfSynchronizingMemoryReturnsWhenItIsDone) {
  covers("LMEM-49");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kLarge);
    buffer.fill(pattern("exporter"));
    me.send("handle", buffer.legacy_handle());
    const bool is_set = me.receive<bool>("set");
    std::vector<unsigned char> seen(buffer.bytes());
    CALL(cudaMemcpy(seen.data(), buffer.data, seen.size(), cudaMemcpyDefault));
    if (is_set)
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 0x21),
                static_cast<std::ptrdiff_t>(seen.size()));
  });
  scenario.role("importer", sets_memory_that_synchronizes);
  scenario.run(20s);
}

static unsigned long long id_of(const Words& memory) {
  return pointer_attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                               memory.data);
}

// Judges that two imports and two allocations of this process have four
// different ids. An import counts only if the query answers for it.
static void expect_ids_apart(const Words& mapping, const Words& second) {
  std::set<unsigned long long> ids;
  size_t told = 0;
  for (const Words* import : {&mapping, &second}) {
    unsigned long long id = 0;
    if (NOTED(DRIVER(cuPointerGetAttribute)(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                            address_of(import->data))) !=
        CUDA_SUCCESS)
      continue;
    ids.insert(id);
    ++told;
  }
  const DeviceBuffer own(kLarge), other(kLarge);
  ids.insert({id_of(own), id_of(other)});
  EXPECT_EQ(ids.size(), told + 2) << "an id stands for two buffers";
}

// Allocates with calls other than cudaMalloc, as far as this machine has them,
// and adds the id of each allocation. Returns the number of allocations.
static size_t add_ids_of_other_allocators(std::set<unsigned long long>& ids) {
  constexpr size_t kEach = 3;
  size_t added = 0;
  const auto add = [&](const Words& memory) {
    ids.insert(id_of(memory));
    ++added;
  };
  void* of_host[kEach] = {};
  for (void*& memory : of_host) {
    CALL(cudaHostAlloc(&memory, kSmall, cudaHostAllocDefault));
    add(Words(memory, kSmall));
  }
  for (void* memory : of_host) CALL(cudaFreeHost(memory));
  void* pitched[kEach] = {};
  for (void*& memory : pitched) {
    size_t pitch = 0;
    CALL(cudaMallocPitch(&memory, &pitch, 100, 10));
    add(Words(memory, kSmall));
  }
  for (void* memory : pitched) CALL(cudaFree(memory));
  CUdeviceptr by_driver[kEach] = {};
  for (CUdeviceptr& memory : by_driver) {
    CALL(DRIVER(cuMemAlloc)(&memory, kSmall));
    add(words_at(memory, kSmall));
  }
  for (const CUdeviceptr memory : by_driver) CALL(DRIVER(cuMemFree)(memory));
  if (attribute(cudaDevAttrManagedMemory) == 1) {
    void* managed[kEach] = {};
    for (void*& memory : managed) {
      CALL(cudaMallocManaged(&memory, kSmall, cudaMemAttachGlobal));
      add(Words(memory, kSmall));
    }
    for (void* memory : managed) CALL(cudaFree(memory));
  }
  if (attribute(cudaDevAttrMemoryPoolsSupported) == 1) {
    const Pool pool;
    std::deque<AsyncBuffer> buffers;
    for (size_t i = 0; i < kEach; ++i) {
      buffers.emplace_back(kSmall);
      buffers.emplace_back(pool, kSmall);
    }
    CALL(cudaDeviceSynchronize());
    for (const AsyncBuffer& buffer : buffers) add(buffer);
  }
  if (attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 1) {
    const CUmemAllocationProp wanted = chunk_of(0, CU_MEM_HANDLE_TYPE_NONE);
    std::deque<Mapping> mappings;
    for (size_t i = 0; i < kEach; ++i)
      mappings.emplace_back(Chunk::create(granule(), wanted), granule());
    for (const Mapping& mapping : mappings) add(mapping);
  }
  return added;
}

TEST(HandleIdentity, ABufferIdStandsForOneGpuOnly) {
  covers("LMEM-48");
  needs(gpus(2), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    std::set<unsigned long long> ids;
    std::vector<std::unique_ptr<DeviceBuffer>> buffers;
    for (const int gpu : {0, 1, 0, 1}) {
      CALL(cudaSetDevice(gpu));
      buffers.push_back(std::make_unique<DeviceBuffer>(kSmall));
      ids.insert(id_of(*buffers.back()));
    }
    EXPECT_EQ(ids.size(), buffers.size()) << "an id stands for two allocations";
    buffers.clear();
    CALL(cudaSetDevice(0));
  });
  scenario.run(20s);
}

TEST(HandleIdentity, BufferIdsHaveMoreThan16Bits) {
  covers("LMEM-48");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    // This small allocation keeps the block in use, so that each round is fast.
    const DeviceBuffer neighbour(kSmall);
    std::set<unsigned long long> ids{id_of(neighbour)};
    for (size_t i = 1; i < kMostIds; ++i) {
      const DeviceBuffer buffer(kSmall, DeviceBuffer::Fresh::kUnwritten);
      ASSERT_TRUE(ids.insert(id_of(buffer)).second)
          << "allocation " << i + 1 << " has the id of an earlier one";
    }
  });
  scenario.run(60s);
}

// An importer that compares the ids of what it opens and of what it allocates.
static void queries_ids(Role& me) {
  const auto theirs = me.receive<unsigned long long>("id");
  LegacyMapping mapping(me.receive<Handle>("handle"), kLarge);
  me.observe("the id of the import is " +
             answer_for<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                            mapping.data) +
             ", the exporter's of the same memory " + std::to_string(theirs));
  LegacyMapping second(me.receive<Handle>("second"), kLarge);
  expect_ids_apart(mapping, second);
  second.close();
  EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
  mapping.close();
  me.signal("closed");
}

TEST(HandleIdentity, ABufferIdIsNeverReused) {
  covers("LMEM-48");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    std::set<unsigned long long> ids;
    size_t allocations = 0, repeats = 0;
    for (const size_t bytes : {kSmall, kLarge}) {
      const DeviceBuffer other(bytes);
      DeviceBuffer first(bytes);
      const void* address = first.data;
      ids.insert({id_of(other), id_of(first)});
      first.free();
      const auto second = allocate_at(address, bytes);
      ids.insert(id_of(*second));
      allocations += 3;
      repeats += second->data == address;
    }
    me.observe(std::to_string(repeats) + " of 2 addresses came back");
    if (repeats == 0) me.not_applicable("no address comes back");
    std::vector<std::unique_ptr<DeviceBuffer>> many;
    for (size_t i = 0; i < kIds; ++i) {
      many.push_back(std::make_unique<DeviceBuffer>(
          kSmall, DeviceBuffer::Fresh::kUnwritten));
      ids.insert(id_of(*many.back()));
    }
    CALL(in_a_thread([&] {  // all threads share one count
      for (size_t i = 0; i < kOfThread; ++i) {
        many.push_back(std::make_unique<DeviceBuffer>(
            kSmall, DeviceBuffer::Fresh::kUnwritten));
        ids.insert(id_of(*many.back()));
      }
      return cudaSuccess;
    }));
    allocations += kIds + kOfThread;
    allocations += add_ids_of_other_allocators(ids);
    EXPECT_EQ(ids.size(), allocations) << "an id stands for two allocations";
    EXPECT_EQ(id_of(*many.back()), id_of(*many.back())) << "an id that changes";

    const DeviceBuffer buffer(kLarge);
    buffer.fill(pattern("exporter"));
    for (const size_t word : {size_t{1}, buffer.count / 2, buffer.count - 1})
      EXPECT_EQ(id_of(Words(buffer.data + word, sizeof(uint32_t))),
                id_of(buffer))
          << "an allocation has two ids, word " << word;
    const DeviceBuffer second(kLarge);
    const auto id = id_of(buffer);
    me.send("id", id);
    me.send("handle", buffer.legacy_handle());
    me.send("second", second.legacy_handle());
    me.wait("closed");
    EXPECT_EQ(id_of(buffer), id) << "another id after the export";
  });

  scenario.role("importer", queries_ids);
  scenario.run(20s);
}
