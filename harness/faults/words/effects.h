// Effects of rules that fit many calls.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstring>
#include <utility>

#include "harness/faults/engine/fault.h"
#include "harness/faults/world/marks.h"

namespace ipclab::faults {

/// Effect: the call runs in a stream that waits for nothing.
inline void privately(Call& call) {
  call.value<cudaStream_t>(kStream) = private_stream();
}

/// Effect: the driver gets this value of an argument instead of the program's
/// one.
template <class T>
auto with(size_t index, T value) {
  return [index, value](Call& call) { call.at<T>(index) = value; };
}
/// Effect: the driver gets the value that `make` makes of the call.
template <class T, class Make>
auto with_made(size_t index, Make make) {
  return [index, make](Call& call) {
    const T value = make(call);
    const bool changed = call.at<T>(index) != value;
    call.at<T>(index) = value;
    return changed;
  };
}

/// Effect: the result that the program gets is this value.
template <class T>
auto answers(T value, size_t index = 0) {
  return [index, value](Call& call) {
    const bool changed = *call.at<T*>(index) != value;
    *call.at<T*>(index) = value;
    return changed;
  };
}

/// Effect: the driver gets a changed copy of the struct to which an argument
/// points; `change` returns whether it has changed the copy.
template <class T, class Change>
auto with_copy(size_t index, Change change) {
  return [index, change](Call& call) -> int {
    if (call.at<const T*>(index) == nullptr) return call.proceed();
    T copy = *call.at<const T*>(index);
    if (!change(copy)) return call.proceed();
    call.at<const T*>(index) = &copy;
    call.fired();
    return call.proceed();
  };
}

/// Sets a value; returns whether it was another one.
template <class T, class Value>
bool set_to(T& place, Value value) {
  return std::exchange(place, static_cast<T>(value)) != static_cast<T>(value);
}

/// Effect: flags that are not zero become zero.
inline bool flags_ignored(Call& call) {
  Argument& flags = *call.find(kFlags);
  static constexpr char kNone[8] = {};
  if (std::memcmp(flags.place, kNone, flags.size) == 0) return false;
  std::memset(flags.place, 0, flags.size);
  return true;
}

/// Effect: the call proceeds once more, with changed arguments.
inline int once_more(Call& call) {
  call.fired();
  return call.proceed();
}

}  // namespace ipclab::faults
