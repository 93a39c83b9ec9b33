// SPDX-License-Identifier: Apache-2.0
// Makes a line of the trace from one call of the driver API.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>

namespace ipclab::trace {

class Line;

/// One symbol of the driver, from calls.txt.
struct Call {
  uint32_t identifier;  ///< CUPTI's number
  void (*write_arguments)(Line&, const void* parameters, bool ok);
  bool waits;            ///< the call may wait for another process
  bool takes;            ///< the call may take over a descriptor
  bool only_refused;     ///< a call that succeeds is not recorded
  const char* declared;  ///< names of the call and its arguments, as JSON
};

/// A call that has returned. Its number is its place in the table.
struct Done {
  int call;
  uint64_t began;
  CUcontext context;
  const void* parameters;
  CUresult result;
  const char* kernel;  ///< the kernel's name if it is known, or null
};

/// The table of calls.
const Call* begin_calls();
const Call* end_calls();

/// Lines that declare the calls, for the head of a file.
void write_calls(const std::function<void(const Line&)>& put);

/// Writes that a call which may wait for another process has begun, with the
/// arguments that the call got.
void record_wait(int call, CUcontext context, const void* parameters);

/// Remembers the descriptor that a call may take over.
void record_taking(const void* parameters);

/// Writes a call.
void record(const Done& done);

/// The number of a kernel in this trace; the first call declares the kernel.
int kernel_number(CUfunction function);

/// Adds those values in the arguments of a kernel that look like addresses, as
/// a list.
void write_pointers(Line& line, CUfunction function, void** arguments);

/// Writes the number of a descriptor and what identifies its file. Writes null
/// if the descriptor is not open. With `note`, the close of the descriptor is
/// also recorded (system.cc), because the descriptor belongs to CUDA or may
/// belong to CUDA.
void write_descriptor(Line& line, int descriptor, bool note);

/// Does what write_descriptor() does with `note`, without a line.
void note_descriptor(int descriptor);

/// Writes a noted descriptor that the driver may have closed: as it was before
/// the call. A later use of a closed one is recorded until its number has
/// another file.
void write_given_away(Line& line, int descriptor);

/// Writes that the CUDA runtime refused a call without a call of the driver.
/// `argument` is the call's number, such as a device, or -1.
void record_refused(const char* name, int result, int argument);

/// Writes how the calls are recorded: "cupti", or "calls" on the reference
/// model.
void record_source(const char* name);

}  // namespace ipclab::trace
