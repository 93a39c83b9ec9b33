// SPDX-License-Identifier: Apache-2.0
// Measures the interpreter: thread instructions per second, and the time of an
// empty launch. For comparison it also measures the same work in a plain loop
// on the host.
#include <algorithm>
#include <chrono>
#include <functional>

#include "../tests/device.h"

namespace {

using namespace ipclab::ptx;
using namespace ipclab::ptx::testing;

constexpr int kCount = 1 << 20;
constexpr uint64_t kCountBytes = uint64_t{kCount} * 4;
constexpr int kBytes = 16 << 20;
constexpr int kRepetitions = 7;

/// The best of several runs, in seconds.
double best_of(const std::function<void()>& work) {
  double best = 1e9;
  for (int k = 0; k < kRepetitions; ++k) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  return best;
}

void check(const std::optional<Fault>& fault) {
  if (!fault) return;
  std::fprintf(stderr, "%s\n", fault->what.c_str());
  std::exit(1);
}

void report(const char* name, double instructions, double model, double host) {
  std::printf(
      "%-14s %7.2f ms  %5.2f G thread-instructions/s  host loop %6.2f "
      "ms  ratio %5.1f\n",
      name, model * 1e3, instructions / model / 1e9, host * 1e3, model / host);
}

/// Keeps the compiler from dropping a host loop.
void keep(const void* data) { asm volatile("" : : "r"(data) : "memory"); }

}  // namespace

int main() try {
  const auto module = Module::parse(read_file(IPCLAB_PTX_KERNELS));
  Device device;
  device.load(*module);
  const uint64_t a = device.allocate(kCountBytes);
  const uint64_t b = device.allocate(kCountBytes);
  const uint64_t c = device.allocate(kCountBytes);
  const uint64_t bytes = device.allocate(kBytes);
  const Shape blocks = {kCount / 256}, threads = {256};
  const auto kernel = [&](const char* name) { return module->kernel(name); };

  // Instructions of one thread, counted in the PTX of nvcc 13.0 along the path
  // that it takes. For the reduction, the number is the mean over the threads
  // of a block.
  constexpr double kFill = 19, kAdd = 22, kReduce = 79, kByteLoop = 6;

  double model = best_of([&] {
    check(launch(device, kernel("fill"), blocks, threads, 0, 0, false, a, 7u,
                 uint64_t{kCount}));
  });
  double host = best_of([&] {
    auto* data = device.host<unsigned>(a);
    for (unsigned i = 0; i < kCount; ++i) data[i] = 7u ^ (i * 2654435761u);
    keep(data);
  });
  report("fill", kFill * kCount, model, host);

  model = best_of([&] {
    check(launch(device, kernel("add_vectors"), blocks, threads, 0, 0, false, a,
                 b, c, kCount));
  });
  host = best_of([&] {
    auto* x = device.host<float>(a);
    auto* y = device.host<float>(b);
    auto* z = device.host<float>(c);
    for (int i = 0; i < kCount; ++i) z[i] = x[i] + y[i];
    keep(z);
  });
  report("vector add", kAdd * kCount, model, host);

  model = best_of([&] {
    check(launch(device, kernel("reduce_block"), blocks, threads, 0, 0, false,
                 a, c, kCount));
  });
  host = best_of([&] {
    auto* x = device.host<float>(a);
    auto* z = device.host<float>(c);
    for (int block = 0; block < kCount / 256; ++block) {
      float sum = 0;
      for (int t = 0; t < 256; ++t) sum += x[block * 256 + t];
      z[block] = sum;
    }
    keep(z);
  });
  report("reduction", kReduce * kCount, model, host);

  model = best_of([&] {
    check(launch(device, kernel("fill_bytes"), Shape{1024}, Shape{128}, 0, 0,
                 false, bytes, kBytes, char{5}));
  });
  host = best_of([&] {
    auto* data = device.host<char>(bytes);
    for (int i = 0; i < kBytes; ++i) {
      data[i] = 5;
      keep(data);
    }
  });
  report("byte fill", kByteLoop * kBytes, model, host);

  for (const unsigned size : {1u, 256u}) {
    model = best_of([&] {
      for (int k = 0; k < 1000; ++k)
        check(launch(device, kernel("nothing"), Shape{1}, Shape{size}, 0, 0,
                     false));
    });
    std::printf("launch         %7.2f us  (1 block of %u)\n", model * 1e3,
                size);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
