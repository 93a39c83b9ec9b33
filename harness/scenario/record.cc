// SPDX-License-Identifier: Apache-2.0
#include "record.h"

#include <cstdio>
#include <cstdlib>

#include "json.h"

namespace ipclab {

Record& Record::current() {
  static Record record;
  return record;
}

void Record::begin(const std::string& name) {
  *this = Record();
  test = name;
}

void Record::outcome(Outcome outcome, const std::string& reason) {
  if (outcome < outcome_ || (outcome == outcome_ && !reason_.empty())) return;
  outcome_ = outcome;
  reason_ = reason;
}

std::string Record::json(double milliseconds) const {
  static constexpr const char* kNames[] = {
      "conforms", "lifted",  "not applicable", "violates",
      "hung",     "crashed", "broken"};

  const Failure first = failures.empty() ? Failure() : failures.front();
  Json notes_json = Json::array();
  for (const std::string& note : notes) notes_json.append(note);

  Json outcomes_json = Json::array();
  for (const TabulatedOutcome& line : outcomes)
    outcomes_json.append(Json::object()
                             .add("table", line.table)
                             .add("input", line.input)
                             .add("outcome", line.outcome)
                             .add_or_null("code", line.code));

  Json failures_json = Json::array();
  for (const Failure& failure : failures)
    failures_json.append(Json::object()
                             .add_or_null("role", failure.role)
                             .add_or_null("step", failure.step)
                             .add_or_null("call", failure.call)
                             .add_or_null("expected", failure.expected)
                             .add_or_null("seen", failure.seen)
                             .add("message", failure.message)
                             .add_or_null("file", failure.file)
                             .add("line", failure.line));

  Json roles_json = Json::array();
  for (const RoleReport& role : roles)
    roles_json.append(Json::object()
                          .add("name", role.name)
                          .add("pid", role.pid)
                          .raw("shared", role.shared ? "true" : "false")
                          .add("ended", role.ended)
                          .add_or_null("last_step", role.last_step)
                          .add_or_null("last_call", role.last_call)
                          .add("output", role.output));

  Json timeline_json = Json::array();
  for (const TimelineEntry& entry : timeline) {
    Json json = Json::object();
    json.add("t_us", entry.time_us)
        .add("role", entry.role)
        .add("kind", entry.kind)
        .add("text", entry.text);
    if (!entry.from.empty()) json.add("from", entry.from);
    if (entry.bytes >= 0) json.add("bytes", entry.bytes);
    timeline_json.append(json);
  }

  Json functions_json = Json::array();
  for (const std::string& function : functions) functions_json.append(function);

  char duration[32];
  std::snprintf(duration, sizeof duration, "%.3f", milliseconds);
  return Json::object()
      .add("test", test)
      .add_or_null("requirement", requirement)
      .add("outcome", kNames[outcome_])
      .add("reason", reason_)
      .add_or_null("role", first.role)
      .add_or_null("step", first.step)
      .add_or_null("call", first.call)
      .add_or_null("expected", first.expected)
      .add_or_null("seen", first.seen)
      .add("notes", notes_json)
      .add("outcomes", outcomes_json)
      .add("failures", failures_json)
      .add("roles", roles_json)
      .add("timeline", timeline_json)
      .add("functions", functions_json)
      .raw("duration_ms", duration)
      .add("seed", seed())
      .text();
}

unsigned long long seed() {
  const char* text = std::getenv("IPCLAB_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

}  // namespace ipclab
