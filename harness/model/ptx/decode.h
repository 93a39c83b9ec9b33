// SPDX-License-Identifier: Apache-2.0
// Code that the decoders of the instruction groups share. Operands become
// register offsets. Modifiers are taken one by one, and a modifier that is left
// is an error.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>

#include "code.h"

namespace ipclab::ptx {

/// Thrown by decoders; the kernel is marked with the message.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct ProgramContext {
  const Syntax* syntax;
  Program* program;
};

/// Builds one Function.
class FunctionBuilder {
 public:
  FunctionBuilder(const ProgramContext& context, const FunctionSyntax& syntax,
                  Function& function, uint32_t shared_base);
  /// Decodes the whole body. An unsupported instruction ends the decoding and
  /// sets Function::unsupported.
  void build();

 private:
  friend class Decoder;
  uint32_t new_register(uint32_t bytes);
  uint32_t constant(uint64_t value, uint32_t bytes);
  uint32_t symbol_constant(const std::string& symbol, int64_t addend);
  void hoist();
  bool is_fixed(const Instruction& i, const std::set<uint32_t>& fixed) const;
  void resolve_branches();
  void measure_runs();
  int find_label(const std::string& name, int scope) const;

  const ProgramContext& context_;
  const FunctionSyntax& syntax_;
  Function& function_;
  uint32_t shared_base_;
  uint32_t carry_flag_ = kNone;
  std::vector<uint32_t> register_offset_;
  std::map<uint32_t, int> writers_;  ///< instructions that write a register
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> constant_offset_;
  std::map<std::pair<std::string, int64_t>, uint32_t> symbol_offset_;
  std::map<std::pair<int, std::string>, int> labels_;
  std::map<std::pair<int, std::string>, const Statement*> target_lists_;
  struct Branch {
    size_t instruction;
    const Statement* statement;
    std::string label;
  };
  std::vector<Branch> branches_;
};

/// Decodes one statement.
class Decoder {
 public:
  Decoder(FunctionBuilder& builder, const Statement& statement);

  Instruction i;  ///< the instruction that is being decoded

  const std::string& name() const { return parts_[0]; }
  /// Is the modifier there? If so, consumes it.
  bool take(std::string_view modifier);
  /// If the next modifier that is left is this one, consumes it.
  bool take_first(std::string_view modifier);
  /// Takes the first of these modifiers that is there and returns its index; -1
  /// if none is there.
  int take_one_of(std::initializer_list<const char*> modifiers);
  /// Consumes modifiers that have no effect here.
  void ignore(std::initializer_list<const char*> modifiers);
  void ignore_rest();
  /// Takes the order among the modifiers; kWeak if there is none.
  Effect::Order take_order();
  /// Takes the scope among the modifiers; `otherwise` if there is none.
  Effect::Scope take_scope(Effect::Scope otherwise);
  /// Takes the next type among the modifiers.
  Type take_type();
  [[noreturn]] void unsupported() const;
  [[noreturn]] void unsupported(const std::string& why) const;

  bool in_entry() const { return builder_.syntax_.entry; }
  size_t operands() const { return statement_.operands.size(); }
  const Operand& operand(size_t index) const;
  void expect_operands(size_t least, size_t most) const;

  /// The register offset of a source operand that is used as `type`.
  uint32_t source(size_t index, Type type);
  uint32_t source(const Operand& operand, Type type, uint32_t* bytes = nullptr);
  /// The register offset of a destination; 0 for `_`.
  uint32_t destination(size_t index, Type type);
  uint32_t destination(const Operand& operand, Type type,
                       uint32_t* bytes = nullptr);
  /// Sets a, immediate, space and address_bytes from [base+offset].
  void address(size_t index);
  /// True if the address is certainly in the parameters of the kernel.
  bool reads_parameter(uint32_t bytes) const;
  /// Takes the state space among the modifiers; kGeneric if there is none.
  Space take_space();
  uint32_t add_list(const std::vector<uint32_t>& offsets);
  uint32_t new_register(uint32_t bytes) { return builder_.new_register(bytes); }
  uint32_t constant(uint64_t v, uint32_t bytes) {
    return builder_.constant(v, bytes);
  }
  /// Emits an instruction before the one being decoded.
  void emit_before(const Instruction& instruction);
  /// The predicate register that holds the condition code's carry flag.
  uint32_t carry_flag();
  void branch_to(const std::string& label);
  void branch_list(const std::string& list);
  void call();

  void finish();  ///< checks that no modifier is left, then appends i

 private:
  uint32_t special_register(const std::string& name, uint32_t bytes);
  bool is_special(const std::string& name) const;
  uint32_t name_value(const Operand& operand, uint32_t* bytes);

  FunctionBuilder& builder_;
  const Statement& statement_;
  std::vector<std::string> parts_;
  std::vector<bool> taken_;
};

using DecodeFunction = void (*)(Decoder&);
struct DecodeEntry {
  const char* name;
  DecodeFunction decode;
};
using DecodeTable = std::vector<DecodeEntry>;

const DecodeTable& integer_instructions();
const DecodeTable& float_instructions();
const DecodeTable& half_instructions();
const DecodeTable& packed_instructions();  ///< of u16x2 and s16x2
const DecodeTable& video_instructions();
const DecodeTable& bit_instructions();
const DecodeTable& compare_instructions();
const DecodeTable& convert_instructions();
const DecodeTable& move_instructions();
const DecodeTable& memory_instructions();
const DecodeTable& atomic_instructions();
const DecodeTable& mbarrier_instructions();
const DecodeTable& warp_instructions();
const DecodeTable& control_instructions();

/// Decode cp.async.mbarrier, and cp.async.bulk and cp.reduce.async.bulk
/// (op_mbarrier.cc).
void decode_copy_arrival(Decoder& d);
/// Decodes commit_group, wait_group and wait_all; false for other instructions.
bool decode_copy_group(Decoder& d, Effect::Copies copies);
void decode_bulk_copy(Decoder& d, bool reduces);

/// The handler that reads a special register (op_move.cc); null if there is no
/// such register.
Handler special_register_reader(const std::string& name, uint32_t* bytes,
                                uint8_t* mode);
/// Does the special register with this mode keep its value as long as a warp
/// exists?
bool is_fixed_for_warp(uint8_t mode);
/// The handler of vprintf, __assertfail, malloc or free (print.cc); null for
/// other names.
Handler built_in_function(const std::string& name);

/// pick(TypeList<uint16_t, uint32_t>{}, type, make) returns make(x), where x
/// has the listed C++ type with the width and the signedness of `type`; null if
/// no such type is listed. Untyped bits count as unsigned.
template <class... Ts>
struct TypeList {};

template <class T>
constexpr bool matches(Type type) {
  if constexpr (std::is_floating_point_v<T>) {
    return type == (sizeof(T) == 4 ? Type::kF32 : Type::kF64);
  } else {
    return !is_float(type) && type_bytes(type) == sizeof(T) &&
           is_signed(type) == std::is_signed_v<T>;
  }
}

template <class Make, class... Ts>
Handler pick(TypeList<Ts...>, Type type, Make make) {
  Handler handler = nullptr;
  (void)((matches<Ts>(type) && (handler = make(Ts{}), true)) || ...);
  return handler;
}

using Integers =
    TypeList<uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t>;
using Words = TypeList<uint32_t, int32_t, uint64_t, int64_t>;
using Floats = TypeList<float, double>;
using Bits = TypeList<uint16_t, uint32_t, uint64_t>;

/// The untyped bits of the same width.
Type bits_of(Type type);

// Handlers that apply an operation to single values.
template <class Op, class T>
void unary(Warp& warp, const Instruction& i, uint32_t mask) {
  T* d = lanes_of<T>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  each_lane(mask, [=](int l) { d[l] = Op::of(a[l]); });
}

template <class Op, class T>
void binary(Warp& warp, const Instruction& i, uint32_t mask) {
  T* d = lanes_of<T>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  const T* b = lanes_of<T>(warp, i.b);
  each_lane(mask, [=](int l) { d[l] = Op::of(a[l], b[l]); });
}

template <class Op, class T>
void ternary(Warp& warp, const Instruction& i, uint32_t mask) {
  T* d = lanes_of<T>(warp, i.d);
  const T* a = lanes_of<T>(warp, i.a);
  const T* b = lanes_of<T>(warp, i.b);
  const T* c = lanes_of<T>(warp, i.c);
  each_lane(mask, [=](int l) { d[l] = Op::of(a[l], b[l], c[l]); });
}

}  // namespace ipclab::ptx
