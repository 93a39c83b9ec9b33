// SPDX-License-Identifier: Apache-2.0
// Measures the time of the model's calls, and compares it with a round trip
// through pipes between two processes on the same machine. Absolute times
// differ from machine to machine, but the ratios differ little. With an
// argument, the benchmark runs only the cases that have this text in their
// name.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gpu.h"
#include "peer.h"

using namespace ipclab::model::test;

namespace {

constexpr int kBatches = 100;

// The time of one call, from the fastest of many short batches: other load of
// the machine can only make a batch slower.
template <typename Call>
double microseconds(int rounds, Call call) {
  call();  // once, not measured
  double fastest = std::numeric_limits<double>::max();
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; ++i) call();
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - begin;
    fastest = std::min(fastest, taken.count() / rounds);
  }
  return fastest;
}

// Only cases with this text in their name run.
std::string wanted;

// The time with which all times are compared.
double round_trip = 0;

template <typename Call>
void measure(const std::string& what, int rounds, Call call) {
  if (what.find(wanted) == std::string::npos) return;
  const double us = microseconds(rounds, call);
  std::printf("%-44s %9.2f us  %7.3f round trips\n", what.c_str(), us,
              us / round_trip);
  std::fflush(stdout);
}

ROLE(echo) {
  test.send(memory_handle(allocate<int>(4 << 20)));
  for (int value = 1; value != 0; test.send(value)) value = test.receive<int>();
}

void open_and_close(const cudaIpcMemHandle_t& handle) {
  void* data = nullptr;
  const bool good =
      cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess) ==
          cudaSuccess &&
      cudaIpcCloseMemHandle(data) == cudaSuccess;
  if (!good) std::abort();
}

void ask_for_free_memory() {
  size_t available = 0, total = 0;
  if (cudaMemGetInfo(&available, &total) != cudaSuccess) std::abort();
}

void measure_launches() {
  int* data = allocate<int>(1);
  const CUfunction write_one = kernel("write_one");
  int value = 1;
  void* arguments[] = {&data, &value};
  const auto launch_one = [&] {
    cuLaunchKernel(write_one, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr);
  };
  measure("launch, without waiting", 50, launch_one);
  cudaDeviceSynchronize();
  measure("launch + synchronise", 50, [&] {
    launch_one();
    cudaDeviceSynchronize();
  });
  measure("cudaMemcpy of 4 bytes to the host", 200, [&] {
    cudaMemcpy(&value, data, sizeof value, cudaMemcpyDeviceToHost);
  });
  cudaFree(data);
}

void measure_beside_many() {
  const std::string what = "cudaMemGetInfo beside 150 processes";
  if (what.find(wanted) == std::string::npos) return;
  constexpr int kPeers = 150;
  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 0; i < kPeers; ++i) {
    peers.push_back(std::make_unique<Peer>("echo"));
    peers.back()->channel().receive<cudaIpcMemHandle_t>();
  }
  measure(what, 20, ask_for_free_memory);
  for (const auto& one : peers) one->channel().send(0);
}

void measure_all() {
  Peer peer("echo");
  const auto handle = peer.channel().receive<cudaIpcMemHandle_t>();
  const auto ask_peer = [&] {
    peer.channel().send(1);
    peer.channel().receive<int>();
  };
  round_trip = microseconds(20, ask_peer);
  measure("pipe round trip", 20, ask_peer);
  measure("open + close of a legacy handle", 20,
          [&] { open_and_close(handle); });
  measure_launches();
  measure("cudaMalloc + cudaFree of 4 KiB", 50,
          [] { cudaFree(allocate<char>(4096)); });
  measure("cudaMalloc + cudaFree of 4 MiB", 20,
          [] { cudaFree(allocate<char>(4 << 20)); });
  measure("cudaMemGetInfo", 20, ask_for_free_memory);
  measure_beside_many();
  peer.channel().send(0);
  peer.channel().receive<int>();
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  run_role(argc, argv);
  if (argc > 1) wanted = argv[1];
  measure_all();
  return 0;
}
