// Facts about pools and their memory.
//
// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/world/pools.h"

namespace ipclab::faults {

void note_pools(Call& call) {
  if (call.is("cudaMallocAsync"))
    blocks.put(*call.at<void**>(0), {current_pool(), call.at<size_t>(1)});
  else if (call.is("cudaMallocFromPoolAsync"))
    blocks.put(*call.at<void**>(0),
               {call.at<cudaMemPool_t>(2), call.at<size_t>(1)});
  else if (frees(call))
    blocks.erase(call.at<void*>(0));
  else if (call.is("cudaMemPoolCreate"))
    own_pools.put(*call.at<cudaMemPool_t*>(0),
                  *call.at<const cudaMemPoolProps*>(1));
  else if (call.is("cudaMemPoolImportFromShareableHandle"))
    imported_pools.put(*call.at<cudaMemPool_t*>(0));
  else if (call.is("cudaMemPoolDestroy")) {
    own_pools.erase(call.at<cudaMemPool_t>(0));
    imported_pools.erase(call.at<cudaMemPool_t>(0));
  } else if (call.is("cudaMemPoolExportPointer"))
    tell_processes(key_of_data(call.at<void*>(0)),
                   blocks.get(call.at<void*>(1)).bytes);
  else if (call.is("cudaMemPoolImportPointer"))
    blocks.put(*call.at<void**>(0),
               {call.at<cudaMemPool_t>(1),
                told(key_of_data(call.at<void*>(2)), 0), true});
}

}  // namespace ipclab::faults
