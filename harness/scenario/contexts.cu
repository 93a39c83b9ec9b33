// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "harness/scenario/contexts.h"

namespace ipclab {
namespace {

// The size of the smallest part of a GPU. A driver of CUDA 12 does not tell it;
// the documentation names at most 8 multiprocessors.
unsigned smallest_part(const CUdevResource& all) {
  constexpr unsigned kDocumented = 8;
  return std::min(kDocumented, all.sm.smCount / 2);
}

}  // namespace

CUcontext primary_context() {
  int device = 0;
  CALL(cudaGetDevice(&device));
  CALL(cudaSetDevice(device));
  CALL(cudaFree(nullptr));
  CUcontext context = nullptr;
  CALL(DRIVER(cuCtxGetCurrent)(&context));
  return context;
}

SecondContext::SecondContext(int device) {
  CALL(cudaGetDevice(&before_));
  CALL(create_context(&context_, device));
}

SecondContext::~SecondContext() {
  DRIVER(cuCtxDestroy)(context_);
  cudaSetDevice(before_);  // the primary context is current again
}

Current::Current(CUcontext context) { CALL(DRIVER(cuCtxPushCurrent)(context)); }

Current::~Current() {
  CUcontext popped = nullptr;
  DRIVER(cuCtxPopCurrent)(&popped);
}

GreenContext::GreenContext(unsigned number) {
  primary_context();
  int device = 0;
  CALL(cudaGetDevice(&device));
  CUdevResource all{}, parts[2]{};
  CALL(NEWER(cuDeviceGetDevResource)(device, &all, CU_DEV_RESOURCE_TYPE_SM));
  unsigned groups = 2;
  CALL(NEWER(cuDevSmResourceSplitByCount)(parts, &groups, &all, nullptr, 0,
                                          smallest_part(all)));
  CUdevResource& part = groups == 0 ? all : parts[std::min(number, groups - 1)];
  CUdevResourceDesc description = nullptr;
  CALL(NEWER(cuDevResourceGenerateDesc)(&description, &part, 1));
  CALL(NEWER(cuGreenCtxCreate)(&green_, description, device,
                               CU_GREEN_CTX_DEFAULT_STREAM));
  CALL(NEWER(cuCtxFromGreenCtx)(&converted_, green_));
}

GreenContext::~GreenContext() { NEWER(cuGreenCtxDestroy)(green_); }

GreenStream::GreenStream(CUgreenCtx green) {
  CALL(NEWER(cuGreenCtxStreamCreate)(&stream_, green, CU_STREAM_NON_BLOCKING,
                                     0));
}

}  // namespace ipclab
