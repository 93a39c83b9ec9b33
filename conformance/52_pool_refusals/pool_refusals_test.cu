// Which pools and pointers cannot be exported or imported, and that a refusal
// harms nothing. Mirror of samples/52_pool_refusals.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/attempts.h"
#include "harness/scenario/both_apis.h"
#include "harness/scenario/leaks.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;
constexpr size_t kInside = 4096;  // the offset of an interior pointer
constexpr int kRandomData = 1000;
constexpr size_t kShares = 4;  // a crash loses the rest of one share only
constexpr auto kFd = cudaMemHandleTypePosixFileDescriptor;
// Flags have 32 bits, and 64 bits in the driver API.
constexpr int kFlagBits = 32, kDriverFlagBits = 64;
// The bit of descriptors and another bit. This value is no handle type.
constexpr auto kFdOrWin32 = static_cast<cudaMemAllocationHandleType>(
    cudaMemHandleTypePosixFileDescriptor | cudaMemHandleTypeWin32);
constexpr auto kFdOrFabric = static_cast<cudaMemAllocationHandleType>(
    cudaMemHandleTypePosixFileDescriptor | cudaMemHandleTypeFabric);

using PointerData = cudaMemPoolPtrExportData;

// Has room for a handle of any type.
using AnyHandle = Sentinel<cudaMemFabricHandle_t>;

// The documented refusals of the export and the import of a pool, and of the
// export of a pointer.
template <class Api>
std::vector<typename Api::Code> refusals(Api api) {
  return {api.kInvalidValue, api.kOutOfMemory};
}
// cudaMemPoolImportPointer documents codes of the driver API. For the runtime
// API, this function returns the runtime codes with the same meaning.
template <class Api>
std::vector<typename Api::Code> pointer_refusals(Api api) {
  return {api.kInvalidValue, api.kNotInitialized, api.kOutOfMemory};
}

// The name of a function in one API: the prefix of the API, and the rest, which
// is the same in both APIs.
std::string name_in(RuntimeApi, const char* rest) {
  return std::string("cuda") + rest;
}
std::string name_in(DriverApi, const char* rest) {
  return std::string("cu") + rest;
}
constexpr char kPoolImport[] = "MemPoolImportFromShareableHandle";
constexpr char kPointerImport[] = "MemPoolImportPointer";

// Judges that this pool cannot be exported in this way.
void expect_no_export(Role& me, cudaMemPool_t pool,
                      cudaMemAllocationHandleType type, unsigned flags = 0) {
  AnyHandle handle;
  EXPECT_CODE(cudaErrorInvalidValue, cudaMemPoolExportToShareableHandle(
                                         handle.out(), pool, type, flags));
  note_touched(me, handle, "cudaMemPoolExportToShareableHandle");
  AnyHandle same;
  EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
              DRIVER(cuMemPoolExportToShareableHandle)(
                  same.out(), pool,
                  static_cast<CUmemAllocationHandleType>(type), flags));
  note_touched(me, same, "cuMemPoolExportToShareableHandle");
}

void expect_no_pointer(Role& me, void* pointer) {
  Sentinel<PointerData> data;
  EXPECT_CODE(cudaErrorInvalidValue,
              cudaMemPoolExportPointer(data.out(), pointer));
  note_touched(me, data, "cudaMemPoolExportPointer");
  Sentinel<CUmemPoolPtrExportData> same;
  EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
              DRIVER(cuMemPoolExportPointer)(
                  same.out(), reinterpret_cast<CUdeviceptr>(pointer)));
  note_touched(me, same, "cuMemPoolExportPointer");
}

// Tries to export a pointer by both APIs, and adds the outcomes to the tables
// of the functions. No sentence says what an export of other memory answers.
// A right export works after each attempt.
void export_pointer(Role& me, const char* what, void* pointer,
                    const AsyncBuffer* right = nullptr) {
  by_both_apis([&](auto api) {
    PointerData data;
    me.tabulate(
        name_in(api, "MemPoolExportPointer"), what,
        outcome_of(api.mem_pool_export_pointer(&data, pointer), refusals(api)));
    if (right != nullptr) exported(api, *right);
  });
}

// Does the pool still work after a refusal?
template <class Api = RuntimeApi>
testing::AssertionResult pool_is_usable(cudaMemPool_t pool, Api api = {}) {
  const AsyncBuffer buffer = allocated(api, pool, kBytes);
  buffer.fill(pattern("still usable"));
  return kernel_reads(buffer, pattern("still usable"));
}

// Tries to import something that is no pool, and adds the outcome to the table
// of the function. A pool that the call gives all the same is destroyed.
template <class Api>
void import_pool(Role& me, Api api, const std::string& input, void* handle,
                 cudaMemAllocationHandleType type = kFd, unsigned flags = 0) {
  me.signal(input);
  const std::string name = name_in(api, kPoolImport);
  std::vector<typename Api::Code> documented = refusals(api);
  if (type == cudaMemHandleTypeFabric)  // without an IMEX channel
    documented.push_back(api.kNotPermitted);
  Sentinel<cudaMemPool_t> pool;
  const Outcome outcome = outcome_of(api.mem_pool_import_from_shareable_handle(
                                         pool.out(), handle, type, flags),
                                     documented);
  me.tabulate(name, input, outcome);
  if (outcome.kind == Outcome::kWrongSuccess)
    EXPECT_SUCCESS(api.mem_pool_destroy(pool.value)) << input;
  else
    note_touched(me, pool, name.c_str());
}

// The same by both APIs.
void import_pool(Role& me, const std::string& input, void* handle,
                 cudaMemAllocationHandleType type = kFd, unsigned flags = 0) {
  by_both_apis(
      [&](auto api) { import_pool(me, api, input, handle, type, flags); });
}

// Tries to import data as a pointer. Does not use the imported memory.
template <class Api>
Outcome import_pointer(Api api, cudaMemPool_t pool, PointerData data,
                       void** pointer) {
  return outcome_of(api.mem_pool_import_pointer(pointer, pool, &data),
                    pointer_refusals(api));
}

template <class Api>
void expect_no_import(Role& me, Api api, const std::string& input,
                      cudaMemPool_t pool, const PointerData& data) {
  me.signal(input);
  const std::string name = name_in(api, kPointerImport);
  Sentinel<void*> pointer;
  const Outcome outcome = import_pointer(api, pool, data, pointer.out());
  me.tabulate(name, input, outcome);
  expect_documented(outcome, input);
  if (outcome.kind == Outcome::kWrongSuccess)
    cudaFree(pointer.value);
  else
    note_touched(me, pointer, name.c_str());
}

// Tries to import data in a pool that is not theirs. No sentence says that this
// is refused.
template <class Api>
void import_elsewhere(Role& me, Api api, const std::string& input,
                      cudaMemPool_t pool, const PointerData& data) {
  me.signal(input);
  void* pointer = nullptr;
  const Outcome outcome = import_pointer(api, pool, data, &pointer);
  me.tabulate(name_in(api, kPointerImport), input, outcome);
  if (outcome.kind == Outcome::kWrongSuccess)
    me.observe(input + ": the free gives " + name_of(api.mem_free(pointer)));
  cudaGetLastError();
}

PointerData data_of(unsigned char byte) {
  PointerData data;
  std::memset(&data, byte, sizeof data);
  return data;
}

}  // namespace

// --- pools that are not exported --------------------------------------------

TEST(PoolRefusals, APoolWithoutHandleTypesIsNotExported) {
  covers("POOL-02");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    by_both_apis([&](auto api) {
      Pool pool = created(api, pool_properties(cudaMemHandleTypeNone));
      expect_no_export(me, pool, kFd);
      expect_no_export(me, pool, cudaMemHandleTypeNone);
      const AsyncBuffer buffer(pool, kBytes);
      expect_no_pointer(me, buffer.data);
      EXPECT_TRUE(pool_is_usable(pool));
      EXPECT_TRUE(context_is_usable());
    });
  });
  scenario.run(20s);
}

// An export that is refused, and what becomes of the pool.
struct RefusedExport {
  const char* name;
  cudaMemAllocationHandleType created, exported;
  unsigned flags;
};
static constexpr RefusedExport kRefusedExports[] = {
    {"no handle type", cudaMemHandleTypeNone, kFd, 0},
    {"another type", kFd, cudaMemHandleTypeFabric, 0},
    {"flags", kFd, kFd, 1},
    // Without an IMEX channel, some drivers create such a pool.
    {"fabric", cudaMemHandleTypeFabric, cudaMemHandleTypeFabric, 0},
};
static constexpr const char* kLater[] = {"destroy", "use"};

static std::vector<std::string> names_of_refused_exports() {
  std::vector<std::string> names;
  for (const RefusedExport& each : kRefusedExports)
    for (const char* api : {"runtime", "driver"})
      for (const char* later : kLater)
        names.push_back(each.name + std::string(", ") + api + ", " + later);
  return names;
}

// Creates a pool, tries to export it, uses the pool or does not, and destroys
// it. Other tests judge whether the export is refused.
template <class Api>
static void destroys_after_refusal(Role& me, Api api, const RefusedExport& each,
                                   bool used) {
  Sentinel<cudaMemPool_t> made;
  const auto creation =
      api.mem_pool_create(made.out(), pool_properties(each.created));
  if (creation != typename Api::Code{}) {
    ASSERT_EQ(each.created, cudaMemHandleTypeFabric) << name_of(creation);
    return me.observe("fabric: creation returns " + name_of(creation));
  }
  Pool pool(made.result());
  AnyHandle handle;
  const auto code = api.mem_pool_export_to_shareable_handle(
      handle.out(), pool, each.exported, each.flags);
  me.observe(std::string(each.name) + ": export returns " + name_of(code));
  cudaGetLastError();  // the refusal
  if (used) EXPECT_TRUE(pool_is_usable(pool, api));
  EXPECT_SUCCESS(api.mem_pool_destroy(pool.release()));
  EXPECT_TRUE(context_is_usable());
}

TEST(PoolRefusals, ARefusedExportLeavesThePoolAsItWas) {
  covers("POOL-27");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario
      .role("exporter",
            [](Role& me) {
              while (const auto input = me.next_input()) {
                const bool used = *input % 2 != 0, driver = *input / 2 % 2 != 0;
                const RefusedExport& each = kRefusedExports[*input / 4];
                if (driver)
                  destroys_after_refusal(me, DriverApi{}, each, used);
                else
                  destroys_after_refusal(me, RuntimeApi{}, each, used);
              }
            })
      .in_new_process()
      .may_end_by(SIGSEGV)
      .may_end_by(SIGABRT);
  for (const Death& death :
       scenario.run_inputs("exporter", names_of_refused_exports(), 20s)) {
    tabulate("after a refused export", death.input, death.outcome);
    ADD_FAILURE() << "the process dies: " << death.input;
  }
}

// Exports a pool with each bit of the flags. The flags must be 0; no sentence
// says what the call answers to others. A descriptor that it gives is closed.
static void export_with_flags(Role& me, cudaMemPool_t pool) {
  Answers runtime, driver;
  for (int bit = 0; bit < kFlagBits; ++bit) {
    int number = -1;
    if (runtime.accepted(NOTED(
            cudaMemPoolExportToShareableHandle(&number, pool, kFd, 1u << bit))))
      EXPECT_TRUE(Descriptor(number));
  }
  for (int bit = 0; bit < kDriverFlagBits; ++bit) {
    int number = -1;
    if (driver.accepted(NOTED(DRIVER(cuMemPoolExportToShareableHandle)(
            &number, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            1ull << bit))))
      EXPECT_TRUE(Descriptor(number));
  }
  cudaGetLastError();  // the last refusal
  runtime.tell(me, "cudaMemPoolExportToShareableHandle with flags");
  driver.tell(me, "cuMemPoolExportToShareableHandle with flags");
}

TEST(PoolRefusals, OnlyTheTypeOfTheCreationIsExported) {
  covers("POOL-03");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    Pool pool(shareable());
    for (const auto& [what, type] :
         std::vector<std::pair<const char*, cudaMemAllocationHandleType>>{
             {"none", cudaMemHandleTypeNone},
             {"Win32", cudaMemHandleTypeWin32},
             {"Win32 KMT", cudaMemHandleTypeWin32Kmt},
             {"fabric", cudaMemHandleTypeFabric},
             {"descriptor and Win32", kFdOrWin32},
             {"descriptor and fabric", kFdOrFabric}}) {
      SCOPED_TRACE(what);
      expect_no_export(me, pool, type);
    }
    by_both_apis([&](auto api) {
      AnyHandle handle;
      EXPECT_CODE(api.kInvalidValue,
                  api.mem_pool_export_to_shareable_handle(
                      handle.out(), pool, cudaMemHandleTypeWin32, 0));
      EXPECT_TRUE(exported(api, pool)) << "after one refusal";
    });
    expect_no_export(me, pool, cudaMemHandleTypeFabric);
    export_with_flags(me, pool);
    by_both_apis([&](auto api) {
      EXPECT_TRUE(exported(api, pool)) << "after the exports with flags";
    });
    EXPECT_TRUE(context_is_usable());
    EXPECT_TRUE(pool_is_usable(pool));
    EXPECT_TRUE(pool.exported());
    pool.release();  // POOL-27 judges the destroy of such a pool
  });
  scenario.run(20s);
}

TEST(PoolRefusals, TheDefaultPoolIsNotShared) {
  covers("POOL-04");
  needs(gpus(1), pools);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    cudaMemPool_t pool = nullptr;
    CALL(cudaDeviceGetDefaultMemPool(&pool, 0));
    const AsyncBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    expect_no_export(me, pool, kFd);
    expect_no_pointer(me, buffer.data);
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    EXPECT_TRUE(pool_is_usable(pool));
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

// Tries to create a pool with a field that must not have this value. No
// sentence says that the call looks at it. Returns the code by its name.
template <class Api>
static std::string tries_to_create(Api api, const char* what,
                                   const cudaMemPoolProps& wanted) {
  SCOPED_TRACE(what);
  Sentinel<cudaMemPool_t> pool;
  const auto code = NOTED(api.mem_pool_create(pool.out(), wanted));
  cudaGetLastError();
  if (code == typename Api::Code{})
    EXPECT_SUCCESS(api.mem_pool_destroy(pool.result()));
  return name_of(code) + by_the(api);
}

TEST(PoolRefusals, FieldsThatMustBeZeroAreLookedAt) {
  covers("POOL-05");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    CALL(cudaFree(nullptr));  // the driver API needs a context
    std::map<std::string, std::string> inputs;  // of each code
    const auto tries = [&](const std::string& what, auto change) {
      cudaMemPoolProps wanted = shareable();
      change(wanted);
      by_both_apis([&](auto api) {
        inputs[tries_to_create(api, what.c_str(), wanted)] += ", " + what;
      });
    };
    // The first reserved bytes got a meaning: two in CUDA 12.6, for `usage`,
    // and the next in 13.4, for a hint. An older toolkit does not know this.
    Sentinel<int> driver;
    CALL(cudaDriverGetVersion(driver.out()));
    const size_t of_usage =
        offsetof(cudaMemPoolProps, win32SecurityAttributes) + sizeof(void*) +
        sizeof(size_t);  // of `maxSize`, which CUDA 12.0 does not declare
    const size_t first = of_usage + (driver.result() < 12060   ? 0
                                     : driver.result() < 13040 ? 2
                                                               : 3);
    for (size_t byte = first; byte < sizeof(cudaMemPoolProps) - 1; ++byte)
      tries("reserved byte " + std::to_string(byte),
            [byte](cudaMemPoolProps& wanted) {
              reinterpret_cast<unsigned char*>(&wanted)[byte] = 1;
            });
    tries("Win32", [](cudaMemPoolProps& wanted) {
      wanted.handleTypes = cudaMemHandleTypeWin32;
    });
    tries("Win32 KMT", [](cudaMemPoolProps& wanted) {
      wanted.handleTypes = cudaMemHandleTypeWin32Kmt;
    });
    for (const auto& [code, which] : inputs)
      me.observe(code + ": " + which.substr(2));
    EXPECT_TRUE(context_is_usable());
    const Pool pool(shareable());
    EXPECT_TRUE(pool_is_usable(pool));
  });
  scenario.run(20s);
}

// Since CUDA 13.5 the last byte is a field of its own.
TEST(PoolRefusals, TheLastReservedByteIsLookedAt) {
  covers("POOL-05");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    cudaMemPoolProps wanted = shareable();
    reinterpret_cast<unsigned char*>(&wanted)[sizeof wanted - 1] = 1;
    me.observe(tries_to_create(RuntimeApi{}, "the last byte", wanted));
    EXPECT_TRUE(context_is_usable());
    const Pool pool(shareable());
    EXPECT_TRUE(pool_is_usable(pool));
  });
  scenario.run(20s);
}

TEST(PoolRefusals, SecurityAttributesAreForWindows) {
  covers("POOL-05");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    cudaMemPoolProps wanted = shareable();
    wanted.win32SecurityAttributes = &wanted;
    me.observe(tries_to_create(RuntimeApi{}, "security attributes", wanted));
    EXPECT_TRUE(context_is_usable());
    const Pool pool(shareable());
    EXPECT_TRUE(pool_is_usable(pool));
  });
  scenario.run(20s);
}

// --- pointers that are not exported -----------------------------------------

static __device__ uint32_t device_words[1024];

// Memory of cuMemCreate that can be exported to a descriptor, or none if the
// GPU has no such memory.
static std::unique_ptr<Mapping> mapped_memory() {
  if (attribute(
          CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) == 0)
    return nullptr;
  return std::make_unique<Mapping>(Chunk::create(granule()), granule());
}

// The allocation that the pool shares can still be imported.
static void imports_after_refusals(Role& me) {
  const Pool pool(me.receive_descriptor("pool"));
  AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"), kBytes);
  EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
  buffer.free();
  me.signal("freed");
}

TEST(PoolRefusals, OnlyPointersOfSharedPoolsAreExported) {
  covers("POOL-09");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable()), none;
    me.send_descriptor("pool", pool.exported().get());
    const AsyncBuffer buffer(pool, kBytes);
    buffer.fill(pattern("exporter"));

    const DeviceBuffer legacy(kBytes);
    legacy.fill(pattern("cudaMalloc"));
    const AsyncBuffer of_default(kBytes), of_none(none, kBytes);
    AsyncBuffer freed(pool, kBytes);
    void* const gone = freed.data;
    freed.free();
    const PinnedBuffer pinned(kBytes);
    int on_the_stack = 0;
    void* variable = nullptr;
    CALL(cudaGetSymbolAddress(&variable, device_words));
    std::vector<std::pair<const char*, void*>> pointers = {
        {"null", nullptr},
        {"cudaMalloc", legacy.data},
        {"cudaMallocHost", pinned.data},
        {"a variable of the GPU", variable},
        {"a variable on the stack", &on_the_stack}};
    void* managed_memory = nullptr;
    if (attribute(cudaDevAttrManagedMemory) != 0) {
      CALL(cudaMallocManaged(&managed_memory, kBytes));
      pointers.emplace_back("cudaMallocManaged", managed_memory);
    }
    const std::unique_ptr<Mapping> mapped = mapped_memory();
    if (mapped) pointers.emplace_back("cuMemCreate", mapped->data);
    for (const auto& [what, pointer] : pointers)
      export_pointer(me, what, pointer, &buffer);
    export_pointer(me, "an interior pointer",
                   buffer.data + kInside / sizeof(uint32_t));
    export_pointer(me, "a freed pointer", gone, &buffer);
    for (const AsyncBuffer* const one : {&of_default, &of_none})
      expect_no_pointer(me, one->data);
    EXPECT_TRUE(context_is_usable());
    EXPECT_READS(legacy, pattern("cudaMalloc"));
    if (managed_memory != nullptr) CALL(cudaFree(managed_memory));
    me.send("pointer", buffer.exported());
    me.wait("freed");
  });

  scenario.role("importer", imports_after_refusals);

  scenario.run(20s);
}

// --- pointers that are not imported -----------------------------------------

// Judges that the data of another process's pool are refused, although the
// process has imported both pools.
static void tries_data_of_another_process(Role& me, cudaMemPool_t pool,
                                          const PointerData& good) {
  const Pool foreign(me.receive_descriptor("pool of another process"));
  const auto data = me.receive<PointerData>("pointer of another process");
  by_both_apis([&](auto api) {
    import_elsewhere(me, api, "data of another process", pool, data);
    import_elsewhere(me, api, "data for another process", foreign, good);
  });
  AsyncBuffer buffer(foreign, data, kBytes);
  EXPECT_TRUE(kernel_reads(buffer, pattern("another process")));
  buffer.free();
  me.signal("freed what another process lent");
}

// A second exporter for the function above.
static void lends_from_another_process(Role& me) {
  const Pool pool(shareable());
  me.send_descriptor("pool of another process", pool.exported().get());
  const AsyncBuffer buffer(pool, kBytes);
  buffer.fill(pattern("another process"));
  me.send("pointer of another process", buffer.exported());
  me.wait("freed what another process lent");
  EXPECT_TRUE(kernel_reads(buffer, pattern("another process")));
}

// An importer that tries to import zeros and random bytes, which nobody
// exported, and data of another pool.
static void imports_what_no_export_made(Role& me) {
  const Pool pool(me.receive_descriptor("pool"));
  const Pool other(me.receive_descriptor("other pool"));
  const auto good = me.receive<PointerData>("pointer");
  const auto elsewhere = me.receive<PointerData>("other pointer");
  by_both_apis([&](auto api) {
    expect_no_import(me, api, "zeros", pool, data_of(0));
    expect_no_import(me, api, "0xff", pool, data_of(0xff));
    import_elsewhere(me, api, "data of another pool", pool, elsewhere);
    import_elsewhere(me, api, "data of this pool in another", other, good);

    me.signal("random bytes");
    std::mt19937 random(pattern("random data").key);      // depends on the seed
    std::map<std::string, std::pair<Outcome, int>> seen;  // by code
    for (int i = 0; i < kRandomData; ++i) {
      PointerData data;
      for (unsigned char& byte : data.reserved)
        byte = static_cast<unsigned char>(random());
      void* pointer = nullptr;
      const Outcome outcome = import_pointer(api, pool, data, &pointer);
      seen.insert({outcome.code, {outcome, 0}}).first->second.second++;
      ASSERT_EQ(outcome.kind, Outcome::kDocumentedRefusal)
          << "random data " << i << ": " << outcome.code;
    }
    for (const auto& [code, found] : seen)
      me.tabulate(name_in(api, kPointerImport),
                  "random bytes (" + std::to_string(found.second) + ")",
                  found.first);
  });

  tries_data_of_another_process(me, pool, good);
  EXPECT_TRUE(context_is_usable());
  AsyncBuffer buffer(pool, good, kBytes);
  EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
  AsyncBuffer beside(other, elsewhere, kBytes);
  EXPECT_TRUE(kernel_reads(beside, pattern("beside")));
}

// An exporter of one allocation of each of two pools. The end of the importer
// must not harm these pools.
static void lends_from_two_pools(Role& me) {
  const Pool pool(shareable()), other(shareable());
  me.send_descriptor("pool", pool.exported().get());
  me.send_descriptor("other pool", other.exported().get());
  const AsyncBuffer buffer(pool, kBytes), beside(other, kBytes);
  buffer.fill(pattern("exporter"));
  beside.fill(pattern("beside"));
  me.send("pointer", buffer.exported());
  me.send("other pointer", beside.exported());
  me.wait_until_done("importer");
  EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
  EXPECT_TRUE(kernel_reads(beside, pattern("beside")));
  EXPECT_TRUE(pool_is_usable(pool));
}

// Reports what the import of the first bytes of good data gives. Nothing says
// how many of the 64 bytes have a meaning.
template <class Api>
static void imports_truncated_data(Role& me, Api api) {
  CALL(cudaFree(nullptr));
  const Pool pool = imported(api, me.receive_descriptor("pool"));
  const auto good = me.receive<PointerData>("pointer");
  for (const size_t kept : {8, 16, 32}) {
    PointerData truncated = data_of(0);
    std::memcpy(&truncated, &good, kept);
    const std::string input = std::to_string(kept) + " bytes of the data";
    me.signal(input);
    void* pointer = nullptr;
    const Outcome outcome = import_pointer(api, pool, truncated, &pointer);
    me.tabulate(name_in(api, kPointerImport), input, outcome);
    if (outcome.kind == Outcome::kWrongSuccess) cudaFree(pointer);
  }
}

TEST(PoolRefusals, DataOfNoExportAreRefused) {
  covers("POOL-14");
  needs(gpus(1), pool_fd);
  Scenario made(Scenario::kShared);
  made.role("exporter", lends_from_two_pools);
  made.role("another exporter", lends_from_another_process);
  made.role("importer", imports_what_no_export_made);
  made.run(30s);
  tabulate_end(made, "importer", name_in(RuntimeApi{}, kPointerImport));

  // A driver may crash here, so each API has an importer of its own.
  for_each_api([](auto api) {
    Scenario truncated(Scenario::kShared);
    truncated.role("exporter", lends_from_two_pools);
    truncated
        .role("importer", [=](Role& me) { imports_truncated_data(me, api); })
        .may_end_by(SIGSEGV);
    truncated.run(30s);
    tabulate_end(truncated, "importer", name_in(api, kPointerImport));
  });
}

// The exporter destroys a pool while memory of it is in use, and creates
// another pool, which may have the handle value of the first one.
TEST(PoolRefusals, DataOfADestroyedPoolHarmNothing) {
  covers("POOL-14");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  const auto exporter = [](Role& me) {
    Pool gone(shareable());
    me.send_descriptor("destroyed pool", gone.exported().get());
    const AsyncBuffer left(gone, kBytes);
    left.fill(pattern("left"));
    me.send("pointer of the destroyed pool", left.exported());
    gone.destroy();
    Pool pool(shareable());
    me.send_descriptor("pool", pool.exported().get());
    const AsyncBuffer buffer(pool, kBytes);
    buffer.fill(pattern("exporter"));
    me.send("pointer", buffer.exported());
    me.wait_until_done("importer");
    EXPECT_TRUE(kernel_reads(left, pattern("left")));
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    // ASecondPoolCanBeDestroyed of folder 53 judges the destroy of this pool.
    (void)pool.release();
  };
  scenario.role("exporter", exporter).in_new_process();
  scenario.role("importer", [](Role& me) {
    const Descriptor unused = me.receive_descriptor("destroyed pool");
    const Pool pool(me.receive_descriptor("pool"));
    const auto data = me.receive<PointerData>("pointer of the destroyed pool");
    by_both_apis([&](auto api) {
      import_elsewhere(me, api, "data of a destroyed pool", pool, data);
    });
    EXPECT_TRUE(context_is_usable());
    AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"), kBytes);
    EXPECT_READS(buffer, pattern("exporter"));
    buffer.free();
  });
  scenario.run(20s);
}

// --- pools that are not imported --------------------------------------------

// Imports the pool and the memory of lends_from_pool(): all attempts are over,
// and the loan still has the exporter's values.
static void expect_loan(Role& me, const Descriptor& shared) {
  const Pool pool = imported(DriverApi{}, shared);
  AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"), kBytes);
  EXPECT_READS(buffer, pattern("exporter"));
  buffer.free();
  me.signal("freed");
}

// No sentence says that an import of something else is refused. Whatever the
// answer is, no attempt harms anything or leaves anything open.
TEST(PoolRefusals, ForeignDescriptorsAreNoPools) {
  covers("IMPL-09");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_from_pool(pattern("exporter"), kBytes));
  scenario.role("importer", [](Role& me) {
    const Descriptor lent = me.receive_descriptor("pool");
    const auto attempt = [&] {
      for (const Candidate& candidate : foreign_descriptors())
        by_both_apis([&](auto api) {
          const bool was_open = fcntl(candidate.number, F_GETFD) != -1;
          import_pool(me, api, candidate.what, by_value(candidate.number));
          EXPECT_EQ(fcntl(candidate.number, F_GETFD) != -1, was_open)
              << candidate.what;
          imported(api, lent);  // a good import afterwards
        });
    };
    attempt();  // what the driver opens only once is open now
    const size_t before = open_descriptors().size();
    attempt();
    EXPECT_EQ(open_descriptors().size(), before) << "descriptors";
    EXPECT_TRUE(context_is_usable());
    expect_loan(me, lent);
  });
  scenario.run(20s);
  tabulate_end(scenario, "importer", name_in(RuntimeApi{}, kPoolImport));
}

// Imports a good descriptor with each bit of the flags, which must be 0. A pool
// that a call gives all the same is destroyed.
static void import_with_flags(Role& me, void* good) {
  Answers runtime, driver;
  for (int bit = 0; bit < kFlagBits; ++bit) {
    cudaMemPool_t pool = nullptr;
    if (runtime.accepted(NOTED(
            cudaMemPoolImportFromShareableHandle(&pool, good, kFd, 1u << bit))))
      EXPECT_SUCCESS(cudaMemPoolDestroy(pool));
  }
  for (int bit = 0; bit < kDriverFlagBits; ++bit) {
    CUmemoryPool pool = nullptr;
    if (driver.accepted(NOTED(DRIVER(cuMemPoolImportFromShareableHandle)(
            &pool, good, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            1ull << bit))))
      EXPECT_SUCCESS(DRIVER(cuMemPoolDestroy)(pool));
  }
  cudaGetLastError();  // the last refusal
  runtime.tell(me, "cudaMemPoolImportFromShareableHandle with flags");
  driver.tell(me, "cuMemPoolImportFromShareableHandle with flags");
}

TEST(PoolRefusals, AnImportAsksForTheTypeOfTheExport) {
  covers("IMPL-09");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_from_pool(pattern("exporter"), kBytes));
  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));
    const Descriptor shared = me.receive_descriptor("pool");
    cudaMemFabricHandle_t fabric{};
    void* const good = by_value(shared.get());
    import_pool(me, "as none", good, cudaMemHandleTypeNone);
    import_pool(me, "as Win32", good, cudaMemHandleTypeWin32);
    import_pool(me, "as Win32 KMT", good, cudaMemHandleTypeWin32Kmt);
    import_pool(me, "zeros as fabric", &fabric, cudaMemHandleTypeFabric);
    // A driver could read a type with the bit of fabric as a pointer.
    import_pool(me, "as descriptor and Win32", good, kFdOrWin32);
    EXPECT_NE(fcntl(shared.get(), F_GETFD), -1) << "the descriptor is closed";
    by_both_apis([&](auto api) { imported(api, shared); });
    import_with_flags(me, good);
    by_both_apis([&](auto api) { imported(api, shared); });
    EXPECT_TRUE(context_is_usable());
    expect_loan(me, shared);
  });
  scenario.run(20s);
  tabulate_end(scenario, "importer", name_in(RuntimeApi{}, kPoolImport));
}

TEST(PoolRefusals, AnImportedPoolIsNotExportedAgain) {
  covers("IMPL-10");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_from_pool(pattern("exporter"), kBytes));
  scenario.role("importer", [](Role& me) {
    Pool pool(me.receive_descriptor("pool"));
    expect_no_export(me, pool, kFd);  // nothing was imported from it yet
    AsyncBuffer buffer(pool, me.receive<PointerData>("pointer"), kBytes);
    expect_no_export(me, pool, kFd);
    // The documentation does not say whether pointers of an imported pool may
    // be exported again.
    export_pointer(me, "an imported pointer", buffer.data);
    EXPECT_TRUE(context_is_usable());
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    buffer.free();
    expect_no_export(me, pool, kFd);  // all imports are freed
    pool.release();
    me.signal("freed");
  });
  scenario.run(20s);
}

// An importer that makes wrong calls, which must be refused, and then right
// calls.
static void importer_makes_every_mistake(Role& me) {
  CALL(cudaFree(nullptr));
  const Descriptor shared = me.receive_descriptor("pool");
  auto data = me.receive<PointerData>("pointer");
  PointerData zeros = data_of(0);
  Sentinel<cudaMemPool_t> none, pool;
  Sentinel<void*> nothing, memory;
  const Descriptor device(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int number : {-1, device.get()})
    EXPECT_TRUE(is_told_once(
        "cudaMemPoolImportFromShareableHandle of a foreign descriptor",
        NOTED(cudaMemPoolImportFromShareableHandle(none.out(), by_value(number),
                                                   kFd, 0))));
  EXPECT_TRUE(is_told_once("cudaMemPoolImportFromShareableHandle with flags",
                           NOTED(cudaMemPoolImportFromShareableHandle(
                               none.out(), by_value(shared.get()), kFd, 1))));
  EXPECT_TRUE(context_is_usable());
  EXPECT_TRUE(
      leaves_no_error("cudaMemPoolImportFromShareableHandle",
                      NOTED(cudaMemPoolImportFromShareableHandle(
                          pool.out(), by_value(shared.get()), kFd, 0))));
  EXPECT_TRUE(is_told_once(
      "cudaMemPoolImportPointer of zeros",
      NOTED(cudaMemPoolImportPointer(nothing.out(), pool.result(), &zeros))));
  EXPECT_TRUE(context_is_usable());
  EXPECT_TRUE(leaves_no_error(
      "cudaMemPoolImportPointer",
      NOTED(cudaMemPoolImportPointer(memory.out(), pool.result(), &data))));
  EXPECT_TRUE(
      kernel_reads(Words(memory.result(), kBytes), pattern("exporter")));
  EXPECT_TRUE(leaves_no_error("cudaFree", NOTED(cudaFree(memory.result()))));
  me.signal("freed");
}

TEST(PoolRefusals, ARefusalIsToldOnceAndASuccessLeavesNone) {
  covers("POOL-26");
  needs(gpus(1), pool_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    Pool pool(shareable());
    const AsyncBuffer buffer(pool, kBytes);
    const DeviceBuffer legacy(kBytes);
    buffer.fill(pattern("exporter"));
    AnyHandle none;
    Sentinel<int> number;
    Sentinel<PointerData> no_data, data;
    // An error that nobody has read does not hide a later error.
    EXPECT_NE(NOTED(cudaSetDevice(-1)), cudaSuccess);
    EXPECT_TRUE(is_told_once(
        "cudaMemPoolExportToShareableHandle with flags",
        NOTED(cudaMemPoolExportToShareableHandle(none.out(), pool, kFd, 1))));
    EXPECT_TRUE(
        is_told_once("cudaMemPoolExportToShareableHandle of another type",
                     NOTED(cudaMemPoolExportToShareableHandle(
                         none.out(), pool, cudaMemHandleTypeFabric, 0))));
    EXPECT_TRUE(context_is_usable());
    EXPECT_TRUE(leaves_no_error(
        "cudaMemPoolExportToShareableHandle",
        NOTED(cudaMemPoolExportToShareableHandle(number.out(), pool, kFd, 0))));
    const Descriptor shared(number.result());
    EXPECT_TRUE(is_told_once(
        "cudaMemPoolExportPointer of cudaMalloc",
        NOTED(cudaMemPoolExportPointer(no_data.out(), legacy.data))));
    EXPECT_TRUE(context_is_usable());
    // The error of another thread belongs to that thread.
    CALL(in_a_thread([&] {
      EXPECT_NE(NOTED(cudaMemPoolExportPointer(no_data.out(), legacy.data)),
                cudaSuccess);
      return cudaSuccess;
    }));
    EXPECT_TRUE(leaves_no_error("a refusal in another thread", cudaSuccess));
    EXPECT_TRUE(leaves_no_error(
        "cudaMemPoolExportPointer",
        NOTED(cudaMemPoolExportPointer(data.out(), buffer.data))));
    me.send_descriptor("pool", shared.get());
    me.send("pointer", data.result());
    me.wait("freed");
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    pool.release();  // stays, as after every refused export
  });

  scenario.role("importer", importer_makes_every_mistake);

  scenario.run(20s);
}

// --- last, because it may leave an importer in any state -------------------

// An importer of damaged data: in each try another byte is wrong.
static void imports_damaged_data(Role& me, const char* table, size_t share) {
  constexpr size_t kBytesOfShare = sizeof(PointerData) / kShares;
  const Pool pool(me.receive_descriptor("pool"));
  const auto good = me.receive<PointerData>("pointer");
  const size_t first = share * kBytesOfShare;
  for (size_t at = first; at < first + kBytesOfShare; ++at) {
    const std::string input = "byte " + std::to_string(at);
    me.signal(input);
    PointerData data = good;
    data.reserved[at] ^= 0xff;
    void* pointer = nullptr;
    const Outcome outcome = import_pointer(RuntimeApi{}, pool, data, &pointer);
    me.tabulate(table, input, outcome);
    if (outcome.kind != Outcome::kWrongSuccess) continue;
    const cudaError_t code = NOTED(cudaFree(pointer));
    if (code == cudaSuccess) continue;
    me.observe(input + ": the free gives " + name_of(code));
    cudaGetLastError();
  }
  EXPECT_TRUE(context_is_usable());
  AsyncBuffer buffer(pool, good, kBytes);
  EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
}

// The documentation does not say whether one wrong byte is noticed. The test
// notes what such an import returns. Only the importer may fail. Each share of
// the bytes has an importer of its own, so a crash loses only the rest of one
// share.
TEST(PoolRefusals, DamagedDataHarmNobodyElse) {
  covers("POOL-14");
  needs(gpus(1), pool_fd);
  static constexpr char kTable[] =
      "cudaMemPoolImportPointer of data with one byte inverted";
  for (size_t share = 0; share < kShares; ++share) {
    Scenario scenario(Scenario::kShared);
    scenario.role("exporter", [](Role& me) {
      const Pool pool(shareable());
      me.send_descriptor("pool", pool.exported().get());
      const AsyncBuffer buffer(pool, kBytes), other(pool, kBytes);
      buffer.fill(pattern("exporter"));
      other.fill(pattern("other"));
      me.send("pointer", buffer.exported());
      me.wait_until_done("importer");
      EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
      EXPECT_TRUE(kernel_reads(other, pattern("other")));
      EXPECT_TRUE(pool_is_usable(pool));
    });
    scenario
        .role("importer",
              [=](Role& me) { imports_damaged_data(me, kTable, share); })
        .may_end_by(SIGSEGV);
    scenario.run(30s);
    tabulate_end(scenario, "importer", kTable);
  }
}
