// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <thread>

#include "harness/scenario/endpoint.h"

namespace ipclab {
namespace {

constexpr int kCuda135 = 13050;
constexpr auto kFabricHandle = CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC;

// Makes another device the current device as long as this object exists.
class OtherDevice {
 public:
  explicit OtherDevice(int device) {
    CALL(cudaGetDevice(&before_));
    CALL(cudaSetDevice(device));
  }
  OtherDevice(const OtherDevice&) = delete;
  ~OtherDevice() { cudaSetDevice(before_); }

 private:
  int before_ = 0;
};

}  // namespace

void* newer_entry(const char* name) {
  void* const entry = driver_entry(name, kCuda135);
  cudaGetLastError();
  return entry;
}

void* require_newer_entry(const char* name) {
  void* const entry = newer_entry(name);
  if (entry == nullptr)
    throw CallFailed{
        name, "a function of this driver", "none", __FILE__, __LINE__, false};
  return entry;
}

int device_that_reaches_endpoints() {
  return attribute(
             CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_ACCESS_ON_OWNER_DEVICE_SUPPORTED) !=
                 0
             ? 0
             : 1;
}

void run_alone(std::function<void(Role&)> body) {
  Scenario scenario;
  scenario.role("owner", std::move(body));
  scenario.run(std::chrono::seconds(20));
}

CUlogicalEndpointProp unicast_on(int device, size_t bytes) {
  CUlogicalEndpointProp wanted{};
  wanted.type = CU_LOGICAL_ENDPOINT_TYPE_UNICAST;
  wanted.unicast.device = device;
  wanted.size = bytes;
  wanted.ipcHandleTypes = kFabricHandle;
  return wanted;
}

CUlogicalEndpointProp multicast_of(int devices, size_t bytes) {
  CUlogicalEndpointProp wanted{};
  wanted.type = CU_LOGICAL_ENDPOINT_TYPE_MULTICAST;
  wanted.multicast.numDevices = static_cast<unsigned>(devices);
  wanted.size = bytes;
  wanted.ipcHandleTypes = kFabricHandle;
  return wanted;
}

EndpointLimits limits_of(const CUlogicalEndpointProp& wanted) {
  Sentinel<cuuint64_t> alignment, most;
  CALL(cudaFree(nullptr));
  CALL(NEWER(cuLogicalEndpointGetLimits)(alignment.out(), most.out(), &wanted));
  return {alignment.result(), most.result()};
}

size_t endpoint_granule() {
  const size_t chunk = granule(chunk_of(0, CU_MEM_HANDLE_TYPE_FABRIC));
  const size_t alignment = limits_of(unicast_on(0, chunk)).alignment;
  return std::max(chunk, alignment);  // both are powers of two
}

EndpointIds::EndpointIds(unsigned count) : count_(count) {
  Sentinel<CUlogicalEndpointId> first;
  CALL(cudaFree(nullptr));
  CALL(NEWER(cuLogicalEndpointIdReserve)(first.out(), count));
  first_ = first.result();
}

EndpointIds::~EndpointIds() {
  NEWER(cuLogicalEndpointIdRelease)(first_, count_);
}

Endpoint::Endpoint(const CUlogicalEndpointProp& wanted) {
  CALL(NEWER(cuLogicalEndpointCreate)(id(), &wanted));
  there_ = true;
  if (wanted.type == CU_LOGICAL_ENDPOINT_TYPE_UNICAST) wait_until_ready();
}

Endpoint::Endpoint(const CUlogicalEndpointFabricHandle& handle) {
  CALL(NEWER(cuLogicalEndpointImport)(id(), &handle, kFabricHandle));
  there_ = true;
  wait_until_ready();
}

Endpoint::~Endpoint() {
  if (there_) NEWER(cuLogicalEndpointDestroy)(id());
}

CUlogicalEndpointFabricHandle Endpoint::handle() const {
  Sentinel<CUlogicalEndpointFabricHandle> handle;
  CALL(NEWER(cuLogicalEndpointExport)(handle.out(), id(), kFabricHandle));
  return handle.result();
}

void Endpoint::wait_until_ready() const {
  for (;;) {
    Sentinel<int> status;
    CALL(NEWER(cuLogicalEndpointQuery)(id(), 1, status.out()));
    if (status.result() != 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void Endpoint::bind(size_t offset, const Chunk& chunk, size_t bytes,
                    int device) const {
  CALL(NEWER(cuLogicalEndpointBindMem)(id(), device, offset, chunk.handle(), 0,
                                       bytes, 0));
}

void Endpoint::unbind(size_t offset, size_t bytes, int device) const {
  CALL(NEWER(cuLogicalEndpointUnbind)(id(), device, offset, bytes));
}

void Endpoint::destroy() {
  CALL(NEWER(cuLogicalEndpointDestroy)(id()));
  there_ = false;
}

CUfabricCpyOperand operand(const void* address) {
  CUfabricCpyOperand side{};
  side.type = CU_FABRIC_COPY_OPERAND_TYPE_POINTER;
  side.op.ptr.ptr = address_of(address);
  return side;
}

CUfabricCpyOperand operand(CUlogicalEndpointId id, size_t offset) {
  CUfabricCpyOperand side{};
  side.type = CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT;
  side.op.le.id = id;
  side.op.le.offset = offset;
  return side;
}

CUDA_FABRIC_COPY_BATCH_OP copy_op(const CUfabricCpyOperand& to,
                                  const CUfabricCpyOperand& from,
                                  size_t bytes) {
  CUDA_FABRIC_COPY_BATCH_OP copy{};
  copy.dst = to;
  copy.src = from;
  copy.size = bytes;
  return copy;
}

CUresult queue_copies(std::vector<CUDA_FABRIC_COPY_BATCH_OP> batch,
                      cudaStream_t stream) {
  return NOTED(
      NEWER(cuFabricCpyBatchAsync)(batch.size(), batch.data(), 0, stream));
}

void endpoint_write(CUlogicalEndpointId id, size_t offset, size_t bytes,
                    Pattern pattern) {
  const OtherDevice here(device_that_reaches_endpoints());
  const DeviceBuffer local(bytes);
  local.fill(pattern);
  const Stream stream;
  CALL(queue_copies({copy_op(operand(id, offset), operand(local.data), bytes)},
                    stream));
  CALL(cudaStreamSynchronize(stream));
}

testing::AssertionResult endpoint_reads(CUlogicalEndpointId id, size_t offset,
                                        size_t bytes, Pattern pattern) {
  const OtherDevice here(device_that_reaches_endpoints());
  const DeviceBuffer local(bytes);
  const Stream stream;
  CALL(queue_copies({copy_op(operand(local.data), operand(id, offset), bytes)},
                    stream));
  CALL(cudaStreamSynchronize(stream));
  return kernel_reads(local, pattern);
}

}  // namespace ipclab
