// SPDX-License-Identifier: Apache-2.0
// Chunks between processes, by descriptors and by fabric handles.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "peer.h"
#include "vmm.h"

using namespace ipclab::model::test;

namespace {

constexpr CUresult kInvalid = CUDA_ERROR_INVALID_VALUE;
constexpr auto kFabricType = static_cast<CUmemAllocationHandleType>(kFabric);

// Imports the chunk that the other process sent. The descriptor is closed at
// once.
Handle import_chunk(Channel& test) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  const int descriptor = test.receive_descriptor();
  Handle handle = 0;
  EXPECT_EQ(import_descriptor(descriptor, &handle), CUDA_SUCCESS);
  EXPECT_EQ(fcntl(descriptor, F_GETFD), FD_CLOEXEC);
  close(descriptor);
  return handle;
}

// A chunk that is filled and mapped.
struct Exported {
  Handle handle;
  int* data;

  explicit Exported(int value, int types = kPosix)
      : handle(create(chunk_on(0, types))), data(map(handle)) {
    fill(data, value);
  }
  void give_up() {
    unmap(data);
    release(handle);
  }
};

void send(Peer& peer, Handle handle) {
  const int descriptor = export_descriptor(handle);
  peer.channel().send_descriptor(descriptor);
  close(descriptor);
}

ROLE(vmm_importer) {
  const Handle handle = import_chunk(test);
  CUmemAllocationProp found{};
  EXPECT_EQ(cuMemGetAllocationPropertiesFromHandle(&found, handle),
            CUDA_SUCCESS);
  EXPECT_EQ(found.type, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(found.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(found.requestedHandleTypes, CU_MEM_HANDLE_TYPE_NONE);
  const int* seen = map(handle, kNoAccess);
  EXPECT_EQ(access_at(number(seen)), kNoAccess);
  unmap(seen);
  int* data = map(handle);
  release(handle);
  EXPECT_EQ(wrong_elements(data, kCount, 100), 0);
  fill(data, 200);
  test.send(found.location.id);
  EXPECT_TRUE(test.receive<bool>());
  EXPECT_EQ(wrong_elements(data, kCount, 300), 0);
  unmap(data);
}

TEST(VmmIpc, BothSidesUseTheSameBytes) {
  Exported exported(100);
  Peer peer("vmm_importer");
  send(peer, exported.handle);
  EXPECT_EQ(peer.channel().receive<int>(), 0);
  EXPECT_EQ(wrong_elements(exported.data, kCount, 200), 0);
  fill(exported.data, 300);
  peer.channel().send(true);
  EXPECT_EQ(peer.wait(), "exit 0");
  exported.give_up();
}

ROLE(vmm_exporter) {
  Exported exported(100);
  const int descriptor = export_descriptor(exported.handle);
  test.send_descriptor(descriptor);
  close(descriptor);
  EXPECT_TRUE(test.receive<bool>());
  exported.give_up();
}

// The same memory is device 0 of one process and device 1 of the other.
ROLE(vmm_reordered) {
  Peer exporter("vmm_exporter", {{"CUDA_VISIBLE_DEVICES", "1,0"}});
  const Handle handle = import_chunk(exporter.channel());
  CUmemAllocationProp found{};
  EXPECT_EQ(cuMemGetAllocationPropertiesFromHandle(&found, handle),
            CUDA_SUCCESS);
  EXPECT_EQ(found.location.id, 1);
  int* data = map(handle);
  EXPECT_EQ(wrong_elements(data, kCount, 100), 0);
  unmap(data);
  release(handle);
  exporter.channel().send(true);
  EXPECT_EQ(exporter.wait(), "exit 0");
}
ROLE(vmm_out_of_reach) {
  Peer exporter("vmm_exporter", {{"CUDA_VISIBLE_DEVICES", "1"}});
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  const int descriptor = exporter.channel().receive_descriptor();
  Handle handle = 0;
  EXPECT_EQ(import_descriptor(descriptor, &handle), CUDA_ERROR_NOT_SUPPORTED);
  exporter.channel().send(true);
  EXPECT_EQ(exporter.wait(), "exit 0");
}

TEST(VmmIpc, OrdinalsAreThoseOfTheImporter) {
  Peer peer("vmm_reordered", {{"IPCLAB_PROFILE", "two-gpus"}});
  EXPECT_EQ(peer.wait(), "exit 0");
  Peer hidden("vmm_out_of_reach",
              {{"IPCLAB_PROFILE", "no-peer"}, {"CUDA_VISIBLE_DEVICES", "0"}});
  EXPECT_EQ(hidden.wait(), "exit 0");
}

// A handle, a mapping or a descriptor keeps the bytes of a chunk, also a
// descriptor in a message. The free memory shows this at each step.
ROLE(vmm_any_reference) {
  // Kernels and small allocations need memory. It is allocated here, so the
  // test does not count it.
  kernel("fill");
  int* small = allocate<int>(1);
  constexpr uint64_t kBytes = 64 << 20;
  const size_t before = free_bytes();
  const auto in_use = [&] { return before - free_bytes(); };
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  Channel sender(ends[0]);
  Channel receiver(ends[1]);

  Handle handle = create(chunk_on(0, kPosix), kBytes);
  int* data = map(handle, kAll, kBytes);
  fill(data, 7);
  release(handle);
  EXPECT_EQ(in_use(), kBytes);
  EXPECT_EQ(cuMemRetainAllocationHandle(&handle, data), CUDA_SUCCESS);
  unmap(data, kBytes);
  EXPECT_EQ(in_use(), kBytes);
  int descriptor = export_descriptor(handle);
  release(handle);
  EXPECT_EQ(in_use(), kBytes);
  sender.send_descriptor(descriptor);
  EXPECT_EQ(close(descriptor), 0);
  EXPECT_EQ(in_use(), kBytes);

  descriptor = receiver.receive_descriptor();
  EXPECT_EQ(import_descriptor(descriptor, &handle), CUDA_SUCCESS);
  EXPECT_EQ(close(descriptor), 0);
  data = map(handle, kAll, kBytes);
  EXPECT_EQ(read_back(data, 10)[9], 16);
  unmap(data, kBytes);
  release(handle);
  EXPECT_EQ(in_use(), 0u);
  EXPECT_EQ(cudaFree(small), cudaSuccess);
  sender.close_socket();
  receiver.close_socket();
}

TEST(VmmIpc, AnyReferenceKeepsTheMemory) {
  Peer peer("vmm_any_reference", kOnQuietGpu);
  EXPECT_EQ(peer.wait(), "exit 0");
}

TEST(VmmIpc, ImporterKeepsTheMemoryOfAKilledExporter) {
  for (const bool before_import : {true, false}) {
    Peer exporter("vmm_exporter");
    const int descriptor = exporter.channel().receive_descriptor();
    const auto end = [&] {
      exporter.kill(SIGKILL);
      EXPECT_EQ(exporter.wait(), "signal 9");
    };
    if (before_import) end();
    ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
    Handle handle = 0;
    EXPECT_EQ(import_descriptor(descriptor, &handle), CUDA_SUCCESS);
    close(descriptor);
    int* data = map(handle);
    if (!before_import) end();
    EXPECT_EQ(wrong_elements(data, kCount, 100), 0);
    unmap(data);
    release(handle);
  }
}

TEST(VmmIpc, EveryImportIsReleasedOnItsOwn) {
  Exported exported(1);
  Peer peer("vmm_counts_imports");
  send(peer, exported.handle);
  exported.give_up();
  EXPECT_EQ(peer.wait(), "exit 0");
}
ROLE(vmm_counts_imports) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  const int descriptor = test.receive_descriptor();
  Handle handles[3];
  for (Handle& handle : handles) {
    EXPECT_EQ(import_descriptor(descriptor, &handle), CUDA_SUCCESS);
  }
  close(descriptor);
  release(handles[0]);
  release(handles[1]);
  int* data = map(handles[2]);
  release(handles[2]);
  EXPECT_EQ(cuMemRelease(handles[2]), kInvalid);
  EXPECT_EQ(wrong_elements(data, kCount, 1), 0);
  unmap(data);
}

TEST(VmmIpc, NothingGrows) {
  ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
  const auto round = [] {
    const Handle handle = create(chunk_on(0, kPosix));
    const int descriptor = export_descriptor(handle);
    Handle imported = 0;
    EXPECT_EQ(import_descriptor(descriptor, &imported), CUDA_SUCCESS);
    unmap(map(imported));
    release(imported);
    release(handle);
    close(descriptor);
    return descriptor;
  };
  const int first = round();
  const CUdeviceptr place = reserve(kChunk);
  EXPECT_EQ(cuMemAddressFree(place, kChunk), CUDA_SUCCESS);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(round(), first);
  EXPECT_EQ(reserve(kChunk), place);
  EXPECT_EQ(cuMemAddressFree(place, kChunk), CUDA_SUCCESS);
}

// --- fabric handles ---------------------------------------------------------

CUmemFabricHandle export_fabric(Handle handle) {
  CUmemFabricHandle shareable{};
  EXPECT_EQ(cuMemExportToShareableHandle(&shareable, handle, kFabricType, 0),
            CUDA_SUCCESS);
  return shareable;
}

CUresult import_fabric(CUmemFabricHandle shareable, Handle* handle) {
  return cuMemImportFromShareableHandle(handle, &shareable, kFabricType);
}

using Environment = std::map<std::string, std::string>;

Environment node(const char* channel = "0") {
  return {{"IPCLAB_PROFILE", "fabric"}, {"IPCLAB_MODEL_IMEX_CHANNEL", channel}};
}

ROLE(fabric_exporter) {
  Exported exported(100, kFabric);
  test.send(export_fabric(exported.handle));
  EXPECT_TRUE(test.receive<bool>());
  EXPECT_EQ(wrong_elements(exported.data, kCount, 200), 0);
  exported.give_up();
  test.send(true);
  test.receive<bool>();
}
ROLE(fabric_importer) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  const auto shareable = test.receive<CUmemFabricHandle>();
  Handle handle = 0;
  EXPECT_EQ(import_fabric(shareable, &handle), CUDA_SUCCESS);
  Handle twice = 0;
  EXPECT_EQ(import_fabric(shareable, &twice), CUDA_SUCCESS);
  int* data = map(handle);
  EXPECT_EQ(wrong_elements(data, kCount, 100), 0);
  fill(data, 200);
  unmap(data);
  release(handle);
  test.send(true);
  EXPECT_TRUE(test.receive<bool>());
  // The exporter has released the chunk, but this process has not.
  EXPECT_EQ(import_fabric(shareable, &handle), kInvalid);
  data = map(twice);
  EXPECT_EQ(wrong_elements(data, kCount, 200), 0);
  unmap(data);
  release(twice);
}
ROLE(fabric_stranger) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  Handle handle = 77;
  const auto shareable = test.receive<CUmemFabricHandle>();
  const auto expected = test.receive<CUresult>();
  EXPECT_EQ(import_fabric(shareable, &handle), expected);
  EXPECT_EQ(handle, 77u);
}

TEST(Fabric, AHandleIsPlainDataThatDoesNotKeepTheMemory) {
  Peer exporter("fabric_exporter", node());
  Peer importer("fabric_importer", node());
  importer.channel().send(exporter.channel().receive<CUmemFabricHandle>());
  EXPECT_TRUE(importer.channel().receive<bool>());
  exporter.channel().send(true);
  EXPECT_TRUE(exporter.channel().receive<bool>());
  importer.channel().send(true);
  EXPECT_EQ(importer.wait(), "exit 0");
  exporter.channel().send(true);
  EXPECT_EQ(exporter.wait(), "exit 0");
}

TEST(Fabric, ImportNeedsChannelExporterAndAWholeHandle) {
  Peer exporter("fabric_exporter", node("3"));
  const auto good = exporter.channel().receive<CUmemFabricHandle>();
  CUmemFabricHandle damaged = good;
  damaged.data[20] ^= 1;
  const auto expect = [&](const char* channel, const CUmemFabricHandle& handle,
                          CUresult code) {
    Peer stranger("fabric_stranger", node(channel));
    stranger.channel().send(handle);
    stranger.channel().send(code);
    EXPECT_EQ(stranger.wait(), "exit 0") << channel;
  };
  expect("none", good, CUDA_ERROR_NOT_PERMITTED);
  expect("4", good, CUDA_ERROR_NOT_PERMITTED);
  expect("3", damaged, kInvalid);
  expect("3", {}, kInvalid);
  exporter.kill(SIGKILL);
  EXPECT_EQ(exporter.wait(), "signal 9");
  expect("3", good, kInvalid);
}

ROLE(fabric_create) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  const CUmemAllocationProp wanted = chunk_on(0, kFabric | kPosix);
  Handle handle = 0;
  const auto expected = test.receive<CUresult>();
  EXPECT_EQ(cuMemCreate(&handle, kChunk, &wanted, 0), expected);
  CUmemPoolProps pooled{};
  pooled.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  pooled.handleTypes = kFabricType;
  pooled.location = wanted.location;
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(cuMemPoolCreate(&pool, &pooled) == CUDA_SUCCESS,
            expected == CUDA_SUCCESS);
  if (expected != CUDA_SUCCESS) return;
  EXPECT_EQ(close(export_descriptor(handle)), 0);
  const CUmemFabricHandle one = export_fabric(handle);
  Handle own = 0;
  EXPECT_EQ(import_fabric(one, &own), CUDA_SUCCESS);
  release(own);
  release(handle);

  CUmemFabricHandle of_pool{};
  EXPECT_EQ(cuMemPoolExportToShareableHandle(&of_pool, pool, kFabricType, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(import_fabric(of_pool, &own), kInvalid);
  CUmemoryPool imported = nullptr;
  EXPECT_EQ(
      cuMemPoolImportFromShareableHandle(&imported, &of_pool, kFabricType, 0),
      CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(imported), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
}

TEST(Fabric, CreationNeedsAChannel) {
  const auto expect = [](const Environment& environment, CUresult code) {
    Peer peer("fabric_create", environment);
    peer.channel().send(code);
    EXPECT_EQ(peer.wait(), "exit 0");
  };
  expect(node(), CUDA_SUCCESS);
  expect({{"IPCLAB_PROFILE", "fabric"}}, CUDA_SUCCESS);
  expect(node("none"), CUDA_ERROR_NOT_PERMITTED);
  expect({}, CUDA_ERROR_NOT_PERMITTED);
  expect({{"IPCLAB_PROFILE", "no-fabric"}}, CUDA_ERROR_NOT_SUPPORTED);
}

}  // namespace
