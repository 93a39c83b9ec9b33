// Exercise 61: room for two frames.
//
// The exporter's pool has room for two frames, and the exporter sends
// six frames. The exporter keeps every frame until the end, so the
// third frame has no room. Free each frame after the importer has sent
// "freed".
// The exercise fails now because an allocation beyond the limit is
// refused.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 4 << 20;
constexpr size_t kFrame = kCount * sizeof(int);
constexpr int kChecked = 1 << 16;  // values of a frame that are checked
constexpr int kFrames = 6;
constexpr int kValue = 1000000;

int exporter(Channel& channel) {
  cudaMemPool_t pool =
      create_pool(cudaMemHandleTypePosixFileDescriptor, 2 * kFrame);
  send_pool(channel, pool);

  std::vector<void*> frames;
  for (int i = 0; i < kFrames; ++i) {
    void* frame = nullptr;
    CUDA_CHECK(cudaMallocFromPoolAsync(&frame, kFrame, pool, nullptr));
    write_values(frame, kChecked, kValue + i);
    CUDA_CHECK(cudaStreamSynchronize(nullptr));
    cudaMemPoolPtrExportData pointer;
    CUDA_CHECK(cudaMemPoolExportPointer(&pointer, frame));
    channel.send("frame", pointer);
    frames.push_back(frame);
    channel.wait("freed");
  }
  for (void* frame : frames) CUDA_CHECK(cudaFreeAsync(frame, nullptr));
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  cuuint64_t most = 0;
  CUDA_CHECK(
      cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &most));
  say("has had %d frames at once%s", static_cast<int>(most / kFrame),
      most > 2 * kFrame ? ", which is NOT at most two" : "");
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  return most <= 2 * kFrame ? EXIT_SUCCESS : EXIT_FAILURE;
}

int importer(Channel channel) {
  cudaMemPool_t pool = receive_pool(channel);
  int wrong = 0;
  for (int i = 0; i < kFrames; ++i) {
    auto pointer = channel.receive<cudaMemPoolPtrExportData>("frame");
    void* frame = nullptr;
    CUDA_CHECK(cudaMemPoolImportPointer(&frame, pool, &pointer));
    wrong += count_wrong(frame, kChecked, kValue + i);
    say("reads frame %d: %d wrong until now", i, wrong);
    CUDA_CHECK(cudaFree(frame));
    channel.signal("freed");
  }
  CUDA_CHECK(cudaMemPoolDestroy(pool));

  return exit_code(wrong);
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);
  require(cudaDevAttrMemoryPoolSupportedHandleTypes, "shared pools");

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
