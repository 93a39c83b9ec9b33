// SPDX-License-Identifier: Apache-2.0
// Builds one line of a trace on the stack.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace ipclab::trace {

/// One line of JSON of at most kMost characters. Text that does not fit is
/// dropped, and full() returns true.
class Line {
 public:
  static constexpr size_t kMost = 4096;

  /// Adds characters without a change.
  Line& raw(std::string_view text) {
    if (size_ + text.size() > kMost) {
      full_ = true;
      return *this;
    }
    std::memcpy(text_ + size_, text.data(), text.size());
    size_ += text.size();
    return *this;
  }

  Line& comma() { return raw(","); }

  template <class Integer>
  Line& number(Integer value) {
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    return raw({digits, static_cast<size_t>(end - digits)});
  }

  Line& address(const void* pointer) {
    return number(reinterpret_cast<uintptr_t>(pointer));
  }

  /// Adds a string of JSON.
  Line& text(std::string_view value) {
    raw("\"");
    for (const char c : value) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte > 0x7e || c == '"' || c == '\\') {
        constexpr char kHex[] = "0123456789abcdef";
        const char escaped[] = {'\\',           'u', '0', '0', kHex[byte >> 4],
                                kHex[byte & 15]};
        raw({escaped, sizeof escaped});
      } else {
        raw({&c, 1});
      }
    }
    return raw("\"");
  }

  /// Adds bytes as a string of hexadecimal digits.
  Line& bytes(const void* data, size_t size) {
    constexpr char kHex[] = "0123456789abcdef";
    raw("\"");
    for (size_t i = 0; i < size; ++i) {
      const unsigned char byte = static_cast<const unsigned char*>(data)[i];
      const char digits[] = {kHex[byte >> 4], kHex[byte & 15]};
      raw({digits, sizeof digits});
    }
    return raw("\"");
  }

  /// Adds an argument of a call, written by its type. If `ok`, the call has
  /// succeeded, and the values that it wrote may be read. See arguments.h.
  template <class T>
  Line& value(const T& argument, bool ok);

  std::string_view view() const { return {text_, size_}; }
  bool full() const { return full_; }

 private:
  char text_[kMost];
  size_t size_ = 0;
  bool full_ = false;
};

}  // namespace ipclab::trace
