// Mistakes with IPC pools.
//
// SPDX-License-Identifier: Apache-2.0
#include "programs.h"

namespace {

constexpr auto kFd = cudaMemHandleTypePosixFileDescriptor;

cudaMemPool_t make(bool shareable = true) {
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location.type = cudaMemLocationTypeDevice;
  if (shareable) wanted.handleTypes = kFd;
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolCreate(&pool, &wanted));
  return pool;
}

cudaMemPool_t make_and_send(Channel& channel, bool leave_open = false) {
  const cudaMemPool_t pool = make();
  int fd = -1;
  CUDA_CHECK(cudaMemPoolExportToShareableHandle(&fd, pool, kFd, 0));
  channel.send_descriptor("pool", fd);
  if (!leave_open) close(fd);
  return pool;
}

void* allocate_and_send(Channel& channel, cudaMemPool_t pool) {
  void* data = nullptr;
  CUDA_CHECK(cudaMallocFromPoolAsync(&data, kBytes, pool, nullptr));
  CUDA_CHECK(cudaMemsetAsync(data, 1, kBytes, nullptr));
  CUDA_CHECK(cudaDeviceSynchronize());
  cudaMemPoolPtrExportData bytes;
  CUDA_CHECK(cudaMemPoolExportPointer(&bytes, data));
  channel.send("pointer", bytes);
  return data;
}

cudaMemPool_t receive_pool(Channel& channel) {
  const int fd = channel.receive_descriptor("pool");
  cudaMemPool_t pool;
  CUDA_CHECK(cudaMemPoolImportFromShareableHandle(
      &pool, reinterpret_cast<void*>(intptr_t{fd}), kFd, 0));
  close(fd);
  return pool;
}

void* import(cudaMemPool_t pool, cudaMemPoolPtrExportData bytes) {
  void* data = nullptr;
  CUDA_CHECK(cudaMemPoolImportPointer(&data, pool, &bytes));
  return data;
}

void* receive_pointer(Channel& channel, cudaMemPool_t pool) {
  return import(pool, channel.receive<cudaMemPoolPtrExportData>("pointer"));
}

void lends(Channel& channel, bool) {
  const cudaMemPool_t pool = make_and_send(channel);
  void* data = allocate_and_send(channel, pool);
  channel.wait("done");
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
}

void borrows(Channel& channel, bool) {
  void* data = receive_pointer(channel, receive_pool(channel));
  touch(data);
  CUDA_CHECK(cudaFree(data));
  channel.signal("done");
}

void frees_early(Channel& channel, bool wrong) {
  const cudaMemPool_t pool = make_and_send(channel);
  void* data = allocate_and_send(channel, pool);
  channel.wait("imported");
  if (wrong) CUDA_CHECK(cudaFree(data));
  channel.signal("go on");
  channel.wait("done");
  if (!wrong) CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
}

void holds(Channel& channel, bool) {
  void* data = receive_pointer(channel, receive_pool(channel));
  channel.signal("imported");
  channel.wait("go on");
  CUDA_CHECK(cudaFree(data));
  channel.signal("done");
}

void frees_before_the_import(Channel& channel, bool wrong) {
  const cudaMemPool_t pool = make_and_send(channel);
  void* data = allocate_and_send(channel, pool);
  if (wrong) CUDA_CHECK(cudaFree(data));
  channel.signal("go on");
  channel.wait("done");
  if (!wrong) CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
}

void imports_late(Channel& channel, bool) {
  const cudaMemPool_t pool = receive_pool(channel);
  auto bytes = channel.receive<cudaMemPoolPtrExportData>("pointer");
  channel.wait("go on");
  void* data = nullptr;
  if (cudaMemPoolImportPointer(&data, pool, &bytes) == cudaSuccess)
    CUDA_CHECK(cudaFree(data));
  channel.signal("done");
}

void frees_after_the_end(Channel& channel, bool wrong) {
  const cudaMemPool_t pool = make_and_send(channel);
  void* data = allocate_and_send(channel, pool);
  channel.wait("done");
  if (wrong) wait_for_peers_end();  // then only the importer makes a mistake
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
}

void never_frees(Channel& channel, bool wrong) {
  void* data = receive_pointer(channel, receive_pool(channel));
  touch(data);
  if (!wrong) CUDA_CHECK(cudaFree(data));
  channel.signal("done");
}

void imports_twice(Channel& channel, bool wrong) {
  const cudaMemPool_t pool = receive_pool(channel);
  const auto bytes = channel.receive<cudaMemPoolPtrExportData>("pointer");
  void* data = import(pool, bytes);
  if (wrong) import(pool, bytes);
  CUDA_CHECK(cudaFree(data));
  channel.signal("done");
}

void exports_what_is_not_shareable(Channel& channel, bool wrong) {
  const cudaMemPool_t pool = make(!wrong);
  int fd = -1;
  if (cudaMemPoolExportToShareableHandle(&fd, pool, kFd, 0) == cudaSuccess)
    close(fd);
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("done");
}

void waits(Channel& channel, bool) { channel.wait("done"); }

void allocates_from_an_import(Channel& channel, bool wrong) {
  const cudaMemPool_t pool = receive_pool(channel);
  void* own = nullptr;
  if (wrong)
    static_cast<void>(cudaMallocFromPoolAsync(&own, kBytes, pool, nullptr));
  CUDA_CHECK(cudaFree(receive_pointer(channel, pool)));
  channel.signal("done");
}

void exports_a_pointer_of_malloc(Channel& channel, bool wrong) {
  if (wrong) {
    void* data = allocate();
    cudaMemPoolPtrExportData bytes;
    static_cast<void>(cudaMemPoolExportPointer(&bytes, data));
    CUDA_CHECK(cudaFree(data));
  }
  lends(channel, wrong);
}

void leaves_a_descriptor(Channel& channel, bool wrong) {
  const cudaMemPool_t pool = make_and_send(channel, wrong);
  void* data = allocate_and_send(channel, pool);
  channel.wait("done");
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
}

void frees_twice(Channel& channel, bool wrong) {
  const cudaMemPool_t pool = receive_pool(channel);
  void* data = receive_pointer(channel, pool);
  CUDA_CHECK(cudaFree(data));
  if (wrong) static_cast<void>(cudaFreeAsync(data, nullptr));
  CUDA_CHECK(cudaMemPoolDestroy(pool));
  channel.signal("done");
}

void uses_on_device_1(Channel& channel, bool wrong) {
  skip_without(devices() > 1, "two GPUs", channel);
  CUDA_CHECK(cudaSetDevice(1));
  const cudaMemPool_t pool = receive_pool(channel);
  cudaMemAccessDesc access{};
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = 1;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  if (!wrong) CUDA_CHECK(cudaMemPoolSetAccess(pool, &access, 1));
  void* data = receive_pointer(channel, pool);
  touch(data);
  if (!wrong) CUDA_CHECK(cudaFree(data));  // otherwise the kernel has faulted
  channel.signal("done");
}

}  // namespace

const std::vector<Case> kPools = {
    {"pool-pointer-freed-early", frees_early, holds},
    {"pool-pointer-freed-early.before", frees_before_the_import, imports_late},
    {"pool-pointer-never-freed", frees_after_the_end, never_frees},
    {"pool-pointer-imported-twice", lends, imports_twice},
    {"closed-too-often.pool", lends, frees_twice},
    {"used-without-access.pool", lends, uses_on_device_1},
    {"pool-not-exportable", exports_what_is_not_shareable, waits},
    {"allocated-from-import", lends, allocates_from_an_import},
    {"not-exportable.pointer", exports_a_pointer_of_malloc, borrows},
    {"descriptor-left-open.pool", leaves_a_descriptor, borrows},
};
