// SPDX-License-Identifier: Apache-2.0
// Modules, libraries and launches: from the image that nvcc embeds to a grid
// that the interpreter runs.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/stream.h"
#include "ptx/ptx.h"

struct CUfunc_st {
  CUmod_st* module = nullptr;
  const ipclab::ptx::Kernel* kernel = nullptr;
  int dynamic_shared_limit = 0;  ///< bytes, raised by a function attribute
  bool large_clusters = false;   ///< allowed by a function attribute
};

/// A module is loaded for one context: its variables have addresses there.
struct CUmod_st {
  CUcontext context = nullptr;
  bool of_library = false;  ///< cuLibraryUnload ends it
  std::unique_ptr<ipclab::ptx::Module> code;
  std::vector<std::unique_ptr<CUfunc_st>> functions;
};

struct CUkern_st {
  CUlib_st* library = nullptr;
  std::string name;
};

/// A library does not belong to a context; each context gets its own module of
/// the library at the first use.
struct CUlib_st {
  std::string ptx;
  std::mutex mutex;
  std::map<unsigned long long, CUmodule> modules;  ///< by context id
  std::map<std::string, std::unique_ptr<CUkern_st>> kernels;
  std::vector<std::string> kernel_names;
};

namespace ipclab::model {

/// The PTX of an image. If it has several translation units, they follow one
/// another. If the image has no PTX, throws std::runtime_error with a text that
/// says what to do.
std::string joined_ptx(const void* image);

/// If this returns CUDA_ERROR_INVALID_PTX or CUDA_ERROR_NO_BINARY_FOR_GPU, it
/// has printed a line that says why.
CUresult module_load(CUcontext context, const void* image, CUmodule* module);
CUresult module_unload(CUmodule module);
/// Returns CUDA_ERROR_NOT_FOUND if there is no kernel of that name.
CUresult module_function(CUmodule module, const char* name,
                         CUfunction* function);
CUresult module_global(CUmodule module, const char* name, uint64_t* address,
                       uint64_t* size);
std::shared_ptr<CUmod_st> find_module(CUmodule module);

CUresult library_load(const void* image, CUlibrary* library);
CUresult library_unload(CUlibrary library);
CUresult library_kernel(CUlibrary library, const char* name, CUkernel* kernel);
/// The module of a library in a context. The first call for a context loads it.
CUresult library_module(CUlibrary library, CUcontext context, CUmodule* module);
std::shared_ptr<CUlib_st> find_library(CUlibrary library);
CUresult kernel_function(CUkernel kernel, CUcontext context,
                         CUfunction* function);

/// The object of a CUfunction, or of a CUkernel that was cast to a CUfunction.
/// Null if `function` is neither, or if it was unloaded. The result keeps its
/// module.
std::shared_ptr<CUfunc_st> resolve_function(CUfunction function,
                                            CUcontext context);

void destroy_modules(CUcontext context);

struct LaunchShape {
  unsigned grid[3];
  unsigned block[3];
  unsigned dynamic_shared_bytes;
  bool cooperative = false;
  unsigned cluster[3] = {0, 0, 0};  ///< zeros: as the kernel says
};

/// The blocks of a cluster, without and with
/// CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED.
constexpr unsigned kPortableCluster = 8;
constexpr unsigned kLargestCluster = 16;
/// CUDA_ERROR_INVALID_CLUSTER_SIZE for a cluster that this kernel cannot have,
/// CUDA_ERROR_INVALID_VALUE for one that does not divide the grid. Replaces
/// zeros in the shape by the cluster of the kernel, or by one block.
CUresult resolve_cluster(const CUfunc_st& function, LaunchShape* shape);
/// How many blocks of this shape are resident at once on a device.
int resident_blocks(const CUfunc_st& function, const LaunchShape& shape);

/// The number of blocks of this size that fit on one multiprocessor.
int blocks_per_multiprocessor(const CUfunc_st& function, int block_size,
                              size_t dynamic_shared_bytes);

/// Queues a grid in a stream. `parameters` is the same as in cuLaunchKernel. If
/// `packed` is not null, `packed` is the parameter buffer instead.
CUresult launch(const std::shared_ptr<CUfunc_st>& function,
                const LaunchShape& shape, const std::shared_ptr<Stream>& stream,
                void** parameters, const void* packed, size_t packed_size);

}  // namespace ipclab::model
