// SPDX-License-Identifier: Apache-2.0
// Launches: first the checks of the driver; then, when the stream reaches the
// launch, the interpreter.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/device.h"
#include "core/heap.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/module.h"
#include "core/profile.h"
#include "core/race.h"

namespace ipclab::model {
namespace {

constexpr unsigned kSharedDefault = 48 << 10;
constexpr int kMultiprocessors = 4;

// Seconds after which a kernel counts as endless.
double kernel_limit() {
  static const double limit = [] {
    const char* variable = std::getenv("IPCLAB_MODEL_KERNEL_SECONDS");
    const double seconds = variable != nullptr ? std::atof(variable) : 0;
    return seconds > 0 ? seconds : 60.0;
  }();
  return limit;
}

bool fits(const LaunchShape& shape) {
  const unsigned limits[6] = {2147483647u, 65535, 65535, 1024, 1024, 64};
  for (int i = 0; i < 3; ++i) {
    if (shape.grid[i] == 0 || shape.grid[i] > limits[i]) return false;
    if (shape.block[i] == 0 || shape.block[i] > limits[i + 3]) return false;
  }
  return true;
}

// Registered memory lies outside the window. So the interpreter looks up each
// access to registered memory, as it does for pages with kAsk.
void* lookup(void*, uint64_t address, uint64_t size, bool) {
  const Locked machine;
  const Allocation* found = machine->memory.find(address);
  if (found == nullptr || address + size > found->end()) return nullptr;
  if (machine->window.contains(address)) return machine->window.alias(address);
  return found->kind == Kind::kRegistered ? reinterpret_cast<void*>(address)
                                          : nullptr;
}

// The memory that a kernel of this context may access, for the interpreter.
ptx::AddressSpace address_space(CUcontext context) {
  const Window::View view = Locked()->window.view(context->device);
  ptx::AddressSpace space;
  space.window_begin = view.begin;
  space.window_size = view.size;
  space.alias = view.alias;
  space.page_access = view.access;
  space.lookup = lookup;
  space.allocate = [](void* heap, uint64_t size) {
    const uint64_t address = heap_allocate(static_cast<CUcontext>(heap), size);
    if (race::on() && address != 0) race::renew(address, size);
    return address;
  };
  space.release = [](void* heap, uint64_t address) {
    heap_free(static_cast<CUcontext>(heap), address);
  };
  space.heap = context;
  return space;
}

}  // namespace

int blocks_per_multiprocessor(const CUfunc_st& function, int block_size,
                              size_t dynamic_shared_bytes) {
  const ptx::Kernel& kernel = *function.kernel;
  if (block_size > static_cast<int>(kernel.max_threads_per_block())) return 0;
  const size_t shared =
      kernel.static_shared_bytes() + dynamic_shared_bytes + (1 << 10);
  const Capability& gpu = profile().capability;
  const size_t by_shared =
      static_cast<size_t>(gpu.shared_per_multiprocessor) / shared;
  return std::min({gpu.threads_per_multiprocessor / block_size,
                   gpu.blocks_per_multiprocessor, static_cast<int>(by_shared)});
}

int resident_blocks(const CUfunc_st& function, const LaunchShape& shape) {
  const auto threads =
      static_cast<int>(shape.block[0] * shape.block[1] * shape.block[2]);
  return kMultiprocessors * blocks_per_multiprocessor(
                                function, threads, shape.dynamic_shared_bytes);
}

CUresult resolve_cluster(const CUfunc_st& function, LaunchShape* shape) {
  const unsigned* required = function.kernel->required_cluster();
  uint64_t blocks = 1;
  for (int k = 0; k < 3; ++k) {
    unsigned& size = shape->cluster[k];
    if (size == 0) size = std::max(required[k], 1u);
    if (required[k] != 0 && size != required[k]) {
      return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    }
    blocks *= size;
  }
  if (blocks > (function.large_clusters ? kLargestCluster : kPortableCluster)) {
    return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  }
  for (int k = 0; k < 3; ++k) {
    // "The grid dimension must be divisible by the cluster dimension."
    if (shape->grid[k] % shape->cluster[k] != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

CUresult launch(const std::shared_ptr<CUfunc_st>& function,
                const LaunchShape& wanted,
                const std::shared_ptr<Stream>& stream, void** parameters,
                const void* packed, size_t packed_size) {
  const ptx::Kernel& kernel = *function->kernel;
  CUcontext context = stream->context();
  if (!kernel.unsupported().empty()) {
    say("kernel " + kernel.name() +
        " cannot run on the model: " + kernel.unsupported() + " (error " +
        std::to_string(CUDA_ERROR_INVALID_PTX) +
        "; the context cannot be used any more)");
    // A program that looks only at a later synchronisation must not go on with
    // data that the kernel has not written.
    int none = 0;
    context->sticky.compare_exchange_strong(none, CUDA_ERROR_INVALID_PTX);
    return CUDA_ERROR_INVALID_PTX;
  }
  LaunchShape shape = wanted;
  if (!fits(shape)) return CUDA_ERROR_INVALID_VALUE;
  const unsigned threads = shape.block[0] * shape.block[1] * shape.block[2];
  if (threads > 1024) return CUDA_ERROR_INVALID_VALUE;
  if (threads > kernel.max_threads_per_block()) {
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  }
  const unsigned allowed = std::max(
      kSharedDefault - std::min(kSharedDefault, kernel.static_shared_bytes()),
      static_cast<unsigned>(function->dynamic_shared_limit));
  if (shape.dynamic_shared_bytes > allowed) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = resolve_cluster(*function, &shape)) return error;
  if (shape.cooperative) {
    const uint64_t blocks =
        uint64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2];
    if (blocks > static_cast<uint64_t>(resident_blocks(*function, shape))) {
      return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    }
  }

  std::vector<unsigned char> arguments(kernel.parameter_bytes());
  if (packed != nullptr) {
    // A shorter buffer gives the first parameters: NCCL declares 4 KiB and
    // passes what it needs.
    std::memcpy(arguments.data(), packed,
                std::min(packed_size, arguments.size()));
  } else if (!kernel.parameters().empty()) {
    if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < kernel.parameters().size(); ++i) {
      const auto& parameter = kernel.parameters()[i];
      std::memcpy(arguments.data() + parameter.offset, parameters[i],
                  parameter.size);
    }
  }

  // The module must exist as long as the kernel runs.
  stream->submit(
      {CU_GRAPH_NODE_TYPE_KERNEL,
       [function, context, shape, &kernel, arguments = std::move(arguments)] {
         const ptx::AddressSpace space = address_space(context);
         ptx::Launch grid;
         grid.kernel = &kernel;
         std::copy(shape.grid, shape.grid + 3, grid.grid);
         std::copy(shape.block, shape.block + 3, grid.block);
         std::copy(shape.cluster, shape.cluster + 3, grid.cluster);
         grid.dynamic_shared_bytes = shape.dynamic_shared_bytes;
         grid.parameters = arguments.data();
         grid.space = &space;
         grid.limit_seconds = kernel_limit();
         grid.cooperative = shape.cooperative;
         std::unique_ptr<ptx::Observer> observer;
         if (race::on()) observer = race::watch_kernel(grid);
         grid.observer = observer.get();
         const std::optional<ptx::Fault> fault = ptx::run(grid);
         if (!fault) return;
         say(fault->what + " (error " + std::to_string(fault->code) +
             " on device " + std::to_string(context->device) +
             "; the context cannot be used any more)");
         int none = 0;
         context->sticky.compare_exchange_strong(none, fault->code);
       }});
  return CUDA_SUCCESS;
}

}  // namespace ipclab::model
