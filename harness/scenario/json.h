// Writes JSON. It has only what a record of one line needs.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

namespace ipclab {

/// `text` as a JSON string, quotes included. Bytes that are not UTF-8 become
/// U+FFFD, so that a record can hold every output of a role.
std::string json_string(std::string_view text);

/// Builds an object or an array piece by piece.
class Json {
 public:
  static Json object() { return Json('{', '}'); }
  static Json array() { return Json('[', ']'); }

  Json& add(std::string_view key, std::string_view text) {
    return raw(key, json_string(text));
  }
  Json& add(std::string_view key, const char* text) {
    return add(key, std::string_view(text));
  }
  Json& add(std::string_view key, bool value) {
    return raw(key, value ? "true" : "false");
  }
  template <class T, class = std::enable_if_t<std::is_integral_v<T> &&
                                              !std::is_same_v<T, bool>>>
  Json& add(std::string_view key, T value) {
    return raw(key, std::to_string(value));
  }
  Json& add(std::string_view key, const Json& value) {
    return raw(key, value.text());
  }
  /// Adds `text`, or null if it is empty.
  Json& add_or_null(std::string_view key, std::string_view text) {
    return raw(key, text.empty() ? "null" : json_string(text));
  }
  /// Adds a value that is JSON already.
  Json& raw(std::string_view key, std::string_view json) {
    begin();
    body_ += json_string(key) + ":";
    body_ += json;
    return *this;
  }
  /// Appends to an array.
  Json& append(const Json& value) { return append_raw(value.text()); }
  Json& append(std::string_view text) { return append_raw(json_string(text)); }
  Json& append_raw(std::string_view json) {
    begin();
    body_ += json;
    return *this;
  }

  std::string text() const { return open_ + body_ + close_; }

 private:
  Json(char open, char close) : open_(1, open), close_(1, close) {}
  void begin() {
    if (!body_.empty()) body_ += ',';
  }

  std::string open_, close_, body_;
};

}  // namespace ipclab
