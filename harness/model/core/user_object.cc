// SPDX-License-Identifier: Apache-2.0
// User objects.
#include "core/user_object.h"

#include <atomic>
#include <climits>
#include <memory>
#include <utility>

#include "core/device.h"
#include "core/registry.h"

struct CUuserObject_st {
  void* data;
  CUhostFn destroy;
  std::atomic<unsigned long long> references;
};

namespace ipclab::model {
namespace {

Registry<CUuserObject_st>& objects() {
  static auto& registry = *new Registry<CUuserObject_st>;
  return registry;
}

bool is_count(unsigned count) { return count != 0 && count <= INT_MAX; }

}  // namespace

CUresult user_object_create(void* data, CUhostFn destroy, unsigned count,
                            unsigned flags, CUuserObject* object) {
  if (destroy == nullptr || !is_count(count) ||
      flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto made = std::make_shared<CUuserObject_st>();
  made->data = data;
  made->destroy = destroy;
  made->references = count;
  *object = objects().add(std::move(made));
  return CUDA_SUCCESS;
}

CUresult user_object_retain(CUuserObject object, unsigned count) {
  const auto found = objects().find(object);
  if (found == nullptr || !is_count(count)) return CUDA_ERROR_INVALID_VALUE;
  found->references += count;
  return CUDA_SUCCESS;
}

CUresult user_object_release(CUuserObject object, unsigned count) {
  const auto found = objects().find(object);
  if (found == nullptr || !is_count(count) || count > found->references) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (found->references.fetch_sub(count) != count) return CUDA_SUCCESS;
  objects().remove(object);
  // "Destructor callbacks cannot make CUDA API calls."
  const bool inside = std::exchange(inside_host_function, true);
  found->destroy(found->data);
  inside_host_function = inside;
  return CUDA_SUCCESS;
}

HeldObjects::HeldObjects(const HeldObjects& other) : counts_(other.counts_) {
  for (const auto& [object, count] : counts_) user_object_retain(object, count);
}

HeldObjects::~HeldObjects() {
  for (const auto& [object, count] : counts_)
    user_object_release(object, count);
}

CUresult HeldObjects::retain(CUuserObject object, unsigned count, bool moved) {
  const auto found = objects().find(object);
  if (found == nullptr || !is_count(count) ||
      (moved && count > found->references)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!moved) found->references += count;
  counts_[object] += count;
  return CUDA_SUCCESS;
}

CUresult HeldObjects::release(CUuserObject object, unsigned count) {
  const auto held = counts_.find(object);
  if (held == counts_.end() || !is_count(count) || count > held->second) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  held->second -= count;
  if (held->second == 0) counts_.erase(held);
  return user_object_release(object, count);
}

}  // namespace ipclab::model
