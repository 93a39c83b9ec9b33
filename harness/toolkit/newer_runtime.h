// Declarations of newer functions, as in newer.h, for cuda_runtime_api.h.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#if CUDART_VERSION < 13010
extern "C" cudaError_t cudaGraphGetId(cudaGraph_t graph, unsigned* id);
#endif
