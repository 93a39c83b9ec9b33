// SPDX-License-Identifier: Apache-2.0
#include "harness/explore/executor.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>
#include <system_error>

#include "harness/explore/world/ends.h"
#include "harness/scenario/cuda.h"
#include "harness/scenario/process.h"
#include "samples/common/channel.h"

namespace ipclab::explore {
namespace {

[[noreturn]] void system_failed(const char* call) {
  throw std::system_error(errno, std::generic_category(), call);
}

std::string name_of_code(int code) {
  return ipclab::name_of(static_cast<cudaError_t>(code));
}

bool is_refusal_of_the_driver_api(const Step& step) {
  if (step.how >= kFirstOfList)
    return std::strstr(refusal(step.how).body, "DRIVER(") != nullptr;
  return step.api == 1 || (step.how >= kMapTwice && step.how <= kUnmapPart);
}

}  // namespace

Executor::Executor(std::function<bool(const Failure&)> known,
                   Deadlines deadlines)
    : known_(std::move(known)), deadlines_(deadlines) {
  gates_file_ = Descriptor(memfd_create("ipclab explore", MFD_CLOEXEC));
  if (!gates_file_) system_failed("memfd_create");
  if (ftruncate(gates_file_.get(), sizeof(Gates)) != 0)
    system_failed("ftruncate");
  void* const mapped = mmap(nullptr, sizeof(Gates), PROT_READ | PROT_WRITE,
                            MAP_SHARED, gates_file_.get(), 0);
  if (mapped == MAP_FAILED) system_failed("mmap");
  gates_ = static_cast<Gates*>(mapped);
  gates_->open[kGates] = 1;
}

// A driver may keep a killed process for a while, or for ever. So this waits
// three seconds at most. Whoever started the search then inherits the process.
Executor::~Executor() {
  end_roles();
  reap(std::chrono::seconds(3));
  munmap(gates_, sizeof(Gates));
}

// --- roles ------------------------------------------------------------------

Executor::RoleProcess Executor::fork_role(int gpu) {
  const Times::Phase phase(times_, "start");
  int ends[kThreads][2];
  std::vector<std::string> words = {"explore", "--role", std::to_string(gpu),
                                    asked_ ? "0" : "1"};
  std::vector<Descriptor> theirs;
  theirs.emplace_back(dup(gates_file_.get()));  // exec keeps it open
  words.push_back(std::to_string(theirs.back().get()));
  RoleProcess role;
  role.gpu = gpu;
  for (int t = 0; t < kThreads; ++t) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends[t]) != 0)
      system_failed("socketpair");
    role.wires[static_cast<size_t>(t)] = Wire(Descriptor(ends[t][0]));
    const Descriptor other(ends[t][1]);
    theirs.emplace_back(dup(other.get()));
    words.push_back(std::to_string(theirs.back().get()));
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  role.pid = fork();
  if (role.pid == -1) system_failed("fork");
  if (role.pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent) execv("/proc/self/exe", arguments.data());
    _exit(EXIT_FAILURE);
  }
  ++started_;
  return role;
}

// Gives a process of programs its role, which may not be ready yet.
void Executor::take_role(int which) {
  const int gpu = machine_.gpu_of(which);
  const auto found =
      std::find_if(spare_.begin(), spare_.end(),
                   [&](const RoleProcess& role) { return role.gpu == gpu; });
  if (found == spare_.end()) {
    roles_[which] = fork_role(gpu);
    return;
  }
  roles_[which] = std::move(*found);
  spare_.erase(found);
}

void Executor::await_start(int which) {
  if (roles_.at(which).ready) return;
  const Times::Phase phase(times_, "start");
  doing_ = "start of a role";
  bool died = false;
  const auto hello = next_frame(which, 0, deadlines_.start, &died);
  if (!hello) {
    const std::string why =
        died ? how_it_ended(which) : "no answer at the start";
    end(which);
    throw std::runtime_error("a role cannot start: " + why);
  }
  Answer answer;
  std::memcpy(static_cast<void*>(&answer), hello->data.data(), sizeof answer);
  const bool side_by_side =
      asked_ ? machine_.side_by_side : answer.machine.side_by_side;
  machine_ = answer.machine;
  machine_.side_by_side = side_by_side;
  machine_.gpus = std::min(machine_.gpus, most_gpus_);
  asked_ = roles_.at(which).ready = true;
}

// Waits for the end of killed processes, for no longer than the limit.
void Executor::reap(std::chrono::seconds limit) {
  const Times::Phase phase(times_, "end");
  const auto end = Times::Clock::now() + limit;
  const auto ended = [](pid_t pid) {
    return waitpid(pid, nullptr, WNOHANG) != 0;
  };
  for (;;) {
    killed_.erase(std::remove_if(killed_.begin(), killed_.end(), ended),
                  killed_.end());
    if (killed_.empty() || Times::Clock::now() >= end) return;
    ::poll(nullptr, 0, 1);
  }
}

// Is a process on its way, so that a driver may let other calls wait?
bool Executor::is_starting() const {
  return std::any_of(spare_.begin(), spare_.end(), [](const RoleProcess& role) {
    return !wait_for(role.wires[0].socket(), POLLIN,
                     std::chrono::milliseconds(0));
  });
}

// How long a call may take. A reset is an end and a start.
std::chrono::milliseconds Executor::patience(const Step& step) const {
  return deadlines_.answer * (step.op == Op::kEnd ? 2 : 1);
}

void Executor::end(int which, std::chrono::seconds limit) {
  const auto found = roles_.find(which);
  if (found == roles_.end()) return;
  const pid_t pid = found->second.pid;
  roles_.erase(found);
  if (pid <= 0) return;
  kill(pid, SIGKILL);
  killed_.push_back(pid);
  reap(limit);
}

void Executor::end_roles() {
  // Work that runs makes the end of a process slow.
  for (int gate = 0; gate < kGates; ++gate) gates_->open[gate] = 1;
  const auto end = [&](const RoleProcess& role) {
    if (role.pid <= 0) return;
    kill(role.pid, SIGKILL);
    killed_.push_back(role.pid);
  };
  for (const auto& [which, role] : roles_) end(role);
  roles_.clear();
  if (!ahead_) {
    std::for_each(spare_.begin(), spare_.end(), end);
    spare_.clear();
  }
  // A driver needs up to a second for each of them. Nothing waits for that.
  reap(std::chrono::seconds(0));
}

const Machine& Executor::machine() {
  if (!asked_) {
    take_role(0);
    await_start(0);
  }
  return machine_;
}

std::string Executor::how_it_ended(int which) {
  int status = 0;
  pid_t& pid = roles_.at(which).pid;
  // The socket closes shortly before the process ends.
  const auto end =
      std::min(end_, Times::Clock::now() + std::chrono::seconds(10));
  pid_t got = 0;
  while ((got = waitpid(pid, &status, WNOHANG)) == 0 &&
         Times::Clock::now() < end)
    ::poll(nullptr, 0, 1);
  if (got != pid) return "its socket closed";
  pid = -1;
  return WIFSIGNALED(status)
             ? "killed by " + signal_name(WTERMSIG(status))
             : "exit code " + std::to_string(WEXITSTATUS(status));
}

std::optional<Frame> Executor::next_frame(int which, int thread,
                                          std::chrono::milliseconds limit,
                                          bool* died) {
  using std::chrono::milliseconds;
  constexpr milliseconds kSlice{500};
  Wire& wire = roles_.at(which).wires[static_cast<size_t>(thread)];
  const auto end = Times::Clock::now() + limit;
  for (;;) {
    if (auto frame = wire.next()) return frame;
    const auto now = Times::Clock::now();
    const auto left = std::chrono::ceil<milliseconds>(
        std::max(std::min(end, end_) - now, Times::Clock::duration::zero()));
    if (wait_for(wire.socket(), POLLIN, std::min(left, kSlice))) {
      if (wire.read_some()) continue;
      *died = true;
      return std::nullopt;
    }
    if (limit.count() != 0 && Times::Clock::now() >= end_) throw OutOfTime();
    if (Times::Clock::now() >= end) return std::nullopt;
    if (on_wait_) on_wait_();
  }
}

bool Executor::send(const Step& step, Frame::Kind kind) {
  Frame frame;
  frame.kind = kind;
  frame.data.assign(reinterpret_cast<const char*>(&step), sizeof step);
  const bool takes_on = step.op == Op::kOpenMemory ||
                        step.op == Op::kOpenEvent ||
                        step.op == Op::kImportChunk ||
                        step.op == Op::kImportPool || step.op == Op::kRefuse;
  const int which = step.op == Op::kImportPointer ? step.from
                    : takes_on                    ? step.on
                                                  : 0;
  if (const auto found = handles_.find(which); found != handles_.end()) {
    frame.data += found->second.bytes;
    if (found->second.descriptor)
      frame.descriptor = Descriptor(dup(found->second.descriptor.get()));
  }
  Wire& wire = roles_.at(step.process).wires[static_cast<size_t>(step.thread)];
  wire.queue(frame);
  return wire.flush();
}

// --- answers ----------------------------------------------------------------

Failure Executor::failure(const Sent& sent, const char* check, std::string seen,
                          std::string wanted) const {
  return {sent.index, sent.step,       sent.expected.row,
          check,      std::move(seen), std::move(wanted)};
}

// A process that destroyed a pool with memory in use may die of it in a later
// call, and in a later program (finding 4). If the end of a process in this
// destroy is a known deviation, so is its later end.
Failure Executor::death(const Sent& sent, const std::string& wanted) {
  const std::string how = how_it_ended(sent.step.process);
  auto late = roles_.at(sent.step.process).later;
  if (late && how != wanted) {
    late->seen = how;
    if (is_known(*late)) return *late;
  }
  return failure(sent, "died", how, wanted);
}

std::optional<Failure> Executor::await(const Sent& sent, Reply* reply) {
  bool died = false;
  const auto began = Times::Clock::now();
  doing_ = "step " + std::to_string(sent.index) + ": " + to_text(sent.step);
  const auto wait = [&] {
    return next_frame(sent.step.process, sent.step.thread, patience(sent.step),
                      &died);
  };
  auto frame = wait();
  // A driver may start one process after the other, and answer nobody
  // meanwhile.
  while (!frame && !died && is_starting() &&
         Times::Clock::now() < began + deadlines_.start)
    frame = wait();
  Cost& cost = costs_[sent.step.op];
  const double seconds =
      std::chrono::duration<double>(Times::Clock::now() - began).count();
  ++cost.calls;
  cost.seconds += seconds;
  cost.most = std::max(cost.most, seconds);
  if (died) return death(sent, "an answer");
  if (!frame) times_.were("deadline", seconds);
  if (!frame)
    return failure(sent, "hang",
                   answers_if_gates_open(sent) ? kWaitsForHeld
                                               : "no answer at the deadline",
                   "an answer");
  std::memcpy(static_cast<void*>(&reply->answer), frame->data.data(),
              sizeof reply->answer);
  reply->parcel = {frame->data.substr(sizeof reply->answer),
                   std::move(frame->descriptor)};
  return std::nullopt;
}

// The call has not answered. Does it go on as soon as nothing is held?
bool Executor::answers_if_gates_open(const Sent& sent) {
  for (int gate = 0; gate < kGates; ++gate) gates_->open[gate] = 1;
  bool died = false;
  return next_frame(sent.step.process, sent.step.thread,
                    std::chrono::milliseconds(1000), &died)
      .has_value();
}

Json Executor::slowest(size_t most) const {
  std::vector<std::pair<Op, Cost>> all(costs_.begin(), costs_.end());
  std::sort(all.begin(), all.end(), [](const auto& one, const auto& other) {
    return one.second.seconds > other.second.seconds;
  });
  if (all.size() > most) all.resize(most);
  Json list = Json::array();
  for (const auto& [op, cost] : all)
    list.append(Json::object()
                    .add("operation", name_of(op))
                    .add("calls", cost.calls)
                    .raw("seconds", std::to_string(cost.seconds))
                    .raw("longest", std::to_string(cost.most)));
  return list;
}

std::optional<Failure> Executor::judge(const Sent& sent, Reply& reply) {
  const Expected& expected = sent.expected;
  const Answer& answer = reply.answer;
  std::vector<int> codes = expected.codes;
  if (codes.empty()) codes = {0};
  std::string wanted;
  for (const int code : codes)
    wanted += (wanted.empty() ? "" : " or ") + name_of_code(code);
  if (std::find(codes.begin(), codes.end(), answer.code) == codes.end())
    return failure(sent, "code", name_of_code(answer.code), wanted);
  const bool judges_error = answer.code == 0 || expected.refused;
  const int last_error =
      expected.refused && !is_refusal_of_the_driver_api(sent.step) ? answer.code
                                                                   : 0;
  if (judges_error && answer.last_error != last_error)
    return failure(sent, "last error", name_of_code(answer.last_error),
                   name_of_code(last_error));
  if (expected.refused || answer.code != 0) return std::nullopt;
  if (expected.judges_value &&
      (answer.value < expected.least || answer.value > expected.most))
    return failure(sent, "value", std::to_string(answer.value),
                   std::to_string(expected.least) +
                       (expected.most == expected.least
                            ? ""
                            : " to " + std::to_string(expected.most)));
  if (expected.judges_bytes) {
    const std::string& seen = reply.parcel.bytes;
    for (size_t i = 0; i < expected.bytes.size(); ++i)
      if (i >= seen.size() ||
          static_cast<uint8_t>(seen[i]) != expected.bytes[i])
        return failure(sent, "bytes",
                       i >= seen.size()
                           ? "fewer bytes"
                           : "byte " + std::to_string(i) + " of " +
                                 std::to_string(expected.bytes.size()) +
                                 " is " +
                                 std::to_string(static_cast<uint8_t>(seen[i])),
                       std::to_string(expected.bytes[i]));
  }
  if (answer.address != 0) addresses_[sent.step.id] = answer.address;
  if (expected.same_address != 0 &&
      addresses_[expected.same_address] != answer.address)
    return failure(sent, "address", "another address",
                   "the address of the first open");
  switch (sent.step.op) {
    case Op::kExportMemory:
    case Op::kExportChunk:
    case Op::kExportPool:
    case Op::kExportPointer:
    case Op::kExportEvent:
      handles_[sent.step.id] = std::move(reply.parcel);
      break;
    default:
      break;
  }
  return std::nullopt;
}

std::optional<Failure> Executor::returned_early() {
  for (const Sent& call : held_) {
    bool died = false;
    auto frame = next_frame(call.step.process, call.step.thread,
                            std::chrono::milliseconds(0), &died);
    if (died) return death(call, "a wait");
    if (frame) return failure(call, "returned early", "it returned", "a wait");
  }
  return std::nullopt;
}

// Makes the steps of one group, or one step.
std::optional<Failure> Executor::perform(std::vector<Sent>& batch) {
  std::vector<const Sent*> asked;
  for (const Sent& sent : batch) {
    const Step& step = sent.step;
    switch (step.op) {
      case Op::kOpenGate: {
        if (auto early = returned_early()) return early;
        gates_->open[sent.step.value] = 1;
        continue;
      }
      case Op::kDropHandle:
        handles_.erase(step.on);
        continue;
      case Op::kStart:
        take_role(step.process);
        await_start(step.process);
        continue;
      case Op::kEnd:
        if (step.how == kReset) break;
        if (step.how == kKilled) {
          held_.erase(std::remove_if(held_.begin(), held_.end(),
                                     [&](const Sent& call) {
                                       return call.step.process == step.process;
                                     }),
                      held_.end());
          end(step.process);
          continue;
        }
        send(step, Frame::kPost);
        {
          bool died = false;
          next_frame(step.process, step.thread, deadlines_.answer, &died);
          if (!died)
            return failure(sent, "hang", "the process does not end", "its end");
          const Failure ended = death(sent, "exit code 0");
          end(step.process);
          if (ended.seen != "exit code 0") return ended;
        }
        continue;
      default:
        break;
    }
    if (!send(step, sent.expected.held ? Frame::kWant : Frame::kPost))
      return death(sent, "an answer");
    if (sent.expected.outlived)
      roles_.at(step.process).later = failure(sent, "died", "", "an answer");
    asked.push_back(&sent);
  }
  // Each answer is read, so that a known deviation does not end the roles.
  std::optional<Failure> first;
  for (const Sent* sent : asked) {
    Reply reply;
    if (auto wrong = await(*sent, &reply)) return wrong;
    if (sent->expected.held)  // the role has begun the call
      held_.push_back(*sent);
    else if (auto wrong = judge(*sent, reply); wrong && !is_known(*wrong))
      first = first ? first : wrong;
  }
  return first;
}

// Held calls return exactly when they have to.
std::optional<Failure> Executor::after_batch(const std::vector<Sent>& batch) {
  std::optional<Failure> first;
  for (const Sent& sent : batch)
    for (const Held& call : sent.expected.returned) {
      const auto found =
          std::find_if(held_.begin(), held_.end(), [&](const Sent& one) {
            return one.step.process == call.process &&
                   one.step.thread == call.thread;
          });
      if (found == held_.end()) continue;
      const Sent waited = *found;
      held_.erase(found);
      Reply reply;
      if (auto wrong = await(waited, &reply)) return wrong;
      if (auto wrong = judge(waited, reply); wrong && !is_known(*wrong))
        first = first ? first : wrong;
    }
  if (auto early = returned_early()) return early;
  return first;
}

// Ends what a program has left, also by the end of the process that did not
// answer. Is all of it gone, without an error?
bool Executor::cleans(Shadow& shadow, const std::optional<Failure>& wrong) {
  const bool answers =
      !wrong || (wrong->check != "hang" && wrong->check != "died" &&
                 wrong->check != "returned early");
  Step lost;
  lost.op = Op::kEnd;
  lost.how = kKilled;
  lost.process = answers ? -1 : wrong->step.process;
  const auto of_another = [&](const Sent& call) {
    return call.step.process != lost.process;
  };
  if (!answers) {
    // Answers of others may not be read.
    if (wrong->step.group != 0 ||
        std::any_of(held_.begin(), held_.end(), of_another))
      return false;
    held_.clear();
    end(lost.process, std::chrono::seconds(0));
  }
  bool fine = true;
  const auto make = [&](const Step& step) {
    Sent sent{0, step, {}};
    const bool by_role = step.op != Op::kOpenGate && step.op != Op::kDropHandle;
    if (!fine || (by_role && roles_.count(step.process) == 0) ||
        !shadow.apply(step, &sent.expected))
      return false;
    std::vector<Sent> batch = {sent};
    fine = !perform(batch) && !after_batch(batch);
    return fine;
  };
  end_all(shadow, make);
  Expected ignored;
  if (!answers && shadow.apply(lost, &ignored)) end_all(shadow, make);
  return fine && shadow.is_clean();
}

// Waits for the work of the processes of a batch. This is no step of the
// program, so nothing is judged.
void Executor::settle(const Shadow& shadow, const std::vector<Sent>& batch) {
  for (const Sent& sent : batch) {
    const int which = sent.step.process;
    const Process& process = shadow.process[static_cast<size_t>(which)];
    const bool held =
        std::any_of(std::begin(process.held), std::end(process.held),
                    [](bool one) { return one; });
    if (!process.alive || process.capture != 0 || held || !shadow.quiet(which))
      continue;
    Sent sync{sent.index, {}, {}};
    sync.step.op = Op::kSyncDevice;
    sync.step.process = which;
    Reply ignored;
    if (send(sync.step, Frame::kPost)) await(sync, &ignored);
  }
}

std::optional<Failure> Executor::leak(const Program& program,
                                      bool judge_memory) {
  // The first runs make what a driver makes once.
  constexpr int kWarm = 2, kJudged = 3;
  end_roles();
  reap(std::chrono::seconds(3));  // what they have is not free yet
  Rest last;
  bool less_memory = judge_memory, more_files = true;
  int64_t lost = 0;
  for (int i = 0; i < kWarm + kJudged; ++i) {
    if (run(program) || !rest_.known) return std::nullopt;
    if (i >= kWarm) {
      less_memory = less_memory && rest_.free_bytes < last.free_bytes;
      more_files = more_files && rest_.open_files > last.open_files;
      lost += last.free_bytes - rest_.free_bytes;
    }
    last = rest_;
  }
  if (!less_memory && !more_files) return std::nullopt;
  Failure failure;
  failure.index = program.steps.size() - 1;
  failure.step = program.steps.back();
  failure.row = "LIFE-01";
  failure.check = "leak";
  failure.seen = less_memory
                     ? std::to_string(lost / kJudged) + " bytes of the GPU"
                     : "open files";
  failure.wanted = "nothing is left after each run";
  return failure;
}

bool Executor::is_known(const Failure& failure) const {
  return known_ && known_(failure);
}

std::optional<Failure> Executor::run(const Program& program) {
  const Times::Phase phase(times_, "run");
  // A small program may have processes without a step.
  std::set<int> actors;
  for (const Step& step : program.steps) actors.insert(step.process);
  for (const int p : actors)
    if (roles_.count(p) == 0) take_role(p);
  for (const int p : actors) await_start(p);
  // A driver needs a second to start a process; so they start early.
  std::map<int, int> soon;  // GPU -> starts
  for (const Step& step : program.steps)
    if (step.op == Op::kStart) ++soon[machine_.gpu_of(step.process)];
  if (ahead_)
    for (const int p : actors) ++soon[machine_.gpu_of(p)];
  for (const RoleProcess& role : spare_) --soon[role.gpu];
  for (const auto& [gpu, count] : soon)
    for (int i = 0; i < count; ++i) spare_.push_back(fork_role(gpu));
  for (int gate = 0; gate < kGates; ++gate) gates_->open[gate] = 0;
  gates_->gave_up = 0;
  handles_.clear();
  addresses_.clear();
  held_.clear();
  rest_ = {};
  Shadow shadow(machine_, program.processes);
  std::vector<Sent> batch;
  std::optional<Failure> wrong;
  for (size_t i = 0; i < program.steps.size() && !wrong; ++i) {
    const Step& step = program.steps[i];
    Sent sent{i, step, {}};
    if (shadow.apply(step, &sent.expected)) {
      batch.push_back(std::move(sent));
      ++steps_;
    }
    const bool more = step.group != 0 && i + 1 < program.steps.size() &&
                      program.steps[i + 1].group == step.group;
    if (more) continue;
    wrong = perform(batch);
    if (!wrong) wrong = after_batch(batch);
    if (!wrong && steady_) settle(shadow, batch);
    batch.clear();
  }
  if (!wrong && gates_->gave_up != 0)
    throw std::runtime_error("a gate's kernel waited for a minute");
  const bool is_left = wrong || !shadow.is_clean();
  if (is_left && !(lasting_ && cleans(shadow, wrong))) {
    end_roles();
  } else {
    std::optional<Failure> slow;
    bool is_lost = false;  // a context after an error
    for (auto& [which, role] : roles_) {
      Step none;
      none.process = which;
      Sent sent{program.steps.size(), none, {}};
      Reply reply;
      if (!send(none, Frame::kPlay)) continue;
      slow = await(sent, &reply);
      if (slow) break;
      is_lost = is_lost || reply.answer.code != 0;
      // The processes before this number use different GPUs.
      if (which < machine_.gpus) rest_.free_bytes += reply.answer.free_bytes;
      rest_.open_files += reply.answer.open_files;
    }
    rest_.known = !is_left && !slow;
    if (slow || is_lost) end_roles();
    // A slow answer is no verdict: the role asks the kernel about itself.
    if (!wrong && slow && slow->check != "hang") wrong = slow;
  }
  if (wrong && is_known(*wrong)) return std::nullopt;
  return wrong;
}

}  // namespace ipclab::explore
