// Measures what the ring of lesson 74 costs. A producer and a consumer
// pass items through four slots. For comparison the same kernels run
// without waits. If there are two GPUs, the consumer has its own GPU.
// On one GPU the two processes take turns.
//
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "../common/data.h"
#include "../common/roles.h"
#include "ring.h"
#include "ways.h"

constexpr int kTrials = 7;
constexpr size_t kPassed = size_t{8} << 30;  // bytes of a measurement
constexpr size_t kSmallest = size_t{1} << 20,
                 kLargest = size_t{64} << 20;
constexpr double kWanted =
    0.90;  // on two GPUs: ring / slower side alone

/// Which of the two sides work, and whether they wait for each other.
enum class Work { kProducer, kConsumer, kBoth };

/// The slots and the words, in memory of the exporter.
struct Shared {
  LegacyHandle words;
  void* slots;
  cudaStream_t stream;

  Ring ring() const { return {slots, words.data}; }
};

__global__ void check_item(const int4* item, int first, int* wrong) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int4 seen = item[i];
  const int at = first + 4 * i;
  if (seen.x != at || seen.y != at + 1 || seen.z != at + 2 ||
      seen.w != at + 3)
    atomicAdd(wrong, 1);
}

// Returns the first value of an item. The values repeat after 16 items.
int first_value(int item) { return item % 16 << 24; }

// Returns the milliseconds of one side for `items` items of `count`
// values.
double pass(Shared& shared, bool producer, bool waits, int items,
            int count, int* wrong) {
  const Ring ring = shared.ring();
  cudaEvent_t begin, end;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  CUDA_CHECK(cudaEventRecord(begin, shared.stream));
  for (int item = 0; item < items; ++item) {
    int* slot =
        static_cast<int*>(ring.slots) + size_t(item % kSlots) * count;
    if (producer) {
      if (waits && item >= kSlots)
        wait_for(shared.stream, ring.taken(0), item - kSlots + 1);
      write_values(slot, count, first_value(item), shared.stream);
      if (waits) write(shared.stream, ring.made(), item + 1);
    } else {
      if (waits) wait_for(shared.stream, ring.made(), item + 1);
      check_item<<<count / 1024, 256, 0, shared.stream>>>(
          reinterpret_cast<const int4*>(slot), first_value(item),
          wrong);
      CUDA_CHECK(cudaGetLastError());
      if (waits) write(shared.stream, ring.taken(0), item + 1);
    }
  }
  CUDA_CHECK(cudaEventRecord(end, shared.stream));
  CUDA_CHECK(cudaStreamSynchronize(shared.stream));
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  return ms;
}

// The importer's next work. The importer ends if `items` is 0.
struct Task {
  Work work;
  int items;
  int count;
};

// Returns GB/s of the side that works, or of the slower of two sides.
double measure(Shared& shared, Channel& importer, Task task) {
  CUDA_CHECK(cudaMemset(shared.words.data, 0, kWordBytes));
  CUDA_CHECK(cudaDeviceSynchronize());
  importer.send("task", task);
  importer.receive<int>("ready");
  double ms = 0;
  if (task.work != Work::kConsumer)
    ms = pass(shared, true, task.work == Work::kBoth, task.items,
              task.count, nullptr);
  ms = std::max(ms, importer.receive<double>("ms"));
  return 1e-6 * task.items * task.count * sizeof(int) / ms;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int exporter(Child child, size_t passed) {
  int gpus = 0;
  CUDA_CHECK(cudaGetDeviceCount(&gpus));
  Shared shared{};
  CUDA_CHECK(
      cudaStreamCreateWithFlags(&shared.stream, cudaStreamNonBlocking));
  shared.words.make();
  CUDA_CHECK(cudaMalloc(&shared.slots, kSlots * kLargest));
  shared.words.lend(child.channel);
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, shared.slots));
  child.channel.send("slots", handle);

  say("one process each on %d GPU(s), medians of %d, GB/s",
      std::min(gpus, 2), kTrials);
  say("%9s %9s %9s %9s %6s", "item", "producer", "consumer", "ring",
      "ratio");
  bool reached = false;
  for (size_t bytes = kSmallest; bytes <= kLargest; bytes *= 4) {
    const int count = static_cast<int>(bytes / sizeof(int));
    const int items =
        static_cast<int>(std::clamp<size_t>(passed / bytes, 8, 2048));
    std::vector<double> alone[2], ring;
    for (int trial = 0; trial < kTrials; ++trial) {
      // First only the producer, then only the consumer, then both.
      alone[0].push_back(measure(shared, child.channel,
                                 {Work::kProducer, items, count}));
      alone[1].push_back(measure(shared, child.channel,
                                 {Work::kConsumer, items, count}));
      ring.push_back(
          measure(shared, child.channel, {Work::kBoth, items, count}));
    }
    const double slower = std::min(median(alone[0]), median(alone[1]));
    const double ratio = median(ring) / slower;
    reached |= ratio >= kWanted;
    say("%5zu MiB %9.1f %9.1f %9.1f %6.2f", bytes >> 20,
        median(alone[0]), median(alone[1]), median(ring), ratio);
  }
  if (gpus > 1)
    say("at least %.2f: %s", kWanted,
        reached ? "reached" : "NOT REACHED");

  child.channel.send("task", Task{});
  const int wrong = child.channel.receive<int>("wrong");
  say("%d values of the ring were wrong", wrong);
  CUDA_CHECK(cudaStreamDestroy(shared.stream));
  CUDA_CHECK(cudaFree(shared.slots));
  shared.words.release();
  return child.finish(wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
}

int importer(Channel channel) {
  int gpus = 0;
  CUDA_CHECK(cudaGetDeviceCount(&gpus));
  CUDA_CHECK(cudaSetDevice(std::min(gpus, 2) - 1));
  Shared shared{};
  CUDA_CHECK(
      cudaStreamCreateWithFlags(&shared.stream, cudaStreamNonBlocking));
  shared.words.borrow(channel);
  const auto handle = channel.receive<cudaIpcMemHandle_t>("slots");
  CUDA_CHECK(cudaIpcOpenMemHandle(&shared.slots, handle,
                                  cudaIpcMemLazyEnablePeerAccess));
  int* wrong = static_cast<int*>(allocate_values(1, 0));

  int all_wrong = 0;
  for (;;) {
    const auto task = channel.receive<Task>("task");
    if (task.items == 0) break;
    CUDA_CHECK(cudaMemset(wrong, 0, sizeof *wrong));
    CUDA_CHECK(cudaDeviceSynchronize());
    channel.send("ready", 0);
    double ms = 0;
    if (task.work != Work::kProducer)
      ms = pass(shared, false, task.work == Work::kBoth, task.items,
                task.count, wrong);
    channel.send("ms", ms);
    int seen = 0;
    CUDA_CHECK(
        cudaMemcpy(&seen, wrong, sizeof seen, cudaMemcpyDefault));
    // Without the producer, the slots do not have the expected items.
    if (task.work == Work::kBoth) all_wrong += seen;
  }
  channel.send("wrong", all_wrong);

  CUDA_CHECK(cudaFree(wrong));
  CUDA_CHECK(cudaIpcCloseMemHandle(shared.slots));
  shared.words.give_back();
  CUDA_CHECK(cudaStreamDestroy(shared.stream));
  return EXIT_SUCCESS;
}

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], kImporterFlag) == 0)
    return importer(channel_from_parent(argv));
  if (argc > 2 || (argc == 2 && std::atoi(argv[1]) < 1)) {
    std::fprintf(stderr,
                 "usage: %s [MIB]   (one measurement, default: %zu)\n",
                 argv[0], kPassed >> 20);
    return 2;
  }
  require_gpus(1);
  require_legacy_ipc();
  const size_t passed =
      argc == 2 ? size_t(std::atoi(argv[1])) << 20 : kPassed;
  char* alone[] = {argv[0], nullptr};
  return exporter(start_again(alone), passed);
}
