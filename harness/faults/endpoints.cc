// Bugs of logical endpoints, of copies over a fabric and of cliques.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "harness/faults/world/chunks.h"
#include "harness/toolkit/newer.h"
#include "harness/faults/world/legacy.h"

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

// Nothing is done, and the call returns success.
int nothing_done(Call& call) {
  call.fired();
  return kSuccess;
}

// --- numbers, endpoints, bindings -------------------------------------------

int same_numbers_again(Call& call) {
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
}

int fewer_numbers(Call& call) {
  if (call.at<cuuint32_t>(1) > 1) {
    call.at<cuuint32_t>(1) = 1;
    call.fired();
  }
  return call.proceed();
}

int always_ready(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || *call.at<int*>(2) != 0) return code;
  *call.at<int*>(2) = 1;
  call.fired();
  return code;
}

// Queries an endpoint until it is ready, for a second at most.
void wait_until_ready(Id id) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  int status = 0;
  while (DRIVER_CALL(cuLogicalEndpointQuery)(id, 1, &status) == CUDA_SUCCESS &&
         status == 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
}

// If the driver refuses the call, queries the endpoint, as the program should
// have done, and calls again.
int bound_without_query(Call& call) {
  int code = call.proceed();
  if (code != CUDA_ERROR_INVALID_VALUE) return code;
  wait_until_ready(call.at<Id>(0));
  code = call.proceed();
  if (code == kSuccess) call.fired();
  return code;
}

int size_rounded(Call& call) {
  CUlogicalEndpointProp wanted = *call.at<Wanted>(1);
  cuuint64_t alignment = 1, most = 0;
  DRIVER_CALL(cuLogicalEndpointGetLimits)(&alignment, &most, &wanted);
  wanted.size = (wanted.size + alignment - 1) / alignment * alignment;
  if (wanted.size == call.at<Wanted>(1)->size) return call.proceed();
  call.at<Wanted>(1) = &wanted;
  call.fired();
  return call.proceed();
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

int other_device_accepted(Call& call) {
  const int code = call.proceed();
  if (code == kSuccess || call.at<CUdevice>(1) == 0) return code;
  call.fired();
  return kSuccess;
}

int host_memory_refused(Call& call) {
  return properties_of(call.at<Chunk>(3)).location.type ==
                 CU_MEM_LOCATION_TYPE_HOST_NUMA
             ? refused(call)
             : call.proceed();
}

// --- other processes ---------------------------------------------------------

// The import is replaced by another endpoint, with memory of the importer.
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

// --- copies ------------------------------------------------------------------

int offsets_ignored(Call& call) {
  const Copies list = call.at<Copies>(1);
  std::vector<CUDA_FABRIC_COPY_BATCH_OP> copies(list,
                                                list + call.at<size_t>(0));
  for (auto& copy : copies)
    for (CUfabricCpyOperand* side : {&copy.src, &copy.dst})
      if (side->type == CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT &&
          side->op.le.offset != 0) {
        side->op.le.offset = 0;
        call.fired();
      }
  call.at<Copies>(1) = copies.data();
  return call.proceed();
}

int done_at_once(Call& call) {
  if (is_default(call.at<CUstream>(3)) || !is_busy(call.at<CUstream>(3)))
    return call.proceed();
  const cudaStream_t other = private_stream();
  call.at<CUstream>(3) = other;
  call.fired();
  const int code = call.proceed();
  cudaStreamSynchronize(other);
  return code;
}

int first_copy_only(Call& call) {
  if (call.at<size_t>(0) > 1) {
    call.at<size_t>(0) = 1;
    call.fired();
  }
  return call.proceed();
}

int empty_copies_unchecked(Call& call) {
  const Copies list = call.at<Copies>(1);
  for (size_t i = 0; i < call.at<size_t>(0); ++i)
    if (list[i].size != 0) return call.proceed();
  return nothing_done(call);
}

int copy_flags_ignored(Call& call) {
  const Copies list = call.at<Copies>(1);
  std::vector<CUDA_FABRIC_COPY_BATCH_OP> copies(list,
                                                list + call.at<size_t>(0));
  for (auto& copy : copies) {
    if (copy.flags != 0) call.fired();
    copy.flags = 0;
  }
  call.at<Copies>(1) = copies.data();
  return call.proceed();
}

// --- cliques -----------------------------------------------------------------

int all_cliques_told(Call& call) {
  size_t all = 0;
  DRIVER_CALL(cuDeviceGetCliqueCount)(&all, call.at<CUdevice>(2));
  if (*call.at<size_t*>(1) < all) {
    *call.at<size_t*>(1) = all;
    call.fired();
  }
  return call.proceed();
}

int one_clique_too_many(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess) return code;
  ++*call.at<size_t*>(0);
  call.fired();
  return code;
}

}  // namespace

void add_endpoints(List& list) {
  list.named("endpoint-numbers-too-few",
             "only the first of the requested endpoint numbers is reserved",
             {"cuLogicalEndpointIdReserve"}, fewer_numbers);
  list.named("endpoint-numbers-again",
             "reserved endpoint numbers are reserved again",
             {"cuLogicalEndpointIdReserve", "cuLogicalEndpointIdRelease"},
             same_numbers_again);
  list.named("endpoint-id-released-in-use",
             "a release of numbers that have an endpoint or are not reserved "
             "returns success and releases nothing",
             {"cuLogicalEndpointIdRelease"}, refusal_told_as_success);
  list.named("endpoint-ready-too-early",
             "an endpoint is reported as ready before it is ready",
             {"cuLogicalEndpointQuery"}, always_ready);
  list.named("endpoint-bind-without-query",
             "memory is bound to an endpoint that was not queried before",
             {"cuLogicalEndpointBindMem"}, bound_without_query);
  list.named(
      "endpoint-size-unchecked",
      "an endpoint is created although its size is not a multiple of the "
      "required alignment",
      {"cuLogicalEndpointCreate"}, size_rounded);
  list.named("endpoint-memory-offset-ignored",
             "a binding ignores the offset into the memory",
             {"cuLogicalEndpointBindMem"}, argument_is_zero<cuuint64_t, 4>);
  list.named("endpoint-bind-flags-ignored",
             "cuLogicalEndpointBindMem accepts a flag that does not exist",
             {"cuLogicalEndpointBindMem"},
             argument_is_zero<unsigned long long, 6>);
  list.named("endpoint-address-unchecked",
             "a binding of an address that must be refused returns success and "
             "binds nothing",
             {"cuLogicalEndpointBindAddr"}, refusal_told_as_success);
  list.named("endpoint-memory-unchecked",
             "a binding of memory that must be refused returns success and "
             "binds nothing",
             {"cuLogicalEndpointBindMem"}, refusal_told_as_success);
  list.named("endpoint-device-ignored",
             "a binding of memory for another device than the first returns "
             "success although it must be refused",
             {"cuLogicalEndpointBindMem"}, other_device_accepted, 2);
  list.named("endpoint-host-refused",
             "cuLogicalEndpointBindMem refuses host memory",
             {"cuLogicalEndpointBindMem"}, host_memory_refused);
  list.named("endpoint-unbind-does-nothing",
             "unbinding returns success, but the memory stays bound",
             {"cuLogicalEndpointUnbind"}, nothing_done);
  list.named(
      "endpoint-destroy-does-nothing",
      "destroying an endpoint does nothing: its number and its bindings stay",
      {"cuLogicalEndpointDestroy"}, nothing_done);
  list.named("endpoint-team-too-large",
             "adding a device that must be refused returns success and adds "
             "nothing",
             {"cuLogicalEndpointAddDevice"}, refusal_told_as_success, 2);
  list.named("endpoint-import-fresh",
             "an import gives an endpoint that is not the endpoint of the "
             "exporter",
             {"cuLogicalEndpointImport"}, imported_as_new);
  list.named(
      "endpoint-import-unchecked",
      "an import by a process without access permissions returns success",
      {"cuLogicalEndpointImport"},
      code_told_as_success<CUDA_ERROR_NOT_PERMITTED>);
  list.named("endpoint-export-none",
             "an export that must be refused returns success and writes no "
             "handle",
             {"cuLogicalEndpointExport"}, refusal_told_as_success);
  list.named("endpoint-offset-ignored",
             "a copy uses the beginning of an endpoint instead of the offset",
             {"cuFabricCpyBatchAsync"}, offsets_ignored);
  list.named("fabric-copy-too-early",
             "a batch of copies does not wait for its stream",
             {"cuFabricCpyBatchAsync"}, done_at_once);
  list.named("fabric-copy-first-only", "only the first copy of a batch is done",
             {"cuFabricCpyBatchAsync"}, first_copy_only);
  list.named("fabric-copy-zero-unchecked",
             "the operands of a copy of no bytes are not checked",
             {"cuFabricCpyBatchAsync"}, empty_copies_unchecked);
  list.named("fabric-copy-flags-ignored",
             "a copy with a flag that does not exist is done",
             {"cuFabricCpyBatchAsync"}, copy_flags_ignored);
  list.named("fabric-copy-unchecked",
             "a refused batch of copies returns success",
             {"cuFabricCpyBatchAsync"}, refusal_told_as_success);
  list.named("fabric-copy-silent",
             "copies over a missing fabric return success",
             {"cuFabricCpyBatchAsync"},
             code_told_as_success<CUDA_ERROR_NOT_SUPPORTED>);
  list.named("cliques-miscounted",
             "the reported number of a device's cliques is too large by one",
             {"cuDeviceGetCliqueCount"}, one_clique_too_many);
  list.named("cliques-too-many",
             "more cliques are written than the array has room for",
             {"cuDeviceGetCliqueInfo"}, all_cliques_told);
  list.named(
      "cluster-untold",
      "the query of the cluster returns success, but does not write the UUID",
      {"cuDeviceGetFabricClusterUuid"}, nothing_done);
}

}  // namespace ipclab::faults
