// These functions measure the times of lesson 73 and write them down.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../common/data.h"

/// Returns the number of rounds of a measurement: IPCLAB_COSTS_ROUNDS,
/// but at least 1; or 3 if this variable is not set.
inline int rounds() {
  const char* wanted = std::getenv("IPCLAB_COSTS_ROUNDS");
  return wanted == nullptr ? 3 : std::max(1, std::atoi(wanted));
}

/// Returns how many microseconds of the host's clock `work` takes.
template <class Work>
double time_of(Work work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double, std::micro> taken =
      std::chrono::steady_clock::now() - begin;
  return taken.count();
}

/// Returns how many microseconds of the GPU's clock `work` takes in the
/// default stream.
template <class Work>
double gpu_time_of(Work work) {
  cudaEvent_t begin, end;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  CUDA_CHECK(cudaEventRecord(begin));
  work();
  CUDA_CHECK(cudaEventRecord(end));
  CUDA_CHECK(cudaEventSynchronize(end));
  float taken = 0;
  CUDA_CHECK(cudaEventElapsedTime(&taken, begin, end));
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  return taken * 1e3;
}

/// Returns the median of the values.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Returns the largest size in MiB: IPCLAB_COSTS_MIB, but at least 2;
/// or 32 if this variable is not set.
inline int largest_mib() {
  const char* wanted = std::getenv("IPCLAB_COSTS_MIB");
  return wanted == nullptr ? 32 : std::max(2, std::atoi(wanted));
}

/// Prints named figures. If IPCLAB_COSTS_JSON names a file, appends the
/// figures to this file, as one line with a JSON object. Memory of
/// another process is on `gpu`; GPU 0 reads.
inline void note(
    const char* way, int gpu, int mib,
    const std::vector<std::pair<const char*, double>>& figures) {
  cudaDeviceProp device{};
  int driver = 0;
  CUDA_CHECK(cudaGetDeviceProperties(&device, 0));
  CUDA_CHECK(cudaDriverGetVersion(&driver));
  std::string json = "{\"device\": \"" + std::string(device.name) +
                     "\", \"cuda\": " + std::to_string(driver) +
                     ", \"rounds\": " + std::to_string(rounds()) +
                     ", \"way\": \"" + way +
                     "\", \"gpu\": " + std::to_string(gpu) +
                     ", \"mib\": " + std::to_string(mib);
  std::string line;
  for (const auto& [name, value] : figures) {
    char text[80];
    std::snprintf(text, sizeof text, "  %s [%.4g]", name, value);
    line += text;
    std::snprintf(text, sizeof text, ", \"%s\": %.4g", name, value);
    json += text;
  }
  say("GPU %d %4d MiB  %-24s%s", gpu, mib, way, line.c_str());

  const char* file = std::getenv("IPCLAB_COSTS_JSON");
  if (file == nullptr) return;
  std::FILE* out = std::fopen(file, "a");
  if (out == nullptr || std::fprintf(out, "%s}\n", json.c_str()) < 0 ||
      std::fclose(out) != 0) {
    std::fprintf(stderr, "%s: %s\n", file, std::strerror(errno));
    std::exit(2);
  }
}

//! [ways]
/// A way to get memory: memory of this process, or memory that another
/// process has filled.
struct Way {
  const char* name;                  ///< the name in the table
  std::function<void*()> open;       ///< returns the memory
  std::function<void(void*)> close;  ///< releases the memory
};

/// Measures all ways. The first way is memory of this process: this
/// function writes first, first + 1 … there. Returns how many of the
/// values that were read are wrong.
inline int measure(const std::vector<Way>& ways, int gpu, int mib,
                   int first) {
  const size_t bytes = size_t(mib) << 20;
  const size_t count = ways.size();
  std::vector<std::vector<double>> opens(count), closes(count),
      reads(count);
  std::vector<void*> from(count);
  for (int i = 0; i <= rounds(); ++i)  // the last open stays open
    for (size_t way = 0; way < count; ++way) {
      opens[way].push_back(
          time_of([&] { from[way] = ways[way].open(); }));
      if (i < rounds())
        closes[way].push_back(
            time_of([&] { ways[way].close(from[way]); }));
    }

  void* to = nullptr;
  CUDA_CHECK(cudaMalloc(&to, bytes));
  write_values(from[0], bytes / 4, first);
  int wrong = 0;
  for (void* data : from) {  // the first copies are not measured
    CUDA_CHECK(cudaMemset(to, kPoison, bytes));
    CUDA_CHECK(cudaMemcpy(to, data, bytes, cudaMemcpyDefault));
    wrong += count_wrong(to, bytes / 4, first);
  }
  // The ways take turns, so other load slows down all of them.
  for (int i = 0; i < rounds(); ++i)
    for (size_t way = 0; way < count; ++way)
      reads[way].push_back(gpu_time_of([&] {
        CUDA_CHECK(
            cudaMemcpyAsync(to, from[way], bytes, cudaMemcpyDefault));
      }));
  for (size_t way = 0; way < count; ++way) {
    ways[way].close(from[way]);
    note(ways[way].name, gpu, mib,
         {{"open_us", median(opens[way])},
          {"close_us", median(closes[way])},
          {"gb_per_s", bytes / median(reads[way]) / 1e3}});
  }
  CUDA_CHECK(cudaFree(to));
  return wrong;
}
//! [ways]

/// Sends or receives all bytes over a stream socket.
template <class Call, class Bytes>
void all_bytes(Call call, int socket, Bytes* bytes, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t n = call(socket, bytes + done, size - done);
    SYS_CHECK(n);
    if (n == 0) std::exit(EXIT_FAILURE);  // the other role has ended
    done += n;
  }
}
