// SPDX-License-Identifier: Apache-2.0
// How much memory a GPU has and how much of it is free.
#include "core/capacity.h"

#include <algorithm>
#include <atomic>

#include "core/device.h"
#include "core/profile.h"
#include "core/shared_file.h"

namespace ipclab::model {
namespace {

// An allocation of this size or more also checks how much memory other
// processes hold.
constexpr uint64_t kCountOthers = 256 << 20;

std::atomic<uint64_t> bytes_of_gpu[kMaxGpus];  // of this process

}  // namespace

uint64_t total_bytes(int) { return profile().memory_gib << 30; }

bool take_bytes(int gpu, uint64_t size) {
  if (gpu < 0) return true;
  const uint64_t total = total_bytes(gpu);
  if (size > total) return false;
  const uint64_t of_all = size >= kCountOthers ? counted_bytes(gpu) : 0;
  uint64_t own = bytes_of_gpu[gpu];
  do {
    if (std::max(own, of_all) > total - size) return false;
  } while (!bytes_of_gpu[gpu].compare_exchange_weak(own, own + size));
  return true;
}

void give_back_bytes(int gpu, uint64_t size) {
  if (gpu >= 0) bytes_of_gpu[gpu] -= size;
}

void memory_info(int gpu, uint64_t* free_bytes, uint64_t* total) {
  *total = total_bytes(gpu);
  *free_bytes = *total - std::min(counted_bytes(gpu), *total);
}

}  // namespace ipclab::model
