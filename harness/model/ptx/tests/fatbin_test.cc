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

// A container of CUDA 12 with one entry of PTX for sm_75, as an LZ4 block.
template <class T>
void append(std::string* to, T value) {
  to->append(reinterpret_cast<const char*>(&value), sizeof value);
}
std::string lz4_container(const std::string& block, uint64_t text_bytes) {
  std::string made;
  append<uint32_t>(&made, 0xba55ed50);
  append<uint16_t>(&made, 1);
  append<uint16_t>(&made, 16);  // bytes of this header
  append<uint64_t>(&made, 72 + block.size());
  append<uint16_t>(&made, 1);  // PTX
  append<uint16_t>(&made, 0x101);
  append<uint32_t>(&made, 72);  // bytes of this header
  append<uint64_t>(&made, block.size());
  append<uint32_t>(&made, static_cast<uint32_t>(block.size()));
  append<uint32_t>(&made, 0);
  append<uint32_t>(&made, 0);
  append<uint32_t>(&made, 75);
  append<uint64_t>(&made, 0);
  append<uint64_t>(&made, 0x2000);
  append<uint64_t>(&made, 0);
  append<uint64_t>(&made, text_bytes);
  append<uint64_t>(&made, 0);
  return made + block;
}

std::string error_of(const void* image) {
  try {
    ptx_of_image(image);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(Fatbin, Lz4) {
  using namespace std::string_literals;
  // One literal, which is repeated 4 + 15 + 255 + 2 times; then 15 literals.
  const std::string block =
      "\x1f/\x01\x00\xff\x02"s + "\xf0\x00\n.version 8.4\n\n"s;
  const std::string text = std::string(277, '/') + "\n.version 8.4\n\n";
  EXPECT_EQ(ptx_of_image(lz4_container(block, text.size()).data()),
            std::vector<std::string>{text});
  // A reference in front of the text, a reference beyond its end, a block that
  // ends early, and one that is too short.
  std::string far = block;
  far[2] = 9;
  for (const std::string& damaged :
       {lz4_container(far, text.size()), lz4_container(block, 100),
        lz4_container(block.substr(0, 5), text.size()),
        lz4_container(block, text.size() + 1)}) {
    EXPECT_NE(error_of(damaged.data()).find("damaged"), std::string::npos);
  }
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

TEST(Fatbin, TheCallerSaysWhichArchitectureIsTheNewest) {
  const auto image = container("late");
  const auto target = [&](unsigned newest) {
    return ptx_of_image(image.data(), newest)
        .at(0)
        .find(newest >= 120 ? ".target sm_120" : ".target sm_75");
  };
  EXPECT_NE(target(100), std::string::npos);
  EXPECT_NE(target(120), std::string::npos);
}

}  // namespace
