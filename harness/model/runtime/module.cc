// SPDX-License-Identifier: Apache-2.0
// The runtime API: registration of device code and launches. nvcc generates the
// calls that begin with __cuda; their prototypes are in crt/host_runtime.h.
#include "runtime/module.h"

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ptx/per_thread.h"
#include "runtime/runtime.h"

using ipclab::of_this_thread;
using namespace ipclab::runtime;

namespace {

// One fat binary of the program. It is not read before its first use.
struct Binary {
  const void* image = nullptr;
  CUlibrary library = nullptr;
};

struct Symbol {
  Binary* binary = nullptr;
  std::string name;
  void** managed_pointer = nullptr;
};

struct Registered {
  std::mutex mutex;
  std::map<const void*, Symbol> kernels;    // by host function
  std::map<const void*, Symbol> variables;  // by shadow variable
};

Registered& registered() {
  static auto& only = *new Registered;
  return only;
}

// The caller holds the mutex.
CUresult load(Binary* binary) {
  if (binary->library != nullptr) return CUDA_SUCCESS;
  return cuLibraryLoadData(&binary->library, binary->image, nullptr, nullptr, 0,
                           nullptr, nullptr, 0);
}

cudaError_t find_kernel(const void* function, CUkernel* kernel) {
  const std::lock_guard lock(registered().mutex);
  const auto found = registered().kernels.find(function);
  if (found == registered().kernels.end()) {
    return cudaErrorInvalidDeviceFunction;
  }
  if (CUresult error = load(found->second.binary)) {
    return static_cast<cudaError_t>(error);
  }
  const CUresult error = cuLibraryGetKernel(
      kernel, found->second.binary->library, found->second.name.c_str());
  return error == CUDA_ERROR_NOT_FOUND ? cudaErrorInvalidDeviceFunction
                                       : static_cast<cudaError_t>(error);
}

// On the host, a __managed__ variable is a pointer. This function sets all
// these pointers.
cudaError_t find_managed() {
  const std::lock_guard lock(registered().mutex);
  for (auto& entry : registered().variables) {
    Symbol& symbol = entry.second;
    if (symbol.managed_pointer == nullptr) continue;
    if (CUresult error = load(symbol.binary)) {
      return static_cast<cudaError_t>(error);
    }
    CUdeviceptr address = 0;
    size_t size = 0;
    if (CUresult error = cuLibraryGetManaged(
            &address, &size, symbol.binary->library, symbol.name.c_str())) {
      return static_cast<cudaError_t>(error);
    }
    *symbol.managed_pointer = reinterpret_cast<void*>(address);
  }
  return cudaSuccess;
}

struct Configuration {
  dim3 grid;
  dim3 block;
  size_t shared;
  cudaStream_t stream;
};

std::vector<Configuration>& configurations() {
  return of_this_thread<std::vector<Configuration>, Configuration>();
}

bool is_configuration(dim3 grid, dim3 block) {
  return grid.x != 0 && grid.y != 0 && grid.z != 0 && grid.y <= 65535 &&
         grid.z <= 65535 && grid.x <= 2147483647u && block.x != 0 &&
         block.y != 0 && block.z != 0 && block.x <= 1024 && block.y <= 1024 &&
         block.z <= 64 && block.x * block.y * block.z <= 1024;
}

// Both APIs use one type for the attributes.
CUlaunchConfig configuration_of(const cudaLaunchConfig_t& config) {
  CUlaunchConfig converted{};
  converted.gridDimX = config.gridDim.x;
  converted.gridDimY = config.gridDim.y;
  converted.gridDimZ = config.gridDim.z;
  converted.blockDimX = config.blockDim.x;
  converted.blockDimY = config.blockDim.y;
  converted.blockDimZ = config.blockDim.z;
  converted.sharedMemBytes = static_cast<unsigned>(config.dynamicSmemBytes);
  converted.hStream = config.stream;
  converted.attrs = reinterpret_cast<CUlaunchAttribute*>(config.attrs);
  converted.numAttrs = config.numAttrs;
  return converted;
}

using Occupancy = CUresult (*)(int*, CUfunction, const CUlaunchConfig*);
cudaError_t occupancy(Occupancy question, int* answer, const void* function,
                      const cudaLaunchConfig_t* config) {
  IPCLAB_BIND();
  if (config == nullptr) return remember(cudaErrorInvalidValue);
  CUfunction kernel = nullptr;
  if (cudaError_t error = ipclab::runtime::kernel_of(function, &kernel)) {
    return remember(error);
  }
  const CUlaunchConfig converted = configuration_of(*config);
  return remember(question(answer, kernel, &converted));
}

cudaError_t launch(CUkernel kernel, dim3 grid, dim3 block, void** arguments,
                   size_t shared, cudaStream_t stream, bool cooperative) {
  IPCLAB_BIND();
  if (!is_configuration(grid, block)) {
    return remember(cudaErrorInvalidConfiguration);
  }
  auto* function = reinterpret_cast<CUfunction>(kernel);
  const auto bytes = static_cast<unsigned>(shared);
  return remember(cooperative ? cuLaunchCooperativeKernel(
                                    function, grid.x, grid.y, grid.z, block.x,
                                    block.y, block.z, bytes, stream, arguments)
                              : cuLaunchKernel(function, grid.x, grid.y, grid.z,
                                               block.x, block.y, block.z, bytes,
                                               stream, arguments, nullptr));
}

}  // namespace

cudaError_t ipclab::runtime::kernel_of(const void* function,
                                       CUfunction* kernel) {
  CUkernel found = nullptr;
  const cudaError_t error = find_kernel(function, &found);
  *kernel = reinterpret_cast<CUfunction>(found);
  return error;
}

cudaError_t ipclab::runtime::find_symbol(const void* shadow,
                                         CUdeviceptr* address, size_t* size) {
  const std::lock_guard lock(registered().mutex);
  const auto found = registered().variables.find(shadow);
  if (found == registered().variables.end()) return cudaErrorInvalidSymbol;
  if (CUresult error = load(found->second.binary)) {
    return static_cast<cudaError_t>(error);
  }
  const CUresult error = cuLibraryGetGlobal(
      address, size, found->second.binary->library, found->second.name.c_str());
  return error == CUDA_ERROR_NOT_FOUND ? cudaErrorInvalidSymbol
                                       : static_cast<cudaError_t>(error);
}

IPCLAB_RUNTIME_API void** __cudaRegisterFatBinary(void* image) {
  auto* binary = new Binary;
  binary->image = image;
  return reinterpret_cast<void**>(binary);
}

IPCLAB_RUNTIME_API void __cudaRegisterFatBinaryEnd(void**) {}

IPCLAB_RUNTIME_API void __cudaUnregisterFatBinary(void**) {
  // The binary stays: its process or library ends, but a stream may still run
  // its code.
}

IPCLAB_RUNTIME_API char __cudaInitModule(void**) {
  if (bind() != cudaSuccess) return 0;
  return find_managed() == cudaSuccess ? 1 : 0;
}

IPCLAB_RUNTIME_API void __cudaRegisterFunction(void** binary,
                                               const char* function, char*,
                                               const char* name, int, uint3*,
                                               uint3*, dim3*, dim3*, int*) {
  const std::lock_guard lock(registered().mutex);
  registered().kernels[function] = {reinterpret_cast<Binary*>(binary), name,
                                    nullptr};
}

IPCLAB_RUNTIME_API void __cudaRegisterVar(void** binary, char* shadow, char*,
                                          const char* name, int, size_t, int,
                                          int) {
  const std::lock_guard lock(registered().mutex);
  registered().variables[shadow] = {reinterpret_cast<Binary*>(binary), name,
                                    nullptr};
}

IPCLAB_RUNTIME_API void __cudaRegisterManagedVar(void** binary, void** shadow,
                                                 char*, const char* name, int,
                                                 size_t, int, int) {
  const std::lock_guard lock(registered().mutex);
  registered().variables[shadow] = {reinterpret_cast<Binary*>(binary), name,
                                    shadow};
}

IPCLAB_RUNTIME_API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block,
                                                        size_t shared,
                                                        CUstream_st* stream) {
  configurations().push_back({grid, block, shared, stream});
  return 0;
}

IPCLAB_RUNTIME_API cudaError_t __cudaPopCallConfiguration(dim3* grid,
                                                          dim3* block,
                                                          size_t* shared,
                                                          void* stream) {
  if (configurations().empty()) return remember(cudaErrorMissingConfiguration);
  const Configuration top = configurations().back();
  configurations().pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared = top.shared;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  return cudaSuccess;
}

// The launch stub keeps the handle in a static variable until the program ends,
// also after an error. So this call must not fail for a temporary reason. The
// host function itself is the handle.
IPCLAB_RUNTIME_API cudaError_t __cudaGetKernel(cudaKernel_t* kernel,
                                               const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

IPCLAB_RUNTIME_API cudaError_t cudaLaunchKernel(const void* function, dim3 grid,
                                                dim3 block, void** arguments,
                                                size_t shared,
                                                cudaStream_t stream) {
  IPCLAB_BIND();
  CUkernel kernel = nullptr;
  if (cudaError_t error = find_kernel(function, &kernel)) {
    return remember(error);
  }
  return launch(kernel, grid, block, arguments, shared, stream, false);
}

IPCLAB_RUNTIME_API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel,
                                                  dim3 grid, dim3 block,
                                                  void** arguments,
                                                  size_t shared,
                                                  cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

IPCLAB_RUNTIME_API cudaError_t cudaLaunchCooperativeKernel(
    const void* function, dim3 grid, dim3 block, void** arguments,
    size_t shared, cudaStream_t stream) {
  IPCLAB_BIND();
  CUkernel kernel = nullptr;
  if (cudaError_t error = find_kernel(function, &kernel)) {
    return remember(error);
  }
  return launch(kernel, grid, block, arguments, shared, stream, true);
}

IPCLAB_RUNTIME_API cudaError_t cudaLaunchKernelExC(
    const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  IPCLAB_BIND();
  if (config == nullptr) return remember(cudaErrorInvalidValue);
  CUfunction kernel = nullptr;
  if (cudaError_t error = kernel_of(function, &kernel)) {
    return remember(error);
  }
  if (!is_configuration(config->gridDim, config->blockDim)) {
    return remember(cudaErrorInvalidConfiguration);
  }
  const CUlaunchConfig converted = configuration_of(*config);
  return remember(cuLaunchKernelEx(&converted, kernel, arguments, nullptr));
}

IPCLAB_RUNTIME_API cudaError_t cudaGetKernel(cudaKernel_t* kernel,
                                             const void* function) {
  IPCLAB_BIND();
  CUkernel found = nullptr;
  const cudaError_t error = find_kernel(function, &found);
  // The host function is the handle, as in __cudaGetKernel.
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return remember(error);
}

IPCLAB_RUNTIME_API cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function,
                                                   const void* symbol) {
  IPCLAB_BIND();
  CUkernel kernel = nullptr;
  if (cudaError_t error = find_kernel(symbol, &kernel)) {
    return remember(error);
  }
  return remember(cuKernelGetFunction(function, kernel));
}

IPCLAB_RUNTIME_API cudaError_t
cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  IPCLAB_BIND();
  if (attributes == nullptr) return remember(cudaErrorInvalidValue);
  CUfunction kernel = nullptr;
  if (cudaError_t error = kernel_of(function, &kernel)) {
    return remember(error);
  }
  const auto get = [kernel](CUfunction_attribute attribute) {
    int value = 0;
    cuFuncGetAttribute(&value, attribute, kernel);
    return value;
  };
  *attributes = {};
  attributes->sharedSizeBytes = get(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  attributes->localSizeBytes = get(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
  attributes->maxThreadsPerBlock = get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  attributes->numRegs = get(CU_FUNC_ATTRIBUTE_NUM_REGS);
  attributes->ptxVersion = get(CU_FUNC_ATTRIBUTE_PTX_VERSION);
  attributes->binaryVersion = get(CU_FUNC_ATTRIBUTE_BINARY_VERSION);
  attributes->maxDynamicSharedSizeBytes =
      get(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  return cudaSuccess;
}

IPCLAB_RUNTIME_API cudaError_t cudaFuncSetAttribute(const void* function,
                                                    cudaFuncAttribute attribute,
                                                    int value) {
  IPCLAB_BIND();
  CUfunction kernel = nullptr;
  if (cudaError_t error = kernel_of(function, &kernel)) {
    return remember(error);
  }
  return remember(cuFuncSetAttribute(
      kernel, static_cast<CUfunction_attribute>(attribute), value));
}

IPCLAB_RUNTIME_API cudaError_t cudaFuncSetCacheConfig(const void*,
                                                      cudaFuncCache) {
  return bind();  // a hint
}

IPCLAB_RUNTIME_API cudaError_t
cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks,
                                                       const void* function,
                                                       int block_size,
                                                       size_t shared,
                                                       unsigned flags) {
  IPCLAB_BIND();
  CUfunction kernel = nullptr;
  if (cudaError_t error = kernel_of(function, &kernel)) {
    return remember(error);
  }
  return remember(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      blocks, kernel, block_size, shared, flags));
}

IPCLAB_RUNTIME_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int* blocks, const void* function, int block_size, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      blocks, function, block_size, shared, 0);
}

IPCLAB_RUNTIME_API cudaError_t cudaOccupancyMaxActiveClusters(
    int* clusters, const void* function, const cudaLaunchConfig_t* config) {
  return occupancy(cuOccupancyMaxActiveClusters, clusters, function, config);
}

IPCLAB_RUNTIME_API cudaError_t cudaOccupancyMaxPotentialClusterSize(
    int* blocks, const void* function, const cudaLaunchConfig_t* config) {
  return occupancy(cuOccupancyMaxPotentialClusterSize, blocks, function,
                   config);
}
