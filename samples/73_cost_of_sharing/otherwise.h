// Lesson 73 compares sharing with copies of the same bytes through the
// host. It also compares three ways to say that work is done.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/mman.h>
#include <sys/socket.h>

#include "../common/data.h"
#include "../common/roles.h"
#include "figures.h"

constexpr int kHostMib = 32;
constexpr size_t kHostBytes = size_t{kHostMib} << 20;
constexpr int kHostCount = kHostBytes / 4;
constexpr int kTimes = 100;  // messages, events and words in a row

/// Maps the host memory that a descriptor names, and locks this memory
/// for copies of a GPU.
inline char* map_host(int descriptor) {
  void* host = mmap(nullptr, kHostBytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED, descriptor, 0);
  if (host == MAP_FAILED) SYS_CHECK(-1);
  CUDA_CHECK(
      cudaHostRegister(host, kHostBytes, cudaHostRegisterDefault));
  return static_cast<char*>(host);
}

/// Undoes map_host().
inline void unmap_host(char* host) {
  CUDA_CHECK(cudaHostUnregister(host));
  SYS_CHECK(munmap(host, kHostBytes));
}

//! [copies]
/// Copies the exporter's data to shared host memory. In the second half
/// of the rounds also sends the data through a socket.
inline void send_copies(Channel& channel, int first) {
  const int memory = memfd_create("ipclab_costs", MFD_CLOEXEC);
  SYS_CHECK(memory);
  SYS_CHECK(ftruncate(memory, kHostBytes));
  int ends[2];
  SYS_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
  channel.send_descriptor("host memory", memory);
  channel.send_descriptor("socket", ends[1]);
  SYS_CHECK(close(ends[1]));
  char* host = map_host(memory);
  SYS_CHECK(close(memory));

  void* data = allocate_values(kHostCount, first);
  for (const bool by_socket : {false, true}) {
    for (int i = 0; i <= rounds(); ++i) {
      channel.wait("copy");
      CUDA_CHECK(cudaMemcpy(host, data, kHostBytes, cudaMemcpyDefault));
      channel.signal("copied");
      if (by_socket) all_bytes(write, ends[0], host, kHostBytes);
    }
  }
  CUDA_CHECK(cudaFree(data));
  unmap_host(host);
  SYS_CHECK(close(ends[0]));
}

/// Receives and measures the exporter's copies. Returns the number of
/// wrong values.
inline int receive_copies(Channel& channel, int first) {
  const int memory = channel.receive_descriptor("host memory");
  const int socket = channel.receive_descriptor("socket");
  char* host = map_host(memory);
  SYS_CHECK(close(memory));
  int wrong = 0;
  for (const bool by_socket : {false, true}) {
    void* data = allocate_values(kHostCount, 0);  // other values
    std::vector<double> times;
    for (int i = 0; i <= rounds(); ++i)
      times.push_back(time_of([&] {
        channel.signal("copy");
        channel.wait("copied");
        if (by_socket) all_bytes(read, socket, host, kHostBytes);
        CUDA_CHECK(
            cudaMemcpy(data, host, kHostBytes, cudaMemcpyDefault));
        CUDA_CHECK(cudaDeviceSynchronize());
      }));
    wrong += count_wrong(data, kHostCount, first);
    CUDA_CHECK(cudaFree(data));
    note(by_socket ? "copy through a socket" : "copy through the host",
         0, kHostMib, {{"gb_per_s", kHostBytes / median(times) / 1e3}});
  }
  unmap_host(host);
  SYS_CHECK(close(socket));
  return wrong;
}
//! [copies]

//! [words]
/// Queues `kTimes` rounds and waits for them. In each round the stream
/// writes its word and waits for the other word, without the host. The
/// side that `begins` writes first. Returns the microseconds of all
/// rounds.
inline double words(void* memory, bool begins) {
  const auto word = reinterpret_cast<CUdeviceptr>(memory);
  const CUdeviceptr own = word + (begins ? 0 : 256);
  const CUdeviceptr other = word + (begins ? 256 : 0);
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const double time = time_of([&] {
    for (int i = 1; i <= kTimes; ++i) {
      if (begins)
        CU_CHECK(DRIVER(cuStreamWriteValue32)(stream, own, i, 0));
      CU_CHECK(DRIVER(cuStreamWaitValue32)(stream, other, i,
                                           CU_STREAM_WAIT_VALUE_GEQ));
      if (!begins)
        CU_CHECK(DRIVER(cuStreamWriteValue32)(stream, own, i, 0));
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
  });
  CUDA_CHECK(cudaStreamDestroy(stream));
  return time;
}
//! [words]

/// Answers the importer's messages, events and words.
inline void answer(Channel& channel) {
  void* memory = nullptr;
  CUDA_CHECK(cudaMalloc(&memory, 2 << 20));
  CUDA_CHECK(cudaMemset(memory, 0, 2 << 20));
  CUDA_CHECK(cudaDeviceSynchronize());
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, memory));
  channel.send("words", handle);
  cudaEvent_t event;
  CUDA_CHECK(cudaEventCreateWithFlags(
      &event, cudaEventInterprocess | cudaEventDisableTiming));
  cudaIpcEventHandle_t exported;
  CUDA_CHECK(cudaIpcGetEventHandle(&exported, event));
  channel.send("event", exported);

  for (const bool with_event : {false, true}) {
    for (int i = 0; i < kTimes; ++i) {
      channel.wait("ping");
      if (with_event) CUDA_CHECK(cudaEventRecord(event));
      channel.signal("pong");
    }
  }
  channel.wait("begin");
  words(memory, false);
  channel.wait("closed");
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaFree(memory));
}

/// Measures messages, events and words in the importer.
inline void ask(Channel& channel) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("words");
  void* memory = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&memory, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  const auto exported = channel.receive<cudaIpcEventHandle_t>("event");
  cudaEvent_t event;
  CUDA_CHECK(cudaIpcOpenEventHandle(&event, exported));

  for (const bool with_event : {false, true}) {
    std::vector<double> times;
    for (int i = 0; i < kTimes; ++i)
      times.push_back(time_of([&] {
        channel.signal("ping");
        channel.wait("pong");
        if (!with_event) return;
        CUDA_CHECK(cudaStreamWaitEvent(nullptr, event));
        CUDA_CHECK(cudaStreamSynchronize(nullptr));
      }));
    note(with_event ? "message and event" : "message", 0, 0,
         {{"round_us", median(times)}});
  }
  channel.signal("begin");
  note("word, no host", 0, 0,
       {{"round_us", words(memory, true) / kTimes}});
  CUDA_CHECK(cudaEventDestroy(event));
  CUDA_CHECK(cudaIpcCloseMemHandle(memory));
  channel.signal("closed");
}
