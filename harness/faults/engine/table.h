// A table in which a fault stores facts about earlier calls.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <mutex>

namespace ipclab::faults {

/// A map that several threads use. It is never destroyed, because calls may
/// come while the process ends.
template <class Key, class Value = bool>
class Table {
 public:
  /// Keeps a value for a key; replaces an earlier value. Returns true if there
  /// was none.
  bool put(Key key, Value value = Value{}) {
    const std::lock_guard lock(mutex_);
    return values_.insert_or_assign(key, value).second;
  }
  /// Does the key have a value?
  bool has(Key key) const {
    const std::lock_guard lock(mutex_);
    return values_.count(key) > 0;
  }
  /// The value, or `none`.
  Value get(Key key, Value none = Value{}) const {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? none : found->second;
  }
  /// Removes the value of a key. Returns false if there was none.
  bool erase(Key key) {
    const std::lock_guard lock(mutex_);
    return values_.erase(key) > 0;
  }
  /// A copy of all keys and values.
  std::map<Key, Value> all() const {
    const std::lock_guard lock(mutex_);
    return values_;
  }
  /// Does a step that reads and changes the map, while all other threads wait;
  /// returns the result of the step. The step gets the map, may not use this
  /// table in another way, and may not call CUDA.
  template <class Step>
  auto change(Step step) {
    const std::lock_guard lock(mutex_);
    return step(values_);
  }

 private:
  mutable std::mutex mutex_;
  std::map<Key, Value>& values_ = *new std::map<Key, Value>;
};

}  // namespace ipclab::faults
