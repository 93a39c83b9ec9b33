// SPDX-License-Identifier: Apache-2.0
// Legacy handles between two processes.
#include <sys/resource.h>

#include <cstring>

#include "gpu.h"
#include "peer.h"

using namespace ipclab::model::test;

namespace {

constexpr int kCount = 5000;
constexpr unsigned kLazy = cudaIpcMemLazyEnablePeerAccess;
constexpr unsigned kShared = cudaEventInterprocess | cudaEventDisableTiming;

void* open_memory(const cudaIpcMemHandle_t& handle) {
  void* pointer = nullptr;
  EXPECT_EQ(cudaIpcOpenMemHandle(&pointer, handle, kLazy), cudaSuccess);
  return pointer;
}

bool is_device_memory(void* pointer) {
  cudaPointerAttributes attributes;
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, pointer), cudaSuccess);
  return attributes.type == cudaMemoryTypeDevice;
}

cudaError_t refused(cudaIpcMemHandle_t handle, unsigned flags = kLazy) {
  void* pointer = nullptr;
  const cudaError_t code = cudaIpcOpenMemHandle(&pointer, handle, flags);
  EXPECT_EQ(cudaGetLastError(), code);
  return code;
}

// Exports `count` ints that hold `value + i`. The caller must keep them.
int* export_filled(Channel& test, int count, int value) {
  int* data = allocate<int>(count);
  EXPECT_EQ(
      launch("fill", (count + 255) / 256, 256, nullptr, data, count, value),
      CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  test.send(memory_handle(data));
  return data;
}

ROLE(exporter) {
  int* data = export_filled(test, kCount, 100);
  EXPECT_EQ(test.receive<int>(), 1);
  EXPECT_EQ(wrong_elements(data, kCount, 900), 0);  // what the importer wrote
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  test.send(2);
  EXPECT_EQ(test.receive<int>(), 3);
}

TEST(IpcMemory, AliasesTheExportersBytes) {
  Peer peer("exporter");
  const auto handle = peer.channel().receive<cudaIpcMemHandle_t>();
  int* data = static_cast<int*>(open_memory(handle));
  EXPECT_EQ(wrong_elements(data, kCount, 100), 0);
  EXPECT_EQ(read_back(data, 3)[2], 102);
  CUdeviceptr base = 0;
  size_t size = 0;
  EXPECT_EQ(
      cuMemGetAddressRange(&base, &size, reinterpret_cast<CUdeviceptr>(data)),
      CUDA_SUCCESS);
  EXPECT_EQ(size, kCount * sizeof(int));
  ASSERT_EQ(launch("fill", 20, 256, nullptr, data, kCount, 900), CUDA_SUCCESS);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  peer.channel().send(1);
  EXPECT_EQ(peer.channel().receive<int>(), 2);
  // The exporter has freed the memory. Memory that is already open stays
  // readable, but a new open is refused.
  EXPECT_EQ(read_back(data, 3)[2], 902);
  EXPECT_EQ(refused(handle), cudaErrorInvalidValue);
  EXPECT_EQ(cudaIpcCloseMemHandle(data), cudaSuccess);
  peer.channel().send(3);
  EXPECT_EQ(peer.wait(), "exit 0");
}

TEST(IpcMemory, CountsReferences) {
  Peer peer("exporter");
  const auto handle = peer.channel().receive<cudaIpcMemHandle_t>();
  void* first = open_memory(handle);
  void* second = open_memory(handle);
  EXPECT_EQ(first, second);
  EXPECT_EQ(cudaFree(first), cudaErrorInvalidValue);
  cudaIpcMemHandle_t again;
  EXPECT_EQ(cudaIpcGetMemHandle(&again, first), cudaErrorInvalidValue);
  EXPECT_EQ(cudaIpcCloseMemHandle(first), cudaSuccess);
  EXPECT_TRUE(is_device_memory(first));
  EXPECT_EQ(read_back(static_cast<int*>(first), 1)[0], 100);
  EXPECT_EQ(cudaIpcCloseMemHandle(first), cudaSuccess);
  EXPECT_FALSE(is_device_memory(first));
  EXPECT_EQ(cudaIpcCloseMemHandle(first), cudaErrorInvalidValue);
  void* third = open_memory(handle);
  EXPECT_EQ(read_back(static_cast<int*>(third), 1)[0], 100);
  EXPECT_EQ(cudaIpcCloseMemHandle(third), cudaSuccess);
  cudaGetLastError();
}

TEST(IpcMemory, RefusesWhatIsNoHandle) {
  cudaIpcMemHandle_t handle;
  std::memset(&handle, 0, sizeof handle);
  EXPECT_EQ(refused(handle), cudaErrorInvalidValue);
  std::memset(&handle, 0x5a, sizeof handle);
  EXPECT_EQ(refused(handle), cudaErrorInvalidValue);
  int* own = allocate<int>(1);
  EXPECT_EQ(refused(memory_handle(own)), cudaErrorDeviceUninitialized);
  EXPECT_EQ(cudaIpcCloseMemHandle(own), cudaErrorInvalidValue);
  EXPECT_EQ(cudaIpcCloseMemHandle(nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(own), cudaSuccess);
  Peer peer("exporter");
  const auto good = peer.channel().receive<cudaIpcMemHandle_t>();
  EXPECT_EQ(refused(good, 0), cudaErrorInvalidValue);
  EXPECT_EQ(cudaIpcOpenMemHandle(nullptr, good, kLazy), cudaErrorInvalidValue);
  for (size_t i = 0; i < sizeof good; ++i) {
    cudaIpcMemHandle_t damaged = good;
    damaged.reserved[i] ^= 1;
    void* pointer = nullptr;
    const cudaError_t code = cudaIpcOpenMemHandle(&pointer, damaged, kLazy);
    if (code == cudaSuccess) {  // a byte that no check covers
      EXPECT_EQ(cudaIpcCloseMemHandle(pointer), cudaSuccess);
    } else {
      EXPECT_EQ(code, cudaErrorInvalidValue);
    }
  }
  cudaGetLastError();
  void* pointer = open_memory(good);  // the context is still usable
  EXPECT_EQ(cudaIpcCloseMemHandle(pointer), cudaSuccess);
}

TEST(IpcMemory, SurvivesTheExportersDeath) {
  Peer peer("exporter");
  const auto handle = peer.channel().receive<cudaIpcMemHandle_t>();
  int* data = static_cast<int*>(open_memory(handle));
  peer.kill(SIGKILL);
  EXPECT_EQ(peer.wait(), "signal 9");
  EXPECT_EQ(wrong_elements(data, kCount, 100), 0);
  EXPECT_EQ(refused(handle), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaIpcCloseMemHandle(data), cudaSuccess);
}

TEST(IpcMemory, OneContextOfADevice) {
  Peer peer("exporter");
  const auto handle = peer.channel().receive<cudaIpcMemHandle_t>();
  void* data = open_memory(handle);
  CUcontext other = nullptr;
  ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(refused(handle), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cuCtxDestroy(other), CUDA_SUCCESS);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(read_back(static_cast<int*>(data), 1)[0], 100);
  EXPECT_EQ(cudaIpcCloseMemHandle(data), cudaSuccess);
}

ROLE(neighbours) {
  char* first = allocate<char>(4096);
  char* second = allocate<char>(4096);
  EXPECT_EQ(cudaMemset(first, 'a', 4096), cudaSuccess);
  EXPECT_EQ(cudaMemset(second, 'b', 4096), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  test.send(memory_handle(first));
  test.send(memory_handle(second));
  EXPECT_EQ(test.receive<int>(), 1);
}

TEST(IpcMemory, NeighboursShareTheBlockAndNotTheHandle) {
  Peer peer("neighbours");
  const auto first = peer.channel().receive<cudaIpcMemHandle_t>();
  const auto second = peer.channel().receive<cudaIpcMemHandle_t>();
  EXPECT_NE(std::memcmp(&first, &second, sizeof first), 0);
  auto* a = static_cast<char*>(open_memory(first));
  auto* b = static_cast<char*>(open_memory(second));
  EXPECT_EQ(b - a, 4096);
  EXPECT_EQ(read_back(a, 1)[0], 'a');
  EXPECT_EQ(read_back(b, 1)[0], 'b');
  EXPECT_EQ(cudaIpcCloseMemHandle(a), cudaSuccess);
  EXPECT_EQ(read_back(b, 1)[0], 'b');
  // The documentation warns of this leak: a kernel can access the neighbouring
  // allocation.
  int* word = shared_word();
  EXPECT_EQ(launch("read_one", 1, 1, nullptr, reinterpret_cast<int*>(a), word),
            CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(*word, 0x61616161);
  EXPECT_EQ(cudaIpcCloseMemHandle(b), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(word), cudaSuccess);
  peer.channel().send(1);
  EXPECT_EQ(peer.wait(), "exit 0");
}

ROLE(touch_closed) {
  int* data =
      static_cast<int*>(open_memory(test.receive<cudaIpcMemHandle_t>()));
  EXPECT_EQ(cudaIpcCloseMemHandle(data), cudaSuccess);
  EXPECT_EQ(launch("write_one", 1, 1, nullptr, data, 1), CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  test.send(1);
}

TEST(IpcMemory, KernelOnAClosedMappingFaults) {
  int* data = allocate<int>(1);
  Peer peer("touch_closed");
  peer.channel().send(memory_handle(data));
  EXPECT_EQ(peer.wait(), "exit 0");
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

// ---- events

ROLE(recorder) {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, kShared), cudaSuccess);
  cudaIpcEventHandle_t handle;
  EXPECT_EQ(cudaIpcGetEventHandle(&handle, event), cudaSuccess);
  test.send(handle);
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
            cudaSuccess);
  int* flag = shared_word();
  EXPECT_EQ(test.receive<int>(), 1);
  EXPECT_EQ(launch("spin_until", 1, 1, stream, flag, 1), CUDA_SUCCESS);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  test.send(2);  // the event is recorded, and the record is pending
  EXPECT_EQ(test.receive<int>(), 3);
  __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  test.send(4);
  EXPECT_EQ(test.receive<int>(), 5);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);  // importer's record
  test.send(6);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST(IpcEvent, WorksInBothDirections) {
  Peer peer("recorder");
  const auto handle = peer.channel().receive<cudaIpcEventHandle_t>();
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaIpcOpenEventHandle(&event, handle), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);  // never recorded
  peer.channel().send(1);
  ASSERT_EQ(peer.channel().receive<int>(), 2);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
            cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(stream, event), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  peer.channel().send(3);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(peer.channel().receive<int>(), 4);
  int* flag = shared_word();
  ASSERT_EQ(launch("spin_until", 1, 1, stream, flag, 1), CUDA_SUCCESS);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  peer.channel().send(5);
  ASSERT_EQ(peer.channel().receive<int>(), 6);
  __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
  EXPECT_EQ(peer.wait(), "exit 0");
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);

  cudaIpcEventHandle_t again;
  EXPECT_EQ(cudaIpcGetEventHandle(&again, event),
            cudaErrorInvalidResourceHandle);
  float ms = 0;
  EXPECT_EQ(cudaEventElapsedTime(&ms, event, event),
            cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(flag), cudaSuccess);
}

TEST(IpcEvent, DeadRecorderReleasesItsWaiters) {
  Peer peer("recorder");
  const auto handle = peer.channel().receive<cudaIpcEventHandle_t>();
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaIpcOpenEventHandle(&event, handle), cudaSuccess);
  peer.channel().send(1);
  ASSERT_EQ(peer.channel().receive<int>(), 2);
  ASSERT_EQ(cudaStreamWaitEvent(nullptr, event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  peer.kill(SIGKILL);
  EXPECT_EQ(peer.wait(), "signal 9");
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST(IpcEvent, RefusesWhatDocumentationRefuses) {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventInterprocess),
            cudaErrorInvalidValue);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
            cudaSuccess);
  cudaIpcEventHandle_t handle;
  EXPECT_EQ(cudaIpcGetEventHandle(&handle, event),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, kShared | cudaEventBlockingSync),
            cudaSuccess);
  ASSERT_EQ(cudaIpcGetEventHandle(&handle, event), cudaSuccess);
  cudaEvent_t opened = nullptr;
  EXPECT_EQ(cudaIpcOpenEventHandle(&opened, handle),
            cudaErrorDeviceUninitialized);
  cudaIpcMemHandle_t as_memory;
  std::memcpy(&as_memory, &handle, sizeof handle);
  EXPECT_EQ(refused(as_memory), cudaErrorInvalidValue);
  std::memset(&handle, 0, sizeof handle);
  EXPECT_EQ(cudaIpcOpenEventHandle(&opened, handle),
            cudaErrorMapBufferObjectFailed);
  int* data = allocate<int>(1);
  const cudaIpcMemHandle_t memory = memory_handle(data);
  std::memcpy(&handle, &memory, sizeof handle);
  EXPECT_EQ(cudaIpcOpenEventHandle(&opened, handle),
            cudaErrorMapBufferObjectFailed);
  cudaGetLastError();
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

// The limit of a process is its descriptors, and the model says so.
ROLE(create_events_without_end) {
  ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few{64, limit.rlim_max};
  ::testing::internal::CaptureStderr();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  cudaEvent_t event = nullptr;
  cudaError_t error = cudaSuccess;
  for (int k = 0; k < 64 && error == cudaSuccess; ++k)
    error = cudaEventCreateWithFlags(&event, kShared);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(error, cudaErrorMemoryAllocation);
  EXPECT_NE(said.find("raise 'ulimit -n'"), std::string::npos) << said;
}

TEST(IpcEvent, AreAsManyAsThereAreDescriptors) {
#ifndef __SANITIZE_ADDRESS__  // a sanitizer needs a pipe to look at an object
  Peer peer("create_events_without_end");
  EXPECT_EQ(peer.wait(), "exit 0");
#endif
  // More than the 4,096 that an H200 gave to one process.
  constexpr size_t kMany = 4'200;
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < kMany + 100)
    GTEST_SKIP() << "'ulimit -n' allows " << limit.rlim_max;
  std::vector<cudaEvent_t> events(kMany);
  for (cudaEvent_t& event : events)
    ASSERT_EQ(cudaEventCreateWithFlags(&event, kShared), cudaSuccess);
  for (cudaEvent_t event : events)
    ASSERT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST(IpcEvent, KeepsWorkingOverManyRecords) {
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, kShared), cudaSuccess);
  int* data = allocate<int>(1);
  for (int i = 0; i < 3000; ++i) {
    ASSERT_EQ(cudaMemsetAsync(data, i & 0xff, 1, nullptr), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event), cudaSuccess);
  }
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(read_back(reinterpret_cast<char*>(data), 1)[0],
            static_cast<char>(2999 & 0xff));
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

}  // namespace
