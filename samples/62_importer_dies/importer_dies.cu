// Lesson 62: an importer is killed, and the exporter continues.
//
//   exporter                            importer
//   cudaMalloc, write
//                  ---- memory ----->   open, read
//   kill it        <--- opened ------
//   wait until it has ended
//   read: the values are unchanged
//   cudaFree
//   check: the memory is back
//
// nvcc -cudart shared samples/62_importer_dies/importer_dies.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <csignal>

#include "../common/data.h"
#include "../common/roles.h"

constexpr size_t kBytes = size_t{2} << 30;  // big enough to measure
constexpr int kCount = 1 << 20;
constexpr int kExporterValue = 1000000;

//! [exporter]
int exporter(Child& child) {
  const size_t before = free_memory();
  void* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kBytes));
  CUDA_CHECK(cudaMemset(data, kPoison, kCount * sizeof(int)));
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  child.channel.send("memory", handle);

  child.channel.wait("opened");
  SYS_CHECK(kill(child.pid, SIGKILL));

  // A killed importer sends no message and closes nothing. When it
  // ends, the operating system removes its mappings.
  int status = 0;
  SYS_CHECK(waitpid(child.pid, &status, 0));
  const bool killed = WIFSIGNALED(status);
  say("sees the end of the importer: it %s",
      killed ? "was killed" : "HAS EXITED");

  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("reads its own values: %d wrong", wrong);
  CUDA_CHECK(cudaFree(data));
  const bool back = free_memory() + kBytes / 2 > before;
  say("frees: the memory is %s", back ? "back" : "NOT BACK");

  return killed && wrong == 0 && back ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("memory");
  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("opens, reads the exporter's values: %d wrong", wrong);
  if (wrong == 0) channel.signal("opened");

  channel.wait("close");  // never comes: this process is killed here
  return EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();
  require_free_memory(2 * kBytes);  // contexts need memory, too

  Child child = start_again(argv);
  return exporter(child);
}
