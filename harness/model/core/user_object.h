// SPDX-License-Identifier: Apache-2.0
// User objects: something of the program that graphs need. The last reference
// destroys it.
#pragma once

#include <cuda.h>

#include <map>

namespace ipclab::model {

/// Returns CUDA_ERROR_INVALID_VALUE without a function, for a count that is
/// zero or above INT_MAX, and for flags other than
/// CU_USER_OBJECT_NO_DESTRUCTOR_SYNC.
CUresult user_object_create(void* data, CUhostFn destroy, unsigned count,
                            unsigned flags, CUuserObject* object);
/// Adds references of the program. Returns CUDA_ERROR_INVALID_VALUE for an
/// object that does not exist.
CUresult user_object_retain(CUuserObject object, unsigned count);
/// Gives references of the program back. Do not hold a lock: the program's
/// function may run.
CUresult user_object_release(CUuserObject object, unsigned count);

/// The references of a graph. A copy has references of its own.
class HeldObjects {
 public:
  HeldObjects() = default;
  HeldObjects(const HeldObjects& other);
  HeldObjects& operator=(const HeldObjects&) = delete;
  ~HeldObjects();
  /// `moved`: the references are those of the program.
  CUresult retain(CUuserObject object, unsigned count, bool moved);
  CUresult release(CUuserObject object, unsigned count);

 private:
  std::map<CUuserObject, unsigned> counts_;
};

}  // namespace ipclab::model
