// SPDX-License-Identifier: Apache-2.0
// The files that Linux has for a PCI device, for the GPUs of the model. `ipclab
// model` loads this library in front of the C library. Programs that look for
// the place of a GPU (NCCL, MSCCL++) open or resolve one of
//
//   /sys/bus/pci/devices/ID/FILE, /sys/class/pci_bus/BUS/../../ID[/FILE],
//   /sys/devices/pci0000:10/ID/FILE
//
// with ID = 0000:10:NN.0 and NN = number of the GPU. FILE is a name of kFiles.
// All other paths, and all other calls, reach the real files. The names of the
// folders cannot be listed.
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>

#include "core/device.h"
#include "core/profile.h"

namespace {

struct File {
  const char* name;
  const char* content;
};
// One NUMA node; a link of PCIe 5.0 with 16 lanes, as NVML says; a 3D
// controller. No vendor: these are no devices of anybody.
constexpr File kFiles[] = {
    {"numa_node", "0\n"},
    {"class", "0x030200\n"},
    {"vendor", "0x0000\n"},
    {"device", "0x0000\n"},
    {"subsystem_vendor", "0x0000\n"},
    {"subsystem_device", "0x0000\n"},
    {"current_link_speed", "32.0 GT/s PCIe\n"},
    {"max_link_speed", "32.0 GT/s PCIe\n"},
    {"current_link_width", "16\n"},
    {"max_link_width", "16\n"},
};

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c;
  return text;
}

// The path from the GPU's folder on ("/numa_node", or empty), if `path` is in
// the folder of a GPU of the model. `id` gets the name of the folder.
bool in_folder_of_gpu(const char* path, std::string* id, std::string* rest) {
  if (path == nullptr || std::strncmp(path, "/sys/", 5) != 0) return false;
  const std::string whole = lower(path);
  for (int gpu = 0; gpu < ipclab::model::profile().gpus; ++gpu) {
    char name[32];
    std::snprintf(name, sizeof name, "0000:%02x:%02x.0", ipclab::model::kPciBus,
                  static_cast<unsigned>(gpu));
    const size_t at = whole.find(std::string("/") + name);
    if (at == std::string::npos) continue;
    *id = name;
    *rest = whole.substr(at + 1 + id->size());
    return rest->empty() || (*rest)[0] == '/';
  }
  return false;
}

const File* file_of_gpu(const char* path) {
  std::string id, rest;
  if (!in_folder_of_gpu(path, &id, &rest)) return nullptr;
  for (const File& file : kFiles) {
    if (rest == std::string("/") + file.name) return &file;
  }
  return nullptr;
}

int opened(const File& file) {
  const int descriptor = memfd_create(file.name, MFD_CLOEXEC);
  if (descriptor < 0) return -1;
  if (write(descriptor, file.content, std::strlen(file.content)) < 0) return -1;
  lseek(descriptor, 0, SEEK_SET);
  return descriptor;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

mode_t mode_of(int flags, va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
}

}  // namespace

#define IPCLAB_FRONT extern "C" __attribute__((visibility("default")))

#define IPCLAB_OPEN(name)                                             \
  IPCLAB_FRONT int name(const char* path, int flags, ...) {           \
    if (const File* file = file_of_gpu(path)) return opened(*file);   \
    va_list list;                                                     \
    va_start(list, flags);                                            \
    const mode_t mode = mode_of(flags, list);                         \
    va_end(list);                                                     \
    static const auto real = next<int(const char*, int, ...)>(#name); \
    return real(path, flags, mode);                                   \
  }
IPCLAB_OPEN(open)
IPCLAB_OPEN(open64)

#define IPCLAB_OPENAT(name)                                                \
  IPCLAB_FRONT int name(int folder, const char* path, int flags, ...) {    \
    if (const File* file = file_of_gpu(path)) return opened(*file);        \
    va_list list;                                                          \
    va_start(list, flags);                                                 \
    const mode_t mode = mode_of(flags, list);                              \
    va_end(list);                                                          \
    static const auto real = next<int(int, const char*, int, ...)>(#name); \
    return real(folder, path, flags, mode);                                \
  }
IPCLAB_OPENAT(openat)
IPCLAB_OPENAT(openat64)

#define IPCLAB_FOPEN(name)                                                 \
  IPCLAB_FRONT FILE* name(const char* path, const char* mode) {            \
    if (const File* file = file_of_gpu(path)) {                            \
      const int descriptor = opened(*file);                                \
      return descriptor < 0 ? nullptr : fdopen(descriptor, mode);          \
    }                                                                      \
    static const auto real = next<FILE*(const char*, const char*)>(#name); \
    return real(path, mode);                                               \
  }
IPCLAB_FOPEN(fopen)
IPCLAB_FOPEN(fopen64)

IPCLAB_FRONT int access(const char* path, int wanted) {
  std::string id, rest;
  if (in_folder_of_gpu(path, &id, &rest)) {
    const bool is_there = rest.empty() || file_of_gpu(path) != nullptr;
    if (is_there && (wanted & W_OK) == 0) return 0;
    errno = is_there ? EACCES : ENOENT;
    return -1;
  }
  static const auto real = next<int(const char*, int)>("access");
  return real(path, wanted);
}

IPCLAB_FRONT char* realpath(const char* path, char* resolved) {
  std::string id, rest;
  if (in_folder_of_gpu(path, &id, &rest) &&
      (rest.empty() || file_of_gpu(path) != nullptr)) {
    char root[32];
    std::snprintf(root, sizeof root, "/sys/devices/pci0000:%02x/",
                  ipclab::model::kPciBus);
    const std::string whole = root + id + rest;
    if (resolved == nullptr) return strdup(whole.c_str());
    std::memcpy(resolved, whole.c_str(), whole.size() + 1);
    return resolved;
  }
  static const auto real = next<char*(const char*, char*)>("realpath");
  return real(path, resolved);
}
