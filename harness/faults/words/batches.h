// Words about the operations of cuStreamBatchMemOp.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "harness/faults/engine/fault.h"

namespace ipclab::faults {

using Operation = CUstreamBatchMemOpParams;

/// Does an operation wait for a word of so many bits? 0: of any size.
inline bool is_wait(const Operation& one, int bits = 0) {
  return (bits != 64 && one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32) ||
         (bits != 32 && one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64);
}
/// Does an operation write a word of so many bits? 0: of any size.
inline bool is_write(const Operation& one, int bits = 0) {
  return (bits != 64 && one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32) ||
         (bits != 32 && one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64);
}

/// A copy of the operations; none if the driver must refuse so many.
inline std::vector<Operation> operations_of(Call& batch) {
  const auto* const list = batch.at<const Operation*>(2);
  const auto count = batch.at<unsigned>(1);
  if (list == nullptr || count >= 256) return {};
  return {list, list + count};
}
/// The driver gets these operations instead.
inline int with_operations(Call& batch, std::vector<Operation>& list) {
  batch.at<Operation*>(2) = list.data();
  batch.at<unsigned>(1) = static_cast<unsigned>(list.size());
  batch.fired();
  return list.empty() ? kSuccess : batch.proceed();
}
/// Effect: each operation is changed for which `change` returns true.
template <class Change>
auto each_operation(Change change) {
  return [change](Call& batch) {
    auto list = operations_of(batch);
    bool changed = false;
    for (Operation& one : list) changed |= change(one);
    return changed ? with_operations(batch, list) : batch.proceed();
  };
}
/// Effect: only those operations are made for which `keep` returns true; it
/// gets an operation and those before it that are made.
template <class Keep>
auto only_operations(Keep keep) {
  return [keep](Call& batch) {
    std::vector<Operation> kept;
    for (const Operation& one : operations_of(batch))
      if (keep(one, kept)) kept.push_back(one);
    return kept.size() < operations_of(batch).size()
               ? with_operations(batch, kept)
               : batch.proceed();
  };
}
/// Effect: only the first operations are made.
inline auto first_operations(size_t most) {
  return only_operations([most](const Operation&, const auto& kept) {
    return kept.size() < most;
  });
}
/// Effect: all waits with the condition `asked` have the condition `taken`.
inline auto other_condition_in_batch(unsigned asked, unsigned taken,
                                     int bits = 0) {
  return each_operation([=](Operation& one) {
    if (!is_wait(one, bits) || one.waitValue.flags != asked) return false;
    one.waitValue.flags = taken;
    return true;
  });
}
/// Does an operation concern an address for which `lies` returns true?
template <class Lies>
bool any_operation(Call& batch, Lies lies) {
  for (const Operation& one : operations_of(batch))
    if ((is_wait(one) || is_write(one)) && lies(one.waitValue.address))
      return true;
  return false;
}

}  // namespace ipclab::faults
