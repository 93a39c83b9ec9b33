// SPDX-License-Identifier: Apache-2.0
// A small libnvidia-ml.so.1 for the simulated machine: devices, names, memory,
// processes and versions. Other functions that programs look up are present and
// return "not supported", as on some real GPUs. The types are the types of
// NVML's interface. If NVIDIA changes the interface of a function, NVIDIA gives
// the function another name.
#include <dirent.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/endpoint.h"
#include "core/profile.h"
#include "core/shared_file.h"
#include "core/visible.h"

using namespace ipclab::model;

namespace {

enum Result {
  kSuccess = 0,
  kUninitialised = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
};

struct Memory {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct FabricInfo {
  unsigned char cluster[16];
  Result status;
  unsigned clique;
  unsigned char state;
};
struct PciInfo {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};
struct PciInfoExt {
  unsigned version;
  unsigned domain, bus, device, device_id, subsystem_id, base_class, sub_class;
  char id[32];
};
struct ProcessV1 {
  unsigned pid;
  unsigned long long bytes;
};
struct Process {
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned long long kUnknownBytes = ~0ull;

/// The object that an nvmlDevice_t points to; its index in the list is the
/// number of the GPU.
struct Gpu {
  int gpu;
};

bool initialised = false;

std::vector<Gpu>& gpus() {
  static auto& list = *new std::vector<Gpu>([] {
    std::vector<Gpu> made;
    made.reserve(static_cast<size_t>(profile().gpus));
    for (int gpu = 0; gpu < profile().gpus; ++gpu) made.push_back({gpu});
    return made;
  }());
  return list;
}

bool is_device(const Gpu* device) {
  return device >= gpus().data() && device < gpus().data() + gpus().size();
}

Result check(const Gpu* device, const void* out) {
  if (!initialised) return kUninitialised;
  return is_device(device) && out != nullptr ? kSuccess : kInvalidArgument;
}

Result put(const std::string& text, char* out, unsigned room) {
  if (text.size() >= room) return kInsufficientSize;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return kSuccess;
}

Memory memory_of(int gpu) {
  Memory memory{};
  memory.total = profile().memory_gib << 30;
  const uint64_t used = counted_bytes(gpu);
  memory.used = used < memory.total ? used : memory.total;
  memory.free = memory.total - memory.used;
  return memory;
}

// The processes that have a file of the machine open. Which GPU a process uses
// is not known, so the list is the same for each GPU.
std::vector<unsigned> users_of_machine() {
  std::vector<unsigned> users;
  DIR* processes = opendir("/proc");
  if (processes == nullptr) return users;
  while (const dirent* process = readdir(processes)) {
    const int pid = std::atoi(process->d_name);
    if (pid > 0 && has_files_of_machine(pid)) {
      users.push_back(static_cast<unsigned>(pid));
    }
  }
  closedir(processes);
  return users;
}

template <typename T>
Result list_processes(const Gpu* device, unsigned* count, T* list) {
  if (Result error = check(device, count)) return error;
  const std::vector<unsigned> users = users_of_machine();
  const unsigned room = *count;
  *count = static_cast<unsigned>(users.size());
  if (room < users.size() || list == nullptr) {
    return users.empty() ? kSuccess : kInsufficientSize;
  }
  for (size_t i = 0; i < users.size(); ++i) {
    list[i] = {};
    list[i].pid = users[i];
    list[i].bytes = kUnknownBytes;
  }
  return kSuccess;
}

}  // namespace

#define IPCLAB_NVML extern "C" __attribute__((visibility("default")))

IPCLAB_NVML Result nvmlInit_v2() {
  initialised = true;
  return kSuccess;
}
IPCLAB_NVML Result nvmlInit() { return nvmlInit_v2(); }
IPCLAB_NVML Result nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }
IPCLAB_NVML Result nvmlShutdown() {
  return initialised ? kSuccess : kUninitialised;
}

IPCLAB_NVML const char* nvmlErrorString(Result result) {
  switch (result) {
    case kSuccess:
      return "Success";
    case kUninitialised:
      return "Uninitialized";
    case kInvalidArgument:
      return "Invalid Argument";
    case kNotSupported:
      return "Not Supported";
    case kNotFound:
      return "Not Found";
    case kInsufficientSize:
      return "Insufficient Size";
  }
  return "Unknown Error";
}

// The answer shows that the model is not a version of NVIDIA's driver.
IPCLAB_NVML Result nvmlSystemGetDriverVersion(char* version, unsigned room) {
  return version == nullptr ? kInvalidArgument
                            : put("ipclab reference model", version, room);
}
IPCLAB_NVML Result nvmlSystemGetNVMLVersion(char* version, unsigned room) {
  return version == nullptr
             ? kInvalidArgument
             : put(std::to_string(profile().driver_version / 1000) + ".0",
                   version, room);
}
IPCLAB_NVML Result nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (version == nullptr) return kInvalidArgument;
  *version = profile().driver_version;
  return kSuccess;
}
IPCLAB_NVML Result nvmlSystemGetCudaDriverVersion(int* version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}

IPCLAB_NVML Result nvmlDeviceGetCount_v2(unsigned* count) {
  if (!initialised) return kUninitialised;
  if (count == nullptr) return kInvalidArgument;
  *count = static_cast<unsigned>(gpus().size());
  return kSuccess;
}
IPCLAB_NVML Result nvmlDeviceGetCount(unsigned* count) {
  return nvmlDeviceGetCount_v2(count);
}

IPCLAB_NVML Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu** device) {
  if (!initialised) return kUninitialised;
  if (device == nullptr || index >= gpus().size()) return kInvalidArgument;
  *device = &gpus()[index];
  return kSuccess;
}
IPCLAB_NVML Result nvmlDeviceGetHandleByIndex(unsigned index, Gpu** device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

IPCLAB_NVML Result nvmlDeviceGetHandleByUUID(const char* uuid, Gpu** device) {
  if (!initialised) return kUninitialised;
  if (uuid == nullptr || device == nullptr) return kInvalidArgument;
  for (Gpu& candidate : gpus()) {
    if (uuid_text(gpu_uuid(candidate.gpu)) != uuid) continue;
    *device = &candidate;
    return kSuccess;
  }
  return kNotFound;
}

IPCLAB_NVML Result nvmlDeviceGetHandleByPciBusId_v2(const char* id,
                                                    Gpu** device) {
  if (!initialised) return kUninitialised;
  if (id == nullptr || device == nullptr) return kInvalidArgument;
  unsigned domain = 0, bus = 0, slot = 0;
  if (std::sscanf(id, "%x:%x:%x.", &domain, &bus, &slot) != 3)
    return kInvalidArgument;
  if (domain != 0 || bus != kPciBus) return kNotFound;
  for (Gpu& candidate : gpus()) {
    if (candidate.gpu != static_cast<int>(slot)) continue;
    *device = &candidate;
    return kSuccess;
  }
  return kNotFound;
}
IPCLAB_NVML Result nvmlDeviceGetHandleByPciBusId(const char* id, Gpu** device) {
  return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

IPCLAB_NVML Result nvmlDeviceGetIndex(Gpu* device, unsigned* index) {
  if (Result error = check(device, index)) return error;
  *index = static_cast<unsigned>(device->gpu);
  return kSuccess;
}
IPCLAB_NVML Result nvmlDeviceGetMinorNumber(Gpu* device, unsigned* number) {
  return nvmlDeviceGetIndex(device, number);
}
IPCLAB_NVML Result nvmlDeviceGetName(Gpu* device, char* name, unsigned room) {
  if (Result error = check(device, name)) return error;
  return put("ipclab reference model", name, room);
}
IPCLAB_NVML Result nvmlDeviceGetUUID(Gpu* device, char* uuid, unsigned room) {
  if (Result error = check(device, uuid)) return error;
  return put(uuid_text(gpu_uuid(device->gpu)), uuid, room);
}

IPCLAB_NVML Result nvmlDeviceGetMemoryInfo(Gpu* device, Memory* memory) {
  if (Result error = check(device, memory)) return error;
  *memory = memory_of(device->gpu);
  return kSuccess;
}
IPCLAB_NVML Result nvmlDeviceGetMemoryInfo_v2(Gpu* device, MemoryV2* memory) {
  if (Result error = check(device, memory)) return error;
  const Memory now = memory_of(device->gpu);
  *memory = {memory->version, now.total, 0, now.free, now.used};
  return kSuccess;
}

IPCLAB_NVML Result nvmlDeviceGetPciInfo_v3(Gpu* device, PciInfo* info) {
  if (Result error = check(device, info)) return error;
  *info = {};
  info->bus = kPciBus;
  info->device = static_cast<unsigned>(device->gpu);
  std::snprintf(info->legacy_id, sizeof info->legacy_id, "0000:%02X:%02X.0",
                info->bus, info->device);
  std::snprintf(info->id, sizeof info->id, "00000000:%02X:%02X.0", info->bus,
                info->device);
  return kSuccess;
}
IPCLAB_NVML Result nvmlDeviceGetPciInfoExt(Gpu* device, PciInfoExt* info) {
  PciInfo same;
  if (Result error = check(device, info)) return error;
  nvmlDeviceGetPciInfo_v3(device, &same);
  *info = {info->version,
           same.domain,
           same.bus,
           same.device,
           same.device_id,
           same.subsystem_id,
           /*base_class=*/0x03,
           /*sub_class=*/0x02,  // a 3D controller
           {}};
  std::memcpy(info->id, same.id, sizeof info->id);
  return kSuccess;
}
IPCLAB_NVML Result nvmlDeviceGetPciInfo_v2(Gpu* device, PciInfo* info) {
  return nvmlDeviceGetPciInfo_v3(device, info);
}
IPCLAB_NVML Result nvmlDeviceGetPciInfo(Gpu* device, PciInfo* info) {
  return nvmlDeviceGetPciInfo_v3(device, info);
}

// The link of a GPU of compute capability 9.0.
constexpr unsigned kPcieGeneration = 5;
constexpr unsigned kPcieLanes = 16;

IPCLAB_NVML Result nvmlDeviceGetCurrPcieLinkGeneration(Gpu* device,
                                                       unsigned* generation) {
  if (Result error = check(device, generation)) return error;
  *generation = kPcieGeneration;
  return kSuccess;
}
IPCLAB_NVML Result nvmlDeviceGetMaxPcieLinkGeneration(Gpu* device,
                                                      unsigned* generation) {
  return nvmlDeviceGetCurrPcieLinkGeneration(device, generation);
}
IPCLAB_NVML Result nvmlDeviceGetCurrPcieLinkWidth(Gpu* device,
                                                  unsigned* lanes) {
  if (Result error = check(device, lanes)) return error;
  *lanes = kPcieLanes;
  return kSuccess;
}
IPCLAB_NVML Result nvmlDeviceGetMaxPcieLinkWidth(Gpu* device, unsigned* lanes) {
  return nvmlDeviceGetCurrPcieLinkWidth(device, lanes);
}

// What is asked: 0 read, 1 write, 2 NVLink, 3 atomics, 4 PCIe, 5 properties.
// The answer is 0 (OK) or 5 (not supported). The GPUs have no NVLink.
IPCLAB_NVML Result nvmlDeviceGetP2PStatus(Gpu* first, Gpu* second,
                                          unsigned asked, unsigned* status) {
  if (Result error = check(first, status)) return error;
  if (!is_device(second) || asked > 5) return kInvalidArgument;
  constexpr unsigned kOk = 0, kNotPossible = 5, kNvlink = 2;
  const bool peers = first != second && profile().peers;
  *status = peers && asked != kNvlink ? kOk : kNotPossible;
  return kSuccess;
}

IPCLAB_NVML Result nvmlDeviceGetCudaComputeCapability(Gpu* device, int* major,
                                                      int* minor) {
  if (Result error = check(device, major)) return error;
  if (minor == nullptr) return kInvalidArgument;
  device_attribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                   device->gpu);
  device_attribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                   device->gpu);
  return kSuccess;
}

IPCLAB_NVML Result nvmlDeviceGetComputeRunningProcesses(Gpu* device,
                                                        unsigned* count,
                                                        ProcessV1* list) {
  return list_processes(device, count, list);
}
IPCLAB_NVML Result nvmlDeviceGetComputeRunningProcesses_v2(Gpu* device,
                                                           unsigned* count,
                                                           Process* list) {
  return list_processes(device, count, list);
}
IPCLAB_NVML Result nvmlDeviceGetComputeRunningProcesses_v3(Gpu* device,
                                                           unsigned* count,
                                                           Process* list) {
  return list_processes(device, count, list);
}

IPCLAB_NVML Result nvmlDeviceGetGpuFabricInfo(Gpu* device, FabricInfo* info) {
  if (Result error = check(device, info)) return error;
  if (!profile().endpoints) return kNotSupported;
  *info = {};
  std::memcpy(info->cluster, kFabricCluster, sizeof info->cluster);
  info->clique = kCliqueId;
  info->state = 3;  // completed
  return kSuccess;
}

#define IPCLAB_NOT_SUPPORTED(name)                       \
  IPCLAB_NVML Result name() {                            \
    return initialised ? kNotSupported : kUninitialised; \
  }

// clang-format off
IPCLAB_NOT_SUPPORTED(nvmlDeviceClearCpuAffinity)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetBrand)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetClockInfo)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetComputeMode)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetCpuAffinity)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetFieldValues)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetGpuFabricInfoV)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetGpuInstanceId)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetMaxClockInfo)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetMemoryAffinity)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetMigMode)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetNumaNodeId)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetPcieLinkMaxSpeed)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetPlatformInfo)
IPCLAB_NOT_SUPPORTED(nvmlSystemGetConfComputeSettings)
IPCLAB_NOT_SUPPORTED(nvmlSystemGetConfComputeState)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetNvLinkCapability)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetNvLinkState)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetNvLinkVersion)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetPersistenceMode)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetPowerUsage)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetTemperature)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetTopologyCommonAncestor)
IPCLAB_NOT_SUPPORTED(nvmlDeviceGetUtilizationRates)
IPCLAB_NOT_SUPPORTED(nvmlDeviceSetCpuAffinity)
// clang-format on
