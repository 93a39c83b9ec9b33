// Bugs of a driver against the rules about external memory.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include "harness/faults/words/words.h"
#include "harness/faults/world/external.h"

namespace ipclab::faults {
namespace {

constexpr auto kImportExternal = "cudaImportExternalMemory";
constexpr auto kMapExternal = "cudaExternalMemoryGetMappedBuffer";
constexpr auto kDestroyExternal = "cudaDestroyExternalMemory";
constexpr auto kImportSemaphore = "cudaImportExternalSemaphore";

bool is_part_freed(Call& free) {
  return external_parts.has(free.at<CUdeviceptr>(0));
}

// The program gets memory that has the same bytes, instead of the buffer.
bool gives_copy(Call& map) {
  auto& address = *map.at<CUdeviceptr*>(0);
  CUdeviceptr copy = 0;
  const size_t bytes = part_of(map).size;
  if (DRIVER_CALL(cuMemAlloc)(&copy, bytes) != CUDA_SUCCESS) return false;
  DRIVER_CALL(cuMemcpyDtoD)(copy, address, bytes);
  cudaDeviceSynchronize();
  DRIVER_CALL(cuMemFree)(address);
  address = copy;
  return true;
}

// The buffer begins at the beginning of the memory.
int at_the_beginning(Call& map) {
  auto& wanted = part_of(map);
  const auto offset = wanted.offset;
  wanted.offset = 0;
  const int code = once_more(map);
  wanted.offset = offset;
  return code;
}

// The driver gets a copy of the descriptor, and the program's one stays open.
int imports_copy(Call& call) {
  auto& number = import_of(call).handle.fd;
  const int own = number;
  number = fcntl(own, F_DUPFD_CLOEXEC, 300);
  const int copy = number;
  const int code = call.proceed();
  number = own;
  if (code == kSuccess)
    call.fired();
  else
    close(copy);
  return code;
}

bool closes_descriptor(Call& call) {
  return close(import_of(call).handle.fd) == 0;
}

// Ends all buffers of the process for which the condition holds.
template <class Condition>
bool ends_parts(Condition condition) {
  bool any = false;
  for (const auto& [address, part] : external_parts.all())
    if (condition(part) && DRIVER_CALL(cuMemFree)(address) == CUDA_SUCCESS)
      any = true;
  return any;
}

bool clears_part(Call& map) {
  return DRIVER_CALL(cuMemsetD8)(*map.at<CUdeviceptr*>(0), 0,
                                 part_of(map).size) == CUDA_SUCCESS &&
         cudaDeviceSynchronize() == cudaSuccess;
}

bool overlaps_another(Call& map) {
  const auto begin = part_of(map).offset, end = begin + part_of(map).size;
  for (const auto& [address, part] : external_parts.all())
    if (part.memory == map.at<External>(1) &&
        begin < part.offset + part.bytes && part.offset < end)
      return true;
  return false;
}

}  // namespace

FAULTS {
  fault("external-part-is-a-copy", {"XMEM-01", "XMEM-02", "XMEM-11"},
        "a buffer of external memory is a copy of the memory")
      .after({kMapExternal}, gives_copy);

  fault("external-map-clears",
        {"XMEM-01", "XMEM-02", "XMEM-06", "XMEM-07", "XMEM-08", "XMEM-11",
         "XMEM-12", "XMEM-14"},
        "the mapping of a buffer clears the memory")
      .after({kMapExternal}, clears_part);

  fault("external-offset-ignored", {"XMEM-02"},
        "the offset of a buffer is ignored")
      .on({kMapExternal}, WHEN(part_of(call).offset != 0), at_the_beginning);

  fault("external-import-keeps-descriptor", {"XMEM-03"},
        "an import leaves the descriptor open")
      .on({kImportExternal}, imports_copy);

  fault("external-refusal-closes", {"XMEM-04"},
        "a refused import closes the descriptor")
      .on_refusal({kImportExternal}, closes_descriptor);

  fault("external-refused-size-closes", {"XMEM-04"},
        "an import that is refused because of its arguments closes the "
        "descriptor")
      .on_refusal({kImportExternal},
                  WHEN(import_of(call).size == 0 || import_of(call).flags > 1),
                  closes_descriptor);

  fault("external-refusal-loses-context", {"XMEM-05"},
        "after a refused import the context cannot be used")
      .on_refusal({kImportExternal}, NOTE(marks.put(0)))
      .on({kMalloc}, WHEN(marks.has(0)), refuses());

  fault("external-refused-map-breaks", {"XMEM-07"},
        "after a refused buffer the object gives no buffers any more")
      .on_refusal({kMapExternal}, NOTE(marks.put(call.at<External>(1))))
      .on({kMapExternal}, WHEN(marks.has(call.at<External>(1))), refuses());

  fault("external-free-refused", {"XMEM-08", "XMEM-09"},
        "a buffer of external memory cannot be freed")
      .on({kFree}, WHEN(is_part_freed(call)), refuses());

  fault("external-free-lost", {"XMEM-08", "XMEM-09"},
        "the free of a buffer of external memory does nothing")
      .on({kFree}, WHEN(is_part_freed(call)), lost);

  fault("external-free-ends-object", {"XMEM-08"},
        "after the free of a buffer the object gives no buffers any more")
      .before(
          {kFree}, WHEN(is_part_freed(call)),
          NOTE(marks.put(external_parts.get(call.at<CUdeviceptr>(0)).memory)))
      .on({kMapExternal}, WHEN(marks.has(call.at<External>(1))), refuses())
      .after({kDestroyExternal}, NOTE(marks.erase(call.at<External>(0))));

  fault("external-destroy-refused", {"XMEM-09"},
        "an object cannot be destroyed while it has buffers")
      .on({kDestroyExternal}, WHEN(has_parts(call.at<External>(0))),
          refuses(CUDA_ERROR_INVALID_HANDLE));

  fault("external-destroy-ends-parts", {"XMEM-09"},
        "the destroy of an object frees its buffers, and the program's free is "
        "then refused")
      .after({kDestroyExternal}, [](Call& call) {
        return ends_parts([&](const ExternalPart& part) {
          return part.memory == call.at<External>(0);
        });
      });

  fault("external-destroy-ends-others", {"XMEM-11"},
        "the destroy of an object ends the buffers of all other objects")
      .after({kDestroyExternal}, [](Call& call) {
        return ends_parts([&](const ExternalPart& part) {
          return part.memory != call.at<External>(0);
        });
      });

  fault("external-destroy-clears", {"XMEM-10"},
        "the destroy of an object clears its memory")
      .before({kDestroyExternal}, [](Call& call) {
        for (const auto& [address, part] : external_parts.all())
          if (part.memory == call.at<External>(0)) {
            DRIVER_CALL(cuMemsetD8)(address, 0, part.bytes);
            cudaDeviceSynchronize();
            call.fired();
          }
      });

  fault("external-second-import-refused", {"XMEM-11"},
        "a process can have only one import at a time")
      .on({kImportExternal}, WHEN(!externals.all().empty()), refuses());

  fault("external-semaphore-refusal-closes", {"XMEM-15"},
        "a refused import of a semaphore closes the descriptor")
      .on_refusal({kImportSemaphore}, [](Call& call) {
        // The descriptor stands at the same place as that of memory.
        return closes_descriptor(call);
      });

  fault("ok-external-size-checked", {"XMEM-06"},
        "an import with another size than that of the memory is refused")
      .on({kImportExternal},
          WHEN(created.get(
                   created.all().empty() ? 0 : created.all().rbegin()->first) !=
               import_of(call).size),
          refuses());

  fault("ok-external-overlap-refused", {"XMEM-13"},
        "a buffer that overlaps another one is refused")
      .on({kMapExternal}, WHEN(overlaps_another(call)),
          refuses(CUDA_ERROR_ALREADY_MAPPED));

  fault("ok-external-dedicated-refused", {"XMEM-14"},
        "the flag for a dedicated resource is refused")
      .on({kImportExternal}, WHEN(import_of(call).flags == 1), refuses());
}

}  // namespace ipclab::faults
