// Starts and ends an MPS control daemon for this program only. The
// daemon has its own folder, so it does not affect other daemons.
// These functions change no setting of a GPU.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fcntl.h>

#include <filesystem>
#include <fstream>

#include "../common/roles.h"

constexpr char kPipes[] = "CUDA_MPS_PIPE_DIRECTORY";
constexpr char kLogs[] = "CUDA_MPS_LOG_DIRECTORY";

/// The folder of the daemon. Empty before start_mps() is called and
/// after end_mps().
inline std::string& mps_folder() {
  static std::string folder;
  return folder;
}

/// Runs nvidia-cuda-mps-control and writes `commands` to its standard
/// input. Returns the exit code of the program: 127 if the program does
/// not exist. Kills it after 30 s and returns 1.
inline int mps_control(const char* option, const char* commands) {
  int ends[2];
  SYS_CHECK(pipe2(ends, O_CLOEXEC));
  const pid_t pid = fork();
  SYS_CHECK(pid);
  if (pid == 0) {
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(ends[0], STDIN_FILENO);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    // With numbers in this variable the daemon would renumber the GPUs,
    // and its clients would apply their own list to the new numbers.
    // With UUIDs the daemon uses no other GPU.
    const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
    if (list != nullptr && std::strncmp(list, "GPU-", 4) != 0)
      unsetenv("CUDA_VISIBLE_DEVICES");
    execlp("nvidia-cuda-mps-control", "nvidia-cuda-mps-control", option,
           nullptr);
    _exit(127);
  }
  SYS_CHECK(write(ends[1], commands, std::strlen(commands)));
  SYS_CHECK(close(ends[0]));
  SYS_CHECK(close(ends[1]));
  return Child{Channel(-1), pid}.wait(30s);
}

/// Returns the process id of one child of this process, or 0 if this
/// process has no child.
inline pid_t any_child() {
  const std::string self = std::to_string(getpid());
  std::ifstream list("/proc/self/task/" + self + "/children");
  pid_t child = 0;
  list >> child;
  return child;
}

//! [end]
/// Ends the daemon after its clients have ended, and waits until this
/// process has no child, so that the daemon and its server are gone.
/// Then removes the folder. Does nothing if no daemon was started.
inline void end_mps() {
  if (mps_folder().empty()) return;
  mps_control(nullptr, "quit\n");
  while (const pid_t child = any_child())
    Child{Channel(-1), child}.wait(30s);
  std::filesystem::remove_all(mps_folder());
  mps_folder().clear();
}
//! [end]

/// Makes an empty folder that only this user may open, in TMPDIR or in
/// /tmp. Returns the path of the folder.
inline std::string new_folder() {
  std::error_code problem;
  std::string folder = std::filesystem::temp_directory_path(problem);
  // The daemon makes sockets there. A socket's path is short.
  if (problem || folder.size() > 60) folder = "/tmp";
  folder += "/ipclab.mps.XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) SYS_CHECK(-1);
  return folder;
}

//! [start]
/// Starts the daemon. Programs that this process starts afterwards
/// become clients of the daemon. At its exit this process ends the
/// daemon. Returns the problem, or an empty text if there is none.
inline std::string start_mps(const std::string& folder) {
  mps_folder() = folder;
  std::atexit(end_mps);
  setenv(kPipes, folder.c_str(), 1);
  setenv(kLogs, folder.c_str(), 1);

  // The daemon detaches itself from the process that starts it. This
  // process is a subreaper, so it becomes the daemon's parent and can
  // wait for the daemon.
  SYS_CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1));
  const int code = mps_control("-d", "");
  if (code == 127) return "nvidia-cuda-mps-control is not on PATH";
  if (code == 0) return "";
  return "nvidia-cuda-mps-control -d exits with " +
         std::to_string(code);
}
//! [start]

/// Returns true if this process is a client of MPS. A driver before
/// CUDA 12.3 cannot tell.
inline bool is_mps_client() {
  int value = 0;
  const cudaError_t code =
      cudaDeviceGetAttribute(&value, cudaDevAttrMpsEnabled, 0);
  if (code != cudaErrorInvalidValue) CUDA_CHECK(code);
  cudaGetLastError();
  return value != 0;
}
