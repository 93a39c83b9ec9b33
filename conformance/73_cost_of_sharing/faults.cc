// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// While memory is borrowed, this process loses device memory of the same size.
int costs_memory(Call& call) {
  static Table<CUdeviceptr, void*> hidden;
  const int code = call.proceed();
  const auto borrowed = all_borrowed();
  for (const auto& [begin, bytes] : borrowed) {
    void* more = nullptr;
    if (hidden.has(begin) || cudaMalloc(&more, bytes) != cudaSuccess) continue;
    hidden.put(begin, more);
    call.fired();
  }
  for (const auto& [begin, more] : hidden.all())
    if (borrowed.count(begin) == 0 && hidden.erase(begin)) cudaFree(more);
  return code;
}

// An open takes as much memory as it opens, until the last close.
template <bool (*applies)(Call&)>
int open_costs_memory(Call& call) {
  static auto& taken = *new Table<void*, void*>;
  if (exports_memory(call)) return told_owner(call);
  if (is_close_call(call)) {
    void* const address = call.at<void*>(0);
    const int code = call.proceed();
    if (!opened.has(address) && taken.has(address)) {
      cudaFree(taken.get(address));
      taken.erase(address);
    }
    return code;
  }
  const bool costs = applies(call);
  const int code = call.proceed();
  if (code != kSuccess || !costs) return code;
  void* const address = *call.at<void**>(0);
  void* memory = nullptr;
  if (taken.has(address) ||
      cudaMalloc(&memory, size_of(number(address))) != cudaSuccess)
    return code;
  taken.put(address, memory);
  call.fired();
  return code;
}

bool is_by_driver(Call& open) { return !open.is_runtime(); }

bool opens_memory_of_peer(Call& open) {
  return owner_of(open.at<cudaIpcMemHandle_t>(1)) != current_place();
}

int reopen_costs_memory(Call& call) {
  static Table<std::string> closed;
  static Table<void*, void*> taken;
  if (is_close_call(call)) {
    void* const memory = call.at<void*>(0);
    const std::string handle = opened.get(memory).handle;
    const int code = call.proceed();
    if (code != kSuccess || opened.has(memory)) return code;
    closed.put(handle);
    cudaFree(taken.get(memory));
    taken.erase(memory);
    return code;
  }
  const int code = call.proceed();
  void* more = nullptr;
  if (code != kSuccess || !closed.has(given_key<cudaIpcMemHandle_t>(call)))
    return code;
  void* const memory = *call.at<void**>(0);
  if (taken.has(memory)) return code;
  if (cudaMalloc(&more, size_of(number(memory))) != cudaSuccess) return code;
  taken.put(memory, more);
  call.fired();
  return code;
}

// Device memory that the process loses as long as it uses something.
Table<CUdeviceptr, void*> taken;

void take(Call& call, CUdeviceptr place, size_t bytes) {
  void* more = nullptr;
  if (taken.has(place) || cudaMalloc(&more, bytes) != cudaSuccess) return;
  taken.put(place, more);
  call.fired();
}

void give_back(CUdeviceptr place) {
  cudaFree(taken.get(place));
  taken.erase(place);
}

// Has another process opened the same thing before?
bool is_second_client(const std::string& key) {
  if (first_of_all_processes("first-client-" + key))
    tell_processes("client-" + key, this_process());
  return told("client-" + key, this_process()) != this_process();
}

int second_chunk_client_costs_memory(Call& call) {
  static Table<Chunk> second;
  if (call.is("cuMemImportFromShareableHandle")) {
    const bool other =
        imports_descriptor(call) && is_second_client(import_key(call));
    const int code = call.proceed();
    if (code != kSuccess) return code;
    second.erase(*call.at<Chunk*>(0));
    if (other) second.put(*call.at<Chunk*>(0));
    return code;
  }
  const int code = call.proceed();
  const CUdeviceptr place = call.at<CUdeviceptr>(0);
  if (code != kSuccess) return code;
  if (call.is("cuMemUnmap"))
    give_back(place);
  else if (second.has(call.at<Chunk>(3)))
    take(call, place, call.at<size_t>(1));
  return code;
}

FAULTS {
  fault("import-costs-memory", {"COST-01"},
        "a process loses device memory of the same size as opened memory")
      .on({kOpen, kOpen, kClose, kClose, kClose}, costs_memory);

  fault("chunk-costs-memory", {"COST-02"},
        "a process loses device memory of the same size as imported memory of "
        "cuMemCreate")
      .on({kImport, kImport, kCreate, kMap, kUnmap}, costs_memory);

  fault("pool-costs-memory", {"COST-03"},
        "a process loses device memory of the same size as imported memory of "
        "a pool")
      .on({kImportPointer, kImportPointer, kFree, kFreeAsync, kFreeAsync},
          costs_memory);

  fault("importptr-takes-memory", {"COST-03"},
        "an imported pointer takes as much memory of the GPU as the allocation "
        "has")
      .on({kImportPointer, kFree, kFreeAsync}, [](Call& call) {
        static auto& taken = *new Table<void*, void*>;
        if (frees(call) && taken.has(call.at<void*>(0))) {
          cudaFreeAsync(taken.get(call.at<void*>(0)), private_stream());
          taken.erase(call.at<void*>(0));
        }
        const int code = call.proceed();
        if (code != kSuccess || !call.is("cudaMemPoolImportPointer"))
          return code;
        void* more = nullptr;
        void* const address = *call.at<void**>(0);
        const size_t bytes = blocks.get(address).bytes;
        if (bytes == 0 || cudaMalloc(&more, bytes) != cudaSuccess) return code;
        taken.put(address, more);
        return accepted(call);
      });

  fault("peer-open-costs-memory", {"COST-01"},
        "an open on another GPU takes as much of its memory as it opens")
      .with_gpus(2)
      .on({kGetHandle, kOpen, kClose}, open_costs_memory<opens_memory_of_peer>);

  fault("driver-open-costs-memory", {"COST-01"},
        "an open by the driver API takes as much memory as it opens")
      .on({kGetHandle, kOpen, kClose}, open_costs_memory<is_by_driver>);

  fault("reopen-costs-memory", {"COST-01"},
        "an open of memory that the process has closed takes as much memory as "
        "it opens")
      .on({kOpen, kClose}, reopen_costs_memory);

  fault(
      "second-client-costs-memory", {"COST-01"},
      "the second process that opens a handle takes as much memory as it opens")
      .on({kOpen, kClose}, [](Call& call) {
        if (is_close_call(call)) {
          void* const memory = call.at<void*>(0);
          const int code = call.proceed();
          if (code == kSuccess && !opened.has(memory))
            give_back(number(memory));
          return code;
        }
        const bool second =
            is_second_client(given_key<cudaIpcMemHandle_t>(call));
        const int code = call.proceed();
        if (code != kSuccess || !second) return code;
        const CUdeviceptr memory = number(*call.at<void**>(0));
        take(call, memory, size_of(memory));
        return code;
      });

  fault("second-chunk-client-costs-memory", {"COST-02"},
        "the second process that imports memory of cuMemCreate takes as much "
        "memory as it maps")
      .on({kImport, kMap, kUnmap}, second_chunk_client_costs_memory);
}

}  // namespace
}  // namespace ipclab::faults
