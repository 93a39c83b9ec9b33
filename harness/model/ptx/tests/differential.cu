// SPDX-License-Identifier: Apache-2.0
// The device's side of the differential test.
#include "differential.h"

extern "C" __global__ void run_integers(const uint64_t* a, const uint64_t* b,
                                        uint64_t* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) integers(a[i], b[i], out + i * kResults);
}

extern "C" __global__ void run_floats(const double* a, const double* b,
                                      double* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count)
    floats(a[i], b[i], static_cast<float>(b[i]), static_cast<float>(a[i]),
           out + i * kResults);
}
