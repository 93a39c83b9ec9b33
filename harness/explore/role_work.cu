// The kernels, copies and memsets of steps.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "harness/explore/role.h"
#include "harness/scenario/cuda.h"

namespace ipclab::explore {
namespace {

constexpr unsigned kBlock = 128;

__global__ void write_bytes(char* to, unsigned long long count, unsigned key) {
  const unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = static_cast<char>(pattern_byte(key, i));
}

__global__ void copy_bytes(char* to, const char* from,
                           unsigned long long count) {
  const unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[i];
}

__global__ void wait_at_gate(Gates* gates, int gate) {
  constexpr unsigned long long kLimit = 60'000'000'000;  // ns
  unsigned long long began, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
  do {
    if (gates->open[gate] != 0) return;
    __nanosleep(20000);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - began < kLimit);
  gates->gave_up = 1;
}

unsigned blocks_for(int64_t count) {
  return static_cast<unsigned>((count + kBlock - 1) / kBlock);
}

struct HostWrite {
  char* to;
  int64_t bytes;
  uint32_t key;
};

// The structure stays until the end of the program, for launches of graphs.
int write_by_host(Objects& objects, const Step& step, char* to,
                  cudaStream_t stream) {
  auto& kept = objects.pageable[step.thread];
  kept.emplace_back(sizeof(HostWrite));
  const HostWrite wanted{to, step.bytes, static_cast<uint32_t>(step.value)};
  std::memcpy(kept.back().data(), &wanted, sizeof wanted);
  const auto write = [](void* data) {
    HostWrite one;
    std::memcpy(&one, data, sizeof one);
    for (int64_t i = 0; i < one.bytes; ++i)
      one.to[i] =
          static_cast<char>(pattern_byte(one.key, static_cast<uint64_t>(i)));
  };
  return step.api == 0 ? static_cast<int>(cudaLaunchHostFunc(
                             stream, write, kept.back().data()))
                       : static_cast<int>(DRIVER(cuLaunchHostFunc)(
                             stream, write, kept.back().data()));
}

int launch_write(const Step& step, char* to, cudaStream_t stream) {
  unsigned long long count = static_cast<unsigned long long>(step.bytes);
  unsigned key = static_cast<unsigned>(step.value);
  const dim3 blocks(blocks_for(step.bytes)), threads(kBlock);
  void* arguments[] = {&to, &count, &key};
  const void* const kernel = reinterpret_cast<const void*>(&write_bytes);
  if (step.api == 1) {
    cudaFunction_t function = nullptr;
    const int code = cudaGetFuncBySymbol(&function, kernel);
    if (code != 0) return code;
    return DRIVER(cuLaunchKernel)(function, blocks.x, 1, 1, threads.x, 1, 1, 0,
                                  stream, arguments, nullptr);
  }
  switch (step.how) {
    case kLaunchEx: {
      cudaLaunchConfig_t config{};
      config.gridDim = blocks;
      config.blockDim = threads;
      config.stream = stream;
      return cudaLaunchKernelExC(&config, kernel, arguments);
    }
    case kCooperative:
      return cudaLaunchCooperativeKernel(kernel, blocks, threads, arguments, 0,
                                         stream);
    default:
      write_bytes<<<blocks, threads, 0, stream>>>(to, count, key);
      return cudaGetLastError();
  }
}

int launch_copy(char* to, const char* from, int64_t bytes,
                cudaStream_t stream) {
  copy_bytes<<<blocks_for(bytes), kBlock, 0, stream>>>(
      to, from, static_cast<unsigned long long>(bytes));
  return cudaGetLastError();
}

// --- memsets ----------------------------------------------------------------

int set_8(const Step& step, char* to, cudaStream_t stream, bool wait) {
  const int value = static_cast<int>(step.value & 0xff);
  const auto bytes = static_cast<size_t>(step.bytes);
  const auto rows = static_cast<size_t>(std::max(step.rows, 1));
  const auto pitch = static_cast<size_t>(step.pitch);
  const auto byte = static_cast<unsigned char>(value);
  const CUdeviceptr at = address_of(to);
  if (step.layers > 1) {
    const cudaPitchedPtr box = make_cudaPitchedPtr(to, pitch, bytes, rows);
    const cudaExtent extent =
        make_cudaExtent(bytes, rows, static_cast<size_t>(step.layers));
    return wait ? cudaMemset3D(box, value, extent)
                : cudaMemset3DAsync(box, value, extent, stream);
  }
  if (rows > 1) {
    if (step.api == 0)
      return wait ? cudaMemset2D(to, pitch, value, bytes, rows)
                  : cudaMemset2DAsync(to, pitch, value, bytes, rows, stream);
    return wait ? DRIVER(cuMemsetD2D8)(at, pitch, byte, bytes, rows)
                : DRIVER(cuMemsetD2D8Async)(at, pitch, byte, bytes, rows,
                                            stream);
  }
  if (step.api == 0)
    return wait ? cudaMemset(to, value, bytes)
                : cudaMemsetAsync(to, value, bytes, stream);
  return wait ? DRIVER(cuMemsetD8)(at, byte, bytes)
              : DRIVER(cuMemsetD8Async)(at, byte, bytes, stream);
}

int set_wide(const Step& step, char* to, cudaStream_t stream, bool wait) {
  const CUdeviceptr at = address_of(to);
  const auto rows = static_cast<size_t>(std::max(step.rows, 1));
  const auto pitch = static_cast<size_t>(step.pitch);
  const bool wide = step.how % 3 == kSet32;
  const auto count = static_cast<size_t>(step.bytes) / (wide ? 4 : 2);
  const auto two = static_cast<unsigned short>(step.value);
  const auto four = static_cast<unsigned>(step.value);
  if (rows > 1) {
    if (wide)
      return wait ? DRIVER(cuMemsetD2D32)(at, pitch, four, count, rows)
                  : DRIVER(cuMemsetD2D32Async)(at, pitch, four, count, rows,
                                               stream);
    return wait ? DRIVER(cuMemsetD2D16)(at, pitch, two, count, rows)
                : DRIVER(cuMemsetD2D16Async)(at, pitch, two, count, rows,
                                             stream);
  }
  if (wide)
    return wait ? DRIVER(cuMemsetD32)(at, four, count)
                : DRIVER(cuMemsetD32Async)(at, four, count, stream);
  return wait ? DRIVER(cuMemsetD16)(at, two, count)
              : DRIVER(cuMemsetD16Async)(at, two, count, stream);
}

// --- copies -----------------------------------------------------------------

struct Box {
  char* to;
  const char* from;
  size_t bytes, rows, layers, pitch, from_pitch;
};

int copy_box_2d(const Step& step, const Box& box, cudaStream_t stream,
                bool wait) {
  if (step.api == 0)
    return wait ? cudaMemcpy2D(box.to, box.pitch, box.from, box.from_pitch,
                               box.bytes, box.rows, cudaMemcpyDefault)
                : cudaMemcpy2DAsync(box.to, box.pitch, box.from, box.from_pitch,
                                    box.bytes, box.rows, cudaMemcpyDefault,
                                    stream);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = address_of(box.from);
  copy.dstDevice = address_of(box.to);
  copy.srcPitch = box.from_pitch;
  copy.dstPitch = box.pitch;
  copy.WidthInBytes = box.bytes;
  copy.Height = box.rows;
  return wait ? DRIVER(cuMemcpy2DUnaligned)(&copy)
              : DRIVER(cuMemcpy2DAsync)(&copy, stream);
}

int copy_box_3d(const Step& step, const Box& box, cudaStream_t stream,
                bool wait) {
  if (step.api == 0) {
    cudaMemcpy3DParms copy{};
    copy.srcPtr = make_cudaPitchedPtr(const_cast<char*>(box.from),
                                      box.from_pitch, box.bytes, box.rows);
    copy.dstPtr = make_cudaPitchedPtr(box.to, box.pitch, box.bytes, box.rows);
    copy.extent = make_cudaExtent(box.bytes, box.rows, box.layers);
    copy.kind = cudaMemcpyDefault;
    return wait ? cudaMemcpy3D(&copy) : cudaMemcpy3DAsync(&copy, stream);
  }
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = address_of(box.from);
  copy.dstDevice = address_of(box.to);
  copy.srcPitch = box.from_pitch;
  copy.dstPitch = box.pitch;
  copy.srcHeight = copy.dstHeight = box.rows;
  copy.WidthInBytes = box.bytes;
  copy.Height = box.rows;
  copy.Depth = box.layers;
  return wait ? DRIVER(cuMemcpy3D)(&copy)
              : DRIVER(cuMemcpy3DAsync)(&copy, stream);
}

int copy_peer(const Step& step, const Box& box, cudaStream_t stream) {
  const int to = static_cast<int>(step.value % kMostGpus),
            from = static_cast<int>(step.value / kMostGpus);
  if (step.api == 0 || to != from)
    return cudaMemcpyPeerAsync(box.to, to, box.from, from, box.bytes, stream);
  CUcontext context = nullptr;
  const int code = DRIVER(cuCtxGetCurrent)(&context);
  if (code != 0) return code;
  return DRIVER(cuMemcpyPeerAsync)(address_of(box.to), context,
                                   address_of(box.from), context, box.bytes,
                                   stream);
}

int copy_kind(const Step& step, const Box& box, bool to_device,
              bool from_device, cudaStream_t stream) {
  const CUdeviceptr to = address_of(box.to), from = address_of(box.from);
  if (step.api == 1) {
    if (to_device && from_device)
      return DRIVER(cuMemcpyDtoDAsync)(to, from, box.bytes, stream);
    if (to_device)
      return DRIVER(cuMemcpyHtoDAsync)(to, box.from, box.bytes, stream);
    if (from_device)
      return DRIVER(cuMemcpyDtoHAsync)(box.to, from, box.bytes, stream);
    return DRIVER(cuMemcpyAsync)(to, from, box.bytes, stream);
  }
  const auto kind =
      to_device
          ? (from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
          : (from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
  return cudaMemcpyAsync(box.to, box.from, box.bytes, kind, stream);
}

#if CUDART_VERSION >= 13000
int copy_batch(const Box& box, cudaStream_t stream) {
  const size_t half = box.bytes / 2;
  void* to[] = {box.to, box.to + half};
  const void* from[] = {box.from, box.from + half};
  const size_t sizes[] = {half, box.bytes - half};
  cudaMemcpyAttributes order{};
  order.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first = 0;
  return cudaMemcpyBatchAsync(to, from, sizes, 2, &order, &first, 1, stream);
}

int copy_3d_batch(const Box& box, cudaStream_t stream) {
  const auto side = [&](const char* data, size_t pitch) {
    cudaMemcpy3DOperand one{};
    one.type = cudaMemcpyOperandTypePointer;
    one.op.ptr.ptr = const_cast<char*>(data);
    one.op.ptr.rowLength = pitch;
    one.op.ptr.layerHeight = box.rows;
    return one;
  };
  cudaMemcpy3DBatchOp whole{};
  whole.src = side(box.from, box.from_pitch);
  whole.dst = side(box.to, box.pitch);
  whole.extent = make_cudaExtent(box.bytes, box.rows, box.layers);
  whole.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  return cudaMemcpy3DBatchAsync(1, &whole, 0, stream);
}
#endif

int copy(Objects& objects, const Step& step, cudaStream_t stream) {
  const Objects::Memory to = objects.memory.at(step.on);
  const Objects::Memory from = objects.memory.at(step.from);
  const auto or_bytes = [&](int64_t pitch) {
    return static_cast<size_t>(pitch == 0 ? step.bytes : pitch);
  };
  const Box box{to.data + step.at,
                from.data + step.from_at,
                static_cast<size_t>(step.bytes),
                static_cast<size_t>(std::max(step.rows, 1)),
                static_cast<size_t>(std::max(step.layers, 1)),
                or_bytes(step.pitch),
                or_bytes(step.from_pitch)};
  switch (step.how) {
    case kCopyKernel:
      return launch_copy(box.to, box.from, step.bytes, stream);
    case kCopyAsync:
      return step.api == 0
                 ? static_cast<int>(cudaMemcpyAsync(box.to, box.from, box.bytes,
                                                    cudaMemcpyDefault, stream))
                 : static_cast<int>(DRIVER(cuMemcpyAsync)(address_of(box.to),
                                                          address_of(box.from),
                                                          box.bytes, stream));
    case kCopyAsyncKind:
      return copy_kind(step, box, to.device, from.device, stream);
    case kCopyPeerAsync:
      return copy_peer(step, box, stream);
#if CUDART_VERSION >= 13000
    case kCopyBatch:
      return copy_batch(box, stream);
    case kCopy3DBatch:
      return copy_3d_batch(box, stream);
#endif
    case kCopy2DAsync:
    case kCopy2DSync:
      return copy_box_2d(step, box, stream, step.how == kCopy2DSync);
    case kCopy3DAsync:
    case kCopy3DSync:
      return copy_box_3d(step, box, stream, step.how == kCopy3DSync);
    default:
      return step.api == 0
                 ? static_cast<int>(cudaMemcpy(box.to, box.from, box.bytes,
                                               cudaMemcpyDefault))
                 : static_cast<int>(DRIVER(cuMemcpy)(
                       address_of(box.to), address_of(box.from), box.bytes));
  }
}

int upload(Objects& objects, const Step& step, cudaStream_t stream) {
  char* const to = objects.memory.at(step.on).data + step.at;
  const auto rows = static_cast<size_t>(std::max(step.rows, 1));
  const auto bytes = static_cast<size_t>(step.bytes);
  std::vector<char> source(bytes * rows);
  for (size_t i = 0; i < source.size(); ++i)
    source[i] =
        static_cast<char>(pattern_byte(static_cast<unsigned>(step.value), i));
  const size_t pitch =
      step.pitch == 0 ? bytes : static_cast<size_t>(step.pitch);
  if (step.how == kUpload2D)
    return cudaMemcpy2D(to, pitch, source.data(), bytes, bytes, rows,
                        cudaMemcpyHostToDevice);
  if (step.how == kUploadSync)
    return step.api == 0 ? static_cast<int>(cudaMemcpy(to, source.data(), bytes,
                                                       cudaMemcpyHostToDevice))
                         : static_cast<int>(DRIVER(cuMemcpyHtoD)(
                               address_of(to), source.data(), bytes));
  auto& kept = objects.pageable[step.thread];
  kept.push_back(std::move(source));
  const char* const from = kept.back().data();
  return step.api == 0 ? static_cast<int>(cudaMemcpyAsync(
                             to, from, bytes, cudaMemcpyHostToDevice, stream))
                       : static_cast<int>(DRIVER(cuMemcpyHtoDAsync)(
                             address_of(to), from, bytes, stream));
}

// Reads memory to the host, and waits.
int read(Objects& objects, const Step& step, cudaStream_t stream,
         std::string* bytes) {
  const char* const from = objects.memory.at(step.on).data + step.at;
  const auto rows = static_cast<size_t>(std::max(step.rows, 1));
  const auto width = static_cast<size_t>(step.bytes);
  bytes->assign(width * rows, '\x5a');
  if (step.how == kReadSync)
    return step.api == 0
               ? static_cast<int>(
                     cudaMemcpy(bytes->data(), from, width, cudaMemcpyDefault))
               : static_cast<int>(DRIVER(cuMemcpy)(address_of(bytes->data()),
                                                   address_of(from), width));
  if (step.how == kRead2D)
    return cudaMemcpy2D(
        bytes->data(), width, from,
        step.pitch == 0 ? width : static_cast<size_t>(step.pitch), width, rows,
        cudaMemcpyDefault);
  char* const scratch = objects.scratch[step.thread];
  std::fill(scratch, scratch + width, '\x5a');
  int code = step.how == kReadKernel
                 ? launch_copy(scratch, from, step.bytes, stream)
             : step.api == 0
                 ? static_cast<int>(cudaMemcpyAsync(scratch, from, width,
                                                    cudaMemcpyDefault, stream))
                 : static_cast<int>(DRIVER(cuMemcpyAsync)(
                       address_of(scratch), address_of(from), width, stream));
  if (code == 0) code = cudaStreamSynchronize(stream);
  bytes->assign(scratch, width);
  return code;
}

}  // namespace

int perform_work(Objects& objects, const Step& step, Parcel& parcel) {
  const cudaStream_t stream = objects.stream_of(step);
  switch (step.op) {
    case Op::kGate: {
      const int gate = static_cast<int>(step.value);
      if (step.how == kGateWord)
        return DRIVER(cuStreamWaitValue32)(
            stream,
            address_of(
                const_cast<uint32_t*>(&objects.device_gates->open[gate])),
            1, CU_STREAM_WAIT_VALUE_GEQ);
      wait_at_gate<<<1, 1, 0, stream>>>(objects.device_gates, gate);
      return cudaGetLastError();
    }
    case Op::kWrite: {
      char* const to = objects.memory.at(step.on).data + step.at;
      return step.how == kHostFunction
                 ? write_by_host(objects, step, to, stream)
                 : launch_write(step, to, stream);
    }
    case Op::kSet: {
      char* const to = objects.memory.at(step.on).data + step.at;
      const bool wait = step.how >= kSet8Sync;
      return step.how % 3 == kSet8 ? set_8(step, to, stream, wait)
                                   : set_wide(step, to, stream, wait);
    }
    case Op::kCopy:
      return copy(objects, step, stream);
    case Op::kUpload:
      return upload(objects, step, stream);
    default:
      return read(objects, step, stream, &parcel.bytes);
  }
}

void launch_nothing(cudaStream_t stream) {
  write_bytes<<<1, 1, 0, stream>>>(nullptr, 0, 0);
  CALL(cudaGetLastError());
}

void load_work(Objects& objects) {
  char* const scratch = objects.scratch[0];
  write_bytes<<<1, kBlock>>>(scratch, 1, 0);
  copy_bytes<<<1, kBlock>>>(scratch, scratch + 1, 1);
  wait_at_gate<<<1, 1>>>(objects.device_gates, kGates);
  CALL(cudaGetLastError());
}

}  // namespace ipclab::explore
