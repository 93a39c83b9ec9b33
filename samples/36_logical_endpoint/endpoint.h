// Lesson 36 calls these functions. They check the machine, create
// memory, wait for an endpoint, and describe the sides of a copy.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../common/require.h"
#include "../common/vmm.h"

/// Skips unless there are two GPUs, and GPU 0 can have an endpoint.
inline void require_endpoints() {
  require_gpus(2);
  if (driver_entry("cuFabricCpyBatchAsync") == nullptr)
    skip("needs a driver of CUDA 13.5");
  require(CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_SUPPORTED,
          "logical endpoints");
}

/// Creates memory that a fabric can share. Skips if this process has no
/// IMEX channel that it can use.
inline Memory create_memory(size_t bytes,
                            const CUmemAllocationProp& wanted) {
  Memory memory;
  const CUresult code = until_fabric_is_ready(
      [&] { return DRIVER(cuMemCreate)(&memory, bytes, &wanted, 0); });
  if (code == CUDA_ERROR_NOT_PERMITTED)
    skip("no IMEX channel: lesson 35 says what a fabric needs");
  CU_CHECK(code);
  return memory;
}

//! [ready]
/// Queries an endpoint until it is ready: an earlier use is undefined.
/// Ends the process after 10 s.
inline void wait_until_ready(CUlogicalEndpointId id) {
  using clock = std::chrono::steady_clock;
  const auto end = clock::now() + std::chrono::seconds(10);
  int ready = 0;
  while (ready == 0 && clock::now() < end)
    CU_CHECK(DRIVER(cuLogicalEndpointQuery)(id, 1, &ready));
  if (ready != 0) return;
  say("the endpoint is not ready after 10 s");
  std::exit(EXIT_FAILURE);
}
//! [ready]

//! [sides]
/// Returns one side of a copy: an address.
inline CUfabricCpyOperand at(void* address) {
  CUfabricCpyOperand side{};
  side.type = CU_FABRIC_COPY_OPERAND_TYPE_POINTER;
  side.op.ptr.ptr = reinterpret_cast<CUdeviceptr>(address);
  return side;
}

/// Returns one side of a copy: an offset in an endpoint.
inline CUfabricCpyOperand at(CUlogicalEndpointId id,
                             cuuint64_t offset) {
  CUfabricCpyOperand side{};
  side.type = CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT;
  side.op.le = {id, offset};
  return side;
}
//! [sides]
