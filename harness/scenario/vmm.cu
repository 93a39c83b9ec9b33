// SPDX-License-Identifier: Apache-2.0
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
  size_t bytes = 0;
  CALL(cudaFree(nullptr));  // the driver API wants a context
  CALL(DRIVER(cuMemGetAllocationGranularity)(&bytes, &wanted,
                                             CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  return bytes;
}

Chunk::~Chunk() {
  if (handle_ != 0) DRIVER(cuMemRelease)(handle_);
}

Chunk Chunk::create(size_t bytes, const CUmemAllocationProp& wanted) {
  Chunk chunk;
  CALL(cudaFree(nullptr));
  CALL(DRIVER(cuMemCreate)(&chunk.handle_, bytes, &wanted, 0));
  return chunk;
}

Chunk Chunk::import(const Descriptor& descriptor) {
  Chunk chunk;
  CALL(cudaFree(nullptr));
  CALL(DRIVER(cuMemImportFromShareableHandle)(
      &chunk.handle_, by_value(descriptor.get()),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  return chunk;
}

Chunk Chunk::import(const CUmemFabricHandle& handle) {
  Chunk chunk;
  CALL(cudaFree(nullptr));
  CUmemFabricHandle copy = handle;
  CALL(DRIVER(cuMemImportFromShareableHandle)(&chunk.handle_, &copy,
                                              CU_MEM_HANDLE_TYPE_FABRIC));
  return chunk;
}

Descriptor Chunk::descriptor() const {
  int descriptor = -1;
  CALL(DRIVER(cuMemExportToShareableHandle)(
      &descriptor, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  return Descriptor(descriptor);
}

CUmemFabricHandle Chunk::fabric_handle() const {
  CUmemFabricHandle handle;
  CALL(DRIVER(cuMemExportToShareableHandle)(&handle, handle_,
                                            CU_MEM_HANDLE_TYPE_FABRIC, 0));
  return handle;
}

CUmemAllocationProp Chunk::properties() const {
  CUmemAllocationProp found{};
  CALL(DRIVER(cuMemGetAllocationPropertiesFromHandle)(&found, handle_));
  return found;
}

void Chunk::release() {
  CALL(DRIVER(cuMemRelease)(handle_));
  handle_ = 0;
}

Reservation::Reservation(size_t bytes) : bytes_(bytes) {
  CALL(cudaFree(nullptr));
  CALL(DRIVER(cuMemAddressReserve)(&address_, bytes, 0, 0, 0));
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
  CUdeviceptr address = 0;
  CALL(DRIVER(cuMemAddressReserve)(&address, bytes, 0, 0, 0));
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

CUmemAccessDesc access_for(int device, CUmemAccess_flags flags) {
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  access.flags = flags;
  return access;
}

unsigned long long access_at(CUdeviceptr address, int device) {
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
  unsigned long long flags = ~0ull;
  CALL(DRIVER(cuMemGetAccess)(&flags, &location, address));
  return flags;
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
