// External memory: memory of cuMemCreate of another process, imported as
// cuImportExternalMemory imports memory of Vulkan. So the functions are judged
// without a graphics API.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "conformance/38_dma_buf/dma_buf_test.h"
#include "harness/scenario/attempts.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

// Lends a chunk of `granules` granules by each API in turn. The steps of the
// two turns have different names.
static std::function<void(Role&)> lends_to_both_apis(
    size_t granules,
    std::function<void(Role&, const Mapping&, const std::string& turn)> then) {
  return [=](Role& me) {
    for_each_api([&](auto api) {
      const std::string turn = by_the(api);
      const size_t bytes = granules * granule();
      const Chunk chunk = Chunk::create(bytes);
      const Mapping mapping(chunk, bytes);
      mapping.fill(pattern("exporter"));
      CALL(cudaDeviceSynchronize());
      me.send_descriptor("descriptor" + turn, chunk.descriptor().get());
      then(me, mapping, turn);
      me.wait("done" + turn);
    });
  };
}

TEST(ExternalMemory, ABufferIsTheMemoryOfTheExporter) {
  covers("XMEM-01");
  needs(gpus(1), vmm_fd, external_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter",
                lends_to_both_apis(2, [](Role& me, const Mapping& mapping,
                                         const std::string& turn) {
                  me.wait("written" + turn);
                  EXPECT_READS(mapping, pattern("importer"));
                  mapping.fill(pattern("again"));
                  CALL(cudaDeviceSynchronize());
                  me.signal("again" + turn);
                  me.wait("poisoned" + turn);
                  std::vector<uint32_t> seen(mapping.count);
                  CALL(cudaMemcpy(seen.data(), mapping.data, mapping.bytes(),
                                  cudaMemcpyDeviceToHost));
                  EXPECT_EQ(std::count(seen.begin(), seen.end(), 0xeeeeeeeeu),
                            static_cast<std::ptrdiff_t>(seen.size()));
                }));
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) {
      const std::string turn = by_the(api);
      const size_t bytes = 2 * granule();
      const External memory(api, me.receive_descriptor("descriptor" + turn),
                            bytes);
      const ExternalBuffer buffer(api, memory, 0, bytes);
      EXPECT_READS(buffer, pattern("exporter"));
      buffer.fill(pattern("importer"));
      CALL(cudaDeviceSynchronize());
      me.signal("written" + turn);
      me.wait("again" + turn);
      EXPECT_READS(buffer, pattern("again"));
      buffer.poison();
      CALL(cudaDeviceSynchronize());
      me.signal("poisoned" + turn);
      me.signal("done" + turn);
    });
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(ExternalMemory, ABufferBeginsAtItsOffset) {
  covers("XMEM-02");
  needs(gpus(1), vmm_fd, external_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter",
                lends_to_both_apis(4, [](Role& me, const Mapping& mapping,
                                         const std::string& turn) {
                  const size_t part = mapping.bytes() / 4;
                  const auto quarter = [&](size_t number) {
                    return words_at(mapping.address() + number * part, part);
                  };
                  for (const size_t i : {0, 1, 2, 3})
                    quarter(i).fill(pattern("quarter " + std::to_string(i)));
                  CALL(cudaDeviceSynchronize());
                  me.signal("filled" + turn);
                  me.wait("written" + turn);
                  EXPECT_READS(quarter(0), pattern("quarter 0"));
                  EXPECT_READS(quarter(1), pattern("importer 1"));
                  EXPECT_READS(quarter(2), pattern("quarter 2"));
                  EXPECT_READS(quarter(3), pattern("importer 3"));
                }));
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) {
      const std::string turn = by_the(api);
      const size_t part = granule();
      const External memory(api, me.receive_descriptor("descriptor" + turn),
                            4 * part);
      me.wait("filled" + turn);
      for (const size_t i : {3, 1}) {
        const ExternalBuffer buffer(api, memory, i * part, part);
        EXPECT_READS(buffer, pattern("quarter " + std::to_string(i)));
        // No query may say that the buffer ends earlier.
        Sentinel<CUdeviceptr> begin;
        Sentinel<size_t> size;
        const CUresult code = NOTED(DRIVER(cuMemGetAddressRange)(
            begin.out(), size.out(), address_of(buffer.data)));
        if (code == CUDA_SUCCESS)
          EXPECT_GE(begin.result() + size.result(),
                    address_of(buffer.data) + part);
        else
          me.observe("cuMemGetAddressRange of a buffer: " + name_of(code));
        buffer.fill(pattern("importer " + std::to_string(i)));
        CALL(cudaDeviceSynchronize());
      }
      me.signal("written" + turn);
      me.signal("done" + turn);
    });
  });
  scenario.run(20s);
}

TEST(ExternalMemory, AnImportTakesTheDescriptor) {
  covers("XMEM-03");
  needs(gpus(1), vmm_fd, external_memory);
  Scenario scenario;
  scenario.role("importer", [](Role&) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    const Descriptor descriptor = chunk.descriptor();
    by_both_apis([&](auto api) {
      // The program never closes the copies.
      leaves_nothing(
          200,
          [&](int) {
            const External memory(api, Descriptor(duplicate(descriptor)),
                                  bytes);
            const ExternalBuffer buffer(api, memory, 0, bytes);
          },
          Judge::kProcess);
    });
    EXPECT_READS(mapping, pattern("exporter"));
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(40s);
}

// Tries to import what is no memory, by both APIs, and calls `then` with each
// refusal: the number that was tried, and the file to which it referred.
static void try_to_import_others(
    Role& me, const std::function<void(const std::string& what, int number,
                                       FileIdentity before)>& then) {
  const size_t bytes = granule();
  const Chunk chunk = Chunk::create(bytes);
  const Mapping mapping(chunk, bytes);
  mapping.fill(pattern("exporter"));
  by_both_apis([&](auto api) {
    Answers of_others, of_memory;
    const auto attempt = [&](Answers& answers, const std::string& what,
                             Wanted wanted) {
      SCOPED_TRACE(what);
      const FileIdentity before(wanted.descriptor);
      Sentinel<cudaExternalMemory_t> memory;
      const auto code = import_external(api, memory.out(), wanted);
      cudaGetLastError();
      if (answers.accepted(code)) {  // the descriptor was taken over
        CALL(destroy_external(api, memory.result()));
        return;
      }
      then(what, wanted.descriptor, before);
      // Closes what is still the caller's own.
      if (before.open && FileIdentity(wanted.descriptor) == before)
        close(wanted.descriptor);
    };
    for (Candidate& other : foreign_descriptors())
      if (other.owned)
        attempt(of_others, other.what, {other.owned.release(), bytes});
    const auto try_memory = [&](const char* what, size_t told, unsigned flags,
                                int type) {
      attempt(of_memory, what,
              {chunk.descriptor().release(), told, flags, type});
    };
    constexpr int kOpaque = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    try_memory("memory, with size 0", 0, 0, kOpaque);
    try_memory("memory, with flags 2", bytes, 2, kOpaque);
    try_memory("memory, with flags 8", bytes, 8, kOpaque);
    try_memory("memory, of type 0", bytes, 0, 0);
    try_memory("memory, of type 99", bytes, 0, 99);
    try_memory("memory, of Windows's type", bytes, 0,
               CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32);
    of_others.tell(me, "imports of other things" + by_the(api));
    of_memory.tell(me, "imports with wrong size, flags or type" + by_the(api));
  });
  EXPECT_READS(mapping, pattern("exporter"));
  EXPECT_TRUE(context_is_usable());
}

TEST(ExternalMemory, ARefusedImportLeavesTheDescriptor) {
  covers("XMEM-04");
  needs(gpus(1), vmm_fd, external_memory);
  Scenario scenario(Scenario::kShared);
  scenario
      .role("importer",
            [](Role& me) {
              try_to_import_others(me, [](const std::string& what, int number,
                                          FileIdentity before) {
                if (!(FileIdentity(number) == before))
                  ADD_FAILURE() << "a refused import takes " << what;
              });
            })
      .in_new_process();
  scenario.run(20s);
}

TEST(ExternalMemory, WhatIsNoMemory) {
  covers("XMEM-05");
  needs(gpus(1), vmm_fd, external_memory);
  Scenario scenario(Scenario::kShared);
  scenario
      .role("importer",
            [](Role& me) {
              const size_t bytes = granule();
              by_both_apis([&](auto api) {
                Answers answers;
                for (const int number : {-1, INT_MAX, INT_MIN}) {
                  Sentinel<cudaExternalMemory_t> memory;
                  const auto code =
                      import_external(api, memory.out(), {number, bytes});
                  cudaGetLastError();
                  if (answers.accepted(code))
                    CALL(destroy_external(api, memory.result()));
                  else
                    note_touched(me, memory, "the import");
                }
                answers.tell(me, "imports of no descriptor" + by_the(api));
              });
              try_to_import_others(
                  me, [](const std::string&, int, FileIdentity) {});
            })
      .in_new_process();
  scenario.run(20s);
}

TEST(ExternalMemory, AnotherSizeThanThatOfTheMemory) {
  covers("XMEM-06");
  needs(gpus(1), vmm_fd, external_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("importer", [](Role& me) {
    const size_t bytes = 2 * granule();
    const Chunk chunk = Chunk::create(bytes), other = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes), neighbour(other, bytes);
    mapping.fill(pattern("exporter"));
    neighbour.fill(pattern("neighbour"));
    by_both_apis([&](auto api) {
      for (const size_t told : {bytes / 2, 2 * bytes}) {
        const std::string what = std::string(told < bytes ? "half" : "twice") +
                                 " the size" + by_the(api);
        const int number = chunk.descriptor().release();
        const FileIdentity before(number);
        Sentinel<cudaExternalMemory_t> memory;
        const auto code = import_external(api, memory.out(), {number, told});
        cudaGetLastError();
        me.observe(what + ": " + name_of(code));
        if (code != decltype(code){}) {
          if (FileIdentity(number) == before) close(number);
          continue;
        }
        Sentinel<void*> address;
        const auto mapped = map_external(api, address.out(), memory.result(), 0,
                                         std::min(told, bytes));
        cudaGetLastError();
        if (mapped == decltype(mapped){}) {
          const Words buffer(address.result(), std::min(told, bytes));
          observe_check(me, what + ", a buffer has the right values", [&] {
            return copy_reads(buffer, pattern("exporter"));
          });
          CALL(api.mem_free(buffer.data));
        } else {
          me.observe(what + ", a buffer: " + name_of(mapped));
        }
        Sentinel<void*> beyond;
        const auto all =
            map_external(api, beyond.out(), memory.result(), 0, 2 * bytes);
        cudaGetLastError();
        me.observe(what + ", a buffer of twice the memory: " + name_of(all));
        if (all == decltype(all){}) CALL(api.mem_free(beyond.result()));
        CALL(destroy_external(api, memory.result()));
      }
    });
    EXPECT_READS(mapping, pattern("exporter"));
    EXPECT_READS(neighbour, pattern("neighbour"));
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(ExternalMemory, ABufferLiesInTheMemory) {
  covers("XMEM-07");
  needs(gpus(1), vmm_fd, external_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("importer", [](Role& me) {
    const size_t bytes = 2 * granule();
    const Chunk chunk = Chunk::create(bytes), other = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes), neighbour(other, bytes);
    mapping.fill(pattern("exporter"));
    neighbour.fill(pattern("neighbour"));
    by_both_apis([&](auto api) {
      const External memory(api, chunk.descriptor(), bytes);
      const struct {
        const char* what;
        size_t offset, size;
        unsigned flags;
      } inputs[] = {{"no bytes", 0, 0, 0},
                    {"one granule too many", 0, bytes + granule(), 0},
                    {"the end is beyond", granule(), bytes, 0},
                    {"the offset is the size", bytes, granule(), 0},
                    {"the offset is beyond", 4 * bytes, granule(), 0},
                    {"offset and size overflow", granule(),
                     ~size_t{0} - granule() + 1, 0},
                    {"flags 1", 0, bytes, 1},
                    {"all flags", 0, bytes, ~0u},
                    {"an offset of 8 bytes", 8, 8, 0}};
      for (const auto& input : inputs) {
        SCOPED_TRACE(input.what);
        Sentinel<void*> address;
        const auto code = map_external(api, address.out(), memory.get(),
                                       input.offset, input.size, input.flags);
        cudaGetLastError();
        me.observe(input.what + by_the(api) + ": " + name_of(code));
        if (code == decltype(code){})
          CALL(api.mem_free(address.result()));
        else
          note_touched(me, address, "the mapping");
      }
      // The refusals leave the object as it was.
      const ExternalBuffer buffer(api, memory, 0, bytes);
      EXPECT_READS(buffer, pattern("exporter"));
    });
    EXPECT_READS(mapping, pattern("exporter"));
    EXPECT_READS(neighbour, pattern("neighbour"));
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(ExternalMemory, ABufferIsFreed) {
  covers("XMEM-08");
  needs(gpus(1), vmm_fd, external_memory, alone);
  Scenario scenario;
  scenario.role("importer", [](Role&) {
    const size_t bytes = 8 * granule();
    by_both_apis([&](auto api) {
      Chunk chunk = Chunk::create(bytes);
      Mapping mapping(chunk, bytes);
      mapping.fill(pattern("exporter"));
      External memory(api, chunk.descriptor(), bytes);
      ExternalBuffer buffer(api, memory, 0, bytes);
      const void* const address = buffer.data;
      EXPECT_READS(buffer, pattern("exporter"));
      // The free ends the buffer and nothing else.
      EXPECT_SUCCESS(api.mem_free(buffer.data));
      buffer.data = nullptr;
      EXPECT_READS(mapping, pattern("exporter"));
      cudaPointerAttributes told{};
      const cudaError_t code = NOTED(cudaPointerGetAttributes(&told, address));
      cudaGetLastError();
      EXPECT_TRUE(code != cudaSuccess || told.type != cudaMemoryTypeDevice)
          << "the freed buffer is still known as memory of a device";
      ExternalBuffer second(api, memory, 0, bytes);
      EXPECT_READS(second, pattern("exporter"));
      // Without its creator's references, the memory lives as long as these.
      const size_t before = free_memory();
      mapping.unmap();
      chunk.release();
      EXPECT_READS(second, pattern("exporter"));
      second.free();
      memory.destroy();
      EXPECT_TRUE(returned(before, bytes));
    });
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(ExternalMemory, ABufferIsFreedAfterTheDestroy) {
  covers("XMEM-09");
  needs(gpus(1), vmm_fd, external_memory, alone);
  Scenario scenario;
  scenario.role("importer", [](Role&) {
    const size_t bytes = 8 * granule();
    by_both_apis([&](auto api) {
      Chunk chunk = Chunk::create(bytes);
      Mapping mapping(chunk, bytes);
      mapping.fill(pattern("exporter"));
      External memory(api, chunk.descriptor(), bytes);
      ExternalBuffer first(api, memory, 0, bytes / 2),
          second(api, memory, bytes / 2, bytes / 2);
      EXPECT_SUCCESS(destroy_external(api, memory.get()));
      memory.forget();
      EXPECT_SUCCESS(api.mem_free(first.data));
      first.data = nullptr;
      EXPECT_SUCCESS(api.mem_free(second.data));
      second.data = nullptr;
      EXPECT_READS(mapping, pattern("exporter"));
      const size_t before = free_memory();
      mapping.unmap();
      chunk.release();
      EXPECT_TRUE(returned(before, bytes));
    });
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(ExternalMemory, ABufferAfterTheDestroy) {
  covers("XMEM-10");
  needs(gpus(1), vmm_fd, external_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter",
                lends_to_both_apis(1, [](Role& me, const Mapping& mapping,
                                         const std::string& turn) {
                  me.wait_until_done("importer" + turn);
                  EXPECT_READS(mapping, pattern("exporter"));
                }));
  for_each_api([&](auto api) {
    const std::string turn = by_the(api);
    scenario
        .role("importer" + turn,
              [api, turn](Role& me) {
                CALL(cudaFree(nullptr));
                const size_t bytes = granule();
                External memory(api, me.receive_descriptor("descriptor" + turn),
                                bytes);
                ExternalBuffer buffer(api, memory, 0, bytes);
                EXPECT_READS(buffer, pattern("exporter"));
                memory.destroy();
                const std::string seen =
                    seen_by_kernel(buffer, pattern("exporter"));
                me.observe("a buffer after the destroy: " +
                           (seen == "the values that come later"
                                ? std::string("the exporter's values")
                                : seen));
                // After a fault the context is lost, and so is the buffer.
                if (cudaDeviceSynchronize() == cudaSuccess)
                  EXPECT_SUCCESS(api.mem_free(buffer.data));
                buffer.data = nullptr;
                me.signal("done" + turn);
              })
        .in_new_process();
  });
  scenario.run(20s);
}

TEST(ExternalMemory, ImportsAreIndependent) {
  covers("XMEM-11");
  needs(gpus(1), vmm_fd, external_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter",
                lends_to_both_apis(1, [](Role& me, const Mapping& mapping,
                                         const std::string& turn) {
                  const auto fill = [&](const char* values) {
                    mapping.fill(pattern(values));
                    me.signal(values + turn);
                  };
                  me.wait("written by the first" + turn);
                  EXPECT_READS(mapping, pattern("by the first"));
                  fill("again");
                  me.wait("written by the second" + turn);
                  EXPECT_READS(mapping, pattern("by the second"));
                  fill("last");
                }));
  scenario.role("importer", [](Role& me) {
    by_both_apis([&](auto api) {
      const std::string turn = by_the(api);
      const size_t bytes = granule();
      const Descriptor descriptor = me.receive_descriptor("descriptor" + turn);
      External first(api, Descriptor(duplicate(descriptor)), bytes);
      const External second(api, Descriptor(duplicate(descriptor)), bytes);
      const Chunk third = Chunk::import(descriptor);  // VMM, beside the two
      ExternalBuffer one(api, first, 0, bytes);
      const ExternalBuffer two(api, second, 0, bytes);
      const Mapping three(third, bytes);
      for (const Words& words : {Words(one), Words(two), Words(three)})
        EXPECT_READS(words, pattern("exporter"));
      // What one buffer writes, the exporter reads, and what the others read,
      // the exporter has written. No sentence promises that two buffers of one
      // process see each other's writes.
      one.fill(pattern("by the first"));
      me.signal("written by the first" + turn);
      me.wait("again" + turn);
      for (const Words& words : {Words(one), Words(two), Words(three)})
        EXPECT_READS(words, pattern("again"));
      one.free();
      first.destroy();
      EXPECT_READS(two, pattern("again"));
      EXPECT_READS(three, pattern("again"));
      two.fill(pattern("by the second"));
      me.signal("written by the second" + turn);
      me.wait("last" + turn);
      EXPECT_READS(two, pattern("last"));
      EXPECT_READS(three, pattern("last"));
      me.signal("done" + turn);
    });
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(ExternalMemory, AnImportOutlivesTheExporter) {
  covers("XMEM-12");
  needs(gpus(1), vmm_fd, external_memory);
  Scenario scenario(Scenario::kShared);
  for_each_api([&](auto api) {
    const std::string turn = by_the(api);
    // One exporter releases the memory, the other one is killed.
    const bool killed = api.kName == DriverApi::kName;
    scenario
        .role("exporter" + turn,
              [turn, killed](Role& me) {
                const size_t bytes = granule();
                Chunk chunk = Chunk::create(bytes);
                Mapping mapping(chunk, bytes);
                mapping.fill(pattern("exporter"));
                CALL(cudaDeviceSynchronize());
                me.send_descriptor("descriptor" + turn,
                                   chunk.descriptor().get());
                me.wait("imported" + turn);
                if (killed) me.die(SIGKILL);
                mapping.unmap();
                chunk.release();
              })
        .in_new_process();
    scenario.role("importer" + turn, [api, turn](Role& me) {
      CALL(cudaFree(nullptr));
      const size_t bytes = granule();
      const External memory(api, me.receive_descriptor("descriptor" + turn),
                            bytes);
      me.signal("imported" + turn);
      me.wait_until_done("exporter" + turn);
      // New memory must not be this memory.
      const DriverBuffer later(4 * bytes);
      later.fill(pattern("later"));
      const ExternalBuffer buffer(api, memory, 0, bytes);
      EXPECT_READS(buffer, pattern("exporter"));
      buffer.fill(pattern("importer"));
      EXPECT_READS(buffer, pattern("importer"));
      EXPECT_READS(later, pattern("later"));
      EXPECT_TRUE(context_is_usable());
    });
  });
  scenario.run(20s);
}

TEST(ExternalMemory, BuffersThatOverlap) {
  covers("XMEM-13");
  needs(gpus(1), vmm_fd, external_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("importer", [](Role& me) {
    const size_t bytes = 2 * granule(), half = bytes / 2;
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    by_both_apis([&](auto api) {
      mapping.fill(pattern("exporter"));
      CALL(cudaDeviceSynchronize());
      const External memory(api, chunk.descriptor(), bytes);
      const ExternalBuffer all(api, memory, 0, bytes);
      Sentinel<void*> address;
      const auto code =
          map_external(api, address.out(), memory.get(), half, half);
      cudaGetLastError();
      if (code != decltype(code){}) {
        me.observe("a buffer that overlaps another one" + by_the(api) + ": " +
                   name_of(code));
        EXPECT_READS(all, pattern("exporter"));
        return;
      }
      const Words second(address.result(), half);
      auto* const end = reinterpret_cast<unsigned char*>(all.data) + half;
      const bool same = address.result() == static_cast<void*>(end);
      me.observe(std::string("two buffers that overlap have ") +
                 (same ? "one address" : "two addresses") + by_the(api));
      second.fill(pattern("second"));
      CALL(cudaDeviceSynchronize());
      const Words second_half(end, half);
      me.observe(
          std::string("a later kernel reads the other buffer's writes: ") +
          (kernel_reads(second_half, pattern("second")) ? "yes" : "no"));
      EXPECT_READS(second, pattern("second"));
      CALL(api.mem_free(second.data));
      observe_check(me, "its writes are in the memory after its free", [&] {
        return copy_reads(words_at(mapping.address() + half, half),
                          pattern("second"));
      });
      // The free of one buffer leaves the other one.
      all.fill(pattern("all"));
      EXPECT_READS(all, pattern("all"));
    });
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(ExternalMemory, ADedicatedResource) {
  covers("XMEM-14");
  needs(gpus(1), vmm_fd, external_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    by_both_apis([&](auto api) {
      const int number = chunk.descriptor().release();
      const FileIdentity before(number);
      Sentinel<cudaExternalMemory_t> memory;
      const auto code = import_external(
          api, memory.out(), {number, bytes, CUDA_EXTERNAL_MEMORY_DEDICATED});
      cudaGetLastError();
      me.observe("CUDA_EXTERNAL_MEMORY_DEDICATED" + by_the(api) + ": " +
                 name_of(code));
      if (code != decltype(code){}) {
        if (FileIdentity(number) == before) close(number);
        return;
      }
      Sentinel<void*> address;
      const auto mapped =
          map_external(api, address.out(), memory.result(), 0, bytes);
      cudaGetLastError();
      if (mapped == decltype(mapped){}) {
        const Words buffer(address.result(), bytes);
        EXPECT_READS(buffer, pattern("exporter"));
        CALL(api.mem_free(buffer.data));
      } else {
        me.observe("its buffer" + by_the(api) + ": " + name_of(mapped));
      }
      CALL(destroy_external(api, memory.result()));
    });
    EXPECT_READS(mapping, pattern("exporter"));
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

static cudaError_t import_semaphore(RuntimeApi, cudaExternalSemaphore_t* made,
                                    int descriptor, int type) {
  cudaExternalSemaphoreHandleDesc told{};
  told.type = static_cast<cudaExternalSemaphoreHandleType>(type);
  told.handle.fd = descriptor;
  return NOTED(cudaImportExternalSemaphore(made, &told));
}
static CUresult import_semaphore(DriverApi, cudaExternalSemaphore_t* made,
                                 int descriptor, int type) {
  CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC told{};
  told.type = static_cast<CUexternalSemaphoreHandleType>(type);
  told.handle.fd = descriptor;
  return NOTED(DRIVER(cuImportExternalSemaphore)(
      reinterpret_cast<CUexternalSemaphore*>(made), &told));
}
static void destroy_semaphore(RuntimeApi, cudaExternalSemaphore_t made) {
  CALL(cudaDestroyExternalSemaphore(made));
}
static void destroy_semaphore(DriverApi, cudaExternalSemaphore_t made) {
  CALL(DRIVER(cuDestroyExternalSemaphore)(
      reinterpret_cast<CUexternalSemaphore>(made)));
}

TEST(ExternalMemory, ARefusedSemaphoreLeavesTheDescriptor) {
  covers("XMEM-15");
  needs(gpus(1), external_memory);
  Scenario scenario(Scenario::kShared);
  scenario
      .role(
          "importer",
          [](Role& me) {
            by_both_apis([&](auto api) {
              Answers answers;
              for (
                  const int type :
                  {int{CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD},
                   int{CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD}})
                for (Candidate& other : foreign_descriptors()) {
                  const std::string what = other.what + " as type " +
                                           std::to_string(type) + by_the(api);
                  SCOPED_TRACE(what);
                  const int number =
                      other.owned ? other.owned.release() : other.number;
                  const FileIdentity before(number);
                  Sentinel<cudaExternalSemaphore_t> made;
                  const auto code =
                      import_semaphore(api, made.out(), number, type);
                  cudaGetLastError();
                  if (answers.accepted(code)) {
                    destroy_semaphore(api, made.result());
                    continue;
                  }
                  const bool still_open = FileIdentity(number) == before;
                  EXPECT_TRUE(still_open)
                      << what << ": the descriptor is closed";
                  if (before.open && still_open) close(number);
                }
              answers.tell(
                  me, "imports of other things as semaphores" + by_the(api));
            });
            EXPECT_TRUE(context_is_usable());
          })
      .in_new_process();
  scenario.run(20s);
}
