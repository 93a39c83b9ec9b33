// The kernels of all exercises: what data.h and gate.h only declare for
// a C++ compiler.
//
// SPDX-License-Identifier: Apache-2.0
#include "../../common/data.h"
#include "../../common/gate.h"

// Inline functions are put into an object only where they are used.
[[gnu::used]] static void (*const kWriteValues)(
    void*, int, unsigned, cudaStream_t, unsigned) = write_values;
[[gnu::used]] static void (*const kHold)(cudaStream_t, Gate*) = hold;
