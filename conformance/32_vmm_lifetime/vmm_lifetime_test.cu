// Memory of cuMemCreate lives as long as any process has a handle, a mapping or
// a descriptor of it, even if other processes have died. Mirror of
// samples/32_vmm_lifetime.
//
// IPCLAB_ROUNDS is how often ManyRoundsLeaveNothingBehind shares a chunk: the
// default is 200; use 10000 for a thorough test.
//
// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <string>
#include <vector>

#include "harness/scenario/cuda.h"
#include "harness/scenario/kernels.h"
#include "harness/scenario/vmm.h"
#include "samples/common/channel.h"

using namespace ipclab;

namespace {

constexpr size_t kWatched = size_t{2} << 30;  // far above other changes
constexpr int kImports = 3;
constexpr int kManyRetains = 300;  // more than a counter of 8 bits can count
constexpr auto kPatience = 10s;

// Another process. has_ended() waits for its end, for kPatience at most.
class Process {
 public:
  explicit Process(pid_t pid)
      : handle_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}

  bool has_ended() const {
    pollfd end{handle_.get(), POLLIN, 0};
    const auto patience =
        std::chrono::duration_cast<std::chrono::milliseconds>(kPatience);
    return poll(&end, 1, static_cast<int>(patience.count())) == 1;
  }

 private:
  Descriptor handle_;
};

// A third process that takes all free memory after each of `deaths` deaths.
std::function<void(Role&)> takes_what_the_dead_leave(size_t deaths) {
  return [deaths](Role& me) {
    CALL(cudaFree(nullptr));
    for (size_t i = 0; i < deaths; ++i) {
      me.wait("dead");
      take_all_free_memory();
      me.signal("overwritten");
    }
  };
}

testing::AssertionResult still_held(size_t free_before) {
  const size_t now = free_memory();
  if (now < free_before + kWatched / 2) return testing::AssertionSuccess();
  expected_but_saw(std::to_string(free_before) + " bytes free",
                   std::to_string(now));
  return testing::AssertionFailure()
         << "device memory came back although it is still held";
}

// A chunk of kWatched bytes. Its first granule is filled and checked.
struct Large {
  Chunk chunk;
  Mapping mapping;

  Large() : chunk(Chunk::create(kWatched)), mapping(chunk, kWatched) {
    seen().fill(pattern("exporter"));
  }
  Words seen() const { return Words(mapping.data, granule()); }
};

// Sends a descriptor in a message that nobody receives yet. The descriptor
// waits in the returned socket.
Descriptor put_into_a_socket(const Descriptor& descriptor) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const Descriptor sends(ends[0]);
  EXPECT_EQ(send_packet(sends.get(), "!", 1, descriptor.get()), 1);
  return Descriptor(ends[1]);
}

Descriptor take_out_of(const Descriptor& socket) {
  char byte = 0;
  int descriptor = -1;
  EXPECT_EQ(receive_packet(socket.get(), &byte, 1, &descriptor, MSG_DONTWAIT),
            1);
  return Descriptor(descriptor);
}

// An exporter that gives up all its references as soon as `send` has sent the
// memory.
std::function<void(Role&)> gives_up_after(
    std::function<void(Role&, const Descriptor&)> send) {
  return [send = std::move(send)](Role& me) {
    const size_t bytes = granule();
    Chunk chunk = Chunk::create(bytes);
    Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    send(me, chunk.descriptor());
    mapping.unmap();
    chunk.release();
    take_all_free_memory();
    me.signal("given up");
    me.wait("done");
  };
}

void expect_exporters_bytes(const Descriptor& descriptor) {
  const Mapping mapping(Chunk::import(descriptor), granule());
  EXPECT_READS(mapping, pattern("exporter"));
}

int rounds() {
  const char* wanted = std::getenv("IPCLAB_ROUNDS");
  return wanted == nullptr ? 200 : std::atoi(wanted);
}

}  // namespace

// --- references -------------------------------------------------------------

// More imports than the GPU could hold if each of them was memory of its own.
static void import_very_often(const Descriptor& descriptor) {
  size_t free = 0, total = 0;
  CALL(cudaMemGetInfo(&free, &total));
  std::deque<Chunk> many;
  while (many.size() <= total / kWatched) {
    Sentinel<CUmemGenericAllocationHandle> handle;
    EXPECT_SUCCESS(DRIVER(cuMemImportFromShareableHandle)(
        handle.out(), by_value(descriptor.get()),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    if (!handle.touched()) return;
    many.emplace_back(handle.result());
  }
}

TEST(VmmLifetime, EveryImportHasItsOwnRelease) {
  covers("VMM-15");
  needs(gpus(1), vmm_fd, alone);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    Large large;
    me.send_descriptor("descriptor", large.chunk.descriptor().get());
    me.wait("imported");
    large.mapping.unmap();
    large.chunk.release();
    me.signal("given up");
    me.wait("done");
  });

  scenario.role("importer", [](Role& me) {
    std::deque<Chunk> imports;
    {
      const Descriptor descriptor = me.receive_descriptor("descriptor");
      for (int i = 0; i < kImports; ++i)
        imports.push_back(Chunk::import(descriptor));
      import_very_often(descriptor);
    }
    const size_t free = free_memory();
    me.signal("imported");
    me.wait("given up");
    EXPECT_TRUE(still_held(free)) << "after the release of other imports";
    while (imports.size() > 1) {
      SCOPED_TRACE(std::to_string(imports.size()) + " imports left");
      EXPECT_SUCCESS(DRIVER(cuMemRelease)(imports.front().forget()));
      imports.pop_front();
      EXPECT_TRUE(still_held(free));
    }
    {
      const Mapping mapping(imports.front(), kWatched);
      EXPECT_TRUE(
          kernel_reads(Words(mapping.data, granule()), pattern("exporter")));
    }
    EXPECT_TRUE(still_held(free));
    imports.front().release();
    imports.pop_front();
    EXPECT_TRUE(returned(free, kWatched));
    me.signal("done");
  });
  scenario.run(60s);
}

// A mapping gives its handle back, and the handle is released again.
static void retain_and_release(const Mapping& mapping) {
  Sentinel<CUmemGenericAllocationHandle> retained;
  EXPECT_SUCCESS(
      DRIVER(cuMemRetainAllocationHandle)(retained.out(), mapping.data));
  EXPECT_SUCCESS(DRIVER(cuMemRelease)(retained.result()));
}

TEST(VmmLifetime, AMappingOutlivesItsHandle) {
  covers("VMM-27");
  needs(gpus(1), vmm_fd, alone);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    me.send_descriptor("descriptor", chunk.descriptor().get());
    mapping.fill(pattern("exporter"));
    EXPECT_SUCCESS(DRIVER(cuMemRelease)(chunk.forget()));
    retain_and_release(mapping);
    me.wait("released by the importer");
    take_all_free_memory();
    EXPECT_READS(mapping, pattern("exporter"));
    me.signal("overwritten");
    me.wait("written by the importer");
    EXPECT_READS(mapping, pattern("importer"));
  });

  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    Mapping other(chunk, bytes);
    const Mapping mapping(chunk, bytes);
    EXPECT_SUCCESS(DRIVER(cuMemRelease)(chunk.forget()));
    retain_and_release(mapping);
    other.unmap();  // not the last mapping
    me.signal("released by the importer");
    me.wait("overwritten");
    EXPECT_READS(mapping, pattern("exporter"));
    mapping.fill(pattern("importer"));
    me.signal("written by the importer");
  });
  scenario.run(30s);
}

// A memset in another context than the one in which memory was mapped.
static void expect_set_arrives(const Mapping& mapping) {
  constexpr uint32_t kSet = 0x3C3C3C3C;
  uint32_t seen = 0;
  CALL(cudaMemset(mapping.data, 0x3C, mapping.bytes()));
  CALL(cudaMemcpy(&seen, mapping.data + mapping.count - 1, sizeof seen,
                  cudaMemcpyDeviceToHost));
  EXPECT_EQ(seen, kSet) << "set in another context";
  mapping.fill(pattern("exporter"));
}

// A context that is newer than the access to the memory can also use it.
static void expect_reads_in_newer_context(const Mapping& mapping) {
  CUcontext newer = nullptr;
  CALL(create_context(&newer, 0));  // now it is current
  EXPECT_TRUE(copy_reads(mapping, pattern("exporter"))) << "in a newer context";
  EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")))
      << "in a newer context";
  CALL(DRIVER(cuCtxDestroy)(newer));
  CALL(cudaSetDevice(0));
}

// Addresses that were reserved in a context that has ended are still reserved.
static void expect_addresses_stay(const Reservation& range,
                                  const Chunk& chunk) {
  const CUmemAccessDesc access = access_for(0);
  range.map(0, range.bytes(), chunk);
  EXPECT_SUCCESS(
      DRIVER(cuMemSetAccess)(range.at(0), range.bytes(), &access, 1));
  EXPECT_TRUE(
      kernel_reads(words_at(range.at(0), range.bytes()), pattern("exporter")));
  range.unmap(0, range.bytes());
}

// The documentation of cuCtxDestroy: it "will not destroy memory allocations by
// cuMemCreate() […] These memory allocations are not associated with any CUDA
// context".
TEST(VmmLifetime, AnImportBelongsToNoContext) {
  covers("VMM-27");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const Chunk chunk = Chunk::create(granule());
    const Mapping mapping(chunk, granule());
    mapping.fill(pattern("exporter"));
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("done");
    EXPECT_TRUE(kernel_reads(mapping, pattern("importer")));
  });
  scenario.role("importer", [](Role& me) {
    const Descriptor descriptor = me.receive_descriptor("descriptor");
    CALL(cudaSetDevice(0));  // makes the primary context
    CUcontext other = nullptr;
    CALL(create_context(&other, 0));
    const Chunk chunk = Chunk::import(descriptor);
    const Mapping mapping(chunk, granule());
    const Reservation reserved(granule());
    EXPECT_TRUE(copy_reads(mapping, pattern("exporter")));
    CALL(cudaSetDevice(0));
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")))
        << "in another context";
    EXPECT_TRUE(copy_reads(mapping, pattern("exporter")))
        << "in another context";
    expect_set_arrives(mapping);
    expect_reads_in_newer_context(mapping);
    CALL(DRIVER(cuCtxDestroy)(other));
    EXPECT_EQ(access_at(mapping.address()), 3u) << "its context has ended";
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")))
        << "its context has ended";
    EXPECT_TRUE(kernel_reads(Mapping(chunk, granule()), pattern("exporter")));
    expect_addresses_stay(reserved, chunk);
    mapping.fill(pattern("importer"));
    me.signal("done");
  });
  scenario.run(20s);
}

TEST(VmmLifetime, TheImportersMappingOutlivesTheExportersUse) {
  covers("VMM-28");
  needs(gpus(1), vmm_fd, alone);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    Chunk chunk = Chunk::create(bytes);
    Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("mapped");
    mapping.unmap();
    chunk.release();
    take_all_free_memory();
    me.signal("given up");
    me.wait("done");
  });

  scenario.role("importer", [](Role& me) {
    const Mapping mapping(Chunk::import(me.receive_descriptor("descriptor")),
                          granule());
    me.signal("mapped");
    me.wait("given up");
    EXPECT_EQ(access_at(mapping.address()), 3u) << "the exporter gave up";
    EXPECT_READS(mapping, pattern("exporter"));
    mapping.fill(pattern("importer"));
    EXPECT_TRUE(kernel_reads(mapping, pattern("importer")));
    me.signal("done");
  });
  scenario.run(30s);
}

TEST(VmmLifetime, ADescriptorOfAnyProcessKeepsTheMemory) {
  covers("VMM-29");
  needs(gpus(1), vmm_fd, alone);
  Scenario scenario(Scenario::kShared);
  // The referee, which does not use CUDA, holds the descriptor.
  scenario.role("exporter",
                gives_up_after([](Role& me, const Descriptor& descriptor) {
                  me.send_descriptor("descriptor", descriptor.get());
                }));
  scenario.role("importer", [](Role& me) {
    me.wait("given up");
    const Descriptor descriptor = me.receive_descriptor("descriptor");
    expect_exporters_bytes(descriptor);
    take_all_free_memory();
    SCOPED_TRACE("the second import");
    expect_exporters_bytes(descriptor);
    me.signal("done");
  });
  scenario.run(30s);
}

TEST(VmmLifetime, ADescriptorInFlightKeepsTheMemory) {
  covers("VMM-29");
  needs(gpus(1), vmm_fd, alone);
  Scenario scenario(Scenario::kShared);
  scenario.role(
      "exporter", gives_up_after([](Role& me, const Descriptor& descriptor) {
        me.send_descriptor("socket", put_into_a_socket(descriptor).get());
      }));
  scenario.role("importer", [](Role& me) {
    const Descriptor socket = me.receive_descriptor("socket");
    me.wait("given up");
    expect_exporters_bytes(take_out_of(socket));
    me.signal("done");
  });
  scenario.run(30s);
}

// Each step names the reference that has just been given up.
static constexpr const char* kHeld[] = {
    "the exporter's mapping",    "the exporter's handle",
    "the exporter's descriptor", "the importer's descriptor",
    "the importer's handle",     "the importer's mapping"};
static constexpr char kLast[] = "the importer's retained handle";

// Takes many references to the memory of a mapping, and releases all but one.
// Returns this one.
static Chunk retain_many_times(const Words& mapped) {
  CUmemGenericAllocationHandle kept = 0;
  for (int i = 0; i < kManyRetains; ++i) {
    Sentinel<CUmemGenericAllocationHandle> retained;
    CALL(DRIVER(cuMemRetainAllocationHandle)(retained.out(), mapped.data));
    kept = retained.result();
  }
  for (int i = 1; i < kManyRetains; ++i) CALL(DRIVER(cuMemRelease)(kept));
  return Chunk(kept);
}

// Unmaps memory that can only be read, where the driver supports such access.
static void unmap_read_only(const Reservation& range) {
  const CUmemAccessDesc access = access_for(0, CU_MEM_ACCESS_FLAGS_PROT_READ);
  const CUresult code =
      NOTED(DRIVER(cuMemSetAccess)(range.at(0), range.bytes(), &access, 1));
  if (code != CUDA_ERROR_NOT_SUPPORTED) CALL(code);
  range.unmap(0, range.bytes());
}

// An exporter that queries the free memory after each step, also after each
// step of the importer.
static void watches_free_memory(Role& me) {
  Large large;
  Descriptor descriptor = large.chunk.descriptor();
  EXPECT_TRUE(large.chunk.descriptor()) << "a second one, closed at once";
  Sentinel<CUmemFabricHandle> none;
  EXPECT_NE(
      NOTED(DRIVER(cuMemExportToShareableHandle)(
          none.out(), large.chunk.handle(), CU_MEM_HANDLE_TYPE_FABRIC, 0)),
      CUDA_SUCCESS)
      << "a type for which the memory was not made";
  me.send_descriptor("descriptor", descriptor.get());
  me.wait("received");
  const size_t free = free_memory();
  large.mapping.unmap();
  EXPECT_TRUE(still_held(free)) << "without " << kHeld[0];
  large.chunk.release();
  EXPECT_TRUE(still_held(free)) << "without " << kHeld[1];
  descriptor.close();
  EXPECT_TRUE(still_held(free)) << "without " << kHeld[2];
  me.signal("given up");
  for (const char* step : {kHeld[3], kHeld[4], kHeld[5]}) {
    me.wait(step);
    EXPECT_TRUE(still_held(free)) << "without " << step;
    me.signal(std::string("seen: ") + step);
  }
  me.wait(kLast);
  EXPECT_TRUE(returned(free, kWatched));
  me.signal(std::string("seen: ") + kLast);
}

TEST(VmmLifetime, MemoryReturnsWithItsLastReference) {
  covers("VMM-30");
  needs(gpus(1), vmm_fd, alone);
  Scenario scenario;
  const auto say = [](Role& me, const std::string& step) {
    me.signal(step);
    me.wait("seen: " + step);
  };

  scenario.role("exporter", watches_free_memory);

  scenario.role("importer", [say](Role& me) {
    CALL(cudaFree(nullptr));
    Descriptor descriptor = me.receive_descriptor("descriptor");
    me.signal("received");
    me.wait("given up");
    Chunk chunk = Chunk::import(descriptor);
    Sentinel<CUmemGenericAllocationHandle> none;
    if (NOTED(DRIVER(cuMemImportFromShareableHandle)(
            none.out(), by_value(descriptor.get()),
            CU_MEM_HANDLE_TYPE_WIN32)) == CUDA_SUCCESS)
      Chunk(none.result()).release();  // no sentence promises a refusal
    descriptor.close();
    say(me, kHeld[3]);
    const Reservation range(kWatched);  // stays: addresses hold no memory
    const Chunk before = Chunk::create(granule());
    range.map(0, granule(), before);
    range.unmap(0, granule());
    range.map(0, kWatched, chunk);
    EXPECT_NE(
        NOTED(DRIVER(cuMemMap)(range.at(0), kWatched, 0, chunk.handle(), 0)),
        CUDA_SUCCESS)
        << "mapped already";
    const CUmemAccessDesc access = access_for(0);
    CALL(DRIVER(cuMemSetAccess)(range.at(0), kWatched, &access, 1));
    Mapping(chunk, kWatched).unmap();  // a second mapping, unmapped at once
    const Words words = words_at(range.at(0), granule());
    Chunk retained = retain_many_times(words);
    chunk.release();
    say(me, kHeld[4]);
    EXPECT_TRUE(kernel_reads(words, pattern("exporter")));
    unmap_read_only(range);
    say(me, kHeld[5]);
    retained.release();
    say(me, kLast);
  });
  scenario.run(60s);
}

// Neither this process nor another one maps the memory.
TEST(VmmLifetime, MemoryThatWasNeverMappedReturns) {
  covers("VMM-30");
  needs(gpus(1), vmm_fd, alone);
  Scenario scenario;
  scenario.role("exporter", [](Role&) {
    for (const bool is_exported : {false, true}) {
      SCOPED_TRACE(is_exported ? "exported" : "not exported");
      Chunk chunk = Chunk::create(kWatched);
      Descriptor descriptor;
      if (is_exported) descriptor = chunk.descriptor();
      const size_t free = free_memory();
      chunk.release();
      if (is_exported) {
        EXPECT_TRUE(still_held(free)) << "the descriptor is open";
        descriptor.close();
      }
      EXPECT_TRUE(returned(free, kWatched));
    }
  });
  scenario.run(30s);
}

// Both processes map the memory, but neither sets access.
TEST(VmmLifetime, MemoryThatGotNoAccessReturns) {
  covers("VMM-30");
  needs(gpus(1), vmm_fd, alone);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    Chunk chunk = Chunk::create(kWatched);
    const Reservation range(kWatched);
    range.map(0, kWatched, chunk);
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("mapped");
    range.unmap(0, kWatched);
    chunk.release();
    me.signal("given up");
    me.wait("done");
  });
  scenario.role("importer", [](Role& me) {
    Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    const Reservation range(kWatched);
    range.map(0, kWatched, chunk);
    me.signal("mapped");
    me.wait("given up");
    const size_t free = free_memory();
    range.unmap(0, kWatched);
    EXPECT_TRUE(still_held(free)) << "without " << kHeld[5];
    chunk.release();
    EXPECT_TRUE(returned(free, kWatched));
    me.signal("done");
  });
  scenario.run(60s);
}

TEST(VmmLifetime, AccessOfASecondGpuKeepsNoMemory) {
  covers("VMM-30");
  needs(gpus(2), vmm_fd, peer_access, alone);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    Large large;
    me.send_descriptor("descriptor", large.chunk.descriptor().get());
    me.wait("mapped");
    large.mapping.unmap();
    large.chunk.release();
    me.signal("given up");
    me.wait("done");
  });
  scenario.role("importer", [](Role& me) {
    Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    Mapping mapping(chunk, kWatched);
    const CUmemAccessDesc access = access_for(1);
    EXPECT_SUCCESS(
        DRIVER(cuMemSetAccess)(mapping.address(), kWatched, &access, 1));
    const Words words(mapping.data, granule());
    CALL(cudaSetDevice(1));
    EXPECT_TRUE(kernel_reads(words, pattern("exporter")));
    CALL(cudaSetDevice(0));
    me.signal("mapped");
    me.wait("given up");
    const size_t free = free_memory();
    mapping.unmap();
    chunk.release();
    EXPECT_TRUE(returned(free, kWatched));
    me.signal("done");
  });
  scenario.run(60s);
}

TEST(VmmLifetime, ManyRoundsLeaveNothingBehind) {
  covers("VMM-30");
  needs(gpus(1), vmm_fd, alone);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    leaves_nothing(rounds(), [&](int round) {
      const Chunk chunk = Chunk::create(bytes);
      const Mapping mapping(chunk, bytes);
      CALL(cudaMemcpy(mapping.data, &round, sizeof round, cudaMemcpyDefault));
      CALL(cudaDeviceSynchronize());  // a small copy may return early
      me.send_descriptor("descriptor", chunk.descriptor().get());
      me.wait("done");
    });
  });

  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    leaves_nothing(rounds(), [&](int round) {
      const Descriptor descriptor = me.receive_descriptor("descriptor");
      {
        const Mapping mapping(Chunk::import(descriptor), bytes);
        int seen = -1;
        CALL(cudaMemcpy(&seen, mapping.data, sizeof seen, cudaMemcpyDefault));
        EXPECT_EQ(seen, round);
      }
      me.signal("done");
    });
  });
  scenario.run(60s + rounds() * 20ms);
}

// The value of a handle has no meaning in another process.
TEST(VmmLifetime, AHandleValueMeansNothingElsewhere) {
  covers("VMM-38");
  needs(gpus(1), vmm_fd);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    me.send("value", chunk.handle());
    me.wait("tried to use it");
    EXPECT_READS(mapping, pattern("exporter"));
    EXPECT_TRUE(context_is_usable());
  });
  scenario
      .role("importer",
            [](Role& me) {
              const auto value =
                  me.receive<CUmemGenericAllocationHandle>("value");
              const size_t bytes = granule();
              const Reservation range(bytes);
              me.signal("tried to use it");  // comes first, because the call
                                             // below may not return
              const CUresult code =
                  NOTED(DRIVER(cuMemMap)(range.at(0), bytes, 0, value, 0));
              me.observe("cuMemMap of another process's handle value: " +
                         name_of(code));
              if (code == CUDA_SUCCESS) range.unmap(0, bytes);
            })
      .may_end_by(SIGSEGV)
      .may_end_by(SIGABRT);
  scenario.run(20s);
  const Ended& importer = scenario.ended("importer");
  if (!importer.reached_end)
    observe("cuMemMap of another process's handle value: the process dies, " +
            outcome_of(importer).code);
}

// --- death ------------------------------------------------------------------

// The moments at which the exporters die.
static const std::vector<std::string> kDeaths = {"imported", "mapped",
                                                 "kernel queued"};

static void lends_until_it_dies(Role& me, const std::string& death) {
  const size_t bytes = granule();
  const Chunk chunk = Chunk::create(bytes);
  const Mapping mapping(chunk, bytes);
  mapping.fill(pattern("exporter"));
  me.send("pid: " + death, getpid());
  me.send_descriptor("descriptor: " + death, chunk.descriptor().get());
  me.wait(death);
  me.die(SIGKILL);
}

// The importer of the exporter that dies at `death`.
static void outlives_an_exporter(Role& me, const std::string& death) {
  SCOPED_TRACE("the exporter dies at: " + death);
  const size_t bytes = granule();
  const Process exporter(me.receive<pid_t>("pid: " + death));
  const auto at = [&](const char* step) {
    if (step != death) return;
    me.signal(step);
    ASSERT_TRUE(exporter.has_ended());
    me.signal("dead");
    me.wait("overwritten");
  };
  const DeviceBuffer own(bytes);
  const Chunk chunk =
      Chunk::import(me.receive_descriptor("descriptor: " + death));
  at("imported");
  const Mapping mapping(chunk, bytes);
  at("mapped");

  cudaStream_t stream = nullptr;
  CALL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const auto queue_copy = [&] { launch_copy(own, mapping, stream); };
  queue_copy();  // loads the kernel; a load may wait for all work
  CALL(cudaStreamSynchronize(stream));
  own.poison();
  {
    Latch latch;
    latch.hold(stream);
    queue_copy();
    at("kernel queued");
    latch.release();
    CALL(cudaStreamSynchronize(stream));
  }
  CALL(cudaStreamDestroy(stream));
  EXPECT_TRUE(kernel_reads(own, pattern("exporter")));
  EXPECT_READS(mapping, pattern("exporter"));
  mapping.fill(pattern("importer"));
  EXPECT_TRUE(copy_reads(mapping, pattern("importer")));
}

TEST(VmmLifetime, TheImportersMemoryOutlivesAKilledExporter) {
  covers("LIFE-06");
  needs(gpus(1), vmm_fd, alone);
  Scenario scenario(Scenario::kShared);
  for (const std::string& death : kDeaths)
    scenario
        .role("exporter until " + death,
              [&death](Role& me) { lends_until_it_dies(me, death); })
        .in_new_process();
  scenario.role("importer", [](Role& me) {
    for (const std::string& death : kDeaths) outlives_an_exporter(me, death);
  });
  scenario.role("somebody else", takes_what_the_dead_leave(kDeaths.size()));
  scenario.run(100s);
}

TEST(VmmLifetime, ADescriptorInFlightOutlivesAKilledExporter) {
  covers("LIFE-07");
  needs(gpus(1), vmm_fd, alone);
  Scenario scenario(Scenario::kShared);

  scenario
      .role("exporter",
            [](Role& me) {
              const size_t bytes = granule();
              const Chunk chunk = Chunk::create(bytes);
              const Mapping mapping(chunk, bytes);
              mapping.fill(pattern("exporter"));
              me.send("pid", getpid());
              me.send_descriptor("socket",
                                 put_into_a_socket(chunk.descriptor()).get());
              me.wait("socket received");
              me.die(SIGKILL);
            })
      .in_new_process();

  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));
    const Process exporter(me.receive<pid_t>("pid"));
    const Descriptor socket = me.receive_descriptor("socket");
    me.signal("socket received");
    ASSERT_TRUE(exporter.has_ended());
    me.signal("dead");
    me.wait("overwritten");
    expect_exporters_bytes(take_out_of(socket));
  });

  scenario.role("somebody else", takes_what_the_dead_leave(1));
  scenario.run(30s);
}
