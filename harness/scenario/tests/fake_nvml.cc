// A libnvidia-ml.so.1 with one GPU. The GPU's memory in use is a number in a
// file. A test uses this library to plant device memory that does not come
// back.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>

extern "C" {

int nvmlInit_v2() { return 0; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned, void** device) {
  *device = nullptr;
  return 0;
}

int nvmlDeviceGetMemoryInfo(void*, unsigned long long* total_free_used) {
  total_free_used[0] = total_free_used[1] = 1 << 30;
  total_free_used[2] = 0;
  const char* path = std::getenv("IPCLAB_FAKE_USED");
  FILE* file = path == nullptr ? nullptr : std::fopen(path, "r");
  if (file == nullptr) return 0;
  if (std::fscanf(file, "%llu", &total_free_used[2]) != 1)
    total_free_used[2] = 0;
  std::fclose(file);
  return 0;
}
}
