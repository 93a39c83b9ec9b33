// SPDX-License-Identifier: Apache-2.0
// mutants.json and the code name the same mutants, and one that is switched on
// makes a difference.
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "gpu.h"
#include "peer.h"

using namespace ipclab::model::test;

namespace {

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

TEST(Mutants, ListAndCodeAgree) {
  const std::filesystem::path root = IPCLAB_MODEL_SOURCE;
  const std::set<std::string> listed =
      matches(text_of(root / "mutants.json"), R"re("name": "([^"]+)")re");
  std::set<std::string> used;
  for (const char* folder : {"core", "driver", "runtime"}) {
    for (const auto& file :
         std::filesystem::directory_iterator(root / folder)) {
      used.merge(matches(
          text_of(file.path()),
          R"re((?:mutant|mark_as_runtime)\((?:&?\w+,\s*)?"([a-z0-9-]+)"\))re"));
    }
  }
  EXPECT_GT(listed.size(), 50u);
  EXPECT_EQ(listed, used);
}

ROLE(closes_once) {
  void* data = nullptr;
  const auto handle = test.receive<cudaIpcMemHandle_t>();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(
        cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess),
        cudaSuccess);
  }
  EXPECT_EQ(cudaIpcCloseMemHandle(data), cudaSuccess);
  test.send(static_cast<int>(cudaIpcCloseMemHandle(data)));
}

int second_close(const std::map<std::string, std::string>& environment) {
  int* data = allocate<int>(1);
  Peer peer("closes_once", environment);
  peer.channel().send(memory_handle(data));
  const int code = peer.channel().receive<int>();
  EXPECT_EQ(peer.wait(), "exit 0");
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  return code;
}

TEST(Mutants, OneThatIsOnMisbehaves) {
  EXPECT_EQ(second_close({}), cudaSuccess);
  EXPECT_EQ(second_close({{"IPCLAB_MUTANT", "close-unmaps-at-first"}}),
            cudaErrorInvalidValue);
}

}  // namespace
