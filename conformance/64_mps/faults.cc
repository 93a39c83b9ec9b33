// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

int mps_outsider_opens_copy(Call& call) {
  static Table<void*, void*> originals;
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess && is_mps_client())
      tell_processes("client-of-mps-" + key_of(call.at<void*>(0), 64), 1);
    return code;
  }
  if (is_close_call(call)) {
    void*& memory = call.at<void*>(0);
    void* const copy = memory;
    memory = originals.get(copy, copy);
    if (originals.erase(copy)) cudaFree(copy);
    return call.proceed();
  }
  const std::string key = key_of_handle(call.at<cudaIpcMemHandle_t>(1));
  const int code = call.proceed();
  if (code != kSuccess || is_mps_client() ||
      told("client-of-mps-" + key, 0) == 0)
    return code;
  void*& memory = *call.at<void**>(0);
  const size_t bytes = size_of(number(memory));
  void* copy = nullptr;
  if (cudaMalloc(&copy, bytes) != cudaSuccess) return code;
  cudaMemcpy(copy, memory, bytes, cudaMemcpyDeviceToDevice);
  cudaDeviceSynchronize();
  originals.put(copy, memory);
  memory = copy;
  call.fired();
  return code;
}

// A number for the daemon of which this process is a client; 0 if of none.
uint64_t own_daemon() {
  const char* folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  if (folder == nullptr || !is_mps_client()) return 0;
  uint64_t number = 1;
  for (const char* at = folder; *at != '\0'; ++at)
    number = number * 31 + static_cast<unsigned char>(*at);
  return number;
}

// Proceeds with the export of memory or of an event, and tells the other
// processes of which daemon this process is a client.
int told_daemon(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !is_mps_client()) return code;
  const std::string key = exports_memory(call)
                              ? key_of(call.at<void*>(0), 64)
                              : made_key<cudaIpcEventHandle_t>(call);
  tell_processes("daemon-" + key, own_daemon());
  return code;
}

// Is this process a client of another daemon than the exporter?
bool is_of_other_daemon(const std::string& key) {
  const uint64_t exporters = told("daemon-" + key, 0);
  return exporters != 0 && is_mps_client() && exporters != own_daemon();
}

// In a client of MPS, calls do nothing with an imported event.
int mps_import_ignored(Call& call) {
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && is_imported(event) && is_mps_client() &&
                 (records(call) || is_pending(event))
             ? lost(call)
             : call.proceed();
}

// In a client of MPS, asynchronous work does not reach opened memory.
int mps_async_lost(Call& call) {
  return is_opened(call.value<void*>(kPointer)) && is_mps_client()
             ? lost(call)
             : call.proceed();
}

FAULTS {
  fault("mps-client-opens-copy", {"MPS-01", "MPS-02"},
        "in a client of MPS an open gives a copy of the contents")
      .on({kOpen, kClose}, WHEN(is_mps_client()),
          [](Call& call) { return open_copy(call, true, SIZE_MAX); });

  fault("mps-outsider-refused", {"MPS-01"},
        "a process that has the variable CUDA_MPS_PIPE_DIRECTORY, but is not a "
        "client of MPS, cannot open memory")
      .on({kOpen},
          WHEN(std::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr &&
               !is_mps_client()),
          refuses());

  fault("mps-event-unconnected", {"MPS-01"},
        "a client of MPS opens an event that no process records")
      .after({kOpenEvent}, WHEN(is_mps_client()), [](Call& open) {
        cudaEvent_t& event = *open.at<cudaEvent_t*>(0);
        cudaEventDestroy(event);
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
      });

  fault("mps-client-writes-lost", {"MPS-01"},
        "cudaMemcpy by a client of MPS does not reach opened memory")
      .on({kCopy}, [](Call& call) {
        CUdeviceptr begin = 0;
        size_t bytes = 0;
        DRIVER_CALL(cuMemGetAddressRange)
        (&begin, &bytes, call.value<CUdeviceptr>(kPointer));
        return opened.has(reinterpret_cast<void*>(begin)) && is_mps_client()
                   ? lost(call)
                   : call.proceed();
      });

  fault("mps-outsider-opens-copy", {"MPS-01"},
        "a process that is no client of MPS opens a copy of the memory of a "
        "client")
      .on({kGetHandle, kOpen, kClose}, mps_outsider_opens_copy);

  fault("mps-wait-for-import-lost", {"MPS-01", "MPS-02"},
        "in a client of MPS, no stream waits for an imported event")
      .on({kWaitEvent}, mps_import_ignored);

  fault("mps-record-of-import-lost", {"MPS-01", "MPS-02"},
        "in a client of MPS, a record of an imported event is lost")
      .on({kRecord}, mps_import_ignored);

  fault("mps-host-wait-early", {"MPS-01", "MPS-02"},
        "in a client of MPS, no host waits for an imported event")
      .on({kSyncEvent}, mps_import_ignored);

  fault("mps-async-copy-lost", {"MPS-01", "MPS-02"},
        "in a client of MPS, asynchronous copies do not reach opened memory")
      .on({kCopyAsync}, mps_async_lost);

  fault("mps-async-set-lost", {"MPS-01", "MPS-02"},
        "in a client of MPS, asynchronous memsets do not reach opened memory")
      .on({kSetAsync}, mps_async_lost);

  fault("mps-driver-opens-copy", {"MPS-01", "MPS-02"},
        "in a client of MPS, an open by the driver API gives a copy")
      .on({kOpen, kClose}, [](Call& call) -> int {
        if (is_close_call(call)) return copy_closed(call);
        return !call.is_runtime() && is_mps_client() ? copy_opened(call)
                                                     : call.proceed();
      });

  fault("mps-second-open-is-copy", {"MPS-01", "MPS-02"},
        "in a client of MPS, a second open of a handle gives a copy")
      .on({kOpen, kClose}, [](Call& call) -> int {
        if (is_close_call(call) && originals.has(call.at<void*>(0)))
          return copy_closed(call);
        return is_open_call(call) && already_open(call) != nullptr &&
                       is_mps_client()
                   ? copy_opened(call)
                   : call.proceed();
      });

  fault("mps-outsider-event-unconnected", {"MPS-01"},
        "a process that is no client of MPS opens an event of a client as an "
        "event that no process records")
      .on({kGetEventHandle, kOpenEvent}, [](Call& call) {
        if (exports_event(call)) {
          const int code = call.proceed();
          if (code == kSuccess && is_mps_client())
            tell_processes("client-" + made_key<cudaIpcEventHandle_t>(call), 1);
          return code;
        }
        const bool of_client =
            told("client-" + given_key<cudaIpcEventHandle_t>(call), 0) != 0;
        const int code = call.proceed();
        return code == kSuccess && of_client && !is_mps_client()
                   ? opened_unconnected(call)
                   : code;
      });

  fault("mps-other-server-refused", {"MPS-04"},
        "a client of MPS cannot open memory of a client of another server")
      .on({kGetHandle}, told_daemon)
      .on({kOpen},
          WHEN(is_of_other_daemon(
              key_of_handle(call.at<cudaIpcMemHandle_t>(1)))),
          refuses());

  fault("mps-other-server-opens-copy", {"MPS-04"},
        "a client of MPS opens a copy of the memory of a client of another "
        "server")
      .on({kGetHandle}, told_daemon)
      .on({kOpen, kClose}, [](Call& call) -> int {
        if (is_close_call(call)) return copy_closed(call);
        return is_of_other_daemon(key_of_handle(call.at<cudaIpcMemHandle_t>(1)))
                   ? copy_opened(call)
                   : call.proceed();
      });

  fault("mps-other-server-event-unconnected", {"MPS-04"},
        "a client of MPS opens an event of a client of another server as an "
        "event that no process records")
      .on({kGetEventHandle}, told_daemon)
      .on({kOpenEvent}, [](Call& call) {
        const bool other =
            is_of_other_daemon(given_key<cudaIpcEventHandle_t>(call));
        const int code = call.proceed();
        return code == kSuccess && other ? opened_unconnected(call) : code;
      });

  fault("mps-chunk-import-copy", {"MPS-05"},
        "in a client of MPS, an import of memory of cuMemCreate is a copy, "
        "made when it is mapped")
      .on({kImport, kMap, kUnmap}, WHEN(is_mps_client()),
          DO(map_other_memory(call, true)));

  fault("mps-chunk-import-refused", {"MPS-05"},
        "in a client of MPS, the import of a descriptor of cuMemCreate is "
        "refused")
      .on({kImport}, WHEN(is_mps_client()), refuses());

  fault("mps-pool-import-refused", {"MPS-05"},
        "in a client of MPS, the import of a pool is refused")
      .on({kImportPool}, WHEN(is_mps_client()), refuses());

  fault("mps-pool-copy-lost", {"MPS-05"},
        "in a client of MPS, cudaMemcpy does not reach imported memory of a "
        "pool")
      .on({kCopy}, [](Call& call) {
        return is_mps_client() &&
                       import_around(call.value<void*>(kPointer)).bytes != 0
                   ? lost(call)
                   : call.proceed();
      });
}

}  // namespace
}  // namespace ipclab::faults
