// When marks end.
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/world/marks.h"

namespace ipclab::faults {

void note_marks(Call& call) {
  if (call.is("cudaEventCreateWithFlags") || call.is("cudaIpcOpenEventHandle"))
    event_marks.erase(*call.at<cudaEvent_t*>(0));
  else if (call.is("cudaEventDestroy"))
    event_marks.erase(call.at<cudaEvent_t>(0));
  else if (call.is("cudaStreamDestroy"))
    stream_marks.erase(call.at<cudaStream_t>(0));
  else if (call.is("cuMemUnmap"))
    mapping_marks.erase_range(call.at<CUdeviceptr>(0), call.at<size_t>(1));
  else if (call.is("cuMemAddressFree"))
    address_marks.erase_range(call.at<CUdeviceptr>(0), call.at<size_t>(1));
  else if (call.is("cuMemCreate") || call.is("cuMemImportFromShareableHandle"))
    chunk_marks.erase(*call.at<unsigned long long*>(0));
  else if (call.is("cudaMemPoolDestroy"))
    pool_marks.erase(call.at<cudaMemPool_t>(0));
  else if (call.is("cudaFree") || call.is("cudaFreeAsync"))
    block_marks.erase(call.at<void*>(0));
}

}  // namespace ipclab::faults
