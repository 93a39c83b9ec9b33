// Every way to write memory and to read it, for tests that lend memory: see
// cuda.h. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "harness/scenario/cuda.h"
#include "harness/scenario/record.h"

namespace ipclab {
namespace {

// --- every way to write and to read -----------------------------------------

// Each way has its own part, with an odd offset and an odd size.
enum Way {
  kByKernel,
  kByCopy,
  kByCopyAsync,
  kByDeviceCopy,
  kByDeviceCopyAsync,
  kByMemset,
  kByMemsetAsync,
  kByDriverCopy,
  kByDriverMemset,
  kByCopy2D,
  kByCopy3D,
  kByMemset2D,
  kByDriverCopyAsync,
  kByDriverMemsetAsync,
  kByInnerCopy,
  kByPinnedCopy,
  kByThreadCopy,
  kByThreadMemset,
  kByDriverDeviceCopy,
  kByDriverDeviceCopyAsync,
  kByUnifiedCopy,
  kByUnifiedCopyAsync,
  kByPeerCopy,
  kByCopy2DAsync,
  kByCopy3DAsync,
  kByMemset2DAsync,
  kByMemset3D,
  kByMemset16,
  kByMemset16Async,
  kByMemset32,
  kByMemset32Async,
  kWays
};
constexpr const char* kWayNames[] = {"a kernel",
                                     "cudaMemcpy",
                                     "cudaMemcpyAsync",
                                     "cudaMemcpy D2D",
                                     "cudaMemcpyAsync D2D",
                                     "cudaMemset",
                                     "cudaMemsetAsync",
                                     "cuMemcpyHtoD",
                                     "cuMemsetD8",
                                     "cudaMemcpy2D",
                                     "cudaMemcpy3D",
                                     "cudaMemset2D",
                                     "cuMemcpyHtoDAsync",
                                     "cuMemsetD8Async",
                                     "cudaMemcpy of another part",
                                     "a copy from pinned memory",
                                     "a copy in the thread's stream",
                                     "a memset in the thread's stream",
                                     "cuMemcpyDtoD",
                                     "cuMemcpyDtoDAsync",
                                     "cuMemcpy",
                                     "cuMemcpyAsync",
                                     "cudaMemcpyPeer",
                                     "cudaMemcpy2DAsync",
                                     "cudaMemcpy3DAsync",
                                     "cudaMemset2DAsync",
                                     "cudaMemset3D",
                                     "cuMemsetD16",
                                     "cuMemsetD16Async",
                                     "cuMemsetD32",
                                     "cuMemsetD32Async"};
constexpr size_t kPartStep = 4096, kPartAt = 5, kPartBytes = 1023;
// A part as a rectangle: rows of bytes, in two pieces side by side.
constexpr size_t kRows = 3, kRow = kPartBytes / kRows, kLeft = 100;
constexpr unsigned char kPoisonByte = 0xEE, kGuardByte = 0xA5;
static_assert(kWays * kPartStep <= kEveryWay);

// After how many bytes the values of a way are repeated; 0 if they are not.
__host__ __device__ size_t period_of(int way) {
  if (way >= kByMemset32) return 4;
  if (way >= kByMemset16) return 2;
  const bool one = way == kByMemset || way == kByMemsetAsync ||
                   way == kByDriverMemset || way == kByMemset2D ||
                   way == kByDriverMemsetAsync || way == kByThreadMemset ||
                   way == kByMemset2DAsync || way == kByMemset3D;
  return one ? 1 : 0;
}

__host__ __device__ unsigned char part_byte(int way, size_t i, unsigned key) {
  if (way == kByInnerCopy) way = kByDeviceCopy;
  const size_t period = period_of(way);
  if (period > 0) i = (kPartAt + i) % period;
  return static_cast<unsigned char>(1 + (way * 37 + i * 7 + key) % 200);
}

__global__ void write_part(unsigned char* to, int way, unsigned key) {
  for (size_t i = threadIdx.x; i < kPartBytes; i += blockDim.x)
    to[i] = part_byte(way, i, key);
}

unsigned char* part_of(const Words& memory, int way) {
  return reinterpret_cast<unsigned char*>(memory.data) + way * kPartStep +
         kPartAt;
}

// Rows of memory as a box for the runtime's 3D copies; each row is a layer.
cudaMemcpy3DParms box_of(void* to, const void* from, size_t pitch, size_t width,
                         size_t rows, cudaMemcpyKind kind) {
  cudaMemcpy3DParms box{};
  box.dstPtr = make_cudaPitchedPtr(to, pitch, width, 1);
  box.srcPtr = make_cudaPitchedPtr(const_cast<void*>(from), pitch, width, 1);
  box.extent = make_cudaExtent(width, 1, rows);
  box.kind = kind;
  return box;
}

std::vector<unsigned char> part_bytes(int way, unsigned key) {
  std::vector<unsigned char> bytes(kPartBytes);
  for (size_t i = 0; i < kPartBytes; ++i) bytes[i] = part_byte(way, i, key);
  return bytes;
}

void write_in_every_way(const Words& memory, unsigned key) {
  Latch latch;
  const Stream stream;
  const DeviceBuffer own(kEveryWay);
  const auto to = [&](int way) { return part_of(memory, way); };
  const auto address = [&](int way) {
    return reinterpret_cast<CUdeviceptr>(to(way));
  };
  std::vector<std::vector<unsigned char>> bytes;
  for (int way = 0; way < kWays; ++way) bytes.push_back(part_bytes(way, key));
  const PinnedBuffer pinned(kPartBytes);
  std::memcpy(pinned.data, bytes[kByPinnedCopy].data(), kPartBytes);
  for (const int way : {kByDeviceCopy, kByDeviceCopyAsync, kByThreadCopy})
    CALL(cudaMemcpy(part_of(own, way), bytes[way].data(), kPartBytes,
                    cudaMemcpyHostToDevice));
  CALL(cudaDeviceSynchronize());  // small copies may return early
  const auto write_by_kernel = [&](int way, cudaStream_t queue) {
    note_call("write_part<<<>>>");
    write_part<<<1, 256, 0, queue>>>(to(way), kByKernel, key);
    CALL(cudaGetLastError());
  };
  const auto in_two_pieces = [](auto write) {
    write(0, kLeft);
    write(kLeft, kRow - kLeft);
  };
  write_by_kernel(kByKernel, nullptr);
  CALL(cudaMemcpyAsync(to(kByCopyAsync), bytes[kByCopyAsync].data(), kPartBytes,
                       cudaMemcpyHostToDevice, stream));
  CALL(cudaMemcpyAsync(to(kByDeviceCopyAsync), part_of(own, kByDeviceCopyAsync),
                       kPartBytes, cudaMemcpyDeviceToDevice, stream));
  CALL(DRIVER(cuMemcpyHtoDAsync)(address(kByDriverCopyAsync),
                                 bytes[kByDriverCopyAsync].data(), kPartBytes,
                                 stream));
  CALL(DRIVER(cuMemsetD8Async)(address(kByDriverMemsetAsync),
                               bytes[kByDriverMemsetAsync][0], kPartBytes,
                               stream));
  CALL(cudaMemcpyAsync(to(kByPinnedCopy), pinned.data, kPartBytes,
                       cudaMemcpyHostToDevice, stream));
  CALL(cudaMemcpyAsync(to(kByThreadCopy), part_of(own, kByThreadCopy),
                       kPartBytes, cudaMemcpyDeviceToDevice,
                       cudaStreamPerThread));
  CALL(cudaMemsetAsync(to(kByThreadMemset), bytes[kByThreadMemset][0],
                       kPartBytes, cudaStreamPerThread));
  // Later work of a stream overwrites the result of earlier work.
  latch.hold(stream);
  write_by_kernel(kByMemsetAsync, stream);
  CALL(cudaMemsetAsync(to(kByMemsetAsync), bytes[kByMemsetAsync][0], kPartBytes,
                       stream));
  CALL(cudaMemcpy(to(kByCopy), bytes[kByCopy].data(), kPartBytes,
                  cudaMemcpyHostToDevice));
  CALL(cudaMemcpy(to(kByDeviceCopy), part_of(own, kByDeviceCopy), kPartBytes,
                  cudaMemcpyDeviceToDevice));
  CALL(cudaMemcpy(to(kByInnerCopy), to(kByDeviceCopy), kPartBytes,
                  cudaMemcpyDeviceToDevice));
  CALL(cudaMemset(to(kByMemset), bytes[kByMemset][0], kPartBytes));
  CALL(DRIVER(cuMemcpyHtoD)(address(kByDriverCopy), bytes[kByDriverCopy].data(),
                            kPartBytes));
  CALL(DRIVER(cuMemsetD8)(address(kByDriverMemset), bytes[kByDriverMemset][0],
                          kPartBytes));
  in_two_pieces([&](size_t at, size_t width) {
    CALL(cudaMemcpy2D(to(kByCopy2D) + at, kRow, bytes[kByCopy2D].data() + at,
                      kRow, width, kRows, cudaMemcpyHostToDevice));
    const auto box = box_of(to(kByCopy3D) + at, bytes[kByCopy3D].data() + at,
                            kRow, width, kRows, cudaMemcpyHostToDevice);
    CALL(cudaMemcpy3D(&box));
    CALL(cudaMemset2D(to(kByMemset2D) + at, kRow, bytes[kByMemset2D][0], width,
                      kRows));
  });
  latch.release();
  CALL(cudaStreamSynchronize(stream));
  CALL(cudaDeviceSynchronize());
}

// The ways that few programs use.
void write_in_other_ways(const Words& memory, unsigned key) {
  const Stream stream;
  const DeviceBuffer own(kEveryWay);
  const auto to = [&](int way) { return part_of(memory, way); };
  const auto from = [&](int way) { return part_of(own, way); };
  std::vector<std::vector<unsigned char>> bytes;
  for (int way = 0; way < kWays; ++way) {
    bytes.push_back(part_bytes(way, key));
    CALL(cudaMemcpy(from(way), bytes[way].data(), kPartBytes,
                    cudaMemcpyHostToDevice));
  }
  CALL(cudaDeviceSynchronize());  // small copies may return early
  CALL(DRIVER(cuMemcpyDtoD)(address_of(to(kByDriverDeviceCopy)),
                            address_of(from(kByDriverDeviceCopy)), kPartBytes));
  CALL(DRIVER(cuMemcpyDtoDAsync)(address_of(to(kByDriverDeviceCopyAsync)),
                                 address_of(from(kByDriverDeviceCopyAsync)),
                                 kPartBytes, stream));
  CALL(DRIVER(cuMemcpy)(address_of(to(kByUnifiedCopy)),
                        address_of(from(kByUnifiedCopy)), kPartBytes));
  CALL(DRIVER(cuMemcpyAsync)(address_of(to(kByUnifiedCopyAsync)),
                             address_of(from(kByUnifiedCopyAsync)), kPartBytes,
                             stream));
  int device = 0;
  CALL(cudaGetDevice(&device));
  CALL(cudaMemcpyPeer(to(kByPeerCopy), device, from(kByPeerCopy), device,
                      kPartBytes));
  const auto layers = [](size_t width) {
    return make_cudaExtent(width, 1, kRows);
  };
  for (const auto& [at, width] :
       {std::pair{size_t{0}, kLeft}, std::pair{kLeft, kRow - kLeft}}) {
    CALL(cudaMemcpy2DAsync(to(kByCopy2DAsync) + at, kRow,
                           bytes[kByCopy2DAsync].data() + at, kRow, width,
                           kRows, cudaMemcpyHostToDevice, stream));
    const auto box =
        box_of(to(kByCopy3DAsync) + at, bytes[kByCopy3DAsync].data() + at, kRow,
               width, kRows, cudaMemcpyHostToDevice);
    CALL(cudaMemcpy3DAsync(&box, stream));
    CALL(cudaMemset2DAsync(to(kByMemset2DAsync) + at, kRow,
                           bytes[kByMemset2DAsync][0], width, kRows, stream));
    CALL(cudaMemset3D(make_cudaPitchedPtr(to(kByMemset3D) + at, kRow, width, 1),
                      bytes[kByMemset3D][0], layers(width)));
  }
  // Wider values need aligned addresses. The bytes before the first aligned
  // address are copied.
  const auto set = [&](int way, auto value, auto set_all) {
    const size_t before = sizeof value - kPartAt % sizeof value;
    CALL(cudaMemcpy(to(way), bytes[way].data(), before, cudaMemcpyDefault));
    std::memcpy(&value, bytes[way].data() + before, sizeof value);
    CALL(set_all(address_of(to(way) + before), value,
                 (kPartBytes - before) / sizeof value));
  };
  constexpr uint16_t kShort = 0;
  constexpr uint32_t kWord = 0;
  set(kByMemset16, kShort, DRIVER(cuMemsetD16));
  set(kByMemset32, kWord, DRIVER(cuMemsetD32));
  set(kByMemset16Async, kShort, [&](auto at, auto value, size_t count) {
    return DRIVER(cuMemsetD16Async)(at, value, count, stream);
  });
  set(kByMemset32Async, kWord, [&](auto at, auto value, size_t count) {
    return DRIVER(cuMemsetD32Async)(at, value, count, stream);
  });
  CALL(cudaStreamSynchronize(stream));
  CALL(cudaDeviceSynchronize());
}

// Does `seen` have the expected bytes? A failure names the first byte that
// differs.
testing::AssertionResult whole(const char* path,
                               const std::vector<unsigned char>& seen,
                               unsigned key) {
  for (size_t i = 0; i < kEveryWay; ++i) {
    const size_t way = i / kPartStep, at = i % kPartStep - kPartAt;
    const bool in_part = way < kWays && at < kPartBytes;
    const unsigned char expected =
        in_part ? part_byte(static_cast<int>(way), at, key) : kPoisonByte;
    if (seen[i] == expected) continue;
    expected_but_saw(hexadecimal(expected), hexadecimal(seen[i]));
    return testing::AssertionFailure()
           << path << " finds another value in byte " << i << ", "
           << (in_part ? "of the part written by "
                       : "beside the part written by ")
           << kWayNames[std::min<size_t>(way, kWays - 1)];
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult reads_in_every_way(const Words& memory, unsigned key) {
  const Stream stream;
  const DeviceBuffer own(kEveryWay);
  std::vector<unsigned char> seen(kEveryWay);
  testing::AssertionResult found = testing::AssertionSuccess();
  const auto judge = [&](const char* path) {
    if (found) found = whole(path, seen, key);
    std::fill(seen.begin(), seen.end(), kGuardByte);
  };
  CALL(cudaMemcpy(seen.data(), memory.data, kEveryWay, cudaMemcpyDefault));
  judge("cudaMemcpy");
  CALL(cudaMemcpyAsync(seen.data(), memory.data, kEveryWay,
                       cudaMemcpyDeviceToHost, stream));
  CALL(cudaStreamSynchronize(stream));
  judge("cudaMemcpyAsync");
  CALL(DRIVER(cuMemcpyDtoH)(
      seen.data(), reinterpret_cast<CUdeviceptr>(memory.data), kEveryWay));
  judge("cuMemcpyDtoH");
  CALL(DRIVER(cuMemcpyDtoHAsync)(seen.data(),
                                 reinterpret_cast<CUdeviceptr>(memory.data),
                                 kEveryWay, stream));
  CALL(cudaStreamSynchronize(stream));
  judge("cuMemcpyDtoHAsync");
  const PinnedBuffer pinned(kEveryWay);
  std::memset(pinned.data, kGuardByte, kEveryWay);
  CALL(cudaMemcpyAsync(pinned.data, memory.data, kEveryWay,
                       cudaMemcpyDeviceToHost, stream));
  CALL(cudaStreamSynchronize(stream));
  std::memcpy(seen.data(), pinned.data, kEveryWay);
  judge("cudaMemcpyAsync to pinned memory");
  CALL(cudaMemcpyAsync(seen.data(), memory.data, kEveryWay,
                       cudaMemcpyDeviceToHost, cudaStreamPerThread));
  CALL(cudaStreamSynchronize(cudaStreamPerThread));
  judge("cudaMemcpyAsync in the thread's stream");
  CALL(cudaMemcpy2D(seen.data(), kPartStep, memory.data, kPartStep, kPartStep,
                    kEveryWay / kPartStep, cudaMemcpyDeviceToHost));
  judge("cudaMemcpy2D");
  const auto box = box_of(seen.data(), memory.data, kPartStep, kPartStep,
                          kEveryWay / kPartStep, cudaMemcpyDeviceToHost);
  CALL(cudaMemcpy3D(&box));
  judge("cudaMemcpy3D");
  CALL(cudaMemcpyAsync(own.data, memory.data, kEveryWay,
                       cudaMemcpyDeviceToDevice, stream));
  CALL(cudaStreamSynchronize(stream));
  CALL(cudaMemcpy(seen.data(), own.data, kEveryWay, cudaMemcpyDefault));
  judge("cudaMemcpyAsync to the device");
  const auto judge_own = [&](const char* path) {
    CALL(cudaDeviceSynchronize());
    CALL(cudaMemcpy(seen.data(), own.data, kEveryWay, cudaMemcpyDefault));
    judge(path);
    own.poison();
  };
  own.poison();
  CALL(DRIVER(cuMemcpyDtoD)(address_of(own.data), address_of(memory.data),
                            kEveryWay));
  judge_own("cuMemcpyDtoD");
  CALL(DRIVER(cuMemcpyAsync)(address_of(own.data), address_of(memory.data),
                             kEveryWay, stream));
  judge_own("cuMemcpyAsync");
  int device = 0;
  CALL(cudaGetDevice(&device));
  CALL(cudaMemcpyPeer(own.data, device, memory.data, device, kEveryWay));
  judge_own("cudaMemcpyPeer");
  CALL(cudaMemcpy2DAsync(seen.data(), kPartStep, memory.data, kPartStep,
                         kPartStep, kEveryWay / kPartStep,
                         cudaMemcpyDeviceToHost, stream));
  CALL(cudaStreamSynchronize(stream));
  judge("cudaMemcpy2DAsync");
  for (int way = 0; way < kWays && found; ++way) {
    CALL(cudaMemcpy(seen.data() + kPartAt, part_of(memory, way), kPartBytes,
                    cudaMemcpyDeviceToHost));
    std::vector<unsigned char> expected(kEveryWay, kGuardByte);
    const auto part = part_bytes(way, key);
    std::copy(part.begin(), part.end(), expected.begin() + kPartAt);
    if (seen != expected)
      found = testing::AssertionFailure()
              << "cudaMemcpy of a part does not give exactly what "
              << kWayNames[way] << " wrote";
  }
  return found;
}

__global__ void read_byte(const unsigned char* from, unsigned char* to) {
  *to = *from;
}

unsigned char byte_by_kernel(const unsigned char* at) {
  const DeviceBuffer result(sizeof(uint32_t));
  auto* const found = reinterpret_cast<unsigned char*>(result.data);
  unsigned char byte = 0;
  note_call("read_byte<<<>>>");
  read_byte<<<1, 1>>>(at, found);
  CALL(cudaGetLastError());
  CALL(cudaMemcpy(&byte, found, 1, cudaMemcpyDeviceToHost));
  return byte;
}

// Judges that copies and memsets that end where the memory ends write its last
// byte.
void expect_last_byte_is_written(const Words& memory) {
  auto* const end =
      reinterpret_cast<unsigned char*>(memory.data + memory.count);
  unsigned char* const to = end - kPartBytes;
  const auto address = reinterpret_cast<CUdeviceptr>(to);
  std::vector<unsigned char> bytes(kPartBytes);
  unsigned char wanted = 0;
  const auto expect_written = [&](const char* way, auto write) {
    ++wanted;
    std::fill(bytes.begin(), bytes.end(), wanted);
    CALL(write());
    CALL(cudaDeviceSynchronize());
    EXPECT_EQ(byte_by_kernel(end - 1), wanted) << "the last byte, by " << way;
    EXPECT_EQ(byte_by_kernel(to), wanted) << "the first byte, by " << way;
  };
  expect_written("cudaMemcpy", [&] {
    return cudaMemcpy(to, bytes.data(), kPartBytes, cudaMemcpyHostToDevice);
  });
  expect_written("cudaMemcpyAsync", [&] {
    return cudaMemcpyAsync(to, bytes.data(), kPartBytes, cudaMemcpyHostToDevice,
                           nullptr);
  });
  expect_written("cuMemcpyHtoD", [&] {
    return DRIVER(cuMemcpyHtoD)(address, bytes.data(), kPartBytes);
  });
  expect_written("cudaMemset",
                 [&] { return cudaMemset(to, wanted, kPartBytes); });
  expect_written("cudaMemsetAsync", [&] {
    return cudaMemsetAsync(to, wanted, kPartBytes, nullptr);
  });
  expect_written("cuMemsetD8", [&] {
    return DRIVER(cuMemsetD8)(address, wanted, kPartBytes);
  });
  unsigned char last = 0;
  CALL(cudaMemcpy(&last, end - 1, 1, cudaMemcpyDeviceToHost));
  EXPECT_EQ(last, wanted) << "the last byte, read by cudaMemcpy";
}

// Judges an asynchronous memset of the whole memory, an asynchronous copy from
// its first to its second half, and a copy that reads only the second half.
void expect_halves_are_copied(const Words& memory) {
  constexpr unsigned char kSet = 0x3C;
  const size_t half = memory.bytes() / 2;
  const Words first(memory.data, half), second(memory.data + first.count, half);
  const DeviceBuffer own(half);
  const Stream stream;
  const Pattern wanted = pattern("first half");
  const auto* const bytes = reinterpret_cast<unsigned char*>(memory.data);
  CALL(cudaMemsetAsync(memory.data, kSet, memory.bytes(), stream));
  CALL(cudaStreamSynchronize(stream));
  for (const size_t at : {size_t{0}, half, memory.bytes() - 1})
    EXPECT_EQ(byte_by_kernel(bytes + at), kSet) << "set byte " << at;
  first.fill(wanted);
  CALL(cudaMemcpyAsync(second.data, first.data, half, cudaMemcpyDeviceToDevice,
                       stream));
  CALL(cudaStreamSynchronize(stream));
  EXPECT_TRUE(kernel_reads(second, wanted)) << "copied inside the memory";
  first.poison();
  CALL(cudaMemcpyAsync(own.data, second.data, half, cudaMemcpyDeviceToDevice,
                       stream));
  CALL(cudaStreamSynchronize(stream));
  EXPECT_TRUE(kernel_reads(own, wanted)) << "copied from inside the memory";
}

// Judges that both APIs report this as memory of a GPU and not as managed, and
// that the reported address range contains it.
void expect_told_as_device_memory(const Words& memory) {
  for (const size_t at : {size_t{0}, memory.count - 1}) {
    Sentinel<cudaPointerAttributes> told;
    EXPECT_SUCCESS(cudaPointerGetAttributes(told.out(), memory.data + at));
    EXPECT_EQ(told.result().type, cudaMemoryTypeDevice) << "word " << at;
    const auto address = reinterpret_cast<CUdeviceptr>(memory.data + at);
    Sentinel<unsigned> type;
    EXPECT_SUCCESS(DRIVER(cuPointerGetAttribute)(
        type.out(), CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
    EXPECT_EQ(type.result(), static_cast<unsigned>(CU_MEMORYTYPE_DEVICE))
        << "word " << at;
    unsigned long long managed = 0;  // room for a boolean of any width
    EXPECT_SUCCESS(DRIVER(cuPointerGetAttribute)(
        &managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
    EXPECT_EQ(managed, 0u) << "managed, word " << at;
    Sentinel<CUdeviceptr> begin;
    Sentinel<size_t> bytes;
    EXPECT_SUCCESS(
        DRIVER(cuMemGetAddressRange)(begin.out(), bytes.out(), address));
    const auto first = reinterpret_cast<CUdeviceptr>(memory.data);
    EXPECT_LE(begin.result(), first) << "the range of word " << at;
    EXPECT_GE(begin.result() + bytes.result(), first + memory.bytes())
        << "the range of word " << at;
  }
}

constexpr unsigned kBorrowers = 11, kLenders = 101;
constexpr auto kHeld = 50ms;  // a copy is called meanwhile

}  // namespace

void lend_in_every_way(Role& me, const Words& memory) {
  CALL(cudaMemset(memory.data, kPoisonByte, kEveryWay));
  CALL(cudaDeviceSynchronize());
  me.signal("to be written in every way");
  me.wait("written in every way");
  EXPECT_TRUE(reads_in_every_way(memory, kBorrowers));
  CALL(cudaMemset(memory.data, kPoisonByte, kEveryWay));
  CALL(cudaDeviceSynchronize());
  write_in_every_way(memory, kLenders);
  write_in_other_ways(memory, kLenders);
  me.signal("to be read in every way");
  me.wait("read in every way");
}

void borrow_in_every_way(Role& me, const Words& memory) {
  me.wait("to be written in every way");
  write_in_every_way(memory, kBorrowers);
  write_in_other_ways(memory, kBorrowers);
  EXPECT_TRUE(reads_in_every_way(memory, kBorrowers));
  me.signal("written in every way");
  me.wait("to be read in every way");
  EXPECT_TRUE(reads_in_every_way(memory, kLenders));
  expect_last_byte_is_written(memory);
  expect_halves_are_copied(memory);
  expect_told_as_device_memory(memory);
  me.signal("read in every way");
}

void expect_streams_reach(const Words& memory) {
  const size_t bytes = memory.bytes();
  const DeviceBuffer own(bytes);
  const Stream urgent(Stream::Kind::kUrgent), blocking(Stream::Kind::kBlocking);
  using Named = std::pair<const char*, cudaStream_t>;
  for (const auto& [name, stream] :
       {Named{"an urgent stream", urgent}, Named{"a blocking stream", blocking},
        Named{"cudaStreamLegacy", cudaStreamLegacy}}) {
    SCOPED_TRACE(name);
    const auto copy = [bytes, stream = stream](const Words& to,
                                               const Words& from) {
      to.poison();
      CALL(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToDevice,
                           stream));
      CALL(cudaStreamSynchronize(stream));
    };
    own.fill(pattern(name));
    copy(memory, own);
    EXPECT_TRUE(kernel_reads(memory, pattern(name))) << "copied into it";
    copy(own, memory);
    EXPECT_TRUE(kernel_reads(own, pattern(name))) << "copied out of it";
    CALL(cudaMemsetAsync(memory.data, 0x3C, bytes, stream));
    CALL(cudaStreamSynchronize(stream));
    std::vector<unsigned char> seen(bytes, 0);
    CALL(cudaMemcpy(seen.data(), memory.data, bytes, cudaMemcpyDefault));
    EXPECT_TRUE(seen == std::vector<unsigned char>(bytes, 0x3C)) << "set";
  }
}

testing::AssertionResult copy_waits_its_turn(const Words& memory) {
  const Pattern queued = pattern("queued");
  std::vector<uint32_t> seen(memory.count, 0);
  Latch latch;
  latch.hold(nullptr);
  memory.queue_fill(queued, nullptr);
  std::thread releases([&] {
    std::this_thread::sleep_for(kHeld);
    latch.release();
  });
  const cudaError_t code = NOTED(cudaMemcpy(
      seen.data(), memory.data, memory.bytes(), cudaMemcpyDeviceToHost));
  releases.join();
  CALL(code);
  for (size_t i = 0; i < seen.size(); ++i)
    if (seen[i] != queued.at(i))
      return testing::AssertionFailure()
             << "the copy has not waited for the kernel: word " << i;
  return testing::AssertionSuccess();
}

}  // namespace ipclab
