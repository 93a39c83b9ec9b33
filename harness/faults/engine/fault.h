// A fault is a function that replaces one or several CUDA functions in a
// program that runs with IPCLAB_FAULT=<name of the fault>. A process has at
// most one fault, so the state of a fault may be static.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "harness/faults/engine/call.h"

namespace ipclab::faults {

/// This runs instead of the driver's function; it returns the code that the
/// program gets. CUDA calls that a fault makes itself go straight to the
/// driver. A comment above a fault states the bug: how the broken driver
/// behaves.
using Fault = int (*)(Call& call);

/// One fault of the list.
struct Entry {
  std::string name;
  std::string what;  ///< the bug in one plain sentence
  /// canonical names, or names of the driver API alone; "*" is all functions
  std::vector<std::string> functions;
  std::string op;  ///< how a systematic fault breaks its function; or empty
  int gpus;        ///< number of GPUs that the fault needs to take effect
  Fault fault;
  std::string file;  ///< the source file that has the fault
};

/// All faults, in the order in which they were added.
class List {
 public:
  /// Adds a bug that a driver could really have, or a legal answer (ok-…).
  void named(const char* name, const char* what,
             std::initializer_list<const char*> functions, Fault fault,
             int gpus = 1, const char* file = __builtin_FILE());
  /// Adds a systematic fault: it breaks one function in the way `op`. With
  /// `everywhere`, the fault also runs for the calls of all other functions.
  void combine(const std::string& function, const char* op, std::string what,
               Fault fault, int gpus, bool everywhere = false,
               const char* file = __builtin_FILE());

  /// All faults that were added.
  const std::vector<Entry>& entries() const { return entries_; }
  /// The fault of that name; null if there is none.
  const Entry* find(const std::string& name) const;

 private:
  std::vector<Entry> entries_;
};

/// Every fault that this library knows.
const List& all_faults();

// Each group is a file. A fault uses nothing of the files of other groups: only
// the faults of a file run again after it was changed.
void add_operators(List& list);
void add_legacy_memory(List& list);
void add_legacy_events(List& list);
void add_virtual_memory(List& list);
void add_pools(List& list);
void add_allocator(List& list);
void add_platform(List& list);
void add_endpoints(List& list);
void add_state(List& list);
void add_paths(List& list);
void add_import_paths(List& list);
void add_unusual(List& list);
void add_words(List& list);
void add_queries(List& list);
void add_processes(List& list);
void add_mapped_memory(List& list);
void add_stream_ordered(List& list);
void add_answers(List& list);
void add_order(List& list);
void add_contexts(List& list);
void add_regressions(List& list);
void add_second_objects(List& list);
void add_pool_lives(List& list);
void add_chunk_lives(List& list);
void add_legacy_lives(List& list);
void add_further(List& list);
void add_event_paths(List& list);
void add_memory_paths(List& list);
void add_chunk_paths(List& list);
void add_pool_paths(List& list);
void add_life_paths(List& list);
void add_allowed(List& list);

// --- functions that several faults need ------------------------------------

/// The code of success, which both APIs share.
constexpr int kSuccess = 0;

/// Is this the chosen fault?
bool is_chosen(const char* name);
/// Does the same as Call::fired(), for code that has no Call.
void note_fired(const char* function);
/// The function that the chosen fault is about.
const std::string& chosen_function();

/// The granularity: sizes of memory of cuMemCreate and of pools are multiples
/// of it.
constexpr size_t kGranule = 2 << 20;

/// Returns the code of a refusal, which both APIs share.
int refused(Call& call, int code = cudaErrorInvalidValue);
/// Returns success instead of a refusal. Also clears the refusal from the
/// runtime's last error.
int accepted(Call& call);

/// Does the call use memory? At such a call, faults take memory away or clear
/// it.
bool is_use(Call& call);
/// Is the process a client of MPS?
bool is_mps_client();
/// Has a process ended? True also for a process that its parent has not yet
/// waited for.
bool has_ended(pid_t process);

/// A stream of the current context that waits for no other stream.
cudaStream_t private_stream();

/// For a cudaMemcpy: copies at once, whatever the null stream waits for.
int copied_at_once(Call& call);

/// A fault for any call: after a refusal the next call gets the same code.
int next_refused(Call& call);
/// A fault for any call: only the first thread of a process may make the call.
int first_thread_only(Call& call);

/// The driver's function of that name, as cuGetProcAddress returns it.
template <class Function>
Function* driver(const char* name) {
  return reinterpret_cast<Function*>(resolve_driver(name));
}
/// DRIVER_CALL(cuCtxGetCurrent)(&context) calls the real driver. Each place
/// looks the function up once.
#define DRIVER_CALL(function)                                    \
  ([]() -> decltype(function)* {                                 \
    static auto* const found =                                   \
        ::ipclab::faults::driver<decltype(function)>(#function); \
    return found;                                                \
  }())

/// The kernel's number of the calling thread. A later thread has another
/// number. (It can have the std::thread::id of a thread that has ended.)
int this_thread();
/// Does a step when this thread ends. Does nothing in the first thread of the
/// process.
void at_thread_end(std::function<void()> step);

/// Returns true for the first call with a key, among all processes that share
/// IPCLAB_FAULT_STATE. For later calls returns false. If IPCLAB_FAULT_STATE is
/// not set, always returns true.
bool first_of_all_processes(const std::string& key);
/// Stores a number under a key for the other processes. Does nothing if
/// IPCLAB_FAULT_STATE is not set.
void tell_processes(const std::string& key, unsigned long long value);
/// The number that was stored under a key; `none` if there is none.
unsigned long long told(const std::string& key, unsigned long long none);
/// A key that is made from the bytes of an object, for example a handle.
std::string key_of(const void* bytes, size_t size);

}  // namespace ipclab::faults
