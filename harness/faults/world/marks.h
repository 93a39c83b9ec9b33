// What a fault keeps of earlier calls about one object. It ends with the
// object, because a later object can have the same handle or address.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <type_traits>

#include "harness/faults/engine/fault.h"
#include "harness/faults/engine/table.h"

namespace ipclab::faults {

/// Numbers by a handle, an address or another number. Keys and values may also
/// be pointers.
class Marks : public Table<unsigned long long, unsigned long long> {
 public:
  /// Keeps a value for a key. Returns true if there was none.
  template <class Key, class Value = int>
  bool put(Key key, Value value = 1) {
    return Table::put(raw(key), raw(value));
  }
  /// Does the key have a value?
  template <class Key>
  bool has(Key key) const {
    return Table::has(raw(key));
  }
  /// The value, or `none`.
  template <class Value = unsigned long long, class Key>
  Value get(Key key, Value none = Value{}) const {
    return cooked<Value>(Table::get(raw(key), raw(none)));
  }
  /// Removes the value of a key. Returns false if there was none.
  template <class Key>
  bool erase(Key key) {
    return Table::erase(raw(key));
  }
  /// Adds one to the value of a key; returns the sum.
  template <class Key>
  unsigned long long count(Key key) {
    return change([&](auto& all) { return ++all[raw(key)]; });
  }
  /// Removes the values of all keys in a range of addresses.
  void erase_range(CUdeviceptr begin, size_t bytes) {
    change([&](auto& all) {
      all.erase(all.lower_bound(begin), all.lower_bound(begin + bytes));
      return true;
    });
  }

 private:
  template <class T>
  static unsigned long long raw(T value) {
    if constexpr (std::is_pointer_v<T>)
      return reinterpret_cast<uintptr_t>(value);
    else
      return static_cast<unsigned long long>(value);
  }
  template <class T>
  static T cooked(unsigned long long value) {
    if constexpr (std::is_pointer_v<T>)
      return reinterpret_cast<T>(static_cast<uintptr_t>(value));
    else
      return static_cast<T>(value);
  }
};

/// Marks that never end. (A process has one fault.)
inline Marks marks;
/// Marks of events and of streams; they end with the destroy.
inline Marks event_marks;
inline Marks stream_marks;
/// Marks by the first address of a mapping; they end with the unmap.
inline Marks mapping_marks;
/// Marks of addresses; they end when the addresses are freed.
inline Marks address_marks;
/// Marks of handles of cuMemCreate; they end when the driver gives the number
/// to other memory.
inline Marks chunk_marks;
/// Marks of pools; they end with the destroy.
inline Marks pool_marks;
/// Marks by an address of memory of a pool; they end with the free.
inline Marks block_marks;

/// Ends marks after an accepted call.
void note_marks(Call& call);

}  // namespace ipclab::faults
