// Proves peers: `probe --peers N`. cudaDeviceCanAccessPeer is a promise and
// moves no byte. Here one process for each of the N GPUs lends memory to all
// others, and each pair of GPUs is used in both directions through the imported
// mapping: copies and kernels write and read data that are new each time,
// atomics of both GPUs meet in one word, two kernels talk while both run, and
// at last all pairs work at once. The owner of the memory checks, with its own
// GPU, what has arrived. A process that does not answer in time is killed.
//
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "harness/scenario/json.h"

namespace ipclab {
namespace {

constexpr size_t kCount = (4 << 20) / sizeof(unsigned);  // of one slot
constexpr size_t kWords = 1024;           // after the slots, for two kernels
constexpr int kRounds = 100;              // of a talk
constexpr int kAdders = 64, kAdds = 256;  // of one GPU
constexpr unsigned long long kPatience = 2'000'000'000;  // ns; of a kernel
constexpr int kDeadline = 15'000;  // ms; of a process, for one step

enum class Step : int {
  kPrepare,  // allocates; answers with the handle
  kOpen,
  kFill,   // its own slot
  kCheck,  // its own slot
  kCopyIn,
  kCopyOut,
  kKernelIn,
  kKernelOut,
  kAdd,
  kSum,
  kAsk,
  kAnswer,
  kAllIn,
};

struct Order {
  Step step;
  int peer;       // whose memory; -1: its own
  int slot;       // which of its own slots
  unsigned seed;  // of the data
  cudaIpcMemHandle_t handle;
};

struct Answer {
  bool good;
  bool promised;  // of kOpen: cudaDeviceCanAccessPeer
  bool atomics;   // of kOpen: the link promises native atomics
  cudaIpcMemHandle_t handle;
  char said[160];
};

__device__ unsigned value_at(size_t i, unsigned seed) {
  return static_cast<unsigned>(i) * 2654435761u ^ seed;
}

__global__ void fill(unsigned* data, unsigned seed) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < kCount;
       i += gridDim.x * blockDim.x)
    data[i] = value_at(i, seed);
}

__global__ void count_wrong(const volatile unsigned* data, unsigned seed,
                            unsigned* wrong) {
  unsigned mine = 0;
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < kCount;
       i += gridDim.x * blockDim.x)
    mine += data[i] != value_at(i, seed);
  if (mine != 0) atomicAdd(wrong, mine);
}

__global__ void add(unsigned* word) {
  for (int i = 0; i < kAdds; ++i) atomicAdd_system(word, 1u);
}

__device__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ bool arrives(const volatile unsigned* word, unsigned value) {
  const unsigned long long began = nanoseconds();
  while (*word != value)
    if (nanoseconds() - began > kPatience) return false;
  __threadfence_system();
  return true;
}

// words: question, flag of the question, answer, flag of the answer. `wrong` is
// 1 + the round in which the other side did not answer, or answered wrongly.
__global__ void ask(volatile unsigned* words, unsigned seed, unsigned* wrong) {
  for (unsigned round = 1; round <= kRounds; ++round) {
    words[0] = seed * round;
    __threadfence_system();
    words[64] = round;
    if (!arrives(words + 192, round) || words[128] != seed * round + 1) {
      *wrong = round;
      return;
    }
  }
}

__global__ void answer(volatile unsigned* words, unsigned seed,
                       unsigned* wrong) {
  for (unsigned round = 1; round <= kRounds; ++round) {
    if (!arrives(words + 64, round) || words[0] != seed * round) {
      *wrong = round;
      return;
    }
    words[128] = words[0] + 1;
    __threadfence_system();
    words[192] = round;
  }
}

// One GPU's process.
class Rank {
 public:
  Rank(int device, int count) : device_(device), peers_(count) {}

  Answer obey(const Order& order) {
    Answer given{};
    given.good = true;
    const std::string said = tried(order, &given);
    if (!said.empty()) given.good = false;
    std::snprintf(given.said, sizeof given.said, "%s", said.c_str());
    return given;
  }

 private:
  size_t slots() const { return peers_.size() + 1; }  // the last one is a guard
  unsigned* own(int slot) { return own_ + kCount * slot; }
  unsigned* at(const Order& order) {
    return order.peer < 0 ? own(order.slot)
                          : peers_[order.peer] + kCount * device_;
  }
  unsigned* words(const Order& order) {
    unsigned* const base = order.peer < 0 ? own_ : peers_[order.peer];
    return base + kCount * slots();
  }

  // What went wrong; empty if nothing did.
  std::string tried(const Order& order, Answer* given) {
    failed_.clear();
    switch (order.step) {
      case Step::kPrepare:
        prepare(given);
        break;
      case Step::kOpen:
        open(order, given);
        break;
      case Step::kFill:
      case Step::kKernelIn:
        fill<<<32, 256>>>(at(order), order.seed);
        settle("kernel");
        break;
      case Step::kCheck:
      case Step::kKernelOut:
        compare(at(order), order.seed);
        break;
      case Step::kCopyIn:
        fill<<<32, 256>>>(scratch_, order.seed);
        call(cudaMemcpy(at(order), scratch_, kCount * sizeof(unsigned),
                        cudaMemcpyDefault),
             "cudaMemcpy");
        settle("copy");
        break;
      case Step::kCopyOut:
        call(cudaMemcpy(scratch_, at(order), kCount * sizeof(unsigned),
                        cudaMemcpyDefault),
             "cudaMemcpy");
        settle("copy");
        compare(scratch_, order.seed);
        break;
      case Step::kAdd:
        add<<<1, kAdders>>>(words(order) + 512);
        settle("atomics");
        break;
      case Step::kSum:
        sum(order);
        break;
      case Step::kAsk:
      case Step::kAnswer:
        talk(order);
        break;
      case Step::kAllIn:
        for (size_t peer = 0; peer < peers_.size(); ++peer)
          if (peers_[peer] != nullptr)
            fill<<<8, 256, 0, streams_[peer]>>>(peers_[peer] + kCount * device_,
                                                order.seed);
        settle("kernels");
        break;
    }
    return failed_;
  }

  void prepare(Answer* given) {
    call(cudaSetDevice(device_), "cudaSetDevice");
    const size_t bytes = (kCount * slots() + kWords) * sizeof(unsigned);
    // Whole blocks of 2 MiB, so that no other memory is lent.
    call(cudaMalloc(&own_, (bytes + (2 << 20) - 1) / (2 << 20) * (2 << 20)),
         "cudaMalloc");
    call(cudaMalloc(&scratch_, kCount * sizeof(unsigned)), "cudaMalloc");
    call(cudaMalloc(&wrong_, sizeof *wrong_), "cudaMalloc");
    streams_.resize(peers_.size());
    for (cudaStream_t& stream : streams_)
      call(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
           "cudaStreamCreateWithFlags");
    if (!failed_.empty()) return;
    call(cudaMemset(own_, 0, bytes), "cudaMemset");
    settle("cudaMemset");
    call(cudaIpcGetMemHandle(&given->handle, own_), "cudaIpcGetMemHandle");
  }

  void open(const Order& order, Answer* given) {
    int can = 0, atomics = 0;
    call(cudaDeviceCanAccessPeer(&can, device_, order.peer),
         "cudaDeviceCanAccessPeer");
    given->promised = can != 0;
    if (can == 0) return;
    call(
        cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported,
                                  device_, order.peer),
        "cudaDeviceGetP2PAttribute");
    given->atomics = atomics != 0;
    void* opened = nullptr;
    call(cudaIpcOpenMemHandle(&opened, order.handle,
                              cudaIpcMemLazyEnablePeerAccess),
         "cudaIpcOpenMemHandle");
    if (failed_.empty()) peers_[order.peer] = static_cast<unsigned*>(opened);
  }

  void compare(const unsigned* data, unsigned seed) {
    call(cudaMemset(wrong_, 0, sizeof *wrong_), "cudaMemset");
    count_wrong<<<32, 256>>>(data, seed, wrong_);
    if (const unsigned wrong = result("kernel"); wrong != 0)
      fail(std::to_string(wrong) + " of " + std::to_string(kCount) +
           " values are wrong");
  }

  void sum(const Order& order) {
    unsigned found = 0;
    call(
        cudaMemcpy(&found, words(order) + 512, sizeof found, cudaMemcpyDefault),
        "cudaMemcpy");
    const unsigned expected = 2 * kAdders * kAdds;
    if (failed_.empty() && found != expected)
      fail("atomics of both GPUs gave " + std::to_string(found) + ", not " +
           std::to_string(expected));
    call(cudaMemset(words(order), 0, kWords * sizeof(unsigned)), "cudaMemset");
    settle("cudaMemset");
  }

  void talk(const Order& order) {
    call(cudaMemset(wrong_, 0, sizeof *wrong_), "cudaMemset");
    settle("cudaMemset");
    if (order.step == Step::kAsk)
      ask<<<1, 1>>>(words(order), order.seed, wrong_);
    else
      answer<<<1, 1>>>(words(order), order.seed, wrong_);
    if (const unsigned round = result("kernel"); round != 0)
      fail("two kernels do not hear each other: round " +
           std::to_string(round) + " of " + std::to_string(kRounds));
  }

  unsigned result(const char* what) {
    unsigned found = 0;
    settle(what);
    call(cudaMemcpy(&found, wrong_, sizeof found, cudaMemcpyDefault),
         "cudaMemcpy");
    return failed_.empty() ? found : 0;
  }

  void settle(const char* what) {
    call(cudaGetLastError(), what);
    call(cudaDeviceSynchronize(), what);
  }

  void call(cudaError_t code, const char* what) {
    cudaGetLastError();
    if (code != cudaSuccess)
      fail(std::string(what) + ": " + cudaGetErrorName(code));
  }

  void fail(const std::string& why) {
    if (failed_.empty()) failed_ = why;
  }

  const int device_;
  std::vector<unsigned*> peers_;
  std::vector<cudaStream_t> streams_;
  unsigned *own_ = nullptr, *scratch_ = nullptr, *wrong_ = nullptr;
  std::string failed_;
};

// All GPUs' processes, seen from the process that judges.
class Gang {
 public:
  Gang(int count, const char* program) : count_(count), program_(program) {}
  ~Gang() { end(); }

  // Starts the processes; returns what went wrong, or nothing.
  std::string start() {
    for (int rank = 0; rank < count_; ++rank) {
      int ends[2];
      if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return "no socket";
      const pid_t pid = fork();
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const std::string socket = std::to_string(dup(ends[1]));
        const std::string mine = std::to_string(rank);
        const std::string all = std::to_string(count_);
        const char* const self = "/proc/self/exe";
        const char* const path = access(self, X_OK) == 0 ? self : program_;
        execl(path, program_, "--peer", mine.c_str(), all.c_str(),
              socket.c_str(), nullptr);
        _exit(127);
      }
      close(ends[1]);
      sockets_.push_back(ends[0]);
      processes_.push_back(pid);
    }
    handles_.resize(count_);
    for (int rank = 0; rank < count_; ++rank) {
      const Answer given = ask(rank, {Step::kPrepare, -1, 0, 0, {}});
      if (!given.good) return given.said;
      handles_[rank] = given.handle;
    }
    return "";
  }

  void end() {
    for (const int socket : sockets_) close(socket);
    for (const pid_t pid : processes_) {
      if (hung_) kill(pid, SIGKILL);
      // Those that are well end when their socket ends.
      for (int i = 0; i < 300 && waitpid(pid, nullptr, WNOHANG) == 0; ++i) {
        if (i == 200) kill(pid, SIGKILL);
        poll(nullptr, 0, 20);
      }
    }
    sockets_.clear();
    processes_.clear();
    hung_ = false;
  }

  bool hung() const { return hung_; }

  void send(int rank, Order order) {
    if (order.peer >= 0) order.handle = handles_[order.peer];
    if (::send(sockets_[rank], &order, sizeof order, MSG_NOSIGNAL) < 0)
      hung_ = true;
  }

  Answer hear(int rank) {
    Answer given{};
    pollfd ready{sockets_[rank], POLLIN, 0};
    const int came = hung_ ? 0 : poll(&ready, 1, kDeadline);
    if (came == 1 && recv(sockets_[rank], &given, sizeof given, 0) ==
                         static_cast<ssize_t>(sizeof given))
      return given;
    std::snprintf(
        given.said, sizeof given.said,
        came == 1 ? "the process of GPU %d has died" : "GPU %d does not answer",
        rank);
    hung_ = true;
    return given;
  }

  Answer ask(int rank, const Order& order) {
    send(rank, order);
    return hear(rank);
  }

 private:
  const int count_;
  const char* const program_;
  std::vector<int> sockets_;
  std::vector<pid_t> processes_;
  std::vector<cudaIpcMemHandle_t> handles_;
  bool hung_ = false;
};

unsigned next_seed() {
  static unsigned last = static_cast<unsigned>(getpid());
  return last = last * 1664525u + 1013904223u;
}

// The steps of one pair and their outcomes, as JSON.
class Pair {
 public:
  Pair(Gang& gang, int from, int to, int count)
      : gang_(gang), from_(from), to_(to), guard_(count) {}

  Json prove() {
    const Answer opened = ask(from_, Step::kOpen, to_);
    promised_ = opened.promised;
    note("open", opened);
    if (promised_ && good_) {
      const unsigned guard = next_seed();
      note("guard", own(Step::kFill, guard_, guard));
      for (int round = 0; good_ && round < 2; ++round) {
        writes("copy to the peer", Step::kCopyIn);
        reads("copy from the peer", Step::kCopyOut);
        writes("kernel writes", Step::kKernelIn);
        reads("kernel reads", Step::kKernelOut);
      }
      if (opened.atomics) both("atomics", Step::kAdd, Step::kAdd, Step::kSum);
      both("two kernels talk", Step::kAsk, Step::kAnswer, Step::kSum);
      if (good_) note("guard", own(Step::kCheck, guard_, guard));
    }
    return Json::object()
        .add("from", from_)
        .add("to", to_)
        .add("promised", promised_)
        .add("atomics", opened.atomics)
        .add("proved", proved())
        .add("failed", failed_)
        .add("said", said_);
  }

  bool proved() const { return promised_ && good_; }

 private:
  Answer ask(int rank, Step step, int peer, unsigned seed = 0) {
    return gang_.ask(rank, {step, peer, 0, seed, {}});
  }
  Answer own(Step step, int slot, unsigned seed) {
    return gang_.ask(to_, {step, -1, slot, seed, {}});
  }

  void note(const char* step, const Answer& given) {
    if (given.good || !good_) return;
    good_ = false;
    failed_ = step;
    said_ = given.said;
  }

  void writes(const char* name, Step step) {
    if (!good_) return;
    const unsigned seed = next_seed();
    note(name, ask(from_, step, to_, seed));
    if (good_) note(name, own(Step::kCheck, from_, seed));
  }

  void reads(const char* name, Step step) {
    if (!good_) return;
    const unsigned seed = next_seed();
    note(name, own(Step::kFill, from_, seed));
    if (good_) note(name, ask(from_, step, to_, seed));
  }

  // Both GPUs work at once; then the owner looks at the words and clears them.
  void both(const char* name, Step of_peer, Step of_owner, Step after) {
    if (!good_) return;
    const unsigned seed = next_seed() | 1u;
    gang_.send(to_, {of_owner, -1, 0, seed, {}});
    gang_.send(from_, {of_peer, to_, 0, seed, {}});
    const Answer second = gang_.hear(to_);
    note(name, gang_.hear(from_));
    note(name, second);
    const Answer sum = own(after, 0, 0);
    if (of_peer == Step::kAdd) note(name, sum);
  }

  Gang& gang_;
  const int from_, to_, guard_;
  bool promised_ = false, good_ = true;
  std::string failed_, said_;
};

// All GPUs write to all their peers at once.
Json together(Gang& gang, const std::vector<std::vector<bool>>& proved) {
  const int count = static_cast<int>(proved.size());
  std::vector<unsigned> seeds(count);
  std::string said;
  for (int round = 0; said.empty() && round < 3; ++round) {
    for (int rank = 0; rank < count; ++rank) {
      seeds[rank] = next_seed();
      gang.send(rank, {Step::kAllIn, -1, 0, seeds[rank], {}});
    }
    for (int rank = 0; rank < count; ++rank)
      if (const Answer given = gang.hear(rank); !given.good) said = given.said;
    for (int from = 0; from < count; ++from)
      for (int to = 0; said.empty() && to < count; ++to) {
        if (!proved[from][to]) continue;
        const Answer given =
            gang.ask(to, {Step::kCheck, -1, from, seeds[from], {}});
        if (!given.good)
          said = std::to_string(from) + " -> " + std::to_string(to) + ": " +
                 given.said;
      }
  }
  return Json::object().add("good", said.empty()).add("said", said);
}

}  // namespace

int prove_peers(int count, const char* program) {
  const auto began = std::chrono::steady_clock::now();
  Gang gang(count, program);
  std::vector<std::vector<bool>> proved(count, std::vector<bool>(count));
  Json pairs = Json::array();
  std::string problem = gang.start();
  bool every = true;
  for (int from = 0; problem.empty() && from < count; ++from)
    for (int to = 0; problem.empty() && to < count; ++to) {
      if (from == to) continue;
      if (gang.hung()) {
        gang.end();
        problem = gang.start();
        every = false;
        if (!problem.empty()) break;
      }
      Pair pair(gang, from, to, count);
      pairs.append(pair.prove());
      proved[from][to] = pair.proved();
      every = every && pair.proved();
    }
  Json all = Json::object().add("good", false).add("said", "not tried");
  if (problem.empty() && every && !gang.hung()) all = together(gang, proved);
  gang.end();
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - began;
  const Json document =
      Json::object()
          .add("pairs", pairs)
          .add("together", all)
          .add("problem", problem)
          .add("milliseconds", static_cast<int>(took.count() * 1000));
  std::printf("%s\n", document.text().c_str());
  return 0;
}

int be_peer(int rank, int count, int socket) {
  Rank own(rank, count);
  Order order;
  while (recv(socket, &order, sizeof order, 0) ==
         static_cast<ssize_t>(sizeof order)) {
    const Answer given = own.obey(order);
    if (send(socket, &given, sizeof given, MSG_NOSIGNAL) < 0) break;
  }
  return 0;
}

}  // namespace ipclab
