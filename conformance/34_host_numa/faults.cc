// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

bool is_on_host_of_mapping(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

// Is the address in memory on a node of the host?
bool is_on_node_of_second(CUdeviceptr address) {
  const CUdeviceptr begin = mapping_at(address);
  return begin != 0 &&
         location_at(begin).type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

// A GPU's memset, copy or word does not reach memory on a node of the host.
int node_not_reached(Call& call) {
  if (call.is("cuMemMap") || call.is("cuMemUnmap")) return call.proceed();
  const int place = call.is("cuStreamWriteValue32") ? 1 : 0;
  if (!is_on_node_of_second(call.at<CUdeviceptr>(place))) return call.proceed();
  call.fired();
  return kSuccess;
}

// A copy or a memset does not reach imported memory on a node of the host.
int node_import_not_reached(Call& call) {
  if (!call.is("cudaMemset") && !call.is("cudaMemcpy")) return call.proceed();
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

FAULTS(list) {
  list.fault("cpu-keeps-access",
             "cuMemSetAccess does not take the access of a CPU away",
             {"MNGD-15"})
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

  list.fault("setaccess-node-looked-at",
             "access of a NUMA node is refused if the memory is on another "
             "NUMA node",
             {"MNGD-15"})
      .on({kSetAccess}, [](Call& call) -> int {
        const CUmemLocation wanted =
            call.at<const CUmemAccessDesc*>(2)->location;
        const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
        if (begin == 0 || wanted.type != CU_MEM_LOCATION_TYPE_HOST_NUMA)
          return call.proceed();
        const CUmemLocation own = location_at(begin);
        return own.type == wanted.type && own.id != wanted.id
                   ? refused(call, CUDA_ERROR_INVALID_DEVICE)
                   : call.proceed();
      });

  list.fault("props-of-host-name-gpu",
             "the properties of memory on the host name GPU 0", {"MNGD-15"})
      .after({"cuMemGetAllocationPropertiesFromHandle"}, [](Call& call) {
        auto& location = call.at<CUmemAllocationProp*>(0)->location;
        if (!is_on_host_of_mapping(location)) return kSuccess;
        location = on_gpu(0);
        return accepted(call);
      });

  list.fault("node-set-lost",
             "a memset does not reach memory on a node of the host",
             {"MNGD-15"})
      .on({kSet, kMap, kUnmap}, node_not_reached);

  list.fault("node-copy-in-lost",
             "a copy does not reach memory on a node of the host", {"MNGD-15"})
      .on({kCopy, kMap, kUnmap}, node_not_reached);

  list.fault("node-copy-out-lost",
             "a copy out of memory on a node of the host moves nothing",
             {"MNGD-15"})
      .on({kCopy}, [](Call& call) {
        if (!is_on_node_of_second(call.value<CUdeviceptr>(kSource)))
          return call.proceed();
        call.fired();
        return kSuccess;
      });

  list.fault("node-word-lost",
             "a stream does not write a word in memory on a node of the host",
             {"MNGD-15"})
      .on({kWriteWord, kMap, kUnmap}, node_not_reached);

  list.fault(
          "node-async-set-lost",
          "an asynchronous memset does not reach memory on a node of the host",
          {"MNGD-15"})
      .on({kSetAsync, kMap, kUnmap}, node_not_reached);

  list.fault("node-async-copy-lost",
             "an asynchronous copy does not reach memory on a node of the host",
             {"MNGD-15"})
      .on({kCopyAsync, kMap, kUnmap}, node_not_reached);

  list.fault(
          "numa-access-one-at-a-time",
          "access of a GPU to memory on a host node ends the access of the CPU",
          {"MNGD-15"})
      .after({kSetAccess}, [](Call& call) {
        const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
        if (begin == 0) return;
        const CUmemLocation own = location_at(begin);
        if (own.type != CU_MEM_LOCATION_TYPE_HOST_NUMA) return;
        const auto* const list = call.at<const CUmemAccessDesc*>(2);
        if (list[0].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            access_of(begin, own) == 0)
          return;
        if (allow(begin, own, CU_MEM_ACCESS_FLAGS_PROT_NONE)) call.fired();
      });

  list.fault("numa-getaccess-none",
             "cuMemGetAccess says that the CPU has no access", {"MNGD-15"})
      .on({kGetAccess}, [](Call& call) {
        const int code = call.proceed();
        auto& flags = *call.at<unsigned long long*>(0);
        if (code != kSuccess || flags == 0 ||
            call.at<const CUmemLocation*>(1)->type !=
                CU_MEM_LOCATION_TYPE_HOST_NUMA)
          return code;
        flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
        return accepted(call);
      });

  list.fault(
          "node-memory-dies-with-exporter",
          "memory on a node of the host is cleared when its exporter unmaps it",
          {"MNGD-15"})
      .before(
          {kCreate, kImport, kExport, kMap, kUnmap},
          WHEN(call.is("cuMemUnmap")), [](Call& call) {
            const CUdeviceptr begin = call.at<CUdeviceptr>(0);
            const Mapped mapped = mappings.get(begin);
            if (mapped.bytes == call.at<size_t>(1) &&
                exports.has(mapped.chunk) && is_on_node(location_at(begin)) &&
                DRIVER_CALL(cuMemsetD8)(begin, 0, mapped.bytes) == CUDA_SUCCESS)
              call.fired();
          });

  list.fault("node-import-told-as-gpu",
             "an import of memory on a node of the host is reported as memory "
             "of a GPU",
             {"MNGD-15"})
      .after({"cuMemGetAllocationPropertiesFromHandle"},
             WHEN(imports.has(call.at<Chunk>(1))), [](Call& call) {
               auto& location = call.at<CUmemAllocationProp*>(0)->location;
               if (!is_on_node(location)) return;
               location = on_gpu(0);
               call.fired();
             });

  list.fault("node-import-copy-lost",
             "a synchronous copy does not reach imported memory on a node of "
             "the host",
             {"MNGD-15"})
      .on({kCopy, kImport, kMap, kUnmap}, node_import_not_reached);

  list.fault("node-import-set-lost",
             "a synchronous memset does not reach imported memory on a node of "
             "the host",
             {"MNGD-15"})
      .on({kSet, kImport, kMap, kUnmap}, node_import_not_reached);

  list.fault("node-usable-before-access",
             "the CPU can use mapped memory on a node of the host before it "
             "gets access",
             {"MNGD-15"})
      .on({kMap, kUnmap, kSetAccess, kGetAccess}, node_usable_before_access);

  list.fault("numa-access-of-cpu-alone",
             "access of the CPU to memory on a host node ends the access of "
             "the GPU",
             {"MNGD-15"})
      .after({kSetAccess}, [](Call& call) {
        const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
        const auto* const list = call.at<const CUmemAccessDesc*>(2);
        if (begin == 0 || call.at<size_t>(3) != 1 ||
            list[0].location.type != CU_MEM_LOCATION_TYPE_HOST_NUMA ||
            access_of(begin, on_gpu(0)) == 0)
          return;
        if (allow(begin, on_gpu(0), CU_MEM_ACCESS_FLAGS_PROT_NONE))
          call.fired();
      });
}

}  // namespace
}  // namespace ipclab::faults
