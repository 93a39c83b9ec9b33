// SPDX-License-Identifier: Apache-2.0
// The small NVML shows the same GPUs as CUDA.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "gpu.h"
#include "peer.h"
#include "pool.h"

using namespace ipclab::model::test;

namespace {

constexpr int kNotSupported = 3;
constexpr int kInsufficientSize = 7;

void* library() {
  static void* const nvml = dlopen(IPCLAB_NVML, RTLD_NOW);
  return nvml;
}

template <typename... Arguments>
int call(const char* name, Arguments... arguments) {
  using Function = int (*)(Arguments...);
  void* const found = dlsym(library(), name);
  EXPECT_NE(found, nullptr) << name;
  return found == nullptr ? -1
                          : reinterpret_cast<Function>(found)(arguments...);
}

struct Process {
  unsigned pid;
  unsigned long long bytes;
  unsigned instances[2];
};

TEST(Nvml, ShowsTheGpusThatCudaShows) {
  ASSERT_NE(library(), nullptr) << dlerror();
  unsigned count = 0;
  EXPECT_NE(call("nvmlDeviceGetCount_v2", &count), 0);  // not initialised
  ASSERT_EQ(call("nvmlInit_v2"), 0);
  ASSERT_EQ(call("nvmlDeviceGetCount_v2", &count), 0);
  int visible = 0;
  ASSERT_EQ(cudaGetDeviceCount(&visible), cudaSuccess);
  EXPECT_EQ(count, static_cast<unsigned>(visible));
  char bus[32];
  ASSERT_EQ(cudaDeviceGetPCIBusId(bus, sizeof bus, 0), cudaSuccess);
  void* by_bus = nullptr;
  void* by_index = nullptr;
  EXPECT_EQ(call("nvmlDeviceGetHandleByPciBusId_v2", bus, &by_bus), 0);
  EXPECT_EQ(call("nvmlDeviceGetHandleByIndex_v2", 0u, &by_index), 0);
  EXPECT_EQ(by_bus, by_index);
  EXPECT_NE(call("nvmlDeviceGetHandleByIndex_v2", count, &by_bus), 0);
  char uuid[96];
  EXPECT_EQ(call("nvmlDeviceGetUUID", by_index, uuid, unsigned{sizeof uuid}),
            0);
  void* by_uuid = nullptr;
  EXPECT_EQ(call("nvmlDeviceGetHandleByUUID", uuid, &by_uuid), 0);
  EXPECT_EQ(by_uuid, by_index);
  EXPECT_EQ(call("nvmlDeviceGetUUID", by_index, uuid, 4u), kInsufficientSize);
  EXPECT_EQ(call("nvmlDeviceGetNvLinkState", by_index, 0u, &count),
            kNotSupported);
}

TEST(Nvml, KnowsLinksAndPeers) {
  ASSERT_EQ(call("nvmlInit_v2"), 0);
  void* device = nullptr;
  ASSERT_EQ(call("nvmlDeviceGetHandleByIndex_v2", 0u, &device), 0);
  unsigned generation = 0, lanes = 0;
  EXPECT_EQ(call("nvmlDeviceGetCurrPcieLinkGeneration", device, &generation),
            0);
  EXPECT_EQ(call("nvmlDeviceGetCurrPcieLinkWidth", device, &lanes), 0);
  EXPECT_EQ(generation, 5u);
  EXPECT_EQ(lanes, 16u);
  char bus[32];
  ASSERT_EQ(cudaDeviceGetPCIBusId(bus, sizeof bus, 0), cudaSuccess);
  struct {
    unsigned version = 0x1000040, numbers[7] = {};
    char id[32] = {};
  } place;
  static_assert(sizeof place == 0x40);
  EXPECT_EQ(call("nvmlDeviceGetPciInfoExt", device, &place), 0);
  EXPECT_EQ(std::string(place.id), std::string("0000") + bus);
  unsigned status = 77;  // a GPU is no peer of itself
  EXPECT_EQ(call("nvmlDeviceGetP2PStatus", device, device, 0u, &status), 0);
  EXPECT_EQ(status, 5u);
  EXPECT_NE(call("nvmlDeviceGetP2PStatus", device, &place, 0u, &status), 0);
}

// What NCCL and MSCCL++ read about the GPU with this number on the bus.
std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  return text;
}

ROLE(read_pci_files) {
  char bus[32];
  EXPECT_EQ(cudaDeviceGetPCIBusId(bus, sizeof bus, 1), cudaSuccess);
  const std::string folder = std::string("/sys/bus/pci/devices/") + bus;
  EXPECT_EQ(read_file(folder + "/numa_node"), "0");
  EXPECT_EQ(read_file(folder + "/max_link_width"), "16");
  EXPECT_EQ(read_file(folder + "/nothing"), "");
  EXPECT_EQ(access((folder + "/class").c_str(), R_OK), 0);
  EXPECT_NE(access((folder + "/nothing").c_str(), R_OK), 0);
  char* real =
      realpath(("/sys/class/pci_bus/0000:10/../../" + std::string(bus)).c_str(),
               nullptr);
  ASSERT_NE(real, nullptr);
  EXPECT_EQ(read_file(std::string(real) + "/class"), "0x030200");
  free(real);
  const int file = open((folder + "/vendor").c_str(), O_RDONLY);
  EXPECT_GE(file, 0);
  close(file);
  // Other files are the real ones; there is no third GPU.
  EXPECT_NE(read_file("/proc/self/comm"), "");
  EXPECT_EQ(read_file("/sys/bus/pci/devices/0000:10:02.0/numa_node"), "");
}

#ifdef IPCLAB_PCI  // not under a sanitizer
TEST(Nvml, PciFilesAreThoseOfTheModel) {
  Peer peer("read_pci_files",
            {{"IPCLAB_PROFILE", "two-gpus"}, {"LD_PRELOAD", IPCLAB_PCI}});
  EXPECT_EQ(peer.wait(), "exit 0");
}
#endif

ROLE(ask_for_peers) {
  struct {
    unsigned read = 77, nvlink = 77;
  } status;
  void *first = nullptr, *second = nullptr;
  EXPECT_EQ(call("nvmlInit_v2"), 0);
  EXPECT_EQ(call("nvmlDeviceGetHandleByIndex_v2", 0u, &first), 0);
  EXPECT_EQ(call("nvmlDeviceGetHandleByIndex_v2", 1u, &second), 0);
  EXPECT_EQ(call("nvmlDeviceGetP2PStatus", first, second, 0u, &status.read), 0);
  EXPECT_EQ(call("nvmlDeviceGetP2PStatus", first, second, 2u, &status.nvlink),
            0);
  test.send(status.read);
  test.send(status.nvlink);
}

TEST(Nvml, PeersAreThoseOfTheProfile) {
  for (const auto& [profile, read] :
       {std::pair{"two-gpus", 0u}, std::pair{"no-peer", 5u}}) {
    Peer peer("ask_for_peers", {{"IPCLAB_PROFILE", profile}});
    EXPECT_EQ(peer.channel().receive<unsigned>(), read) << profile;
    EXPECT_EQ(peer.channel().receive<unsigned>(), 5u) << profile;
    EXPECT_EQ(peer.wait(), "exit 0");
  }
}

TEST(Nvml, CountsMemoryAndProcesses) {
  ASSERT_EQ(call("nvmlInit_v2"), 0);
  void* device = nullptr;
  ASSERT_EQ(call("nvmlDeviceGetHandleByIndex_v2", 0u, &device), 0);
  unsigned long long before[3], after[3];  // total, free, used
  ASSERT_EQ(call("nvmlDeviceGetMemoryInfo", device, before), 0);
  int* data = allocate<int>(64 * kMiB / sizeof(int));
  ASSERT_EQ(call("nvmlDeviceGetMemoryInfo", device, after), 0);
  EXPECT_EQ(after[2], before[2] + 64 * kMiB);
  EXPECT_EQ(after[1] + after[2], after[0]);
  std::vector<Process> users(64);
  auto count = static_cast<unsigned>(users.size());
  ASSERT_EQ(call("nvmlDeviceGetComputeRunningProcesses_v3", device, &count,
                 users.data()),
            0);
  ASSERT_LE(count, users.size());
  EXPECT_TRUE(std::any_of(users.begin(), users.begin() + count,
                          [](const Process& user) {
                            return user.pid == static_cast<unsigned>(getpid());
                          }));
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

}  // namespace
