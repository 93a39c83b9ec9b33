// Every open needs its close: what the reference count keeps mapped, and in
// which process. Mirror of samples/03_reference_count.
//
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

using Handle = cudaIpcMemHandle_t;

constexpr size_t kBytes = 4 << 20;
constexpr size_t kSmall = 4096;  // shares a block with others
constexpr int kOpens = 4;
constexpr int kManyOpens = 300;    // more than a byte can count
constexpr int kMostOpens = 65537;  // more than two bytes can count

// The exporter's side of a mapping that must keep working. In each turn the
// exporter writes values, waits until the importer has written, and checks the
// importer's values.
void answer(Role& me, const DeviceBuffer& buffer, int times) {
  for (int i = 0; i < times; ++i) {
    const std::string turn = std::to_string(i);
    buffer.fill(pattern("exporter " + turn));
    me.signal("exporter wrote");
    me.wait("importer wrote");
    EXPECT_READS(buffer, pattern("importer " + turn));
  }
}

// The importer's side of turn `i`.
void expect_works(Role& me, const Words& mapping, int i) {
  const std::string turn = std::to_string(i);
  me.wait("exporter wrote");
  EXPECT_READS(mapping, pattern("exporter " + turn));
  mapping.fill(pattern("importer " + turn));
  me.signal("importer wrote");
}

// An exporter that takes `turns` turns and keeps its memory until the importer
// has closed it.
std::function<void(Role&)> answers(int turns) {
  return [turns](Role& me) {
    const DeviceBuffer buffer(kBytes);
    me.send("handle", buffer.legacy_handle());
    answer(me, buffer, turns);
    me.wait("closed");
    EXPECT_TRUE(context_is_usable());
  };
}

// Judges that the driver API does not know an address.
void expect_unknown(const void* pointer) {
  unsigned type = 77, device = 77;
  EXPECT_CODE(
      CUDA_ERROR_INVALID_VALUE,
      DRIVER(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    address_of(pointer)));
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                  CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  void* answers[] = {&device, &type};
  EXPECT_SUCCESS(
      DRIVER(cuPointerGetAttributes)(2, wanted, answers, address_of(pointer)));
  EXPECT_EQ(type, 0u) << "cuPointerGetAttributes knows it";
}

// Tries to close, by each API, a pointer for which no open is left. The caller
// must not do this, and no sentence says that it is refused. Returns true if a
// call was accepted.
bool close_wrongly(Role& me, const std::string& what, const void* pointer) {
  const cudaError_t runtime =
      NOTED(cudaIpcCloseMemHandle(const_cast<void*>(pointer)));
  observe_code(me, "a close of " + what, runtime);
  const CUresult driver =
      NOTED(DRIVER(cuIpcCloseMemHandle)(address_of(pointer)));
  me.observe("a close of " + what + ": " + name_of(driver));
  EXPECT_TRUE(context_is_usable()) << what;
  return runtime == cudaSuccess || driver == CUDA_SUCCESS;
}

}  // namespace

TEST(ReferenceCount, ASecondOpenReturnsTheSamePointer) {
  covers("LMEM-08");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<Handle>("handle");
    by_both_apis([&](auto api) {
      void* first = open_handle(api, handle);
      for (int i = 1; i < kManyOpens; ++i) {
        Sentinel<void*> again;
        EXPECT_SUCCESS(api.ipc_open_mem_handle(again.out(), handle));
        ASSERT_EQ(again.result(), first) << "open " << i + 1;
      }
      EXPECT_READS(Words(first, kBytes), pattern("exporter"));
      // An open after a close counts like the opens before.
      EXPECT_SUCCESS(api.ipc_close_mem_handle(first));
      EXPECT_EQ(open_handle(api, handle), first);
      // Each open raised the count by one; otherwise one of these closes would
      // be refused.
      for (int i = 0; i < kManyOpens; ++i)
        EXPECT_SUCCESS(api.ipc_close_mem_handle(first));
    });
    // Both APIs have one count, so one API is enough for very many opens.
    void* const most = open_handle(RuntimeApi{}, handle);
    for (int i = 1; i < kMostOpens; ++i)
      ASSERT_EQ(open_handle(RuntimeApi{}, handle), most) << "open " << i + 1;
    for (int i = 0; i < kMostOpens; ++i)
      ASSERT_EQ(RuntimeApi::ipc_close_mem_handle(most), cudaSuccess)
          << "close " << i + 1;
    // An open by the other API is one more open in the same context.
    void* const by_runtime = open_handle(RuntimeApi{}, handle);
    EXPECT_EQ(open_handle(DriverApi{}, handle), by_runtime);
    EXPECT_SUCCESS(RuntimeApi::ipc_close_mem_handle(by_runtime));
    EXPECT_TRUE(kernel_reads(Words(by_runtime, kBytes), pattern("exporter")));
    EXPECT_SUCCESS(DriverApi::ipc_close_mem_handle(by_runtime));
    me.signal("closed");
  });
  scenario.run(20s);
}

TEST(ReferenceCount, AMappingWorksUntilItsLastClose) {
  covers("LMEM-09");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", answers(2 * kOpens));
  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<Handle>("handle");
    int turn = 0;
    by_both_apis([&](auto api) {
      Words mapping;
      for (int i = 0; i < kOpens; ++i)
        mapping = Words(open_handle(api, handle), kBytes);
      for (int i = 0; i < kOpens; ++i) {
        expect_works(me, mapping, turn++);
        EXPECT_SUCCESS(api.ipc_close_mem_handle(mapping.data));
      }
    });
    me.signal("closed");
  });
  scenario.run(20s);
}

TEST(ReferenceCount, TheLastCloseUnmaps) {
  covers("LMEM-10");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer other(kBytes);
    other.fill(pattern("other"));
    me.send("other", other.legacy_handle());
    lends(pattern("exporter"), kBytes)(me);
  });
  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<Handle>("handle");
    LegacyMapping other(me.receive<Handle>("other"), kBytes);
    by_both_apis([&](auto api) {
      void* opened = nullptr;
      for (int i = 0; i < kOpens; ++i) opened = open_handle(api, handle);
      cudaPointerAttributes attributes{};
      for (int i = 0; i < kOpens; ++i) {
        CALL(cudaPointerGetAttributes(&attributes, opened));
        EXPECT_EQ(attributes.type, cudaMemoryTypeDevice) << "after " << i;
        CALL(api.ipc_close_mem_handle(opened));
      }
      for (const size_t offset : {size_t{0}, kBytes / 2, kBytes - 1}) {
        SCOPED_TRACE("offset " + std::to_string(offset));
        const char* const closed = static_cast<char*>(opened) + offset;
        CALL(cudaPointerGetAttributes(&attributes, closed));
        EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
        CUdeviceptr base = 0;
        size_t size = 0;
        EXPECT_REFUSED(
            DRIVER(cuMemGetAddressRange)(&base, &size, address_of(closed)),
            CUDA_ERROR_NOT_FOUND, CUDA_ERROR_INVALID_VALUE);
        expect_unknown(closed);
      }
      Sentinel<Handle> none;
      EXPECT_CODE(api.kInvalidValue, api.ipc_get_mem_handle(none.out(), opened))
          << "an export of closed memory";
      EXPECT_TRUE(kernel_reads(other, pattern("other"))) << "still open";
    });
    other.close();
    EXPECT_TRUE(context_is_usable());
    me.signal("closed");
  });
  scenario.run(20s);
}

// The importer has nothing else of the block open in which the memory may lie.
TEST(ReferenceCount, TheLastCloseUnmapsASmallAllocation) {
  covers("LMEM-10");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kSmall));
  // A new process, which has nothing else of the block open.
  const auto opens_and_closes = [](Role& me) {
    const auto handle = me.receive<Handle>("handle");
    by_both_apis([&](auto api) {
      MappingBy mapping(api, handle, kSmall), again(api, handle, kSmall);
      again.close();
      EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
      const void* const closed = mapping.data;
      mapping.close();
      cudaPointerAttributes attributes{};
      CALL(cudaPointerGetAttributes(&attributes, closed));
      EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
      expect_unknown(closed);
    });
    EXPECT_TRUE(context_is_usable());
    me.signal("closed");
  };
  scenario.role("importer", opens_and_closes).in_new_process();
  scenario.run(20s);
}

// While another stream is held, closes memory that this stream does not use.
// Whether the close waits for the stream is not documented.
template <class Api>
static void closes_beside_work(Role& me, Api api, const Words& mapping,
                               const Words& own) {
  const Stream stream;
  Latch latch;
  latch.hold(stream);
  own.queue_fill(pattern("own"), stream);
  HostWait closed("a close while a stream has work", [&] {
    const cudaError_t code = cudaSetDevice(0);  // the thread's context
    return code != cudaSuccess ? code
                               : static_cast<cudaError_t>(
                                     api.ipc_close_mem_handle(mapping.data));
  });
  me.observe(std::string("a close while a stream has work, by the ") +
             api.kName + (closed.is_held() ? ", waits" : ", does not wait"));
  latch.release();
  EXPECT_SUCCESS(closed.join());
  EXPECT_TRUE(passes(stream));
  cudaPointerAttributes attributes{};
  CALL(cudaPointerGetAttributes(&attributes, mapping.data));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  EXPECT_TRUE(kernel_reads(own, pattern("own")));
}

TEST(ReferenceCount, TheLastCloseUnmapsWhileAStreamHasWork) {
  covers("LMEM-10");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<Handle>("handle");
    const DeviceBuffer own(kBytes);
    own.fill(pattern("before"));
    by_both_apis([&](auto api) {
      const Words mapping(open_handle(api, handle), kBytes);
      EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
      closes_beside_work(me, api, mapping, own);
    });
    EXPECT_TRUE(context_is_usable());
    me.signal("closed");
  });
  scenario.run(20s);
}

// Only a kernel uses the closed address: cudaMemcpy would treat this address as
// an address of the host. Each API has an importer of its own, because a
// process loses its context by the fault. The two importers write the first and
// the last word, which a driver could unmap in two steps.
TEST(ReferenceCount, AKernelFaultsAfterTheLastClose) {
  covers("LMEM-10");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    me.send("handle", buffer.legacy_handle());
    me.wait("faulted", 2);
    EXPECT_READS(buffer, pattern("exporter"));
  });

  for_each_api([&](auto api) {
    scenario.role(std::string("importer by the ") + api.kName, [=](Role& me) {
      CALL(cudaFree(nullptr));  // the driver API needs a context
      MappingBy mapping(api, me.receive<Handle>("handle"), kBytes);
      EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
      const bool is_driver = std::is_same_v<decltype(api), DriverApi>;
      uint32_t* const closed =
          mapping.data + (is_driver ? mapping.count - 1 : 0);
      mapping.close();
      launch_write(closed, 1);
      EXPECT_CODE(cudaErrorIllegalAddress, cudaDeviceSynchronize());
      // The context is lost: every later call reports the fault.
      EXPECT_CODE(cudaErrorIllegalAddress, cudaDeviceSynchronize());
      me.signal("faulted");
    });
  });

  scenario.run(20s);
}

TEST(ReferenceCount, ACloseTooManyHarmsNothing) {
  covers("LMEM-11");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer other(kBytes);
    other.fill(pattern("other"));
    me.send("other", other.legacy_handle());
    lends(pattern("exporter"), kBytes)(me);
  });
  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<Handle>("handle");
    const auto close_once_too_often = [&](int opens) {
      void* opened = nullptr;
      for (int i = 0; i < opens; ++i) opened = open_handle(handle);
      for (int i = 0; i < opens; ++i) CALL(cudaIpcCloseMemHandle(opened));
      close_wrongly(me, std::to_string(opens) + " opens, once too often",
                    opened);
    };
    close_once_too_often(1);
    close_once_too_often(kOpens);
    // The opens of other memory are not for this pointer.
    LegacyMapping other(me.receive<Handle>("other"), kBytes);
    close_once_too_often(2);
    EXPECT_READS(other, pattern("other"));
    other.close();
    // The count has not gone below zero: one open needs one close.
    LegacyMapping mapping(handle, kBytes);
    EXPECT_READS(mapping, pattern("exporter"));
    mapping.close();
    me.signal("closed");
  });
  scenario.run(20s);
}

// The memory that stays open usually lies in the same block as the memory that
// is closed once too often.
TEST(ReferenceCount, ACloseTooManyLeavesTheNeighbourOpen) {
  covers("LMEM-11");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer first(kSmall), second(kSmall);
    first.fill(pattern("first"));
    second.fill(pattern("second"));
    me.send("first", first.legacy_handle());
    me.send("second", second.legacy_handle());
    me.wait("closed");
    EXPECT_TRUE(kernel_reads(first, pattern("first")));
    EXPECT_TRUE(kernel_reads(second, pattern("second")));
  });
  scenario.role("importer", [](Role& me) {
    LegacyMapping first(me.receive<Handle>("first"), kSmall);
    LegacyMapping second(me.receive<Handle>("second"), kSmall);
    void* const closed = first.data;
    first.close();
    close_wrongly(me, "a small allocation, once too often", closed);
    cudaPointerAttributes attributes{};
    CALL(cudaPointerGetAttributes(&attributes, second.data));
    ASSERT_EQ(attributes.type, cudaMemoryTypeDevice) << "the neighbour";
    EXPECT_TRUE(copy_reads(second, pattern("second")));
    EXPECT_TRUE(kernel_reads(second, pattern("second")));
    second.close();
    me.signal("closed");
  });
  scenario.run(20s);
}

TEST(ReferenceCount, ClosingLeavesTheOriginalAlone) {
  covers("LMEM-12");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      const DeviceBuffer buffer(kBytes);
      buffer.fill(pattern("first"));
      me.send("handle", handle_of(api, buffer));
      me.wait("closed");
      EXPECT_READS(buffer, pattern("importer"));
      buffer.fill(pattern("second"));
      me.send("handle again", handle_of(api, buffer));
      me.wait("closed again");
      EXPECT_TRUE(kernel_reads(buffer, pattern("second")));
      EXPECT_TRUE(context_is_usable());
    });
  });

  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) {
      const auto handle = me.receive<Handle>("handle");
      Words mapping;
      for (int i = 0; i < kOpens; ++i)
        mapping = Words(open_handle(api, handle), kBytes);
      EXPECT_TRUE(kernel_reads(mapping, pattern("first")));
      mapping.fill(pattern("importer"));  // stays after the last close
      for (int i = 0; i < kOpens; ++i)
        CALL(api.ipc_close_mem_handle(mapping.data));
      me.signal("closed");
    });
  });

  scenario.role("later importer", [](Role& me) {
    by_both_apis([&](auto api) {
      MappingBy mapping(api, me.receive<Handle>("handle again"), kBytes);
      EXPECT_READS(mapping, pattern("second"));
      mapping.close();
      me.signal("closed again");
    });
  });

  scenario.run(20s);
}

// The ways to free memory that must not be used with opened memory. Each
// returns whether its call was accepted.
template <class Api>
static std::vector<std::function<bool(void*)>> wrong_frees(Role& me, Api api) {
  const auto told = [&me](const std::string& what, auto code) {
    cudaGetLastError();
    me.observe(what + " of opened memory: " + name_of(code));
    return code == decltype(code){};
  };
  std::vector<std::function<bool(void*)>> ways = {
      [=](void* p) { return told("cudaFree", NOTED(cudaFree(p))); },
      [=](void* p) {
        return told("cuMemFree", NOTED(DRIVER(cuMemFree)(address_of(p))));
      },
      [=](void* p) { return told("cudaFreeHost", NOTED(cudaFreeHost(p))); },
      [=](void* p) {
        return told("cudaFree inside",
                    NOTED(cudaFree(static_cast<char*>(p) + kSmall / 2)));
      },
      [=](void* p) {
        return told("a free in another thread",
                    in_a_thread([=] { return api.mem_free(p); }));
      }};
  if (attribute(cudaDevAttrMemoryPoolsSupported) == 0) return ways;
  ways.emplace_back([=](void* p) {
    return told("a free in stream order", api.free_async(p, nullptr));
  });
  ways.emplace_back([=](void* p) {
    return told("a free in stream order, in another thread",
                in_a_thread([=] { return api.free_async(p, nullptr); }));
  });
  return ways;
}

// Frees memory that is open twice. No sentence says that the call is refused,
// or what becomes of the mapping if it is accepted. A refused one is no close.
template <class Api>
static void free_wrongly(Role& me, Api api, const Handle& handle,
                         const std::function<bool(void*)>& way, size_t bytes,
                         const Pattern& written) {
  const Words mapping(open_handle(api, handle), bytes);
  open_handle(api, handle);
  if (way(mapping.data)) {
    CALL(cudaDeviceSynchronize());
    for (int opens = 0; opens < 2; ++opens)
      me.observe("a close after this free: " +
                 name_of(api.ipc_close_mem_handle(mapping.data)));
    cudaGetLastError();
    return;
  }
  EXPECT_TRUE(kernel_reads(mapping, written)) << "after a refused free";
  EXPECT_SUCCESS(api.ipc_close_mem_handle(mapping.data));
  EXPECT_TRUE(kernel_reads(mapping, written)) << "a refused free is no close";
  EXPECT_SUCCESS(api.ipc_close_mem_handle(mapping.data));
}

TEST(ReferenceCount, AFreeOfAnImportHarmsNothing) {
  covers("LMEM-28");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer before(kSmall), small(kSmall);  // usually in one block
    const DeviceBuffer large(kBytes);
    small.fill(pattern("small"));
    large.fill(pattern("large"));
    me.send("small", small.legacy_handle());
    me.send("large", large.legacy_handle());
    answers(2)(me);
    EXPECT_READS(small, pattern("small"));
    EXPECT_READS(large, pattern("large"));
  });
  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));  // the driver API needs a context
    const auto small = me.receive<Handle>("small");
    const auto large = me.receive<Handle>("large");
    const auto handle = me.receive<Handle>("handle");
    int turn = 0;
    by_both_apis([&](auto api) {
      for (const auto& way : wrong_frees(me, api)) {
        free_wrongly(me, api, small, way, kSmall, pattern("small"));
        free_wrongly(me, api, large, way, kBytes, pattern("large"));
        EXPECT_TRUE(context_is_usable());
      }
      MappingBy mapping(api, handle, kBytes);
      expect_works(me, mapping, turn++);
      mapping.close();
    });
    me.signal("closed");
  });
  scenario.run(20s);
}

TEST(ReferenceCount, ACloseOfAnOwnAllocationLeavesIt) {
  covers("LMEM-29");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer never_exported(kBytes), buffer(kBytes), small(kSmall);
    never_exported.fill(pattern("never exported"));
    small.fill(pattern("small"));
    DeviceBuffer freed(kBytes);
    const void* const old = freed.data;
    freed.free();
    me.send("handle", buffer.legacy_handle());
    me.wait("opened");
    in_two_threads([&](int) {
      close_wrongly(me, "exported memory in its exporter", buffer.data);
      close_wrongly(me, "own memory", never_exported.data);
    });
    close_wrongly(me, "a small own allocation", small.data);
    close_wrongly(me, "freed memory", old);
    EXPECT_READS(never_exported, pattern("never exported"));
    EXPECT_READS(small, pattern("small"));
    answer(me, buffer, 1);
    me.wait("closed");
    EXPECT_TRUE(context_is_usable());
  });

  scenario.role("importer", [](Role& me) {
    LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
    me.signal("opened");
    expect_works(me, mapping, 0);
    mapping.close();
    me.signal("closed");
  });

  scenario.run(20s);
}

// Memory of a graph's node did not come from an open.
static void expect_graph_memory_stays(Role& me) {
  const GraphMemory memory(kBytes);
  memory.fill(pattern("graph"));
  close_wrongly(me, "memory of a graph", memory.data);
  EXPECT_READS(memory, pattern("graph"));
}

// Registered host memory did not come from an open.
static void expect_registered_memory_stays(Role& me) {
  void* const memory = std::aligned_alloc(4096, kBytes);
  CALL(cudaHostRegister(memory, kBytes, cudaHostRegisterMapped));
  const Words words(memory, kBytes);
  host_writes(words, pattern("registered"));
  close_wrongly(me, "registered memory", memory);
  EXPECT_TRUE(copy_reads(words, pattern("registered")));
  CALL(cudaHostUnregister(memory));
  std::free(memory);
}

// Pitched, managed and stream-ordered memory did not come from an open.
static void expect_memory_of_other_allocators_stays(Role& me) {
  const auto expect_kept = [&](const char* kind, void* memory) {
    SCOPED_TRACE(kind);
    const Words words(memory, kBytes);
    words.fill(pattern(kind));
    close_wrongly(me, kind, memory);
    EXPECT_READS(words, pattern(kind));
    CALL(cudaFree(memory));
  };
  void* memory = nullptr;
  size_t pitch = 0;
  CALL(cudaMallocPitch(&memory, &pitch, 4096, kBytes / 4096));
  expect_kept("pitched memory", memory);
  if (attribute(cudaDevAttrManagedMemory) != 0) {
    CALL(cudaMallocManaged(&memory, kBytes));
    expect_kept("managed memory", memory);
  }
  if (attribute(cudaDevAttrMemoryPoolsSupported) == 0) return;
  CALL(cudaMallocAsync(&memory, kBytes, nullptr));
  CALL(cudaStreamSynchronize(nullptr));
  expect_kept("stream-ordered memory", memory);
  expect_graph_memory_stays(me);
}

TEST(ReferenceCount, ACloseLeavesOtherKindsOfMemory) {
  covers("LMEM-29");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));
    close_wrongly(me, "null", nullptr);
    std::vector<char> host(kBytes, 'h');
    close_wrongly(me, "host memory", host.data());
    EXPECT_EQ(host, std::vector<char>(kBytes, 'h'));
    const PinnedBuffer pinned(kBytes);
    pinned.fill(pattern("pinned"));
    close_wrongly(me, "pinned memory", pinned.data);
    EXPECT_READS(pinned, pattern("pinned"));
    expect_registered_memory_stays(me);
    expect_memory_of_other_allocators_stays(me);
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

// Tries to close addresses inside memory that is open twice. A refused close
// has not lowered the count: the memory stays open after one right close. What
// an accepted one closes is not documented.
static void close_inside(Role& me, const cudaIpcMemHandle_t& handle,
                         size_t bytes, Pattern written) {
  void* const opened = open_handle(handle);
  open_handle(handle);
  bool accepted = false;
  for (const size_t offset : {size_t{1}, size_t{2}, size_t{3}, size_t{4},
                              bytes / 2, bytes - 4, bytes - 1})
    accepted |= close_wrongly(
        me, "byte " + std::to_string(offset) + " of " + std::to_string(bytes),
        static_cast<char*>(opened) + offset);
  if (accepted) return;
  EXPECT_SUCCESS(cudaIpcCloseMemHandle(opened));
  close_wrongly(me, "null while memory is open", nullptr);
  EXPECT_READS(Words(opened, bytes), written);
  EXPECT_SUCCESS(cudaIpcCloseMemHandle(opened));
}

TEST(ReferenceCount, ClosingInsideAMapping) {
  covers("LMEM-29");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer before(kSmall), small(kSmall);  // usually in one block
    small.fill(pattern("small"));
    const DeviceBuffer other(kBytes);
    other.fill(pattern("other"));
    me.send("small", small.legacy_handle());
    me.send("other", other.legacy_handle());
    lends(pattern("exporter"), kBytes)(me);
  });
  const auto closes_inside = [](Role& me) {
    CALL(cudaFree(nullptr));  // the driver API needs a context
    LegacyMapping other(me.receive<Handle>("other"), kBytes);
    close_inside(me, me.receive<Handle>("small"), kSmall, pattern("small"));
    close_inside(me, me.receive<Handle>("handle"), kBytes, pattern("exporter"));
    EXPECT_READS(other, pattern("other"));
    other.close();
    EXPECT_TRUE(context_is_usable());
    me.signal("closed");
  };
  scenario.role("importer", closes_inside).in_new_process();
  scenario.run(20s);
}

// An import of a pool's memory did not come from an open of a handle.
TEST(ReferenceCount, ACloseLeavesAnImportOfAPool) {
  covers("LMEM-29");
  needs(gpus(1), legacy_memory, pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_from_pool(pattern("exporter"), kBytes));
  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));  // the driver API needs a context
    const Pool pool(me.receive_descriptor("pool"));
    AsyncBuffer buffer(pool, me.receive<cudaMemPoolPtrExportData>("pointer"),
                       kBytes);
    close_wrongly(me, "an import of a pool", buffer.data);
    EXPECT_READS(buffer, pattern("exporter"));
    buffer.free();
    EXPECT_TRUE(context_is_usable());
    me.signal("freed");
  });
  scenario.run(20s);
}

// Memory of cuMemCreate, own or imported, did not come from an open either.
TEST(ReferenceCount, ACloseLeavesMappedMemory) {
  covers("LMEM-29");
  needs(gpus(1), legacy_memory, vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));  // the driver API needs a context
    const Chunk chunk = Chunk::create(granule());
    const Chunk again = Chunk::import(chunk.descriptor());
    const Mapping own(chunk, granule()), imported(again, granule());
    own.fill(pattern("chunk"));
    for (const Mapping* each : {&own, &imported}) {
      close_wrongly(me, each == &own ? "a mapping" : "an imported mapping",
                    each->data);
      EXPECT_READS(*each, pattern("chunk"));
    }
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

// The exporter and the importer of a test in which the free comes too early.
// Nothing is promised about the importer: each of its calls may end the
// process.
template <class Api>
static void frees_what_is_open(Role& me, Api api) {
  const DeviceBuffer other(kBytes);
  other.fill(pattern("other"));
  DeviceBuffer buffer(kBytes);
  buffer.fill(pattern("freed"));
  me.send("handle", handle_of(api, buffer));
  me.wait("opened");
  const auto code = api.mem_free(std::exchange(buffer.data, nullptr));
  cudaGetLastError();
  me.observe(std::string("a free by the ") + api.kName +
             " while an importer has it open: " + name_of(code));
  me.signal("freed");
  EXPECT_READS(other, pattern("other"));
  EXPECT_TRUE(context_is_usable());
}

template <class Api>
static void closes_what_was_freed(Role& me, Api api) {
  const auto handle = me.receive<Handle>("handle");
  CALL(cudaFree(nullptr));  // the driver API needs a context
  const Words words(open_handle(api, handle), kBytes);
  me.signal("opened");
  me.wait("freed");
  try {
    me.observe(kernel_reads(words, pattern("freed"))
                   ? "the importer still reads what was there"
                   : "the importer reads something else");
  } catch (const CallFailed& failed) {
    me.observe("the importer's kernel ends with " + failed.seen);
  }
  const auto code = api.ipc_close_mem_handle(words.data);
  cudaGetLastError();
  me.observe(std::string("closing afterwards by the ") + api.kName + ": " +
             name_of(code));
}

TEST(ReferenceCount, FreeingBeforeTheClose) {
  covers("LMEM-42");
  needs(gpus(1), legacy_memory);
  for_each_api([](auto api) {
    Scenario scenario(Scenario::kShared);
    scenario.role("exporter", [=](Role& me) {
      CALL(cudaFree(nullptr));
      frees_what_is_open(me, api);
    });
    scenario.role("importer", [=](Role& me) { closes_what_was_freed(me, api); })
        .may_end_by(SIGSEGV)
        .in_new_process();  // its state at the end is unknown
    scenario.run(20s);
  });
}
