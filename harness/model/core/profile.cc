// SPDX-License-Identifier: Apache-2.0
// The table of profiles.
#include "core/profile.h"

#include <cuda.h>

#include <cstdlib>

#include "core/log.h"

namespace ipclab::model {
namespace {

constexpr int kCuda13 = 13000;
constexpr int kCuda135 = 13050;
constexpr int kCuda120 = 12000;
constexpr int kCuda122 = 12020;
constexpr int kCuda124 = 12040;
constexpr int kCuda128 = 12080;
constexpr int kBuilt = 0;  // the runtime has the version of its headers

constexpr int kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr int kAll = kDescriptor | CU_MEM_HANDLE_TYPE_FABRIC;

// clang-format off
constexpr Profile kProfiles[] = {
    // name       gpus peers max   events memory integrated pools handles vmm handles imex endp. 580 queue driver   runtime GiB
    {"one-gpu",      1, true,  8, true,  true,  false, true, kAll, true,  kAll, false, false, false, false, kCuda13,  kBuilt,   16,
     "one GPU without an IMEX channel (the default)"},
    {"two-gpus",     2, true,  8, true,  true,  false, true, kAll, true,  kAll, false, false, false, false, kCuda13,  kBuilt,   16,
     "two GPUs that reach each other"},
    {"four-gpus",    4, true,  8, true,  true,  false, true, kAll, true,  kAll, false, false, false, false, kCuda13,  kBuilt,   16,
     "four GPUs that all reach each other"},
    {"eight-gpus",   8, true,  8, true,  true,  false, true, kAll, true,  kAll, false, false, false, false, kCuda13,  kBuilt,   16,
     "eight GPUs that all reach each other"},
    {"no-peer",      2, false, 8, true,  true,  false, true, kAll, true,  kAll, false, false, false, false, kCuda13,  kBuilt,   16,
     "two GPUs that cannot reach each other"},
    {"few-peers",    4, true,  2, true,  true,  false, true, kAll, true,  kAll, false, false, false, false, kCuda13,  kBuilt,   16,
     "four GPUs, each with room for two peers at a time"},
    {"fabric",       2, true,  8, true,  true,  false, true, kAll, true,  kAll, true,  false, false, false, kCuda13,  kBuilt,   16,
     "two GPUs, and an IMEX channel that this user may open"},
    {"no-fabric",    1, true,  8, true,  true,  false, true, kDescriptor, true, kDescriptor, false, false, false, false, kCuda13,  kBuilt,   16,
     "a GPU that does not support fabric handles"},
    {"driver-580",   2, true,  8, true,  true,  false, true, kAll, true,  kAll, false, false, true,  false, kCuda13,  kBuilt,   16,
     "two GPUs with driver 580, also where it differs from the documentation"},
    {"driver-13.5",  2, true,  8, true,  true,  false, true, kAll, true,  kAll, false, false, false, false, kCuda135, kBuilt,   16,
     "two GPUs with a driver of CUDA 13.5"},
    {"fabric-13.5",  2, true,  8, true,  true,  false, true, kAll, true,  kAll, true,  true,  false, false, kCuda135, kCuda135, 16,
     "two GPUs of a fabric with logical endpoints; driver and runtime of CUDA 13.5"},
    {"late-fabric",  2, true,  8, true,  true,  false, true, kAll, true,  kAll, true,  true,  false, false, kCuda135, kCuda135, 16,
     "the same, but the fabric is not ready when a process uses it first", kHopper, true},
    {"tegra",        1, true,  8, true,  false, true,  true, 0,    true,  0,    false, false, false, false, kCuda13,  kBuilt,   8,
     "an embedded GPU: interprocess events, no memory handles"},
    {"no-ipc",       1, true,  8, false, false, false, true, 0,    true,  0,    false, false, false, false, kCuda13,  kBuilt,   16,
     "a GPU without interprocess communication"},
    {"no-pools",     1, true,  8, true,  true,  false, false, 0,   false, 0,    false, false, false, false, kCuda13,  kBuilt,   16,
     "a GPU without the stream-ordered allocator and virtual memory management"},
    {"compute-12.0", 2, true,  8, true,  true,  false, true, kAll, true,  kAll, false, false, false, false, kCuda13,  kBuilt,   16,
     "two GPUs of compute capability 12.0", kBlackwell12},
    {"one-queue",    1, true,  8, true,  true,  false, true, kAll, true,  kAll, false, false, false, true, kCuda13,  kBuilt,   16,
     "one GPU on which no stream goes on while another one waits"},
    {"newer-runtime",1, true,  8, true,  true,  false, true, kAll, true,  kAll, false, false, false, false, kCuda13,  kCuda135, 16,
     "a runtime of CUDA 13.5 with a driver of CUDA 13.0"},
    {"driver-525",   2, true,  8, true,  true,  false, true, kDescriptor, true, kDescriptor, false, false, false, false, kCuda120, kBuilt,  16,
     "two GPUs with a driver of CUDA 12.0"},
    {"driver-535",   2, true,  8, true,  true,  false, true, kDescriptor, true, kDescriptor, false, false, false, false, kCuda122, kBuilt,  16,
     "two GPUs with a driver of CUDA 12.2"},
    {"driver-550",   2, true,  8, true,  true,  false, true, kAll, true,  kAll, false, false, false, false, kCuda124, kBuilt,   16,
     "two GPUs with a driver of CUDA 12.4"},
    {"driver-570",   2, true,  8, true,  true,  false, true, kAll, true,  kAll, false, false, false, false, kCuda128, kBuilt,   16,
     "two GPUs with a driver of CUDA 12.8"},
};
// clang-format on

const Profile& find_profile() {
  const char* variable = std::getenv("IPCLAB_PROFILE");
  const std::string wanted =
      variable != nullptr && *variable != '\0' ? variable : "one-gpu";
  std::string names;
  for (const Profile& candidate : kProfiles) {
    if (wanted == candidate.name) return candidate;
    names += std::string(names.empty() ? "" : ", ") + candidate.name;
  }
  die("IPCLAB_PROFILE=" + wanted + " names no profile: use one of " + names);
}

}  // namespace

const Profile& profile() {
  static const Profile& chosen = find_profile();
  return chosen;
}

}  // namespace ipclab::model
