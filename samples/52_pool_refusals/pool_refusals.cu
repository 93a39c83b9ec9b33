// Lesson 52: what of a pool cannot be exported or imported.
//
//   exporter                             importer
//   export what was not made for it:
//   refused
//   export a pool,    -- pool, piece --> import what is none: refused
//   a pointer                            export it again: refused
//                                        import the real ones, read
//                     <-- freed -------- free
//
// nvcc -cudart shared samples/52_pool_refusals/pool_refusals.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "../common/channel.h"
#include "../common/check.h"
#include "../common/require.h"
#include "../common/roles.h"

constexpr auto kNone = cudaMemHandleTypeNone;
constexpr auto kFd = cudaMemHandleTypePosixFileDescriptor;
constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kValue = 52000000;

__global__ void write_values(int* data, int first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) data[i] = first + i;
}

bool holds(const void* data, int first) {
  std::vector<int> seen(kCount);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kBytes, cudaMemcpyDefault));
  for (int i = 0; i < kCount; ++i)
    if (seen[i] != first + i) return false;
  return true;
}

cudaMemPool_t make_pool(cudaMemAllocationHandleType type) {
  cudaMemPoolProps wanted = {};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  wanted.handleTypes = type;
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolCreate(&pool, &wanted));
  return pool;
}

bool refused(const char* what, cudaError_t code) {
  say("%s: %s", what, code == cudaSuccess ? "ACCEPTED" : "refused");
  cudaGetLastError();  // or the next check finds this code
  return code != cudaSuccess;
}

const auto share = cudaMemPoolExportToShareableHandle;

//! [exporter]
int exporter(Channel& channel) {
  cudaMemPool_t pool = make_pool(kFd), plain = make_pool(kNone), preset;
  CUDA_CHECK(cudaDeviceGetDefaultMemPool(&preset, 0));
  int *data = nullptr, *other = nullptr, fd = -1;
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
  CUDA_CHECK(cudaMalloc(&other, kBytes));
  cudaMemPoolPtrExportData bytes;
  bool good = refused("a plain pool", share(&fd, plain, kFd, 0));
  good &= refused("the default pool", share(&fd, preset, kFd, 0));
  good &= refused("another handle type", share(&fd, pool, kNone, 0));
  good &= refused("a pointer of cudaMalloc",
                  cudaMemPoolExportPointer(&bytes, other));

  CUDA_CHECK(share(&fd, pool, kFd, 0));
  channel.send_descriptor("pool", fd);
  write_values<<<kCount / 256, 256>>>(data, kValue);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemPoolExportPointer(&bytes, data));
  channel.send("pointer", bytes);
  channel.wait("freed");
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto as_pool = [](cudaMemPool_t* pool, int fd) {
    void* from = reinterpret_cast<void*>(intptr_t{fd});
    return cudaMemPoolImportFromShareableHandle(pool, from, kFd, 0);
  };
  int fd = channel.receive_descriptor("pool");
  cudaMemPool_t pool;
  bool good = refused("stdin as a pool", as_pool(&pool, STDIN_FILENO));
  CUDA_CHECK(as_pool(&pool, fd));
  cudaMemPoolPtrExportData made_up = {};
  void* data = nullptr;
  good &= refused("64 zeros as a pointer",
                  cudaMemPoolImportPointer(&data, pool, &made_up));
  good &= refused("an imported pool again", share(&fd, pool, kFd, 0));

  auto bytes = channel.receive<cudaMemPoolPtrExportData>("pointer");
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &bytes));
  const bool same = holds(data, kValue);
  say("the real data: %s values", same ? "the exporter's" : "WRONG");
  CUDA_CHECK(cudaFree(data));
  channel.signal("freed");
  return good && same ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "pools for IPC");
  Child child = start_again(argv);
  const int mine = exporter(child.channel);
  return child.wait(10s) == EXIT_SUCCESS ? mine : EXIT_FAILURE;
}
