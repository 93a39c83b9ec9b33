// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "harness/scenario/pool.h"

namespace ipclab {
namespace {

bool is_int(cudaMemPoolAttr which) {
  return which == cudaMemPoolReuseFollowEventDependencies ||
         which == cudaMemPoolReuseAllowOpportunistic ||
         which == cudaMemPoolReuseAllowInternalDependencies;
}

__global__ void count_wrong(const uint32_t* data, size_t count,
                            Pattern expected, unsigned* wrong) {
  const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count && data[i] != expected.at(i)) atomicAdd(wrong, 1u);
}

}  // namespace

cudaMemPoolProps pool_properties(cudaMemAllocationHandleType types,
                                 size_t max_size, int device) {
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.handleTypes = types;
  wanted.location = {cudaMemLocationTypeDevice, device};
  ::max_size(wanted) = max_size;
  return wanted;
}

Pool::Pool(const cudaMemPoolProps& wanted) {
  Sentinel<cudaMemPool_t> pool;
  CALL(cudaMemPoolCreate(pool.out(), &wanted));
  pool_ = pool.result();
}

Pool::Pool(const Descriptor& exported) {
  // The pointer argument contains the descriptor itself.
  void* const handle =
      reinterpret_cast<void*>(static_cast<intptr_t>(exported.get()));
  Sentinel<cudaMemPool_t> pool;
  CALL(cudaMemPoolImportFromShareableHandle(
      pool.out(), handle, cudaMemHandleTypePosixFileDescriptor, 0));
  pool_ = pool.result();
}

Pool::~Pool() {
  if (pool_ == nullptr) return;
  // The check of the next call must not find this refusal.
  if (cudaMemPoolDestroy(pool_) != cudaSuccess) cudaGetLastError();
}

Descriptor Pool::exported() const {
  Sentinel<int> descriptor;
  CALL(cudaMemPoolExportToShareableHandle(
      descriptor.out(), pool_, cudaMemHandleTypePosixFileDescriptor, 0));
  return Descriptor(descriptor.result());
}

void Pool::destroy() {
  CALL(cudaMemPoolDestroy(pool_));
  pool_ = nullptr;
}

uint64_t attribute(cudaMemPool_t pool, cudaMemPoolAttr which) {
  Sentinel<int> narrow;
  Sentinel<uint64_t> wide;
  CALL(cudaMemPoolGetAttribute(pool, which,
                               is_int(which) ? static_cast<void*>(narrow.out())
                                             : static_cast<void*>(wide.out())));
  return is_int(which) ? static_cast<uint64_t>(narrow.result()) : wide.result();
}

void set_attribute(cudaMemPool_t pool, cudaMemPoolAttr which, uint64_t value) {
  int narrow = static_cast<int>(value);
  CALL(cudaMemPoolSetAttribute(pool, which,
                               is_int(which) ? static_cast<void*>(&narrow)
                                             : static_cast<void*>(&value)));
}

cudaMemAccessFlags access_of(int device, cudaMemPool_t pool) {
  cudaMemLocation location{cudaMemLocationTypeDevice, device};
  Sentinel<cudaMemAccessFlags> flags;
  CALL(cudaMemPoolGetAccess(flags.out(), pool, &location));
  const cudaMemAccessFlags found = flags.result();
  CUmemLocation same_location{CU_MEM_LOCATION_TYPE_DEVICE, device};
  Sentinel<CUmemAccess_flags> same;
  CALL(DRIVER(cuMemPoolGetAccess)(same.out(), pool, &same_location));
  EXPECT_EQ(static_cast<int>(same.result()), static_cast<int>(found))
      << "cuMemPoolGetAccess";
  return found;
}

cudaError_t give_access(int device, cudaMemPool_t pool,
                        cudaMemAccessFlags flags) {
  cudaMemAccessDesc wanted{};
  wanted.location = {cudaMemLocationTypeDevice, device};
  wanted.flags = flags;
  return cudaMemPoolSetAccess(pool, &wanted, 1);
}

GraphMemory::GraphMemory(size_t bytes) {
  CALL(cudaGraphCreate(&graph_, 0));
  cudaMemAllocNodeParams wanted{};
  wanted.poolProps = pool_properties();
  wanted.bytesize = bytes;
  cudaGraphNode_t node = nullptr;
  CALL(cudaGraphAddMemAllocNode(&node, graph_, nullptr, 0, &wanted));
  CALL(cudaGraphInstantiate(&run_, graph_, 0));
  CALL(cudaGraphLaunch(run_, nullptr));
  CALL(cudaStreamSynchronize(nullptr));
  static_cast<Words&>(*this) = Words(wanted.dptr, bytes);
}

GraphMemory::~GraphMemory() {
  cudaFree(data);
  cudaGraphExecDestroy(run_);
  cudaGraphDestroy(graph_);
}

AsyncBuffer::AsyncBuffer(size_t bytes, cudaStream_t stream) {
  Sentinel<void*> memory;
  CALL(cudaMallocAsync(memory.out(), bytes, stream));
  static_cast<Words&>(*this) = Words(memory.result(), bytes);
}

AsyncBuffer::AsyncBuffer(cudaMemPool_t pool, size_t bytes,
                         cudaStream_t stream) {
  Sentinel<void*> memory;
  CALL(cudaMallocFromPoolAsync(memory.out(), bytes, pool, stream));
  static_cast<Words&>(*this) = Words(memory.result(), bytes);
}

AsyncBuffer::AsyncBuffer(cudaMemPool_t pool, cudaMemPoolPtrExportData data,
                         size_t bytes) {
  Sentinel<void*> memory;
  CALL(cudaMemPoolImportPointer(memory.out(), pool, &data));
  static_cast<Words&>(*this) = Words(memory.result(), bytes);
}

AsyncBuffer::AsyncBuffer(AsyncBuffer&& other) noexcept
    : Words(std::exchange(static_cast<Words&>(other), Words())) {}

AsyncBuffer::~AsyncBuffer() {
  if (data != nullptr) cudaFree(data);
}

cudaMemPoolPtrExportData AsyncBuffer::exported() const {
  Sentinel<cudaMemPoolPtrExportData> exported;
  CALL(cudaMemPoolExportPointer(exported.out(), data));
  return exported.result();
}

void AsyncBuffer::free_async(cudaStream_t stream) {
  CALL(cudaFreeAsync(data, stream));
  data = nullptr;
}

void AsyncBuffer::free() {
  CALL(cudaFree(data));
  data = nullptr;
}

WrongWords::WrongWords() {
  CALL(cudaMemset(counter_.data, 0, counter_.bytes()));
  count_wrong<<<1, 1>>>(counter_.data, 0, Pattern{0}, counter_.data);
  CALL(cudaGetLastError());
  CALL(cudaDeviceSynchronize());
}

void WrongWords::queue_count(const Words& words, Pattern expected,
                             cudaStream_t stream) {
  note_call("count_wrong<<<>>>");
  count_wrong<<<static_cast<unsigned>((words.count + 255) / 256), 256, 0,
                stream>>>(words.data, words.count, expected, counter_.data);
  CALL(cudaGetLastError());
}

unsigned WrongWords::so_far() const {
  unsigned count = ~0u;
  CALL(cudaMemcpy(&count, counter_.data, sizeof count, cudaMemcpyDefault));
  return count;
}

cudaMemPool_t pool_of(const Words& words) {
  Sentinel<CUmemoryPool> pool;
  CALL(DRIVER(cuPointerGetAttribute)(
      pool.out(), CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
      reinterpret_cast<CUdeviceptr>(words.data)));
  return pool.result();
}

std::function<void(Role&)> lends_from_pool(Pattern written, size_t bytes,
                                           int importers) {
  return [=](Role& me) {
    const Pool pool(shareable());
    const Descriptor shared = pool.exported();
    const AsyncBuffer buffer(pool, bytes);
    buffer.fill(written);
    for (int i = 0; i < importers; ++i)
      me.send_descriptor("pool", shared.get());
    me.send("pointer", buffer.exported());
    me.wait("freed", importers);
  };
}

}  // namespace ipclab
