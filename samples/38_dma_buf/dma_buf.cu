// Lesson 38: memory of a GPU for a process that does not use CUDA.
//
//   exporter                             importer, no CUDA
//   cuMemCreate, map, write, wait
//   cuMemGetHandleForAddressRange
//   close               -- memory --->   mmap
//                                        read, write, fence
//   read the            <- written ---
//   importer's values
//   unmap, release
//   in use? [yes]       -- released ->   munmap, close
//   in use? no          <- closed ----
//
// nvcc -cudart shared samples/38_dma_buf/dma_buf.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <linux/dma-buf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <atomic>

#include "../common/data.h"
#include "../common/roles.h"
#include "../common/vmm.h"

constexpr size_t kBytes = size_t{1} << 30;  // big enough to measure
constexpr int kCount = 1000000;             // 4 MB, but not whole pages
constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 3000000;

//! [exporter]
int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  const size_t before = free_memory();
  const auto in_use = [before] {  // half: CUDA itself needs a little
    return free_memory() + kBytes / 2 < before;
  };

  // No handle type: a dma-buf does not need one.
  const CUmemAllocationProp wanted = shareable(CU_MEM_HANDLE_TYPE_NONE);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, kBytes, &wanted, 0));
  void* data = map_memory(memory, kBytes);
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  // A range of the memory is enough, but it has to be whole pages of
  // the host.
  const size_t bytes =
      round_up(kCount * sizeof(int), sysconf(_SC_PAGESIZE));
  int fd = -1;
  CU_CHECK(DRIVER(cuMemGetHandleForAddressRange)(
      &fd, reinterpret_cast<CUdeviceptr>(data), bytes,
      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
  say("writes %d values, exports [%zu] bytes as a dma-buf", kCount,
      bytes);
  channel.send("bytes", bytes);
  channel.send_descriptor("memory", fd);
  SYS_CHECK(close(fd));

  channel.wait("written");
  const int wrong = count_wrong(data, kCount, kImporterValue);
  say("reads the importer's values: %d wrong", wrong);

  // A program first waits until the importer has closed. The lesson
  // releases earlier, to see what the importer's mapping keeps.
  unmap_memory(data, kBytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  say("has released the memory, the importer still maps it: [%s]",
      in_use() ? "in use" : "free");
  channel.signal("released");

  channel.wait("closed");
  const bool back = !in_use();
  say("knows of no reference: the memory is %s",
      back ? "free" : "STILL IN USE");
  return back && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [access]
// Tells Linux that the CPU begins or ends to use a mapping. Linux may
// ask to repeat the call. ENOTTY: the descriptor is not a dma-buf, but
// a file of the reference model.
void cpu_access(int fd, uint64_t begins_or_ends) {
  dma_buf_sync what{begins_or_ends | DMA_BUF_SYNC_RW};
  int code;
  do {
    code = ioctl(fd, DMA_BUF_IOCTL_SYNC, &what);
  } while (code == -1 && (errno == EINTR || errno == EAGAIN));
  if (code == -1 && errno != ENOTTY) SYS_CHECK(code);
}
//! [access]

//! [importer]
int importer(Channel channel) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // here CUDA would find no GPU
  const auto bytes = channel.receive<size_t>("bytes");
  const int fd = channel.receive_descriptor("memory");
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  SYS_CHECK(data == MAP_FAILED ? -1 : 0);

  cpu_access(fd, DMA_BUF_SYNC_START);
  const int wrong = count_wrong_on_host(data, kCount, kExporterValue);
  say("maps it without CUDA, reads the exporter's values: %d wrong",
      wrong);
  for (int i = 0; i < kCount; ++i)
    static_cast<int*>(data)[i] = kImporterValue + i;
  // The CPU may still hold values in its write-combining buffers.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  cpu_access(fd, DMA_BUF_SYNC_END);
  channel.signal("written");

  channel.wait("released");
  SYS_CHECK(munmap(data, bytes));
  SYS_CHECK(close(fd));
  channel.signal("closed");

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, "memory as a dma-buf");
  require(CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED,
          "mmap of a dma-buf, which came with the driver of CUDA 13.3");
  require_free_memory(2 * kBytes);  // contexts need memory, too

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
