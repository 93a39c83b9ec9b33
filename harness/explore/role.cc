// The frame of a role: its threads, and what it knows of the machine.
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/explore/role.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "harness/scenario/cuda.h"
#include "harness/scenario/leaks.h"
#include "harness/scenario/role.h"

namespace ipclab::explore {
namespace {

// What a role has for itself on its GPU. Returns the code of the first call
// that failed, or 0.
int prepare(Objects& objects) {
  int code = cudaFree(nullptr);
  const auto call = [&](cudaError_t made) { code = code != 0 ? code : made; };
  call(cudaHostRegister(objects.gates, sizeof(Gates), cudaHostRegisterMapped));
  void* seen = nullptr;
  call(cudaHostGetDevicePointer(&seen, objects.gates, 0));
  objects.device_gates = static_cast<Gates*>(seen);
  for (char*& scratch : objects.scratch)
    call(cudaMallocHost(reinterpret_cast<void**>(&scratch), kScratchBytes));
  if (code != 0) return code;
  load_work(objects);
  return cudaDeviceSynchronize();
}

// After this the process has no object, but lives on.
int reset(Objects& objects, const Step& step) {
  const int code =
      step.api == 0
          ? static_cast<int>(cudaDeviceReset())
          : static_cast<int>(DRIVER(cuDevicePrimaryCtxReset)(objects.gpu));
  objects.memory.each([](const Objects::Memory& memory) {
    if (memory.host_kind == kRegistered)
      munmap(memory.data, static_cast<size_t>(memory.bytes));
  });
  objects.memory.clear();
  objects.streams.clear();
  objects.events.clear();
  objects.graphs.clear();
  ++objects.resets;
  const int again = code != 0 ? code : prepare(objects);
  return again;
}

int perform(Objects& objects, const Step& step, Parcel& parcel,
            Answer& answer) {
  switch (step.op) {
    case Op::kCreateStream:
    case Op::kDestroyStream:
    case Op::kCreateEvent:
    case Op::kExportEvent:
    case Op::kOpenEvent:
    case Op::kDestroyEvent:
    case Op::kRecord:
    case Op::kWait:
    case Op::kQueryEvent:
    case Op::kSyncEvent:
    case Op::kQueryStream:
    case Op::kSyncStream:
    case Op::kSyncDevice:
    case Op::kBeginCapture:
    case Op::kEndCapture:
    case Op::kLaunch:
    case Op::kDestroyGraph:
    case Op::kWriteWord:
    case Op::kWaitWord:
      return perform_order(objects, step, parcel, answer);
    case Op::kGate:
    case Op::kWrite:
    case Op::kSet:
    case Op::kCopy:
    case Op::kUpload:
    case Op::kRead:
      return perform_work(objects, step, parcel);
    case Op::kRefuse:
      if (step.how >= kFirstOfList)
        return perform_listed(objects, step, answer);
      return perform_refusal(objects, step, parcel);
    case Op::kQuestion:
      return perform_listed(objects, step, answer);
    case Op::kNewThread:
      return 0;  // see serve()
    case Op::kEnd:
      if (step.how == kReset) return reset(objects, step);
      std::_Exit(EXIT_SUCCESS);
    default:
      return perform_memory(objects, step, parcel, answer);
  }
}

int attribute_of(cudaDeviceAttr which) {
  int value = 0;
  cudaDeviceGetAttribute(&value, which, 0);
  return value;
}

int attribute_of(CUdevice_attribute which) {
  int value = 0;
  DRIVER(cuDeviceGetAttribute)(&value, which, 0);
  return value;
}

// How many GPUs programs use: two if they are peers.
int usable_gpus() {
  int count = 0, there = 0, back = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) return 1;
  cudaDeviceCanAccessPeer(&there, 0, 1);
  cudaDeviceCanAccessPeer(&back, 1, 0);
  return there != 0 && back != 0 ? 2 : 1;
}

// Is the work of a stream done while a function of the host holds another one?
bool is_side_by_side() {
  constexpr std::chrono::seconds kLimit{5};
  static std::atomic<bool> open;  // the function may outlive this call
  open = false;
  cudaStream_t held = nullptr, other = nullptr;
  CALL(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking));
  CALL(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  const auto wait = [](void*) {
    while (!open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  CALL(cudaLaunchHostFunc(held, wait, nullptr));
  launch_nothing(other);
  const auto end = std::chrono::steady_clock::now() + kLimit;
  bool done = false;
  while (!(done = cudaStreamQuery(other) == cudaSuccess) &&
         std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  open = true;
  CALL(cudaDeviceSynchronize());
  CALL(cudaStreamDestroy(held));
  CALL(cudaStreamDestroy(other));
  return done;
}

// Can chunks of this granule be made on node 0 of the host, and exported?
bool has_nodes(int64_t granule) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle made = 0;
  int descriptor = -1;
  size_t unit = 0;
  if (DRIVER(cuMemGetAllocationGranularity)(
          &unit, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
      granule % static_cast<int64_t>(unit) != 0 ||
      DRIVER(cuMemCreate)(&made, static_cast<size_t>(granule), &wanted, 0) !=
          CUDA_SUCCESS)
    return false;
  const bool exported =
      DRIVER(cuMemExportToShareableHandle)(
          &descriptor, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
      CUDA_SUCCESS;
  if (descriptor >= 0) close(descriptor);
  DRIVER(cuMemRelease)(made);
  return exported;
}

// What programs may use here: attributes, and a small real attempt.
Machine ask_machine(bool probes_order) {
  Machine machine;
  void* memory = nullptr;
  cudaIpcMemHandle_t handle;
  if (attribute_of(cudaDevAttrIpcEventSupport) != 0 &&
      cudaMalloc(&memory, 4096) == cudaSuccess) {
    machine.legacy = cudaIpcGetMemHandle(&handle, memory) == cudaSuccess;
    cudaFree(memory);
  }
  if (attribute_of(
          CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) !=
      0) {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    size_t granule = 0;
    if (DRIVER(cuMemGetAllocationGranularity)(
            &granule, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ==
        CUDA_SUCCESS)
      machine.granule = static_cast<int64_t>(granule);
  }
  machine.pools = attribute_of(cudaDevAttrMemoryPoolsSupported) != 0 &&
                  (attribute_of(cudaDevAttrMemoryPoolSupportedHandleTypes) &
                   cudaMemHandleTypePosixFileDescriptor) != 0;
  machine.words =
      attribute_of(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) != 0;
  machine.managed = attribute_of(cudaDevAttrConcurrentManagedAccess) != 0;
  machine.nodes = machine.granule != 0 && has_nodes(machine.granule);
#if CUDART_VERSION >= 13000
  int version = 0;
  cudaDriverGetVersion(&version);
  machine.batches = version >= 13000;
#endif
  machine.nor =
      attribute_of(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR) != 0;
  machine.gpus = usable_gpus();
  cudaGetLastError();  // of what is not possible here
  machine.side_by_side = !probes_order || is_side_by_side();
  return machine;
}

void answer_with(Wire& wire, Frame::Kind kind, const Answer& answer,
                 Parcel parcel) {
  Frame frame;
  frame.kind = kind;
  frame.data.assign(reinterpret_cast<const char*>(&answer), sizeof answer);
  frame.data += parcel.bytes;
  frame.descriptor = std::move(parcel.descriptor);
  wire.queue(frame);
  wire.flush();
}

// Makes the steps that arrive, until the parent closes the socket, or another
// thread takes its place.
void serve(Objects& objects, Wire wire) {
  if (cudaSetDevice(objects.gpu) != cudaSuccess) std::_Exit(EXIT_FAILURE);
  int resets = objects.resets;
  for (;;) {
    std::optional<Frame> frame;
    while (!(frame = wire.next()))
      if (!wire.read_some()) std::_Exit(EXIT_SUCCESS);
    Step step;
    std::memcpy(static_cast<void*>(&step), frame->data.data(), sizeof step);
    Parcel parcel{frame->data.substr(sizeof step),
                  std::move(frame->descriptor)};
    // The parent has to know that a call that may be held has begun.
    if (frame->kind == Frame::kWant) answer_with(wire, Frame::kRest, {}, {});
    if (resets != objects.resets) {
      resets = objects.resets;
      cudaSetDevice(objects.gpu);
    }
    if (frame->kind == Frame::kPlay) {  // between two programs
      ++objects.epoch;
      for (auto& buffers : objects.pageable) buffers.clear();
      Answer rest;
      size_t free_bytes = 0, all_bytes = 0;
      rest.code = cudaMemGetInfo(&free_bytes, &all_bytes);
      rest.free_bytes = static_cast<int64_t>(free_bytes);
      // Without those that a driver opens for itself at any time.
      rest.open_files =
          static_cast<int64_t>(left_open({}, open_descriptors()).size());
      answer_with(wire, Frame::kDelivery, rest, {});
      continue;
    }
    Answer answer;
    cudaGetLastError();
    answer.code = perform(objects, step, parcel, answer);
    answer.last_error = cudaGetLastError();
    answer_with(wire, Frame::kDelivery, answer, std::move(parcel));
    if (step.op == Op::kNewThread) {
      std::thread(serve, std::ref(objects), std::move(wire)).detach();
      return;
    }
  }
}

}  // namespace

cudaStream_t Objects::stream_of(const Step& step) {
  if (is_legacy(step.stream)) return cudaStreamLegacy;
  if (is_thread_stream(step.stream)) return cudaStreamPerThread;
  return streams.at(step.stream);
}

int play(int gpu, bool probes_order, const std::vector<int>& descriptors) {
  static Objects objects;  // threads use it until the process ends
  objects.gpu = gpu;
  objects.gates =
      static_cast<Gates*>(mmap(nullptr, sizeof(Gates), PROT_READ | PROT_WRITE,
                               MAP_SHARED, descriptors.at(0), 0));
  if (objects.gates == MAP_FAILED) return EXIT_FAILURE;
  Answer hello;
  try {
    CALL(cudaSetDevice(gpu));
    CALL(static_cast<cudaError_t>(prepare(objects)));
    hello.machine = ask_machine(probes_order);
  } catch (const CallFailed& failed) {
    std::fprintf(stderr, "a process of a program cannot start: %s: %s\n",
                 failed.call.c_str(), failed.seen.c_str());
    return EXIT_FAILURE;
  }
  objects.granule = hello.machine.granule;
  for (int thread = 0; thread < kThreads; ++thread) {
    Wire wire{Descriptor(descriptors.at(static_cast<size_t>(thread) + 1))};
    if (thread == 0) answer_with(wire, Frame::kDelivery, hello, {});
    std::thread(serve, std::ref(objects), std::move(wire)).detach();
  }
  for (;;) pause();  // a thread ends the process
}

}  // namespace ipclab::explore
