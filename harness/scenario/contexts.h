// Contexts and green contexts as a whole: their records of events and their
// waits (CUDA 12.5), and what tests create (CUDA 12.4). The functions are found
// by name. A driver without them does not have the capabilities
// `context_events` and `green_contexts`.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "harness/scenario/endpoint.h"

namespace ipclab {

/// The primary context of the current device, which it makes current.
CUcontext primary_context();

/// A context that a test creates. It is current while this object exists, or
/// until the test makes another one current.
class SecondContext {
 public:
  explicit SecondContext(int device = 0);
  SecondContext(const SecondContext&) = delete;
  ~SecondContext();
  /// The context itself.
  operator CUcontext() const { return context_; }

 private:
  int before_ = 0;
  CUcontext context_ = nullptr;
};

/// Makes a context current as long as this object exists.
class Current {
 public:
  explicit Current(CUcontext context);
  Current(const Current&) = delete;
  ~Current();
};

/// A green context of the current device.
class GreenContext {
 public:
  /// Creates it. Green contexts with the numbers 0 and 1 have different
  /// multiprocessors, if the GPU has enough of them.
  explicit GreenContext(unsigned number = 0);
  GreenContext(const GreenContext&) = delete;
  ~GreenContext();
  /// The green context itself.
  operator CUgreenCtx() const { return green_; }
  /// Its handle for functions that take a context.
  CUcontext converted() const { return converted_; }

 private:
  CUgreenCtx green_ = nullptr;
  CUcontext converted_ = nullptr;
};

/// A stream of a green context.
class GreenStream {
 public:
  /// Creates it.
  explicit GreenStream(CUgreenCtx green);
  GreenStream(const GreenStream&) = delete;
  ~GreenStream() { cudaStreamDestroy(stream_); }
  /// The stream itself.
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace ipclab
