// What the benchmarks share: how many rounds, medians, a main().
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <vector>

#include "harness/scenario/board.h"
#include "harness/scenario/cuda.h"

namespace ipclab {

constexpr char kRoundsVariable[] = "IPCLAB_BENCH_ROUNDS";

/// How often each operation is measured. Roles get the same number.
inline int rounds() { return std::atoi(std::getenv(kRoundsVariable)); }

inline double milliseconds(const std::function<void()>& work) {
  const int64_t began = now_ns();
  work();
  return static_cast<double>(now_ns() - began) / 1e6;
}

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2,
                   values.end());
  return values[values.size() / 2];
}

/// main() of a program of scenarios whose first argument may be a number of
/// rounds.
inline int bench_main(int argc, char** argv) {
  if (argc > 1 && std::atoi(argv[1]) > 0) {
    setenv(kRoundsVariable, argv[1], 1);
    std::rotate(argv + 1, argv + 2, argv + argc--);
  }
  setenv(kRoundsVariable, "21", 0);
  return scenario_main(argc, argv, print_probe, nullptr);
}

}  // namespace ipclab
