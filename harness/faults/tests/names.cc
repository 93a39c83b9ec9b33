// Allocates twice through one of the ways in which programs get a function,
// and prints the code of the second call. test_faults.py runs this program
// without a fault, and with faults that refuse the second call.
//
// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <string>

namespace {

using Allocate = decltype(cuMemAlloc);
using GetProcAddress = decltype(cuGetProcAddress);

void* driver() { return dlopen("libcuda.so.1", RTLD_NOW); }

Allocate* by_dlsym() {
  return reinterpret_cast<Allocate*>(dlsym(driver(), "cuMemAlloc_v2"));
}

Allocate* by_proc_address() {
  const auto get =
      reinterpret_cast<GetProcAddress*>(dlsym(driver(), "cuGetProcAddress_v2"));
  void* entry = nullptr;
  get("cuMemAlloc", &entry, CUDA_VERSION, CU_GET_PROC_ADDRESS_DEFAULT, nullptr);
  return reinterpret_cast<Allocate*>(entry);
}

template <class Function>
Function* by_entry_point(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion(name, &entry, CUDART_VERSION,
                                   cudaEnableDefault, &found);
  return reinterpret_cast<Function*>(entry);
}

/// Allocates in stream order by the runtime or by the driver API. Returns the
/// code of the call.
int allocate_in_stream_order(bool by_runtime) {
  void* memory = nullptr;
  if (by_runtime) return cudaMallocAsync(&memory, 4096, nullptr);
  CUdeviceptr address = 0;
  return by_entry_point<decltype(cuMemAllocAsync)>("cuMemAllocAsync")(
      &address, 4096, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc == 2 ? argv[1] : "";
  if (cudaFree(nullptr) != cudaSuccess) return 77;
  int code = 0;
  for (int i = 0; i < 2; ++i) {
    if (way == "linked") {
      void* memory = nullptr;
      code = cudaMalloc(&memory, 4096);
      continue;
    }
    if (way == "async_runtime" || way == "async_driver") {
      code = allocate_in_stream_order(way == "async_runtime");
      continue;
    }
    if (way == "next") {  // after this program comes the library of faults
      using Malloc = cudaError_t(void**, size_t);
      void* memory = nullptr;
      code = reinterpret_cast<Malloc*>(dlsym(RTLD_NEXT, "cudaMalloc"))(&memory,
                                                                       4096);
      continue;
    }
    CUdeviceptr memory = 0;
    Allocate* const allocate = way == "dlsym"          ? by_dlsym()
                               : way == "proc_address" ? by_proc_address()
                               : way == "entry_point"
                                   ? by_entry_point<Allocate>("cuMemAlloc")
                                   : nullptr;
    if (allocate == nullptr) return 2;
    code = allocate(&memory, 4096);
  }
  std::printf("%d\n", code);
}
