// What every exercise includes. An exercise is plain C++: its kernels
// are in kernels.cu and are built once, so that a saved file is built
// and run in a second.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef IPCLAB_EXERCISE_H_
#define IPCLAB_EXERCISE_H_
#include <cstdint>
#include <vector>

#include "../../common/data.h"
#include "../../common/gate.h"
#include "../../common/pool.h"
#include "../../common/roles.h"
#include "../../common/vmm.h"

/// The two functions of an exercise with two roles. An exercise without
/// a main() gets the main() of two_roles.cc. This main() starts both
/// roles and exits with 0 if both return EXIT_SUCCESS.
int exporter(Channel& channel);
int importer(Channel channel);

/// Returns the exit code of a role: success if no value was wrong.
inline int exit_code(int wrong) {
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/// Opens a legacy memory handle; the caller closes the pointer.
inline void* open_memory(const cudaIpcMemHandle_t& handle) {
  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  return data;
}

/// Exports memory of cudaMalloc.
inline cudaIpcMemHandle_t handle_of(void* data) {
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  return handle;
}

/// Creates an event that other processes can open.
inline cudaEvent_t create_shared_event() {
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreateWithFlags(
      &event, cudaEventInterprocess | cudaEventDisableTiming));
  return event;
}

/// Exports an event.
inline cudaIpcEventHandle_t handle_of(cudaEvent_t event) {
  cudaIpcEventHandle_t handle;
  CUDA_CHECK(cudaIpcGetEventHandle(&handle, event));
  return handle;
}

/// Opens an event; the caller destroys it.
inline cudaEvent_t open_event(const cudaIpcEventHandle_t& handle) {
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaIpcOpenEventHandle(&event, handle));
  return event;
}

/// Reads one value of 4 bytes from a GPU.
inline unsigned value_at(const void* data) {
  unsigned value = 0xEEEEEEEE;
  CUDA_CHECK(cudaMemcpy(&value, data, sizeof value, cudaMemcpyDefault));
  return value;
}

/// Launches a kernel that writes values, then waits for this kernel.
/// Returns the first error: the GPU may stop the kernel.
/// (write_values() would end the program if the launch already returned
/// an error.)
cudaError_t try_to_write(void* data, int count, unsigned first);

/// Queues a kernel that adds `count` values to others. Does not wait.
void add_values(void* to, const void* values, int count,
                cudaStream_t stream = nullptr);

/// Imitates long work: keeps the stream busy for this time, measured
/// by the GPU's clock. Does not wait.
void keep_busy(cudaStream_t stream, int milliseconds);

/// Returns true if the stream still has work after 1 s, and false as
/// soon as the stream has none. A stream that is not held needs less
/// than 1 s for its work.
inline bool is_held(cudaStream_t stream) {
  cudaError_t code = cudaStreamQuery(stream);
  for (int look = 0; look < 100 && code == cudaErrorNotReady; ++look) {
    poll(nullptr, 0, 10);  // ms between two looks
    code = cudaStreamQuery(stream);
  }
  if (code != cudaErrorNotReady) CUDA_CHECK(code);
  return code == cudaErrorNotReady;
}

/// An answer to a question of an exercise.
enum Answer { kUnknown, kYes, kNo };

/// Compares what you predict with what happens, and prints both.
/// Returns true if your answer is right.
inline bool predicted(const char* question, Answer yours,
                      bool happens) {
  const bool right = yours == (happens ? kYes : kNo);
  constexpr const char* kWords[] = {"not answered", "yes", "no"};
  say("%s you: %s, %s", question, kWords[yours],
      yours == kUnknown ? "predict it first"
      : right           ? "and so it is"
                        : "but it is NOT so");
  return right;
}

#endif
