// What a scenario must not leave behind: descriptors, names in /dev/shm,
// processes, device memory.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace ipclab {

/// The open descriptors of this process, and what each of them refers to.
std::map<int, std::string> open_descriptors();

/// Descriptors of `after` that `before` did not have, as readable text. If the
/// CUDA driver is loaded, its own descriptors (devices, sockets, pipes,
/// anonymous inodes) are left out: it can open them at any time.
std::vector<std::string> left_open(const std::map<int, std::string>& before,
                                   const std::map<int, std::string>& after);

/// Names in /dev/shm that belong to this user.
std::set<std::string> shared_memory_names();

/// Names that these processes have left. Such a name contains the id of one of
/// the processes, as the names of CUDA and PyTorch do. It was not in `before`,
/// no process uses it, and it still exists at the deadline. A name without an
/// id may belong to any program of this user.
std::vector<std::string> left_in_shared_memory(
    const std::set<std::string>& before, const std::vector<pid_t>& pids,
    std::chrono::milliseconds deadline);

/// Removes the files that NVIDIA's driver leaves after the end of a process: it
/// creates /dev/shm/cuda.shm.<uid>.<pid>.<n> for interprocess events and never
/// unlinks them. Returns the names.
std::vector<std::string> remove_driver_names(const std::vector<pid_t>& pids);

/// Ends and reaps every child of this process except the ones in `kept`. This
/// process is a subreaper, so it inherits the children of its roles. Returns
/// the names of the ended children ("sleep 30 (pid 4711)"). If SIGKILL does not
/// end a child before the deadline, the last text says this.
std::vector<std::string> end_children(std::chrono::milliseconds deadline,
                                      const std::set<pid_t>& kept = {});

/// The number of the GPU instance that a MIG device ("MIG-<uuid>") belongs to,
/// from NVML; std::nullopt if NVML does not report it.
std::optional<unsigned> gpu_instance_of(const std::string& mig_device);

/// Where a GPU is in a fabric, as NVML reports it.
struct FabricPlace {
  std::array<unsigned char, 16> cluster;  ///< the UUID of the cluster
  unsigned clique;                        ///< the number of the clique
};

/// The place of a GPU with this UUID, such as GPU-0123…; std::nullopt if it is
/// in no fabric, or NVML does not know.
std::optional<FabricPlace> fabric_place_of(const std::string& gpu);

/// Device memory in use, as NVML (which is not CUDA) reports it.
class DeviceMemory {
 public:
  /// Finds libnvidia-ml.so.1; without it device memory is not judged.
  static DeviceMemory& instance();

  /// The driver's version, such as 580.159.04; empty without NVML.
  const std::string& driver() const { return driver_; }

  /// Bytes in use on each GPU; empty without NVML.
  std::vector<unsigned long long> used() const;

  /// Waits until no GPU has 1 MiB more memory in use than `before`. If
  /// other tests may use the GPUs at the same time (IPCLAB_EXCLUSIVE is not 1),
  /// waits until no process of `pids` uses a GPU. Returns what is left at the
  /// deadline.
  std::vector<std::string> left(const std::vector<unsigned long long>& before,
                                const std::vector<pid_t>& pids,
                                std::chrono::milliseconds deadline) const;

 private:
  DeviceMemory();
  std::string driver_;
  std::vector<void*> devices_;
  int (*memory_)(void*, void*) = nullptr;
  int (*processes_)(void*, unsigned*, void*) = nullptr;
};

}  // namespace ipclab
