// SPDX-License-Identifier: Apache-2.0
#include <deque>

#include "harness/scenario/vmm.h"

namespace ipclab {

CUmemAllocationProp chunk_of(int device, CUmemAllocationHandleType types) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.requestedHandleTypes = types;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return wanted;
}

size_t granule(const CUmemAllocationProp& wanted) {
  Sentinel<size_t> bytes;
  CALL(cudaFree(nullptr));  // the driver API needs a context
  CALL(DRIVER(cuMemGetAllocationGranularity)(bytes.out(), &wanted,
                                             CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  return bytes.result();
}

Chunk::~Chunk() {
  if (handle_ != 0) DRIVER(cuMemRelease)(handle_);
}

Chunk Chunk::create(size_t bytes, const CUmemAllocationProp& wanted) {
  Sentinel<CUmemGenericAllocationHandle> handle;
  CALL(cudaFree(nullptr));
  CALL(until_fabric_is_ready(
      [&] { return DRIVER(cuMemCreate)(handle.out(), bytes, &wanted, 0); }));
  return Chunk(handle.result());
}

Chunk Chunk::import(const Descriptor& descriptor) {
  Sentinel<CUmemGenericAllocationHandle> handle;
  CALL(cudaFree(nullptr));
  CALL(DRIVER(cuMemImportFromShareableHandle)(
      handle.out(), by_value(descriptor.get()),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  return Chunk(handle.result());
}

Chunk Chunk::import(const CUmemFabricHandle& handle) {
  Chunk chunk;
  CALL(cudaFree(nullptr));
  CUmemFabricHandle copy = handle;
  CALL(until_fabric_is_ready([&] {
    return DRIVER(cuMemImportFromShareableHandle)(&chunk.handle_, &copy,
                                                  CU_MEM_HANDLE_TYPE_FABRIC);
  }));
  return chunk;
}

Descriptor Chunk::descriptor() const {
  Sentinel<int> descriptor;
  CALL(DRIVER(cuMemExportToShareableHandle)(
      descriptor.out(), handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  return Descriptor(descriptor.result());
}

CUmemFabricHandle Chunk::fabric_handle() const {
  Sentinel<CUmemFabricHandle> handle;
  CALL(until_fabric_is_ready([&] {
    return DRIVER(cuMemExportToShareableHandle)(handle.out(), handle_,
                                                CU_MEM_HANDLE_TYPE_FABRIC, 0);
  }));
  return handle.result();
}

CUmemAllocationProp Chunk::properties() const {
  Sentinel<CUmemAllocationProp> found;
  CALL(DRIVER(cuMemGetAllocationPropertiesFromHandle)(found.out(), handle_));
  return found.result();
}

void Chunk::release() {
  CALL(DRIVER(cuMemRelease)(handle_));
  handle_ = 0;
}

Reservation::Reservation(size_t bytes) : bytes_(bytes) {
  Sentinel<CUdeviceptr> address;
  CALL(cudaFree(nullptr));
  CALL(DRIVER(cuMemAddressReserve)(address.out(), bytes, 0, 0, 0));
  address_ = address.result();
}

Reservation::~Reservation() {
  if (address_ != 0) DRIVER(cuMemAddressFree)(address_, bytes_);
}

void Reservation::map(size_t offset, size_t bytes, const Chunk& chunk) const {
  CALL(DRIVER(cuMemMap)(at(offset), bytes, 0, chunk.handle(), 0));
}

void Reservation::unmap(size_t offset, size_t bytes) const {
  CALL(DRIVER(cuMemUnmap)(at(offset), bytes));
}

void Reservation::free() {
  CALL(DRIVER(cuMemAddressFree)(address_, bytes_));
  address_ = 0;
}

Mapping::Mapping(const Chunk& chunk, size_t bytes, CUmemAccess_flags access,
                 int device) {
  Sentinel<CUdeviceptr> reserved;
  CALL(DRIVER(cuMemAddressReserve)(reserved.out(), bytes, 0, 0, 0));
  const CUdeviceptr address = reserved.result();
  CALL(DRIVER(cuMemMap)(address, bytes, 0, chunk.handle(), 0));
  static_cast<Words&>(*this) = words_at(address, bytes);
  const CUmemAccessDesc wanted = access_for(device, access);
  CALL(DRIVER(cuMemSetAccess)(address, bytes, &wanted, 1));
}

Mapping::~Mapping() {
  if (data == nullptr) return;
  DRIVER(cuMemUnmap)(address(), bytes());
  DRIVER(cuMemAddressFree)(address(), bytes());
}

void Mapping::unmap() {
  CALL(DRIVER(cuMemUnmap)(address(), bytes()));
  CALL(DRIVER(cuMemAddressFree)(address(), bytes()));
  data = nullptr;
}

namespace {

__global__ void stamp(uint32_t* data, size_t step, size_t count) {
  const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) data[i * step] = ~data[i * step];
}

// Changes one word of each granule of `bytes`, because physical memory is
// allocated in whole granules.
void stamp_granules(const Words& words, size_t bytes) {
  const size_t count = words.bytes() / bytes;
  note_call("stamp<<<>>>");
  stamp<<<static_cast<unsigned>((count + 255) / 256), 256>>>(
      words.data, bytes / sizeof(uint32_t), count);
  CALL(cudaGetLastError());
  CALL(cudaDeviceSynchronize());
}

}  // namespace

void take_all_free_memory() {
  const CUmemAllocationProp wanted = chunk_of(0, CU_MEM_HANDLE_TYPE_NONE);
  const size_t least = granule(wanted);
  std::deque<Mapping> taken;
  taken.emplace_back(Chunk::create(least, wanted), least);
  stamp_granules(taken.back(), least);  // loads the kernel while memory is free
  // Takes the memory in pieces, which become smaller as less memory is free.
  for (size_t bytes = free_memory() / least * least; bytes >= least;) {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult code =
        NOTED(DRIVER(cuMemCreate)(&handle, bytes, &wanted, 0));
    if (code == CUDA_ERROR_OUT_OF_MEMORY) {
      bytes = bytes / 2 / least * least;
      continue;
    }
    CALL(code);
    taken.emplace_back(Chunk(handle), bytes);
    stamp_granules(taken.back(), least);
  }
}

CUmemAccessDesc access_for(int device, CUmemAccess_flags flags) {
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  access.flags = flags;
  return access;
}

unsigned long long access_at(CUdeviceptr address, int device) {
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
  Sentinel<unsigned long long> flags;
  CALL(DRIVER(cuMemGetAccess)(flags.out(), &location, address));
  return flags.result();
}

std::function<void(Role&)> lends_chunk(Pattern written, int importers) {
  return [=](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(written);
    for (int i = 0; i < importers; ++i)
      me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("done", importers);
  };
}

}  // namespace ipclab
