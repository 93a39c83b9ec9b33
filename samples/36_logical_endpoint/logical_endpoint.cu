// Lesson 36: copy to the memory of another GPU by a number.
//
//   exporter, GPU 0                       importer, GPU 1
//   cuMemCreate, map, write
//   cuLogicalEndpointIdReserve, Create,
//   Query, BindMem, Export  -- handle --> IdReserve, Import, Query
//                                         copy from the endpoint, check
//                                         copy to the endpoint
//   read the                <- closed --- Destroy, IdRelease
//   importer's values
//   Destroy, IdRelease, unmap, release
//
// nvcc -cudart shared samples/36_logical_endpoint/logical_endpoint.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/roles.h"

#if CUDA_VERSION < 13050  // older headers do not have these functions
int main() { skip("build this lesson with CUDA Toolkit 13.5"); }
#else
#include "endpoint.h"

constexpr auto kFabric = CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC;
constexpr int kCount = 1 << 20;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 3000000;

//! [wanted]
// Describes an endpoint of GPU 0 that can be exported.
CUlogicalEndpointProp describe() {
  CUlogicalEndpointProp wanted{};
  wanted.type = CU_LOGICAL_ENDPOINT_TYPE_UNICAST;
  wanted.unicast.device = 0;
  wanted.ipcHandleTypes = kFabric;
  cuuint64_t alignment = 0, most = 0;
  CU_CHECK(
      DRIVER(cuLogicalEndpointGetLimits)(&alignment, &most, &wanted));
  wanted.size = round_up(kBytes, alignment);
  return wanted;
}
//! [wanted]

//! [exporter]
int exporter(Channel& channel, const CUlogicalEndpointProp& wanted,
             Memory memory, size_t memory_bytes) {
  void* data = map_memory(memory, memory_bytes);
  CUDA_CHECK(cudaMemset(data, kPoison, memory_bytes));
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  CUlogicalEndpointId id;
  CU_CHECK(DRIVER(cuLogicalEndpointIdReserve)(&id, 1));
  CU_CHECK(DRIVER(cuLogicalEndpointCreate)(id, &wanted));
  wait_until_ready(id);
  CU_CHECK(DRIVER(cuLogicalEndpointBindMem)(id, 0, 0, memory, 0,
                                            wanted.size, 0));
  CUlogicalEndpointFabricHandle handle;
  CU_CHECK(DRIVER(cuLogicalEndpointExport)(&handle, id, kFabric));
  say("binds %d values to an endpoint, sends %zu bytes", kCount,
      sizeof handle);
  channel.send("handle", handle);

  channel.wait("closed");
  const int wrong = count_wrong(data, kCount, kImporterValue);
  say("reads the importer's values: %d wrong", wrong);
  CU_CHECK(DRIVER(cuLogicalEndpointDestroy)(id));  // also unbinds
  CU_CHECK(DRIVER(cuLogicalEndpointIdRelease)(id, 1));
  unmap_memory(data, memory_bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [copy]
void copy(CUfabricCpyOperand to, CUfabricCpyOperand from,
          cudaStream_t stream) {
  CUDA_FABRIC_COPY_BATCH_OP one{};
  one.dst = to;
  one.src = from;
  one.size = kBytes;
  CU_CHECK(DRIVER(cuFabricCpyBatchAsync)(1, &one, 0, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}
//! [copy]

//! [importer]
int importer(Channel channel) {
  CUDA_CHECK(cudaSetDevice(1));
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreate(&stream));
  void* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kBytes));
  CUDA_CHECK(cudaMemset(data, kPoison, kBytes));

  auto handle =
      channel.receive<CUlogicalEndpointFabricHandle>("handle");
  CUlogicalEndpointId id;  // the importer's own number
  CU_CHECK(DRIVER(cuLogicalEndpointIdReserve)(&id, 1));
  CU_CHECK(until_fabric_is_ready([&] {
    return DRIVER(cuLogicalEndpointImport)(id, &handle, kFabric);
  }));
  wait_until_ready(id);

  copy(at(data), at(id, 0), stream);
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("copies the exporter's values to GPU 1: %d wrong", wrong);
  write_values(data, kCount, kImporterValue, stream);
  copy(at(id, 0), at(data), stream);
  say("copies its own values to the endpoint");

  CU_CHECK(DRIVER(cuLogicalEndpointDestroy)(id));
  CU_CHECK(DRIVER(cuLogicalEndpointIdRelease)(id, 1));
  CUDA_CHECK(cudaFree(data));
  CUDA_CHECK(cudaStreamDestroy(stream));
  channel.signal("closed");

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_endpoints();
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  const CUlogicalEndpointProp wanted = describe();
  const auto kind = shareable(CU_MEM_HANDLE_TYPE_FABRIC);
  const size_t bytes = whole_granules(wanted.size, kind);
  const Memory memory = create_memory(bytes, kind);

  Child child = start_again(argv);
  return child.finish(exporter(child.channel, wanted, memory, bytes));
}
#endif
