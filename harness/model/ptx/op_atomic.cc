// SPDX-License-Identifier: Apache-2.0
// atom, red, membar, fence. They use host atomics, so they also work between
// processes that share the memory. Scopes make no difference.
#include "decode.h"
#include "memory.h"
#include "numbers.h"

namespace ipclab::ptx {
namespace {

struct Exchange {
  template <class T>
  static T of(T, T b) {
    return b;
  }
};
struct And {
  template <class T>
  static T of(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <class T>
  static T of(T a, T b) {
    return a | b;
  }
};
struct Xor {
  template <class T>
  static T of(T a, T b) {
    return a ^ b;
  }
};
struct Increment {
  template <class T>
  static T of(T a, T b) {
    return a >= b ? 0 : a + 1;
  }
};
struct Decrement {
  template <class T>
  static T of(T a, T b) {
    return a == 0 || a > b ? b : a - 1;
  }
};

template <class T>
using BitsOf =
    std::conditional_t<sizeof(T) == 2, uint16_t,
                       std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

/// Replaces the value in memory by update(old) and returns the old value.
template <class T, class Update>
T update_memory(char* at, Update update) {
  using B = BitsOf<T>;
  auto* place = reinterpret_cast<B*>(at);
  B old = __atomic_load_n(place, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(
      place, &old, bit_cast<B>(update(bit_cast<T>(old))), false,
      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return bit_cast<T>(old);
}

template <class Op, class T>
void atomic_update(Warp& warp, const Instruction& i, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) {
    const int l = __builtin_ctz(mask);
    char* at = lane_bytes(warp, i, l, sizeof(T), true);
    if (at == nullptr) return;
    const T value = lanes_of<T>(warp, i.b)[l];
    const T old =
        update_memory<T>(at, [=](T now) { return Op::of(now, value); });
    if (i.d != kNone) lanes_of<T>(warp, i.d)[l] = old;
  }
}

template <class T>
void compare_and_swap(Warp& warp, const Instruction& i, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) {
    const int l = __builtin_ctz(mask);
    char* at = lane_bytes(warp, i, l, sizeof(T), true);
    if (at == nullptr) return;
    T old = lanes_of<T>(warp, i.b)[l];
    __atomic_compare_exchange_n(reinterpret_cast<T*>(at), &old,
                                lanes_of<T>(warp, i.c)[l], false,
                                __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    if (i.d != kNone) lanes_of<T>(warp, i.d)[l] = old;
  }
}

/// For .f16x2 and .bf16x2, adds each half separately, in one exchange.
template <float (*kRead)(uint16_t), uint16_t (*kWrite)(double, bool), class T>
struct HalfAdd {
  static T of(T a, T b) {
    T result = 0;
    for (size_t k = 0; k < sizeof(T) * 8; k += 16) {
      const double sum =
          static_cast<double>(kRead(static_cast<uint16_t>(a >> k))) +
          kRead(static_cast<uint16_t>(b >> k));
      result |= static_cast<T>(static_cast<T>(kWrite(sum, false)) << k);
    }
    return result;
  }
};

Handler half_add(Type type) {
  switch (type) {
    case Type::kF16:
      return atomic_update<HalfAdd<half_to_float, double_to_half, uint16_t>,
                           uint16_t>;
    case Type::kF16x2:
      return atomic_update<HalfAdd<half_to_float, double_to_half, uint32_t>,
                           uint32_t>;
    case Type::kBf16:
      return atomic_update<HalfAdd<bfloat_to_float, double_to_bfloat, uint16_t>,
                           uint16_t>;
    default:
      return atomic_update<HalfAdd<bfloat_to_float, double_to_bfloat, uint32_t>,
                           uint32_t>;
  }
}

enum Operation { kExch, kCas, kAdd, kMin, kMax, kAnd, kOr, kXor, kInc, kDec };

Handler updater(int operation, Type type) {
  if (type >= Type::kF16 && type <= Type::kBf16x2)
    return operation == kAdd ? half_add(type) : nullptr;
  const Type bits = bits_of(type);
  using Unsigneds = TypeList<uint32_t, uint64_t>;
  switch (operation) {
    case kExch:
      return pick(Unsigneds{}, bits, [](auto x) -> Handler {
        return atomic_update<Exchange, decltype(x)>;
      });
    case kCas:
      return pick(Bits{}, bits, [](auto x) -> Handler {
        return compare_and_swap<decltype(x)>;
      });
    case kAdd:
      return pick(
          TypeList<uint32_t, int32_t, uint64_t, int64_t, float, double>{}, type,
          [](auto x) -> Handler { return atomic_update<Add, decltype(x)>; });
    case kMin:
      return pick(Words{}, type, [](auto x) -> Handler {
        return atomic_update<Minimum, decltype(x)>;
      });
    case kMax:
      return pick(Words{}, type, [](auto x) -> Handler {
        return atomic_update<Maximum, decltype(x)>;
      });
    case kAnd:
      return pick(Unsigneds{}, bits, [](auto x) -> Handler {
        return atomic_update<And, decltype(x)>;
      });
    case kOr:
      return pick(Unsigneds{}, bits, [](auto x) -> Handler {
        return atomic_update<Or, decltype(x)>;
      });
    case kXor:
      return pick(Unsigneds{}, bits, [](auto x) -> Handler {
        return atomic_update<Xor, decltype(x)>;
      });
    case kInc:
      return type == Type::kU32 ? atomic_update<Increment, uint32_t> : nullptr;
    case kDec:
      return type == Type::kU32 ? atomic_update<Decrement, uint32_t> : nullptr;
    default:
      return nullptr;
  }
}

void decode_atomic(Decoder& d) {
  const size_t first = d.name() == "atom" ? 1 : 0;
  const Effect::Order order = d.take_order();
  const Effect::Scope scope = d.take_scope(Effect::kGpu);
  d.take("noftz");
  d.i.space = d.take_space();
  const int operation = d.take_one_of(
      {"exch", "cas", "add", "min", "max", "and", "or", "xor", "inc", "dec"});
  const Type type = d.take_type();
  const size_t values = operation == kCas ? 2 : 1;
  d.expect_operands(first + 1 + values, first + 1 + values);
  if (first == 1 && d.operand(0).kind != Operand::kSink)
    d.i.d = d.destination(0, type);
  d.address(first);
  d.i.b = d.source(first + 1, type);
  if (values == 2) d.i.c = d.source(first + 2, type);
  d.i.run = updater(operation, type);
  d.i.effect = {
      Effect::kUpdate,
      static_cast<uint16_t>(order == Effect::kWeak ? Effect::kRelaxed : order),
      static_cast<uint16_t>(scope), static_cast<uint16_t>(type_bytes(type)),
      Effect::kNoCopies};
}

void full_fence(Warp&, const Instruction&, uint32_t) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void decode_fence(Decoder& d) {
  // Here all proxies see the same memory, so a fence between them, also one for
  // a range (fence.proxy.tensormap), is a fence.
  if (d.take("proxy")) {
    d.ignore_rest();
  } else {
    d.take_order();
    d.ignore({"sc", "mbarrier_init", "sync_restrict::shared::cta",
              "sync_restrict::shared::cluster"});
    const bool gpu = d.take("gl");  // of membar
    const Effect::Scope scope =
        d.take_scope(gpu ? Effect::kGpu : Effect::kCluster);
    d.expect_operands(0, 0);
    d.i.effect = {Effect::kFence, Effect::kAcquireRelease,
                  static_cast<uint16_t>(scope), 0, Effect::kNoCopies};
  }
  d.i.run = full_fence;
}

}  // namespace

const DecodeTable& atomic_instructions() {
  static const auto& table = *new DecodeTable{{"atom", decode_atomic},
                                              {"red", decode_atomic},
                                              {"membar", decode_fence},
                                              {"fence", decode_fence}};
  return table;
}

}  // namespace ipclab::ptx
