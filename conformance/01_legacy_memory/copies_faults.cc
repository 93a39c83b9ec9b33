// Bugs of a driver against the rules of this folder about batches of copies and
// copies with attributes (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

using Attributes = CUmemcpyAttributes;
using Box = CUDA_MEMCPY3D_BATCH_OP;

constexpr auto kCopies = "cuMemcpyBatchAsync";
constexpr auto kBoxes = "cuMemcpy3DBatchAsync";
constexpr auto kCopyWith = "cuMemcpyWithAttributesAsync";
constexpr auto kBoxWith = "cuMemcpy3DWithAttributesAsync";
constexpr Functions kAll = {kCopies, kBoxes, kCopyWith, kBoxWith};

// Where a function of kAll takes its attributes or its boxes, and how many.
template <class T>
struct List {
  size_t argument;
  size_t count;
};
List<Attributes> attributes_of(Call& call) {
  if (call.is(kCopies)) return {4, call.at<size_t>(6)};
  return {3, call.is(kCopyWith) ? size_t{1} : size_t{0}};
}
List<Box> boxes_of(Call& call) {
  if (call.is(kBoxes)) return {1, call.at<size_t>(0)};
  return {0, call.is(kBoxWith) ? size_t{1} : size_t{0}};
}

// The call proceeds with a changed copy of its list; `change` returns whether
// it has changed an entry.
template <class T, class Change>
int with_list(Call& call, List<T> list, Change change) {
  const T* const given = call.at<const T*>(list.argument);
  if (given == nullptr) return call.proceed();
  std::vector<T> copy(given, given + list.count);
  bool changed = false;
  for (T& one : copy) changed |= change(one);
  if (!changed) return call.proceed();
  call.at<T*>(list.argument) = copy.data();
  return once_more(call);
}

// Effect: a copy that asks for the order `asked` has the order `taken`.
template <class Asks>
auto other_order(Asks asks, CUmemcpySrcAccessOrder taken) {
  return [asks, taken](Call& call) {
    const auto change = [&](auto& one) {
      return asks(one.srcAccessOrder) && set_to(one.srcAccessOrder, taken);
    };
    return attributes_of(call).count != 0
               ? with_list(call, attributes_of(call), change)
               : with_list(call, boxes_of(call), change);
  };
}
auto other_order(CUmemcpySrcAccessOrder asked, CUmemcpySrcAccessOrder taken) {
  return other_order(
      [asked](CUmemcpySrcAccessOrder order) { return order == asked; }, taken);
}

bool is_no_order(CUmemcpySrcAccessOrder order) {
  return order != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM &&
         order != CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL &&
         order != CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

// Does an entry of the call's list satisfy the condition?
template <class T, class Holds>
bool any_of_list(Call& call, List<T> list, Holds holds) {
  const T* const given = call.at<const T*>(list.argument);
  for (size_t i = 0; given != nullptr && i < list.count; ++i)
    if (holds(given[i])) return true;
  return false;
}
bool has_hint(Call& call) {
  if (attributes_of(call).count != 0)
    return any_of_list(call, attributes_of(call), [](const Attributes& one) {
      return one.srcLocHint.type != 0 || one.dstLocHint.type != 0;
    });
  return any_of_list(call, boxes_of(call), [](const Box& one) {
    return one.src.op.ptr.locHint.type != 0 || one.dst.op.ptr.locHint.type != 0;
  });
}
bool prefers_overlap(Call& call) {
  const auto holds = [](const auto& one) {
    return one.flags == CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
  };
  return attributes_of(call).count != 0
             ? any_of_list(call, attributes_of(call), holds)
             : any_of_list(call, boxes_of(call), holds);
}

// Copies the first copy of a batch that the driver has refused.
bool first_copy_done(Call& call) {
  if (call.is(kBoxes)) {
    const Box* const first = call.at<const Box*>(1);
    if (first == nullptr || call.at<size_t>(0) == 0) return false;
    return DRIVER_CALL(cuMemcpyAsync)(
               first->dst.op.ptr.ptr, first->src.op.ptr.ptr,
               first->extent.width, private_stream()) == CUDA_SUCCESS;
  }
  if (call.at<size_t>(3) == 0) return false;
  return DRIVER_CALL(cuMemcpyAsync)(
             *call.at<CUdeviceptr*>(0), *call.at<CUdeviceptr*>(1),
             *call.at<size_t*>(2), private_stream()) == CUDA_SUCCESS;
}

FAULTS {
  fault("copies-last-lost", {"COPY-01"},
        "a batch of several copies leaves out its last copy")
      .on({kCopies}, WHEN(call.at<size_t>(3) > 1),
          [](Call& call) {
            const size_t last = --call.at<size_t>(3);
            size_t& kinds = call.at<size_t>(6);
            if (kinds > 1 && call.at<size_t*>(5)[kinds - 1] == last) --kinds;
            return once_more(call);
          })
      .before({kBoxes}, WHEN(call.at<size_t>(0) > 1),
              [](Call& call) { --call.at<size_t>(0); });

  fault("copies-have-one-size", {"COPY-01"},
        "all copies of a batch have the size of the first one")
      .on({kCopies}, WHEN(call.at<size_t>(3) > 1),
          [](Call& call) {
            std::vector<size_t> sizes(call.at<size_t>(3), *call.at<size_t*>(2));
            call.at<size_t*>(2) = sizes.data();
            return once_more(call);
          })
      .on({kBoxes}, [](Call& call) {
        const size_t width = call.at<Box*>(1)->extent.width;
        return with_list(call, boxes_of(call), [width](Box& one) {
          return set_to(one.extent.width, width);
        });
      });

  fault("copies-have-first-attributes", {"COPY-01"},
        "all copies of a batch have the attributes of the first one")
      .on({kCopies}, WHEN(call.at<size_t>(6) > 1), [](Call& call) {
        call.at<size_t>(6) = 1;
        return once_more(call);
      });

  fault("copies-read-early", {"COPY-02"},
        "a copy whose source must be read in stream order reads it during the "
        "call")
      .on({kAll}, other_order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
                              CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL));

  fault("copies-read-late", {"COPY-03"},
        "a copy whose source must be read during the call reads it in stream "
        "order")
      .on({kAll}, other_order(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL,
                              CU_MEMCPY_SRC_ACCESS_ORDER_STREAM));

  fault("copies-write-at-once", {"COPY-05"},
        "copies with attributes and batches do not wait for their stream")
      .before({kAll}, WHEN(call.value<cudaStream_t>(kStream) != nullptr),
              privately);

  fault("ok-copies-any-during-call", {"COPY-04", "COPY-05"},
        "a copy whose source may be read at any time reads it during the call")
      .on({kAll}, other_order(CU_MEMCPY_SRC_ACCESS_ORDER_ANY,
                              CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL));

  fault("copies-order-unchecked", {"COPY-06", "COPY-07"},
        "a copy without a valid order of its source is accepted")
      .on({kAll, "cuMemcpy3DBatchAsync_v1"}, [](Call& call) {
        if (!call.is("cuMemcpy3DBatchAsync_v1"))
          return other_order(is_no_order,
                             CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)(call);
        return with_list(call, List<Box>{1, call.at<size_t>(0)}, [](Box& one) {
          return is_no_order(one.srcAccessOrder) &&
                 set_to(one.srcAccessOrder, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
        });
      });

  fault("copies-refused-copy", {"COPY-06", "COPY-08"},
        "a batch that is refused makes its first copy")
      .on_refusal({kCopies, kBoxes}, first_copy_done);

  fault("copies-wrong-copy-unnamed", {"COPY-07"},
        "a batch in the form of CUDA 12.8 never says which copy is wrong")
      .on_refusal({"cuMemcpy3DBatchAsync_v1"}, answers(SIZE_MAX, 2));

  fault("copies-wrong-copy-is-first", {"COPY-07"},
        "a batch in the form of CUDA 12.8 says that its first copy is wrong")
      .on_refusal({"cuMemcpy3DBatchAsync_v1"}, answers(size_t{0}, 2))
      .on_refusal({"cuMemcpyBatchAsync_v1"}, answers(size_t{0}, 7));

  fault("copies-hint-refused", {"COPY-09"},
        "a copy of memory that cannot move is refused if it has a hint of a "
        "place")
      .on({kAll}, WHEN(has_hint(call)), refuses());

  fault("copies-overlap-refused", {"COPY-01", "COPY-09"},
        "a copy is refused if it should overlap with kernels")
      .on({kAll}, WHEN(prefers_overlap(call)), refuses());

  fault("copies-box-without-gaps", {"COPY-10"},
        "a box has no gaps after its rows")
      .on({kBoxes, kBoxWith}, [](Call& call) {
        return with_list(call, boxes_of(call), [](Box& one) {
          const bool source = set_to(one.src.op.ptr.rowLength, 0);
          return set_to(one.dst.op.ptr.rowLength, 0) || source;
        });
      });

  fault("copies-layer-without-gaps", {"COPY-10"},
        "a box has no gaps after its layers")
      .on({kBoxes, kBoxWith}, [](Call& call) {
        return with_list(call, boxes_of(call), [](Box& one) {
          const bool source = set_to(one.src.op.ptr.layerHeight, 0);
          return set_to(one.dst.op.ptr.layerHeight, 0) || source;
        });
      });
}

}  // namespace
}  // namespace ipclab::faults
