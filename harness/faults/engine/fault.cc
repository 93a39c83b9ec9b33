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
  for (Function* function : functions())
    for (const std::string& wanted : chosen->functions)
      if (wanted == "*" || wanted == function->canonical ||
          wanted == function->name)
        function->broken = true;
  for (Function* function : functions()) {
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
  refused_by_driver_ = code != cudaSuccess;
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
  const int code =
      call.function().broken ? chosen->fault(call) : call.proceed();
  if (code != cudaSuccess && code != cudaErrorNotReady && call.is_runtime() &&
      !call.refused_by_driver() && !reads_last_error(call.function())) {
    cudaGetLastError();  // clears an older error; the refusal replaces it
    last_refusal = code;
  }
  --inside;
  return code;
}

static std::string name_of_file(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

void List::named(const char* name, const char* what,
                 std::initializer_list<const char*> functions, Fault fault,
                 int gpus, const char* file) {
  entries_.push_back({name,
                      what,
                      {functions.begin(), functions.end()},
                      "",
                      gpus,
                      fault,
                      name_of_file(file)});
}

void List::combine(const std::string& function, const char* op,
                   std::string what, Fault fault, int gpus, bool everywhere,
                   const char* file) {
  Entry entry{function + "." + op, std::move(what), {function}, op, gpus, fault,
              name_of_file(file)};
  if (everywhere) entry.functions.push_back("*");
  entries_.push_back(std::move(entry));
}

const std::string& chosen_function() { return chosen->functions.front(); }

const Entry* List::find(const std::string& name) const {
  for (const Entry& entry : entries_)
    if (entry.name == name) return &entry;
  return nullptr;
}

const List& all_faults() {
  static const List& list = *[] {
    auto* const made = new List;
    add_legacy_memory(*made);
    add_legacy_events(*made);
    add_virtual_memory(*made);
    add_pools(*made);
    add_allocator(*made);
    add_endpoints(*made);
    add_platform(*made);
    add_state(*made);
    add_paths(*made);
    add_import_paths(*made);
    add_unusual(*made);
    add_words(*made);
    add_queries(*made);
    add_processes(*made);
    add_mapped_memory(*made);
    add_stream_ordered(*made);
    add_answers(*made);
    add_order(*made);
    add_contexts(*made);
    add_regressions(*made);
    add_second_objects(*made);
    add_pool_lives(*made);
    add_chunk_lives(*made);
    add_legacy_lives(*made);
    add_further(*made);
    add_event_paths(*made);
    add_memory_paths(*made);
    add_chunk_paths(*made);
    add_pool_paths(*made);
    add_life_paths(*made);
    add_allowed(*made);
    add_operators(*made);
    return made;
  }();
  return list;
}

int refused(Call& call, int code) {
  call.fired();
  return code;
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
