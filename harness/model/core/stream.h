// SPDX-License-Identifier: Apache-2.0
// Streams: each stream has a queue and a worker thread. Also the rules of the
// legacy default stream (Programming Guide, default stream).
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace ipclab::model {

class Stream;
namespace race {
class Actor;
class Clock;
}  // namespace race

/// A command of a stream. A graph keeps commands and gives them to a stream at
/// each launch, so `run` may be called more than once.
struct Command {
  CUgraphNodeType type;
  std::function<void()> run;
};

/// Work that must be done before other work starts.
struct Ticket {
  std::shared_ptr<Stream> stream;
  uint64_t number;
  /// What comes before the end of the work, if races are looked for (race.h).
  std::shared_ptr<race::Clock> done;
};

/// The frees of pool memory that come before some work. For the id of each
/// stream with frees, it has the number of the last free that comes before the
/// work.
using Order = std::map<unsigned long long, uint64_t>;

/// A graph that is being captured. A stream that waits for an event of the
/// capture joins the capture.
struct Capture {
  CUgraph graph = nullptr;
  unsigned long long id = 0;  ///< no other capture of the process has it
  /// Nodes after which no stream goes on, because the program said so. The
  /// mutex of `origin`'s context guards it.
  std::vector<CUgraphNode> given_up;
  const Stream* origin = nullptr;  ///< the stream that begins and ends it
  std::atomic<bool> spoilt{false};
  std::atomic<bool> over{false};
};

/// The nodes that come before the next node of a captured stream, or before a
/// wait for a captured event. It has no capture if nothing was captured.
struct CapturePoint {
  std::shared_ptr<Capture> capture;
  std::vector<CUgraphNode> after;
};

/// A wait of cuCtxWaitEvent.
struct ContextWait {
  CUcontext context;  ///< for which the program called it
  Command command;
  std::function<bool()> over;
  Order frees;  ///< the frees that are done after the wait
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  /// `owner` may be a green context.
  Stream(CUcontext owner, unsigned flags, int priority, bool legacy);

  /// The context whose memory the work uses: never a green context.
  CUcontext context() const { return context_; }
  CUcontext owner() const { return owner_; }
  unsigned flags() const { return flags_; }
  int priority() const { return priority_; }
  unsigned long long id() const { return id_; }
  bool is_legacy() const { return legacy_; }

  /// Gives work to the stream and returns. After a sticky error of the context,
  /// work is dropped, unless it has to happen `always` (an event for which
  /// others wait). The work also waits for the work of `after`. In a stream
  /// that captures, the work becomes a node, and the ticket is empty.
  Ticket submit(Command command, bool always = false,
                const std::vector<Ticket>& after = {});
  /// Gives the work of a graph's node to a stream that does not capture, if
  /// races are looked for: `actor` does it after the work of `after` only, and
  /// not after what the stream did before.
  Ticket submit_node(Command command, const std::shared_ptr<race::Actor>& actor,
                     const std::vector<Ticket>& after);
  /// Does the same as submit() for a free, which an Order counts. The free
  /// happens `always`, and it is never captured.
  Ticket submit_free(Command command);
  /// After this call submit() makes nodes of a new graph. Returns false if the
  /// stream already captures.
  bool begin_capture();
  bool capturing() { return capture_point().capture != nullptr; }
  /// The present place in the capture; it has no capture if the stream does not
  /// capture.
  CapturePoint capture_point();
  /// The next node of the capture also comes after the nodes of `point`.
  /// Returns CUDA_ERROR_STREAM_CAPTURE_MERGE if the stream is in another
  /// capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for the legacy stream; both
  /// errors make the captures invalid. Returns
  /// CUDA_ERROR_STREAM_CAPTURE_INVALIDATED if the capture is already invalid.
  CUresult join_capture(const CapturePoint& point);
  /// The nodes that come before the next node of the capture, and the data of
  /// the edges. Both arrays stay until the next call for this stream.
  size_t capture_dependencies(const CUgraphNode** nodes,
                              const CUgraphEdgeData** edges);
  /// Adds to these nodes, or replaces them. Returns false if the stream does
  /// not capture, or if a node is not one of the captured graph.
  bool change_capture_dependencies(const CUgraphNode* nodes, size_t count,
                                   bool replace);
  /// The next node of the capture comes after this node.
  void capture_continues_after(CUgraphNode node);
  /// Makes the capture invalid; false if the stream does not capture.
  bool spoil_capture();
  bool capture_is_spoilt();
  /// Ends the capture and returns its graph. Returns CUDA_ERROR_ILLEGAL_STATE
  /// if there is no capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED if another
  /// stream began it, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED if a call could not
  /// be captured, CUDA_ERROR_STREAM_CAPTURE_UNJOINED if this stream does not
  /// wait for all captured work of other streams.
  CUresult end_capture(CUgraph* graph);
  /// Gives work to the stream and waits for it; runs the work on this thread if
  /// possible. If races are looked for and `promised` is false, the host only
  /// counts on the end of the work before it.
  void run(const std::function<void()>& work, bool promised = true);
  /// True when all work given so far is done.
  bool idle();
  /// True when the work of that number is done.
  bool done(uint64_t number);
  void wait_all();
  /// The frees that come before the work given so far.
  Order order_so_far();
  /// The frees that come before all work given from now on.
  Order order_from_now();
  /// Tells the stream that its later work comes after these frees. A wait that
  /// the stream already has makes sure of this order.
  void follow(const Order& frees);
  /// Ends the worker after the work given so far.
  void close();
  /// True when the stream is closed and has no work left.
  bool finished();

 private:
  struct Operation {
    std::function<void()> work;
    std::vector<Ticket> after;
    bool always = false;
    // If races are looked for: what the host knew, and the result.
    std::shared_ptr<race::Clock> host;
    std::shared_ptr<race::Clock> done;
    std::shared_ptr<race::Actor> actor;  ///< null: the stream's own
  };
  void prepare_for_races(Operation* operation);
  std::vector<Stream*> implied();
  std::vector<Ticket> predecessors();
  Ticket last_ticket();
  Ticket last_work();
  void wait(uint64_t number);
  void execute(Operation* operation);
  void execute_next(std::unique_lock<std::mutex>* lock);
  void enqueue(Operation operation);
  bool is_in_capture();
  void work_loop();

  friend std::shared_ptr<Stream> recorder_of(CUcontext, std::vector<Ticket>*,
                                             Order*);

  CUcontext const owner_;
  CUcontext const context_;
  const unsigned flags_;
  const int priority_;
  const bool legacy_;
  const unsigned long long id_;
  // The context's submit_mutex guards these two members.
  Order behind_;
  CapturePoint capture_;
  std::shared_ptr<race::Clock> last_done_;
  const std::shared_ptr<race::Actor> actor_;
  // What capture_dependencies() returned.
  std::vector<CUgraphNode> told_;
  std::vector<CUgraphEdgeData> told_edges_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queue_;
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;
  bool busy_ = false;
  bool worker_started_ = false;
  bool closed_ = false;
};

}  // namespace ipclab::model

/// The object of a CUstream.
struct CUstream_st {
  std::shared_ptr<ipclab::model::Stream> stream;
};

namespace ipclab::model {

/// `owner` may be a green context.
CUresult stream_create(CUcontext owner, unsigned flags, int priority,
                       CUstream* stream);
CUresult stream_destroy(CUstream stream);
/// True if a stream of the context captures for which the legacy stream waits.
bool legacy_stream_is_in_use(CUcontext context);
/// The stream of a handle. 0 and CU_STREAM_LEGACY are the legacy default stream
/// of the context, or of the green context of it that is current.
/// CU_STREAM_PER_THREAD is a stream for this thread; a green context has none.
/// Null if the stream does not exist.
std::shared_ptr<Stream> resolve_stream(CUstream handle, CUcontext context);
/// All streams of a context, with those of its green contexts; of a green
/// context only its own.
std::vector<std::shared_ptr<Stream>> streams_of(CUcontext context);
void destroy_streams(CUcontext context);
/// Adds a stream to the streams of a context. The stream's work waits for what
/// the context waits for.
void give_stream(CUcontext owner, const std::shared_ptr<Stream>& stream);
/// For cuCtxRecordEvent: the stream that completes the record, all work that
/// comes before it, and the frees that do.
std::shared_ptr<Stream> recorder_of(CUcontext context,
                                    std::vector<Ticket>* after, Order* frees);
/// For cuCtxWaitEvent: all future work of the context comes after this.
void context_waits(ContextWait wait);
/// Makes all captures of the context's streams invalid; false if there are
/// none.
bool spoil_captures(CUcontext context);

}  // namespace ipclab::model
