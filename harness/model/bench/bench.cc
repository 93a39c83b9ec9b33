// SPDX-License-Identifier: Apache-2.0
// What the model's calls cost, beside a pipe round trip between two processes
// on the same machine: absolute times differ from machine to machine, the
// ratios hardly do.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "gpu.h"
#include "peer.h"

using namespace ipclab::model::test;

namespace {

template <typename Call>
double microseconds(int rounds, Call call) {
  call();  // once without the clock
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < rounds; ++i) call();
  const std::chrono::duration<double, std::micro> taken =
      std::chrono::steady_clock::now() - begin;
  return taken.count() / rounds;
}

void print(const char* what, double us, double pipe) {
  std::printf("%-44s %9.2f us  %7.3f round trips\n", what, us, us / pipe);
}

ROLE(echo) {
  test.send(memory_handle(allocate<int>(4 << 20)));
  for (int value = 1; value != 0; test.send(value)) value = test.receive<int>();
}

double free_memory() {
  return microseconds(2000, [] {
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
  });
}

void measure() {
  Peer peer("echo");
  const auto handle = peer.channel().receive<cudaIpcMemHandle_t>();
  const double pipe = microseconds(2000, [&] {
    peer.channel().send(1);
    peer.channel().receive<int>();
  });
  print("pipe round trip", pipe, pipe);
  print("open + close of a legacy handle",
        microseconds(2000,
                     [&] {
                       void* data = nullptr;
                       cudaIpcOpenMemHandle(&data, handle,
                                            cudaIpcMemLazyEnablePeerAccess);
                       cudaIpcCloseMemHandle(data);
                     }),
        pipe);
  int* data = allocate<int>(1);
  const CUfunction write_one = kernel("write_one");
  int value = 1;
  void* arguments[] = {&data, &value};
  print("launch, without waiting",
        microseconds(5000,
                     [&] {
                       cuLaunchKernel(write_one, 1, 1, 1, 1, 1, 1, 0, nullptr,
                                      arguments, nullptr);
                     }),
        pipe);
  cudaDeviceSynchronize();
  print("launch + synchronise",
        microseconds(5000,
                     [&] {
                       cuLaunchKernel(write_one, 1, 1, 1, 1, 1, 1, 0, nullptr,
                                      arguments, nullptr);
                       cudaDeviceSynchronize();
                     }),
        pipe);
  print("cudaMemcpy of 4 bytes to the host",
        microseconds(20000,
                     [&] {
                       cudaMemcpy(&value, data, sizeof value,
                                  cudaMemcpyDeviceToHost);
                     }),
        pipe);
  print("cudaMalloc + cudaFree of 4 KiB",
        microseconds(5000, [&] { cudaFree(allocate<char>(4096)); }), pipe);
  print("cudaMalloc + cudaFree of 4 MiB",
        microseconds(2000, [&] { cudaFree(allocate<char>(4 << 20)); }), pipe);
  print("cudaMemGetInfo", free_memory(), pipe);
  constexpr int kPeers = 150;
  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 0; i < kPeers; ++i) {
    peers.push_back(std::make_unique<Peer>("echo"));
    peers.back()->channel().receive<cudaIpcMemHandle_t>();
  }
  print("cudaMemGetInfo beside 150 processes", free_memory(), pipe);
  for (const auto& one : peers) one->channel().send(0);
  peer.channel().send(0);
  peer.channel().receive<int>();
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  run_role(argc, argv);
  measure();
  return 0;
}
