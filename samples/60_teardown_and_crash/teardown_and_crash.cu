// Lesson 60: both end in order; an importer dies; an exporter dies.
//
//   exporter                           two importers and a lender
//   lend 2 GiB          -- handle -->  open, read, close when told
//   cudaFree            <- closed ---
//   lend 2 GiB again    -- handle -->  open, read
//   kill it, cudaFree   <- opened ---
//   open, kill it       <- handle ---  lend
//   close, try the handle once more, use own memory
//
// nvcc -cudart shared
//   samples/60_teardown_and_crash/teardown_and_crash.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/roles.h"

using Handle = cudaIpcMemHandle_t;
constexpr size_t kBytes = 2147483648;  // far above what else changes
constexpr int kPoison = -1, kValue = 1000, kLent = 2000, kOwn = 3000;
constexpr auto kCopy = cudaMemcpyDefault;
constexpr unsigned kFlag = cudaIpcMemLazyEnablePeerAccess;

int value_in(const void* memory) {
  int value = kPoison;
  CUDA_CHECK(cudaMemcpy(&value, memory, sizeof value, kCopy));
  return value;
}

Handle lend(void** memory, size_t bytes, int value) {
  Handle handle;
  CUDA_CHECK(cudaMalloc(memory, bytes));
  CUDA_CHECK(cudaMemcpy(*memory, &value, sizeof value, kCopy));
  CUDA_CHECK(cudaDeviceSynchronize());  // it may end after it returns
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, *memory));
  return handle;
}

size_t free_memory() {
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return free;
}

//! [exporter]
int exporter(Child importer, bool orderly) {
  void* memory = nullptr;
  importer.channel.send("lends", false);
  importer.channel.send("handle", lend(&memory, kBytes, kValue));
  importer.channel.wait("opened");
  if (orderly) {
    importer.channel.signal("close");
    importer.channel.wait("closed");  // before the free, always
  } else {
    SYS_CHECK(kill(importer.pid, SIGKILL));
  }
  const bool ended = importer.wait(10s) == EXIT_SUCCESS || !orderly;
  const bool whole = value_in(memory) == kValue;
  const size_t before = free_memory();
  CUDA_CHECK(cudaFree(memory));
  const bool back = free_memory() > before + kBytes / 2;
  say("the importer %s: the memory is %s, and freed it is %s",
      orderly ? "has closed" : "was killed", whole ? "whole" : "WRONG",
      back ? "back" : "LOST");
  return ended && whole && back ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [borrower]
int borrower(Child lender) {
  lender.channel.send("lends", true);
  const auto handle = lender.channel.receive<Handle>("handle");
  void* opened = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&opened, handle, kFlag));
  bool good = value_in(opened) == kLent;
  SYS_CHECK(kill(lender.pid, SIGKILL));  // frees what is open here:
  lender.wait(10s);                      // nobody reads it again
  const cudaError_t closed = cudaIpcCloseMemHandle(opened);
  const cudaError_t stale =
      cudaIpcOpenMemHandle(&opened, handle, kFlag);
  cudaGetLastError();
  say("the lender was killed: close [%s], another open [%s]",
      cudaGetErrorName(closed), cudaGetErrorName(stale));
  lend(&opened, sizeof(int), kOwn);
  good = good && value_in(opened) == kOwn;
  say("own memory is %s", good ? "as good as before" : "WRONG");
  CUDA_CHECK(cudaFree(opened));
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [borrower]

//! [importer]
int importer(Channel& channel) {
  const auto handle = channel.receive<Handle>("handle");
  void* opened = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&opened, handle, kFlag));
  const int seen = value_in(opened);
  say("opens, reads %d", seen);
  if (seen == kValue) channel.signal("opened");
  channel.wait("close");  // one of the two is killed here
  CUDA_CHECK(cudaIpcCloseMemHandle(opened));
  channel.signal("closed");
  return EXIT_SUCCESS;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) {
    Channel channel = channel_from_parent(argv);
    if (!channel.receive<bool>("lends")) return importer(channel);
    void* lent = nullptr;
    channel.send("handle", lend(&lent, sizeof(int), kLent));
    channel.wait("SIGKILL");
  }
  require_gpus(1);
  require(cudaDevAttrIpcEventSupport, "CUDA IPC");
  int result = exporter(start_again(argv), true);
  result |= exporter(start_again(argv), false);
  return result | borrower(start_again(argv));
}
