// SPDX-License-Identifier: Apache-2.0
// CUDA_VISIBLE_DEVICES.
#include "core/visible.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "core/device.h"

namespace ipclab::model {
namespace {

int gpu_of_entry(std::string entry, int count) {
  entry.erase(std::remove_if(entry.begin(), entry.end(),
                             [](unsigned char c) { return std::isspace(c); }),
              entry.end());
  if (entry.empty()) return -1;
  if (entry.compare(0, 4, "GPU-") == 0) {
    int found = -1;
    for (int gpu = 0; gpu < count; ++gpu) {
      if (uuid_text(gpu_uuid(gpu)).compare(0, entry.size(), entry) != 0) {
        continue;
      }
      if (found >= 0) return -1;  // two UUIDs begin like this
      found = gpu;
    }
    return found;
  }
  char* end = nullptr;
  const long number = std::strtol(entry.c_str(), &end, 10);
  if (*end != '\0' || number < 0 || number >= count) return -1;
  return static_cast<int>(number);
}

}  // namespace

std::string uuid_text(const CUuuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x",
                  static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

std::vector<int> visible_gpus(int count) {
  std::vector<int> gpus;
  const char* variable = std::getenv("CUDA_VISIBLE_DEVICES");
  if (variable == nullptr) {
    for (int gpu = 0; gpu < count; ++gpu) gpus.push_back(gpu);
    return gpus;
  }
  std::istringstream list(variable);
  std::string entry;
  while (std::getline(list, entry, ',')) {
    const int gpu = gpu_of_entry(entry, count);
    if (gpu < 0 || std::count(gpus.begin(), gpus.end(), gpu) > 0) break;
    gpus.push_back(gpu);
  }
  return gpus;
}

}  // namespace ipclab::model
