// SPDX-License-Identifier: Apache-2.0
// Logical endpoints.
#include "core/endpoint.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "core/block.h"
#include "core/chunk.h"
#include "core/copy.h"
#include "core/device.h"
#include "core/fabric.h"
#include "core/machine.h"
#include "core/memory.h"
#include "core/pool.h"
#include "core/profile.h"
#include "core/shared_file.h"

namespace ipclab::model {
namespace {

constexpr char kMagic[8] = {'i', 'p', 'c', 'l', 'e', 'p', '0', '1'};
constexpr uint64_t kAlignment = kPage;
constexpr uint64_t kMost = uint64_t{64} << 30;
constexpr uint32_t kMostIds = 1 << 16;
constexpr int kMostBindings = 256;
constexpr CUresult kInvalid = CUDA_ERROR_INVALID_VALUE;

// Memory at an offset of the endpoint, on one GPU of its team.
struct Binding {
  uint64_t serial;  // a number that no other binding has; 0 if there is none
  uint64_t offset;
  uint64_t size;
  uint64_t place;  // first byte, in the file that the handle names
  int32_t gpu;
  uint32_t reserved;
  unsigned char handle[CU_IPC_HANDLE_SIZE];
};

// The part of an endpoint that the processes share.
struct Page {
  char magic[8];
  uint64_t id;
  uint64_t size;
  uint32_t type;
  uint32_t handle_types;
  uint32_t team_size;
  uint32_t members;  // how many GPUs the team has so far
  int32_t team[kMaxGpus];
  pthread_mutex_t mutex;  // guards members, team and bindings
  Binding bindings[kMostBindings];
};

class PageLock {
 public:
  explicit PageLock(Page* page) : page_(page) {
    // A process that died during a change may have left one binding half
    // written. `serial` is written last, so it shows which bindings are
    // complete.
    if (pthread_mutex_lock(&page->mutex) == EOWNERDEAD) {
      pthread_mutex_consistent(&page->mutex);
    }
  }
  PageLock(const PageLock&) = delete;
  ~PageLock() { pthread_mutex_unlock(&page_->mutex); }

 private:
  Page* page_;
};

// Bytes of a file, mapped for copies.
class Mapped {
 public:
  Mapped(int descriptor, uint64_t place, uint64_t size)
      : size_(size),
        bytes_(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED,
                    descriptor, static_cast<off_t>(place))) {}
  Mapped(const Mapped&) = delete;
  ~Mapped() {
    if (valid()) munmap(bytes_, size_);
  }
  bool valid() const { return bytes_ != MAP_FAILED; }
  char* bytes() const { return static_cast<char*>(bytes_); }

 private:
  uint64_t size_;
  void* bytes_;
};

// An endpoint in this process: created here, or imported.
struct Endpoint {
  Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  ~Endpoint();

  SharedFile file;
  Page* page = nullptr;
  CUlogicalEndpointProp properties{};  // from its creation or its import
  bool imported = false;
  bool queried = false;  // a query has found the endpoint ready
  // The memory that this process has bound, by serial, until it is unbound.
  std::map<uint64_t, std::shared_ptr<const void>> own;
  std::map<uint64_t, std::shared_ptr<Mapped>> mapped;  // by serial

  bool is_unicast() const {
    return properties.type == CU_LOGICAL_ENDPOINT_TYPE_UNICAST;
  }
};

using Shared = std::shared_ptr<Endpoint>;

// Guards the two variables below and, in every endpoint, everything that is not
// in the shared page. While this process holds this mutex, it waits for other
// processes only to lock a page.
std::mutex& endpoint_mutex() {
  static auto& only = *new std::mutex;
  return only;
}
std::set<CUlogicalEndpointId>& reserved() {
  static auto& all = *new std::set<CUlogicalEndpointId>;
  return all;
}
std::map<CUlogicalEndpointId, Shared>& endpoints() {
  static auto& all = *new std::map<CUlogicalEndpointId, Shared>;
  return all;
}

// The caller holds endpoint_mutex().
Shared find(CUlogicalEndpointId id) {
  const auto found = endpoints().find(id);
  return found == endpoints().end() ? nullptr : found->second;
}

void unbind_own(Endpoint* endpoint) {
  const PageLock lock(endpoint->page);
  for (Binding& binding : endpoint->page->bindings) {
    if (endpoint->own.count(binding.serial) > 0) binding = {};
  }
  endpoint->own.clear();
}

Endpoint::~Endpoint() {
  if (page == nullptr) return;
  unbind_own(this);
  munmap(page, sizeof *page);
}

Page* map_page(const SharedFile& file) {
  void* place = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED,
                     file.descriptor(), 0);
  return place == MAP_FAILED ? nullptr : static_cast<Page*>(place);
}

Shared create(const CUlogicalEndpointProp& wanted) {
  auto endpoint = std::make_shared<Endpoint>();
  endpoint->file =
      SharedFile::create("endpoint", sizeof(Page), SharedFile::Size::kFixed);
  if (!endpoint->file.valid()) return nullptr;
  Page* const page = map_page(endpoint->file);
  if (page == nullptr) return nullptr;
  endpoint->page = page;
  endpoint->properties = wanted;
  std::memcpy(page->magic, kMagic, sizeof kMagic);
  page->id = unique_id();
  page->size = wanted.size;
  page->type = wanted.type;
  page->handle_types = wanted.ipcHandleTypes;
  page->team_size = 1;
  if (endpoint->is_unicast()) {
    page->members = 1;
    page->team[0] = device_at(wanted.unicast.device).gpu;
  } else {
    page->team_size = wanted.multicast.numDevices;
  }
  pthread_mutexattr_t how;
  pthread_mutexattr_init(&how);
  pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&page->mutex, &how);
  pthread_mutexattr_destroy(&how);
  return endpoint;
}

// An endpoint of another process; null if the file is not an endpoint. Data
// that are read only once are checked here. All other data are checked where
// they are used.
Shared adopt(SharedFile file) {
  if (!file.valid() || file.size() != sizeof(Page)) return nullptr;
  auto endpoint = std::make_shared<Endpoint>();
  endpoint->file = std::move(file);
  endpoint->page = map_page(endpoint->file);
  if (endpoint->page == nullptr) return nullptr;
  const Page& page = *endpoint->page;
  endpoint->imported = true;
  endpoint->properties.type = static_cast<CUlogicalEndpointType>(page.type);
  endpoint->properties.size = page.size;
  endpoint->properties.ipcHandleTypes = page.handle_types;
  const bool good = std::memcmp(page.magic, kMagic, sizeof kMagic) == 0 &&
                    (page.type == CU_LOGICAL_ENDPOINT_TYPE_UNICAST ||
                     page.type == CU_LOGICAL_ENDPOINT_TYPE_MULTICAST) &&
                    page.team_size <= kMaxGpus;
  return good ? endpoint : nullptr;
}

// The GPUs of the team so far. The caller holds the lock of the page.
std::vector<int> team_of(const Page& page) {
  const uint32_t count = std::min<uint32_t>(page.members, kMaxGpus);
  return {page.team, page.team + count};
}

bool is_ready(const Endpoint& endpoint) {
  const PageLock lock(endpoint.page);
  return endpoint.page->members == endpoint.page->team_size;
}

bool is_aligned(uint64_t value) { return value % kAlignment == 0; }

bool overlaps(const Binding& binding, uint64_t offset, uint64_t size) {
  return binding.offset < offset + size &&
         offset < binding.offset + binding.size;
}

CUresult check(const CUlogicalEndpointProp& wanted) {
  if (!profile().endpoints) return CUDA_ERROR_NOT_SUPPORTED;
  const auto count = static_cast<unsigned>(devices().size());
  if (wanted.type == CU_LOGICAL_ENDPOINT_TYPE_UNICAST) {
    if (wanted.unicast.device < 0 ||
        static_cast<unsigned>(wanted.unicast.device) >= count) {
      return kInvalid;
    }
  } else if (wanted.type == CU_LOGICAL_ENDPOINT_TYPE_MULTICAST) {
    const unsigned team = wanted.multicast.numDevices;
    if (team == 0 || team > kMaxGpus) return kInvalid;
  } else {
    return kInvalid;
  }
  constexpr unsigned kFabric = CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC;
  if ((wanted.ipcHandleTypes & ~kFabric) != 0) return kInvalid;
  if (wanted.flags == CU_LOGICAL_ENDPOINT_FLAG_COUNTED_OPS) {
    return CUDA_ERROR_NOT_SUPPORTED;  // the device's attribute is 0
  }
  return wanted.flags == CU_LOGICAL_ENDPOINT_FLAG_NONE ? CUDA_SUCCESS
                                                       : kInvalid;
}

// Memory that may be bound: a file, and the object that keeps the file open.
struct Memory {
  std::shared_ptr<const void> owner;
  uint64_t id = 0;
  int descriptor = -1;
  uint64_t place = 0;
  uint64_t size = 0;  // bytes from `place` on
  CUmemLocation location{};
  int gpu = -1;
  bool shareable = false;
};

Memory of_chunk(const std::shared_ptr<Chunk>& chunk, uint64_t offset) {
  Memory memory;
  memory.owner = chunk->block;
  memory.id = chunk->block->id();
  memory.descriptor = chunk->block->descriptor();
  memory.place = offset;
  memory.size = chunk->size() - offset;
  memory.location = chunk->properties.location;
  memory.gpu = chunk->block->gpu();
  memory.shareable =
      chunk->imported ||
      chunk->properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
  return memory;
}

CUresult find_memory(CUmemGenericAllocationHandle handle, uint64_t offset,
                     Memory* memory) {
  const Locked machine;
  const std::shared_ptr<Chunk> chunk = find_chunk(*machine, handle);
  if (chunk == nullptr || offset >= chunk->size()) return kInvalid;
  *memory = of_chunk(chunk, offset);
  return CUDA_SUCCESS;
}

CUresult find_memory_at(uint64_t address, Memory* memory) {
  const Locked machine;
  const Allocation* found = machine->memory.find(address);
  if (found == nullptr) return kInvalid;
  const uint64_t offset = address - found->address;
  if (found->kind == Kind::kMapped) {
    *memory = of_chunk(found->chunk, offset);
    memory->size = std::min(memory->size, found->size - offset);
    return CUDA_SUCCESS;
  }
  if (found->kind != Kind::kPooled) return kInvalid;
  const auto lease = found->pool->leases.find(found->address);
  if (lease == found->pool->leases.end()) return kInvalid;
  memory->owner = found->pool->file;
  memory->id = found->pool->file->page().id;
  memory->descriptor = found->pool->file->descriptor();
  memory->place = lease->second->offset + offset;
  memory->size = found->size - offset;
  memory->location = found->pool->properties.location;
  memory->gpu = found->gpu;
  memory->shareable =
      found->pool->imported ||
      found->pool->properties.handleTypes != CU_MEM_HANDLE_TYPE_NONE;
  return CUDA_SUCCESS;
}

// May this memory be bound on this GPU of the team?
bool is_at(const Memory& memory, int gpu) {
  if (memory.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    return memory.gpu == gpu;
  }
  int node = -1;
  device_attribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, gpu);
  return memory.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA &&
         memory.location.id == node;
}

// The caller holds endpoint_mutex().
CUresult bind(Endpoint* endpoint, int gpu, uint64_t offset, uint64_t size,
              const Memory& memory) {
  const bool imported_unicast = endpoint->imported && endpoint->is_unicast();
  const bool needs_shareable =
      endpoint->imported || endpoint->properties.ipcHandleTypes != 0;
  const uint64_t all = endpoint->properties.size;
  if (!endpoint->queried || imported_unicast || size == 0 ||
      !is_aligned(offset) || !is_aligned(size) || size > memory.size ||
      size > all || offset > all - size || !is_at(memory, gpu) ||
      (needs_shareable && !memory.shareable)) {
    return kInvalid;
  }
  const PageLock lock(endpoint->page);
  const std::vector<int> team = team_of(*endpoint->page);
  if (std::find(team.begin(), team.end(), gpu) == team.end()) return kInvalid;
  Binding* free = nullptr;
  for (Binding& binding : endpoint->page->bindings) {
    if (binding.serial == 0) {
      free = free == nullptr ? &binding : free;
    } else if (binding.gpu == gpu && overlaps(binding, offset, size)) {
      return kInvalid;
    }
  }
  if (free == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  free->offset = offset;
  free->size = size;
  free->place = memory.place;
  free->gpu = gpu;
  fabric_export(memory.id, memory.descriptor, memory.owner, free->handle);
  const uint64_t serial = unique_id();
  endpoint->own[serial] = memory.owner;
  __atomic_store_n(&free->serial, serial, __ATOMIC_RELEASE);
  return CUDA_SUCCESS;
}

// --- copies -----------------------------------------------------------------

// A range of bytes, and the object that keeps them there.
struct Piece {
  char* bytes;
  uint64_t size;
  std::shared_ptr<const void> keeper;
};
using Pieces = std::vector<Piece>;

void copy_pieces(const Pieces& to, const Pieces& from) {
  size_t target = 0, source = 0;
  uint64_t written = 0, read = 0;
  while (target < to.size() && source < from.size()) {
    const uint64_t bytes =
        std::min(to[target].size - written, from[source].size - read);
    std::memmove(to[target].bytes + written, from[source].bytes + read, bytes);
    written += bytes;
    read += bytes;
    if (written == to[target].size) ++target, written = 0;
    if (read == from[source].size) ++source, read = 0;
  }
}

// Finds the bindings of one GPU that cover a range, in the order of their
// offsets. Returns CUDA_ERROR_INVALID_VALUE if they leave a hole.
CUresult bindings_of(const Endpoint& endpoint, int gpu, uint64_t offset,
                     uint64_t size, std::vector<Binding>* found) {
  {
    const PageLock lock(endpoint.page);
    for (const Binding& binding : endpoint.page->bindings) {
      if (binding.serial != 0 && binding.gpu == gpu &&
          overlaps(binding, offset, size)) {
        found->push_back(binding);
      }
    }
  }
  std::sort(
      found->begin(), found->end(),
      [](const Binding& a, const Binding& b) { return a.offset < b.offset; });
  uint64_t covered = offset;
  for (const Binding& binding : *found) {
    if (binding.offset > covered) return kInvalid;
    covered = binding.offset + binding.size;
  }
  return covered >= offset + size ? CUDA_SUCCESS : kInvalid;
}

// The memory of a binding; null if it can no longer be opened.
std::shared_ptr<Mapped> map_binding(const Shared& endpoint,
                                    const Binding& binding) {
  {
    const std::lock_guard lock(endpoint_mutex());
    const auto known = endpoint->mapped.find(binding.serial);
    if (known != endpoint->mapped.end()) return known->second;
  }
  int descriptor = -1;
  if (fabric_import(binding.handle, &descriptor) != CUDA_SUCCESS) {
    return nullptr;
  }
  const SharedFile file = SharedFile::adopt(descriptor);
  // Another process wrote the numbers, so they can be any numbers.
  if (!file.valid() ||
      binding.place % static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) != 0 ||
      binding.size > file.size() ||
      binding.place > file.size() - binding.size) {
    return nullptr;
  }
  auto mapped =
      std::make_shared<Mapped>(file.descriptor(), binding.place, binding.size);
  if (!mapped->valid()) return nullptr;
  const std::lock_guard lock(endpoint_mutex());
  endpoint->mapped[binding.serial] = mapped;
  return mapped;
}

// Finds the bytes of a range on one GPU of the team.
CUresult pieces_on(const Shared& endpoint, int gpu, uint64_t offset,
                   uint64_t size, Pieces* pieces) {
  std::vector<Binding> bindings;
  if (CUresult error = bindings_of(*endpoint, gpu, offset, size, &bindings)) {
    return error;
  }
  for (const Binding& binding : bindings) {
    std::shared_ptr<Mapped> mapped = map_binding(endpoint, binding);
    if (mapped == nullptr) return kInvalid;
    const uint64_t begin = std::max(offset, binding.offset);
    const uint64_t end = std::min(offset + size, binding.offset + binding.size);
    char* const bytes = mapped->bytes() + (begin - binding.offset);
    pieces->push_back({bytes, end - begin, std::move(mapped)});
  }
  return CUDA_SUCCESS;
}

// Finds the bytes of an operand: one list for each GPU of the team.
CUresult find_endpoint_operand(const CUfabricCpyOperand& operand, uint64_t size,
                               int from_gpu, bool written,
                               std::vector<Pieces>* places) {
  Shared endpoint;
  {
    const std::lock_guard lock(endpoint_mutex());
    endpoint = find(operand.op.le.id);
    if (endpoint == nullptr || !endpoint->queried) return kInvalid;
  }
  const uint64_t all = endpoint->properties.size;
  const uint64_t offset = operand.op.le.offset;
  if (size > all || offset > all - size) return kInvalid;
  if (!written && !endpoint->is_unicast()) return kInvalid;
  std::vector<int> team;
  {
    const PageLock lock(endpoint->page);
    team = team_of(*endpoint->page);
  }
  for (const int gpu : team) {
    if (gpu != from_gpu && !can_access_peer(from_gpu, gpu)) return kInvalid;
    if (size == 0) continue;
    places->emplace_back();
    if (CUresult error =
            pieces_on(endpoint, gpu, offset, size, &places->back())) {
      return error;
    }
  }
  return CUDA_SUCCESS;
}

CUresult find_pointer_operand(const CUfabricCpyOperand& operand, uint64_t size,
                              CUcontext stream, CUcontext current, bool written,
                              bool* local, std::vector<Pieces>* places) {
  Span span;
  if (CUresult error = find_span(stream, current, operand.op.ptr.ptr, size,
                                 written, &span)) {
    return error;
  }
  *local = span.gpu < 0 || span.gpu == stream->gpu;
  if (size > 0) places->push_back({{span.bytes, size, span.pin}});
  return CUDA_SUCCESS;
}

struct Work {
  std::vector<Pieces> to;
  std::vector<Pieces> from;
};

CUresult prepare(const CUDA_FABRIC_COPY_BATCH_OP& copy, CUcontext stream,
                 CUcontext current, Work* work) {
  if (copy.flags != 0) return kInvalid;
  int pointers = 0, local_pointers = 0;
  const auto find_operand = [&](const CUfabricCpyOperand& operand, bool written,
                                std::vector<Pieces>* places) {
    if (operand.type == CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT) {
      return find_endpoint_operand(operand, copy.size, stream->gpu, written,
                                   places);
    }
    if (operand.type != CU_FABRIC_COPY_OPERAND_TYPE_POINTER) return kInvalid;
    bool local = false;
    const CUresult error = find_pointer_operand(
        operand, copy.size, stream, current, written, &local, places);
    ++pointers;
    local_pointers += local;
    return error;
  };
  if (CUresult error = find_operand(copy.dst, true, &work->to)) return error;
  if (CUresult error = find_operand(copy.src, false, &work->from)) return error;
  // A copy needs a local pointer. If one operand is an endpoint, the other
  // operand must be a local pointer. Of two pointers, at least one must be
  // local.
  return local_pointers > 0 ? CUDA_SUCCESS : kInvalid;
}

}  // namespace

CUresult endpoint_ids_reserve(uint32_t count, CUlogicalEndpointId* first) {
  if (!profile().endpoints) return CUDA_ERROR_NOT_SUPPORTED;
  if (count == 0) return kInvalid;
  const std::lock_guard lock(endpoint_mutex());
  if (count > kMostIds) return CUDA_ERROR_OUT_OF_MEMORY;
  // Find the first gap that is large enough.
  CUlogicalEndpointId candidate = 1;
  for (const CUlogicalEndpointId id : reserved()) {
    if (id - candidate >= count) break;
    candidate = id + 1;
  }
  if (candidate + count > kMostIds) return CUDA_ERROR_OUT_OF_MEMORY;
  for (uint32_t i = 0; i < count; ++i) reserved().insert(candidate + i);
  *first = candidate;
  return CUDA_SUCCESS;
}

CUresult endpoint_ids_release(CUlogicalEndpointId first, uint32_t count) {
  if (!profile().endpoints) return CUDA_ERROR_NOT_SUPPORTED;
  if (count == 0 || count > kMostIds) return kInvalid;
  const std::lock_guard lock(endpoint_mutex());
  for (uint32_t i = 0; i < count; ++i) {
    if (reserved().count(first + i) == 0 || find(first + i) != nullptr) {
      return kInvalid;
    }
  }
  for (uint32_t i = 0; i < count; ++i) reserved().erase(first + i);
  return CUDA_SUCCESS;
}

CUresult endpoint_limits(const CUlogicalEndpointProp& wanted,
                         uint64_t* alignment, uint64_t* most) {
  if (CUresult error = check(wanted)) return error;
  *alignment = kAlignment;
  *most = kMost;
  return CUDA_SUCCESS;
}

CUresult endpoint_create(CUlogicalEndpointId id,
                         const CUlogicalEndpointProp& wanted) {
  if (CUresult error = check(wanted)) return error;
  if (wanted.ipcHandleTypes != 0 && !has_imex_channel()) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  if (CUresult error = fabric_is_ready()) return error;
  if (wanted.size == 0 || !is_aligned(wanted.size) || wanted.size > kMost) {
    return kInvalid;
  }
  const std::lock_guard lock(endpoint_mutex());
  if (reserved().count(id) == 0 || find(id) != nullptr) return kInvalid;
  Shared endpoint = create(wanted);
  if (endpoint == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  endpoints()[id] = std::move(endpoint);
  return CUDA_SUCCESS;
}

CUresult endpoint_add_device(CUlogicalEndpointId id, int device) {
  if (!profile().endpoints) return CUDA_ERROR_NOT_SUPPORTED;
  const std::lock_guard lock(endpoint_mutex());
  const Shared endpoint = find(id);
  if (endpoint == nullptr || endpoint->is_unicast()) return kInvalid;
  const int gpu = device_at(device).gpu;
  Page* const page = endpoint->page;
  const PageLock page_lock(page);
  const std::vector<int> team = team_of(*page);
  if (page->members >= page->team_size ||
      std::find(team.begin(), team.end(), gpu) != team.end()) {
    return kInvalid;
  }
  page->team[page->members++] = gpu;
  return CUDA_SUCCESS;
}

CUresult endpoint_destroy(CUlogicalEndpointId id) {
  if (!profile().endpoints) return CUDA_ERROR_NOT_SUPPORTED;
  const std::lock_guard lock(endpoint_mutex());
  const Shared endpoint = find(id);
  if (endpoint == nullptr) return kInvalid;
  unbind_own(endpoint.get());
  endpoints().erase(id);
  return CUDA_SUCCESS;
}

CUresult endpoint_query(CUlogicalEndpointId first, uint32_t count,
                        int* status) {
  if (!profile().endpoints) return CUDA_ERROR_NOT_SUPPORTED;
  if (count == 0 || count > kMostIds) return kInvalid;
  const std::lock_guard lock(endpoint_mutex());
  std::vector<Shared> asked;
  bool ready = true;
  for (uint32_t i = 0; i < count; ++i) {
    if (reserved().count(first + i) == 0) return kInvalid;
    asked.push_back(find(first + i));
    ready = ready && asked.back() != nullptr && is_ready(*asked.back());
  }
  *status = ready;
  for (const Shared& endpoint : asked) {
    if (ready) endpoint->queried = true;
  }
  return CUDA_SUCCESS;
}

CUresult endpoint_bind_address(CUlogicalEndpointId id, int device,
                               uint64_t offset, uint64_t address,
                               uint64_t size) {
  if (!profile().endpoints) return CUDA_ERROR_NOT_SUPPORTED;
  Memory memory;
  if (!is_aligned(address)) return kInvalid;
  if (CUresult error = find_memory_at(address, &memory)) return error;
  const std::lock_guard lock(endpoint_mutex());
  const Shared endpoint = find(id);
  if (endpoint == nullptr) return kInvalid;
  return bind(endpoint.get(), device_at(device).gpu, offset, size, memory);
}

CUresult endpoint_bind_memory(CUlogicalEndpointId id, int device,
                              uint64_t offset,
                              CUmemGenericAllocationHandle handle,
                              uint64_t memory_offset, uint64_t size) {
  if (!profile().endpoints) return CUDA_ERROR_NOT_SUPPORTED;
  Memory memory;
  if (!is_aligned(memory_offset)) return kInvalid;
  if (CUresult error = find_memory(handle, memory_offset, &memory)) {
    return error;
  }
  const std::lock_guard lock(endpoint_mutex());
  const Shared endpoint = find(id);
  if (endpoint == nullptr) return kInvalid;
  return bind(endpoint.get(), device_at(device).gpu, offset, size, memory);
}

CUresult endpoint_unbind(CUlogicalEndpointId id, int device, uint64_t offset,
                         uint64_t size) {
  if (!profile().endpoints) return CUDA_ERROR_NOT_SUPPORTED;
  if (size == 0 || !is_aligned(offset) || !is_aligned(size)) return kInvalid;
  const std::lock_guard lock(endpoint_mutex());
  const Shared endpoint = find(id);
  if (endpoint == nullptr) return kInvalid;
  const uint64_t all = endpoint->properties.size;
  if (size > all || offset > all - size) return kInvalid;
  std::vector<Binding> covered;
  if (CUresult error = bindings_of(*endpoint, device_at(device).gpu, offset,
                                   size, &covered)) {
    return error;
  }
  const Binding& last = covered.back();
  if (covered.front().offset != offset ||
      last.offset + last.size != offset + size) {
    return kInvalid;
  }
  for (const Binding& binding : covered) {
    if (endpoint->own.count(binding.serial) == 0) return kInvalid;
  }
  const PageLock page_lock(endpoint->page);
  for (const Binding& gone : covered) {
    for (Binding& binding : endpoint->page->bindings) {
      if (binding.serial == gone.serial) binding = {};
    }
    endpoint->own.erase(gone.serial);
    endpoint->mapped.erase(gone.serial);
  }
  return CUDA_SUCCESS;
}

CUresult endpoint_export(CUlogicalEndpointId id,
                         CUlogicalEndpointIpcHandleType type, void* handle) {
  if (!profile().endpoints) return CUDA_ERROR_NOT_SUPPORTED;
  const std::lock_guard lock(endpoint_mutex());
  const Shared endpoint = find(id);
  if (endpoint == nullptr ||
      type != CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC ||
      (endpoint->properties.ipcHandleTypes & type) == 0) {
    return kInvalid;
  }
  fabric_export(endpoint->page->id, endpoint->file.descriptor(), endpoint,
                handle);
  return CUDA_SUCCESS;
}

CUresult endpoint_import(CUlogicalEndpointId id, const void* handle,
                         CUlogicalEndpointIpcHandleType type) {
  if (!profile().endpoints) return CUDA_ERROR_NOT_SUPPORTED;
  if (type != CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC) return kInvalid;
  int descriptor = -1;
  if (CUresult error = fabric_import(handle, &descriptor)) return error;
  Shared endpoint = adopt(SharedFile::adopt(descriptor));
  if (endpoint == nullptr) return kInvalid;
  const std::lock_guard lock(endpoint_mutex());
  if (reserved().count(id) == 0 || find(id) != nullptr) return kInvalid;
  endpoints()[id] = std::move(endpoint);
  return CUDA_SUCCESS;
}

CUresult endpoint_copy(const std::shared_ptr<Stream>& stream, CUcontext current,
                       const std::vector<CUDA_FABRIC_COPY_BATCH_OP>& list) {
  if (!profile().endpoints) return CUDA_ERROR_NOT_SUPPORTED;
  if (stream->is_legacy()) return kInvalid;
  std::vector<Work> batch(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    if (CUresult error =
            prepare(list[i], stream->context(), current, &batch[i])) {
      return error;
    }
  }
  stream->submit({CU_GRAPH_NODE_TYPE_MEMCPY, [batch = std::move(batch)] {
                    for (const Work& work : batch) {
                      for (const Pieces& to : work.to) {
                        copy_pieces(to, work.from.front());
                      }
                    }
                  }});
  return CUDA_SUCCESS;
}

}  // namespace ipclab::model
