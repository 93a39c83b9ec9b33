// Exercise 05: the lost offset.
//
// The exporter wants to lend row 3 of a matrix, but the importer reads
// row 0: a handle always opens at the start of its allocation, even if
// it was made from another pointer. Tell the importer where row 3 is.
// It fails now because all values that the importer reads are wrong.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kRow = 1024;  // values in a row
constexpr int kRows = 1024;
constexpr int kFirst = 1000000;  // of row 0; the others follow

int exporter(Channel& channel) {
  int* matrix =
      static_cast<int*>(allocate_values(kRows * kRow, kFirst));
  int* row = matrix + 3 * kRow;
  say("lends row 3, whose first value is %u", value_at(row));

  channel.send("handle", handle_of(row));

  channel.wait("closed");
  CUDA_CHECK(cudaFree(matrix));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* opened = open_memory(handle);
  void* row = opened;

  const int wrong = count_wrong(row, kRow, kFirst + 3 * kRow);
  say("reads row 3, whose first value is %u: %d wrong", value_at(row),
      wrong);

  CUDA_CHECK(cudaIpcCloseMemHandle(opened));
  channel.signal("closed");

  return exit_code(wrong);
}
