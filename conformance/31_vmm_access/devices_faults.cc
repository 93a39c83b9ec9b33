// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <utility>

#include "harness/faults/words/vmm_access.h"
#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// Memory on the host counts as memory of every GPU.
bool is_of_current_gpu(Chunk chunk) {
  const CUmemLocation place = properties_of(chunk).location;
  int current = 0;
  cudaGetDevice(&current);
  return place.type != CU_MEM_LOCATION_TYPE_DEVICE || place.id == current;
}

CUmemLocation pool_wants(Call& set) {
  return set.at<const CUmemAccessDesc*>(1)->location;
}

// Is this a GPU of this machine?
bool is_there(const CUmemLocation& place) {
  return is_gpu(place) && place.id >= 0 && place.id < gpus();
}

// Can a GPU not reach the memory at an address?
bool is_out_of_reach(CUdeviceptr address, int gpu) {
  const int own = location_at(address).id;
  int reaches = 0;
  DRIVER_CALL(cuDeviceCanAccessPeer)(&reaches, gpu, own);
  return reaches == 0 && gpu != own;
}

FAULTS {
  fault("setaccess-any-device", {"VMM-34", "SOMA-15"},
        "access for a GPU that does not exist is accepted")
      .on_refusal(
          {kSetAccess},
          WHEN(is_gpu(wants(call).location) && !is_there(wants(call).location)),
          accepted)
      .on_refusal({kSetPoolAccess},
                  WHEN(is_gpu(pool_wants(call)) && !is_there(pool_wants(call))),
                  accepted);

  fault("setaccess-nonpeer-ok", {"VMM-34"},
        "access for a GPU that cannot reach the memory is accepted")
      .with_gpus(2)
      .on_machine("no-peer")
      .on_refusal({kSetAccess},
                  WHEN(is_there(wants(call).location) &&
                       is_out_of_reach(begin(call), wants(call).location.id)),
                  accepted)
      .on_refusal({kSetPoolAccess}, WHEN(is_there(pool_wants(call))), accepted);

  fault("setaccess-numa-ok", {"VMM-34"},
        "access for a NUMA node to the memory of a GPU is accepted")
      .on_refusal({kSetAccess}, WHEN(is_on_node(wants(call).location)),
                  accepted);

  fault("peer-access-is-copy", {"VMM-33"},
        "a mapping that another GPU may use becomes a copy")
      .with_gpus(2)
      .after({kSetAccess}, [](Call& call) {
        const CUmemAccessDesc access = wants(call);
        const CUmemLocation own = location_at(begin(call));
        const Chunk held = mappings.get(begin(call)).bytes == bytes(call)
                               ? retain(begin(call))
                               : 0;
        const Chunk other = held != 0 && access.location.id != own.id
                                ? private_chunk(held, bytes(call))
                                : 0;
        const auto of_own = access_of(begin(call), own);
        if (other != 0) {
          copy(other, held, bytes(call));
          DRIVER_CALL(cuMemUnmap)(begin(call), bytes(call));
          DRIVER_CALL(cuMemMap)(begin(call), bytes(call), 0, other, 0);
          if (of_own != 0) allow(begin(call), bytes(call), own, of_own);
          if (allow(begin(call), bytes(call), on_gpu(access.location.id),
                    access.flags))
            call.fired();
          DRIVER_CALL(cuMemRelease)(other);
        }
        if (held != 0) DRIVER_CALL(cuMemRelease)(held);
        return kSuccess;
      });

  fault("getaccess-of-gpu-0", {"VMM-33"},
        "cuMemGetAccess reports the access of GPU 0 for every GPU")
      .with_gpus(2)
      .on({kGetAccess}, with_copy<CUmemLocation>(1, [](auto& place) {
            return is_gpu(place) && std::exchange(place.id, 0) != 0;
          }));

  fault("setaccess-wrong-gpu", {"VMM-33"},
        "access for another GPU is given to GPU 0")
      .with_gpus(2)
      .on({kSetAccess}, WHEN(length(call) == 1),
          with_copy<CUmemAccessDesc>(2, [](auto& access) {
            return is_gpu(access.location) &&
                   std::exchange(access.location.id, 0) != 0;
          }));

  fault("setaccess-all-gpus", {"VMM-33"},
        "access for one GPU is given to all GPUs")
      .with_gpus(2)
      .after({kSetAccess}, [](Call& call) {
        bool any = false;
        for (int gpu = 0; gpu < gpus(); ++gpu)
          any |=
              gpu != wants(call).location.id &&
              allow(begin(call), bytes(call), on_gpu(gpu), wants(call).flags);
        return any;
      });

  fault("vmm-needs-enablepeer", {"VMM-33"},
        "access for another GPU needs cudaDeviceEnablePeerAccess first")
      .with_gpus(2)
      .on({kSetAccess, "cudaDeviceEnablePeerAccess"}, [](Call& call) -> int {
        static std::atomic<bool> enabled{false};
        enabled = enabled || !call.is("cuMemSetAccess");
        if (enabled) return call.proceed();
        const CUmemLocation own = location_at(begin(call));
        return own.type == CU_MEM_LOCATION_TYPE_INVALID ||
                       wants(call).location.id == own.id
                   ? call.proceed()
                   : refused(call, CUDA_ERROR_INVALID_DEVICE);
      });

  fault("setaccess-replaces-others", {"VMM-33"},
        "access for one GPU ends the access of the other GPUs")
      .with_gpus(2)
      .after({kSetAccess},
             WHEN(length(call) == 1 && is_gpu(wants(call).location) &&
                  wants(call).flags != kNone),
             [](Call& call) {
               bool any = false;
               for (int gpu = 0; gpu < gpus(); ++gpu)
                 any |= gpu != wants(call).location.id &&
                        access_of(begin(call), on_gpu(gpu)) != 0 &&
                        allow(begin(call), bytes(call), on_gpu(gpu), kNone);
               return any;
             });

  fault("setaccess-first-only", {"VMM-33"},
        "only the first entry of a list of accesses is set")
      .with_gpus(2)
      .before({kSetAccess}, WHEN(length(call) > 1), with<size_t>(3, 1));

  fault("import-needs-current-gpu", {"VMM-33", "VMM-31"},
        "memory of a GPU other than the current GPU cannot be imported")
      .with_gpus(2)
      .after({kImport}, WHEN(!is_of_current_gpu(*call.at<Chunk*>(0))),
             [](Call& call) {
               DRIVER_CALL(cuMemRelease)(*call.at<Chunk*>(0));
               return refused(call, CUDA_ERROR_NOT_SUPPORTED);
             });

  fault("create-on-gpu-0", {"VMM-33"}, "memory for any GPU is created on GPU 0")
      .with_gpus(2)
      .on({kCreate}, with_copy<CUmemAllocationProp>(2, [](auto& wanted) {
            return is_gpu(wanted.location) &&
                   std::exchange(wanted.location.id, 0) != 0;
          }));

  fault("chunk-peer-copy-lost", {"VMM-33"},
        "cudaMemcpyPeerAsync does not reach imported memory of cuMemCreate")
      .with_gpus(2)
      .on({"cudaMemcpyPeerAsync"}, access_lost);

  fault(
      "chunk-set-from-other-gpu-lost", {"VMM-33"},
      "a memset of imported memory of cuMemCreate by another GPU does nothing")
      .with_gpus(2)
      .on({kSet, kSetAsync}, set_from_other_gpu_lost);

  fault("map-needs-current-gpu", {"VMM-33"},
        "memory of a GPU other than the current GPU cannot be mapped")
      .with_gpus(2)
      .on({kMap}, WHEN(!is_of_current_gpu(call.at<Chunk>(3))),
          refuses(CUDA_ERROR_INVALID_DEVICE));

  fault("peer-access-lowered-in-name", {"VMM-33"},
        "cuMemGetAccess says that GPU 1 can only read memory, but GPU 1 can "
        "still write it")
      .with_gpus(2)
      .on({kSetAccess, kGetAccess, kMap, kUnmap},
          changed_in_name<kReadWrite, kRead, 1>);

  fault("create-on-current-gpu", {"VMM-33"},
        "memory is created on the current GPU, not on the named GPU")
      .with_gpus(2)
      .on({kCreate}, with_copy<CUmemAllocationProp>(2, [](auto& wanted) {
            const int current = current_device();
            return is_gpu(wanted.location) &&
                   std::exchange(wanted.location.id, current) != current;
          }));

  fault("access-attr-of-gpu-0", {"VMM-33"},
        "the attribute of a mapped address says the access of GPU 0, also if "
        "another GPU is current")
      .with_gpus(2)
      .after({kGetAttribute},
             WHEN(asks(call, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS) &&
                  is_mapped_at(call.at<CUdeviceptr>(2))),
             DO(set_to(*call.at<unsigned*>(0),
                       access_of(call.at<CUdeviceptr>(2), on_gpu(0)))));

  fault("setaccess-flags-of-first", {"VMM-33"},
        "all entries of a list of accesses get the flags of the first one")
      .with_gpus(2)
      .on({kSetAccess}, each_access([](Call& call, CUmemAccessDesc& one) {
            return set_to(one.flags, wants(call).flags);
          }));

  fault("export-needs-current-gpu", {"VMM-33"},
        "memory of a GPU other than the current GPU cannot be exported")
      .with_gpus(2)
      .on({kExport}, WHEN(!is_of_current_gpu(call.at<Chunk>(1))), refuses());

  fault("access-needs-owner-gpu", {"VMM-33"},
        "access for another GPU is refused if the GPU of the memory has no "
        "access")
      .with_gpus(2)
      .on({kSetAccess}, WHEN(mapping_at(begin(call)) != 0),
          [](Call& call) -> int {
            const CUmemLocation own = location_at(begin(call));
            if (!is_gpu(own) || access_of(mapping_at(begin(call)), own) != 0)
              return call.proceed();
            for (size_t i = 0; i < length(call); ++i)
              if ((&wants(call))[i].location.type == own.type &&
                  (&wants(call))[i].location.id == own.id)
                return call.proceed();
            return refused(call, CUDA_ERROR_INVALID_DEVICE);
          });

  fault("setaccess-second-unchecked", {"VMM-34"},
        "of a list of two accesses only the first one is checked")
      .on_refusal({kSetAccess}, WHEN(length(call) == 2), [](Call& call) {
        const int code = call.code();
        call.at<size_t>(3) = 1;
        return call.proceed() == kSuccess ? accepted(call) : code;
      });

  fault("setaccess-after-last-gpu", {"VMM-34"},
        "cuMemSetAccess for the number after the last GPU succeeds and does "
        "nothing")
      .on_refusal({kSetAccess},
                  WHEN(is_gpu(wants(call).location) &&
                       wants(call).location.id == gpus()),
                  accepted);

  fault("setaccess-list-raises-second", {"VMM-33"},
        "a list with reading and writing for one GPU also lets the other GPU "
        "write, which may only read")
      .with_gpus(2)
      .on({kSetAccess},
          WHEN(length(call) == 2 && (&wants(call))[0].flags == kReadWrite &&
               (&wants(call))[1].flags == kRead),
          each_access([](Call&, CUmemAccessDesc& one) {
            return set_to(one.flags, kReadWrite);
          }));

  fault("import-of-second-gpu-fresh", {"VMM-33", "VMM-31"},
        "each mapping of an import of memory of the second GPU is new memory")
      .with_gpus(2)
      .on({kMap},
          WHEN(imports.has(chunk_of(call)) &&
               is_gpu(properties_of(chunk_of(call)).location) &&
               properties_of(chunk_of(call)).location.id == 1),
          map_new_instead);

  fault("import-ordinal-current", {"VMM-33"},
        "the GPU of imported memory is reported as the current GPU")
      .with_gpus(2)
      .after({kGetAttribute},
             WHEN(asks(call, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) &&
                  is_import(call.at<CUdeviceptr>(2))),
             [](Call& call) { return answers(current_device())(call); });

  fault("refused-setaccess-takes-access", {"VMM-34"},
        "a refused setting of access takes the access that GPU 0 has")
      .on_refusal({kSetAccess}, [](Call& call) {
        const CUdeviceptr first = mapping_at(begin(call));
        return first != 0 && access_of(first, on_gpu(0)) != 0 &&
               allow(first, on_gpu(0), kNone);
      });

  fault("chunk-access-ends-with-peer-access", {"VMM-33"},
        "disabling peer access also ends the access to mapped memory of "
        "cuMemCreate on other GPUs")
      .with_gpus(2)
      .after({"cudaDeviceDisablePeerAccess"},
             each_mapping([](Call&, CUdeviceptr at, const Mapped&) {
               const CUmemLocation here = on_gpu(current_device());
               return location_at(at).id != here.id &&
                      access_of(at, here) != kNone && allow(at, here, kNone);
             }));
}

}  // namespace
}  // namespace ipclab::faults
