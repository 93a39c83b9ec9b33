// Logical endpoints: memory that is reached by a number and an offset. Mirror
// of samples/36_logical_endpoint.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "conformance/36_logical_endpoint/logical_endpoint_test.h"
#include "harness/scenario/kernels.h"
#include "harness/scenario/pool.h"

using namespace ipclab;

namespace {

constexpr uid_t kNobody = 65534;
constexpr auto kEndpointHandle = CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC;

}  // namespace

// Copies to each number reach the memory that is bound to this number.
static void expect_numbers_have_memory(const EndpointIds& ids, unsigned count) {
  const size_t bytes = endpoint_granule();
  std::deque<Chunk> chunks;
  const auto written = [](unsigned i) {
    return pattern("number " + std::to_string(i));
  };
  for (unsigned i = 0; i < count; ++i) {
    Sentinel<int> status;
    do {
      CALL(NEWER(cuLogicalEndpointQuery)(ids[i], 1, status.out()));
    } while (status.result() == 0);
    chunks.push_back(fabric_chunk(bytes));
    CALL(NEWER(cuLogicalEndpointBindMem)(ids[i], 0, 0, chunks[i].handle(), 0,
                                         bytes, 0));
    endpoint_write(ids[i], 0, bytes, written(i));
  }
  for (unsigned i = 0; i < count; ++i) {
    EXPECT_TRUE(kernel_reads(Mapping(chunks[i], bytes), written(i)));
    EXPECT_TRUE(endpoint_reads(ids[i], 0, bytes, written(i)));
  }
}

TEST(LogicalEndpoint, NumbersAreReservedInARow) {
  covers("ENDP-01");
  needs(gpus(1), endpoints);
  run_alone([](Role&) {
    constexpr unsigned kCount = 4;
    const EndpointIds ids(kCount);
    const CUlogicalEndpointProp wanted = unicast_on(0, endpoint_granule());
    for (unsigned i = 0; i < kCount; ++i)
      EXPECT_SUCCESS(NEWER(cuLogicalEndpointCreate)(ids[i], &wanted));
    expect_numbers_have_memory(ids, kCount);
    for (unsigned i = 0; i < kCount; ++i)
      EXPECT_SUCCESS(NEWER(cuLogicalEndpointDestroy)(ids[i]));
  });
}

TEST(LogicalEndpoint, NoNumberIsReservedTwice) {
  covers("ENDP-18");
  needs(gpus(1), endpoints);
  run_alone([](Role&) {
    constexpr unsigned kCount = 4;
    const EndpointIds ids(kCount), others(kCount);
    EXPECT_TRUE(others[0] >= ids[0] + kCount || ids[0] >= others[0] + kCount)
        << "a number was reserved twice";
    const CUlogicalEndpointProp wanted = unicast_on(0, endpoint_granule());
    for (unsigned i = 0; i < kCount; ++i)
      for (const EndpointIds* range : {&ids, &others})
        EXPECT_SUCCESS(NEWER(cuLogicalEndpointCreate)((*range)[i], &wanted));
    for (unsigned i = 0; i < kCount; ++i)
      for (const EndpointIds* range : {&ids, &others})
        EXPECT_SUCCESS(NEWER(cuLogicalEndpointDestroy)((*range)[i]));
  });
}

static CUlogicalEndpointId first_of_three() {
  Sentinel<CUlogicalEndpointId> out;
  CALL(NEWER(cuLogicalEndpointIdReserve)(out.out(), 3));
  return out.result();
}

// The caller must not release numbers that are not reserved or have an
// endpoint. No sentence says that the release is refused; a refused one changes
// nothing.
TEST(LogicalEndpoint, ReleaseNeedsNumbersWithoutEndpoints) {
  covers("ENDP-02");
  needs(gpus(1), endpoints);
  run_alone([](Role& me) {
    CALL(cudaFree(nullptr));
    const auto is_accepted = [&](const char* what, CUresult code) {
      me.observe(std::string(what) + ": " + name_of(code));
      return code == CUDA_SUCCESS;
    };
    const CUlogicalEndpointProp wanted = unicast_on(0, endpoint_granule());
    const CUlogicalEndpointId used = first_of_three();
    CALL(NEWER(cuLogicalEndpointCreate)(used + 1, &wanted));
    if (!is_accepted("a release of a number with an endpoint",
                     NOTED(NEWER(cuLogicalEndpointIdRelease)(used, 3)))) {
      EXPECT_SUCCESS(NEWER(cuLogicalEndpointDestroy)(used + 1));
      EXPECT_SUCCESS(NEWER(cuLogicalEndpointIdRelease)(used, 3));
    }
    const CUlogicalEndpointId first = first_of_three();
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointIdRelease)(first + 2, 1));
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointCreate)(first, &wanted));
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointDestroy)(first));
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointIdRelease)(first, 2));

    const CUlogicalEndpointId part = first_of_three();
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointIdRelease)(part + 2, 1));
    if (!is_accepted("a release of a number that is not reserved",
                     NOTED(NEWER(cuLogicalEndpointIdRelease)(part, 3))))
      EXPECT_SUCCESS(NEWER(cuLogicalEndpointIdRelease)(part, 2));
    if (is_accepted("an endpoint for a number that is not reserved",
                    NOTED(NEWER(cuLogicalEndpointCreate)(part, &wanted))))
      is_accepted("its destroy", NOTED(NEWER(cuLogicalEndpointDestroy)(part)));
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(LogicalEndpoint, AQuerySaysWhenItIsReady) {
  covers("ENDP-03");
  needs(gpus(1), endpoints, endpoint_teams);
  run_alone([](Role&) {
    const size_t bytes = endpoint_granule();
    const EndpointIds ids(4);  // the last number gets no endpoint
    const CUlogicalEndpointProp alone = unicast_on(0, bytes);
    const CUlogicalEndpointProp team = multicast_of(1, bytes);
    const Chunk chunk = fabric_chunk(bytes);
    const Mapping mapped(chunk, bytes);
    const auto bind = [&] {
      return NOTED(NEWER(cuLogicalEndpointBindMem)(ids[0], 0, 0, chunk.handle(),
                                                   0, bytes, 0));
    };
    for (const unsigned i : {0, 2})
      CALL(NEWER(cuLogicalEndpointCreate)(ids[i], &alone));
    CALL(NEWER(cuLogicalEndpointCreate)(ids[1], &team));
    EXPECT_INVALID(bind());
    EXPECT_INVALID(
        NEWER(cuLogicalEndpointBindAddr)(ids[0], 0, 0, mapped.data, bytes, 0));
    const auto is_ready = [](CUlogicalEndpointId id, unsigned count) {
      Sentinel<int> status;
      EXPECT_SUCCESS(NEWER(cuLogicalEndpointQuery)(id, count, status.out()));
      return status.result() != 0;
    };
    for (const unsigned i : {0, 2})
      while (!is_ready(ids[i], 1)) std::this_thread::yield();
    EXPECT_FALSE(is_ready(ids[1], 1)) << "a team without members";
    EXPECT_FALSE(is_ready(ids[0], 2)) << "one of two is not ready";
    EXPECT_FALSE(is_ready(ids[1], 2)) << "the first of two is not ready";
    EXPECT_FALSE(is_ready(ids[0], 3)) << "the second of three is not ready";
    int status = 0;
    const CUresult code =
        NOTED(NEWER(cuLogicalEndpointQuery)(ids[2], 2, &status));
    EXPECT_TRUE(code != CUDA_SUCCESS || status == 0)
        << "a number without endpoint";
    EXPECT_SUCCESS(bind());
    EXPECT_INVALID(NEWER(cuLogicalEndpointAddDevice)(ids[0], 0));
    for (const unsigned i : {0, 1, 2})
      EXPECT_SUCCESS(NEWER(cuLogicalEndpointDestroy)(ids[i]));
    CALL(NEWER(cuLogicalEndpointCreate)(ids[0], &alone));
    EXPECT_INVALID(bind()) << "the query was of an earlier endpoint";
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointDestroy)(ids[0]));
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(LogicalEndpoint, SizesFollowTheLimits) {
  covers("ENDP-04");
  needs(gpus(1), endpoints);
  run_alone([](Role& me) {
    std::vector<CUlogicalEndpointProp> kinds{unicast_on(0, endpoint_granule())};
    if (attribute(CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_MULTICAST_SUPPORTED))
      kinds.push_back(multicast_of(1, endpoint_granule()));
    for (CUlogicalEndpointProp& wanted : kinds) {
      SCOPED_TRACE("type " + std::to_string(wanted.type));
      const EndpointLimits limits = limits_of(wanted);
      me.observe("type " + std::to_string(wanted.type) + ": alignment " +
                 std::to_string(limits.alignment) + ", at most " +
                 std::to_string(limits.most) + " bytes");
      ASSERT_GT(limits.alignment, 0u);
      ASSERT_GE(limits.most, limits.alignment);
      const EndpointIds ids;
      for (const cuuint64_t good : {limits.alignment, 2 * limits.alignment}) {
        wanted.size = good;
        EXPECT_SUCCESS(NEWER(cuLogicalEndpointCreate)(ids[0], &wanted)) << good;
        EXPECT_SUCCESS(NEWER(cuLogicalEndpointDestroy)(ids[0]));
      }
      wanted.size = limits.most / limits.alignment * limits.alignment;
      const CUresult code =
          NOTED(NEWER(cuLogicalEndpointCreate)(ids[0], &wanted));
      EXPECT_TRUE(code == CUDA_SUCCESS || code == CUDA_ERROR_OUT_OF_MEMORY)
          << "the largest size: " << name_of(code);
      if (code == CUDA_SUCCESS)
        EXPECT_SUCCESS(NEWER(cuLogicalEndpointDestroy)(ids[0]));
      for (const cuuint64_t bad :
           {limits.alignment / 2, limits.alignment + limits.alignment / 2,
            limits.most + limits.alignment}) {
        // The caller must not ask for this size; no sentence promises a code.
        wanted.size = bad;
        const CUresult answer =
            NOTED(NEWER(cuLogicalEndpointCreate)(ids[0], &wanted));
        me.observe(std::to_string(bad) + " bytes: " + name_of(answer));
        if (answer == CUDA_SUCCESS)
          EXPECT_SUCCESS(NEWER(cuLogicalEndpointDestroy)(ids[0]));
      }
      // The number is free, whatever the answers were.
      wanted.size = limits.alignment;
      EXPECT_SUCCESS(NEWER(cuLogicalEndpointCreate)(ids[0], &wanted));
      EXPECT_SUCCESS(NEWER(cuLogicalEndpointDestroy)(ids[0]));
    }
    EXPECT_TRUE(context_is_usable());
  });
}

// One copy fills the memory of two bindings. The documentation does not say
// whether such a copy is refused.
static void expect_copy_over_two_bindings(Role& me, const Endpoint& endpoint,
                                          const Words& first,
                                          const Words& second) {
  const size_t bytes = first.bytes();
  CALL(cudaSetDevice(device_that_reaches_endpoints()));
  const DeviceBuffer source(2 * bytes);
  source.fill(pattern("two bindings"));
  const Stream stream;
  const CUresult code = NOTED(queue_copies(
      {copy_op(operand(endpoint.id(), 0), operand(source.data), 2 * bytes)},
      stream));
  me.observe("one copy over two bindings: " + name_of(code));
  if (code == CUDA_SUCCESS) CALL(cudaStreamSynchronize(stream));
  CALL(cudaSetDevice(0));
  if (code != CUDA_SUCCESS) return;
  std::vector<uint32_t> seen(2 * first.count);
  CALL(cudaMemcpy(seen.data(), first.data, bytes, cudaMemcpyDefault));
  CALL(cudaMemcpy(seen.data() + first.count, second.data, bytes,
                  cudaMemcpyDefault));
  EXPECT_TRUE(
      host_reads(Words(seen.data(), 2 * bytes), pattern("two bindings")));
}

TEST(LogicalEndpoint, AnOffsetIsTheMemoryThatIsBoundThere) {
  covers("ENDP-05");
  needs(gpus(1), endpoints);
  run_alone([](Role& me) {
    const size_t bytes = endpoint_granule();
    const Chunk first = fabric_chunk(bytes), large = fabric_chunk(2 * bytes);
    const Mapping at_first(first, bytes), at_large(large, 2 * bytes);
    at_first.poison();
    at_large.poison();
    const Words half = words_at(at_large.address() + bytes, bytes);
    // The second half of `large` is bound at offset 0, and `first` after it.
    const Endpoint endpoint(unicast_on(0, 2 * bytes));
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointBindMem)(
        endpoint.id(), 0, 0, large.handle(), bytes, bytes, 0));
    endpoint.bind(bytes, first, bytes);

    endpoint_write(endpoint.id(), 0, bytes, pattern("written at 0"));
    EXPECT_TRUE(kernel_reads(half, pattern("written at 0")));
    endpoint_write(endpoint.id(), bytes, bytes, pattern("written after"));
    EXPECT_TRUE(kernel_reads(at_first, pattern("written after")));
    EXPECT_TRUE(copy_reads(half, pattern("written at 0")));
    half.fill(pattern("changed"));
    EXPECT_TRUE(endpoint_reads(endpoint.id(), 0, bytes, pattern("changed")));
    EXPECT_TRUE(
        endpoint_reads(endpoint.id(), bytes, bytes, pattern("written after")));
    expect_copy_over_two_bindings(me, endpoint, half, at_first);
  });
}

// An address binds the memory that is mapped there, also if other memory is
// mapped at the beginning of the same reservation.
static void expect_second_chunk_is_bound(const Endpoint& endpoint,
                                         size_t offset) {
  const size_t bytes = endpoint_granule();
  const Chunk neighbour = fabric_chunk(bytes), aimed = fabric_chunk(bytes);
  const Reservation range(2 * bytes);
  range.map(0, bytes, neighbour);
  range.map(bytes, bytes, aimed);
  const CUmemAccessDesc access = access_for(0);
  CALL(DRIVER(cuMemSetAccess)(range.at(0), range.bytes(), &access, 1));
  const Words second = words_at(range.at(bytes), bytes);
  EXPECT_SUCCESS(NEWER(cuLogicalEndpointBindAddr)(endpoint.id(), 0, offset,
                                                  second.data, bytes, 0));
  endpoint_write(endpoint.id(), offset, bytes, pattern("second chunk"));
  EXPECT_TRUE(kernel_reads(second, pattern("second chunk")));
  endpoint.unbind(offset, bytes);
  for (const size_t at : {size_t{0}, bytes}) range.unmap(at, bytes);
}

TEST(LogicalEndpoint, AnAddressBindsTheMemoryThatIsMappedThere) {
  covers("ENDP-06");
  needs(gpus(1), endpoints, pools);
  run_alone([](Role& me) {
    const size_t bytes = endpoint_granule();
    const Chunk chunk = fabric_chunk(2 * bytes);
    const Mapping mapped(chunk, 2 * bytes);
    mapped.poison();
    CUlogicalEndpointProp wanted = unicast_on(0, 2 * bytes);
    wanted.ipcHandleTypes = CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_NONE;
    const Endpoint endpoint(wanted);
    const auto bind = [&](size_t offset, void* address) {
      return NOTED(NEWER(cuLogicalEndpointBindAddr)(endpoint.id(), 0, offset,
                                                    address, bytes, 0));
    };
    const Words half = words_at(mapped.address() + bytes, bytes);
    EXPECT_SUCCESS(bind(0, half.data));
    endpoint_write(endpoint.id(), 0, bytes, pattern("mapped"));
    EXPECT_TRUE(kernel_reads(half, pattern("mapped")));

    const AsyncBuffer pooled(2 * bytes);
    CALL(cudaDeviceSynchronize());
    const auto begin = reinterpret_cast<uintptr_t>(pooled.data);
    const uintptr_t aligned = (begin + bytes - 1) / bytes * bytes;
    me.observe("memory of a pool begins " + std::to_string(aligned - begin) +
               " bytes before a multiple of the alignment");
    const Words part(reinterpret_cast<void*>(aligned), bytes);
    EXPECT_SUCCESS(bind(bytes, part.data));
    endpoint_write(endpoint.id(), bytes, bytes, pattern("pooled"));
    EXPECT_TRUE(kernel_reads(part, pattern("pooled")));
    EXPECT_TRUE(endpoint_reads(endpoint.id(), 0, bytes, pattern("mapped")));
    endpoint.unbind(bytes, bytes);
    expect_second_chunk_is_bound(endpoint, bytes);

    const DeviceBuffer plain(2 * bytes);
    const uintptr_t other =
        (reinterpret_cast<uintptr_t>(plain.data) + bytes - 1) / bytes * bytes;
    const CUresult code = bind(bytes, reinterpret_cast<void*>(other));
    me.observe("memory of cudaMalloc: " + name_of(code));
    if (code == CUDA_SUCCESS) endpoint.unbind(bytes, bytes);
    EXPECT_TRUE(endpoint_reads(endpoint.id(), 0, bytes, pattern("mapped")));
    EXPECT_TRUE(context_is_usable());
  });
}

// The caller must not make these bindings, and no sentence says that they are
// refused. None of them changes the memory or keeps a right one from working.
TEST(LogicalEndpoint, ABindingFitsMemoryAndEndpoint) {
  covers("ENDP-07");
  needs(gpus(1), endpoints);
  run_alone([](Role& me) {
    const size_t unit = endpoint_granule();
    const size_t half = limits_of(unicast_on(0, unit)).alignment / 2;
    const Chunk chunk = fabric_chunk(2 * unit);
    const Mapping mapped(chunk, 2 * unit);
    mapped.fill(pattern("kept"));
    const auto bind_wrong = [&](const char* what, size_t size, size_t offset,
                                size_t from, size_t bytes,
                                unsigned long long flags = 0) {
      SCOPED_TRACE(what);
      const auto attempt = [&](const char* function, auto bind) {
        const Endpoint endpoint(unicast_on(0, size));
        const CUresult code = bind(endpoint.id());
        me.observe(std::string(what) + ", by " + function + ": " +
                   name_of(code));
        if (code == CUDA_SUCCESS) {
          NOTED(
              NEWER(cuLogicalEndpointUnbind)(endpoint.id(), 0, offset, bytes));
          return;
        }
        endpoint.bind(0, chunk, unit);  // after the refusal
        EXPECT_TRUE(endpoint_reads(endpoint.id(), 0, unit, pattern("kept")));
        endpoint.unbind(0, unit);
      };
      attempt("cuLogicalEndpointBindMem", [&](CUlogicalEndpointId id) {
        return NOTED(NEWER(cuLogicalEndpointBindMem)(
            id, 0, offset, chunk.handle(), from, bytes, flags));
      });
      attempt("cuLogicalEndpointBindAddr", [&](CUlogicalEndpointId id) {
        return NOTED(NEWER(cuLogicalEndpointBindAddr)(
            id, 0, offset, reinterpret_cast<char*>(mapped.data) + from, bytes,
            flags));
      });
    };
    const size_t large = 4 * unit;
    bind_wrong("half an alignment of the endpoint", large, half, 0, unit);
    bind_wrong("half an alignment of memory", large, 0, half, unit);
    bind_wrong("one and a half", large, 0, 0, unit + half);
    bind_wrong("more than the memory", large, 0, 0, 3 * unit);
    bind_wrong("more than is left of it", large, 0, unit, 2 * unit);
    bind_wrong("more than the endpoint", unit, 0, 0, 2 * unit);
    bind_wrong("after the end", unit, unit, 0, unit);
    bind_wrong("with a flag", large, 0, 0, unit, 1);
    bind_wrong("with the highest flag", large, 0, 0, unit, 1ull << 63);
    EXPECT_READS(mapped, pattern("kept"));
    EXPECT_TRUE(context_is_usable());
  });
}

// Binds memory by both functions where the caller must not, and unbinds it. No
// sentence says what these calls answer.
static void bind_wrong(Role& me, const std::string& what,
                       const Endpoint& endpoint, int device, const Chunk& chunk,
                       const Words& mapped) {
  const size_t bytes = endpoint_granule();
  for (const bool by_address : {false, true}) {
    const CUresult code =
        by_address
            ? NOTED(NEWER(cuLogicalEndpointBindAddr)(endpoint.id(), device, 0,
                                                     mapped.data, bytes, 0))
            : NOTED(NEWER(cuLogicalEndpointBindMem)(
                  endpoint.id(), device, 0, chunk.handle(), 0, bytes, 0));
    me.observe(what + (by_address ? ", by its address: " : ": ") +
               name_of(code));
    if (code != CUDA_SUCCESS) continue;
    const CUresult unbound =
        NOTED(NEWER(cuLogicalEndpointUnbind)(endpoint.id(), device, 0, bytes));
    me.observe("then it is unbound: " + name_of(unbound));
  }
}

TEST(LogicalEndpoint, MemoryLiesOnTheOwner) {
  covers("ENDP-08");
  needs(gpus(2), endpoints);
  run_alone([](Role& me) {
    const size_t bytes = endpoint_granule();
    const Chunk near = fabric_chunk(bytes), far = fabric_chunk(bytes, 1);
    const Mapping at_near(near, bytes), at_far(far, bytes);
    const Endpoint endpoint(unicast_on(0, bytes));
    bind_wrong(me, "another device than the owner", endpoint, 1, near, at_near);
    bind_wrong(me, "the other device and its memory", endpoint, 1, far, at_far);
    bind_wrong(me, "memory of the other device", endpoint, 0, far, at_far);
    endpoint.bind(0, near, bytes);
    endpoint_write(endpoint.id(), 0, bytes, pattern("right"));
    EXPECT_TRUE(kernel_reads(at_near, pattern("right")));
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(LogicalEndpoint, HostMemoryLiesOnTheNearestNode) {
  covers("ENDP-09");
  needs(gpus(1), endpoints, numa_vmm);
  run_alone([](Role& me) {
    const int nearest = attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
    CUmemAllocationProp wanted = chunk_of(0, CU_MEM_HANDLE_TYPE_FABRIC);
    wanted.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, nearest};
    const size_t bytes = std::max(granule(wanted), endpoint_granule());
    const Chunk chunk = Chunk::create(bytes, wanted);
    const Mapping mapped(chunk, bytes);
    mapped.poison();
    const Endpoint endpoint(unicast_on(0, bytes));
    endpoint.bind(0, chunk, bytes);
    endpoint_write(endpoint.id(), 0, bytes, pattern("host"));
    EXPECT_TRUE(kernel_reads(mapped, pattern("host")));
    endpoint.unbind(0, bytes);
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointBindAddr)(endpoint.id(), 0, 0,
                                                    mapped.data, bytes, 0));
    endpoint.unbind(0, bytes);

    wanted.location.id = nearest == 0 ? 1 : 0;
    CUmemGenericAllocationHandle other = 0;
    if (DRIVER(cuMemCreate)(&other, bytes, &wanted, 0) != CUDA_SUCCESS)
      return me.observe("this machine has one NUMA node");
    const Chunk elsewhere(other);
    EXPECT_INVALID(NEWER(cuLogicalEndpointBindMem)(endpoint.id(), 0, 0, other,
                                                   0, bytes, 0));
  });
}

// Of two bindings side by side, each stays when the other one is unbound.
static void expect_neighbour_stays_bound() {
  const size_t unit = endpoint_granule();
  const Chunk chunks[] = {fabric_chunk(unit), fabric_chunk(unit)};
  const Endpoint endpoint(unicast_on(0, 2 * unit));
  for (const int i : {0, 1}) endpoint.bind(i * unit, chunks[i], unit);
  for (const int gone : {0, 1}) {
    SCOPED_TRACE(gone == 0 ? "the first is unbound" : "the second is unbound");
    const int kept = 1 - gone;
    endpoint.unbind(gone * unit, unit);
    endpoint_write(endpoint.id(), kept * unit, unit, pattern("kept"));
    EXPECT_TRUE(kernel_reads(Mapping(chunks[kept], unit), pattern("kept")));
    endpoint.bind(gone * unit, chunks[gone], unit);
  }
}

// A range that the caller must not unbind. No sentence says that it is refused,
// or what a success unbinds. A refused unbind changes nothing, and no unbind
// changes the memory.
static void unbind_wrongly(Role& me, const std::string& what, size_t offset,
                           size_t bytes) {
  SCOPED_TRACE(what);
  const size_t unit = endpoint_granule();
  const Chunk old = fabric_chunk(2 * unit), next = fabric_chunk(unit);
  const Mapping at_old(old, 2 * unit), at_next(next, unit);
  const Endpoint endpoint(unicast_on(0, 4 * unit));
  endpoint.bind(0, old, 2 * unit);
  endpoint.bind(2 * unit, next, unit);
  endpoint_write(endpoint.id(), 0, 2 * unit, pattern("old"));
  endpoint_write(endpoint.id(), 2 * unit, unit, pattern("next"));
  const CUresult code =
      NOTED(NEWER(cuLogicalEndpointUnbind)(endpoint.id(), 0, offset, bytes));
  me.observe("an unbind of " + what + ": " + name_of(code));
  if (code != CUDA_SUCCESS) {
    EXPECT_TRUE(endpoint_reads(endpoint.id(), 0, 2 * unit, pattern("old")));
    EXPECT_TRUE(endpoint_reads(endpoint.id(), 2 * unit, unit, pattern("next")));
  }
  EXPECT_TRUE(kernel_reads(at_old, pattern("old")));
  EXPECT_TRUE(kernel_reads(at_next, pattern("next")));
}

TEST(LogicalEndpoint, UnbindTakesWholeBindings) {
  covers("ENDP-10");
  needs(gpus(1), endpoints);
  run_alone([](Role& me) {
    const size_t unit = endpoint_granule();
    const size_t half = limits_of(unicast_on(0, unit)).alignment / 2;
    unbind_wrongly(me, "a part of a binding", 0, unit);
    unbind_wrongly(me, "the end of a binding", unit, unit);
    unbind_wrongly(me, "a binding and a part of the next", unit, 2 * unit);
    unbind_wrongly(me, "an offset between two units", half, unit);
    unbind_wrongly(me, "a size between two units", 0, unit + half);
    const Chunk old = fabric_chunk(2 * unit), next = fabric_chunk(unit),
                fresh = fabric_chunk(2 * unit), last = fabric_chunk(unit);
    const Mapping at_old(old, 2 * unit), at_fresh(fresh, 2 * unit);
    const Endpoint endpoint(unicast_on(0, 4 * unit));
    endpoint.bind(0, old, 2 * unit);
    endpoint.bind(2 * unit, next, unit);
    endpoint_write(endpoint.id(), 0, 2 * unit, pattern("old"));

    // One call unbinds both bindings; then other memory takes both places.
    EXPECT_SUCCESS(
        NEWER(cuLogicalEndpointUnbind)(endpoint.id(), 0, 0, 3 * unit));
    endpoint.bind(0, fresh, 2 * unit);
    endpoint_write(endpoint.id(), 0, 2 * unit, pattern("fresh"));
    EXPECT_TRUE(kernel_reads(at_fresh, pattern("fresh")));
    EXPECT_TRUE(kernel_reads(at_old, pattern("old")));
    endpoint.bind(2 * unit, last, unit);
    endpoint_write(endpoint.id(), 2 * unit, unit, pattern("last"));
    EXPECT_TRUE(kernel_reads(Mapping(last, unit), pattern("last")));
    EXPECT_SUCCESS(
        NEWER(cuLogicalEndpointUnbind)(endpoint.id(), 0, 0, 2 * unit));
    me.observe("a second unbind: " +
               name_of(NOTED(NEWER(cuLogicalEndpointUnbind)(endpoint.id(), 0, 0,
                                                            2 * unit))));
    expect_neighbour_stays_bound();
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(LogicalEndpoint, DestroyUnbindsAndFreesTheNumber) {
  covers("ENDP-11");
  needs(gpus(1), endpoints);
  run_alone([](Role&) {
    const size_t bytes = endpoint_granule();
    const Chunk old = fabric_chunk(bytes), fresh = fabric_chunk(bytes);
    const Mapping at_old(old, bytes), at_fresh(fresh, bytes);
    const EndpointIds ids;
    const CUlogicalEndpointProp wanted = unicast_on(0, bytes);
    const auto create = [&](const Chunk& chunk) {
      EXPECT_SUCCESS(NEWER(cuLogicalEndpointCreate)(ids[0], &wanted));
      Sentinel<int> status;
      do {
        CALL(NEWER(cuLogicalEndpointQuery)(ids[0], 1, status.out()));
      } while (status.result() == 0);
      CALL(NEWER(cuLogicalEndpointBindMem)(ids[0], 0, 0, chunk.handle(), 0,
                                           bytes, 0));
    };
    create(old);
    endpoint_write(ids[0], 0, bytes, pattern("old"));
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointDestroy)(ids[0]));
    create(fresh);
    endpoint_write(ids[0], 0, bytes, pattern("fresh"));
    EXPECT_TRUE(kernel_reads(at_old, pattern("old")));
    EXPECT_TRUE(kernel_reads(at_fresh, pattern("fresh")));
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointDestroy)(ids[0]));
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(LogicalEndpoint, ANumberThatHasAnEndpoint) {
  covers("ENDP-19");
  needs(gpus(1), endpoints);
  run_alone([](Role& me) {
    const EndpointIds ids;
    const CUlogicalEndpointProp wanted = unicast_on(0, endpoint_granule());
    CALL(NEWER(cuLogicalEndpointCreate)(ids[0], &wanted));
    me.observe("a second create: " +
               name_of(NOTED(NEWER(cuLogicalEndpointCreate)(ids[0], &wanted))));
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointDestroy)(ids[0]));
    me.observe("a second destroy: " +
               name_of(NOTED(NEWER(cuLogicalEndpointDestroy)(ids[0]))));
    EXPECT_TRUE(context_is_usable());
  });

  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    const Endpoint endpoint(unicast_on(0, endpoint_granule()));
    me.send("handle", endpoint.handle());
    me.wait("done");
  });
  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<CUlogicalEndpointFabricHandle>("handle");
    const EndpointIds ids;
    const CUlogicalEndpointProp wanted = unicast_on(0, endpoint_granule());
    CALL(NEWER(cuLogicalEndpointCreate)(ids[0], &wanted));
    me.observe("an import to a number that has an endpoint: " +
               name_of(NOTED(NEWER(cuLogicalEndpointImport)(ids[0], &handle,
                                                            kEndpointHandle))));
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointDestroy)(ids[0]));
    EXPECT_TRUE(context_is_usable());
    me.signal("done");
  });
  scenario.run(20s);
}

// The exporter binds other memory to its endpoint for a while. The number of an
// importer then reaches this memory, and `chunk`, mapped at `mapped`, no more.
static void binds_other_memory(Role& me, const Endpoint& endpoint,
                               const Chunk& chunk, const Words& mapped) {
  const size_t bytes = mapped.bytes();
  const Chunk next = fabric_chunk(bytes);
  const Mapping at_next(next, bytes);
  endpoint.unbind(0, bytes);
  endpoint.bind(0, next, bytes);
  me.signal("other memory is bound");
  me.wait("written again");
  EXPECT_TRUE(kernel_reads(at_next, pattern("other memory")));
  EXPECT_TRUE(kernel_reads(mapped, pattern("importer")));
  endpoint.unbind(0, bytes);
  endpoint.bind(0, chunk, bytes);
}

TEST(LogicalEndpoint, AnImportedNumberReachesTheExportersMemory) {
  covers("ENDP-12");
  needs(gpus(1), endpoints);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = endpoint_granule();
    const Chunk chunk = fabric_chunk(2 * bytes);
    const Mapping mapped(chunk, 2 * bytes);
    mapped.fill(pattern("exporter"));
    const Endpoint endpoint(unicast_on(0, 2 * bytes));
    endpoint.bind(0, chunk, 2 * bytes);
    me.send("handle", endpoint.handle());
    me.send("second handle", endpoint.handle());
    me.wait("written");
    EXPECT_READS(mapped, pattern("importer"));
    binds_other_memory(me, endpoint, chunk, mapped);
    me.wait("closed");
    EXPECT_TRUE(
        endpoint_reads(endpoint.id(), 0, 2 * bytes, pattern("importer")));
  });

  scenario.role("importer", [](Role& me) {
    const size_t bytes = endpoint_granule();
    const EndpointIds others(3);  // so that the import's number differs
    const auto handle = me.receive<CUlogicalEndpointFabricHandle>("handle");
    Endpoint endpoint(handle);
    EXPECT_TRUE(
        endpoint_reads(endpoint.id(), 0, 2 * bytes, pattern("exporter")));
    {
      const Endpoint again(
          me.receive<CUlogicalEndpointFabricHandle>("second handle"));
      EXPECT_TRUE(
          endpoint_reads(again.id(), 0, 2 * bytes, pattern("exporter")));
    }
    EXPECT_TRUE(
        endpoint_reads(endpoint.id(), 0, 2 * bytes, pattern("exporter")))
        << "another import has ended";
    endpoint_write(endpoint.id(), bytes, bytes, pattern("second half"));
    EXPECT_TRUE(endpoint_reads(endpoint.id(), 0, bytes, pattern("exporter")));
    EXPECT_TRUE(
        endpoint_reads(endpoint.id(), bytes, bytes, pattern("second half")));
    endpoint_write(endpoint.id(), 0, 2 * bytes, pattern("importer"));
    me.signal("written");
    me.wait("other memory is bound");
    endpoint_write(endpoint.id(), 0, 2 * bytes, pattern("other memory"));
    me.signal("written again");
    const Chunk own = fabric_chunk(bytes);
    const Mapping at_own(own, bytes);
    EXPECT_INVALID(NEWER(cuLogicalEndpointBindMem)(endpoint.id(), 0, 0,
                                                   own.handle(), 0, bytes, 0));
    EXPECT_INVALID(NEWER(cuLogicalEndpointBindAddr)(endpoint.id(), 0, 0,
                                                    at_own.data, bytes, 0));
    endpoint.destroy();
    me.signal("closed");
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

TEST(LogicalEndpoint, ExportNeedsTheHandleType) {
  covers("ENDP-13");
  needs(gpus(1), endpoints);
  run_alone([](Role&) {
    CUlogicalEndpointProp wanted = unicast_on(0, endpoint_granule());
    wanted.ipcHandleTypes = CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_NONE;
    const Endpoint alone(wanted);
    Sentinel<CUlogicalEndpointFabricHandle> none;
    EXPECT_REFUSED(
        NEWER(cuLogicalEndpointExport)(none.out(), alone.id(), kEndpointHandle),
        CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
        CUDA_ERROR_NOT_PERMITTED);
    EXPECT_FALSE(none.touched());
    const Endpoint shared(unicast_on(0, endpoint_granule()));
    Sentinel<CUlogicalEndpointFabricHandle> handle;
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointExport)(handle.out(), shared.id(),
                                                  kEndpointHandle));
    EXPECT_TRUE(handle.touched());
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(LogicalEndpoint, ImportNeedsTheExportersChannel) {
  covers("ENDP-14");
  needs(gpus(1), endpoints);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    const Endpoint endpoint(unicast_on(0, endpoint_granule()));
    me.send("handle", endpoint.handle());
    me.wait("done");
  });
  scenario
      .role("importer without rights",
            [](Role& me) {
              if (geteuid() == 0) {
                ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
              }
              const auto handle =
                  me.receive<CUlogicalEndpointFabricHandle>("handle");
              if (has_imex_channel()) {
                me.signal("done");
                return me.not_applicable("every user may open a channel here");
              }
              const EndpointIds ids;
              EXPECT_CODE(CUDA_ERROR_NOT_PERMITTED,
                          NEWER(cuLogicalEndpointImport)(ids[0], &handle,
                                                         kEndpointHandle));
              EXPECT_TRUE(context_is_usable());
              me.signal("done");
            })
      .env("IPCLAB_MODEL_IMEX_CHANNEL", "none");
  scenario.run(20s);
}

// An importer that copies to its endpoint once more after the exporter's
// destroy. No sentence says what this gives: it may end the role's context.
static void writes_to_a_destroyed_endpoint(Role& me) {
  const size_t bytes = endpoint_granule();
  const auto& endpoint =
      *new Endpoint(me.receive<CUlogicalEndpointFabricHandle>("handle"));
  endpoint_write(endpoint.id(), 0, bytes, pattern("importer"));
  me.signal("written");
  me.wait("destroyed");
  CALL(cudaSetDevice(device_that_reaches_endpoints()));
  const DeviceBuffer& own = *new DeviceBuffer(bytes);
  own.fill(pattern("importer again"));
  const auto& stream = *new Stream;
  const CUresult queued = NOTED(queue_copies(
      {copy_op(operand(endpoint.id(), 0), operand(own.data), bytes)}, stream));
  me.observe("a copy after the exporter's destroy: " + name_of(queued) +
             ", then " + name_of(NOTED(cudaStreamSynchronize(stream))));
}

TEST(LogicalEndpoint, AnImportIsAReferenceOfItsOwn) {
  covers("ENDP-15");
  needs(gpus(1), endpoints);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = endpoint_granule();
    const Chunk chunk = fabric_chunk(bytes);
    const Mapping mapped(chunk, bytes);
    Endpoint endpoint(unicast_on(0, bytes));
    endpoint.bind(0, chunk, bytes);
    for (int i = 0; i < 2; ++i) me.send("handle", endpoint.handle());
    me.wait("written", 2);
    EXPECT_TRUE(kernel_reads(mapped, pattern("importer")));
    endpoint.destroy();
    mapped.fill(pattern("own again"));
    me.signal("destroyed");
    me.wait("done");
    me.wait_for_end("importer that writes again");
    EXPECT_TRUE(kernel_reads(mapped, pattern("own again")));
  });
  scenario.role("importer that writes again", writes_to_a_destroyed_endpoint)
      .may_end_by(SIGSEGV)
      .in_new_process();  // its context may be lost
  scenario.role("importer", [](Role& me) {
    const size_t bytes = endpoint_granule();
    Endpoint endpoint(me.receive<CUlogicalEndpointFabricHandle>("handle"));
    endpoint_write(endpoint.id(), 0, bytes, pattern("importer"));
    me.signal("written");
    me.wait("destroyed");
    Sentinel<int> status;
    EXPECT_SUCCESS(
        NEWER(cuLogicalEndpointQuery)(endpoint.id(), 1, status.out()));
    EXPECT_NE(status.result(), 0);
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointDestroy)(endpoint.id()));
    me.observe("a second destroy, where no endpoint is left: " +
               name_of(NOTED(NEWER(cuLogicalEndpointDestroy)(endpoint.id()))));
    EXPECT_TRUE(context_is_usable());
    me.signal("done");
  });
  scenario.run(20s);
}

// --- teams ------------------------------------------------------------------

TEST(LogicalEndpoint, ATeamIsReadyWhenItIsWhole) {
  covers("ENDP-16");
  needs(gpus(2), endpoints, endpoint_teams);
  run_alone([](Role& me) {
    const size_t bytes = endpoint_granule();
    const Endpoint team(multicast_of(2, bytes));
    const Chunk chunk = fabric_chunk(bytes);
    const auto is_ready = [&] {
      Sentinel<int> status;
      CALL(NEWER(cuLogicalEndpointQuery)(team.id(), 1, status.out()));
      return status.result() != 0;
    };
    EXPECT_FALSE(is_ready());
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointAddDevice)(team.id(), 0));
    EXPECT_FALSE(is_ready());
    EXPECT_INVALID(NEWER(cuLogicalEndpointBindMem)(team.id(), 0, 0,
                                                   chunk.handle(), 0, bytes, 0))
        << "one device is missing";
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointAddDevice)(team.id(), 1));
    team.wait_until_ready();
    team.bind(0, chunk, bytes);
    const Endpoint part(multicast_of(1, bytes));
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointAddDevice)(part.id(), 0));
    part.wait_until_ready();
    const Chunk far = fabric_chunk(bytes, 1);
    const Mapping at_far(far, bytes);
    bind_wrong(me, "memory of a device that is not of the team", part, 1, far,
               at_far);
    part.bind(0, fabric_chunk(bytes), bytes);
    EXPECT_TRUE(context_is_usable());
  });
}

TEST(LogicalEndpoint, ADeviceMoreForACompleteTeam) {
  covers("ENDP-20");
  needs(gpus(2), endpoints, endpoint_teams);
  run_alone([](Role& me) {
    const Endpoint team(multicast_of(1, endpoint_granule()));
    EXPECT_SUCCESS(NEWER(cuLogicalEndpointAddDevice)(team.id(), 0));
    team.wait_until_ready();
    me.observe("a device more: " +
               name_of(NOTED(NEWER(cuLogicalEndpointAddDevice)(team.id(), 1))));
    EXPECT_TRUE(context_is_usable());
  });
}

// Judges that neither function binds memory without a handle type to an
// endpoint that can be exported or was imported.
static void expect_only_shareable(const Endpoint& team, int device) {
  const size_t bytes = endpoint_granule();
  const Chunk closed =
      Chunk::create(bytes, chunk_of(device, CU_MEM_HANDLE_TYPE_NONE));
  EXPECT_NE(CUDA_SUCCESS,
            NOTED(NEWER(cuLogicalEndpointBindMem)(
                team.id(), device, 0, closed.handle(), 0, bytes, 0)))
      << "memory that cannot be shared";
  const Mapping mapped(closed, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                       device);
  EXPECT_NE(CUDA_SUCCESS, NOTED(NEWER(cuLogicalEndpointBindAddr)(
                              team.id(), device, 0, mapped.data, bytes, 0)))
      << "memory that cannot be shared";
}

TEST(LogicalEndpoint, ACopyReachesTheWholeTeam) {
  covers("ENDP-17");
  needs(gpus(2), endpoints, endpoint_teams);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = endpoint_granule();
    const Chunk chunk = fabric_chunk(bytes);
    const Mapping mapped(chunk, bytes);
    mapped.poison();
    const Endpoint team(multicast_of(2, bytes));
    for (const int device : {0, 1})
      CALL(NEWER(cuLogicalEndpointAddDevice)(team.id(), device));
    team.wait_until_ready();
    expect_only_shareable(team, 0);
    team.bind(0, chunk, bytes);
    me.send("handle", team.handle());
    me.wait("bound");
    endpoint_write(team.id(), 0, bytes, pattern("exporter"));
    EXPECT_TRUE(kernel_reads(mapped, pattern("exporter")));
    me.signal("written");
    me.wait("written too");
    EXPECT_TRUE(kernel_reads(mapped, pattern("importer")));
    me.wait("done");
  });

  scenario.role("importer", [](Role& me) {
    CALL(cudaSetDevice(1));
    const size_t bytes = endpoint_granule();
    const Endpoint team(me.receive<CUlogicalEndpointFabricHandle>("handle"));
    expect_only_shareable(team, 1);
    const Chunk chunk = fabric_chunk(bytes, 1);
    const Mapping mapped(chunk, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 1);
    mapped.poison();
    team.bind(0, chunk, bytes, 1);
    me.signal("bound");
    me.wait("written");
    EXPECT_TRUE(kernel_reads(mapped, pattern("exporter")));
    endpoint_write(team.id(), 0, bytes, pattern("importer"));
    EXPECT_TRUE(kernel_reads(mapped, pattern("importer")));
    me.signal("written too");
    me.signal("done");
  });
  scenario.run(20s);
}
