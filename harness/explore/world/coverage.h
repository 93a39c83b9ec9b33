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
  Coverage(const Coverage&) = delete;
  Coverage& operator=(const Coverage&) = delete;

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
  /// The same with a subject of the kind of `on`.
  int calls_of(const Step& step, int on, const Shadow& shadow) const;

  /// Pairs that were reached, of all of a table.
  struct Table {
    std::string name;
    std::map<std::string, int> pairs;
    int reached() const;
  };
  const std::vector<Table>& tables() const { return tables_; }
  /// The tables of two operations.
  enum Pairing { kInOneStream, kBesideEachOther, kAfterAnEnd };
  /// Two operations that no program has combined in this way; of all such pairs
  /// the one with this number. False if none is missing.
  bool missing(Pairing pairing, uint64_t number, Op* one, Op* other) const;
  /// A copy between two kinds of memory, each of this process or imported.
  struct CopyUse {
    Kind to, from;
    bool to_imported, from_imported;
    int how;
  };
  /// The same for a copy that no program has made.
  bool missing_copy(uint64_t number, CopyUse* use) const;
  /// As JSON: {"table": {"pair": count}}.
  std::string to_json() const;

 private:
  void count(int table, const std::string& pair);
  std::vector<std::string> uses_of(const Step& step,
                                   const Shadow& shadow) const;
  static std::string subject_of(const Step& step, int on, const Shadow& shadow);
  std::vector<Table> tables_;
  // What may be missing, with its count in a table.
  struct OpPair {
    Pairing pairing;
    Op one, other;
    const int* count;
  };
  std::vector<OpPair> op_pairs_;
  std::vector<std::pair<CopyUse, const int*>> copies_;
  std::map<std::string, int> subjects_;  ///< see subject_of()
  std::map<int, Op> last_in_stream_;
  std::vector<Step> group_;
  Op ended_{};
  bool has_ended_ = false;
};

}  // namespace ipclab::explore
