// What the driver says about the link between two GPUs, and whether the bytes
// agree. Mirror of samples/78_prove_a_peer.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/cuda.h"
#include "harness/scenario/endpoint.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;
constexpr int kRounds = 8;
constexpr unsigned kThreads = 256, kTimes = 20;  // of each GPU

constexpr cudaDeviceP2PAttr kYesOrNo[] = {
    cudaDevP2PAttrAccessSupported,
    cudaDevP2PAttrNativeAtomicSupported,
    cudaDevP2PAttrCudaArrayAccessSupported,
};

// One word for each atomic operation. All results are the same in every order.
struct Cells {
  unsigned added, smallest, largest, counted_up, counted_down;
  unsigned cleared, set, flipped, exchanged, taken, compared;
  float float_added;
  unsigned long long added_64, compared_64;
  double double_added;
};

Cells before_the_atomics() {
  Cells cells{};
  cells.smallest = 1u << 30;
  cells.counted_down = 1u << 30;
  cells.cleared = ~0u;
  return cells;
}

// `side` is 0 or 1. Each side clears and sets bits of its own.
__global__ void use_atomics(Cells* cells, unsigned side) {
  const unsigned me = 1 + 2 * threadIdx.x + side;
  for (unsigned i = 0; i < kTimes; ++i) {
    atomicAdd_system(&cells->added, me);
    atomicMin_system(&cells->smallest, 1000000 - me);
    atomicMax_system(&cells->largest, me);
    atomicInc_system(&cells->counted_up, ~0u);
    atomicDec_system(&cells->counted_down, ~0u);
    atomicAnd_system(&cells->cleared, ~(1u << (me % 32)));
    atomicOr_system(&cells->set, 1u << (me % 32));
    atomicXor_system(&cells->flipped, me);
    atomicAdd_system(&cells->taken, atomicExch_system(&cells->exchanged, me));
    atomicAdd_system(&cells->float_added, 1.0f);
    atomicAdd_system(&cells->added_64, 1ull << 32);
    atomicAdd_system(&cells->double_added, 1.0);
    unsigned seen = 0;
    for (unsigned old = ~0u; seen != old;) {
      old = seen;
      seen = atomicCAS_system(&cells->compared, old, old + 1);
    }
    unsigned long long wide = 0;
    for (unsigned long long old = ~0ull; wide != old;) {
      old = wide;
      wide = atomicCAS_system(&cells->compared_64, old, old + (1ull << 32));
    }
  }
}

void expect_all_atomics(const Cells& seen) {
  constexpr unsigned kAll = 2 * kThreads * kTimes;
  unsigned sum = 0, flipped = 0;
  for (unsigned me = 1; me <= 2 * kThreads; ++me) sum += kTimes * me;
  for (unsigned me = 1; me <= 2 * kThreads; ++me)
    for (unsigned i = 0; i < kTimes; ++i) flipped ^= me;
  EXPECT_EQ(seen.added, sum);
  EXPECT_EQ(seen.smallest, 1000000 - 2 * kThreads);
  EXPECT_EQ(seen.largest, 2 * kThreads);
  EXPECT_EQ(seen.counted_up, kAll);
  EXPECT_EQ(seen.counted_down, (1u << 30) - kAll);
  EXPECT_EQ(seen.cleared, 0u);
  EXPECT_EQ(seen.set, ~0u);
  EXPECT_EQ(seen.flipped, flipped);
  EXPECT_EQ(seen.taken + seen.exchanged, sum);
  EXPECT_EQ(seen.compared, kAll);
  EXPECT_EQ(seen.float_added, static_cast<float>(kAll));
  EXPECT_EQ(seen.added_64, static_cast<unsigned long long>(kAll) << 32);
  EXPECT_EQ(seen.compared_64, static_cast<unsigned long long>(kAll) << 32);
  EXPECT_EQ(seen.double_added, static_cast<double>(kAll));
}

Pattern written_in(int round, const char* way) {
  return pattern(std::string(way) + " in round " + std::to_string(round));
}

// The exporter of a test in which a peer writes other data in each round.
void reads_each_round(Role& me) {
  const DeviceBuffer buffer(2 * kBytes);
  me.send("handle", buffer.legacy_handle());
  for (int round = 0; round < kRounds; ++round) {
    me.wait("written");
    EXPECT_READS(Words(buffer.data, kBytes), written_in(round, "copy"));
    EXPECT_READS(Words(buffer.data + kBytes / sizeof(uint32_t), kBytes),
                 written_in(round, "kernel"));
    me.signal("read");
  }
  me.wait("closed");
}

// The importer of this test. It writes one half by copies and the other half
// by kernels.
template <class Api>
void writes_each_round(Role& me, Api api) {
  CALL(cudaFree(nullptr));  // the driver API needs a context
  const DeviceBuffer own(kBytes);
  MappingBy mapping(api, me.receive<cudaIpcMemHandle_t>("handle"), 2 * kBytes);
  for (int round = 0; round < kRounds; ++round) {
    own.fill(written_in(round, "copy"));
    CALL(cudaMemcpy(mapping.data, own.data, kBytes, cudaMemcpyDefault));
    Words(mapping.data + kBytes / sizeof(uint32_t), kBytes)
        .fill(written_in(round, "kernel"));
    CALL(cudaDeviceSynchronize());
    me.signal("written");
    me.wait("read");
  }
  mapping.close();
  me.signal("closed");
}

}  // namespace

TEST(ProveAPeer, WhatAPeerWritesArrives) {
  covers("PEER-01");
  needs(gpus(2), legacy_memory);
  for (const int from : {0, 1}) {
    for_each_api([=](auto api) {
      Scenario scenario;
      scenario.role("exporter", [=](Role& me) {
        CALL(cudaSetDevice(from));
        Sentinel<int> can;
        EXPECT_SUCCESS(cudaDeviceCanAccessPeer(can.out(), 1 - from, from));
        me.send("promised", can.result() != 0);
        if (can.result() != 0) reads_each_round(me);
      });
      scenario.role("importer", [=](Role& me) {
        CALL(cudaSetDevice(1 - from));
        if (!me.receive<bool>("promised"))
          return me.not_applicable("the driver promises no access");
        writes_each_round(me, api);
      });
      scenario.run(30s);
    });
  }
}

TEST(ProveAPeer, AllQueriesSayTheSameOfALink) {
  covers("PEER-02");
  needs(gpus(2));
  run_alone([](Role& me) {
    for (const int from : {0, 1}) {
      const int to = 1 - from;
      Sentinel<int> can, same;
      EXPECT_SUCCESS(cudaDeviceCanAccessPeer(can.out(), from, to));
      EXPECT_SUCCESS(DRIVER(cuDeviceCanAccessPeer)(same.out(), from, to));
      EXPECT_EQ(can.result(), same.result());
      for (const cudaDeviceP2PAttr wanted : kYesOrNo) {
        SCOPED_TRACE("attribute " + std::to_string(wanted));
        Sentinel<int> value, by_driver;
        EXPECT_SUCCESS(
            cudaDeviceGetP2PAttribute(value.out(), wanted, from, to));
        EXPECT_SUCCESS(DRIVER(cuDeviceGetP2PAttribute)(
            by_driver.out(), static_cast<CUdevice_P2PAttribute>(wanted), from,
            to));
        EXPECT_TRUE(value.result() == 0 || value.result() == 1)
            << value.result();
        EXPECT_EQ(value.result(), by_driver.result());
        if (wanted == cudaDevP2PAttrAccessSupported)
          EXPECT_EQ(value.result(), can.result());
      }
      Sentinel<int> rank, rank_by_driver;
      EXPECT_SUCCESS(cudaDeviceGetP2PAttribute(
          rank.out(), cudaDevP2PAttrPerformanceRank, from, to));
      EXPECT_SUCCESS(DRIVER(cuDeviceGetP2PAttribute)(
          rank_by_driver.out(), CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, from,
          to));
      EXPECT_EQ(rank.result(), rank_by_driver.result());
      me.observe("GPU " + std::to_string(from) + " to GPU " +
                 std::to_string(to) + ": performance rank " +
                 std::to_string(rank.result()));
    }
  });
}

// Both sides of the test of atomics: each side uses them on the same words.
static void uses_atomics(Role& me, Cells* cells, unsigned side) {
  use_atomics<<<1, kThreads>>>(cells, side);
  CALL(cudaGetLastError());
  CALL(cudaDeviceSynchronize());
  me.signal(side == 0 ? "exporter is done" : "importer is done");
}

TEST(ProveAPeer, AtomicsOfBothGpusMeet) {
  covers("PEER-03");
  needs(gpus(2), legacy_memory, peer_access);
  for (const int from : {0, 1}) {
    Scenario scenario;
    scenario.role("exporter", [=](Role& me) {
      CALL(cudaSetDevice(from));
      Sentinel<int> native;
      CALL(cudaDeviceGetP2PAttribute(
          native.out(), cudaDevP2PAttrNativeAtomicSupported, 1 - from, from));
      me.send("promised", native.result() != 0);
      if (native.result() == 0) return;
      const DeviceBuffer buffer(kBytes);
      const Cells first = before_the_atomics();
      CALL(cudaMemcpy(buffer.data, &first, sizeof first, cudaMemcpyDefault));
      CALL(cudaDeviceSynchronize());  // the copy may return before its end
      me.send("handle", buffer.legacy_handle());
      me.wait("open");
      uses_atomics(me, reinterpret_cast<Cells*>(buffer.data), 0);
      me.wait("importer is done");
      Cells seen{};
      CALL(cudaMemcpy(&seen, buffer.data, sizeof seen, cudaMemcpyDefault));
      expect_all_atomics(seen);
      me.signal("read");
    });
    scenario.role("importer", [=](Role& me) {
      CALL(cudaSetDevice(1 - from));
      if (!me.receive<bool>("promised"))
        return me.not_applicable("the driver promises no atomics");
      LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"), kBytes);
      me.signal("open");
      uses_atomics(me, reinterpret_cast<Cells*>(mapping.data), 1);
      me.wait("exporter is done");
      me.wait("read");
      mapping.close();
    });
    scenario.run(30s);
  }
}

TEST(ProveAPeer, ALinkNeedsTwoDevices) {
  covers("PEER-04");
  needs(gpus(1));
  run_alone([](Role& me) {
    int count = 0;
    CALL(cudaGetDeviceCount(&count));
    const int pairs[][2] = {{0, 0}, {0, count}, {count, 0}, {0, -1}, {-1, 0}};
    for (const auto& [from, to] : pairs) {
      SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
      Sentinel<int> value, by_driver;
      EXPECT_CODE(cudaErrorInvalidDevice,
                  cudaDeviceGetP2PAttribute(
                      value.out(), cudaDevP2PAttrAccessSupported, from, to));
      note_touched(me, value, "cudaDeviceGetP2PAttribute");
      EXPECT_CODE(CUDA_ERROR_INVALID_DEVICE,
                  DRIVER(cuDeviceGetP2PAttribute)(
                      by_driver.out(), CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED,
                      from, to));
      note_touched(me, by_driver, "cuDeviceGetP2PAttribute");
    }
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(ProveAPeer, AnUnknownAttributeIsRefused) {
  covers("PEER-05");
  needs(gpus(2));
  run_alone([](Role& me) {
    for (const int wanted : {0, 1000, -1}) {
      SCOPED_TRACE("attribute " + std::to_string(wanted));
      Sentinel<int> value, by_driver;
      EXPECT_CODE(
          cudaErrorInvalidValue,
          cudaDeviceGetP2PAttribute(
              value.out(), static_cast<cudaDeviceP2PAttr>(wanted), 0, 1));
      note_touched(me, value, "cudaDeviceGetP2PAttribute");
      EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
                  DRIVER(cuDeviceGetP2PAttribute)(
                      by_driver.out(),
                      static_cast<CUdevice_P2PAttribute>(wanted), 0, 1));
      note_touched(me, by_driver, "cuDeviceGetP2PAttribute");
    }
    EXPECT_CODE(cudaErrorInvalidValue,
                cudaDeviceGetP2PAttribute(nullptr,
                                          cudaDevP2PAttrAccessSupported, 0, 1));
    EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
                DRIVER(cuDeviceGetP2PAttribute)(
                    nullptr, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
    EXPECT_TRUE(context_is_usable());
  });
}

namespace {

// All operations of CUDA 13.0. Their numbers begin at 0.
const std::vector<int> kAllOperations = {0, 1, 2, 3,  4,  5, 6,
                                         7, 8, 9, 10, 11, 12};
constexpr auto kPartialAtomics = static_cast<CUdevice_P2PAttribute>(5);

bool can_ask_for_atomics(Role& me) {
  constexpr char kName[] = "cuDeviceGetP2PAtomicCapabilities";
  if (newer_entry(kName) == nullptr) {
    me.not_applicable("this driver has no " + std::string(kName));
    return false;
  }
  if (CUDART_VERSION < 13000) {
    me.not_applicable(
        not_in_this_build("cudaDeviceGetP2PAtomicCapabilities", "13.0"));
    return false;
  }
  return true;
}

CUresult driver_says(unsigned* answers, const int* operations, size_t count,
                     int from, int to) {
  return NOTED(NEWER(cuDeviceGetP2PAtomicCapabilities)(
      answers, reinterpret_cast<const CUatomicOperation*>(operations),
      static_cast<unsigned>(count), from, to));
}

cudaError_t runtime_says(unsigned* answers, const int* operations, size_t count,
                         int from, int to) {
  return NOTED(cudaDeviceGetP2PAtomicCapabilities(
      answers, reinterpret_cast<const cudaAtomicOperation*>(operations),
      static_cast<unsigned>(count), from, to));
}

// What a link promises for each of these operations; both APIs must agree.
std::vector<unsigned> atomics_of_link(const std::vector<int>& operations,
                                      int from, int to) {
  constexpr unsigned kUntouched = 0x5a5a5a5a;
  const size_t count = operations.size();
  std::vector<unsigned> by_driver(count + 1, kUntouched), by_runtime(by_driver);
  EXPECT_SUCCESS(
      driver_says(by_driver.data(), operations.data(), count, from, to));
  EXPECT_SUCCESS(
      runtime_says(by_runtime.data(), operations.data(), count, from, to));
  EXPECT_EQ(by_driver, by_runtime);
  EXPECT_EQ(by_driver.back(), kUntouched) << "more answers than questions";
  by_driver.pop_back();
  EXPECT_EQ(std::count(by_driver.begin(), by_driver.end(), kUntouched), 0);
  return by_driver;
}

// Both APIs refuse this question and write nothing.
void expect_atomics_refused(Role& me, CUresult code, const int* operations,
                            size_t count, int from, int to) {
  Sentinel<unsigned> answer, by_driver;
  EXPECT_CODE(static_cast<cudaError_t>(code),
              runtime_says(answer.out(), operations, count, from, to));
  note_touched(me, answer, "cudaDeviceGetP2PAtomicCapabilities");
  EXPECT_CODE(code, driver_says(by_driver.out(), operations, count, from, to));
  note_touched(me, by_driver, "cuDeviceGetP2PAtomicCapabilities");
}

}  // namespace

TEST(ProveAPeer, TheAtomicsOfALinkAreToldOneByOne) {
  covers("PEER-06");
  needs(gpus(2));
  run_alone([](Role& me) {
    if (!can_ask_for_atomics(me)) return;
    for (const int from : {0, 1}) {
      const int to = 1 - from;
      SCOPED_TRACE("from GPU " + std::to_string(from));
      const std::vector<unsigned> all =
          atomics_of_link(kAllOperations, from, to);
      std::string told;
      for (size_t i = 0; i < all.size(); ++i) {
        const std::vector<unsigned> one =
            atomics_of_link({kAllOperations[i]}, from, to);
        EXPECT_EQ(one[0], all[i]) << "operation " << i << ", asked alone";
        told += " " + std::to_string(all[i]);
      }
      Sentinel<int> native, partial;
      EXPECT_SUCCESS(DRIVER(cuDeviceGetP2PAttribute)(
          native.out(), CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, from,
          to));
      EXPECT_SUCCESS(DRIVER(cuDeviceGetP2PAttribute)(
          partial.out(), kPartialAtomics, from, to));
      EXPECT_TRUE(partial.result() == 0 || partial.result() == 1)
          << partial.result();
      if (native.result() == 1 || partial.result() == 1)
        EXPECT_NE(all, std::vector<unsigned>(all.size(), 0));
      me.observe("GPU " + std::to_string(from) + " to GPU " +
                 std::to_string(to) + ": native " +
                 std::to_string(native.result()) + ", only partial " +
                 std::to_string(partial.result()) + ", operations" + told);
    }
  });
}

TEST(ProveAPeer, TheAtomicsOfALinkNeedTwoDevices) {
  covers("PEER-07");
  needs(gpus(1));
  run_alone([](Role& me) {
    if (!can_ask_for_atomics(me)) return;
    int count = 0;
    CALL(cudaGetDeviceCount(&count));
    const int pairs[][2] = {{0, 0}, {0, count}, {count, 0}, {0, -1}, {-1, 0}};
    for (const auto& [from, to] : pairs) {
      SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
      expect_atomics_refused(me, CUDA_ERROR_INVALID_DEVICE,
                             kAllOperations.data(), 1, from, to);
    }
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(ProveAPeer, AQuestionAboutNoAtomicIsRefused) {
  covers("PEER-08");
  needs(gpus(2));
  run_alone([](Role& me) {
    if (!can_ask_for_atomics(me)) return;
    expect_atomics_refused(me, CUDA_ERROR_INVALID_VALUE, kAllOperations.data(),
                           0, 0, 1);
    expect_atomics_refused(me, CUDA_ERROR_INVALID_VALUE, nullptr, 1, 0, 1);
    for (const int unknown : {1000, -1})
      expect_atomics_refused(me, CUDA_ERROR_INVALID_VALUE, &unknown, 1, 0, 1);
    EXPECT_CODE(cudaErrorInvalidValue,
                runtime_says(nullptr, kAllOperations.data(), 1, 0, 1));
    EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
                driver_says(nullptr, kAllOperations.data(), 1, 0, 1));
    EXPECT_TRUE(context_is_usable());
  });
}
