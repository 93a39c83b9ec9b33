// Mistakes with memory of cuMemCreate and its descriptors.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/socket.h>

#include <cstring>

#include "programs.h"

namespace {

using Chunk = CUmemGenericAllocationHandle;

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr CUmemAccessDesc kAccess{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

Chunk make(bool shareable = true) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = kAccess.location;
  if (shareable) wanted.requestedHandleTypes = kFd;
  Chunk chunk;
  CU_CHECK(DRIVER(cuMemCreate)(&chunk, kBytes, &wanted, 0));
  return chunk;
}

int descriptor_of(Chunk chunk) {
  int fd = -1;
  CU_CHECK(DRIVER(cuMemExportToShareableHandle)(&fd, chunk, kFd, 0));
  return fd;
}

CUresult import(Chunk* chunk, int fd) {
  return DRIVER(cuMemImportFromShareableHandle)(
      chunk, reinterpret_cast<void*>(intptr_t{fd}), kFd);
}

CUdeviceptr map(Chunk chunk, bool access = true) {
  CUdeviceptr address = 0;
  CU_CHECK(DRIVER(cuMemAddressReserve)(&address, kBytes, 0, 0, 0));
  CU_CHECK(DRIVER(cuMemMap)(address, kBytes, 0, chunk, 0));
  if (access) CU_CHECK(DRIVER(cuMemSetAccess)(address, kBytes, &kAccess, 1));
  return address;
}

void unmap(CUdeviceptr address) {
  CU_CHECK(DRIVER(cuMemUnmap)(address, kBytes));
  CU_CHECK(DRIVER(cuMemAddressFree)(address, kBytes));
}

void lends(Channel& channel, bool) {
  const Chunk chunk = make();
  const int fd = descriptor_of(chunk);
  channel.send("number", fd);
  channel.send_descriptor("descriptor", fd);
  close(fd);
  channel.wait("done");
  CU_CHECK(DRIVER(cuMemRelease)(chunk));
}

Chunk receive(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));
  static_cast<void>(channel.receive<int>("number"));
  const int fd = channel.receive_descriptor("descriptor");
  Chunk chunk;
  CU_CHECK(import(&chunk, fd));
  close(fd);
  return chunk;
}

void borrows(Channel& channel, bool) {
  const Chunk chunk = receive(channel);
  const CUdeviceptr address = map(chunk);
  touch(reinterpret_cast<void*>(address));
  unmap(address);
  CU_CHECK(DRIVER(cuMemRelease)(chunk));
  channel.signal("done");
}

void never_releases(Channel& channel, bool wrong) {
  const Chunk chunk = receive(channel);
  if (!wrong) CU_CHECK(DRIVER(cuMemRelease)(chunk));
  channel.signal("done");
}

void never_unmaps(Channel& channel, bool wrong) {
  const Chunk chunk = receive(channel);
  const CUdeviceptr address = map(chunk);
  if (!wrong) unmap(address);
  CU_CHECK(DRIVER(cuMemRelease)(chunk));
  channel.signal("done");
}

void forgets_access(Channel& channel, bool wrong) {
  const Chunk chunk = receive(channel);
  const CUdeviceptr address = map(chunk, !wrong);
  static_cast<void>(cudaMemset(reinterpret_cast<void*>(address), 1, kBytes));
  unmap(address);
  CU_CHECK(DRIVER(cuMemRelease)(chunk));
  channel.signal("done");
}

void uses_on_device_1(Channel& channel, bool wrong) {
  skip_without(devices() > 1, "two GPUs", channel);
  CUDA_CHECK(cudaSetDevice(1));
  const Chunk chunk = receive(channel);
  const CUdeviceptr address = map(chunk);
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, kAccess.flags};
  if (!wrong) CU_CHECK(DRIVER(cuMemSetAccess)(address, kBytes, &access, 1));
  touch(reinterpret_cast<void*>(address));
  if (!wrong) {  // otherwise the kernel has faulted
    unmap(address);
    CU_CHECK(DRIVER(cuMemRelease)(chunk));
  }
  channel.signal("done");
}

void imports_a_number(Channel& channel, bool wrong) {
  CUDA_CHECK(cudaFree(nullptr));
  const int number = channel.receive<int>("number");
  const int fd = channel.receive_descriptor("descriptor");
  Chunk chunk;
  // In this process the number names another file, or none.
  if (wrong) static_cast<void>(import(&chunk, number + 100));
  CU_CHECK(import(&chunk, fd));
  close(fd);
  CU_CHECK(DRIVER(cuMemRelease)(chunk));
  channel.signal("done");
}

// Sends a descriptor by a socket of its own, which is sent first.
void lends_two_in_a_message(Channel& channel, bool) {
  const Chunk chunks[2] = {make(), make()};
  const int fds[2] = {descriptor_of(chunks[0]), descriptor_of(chunks[1])};
  int ends[2];
  SYS_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
  channel.send_descriptor("socket", ends[1]);
  close(ends[1]);
  char byte = 2;
  iovec bytes{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fds)] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fds);
  memcpy(CMSG_DATA(header), fds, sizeof fds);
  SYS_CHECK(static_cast<int>(sendmsg(ends[0], &message, 0)));
  for (const int fd : fds) close(fd);
  channel.wait("done");
  close(ends[0]);
  for (const Chunk chunk : chunks) CU_CHECK(DRIVER(cuMemRelease)(chunk));
}

void has_room_for_one(Channel& channel, bool wrong) {
  CUDA_CHECK(cudaFree(nullptr));
  const int socket = channel.receive_descriptor("socket");
  int fds[2] = {-1, -1};
  char byte = 0;
  iovec bytes{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fds)] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_LEN(wrong ? sizeof fds[0] : sizeof fds);
  SYS_CHECK(static_cast<int>(recvmsg(socket, &message, 0)));
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  memcpy(fds, CMSG_DATA(header), header->cmsg_len - CMSG_LEN(0));
  close(socket);
  for (const int fd : fds) {
    Chunk chunk;
    if (import(&chunk, fd) != CUDA_SUCCESS) continue;
    close(fd);
    CU_CHECK(DRIVER(cuMemRelease)(chunk));
  }
  channel.signal("done");
}

void closes_before_it_sends(Channel& channel, bool wrong) {
  const Chunk chunk = make();
  const int fd = descriptor_of(chunk);
  int other = -1;
  if (wrong) {
    close(fd);
    other = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (other != fd) std::exit(EXIT_FAILURE);  // the lowest number is free
  }
  channel.send_descriptor("descriptor", fd);
  close(wrong ? other : fd);
  channel.wait("done");
  CU_CHECK(DRIVER(cuMemRelease)(chunk));
}

void imports_what_came(Channel& channel, bool) {
  CUDA_CHECK(cudaFree(nullptr));
  const int fd = channel.receive_descriptor("descriptor");
  Chunk chunk;
  if (import(&chunk, fd) == CUDA_SUCCESS) CU_CHECK(DRIVER(cuMemRelease)(chunk));
  close(fd);
  channel.signal("done");
}

void imports_as_a_pool(Channel& channel, bool wrong) {
  CUDA_CHECK(cudaFree(nullptr));
  static_cast<void>(channel.receive<int>("number"));
  const int fd = channel.receive_descriptor("descriptor");
  Chunk chunk;
  cudaMemPool_t pool;
  if (wrong)
    static_cast<void>(cudaMemPoolImportFromShareableHandle(
        &pool, reinterpret_cast<void*>(intptr_t{fd}),
        cudaMemHandleTypePosixFileDescriptor, 0));
  CU_CHECK(import(&chunk, fd));
  close(fd);
  CU_CHECK(DRIVER(cuMemRelease)(chunk));
  channel.signal("done");
}

CUexternalMemory import_external(int fd) {
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC wanted{};
  wanted.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  wanted.handle.fd = fd;
  wanted.size = kBytes;
  CUexternalMemory object = nullptr;
  CU_CHECK(DRIVER(cuImportExternalMemory)(&object, &wanted));
  return object;
}

void end_external(CUexternalMemory object) {
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC part{};
  part.size = kBytes;
  CUdeviceptr address = 0;
  CU_CHECK(DRIVER(cuExternalMemoryGetMappedBuffer)(&address, object, &part));
  touch(reinterpret_cast<void*>(address));
  CU_CHECK(DRIVER(cuMemFree)(address));
  CU_CHECK(DRIVER(cuDestroyExternalMemory)(object));
}

void closes_what_is_taken(Channel& channel, bool wrong) {
  CUDA_CHECK(cudaFree(nullptr));
  static_cast<void>(channel.receive<int>("number"));
  const int fd = channel.receive_descriptor("descriptor");
  const CUexternalMemory object = import_external(fd);
  if (wrong) close(fd);
  end_external(object);
  channel.signal("done");
}

void imports_what_is_taken(Channel& channel, bool wrong) {
  CUDA_CHECK(cudaFree(nullptr));
  static_cast<void>(channel.receive<int>("number"));
  const int fd = channel.receive_descriptor("descriptor");
  const int copy = wrong ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 0);
  const CUexternalMemory object = import_external(copy);
  Chunk chunk;
  if (import(&chunk, fd) == CUDA_SUCCESS) {
    CU_CHECK(DRIVER(cuMemRelease)(chunk));
    close(fd);
  }
  end_external(object);
  channel.signal("done");
}

void maps_more(Channel& channel, bool wrong) {
  const Chunk chunk = receive(channel);
  const size_t size = wrong ? 2 * kBytes : kBytes;
  CUdeviceptr address = 0;
  CU_CHECK(DRIVER(cuMemAddressReserve)(&address, size, 0, 0, 0));
  if (DRIVER(cuMemMap)(address, size, 0, chunk, 0) == CUDA_SUCCESS)
    CU_CHECK(DRIVER(cuMemUnmap)(address, size));
  CU_CHECK(DRIVER(cuMemAddressFree)(address, size));
  CU_CHECK(DRIVER(cuMemRelease)(chunk));
  channel.signal("done");
}

void leaves_a_descriptor(Channel& channel, bool wrong) {
  const Chunk chunk = make();
  const int fd = descriptor_of(chunk);
  channel.send("number", fd);
  channel.send_descriptor("descriptor", fd);
  if (!wrong) close(fd);
  channel.wait("done");
  CU_CHECK(DRIVER(cuMemRelease)(chunk));
}

void leaves_a_dma_buf(Channel& channel, bool wrong) {
  void* data = allocate();
  int fd = -1;
  CU_CHECK(DRIVER(cuMemGetHandleForAddressRange)(
      &fd, reinterpret_cast<CUdeviceptr>(data), kBytes,
      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
  channel.send_descriptor("descriptor", fd);
  if (!wrong) close(fd);
  channel.wait("done");
  CUDA_CHECK(cudaFree(data));
}

void closes_a_dma_buf(Channel& channel, bool) {
  close(channel.receive_descriptor("descriptor"));
  channel.signal("done");
}

void exports_what_is_not_shareable(Channel& channel, bool wrong) {
  const Chunk chunk = make(!wrong);
  int fd = -1;
  if (DRIVER(cuMemExportToShareableHandle)(&fd, chunk, kFd, 0) == CUDA_SUCCESS)
    close(fd);
  CU_CHECK(DRIVER(cuMemRelease)(chunk));
  channel.signal("done");
}

void waits(Channel& channel, bool) { channel.wait("done"); }

}  // namespace

const std::vector<Case> kChunks = {
    {"never-released", lends, never_releases},
    {"never-unmapped", lends, never_unmaps},
    {"used-without-access", lends, forgets_access},
    {"used-without-access.device", lends, uses_on_device_1},
    {"bad-descriptor", lends, imports_a_number},
    {"bad-descriptor.kind", lends, imports_as_a_pool},
    {"bad-descriptor.cut", lends_two_in_a_message, has_room_for_one},
    {"bad-descriptor.closed", closes_before_it_sends, imports_what_came},
    {"descriptor-taken-over", lends, closes_what_is_taken},
    {"descriptor-taken-over.import", lends, imports_what_is_taken},
    {"mapped-with-another-size", lends, maps_more},
    {"descriptor-left-open.chunk", leaves_a_descriptor, borrows},
    {"descriptor-left-open.dma-buf", leaves_a_dma_buf, closes_a_dma_buf},
    {"not-exportable.chunk", exports_what_is_not_shareable, waits},
};
