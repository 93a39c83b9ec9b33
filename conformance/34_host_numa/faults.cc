// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

bool is_host_location(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

// Is the address in memory on a node of the host?
bool lies_on_node(CUdeviceptr address) {
  const CUdeviceptr begin = mapping_at(address);
  return begin != 0 &&
         location_at(begin).type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

// A GPU's memset, copy or word does not reach memory on a node of the host.
int node_not_reached(Call& call) {
  const int place = call.is("cuStreamWriteValue32") ? 1 : 0;
  if (!lies_on_node(call.at<CUdeviceptr>(place))) return call.proceed();
  call.fired();
  return kSuccess;
}

// A copy or a memset does not reach imported memory on a node of the host.
int node_import_not_reached(Call& call) {
  const CUdeviceptr begin = mapping_at(call.value<CUdeviceptr>(kPointer));
  return begin != 0 && is_import(begin) && is_on_node(location_at(begin))
             ? lost(call)
             : call.proceed();
}

int node_usable_before_access(Call& call) {
  static auto& early = *new Table<CUdeviceptr, CUmemLocation>;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const auto begin = call.at<CUdeviceptr>(0);
  if (call.is("cuMemMap")) {
    early.erase(begin);
    const CUmemLocation node = location_at(begin);
    if (is_on_node(node) &&
        allow(begin, node, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) {
      early.put(begin, node);
      call.fired();
    }
  } else if (call.is("cuMemSetAccess")) {
    const auto* const access = call.at<const CUmemAccessDesc*>(2);
    if (is_on_node(access->location)) early.erase(begin);
  } else if (call.is("cuMemGetAccess") &&
             is_on_node(*call.at<const CUmemLocation*>(1)) &&
             early.has(mapping_at(call.at<CUdeviceptr>(2)))) {
    *call.at<unsigned long long*>(0) = 0;
  }
  return code;
}

FAULTS {
  fault("cpu-keeps-access", {"MNGD-15"},
        "cuMemSetAccess does not take the access of a CPU away")
      .on({kSetAccess}, [](Call& call) {
        auto& wanted = call.at<const CUmemAccessDesc*>(2);
        const size_t count = call.at<size_t>(3);
        std::vector<CUmemAccessDesc> kept;
        for (size_t i = 0; wanted != nullptr && i < count; ++i)
          if (wanted[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE ||
              wanted[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
            kept.push_back(wanted[i]);
        if (kept.size() == count) return call.proceed();
        call.fired();
        if (kept.empty()) return kSuccess;
        wanted = kept.data();
        call.at<size_t>(3) = kept.size();
        return call.proceed();
      });

  fault(
      "setaccess-node-looked-at", {"MNGD-15"},
      "access of a NUMA node is refused if the memory is on another NUMA node")
      .on({kSetAccess},
          WHEN(mapping_at(call.at<CUdeviceptr>(0)) != 0 &&
               call.at<const CUmemAccessDesc*>(2)->location.type ==
                   CU_MEM_LOCATION_TYPE_HOST_NUMA &&
               (location_at(mapping_at(call.at<CUdeviceptr>(0)))).type ==
                   call.at<const CUmemAccessDesc*>(2)->location.type &&
               (location_at(mapping_at(call.at<CUdeviceptr>(0)))).id !=
                   call.at<const CUmemAccessDesc*>(2)->location.id),
          [](Call& call) { return refused(call, CUDA_ERROR_INVALID_DEVICE); });

  fault("props-of-host-name-gpu", {"MNGD-15"},
        "the properties of memory on the host name GPU 0")
      .after({kGetProperties}, [](Call& call) {
        auto& location = call.at<CUmemAllocationProp*>(0)->location;
        if (!is_host_location(location)) return kSuccess;
        location = on_gpu(0);
        return accepted(call);
      });

  fault("node-fabric-refused", {"MNGD-16"},
        "memory on a node of the host cannot be exported as a fabric handle")
      .on({kExport},
          WHEN(is_fabric(call) &&
               is_on_node(properties_of(call.at<Chunk>(1)).location)),
          refuses(CUDA_ERROR_NOT_SUPPORTED))
      .on_machine("fabric");

  fault("node-fabric-elsewhere", {"MNGD-16"},
        "the import of a fabric handle of memory on a node of the host gives "
        "other memory")
      .after({kImport},
             WHEN(is_fabric(call) &&
                  is_on_node(properties_of(*call.at<Chunk*>(0)).location)),
             [](Call& call) {
               const Chunk other = new_chunk(
                   kGranule, properties_of(*call.at<Chunk*>(0)).location,
                   kFabric);
               if (other == 0) return false;
               DRIVER_CALL(cuMemRelease)(*call.at<Chunk*>(0));
               *call.at<Chunk*>(0) = other;
               return true;
             })
      .on_machine("fabric");

  fault("node-set-lost", {"MNGD-15"},
        "a memset does not reach memory on a node of the host")
      .on({kSet}, node_not_reached);

  fault("node-copy-in-lost", {"MNGD-15"},
        "a copy does not reach memory on a node of the host")
      .on({kCopy}, node_not_reached);

  fault("node-copy-out-lost", {"MNGD-15"},
        "a copy out of memory on a node of the host moves nothing")
      .on({kCopy}, WHEN(lies_on_node(call.value<CUdeviceptr>(kSource))), lost);

  fault("node-word-lost", {"MNGD-15"},
        "a stream does not write a word in memory on a node of the host")
      .on({kWriteWord}, node_not_reached);

  fault("node-async-set-lost", {"MNGD-15"},
        "an asynchronous memset does not reach memory on a node of the host")
      .on({kSetAsync}, node_not_reached);

  fault("node-async-copy-lost", {"MNGD-15"},
        "an asynchronous copy does not reach memory on a node of the host")
      .on({kCopyAsync}, node_not_reached);

  fault("numa-access-one-at-a-time", {"MNGD-15"},
        "access of a GPU to memory on a host node ends the access of the CPU")
      .after({kSetAccess}, [](Call& call) -> int {
        const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
        if (begin == 0) return kSuccess;
        const CUmemLocation own = location_at(begin);
        if (own.type != CU_MEM_LOCATION_TYPE_HOST_NUMA) return kSuccess;
        const auto* const list = call.at<const CUmemAccessDesc*>(2);
        if (list[0].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            access_of(begin, own) == 0)
          return kSuccess;
        if (allow(begin, own, CU_MEM_ACCESS_FLAGS_PROT_NONE)) call.fired();
        return kSuccess;
      });

  fault("numa-getaccess-none", {"MNGD-15"},
        "cuMemGetAccess says that the CPU has no access")
      .after({kGetAccess},
             WHEN((*call.at<unsigned long long*>(0)) != 0 &&
                  call.at<const CUmemLocation*>(1)->type ==
                      CU_MEM_LOCATION_TYPE_HOST_NUMA),
             [](Call& call) {
               auto& flags = *call.at<unsigned long long*>(0);
               flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
               return accepted(call);
             });

  fault("node-memory-dies-with-exporter", {"MNGD-15"},
        "memory on a node of the host is cleared when its exporter unmaps it")
      .before({kUnmap}, [](Call& call) -> bool {
        const CUdeviceptr begin = call.at<CUdeviceptr>(0);
        const Mapped mapped = mappings.get(begin);
        return mapped.bytes == call.at<size_t>(1) &&
               exports.has(mapped.chunk) && is_on_node(location_at(begin)) &&
               DRIVER_CALL(cuMemsetD8)(begin, 0, mapped.bytes) == CUDA_SUCCESS;
      });

  fault("node-import-told-as-gpu", {"MNGD-15"},
        "an import of memory on a node of the host is reported as memory of a "
        "GPU")
      .after({kGetProperties},
             WHEN(imports.has(call.at<Chunk>(1)) &&
                  is_on_node(call.at<CUmemAllocationProp*>(0)->location)),
             [](Call& call) {
               auto& location = call.at<CUmemAllocationProp*>(0)->location;
               location = on_gpu(0);
             });

  fault(
      "node-import-copy-lost", {"MNGD-15"},
      "a synchronous copy does not reach imported memory on a node of the host")
      .on({kCopy}, node_import_not_reached);

  fault("node-import-set-lost", {"MNGD-15"},
        "a synchronous memset does not reach imported memory on a node of the "
        "host")
      .on({kSet}, node_import_not_reached);

  fault("node-usable-before-access", {"MNGD-15"},
        "the CPU can use mapped memory on a node of the host before it gets "
        "access")
      .on({kMap, kUnmap, kSetAccess, kGetAccess}, node_usable_before_access);

  fault("numa-access-of-cpu-alone", {"MNGD-15"},
        "access of the CPU to memory on a host node ends the access of the GPU")
      .after({kSetAccess}, [](Call& call) -> int {
        const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
        const auto* const list = call.at<const CUmemAccessDesc*>(2);
        if (begin == 0 || call.at<size_t>(3) != 1 ||
            list[0].location.type != CU_MEM_LOCATION_TYPE_HOST_NUMA ||
            access_of(begin, on_gpu(0)) == 0)
          return kSuccess;
        if (allow(begin, on_gpu(0), CU_MEM_ACCESS_FLAGS_PROT_NONE))
          call.fired();
        return kSuccess;
      });
}

}  // namespace
}  // namespace ipclab::faults
