// SPDX-License-Identifier: Apache-2.0
#include "stacks.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>
#include <unwind.h>

#include <climits>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "line.h"
#include "log.h"

namespace ipclab::trace {
namespace {

constexpr size_t kMost = 24;           // addresses of a stack
constexpr size_t kMostStacks = 65536;  // later ones get no number

struct Stack {
  uintptr_t addresses[kMost];
  size_t size = 0;

  bool operator<(const Stack& other) const {
    if (size != other.size) return size < other.size;
    return std::memcmp(addresses, other.addresses, size * sizeof *addresses) <
           0;
  }
};

// What this process has written into its file. A child of fork has a file of
// its own.
struct Written {
  uint64_t file = 0;
  std::map<Stack, int> stacks;
  std::unordered_set<uintptr_t> addresses;
};

// Never destroyed: a call may come from another thread while the process ends.
std::mutex& mutex() {
  static auto& one = *new std::mutex;
  return one;
}

Written& written() {
  static auto& one = *new Written;
  return one;
}

// Is this an address of this library itself? The linker defines the symbols.
extern "C" const char __ehdr_start[] __attribute__((visibility("hidden")));
extern "C" const char _end[] __attribute__((visibility("hidden")));

bool is_own(uintptr_t address) {
  return address >= reinterpret_cast<uintptr_t>(__ehdr_start) &&
         address < reinterpret_cast<uintptr_t>(_end);
}

// The file of a library or, for the program itself, of the program: the loader
// knows the program only by the word that started it.
std::string path_of(const char* name) {
  char path[PATH_MAX];  // realpath() may write so much
  if (name == nullptr || *name == '\0') return "";
  if (*name == '/' && realpath(name, path) != nullptr) return path;
  const ssize_t size = readlink("/proc/self/exe", path, sizeof path);
  return size > 0 ? std::string(path, static_cast<size_t>(size)) : name;
}

void write_address(uintptr_t address) {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(address), &info) == 0) return;
  const std::string path = path_of(info.dli_fname);
  Line line;
  begin_event(line, "address");
  line.raw(",\"address\":").number(address);
  line.raw(",\"module\":").text(path).raw(",\"offset\":");
  line.number(address - reinterpret_cast<uintptr_t>(info.dli_fbase));
  struct stat status;
  if (stat(path.c_str(), &status) == 0) {
    line.raw(",\"modified\":");
    line.number(status.st_mtim.tv_sec * 1000000000 + status.st_mtim.tv_nsec);
  }
  if (info.dli_sname != nullptr) {
    line.raw(",\"function\":");
    line.text(std::string_view(info.dli_sname).substr(0, 400));
    line.raw(",\"after\":");
    line.number(address - reinterpret_cast<uintptr_t>(info.dli_saddr));
  }
  write(line.raw("}"));
}

_Unwind_Reason_Code add_frame(_Unwind_Context* context, void* given) {
  auto& stack = *static_cast<Stack*>(given);
  int before = 0;  // 1: the address is not that of a call, but of a signal
  uintptr_t address = _Unwind_GetIPInfo(context, &before);
  if (address == 0) return _URC_END_OF_STACK;
  if (before == 0) --address;  // a return address may be on the next line
  if (!is_own(address)) stack.addresses[stack.size++] = address;
  return stack.size == kMost ? _URC_END_OF_STACK : _URC_NO_REASON;
}

bool wanted() {
  static const bool set = [] {
    const char* value = std::getenv("IPCLAB_TRACE_STACKS");
    return value != nullptr && *value != '\0';
  }();
  return set;
}

}  // namespace

int stack_number() {
  if (!wanted() || !tracing()) return 0;
  Stack stack;
  // Not backtrace(3), which loads libgcc_s.so.1 into the program.
  _Unwind_Backtrace(add_frame, &stack);
  const std::lock_guard lock(mutex());
  Written& known = written();
  if (known.file != beginning()) known = {beginning(), {}, {}};
  if (const auto found = known.stacks.find(stack);
      found != known.stacks.end()) {
    return found->second;
  }
  if (known.stacks.size() == kMostStacks) return 0;
  const int number = static_cast<int>(known.stacks.size()) + 1;
  Line line;
  begin_event(line, "stack");
  line.raw(",\"number\":").number(number).raw(",\"addresses\":[");
  for (size_t i = 0; i < stack.size; ++i) {
    const uintptr_t address = stack.addresses[i];
    if (known.addresses.insert(address).second) write_address(address);
    if (i != 0) line.comma();
    line.number(address);
  }
  write(line.raw("]}"));
  known.stacks.emplace(stack, number);
  return number;
}

}  // namespace ipclab::trace
