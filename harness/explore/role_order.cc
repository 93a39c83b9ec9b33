// The calls of steps on streams, events, words and graphs.
//
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstring>

#include "harness/explore/role.h"
#include "harness/scenario/both_apis.h"

namespace ipclab::explore {
namespace {

// A program polls only what nothing holds, so this limit is for drivers that
// are wrong; the parent's deadline is shorter.
constexpr std::chrono::seconds kPollLimit{60};

template <class Body>
int by_api(const Step& step, Body body) {
  return step.api == 0 ? static_cast<int>(body(RuntimeApi{}))
                       : static_cast<int>(body(DriverApi{}));
}

template <class Query>
int poll(Query query) {
  const auto end = std::chrono::steady_clock::now() + kPollLimit;
  int code = 0;
  while ((code = query()) == cudaErrorNotReady &&
         std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  return code;
}

int create_stream(const Step& step, cudaStream_t* made) {
  int least = 0, greatest = 0;
  if (step.how == kPriority) {
    const int code = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (code != 0) return code;
  }
  const unsigned flags =
      step.how == kBlocking ? cudaStreamDefault : cudaStreamNonBlocking;
  if (step.api == 0)
    return step.how == kPriority
               ? cudaStreamCreateWithPriority(made, flags, greatest)
               : cudaStreamCreateWithFlags(made, flags);
  return step.how == kPriority
             ? DRIVER(cuStreamCreateWithPriority)(made, flags, greatest)
             : DRIVER(cuStreamCreate)(made, flags);
}

unsigned event_flags(int how) {
  switch (how) {
    case kInterprocess:
      return cudaEventInterprocess | cudaEventDisableTiming;
    case kInterprocessBlocking:
      return cudaEventInterprocess | cudaEventDisableTiming |
             cudaEventBlockingSync;
    default:
      return cudaEventDisableTiming;
  }
}

int query_stream(const Step& step, cudaStream_t stream) {
  return step.api == 0 ? static_cast<int>(cudaStreamQuery(stream))
                       : static_cast<int>(DRIVER(cuStreamQuery)(stream));
}

int write_word(Objects& objects, const Step& step) {
  const CUdeviceptr word =
      address_of(objects.memory.at(step.on).data + step.at);
  const cudaStream_t stream = objects.stream_of(step);
  const auto value = static_cast<cuuint64_t>(step.value);
  const auto low = static_cast<cuuint32_t>(value);
  if (step.how == kWriteOne)
    return step.bytes == 8
               ? DRIVER(cuStreamWriteValue64)(stream, word, value, 0)
               : DRIVER(cuStreamWriteValue32)(stream, word, low, 0);
  CUstreamBatchMemOpParams both[2] = {};
  for (CUstreamBatchMemOpParams& one : both) {
    const auto written = static_cast<cuuint64_t>(
        &one == both && step.how == kWritePair ? step.from_at : step.value);
    one.operation = step.bytes == 8 ? CU_STREAM_MEM_OP_WRITE_VALUE_64
                                    : CU_STREAM_MEM_OP_WRITE_VALUE_32;
    one.writeValue.operation = one.operation;
    one.writeValue.address = word;
    if (step.bytes == 8)
      one.writeValue.value64 = written;
    else
      one.writeValue.value = static_cast<cuuint32_t>(written);
  }
  return DRIVER(cuStreamBatchMemOp)(stream, step.how == kWritePair ? 2 : 1,
                                    both, 0);
}

int wait_word(Objects& objects, const Step& step) {
  const CUdeviceptr word =
      address_of(objects.memory.at(step.on).data + step.at);
  const cudaStream_t stream = objects.stream_of(step);
  const auto value = static_cast<cuuint64_t>(step.value);
  const int condition = step.how % kConditions;
  const auto flags = static_cast<unsigned>(condition);
  if (step.how >= kConditions) {
    CUstreamBatchMemOpParams one{};
    one.operation = step.bytes == 8 ? CU_STREAM_MEM_OP_WAIT_VALUE_64
                                    : CU_STREAM_MEM_OP_WAIT_VALUE_32;
    one.waitValue.operation = one.operation;
    one.waitValue.address = word;
    one.waitValue.flags = flags;
    if (step.bytes == 8)
      one.waitValue.value64 = value;
    else
      one.waitValue.value = static_cast<cuuint32_t>(value);
    return DRIVER(cuStreamBatchMemOp)(stream, 1, &one, 0);
  }
  return step.bytes == 8
             ? DRIVER(cuStreamWaitValue64)(stream, word, value, flags)
             : DRIVER(cuStreamWaitValue32)(
                   stream, word, static_cast<cuuint32_t>(value), flags);
}

int update_graph(const Step& step, cudaGraphExec_t run, cudaGraph_t graph) {
  if (step.api == 1) {
    CUgraphExecUpdateResultInfo info{};
    return DRIVER(cuGraphExecUpdate)(run, graph, &info);
  }
  cudaGraphExecUpdateResultInfo info{};
  return cudaGraphExecUpdate(run, graph, &info);
}

int perform_graph(Objects& objects, const Step& step) {
  if (step.op == Op::kBeginCapture) {
    const cudaStream_t stream = objects.stream_of(step);
    objects.graphs.put(step.id, {});
    const auto mode = step.how == kRelaxed ? cudaStreamCaptureModeRelaxed
                                           : cudaStreamCaptureModeThreadLocal;
    return step.api == 0
               ? static_cast<int>(cudaStreamBeginCapture(stream, mode))
               : static_cast<int>(DRIVER(cuStreamBeginCapture)(
                     stream, static_cast<CUstreamCaptureMode>(mode)));
  }
  Objects::Graph graph = objects.graphs.at(step.on);
  switch (step.op) {
    case Op::kEndCapture: {
      const cudaStream_t stream = objects.stream_of(step);
      const int code =
          step.api == 0
              ? static_cast<int>(cudaStreamEndCapture(stream, &graph.graph))
              : static_cast<int>(
                    DRIVER(cuStreamEndCapture)(stream, &graph.graph));
      if (code != 0) return code;
      if (step.how == kUpdate) {
        const cudaGraphExec_t run = objects.graphs.at(step.from).run;
        const int updated = update_graph(step, run, graph.graph);
        objects.graphs.erase(step.on);
        const int second = cudaGraphDestroy(graph.graph);
        return updated != 0 ? updated : second;
      }
      const int made =
          step.api == 0 ? static_cast<int>(
                              cudaGraphInstantiate(&graph.run, graph.graph, 0))
                        : static_cast<int>(DRIVER(cuGraphInstantiateWithFlags)(
                              &graph.run, graph.graph, 0));
      objects.graphs.put(step.on, graph);
      return made;
    }
    case Op::kLaunch:
      return step.api == 0 ? static_cast<int>(cudaGraphLaunch(
                                 graph.run, objects.stream_of(step)))
                           : static_cast<int>(DRIVER(cuGraphLaunch)(
                                 graph.run, objects.stream_of(step)));
    default: {  // kDestroyGraph
      objects.graphs.erase(step.on);
      const int code = cudaGraphExecDestroy(graph.run);
      const int second = cudaGraphDestroy(graph.graph);
      return code != 0 ? code : second;
    }
  }
}

}  // namespace

int perform_order(Objects& objects, const Step& step, Parcel& parcel, Answer&) {
  switch (step.op) {
    case Op::kCreateStream: {
      cudaStream_t made = nullptr;
      const int code = create_stream(step, &made);
      objects.streams.put(step.id, made);
      return code;
    }
    case Op::kDestroyStream: {
      const cudaStream_t stream = objects.streams.at(step.on);
      objects.streams.erase(step.on);
      return step.api == 0 ? static_cast<int>(cudaStreamDestroy(stream))
                           : static_cast<int>(DRIVER(cuStreamDestroy)(stream));
    }
    case Op::kCreateEvent: {
      cudaEvent_t made = nullptr;
      const int code = by_api(step, [&](auto api) {
        return api.event_create(&made, event_flags(step.how));
      });
      objects.events.put(step.id, made);
      return code;
    }
    case Op::kExportEvent: {
      cudaIpcEventHandle_t handle{};
      const int code = by_api(step, [&](auto api) {
        return api.ipc_get_event_handle(&handle, objects.events.at(step.on));
      });
      parcel.bytes.assign(reinterpret_cast<const char*>(&handle),
                          sizeof handle);
      return code;
    }
    case Op::kOpenEvent: {
      cudaIpcEventHandle_t handle{};
      std::memcpy(&handle, parcel.bytes.data(), sizeof handle);
      parcel.bytes.clear();
      cudaEvent_t made = nullptr;
      const int code = by_api(step, [&](auto api) {
        return api.ipc_open_event_handle(&made, handle);
      });
      objects.events.put(step.id, made);
      return code;
    }
    case Op::kDestroyEvent: {
      const cudaEvent_t event = objects.events.at(step.on);
      objects.events.erase(step.on);
      return by_api(step, [&](auto api) { return api.event_destroy(event); });
    }
    case Op::kRecord:
      return by_api(step, [&](auto api) {
        const cudaEvent_t event = objects.events.at(step.on);
        const cudaStream_t stream = objects.stream_of(step);
        return step.how == 0 ? api.event_record(event, stream)
                             : api.event_record_with_flags(event, stream);
      });
    case Op::kWait:
      return by_api(step, [&](auto api) {
        return api.stream_wait_event(objects.stream_of(step),
                                     objects.events.at(step.on));
      });
    case Op::kQueryEvent:
      return by_api(step, [&](auto api) {
        return api.event_query(objects.events.at(step.on));
      });
    case Op::kSyncEvent:
      return by_api(step, [&](auto api) {
        const cudaEvent_t event = objects.events.at(step.on);
        using Code = decltype(api.event_query(event));
        return step.how == kCall
                   ? api.event_synchronize(event)
                   : static_cast<Code>(poll([&] {
                       return static_cast<int>(api.event_query(event));
                     }));
      });
    case Op::kQueryStream:
      return query_stream(step, objects.stream_of(step));
    case Op::kSyncStream: {
      const cudaStream_t stream = objects.stream_of(step);
      if (step.how == kPoll)
        return poll([&] { return query_stream(step, stream); });
      return step.api == 0
                 ? static_cast<int>(cudaStreamSynchronize(stream))
                 : static_cast<int>(DRIVER(cuStreamSynchronize)(stream));
    }
    case Op::kSyncDevice:
      return step.api == 0 ? static_cast<int>(cudaDeviceSynchronize())
                           : static_cast<int>(synchronize_context());
    case Op::kWriteWord:
      return write_word(objects, step);
    case Op::kWaitWord:
      return wait_word(objects, step);
    default:
      return perform_graph(objects, step);
  }
}

}  // namespace ipclab::explore
