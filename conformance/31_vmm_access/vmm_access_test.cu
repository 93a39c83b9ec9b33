// A mapping and its access are two things, and each process sets its own
// access. Mirror of samples/31_vmm_access.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/cuda.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr auto kRead = CU_MEM_ACCESS_FLAGS_PROT_READ;
constexpr auto kReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
constexpr unsigned long long kNone = 0;
constexpr int kChunks = 11;
constexpr int kLater = 5;                  // one of these chunks
constexpr size_t kGranules[] = {1, 3, 1};  // of chunks of unequal sizes
constexpr size_t kAllGranules = 5;         // of these chunks together
constexpr uint32_t kLanded = 0x1badbad1;
constexpr int kNoSuchDevice = 999;
constexpr int kMany = 70;  // reservations at once
constexpr size_t kWideAlignment = size_t{1} << 30;
constexpr size_t kFourGib = size_t{4} << 30;

__device__ uint32_t loaded;

__global__ void load(const volatile uint32_t* data) { loaded = data[0]; }

__global__ void store(volatile uint32_t* data) { data[0] = kLanded; }

// Writes through one address and reads the same memory through another address,
// with the fence that PTX has for this.
__global__ void write_and_read_alias(volatile uint32_t* to,
                                     const volatile uint32_t* from) {
  to[0] = kLanded;
  asm volatile("fence.proxy.alias;" ::: "memory");
  loaded = from[0];
}

uint32_t last_loaded() {
  uint32_t value = 0;
  CALL(cudaMemcpyFromSymbol(&value, loaded, sizeof value));
  return value;
}

uint32_t* pointer_to(CUdeviceptr address) {
  return reinterpret_cast<uint32_t*>(address);
}

// Judges the result of a kernel that uses memory without access. After a fault
// the context is lost, so the role has to end.
void expect_fault(Role& me, const char* kernel) {
  const cudaError_t code = NOTED(cudaDeviceSynchronize());
  me.observe(std::string(kernel) + ": " + name_of(code));
  EXPECT_NE(code, cudaSuccess) << kernel;
}

CUresult set_access(CUdeviceptr address, size_t bytes,
                    const CUmemAccessDesc& access) {
  return NOTED(DRIVER(cuMemSetAccess)(address, bytes, &access, 1));
}

void allow(CUdeviceptr address, size_t bytes,
           CUmemAccess_flags flags = kReadWrite) {
  CALL(set_access(address, bytes, access_for(0, flags)));
}

// Does the driver say that memory is mapped at an address?
bool has_memory(CUdeviceptr address) {
  unsigned long long mapped = 0;  // room for a boolean of any width
  const CUresult code = NOTED(DRIVER(cuPointerGetAttribute)(
      &mapped, CU_POINTER_ATTRIBUTE_MAPPED, address));
  return code == CUDA_SUCCESS && mapped != 0;
}

// The access of the current GPU at an address, by
// CU_POINTER_ATTRIBUTE_ACCESS_FLAGS.
unsigned long long access_told(CUdeviceptr address) {
  unsigned long long flags = 0;  // room for an enumerator of any width
  CALL(DRIVER(cuPointerGetAttribute)(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
                                     address));
  return flags;
}

// Sets access for reading only. If the driver does not support this, there is
// nothing to judge, and the function returns false.
bool may_only_read(Role& me, CUdeviceptr address, size_t bytes) {
  const CUresult code = set_access(address, bytes, access_for(0, kRead));
  if (code == CUDA_ERROR_NOT_SUPPORTED)
    me.not_applicable("cuMemSetAccess for reading alone: " + name_of(code));
  else
    CALL(code);
  return code == CUDA_SUCCESS;
}

// Has each granule of a mapping the access, not only the first one?
void expect_access_everywhere(CUdeviceptr address, size_t bytes,
                              unsigned long long flags) {
  for (size_t at = 0; at < bytes; at += granule())
    EXPECT_EQ(access_at(address + at), flags) << "at byte " << at;
}

// A mapping without access.
struct Mapped {
  Reservation range;
  Mapped(const Chunk& chunk, size_t bytes) : range(bytes) {
    range.map(0, bytes, chunk);
  }
  ~Mapped() { DRIVER(cuMemUnmap)(range.at(0), range.bytes()); }
  CUdeviceptr address() const { return range.at(0); }
};

std::array<char, 16> uuid_of(int device) {
  cudaDeviceProp properties;
  CALL(cudaGetDeviceProperties(&properties, device));
  std::array<char, 16> uuid;
  std::memcpy(uuid.data(), properties.uuid.bytes, uuid.size());
  return uuid;
}

}  // namespace

// --- access -----------------------------------------------------------------

static const std::vector<std::string> kUses = {
    "flags",         "copy",  "copy to other memory", "device copy",
    "memset",        "word",  "device copy, taken",   "memset, taken",
    "kernel, taken", "kernel"};

// The code of a call of the driver API as a code of the runtime.
static cudaError_t as_runtime(CUresult code) {
  return static_cast<cudaError_t>(code);
}

// The null stream writes a word, alone or in a batch.
static CUresult write_word(const uint32_t* word, bool by_batch) {
  CUstreamBatchMemOpParams one{};
  one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  one.writeValue.address = address_of(word);
  one.writeValue.value = kLanded;
  return by_batch
             ? DRIVER(cuStreamBatchMemOp)(nullptr, 1, &one, 0)
             : DRIVER(cuStreamWriteValue32)(nullptr, address_of(word), kLanded,
                                            CU_STREAM_WRITE_VALUE_DEFAULT);
}

// Judges that a write to memory without write access is an error.
static void expect_no_write(Role& me, const std::string& way, uint32_t* data,
                            size_t bytes) {
  const DeviceBuffer own(bytes);
  const std::vector<unsigned char> host(3 * 512, 0x3C);
  cudaError_t code = cudaSuccess;
  note_call(way.c_str());
  if (way.rfind("kernel", 0) == 0)
    store<<<1, 1>>>(data);
  else if (way == "copy")
    code = cudaMemcpy(data, &kLanded, sizeof kLanded, cudaMemcpyDefault);
  else if (way.rfind("device copy", 0) == 0)
    code = cudaMemcpy(data, own.data, bytes, cudaMemcpyDeviceToDevice);
  else if (way == "memset" || way == "memset, taken" ||
           way == "memset over a border")
    code = cudaMemset(data, 0x3C, bytes);
  else if (way == "copy in a stream")
    code =
        cudaMemcpyAsync(data, &kLanded, sizeof kLanded, cudaMemcpyHostToDevice);
  else if (way == "copy of a rectangle")
    code = cudaMemcpy2D(data, 512, host.data(), 512, 100, 3,
                        cudaMemcpyHostToDevice);
  else if (way == "rectangle")
    code = cudaMemset2D(data, 512, 0x3C, 100, 3);
  else if (way == "memset of 32 bits")
    code = as_runtime(DRIVER(cuMemsetD32)(address_of(data), kLanded, 4));
  else if (way == "word" || way == "batch")
    code = as_runtime(write_word(data, way == "batch"));
  else
    code = cudaMemsetAsync(data, 0x3C, bytes);
  const cudaError_t end = cudaDeviceSynchronize();
  cudaGetLastError();
  me.observe("a " + way + " to memory without write access: " + name_of(code) +
             ", cudaDeviceSynchronize: " + name_of(end));
  EXPECT_TRUE(code != cudaSuccess || end != cudaSuccess);
}

static void expect_no_read(Role& me, const std::string& way, CUdeviceptr from) {
  uint32_t word = 0;
  const DeviceBuffer own(granule());
  const bool to_host = way == "copy";
  cudaError_t code =
      to_host ? NOTED(cudaMemcpy(&word, pointer_to(from), sizeof word,
                                 cudaMemcpyDeviceToHost))
              : NOTED(cudaMemcpy(own.data, pointer_to(from), own.bytes(),
                                 cudaMemcpyDeviceToDevice));
  if (!to_host && code == cudaSuccess) code = cudaDeviceSynchronize();
  cudaGetLastError();
  me.observe("a " + way + " without access: " + name_of(code));
  EXPECT_NE(code, cudaSuccess);
}

// An importer that makes each use with a fresh mapping, or after its access was
// taken, until its context is lost.
static void uses_memory_without_access(Role& me) {
  const size_t bytes = granule();
  const Descriptor descriptor = me.receive_descriptor("descriptor");
  me.wait("written");
  while (const auto input = me.next_input()) {
    const Mapped mapped(Chunk::import(descriptor), bytes);
    if (kUses[*input] == "flags") {
      EXPECT_EQ(access_at(mapped.address()), kNone);
      EXPECT_EQ(access_at(mapped.address() + bytes - 1), kNone);
      const Chunk first = Chunk::import(descriptor);
      const Mapping usable(first, bytes);
      const Chunk second = Chunk::import(descriptor);
      EXPECT_EQ(access_at(Mapped(second, bytes).address()), kNone)
          << "of the mapping of an earlier import";
    } else if (kUses[*input].rfind("copy", 0) == 0) {
      expect_no_read(me, kUses[*input], mapped.address());
    } else if (kUses[*input] == "kernel") {
      load<<<1, 1>>>(pointer_to(mapped.address()));
      expect_fault(me, "load<<<>>> without access");
    } else {
      if (kUses[*input].find(", taken") != std::string::npos) {
        allow(mapped.address(), bytes);
        EXPECT_TRUE(kernel_reads(words_at(mapped.address(), bytes),
                                 pattern("exporter")));
        allow(mapped.address(), bytes, CU_MEM_ACCESS_FLAGS_PROT_NONE);
      }
      expect_no_write(me, kUses[*input], pointer_to(mapped.address()), bytes);
    }
    if (!context_is_usable()) return;
  }
}

TEST(VmmAccess, AFreshMappingMayNotBeUsed) {
  covers("VMM-17");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapped unset(chunk, bytes);
    EXPECT_EQ(access_at(unset.address()), kNone);
    me.send_descriptor("descriptor", chunk.descriptor().get());
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    EXPECT_EQ(access_at(unset.address()), kNone) << "of the other mapping";
    me.signal("written");
    me.wait_until_done("importer");
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
  });

  scenario.role("importer", uses_memory_without_access)
      .may_end_by(SIGSEGV)  // cudaMemcpy may see a host address
      .in_new_process();    // at the end its context is lost
  scenario.run_inputs("importer", kUses, 20s);
}

// Access is taken from one of two mappings that show the same memory. The other
// mapping keeps its access.
static void expect_alias_keeps_access() {
  const size_t bytes = granule();
  const Chunk chunk = Chunk::create(bytes);
  const Mapping one(chunk, bytes), alias(chunk, bytes);
  alias.fill(pattern("alias"));
  EXPECT_SUCCESS(set_access(one.address(), bytes,
                            access_for(0, CU_MEM_ACCESS_FLAGS_PROT_NONE)));
  EXPECT_EQ(access_at(one.address()), kNone);
  ASSERT_EQ(access_at(alias.address()), 3u) << "access of the other mapping";
  EXPECT_TRUE(kernel_reads(alias, pattern("alias")));
  EXPECT_TRUE(copy_reads(alias, pattern("alias")));
}

TEST(VmmAccess, ReadWriteMakesTheRangeUsable) {
  covers("VMM-18");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    const size_t bytes = granule();
    const Chunk chunk =
        Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
    const Mapped mapped(chunk, bytes);
    EXPECT_SUCCESS(set_access(mapped.address(), bytes, access_for(0)));
    EXPECT_EQ(access_at(mapped.address()), 3u);
    EXPECT_EQ(access_at(mapped.address() + bytes - 1), 3u);
    const Words words = words_at(mapped.address(), bytes);
    words.poison();
    words.fill(pattern("exporter"));
    EXPECT_TRUE(kernel_reads(words, pattern("exporter")));
    EXPECT_TRUE(copy_reads(words, pattern("exporter")));

    // A second mapping, of other memory, has its own access.
    const Mapped other(
        Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE)), bytes);
    EXPECT_EQ(access_at(other.address()), kNone);
    EXPECT_SUCCESS(set_access(other.address(), bytes, access_for(0)));
    const Words beside = words_at(other.address(), bytes);
    beside.fill(pattern("beside"));
    EXPECT_TRUE(kernel_reads(words, pattern("exporter")));

    // Another mapping of the same memory also has its own access.
    const Mapped alias(chunk, bytes);
    EXPECT_EQ(access_at(alias.address()), kNone);
    EXPECT_SUCCESS(set_access(mapped.address(), bytes, access_for(0)));
    ASSERT_EQ(access_at(mapped.address()), 3u) << "set a second time";
    EXPECT_TRUE(kernel_reads(words, pattern("exporter")));
    EXPECT_EQ(access_at(alias.address()), kNone) << "other addresses";
    const Mapping wide(Chunk::create(3 * bytes), 3 * bytes);
    expect_access_everywhere(wide.address(), wide.bytes(), 3);
    const Reservation range(2 * bytes);
    for (const size_t at : {size_t{0}, bytes}) range.map(at, bytes, chunk);
    EXPECT_SUCCESS(set_access(range.at(0), bytes, access_for(0)));
    EXPECT_EQ(access_at(range.at(bytes)), kNone) << "the same reservation";
    for (const size_t at : {size_t{0}, bytes}) range.unmap(at, bytes);

    for (const auto flags : {CU_MEM_ACCESS_FLAGS_PROT_NONE, kReadWrite})
      EXPECT_SUCCESS(set_access(other.address(), bytes, access_for(0, flags)));
    EXPECT_EQ(access_at(other.address()), 3u) << "given again";
    EXPECT_TRUE(kernel_reads(beside, pattern("beside"))) << "given again";
    expect_alias_keeps_access();

    // Access can be removed from each mapping separately.
    EXPECT_SUCCESS(set_access(mapped.address(), bytes,
                              access_for(0, CU_MEM_ACCESS_FLAGS_PROT_NONE)));
    EXPECT_EQ(access_at(mapped.address()), kNone);
    EXPECT_EQ(access_at(other.address()), 3u);
    EXPECT_TRUE(kernel_reads(beside, pattern("beside")));
    EXPECT_TRUE(copy_reads(beside, pattern("beside")));
    EXPECT_TRUE(kernel_faults(words)) << "access was taken away";
  });
  scenario.run(20s);
}

// Both GPUs use memory of GPU 0, until the access of GPU 1 is taken away.
static void takes_access_of_second_gpu(Role&) {
  const size_t bytes = granule();
  const Mapped mapped(
      Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE)), bytes);
  for (const int device : {0, 1})
    CALL(set_access(mapped.address(), bytes, access_for(device)));
  const Words words = words_at(mapped.address(), bytes);
  CALL(cudaSetDevice(1));
  words.fill(pattern("by GPU 1"));
  EXPECT_SUCCESS(set_access(mapped.address(), bytes,
                            access_for(1, CU_MEM_ACCESS_FLAGS_PROT_NONE)));
  EXPECT_EQ(access_at(mapped.address(), 1), kNone);
  CALL(cudaSetDevice(0));
  EXPECT_TRUE(kernel_reads(words, pattern("by GPU 1")));
  CALL(cudaSetDevice(1));
  EXPECT_TRUE(kernel_faults(words)) << "access was taken away from GPU 1";
}

TEST(VmmAccess, OnlyTheNamedGpuGetsAccess) {
  covers("VMM-18");
  needs(gpus(2), vmm, peer_access);
  Scenario scenario(Scenario::kShared);
  scenario
      .role(
          "exporter",
          [](Role&) {
            const size_t bytes = granule();
            const Mapped mapped(
                Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE)),
                bytes);
            EXPECT_SUCCESS(set_access(mapped.address(), bytes, access_for(1)));
            const Words words = words_at(mapped.address(), bytes);
            CALL(cudaSetDevice(1));
            words.fill(pattern("by GPU 1"));
            EXPECT_TRUE(kernel_reads(words, pattern("by GPU 1")));
            EXPECT_EQ(access_at(mapped.address(), 0), kNone);
            CALL(cudaSetDevice(0));
            EXPECT_TRUE(kernel_faults(words)) << "GPU 0 has no access";
          })
      .in_new_process();  // at the end its context is lost
  scenario.role("process that takes access", takes_access_of_second_gpu)
      .in_new_process();  // for the same reason
  scenario.run(20s);
}

// An importer of memory that was exported while its exporter could only read.
static void writes_by_second_descriptor(Role& me) {
  const size_t bytes = granule();
  const Descriptor second = me.receive_descriptor("second descriptor");
  const Mapped later(Chunk::import(second), bytes);
  allow(later.address(), bytes);
  ASSERT_EQ(access_at(later.address()), 3u) << "exported by a reader";
  words_at(later.address(), bytes).fill(pattern("D"));
}

TEST(VmmAccess, EachProcessSetsItsOwnAccess) {
  covers("VMM-19");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("A"));
    me.send_descriptor("descriptor", chunk.descriptor().get());

    me.wait("mapped");
    EXPECT_EQ(access_at(mapping.address()), 3u) << "the importer mapped";
    me.signal("still mine");
    me.wait("may read");
    EXPECT_EQ(access_at(mapping.address()), 3u) << "the importer may read";
    mapping.fill(pattern("B"));
    EXPECT_SUCCESS(set_access(mapping.address(), bytes,
                              access_for(0, CU_MEM_ACCESS_FLAGS_PROT_NONE)));
    me.signal("B written");
    me.wait("done");
    allow(mapping.address(), bytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("B"))) << "given again";
    EXPECT_EQ(access_at(mapping.address()), 3u) << "the importer has read";
    allow(mapping.address(), bytes, kRead);
    me.send_descriptor("second descriptor", chunk.descriptor().get());
    me.signal("may not write");
    me.wait("C and D written");
    EXPECT_EQ(access_at(mapping.address()), 1u) << "the importer may write";
    EXPECT_TRUE(kernel_reads(mapping, pattern("D")));
  });

  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    const Descriptor descriptor = me.receive_descriptor("descriptor");
    const Mapped mapped(Chunk::import(descriptor), bytes);
    EXPECT_EQ(access_at(mapped.address()), kNone) << "inherited";
    me.signal("mapped");
    me.wait("still mine");
    allow(mapped.address(), bytes, kRead);
    EXPECT_EQ(access_at(mapped.address()), 1u);
    me.signal("may read");
    me.wait("B written");
    EXPECT_EQ(access_at(mapped.address()), 1u);
    const Words words = words_at(mapped.address(), bytes);
    EXPECT_TRUE(kernel_reads(words, pattern("B")));
    me.signal("done");
    me.wait("may not write");
    allow(mapped.address(), bytes);
    EXPECT_EQ(access_at(mapped.address()), 3u) << "the exporter may only read";
    words.fill(pattern("C"));
    EXPECT_TRUE(copy_reads(words, pattern("C")));
    writes_by_second_descriptor(me);
    EXPECT_TRUE(copy_reads(words, pattern("D")));
    me.signal("C and D written");
  });
  scenario.run(20s);
}

// Memory with access for reading only can be written after its access was
// raised.
static void expect_raised_access_works(size_t bytes) {
  const Mapped raised(Chunk::create(bytes), bytes);
  allow(raised.address(), bytes, kRead);
  EXPECT_SUCCESS(set_access(raised.address(), bytes, access_for(0)));
  EXPECT_EQ(access_told(raised.address()), 3u);
  const Words words = words_at(raised.address(), bytes);
  words.fill(pattern("raised"));
  EXPECT_TRUE(kernel_reads(words, pattern("raised")));
  EXPECT_TRUE(copy_reads(words, pattern("raised")));
  allow(raised.address(), bytes, kRead);
  EXPECT_TRUE(kernel_reads(words, pattern("raised"))) << "lowered";
  allow(raised.address(), bytes);
  words.fill(pattern("raised again"));
  EXPECT_TRUE(kernel_reads(words, pattern("raised again")));
}

static void writes_exporters_values(CUdeviceptr address, size_t bytes) {
  allow(address, bytes);
  words_at(address, bytes).fill(pattern("exporter"));
}

static const std::vector<std::string> kReadOnlyUses = {
    "read",
    "copy",
    "device copy",
    "memset",
    "rectangle",
    "memset of 32 bits",
    "word",
    "batch",
    "memset in a stream",
    "copy in a stream",
    "copy of a rectangle",
    "memset over a border",
    "device copy over a border",
    "kernel",
    "kernel that wrote before"};

static void reads_and_raises_access(const Mapped& mapped, size_t bytes) {
  EXPECT_EQ(access_at(mapped.address()), 1u);
  EXPECT_EQ(access_told(mapped.address()), 1u);
  const Words words = words_at(mapped.address(), bytes);
  EXPECT_TRUE(kernel_reads(words, pattern("exporter")));
  EXPECT_TRUE(copy_reads(words, pattern("exporter")));
  const DeviceBuffer own(bytes);
  CALL(cudaMemcpy(own.data, words.data, bytes, cudaMemcpyDeviceToDevice));
  EXPECT_TRUE(kernel_reads(own, pattern("exporter")))
      << "copied to other memory";
  EXPECT_SUCCESS(set_access(mapped.address(), bytes, access_for(0)));
  EXPECT_EQ(access_at(mapped.address()), 3u) << "it may be raised later";
  expect_raised_access_works(bytes);
}

// Writes to memory that can be written, and without a gap on to an import that
// can only be read.
static void writes_over_a_border(Role& me, const std::string& way,
                                 const Chunk& import) {
  const size_t bytes = granule();
  const Chunk own = Chunk::create(bytes);
  const Reservation range(2 * bytes);
  range.map(0, bytes, own);
  range.map(bytes, bytes, import);
  allow(range.at(0), bytes);
  if (may_only_read(me, range.at(bytes), bytes))
    expect_no_write(me, way, pointer_to(range.at(0)), range.bytes());
  for (const size_t at : {size_t{0}, bytes})
    DRIVER(cuMemUnmap)(range.at(at), bytes);
}

// An importer that makes each use with a new mapping, until its context is
// lost.
static void uses_read_only_memory(Role& me) {
  const size_t bytes = granule();
  const Descriptor descriptor = me.receive_descriptor("descriptor");
  while (const auto input = me.next_input()) {
    const std::string& use = kReadOnlyUses[*input];
    const Chunk chunk = Chunk::import(descriptor);
    const Mapped mapped(chunk, bytes);
    // Another mapping of the same handle, which may be written.
    std::optional<Mapping> alias;
    if (*input % 2 != 0) alias.emplace(chunk, bytes);
    if (use == "kernel that wrote before")
      writes_exporters_values(mapped.address(), bytes);
    if (!may_only_read(me, mapped.address(), bytes)) continue;
    if (use.find("over a border") != std::string::npos)
      writes_over_a_border(me, use, chunk);
    else if (use == "read")
      reads_and_raises_access(mapped, bytes);
    else
      expect_no_write(me, use, pointer_to(mapped.address()), bytes);
    if (!context_is_usable()) return;
  }
}

TEST(VmmAccess, AReadOnlyRangeIsNotWritten) {
  covers("VMM-20");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait_until_done("importer");
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    EXPECT_TRUE(copy_reads(mapping, pattern("exporter")));
  });

  scenario.role("importer", uses_read_only_memory)
      .in_new_process();  // at the end its context is lost
  scenario.run_inputs("importer", kReadOnlyUses, 20s);
}

TEST(VmmAccess, ARangeWithAHoleGetsNoAccess) {
  covers("VMM-21");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk =
        Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
    const Reservation range(3 * bytes);
    range.map(0, bytes, chunk);
    range.map(2 * bytes, bytes, chunk);
    const CUmemAccessDesc access = access_for(0);
    const auto expect_refusal = [&](const char* what, size_t from, size_t to) {
      me.signal(what);
      EXPECT_REFUSED(DRIVER(cuMemSetAccess)(range.at(from * bytes),
                                            (to - from) * bytes, &access, 1),
                     CUDA_ERROR_INVALID_VALUE);
      EXPECT_SUCCESS(set_access(range.at(0), bytes,
                                access_for(0, CU_MEM_ACCESS_FLAGS_PROT_NONE)))
          << "after the refusal";
    };
    expect_refusal("a hole in the middle", 0, 3);
    expect_refusal("a hole at the end", 0, 2);
    expect_refusal("a hole at the beginning", 1, 3);
    expect_refusal("nothing but a hole", 1, 2);
    EXPECT_EQ(access_at(range.at(0)), kNone);
    EXPECT_EQ(access_at(range.at(2 * bytes)), kNone);
    EXPECT_TRUE(context_is_usable());

    allow(range.at(0), bytes);
    allow(range.at(2 * bytes), bytes);
    words_at(range.at(0), bytes).fill(pattern("whole"));
    EXPECT_TRUE(
        kernel_reads(words_at(range.at(2 * bytes), bytes), pattern("whole")));
    // The hole stays a hole, although there was memory for some time.
    range.map(bytes, bytes, chunk);
    allow(range.at(0), range.bytes());
    range.unmap(bytes, bytes);
    expect_refusal("a hole where memory was mapped", 0, 3);
    range.unmap(0, bytes);
    range.unmap(2 * bytes, bytes);

    // The documentation speaks of "all allocations" of the range, and does not
    // describe half of an allocation.
    const Chunk wide =
        Chunk::create(2 * bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
    const Mapped mapped(wide, 2 * bytes);
    me.observe("access to one half of a mapping: " +
               name_of(set_access(mapped.address(), bytes, access)));
  });
  scenario.run(20s);
}

// --- mapping ----------------------------------------------------------------

// Judges that nothing is mapped at addresses inside a mapping, which are not
// its first address.
static void expect_nothing_is_mapped_inside(const Chunk& chunk) {
  const size_t bytes = granule();
  const Chunk wide = Chunk::create(3 * bytes);
  const Mapping mapping(wide, 3 * bytes);
  mapping.fill(pattern("wide"));
  for (const size_t at : {bytes, 2 * bytes})
    EXPECT_REFUSED(
        DRIVER(cuMemMap)(mapping.address() + at, bytes, 0, chunk.handle(), 0),
        CUDA_ERROR_INVALID_VALUE)
        << "inside a mapping, at byte " << at;
  EXPECT_TRUE(kernel_reads(mapping, pattern("wide")));
}

TEST(VmmAccess, OnlyReservedAndUnmappedAddressesAreMapped) {
  covers("VMM-22");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    const size_t bytes = granule();
    const CUmemAllocationProp wanted = chunk_of(0, CU_MEM_HANDLE_TYPE_NONE);
    const Chunk first = Chunk::create(bytes, wanted);
    const Chunk second = Chunk::create(bytes, wanted);
    const Mapping mapping(first, bytes);
    mapping.fill(pattern("first"));
    const auto expect_refusal = [&](const char* what, CUdeviceptr address) {
      SCOPED_TRACE(what);
      EXPECT_REFUSED(DRIVER(cuMemMap)(address, bytes, 0, second.handle(), 0),
                     CUDA_ERROR_INVALID_VALUE);
      const Mapping right(second, bytes);  // after the refusal
      right.fill(pattern("second"));
    };
    expect_refusal("a mapped range", mapping.address());
    Reservation gone(bytes);
    const CUdeviceptr unreserved = gone.at(0);
    gone.free();
    expect_refusal("an unreserved range", unreserved);
    const Reservation wide(2 * bytes);
    EXPECT_REFUSED(
        DRIVER(cuMemMap)(wide.at(0), 2 * bytes, 0, second.handle(), 0),
        CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED)
        << "more than the memory has";
    EXPECT_EQ(access_at(mapping.address()), 3u);
    EXPECT_TRUE(kernel_reads(mapping, pattern("first")));
    EXPECT_TRUE(copy_reads(mapping, pattern("first")));
    EXPECT_TRUE(context_is_usable());

    // The last granule is mapped. A whole chunk of two granules would reach
    // into it, and so would two granules of a smaller chunk.
    const Chunk twice = Chunk::create(2 * bytes, wanted);
    wide.map(bytes, bytes, first);
    for (const Chunk* chunk : {&twice, &second})
      EXPECT_REFUSED(
          DRIVER(cuMemMap)(wide.at(0), 2 * bytes, 0, chunk->handle(), 0),
          CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED)
          << "into the next mapping";
    wide.unmap(bytes, bytes);
    expect_nothing_is_mapped_inside(second);

    // This part is last: if a driver maps the memory here, the mapping may
    // disturb what comes after it.
    const Reservation narrow(bytes);
    EXPECT_REFUSED(
        DRIVER(cuMemMap)(narrow.at(0), 2 * bytes, 0, twice.handle(), 0),
        CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED)
        << "more than is reserved";
  });
  scenario.run(20s);
}

// The last granule of a reservation is mapped first, and the other granules
// after it.
TEST(VmmAccess, AnImportIsMappedWithinItsSize) {
  covers("VMM-22");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_chunk(pattern("exporter")));
  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    const Reservation range(3 * bytes);
    for (const size_t granules : {2, 3})
      EXPECT_REFUSED(
          DRIVER(cuMemMap)(range.at(0), granules * bytes, 0, chunk.handle(), 0),
          CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED)
          << "more than the memory has";
    for (const size_t at : {2 * bytes, size_t{0}, bytes})
      EXPECT_SUCCESS(
          DRIVER(cuMemMap)(range.at(at), bytes, 0, chunk.handle(), 0));
    allow(range.at(0), 3 * bytes);
    for (const size_t at : {size_t{0}, bytes, 2 * bytes}) {
      EXPECT_TRUE(
          kernel_reads(words_at(range.at(at), bytes), pattern("exporter")));
      range.unmap(at, bytes);
    }
    me.signal("done");
  });
  scenario.run(20s);
}

// Judges that the offset 4 GiB is refused. Its lower 32 bits are 0, but it lies
// beyond the memory. (The size is that of the whole memory, because a driver
// may refuse every smaller mapping.)
static void expect_no_far_offset(const Reservation& range, const Chunk& chunk) {
  EXPECT_REFUSED(
      DRIVER(cuMemMap)(range.at(0), range.bytes(), kFourGib, chunk.handle(), 0),
      CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
      CUDA_ERROR_NOT_PERMITTED);
}

// A driver may refuse to map a part of the memory. If it maps the first half,
// the exporter's values must be there, and the addresses after it are free for
// other memory.
static void map_first_half(Role& me, const Reservation& range,
                           const Chunk& chunk) {
  const size_t half = range.bytes() / 2;
  const CUresult code =
      NOTED(DRIVER(cuMemMap)(range.at(0), half, 0, chunk.handle(), 0));
  me.observe("the first half alone: " + name_of(code));
  if (code != CUDA_SUCCESS) return;
  allow(range.at(0), half);
  EXPECT_TRUE(kernel_reads(words_at(range.at(0), half), pattern("exporter")));
  const Chunk other = Chunk::create(half);
  range.map(half, half, other);
  range.unmap(half, half);
  range.unmap(0, half);
}

TEST(VmmAccess, AChunkIsMappedFromItsBeginning) {
  covers("VMM-23");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(2 * bytes);
    const Mapping mapping(chunk, 2 * bytes);
    mapping.fill(pattern("exporter"));
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("done");
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
  });

  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    const Descriptor descriptor = me.receive_descriptor("descriptor");
    const Chunk chunk = Chunk::import(descriptor);
    {
      const Mapped whole(chunk, 2 * bytes);  // offset 0, the whole memory
      allow(whole.address(), 2 * bytes);
      const Words words = words_at(whole.address(), 2 * bytes);
      EXPECT_TRUE(kernel_reads(words, pattern("exporter")));
    }
    const Reservation range(2 * bytes);
    map_first_half(me, range, chunk);

    // This range ends beyond the memory in every case.
    EXPECT_REFUSED(
        DRIVER(cuMemMap)(range.at(0), 2 * bytes, bytes, chunk.handle(), 0),
        CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
        CUDA_ERROR_NOT_PERMITTED);
    expect_no_far_offset(range, chunk);
    const CUresult code =
        NOTED(DRIVER(cuMemMap)(range.at(0), bytes, bytes, chunk.handle(), 0));
    if (code != CUDA_SUCCESS) {
      EXPECT_TRUE(refused(code, "cuMemMap with an offset",
                          {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
                           CUDA_ERROR_NOT_PERMITTED}));
    } else {
      me.lifted("cuMemMap takes an offset");
      allow(range.at(0), bytes);
      uint32_t word = 0;
      CALL(cudaMemcpy(&word, pointer_to(range.at(0)), sizeof word,
                      cudaMemcpyDefault));
      EXPECT_EQ(word, pattern("exporter").at(bytes / sizeof word));
      range.unmap(0, bytes);
    }
    EXPECT_TRUE(context_is_usable());
    me.signal("done");
  });
  scenario.run(20s);
}

// Two mappings side by side, unmapped by one call. The documentation does not
// say whether the call is refused. If it succeeds, the whole range must be a
// reservation again.
static void unmap_both_by_one_call(Role& me, const Reservation& range) {
  const size_t bytes = range.bytes() / 2;
  const CUresult both = NOTED(DRIVER(cuMemUnmap)(range.at(0), 2 * bytes));
  me.observe("two mappings side by side, unmapped by one call: " +
             name_of(both));
  for (const size_t at : {size_t{0}, bytes}) {
    if (both == CUDA_SUCCESS)
      EXPECT_FALSE(has_memory(range.at(at))) << "unmapped, at " << at;
    else
      range.unmap(at, bytes);
  }
}

// A range that ends inside a mapping is not unmapped, also if it begins with
// another mapping as a whole.
static void expect_no_unmap_of_one_and_a_half(const Chunk& one,
                                              const Chunk& wide,
                                              Pattern written) {
  const size_t bytes = granule();
  const size_t one_and_a_half = 2 * bytes;
  const Reservation range(3 * bytes);
  const Words second = words_at(range.at(bytes), 2 * bytes);
  range.map(0, bytes, one);
  range.map(bytes, 2 * bytes, wide);
  allow(range.at(bytes), 2 * bytes);
  EXPECT_REFUSED(DRIVER(cuMemUnmap)(range.at(0), one_and_a_half),
                 CUDA_ERROR_INVALID_VALUE)
      << "a mapping and the first half of the next one";
  EXPECT_TRUE(has_memory(range.at(2 * bytes))) << "the second half";
  EXPECT_TRUE(kernel_reads(second, written));
  // The documentation does not say what a refused call does to the first one.
  if (has_memory(range.at(0))) range.unmap(0, bytes);
  range.unmap(bytes, 2 * bytes);
}

TEST(VmmAccess, UnmapTakesWhatWasMapped) {
  covers("VMM-24");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const CUmemAllocationProp wanted = chunk_of(0, CU_MEM_HANDLE_TYPE_NONE);
    const Chunk wide = Chunk::create(2 * bytes, wanted);
    const Mapping mapping(wide, 2 * bytes);
    mapping.fill(pattern("whole"));
    const Chunk other = Chunk::create(bytes, wanted);
    const Reservation spare(bytes);
    const auto expect_refusal = [&](const char* what, size_t offset) {
      SCOPED_TRACE(what);
      EXPECT_REFUSED(DRIVER(cuMemUnmap)(mapping.address() + offset, bytes),
                     CUDA_ERROR_INVALID_VALUE);
      spare.map(0, bytes, other);
      EXPECT_SUCCESS(DRIVER(cuMemUnmap)(spare.at(0), bytes))
          << "after the refusal";
    };
    expect_refusal("the first half", 0);
    expect_refusal("the second half", bytes);
    for (const size_t size : {2 * bytes - 1, 2 * bytes - 4096}) {
      EXPECT_REFUSED(DRIVER(cuMemUnmap)(mapping.address(), size),
                     CUDA_ERROR_INVALID_VALUE)
          << size << " bytes of " << 2 * bytes;
    }
    EXPECT_EQ(access_at(mapping.address()), 3u);
    EXPECT_TRUE(kernel_reads(mapping, pattern("whole")));
    EXPECT_TRUE(copy_reads(mapping, pattern("whole")));
    expect_no_unmap_of_one_and_a_half(other, wide, pattern("whole"));
    EXPECT_TRUE(context_is_usable());

    const Chunk chunk = Chunk::create(bytes, wanted);
    const Reservation range(2 * bytes);
    EXPECT_REFUSED(DRIVER(cuMemUnmap)(range.at(0), bytes),
                   CUDA_ERROR_INVALID_VALUE)
        << "nothing is mapped there";
    range.map(0, bytes, chunk);
    EXPECT_REFUSED(DRIVER(cuMemUnmap)(range.at(0), 2 * bytes),
                   CUDA_ERROR_INVALID_VALUE)
        << "more than is mapped";
    EXPECT_REFUSED(DRIVER(cuMemMap)(range.at(0), bytes, 0, chunk.handle(), 0),
                   CUDA_ERROR_INVALID_VALUE)
        << "still mapped";
    range.map(bytes, bytes, chunk);
    unmap_both_by_one_call(me, range);
    EXPECT_TRUE(kernel_reads(mapping, pattern("whole")))
        << "of other addresses";
  });
  scenario.run(20s);
}

TEST(VmmAccess, UnmapTakesAWholeImport) {
  covers("VMM-24");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = 2 * granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("whole"));
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("unmapped");
    EXPECT_TRUE(kernel_reads(mapping, pattern("by the importer")));
  });
  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    Mapping mapping(Chunk::import(me.receive_descriptor("descriptor")),
                    2 * bytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("whole")));
    for (const size_t offset : {size_t{0}, bytes})
      EXPECT_REFUSED(DRIVER(cuMemUnmap)(mapping.address() + offset, bytes),
                     CUDA_ERROR_INVALID_VALUE)
          << "one half of two, at byte " << offset;
    for (const size_t offset : {size_t{0}, bytes})
      EXPECT_TRUE(has_memory(mapping.address() + offset)) << offset;
    EXPECT_TRUE(kernel_reads(mapping, pattern("whole")));
    mapping.fill(pattern("by the importer"));
    mapping.unmap();
    EXPECT_TRUE(context_is_usable());
    me.signal("unmapped");
  });
  scenario.run(20s);
}

// Judges that a range whose halves were mapped and unmapped can be mapped as a
// whole.
static void expect_remap_in_one_piece(const Reservation& range) {
  const size_t bytes = range.bytes();
  const Chunk wide = Chunk::create(bytes);
  const CUresult code =
      NOTED(DRIVER(cuMemMap)(range.at(0), bytes, 0, wide.handle(), 0));
  ASSERT_EQ(code, CUDA_SUCCESS) << "in another size than before";
  allow(range.at(0), bytes);
  words_at(range.at(0), bytes).fill(pattern("one piece"));
  EXPECT_TRUE(kernel_reads(words_at(range.at(0), bytes), pattern("one piece")));
  range.unmap(0, bytes);
}

// The unmap of addresses changes nothing of the mapping before them.
static void expect_mapping_before_stays(const Chunk& chunk, Pattern written) {
  const size_t bytes = granule();
  const Chunk other = Chunk::create(bytes);
  const Reservation range(2 * bytes);
  range.map(0, bytes, chunk);
  range.map(bytes, bytes, other);
  allow(range.at(0), 2 * bytes);
  range.unmap(bytes, bytes);
  EXPECT_EQ(access_at(range.at(0)), 3u) << "before unmapped addresses";
  EXPECT_TRUE(kernel_reads(words_at(range.at(0), bytes), written))
      << "before unmapped addresses";
  range.unmap(0, bytes);
}

// A handle keeps the memory and its values, also while nothing is mapped.
static void expect_values_stay_without_mapping() {
  const size_t bytes = granule();
  const Chunk chunk = Chunk::create(bytes);
  Mapping(chunk, bytes).fill(pattern("before"));
  const Mapping again(chunk, bytes);
  EXPECT_TRUE(kernel_reads(again, pattern("before")))
      << "after it was unmapped";
  expect_mapping_before_stays(chunk, pattern("before"));
}

// Memory that is mapped again at its own addresses has no access, and the
// access that is given then is not the one of an earlier mapping. `chunk` is
// mapped at the beginning of the range, and stays there.
static void expect_fresh_access_of_same_memory(const Reservation& range,
                                               const Chunk& chunk,
                                               Pattern written) {
  const size_t bytes = granule();
  const Words words = words_at(range.at(0), bytes);
  const auto map_again = [&] {
    range.unmap(0, bytes);
    range.map(0, bytes, chunk);
    EXPECT_EQ(access_at(range.at(0)), kNone) << "the same memory is back";
  };
  map_again();
  const CUresult code = set_access(range.at(0), bytes, access_for(0, kRead));
  if (code != CUDA_ERROR_NOT_SUPPORTED) CALL(code);
  map_again();
  allow(range.at(0), bytes);
  EXPECT_EQ(access_at(range.at(0)), 3u) << "where it could only be read before";
  EXPECT_TRUE(kernel_reads(words, written));
  words.poison();
  words.fill(written);
  EXPECT_TRUE(copy_reads(words, written));
}

TEST(VmmAccess, AnUnmappedRangeStartsAfresh) {
  covers("VMM-25");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk one = Chunk::create(bytes), two = Chunk::create(bytes);
    const Mapping first(one, bytes), second(two, bytes);
    first.fill(pattern("chunk 1"));
    second.fill(pattern("chunk 2"));
    me.send_descriptor("chunk 1", one.descriptor().get());
    me.send_descriptor("chunk 2", two.descriptor().get());
    me.wait("done");
    EXPECT_TRUE(kernel_reads(first, pattern("chunk 1")));
    EXPECT_TRUE(kernel_reads(second, pattern("by the importer")));
  });

  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    const Chunk one = Chunk::import(me.receive_descriptor("chunk 1"));
    const Chunk two = Chunk::import(me.receive_descriptor("chunk 2"));
    const Chunk neighbour = Chunk::create(bytes);
    const Reservation range(2 * bytes);
    const Words words = words_at(range.at(0), bytes);
    const Words beside = words_at(range.at(bytes), bytes);
    range.map(0, bytes, one);
    range.map(bytes, bytes, neighbour);
    allow(range.at(0), 2 * bytes);
    beside.fill(pattern("beside"));
    EXPECT_TRUE(kernel_reads(words, pattern("chunk 1")));
    EXPECT_TRUE(has_memory(range.at(0)));
    EXPECT_SUCCESS(DRIVER(cuMemUnmap)(range.at(0), bytes));
    EXPECT_FALSE(has_memory(range.at(0))) << "after it was unmapped";
    EXPECT_TRUE(has_memory(range.at(bytes))) << "the range beside it";
    EXPECT_EQ(access_at(range.at(bytes)), 3u) << "of the range beside it";
    EXPECT_TRUE(kernel_reads(beside, pattern("beside")));

    EXPECT_SUCCESS(DRIVER(cuMemMap)(range.at(0), bytes, 0, two.handle(), 0));
    EXPECT_EQ(access_at(range.at(0)), kNone) << "of the mapping before";
    allow(range.at(0), bytes);
    EXPECT_TRUE(kernel_reads(words, pattern("chunk 2")));
    EXPECT_TRUE(copy_reads(words, pattern("chunk 2")));
    words.fill(pattern("by the importer"));
    expect_fresh_access_of_same_memory(range, two, pattern("by the importer"));
    range.unmap(0, bytes);
    range.unmap(bytes, bytes);
    expect_remap_in_one_piece(range);

    // A reservation in which nothing is mapped any more is still reserved.
    const Reservation whole(bytes);
    whole.map(0, bytes, one);
    EXPECT_SUCCESS(DRIVER(cuMemUnmap)(whole.at(0), bytes));
    EXPECT_SUCCESS(DRIVER(cuMemMap)(whole.at(0), bytes, 0, two.handle(), 0));
    whole.unmap(0, bytes);
    expect_values_stay_without_mapping();
    me.signal("done");
  });
  scenario.run(20s);
}

static const std::vector<std::string> kUsesOfUnmapped = {
    "copy", "copy to other memory", "device copy", "memset", "word", "kernel"};

// A handle still holds the memory, but no address shows it.
TEST(VmmAccess, AnUnmappedRangeMayNotBeUsed) {
  covers("VMM-25");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario
      .role("exporter",
            [](Role& me) {
              const size_t bytes = granule();
              const Chunk chunk =
                  Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
              while (const auto input = me.next_input()) {
                const std::string& use = kUsesOfUnmapped[*input];
                const Reservation range(bytes);
                const Words words = words_at(range.at(0), bytes);
                range.map(0, bytes, chunk);
                allow(range.at(0), bytes);
                words.fill(pattern("exporter"));
                EXPECT_TRUE(kernel_reads(words, pattern("exporter")));
                range.unmap(0, bytes);
                EXPECT_FALSE(has_memory(range.at(0)));
                if (use == "kernel")
                  EXPECT_TRUE(kernel_faults(words)) << "after it was unmapped";
                else if (use.rfind("copy", 0) == 0)
                  expect_no_read(me, use, range.at(0));
                else
                  expect_no_write(me, use, words.data, bytes);
                if (!context_is_usable()) return;
              }
            })
      .may_end_by(SIGSEGV)  // cudaMemcpy may see a host address
      .may_end_by(SIGBUS)
      .in_new_process();  // at the end its context is lost
  scenario.run_inputs("exporter", kUsesOfUnmapped, 20s);
}

TEST(VmmAccess, ANewMappingGivesNoGpuAccess) {
  covers("VMM-25");
  needs(gpus(2), vmm_fd, peer_access);
  Scenario scenario(Scenario::kShared);
  scenario
      .role("exporter",
            [](Role&) {
              const size_t bytes = granule();
              const Chunk one = Chunk::create(bytes);
              const Chunk two = Chunk::create(bytes);
              const Reservation range(bytes);
              const Words words = words_at(range.at(0), bytes);
              range.map(0, bytes, one);
              const CUmemAccessDesc list[] = {access_for(0), access_for(1)};
              CALL(DRIVER(cuMemSetAccess)(range.at(0), bytes, list, 2));
              words.fill(pattern("one"));
              CALL(cudaSetDevice(1));
              EXPECT_TRUE(kernel_reads(words, pattern("one")));
              CALL(cudaSetDevice(0));
              range.unmap(0, bytes);
              range.map(0, bytes, two);
              for (const int device : {0, 1})
                EXPECT_EQ(access_at(range.at(0), device), kNone)
                    << "GPU " << device;
              allow(range.at(0), bytes);
              words.fill(pattern("two"));
              EXPECT_TRUE(kernel_reads(words, pattern("two")));
              CALL(cudaSetDevice(1));
              EXPECT_TRUE(kernel_faults(words))
                  << "GPU 1 had access to the mapping before";
            })
      .in_new_process();  // at the end its context is lost
  scenario.run(20s);
}

TEST(VmmAccess, AddressesAreFreedAsTheyWereReserved) {
  covers("VMM-26");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role&) {
    const size_t bytes = granule();
    Reservation range(2 * bytes), other(2 * bytes);
    const auto expect_refusal = [&](const char* what, size_t offset,
                                    size_t size) {
      SCOPED_TRACE(what);
      EXPECT_REFUSED(DRIVER(cuMemAddressFree)(range.at(offset), size),
                     CUDA_ERROR_INVALID_VALUE);
      Reservation(bytes).free();  // a right call works after the refusal
    };
    expect_refusal("too small a size", 0, bytes);
    expect_refusal("the size 0", 0, 0);
    expect_refusal("too large a size", 0, 3 * bytes);
    expect_refusal("an address inside", bytes, bytes);
    other.free();
    EXPECT_TRUE(context_is_usable());
    const Chunk chunk =
        Chunk::create(2 * bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
    range.map(0, 2 * bytes, chunk);
    allow(range.at(0), 2 * bytes);
    const Words words = words_at(range.at(0), 2 * bytes);
    words.fill(pattern("still reserved"));
    EXPECT_TRUE(kernel_reads(words, pattern("still reserved")));
    range.unmap(0, 2 * bytes);
    const CUdeviceptr address = range.at(0);
    range.free();
    EXPECT_REFUSED(DRIVER(cuMemAddressFree)(address, 2 * bytes),
                   CUDA_ERROR_INVALID_VALUE);
  });

  // The guide forbids this call, and names no code for it.
  scenario
      .role("one that frees too early",
            [](Role& me) {
              const size_t bytes = granule();
              const Chunk chunk =
                  Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
              const Mapping mapping(chunk, bytes);
              me.observe("cuMemAddressFree of a mapped range: " +
                         name_of(NOTED(DRIVER(cuMemAddressFree)(
                             mapping.address(), bytes))));
            })
      .may_end_by(SIGSEGV)
      .may_end_by(SIGABRT)
      .in_new_process();  // its state at the end is unknown
  scenario.run(20s);
}

// Judges that a reservation overlaps no other one, if its wanted address lies
// inside the other one, or so close before it that its end would lie there.
static void expect_no_part_is_reserved_twice() {
  const size_t bytes = granule();
  const Reservation taken(4 * bytes);
  for (const CUdeviceptr hint :
       {taken.at(bytes), taken.at(3 * bytes), taken.at(0) - bytes}) {
    Sentinel<CUdeviceptr> found;
    EXPECT_SUCCESS(
        DRIVER(cuMemAddressReserve)(found.out(), 2 * bytes, 0, hint, 0));
    const CUdeviceptr begin = found.result();
    EXPECT_TRUE(begin + 2 * bytes <= taken.at(0) ||
                begin >= taken.at(taken.bytes()))
        << "a part of another reservation";
    EXPECT_SUCCESS(DRIVER(cuMemAddressFree)(begin, 2 * bytes));
  }
}

// Reserves one granule of addresses, at these addresses if that is possible.
static CUdeviceptr reserve_at(CUdeviceptr hint) {
  Sentinel<CUdeviceptr> address;
  EXPECT_SUCCESS(
      DRIVER(cuMemAddressReserve)(address.out(), granule(), 0, hint, 0));
  return address.result();
}

static void free_addresses(CUdeviceptr address) {
  EXPECT_SUCCESS(DRIVER(cuMemAddressFree)(address, granule()));
}

static void expect_apart(CUdeviceptr one, CUdeviceptr other) {
  EXPECT_TRUE(one + granule() <= other || other + granule() <= one)
      << "the same addresses are reserved twice";
}

// Judges that no reservation begins where memory is in use.
static void expect_no_reservation_of_memory() {
  const size_t bytes = granule();
  const DeviceBuffer device(bytes);
  void* const room = mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(room, MAP_FAILED);
  void* const host = pointer_to((address_of(room) + bytes - 1) / bytes * bytes);
  *static_cast<uint32_t*>(host) = kLanded;
  std::vector<std::pair<const char*, const void*>> in_use = {
      {"memory of the host", host}, {"cudaMalloc", device.data}};
  void* pooled = nullptr;
  if (attribute(cudaDevAttrMemoryPoolsSupported) != 0) {
    CALL(cudaMallocAsync(&pooled, 2 * bytes, nullptr));
    CALL(cudaStreamSynchronize(nullptr));
    in_use.emplace_back(
        "memory of a pool",
        pointer_to((address_of(pooled) + bytes - 1) / bytes * bytes));
  }
  for (const auto& [kind, used] : in_use) {
    SCOPED_TRACE(kind);
    const CUdeviceptr elsewhere = reserve_at(address_of(used));
    expect_apart(address_of(used), elsewhere);
    free_addresses(elsewhere);
  }
  if (pooled != nullptr) CALL(cudaFreeAsync(pooled, nullptr));
  CALL(cudaDeviceSynchronize());
  EXPECT_EQ(*static_cast<uint32_t*>(host), kLanded);
  munmap(room, 2 * bytes);
}

TEST(VmmAccess, TheWantedAddressIsAHint) {
  covers("VMM-44");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("owner", [](Role& me) {
    CALL(cudaFree(nullptr));
    const CUdeviceptr first = reserve_at(0);
    const CUdeviceptr second = reserve_at(first);
    expect_apart(first, second);
    free_addresses(first);
    const CUdeviceptr third = reserve_at(first);
    expect_apart(second, third);
    me.observe(std::string("where the wanted addresses are free: ") +
               (third == first ? "these" : "others"));
    free_addresses(second);
    free_addresses(third);
    expect_no_part_is_reserved_twice();

    expect_no_reservation_of_memory();
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

// The size must be a multiple of a page. The documentation does not say that
// each such size is possible. If it is, it frees the addresses.
static void observe_size_in_pages(Role& me) {
  const size_t bytes = granule() + static_cast<size_t>(sysconf(_SC_PAGESIZE));
  Sentinel<CUdeviceptr> address;
  const CUresult code =
      NOTED(DRIVER(cuMemAddressReserve)(address.out(), bytes, 0, 0, 0));
  me.observe("a size of one granule and one page: " + name_of(code));
  if (code == CUDA_SUCCESS)
    EXPECT_SUCCESS(DRIVER(cuMemAddressFree)(address.result(), bytes));
}

// Addresses are not memory: a process can reserve more of them than the GPU has
// memory.
static void expect_more_addresses_than_memory() {
  size_t free = 0, total = 0;
  CALL(cudaMemGetInfo(&free, &total));
  const size_t bytes = (total / granule() + 1) * granule();
  Sentinel<CUdeviceptr> address;
  EXPECT_SUCCESS(DRIVER(cuMemAddressReserve)(address.out(), bytes, 0, 0, 0));
  EXPECT_SUCCESS(DRIVER(cuMemAddressFree)(address.result(), bytes));
}

TEST(VmmAccess, AddressesAreAlignedAsWanted) {
  covers("VMM-44");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("owner", [](Role& me) {
    CALL(cudaFree(nullptr));
    const size_t bytes = granule();
    const auto expect_refusal = [&](const char* what, size_t size,
                                    size_t alignment) {
      SCOPED_TRACE(what);
      Sentinel<CUdeviceptr> address;
      EXPECT_REFUSED(
          DRIVER(cuMemAddressReserve)(address.out(), size, alignment, 0, 0),
          CUDA_ERROR_INVALID_VALUE);
      note_touched(me, address, "cuMemAddressReserve");
      Reservation(bytes).free();  // after the refusal
    };
    expect_refusal("an alignment that is no power of two", bytes, 3 * bytes);
    expect_refusal("a size that is no multiple of a page", bytes + 1, 0);
    Sentinel<CUdeviceptr> odd;
    EXPECT_REFUSED(
        DRIVER(cuMemAddressReserve)(odd.out(), bytes, 0, bytes + 16, 0),
        CUDA_ERROR_INVALID_VALUE)
        << "a wanted address that is no multiple of a page";
    EXPECT_TRUE(context_is_usable());
    observe_size_in_pages(me);
    expect_more_addresses_than_memory();

    // One range may be aligned by chance, so the test reserves several at once.
    // For some of them it asks for an address that is already reserved.
    std::vector<CUdeviceptr> reserved;
    for (const size_t alignment : {bytes, 2 * bytes, kWideAlignment})
      for (int i = 0; i < (alignment == bytes ? kMany : 6); ++i) {
        Sentinel<CUdeviceptr> address;
        const CUdeviceptr hint =
            alignment != bytes && i >= 3 ? reserved.back() : 0;
        EXPECT_SUCCESS(DRIVER(cuMemAddressReserve)(address.out(), bytes,
                                                   alignment, hint, 0));
        EXPECT_EQ(address.result() % alignment, 0u);
        reserved.push_back(address.result());
      }
    std::sort(reserved.begin(), reserved.end());
    for (size_t i = 1; i < reserved.size(); ++i)
      EXPECT_LE(reserved[i - 1] + bytes, reserved[i]) << "two ranges overlap";
    for (const CUdeviceptr address : reserved)
      EXPECT_SUCCESS(DRIVER(cuMemAddressFree)(address, bytes));
  });
  scenario.run(20s);
}

static void expect_poison_in_each_chunk(const Reservation& range) {
  for (int k = 0; k < kChunks; ++k) {
    uint32_t word = 0;
    CALL(cudaMemcpy(&word, pointer_to(range.at(k * granule())), sizeof word,
                    cudaMemcpyDeviceToHost));
    EXPECT_EQ(word, 0xEEEEEEEEu) << "chunk " << k;
  }
}

// Judges that a stream writes a word in each of several chunks that lie side by
// side, by single calls and by a batch, and that it waits for the word of the
// right chunk.
static void expect_words_reach_their_chunks(const Reservation& range) {
  const size_t bytes = granule();
  const Stream stream;
  words_at(range.at(0), range.bytes()).poison();
  const auto last_word = [&](uint32_t k) {
    return range.at((k + 1) * bytes - sizeof k);
  };
  const auto expect_each = [&](const char* by, uint32_t more) {
    EXPECT_TRUE(passes(stream));
    for (uint32_t k = 0; k < kChunks; ++k) {
      uint32_t word = ~k;
      CALL(cudaMemcpy(&word, pointer_to(last_word(k)), sizeof word,
                      cudaMemcpyDeviceToHost));
      EXPECT_EQ(word, k + more) << "the last word of chunk " << k << by;
    }
  };
  for (uint32_t k = 0; k < kChunks; ++k)
    EXPECT_SUCCESS(NOTED(DRIVER(cuStreamWriteValue32)(
        stream, last_word(k), k, CU_STREAM_WRITE_VALUE_DEFAULT)));
  expect_each("", 0);
  std::vector<CUstreamBatchMemOpParams> batch(kChunks);
  for (uint32_t k = 0; k < kChunks; ++k) {
    batch[k].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    batch[k].writeValue.address = last_word(k);
    batch[k].writeValue.value = k + kChunks;
  }
  EXPECT_SUCCESS(
      NOTED(DRIVER(cuStreamBatchMemOp)(stream, kChunks, batch.data(), 0)));
  expect_each(", by a batch", kChunks);
}

// The exporter's part of expect_wait_in_later_chunk: it writes the value into
// both chunks, so that no stream waits for ever.
static void end_every_wait(Role& me, const Reservation& range) {
  me.wait("waited for a word");
  for (const int k : {0, kLater})
    CALL(cudaMemcpy(pointer_to(range.at(k * granule())), &kLanded,
                    sizeof kLanded, cudaMemcpyHostToDevice));
  me.signal("no wait is left");
}

// Judges that a stream waits for the word of a later chunk, which has the value
// already, and not for the word of the first chunk.
static void expect_wait_in_later_chunk(Role& me, const Reservation& range) {
  const Stream stream;
  words_at(range.at(0), range.bytes()).poison();
  CALL(cudaMemcpy(pointer_to(range.at(kLater * granule())), &kLanded,
                  sizeof kLanded, cudaMemcpyHostToDevice));
  EXPECT_SUCCESS(NOTED(DRIVER(cuStreamWaitValue32)(
      stream, range.at(kLater * granule()), kLanded, CU_STREAM_WAIT_VALUE_EQ)));
  EXPECT_TRUE(passes(stream)) << "the word of the chunk has the value";
  me.signal("waited for a word");
  me.wait("no wait is left");
}

// Access can be taken from two chunks in the middle, and given to them again,
// also by a call for all chunks, of which the first ones still have access.
static void expect_access_by_chunk(const Reservation& range) {
  const size_t bytes = granule();
  for (const auto flags : {CU_MEM_ACCESS_FLAGS_PROT_NONE, kReadWrite}) {
    EXPECT_SUCCESS(
        set_access(range.at(4 * bytes), 2 * bytes, access_for(0, flags)));
    for (int k = 0; k < kChunks; ++k)
      EXPECT_EQ(access_at(range.at(k * bytes)),
                k == 4 || k == 5 ? static_cast<unsigned>(flags) : 3u)
          << "chunk " << k;
  }
  EXPECT_SUCCESS(set_access(range.at(4 * bytes), 2 * bytes,
                            access_for(0, CU_MEM_ACCESS_FLAGS_PROT_NONE)));
  EXPECT_SUCCESS(set_access(range.at(0), range.bytes(), access_for(0)));
  for (int k = 0; k < kChunks; ++k)
    ASSERT_EQ(access_at(range.at(k * bytes)), 3u)
        << "chunk " << k << ", by a call for all chunks";
}

// One copy from memory of one GPU to memory of the same GPU moves the values of
// all chunks, in both directions.
static void expect_device_copies_move_all(const Words& whole) {
  const DeviceBuffer own(whole.bytes());
  CALL(cudaMemcpy(own.data, whole.data, whole.bytes(),
                  cudaMemcpyDeviceToDevice));
  EXPECT_TRUE(kernel_reads(own, pattern("by the importer"))) << "out of chunks";
  whole.poison();
  CALL(cudaMemcpyAsync(whole.data, own.data, whole.bytes(),
                       cudaMemcpyDeviceToDevice, nullptr));
  CALL(cudaDeviceSynchronize());
  EXPECT_TRUE(kernel_reads(whole, pattern("by the importer"))) << "into chunks";
  own.poison();
  CALL(DRIVER(cuMemcpyDtoD)(address_of(own.data), address_of(whole.data),
                            whole.bytes()));
  EXPECT_TRUE(kernel_reads(own, pattern("by the importer"))) << "by the driver";
  whole.poison();
  CALL(DRIVER(cuMemcpyDtoDAsync)(address_of(whole.data), address_of(own.data),
                                 whole.bytes(), nullptr));
  CALL(cudaDeviceSynchronize());
  EXPECT_TRUE(kernel_reads(whole, pattern("by the importer")))
      << "by the driver, into chunks";
}

// Copies begin in the middle of a chunk and end in the middle of the second
// chunk after it.
static void expect_copies_cross_borders(const Reservation& range) {
  const size_t bytes = granule();
  const Words part = words_at(range.at(bytes + bytes / 2), 2 * bytes);
  std::vector<uint32_t> host(part.count), back(part.count);
  const Words on_host(host.data(), part.bytes());
  host_writes(on_host, pattern("over borders"));
  const Stream stream;
  const auto expect_written = [&](const char* by, auto copy) {
    SCOPED_TRACE(by);
    part.poison();
    CALL(cudaDeviceSynchronize());
    CALL(copy());
    CALL(cudaStreamSynchronize(stream));
    EXPECT_TRUE(kernel_reads(part, pattern("over borders")));
  };
  expect_written("cudaMemcpy", [&] {
    return cudaMemcpy(part.data, host.data(), part.bytes(),
                      cudaMemcpyHostToDevice);
  });
  expect_written("cudaMemcpyAsync", [&] {
    return cudaMemcpyAsync(part.data, host.data(), part.bytes(),
                           cudaMemcpyHostToDevice, stream);
  });
  expect_written("cudaMemcpy2D", [&] {
    return cudaMemcpy2D(part.data, bytes, host.data(), bytes, bytes, 2,
                        cudaMemcpyHostToDevice);
  });
  CALL(cudaMemcpyAsync(back.data(), part.data, part.bytes(),
                       cudaMemcpyDeviceToHost, stream));
  CALL(cudaStreamSynchronize(stream));
  EXPECT_TRUE(
      host_reads(Words(back.data(), part.bytes()), pattern("over borders")));
}

// Memsets of all kinds begin in the middle of a chunk and end in the middle of
// the second chunk after it.
static void expect_sets_cross_borders(const Reservation& range) {
  constexpr unsigned char kByte = 0x3C;
  constexpr uint32_t kWord = 0x3C3C3C3C;
  const size_t bytes = granule();
  const CUdeviceptr at = range.at(bytes + bytes / 2);
  const Words part = words_at(at, 2 * bytes);
  const Stream stream;
  std::vector<uint32_t> seen(part.count);
  const auto expect_all_set = [&](const char* by, auto set) {
    part.poison();
    CALL(cudaDeviceSynchronize());
    note_call(by);
    CALL(set());
    CALL(cudaDeviceSynchronize());
    CALL(cudaMemcpy(seen.data(), part.data, part.bytes(),
                    cudaMemcpyDeviceToHost));
    EXPECT_EQ(std::count(seen.begin(), seen.end(), kWord),
              static_cast<std::ptrdiff_t>(part.count))
        << by;
  };
  expect_all_set("cudaMemsetAsync", [&] {
    return cudaMemsetAsync(part.data, kByte, part.bytes(), stream);
  });
  expect_all_set("cudaMemset2D", [&] {
    return cudaMemset2D(part.data, bytes, kByte, bytes, 2);
  });
  expect_all_set("cudaMemset2DAsync", [&] {
    return cudaMemset2DAsync(part.data, bytes, kByte, bytes, 2, stream);
  });
  expect_all_set("cuMemsetD16", [&] {
    return DRIVER(cuMemsetD16)(at, kWord & 0xFFFF, part.bytes() / 2);
  });
  expect_all_set("cuMemsetD16Async", [&] {
    return DRIVER(cuMemsetD16Async)(at, kWord & 0xFFFF, part.bytes() / 2,
                                    stream);
  });
  expect_all_set("cuMemsetD32",
                 [&] { return DRIVER(cuMemsetD32)(at, kWord, part.count); });
  expect_all_set("cuMemsetD32Async", [&] {
    return DRIVER(cuMemsetD32Async)(at, kWord, part.count, stream);
  });
}

TEST(VmmAccess, ImportedChunksLieSideBySide) {
  covers("VMM-35");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  const auto name_of_chunk = [](int k) { return "chunk " + std::to_string(k); };

  scenario.role("exporter", [=](Role& me) {
    const size_t bytes = granule();
    std::deque<Chunk> chunks;
    const Reservation range(kChunks * bytes);
    for (int k = 0; k < kChunks; ++k) {
      chunks.push_back(Chunk::create(bytes));
      range.map(k * bytes, bytes, chunks.back());
    }
    allow(range.at(0), range.bytes());
    for (int k = 0; k < kChunks; ++k) {
      words_at(range.at(k * bytes), bytes).fill(pattern(name_of_chunk(k)));
      me.send_descriptor(name_of_chunk(k), chunks[k].descriptor().get());
    }
    end_every_wait(me, range);
    me.wait("done");
    EXPECT_TRUE(kernel_reads(words_at(range.at(0), range.bytes()),
                             pattern("by the importer")));
    for (int k = 0; k < kChunks; ++k) range.unmap(k * bytes, bytes);
  });

  scenario.role("importer", [=](Role& me) {
    const size_t bytes = granule();
    const Reservation range(kChunks * bytes);
    std::deque<Chunk> chunks;
    for (int k = 0; k < kChunks; ++k) {
      chunks.push_back(Chunk::import(me.receive_descriptor(name_of_chunk(k))));
      range.map(k * bytes, bytes, chunks.back());
    }
    allow(range.at(0), range.bytes());
    for (int k = 0; k < kChunks; ++k) {
      const Words words = words_at(range.at(k * bytes), bytes);
      EXPECT_TRUE(kernel_reads(words, pattern(name_of_chunk(k))));
      EXPECT_TRUE(copy_reads(words, pattern(name_of_chunk(k))));
    }
    // One memset and one kernel use the whole range.
    const Words whole = words_at(range.at(0), range.bytes());
    whole.poison();
    expect_poison_in_each_chunk(range);
    expect_words_reach_their_chunks(range);
    expect_wait_in_later_chunk(me, range);
    expect_copies_cross_borders(range);
    expect_sets_cross_borders(range);
    whole.fill(pattern("by the importer"));
    expect_device_copies_move_all(whole);
    expect_access_by_chunk(range);
    EXPECT_TRUE(copy_reads(whole, pattern("by the importer")));
    for (int k = 0; k < kChunks; ++k) range.unmap(k * bytes, bytes);
    me.signal("done");
  });
  scenario.run(20s);
}

// Does a step for each of several chunks of unequal sizes that lie side by
// side. The step gets the place and the size of the chunk.
template <class Step>
static void for_each_size(Step step) {
  size_t at = 0;
  for (const size_t granules : kGranules) {
    step(at, granules * granule());
    at += granules * granule();
  }
}

TEST(VmmAccess, ChunksOfUnequalSizesLieSideBySide) {
  covers("VMM-35");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const Reservation range(kAllGranules * granule());
    for_each_size([&](size_t at, size_t bytes) {
      const Chunk chunk = Chunk::create(bytes);
      range.map(at, bytes, chunk);
      me.send_descriptor("descriptor", chunk.descriptor().get());
    });
    allow(range.at(0), range.bytes());
    expect_access_everywhere(range.at(0), range.bytes(), 3);
    const Words whole = words_at(range.at(0), range.bytes());
    whole.fill(pattern("exporter"));
    me.signal("written");
    me.wait("done");
    EXPECT_TRUE(kernel_reads(whole, pattern("importer")));
    for_each_size([&](size_t at, size_t bytes) { range.unmap(at, bytes); });
  });

  scenario.role("importer", [](Role& me) {
    const Reservation range(kAllGranules * granule());
    for_each_size([&](size_t at, size_t bytes) {
      range.map(at, bytes, Chunk::import(me.receive_descriptor("descriptor")));
    });
    allow(range.at(0), range.bytes());
    expect_access_everywhere(range.at(0), range.bytes(), 3);
    const Words whole = words_at(range.at(0), range.bytes());
    me.wait("written");
    EXPECT_TRUE(kernel_reads(whole, pattern("exporter")));
    EXPECT_TRUE(copy_reads(whole, pattern("exporter")));
    whole.fill(pattern("importer"));
    me.signal("done");
    for_each_size([&](size_t at, size_t bytes) { range.unmap(at, bytes); });
  });
  scenario.run(20s);
}

// One call gives both GPUs access to memory of both, side by side.
TEST(VmmAccess, ImportsOfTwoGpusAreOneRange) {
  covers("VMM-35");
  needs(gpus(2), vmm_fd, peer_access);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const Chunk chunks[] = {Chunk::create(granule(), chunk_of(0)),
                            Chunk::create(granule(), chunk_of(1))};
    for (const Chunk& chunk : chunks)
      me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("done");
  });
  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    const Reservation range(2 * bytes);
    for (const size_t at : {size_t{0}, bytes})
      range.map(at, bytes, Chunk::import(me.receive_descriptor("descriptor")));
    const CUmemAccessDesc list[] = {access_for(0), access_for(1)};
    EXPECT_SUCCESS(DRIVER(cuMemSetAccess)(range.at(0), range.bytes(), list, 2));
    const Words whole = words_at(range.at(0), range.bytes());
    for (const int gpu : {0, 1}) {
      SCOPED_TRACE("GPU " + std::to_string(gpu));
      for (const size_t at : {size_t{0}, bytes})
        ASSERT_EQ(access_at(range.at(at), gpu), 3u) << "at byte " << at;
      CALL(cudaSetDevice(gpu));
      whole.fill(pattern("GPU " + std::to_string(gpu)));
      EXPECT_TRUE(kernel_reads(whole, pattern("GPU " + std::to_string(gpu))));
    }
    CALL(cudaSetDevice(0));
    for (const size_t at : {size_t{0}, bytes}) range.unmap(at, bytes);
    me.signal("done");
  });
  scenario.run(20s);
}

// The distance from the beginning of the addresses does not fit in 32 bits.
TEST(VmmAccess, AnImportIsMappedFarIntoItsAddresses) {
  covers("VMM-35");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_chunk(pattern("exporter")));
  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    const Chunk far = Chunk::import(me.receive_descriptor("descriptor"));
    const Chunk near = Chunk::create(bytes);
    const Reservation range(kFourGib + bytes);
    const Words first = words_at(range.at(0), bytes);
    const Words last = words_at(range.at(kFourGib), bytes);
    range.map(kFourGib, bytes, far);
    EXPECT_FALSE(has_memory(range.at(0)));
    range.map(0, bytes, near);
    allow(range.at(0), bytes);
    EXPECT_EQ(access_at(range.at(kFourGib)), kNone);
    allow(range.at(kFourGib), bytes);
    first.fill(pattern("near"));
    EXPECT_TRUE(kernel_reads(last, pattern("exporter")));
    EXPECT_TRUE(copy_reads(last, pattern("exporter")));
    range.unmap(kFourGib, bytes);
    EXPECT_FALSE(has_memory(range.at(kFourGib)));
    EXPECT_TRUE(kernel_reads(first, pattern("near")));
    range.unmap(0, bytes);
    me.signal("done");
  });
  scenario.run(20s);
}

// --- aliases ----------------------------------------------------------------

// A chunk that is mapped twice is mapped a third time. `one` is one of the
// first two mappings.
static void expect_third_mapping_agrees(const Chunk& chunk, const Words& one) {
  const Mapping three(chunk, one.bytes());
  three.fill(pattern("by the third"));
  EXPECT_TRUE(kernel_reads(one, pattern("by the third")));
  one.fill(pattern("for the third"));
  EXPECT_TRUE(copy_reads(three, pattern("for the third")));
}

TEST(VmmAccess, TwoAddressesOfOneChunkAgreeBetweenKernels) {
  covers("VMM-36");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = 3 * granule();
    const Chunk chunk = Chunk::create(bytes);
    const Mapping one(chunk, bytes), two(chunk, bytes);
    EXPECT_NE(one.data, two.data);
    one.fill(pattern("A"));
    EXPECT_TRUE(kernel_reads(two, pattern("A")));
    expect_third_mapping_agrees(chunk, one);
    two.fill(pattern("B"));
    EXPECT_TRUE(copy_reads(one, pattern("B")));
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("D written");
    EXPECT_TRUE(kernel_reads(one, pattern("D")));
    EXPECT_TRUE(copy_reads(two, pattern("D")));
  });

  scenario.role("importer", [](Role& me) {
    const size_t bytes = 3 * granule();
    const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    const Mapping one(chunk, bytes), two(chunk, bytes);
    EXPECT_TRUE(kernel_reads(one, pattern("B")));
    EXPECT_TRUE(kernel_reads(two, pattern("B")));
    expect_third_mapping_agrees(chunk, one);
    one.poison();
    uint32_t word = 0;
    CALL(cudaMemcpy(&word, two.data + two.count - 1, sizeof word,
                    cudaMemcpyDeviceToHost));
    EXPECT_EQ(word, 0xEEEEEEEEu) << "a memset at the other address";
    one.fill(pattern("C"));
    EXPECT_TRUE(copy_reads(two, pattern("C")));
    two.fill(pattern("D"));
    EXPECT_TRUE(kernel_reads(one, pattern("D")));
    me.signal("D written");
  });
  scenario.run(20s);
}

// Without the fence the value would be undefined, so the kernel has the fence.
// With the fence it reads the value that the same thread wrote.
TEST(VmmAccess, OneKernelNeedsAFenceBetweenAliases) {
  covers("VMM-37");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk =
        Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
    const Mapping one(chunk, bytes), two(chunk, bytes);
    one.fill(pattern("before"));
    note_call("write_and_read_alias<<<>>>");
    write_and_read_alias<<<1, 1>>>(one.data, two.data);
    CALL(cudaGetLastError());
    CALL(cudaDeviceSynchronize());
    const uint32_t seen = last_loaded();
    me.observe(seen == kLanded ? "with fence.proxy.alias: the new value"
                               : "with fence.proxy.alias: another value");
    uint32_t word = 0;
    CALL(cudaMemcpy(&word, two.data, sizeof word, cudaMemcpyDefault));
    EXPECT_EQ(word, kLanded) << "after the kernel";
  });
  scenario.run(20s);
}

// --- what an address or a handle says of itself -----------------------------

static CUmemAllocationProp properties_over(const Chunk& chunk,
                                           unsigned char byte) {
  CUmemAllocationProp found;
  std::memset(&found, byte, sizeof found);
  CALL(DRIVER(cuMemGetAllocationPropertiesFromHandle)(&found, chunk.handle()));
  return found;
}

// Judges that a query writes every field: two queries agree, although there
// were other bytes before.
static void expect_whole_properties(const Chunk& chunk) {
  const CUmemAllocationProp one = properties_over(chunk, 0x5A);
  const CUmemAllocationProp two = properties_over(chunk, 0xA5);
  EXPECT_EQ(one.type, two.type);
  EXPECT_EQ(one.requestedHandleTypes, two.requestedHandleTypes);
  EXPECT_EQ(one.location.type, two.location.type);
  EXPECT_EQ(one.location.id, two.location.id);
  EXPECT_EQ(one.allocFlags.compressionType, two.allocFlags.compressionType);
  EXPECT_EQ(one.allocFlags.gpuDirectRDMACapable,
            two.allocFlags.gpuDirectRDMACapable);
  EXPECT_EQ(one.allocFlags.usage, two.allocFlags.usage);
}

TEST(VmmAccess, AnImportedHandleKnowsItsProperties) {
  covers("VMM-31");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_chunk(pattern("exporter")));
  scenario.role("importer", [](Role& me) {
    const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    const Chunk shared = Chunk::create(granule());
    const Chunk later =
        Chunk::create(granule(), chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
    EXPECT_EQ(shared.properties().requestedHandleTypes,
              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    const CUmemAllocationProp found = chunk.properties();
    EXPECT_EQ(found.type, CU_MEM_ALLOCATION_TYPE_PINNED);
    EXPECT_EQ(found.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    EXPECT_EQ(found.location.id, 0);
    expect_whole_properties(chunk);
    expect_whole_properties(shared);
    // A handle of this process has the properties with which it was created.
    for (const auto types :
         {CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_HANDLE_TYPE_NONE}) {
      const CUmemAllocationProp own =
          Chunk::create(granule(), chunk_of(0, types)).properties();
      EXPECT_EQ(own.requestedHandleTypes, types);
      EXPECT_EQ(own.allocFlags.compressionType, CU_MEM_ALLOCATION_COMP_NONE);
    }
    shared.descriptor();
    const CUmemAllocationProp told = shared.properties();
    EXPECT_EQ(told.type, CU_MEM_ALLOCATION_TYPE_PINNED) << "was exported";
    EXPECT_EQ(told.location.type, CU_MEM_LOCATION_TYPE_DEVICE)
        << "was exported";
    EXPECT_EQ(told.requestedHandleTypes,
              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        << "was exported";
    me.observe("requestedHandleTypes of an import: " +
               std::to_string(found.requestedHandleTypes));
    me.signal("done");
  });
  scenario.run(20s);
}

TEST(VmmAccess, TheLocationIsInTheImportersNumbering) {
  covers("VMM-31");
  needs(gpus(2), vmm_fd);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes, chunk_of(0));
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    me.send("uuid", uuid_of(0));
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("done");
  });
  scenario
      .role("importer",
            [](Role& me) {
              const auto uuid = me.receive<std::array<char, 16>>("uuid");
              const Chunk chunk =
                  Chunk::import(me.receive_descriptor("descriptor"));
              const CUmemAllocationProp found = chunk.properties();
              EXPECT_EQ(found.type, CU_MEM_ALLOCATION_TYPE_PINNED);
              EXPECT_EQ(found.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
              EXPECT_EQ(found.location.id, 1);
              EXPECT_EQ(uuid_of(1), uuid);
              CALL(cudaSetDevice(1));
              const Mapping mapping(chunk, granule(), kReadWrite, 1);
              EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
              EXPECT_EQ(pointer_attribute<int>(
                            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, mapping.data),
                        1);
              me.observe("requestedHandleTypes of an import: " +
                         std::to_string(found.requestedHandleTypes));
              me.signal("done");
            })
      .env("CUDA_VISIBLE_DEVICES", visible_gpus({1, 0}));
  scenario.run(20s);
}

// Judges that an address returns the handle of the memory that is mapped there
// now, not of the memory that was there before.
static void expect_handle_of_new_memory(const Reservation& range, size_t offset,
                                        const Chunk& next,
                                        const Chunk& before) {
  const size_t bytes = granule();
  range.unmap(offset, bytes);
  Sentinel<CUmemGenericAllocationHandle> none, found;
  range.map(offset, bytes, next);
  EXPECT_SUCCESS(DRIVER(cuMemRetainAllocationHandle)(
      found.out(), pointer_to(range.at(offset))));
  EXPECT_EQ(found.value, next.handle());
  EXPECT_SUCCESS(DRIVER(cuMemRelease)(found.value));
  range.unmap(offset, bytes);
  EXPECT_REFUSED(DRIVER(cuMemRetainAllocationHandle)(
                     none.out(), pointer_to(range.at(offset))),
                 CUDA_ERROR_INVALID_VALUE)
      << "after it was unmapped";
  range.map(offset, bytes, before);
}

static Chunk filled_chunk() {
  Chunk chunk = Chunk::create(granule());
  Mapping(chunk, granule()).fill(pattern("other"));
  return chunk;
}

// Judges the properties of a handle of filled_chunk(), and sends its
// descriptor.
static void send_with_properties(Role& me, const Chunk& held) {
  const CUmemAllocationProp told = held.properties();
  EXPECT_EQ(told.type, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(told.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(told.location.id, 0);
  EXPECT_EQ(told.requestedHandleTypes,
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  me.send_descriptor("retained", held.descriptor().get());
}

// An importer that reads what was retained. It has two imports of this memory,
// and a mapping of each import names its own handle.
static void reads_what_was_retained(Role& me) {
  const Descriptor descriptor = me.receive_descriptor("retained");
  const Chunk imports[] = {Chunk::import(descriptor),
                           Chunk::import(descriptor)};
  const Mapping first(imports[0], granule()), second(imports[1], granule());
  EXPECT_TRUE(kernel_reads(first, pattern("other")));
  for (const int i : {1, 0}) {
    Sentinel<CUmemGenericAllocationHandle> found;
    EXPECT_SUCCESS(DRIVER(cuMemRetainAllocationHandle)(
        found.out(), i == 0 ? first.data : second.data));
    EXPECT_EQ(found.result(), imports[i].handle()) << "import " << i;
    EXPECT_SUCCESS(DRIVER(cuMemRelease)(found.value));
  }
  EXPECT_TRUE(kernel_reads(second, pattern("other")));
}

// Every granule of a mapping names the handle, not only the first one. Other
// memory is mapped directly after it; the last byte does not name this memory.
static void expect_handle_everywhere(const Chunk& chunk, size_t bytes) {
  const Chunk next = Chunk::create(granule());
  const Reservation range(bytes + granule());
  range.map(0, bytes, chunk);
  range.map(bytes, granule(), next);
  for (const size_t end : {granule() + 1, 2 * granule() + 1, bytes}) {
    Sentinel<CUmemGenericAllocationHandle> found;
    EXPECT_SUCCESS(DRIVER(cuMemRetainAllocationHandle)(
        found.out(), pointer_to(range.at(end - 1))))
        << "byte " << end - 1;
    EXPECT_EQ(found.result(), chunk.handle()) << "byte " << end - 1;
    EXPECT_SUCCESS(DRIVER(cuMemRelease)(found.value));
  }
  range.unmap(bytes, granule());
  range.unmap(0, bytes);
}

TEST(VmmAccess, AnyAddressOfAMappingNamesItsHandle) {
  covers("VMM-32");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends_chunk(pattern("exporter")));
  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    Chunk other = filled_chunk();
    const Reservation range(3 * bytes);
    range.map(0, bytes, chunk);
    range.map(2 * bytes, bytes, other);
    allow(range.at(0), bytes);
    const auto retained = [&](size_t offset) {
      SCOPED_TRACE("offset " + std::to_string(offset));
      Sentinel<CUmemGenericAllocationHandle> found;
      CALL(DRIVER(cuMemRetainAllocationHandle)(found.out(),
                                               pointer_to(range.at(offset))));
      EXPECT_EQ(found.result(),
                offset < bytes ? chunk.handle() : other.handle());
      return found.result();
    };
    CUmemGenericAllocationHandle kept = retained(2 * bytes);
    for (const size_t offset : {size_t{0}, bytes / 2, bytes - 1}) {
      CALL(DRIVER(cuMemRelease)(kept));
      kept = retained(offset);
    }
    Sentinel<CUmemGenericAllocationHandle> none;
    EXPECT_REFUSED(DRIVER(cuMemRetainAllocationHandle)(
                       none.out(), pointer_to(range.at(bytes))),
                   CUDA_ERROR_INVALID_VALUE);
    EXPECT_TRUE(context_is_usable());

    expect_handle_of_new_memory(range, 2 * bytes, chunk, other);
    expect_handle_everywhere(Chunk::create(3 * bytes), 3 * bytes);

    // An address of the mapping still returns a handle that was released. This
    // handle has its properties, and can be exported.
    const CUmemGenericAllocationHandle released = other.handle();
    other.release();
    Sentinel<CUmemGenericAllocationHandle> back;
    EXPECT_SUCCESS(DRIVER(cuMemRetainAllocationHandle)(
        back.out(), pointer_to(range.at(2 * bytes))));
    EXPECT_EQ(back.result(), released);
    send_with_properties(me, Chunk(back.value));

    // Each retained handle is a separate reference. `kept` stays valid after
    // the handle of the import and the other reference have been released.
    const CUmemGenericAllocationHandle other_reference = retained(0);
    range.unmap(2 * bytes, bytes);
    range.unmap(0, bytes);
    chunk.release();
    EXPECT_SUCCESS(DRIVER(cuMemRelease)(other_reference));
    const Mapping again(Chunk(kept), bytes);
    EXPECT_TRUE(kernel_reads(again, pattern("exporter")));
    me.signal("done");
  });
  scenario.role("reader", reads_what_was_retained);
  scenario.run(20s);
}

// An exporter that creates memory with gpuDirectRDMACapable and lends it. It
// also creates memory with compression.
static void creates_memory_with_flags(Role& me) {
  const size_t bytes = granule();
  const int rdma =
      attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  CUmemAllocationProp wanted = chunk_of(0);
  wanted.allocFlags.gpuDirectRDMACapable = 1;
  CUmemGenericAllocationHandle handle = 0;
  const CUresult code = NOTED(DRIVER(cuMemCreate)(&handle, bytes, &wanted, 0));
  me.observe("RDMA attribute " + std::to_string(rdma) +
             ", cuMemCreate with gpuDirectRDMACapable: " + name_of(code));
  if (rdma == 1) {
    EXPECT_EQ(code, CUDA_SUCCESS);
  }
  // If the creation is refused, the exporter lends plain memory instead.
  Chunk chunk =
      code == CUDA_SUCCESS ? Chunk(handle) : Chunk::create(bytes, chunk_of(0));
  const Mapping mapping(chunk, bytes);
  int capable = -1;
  CALL(DRIVER(cuPointerGetAttribute)(
      &capable, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
      mapping.address()));
  if (rdma == 1)
    EXPECT_EQ(capable, 1);
  else
    me.observe("IS_GPU_DIRECT_RDMA_CAPABLE " + std::to_string(capable));
  mapping.fill(pattern("exporter"));
  me.send_descriptor("descriptor", chunk.descriptor().get());

  // Compression is a hint: the test queries whether the memory is compressed.
  const int compresses =
      attribute(CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED);
  CUmemAllocationProp compressible = chunk_of(0);
  compressible.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
  CUmemGenericAllocationHandle compressed = 0;
  const CUresult created = NOTED(DRIVER(cuMemCreate)(
      &compressed, granule(compressible), &compressible, 0));
  me.observe("compression attribute " + std::to_string(compresses) +
             ", cuMemCreate: " + name_of(created));
  if (created == CUDA_SUCCESS) {
    const Chunk hinted(compressed);
    me.observe("compression that was given: " +
               std::to_string(hinted.properties().allocFlags.compressionType));
  }
  me.wait("done");
}

TEST(VmmAccess, FlagsAreRequests) {
  covers("VMM-39");
  needs(gpus(1), vmm_fd);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", creates_memory_with_flags);

  scenario.role("importer", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    const Mapping mapping(chunk, bytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    int capable = -1;
    CALL(DRIVER(cuPointerGetAttribute)(
        &capable, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
        mapping.address()));
    const auto flags = chunk.properties().allocFlags;
    me.observe("in the importer: IS_GPU_DIRECT_RDMA_CAPABLE " +
               std::to_string(capable) + ", gpuDirectRDMACapable " +
               std::to_string(flags.gpuDirectRDMACapable) +
               ", compressionType " + std::to_string(flags.compressionType));
    me.signal("done");
  });
  scenario.run(20s);
}

TEST(VmmAccess, ADmaBufIsAnotherExport) {
  covers("VMM-42");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk =
        Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    const auto export_range = [&](CUdeviceptr address, size_t size) {
      Sentinel<int> number;
      const CUresult code = NOTED(DRIVER(cuMemGetHandleForAddressRange)(
          number.out(), address, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
      if (code == CUDA_SUCCESS) {
        const Descriptor descriptor(number.result());
        EXPECT_NE(fcntl(descriptor.get(), F_GETFD), -1);
      }
      return code;
    };
    me.observe(
        "DMA_BUF_SUPPORTED " +
        std::to_string(attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)) +
        ", cuMemGetHandleForAddressRange: " +
        name_of(export_range(mapping.address(), bytes)));
    const CUresult unaligned = export_range(mapping.address() + 16, bytes / 2);
    me.observe("of an unaligned range: " + name_of(unaligned));
    EXPECT_NE(unaligned, CUDA_SUCCESS);
    EXPECT_NE(export_range(mapping.address(), bytes - 16), CUDA_SUCCESS)
        << "a size that is no multiple of a page";
    const Reservation range(2 * bytes);
    range.map(0, bytes, chunk);
    EXPECT_NE(export_range(range.at(0), range.bytes()), CUDA_SUCCESS)
        << "a range with a hole";
    range.unmap(0, bytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}

// --- other devices ----------------------------------------------------------

// Access for reading only belongs to one GPU. GPU 1 is current. A write of it
// must fault, and its context is lost.
static void expect_one_gpu_only_reads(Role& me, const Mapped& mapped,
                                      size_t bytes) {
  const CUmemAccessDesc list[] = {access_for(0), access_for(1, kRead)};
  const CUresult code =
      NOTED(DRIVER(cuMemSetAccess)(mapped.address(), bytes, list, 2));
  if (code == CUDA_ERROR_NOT_SUPPORTED) return;
  CALL(code);
  EXPECT_EQ(access_at(mapped.address(), 0), 3u);
  EXPECT_EQ(access_at(mapped.address(), 1), 1u) << "GPU 1 may only read";
  EXPECT_EQ(access_told(mapped.address()), 1u) << "GPU 1 is current";
  EXPECT_TRUE(
      kernel_reads(words_at(mapped.address(), bytes), pattern("by GPU 1")));
  CALL(set_access(mapped.address(), bytes, access_for(1)));
  CALL(set_access(mapped.address(), bytes, access_for(1, kRead)));
  store<<<1, 1>>>(pointer_to(mapped.address()));
  expect_fault(me, "store<<<>>> by GPU 1, which may only read");
}

TEST(VmmAccess, AnotherDeviceNeedsNothingButSetAccess) {
  covers("VMM-33");
  needs(gpus(2), vmm_fd, peer_access);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    const size_t bytes = granule();
    const Chunk chunk = Chunk::create(bytes, chunk_of(0));
    const Mapping mapping(chunk, bytes);
    mapping.fill(pattern("exporter"));
    CALL(cudaSetDevice(1));  // an export works with any GPU current
    me.send_descriptor("descriptor", chunk.descriptor().get());
    CALL(cudaSetDevice(0));
    me.wait("done");
    EXPECT_TRUE(kernel_reads(mapping, pattern("by GPU 1")));
  });
  scenario.role("importer", [](Role& me) {
    CALL(cudaSetDevice(1));
    const size_t bytes = granule();
    const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
    const Mapping mapping(chunk, bytes, kReadWrite, 1);
    EXPECT_EQ(access_at(mapping.address(), 1), 3u);
    EXPECT_EQ(access_at(mapping.address(), 0), kNone);
    // Peer access, and its end, do not change what cuMemSetAccess has given.
    EXPECT_SUCCESS(cudaDeviceEnablePeerAccess(0, 0));
    EXPECT_SUCCESS(cudaDeviceDisablePeerAccess(0));
    EXPECT_EQ(access_at(mapping.address(), 1), 3u);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    EXPECT_TRUE(copy_reads(mapping, pattern("exporter")));
    CALL(cudaMemset(mapping.data, 0x3C, bytes));
    uint32_t word = 0;
    CALL(cudaMemcpy(&word, mapping.data, sizeof word, cudaMemcpyDefault));
    EXPECT_EQ(word, 0x3C3C3C3Cu) << "set by GPU 1";
    for (const int device : {0, 1})  // GPU 1 is current
      EXPECT_EQ(Chunk::create(bytes, chunk_of(device)).properties().location.id,
                device);
    mapping.fill(pattern("by GPU 1"));
    EXPECT_SUCCESS(set_access(mapping.address(), bytes, access_for(0)));
    EXPECT_EQ(access_at(mapping.address(), 0), 3u);
    EXPECT_EQ(access_at(mapping.address(), 1), 3u) << "given before";
    const DeviceBuffer copy(bytes);  // both GPUs of a peer copy need access
    CALL(cudaMemcpyPeerAsync(copy.data, 1, mapping.data, 0, bytes, nullptr));
    EXPECT_TRUE(kernel_reads(copy, pattern("by GPU 1")));
    const Mapped both(chunk, bytes);
    const CUmemAccessDesc list[] = {access_for(0), access_for(1)};
    EXPECT_SUCCESS(DRIVER(cuMemSetAccess)(both.address(), bytes, list, 2));
    for (const int device : {0, 1})
      EXPECT_EQ(access_at(both.address(), device), 3u) << "GPU " << device;
    const CUmemAccessDesc unlike[] = {
        access_for(0), access_for(1, CU_MEM_ACCESS_FLAGS_PROT_NONE)};
    EXPECT_SUCCESS(DRIVER(cuMemSetAccess)(both.address(), bytes, unlike, 2));
    EXPECT_EQ(access_at(both.address(), 0), 3u);
    EXPECT_EQ(access_at(both.address(), 1), kNone) << "taken by the same list";
    expect_one_gpu_only_reads(me, both, bytes);
    me.signal("done");
  });
  scenario.run(20s);
}

// An importer of memory of GPU `on`. First the other GPU and then GPU `on` uses
// the memory.
static void uses_memory_by_both_gpus(Role& me, int on) {
  const size_t bytes = granule(chunk_of(on));
  const Chunk chunk = Chunk::import(me.receive_descriptor("descriptor"));
  EXPECT_EQ(chunk.properties().location.id, on);
  for (const int by : {1 - on, on}) {
    SCOPED_TRACE("by GPU " + std::to_string(by));
    CALL(cudaSetDevice(by));
    const Mapping mapping(chunk, bytes, kReadWrite, by);
    EXPECT_EQ(pointer_attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                     mapping.data),
              on);
    EXPECT_TRUE(kernel_reads(
        mapping, pattern(by == on ? "by the other GPU" : "exporter")));
    mapping.fill(pattern(by == on ? "importer" : "by the other GPU"));
  }
  me.signal("done");
}

TEST(VmmAccess, MemoryOfEitherGpuIsShared) {
  covers("VMM-33");
  needs(gpus(2), vmm_fd, peer_access);
  for (const int on : {0, 1}) {
    SCOPED_TRACE("memory of GPU " + std::to_string(on));
    Scenario scenario(Scenario::kShared);
    scenario.role("exporter", [on](Role& me) {
      CALL(cudaSetDevice(on));
      const size_t bytes = granule(chunk_of(on));
      const Chunk chunk = Chunk::create(bytes, chunk_of(on));
      const Mapping mapping(chunk, bytes, kReadWrite, on);
      mapping.fill(pattern("exporter"));
      me.send_descriptor("descriptor", chunk.descriptor().get());
      me.wait("done");
      EXPECT_TRUE(kernel_reads(mapping, pattern("importer")));
    });
    scenario.role("importer",
                  [on](Role& me) { uses_memory_by_both_gpus(me, on); });
    scenario.run(20s);
  }
}

TEST(VmmAccess, UnsuitableLocationsGetNoAccess) {
  covers("VMM-34");
  needs(gpus(1), vmm);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role&) {
    const size_t bytes = granule();
    const Mapped mapped(
        Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE)), bytes);
    const auto expect_refusal = [&](const char* what,
                                    CUmemLocationType location, int id) {
      SCOPED_TRACE(what);
      CUmemAccessDesc access{};
      access.location = {location, id};
      access.flags = kReadWrite;
      EXPECT_REFUSED(
          DRIVER(cuMemSetAccess)(mapped.address(), bytes, &access, 1),
          CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE,
          CUDA_ERROR_NOT_SUPPORTED);
    };
    expect_refusal("an ordinal that is too large", CU_MEM_LOCATION_TYPE_DEVICE,
                   kNoSuchDevice);
    expect_refusal("a negative ordinal", CU_MEM_LOCATION_TYPE_DEVICE, -1);
    expect_refusal("a host NUMA node, for memory of a device",
                   CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
    int count = 0;
    CALL(cudaGetDeviceCount(&count));
    expect_refusal("the ordinal after the last one",
                   CU_MEM_LOCATION_TYPE_DEVICE, count);
    EXPECT_EQ(access_at(mapped.address()), kNone);
    const CUmemAccessDesc list[] = {access_for(0), access_for(kNoSuchDevice)};
    EXPECT_REFUSED(DRIVER(cuMemSetAccess)(mapped.address(), bytes, list, 2),
                   CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE,
                   CUDA_ERROR_NOT_SUPPORTED)
        << "the second location of a list";
    EXPECT_TRUE(context_is_usable());
    allow(mapped.address(), bytes);
    const Words words = words_at(mapped.address(), bytes);
    words.fill(pattern("exporter"));
    expect_refusal("memory with access", CU_MEM_LOCATION_TYPE_DEVICE,
                   kNoSuchDevice);
    EXPECT_EQ(access_at(mapped.address()), 3u) << "after the refusal";
    EXPECT_TRUE(kernel_reads(words, pattern("exporter")));
  });
  scenario.run(20s);
}

TEST(VmmAccess, OnlyPeersGetAccess) {
  covers("VMM-34");
  needs(gpus(2), vmm);
  Scenario scenario;
  scenario.role("exporter", [](Role& me) {
    int peers = 0;
    CALL(cudaDeviceCanAccessPeer(&peers, 1, 0));
    const size_t bytes = granule();
    const Mapped mapped(
        Chunk::create(bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE)), bytes);
    const CUmemAccessDesc access = access_for(1);
    if (peers == 1) return me.not_applicable("GPU 1 reaches GPU 0");
    EXPECT_REFUSED(DRIVER(cuMemSetAccess)(mapped.address(), bytes, &access, 1),
                   CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE,
                   CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(access_at(mapped.address(), 1), kNone);
    EXPECT_TRUE(context_is_usable());
  });
  scenario.run(20s);
}
