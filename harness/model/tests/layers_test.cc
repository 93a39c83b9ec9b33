// SPDX-License-Identifier: Apache-2.0
// Tests which parts of the model use each other, from their sources. The code
// of the APIs uses neither the machine nor its lock. The core does not know the
// faults, which a library in front of the model adds.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// "pool.cc: Locked" for each file of a folder that contains such a word.
std::vector<std::string> uses(const char* folder,
                              const std::vector<std::string>& words) {
  std::vector<std::string> found;
  int files = 0;
  for (const auto& entry :
       fs::directory_iterator(fs::path(IPCLAB_MODEL_SOURCE) / folder)) {
    const std::string text = text_of(entry.path());
    ++files;
    for (const std::string& word : words) {
      if (text.find(word) == std::string::npos) continue;
      found.push_back(entry.path().filename().string() + ": " + word);
    }
  }
  EXPECT_GT(files, 3) << folder;
  return found;
}

const std::vector<std::string> kNone;

TEST(Layers, FacesHaveNoMachine) {
  const std::vector<std::string> words = {"core/machine.h", "Locked",
                                          "Machine&", "->window", "Registry<"};
  EXPECT_EQ(uses("driver", words), kNone);
  EXPECT_EQ(uses("runtime", words), kNone);
  EXPECT_FALSE(uses("core", words).empty());  // the search works
}

TEST(Layers, CoreKnowsNoFaults) {
  EXPECT_EQ(uses("core", {"IPCLAB_FAULT", "utant", "harness/faults"}), kNone);
}

TEST(Layers, AddressesKnowNoAllocationsAndNoInterpreter) {
  for (const char* file : {"core/window.h", "core/window.cc"}) {
    const std::string text = text_of(fs::path(IPCLAB_MODEL_SOURCE) / file);
    EXPECT_FALSE(text.empty()) << file;
    for (const char* word : {"allocation.h", "Allocation", "ptx"}) {
      EXPECT_EQ(text.find(word), std::string::npos) << file << ": " << word;
    }
  }
}

}  // namespace
