// SPDX-License-Identifier: Apache-2.0
// The syntax tree of a PTX text, which the parser makes for the decoder.
// Register names and variables of bodies are resolved. All other names are
// still names.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ptx.h"

namespace ipclab::ptx {

constexpr int kLanes = 32;  ///< of a warp

enum class Type : uint8_t {
  kNone,
  kPred,
  kB8,
  kB16,
  kB32,
  kB64,
  kB128,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kF16x2,
  kBf16,
  kBf16x2,
  kU16x2,
  kS16x2,
  kF32,
  kF64,
};

/// Bytes of a value of the type; 0 for kNone, 4 for a predicate (its register
/// holds one bit for each lane).
uint32_t type_bytes(Type type);
/// "u32" -> kU32; kNone if it is not a type.
Type type_named(std::string_view name);
inline bool is_signed(Type t) { return t >= Type::kS8 && t <= Type::kS64; }
inline bool is_float(Type t) { return t == Type::kF32 || t == Type::kF64; }

/// A variable of a function body or of a parameter list, or a register.
struct Declaration {
  enum Kind : uint8_t { kRegister, kLocal, kShared, kEntryParameter } kind;
  Type type;
  uint32_t size = 0;    ///< bytes
  uint32_t offset = 0;  ///< in the frame, the kernel's shared memory or the
                        ///< parameter block; of a register its number
};

struct Operand {
  enum Kind : uint8_t {
    kRegister,
    kInteger,
    kFloat32,
    kFloat64,
    kName,
    kMemory,
    kVector,
    kList,
    kSink
  } kind = kSink;
  bool negated = false;                ///< !p
  const Declaration* known = nullptr;  ///< of a register or a body variable
  std::string name;
  uint64_t bits = 0;   ///< of a literal
  int64_t offset = 0;  ///< name+offset, [base+offset]
  /// kVector, kList: the elements; kMemory: the base (and what follows a
  /// comma); kRegister: the second destination of p|q.
  std::vector<Operand> elements;
};

struct Statement {
  int line = 0;
  int scope = 0;
  std::string label;   ///< not empty: this is a label, not an instruction
  std::string opcode;  ///< as written
  bool guarded = false;
  Operand guard;
  std::vector<Operand> operands;
  std::vector<std::string> targets;  ///< of `label: .branchtargets …`
};

/// An `.entry` or a `.func`.
struct FunctionSyntax {
  std::string name;
  bool entry = false;
  bool defined = false;
  bool visible = false;
  int unit = 0;
  int line = 0;
  std::vector<Declaration*> results, parameters;
  std::vector<std::unique_ptr<Declaration>> declarations;
  std::vector<Type> registers;
  std::vector<int> scope_parent;  ///< of each scope, -1 for the outermost
  std::vector<Statement> body;
  uint32_t frame_bytes = 0;   ///< .local and .param variables of the body
  uint32_t shared_bytes = 0;  ///< .shared variables of an entry's body (those
                              ///< of a .func count as the module's)
  uint32_t parameter_bytes = 0;
  uint32_t max_threads = 1024;
  unsigned cluster[3] = {0, 0, 0};  ///< .reqnctapercluster
};

/// A `.shared` variable at module scope; dynamic if it was declared without a
/// size.
struct SharedVariable {
  std::string name;
  uint32_t offset = 0, size = 0;
  bool dynamic = false;
  int unit = 0;
};

/// The `.shared` variables of a translation unit that belong to no entry; their
/// offsets begin at `base`.
struct SharedSection {
  uint32_t base = 0, size = 0, alignment = 1;

  uint32_t add(uint32_t bytes, uint32_t align) {
    const uint32_t offset = (size + align - 1) / align * align;
    size = offset + bytes;
    alignment = std::max(alignment, align);
    return offset;
  }
};

/// The meaning of a module-scope name. The name's own translation unit is
/// searched first.
template <class T>
class Names {
 public:
  void add(const std::string& name, int unit, bool visible, T value) {
    names_[{visible ? -1 : unit, name}] = value;
  }
  const T* find(const std::string& name, int unit) const {
    auto found = names_.find({unit, name});
    if (found == names_.end()) found = names_.find({-1, name});
    return found == names_.end() ? nullptr : &found->second;
  }

 private:
  std::map<std::pair<int, std::string>, T> names_;
};

struct Syntax {
  std::vector<std::unique_ptr<FunctionSyntax>> functions;
  std::vector<Module::Variable> variables;
  std::vector<int> variable_unit;  ///< translation unit of each variable
  std::vector<SharedVariable> shared;
  std::map<int, SharedSection> shared_sections;  ///< by unit
  Names<size_t> function_names, variable_names, shared_names;
};

/// Parses a text; throws std::runtime_error("PTX line N: …").
Syntax parse_syntax(std::string_view text);

}  // namespace ipclab::ptx
