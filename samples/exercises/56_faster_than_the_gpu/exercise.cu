// Exercise 56: faster than the GPU.
//
// The importer's GPU writes into memory of the host, and the importer's
// CPU reads the same bytes. A copy would wait for the kernel; a read by
// the CPU does not wait, because it is not a CUDA call. Order the read
// after the kernel.
// The exercise fails now because the CPU reads old values.
//
// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "exercise.h"

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr int kCount = 1 << 18;
constexpr int kOldValue = 1000000;
constexpr int kNewValue = 2000000;

// Lets the CPU use a mapping; map_memory() lets the GPU use it.
void give_cpu_access(void* data, size_t bytes, CUmemLocation node) {
  const CUmemAccessDesc access{node,
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU_CHECK(DRIVER(cuMemSetAccess)(reinterpret_cast<CUdeviceptr>(data),
                                  bytes, &access, 1));
}

int exporter(Channel& channel) {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  int id = 0;                     // NUMA node nearest to the GPU
  CUDA_CHECK(cudaDeviceGetAttribute(&id, cudaDevAttrHostNumaId, 0));
  const CUmemLocation node{CU_MEM_LOCATION_TYPE_HOST_NUMA,
                           id < 0 ? 0 : id};
  CUmemAllocationProp wanted = shareable(kFd);
  wanted.location = node;
  const size_t bytes = whole_granules(kCount * sizeof(int), wanted);
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0));
  unsigned* data = static_cast<unsigned*>(map_memory(memory, bytes));
  give_cpu_access(data, bytes, node);
  for (int i = 0; i < kCount; ++i) data[i] = kOldValue + i;

  channel.send("node", node);
  send_memory(channel, memory, bytes);
  channel.wait("closed");
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  CUDA_CHECK(cudaFree(nullptr));
  const auto node = channel.receive<CUmemLocation>("node");
  size_t bytes = 0;
  const Memory memory = receive_memory(channel, &bytes);
  void* data = map_memory(memory, bytes);
  give_cpu_access(data, bytes, node);
  write_values(data, kCount, kOldValue);  // the first launch is slow
  CUDA_CHECK(cudaDeviceSynchronize());

  Gate* gate = create_gate();
  hold(nullptr, gate);  // stands for a kernel that takes 0.5 s
  std::thread clock([gate] {
    poll(nullptr, 0, 500);
    open_gate(gate);
  });
  write_values(data, kCount, kNewValue);
  const int wrong = count_wrong_on_host(data, kCount, kNewValue);
  say("reads the values of the GPU: %d wrong", wrong);

  clock.join();
  CUDA_CHECK(cudaDeviceSynchronize());
  destroy_gate(gate);
  unmap_memory(data, bytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  channel.signal("closed");

  return exit_code(wrong);
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(
      CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
      "physical memory of the host");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
