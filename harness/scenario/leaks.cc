// SPDX-License-Identifier: Apache-2.0
#include "leaks.h"

#include <dirent.h>
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "board.h"

namespace ipclab {
namespace {

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  closedir(dir);
  return names;
}

std::string link_target(const std::string& path) {
  char target[4096];
  const ssize_t n = readlink(path.c_str(), target, sizeof target);
  return n < 0 ? "" : std::string(target, static_cast<size_t>(n));
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool starts_with(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

bool opened_by_driver(const std::string& target) {
  return starts_with(target, "/dev/nvidia") ||
         starts_with(target, "/dev/dri") || starts_with(target, "/proc/") ||
         starts_with(target, "anon_inode:") || starts_with(target, "socket:") ||
         starts_with(target, "pipe:") ||
         starts_with(target, "/memfd:ipclab-model") ||
         starts_with(target, "/dev/shm/cuda.shm.") ||
         target.find(".nv/ComputeCache") != std::string::npos;
}

// Returns the files of `paths` that a process has open or mapped. Looks at each
// process only once, because another program may make hundreds of names a
// second.
std::set<std::string> in_use(const std::set<std::string>& paths) {
  std::set<std::string> used;
  if (paths.empty()) return used;
  const auto note = [&](const std::string& target) {
    if (paths.count(target) != 0) used.insert(target);
  };
  for (const std::string& pid : names_in("/proc")) {
    if (pid[0] < '0' || pid[0] > '9') continue;
    std::istringstream maps(read_file("/proc/" + pid + "/maps"));
    for (std::string line; std::getline(maps, line);)
      if (const size_t path = line.find('/'); path != std::string::npos)
        note(line.substr(path));
    const std::string descriptors = "/proc/" + pid + "/fd/";
    for (const std::string& fd : names_in(descriptors))
      note(link_target(descriptors + fd));
  }
  return used;
}

// The children of this process that have not been reaped.
std::vector<pid_t> children() {
  std::vector<pid_t> found;
  for (const std::string& pid : names_in("/proc")) {
    if (pid[0] < '0' || pid[0] > '9') continue;
    const std::string stat = read_file("/proc/" + pid + "/stat");
    const size_t end = stat.rfind(')');  // the name may contain any characters
    int parent = 0;
    if (end != std::string::npos &&
        std::sscanf(stat.c_str() + end + 1, " %*c %d", &parent) == 1 &&
        parent == getpid())
      found.push_back(std::atoi(pid.c_str()));
  }
  return found;
}

std::string command_of(pid_t pid) {
  std::string line = read_file("/proc/" + std::to_string(pid) + "/cmdline");
  for (char& c : line)
    if (c == '\0') c = ' ';
  if (line.empty()) line = read_file("/proc/" + std::to_string(pid) + "/comm");
  while (!line.empty() && (line.back() == ' ' || line.back() == '\n'))
    line.pop_back();
  return line.substr(0, 120);
}

// Is this GPU among CUDA_VISIBLE_DEVICES? NVML shows all GPUs.
bool is_visible(unsigned index, const std::string& uuid) {
  const char* variable = std::getenv("CUDA_VISIBLE_DEVICES");
  if (variable == nullptr) return true;
  std::istringstream list(variable);
  for (std::string entry; std::getline(list, entry, ',');)
    if (entry == std::to_string(index) || (!entry.empty() && entry == uuid))
      return true;
  return false;
}

// Does the name contain one of these numbers, decimal or hexadecimal, and no
// digit beside it?
bool names_one_of(const std::string& name, const std::vector<pid_t>& pids) {
  const auto contains = [&](const char* format, pid_t pid, auto is_digit) {
    char number[16];
    std::snprintf(number, sizeof number, format, static_cast<unsigned>(pid));
    const size_t length = std::strlen(number);
    for (size_t at = name.find(number); at != std::string::npos;
         at = name.find(number, at + 1)) {
      const bool more_before = at > 0 && is_digit(name[at - 1]);
      if (!more_before && !is_digit(name[at + length])) return true;
    }
    return false;
  };
  return std::any_of(pids.begin(), pids.end(), [&](pid_t pid) {
    return contains("%u", pid, isdigit) || contains("%x", pid, isxdigit);
  });
}

// Waits a little: there is no event to wait for.
void pause_ms(int milliseconds) { poll(nullptr, 0, milliseconds); }

}  // namespace

std::map<int, std::string> open_descriptors() {
  std::map<int, std::string> found;
  for (const std::string& name : names_in("/proc/self/fd")) {
    const std::string target = link_target("/proc/self/fd/" + name);
    // Leaves out the descriptor of the folder itself, which is open only while
    // it is listed.
    if (!target.empty() && target.find("/proc/") == std::string::npos)
      found[std::atoi(name.c_str())] = target;
  }
  return found;
}

std::vector<std::string> left_open(const std::map<int, std::string>& before,
                                   const std::map<int, std::string>& after) {
  const bool driver =
      read_file("/proc/self/maps").find("/libcuda.so") != std::string::npos;
  std::vector<std::string> left;
  for (const auto& [number, target] : after) {
    const auto old = before.find(number);
    if (old != before.end() && old->second == target) continue;
    if (driver && opened_by_driver(target)) continue;
    left.push_back("descriptor " + std::to_string(number) + " (" + target +
                   ")");
  }
  return left;
}

std::set<std::string> shared_memory_names() {
  std::set<std::string> own;
  for (const std::string& name : names_in("/dev/shm")) {
    struct stat status;
    if (stat(("/dev/shm/" + name).c_str(), &status) == 0 &&
        status.st_uid == geteuid())
      own.insert(name);
  }
  return own;
}

std::vector<std::string> left_in_shared_memory(
    const std::set<std::string>& before, const std::vector<pid_t>& pids,
    std::chrono::milliseconds deadline) {
  const int64_t until = now_ns() + deadline.count() * 1000000;
  std::set<std::string> left;
  for (const std::string& name : shared_memory_names())
    // remove_driver_names() reports the driver's own names.
    if (before.count(name) == 0 && !starts_with(name, "cuda.shm.") &&
        names_one_of(name, pids))
      left.insert("/dev/shm/" + name);
  const auto leave_out_used = [&] {
    for (const std::string& path : in_use(left)) left.erase(path);
  };
  const auto leave_out_gone = [&] {
    for (auto path = left.begin(); path != left.end();)
      path =
          access(path->c_str(), F_OK) != 0 ? left.erase(path) : std::next(path);
  };
  leave_out_used();
  for (leave_out_gone(); !left.empty() && now_ns() < until; leave_out_gone())
    pause_ms(10);
  leave_out_used();
  leave_out_gone();
  return {left.begin(), left.end()};
}

std::vector<std::string> remove_driver_names(const std::vector<pid_t>& pids) {
  std::vector<std::string> removed;
  for (const pid_t pid : pids) {
    char prefix[64];
    std::snprintf(prefix, sizeof prefix, "cuda.shm.%u.%x.", geteuid(), pid);
    for (const std::string& name : names_in("/dev/shm"))
      if (starts_with(name, prefix) &&
          unlink(("/dev/shm/" + name).c_str()) == 0)
        removed.push_back("/dev/shm/" + name);
  }
  return removed;
}

std::vector<std::string> end_children(std::chrono::milliseconds deadline,
                                      const std::set<pid_t>& kept) {
  std::vector<std::string> ended;
  const int64_t until = now_ns() + deadline.count() * 1000000;
  std::set<pid_t> told;
  for (;;) {
    pid_t reaped = 0;
    while (kept.empty() && (reaped = waitpid(-1, nullptr, WNOHANG)) > 0) {
    }
    if (reaped == -1) return ended;  // ECHILD: no child is left
    bool nobody = true;
    for (const pid_t child : children()) {
      if (kept.count(child) != 0 || waitpid(child, nullptr, WNOHANG) == child)
        continue;
      nobody = false;
      if (told.insert(child).second)
        ended.push_back(command_of(child) + " (pid " + std::to_string(child) +
                        ")");
      kill(child, SIGKILL);
    }
    if (nobody) return ended;
    if (now_ns() > until) {
      ended.push_back("a process that SIGKILL does not end");
      return ended;
    }
    pause_ms(1);
  }
}

// What a driver may keep for its own use when a process has ended: driver
// 580.159.04 kept 64 KiB after a process was killed. The memory of a program
// comes in blocks of 2 MiB.
static constexpr unsigned long long kOwnMemory = 1 << 20;

// Asks NVML about the device with this UUID. The answer of `function` is for
// the caller only if the result is true.
template <class Answer>
static bool told_by_nvml(const std::string& uuid, const char* function,
                         Answer* answer) {
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (nvml == nullptr) return false;
  const auto init = reinterpret_cast<int (*)()>(dlsym(nvml, "nvmlInit_v2"));
  const auto find = reinterpret_cast<int (*)(const char*, void**)>(
      dlsym(nvml, "nvmlDeviceGetHandleByUUID"));
  const auto ask =
      reinterpret_cast<int (*)(void*, Answer*)>(dlsym(nvml, function));
  void* device = nullptr;
  return init != nullptr && find != nullptr && ask != nullptr && init() == 0 &&
         find(uuid.c_str(), &device) == 0 && ask(device, answer) == 0;
}

std::optional<unsigned> gpu_instance_of(const std::string& mig_device) {
  unsigned instance = 0;
  if (!told_by_nvml(mig_device, "nvmlDeviceGetGpuInstanceId", &instance))
    return std::nullopt;
  return instance;
}

std::optional<FabricPlace> fabric_place_of(const std::string& gpu) {
  struct {  // nvmlGpuFabricInfo_t
    std::array<unsigned char, 16> cluster;
    int status;
    unsigned clique;
    unsigned char state;
  } told{};
  constexpr int kCompleted = 3;  // NVML_GPU_FABRIC_STATE_COMPLETED
  if (!told_by_nvml(gpu, "nvmlDeviceGetGpuFabricInfo", &told) ||
      told.state != kCompleted || told.status != 0)
    return std::nullopt;
  return FabricPlace{told.cluster, told.clique};
}

DeviceMemory& DeviceMemory::instance() {
  static DeviceMemory memory;
  return memory;
}

DeviceMemory::DeviceMemory() {
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (nvml == nullptr) return;
  const auto find = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(nvml, name));
    return function != nullptr;
  };
  int (*init)();
  int (*count)(unsigned*);
  int (*device)(unsigned, void**);
  if (!find(init, "nvmlInit_v2") || !find(count, "nvmlDeviceGetCount_v2") ||
      !find(device, "nvmlDeviceGetHandleByIndex_v2") ||
      !find(memory_, "nvmlDeviceGetMemoryInfo") || init() != 0)
    return;
  find(processes_, "nvmlDeviceGetComputeRunningProcesses_v3");
  int (*version)(char*, unsigned);
  char text[96] = "";
  if (find(version, "nvmlSystemGetDriverVersion") &&
      version(text, sizeof text) == 0)
    driver_ = text;
  int (*uuid)(void*, char*, unsigned);
  find(uuid, "nvmlDeviceGetUUID");
  unsigned gpus = 0;
  if (count(&gpus) != 0) return;
  for (unsigned i = 0; i < gpus; ++i) {
    void* handle = nullptr;
    char name[96] = "";
    if (device(i, &handle) != 0) continue;
    if (uuid != nullptr) uuid(handle, name, sizeof name);
    if (is_visible(i, name)) devices_.push_back(handle);
  }
}

std::vector<unsigned long long> DeviceMemory::used() const {
  std::vector<unsigned long long> bytes;
  for (void* device : devices_) {
    unsigned long long total_free_used[3] = {};
    memory_(device, total_free_used);
    bytes.push_back(total_free_used[2]);
  }
  return bytes;
}

std::vector<std::string> DeviceMemory::left(
    const std::vector<unsigned long long>& before,
    const std::vector<pid_t>& pids, std::chrono::milliseconds deadline) const {
  const char* exclusive = std::getenv("IPCLAB_EXCLUSIVE");
  const bool alone = exclusive != nullptr && exclusive[0] == '1';
  const int64_t until = now_ns() + deadline.count() * 1000000;
  for (;;) {
    std::vector<std::string> left;
    const std::vector<unsigned long long> now = used();
    for (size_t i = 0; i < now.size(); ++i) {
      if (alone && i < before.size() && now[i] > before[i] + kOwnMemory)
        left.push_back(std::to_string(now[i] - before[i]) +
                       " bytes of device memory on GPU " + std::to_string(i));
      if (alone || processes_ == nullptr) continue;
      struct Process {
        unsigned pid;
        unsigned long long bytes;
        unsigned instances[2];
      } running[256];
      unsigned count = 256;
      if (processes_(devices_[i], &count, running) != 0) continue;
      for (unsigned p = 0; p < count; ++p)
        for (const pid_t pid : pids)
          if (running[p].pid == static_cast<unsigned>(pid))
            left.push_back("device memory of role " + std::to_string(pid) +
                           ", which has ended, on GPU " + std::to_string(i));
    }
    if (left.empty() || now_ns() > until) return left;
    pause_ms(1);
  }
}

}  // namespace ipclab
