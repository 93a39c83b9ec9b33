// SPDX-License-Identifier: Apache-2.0
// The actions of other processes do not harm this process. Whatever they write,
// leave behind or fail to do, this process does not crash, does not wait while
// it holds a lock, and does not trust their data.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "gpu.h"
#include "peer.h"
#include "pool.h"
#include "vmm.h"

using namespace ipclab::model::test;

namespace {

using Random = std::mt19937_64;
using Environment = std::map<std::string, std::string>;

constexpr int kRounds = 400;
constexpr auto kPoolType = cudaMemHandleTypePosixFileDescriptor;

std::string name_of(int descriptor) {
  char target[128] = {};
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  if (readlink(path.c_str(), target, sizeof target - 1) < 0) return "";
  std::string name = target;
  name = name.substr(std::string("/memfd:").size());
  return name.substr(0, name.find(' '));
}

std::vector<char> content_of(int descriptor) {
  struct stat status {};
  EXPECT_EQ(fstat(descriptor, &status), 0);
  std::vector<char> bytes(static_cast<size_t>(status.st_size));
  EXPECT_EQ(pread(descriptor, bytes.data(), bytes.size(), 0),
            static_cast<ssize_t>(bytes.size()));
  return bytes;
}

// Makes a file that consists of these bytes.
int forged(const std::string& name, const std::vector<char>& bytes,
           bool sealed = true) {
  const int file = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(file, static_cast<off_t>(bytes.size())), 0);
  EXPECT_EQ(pwrite(file, bytes.data(), bytes.size(), 0),
            static_cast<ssize_t>(bytes.size()));
  if (sealed) {
    EXPECT_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL), 0);
  }
  return file;
}

CUresult import_chunk(int file, Handle* handle) {
  return cuMemImportFromShareableHandle(
      handle, reinterpret_cast<void*>(static_cast<intptr_t>(file)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

// Imports a chunk and uses it, as far as the model allows this.
CUresult try_chunk(int file) {
  Handle handle = 0;
  const CUresult code = import_chunk(file, &handle);
  if (code != CUDA_SUCCESS) return code;
  CUmemAllocationProp properties;
  EXPECT_EQ(cuMemGetAllocationPropertiesFromHandle(&properties, handle),
            CUDA_SUCCESS);
  const CUdeviceptr place = reserve(kChunk);
  if (cuMemMap(place, kChunk, 0, handle, 0) == CUDA_SUCCESS) {
    if (set_access(place, kAll) == CUDA_SUCCESS) {
      EXPECT_EQ(cuMemsetD8(place, 1, kChunk), CUDA_SUCCESS);
      EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuMemUnmap(place, kChunk), CUDA_SUCCESS);
  }
  EXPECT_EQ(cuMemAddressFree(place, kChunk), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  return CUDA_SUCCESS;
}

// Damages the bytes in [begin, end), and sometimes the length.
void damage(Random& random, size_t begin, size_t end,
            std::vector<char>* bytes) {
  const size_t hits = 1 + random() % 8;
  for (size_t i = 0; i < hits; ++i) {
    (*bytes)[begin + random() % (end - begin)] = static_cast<char>(random());
  }
  if (random() % 4 == 0) bytes->resize(random() % (bytes->size() + 4096));
}

TEST(Trust, ADamagedChunkHarmsNobody) {
  const Handle handle =
      create(chunk_on(0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  int good = -1;
  ASSERT_EQ(cuMemExportToShareableHandle(
                &good, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  const std::string name = name_of(good);
  const std::vector<char> bytes = content_of(good);
  const auto refused = [](int file) {
    EXPECT_NE(try_chunk(file), CUDA_SUCCESS);
    close(file);
  };
  EXPECT_EQ(try_chunk(good), CUDA_SUCCESS);
  const int copy = forged(name, bytes);  // as good as the original
  EXPECT_EQ(try_chunk(copy), CUDA_SUCCESS);
  close(copy);
  refused(forged(name, bytes, false));  // could be made shorter
  refused(forged("ipclab-model-0000000000000000-chunk", bytes));
  refused(forged("chunk", bytes));
  refused(forged(name, {}));
  refused(forged(name, std::vector<char>(bytes.begin() + 512, bytes.end())));
  refused(open("/dev/null", O_RDWR | O_CLOEXEC));
  Random random(1);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<char> damaged = bytes;
    damage(random, kChunk, kChunk + 128, &damaged);
    const int file = forged(name, damaged);
    try_chunk(file);
    close(file);
  }
  EXPECT_EQ(try_chunk(good), CUDA_SUCCESS);
  close(good);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

cudaError_t try_pool(int file, cudaMemPoolPtrExportData data) {
  cudaMemPool_t pool = nullptr;
  const cudaError_t code = cudaMemPoolImportFromShareableHandle(
      &pool, reinterpret_cast<void*>(static_cast<intptr_t>(file)), kPoolType,
      0);
  cudaGetLastError();
  if (code != cudaSuccess) return code;
  void* pointer = nullptr;
  if (cudaMemPoolImportPointer(&pointer, pool, &data) == cudaSuccess) {
    EXPECT_EQ(cudaMemset(pointer, 1, 64), cudaSuccess);
    EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  }
  cudaGetLastError();
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
  return cudaSuccess;
}

TEST(Trust, ADamagedPoolHarmsNobody) {
  cudaMemPool_t pool = create(on_device(0, kPoolType));
  int* data = take(pool, 4096, nullptr);
  int good = -1;
  ASSERT_EQ(cudaMemPoolExportToShareableHandle(&good, pool, kPoolType, 0),
            cudaSuccess);
  cudaMemPoolPtrExportData pointer;
  ASSERT_EQ(cudaMemPoolExportPointer(&pointer, data), cudaSuccess);
  const std::string name = name_of(good);
  const std::vector<char> bytes = content_of(good);
  EXPECT_EQ(try_pool(good, pointer), cudaSuccess);
  const int loose = forged(name, bytes, false);
  EXPECT_NE(try_pool(loose, pointer), cudaSuccess);
  close(loose);
  Random random(2);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<char> damaged = bytes;
    damage(random, 0, 64, &damaged);
    const int file = forged(name, damaged);
    try_pool(file, pointer);
    close(file);
    cudaMemPoolPtrExportData other = pointer;
    other.reserved[random() % sizeof other.reserved] ^=
        static_cast<unsigned char>(1 + random() % 255);
    EXPECT_EQ(try_pool(good, other), cudaSuccess);
  }
  EXPECT_EQ(try_pool(good, pointer), cudaSuccess);
  close(good);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
}

// The page of an event of this process. Another process could map the page in
// the same way.
struct EventPage {
  char* bytes = nullptr;
  size_t size = 0;
};

EventPage page_of_event() {
  EventPage page;
  DIR* descriptors = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(descriptors)) {
    const int file = std::atoi(entry->d_name);
    struct stat status {};
    if (name_of(file).find("-event") == std::string::npos ||
        fstat(file, &status) != 0) {
      continue;
    }
    page.size = static_cast<size_t>(status.st_size);
    page.bytes = static_cast<char*>(
        mmap(nullptr, page.size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  }
  closedir(descriptors);
  return page;
}

ROLE(uses_a_damaged_event) {
  const auto handle = test.receive<cudaIpcEventHandle_t>();
  cudaEvent_t event = nullptr;
  if (cudaIpcOpenEventHandle(&event, handle) != cudaSuccess) return;
  cudaEventQuery(event);
  cudaEventRecord(event, nullptr);
  cudaStreamWaitEvent(nullptr, event, 0);
  cudaEventSynchronize(event);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST(Trust, ADamagedEventHarmsNobody) {
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(
                &event, cudaEventInterprocess | cudaEventDisableTiming),
            cudaSuccess);
  cudaIpcEventHandle_t handle;
  ASSERT_EQ(cudaIpcGetEventHandle(&handle, event), cudaSuccess);
  const EventPage page = page_of_event();
  ASSERT_NE(page.bytes, nullptr);
  Random random(3);
  for (int round = 0; round < 10; ++round) {
    for (size_t i = 0; i < page.size; ++i) {
      page.bytes[i] = static_cast<char>(random());
    }
    if (round % 2 == 0) {
      std::memcpy(page.bytes, "ipclev01",
                  8);  // the file still says that it is an event
    }
    Peer peer("uses_a_damaged_event");
    peer.channel().send(handle);
    EXPECT_EQ(peer.wait(), "exit 0") << round;
  }
  munmap(page.bytes, page.size);
}

ROLE(records_and_forks) {
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(
                &event, cudaEventInterprocess | cudaEventDisableTiming),
            cudaSuccess);
  int* memory = allocate<int>(64 * kMiB / sizeof(int));
  ASSERT_NE(memory, nullptr);
  cudaStream_t stream = stream_with(cudaStreamNonBlocking);
  ASSERT_EQ(launch("spin_until", 1, 1, stream, shared_word(), 1), CUDA_SUCCESS);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  cudaIpcEventHandle_t handle;
  ASSERT_EQ(cudaIpcGetEventHandle(&handle, event), cudaSuccess);
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  test.send(handle);
  test.send(child);
  test.receive<bool>();
}

size_t free_memory() {
  size_t free_bytes = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
  return free_bytes;
}

TEST(Trust, AForkedChildKeepsNothingOfItsDeadParent) {
  ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
  const size_t before = free_memory();
  Peer recorder("records_and_forks");
  const auto handle = recorder.channel().receive<cudaIpcEventHandle_t>();
  const pid_t child = recorder.channel().receive<pid_t>();
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaIpcOpenEventHandle(&event, handle), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  cudaGetLastError();
  EXPECT_LE(free_memory(), before - 64 * kMiB);
  recorder.kill(SIGKILL);
  EXPECT_EQ(recorder.wait(), "signal 9");
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(free_memory(), before);
  EXPECT_EQ(kill(child, SIGKILL), 0);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

Environment fabric() { return {{"IPCLAB_PROFILE", "fabric"}}; }

ROLE(offers_fabric) {
  const Handle handle = create(chunk_on(0, kFabric));
  CUmemFabricHandle shareable{};
  EXPECT_EQ(cuMemExportToShareableHandle(&shareable, handle,
                                         CU_MEM_HANDLE_TYPE_FABRIC, 0),
            CUDA_SUCCESS);
  test.send(shareable);
  test.receive<bool>();
}

CUresult import_fabric(CUmemFabricHandle shareable) {
  Handle handle = 0;
  return cuMemImportFromShareableHandle(&handle, &shareable,
                                        CU_MEM_HANDLE_TYPE_FABRIC);
}

ROLE(imports_fabric) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  EXPECT_EQ(import_fabric(test.receive<CUmemFabricHandle>()), CUDA_SUCCESS);
  test.send(true);
}

// The socket on which the exporter of a handle answers.
struct Endpoint {
  sockaddr_un address{};
  socklen_t length = 0;

  explicit Endpoint(const CUmemFabricHandle& shareable) {
    unsigned long long name = 0;
    std::memcpy(&name, shareable.data + 24, sizeof name);
    address.sun_family = AF_UNIX;
    const int written =
        std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1,
                      "ipclab-model-fabric-%016llx", name);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                    static_cast<size_t>(written));
  }
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&address);
  }
};

int new_socket() { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); }

// A client that connects to the exporter and sends nothing.
int silent_client(const CUmemFabricHandle& shareable) {
  const Endpoint endpoint(shareable);
  const int client = new_socket();
  EXPECT_EQ(connect(client, endpoint.get(), endpoint.length), 0);
  return client;
}

TEST(Trust, SilentClientsHoldUpNobody) {
  Peer exporter("offers_fabric", fabric());
  const auto shareable = exporter.channel().receive<CUmemFabricHandle>();
  constexpr int kClients = 8;
  std::vector<int> silent;
  silent.reserve(kClients);
  for (int i = 0; i < kClients; ++i) silent.push_back(silent_client(shareable));
  Peer importer("imports_fabric", fabric());
  importer.channel().send(shareable);
  EXPECT_TRUE(importer.channel().receive<bool>());
  EXPECT_EQ(importer.wait(), "exit 0");
  for (const int client : silent) close(client);
}

ROLE(allocates_during_an_import) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  const auto shareable = test.receive<CUmemFabricHandle>();
  std::thread importer(
      [&] { EXPECT_NE(import_fabric(shareable), CUDA_SUCCESS); });
  test.receive<bool>();  // the thread is in its import now
  EXPECT_EQ(cudaFree(allocate<int>(1)), cudaSuccess);
  test.send(true);
  importer.join();
}

TEST(Trust, AnExporterThatDoesNotAnswerHoldsUpNoOtherThread) {
  Peer exporter("offers_fabric", fabric());
  const auto shareable = exporter.channel().receive<CUmemFabricHandle>();
  exporter.kill(SIGKILL);
  EXPECT_EQ(exporter.wait(), "signal 9");
  // This socket replaces the exporter's socket. So the test knows when the
  // import waits.
  const Endpoint endpoint(shareable);
  const int listener = new_socket();
  ASSERT_EQ(bind(listener, endpoint.get(), endpoint.length), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  Peer importer("allocates_during_an_import", fabric());
  importer.channel().send(shareable);
  pollfd coming{listener, POLLIN, 0};
  ASSERT_EQ(poll(&coming, 1, 5000), 1);
  const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  pollfd asks{client, POLLIN, 0};
  ASSERT_EQ(poll(&asks, 1, 5000), 1);
  uint64_t request = 0;
  EXPECT_EQ(recv(client, &request, sizeof request, MSG_DONTWAIT), 8);
  importer.channel().send(true);
  EXPECT_TRUE(importer.channel().receive<bool>());
  // The import still waits: it has not closed the connection.
  EXPECT_EQ(recv(client, &request, sizeof request, MSG_DONTWAIT), -1);
  close(client);
  close(listener);
  EXPECT_EQ(importer.wait(), "exit 0");
}

ROLE(shows_memory) {
  int* data = allocate<int>(64 * kMiB / sizeof(int));
  test.send(memory_handle(data));
  test.receive<bool>();
}
ROLE(looks_at_memory) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  size_t free_bytes = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
  test.send(total - free_bytes);
  const auto handle = test.receive<cudaIpcMemHandle_t>();
  void* data = nullptr;
  test.send(cudaIpcOpenMemHandle(&data, handle, 1));
}

TEST(Machine, SeesItsOwnMemoryAndHandlesOnly) {
  const std::string here = "test " + std::to_string(getpid());
  Peer exporter("shows_memory", {{"IPCLAB_MODEL_MACHINE", here}});
  const auto handle = exporter.channel().receive<cudaIpcMemHandle_t>();
  const auto look = [&](const std::string& machine) {
    Peer importer("looks_at_memory", {{"IPCLAB_MODEL_MACHINE", machine}});
    importer.channel().send(handle);
    const auto used = importer.channel().receive<size_t>();
    const auto code = importer.channel().receive<cudaError_t>();
    EXPECT_EQ(importer.wait(), "exit 0");
    return std::pair(used, code);
  };
  EXPECT_EQ(look(here), std::pair(size_t{64 * kMiB}, cudaSuccess));
  EXPECT_EQ(look(here + " b"), std::pair(size_t{0}, cudaErrorInvalidValue));
}

// Locks and unlocks files in an endless loop. Any program of the host may do
// this.
ROLE(churns_locks) {
  struct flock all {};
  all.l_type = F_WRLCK;
  all.l_whence = SEEK_SET;
  for (bool first = true;; first = false) {
    const int file = memfd_create("of another program", MFD_CLOEXEC);
    EXPECT_EQ(fcntl(file, F_OFD_SETLK, &all), 0);
    close(file);
    if (first) test.send(true);
  }
}

// The test has more blocks than the kernel shows in one read of its locks.
TEST(Machine, CountsEachByteWhileLocksOfOthersComeAndGo) {
  constexpr size_t kSize = 4 * kMiB;
  constexpr int kBlocks = 200;
  constexpr int kTurns = 150;
  const size_t before = free_memory();
  std::vector<char*> blocks;
  blocks.reserve(kBlocks);
  for (int i = 0; i < kBlocks; ++i) blocks.push_back(allocate<char>(kSize));
  Peer churning("churns_locks");
  churning.channel().receive<bool>();
  int wrong = 0;
  for (int round = 0; round < kTurns; ++round) {
    char*& block = blocks[static_cast<size_t>(round % kBlocks)];
    EXPECT_EQ(cudaFree(block), cudaSuccess);
    wrong += before - free_memory() != (kBlocks - 1) * kSize;
    block = allocate<char>(kSize);
    wrong += before - free_memory() != kBlocks * kSize;
    wrong += before - free_memory() != kBlocks * kSize;
  }
  EXPECT_EQ(wrong, 0) << "of " << 3 * kTurns;
  for (char* block : blocks) EXPECT_EQ(cudaFree(block), cudaSuccess);
  EXPECT_EQ(free_memory(), before);
}

// Takes locks, as many as it is told, and holds them until the end.
ROLE(holds_locks) {
  struct flock part {};
  part.l_type = F_RDLCK;
  part.l_whence = SEEK_SET;
  part.l_len = 1;
  const int file = memfd_create("of another program", MFD_CLOEXEC);
  const int count = test.receive<int>();
  for (int i = 0; i < count; ++i, part.l_start += 2)
    EXPECT_EQ(fcntl(file, F_OFD_SETLK, &part), 0);
  test.send(true);
  test.receive<bool>();
}

long address_space() {
  long pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// A sanitizer keeps freed memory for a while, in pools of 64 KiB. The text of
// 4,000 locks is larger than two pools.
#ifdef __SANITIZE_ADDRESS__
constexpr long kKept = 128 << 10;
#else
constexpr long kKept = 0;
#endif

// A test that measures whether its own memory grows may run while other tests
// begin.
TEST(Machine, LocksOfOthersTakeNoMemoryHere) {
  auto* const block = allocate<char>(4 * kMiB);
  const size_t free = free_memory();
  Peer others("holds_locks");
  const long before = address_space();
  others.channel().send(4000);
  others.channel().receive<bool>();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(free_memory(), free);
  EXPECT_LE(address_space() - before, kKept);
  others.channel().send(true);
  EXPECT_EQ(others.wait(), "exit 0");
  EXPECT_EQ(cudaFree(block), cudaSuccess);
}

}  // namespace
