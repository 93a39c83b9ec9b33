// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

using Id = CUlogicalEndpointId;

using Wanted = const CUlogicalEndpointProp*;

using Copies = CUDA_FABRIC_COPY_BATCH_OP*;

// A refused call returns success.
int refusal_told_as_success(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) call.fired();
  return kSuccess;
}

// A call that is refused with this code returns success.
template <CUresult refusal>
int code_told_as_success(Call& call) {
  const int code = call.proceed();
  if (code != refusal) return code;
  call.fired();
  return kSuccess;
}

// Queries an endpoint until it is ready, for a second at most.
void wait_until_ready(Id id) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  int status = 0;
  while (DRIVER_CALL(cuLogicalEndpointQuery)(id, 1, &status) == CUDA_SUCCESS &&
         status == 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
}

// The argument at `index` has type T and is replaced by 0.
template <class T, size_t index>
int argument_is_zero(Call& call) {
  if (call.at<T>(index) != T{}) {
    call.at<T>(index) = T{};
    call.fired();
  }
  return call.proceed();
}

int imported_as_new(Call& call) {
  const Id id = call.at<Id>(0);
  const int code = call.proceed();
  if (code != kSuccess ||
      DRIVER_CALL(cuLogicalEndpointDestroy)(id) != CUDA_SUCCESS)
    return code;
  CUlogicalEndpointProp wanted{};
  wanted.type = CU_LOGICAL_ENDPOINT_TYPE_UNICAST;
  wanted.size = 64 << 20;
  cuuint64_t alignment = 0, most = 0;
  DRIVER_CALL(cuLogicalEndpointGetLimits)(&alignment, &most, &wanted);
  // No query tells the size of the exporter's endpoint.
  wanted.size = std::max<cuuint64_t>(wanted.size, 4 * alignment);
  call.fired();
  DRIVER_CALL(cuLogicalEndpointCreate)(id, &wanted);
  wait_until_ready(id);
  return DRIVER_CALL(cuLogicalEndpointBindMem)(
      id, 0, 0, new_chunk(wanted.size, on_gpu(0)), 0, wanted.size, 0);
}

// The endpoints of this process, with the key of the handle if it is imported.
Table<Id, std::string> endpoints;

// Proceeds and updates this table.
int noted_endpoints(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuLogicalEndpointCreate"))
    endpoints.put(call.at<Id>(0));
  else if (call.is("cuLogicalEndpointImport"))
    endpoints.put(
        call.at<Id>(0),
        key_of(call.at<const void*>(1), sizeof(CUlogicalEndpointFabricHandle)));
  else if (call.is("cuLogicalEndpointDestroy"))
    endpoints.erase(call.at<Id>(0));
  return code;
}

int missing_endpoint_is_ready(Call& call) {
  if (!call.is("cuLogicalEndpointQuery")) return noted_endpoints(call);
  const Id first = call.at<Id>(0);
  bool missing = false;
  int all = 1;
  for (Id id = first; id < first + call.at<cuuint32_t>(1); ++id) {
    int ready = 0;
    if (!endpoints.has(id))
      missing = true;
    else if (DRIVER_CALL(cuLogicalEndpointQuery)(id, 1, &ready) !=
                 CUDA_SUCCESS ||
             ready == 0)
      all = 0;
  }
  const int code = call.proceed();
  if (!missing) return code;
  *call.at<int*>(2) = all;
  return accepted(call);
}

int query_stays_with_number(Call& call) {
  static auto& queried = *new Table<Id, bool>;  // an earlier endpoint?
  const Id id = call.at<Id>(0);
  if (call.is("cuLogicalEndpointBindMem") && queried.get(id)) {
    int status = 0;
    while (DRIVER_CALL(cuLogicalEndpointQuery)(id, 1, &status) ==
               CUDA_SUCCESS &&
           status == 0)
      std::this_thread::yield();
    queried.put(id, false);
    call.fired();
  }
  const int code = call.proceed();
  if (code != kSuccess) return code;
  if (call.is("cuLogicalEndpointQuery"))
    for (Id each = id; each < id + call.at<cuuint32_t>(1); ++each)
      queried.put(each, false);
  else if (call.is("cuLogicalEndpointCreate") && queried.has(id))
    queried.put(id, true);
  return code;
}

std::vector<FabricCopy> copies_of(Call& batch) {
  const auto* const list = batch.at<FabricCopy*>(1);
  return std::vector<FabricCopy>(list, list + batch.at<size_t>(0));
}

// The sizes of all bindings, by endpoint and offset.
Table<std::pair<Id, cuuint64_t>, cuuint64_t> bindings;

// Proceeds and updates this table.
int noted_bindings(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const Id id = call.at<Id>(0);
  if (call.is("cuLogicalEndpointBindMem")) {
    bindings.put({id, call.at<cuuint64_t>(2)}, call.at<cuuint64_t>(5));
    return code;
  }
  const bool all = call.is("cuLogicalEndpointDestroy");
  for (const auto& [place, bytes] : bindings.all())
    if (place.first == id &&
        (all || place.second - call.at<cuuint64_t>(2) < call.at<cuuint64_t>(3)))
      bindings.erase(place);
  return code;
}

int reservation_has_one_endpoint(Call& call) {
  static auto& ranges = *new Table<Id, cuuint32_t>;
  if (!call.is("cuFabricCpyBatchAsync")) {
    const int code = noted_endpoints(call);
    if (code != kSuccess) return code;
    if (call.is("cuLogicalEndpointIdReserve"))
      ranges.put(*call.at<Id*>(0), call.at<cuuint32_t>(1));
    else if (call.is("cuLogicalEndpointIdRelease"))
      ranges.erase(call.at<Id>(0));
    return code;
  }
  std::vector<FabricCopy> list = copies_of(call);
  bool changed = false;
  for (FabricCopy& copy : list) {
    if (copy.dst.type != CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT) continue;
    auto& id = copy.dst.op.le.id;
    for (const auto& [first, count] : ranges.all()) {
      if (id <= first || id - first >= count || !endpoints.has(first)) continue;
      id = first;
      changed = true;
    }
  }
  return changed ? proceed_with(call, list) : call.proceed();
}

int copy_from_endpoint_not_waited_for(Call& call) {
  struct Late {
    std::vector<FabricCopy> list;
    unsigned long long flags;
  };
  static Table<int, Late> late;
  static std::atomic<int> so_far{0};
  if (call.is("cudaStreamSynchronize")) {
    const int code = call.proceed();
    for (auto& [number, batch] : late.all()) {
      if (!late.erase(number)) continue;
      DRIVER_CALL(cuFabricCpyBatchAsync)
      (batch.list.size(), batch.list.data(), batch.flags, private_stream());
    }
    cudaStreamSynchronize(private_stream());
    return code;
  }
  const std::vector<FabricCopy> list = copies_of(call);
  for (const FabricCopy& copy : list)
    if (copy.src.type != CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT)
      return call.proceed();
  late.put(so_far++, {list, call.at<unsigned long long>(2)});
  return lost(call);
}

int release_takes_all_numbers(Call& call) {
  static auto& ranges = *new Table<Id, cuuint32_t>;
  if (call.is("cuLogicalEndpointIdReserve")) {
    const int code = call.proceed();
    if (code == kSuccess) ranges.put(*call.at<Id*>(0), call.at<cuuint32_t>(1));
    return code;
  }
  for (const auto& [first, count] : ranges.all()) {
    if (call.at<Id>(0) - first >= count || call.at<cuuint32_t>(1) >= count)
      continue;
    if (DRIVER_CALL(cuLogicalEndpointIdRelease)(first, count) != CUDA_SUCCESS)
      continue;
    ranges.erase(first);
    call.fired();
    return kSuccess;
  }
  return call.proceed();
}

int rebinding_after_export_is_stale(Call& call) {
  static auto& exported = *new Table<Id>;
  static auto& former = *new Table<std::pair<Id, cuuint64_t>, Chunk>;
  if (call.is("cuLogicalEndpointExport")) {
    exported.put(call.at<Id>(1));
  } else if (call.is("cuLogicalEndpointDestroy")) {
    const Id id = call.at<Id>(0);
    exported.erase(id);
    for (const auto& [place, chunk] : former.all())
      if (place.first == id) former.erase(place);
  } else {
    const std::pair place{call.at<Id>(0), call.at<cuuint64_t>(2)};
    auto& chunk = call.at<Chunk>(3);
    const Chunk before = former.get(place, chunk);
    if (!exported.has(place.first)) {
      former.put(place, chunk);
    } else if (before != chunk) {
      chunk = before;
      call.fired();
    }
  }
  return call.proceed();
}

// The parameters of a node with a batch of copies, as CUDA 13.5 declares them.
struct FabricNode {
  int type;
  int reserved[3];
  size_t count;
};
bool is_fabric_node(Call& call) {
  const auto* const wanted = call.at<const FabricNode*>(5);
  return wanted != nullptr && wanted->type == 18;
}
FabricNode& fabric_node(Call& call) { return *call.at<FabricNode*>(5); }

FAULTS {
  fault("endpoint-numbers-too-few", {"ENDP-01"},
        "only the first of the requested endpoint numbers is reserved")
      .on_machine("fabric-13.5")
      .before({"cuLogicalEndpointIdReserve"}, WHEN(call.at<cuuint32_t>(1) > 1),
              [](Call& call) { call.at<cuuint32_t>(1) = 1; });

  fault("endpoint-numbers-again", {"ENDP-18"},
        "reserved endpoint numbers are reserved again")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointIdReserve", "cuLogicalEndpointIdRelease"},
          [](Call& call) {
            static std::optional<Id> first;
            const int code = call.proceed();
            if (code != kSuccess) return code;
            if (call.is("cuLogicalEndpointIdRelease")) {
              if (first == call.at<Id>(0)) first.reset();
            } else if (!first) {
              first = *call.at<Id*>(0);
            } else {
              *call.at<Id*>(0) = *first;
              call.fired();
            }
            return code;
          });

  fault("ok-endpoint-id-released-in-use", {"ENDP-02"},
        "a release of numbers that have an endpoint or are not reserved "
        "returns success and releases nothing")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointIdRelease"}, refusal_told_as_success);

  fault("endpoint-ready-too-early", {"ENDP-03", "ENDP-16"},
        "an endpoint is reported as ready before it is ready")
      .on_machine("fabric-13.5")
      .after({"cuLogicalEndpointQuery"}, WHEN(*call.at<int*>(2) == 0),
             [](Call& call) { *call.at<int*>(2) = 1; });

  fault("endpoint-bind-without-query", {"ENDP-03"},
        "memory is bound to an endpoint that was not queried before")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointBindMem"}, [](Call& call) {
        int code = call.proceed();
        if (code != CUDA_ERROR_INVALID_VALUE) return code;
        wait_until_ready(call.at<Id>(0));
        code = call.proceed();
        if (code == kSuccess) call.fired();
        return code;
      });

  fault("ok-endpoint-size-unchecked", {"ENDP-04"},
        "an endpoint is created although its size is not a multiple of the "
        "required alignment")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointCreate"}, [](Call& call) {
        CUlogicalEndpointProp wanted = *call.at<Wanted>(1);
        cuuint64_t alignment = 1, most = 0;
        DRIVER_CALL(cuLogicalEndpointGetLimits)(&alignment, &most, &wanted);
        wanted.size = (wanted.size + alignment - 1) / alignment * alignment;
        if (wanted.size == call.at<Wanted>(1)->size) return call.proceed();
        call.at<Wanted>(1) = &wanted;
        call.fired();
        return call.proceed();
      });

  fault("endpoint-memory-offset-ignored", {"ENDP-05"},
        "a binding ignores the offset into the memory")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointBindMem"}, argument_is_zero<cuuint64_t, 4>);

  fault("ok-endpoint-bind-flags-ignored", {"ENDP-07"},
        "cuLogicalEndpointBindMem accepts a flag that does not exist")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointBindMem"},
          argument_is_zero<unsigned long long, 6>);

  fault("endpoint-bind-after-refusal-refused", {"ENDP-07"},
        "after a refused binding the next one is refused, too")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointBindMem"}, next_refused);

  fault("endpoint-address-unchecked", {"ENDP-12"},
        "a binding of an address that must be refused returns success and "
        "binds nothing")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointBindAddr"}, refusal_told_as_success);

  fault("endpoint-memory-unchecked", {"ENDP-12", "ENDP-16", "ENDP-17"},
        "a binding of memory that must be refused returns success and binds "
        "nothing")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointBindMem"}, refusal_told_as_success);

  fault("ok-endpoint-device-ignored", {"ENDP-08"},
        "a binding of memory for another device than the first returns success "
        "although it must be refused")
      .with_gpus(2)
      .on_machine("fabric-13.5")
      .on_refusal({"cuLogicalEndpointBindMem"}, WHEN(call.at<CUdevice>(1) != 0),
                  [](Call& call) {
                    call.fired();
                    return kSuccess;
                  });

  fault("endpoint-host-refused", {"ENDP-09"},
        "cuLogicalEndpointBindMem refuses host memory")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointBindMem"},
          WHEN(properties_of(call.at<Chunk>(3)).location.type ==
               CU_MEM_LOCATION_TYPE_HOST_NUMA),
          refuses());

  fault("endpoint-unbind-does-nothing", {"ENDP-10"},
        "unbinding returns success, but the memory stays bound")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointUnbind"}, nothing_done);

  fault("endpoint-destroy-does-nothing", {"ENDP-11", "ENDP-15"},
        "destroying an endpoint does nothing: its number and its bindings stay")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointDestroy"}, nothing_done);

  fault("ok-endpoint-team-too-large", {"ENDP-20"},
        "adding a device that must be refused returns success and adds nothing")
      .with_gpus(2)
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointAddDevice"}, refusal_told_as_success);

  fault("endpoint-import-fresh", {"ENDP-12"},
        "an import gives an endpoint that is not the endpoint of the exporter")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointImport"}, imported_as_new);

  fault("endpoint-import-unchecked", {"ENDP-14"},
        "an import by a process without access permissions returns success")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointImport"},
          code_told_as_success<CUDA_ERROR_NOT_PERMITTED>);

  fault("endpoint-export-none", {"ENDP-13"},
        "an export that must be refused returns success and writes no handle")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointExport"}, refusal_told_as_success);

  fault("endpoint-offset-ignored", {"ENDP-05"},
        "a copy uses the beginning of an endpoint instead of the offset")
      .on_machine("fabric-13.5")
      .on({kFabricCopies}, [](Call& call) {
        const Copies list = call.at<Copies>(1);
        std::vector<CUDA_FABRIC_COPY_BATCH_OP> copies(
            list, list + call.at<size_t>(0));
        for (auto& copy : copies)
          for (CUfabricCpyOperand* side : {&copy.src, &copy.dst})
            if (side->type == CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT &&
                side->op.le.offset != 0) {
              side->op.le.offset = 0;
              call.fired();
            }
        call.at<Copies>(1) = copies.data();
        return call.proceed();
      });

  fault("fabric-copy-too-early", {"FCPY-01"},
        "a batch of copies does not wait for its stream")
      .on_machine("fabric-13.5")
      .on({kFabricCopies}, [](Call& call) {
        if (is_default(call.at<CUstream>(3)) || !is_busy(call.at<CUstream>(3)))
          return call.proceed();
        const cudaStream_t other = private_stream();
        call.at<CUstream>(3) = other;
        call.fired();
        const int code = call.proceed();
        cudaStreamSynchronize(other);
        return code;
      });

  fault("fabric-copy-first-only", {"FCPY-02"},
        "only the first copy of a batch is done")
      .on_machine("fabric-13.5")
      .before({kFabricCopies}, WHEN(call.at<size_t>(0) > 1),
              [](Call& call) { call.at<size_t>(0) = 1; });

  fault("fabric-copy-zero-unchecked", {"FCPY-03"},
        "the operands of a copy of no bytes are not checked")
      .on_machine("fabric-13.5")
      .on({kFabricCopies}, [](Call& call) -> int {
        const Copies list = call.at<Copies>(1);
        for (size_t i = 0; i < call.at<size_t>(0); ++i)
          if (list[i].size != 0) return call.proceed();
        return nothing_done(call);
      });

  fault("ok-fabric-copy-flags-ignored", {"FCPY-04"},
        "a copy with a flag that does not exist is done")
      .on_machine("fabric-13.5")
      .on({kFabricCopies}, [](Call& call) {
        const Copies list = call.at<Copies>(1);
        std::vector<CUDA_FABRIC_COPY_BATCH_OP> copies(
            list, list + call.at<size_t>(0));
        for (auto& copy : copies) {
          if (copy.flags != 0) call.fired();
          copy.flags = 0;
        }
        call.at<Copies>(1) = copies.data();
        return call.proceed();
      });

  fault("refused-fabric-copy-copies", {"FCPY-04"},
        "a batch that is refused for the flag of a copy is copied all the same")
      .on_machine("fabric-13.5")
      .on_refusal({kFabricCopies}, [](Call& batch) {
        std::vector<FabricCopy> list = copies_of(batch);
        const bool applies =
            std::any_of(list.begin(), list.end(),
                        [](const FabricCopy& copy) { return copy.flags != 0; });
        for (auto& copy : list) copy.flags = 0;
        return applies && proceed_with(batch, list) == kSuccess;
      });

  fault("fabric-copy-after-refusal-refused", {"FCPY-04"},
        "after a refused batch of copies the next one is refused, too")
      .on_machine("fabric-13.5")
      .on({kFabricCopies}, next_refused);

  fault("fabric-copy-silent", {"FCPY-06"},
        "copies over a missing fabric return success")
      .on_machine("driver-13.5")
      .on({kFabricCopies}, code_told_as_success<CUDA_ERROR_NOT_SUPPORTED>);

  fault("endpoint-query-last-only", {"ENDP-03"},
        "the query of several numbers looks only at the last one")
      .on_machine("fabric-13.5")
      .before({"cuLogicalEndpointQuery"}, [](Call& query) {
        auto& count = query.at<cuuint32_t>(1);
        if (count > 1) {
          query.at<Id>(0) += count - 1;
          count = 1;
          query.fired();
        }
        return kSuccess;
      });

  fault("endpoint-missing-is-ready", {"ENDP-03"},
        "a query passes over numbers that have no endpoint")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointQuery", "cuLogicalEndpointCreate",
           "cuLogicalEndpointImport", "cuLogicalEndpointDestroy"},
          missing_endpoint_is_ready);

  fault("ok-endpoint-import-to-used-number", {"ENDP-19"},
        "an import to a number that has an endpoint returns success")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointCreate", "cuLogicalEndpointImport",
           "cuLogicalEndpointDestroy"},
          [](Call& call) {
            const bool used = call.is("cuLogicalEndpointImport") &&
                              endpoints.has(call.at<Id>(0));
            const int code = noted_endpoints(call);
            return code != kSuccess && used ? accepted(call) : code;
          });

  fault("endpoint-destroy-ends-twin", {"ENDP-12"},
        "the end of an import also ends other imports of the same handle")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointCreate", "cuLogicalEndpointImport",
           "cuLogicalEndpointDestroy"},
          [](Call& call) -> int {
            if (!call.is("cuLogicalEndpointDestroy"))
              return noted_endpoints(call);
            const std::string handle = endpoints.get(call.at<Id>(0));
            const int code = noted_endpoints(call);
            if (code != kSuccess || handle.empty()) return code;
            for (const auto& [id, same] : endpoints.all())
              if (same == handle &&
                  DRIVER_CALL(cuLogicalEndpointDestroy)(id) == CUDA_SUCCESS) {
                endpoints.erase(id);
                call.fired();
              }
            return code;
          });

  fault("endpoint-address-first-chunk", {"ENDP-06"},
        "an address binds the memory at the beginning of its reservation")
      .on_machine("fabric-13.5")
      .before({"cuLogicalEndpointBindAddr"}, [](Call& call) {
        auto& address = call.value<CUdeviceptr>(kPointer);
        const CUdeviceptr begin = reservation_at(address);
        if (begin != 0 && mapping_at(begin) != mapping_at(address)) {
          address = begin;
          call.fired();
        }
        return kSuccess;
      });

  fault("endpoint-largest-refused", {"ENDP-04"},
        "an endpoint of exactly the largest size is refused")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointCreate"}, [](Call& call) {
        CUlogicalEndpointProp wanted =
            *call.at<const CUlogicalEndpointProp*>(1);
        cuuint64_t alignment = 1, most = 0;
        DRIVER_CALL(cuLogicalEndpointGetLimits)(&alignment, &most, &wanted);
        return wanted.size == most / alignment * alignment ? refused(call)
                                                           : call.proceed();
      });

  fault("endpoint-query-of-number", {"ENDP-03"},
        "an endpoint counts as queried if an earlier endpoint with its number "
        "was queried")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointCreate", "cuLogicalEndpointQuery",
           "cuLogicalEndpointBindMem"},
          query_stays_with_number);

  fault("fabric-copy-size-rounded", {"FCPY-02"},
        "the size of a copy is rounded down to a multiple of 4")
      .on_machine("fabric-13.5")
      .on({kFabricCopies}, [](Call& batch) {
        std::vector<FabricCopy> list = copies_of(batch);
        bool changed = false;
        for (FabricCopy& copy : list) {
          changed |= copy.size % 4 != 0;
          copy.size -= copy.size % 4;
        }
        return changed ? proceed_with(batch, list) : batch.proceed();
      });

  fault("fabric-copy-offset-rounded", {"FCPY-02"},
        "the offset of a copy into or from an endpoint is rounded down to a "
        "multiple of 4")
      .on_machine("fabric-13.5")
      .on({kFabricCopies}, [](Call& batch) {
        std::vector<FabricCopy> list = copies_of(batch);
        bool changed = false;
        for (FabricCopy& copy : list)
          for (CUfabricCpyOperand* const side : {&copy.src, &copy.dst})
            if (side->type == CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT &&
                side->op.le.offset % 4 != 0) {
              side->op.le.offset -= side->op.le.offset % 4;
              changed = true;
            }
        return changed ? proceed_with(batch, list) : batch.proceed();
      });

  fault("fabric-copy-ends-at-16", {"FCPY-02"},
        "a batch does only its first 16 copies")
      .on_machine("fabric-13.5")
      .on({kFabricCopies}, [](Call& batch) -> int {
        std::vector<FabricCopy> list = copies_of(batch);
        if (list.size() <= 16) return batch.proceed();
        list.resize(16);
        return proceed_with(batch, list);
      });

  fault("fabric-copy-not-by-per-thread-stream", {"FCPY-01"},
        "a thread's default stream does no copies over a fabric")
      .on_machine("fabric-13.5")
      .on({kFabricCopies}, WHEN(stream_of(call) == cudaStreamPerThread), lost);

  fault("fabric-copy-first-thread-only", {"FCPY-01"},
        "only the first thread's copies over a fabric are done")
      .on_machine("fabric-13.5")
      .on({kFabricCopies}, WHEN(this_thread() != getpid()), lost);

  fault("fabric-copy-empty-source-unchecked", {"FCPY-03"},
        "the source of a copy of no bytes is not checked")
      .on_machine("fabric-13.5")
      .on_refusal({kFabricCopies}, [](Call& call) {
        const int code = call.code();
        std::vector<FabricCopy> list = copies_of(call);
        for (FabricCopy& copy : list)
          if (copy.size == 0) copy.src = copy.dst;
        call.at<FabricCopy*>(1) = list.data();
        return call.proceed() == kSuccess ? accepted(call) : code;
      });

  fault("fabric-copy-download-lost", {"FCPY-02"},
        "a copy from an endpoint to memory of the host does nothing")
      .on_machine("fabric-13.5")
      .on({kFabricCopies}, [](Call& batch) -> int {
        std::vector<FabricCopy> list = copies_of(batch);
        const auto is_download = [](const FabricCopy& copy) {
          unsigned type = 0;
          return copy.src.type ==
                     CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT &&
                 copy.dst.type == CU_FABRIC_COPY_OPERAND_TYPE_POINTER &&
                 (DRIVER_CALL(cuPointerGetAttribute)(
                      &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                      copy.dst.op.ptr.ptr) != CUDA_SUCCESS ||
                  type == CU_MEMORYTYPE_HOST);
        };
        list.erase(std::remove_if(list.begin(), list.end(), is_download),
                   list.end());
        return list.size() < batch.at<size_t>(0) ? proceed_with(batch, list)
                                                 : batch.proceed();
      });

  fault("endpoint-unbind-takes-next", {"ENDP-10"},
        "the unbind of one binding also unbinds the next one")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointUnbind", "cuLogicalEndpointBindMem",
           "cuLogicalEndpointDestroy"},
          [](Call& call) {
            const int code = noted_bindings(call);
            if (code != kSuccess || !call.is("cuLogicalEndpointUnbind"))
              return code;
            const Id id = call.at<Id>(0);
            const cuuint64_t end =
                call.at<cuuint64_t>(2) + call.at<cuuint64_t>(3);
            if (bindings.has({id, end}) &&
                DRIVER_CALL(cuLogicalEndpointUnbind)(
                    id, call.at<CUdevice>(1), end, bindings.get({id, end})) ==
                    CUDA_SUCCESS) {
              bindings.erase({id, end});
              call.fired();
            }
            return code;
          });

  fault("fabric-copy-ends-with-binding", {"ENDP-05"},
        "a copy into an endpoint ends where the first of two bindings ends")
      .on_machine("fabric-13.5")
      .on({kFabricCopies, "cuLogicalEndpointBindMem", "cuLogicalEndpointUnbind",
           "cuLogicalEndpointDestroy"},
          [](Call& call) -> int {
            if (!call.is("cuFabricCpyBatchAsync")) return noted_bindings(call);
            std::vector<FabricCopy> list = copies_of(call);
            bool changed = false;
            for (FabricCopy& copy : list) {
              if (copy.dst.type != CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT)
                continue;
              const auto& [id, offset] = copy.dst.op.le;
              for (const auto& [place, bytes] : bindings.all()) {
                if (place.first != id || offset - place.second >= bytes)
                  continue;
                const size_t room = place.second + bytes - offset;
                changed |= copy.size > room;
                copy.size = std::min(copy.size, room);
              }
            }
            return changed ? proceed_with(call, list) : call.proceed();
          });

  fault("endpoint-query-ends-only", {"ENDP-03"},
        "the query of several numbers looks only at the first and the last one")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointQuery"}, [](Call& query) {
        const Id first = query.at<Id>(0);
        const auto count = query.at<cuuint32_t>(1);
        int one = 0, other = 0;
        if (count < 3 ||
            DRIVER_CALL(cuLogicalEndpointQuery)(first, 1, &one) !=
                CUDA_SUCCESS ||
            DRIVER_CALL(cuLogicalEndpointQuery)(first + count - 1, 1, &other) !=
                CUDA_SUCCESS)
          return query.proceed();
        const int code = query.proceed();
        const int told = one != 0 && other != 0;
        if (code == kSuccess && *query.at<int*>(2) == told) return code;
        *query.at<int*>(2) = told;
        return accepted(query);
      });

  fault("endpoint-second-handle-wrong", {"ENDP-12"},
        "the second handle of an endpoint cannot be imported")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointExport", "cuLogicalEndpointDestroy"},
          [](Call& call) {
            static auto& exported = *new Table<Id>;
            const int code = call.proceed();
            if (code != kSuccess) return code;
            if (call.is("cuLogicalEndpointDestroy")) {
              exported.erase(call.at<Id>(0));
            } else if (!exported.put(call.at<Id>(1))) {
              static_cast<unsigned char*>(call.at<void*>(0))[8] ^= 1;
              call.fired();
            }
            return code;
          });

  fault("endpoint-one-in-reservation", {"ENDP-01"},
        "copies to each number of a reservation reach the endpoint with the "
        "first number")
      .on_machine("fabric-13.5")
      .on({kFabricCopies, "cuLogicalEndpointIdReserve",
           "cuLogicalEndpointIdRelease", "cuLogicalEndpointCreate",
           "cuLogicalEndpointDestroy"},
          reservation_has_one_endpoint);

  fault("endpoint-import-offset-ignored", {"ENDP-12"},
        "every copy to an imported endpoint reaches the beginning of the "
        "endpoint")
      .on_machine("fabric-13.5")
      .on({kFabricCopies, "cuLogicalEndpointCreate", "cuLogicalEndpointImport",
           "cuLogicalEndpointDestroy"},
          [](Call& call) -> int {
            if (!call.is("cuFabricCpyBatchAsync")) return noted_endpoints(call);
            std::vector<FabricCopy> list = copies_of(call);
            bool changed = false;
            for (FabricCopy& copy : list) {
              auto& place = copy.dst.op.le;
              if (copy.dst.type !=
                      CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT ||
                  endpoints.get(place.id).empty() || place.offset == 0)
                continue;
              place.offset = 0;
              changed = true;
            }
            return changed ? proceed_with(call, list) : call.proceed();
          });

  fault("fabric-node-first-copy", {"FCPY-07"},
        "a node of a graph makes only the first copy of its batch")
      .before({"cudaGraphAddNode"}, WHEN(is_fabric_node(call)),
              [](Call& call) { return set_to(fabric_node(call).count, 1); })
      .on_machine("fabric-13.5");

  fault("fabric-node-at-once", {"FCPY-07"},
        "a graph with a batch of copies does not wait for its stream")
      .after({"cudaGraphAddNode"}, WHEN(is_fabric_node(call)),
             NOTE(marks.put("fabric node", 1)))
      .before({kLaunchGraph}, WHEN(marks.has("fabric node")), privately)
      .on_machine("fabric-13.5");

  fault("fabric-copy-not-waited-for", {"FCPY-01"},
        "a copy from an endpoint is done only after the program has "
        "synchronised with a stream")
      .on_machine("fabric-13.5")
      .on({kFabricCopies, kSyncStream}, copy_from_endpoint_not_waited_for);

  fault("endpoint-release-takes-all", {"ENDP-02"},
        "the release of a part of the reserved endpoint numbers releases all "
        "of them")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointIdReserve", "cuLogicalEndpointIdRelease"},
          release_takes_all_numbers);

  fault("endpoint-address-first-byte", {"ENDP-06"},
        "an address inside a mapping binds the memory from the beginning of "
        "the mapping")
      .on_machine("fabric-13.5")
      .before({"cuLogicalEndpointBindAddr"}, [](Call& call) {
        auto& address = call.value<CUdeviceptr>(kPointer);
        const CUdeviceptr begin = mapping_at(address);
        if (begin != 0 && begin != address) {
          address = begin;
          call.fired();
        }
        return kSuccess;
      });

  fault("fabric-copy-size-of-first", {"FCPY-02"},
        "a copy of a batch that is longer than the first one ends at the size "
        "of the first one")
      .on_machine("fabric-13.5")
      .on({kFabricCopies}, [](Call& batch) {
        std::vector<FabricCopy> list = copies_of(batch);
        bool changed = false;
        for (FabricCopy& copy : list) {
          if (copy.size <= list[0].size) continue;
          copy.size = list[0].size;
          changed = true;
        }
        return changed ? proceed_with(batch, list) : batch.proceed();
      });

  fault("endpoint-exported-rebind-stale", {"ENDP-12"},
        "if other memory is bound to an endpoint that was exported, copies "
        "still reach the former memory")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointBindMem", "cuLogicalEndpointExport",
           "cuLogicalEndpointDestroy"},
          rebinding_after_export_is_stale);

  fault("endpoint-unbind-first-only", {"ENDP-10"},
        "the unbind of several bindings removes only the first one")
      .on_machine("fabric-13.5")
      .on({"cuLogicalEndpointUnbind", "cuLogicalEndpointBindMem",
           "cuLogicalEndpointDestroy"},
          [](Call& call) -> int {
            if (!call.is("cuLogicalEndpointUnbind"))
              return noted_bindings(call);
            const Id id = call.at<Id>(0);
            const auto offset = call.at<cuuint64_t>(2);
            auto& bytes = call.at<cuuint64_t>(3);
            const cuuint64_t first = bindings.get({id, offset});
            bool is_whole = false;  // does the range end with a binding?
            for (const auto& [place, size] : bindings.all())
              is_whole |=
                  place.first == id && place.second + size == offset + bytes;
            if (first != 0 && first < bytes && is_whole) {
              bytes = first;
              call.fired();
            }
            return noted_bindings(call);
          });
}

}  // namespace
}  // namespace ipclab::faults
