// Words about access to mappings and about reserved addresses.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/mman.h>

#include "harness/faults/words/words.h"

namespace ipclab::faults {

/// The access that is reported for a mapping but was never set. The key is the
/// beginning of the mapping.
inline Table<CUdeviceptr, CUmemAccessDesc> in_name;

inline int reported_access(Call& call) {
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(2));
  const auto& asked = *call.at<const CUmemLocation*>(1);
  const CUmemAccessDesc wrong = in_name.get(begin);
  const int code = call.proceed();
  if (code == kSuccess && in_name.has(begin) &&
      asked.type == wrong.location.type && asked.id == wrong.location.id)
    *call.at<unsigned long long*>(0) = wrong.flags;
  return code;
}

/// A change of access of one mapping from `from` to `to` is reported, but not
/// made. This concerns only the GPUs from number `first` on.
template <CUmemAccess_flags from, CUmemAccess_flags to, int first = 0>
int changed_in_name(Call& call) {
  if (call.is("cuMemGetAccess")) return reported_access(call);
  const CUdeviceptr begin = mapping_at(call.at<CUdeviceptr>(0));
  if (!call.is("cuMemSetAccess")) {
    const int code = call.proceed();
    if (code == kSuccess) in_name.erase(call.at<CUdeviceptr>(0));
    return code;
  }
  const auto& wanted = *call.at<const CUmemAccessDesc*>(2);
  const auto now = begin == 0 ? 0 : access_of(begin, wanted.location);
  if (wanted.flags == to && now == from && call.at<size_t>(3) == 1 &&
      wanted.location.id >= first &&
      call.at<size_t>(1) == mappings.get(begin).bytes) {
    in_name.put(begin, wanted);
    return accepted(call);
  }
  in_name.erase(begin);
  return call.proceed();
}

inline bool takes_access(Call& set) {
  return set.at<const CUmemAccessDesc*>(2)->flags ==
         CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

inline constexpr size_t kFarAway = size_t{4} << 30;

inline bool is_in_later_granule(CUdeviceptr address) {
  const CUdeviceptr begin = mapping_at(address);
  return begin != 0 && address - begin >= kGranule;
}

inline bool copies(Call& call, cudaMemcpyKind kind) {
  return call.is_runtime() && call.at<cudaMemcpyKind>(3) == kind;
}

/// A mark says what the access was: it could be written, it was lowered, or it
/// was raised again in name only.
enum : unsigned { kWritable = 1, kLowered, kRaisedInName };

}  // namespace ipclab::faults
