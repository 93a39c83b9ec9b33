// SPDX-License-Identifier: Apache-2.0
#include "harness/explore/world/story.h"

#include <algorithm>

namespace ipclab::explore {
namespace {

std::string text(int64_t value) { return std::to_string(value); }
std::string object(char letter, int id) { return letter + text(id); }

std::string stream_name(int stream) {
  if (stream == 0) return "";
  if (is_legacy(stream)) return "default stream";
  if (is_thread_stream(stream)) return "per-thread stream";
  return object('s', stream);
}

std::string box(const Step& step) {
  std::string size = text(step.bytes) + " bytes";
  if (step.rows > 1) size = text(step.rows) + " rows of " + size;
  if (step.layers > 1) size = text(step.layers) + " layers of " + size;
  return size;
}

std::string place(int id, int64_t at) {
  return object('m', id) + (at == 0 ? "" : " at " + text(at));
}

std::string what(const Step& step) {
  const std::string id = text(step.id), on = text(step.on);
  switch (step.op) {
    case Op::kMalloc:
      return "m" + id + " = cudaMalloc of " + box(step);
    case Op::kFree:
      return "free m" + on;
    case Op::kExportMemory:
      return "h" + id + " = legacy handle of m" + on;
    case Op::kOpenMemory:
      return "m" + id + " = open h" + on;
    case Op::kCloseMemory:
      return "close m" + on;
    case Op::kHostAlloc: {
      constexpr const char* kNames[] = {"pinned", "mapped", "registered",
                                        "managed"};
      return "m" + id + " = " + kNames[step.how] + " memory of " + box(step);
    }
    case Op::kHostFree:
      return "free m" + on;
    case Op::kCreateChunk:
      return "c" + id + " = cuMemCreate of " + box(step) +
             (step.how == kOnNode ? " on a node of the host" : "");
    case Op::kExportChunk:
      return "h" + id + " = descriptor of c" + on;
    case Op::kImportChunk:
      return "c" + id + " = import h" + on;
    case Op::kReleaseChunk:
      return "release c" + on;
    case Op::kRetainChunk:
      return "c" + id + " = retain the handle of m" + on;
    case Op::kDropHandle:
      return "close h" + on;
    case Op::kReserve:
      return "r" + id + " = reserve " + box(step);
    case Op::kUnreserve:
      return "free the addresses r" + on;
    case Op::kMap:
      return "m" + id + " = map c" + on + " into r" + text(step.from) +
             (step.at == 0 ? "" : " at " + text(step.at));
    case Op::kSetAccess:
      return std::string("set access ") +
             (step.how == kOnNode ? "of the CPU " : "") + text(step.value) +
             " of m" + on + (step.rows > 1 ? " and the next mapping" : "");
    case Op::kUnmap:
      return "unmap m" + on;
    case Op::kCreatePool:
      return "p" + id + " = pool" +
             (step.value != 0 ? " that can be shared" : "");
    case Op::kExportPool:
      return "h" + id + " = descriptor of p" + on;
    case Op::kImportPool:
      return "p" + id + " = import h" + on;
    case Op::kDestroyPool:
      return "destroy p" + on;
    case Op::kPoolAlloc:
      return "m" + id + " = allocate " + box(step) + " from " +
             (step.how == kFromCurrent ? "the current pool" : "p" + on);
    case Op::kExportPointer:
      return "h" + id + " = export the pointer m" + on;
    case Op::kImportPointer:
      return "m" + id + " = import h" + text(step.from) + " with p" + on;
    case Op::kFreeAsync:
      return "cudaFreeAsync m" + on;
    case Op::kTrimPool:
      return "trim p" + on + " to " + text(step.value);
    case Op::kSetThreshold:
      return (step.how == kSetReleased ? "release threshold of p"
              : step.how == kResetUsedHigh
                  ? "watermark of used bytes of p"
                  : "watermark of reserved bytes of p") +
             on + " = " + text(step.value);
    case Op::kSetPool:
      return step.on == 0 ? "the default pool is the current one again"
                          : "p" + on + " is the current pool";
    case Op::kAskPool: {
      constexpr const char* kNames[] = {"used bytes", "release threshold",
                                        "most used bytes", "reserved bytes",
                                        "most reserved bytes"};
      return std::string("ask p") + on + " for its " + kNames[step.how];
    }
    case Op::kCreateStream:
      return "s" + id + " = stream" +
             (step.how == kBlocking   ? ", blocking"
              : step.how == kPriority ? ", of the highest priority"
                                      : "");
    case Op::kDestroyStream:
      return "destroy s" + on;
    case Op::kCreateEvent:
      return "e" + id + " = event" +
             (step.how == kLocal ? "" : " for several processes") +
             (step.how == kInterprocessBlocking ? ", blocking" : "");
    case Op::kExportEvent:
      return "h" + id + " = handle of e" + on;
    case Op::kOpenEvent:
      return "e" + id + " = open h" + on;
    case Op::kDestroyEvent:
      return "destroy e" + on;
    case Op::kRecord:
      return "record e" + on;
    case Op::kWait:
      return "wait for e" + on;
    case Op::kQueryEvent:
      return "query e" + on;
    case Op::kSyncEvent:
      return "synchronise e" + on;
    case Op::kQueryStream:
      return "query the stream";
    case Op::kSyncStream:
      return "synchronise the stream";
    case Op::kSyncDevice:
      return "synchronise the device";
    case Op::kGate:
      return "wait at gate " + id;
    case Op::kOpenGate:
      return "open gate " + on;
    case Op::kWriteWord:
      return "write word " + text(step.value) + " to " +
             place(step.on, step.at);
    case Op::kWaitWord: {
      constexpr const char* kSigns[] = {" >= ", " == ", " & ", " NOR "};
      return "wait until " + place(step.on, step.at) +
             kSigns[step.how % kConditions] + text(step.value) +
             (step.how >= kConditions ? ", in a batch" : "");
    }
    case Op::kWrite:
      return std::string(step.how == kHostFunction ? "host function writes "
                                                   : "kernel writes ") +
             box(step) + " to " + place(step.on, step.at);
    case Op::kSet:
      return "set " + box(step) + " of " + place(step.on, step.at);
    case Op::kCopy:
      return "copy " + box(step) + " to " + place(step.on, step.at) + " from " +
             place(step.from, step.from_at) +
             (step.how == kCopyBatch || step.how == kCopy3DBatch
                  ? ", in a batch"
                  : "");
    case Op::kUpload:
      return "copy " + box(step) + " from the host to " +
             place(step.on, step.at);
    case Op::kRead:
      return "read " + box(step) + " of " + place(step.on, step.at);
    case Op::kHostWrite:
      return "CPU writes " + box(step) + " to " + place(step.on, step.at);
    case Op::kHostRead:
      return "CPU reads " + box(step) + " of " + place(step.on, step.at);
    case Op::kBeginCapture:
      return "begin to capture g" + id;
    case Op::kEndCapture:
      return "end the capture of g" + on +
             (step.how == kUpdate ? " and update g" + text(step.from) : "");
    case Op::kLaunch:
      return "launch g" + on;
    case Op::kDestroyGraph:
      return "destroy g" + on;
    case Op::kAskPointer:
      return "ask about the pointer " + place(step.on, step.at);
    case Op::kAskChunk:
      return "ask for the properties of c" + on;
    case Op::kQuestion:
      return std::string("ask ") + question(step.how).what +
             (step.on == 0 ? "" : " of " + on);
    case Op::kRefuse:
      return std::string("must be refused: ") + refusal(step.how).what;
    case Op::kNewThread:
      return "the thread ends, and another one takes its place";
    case Op::kEnd:
      return step.how == kKilled  ? "is killed"
             : step.how == kReset ? "resets its GPU"
                                  : "exits";
    case Op::kStart:
      return "a new process";
  }
  return "";
}

}  // namespace

std::string story(const Program& program, const Failure& failure) {
  std::string lines;
  for (const Step& step : program.steps) {
    std::string actor = "p" + text(step.process);
    if (step.thread != 0) actor += " t" + text(step.thread);
    if (const std::string stream = stream_name(step.stream); !stream.empty())
      actor += " " + stream;
    if (step.group != 0) actor += " (at once)";
    actor.resize(std::max<size_t>(actor.size() + 2, 22), ' ');
    lines +=
        actor + what(step) + (step.api == 1 ? "  [driver API]" : "") + "\n";
  }
  return lines + "-> " + failure.check + ": " + failure.seen + ", not " +
         failure.wanted + " (" + failure.row + ")\n";
}

}  // namespace ipclab::explore
