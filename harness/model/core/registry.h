// SPDX-License-Identifier: Apache-2.0
// The live objects of one kind. A handle that is not in this list, such as the
// handle of a destroyed object, is refused and not dereferenced.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ipclab::model {

template <typename T>
class Registry {
 public:
  /// Adds the object and returns the handle for the program.
  T* add(std::shared_ptr<T> object) {
    T* handle = object.get();
    const std::unique_lock lock(mutex_);
    objects_.emplace(handle, std::move(object));
    return handle;
  }

  /// The object of a handle; null if there is no such object or it was removed.
  std::shared_ptr<T> find(const T* handle) const {
    const std::shared_lock lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  /// Removes the object of a handle and returns it; null if there is none.
  std::shared_ptr<T> remove(const T* handle) {
    const std::unique_lock lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

  /// Calls a function with each object.
  template <typename Function>
  void for_each(Function function) const {
    const std::shared_lock lock(mutex_);
    for (const auto& [handle, object] : objects_) function(*object);
  }

  /// Removes all objects for which `wanted` holds and returns them.
  template <typename Predicate>
  std::vector<std::shared_ptr<T>> remove_if(Predicate wanted) {
    std::vector<std::shared_ptr<T>> removed;
    const std::unique_lock lock(mutex_);
    for (auto entry = objects_.begin(); entry != objects_.end();) {
      if (wanted(*entry->second)) {
        removed.push_back(std::move(entry->second));
        entry = objects_.erase(entry);
      } else {
        ++entry;
      }
    }
    return removed;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<const T*, std::shared_ptr<T>> objects_;
};

}  // namespace ipclab::model
