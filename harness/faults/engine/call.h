// One call that a program makes, as a fault sees it: the function, each
// argument with its role, and the driver's own function.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "harness/toolkit/newer.h"
#include "harness/toolkit/newer_runtime.h"

namespace ipclab::faults {

/// Which API a function belongs to.
enum class Face { kRuntime, kDriver };

/// The role of an argument. The letters are used in calls.inc.
enum Role : char {
  kOut = 'o',      ///< the function writes its result there
  kShared = 'x',   ///< a result: a descriptor (4 bytes) or fabric handle (64)
  kData = 'w',     ///< a result; its size depends on other arguments
  kPointer = 'p',  ///< address of memory that the call acts on
  kSource = 'q',   ///< address of memory that the call reads
  kBytes = 'n',    ///< a size in bytes
  kStream = 's',
  kEvent = 'e',
  kPool = 'm',
  kChunk = 'h',   ///< handle of physical memory (cuMemCreate)
  kDevice = 'd',  ///< an ordinal
  kFlags = 'f',
  kOther = 'v',
};

/// A function that this library wraps. This object lives as long as the
/// program.
struct Function {
  const char* name;       ///< as programs write it: cuMemAlloc
  const char* symbol;     ///< as libraries export it: cuMemAlloc_v2
  const char* canonical;  ///< one name for both APIs: cudaMalloc
  Face face;
  const char* roles;  ///< a letter for each argument
  void* wrapper;      ///< what programs get instead of the function
  std::atomic<void*> real{nullptr};
  bool broken = false;     ///< whether the chosen fault breaks the function
  bool noted = false;      ///< whether facts depend on its calls (world/)
  bool concerned = false;  ///< whether one of both is true

  /// Adds itself to functions().
  Function(const char* name, const char* symbol, const char* canonical,
           Face face, const char* roles, void* wrapper);
};

/// All functions of calls.inc.
std::vector<Function*>& functions();

/// One argument of a running call.
struct Argument {
  Role role;
  void* place;    ///< the argument itself, to be read and changed
  size_t size;    ///< bytes at `place`
  size_t target;  ///< bytes that the argument points to; 0 if not known
};

/// A running call. A fault may change arguments before proceed() and results
/// after it. A fault may also leave out proceed().
class Call {
 public:
  Call(const Function& function, Argument* arguments, size_t count,
       int (*invoke)(void* real, void* arguments), void* tuple)
      : function_(function),
        arguments_(arguments),
        count_(count),
        invoke_(invoke),
        tuple_(tuple) {}

  /// The function that the program called.
  const Function& function() const { return function_; }
  /// Is the function of this call the one with this canonical name?
  bool is(const char* canonical) const;
  /// Does the program call the runtime API?
  bool is_runtime() const { return function_.face == Face::kRuntime; }

  /// Calls the driver's function with the present arguments; returns its code.
  int proceed();
  /// The code with which the driver has answered last; success before.
  int code() const { return code_; }
  /// Has the driver itself refused the call? If so, the runtime knows the
  /// error.
  bool refused_by_driver() const { return code_ != 0; }
  /// The argument at `index`; T has the size of the declared type.
  template <class T>
  T& at(size_t index) {
    return *static_cast<T*>(arguments_[index].place);
  }
  /// All arguments, in order.
  Argument* begin() { return arguments_; }
  /// The end of the arguments.
  Argument* end() { return arguments_ + count_; }
  /// The first argument of that role; null if there is none.
  Argument* find(Role role);
  /// The value of the first argument of that role, which must be there.
  template <class T>
  T& value(Role role) {
    return *static_cast<T*>(find(role)->place);
  }

  /// Notes that the fault takes effect now: one line for each process in the
  /// file IPCLAB_FAULT_LOG.
  void fired() const;

 private:
  const Function& function_;
  Argument* arguments_;
  size_t count_;
  int (*invoke_)(void*, void*);
  void* tuple_;
  int code_ = 0;
};

// --- how a wrapper makes its Call; see wrap.cc ------------------------------

/// The driver's function; null if no library has it.
void* resolve(Function& function);
/// Must a call from `caller` go straight to the driver? The call must if the
/// chosen fault does not concern it, or if a fault or one of CUDA's own
/// libraries makes it. But after a fault has refused a call, the program's
/// query of the last error never goes straight to the driver.
bool passes(const Function& function, const void* caller);
/// The driver API's function of this name (without version); null if missing.
void* resolve_driver(const char* name);
/// The runtime API's function of this name; null if missing.
void* resolve_runtime(const char* name);
/// Runs the chosen fault around the call. If the fault does not concern the
/// function, runs only the call. Returns the code that the program gets.
int run(Call& call);

/// Bytes that a pointer of type T points to; 0 if this is not known.
template <class T, class = void>
struct TargetOf {
  static constexpr size_t size = 0;
};
template <class T>
struct TargetOf<T*, std::void_t<std::enable_if_t<std::is_object_v<T>>,
                                decltype(sizeof(T))>> {
  static constexpr size_t size = sizeof(T);
};

template <class Real, class Tuple>
struct Invoke;
template <class R, class... A>
struct Invoke<R(A...), std::tuple<A...>> {
  static int call(void* real, void* arguments) {
    return static_cast<int>(
        std::apply(reinterpret_cast<R (*)(A...)>(real),
                   *static_cast<std::tuple<A...>*>(arguments)));
  }
};

template <class Signature>
struct Wrapper;
template <class R, class... A>
struct Wrapper<R(A...)> {
  /// The body of an exported function.
  static R around(Function& function, const void* caller, A... values) {
    void* const real = resolve(function);
    if (real == nullptr) return static_cast<R>(cudaErrorSymbolNotFound);
    if (passes(function, caller))
      return reinterpret_cast<R (*)(A...)>(real)(values...);
    std::tuple<A...> tuple{values...};
    return around(function, tuple, std::index_sequence_for<A...>{});
  }

 private:
  template <size_t... I>
  static R around(Function& function, std::tuple<A...>& tuple,
                  std::index_sequence<I...>) {
    Argument arguments[sizeof...(A) + 1] = {
        Argument{static_cast<Role>(function.roles[I]), &std::get<I>(tuple),
                 sizeof(A), TargetOf<A>::size}...,
        Argument{}};
    Call call(function, arguments, sizeof...(A),
              &Invoke<R(A...), std::tuple<A...>>::call, &tuple);
    return static_cast<R>(run(call));
  }
};

template <class Signature, size_t index>
struct ParameterOf;
template <class R, class... A, size_t index>
struct ParameterOf<R(A...), index> {
  using type = std::tuple_element_t<index, std::tuple<A...>>;
};
/// The type of a function's parameter, from the header that declares it.
template <class Signature, size_t index>
using Parameter = typename ParameterOf<Signature, index>::type;

template <class Signature>
struct ResultOf;
template <class R, class... A>
struct ResultOf<R(A...)> {
  using type = R;
};
/// The type of a function's result.
template <class Signature>
using Result = typename ResultOf<Signature>::type;

}  // namespace ipclab::faults
