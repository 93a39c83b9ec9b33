// Exercise 95: whole pages.
//
// The importer makes no CUDA call. It maps the exporter's frame as a
// dma-buf. The frame begins after a header of 64 bytes, but a dma-buf
// consists of whole pages of the host. Export the pages that contain
// the frame, and tell the importer where the frame begins.
// The exercise fails now because the export is refused.
//
// SPDX-License-Identifier: Apache-2.0
#include <linux/dma-buf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <atomic>

#include "exercise.h"

constexpr size_t kHeader = 64;
constexpr int kCount = 1 << 20;
constexpr size_t kFrame = kCount * sizeof(int);
constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 2000000;

// What the exporter tells the importer.
struct Range {
  size_t bytes;   // size of the dma-buf
  size_t offset;  // where the frame begins
};

size_t page() { return sysconf(_SC_PAGESIZE); }

int export_range(void* data, size_t bytes) {
  int fd = -1;
  CU_CHECK(DRIVER(cuMemGetHandleForAddressRange)(
      &fd, reinterpret_cast<CUdeviceptr>(data), bytes,
      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
  return fd;
}

int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  require(CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED,
          "mmap of a dma-buf");
  const CUmemAllocationProp wanted = shareable();
  const size_t bytes = whole_granules(kHeader + kFrame, wanted);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));
  char* data = static_cast<char*>(map_memory(memory, bytes));
  CUDA_CHECK(cudaMemset(data, kPoison, bytes));
  char* frame = data + kHeader;
  write_values(frame, kCount, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  const Range range{kFrame, 0};
  const int fd = export_range(frame, range.bytes);
  channel.send("range", range);
  channel.send_descriptor("memory", fd);
  SYS_CHECK(close(fd));

  channel.wait("closed");
  const int wrong = count_wrong(frame, kCount, kImporterValue);
  say("reads the importer's values: %d wrong", wrong);
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));

  return exit_code(wrong);
}

// Tells Linux that the CPU begins or ends to use the mapping. Linux may
// ask to repeat the call. ENOTTY: the model's descriptor is a file.
void cpu_access(int fd, uint64_t begins_or_ends) {
  dma_buf_sync what{begins_or_ends | DMA_BUF_SYNC_RW};
  int code;
  do {
    code = ioctl(fd, DMA_BUF_IOCTL_SYNC, &what);
  } while (code == -1 && (errno == EINTR || errno == EAGAIN));
  if (code == -1 && errno != ENOTTY) SYS_CHECK(code);
}

int importer(Channel channel) {
  const auto range = channel.receive<Range>("range");
  const int fd = channel.receive_descriptor("memory");
  void* data = mmap(nullptr, range.bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED, fd, 0);
  SYS_CHECK(data == MAP_FAILED ? -1 : 0);
  if (range.offset + kFrame > range.bytes) {
    say("the range ends before the frame ends");
    return EXIT_FAILURE;
  }

  cpu_access(fd, DMA_BUF_SYNC_START);
  int* frame =
      reinterpret_cast<int*>(static_cast<char*>(data) + range.offset);
  const int wrong = count_wrong_on_host(frame, kCount, kExporterValue);
  say("reads the exporter's values: %d wrong", wrong);
  for (int i = 0; i < kCount; ++i) frame[i] = kImporterValue + i;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  cpu_access(fd, DMA_BUF_SYNC_END);

  SYS_CHECK(munmap(data, range.bytes));
  SYS_CHECK(close(fd));
  channel.signal("closed");
  return exit_code(wrong);
}
