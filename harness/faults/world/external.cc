// Facts about external memory.
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/world/external.h"

namespace ipclab::faults {

void note_external(Call& call) {
  if (call.is("cudaImportExternalMemory"))
    externals.put(*call.at<External*>(0));
  else if (call.is("cudaExternalMemoryGetMappedBuffer"))
    external_parts.put(
        *call.at<CUdeviceptr*>(0),
        {call.at<External>(1), part_of(call).offset, part_of(call).size});
  else if (call.is("cudaDestroyExternalMemory"))
    externals.erase(call.at<External>(0));
  else if (call.is("cudaFree"))
    external_parts.erase(call.at<CUdeviceptr>(0));
}

}  // namespace ipclab::faults
