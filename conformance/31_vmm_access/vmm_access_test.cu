// A mapping and its access are two things, and each process sets its own
// access. Mirror of samples/31_vmm_access.
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "conformance/31_vmm_access/vmm_access_test.h"
#include "harness/scenario/cuda.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

__device__ uint32_t loaded;

__global__ void load(const volatile uint32_t* data) { loaded = data[0]; }

__global__ void store(volatile uint32_t* data) { data[0] = kLanded; }

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

}  // namespace

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
  EXPECT_READS(alias, pattern("alias"));
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
    EXPECT_READS(words, pattern("exporter"));

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
    EXPECT_READS(beside, pattern("beside"));
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
  EXPECT_READS(words, pattern("raised"));
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
  EXPECT_READS(words, pattern("exporter"));
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
    EXPECT_READS(mapping, pattern("exporter"));
  });

  scenario.role("importer", uses_read_only_memory)
      .in_new_process();  // at the end its context is lost
  scenario.run_inputs("importer", kReadOnlyUses, 20s);
}

// The first and the last granule of three are mapped. Tries to set access from
// one granule to another, with a hole between them or at an end. The caller
// must not do this, and no sentence says that it is refused. A call that
// succeeds has set the flags of all memory of the range; a refused one has set
// none.
static void set_access_with_a_hole(Role& me, const Reservation& range,
                                   const char* what, size_t from, size_t to) {
  const size_t bytes = granule();
  me.signal(what);
  const CUmemAccessDesc none = access_for(0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  for (const size_t k : {0, 2})
    EXPECT_SUCCESS(set_access(range.at(k * bytes), bytes, none));
  const CUresult code =
      set_access(range.at(from * bytes), (to - from) * bytes, access_for(0));
  me.observe(std::string(what) + ": " + name_of(code));
  for (const size_t k : {0, 2}) {
    const bool is_set = code == CUDA_SUCCESS && from <= k && k < to;
    EXPECT_EQ(access_at(range.at(k * bytes)), is_set ? 3u : kNone)
        << what << ", granule " << k << " after " << name_of(code);
  }
}

TEST(VmmAccess, ARangeWithAHoleHasOneAnswer) {
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
    set_access_with_a_hole(me, range, "a hole in the middle", 0, 3);
    set_access_with_a_hole(me, range, "a hole at the end", 0, 2);
    set_access_with_a_hole(me, range, "a hole at the beginning", 1, 3);
    set_access_with_a_hole(me, range, "nothing but a hole", 1, 2);
    EXPECT_TRUE(context_is_usable());

    allow(range.at(0), bytes);
    allow(range.at(2 * bytes), bytes);
    words_at(range.at(0), bytes).fill(pattern("whole"));
    EXPECT_READS(words_at(range.at(2 * bytes), bytes), pattern("whole"));
    // The hole stays a hole, although there was memory for some time.
    range.map(bytes, bytes, chunk);
    allow(range.at(0), range.bytes());
    range.unmap(bytes, bytes);
    set_access_with_a_hole(me, range, "a hole where memory was mapped", 0, 3);
    range.unmap(0, bytes);
    range.unmap(2 * bytes, bytes);

    // The documentation speaks of "all allocations" of the range, and does not
    // describe half of an allocation.
    const Chunk wide =
        Chunk::create(2 * bytes, chunk_of(0, CU_MEM_HANDLE_TYPE_NONE));
    const Mapped mapped(wide, 2 * bytes);
    me.observe("access to one half of a mapping: " +
               name_of(set_access(mapped.address(), bytes, access_for(0))));
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
