// SPDX-License-Identifier: Apache-2.0
// A module: decodes all functions of a text, finds out how much stack and
// shared memory each kernel needs and whether it can run, and links addresses.
#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>

#include "decode.h"

namespace ipclab::ptx {
namespace {

/// The bytes of stack for a thread whose calls are not known in advance
/// (recursion, function pointers), in addition to the kernel's own variables.
constexpr uint32_t kUnknownStack = 64 * 1024;

/// The references of a body: module-scope names, and calls through a register.
struct References {
  std::set<std::string> names;
  std::set<std::string> outside_of_calls;  ///< a function: its address is taken
  bool indirect_call = false;

  explicit References(const FunctionSyntax& function) {
    for (const Statement& statement : function.body) {
      const bool calls = statement.opcode.compare(0, 4, "call") == 0;
      for (const Operand& operand : statement.operands) add(operand, calls);
      if (!calls) continue;
      for (const Operand& operand : statement.operands)
        indirect_call |= operand.kind == Operand::kRegister;
    }
  }

 private:
  void add(const Operand& operand, bool calls) {
    if (operand.kind == Operand::kName && operand.known == nullptr) {
      names.insert(operand.name);
      if (!calls) outside_of_calls.insert(operand.name);
    }
    for (const Operand& element : operand.elements) add(element, calls);
  }
};

/// Reads the directives `.file 1 "path"` and `.loc 1 12 5`.
std::vector<Program::Source> sources_of(std::string_view text) {
  std::vector<std::tuple<int, int, int>> sources;
  if (text.find(".loc\t") == text.npos && text.find(".loc ") == text.npos)
    return {};
  std::map<int, std::string> files;
  int number = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = text.find('\n');
    const std::string line(text.substr(0, end));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    int file = 0, place = 0;
    if (std::sscanf(line.c_str(), " .loc %d %d", &file, &place) == 2) {
      sources.push_back({number, file, place});
    } else if (std::sscanf(line.c_str(), " .file %d", &file) == 1) {
      const size_t first = line.find('"'), last = line.rfind('"');
      if (first == last) continue;
      const std::string path = line.substr(first + 1, last - first - 1);
      files[file] = path.substr(path.rfind('/') + 1);
    }
  }
  // The directives for files come last.
  std::vector<Program::Source> named;
  for (const auto& [line, file, place] : sources)
    named.push_back({line, files[file] + ":" + std::to_string(place)});
  return named;
}

uint64_t code_address(size_t function) { return kCodeWindow + function * 16; }

}  // namespace

class ModuleBuilder {
 public:
  explicit ModuleBuilder(std::string_view text)
      : syntax_(parse_syntax(text)),
        module_(new Module),
        sources_(sources_of(text)) {}

  std::unique_ptr<Module> build() {
    module_->program_ = std::make_unique<Program>();
    Program& program = *module_->program_;
    program.sources = std::move(sources_);
    program.functions.resize(syntax_.functions.size());
    place_shared();
    const ProgramContext context{&syntax_, &program};
    for (size_t k = 0; k < syntax_.functions.size(); ++k) {
      const FunctionSyntax& from = *syntax_.functions[k];
      Function& function = program.functions[k];
      function.name = from.name;
      function.unit = from.unit;
      function.index = static_cast<uint32_t>(k);
      if (from.defined)
        FunctionBuilder(context, from, function, shared_base(k)).build();
    }
    find_addresses_taken();
    for (size_t k = 0; k < syntax_.functions.size(); ++k)
      if (syntax_.functions[k]->entry && syntax_.functions[k]->defined)
        add_kernel(k);
    module_->variables_ = std::move(syntax_.variables);
    program.variable_unit = std::move(syntax_.variable_unit);
    program.variable_names = std::move(syntax_.variable_names);
    program.function_names = std::move(syntax_.function_names);
    return std::move(module_);
  }

 private:
  /// The offset of the .shared variables of a function's own body. Those of a
  /// kernel come after the variables of the module that the kernel can use.
  uint32_t shared_base(size_t index) {
    const FunctionSyntax& function = *syntax_.functions[index];
    if (!function.entry) return syntax_.shared_sections[function.unit].base;
    uint32_t end = 0;
    for (const int unit : shared_of_[index]) {
      const SharedSection& section = syntax_.shared_sections[unit];
      end = std::max(end, section.base + section.size);
    }
    return end;
  }

  /// Gives the units their shared memory. Two units have the same offsets if no
  /// kernel uses variables of both: as a linker does it, a kernel does not pay
  /// for the variables of others.
  void place_shared() {
    references_.reserve(syntax_.functions.size());
    for (const auto& function : syntax_.functions)
      references_.emplace_back(*function);
    const auto take = [&](const std::string& name, int unit) {
      if (const size_t* found = syntax_.function_names.find(name, unit))
        called_by_address_.insert(*found);
    };
    for (size_t k = 0; k < syntax_.functions.size(); ++k)
      for (const std::string& name : references_[k].outside_of_calls)
        take(name, syntax_.functions[k]->unit);
    for (size_t k = 0; k < syntax_.variables.size(); ++k)
      for (const auto& relocation : syntax_.variables[k].relocations)
        take(relocation.symbol, syntax_.variable_unit[k]);
    for (size_t k = 0; k < syntax_.functions.size(); ++k) {
      std::set<size_t> seen;
      if (syntax_.functions[k]->entry) find_shared(k, seen, shared_of_[k]);
    }
    std::vector<int> placed;
    for (auto& [unit, section] : syntax_.shared_sections) {
      std::set<int> together;
      for (const auto& [kernel, units] : shared_of_)
        if (units.count(unit) != 0) together.insert(units.begin(), units.end());
      for (const int other : placed) {
        if (together.count(other) == 0) continue;
        const SharedSection& before = syntax_.shared_sections[other];
        section.base = std::max(section.base, before.base + before.size);
      }
      section.base = (section.base + section.alignment - 1) /
                     section.alignment * section.alignment;
      placed.push_back(unit);
    }
    for (SharedVariable& shared : syntax_.shared)
      if (!shared.dynamic)
        shared.offset += syntax_.shared_sections[shared.unit].base;
  }

  /// Adds the units whose shared variables a function can use.
  void find_shared(size_t index, std::set<size_t>& seen, std::set<int>& units) {
    if (!seen.insert(index).second) return;
    const FunctionSyntax& function = *syntax_.functions[index];
    for (const auto& declaration : function.declarations)
      if (!function.entry && declaration->kind == Declaration::kShared)
        units.insert(function.unit);
    if (references_[index].indirect_call)
      for (const size_t callee : called_by_address_)
        find_shared(callee, seen, units);
    for (const std::string& name : references_[index].names) {
      const size_t* found = syntax_.shared_names.find(name, function.unit);
      if (found != nullptr && !syntax_.shared[*found].dynamic)
        units.insert(syntax_.shared[*found].unit);
      found = syntax_.function_names.find(name, function.unit);
      if (found != nullptr) find_shared(*found, seen, units);
    }
  }

  /// Finds the functions whose address is used: an indirect call may reach
  /// them.
  void find_addresses_taken() {
    const auto add = [&](const std::string& name, int unit) {
      if (const size_t* found = syntax_.function_names.find(name, unit))
        addresses_taken_.insert(*found);
    };
    for (const Function& function : module_->program_->functions)
      for (const Constant& constant : function.constants)
        if (!constant.symbol.empty()) add(constant.symbol, function.unit);
    for (size_t k = 0; k < syntax_.variables.size(); ++k)
      for (const auto& relocation : syntax_.variables[k].relocations)
        add(relocation.symbol, syntax_.variable_unit[k]);
  }

  struct Needs {
    std::set<size_t> reached;
    bool unknown_depth = false;
    uint32_t stack = 0;
    uint32_t registers = 0;
  };

  /// Follows the calls from a function and returns the bytes of stack that it
  /// needs; `path` are its callers.
  uint32_t follow(size_t index, std::set<size_t>& path, Needs& needs) {
    if (!path.insert(index).second) {
      needs.unknown_depth = true;
      return 0;
    }
    const Function& function = module_->program_->functions[index];
    needs.reached.insert(index);
    uint32_t deepest = 0;
    const auto call = [&](size_t callee) {
      deepest = std::max(deepest, follow(callee, path, needs));
    };
    for (const Instruction& i : function.code) {
      if (i.flow != Flow::kCall) continue;
      const Call& c = function.calls[static_cast<size_t>(i.immediate)];
      if (c.callee != nullptr) {
        call(c.callee->index);
      } else {
        needs.unknown_depth = true;
        for (const size_t callee : addresses_taken_)
          if (needs.reached.count(callee) == 0) call(callee);
      }
    }
    path.erase(index);
    return function.frame_bytes + deepest;
  }

  void add_kernel(size_t index) {
    const FunctionSyntax& syntax = *syntax_.functions[index];
    const Function& function = module_->program_->functions[index];
    auto kernel = std::make_unique<Kernel>();
    Needs needs;
    std::set<size_t> path;
    needs.stack = follow(index, path, needs);
    if (needs.unknown_depth) needs.stack += kUnknownStack;
    kernel->name_ = syntax.name;
    for (const Declaration* p : syntax.parameters)
      kernel->parameters_.push_back({p->offset, p->size});
    kernel->parameter_bytes_ = syntax.parameter_bytes;
    kernel->static_shared_bytes_ = shared_base(index) + syntax.shared_bytes;
    kernel->local_bytes_ = needs.stack;
    kernel->stack_bytes_ = (needs.stack + 15) / 16 * 16;
    kernel->register_count_ = static_cast<uint32_t>(
        std::min<size_t>(255, std::max<size_t>(8, syntax.registers.size())));
    kernel->max_threads_per_block_ = std::min(1024u, syntax.max_threads);
    std::copy_n(syntax.cluster, 3, kernel->required_cluster_);
    kernel->function_ = &function;
    kernel->program_ = module_->program_.get();
    for (const size_t reached : needs.reached) {
      const Function& callee = module_->program_->functions[reached];
      // A function whose address is used fails only when it is called.
      if (callee.unsupported.empty() || !kernel->unsupported_.empty()) continue;
      if (addresses_taken_.count(reached) != 0 && reached != index) continue;
      kernel->unsupported_ =
          callee.unsupported +
          (reached == index ? "" : " (in function " + callee.name + ")");
    }
    module_->kernels_.push_back(std::move(kernel));
  }

  Syntax syntax_;
  std::unique_ptr<Module> module_;
  std::vector<Program::Source> sources_;
  std::set<size_t> addresses_taken_;
  std::vector<References> references_;         ///< of each function
  std::set<size_t> called_by_address_;         ///< functions that may be
  std::map<size_t, std::set<int>> shared_of_;  ///< the units of each kernel
};

Module::Module() = default;
Module::~Module() = default;

std::unique_ptr<Module> Module::parse(std::string_view ptx) {
  return ModuleBuilder(ptx).build();
}

const Kernel* Module::kernel(std::string_view name) const {
  for (const auto& kernel : kernels_)
    if (kernel->name() == name) return kernel.get();
  return nullptr;
}

const std::vector<std::unique_ptr<Kernel>>& Module::kernels() const {
  return kernels_;
}

std::vector<Module::Variable>& Module::variables() { return variables_; }

void Module::link() {
  const auto address_of = [&](const std::string& name, int unit) -> uint64_t {
    if (const size_t* found = program_->variable_names.find(name, unit))
      return variables_[*found].address;
    if (const size_t* found = program_->function_names.find(name, unit))
      return code_address(*found);
    throw std::runtime_error("PTX: '" + name +
                             "' is not defined in this module");
  };
  for (Function& function : program_->functions)
    for (Constant& constant : function.constants)
      if (!constant.symbol.empty())
        constant.value = address_of(constant.symbol, function.unit) +
                         static_cast<uint64_t>(constant.addend);
  for (size_t k = 0; k < variables_.size(); ++k) {
    Variable& variable = variables_[k];
    for (const Variable::Relocation& relocation : variable.relocations) {
      const uint64_t value =
          address_of(relocation.symbol, program_->variable_unit[k]) +
          static_cast<uint64_t>(relocation.addend);
      const size_t room = variable.initial.size() - relocation.offset;
      std::memcpy(variable.initial.data() + relocation.offset, &value,
                  std::min<size_t>(8, room));
    }
  }
}

std::string Kernel::source_of(int line) const {
  const auto& sources = program_->sources;
  const auto after = std::upper_bound(
      sources.begin(), sources.end(), line,
      [](int wanted, const Program::Source& one) { return wanted < one.line; });
  return after == sources.begin() ? "" : std::prev(after)->place;
}

}  // namespace ipclab::ptx
