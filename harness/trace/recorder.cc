// SPDX-License-Identifier: Apache-2.0
#include "recorder.h"

#include <cupti_driver_cbid.h>
#include <dlfcn.h>
#include <generated_cuda_meta.h>

#include <array>
#include <atomic>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "arguments.h"
#include "line.h"
#include "log.h"
#include "stacks.h"

namespace ipclab::trace {
namespace {

#include "calls.inc"

constexpr size_t kMostPointers = 16;             // written for one launch
constexpr uint64_t kLowest = uint64_t{1} << 32;  // values like an address
constexpr uint64_t kHighest = uint64_t{1} << 48;

struct Parameter {
  size_t size;  // bytes
};

struct Kernel {
  int number;
  std::vector<Parameter> parameters;
};

// The driver's functions about kernels; null if the driver does not have one.
struct Driver {
  decltype(&cuFuncGetParamInfo) parameter;
  decltype(&cuKernelGetParamInfo) kernel_parameter;
  decltype(&cuFuncGetName) name;
};

const Driver& driver() {
  static const Driver found = [] {
    Driver known{};
    void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return known;
    known.parameter = reinterpret_cast<decltype(known.parameter)>(
        dlsym(library, "cuFuncGetParamInfo"));
    known.kernel_parameter = reinterpret_cast<decltype(known.kernel_parameter)>(
        dlsym(library, "cuKernelGetParamInfo"));
    known.name =
        reinterpret_cast<decltype(known.name)>(dlsym(library, "cuFuncGetName"));
    return known;
  }();
  return found;
}

// Never destroyed: a call may come from another thread while the process ends.
std::mutex& kernels_mutex() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

std::unordered_map<CUfunction, Kernel>& kernels() {
  static auto& all = *new std::unordered_map<CUfunction, Kernel>;
  return all;
}

void declare(const char* what, int number, uint64_t value) {
  Line line;
  begin_event(line, what);
  write(line.raw(",\"number\":")
            .number(number)
            .raw(",\"pointer\":")
            .number(value)
            .raw("}"));
}

// A launch may pass a CUkernel as a CUfunction.
bool parameter(CUfunction function, size_t index, size_t* size) {
  size_t offset = 0;
  if (driver().parameter != nullptr &&
      driver().parameter(function, index, &offset, size) == CUDA_SUCCESS) {
    return true;
  }
  return driver().kernel_parameter != nullptr &&
         driver().kernel_parameter(reinterpret_cast<CUkernel>(function), index,
                                   &offset, size) == CUDA_SUCCESS;
}

// In the call that this thread records: the kernel's name, or null.
thread_local const char* launched = nullptr;

const Kernel& kernel(CUfunction function) {
  const std::lock_guard lock(kernels_mutex());
  auto& known = kernels();
  if (const auto found = known.find(function); found != known.end()) {
    return found->second;
  }
  Kernel& made = known[function];
  made.number = static_cast<int>(known.size());
  for (size_t size = 0; parameter(function, made.parameters.size(), &size);) {
    made.parameters.push_back({size});
  }
  const char* name = launched;
  if (name == nullptr && driver().name != nullptr) {
    driver().name(&name, function);
  }
  if (name == nullptr) name = "?";
  Line line;
  begin_event(line, "kernel");
  line.raw(",\"number\":").number(made.number).raw(",\"name\":");
  write(line.text(std::string_view(name).substr(0, 400)).raw("}"));
  return made;
}

// Threads and contexts get small numbers, in the order in which they appear.
int thread_number() {
  static std::atomic<int> last{0};
  thread_local const int mine = last.fetch_add(1);
  return mine;
}

int context_number(CUcontext context) {
  static std::array<std::atomic<CUcontext>, 256> known{};
  if (context == nullptr) return 0;
  for (size_t i = 0; i < known.size(); ++i) {
    CUcontext seen = known[i].load(std::memory_order_acquire);
    if (seen == context) return static_cast<int>(i) + 1;
    if (seen != nullptr) continue;
    if (known[i].compare_exchange_strong(seen, context)) {
      const int number = static_cast<int>(i) + 1;
      declare("context", number, reinterpret_cast<uintptr_t>(context));
      return number;
    }
    if (seen == context) return static_cast<int>(i) + 1;
  }
  return static_cast<int>(known.size()) + 1;
}

}  // namespace

const Call* begin_calls() { return std::begin(kCalls); }
const Call* end_calls() { return std::end(kCalls); }

void write_calls(const std::function<void(const Line&)>& put) {
  constexpr int kOnOneLine = 16;
  const int count = static_cast<int>(std::size(kCalls));
  for (int first = 0; first < count; first += kOnOneLine) {
    Line line;
    line.raw("{\"what\":\"calls\",\"first\":")
        .number(first)
        .raw(",\"calls\":[");
    for (int i = first; i < count && i < first + kOnOneLine; ++i) {
      if (i != first) line.comma();
      line.raw(kCalls[i].declared);
    }
    put(line.raw("]}"));
  }
}

void record_wait(int call, CUcontext context, const void* parameters) {
  if (!tracing()) return;
  Line given;
  if (kCalls[call].write_arguments != nullptr) {
    kCalls[call].write_arguments(given, parameters, false);
  }
  const std::string_view arguments = given.view();
  Line line;
  begin_event(line, "waits");
  write(line.raw(",\"thread\":")
            .number(thread_number())
            .raw(",\"context\":")
            .number(context_number(context))
            .raw(",\"call\":")
            .number(call)
            .raw(",\"stack\":")
            .number(stack_number())
            .raw(",\"arguments\":[")
            .raw(arguments.empty() ? arguments : arguments.substr(1))
            .raw("]}"));
}

void record_taking(const void* parameters) {
  const auto& given =
      *static_cast<const cuImportExternalMemory_params*>(parameters);
  const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* wanted = given.memHandleDesc;
  if (wanted != nullptr &&
      wanted->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) {
    note_descriptor(wanted->handle.fd);
  }
}

void record(const Done& done) {
  if (!tracing()) return;
  const Call& call = kCalls[done.call];
  if (call.only_refused && done.result == CUDA_SUCCESS) return;
  const uint64_t ended = now();
  const uint64_t from = beginning();
  Line line;
  line.raw("[")
      .number(done.began < from ? 0 : done.began - from)
      .comma()
      .number(ended - done.began)
      .comma()
      .number(thread_number())
      .comma()
      .number(context_number(done.context))
      .comma()
      .number(done.call)
      .comma()
      .number(static_cast<int>(done.result));
  launched = done.kernel;
  if (call.write_arguments != nullptr) {
    call.write_arguments(line, done.parameters, done.result == CUDA_SUCCESS);
  }
  if (const int stack = stack_number()) line.comma().number(stack);
  write(line.raw("]"));
}

int kernel_number(CUfunction function) { return kernel(function).number; }

void write_pointers(Line& line, CUfunction function, void** arguments) {
  line.raw("[");
  const Kernel& known = kernel(function);
  size_t written = 0;
  for (size_t i = 0; arguments != nullptr && i < known.parameters.size(); ++i) {
    const char* argument = static_cast<const char*>(arguments[i]);
    if (argument == nullptr) break;
    const size_t size = known.parameters[i].size;
    for (size_t at = 0; at + sizeof(uint64_t) <= size; at += sizeof(uint64_t)) {
      uint64_t word;
      std::memcpy(&word, argument + at, sizeof word);
      if (word < kLowest || word >= kHighest) continue;
      if (written == kMostPointers) break;
      if (written++ != 0) line.comma();
      line.number(word);
    }
  }
  line.raw("]");
}

void record_refused(const char* name, int result, int argument) {
  if (!tracing()) return;
  Line line;
  begin_event(line, "refused");
  line.raw(",\"name\":").text(name).raw(",\"result\":").number(result);
  line.raw(",\"argument\":").number(argument);
  write_visible(line);  // the program may have changed it since it began
  write(line.raw("}"));
}

void record_source(const char* name) {
  Line line;
  begin_event(line, "source");
  write(line.raw(",\"name\":").text(name).raw("}"));
}

}  // namespace ipclab::trace
