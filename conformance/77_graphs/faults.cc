// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/types.h>
#include <unistd.h>

#include <cstring>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

// Proceeds with an instantiation. A new graph may have the address of an
// earlier one, of which `known` forgets everything.
template <class Known>
int instantiated(Call& call, Known& known) {
  const int code = call.proceed();
  if (code == kSuccess) known.erase(*call.at<void**>(0));
  return code;
}

bool is_captured_here(cudaStream_t stream) {
  using Ask = cudaError_t(cudaStream_t, cudaStreamCaptureStatus*);
  static const auto ask =
      reinterpret_cast<Ask*>(resolve_runtime("cudaStreamIsCapturing"));
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return ask != nullptr && ask(stream, &status) == cudaSuccess &&
         status == cudaStreamCaptureStatusActive;
}

int not_captured(Call& call) {
  return is_captured_here(call.value<cudaStream_t>(kStream)) ? lost(call)
                                                             : call.proceed();
}

int captured_copy_reads_then(Call& call) {
  auto& source = call.at<CUdeviceptr>(1);
  const size_t bytes = call.at<size_t>(2);
  if (!is_captured(call.value<cudaStream_t>(kStream)) || !is_opened(source))
    return call.proceed();
  auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  DRIVER_CALL(cuThreadExchangeStreamCaptureMode)(&mode);
  void* then = nullptr;
  if (cudaMalloc(&then, bytes) == cudaSuccess) {
    cudaMemcpyAsync(then, call.at<void*>(1), bytes, cudaMemcpyDefault,
                    private_stream());
    cudaStreamSynchronize(private_stream());
    source = reinterpret_cast<CUdeviceptr>(then);
    call.fired();
  }
  DRIVER_CALL(cuThreadExchangeStreamCaptureMode)(&mode);
  return call.proceed();
}

// Launches a graph that does not wait for the earlier work of its stream.
int launched_ahead(Call& launch) {
  auto& stream = launch.at<cudaStream_t>(1);
  const cudaStream_t own = stream;
  stream = private_stream();
  if (is_busy(own)) launch.fired();
  const int code = launch.proceed();
  cudaEventRecord(mark_of(stream), stream);
  cudaStreamWaitEvent(own, mark_of(stream), 0);
  stream = own;
  return code;
}

// Does the call make a graph that can be launched? It may have the number of an
// earlier graph.
bool makes_graph(Call& call) { return call.is("cudaGraphInstantiate"); }

int captured_upload_reads_then(Call& copy) {
  auto& source = copy.at<CUdeviceptr>(1);
  const size_t bytes = copy.at<size_t>(2);
  unsigned type = CU_MEMORYTYPE_HOST;  // of memory that CUDA does not know
  DRIVER_CALL(cuPointerGetAttribute)
  (&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, source);
  if (!is_captured(copy.value<cudaStream_t>(kStream)) ||
      type == CU_MEMORYTYPE_DEVICE)
    return copy.proceed();
  auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  DRIVER_CALL(cuThreadExchangeStreamCaptureMode)(&mode);
  void* then = nullptr;
  if (cudaHostAlloc(&then, bytes, cudaHostAllocDefault) == cudaSuccess) {
    std::memcpy(then, copy.at<const void*>(1), bytes);
    source = number(then);
    copy.fired();
  }
  DRIVER_CALL(cuThreadExchangeStreamCaptureMode)(&mode);
  return copy.proceed();
}

// Launches of one graph in different streams do not wait for each other, or
// only those of different threads do not.
template <bool of_threads>
int launches_overlap(Call& call) {
  struct Twin {
    cudaGraphExec_t graph = nullptr;
    cudaStream_t first = nullptr;
    pid_t thread = 0;
    bool launched = false;
  };
  static Table<cudaGraphExec_t, Twin> twins;
  if (call.is("cudaGraphInstantiate")) {
    const int code = call.proceed();
    Twin twin;
    if (code == kSuccess &&
        cudaGraphInstantiate(&twin.graph, call.at<cudaGraph_t>(1), 0) ==
            cudaSuccess)
      twins.put(*call.at<cudaGraphExec_t*>(0), twin);
    return code;
  }
  auto& graph = call.at<cudaGraphExec_t>(0);
  const auto stream = call.at<cudaStream_t>(1);
  Twin twin = twins.get(graph);
  if (twin.graph == nullptr) return call.proceed();
  if (!twin.launched) {
    twin.launched = true;
    twin.first = stream;
    twin.thread = gettid();
    twins.put(graph, twin);
  } else if (twin.first != stream && (!of_threads || twin.thread != gettid())) {
    if (is_busy(twin.first)) call.fired();
    graph = twin.graph;
  }
  return call.proceed();
}

// Work of one kind after a launch of a graph does not wait for the graph.
int graph_holds_not(Call& call) {
  static Table<cudaStream_t> launched;
  auto& stream = call.value<cudaStream_t>(kStream);
  if (call.is("cudaGraphLaunch")) {
    const int code = call.proceed();
    launched.put(stream);
    mark(stream);
    return code;
  }
  if (!launched.has(stream) || !is_busy(stream) || !is_pending(mark_of(stream)))
    return call.proceed();
  stream = private_stream();
  call.fired();
  return call.proceed();
}

int exporter_wait_holds_no_graphs(Call& call) {
  static Table<cudaStream_t> waited;
  auto& stream = call.value<cudaStream_t>(kStream);
  if (waits_for_event(call) && uses_own(call)) {
    mark(stream);
    waited.put(stream);
    return call.proceed();
  }
  if (!waited.erase(stream) || !call.is("cudaGraphLaunch") || !is_busy(stream))
    return call.proceed();
  const cudaStream_t own = stream;
  cudaStreamWaitEvent(private_stream(), mark_of(own), 0);
  stream = private_stream();
  call.fired();
  const int code = call.proceed();
  cudaEvent_t done = nullptr;
  cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
  cudaEventRecord(done, private_stream());
  cudaStreamWaitEvent(own, done, 0);
  cudaEventDestroy(done);
  return code;
}

// A captured call is lost if `applies` is true.
int captured_call_lost(Call& call, bool applies) {
  return applies && is_captured(call.value<cudaStream_t>(kStream))
             ? lost(call)
             : call.proceed();
}

// For memsets of any kind.
int captured_set_lost(Call& call) {
  return captured_call_lost(call, is_opened(call.at<CUdeviceptr>(0)));
}

bool is_host_memory(CUdeviceptr address) {
  unsigned type = 0;
  return DRIVER_CALL(cuPointerGetAttribute)(&type,
                                            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                            address) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_HOST;
}

FAULTS {
  fault("wait-holds-no-graphs", {"GRPH-01"},
        "the first graph after the wait for an imported event does not wait")
      .on({kOpenEvent, kDestroyEvent, kWaitEvent, kLaunchGraph, kDestroyStream},
          [](Call& call) -> int {
            static Table<cudaStream_t> waited;
            if (call.is("cudaGraphLaunch")) {
              auto& stream = call.value<cudaStream_t>(kStream);
              return waited.erase(stream) && is_busy(stream)
                         ? starts_at_mark(call, stream)
                         : call.proceed();
            }
            return marked_wait(call, waited);
          });

  fault("record-skips-graphs", {"GRPH-01"},
        "a record does not cover the last graph before it, nor the work after "
        "this graph")
      .on({kCreateEvent, kOpenEvent, kDestroyEvent, kRecord, kLaunchGraph,
           kDestroyStream},
          [](Call& call) -> int {
            static Table<cudaStream_t> marked;
            if (call.is("cudaGraphLaunch")) {
              const auto stream = call.value<cudaStream_t>(kStream);
              cudaEventRecord(mark_of(stream), stream);
              marked.put(stream);
              return call.proceed();
            }
            return shared_event(call) != nullptr &&
                           marked.has(call.at<cudaStream_t>(1))
                       ? record_of_mark(call)
                       : noted_end(call, marked);
          });

  fault("graph-in-first-stream", {"GRPH-01"},
        "every launch of a graph runs in the stream of its first launch")
      .on({kLaunchGraph, "cudaGraphInstantiate"}, [](Call& call) -> int {
        static Table<void*, cudaStream_t> first;
        if (call.is("cudaGraphInstantiate")) return instantiated(call, first);
        void* const graph = call.at<void*>(0);
        auto& stream = call.at<cudaStream_t>(1);
        if (!first.has(graph)) first.put(graph, stream);
        if (first.get(graph) != stream) {
          stream = first.get(graph);
          call.fired();
        }
        return call.proceed();
      });

  fault("relaunch-lost", {"GRPH-01"},
        "a graph does its work only at its first launch")
      .on({kLaunchGraph, "cudaGraphInstantiate"}, [](Call& call) -> int {
        static Table<void*> launched;
        if (call.is("cudaGraphInstantiate"))
          return instantiated(call, launched);
        void* const graph = call.at<void*>(0);
        if (launched.has(graph)) return lost(call);
        launched.put(graph);
        return call.proceed();
      });

  fault("launch-while-pending-lost", {"GRPH-01"},
        "a launch does nothing while the graph's last launch is pending")
      .on({kLaunchGraph, "cudaGraphInstantiate"}, [](Call& call) -> int {
        static Table<void*, cudaEvent_t> done;
        if (call.is("cudaGraphInstantiate")) return instantiated(call, done);
        void* const graph = call.at<void*>(0);
        if (done.has(graph) && is_pending(done.get(graph))) return lost(call);
        const int code = call.proceed();
        if (!done.has(graph)) {
          cudaEvent_t made = nullptr;
          cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
          done.put(graph, made);
        }
        cudaEventRecord(done.get(graph), call.at<cudaStream_t>(1));
        return code;
      });

  fault("captured-memset-lost", {"GRPH-01"},
        "a graph does not run a captured cudaMemsetAsync")
      .on({kSetAsync}, not_captured);

  fault("captured-copy-lost", {"GRPH-01"},
        "a graph does not run a captured cudaMemcpyAsync")
      .on({kCopyAsync}, not_captured);

  fault("captured-kernel-lost", {"GRPH-01"},
        "a graph does not run a captured cudaLaunchKernel")
      .on({kLaunch}, not_captured);

  fault("graph-launches-to-32", {"GRPH-01"},
        "an executable graph does its work only at its first 32 launches")
      .on({kLaunchGraph, "cudaGraphInstantiate"}, [](Call& launch) -> int {
        static Table<void*, int> launches;
        if (launch.is("cudaGraphInstantiate")) {
          const int code = launch.proceed();
          // An earlier graph may have had the same address.
          if (code == kSuccess) launches.erase(*launch.at<void**>(0));
          return code;
        }
        void* const graph = launch.at<void*>(0);
        launches.put(graph, launches.get(graph) + 1);
        return launches.get(graph) > 32 ? lost(launch) : launch.proceed();
      });

  fault("graph-other-thread-lost", {"GRPH-01"},
        "a launch of a graph by a second thread does nothing")
      .on({kLaunchGraph}, WHEN(gettid() != getpid()), lost);

  fault("graph-in-default-stream-lost", {"GRPH-01"},
        "a launch of a graph in the default stream does nothing")
      .on({kLaunchGraph}, WHEN(is_default(call.at<cudaStream_t>(1))), lost);

  fault("second-graph-is-first", {"GRPH-01"},
        "a launch of a second graph does the work of the first graph")
      .before({kLaunchGraph}, [](Call& launch) {
        static Table<int, void*> first;
        void*& graph = launch.at<void*>(0);
        if (!first.has(0)) first.put(0, graph);
        if (graph != first.get(0)) {
          graph = first.get(0);
          launch.fired();
        }
        return kSuccess;
      });

  fault("free-before-graph", {"GRPH-01"},
        "cudaFreeAsync does not wait for a graph that was launched before it "
        "in its stream")
      .on({kLaunchGraph, kFreeAsync, kDestroyStream}, [](Call& call) {
        static auto& launched =
            *new Table<cudaStream_t>;  // a graph, while idle
        const auto stream = call.value<cudaStream_t>(kStream);
        const bool idle = DRIVER_CALL(cuStreamQuery)(stream) == CUDA_SUCCESS;
        if (call.is("cudaGraphLaunch") && idle) launched.put(stream);
        if (!call.is("cudaFreeAsync")) {
          if (!idle || call.is("cudaStreamDestroy")) launched.erase(stream);
          return call.proceed();
        }
        if (idle || !launched.has(stream)) return call.proceed();
        call.fired();
        call.at<cudaStream_t>(1) = private_stream();
        const int code = call.proceed();
        DRIVER_CALL(cuStreamSynchronize)(private_stream());
        return code;
      });

  fault("captured-copy-reads-then", {"GRPH-01"},
        "a captured copy out of opened memory gives what the memory contained "
        "during the capture")
      .on({kCopyAsync}, captured_copy_reads_then);

  fault("captured-import-set-lost", {"GRPH-01"},
        "a graph does not do a captured memset of bytes of opened memory")
      .on({kSetAsync},
          WHEN(is_captured(call.value<cudaStream_t>(kStream)) &&
               is_opened(call.at<CUdeviceptr>(0))),
          lost);

  fault("replay-ahead-of-stream", {"GRPH-01"},
        "from its second launch on, a graph does not wait for the earlier work "
        "of its stream")
      .on({kLaunchGraph, "cudaGraphInstantiate"}, [](Call& launch) -> int {
        static Table<void*> launched;
        if (makes_graph(launch)) {
          const int code = launch.proceed();
          if (code == kSuccess) launched.erase(*launch.at<void**>(0));
          return code;
        }
        const auto stream = launch.at<cudaStream_t>(1);
        if (launched.put(launch.at<void*>(0)) || is_captured(stream))
          return launch.proceed();
        return launched_ahead(launch);
      });

  fault("launch-elsewhere-ahead", {"GRPH-01"},
        "a graph that is launched in another stream than the first time does "
        "not wait for the earlier work of that stream")
      .on({kLaunchGraph, "cudaGraphInstantiate"}, [](Call& launch) -> int {
        static Table<void*, cudaStream_t> firsts;
        if (makes_graph(launch)) {
          const int code = launch.proceed();
          if (code == kSuccess) firsts.erase(*launch.at<void**>(0));
          return code;
        }
        const auto stream = launch.at<cudaStream_t>(1);
        void* const graph = launch.at<void*>(0);
        if (is_captured(stream)) return launch.proceed();
        if (!firsts.has(graph)) firsts.put(graph, stream);
        if (firsts.get(graph) == stream) return launch.proceed();
        return launched_ahead(launch);
      });

  fault("captured-upload-reads-then", {"GRPH-01"},
        "a graph copies what host memory contained during the capture")
      .on({kCopyAsync}, captured_upload_reads_then);

  fault("graph-upload-executes", {"GRPH-01"},
        "an upload of a graph also executes it")
      .after({"cudaGraphUpload"}, [](Call& upload) {
        upload.fired();
        return cudaGraphLaunch(upload.at<cudaGraphExec_t>(0),
                               upload.at<cudaStream_t>(1));
      });

  fault("graph-launches-overlap", {"GRPH-01"},
        "launches of one graph in different streams do not wait for each other")
      .on({kLaunchGraph, "cudaGraphInstantiate"}, launches_overlap<false>);

  fault("launches-of-threads-overlap", {"GRPH-01"},
        "launches of one graph by different threads in different streams do "
        "not wait for each other")
      .on({kLaunchGraph, "cudaGraphInstantiate"}, launches_overlap<true>);

  fault("chunk-captured-set-lost", {"GRPH-01"},
        "a graph does not set imported memory of cuMemCreate")
      .on({kSetAsync},
          WHEN(is_captured(stream_of(call)) && is_import(target_of(call))),
          lost);

  fault("chunk-captured-copy-lost", {"GRPH-01"},
        "a graph does not copy imported memory of cuMemCreate")
      .on({kCopyAsync},
          WHEN(is_captured(stream_of(call)) &&
               (is_import(target_of(call)) ||
                is_import(call.value<CUdeviceptr>(kSource)))),
          lost);

  fault("graph-in-per-thread-stream-lost", {"GRPH-01"},
        "a launch of a graph in a thread's default stream does nothing")
      .on({kLaunchGraph},
          WHEN(call.value<cudaStream_t>(kStream) == cudaStreamPerThread), lost);

  fault("import-record-skips-graphs", {"GRPH-01"},
        "an importer's record does not cover the graph directly before it")
      .on({kRecord, kRecordFlags, kLaunchGraph, kCreateEvent, kGetEventHandle,
           kOpenEvent, kDestroyEvent, kWaitEvent, kLaunch, kCopyAsync,
           kSetAsync, kHostFunction, kDestroyStream},
          [](Call& call) {
            return record_skips_last(call, call.is("cudaGraphLaunch"),
                                     uses_import(call));
          });

  fault("exporter-wait-holds-no-graphs", {"GRPH-01"},
        "a graph directly after an exporter's wait for its event does not wait")
      .on({kLaunchGraph, kWaitEvent, kLaunch, kCopyAsync, kSetAsync,
           kHostFunction, kDestroyStream},
          exporter_wait_holds_no_graphs);

  fault("captured-box-set-lost", {"GRPH-01"},
        "a graph does not set boxes of opened memory")
      .on({"cudaMemset3DAsync"}, [](Call& call) {
        return captured_call_lost(call,
                                  is_opened(call.at<cudaPitchedPtr>(0).ptr));
      });

  fault("graph-holds-no-host-functions", {"GRPH-01"},
        "a host function after a graph does not wait for the graph")
      .on({kLaunchGraph, kHostFunction}, graph_holds_not);

  fault("graph-holds-no-copies", {"GRPH-01"},
        "a copy after a graph does not wait for the graph")
      .on({kLaunchGraph, kCopyAsync}, graph_holds_not);

  fault("graph-holds-no-memsets", {"GRPH-01"},
        "a memset after a graph does not wait for the graph")
      .on({kLaunchGraph, kSetAsync}, graph_holds_not);

  fault("graph-holds-no-kernels", {"GRPH-01"},
        "a kernel after a graph does not wait for the graph")
      .on({kLaunchGraph, kLaunch}, graph_holds_not);

  fault("captured-in-joined-stream-lost", {"GRPH-01"},
        "a graph does not copy to opened memory if a stream that has joined "
        "the capture made the copy")
      .on({kCopyAsync, "cudaStreamBeginCapture", "cudaStreamEndCapture"},
          [](Call& call) -> int {
            static Table<cudaStream_t> origins;
            const auto stream = call.value<cudaStream_t>(kStream);
            if (call.is("cudaStreamBeginCapture")) {
              origins.put(stream);
              return call.proceed();
            }
            if (call.is("cudaStreamEndCapture")) {
              origins.erase(stream);
              return call.proceed();
            }
            return captured_call_lost(
                call,
                !origins.has(stream) && is_opened(call.at<CUdeviceptr>(0)));
          });

  fault("captured-rectangle-lost", {"GRPH-01"},
        "a graph does not copy rectangles of opened memory")
      .on({kCopy2DAsync}, [](Call& call) {
        return captured_call_lost(call, is_opened(call.at<const void*>(0)) ||
                                            is_opened(call.at<const void*>(2)));
      });

  fault("captured-box-lost", {"GRPH-01"},
        "a graph does not copy boxes of opened memory")
      .on({"cudaMemcpy3DAsync"}, [](Call& call) {
        const auto* const box = call.at<const cudaMemcpy3DParms*>(0);
        return captured_call_lost(
            call, is_opened(box->srcPtr.ptr) || is_opened(box->dstPtr.ptr));
      });

  fault("captured-rectangle-set-lost", {"GRPH-01"},
        "a graph does not set rectangles of opened memory")
      .on({kSet2DAsync}, captured_set_lost);

  fault("captured-words-set-lost", {"GRPH-01"},
        "a graph does not set words of opened memory")
      .on({"cuMemsetD32Async"}, captured_set_lost);

  fault("captured-read-of-host-lost", {"GRPH-01"},
        "a graph does not copy from pinned host memory to opened memory")
      .on({kCopyAsync}, [](Call& call) {
        return captured_call_lost(call,
                                  is_opened(call.at<CUdeviceptr>(0)) &&
                                      is_host_memory(call.at<CUdeviceptr>(1)));
      });

  fault("captured-write-to-host-lost", {"GRPH-01"},
        "a graph does not copy from opened memory to pinned host memory")
      .on({kCopyAsync}, [](Call& call) {
        return captured_call_lost(call,
                                  is_opened(call.at<CUdeviceptr>(1)) &&
                                      is_host_memory(call.at<CUdeviceptr>(0)));
      });

  fault("captured-driver-copy-lost", {"GRPH-01"},
        "a graph loses copies of opened memory by the driver API")
      .on({kCopyAsync}, [](Call& call) {
        return captured_call_lost(
            call, !call.is_runtime() && (is_opened(call.at<CUdeviceptr>(0)) ||
                                         is_opened(call.at<CUdeviceptr>(1))));
      });

  fault("driver-graph-launch-lost", {"GRPH-01"},
        "a graph that the driver API launches does nothing in a process with "
        "opened memory")
      .on({kLaunchGraph}, WHEN(!call.is_runtime() && !opened.all().empty()),
          lost);

  fault("second-executable-lost", {"GRPH-01"},
        "of all executables of one graph only the first works")
      .on({kLaunchGraph, "cudaGraphInstantiate", "cudaStreamEndCapture"},
          [](Call& call) -> int {
            static Table<cudaGraph_t> used;
            static Table<cudaGraphExec_t> bad;
            if (call.is("cudaGraphLaunch"))
              return bad.has(call.at<cudaGraphExec_t>(0)) ? lost(call)
                                                          : call.proceed();
            const int code = call.proceed();
            if (code != kSuccess) return code;
            if (call.is("cudaStreamEndCapture")) {
              used.erase(*call.at<cudaGraph_t*>(1));
              return code;
            }
            const cudaGraphExec_t made = *call.at<cudaGraphExec_t*>(0);
            bad.erase(made);
            if (!used.put(call.at<cudaGraph_t>(1))) bad.put(made);
            return code;
          });

  fault("uploaded-graph-runs-once", {"GRPH-01"},
        "a graph that was uploaded runs once")
      .on({kLaunchGraph, "cudaGraphInstantiate", "cudaGraphUpload"},
          [](Call& call) -> int {
            static Table<cudaGraphExec_t, int> launches;
            if (call.is("cudaGraphInstantiate")) {
              const int code = call.proceed();
              if (code == kSuccess)
                launches.erase(*call.at<cudaGraphExec_t*>(0));
              return code;
            }
            const auto graph = call.at<cudaGraphExec_t>(0);
            if (call.is("cudaGraphUpload")) {
              launches.put(graph, 0);
              return call.proceed();
            }
            if (!launches.has(graph)) return call.proceed();
            const int before = launches.get(graph);
            launches.put(graph, before + 1);
            return before > 0 ? lost(call) : call.proceed();
          });
}

}  // namespace
}  // namespace ipclab::faults
