// main() of a program of scenarios. It does one of four things: it runs the
// tests, runs one role of a test, lists the tests for CTest, or prints what the
// machine can do.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "board.h"
#include "idle.h"
#include "process.h"
#include "record.h"
#include "scenario.h"

namespace ipclab {
namespace {

// Keeps the record of the running TEST. Writes the record when the TEST ends.
class Recorder : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    Record::current().begin(std::string(test.test_suite_name()) + "." +
                            test.name());
    Process::self().runs = 0;
    began_ns_ = now_ns();
  }

  void OnTestPartResult(const testing::TestPartResult& result) override {
    Record& record = Record::current();
    const bool told = std::exchange(record.told, false);
    if (result.failed() && !told) {
      Failure failure;
      failure.message = result.message();
      failure.file = result.file_name() == nullptr ? "" : result.file_name();
      failure.line = result.line_number();
      record.fail(failure);
      record.outcome(Record::kViolates, result.message());
    }
    if (result.skipped())
      record.outcome(Record::kNotApplicable, result.message());
  }

  void OnTestEnd(const testing::TestInfo&) override {
    Record& record = Record::current();
    if (Process::self().listing) {
      std::string labels;
      if (record.alone) labels += " alone";
      if (record.shared) labels += " shared";
      if (record.second_gpu) labels += " second_gpu";
      std::printf("%s\t%s\t%d\t%s\n", record.test.c_str(),
                  record.requirement.c_str(), record.gpus,
                  labels.empty() ? "" : labels.c_str() + 1);
      return;
    }
    const auto& all = *testing::UnitTest::GetInstance();
    if (++tests_ == all.test_to_run_count())  // the last test has ended
      for (const auto& problem : IdleProcesses::instance().end()) {
        record.outcome(problem.outcome, problem.what);
        record.fail({"", "", "", "", "", problem.what, "", 0});
      }
    const char* path = std::getenv("IPCLAB_RECORD");
    if (path == nullptr) return;
    const double milliseconds = static_cast<double>(now_ns() - began_ns_) / 1e6;
    const std::string line = record.json(milliseconds) + "\n";
    const Descriptor file(
        open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
    if (write(file.get(), line.data(), line.size()) !=
        static_cast<ssize_t>(line.size()))
      ADD_FAILURE() << "cannot write the record to " << path << ": "
                    << std::strerror(errno);
  }

  int tests_ = 0;
  int64_t began_ns_ = 0;
};

void drop_default_printer() {
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
}

}  // namespace

int scenario_main(int argc, char** argv, void (*print_probe)(),
                  bool (*as_new)()) {
  Process& self = Process::self();
  self.as_new = as_new;
  testing::InitGoogleTest(&argc, argv);
  if (argc == 2 && std::strcmp(argv[1], "--ipclab_probe") == 0 &&
      print_probe != nullptr) {
    print_probe();
    return 0;
  }
  self.listing = argc == 2 && std::strcmp(argv[1], "--ipclab_list") == 0;
  if (argc > 1 && !self.listing) {
    std::fprintf(stderr, "%s: unknown argument '%s'\n", argv[0], argv[1]);
    return 2;
  }
  if (self.is_role || self.listing) drop_default_printer();
  if (!self.is_role)
    testing::UnitTest::GetInstance()->listeners().Append(new Recorder);
  int failed = RUN_ALL_TESTS();
  while (!self.next.empty()) {
    testing::GTEST_FLAG(filter) = std::exchange(self.next, "");
    self.runs = 0;
    failed = RUN_ALL_TESTS();
  }
  return self.listing ? 0 : failed;
}

}  // namespace ipclab
