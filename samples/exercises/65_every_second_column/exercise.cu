// Exercise 65: every second column.
//
// A framework lends a tensor that is a view: every second column of a
// part of a larger matrix. Its description has an offset and two
// strides, all in elements. The importer reads elements that lie side
// by side. Read the elements of the view. The exercise fails now with
// wrong values.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;  // elements of the whole storage
constexpr unsigned kFirst = 1000000;

struct Tensor {
  cudaIpcMemHandle_t handle;  // of the storage
  int offset;                 // of the first element
  int rows, columns;
  int row_stride, column_stride;
};

int exporter(Channel& channel) {
  void* storage = allocate_values(kCount, kFirst);
  channel.send("tensor",
               Tensor{handle_of(storage), 4096, 48, 32, 128, 2});
  channel.wait("closed");
  CUDA_CHECK(cudaFree(storage));

  return EXIT_SUCCESS;
}

// Returns the elements of a tensor, row by row.
std::vector<unsigned> elements(const Tensor& tensor,
                               const unsigned* storage) {
  std::vector<unsigned> all(tensor.rows * tensor.columns);
  CUDA_CHECK(cudaMemcpy(all.data(), storage + tensor.offset,
                        all.size() * sizeof(unsigned),
                        cudaMemcpyDefault));
  return all;
}

int importer(Channel channel) {
  const Tensor tensor = channel.receive<Tensor>("tensor");
  auto* storage = static_cast<unsigned*>(open_memory(tensor.handle));
  const auto all = elements(tensor, storage);
  CUDA_CHECK(cudaIpcCloseMemHandle(storage));
  channel.signal("closed");

  int wrong = 0;
  for (int row = 0; row < tensor.rows; ++row)
    for (int column = 0; column < tensor.columns; ++column)
      wrong += all[row * tensor.columns + column] !=
               kFirst + 4096 + row * 128 + column * 2;
  say("has %d x %d elements: %d wrong", tensor.rows, tensor.columns,
      wrong);

  return exit_code(wrong);
}
