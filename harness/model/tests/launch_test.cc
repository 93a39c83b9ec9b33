// SPDX-License-Identifier: Apache-2.0
// Launches: their arguments, kernels that the model cannot run, and calls while
// the process ends.
#include "gpu.h"
#include "peer.h"

using namespace ipclab::model::test;

namespace {

const std::string kHeader = ".version 9.0\n.target sm_90\n.address_size 64\n";

CUfunction function_of(const std::string& text, const char* name) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);  // makes a context
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoadData(&module, (kHeader + text).c_str()), CUDA_SUCCESS);
  CUfunction function = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&function, module, name), CUDA_SUCCESS);
  return function;
}

CUresult launch(CUfunction function, void** parameters,
                void** extra = nullptr) {
  return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters,
                        extra);
}

TEST(Launch, ABufferMayEndBeforeTheLastParameter) {
  const CUfunction function = function_of(
      ".visible .entry k(.param .align 8 .b8 all[4096]) { .reg .b32 v;\n"
      ".reg .b64 p; ld.param.u64 p, [all]; ld.param.u32 v, [all+8];\n"
      "st.global.u32 [p], v; ret; }\n",
      "k");
  struct {
    int* to;
    int value;
  } arguments{allocate<int>(1), 77};
  size_t size = 12;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &arguments,
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  ASSERT_EQ(launch(function, nullptr, extra), CUDA_SUCCESS);
  EXPECT_EQ(read_back(arguments.to, 1)[0], 77);
  EXPECT_EQ(cudaFree(arguments.to), cudaSuccess);
}

// The device reports no multicast. A program may have such code for others.
TEST(Launch, MulticastIsRefusedOnlyWhenItIsReached) {
  const CUfunction function = function_of(
      ".visible .entry k(.param .u32 wanted) { .reg .b32 w; .reg .f32 v;\n"
      ".reg .pred p; .reg .b64 a; ld.param.u32 w, [wanted];\n"
      "setp.eq.u32 p, w, 0; @p ret;\n"
      "multimem.ld_reduce.relaxed.sys.global.add.f32 v, [a]; ret; }\n",
      "k");
  int wanted = 0;
  void* parameters[] = {&wanted};
  EXPECT_EQ(launch(function, parameters), CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  wanted = 1;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(launch(function, parameters), CUDA_SUCCESS);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorInvalidPtx);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("multimem"),
            std::string::npos);
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
}

TEST(Launch, WhatCannotRunIsReportedByEverySynchronisation) {
  const CUfunction function =
      function_of(".visible .entry k() { tcgen05.wait::ld.sync; ret; }\n", "k");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(launch(function, nullptr), CUDA_ERROR_INVALID_PTX);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorInvalidPtx);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorInvalidPtx);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidPtx);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("tcgen05"),
            std::string::npos);
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

// ---- clusters

/// Each block writes how many blocks its cluster has.
CUfunction cluster_kernel(const char* directives) {
  return function_of(
      std::string(".visible .entry k(.param .u64 out) ") + directives +
          " { .reg .b32 c, n; .reg .b64 p; ld.param.u64 p, [out];\n"
          "mov.u32 c, %ctaid.x; mad.wide.u32 p, c, 4, p;\n"
          "mov.u32 n, %cluster_nctarank; st.global.u32 [p], n; ret; }\n",
      "k");
}

struct Configuration {
  CUlaunchAttribute attribute{};
  CUlaunchConfig config{};
  Configuration(unsigned blocks, unsigned cluster) {
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = {cluster, 1, 1};
    config.gridDimX = blocks;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 32;
    config.blockDimY = config.blockDimZ = 1;
    config.attrs = &attribute;
    config.numAttrs = cluster == 0 ? 0 : 1;
  }
};

TEST(Launch, ClustersComeFromTheLaunchOrFromTheKernel) {
  int* out = allocate<int>(16);
  void* parameters[] = {&out};
  const auto run = [&](CUfunction function, unsigned blocks, unsigned cluster) {
    const Configuration wanted(blocks, cluster);
    return cuLaunchKernelEx(&wanted.config, function, parameters, nullptr);
  };
  const CUfunction plain = cluster_kernel("");
  EXPECT_EQ(run(plain, 8, 4), CUDA_SUCCESS);
  EXPECT_EQ(read_back(out, 8), std::vector<int>(8, 4));
  EXPECT_EQ(run(plain, 8, 3), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(run(plain, 16, 16), CUDA_ERROR_INVALID_CLUSTER_SIZE);
  EXPECT_EQ(cuFuncSetAttribute(
                plain, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
            CUDA_SUCCESS);
  EXPECT_EQ(run(plain, 16, 16), CUDA_SUCCESS);
  EXPECT_EQ(read_back(out, 16), std::vector<int>(16, 16));

  const CUfunction pairs = cluster_kernel(".reqnctapercluster 2");
  EXPECT_EQ(
      cuLaunchKernel(pairs, 4, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr),
      CUDA_SUCCESS);
  EXPECT_EQ(read_back(out, 4), std::vector<int>(4, 2));
  EXPECT_EQ(run(pairs, 4, 4), CUDA_ERROR_INVALID_CLUSTER_SIZE);
  int width = 0;
  EXPECT_EQ(cuFuncGetAttribute(&width, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
                               pairs),
            CUDA_SUCCESS);
  EXPECT_EQ(width, 2);
  EXPECT_EQ(cudaFree(out), cudaSuccess);
}

TEST(Launch, OccupancyCountsClusters) {
  const CUfunction plain = cluster_kernel("");
  int blocks = 0, clusters = 0, of_two = 0, of_four = 0;
  const Configuration none(8, 0), two(8, 2), four(8, 4);
  EXPECT_EQ(cuOccupancyMaxPotentialClusterSize(&blocks, plain, &none.config),
            CUDA_SUCCESS);
  EXPECT_EQ(blocks, 8);
  EXPECT_EQ(cuOccupancyMaxActiveClusters(&of_two, plain, &two.config),
            CUDA_SUCCESS);
  EXPECT_EQ(cuOccupancyMaxActiveClusters(&of_four, plain, &four.config),
            CUDA_SUCCESS);
  EXPECT_GT(of_four, 0);
  EXPECT_EQ(of_two, 2 * of_four);
  const Configuration large(16, 16);
  EXPECT_EQ(cuOccupancyMaxActiveClusters(&clusters, plain, &large.config),
            CUDA_ERROR_INVALID_CLUSTER_SIZE);
}

// ---- calls while the process ends

constexpr size_t kCodes = 7;

/// Its destructor calls the runtime and sends what the calls return.
struct Last {
  Channel* test = nullptr;
  cudaStream_t stream = nullptr;
  int* memory = nullptr;
  ~Last() {
    if (test == nullptr) return;
    int device = -1;
    test->send<int>(cudaSetDevice(0));
    test->send<int>(cudaGetDevice(&device));
    test->send<int>(cuCtxGetDevice(&device));
    test->send<int>(cudaMemset(memory, 0, 4));
    test->send<int>(launch_nothing());
    test->send<int>(cudaStreamDestroy(stream));
    test->send<int>(cudaFree(memory));
  }
  static cudaError_t launch_nothing() {
    int* never = nullptr;
    void* pointers[] = {&never, &never, &never};
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    CUresult error = cuModuleLoad(&module, IPCLAB_TEST_PTX);
    if (error == CUDA_SUCCESS)
      error = cuModuleGetFunction(&function, module, "fill");
    if (error == CUDA_SUCCESS) error = launch(function, pointers);
    return error != CUDA_SUCCESS ? static_cast<cudaError_t>(error)
                                 : cudaDeviceSynchronize();
  }
};

Last made_at_start;

void fill(Last* last, Channel* test) {
  last->test = new Channel(*test);
  last->memory = allocate<int>(1);
  last->stream = stream_with(cudaStreamNonBlocking);
}

ROLE(call_when_the_driver_has_ended) { fill(&made_at_start, &test); }

ROLE(call_before_the_driver_ends) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  static Last made_later;
  fill(&made_later, &test);
}

// The interpreter has run before, so what it keeps is younger than
// `made_later`.
ROLE(call_after_kernels) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  static Last made_later;
  fill(&made_later, &test);
  EXPECT_EQ(Last::launch_nothing(), cudaSuccess);
}

std::vector<int> codes_at_exit(const char* role) {
  Peer peer(role);
  std::vector<int> codes(kCodes);
  for (int& code : codes) code = peer.channel().receive<int>();
  EXPECT_EQ(peer.wait(), "exit 0");
  return codes;
}

TEST(Launch, StaticDestructorsAreAnsweredAfterTheDriver) {
  EXPECT_EQ(codes_at_exit("call_when_the_driver_has_ended"),
            std::vector<int>(kCodes, cudaErrorCudartUnloading));
}

TEST(Launch, StaticDestructorsBeforeTheDriversEndWork) {
  for (const char* role : {"call_before_the_driver_ends", "call_after_kernels"})
    EXPECT_EQ(codes_at_exit(role), std::vector<int>(kCodes, cudaSuccess))
        << role;
}

}  // namespace
