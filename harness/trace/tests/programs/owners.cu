// Mistakes about who owns what: an older import, the count of another owner,
// another device.
//
// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "programs.h"

namespace {

using Chunk = CUmemGenericAllocationHandle;

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// Addresses with one chunk at a time.
class Segment {
 public:
  Segment() {
    CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
    CU_CHECK(DRIVER(cuMemAddressReserve)(&address_, kBytes, 0, 0, 0));
  }

  void create() {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.requestedHandleTypes = kFd;
    CU_CHECK(DRIVER(cuMemCreate)(&chunk_, kBytes, &wanted, 0));
    map();
  }

  void import(int fd) {
    CU_CHECK(DRIVER(cuMemImportFromShareableHandle)(
        &chunk_, reinterpret_cast<void*>(intptr_t{fd}), kFd));
    map();
  }

  // Maps the chunk once more, where it is mapped already.
  CUresult map_again() {
    return DRIVER(cuMemMap)(address_, kBytes, 0, chunk_, 0);
  }

  void send(Channel& channel) {
    int fd = -1;
    CU_CHECK(DRIVER(cuMemExportToShareableHandle)(&fd, chunk_, kFd, 0));
    channel.send_descriptor("descriptor", fd);
    close(fd);
  }

  void clear() {
    CU_CHECK(DRIVER(cuMemUnmap)(address_, kBytes));
    CU_CHECK(DRIVER(cuMemRelease)(chunk_));
  }

  void end() {
    clear();
    CU_CHECK(DRIVER(cuMemAddressFree)(address_, kBytes));
  }

  void* data() const { return reinterpret_cast<void*>(address_); }

 private:
  void map() {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU_CHECK(DRIVER(cuMemMap)(address_, kBytes, 0, chunk_, 0));
    CU_CHECK(DRIVER(cuMemSetAccess)(address_, kBytes, &access, 1));
  }

  CUdeviceptr address_ = 0;
  Chunk chunk_ = 0;
};

// A cache of imports whose key is the owner's address.

void replaces_its_chunk(Channel& channel, bool) {
  Segment segment;
  segment.create();
  segment.send(channel);
  channel.wait("imported");
  segment.clear();
  segment.create();
  segment.send(channel);
  channel.wait("done");
  segment.end();
}

void keeps_its_import(Channel& channel, bool wrong) {
  Segment segment;
  const int first = channel.receive_descriptor("descriptor");
  segment.import(first);
  close(first);
  channel.signal("imported");
  const int second = channel.receive_descriptor("descriptor");
  if (!wrong) {
    segment.clear();
    segment.import(second);
  }
  close(second);
  touch(segment.data());
  segment.end();
  channel.signal("done");
}

// Two owners in one process.

void closes_for_another(Channel& channel, bool wrong) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* mine = open_handle(handle);
  std::thread([&] {
    void* theirs = open_handle(handle);
    CUDA_CHECK(cudaIpcCloseMemHandle(theirs));
    if (wrong) CUDA_CHECK(cudaIpcCloseMemHandle(theirs));
  }).join();
  if (wrong) {
    static_cast<void>(cudaIpcCloseMemHandle(mine));
  } else {
    touch(mine);
    CUDA_CHECK(cudaIpcCloseMemHandle(mine));
  }
  channel.signal("done");
}

// Another device.

void uses_another_device(Channel& channel, bool wrong) {
  skip_without(devices() > 1, "two GPUs", channel);
  if (!wrong) CUDA_CHECK(cudaSetDevice(1));
  void* data = borrow(channel);
  CUDA_CHECK(cudaSetDevice(1));
  touch(data);
  if (wrong) CUDA_CHECK(cudaSetDevice(0));
  static_cast<void>(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

// A refusal of which the trace knows no cause.

void maps_twice(Channel& channel, bool wrong) {
  Segment segment;
  segment.create();
  if (wrong) static_cast<void>(segment.map_again());
  segment.end();
  channel.wait("done");
}

void is_done(Channel& channel, bool) { channel.signal("done"); }

}  // namespace

const std::vector<Case> kOwners = {
    {"stale-import", replaces_its_chunk, keeps_its_import},
    {"closed-by-another-owner", lend, closes_for_another},
    {"used-on-another-device", lend, uses_another_device},
    {"unexplained-refusal", maps_twice, is_done},
};
