// Mistakes with what surrounds shared memory: threads, devices, processes that
// have ended, and what grows without end.
//
// SPDX-License-Identifier: Apache-2.0
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <thread>

#include "programs.h"

namespace {

using Chunk = CUmemGenericAllocationHandle;

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr unsigned kInterprocess =
    cudaEventInterprocess | cudaEventDisableTiming;

CUmemAllocationProp shareable(CUmemLocationType type, int id) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = type;
  wanted.location.id = id;
  wanted.requestedHandleTypes = kFd;
  return wanted;
}

Chunk make() {
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  const auto wanted = shareable(CU_MEM_LOCATION_TYPE_DEVICE, 0);
  Chunk chunk;
  CU_CHECK(DRIVER(cuMemCreate)(&chunk, kBytes, &wanted, 0));
  return chunk;
}

int descriptor_of(Chunk chunk) {
  int fd = -1;
  CU_CHECK(DRIVER(cuMemExportToShareableHandle)(&fd, chunk, kFd, 0));
  return fd;
}

Chunk import(int fd) {
  Chunk chunk;
  CU_CHECK(DRIVER(cuMemImportFromShareableHandle)(
      &chunk, reinterpret_cast<void*>(intptr_t{fd}), kFd));
  return chunk;
}

// Handles of zeros.

void opens_one_more(Channel& channel, bool wrong) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* data = nullptr;
  cudaIpcMemHandle_t second{};  // the exporter sent only one
  if (!wrong) second = handle;
  if (cudaIpcOpenMemHandle(&data, second, kLazy) == cudaSuccess)
    CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

// A thread without a context.

void exports_in_a_thread(Channel& channel, bool wrong) {
  void* data = allocate();
  std::thread([data, wrong] {
    if (!wrong) CUDA_CHECK(cudaSetDevice(0));
    CUipcMemHandle handle;
    static_cast<void>(DRIVER(cuIpcGetMemHandle)(
        &handle, reinterpret_cast<CUdeviceptr>(data)));
  }).join();
  channel.wait("done");
  CUDA_CHECK(cudaFree(data));
}

void is_done(Channel& channel, bool) { channel.signal("done"); }

// The peer's ordinal.

void selects_the_peers_device(Channel& channel, bool wrong) {
  setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  if (wrong) static_cast<void>(cudaSetDevice(1));  // as the exporter says
  CUDA_CHECK(cudaSetDevice(0));
  CUDA_CHECK(cudaIpcCloseMemHandle(open_handle(handle)));
  channel.signal("done");
}

// pidfd_getfd under the filter of a container.

void forbid_pidfd_getfd() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_getfd, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {4, rules};
  SYS_CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
  SYS_CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

void offers_a_descriptor(Channel& channel, bool) {
  const Chunk chunk = make();
  const int fd = descriptor_of(chunk);
  channel.send("number", std::array<int, 2>{getpid(), fd});
  channel.send_descriptor("descriptor", fd);
  channel.wait("done");
  close(fd);
  CU_CHECK(DRIVER(cuMemRelease)(chunk));
}

void takes_a_descriptor(Channel& channel, bool wrong) {
  CUDA_CHECK(cudaFree(nullptr));
  const auto where = channel.receive<std::array<int, 2>>("number");
  const int fd = channel.receive_descriptor("descriptor");
  if (wrong) {
    forbid_pidfd_getfd();
    const auto process = static_cast<int>(syscall(SYS_pidfd_open, where[0], 0));
    syscall(SYS_pidfd_getfd, process, where[1], 0);
    close(process);
  }
  const Chunk chunk = import(fd);
  close(fd);
  CU_CHECK(DRIVER(cuMemRelease)(chunk));
  channel.signal("done");
}

// Memory of a process that has ended.

void sends_memory_and_ends(Channel& channel, bool wrong) {
  const Chunk chunk = make();
  const int fd = descriptor_of(chunk);
  channel.send_descriptor("descriptor", fd);
  close(fd);
  channel.wait("imported");
  if (wrong) std::exit(EXIT_SUCCESS);
  channel.wait("done");
  CU_CHECK(DRIVER(cuMemRelease)(chunk));
}

void keeps_memory(Channel& channel, bool wrong) {
  CUDA_CHECK(cudaFree(nullptr));
  const int fd = channel.receive_descriptor("descriptor");
  const Chunk chunk = import(fd);
  close(fd);
  channel.signal("imported");
  if (wrong) return wait_for_peers_end();
  CU_CHECK(DRIVER(cuMemRelease)(chunk));
  channel.signal("done");
}

// A wait for a peer that has died.

void waits_for_a_word(Channel& channel, bool wrong) {
  void* word = nullptr;
  CUDA_CHECK(cudaMalloc(&word, kBytes));
  CUDA_CHECK(cudaMemset(word, 0, kBytes));
  CUDA_CHECK(cudaDeviceSynchronize());
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  channel.send("handle", handle_of(word));
  channel.wait("opened");
  CU_CHECK(DRIVER(cuStreamWaitValue32)(stream,
                                       reinterpret_cast<CUdeviceptr>(word), 1,
                                       CU_STREAM_WAIT_VALUE_GEQ));
  if (wrong) {
    signal(SIGALRM, [](int) { _exit(EXIT_SUCCESS); });
    alarm(2);
  }
  CUDA_CHECK(cudaStreamSynchronize(stream));
  channel.wait("done");
  CUDA_CHECK(cudaStreamDestroy(stream));
  CUDA_CHECK(cudaFree(word));
}

void writes_a_word(Channel& channel, bool wrong) {
  void* word = borrow(channel);
  channel.signal("opened");
  if (wrong) raise(SIGKILL);
  CU_CHECK(DRIVER(cuStreamWriteValue32)(
      CU_STREAM_LEGACY, reinterpret_cast<CUdeviceptr>(word), 1, 0));
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaIpcCloseMemHandle(word));
  channel.signal("done");
}

// Two processes that wait for each other.

CUdeviceptr word_at(void* words, int index) {
  return reinterpret_cast<CUdeviceptr>(words) + index * sizeof(int);
}

// Waits for one word and then writes the other, or the other way round.
void exchange_words(void* words, int own, int others, bool writes_first,
                    bool polls = false) {
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const auto write = [&] {
    CU_CHECK(
        DRIVER(cuStreamWriteValue32)(stream, word_at(words, others), 1, 0));
  };
  if (writes_first) write();
  CU_CHECK(DRIVER(cuStreamWaitValue32)(stream, word_at(words, own), 1,
                                       CU_STREAM_WAIT_VALUE_GEQ));
  if (!writes_first) write();
  while (polls && cudaStreamQuery(stream) == cudaErrorNotReady)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  CUDA_CHECK(cudaStreamDestroy(stream));
}

template <bool kPolls>
void waits_before_it_writes(Channel& channel, bool wrong) {
  void* words = nullptr;
  CUDA_CHECK(cudaMalloc(&words, kBytes));
  CUDA_CHECK(cudaMemset(words, 0, kBytes));
  CUDA_CHECK(cudaDeviceSynchronize());
  channel.send("handle", handle_of(words));
  channel.wait("opened");
  if (wrong) {
    signal(SIGALRM, [](int) { _exit(EXIT_SUCCESS); });
    alarm(5);  // after the end of the importer
  }
  exchange_words(words, 0, 1, false, kPolls);
  channel.wait("done");
  CUDA_CHECK(cudaFree(words));
}

template <bool kPolls>
void waits_before_it_writes_too(Channel& channel, bool wrong) {
  void* words = borrow(channel);
  channel.signal("opened");
  if (wrong) alarm(2);
  exchange_words(words, 1, 0, !wrong, kPolls);
  CUDA_CHECK(cudaIpcCloseMemHandle(words));
  channel.signal("done");
}

// A wait for a value that nobody writes.

template <int kLast>
void writes_up_to(Channel& channel, bool wrong) {
  void* word = allocate();
  channel.send("handle", handle_of(word));
  channel.wait("opened");
  for (int i = 1; i <= kLast; ++i)
    CU_CHECK(
        DRIVER(cuStreamWriteValue32)(CU_STREAM_LEGACY, word_at(word, 0), i, 0));
  CUDA_CHECK(cudaDeviceSynchronize());
  if (wrong) {
    wait_for_peers_end();
    CUDA_CHECK(cudaFree(word));
    std::exit(EXIT_SUCCESS);  // its importer gives up
  }
  channel.signal("written");
  channel.wait("done");
  CUDA_CHECK(cudaFree(word));
}

void waits_for_two(Channel& channel, bool wrong) {
  void* word = borrow(channel);
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  channel.signal("opened");
  CU_CHECK(DRIVER(cuStreamWaitValue32)(
      stream, word_at(word, 0), wrong ? 2 : 1,
      wrong ? CU_STREAM_WAIT_VALUE_EQ : CU_STREAM_WAIT_VALUE_GEQ));
  for (int i = 0; cudaStreamQuery(stream) == cudaErrorNotReady; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (wrong && i == 60) _exit(EXIT_FAILURE);
  }
  CUDA_CHECK(cudaStreamDestroy(stream));
  channel.wait("written");
  CUDA_CHECK(cudaIpcCloseMemHandle(word));
  channel.signal("done");
}

// What grows without end.

void makes_events(Channel& channel, bool wrong) {
  std::vector<cudaEvent_t> kept;
  for (int frame = 0; frame < 3600; ++frame) {
    cudaEvent_t event;
    if (cudaEventCreateWithFlags(&event, kInterprocess) != cudaSuccess) break;
    kept.push_back(event);
    if (wrong) continue;
    CUDA_CHECK(cudaEventDestroy(kept.back()));
    kept.pop_back();
  }
  for (cudaEvent_t event : kept) CUDA_CHECK(cudaEventDestroy(event));
  channel.wait("done");
}

void reserves_addresses(Channel& channel, bool wrong) {
  CUDA_CHECK(cudaFree(nullptr));
  constexpr size_t kMuch = size_t{16} << 30;
  std::vector<CUdeviceptr> kept;
  for (int i = 0; i < 12000; ++i) {
    CUdeviceptr segment = 0;
    if (DRIVER(cuMemAddressReserve)(&segment, kMuch, 0, 0, 0) != CUDA_SUCCESS)
      break;
    kept.push_back(segment);
    if (wrong) continue;
    CU_CHECK(DRIVER(cuMemAddressFree)(segment, kMuch));
    kept.pop_back();
    if (i == 50) break;
  }
  for (CUdeviceptr segment : kept)
    CU_CHECK(DRIVER(cuMemAddressFree)(segment, kMuch));
  channel.wait("done");
}

void imports_for_each_use(Channel& channel, bool wrong) {
  CUDA_CHECK(cudaFree(nullptr));
  const int fd = channel.receive_descriptor("descriptor");
  std::vector<Chunk> kept;
  for (int use = 0; use < 1050; ++use)
    if (wrong || kept.empty()) kept.push_back(import(fd));
  close(fd);
  for (Chunk chunk : kept) CU_CHECK(DRIVER(cuMemRelease)(chunk));
  channel.signal("done");
}

// A segment that grew.

void sends_one_chunk(Channel& channel, bool) {
  const Chunk chunk = make();
  const int fd = descriptor_of(chunk);
  channel.send_descriptor("descriptor", fd);
  close(fd);
  channel.wait("done");
  CU_CHECK(DRIVER(cuMemRelease)(chunk));
}

__global__ void touch_at(char* data, size_t at) { data[at] = 1; }

void trusts_the_new_size(Channel& channel, bool wrong) {
  CUDA_CHECK(cudaFree(nullptr));
  const int fd = channel.receive_descriptor("descriptor");
  const Chunk chunk = import(fd);
  close(fd);
  CUdeviceptr segment = 0;
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU_CHECK(DRIVER(cuMemAddressReserve)(&segment, 8 * kBytes, 0, 0, 0));
  CU_CHECK(DRIVER(cuMemMap)(segment, kBytes, 0, chunk, 0));
  CU_CHECK(DRIVER(cuMemSetAccess)(segment, kBytes, &access, 1));
  touch_at<<<1, 1>>>(reinterpret_cast<char*>(segment),
                     wrong ? 2 * kBytes - 1 : kBytes - 1);
  if (cudaDeviceSynchronize() == cudaSuccess) {
    CU_CHECK(DRIVER(cuMemUnmap)(segment, kBytes));
    CU_CHECK(DRIVER(cuMemAddressFree)(segment, 8 * kBytes));
    CU_CHECK(DRIVER(cuMemRelease)(chunk));
  }
  channel.signal("done");
}

// Host memory of a node that does not exist.

void creates_on_a_node(Channel& channel, bool wrong) {
  CUDA_CHECK(cudaFree(nullptr));
  const auto wanted = wrong ? shareable(CU_MEM_LOCATION_TYPE_HOST_NUMA, 4095)
                            : shareable(CU_MEM_LOCATION_TYPE_DEVICE, 0);
  Chunk chunk;
  if (DRIVER(cuMemCreate)(&chunk, kBytes, &wanted, 0) == CUDA_SUCCESS)
    CU_CHECK(DRIVER(cuMemRelease)(chunk));
  channel.wait("done");
}

// A signal after main.

void outlives_its_importer(Channel& channel, bool wrong) {
  channel.wait("done");
  wait_for_peers_end();
  if (wrong) _exit(EXIT_SUCCESS);  // its importer ends by a signal
}

void ends_by_a_signal(Channel& channel, bool wrong) {
  CUDA_CHECK(cudaFree(nullptr));
  // Stands for a call of CUDA, which must not, but may end the process here.
  if (wrong) std::atexit([] { raise(SIGSEGV); });
  channel.signal("done");
}

}  // namespace

const std::vector<Case> kSurroundings = {
    {"handle-of-zeros", lend, opens_one_more},
    {"thread-without-context", exports_in_a_thread, is_done},
    {"ordinal-of-another-process", lend, selects_the_peers_device},
    {"descriptor-not-taken", offers_a_descriptor, takes_a_descriptor},
    {"kept-after-owners-end", sends_memory_and_ends, keeps_memory},
    {"waits-for-dead-peer", waits_for_a_word, writes_a_word},
    {"waits-in-a-cycle", waits_before_it_writes<false>,
     waits_before_it_writes_too<false>},
    {"waits-in-a-cycle.polled", waits_before_it_writes<true>,
     waits_before_it_writes_too<true>},
    {"unsatisfied-wait", writes_up_to<1>, waits_for_two},
    {"unsatisfied-wait.passed", writes_up_to<3>, waits_for_two},
    {"events-without-end", makes_events, is_done},
    {"imports-without-end", sends_one_chunk, imports_for_each_use},
    {"reservations-without-end", reserves_addresses, is_done},
    {"fault-beside-import", sends_one_chunk, trusts_the_new_size},
    {"numa-node-refused", creates_on_a_node, is_done},
    {"killed-at-exit", outlives_its_importer, ends_by_a_signal},
};
