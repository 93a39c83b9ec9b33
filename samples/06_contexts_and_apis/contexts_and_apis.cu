// Lesson 06: one context per device opens handles; both APIs work.
//
//   exporter                            importer
//   cudaMalloc, write
//   cuIpcGetMemHandle    -- handle -->  cudaIpcOpenMemHandle
//                                       create a second context of
//                                       the same device, open: refused
//                                       read, write in the first
//   read, cudaFree       <- closed ---  cuIpcCloseMemHandle
//
// The exporter exports with the driver API (cu...). The importer opens
// the same 64 bytes with the runtime API (cuda...).
//
// nvcc -cudart shared samples/06_contexts_and_apis/contexts_and_apis.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/roles.h"

constexpr int kCount = 1 << 20;
constexpr int kExporterValue = 6000000;
constexpr int kImporterValue = 6500000;

//! [exporter]
int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kExporterValue);

  CUipcMemHandle handle;  // the same bytes as a cudaIpcMemHandle_t
  CU_CHECK(DRIVER(cuIpcGetMemHandle)(
      &handle, reinterpret_cast<CUdeviceptr>(data)));
  say("exports its memory with the driver API");
  channel.send("handle", handle);

  channel.wait("closed");
  const int wrong = count_wrong(data, kCount, kImporterValue);
  say("reads the importer's values: %d wrong", wrong);
  CUDA_CHECK(cudaFree(data));

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [second]
// The runtime normally uses the primary context of a device. This
// function tries to open the handle in another context of device 0.
bool is_refused_in_second_context(const cudaIpcMemHandle_t& handle) {
  CUdevice device = 0;
  CUcontext second = nullptr;
  CU_CHECK(DRIVER(cuDeviceGet)(&device, 0));
  CU_CHECK(create_context(&second, device));

  void* data = nullptr;  // cuCtxCreate made the second context current
  const cudaError_t code = cudaIpcOpenMemHandle(
      &data, handle, cudaIpcMemLazyEnablePeerAccess);
  if (code == cudaSuccess) CUDA_CHECK(cudaIpcCloseMemHandle(data));
  const bool is_refused = refused("opens it in a second context", code);

  CU_CHECK(DRIVER(cuCtxDestroy)(second));  // the first is current again
  return is_refused;
}
//! [second]

//! [importer]
int importer(Channel channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");

  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  say("opens the handle with the runtime API");

  bool good = is_refused_in_second_context(handle);

  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("reads the exporter's values in the first: %d wrong", wrong);
  good &= wrong == 0;
  write_values(data, kCount, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  CU_CHECK(
      DRIVER(cuIpcCloseMemHandle)(reinterpret_cast<CUdeviceptr>(data)));
  say("writes its own values, closes with the driver API");
  channel.signal("closed");

  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
