// SPDX-License-Identifier: Apache-2.0
// The 64 bytes of a legacy handle.
#include "core/handle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

namespace ipclab::model {
namespace {

// The start time of a process (field 22 of /proc/<pid>/stat), mixed with the
// pid namespace; 0 if there is no such process.
uint64_t start_time(uint32_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[1024];
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return 0;
  text[length] = '\0';
  // The name of the program may contain any characters; the last bracket ends
  // field 2.
  const char* cursor = std::strrchr(text, ')');
  for (int field = 2; cursor != nullptr && field < 22; ++field) {
    cursor = std::strchr(cursor + 1, ' ');
  }
  return cursor == nullptr
             ? 0
             : std::strtoull(cursor, nullptr, 10) ^ process_namespace() << 32;
}

uint64_t own_start_time() {
  static const uint64_t started = start_time(static_cast<uint32_t>(getpid()));
  return started;
}

uint64_t checksum_of(const Handle& handle) {
  // FNV-1a. The hash includes the simulated machine, so handles of other
  // machines are refused. The hash of a fabric handle does not include it.
  const bool travels =
      handle.kind == static_cast<uint32_t>(HandleKind::kFabric);
  uint64_t hash = 14695981039346656037ull ^ (travels ? 0 : machine_id());
  const auto* bytes = reinterpret_cast<const unsigned char*>(&handle);
  for (size_t i = 0; i < offsetof(Handle, checksum); ++i) {
    hash = (hash ^ bytes[i]) * 1099511628211ull;
  }
  return hash;
}

}  // namespace

uint64_t process_namespace() {
  static const uint64_t number = [] {
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : ino_t{0};
  }();
  return number;
}

void seal(HandleKind kind, Handle* handle) {
  handle->kind = static_cast<uint32_t>(kind);
  handle->pid = static_cast<uint32_t>(getpid());
  handle->started = own_start_time();
  handle->checksum = checksum_of(*handle);
}

bool is_sealed(HandleKind kind, const Handle& handle) {
  return handle.kind == static_cast<uint32_t>(kind) &&
         handle.checksum == checksum_of(handle);
}

bool is_own(const Handle& handle) {
  return handle.pid == static_cast<uint32_t>(getpid()) &&
         handle.started == own_start_time();
}

bool exporter_is_alive(const Handle& handle) {
  return start_time(handle.pid) == handle.started;
}

SharedFile open_remote(const Handle& handle) {
  errno = 0;
  return SharedFile::open_of(handle.pid, handle.descriptor);
}

}  // namespace ipclab::model
