// Lesson 04: one allocation, open in several processes at once.
//
//   exporter                            importers 0, 1, 2
//   cudaMalloc, write
//   cudaIpcGetMemHandle  -- handle -->  each opens the same handle
//   when all have it     -- go ------>  each writes a slot of its own
//   find every slot      <- written --
//   dismiss importer 0   -- look ---->  closes and ends
//   write anew, ask the  -- look ---->  reads the new values, closes,
//   others                              ends
//   cudaFree
//
// nvcc -cudart shared samples/04_many_importers/many_importers.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "../common/channel.h"
#include "../common/check.h"
#include "../common/require.h"
#include "../common/roles.h"

constexpr int kImporters = 3;
constexpr int kSlot = 1 << 16;  // values of each
constexpr size_t kBytes = kImporters * kSlot * sizeof(int);
constexpr int kExporterValue = 1000, kSlotValue = 2000, kLater = 3000;
constexpr unsigned kFlag = cudaIpcMemLazyEnablePeerAccess;

struct Invitation {
  cudaIpcMemHandle_t handle;
  int number;
};

__global__ void write_values(int* data, int value) {
  data[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

void write(int* data, int count, int value) {
  write_values<<<count / 256, 256>>>(data, value);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
}

bool holds(const int* data, int count, int value) {
  std::vector<int> seen(count, -1);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, count * sizeof(int),
                        cudaMemcpyDefault));
  return seen == std::vector<int>(count, value);
}

//! [exporter]
int exporter(std::vector<Child>& importers) {
  int* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kBytes));
  CUDA_CHECK(cudaMemset(data, 0xEE, kBytes));
  write(data, kImporters * kSlot, kExporterValue);
  Invitation invitation;
  CUDA_CHECK(cudaIpcGetMemHandle(&invitation.handle, data));
  for (int i = 0; i < kImporters; ++i) {
    invitation.number = i;
    importers[i].channel.send("handle", invitation);
    importers[i].channel.wait("opened");
  }

  // Not before: the last would have found what the first wrote.
  for (Child& importer : importers) importer.channel.signal("go");
  for (Child& importer : importers) importer.channel.wait("written");
  int found = 0;
  for (int i = 0; i < kImporters; ++i)
    found += holds(data + i * kSlot, kSlot, kSlotValue + i);
  say("finds %d of %d slots as written", found, kImporters);

  for (int i = 0; i < kImporters; ++i) {
    write(data, kImporters * kSlot, kLater + i);
    importers[i].channel.signal("look");
    importers[i].channel.wait("closed");
  }
  CUDA_CHECK(cudaFree(data));  // nobody has it open any more
  say("all have closed: frees the allocation");
  return found == kImporters ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto mine = channel.receive<Invitation>("handle");
  void* opened = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&opened, mine.handle, kFlag));
  int* data = static_cast<int*>(opened);
  bool good = holds(data, kImporters * kSlot, kExporterValue);
  say("%d opens, finds %s values", mine.number,
      good ? "the exporter's" : "WRONG");
  channel.signal("opened");
  channel.wait("go");
  write(data + mine.number * kSlot, kSlot, kSlotValue + mine.number);
  channel.signal("written");
  channel.wait("look");
  const bool fresh =
      holds(data, kImporters * kSlot, kLater + mine.number);
  CUDA_CHECK(cudaIpcCloseMemHandle(opened));
  say("%d finds %s values, closes", mine.number,
      fresh ? "the latest" : "WRONG");
  channel.signal("closed");
  return good && fresh ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(cudaDevAttrIpcEventSupport, "CUDA IPC");
  std::vector<Child> importers;
  for (int i = 0; i < kImporters; ++i)
    importers.push_back(start_again(argv));
  int result = exporter(importers);
  for (Child& importer : importers) result |= importer.wait(10s);
  return result;
}
