// SPDX-License-Identifier: Apache-2.0
// Stream memory operations.
#include "core/stream_memory.h"

#include <sched.h>

#include <algorithm>
#include <ctime>
#include <type_traits>
#include <utility>

#include "core/device.h"
#include "core/machine.h"
#include "core/race.h"
#include "core/vmm.h"

namespace ipclab::model {
namespace {

// A waiting stream polls this often without a pause, because the write may come
// soon. The longer it has waited, the longer are its pauses (nanoseconds).
constexpr int kEagerLooks = 200;
constexpr long kShortestPause = 100'000;
constexpr long kLongestPause = 1'000'000;

// The condition of a wait, without the flag for the flush.
unsigned condition_of(unsigned flags) {
  return flags & ~static_cast<unsigned>(CU_STREAM_WAIT_VALUE_FLUSH);
}

CUresult check_flags(const StreamMemoryOperation& operation) {
  if (operation.kind == StreamMemoryOperation::kWrite) {
    if (operation.flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return operation.flags == CU_STREAM_WRITE_VALUE_DEFAULT
               ? CUDA_SUCCESS
               : CUDA_ERROR_NOT_SUPPORTED;
  }
  if (condition_of(operation.flags) > CU_STREAM_WAIT_VALUE_NOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return operation.flags == condition_of(operation.flags)
             ? CUDA_SUCCESS
             : CUDA_ERROR_NOT_SUPPORTED;
}

struct Word {
  void* place = nullptr;
  Pin pin;
};

bool may_use(Machine& machine, const Allocation& memory, CUcontext context,
             const StreamMemoryOperation& operation, Access needed) {
  switch (memory.kind) {
    case Kind::kManaged:
    case Kind::kPooled:  // not documented; an H200 with driver 580 refuses
      return false;
    case Kind::kMapped:
      return may_copy(machine, context, operation.address, operation.bytes,
                      needed);
    default:
      return true;
  }
}

CUresult locate(const StreamMemoryOperation& operation, CUcontext context,
                Word* word) {
  const Access needed =
      operation.kind == StreamMemoryOperation::kWrite ? kReadWrite : kRead;
  const Locked machine;
  const Allocation* memory = machine->memory.find(operation.address);
  if (memory == nullptr || operation.address % operation.bytes != 0 ||
      operation.bytes > memory->end() - operation.address ||
      !may_use(*machine, *memory, context, operation, needed)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!machine->window.contains(operation.address)) {
    word->place = reinterpret_cast<void*>(operation.address);
    return CUDA_SUCCESS;
  }
  word->place = machine->window.alias(operation.address);
  word->pin = machine->window.pin(operation.address, operation.bytes);
  return CUDA_SUCCESS;
}

template <typename T>
bool holds(T seen, T value, unsigned condition) {
  switch (condition) {
    case CU_STREAM_WAIT_VALUE_EQ:
      return seen == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (seen & value) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
      return static_cast<T>(~(seen | value)) != 0;
    default:  // CU_STREAM_WAIT_VALUE_GEQ, cyclic
      return static_cast<std::make_signed_t<T>>(seen - value) >= 0;
  }
}

// Ends early if the context gets a sticky error: its later work is dropped.
template <typename T>
void wait_for(const T* place, T value, unsigned condition, CUcontext context) {
  for (int looks = 0; context->sticky == 0; ++looks) {
    if (holds(__atomic_load_n(place, __ATOMIC_SEQ_CST), value, condition)) {
      return;
    }
    if (looks < kEagerLooks) {
      sched_yield();
    } else {
      const timespec pause{
          0, std::min(kShortestPause + (looks - kEagerLooks) * 50'000L,
                      kLongestPause)};
      nanosleep(&pause, nullptr);
    }
  }
}

template <typename T>
void perform(const StreamMemoryOperation& operation, void* place,
             CUcontext context) {
  const T value = static_cast<T>(operation.value);
  if (operation.kind == StreamMemoryOperation::kWrite) {
    if (race::on()) race::word_written(operation.address, operation.bytes);
    __atomic_store_n(static_cast<T*>(place), value, __ATOMIC_SEQ_CST);
  } else {
    wait_for(static_cast<const T*>(place), value, condition_of(operation.flags),
             context);
    if (race::on()) race::word_seen(operation.address, operation.bytes);
  }
}

}  // namespace

CUresult stream_memory(const std::shared_ptr<Stream>& stream,
                       const std::vector<StreamMemoryOperation>& operations) {
  CUcontext context = stream->context();
  std::vector<std::pair<StreamMemoryOperation, Word>> located;
  for (const StreamMemoryOperation& operation : operations) {
    if (CUresult error = check_flags(operation)) return error;
    Word word;
    if (CUresult error = locate(operation, context, &word)) return error;
    located.emplace_back(operation, std::move(word));
  }
  stream->submit({CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                  [located = std::move(located), context] {
                    for (const auto& [operation, word] : located) {
                      if (operation.bytes == 4) {
                        perform<uint32_t>(operation, word.place, context);
                      } else {
                        perform<uint64_t>(operation, word.place, context);
                      }
                    }
                  }});
  return CUDA_SUCCESS;
}

}  // namespace ipclab::model
