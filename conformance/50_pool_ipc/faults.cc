// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// A descriptor, and a copy of it that stays open.
struct Source {
  int number = -1;
  int copy = -1;
};

Source source_of_pool(int number) {
  return {number, fcntl(number, F_DUPFD_CLOEXEC, 300)};
}

// Is the descriptor closed? Its number may be that of another file now.
bool is_closed(const Source& source) {
  return source.copy != -1 && (!is_open(source.number) ||
                               !name_the_same(source.number, source.copy));
}

// Does an imported block contain the address?
bool is_in_import(void* address) {
  for (const auto& [begin, block] : blocks.all())
    if (block.imported && address >= begin &&
        address < static_cast<char*>(begin) + std::max<size_t>(block.bytes, 1))
      return true;
  return false;
}

int import_known_address(Call& call) {
  static Table<unsigned long long> known;
  const auto key = [](void* data) { return key_of_data(data) + "-at"; };
  if (call.is("cudaMemPoolExportPointer")) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes(key(call.at<void*>(0)),
                     call.at<uintptr_t>(1) ^
                         static_cast<unsigned long long>(getpid()) << 48);
    return code;
  }
  if (!call.is("cudaMemPoolImportPointer"))
    return import_other_memory(call, false);
  const unsigned long long address = told(key(call.at<void*>(2)), 0);
  if (known.has(address)) return import_other_memory(call, false);
  known.put(address);
  return call.proceed();
}

int offset_lost(Call& call) {
  static Table<std::pair<void*, void*>> real;  // a page, and an import in it
  if (frees(call)) {
    void*& address = call.at<void*>(0);
    for (const auto& each : real.all()) {
      if (each.first.first != address || !real.erase(each.first)) continue;
      address = each.first.second;
      break;
    }
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  void*& address = *call.at<void**>(0);
  void* const page = reinterpret_cast<void*>(
      reinterpret_cast<uintptr_t>(address) & ~(kPage - 1));
  if (page == address) return code;
  real.put({page, address});
  address = page;
  call.fired();
  return code;
}

int copy_from_import_stale(Call& call) {
  static Table<void*, std::vector<char>*> first;
  const int code = call.proceed();
  if (frees(call))
    for (const auto& each : first.all())
      if (!is_in_import(each.first)) first.erase(each.first);
  if (!call.is("cudaMemcpy") || code != kSuccess || !call.is_runtime() ||
      !is_in_import(call.at<void*>(1)))
    return code;
  const size_t bytes = call.at<size_t>(2);
  auto* const known = first.get(call.at<void*>(1));
  if (known == nullptr) {
    auto* const seen = new std::vector<char>(bytes);
    cudaMemcpy(seen->data(), call.at<void*>(0), bytes, cudaMemcpyDefault);
    first.put(call.at<void*>(1), seen);
  } else if (known->size() == bytes) {
    cudaMemcpy(call.at<void*>(0), known->data(), bytes, cudaMemcpyDefault);
    call.fired();
  }
  return code;
}

int equal_size_shared(Call& call) {
  static Table<void*, int> more;  // imports that got an earlier address
  if (frees(call) && more.get(call.at<void*>(0)) > 0) {
    more.put(call.at<void*>(0), more.get(call.at<void*>(0)) - 1);
    return kSuccess;
  }
  const int code = call.proceed();
  if (code != kSuccess || !call.is("cudaMemPoolImportPointer")) return code;
  void*& address = *call.at<void**>(0);
  const Block own = blocks.get(address);
  for (const auto& [other, block] : blocks.all())
    if (other != address && block.imported && block.pool == own.pool &&
        block.bytes == own.bytes) {
      blocks.erase(address);
      address = other;
      more.put(other, more.get(other) + 1);
      call.fired();
      break;
    }
  return code;
}

int export_by_known_handle(Call& call) {
  static Table<cudaMemPool_t, int> copies;
  static Table<cudaMemPool_t> gone;
  if (call.is("cudaMemPoolDestroy")) {
    gone.put(call.at<cudaMemPool_t>(0));
    return call.proceed();
  }
  const auto pool = call.at<cudaMemPool_t>(1);
  const int code = call.proceed();
  if (code != kSuccess || call.at<Handles>(2) != kPoolFd) return code;
  int& number = *call.at<int*>(0);
  if (copies.has(pool) && gone.has(pool)) {
    close(number);
    number = fcntl(copies.get(pool), F_DUPFD_CLOEXEC, 0);
    call.fired();
  } else if (!copies.has(pool)) {
    copies.put(pool, fcntl(number, F_DUPFD_CLOEXEC, 300));
    gone.erase(pool);
  }
  return code;
}

int export_same_number(Call& call) {
  static Table<cudaMemPool_t, Source> first;
  if (call.is("cudaMemPoolDestroy")) {
    first.erase(call.at<cudaMemPool_t>(0));
    return call.proceed();
  }
  const auto pool = call.at<cudaMemPool_t>(1);
  const int code = call.proceed();
  if (code != kSuccess || call.at<Handles>(2) != kPoolFd) return code;
  int& number = *call.at<int*>(0);
  const Source known = first.get(pool);
  if (known.copy != -1 && !is_closed(known)) {
    close(number);
    number = known.number;
    call.fired();
  } else {
    first.put(pool, source_of_pool(number));
  }
  return code;
}

bool is_descriptor(Call& export_call) {
  return export_call.at<cudaMemAllocationHandleType>(2) ==
         cudaMemHandleTypePosixFileDescriptor;
}

int import_has_earlier_size(Call& call) {
  static Table<unsigned long long, unsigned long long> sizes;
  static Table<CUdeviceptr, size_t> wrong;
  if (call.is("cuMemGetAddressRange")) {
    const int code = call.proceed();
    const auto address = call.at<CUdeviceptr>(2);
    if (code == kSuccess && call.at<size_t*>(1) != nullptr &&
        wrong.has(address)) {
      *call.at<size_t*>(1) = wrong.get(address);
      call.fired();
    }
    return code;
  }
  if (frees(call)) wrong.erase(call.at<CUdeviceptr>(0));
  const int code = call.proceed();
  if (code == kSuccess && call.is("cudaMemPoolExportPointer"))
    tell_processes("address-" + key_of_data(call.at<void*>(0)),
                   number(call.at<void*>(1)));
  if (code != kSuccess || !call.is("cudaMemPoolImportPointer")) return code;
  const std::string key = key_of_data(call.at<void*>(2));
  const auto address = told("address-" + key, 0);
  const auto bytes = told(key, 0);
  if (sizes.has(address) && sizes.get(address) != bytes)
    wrong.put(*call.at<CUdeviceptr*>(0), sizes.get(address));
  sizes.put(address, bytes);
  return code;
}

int exported_as_first(Call& call) {
  static auto& first = *new Table<cudaMemPool_t, cudaMemPoolPtrExportData>;
  static auto& pointers = *new Table<cudaMemPool_t, void*>;
  if (!call.is("cudaMemPoolExportPointer")) {
    // After the free, other memory may get the address, and another pool the
    // handle.
    if (frees(call))
      for (const auto& [pool, pointer] : pointers.all())
        if (pointer == call.at<void*>(0)) pointers.erase(pool);
    return call.proceed();
  }
  const int code = call.proceed();
  void* const exported = call.at<void*>(1);
  if (code != kSuccess || !blocks.has(exported)) return code;
  const auto pool = blocks.get(exported).pool;
  auto& data = *call.at<cudaMemPoolPtrExportData*>(0);
  if (!pointers.has(pool)) {
    first.put(pool, data);
    pointers.put(pool, exported);
  }
  if (pointers.get(pool) == exported) return code;
  data = first.get(pool);
  return accepted(call);
}

// The number of exported data in the order of all exports; `none` if it is not
// known.
unsigned long long place_of_pool(const void* data, unsigned long long none) {
  return told("place-" + key_of(data, sizeof(cudaMemPoolPtrExportData)), none);
}

// Exported data are refused if data of a later export were already imported.
// With `latest_only`, they are refused if there is any later export.
template <bool latest_only>
int imported_in_order(Call& call) {
  static std::atomic<unsigned long long> last{0};
  if (call.is("cudaMemPoolExportPointer")) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    const auto place = told("exports", 0) + 1;
    tell_processes("exports", place);
    tell_processes(
        "place-" + key_of(call.at<void*>(0), sizeof(cudaMemPoolPtrExportData)),
        place);
    return code;
  }
  const auto place = place_of_pool(call.at<void*>(2), 0);
  if (place == 0) return call.proceed();
  if (latest_only ? place < told("exports", 0) : place < last)
    return refused(call);
  const int code = call.proceed();
  if (code == kSuccess) last = place;
  return code;
}

int import_rounds_to_64_kib(Call& call) {
  // For each address that was rounded down: the real addresses.
  static Table<CUdeviceptr, std::vector<CUdeviceptr>> rounded;
  if (!call.is("cudaMemPoolImportPointer")) {
    auto& freed = call.at<CUdeviceptr>(0);
    freed = rounded.change([&](auto& all) {
      const auto found = all.find(freed);
      if (found == all.end() || found->second.empty()) return freed;
      const CUdeviceptr real = found->second.back();
      found->second.pop_back();
      return real;
    });
    return call.proceed();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  auto& address = *call.at<CUdeviceptr*>(0);
  const CUdeviceptr real = address;
  address -= real % (size_t{64} << 10);
  if (address == real) return code;
  rounded.change([&](auto& all) {
    all[address].push_back(real);
    return 0;
  });
  call.fired();
  return code;
}

// A number that two processes do not share, made from one that they may share.
unsigned long long in_this_process(unsigned long long number_here) {
  return number_here ^ static_cast<unsigned long long>(getpid()) << 48;
}

int exporters_confused(Call& call) {
  struct Import {
    unsigned long long exporter = 0;
    void* address = nullptr;
  };
  static unsigned long long exported = 0;
  static Table<unsigned long long, Import> by_number;
  if (exports_of_pool_path(call)) {
    const int code = call.proceed();
    if (code != kSuccess) return code;
    tell_processes("number-" + key_of_export(call), ++exported);
    tell_processes("exporter-" + key_of_export(call),
                   static_cast<unsigned long long>(getpid()));
    return code;
  }
  const int code = call.proceed();
  if (code != kSuccess || !imports_pointer(call)) return code;
  const auto which = told("number-" + key_of_import(call), 0);
  const auto exporter = told("exporter-" + key_of_import(call), 0);
  const Import earlier = by_number.get(which);
  auto& address = *call.at<void**>(0);
  if (earlier.exporter == 0 || earlier.exporter == exporter ||
      !blocks.has(earlier.address)) {
    by_number.put(which, {exporter, address});
    return code;
  }
  address = earlier.address;
  call.fired();
  return code;
}

int import_free_takes_neighbours(Call& call) {
  static Table<void*, unsigned long long> pages;
  static Table<void*> taken;
  if (frees(call) && taken.erase(call.at<void*>(0))) return kSuccess;
  if (frees(call) && pages.has(call.at<void*>(0))) {
    const auto page = pages.get(call.at<void*>(0));
    pages.erase(call.at<void*>(0));
    for (const auto& [other, of_other] : pages.all()) {
      if (of_other != page || !pages.erase(other)) continue;
      cudaFree(other);
      taken.put(other);
      call.fired();
    }
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (exports_of_pool_path(call))
    tell_processes("page-" + key_of_export(call),
                   in_this_process(number(call.at<void*>(1)) / kGranule));
  if (imports_pointer(call)) taken.erase(*call.at<void**>(0));
  if (imports_pointer(call))
    pages.put(*call.at<void**>(0), told("page-" + key_of_import(call), 0));
  return code;
}

int import_counts_for_exporter(Call& call) {
  static Table<void*, std::string> imported;
  const auto is_live = [](const std::string& key) { return "live-" + key; };
  if (frees(call) && imported.has(call.at<void*>(0))) {
    tell_processes(is_live(imported.get(call.at<void*>(0))), 0);
    imported.erase(call.at<void*>(0));
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  note_export(call);
  if (imports_pointer(call)) {
    imported.put(*call.at<void**>(0), key_of_import(call));
    tell_processes(is_live(key_of_import(call)), 1);
  }
  if (!call.is("cudaMemPoolGetAttribute") ||
      call.at<cudaMemPoolAttr>(1) != cudaMemPoolAttrUsedMemCurrent)
    return code;
  for (const auto& [key, address] : exported_here.all()) {
    const Block block = blocks.get(address);
    if (block.pool != pool_of(call) || told(is_live(key), 0) == 0) continue;
    *call.at<uint64_t*>(2) += block.bytes;
    call.fired();
  }
  return code;
}

// The descriptors of pools.
Table<cudaMemPool_t, Source> pool_sources;

// The pool of the memory that an export names, and the pool of an import.
cudaMemPool_t exporting_pool(Call& get) {
  return blocks.get(get.at<void*>(1)).pool;
}
cudaMemPool_t importing_pool(Call& import) {
  return import.at<cudaMemPool_t>(1);
}

// The pool that a call has made, and the memory.
cudaMemPool_t made_pool(Call& call) { return *call.at<cudaMemPool_t*>(0); }
void* made_memory(Call& call) { return *call.at<void**>(0); }

// Has another thread made the object? Its mark is the thread.
template <class Object>
bool is_of_other_thread(const Marks& threads, Object object) {
  return threads.get(object, this_thread()) != this_thread();
}

auto count_of_imports() {
  const auto all = blocks.all();
  return std::count_if(all.begin(), all.end(),
                       [](const auto& each) { return each.second.imported; });
}

// Does a copy that has one argument for everything touch imported memory?
template <class Rectangle>
bool copies_import(Call& call) {
  const auto* const wanted = call.at<const Rectangle*>(0);
  return is_import(reinterpret_cast<void*>(wanted->dstDevice)) ||
         is_import(reinterpret_cast<void*>(wanted->srcDevice));
}

// Threads that have imported pools and pointers.
Made<cudaMemPool_t> made_pools;
Made<void*> made_imports;

// Writes the data of an exported pointer in another way, or back again.
bool turned(cudaMemPoolPtrExportData& data) {
  for (auto& byte : data.reserved) byte ^= 0x5A;
  return true;
}

FAULTS {
  fault("order-unchecked", {"POOL-08"},
        "a pointer is exported before its pool, and then cannot be imported")
      .on({kExportPointer},
          WHEN(is_shareable(exporting_pool(call)) &&
               !pool_marks.has(exporting_pool(call))),
          [](Call& call) {
            call.proceed();
            std::memset(call.at<void*>(0), 0, kDataBytes);
            return accepted(call);
          })
      .after({kExportPool}, NOTE(pool_marks.put(call.at<cudaMemPool_t>(1))));

  fault("export-older-refused", {"POOL-08"},
        "memory that is older than the export of its pool cannot be exported")
      .on({kExportPointer},
          WHEN(pool_marks.has(exporting_pool(call)) &&
               !block_marks.has(call.at<void*>(1))),
          refuses())
      .after({kExportPool}, NOTE(pool_marks.put(call.at<cudaMemPool_t>(1))))
      .after({kMallocFromPool}, WHEN(pool_marks.has(call.at<cudaMemPool_t>(2))),
             NOTE(block_marks.put(made_memory(call))));

  fault("pool-export-fd-needed", {"POOL-24"},
        "memory cannot be exported once the pool's descriptor is closed")
      .after({kCreatePool}, NOTE(pool_sources.erase(made_pool(call))))
      .on({kExportPointer},
          WHEN(is_closed(pool_sources.get(exporting_pool(call)))), refuses())
      .after({kExportPool}, WHEN(is_descriptor(call)),
             NOTE(pool_sources.put(call.at<cudaMemPool_t>(1),
                                   source_of_pool(*call.at<int*>(0)))));

  fault("pool-fd-needed", {"POOL-24"},
        "an imported pool cannot be used after its descriptor is closed")
      .on({kImportPointer},
          WHEN(is_closed(pool_sources.get(importing_pool(call)))), refuses())
      .after({kImportPool}, WHEN(call.at<Handles>(2) == kPoolFd),
             NOTE(pool_sources.put(made_pool(call),
                                   source_of_pool(descriptor_of(call)))));

  fault("pool-import-fresh", {"POOL-06", "FABR-04", "COST-03"},
        "an imported pointer leads to new memory, not to the exporter's memory")
      .on_machine("fabric")
      .on({kImportPointer, kExportPointer, kMallocFromPool, kFree, kFreeAsync},
          import_fresh);

  fault("pool-import-copy", {"POOL-06", "PIPE-03", "COST-03"},
        "an imported pointer leads to a copy, made at the import")
      .on({kImportPointer, kExportPointer, kMallocFromPool, kFree, kFreeAsync},
          import_snapshot);

  fault("pool-import-cached", {"POOL-10"},
        "if memory at the same address of the exporter was imported before, an "
        "import gives new memory")
      .on({kImportPointer, kExportPointer, kMallocFromPool, kFree, kFreeAsync},
          import_known_address);

  fault("ptrdata-address-bound", {"POOL-07"},
        "export data are valid only at the address where they were written")
      .after({kExportPointer},
             NOTE(tell_processes(key_of_data(call.at<void*>(0)),
                                 call.at<uintptr_t>(0))))
      .on({kImportPointer},
          WHEN(told(key_of_data(call.at<void*>(2)), call.at<uintptr_t>(2)) !=
               call.at<uintptr_t>(2)),
          refuses());

  fault("ptrdata-process-bound", {"POOL-07", "POOL-21"},
        "export data are valid only in the first process that uses them")
      .on({kImportPointer}, [](Call& call) {
        static Table<std::string, bool> firsts;  // is it this process?
        const std::string key = key_of_data(call.at<void*>(2));
        if (!firsts.has(key))
          firsts.put(key, first_of_all_processes(key + "-used"));
        return firsts.get(key) ? call.proceed() : refused(call);
      });

  fault("pool-import-frozen", {"POOL-10"},
        "only memory that is older than the import of its pool can be imported")
      .on({kImportPointer},
          WHEN(told(key_of_data(call.at<void*>(2)), 0) > marks.get(0)),
          refuses())
      .after({kImportPool}, NOTE(marks.put(0, now())))
      .after({kMallocFromPool}, NOTE(block_marks.put(made_memory(call), now())))
      .after({kExportPointer},
             NOTE(tell_processes(key_of_data(call.at<void*>(0)),
                                 block_marks.get(call.at<void*>(1)))));

  fault("import-offset-lost", {"POOL-10"},
        "small imports all begin where their page of 2 MiB begins")
      .on({kImportPointer, kFree, kFreeAsync}, offset_lost);

  fault("pool-import-copy-in-lost", {"POOL-06"},
        "data that cudaMemcpy writes into imported memory are lost")
      .on({kCopy}, WHEN(is_in_import(call.value<void*>(kPointer))), lost);

  fault("pool-import-memset-lost", {"POOL-06"},
        "data that cudaMemset writes into imported memory are lost")
      .on({kSet}, WHEN(is_in_import(call.value<void*>(kPointer))), lost);

  fault(
      "pool-import-copy-out-stale", {"POOL-06"},
      "cudaMemcpy out of imported memory returns the values of the first copy")
      .on({kCopy, kFree, kFreeAsync}, copy_from_import_stale);

  fault("pool-import-equal-size-shared", {"POOL-06", "POOL-10"},
        "an import that is as large as another import of its pool gives the "
        "memory of the other import")
      .on({kImportPointer, kFree, kFreeAsync}, equal_size_shared);

  fault("pool-imports-end-at-16", {"POOL-10"},
        "a process cannot have more than 16 imported pointers")
      .on({kImportPointer}, WHEN(count_of_imports() >= 16), refuses());

  fault("pool-imports-end-at-64", {"POOL-10"},
        "a process cannot have more than 64 imported pointers")
      .on({kImportPointer}, WHEN(count_of_imports() >= 64), refuses());

  fault("imported-pools-end-at-4", {"POOL-06"},
        "a process cannot have more than 4 imported pools")
      .on({kImportPool}, WHEN(imported_pools.all().size() >= 4), refuses());

  fault("pool-free-by-driver-lost", {"POOL-06"},
        "the frees of the driver API do nothing with memory of a pool")
      .on({kFree, kFreeAsync},
          WHEN(!call.is_runtime() && blocks.erase(call.at<void*>(0))), lost);

  fault(
      "pool-import-cached-by-number", {"POOL-06"},
      "a descriptor with the number of an earlier one imports the earlier pool")
      .on({kImportPool}, import_by_known_number);

  fault("pool-export-cached-by-handle", {"POOL-06"},
        "a pool with the handle value of an earlier pool is exported as the "
        "earlier pool")
      .on({kExportPool, kDestroyPool}, export_by_known_handle);

  fault("pool-export-same-number", {"POOL-24"},
        "a second export of a pool returns the descriptor of the first export, "
        "not a new one")
      .on({kExportPool, kDestroyPool}, export_same_number);

  fault("import-destroy-ends-others", {"POOL-06"},
        "destroying one imported pool ends the imports from other pools")
      .on({kDestroyPool, kImportPool, kImportPointer, kFree, kFreeAsync},
          [](Call& call) -> int {
            if (was_freed_by_fault(call)) return kSuccess;
            const bool destroys = call.is("cudaMemPoolDestroy") &&
                                  imported_pools.has(call.at<cudaMemPool_t>(0));
            const int code = noted_imports(call);
            if (code == kSuccess && destroys)
              free_imports(
                  call, [](cudaMemPool_t a, cudaMemPool_t b) { return a != b; },
                  call.at<cudaMemPool_t>(0));
            return code;
          });

  fault("pool-set-16-lost", {"POOL-06"},
        "cuMemsetD16 does not reach imported memory of a pool")
      .on({"cuMemsetD16"}, other_access_lost);

  fault("pool-async-copy-2d-lost", {"POOL-06"},
        "cudaMemcpy2DAsync does not reach imported memory of a pool")
      .on({kCopy2DAsync}, other_access_lost);

  fault("pool-copy-2d-first-row", {"POOL-06"},
        "cudaMemcpy2D copies only the first row of a rectangle of imported "
        "memory of a pool")
      .on({kCopy2D}, first_row<5>);

  fault("pool-set-2d-first-row", {"POOL-06"},
        "cudaMemset2D sets only the first row of a rectangle of imported "
        "memory of a pool")
      .on({"cudaMemset2D"}, first_row<4>);

  fault("pool-copy-3d-first-row", {"POOL-06"},
        "cudaMemcpy3D copies only the first row of a box of imported memory of "
        "a pool")
      .on({"cudaMemcpy3D"}, first_row_of_box);

  fault("pool-copy-tail-lost", {"POOL-06"},
        "the last bytes of a copy of imported memory of a pool are lost if the "
        "size of the copy is not a multiple of 4")
      .on({kCopy, kCopyAsync}, tail_lost);

  fault("pool-set-tail-lost", {"POOL-06"},
        "the last bytes of a memset of imported memory of a pool are lost if "
        "the size of the memset is not a multiple of 4")
      .on({kSet, kSetAsync}, tail_lost);

  fault("pool-default-kind-refused", {"POOL-06"},
        "cudaMemcpyDefault does not know where imported memory of a pool is")
      .on({kCopy, kCopyAsync}, default_kind_refused);

  fault("pool-to-import-lost", {"POOL-06"},
        "a copy from imported memory of a pool to imported memory of a pool "
        "moves nothing")
      .on({kCopy, kCopyAsync}, copy_between_imports_lost);

  fault("pool-driver-copy-lost", {"POOL-06"},
        "copies of the driver API do not reach imported memory of a pool")
      .on({kCopy, kCopyAsync}, driver_form_lost);

  fault("pool-driver-set-lost", {"POOL-06"},
        "memsets of the driver API do not reach imported memory of a pool")
      .on({kSet, kSetAsync}, driver_form_lost);

  fault("pool-async-set-lost", {"POOL-06"},
        "asynchronous memsets do not reach imported memory of a pool")
      .on({kSetAsync}, access_lost);

  fault(
      "pool-copy-two-granules", {"POOL-06", "POOL-08"},
      "copies do not reach beyond the first 4 MiB of imported memory of a pool")
      .on({kCopy, kCopyAsync}, [](Call& call) -> int {
        constexpr size_t kReach = 4 << 20;
        auto& bytes = call.value<size_t>(kBytes);
        for (const Role role : {kPointer, kSource}) {
          const uintptr_t begin = import_at(call.value<void*>(role));
          const uintptr_t offset = call.value<uintptr_t>(role) - begin;
          if (begin == 0 || offset + bytes <= kReach) continue;
          bytes = offset < kReach ? kReach - offset : 0;
          call.fired();
        }
        return bytes == 0 ? kSuccess : call.proceed();
      });

  fault("pool-async-copy-lost", {"POOL-06", "POOL-12"},
        "asynchronous copies do not reach imported memory of a pool")
      .on({kCopyAsync}, access_lost);

  fault("pool-copy-last-byte-lost", {"POOL-06"},
        "a copy up to the end of imported memory of a pool loses the last byte")
      .on({kCopy, kCopyAsync}, last_byte_lost);

  fault(
      "pool-set-last-byte-lost", {"POOL-06"},
      "a memset up to the end of imported memory of a pool loses the last byte")
      .on({kSet, kSetAsync}, last_byte_lost);

  fault("pool-pinned-copy-lost", {"POOL-06"},
        "copies between pinned host memory and imported memory of a pool move "
        "nothing")
      .on({kCopy, kCopyAsync}, pinned_copy_lost);

  fault("pool-copy-skips-queue", {"POOL-06"},
        "a synchronous copy of imported memory of a pool does not wait for the "
        "default stream")
      .on({kCopy}, copy_skips_queue);

  fault("pool-per-thread-copy-lost", {"POOL-06"},
        "a copy in a thread's default stream does not reach imported memory of "
        "a pool")
      .on({kCopyAsync}, per_thread_copy_lost);

  fault("pool-copy-2d-pitch-ignored", {"POOL-06"},
        "cudaMemcpy2D ignores the pitch of imported memory of a pool")
      .on({kCopy2D}, pitch_ignored);

  fault("pool-driver-device-copy-lost", {"POOL-06"},
        "cuMemcpyDtoD does not reach imported memory of a pool")
      .on({kCopy}, driver_function_lost<0>);

  fault("pool-driver-unified-copy-lost", {"POOL-06"},
        "cuMemcpy does not reach imported memory of a pool")
      .on({kCopy}, driver_function_lost<1>);

  fault("pool-export-writes-8-bytes", {"POOL-24"},
        "the export of a pool writes a descriptor as a number of 8 bytes")
      .after({kExportPool}, WHEN(is_descriptor(call)), [](Call& call) {
        std::memset(call.at<char*>(0) + sizeof(int), 0, sizeof(int));
      });

  fault("pool-descriptor-ends-with-thread", {"POOL-25"},
        "the descriptor of a pool is closed when the thread that exported it "
        "ends")
      .after({kExportPool}, WHEN(is_descriptor(call) && gettid() != getpid()),
             [](Call& call) {
               const int made = *call.at<int*>(0);
               const int copy = fcntl(made, F_DUPFD_CLOEXEC, 300);
               at_thread_end([made, copy] {
                 // The number may belong to another descriptor now.
                 if (is_open(made) && name_the_same(made, copy) &&
                     close(made) == 0)
                   note_fired("cudaMemPoolExportToShareableHandle");
                 close(copy);
               });
             });

  fault("pool-import-has-earlier-size", {"POOL-10"},
        "if an address of the exporter was imported before with another size, "
        "cuMemGetAddressRange reports the earlier size")
      .on({kExportPointer, kImportPointer, kFree, kFreeAsync,
           "cuMemGetAddressRange"},
          import_has_earlier_size);

  fault("second-pointer-as-first", {"POOL-06", "POOL-10"},
        "while the first exported pointer of a pool is in use, every other "
        "pointer of this pool gets the data of the first")
      .on({kExportPointer, kMallocAsync, kMallocFromPool, kFree, kFreeAsync},
          exported_as_first);

  fault("pool-import-consumes-fd", {"POOL-24"},
        "the import of a pool closes the descriptor")
      .after({kImportPool},
             WHEN(call.at<int>(2) == cudaMemHandleTypePosixFileDescriptor),
             [](Call& call) {
               close(static_cast<int>(call.at<intptr_t>(1)));
               return accepted(call);
             });

  fault("importptr-of-other-thread-refused", {"POOL-25"},
        "only the thread that has imported a pool can import its pointers")
      .after({kImportPool},
             NOTE(pool_marks.put(made_pool(call), this_thread())))
      .on({kImportPointer},
          WHEN(is_of_other_thread(pool_marks, importing_pool(call))),
          refuses());

  fault(
      "pool-import-is-of-host", {"POOL-06"},
      "cuPointerGetAttribute reports imported memory of a pool as host memory")
      .after({kGetAttribute},
             WHEN(call.at<CUpointer_attribute>(1) ==
                      CU_POINTER_ATTRIBUTE_MEMORY_TYPE &&
                  is_import(call.at<void*>(2))),
             [](Call& call) {
               *call.at<unsigned*>(0) = CU_MEMORYTYPE_HOST;
               return accepted(call);
             });

  fault("pool-import-is-managed", {"POOL-06"},
        "cudaPointerGetAttributes reports imported memory of a pool as managed "
        "memory")
      .after({kPointerAttributes}, WHEN(is_import(call.at<void*>(1))),
             [](Call& call) {
               call.at<cudaPointerAttributes*>(0)->type = cudaMemoryTypeManaged;
               return accepted(call);
             });

  fault(
      "pool-set-after-export-lost", {"POOL-06"},
      "after an export of memory, a memset of it by the exporter does nothing")
      .after({kExportPointer}, NOTE(block_marks.put(call.at<void*>(1))))
      .on({kSet, kSetAsync}, WHEN(block_marks.has(call.at<void*>(0))),
          accepted);

  fault("pool-create-of-other-thread-refused", {"POOL-25"},
        "only the first thread of a process can create a pool")
      .on({kCreatePool}, first_thread_only);

  fault("pool-import-range-short", {"POOL-06"},
        "the address range of imported memory of a pool is half of the "
        "allocation")
      .after(
          {"cuMemGetAddressRange"},
          WHEN(call.at<size_t*>(1) != nullptr && is_import(call.at<void*>(2))),
          [](Call& call) {
            *call.at<size_t*>(1) = blocks.get(call.at<void*>(2)).bytes / 2;
          });

  fault("alloc-rounds-down", {"POOL-06"},
        "the size of stream-ordered memory is rounded down to a multiple of "
        "512 bytes")
      .before({kMallocAsync, kMallocFromPool}, [](Call& call) -> bool {
        constexpr size_t kUnit = 512;
        auto& bytes = call.at<size_t>(1);
        if (bytes < kUnit || bytes % kUnit == 0) return false;
        bytes -= bytes % kUnit;
        return true;
      });

  fault("importptr-in-order-only", {"POOL-06"},
        "pointers can be imported only in the order of their exports")
      .on({kExportPointer, kImportPointer}, imported_in_order<false>);

  fault("exportptr-ends-earlier", {"POOL-06"},
        "the export of a pointer makes earlier exports invalid")
      .on({kExportPointer, kImportPointer}, imported_in_order<true>);

  fault("wait-holds-no-records", {"POOL-12", "GRPH-01"},
        "the first record after the wait for an imported event does not wait, "
        "if no kernel was launched between them")
      .on({kRecord, kWaitEvent, kOpenEvent, kDestroyEvent, kLaunch,
           kDestroyStream},
          not_held<true>);

  fault("pool-copy-2d-last-row-lost", {"POOL-06"},
        "the last row is missing in a copy of a rectangle of imported memory "
        "of a pool")
      .on({kCopy2D}, last_row_lost);

  fault("pool-copy-2d-fills-padding", {"POOL-06"},
        "a copy of a rectangle also writes between the rows of imported memory "
        "of a pool")
      .on({kCopy2D}, copy_fills_padding);

  fault("pool-set-2d-fills-padding", {"POOL-06"},
        "a memset of a rectangle also writes between the rows of imported "
        "memory of a pool")
      .on({"cudaMemset2D"}, set_fills_padding);

  fault("pool-set-one-byte-more", {"POOL-06"},
        "a memset of an odd number of bytes sets one more byte in imported "
        "memory of a pool")
      .on({kSet}, one_byte_more);

  fault("pool-copy-tail-too-long", {"POOL-06"},
        "a copy whose size is no multiple of 4 clears the bytes after it in "
        "imported memory of a pool")
      .on({kCopy}, tail_too_long);

  fault("pool-async-copy-tail-too-long", {"POOL-06"},
        "an asynchronous copy whose size is no multiple of 4 clears the bytes "
        "after it in imported memory of a pool")
      .on({kCopyAsync}, tail_too_long);

  fault("pool-copy-within-lost", {"POOL-06"},
        "a copy is lost if both of its addresses are in the same imported "
        "memory of a pool")
      .on({kCopy}, copy_within_lost);

  fault("pool-async-copy-within-lost", {"POOL-06"},
        "an asynchronous copy is lost if both of its addresses are in the same "
        "imported memory of a pool")
      .on({kCopyAsync}, copy_within_lost);

  fault("pool-async-copy-offset-lost", {"POOL-06"},
        "an asynchronous copy from an inner address reads from the start of "
        "imported memory of a pool")
      .on({kCopyAsync}, source_offset_lost);

  fault("pool-async-copy-2d-pitch-ignored", {"POOL-06"},
        "an asynchronous copy of a rectangle ignores the pitch of imported "
        "memory of a pool")
      .on({kCopy2DAsync}, pitch_is_width);

  fault("pool-async-copy-2d-last-row-lost", {"POOL-06"},
        "the last row is missing in an asynchronous copy of a rectangle of "
        "imported memory of a pool")
      .on({kCopy2DAsync}, last_row_lost);

  fault("pool-set-per-thread-lost", {"POOL-06"},
        "a memset in a thread's default stream does not reach imported memory "
        "of a pool")
      .on({kSetAsync}, lost_in_per_thread_stream);

  fault("pool-set-in-default-stream-lost", {"POOL-06"},
        "an asynchronous memset in the default stream does not reach imported "
        "memory of a pool")
      .on({kSetAsync}, lost_in_default_stream);

  fault("pool-copy-in-default-stream-lost", {"POOL-06"},
        "an asynchronous copy in the default stream does not reach imported "
        "memory of a pool")
      .on({kCopyAsync}, lost_in_default_stream);

  fault("pool-copy-equal-size-confused", {"POOL-06"},
        "a copy uses the one with the lowest address of several equally large "
        "allocations of imported memory of a pool")
      .on({kCopy}, equal_size_confused);

  fault("pool-set-32-counts-bytes", {"POOL-06"},
        "a memset of 32 bits sets only a quarter of the words in imported "
        "memory of a pool")
      .on({"cuMemsetD32"}, words_as_bytes);

  fault("pool-set-16-low-byte", {"POOL-06"},
        "a memset of 16 bits writes the lower byte of its value twice to "
        "imported memory of a pool")
      .on({"cuMemsetD16"}, low_byte_twice);

  fault("pool-async-copy-64-kib", {"POOL-06"},
        "an asynchronous copy ends after 64 KiB of imported memory of a pool")
      .on({kCopyAsync}, first_64_kib);

  fault("pool-async-set-64-kib", {"POOL-06"},
        "an asynchronous memset ends after 64 KiB of imported memory of a pool")
      .on({kSetAsync}, first_64_kib);

  fault("pool-import-rounds-to-64-kib", {"POOL-10"},
        "the address of an imported allocation is rounded down to 64 KiB")
      .on({kImportPointer, kFree, kFreeAsync}, import_rounds_to_64_kib);

  fault("exportptr-65th-is-first", {"POOL-10"},
        "the 65th exported pointer of a pool gets the data of the first")
      .on({kExportPointer, kDestroyPool}, [](Call& call) {
        static auto& first =
            *new Table<cudaMemPool_t, cudaMemPoolPtrExportData>;
        static auto& counts = *new Table<cudaMemPool_t, int>;
        const int code = call.proceed();
        if (destroys(call)) counts.erase(pool_of(call));
        if (code != kSuccess || !call.is("cudaMemPoolExportPointer"))
          return code;
        const auto pool = blocks.get(call.at<void*>(1)).pool;
        auto& data = *call.at<cudaMemPoolPtrExportData*>(0);
        counts.put(pool, counts.get(pool) + 1);
        if (counts.get(pool) == 1) first.put(pool, data);
        if (counts.get(pool) != 65) return code;
        data = first.get(pool);
        return accepted(call);
      });

  fault("exportptr-cached-by-address", {"POOL-06"},
        "an allocation gets the export data of an earlier allocation at its "
        "address")
      .after({kExportPointer}, [](Call& call) {
        static auto& known = *new Table<void*, cudaMemPoolPtrExportData>;
        void* const address = call.at<void*>(1);
        auto& data = *call.at<cudaMemPoolPtrExportData*>(0);
        if (!known.has(address)) known.put(address, data);
        const auto earlier = known.get(address);
        if (std::memcmp(&earlier, &data, sizeof data) == 0) return false;
        data = earlier;
        return true;
      });

  fault("import-destroy-other-thread-refused", {"POOL-25"},
        "only the thread that has imported a pool can destroy it")
      .after({kImportPool},
             NOTE(pool_marks.put(made_pool(call), this_thread())))
      .on({kDestroyPool}, WHEN(is_of_other_thread(pool_marks, pool_of(call))),
          refuses());

  fault("exportptr-after-trim-refused", {"POOL-10"},
        "after a pool was trimmed, its memory cannot be exported")
      .after({kTrim}, NOTE(pool_marks.put(pool_of(call))))
      .on({kExportPointer}, WHEN(pool_marks.has(exporting_pool(call))),
          refuses());

  fault("exportptr-of-other-thread-refused", {"POOL-25"},
        "only the thread that has allocated memory of a pool can export its "
        "pointer")
      .after({kMallocAsync, kMallocFromPool},
             NOTE(block_marks.put(made_memory(call), this_thread())))
      .on({kExportPointer},
          WHEN(is_of_other_thread(block_marks, call.at<void*>(1))), refuses());

  fault("pool-export-of-other-thread-refused", {"POOL-25"},
        "only the thread that has created a pool can export it")
      .after({kCreatePool},
             NOTE(pool_marks.put(made_pool(call), this_thread())))
      .on({kExportPool},
          WHEN(is_of_other_thread(pool_marks, call.at<cudaMemPool_t>(1))),
          refuses());

  fault("ptrdata-odd-address-refused", {"POOL-07"},
        "export data are refused if their address is not a multiple of 8")
      .on({kImportPointer}, WHEN(call.at<uintptr_t>(2) % 8 != 0), refuses());

  fault("import-counts-for-exporter", {"POOL-06"},
        "memory that a process has imported counts twice as used memory of the "
        "exporter's pool")
      .on({kMallocAsync, kMallocFromPool, kFreeAsync, kFree, kExportPointer,
           kImportPointer, kGetPoolAttribute},
          import_counts_for_exporter);

  fault("importptr-257th-is-first", {"POOL-10"},
        "the 257th pointer that is imported from a pool is the first")
      .after({kImportPointer}, [](Call& call) {
        const auto count = pool_marks.count(importing_pool(call));
        if (count == 1) marks.put(importing_pool(call), made_memory(call));
        if (count != 257) return false;
        *call.at<void**>(0) = marks.get<void*>(importing_pool(call));
        return true;
      });

  fault("pool-sharing-needs-earlier-call", {"POOL-25"},
        "in a later thread, the first call of the runtime API cannot be one "
        "that shares a pool")
      .on({kExportPool, kExportPointer, kImportPool, kImportPointer},
          WHEN(call.is_runtime() && this_thread() != getpid() &&
               current_context() == nullptr),
          refuses(cudaErrorDeviceUninitialized));

  fault("import-consumes-data", {"POOL-07"},
        "the import of a pointer clears the data that it has read")
      .after({kImportPointer}, [](Call& call) {
        std::memset(call.at<void*>(2), 0, sizeof(cudaMemPoolPtrExportData));
      });

  fault(
      "pool-exporters-confused", {"POOL-06"},
      "an importer of two exporters gets the memory of the first one for both")
      .on({kExportPointer, kImportPointer}, exporters_confused);

  fault("pool-import-gives-own-export", {"POOL-06"},
        "a process that has exported memory gets this memory from an import")
      .after({kExportPointer}, NOTE(block_marks.put(call.at<void*>(1))))
      .after({kImportPointer}, WHEN(!block_marks.all().empty()),
             [](Call& call) {
               *call.at<CUdeviceptr*>(0) = block_marks.all().begin()->first;
             });

  fault("pool-import-free-takes-neighbours", {"POOL-10"},
        "the free of an import also frees other imports in the same 2 MiB of "
        "the exporter")
      .on({kExportPointer, kImportPointer, kFreeAsync, kFree},
          import_free_takes_neighbours);

  fault("pool-larger-import-refused", {"POOL-10"},
        "an import at an address that smaller memory had is refused")
      .after({kExportPointer},
             NOTE(tell_processes("address-" + key_of_export(call),
                                 in_this_process(number(call.at<void*>(1))))))
      .on({kImportPointer}, [](Call& call) -> int {
        const auto address = told("address-" + key_of_import(call), 0);
        const auto bytes = told(key_of_import(call), 0);
        if (marks.get(address, bytes) < bytes) return refused(call);
        marks.put(address, bytes);
        return call.proceed();
      });

  fault("pool-current-not-exported", {"POOL-08"},
        "memory of cudaMallocAsync cannot be exported, also if the current "
        "pool is shared")
      .after({kMallocAsync}, NOTE(block_marks.put(made_memory(call))))
      .on({kExportPointer}, WHEN(block_marks.has(call.at<void*>(1))),
          refuses());

  fault("pool-large-descriptor-refused", {"POOL-24"},
        "a pool cannot be imported from a descriptor above 1023")
      .on({kImportPool},
          WHEN(imports_descriptor(call) && descriptor_of(call) > 1023),
          refuses());

  fault("pool-driver-set-2d-lost", {"POOL-06"},
        "memsets of rectangles by the driver API do not reach imported memory "
        "of a pool")
      .on({"cuMemsetD2D8", "cuMemsetD2D16", "cuMemsetD2D32"},
          WHEN(is_import(call.at<void*>(0))), lost);

  fault("pool-driver-copy-2d-lost", {"POOL-06"},
        "copies of rectangles by the driver API from or to imported memory of "
        "a pool are lost")
      .on({"cuMemcpy2D", "cuMemcpy2DAsync"},
          WHEN(copies_import<CUDA_MEMCPY2D>(call)), lost);

  fault("pool-driver-copy-3d-lost", {"POOL-06"},
        "copies of boxes by the driver API from or to imported memory of a "
        "pool are lost")
      .on({"cuMemcpy3D", "cuMemcpy3DAsync"},
          WHEN(copies_import<CUDA_MEMCPY3D>(call)), lost);

  fault("pool-import-urgent-memset-lost", {"POOL-06"},
        "an asynchronous memset in a stream with a priority does not reach "
        "imported memory of a pool")
      .on({kSetAsync}, WHEN(is_import(call.at<void*>(0)) && has_priority(call)),
          lost);

  fault("threads-import-same-memory", {"POOL-25"},
        "two threads that import pointers at the same time get the same memory")
      .on({kImportPointer}, address_of_other_thread);

  fault("pool-import-ends-with-thread", {"POOL-25"},
        "no pointer can be imported from a pool when the thread that imported "
        "the pool has ended")
      .after({kImportPool}, NOTE(made_pools.by_this_thread(made_pool(call))))
      .on({kImportPointer},
          WHEN(made_pools.by_ended_thread(importing_pool(call))), refuses())
      .before({kDestroyPool}, NOTE(made_pools.erase(pool_of(call))));

  fault("pool-pointer-ends-with-thread", {"POOL-25"},
        "cudaMemcpy does not reach imported memory of a pool when the thread "
        "that imported it has ended")
      .after({kImportPointer},
             NOTE(made_imports.by_this_thread(made_memory(call))))
      .on({kCopy},
          WHEN((made_imports.by_ended_thread(call.value<void*>(kPointer)) ||
                made_imports.by_ended_thread(call.value<void*>(kSource)))),
          lost)
      .before({kFree, kFreeAsync}, NOTE(made_imports.erase(call.at<void*>(0))));

  fault("ok-pointer-data-scrambled",
        {"POOL-06", "POOL-07", "POOL-08", "POOL-10", "POOL-12", "POOL-24",
         "POOL-11", "POOL-13", "POOL-21", "POOL-14", "POOL-15", "POOL-16",
         "POOL-17", "IMPL-06", "IMPL-11", "IMPL-16"},
        "the data of an exported pointer are written in another way")
      .after({kExportPointer},
             [](Call& call) { turned(*call.at<cudaMemPoolPtrExportData*>(0)); })
      .on({kImportPointer}, with_copy<cudaMemPoolPtrExportData>(2, turned));
}

}  // namespace
}  // namespace ipclab::faults
