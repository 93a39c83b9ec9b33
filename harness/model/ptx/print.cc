// SPDX-License-Identifier: Apache-2.0
// The functions that CUDA's device library leaves to the driver: vprintf,
// __assertfail, malloc and free.
#include <cstdio>

#include "decode.h"
#include "memory.h"

namespace ipclab::ptx {
namespace {

constexpr size_t kLongestString = 1u << 20;

/// One lane's arguments of a call of a built-in function.
class Arguments {
 public:
  Arguments(Warp& warp, const Instruction& i, int lane)
      : warp_(warp),
        instruction_(i),
        call_(warp.frame->function->calls[static_cast<size_t>(i.immediate)]),
        lane_(lane) {}

  template <class T>
  T get(size_t index) const {
    T value{};
    if (index < call_.arguments.size())
      std::memcpy(&value, variable(call_.arguments[index]), sizeof value);
    return value;
  }

  template <class T>
  void set_result(T value) const {
    if (!call_.results.empty())
      std::memcpy(variable(call_.results[0]), &value, sizeof value);
  }

  /// Reads bytes at a generic address; false after a fault has been raised.
  bool read(uint64_t address, void* to, uint32_t size) const {
    const char* from =
        space_bytes(warp_, Space::kGeneric, lane_, address, size, false);
    if (from == nullptr) {
      warp_.block->grid->memory_fault(warp_, instruction_, 700, address, size,
                                      false);
      return false;
    }
    std::memcpy(to, from, size);
    return true;
  }

  bool read_string(uint64_t address, std::string* text) const {
    for (text->clear(); text->size() < kLongestString; ++address) {
      char c;
      if (!read(address, &c, 1)) return false;
      if (c == '\0') break;
      text->push_back(c);
    }
    return true;
  }

 private:
  char* variable(uint32_t offset) const {
    return warp_.local + static_cast<size_t>(lane_) * warp_.stack_bytes +
           warp_.frame->base + offset;
  }

  Warp& warp_;
  const Instruction& instruction_;
  const Call& call_;
  int lane_;
};

/// The lowest bytes of a value, read as a T.
template <class T>
int64_t low(int64_t value) {
  return static_cast<T>(value);
}

/// Formats like printf, with the values that the compiler packed at `values`.
class Formatter {
 public:
  Formatter(const Arguments& arguments, uint64_t values)
      : arguments_(arguments), values_(values) {}

  /// Appends the text to `out`. Returns the number of values used; -1 after a
  /// fault.
  int format(const std::string& text, std::string* out) {
    int used = 0;
    for (size_t at = 0; at < text.size();) {
      if (text[at] != '%') {
        out->push_back(text[at++]);
      } else if (at + 1 < text.size() && text[at + 1] == '%') {
        out->push_back('%');
        at += 2;
      } else {
        size_t end = at;
        std::string specification;
        if (!read_specification(text, &end, &specification)) return -1;
        if (end >= text.size()) {
          out->append(text, at, text.npos);
          break;
        }
        if (!convert(specification, text[end], out)) return -1;
        ++used;
        at = end + 1;
      }
    }
    return used;
  }

 private:
  /// Reads from the % up to the conversion character. Replaces `*` by its
  /// value. Notes the length modifiers and leaves them out.
  bool read_specification(const std::string& text, size_t* at,
                          std::string* specification) {
    longs_ = 0;
    specification->push_back('%');
    for (++*at; *at < text.size(); ++*at) {
      const char c = text[*at];
      if (c == '*') {
        int32_t value = 0;
        if (!next(&value)) return false;
        *specification += std::to_string(value);
      } else if (c == 'l' || c == 'j' || c == 'z' || c == 't' || c == 'L') {
        ++longs_;
      } else if (c == 'h') {
        --longs_;
      } else if (std::strchr("-+ #.0123456789", c) != nullptr) {
        specification->push_back(c);
      } else {
        return true;
      }
    }
    return true;
  }

  template <class T>
  bool next(T* value) {
    values_ = (values_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    const bool good = arguments_.read(values_, value, sizeof(T));
    values_ += sizeof(T);
    return good;
  }

  bool convert(const std::string& specification, char conversion,
               std::string* out) {
    switch (conversion) {
      case 'd':
      case 'i': {
        int64_t value = 0;
        int32_t narrow = 0;
        if (longs_ > 0 ? !next(&value) : !next(&narrow)) return false;
        if (longs_ <= 0) value = narrow;
        if (longs_ == -1) value = low<int16_t>(value);
        if (longs_ <= -2) value = low<int8_t>(value);
        return print(specification + "ll" + conversion,
                     static_cast<long long>(value), out);
      }
      case 'u':
      case 'x':
      case 'X':
      case 'o': {
        uint64_t value = 0;
        uint32_t narrow = 0;
        if (longs_ > 0 ? !next(&value) : !next(&narrow)) return false;
        if (longs_ <= 0) value = narrow;
        if (longs_ == -1) value = static_cast<uint16_t>(value);
        if (longs_ <= -2) value = static_cast<uint8_t>(value);
        return print(specification + "ll" + conversion,
                     static_cast<unsigned long long>(value), out);
      }
      case 'c': {
        int32_t value = 0;
        return next(&value) && print(specification + 'c', value, out);
      }
      case 'f':
      case 'F':
      case 'e':
      case 'E':
      case 'g':
      case 'G':
      case 'a':
      case 'A': {
        double value = 0;
        return next(&value) && print(specification + conversion, value, out);
      }
      case 'p': {
        uint64_t value = 0;
        return next(&value) && print(specification + 'p',
                                     reinterpret_cast<const void*>(value), out);
      }
      case 's': {
        uint64_t address = 0;
        std::string value;
        return next(&address) && arguments_.read_string(address, &value) &&
               print(specification + 's', value.c_str(), out);
      }
      default:  // unknown conversions are printed as they are
        *out += specification + conversion;
        return true;
    }
  }

  template <class T>
  static bool print(const std::string& specification, T value,
                    std::string* out) {
    const int length = std::snprintf(nullptr, 0, specification.c_str(), value);
    if (length < 0) return true;
    std::string text(static_cast<size_t>(length) + 1, '\0');
    std::snprintf(text.data(), text.size(), specification.c_str(), value);
    text.pop_back();
    *out += text;
    return true;
  }

  const Arguments& arguments_;
  uint64_t values_;
  int longs_ = 0;
};

void print_formatted(Warp& warp, const Instruction& i, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) {
    const Arguments arguments(warp, i, __builtin_ctz(mask));
    std::string format, text;
    if (!arguments.read_string(arguments.get<uint64_t>(0), &format)) return;
    const int used =
        Formatter(arguments, arguments.get<uint64_t>(1)).format(format, &text);
    if (used < 0) return;
    warp.block->grid->print(text);
    arguments.set_result(used);
  }
}

void assert_fail(Warp& warp, const Instruction& i, uint32_t mask) {
  const int lane = __builtin_ctz(mask);
  const Arguments arguments(warp, i, lane);
  std::string condition, file, function;
  if (!arguments.read_string(arguments.get<uint64_t>(0), &condition) ||
      !arguments.read_string(arguments.get<uint64_t>(1), &file) ||
      !arguments.read_string(arguments.get<uint64_t>(3), &function))
    return;
  const uint32_t* block = warp.block->index;
  std::string what = file + ":" + std::to_string(arguments.get<uint32_t>(2)) +
                     ": " + function + ": block: [";
  for (int k = 0; k < 3; ++k)
    what += std::to_string(block[k]) + (k < 2 ? "," : "], thread: [");
  for (int k = 0; k < 3; ++k)
    what += std::to_string(warp.thread_index[k][lane]) + (k < 2 ? "," : "] ");
  what += "Assertion `" + condition + "` failed.";
  std::fprintf(stderr, "%s\n", what.c_str());
  warp.block->grid->fault(warp, i, 710, what);
}

void allocate(Warp& warp, const Instruction& i, uint32_t mask) {
  const AddressSpace& space = warp.block->grid->space;
  for (; mask != 0; mask &= mask - 1) {
    const Arguments arguments(warp, i, __builtin_ctz(mask));
    const uint64_t size = arguments.get<uint64_t>(0);
    arguments.set_result(
        space.allocate != nullptr ? space.allocate(space.heap, size) : 0);
  }
}

void release(Warp& warp, const Instruction& i, uint32_t mask) {
  const AddressSpace& space = warp.block->grid->space;
  for (; mask != 0; mask &= mask - 1) {
    const Arguments arguments(warp, i, __builtin_ctz(mask));
    if (space.release != nullptr)
      space.release(space.heap, arguments.get<uint64_t>(0));
  }
}

}  // namespace

Handler built_in_function(const std::string& name) {
  if (name == "vprintf") return print_formatted;
  if (name == "__assertfail") return assert_fail;
  if (name == "malloc") return allocate;
  if (name == "free") return release;
  return nullptr;
}

}  // namespace ipclab::ptx
