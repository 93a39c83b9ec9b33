// Facts about memory of cuMemCreate, its addresses and its mappings.
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/world/chunks.h"

#include <atomic>

namespace ipclab::faults {

void note_chunks(Call& call) {
  static std::atomic<int> order{0};
  if (call.is("cuMemCreate") || call.is("cuMemImportFromShareableHandle")) {
    // The handle may have the number of an earlier one.
    const Chunk made = *call.at<Chunk*>(0);
    created.erase(made);
    imports.erase(made);
    exports.erase(made);
    released.erase(made);
    if (call.is("cuMemCreate"))
      created.put(made, call.at<size_t>(1));
    else
      imports.put(made);
  } else if (call.is("cuMemExportToShareableHandle")) {
    exports.put(call.at<Chunk>(1));
  } else if (call.is("cuMemRelease")) {
    released.put(call.at<Chunk>(0));
  } else if (call.is("cuMemAddressReserve")) {
    reservations.put(*call.at<CUdeviceptr*>(0), call.at<size_t>(1));
  } else if (call.is("cuMemAddressFree")) {
    reservations.erase(call.at<CUdeviceptr>(0));
  } else if (call.is("cuMemMap")) {
    mappings.put(
        call.at<CUdeviceptr>(0),
        {call.at<size_t>(1), call.at<Chunk>(3), this_thread(), ++order});
  } else if (call.is("cuMemUnmap")) {
    const CUdeviceptr begin = call.at<CUdeviceptr>(0);
    for (const auto& each : mappings.all())
      if (each.first >= begin && each.first - begin < call.at<size_t>(1))
        mappings.erase(each.first);
  }
}

}  // namespace ipclab::faults
