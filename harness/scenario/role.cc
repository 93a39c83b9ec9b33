// SPDX-License-Identifier: Apache-2.0
#include "role.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <regex>
#include <unordered_map>

#include "board.h"
#include "delays.h"

namespace ipclab {

void Board::note(Kind kind, const char* text, int64_t bytes) {
  // A polled call would fill the board and remove everything before it.
  thread_local char before[sizeof Entry::text];
  thread_local int in_a_row;
  const bool again =
      kind == kCall && std::strncmp(before, text, sizeof before - 1) == 0;
  in_a_row = again ? in_a_row + 1 : 1;
  if (in_a_row > 2) return;
  delay(kind);
  std::strncpy(before, kind == kCall ? text : "", sizeof before - 1);
  if (kind == kCall) learn_function(text);

  Entry& entry = entries[written.fetch_add(1) % kEntries];
  entry.time_ns = now_ns();
  entry.bytes = bytes;
  entry.kind = kind;
  std::strncpy(entry.text, text, sizeof entry.text - 1);
  entry.text[sizeof entry.text - 1] = '\0';
}

void Board::learn_function(const char* text) {
  static const std::regex function("\\bcu(da)?[A-Z][A-Za-z0-9]+");
  static std::mutex mutex;
  static std::unordered_map<std::string, std::string> names;  // text -> name
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = names.try_emplace(text);
  std::cmatch found;
  if (is_new && std::regex_search(text, found, function))
    entry->second = found.str();
  const std::string& name = entry->second;
  if (name.empty() || name.size() >= sizeof functions[0] ||
      known == kFunctions ||
      std::any_of(functions, functions + known,
                  [&](const char* other) { return name == other; }))
    return;
  name.copy(functions[known], name.size());
  functions[known][name.size()] = '\0';
  ++known;
}

Board*& this_board() {
  static Board* board = nullptr;
  return board;
}

std::string Board::last(Kind kind) const {
  const uint64_t kept = written < kEntries ? written.load() : kEntries;
  for (uint64_t i = 1; i <= kept; ++i) {
    const Entry& entry = entries[(written - i) % kEntries];
    if (entry.kind == kind) return entry.text;
  }
  return "";
}

const char* name_of(Outcome::Kind kind) {
  static constexpr const char* kNames[] = {
      "documented refusal", "other refusal", "wrong success", "crash", "hang"};
  return kNames[kind];
}

Role::Role(std::string name, int index, Wire& wire,
           std::vector<std::string> order)
    : name_(std::move(name)),
      index_(index),
      wire_(wire),
      order_(std::move(order)) {}

void Role::post(const Frame& frame) {
  wire_.queue(frame);
  if (!wire_.flush()) std::_Exit(EXIT_FAILURE);  // the referee has gone
}

void Role::post(Frame::Kind kind, const std::string& data) {
  Frame frame;
  frame.kind = kind;
  frame.data = data;
  post(frame);
}

Frame Role::receive(const std::string& step, bool with_descriptor) {
  this_board()->note(Board::kWait, step.c_str());
  Frame want;
  want.kind = Frame::kWant;
  want.step = step;
  post(want);

  for (;;) {
    if (auto frame = wire_.next()) {
      this_board()->note(Board::kReceive, step.c_str(),
                         static_cast<int64_t>(frame->data.size()));
      if (with_descriptor && !frame->descriptor)
        throw CallFailed{"receive_descriptor(\"" + step + "\")",
                         "a descriptor",
                         "none came with it",
                         "",
                         0,
                         false};
      return std::move(*frame);
    }
    if (!wire_.read_some()) std::_Exit(EXIT_FAILURE);
  }
}

void Role::send_bytes(const std::string& step, const std::string& bytes) {
  this_board()->note(Board::kSend, step.c_str(),
                     static_cast<int64_t>(bytes.size()));
  Frame frame;
  frame.kind = Frame::kPost;
  frame.step = step;
  frame.data = bytes;
  post(frame);
}

std::string Role::receive_bytes(const std::string& step) {
  return receive(step, false).data;
}

void Role::send_descriptor(const std::string& step, int descriptor) {
  this_board()->note(Board::kSend, step.c_str());
  Frame frame;
  frame.kind = Frame::kPost;
  frame.step = step;
  frame.descriptor = Descriptor(descriptor);
  post(frame);                 // a copy is sent,
  frame.descriptor.release();  // the caller keeps its own
}

Descriptor Role::receive_descriptor(const std::string& step) {
  return std::move(receive(step, true).descriptor);
}

void Role::check_size(const std::string& step, size_t seen, size_t wanted) {
  if (seen != wanted)
    throw CallFailed{"receive(\"" + step + "\")",
                     std::to_string(wanted) + " bytes",
                     std::to_string(seen) + " bytes",
                     "",
                     0,
                     false};
}

void Role::die(int signal) {
  post(Frame::kDie, std::to_string(signal));
  std::signal(signal, SIG_DFL);
  raise(signal);
  broken("signal " + std::to_string(signal) + " does not end a process");
}

void Role::in_order(
    const std::vector<std::pair<std::string, std::function<void()>>>& mine) {
  const auto find = [&](const std::string& step) {
    return std::find_if(mine.begin(), mine.end(),
                        [&](const auto& own) { return own.first == step; });
  };
  for (const auto& own : mine)
    if (std::find(order_.begin(), order_.end(), own.first) == order_.end())
      broken("'" + own.first + "' is not a step of every_order()");

  std::vector<std::string> ended;  // with the steps that our end removes
  for (size_t i = 0; i < order_.size(); ++i) {
    const auto own = find(order_[i]);
    if (own == mine.end()) continue;
    if (ended.empty() && i > 0 && find(order_[i - 1]) == mine.end())
      wait("turn of " + order_[i - 1]);
    if (ended.empty() && own->second) {
      own->second();
      signal("turn of " + own->first);
    } else {
      ended.push_back("turn of " + own->first);
    }
  }
  if (ended.empty()) return;
  ends_in_turn_ = true;
  post(Frame::kEndsInTurn, join(ended));
}

std::optional<size_t> Role::next_input() {
  if (next_input_ == inputs_.size()) return std::nullopt;
  const size_t number = next_input_++;
  post(Frame::kInput, std::to_string(number));
  signal(inputs_[number]);
  return number;
}

void Role::observe(const std::string& what) { post(Frame::kNote, what); }

void Role::tabulate(const std::string& table, const std::string& input,
                    const Outcome& outcome) {
  post(Frame::kOutcome,
       join({table, input, name_of(outcome.kind), outcome.code}));
}

void Role::lifted(const std::string& what) { post(Frame::kLifted, what); }

void Role::not_applicable(const std::string& why) {
  post(Frame::kNothing, why);
}

void Role::stop_not_applicable(const std::string& why) {
  post(Frame::kStop, why);
  std::_Exit(EXIT_FAILURE);
}

void Role::broken(const std::string& why) {
  post(Frame::kBroken, why);
  std::_Exit(EXIT_FAILURE);
}

void Role::report_failure(const std::string& file, int line,
                          const std::string& message, const std::string& call,
                          const std::string& expected,
                          const std::string& seen) {
  // Reads the last call now, because the role may already have continued when
  // the referee gets this report.
  const std::string where =
      call.empty() ? this_board()->last(Board::kCall) : call;
  this_board()->note(Board::kFailure, message.c_str());
  post(Frame::kFailure,
       join({file, std::to_string(line), message, where, expected, seen}));
}

void Role::report_left(const std::string& what) { post(Frame::kLeft, what); }

void Role::report_end(bool rests) {
  this_board()->note(Board::kEnd, "reached its end");
  post(rests ? Frame::kRest : Frame::kEnd, "");
}

}  // namespace ipclab
