// A role: a process that makes the calls of steps, in several threads. It knows
// nothing of other processes; handles and descriptors come with a step.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "harness/explore/world/program.h"
#include "harness/explore/world/step.h"
#include "harness/scenario/wire.h"

namespace ipclab::explore {

/// A word in a page that the parent shares with all roles. A stream that waits
/// for a gate goes on when the parent sets its word.
struct Gates {
  volatile uint32_t open[kGates + 1];  ///< the last one is always open
  volatile uint32_t gave_up;           ///< a gate's kernel waited for too long
};

/// What a role answers.
struct Answer {
  int32_t code = 0;        ///< of the first call that failed
  int32_t last_error = 0;  ///< cudaGetLastError() after the step
  int64_t value = 0;       ///< the number that was asked for
  uint64_t address = 0;    ///< of new memory
  int64_t free_bytes = 0;  ///< of the GPU; only between two programs
  int64_t open_files = 0;  ///< of this process; only between two programs
  Machine machine;         ///< only in the first answer
};

/// What a step receives and returns besides numbers.
struct Parcel {
  std::string bytes;
  Descriptor descriptor;
};

/// The objects of a process, by the numbers of the program.
class Objects {
 public:
  struct Memory {
    char* data = nullptr;
    int64_t bytes = 0;
    int host_kind = -1;  ///< a HostKind, or -1
    bool device = true;  ///< memory of a GPU
  };
  struct Range {
    CUdeviceptr address = 0;
    int64_t bytes = 0;
  };
  struct Graph {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t run = nullptr;
  };

  template <class T>
  class Table {
   public:
    explicit Table(std::mutex& mutex) : mutex_(mutex) {}
    T at(int id) const {
      const std::lock_guard<std::mutex> lock(mutex_);
      return all_.at(id);
    }
    bool has(int id) const {
      const std::lock_guard<std::mutex> lock(mutex_);
      return all_.count(id) != 0;
    }
    void put(int id, T value) {
      const std::lock_guard<std::mutex> lock(mutex_);
      all_[id] = value;
    }
    template <class Each>
    void each(Each each) const {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const auto& [id, one] : all_) each(one);
    }
    void clear() {
      const std::lock_guard<std::mutex> lock(mutex_);
      all_.clear();
    }
    void erase(int id) {
      const std::lock_guard<std::mutex> lock(mutex_);
      all_.erase(id);
    }

   private:
    std::mutex& mutex_;
    std::map<int, T> all_;
  };

  std::mutex mutex;
  Table<Memory> memory{mutex};
  Table<CUmemGenericAllocationHandle> chunks{mutex};
  Table<Range> ranges{mutex};
  Table<cudaMemPool_t> pools{mutex};
  Table<cudaStream_t> streams{mutex};
  Table<cudaEvent_t> events{mutex};
  Table<Graph> graphs{mutex};
  /// Which memory (of which program) had which id, for ever.
  std::map<unsigned long long, std::pair<int64_t, int>> buffer_ids;
  std::map<std::pair<int64_t, int>, unsigned long long>
      ids_of;         ///< the reverse
  int64_t epoch = 0;  ///< number of the program
  /// Resets of the GPU: each thread has to take the new context.
  std::atomic<int> resets{0};
  /// Pageable sources of copies, which live until the end of the program.
  std::vector<std::vector<char>> pageable[kThreads];
  int gpu = 0;                    ///< that the process uses
  int64_t granule = 0;            ///< of chunks; see Machine
  Gates* gates = nullptr;         ///< as the host sees them
  Gates* device_gates = nullptr;  ///< as kernels see them
  char* scratch[kThreads] = {};   ///< pinned memory for reads

  /// The stream that a step names.
  cudaStream_t stream_of(const Step& step);
};

constexpr int64_t kScratchBytes = 1 << 18;

/// Makes the calls of steps of one subject, and fills the answer. Returns the
/// code of the first call that failed, or 0.
int perform_memory(Objects& objects, const Step& step, Parcel& parcel,
                   Answer& answer);
int perform_order(Objects& objects, const Step& step, Parcel& parcel,
                  Answer& answer);
int perform_refusal(Objects& objects, const Step& step, Parcel& parcel);
int perform_listed(Objects& objects, const Step& step, Answer& answer);
int perform_work(Objects& objects, const Step& step, Parcel& parcel);
/// Launches each kernel once, because to load one may wait for held work.
void load_work(Objects& objects);
/// Launches a kernel that does nothing of interest.
void launch_nothing(cudaStream_t stream);

/// The main function of a role on a GPU. With `probes_order` it finds out
/// whether streams go on side by side, which may take seconds. The descriptors
/// are those of the gates and of a socket for each thread.
int play(int gpu, bool probes_order, const std::vector<int>& descriptors);

}  // namespace ipclab::explore
