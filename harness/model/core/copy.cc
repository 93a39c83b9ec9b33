// SPDX-License-Identifier: Apache-2.0
// Copies, and calls that set memory.
#include "core/copy.h"

#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/pool.h"
#include "core/race.h"
#include "core/vmm.h"

namespace ipclab::model {
namespace {

// Where the bytes of a region are, and what kind of memory they are in.
struct Place {
  char* bytes = nullptr;
  bool pageable = true;
  bool on_device = false;  // neither host nor managed
  bool sync_memops = false;
  int gpu = -1;  // where the bytes are
  Pin pin;
};

uint64_t length(const Region& region, const Extent& extent) {
  return (extent.depth - 1) * region.slice +
         (extent.height - 1) * region.pitch + extent.width;
}

// The contexts of a copy.
struct Contexts {
  CUcontext stream;
  CUcontext current;   // null: the access to pools is not checked
  bool late = false;   // if true, a window address without memory is an error
  bool peers = false;  // a peer copy, which names the GPUs of the memory
};

// Call this if a copy or a memset in a graph is impossible. The context gets a
// sticky error.
void lose(CUcontext context) {
  say("a graph copies or sets memory that is not there (error 700 on device " +
      std::to_string(context->device) + ")");
  int none = 0;
  context->sticky.compare_exchange_strong(none, CUDA_ERROR_ILLEGAL_ADDRESS);
}

CUresult locate(const Region& region, const Extent& extent, Contexts contexts,
                Access needed, Place* place) {
  const Locked machine;
  const Window& window = machine->window;
  const bool in_window = window.contains(region.address);
  const Allocation* found = machine->memory.find(region.address);
  if (found == nullptr && in_window && contexts.late) {
    // The call that frees memory of a pool takes the allocation away at once,
    // but the pages stay until the stream reaches the free.
    const uint64_t end = region.address + length(region, extent);
    constexpr uint64_t kPage = uint64_t{2} << 20;
    for (uint64_t at = region.address; at < end;
         at = (at / kPage + 1) * kPage) {
      if ((window.access(contexts.stream->device, at) & needed) != needed) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
      }
    }
    place->pageable = false;
    place->bytes = static_cast<char*>(window.alias(region.address));
    place->pin = machine->window.pin(region.address, end - region.address);
    return CUDA_SUCCESS;
  }
  if (found == nullptr) {
    // Host memory, or an address that faults like host memory.
    place->bytes = reinterpret_cast<char*>(region.address);
    return CUDA_SUCCESS;
  }
  const uint64_t bytes = length(region, extent);
  const bool inside =
      found->kind == Kind::kMapped
          ? may_copy(*machine, contexts.peers ? nullptr : contexts.stream,
                     region.address, bytes, needed)
          : bytes <= found->end() - region.address;
  if (!inside) return CUDA_ERROR_INVALID_VALUE;
  if (found->kind == Kind::kPooled && contexts.current != nullptr &&
      (access_of(*found->pool, contexts.current->device) & needed) != needed) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  place->pageable = false;
  place->on_device = !found->on_host() && found->kind != Kind::kManaged;
  place->sync_memops = found->sync_memops;
  if (place->on_device) place->gpu = found->gpu;
  if (in_window) place->pin = machine->window.pin(region.address, bytes);
  place->bytes =
      static_cast<char*>(in_window ? window.alias(region.address)
                                   : reinterpret_cast<void*>(region.address));
  return CUDA_SUCCESS;
}

void copy_rows(char* to, const Region& to_layout, const char* from,
               const Region& from_layout, const Extent& extent) {
  for (uint64_t z = 0; z < extent.depth; ++z) {
    char* to_row = to + z * to_layout.slice;
    const char* from_row = from + z * from_layout.slice;
    for (uint64_t y = 0; y < extent.height; ++y) {
      std::memmove(to_row, from_row, extent.width);
      to_row += to_layout.pitch;
      from_row += from_layout.pitch;
    }
  }
}

// Runs a copy of a graph: when the launch reaches the copy, its memory is
// looked up, and host memory is read.
void copy_now(Contexts contexts, const Region& to, const Region& from,
              const Extent& extent) {
  Place target;
  Place source;
  if (locate(to, extent, contexts, kReadWrite, &target) != CUDA_SUCCESS ||
      locate(from, extent, contexts, kRead, &source) != CUDA_SUCCESS) {
    lose(contexts.stream);
    return;
  }
  if (race::on()) race::copied("a copy", &to, &from, extent);
  copy_rows(target.bytes, to, source.bytes, from, extent);
}

// Sets bytes to zero. Whole pages of much memory go back to the system, so that
// zeros take no memory of this machine.
void set_zeros(char* begin, uint64_t bytes) {
  constexpr uint64_t kPage = 4096, kMuch = uint64_t{64} << 20;
  char* const end = begin + bytes;
  if (bytes >= kMuch) {
    const uint64_t before = -reinterpret_cast<uintptr_t>(begin) % kPage;
    const uint64_t whole = (bytes - before) / kPage * kPage;
    // Fails for memory that is not shared, which is set below.
    if (madvise(begin + before, whole, MADV_REMOVE) == 0) {
      std::memset(begin, 0, before);
      begin += before + whole;
    }
  }
  std::memset(begin, 0, static_cast<size_t>(end - begin));
}

void set_rows(char* to, const Region& layout, uint32_t value, unsigned element,
              const Extent& extent) {
  for (uint64_t z = 0; z < extent.depth; ++z) {
    for (uint64_t y = 0; y < extent.height; ++y) {
      char* row = to + z * layout.slice + y * layout.pitch;
      if (value == 0) {
        set_zeros(row, extent.width);
        continue;
      }
      if (element == 1) {
        std::memset(row, static_cast<int>(value & 0xff), extent.width);
        continue;
      }
      for (uint64_t x = 0; x < extent.width; x += element) {
        std::memcpy(row + x, &value, element);
      }
    }
  }
}

void set_now(CUcontext context, const Region& to, uint32_t value,
             unsigned element, const Extent& extent) {
  Place target;
  const CUresult error =
      locate(to, extent, {context, nullptr, true}, kReadWrite, &target);
  if (error != CUDA_SUCCESS || target.pageable) {
    lose(context);
    return;
  }
  if (race::on()) race::copied("a memset", &to, nullptr, extent);
  set_rows(target.bytes, to, value, element, extent);
}

bool is_empty(const Extent& extent) {
  return extent.width == 0 || extent.height == 0 || extent.depth == 0;
}

}  // namespace

CUresult copy(const std::shared_ptr<Stream>& stream, CUcontext current,
              const Region& to, const Region& from, const Extent& extent,
              bool asynchronous, bool read_now) {
  if (is_empty(extent)) return CUDA_SUCCESS;
  const Contexts contexts{stream->context(), current, false,
                          current == nullptr};
  if (asynchronous && stream->capturing()) {
    stream->submit({CU_GRAPH_NODE_TYPE_MEMCPY, [=] {
                      copy_now({contexts.stream, current, true, contexts.peers},
                               to, from, extent);
                    }});
    return CUDA_SUCCESS;
  }
  Place target;
  Place source;
  if (CUresult error = locate(to, extent, contexts, kReadWrite, &target)) {
    return error;
  }
  if (CUresult error = locate(from, extent, contexts, kRead, &source)) {
    return error;
  }
  std::function<void()> work = [=] {
    if (race::on()) race::copied("a copy", &to, &from, extent);
    copy_rows(target.bytes, to, source.bytes, from, extent);
  };
  const bool between_devices = target.on_device && source.on_device;
  const bool must_wait =
      (!asynchronous && !between_devices) || target.pageable ||
      (!target.on_device && !source.on_device && source.pageable) ||
      (!asynchronous && (target.sync_memops || source.sync_memops));
  if (must_wait) {
    if (stream->spoil_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    // A copy from pageable memory may return before its bytes have arrived
    // ("API synchronization behavior").
    stream->run(work, !source.pageable || !target.on_device);
    return static_cast<CUresult>(stream->context()->sticky.load());
  }
  if (source.pageable || read_now) {
    // The source may change as soon as the call returns.
    auto staged = std::make_shared<std::vector<char>>(
        extent.width * extent.height * extent.depth);
    const Region packed{0, extent.width, extent.width * extent.height};
    copy_rows(staged->data(), packed, source.bytes, from, extent);
    work = [=] {
      if (race::on()) race::copied("a copy", &to, nullptr, extent);
      copy_rows(target.bytes, to, staged->data(), packed, extent);
    };
  }
  stream->submit({CU_GRAPH_NODE_TYPE_MEMCPY, std::move(work)});
  return CUDA_SUCCESS;
}

CUresult find_span(CUcontext stream, CUcontext current, uint64_t address,
                   uint64_t size, bool written, Span* span) {
  Place place;
  const Access needed = written ? kReadWrite : kRead;
  const CUresult error = locate({address, size, size}, {size, 1, 1},
                                {stream, current, true}, needed, &place);
  if (error != CUDA_SUCCESS || address == 0) return CUDA_ERROR_INVALID_VALUE;
  *span = {place.bytes, place.gpu, std::move(place.pin)};
  return CUDA_SUCCESS;
}

CUresult set(const std::shared_ptr<Stream>& stream, const Region& to,
             uint32_t value, unsigned element, const Extent& extent,
             bool asynchronous) {
  if (is_empty(extent)) return CUDA_SUCCESS;
  if (to.address % element != 0) return CUDA_ERROR_INVALID_VALUE;
  if (asynchronous && stream->capturing()) {
    CUcontext context = stream->context();
    stream->submit({CU_GRAPH_NODE_TYPE_MEMSET,
                    [=] { set_now(context, to, value, element, extent); }});
    return CUDA_SUCCESS;
  }
  Place target;
  if (CUresult error = locate(to, extent, {stream->context(), nullptr},
                              kReadWrite, &target)) {
    return error;
  }
  if (target.pageable) return CUDA_ERROR_INVALID_VALUE;
  const auto work = [=] {
    if (race::on()) race::copied("a memset", &to, nullptr, extent);
    set_rows(target.bytes, to, value, element, extent);
  };
  // "Asynchronous with respect to the host except when the target is pinned
  // host memory or a unified memory region."
  if (!asynchronous && (!target.on_device || target.sync_memops)) {
    if (stream->spoil_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream->run(work);
    return static_cast<CUresult>(stream->context()->sticky.load());
  }
  stream->submit({CU_GRAPH_NODE_TYPE_MEMSET, work});
  return CUDA_SUCCESS;
}

}  // namespace ipclab::model
