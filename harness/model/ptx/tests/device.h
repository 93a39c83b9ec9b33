// SPDX-License-Identifier: Apache-2.0
// A device window for tests: kernels access its memory by device addresses,
// which the host cannot dereference. Also a short way to launch a kernel.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ptx/ptx.h"

namespace ipclab::ptx::testing {

constexpr uint64_t kPage = 2u << 20;

class Device {
 public:
  /// `descriptor`: a memfd to map instead of private memory (not closed).
  explicit Device(uint64_t size = 256u << 20, int descriptor = -1)
      : size_(size) {
    void* window = mmap(nullptr, size, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    alias_ = static_cast<char*>(
        mmap(nullptr, size, PROT_READ | PROT_WRITE,
             descriptor >= 0 ? MAP_SHARED
                             : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
             descriptor, 0));
    if (window == MAP_FAILED || alias_ == MAP_FAILED)
      throw std::runtime_error("mmap failed");
    begin_ = reinterpret_cast<uint64_t>(window);
    access_.assign(size / kPage, 3);
    space.window_begin = begin_;
    space.window_size = size;
    space.alias =
        static_cast<int64_t>(reinterpret_cast<uint64_t>(alias_) - begin_);
    space.page_access = access_.data();
  }
  ~Device() {
    munmap(reinterpret_cast<void*>(begin_), size_);
    munmap(alias_, size_);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  uint64_t allocate(uint64_t bytes, uint64_t alignment = 256) {
    used_ = (used_ + alignment - 1) / alignment * alignment;
    const uint64_t address = begin_ + used_;
    used_ += bytes;
    if (used_ > size_) throw std::runtime_error("the test window is full");
    return address;
  }
  template <class T = char>
  T* host(uint64_t address) {
    return reinterpret_cast<T*>(alias_ + (address - begin_));
  }
  template <class T>
  uint64_t upload(const std::vector<T>& values) {
    const uint64_t address = allocate(values.size() * sizeof(T) + 1);
    if (!values.empty())
      std::memcpy(host(address), values.data(), values.size() * sizeof(T));
    return address;
  }
  template <class T>
  std::vector<T> download(uint64_t address, size_t count) {
    std::vector<T> values(count);
    std::memcpy(values.data(), host(address), count * sizeof(T));
    return values;
  }
  void set_access(uint64_t address, uint8_t access) {
    access_.at((address - begin_) / kPage) = access;
  }
  /// Places and links the variables of a module.
  void load(Module& module) {
    for (Module::Variable& variable : module.variables())
      variable.address = allocate(variable.size + 1, 256);
    module.link();
    for (Module::Variable& variable : module.variables()) {
      std::memset(host(variable.address), 0, variable.size);
      if (!variable.initial.empty())
        std::memcpy(host(variable.address), variable.initial.data(),
                    variable.initial.size());
    }
  }

  AddressSpace space;

 private:
  uint64_t size_;
  uint64_t begin_ = 0;
  char* alias_ = nullptr;
  uint64_t used_ = 0;
  std::vector<uint8_t> access_;
};

/// The size of a grid or of a block.
struct Shape {
  unsigned x = 1, y = 1, z = 1;
};

template <class... Arguments>
std::optional<Fault> launch(const Device& device, const Kernel* kernel,
                            Shape grid, Shape block, unsigned shared,
                            double limit, bool cooperative,
                            const Arguments&... arguments) {
  std::vector<char> parameters(kernel->parameter_bytes() + 1);
  size_t index = 0;
  [[maybe_unused]] const auto place = [&](const void* value, size_t size) {
    const Kernel::Parameter& to = kernel->parameters().at(index++);
    if (to.size != size) throw std::runtime_error("argument of a wrong size");
    std::memcpy(parameters.data() + to.offset, value, size);
  };
  (place(&arguments, sizeof arguments), ...);
  if (index != kernel->parameters().size())
    throw std::runtime_error("too few arguments");
  Launch launch;
  launch.kernel = kernel;
  const unsigned g[] = {grid.x, grid.y, grid.z};
  const unsigned b[] = {block.x, block.y, block.z};
  std::memcpy(launch.grid, g, sizeof g);
  std::memcpy(launch.block, b, sizeof b);
  launch.dynamic_shared_bytes = shared;
  launch.parameters = parameters.data();
  launch.space = &device.space;
  launch.limit_seconds = limit;
  launch.cooperative = cooperative;
  return run(launch);
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw std::runtime_error("cannot read " + path);
  return text.str();
}

}  // namespace ipclab::ptx::testing
