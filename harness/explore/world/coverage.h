// Which pairs of things programs have combined, and which are missing.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <string>
#include <vector>

#include "harness/explore/world/shadow.h"

namespace ipclab::explore {

/// Counts pairs in six tables. Each table knows all of its pairs, so it can
/// say which of them no program has reached.
class Coverage {
 public:
  explicit Coverage(const Machine& machine);

  /// A new program begins: no step is before the next one.
  void begin();
  /// Counts the pairs of a step that the shadow has just accepted.
  void add(const Step& step, const Shadow& shadow);
  /// How often programs have done this step with these kinds of memory. Ask
  /// before the shadow applies the step.
  int uses(const Step& step, const Shadow& shadow) const;
  /// How often this operation came after the last one of the stream.
  int follows(const Step& step) const;

  /// How often a documented refusal or a question was made.
  int calls(const Step& step) const;

  /// Pairs that were reached, of all of a table.
  struct Table {
    std::string name;
    std::map<std::string, int> pairs;
    int reached() const;
  };
  const std::vector<Table>& tables() const { return tables_; }
  /// Two calls that no two threads have made at the same time yet; of all such
  /// pairs the one with this number. False if none is missing.
  bool missing_beside(uint64_t number, Op* one, Op* other) const;
  /// As JSON: {"table": {"pair": count}}.
  std::string to_json() const;

 private:
  void count(int table, const std::string& pair);
  std::vector<std::string> uses_of(const Step& step,
                                   const Shadow& shadow) const;
  std::vector<Table> tables_;
  std::map<int, Op> last_in_stream_;
  std::vector<Step> group_;
  Op ended_{};
  bool has_ended_ = false;
};

}  // namespace ipclab::explore
