// SPDX-License-Identifier: Apache-2.0
#include "wire.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "samples/common/channel.h"

namespace ipclab {
namespace {

constexpr uint32_t kMagic = 0x49504331;

struct Header {
  uint32_t magic;
  uint32_t kind;
  uint32_t step_size;
  uint32_t from_size;
  uint64_t data_size;
  uint32_t has_descriptor;
  uint32_t unused;
};

Header header_of(const std::string& input) {
  Header header;
  std::memcpy(&header, input.data(), sizeof header);
  if (header.magic != kMagic)
    throw std::runtime_error("a role sent bytes that are not a message");
  return header;
}

size_t size_of(const Header& header) {
  return sizeof header + header.step_size + header.from_size + header.data_size;
}

}  // namespace

void Descriptor::close() {
  if (number_ != -1) ::close(number_);
  number_ = -1;
}

void Wire::queue(const Frame& frame) {
  const Header header{kMagic,
                      frame.kind,
                      static_cast<uint32_t>(frame.step.size()),
                      static_cast<uint32_t>(frame.from.size()),
                      frame.data.size(),
                      frame.descriptor ? 1u : 0u,
                      0};
  Output output;
  output.bytes.assign(reinterpret_cast<const char*>(&header), sizeof header);
  output.bytes += frame.step;
  output.bytes += frame.from;
  output.bytes += frame.data;
  if (frame.descriptor)
    output.descriptor =
        Descriptor(fcntl(frame.descriptor.get(), F_DUPFD_CLOEXEC, 0));
  output_.push_back(std::move(output));
}

bool Wire::flush() {
  while (!output_.empty()) {
    Output& output = output_.front();
    const ssize_t n =
        send_packet(socket_.get(), output.bytes.data() + output.sent,
                    output.bytes.size() - output.sent,
                    output.sent == 0 ? output.descriptor.get() : -1);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return true;
      if (errno == EPIPE || errno == ECONNRESET) return false;
      throw std::system_error(errno, std::generic_category(), "sendmsg");
    }
    output.sent += static_cast<size_t>(n);
    output.descriptor.close();
    if (output.sent == output.bytes.size()) output_.pop_front();
  }
  return true;
}

bool Wire::read_some() {
  char bytes[65536];
  int descriptor = -1;
  ssize_t n;
  do {
    n = receive_packet(socket_.get(), bytes, sizeof bytes, &descriptor);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return true;
  if (n < 0 && errno != ECONNRESET)
    throw std::system_error(errno, std::generic_category(), "recvmsg");
  if (descriptor != -1) descriptors_.emplace_back(descriptor);
  if (n <= 0) return false;
  input_.append(bytes, static_cast<size_t>(n));
  received_ += static_cast<uint64_t>(n);
  return true;
}

std::optional<Frame> Wire::next() {
  if (input_.size() < sizeof(Header)) return std::nullopt;
  const Header header = header_of(input_);
  if (input_.size() < size_of(header)) return std::nullopt;

  Frame frame;
  frame.kind = static_cast<Frame::Kind>(header.kind);
  size_t at = sizeof header;
  frame.step = input_.substr(at, header.step_size);
  at += header.step_size;
  frame.from = input_.substr(at, header.from_size);
  at += header.from_size;
  frame.data = input_.substr(at, header.data_size);
  input_.erase(0, size_of(header));
  if (header.has_descriptor != 0 && !descriptors_.empty()) {
    frame.descriptor = std::move(descriptors_.front());
    descriptors_.pop_front();
  }
  return frame;
}

size_t Wire::missing() const {
  if (input_.size() < sizeof(Header)) return 0;
  return size_of(header_of(input_)) - input_.size();
}

std::string join(const std::vector<std::string>& fields) {
  std::string joined;
  for (const std::string& field : fields) joined += field + '\0';
  return joined;
}

std::vector<std::string> split(const std::string& joined) {
  std::vector<std::string> fields;
  for (size_t at = 0; at < joined.size();) {
    const size_t end = joined.find('\0', at);
    fields.push_back(joined.substr(at, end - at));
    at = end == std::string::npos ? joined.size() : end + 1;
  }
  return fields;
}

}  // namespace ipclab
