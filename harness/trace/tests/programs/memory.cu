// Mistakes with legacy memory handles.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "programs.h"

namespace {

void open_and_close(Channel& channel, bool) {
  void* data = borrow(channel);
  touch(data);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

void opens_its_own(Channel& channel, bool wrong) {
  void* data = allocate();
  const cudaIpcMemHandle_t handle = handle_of(data);
  void* own = nullptr;
  if (wrong) cudaIpcOpenMemHandle(&own, handle, kLazy);
  channel.send("handle", handle);
  channel.wait("done");
  CUDA_CHECK(cudaFree(data));
}

void opens_in_two_contexts(Channel& channel, bool wrong) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* data = open_handle(handle);
  if (wrong) {
    CUcontext other = nullptr;
    CU_CHECK(create_context(&other, 0));
    CUdeviceptr again = 0;
    CUipcMemHandle bytes;
    std::memcpy(&bytes, &handle, sizeof bytes);
    DRIVER(cuIpcOpenMemHandle)(&again, bytes, kLazy);
    CU_CHECK(DRIVER(cuCtxDestroy)(other));
    CUDA_CHECK(cudaSetDevice(0));
  }
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

void opens_with_flags(Channel& channel, bool wrong) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* data = nullptr;
  if (cudaIpcOpenMemHandle(&data, handle, wrong ? 0 : kLazy) == cudaSuccess)
    CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

void opens_other_bytes(Channel& channel, bool wrong) {
  auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  if (wrong) memset(&handle, 0x5a, sizeof handle);
  void* data = nullptr;
  if (cudaIpcOpenMemHandle(&data, handle, kLazy) == cudaSuccess)
    CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

void opens_what_was_text(Channel& channel, bool wrong) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  cudaIpcMemHandle_t copy{};  // a string ends at its first zero byte
  if (wrong) std::strncpy(copy.reserved, handle.reserved, sizeof copy.reserved);
  void* data = nullptr;
  if (cudaIpcOpenMemHandle(&data, wrong ? copy : handle, kLazy) == cudaSuccess)
    CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

void exports_managed(Channel& channel, bool wrong) {
  if (wrong) {
    void* managed = nullptr;
    CUDA_CHECK(cudaMallocManaged(&managed, kBytes));
    cudaIpcMemHandle_t handle;
    static_cast<void>(cudaIpcGetMemHandle(&handle, managed));
    CUDA_CHECK(cudaFree(managed));
  }
  lend(channel);
}

constexpr size_t kOffset = 4096;

void exports_the_middle(Channel& channel, bool) {
  void* data = allocate();
  channel.send("handle", handle_of(static_cast<char*>(data) + kOffset));
  channel.wait("done");
  CUDA_CHECK(cudaFree(data));
}

void opens_the_base(Channel& channel, bool wrong) {
  void* data = borrow(channel);
  touch(static_cast<char*>(data) + (wrong ? 0 : kOffset));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

void opens_on_the_other_device(Channel& channel, bool wrong) {
  int peers = 1;
  if (devices() > 1) CUDA_CHECK(cudaDeviceCanAccessPeer(&peers, 1, 0));
  skip_without(peers == 0, "two GPUs that are no peers", channel);
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  if (wrong) CUDA_CHECK(cudaSetDevice(1));
  void* data = nullptr;
  if (cudaIpcOpenMemHandle(&data, handle, kLazy) == cudaSuccess)
    CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

void exports_a_little(Channel& channel, bool wrong) {
  void* data = allocate(wrong ? 4096 : kBytes);
  channel.send("handle", handle_of(data));
  channel.wait("done");
  CUDA_CHECK(cudaFree(data));
}

void never_closes(Channel& channel, bool wrong) {
  void* data = borrow(channel);
  touch(data);
  if (!wrong) {
    CUDA_CHECK(cudaIpcCloseMemHandle(data));
    channel.signal("done");
    return;
  }
  channel.signal("done");
  channel.wait("freed");
}

void frees_late(Channel& channel, bool wrong) {
  if (!wrong) return lend(channel);
  // The exporter keeps its memory, so that the missing close is the only
  // mistake.
  void* data = allocate();
  channel.send("handle", handle_of(data));
  channel.wait("done");
  channel.signal("freed");
  wait_for_peers_end();
  CUDA_CHECK(cudaFree(data));
}

void closes_once(Channel& channel, bool wrong) {
  const auto handle = channel.receive<cudaIpcMemHandle_t>("handle");
  void* data = open_handle(handle);
  open_handle(handle);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  if (!wrong) CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("done");
  if (wrong) channel.wait("freed");
}

void closes_twice(Channel& channel, bool wrong) {
  void* data = borrow(channel);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  if (wrong) static_cast<void>(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

void closes_its_own(Channel& channel, bool wrong) {
  void* own = allocate();
  if (wrong) static_cast<void>(cudaIpcCloseMemHandle(own));
  CUDA_CHECK(cudaFree(own));
  open_and_close(channel, wrong);
}

void frees_an_import(Channel& channel, bool wrong) {
  void* data = borrow(channel);
  if (wrong) static_cast<void>(cudaFree(data));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

void uses_after_close(Channel& channel, bool wrong) {
  void* data = borrow(channel);
  if (!wrong) touch(data);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("done");
  channel.wait("freed");
  if (wrong) touch(data);
}

void lends_and_says_freed(Channel& channel, bool) {
  lend(channel);
  channel.signal("freed");
}

void sends_its_address(Channel& channel, bool) {
  void* data = allocate();
  channel.send("handle", handle_of(data));
  channel.send("address", data);
  channel.wait("done");
  CUDA_CHECK(cudaFree(data));
}

void uses_an_address(Channel& channel, bool wrong) {
  void* data = borrow(channel);
  void* foreign = channel.receive<void*>("address");
  if (!wrong) touch(data);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("done");
  if (wrong) touch(foreign);
}

// Copies from an address at which this process has nothing. CUDA may take it
// for an address of the host; then this process crashes.
template <bool kClosed>
void copies_from_nothing(Channel& channel, bool wrong) {
  void* data = borrow(channel);
  void* foreign = channel.receive<void*>("address");
  if (!wrong) touch(data);
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  int first = 0;
  if (wrong)
    static_cast<void>(cudaMemcpy(&first, kClosed ? data : foreign, sizeof first,
                                 cudaMemcpyDefault));
  channel.signal("done");
}

void outlives_its_importer(Channel& channel, bool wrong) {
  if (!wrong) return sends_its_address(channel, wrong);
  void* data = allocate();
  channel.send("handle", handle_of(data));
  channel.send("address", data);
  wait_for_peers_end();
  CUDA_CHECK(cudaFree(data));
  std::exit(EXIT_SUCCESS);  // its importer may end by a signal
}

// A copy from pageable memory may return before the data have arrived.
void fills_and_sends(Channel& channel, bool wrong) {
  void* data = allocate();
  std::vector<char> pageable(kBytes, 7);
  void* pinned = nullptr;
  CUDA_CHECK(cudaMallocHost(&pinned, kBytes));
  std::memset(pinned, 7, kBytes);
  CUDA_CHECK(cudaMemcpy(data, wrong ? pageable.data() : pinned, kBytes,
                        cudaMemcpyDefault));
  channel.send("handle", handle_of(data));
  channel.wait("done");
  CUDA_CHECK(cudaFreeHost(pinned));
  CUDA_CHECK(cudaFree(data));
}

void writes_and_sends(Channel& channel, bool wrong) {
  void* data = allocate();
  CUDA_CHECK(cudaMemsetAsync(data, 7, kBytes, nullptr));
  const cudaIpcMemHandle_t handle = handle_of(data);
  if (!wrong) CUDA_CHECK(cudaDeviceSynchronize());
  channel.send("handle", handle);
  channel.wait("done");
  CUDA_CHECK(cudaFree(data));
}

void copies_from(Channel& channel, bool) {
  void* data = borrow(channel);
  std::vector<char> seen(kBytes);
  CUDA_CHECK(cudaMemcpy(seen.data(), data, kBytes, cudaMemcpyDefault));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  channel.signal("done");
}

void lends_and_overwrites(Channel& channel, bool) {
  void* data = allocate();
  channel.send("handle", handle_of(data));
  channel.wait("copied");
  CUDA_CHECK(cudaMemset(data, 7, kBytes));
  CUDA_CHECK(cudaDeviceSynchronize());
  channel.signal("overwritten");
  channel.wait("done");
  CUDA_CHECK(cudaFree(data));
}

void queues_a_copy(Channel& channel, bool wrong) {
  void* data = borrow(channel);
  void* copy = allocate();
  CUDA_CHECK(cudaMemcpyAsync(copy, data, kBytes, cudaMemcpyDefault, nullptr));
  if (!wrong) CUDA_CHECK(cudaDeviceSynchronize());
  channel.signal("copied");
  channel.wait("overwritten");
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  CUDA_CHECK(cudaFree(copy));
  channel.signal("done");
}

}  // namespace

const std::vector<Case> kMemory = {
    {"opened-in-exporter.memory", opens_its_own, open_and_close},
    {"second-context", lend, opens_in_two_contexts},
    {"wrong-flags", lend, opens_with_flags},
    {"unknown-handle.memory", lend, opens_other_bytes},
    {"unknown-handle.text", lend, opens_what_was_text},
    {"not-exportable.managed", exports_managed, open_and_close},
    {"interior-pointer", exports_the_middle, opens_the_base},
    {"no-path-to-owner", lend, opens_on_the_other_device},
    {"shared-with-neighbours", exports_a_little, open_and_close},
    {"never-closed", frees_late, never_closes},
    {"closed-too-seldom", frees_late, closes_once},
    {"closed-too-often", lend, closes_twice},
    {"closed-not-opened", lend, closes_its_own},
    {"import-freed", lend, frees_an_import},
    {"use-after-close", lends_and_says_freed, uses_after_close},
    {"use-after-close.copy", outlives_its_importer, copies_from_nothing<true>},
    {"pointer-of-another-process", sends_its_address, uses_an_address},
    {"pointer-of-another-process.copy", outlives_its_importer,
     copies_from_nothing<false>},
    {"possible-race.memory", writes_and_sends, copies_from},
    {"possible-race.pageable", fills_and_sends, copies_from},
    {"possible-race.overwritten", lends_and_overwrites, queues_a_copy},
};
