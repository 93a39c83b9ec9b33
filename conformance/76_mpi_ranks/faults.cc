// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// If a process has another number for the GPU of an event, its calls do nothing
// with the event.
int event_known_by_number(Call& call) {
  static Table<std::string> other;
  const std::string key =
      opens_event(call) ? given_key<cudaIpcEventHandle_t>(call) : "";
  const int code =
      keeps_events(call) ? call.proceed() : static_cast<int>(kSuccess);
  if (keeps_events(call)) {
    if (code != kSuccess) return code;
    if (exports_event(call)) {
      const std::string made = made_key<cudaIpcEventHandle_t>(call);
      tell_processes("number-" + made,
                     static_cast<unsigned long long>(current_device()));
      tell_processes("place-" + made, current_place());
    } else if (opens_event(call)) {
      const auto same_number = static_cast<int>(told("number-" + key, 0));
      if (place_of(same_number) != told("place-" + key, place_of(same_number)))
        other.put(key);
    }
    return code;
  }
  const cudaEvent_t event = shared_event(call);
  return event != nullptr && is_imported(event) &&
                 other.has(event_keys.get(event)) &&
                 (records(call) || is_pending(event))
             ? lost(call)
             : call.proceed();
}

int number_of_gpu(CUdeviceptr memory) {
  int device = 0;
  DRIVER_CALL(cuPointerGetAttribute)
  (&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory);
  return device;
}

// Reports another number for the GPU of a pointer.
int reported_as(Call& get, unsigned long long device) {
  const int code = get.proceed();
  if (code != kSuccess) return code;
  auto& found = *get.at<cudaPointerAttributes*>(0);
  if (found.device == static_cast<int>(device)) return code;
  found.device = static_cast<int>(device);
  get.fired();
  return code;
}

int chunk_on_exporters_number(Call& call) {
  const auto key = [](int gpu) {
    return "number-of-" + std::to_string(place_of(gpu));
  };
  if (call.is("cudaPointerGetAttributes")) {
    const CUdeviceptr memory = call.at<CUdeviceptr>(1);
    if (!is_import(memory)) return call.proceed();
    const int gpu = number_of_gpu(memory);
    return reported_as(call, told(key(gpu), static_cast<unsigned>(gpu)));
  }
  const int code = call.proceed();
  if (code == kSuccess && call.is("cuMemExportToShareableHandle")) {
    const CUmemLocation place = properties_of(call.at<Chunk>(1)).location;
    if (place.type == CU_MEM_LOCATION_TYPE_DEVICE)
      tell_processes(key(place.id), static_cast<unsigned>(place.id));
  }
  return code;
}

int pointer_on_exporters_number(Call& call) {
  static Table<void*, unsigned long long> numbers;
  if (call.is("cudaPointerGetAttributes")) {
    void* const memory = call.at<void*>(1);
    return numbers.has(memory) ? reported_as(call, numbers.get(memory))
                               : call.proceed();
  }
  if (frees(call)) numbers.erase(call.at<void*>(0));
  const int code = call.proceed();
  if (code != kSuccess || frees(call)) return code;
  if (call.is("cudaMemPoolExportPointer"))
    tell_processes(
        "number-" + key_of_data(call.at<void*>(0)),
        static_cast<unsigned>(number_of_gpu(call.at<CUdeviceptr>(1))));
  else
    numbers.put(*call.at<void**>(0),
                told("number-" + key_of_data(call.at<void*>(2)), 0));
  return code;
}

// If a process has more than two memories open, asynchronous work does not
// reach the later ones.
int work_on_third_open_lost(Call& call) {
  static Table<void*> late;
  if (is_open_call(call)) {
    const size_t before = opened.all().size();
    const bool again = already_open(call) != nullptr;
    const int code = call.proceed();
    if (code == kSuccess && !again && before >= 2)
      late.put(*call.at<void**>(0));
    return code;
  }
  if (is_close_call(call)) {
    void* const memory = call.at<void*>(0);
    const int code = call.proceed();
    if (code == kSuccess && !opened.has(memory)) late.erase(memory);
    return code;
  }
  void* const memory = opened_around(call.value<void*>(kPointer));
  return memory != nullptr && late.has(memory) ? lost(call) : call.proceed();
}

int close_ends_way_back(Call& call) {
  const auto lender_of = [](const std::string& handle) {
    return told("lender-" + handle, 0);
  };
  const auto way = [](unsigned long long from, unsigned long long to) {
    return "way-" + std::to_string(from) + "-" + std::to_string(to);
  };
  if (exports_memory(call)) {
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes("lender-" + made_key<cudaIpcMemHandle_t>(call),
                     this_process());
    return code;
  }
  if (keeps_opened(call)) {
    const bool opens = is_open_call(call);
    const std::string handle = opens ? given_key<cudaIpcMemHandle_t>(call)
                                     : opened.get(call.at<void*>(0)).handle;
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes(way(lender_of(handle), this_process()), opens ? 0 : 1);
    return code;
  }
  for (const Role role : {kPointer, kSource}) {
    void* const memory = opened_around(call.value<void*>(role));
    if (memory == nullptr) continue;
    const auto lender = lender_of(opened.get(memory).handle);
    if (told(way(this_process(), lender), 0) != 0) return lost(call);
  }
  return call.proceed();
}

FAULTS {
  fault("import-device-zero", {"RANK-02"},
        "an imported pointer is reported as memory of GPU 0")
      .with_gpus(2)
      .on({kPointerAttributes}, [](Call& call) {
        const bool imported = is_opened(call.at<void*>(1));
        const int code = call.proceed();
        if (code != kSuccess || !imported) return code;
        auto& attributes = *call.at<cudaPointerAttributes*>(0);
        if (attributes.device != 0) call.fired();
        attributes.device = 0;
        return code;
      });

  fault("wait-by-number-of-gpu", {"RANK-02"},
        "if a process has another number for the GPU of an event, no stream "
        "waits for the event")
      .with_gpus(2)
      .on({kGetEventHandle, kOpenEvent, kCreateEvent, kDestroyEvent,
           kWaitEvent},
          event_known_by_number);

  fault("record-by-number-of-gpu", {"RANK-02"},
        "if a process has another number for the GPU of an event, a record of "
        "the event is lost")
      .with_gpus(2)
      .on({kGetEventHandle, kOpenEvent, kCreateEvent, kDestroyEvent, kRecord},
          event_known_by_number);

  fault("chunk-on-exporters-number", {"RANK-02"},
        "imported memory of cuMemCreate is reported on the GPU that has the "
        "exporter's number")
      .with_gpus(2)
      .on({kExport, kPointerAttributes}, chunk_on_exporters_number);

  fault("pool-pointer-on-exporters-number", {"RANK-02"},
        "imported memory of a pool is reported on the GPU that has the "
        "exporter's number")
      .with_gpus(2)
      .on({kImportPointer, kExportPointer, kFree, kFreeAsync,
           kPointerAttributes},
          pointer_on_exporters_number);

  fault("copy-to-third-open-lost", {"RANK-01"},
        "asynchronous copies reach only the first two memories that a process "
        "has open")
      .on({kOpen, kClose, kCopyAsync}, work_on_third_open_lost);

  fault("set-of-third-open-lost", {"RANK-01"},
        "asynchronous memsets reach only the first two memories that a process "
        "has open")
      .on({kOpen, kClose, kSetAsync}, work_on_third_open_lost);

  fault("close-ends-way-back", {"RANK-01"},
        "when process A closes memory of process B, cudaMemcpy in B does not "
        "reach memory of A any more")
      .on({kGetHandle, kOpen, kClose, kCopy}, close_ends_way_back);
}

}  // namespace
}  // namespace ipclab::faults
