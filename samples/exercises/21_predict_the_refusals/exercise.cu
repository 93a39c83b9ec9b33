// Exercise 21: predict what an event refuses.
//
// The program tries five things with events. Which of these does CUDA
// refuse? Write kYes or kNo for each question, and then run the
// program.
// The exercise fails now because no question is answered.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr Answer kCreateWithTimingIsRefused = kUnknown;
constexpr Answer kExportOfAPlainEventIsRefused = kUnknown;
constexpr Answer kOpenInTheExporterIsRefused = kUnknown;
constexpr Answer kMeasuringTimeIsRefused = kUnknown;
constexpr Answer kRecordInTheImporterIsRefused = kUnknown;

bool is_refused(cudaError_t code) {
  cudaGetLastError();  // clears a refusal
  return code != cudaSuccess;
}

int exporter(Channel& channel) {
  cudaEvent_t event = nullptr;
  bool good = predicted(
      "Creating an event without cudaEventDisableTiming is refused?",
      kCreateWithTimingIsRefused,
      is_refused(
          cudaEventCreateWithFlags(&event, cudaEventInterprocess)));

  cudaEvent_t plain = nullptr;
  cudaIpcEventHandle_t handle;
  CUDA_CHECK(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming));
  good &= predicted("Exporting a plain event is refused?",
                    kExportOfAPlainEventIsRefused,
                    is_refused(cudaIpcGetEventHandle(&handle, plain)));
  CUDA_CHECK(cudaEventDestroy(plain));

  event = create_shared_event();
  CUDA_CHECK(cudaEventRecord(event, nullptr));
  cudaEvent_t own = nullptr;
  handle = handle_of(event);
  good &= predicted("Opening an event in the exporter is refused?",
                    kOpenInTheExporterIsRefused,
                    is_refused(cudaIpcOpenEventHandle(&own, handle)));

  float milliseconds = 0;
  CUDA_CHECK(cudaEventSynchronize(event));
  good &= predicted(
      "Measuring time with an event is refused?",
      kMeasuringTimeIsRefused,
      is_refused(cudaEventElapsedTime(&milliseconds, event, event)));

  channel.send("event", handle);
  channel.wait("closed");
  CUDA_CHECK(cudaEventDestroy(event));

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

int importer(Channel channel) {
  const cudaEvent_t event =
      open_event(channel.receive<cudaIpcEventHandle_t>("event"));
  const bool good =
      predicted("Recording an event in the importer is refused?",
                kRecordInTheImporterIsRefused,
                is_refused(cudaEventRecord(event, nullptr)));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaEventDestroy(event));
  channel.signal("closed");

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
