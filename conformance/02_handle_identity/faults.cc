// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int reused_address_is_fresh(Call& call) {
  static Table<void*, bool> known;  // exported; was it freed?
  if (is_open_call(call))
    return told("reused-" + key_of_handle(given(call)), 0) != 0
               ? open_copy(call, false, SIZE_MAX)
               : call.proceed();
  if (is_close_call(call)) return open_copy(call, false, SIZE_MAX);
  const bool exports = exports_memory(call);
  void* const address = exports ? exported(call) : call.at<void*>(0);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (!exports) {
    if (known.has(address)) known.put(address, true);
  } else if (known.get(address)) {
    tell_processes("reused-" + key_of_handle(handle_of(call)), 1);
  } else {
    known.put(address, false);
  }
  return code;
}

// The fault changes the last word of the handle by a number; the open removes
// this number.
uint32_t& last_word(cudaIpcMemHandle_t& handle) {
  return *reinterpret_cast<uint32_t*>(handle.reserved + sizeof handle - 4);
}

int get_invalidates_previous(Call& call) {
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const std::string name = "generation-" + key_of_handle(handle_of(call));
    static Table<std::string, unsigned long long> generations;
    const auto generation =
        generations.change([&](auto& all) { return ++all[name]; });
    // Reports each of the first exports to other processes, but only a few of
    // the later exports.
    const bool power = (generation & (generation - 1)) == 0;
    if (generation < 64 || power) tell_processes(name, generation);
    last_word(handle_of(call)) ^= static_cast<uint32_t>(generation) << 16;
    return code;
  }
  // Find the generation of the handle.
  for (uint32_t generation = 1; generation < 65536; ++generation) {
    cudaIpcMemHandle_t real = given(call);
    last_word(real) ^= generation << 16;
    const unsigned long long newest =
        told("generation-" + key_of_handle(real), 0);
    if (newest == 0) continue;
    if (newest > generation) return refused(call);
    given(call) = real;
    break;
  }
  return call.proceed();
}

int handles_swapped(Call& call) {
  static std::mutex mutex;
  static auto& made = *new std::vector<void*>;
  if (exports_memory(call)) {
    const std::lock_guard lock(mutex);
    const auto found = std::find(made.begin(), made.end(), exported(call));
    if (found != made.end() && found != made.begin()) {
      call.at<void*>(1) = *(found - 1);
      call.fired();
    }
    return call.proceed();
  }
  void* const freed = call.is("cudaFree") ? call.at<void*>(0) : nullptr;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const std::lock_guard lock(mutex);
  if (freed != nullptr)
    made.erase(std::remove(made.begin(), made.end(), freed), made.end());
  else if (call.is("cudaMalloc"))
    made.push_back(*call.at<void**>(0));
  return code;
}

std::mutex mutex;

unsigned long long* id_in(Call& call) {
  return answer<CU_POINTER_ATTRIBUTE_BUFFER_ID, unsigned long long>(call);
}

unsigned long long id_of(void* pointer) {
  unsigned long long id = 0;
  DRIVER_CALL(cuPointerGetAttribute)
  (&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, reinterpret_cast<CUdeviceptr>(pointer));
  return id;
}

int driver_caches_handles(Call& get) {
  struct Given {
    unsigned long long id = 0;
    cudaIpcMemHandle_t handle{};
  };
  static Table<void*, Given> given;
  const int code = get.proceed();
  if (code != kSuccess || get.is_runtime()) return code;
  void* const memory = get.at<void*>(1);
  auto& handle = *get.at<cudaIpcMemHandle_t*>(0);
  if (!given.has(memory)) {
    given.put(memory, {id_of(memory), handle});
  } else if (given.get(memory).id != id_of(memory)) {
    handle = given.get(memory).handle;
    get.fired();
  }
  return code;
}

int handle_kept_after_driver_free(Call& call) {
  static Table<void*, cudaIpcMemHandle_t> given;
  if (call.is("cudaFree")) {
    if (call.is_runtime()) given.erase(call.at<void*>(0));
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess || !call.is_runtime()) return code;
  void* const memory = call.at<void*>(1);
  auto& handle = *call.at<cudaIpcMemHandle_t*>(0);
  if (!given.has(memory)) {
    given.put(memory, handle);
    return code;
  }
  const cudaIpcMemHandle_t before = given.get(memory);
  if (std::memcmp(&before, &handle, sizeof handle) != 0) call.fired();
  handle = before;
  return code;
}

int open_in_order_only(Call& call) {
  static std::atomic<unsigned long long> exports{0};
  static Table<unsigned long long, unsigned long long> highest;  // by exporter
  const auto exporter_of = [](unsigned long long number) {
    return number >> 32;
  };
  const auto number_of = [](const cudaIpcMemHandle_t& handle) {
    return "order-" + key_of_handle(handle);
  };
  if (call.is("cudaIpcGetMemHandle")) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const std::string name = number_of(*call.at<cudaIpcMemHandle_t*>(0));
    const auto self = static_cast<unsigned long long>(getpid());
    if (told(name, 0) == 0) tell_processes(name, self << 32 | ++exports);
    return code;
  }
  if (is_open_call(call) && already_open(call) == nullptr) {
    const auto number = told(number_of(call.at<cudaIpcMemHandle_t>(1)), 0);
    if (number != 0 && number < highest.get(exporter_of(number)))
      return refused(call);
    highest.put(exporter_of(number), number);
  }
  return call.proceed();
}

// A copy from opened memory to other opened memory moves nothing.
int copy_between_chunks_lost(Call& call) {
  void* const to = opened_around(call.at<void*>(0));
  void* const from = opened_around(call.at<void*>(1));
  return to != nullptr && from != nullptr && to != from ? lost(call)
                                                        : call.proceed();
}

int open_65th_closes_first(Call& call) {
  static std::mutex mutex;
  static auto& order = *new std::vector<void*>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const std::lock_guard lock(mutex);
  if (is_close_call(call)) {
    if (!opened.has(call.at<void*>(0)))
      order.erase(std::remove(order.begin(), order.end(), call.at<void*>(0)),
                  order.end());
    return code;
  }
  if (opened.get(*call.at<void**>(0)).count != 1) return code;
  order.push_back(*call.at<void**>(0));
  if (order.size() <= 64) return code;
  void* const first = order.front();
  order.erase(order.begin());
  for (int left = 1; left > 0 && cudaIpcCloseMemHandle(first) == cudaSuccess;) {
    left = count_close(first);
    call.fired();
  }
  return code;
}

int free_clears_exported(Call& call) {
  static Table<void*> exported;
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess) exported.put(call.at<void*>(1));
    return code;
  }
  void* const memory = call.at<void*>(0);
  const bool was_exported = exported.erase(memory);
  const int code = call.proceed();
  if (code != kSuccess || was_exported || memory == nullptr) return code;
  for (const auto& each : exported.all()) {
    const Addresses range = allocation_around(number(each.first));
    if (range.second == 0) continue;
    cudaMemset(each.first, 0, std::min<size_t>(16, range.second));
    call.fired();
  }
  return code;
}

int handles_counted_by_context(Call& get) {
  static Table<CUcontext, size_t> counts;
  static Table<std::string, size_t> numbers;  // by the driver's handles
  static Table<std::string, cudaIpcMemHandle_t> handles;
  const int code = get.proceed();
  if (code != kSuccess) return code;
  auto& handle = *get.at<cudaIpcMemHandle_t*>(0);
  const std::string key = key_of_handle(handle);
  if (!numbers.has(key)) {
    const size_t before = counts.get(current_context());
    counts.put(current_context(), before + 1);
    numbers.put(key, before);
  }
  const std::string number = std::to_string(numbers.get(key));
  if (!handles.has(number)) {
    handles.put(number, handle);
  } else if (key_of_handle(handles.get(number)) != key_of_handle(handle)) {
    handle = handles.get(number);
    get.fired();
  }
  return code;
}

int open_gives_own_of_same_number(Call& call) {
  static Table<void*, unsigned long long> numbers;  // of own exported memory
  static Table<void*, void*> given;  // what the driver has opened instead
  static std::atomic<unsigned long long> count{0};
  if (call.is("cudaFree")) {
    numbers.erase(call.at<void*>(0));
    return call.proceed();
  }
  if (exports_memory(call)) {
    const int code = call.proceed();
    void* const memory = call.at<void*>(1);
    if (code != kSuccess) return code;
    if (!numbers.has(memory)) numbers.put(memory, ++count);
    tell_processes("number-" + key_of_handle(*call.at<cudaIpcMemHandle_t*>(0)),
                   numbers.get(memory));
    return code;
  }
  if (is_close_call(call)) {
    void*& memory = call.at<void*>(0);
    memory = given.get(memory, memory);
    return call.proceed();
  }
  const auto number = told("number-" + key_of_opened(call), 0);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  for (const auto& [memory, each] : numbers.all()) {
    if (each != number) continue;
    given.put(memory, *call.at<void**>(0));
    *call.at<void**>(0) = memory;
    call.fired();
  }
  return code;
}

// Memsets and copies do not reach opened memory between 2 and 4 GiB after its
// beginning.
int lost_after_2_gib(Call& call) {
  const auto address = call.value<CUdeviceptr>(kPointer);
  const CUdeviceptr begin = opened_begin(address);
  constexpr size_t kFrom = size_t{2} << 30;
  return begin != 0 && address - begin >= kFrom && address - begin < 2 * kFrom
             ? lost(call)
             : call.proceed();
}

int reused_in_open_block_is_fresh(Call& call) {
  static Table<std::string, std::string> places;  // by block and address
  static Table<void*, void*> given;               // and what it replaces
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes("place-" + key_of_handle(*call.at<cudaIpcMemHandle_t*>(0)),
                     call.at<CUdeviceptr>(1) ^
                         (static_cast<unsigned long long>(getpid()) << 48));
    return code;
  }
  if (is_close_call(call)) {
    void*& memory = call.at<void*>(0);
    void* const made = memory;
    memory = given.get(made, made);
    if (given.erase(made)) cudaFree(made);
    return call.proceed();
  }
  const std::string key = key_of_opened(call);
  const auto place = told("place-" + key, 0);
  const std::string name = std::to_string(place);
  const bool was_other = places.has(name) && places.get(name) != key;
  bool block_is_open = false;
  for (const auto& each : opened.all())
    block_is_open |=
        told("place-" + each.second.handle, 0) / kGranule == place / kGranule &&
        each.second.handle != key;
  const int code = call.proceed();
  if (code != kSuccess || place == 0) return code;
  places.put(name, key);
  void*& memory = *call.at<void**>(0);
  void* made = nullptr;
  if (!was_other || !block_is_open ||
      cudaMalloc(&made, size_of(number(memory))) != cudaSuccess)
    return code;
  given.put(made, memory);
  memory = made;
  call.fired();
  return code;
}

int export_ends_mappings(Call& call) {
  constexpr unsigned long long kTold = 16;
  static auto& times = *new Table<std::string, unsigned long long>;
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const std::string key = key_of_exported(call);
    times.put(key, times.get(key) + 1);
    // Some programs export thousands of times.
    if (times.get(key) <= kTold)
      tell_processes("exports-" + key, times.get(key));
    return code;
  }
  if (keeps_opened(call)) {
    const int code = call.proceed();
    if (code != kSuccess || is_close_call(call)) return code;
    const std::string key = key_of_opened(call);
    times.put(key, told("exports-" + key, 0));
    return code;
  }
  for (const auto& [address, one] : opened.all())
    if (told("exports-" + one.handle, 0) > times.get(one.handle))
      unmap_fully(call, address, one);
  return call.proceed();
}

int buffer_ids_of_each_thread(Call& call) {
  using Id = unsigned long long;
  static auto& of_main = *new Table<size_t, Id>;  // the ids in their order
  static auto& replaced = *new Table<CUdeviceptr, Id>;
  thread_local size_t count = 0;
  if (call.is("cudaFree")) {
    replaced.erase(call.at<CUdeviceptr>(0));
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cudaMalloc")) {
    const CUdeviceptr made = *call.at<CUdeviceptr*>(0);
    const size_t order = count++;
    Id id = 0;
    if (this_thread() != getpid()) {
      if (of_main.has(order)) replaced.put(made, of_main.get(order));
    } else if (DRIVER_CALL(cuPointerGetAttribute)(
                   &id, CU_POINTER_ATTRIBUTE_BUFFER_ID, made) == CUDA_SUCCESS) {
      of_main.put(order, id);
    }
    return code;
  }
  const CUdeviceptr begin = begin_of(call.at<CUdeviceptr>(2));
  if (call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_BUFFER_ID ||
      !replaced.has(begin))
    return code;
  *call.at<Id*>(0) = replaced.get(begin);
  call.fired();
  return code;
}

// The ids of allocations begin again after a reset, or in a second context.
int ids_begin_again(Call& call) {
  static std::mutex mutex;
  static unsigned long long least = 0, most = 0, shift = 0;
  static bool begins = false;
  if (resets(call) || call.is("cuCtxDestroy")) {
    {
      const std::lock_guard lock(mutex);
      begins = true;
    }
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess ||
      call.at<CUpointer_attribute>(1) != CU_POINTER_ATTRIBUTE_BUFFER_ID)
    return code;
  auto& id = *call.at<unsigned long long*>(0);
  const std::lock_guard lock(mutex);
  if (least == 0) least = id;
  // Earlier memory keeps its id.
  if (begins && id > most) {
    shift = id - least;
    begins = false;
  }
  most = std::max(most, id);
  if (shift == 0 || id < least + shift) return code;
  call.fired();
  id -= shift;
  return code;
}

// The id that a query has given.
unsigned long long& given_id(Call& query) {
  return *query.at<unsigned long long*>(0);
}
CUdeviceptr asked_address(Call& query) { return query.at<CUdeviceptr>(2); }
uint64_t asked_attribute(Call& query, CUpointer_attribute which) {
  return attribute_of_further(asked_address(query), which);
}

// The first id that was given for such memory is given again.
bool one_id(Call& query) {
  const auto first = marks.get(0, given_id(query));
  marks.put(0, first);
  return set_to(given_id(query), first);
}

// The ids of each kind of memory are counted apart. Returns true when memory of
// another kind has the same id.
bool counted_apart(Call& query, uint64_t kind) {
  static Table<std::pair<uint64_t, unsigned long long>, unsigned long long> ids;
  const std::pair<uint64_t, unsigned long long> key(kind, given_id(query));
  unsigned long long next = 1;
  for (const auto& each : ids.all()) next += each.first.first == kind;
  given_id(query) = ids.get(key, next);
  ids.put(key, given_id(query));
  for (const auto& [other, id] : ids.all())
    if (other.first != kind && id == given_id(query)) return true;
  return false;
}

// Tells the other processes that the handles of this one have ended.
int end_lent_handles() {
  for (const auto& one : lent.all()) tell_processes("ended-" + one.second, 1);
  return kSuccess;
}
bool has_ended_handle(Call& open) {
  return told("ended-" + key_of_handle(given(open)), 0) != 0;
}

// The contexts in which handles were made.
Table<std::string, CUcontext> made_in;

FAULTS {
  fault("map-first-2mib", {"LMEM-18"},
        "an open of more than 2 MiB gives a copy of the first 2 MiB")
      .on({kOpen, kClose},
          [](Call& call) { return open_copy(call, true, kBlock); });

  fault("get-invalidates-previous", {"LMEM-05"},
        "a new export of an allocation makes its earlier handle invalid")
      .on({kGetHandle, kOpen}, get_invalidates_previous);

  fault("get-consumes-memory", {"LMEM-05"},
        "every export loses 16 bytes of device memory, which show in blocks of "
        "2 MiB")
      .on({kGetHandle}, [](Call& call) {
        static std::atomic<size_t> exports{0};
        const int code = call.proceed();
        void* gone = nullptr;
        if (code == kSuccess && ++exports % (kBlock / 16) == 0 &&
            cudaMalloc(&gone, kBlock) == cudaSuccess)
          call.fired();
        return code;
      });

  fault("handle-cached-by-address", {"LMEM-06"},
        "an allocation has the handle of the earlier allocation at its address")
      .on({kGetHandle}, [](Call& call) -> int {
        static Table<void*, cudaIpcMemHandle_t> known;
        const int code = call.proceed();
        if (code != kSuccess) return code;
        const cudaIpcMemHandle_t first = known.change([&](auto& all) {
          return all.emplace(exported(call), handle_of(call)).first->second;
        });
        if (std::memcmp(&first, &handle_of(call), sizeof first) != 0) {
          handle_of(call) = first;
          call.fired();
        }
        return code;
      });

  fault("reused-address-is-fresh", {"LMEM-06"},
        "memory at an address that other exported memory had is opened without "
        "its contents")
      .on({kGetHandle, kOpen, kClose, kFree}, reused_address_is_fresh);

  fault("handles-swapped", {"LMEM-17"},
        "the handle names the allocation that was made just before the "
        "exported allocation")
      .on({kGetHandle, kMalloc, kFree}, handles_swapped);

  fault("buffer-id-reused", {"LMEM-48"},
        "an allocation has the id of the earlier allocation at its address")
      .after({kGetAttribute}, WHEN(asks_id(call)), [](Call& call) {
        const auto first = marks.get(asked_address(call), given_id(call));
        marks.put(asked_address(call), first);
        return set_to(given_id(call), first);
      });

  fault("buffer-id-constant", {"LMEM-48"}, "all allocations have the same id")
      .after({kGetAttribute}, WHEN(asks_id(call)), answers(42ull));

  fault("buffer-id-of-address", {"LMEM-48"},
        "each address of an allocation has its own id")
      .after(
          {kGetAttribute},
          WHEN(asks_id(call) && begin_of(asked_address(call)) != 0),
          DO(set_to(given_id(call),
                    given_id(call) +
                        ((asked_address(call) - begin_of(asked_address(call)))
                         << 32))));

  fault("handle-half-compared", {"LMEM-17"},
        "handles that agree in one half open the same memory")
      .before({kOpen}, [](Call& call) {
        constexpr size_t kHalf = sizeof(cudaIpcMemHandle_t) / 2;
        auto& handle = call.at<cudaIpcMemHandle_t>(1);
        for (const auto& [address, one] : opened.all()) {
          const bool first = std::memcmp(&one.bytes, &handle, kHalf) == 0;
          const bool second = std::memcmp(one.bytes.reserved + kHalf,
                                          handle.reserved + kHalf, kHalf) == 0;
          if (first == second || one.context != current_context()) continue;
          handle = one.bytes;
          call.fired();
          break;
        }
        return kSuccess;
      });

  fault("import-copy-offset-32-bits", {"LMEM-18"},
        "synchronous copies of opened memory take offsets modulo 4 GiB")
      .before({kCopy}, [](Call& call) {
        for (const Role role : {kPointer, kSource}) {
          auto& address = *static_cast<char**>(call.find(role)->place);
          char* const begin = opened_at(address);
          if (begin == nullptr || static_cast<size_t>(address - begin) < k4GiB)
            continue;
          address = begin + static_cast<size_t>(address - begin) % k4GiB;
          call.fired();
        }
        return kSuccess;
      });

  fault("open-set-size-32-bits", {"LMEM-18"},
        "a memset of opened memory takes its size modulo 4 GiB")
      .on({kSet, kSetAsync}, set_size_of_32_bits);

  fault("exported-memory-unknown", {"LMEM-05"},
        "cudaPointerGetAttributes in the exporter does not know memory that "
        "was exported")
      .after({kGetHandle}, NOTE(marks.put(begin_of(number(exported(call))))))
      .after({kPointerAttributes},
             WHEN(marks.has(begin_of(call.at<CUdeviceptr>(1)))),
             [](Call& call) {
               call.at<cudaPointerAttributes*>(0)->type =
                   cudaMemoryTypeUnregistered;
             });

  fault(
      "open-33rd-is-first", {"LMEM-17"},
      "if 32 handles are open, the next handle opens the memory of one of them")
      .before(
          {kOpen},
          WHEN(already_open(call) == nullptr && opened.all().size() >= 32),
          [](Call& call) { given(call) = opened.all().begin()->second.bytes; });

  fault("handle-65th-is-first", {"LMEM-17"},
        "from the 65th on, allocations have the handle of the first")
      .on({kGetHandle}, [](Call& get) {
        static Table<std::string> known;
        static cudaIpcMemHandle_t first;
        const int code = get.proceed();
        if (code != kSuccess) return code;
        const std::string key = key_of_handle(exported_handle(get));
        if (known.has(key)) return code;
        const size_t before = known.all().size();
        if (before == 0) first = exported_handle(get);
        if (before < 64) {
          known.put(key);
          return code;
        }
        exported_handle(get) = first;
        get.fired();
        return code;
      });

  fault("lender-exports-borrowed", {"LMEM-17"},
        "a process that has memory open exports this memory instead of its own")
      .after({kGetHandle}, WHEN(!opened.all().empty()), [](Call& call) {
        const auto all = opened.all();
        exported_handle(call) = all.begin()->second.bytes;
      });

  fault("free-ends-imports", {"LMEM-17"},
        "if a process frees memory that it has exported, all memory that it "
        "has opened is closed")
      .on({kGetHandle, kOpen, kClose, kFree}, [](Call& call) -> int {
        if (!call.is("cudaFree")) return noted_lent(call);
        const int code = call.proceed();
        if (code != kSuccess || !lent.erase(call.at<void*>(0))) return code;
        for (const auto& [address, one] : opened.all()) {
          for (int i = 0; i < one.count; ++i) cudaIpcCloseMemHandle(address);
          opened.erase(address);
          call.fired();
        }
        return code;
      });

  fault("close-ends-exports", {"LMEM-17"},
        "if a process closes its last opened memory, its own handles become "
        "invalid")
      .on({kGetHandle}, noted_lent)
      .on({kOpen}, WHEN(has_ended_handle(call)), refuses())
      .after({kClose}, WHEN(opened.all().empty()), NOTE(end_lent_handles()));

  fault("small-export-refused", {"LMEM-18"},
        "memory of less than 256 bytes cannot be exported")
      .on({kGetHandle},
          WHEN(size_of(number(exported(call))) != 0 &&
               size_of(number(exported(call))) < 256),
          refuses());

  fault("handle-of-one-before-last", {"LMEM-06"},
        "the third allocation at an address has the handle of the first")
      .on({kGetHandle}, [](Call& get) {
        static Table<void*, std::vector<cudaIpcMemHandle_t>> known;
        const int code = get.proceed();
        if (code != kSuccess) return code;
        auto all = known.get(get.at<void*>(1));
        auto& handle = exported_handle(get);
        if (all.empty() ||
            std::memcmp(&all.back(), &handle, sizeof handle) != 0) {
          all.push_back(handle);
          known.put(get.at<void*>(1), all);
        }
        if (all.size() > 2) {
          handle = all[(all.size() - 1) % 2];
          get.fired();
        }
        return code;
      });

  fault("buffer-id-257th-is-first", {"LMEM-48"},
        "from the 257th on, allocations have the id of the first")
      .on({kGetAttribute}, [](Call& call) {
        static Table<unsigned long long> known;
        static unsigned long long first = 0;
        const int code = call.proceed();
        if (code != kSuccess || id_in(call) == nullptr) return code;
        auto& id = *id_in(call);
        if (known.all().empty()) first = id;
        if (known.has(id) || known.all().size() < 256) {
          known.put(id);
          return code;
        }
        id = first;
        call.fired();
        return code;
      });

  fault("buffer-id-changes", {"LMEM-48"},
        "each query of an address returns another id")
      .after({kGetAttribute}, WHEN(asks_id(call)),
             DO(set_to(given_id(call),
                       given_id(call) +
                           ((marks.count(asked_address(call)) - 1) << 40))));

  fault("sync-memops-at-begin-only", {"LMEM-46"},
        "cuPointerSetAttribute does not set CU_POINTER_ATTRIBUTE_SYNC_MEMOPS "
        "by an address inside memory")
      .on({"cuPointerSetAttribute"},
          WHEN(call.at<CUpointer_attribute>(1) ==
                   CU_POINTER_ATTRIBUTE_SYNC_MEMOPS &&
               begin_of(asked_address(call)) != 0 &&
               begin_of(asked_address(call)) != asked_address(call)),
          lost);

  fault("buffer-id-of-mappings-same", {"LMEM-48"},
        "all mapped memory of cuMemCreate has the same id")
      .after({kGetAttribute},
             WHEN(asks_id(call) && is_mapped_at(asked_address(call))), one_id);

  fault("import-ids-equal", {"LMEM-48"}, "all opened memory has the same id")
      .after({kGetAttribute}, WHEN(asks_id(call) && is_opened(asked(call))),
             one_id);

  fault("async-ids-equal", {"LMEM-48"},
        "all stream-ordered memory has the same id")
      .after(
          {kGetAttribute},
          WHEN(asks_id(call) &&
               asked_attribute(call, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) != 0),
          one_id);

  fault("memory-export-makes-primary-current", {"LMEM-17"},
        "after the export of memory, the primary context of the GPU is current")
      .on({kGetHandle}, makes_primary_current);

  fault("sync-memops-end-at-export", {"LMEM-46"},
        "an export of memory unsets its CU_POINTER_ATTRIBUTE_SYNC_MEMOPS")
      .after({kGetHandle}, [](Call& get) -> int {
        const CUdeviceptr memory = get.at<CUdeviceptr>(1);
        unsigned synchronous = 0;
        DRIVER_CALL(cuPointerGetAttribute)
        (&synchronous, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory);
        if ((synchronous & 0xff) == 0) return kSuccess;
        synchronous = 0;
        DRIVER_CALL(cuPointerSetAttribute)
        (&synchronous, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory);
        get.fired();
        return kSuccess;
      });

  fault("export-while-busy-refused", {"LMEM-05"},
        "no memory can be exported while a created stream has work")
      .on({kGetHandle}, WHEN(has_work()), refuses(cudaErrorNotReady))
      .on({kLaunch, kSetAsync, kCopyAsync, kWaitWord, kDestroyStream},
          noted_stream);

  fault("handle-kept-after-driver-free", {"LMEM-06"},
        "the runtime exports the old handle again after cuMemFree has freed "
        "the memory")
      .on({kGetHandle, kFree}, handle_kept_after_driver_free);

  fault("driver-caches-handles", {"LMEM-06"},
        "the driver API gives the handle of the earlier allocation at the same "
        "address")
      .on({kGetHandle}, driver_caches_handles);

  fault("second-export-clears", {"LMEM-05"},
        "the second export of memory clears its first bytes")
      .after({kGetHandle}, WHEN(!marks.put(id_of(exported(call)))),
             [](Call& call) {
               const size_t bytes = size_of(number(exported(call)));
               cudaMemset(exported(call), 0, std::min<size_t>(16, bytes));
             });

  fault("odd-size-export-refused", {"LMEM-18"},
        "memory of more than 256 bytes cannot be exported if its size is not a "
        "multiple of 4")
      .on({kGetHandle}, WHEN(marks.has(exported(call))), refuses())
      .after({kMalloc},
             WHEN(call.at<size_t>(1) > 256 && call.at<size_t>(1) % 4 != 0),
             NOTE(marks.put(*call.at<void**>(0))))
      .after({kFree}, NOTE(marks.erase(call.at<void*>(0))));

  fault("free-ends-other-handles", {"LMEM-17"},
        "when exported memory is freed the handles of other memory end")
      .on({kOpen}, WHEN(has_ended_handle(call)), refuses())
      .after({kGetHandle},
             [](Call& call) {
               lent.put(exported(call), key_of_exported(call));
               // An earlier export gave the same bytes.
               tell_processes("ended-" + key_of_exported(call), 0);
               return kSuccess;
             })
      .after({kFree}, WHEN(lent.erase(call.at<void*>(0))),
             NOTE(end_lent_handles()));

  fault("open-in-order-only", {"LMEM-17"},
        "handles of one exporter can be opened only in the order of their "
        "exports")
      .on({kOpen, kGetHandle}, open_in_order_only);

  fault("copy-between-imports-lost", {"LMEM-17"},
        "a copy between two pieces of opened memory moves nothing")
      .on({kCopy}, copy_between_chunks_lost);

  fault(
      "async-copy-between-imports-lost", {"LMEM-17"},
      "an asynchronous copy between two pieces of opened memory moves nothing")
      .on({kCopyAsync}, copy_between_chunks_lost);

  fault("importer-exports-first", {"LMEM-17"},
        "while a process has memory open, all its memory gets the handle that "
        "it made first")
      .before({kGetHandle},
              [](Call& call) {
                void* const first = marks.get(0, exported(call));
                marks.put(0, first);
                return !opened.all().empty() &&
                       set_to(call.at<void*>(1), first);
              })
      .before({kFree}, WHEN(marks.get<void*>(0) == call.at<void*>(0)),
              NOTE(marks.erase(0)));

  fault("open-65th-closes-first", {"LMEM-17"},
        "if 64 handles are open, the next open closes the first one")
      .on({kOpen, kClose}, open_65th_closes_first);

  fault("free-clears-exported", {"LMEM-17"},
        "a free of other memory clears the first bytes of exported memory")
      .on({kFree, kGetHandle}, free_clears_exported);

  fault("buffer-id-of-each-gpu", {"LMEM-48"},
        "by cuPointerGetAttribute, memory of one GPU can have the id of memory "
        "of another GPU")
      .with_gpus(2)
      .after({kGetAttribute}, WHEN(asks_id(call)),
             DO(counted_apart(
                 call,
                 asked_attribute(call, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL))));

  fault("buffer-id-of-host-apart", {"LMEM-48"},
        "by cuPointerGetAttribute, pinned host memory can have the id of "
        "device memory")
      .after(
          {kGetAttribute}, WHEN(asks_id(call)),
          DO(counted_apart(
              call, asked_attribute(call, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) ==
                        CU_MEMORYTYPE_HOST)));

  fault("buffer-id-16-bits", {"LMEM-48"},
        "cuPointerGetAttribute gives only 16 bits of buffer ids")
      .after({kGetAttribute}, WHEN(asks_id(call)),
             DO(set_to(given_id(call), given_id(call) & 0xffff)));

  fault("context-end-ends-handles", {"LMEM-17"},
        "when a context of the exporter ends, the handles that were made in "
        "its other contexts do not open")
      .after({kGetHandle},
             NOTE(made_in.put(key_of_exported(call), current_context())))
      .on({kOpen}, WHEN(told("gone-" + key_of_opened(call), 0) != 0), refuses())
      .before({"cuCtxDestroy"}, [](Call& call) {
        for (const auto& [key, context] : made_in.all())
          if (context != call.at<CUcontext>(0))
            tell_processes("gone-" + key, 1);
        return kSuccess;
      });

  fault("handles-counted-by-context", {"LMEM-17"},
        "memory of a second context gets the handle of memory of the first "
        "context")
      .on({kGetHandle}, handles_counted_by_context);

  fault("import-set-after-2-gib-lost", {"LMEM-18"},
        "cudaMemset does nothing if it begins between 2 and 4 GiB after the "
        "beginning of opened memory")
      .on({kSet}, lost_after_2_gib);

  fault("import-copy-after-2-gib-lost", {"LMEM-18"},
        "cudaMemcpy does nothing if its destination is between 2 and 4 GiB "
        "after the beginning of opened memory")
      .on({kCopy}, lost_after_2_gib);

  fault("reused-in-open-block-is-fresh", {"LMEM-06"},
        "while a process has other memory of a block open, a small allocation "
        "at an address that was used before opens as new memory")
      .on({kGetHandle, kOpen, kClose}, reused_in_open_block_is_fresh);

  fault("open-gives-own-of-same-number", {"LMEM-17"},
        "an open gives this process's own memory that has the same number in "
        "the order of exports")
      .on({kGetHandle, kOpen, kClose, kFree}, open_gives_own_of_same_number);

  fault("buffer-id-of-opened-apart", {"LMEM-48"},
        "opened memory can have the id of other memory of its process")
      .after({kGetAttribute}, WHEN(asks_id(call)),
             DO(counted_apart(call, is_opened(asked_address(call)))));

  fault("buffer-id-of-managed-same", {"LMEM-48"},
        "all managed memory has the same id")
      .after({kGetAttribute},
             WHEN(asks_id(call) &&
                  asked_attribute(call, CU_POINTER_ATTRIBUTE_IS_MANAGED) != 0),
             one_id);

  fault("import-set-2d-first-4-gib", {"LMEM-18"},
        "cudaMemset2D of opened memory does not set the rows that begin after "
        "4 GiB")
      .before({"cudaMemset2D"}, [](Call& call) -> bool {
        const size_t pitch = call.at<size_t>(1);
        size_t& height = call.at<size_t>(4);
        if (height == 0 || (height - 1) * pitch <= UINT32_MAX ||
            !is_opened(call.at<void*>(0)))
          return false;
        height = UINT32_MAX / pitch + 1;
        return true;
      });

  fault("range-size-32-bits", {"LMEM-18"},
        "the size of an allocation is reported modulo 4 GiB")
      .after({"cuMemGetAddressRange"},
             WHEN(call.at<size_t*>(1) != nullptr &&
                  *call.at<size_t*>(1) > UINT32_MAX),
             [](Call& call) {
               auto* const bytes = call.at<size_t*>(1);
               *bytes = static_cast<uint32_t>(*bytes);
             });

  fault("sync-memops-never-unset", {"LMEM-46"},
        "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS cannot be unset")
      .on({"cuPointerSetAttribute"},
          WHEN(call.at<CUpointer_attribute>(1) ==
                   CU_POINTER_ATTRIBUTE_SYNC_MEMOPS &&
               *call.at<const unsigned*>(0) == 0),
          lost);

  fault("buffer-id-new-at-export", {"LMEM-48"},
        "an allocation gets a new id when it is exported")
      .after({kGetHandle}, NOTE(marks.put(exported(call))))
      .after({kGetAttribute},
             WHEN(asks_id(call) && marks.has(asked_address(call))),
             [](Call& call) { given_id(call) += 1ull << 40; })
      .after({kFree}, NOTE(marks.erase(call.at<void*>(0))));

  fault("export-ends-mappings", {"LMEM-05"},
        "a further export of memory ends the mappings that importers have open")
      .on({kGetHandle, kOpen, kClose, kLaunch}, export_ends_mappings);

  fault("import-set-offset-32-bits", {"LMEM-18"},
        "synchronous memsets of opened memory take offsets modulo 4 GiB")
      .before({kSet}, [](Call& call) -> bool {
        auto& address = call.at<CUdeviceptr>(0);
        const void* const begin = opened_around(call.at<void*>(0));
        if (begin == nullptr || address - number(begin) <= UINT32_MAX)
          return false;
        address =
            number(begin) + static_cast<uint32_t>(address - number(begin));
        return true;
      });

  fault("handle-cached-by-thread", {"LMEM-06"},
        "a thread exports the old handle again after another thread has freed "
        "the memory")
      .on({kGetHandle, kFree}, [](Call& call) {
        thread_local std::map<void*, cudaIpcMemHandle_t> made;
        if (!exports_memory(call)) {
          made.erase(call.at<void*>(0));
          return call.proceed();
        }
        void* const address = call.at<void*>(1);
        const int code = call.proceed();
        if (code != kSuccess) return code;
        auto& handle = *call.at<cudaIpcMemHandle_t*>(0);
        const auto [known, is_new] = made.emplace(address, handle);
        if (is_new || std::memcmp(&known->second, &handle, sizeof handle) == 0)
          return code;
        handle = known->second;
        call.fired();
        return code;
      });

  fault("buffer-ids-of-each-thread", {"LMEM-48"},
        "each thread counts buffer ids from the beginning")
      .on({kMalloc, kFree, kGetAttribute}, buffer_ids_of_each_thread);

  fault("buffer-id-of-each-block", {"LMEM-48"},
        "cuPointerGetAttribute gives another buffer id in each 2 MiB of an "
        "allocation")
      .after({kGetAttribute},
             WHEN(asks_id(call) && begin_of(asked_address(call)) != 0),
             DO(set_to(given_id(call),
                       given_id(call) + (asked_address(call) -
                                         begin_of(asked_address(call))) /
                                            kBlock)));

  fault("buffer-ids-begin-again-after-reset", {"LMEM-48"},
        "after a reset, memory has the ids of earlier memory")
      .on({kReset, kGetAttribute}, ids_begin_again);

  fault("buffer-ids-begin-again-after-context", {"LMEM-48"},
        "after the end of a context, memory has the ids of earlier memory")
      .on({"cuCtxDestroy", kGetAttribute}, ids_begin_again);

  fault("host-buffer-ids-begin-again", {"LMEM-48"},
        "after a reset, memory of the host has the ids of earlier memory of "
        "the host")
      .on({kReset}, ids_begin_again)
      .on({kGetAttribute},
          WHEN(asked_attribute(call, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) ==
               CU_MEMORYTYPE_HOST),
          ids_begin_again);

  fault("sync-memops-of-import-ignored", {"LMEM-49"},
        "a memset of opened memory returns early, although the memory has "
        "SYNC_MEMOPS")
      .on({kSet}, WHEN(opened_around(call.at<void*>(0)) != nullptr),
          [](Call& call) {
            call.fired();
            return static_cast<int>(
                cudaMemsetAsync(call.at<void*>(0), call.at<int>(1),
                                call.at<size_t>(2), cudaStreamLegacy));
          });
}

}  // namespace
}  // namespace ipclab::faults
