// SPDX-License-Identifier: Apache-2.0
// The driver API: function names without the version that cuda.h adds. Programs
// use these names if they look up a function themselves. On a 64-bit host, the
// first version has the same arguments as the second version.
#include "newer_names.h"

#if defined(__x86_64__)
#define IPCLAB_JUMP(to) "jmp " to "@PLT"
#elif defined(__aarch64__)
#define IPCLAB_JUMP(to) "b " to
#else
#error "no jump instruction is known for this processor"
#endif

#define IPCLAB_TEXT(name) #name
#define IPCLAB_TEXT_OF(name) IPCLAB_TEXT(name)
#define IPCLAB_UNVERSIONED(name)                                        \
  __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name \
          ":\n" IPCLAB_JUMP(IPCLAB_TEXT_OF(name##_v2)) "\n.size " #name \
                                                       ", .-" #name)

// clang-format off
IPCLAB_UNVERSIONED(cuCtxCreate);
IPCLAB_UNVERSIONED(cuCtxDestroy);
IPCLAB_UNVERSIONED(cuCtxPopCurrent);
IPCLAB_UNVERSIONED(cuCtxPushCurrent);
IPCLAB_UNVERSIONED(cuDevicePrimaryCtxRelease);
IPCLAB_UNVERSIONED(cuDevicePrimaryCtxReset);
IPCLAB_UNVERSIONED(cuDevicePrimaryCtxSetFlags);
IPCLAB_UNVERSIONED(cuDeviceTotalMem);
IPCLAB_UNVERSIONED(cuEventDestroy);
IPCLAB_UNVERSIONED(cuEventElapsedTime);
IPCLAB_UNVERSIONED(cuLinkAddData);
IPCLAB_UNVERSIONED(cuLinkAddFile);
IPCLAB_UNVERSIONED(cuLinkCreate);
IPCLAB_UNVERSIONED(cuMemAlloc);
IPCLAB_UNVERSIONED(cuMemAllocHost);
IPCLAB_UNVERSIONED(cuMemAllocPitch);
IPCLAB_UNVERSIONED(cuMemFree);
IPCLAB_UNVERSIONED(cuMemGetAddressRange);
IPCLAB_UNVERSIONED(cuMemGetInfo);
IPCLAB_UNVERSIONED(cuMemHostGetDevicePointer);
IPCLAB_UNVERSIONED(cuMemHostRegister);
IPCLAB_UNVERSIONED(cuMemcpy2D);
IPCLAB_UNVERSIONED(cuMemcpy2DAsync);
IPCLAB_UNVERSIONED(cuMemcpy2DUnaligned);
IPCLAB_UNVERSIONED(cuMemcpy3D);
IPCLAB_UNVERSIONED(cuMemcpy3DAsync);
IPCLAB_UNVERSIONED(cuMemcpyDtoD);
IPCLAB_UNVERSIONED(cuMemcpyDtoDAsync);
IPCLAB_UNVERSIONED(cuMemcpyDtoH);
IPCLAB_UNVERSIONED(cuMemcpyDtoHAsync);
IPCLAB_UNVERSIONED(cuMemcpyHtoD);
IPCLAB_UNVERSIONED(cuMemcpyHtoDAsync);
IPCLAB_UNVERSIONED(cuMemsetD16);
IPCLAB_UNVERSIONED(cuMemsetD2D16);
IPCLAB_UNVERSIONED(cuMemsetD2D32);
IPCLAB_UNVERSIONED(cuMemsetD2D8);
IPCLAB_UNVERSIONED(cuMemsetD32);
IPCLAB_UNVERSIONED(cuMemsetD8);
IPCLAB_UNVERSIONED(cuModuleGetGlobal);
IPCLAB_UNVERSIONED(cuStreamBatchMemOp);
IPCLAB_UNVERSIONED(cuStreamDestroy);
IPCLAB_UNVERSIONED(cuStreamWaitValue32);
IPCLAB_UNVERSIONED(cuStreamWaitValue64);
IPCLAB_UNVERSIONED(cuStreamWriteValue32);
IPCLAB_UNVERSIONED(cuStreamWriteValue64);
// clang-format on
