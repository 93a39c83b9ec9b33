// One step of a program: a call that one actor makes, with symbolic objects.
//
// A step contains nothing that a driver returned. Objects have numbers that the
// generator chose, so a part of a program is a program, too.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

namespace ipclab::explore {

// Each operation: name in C++, name in files, and which objects it changes
// (c: makes `id`; o: changes `on`; f: changes `from`; s: changes `stream`;
// p: concerns the whole process, so nothing of it runs beside the step).
// Steps of one group run at the same time only if these sets are disjoint.
#define IPCLAB_EXPLORE_OPS(OP)              \
  OP(Malloc, "malloc", "c")                 \
  OP(Free, "free", "o")                     \
  OP(ExportMemory, "export-memory", "c")    \
  OP(OpenMemory, "open-memory", "c")        \
  OP(CloseMemory, "close-memory", "o")      \
  OP(HostAlloc, "host-alloc", "c")          \
  OP(HostFree, "host-free", "o")            \
  OP(CreateChunk, "create-chunk", "c")      \
  OP(ExportChunk, "export-chunk", "c")      \
  OP(ImportChunk, "import-chunk", "c")      \
  OP(ReleaseChunk, "release-chunk", "o")    \
  OP(RetainChunk, "retain-chunk", "c")      \
  OP(DropHandle, "drop-handle", "o")        \
  OP(Reserve, "reserve", "c")               \
  OP(Unreserve, "unreserve", "o")           \
  OP(Map, "map", "cf")                      \
  OP(SetAccess, "set-access", "o")          \
  OP(Unmap, "unmap", "of")                  \
  OP(CreatePool, "create-pool", "c")        \
  OP(ExportPool, "export-pool", "c")        \
  OP(ImportPool, "import-pool", "c")        \
  OP(DestroyPool, "destroy-pool", "o")      \
  OP(PoolAlloc, "pool-alloc", "cos")        \
  OP(ExportPointer, "export-pointer", "c")  \
  OP(ImportPointer, "import-pointer", "co") \
  OP(FreeAsync, "free-async", "os")         \
  OP(TrimPool, "trim-pool", "o")            \
  OP(SetThreshold, "set-threshold", "o")    \
  OP(AskPool, "ask-pool", "o")              \
  OP(SetPool, "set-pool", "p")              \
  OP(CreateStream, "create-stream", "c")    \
  OP(DestroyStream, "destroy-stream", "o")  \
  OP(CreateEvent, "create-event", "c")      \
  OP(ExportEvent, "export-event", "c")      \
  OP(OpenEvent, "open-event", "c")          \
  OP(DestroyEvent, "destroy-event", "o")    \
  OP(Record, "record", "os")                \
  OP(Wait, "wait", "s")                     \
  OP(QueryEvent, "query-event", "")         \
  OP(SyncEvent, "sync-event", "")           \
  OP(QueryStream, "query-stream", "s")      \
  OP(SyncStream, "sync-stream", "s")        \
  OP(SyncDevice, "sync-device", "p")        \
  OP(Gate, "gate", "cs")                    \
  OP(OpenGate, "open-gate", "p")            \
  OP(WriteWord, "write-word", "s")          \
  OP(WaitWord, "wait-word", "s")            \
  OP(Write, "write", "s")                   \
  OP(Set, "set", "s")                       \
  OP(Copy, "copy", "s")                     \
  OP(Upload, "upload", "s")                 \
  OP(Read, "read", "s")                     \
  OP(HostWrite, "host-write", "")           \
  OP(HostRead, "host-read", "")             \
  OP(BeginCapture, "begin-capture", "cs")   \
  OP(EndCapture, "end-capture", "ofs")      \
  OP(Launch, "launch", "os")                \
  OP(DestroyGraph, "destroy-graph", "o")    \
  OP(AskPointer, "ask-pointer", "")         \
  OP(AskChunk, "ask-chunk", "")             \
  OP(Question, "question", "")              \
  OP(Refuse, "refuse", "")                  \
  OP(NewThread, "new-thread", "p")          \
  OP(End, "end", "p")                       \
  OP(Start, "start", "p")

enum class Op : uint8_t {
#define OP(name, text, changes) k##name,
  IPCLAB_EXPLORE_OPS(OP)
#undef OP
};
#define OP(name, text, changes) +1
constexpr int kOps = 0 IPCLAB_EXPLORE_OPS(OP);
#undef OP

/// The name of an operation in files: export-memory.
const char* name_of(Op op);
/// Which objects an operation changes, in the letters of IPCLAB_EXPLORE_OPS.
const char* changes_of(Op op);

/// One call of one actor. What a field means depends on the operation; a field
/// that an operation does not use is 0. Sizes are bytes.
struct Step {
  Op op = Op::kMalloc;
  int32_t process = 0;
  int32_t thread = 0;
  int32_t group = 0;       ///< steps of one group, not 0, run at the same time
  int32_t api = 0;         ///< 0: runtime API, 1: driver API
  int32_t id = 0;          ///< the object that the step makes
  int32_t on = 0;          ///< the object that the step is about
  int32_t from = 0;        ///< a second object, such as the source of a copy
  int32_t stream = 0;      ///< see legacy_stream() and thread_stream()
  int32_t how = 0;         ///< which of several ways to do it
  int32_t rows = 0;        ///< of a box; 0: `bytes` in one row
  int32_t layers = 0;      ///< of a box; 0: one layer
  int64_t at = 0;          ///< offset in `on`
  int64_t from_at = 0;     ///< offset in `from`
  int64_t bytes = 0;       ///< size; in a box, of one row
  int64_t pitch = 0;       ///< from one row to the next in `on`
  int64_t from_pitch = 0;  ///< the same in `from`
  int64_t value = 0;       ///< key of a pattern, value of a word, flags

  bool operator==(const Step& other) const;
};

/// The legacy default stream of a process.
constexpr int legacy_stream(int process) { return -(process * 10 + 1); }
/// The per-thread default stream of a thread.
constexpr int thread_stream(int process, int thread) {
  return -(process * 10 + 2 + thread);
}
/// Is this the legacy default stream of its process?
constexpr bool is_legacy(int stream) { return stream < 0 && -stream % 10 == 1; }
/// Is this a default stream of one thread?
constexpr bool is_thread_stream(int stream) {
  return stream < 0 && -stream % 10 != 1;
}

constexpr int kMaxProcesses = 5;
constexpr int kThreads = 3;   ///< of each process
constexpr int kGates = 4096;  ///< in one program

/// The step as a line of text: "copy p=1 t=0 on=7 from=4 bytes=64".
std::string to_text(const Step& step);
/// The step of a line of text. Throws std::invalid_argument with what is wrong.
Step step_from(const std::string& line);

/// Byte number `index` of the pattern with this key. Kernels and the shadow
/// compute the same.
#ifdef __CUDACC__
__host__ __device__
#endif
    inline uint8_t
    pattern_byte(uint32_t key, uint64_t index) {
  uint32_t x = key * 0x9e3779b1u ^ static_cast<uint32_t>(index) * 0x85ebca77u;
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  x ^= x >> 13;
  return static_cast<uint8_t>(x ^ (x >> 16));
}

// The ways of each operation (`how`).

enum HostKind { kMallocHost, kHostAlloc, kRegistered, kManaged, kHostKinds };
/// The last way is a function of the host in a stream; for memory of the host.
enum WriteHow { kLaunch, kLaunchEx, kCooperative, kHostFunction, kWriteHows };
/// The first way sets bytes, then words of 16 and 32 bits; with `sync` the call
/// of the legacy default stream without a stream argument.
enum SetHow {
  kSet8,
  kSet16,
  kSet32,
  kSet8Sync,
  kSet16Sync,
  kSet32Sync,
  kSetHows
};
enum CopyHow {
  kCopyKernel,
  kCopyAsync,      // cudaMemcpyAsync, cuMemcpyAsync
  kCopyAsyncKind,  // with the exact direction; cuMemcpyDtoDAsync
  kCopyPeerAsync,  // cudaMemcpyPeerAsync, cuMemcpyPeerAsync on one device
  kCopy2DAsync,
  kCopy3DAsync,
  kCopyBatch,    // the two halves
  kCopy3DBatch,  // the box, and nothing else
  kCopySync,     // cudaMemcpy, cuMemcpy
  kCopy2DSync,
  kCopy3DSync,
  kCopyHows
};
constexpr int kFirstSyncCopy = kCopySync;
enum UploadHow { kUploadSync, kUploadAsync, kUpload2D, kUploadHows };
enum ReadHow { kReadKernel, kReadAsync, kReadSync, kRead2D, kReadHows };
enum StreamHow { kNonBlocking, kBlocking, kPriority, kStreamHows };
enum EventHow { kInterprocess, kInterprocessBlocking, kLocal, kEventHows };
enum SyncHow { kCall, kPoll, kSyncHows };
enum GateHow { kGateWord, kGateKernel, kGateHows };
/// The conditions have the numbers of CUstreamWaitValue_flags. The last ways
/// are the conditions again, in a batch.
enum WaitWordHow { kGreaterOrEqual, kEqual, kAnd, kNor, kConditions };
constexpr int kWaitWordHows = 2 * kConditions;
/// With kWritePair a batch first writes `from_at`, the value before.
enum WriteWordHow { kWriteOne, kWriteBatch, kWritePair, kWriteWordHows };
enum CaptureHow { kRelaxed, kThreadLocal, kCaptureHows };
/// The second way updates the graph `from`, which can be launched already.
enum EndCaptureHow { kInstantiate, kUpdate, kEndCaptureHows };
/// Where a chunk is made, and whose access is set.
enum ChunkHow { kOnGpu, kOnNode, kChunkHows };
enum AskPoolHow {
  kUsed,
  kThreshold,
  kUsedHigh,
  kReserved,
  kReservedHigh,
  kAskPoolHows
};
/// What kSetThreshold sets: the threshold, or a watermark, which is reset.
enum SetThresholdHow {
  kSetReleased,
  kResetUsedHigh,
  kResetReservedHigh,
  kSetThresholdHows
};
enum PoolAllocHow { kFromPool, kFromCurrent, kPoolAllocHows };
enum AskPointerHow {
  kKind,
  kRange,
  kAccess,
  kRuntimeView,      // what cudaPointerGetAttributes says of device memory
  kContains,         // the range has all of the memory
  kAccessAttribute,  // CU_POINTER_ATTRIBUTE_ACCESS_FLAGS
  kBufferId,         // the same at each address, and no other memory has it
  kCpuAccess,        // of memory on a node
  kAskPointerHows
};
/// With kReset the process goes on, but without all that it had.
enum EndHow { kExit, kKilled, kReset, kEndHows };

/// Calls that the documentation says are refused; nothing may change.
#define IPCLAB_EXPLORE_REFUSALS(R)                                      \
  R(ExportManaged, "export managed memory", "MNGD-01")                  \
  R(ExportMapped, "export mapped memory by a legacy handle", "MNGD-07") \
  R(OpenEventHandle, "open an event's handle as memory", "LMEM-24")     \
  R(OpenMemoryHandle, "open a memory handle as an event", "LEVT-04")    \
  R(ElapsedTime, "elapsed time of a shared event", "LEVT-16")           \
  R(AllocImported, "allocate from an imported pool", "IMPL-01")         \
  R(ExportImported, "export an imported pool", "IMPL-10")               \
  R(ExportPrivatePool, "export a pool without handle type", "POOL-02")  \
  R(MapTwice, "map where memory is mapped", "VMM-22")                   \
  R(UnmapPart, "unmap a part of a mapping", "VMM-24")
enum Refusal {
#define R(name, what, row) k##name,
  IPCLAB_EXPLORE_REFUSALS(R)
#undef R
#define REFUSED(name, ...) k##name,
#define QUESTION(name, ...)
#include "harness/explore/world/calls.inc"
#undef REFUSED
#undef QUESTION
      kRefusals,
  kFirstOfList = kExportPoolMemory,  ///< the first one of calls.inc
};
/// The questions of calls.inc.
enum Question {
#define REFUSED(name, ...)
#define QUESTION(name, ...) k##name,
#include "harness/explore/world/calls.inc"
#undef REFUSED
#undef QUESTION
  kQuestions
};

/// A call as it is written down in a list: what it tries or asks, the row that
/// promises the answer, and its text, which is empty for a call that needs more
/// than one object.
struct Listed {
  const char* what;
  const char* row;
  const char* body;
};
const Listed& refusal(int which);
const Listed& question(int which);

}  // namespace ipclab::explore
