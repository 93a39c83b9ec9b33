// Exercise 08: predict the reference count.
//
// The importer opens one handle twice and closes it three times. Before
// you run the program, write kYes or kNo for each question below. If an
// answer is wrong, read lesson 03 and try again.
// The exercise fails now because no question is answered.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr Answer kSecondOpenGivesTheSamePointer = kUnknown;
constexpr Answer kReadableAfterOneClose = kUnknown;
constexpr Answer kMappedAfterTwoCloses = kUnknown;
constexpr Answer kThirdCloseIsRefused = kUnknown;
constexpr Answer kExporterStillHasItsValues = kUnknown;

constexpr int kCount = 1 << 20;
constexpr int kValue = 1000000;

bool is_mapped(const void* data) {
  cudaPointerAttributes attributes;
  CUDA_CHECK(cudaPointerGetAttributes(&attributes, data));
  return attributes.type == cudaMemoryTypeDevice;
}

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kValue);
  channel.send("handle", handle_of(data));

  channel.wait("closed");
  const bool good = predicted("The exporter still has its values?",
                              kExporterStillHasItsValues,
                              count_wrong(data, kCount, kValue) == 0);
  CUDA_CHECK(cudaFree(data));

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* first = open_memory(handle);
  void* second = open_memory(handle);
  bool good =
      predicted("The second open gives the same pointer?",
                kSecondOpenGivesTheSamePointer, first == second);

  CUDA_CHECK(cudaIpcCloseMemHandle(first));
  good &= predicted("The memory is readable after one close?",
                    kReadableAfterOneClose,
                    count_wrong(second, kCount, kValue) == 0);

  CUDA_CHECK(cudaIpcCloseMemHandle(second));
  good &= predicted("The memory is mapped after two closes?",
                    kMappedAfterTwoCloses, is_mapped(second));

  const cudaError_t third = cudaIpcCloseMemHandle(second);
  cudaGetLastError();  // clears a refusal
  good &= predicted("The third close is refused?", kThirdCloseIsRefused,
                    third != cudaSuccess);
  channel.signal("closed");

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
