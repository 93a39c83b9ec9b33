// SPDX-License-Identifier: Apache-2.0
// The kernels of the benchmark.
extern "C" __global__ void nothing() {}

extern "C" __global__ void fill(unsigned* data, unsigned seed, size_t count) {
  const size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  if (i < count) data[i] = seed ^ static_cast<unsigned>(i * 2654435761u);
}

extern "C" __global__ void add_vectors(const float* a, const float* b, float* c,
                                       int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) c[i] = a[i] + b[i];
}

extern "C" __global__ void reduce_block(const float* in, float* out,
                                        int count) {
  __shared__ float partial[256];
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  partial[t] = i < count ? in[i] : 0.0f;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k >>= 1) {
    if (t < k) partial[t] += partial[t + k];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = partial[0];
}

extern "C" __global__ void fill_bytes(char* data, int count, char value) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += gridDim.x * blockDim.x)
    data[i] = value;
}
