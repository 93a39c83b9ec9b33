// Exercise 53: the number of a GPU.
//
// The importer sees the two GPUs in another order than the exporter, as
// a second rank often does. The importer uses the exporter's number,
// which means the other GPU here: each access goes over the link
// between the GPUs. The message also has the UUID of the GPU. Fix
// gpu_of().
// The exercise fails now because the importer works on the GPU without
// the memory.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 19;
constexpr int kValue = 1000000;

struct Loan {
  cudaIpcMemHandle_t handle;
  int number;  // number of the GPU in the exporter
  cudaUUID_t uuid;
};

cudaUUID_t uuid_of(int device) {
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return properties.uuid;
}

int gpu_of(const Loan& loan) { return loan.number; }

int exporter(Channel& channel) {
  CUDA_CHECK(cudaSetDevice(1));
  void* data = allocate_values(kCount, kValue);
  channel.send("loan", Loan{handle_of(data), 1, uuid_of(1)});
  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  SYS_CHECK(setenv("CUDA_VISIBLE_DEVICES", "1,0", 1));
  const Loan loan = channel.receive<Loan>("loan");

  const int mine = gpu_of(loan);
  CUDA_CHECK(cudaSetDevice(mine));
  void* data = open_memory(loan.handle);
  const int wrong = count_wrong(data, kCount, kValue);

  const cudaUUID_t here = uuid_of(mine);
  const bool local = std::memcmp(&here, &loan.uuid, sizeof here) == 0;
  say("works on its GPU %d, which %s the memory: %d wrong", mine,
      local ? "has" : "does NOT have", wrong);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("closed");

  return exit_code(wrong + !local);
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(2);
  require_legacy_ipc();

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
