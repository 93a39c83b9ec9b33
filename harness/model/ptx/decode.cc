// SPDX-License-Identifier: Apache-2.0
// Makes instructions from the syntax tree: operands, modifiers, branches,
// calls.
#include "decode.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace ipclab::ptx {
namespace {

bool is_half(Type t) { return t >= Type::kF16 && t <= Type::kBf16x2; }
bool is_packed(Type t) { return t == Type::kU16x2 || t == Type::kS16x2; }

using Lookup = std::unordered_map<std::string_view, DecodeFunction>;

/// Never destroyed, as all tables of instructions: kernels run until the
/// process ends, and static destructors may launch more.
const Lookup& lookup_of(std::initializer_list<const DecodeTable*> tables) {
  auto& lookup = *new Lookup;
  for (const DecodeTable* table : tables)
    for (const DecodeEntry& entry : *table)
      lookup.emplace(entry.name, entry.decode);
  return lookup;
}

/// One name (`add`) can mean three instructions; the type decides which one it
/// means. Sets `pure` for instructions that only calculate.
DecodeFunction find_decoder(std::string_view name, Type type, bool* pure) {
  static const Lookup& integers = lookup_of({&integer_instructions()});
  static const Lookup& floats = lookup_of({&float_instructions()});
  static const Lookup& halves = lookup_of({&half_instructions()});
  static const Lookup& packed = lookup_of({&packed_instructions()});
  static const Lookup& calculations =
      lookup_of({&bit_instructions(), &compare_instructions(),
                 &convert_instructions(), &video_instructions()});
  static const Lookup& others =
      lookup_of({&move_instructions(), &memory_instructions(),
                 &atomic_instructions(), &mbarrier_instructions(),
                 &warp_instructions(), &control_instructions()});
  const Lookup& typed = is_half(type)     ? halves
                        : is_float(type)  ? floats
                        : is_packed(type) ? packed
                                          : integers;
  for (const Lookup* lookup : {&typed, &calculations, &others}) {
    const auto found = lookup->find(name);
    if (found == lookup->end()) continue;
    *pure = lookup != &others;
    return found->second;
  }
  return nullptr;
}

/// The address of a variable of the running function.
void frame_address(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint64_t address =
      warp.frame->base + static_cast<uint64_t>(i.immediate);
  each_lane(mask, [&](int l) {
    set_lane_value(warp, i.d, i.register_bytes, l, address);
  });
}

void dynamic_shared_address(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint64_t address =
      warp.block->dynamic_shared + static_cast<uint64_t>(i.immediate);
  each_lane(mask, [&](int l) {
    set_lane_value(warp, i.d, i.register_bytes, l, address);
  });
}

void invert_predicate(Warp& warp, const Instruction& i, uint32_t mask) {
  set_predicate(warp, i.d, mask, ~predicate(warp, i.a));
}

uint32_t register_bytes(Type type) {
  return std::max<uint32_t>(type_bytes(type), 2);
}

}  // namespace

Type bits_of(Type type) {
  switch (type_bytes(type)) {
    case 1:
      return Type::kB8;
    case 2:
      return Type::kB16;
    case 4:
      return Type::kB32;
    case 8:
      return Type::kB64;
    default:
      return type;
  }
}

// --- FunctionBuilder -------------------------------------------------------

FunctionBuilder::FunctionBuilder(const ProgramContext& context,
                                 const FunctionSyntax& syntax,
                                 Function& function, uint32_t shared_base)
    : context_(context),
      syntax_(syntax),
      function_(function),
      shared_base_(shared_base) {
  new_register(16);  // at offset 0: the destination `_`
  for (const Type type : syntax.registers)
    register_offset_.push_back(
        new_register(type == Type::kPred ? 1 : register_bytes(type)));
}

uint32_t FunctionBuilder::new_register(uint32_t bytes) {
  const uint32_t offset = function_.register_bytes;
  function_.register_bytes += std::max<uint32_t>(bytes * kLanes, 64);
  return offset;
}

uint32_t FunctionBuilder::constant(uint64_t value, uint32_t bytes) {
  if (bytes < 8) value &= (1ull << (bytes * 8)) - 1;
  auto [place, is_new] = constant_offset_.try_emplace({value, bytes}, 0);
  if (is_new) {
    place->second = new_register(bytes);
    function_.constants.push_back({place->second, bytes, value, {}, 0});
  }
  return place->second;
}

uint32_t FunctionBuilder::symbol_constant(const std::string& symbol,
                                          int64_t addend) {
  auto [place, is_new] = symbol_offset_.try_emplace({symbol, addend}, 0);
  if (is_new) {
    place->second = new_register(8);
    function_.constants.push_back({place->second, 8, 0, symbol, addend});
  }
  return place->second;
}

void FunctionBuilder::build() {
  for (const Declaration* p : syntax_.parameters)
    function_.parameters.push_back({p->offset, p->size});
  for (const Declaration* p : syntax_.results)
    function_.results.push_back({p->offset, p->size});
  function_.frame_bytes = (syntax_.frame_bytes + 15) / 16 * 16;
  try {
    for (const Statement& statement : syntax_.body) {
      if (!statement.targets.empty()) {
        target_lists_[{statement.scope, statement.label}] = &statement;
      } else if (!statement.label.empty()) {
        labels_[{statement.scope, statement.label}] =
            static_cast<int>(function_.code.size());
      } else {
        Decoder decoder(*this, statement);
        std::string_view last = statement.opcode;
        last.remove_prefix(last.rfind('.') + 1);
        const DecodeFunction decode =
            find_decoder(decoder.name(), type_named(last), &decoder.i.pure);
        if (decode == nullptr) decoder.unsupported();
        decode(decoder);
        decoder.finish();
      }
    }
    Instruction end;
    end.flow = Flow::kReturn;
    end.line = syntax_.body.empty() ? syntax_.line : syntax_.body.back().line;
    function_.code.push_back(end);
    hoist();
    resolve_branches();
    measure_runs();
  } catch (const Unsupported& error) {
    function_.unsupported = error.what();
  }
}

/// Moves out of the code all values that are the same in all blocks that a warp
/// runs: parameters, thread indices and values computed from them.
void FunctionBuilder::hoist() {
  std::set<uint32_t> fixed;
  for (const Constant& constant : function_.constants)
    fixed.insert(constant.offset);
  std::vector<Instruction> kept;
  std::vector<size_t> place;
  for (const Instruction& i : function_.code) {
    place.push_back(kept.size());
    if (is_fixed(i, fixed)) {
      fixed.insert(i.d);
      function_.once.push_back(i);
    } else {
      kept.push_back(i);
    }
  }
  place.push_back(kept.size());
  for (auto& [name, index] : labels_)
    index = static_cast<int>(place[static_cast<size_t>(index)]);
  for (Branch& branch : branches_)
    branch.instruction = place[branch.instruction];
  function_.code = std::move(kept);
}

bool FunctionBuilder::is_fixed(const Instruction& i,
                               const std::set<uint32_t>& fixed) const {
  // Offset 0 belongs to `_`. More than one element means a list of registers.
  if (!i.pure || i.guard != kNone || i.flow != Flow::kNext || i.d == kNone ||
      i.d == 0 || i.count != 1)
    return false;
  const auto written = writers_.find(i.d);
  if (written != writers_.end() && written->second > 1) return false;
  for (const uint32_t source : {i.a, i.b, i.c, i.e})
    if (source != kNone && fixed.count(source) == 0) return false;
  return true;
}

/// Sets Instruction::straight. Lanes join at labels and after instructions that
/// are not pure.
void FunctionBuilder::measure_runs() {
  std::vector<Instruction>& code = function_.code;
  std::set<size_t> meetings;
  for (const auto& [name, index] : labels_)
    meetings.insert(static_cast<size_t>(index));
  for (size_t k = code.size(); k-- > 0;) {
    Instruction& i = code[k];
    if (i.guard != kNone || i.flow != Flow::kNext) continue;
    i.straight = 1;
    constexpr uint16_t kLongest = 1 << 15;
    if (i.pure && k + 1 < code.size() && meetings.count(k + 1) == 0 &&
        code[k + 1].straight < kLongest)
      i.straight = static_cast<uint16_t>(code[k + 1].straight + 1);
  }
}

int FunctionBuilder::find_label(const std::string& name, int scope) const {
  for (; scope >= 0; scope = syntax_.scope_parent[scope]) {
    const auto found = labels_.find({scope, name});
    if (found != labels_.end()) return found->second;
  }
  return -1;
}

void FunctionBuilder::resolve_branches() {
  const auto target = [&](const Statement& from, const std::string& label) {
    const int found = find_label(label, from.scope);
    if (found < 0)
      throw std::runtime_error("PTX line " + std::to_string(from.line) +
                               ": no label '" + label + "'");
    return found;
  };
  for (const Branch& branch : branches_) {
    Instruction& i = function_.code[branch.instruction];
    if (i.flow == Flow::kBranch) {
      i.target = target(*branch.statement, branch.label);
      continue;
    }
    const Statement* list = nullptr;
    for (int s = branch.statement->scope; s >= 0 && list == nullptr;
         s = syntax_.scope_parent[s]) {
      const auto found = target_lists_.find({s, branch.label});
      if (found != target_lists_.end()) list = found->second;
    }
    if (list == nullptr)
      throw std::runtime_error("PTX line " + std::to_string(i.line) +
                               ": no branch targets '" + branch.label + "'");
    i.list = static_cast<uint32_t>(function_.lists.size());
    i.immediate = static_cast<int64_t>(list->targets.size());
    for (const std::string& label : list->targets)
      function_.lists.push_back(
          static_cast<uint32_t>(target(*branch.statement, label)));
  }
}

// --- Decoder ---------------------------------------------------------------

Decoder::Decoder(FunctionBuilder& builder, const Statement& statement)
    : builder_(builder), statement_(statement) {
  const std::string& opcode = statement.opcode;
  for (size_t begin = 0; begin <= opcode.size();) {
    const size_t end = std::min(opcode.find('.', begin), opcode.size());
    parts_.push_back(opcode.substr(begin, end - begin));
    begin = end + 1;
  }
  taken_.assign(parts_.size(), false);
  taken_[0] = true;
  i.line = statement.line;
}

bool Decoder::take(std::string_view modifier) {
  for (size_t k = 1; k < parts_.size(); ++k) {
    if (!taken_[k] && parts_[k] == modifier) return taken_[k] = true;
  }
  return false;
}

bool Decoder::take_first(std::string_view modifier) {
  const auto next = std::find(taken_.begin(), taken_.end(), false);
  const auto k = static_cast<size_t>(next - taken_.begin());
  return k < parts_.size() && parts_[k] == modifier && take(modifier);
}

int Decoder::take_one_of(std::initializer_list<const char*> modifiers) {
  int index = 0;
  for (const char* modifier : modifiers) {
    if (take(modifier)) return index;
    ++index;
  }
  return -1;
}

void Decoder::ignore(std::initializer_list<const char*> modifiers) {
  for (const char* modifier : modifiers) take(modifier);
}

void Decoder::ignore_rest() { taken_.assign(parts_.size(), true); }

Effect::Order Decoder::take_order() {
  const int order =
      take_one_of({"weak", "relaxed", "acquire", "release", "acq_rel"});
  return order < 0 ? Effect::kWeak : static_cast<Effect::Order>(order);
}

Effect::Scope Decoder::take_scope(Effect::Scope otherwise) {
  const int scope = take_one_of({"cta", "cluster", "gpu", "sys"});
  return scope < 0 ? otherwise : static_cast<Effect::Scope>(scope);
}

Type Decoder::take_type() {
  for (size_t k = 1; k < parts_.size(); ++k) {
    if (taken_[k]) continue;
    const Type type = type_named(parts_[k]);
    if (type == Type::kNone) continue;
    taken_[k] = true;
    return type;
  }
  unsupported();
}

void Decoder::unsupported() const {
  throw Unsupported("instruction '" + statement_.opcode + "' (line " +
                    std::to_string(statement_.line) + ") is not supported");
}

void Decoder::unsupported(const std::string& why) const {
  throw Unsupported("instruction '" + statement_.opcode + "' (line " +
                    std::to_string(statement_.line) +
                    ") is not supported: " + why);
}

const Operand& Decoder::operand(size_t index) const {
  if (index >= operands()) unsupported("too few operands");
  return statement_.operands[index];
}

void Decoder::expect_operands(size_t least, size_t most) const {
  if (operands() < least || operands() > most)
    unsupported("unexpected number of operands");
}

uint32_t Decoder::source(size_t index, Type type) {
  return source(operand(index), type);
}

uint32_t Decoder::source(const Operand& operand, Type type, uint32_t* bytes) {
  const uint32_t width = register_bytes(type);
  if (bytes != nullptr) *bytes = width;
  switch (operand.kind) {
    case Operand::kRegister: {
      const uint32_t offset = builder_.register_offset_[operand.known->offset];
      const bool is_predicate = operand.known->type == Type::kPred;
      if (is_predicate != (type == Type::kPred))
        unsupported("a predicate is used as a value, or the reverse");
      if (is_predicate && operand.negated) {
        Instruction invert;
        invert.run = invert_predicate;
        invert.pure = true;
        invert.a = offset;
        invert.d = new_register(1);
        emit_before(invert);
        return invert.d;
      }
      const uint32_t own = register_bytes(operand.known->type);
      if (bytes != nullptr) {
        *bytes = own;
      } else if (!is_predicate && own != width) {
        unsupported("register '" + operand.name + "' has the wrong width");
      }
      return offset;
    }
    case Operand::kInteger:
      if (type == Type::kPred) {
        const bool value = (operand.bits != 0) != operand.negated;
        return constant(value ? kAllLanes : 0, 4);
      }
      return constant(operand.bits, width);
    case Operand::kFloat32:
      return constant(operand.bits, width);
    case Operand::kFloat64: {
      if (type != Type::kF32) return constant(operand.bits, width);
      double wide;
      std::memcpy(&wide, &operand.bits, 8);
      const float narrow = static_cast<float>(wide);
      uint32_t bits;
      std::memcpy(&bits, &narrow, 4);
      return constant(bits, 4);
    }
    case Operand::kName:
      return name_value(operand, bytes != nullptr ? bytes : nullptr);
    default:
      unsupported("unexpected operand");
  }
}

uint32_t Decoder::name_value(const Operand& operand, uint32_t* bytes) {
  // Addresses are made 64 bits wide unless the caller needs a 32-bit value.
  uint32_t width = 8;
  if (is_special(operand.name)) {
    uint32_t own = 4;
    uint8_t mode = 0;
    special_register_reader(operand.name, &own, &mode);
    if (bytes != nullptr) *bytes = own;
    return special_register(operand.name, own);
  }
  if (bytes != nullptr && *bytes == 4) width = 4;
  if (bytes != nullptr) *bytes = width;
  Instruction read;
  read.register_bytes = static_cast<uint8_t>(width);
  if (operand.known != nullptr) {
    switch (operand.known->kind) {
      case Declaration::kLocal:
        read.run = frame_address;
        read.immediate = operand.known->offset + operand.offset;
        read.d = new_register(width);
        emit_before(read);
        return read.d;
      case Declaration::kShared:
        return constant(
            static_cast<uint64_t>(builder_.shared_base_ +
                                  operand.known->offset + operand.offset),
            width);
      case Declaration::kEntryParameter:
        return constant(
            static_cast<uint64_t>(operand.known->offset + operand.offset),
            width);
      default:
        unsupported("unexpected operand");
    }
  }
  const Syntax& syntax = *builder_.context_.syntax;
  const int unit = builder_.syntax_.unit;
  if (const size_t* found = syntax.shared_names.find(operand.name, unit)) {
    const SharedVariable& shared = syntax.shared[*found];
    if (!shared.dynamic)
      return constant(static_cast<uint64_t>(shared.offset + operand.offset),
                      width);
    read.run = dynamic_shared_address;
    read.pure = true;
    read.immediate = operand.offset;
    read.d = new_register(width);
    emit_before(read);
    return read.d;
  }
  if (syntax.variable_names.find(operand.name, unit) == nullptr &&
      syntax.function_names.find(operand.name, unit) == nullptr)
    unsupported("'" + operand.name + "' is not defined");
  if (bytes != nullptr) *bytes = 8;
  return builder_.symbol_constant(operand.name, operand.offset);
}

bool Decoder::is_special(const std::string& name) const {
  return name[0] == '%';
}

uint32_t Decoder::special_register(const std::string& name, uint32_t bytes) {
  Instruction read;
  uint32_t own;
  read.run = special_register_reader(name, &own, &read.mode);
  read.pure = is_fixed_for_warp(read.mode);
  if (read.run == nullptr)
    unsupported("special register '" + name + "' is not known");
  read.d = new_register(bytes);
  read.register_bytes = static_cast<uint8_t>(bytes);
  emit_before(read);
  return read.d;
}

uint32_t Decoder::destination(size_t index, Type type) {
  return destination(operand(index), type);
}

uint32_t Decoder::destination(const Operand& operand, Type type,
                              uint32_t* bytes) {
  if (bytes != nullptr) *bytes = register_bytes(type);
  if (operand.kind == Operand::kSink) return 0;
  if (operand.kind != Operand::kRegister)
    unsupported("the destination is not a register");
  const uint32_t offset = source(operand, type, bytes);
  ++builder_.writers_[offset];
  return offset;
}

Space Decoder::take_space() {
  if (take("global") || take("const")) return Space::kGlobal;
  if (take("shared") || take("shared::cta") || take("shared::cluster"))
    return Space::kShared;
  if (take("local")) return Space::kLocal;
  if (take("param") || take("param::entry") || take("param::func"))
    return Space::kParameter;
  return Space::kGeneric;
}

void Decoder::address(size_t index) {
  const Operand& memory = operand(index);
  if (memory.kind != Operand::kMemory || memory.elements.size() != 1)
    unsupported("not an address");
  const Operand& base = memory.elements[0];
  i.immediate = memory.offset;
  if (base.kind == Operand::kInteger) {
    i.immediate += static_cast<int64_t>(base.bits);
    return;
  }
  if (base.known != nullptr && base.kind == Operand::kName &&
      base.known->kind == Declaration::kLocal) {
    i.space = Space::kFrame;
    i.immediate += base.known->offset;
    return;
  }
  if (base.known != nullptr &&
      base.known->kind == Declaration::kEntryParameter &&
      i.space == Space::kParameter) {
    i.immediate += base.known->offset;
    return;
  }
  uint32_t bytes = 8;
  i.a = source(base, Type::kB64, &bytes);
  i.address_bytes = static_cast<uint8_t>(bytes);
  if (bytes != 4 && bytes != 8)
    unsupported("the address does not have 4 or 8 bytes");
  // The parameters of a .func are in its frame.
  if (i.space == Space::kParameter && !builder_.syntax_.entry)
    i.space = Space::kLocal;
  if (i.space == Space::kGeneric && base.kind == Operand::kName &&
      base.known != nullptr)
    unsupported("a state space is missing");
}

bool Decoder::reads_parameter(uint32_t bytes) const {
  return in_entry() && i.space == Space::kParameter && i.a == kNone &&
         i.immediate >= 0 && i.immediate % bytes == 0 &&
         i.immediate + int64_t{bytes} * i.count <=
             builder_.syntax_.parameter_bytes;
}

uint32_t Decoder::add_list(const std::vector<uint32_t>& offsets) {
  std::vector<uint32_t>& lists = builder_.function_.lists;
  const auto first = static_cast<uint32_t>(lists.size());
  lists.insert(lists.end(), offsets.begin(), offsets.end());
  return first;
}

void Decoder::emit_before(const Instruction& instruction) {
  builder_.function_.code.push_back(instruction);
  builder_.function_.code.back().line = statement_.line;
}

uint32_t Decoder::carry_flag() {
  if (builder_.carry_flag_ == kNone) builder_.carry_flag_ = new_register(1);
  return builder_.carry_flag_;
}

void Decoder::branch_to(const std::string& label) {
  i.flow = Flow::kBranch;
  builder_.branches_.push_back(
      {builder_.function_.code.size(), &statement_, label});
}

void Decoder::branch_list(const std::string& list) {
  i.flow = Flow::kBranchIndex;
  builder_.branches_.push_back(
      {builder_.function_.code.size(), &statement_, list});
}

void Decoder::call() {
  Call call;
  const auto offsets = [&](const Operand& list) {
    std::vector<uint32_t> result;
    for (const Operand& o : list.elements) {
      if (o.known == nullptr || o.known->kind != Declaration::kLocal)
        unsupported("an argument is not a .param variable");
      result.push_back(o.known->offset);
    }
    return result;
  };
  size_t at = 0;
  if (operand(at).kind == Operand::kList) call.results = offsets(operand(at++));
  const Operand& target = operand(at++);
  if (at < operands() && operand(at).kind == Operand::kList)
    call.arguments = offsets(operand(at));
  if (target.kind == Operand::kRegister) {
    i.a = source(target, Type::kB64);
    i.flow = Flow::kCall;
  } else {
    call.name = target.name;
    const size_t* found = builder_.context_.syntax->function_names.find(
        target.name, builder_.syntax_.unit);
    if (found == nullptr) unsupported("no function '" + target.name + "'");
    if (builder_.context_.syntax->functions[*found]->defined) {
      call.callee = &builder_.context_.program->functions[*found];
      i.flow = Flow::kCall;
    } else {
      i.run = built_in_function(target.name);
      if (i.run == nullptr)
        unsupported("function '" + target.name + "' is not defined");
    }
  }
  i.immediate = static_cast<int64_t>(builder_.function_.calls.size());
  builder_.function_.calls.push_back(std::move(call));
}

void Decoder::finish() {
  for (size_t k = 1; k < parts_.size(); ++k)
    if (!taken_[k]) unsupported("modifier '." + parts_[k] + "'");
  if (statement_.guarded) {
    Operand guard = statement_.guard;
    i.guard_negated = guard.negated;
    guard.negated = false;
    i.guard = source(guard, Type::kPred);
  }
  const bool by_scheduler = i.flow != Flow::kNext &&
                            i.flow != Flow::kWarpSync &&
                            i.flow != Flow::kYield && i.flow != Flow::kPoll;
  if (i.run == nullptr && !by_scheduler) unsupported();
  builder_.function_.code.push_back(i);
}

}  // namespace ipclab::ptx
