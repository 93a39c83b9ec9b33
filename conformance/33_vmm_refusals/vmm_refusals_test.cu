// What virtual memory management refuses: wrong sizes, reserved arguments,
// handle types that were not requested, descriptors of other things. Mirror of
// samples/33_vmm_refusals.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/attempts.h"
#include "harness/scenario/cuda.h"
#include "harness/scenario/leaks.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
// Two types at once: an export or an import has one type.
constexpr auto kFdAndWin32 = static_cast<CUmemAllocationHandleType>(
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_WIN32);
constexpr int kMany = 70;                             // allocations at once
constexpr size_t kMoreThanThereIs = size_t{1} << 46;  // in any GPU

// The refusals that cuMemExportToShareableHandle and
// cuMemImportFromShareableHandle document.
const std::vector<CUresult> kHandleRefusals = {
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_INITIALIZED,
    CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_NOT_PERMITTED,
    CUDA_ERROR_NOT_SUPPORTED};
// The codes that cudaMemPoolImportFromShareableHandle and
// cuMemPoolImportFromShareableHandle document.
const std::vector<CUresult> kPoolRefusals = {CUDA_ERROR_INVALID_VALUE,
                                             CUDA_ERROR_NOT_INITIALIZED,
                                             CUDA_ERROR_OUT_OF_MEMORY};

// Tries to import a descriptor that is no allocation. What is imported all the
// same is released.
Outcome import_as_chunk(Role& me, int descriptor) {
  Sentinel<CUmemGenericAllocationHandle> handle;
  const Outcome outcome =
      outcome_of(NOTED(DRIVER(cuMemImportFromShareableHandle)(
                     handle.out(), by_value(descriptor), kFd)),
                 kHandleRefusals);
  if (outcome.kind == Outcome::kWrongSuccess)
    EXPECT_SUCCESS(DRIVER(cuMemRelease)(handle.value));
  else
    note_touched(me, handle, "cuMemImportFromShareableHandle");
  return outcome;
}

// Tries to import a descriptor that is no pool. What is imported all the same
// is destroyed.
Outcome import_as_pool(Role& me, int descriptor) {
  Sentinel<CUmemoryPool> pool;
  const Outcome outcome =
      outcome_of(NOTED(DRIVER(cuMemPoolImportFromShareableHandle)(
                     pool.out(), by_value(descriptor), kFd, 0)),
                 kPoolRefusals);
  if (outcome.kind == Outcome::kWrongSuccess)
    EXPECT_SUCCESS(DRIVER(cuMemPoolDestroy)(pool.value));
  else
    note_touched(me, pool, "cuMemPoolImportFromShareableHandle");
  return outcome;
}

}  // namespace

// --- creation and reserved arguments ----------------------------------------

// The caller must not pass these sizes. No sentence says that a driver refuses
// them; what it creates all the same can be released.
static void create_odd_sizes(Role& me, const CUmemAllocationProp& wanted) {
  const size_t whole = granule(wanted);
  for (const size_t bytes :
       {size_t{0}, size_t{1}, whole - 1, whole + 1, whole + whole / 2}) {
    SCOPED_TRACE(std::to_string(bytes) + " bytes");
    Sentinel<CUmemGenericAllocationHandle> handle;
    const CUresult code =
        NOTED(DRIVER(cuMemCreate)(handle.out(), bytes, &wanted, 0));
    me.observe("cuMemCreate of " + std::to_string(bytes) +
               " bytes: " + name_of(code));
    if (code == CUDA_SUCCESS)
      EXPECT_SUCCESS(DRIVER(cuMemRelease)(handle.result()));
    else
      note_touched(me, handle, "cuMemCreate");
    Chunk::create(whole, wanted);  // a right size afterwards
  }
}

TEST(VmmRefusals, SizesOffTheGranularityHarmNothing) {
  covers("VMM-04");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const CUmemAllocationProp wanted = chunk_of(0, CU_MEM_HANDLE_TYPE_NONE);
    const size_t whole = granule(wanted);
    create_odd_sizes(me, wanted);
    if (attribute(
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
      SCOPED_TRACE("memory for descriptors");
      create_odd_sizes(me, chunk_of(0));
    }
    Sentinel<CUmemGenericAllocationHandle> vast;
    EXPECT_REFUSED(
        DRIVER(cuMemCreate)(vast.out(), kMoreThanThereIs, &wanted, 0),
        CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE,
        CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_PERMITTED);
    EXPECT_TRUE(context_is_usable());
    std::vector<Chunk> many;
    for (int i = 0; i < kMany; ++i)
      many.push_back(Chunk::create(whole, wanted));
    const Mapping mapping(many.back(), whole);
    mapping.fill(pattern("a right size"));
    EXPECT_READS(mapping, pattern("a right size"));
  });
  scenario.run(20s);
}

// All values of reserved flags that have one bit.
static std::vector<unsigned long long> reserved_bits() {
  std::vector<unsigned long long> bits;
  for (int i = 0; i < 64; ++i) bits.push_back(1ull << i);
  return bits;
}

// Maps memory with reserved flags. If this is accepted, the memory is unmapped.
static void maps_with_flags(Role& me, const Chunk& chunk, const char* what) {
  const size_t bytes = granule();
  const Reservation range(bytes);
  Answers answers;
  for (const unsigned long long flags : reserved_bits())
    if (answers.accepted(NOTED(
            DRIVER(cuMemMap)(range.at(0), bytes, 0, chunk.handle(), flags))))
      range.unmap(0, bytes);
  answers.tell(me, what);
  // Whatever the answers were: nothing is mapped here, and the chunk works.
  range.map(0, bytes, chunk);
  range.unmap(0, bytes);
}

// An importer whose mapping has reserved flags.
static void maps_import_with_flags(Role& me) {
  const size_t bytes = granule();
  const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
  maps_with_flags(me, chunk, "cuMemMap of an import");
  EXPECT_TRUE(context_is_usable());
  const Mapping mapping(chunk, bytes);
  EXPECT_TRUE(kernel_reads(mapping, pattern("flags 0")));
  me.signal("done");
}

// Creates memory with reserved flags, and with a field that is for Windows.
static void creates_with_reserved(Role& me) {
  CUmemAllocationProp wanted = chunk_of(0);
  const size_t bytes = granule(wanted);
  Answers answers;
  const auto create = [&](unsigned long long flags) {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult code =
        NOTED(DRIVER(cuMemCreate)(&handle, bytes, &wanted, flags));
    if (answers.accepted(code)) EXPECT_SUCCESS(DRIVER(cuMemRelease)(handle));
  };
  for (const unsigned long long flags : reserved_bits()) create(flags);
  answers.tell(me, "cuMemCreate with reserved flags");
  answers = {};
  wanted.win32HandleMetaData = &wanted;
  create(0);
  answers.tell(me, "cuMemCreate with win32HandleMetaData");
}

TEST(VmmRefusals, ReservedArgumentsAreZero) {
  covers("VMM-05");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const CUmemAllocationProp wanted = chunk_of(0);
    const size_t bytes = granule(wanted);
    const Chunk chunk = Chunk::create(bytes, wanted);
    creates_with_reserved(me);
    maps_with_flags(me, chunk, "cuMemMap");
    Answers reserved, exported;
    for (const unsigned long long flags : reserved_bits()) {
      CUdeviceptr address = 0;
      if (reserved.accepted(
              NOTED(DRIVER(cuMemAddressReserve)(&address, bytes, 0, 0, flags))))
        EXPECT_SUCCESS(DRIVER(cuMemAddressFree)(address, bytes));
      int number = -1;
      if (exported.accepted(NOTED(DRIVER(cuMemExportToShareableHandle)(
              &number, chunk.handle(), kFd, flags))))
        EXPECT_TRUE(Descriptor(number));
    }
    reserved.tell(me, "cuMemAddressReserve");
    exported.tell(me, "cuMemExportToShareableHandle");
    EXPECT_TRUE(context_is_usable());
    // The chunk still works.
    const Reservation range(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("flags 0"));
    range.map(0, bytes, chunk);
    const CUmemAccessDesc access = access_for(0);
    CALL(DRIVER(cuMemSetAccess)(range.at(0), bytes, &access, 1));
    EXPECT_TRUE(kernel_reads(words_at(range.at(0), bytes), pattern("flags 0")));
    range.unmap(0, bytes);
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("done");
  });
  scenario.role("importer", maps_import_with_flags);
  scenario.run(20s);
}

// --- export -----------------------------------------------------------------

TEST(VmmRefusals, OnlyRequestedHandleTypesAreExported) {
  covers("VMM-09");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk unshared =
        Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
    const Chunk shared = Chunk::create(bytes);
    const Mapping mapping(shared, bytes);
    mapping.fill(pattern("exporter"));

    const auto expect_refusal = [&](const char* what, const Chunk& chunk,
                                    CUmemAllocationHandleType type) {
      SCOPED_TRACE(what);
      Sentinel<CUmemFabricHandle> handle;  // room for every type
      const CUresult code = NOTED(DRIVER(cuMemExportToShareableHandle)(
          handle.out(), chunk.handle(), type, 0));
      me.tabulate("cuMemExportToShareableHandle as an unrequested type", what,
                  outcome_of(code, kHandleRefusals));
      EXPECT_TRUE(refused(code, "cuMemExportToShareableHandle",
                          {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_PERMITTED,
                           CUDA_ERROR_NOT_SUPPORTED}));
      note_touched(me, handle, "cuMemExportToShareableHandle");
    };
    expect_refusal("none requested, as a descriptor", unshared, kFd);
    expect_refusal("none requested, as a fabric handle", unshared,
                   CU_MEM_HANDLE_TYPE_FABRIC);
    expect_refusal("none requested, as none", unshared,
                   CU_MEM_HANDLE_TYPE_NONE);
    expect_refusal("a descriptor requested, as a fabric handle", shared,
                   CU_MEM_HANDLE_TYPE_FABRIC);
    expect_refusal("a descriptor requested, as a Win32 handle", shared,
                   CU_MEM_HANDLE_TYPE_WIN32);
    expect_refusal("a descriptor requested, as a Win32 KMT handle", shared,
                   CU_MEM_HANDLE_TYPE_WIN32_KMT);
    expect_refusal("a descriptor requested, as none", shared,
                   CU_MEM_HANDLE_TYPE_NONE);

    EXPECT_TRUE(context_is_usable());
    me.send_descriptor("descriptor", shared.descriptor().get());
    expect_refusal("exported as a descriptor, then as a fabric handle", shared,
                   CU_MEM_HANDLE_TYPE_FABRIC);
    expect_refusal("a descriptor and a Win32 handle at once", shared,
                   kFdAndWin32);
    me.wait("done");
  });

  scenario.role("importer", [](Role& me) {
    const Descriptor descriptor = me.receive_descriptor("descriptor");
    const Mapping mapping(Chunk::import(descriptor), granule());
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    me.signal("done");
  });
  scenario.run(20s);
}

// --- import -----------------------------------------------------------------

// No sentence says that an import of something else is refused. Whatever the
// answer is, no attempt harms anything or leaves anything open.
TEST(VmmRefusals, ForeignDescriptorsHarmNothing) {
  covers("VMM-11");
  needs(gpus(1), vmm_fd);
  static constexpr char kTable[] =
      "cuMemImportFromShareableHandle of a descriptor that is no allocation";
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_chunk(pattern("exporter")));
  scenario.role("importer", [](Role& me) {
    const Descriptor lent = me.receive_descriptor("descriptor");
    const size_t bytes = granule();
    const auto attempt = [&] {
      for (const Candidate& candidate : foreign_descriptors()) {
        me.signal(candidate.what);
        const bool was_open = fcntl(candidate.number, F_GETFD) != -1;
        me.tabulate(kTable, candidate.what,
                    import_as_chunk(me, candidate.number));
        EXPECT_EQ(fcntl(candidate.number, F_GETFD) != -1, was_open)
            << candidate.what;
        const Chunk good = Chunk::import(lent);
        EXPECT_EQ(good.properties().location.id, 0) << candidate.what;
      }
    };
    attempt();  // what the driver opens only once is open now
    const size_t before = open_descriptors().size();
    attempt();
    EXPECT_EQ(open_descriptors().size(), before) << "descriptors";
    for (const auto type :
         {CU_MEM_HANDLE_TYPE_NONE, CU_MEM_HANDLE_TYPE_WIN32, kFdAndWin32}) {
      Sentinel<CUmemGenericAllocationHandle> handle;
      const CUresult code = NOTED(DRIVER(cuMemImportFromShareableHandle)(
          handle.out(), by_value(lent.get()), type));
      me.observe("a good descriptor as handle type " + std::to_string(type) +
                 ": " + name_of(code));
      if (code == CUDA_SUCCESS)
        EXPECT_SUCCESS(DRIVER(cuMemRelease)(handle.result()));
      EXPECT_NE(fcntl(lent.get(), F_GETFD), -1) << "the descriptor is closed";
    }
    EXPECT_TRUE(context_is_usable());
    const Mapping mapping(Chunk::import(lent), bytes);
    EXPECT_READS(mapping, pattern("exporter"));
    me.signal("done");
  });
  scenario.run(20s);
  const Ended& importer = scenario.ended("importer");
  if (!importer.reached_end)
    tabulate(kTable, importer.last_step, outcome_of(importer));
}

// Each direction has its own importer role, so that a crash in one direction
// does not hide the result of the other direction.
TEST(VmmRefusals, PoolsAndAllocationsAreNotTakenForEachOther) {
  covers("VMM-12");
  needs(gpus(1), vmm_fd, pool_fd);
  static constexpr char kTable[] = "a descriptor of the other kind";
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("chunk"));
    const Pool pool(shareable());
    const AsyncBuffer buffer(pool, bytes);
    buffer.fill(pattern("pool"));
    for (int i = 0; i < 2; ++i) {
      me.send_descriptor("allocation", chunk.descriptor().get());
      me.send_descriptor("pool", pool.exported().get());
    }
    me.send("pointer", buffer.exported());
    me.wait("done", 2);
    EXPECT_READS(mapping, pattern("chunk"));
    EXPECT_READS(buffer, pattern("pool"));
  });
  scenario.role("importer of a pool", [](Role& me) {
    const Descriptor chunk = me.receive_descriptor("allocation");
    const Descriptor pool = me.receive_descriptor("pool");
    CALL(cudaFree(nullptr));
    me.tabulate(kTable, "a pool, as an allocation",
                import_as_chunk(me, pool.get()));
    EXPECT_NE(fcntl(pool.get(), F_GETFD), -1) << "the descriptor is closed";
    EXPECT_TRUE(context_is_usable());
    const Mapping mapping(Chunk::import(chunk), granule());
    EXPECT_READS(mapping, pattern("chunk"));
    me.signal("done");
  });
  scenario.role("importer of an allocation", [](Role& me) {
    const Descriptor chunk = me.receive_descriptor("allocation");
    const Descriptor shared = me.receive_descriptor("pool");
    CALL(cudaFree(nullptr));
    me.tabulate(kTable, "an allocation, as a pool",
                import_as_pool(me, chunk.get()));
    EXPECT_NE(fcntl(chunk.get(), F_GETFD), -1) << "the descriptor is closed";
    EXPECT_TRUE(context_is_usable());
    const Pool pool(shared);
    AsyncBuffer buffer(pool, me.receive<cudaMemPoolPtrExportData>("pointer"),
                       granule());
    EXPECT_READS(buffer, pattern("pool"));
    buffer.free();
    me.signal("done");
  });
  scenario.run(20s);
}
