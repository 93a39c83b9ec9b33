// SPDX-License-Identifier: Apache-2.0
// Splits a PTX text into tokens.
#pragma once

#include <string_view>
#include <vector>

namespace ipclab::ptx {

struct Token {
  enum Kind : unsigned char {
    kWord,
    kNumber,
    kString,
    kMark,
    kUnit,
    kEnd
  } kind;
  int line;
  std::string_view text;  ///< points into the lexed text
};

/// The tokens of `text`. The last token has the kind kEnd. Words are directives
/// (.reg), opcodes with their modifiers (ld.global.u32), names and registers; a
/// mark is one punctuation character; kUnit marks the place of a `.version`
/// line. Other directives that end with their line (.target, .file, .loc …) are
/// dropped.
std::vector<Token> lex(std::string_view text);

}  // namespace ipclab::ptx
