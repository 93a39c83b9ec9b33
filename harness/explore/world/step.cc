// SPDX-License-Identifier: Apache-2.0
#include "harness/explore/world/step.h"

#include <cstring>
#include <sstream>
#include <stdexcept>
#include <tuple>

namespace ipclab::explore {
namespace {

struct Named {
  const char* name;
  const char* changes;
};

constexpr Named kNamed[] = {
#define OP(name, text, changes) {text, changes},
    IPCLAB_EXPLORE_OPS(OP)
#undef OP
};

constexpr Listed kRefused[] = {
#define R(name, what, row) {what, row, ""},
    IPCLAB_EXPLORE_REFUSALS(R)
#undef R
#define REFUSED(name, what, row, applies, codes, ...) {what, row, #__VA_ARGS__},
#define QUESTION(name, ...)
#include "harness/explore/world/calls.inc"
#undef REFUSED
#undef QUESTION
};

constexpr Listed kAsked[] = {
#define REFUSED(name, ...)
#define QUESTION(name, what, row, applies, value, ...) \
  {what, row, #__VA_ARGS__},
#include "harness/explore/world/calls.inc"
#undef REFUSED
#undef QUESTION
};

// Calls visit(name, field) for each number of a step, in the order of files.
template <class Any, class Visit>
void each_field(Any& step, Visit visit) {
  visit("p", step.process);
  visit("t", step.thread);
  visit("group", step.group);
  visit("api", step.api);
  visit("id", step.id);
  visit("on", step.on);
  visit("from", step.from);
  visit("stream", step.stream);
  visit("how", step.how);
  visit("rows", step.rows);
  visit("layers", step.layers);
  visit("at", step.at);
  visit("from_at", step.from_at);
  visit("bytes", step.bytes);
  visit("pitch", step.pitch);
  visit("from_pitch", step.from_pitch);
  visit("value", step.value);
}

}  // namespace

const char* name_of(Op op) { return kNamed[static_cast<int>(op)].name; }
const char* changes_of(Op op) { return kNamed[static_cast<int>(op)].changes; }
const Listed& refusal(int which) { return kRefused[which]; }
const Listed& question(int which) { return kAsked[which]; }

bool Step::operator==(const Step& other) const {
  return to_text(*this) == to_text(other);
}

std::string to_text(const Step& step) {
  std::string text = name_of(step.op);
  each_field(step, [&](const char* name, auto value) {
    if (value != 0 || std::strcmp(name, "p") == 0)
      text += std::string(" ") + name + "=" + std::to_string(value);
  });
  return text;
}

Step step_from(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  Step step;
  int op = 0;
  while (op < kOps && word != kNamed[op].name) ++op;
  if (op == kOps) throw std::invalid_argument("no operation '" + word + "'");
  step.op = static_cast<Op>(op);
  while (words >> word) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    bool known = false;
    each_field(step, [&](const char* field, auto& value) {
      if (name != field) return;
      known = true;
      size_t used = 0;
      long long number = 0;
      try {
        number = std::stoll(word.substr(equals + 1), &used);
      } catch (const std::exception&) {
        used = std::string::npos;
      }
      if (equals == std::string::npos || used != word.size() - equals - 1)
        throw std::invalid_argument("'" + word + "' is not a number");
      value = static_cast<std::remove_reference_t<decltype(value)>>(number);
      if (value != number)
        throw std::invalid_argument("'" + word + "' is too large");
    });
    if (!known) throw std::invalid_argument("no field '" + name + "'");
  }
  if (step.process < 0 || step.process >= kMaxProcesses || step.thread < 0 ||
      step.thread >= kThreads)
    throw std::invalid_argument("no such process or thread: " + line);
  return step;
}

}  // namespace ipclab::explore
