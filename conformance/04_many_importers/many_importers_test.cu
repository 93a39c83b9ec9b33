// One allocation in many processes and threads, and many allocations in one
// process. Mirror of samples/04_many_importers.
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/prctl.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "harness/scenario/both_apis.h"

using namespace ipclab;

namespace {

using Handle = cudaIpcMemHandle_t;

constexpr size_t kBytes = 4 << 20;
constexpr size_t kSlotBytes = 16 << 10;
constexpr unsigned kThreads = 8;
constexpr unsigned kAllocations = 2000;
constexpr unsigned kWords = 512;  // of each allocation
constexpr unsigned kNobody = 65534;

std::string importer(int number) {
  return "importer " + std::to_string(number);
}

Words slot(const Words& all, int number) {
  return {all.data + static_cast<size_t>(number) * kSlotBytes / 4, kSlotBytes};
}

// All importers have the buffer open at the same time. Each reads the
// exporter's values, and then each writes its own slot.
void shared_by(int importers, std::chrono::milliseconds deadline) {
  const size_t bytes = static_cast<size_t>(importers) * kSlotBytes;
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [=](Role& me) {
    const DeviceBuffer buffer(bytes);
    buffer.fill(pattern("exporter"));
    me.send("handle", buffer.legacy_handle());
    me.wait("opened", importers);
    me.signal("all opened");
    me.wait("read", importers);
    buffer.poison();
    me.signal("all read");
    me.wait("written", importers);
    for (int i = 0; i < importers; ++i) {
      EXPECT_TRUE(kernel_reads(slot(buffer, i), pattern(importer(i)))) << i;
      EXPECT_TRUE(copy_reads(slot(buffer, i), pattern(importer(i)))) << i;
    }
    me.signal("all written");
    me.wait("closed", importers);
  });

  scenario.roles("importer", importers, [=](Role& me) {
    void* opened = nullptr;
    const auto handle = me.receive<Handle>("handle");
    EXPECT_SUCCESS(
        cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
    me.signal("opened");
    ASSERT_NE(opened, nullptr);
    const Words mapping(opened, bytes);
    me.wait("all opened");
    EXPECT_READS(mapping, pattern("exporter"));
    me.signal("read");
    me.wait("all read");
    slot(mapping, me.index()).fill(pattern(me.name()));
    me.signal("written");
    me.wait("all written");
    CALL(cudaIpcCloseMemHandle(opened));
    me.signal("closed");
  });

  scenario.run(deadline);
}

__global__ void write_each(uint32_t* const* allocations, Pattern pattern) {
  for (unsigned i = threadIdx.x; i < kWords; i += blockDim.x)
    allocations[blockIdx.x][i] = pattern.at(blockIdx.x * kWords + i);
}

// Counts the wrong values of each allocation.
__global__ void check_each(const uint32_t* const* allocations, Pattern pattern,
                           unsigned* wrong) {
  for (unsigned i = threadIdx.x; i < kWords; i += blockDim.x)
    if (allocations[blockIdx.x][i] != pattern.at(blockIdx.x * kWords + i))
      atomicAdd(&wrong[blockIdx.x], 1u);
}

// An array of pointers, copied to device memory for the kernels.
struct Table : DeviceBuffer {
  explicit Table(const std::vector<uint32_t*>& pointers)
      : DeviceBuffer(pointers.size() * sizeof(uint32_t*)) {
    CALL(cudaMemcpy(data, pointers.data(), bytes(), cudaMemcpyHostToDevice));
  }
  uint32_t** pointers() const { return reinterpret_cast<uint32_t**>(data); }
};

}  // namespace

TEST(ManyImporters, TwoHoldOneHandle) {
  covers("LMEM-16");
  needs(gpus(1), legacy_memory);
  shared_by(2, 20s);
}

TEST(ManyImporters, EightHoldOneHandle) {
  covers("LMEM-16");
  needs(gpus(1), legacy_memory);
  shared_by(8, 40s);
}

// As many importers as there are ranks on a node with sixteen GPUs.
TEST(ManyImporters, SixteenHoldOneHandle) {
  covers("LMEM-16");
  needs(gpus(1), legacy_memory);
  shared_by(16, 60s);
}

// An exporter of the memory that one importer closes and another one keeps.
template <class Api>
static void lends_to_two(Role& me, Api api) {
  const DeviceBuffer buffer(kBytes);
  buffer.fill(pattern("early"));
  me.send("handle", handle_of(api, buffer));
  me.wait("opened");
  me.wait("closed");
  buffer.fill(pattern("late"));
  me.signal("late written");
  me.wait("importer written");
  EXPECT_READS(buffer, pattern("importer"));
  me.signal("seen");
  me.wait("other closed");
}

// The importer that closes. It opens before or after the other importer.
template <class Api>
static void closes_early(Role& me, Api api, bool opens_first) {
  const auto handle = me.receive<Handle>("handle");
  if (!opens_first) me.wait("opened");
  MappingBy first(api, handle, kBytes), second(api, handle, kBytes);
  EXPECT_TRUE(kernel_reads(first, pattern("early")));
  if (opens_first) {
    me.signal("opened first");
    me.wait("opened");
  }
  first.close();
  second.close();
  me.signal("closed");
  // The other importer must see a close, not the end of this process.
  me.wait("other closed");
}

// The importer that keeps the memory open.
template <class Api>
static void stays_open(Role& me, Api api, bool opens_first) {
  const auto handle = me.receive<Handle>("handle");
  if (!opens_first) me.wait("opened first");
  MappingBy mapping(api, handle, kBytes);
  EXPECT_TRUE(kernel_reads(mapping, pattern("early")));
  me.signal("opened");
  me.wait("late written");
  EXPECT_READS(mapping, pattern("late"));
  mapping.fill(pattern("importer"));
  me.signal("importer written");
  me.wait("seen");
  mapping.close();
  me.signal("other closed");
}

TEST(ManyImporters, ClosingInOneLeavesTheOthers) {
  covers("LMEM-13");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  static constexpr bool kOpensFirst[] = {true, false};  // the one that closes
  scenario.role("exporter", [](Role& me) {
    for ([[maybe_unused]] const bool first : kOpensFirst)
      by_both_apis([&](auto api) { lends_to_two(me, api); });
  });
  scenario.role("importer that closes", [](Role& me) {
    for (const bool first : kOpensFirst)
      by_both_apis([&](auto api) { closes_early(me, api, first); });
  });
  scenario.role("importer that stays", [](Role& me) {
    for (const bool first : kOpensFirst)
      by_both_apis([&](auto api) { stays_open(me, api, !first); });
  });
  scenario.run(20s);
}

// Each process is exporter and importer at once.
TEST(ManyImporters, TwoProcessesLendToEachOther) {
  covers("LMEM-17");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.roles("peer", 2, [](Role& me) {
    const std::string mine = std::to_string(me.index());
    const std::string theirs = std::to_string(1 - me.index());
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("lent by " + mine));
    me.send("handle of " + mine, buffer.legacy_handle());

    const auto handle = me.receive<Handle>("handle of " + theirs);
    LegacyMapping mapping(handle, kBytes);
    EXPECT_READS(mapping, pattern("lent by " + theirs));
    // A handle that is made while a mapping is open also names this process's
    // own memory.
    DeviceBuffer later(kBytes);
    later.fill(pattern("lent later by " + mine));
    me.send("later handle of " + mine, later.legacy_handle());
    LegacyMapping second(me.receive<Handle>("later handle of " + theirs),
                         kBytes);
    EXPECT_TRUE(kernel_reads(second, pattern("lent later by " + theirs)));
    second.close();
    me.signal("read");
    me.wait("read");
    later.free();  // the borrowed memory stays open
    EXPECT_TRUE(kernel_reads(mapping, pattern("lent by " + theirs)));
    me.signal("freed");
    me.wait("freed");
    mapping.fill(pattern("written by " + mine));
    me.signal("written");
    me.wait("written");
    EXPECT_READS(buffer, pattern("written by " + theirs));
    mapping.close();
    me.signal("closed");
    me.wait("closed");

    // The other process has closed everything, but its handle still works.
    LegacyMapping again(handle, kBytes);
    EXPECT_TRUE(kernel_reads(again, pattern("written by " + mine)));
    again.close();
    me.signal("closed again");
    me.wait("closed again");
  });
  scenario.run(20s);
}

// An importer that opens thousands of handles and then checks each allocation.
static void opens_thousands_of_handles(Role& me) {
  const std::string handles = me.receive_bytes("handles");
  std::vector<std::unique_ptr<LegacyMapping>> mappings;
  std::vector<uint32_t*> pointers;
  for (unsigned i = 0; i < kAllocations; ++i) {
    Handle handle;
    std::memcpy(&handle, handles.data() + i * sizeof handle, sizeof handle);
    mappings.push_back(
        std::make_unique<LegacyMapping>(handle, kWords * sizeof(uint32_t)));
    pointers.push_back(mappings.back()->data);
  }
  const Table table(pointers);
  const DeviceBuffer counters(kAllocations * sizeof(unsigned));
  CALL(cudaMemset(counters.data, 0, counters.bytes()));
  note_call("check_each<<<>>>");
  check_each<<<kAllocations, 128>>>(table.pointers(), pattern("exporter"),
                                    counters.data);
  CALL(cudaGetLastError());
  std::vector<unsigned> wrong(kAllocations, 1);
  CALL(cudaMemcpy(wrong.data(), counters.data, counters.bytes(),
                  cudaMemcpyDeviceToHost));
  std::vector<uint32_t> copied(kWords);
  const Pattern written = pattern("exporter");
  for (unsigned i = 0; i < kAllocations; ++i) {
    ASSERT_EQ(wrong[i], 0u) << "words of allocation " << i << ", by kernel";
    CALL(cudaMemcpy(copied.data(), pointers[i], mappings[i]->bytes(),
                    cudaMemcpyDefault));
    for (unsigned word = 0; word < kWords; ++word)
      ASSERT_EQ(copied[word], written.at(i * kWords + word))
          << "allocation " << i << ", word " << word << ", by copy";
  }
  mappings.clear();
  me.signal("closed");
}

TEST(ManyImporters, ThousandsOfHandlesMapTheirOwn) {
  covers("LMEM-17");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    std::vector<std::unique_ptr<DeviceBuffer>> buffers;
    std::vector<uint32_t*> pointers;
    std::string handles;
    for (unsigned i = 0; i < kAllocations; ++i) {
      buffers.push_back(
          std::make_unique<DeviceBuffer>(kWords * sizeof(uint32_t)));
      pointers.push_back(buffers.back()->data);
      const Handle handle = buffers.back()->legacy_handle();
      handles.append(reinterpret_cast<const char*>(&handle), sizeof handle);
    }
    const Table table(pointers);
    note_call("write_each<<<>>>");
    write_each<<<kAllocations, 128>>>(table.pointers(), pattern("exporter"));
    CALL(cudaGetLastError());
    CALL(cudaDeviceSynchronize());
    me.send_bytes("handles", handles);
    me.wait("closed");
  });

  scenario.role("importer", opens_thousands_of_handles);

  scenario.run(60s);
}

namespace {

// Checks the mapping in the calling thread, with a stream and memory of this
// thread. Returns the first error; empty if there is none.
std::string wrong_in_this_thread(const Words& mapping, const Table& slices,
                                 Pattern expected) {
  const auto count = static_cast<unsigned>(mapping.count / kWords);
  std::vector<unsigned> wrong(count, 1);
  std::vector<uint32_t> copied(mapping.count);
  try {
    cudaStream_t stream = nullptr;
    CALL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const DeviceBuffer counters(count * sizeof(unsigned));
    CALL(cudaMemsetAsync(counters.data, 0, counters.bytes(), stream));
    check_each<<<count, 128, 0, stream>>>(slices.pointers(), expected,
                                          counters.data);
    CALL(cudaGetLastError());
    CALL(cudaMemcpyAsync(wrong.data(), counters.data, counters.bytes(),
                         cudaMemcpyDeviceToHost, stream));
    CALL(cudaMemcpyAsync(copied.data(), mapping.data, mapping.bytes(),
                         cudaMemcpyDefault, stream));
    CALL(cudaStreamSynchronize(stream));
    CALL(cudaStreamDestroy(stream));
  } catch (const CallFailed& failed) {
    return failed.call + " gives " + failed.seen;
  }
  if (wrong != std::vector<unsigned>(count, 0)) return "a kernel reads wrong";
  for (size_t i = 0; i < copied.size(); ++i)
    if (copied[i] != expected.at(i)) return "a copy reads wrong";
  return "";
}

}  // namespace

// Sets the memory, and then copies to it, in a thread of its own. Both are
// asynchronous.
static void writes_in_another_thread(const Words& mapping, Pattern written) {
  const DeviceBuffer own(mapping.bytes());
  own.fill(written);
  const Stream stream;
  CALL(in_a_thread([&] {
    return cudaMemsetAsync(mapping.data, 0x3C, mapping.bytes(), stream);
  }));
  CALL(cudaStreamSynchronize(stream));
  std::vector<unsigned char> seen(mapping.bytes(), 0);
  CALL(cudaMemcpy(seen.data(), mapping.data, seen.size(), cudaMemcpyDefault));
  EXPECT_EQ(seen, std::vector<unsigned char>(seen.size(), 0x3C))
      << "a memset in another thread";
  CALL(in_a_thread([&] {
    return cudaMemcpyAsync(mapping.data, own.data, own.bytes(),
                           cudaMemcpyDeviceToDevice, stream);
  }));
  CALL(cudaStreamSynchronize(stream));
  EXPECT_TRUE(kernel_reads(mapping, written)) << "a copy in another thread";
}

// An importer whose threads share a mapping that one thread opens and another
// thread closes.
template <class Api>
static void uses_it_in_every_thread(Role& me, Api api, size_t bytes) {
  const auto handle = me.receive<Handle>("handle");
  // The role's own thread opens and closes the handle once, before another
  // thread opens it.
  MappingBy(api, handle, bytes).close();
  void* opened = nullptr;
  EXPECT_SUCCESS(
      in_a_thread([&] { return api.ipc_open_mem_handle(&opened, handle); }));
  const Words mapping(opened, bytes);
  MappingBy own(api, handle, bytes);  // the second open, by this thread
  EXPECT_EQ(own.data, opened) << "opened again in another thread";
  std::vector<uint32_t*> pointers;
  for (size_t at = 0; at < mapping.count; at += kWords)
    pointers.push_back(mapping.data + at);
  const Table slices(pointers);

  std::vector<std::string> found(kThreads, "did not run");
  std::vector<std::thread> threads;
  for (std::string& mine : found)
    threads.emplace_back([&] {
      mine = wrong_in_this_thread(mapping, slices, pattern("exporter"));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, std::vector<std::string>(kThreads, ""));
  EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));

  EXPECT_SUCCESS(in_a_thread([&] { return api.ipc_close_mem_handle(opened); }));
  EXPECT_TRUE(kernel_reads(own, pattern("exporter"))) << "open in one thread";
  writes_in_another_thread(own, pattern("importer"));
  own.close();
  cudaPointerAttributes attributes{};
  CALL(cudaPointerGetAttributes(&attributes, opened));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered) << "it is closed";
  EXPECT_TRUE(context_is_usable());
  me.signal("closed");
}

TEST(ManyImporters, EveryThreadMayUseTheMapping) {
  covers("LMEM-40");
  needs(gpus(1), legacy_memory);
  constexpr size_t kShared = 64 * kWords * sizeof(uint32_t);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    // Memory belongs to no thread: this thread has ended before the export.
    void* memory = nullptr;
    CALL(in_a_thread([&] { return cudaMalloc(&memory, kShared); }));
    const Words buffer(memory, kShared);
    by_both_apis([&](auto api) {
      buffer.fill(pattern("exporter"));
      Sentinel<Handle> handle;
      EXPECT_SUCCESS(api.ipc_get_mem_handle(handle.out(), buffer.data));
      EXPECT_SUCCESS(in_a_thread(
          [&] { return api.ipc_get_mem_handle(handle.out(), buffer.data); }));
      me.send("handle", handle.result());
      me.wait("closed");
      EXPECT_TRUE(kernel_reads(buffer, pattern("importer")));
    });
    CALL(cudaFree(memory));
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) { uses_it_in_every_thread(me, api, kShared); });
  });
  scenario.run(20s);
}

// An importer with a thread that has used CUDA before the exporter allocates
// the memory. This thread opens the memory too, uses it, and closes it.
template <class Api>
static void uses_it_in_an_earlier_thread(Role& me, Api api) {
  std::promise<void> started;
  std::future<void> done;
  // If this function ends early, the end of the promise also ends the thread.
  std::promise<std::pair<Handle, Words>> opened;
  done = std::async(std::launch::async,
                    [&started, api, told = opened.get_future()]() mutable {
                      const cudaError_t code = NOTED(cudaSetDevice(0));
                      started.set_value();
                      CALL(code);
                      const auto [handle, mapping] = told.get();
                      EXPECT_EQ(open_handle(api, handle), mapping.data);
                      EXPECT_READS(mapping, pattern("exporter"));
                      const DeviceBuffer own(mapping.bytes());
                      own.fill(pattern("importer"));
                      CALL(cudaMemcpy(mapping.data, own.data, own.bytes(),
                                      cudaMemcpyDeviceToDevice));
                      CALL(cudaDeviceSynchronize());
                      EXPECT_SUCCESS(api.ipc_close_mem_handle(mapping.data));
                    });
  started.get_future().wait();
  me.signal("started");
  const auto handle = me.receive<Handle>("handle");
  MappingBy mapping(api, handle, kBytes);
  opened.set_value({handle, mapping});
  done.get();
  EXPECT_TRUE(kernel_reads(mapping, pattern("importer")));
  mapping.close();
  me.signal("closed");
}

TEST(ManyImporters, AThreadFromBeforeTheExportUsesTheMapping) {
  covers("LMEM-40");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      me.wait("started");
      const DeviceBuffer buffer(kBytes);
      buffer.fill(pattern("exporter"));
      me.send("handle", handle_of(api, buffer));
      me.wait("closed");
      EXPECT_TRUE(kernel_reads(buffer, pattern("importer")));
    });
  });
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) { uses_it_in_an_earlier_thread(me, api); });
  });
  scenario.run(20s);
}

// Makes a call in a new thread, which has made no other CUDA call.
template <class Call>
static cudaError_t in_a_fresh_thread(Call call) {
  cudaError_t code = cudaErrorUnknown;
  std::thread([&] { code = call(); }).join();
  return code;
}

// An export, an open, a copy, a memset or a close may be the first CUDA call of
// a thread. The runtime then gives the thread the context in which the other
// threads work.
TEST(ManyImporters, AThreadMayBeginWithAnOpenOrAClose) {
  covers("LMEM-40");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    Sentinel<Handle> handle;
    EXPECT_SUCCESS(in_a_fresh_thread([&] {
      return RuntimeApi::ipc_get_mem_handle(handle.out(), buffer.data);
    }));
    me.send("handle", handle.result());
    me.wait("closed");
  });
  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<Handle>("handle");
    LegacyMapping mapping(handle, kBytes);
    void* opened = nullptr;
    EXPECT_SUCCESS(in_a_fresh_thread(
        [&] { return RuntimeApi::ipc_open_mem_handle(&opened, handle); }));
    EXPECT_EQ(opened, mapping.data);
    mapping.close();
    const Words words(opened, kBytes);
    EXPECT_TRUE(kernel_reads(words, pattern("exporter"))) << "one open is left";
    uint32_t last = 0;
    EXPECT_SUCCESS(in_a_fresh_thread([&] {
      return cudaMemcpy(&last, words.data + words.count - 1, sizeof last,
                        cudaMemcpyDefault);
    }));
    EXPECT_EQ(last, pattern("exporter").at(words.count - 1));
    EXPECT_SUCCESS(in_a_fresh_thread(
        [&] { return cudaMemset(words.data, 0x3C, sizeof last); }));
    CALL(cudaMemcpy(&last, words.data, sizeof last, cudaMemcpyDefault));
    EXPECT_EQ(last, 0x3C3C3C3Cu) << "cudaMemset";
    EXPECT_SUCCESS(in_a_fresh_thread(
        [&] { return RuntimeApi::ipc_close_mem_handle(opened); }));
    cudaPointerAttributes attributes{};
    CALL(cudaPointerGetAttributes(&attributes, opened));
    EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered) << "it is closed";
    me.signal("closed");
  });
  scenario.run(20s);
}

TEST(ManyImporters, ExportingAnImport) {
  covers("LMEM-38");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));

  scenario.role("importer", [](Role& me) {
    LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
    Sentinel<Handle> onwards;
    const cudaError_t code =
        NOTED(cudaIpcGetMemHandle(onwards.out(), mapping.data));
    cudaGetLastError();
    me.observe("exporting an import: " + name_of(code));
    me.send("exported", code);
    me.send("handle onwards", onwards.value);
    me.wait("tried");
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    EXPECT_TRUE(context_is_usable());
    mapping.close();
    me.signal("closed");
  });

  scenario.role("second importer", [](Role& me) {
    const auto exported = me.receive<cudaError_t>("exported");
    const auto handle = me.receive<Handle>("handle onwards");
    if (exported == cudaSuccess) {
      // The documentation does not say that this export or this open works. If
      // both work, the new handle must lead to the original memory.
      void* opened = nullptr;
      const cudaError_t code = NOTED(cudaIpcOpenMemHandle(
          &opened, handle, cudaIpcMemLazyEnablePeerAccess));
      cudaGetLastError();
      me.observe("opening the new handle: " + name_of(code));
      if (code == cudaSuccess) {
        EXPECT_READS(Words(opened, kBytes), pattern("exporter"));
        EXPECT_SUCCESS(cudaIpcCloseMemHandle(opened));
      }
    }
    me.signal("tried");
  });

  scenario.run(20s);
}

namespace {

// A process that has the bytes of a handle tries to open the handle. The
// exporter has not started this process and does not know about it.
void try_to_open(Role& me, const char* who) {
  const auto handle = me.receive<Handle>("handle");
  void* opened = nullptr;
  cudaError_t code = NOTED(cudaFree(nullptr));
  if (code != cudaSuccess) {
    me.observe(std::string(who) + " gets no context: " + name_of(code));
  } else {
    code = NOTED(
        cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
    cudaGetLastError();
    me.observe(std::string(who) + " opens the handle: " + name_of(code));
    EXPECT_TRUE(context_is_usable());
  }
  if (opened != nullptr) {
    const Words words(opened, kBytes);
    EXPECT_READS(words, pattern("exporter"));
    CALL(cudaIpcCloseMemHandle(opened));
  }
  me.signal("closed");
}

}  // namespace

TEST(ManyImporters, WhoeverHasTheBytesOpens) {
  covers("LMEM-44");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes, 2));
  scenario.role("importer", [](Role& me) {
    try_to_open(me, "an unrelated process of the same user");
  });
  scenario
      .role("importer of another user",
            [](Role& me) {
              const bool changed = geteuid() == 0 && setgid(kNobody) == 0 &&
                                   setuid(kNobody) == 0;
              // After a change of user a process cannot read its own /proc
              // entries, which the harness needs.
              if (changed) prctl(PR_SET_DUMPABLE, 1);
              try_to_open(me, changed ? "a process of another user"
                                      : "a second process of the same user");
            })
      .in_new_process();
  scenario.run(20s);
}
