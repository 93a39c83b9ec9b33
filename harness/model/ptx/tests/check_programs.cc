// Reads the PTX out of built programs and says which kernels the model cannot
// run: `ipclab_ptx_check PROGRAM...`. The exit code is 1 if there is such a
// kernel, if a program cannot be read, or if the programs contain no kernel.
//
// SPDX-License-Identifier: Apache-2.0
#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "ptx/ptx.h"

namespace {

using Bytes = std::vector<char>;

// The section in which nvcc puts its fat binaries, one after the other.
std::string_view fatbin_section(const Bytes& program) {
  Elf64_Ehdr header;
  if (program.size() < sizeof header ||
      std::memcmp(program.data(), ELFMAG, SELFMAG) != 0)
    throw std::runtime_error("is not a program");
  std::memcpy(&header, program.data(), sizeof header);
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  std::memcpy(sections.data(), program.data() + header.e_shoff,
              sections.size() * sizeof(Elf64_Shdr));
  const char* names = program.data() + sections.at(header.e_shstrndx).sh_offset;
  for (const Elf64_Shdr& section : sections)
    if (std::strcmp(names + section.sh_name, ".nv_fatbin") == 0)
      return {program.data() + section.sh_offset, section.sh_size};
  throw std::runtime_error("contains no GPU code");
}

struct Count {
  int kernels = 0, unsupported = 0;
};

Count check(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot be read");
  const Bytes program((std::istreambuf_iterator<char>(file)),
                      std::istreambuf_iterator<char>());
  std::string_view rest = fatbin_section(program);
  Count count;
  while (rest.size() > 16) {
    uint32_t magic;
    uint64_t size;
    std::memcpy(&magic, rest.data(), sizeof magic);
    if (magic != 0xBA55ED50) {  // padding
      rest.remove_prefix(8);
      continue;
    }
    std::memcpy(&size, rest.data() + 8, sizeof size);
    // The image gets the alignment that the loader gives it.
    const std::vector<uint64_t> image(
        reinterpret_cast<const uint64_t*>(rest.data()),
        reinterpret_cast<const uint64_t*>(rest.data()) + (size + 16 + 7) / 8);
    for (const std::string& text : ipclab::ptx::ptx_of_image(image.data())) {
      const auto module = ipclab::ptx::Module::parse(text);
      for (const auto& kernel : module->kernels()) {
        ++count.kernels;
        if (kernel->unsupported().empty()) continue;
        ++count.unsupported;
        std::printf("%s: kernel %s: %s\n", path, kernel->name().c_str(),
                    kernel->unsupported().c_str());
      }
    }
    rest.remove_prefix(std::min<size_t>(rest.size(), size + 16));
  }
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  bool good = argc > 1;
  int kernels = 0;
  for (int i = 1; i < argc; ++i) try {
      const Count count = check(argv[i]);
      std::printf("%s: %d kernels\n", argv[i], count.kernels);
      kernels += count.kernels;
      good = good && count.unsupported == 0;
    } catch (const std::exception& error) {
      std::printf("%s: %s\n", argv[i], error.what());
      good = false;
    }
  return good && kernels > 0 ? 0 : 1;
}
