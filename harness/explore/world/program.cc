// SPDX-License-Identifier: Apache-2.0
#include "harness/explore/world/program.h"

#include <fstream>
#include <sstream>
#include <stdexcept>

namespace ipclab::explore {

std::string to_text(const Program& program) {
  std::string text = "# ipclab explore --replay FILE\nprogram seed=" +
                     std::to_string(program.seed) +
                     " processes=" + std::to_string(program.processes) +
                     " gpus=" + std::to_string(program.gpus) + "\n";
  for (const Step& step : program.steps) text += to_text(step) + "\n";
  return text;
}

Program program_from(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  Program program;
  bool begun = false;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    try {
      if (!begun) {
        unsigned long long seed = 0;
        const int read =
            std::sscanf(line.c_str(), "program seed=%llu processes=%d gpus=%d",
                        &seed, &program.processes, &program.gpus);
        if (read < 2 || program.processes < 1 ||
            program.processes > kMaxProcesses || program.gpus < 1 ||
            program.gpus > kMostGpus)
          throw std::invalid_argument("not the first line of a program");
        program.seed = seed;
        begun = true;
        continue;
      }
      program.steps.push_back(step_from(line));
      if (program.steps.back().process >= program.processes)
        throw std::invalid_argument("the program has no such process");
    } catch (const std::invalid_argument& wrong) {
      throw std::invalid_argument("line " + std::to_string(number) + ": " +
                                  wrong.what());
    }
  }
  if (!begun) throw std::invalid_argument("no program in this file");
  return program;
}

Program read_program(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::invalid_argument(path + ": cannot be read");
  std::ostringstream text;
  text << file.rdbuf();
  try {
    return program_from(text.str());
  } catch (const std::invalid_argument& wrong) {
    throw std::invalid_argument(path + ": " + wrong.what());
  }
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(path + ": cannot be written");
}

}  // namespace ipclab::explore
