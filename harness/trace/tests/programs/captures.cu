// Mistakes with what runs later than its call: work that is captured into a
// graph, functions of the host in a stream, words that another process sets.
//
// SPDX-License-Identifier: Apache-2.0
#include "programs.h"

namespace {

constexpr unsigned kShared = cudaEventInterprocess | cudaEventDisableTiming;

cudaStream_t make_stream() {
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

cudaGraphExec_t end_capture(cudaStream_t stream) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  return executable;
}

// A graph that copies the first value of borrowed memory.
cudaGraphExec_t capture_a_copy(cudaStream_t stream, void* to, void* borrowed) {
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  CUDA_CHECK(cudaMemcpyAsync(to, borrowed, sizeof(int),
                             cudaMemcpyDeviceToDevice, stream));
  return end_capture(stream);
}

void waits_while_it_captures(Channel& channel, bool wrong) {
  void* borrowed = borrow(channel);
  void* own = allocate();
  const cudaStream_t stream = make_stream();
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  CUDA_CHECK(cudaMemcpyAsync(own, borrowed, sizeof(int),
                             cudaMemcpyDeviceToDevice, stream));
  if (wrong) static_cast<void>(cudaStreamSynchronize(stream));
  cudaGraph_t graph = nullptr;
  static_cast<void>(cudaStreamEndCapture(stream, &graph));
  static_cast<void>(cudaGetLastError());
  if (graph != nullptr) CUDA_CHECK(cudaGraphDestroy(graph));
  CUDA_CHECK(cudaFree(own));
  CUDA_CHECK(cudaIpcCloseMemHandle(borrowed));
  channel.signal("done");
}

void records_while_it_captures(Channel& channel, bool wrong) {
  const cudaStream_t stream = make_stream();
  cudaEvent_t event;
  CUDA_CHECK(cudaEventCreateWithFlags(&event, kShared));
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  // A driver may refuse it, or make it an edge of the graph.
  if (wrong) static_cast<void>(cudaEventRecord(event, stream));
  cudaGraph_t graph = nullptr;
  static_cast<void>(cudaStreamEndCapture(stream, &graph));
  static_cast<void>(cudaGetLastError());
  if (graph != nullptr) CUDA_CHECK(cudaGraphDestroy(graph));
  if (!wrong) CUDA_CHECK(cudaEventRecord(event, stream));
  CUDA_CHECK(cudaEventDestroy(event));
  channel.signal("done");
}

void launches_after_its_close(Channel& channel, bool wrong) {
  void* borrowed = borrow(channel);
  void* own = allocate();
  const cudaStream_t stream = make_stream();
  const cudaGraphExec_t graph = capture_a_copy(stream, own, borrowed);
  CUDA_CHECK(cudaGraphLaunch(graph, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  if (wrong) CUDA_CHECK(cudaIpcCloseMemHandle(borrowed));
  // If the import is closed, the copy may fail, and then the context is lost.
  static_cast<void>(cudaGraphLaunch(graph, stream));
  static_cast<void>(cudaStreamSynchronize(stream));
  if (wrong) _exit(EXIT_SUCCESS);
  CUDA_CHECK(cudaGraphExecDestroy(graph));
  CUDA_CHECK(cudaFree(own));
  CUDA_CHECK(cudaIpcCloseMemHandle(borrowed));
  channel.signal("done");
}

// The exporter of launches_after_its_close, which may end without a word.
void lends_until_the_end(Channel& channel, bool) {
  void* data = allocate();
  channel.send("handle", handle_of(data));
  wait_for_peers_end();
  CUDA_CHECK(cudaFree(data));
}

// The exporter captures its write, the importer reads after the launch. Only
// the event that is recorded after the launch orders the two.
void launches_a_write(Channel& channel, bool wrong) {
  void* data = allocate();
  const cudaStream_t stream = make_stream();
  cudaEvent_t event;
  CUDA_CHECK(cudaEventCreateWithFlags(&event, kShared));
  cudaIpcEventHandle_t handle;
  CUDA_CHECK(cudaIpcGetEventHandle(&handle, event));
  channel.send("handle", handle_of(data));
  channel.send("event", handle);
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  CUDA_CHECK(cudaMemsetAsync(data, 2, kBytes, stream));
  const cudaGraphExec_t graph = end_capture(stream);
  channel.wait("opened");
  const cudaStream_t other = make_stream();
  CUDA_CHECK(cudaGraphLaunch(graph, stream));
  CUDA_CHECK(cudaEventRecord(event, wrong ? other : stream));
  channel.signal("launched");
  channel.wait("done");
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaGraphExecDestroy(graph));
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaFree(data));
}

void waits_and_copies(Channel& channel, bool) {
  void* borrowed = borrow(channel);
  cudaEvent_t event;
  CUDA_CHECK(cudaIpcOpenEventHandle(
      &event, channel.receive<cudaIpcEventHandle_t>("event")));
  const cudaStream_t stream = make_stream();
  channel.signal("opened");
  channel.wait("launched");
  int first = 0;
  CUDA_CHECK(cudaStreamWaitEvent(stream, event, 0));
  CUDA_CHECK(cudaMemcpyAsync(&first, borrowed, sizeof first,
                             cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaIpcCloseMemHandle(borrowed));
  channel.signal("done");
}

void closes_in_a_callback(Channel& channel, bool wrong) {
  void* borrowed = borrow(channel);
  const cudaStream_t stream = make_stream();
  const auto close_it = [](void* data) {
    static_cast<void>(cudaIpcCloseMemHandle(data));
  };
  const auto nothing = [](void*) {};
  CUDA_CHECK(cudaLaunchHostFunc(
      stream, wrong ? cudaHostFn_t{close_it} : cudaHostFn_t{nothing},
      borrowed));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  // A driver need not refuse the close in the function.
  static_cast<void>(cudaIpcCloseMemHandle(borrowed));
  channel.signal("done");
}

void opens_for_each_message(Channel& channel, bool wrong) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* kept = wrong ? nullptr : open_handle(handle);
  for (int message = 0; message < 120; ++message) {
    void* borrowed = wrong ? open_handle(handle) : kept;
    int first = 0;
    CUDA_CHECK(
        cudaMemcpy(&first, borrowed, sizeof first, cudaMemcpyDeviceToHost));
    if (wrong) CUDA_CHECK(cudaIpcCloseMemHandle(borrowed));
  }
  if (!wrong) CUDA_CHECK(cudaIpcCloseMemHandle(kept));
  channel.signal("done");
}

void lends_a_word(Channel& channel, bool wrong) {
  void* word = nullptr;
  CUDA_CHECK(cudaMalloc(&word, kBytes));
  if (!wrong) CUDA_CHECK(cudaMemset(word, 0, kBytes));
  CUDA_CHECK(cudaDeviceSynchronize());
  channel.send("handle", handle_of(word));
  channel.wait("waiting");
  CU_CHECK(DRIVER(cuStreamWriteValue32)(
      CU_STREAM_LEGACY, reinterpret_cast<CUdeviceptr>(word), 1, 0));
  CUDA_CHECK(cudaDeviceSynchronize());
  channel.wait("done");
  CUDA_CHECK(cudaFree(word));
}

void waits_for_the_word(Channel& channel, bool) {
  void* word = borrow(channel);
  const cudaStream_t stream = make_stream();
  CU_CHECK(DRIVER(cuStreamWaitValue32)(stream,
                                       reinterpret_cast<CUdeviceptr>(word), 1,
                                       CU_STREAM_WAIT_VALUE_GEQ));
  channel.signal("waiting");
  CUDA_CHECK(cudaStreamSynchronize(stream));
  CUDA_CHECK(cudaStreamDestroy(stream));
  CUDA_CHECK(cudaIpcCloseMemHandle(word));
  channel.signal("done");
}

void is_done(Channel& channel, bool) { channel.wait("done"); }

}  // namespace

const std::vector<Case> kCaptures = {
    {"lost-in-capture", lend, waits_while_it_captures},
    {"lost-in-capture.event", is_done, records_while_it_captures},
    {"use-after-close.graph", lends_until_the_end, launches_after_its_close},
    {"possible-race.graph", launches_a_write, waits_and_copies},
    {"called-in-host-function", lend, closes_in_a_callback},
    {"opened-again-and-again", lend, opens_for_each_message},
    {"waits-for-unset-word", lends_a_word, waits_for_the_word},
};
