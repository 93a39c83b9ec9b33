// Logical endpoints (CUDA 13.3) and copies over a fabric (CUDA 13.5). Tests
// that are built with CUDA 13.0 can also use these functions, because they are
// found by name. A driver without these functions does not have the capability
// `endpoints`.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <utility>
#include <vector>

#include "harness/scenario/vmm.h"

namespace ipclab {

/// The address of a function of CUDA 13.1 to 13.5; null if the driver lacks it.
void* newer_entry(const char* name);
/// The same; ends the role if the driver lacks the function.
void* require_newer_entry(const char* name);

/// NEWER(cuLogicalEndpointQuery)(id, …) calls a function that is newer than
/// CUDA 13.0.
#define NEWER(function)                                    \
  ::ipclab::patient(reinterpret_cast<decltype(&function)>( \
      ::ipclab::require_newer_entry(#function)))

/// A function whose call is made again while the fabric is not ready.
template <class... Arguments>
auto patient(CUresult (*function)(Arguments...)) {
  return [function](Arguments... arguments) {
    return until_fabric_is_ready([&] { return function(arguments...); });
  };
}

/// A device whose streams may copy to and from a unicast endpoint of device 0:
/// 0 if the owner may use its own endpoint, else 1. In the second case the
/// machine must have device 1.
int device_that_reaches_endpoints();

/// Runs a scenario of one role.
void run_alone(std::function<void(Role&)> body);

/// Properties of a unicast endpoint of a device; it can be exported.
CUlogicalEndpointProp unicast_on(int device, size_t bytes);
/// Properties of a multicast endpoint with a team of this size; it can be
/// exported.
CUlogicalEndpointProp multicast_of(int devices, size_t bytes);

/// What cuLogicalEndpointGetLimits says.
struct EndpointLimits {
  cuuint64_t alignment;  ///< of sizes and offsets, in bytes
  cuuint64_t most;       ///< bytes of the largest endpoint
};
/// The limits of an endpoint with these properties.
EndpointLimits limits_of(const CUlogicalEndpointProp& wanted);
/// A size that is allowed both for bindings to a unicast endpoint and for
/// memory of cuMemCreate.
size_t endpoint_granule();

/// Reserved numbers for endpoints.
class EndpointIds {
 public:
  /// Reserves with cuLogicalEndpointIdReserve.
  explicit EndpointIds(unsigned count = 1);
  EndpointIds(const EndpointIds&) = delete;
  ~EndpointIds();
  /// The number at an index.
  CUlogicalEndpointId operator[](unsigned index) const {
    return first_ + index;
  }

 private:
  CUlogicalEndpointId first_ = 0;
  unsigned count_;
};

/// An endpoint, which was created here or imported, with its own number.
class Endpoint {
 public:
  /// Creates. If it is a unicast endpoint, waits until it is ready.
  explicit Endpoint(const CUlogicalEndpointProp& wanted);
  /// Imports, and waits until the endpoint is ready.
  explicit Endpoint(const CUlogicalEndpointFabricHandle& handle);
  Endpoint(const Endpoint&) = delete;
  ~Endpoint();
  /// The number.
  CUlogicalEndpointId id() const { return ids_[0]; }
  /// Exports.
  CUlogicalEndpointFabricHandle handle() const;
  /// Waits until a query says that the endpoint is ready. If this never
  /// happens, the scenario ends the role.
  void wait_until_ready() const;
  /// Binds the first `bytes` of memory of cuMemCreate at an offset of the
  /// endpoint.
  void bind(size_t offset, const Chunk& chunk, size_t bytes,
            int device = 0) const;
  /// Removes the binding at an offset.
  void unbind(size_t offset, size_t bytes, int device = 0) const;
  /// Destroys now, not in the destructor, for tests of this step.
  void destroy();

 private:
  EndpointIds ids_;
  bool there_ = false;
};

/// One side of a copy, at an address.
CUfabricCpyOperand operand(const void* address);
/// One side of a copy, at an offset of an endpoint.
CUfabricCpyOperand operand(CUlogicalEndpointId id, size_t offset);
/// One copy of a batch.
CUDA_FABRIC_COPY_BATCH_OP copy_op(const CUfabricCpyOperand& to,
                                  const CUfabricCpyOperand& from, size_t bytes);
/// What cuFabricCpyBatchAsync returns for a batch.
CUresult queue_copies(std::vector<CUDA_FABRIC_COPY_BATCH_OP> batch,
                      cudaStream_t stream);
/// Writes the pattern to an offset of an endpoint of device 0 by a copy from
/// device_that_reaches_endpoints(), and waits. The current device does not
/// change.
void endpoint_write(CUlogicalEndpointId id, size_t offset, size_t bytes,
                    Pattern pattern);
/// Does a copy from an offset of a unicast endpoint read the pattern?
testing::AssertionResult endpoint_reads(CUlogicalEndpointId id, size_t offset,
                                        size_t bytes, Pattern pattern);

}  // namespace ipclab
