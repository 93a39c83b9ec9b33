// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// Of the descriptors that this process has imported, the fault keeps copies.
// Returns the copy of the same descriptor, or -1.
int copy_in(const Table<int>& copies, int descriptor) {
  for (const auto& each : copies.all())
    if (name_the_same(each.first, descriptor)) return each.first;
  return -1;
}

int new_copy(int descriptor) { return fcntl(descriptor, F_DUPFD_CLOEXEC, 300); }

// An exported descriptor. The copy shows whether the program has closed the
// descriptor and the number now stands for another one.
struct Exported {
  int number = -1;
  int copy = -1;
  bool is_open() const { return copy != -1 && name_the_same(copy, number); }
};

Table<Chunk, Exported> exported_chunk;

// Returns the descriptor of a chunk, and closes the copy.
Exported take_exported(Chunk chunk) {
  const Exported one = exported_chunk.get(chunk);
  const Exported found{one.is_open() ? one.number : -1, -1};
  if (exported_chunk.erase(chunk)) close(one.copy);
  return found;
}

void note_exported(Chunk chunk, int number) {
  take_exported(chunk);
  exported_chunk.put(chunk, {number, new_copy(number)});
}

int export_same_number(Call& call) {
  if (call.is("cuMemRelease")) {
    take_exported(call.at<Chunk>(0));
    return call.proceed();
  }
  const Exported known = exported_chunk.get(call.at<Chunk>(1));
  const bool is_known = known.is_open();
  const int code = call.proceed();
  if (code != kSuccess || call.at<CUmemAllocationHandleType>(2) != kFd)
    return code;
  int& number = *call.at<int*>(0);
  if (!is_known) {
    note_exported(call.at<Chunk>(1), number);
    return code;
  }
  close(number);
  number = known.number;
  call.fired();
  return code;
}

int release_gives_up_all(Call& call) {
  static Table<int> descriptors;    // a duplicate of each that was imported
  static Table<Chunk, int> origin;  // the duplicate for each import
  static Table<Chunk> gone;
  if (call.is("cuMemMap"))
    return gone.has(call.at<Chunk>(3)) ? refused(call) : call.proceed();
  if (call.is("cuMemImportFromShareableHandle")) {
    int descriptor = -1;
    if (imports_descriptor(call)) {
      descriptor = copy_in(descriptors, descriptor_of(call));
      if (descriptor == -1) descriptor = new_copy(descriptor_of(call));
    }
    const int code = call.proceed();
    if (descriptor != -1) descriptors.put(descriptor);
    if (code != kSuccess) return code;
    gone.erase(*call.at<Chunk*>(0));
    origin.put(*call.at<Chunk*>(0), descriptor);
    return code;
  }
  const Chunk chunk = call.at<Chunk>(0);
  if (gone.erase(chunk)) return kSuccess;
  const int descriptor = origin.get(chunk, -1);
  origin.erase(chunk);
  if (descriptor == -1) return call.proceed();
  for (const auto& [other, its] : origin.all())
    if (its == descriptor) {
      DRIVER_CALL(cuMemRelease)(other);
      origin.erase(other);
      gone.put(other);
      call.fired();
    }
  // The duplicate would keep the memory.
  if (descriptors.erase(descriptor)) close(descriptor);
  return call.proceed();
}

// A size loses its upper 32 bits.
int size_of_32_bits(Call& call) {
  auto& bytes = call.value<size_t>(kBytes);
  if (bytes <= UINT32_MAX) return call.proceed();
  bytes = static_cast<uint32_t>(bytes);
  call.fired();
  return call.proceed();
}

// A thread without a current context may not make the call.
int refused_without_context(Call& call) {
  return current_context() == nullptr
             ? refused(call, CUDA_ERROR_INVALID_CONTEXT)
             : call.proceed();
}

int import_after_release_fresh(Call& call) {
  static auto& numbers = *new Table<Chunk, int>;
  static auto& sizes = *new Table<Chunk, size_t>;
  const int code = call.proceed();
  if (code == kSuccess && call.is("cuMemMap"))
    sizes.put(call.at<Chunk>(3), call.at<size_t>(1));
  if (code != kSuccess || !call.is("cuMemImportFromShareableHandle") ||
      !imports_descriptor(call))
    return code;
  auto& chunk = *call.at<Chunk*>(0);
  const int number = descriptor_of(call);
  for (const auto& [before, copy] : numbers.all()) {
    if (copy < 0 || !released.has(before) || mapping_of(before) != 0 ||
        !name_the_same(copy, number))
      continue;
    const Chunk fresh =
        new_chunk(sizes.get(before), properties_of(chunk).location, kFd);
    if (fresh == 0) continue;
    DRIVER_CALL(cuMemRelease)(std::exchange(chunk, fresh));
    imports.put(fresh);
    call.fired();
    return code;
  }
  numbers.put(chunk, fcntl(number, F_DUPFD_CLOEXEC, 300));
  return code;
}

int second_export_closes_first(Call& call) {
  struct First {
    int number = -1;
    int copy = -1;  // tells whether the number still has this descriptor
  };
  static auto& first = *new Table<Chunk, First>;
  if (call.is("cuMemRelease")) {
    close(first.get(call.at<Chunk>(0)).copy);
    first.erase(call.at<Chunk>(0));
    return call.proceed();
  }
  const int code = call.proceed();
  const auto chunk = call.at<Chunk>(1);
  if (code != kSuccess || call.at<CUmemAllocationHandleType>(2) != kFd)
    return code;
  const First before = first.get(chunk);
  const int made = *call.at<int*>(0);
  if (before.number != made && is_open(before.number) &&
      name_the_same(before.number, before.copy) && close(before.number) == 0)
    call.fired();
  close(before.copy);
  first.put(chunk, {made, fcntl(made, F_DUPFD_CLOEXEC, 300)});
  return code;
}

// A descriptor of the program, and a copy of it.
struct Descriptor {
  int number = -1;
  int copy = -1;
};

Descriptor copied(int number) {
  return {number, fcntl(number, F_DUPFD_CLOEXEC, 300)};
}

// Closes a descriptor, but only if its number still refers to the same object.
// Also closes the copy.
bool closes(const Descriptor& one) {
  const bool same = one.number > 2 && is_open(one.number) && one.copy != -1 &&
                    name_the_same(one.number, one.copy);
  if (one.copy != -1) close(one.copy);
  return same && close(one.number) == 0;
}

int imports_get_mixed_up(Call& call) {
  static auto& under_way = *new Table<int, int>;  // descriptors of threads
  if (!imports_descriptor(call)) return call.proceed();
  const int own = descriptor_of(call);
  under_way.put(this_thread(), own);
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
  bool mixed = false;
  while (!mixed && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
    for (const auto& [thread, other] : under_way.all()) {
      if (thread == this_thread() || !is_open(other) ||
          name_the_same(own, other))
        continue;
      call.at<void*>(1) = reinterpret_cast<void*>(intptr_t{other});
      mixed = true;
    }
  }
  const int code = call.proceed();
  under_way.erase(this_thread());
  if (mixed && code == kSuccess) call.fired();
  return code;
}

int other_threads_import_uncounted(Call& call) {
  struct Import {
    int thread = 0;
    int copy = -1;  // of the descriptor
    Chunk chunk = 0;
  };
  static auto& known = *new Table<int, Import>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuMemRelease")) {
    for (const auto& [number, import] : known.all())
      if (import.chunk == call.at<Chunk>(0) && known.erase(number))
        close(import.copy);  // an open copy would keep the memory
    return code;
  }
  if (!imports_descriptor(call)) return code;
  auto& made = *call.at<Chunk*>(0);
  const int number = descriptor_of(call);
  const Import before = known.get(number);
  if (before.copy != -1 && before.thread != this_thread() &&
      name_the_same(before.copy, number)) {
    DRIVER_CALL(cuMemRelease)(made);
    made = before.chunk;
    call.fired();
  } else {
    if (before.copy != -1) close(before.copy);
    known.put(number,
              {this_thread(), fcntl(number, F_DUPFD_CLOEXEC, 300), made});
  }
  return code;
}

// The descriptors of imports.
Table<Chunk, Descriptor> sources;

constexpr size_t kShift = 65536;

// The word or the memory that a call sets is this far inside its import.
size_t distance_in_import(CUdeviceptr address) {
  return is_import(address) ? address - mapping_at(address) : 0;
}

// Does the call use memory that another thread has created or imported?
bool is_of_other_thread(Chunk chunk) {
  return chunk_marks.get(chunk, this_thread()) != this_thread();
}

bool exports_again(Call& call) {
  return exports_fd(call) && exports.has(call.at<Chunk>(1));
}

// Does the process import memory, or has it done so?
bool is_importer(Call& call) {
  return call.is("cuMemImportFromShareableHandle") || !imports.all().empty();
}

FAULTS {
  fault("create-truncates-4gib", {"VMM-06"},
        "an allocation of cuMemCreate loses the upper 32 bits of its size")
      .before({kCreate}, WHEN(bytes(call) > UINT32_MAX), [](Call& call) {
        bytes(call) = static_cast<uint32_t>(bytes(call));
        if (bytes(call) == 0) bytes(call) = granule();
      });

  fault("export-bad-fd", {"VMM-08"},
        "the exported number is not an open descriptor")
      .after({kExport}, WHEN(call.at<CUmemAllocationHandleType>(2) == kFd),
             [](Call& call) { close(*call.at<int*>(0)); });

  fault("export-same-number", {"VMM-08"},
        "a second export returns the descriptor of the first export, not a new "
        "one")
      .on({kExport, kRelease}, export_same_number);

  fault("second-export-elsewhere", {"VMM-08"},
        "the second descriptor of an allocation names other memory")
      .on({kExport}, WHEN(exports_again(call)),
          [](Call& call) {
            const Chunk chunk = call.at<Chunk>(1);
            return export_instead(
                call, new_chunk(created.get(chunk, granule()),
                                properties_of(chunk).location, kFd));
          })
      .before({kRelease}, NOTE(exports.erase(call.at<Chunk>(0))));

  fault("release-closes-descriptors", {"VMM-08"},
        "releasing a handle closes the descriptor that was exported last")
      .after({kExport}, WHEN(call.at<CUmemAllocationHandleType>(2) == kFd),
             [](Call& call) {
               note_exported(call.at<Chunk>(1), *call.at<int*>(0));
               return kSuccess;
             })
      .before({kRelease}, [](Call& call) {
        const int number = take_exported(call.at<Chunk>(0)).number;
        return number != -1 && close(number) == 0;
      });

  fault("import-by-address", {"VMM-10"},
        "the import treats its argument as the address of a descriptor")
      .on({kImport}, WHEN(imports_descriptor(call)), [](Call& call) {
        // A small number is not an address.
        if (number(call.at<void*>(1)) < 4096) return refused(call);
        const int found = *static_cast<int*>(call.at<void*>(1));
        call.at<void*>(1) =
            reinterpret_cast<void*>(static_cast<intptr_t>(found));
        return once_more(call);
      });

  fault("import-consumes-fd", {"VMM-13"}, "the import closes the descriptor")
      .after({kImport}, WHEN(imports_descriptor(call)),
             [](Call& call) { close(descriptor_of(call)); });

  // On a GPU, nothing shows that two descriptors are of one memory.
  fault("import-once", {"VMM-08", "VMM-13"},
        "after the first import of a descriptor, no process can import a "
        "descriptor")
      .on({kImport},
          WHEN(imports_descriptor(call) && !first_of_all_processes("import")),
          refuses());

  fault("vmm-import-fresh", {"VMM-06", "FABR-04"},
        "an import is new memory, not the exporter's memory")
      .on_machine("fabric")
      .on({kImport, kMap, kUnmap}, DO(map_other_memory(call, false)));

  fault("self-import-copy", {"VMM-16"},
        "an import in a process that has exported memory is a copy")
      .on({kImport, kExport, kMap, kUnmap}, [](Call& call) {
        static std::atomic<bool> exporter{false};
        if (!exports.all().empty()) exporter = true;
        return call.is("cuMemImportFromShareableHandle")
                   ? noted_import(call, exporter)
                   : map_other_memory(call, true);
      });

  fault("second-import-fresh", {"VMM-13", "VMM-14"},
        "the second import of a descriptor is new memory")
      .on({kImport, kMap, kUnmap}, [](Call& call) -> int {
        static Table<int> copies;
        if (!call.is("cuMemImportFromShareableHandle"))
          return map_other_memory(call, false);
        if (!imports_descriptor(call)) return noted_import(call, false);
        const int descriptor = descriptor_of(call);
        const bool known = copy_in(copies, descriptor) != -1;
        const int code = noted_import(call, known);
        if (code == kSuccess && !known) copies.put(new_copy(descriptor));
        return code;
      });

  fault("second-process-fresh", {"VMM-08"},
        "a second process that imports memory gets new memory")
      .on({kImport, kMap, kUnmap}, WHEN(is_importer(call)), [](Call& call) {
        static const bool first = first_of_all_processes("importer");
        return first ? call.proceed() : map_other_memory(call, false);
      });

  fault("import-unmap-scrubs", {"VMM-13"},
        "an import is cleared when it is unmapped")
      .before({kUnmap}, WHEN(is_import(begin(call))),
              DO(DRIVER_CALL(cuMemsetD8)(begin(call), 0, bytes(call)) ==
                 CUDA_SUCCESS));

  fault("import-scrubbed", {"VMM-06"},
        "memory is cleared when an importer makes it usable")
      .after({kSetAccess},
             WHEN(is_import(begin(call)) && wants(call).flags == kReadWrite),
             DO(DRIVER_CALL(cuMemsetD8)(begin(call), 0, bytes(call)) ==
                CUDA_SUCCESS));

  fault("import-release-miscount", {"VMM-14", "VMM-15"},
        "the first release of an import releases all imports of that memory")
      .on({kRelease, kImport, kMap}, release_gives_up_all);

  fault("reserve-misaligned", {"VMM-06"},
        "reserved addresses are not a multiple of the granularity")
      .on({kReserve},
          [](Call& call) {
            bytes(call) += granule();
            const int code = call.proceed();
            if (code != kSuccess) return code;
            *call.at<CUdeviceptr*>(0) += kShift;
            marks.put(*call.at<CUdeviceptr*>(0));
            return lost(call);
          })
      .before({kFreeAddress}, WHEN(marks.erase(begin(call))), [](Call& call) {
        begin(call) -= kShift;
        bytes(call) += granule();
        return kSuccess;
      });

  fault("imports-end-at-16", {"VMM-13"},
        "a process cannot have more than 16 imports")
      .on({kImport}, WHEN(imports.all().size() >= 16), refuses())
      .before({kRelease}, NOTE(imports.erase(call.at<Chunk>(0))));

  fault("exports-end-at-16", {"VMM-08"},
        "an allocation cannot be exported more than 16 times")
      .on({kExport}, WHEN(chunk_marks.get(call.at<Chunk>(1)) >= 16), refuses())
      .after({kExport}, NOTE(chunk_marks.count(call.at<Chunk>(1))));

  fault("third-process-copy", {"VMM-08"},
        "a third process that imports memory gets a copy")
      .on({kImport, kMap, kUnmap}, WHEN(is_importer(call)), [](Call& call) {
        static const bool early =
            first_of_all_processes("one") || first_of_all_processes("two");
        return early ? call.proceed() : map_other_memory(call, true);
      });

  fault("chunk-mapping-ends-with-thread", {"VMM-43"},
        "memory is unmapped when the thread that mapped it ends")
      .after({kMap}, [](Call& call) {
        const CUdeviceptr begin = call.at<CUdeviceptr>(0);
        at_thread_end([begin, mine = mappings.get(begin)] {
          // The addresses may have another mapping now.
          if (mappings.get(begin).order == mine.order &&
              DRIVER_CALL(cuMemUnmap)(begin, mine.bytes) == CUDA_SUCCESS) {
            mappings.erase(begin);
            note_fired("cuMemMap");
          }
        });
      });

  fault("import-ends-with-thread", {"VMM-43"},
        "an import is released when the thread that imported it ends")
      .after({kImport},
             [](Call& call) -> int {
               const Chunk chunk = *call.at<Chunk*>(0);
               chunk_marks.put(chunk, this_thread());
               at_thread_end([chunk] {
                 if (chunk_marks.get<int>(chunk) != this_thread()) return;
                 chunk_marks.put(chunk, 0);
                 if (DRIVER_CALL(cuMemRelease)(chunk) == CUDA_SUCCESS)
                   note_fired("cuMemImportFromShareableHandle");
               });
               return kSuccess;
             })
      .on({kMap}, WHEN(chunk_marks.get(chunk_of(call), 1) == 0), refuses())
      .on({kRelease}, WHEN(chunk_marks.get(call.at<Chunk>(0), 1) == 0),
          [](Call& call) {
            chunk_marks.erase(call.at<Chunk>(0));
            return kSuccess;
          })
      .after({kRelease}, NOTE(chunk_marks.erase(call.at<Chunk>(0))));

  fault("export-mapped-refused", {"VMM-08", "VMM-06"},
        "memory cannot be exported while it is mapped")
      .on({kExport, kMap, kUnmap}, export_refused_if<true>);

  fault("mappings-end-at-64", {"VMM-13"},
        "a process cannot have more than 64 mappings")
      .on({kMap}, WHEN(mappings.all().size() >= 64), refuses());

  fault("reserve-truncates-4gib", {"VMM-06"},
        "the size of a reservation loses its upper 32 bits")
      .on({kReserve}, size_of_32_bits);

  fault("map-truncates-4gib", {"VMM-06"},
        "the size of a mapping loses its upper 32 bits")
      .on({kMap}, size_of_32_bits);

  fault("setaccess-truncates-4gib", {"VMM-06"},
        "the size of a range that gets access loses its upper 32 bits")
      .on({kSetAccess}, size_of_32_bits);

  fault("access-ends-with-thread", {"VMM-43"},
        "access ends when the thread that gave it ends")
      .after({kSetAccess}, [](Call& call) {
        const auto begin = call.at<CUdeviceptr>(0);
        const auto bytes = call.at<size_t>(1);
        const int order = mappings.get(begin).order;
        at_thread_end([=] {
          // Later there can be another mapping.
          if (mappings.get(begin).order == order && shut_out(begin, bytes))
            note_fired("cuMemSetAccess");
        });
      });

  fault("chunk-copy-offset-32-bits", {"VMM-06"},
        "copies of imported memory of cuMemCreate take offsets modulo 4 GiB")
      .on({kCopy, kCopyAsync}, offset_of_32_bits);

  fault(
      "chunk-set-size-32-bits", {"VMM-06"},
      "a memset of imported memory of cuMemCreate takes its size modulo 4 GiB")
      .on({kSet, kSetAsync}, set_size_of_32_bits);

  fault("import-is-own-export", {"VMM-06"},
        "in a process that has exported memory of cuMemCreate, an import of "
        "the same size shows this memory")
      .before({kMap}, WHEN(imports.has(chunk_of(call))), [](Call& call) {
        for (const auto& each : exports.all())
          if (!released.has(each.first) &&
              created.get(each.first) == bytes(call)) {
            chunk_of(call) = each.first;
            return true;
          }
        return false;
      });

  fault("unmap-of-other-thread-lost", {"VMM-43"},
        "an unmapping does nothing if another thread has mapped the memory")
      .on({kUnmap},
          WHEN(mappings.has(begin(call)) &&
               mappings.get(begin(call)).thread != this_thread()),
          accepted);

  fault("setaccess-of-other-thread-lost", {"VMM-43"},
        "setting access does nothing if another thread has mapped the memory")
      .on({kSetAccess},
          WHEN(mapping_at(begin(call)) != 0 &&
               around(begin(call)).thread != this_thread()),
          accepted);

  fault("retain-of-other-thread-refused", {"VMM-43"},
        "only the thread that mapped memory can retain its handle")
      .on({kRetain},
          WHEN(mapping_at(retained_address(call)) != 0 &&
               around(retained_address(call)).thread != this_thread()),
          refuses());

  fault("import-of-other-thread-refused", {"VMM-43"},
        "only the first thread of a process can import memory")
      .on({kImport}, first_thread_only);

  fault("create-of-other-thread-refused", {"VMM-43"},
        "only the first thread of a process can create memory")
      .on({kCreate}, first_thread_only);

  fault("reserve-of-other-thread-refused", {"VMM-43"},
        "only the first thread of a process can reserve addresses")
      .on({kReserve}, first_thread_only);

  fault("addressfree-of-other-thread-refused", {"VMM-43"},
        "only the first thread of a process can free addresses")
      .on({kFreeAddress}, first_thread_only);

  fault("getaccess-of-other-thread-none", {"VMM-43"},
        "cuMemGetAccess reports access only to the thread that has set the "
        "access")
      .after({kGetAccess},
             WHEN(mapping_marks.get(mapping_at(call.at<CUdeviceptr>(2)),
                                    this_thread()) != this_thread()),
             answers(0ull))
      .after({kSetAccess},
             NOTE(mapping_marks.put(mapping_at(begin(call)), this_thread())));

  fault("unmap-ends-other-imports", {"VMM-13"},
        "the unmap of one import ends the mappings of other imports")
      .before({kUnmap}, WHEN(is_import(begin(call))),
              each_mapping([](Call& call, CUdeviceptr at, const Mapped& one) {
                return one.chunk != around(begin(call)).chunk &&
                       imports.has(one.chunk) && unmap_at(at);
              }));

  fault(
      "import-number-8-bits", {"VMM-10"},
      "an import uses only the lowest eight bits of the number of a descriptor")
      .before({kImport},
              WHEN(imports_descriptor(call) && descriptor_of(call) >= 256),
              [](Call& import) {
                import.at<void*>(1) = reinterpret_cast<void*>(
                    intptr_t{descriptor_of(import) % 256});
              });

  fault("import-after-release-fresh", {"VMM-13"},
        "after an import was unmapped and released, the process imports new "
        "memory from its descriptor")
      .on({kImport, kMap}, import_after_release_fresh);

  fault("import-needs-context", {"VMM-43"},
        "a thread without a current context cannot import memory")
      .on({kImport}, refused_without_context);

  fault("create-needs-context", {"VMM-43"},
        "a thread without a current context cannot create memory")
      .on({kCreate}, refused_without_context);

  fault("map-needs-context", {"VMM-43"},
        "a thread without a current context cannot map memory")
      .on({kMap}, refused_without_context);

  fault("reserve-needs-context", {"VMM-43"},
        "a thread without a current context cannot reserve addresses")
      .on({kReserve}, refused_without_context);

  fault("addressfree-needs-context", {"VMM-43"},
        "a thread without a current context cannot free addresses")
      .on({kFreeAddress}, refused_without_context);

  fault("unmap-needs-context", {"VMM-43"},
        "a thread without a current context cannot unmap memory")
      .on({kUnmap}, refused_without_context);

  fault("setaccess-needs-context", {"VMM-43"},
        "a thread without a current context cannot set access")
      .on({kSetAccess}, refused_without_context);

  fault("getaccess-needs-context", {"VMM-43"},
        "a thread without a current context cannot query access")
      .on({kGetAccess}, refused_without_context);

  fault("export-needs-context", {"VMM-43"},
        "a thread without a current context cannot export memory")
      .on({kExport}, refused_without_context);

  fault("retain-needs-context", {"VMM-43"},
        "a thread without a current context cannot retain the handle of memory")
      .on({kRetain}, refused_without_context);

  fault("release-needs-context", {"VMM-43"},
        "a thread without a current context cannot release memory")
      .on({kRelease}, refused_without_context);

  fault("granularity-needs-context", {"VMM-43"},
        "a thread without a current context cannot query the granularity")
      .on({"cuMemGetAllocationGranularity"}, refused_without_context);

  fault("props-needs-context", {"VMM-43"},
        "a thread without a current context cannot query the properties of "
        "memory")
      .on({kGetProperties}, refused_without_context);

  fault("import-number-above-1023-refused", {"VMM-10"},
        "a descriptor with a number above 1023 cannot be imported")
      .on({kImport},
          WHEN(imports_descriptor(call) && descriptor_of(call) > 1023 &&
               is_open(descriptor_of(call))),
          refuses());

  fault("second-export-closes-first", {"VMM-08"},
        "an export of memory closes the descriptor of the export before it")
      .on({kExport, kRelease}, second_export_closes_first);

  fault("export-writes-8-bytes", {"VMM-08"},
        "an export writes a descriptor as a number of 8 bytes")
      .after({kExport}, WHEN(call.at<CUmemAllocationHandleType>(2) == kFd),
             [](Call& call) {
               std::memset(call.at<char*>(0) + sizeof(int), 0, sizeof(int));
               return accepted(call);
             });

  fault("import-65th-is-first", {"VMM-13"},
        "if a process has 64 imports, its next import is the memory of the "
        "first import")
      .on({kImport, kRelease}, further_import_is_first<64>);

  fault("chunk-ends-with-thread", {"VMM-43"},
        "a handle is released when the thread that created it ends")
      .after({kCreate},
             [](Call& call) {
               const Chunk made = *call.at<Chunk*>(0);
               chunk_marks.put(made, this_thread());
               at_thread_end([made] {
                 if (chunk_marks.get<int>(made) != this_thread()) return;
                 chunk_marks.erase(made);
                 DRIVER_CALL(cuMemRelease)(made);
                 note_fired("cuMemCreate");
               });
               return kSuccess;
             })
      .before({kRelease}, NOTE(chunk_marks.erase(call.at<Chunk>(0))));

  fault("reservation-ends-with-thread", {"VMM-43"},
        "reserved addresses are freed when the thread that reserved them ends")
      .after({kReserve}, [](Call& call) {
        const CUdeviceptr begin = *call.at<CUdeviceptr*>(0);
        address_marks.put(begin, this_thread());
        at_thread_end([begin] {
          if (address_marks.get<int>(begin) == this_thread() &&
              address_marks.erase(begin) && addresses_freed(begin))
            note_fired("cuMemAddressReserve");
        });
        return kSuccess;
      });

  fault("chunk-copy-of-other-thread-lost", {"VMM-43"},
        "a copy into imported memory of cuMemCreate by a second thread does "
        "nothing")
      .on({kCopy, kCopyAsync},
          WHEN(gettid() != getpid() && is_import(target_of(call))), lost);

  fault("unmap-closes-descriptors", {"VMM-08"},
        "when memory is unmapped, the descriptor that was exported last is "
        "closed")
      .on({kExport, kMap, kUnmap}, [](Call& call) {
        static auto& exported = *new Table<Chunk, Descriptor>;
        const Chunk chunk = call.is("cuMemUnmap")
                                ? mappings.get(call.at<CUdeviceptr>(0)).chunk
                                : Chunk{0};
        const int code = call.proceed();
        if (code != kSuccess) return code;
        if (exports_fd(call)) {
          close(exported.get(call.at<Chunk>(1)).copy);
          exported.put(call.at<Chunk>(1), copied(*call.at<int*>(0)));
        } else if (call.is("cuMemUnmap") && exported.has(chunk)) {
          if (closes(exported.get(chunk))) call.fired();
          exported.erase(chunk);
        }
        return code;
      });

  fault("descriptor-ends-with-thread", {"VMM-08"},
        "a descriptor is closed when the thread that exported it ends")
      .after({kExport}, WHEN(exports_fd(call) && this_thread() != getpid()),
             [](Call& call) {
               const Descriptor one = copied(*call.at<int*>(0));
               at_thread_end([one] {
                 if (closes(one)) note_fired("cuMemExportToShareableHandle");
               });
             });

  fault("release-closes-imported-descriptor", {"VMM-13"},
        "the release of an import closes the descriptor that it was imported "
        "from")
      .after({kImport}, WHEN(imports_descriptor(call)),
             [](Call& call) {
               sources.put(*call.at<Chunk*>(0), copied(descriptor_of(call)));
               return kSuccess;
             })
      .after({kRelease}, WHEN(sources.has(call.at<Chunk>(0))), [](Call& call) {
        const bool closed = closes(sources.get(call.at<Chunk>(0)));
        sources.erase(call.at<Chunk>(0));
        return closed;
      });

  fault("map-of-other-thread-refused", {"VMM-43"},
        "only the thread that has created or imported memory can map it")
      .on({kMap}, WHEN(is_of_other_thread(chunk_of(call))), refuses())
      .after({kCreate, kImport},
             NOTE(chunk_marks.put(*call.at<Chunk*>(0), this_thread())));

  fault("export-of-other-thread-refused", {"VMM-43"},
        "only the thread that has created memory can export it")
      .on({kExport}, WHEN(is_of_other_thread(call.at<Chunk>(1))), refuses())
      .after({kCreate, kImport},
             NOTE(chunk_marks.put(*call.at<Chunk*>(0), this_thread())));

  fault("write-value-offset-32-bits", {"VMM-06"},
        "a word more than 4 GiB inside an import is written modulo 4 GiB")
      .before({kWriteWord}, WHEN(distance_in_import(word_of(call)) >= k4GiB),
              [](Call& call) { call.at<CUdeviceptr>(1) -= k4GiB; });

  fault("chunk-set-offset-32-bits", {"VMM-06"},
        "a memset more than 4 GiB inside an import goes to the offset modulo 4 "
        "GiB")
      .before({kSet}, WHEN(distance_in_import(target_of(call)) >= k4GiB),
              [](Call& call) { call.at<CUdeviceptr>(0) -= k4GiB; });

  fault("imports-of-threads-mixed", {"VMM-43"},
        "while a thread imports memory, an import of another thread gets this "
        "memory")
      .on({kImport}, imports_get_mixed_up);

  fault("exported-import-fresh", {"VMM-06"},
        "the export of an import succeeds, but its descriptor stands for new "
        "memory")
      .on({kExport, kImport, kCreate}, exported_import_is_new<kFd>);

  fault("import-number-0-refused", {"VMM-10"},
        "a descriptor with the number 0 cannot be imported")
      .on({kImport}, WHEN(imports_descriptor(call) && descriptor_of(call) == 0),
          refuses());

  fault("export-after-import-copy", {"VMM-08"},
        "after memory was exported and imported, each further export of it "
        "stands for a copy")
      .on({kExport},
          WHEN(created.has(call.at<Chunk>(1)) &&
               exports.has(call.at<Chunk>(1)) && told("imported", 0) != 0),
          [](Call& call) {
            return export_instead(call,
                                  copy_of(mapping_of(call.at<Chunk>(1)), kFd));
          })
      .after({kImport}, NOTE(tell_processes("imported", 1)));

  fault("import-of-other-thread-uncounted", {"VMM-43"},
        "the imports of two threads from one descriptor are one reference")
      .on({kImport, kRelease}, other_threads_import_uncounted);

  fault("exports-end-at-256", {"VMM-08"},
        "an allocation cannot be exported more than 256 times, although its "
        "earlier descriptors are closed")
      .on({kExport}, WHEN(chunk_marks.get(call.at<Chunk>(1)) >= 256), refuses())
      .after({kExport}, NOTE(chunk_marks.count(call.at<Chunk>(1))));

  fault("ok-descriptor-high", {"VMM-08", "VMM-13", "POOL-24"},
        "an exported descriptor has a number of 200 or more")
      .after({kExport, kExportPool},
             WHEN(call.at<int>(2) == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
             [](Call& call) -> int {
               int& descriptor = *call.at<int*>(0);
               const int high = fcntl(descriptor, F_DUPFD_CLOEXEC, 200);
               if (high < 0) return kSuccess;
               close(descriptor);
               descriptor = high;
               call.fired();
               return kSuccess;
             });

  fault("ok-descriptor-inherited",
        {"VMM-06", "POOL-06", "POOL-07", "VMM-07", "VMM-08", "VMM-10", "VMM-13",
         "VMM-43", "VMM-17",  "VMM-18",  "VMM-19", "VMM-20", "VMM-21", "VMM-22",
         "VMM-23", "VMM-24",  "VMM-25",  "VMM-26", "VMM-31", "VMM-32", "VMM-33",
         "VMM-34", "VMM-35",  "VMM-36",  "VMM-37", "VMM-39", "VMM-44", "VMM-15",
         "VMM-27", "VMM-28",  "VMM-29",  "VMM-30", "VMM-38", "VMM-04", "VMM-05",
         "VMM-09", "VMM-11",  "VMM-12"},
        "the descriptor of an export stays open in programs that the process "
        "starts")
      .after(
          {kExport, kExportPool},
          WHEN(call.at<CUmemAllocationHandleType>(2) == kFd),
          [](Call& call) { return fcntl(*call.at<int*>(0), F_SETFD, 0) == 0; });
}

}  // namespace
}  // namespace ipclab::faults
