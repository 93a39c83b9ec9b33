// Calls that have to be refused.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "harness/explore/role.h"
#include "harness/scenario/both_apis.h"
#include "harness/scenario/vmm.h"

namespace ipclab::explore {
namespace {

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr auto kPoolFd = cudaMemHandleTypePosixFileDescriptor;

// Tries the call by one API. What it makes if it is wrongly accepted is left:
// the role ends after a failure.
template <class Api>
typename Api::Code refuse(Api api, Objects& objects, const Step& step,
                          const Parcel& parcel) {
  using Code = typename Api::Code;
  switch (step.how) {
    case kExportManaged:
    case kExportMapped: {
      cudaIpcMemHandle_t handle;
      return api.ipc_get_mem_handle(&handle, objects.memory.at(step.on).data);
    }
    case kOpenEventHandle: {
      cudaIpcMemHandle_t handle{};
      void* memory = nullptr;
      std::memcpy(&handle, parcel.bytes.data(), sizeof handle);
      return api.ipc_open_mem_handle(&memory, handle);
    }
    case kOpenMemoryHandle: {
      cudaIpcEventHandle_t handle{};
      cudaEvent_t event = nullptr;
      std::memcpy(&handle, parcel.bytes.data(), sizeof handle);
      return api.ipc_open_event_handle(&event, handle);
    }
    case kElapsedTime: {
      float ms = 0;
      const cudaEvent_t event = objects.events.at(step.on);
      return static_cast<Code>(
          step.api == 0
              ? static_cast<int>(cudaEventElapsedTime(&ms, event, event))
              : static_cast<int>(
                    DRIVER(cuEventElapsedTime)(&ms, event, event)));
    }
    case kAllocImported: {
      void* memory = nullptr;
      return api.malloc_from_pool_async(
          &memory, 4096, objects.pools.at(step.on), cudaStreamPerThread);
    }
    case kExportImported:
    case kExportPrivatePool: {
      int descriptor = -1;
      return api.mem_pool_export_to_shareable_handle(
          &descriptor, objects.pools.at(step.on), kPoolFd);
    }
    default:
      return static_cast<Code>(-1);
  }
}

// Calls that only the driver API has.
int refuse_chunk(Objects& objects, const Step& step) {
  switch (step.how) {
    case kMapTwice: {
      const Objects::Memory memory = objects.memory.at(step.on);
      const auto granule = static_cast<size_t>(step.bytes);
      return DRIVER(cuMemMap)(address_of(memory.data), granule, 0,
                              objects.chunks.at(step.from), 0);
    }
    case kUnmapPart: {
      const Objects::Memory memory = objects.memory.at(step.on);
      return DRIVER(cuMemUnmap)(address_of(memory.data),
                                static_cast<size_t>(memory.bytes / 2));
    }
    default:
      return -1;
  }
}

}  // namespace

int perform_refusal(Objects& objects, const Step& step, Parcel& parcel) {
  const bool by_driver_only = step.how >= kMapTwice && step.how <= kUnmapPart;
  const int code =
      by_driver_only ? refuse_chunk(objects, step)
      : step.api == 0
          ? static_cast<int>(refuse(RuntimeApi{}, objects, step, parcel))
          : static_cast<int>(refuse(DriverApi{}, objects, step, parcel));
  parcel = {};
  return code;
}

}  // namespace ipclab::explore
