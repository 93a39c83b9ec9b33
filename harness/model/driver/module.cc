// SPDX-License-Identifier: Apache-2.0
// The driver API: modules, libraries, functions and launches.
#include "core/module.h"

#include <fstream>
#include <sstream>

#include "core/event.h"
#include "core/profile.h"
#include "driver/driver.h"

using namespace ipclab::model;

namespace {

CUresult read_file(const char* name, std::string* text) {
  std::ifstream file(name, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  std::stringstream bytes;
  bytes << file.rdbuf();
  *text = bytes.str();
  return CUDA_SUCCESS;
}

CUresult launch_on(CUfunction function, const LaunchShape& shape,
                   CUstream handle, void** parameters, void** extra) {
  std::shared_ptr<Stream> stream;
  if (CUresult error = enter_stream(handle, &stream)) return error;
  // "A kernel launch will fail if it is issued to a stream that is not
  // associated to the current device."
  if (stream->context() != whole_of(current_context())) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  return launch_kernel(stream, function, shape, parameters, extra);
}

bool is_interprocess(CUevent handle) {
  const std::shared_ptr<CUevent_st> event = find_event(handle);
  return event != nullptr && (event->flags & CU_EVENT_INTERPROCESS) != 0;
}

// Applies a launch attribute to the launch. Returns CUDA_ERROR_NOT_SUPPORTED
// for an interprocess event. Accepts all attributes that it does not name, as
// hints.
CUresult apply(const CUlaunchAttribute& attribute, LaunchShape* shape) {
  switch (attribute.id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      shape->cooperative = attribute.value.cooperative != 0;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: {
      const auto& cluster = attribute.value.clusterDim;
      shape->cluster[0] = cluster.x;
      shape->cluster[1] = cluster.y;
      shape->cluster[2] = cluster.z;
      return CUDA_SUCCESS;
    }
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
      // "The event supplied must not be an interprocess or interop event."
      if (is_interprocess(attribute.value.programmaticEvent.event)) {
        return CUDA_ERROR_NOT_SUPPORTED;  // no code is documented
      }
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
      if (is_interprocess(attribute.value.launchCompletionEvent.event)) {
        return CUDA_ERROR_NOT_SUPPORTED;  // no code is documented
      }
      return CUDA_SUCCESS;
    default:
      return CUDA_SUCCESS;
  }
}

CUresult shape_of(const CUlaunchConfig& config, LaunchShape* shape) {
  *shape = {{config.gridDimX, config.gridDimY, config.gridDimZ},
            {config.blockDimX, config.blockDimY, config.blockDimZ},
            config.sharedMemBytes};
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (CUresult error = apply(config.attrs[i], shape)) return error;
  }
  return CUDA_SUCCESS;
}

// The arguments of the two occupancy functions for clusters.
CUresult enter_cluster(const int* answer, CUfunction handle,
                       const CUlaunchConfig* config,
                       std::shared_ptr<CUfunc_st>* function,
                       LaunchShape* shape) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (answer == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *function = resolve_function(handle, context);
  if (*function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult error = shape_of(*config, shape)) return error;
  return shape->block[0] * shape->block[1] * shape->block[2] == 0
             ? CUDA_ERROR_INVALID_VALUE
             : CUDA_SUCCESS;
}

}  // namespace

CUresult ipclab::model::launch_kernel(const std::shared_ptr<Stream>& stream,
                                      CUfunction handle,
                                      const LaunchShape& shape,
                                      void** parameters, void** extra) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto function = resolve_function(handle, stream->context());
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const void* packed = nullptr;
  size_t packed_size = 0;
  for (; extra != nullptr && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) packed = extra[1];
    if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      packed_size = *static_cast<size_t*>(extra[1]);
    }
  }
  return launch(function, shape, stream, parameters, packed, packed_size);
}

IPCLAB_DRIVER_API CUresult cuModuleLoadDataEx(CUmodule* module,
                                              const void* image, unsigned,
                                              CUjit_option*, void**) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return module_load(context, image, module);
}

IPCLAB_DRIVER_API CUresult cuModuleLoadData(CUmodule* module,
                                            const void* image) {
  return cuModuleLoadDataEx(module, image, 0, nullptr, nullptr);
}

IPCLAB_DRIVER_API CUresult cuModuleLoadFatBinary(CUmodule* module,
                                                 const void* image) {
  return cuModuleLoadDataEx(module, image, 0, nullptr, nullptr);
}

IPCLAB_DRIVER_API CUresult cuModuleLoad(CUmodule* module, const char* name) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (module == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string image;
  if (CUresult error = read_file(name, &image)) return error;
  return module_load(context, image.c_str(), module);
}

IPCLAB_DRIVER_API CUresult cuModuleUnload(CUmodule module) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  const auto found = find_module(module);
  if (found != nullptr && found->of_library) return CUDA_ERROR_NOT_PERMITTED;
  return module_unload(module);
}

IPCLAB_DRIVER_API CUresult cuModuleGetFunction(CUfunction* function,
                                               CUmodule module,
                                               const char* name) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return module_function(module, name, function);
}

IPCLAB_DRIVER_API CUresult cuModuleGetGlobal_v2(CUdeviceptr* address,
                                                size_t* size, CUmodule module,
                                                const char* name) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint64_t place = 0;
  uint64_t bytes = 0;
  if (CUresult error = module_global(module, name, &place, &bytes)) {
    return error;
  }
  if (address != nullptr) *address = place;
  if (size != nullptr) *size = bytes;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuModuleGetFunctionCount(unsigned* count,
                                                    CUmodule module) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  const std::shared_ptr<CUmod_st> found = find_module(module);
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *count = static_cast<unsigned>(found->functions.size());
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuLibraryLoadData(CUlibrary* library,
                                             const void* image, CUjit_option*,
                                             void**, unsigned, CUlibraryOption*,
                                             void**, unsigned) {
  if (CUresult error = enter()) return error;
  if (library == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return library_load(image, library);
}

IPCLAB_DRIVER_API CUresult cuLibraryLoadFromFile(CUlibrary* library,
                                                 const char* name,
                                                 CUjit_option*, void**,
                                                 unsigned, CUlibraryOption*,
                                                 void**, unsigned) {
  if (CUresult error = enter()) return error;
  if (library == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string image;
  if (CUresult error = read_file(name, &image)) return error;
  return library_load(image.c_str(), library);
}

IPCLAB_DRIVER_API CUresult cuLibraryUnload(CUlibrary library) {
  if (CUresult error = enter()) return error;
  return library_unload(library);
}

IPCLAB_DRIVER_API CUresult cuLibraryGetKernel(CUkernel* kernel,
                                              CUlibrary library,
                                              const char* name) {
  if (CUresult error = enter()) return error;
  if (kernel == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return library_kernel(library, name, kernel);
}

IPCLAB_DRIVER_API CUresult cuLibraryGetModule(CUmodule* module,
                                              CUlibrary library) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return library_module(library, context, module);
}

IPCLAB_DRIVER_API CUresult cuLibraryGetGlobal(CUdeviceptr* address,
                                              size_t* size, CUlibrary library,
                                              const char* name) {
  CUmodule module = nullptr;
  if (CUresult error = cuLibraryGetModule(&module, library)) return error;
  return cuModuleGetGlobal_v2(address, size, module, name);
}

IPCLAB_DRIVER_API CUresult cuLibraryGetManaged(CUdeviceptr* address,
                                               size_t* size, CUlibrary library,
                                               const char* name) {
  return cuLibraryGetGlobal(address, size, library, name);
}

IPCLAB_DRIVER_API CUresult cuKernelGetFunction(CUfunction* function,
                                               CUkernel kernel) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return kernel_function(kernel, context, function);
}

IPCLAB_DRIVER_API CUresult cuFuncGetAttribute(int* value,
                                              CUfunction_attribute attribute,
                                              CUfunction handle) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto function = resolve_function(handle, context);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const ipclab::ptx::Kernel& kernel = *function->kernel;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = static_cast<int>(kernel.max_threads_per_block());
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = static_cast<int>(kernel.static_shared_bytes());
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = static_cast<int>(kernel.local_bytes());
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = static_cast<int>(kernel.register_count());
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = profile().capability.major * 10 + profile().capability.minor;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value =
          std::max(function->dynamic_shared_limit,
                   (48 << 10) - static_cast<int>(kernel.static_shared_bytes()));
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
      *value = 0;  // no kernel of PTX requires an attribute of the launch
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      *value = static_cast<int>(
          kernel.required_cluster()[attribute -
                                    CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH]);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      *value = function->large_clusters;
      return CUDA_SUCCESS;
    default:
      *value = 0;
      return attribute < CU_FUNC_ATTRIBUTE_MAX ? CUDA_SUCCESS
                                               : CUDA_ERROR_INVALID_VALUE;
  }
}

IPCLAB_DRIVER_API CUresult cuFuncSetAttribute(CUfunction handle,
                                              CUfunction_attribute attribute,
                                              int value) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  const auto function = resolve_function(handle, context);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT ||
      attribute == CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE) {
    return CUDA_SUCCESS;  // a hint
  }
  if (attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) {
    if (value != 0 && value != 1) return CUDA_ERROR_INVALID_VALUE;
    function->large_clusters = value != 0;
    return CUDA_SUCCESS;
  }
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int fixed = static_cast<int>(function->kernel->static_shared_bytes());
  if (value < 0 || value + fixed > profile().capability.shared_per_block) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  function->dynamic_shared_limit = value;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuFuncLoad(CUfunction) {
  CUcontext context;
  return enter(&context);  // a module is loaded as a whole
}

IPCLAB_DRIVER_API CUresult cuFuncIsLoaded(CUfunctionLoadingState* state,
                                          CUfunction) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) {
  CUcontext context;
  return enter(&context);  // a hint
}

IPCLAB_DRIVER_API CUresult cuFuncGetName(const char** name, CUfunction handle) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  const auto function = resolve_function(handle, context);
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *name = function->kernel->name().c_str();
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuFuncGetModule(CUmodule* module,
                                           CUfunction handle) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  const auto function = resolve_function(handle, context);
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *module = function->module;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuFuncGetParamInfo(CUfunction handle, size_t index,
                                              size_t* offset, size_t* size) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  const auto function = resolve_function(handle, context);
  if (offset == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto& parameters = function->kernel->parameters();
  if (index >= parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = parameters[index].offset;
  if (size != nullptr) *size = parameters[index].size;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index,
                                                size_t* offset, size_t* size) {
  return cuFuncGetParamInfo(reinterpret_cast<CUfunction>(kernel), index, offset,
                            size);
}

IPCLAB_DRIVER_API CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  return cuFuncGetName(name, reinterpret_cast<CUfunction>(kernel));
}

IPCLAB_DRIVER_API CUresult cuKernelGetAttribute(int* value,
                                                CUfunction_attribute attribute,
                                                CUkernel kernel, CUdevice) {
  return cuFuncGetAttribute(value, attribute,
                            reinterpret_cast<CUfunction>(kernel));
}

IPCLAB_DRIVER_API CUresult cuKernelSetAttribute(CUfunction_attribute attribute,
                                                int value, CUkernel kernel,
                                                CUdevice) {
  return cuFuncSetAttribute(reinterpret_cast<CUfunction>(kernel), attribute,
                            value);
}

IPCLAB_DRIVER_API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x,
                                          unsigned grid_y, unsigned grid_z,
                                          unsigned block_x, unsigned block_y,
                                          unsigned block_z, unsigned shared,
                                          CUstream stream, void** parameters,
                                          void** extra) {
  const LaunchShape shape{
      {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared};
  return launch_on(function, shape, stream, parameters, extra);
}

IPCLAB_DRIVER_API CUresult cuLaunchCooperativeKernel(
    CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
    CUstream stream, void** parameters) {
  const LaunchShape shape{
      {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, true};
  return launch_on(function, shape, stream, parameters, nullptr);
}

IPCLAB_DRIVER_API CUresult cuLaunchKernelEx(const CUlaunchConfig* config,
                                            CUfunction function,
                                            void** parameters, void** extra) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  LaunchShape shape;
  if (CUresult error = shape_of(*config, &shape)) return error;
  const CUresult error =
      launch_on(function, shape, config->hStream, parameters, extra);
  if (error != CUDA_SUCCESS) return error;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    CUevent event = nullptr;
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) {
      event = attribute.value.programmaticEvent.event;
    } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
      event = attribute.value.launchCompletionEvent.event;
    }
    if (event == nullptr) continue;
    if (CUresult failed = cuEventRecord(event, config->hStream)) return failed;
  }
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, CUfunction handle, int block_size, size_t shared, unsigned) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (blocks == nullptr || block_size <= 0) return CUDA_ERROR_INVALID_VALUE;
  const auto function = resolve_function(handle, context);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *blocks = blocks_per_multiprocessor(*function, block_size, shared);
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(
    int* blocks, CUfunction function, int block_size, size_t shared) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      blocks, function, block_size, shared, 0);
}

IPCLAB_DRIVER_API CUresult cuOccupancyMaxActiveClusters(
    int* clusters, CUfunction handle, const CUlaunchConfig* config) {
  std::shared_ptr<CUfunc_st> function;
  LaunchShape shape;
  if (CUresult error =
          enter_cluster(clusters, handle, config, &function, &shape)) {
    return error;
  }
  if (CUresult error = resolve_cluster(*function, &shape)) return error;
  *clusters =
      resident_blocks(*function, shape) /
      static_cast<int>(shape.cluster[0] * shape.cluster[1] * shape.cluster[2]);
  return CUDA_SUCCESS;
}

// The largest cluster is a power of two, as on GPUs.
IPCLAB_DRIVER_API CUresult cuOccupancyMaxPotentialClusterSize(
    int* blocks, CUfunction handle, const CUlaunchConfig* config) {
  std::shared_ptr<CUfunc_st> function;
  LaunchShape shape;
  if (CUresult error =
          enter_cluster(blocks, handle, config, &function, &shape)) {
    return error;
  }
  const int resident = resident_blocks(*function, shape);
  auto size = static_cast<int>(function->large_clusters ? kLargestCluster
                                                        : kPortableCluster);
  while (size > resident) size /= 2;
  *blocks = size;
  return CUDA_SUCCESS;
}

IPCLAB_DRIVER_API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(
    int* min_grid, int* block, CUfunction handle,
    CUoccupancyB2DSize shared_of_block, size_t shared, int limit, unsigned) {
  CUcontext context;
  if (CUresult error = enter(&context)) return error;
  if (min_grid == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto function = resolve_function(handle, context);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  int most = static_cast<int>(function->kernel->max_threads_per_block());
  if (limit > 0) most = std::min(most, limit);
  int best = 0;
  for (int size = most; size >= 32; size -= 32) {
    const size_t bytes =
        shared_of_block != nullptr ? shared_of_block(size) : shared;
    const int threads =
        size * blocks_per_multiprocessor(*function, size, bytes);
    if (threads <= best) continue;
    best = threads;
    *block = size;
    *min_grid = 4 * threads / size;
  }
  return best > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

IPCLAB_DRIVER_API CUresult cuOccupancyMaxPotentialBlockSize(
    int* min_grid, int* block, CUfunction function,
    CUoccupancyB2DSize shared_of_block, size_t shared, int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(
      min_grid, block, function, shared_of_block, shared, limit, 0);
}
