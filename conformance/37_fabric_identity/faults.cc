// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0

#include <cstring>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

FAULTS {
  fault("cliques-miscounted", {"CLIQ-01"},
        "the reported number of a device's cliques is too large by one")
      .on_machine("fabric-13.5")
      .after({"cuDeviceGetCliqueCount"},
             [](Call& call) { ++*call.at<size_t*>(0); });

  fault("cliques-too-many", {"CLIQ-03"},
        "more cliques are written than the array has room for")
      .on_machine("fabric-13.5")
      .before({"cuDeviceGetCliqueInfo"}, [](Call& call) {
        size_t all = 0;
        DRIVER_CALL(cuDeviceGetCliqueCount)(&all, call.at<CUdevice>(2));
        if (*call.at<size_t*>(1) < all) {
          *call.at<size_t*>(1) = all;
          call.fired();
        }
        return kSuccess;
      });

  fault("cluster-untold", {"CLIQ-02"},
        "the query of the cluster returns success, but does not write the UUID")
      .on_machine("fabric-13.5")
      .on({"cuDeviceGetFabricClusterUuid"}, nothing_done);

  fault("cluster-constant", {"CLIQ-02"},
        "every device has the same UUID of a cluster, which no fabric has")
      .on_machine("fabric-13.5")
      .after({"cuDeviceGetFabricClusterUuid"}, [](Call& call) {
        std::memset(call.at<void*>(0), 0x5a, sizeof(CUuuid));
      });

  fault("cluster-of-second-gpu-untold", {"CLIQ-04"},
        "the query of the second GPU's cluster does not write the UUID")
      .with_gpus(2)
      .on_machine("fabric-13.5")
      .on({"cuDeviceGetFabricClusterUuid"}, WHEN(call.at<CUdevice>(1) != 0),
          lost);
}

}  // namespace
}  // namespace ipclab::faults
