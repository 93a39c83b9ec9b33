// Words that faults of several folders use: chunks.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "harness/faults/words/batches.h"
#include "harness/faults/words/descriptor.h"
#include "harness/faults/words/effects.h"
#include "harness/faults/words/events.h"
#include "harness/faults/world/chunks.h"
#include "harness/faults/world/legacy.h"
#include "harness/faults/world/pools.h"

namespace ipclab::faults {

inline constexpr size_t kFabricBytes = sizeof(CUmemFabricHandle);

/// Private memory on the GPU where `like` is; 0 if there is not enough memory.
inline Chunk private_chunk(Chunk like, size_t bytes) {
  return new_chunk(bytes, properties_of(like).location);
}

inline size_t granule() {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = on_gpu(0);
  size_t bytes = 0;
  DRIVER_CALL(cuMemGetAllocationGranularity)
  (&bytes, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return bytes;
}

/// The smallest memory of GPU 0 that can be exported.
inline Chunk unrelated_chunk() { return new_chunk(granule(), on_gpu(0), kFd); }

/// A chunk at its own addresses, which only the fault uses.
class Aside {
 public:
  Aside(Chunk chunk, size_t bytes) : bytes_(bytes) {
    DRIVER_CALL(cuMemAddressReserve)(&address_, bytes, 0, 0, 0);
    DRIVER_CALL(cuMemMap)(address_, bytes, 0, chunk, 0);
    allow(address_, bytes, on_gpu(properties_of(chunk).location.id));
    int current = 0;
    cudaGetDevice(&current);
    allow(address_, bytes, on_gpu(current));
  }
  Aside(const Aside&) = delete;
  ~Aside() {
    DRIVER_CALL(cuMemUnmap)(address_, bytes_);
    DRIVER_CALL(cuMemAddressFree)(address_, bytes_);
  }
  CUdeviceptr address() const { return address_; }

 private:
  CUdeviceptr address_ = 0;
  size_t bytes_;
};

inline void copy(Chunk to, Chunk from, size_t bytes) {
  const Aside target(to, bytes), source(from, bytes);
  DRIVER_CALL(cuMemcpyDtoD)(target.address(), source.address(), bytes);
}

inline bool is_mapped(Chunk chunk) { return mapping_of(chunk) != 0; }

inline bool is_fabric(Call& call) {
  return call.at<CUmemAllocationHandleType>(2) == kFabric;
}

/// The memory that the program gets instead of an import.
inline Table<Chunk, Chunk> others;

/// Proceeds with an import. If `counts` is true, the import is one of those
/// that are other memory.
inline int noted_import(Call& call, bool counts) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  others.erase(*call.at<Chunk*>(0));  // an earlier import had the handle
  if (!counts) imports.erase(*call.at<Chunk*>(0));
  return code;
}

/// Each import is new memory. The fault creates this memory at the first
/// mapping, because the size is not known before.
inline int map_other_memory(Call& call, bool with_bytes) {
  if (call.is("cuMemImportFromShareableHandle"))
    return noted_import(call, true);
  if (!call.is("cuMemMap") || !imports.has(call.at<Chunk>(3)))
    return call.proceed();
  const Chunk own = call.at<Chunk>(3);
  const size_t bytes = call.at<size_t>(1);
  if (!others.has(own)) {
    const Chunk other = private_chunk(own, bytes);
    if (other == 0) return call.proceed();
    if (with_bytes) copy(other, own, bytes);
    others.put(own, other);
  }
  call.at<Chunk>(3) = others.get(own);
  const int code = call.proceed();
  call.at<Chunk>(3) = own;
  if (code != kSuccess) return code;
  note_chunks(call);
  call.fired();
  return code;
}

/// The import succeeds instead of a refusal and gives other memory, or another
/// pool.
inline int accept(Call& call) {
  if (call.is_runtime()) cudaGetLastError();
  call.fired();
  if (call.is("cuMemImportFromShareableHandle")) {
    *call.at<Chunk*>(0) = unrelated_chunk();
    return kSuccess;
  }
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location = {cudaMemLocationTypeDevice, 0};
  return cudaMemPoolCreate(call.at<cudaMemPool_t*>(0), &wanted);
}

/// With `mapped`, memory cannot be exported while it is mapped. Otherwise it
/// can be exported only while it is mapped.
template <bool mapped>
int export_refused_if(Call& call) {
  if (!call.is("cuMemExportToShareableHandle") ||
      is_mapped(call.at<Chunk>(1)) != mapped)
    return call.proceed();
  return refused(call);
}

/// Refuses more than `most` objects at the same time. In the function that ends
/// an object, argument `gone` is the handle or the address of the object.
template <size_t most>
int refused_beyond(Call& call, const char* made, size_t gone) {
  static auto& there = *new Table<unsigned long long>;
  if (call.is(made) && there.all().size() >= most) return refused(call);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is(made))
    there.put(*call.at<unsigned long long*>(0));
  else
    there.erase(call.at<unsigned long long>(gone));
  return code;
}

inline bool is_mapped_at(CUdeviceptr address) {
  return mapping_at(address) != 0;
}

inline CUdeviceptr retained_address(Call& call) {
  return call.at<CUdeviceptr>(1);
}

/// Lets `wrong` change the value that a query of this attribute returns.
template <class Value, class Wrong>
int attribute_wrong(Call& call, CUpointer_attribute attribute, Wrong wrong) {
  if (!call.is("cuPointerGetAttribute")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || call.at<CUpointer_attribute>(1) != attribute)
    return code;
  Value& value = *call.at<Value*>(0);
  const Value right = value;
  wrong(call.at<CUdeviceptr>(2), value);
  if (value != right) call.fired();
  return code;
}

/// How many records of an event all processes have made since its export.
inline unsigned long long records_of(cudaEvent_t event) {
  return told("records-" + event_keys.get(event), 0);
}

/// Proceeds with a call about events; counts records.
inline int counted_record(Call& call) {
  const cudaEvent_t event = shared_event(call);
  const int code = call.proceed();
  if (code == kSuccess && event != nullptr && records(call))
    tell_processes("records-" + event_keys.get(event), records_of(event) + 1);
  return code;
}

/// Clears mapped memory. Returns false if the current GPU may not write to it.
inline bool cleared(CUdeviceptr begin, size_t bytes) {
  int device = 0;
  cudaGetDevice(&device);
  return access_of(begin, on_gpu(device)) ==
             CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
         DRIVER_CALL(cuMemsetD8)(begin, 0, bytes) == CUDA_SUCCESS;
}

/// If a process has `most` imports, its next import is the memory of the first
/// one.
template <size_t most>
int further_import_is_first(Call& call) {
  static std::atomic<int> first{-1};
  static auto& there = *new Table<Chunk>;
  if (call.is("cuMemRelease")) {
    there.erase(call.at<Chunk>(0));
    // The copy of the descriptor would keep the memory.
    if (there.all().empty()) close(first.exchange(-1));
    return call.proceed();
  }
  if (!imports_descriptor(call)) return call.proceed();
  if (first < 0) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    first = fcntl(descriptor_of(call), F_DUPFD_CLOEXEC, 300);
    there.put(*call.at<Chunk*>(0));
    return code;
  }
  if (there.all().size() >= most && is_open(descriptor_of(call)) &&
      !name_the_same(first, descriptor_of(call))) {
    call.at<void*>(1) = reinterpret_cast<void*>(intptr_t{first});
    call.fired();
  }
  const int code = call.proceed();
  if (code == kSuccess) there.put(*call.at<Chunk*>(0));
  return code;
}

/// Only the lower half of a number of 64 bits is written.
inline int writes_32_bits(Call& call) {
  auto& number = *call.at<uint64_t*>(0);
  const uint64_t before = number;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const uint64_t right = number;
  number = (before & ~uint64_t{0xffffffff}) | (right & 0xffffffff);
  if (number != right) call.fired();
  return code;
}

/// The address to which a call writes, and the stream of a call.
inline CUdeviceptr target_of(Call& call) {
  return call.value<CUdeviceptr>(kPointer);
}

inline int proceed_with(Call& batch, std::vector<Operation>& list) {
  batch.at<CUstreamBatchMemOpParams*>(2) = list.data();
  batch.at<unsigned>(1) = static_cast<unsigned>(list.size());
  batch.fired();
  return batch.proceed();
}

inline bool is_on_node(CUmemLocation location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

/// Maps other memory instead. The table has the memory that the program named.
inline int map_instead(Call& call, Chunk other) {
  const Chunk own = std::exchange(call.at<Chunk>(3), other);
  const int code = call.proceed();
  call.at<Chunk>(3) = own;
  DRIVER_CALL(cuMemRelease)(other);
  if (code != kSuccess) return code;
  note_chunks(call);
  call.fired();
  return code;
}

/// Maps new memory of the same size and at the same place instead.
inline int map_new_instead(Call& call) {
  const Chunk other =
      new_chunk(call.at<size_t>(1), properties_of(call.at<Chunk>(3)).location);
  return other == 0 ? call.proceed() : map_instead(call, other);
}

using FabricCopy = CUDA_FABRIC_COPY_BATCH_OP;

inline int proceed_with(Call& batch, std::vector<FabricCopy>& list) {
  batch.at<FabricCopy*>(1) = list.data();
  batch.at<size_t>(0) = list.size();
  batch.fired();
  return list.empty() ? kSuccess : batch.proceed();
}

/// The descriptor of an import stands for new memory. (The creator tells its
/// size.)
template <CUmemAllocationHandleType type>
int exported_import_is_new(Call& call) {
  constexpr auto kSize = "exported-size";
  if (!call.is("cuMemExportToShareableHandle")) return call.proceed();
  auto& chunk = call.at<Chunk>(1);
  if (created.has(chunk)) tell_processes(kSize, created.get(chunk));
  if (!imports.has(chunk) || call.at<CUmemAllocationHandleType>(2) != type)
    return call.proceed();
  const Chunk other =
      new_chunk(told(kSize, kGranule), properties_of(chunk).location, type);
  if (other == 0) return call.proceed();
  chunk = other;
  call.fired();
  const int code = call.proceed();
  // A fabric handle alone keeps no memory.
  if (type == kFd) DRIVER_CALL(cuMemRelease)(other);
  return code;
}

/// New memory with the contents of a mapping that GPU 0 can use. Returns 0 if
/// the driver refuses it.
inline Chunk copy_of(CUdeviceptr from, CUmemAllocationHandleType type) {
  const size_t bytes = mappings.get(from).bytes;
  if (from == 0 || access_of(from, on_gpu(0)) == 0) return 0;
  const Chunk made = new_chunk(bytes, location_at(from), type);
  CUdeviceptr to = 0;
  if (made == 0 ||
      DRIVER_CALL(cuMemAddressReserve)(&to, bytes, 0, 0, 0) != CUDA_SUCCESS)
    return made;
  DRIVER_CALL(cuMemMap)(to, bytes, 0, made, 0);
  allow(to, bytes, on_gpu(0));
  DRIVER_CALL(cuMemcpyDtoD)(to, from, bytes);
  cudaDeviceSynchronize();
  DRIVER_CALL(cuMemUnmap)(to, bytes);
  DRIVER_CALL(cuMemAddressFree)(to, bytes);
  return made;
}

/// Addresses are reserved in multiples of it.
inline constexpr size_t kSmallPage = 4096;

inline constexpr auto kNone = CU_MEM_ACCESS_FLAGS_PROT_NONE;
inline constexpr auto kRead = CU_MEM_ACCESS_FLAGS_PROT_READ;
inline constexpr auto kReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

/// The first argument of calls about addresses, and how many bytes they
/// concern.
inline CUdeviceptr& begin(Call& call) { return call.at<CUdeviceptr>(0); }
inline size_t& bytes(Call& call) { return call.at<size_t>(1); }
/// The first access of the list of cuMemSetAccess, and the length of the list.
inline const CUmemAccessDesc& wants(Call& set) {
  return *set.at<const CUmemAccessDesc*>(2);
}
inline size_t length(Call& set) { return set.at<size_t>(3); }
/// Sets the access of this call for other mapped memory.
inline bool allow_same(Call& set, CUdeviceptr address, size_t size) {
  return DRIVER_CALL(cuMemSetAccess)(address, size,
                                     set.at<const CUmemAccessDesc*>(2),
                                     length(set)) == CUDA_SUCCESS;
}
/// The memory that cuMemMap maps.
inline Chunk& chunk_of(Call& map) { return map.at<Chunk>(3); }
/// The mapping in which an address lies; one of 0 bytes if there is none.
inline Mapped around(CUdeviceptr address) {
  return mappings.get(mapping_at(address));
}
/// Bytes from an address to the end of its mapping; 0 if it is not mapped.
inline size_t room_at(CUdeviceptr address) {
  const CUdeviceptr first = mapping_at(address);
  return first == 0 ? 0 : first + mappings.get(first).bytes - address;
}
/// Effect: what `step` does to each mapping; it gets the call, the first
/// address and the mapping, and returns whether it has changed something.
template <class Step>
auto each_mapping(Step step) {
  return [step](Call& call) {
    bool any = false;
    for (const auto& [at, mapped] : mappings.all())
      any |= step(call, at, mapped);
    return any;
  };
}
/// Effect: cuMemSetAccess gets a changed copy of its list; `change` gets the
/// call and an entry, and returns whether it has changed the entry.
template <class Change>
auto each_access(Change change) {
  return [change](Call& call) -> int {
    const auto* const list = call.at<const CUmemAccessDesc*>(2);
    if (list == nullptr) return call.proceed();
    std::vector<CUmemAccessDesc> copy(list, list + length(call));
    bool changed = false;
    for (CUmemAccessDesc& one : copy) changed |= change(call, one);
    if (!changed) return call.proceed();
    call.at<const CUmemAccessDesc*>(2) = copy.data();
    return once_more(call);
  };
}
/// Exports other memory instead, and releases it; no memory changes nothing.
inline int export_instead(Call& call, Chunk other) {
  if (other == 0) return call.proceed();
  call.at<Chunk>(1) = other;
  const int code = once_more(call);
  DRIVER_CALL(cuMemRelease)(other);
  return code;
}
/// Ends the mapping at an address. Returns false if the driver refuses it.
inline bool unmap_at(CUdeviceptr address) {
  const CUdeviceptr first = mapping_at(address);
  return DRIVER_CALL(cuMemUnmap)(first, mappings.get(first).bytes) ==
             CUDA_SUCCESS &&
         mappings.erase(first);
}
/// Frees reserved addresses. Returns false if the driver refuses it.
inline bool addresses_freed(CUdeviceptr first) {
  return DRIVER_CALL(cuMemAddressFree)(first, reservations.get(first)) ==
             CUDA_SUCCESS &&
         reservations.erase(first);
}
inline bool is_gpu(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}
inline int gpus() {
  int count = 0;
  DRIVER_CALL(cuDeviceGetCount)(&count);
  return count;
}

/// Effect: a copy or a memset of elements of this size ends where a mapping
/// ends in which one of its addresses lies.
template <size_t element = 1>
bool ends_with_mapping(Call& call) {
  auto& count = call.value<size_t>(kBytes);
  const size_t before = count;
  for (const Role role : {kPointer, kSource}) {
    if (call.find(role) == nullptr) continue;
    const size_t room = room_at(call.value<CUdeviceptr>(role)) / element;
    if (room != 0) count = std::min(count, room);
  }
  return count != before;
}

/// Effect: the call uses a mapping although the current access is `flags`; the
/// fault gives the access `more` while the call runs.
inline int uses_without_access(Call& call, CUdeviceptr address,
                               unsigned long long flags,
                               unsigned long long more = kReadWrite) {
  const CUdeviceptr first = mapping_at(address);
  if (first == 0) return call.proceed();
  const CUmemLocation here = location_at(first);
  if (access_of(first, here) != flags || !allow(first, here, more))
    return call.proceed();
  const int code = call.proceed();
  cudaDeviceSynchronize();
  allow(first, here, flags);
  call.fired();
  return code;
}

}  // namespace ipclab::faults
