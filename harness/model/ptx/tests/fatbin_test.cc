// SPDX-License-Identifier: Apache-2.0
// PTX in the containers that nvcc makes.
#include "evaluate.h"

namespace {

using namespace ipclab::ptx;
using namespace ipclab::ptx::testing;

struct Wrapper {
  uint32_t magic = 0x466243b1, version = 1;
  const void* data = nullptr;
  const void* list = nullptr;
};

std::string container(const char* name) {
  return read_file(std::string(IPCLAB_PTX_FILES) + "/" + name + ".fatbin");
}

void expect_newest(const std::vector<std::string>& texts) {
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_NE(texts[0].find(".target sm_90"), std::string::npos);
  EXPECT_EQ(texts[0].find('\0'), std::string::npos);
  EXPECT_NE(Module::parse(texts[0])->kernel("run_integers"), nullptr);
}

TEST(Fatbin, PlainAndCompressedContainers) {
  expect_newest(ptx_of_image(container("plain").data()));
  expect_newest(ptx_of_image(container("compressed").data()));
}

TEST(Fatbin, Wrappers) {
  const std::string plain = container("plain"),
                    compressed = container("compressed");
  Wrapper wrapper;
  wrapper.data = plain.data();
  expect_newest(ptx_of_image(&wrapper));
  const void* const list[] = {plain.data(), compressed.data(), nullptr};
  wrapper.version = 2;
  wrapper.list = list;
  EXPECT_EQ(ptx_of_image(&wrapper).size(), 2u);
}

TEST(Fatbin, PtxText) {
  const std::string text =
      "//\n// a comment\n/* and one more */\n.version 9.0\n.target sm_90\n";
  EXPECT_EQ(ptx_of_image(text.c_str()), std::vector<std::string>{text});
}

std::string error_of(const void* image) {
  try {
    ptx_of_image(image);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(Fatbin, SaysWhatToDo) {
  const std::string machine_code = container("cubin_only");
  EXPECT_NE(error_of(machine_code.data()).find("-arch"), std::string::npos);
  EXPECT_NE(error_of("\x7f"
                     "ELF")
                .find("neither a fatbinary nor PTX"),
            std::string::npos);
  EXPECT_NE(error_of(nullptr), "");
  std::string damaged = container("compressed");
  for (size_t at = 0;
       (at = damaged.find("\x28\xb5\x2f\xfd", at)) != damaged.npos;)
    damaged[at] = 'x';
  EXPECT_NE(error_of(damaged.data()).find("-no-compress"), std::string::npos);
}

}  // namespace
