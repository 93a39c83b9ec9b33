// The program `explore`; `ipclab explore` starts it. Exit codes: 0 nothing
// failed, 1 something did, 2 wrong arguments, 3 it could not judge.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "harness/explore/role.h"
#include "harness/explore/search.h"

namespace ipclab::explore {
namespace {

constexpr char kUsage[] =
    "usage: explore [--seconds N] [--seed S] [--programs N] [--processes "
    "2..5]\n"
    "               [--gpus 1..2] [--shrink-seconds N] [--failures N] [--alone "
    "0..1]\n"
    "               [--out DIR] [--known FILE]\n"
    "       explore --replay FILE [--times N] [--known FILE]\n";

double number(const std::string& name, const char* text, double least,
              double most) {
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(value >= least && value <= most))
    throw std::invalid_argument(name + ": not a number from " +
                                std::to_string(least) + " to " +
                                std::to_string(most) + ": " + text);
  return value;
}

int run(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--role") == 0) {
    std::vector<int> descriptors;
    const int gpu = argc > 2 ? std::atoi(argv[2]) : 0;
    const bool probes_order = argc > 3 && std::atoi(argv[3]) != 0;
    for (int i = 4; i < argc; ++i) descriptors.push_back(std::atoi(argv[i]));
    return play(gpu, probes_order, descriptors);
  }
  Options options;
  std::string replayed;
  int times = 1;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(name + ": has no value");
    const char* const value = argv[i + 1];
    if (name == "--seconds")
      options.seconds = number(name, value, 0, 1e6);
    else if (name == "--seed")
      options.seed = static_cast<uint64_t>(number(name, value, 0, 1e15));
    else if (name == "--programs")
      options.programs = static_cast<long>(number(name, value, 1, 1e12));
    else if (name == "--processes")
      options.processes = static_cast<int>(number(name, value, 2, 5));
    else if (name == "--gpus")
      options.gpus = static_cast<int>(number(name, value, 1, kMostGpus));
    else if (name == "--shrink-seconds")
      options.shrink_seconds = number(name, value, 0, 1e6);
    else if (name == "--failures")
      options.failures = static_cast<int>(number(name, value, 1, 1000));
    else if (name == "--alone")
      options.alone = number(name, value, 0, 1) != 0;
    else if (name == "--out")
      options.out = value;
    else if (name == "--known")
      options.known = value;
    else if (name == "--replay")
      replayed = value;
    else if (name == "--times")
      times = static_cast<int>(number(name, value, 1, 1000));
    else
      throw std::invalid_argument("no option " + name);
  }
  return replayed.empty() ? search(options) : replay(replayed, times, options);
}

}  // namespace
}  // namespace ipclab::explore

int main(int argc, char** argv) {
  try {
    return ipclab::explore::run(argc, argv);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "explore: %s\n%s", error.what(),
                 ipclab::explore::kUsage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "explore: %s\n", error.what());
    return 3;
  }
}
