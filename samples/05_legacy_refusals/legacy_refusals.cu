// Lesson 05: a refused call returns a code and changes nothing.
//
//   exporter                            importer
//   export host memory: refused
//   the runtime keeps the code
//   export freed memory: refused
//   cudaIpcGetMemHandle
//   open its own handle: refused
//   write                -- handle -->  open a made-up handle: refused
//                                       open the handle, read
//   cudaFree             <- closed ---  close
//
// nvcc -cudart shared samples/05_legacy_refusals/legacy_refusals.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cstring>

#include "../common/data.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr int kExporterValue = 5000000;

//! [once]
// A refused call returns its code, and the runtime keeps it as well.
// cudaGetLastError returns the kept code once and clears it.
bool is_kept_once() {
  int on_host = 0;
  cudaIpcMemHandle_t handle;
  const cudaError_t code = cudaIpcGetMemHandle(&handle, &on_host);
  const cudaError_t kept = cudaGetLastError();
  const cudaError_t after = cudaGetLastError();

  const bool once =
      code != cudaSuccess && kept == code && after == cudaSuccess;
  say("exports host memory: [%s], kept %s", cudaGetErrorName(code),
      once ? "once" : "NOT ONCE");
  return once;
}
//! [once]

//! [exporter]
int exporter(Channel& channel) {
  bool good = is_kept_once();

  // refused() clears the code that the runtime keeps.
  cudaIpcMemHandle_t handle;
  void* freed = allocate_values(kCount, kExporterValue);
  CUDA_CHECK(cudaFree(freed));
  good &= refused("exports freed memory",
                  cudaIpcGetMemHandle(&handle, freed));

  void* data = allocate_values(kCount, 0);
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  void* own = nullptr;
  const cudaError_t code = cudaIpcOpenMemHandle(
      &own, handle, cudaIpcMemLazyEnablePeerAccess);
  good &= refused("opens its own handle", code);

  // The memory and its handle still work.
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  channel.send("handle", handle);
  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");

  void* data = nullptr;
  cudaIpcMemHandle_t made_up;
  std::memset(&made_up, 0x5a, sizeof made_up);
  const cudaError_t code = cudaIpcOpenMemHandle(
      &data, made_up, cudaIpcMemLazyEnablePeerAccess);
  const bool good = refused("opens a made-up handle", code);

  CUDA_CHECK(cudaIpcOpenMemHandle(&data, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("opens the exporter's handle, reads its values: %d wrong", wrong);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return good && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
