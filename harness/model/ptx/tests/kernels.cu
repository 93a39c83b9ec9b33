// SPDX-License-Identifier: Apache-2.0
// Kernels for the tests of whole language features.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

#include <cassert>
#include <cstdio>
#include <cuda/atomic>

namespace cg = cooperative_groups;

// --- calls -----------------------------------------------------------------

struct Packet {
  int a;
  double b;
  char c[5];
};

__device__ __noinline__ Packet change(Packet p, int k) {
  p.a += k;
  p.b *= k;
  p.c[k % 5] = static_cast<char>(k);
  return p;
}

__device__ __noinline__ unsigned ackermann(unsigned m, unsigned n) {
  if (m == 0) return n + 1;
  if (n == 0) return ackermann(m - 1, 1);
  return ackermann(m - 1, ackermann(m, n - 1));
}

__device__ __noinline__ int fibonacci(int n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

using Operation = int (*)(int);
__device__ int add_one(int x) { return x + 1; }
__device__ int twice(int x) { return 2 * x; }
__device__ int square(int x) { return x * x; }
__device__ Operation operations[3] = {add_one, twice, square};

extern "C" __global__ void call_functions(int* out, Packet packet, int n) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= n) return;
  const Packet p = change(packet, t);
  out[4 * t] = p.a + static_cast<int>(p.b) + p.c[t % 5];
  out[4 * t + 1] = fibonacci(t % 11);
  out[4 * t + 2] = operations[t % 3](t);
  out[4 * t + 3] = static_cast<int>(ackermann(2, t % 5));
}

__device__ __noinline__ int endless_recursion(int n) {
  return n == -1 ? 0 : endless_recursion(n + 1) * 3 + 1;
}
extern "C" __global__ void overflow_stack(int* out) {
  out[0] = endless_recursion(threadIdx.x);
}

// The array of each caller must survive the inner call.
__device__ __noinline__ int recursive_arrays(int n) {
  int a[4] = {n, n * 3, n - 7, n ^ 5};
  if (n == 0) return a[2];
  a[n & 3] += 100;
  const int below = recursive_arrays(n - 1);
  return below + a[(n + below) & 3];
}
extern "C" __global__ void sum_arrays(int* out) {
  out[threadIdx.x] = recursive_arrays(threadIdx.x % 20);
}

// --- control flow ----------------------------------------------------------

extern "C" __global__ void collatz(const unsigned* in, unsigned* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned long long value = in[i];
  unsigned steps = 0;
  while (true) {
    if (value <= 1) break;
    if (steps == 500) break;
    if (value % 2 == 0) {
      value /= 2;
    } else {
      value = 3 * value + 1;
      if (value % 3 == 0) continue;  // never true: value is 3n + 1
    }
    ++steps;
  }
  out[i] = steps;
}

extern "C" __global__ void choose(const int* in, int* out) {
  const int i = threadIdx.x;
  int v = in[i];
  switch (v) {
    case 0:
      v = 17;
      break;
    case 1:
      v *= 5;
    case 2:
      v += 100;
      break;
    case 3:
      v = -v;
      break;
    case 4:
      out[i + 64] = 4;
      v = 1;
      break;
    case 5:
      v <<= 4;
      break;
    case 6:
      v = v * v - 1;
      break;
    case 7:
      v = in[i + 1];
      break;
    default:
      v = -1;
  }
  out[i] = v;
}

// Each lane waits for the next higher lane of the same warp.
extern "C" __global__ void lane_chain(volatile int* flags) {
  const int t = threadIdx.x;
  if (t != 31) {
    while (flags[t + 1] == 0) {
    }
  }
  __threadfence();
  flags[t] = flags[t + 1] + 1;
}

extern "C" __global__ void spin_lock(int* lock, int* counter) {
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      *reinterpret_cast<volatile int*>(counter) += 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}

// Every block waits for all others without a cooperative launch.
extern "C" __global__ void block_barrier(int* arrived, int* out) {
  if (threadIdx.x == 0) {
    atomicAdd(arrived, 1);
    while (*reinterpret_cast<volatile int*>(arrived) <
           static_cast<int>(gridDim.x)) {
    }
    out[blockIdx.x] = *reinterpret_cast<volatile int*>(arrived);
  }
}

extern "C" __global__ void grid_sync(int* data, int rounds) {
  auto grid = cg::this_grid();
  const unsigned me = grid.thread_rank(), n = grid.size();
  for (int r = 0; r < rounds; ++r) {
    const int next = data[(me + 1) % n];
    grid.sync();
    data[me] = next + 1;
    grid.sync();
  }
}

// --- barriers, shared memory -----------------------------------------------

extern "C" __global__ void barrier_loop(int* out, int rounds) {
  __shared__ int ring[256];
  const int t = threadIdx.x, n = blockDim.x;
  ring[t] = t;
  for (int r = 0; r < rounds; ++r) {
    __syncthreads();
    const int v = ring[(t + 1) % n];
    __syncthreads();
    ring[t] = v;
  }
  out[blockIdx.x * n + t] = ring[t];
}

extern "C" __global__ void barrier_votes(int* out) {
  const int t = threadIdx.x;
  const int count = __syncthreads_count(t % 3 == 0);
  const int all = __syncthreads_and(t >= 0);
  const int any = __syncthreads_or(t == 1000);
  out[t] = count * 4 + all * 2 + any;
}

extern __shared__ double dynamic[];
extern "C" __global__ void dynamic_shared(double* out, int n) {
  __shared__ int fixed[33];
  const int t = threadIdx.x;
  fixed[t % 33] = 0;
  for (int k = t; k < n; k += blockDim.x) dynamic[k] = k * 0.5;
  __syncthreads();
  double sum = fixed[t % 33];
  for (int k = 0; k < n; ++k) sum += dynamic[k];
  out[t] = sum;
}

__device__ __noinline__ int shared_in_function(int v) {
  __shared__ int cell[64];
  cell[threadIdx.x] = v;
  __syncthreads();
  return cell[63 - threadIdx.x];
}
extern "C" __global__ void two_shared(int* out) {
  __shared__ int own[64];
  own[threadIdx.x] = 1000 + threadIdx.x;
  __syncthreads();
  const int other = shared_in_function(threadIdx.x);
  out[threadIdx.x] = own[63 - threadIdx.x] + other;
}

// --- warps -----------------------------------------------------------------

extern "C" __global__ void warp_reduce(const int* in, int* out) {
  const int t = threadIdx.x;
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  out[t] = cg::reduce(tile, in[t], cg::plus<int>());
  int v = in[t];
  for (int o = 16; o > 0; o /= 2) v += __shfl_down_sync(~0u, v, o);
  if (t % 32 == 0) out[blockDim.x + t / 32] = v;
  if (t % 3 == 1) {
    auto some = cg::coalesced_threads();
    if (some.thread_rank() == 0) out[blockDim.x + 16 + t / 32] = some.size();
  }
}

// --- memory ----------------------------------------------------------------

__device__ unsigned counter = 41;
__device__ int values[5] = {1, 2, 3};
__device__ int* pointer_to_value = &values[2];
__constant__ float table[4] = {0.5f, 1.5f, 2.5f, 3.5f};
__managed__ int managed = 9;

extern "C" __global__ void variables(float* out) {
  const int t = threadIdx.x;
  atomicAdd(&counter, 1u);
  out[t] = table[t & 3] + *pointer_to_value + managed;
}

extern "C" __global__ void wide_index(char* data, unsigned long long offset) {
  data[offset + threadIdx.x] = static_cast<char>(threadIdx.x);
}

extern "C" __global__ void local_array(int* out, int n) {
  int stack[40];
  for (int k = 0; k < 40; ++k) stack[k] = k * threadIdx.x;
  for (int k = 1; k < n; ++k) stack[k % 40] += stack[(k * 7) % 40];
  out[threadIdx.x] = stack[n % 40];
}

extern "C" __global__ void indices(unsigned* out) {
  const unsigned t =
      threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned b =
      blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned size = blockDim.x * blockDim.y * blockDim.z;
  out[b * size + t] = threadIdx.x | threadIdx.y << 4 | threadIdx.z << 8 |
                      blockIdx.x << 12 | blockIdx.y << 16 | blockIdx.z << 20;
}

extern "C" __global__ void atomics(unsigned* u, int* s, unsigned long long* l,
                                   float* f, double* d) {
  const unsigned t = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(u, t);
  atomicMax(u + 1, t);
  atomicMin(u + 2, t);
  atomicOr(u + 3, 1u << (t & 31));
  atomicAnd(u + 4, ~(1u << (t & 15)));
  atomicXor(u + 5, t);
  atomicInc(u + 6, 9);
  atomicDec(u + 7, 9);
  atomicSub(u + 8, 3);
  atomicMin(s, -static_cast<int>(t));
  atomicMax(s + 1, static_cast<int>(t) - 100);
  atomicAdd(l, t * 1ull << 32);
  atomicMax(l + 1, t * 3ull);
  unsigned long long old = l[2], seen;
  do {
    seen = old;
    old = atomicCAS(l + 2, seen, seen + 2);
  } while (old != seen);
  atomicAdd(f, 0.5f);
  atomicAdd(d, 0.25);
}

extern "C" __global__ void ping_pong(int* mine, int* theirs, int rounds) {
  cuda::atomic_ref<int, cuda::thread_scope_system> in(*mine), out(*theirs);
  for (int r = 1; r <= rounds; ++r) {
    out.store(r, cuda::memory_order_release);
    while (in.load(cuda::memory_order_acquire) < r) {
    }
  }
}

// Vectors of 4, 8 and 16 bytes: each thread writes the number of the round into
// all parts of its vectors, over and over.
extern "C" __global__ void write_vectors(ushort2* narrow, uint2* middle,
                                         uint4* wide, int rounds) {
  const int t = threadIdx.x;
  for (int r = 1; r <= rounds; ++r) {
    const unsigned short low = static_cast<unsigned short>(r);
    asm volatile("st.volatile.global.v2.u16 [%0], {%1, %1};" ::"l"(narrow + t),
                 "h"(low));
    asm volatile("st.volatile.global.v2.u32 [%0], {%1, %1};" ::"l"(middle + t),
                 "r"(r));
    asm volatile(
        "st.volatile.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(wide + t),
        "r"(r));
  }
}

// Counts vectors with parts of two rounds, until the last round is there. The
// last vector of each 8 wide ones is a flag: torn[3] counts lines whose flag is
// newer than the data before it.
extern "C" __global__ void read_vectors(const ushort2* narrow,
                                        const uint2* middle, const uint4* wide,
                                        int rounds, unsigned* torn) {
  const int t = threadIdx.x;
  unsigned wrong[4] = {0, 0, 0, 0};
  uint4 w;
  do {
    ushort2 n;
    uint2 m;
    asm volatile("ld.volatile.global.v2.u16 {%0, %1}, [%2];"
                 : "=h"(n.x), "=h"(n.y)
                 : "l"(narrow + t));
    asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(m.x), "=r"(m.y)
                 : "l"(middle + t));
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                 : "l"(wide + t));
    wrong[0] += n.x != n.y;
    wrong[1] += m.x != m.y;
    wrong[2] += w.x != w.y || w.x != w.z || w.x != w.w;
    const unsigned flag = __shfl_sync(~0u, w.w, t | 7);
    wrong[3] += static_cast<int>(w.x - flag) < 0;
  } while (__any_sync(~0u, w.w != rounds));
  for (int k = 0; k < 4; ++k) atomicAdd(&torn[k], wrong[k]);
}

extern "C" __global__ void count_up(int* counter, int times) {
  cuda::atomic_ref<int, cuda::thread_scope_system> c(*counter);
  for (int k = 0; k < times; ++k) c.fetch_add(1);
}

extern "C" __global__ void wait_for(int* flag) {
  while (*reinterpret_cast<volatile int*>(flag) == 0) __nanosleep(100);
}

extern "C" __global__ void clocks(long long* out) {
  const long long begin = clock64();
  while (clock64() - begin < 2000000) {
  }
  out[0] = clock64() - begin;
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  out[1] = static_cast<long long>(now);
}

// --- output ----------------------------------------------------------------

extern "C" __global__ void print_values(int n, double x, const char* unused) {
  printf("%d|%5d|%-5d|%05d|%+d|%x|%#X|%o|%u\n", n, n, n, n, n, 255, 255, 8,
         static_cast<unsigned>(-1));
  printf("%lld %llu %ld %hd %c %s %%\n", -(1ll << 40), ~0ull, 1l << 33,
         static_cast<short>(-5), 'x', "text");
  printf("%f %.2f %8.3e %g %*d\n", x, x, x, x, 6, 42);
  printf("no arguments\n");
  if (unused != nullptr) printf("%p\n", unused);
}

extern "C" __global__ void must_be_small(int limit) {
  assert(static_cast<int>(threadIdx.x) < limit);
}

// --- faults ----------------------------------------------------------------

extern "C" __global__ void store_int(int* at) { *at = 5; }
extern "C" __global__ void load_int(const int* at, int* out) { *out = *at; }
extern "C" __global__ void trap_if(int condition) {
  if (threadIdx.x == condition) asm volatile("trap;");
}
extern "C" __global__ void endless(int* flag) {
  while (*reinterpret_cast<volatile int*>(flag) == 0) {
  }
}
