// Two processes that wait without end, for the tests of `ipclab trace --live`.
//
//   hang words    each waits for a word that the other writes after its own
//   wait hang event    the exporter waits for a word; the importer writes it
//   after
//                 an event that the exporter records after its wait
//   hang killed   the exporter waits for a word; the importer is killed before
//                 it writes the word
//
// A program ends by a signal, at the latest after two minutes.
//
// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>
#include <sys/wait.h>

#include <csignal>
#include <string>

#include "samples/common/channel.h"
#include "samples/common/check.h"

namespace {

constexpr size_t kBytes = 2 << 20;

cudaStream_t make_stream() {
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

void wait_for_word(cudaStream_t stream, CUdeviceptr word) {
  CU_CHECK(
      DRIVER(cuStreamWaitValue32)(stream, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
}

void write_word(cudaStream_t stream, CUdeviceptr word) {
  CU_CHECK(DRIVER(cuStreamWriteValue32)(stream, word, 1, 0));
}

// The importer writes the first word, the exporter the second.

void exporter(Channel& channel, const std::string& kind) {
  void* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, kBytes));
  CUDA_CHECK(cudaMemset(data, 0, kBytes));
  CUDA_CHECK(cudaDeviceSynchronize());
  const auto words = reinterpret_cast<CUdeviceptr>(data);
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  channel.send("handle", handle);
  channel.wait("opened");
  cudaStream_t stream = make_stream();
  wait_for_word(stream, words);
  if (kind == "event") {
    cudaEvent_t event;
    CUDA_CHECK(cudaEventCreateWithFlags(
        &event, cudaEventInterprocess | cudaEventDisableTiming));
    CUDA_CHECK(cudaEventRecord(event, stream));
    cudaIpcEventHandle_t event_handle;
    CUDA_CHECK(cudaIpcGetEventHandle(&event_handle, event));
    channel.send("event", event_handle);
  }
  write_word(stream, words + 4);
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

void importer(Channel& channel, const std::string& kind) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* data = nullptr;
  CUDA_CHECK(
      cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess));
  const auto words = reinterpret_cast<CUdeviceptr>(data);
  channel.signal("opened");
  if (kind == "killed") raise(SIGKILL);
  cudaStream_t stream = make_stream();
  if (kind == "event") {
    cudaEvent_t event;
    CUDA_CHECK(cudaIpcOpenEventHandle(
        &event, channel.receive<cudaIpcEventHandle_t>("event")));
    CUDA_CHECK(cudaStreamWaitEvent(stream, event, 0));
  } else {
    wait_for_word(stream, words + 4);
  }
  write_word(stream, words);
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

}  // namespace

int main(int argc, char** argv) {
  role_name() = argc == 3 ? "importer" : "exporter";
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: %s words|event|killed\n", argv[0]);
    return 2;
  }
  alarm(120);
  if (argc == 3) {
    Channel channel(std::atoi(argv[2]));
    importer(channel, argv[1]);
    return EXIT_SUCCESS;
  }
  int ends[2];
  SYS_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
  const pid_t pid = fork();
  SYS_CHECK(pid);
  if (pid == 0) {
    const std::string number = std::to_string(dup(ends[1]));
    execl("/proc/self/exe", argv[0], argv[1], number.c_str(), nullptr);
    _exit(EXIT_FAILURE);
  }
  close(ends[1]);
  Channel channel(ends[0]);
  exporter(channel, argv[1]);
  return EXIT_SUCCESS;
}
