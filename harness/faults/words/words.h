// All words of faults, and what they know.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "harness/faults/words/effects.h"
#include "harness/faults/words/endpoints.h"
