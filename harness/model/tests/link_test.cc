// SPDX-License-Identifier: Apache-2.0
// The linker of the driver API.
#include <string>

#include "gpu.h"

using namespace ipclab::model::test;

namespace {

const std::string kHeader = ".version 7.0\n.target sm_75\n.address_size 64\n";

const std::string kCallee = kHeader + R"(
.visible .func (.param .b32 result) seven()
{
  st.param.b32 [result], 7;
  ret;
}
)";

const std::string kCaller = kHeader + R"(
.extern .func (.param .b32 result) seven();
.visible .entry store_seven(.param .u64 to)
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  .param .b32 value;
  ld.param.u64 %rd1, [to];
  call (value), seven;
  ld.param.b32 %r1, [value];
  st.global.u32 [%rd1], %r1;
  ret;
}
)";

struct Linker {
  char information[64] = "not touched";
  char errors[64] = "not touched";
  CUlinkState state = nullptr;

  Linker() {
    CUjit_option options[] = {
        CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
        CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        CU_JIT_LOG_VERBOSE};
    void* room = reinterpret_cast<void*>(sizeof errors);
    void* values[] = {information, room, errors, room,
                      reinterpret_cast<void*>(1)};
    EXPECT_EQ(cuLinkCreate(5, options, values, &state), CUDA_SUCCESS);
  }
  ~Linker() { EXPECT_EQ(cuLinkDestroy(state), CUDA_SUCCESS); }
  CUresult add(const std::string& ptx, CUjitInputType type = CU_JIT_INPUT_PTX) {
    return cuLinkAddData(state, type, const_cast<char*>(ptx.c_str()),
                         ptx.size() + 1, nullptr, 0, nullptr, nullptr);
  }
};

TEST(Link, AKernelCallsAFunctionOfAnotherInput) {
  int* data = allocate<int>(1);
  Linker linker;
  EXPECT_STREQ(linker.information, "");
  EXPECT_STREQ(linker.errors, "");
  ASSERT_EQ(linker.add(kCaller), CUDA_SUCCESS);
  ASSERT_EQ(linker.add(kCallee), CUDA_SUCCESS);
  void* image = nullptr;
  size_t size = 0;
  ASSERT_EQ(cuLinkComplete(linker.state, &image, &size), CUDA_SUCCESS);
  EXPECT_GT(size, kCaller.size());
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, image), CUDA_SUCCESS);
  CUfunction function = nullptr;
  ASSERT_EQ(cuModuleGetFunction(&function, module, "store_seven"),
            CUDA_SUCCESS);
  void* arguments[] = {&data};
  ASSERT_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments,
                           nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(read_back(data, 1)[0], 7);
  EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

TEST(Link, SaysWhatIsWrong) {
  Linker linker;
  EXPECT_EQ(linker.add("this is no PTX"), CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_STRNE(linker.errors, "");
  EXPECT_EQ(linker.add(kHeader + ".visible .entry broken( {"),
            CUDA_ERROR_INVALID_PTX);
  EXPECT_EQ(linker.add(kCallee, CU_JIT_INPUT_CUBIN), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuLinkAddFile(linker.state, CU_JIT_INPUT_PTX, "/no/such/file", 0,
                          nullptr, nullptr),
            CUDA_ERROR_FILE_NOT_FOUND);
  EXPECT_EQ(cuLinkDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
