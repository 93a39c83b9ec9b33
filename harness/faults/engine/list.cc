// ipclab_faults: prints all faults as one JSON array.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "harness/faults/engine/fault.h"

namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

// A function of a rule that the library does not wrap; null if there is none.
const char* unknown_function(const ipclab::faults::Entry& entry) {
  for (const auto& rule : entry.rules)
    for (const std::string_view wanted : rule.functions) {
      bool known = wanted == "*";
      for (const auto* const function : ipclab::faults::functions())
        known |= wanted == function->canonical || wanted == function->name;
      if (!known) return wanted.data();
    }
  return nullptr;
}

}  // namespace

int main() {
  using ipclab::faults::Entry;
  for (const Entry& entry : ipclab::faults::all_faults().entries())
    if (const char* const unknown = unknown_function(entry)) {
      std::fprintf(stderr, "ipclab_faults: %s: no function %s in calls.inc\n",
                   entry.name.c_str(), unknown);
      return 1;
    }
  std::vector<const Entry*> entries;
  for (const Entry& entry : ipclab::faults::all_faults().entries())
    entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(),
            [](const auto* a, const auto* b) { return a->name < b->name; });
  const char* before = "[\n";
  for (const Entry* const entry : entries) {
    std::printf("%s {\"name\": %s, \"kind\": \"%s\", \"function\": %s, ",
                before, quoted(entry->name).c_str(),
                entry->op.empty() ? "named" : "operator",
                quoted(entry->function()).c_str());
    if (!entry->op.empty())
      std::printf("\"operator\": %s, ", quoted(entry->op).c_str());
    if (!entry->profile.empty())
      std::printf("\"profile\": %s, ", quoted(entry->profile).c_str());
    std::printf("\"rows\": [");
    for (size_t i = 0; i < entry->rows.size(); ++i)
      std::printf("%s%s", i > 0 ? ", " : "", quoted(entry->rows[i]).c_str());
    std::printf("], \"what\": %s, \"gpus\": %d, \"file\": %s}",
                quoted(entry->what).c_str(), entry->gpus,
                quoted(entry->file).c_str());
    before = ",\n";
  }
  std::printf("\n]\n");
}
