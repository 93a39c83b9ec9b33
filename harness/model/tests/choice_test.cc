// SPDX-License-Identifier: Apache-2.0
// The choices of core/choice.cc: choices.json lists the same names, and each
// choice makes the difference that its line promises.
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "gpu.h"
#include "peer.h"
#include "pool.h"

using namespace ipclab::model::test;

namespace {

using Environment = std::map<std::string, std::string>;

Environment with(const char* name) { return {{"IPCLAB_CHOICE", name}}; }

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::set<std::string> matches(const std::string& text, const char* pattern) {
  std::set<std::string> found;
  const std::regex expression(pattern);
  for (std::sregex_iterator match(text.begin(), text.end(), expression), end;
       match != end; ++match) {
    found.insert((*match)[1]);
  }
  return found;
}

TEST(Choices, ListAndTableAgree) {
  const std::filesystem::path root = IPCLAB_MODEL_SOURCE;
  const std::set<std::string> table =
      matches(text_of(root / "core/choice.cc"),
              R"re(\{Choice::k\w+, "([a-z0-9-]+)")re");
  EXPECT_FALSE(table.empty());
  EXPECT_LE(table.size(), 25u);
  EXPECT_EQ(matches(text_of(root / "choices.json"), R"re("name": "([^"]+)")re"),
            table);
}

struct Seen {
  void* address;
  cudaError_t behind;  // the result of a kernel after the allocation
};

ROLE(looks_behind) {
  void* data = nullptr;
  const auto handle = test.receive<cudaIpcMemHandle_t>();
  EXPECT_EQ(cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess),
            cudaSuccess);
  int* own = allocate<int>(1);
  const int* behind = static_cast<int*>(data) + 1024;
  EXPECT_EQ(launch("read_one", 1, 1, nullptr, behind, own), CUDA_SUCCESS);
  test.send(Seen{data, cudaDeviceSynchronize()});
}

Seen seen_by_importer(const Environment& environment) {
  int* data = allocate<int>(1);
  Peer peer("looks_behind", environment);
  peer.channel().send(memory_handle(data));
  const Seen seen = peer.channel().receive<Seen>();
  EXPECT_EQ(peer.wait(), "exit 0");
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  return seen;
}

TEST(Choices, AnotherAddress) {
  EXPECT_NE(seen_by_importer({}).address,
            seen_by_importer(with("ok-different-va")).address);
}

TEST(Choices, OnlyTheAllocation) {
  EXPECT_EQ(seen_by_importer({}).behind, cudaSuccess);
  EXPECT_EQ(seen_by_importer(with("ok-isolated-suballoc")).behind,
            cudaErrorIllegalAddress);
}

ROLE(trims_a_pool) {
  cudaMemPool_t pool =
      create(on_device(0, cudaMemHandleTypePosixFileDescriptor));
  EXPECT_EQ(cudaFreeAsync(take(pool, 4 * kMiB, nullptr), nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaMemPoolTrimTo(pool, 0), cudaSuccess);
  test.send(reserved(pool));
}

uint64_t reserved_after_trim(const Environment& environment) {
  Peer peer("trims_a_pool", environment);
  const auto reserved = peer.channel().receive<uint64_t>();
  EXPECT_EQ(peer.wait(), "exit 0");
  return reserved;
}

TEST(Choices, PoolsRelease) {
  EXPECT_GT(reserved_after_trim({}), 0u);
  EXPECT_EQ(reserved_after_trim(with("ok-trim-releases")), 0u);
}

}  // namespace
