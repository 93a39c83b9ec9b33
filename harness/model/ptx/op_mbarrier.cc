// SPDX-License-Identifier: Apache-2.0
// mbarrier and the copies that it counts (cp.async.mbarrier.arrive,
// cp.async.bulk, cp.reduce.async.bulk). The object is 64 opaque bits in memory;
// a state is its value before an arrival. Rules: PTX ISA, "Parallel
// Synchronization and Communication Instructions: mbarrier".
#include "decode.h"
#include "memory.h"
#include "numbers.h"

namespace ipclab::ptx {
namespace {

constexpr uint32_t kMostArrivals = (1u << 20) - 1;

/// The fields of an mbarrier object.
struct Object {
  uint64_t expected : 20;  ///< arrivals of the next phase
  uint64_t pending : 20;   ///< arrivals that this phase still waits for
  int64_t bytes : 21;      ///< tx-count; negative if copies were faster
  uint64_t phase : 3;
};
static_assert(sizeof(Object) == 8);

Object object_of(uint64_t bits) {
  Object object;
  std::memcpy(&object, &bits, sizeof object);
  return object;
}

uint64_t bits_of(const Object& object) {
  uint64_t bits;
  std::memcpy(&bits, &object, sizeof bits);
  return bits;
}

void complete_if_done(Object& object) {
  if (object.pending != 0 || object.bytes != 0) return;
  ++object.phase;
  object.pending = object.expected;
}

/// Changes the object for one lane after the other, and writes its previous
/// state to `d`. `change` returns false for a change that the rules do not
/// allow.
template <class Change>
void for_each_object(Warp& warp, const Instruction& i, uint32_t mask,
                     Change change) {
  for (; mask != 0; mask &= mask - 1) {
    const int l = __builtin_ctz(mask);
    char* at = lane_bytes(warp, i, l, sizeof(Object), true);
    if (at == nullptr) return;
    auto* bits = reinterpret_cast<uint64_t*>(at);
    uint64_t old = __atomic_load_n(bits, __ATOMIC_SEQ_CST);
    uint64_t changed = 0;
    do {
      Object object = object_of(old);
      if (!change(object, l))
        return warp.block->grid->fault(
            warp, i, 719,
            "an mbarrier gets more arrivals than its phase waits for, or a "
            "count that is not between 1 and 1048575");
      changed = bits_of(object);
    } while (!__atomic_compare_exchange_n(bits, &old, changed, false,
                                          __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    if (i.d != kNone) lanes_of<uint64_t>(warp, i.d)[l] = old;
  }
}

uint32_t operand_b(Warp& warp, const Instruction& i, int lane) {
  return i.b == kNone ? 1 : lanes_of<uint32_t>(warp, i.b)[lane];
}

void initialise(Warp& warp, const Instruction& i, uint32_t mask) {
  for_each_object(warp, i, mask, [&](Object& object, int l) {
    const uint32_t count = operand_b(warp, i, l);
    object = Object{};
    object.expected = object.pending = count & kMostArrivals;
    return count >= 1 && count <= kMostArrivals;
  });
}

void invalidate(Warp& warp, const Instruction& i, uint32_t mask) {
  for_each_object(warp, i, mask, [](Object& object, int) {
    object = Object{};
    return true;
  });
}

bool arrive_at(Object& object, uint32_t count) {
  if (count == 0 || count > object.pending) return false;
  object.pending -= count;
  complete_if_done(object);
  return true;
}

void arrive(Warp& warp, const Instruction& i, uint32_t mask) {
  for_each_object(warp, i, mask, [&](Object& object, int l) {
    return arrive_at(object, operand_b(warp, i, l));
  });
}

/// Arrives, and lets the later phases wait for fewer arrivals.
void arrive_and_drop(Warp& warp, const Instruction& i, uint32_t mask) {
  for_each_object(warp, i, mask, [&](Object& object, int l) {
    const uint32_t count = operand_b(warp, i, l);
    if (count > object.expected) return false;
    object.expected -= count;
    return arrive_at(object, count);
  });
}

/// arrive.expect_tx: expects `b` more bytes, then arrives once.
void expect_and_arrive(Warp& warp, const Instruction& i, uint32_t mask) {
  for_each_object(warp, i, mask, [&](Object& object, int l) {
    object.bytes += static_cast<int32_t>(operand_b(warp, i, l));
    return arrive_at(object, 1);
  });
}

void expect_bytes(Warp& warp, const Instruction& i, uint32_t mask) {
  for_each_object(warp, i, mask, [&](Object& object, int l) {
    object.bytes += static_cast<int32_t>(operand_b(warp, i, l));
    return true;
  });
}

void complete_bytes(Warp& warp, const Instruction& i, uint32_t mask) {
  for_each_object(warp, i, mask, [&](Object& object, int l) {
    object.bytes -= static_cast<int32_t>(operand_b(warp, i, l));
    complete_if_done(object);
    return true;
  });
}

/// Has the phase of a state ended? With kParity: has the newest phase with this
/// parity ended?
template <bool kParity>
void test_wait(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t over = 0;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    const char* at = lane_bytes(warp, i, l, sizeof(Object), false);
    if (at == nullptr) return;
    const Object now = object_of(__atomic_load_n(
        reinterpret_cast<const uint64_t*>(at), __ATOMIC_SEQ_CST));
    const bool is =
        kParity
            ? (now.phase & 1) != (operand_b(warp, i, l) & 1)
            : now.phase != object_of(lanes_of<uint64_t>(warp, i.b)[l]).phase;
    over |= static_cast<uint32_t>(is) << l;
  }
  set_predicate(warp, i.d, mask, over);
}

void pending_count(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t* d = lanes_of<uint32_t>(warp, i.d);
  const uint64_t* states = lanes_of<uint64_t>(warp, i.a);
  each_lane(mask, [=](int l) {
    d[l] = static_cast<uint32_t>(object_of(states[l]).pending);
  });
}

/// The access of a bulk copy through the generic address in a register.
Instruction through(const Instruction& i, uint32_t address) {
  Instruction access = i;
  access.a = address;
  access.immediate = 0;
  access.space = Space::kGeneric;
  access.address_bytes = 8;
  return access;
}

/// Applies Op to every T of a piece of the target.
template <class Op, class T>
void reduce_piece(char* target, const char* source, size_t size) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  for (size_t k = 0; k < size; k += sizeof(T)) {
    auto* at = reinterpret_cast<Bits*>(target + k);
    T value;
    std::memcpy(&value, source + k, sizeof value);
    Bits old = __atomic_load_n(at, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(
        at, &old, bit_cast<Bits>(Op::of(bit_cast<T>(old), value)), false,
        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
  }
}

void copy_piece(char* target, const char* source, size_t size) {
  std::memcpy(target, source, size);
}

/// cp.async.bulk and cp.reduce.async.bulk, which are done at once: `d` bytes
/// from `b` to `a`; if there is `c`, they are counted there. All addresses are
/// generic.
template <auto kPut>
void move_bulk(Warp& warp, const Instruction& i, uint32_t mask) {
  constexpr uint32_t kPiece = 16;  // sizes and addresses are multiples of 16
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    Instruction to = through(i, i.a), from = through(i, i.b);
    const uint32_t size = lanes_of<uint32_t>(warp, i.d)[l];
    for (uint32_t done = 0; done < size; done += kPiece) {
      char* target = lane_bytes(warp, to, l, kPiece, true);
      if (target == nullptr) return;
      const char* source = lane_bytes(warp, from, l, kPiece, false);
      if (source == nullptr) return;
      kPut(target, source, kPiece);
      to.immediate += kPiece;
      from.immediate += kPiece;
    }
  }
  if (i.c == kNone) return;
  Instruction counted = through(i, i.c);
  counted.b = i.d;
  counted.d = kNone;
  complete_bytes(warp, counted, mask);
}

/// The object synchronises: its users need nothing else.
Effect use_of_object(Effect::Kind kind) {
  const bool waits = kind == Effect::kRead;
  return {static_cast<uint16_t>(kind),
          static_cast<uint16_t>(waits ? Effect::kAcquire : Effect::kRelease),
          Effect::kCluster, sizeof(Object), Effect::kNoCopies};
}

void generic_address(Warp& warp, const Instruction& i, uint32_t mask) {
  uint64_t* d = lanes_of<uint64_t>(warp, i.d);
  const uint64_t window = i.space == Space::kShared ? kSharedWindow : 0;
  each_lane(mask, [&](int l) { d[l] = lane_address(warp, i, l) + window; });
}

/// A register with the generic address of an operand.
uint32_t generic_operand(Decoder& d, size_t index, Space space) {
  Instruction& i = d.i;
  i.a = kNone;
  i.space = space;
  d.address(index);
  Instruction make = i;
  make.run = generic_address;
  make.d = d.new_register(8);
  d.emit_before(make);
  return make.d;
}

void ignore_order(Decoder& d) {
  d.ignore({"acquire", "release", "relaxed", "cta", "cluster"});
}

void decode_arrival(Decoder& d, Handler plain) {
  const bool expects = d.take("expect_tx");
  d.take("noComplete");
  if (expects && plain != arrive) d.unsupported();
  d.expect_operands(2, 3);
  if (d.operand(0).kind != Operand::kSink) d.i.d = d.destination(0, Type::kB64);
  d.address(1);
  if (d.operands() == 3) d.i.b = d.source(2, Type::kB32);
  d.i.run = expects ? expect_and_arrive : plain;
  d.i.effect = use_of_object(Effect::kUpdate);
}

void decode_wait(Decoder& d) {
  const bool parity = d.take("parity");
  d.expect_operands(3, 4);  // the fourth says how long a thread may sleep
  d.i.d = d.destination(0, Type::kPred);
  d.address(1);
  d.i.b = d.source(2, parity ? Type::kB32 : Type::kB64);
  d.i.run = parity ? test_wait<true> : test_wait<false>;
  d.i.flow = Flow::kYield;
  d.i.effect = use_of_object(Effect::kRead);
}

void decode_mbarrier(Decoder& d) {
  const int operation =
      d.take_one_of({"init", "inval", "arrive", "arrive_drop", "test_wait",
                     "try_wait", "expect_tx", "complete_tx", "pending_count"});
  ignore_order(d);
  d.i.space = d.take_space();
  if (!d.take("b64")) d.unsupported();
  switch (operation) {
    case 0:
      d.expect_operands(2, 2);
      d.address(0);
      d.i.b = d.source(1, Type::kB32);
      d.i.run = initialise;
      d.i.effect = use_of_object(Effect::kUpdate);
      break;
    case 1:
      d.expect_operands(1, 1);
      d.address(0);
      d.i.run = invalidate;
      break;
    case 2:
      decode_arrival(d, arrive);
      break;
    case 3:
      decode_arrival(d, arrive_and_drop);
      break;
    case 4:
    case 5:
      decode_wait(d);
      break;
    case 6:
    case 7:
      d.expect_operands(2, 2);
      d.address(0);
      d.i.b = d.source(1, Type::kB32);
      d.i.run = operation == 6 ? expect_bytes : complete_bytes;
      d.i.effect = use_of_object(Effect::kUpdate);
      break;
    case 8:
      d.expect_operands(2, 2);
      d.i.d = d.destination(0, Type::kB32);
      d.i.a = d.source(1, Type::kB64);
      d.i.run = pending_count;
      break;
    default:
      d.unsupported();
  }
}

void nothing(Warp&, const Instruction&, uint32_t) {}

}  // namespace

void decode_copy_arrival(Decoder& d) {
  // The copies of the thread are done. Without noinc the arrival first raises
  // the pending count by one, so in total the arrival changes nothing.
  const bool counts = d.take("noinc");
  if (!d.take("arrive")) d.unsupported();
  d.i.space = d.take_space();
  if (!d.take("b64")) d.unsupported();
  d.expect_operands(1, 1);
  d.address(0);
  d.i.run = counts ? arrive : nothing;
  d.i.effect = use_of_object(Effect::kUpdate);
  d.i.effect.copies = Effect::kGroups;
}

bool decode_copy_group(Decoder& d, Effect::Copies copies) {
  const int operation =
      d.take_one_of({"commit_group", "wait_group", "wait_all"});
  if (operation < 0) return false;
  const bool waits = operation == 1;
  d.expect_operands(waits ? 1 : 0, waits ? 1 : 0);
  if (waits && d.operand(0).kind != Operand::kInteger) d.unsupported();
  d.i.run = nothing;  // all copies are done already
  // With .read the sources can be written, but the copies are not done.
  if (d.take("read")) return true;
  d.i.count = waits ? 0 : 1;
  d.i.list = operation == 0 ? Observer::kNoWait
             : waits        ? static_cast<uint32_t>(d.operand(0).bits)
                            : 0;
  d.i.effect = {Effect::kCopyGroup, Effect::kWeak, Effect::kBlock, 0,
                static_cast<uint16_t>(copies)};
  return true;
}

namespace {

template <class T>
Handler reducer(int operation) {
  switch (operation) {
    case 0:
      return move_bulk<reduce_piece<Add, T>>;
    case 1:
      return move_bulk<reduce_piece<Minimum, T>>;
    case 2:
      return move_bulk<reduce_piece<Maximum, T>>;
    default:
      return nullptr;
  }
}

struct BitAnd {
  static uint64_t of(uint64_t a, uint64_t b) { return a & b; }
};
struct BitOr {
  static uint64_t of(uint64_t a, uint64_t b) { return a | b; }
};
struct BitXor {
  static uint64_t of(uint64_t a, uint64_t b) { return a ^ b; }
};

/// Takes the operation and the type of cp.reduce.async.bulk.
Handler take_reduction(Decoder& d) {
  const int operation =
      d.take_one_of({"add", "min", "max", "and", "or", "xor"});
  const Type type = d.take_type();
  switch (operation) {  // bits may be taken in any width
    case 3:
      return move_bulk<reduce_piece<BitAnd, uint64_t>>;
    case 4:
      return move_bulk<reduce_piece<BitOr, uint64_t>>;
    case 5:
      return move_bulk<reduce_piece<BitXor, uint64_t>>;
    default:
      break;
  }
  if (is_float(type) && operation != 0) return nullptr;
  switch (type) {
    case Type::kU32:
      return reducer<uint32_t>(operation);
    case Type::kS32:
      return reducer<int32_t>(operation);
    case Type::kU64:
      return reducer<uint64_t>(operation);
    case Type::kS64:
      return reducer<int64_t>(operation);
    case Type::kF32:
      return reducer<float>(operation);
    case Type::kF64:
      return reducer<double>(operation);
    default:
      return nullptr;
  }
}

Space take_shared(Decoder& d) {
  if (d.take("shared::cluster") || d.take("shared::cta")) return Space::kShared;
  d.unsupported();
}

}  // namespace

void decode_bulk_copy(Decoder& d, bool reduces) {
  if (!reduces && decode_copy_group(d, Effect::kBulkGroups)) return;
  // In the order of the name: first the target's space, then the source's.
  const Space to = d.take_first("global") ? Space::kGlobal : take_shared(d);
  const Space from = d.take("global") ? Space::kGlobal : take_shared(d);
  const bool counts = d.take("mbarrier::complete_tx::bytes");
  if (counts == d.take("bulk_group")) d.unsupported();
  const bool hint = d.take("L2::cache_hint");
  const size_t operands = (counts ? 4u : 3u) + (hint ? 1u : 0u);
  d.expect_operands(operands, operands);
  d.i.run = reduces ? take_reduction(d) : move_bulk<copy_piece>;
  if (d.i.run == nullptr) d.unsupported();
  const Handler run = d.i.run;
  const uint32_t a = generic_operand(d, 0, to);
  const uint32_t b = generic_operand(d, 1, from);
  const uint32_t c = counts ? generic_operand(d, 3, Space::kShared) : kNone;
  d.i.a = a;
  d.i.b = b;
  d.i.c = c;
  d.i.d = d.source(2, Type::kB32);
  d.i.run = run;
  d.i.effect = {
      Effect::kBulkCopy,
      static_cast<uint16_t>(reduces ? Effect::kRelaxed : Effect::kWeak),
      Effect::kGpu, 0,
      static_cast<uint16_t>(counts ? Effect::kCounted : Effect::kBulkGroups)};
}

const DecodeTable& mbarrier_instructions() {
  static const auto& table = *new DecodeTable{{"mbarrier", decode_mbarrier}};
  return table;
}

}  // namespace ipclab::ptx
