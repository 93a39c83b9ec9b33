// What cannot be exported, what cannot be opened, and that a refusal changes
// nothing.
// Mirror of samples/05_legacy_refusals.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <csignal>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/cuda.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;
constexpr size_t kInside = 4096;  // the offset of an interior pointer
constexpr size_t kSmall = 4096;   // shares a block with others
constexpr unsigned kLazy = cudaIpcMemLazyEnablePeerAccess;
constexpr int kRandomHandles = 1000;
constexpr size_t kHandleBytes = sizeof(cudaIpcMemHandle_t);

enum Api { kRuntime, kDriver };
constexpr Api kApis[] = {kRuntime, kDriver};
constexpr const char* kOpen[] = {"cudaIpcOpenMemHandle", "cuIpcOpenMemHandle"};

// The documented refusals of the two functions that open a handle.
const std::vector<cudaError_t> kRuntimeRefusals = {
    cudaErrorMapBufferObjectFailed, cudaErrorInvalidResourceHandle,
    cudaErrorDeviceUninitialized,   cudaErrorTooManyPeers,
    cudaErrorNotSupported,          cudaErrorInvalidValue};
const std::vector<CUresult> kDriverRefusals = {
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_MAP_FAILED,
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_TOO_MANY_PEERS,
    CUDA_ERROR_INVALID_VALUE};

// Tries to open a handle by one of the APIs; *opened is the address that the
// call wrote.
Outcome open_with(Api api, const cudaIpcMemHandle_t& handle, unsigned flags,
                  void** opened) {
  if (api == kRuntime)
    return outcome_of(cudaIpcOpenMemHandle(opened, handle, flags),
                      kRuntimeRefusals);
  CUdeviceptr address = address_of(*opened);
  const CUresult code = DRIVER(cuIpcOpenMemHandle)(
      &address, same_bytes<CUipcMemHandle>(handle), flags);
  *opened = reinterpret_cast<void*>(address);
  return outcome_of(code, kDriverRefusals);
}

// Judges that neither API opens this handle.
void expect_no_open(Role& me, const char* table, const std::string& input,
                    const cudaIpcMemHandle_t& handle) {
  me.signal(input);
  for (const Api api : kApis) {
    note_call(kOpen[api]);
    Sentinel<void*> pointer;
    const Outcome outcome = open_with(api, handle, kLazy, pointer.out());
    me.tabulate(kOpen[api] + std::string(table), input, outcome);
    expected_but_saw("a documented refusal", outcome.code);
    EXPECT_EQ(outcome.kind, Outcome::kDocumentedRefusal)
        << kOpen[api] << " of " << input << ": " << outcome.code;
    note_touched(me, pointer, kOpen[api]);
  }
}

cudaIpcMemHandle_t handle_of(unsigned char byte) {
  cudaIpcMemHandle_t handle;
  std::memset(&handle, byte, sizeof handle);
  return handle;
}

// What can be wrong with a handle: each byte can be inverted, or only these
// first bytes are kept, and the others are zero.
constexpr size_t kKept[] = {4, 8, 16, 32};
constexpr size_t kDamages = kHandleBytes + std::size(kKept);

std::string name_of_damage(size_t damage) {
  return damage < kHandleBytes ? "byte " + std::to_string(damage) + " inverted"
                               : std::to_string(kKept[damage - kHandleBytes]) +
                                     " bytes of a handle";
}

cudaIpcMemHandle_t damaged(cudaIpcMemHandle_t handle, size_t damage) {
  if (damage < kHandleBytes)
    handle.reserved[damage] = static_cast<char>(~handle.reserved[damage]);
  else
    std::fill(handle.reserved + kKept[damage - kHandleBytes],
              std::end(handle.reserved), '\0');
  return handle;
}

// Tries to open a damaged handle by both APIs, and notes the results.
void open_damaged(Role& me, const char* table, const cudaIpcMemHandle_t& good,
                  size_t damage) {
  for (const Api api : kApis) {
    note_call(kOpen[api]);
    void* opened = nullptr;
    const Outcome outcome =
        open_with(api, damaged(good, damage), kLazy, &opened);
    me.tabulate(kOpen[api] + std::string(table), name_of_damage(damage),
                outcome);
    if (outcome.kind == Outcome::kWrongSuccess)
      CALL(cudaIpcCloseMemHandle(opened));
  }
}

// Tries to open a damaged handle by the runtime API. If the handle opens, reads
// one word of the memory, and notes a read that fails or gives other values
// than the lent memory has. Returns false only if the read fails, because the
// context is then lost.
bool examine_damaged(Role& me, const cudaIpcMemHandle_t& good, size_t damage) {
  const std::string name = name_of_damage(damage);
  void* opened = nullptr;
  if (NOTED(cudaIpcOpenMemHandle(&opened, damaged(good, damage), kLazy)) !=
      cudaSuccess) {
    cudaGetLastError();
    return true;
  }
  uint32_t word = 0;
  const cudaError_t code =
      NOTED(cudaMemcpy(&word, opened, sizeof word, cudaMemcpyDefault));
  if (code != cudaSuccess) {
    me.observe(name + ": opens, and looking at it is " + name_of(code));
    return false;
  }
  if (word != pattern("exporter").at(0))
    me.observe(name + ": opens something else");
  CALL(cudaIpcCloseMemHandle(opened));
  return true;
}

}  // namespace

TEST(LegacyRefusals, OtherFlagsHarmNothing) {
  covers("LMEM-20");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));
    const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
    for (const Api api : kApis)
      for (const unsigned flags : {0u, 2u, 123u, 0xffffffffu}) {
        note_call(kOpen[api]);
        void* opened = nullptr;
        const Outcome outcome = open_with(api, handle, flags, &opened);
        me.tabulate(std::string(kOpen[api]) + " with other flags",
                    std::to_string(flags), outcome);
        if (outcome.kind == Outcome::kWrongSuccess)
          EXPECT_SUCCESS(cudaIpcCloseMemHandle(opened));
      }
    EXPECT_TRUE(context_is_usable());
    LegacyMapping mapping(handle, kBytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    mapping.close();
    me.signal("closed");
  });
  scenario.run(20s);
}

// The caller must not export these pointers, and no sentence says that an
// export is refused. Whatever the answers are, a right export afterwards works.
TEST(LegacyRefusals, AnExportOfAnInvalidPointerHarmsNothing) {
  covers("LMEM-21");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    // Small allocations share a block of memory, which stays in use here.
    void* small[3] = {};
    for (void*& each : small) CALL(cudaMalloc(&each, 256));
    CALL(cudaFree(small[1]));
    // No later allocation gets the freed addresses or those after the buffer.
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    void *freed = nullptr, *lent = nullptr;
    CALL(cudaMalloc(&freed, kBytes));
    CALL(cudaMalloc(&lent, kBytes));
    cudaIpcMemHandle_t of_lent;
    CALL(cudaIpcGetMemHandle(&of_lent, lent));
    CALL(cudaFree(lent));
    CALL(cudaFree(freed));
    int on_the_stack = 0;
    std::vector<std::pair<const char*, void*>> pointers = {
        {"null", nullptr},
        {"a freed pointer", freed},
        {"an address inside freed memory",
         static_cast<char*>(freed) + kBytes / 2},
        {"a freed pointer that was exported before", lent},
        {"a freed pointer between two in use", small[1]},
        {"one past the end", buffer.data + buffer.count},
        {"a host pointer", &on_the_stack}};
    std::optional<Reservation> reserved;
    if (attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 1)
      pointers.emplace_back(
          "reserved addresses",
          words_at(reserved.emplace(granule()).at(0), granule()).data);
    for (const auto& [what, pointer] : pointers) {
      me.signal(what);
      Sentinel<cudaIpcMemHandle_t> handle;
      observe_code(me, std::string("an export of ") + what,
                   NOTED(cudaIpcGetMemHandle(handle.out(), pointer)));
      Sentinel<CUipcMemHandle> same;
      me.observe(std::string("an export of ") + what + ": " +
                 name_of(NOTED(DRIVER(cuIpcGetMemHandle)(
                     same.out(), address_of(pointer)))));
      EXPECT_TRUE(context_is_usable()) << what;
    }
    me.send("handle", buffer.legacy_handle());
    me.wait("closed");
    CALL(cudaFree(small[0]));
    CALL(cudaFree(small[2]));
  });
  scenario.role("importer", borrows(pattern("exporter"), kBytes));
  scenario.run(20s);
}

static constexpr char kNullTable[] = "a null argument";

// What the exporter lends to the role that makes the calls.
struct Lent {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
};

static const std::vector<cudaError_t> kNoMemoryHandle = {
    cudaErrorInvalidValue, cudaErrorMapBufferObjectFailed,
    cudaErrorNotSupported, cudaErrorMemoryAllocation};
static const std::vector<cudaError_t> kNoEventHandle = {
    cudaErrorInvalidValue, cudaErrorInvalidResourceHandle,
    cudaErrorMemoryAllocation, cudaErrorMapBufferObjectFailed,
    cudaErrorNotSupported};

// One call with at least one null argument; its other arguments are correct.
struct NullCall {
  const char* name;
  std::function<Outcome(void* own, cudaEvent_t event, const Lent& lent)> call;
};

static const std::vector<NullCall> kNullCalls = {
    {"cudaIpcGetMemHandle",
     [](void* own, cudaEvent_t, const Lent&) {
       return outcome_of(cudaIpcGetMemHandle(nullptr, own), kNoMemoryHandle);
     }},
    {"cudaIpcGetMemHandle of null",
     [](void*, cudaEvent_t, const Lent&) {
       return outcome_of(cudaIpcGetMemHandle(nullptr, nullptr),
                         kNoMemoryHandle);
     }},
    {"cuIpcGetMemHandle",
     [](void* own, cudaEvent_t, const Lent&) {
       return outcome_of(DRIVER(cuIpcGetMemHandle)(nullptr, address_of(own)),
                         {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE,
                          CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_OUT_OF_MEMORY,
                          CUDA_ERROR_MAP_FAILED});
     }},
    {"cudaIpcOpenMemHandle",
     [](void*, cudaEvent_t, const Lent& lent) {
       return outcome_of(cudaIpcOpenMemHandle(nullptr, lent.memory, kLazy),
                         kRuntimeRefusals);
     }},
    {"cuIpcOpenMemHandle",
     [](void*, cudaEvent_t, const Lent& lent) {
       return outcome_of(
           DRIVER(cuIpcOpenMemHandle)(
               nullptr, same_bytes<CUipcMemHandle>(lent.memory), kLazy),
           kDriverRefusals);
     }},
    {"cudaIpcGetEventHandle",
     [](void*, cudaEvent_t event, const Lent&) {
       return outcome_of(cudaIpcGetEventHandle(nullptr, event), kNoEventHandle);
     }},
    {"cudaIpcGetEventHandle of null",
     [](void*, cudaEvent_t, const Lent&) {
       cudaIpcEventHandle_t handle;
       return outcome_of(cudaIpcGetEventHandle(&handle, nullptr),
                         kNoEventHandle);
     }},
    {"cuIpcGetEventHandle",
     [](void*, cudaEvent_t event, const Lent&) {
       return outcome_of(DRIVER(cuIpcGetEventHandle)(nullptr, event),
                         {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE,
                          CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_OUT_OF_MEMORY,
                          CUDA_ERROR_MAP_FAILED});
     }},
    {"cudaIpcOpenEventHandle", [](void*, cudaEvent_t, const Lent& lent) {
       return outcome_of(cudaIpcOpenEventHandle(nullptr, lent.event),
                         {cudaErrorInvalidValue, cudaErrorMapBufferObjectFailed,
                          cudaErrorNotSupported, cudaErrorDeviceUninitialized});
     }}};

// Makes the remaining calls, until one of them ends the process.
static void passes_null(Role& me) {
  const auto lent = me.receive<Lent>("handles");
  while (const auto input = me.next_input()) {
    const NullCall& null = kNullCalls[*input];
    const DeviceBuffer own(kBytes);
    cudaEvent_t event = nullptr;
    CALL(cudaEventCreateWithFlags(
        &event, cudaEventDisableTiming | cudaEventInterprocess));
    note_call(null.name);
    me.tabulate(kNullTable, null.name, null.call(own.data, event, lent));
    CALL(cudaEventDestroy(event));
    EXPECT_TRUE(context_is_usable()) << null.name;
  }
}

TEST(LegacyRefusals, NullArgumentsHarmNobodyElse) {
  covers("LMEM-22");
  needs(gpus(1), legacy_memory, legacy_events);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    cudaEvent_t event = nullptr;
    CALL(cudaEventCreateWithFlags(
        &event, cudaEventDisableTiming | cudaEventInterprocess));
    Lent lent{buffer.legacy_handle(), {}};
    CALL(cudaIpcGetEventHandle(&lent.event, event));
    me.send("handles", lent);
    me.wait_until_done("importer");
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    CALL(cudaEventDestroy(event));
  });
  scenario.role("importer", passes_null)
      .may_end_by(SIGSEGV)
      .in_new_process();  // its state at the end is unknown

  std::vector<std::string> calls;
  for (const NullCall& null : kNullCalls) calls.emplace_back(null.name);
  for (const Death& death : scenario.run_inputs("importer", calls, 30s))
    tabulate(kNullTable, death.input, death.outcome);
}

TEST(LegacyRefusals, AnInteriorPointerMapsNoThirdPlace) {
  covers("LMEM-23");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    const cudaIpcMemHandle_t base = buffer.legacy_handle();
    cudaIpcMemHandle_t interior = handle_of(0);
    const cudaError_t code = NOTED(cudaIpcGetMemHandle(
        &interior, reinterpret_cast<char*>(buffer.data) + kInside));
    if (code != cudaSuccess) {
      me.observe("the export of an interior pointer is refused with " +
                 name_of(code));
      cudaGetLastError();
      interior = base;
    } else {
      me.observe(std::memcmp(&base, &interior, sizeof base) == 0
                     ? "an interior pointer has the handle of its base"
                     : "an interior pointer has a handle of its own");
    }
    EXPECT_TRUE(context_is_usable());
    me.send("base", base);
    me.send("interior", interior);
    me.wait("closed");
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
  });

  scenario.role("importer", [](Role& me) {
    LegacyMapping base(me.receive<cudaIpcMemHandle_t>("base"), kBytes);
    void* opened = nullptr;
    const cudaError_t code = NOTED(cudaIpcOpenMemHandle(
        &opened, me.receive<cudaIpcMemHandle_t>("interior"), kLazy));
    observe_code(me, "an open of the second handle", code);
    if (code == cudaSuccess) {
      uint32_t seen[2] = {};
      CALL(cudaMemcpy(seen, opened, sizeof seen, cudaMemcpyDefault));
      const auto begins_at = [&](size_t word) {
        const Pattern written = pattern("exporter");
        return seen[0] == written.at(word) && seen[1] == written.at(word + 1);
      };
      const bool lost = begins_at(0);
      const bool kept = begins_at(kInside / sizeof(uint32_t));
      EXPECT_TRUE(lost || kept) << "it maps neither the base nor the place";
      if (lost) me.observe("the importer gets the base: the offset is lost");
      if (kept) me.observe("the importer gets the very place");
      EXPECT_SUCCESS(cudaIpcCloseMemHandle(opened));
    }
    EXPECT_TRUE(kernel_reads(base, pattern("exporter")));
    base.close();
    me.signal("closed");
  });
  scenario.run(20s);
}

// An exporter of memory and of an event. Nobody may change the values in the
// memory.
static void lends_memory_and_an_event(Role& me) {
  const DeviceBuffer buffer(kBytes);
  buffer.fill(pattern("exporter"));
  cudaEvent_t event = nullptr;
  CALL(cudaEventCreateWithFlags(
      &event, cudaEventDisableTiming | cudaEventInterprocess));
  cudaIpcEventHandle_t of_event;
  CALL(cudaIpcGetEventHandle(&of_event, event));
  me.send("event", of_event);
  me.send("handle", buffer.legacy_handle());
  me.wait_until_done("importer");
  EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
  CALL(cudaEventDestroy(event));
}

TEST(LegacyRefusals, WhatNoExportMadeDoesNotOpen) {
  covers("LMEM-24");
  needs(gpus(1), legacy_memory, legacy_events);
  static constexpr char kTable[] = " of what no export made";
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", lends_memory_and_an_event);

  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));
    const auto good = me.receive<cudaIpcMemHandle_t>("handle");
    expect_no_open(me, kTable, "zeros", handle_of(0));
    expect_no_open(me, kTable, "0xff", handle_of(0xff));
    expect_no_open(me, kTable, "the handle of an event",
                   same_bytes<cudaIpcMemHandle_t>(
                       me.receive<cudaIpcEventHandle_t>("event")));
    EXPECT_TRUE(context_is_usable());

    me.signal("random bytes");
    std::mt19937 random(pattern("random handles").key);  // depends on the seed
    for (const Api api : kApis) {
      note_call(kOpen[api]);
      std::map<std::string, std::pair<Outcome, int>> seen;  // by code
      for (int i = 0; i < kRandomHandles; ++i) {
        cudaIpcMemHandle_t handle;
        for (char& byte : handle.reserved) byte = static_cast<char>(random());
        void* opened = nullptr;
        const Outcome outcome = open_with(api, handle, kLazy, &opened);
        seen.insert({outcome.code, {outcome, 0}}).first->second.second++;
        ASSERT_EQ(outcome.kind, Outcome::kDocumentedRefusal)
            << kOpen[api] << " of random handle " << i << ": " << outcome.code;
      }
      for (const auto& [code, found] : seen)
        me.tabulate(kOpen[api] + std::string(kTable),
                    "random bytes (" + std::to_string(found.second) + ")",
                    found.first);
    }

    EXPECT_TRUE(context_is_usable());
    LegacyMapping mapping(good, kBytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    mapping.close();
  });
  scenario.run(30s);
  tabulate_end(scenario, "importer", "an open" + std::string(kTable));
}

// What cudaMemPoolExportPointer writes has as many bytes as a handle.
TEST(LegacyRefusals, AnExportedPointerOfAPoolDoesNotOpen) {
  covers("LMEM-24");
  needs(gpus(1), legacy_memory, pool_fd);
  static_assert(sizeof(cudaMemPoolPtrExportData) == kHandleBytes);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    const auto shared = pool.exported();  // now its pointers can be exported
    const AsyncBuffer buffer(pool, kBytes);
    CALL(cudaStreamSynchronize(nullptr));
    buffer.fill(pattern("exporter"));
    me.send("data", buffer.exported());
    me.wait("tried");
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
  });
  scenario.role("importer", [](Role& me) {
    CALL(cudaFree(nullptr));
    expect_no_open(me, " of what no export made",
                   "the exported pointer of a pool",
                   same_bytes<cudaIpcMemHandle_t>(
                       me.receive<cudaMemPoolPtrExportData>("data")));
    EXPECT_TRUE(context_is_usable());
    me.signal("tried");
  });
  scenario.run(20s);
}

// Opens a handle of this process. If this succeeds, the pointer must lead to
// the memory that was exported. Returns the code as a text.
static std::string opens_own(Api api, const cudaIpcMemHandle_t& handle,
                             const Words& own) {
  note_call(kOpen[api]);
  Sentinel<void*> pointer;
  const Outcome outcome = open_with(api, handle, kLazy, pointer.out());
  if (outcome.kind != Outcome::kWrongSuccess) return outcome.code;
  EXPECT_TRUE(pointer.touched()) << "success without a pointer";
  if (!pointer.touched()) return outcome.code;
  const Pattern by_pointer = pattern("by the opened pointer");
  Words(pointer.result(), own.bytes()).fill(by_pointer);
  EXPECT_TRUE(kernel_reads(own, by_pointer)) << "opens other memory";
  own.fill(pattern("exporter"));
  return outcome.code;
}

TEST(LegacyRefusals, TheExporterOpensItsOwnHandle) {
  covers("LMEM-25");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    const cudaIpcMemHandle_t handle = buffer.legacy_handle();
    const auto opens = [&](const std::string& when) {
      for (const Api api : kApis)
        me.observe(kOpen[api] + (" " + when) + ": " +
                   opens_own(api, handle, buffer));
    };
    opens("of an own handle");
    const DeviceBuffer small[] = {DeviceBuffer(kSmall), DeviceBuffer(kSmall)};
    for (const DeviceBuffer& each : small)
      for (const Api api : kApis) opens_own(api, each.legacy_handle(), each);
    CALL(in_a_thread([&] {
      for (const Api api : kApis) opens_own(api, handle, buffer);
      return cudaSuccess;
    }));
    LegacyMapping theirs(me.receive<cudaIpcMemHandle_t>("theirs"), kBytes);
    opens("while memory of another process is open");
    theirs.close();
    me.signal("closed theirs");
    EXPECT_TRUE(context_is_usable());
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    me.send("handle", handle);
    me.wait("opened");
    opens("while another process has it open");
    me.signal("tried");
    me.wait("closed");
  });
  // The same handle is good in another process.
  scenario.role("importer", [](Role& me) {
    const DeviceBuffer own(kBytes);
    me.send("theirs", own.legacy_handle());
    me.wait("closed theirs");
    LegacyMapping mapping(me.receive<cudaIpcMemHandle_t>("handle"), kBytes);
    me.signal("opened");
    me.wait("tried");
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    mapping.close();
    me.signal("closed");
  });
  scenario.run(20s);
}

static constexpr char kDamaged[] = " of a damaged handle";

// First tries to open every damaged handle, and then reads the memory of the
// handles that open.
static void opens_damaged_handles(Role& me) {
  CALL(cudaFree(nullptr));
  const auto good = me.receive<cudaIpcMemHandle_t>("handle");
  while (const auto input = me.next_input()) {
    const size_t damage = *input % kDamages;
    if (*input < kDamages) {
      open_damaged(me, kDamaged, good, damage);
      continue;
    }
    if (damage == 0) {
      EXPECT_TRUE(context_is_usable());
      LegacyMapping mapping(good, kBytes);
      EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
      mapping.close();
    }
    if (!examine_damaged(me, good, damage)) return;
  }
}

// The documentation does not say whether a driver notices wrong bytes. A
// handle is a bearer token: other processes are kept out only because they do
// not know its bytes.
TEST(LegacyRefusals, DamagedHandlesHarmNobody) {
  covers("LMEM-44");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes), other(kBytes);
    buffer.fill(pattern("exporter"));
    other.fill(pattern("other"));
    me.send("handle", buffer.legacy_handle());
    me.wait_until_done("importer");
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
    EXPECT_TRUE(kernel_reads(other, pattern("other")));
  });
  scenario.role("importer", opens_damaged_handles)
      .may_end_by(SIGSEGV)
      .in_new_process();  // it may have opened any memory

  std::vector<std::string> inputs;
  for (const char* what : {"", "examine "})
    for (size_t damage = 0; damage < kDamages; ++damage)
      inputs.push_back(what + name_of_damage(damage));
  for (const Death& death : scenario.run_inputs("importer", inputs, 30s))
    tabulate("an open" + std::string(kDamaged), death.input, death.outcome);
}

TEST(LegacyRefusals, StaleHandlesHarmNobody) {
  covers("LMEM-44");
  needs(gpus(1), legacy_memory);
  static constexpr char kTable[] = " of a stale handle";
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer other(kBytes);
    other.fill(pattern("other"));
    DeviceBuffer buffer(kBytes);
    const cudaIpcMemHandle_t freed = buffer.legacy_handle();
    buffer.free();
    me.send("freed", freed);
    me.wait_until_done("importer");
    EXPECT_TRUE(kernel_reads(other, pattern("other")));
  });
  scenario
      .role("victim",
            [](Role& me) {
              const DeviceBuffer buffer(kBytes);
              me.send("killed", buffer.legacy_handle());
              me.die(SIGKILL);
            })
      .in_new_process();
  scenario
      .role("importer",
            [](Role& me) {
              CALL(cudaFree(nullptr));
              me.wait_for_end("victim");
              for (const std::string exporter : {"freed", "killed"}) {
                const auto handle = me.receive<cudaIpcMemHandle_t>(exporter);
                for (const Api api : kApis) {
                  note_call(kOpen[api]);
                  void* opened = nullptr;
                  const Outcome outcome =
                      open_with(api, handle, kLazy, &opened);
                  me.tabulate(kOpen[api] + std::string(kTable), exporter,
                              outcome);
                  if (outcome.kind == Outcome::kWrongSuccess)
                    CALL(cudaIpcCloseMemHandle(opened));
                }
              }
              EXPECT_TRUE(context_is_usable());
            })
      .may_end_by(SIGSEGV);
  scenario.run(20s);
  tabulate_end(scenario, "importer", "an open" + std::string(kTable));
}

// Makes correct calls of both APIs, which must succeed after a refusal.
static void right_calls_work(const cudaIpcMemHandle_t& lent, void* own) {
  cudaIpcMemHandle_t handle;
  void* opened = nullptr;
  CALL(cudaIpcOpenMemHandle(&opened, lent, kLazy));
  CALL(cudaIpcCloseMemHandle(opened));
  CALL(cudaIpcGetMemHandle(&handle, own));
  CUipcMemHandle same;
  CUdeviceptr address = 0;
  CALL(DRIVER(cuIpcOpenMemHandle)(&address, same_bytes<CUipcMemHandle>(lent),
                                  kLazy));
  CALL(DRIVER(cuIpcCloseMemHandle)(address));
  CALL(DRIVER(cuIpcGetMemHandle)(&same, address_of(own)));
}

// Opens a handle in a second context, while the first context has it open. The
// code of this refusal is usually not cudaErrorInvalidValue.
static void opens_in_a_second_context(const cudaIpcMemHandle_t& lent) {
  CUcontext first = nullptr, second = nullptr;
  CALL(DRIVER(cuCtxGetCurrent)(&first));
  CALL(create_context(&second, 0));
  void* pointer = nullptr;
  EXPECT_TRUE(is_told_once("cudaIpcOpenMemHandle in a second context",
                           NOTED(cudaIpcOpenMemHandle(&pointer, lent, kLazy))));
  EXPECT_TRUE(context_is_usable());
  CALL(DRIVER(cuCtxDestroy)(second));
  CALL(DRIVER(cuCtxSetCurrent)(first));
  EXPECT_TRUE(context_is_usable());
}

// Frees the memory and judges that CUDA does not know it any more.
static void expect_freed(DeviceBuffer& buffer) {
  const void* const freed = buffer.data;
  buffer.free();
  cudaPointerAttributes attributes{};
  CALL(cudaPointerGetAttributes(&attributes, freed));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered) << "not freed";
}

// An importer that makes wrong calls of both APIs. Other rows judge whether a
// call must be refused; this one judges what a refusal leaves.
static void makes_every_mistake(Role& me) {
  const auto lent = me.receive<cudaIpcMemHandle_t>("handle");
  LegacyMapping mapping(lent, kBytes);
  const DeviceBuffer own(kBytes);
  DeviceBuffer kept(kBytes), freed(kBytes);
  const cudaIpcMemHandle_t own_handle = own.legacy_handle();
  const auto same = same_bytes<CUipcMemHandle>(own_handle);
  cudaIpcMemHandle_t handle;
  CUipcMemHandle driver_handle;
  void* pointer = nullptr;
  CUdeviceptr address = 0;
  int device = 0;

  const auto by_runtime = [&](const char* what, cudaError_t code) {
    SCOPED_TRACE(what);
    if (code == cudaSuccess)
      me.observe(std::string(what) + " is accepted");
    else
      EXPECT_TRUE(is_told_once(what, code));
    EXPECT_TRUE(context_is_usable());
    right_calls_work(lent, own.data);
  };
  by_runtime("cudaIpcGetMemHandle of null",
             NOTED(cudaIpcGetMemHandle(&handle, nullptr)));
  by_runtime("cudaIpcOpenMemHandle of zeros",
             NOTED(cudaIpcOpenMemHandle(&pointer, handle_of(0), kLazy)));
  opens_in_a_second_context(lent);
  right_calls_work(lent, own.data);
  // An open of an own handle may succeed.
  const cudaError_t of_own =
      NOTED(cudaIpcOpenMemHandle(&pointer, own_handle, kLazy));
  if (of_own != cudaSuccess) {
    by_runtime("cudaIpcOpenMemHandle of an own handle", of_own);
  } else {
    NOTED(cudaIpcCloseMemHandle(pointer));
    cudaGetLastError();
  }
  by_runtime("cudaIpcCloseMemHandle of an own pointer",
             NOTED(cudaIpcCloseMemHandle(own.data)));
  void* const gone = freed.data;
  freed.free();
  const cudaError_t second = NOTED(cudaFree(gone));
  expect_freed(kept);  // the next free
  by_runtime("a second cudaFree", second);
  cudaError_t told = cudaSuccess;
  const cudaError_t refusal = in_a_thread([&] {
    const cudaError_t code =
        cudaIpcOpenMemHandle(&pointer, handle_of(0), kLazy);
    told = cudaPeekAtLastError();
    return code;
  });
  EXPECT_EQ(told, refusal) << "in the thread that made the call";
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "it was another thread's";

  const auto by_driver = [&](const char* what, CUresult code) {
    SCOPED_TRACE(what);
    if (code == CUDA_SUCCESS) me.observe(std::string(what) + " is accepted");
    // The driver API comes first: the runtime API itself makes a context
    // current if there is none.
    CUdeviceptr made = 0;
    const CUresult allocated = NOTED(DRIVER(cuMemAlloc)(&made, kInside));
    EXPECT_EQ(name_of(allocated), "CUDA_SUCCESS");
    if (made != 0) EXPECT_EQ(DRIVER(cuMemFree)(made), CUDA_SUCCESS);
    // Only calls of the runtime API set the last error.
    EXPECT_TRUE(leaves_no_error("cudaGetDevice", cudaGetDevice(&device)));
    EXPECT_TRUE(context_is_usable());
    right_calls_work(lent, own.data);
  };
  by_driver("cuIpcGetMemHandle of null",
            NOTED(DRIVER(cuIpcGetMemHandle)(&driver_handle, 0)));
  by_driver(
      "cuIpcOpenMemHandle of zeros",
      NOTED(DRIVER(cuIpcOpenMemHandle)(&address, CUipcMemHandle{}, kLazy)));
  const CUresult same_of_own =
      NOTED(DRIVER(cuIpcOpenMemHandle)(&address, same, kLazy));
  if (same_of_own != CUDA_SUCCESS)
    by_driver("cuIpcOpenMemHandle of an own handle", same_of_own);
  else
    NOTED(DRIVER(cuIpcCloseMemHandle)(address));
  by_driver("cuIpcCloseMemHandle of an own pointer",
            NOTED(DRIVER(cuIpcCloseMemHandle)(address_of(own.data))));

  EXPECT_READS(mapping, pattern("exporter"));
  // A call that succeeds leaves no error that the next check could find.
  EXPECT_TRUE(leaves_no_error("cudaIpcGetMemHandle",
                              NOTED(cudaIpcGetMemHandle(&handle, own.data))));
  EXPECT_TRUE(
      leaves_no_error("cudaIpcOpenMemHandle",
                      NOTED(cudaIpcOpenMemHandle(&pointer, lent, kLazy))));
  EXPECT_TRUE(leaves_no_error("cudaIpcCloseMemHandle",
                              NOTED(cudaIpcCloseMemHandle(pointer))));
  // The refusals have not raised the count of opens: one close is enough.
  const void* const closed = mapping.data;
  mapping.close();
  cudaPointerAttributes attributes{};
  CALL(cudaPointerGetAttributes(&attributes, closed));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered) << "still open";
  me.signal("closed");
}

TEST(LegacyRefusals, ARefusalLeavesNothingBehind) {
  covers("LMEM-45");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", lends(pattern("exporter"), kBytes));

  scenario.role("importer", makes_every_mistake);
  scenario.run(30s);
}
