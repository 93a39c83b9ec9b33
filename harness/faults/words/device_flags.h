// Words about words in memory for which streams wait.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <unistd.h>

#include <limits>
#include <type_traits>

#include "harness/faults/words/streams.h"
#include "harness/faults/words/words.h"

namespace ipclab::faults {

inline bool is_copy(Call& call) { return call.is("cudaMemcpyAsync"); }

/// The first write after a graph waits for the work before the graph, but not
/// for the graph itself.
inline int not_held_by_graph(Call& call) {
  static Table<cudaStream_t> after_graph;
  const auto stream = call.value<cudaStream_t>(kStream);
  if (call.is("cudaGraphLaunch")) {
    if (is_captured(stream)) return call.proceed();
    cudaEventRecord(mark_of(stream), stream);
    after_graph.put(stream);
    return call.proceed();
  }
  return after_graph.erase(stream) && is_busy(stream) &&
                 !call.is("cudaLaunchKernel") && !call.is("cudaStreamDestroy")
             ? begins_at(mark_of(stream), call)
             : call.proceed();
}

/// Is this pinned host memory?
inline bool is_pinned_host_memory(CUdeviceptr address) {
  return attribute_of_further(address, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) ==
             CU_MEMORYTYPE_HOST &&
         attribute_of_further(address, CU_POINTER_ATTRIBUTE_IS_MANAGED) == 0;
}

inline constexpr unsigned kCondition = 3;

/// A wait for a greater value compares signed numbers. (No signed number is
/// greater than the largest one.)
template <class Signed>
int signed_comparison(Call& call) {
  using Number = std::make_unsigned_t<Signed>;
  auto& flags = call.at<unsigned>(3);
  if (flags == CU_STREAM_WAIT_VALUE_GEQ &&
      call.at<Number>(2) ==
          static_cast<Number>(std::numeric_limits<Signed>::max())) {
    flags = CU_STREAM_WAIT_VALUE_EQ;
    call.fired();
  }
  return call.proceed();
}

inline constexpr unsigned kEqual = CU_STREAM_WAIT_VALUE_EQ;

inline constexpr unsigned kGreater = CU_STREAM_WAIT_VALUE_GEQ;

inline constexpr unsigned kAnd = CU_STREAM_WAIT_VALUE_AND;

/// The condition of a wait.
inline unsigned& condition(Call& wait) { return wait.at<unsigned>(3); }

inline bool is_other_thread() { return gettid() != getpid(); }

}  // namespace ipclab::faults
