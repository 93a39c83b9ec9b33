// SPDX-License-Identifier: Apache-2.0
#include "referee.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>

#include "process.h"

namespace ipclab {
namespace {

constexpr size_t kOutputHead = 4096;   // of what a role prints, kept from the
constexpr size_t kOutputTail = 12288;  // beginning and from the end
constexpr long kTimelineHead = 200, kTimelineTail = 400;  // entries kept

void require(bool good, const char* what) {
  if (!good) throw std::system_error(errno, std::generic_category(), what);
}

// The state of the process in proc(5): R, S, D, T …
char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const size_t end = stat.rfind(')');
  return end == std::string::npos || end + 2 >= stat.size() ? '?'
                                                            : stat[end + 2];
}

// The environment of this process, changed for one role.
std::vector<std::string> environment_for(
    const std::map<std::string, std::string>& changes) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    if (changes.count(name) == 0) environment.emplace_back(*entry);
  }
  for (const auto& [name, value] : changes)
    environment.emplace_back(name).append("=").append(value);
  return environment;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  list.reserve(texts.size() + 1);
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

std::string current_test() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  return std::string(test->test_suite_name()) + "." + test->name();
}

}  // namespace

Referee::Referee(const RoleSpecs& specs, int run,
                 std::vector<std::string> order, bool shared, size_t input)
    : specs_(specs),
      run_(run),
      order_(std::move(order)),
      shared_(shared),
      input_(input) {
  // A grandchild whose parent has ended becomes a child of this process, not a
  // child of init.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (!shared_) end_idle_processes();
  if (shared_ && IdleProcesses::instance().empty())
    IdleProcesses::instance().begin();
  memory_before_ = DeviceMemory::instance().used();
  descriptors_before_ = open_descriptors();
  names_before_ = shared_memory_names();
  began_ns_ = now_ns();
}

Referee::~Referee() {
  for (auto& player : players_)
    if (player->process.board != nullptr && !player->rests)
      munmap(player->process.board, sizeof(Board));
}

void Referee::start(size_t index) {
  auto player = std::make_unique<Player>();
  player->spec = specs_[index].get();
  std::optional<RoleProcess> idle;
  if (shared_ && player->spec->may_share())
    idle = IdleProcesses::instance().take(player->spec->name);
  if (idle) {
    player->process = std::move(*idle);
    player->process.board->clear();
    player->had_played = true;
    Frame play;
    play.kind = Frame::kPlay;
    play.step = current_test();
    play.data = join(
        {std::to_string(run_), std::to_string(index), std::to_string(input_)});
    player->process.wire.queue(play);
    player->process.wire.flush();
  } else {
    player->process = new_process(*player->spec, index);
  }
  players_.push_back(std::move(player));
}

RoleProcess Referee::new_process(const Scenario::RoleSpec& spec, size_t index) {
  RoleProcess process;
  int ends[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0,
          "socketpair");
  process.wire = Wire(Descriptor(ends[0]));
  const Descriptor socket(ends[1]);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);

  require(pipe2(ends, O_CLOEXEC) == 0, "pipe");
  process.output = Descriptor(ends[0]);
  const Descriptor output(ends[1]);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);

  const Descriptor board(memfd_create("ipclab-board", MFD_CLOEXEC));
  require(board.get() != -1 && ftruncate(board.get(), sizeof(Board)) == 0,
          "memfd_create");
  void* shared = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                      MAP_SHARED, board.get(), 0);
  require(shared != MAP_FAILED, "mmap");
  process.board = static_cast<Board*>(shared);

  RolePlace place;
  place.run = run_;
  place.role = static_cast<int>(index);
  place.input = input_;
  place.socket = socket.get();
  place.board = board.get();
  place.referee = getpid();
  auto changes = spec.environment;
  changes[RolePlace::kVariable] = place.text();
  // Without this variable a kernel is loaded at its first launch, and the
  // loading may wait for work that a latch holds.
  if (std::getenv("CUDA_MODULE_LOADING") == nullptr)
    changes.emplace("CUDA_MODULE_LOADING", "EAGER");
  std::vector<std::string> environment = environment_for(changes);
  std::vector<std::string> arguments = {
      std::string(program_invocation_short_name) + ":" + spec.name,
      "--gtest_filter=" + current_test(), "--gtest_also_run_disabled_tests"};

  // If an adddup2 action names one descriptor twice, posix_spawn clears the
  // close-on-exec flag of this descriptor.
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, output.get(), 2);
  posix_spawn_file_actions_adddup2(&actions, socket.get(), socket.get());
  posix_spawn_file_actions_adddup2(&actions, board.get(), board.get());
  errno = posix_spawn(&process.pid, "/proc/self/exe", &actions, nullptr,
                      pointers(arguments).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  require(errno == 0, "posix_spawn");
  process.ended =
      Descriptor(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  require(process.ended.get() != -1, "pidfd_open (needs Linux 5.3)");
  return process;
}

std::map<std::string, Ended> Referee::run(std::chrono::milliseconds deadline,
                                          std::chrono::milliseconds limit) {
  try {
    for (size_t i = 0; i < specs_.size(); ++i) start(i);
    const int64_t began = now_ns();
    int64_t until = began + deadline.count() * 1000000;
    const int64_t last = began + limit.count() * 1000000;
    while (anyone_alive()) {
      const int64_t now = now_ns();
      // On a machine that does much else, roles are slow and not hung.
      if (now >= until && until < last &&
          last_entry() > now - deadline.count() * 1000000 / 4)
        until = std::min(now + deadline.count() * 1000000 / 4, last);
      const int64_t left = (until - now + 999999) / 1000000;
      if (left <= 0) {
        fail(nullptr, Record::kHung,
             "not at the end after " +
                 std::to_string((until - began) / 1000000) +
                 " ms: " + situation());
        break;
      }
      wait_for_events(static_cast<int>(left));
      if (stopped_) break;
      if (!stuck()) continue;
      // After an earlier failure, a deadlock is only a consequence of it.
      if (failed_)
        Record::current().notes.push_back("no role can go on: " + situation());
      else
        fail(nullptr, Record::kHung, "no role can go on: " + situation());
      break;
    }
  } catch (const std::exception& error) {
    fail(nullptr, Record::kBroken, std::string("the referee: ") + error.what());
  }
  end_all();
  report_leaks();
  collect();

  std::map<std::string, Ended> ended;
  for (const auto& player : players_) {
    Ended& end = ended[player->spec->name];
    end.reached_end = player->reached_end;
    end.signal = WIFSIGNALED(player->status) ? WTERMSIG(player->status) : 0;
    end.exit_code =
        WIFEXITED(player->status) ? WEXITSTATUS(player->status) : -1;
    end.hung = player->hung;
    end.last_step = player->last_step;
    end.last_call = player->process.board->last(Board::kCall);
    end.last_input = player->last_input;
    end.output = player->printed;
  }
  if (failed_ || stopped_) end_idle_processes();  // their state is unknown
  return ended;
}

int64_t Referee::last_entry() const {
  int64_t newest = 0;
  for (const auto& player : players_)
    newest = std::max(newest, player->process.board->last_ns());
  return newest;
}

void Referee::wait_for_events(int milliseconds) {
  std::vector<pollfd> ready;
  for (const auto& player : players_) {
    const short more = player->process.wire.has_output() ? POLLOUT : 0;
    ready.push_back({player->alive && player->connected
                         ? player->process.wire.socket()
                         : -1,
                     static_cast<short>(POLLIN | more), 0});
    ready.push_back(
        {player->alive ? player->process.output.get() : -1, POLLIN, 0});
    ready.push_back(
        {player->alive ? player->process.ended.get() : -1, POLLIN, 0});
  }
  if (poll(ready.data(), ready.size(), milliseconds) <= 0) return;

  for (size_t i = 0; i < players_.size(); ++i) {
    Player& player = *players_[i];
    if ((ready[3 * i].revents & POLLOUT) != 0) player.process.wire.flush();
    if ((ready[3 * i].revents & ~POLLOUT) != 0) read_frames(player);
    if (ready[3 * i + 1].revents != 0) read_output(player);
    if (player.alive && player.rests)
      let_rest(player);
    else if (ready[3 * i + 2].revents != 0)
      conclude(player);
  }
}

bool Referee::read_output(Player& player) {
  char bytes[65536];
  const ssize_t n = read(player.process.output.get(), bytes, sizeof bytes);
  if (n == 0) player.process.output.close();
  if (n <= 0) return false;
  player.printed.append(bytes, static_cast<size_t>(n));
  if (player.printed.size() > kOutputHead + 2 * kOutputTail) {
    const size_t excess = player.printed.size() - kOutputHead - kOutputTail;
    player.printed.erase(kOutputHead, excess);
    player.dropped += excess;
  }
  return true;
}

bool Referee::read_frames(Player& player) {
  const uint64_t before = player.process.wire.received();
  player.connected = player.process.wire.read_some();
  while (auto frame = player.process.wire.next())
    take(player, std::move(*frame));
  return player.process.wire.received() != before;
}

void Referee::take(Player& player, Frame frame) {
  switch (frame.kind) {
    case Frame::kPost:
      player.last_step = frame.step;
      posts_[frame.step].push_back({index_of(player), std::move(frame.data),
                                    static_cast<bool>(frame.descriptor),
                                    std::move(frame.descriptor)});
      for (auto& other : players_) deliver(*other);
      break;
    case Frame::kWant:
      player.waits_for = frame.step;
      player.waiting = true;
      deliver(player);
      break;
    case Frame::kFailure:
      fail_check(player, split(frame.data));
      break;
    case Frame::kNote:
      Record::current().notes.push_back(player.spec->name + ": " + frame.data);
      break;
    case Frame::kOutcome: {
      const std::vector<std::string> fields = split(frame.data);
      Record::current().outcomes.push_back(
          {fields.at(0), fields.at(1), fields.at(2), fields.at(3)});
      break;
    }
    case Frame::kInput:
      player.last_input = std::stoul(frame.data);
      break;
    case Frame::kLifted:
      Record::current().outcome(Record::kLifted, frame.data);
      break;
    case Frame::kNothing:
      not_applicable(frame.data);
      break;
    case Frame::kStop:
      not_applicable(frame.data);
      stopped_ = player.failed = true;
      break;
    case Frame::kBroken:
      player.failed = true;
      fail(&player, Record::kBroken, frame.data);
      break;
    case Frame::kLeft:
      // What is left after a failed check is its consequence, and no fault of
      // the test.
      fail(&player, player.failed ? Record::kViolates : Record::kBroken,
           "left behind: " + frame.data);
      break;
    case Frame::kDie:
      player.dies_by = std::atoi(frame.data.c_str());
      break;
    case Frame::kEndsInTurn:
      player.steps_of_its_end = split(frame.data);
      break;
    case Frame::kRest:
      player.rests = true;
      [[fallthrough]];
    case Frame::kEnd:
      player.reached_end = true;
      break;
    case Frame::kDelivery:
    case Frame::kPlay:
      break;
  }
}

void Referee::deliver(Player& player) {
  if (!player.waiting || !player.alive) return;
  const auto found = posts_.find(player.waits_for);
  if (found == posts_.end()) return;
  size_t& next = player.read[player.waits_for];
  for (; next < found->second.size(); ++next) {
    Post& post = found->second[next];
    if (players_[post.from].get() == &player) continue;         // its own
    if (post.carries_descriptor && !post.descriptor) continue;  // taken
    ++next;
    Frame frame;
    frame.kind = Frame::kDelivery;
    frame.data = post.data;
    frame.descriptor = std::move(post.descriptor);
    player.process.wire.queue(frame);
    player.process.wire.flush();
    player.received_from.push_back(players_[post.from]->spec->name);
    player.last_step = player.waits_for;
    player.waiting = false;
    return;
  }
}

void Referee::conclude(Player& player) {
  if (waitpid(player.process.pid, &player.status, 0) == -1)
    throw std::system_error(errno, std::generic_category(), "waitpid");
  player.alive = false;
  player.waiting = false;
  // First reads what the role sent and printed before it ended.
  while (player.connected && read_frames(player)) {
  }
  while (read_output(player)) {
  }
  player.process.wire.close();
  player.process.output.close();
  player.process.ended.close();
  player.rests = false;  // it may have said that it rests

  if (player.process.wire.unfinished() > 0) {
    player.failed = true;
    fail(&player, Record::kCrashed,
         "a message was cut short: " +
             std::to_string(player.process.wire.unfinished()) +
             " bytes came, " + std::to_string(player.process.wire.missing()) +
             " are missing");
  }
  if (WIFSIGNALED(player.status)) {
    const int signal = WTERMSIG(player.status);
    const auto& allowed = player.spec->signals;
    player.ended = "killed by " + signal_name(signal);
    if (signal != player.dies_by &&
        std::find(allowed.begin(), allowed.end(), signal) == allowed.end())
      fail(&player, Record::kCrashed,
           "was " + player.ended +
               (player.reached_end ? " after its end" : "") + where(player));
  } else if (player.reached_end && WEXITSTATUS(player.status) <= 1) {
    player.ended = "reached its end";
  } else {
    player.ended = "ended with exit code " +
                   std::to_string(WEXITSTATUS(player.status)) +
                   (player.reached_end ? " after its end" : " before its end");
    if (!player.failed)
      fail(&player, Record::kCrashed, player.ended + where(player));
  }
  player.steps_of_its_end.push_back("end of " + player.spec->name);
  for (const std::string& step : player.steps_of_its_end)
    post_for(player, step);
  post_for(player, "done: " + player.spec->name);
}

// The role has ended, but its process has not, so the kernel reports no end.
void Referee::let_rest(Player& player) {
  while (read_output(player)) {
  }
  player.alive = false;
  player.waiting = false;
  player.ended = "reached its end";
  post_for(player, "done: " + player.spec->name);
}

size_t Referee::index_of(const Player& player) const {
  for (size_t i = 0; i < players_.size(); ++i)
    if (players_[i].get() == &player) return i;
  return players_.size();
}

void Referee::post_for(const Player& player, const std::string& step) {
  posts_[step].push_back({index_of(player), "", false, Descriptor()});
  for (auto& other : players_) deliver(*other);
}

bool Referee::anyone_alive() const {
  return std::any_of(players_.begin(), players_.end(),
                     [](const auto& player) { return player->alive; });
}

// All remaining roles wait, so no role can post a step any more.
bool Referee::stuck() const {
  return anyone_alive() &&
         std::all_of(players_.begin(), players_.end(), [](const auto& player) {
           return !player->alive || player->waiting;
         });
}

std::string Referee::where(const Player& player) const {
  const std::string call = player.process.board->last(Board::kCall);
  return " (last step: " +
         (player.last_step.empty() ? "none" : player.last_step) +
         (call.empty() ? "" : "; last call: " + call) + ")";
}

std::string Referee::situation() const {
  std::string text;
  for (const auto& player : players_) {
    if (!text.empty()) text += "; ";
    text += player->spec->name;
    if (player->rests)
      text += " rests, as processes do that scenarios share,";
    else if (!player->alive)
      text += " has ended";
    else if (state_of(player->process.pid) == 'T')
      text += " is stopped";
    else if (player->waiting)
      text += " waits for '" + player->waits_for + "'";
    else
      text += " is running";
    text += where(*player);
  }
  return text;
}

void Referee::fail(const Player* player, Record::Outcome outcome,
                   const std::string& message) {
  failed_ = true;
  Failure failure;
  if (player != nullptr) {
    failure.role = player->spec->name;
    failure.step = player->last_step;
    failure.call = player->process.board->last(Board::kCall);
  }
  std::string text = player == nullptr
                         ? message
                         : player->spec->name + " " +
                               std::to_string(player->process.pid) + ": " +
                               message;
  if (!order_.empty()) {
    text += " [order:";
    for (const std::string& step : order_) text += " " + step;
    text += "]";
  }
  failure.message = text;
  Record::current().fail(failure);
  Record::current().outcome(outcome, text);
  Record::current().told = true;
  ADD_FAILURE() << text;
}

void Referee::fail_check(Player& player,
                         const std::vector<std::string>& fields) {
  failed_ = player.failed = true;
  Failure failure;
  failure.role = player.spec->name;
  failure.step = player.last_step;
  failure.file = fields.at(0);
  failure.line = std::atoi(fields.at(1).c_str());
  failure.message = fields.at(2);
  failure.call = fields.at(3).empty() ? player.process.board->last(Board::kCall)
                                      : fields.at(3);
  failure.expected = fields.at(4);
  failure.seen = fields.at(5);

  std::string text =
      "[" + player.spec->name + " " + std::to_string(player.process.pid) + "]";
  if (!failure.step.empty()) text += " step '" + failure.step + "'";
  if (!failure.call.empty()) text += ", call " + failure.call;
  if (!failure.expected.empty())
    text += ": expected " + failure.expected + ", saw " + failure.seen;
  if (!order_.empty()) {
    text += " [order:";
    for (const std::string& step : order_) text += " " + step;
    text += "]";
  }
  Record::current().fail(failure);
  Record::current().outcome(Record::kViolates, text + ": " + failure.message);
  Record::current().told = true;
  ADD_FAILURE_AT(failure.file.c_str(), failure.line) << text << "\n"
                                                     << failure.message;
}

void Referee::end_all() {
  for (auto& player : players_)
    if (player->alive) kill(player->process.pid, SIGKILL);
  for (auto& player : players_) {
    if (!player->alive) continue;
    pollfd gone{player->process.ended.get(), POLLIN, 0};
    if (poll(&gone, 1, 5000) != 1) {
      fail(player.get(), Record::kBroken, "SIGKILL does not end it");
      continue;
    }
    waitpid(player->process.pid, &player->status, 0);
    while (read_output(*player)) {
    }
    player->ended = "ended by the referee";
    player->hung = true;
    player->alive = false;
  }
}

void Referee::end_idle_processes() {
  for (const auto& problem : IdleProcesses::instance().end())
    fail(nullptr, problem.outcome, problem.what);
}

void Referee::report_leaks() {
  IdleProcesses& idle = IdleProcesses::instance();
  std::vector<pid_t> pids;
  for (auto& player : players_) {
    if (player->rests) {
      idle.keep(std::move(player->process), player->spec->name);
      continue;
    }
    pids.push_back(player->process.pid);
    player->process.wire.close();
    player->process.output.close();
    player->process.ended.close();
  }
  posts_.clear();

  std::vector<std::string> left;
  const auto add = [&](std::vector<std::string> more) {
    left.insert(left.end(), more.begin(), more.end());
  };
  add(end_children(5s, idle.pids()));
  for (const std::string& name : remove_driver_names(pids))
    Record::current().notes.push_back("the driver left " + name);
  auto descriptors = open_descriptors();
  for (const int own : idle.descriptors()) descriptors.erase(own);
  add(left_open(descriptors_before_, descriptors));
  pids.push_back(getpid());
  add(left_in_shared_memory(names_before_, pids, 2s));
  // The memory of processes that are kept is checked when these end.
  if (idle.empty())
    add(DeviceMemory::instance().left(memory_before_, pids, 10s));
  for (const std::string& what : left)
    fail(nullptr, Record::kBroken, "left behind: " + what);
}

// Puts roles and timeline into the record.
void Referee::collect() {
  static constexpr const char* kKinds[] = {"call",    "send",    "wait",
                                           "receive", "failure", "end"};
  Record& record = Record::current();
  std::vector<TimelineEntry> timeline;
  for (const auto& player : players_) {
    std::string output = player->printed;
    if (player->dropped > 0 && output.size() > kOutputHead)
      output.insert(kOutputHead,
                    "\n[… " + std::to_string(player->dropped) + " bytes …]\n");
    record.roles.push_back({player->spec->name, player->process.pid,
                            player->ended, player->last_step,
                            player->process.board->last(Board::kCall), output,
                            player->had_played});

    const Board& board = *player->process.board;
    for (uint32_t i = 0; i < board.known; ++i)
      record.functions.insert(board.functions[i]);
    const uint64_t written = board.written;
    const uint64_t first =
        written > Board::kEntries ? written - Board::kEntries : 0;
    size_t receives = 0;
    for (uint64_t i = first; i < written; ++i)
      receives += board.entries[i % Board::kEntries].kind == Board::kReceive;
    // The board may have overwritten the oldest receives, but the referee has
    // all of them.
    size_t sender = player->received_from.size() >= receives
                        ? player->received_from.size() - receives
                        : 0;
    for (uint64_t i = first; i < written; ++i) {
      const Board::Entry& entry = board.entries[i % Board::kEntries];
      TimelineEntry line;
      line.time_us = (entry.time_ns - began_ns_) / 1000;
      line.role = player->spec->name;
      line.kind = kKinds[entry.kind];
      line.text = entry.text;
      if (entry.kind == Board::kReceive) {
        if (sender < player->received_from.size())
          line.from = player->received_from[sender++];
        line.bytes = entry.bytes;
      }
      if (entry.kind == Board::kSend) line.bytes = entry.bytes;
      timeline.push_back(std::move(line));
    }
  }
  std::stable_sort(
      timeline.begin(), timeline.end(),
      [](const auto& a, const auto& b) { return a.time_us < b.time_us; });
  if (timeline.size() > size_t{kTimelineHead + kTimelineTail})
    timeline.erase(timeline.begin() + kTimelineHead,
                   timeline.end() - kTimelineTail);
  record.timeline = std::move(timeline);
}

}  // namespace ipclab
