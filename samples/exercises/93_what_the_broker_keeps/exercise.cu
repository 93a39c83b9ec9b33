// Exercise 93: what the broker keeps.
//
// The importer is a broker: it keeps a descriptor for other processes,
// and makes no CUDA call. The exporter revokes the loan, releases its
// memory and looks whether the GPU has it back. Fix the broker.
// The exercise fails now because the memory is not back: no process
// with CUDA has it, but the broker's descriptor keeps it.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr size_t kBytes = size_t{512} << 20;
constexpr int kCount = 1 << 19;
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));
  const CUmemAllocationProp wanted = shareable();
  const size_t before = free_memory();
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, kBytes, &wanted, 0));
  void* data = map_memory(memory, kBytes);
  write_values(data, kCount, kValue);
  const int wrong = count_wrong(data, kCount, kValue);
  const int fd = export_memory(memory);
  channel.send_descriptor("lend", fd);
  SYS_CHECK(close(fd));

  channel.signal("revoke");
  channel.wait("revoked");
  unmap_memory(data, kBytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  const bool back = free_memory() + kBytes / 2 > before;
  say("releases its memory: it is %s", back ? "back" : "NOT BACK");
  channel.signal("end");

  return back ? exit_code(wrong) : EXIT_FAILURE;
}

// The broker.
int importer(Channel channel) {
  const int fd = channel.receive_descriptor("lend");
  channel.wait("revoke");
  say("forgets the loan");
  channel.signal("revoked");

  channel.wait("end");
  SYS_CHECK(close(fd));
  return EXIT_SUCCESS;
}
