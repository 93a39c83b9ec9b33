// SPDX-License-Identifier: Apache-2.0
// Pools between processes. In most tests, the test exports and a peer imports.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "peer.h"
#include "pool.h"

using namespace ipclab::model::test;

namespace {

constexpr auto kPosix = cudaMemHandleTypePosixFileDescriptor;
constexpr unsigned kNonBlocking = cudaStreamNonBlocking;
constexpr int kCount = 3000;
constexpr uint64_t kBytes = kCount * sizeof(int);

int export_pool(cudaMemPool_t pool) {
  int descriptor = -1;
  EXPECT_EQ(cudaMemPoolExportToShareableHandle(&descriptor, pool, kPosix, 0),
            cudaSuccess);
  return descriptor;
}

cudaError_t import_code(int descriptor, cudaMemPool_t* pool,
                        cudaMemAllocationHandleType type = kPosix,
                        unsigned flags = 0) {
  void* handle = nullptr;
  std::memcpy(&handle, &descriptor, sizeof descriptor);
  return cudaMemPoolImportFromShareableHandle(pool, handle, type, flags);
}

// Imports the pool that the other process sent. The descriptor is closed at
// once.
cudaMemPool_t import_pool(Channel& test) {
  const int descriptor = test.receive_descriptor();
  cudaMemPool_t pool = nullptr;
  EXPECT_EQ(import_code(descriptor, &pool), cudaSuccess);
  close(descriptor);
  return pool;
}

cudaMemPoolPtrExportData export_pointer(void* pointer) {
  cudaMemPoolPtrExportData data;
  EXPECT_EQ(cudaMemPoolExportPointer(&data, pointer), cudaSuccess);
  return data;
}

int* import_pointer(cudaMemPool_t pool, cudaMemPoolPtrExportData data) {
  void* pointer = nullptr;
  EXPECT_EQ(cudaMemPoolImportPointer(&pointer, pool, &data), cudaSuccess);
  return static_cast<int*>(pointer);
}

cudaError_t import_refused(cudaMemPool_t pool, cudaMemPoolPtrExportData data) {
  void* pointer = nullptr;
  const cudaError_t code = cudaMemPoolImportPointer(&pointer, pool, &data);
  EXPECT_EQ(pointer, nullptr);
  EXPECT_EQ(cudaGetLastError(), code);
  return code;
}

void fill(int* data, int value) {
  EXPECT_EQ(
      launch("fill", (kCount + 255) / 256, 256, nullptr, data, kCount, value),
      CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

// A pool with memory that holds `value + i`, and its descriptor.
struct Exported {
  cudaMemPool_t pool = create(on_device(0, kPosix));
  int descriptor = export_pool(pool);

  ~Exported() {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
    close(descriptor);
  }
  int* filled(int value) {
    int* data = take(pool, kBytes, nullptr);
    fill(data, value);
    return data;
  }
};

ROLE(importer) {
  cudaMemPool_t pool = import_pool(test);
  EXPECT_EQ(used(pool), 0u);
  for (int round = 0; round < 3; ++round) {
    int* data = import_pointer(pool, test.receive<cudaMemPoolPtrExportData>());
    EXPECT_EQ(wrong_elements(data, kCount, 100 + round), 0);
    EXPECT_EQ(used(pool), 12288u);  // kBytes, rounded up to units of 512
    EXPECT_EQ(reserved(pool), 2 * kMiB);
    fill(data, 200 + round);
    EXPECT_EQ(round == 1 ? cudaFree(data) : cudaFreeAsync(data, nullptr),
              cudaSuccess);
    EXPECT_EQ(cudaFree(data), cudaErrorInvalidValue);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(used(pool), 0u);
    EXPECT_EQ(reserved(pool), 0u);
    test.send(round);
  }
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
}

ROLE(frees_while_a_copy_waits) {
  cudaMemPool_t pool = import_pool(test);
  int* data = import_pointer(pool, test.receive<cudaMemPoolPtrExportData>());
  int* own = allocate<int>(kCount);
  fill(own, 700);
  cudaStream_t copies = stream_with(kNonBlocking);
  cudaStream_t frees = stream_with(kNonBlocking);
  {
    Latch latch(copies);
    EXPECT_EQ(
        cudaMemcpyAsync(data, own, kBytes, cudaMemcpyDeviceToDevice, copies),
        cudaSuccess);
    EXPECT_EQ(cudaFreeAsync(data, frees), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(frees), cudaSuccess);
    // No other allocation gets the addresses before the copy is done.
    int* other = import_pointer(pool, test.receive<cudaMemPoolPtrExportData>());
    EXPECT_NE(other, data);
    EXPECT_EQ(cudaFree(other), cudaSuccess);
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(PoolIpc, ACopyKeepsTheMappingThatAnotherStreamFrees) {
  Exported exported;
  int* data = exported.filled(100);
  int* other = exported.filled(200);
  Peer peer("frees_while_a_copy_waits");
  peer.channel().send_descriptor(exported.descriptor);
  peer.channel().send(export_pointer(data));
  peer.channel().send(export_pointer(other));
  EXPECT_EQ(peer.wait(), "exit 0");
  EXPECT_EQ(wrong_elements(data, kCount, 700), 0);
  EXPECT_EQ(wrong_elements(other, kCount, 200), 0);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaFree(other), cudaSuccess);
}

TEST(PoolIpc, SharesMemoryMadeBeforeAndAfterTheExport) {
  Exported exported;
  Peer peer("importer");
  peer.channel().send_descriptor(exported.descriptor);
  for (int round = 0; round < 3; ++round) {
    int* data = exported.filled(100 + round);
    peer.channel().send(export_pointer(data));
    EXPECT_EQ(peer.channel().receive<int>(), round);
    EXPECT_EQ(wrong_elements(data, kCount, 200 + round), 0);
    EXPECT_EQ(cudaFreeAsync(data, nullptr), cudaSuccess);
  }
  EXPECT_EQ(peer.wait(), "exit 0");
}

TEST(PoolIpc, ExporterRefusesWhatIsNotShared) {
  int descriptor = -1;
  const auto refused = [&](cudaMemPool_t pool, cudaMemAllocationHandleType type,
                           unsigned flags) {
    const cudaError_t code =
        cudaMemPoolExportToShareableHandle(&descriptor, pool, type, flags);
    EXPECT_EQ(descriptor, -1);
    EXPECT_EQ(cudaGetLastError(), code);
    return code;
  };
  cudaMemPool_t pool = nullptr;
  ASSERT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
  EXPECT_EQ(refused(pool, kPosix, 0), cudaErrorInvalidValue);
  cudaMemPool_t plain = create(on_device(0));
  EXPECT_EQ(refused(plain, kPosix, 0), cudaErrorInvalidValue);
  cudaMemPool_t shared = create(on_device(0, kPosix));
  EXPECT_EQ(refused(shared, cudaMemHandleTypeNone, 0), cudaErrorInvalidValue);
  EXPECT_EQ(refused(shared, cudaMemHandleTypeWin32, 0), cudaErrorInvalidValue);
  EXPECT_EQ(refused(shared, cudaMemHandleTypeFabric, 0), cudaErrorInvalidValue);
  EXPECT_EQ(refused(shared, kPosix, 1), cudaErrorInvalidValue);

  cudaMemPoolPtrExportData data;
  int* own = take(shared, kBytes, nullptr);
  EXPECT_EQ(cudaMemPoolExportPointer(&data, own), cudaErrorInvalidValue)
      << "the pool is not shared yet";
  close(export_pool(shared));
  EXPECT_EQ(cudaMemPoolExportPointer(&data, own), cudaSuccess);
  EXPECT_EQ(cudaMemPoolExportPointer(&data, own + 1), cudaErrorInvalidValue);
  int* other = take(plain, kBytes, nullptr);
  int* ordinary = allocate<int>(kCount);
  for (int* pointer : {other, ordinary, static_cast<int*>(nullptr)}) {
    EXPECT_EQ(cudaMemPoolExportPointer(&data, pointer), cudaErrorInvalidValue);
  }
  cudaGetLastError();
  EXPECT_EQ(cudaFree(own), cudaSuccess);
  EXPECT_EQ(cudaFree(other), cudaSuccess);
  EXPECT_EQ(cudaFree(ordinary), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(plain), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(shared), cudaSuccess);
}

ROLE(limited_importer) {
  const int descriptor = test.receive_descriptor();
  cudaMemPool_t pool = nullptr;
  EXPECT_EQ(import_code(descriptor, &pool, kPosix, 1), cudaErrorInvalidValue);
  EXPECT_EQ(import_code(descriptor, &pool, cudaMemHandleTypeNone),
            cudaErrorInvalidValue);
  EXPECT_EQ(import_code(-1, &pool), cudaErrorInvalidValue);
  const int null = open("/dev/null", O_RDWR);
  EXPECT_EQ(import_code(null, &pool), cudaErrorInvalidValue);
  EXPECT_EQ(import_code(descriptor, &pool), cudaSuccess);

  void* memory = nullptr;
  int again = -1;
  EXPECT_EQ(cudaMallocFromPoolAsync(&memory, 512, pool, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaDeviceSetMemPool(0, pool), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemPoolExportToShareableHandle(&again, pool, kPosix, 0),
            cudaErrorInvalidValue);
  EXPECT_EQ(set(pool, cudaMemPoolReuseAllowOpportunistic, 0), cudaSuccess);
  EXPECT_EQ(cudaMemPoolTrimTo(pool, 0), cudaSuccess);

  auto data = test.receive<cudaMemPoolPtrExportData>();
  int* first = import_pointer(pool, data);
  EXPECT_EQ(import_pointer(pool, data), first);
  cudaMemPool_t named = nullptr;
  EXPECT_EQ(cuPointerGetAttribute(&named, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                  reinterpret_cast<CUdeviceptr>(first)),
            CUDA_SUCCESS);
  EXPECT_EQ(named, pool);
  cudaMemPoolPtrExportData same;
  EXPECT_EQ(cudaMemPoolExportPointer(&same, first), cudaErrorInvalidValue);
  cudaIpcMemHandle_t handle;
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, first), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemPoolTrimTo(pool, 0), cudaSuccess);
  EXPECT_EQ(wrong_elements(first, kCount, 1), 0);
  cudaGetLastError();

  const auto foreign = test.receive<cudaMemPoolPtrExportData>();
  EXPECT_EQ(import_refused(pool, foreign), cudaErrorInvalidValue);
  EXPECT_EQ(import_refused(pool, {}), cudaErrorInvalidValue);
  data.reserved[20] ^= 0xff;
  EXPECT_EQ(import_refused(pool, data), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(first), cudaSuccess);
  test.send(true);
}

TEST(PoolIpc, ImportersAreLimited) {
  Exported exported;
  Exported other;
  int* data = exported.filled(1);
  int* foreign = other.filled(2);
  Peer peer("limited_importer");
  peer.channel().send_descriptor(exported.descriptor);
  peer.channel().send(export_pointer(data));
  peer.channel().send(export_pointer(foreign));
  EXPECT_TRUE(peer.channel().receive<bool>());
  EXPECT_EQ(peer.wait(), "exit 0");
  EXPECT_EQ(get<int>(exported.pool, cudaMemPoolReuseAllowOpportunistic), 1);
  EXPECT_EQ(wrong_elements(data, kCount, 1), 0);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaFree(foreign), cudaSuccess);
}

ROLE(waits_for_the_allocation) {
  cudaMemPool_t pool = import_pool(test);
  cudaEvent_t event = nullptr;
  EXPECT_EQ(
      cudaIpcOpenEventHandle(&event, test.receive<cudaIpcEventHandle_t>()),
      cudaSuccess);
  int* data = import_pointer(pool, test.receive<cudaMemPoolPtrExportData>());
  EXPECT_EQ(cudaStreamWaitEvent(nullptr, event), cudaSuccess);
  test.send(true);  // imported, while the exporter's stream stands still
  EXPECT_EQ(wrong_elements(data, kCount, 7), 0);
  EXPECT_EQ(cudaFreeAsync(data, nullptr), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, nullptr), cudaSuccess);
  test.send(true);
  EXPECT_TRUE(test.receive<bool>());
}

TEST(PoolIpc, NeitherSideWaitsButByEvents) {
  Exported exported;
  cudaStream_t stream = stream_with(kNonBlocking);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(
                &event, cudaEventInterprocess | cudaEventDisableTiming),
            cudaSuccess);
  cudaIpcEventHandle_t handle;
  ASSERT_EQ(cudaIpcGetEventHandle(&handle, event), cudaSuccess);
  Peer peer("waits_for_the_allocation");
  peer.channel().send_descriptor(exported.descriptor);
  peer.channel().send(handle);
  {
    Latch latch(stream);
    int* data = take(exported.pool, kBytes, stream);
    launch("fill", (kCount + 255) / 256, 256, stream, data, kCount, 7);
    ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
    peer.channel().send(export_pointer(data));
    EXPECT_TRUE(peer.channel().receive<bool>());
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    cudaGetLastError();
    latch.let_go();
    EXPECT_TRUE(peer.channel().receive<bool>());
    ASSERT_EQ(cudaStreamWaitEvent(stream, event), cudaSuccess);
    EXPECT_EQ(cudaFreeAsync(data, stream), cudaSuccess);
  }
  EXPECT_EQ(used(exported.pool), 0u);
  peer.channel().send(true);
  EXPECT_EQ(peer.wait(), "exit 0");
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

ROLE(frees_late) {
  cudaMemPool_t pool = import_pool(test);
  cudaEvent_t event = nullptr;
  EXPECT_EQ(
      cudaIpcOpenEventHandle(&event, test.receive<cudaIpcEventHandle_t>()),
      cudaSuccess);
  int* data = import_pointer(pool, test.receive<cudaMemPoolPtrExportData>());
  int* wrong = shared_word();
  cudaStream_t stream = stream_with(kNonBlocking);
  Latch latch(stream);
  launch("count_errors", (kCount + 255) / 256, 256, stream,
         static_cast<const int*>(data), kCount, 3, wrong);
  EXPECT_EQ(cudaFreeAsync(data, stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  test.send(true);
  EXPECT_TRUE(test.receive<bool>());
  latch.let_go();
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(*wrong, 0);
}

TEST(PoolIpc, MemoryIsReusedOnlyBehindTheImportersFree) {
  Exported exported;
  cudaStream_t stream = stream_with(kNonBlocking);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(
                &event, cudaEventInterprocess | cudaEventDisableTiming),
            cudaSuccess);
  cudaIpcEventHandle_t handle;
  ASSERT_EQ(cudaIpcGetEventHandle(&handle, event), cudaSuccess);
  int* data = exported.filled(3);
  Peer peer("frees_late");
  peer.channel().send_descriptor(exported.descriptor);
  peer.channel().send(handle);
  peer.channel().send(export_pointer(data));
  EXPECT_TRUE(peer.channel().receive<bool>());
  ASSERT_EQ(cudaStreamWaitEvent(stream, event), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(data, stream), cudaSuccess);
  cudaStream_t other = stream_with(kNonBlocking);
  int* next = take(exported.pool, kBytes, other);
  EXPECT_NE(next, data);
  launch("fill", (kCount + 255) / 256, 256, other, next, kCount, 4);
  ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  peer.channel().send(true);
  EXPECT_EQ(peer.wait(), "exit 0");
  EXPECT_EQ(cudaFree(next), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

ROLE(imports_host_memory) {
  cudaMemPool_t pool = import_pool(test);
  int* data = import_pointer(pool, test.receive<cudaMemPoolPtrExportData>());
  EXPECT_EQ(data[5], 77);
  data[5] = 78;
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

TEST(PoolIpc, SharesHostMemory) {
  cudaMemPoolProps wanted = on_device(0, kPosix);
  wanted.location.type = cudaMemLocationTypeHostNuma;
  cudaMemPool_t pool = create(wanted);
  const int descriptor = export_pool(pool);
  int* data = take(pool, kBytes, nullptr);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  data[5] = 77;
  Peer peer("imports_host_memory");
  peer.channel().send_descriptor(descriptor);
  peer.channel().send(export_pointer(data));
  EXPECT_EQ(peer.wait(), "exit 0");
  EXPECT_EQ(data[5], 78);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
  close(descriptor);
}

ROLE(holds) {
  cudaMemPool_t pool = import_pool(test);
  int* data = import_pointer(pool, test.receive<cudaMemPoolPtrExportData>());
  const bool destroys = test.receive<bool>();
  if (destroys) {
    EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
  }
  test.send(true);
  EXPECT_EQ(wrong_elements(data, kCount, test.receive<int>()), 0);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

TEST(PoolIpc, ImportersDoNotTouchEachOther) {
  Exported exported;
  int* data = exported.filled(1);
  Peer first("holds");
  Peer second("holds");
  for (Peer* peer : {&first, &second}) {
    peer->channel().send_descriptor(exported.descriptor);
    peer->channel().send(export_pointer(data));
    peer->channel().send(peer == &first);
    EXPECT_TRUE(peer->channel().receive<bool>());
  }
  first.channel().send(1);
  EXPECT_EQ(first.wait(), "exit 0");
  fill(data, 5);
  second.channel().send(5);
  EXPECT_EQ(second.wait(), "exit 0");
  EXPECT_EQ(wrong_elements(data, kCount, 5), 0);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

ROLE(exports_and_dies) {
  Exported exported;
  int* data = exported.filled(9);
  test.send_descriptor(exported.descriptor);
  test.send(export_pointer(data));
  EXPECT_TRUE(test.receive<bool>());
}

TEST(PoolIpc, MemoryOutlivesItsExporter) {
  Peer peer("exports_and_dies");
  cudaMemPool_t pool = import_pool(peer.channel());
  int* data =
      import_pointer(pool, peer.channel().receive<cudaMemPoolPtrExportData>());
  peer.kill(SIGKILL);
  EXPECT_EQ(peer.wait(), "signal 9");
  EXPECT_EQ(wrong_elements(data, kCount, 9), 0);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
}

TEST(PoolIpc, SharedPoolsKeepTheirMemory) {
  Exported exported;
  EXPECT_EQ(cudaFreeAsync(exported.filled(1), nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaMemPoolTrimTo(exported.pool, 0), cudaSuccess);
  EXPECT_EQ(reserved(exported.pool), 2 * kMiB);
}

// Runs on GPU 1. The process sees only this GPU, or both GPUs.
ROLE(imports_on_gpu_one) {
  int gpus = 0;
  EXPECT_EQ(cudaGetDeviceCount(&gpus), cudaSuccess);
  const int mine = gpus - 1;
  EXPECT_EQ(cudaSetDevice(mine), cudaSuccess);
  cudaMemPool_t pool = import_pool(test);
  int* before = import_pointer(pool, test.receive<cudaMemPoolPtrExportData>());
  EXPECT_EQ(access_of(pool, mine), cudaMemAccessFlagsProtNone);
  EXPECT_EQ(set_access(pool, mine, cudaMemAccessFlagsProtReadWrite),
            cudaSuccess);
  int* after = import_pointer(pool, test.receive<cudaMemPoolPtrExportData>());
  EXPECT_EQ(wrong_elements(before, kCount, 1), 0);
  EXPECT_EQ(wrong_elements(after, kCount, 2), 0);
  int ordinal = -1;
  EXPECT_EQ(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                  reinterpret_cast<CUdeviceptr>(before)),
            CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 0);
  EXPECT_EQ(cudaFree(before), cudaSuccess);
  EXPECT_EQ(cudaFree(after), cudaSuccess);
}

ROLE(exports_from_gpu_zero) {
  Exported exported;
  EXPECT_EQ(set_access(exported.pool, 1, cudaMemAccessFlagsProtReadWrite),
            cudaSuccess);
  int* first = exported.filled(1);
  int* second = exported.filled(2);
  for (const char* visible : {"0,1", "1"}) {
    Peer peer("imports_on_gpu_one", {{"CUDA_VISIBLE_DEVICES", visible}});
    peer.channel().send_descriptor(exported.descriptor);
    peer.channel().send(export_pointer(first));
    peer.channel().send(export_pointer(second));
    EXPECT_EQ(peer.wait(), "exit 0") << visible;
  }
  EXPECT_EQ(cudaFree(first), cudaSuccess);
  EXPECT_EQ(cudaFree(second), cudaSuccess);
}

TEST(PoolIpc, AccessIsNotInherited) {
  Peer peer("exports_from_gpu_zero", {{"IPCLAB_PROFILE", "two-gpus"}});
  EXPECT_EQ(peer.wait(), "exit 0");
}

ROLE(imports_as_driver_580) {
  cudaMemPool_t pool = import_pool(test);
  uint64_t bytes = 0;
  EXPECT_EQ(
      cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &bytes),
      cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemPoolTrimTo(pool, 0), cudaErrorInvalidValue);
  int* data = import_pointer(pool, test.receive<cudaMemPoolPtrExportData>());
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
  const int null = open("/dev/null", O_RDWR);
  EXPECT_EQ(import_code(null, &pool), cudaErrorUnknown);
}

ROLE(exports_as_driver_580) {
  Exported exported;
  Peer peer("imports_as_driver_580");
  peer.channel().send_descriptor(exported.descriptor);
  int* data = exported.filled(1);
  peer.channel().send(export_pointer(data));
  EXPECT_EQ(peer.wait(), "exit 0");
  EXPECT_EQ(cudaFreeAsync(data, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(reserved(exported.pool), 0u);
}

TEST(PoolIpc, ADriverMayDepart) {
  Peer peer("exports_as_driver_580", {{"IPCLAB_PROFILE", "driver-580"}});
  EXPECT_EQ(peer.wait(), "exit 0");
}

}  // namespace
