// SPDX-License-Identifier: Apache-2.0
// Splits a PTX text into tokens.
#include "lexer.h"

#include <cctype>
#include <stdexcept>
#include <string>

namespace ipclab::ptx {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' ||
         c == '.' || c == '%';
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool ends_with_line(std::string_view word) {
  return word == ".target" || word == ".address_size" || word == ".file" ||
         word == ".loc";
}

[[noreturn]] void fail(int line, const std::string& what) {
  throw std::runtime_error("PTX line " + std::to_string(line) + ": " + what);
}

}  // namespace

std::vector<Token> lex(std::string_view text) {
  std::vector<Token> tokens;
  size_t at = 0;
  int line = 1;
  const auto peek = [&](size_t ahead) {
    return at + ahead < text.size() ? text[at + ahead] : '\0';
  };
  const auto skip_line = [&] {
    while (at < text.size() && text[at] != '\n') ++at;
  };
  while (at < text.size()) {
    const char c = text[at];
    if (c == '\n') {
      ++line;
      ++at;
    } else if (c == '\0' || std::isspace(static_cast<unsigned char>(c))) {
      ++at;
    } else if (c == '/' && peek(1) == '/') {
      skip_line();
    } else if (c == '/' && peek(1) == '*') {
      const int start = line;
      const size_t end = text.find("*/", at + 2);
      if (end == std::string_view::npos) fail(start, "comment without an end");
      for (; at < end; ++at) line += text[at] == '\n';
      at = end + 2;
    } else if (c == '"') {
      const size_t end = text.find_first_of("\"\n", at + 1);
      if (end == std::string_view::npos || text[end] == '\n')
        fail(line, "string without an end");
      tokens.push_back({Token::kString, line, text.substr(at, end + 1 - at)});
      at = end + 1;
    } else if (is_word(c)) {
      const size_t begin = at;
      while (is_word(peek(0)) ||
             (peek(0) == ':' && peek(1) == ':' && is_word(peek(2))))
        at += peek(0) == ':' ? 2 : 1;
      // `.reg.b32` is two words, `add.s32` is one.
      const size_t dot = c == '.' ? text.find('.', begin + 1) : text.npos;
      if (dot < at) at = dot;
      const std::string_view word = text.substr(begin, at - begin);
      if (word == ".version") {
        tokens.push_back({Token::kUnit, line, word});
        skip_line();
      } else if (ends_with_line(word)) {
        skip_line();
      } else {
        tokens.push_back(
            {is_digit(c) ? Token::kNumber : Token::kWord, line, word});
      }
    } else {
      tokens.push_back({Token::kMark, line, text.substr(at++, 1)});
    }
  }
  tokens.push_back({Token::kEnd, line, "end of text"});
  return tokens;
}

}  // namespace ipclab::ptx
