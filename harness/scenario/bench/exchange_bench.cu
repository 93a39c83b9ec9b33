// Measures what the harness costs. The same exchange of two roles runs bare
// (fork, exec, a socket pair, wait) and as a scenario, in turn, many times.
// Prints the medians and their ratio; judges nothing.
//
// exchange_bench [rounds]     without CUDA; if there is a GPU, then also with
// CUDA
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "harness/scenario/bench/bench.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;

struct Talk {
  std::function<void(const void*, size_t)> send;
  std::function<void(void*, size_t)> receive;
};

void exporter(bool cuda, const Talk& talk) {
  cudaIpcMemHandle_t handle{};
  void* memory = nullptr;
  char closed;
  if (cuda) {
    CUDA_CHECK(cudaMalloc(&memory, kBytes));
    CUDA_CHECK(cudaIpcGetMemHandle(&handle, memory));
  }
  talk.send(&handle, sizeof handle);
  talk.receive(&closed, 1);
  if (cuda) CUDA_CHECK(cudaFree(memory));
}

void importer(bool cuda, const Talk& talk) {
  cudaIpcMemHandle_t handle;
  void* memory = nullptr;
  talk.receive(&handle, sizeof handle);
  if (cuda) {
    CUDA_CHECK(
        cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess));
    CUDA_CHECK(cudaIpcCloseMemHandle(memory));
  }
  talk.send("c", 1);
}

// --- bare -------------------------------------------------------------------

int bare_role(char** argv) {
  const bool cuda = std::strcmp(argv[3], "cuda") == 0;
  const int socket = std::atoi(argv[4]);
  const Talk talk{
      [=](const void* data, size_t size) {
        SYS_CHECK(write(socket, data, size));
      },
      [=](void* data, size_t size) { SYS_CHECK(read(socket, data, size)); }};
  if (std::strcmp(argv[2], "exporter") == 0)
    exporter(cuda, talk);
  else
    importer(cuda, talk);
  return EXIT_SUCCESS;
}

void bare(bool cuda) {
  int ends[2];
  SYS_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
  pid_t pids[2];
  for (int i = 0; i < 2; ++i) {
    pids[i] = fork();
    SYS_CHECK(pids[i]);
    if (pids[i] != 0) continue;
    const std::string socket = std::to_string(dup(ends[i]));
    execl("/proc/self/exe", "bare", "--bare", i == 0 ? "exporter" : "importer",
          cuda ? "cuda" : "plain", socket.c_str(), nullptr);
    _exit(EXIT_FAILURE);
  }
  close(ends[0]);
  close(ends[1]);
  for (const pid_t pid : pids) {
    int status = -1;
    SYS_CHECK(waitpid(pid, &status, 0));
    ASSERT_EQ(status, 0);
  }
}

// --- as a scenario ----------------------------------------------------------

Talk talk_of(Role& me) {
  return {[&me](const void* data, size_t size) {
            me.send_bytes("bytes",
                          std::string(static_cast<const char*>(data), size));
          },
          [&me](void* data, size_t size) {
            std::memcpy(data, me.receive_bytes("bytes").data(), size);
          }};
}

void as_scenario(bool cuda) {
  Scenario scenario;
  scenario.role("exporter", [=](Role& me) { exporter(cuda, talk_of(me)); });
  scenario.role("importer", [=](Role& me) { importer(cuda, talk_of(me)); });
  scenario.run(30s);
}

// ----------------------------------------------------------------------------

void compare(bool cuda) {
  std::vector<double> bare_ms, scenario_ms;
  for (int round = 0; round < rounds(); ++round) {
    if (!in_role()) bare_ms.push_back(milliseconds([=] { bare(cuda); }));
    scenario_ms.push_back(milliseconds([=] { as_scenario(cuda); }));
  }
  const double bare_median = median(bare_ms);
  const double scenario_median = median(scenario_ms);
  std::printf(
      "%-12s  bare %8.2f ms   scenario %8.2f ms   ratio %.3f   "
      "%+.2f ms a role   (medians of %d)\n",
      cuda ? "with CUDA" : "without CUDA", bare_median, scenario_median,
      scenario_median / bare_median, (scenario_median - bare_median) / 2,
      rounds());
}

}  // namespace

TEST(Exchange, WithoutCuda) { compare(false); }

TEST(Exchange, WithCuda) {
  needs(gpus(1), legacy_memory);
  compare(true);
}

int main(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "--bare") == 0) return bare_role(argv);
  return bench_main(argc, argv);
}
