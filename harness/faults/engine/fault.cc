// The chosen fault, the calls that it concerns, and the log of its effects.
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/engine/fault.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>

#include "harness/faults/engine/names.h"
#include "harness/faults/world/world.h"

namespace ipclab::faults {
namespace {

const Entry* chosen = nullptr;
bool counting = false;  // IPCLAB_FAULT_CENSUS
thread_local int inside = 0;

void append(const char* variable, const std::string& line) {
  const char* const path = std::getenv(variable);
  if (path == nullptr) return;
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return;
  // The line is one write, so lines of several processes do not mix.
  if (write(file, line.data(), line.size()) < 0) std::perror(path);
  close(file);
}

void count(const std::string& function) {
  static std::mutex mutex;
  static auto& known = *new std::map<std::string, bool>;
  const std::lock_guard lock(mutex);
  if (!known.emplace(function, true).second) return;
  append("IPCLAB_FAULT_CENSUS",
         "called " + std::to_string(getpid()) + " " + function + "\n");
}

// Runs when all objects of class Function exist (see wrap.cc), and before
// main(). Other objects of this library may not exist yet.
__attribute__((constructor)) void choose() {
  const char* const name = std::getenv("IPCLAB_FAULT");
  if (name == nullptr || *name == '\0') {
    counting = std::getenv("IPCLAB_FAULT_CENSUS") != nullptr;
    return;
  }
  chosen = all_faults().find(name);
  if (chosen == nullptr) {
    std::fprintf(
        stderr,
        "ipclab faults: no fault '%s'; see harness/faults/faults.json\n", name);
    _exit(127);
  }
  for (Function* function : functions()) {
    function->broken = chosen->breaks(*function);
    function->noted = chosen->op.empty() && is_noted(*function);
    function->concerned = function->broken || function->noted;
  }
}

// The last error that a fault itself returned in this thread. The runtime does
// not know this error, but cudaGetLastError must return it.
thread_local int last_refusal = cudaSuccess;

bool reads_last_error(const Function& function) {
  return std::strncmp(function.name, "cudaGetLastError", 16) == 0 ||
         std::strncmp(function.name, "cudaPeekAtLastError", 19) == 0;
}

// The last error that the program gets if the runtime's own last error is
// `code`. If `code` is not success, it is newer than the fault's refusal.
int last_error_after(int code, const Call& call) {
  if (last_refusal == cudaSuccess) return code;
  const int refusal = last_refusal;
  if (code != cudaSuccess || call.is("cudaGetLastError"))
    last_refusal = cudaSuccess;
  return code != cudaSuccess ? code : refusal;
}

}  // namespace

Function::Function(const char* name, const char* symbol, const char* canonical,
                   Face face, const char* roles, void* wrapper)
    : name(name),
      symbol(symbol),
      canonical(canonical),
      face(face),
      roles(roles),
      wrapper(wrapper) {
  functions().push_back(this);
}

std::vector<Function*>& functions() {
  static auto& list = *new std::vector<Function*>;
  return list;
}

bool Call::is(const char* canonical) const {
  return std::strcmp(function_.canonical, canonical) == 0;
}

int Call::proceed() {
  const int code =
      invoke_(function_.real.load(std::memory_order_relaxed), tuple_);
  code_ = code;
  if (code == cudaSuccess && function_.noted) note(*this);
  return reads_last_error(function_) ? last_error_after(code, *this) : code;
}

Argument* Call::find(Role role) {
  for (Argument& argument : *this)
    if (argument.role == role) return &argument;
  return nullptr;
}

void Call::fired() const { note_fired(function_.name); }

void note_fired(const char* function) {
  static std::atomic<bool> noted{false};
  if (noted.exchange(true)) return;
  append("IPCLAB_FAULT_LOG", "fired " + chosen->name + " " +
                                 std::to_string(getpid()) + " " + function +
                                 "\n");
}

bool is_chosen(const char* name) {
  return chosen != nullptr && chosen->name == name;
}

bool passes(const Function& function, const void* caller) {
  if (inside > 0) return true;
  if (last_refusal != cudaSuccess && reads_last_error(function)) return false;
  if (counting) {
    if (!is_of_cuda(caller)) {
      count(function.canonical);
      count(function.name);
    }
    return true;
  }
  return !function.concerned || is_of_cuda(caller);
}

int run(Call& call) {
  ++inside;
  const int code = call.function().broken ? chosen->run(call) : call.proceed();
  if (code != cudaSuccess && code != cudaErrorNotReady && call.is_runtime() &&
      !call.refused_by_driver() && !reads_last_error(call.function())) {
    cudaGetLastError();  // clears an older error; the refusal replaces it
    last_refusal = code;
  }
  --inside;
  return code;
}

// The path of a source file in the source tree.
static std::string in_tree(const std::string& path) {
  for (const char* const top : {"/harness/faults/", "/conformance/"})
    if (const size_t at = path.rfind(top); at != std::string::npos)
      return path.substr(at + 1);
  return path;
}

Entry& Entry::add(Rule::Moment moment,
                  std::initializer_list<Functions> functions, When when,
                  Does does) {
  std::vector<const char*> names;
  for (const Functions& each : functions)
    names.insert(names.end(), each.begin(), each.end());
  rules.push_back({moment, std::move(names), std::move(when), std::move(does)});
  return *this;
}
Entry& Entry::on(std::initializer_list<Functions> functions, When when,
                 Does does) {
  return add(Rule::kOn, functions, std::move(when), std::move(does));
}
Entry& Entry::on(std::initializer_list<Functions> functions, Does does) {
  return add(Rule::kOn, functions, nullptr, std::move(does));
}
Entry& Entry::before(std::initializer_list<Functions> functions, When when,
                     Does does) {
  return add(Rule::kBefore, functions, std::move(when), std::move(does));
}
Entry& Entry::before(std::initializer_list<Functions> functions, Does does) {
  return add(Rule::kBefore, functions, nullptr, std::move(does));
}
Entry& Entry::after(std::initializer_list<Functions> functions, When when,
                    Does does) {
  return add(Rule::kAfter, functions, std::move(when), std::move(does));
}
Entry& Entry::after(std::initializer_list<Functions> functions, Does does) {
  return add(Rule::kAfter, functions, nullptr, std::move(does));
}
Entry& Entry::on_refusal(std::initializer_list<Functions> functions, When when,
                         Does does) {
  return add(Rule::kOnRefusal, functions, std::move(when), std::move(does));
}
Entry& Entry::on_refusal(std::initializer_list<Functions> functions,
                         Does does) {
  return add(Rule::kOnRefusal, functions, nullptr, std::move(does));
}
Entry& Entry::with_gpus(int count) {
  gpus = count;
  return *this;
}
Entry& Entry::on_machine(const char* wanted) {
  profile = wanted;
  return *this;
}

static bool looks_at(const Rule& rule, const Function& function) {
  for (const std::string_view wanted : rule.functions)
    if (wanted == "*" || wanted == function.canonical ||
        wanted == function.name)
      return true;
  return false;
}

bool Entry::breaks(const Function& function) const {
  for (const Rule& rule : rules)
    if (looks_at(rule, function)) return true;
  return false;
}

int Entry::run(Call& call) const {
  const auto fitting = [&](Rule::Moment moment) -> const Rule* {
    for (const Rule& rule : rules)
      if (rule.moment == moment && looks_at(rule, call.function()) &&
          (!rule.when || rule.when(call)))
        return &rule;
    return nullptr;
  };
  if (const Rule* const rule = fitting(Rule::kBefore))
    rule->does(call, kSuccess);
  if (const Rule* const rule = fitting(Rule::kOn))
    return rule->does(call, kSuccess);
  const int code = call.proceed();
  const Rule* const rule =
      fitting(code == kSuccess ? Rule::kAfter : Rule::kOnRefusal);
  return rule != nullptr ? rule->does(call, code) : code;
}

Entry& List::add(std::string name, std::string what, const char* file) {
  Entry& made = entries_.emplace_back();
  made.name = std::move(name);
  made.what = std::move(what);
  made.file = in_tree(file);
  return made;
}

void List::combine(const char* function, const char* op, std::string what,
                   Fault fault, int gpus, bool everywhere, const char* file) {
  Entry& made = add(std::string(function) + "." + op, std::move(what), file);
  made.op = op;
  made.with_gpus(gpus);
  if (everywhere)
    made.on({function, "*"}, fault);
  else
    made.on({function}, fault);
}

Entry& fault(const char* name, std::initializer_list<const char*> rows,
             const char* what, const char* file) {
  Entry& made = all_faults().add(name, what, file);
  made.rows = rows;
  return made;
}

std::string chosen_function() { return chosen->function(); }

const Entry* List::find(const std::string& name) const {
  for (const Entry& entry : entries_)
    if (entry.name == name) return &entry;
  return nullptr;
}

List& all_faults() {
  static List& list = *new List;
  return list;
}

Room::Room(void (*declare)()) { declare(); }

int refused(Call& call, int code) {
  call.fired();
  return code;
}

int lost(Call& call) {
  call.fired();
  return kSuccess;
}

int accepted(Call& call) {
  if (call.is_runtime()) cudaGetLastError();
  call.fired();
  return kSuccess;
}

bool is_use(Call& call) {
  return call.is("cudaLaunchKernel") || call.is("cudaMemcpy");
}

bool is_mps_client() {
  int value = 0;
  return cudaDeviceGetAttribute(&value, cudaDevAttrMpsEnabled, 0) ==
             cudaSuccess &&
         value != 0;
}

bool has_ended(pid_t process) {
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
  if (descriptor < 0) return true;
  pollfd end{descriptor, POLLIN, 0};
  const bool ended = poll(&end, 1, 0) == 1;
  close(descriptor);
  return ended;
}

int next_refused(Call& call) {
  static std::atomic<int> pending{kSuccess};
  const int before = pending.exchange(kSuccess);
  if (before == kSuccess) return pending = call.proceed();
  call.fired();
  return before;
}

int first_thread_only(Call& call) {
  return gettid() == getpid() ? call.proceed() : refused(call);
}

cudaStream_t private_stream() {
  static std::mutex mutex;
  static auto& streams = *new std::map<CUcontext, cudaStream_t>;
  CUcontext context = nullptr;
  DRIVER_CALL(cuCtxGetCurrent)(&context);
  if (context == nullptr) {
    cudaFree(nullptr);
    DRIVER_CALL(cuCtxGetCurrent)(&context);
  }
  const std::lock_guard lock(mutex);
  cudaStream_t& stream = streams[context];
  if (stream == nullptr) {
    // On a GPU, streams of one priority can share a queue. Then work of one
    // stream waits for work of another.
    int least = 0, greatest = 0;
    DRIVER_CALL(cuCtxGetStreamPriorityRange)(&least, &greatest);
    DRIVER_CALL(cuStreamCreateWithPriority)
    (&stream, CU_STREAM_NON_BLOCKING, greatest);
  }
  return stream;
}

int copied_at_once(Call& call) {
  call.fired();
  const cudaStream_t stream = private_stream();
  const cudaError_t code =
      cudaMemcpyAsync(call.at<void*>(0), call.at<const void*>(1),
                      call.at<size_t>(2), cudaMemcpyDefault, stream);
  if (code != cudaSuccess) return code;
  return DRIVER_CALL(cuStreamSynchronize)(stream);
}

namespace {

std::string state_file(const std::string& key) {
  const char* const folder = std::getenv("IPCLAB_FAULT_STATE");
  return folder == nullptr ? "" : std::string(folder) + "/" + key;
}

}  // namespace

int this_thread() { return gettid(); }

void at_thread_end(std::function<void()> step) {
  struct AtEnd {
    std::vector<std::function<void()>> steps;
    ~AtEnd() {
      if (gettid() != getpid())
        for (const auto& each : steps) each();
    }
  };
  thread_local AtEnd at_end;
  at_end.steps.push_back(std::move(step));
}

bool first_of_all_processes(const std::string& key) {
  const std::string path = state_file(key);
  if (path.empty()) return true;
  const int file =
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return false;
  close(file);
  return true;
}

void tell_processes(const std::string& key, unsigned long long value) {
  const std::string path = state_file(key);
  if (path.empty()) return;
  const int file =
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return;
  if (write(file, &value, sizeof value) < 0) std::perror(path.c_str());
  close(file);
}

unsigned long long told(const std::string& key, unsigned long long none) {
  unsigned long long value = none;
  const std::string path = state_file(key);
  if (path.empty()) return none;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return none;
  if (read(file, &value, sizeof value) != sizeof value) value = none;
  close(file);
  return value;
}

std::string key_of(const void* bytes, size_t size) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (size_t i = 0; i < size; ++i)
    hash =
        (hash ^ static_cast<const unsigned char*>(bytes)[i]) * 1099511628211u;
  char text[20];
  std::snprintf(text, sizeof text, "%016llx",
                static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace ipclab::faults
