// The program `explore`; see `ipclab explore`.
//
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "harness/explore/executor.h"
#include "harness/explore/world/coverage.h"
#include "harness/explore/world/generator.h"
#include "harness/explore/world/shrink.h"

namespace ipclab::explore {
namespace {

struct Options {
  double seconds = 60;
  uint64_t seed = 1;
  long programs = 0;  // 0: until the time is over
  int processes = 0;  // 0: 2 to 4
};

int search(const Options& options) {
  Executor executor;
  const Machine machine = executor.machine();
  Coverage coverage(machine);
  Random seeds(options.seed);
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         begin)
        .count();
  };
  for (long i = 0; options.programs == 0 || i < options.programs; ++i) {
    if (passed() > options.seconds) break;
    const uint64_t seed = seeds.next();
    Random choice(seed);
    const int processes =
        options.processes != 0 ? options.processes : 2 + choice.below(3) % 3;
    Generator generator(machine, processes, coverage, seed);
    const Program program =
        generator.make(60 + choice.below(80), choice.chance(10));
    const auto failure = executor.run(program);
    if (failure) {
      std::printf("program %ld: step %zu of %zu: %s\n  %s %s: %s, not %s\n", i,
                  failure->index, program.steps.size(),
                  to_text(failure->step).c_str(), failure->row.c_str(),
                  failure->check.c_str(), failure->seen.c_str(),
                  failure->wanted.c_str());
      const Shrunk small = shrink(
          machine, program, *failure,
          [&](const Program& trial) {
            executor.end_roles();
            return executor.run(trial);
          },
          std::chrono::seconds(20));
      std::printf("%d runs, finished %d: %s %s: %s not %s\n%s\n", small.runs,
                  small.finished, small.failure.row.c_str(),
                  small.failure.check.c_str(), small.failure.seen.c_str(),
                  small.failure.wanted.c_str(), to_text(small.program).c_str());
      std::fflush(stdout);
      executor.end_roles();
      return 1;
    }
    if (i % 50 == 49) {
      std::printf("%ld programs, %lld steps, %.1f s", i + 1, executor.steps(),
                  passed());
      for (const auto& table : coverage.tables())
        std::printf(", %d/%zu", table.reached(), table.pairs.size());
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  return 0;
}

int replay(const char* path) {
  const Program program = read_program(path);
  Executor executor;
  const auto failure = executor.run(program);
  if (!failure) {
    std::printf("no failure\n");
    return 0;
  }
  std::printf("step %zu: %s\n  %s %s: %s, not %s\n", failure->index,
              to_text(failure->step).c_str(), failure->row.c_str(),
              failure->check.c_str(), failure->seen.c_str(),
              failure->wanted.c_str());
  return 1;
}

int run(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--role") == 0) {
    std::vector<int> descriptors;
    for (int i = 2; i < argc; ++i) descriptors.push_back(std::atoi(argv[i]));
    return play(descriptors);
  }
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--seconds") options.seconds = std::atof(argv[i + 1]);
    if (name == "--seed")
      options.seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (name == "--programs") options.programs = std::atol(argv[i + 1]);
    if (name == "--processes") options.processes = std::atoi(argv[i + 1]);
    if (name == "--replay") return replay(argv[i + 1]);
  }
  return search(options);
}

}  // namespace
}  // namespace ipclab::explore

int main(int argc, char** argv) {
  try {
    return ipclab::explore::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "explore: %s\n", error.what());
    return 3;
  }
}
