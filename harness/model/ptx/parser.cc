// SPDX-License-Identifier: Apache-2.0
// Makes the syntax tree of a PTX text: directives, declarations, scopes,
// operands. The parser does not know single instructions.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <unordered_map>

#include "lexer.h"
#include "syntax.h"

namespace ipclab::ptx {
namespace {

const std::pair<const char*, Type> kTypes[] = {
    {"pred", Type::kPred},   {"b8", Type::kB8},     {"b16", Type::kB16},
    {"b32", Type::kB32},     {"b64", Type::kB64},   {"b128", Type::kB128},
    {"u8", Type::kU8},       {"u16", Type::kU16},   {"u32", Type::kU32},
    {"u64", Type::kU64},     {"s8", Type::kS8},     {"s16", Type::kS16},
    {"s32", Type::kS32},     {"s64", Type::kS64},   {"f16", Type::kF16},
    {"f16x2", Type::kF16x2}, {"bf16", Type::kBf16}, {"bf16x2", Type::kBf16x2},
    {"f32", Type::kF32},     {"f64", Type::kF64},   {"u16x2", Type::kU16x2},
    {"s16x2", Type::kS16x2},
};

uint32_t align_up(uint32_t value, uint32_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

struct Scope {
  int id;
  uint32_t frame_top;  // where the enclosing scope's variables end
  std::unordered_map<std::string, Declaration*> names;
  std::unordered_map<std::string, Type> ranges;  // of `.reg .b32 %r<9>`
};

/// What follows a state space: `.align 8 .b8 name[24]`.
struct VariableHead {
  std::string name;
  Type type = Type::kNone;
  uint32_t alignment = 1;
  uint64_t size = 0;
  bool unsized = false;
  bool managed = false;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : tokens_(lex(text)) {}

  Syntax parse() {
    while (now().kind != Token::kEnd) top_level();
    return std::move(syntax_);
  }

 private:
  const Token& now() const { return tokens_[at_]; }
  const Token& next() {
    const Token& token = tokens_[at_];
    if (token.kind != Token::kEnd) ++at_;
    return token;
  }
  bool is(std::string_view text) const { return now().text == text; }
  bool accept(std::string_view text) {
    if (!is(text)) return false;
    ++at_;
    return true;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error("PTX line " + std::to_string(now().line) + ": " +
                             what);
  }
  void expect(const char* text) {
    if (!accept(text))
      fail("expected '" + std::string(text) + "' before '" +
           std::string(now().text) + "'");
  }
  std::string word(const char* what) {
    if (now().kind != Token::kWord)
      fail("expected " + std::string(what) + " before '" +
           std::string(now().text) + "'");
    return std::string(next().text);
  }
  uint64_t integer() {
    if (now().kind != Token::kNumber)
      fail("expected a number before '" + std::string(now().text) + "'");
    return std::strtoull(std::string(next().text).c_str(), nullptr, 0);
  }
  /// Skips to the end of a directive: `;`, or a `{…}` block.
  void skip_directive() {
    int depth = 0;
    while (now().kind != Token::kEnd) {
      const Token& token = next();
      if (token.text == "{") ++depth;
      if (token.text == "}" && --depth == 0) return;
      if (token.text == ";" && depth == 0) return;
    }
  }

  void top_level() {
    if (now().kind == Token::kUnit) {
      ++unit_;
      ++at_;
      return;
    }
    bool visible = false, external = false;
    for (;; ++at_) {
      if (is(".visible") || is(".weak") || is(".common"))
        visible = true;
      else if (is(".extern"))
        external = visible = true;
      else
        break;
    }
    if (accept(".entry")) return function(true, visible);
    if (accept(".func")) return function(false, visible);
    if (accept(".global")) return module_variable(false, visible, external);
    if (accept(".const")) return module_variable(true, visible, external);
    if (accept(".shared")) return module_shared(visible);
    if (is(".pragma") || is(".section") || is(".alias") || is(".texref"))
      return skip_directive();
    if (accept(";")) return;
    fail("unexpected '" + std::string(now().text) + "'");
  }

  VariableHead variable_head() {
    VariableHead head;
    while (now().text[0] == '.') {
      if (accept(".align")) {
        head.alignment = static_cast<uint32_t>(integer());
      } else if (accept(".attribute")) {
        expect("(");
        head.managed |= is(".managed");
        while (!accept(")")) next();
      } else if (accept(".ptr") || accept(".noreg")) {
      } else if (is(".global") || is(".const") || is(".shared") ||
                 is(".local")) {
        ++at_;  // the state space of `.ptr .global`
      } else {
        const Type type = type_named(now().text.substr(1));
        if (type == Type::kNone)
          fail("unknown type '" + std::string(now().text) + "'");
        head.type = type;
        ++at_;
      }
    }
    if (head.type == Type::kNone) fail("variable without a type");
    head.name = word("a variable's name");
    head.alignment = std::max(head.alignment, type_bytes(head.type));
    head.size = type_bytes(head.type);
    while (accept("[")) {
      if (accept("]")) {
        head.unsized = true;
        continue;
      }
      head.size *= integer();
      expect("]");
    }
    return head;
  }

  void module_variable(bool constant, bool visible, bool external) {
    do {
      const VariableHead head = variable_head();
      Module::Variable variable;
      variable.name = head.name;
      variable.size = head.size;
      variable.alignment = head.alignment;
      variable.constant = constant;
      variable.managed = head.managed;
      if (accept("=")) initialiser(head, variable);
      if (external) continue;  // defined in another unit, or nowhere
      syntax_.variable_names.add(head.name, unit_, visible,
                                 syntax_.variables.size());
      syntax_.variables.push_back(std::move(variable));
      syntax_.variable_unit.push_back(unit_);
    } while (accept(","));
    expect(";");
  }

  void initialiser(const VariableHead& head, Module::Variable& variable) {
    const uint32_t bytes = type_bytes(head.type);
    variable.initial.resize(variable.size);
    uint64_t at = 0;
    int depth = 0;
    do {
      if (accept("{")) {
        ++depth;
      } else if (accept("}")) {
        --depth;
      } else if (accept(",")) {
      } else {
        if (at + bytes > variable.size) fail("too many initialisers");
        const Operand value = initial_value();
        if (value.kind == Operand::kName)
          variable.relocations.push_back({at, value.name, value.offset});
        uint64_t bits = value.bits;
        if (value.kind == Operand::kFloat64 && head.type == Type::kF32) {
          double wide;
          std::memcpy(&wide, &bits, 8);
          const float narrow = static_cast<float>(wide);
          bits = 0;
          std::memcpy(&bits, &narrow, 4);
        }
        std::memcpy(variable.initial.data() + at, &bits,
                    std::min<uint32_t>(bytes, 8));
        at += bytes;
      }
    } while (depth > 0);
  }

  Operand initial_value() {
    if (accept("generic")) {
      expect("(");
      Operand value = operand();
      expect(")");
      if (accept("+")) value.offset += static_cast<int64_t>(integer());
      return value;
    }
    return operand();
  }

  void module_shared(bool visible) {
    const VariableHead head = variable_head();
    expect(";");
    SharedVariable shared;
    shared.name = head.name;
    shared.dynamic = head.unsized || head.size == 0;
    if (!shared.dynamic) {
      shared.size = static_cast<uint32_t>(head.size);
      shared.unit = unit_;
      shared.offset = syntax_.shared_sections[unit_].add(
          shared.size, static_cast<uint32_t>(head.alignment));
    }
    syntax_.shared_names.add(head.name, unit_, visible, syntax_.shared.size());
    syntax_.shared.push_back(shared);
  }

  Declaration* declare(Declaration::Kind kind, const VariableHead& head) {
    auto declaration = std::make_unique<Declaration>();
    declaration->kind = kind;
    declaration->type = head.type;
    declaration->size = static_cast<uint32_t>(head.size);
    if (kind == Declaration::kShared && !function_->entry) {
      declaration->offset = syntax_.shared_sections[unit_].add(
          declaration->size, static_cast<uint32_t>(head.alignment));
    } else {
      uint32_t& end = kind == Declaration::kLocal ? frame_top_
                      : kind == Declaration::kShared
                          ? function_->shared_bytes
                          : function_->parameter_bytes;
      declaration->offset = align_up(end, head.alignment);
      end = declaration->offset + declaration->size;
    }
    function_->frame_bytes = std::max(function_->frame_bytes, frame_top_);
    Declaration* raw = declaration.get();
    scopes_.back().names[head.name] = raw;
    function_->declarations.push_back(std::move(declaration));
    return raw;
  }

  void open_scope() {
    const int parent = scopes_.empty() ? -1 : scopes_.back().id;
    scopes_.push_back(
        {static_cast<int>(function_->scope_parent.size()), frame_top_, {}, {}});
    function_->scope_parent.push_back(parent);
  }

  /// Variables of scopes that are never open together share their place.
  void close_scope() {
    frame_top_ = scopes_.back().frame_top;
    scopes_.pop_back();
  }

  std::vector<Declaration*> parameter_list() {
    std::vector<Declaration*> list;
    expect("(");
    while (!accept(")")) {
      if (accept(",")) continue;
      if (accept(".reg")) {
        fail("parameters in registers are not supported");
      }
      expect(".param");
      list.push_back(declare(
          function_->entry ? Declaration::kEntryParameter : Declaration::kLocal,
          variable_head()));
    }
    return list;
  }

  void function(bool entry, bool visible) {
    auto owned = std::make_unique<FunctionSyntax>();
    function_ = owned.get();
    function_->entry = entry;
    function_->visible = visible || entry;
    function_->unit = unit_;
    function_->line = now().line;
    scopes_.clear();
    frame_top_ = 0;
    open_scope();
    if (!entry && is("(")) function_->results = parameter_list();
    function_->name = word("a function's name");
    if (is("(")) function_->parameters = parameter_list();
    while (now().text[0] == '.') {
      if (accept(".maxntid") || accept(".reqntid")) {
        uint64_t threads = integer();
        while (accept(",")) threads *= integer();
        function_->max_threads = static_cast<uint32_t>(threads);
      } else if (accept(".reqnctapercluster")) {
        unsigned* size = function_->cluster;
        size[0] = size[1] = size[2] = 1;
        do {
          *size++ = static_cast<unsigned>(integer());
        } while (accept(",") && size != function_->cluster + 3);
      } else if (accept(".pragma")) {
        ++at_;
        accept(";");
      } else {  // .minnctapersm 2, .noreturn …
        ++at_;
        while (now().kind == Token::kNumber || is(",")) ++at_;
      }
    }
    if (!accept(";")) {
      function_->defined = true;
      body();
    }
    add_function(std::move(owned));
  }

  /// A definition replaces an earlier declaration of the same name.
  void add_function(std::unique_ptr<FunctionSyntax> function) {
    const size_t* known =
        syntax_.function_names.find(function->name, function->unit);
    if (known && !function->defined) return;
    if (known && !syntax_.functions[*known]->defined) {
      syntax_.functions[*known] = std::move(function);
      return;
    }
    syntax_.function_names.add(function->name, function->unit,
                               function->visible || !function->defined,
                               syntax_.functions.size());
    syntax_.functions.push_back(std::move(function));
  }

  void body() {
    expect("{");
    open_scope();
    const size_t outermost = scopes_.size();
    while (scopes_.size() >= outermost) {
      if (now().kind == Token::kEnd) fail("function without an end");
      if (accept("{"))
        open_scope();
      else if (accept("}"))
        close_scope();
      else if (accept(".reg"))
        registers();
      else if (accept(".local") || accept(".param"))
        body_variable(Declaration::kLocal);
      else if (accept(".shared"))
        body_variable(Declaration::kShared);
      else if (accept(";"))
        continue;
      else if (is(".pragma"))
        skip_directive();
      else
        statement();
    }
  }

  void body_variable(Declaration::Kind kind) {
    do {
      declare(kind, variable_head());
    } while (accept(","));
    expect(";");
  }

  void registers() {
    if (is(".v2") || is(".v4")) fail("vector registers are not supported");
    const Type type = type_named(word("a type").substr(1));
    if (type == Type::kNone) fail("unknown register type");
    do {
      const std::string name = word("a register's name");
      if (accept("<")) {
        integer();
        expect(">");
        scopes_.back().ranges[name] = type;
      } else {
        scopes_.back().names[name] = new_register(type);
      }
    } while (accept(","));
    expect(";");
  }

  Declaration* new_register(Type type) {
    auto declaration = std::make_unique<Declaration>();
    declaration->kind = Declaration::kRegister;
    declaration->type = type;
    declaration->offset = static_cast<uint32_t>(function_->registers.size());
    function_->registers.push_back(type);
    function_->declarations.push_back(std::move(declaration));
    return function_->declarations.back().get();
  }

  const Declaration* find(const std::string& name) {
    const std::string prefix =
        name.substr(0, name.find_last_not_of("0123456789") + 1);
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto known = scope->names.find(name);
      if (known != scope->names.end()) return known->second;
      const auto range = scope->ranges.find(prefix);
      if (range != scope->ranges.end())
        return scope->names[name] = new_register(range->second);
    }
    return nullptr;
  }

  void statement() {
    Statement statement;
    statement.line = now().line;
    statement.scope = scopes_.back().id;
    if (now().kind == Token::kWord && tokens_[at_ + 1].text == ":") {
      statement.label = std::string(next().text);
      ++at_;
      if (accept(".branchtargets")) {
        do {
          statement.targets.push_back(word("a label"));
        } while (accept(","));
        expect(";");
      } else if (is(".callprototype") || is(".calltargets")) {
        skip_directive();
      }
      function_->body.push_back(std::move(statement));
      return;
    }
    if (accept("@")) {
      statement.guarded = true;
      statement.guard = operand();
    }
    statement.opcode = word("an instruction");
    while (!accept(";")) {
      statement.operands.push_back(operand());
      if (!is(";")) expect(",");
    }
    function_->body.push_back(std::move(statement));
  }

  std::vector<Operand> operands_until(const char* close) {
    std::vector<Operand> list;
    while (!accept(close)) {
      list.push_back(operand());
      if (!is(close)) expect(",");
    }
    return list;
  }

  Operand operand() {
    Operand operand;
    if (accept("{")) {
      operand.kind = Operand::kVector;
      operand.elements = operands_until("}");
    } else if (accept("(")) {
      operand.kind = Operand::kList;
      operand.elements = operands_until(")");
    } else if (accept("[")) {
      operand.kind = Operand::kMemory;
      operand.elements = operands_until("]");
      if (operand.elements.empty()) fail("empty address");
      std::swap(operand.offset, operand.elements[0].offset);
    } else if (accept("!")) {
      operand = this->operand();
      operand.negated = !operand.negated;
    } else if (is("-") || is("+") || is("~") || now().kind == Token::kNumber) {
      number(operand);
    } else if (now().kind == Token::kWord) {
      named(operand);
    } else {
      fail("unexpected '" + std::string(now().text) + "'");
    }
    return operand;
  }

  void named(Operand& operand) {
    operand.name = std::string(next().text);
    if (operand.name == "_") return;
    if (operand.name == "WARP_SZ") {  // a constant of the language
      operand.kind = Operand::kInteger;
      operand.bits = kLanes;
      return;
    }
    operand.known = find(operand.name);
    operand.kind =
        operand.known && operand.known->kind == Declaration::kRegister
            ? Operand::kRegister
            : Operand::kName;
    if (accept("|")) {
      operand.elements.push_back(this->operand());
    } else if (accept("+")) {
      const bool negative = accept("-");
      const int64_t offset = static_cast<int64_t>(integer());
      operand.offset = negative ? -offset : offset;
    } else if (accept("-")) {
      operand.offset = -static_cast<int64_t>(integer());
    }
  }

  void number(Operand& operand) {
    bool negative = false, inverted = false;
    for (;; ++at_) {
      if (is("-"))
        negative = !negative;
      else if (is("~"))
        inverted = !inverted;
      else if (!is("+"))
        break;
    }
    if (now().kind != Token::kNumber) fail("expected a number");
    const std::string text(next().text);
    const int kind = text.size() > 1 && text[0] == '0' ? text[1] | 0x20 : 0;
    if (kind == 'f' && text.size() == 10) {
      operand.kind = Operand::kFloat32;
      operand.bits = std::strtoull(text.c_str() + 2, nullptr, 16);
      if (negative) operand.bits ^= 0x80000000u;
    } else if (kind == 'd' && text.size() == 18) {
      operand.kind = Operand::kFloat64;
      operand.bits = std::strtoull(text.c_str() + 2, nullptr, 16);
      if (negative) operand.bits ^= 1ull << 63;
    } else if (kind != 'x' && text.find_first_of(".eE") != text.npos) {
      operand.kind = Operand::kFloat64;
      const double value = std::strtod(text.c_str(), nullptr);
      std::memcpy(&operand.bits, &value, 8);
      if (negative) operand.bits ^= 1ull << 63;
    } else {
      operand.kind = Operand::kInteger;
      operand.bits = kind == 'b' ? std::strtoull(text.c_str() + 2, nullptr, 2)
                                 : std::strtoull(text.c_str(), nullptr, 0);
      if (inverted) operand.bits = ~operand.bits;
      if (negative) operand.bits = 0 - operand.bits;
    }
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int unit_ = 0;
  Syntax syntax_;
  FunctionSyntax* function_ = nullptr;
  uint32_t frame_top_ = 0;
  std::vector<Scope> scopes_;
};

}  // namespace

uint32_t type_bytes(Type type) {
  switch (type) {
    case Type::kNone:
      return 0;
    case Type::kB8:
    case Type::kU8:
    case Type::kS8:
      return 1;
    case Type::kB16:
    case Type::kU16:
    case Type::kS16:
    case Type::kF16:
    case Type::kBf16:
      return 2;
    case Type::kB64:
    case Type::kU64:
    case Type::kS64:
    case Type::kF64:
      return 8;
    case Type::kB128:
      return 16;
    default:
      return 4;
  }
}

Type type_named(std::string_view name) {
  for (const auto& [text, type] : kTypes)
    if (name == text) return type;
  return Type::kNone;
}

Syntax parse_syntax(std::string_view text) { return Parser(text).parse(); }

}  // namespace ipclab::ptx
