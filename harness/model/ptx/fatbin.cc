// SPDX-License-Identifier: Apache-2.0
// Finds the PTX that nvcc embeds. fatbinary_section.h documents the wrapper.
// The container to which the wrapper points is not documented: its layout was
// observed with CUDA 12.4 and 13.0.
#include <dlfcn.h>

#include <cctype>
#include <cstring>
#include <stdexcept>

#include "ptx.h"

namespace ipclab::ptx {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kContainerMagic = 0xba55ed50;
constexpr uint32_t kZstdMagic = 0xfd2fb528;
constexpr uint64_t kLz4 = 0x2000;  // in the flags of an entry
constexpr uint16_t kKindPtx = 1;

struct Wrapper {
  uint32_t magic;
  uint32_t version;  // 1: `data` is the container; 2: `list` has containers
  const void* data;
  const void* const* list;
};

struct ContainerHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t bytes;  // after the header
};

struct EntryHeader {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t payload_bytes;
  uint32_t compressed_bytes;  // 0: not compressed
  uint32_t options_offset;
  uint16_t minor, major;
  uint32_t architecture;  // 90 for compute_90
  uint32_t name_offset, name_bytes;
  uint64_t flags;
  uint64_t reserved;
  uint64_t uncompressed_bytes;
};

template <class T>
T read(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

[[noreturn]] void damaged() {
  throw std::runtime_error(
      "the compressed PTX in this binary is damaged: build it again");
}

// CUDA 12 compresses with LZ4: a block as LZ4's description of the block format
// says, without a frame.
std::string decompress_lz4(const char* data, const EntryHeader& entry) {
  const auto* at = reinterpret_cast<const unsigned char*>(data);
  const unsigned char* const end = at + entry.compressed_bytes;
  std::string text;
  text.reserve(entry.uncompressed_bytes);
  const auto next = [&] { return at < end ? *at++ : (damaged(), *at); };
  // 15 in the token says that more bytes follow; the last one is not 255.
  const auto length = [&](unsigned bits) {
    size_t value = bits;
    unsigned char more = 255;
    while (bits == 15 && more == 255) value += more = next();
    return value;
  };
  while (text.size() < entry.uncompressed_bytes) {
    const unsigned token = next();
    const size_t literals = length(token >> 4);
    if (literals > static_cast<size_t>(end - at)) damaged();
    text.append(reinterpret_cast<const char*>(at), literals);
    at += literals;
    if (at == end) break;  // the last sequence has only literals
    const size_t low = next();
    const size_t back = low | static_cast<size_t>(next()) << 8;
    size_t repeat = length(token & 15) + 4;
    if (back == 0 || back > text.size() ||
        repeat > entry.uncompressed_bytes - text.size()) {
      damaged();
    }
    while (repeat-- > 0) text.push_back(text[text.size() - back]);
  }
  if (text.size() != entry.uncompressed_bytes) damaged();
  return text;
}

std::string decompress(const char* data, const EntryHeader& entry) {
  using Decompress = size_t (*)(void*, size_t, const void*, size_t);
  static const auto zstd = [] {
    void* library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    return library == nullptr ? nullptr
                              : reinterpret_cast<Decompress>(
                                    dlsym(library, "ZSTD_decompress"));
  }();
  if ((entry.flags & kLz4) != 0) return decompress_lz4(data, entry);
  if (entry.compressed_bytes < 4 || read<uint32_t>(data) != kZstdMagic)
    throw std::runtime_error(
        "the PTX in this binary is compressed in an unknown way: build it with "
        "nvcc -no-compress");
  if (zstd == nullptr)
    throw std::runtime_error(
        "the PTX in this binary is compressed: install libzstd.so.1 or build "
        "it with nvcc -no-compress");
  std::string text(entry.uncompressed_bytes, '\0');
  const size_t bytes =
      zstd(text.data(), text.size(), data, entry.compressed_bytes);
  if (bytes != text.size()) damaged();
  return text;
}

/// The PTX of one container; empty if it has no PTX that the interpreter can
/// run.
std::string ptx_of_container(const char* container, uint32_t allowed) {
  const auto header = read<ContainerHeader>(container);
  const char* at = container + header.header_bytes;
  const char* const end = at + header.bytes;
  const char* best = nullptr;
  uint32_t newest = 0;
  while (static_cast<size_t>(end - at) >= sizeof(EntryHeader)) {
    const auto entry = read<EntryHeader>(at);
    if (entry.header_bytes < sizeof(EntryHeader) ||
        entry.payload_bytes >
            static_cast<uint64_t>(end - at) - entry.header_bytes)
      throw std::runtime_error(
          "the fatbinary in this binary has an unknown layout: it was built "
          "by a toolkit other than CUDA 12 or 13");
    if (entry.kind == kKindPtx && entry.architecture <= allowed &&
        entry.architecture >= newest) {
      newest = entry.architecture;
      best = at;
    }
    at += entry.header_bytes + entry.payload_bytes;
  }
  if (best == nullptr) return {};
  const auto entry = read<EntryHeader>(best);
  const char* payload = best + entry.header_bytes;
  std::string text =
      entry.compressed_bytes != 0
          ? decompress(payload, entry)
          : std::string(payload, static_cast<size_t>(entry.payload_bytes));
  text.resize(std::strlen(text.c_str()));  // without the NULs at its end
  return text;
}

bool looks_like_ptx(const char* text) {
  // PTX begins with comments and a .version line, so any other line ends the
  // search.
  for (int line = 0; line < 200; ++line) {
    while (std::isspace(static_cast<unsigned char>(*text))) ++text;
    if (std::strncmp(text, ".version", 8) == 0) return true;
    if (std::strncmp(text, "//", 2) == 0) {
      while (*text != '\0' && *text != '\n') ++text;
    } else if (std::strncmp(text, "/*", 2) == 0) {
      const char* end = std::strstr(text, "*/");
      if (end == nullptr) return false;
      text = end + 2;
    } else {
      return false;
    }
  }
  return false;
}

}  // namespace

std::vector<std::string> ptx_of_image(const void* image, unsigned newest) {
  if (image == nullptr) throw std::runtime_error("there is no module image");
  std::vector<const char*> containers;
  const char* bytes = static_cast<const char*>(image);
  const auto add = [&](const void* container) {
    if (container == nullptr || read<uint32_t>(container) != kContainerMagic)
      throw std::runtime_error(
          "the module image is neither a fatbinary nor PTX text");
    containers.push_back(static_cast<const char*>(container));
  };
  // The first bytes show how much of the image may be read.
  if (static_cast<unsigned char>(bytes[0]) == (kWrapperMagic & 0xff) &&
      static_cast<unsigned char>(bytes[1]) == (kWrapperMagic >> 8 & 0xff)) {
    const auto wrapper = read<Wrapper>(image);
    if (wrapper.version == 2 && wrapper.list != nullptr) {
      for (const void* const* object = wrapper.list; *object != nullptr;
           ++object)
        add(*object);
    } else {
      add(wrapper.data);
    }
  } else if (static_cast<unsigned char>(bytes[0]) == (kContainerMagic & 0xff)) {
    add(image);
  } else if (looks_like_ptx(bytes)) {
    return {bytes};
  } else {
    throw std::runtime_error(
        "the module image is neither a fatbinary nor PTX text");
  }
  std::vector<std::string> texts;
  for (const char* container : containers) {
    std::string text = ptx_of_container(container, newest);
    if (!text.empty()) texts.push_back(std::move(text));
  }
  if (texts.empty())
    throw std::runtime_error(
        "no PTX for sm_" + std::to_string(newest) +
        " or older in this binary: build it with an -arch that embeds PTX, "
        "such as nvcc -arch=sm_90");
  return texts;
}

}  // namespace ipclab::ptx
