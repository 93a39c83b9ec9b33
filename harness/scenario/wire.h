// How roles and referee communicate: they send frames of any length over a
// stream socket, with at most one descriptor each.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ipclab {

/// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  /// Takes over a descriptor by its number; -1 means none.
  explicit Descriptor(int number) : number_(number) {}
  /// Takes over the descriptor of `other`, which then owns none.
  Descriptor(Descriptor&& other) noexcept
      : number_(std::exchange(other.number_, -1)) {}
  /// Exchanges the descriptors of both.
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }

  /// The number of the descriptor; -1 if this object owns none.
  int get() const { return number_; }
  /// Does this object own a descriptor?
  explicit operator bool() const { return number_ != -1; }
  /// Gives the descriptor to the caller, who must close it.
  int release() { return std::exchange(number_, -1); }
  /// Closes now, not in the destructor, for tests of this step.
  void close();

 private:
  int number_ = -1;
};

struct Frame {
  enum Kind : uint32_t {
    kPost = 1,    // role: here is a step, with data
    kWant,        // role: I wait for this step
    kDelivery,    // referee: here it is
    kFailure,     // role: a check failed (fields separated by NUL)
    kNote,        // role: observed, not judged
    kOutcome,     // role: the outcome of one input (fields separated by NUL)
    kInput,       // role: the number of the input that I try next
    kLifted,      // role: a documented limit was not there
    kNothing,     // role: nothing to judge on this machine
    kBroken,      // role: I cannot judge
    kLeft,        // role: something that I leave open
    kDie,         // role: the signal that I am about to raise
    kEndsInTurn,  // role: my end is these steps of the order
    kEnd,         // role: I reached my end
    kRest,        // role: I reached my end and wait for another role
    kPlay,        // referee: run this role
    kStop,        // role: nothing to judge, end all roles
  };

  Kind kind{};
  std::string step;
  std::string data;
  std::string from;  // empty: no frame uses this field
  Descriptor descriptor;
};

/// A socket that is read and written in frames. Throws std::system_error if the
/// socket fails, and std::runtime_error if the bytes are not a frame.
class Wire {
 public:
  Wire() = default;
  explicit Wire(Descriptor socket) : socket_(std::move(socket)) {}

  int socket() const { return socket_.get(); }

  /// Puts a frame into the queue to be sent.
  void queue(const Frame& frame);
  /// Sends as much as the socket takes (everything if the socket blocks).
  /// Returns false if the peer has ended.
  bool flush();
  bool has_output() const { return !output_.empty(); }

  /// Reads once what has arrived. If the socket blocks, waits for data. Returns
  /// false when the peer has ended and everything is read.
  bool read_some();
  /// The next complete frame that was read; std::nullopt if there is none.
  std::optional<Frame> next();
  /// The number of bytes received so far.
  uint64_t received() const { return received_; }
  /// The number of bytes of an incomplete frame.
  size_t unfinished() const { return input_.size(); }
  /// How many bytes are still missing in the incomplete frame; 0 if not known.
  size_t missing() const;

  void close() { socket_.close(); }

 private:
  struct Output {
    std::string bytes;
    size_t sent = 0;
    Descriptor descriptor;
  };

  Descriptor socket_;
  std::deque<Output> output_;
  std::string input_;
  uint64_t received_ = 0;
  std::deque<Descriptor> descriptors_;
};

/// Joins fields with NUL.
std::string join(const std::vector<std::string>& fields);
/// Undoes join().
std::vector<std::string> split(const std::string& joined);

}  // namespace ipclab
