// Lesson 37: ask which GPUs of a fabric reach each other.
//
//   exporter, GPU 0                     importer, GPU 1
//   cuDeviceGetFabricClusterUuid        cuDeviceGetFabricClusterUuid
//   cuDeviceGetCliqueInfo               cuDeviceGetCliqueInfo
//   compare              <-- place ---
//
// nvcc -cudart shared samples/37_fabric_identity/fabric_identity.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/roles.h"

#if CUDA_VERSION < 13040  // older headers do not have these functions
int main() { skip("build this lesson with CUDA Toolkit 13.4"); }
#else

//! [place]
// Plain data that says where a GPU is in a fabric.
constexpr size_t kMost = 16;
struct Place {
  CUuuid cluster;
  size_t count;
  CUcliqueInfo cliques[kMost];
};
//! [place]

//! [ask]
Place ask(CUdevice device) {
  Place place{};
  const CUresult code = until_fabric_is_ready([&] {
    return DRIVER(cuDeviceGetFabricClusterUuid)(&place.cluster, device);
  });
  if (code == CUDA_ERROR_NOT_SUPPORTED ||
      code == CUDA_ERROR_NOT_PERMITTED)
    skip("GPU %d is in no fabric: %s", device, driver_error(code));
  CU_CHECK(code);

  place.count = kMost;  // size of the array; the call writes the count
  CU_CHECK(DRIVER(cuDeviceGetCliqueInfo)(place.cliques, &place.count,
                                         device));
  return place;
}
//! [ask]

//! [compare]
constexpr std::pair<CUcliqueType, const char*> kTypes[] = {
    {CU_CLIQUE_TYPE_UNICAST_POINTER, "addresses"},
    {CU_CLIQUE_TYPE_MULTICAST_POINTER, "addresses, multicast"},
    {CU_CLIQUE_TYPE_UNICAST_LOGICAL_ENDPOINT, "endpoints"},
    {CU_CLIQUE_TYPE_MULTICAST_LOGICAL_ENDPOINT, "endpoints, multicast"},
};

template <class T>
bool same(const T& one, const T& other) {
  return std::memcmp(&one, &other, sizeof one) == 0;
}

// Returns true if both GPUs are in one clique of this type. A clique of
// another cluster could have the same number.
bool share(const Place& one, const Place& other, CUcliqueType type) {
  if (!same(one.cluster, other.cluster)) return false;
  for (size_t i = 0; i < one.count; ++i)
    for (size_t j = 0; j < other.count; ++j)
      if (one.cliques[i].type == type &&
          same(one.cliques[i], other.cliques[j]))
        return true;
  return false;
}
//! [compare]

//! [exporter]
int exporter(Channel& channel, const Place& mine, const Place& seen) {
  const auto theirs = channel.receive<Place>("place");
  for (const auto& [type, what] : kTypes)
    say("one clique for %s: %s", what,
        share(mine, theirs, type) ? "yes" : "no");

  // On one node this process sees GPU 1, too.
  const bool right = same(theirs, seen);
  say("knows the same about GPU 1: %s", right ? "yes" : "no");
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel channel) {
  CUDA_CHECK(cudaSetDevice(1));  // initialises the driver API
  channel.send("place", ask(1));
  return EXIT_SUCCESS;
}
//! [importer]

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(2);
  if (driver_entry("cuDeviceGetCliqueInfo") == nullptr)
    skip("needs a driver of CUDA 13.4");
  const Place mine = ask(0), seen = ask(1);  // ask() may skip

  Child child = start_again(argv);
  return child.finish(exporter(child.channel, mine, seen));
}
#endif
