// SPDX-License-Identifier: Apache-2.0
// Small programs for the race detector: `race NAME right` has no race, `race
// NAME wrong` differs from it in one place and has one. harness/runner/tests/
// test_races.py has the table of names.
#include <cooperative_groups.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda/atomic>
#include <string>

#define CHECK(call)                                                     \
  do {                                                                  \
    if (const cudaError_t error = (call); error != cudaSuccess) {       \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorName(error)); \
      std::exit(2);                                                     \
    }                                                                   \
  } while (false)

namespace {

constexpr int kThreads = 64;

template <cuda::thread_scope kScope>
using Word = cuda::atomic_ref<int, kScope>;
using BlockWord = Word<cuda::thread_scope_block>;
using GpuWord = Word<cuda::thread_scope_device>;
using SystemWord = Word<cuda::thread_scope_system>;

// ---- in a block

__global__ void shared_barrier(int* data, bool right) {
  __shared__ int values[kThreads];
  values[threadIdx.x] = threadIdx.x;
  if (right) __syncthreads();
  data[threadIdx.x] = values[kThreads - 1 - threadIdx.x];
}

__global__ void global_barrier(int* data, bool right) {
  data[threadIdx.x] = threadIdx.x;
  if (right) __syncthreads();
  data[kThreads + threadIdx.x] = data[kThreads - 1 - threadIdx.x];
}

__global__ void warp_barrier(int* data, bool right) {
  data[threadIdx.x] = threadIdx.x;
  if (right) __syncwarp();
  data[kThreads + threadIdx.x] = data[threadIdx.x ^ 1];
}

// All threads read a value that one thread then replaces.
__global__ void broadcast(int* data, bool right) {
  const int value = data[0];
  if (right) __syncthreads();
  if (threadIdx.x == 0) data[0] = 7;
  data[kThreads + threadIdx.x] = value;
}

// The last step of a sum needs a barrier, too.
__global__ void reduction(int* data, bool right) {
  __shared__ int sums[kThreads];
  sums[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  for (int k = kThreads / 2; k > 0; k /= 2) {
    if (threadIdx.x < k) sums[threadIdx.x] += sums[threadIdx.x + k];
    if (right || k > 1) __syncthreads();
  }
  if (threadIdx.x == kThreads - 1) data[kThreads] = sums[0];
}

// The second warp waits for the first one, or arrives where nobody waits.
__global__ void named_barrier(int* data, bool right) {
  const int mine = right || threadIdx.x < 32 ? 1 : 2;
  if (threadIdx.x < 32) {
    data[threadIdx.x] = 1;
    asm volatile("bar.arrive 1, 64;" ::: "memory");
  } else {
    if (mine == 1) asm volatile("bar.sync 1, 64;" ::: "memory");
    data[kThreads + threadIdx.x] = data[threadIdx.x - 32];
  }
}

// ---- between two blocks: data is data[0], the flag is data[64]

__global__ void volatile_flag(int* data, bool right) {
  volatile int* flag = data + kThreads;
  if (blockIdx.x == 0) {
    data[0] = 1;
    if (right) __threadfence();
    *flag = 1;
  } else {
    while (*flag == 0) {
    }
    __threadfence();
    data[1] = data[0];
  }
}

__global__ void release_flag(int* data, bool right) {
  GpuWord flag(data[kThreads]);
  if (blockIdx.x == 0) {
    data[0] = 1;
    flag.store(1,
               right ? cuda::memory_order_release : cuda::memory_order_relaxed);
  } else {
    while (flag.load(cuda::memory_order_acquire) == 0) {
    }
    data[1] = data[0];
  }
}

__global__ void acquire_flag(int* data, bool right) {
  GpuWord flag(data[kThreads]);
  if (blockIdx.x == 0) {
    data[0] = 1;
    flag.store(1, cuda::memory_order_release);
  } else {
    while (flag.load(right ? cuda::memory_order_acquire
                           : cuda::memory_order_relaxed) == 0) {
    }
    data[1] = data[0];
  }
}

__global__ void flag_scope(int* data, bool right) {
  if (blockIdx.x == 0) {
    data[0] = 1;
    if (right)
      GpuWord(data[kThreads]).store(1, cuda::memory_order_release);
    else
      BlockWord(data[kThreads]).store(1, cuda::memory_order_release);
  } else {
    while (GpuWord(data[kThreads]).load(cuda::memory_order_acquire) == 0) {
    }
    data[1] = data[0];
  }
}

__global__ void fence_scope(int* data, bool right) {
  volatile int* flag = data + kThreads;
  if (blockIdx.x == 0) {
    data[0] = 1;
    if (right)
      __threadfence();
    else
      __threadfence_block();
    *flag = 1;
  } else {
    while (*flag == 0) {
    }
    __threadfence();
    data[1] = data[0];
  }
}

// The block that comes last adds what the others wrote.
__global__ void last_block(int* data, bool right) {
  data[blockIdx.x] = 1;
  if (right) __threadfence();
  if (atomicAdd(data + kThreads, 1) == static_cast<int>(gridDim.x) - 1) {
    __threadfence();
    int sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += data[i];
    data[kThreads + 1] = sum;
  }
}

// All threads write, one thread releases: without a barrier only its own write.
__global__ void block_then_flag(int* data, bool right) {
  GpuWord flag(data[2 * kThreads]);
  if (blockIdx.x == 0) {
    data[threadIdx.x] = 1;
    if (right) __syncthreads();
    if (threadIdx.x == 0) flag.store(1, cuda::memory_order_release);
  } else {
    if (threadIdx.x == 0)
      while (flag.load(cuda::memory_order_acquire) == 0) {
      }
    __syncthreads();
    data[kThreads + threadIdx.x] = data[threadIdx.x];
  }
}

// More threads than a clock has room for release one word.
__global__ void many_release(int* data, bool right) {
  GpuWord count(data[2 * blockDim.x]);
  data[threadIdx.x] = 1;
  if (right) {
    count.fetch_add(1, cuda::memory_order_release);
    while (count.load(cuda::memory_order_acquire) <
           static_cast<int>(blockDim.x)) {
    }
  }
  data[blockDim.x + threadIdx.x] = data[blockDim.x - 1 - threadIdx.x];
}

__global__ void accumulate(int* data, bool right) {
  if (right)
    atomicAdd(data, 1);
  else
    *data += 1;
}

__global__ void grid_barrier(int* data, bool right) {
  data[blockIdx.x] = 1;
  if (right) cooperative_groups::this_grid().sync();
  data[kThreads + blockIdx.x] = data[gridDim.x - 1 - blockIdx.x];
}

// Two blocks of one cluster.
__global__ void __cluster_dims__(2) cluster_scope(int* data, bool right) {
  int* flag = data + kThreads;
  if (blockIdx.x == 0) {
    data[0] = 1;
    if (right)
      asm volatile("st.release.cluster.b32 [%0], 1;" ::"l"(flag) : "memory");
    else
      BlockWord(*flag).store(1, cuda::memory_order_release);
  } else {
    int seen = 0;
    while (seen == 0)
      asm volatile("ld.acquire.cluster.b32 %0, [%1];"
                   : "=r"(seen)
                   : "l"(flag)
                   : "memory");
    data[1] = data[0];
  }
}

// ---- asynchronous copies

__device__ unsigned in_shared(const void* address) {
  return static_cast<unsigned>(__cvta_generic_to_shared(address));
}

__device__ void copy_later(int* to, const int* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(in_shared(to)),
               "l"(from)
               : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// A barrier alone does not wait for the copies.
__global__ void copy_async(int* data, bool right) {
  __shared__ int values[kThreads];
  copy_later(values + threadIdx.x, data + threadIdx.x);
  if (right) asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  data[kThreads + threadIdx.x] = values[kThreads - 1 - threadIdx.x];
}

// The wait leaves the newer of two groups.
__global__ void copy_groups(int* data, bool right) {
  __shared__ int older[kThreads], newer[kThreads];
  copy_later(older + threadIdx.x, data + threadIdx.x);
  copy_later(newer + threadIdx.x, data + threadIdx.x);
  asm volatile("cp.async.wait_group 1;" ::: "memory");
  data[kThreads + threadIdx.x] = (right ? older : newer)[threadIdx.x];
}

// All threads wait for the mbarrier that counts the bytes, or for none.
__global__ void bulk_load(int* data, bool right) {
  __shared__ alignas(16) int values[kThreads];
  __shared__ uint64_t object;
  const unsigned counter = in_shared(&object);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(counter) : "memory");
    asm volatile(
        "mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(counter),
        "n"(sizeof values)
        : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1], %2, [%3];" ::"r"(in_shared(values)),
        "l"(data), "n"(sizeof values), "r"(counter)
        : "memory");
  }
  __syncthreads();
  for (unsigned done = !right; done == 0;)
    asm volatile(
        "{ .reg .pred p;\n"
        "mbarrier.try_wait.parity.shared.b64 p, [%1], 0;\n"
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(counter)
        : "memory");
  data[kThreads + threadIdx.x] = values[kThreads - 1 - threadIdx.x];
}

// With .read the wait says only that the source may be written.
__global__ void bulk_store(int* data, bool right) {
  __shared__ alignas(16) int values[kThreads];
  values[threadIdx.x] = threadIdx.x;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
        "cp.async.bulk.commit_group;" ::"l"(data),
        "r"(in_shared(values)), "n"(sizeof values)
        : "memory");
    if (right)
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    else
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
  __syncthreads();
  data[kThreads + threadIdx.x] = data[kThreads - 1 - threadIdx.x];
}

// ---- between launches

__global__ void write_all(int* data, int value) {
  data[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

__global__ void read_all(const int* data, int* to) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = data[i];
}

// ---- between GPUs and processes: the data of all threads, then a flag

template <class Flag>
__device__ void send(int* data, bool barrier) {
  data[threadIdx.x] = 1;
  if (barrier) __syncthreads();
  if (threadIdx.x == 0)
    Flag(data[kThreads]).store(1, cuda::memory_order_release);
}

__global__ void send_gpu(int* data) { send<GpuWord>(data, true); }
__global__ void send_system(int* data, bool barrier) {
  send<SystemWord>(data, barrier);
}

__global__ void receive(int* data) {
  SystemWord flag(data[kThreads]);
  if (threadIdx.x == 0)
    while (flag.load(cuda::memory_order_acquire) == 0) {
    }
  __syncthreads();
  data[2 * kThreads + threadIdx.x] = data[threadIdx.x];
}

// One step of an all-reduce: each side writes to the other, both meet, each
// reads what it got. Without the first barrier, the flag covers one thread.
__global__ void meet(int* mine, int* theirs, bool right) {
  theirs[threadIdx.x] = 1;
  if (right) __syncthreads();
  if (threadIdx.x == 0) {
    SystemWord(theirs[kThreads]).store(1, cuda::memory_order_release);
    while (SystemWord(mine[kThreads]).load(cuda::memory_order_acquire) == 0) {
    }
  }
  __syncthreads();
  mine[2 * kThreads + threadIdx.x] = mine[threadIdx.x];
}

__global__ void count(int* data, bool system) {
  if (system)
    atomicAdd_system(data, 1);
  else
    atomicAdd(data, 1);
}

// ---- the programs

constexpr size_t kBytes = 4096;

int* new_data() {
  int* data = nullptr;
  CHECK(cudaMalloc(&data, kBytes));
  CHECK(cudaMemset(data, 0, kBytes));
  CHECK(cudaDeviceSynchronize());
  return data;
}

cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, flags));
  return stream;
}

using Kernel = void (*)(int*, bool);
struct OneKernel {
  const char* name;
  Kernel kernel;
  unsigned blocks;
  unsigned threads;
};
const OneKernel kKernels[] = {
    {"shared_barrier", shared_barrier, 1, kThreads},
    {"global_barrier", global_barrier, 1, kThreads},
    {"warp_barrier", warp_barrier, 1, 32},
    {"broadcast", broadcast, 1, kThreads},
    {"reduction", reduction, 1, kThreads},
    {"named_barrier", named_barrier, 1, kThreads},
    {"volatile_flag", volatile_flag, 2, 1},
    {"release_flag", release_flag, 2, 1},
    {"acquire_flag", acquire_flag, 2, 1},
    {"flag_scope", flag_scope, 2, 1},
    {"fence_scope", fence_scope, 2, 1},
    {"last_block", last_block, 4, 1},
    {"block_then_flag", block_then_flag, 2, kThreads},
    {"many_release", many_release, 1, 4 * kThreads},
    {"accumulate", accumulate, 4, 32},
    {"cluster_scope", cluster_scope, 2, 1},
    {"copy_async", copy_async, 1, kThreads},
    {"copy_groups", copy_groups, 1, kThreads},
    {"bulk_load", bulk_load, 1, kThreads},
    {"bulk_store", bulk_store, 1, kThreads},
};

bool is(const char* name, const char* other) {
  return std::strcmp(name, other) == 0;
}

// Two streams write and read the same data.
bool run_streams(const char* name, bool right) {
  int* data = new_data();
  int* to = new_data();
  cudaEvent_t event;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  cudaStream_t first = new_stream(), second = new_stream();
  if (is(name, "event")) {
    write_all<<<1, kThreads, 0, first>>>(data, 1);
    CHECK(cudaEventRecord(event, first));
    if (right) CHECK(cudaStreamWaitEvent(second, event));
    read_all<<<1, kThreads, 0, second>>>(data, to);
  } else if (is(name, "event_too_early")) {
    if (!right) CHECK(cudaEventRecord(event, first));
    write_all<<<1, kThreads, 0, first>>>(data, 1);
    if (right) CHECK(cudaEventRecord(event, first));
    CHECK(cudaStreamWaitEvent(second, event));
    read_all<<<1, kThreads, 0, second>>>(data, to);
  } else if (is(name, "host")) {
    write_all<<<1, kThreads, 0, first>>>(data, 1);
    if (right) CHECK(cudaStreamSynchronize(first));
    read_all<<<1, kThreads, 0, second>>>(data, to);
  } else if (is(name, "legacy_stream")) {
    cudaStream_t blocking = new_stream(cudaStreamDefault);
    write_all<<<1, kThreads>>>(data, 1);
    read_all<<<1, kThreads, 0, right ? blocking : second>>>(data, to);
  } else if (is(name, "graph_branch")) {  // a branch must come after another
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal));
    CHECK(cudaEventRecord(event, first));
    if (!right) CHECK(cudaStreamWaitEvent(second, event));
    write_all<<<1, kThreads, 0, first>>>(data, 1);
    CHECK(cudaEventRecord(event, first));
    if (right) CHECK(cudaStreamWaitEvent(second, event));
    read_all<<<1, kThreads, 0, second>>>(data, to);
    CHECK(cudaEventRecord(event, second));
    CHECK(cudaStreamWaitEvent(first, event));
    CHECK(cudaStreamEndCapture(first, &graph));
    cudaGraphExec_t launched;
    CHECK(cudaGraphInstantiate(&launched, graph, 0));
    for (int k = 0; k < 2; ++k) CHECK(cudaGraphLaunch(launched, first));
    read_all<<<1, kThreads, 0, first>>>(data, to);
  } else if (is(name, "copy")) {
    CHECK(cudaMemcpyAsync(data, to, kBytes, cudaMemcpyDefault, first));
    read_all<<<1, kThreads, 0, right ? first : second>>>(data, to + kThreads);
  } else if (is(name, "copy_of_pageable")) {  // returns before its end
    const int values[kThreads] = {};
    CHECK(cudaMemcpy(data, values, sizeof values, cudaMemcpyHostToDevice));
    if (right) CHECK(cudaStreamSynchronize(nullptr));
    read_all<<<1, kThreads, 0, first>>>(data, to);
  } else if (is(name, "copy_of_old")) {  // the copy reads, the kernel writes
    CHECK(cudaMemcpyAsync(to, data, kBytes, cudaMemcpyDefault, first));
    CHECK(cudaEventRecord(event, first));
    if (right) CHECK(cudaStreamWaitEvent(second, event));
    write_all<<<1, 1, 0, second>>>(data, 1);
  } else if (is(name, "copy_twice")) {  // a kernel wrote, two copies read
    write_all<<<kBytes / sizeof(int) / kThreads, kThreads, 0, first>>>(data, 1);
    for (int k = 0; k < 2; ++k)
      CHECK(cudaMemcpyAsync(to, data, kBytes, cudaMemcpyDefault, first));
    CHECK(cudaEventRecord(event, first));
    if (right) CHECK(cudaStreamWaitEvent(second, event));
    CHECK(cudaMemsetAsync(data, 2, kBytes, second));
  } else if (is(name,
                "kernel_after_copy")) {  // the kernel's write, not the copy
    int* mine = new_data();
    write_all<<<kBytes / sizeof(int) / kThreads, kThreads, 0, first>>>(data, 1);
    if (right) CHECK(cudaEventRecord(event, first));
    CHECK(cudaMemcpyAsync(to, data, kBytes, cudaMemcpyDefault, first));
    if (right) CHECK(cudaStreamWaitEvent(second, event));
    read_all<<<1, kThreads, 0, second>>>(data, mine);
  } else if (is(name, "memset")) {
    CHECK(cudaMemsetAsync(data, 1, kBytes, first));
    write_all<<<1, kThreads, 0, right ? first : second>>>(data, 2);
  } else {
    return false;
  }
  CHECK(cudaDeviceSynchronize());
  return true;
}

// Two GPUs of one process.
bool run_gpus(const char* name, bool right) {
  const bool flag = is(name, "gpus_flag");
  if (!flag && !is(name, "gpus_count")) return false;
  int* data = new_data();
  if (flag) {
    if (right)
      send_system<<<1, kThreads, 0, new_stream()>>>(data, true);
    else
      send_gpu<<<1, kThreads, 0, new_stream()>>>(data);
  } else {
    count<<<1, 1, 0, new_stream()>>>(data, right);
  }
  CHECK(cudaSetDevice(1));
  CHECK(cudaDeviceEnablePeerAccess(0, 0));
  if (flag)
    receive<<<1, kThreads, 0, new_stream()>>>(data);
  else
    count<<<1, 1, 0, new_stream()>>>(data, right);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaSetDevice(0));
  CHECK(cudaDeviceSynchronize());
  return true;
}

// ---- two processes

struct Handles {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
};

template <class T>
void put(int socket, const T& value) {
  if (write(socket, &value, sizeof value) != sizeof value) std::exit(3);
}

template <class T>
T get(int socket) {
  T value;
  if (read(socket, &value, sizeof value) != sizeof value) std::exit(3);
  return value;
}

int importer(const char* name, bool right, int socket) {
  const auto handles = get<Handles>(socket);
  void* opened = nullptr;
  CHECK(cudaIpcOpenMemHandle(&opened, handles.memory,
                             cudaIpcMemLazyEnablePeerAccess));
  int* theirs = static_cast<int*>(opened);
  int* mine = new_data();
  if (is(name, "processes_meet")) {
    cudaIpcMemHandle_t memory;
    CHECK(cudaIpcGetMemHandle(&memory, mine));
    put(socket, memory);
    meet<<<1, kThreads>>>(mine, theirs, right);
  } else if (is(name, "processes_flag") || is(name, "processes_signal")) {
    receive<<<1, kThreads>>>(theirs);
  } else {
    cudaEvent_t event;
    CHECK(cudaIpcOpenEventHandle(&event, handles.event));
    get<int>(socket);
    if (is(name, "processes_event") && right)
      CHECK(cudaStreamWaitEvent(nullptr, event));
    read_all<<<1, kThreads>>>(theirs, mine);
  }
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaIpcCloseMemHandle(opened));
  put(socket, 1);
  return 0;
}

int exporter(const char* name, bool right, int socket) {
  int* data = new_data();
  cudaEvent_t event;
  CHECK(cudaEventCreateWithFlags(
      &event, cudaEventDisableTiming | cudaEventInterprocess));
  Handles handles;
  CHECK(cudaIpcGetMemHandle(&handles.memory, data));
  CHECK(cudaIpcGetEventHandle(&handles.event, event));
  put(socket, handles);
  void* opened = nullptr;
  if (is(name, "processes_meet")) {
    const auto memory = get<cudaIpcMemHandle_t>(socket);
    CHECK(
        cudaIpcOpenMemHandle(&opened, memory, cudaIpcMemLazyEnablePeerAccess));
    meet<<<1, kThreads>>>(data, static_cast<int*>(opened), right);
  } else if (is(name, "processes_flag")) {
    if (right)
      send_system<<<1, kThreads>>>(data, true);
    else
      send_gpu<<<1, kThreads>>>(data);
  } else if (is(name, "processes_signal")) {
    send_system<<<1, kThreads>>>(data, right);
  } else {
    write_all<<<1, kThreads>>>(data, 1);
    CHECK(cudaEventRecord(event));
    if (is(name, "processes_host") && right) CHECK(cudaDeviceSynchronize());
    put(socket, 1);
  }
  get<int>(socket);
  CHECK(cudaDeviceSynchronize());
  if (opened != nullptr) CHECK(cudaIpcCloseMemHandle(opened));
  CHECK(cudaFree(data));
  return 0;
}

int run_processes(char** argv, bool right) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return 3;
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    const std::string socket = std::to_string(ends[1]);
    execl("/proc/self/exe", argv[0], argv[1], argv[2], socket.c_str(), nullptr);
    _exit(3);
  }
  close(ends[1]);
  const int mine = exporter(argv[1], right, ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return mine != 0 ? mine : status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  alarm(120);  // the deadline of every wait, in each process
  const char* name = argv[1];
  const bool right = is(argv[2], "right");
  if (argc == 4) return importer(name, right, std::atoi(argv[3]));
  if (std::strncmp(name, "processes_", 10) == 0)
    return run_processes(argv, right);
  if (is(name, "grid_barrier")) {
    int* data = new_data();
    bool given = right;
    void* arguments[] = {&data, &given};
    CHECK(cudaLaunchCooperativeKernel(grid_barrier, 4, 1, arguments));
    CHECK(cudaDeviceSynchronize());
    return 0;
  }
  for (const OneKernel& one : kKernels) {
    if (!is(name, one.name)) continue;
    one.kernel<<<one.blocks, one.threads>>>(new_data(), right);
    CHECK(cudaDeviceSynchronize());
    return 0;
  }
  return run_streams(name, right) || run_gpus(name, right) ? 0 : 2;
}
