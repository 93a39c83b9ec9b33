// Exercise 49: a ring of frames (a project).
//
// A camera (exporter) writes frames into a ring of four slots; a viewer
// (importer) copies each frame. Each slot has two events, "filled" and
// "emptied"; messages say that an event was recorded. In the loop over
// the frames no host may wait for a GPU. The viewer is right. The
// camera writes into slots that the viewer has not emptied. Fix the
// camera.
// The exercise fails now because frames are overwritten before they are
// copied.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kSlots = 4;
constexpr int kFrames = 12;
constexpr int kCount = 1 << 17;  // values of a frame
constexpr size_t kBytes = kCount * sizeof(int);

int first_value(int frame) { return 1000000 * (frame + 1); }

struct Ring {
  int* frames;  // kSlots frames
  cudaEvent_t filled[kSlots];
  cudaEvent_t emptied[kSlots];

  int* slot(int frame) const {
    return frames + (frame % kSlots) * kCount;
  }
};

// ---- the camera

int exporter(Channel& channel) {
  Ring ring;
  ring.frames = static_cast<int*>(allocate_values(kSlots * kCount, 0));
  channel.send("frames", handle_of(ring.frames));
  for (int i = 0; i < kSlots; ++i) {
    ring.filled[i] = create_shared_event();
    ring.emptied[i] = create_shared_event();
    channel.send("filled", handle_of(ring.filled[i]));
    channel.send("emptied", handle_of(ring.emptied[i]));
  }

  for (int frame = 0; frame < kFrames; ++frame) {
    // TODO: is the slot empty? The viewer queues a copy, records
    // `emptied`, and then signals "emptied".
    write_values(ring.slot(frame), kCount, first_value(frame));
    CUDA_CHECK(cudaEventRecord(ring.filled[frame % kSlots], nullptr));
    channel.signal("filled");
  }
  for (int frame = 0; frame < kFrames; ++frame) channel.wait("emptied");
  say("has queued %d frames; its stream is %s", kFrames,
      is_held(nullptr) ? "held by the viewer" : "NOT held");
  channel.signal("queued");

  channel.wait("closed");
  CUDA_CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < kSlots; ++i) {
    CUDA_CHECK(cudaEventDestroy(ring.filled[i]));
    CUDA_CHECK(cudaEventDestroy(ring.emptied[i]));
  }
  CUDA_CHECK(cudaFree(ring.frames));

  return EXIT_SUCCESS;
}

// ---- the viewer

int importer(Channel channel) {
  int* seen = static_cast<int*>(allocate_values(kFrames * kCount, 0));
  Gate* gate = create_gate();
  Ring ring;
  ring.frames = static_cast<int*>(
      open_memory(channel.receive<cudaIpcMemHandle_t>("frames")));
  for (int i = 0; i < kSlots; ++i) {
    ring.filled[i] =
        open_event(channel.receive<cudaIpcEventHandle_t>("filled"));
    ring.emptied[i] =
        open_event(channel.receive<cudaIpcEventHandle_t>("emptied"));
  }

  hold(nullptr, gate);  // imitates a slow viewer
  for (int frame = 0; frame < kFrames; ++frame) {
    channel.wait("filled");
    const int i = frame % kSlots;
    CUDA_CHECK(cudaStreamWaitEvent(nullptr, ring.filled[i]));
    CUDA_CHECK(cudaMemcpyAsync(seen + frame * kCount, ring.slot(frame),
                               kBytes, cudaMemcpyDefault));
    CUDA_CHECK(cudaEventRecord(ring.emptied[i], nullptr));
    channel.signal("emptied");
  }
  channel.wait("queued");
  open_gate(gate);

  int wrong = 0;
  for (int frame = 0; frame < kFrames; ++frame)
    wrong += count_wrong(seen + frame * kCount, kCount,
                         first_value(frame)) != 0;
  say("has seen %d frames: %d wrong", kFrames, wrong);
  for (int i = 0; i < kSlots; ++i) {
    CUDA_CHECK(cudaEventDestroy(ring.filled[i]));
    CUDA_CHECK(cudaEventDestroy(ring.emptied[i]));
  }
  CUDA_CHECK(cudaIpcCloseMemHandle(ring.frames));
  CUDA_CHECK(cudaFree(seen));
  destroy_gate(gate);
  channel.signal("closed");

  return exit_code(wrong);
}
