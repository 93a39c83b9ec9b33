// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

constexpr auto kGetLink = "cudaDeviceGetP2PAttribute";
constexpr int kAccess = CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;

bool is_about_one_device(Call& call) {
  return call.at<int>(2) == call.at<int>(3);
}

// The memory of a peer is after the kernel as it was before.
int stores_to_peer_lost(Call& call) {
  if (exports_memory(call)) return told_owner(call);
  struct Kept {
    void* begin;
    std::vector<char> bytes;
  };
  std::vector<Kept> kept;
  for (const auto& each : opened.all()) {
    if (!is_of_peer(each.first)) continue;
    const Addresses range = allocation_around(number(each.first));
    Kept one{each.first, std::vector<char>(range.second)};
    if (cudaMemcpy(one.bytes.data(), one.begin, one.bytes.size(),
                   cudaMemcpyDefault) == cudaSuccess)
      kept.push_back(std::move(one));
  }
  const int code = call.proceed();
  if (code != kSuccess || kept.empty()) return code;
  cudaDeviceSynchronize();
  for (const Kept& one : kept)
    cudaMemcpy(one.begin, one.bytes.data(), one.bytes.size(),
               cudaMemcpyDefault);
  call.fired();
  return code;
}

}  // namespace

FAULTS {
  fault("peer-store-lost", {"PEER-01", "PEER-03"},
        "what a kernel writes into opened memory of a peer is lost")
      .with_gpus(2)
      .on({kGetHandle, kLaunch}, stores_to_peer_lost);

  fault("link-access-denied", {"PEER-02"},
        "cudaDeviceGetP2PAttribute says that GPUs have no access to each "
        "other, although they are peers")
      .with_gpus(2)
      .after({kGetLink}, WHEN(call.at<int>(1) == kAccess), answers<int>(0));

  fault("link-by-driver-differs", {"PEER-02"},
        "cuDeviceGetP2PAttribute does not know the atomics that "
        "cudaDeviceGetP2PAttribute knows")
      .with_gpus(2)
      .after({kGetLink},
             WHEN(!call.is_runtime() &&
                  call.at<int>(1) ==
                      CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED),
             answers<int>(0));

  fault("link-one-device-ok", {"PEER-04"},
        "a question about the link of a device with itself is answered")
      .on_refusal({kGetLink}, is_about_one_device, accepted);

  fault("link-unknown-device-ok", {"PEER-04"},
        "a question about the link to a device that does not exist is answered")
      .on_refusal({kGetLink},
                  WHEN(call.code() == cudaErrorInvalidDevice &&
                       !is_about_one_device(call)),
                  accepted);

  fault("link-unknown-attribute-ok", {"PEER-05"},
        "a question about an attribute that a link does not have is answered")
      .with_gpus(2)
      .on_refusal({kGetLink},
                  WHEN(call.code() == cudaErrorInvalidValue &&
                       call.at<int*>(0) != nullptr),
                  accepted);

  fault("link-null-ok", {"PEER-05"},
        "a question about a link is accepted without a place for the answer")
      .with_gpus(2)
      .on_refusal({kGetLink}, WHEN(call.at<int*>(0) == nullptr), accepted);
}

}  // namespace ipclab::faults
