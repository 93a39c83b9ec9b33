// Lesson 61: two processes that do not see each other.
//
//   exporter                             importer
//                                        enter namespaces of its own
//   memory, event       -- handles -->   open? ask the driver
//   pool, its memory    -- SCM_RIGHTS -> import, read, write
//   read                <- written ---
//
// nvcc -cudart shared samples/61_namespaces/namespaces.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <sched.h>
#include <sys/mount.h>

#include "../common/roles.h"

constexpr auto kFd = cudaMemHandleTypePosixFileDescriptor;
constexpr int kPoison = -1, kExporter = 1000, kImporter = 2000;

struct Offer {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
  cudaMemPoolPtrExportData pooled;
};

//! [enter]
// As a container does. CUDA has not begun: this fork does no harm.
void enter_namespaces() {
  if (unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC) == -1)
    skip("unshare of namespaces: %s", std::strerror(errno));
  const pid_t first = fork();  // process 1 of the namespace
  if (first != 0) _exit(Child{Channel(-1), first}.wait(20s));
  if (mount("", "/", "", MS_REC | MS_PRIVATE, "") == -1 ||
      mount("proc", "/proc", "proc", 0, "") == -1 ||
      mount("tmpfs", "/dev/shm", "tmpfs", 0, "") == -1)
    skip("mount in a namespace: %s", std::strerror(errno));
}
//! [enter]

void write(void* data, int value) {
  CUDA_CHECK(cudaMemcpy(data, &value, sizeof value, cudaMemcpyDefault));
  CUDA_CHECK(cudaDeviceSynchronize());  // it may end after it returns
}
bool holds(const void* data, int value) {
  int seen = kPoison;
  CUDA_CHECK(cudaMemcpy(&seen, data, sizeof seen, cudaMemcpyDefault));
  return seen == value;
}

//! [exporter]
int exporter(Channel& channel) {
  Offer offer;
  int *legacy = nullptr, *pooled = nullptr, fd = -1;
  CUDA_CHECK(cudaMalloc(&legacy, sizeof *legacy));
  CUDA_CHECK(cudaIpcGetMemHandle(&offer.memory, legacy));
  cudaEvent_t event;
  CUDA_CHECK(cudaEventCreateWithFlags(
      &event, cudaEventInterprocess | cudaEventDisableTiming));
  CUDA_CHECK(cudaIpcGetEventHandle(&offer.event, event));
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.handleTypes = kFd;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolCreate(&pool, &wanted));
  CUDA_CHECK(cudaMemPoolExportToShareableHandle(&fd, pool, kFd, 0));
  CUDA_CHECK(
      cudaMallocFromPoolAsync(&pooled, sizeof *pooled, pool, nullptr));
  CUDA_CHECK(cudaMemPoolExportPointer(&offer.pooled, pooled));
  write(legacy, kExporter);
  write(pooled, kExporter);
  channel.send("offer", offer);
  channel.send_descriptor("pool", fd);
  channel.wait("written");
  const bool good = holds(pooled, kImporter);
  say("finds %s value", good ? "the importer's" : "the WRONG");
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  auto offer = channel.receive<Offer>("offer");
  void *legacy = nullptr, *pooled = nullptr;
  cudaEvent_t event;
  const cudaError_t memory = cudaIpcOpenMemHandle(
      &legacy, offer.memory, cudaIpcMemLazyEnablePeerAccess);
  say("opens memory: [%s], event: [%s]", cudaGetErrorName(memory),
      cudaGetErrorName(cudaIpcOpenEventHandle(&event, offer.event)));
  bool good = memory != cudaSuccess || holds(legacy, kExporter);
  const int fd = channel.receive_descriptor("pool");
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolImportFromShareableHandle(
      &pool, reinterpret_cast<void*>(intptr_t{fd}), kFd, 0));
  CUDA_CHECK(cudaMemPoolImportPointer(&pooled, pool, &offer.pooled));
  good = good && holds(pooled, kExporter);
  write(pooled, kImporter);
  say("process %d imports the pool, finds %s value", getpid(),
      good ? "the exporter's" : "the WRONG");
  channel.signal("written");
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  const bool child = is_child(argc, argv);
  if (child) enter_namespaces();
  if (child) return importer(channel_from_parent(argv));
  const pid_t attempt = fork();
  if (attempt == 0) return enter_namespaces(), EXIT_SUCCESS;
  if (const int refused = Child{Channel(-1), attempt}.wait(20s))
    return refused;
  require_gpus(1);
  require(cudaDevAttrIpcEventSupport, "CUDA IPC");
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");
  Child other = start_again(argv);
  const int mine = exporter(other.channel);
  return mine | other.wait(10s);
}
