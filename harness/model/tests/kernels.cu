// SPDX-License-Identifier: Apache-2.0
// The kernels of the model's own tests, compiled to PTX.
extern "C" __global__ void fill(int* data, int count, int value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = value + i;
}

extern "C" __global__ void count_errors(const int* data, int count, int value,
                                        int* errors) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count && data[i] != value + i) atomicAdd(errors, 1);
}

extern "C" __global__ void spin_until(volatile int* flag, int value) {
  while (*flag != value) {
  }
}

extern "C" __global__ void read_one(const int* from, int* to) { *to = *from; }

extern "C" __global__ void write_one(int* to, int value) { *to = value; }

__device__ int counter = 40;
extern "C" __global__ void bump() { atomicAdd(&counter, 2); }

// Each thread takes memory and writes to it.
extern "C" __global__ void take(int** taken, unsigned bytes) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  taken[i] = static_cast<int*>(malloc(bytes));
  if (taken[i] != nullptr) *taken[i] = i;
}

// Reads the memory that take() has allocated, and frees it.
extern "C" __global__ void give_back(int** taken, int* wrong) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (taken[i] == nullptr || *taken[i] != i) atomicAdd(wrong, 1);
  free(taken[i]);
}
