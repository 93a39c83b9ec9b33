// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

constexpr auto kGetLink = "cudaDeviceGetP2PAttribute";
constexpr auto kGetAtomics = "cudaDeviceGetP2PAtomicCapabilities";
constexpr int kAccess = CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;

bool is_about_one_device(Call& call) {
  return call.at<int>(2) == call.at<int>(3);
}

bool asks_for_atomics_of_one(Call& call) {
  return call.at<int>(3) == call.at<int>(4);
}

// The question has a place for the answers, and `known` operations.
auto asks_for(bool known) {
  return [known](Call& call) {
    return call.code() == cudaErrorInvalidValue &&
           call.at<unsigned*>(0) != nullptr &&
           call.at<const int*>(1) != nullptr &&
           (call.at<unsigned>(2) == 0) == known;
  };
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

  fault("link-atomics-by-driver-differ", {"PEER-06"},
        "cuDeviceGetP2PAtomicCapabilities says that a link has no first atomic")
      .with_gpus(2)
      .after({kGetAtomics}, WHEN(!call.is_runtime()), answers<unsigned>(0));

  fault("link-atomics-of-first", {"PEER-06"},
        "all atomics of a link are those of the first one that was asked for")
      .with_gpus(2)
      .after({kGetAtomics}, WHEN(call.at<unsigned>(2) > 1), [](Call& call) {
        unsigned* answers = call.at<unsigned*>(0);
        std::fill_n(answers, call.at<unsigned>(2), answers[0]);
        return true;
      });

  fault("link-atomics-none", {"PEER-06"},
        "a link that has all atomics is said to have none")
      .with_gpus(2)
      .after({kGetAtomics}, [](Call& call) {
        std::fill_n(call.at<unsigned*>(0), call.at<unsigned>(2), 0);
        return true;
      });

  fault("link-atomics-one-more", {"PEER-06"},
        "the atomics of a link get one answer more than was asked for")
      .with_gpus(2)
      .after({kGetAtomics},
             DO(call.at<unsigned*>(0)[call.at<unsigned>(2)] = 0, true));

  fault("link-atomics-one-device-ok", {"PEER-07"},
        "a device has a link with itself, and its atomics")
      .on_refusal({kGetAtomics}, asks_for_atomics_of_one, accepted);

  fault("link-atomics-unknown-device-ok", {"PEER-07"},
        "the atomics of the link to a device that does not exist are told")
      .on_refusal({kGetAtomics},
                  WHEN(call.code() == cudaErrorInvalidDevice &&
                       !asks_for_atomics_of_one(call)),
                  accepted);

  fault("link-atomics-count-0-ok", {"PEER-08"},
        "a question about no atomic of a link is accepted")
      .with_gpus(2)
      .on_refusal({kGetAtomics}, asks_for(true), accepted);

  fault("link-atomics-unknown-ok", {"PEER-08"},
        "a question about an atomic that does not exist is accepted")
      .with_gpus(2)
      .on_refusal({kGetAtomics}, asks_for(false), accepted);

  fault("link-atomics-null-ok", {"PEER-08"},
        "a question about atomics is accepted without a place for the answers, "
        "or without operations")
      .with_gpus(2)
      .on_refusal({kGetAtomics},
                  WHEN(call.at<unsigned*>(0) == nullptr ||
                       call.at<const int*>(1) == nullptr),
                  accepted);
}

}  // namespace ipclab::faults
