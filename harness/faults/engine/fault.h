// A fault is one declaration: its name, the bug in one sentence, the rows that
// must notice it, and rules of the form "on this call, when that holds, do
// this". A process has at most one fault, so the state of a fault may be
// static.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <deque>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "harness/faults/engine/call.h"

namespace ipclab::faults {

/// This runs instead of the driver's function; it returns the code that the
/// program gets. CUDA calls that it makes itself go straight to the driver.
using Fault = int (*)(Call& call);
/// A condition of a rule: a function of the call that returns bool.
using When = std::function<bool(Call& call)>;
/// WHEN(expression of `call`) is a condition.
#define WHEN(...) \
  []([[maybe_unused]] Call& call) -> bool { return __VA_ARGS__; }
/// DO(expression of `call`) is an effect.
#define DO(...) []([[maybe_unused]] Call& call) { return __VA_ARGS__; }
/// NOTE(expression of `call`) is an effect that only keeps a fact: the fault
/// does not take effect by it.
#define NOTE(...)                          \
  []([[maybe_unused]] Call& call) -> int { \
    static_cast<void>(__VA_ARGS__);        \
    return call.code();                    \
  }

/// An effect of a rule: a function of the call. It returns the code that the
/// program gets. Or it returns nothing, or whether it has changed something:
/// then the code stays as it is, and the effect counts as fired.
class Does {
 public:
  template <class Effect>
  Does(Effect effect) {
    using Result = std::invoke_result_t<Effect, Call&>;
    run_ = [effect](Call& call, int code) -> int {
      if constexpr (std::is_void_v<Result>) {
        effect(call);
        call.fired();
      } else if constexpr (std::is_same_v<Result, bool>) {
        if (effect(call)) call.fired();
      } else {
        return effect(call);
      }
      return code;
    };
  }
  /// Runs it; `code` is the code of the call so far.
  int operator()(Call& call, int code) const { return run_(call, code); }

 private:
  std::function<int(Call& call, int code)> run_;
};

/// One or several functions, by their canonical names or by names of the driver
/// API alone; "*" is all functions.
class Functions {
 public:
  template <class... Names>
  constexpr Functions(const char* first, Names... more)
      : names_{first, more...} {}

  constexpr const char* const* begin() const { return names_; }
  constexpr const char* const* end() const {
    const char* const* end = names_;
    while (*end != nullptr) ++end;
    return end;
  }

 private:
  const char* names_[24] = {};  // a null follows the last one
};

/// A part of a fault.
struct Rule {
  /// When the rule looks at a call: kBefore, the call proceeds afterwards; kOn,
  /// instead of the call; otherwise kAfter, when the driver has accepted it, or
  /// kOnRefusal, when it has refused it. The program gets the code that the
  /// effect returns, except from kBefore.
  enum Moment { kBefore, kOn, kAfter, kOnRefusal };

  Moment moment;
  std::vector<const char*> functions;
  When when;  ///< none: always
  Does does;
};

/// One fault of the list.
class Entry {
 public:
  std::string name;
  std::string what;               ///< the bug in one plain sentence
  std::vector<const char*> rows;  ///< each of them must notice the fault
  std::string profile;  ///< the model's machine for the fault; empty: any
  std::string op;  ///< how a systematic fault breaks its function; or empty
  int gpus = 1;    ///< number of GPUs that the fault needs to take effect
  std::vector<Rule> rules;
  std::string file;  ///< the file that declares the fault

  /// Adds a rule for calls of these functions. Of several rules for one call
  /// and moment, the first applies whose condition holds. The words of
  /// conditions and effects are in words/.
  Entry& on(std::initializer_list<Functions> functions, When when, Does does);
  Entry& on(std::initializer_list<Functions> functions, Does does);
  Entry& before(std::initializer_list<Functions> functions, When when,
                Does does);
  Entry& before(std::initializer_list<Functions> functions, Does does);
  Entry& after(std::initializer_list<Functions> functions, When when,
               Does does);
  Entry& after(std::initializer_list<Functions> functions, Does does);
  Entry& on_refusal(std::initializer_list<Functions> functions, When when,
                    Does does);
  Entry& on_refusal(std::initializer_list<Functions> functions, Does does);
  /// The fault takes effect only if the machine has so many GPUs.
  Entry& with_gpus(int count);
  /// The model imitates this machine for the fault (harness/model/profiles).
  Entry& on_machine(const char* profile);

  /// The function that the fault is mainly about: the first of its first rule.
  std::string function() const { return rules.front().functions.front(); }
  /// Does a rule look at calls of the function?
  bool breaks(const Function& function) const;
  /// Runs the rules around a call.
  int run(Call& call) const;

 private:
  Entry& add(Rule::Moment moment, std::initializer_list<Functions> functions,
             When when, Does does);
};

/// All faults, in the order in which they were added.
class List {
 public:
  /// Adds a fault without rules.
  Entry& add(std::string name, std::string what, const char* file);
  /// Adds a systematic fault: it breaks one function in the way `op`. With
  /// `everywhere`, the fault also runs for the calls of all other functions.
  void combine(const char* function, const char* op, std::string what,
               Fault fault, int gpus, bool everywhere = false,
               const char* file = __builtin_FILE());

  /// All faults that were added.
  const std::deque<Entry>& entries() const { return entries_; }
  /// The fault of that name; null if there is none.
  const Entry* find(const std::string& name) const;

 private:
  std::deque<Entry> entries_;
};

/// Every fault that this library knows.
List& all_faults();

/// Declares a bug that a driver could really have, or a legal answer (ok-…):
/// its name, the rows that must notice it, and the bug in one plain sentence.
Entry& fault(const char* name, std::initializer_list<const char*> rows,
             const char* what, const char* file = __builtin_FILE());

/// A function that declares faults: FAULTS { fault(…)…; }
struct Room {
  explicit Room(void (*declare)());
};
// init_priority: after all Functions exist, before the chosen fault is looked
// for.
#define FAULTS                                                          \
  static void declare_faults();                                         \
  __attribute__((init_priority(1001))) const Room room{declare_faults}; \
  static void declare_faults()

// --- functions that several faults need ------------------------------------

/// The code of success, which both APIs share.
constexpr int kSuccess = 0;

/// Is this the chosen fault?
bool is_chosen(const char* name);
/// Does the same as Call::fired(), for code that has no Call.
void note_fired(const char* function);
/// The function that the chosen fault is about.
std::string chosen_function();

/// The granularity: sizes of memory of cuMemCreate and of pools are multiples
/// of it.
constexpr size_t kGranule = 2 << 20;

/// Effect: the driver never sees the call; the program gets a refusal. Both
/// APIs have the same codes.
int refused(Call& call, int code = cudaErrorInvalidValue);
inline auto refuses(int code = cudaErrorInvalidValue) {
  return [code](Call& call) { return refused(call, code); };
}
/// Effect: the program gets success instead of a refusal, and the runtime's
/// last error is not the refusal.
int accepted(Call& call);
/// Effect: the driver never sees the call, and the program gets success.
int lost(Call& call);

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
