// The calls of world/calls.inc.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstring>

#include "harness/explore/role.h"
#include "harness/scenario/cuda.h"

namespace ipclab::explore {
namespace {

// What a body may use, by the names that calls.inc gives.
struct Subject {
  char *m = nullptr, *b = nullptr, *o = nullptr, *r = nullptr;
  size_t n = 0, rn = 0, g = 0;
  cudaMemPool_t p = nullptr;
  CUmemGenericAllocationHandle c = 0;
  int gpu = 0, pool_gpu = 0;
  long long value = 0;

#define REFUSED(name, what, row, applies, codes, ...) \
  int refused_##name() { __VA_ARGS__ }
#define QUESTION(name, what, row, applies, answer, ...) \
  int question_##name() { __VA_ARGS__ }
#include "harness/explore/world/calls.inc"
#undef REFUSED
#undef QUESTION
};

}  // namespace

int perform_listed(Objects& objects, const Step& step, Answer& answer) {
  Subject subject;
  if (objects.memory.has(step.on)) {
    const Objects::Memory memory = objects.memory.at(step.on);
    subject.b = memory.data;
    subject.m = memory.data + step.at;
    subject.n = static_cast<size_t>(memory.bytes);
  }
  if (objects.memory.has(step.from))
    subject.o = objects.memory.at(step.from).data;
  for (const int id : {step.from, step.on})
    if (objects.ranges.has(id)) {
      const Objects::Range range = objects.ranges.at(id);
      subject.r = reinterpret_cast<char*>(range.address);
      subject.rn = static_cast<size_t>(range.bytes);
    }
  if (objects.pools.has(step.on)) subject.p = objects.pools.at(step.on);
  if (objects.chunks.has(step.from)) subject.c = objects.chunks.at(step.from);
  subject.g = static_cast<size_t>(objects.granule);
  subject.gpu = objects.gpu;
  subject.pool_gpu = static_cast<int>(step.value);
  int code = -1;
  if (step.op == Op::kRefuse) {
    switch (step.how) {
#define REFUSED(name, ...)           \
  case k##name:                      \
    code = subject.refused_##name(); \
    break;
#define QUESTION(name, ...)
#include "harness/explore/world/calls.inc"
#undef REFUSED
#undef QUESTION
      default:
        break;
    }
  } else {
    switch (step.how) {
#define REFUSED(name, ...)
#define QUESTION(name, ...)           \
  case k##name:                       \
    code = subject.question_##name(); \
    break;
#include "harness/explore/world/calls.inc"
#undef REFUSED
#undef QUESTION
      default:
        break;
    }
  }
  answer.value = subject.value;
  return code;
}

}  // namespace ipclab::explore
