// Memory of cudaMalloc, lent to another process by a handle.
// Mirror of samples/01_legacy_memory.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;
constexpr int kReopens = 100;
constexpr unsigned kAdders = 2;           // importers; the exporter also adds
constexpr unsigned kAddsPerThread = 100;  // in each of 256 threads

std::string to_hexadecimal(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char c : bytes) {
    text += kDigits[c >> 4];
    text += kDigits[c & 15];
  }
  return text;
}

std::string from_hexadecimal(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

}  // namespace

// Each side uses one API and then the other API. The buffers of the two rounds
// may have the same address, so their values differ.
static void lent_by_both_apis(testing::AssertionResult (*reads)(const Words&,
                                                                Pattern)) {
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      const DeviceBuffer buffer(kBytes);
      buffer.fill(pattern(api.kName));
      me.send("handle", handle_of(api, buffer));
      me.wait("closed");
    });
  });
  scenario.role("importer", [=](Role& me) {
    by_both_apis([&](auto api) {
      const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
      MappingBy mapping(api, handle, kBytes);
      EXPECT_TRUE(reads(mapping, pattern(api.kName)));
      mapping.close();
      me.signal("closed");
    });
  });
  scenario.run(20s);
}

TEST(LegacyMemory, KernelOfTheImporterReadsWhatTheExporterWrote) {
  covers("LMEM-01");
  needs(gpus(1), legacy_memory);
  lent_by_both_apis(kernel_reads);
}

TEST(LegacyMemory, CopyOfTheImporterReadsWhatTheExporterWrote) {
  covers("LMEM-01");
  needs(gpus(1), legacy_memory);
  lent_by_both_apis(copy_reads);
}

TEST(LegacyMemory, EachSideSeesTheOthersLaterWrites) {
  covers("LMEM-02");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("A"));
    me.send("handle", buffer.legacy_handle());

    me.wait("B written");
    EXPECT_READS(buffer, pattern("B"));
    buffer.fill(pattern("C"));
    me.signal("C written");

    me.wait("C read");
    std::vector<uint32_t> values(buffer.count);
    const Pattern written = pattern("D");
    for (size_t i = 0; i < values.size(); ++i) values[i] = written.at(i);
    CALL(cudaMemcpy(buffer.data, values.data(), kBytes, cudaMemcpyDefault));
    CALL(cudaDeviceSynchronize());  // the copy may return before its end
    me.signal("D written");

    me.wait("D read");
    CALL(cudaMemset(buffer.data, 0x3C, kBytes));
    CALL(cudaDeviceSynchronize());
    me.signal("memset");
    me.wait("closed");
  });

  scenario.role("importer", [](Role& me) {
    LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"), kBytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("A")));
    mapping.fill(pattern("B"));
    me.signal("B written");

    me.wait("C written");
    EXPECT_READS(mapping, pattern("C"));
    me.signal("C read");
    // A copy sees the write even if no kernel has read the memory since then.
    me.wait("D written");
    EXPECT_TRUE(copy_reads(mapping, pattern("D")));
    me.signal("D read");
    me.wait("memset");
    std::vector<unsigned char> bytes(kBytes, 0);
    CALL(cudaMemcpy(bytes.data(), mapping.data, kBytes, cudaMemcpyDefault));
    EXPECT_EQ(bytes, std::vector<unsigned char>(kBytes, 0x3C));
    mapping.close();
    me.signal("closed");
  });

  scenario.run(20s);
}

// An exporter that sends one handle through a pipe, through a file, through
// shared memory and as text.
static void sends_the_handle_by_every_channel(Role& me) {
  const DeviceBuffer buffer(kBytes);
  buffer.fill(pattern("exporter"));
  const cudaIpcMemHandle_t handle = buffer.legacy_handle();
  const std::string bytes(reinterpret_cast<const char*>(&handle),
                          sizeof handle);

  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Descriptor reads(ends[0]), writes(ends[1]);
  ASSERT_EQ(write(writes.get(), bytes.data(), bytes.size()), 64);
  me.send_descriptor("pipe", reads.get());

  std::string path =
      std::filesystem::temp_directory_path() / "ipclab-handle-XXXXXX";
  const Descriptor file(mkstemp(path.data()));
  ASSERT_EQ(unlink(path.c_str()), 0);  // a killed role leaves no name
  ASSERT_EQ(write(file.get(), bytes.data(), bytes.size()), 64);
  me.send_bytes("file", "/proc/" + std::to_string(getpid()) + "/fd/" +
                            std::to_string(file.get()));

  const Descriptor memory(memfd_create("handle", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), 64), 0);
  void* shared =
      mmap(nullptr, 64, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  ASSERT_NE(shared, MAP_FAILED);
  std::memcpy(shared, &handle, sizeof handle);
  munmap(shared, 64);
  me.send_descriptor("shared memory", memory.get());

  me.send_bytes("text", to_hexadecimal(bytes));

  me.wait("closed");
}

#if CUDART_VERSION >= 13000
// Queues two copies as one batch: the first half of the memory, and the second.
static cudaError_t queue_batch(const Words& to, const Words& from,
                               cudaStream_t stream) {
  void* targets[] = {to.data, to.data + to.count / 2};
  const void* sources[] = {from.data, from.data + from.count / 2};
  const size_t sizes[] = {to.bytes() / 2, to.bytes() / 2};
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first = 0;
  return cudaMemcpyBatchAsync(targets, sources, sizes, 2, &attributes, &first,
                              1, stream);
}
#endif

TEST(LegacyMemory, ABatchCopiesFromAndToOpenedMemory) {
  covers("LMEM-50");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    me.send("handle", buffer.legacy_handle());
    me.wait("closed");
#if CUDART_VERSION >= 13000
    EXPECT_READS(buffer, pattern("importer"));
#endif
  });
  scenario.role("importer", [](Role& me) {
    LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"), kBytes);
#if CUDART_VERSION >= 13000
    const DeviceBuffer source(kBytes), result(kBytes);
    result.poison();
    const Stream stream;
    Latch latch;
    latch.hold(stream);
    EXPECT_SUCCESS(queue_batch(result, mapping, stream));
    source.queue_fill(pattern("importer"), stream);
    EXPECT_SUCCESS(queue_batch(mapping, source, stream));
    latch.release();
    EXPECT_TRUE(passes(stream));
    EXPECT_READS(result, pattern("exporter"));
    EXPECT_READS(mapping, pattern("importer"));
#else
    me.not_applicable(not_in_this_build("cudaMemcpyBatchAsync", "13.0"));
#endif
    mapping.close();
    me.signal("closed");
  });
  scenario.run(20s);
}

TEST(LegacyMemory, AnyChannelCarriesTheHandle) {
  covers("LMEM-04");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", sends_the_handle_by_every_channel);

  scenario.role("importer", [](Role& me) {
    const auto opens = [](const char* channel, auto receive) {
      SCOPED_TRACE(channel);
      cudaIpcMemHandle_t handle;
      std::memset(&handle, 0xEE, sizeof handle);
      receive(&handle);
      LegacyMapping mapping(handle, kBytes);
      EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
      mapping.close();
    };
    opens("pipe", [&](cudaIpcMemHandle_t* handle) {
      const Descriptor pipe = me.receive_descriptor("pipe");
      ASSERT_EQ(read(pipe.get(), handle, sizeof *handle), 64);
    });
    opens("file", [&](cudaIpcMemHandle_t* handle) {
      std::ifstream file(me.receive_bytes("file"));
      file.read(reinterpret_cast<char*>(handle), sizeof *handle);
      ASSERT_TRUE(file);
    });
    opens("shared memory", [&](cudaIpcMemHandle_t* handle) {
      const Descriptor memory = me.receive_descriptor("shared memory");
      const void* shared =
          mmap(nullptr, 64, PROT_READ, MAP_SHARED, memory.get(), 0);
      ASSERT_NE(shared, MAP_FAILED);
      std::memcpy(handle, shared, sizeof *handle);
      munmap(const_cast<void*>(shared), 64);
    });
    opens("text", [&](cudaIpcMemHandle_t* handle) {
      const std::string bytes = from_hexadecimal(me.receive_bytes("text"));
      ASSERT_EQ(bytes.size(), sizeof *handle);
      std::memcpy(handle, bytes.data(), sizeof *handle);
    });
    me.signal("closed");
  });

  scenario.run(30s);
}

TEST(LegacyMemory, AClosedHandleOpensAfresh) {
  covers("LMEM-14");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      const DeviceBuffer buffer(kBytes);
      buffer.fill(pattern(api.kName));
      me.send("handle", handle_of(api, buffer));
      me.wait("open again");
      buffer.fill(pattern("exporter, later"));
      me.signal("written");
      me.wait("closed");
      EXPECT_TRUE(kernel_reads(buffer, pattern("importer")));
    });
  });

  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) {
      const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
      for (int round = 0; round < kReopens; ++round) {
        SCOPED_TRACE("round " + std::to_string(round));
        MappingBy mapping(api, handle, kBytes);
        ASSERT_TRUE(kernel_reads(mapping, pattern(api.kName)));
        const void* const closed = mapping.data;
        mapping.close();
        // The open had set the count to one again, so one close unmaps.
        cudaPointerAttributes attributes{};
        CALL(cudaPointerGetAttributes(&attributes, closed));
        ASSERT_EQ(attributes.type, cudaMemoryTypeUnregistered);
      }
      // Each API also opens what the other API has closed.
      for_each_api([&](auto other) {
        MappingBy mapping(other, handle, kBytes);
        EXPECT_TRUE(kernel_reads(mapping, pattern(api.kName)));
        mapping.close();
      });
      MappingBy mapping(api, handle, kBytes);
      me.signal("open again");
      me.wait("written");
      EXPECT_TRUE(kernel_reads(mapping, pattern("exporter, later")));
      mapping.fill(pattern("importer"));
      mapping.close();
      me.signal("closed");
    });
  });

  scenario.run(60s);
}

// Both processes write: the importer before it closes, and the exporter while
// the memory is closed.
TEST(LegacyMemory, AnOpenShowsWhatWasWrittenSinceTheClose) {
  covers("LMEM-14");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      const DeviceBuffer buffer(kBytes);
      buffer.fill(pattern("exporter"));
      me.send("handle", handle_of(api, buffer));
      me.wait("closed");
      EXPECT_TRUE(kernel_reads(buffer, pattern("importer")));
      buffer.fill(pattern("written while closed"));
      me.signal("written");
      me.wait("closed again");
      EXPECT_TRUE(kernel_reads(buffer, pattern("written while closed")));
    });
  });

  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) {
      const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
      MappingBy mapping(api, handle, kBytes);
      EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
      mapping.fill(pattern("importer"));
      mapping.close();
      me.signal("closed");
      me.wait("written");
      MappingBy again(api, handle, kBytes);
      EXPECT_READS(again, pattern("written while closed"));
      again.close();
      me.signal("closed again");
    });
  });

  scenario.run(20s);
}

TEST(LegacyMemory, LazyFlagIsAcceptedOnTheSameDevice) {
  covers("LMEM-19");
  static_assert(cudaIpcMemLazyEnablePeerAccess == 1);
  static_assert(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS == 1);
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
    void* opened = nullptr;
    EXPECT_SUCCESS(
        cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
    ASSERT_NE(opened, nullptr);
    int device = -1;
    CALL(cudaGetDevice(&device));
    cudaPointerAttributes attributes;
    CALL(cudaPointerGetAttributes(&attributes, opened));
    EXPECT_EQ(attributes.device, device);
    EXPECT_TRUE(kernel_reads(Words(opened, kBytes), pattern("exporter")));
    CALL(cudaIpcCloseMemHandle(opened));
    me.signal("closed");
  });
  scenario.run(20s);
}

TEST(LegacyMemory, AtomicsOfTwoProcessesAddUp) {
  covers("LMEM-35");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    CALL(cudaMemset(buffer.data, 0, kBytes));
    CALL(cudaDeviceSynchronize());
    me.send("handle", buffer.legacy_handle());
    me.wait("opened", kAdders);
    me.signal("add");
    launch_add(buffer.data, kAddsPerThread);
    CALL(cudaDeviceSynchronize());
    me.wait("closed", kAdders);
    unsigned sum = 0;
    CALL(cudaMemcpy(&sum, buffer.data, sizeof sum, cudaMemcpyDeviceToHost));
    const unsigned wanted = (1 + kAdders) * 256 * kAddsPerThread;
    expected_but_saw(std::to_string(wanted), std::to_string(sum));
    EXPECT_EQ(sum, wanted);
  });

  scenario.roles("importer", kAdders, [](Role& me) {
    LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"), kBytes);
    me.signal("opened");
    me.wait("add");
    launch_add(mapping.data, kAddsPerThread);
    CALL(cudaDeviceSynchronize());
    mapping.close();
    me.signal("closed");
  });

  scenario.run(20s);
}

TEST(LegacyMemory, ARawPointerSaysNothingElsewhere) {
  covers("LMEM-41");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    me.send("address", buffer.data);
    me.wait("asked");
  });
  scenario.role("importer", [](Role& me) {
    void* address = me.receive<uint32_t*>("address");
    CALL(cudaFree(nullptr));
    cudaPointerAttributes attributes{};
    const cudaError_t code =
        NOTED(cudaPointerGetAttributes(&attributes, address));
    // The address is only queried, never read or written.
    me.observe("the exporter's address in the importer: " + name_of(code) +
               ", memory type " + std::to_string(attributes.type) +
               " (0 is unregistered)");
    me.signal("asked");
  });
  scenario.run(20s);
}

// Opens and closes a handle by each API while a stream of this process is held.
// Whether the open waits for this stream is not documented.
static void opens_beside_own_work(Role& me, const cudaIpcMemHandle_t& handle) {
  const DeviceBuffer own(kBytes);
  own.fill(pattern("own"));
  by_both_apis([&](auto api) {
    const Stream stream;
    Latch latch;
    latch.hold(stream);
    own.queue_fill(pattern("own later"), stream);
    Sentinel<void*> pointer;
    HostWait opened("an open while a stream of the importer has work", [&] {
      const cudaError_t code = cudaSetDevice(0);  // the thread's context
      return code != cudaSuccess
                 ? code
                 : static_cast<cudaError_t>(
                       api.ipc_open_mem_handle(pointer.out(), handle));
    });
    me.observe(std::string("an open beside the importer's work, by the ") +
               api.kName + (opened.is_held() ? ", waits" : ", does not wait"));
    latch.release();
    EXPECT_SUCCESS(opened.join());
    EXPECT_TRUE(passes(stream));
    const Words mapping(pointer.result(), kBytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("after")));
    EXPECT_SUCCESS(api.ipc_close_mem_handle(mapping.data));
  });
}

TEST(LegacyMemory, ExportAndOpenWaitForNoWork) {
  covers("LMEM-43");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("before"));
    const Stream stream;
    Latch latch;
    latch.hold(stream);
    buffer.queue_fill(pattern("after"), stream);
    Sentinel<cudaIpcMemHandle_t> handle;
    HostWait exported("an export of memory that is in use", [&] {
      const cudaError_t code = cudaSetDevice(0);  // the thread's context
      return code != cudaSuccess
                 ? code
                 : cudaIpcGetMemHandle(handle.out(), buffer.data);
    });
    const bool waits = exported.is_held();
    me.observe(waits ? "the export waits" : "the export does not wait");
    if (waits) latch.release();
    EXPECT_SUCCESS(exported.join());
    me.send("handle", handle.result());
    me.wait("tried");
    latch.release();
    EXPECT_TRUE(passes(stream));
    me.signal("written");
    me.wait("closed");
  });

  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
    Sentinel<void*> pointer;
    HostWait opened("an open of memory that is in use", [&] {
      const cudaError_t code = cudaSetDevice(0);  // the thread's context
      return code != cudaSuccess
                 ? code
                 : cudaIpcOpenMemHandle(pointer.out(), handle,
                                        cudaIpcMemLazyEnablePeerAccess);
    });
    me.observe(opened.is_held() ? "the open waits" : "the open does not wait");
    me.signal("tried");
    me.wait("written");
    EXPECT_SUCCESS(opened.join());
    EXPECT_SUCCESS(cudaIpcCloseMemHandle(pointer.result()));
    opens_beside_own_work(me, handle);
    LegacyMapping mapping(handle, kBytes);
    MappingBy by_driver(DriverApi{}, handle, kBytes);
    for (const Words& one : {Words(mapping), Words(by_driver)}) {
      EXPECT_READS(one, pattern("after"));
    }
    by_driver.close();
    mapping.close();
    me.signal("closed");
  });

  scenario.run(20s);
}
