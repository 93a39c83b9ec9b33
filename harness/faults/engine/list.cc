// ipclab_faults: prints all faults as one JSON array.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <string>
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

}  // namespace

int main() {
  auto entries = ipclab::faults::all_faults().entries();
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  const char* before = "[\n";
  for (const auto& entry : entries) {
    std::printf("%s {\"name\": %s, \"kind\": \"%s\", \"function\": %s, ",
                before, quoted(entry.name).c_str(),
                entry.op.empty() ? "named" : "operator",
                quoted(entry.functions.front()).c_str());
    if (!entry.op.empty())
      std::printf("\"operator\": %s, ", quoted(entry.op).c_str());
    std::printf("\"what\": %s, \"gpus\": %d, \"file\": %s}",
                quoted(entry.what).c_str(), entry.gpus,
                quoted(entry.file).c_str());
    before = ",\n";
  }
  std::printf("\n]\n");
}
