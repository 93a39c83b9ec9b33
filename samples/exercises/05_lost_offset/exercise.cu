// Exercise 05: the lost offset.
//
// The exporter wants to lend one row of a matrix. The row depends on
// the exporter's process id. But the importer reads row 0: a handle
// always opens at the start of its allocation, even if the handle was
// made from a pointer inside the allocation. Tell the importer where
// the row is.
// The exercise fails now because all values that the importer reads are
// wrong.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kRow = 1024;  // values in a row
constexpr int kRows = 1024;
constexpr int kFirst = 1000000;  // the first value of row 0
constexpr int kLent = 5000000;   // the first value of the lent row

int exporter(Channel& channel) {
  int* matrix =
      static_cast<int*>(allocate_values(kRows * kRow, kFirst));
  const int number = 4 + getpid() % (kRows - 4);
  int* row = matrix + number * kRow;
  write_values(row, kRow, kLent);
  CUDA_CHECK(cudaDeviceSynchronize());
  say("lends row %d, whose first value is %u", number, value_at(row));

  channel.send("handle", handle_of(row));

  channel.wait("closed");
  CUDA_CHECK(cudaFree(matrix));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* opened = open_memory(handle);
  void* row = opened;

  const int wrong = count_wrong(row, kRow, kLent);
  say("reads a row whose first value is %u: %d wrong", value_at(row),
      wrong);

  CUDA_CHECK(cudaIpcCloseMemHandle(opened));
  channel.signal("closed");

  return exit_code(wrong);
}
