// Bugs of a driver against the rules about dma-bufs
// (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// The model's machine on which processes map dma-bufs.
constexpr auto kMapsDmaBufs = "driver-13.5";
constexpr unsigned long long kPcie = 1;

CUdeviceptr& first(Call& call) { return call.at<CUdeviceptr>(1); }
size_t& size(Call& call) { return call.at<size_t>(2); }
unsigned long long flags(Call& call) { return call.at<unsigned long long>(4); }
int*& result(Call& call) { return call.at<int*>(0); }

// Is the range mapped memory of cuMemCreate?
bool is_of_chunks(Call& call) { return mapping_at(first(call)) != 0; }
bool is_of_host(Call& call) {
  CUmemorytype type{};
  return !is_of_chunks(call) &&
         DRIVER_CALL(cuPointerGetAttribute)(&type,
                                            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                            first(call)) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_HOST;
}
bool is_part(Call& call) {
  return !is_of_chunks(call) && begin_of(first(call)) != 0 &&
         size(call) < size_of(first(call));
}
bool has_several_chunks(Call& call) {
  const CUdeviceptr last = mapping_at(first(call) + size(call) - 1);
  return is_of_chunks(call) && last != 0 && last != mapping_at(first(call));
}

// What the marks of a fault say about memory that has a dma-buf.
constexpr int kLent = 1;
constexpr int kFreed = 2;

// An allocation gets memory that was freed and still has a dma-buf.
int gives_freed_memory(Call& call) {
  for (const auto& [address, state] : marks.all())
    if (state == kFreed) {
      marks.put(address, kLent);
      *call.at<CUdeviceptr*>(0) = address;
      return accepted(call);
    }
  return call.proceed();
}

int open_device(int access) { return open("/dev/zero", access | O_CLOEXEC); }

// The program gets this descriptor instead of the driver's one.
void give(Call& call, int descriptor) {
  close(std::exchange(*result(call), descriptor));
}

// The dma-buf is of new memory that has the same bytes.
int exports_copy(Call& call) {
  CUdeviceptr copy = 0;
  if (flags(call) != 0 ||
      DRIVER_CALL(cuMemAlloc)(&copy, size(call)) != CUDA_SUCCESS)
    return call.proceed();
  if (DRIVER_CALL(cuMemcpy)(copy, first(call), size(call)) != CUDA_SUCCESS) {
    DRIVER_CALL(cuMemFree)(copy);
    return call.proceed();
  }
  first(call) = copy;
  return once_more(call);
}

// A refused call clears the memory.
bool clears_memory(Call& call) {
  const CUdeviceptr begin = begin_of(first(call));
  return begin != 0 && !is_of_chunks(call) &&
         DRIVER_CALL(cuMemsetD8)(begin, 0, 64) == CUDA_SUCCESS;
}

int with_descriptor(Call& call) {
  if (result(call) == nullptr) return call.code();
  *result(call) = open_device(O_RDWR);
  return accepted(call);
}

}  // namespace

FAULTS {
  fault("dmabuf-malloc-refused", {"DBUF-01"},
        "there is no dma-buf of memory of cuMemAlloc")
      .on({kGetRange}, WHEN(!is_of_chunks(call)), refuses());

  fault("dmabuf-part-refused", {"DBUF-01"},
        "there is a dma-buf of whole memory of cuMemAlloc only")
      .on({kGetRange}, WHEN(is_part(call)), refuses());

  fault("dmabuf-first-thread-only", {"DBUF-01"},
        "only the first thread gets a dma-buf")
      .on({kGetRange}, first_thread_only);

  fault("dmabuf-mapped-refused", {"DBUF-02"},
        "there is no dma-buf of mapped memory")
      .on({kGetRange}, WHEN(is_of_chunks(call)), refuses());

  fault("dmabuf-first-mapping-only", {"DBUF-02"},
        "of a reservation, only the memory that is mapped at its beginning "
        "becomes a dma-buf")
      .on({kGetRange},
          WHEN(is_of_chunks(call) &&
               first(call) != reservation_at(first(call))),
          refuses());

  fault("dmabuf-one-allocation-only", {"DBUF-03"},
        "a range of several allocations is refused")
      .on({kGetRange}, WHEN(has_several_chunks(call)), refuses());

  fault("dmabuf-of-nothing", {"DBUF-01", "DBUF-02", "DBUF-04", "DBUF-10"},
        "the call gives a descriptor that is no dma-buf")
      .on_machine(kMapsDmaBufs)
      .after({kGetRange}, DO(give(call, open_device(O_RDWR))));

  fault("dmabuf-same-number", {"DBUF-04"},
        "a second dma-buf of a range is the number of the first one")
      .after({kGetRange}, [](Call& call) {
        const int known = marks.get<int>(first(call), -1);
        if (is_open(known)) {
          give(call, known);
          return true;
        }
        marks.put(first(call), *result(call));
        return false;
      });

  fault("dmabuf-eight-bytes", {"DBUF-04"},
        "the call writes the descriptor as a number of eight bytes")
      .after({kGetRange}, [](Call& call) {
        *reinterpret_cast<long long*>(result(call)) = *result(call);
      });

  fault("dmabuf-refusal-leaks",
        {"DBUF-04", "DBUF-05", "DBUF-06", "DBUF-07", "DBUF-09", "DBUF-10",
         "DBUF-12"},
        "a refused call leaves a descriptor open")
      .on_refusal({kGetRange}, [](Call&) { open_device(O_RDWR); });

  fault("dmabuf-refusal-clears", {"DBUF-05", "DBUF-06", "DBUF-09", "DBUF-10"},
        "a refused call clears memory")
      .on_refusal({kGetRange}, clears_memory);

  fault("dmabuf-refusal-loses-context", {"DBUF-07"},
        "after a refused call the context cannot be used")
      .on_refusal({kGetRange}, NOTE(marks.put(0)))
      .on({kMalloc}, WHEN(marks.has(0)), refuses());

  fault("dmabuf-clears-several", {"DBUF-08"},
        "a dma-buf of several allocations clears the first one")
      .before({kGetRange}, WHEN(has_several_chunks(call)), [](Call& call) {
        const CUdeviceptr begin = mapping_at(first(call));
        return cleared(begin, mappings.get(begin).bytes);
      });

  fault("ok-dmabuf-alike-checked", {"DBUF-08"},
        "a range of different kinds of memory is refused")
      .on({kGetRange}, WHEN(has_several_chunks(call)), refuses());

  fault("ok-dmabuf-any-range",
        {"DBUF-05", "DBUF-06", "DBUF-07", "DBUF-09", "DBUF-12"},
        "the export of any range as a dma-buf gives a descriptor")
      .on_refusal({kGetRange}, with_descriptor);

  fault("dmabuf-pcie-without-descriptor", {"DBUF-10"},
        "with the flag for PCIe the call succeeds and gives no descriptor")
      .on({kGetRange}, WHEN(flags(call) == kPcie), [](Call& call) {
        *result(call) = -1;
        return accepted(call);
      });

  fault("dmabuf-pcie-unknown-code", {"DBUF-10"},
        "the flag for PCIe is refused with a code that is not documented")
      .on({kGetRange}, WHEN(flags(call) == kPcie), refuses(CUDA_ERROR_UNKNOWN));

  fault("ok-dmabuf-pcie", {"DBUF-10"}, "the flag for PCIe is accepted")
      .before({kGetRange}, WHEN(flags(call) == kPcie), flags_ignored);

  fault("dmabuf-host-refused", {"DBUF-11"},
        "there is no dma-buf of memory of the host")
      .on_machine(kMapsDmaBufs)
      .on({kGetRange}, WHEN(is_of_host(call)), refuses());

  fault("dmabuf-host-is-a-copy", {"DBUF-11"},
        "the dma-buf of memory of the host is a copy")
      .on_machine(kMapsDmaBufs)
      .on({kGetRange}, WHEN(is_of_host(call)), exports_copy);

  fault("dmabuf-import-takes-descriptor", {"DBUF-13"},
        "the refused import of a dma-buf closes the descriptor")
      .on_refusal({kImport}, WHEN(imports_descriptor(call)),
                  DO(close(descriptor_of(call)) == 0));

  fault("dmabuf-kept-for-ever", {"DBUF-15"},
        "memory that was a dma-buf never comes back")
      .after({kGetRange},
             [](Call& call) { fcntl(*result(call), F_DUPFD_CLOEXEC, 300); });

  fault("dmabuf-cannot-be-mapped", {"DBUF-16"},
        "mmap refuses the descriptor, although the attribute says that it can "
        "be mapped")
      .on_machine(kMapsDmaBufs)
      .after({kGetRange}, DO(give(call, open_device(O_WRONLY))));

  fault("dmabuf-of-a-copy", {"DBUF-16", "DBUF-17", "DBUF-18"},
        "the dma-buf is a copy of the memory")
      .on_machine(kMapsDmaBufs)
      .on({kGetRange}, exports_copy);

  fault("dmabuf-of-chunk-is-a-copy", {"DBUF-16"},
        "the dma-buf of mapped memory is a copy")
      .on_machine(kMapsDmaBufs)
      .on({kGetRange}, WHEN(is_of_chunks(call)), exports_copy);

  fault("dmabuf-of-the-neighbour", {"DBUF-17"},
        "the dma-buf is of the memory that is mapped after the range")
      .on_machine(kMapsDmaBufs)
      .before(
          {kGetRange},
          WHEN(is_of_chunks(call) && mapping_at(first(call) + size(call)) != 0),
          DO(void(first(call) += size(call))));

  fault("dmabuf-of-earlier-memory", {"DBUF-18", "DBUF-19"},
        "the new handle of a range still shows the memory that was there at "
        "the first call")
      .on_machine(kMapsDmaBufs)
      .after({kGetRange}, [](Call& call) {
        const int known = marks.get<int>(first(call), -1);
        if (known != -1) {
          give(call, fcntl(known, F_DUPFD_CLOEXEC, 0));
          return true;
        }
        marks.put(first(call), fcntl(*result(call), F_DUPFD_CLOEXEC, 300));
        return false;
      });

  fault("dmabuf-freed-memory-comes-again", {"DBUF-20"},
        "an allocation gets memory that was freed while its dma-buf was mapped")
      .on_machine(kMapsDmaBufs)
      .on({kMalloc}, gives_freed_memory)
      .after({kGetRange}, NOTE(marks.put(first(call), kLent)))
      .on({kFree}, WHEN(marks.has(call.at<CUdeviceptr>(0))), [](Call& call) {
        marks.put(call.at<CUdeviceptr>(0), kFreed);
        return kSuccess;
      });

  fault("ok-dmabuf-mapped-by-inheritance", {"DBUF-16"},
        "the descriptor of a dma-buf is inherited by other programs")
      .on_machine(kMapsDmaBufs)
      .after({kGetRange}, DO(fcntl(*result(call), F_SETFD, 0) == 0));
}

}  // namespace ipclab::faults
