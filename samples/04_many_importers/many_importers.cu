// Lesson 04: one allocation, open in several processes at once.
//
//   exporter                            importers 0, 1 and 2
//   cudaMalloc, write
//   cudaIpcGetMemHandle  -- handle -->  each opens the same handle and
//   when all have read   <- read -----  reads the exporter's values
//                        -- go ------>  each writes its own slot
//   read every slot      <- written --
//   one by one:
//     write new values   -- go ------>  read the new values
//                        <- closed ---  close
//   cudaFree
//
// nvcc -cudart shared samples/04_many_importers/many_importers.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "../common/data.h"
#include "../common/roles.h"

constexpr int kImporters = 3;
constexpr int kSlot = 1 << 19;  // values that one importer writes
constexpr int kCount = kImporters * kSlot;

constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 2000000;  // plus the importer's number
constexpr int kLaterValue = 3000000;     // plus the importer's number

//! [exporter]
struct Invitation {
  cudaIpcMemHandle_t handle;
  int number;  // each importer has its own number
};

int exporter(std::vector<Child>& importers) {
  int* data =
      static_cast<int*>(allocate_values(kCount, kExporterValue));

  Invitation invitation{};
  CUDA_CHECK(cudaIpcGetMemHandle(&invitation.handle, data));
  for (Child& importer : importers) {
    importer.channel.send("handle", invitation);
    importer.channel.wait("read");
    ++invitation.number;
  }

  // All importers have read, so each of them may write now.
  for (Child& importer : importers) importer.channel.signal("go");
  for (Child& importer : importers) importer.channel.wait("written");
  int wrong = 0;
  for (int i = 0; i < kImporters; ++i)
    wrong += count_wrong(data + i * kSlot, kSlot, kImporterValue + i);
  say("reads the slots of %d importers: %d wrong", kImporters, wrong);

  // Importer 0 closes while the others still use the memory.
  for (int i = 0; i < kImporters; ++i) {
    write_values(data, kCount, kLaterValue + i);
    CUDA_CHECK(cudaDeviceSynchronize());
    importers[i].channel.signal("go");
    importers[i].channel.wait("closed");
  }

  CUDA_CHECK(cudaFree(data));
  say("frees the memory: all have closed");

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  const auto invitation = channel.receive<Invitation>("handle");
  const int number = invitation.number;

  void* opened = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&opened, invitation.handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  int* data = static_cast<int*>(opened);
  int wrong = count_wrong(data, kCount, kExporterValue);
  say("%d opens, reads the exporter's values: %d wrong", number, wrong);
  channel.signal("read");

  channel.wait("go");
  write_values(data + number * kSlot, kSlot, kImporterValue + number);
  CUDA_CHECK(cudaDeviceSynchronize());
  channel.signal("written");

  channel.wait("go");
  wrong += count_wrong(data, kCount, kLaterValue + number);
  CUDA_CHECK(cudaIpcCloseMemHandle(opened));
  say("%d reads the later values, closes: %d wrong", number, wrong);
  channel.signal("closed");

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();

  std::vector<Child> importers;
  for (int i = 0; i < kImporters; ++i)
    importers.push_back(start_again(argv));
  int result = exporter(importers);
  for (Child& importer : importers) result |= importer.wait(10s);

  return result;
}
