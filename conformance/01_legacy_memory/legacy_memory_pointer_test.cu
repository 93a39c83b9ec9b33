// An opened pointer is used like any other one.
// Mirror of samples/01_legacy_memory.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;

__device__ uint32_t variable[1024];

}  // namespace

// Copies between the opened memory and memory of other allocators of this
// process, in both directions.
static void copies_to_other_kinds_of_memory(const Words& mapping) {
  const auto expect_copies = [&](const char* kind, const Words& other) {
    mapping.fill(pattern("opened"));
    other.poison();
    CALL(cudaMemcpy(other.data, mapping.data, kBytes, cudaMemcpyDefault));
    EXPECT_TRUE(kernel_reads(other, pattern("opened"))) << kind;
    other.fill(pattern(kind));
    CALL(cudaMemcpy(mapping.data, other.data, kBytes, cudaMemcpyDefault));
    EXPECT_TRUE(kernel_reads(mapping, pattern(kind))) << kind;
  };
  void* memory = nullptr;
  if (attribute(cudaDevAttrManagedMemory) != 0) {
    CALL(cudaMallocManaged(&memory, kBytes));
    expect_copies("managed memory", Words(memory, kBytes));
    CALL(cudaFree(memory));
  }
  if (attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 1) {
    const CUmemAllocationProp wanted = chunk_of(0, CU_MEM_HANDLE_TYPE_NONE);
    const size_t unit = granule(wanted);
    const size_t bytes = (kBytes + unit - 1) / unit * unit;
    const Mapping mapped(Chunk::create(bytes, wanted), bytes);
    expect_copies("memory of cuMemCreate", Words(mapped.data, kBytes));
  }
  if (attribute(cudaDevAttrMemoryPoolsSupported) == 0) return;
  CALL(cudaMallocAsync(&memory, kBytes, nullptr));
  CALL(cudaStreamSynchronize(nullptr));
  expect_copies("stream-ordered memory", Words(memory, kBytes));
  CALL(cudaFree(memory));
}

// Copies between the opened memory and memory of the host, in both directions:
// synchronous, and asynchronous without a given direction.
static void copies_to_host_memory(const Words& mapping) {
  const Stream stream;
  const auto copy = [&](bool async, const Words& to, const Words& from,
                        cudaMemcpyKind kind) {
    if (!async) {
      CALL(cudaMemcpy(to.data, from.data, kBytes, kind));
      return;
    }
    CALL(
        cudaMemcpyAsync(to.data, from.data, kBytes, cudaMemcpyDefault, stream));
    CALL(cudaStreamSynchronize(stream));
  };
  const auto expect_copies = [&](const std::string& kind, const Words& host) {
    for (const bool async : {false, true}) {
      SCOPED_TRACE((async ? "cudaMemcpyAsync, " : "cudaMemcpy, ") + kind);
      mapping.fill(pattern("opened"));
      std::memset(host.data, 0, kBytes);
      copy(async, host, mapping, cudaMemcpyDeviceToHost);
      EXPECT_TRUE(host_reads(host, pattern("opened"))) << "out of it";
      host_writes(host, pattern(kind));
      copy(async, mapping, host, cudaMemcpyHostToDevice);
      EXPECT_TRUE(kernel_reads(mapping, pattern(kind))) << "into it";
    }
  };
  expect_copies("pinned memory", PinnedBuffer(kBytes));
  void* const pageable = std::aligned_alloc(4096, kBytes);
  expect_copies("pageable memory", Words(pageable, kBytes));
  if (attribute(cudaDevAttrHostRegisterSupported) == 1) {
    CALL(cudaHostRegister(pageable, kBytes, cudaHostRegisterDefault));
    expect_copies("registered memory", Words(pageable, kBytes));
    CALL(cudaHostUnregister(pageable));
  }
  std::free(pageable);
}

// Copies between the opened memory and the second half of a variable.
static void copies_to_a_variable(const Words& mapping) {
  constexpr size_t kHalf = sizeof variable / 2;
  const Words part(mapping.data, kHalf);
  const Pattern written = pattern("variable");
  part.fill(written);
  CALL(cudaMemcpyToSymbol(variable, part.data, kHalf, kHalf,
                          cudaMemcpyDeviceToDevice));
  CALL(cudaDeviceSynchronize());
  uint32_t word = 0;
  CALL(cudaMemcpyFromSymbol(&word, variable, sizeof word, kHalf));
  EXPECT_EQ(word, written.at(0)) << "cudaMemcpyToSymbol";
  part.poison();
  CALL(cudaMemcpyFromSymbol(part.data, variable, kHalf, kHalf,
                            cudaMemcpyDeviceToDevice));
  CALL(cudaDeviceSynchronize());
  EXPECT_TRUE(kernel_reads(part, written)) << "cudaMemcpyFromSymbol";
}

// Copies between the opened memory and other memory of the same context by the
// driver's functions for two contexts, in both directions.
static void copies_between_contexts(const Words& mapping) {
  const DeviceBuffer own(kBytes);
  const Stream stream;
  CUcontext here = nullptr;
  CALL(DRIVER(cuCtxGetCurrent)(&here));
  for (const bool async : {false, true})
    for (const bool into : {true, false}) {
      SCOPED_TRACE(async ? "cuMemcpyPeerAsync" : "cuMemcpyPeer");
      const Words to = into ? mapping : own, from = into ? own : mapping;
      const Pattern written = pattern(into ? "into" : "out of");
      from.fill(written);
      to.poison();
      const CUdeviceptr there = address_of(to.data);
      const CUdeviceptr source = address_of(from.data);
      if (async)
        CALL(DRIVER(cuMemcpyPeerAsync)(there, here, source, here, kBytes,
                                       stream));
      else
        CALL(DRIVER(cuMemcpyPeer)(there, here, source, here, kBytes));
      CALL(cudaDeviceSynchronize());
      EXPECT_TRUE(kernel_reads(to, written));
    }
}

// Calls for the opened memory that work in the default stream. Each is made
// while a kernel that writes the same memory waits in this stream, so in the
// end the memory holds what the call writes.
static void calls_wait_their_turn(const Words& mapping) {
  const DeviceBuffer own(kBytes);
  std::vector<uint32_t> host(mapping.count), seen(mapping.count);
  const Pattern written = pattern("host");
  for (size_t i = 0; i < host.size(); ++i) host[i] = written.at(i);
  own.fill(pattern("host"));
  // Judges that the call comes after the kernel. Returns whether it waited for
  // the kernel; otherwise it returned at once.
  const auto comes_after_the_kernel = [&](const char* way, const Words& to,
                                          const std::vector<uint32_t>& expected,
                                          auto call) {
    Latch latch;
    latch.hold(nullptr);
    to.queue_fill(pattern("queued"), nullptr);
    HostWait caller(way, [&] {
      const cudaError_t code = cudaSetDevice(0);  // the thread's context
      return code != cudaSuccess ? code : call(to);
    });
    const bool waited = caller.is_held();
    latch.release();
    EXPECT_SUCCESS(caller.join());
    CALL(cudaDeviceSynchronize());
    CALL(cudaMemcpy(seen.data(), to.data, kBytes, cudaMemcpyDefault));
    EXPECT_TRUE(seen == expected) << way << " comes before the kernel";
    return waited;
  };
  const std::vector<uint32_t> set(mapping.count, 0x5A5A5A5A);
  comes_after_the_kernel("cudaMemset", mapping, set, [](const Words& to) {
    return cudaMemset(to.data, 0x5A, kBytes);
  });
  comes_after_the_kernel(
      "cudaMemcpy from the device", mapping, host, [&](const Words& to) {
        return cudaMemcpy(to.data, own.data, kBytes, cudaMemcpyDeviceToDevice);
      });
  // If a copy from pageable memory waits for memory of this process, it also
  // waits for opened memory.
  const auto copy_from_host = [&](const Words& to) {
    return cudaMemcpy(to.data, host.data(), kBytes, cudaMemcpyHostToDevice);
  };
  const bool waits = comes_after_the_kernel("cudaMemcpy from the host", own,
                                            host, copy_from_host);
  EXPECT_EQ(comes_after_the_kernel("cudaMemcpy from the host to opened memory",
                                   mapping, host, copy_from_host),
            waits);
}

// Calls for no bytes write nothing, and return what they return for memory of
// this process.
static void calls_for_no_bytes(const Words& mapping) {
  const DeviceBuffer own(kBytes), other(kBytes);
  const Stream stream;
  mapping.fill(pattern("opened"));
  own.fill(pattern("own"));
  CALL(cudaDeviceSynchronize());
  const auto expect_nothing = [&](const char* way, auto call) {
    EXPECT_EQ(call(mapping.data), call(other.data)) << way;
    cudaGetLastError();
    CALL(cudaDeviceSynchronize());
    EXPECT_TRUE(kernel_reads(mapping, pattern("opened"))) << way;
  };
  expect_nothing("cudaMemset",
                 [&](void* to) { return NOTED(cudaMemset(to, 0x5A, 0)); });
  expect_nothing("cudaMemsetAsync", [&](void* to) {
    return NOTED(cudaMemsetAsync(to, 0x5A, 0, stream));
  });
  expect_nothing("cudaMemcpy", [&](void* to) {
    return NOTED(cudaMemcpy(to, own.data, 0, cudaMemcpyDeviceToDevice));
  });
  expect_nothing("cudaMemcpyAsync", [&](void* to) {
    return NOTED(
        cudaMemcpyAsync(to, own.data, 0, cudaMemcpyDeviceToDevice, stream));
  });
}

// An importer that uses its opened pointer like a pointer of cudaMalloc.
static void uses_the_pointer_in_every_way(Role& me) {
  LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"), kBytes);
  const DeviceBuffer own(kBytes);
  std::vector<uint32_t> host(mapping.count);
  const auto on_host = [&](Pattern written) {
    for (size_t i = 0; i < host.size(); ++i) host[i] = written.at(i);
  };
  const auto done = [&](const char* step) {
    CALL(cudaDeviceSynchronize());
    me.signal(step);
    me.wait(std::string("seen: ") + step);
  };

  mapping.fill(pattern("kernel store"));
  done("kernel store");

  on_host(pattern("copy from the host"));
  CALL(cudaMemcpy(mapping.data, host.data(), kBytes, cudaMemcpyHostToDevice));
  done("copy from the host");

  on_host(pattern("copy from the host, async"));
  CALL(cudaMemcpyAsync(mapping.data, host.data(), kBytes,
                       cudaMemcpyHostToDevice, nullptr));
  done("copy from the host, async");

  const PinnedBuffer pinned(kBytes);
  on_host(pattern("copy from pinned memory"));
  std::memcpy(pinned.data, host.data(), kBytes);
  CALL(cudaMemcpyAsync(mapping.data, pinned.data, kBytes,
                       cudaMemcpyHostToDevice, nullptr));
  done("copy from pinned memory");

  own.fill(pattern("copy in the thread's stream"));
  CALL(cudaMemcpyAsync(mapping.data, own.data, kBytes, cudaMemcpyDeviceToDevice,
                       cudaStreamPerThread));
  done("copy in the thread's stream");

  own.fill(pattern("copy from the device"));
  CALL(cudaMemcpy(mapping.data, own.data, kBytes, cudaMemcpyDeviceToDevice));
  done("copy from the device");

  own.fill(pattern("copy from the device, async"));
  CALL(cudaMemcpyAsync(mapping.data, own.data, kBytes, cudaMemcpyDeviceToDevice,
                       nullptr));
  done("copy from the device, async");

  CALL(cudaMemset(mapping.data, 0x3C, kBytes));
  CALL(cudaDeviceSynchronize());
  me.signal("memset");

  me.wait("written");
  const Pattern written = pattern("to read");
  EXPECT_READS(mapping, written);
  own.poison();
  CALL(cudaMemcpy(own.data, mapping.data, kBytes, cudaMemcpyDeviceToDevice));
  EXPECT_TRUE(kernel_reads(own, written));
  own.poison();
  CALL(cudaMemcpyAsync(own.data, mapping.data, kBytes, cudaMemcpyDeviceToDevice,
                       nullptr));
  CALL(cudaDeviceSynchronize());
  EXPECT_TRUE(kernel_reads(own, written));
  own.poison();
  launch_copy(own, mapping);
  CALL(cudaDeviceSynchronize());
  EXPECT_TRUE(kernel_reads(own, written));
  std::vector<uint32_t> seen(mapping.count, 0);
  CALL(cudaMemcpyAsync(seen.data(), mapping.data, kBytes,
                       cudaMemcpyDeviceToHost, nullptr));
  CALL(cudaDeviceSynchronize());
  on_host(written);
  EXPECT_TRUE(seen == host) << "cudaMemcpyAsync to the host";
  std::memset(pinned.data, 0, kBytes);
  CALL(cudaMemcpyAsync(pinned.data, mapping.data, kBytes,
                       cudaMemcpyDeviceToHost, nullptr));
  CALL(cudaDeviceSynchronize());
  EXPECT_EQ(std::memcmp(pinned.data, host.data(), kBytes), 0)
      << "cudaMemcpyAsync to pinned memory";
  EXPECT_TRUE(copy_waits_its_turn(mapping));
  calls_wait_their_turn(mapping);
  calls_for_no_bytes(mapping);
  copies_to_other_kinds_of_memory(mapping);
  copies_to_host_memory(mapping);
  copies_to_a_variable(mapping);
  copies_between_contexts(mapping);
  expect_streams_reach(mapping);
  mapping.close();
  me.signal("closed");
}

// An importer that copies the memory of one exporter to the memory of another
// one, in several ways. It tells the second exporter about each copy.
static void copies_from_one_to_the_other(Role& me) {
  LegacyMapping from(me.receive<cudaIpcMemHandle_t>("from"), kBytes);
  LegacyMapping to(me.receive<cudaIpcMemHandle_t>("to"), kBytes);
  const Stream stream;
  constexpr size_t kRow = kBytes / 4;
  const auto expect_arrives = [&](const char* way, cudaError_t code) {
    CALL(code);
    CALL(cudaDeviceSynchronize());
    me.send_bytes("way", way);
    me.wait("seen");
  };
  expect_arrives("cudaMemcpy", NOTED(cudaMemcpy(to.data, from.data, kBytes,
                                                cudaMemcpyDefault)));
  expect_arrives("cudaMemcpyAsync",
                 NOTED(cudaMemcpyAsync(to.data, from.data, kBytes,
                                       cudaMemcpyDeviceToDevice, stream)));
  expect_arrives("cudaMemcpy2D",
                 NOTED(cudaMemcpy2D(to.data, kRow, from.data, kRow, kRow, 4,
                                    cudaMemcpyDefault)));
  launch_copy(to, from);
  expect_arrives("a kernel", cudaSuccess);
  me.send_bytes("way", "");
  // The first exporter has lent further memory.
  LegacyMapping beside(me.receive<cudaIpcMemHandle_t>("beside"), kBytes);
  CALL(cudaMemcpy(beside.data, from.data, kBytes, cudaMemcpyDefault));
  CALL(cudaDeviceSynchronize());
  EXPECT_TRUE(kernel_reads(beside, pattern("first exporter"))) << "cudaMemcpy";
  beside.poison();
  CALL(cudaMemcpyAsync(beside.data, from.data, kBytes, cudaMemcpyDefault,
                       stream));
  CALL(cudaStreamSynchronize(stream));
  beside.close();
  to.close();
  from.close();
  me.signal("closed");
}

TEST(LegacyMemory, MemoryOfOneExporterIsCopiedToAnother) {
  covers("LMEM-35");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("first exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes), beside(kBytes);
    buffer.fill(pattern("first exporter"));
    me.send("from", buffer.legacy_handle());
    me.send("beside", beside.legacy_handle());
    me.wait("closed");
    EXPECT_TRUE(kernel_reads(beside, pattern("first exporter"))) << "beside";
    EXPECT_TRUE(kernel_reads(buffer, pattern("first exporter")));
  });
  scenario.role("second exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    me.send("to", buffer.legacy_handle());
    for (;;) {
      const std::string way = me.receive_bytes("way");
      if (way.empty()) break;
      EXPECT_TRUE(kernel_reads(buffer, pattern("first exporter"))) << way;
      buffer.poison();
      me.signal("seen");
    }
    me.wait("closed");
  });
  scenario.role("importer", copies_from_one_to_the_other);
  scenario.run(20s);
}

// The importer uses the opened pointer in the ways in which a local pointer is
// used. Each write has its own values, which the exporter checks. The importer
// checks what it reads and copies.
TEST(LegacyMemory, AnOpenedPointerIsUsedLikeALocalOne) {
  covers("LMEM-35");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    const auto expect = [&](const char* step) {
      me.wait(step);
      EXPECT_TRUE(kernel_reads(buffer, pattern(step))) << step;
      buffer.poison();
      me.signal(std::string("seen: ") + step);
    };
    me.send("handle", buffer.legacy_handle());
    expect("kernel store");
    expect("copy from the host");
    expect("copy from the host, async");
    expect("copy from pinned memory");
    expect("copy in the thread's stream");
    expect("copy from the device");
    expect("copy from the device, async");

    me.wait("memset");
    std::vector<unsigned char> bytes(kBytes, 0);
    CALL(cudaMemcpy(bytes.data(), buffer.data, kBytes, cudaMemcpyDefault));
    EXPECT_EQ(bytes, std::vector<unsigned char>(kBytes, 0x3C));

    buffer.fill(pattern("to read"));
    me.signal("written");
    me.wait("closed");
  });

  scenario.role("importer", uses_the_pointer_in_every_way);

  scenario.run(30s);
}

namespace {

// A box of bytes: layers of rows. The memory around it has longer rows and more
// rows for each layer.
constexpr size_t kWidth = 8, kHeight = 4, kLayers = 3;
constexpr unsigned char kPoisonByte = 0xEE;  // of Words::poison()

// Where the box is in pitched memory.
struct Place {
  size_t pitch, rows;         // bytes of a row, rows of a layer
  size_t left, above, front;  // bytes, rows and layers before the box

  size_t index(size_t x, size_t y, size_t z) const {
    return ((front + z) * rows + above + y) * pitch + left + x;
  }
  size_t bytes() const { return pitch * rows * (front + kLayers); }
  cudaPos position() const { return make_cudaPos(left, above, front); }
};

// The pitch that the driver chooses for rows of this size.
size_t pitch_for(size_t width) {
  void* memory = nullptr;
  size_t pitch = 0;
  CALL(cudaMallocPitch(&memory, &pitch, width, 1));
  CALL(cudaFree(memory));
  return pitch;
}

// The byte at this index of a memory that is copied.
unsigned char numbered(size_t index) {
  return static_cast<unsigned char>(1 + index % 199);
}

// Judges that `write` writes exactly this box of the memory, `layers` deep,
// with the bytes `wanted(x, y, z)`.
template <class Write, class Wanted>
void expect_box(const char* way, const Words& memory, const Place& place,
                size_t layers, Write write, Wanted wanted) {
  SCOPED_TRACE(way);
  std::vector<unsigned char> expected(memory.bytes(), kPoisonByte);
  for (size_t z = 0; z < layers; ++z)
    for (size_t y = 0; y < kHeight; ++y)
      for (size_t x = 0; x < kWidth; ++x)
        expected[place.index(x, y, z)] = wanted(x, y, z);
  memory.poison();
  CALL(write());
  CALL(cudaDeviceSynchronize());
  std::vector<unsigned char> seen(memory.bytes(), 0);
  CALL(cudaMemcpy(seen.data(), memory.data, seen.size(), cudaMemcpyDefault));
  const auto [here, there] =
      std::mismatch(seen.begin(), seen.end(), expected.begin());
  EXPECT_TRUE(here == seen.end()) << "byte " << here - seen.begin();
}

// The same box for the functions of the driver API, which know it as one struct
// for two dimensions and as another for three.
template <class Copy>
Copy driver_copy(const Words& to, const Place& there, const Words& from,
                 const Place& here) {
  Copy copy{};
  copy.dstMemoryType = copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = address_of(to.data);
  copy.dstPitch = there.pitch;
  copy.dstXInBytes = there.left;
  copy.srcDevice = address_of(from.data);
  copy.srcPitch = here.pitch;
  copy.srcXInBytes = here.left;
  copy.WidthInBytes = kWidth;
  copy.Height = kHeight;
  return copy;
}

// Copies a box between two memories by each function for rectangles and boxes.
// The two sides have other pitches, other rows in a layer and other positions.
void expect_boxes_are_copied(const Words& to, const Place& there,
                             const Words& from, const Place& here) {
  const Stream stream;
  std::vector<unsigned char> bytes(from.bytes());
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = numbered(i);
  CALL(cudaMemcpy(from.data, bytes.data(), bytes.size(), cudaMemcpyDefault));
  const auto expect_copy = [&](const char* way, size_t layers, auto copy) {
    expect_box(way, to, there, layers, copy, [&](size_t x, size_t y, size_t z) {
      return numbered(here.index(x, y, z));
    });
  };
  cudaMemcpy3DParms box{};
  box.dstPtr =
      make_cudaPitchedPtr(to.data, there.pitch, there.pitch, there.rows);
  box.dstPos = there.position();
  box.srcPtr =
      make_cudaPitchedPtr(from.data, here.pitch, here.pitch, here.rows);
  box.srcPos = here.position();
  box.extent = make_cudaExtent(kWidth, kHeight, kLayers);
  box.kind = cudaMemcpyDeviceToDevice;
  expect_copy("cudaMemcpy3D", kLayers, [&] { return cudaMemcpy3D(&box); });
  expect_copy("cudaMemcpy3DAsync", kLayers,
              [&] { return cudaMemcpy3DAsync(&box, stream); });
  auto same = driver_copy<CUDA_MEMCPY3D>(to, there, from, here);
  same.dstHeight = there.rows;
  same.dstY = there.above;
  same.dstZ = there.front;
  same.srcHeight = here.rows;
  same.srcY = here.above;
  same.srcZ = here.front;
  same.Depth = kLayers;
  expect_copy("cuMemcpy3D", kLayers, [&] { return DRIVER(cuMemcpy3D)(&same); });
  expect_copy("cuMemcpy3DAsync", kLayers,
              [&] { return DRIVER(cuMemcpy3DAsync)(&same, stream); });
  auto flat = driver_copy<CUDA_MEMCPY2D>(to, there, from, here);
  flat.dstY = there.front * there.rows + there.above;
  flat.srcY = here.front * here.rows + here.above;
  expect_copy("cuMemcpy2D", 1, [&] { return DRIVER(cuMemcpy2D)(&flat); });
  expect_copy("cuMemcpy2DAsync", 1,
              [&] { return DRIVER(cuMemcpy2DAsync)(&flat, stream); });
  const auto at = [](const Words& words, const Place& place) {
    return reinterpret_cast<char*>(words.data) + place.index(0, 0, 0);
  };
  expect_copy("cudaMemcpy2D", 1, [&] {
    return cudaMemcpy2D(at(to, there), there.pitch, at(from, here), here.pitch,
                        kWidth, kHeight, cudaMemcpyDeviceToDevice);
  });
  expect_copy("cudaMemcpy2DAsync", 1, [&] {
    return cudaMemcpy2DAsync(at(to, there), there.pitch, at(from, here),
                             here.pitch, kWidth, kHeight,
                             cudaMemcpyDeviceToDevice, stream);
  });
}

// Sets a box of the memory by each function for rectangles and boxes.
void expect_boxes_are_set(const Words& memory, const Place& place) {
  const Stream stream;
  char* const first =
      reinterpret_cast<char*>(memory.data) + place.index(0, 0, 0);
  const auto expect_set = [&](const char* way, size_t layers, auto value,
                              auto set) {
    unsigned char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    expect_box(
        way, memory, place, layers, [&] { return set(value); },
        [&](size_t x, size_t, size_t) { return bytes[x % sizeof value]; });
  };
  const auto box =
      make_cudaPitchedPtr(first, place.pitch, place.pitch, place.rows);
  const cudaExtent extent = make_cudaExtent(kWidth, kHeight, kLayers);
  using Byte = unsigned char;
  expect_set("cudaMemset3D", kLayers, Byte{0x11},
             [&](Byte byte) { return cudaMemset3D(box, byte, extent); });
  expect_set("cudaMemset3DAsync", kLayers, Byte{0x12}, [&](Byte byte) {
    return cudaMemset3DAsync(box, byte, extent, stream);
  });
  const CUdeviceptr at = address_of(first);
  expect_set("cuMemsetD2D8", 1, Byte{0x13}, [&](Byte byte) {
    return DRIVER(cuMemsetD2D8)(at, place.pitch, byte, kWidth, kHeight);
  });
  expect_set("cuMemsetD2D8Async", 1, Byte{0x14}, [&](Byte byte) {
    return DRIVER(cuMemsetD2D8Async)(at, place.pitch, byte, kWidth, kHeight,
                                     stream);
  });
  expect_set("cuMemsetD2D16", 1, uint16_t{0x1516}, [&](uint16_t value) {
    return DRIVER(cuMemsetD2D16)(at, place.pitch, value, kWidth / 2, kHeight);
  });
  expect_set("cuMemsetD2D16Async", 1, uint16_t{0x1718}, [&](uint16_t value) {
    return DRIVER(cuMemsetD2D16Async)(at, place.pitch, value, kWidth / 2,
                                      kHeight, stream);
  });
  expect_set("cuMemsetD2D32", 1, uint32_t{0x19202122}, [&](uint32_t value) {
    return DRIVER(cuMemsetD2D32)(at, place.pitch, value, kWidth / 4, kHeight);
  });
  expect_set("cuMemsetD2D32Async", 1, uint32_t{0x23242526},
             [&](uint32_t value) {
               return DRIVER(cuMemsetD2D32Async)(at, place.pitch, value,
                                                 kWidth / 4, kHeight, stream);
             });
}

}  // namespace

// Judges that `write` writes exactly this rectangle of the memory, at its
// beginning, with this byte.
static void expect_rectangle(const char* way, const Words& memory, size_t pitch,
                             size_t width, size_t height, unsigned char byte,
                             const std::function<cudaError_t()>& write) {
  std::vector<unsigned char> expected(memory.bytes(), kPoisonByte);
  for (size_t y = 0; y < height; ++y)
    std::fill_n(expected.begin() + static_cast<ptrdiff_t>(y * pitch), width,
                byte);
  memory.poison();
  CALL(write());
  CALL(cudaDeviceSynchronize());
  std::vector<unsigned char> seen(memory.bytes(), 0);
  CALL(cudaMemcpy(seen.data(), memory.data, seen.size(), cudaMemcpyDefault));
  EXPECT_TRUE(seen == expected)
      << way << " of " << height << " rows of " << width << " bytes";
}

// Rectangles that a driver might treat in another way: of one row, of one byte
// in each row, and without a gap between the rows.
static void uses_plain_rectangles(const Words& opened) {
  const size_t pitch = pitch_for(1), bytes = 4 * pitch;
  const DeviceBuffer own(bytes);
  const Words part(opened.data, bytes);
  const Stream stream;
  unsigned char byte = 0x20;
  for (const auto& [width, height] :
       {std::pair{size_t{8}, size_t{1}}, std::pair{size_t{1}, size_t{3}},
        std::pair{pitch, size_t{3}}}) {
    const auto expect = [&, width = width, height = height](
                            const char* way, const Words& memory, auto write) {
      ++byte;
      expect_rectangle(way, memory, pitch, width, height, byte,
                       [&] { return write(width, height); });
    };
    expect("cudaMemset2D", part, [&](size_t x, size_t y) {
      return cudaMemset2D(part.data, pitch, byte, x, y);
    });
    expect("cudaMemset2DAsync", part, [&](size_t x, size_t y) {
      return cudaMemset2DAsync(part.data, pitch, byte, x, y, stream);
    });
    for (const bool into : {true, false}) {
      SCOPED_TRACE(into ? "into the opened memory" : "out of it");
      const Words to = into ? part : own, from = into ? own : part;
      const auto set_source = [&] {
        CALL(cudaMemset(from.data, byte, bytes));
        CALL(cudaDeviceSynchronize());
      };
      expect("cudaMemcpy2D", to, [&](size_t x, size_t y) {
        set_source();
        return cudaMemcpy2D(to.data, pitch, from.data, pitch, x, y,
                            cudaMemcpyDefault);
      });
      expect("cudaMemcpy2DAsync", to, [&](size_t x, size_t y) {
        set_source();
        return cudaMemcpy2DAsync(to.data, pitch, from.data, pitch, x, y,
                                 cudaMemcpyDefault, stream);
      });
    }
  }
}

// Copies boxes into and out of the opened memory, and sets boxes in it.
static void uses_boxes(const Words& opened) {
  const size_t narrow = pitch_for(1), wide = pitch_for(narrow + 1);
  ASSERT_LT(narrow, wide);
  const Place in_opened{wide, 6, 8, 2, 1}, in_own{narrow, 5, 3, 1, 2};
  ASSERT_LE(in_opened.bytes(), opened.bytes());
  const DeviceBuffer own(in_own.bytes());
  for (const bool into : {true, false}) {
    SCOPED_TRACE(into ? "into the opened memory" : "out of the opened memory");
    if (into)
      expect_boxes_are_copied(opened, in_opened, own, in_own);
    else
      expect_boxes_are_copied(own, in_own, opened, in_opened);
  }
  expect_boxes_are_set(opened, in_opened);
  uses_plain_rectangles(opened);
}

// Parts with odd offsets and sizes: the bytes beside these parts do not change.
TEST(LegacyMemory, PartsOfAnOpenedPointerAreReadAndWrittenExactly) {
  covers("LMEM-35");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    // The import usually does not begin its block.
    const DeviceBuffer before(512), buffer(kEveryWay);
    me.send("handle", buffer.legacy_handle());
    lend_in_every_way(me, buffer);
    me.wait("closed");
  });
  scenario.role("importer", [](Role& me) {
    LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"), kEveryWay);
    borrow_in_every_way(me, mapping);
    uses_boxes(mapping);
    mapping.close();
    me.signal("closed");
  });
  scenario.run(20s);
}

// An importer on another GPU that writes the opened memory by each function
// that copies or sets memory. The exporter checks each write.
static void writes_to_a_peer(Role& me, const Words& mapping) {
  const DeviceBuffer own(kBytes);
  std::vector<uint32_t> host(mapping.count);
  const Stream stream;
  constexpr size_t kRow = kBytes / 4;
  const auto expect_written = [&](const char* way, auto write) {
    const Pattern of_way = pattern(way);
    for (size_t i = 0; i < host.size(); ++i) host[i] = of_way.at(i);
    own.fill(pattern(way));
    me.send_bytes("way", way);
    me.wait("poisoned");
    CALL(write());
    CALL(cudaDeviceSynchronize());
    me.signal("written in this way");
  };
  expect_written("cudaMemcpy", [&] {
    return cudaMemcpy(mapping.data, host.data(), kBytes,
                      cudaMemcpyHostToDevice);
  });
  expect_written("cudaMemcpyAsync", [&] {
    return cudaMemcpyAsync(mapping.data, host.data(), kBytes,
                           cudaMemcpyHostToDevice, stream);
  });
  expect_written("cudaMemcpy from the device", [&] {
    return cudaMemcpy(mapping.data, own.data, kBytes, cudaMemcpyDefault);
  });
  expect_written("cudaMemcpyAsync from the device", [&] {
    return cudaMemcpyAsync(mapping.data, own.data, kBytes, cudaMemcpyDefault,
                           stream);
  });
  expect_written("cudaMemcpyPeer", [&] {
    return cudaMemcpyPeer(mapping.data, 0, own.data, 1, kBytes);
  });
  expect_written("cudaMemcpy2D", [&] {
    return cudaMemcpy2D(mapping.data, kRow, own.data, kRow, kRow, 4,
                        cudaMemcpyDefault);
  });
  expect_written("cudaMemcpy2DAsync", [&] {
    return cudaMemcpy2DAsync(mapping.data, kRow, own.data, kRow, kRow, 4,
                             cudaMemcpyDefault, stream);
  });
  cudaMemcpy3DParms box{};
  box.dstPtr = make_cudaPitchedPtr(mapping.data, kRow, kRow, 4);
  box.srcPtr = make_cudaPitchedPtr(own.data, kRow, kRow, 4);
  box.extent = make_cudaExtent(kRow, 4, 1);
  box.kind = cudaMemcpyDefault;
  expect_written("cudaMemcpy3D", [&] { return cudaMemcpy3D(&box); });
  expect_written("cudaMemcpy3DAsync",
                 [&] { return cudaMemcpy3DAsync(&box, stream); });
  cudaMemcpy3DPeerParms between{};
  between.dstPtr = box.dstPtr;
  between.srcPtr = box.srcPtr;
  between.extent = box.extent;
  between.dstDevice = 0;
  between.srcDevice = 1;
  expect_written("cudaMemcpy3DPeer",
                 [&] { return cudaMemcpy3DPeer(&between); });
  expect_written("cudaMemcpy3DPeerAsync",
                 [&] { return cudaMemcpy3DPeerAsync(&between, stream); });
  me.send_bytes("way", "");
}

// The exporter's side of this.
static void expect_written_by_a_peer(Role& me, const Words& memory) {
  for (;;) {
    const std::string way = me.receive_bytes("way");
    if (way.empty()) return;
    memory.poison();
    me.signal("poisoned");
    me.wait("written in this way");
    EXPECT_TRUE(kernel_reads(memory, pattern(way))) << way;
  }
}

// An importer on another GPU that sets the opened memory by each function, and
// reads it back.
static void sets_memory_of_a_peer(const Words& mapping) {
  const Stream stream;
  constexpr size_t kRow = 1024;
  const auto address = address_of(mapping.data);
  const auto expect_set = [&](const char* way, uint32_t value, auto set) {
    CALL(set());
    CALL(cudaDeviceSynchronize());
    std::vector<uint32_t> seen(mapping.count, 0);
    CALL(cudaMemcpy(seen.data(), mapping.data, kBytes, cudaMemcpyDefault));
    EXPECT_TRUE(seen == std::vector<uint32_t>(mapping.count, value)) << way;
  };
  expect_set("cudaMemsetAsync", 0x11111111, [&] {
    return cudaMemsetAsync(mapping.data, 0x11, kBytes, stream);
  });
  expect_set("cudaMemset2D", 0x22222222, [&] {
    return cudaMemset2D(mapping.data, kRow, 0x22, kRow, kBytes / kRow);
  });
  expect_set("cudaMemset2DAsync", 0x23232323, [&] {
    return cudaMemset2DAsync(mapping.data, kRow, 0x23, kRow, kBytes / kRow,
                             stream);
  });
  const auto box = make_cudaPitchedPtr(mapping.data, kRow, kRow, kBytes / kRow);
  const cudaExtent extent = make_cudaExtent(kRow, kBytes / kRow, 1);
  expect_set("cudaMemset3D", 0x24242424,
             [&] { return cudaMemset3D(box, 0x24, extent); });
  expect_set("cuMemsetD8", 0x25252525,
             [&] { return DRIVER(cuMemsetD8)(address, 0x25, kBytes); });
  expect_set("cuMemsetD16", 0x33443344,
             [&] { return DRIVER(cuMemsetD16)(address, 0x3344, kBytes / 2); });
  expect_set("cuMemsetD32", 0x33445566, [&] {
    return DRIVER(cuMemsetD32)(address, 0x33445566, mapping.count);
  });
}

TEST(LegacyMemory, ACopyBetweenGpusReachesAnOpenedPointer) {
  covers("LMEM-35");
  needs(gpus(2), legacy_memory, peer_access);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    me.send("handle", buffer.legacy_handle());
    me.wait("written");
    EXPECT_TRUE(kernel_reads(buffer, pattern("importer")));
    expect_written_by_a_peer(me, buffer);
    me.wait("closed");
  });
  scenario.role("importer", [](Role& me) {
    CALL(cudaSetDevice(1));
    LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"), kBytes);
    const DeviceBuffer own(kBytes);
    CALL(cudaMemcpyPeerAsync(own.data, 1, mapping.data, 0, kBytes, nullptr));
    CALL(cudaStreamSynchronize(nullptr));
    EXPECT_TRUE(kernel_reads(own, pattern("exporter")));
    own.poison();
    CALL(cudaMemcpy2D(own.data, kBytes / 4, mapping.data, kBytes / 4,
                      kBytes / 4, 4, cudaMemcpyDefault));
    CALL(cudaDeviceSynchronize());
    EXPECT_TRUE(kernel_reads(own, pattern("exporter"))) << "cudaMemcpy2D";
    CALL(cudaMemset(mapping.data, 0x3C, kBytes));
    CALL(cudaMemcpyPeer(own.data, 1, mapping.data, 0, kBytes));
    std::vector<unsigned char> seen(kBytes);
    CALL(cudaMemcpy(seen.data(), own.data, kBytes, cudaMemcpyDefault));
    EXPECT_EQ(seen, std::vector<unsigned char>(kBytes, 0x3C))
        << "a memset by the importer's GPU";
    sets_memory_of_a_peer(mapping);
    own.fill(pattern("importer"));
    CALL(cudaMemcpyPeerAsync(mapping.data, 0, own.data, 1, kBytes, nullptr));
    CALL(cudaStreamSynchronize(nullptr));
    me.signal("written");
    writes_to_a_peer(me, mapping);
    mapping.close();
    me.signal("closed");
  });
  scenario.run(20s);
}
