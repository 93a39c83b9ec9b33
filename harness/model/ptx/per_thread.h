// SPDX-License-Identifier: Apache-2.0
// An object for each thread that may still be used while the process ends.
#pragma once

#include <pthread.h>

namespace ipclab {

/// The T of this thread; Tag tells several of one type apart. At exit(), the
/// thread_local objects of a thread are destroyed before static objects, whose
/// destructors may call CUDA. So this object is destroyed only when its thread
/// ends and the process goes on.
template <class T, class Tag>
T& of_this_thread() {
  static thread_local T* mine = nullptr;
  if (mine == nullptr) {
    static const pthread_key_t key = [] {
      pthread_key_t made;
      pthread_key_create(&made, [](void* object) {
        mine = nullptr;
        delete static_cast<T*>(object);
      });
      return made;
    }();
    mine = new T;
    pthread_setspecific(key, mine);
  }
  return *mine;
}

}  // namespace ipclab
