// No atomic operation is told for a link that supports all of them.
//
// nvcc -cudart shared atomic_capabilities.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdio>

int main() {
  alarm(60);  // the deadline of every wait
  constexpr int kOperations = 13;
  cudaAtomicOperation operations[kOperations];
  unsigned capabilities[kOperations] = {}, told = 0;
  for (int i = 0; i < kOperations; ++i) operations[i] = static_cast<cudaAtomicOperation>(i);
  int all = 0;
  if (cudaDeviceGetP2PAttribute(&all, cudaDevP2PAttrNativeAtomicSupported, 0, 1) || all == 0 ||
      cudaDeviceGetP2PAtomicCapabilities(capabilities, operations, kOperations, 0, 1))
    return std::puts("SKIP: needs two GPUs with native atomics between them"), 77;
  for (const unsigned one : capabilities) told += one != 0;
  std::printf("all native atomics are supported: %d; told one by one: %u of %d\n", all, told,
              kOperations);
  return told == 0;
}
