// Where a GPU is in a fabric: its cluster and its cliques. Mirror of
// samples/37_fabric_identity.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "harness/scenario/cuda.h"
#include "harness/scenario/endpoint.h"
#include "harness/scenario/leaks.h"

using namespace ipclab;

// The cliques of a device. If the device is in no fabric, returns none and
// reports that there is nothing to judge.
std::vector<CUcliqueInfo> cliques_of(Role& me, int device) {
  CALL(cudaFree(nullptr));
  Sentinel<size_t> count;
  const CUresult code =
      NOTED(NEWER(cuDeviceGetCliqueCount)(count.out(), device));
  if (code != CUDA_SUCCESS) {
    EXPECT_TRUE(refused(code, "cuDeviceGetCliqueCount",
                        {CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_PERMITTED}));
    me.not_applicable("no cliques: " + name_of(code));
    return {};
  }
  std::vector<CUcliqueInfo> cliques(count.result());
  size_t entries = cliques.size();
  CALL(NEWER(cuDeviceGetCliqueInfo)(cliques.data(), &entries, device));
  EXPECT_EQ(entries, cliques.size());
  for (const CUcliqueInfo& clique : cliques)
    me.observe("clique " + std::to_string(clique.id) + " of type " +
               std::to_string(clique.type));
  return cliques;
}

TEST(FabricHandle, CliquesAreCountedAndListed) {
  covers("CLIQ-01");
  needs(gpus(1), endpoints);
  run_alone([](Role& me) {
    cliques_of(me, 0);
    EXPECT_TRUE(context_is_usable());
  });
}

static bool is_one_of(const CUcliqueInfo& clique,
                      const std::vector<CUcliqueInfo>& all) {
  return std::any_of(all.begin(), all.end(), [&](const CUcliqueInfo& known) {
    return known.type == clique.type && known.id == clique.id;
  });
}

TEST(FabricHandle, CliquesAreListedAsFarAsThereIsRoom) {
  covers("CLIQ-03");
  needs(gpus(1), endpoints);
  run_alone([](Role& me) {
    const std::vector<CUcliqueInfo> all = cliques_of(me, 0);
    constexpr unsigned kUntouched = 0x5a5a5a5a;
    const CUcliqueInfo untouched{static_cast<CUcliqueType>(-1), kUntouched};
    // Arrays with room for one entry too few, for all entries, and for one
    // entry too many. The documentation does not say whether a short array is
    // refused.
    for (size_t room = all.empty() ? 0 : all.size() - 1; room <= all.size() + 1;
         ++room) {
      SCOPED_TRACE(room);
      std::vector<CUcliqueInfo> told(all.size() + 1, untouched);
      size_t count = room;
      const CUresult code =
          NOTED(NEWER(cuDeviceGetCliqueInfo)(told.data(), &count, 0));
      if (code != CUDA_SUCCESS) {
        ASSERT_LT(room, all.size()) << "refused: " << name_of(code);
        EXPECT_CODE(CUDA_ERROR_INVALID_VALUE, code);
        me.observe("an array that is too short is refused");
        count = 0;
      }
      ASSERT_EQ(count, code == CUDA_SUCCESS ? std::min(room, all.size()) : 0);
      for (size_t i = 0; i < count; ++i) EXPECT_TRUE(is_one_of(told[i], all));
      for (size_t i = count; i < told.size(); ++i)
        EXPECT_EQ(told[i].id, kUntouched) << "an entry too many";
    }
    EXPECT_TRUE(context_is_usable());
  });
}

// The UUID of a GPU as NVML knows it.
static std::string uuid_text(int device) {
  cudaDeviceProp properties;
  CALL(cudaGetDeviceProperties(&properties, device));
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x",
                  static_cast<unsigned char>(properties.uuid.bytes[i]));
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

TEST(FabricHandle, ADeviceHasACluster) {
  covers("CLIQ-02");
  needs(gpus(1), endpoints);
  run_alone([](Role& me) {
    CALL(cudaFree(nullptr));
    Sentinel<CUuuid> cluster, again;
    const CUresult code =
        NOTED(NEWER(cuDeviceGetFabricClusterUuid)(cluster.out(), 0));
    if (code != CUDA_SUCCESS) {
      EXPECT_TRUE(
          refused(code, "cuDeviceGetFabricClusterUuid",
                  {CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_PERMITTED}));
      return me.not_applicable("no cluster: " + name_of(code));
    }
    const CUuuid found = cluster.result();
    EXPECT_SUCCESS(NEWER(cuDeviceGetFabricClusterUuid)(again.out(), 0));
    EXPECT_EQ(std::memcmp(&found, &again.result(), sizeof found), 0);
    // NVML gets the cluster on another way.
    const auto place = fabric_place_of(uuid_text(0));
    if (!place) return me.not_applicable("NVML names no cluster to compare");
    EXPECT_EQ(std::memcmp(&found, place->cluster.data(), sizeof found), 0)
        << "NVML names another cluster";
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(FabricHandle, DevicesOfACliqueAndTheirClusters) {
  covers("CLIQ-04");
  needs(gpus(2), endpoints);
  run_alone([](Role& me) {
    const std::vector<CUcliqueInfo> one = cliques_of(me, 0),
                                    other = cliques_of(me, 1);
    if (one.empty() || other.empty())
      return me.not_applicable("a device is in no clique");
    Sentinel<CUuuid> clusters[2];
    for (const int device : {0, 1})
      EXPECT_SUCCESS(
          NEWER(cuDeviceGetFabricClusterUuid)(clusters[device].out(), device));
    bool together = false;
    for (const CUcliqueInfo& mine : one)
      for (const CUcliqueInfo& theirs : other)
        together |= mine.type == theirs.type && mine.id == theirs.id;
    const bool same = std::memcmp(&clusters[0].result(), &clusters[1].result(),
                                  sizeof(CUuuid)) == 0;
    me.observe(std::string(together ? "one clique" : "different cliques") +
               (same ? ", one cluster" : ", different clusters"));
    EXPECT_TRUE(context_is_usable());
  });
}
