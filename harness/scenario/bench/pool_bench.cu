// Measures what pools save: allocating and freeing from a pool, compared with
// cudaMalloc and cudaFree; and importing a pointer, compared with opening a
// legacy handle. The two sides of a comparison take turns within one run.
// Prints medians and their ratio; judges nothing.
//
//   pool_bench [rounds]
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>
#include <utility>

#include "harness/scenario/bench/bench.h"
#include "harness/scenario/pool.h"

using namespace ipclab;

namespace {

constexpr size_t kMiB = 1 << 20;
constexpr size_t kSizes[] = {2 * kMiB, 256 * kMiB};

// Prints a line: the two medians, and how many times longer the first one is.
// The referee prints the output of the role again.
void print_ratio(size_t bytes, const char* slow, std::vector<double> slow_ms,
                 const char* fast, std::vector<double> fast_ms) {
  const double slow_us = 1000 * median(std::move(slow_ms));
  const double fast_us = 1000 * median(std::move(fast_ms));
  std::printf(
      "%4zu MiB   %-22s %9.2f us   %-22s %9.2f us   ratio %.1f   "
      "(medians of %d)\n",
      bytes / kMiB, slow, slow_us, fast, fast_us, slow_us / fast_us, rounds());
}

}  // namespace

TEST(Pools, AllocateAndFree) {
  needs(gpus(1), pools);
  Scenario scenario;
  scenario.role("allocator", [](Role&) {
    const Stream stream;
    for (const size_t bytes : kSizes) {
      const Pool pool;
      set_attribute(pool, cudaMemPoolAttrReleaseThreshold, UINT64_MAX);
      void* memory = nullptr;
      const auto plain = [&] {
        CUDA_CHECK(cudaMalloc(&memory, bytes));
        CUDA_CHECK(cudaFree(memory));
      };
      const auto pooled = [&] {
        CUDA_CHECK(cudaMallocFromPoolAsync(&memory, bytes, pool, stream));
        CUDA_CHECK(cudaFreeAsync(memory, stream));
      };
      std::vector<double> plain_ms, pooled_ms;
      pooled();  // the first call fills the pool
      for (int round = 0; round < rounds(); ++round) {
        CALL(cudaDeviceSynchronize());
        plain_ms.push_back(milliseconds(plain));
        CALL(cudaDeviceSynchronize());
        pooled_ms.push_back(milliseconds(pooled));
      }
      CALL(cudaDeviceSynchronize());
      print_ratio(bytes, "cudaMalloc, cudaFree", plain_ms, "from a full pool",
                  pooled_ms);
    }
  });
  scenario.run(60s);
  std::printf("%s", scenario.ended("allocator").output.c_str());
}

TEST(Pools, ImportAndOpen) {
  needs(gpus(1), pool_fd, legacy_memory);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    me.send_descriptor("pool", pool.exported().get());
    for (const size_t bytes : kSizes)
      for (int round = 0; round < rounds(); ++round) {
        const DeviceBuffer plain(bytes);
        const AsyncBuffer pooled(pool, bytes);
        CALL(cudaDeviceSynchronize());
        me.send("handle", plain.legacy_handle());
        me.send("pointer", pooled.exported());
        me.wait("given back");
      }
  });

  scenario.role("importer", [](Role& me) {
    const Pool pool(me.receive_descriptor("pool"));
    for (const size_t bytes : kSizes) {
      std::vector<double> open_ms, import_ms;
      for (int round = 0; round < rounds(); ++round) {
        const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
        auto pointer = me.receive<cudaMemPoolPtrExportData>("pointer");
        void *opened = nullptr, *imported = nullptr;
        open_ms.push_back(milliseconds([&] {
          CUDA_CHECK(cudaIpcOpenMemHandle(&opened, handle,
                                          cudaIpcMemLazyEnablePeerAccess));
        }));
        import_ms.push_back(milliseconds([&] {
          CUDA_CHECK(cudaMemPoolImportPointer(&imported, pool, &pointer));
        }));
        CALL(cudaIpcCloseMemHandle(opened));
        CALL(cudaFree(imported));
        me.signal("given back");
      }
      print_ratio(bytes, "cudaIpcOpenMemHandle", open_ms, "import of a pointer",
                  import_ms);
    }
  });

  scenario.run(60s);
  std::printf("%s", scenario.ended("importer").output.c_str());
}

int main(int argc, char** argv) { return bench_main(argc, argv); }
