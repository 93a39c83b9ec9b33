// SPDX-License-Identifier: Apache-2.0
// Finds NVIDIA's library.
#include "nvrtc/nvidia.h"

#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <sys/stat.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "core/log.h"

namespace ipclab::model {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The folder of the installation that a program belongs to: .venv for
/// .venv/bin/python.
std::string prefix_of_program() {
  std::string path = program_invocation_name;
  if (path.find('/') == std::string::npos) {
    std::istringstream folders(variable("PATH"));
    for (std::string folder; std::getline(folders, folder, ':');) {
      struct stat there;
      const std::string candidate = folder.append("/").append(path);
      if (stat(candidate.c_str(), &there) != 0) continue;
      path = candidate;
      break;
    }
  }
  return path.substr(0, path.rfind('/')) + "/..";
}

/// Patterns for the places where NVIDIA's library may be. The most likely place
/// is first.
std::vector<std::string> places() {
  std::vector<std::string> folders;
  std::istringstream listed(variable("LD_LIBRARY_PATH"));
  for (std::string folder; std::getline(listed, folder, ':');) {
    folders.push_back(folder);
  }
  for (const std::string& prefix :
       {variable("VIRTUAL_ENV"), prefix_of_program()}) {
    const std::string wheels = prefix + "/lib/python3*/site-packages/nvidia/";
    folders.push_back(wheels + "cu13/lib");
    folders.push_back(wheels + "cuda_nvrtc/lib");
    folders.push_back(wheels + "nvjitlink/lib");
  }
  for (const std::string& toolkit :
       {variable("CUDA_PATH"), variable("CUDA_HOME"),
        std::string("/usr/local/cuda"), std::string("/usr/local/cuda-13*")}) {
    folders.push_back(toolkit + "/lib64");
  }
  folders.emplace_back("/usr/lib/*-linux-gnu");
  folders.emplace_back("/usr/lib64");
  return folders;
}

bool is_this_library(const std::string& path) {
  Dl_info own;
  struct stat a, b;
  return dladdr(reinterpret_cast<void*>(&is_this_library), &own) != 0 &&
         stat(own.dli_fname, &a) == 0 && stat(path.c_str(), &b) == 0 &&
         a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

void* open_first(const std::string& folder, const char* name) {
  glob_t found{};
  void* library = nullptr;
  if (glob((folder + "/" + name).c_str(), 0, nullptr, &found) == 0) {
    for (size_t i = 0; library == nullptr && i < found.gl_pathc; ++i) {
      const std::string path = found.gl_pathv[i];
      if (path[0] != '/' || is_this_library(path)) continue;
      library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
  }
  globfree(&found);
  return library;
}

}  // namespace

void* nvidia_library(const char* name, const char* does, const char* wheel) {
  for (const std::string& folder : places()) {
    if (void* found = open_first(folder, name)) return found;
  }
  say(std::string("this program ") + does + ", and there is no " + name +
      ": install the wheel " + wheel +
      " or name its folder in LD_LIBRARY_PATH");
  return nullptr;
}

}  // namespace ipclab::model
