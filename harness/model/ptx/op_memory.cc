// SPDX-License-Identifier: Apache-2.0
// ld, st, ldu, prefetch, cp.async. Every access goes to memory. A value or a
// vector of up to 16 bytes that one lane loads or stores is read and written in
// one access. A plain loop does the access if 32 lanes access consecutive
// values; cp.async uses memcpy.
//
// PTX leaves open in which order a warp reads its vectors. Here a store of
// vectors writes from the lowest lane to the highest, and a load reads from the
// highest lane to the lowest. So a program that puts a flag at the end of a
// line of 128 bytes sees the whole line with the flag, as on hardware.
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "decode.h"
#include "memory.h"

namespace ipclab::ptx {
namespace {

using Wide = unsigned __int128;

/// Reads 16 aligned bytes at once. Processors with AVX promise that this is one
/// access (Intel's and AMD's manuals), and processors of Arm with LSE2.
Wide load_wide(const char* from) {
  Wide value;
#if defined(__x86_64__)
  const __m128i bytes = *reinterpret_cast<const volatile __m128i*>(from);
  std::memcpy(&value, &bytes, sizeof value);
#elif defined(__aarch64__)
  uint64_t halves[2];
  asm volatile("ldp %0, %1, [%2]"
               : "=&r"(halves[0]), "=&r"(halves[1])
               : "r"(from)
               : "memory");
  std::memcpy(&value, halves, sizeof value);
#else
#error "how does this processor read 16 bytes in one access?"
#endif
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return value;
}

/// Writes 16 aligned bytes at once.
void store_wide(char* to, Wide value) {
  __atomic_thread_fence(__ATOMIC_RELEASE);
#if defined(__x86_64__)
  __m128i bytes;
  std::memcpy(&bytes, &value, sizeof value);
  *reinterpret_cast<volatile __m128i*>(to) = bytes;
#else
  uint64_t halves[2];
  std::memcpy(halves, &value, sizeof value);
  asm volatile("stp %0, %1, [%2]"
               :
               : "r"(halves[0]), "r"(halves[1]), "r"(to)
               : "memory");
#endif
}

template <class T>
T load_value(const char* from) {
  if constexpr (sizeof(T) <= 8) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(
        __atomic_load_n(reinterpret_cast<const U*>(from), __ATOMIC_ACQUIRE));
  } else {
    return load_wide(from);
  }
}

template <class T>
void store_value(char* to, T value) {
  if constexpr (sizeof(T) <= 8)
    __atomic_store_n(reinterpret_cast<T*>(to), value, __ATOMIC_RELEASE);
  else
    store_wide(to, value);
}

template <class Whole>
void read_as(const char* from, char* to) {
  const Whole value = load_value<Whole>(from);
  std::memcpy(to, &value, sizeof value);
}

template <class Whole>
void write_as(const char* from, char* to) {
  Whole value;
  std::memcpy(&value, from, sizeof value);
  store_value<Whole>(to, value);
}

/// Reads an aligned vector of 2, 4, 8, 16 or 32 bytes, 32 in two accesses.
void read_vector(const char* from, unsigned bytes, char* to) {
  switch (bytes) {
    case 2:
      return read_as<uint16_t>(from, to);
    case 4:
      return read_as<uint32_t>(from, to);
    case 8:
      return read_as<uint64_t>(from, to);
    case 32:
      read_as<Wide>(from + 16, to + 16);
      [[fallthrough]];
    default:
      return read_as<Wide>(from, to);
  }
}

void write_vector(const char* from, unsigned bytes, char* to) {
  switch (bytes) {
    case 2:
      return write_as<uint16_t>(from, to);
    case 4:
      return write_as<uint32_t>(from, to);
    case 8:
      return write_as<uint64_t>(from, to);
    default:
      write_as<Wide>(from, to);
      if (bytes == 32) write_as<Wide>(from + 16, to + 16);
  }
}

/// A value in the form in which a wider register holds it. Signed values, also
/// values of 8 bits, keep their sign.
template <class R, class T>
R extended(T value) {
  return static_cast<R>(value);
}

/// T is the type in memory, R is the type of the register.
template <class T, class R>
void load(Warp& warp, const Instruction& i, uint32_t mask) {
  R* d = lanes_of<R>(warp, i.d);
  if (i.a == kNone && i.space == Space::kParameter) {
    const char* from = lane_bytes(warp, i, 0, sizeof(T), false);
    if (from == nullptr) return;
    const R value = extended<R>(load_value<T>(from));
    return each_lane(mask, [=](int l) { d[l] = value; });
  }
  if (mask == kAllLanes && sizeof(T) <= 8) {
    if (const char* from = coalesced_bytes<T>(warp, i, false)) {
      const T* values = reinterpret_cast<const T*>(from);
      IPCLAB_INDEPENDENT
      for (int l = 0; l < kLanes; ++l) d[l] = extended<R>(values[l]);
      return;
    }
  }
  for (; mask != 0; mask &= mask - 1) {
    const int l = __builtin_ctz(mask);
    const char* from = lane_bytes(warp, i, l, sizeof(T), false);
    if (from == nullptr) return;
    d[l] = extended<R>(load_value<T>(from));
  }
}

template <class T, class R>
void load_vector(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint32_t* list = warp.frame->function->lists.data() + i.list;
  T values[32 / sizeof(T)];
  while (mask != 0) {
    const int l = 31 - __builtin_clz(mask);
    mask &= ~(1u << l);
    const char* from = lane_bytes(warp, i, l, sizeof(T) * i.count, false);
    if (from == nullptr) return;
    read_vector(from, sizeof(T) * i.count, reinterpret_cast<char*>(values));
    for (int k = 0; k < i.count; ++k)
      lanes_of<R>(warp, list[k])[l] = extended<R>(values[k]);
  }
}

template <class T, class R>
void store(Warp& warp, const Instruction& i, uint32_t mask) {
  const R* d = lanes_of<R>(warp, i.d);
  if (mask == kAllLanes && sizeof(T) <= 8) {
    if (char* to = coalesced_bytes<T>(warp, i, true)) {
      T* values = reinterpret_cast<T*>(to);
      IPCLAB_INDEPENDENT
      for (int l = 0; l < kLanes; ++l) values[l] = static_cast<T>(d[l]);
      return;
    }
  }
  for (; mask != 0; mask &= mask - 1) {
    const int l = __builtin_ctz(mask);
    char* to = lane_bytes(warp, i, l, sizeof(T), true);
    if (to == nullptr) return;
    store_value<T>(to, static_cast<T>(d[l]));
  }
}

template <class T, class R>
void store_vector(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint32_t* list = warp.frame->function->lists.data() + i.list;
  T values[32 / sizeof(T)];
  for (; mask != 0; mask &= mask - 1) {
    const int l = __builtin_ctz(mask);
    char* to = lane_bytes(warp, i, l, sizeof(T) * i.count, true);
    if (to == nullptr) return;
    for (int k = 0; k < i.count; ++k)
      values[k] = static_cast<T>(lanes_of<R>(warp, list[k])[l]);
    write_vector(reinterpret_cast<const char*>(values), sizeof(T) * i.count,
                 to);
  }
}

template <class T, class R>
Handler access(bool stores, bool vector) {
  if (stores) return vector ? store_vector<T, R> : store<T, R>;
  return vector ? load_vector<T, R> : load<T, R>;
}

template <class R>
Handler for_register(Type type, bool stores, bool vector) {
  switch (type) {
    case Type::kS8:
      return access<int8_t, R>(stores, vector);
    case Type::kS16:
      return access<int16_t, R>(stores, vector);
    case Type::kS32:
      return access<int32_t, R>(stores, vector);
    default:
      break;
  }
  switch (type_bytes(type)) {
    case 1:
      return access<uint8_t, R>(stores, vector);
    case 2:
      return access<uint16_t, R>(stores, vector);
    case 4:
      return access<uint32_t, R>(stores, vector);
    case 8:
      return access<uint64_t, R>(stores, vector);
    default:
      return nullptr;
  }
}

template <>
Handler for_register<Wide>(Type type, bool stores, bool vector) {
  if (type != Type::kB128) return nullptr;
  return access<Wide, Wide>(stores, vector);
}

/// A store drops the upper bits of the register, so a store of a signed type
/// may use the untyped variant.
Handler accessor(Type type, uint32_t register_bytes, bool stores, bool vector) {
  if (stores && is_signed(type)) type = bits_of(type);
  switch (register_bytes) {
    case 2:
      return for_register<uint16_t>(type, stores, vector);
    case 4:
      return for_register<uint32_t>(type, stores, vector);
    case 8:
      return for_register<uint64_t>(type, stores, vector);
    default:
      return for_register<Wide>(type, stores, vector);
  }
}

/// Ignores modifiers for caches. The memory of this machine is coherent, so it
/// is enough to do every access.
void ignore_hints(Decoder& d) {
  d.ignore({"nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt"});
  d.ignore({"L1::evict_normal", "L1::evict_unchanged", "L1::evict_first",
            "L1::evict_last", "L1::no_allocate", "L2::64B", "L2::128B",
            "L2::256B", "L2::evict_first", "L2::evict_last",
            "L2::evict_normal"});
}

void decode_access(Decoder& d) {
  const bool stores = d.name() == "st";
  // The memory of this machine is ordered, so only an observer needs these.
  const bool always = d.take("volatile");
  const bool device = d.take("mmio");
  const Effect::Order named = d.take_order();
  const Effect::Order order =
      named == Effect::kWeak && (always || device) ? Effect::kRelaxed : named;
  const Effect::Scope scope = d.take_scope(Effect::kSystem);
  ignore_hints(d);
  d.i.space = d.take_space();
  const int vector = d.take_one_of({"v2", "v4", "v8"});
  const Type type = d.take_type();
  d.expect_operands(2, 2);
  if (type == Type::kPred) d.unsupported();
  const Operand& given = d.operand(stores ? 1 : 0);
  // ptxas accepts a single register in braces.
  const bool braced = vector < 0 && given.kind == Operand::kVector &&
                      given.elements.size() == 1;
  const Operand& data = braced ? given.elements[0] : given;
  uint32_t bytes = 0;
  if (vector >= 0) {
    if (data.kind != Operand::kVector || data.elements.size() != 2u << vector)
      d.unsupported("the vector operand has the wrong length");
    std::vector<uint32_t> offsets;
    for (const Operand& element : data.elements) {
      uint32_t own = 0;
      offsets.push_back(stores ? d.source(element, type, &own)
                               : d.destination(element, type, &own));
      if (element.kind == Operand::kRegister) {
        if (bytes != 0 && bytes != own)
          d.unsupported("the vector's elements have different widths");
        bytes = own;
      }
    }
    if (bytes == 0) bytes = std::max(2u, type_bytes(type));
    if (stores)  // literals have the width of the type
      for (const Operand& element : data.elements)
        if (element.kind != Operand::kRegister &&
            bytes != std::max(2u, type_bytes(type)))
          d.unsupported("the vector's elements have different widths");
    d.i.list = d.add_list(offsets);
    d.i.count = static_cast<uint8_t>(offsets.size());
  } else {
    d.i.d = stores ? d.source(data, type, &bytes)
                   : d.destination(data, type, &bytes);
  }
  if (bytes < type_bytes(type)) d.unsupported("the register is too narrow");
  d.address(stores ? 0 : 1);
  if (type_bytes(type) * d.i.count > 32) d.unsupported();
  d.i.effect = {static_cast<uint16_t>(stores ? Effect::kWrite : Effect::kRead),
                static_cast<uint16_t>(order), static_cast<uint16_t>(scope),
                static_cast<uint16_t>(type_bytes(type) * d.i.count),
                Effect::kNoCopies};
  d.i.run = accessor(type, bytes, stores, vector >= 0);
  d.i.pure = !stores && d.reads_parameter(type_bytes(type));
  const bool elsewhere =
      d.i.space == Space::kGlobal || d.i.space == Space::kGeneric;
  if (order != Effect::kWeak && !stores && elsewhere) d.i.flow = Flow::kPoll;
}

void nothing(Warp&, const Instruction&, uint32_t) {}

void refuse_multicast(Warp& warp, const Instruction& i, uint32_t) {
  warp.block->grid->fault(
      warp, i, 218,
      "a multimem instruction, but the reference model has no multicast");
}

/// The device says that it has no multicast, so a program may have such code
/// and not reach it.
void decode_multimem(Decoder& d) {
  d.ignore_rest();
  d.i.run = refuse_multicast;
}

void decode_nothing(Decoder& d) {
  ignore_hints(d);
  d.take_space();
  d.ignore({"L1", "L2", "tensormap", "L2::evict_last", "L2::evict_normal"});
  d.i.run = nothing;
}

/// cp.async, which is done at once: writes i.count bytes. If e is given, the
/// first e bytes come from the source and the other bytes are zero.
void copy_async(Warp& warp, const Instruction& i, uint32_t mask) {
  Instruction from = i;
  from.a = i.b;
  from.space = Space::kGlobal;
  from.immediate = static_cast<int64_t>(static_cast<int32_t>(i.list));
  from.address_bytes = 8;
  for (; mask != 0; mask &= mask - 1) {
    const int l = __builtin_ctz(mask);
    uint32_t size = i.count;
    if (i.e != kNone) size = std::min(size, lanes_of<uint32_t>(warp, i.e)[l]);
    char* to = lane_bytes(warp, i, l, i.count, true);
    if (to == nullptr) return;
    if (size != 0) {
      const char* source = lane_bytes(warp, from, l, i.count, false);
      if (source == nullptr) return;
      std::memcpy(to, source, size);
    }
    std::memset(to + size, 0, i.count - size);
  }
}

void decode_cp(Decoder& d) {
  const bool reduces = d.take("reduce");
  if (!d.take("async")) d.unsupported();
  if (reduces && !d.take("bulk")) d.unsupported();
  if (reduces) return decode_bulk_copy(d, true);
  if (d.take("mbarrier")) return decode_copy_arrival(d);
  if (d.take("bulk")) return decode_bulk_copy(d, false);
  if (decode_copy_group(d, Effect::kGroups)) return;
  ignore_hints(d);
  if (!d.take("shared") && !d.take("shared::cta")) d.unsupported();
  if (!d.take("global")) d.unsupported();
  d.expect_operands(3, 4);
  if (d.operand(2).kind != Operand::kInteger) d.unsupported();
  d.i.count = static_cast<uint8_t>(d.operand(2).bits);
  d.address(1);
  d.i.b = d.i.a;
  d.i.list = static_cast<uint32_t>(d.i.immediate);
  if (d.i.b == kNone || d.i.address_bytes != 8) d.unsupported();
  d.i.a = kNone;
  d.i.space = Space::kShared;
  d.address(0);
  if (d.operands() == 4) d.i.e = d.source(3, Type::kB32);
  d.i.run = copy_async;
  d.i.effect = {Effect::kCopy, Effect::kWeak, Effect::kBlock, 0,
                Effect::kGroups};
}

}  // namespace

const DecodeTable& memory_instructions() {
  static const auto& table = *new DecodeTable{
      {"ld", decode_access},
      {"ldu", decode_access},
      {"st", decode_access},
      {"prefetch", decode_nothing},
      {"prefetchu", decode_nothing},
      {"discard", decode_nothing},
      {"applypriority", decode_nothing},
      {"cp", decode_cp},
      {"multimem", decode_multimem},
  };
  return table;
}

}  // namespace ipclab::ptx
