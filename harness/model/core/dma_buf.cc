// SPDX-License-Identifier: Apache-2.0
// Dma-bufs. Where a process can map a dma-buf, its descriptor is the memfd of
// the block, opened again. With an older driver nobody can look into a dma-buf;
// it only keeps the memory. There it is a socket in whose queue the descriptors
// of the blocks wait.
#include "core/dma_buf.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include "core/machine.h"
#include "core/profile.h"

namespace ipclab::model {
namespace {

constexpr size_t kMostInMessage = 253;

/// The blocks of a range, in order.
struct Blocks {
  std::vector<std::shared_ptr<Block>> list;
  uint64_t offset = 0;  ///< of the range in the first block
};

CUresult code_for(const Allocation& memory) {
  if (memory.kind == Kind::kHost && memory.block != nullptr) {
    return CUDA_SUCCESS;
  }
  if (memory.on_host() || memory.kind == Kind::kManaged ||
      memory.kind == Kind::kExternal) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return memory.kind == Kind::kDevice || memory.kind == Kind::kMapped
             ? CUDA_SUCCESS
             : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult find_blocks(Machine& machine, uint64_t address, uint64_t size,
                     Blocks* found) {
  const uint64_t end = address + size;
  if (end < address) return CUDA_ERROR_INVALID_VALUE;
  int gpu = -1;
  for (uint64_t next = address; next < end;) {
    const Allocation* memory = machine.memory.find(next);
    if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = code_for(*memory)) return error;
    if (found->list.empty()) {
      gpu = memory->gpu;
      found->offset = next - memory->mapping;
    } else if (memory->kind != Kind::kMapped || memory->gpu != gpu) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    found->list.push_back(memory->block);
    // Small allocations share a block, as they share a page on a GPU.
    next = memory->mapping + memory->mapping_size;
  }
  return CUDA_SUCCESS;
}

// The message is sent by a system call of its own: a library may watch the
// messages that the program sends by sendmsg().
int wrap(const std::vector<std::shared_ptr<Block>>& blocks) {
  if (blocks.size() > kMostInMessage) return -1;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) != 0) return -1;
  std::vector<int> descriptors;
  for (const auto& block : blocks) descriptors.push_back(block->descriptor());
  const size_t bytes = descriptors.size() * sizeof(int);
  std::vector<char> control(CMSG_SPACE(bytes));
  char byte = 0;
  iovec data{&byte, sizeof byte};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(header), descriptors.data(), bytes);
  const bool sent = syscall(SYS_sendmsg, ends[1], &message, MSG_NOSIGNAL) == 1;
  close(ends[1]);
  if (sent) return ends[0];
  close(ends[0]);
  return -1;
}

}  // namespace

CUresult dma_buf_export(uint64_t address, uint64_t size, int* descriptor) {
  const Locked machine;
  Blocks blocks;
  if (CUresult error = find_blocks(*machine, address, size, &blocks)) {
    return error;
  }
  int made = -1;
  if (!profile().maps_dma_buf()) {
    made = wrap(blocks.list);
  } else if (blocks.list.size() == 1 && blocks.offset == 0) {
    made = blocks.list[0]->open_as_dma_buf();
  }
  if (made < 0) return CUDA_ERROR_NOT_SUPPORTED;
  for (const auto& block : blocks.list) block->share(Sharing::kExported);
  *descriptor = made;
  return CUDA_SUCCESS;
}

}  // namespace ipclab::model
