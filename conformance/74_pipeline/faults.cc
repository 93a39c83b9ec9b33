// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>
#include <utility>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

FAULTS {
  fault("word-of-the-dead-lost", {"PIPE-04"},
        "a stream of the exporter does not write a word in memory that a "
        "process had open when it died")
      .on({kWriteWord, kGetHandle, kOpen, kClose, kFree},
          [](Call& call) -> int {
            static Table<CUdeviceptr, std::string> lent;
            if (exports_memory(call)) {
              const int code = call.proceed();
              if (code == kSuccess)
                lent.put(number(call.at<void*>(1)),
                         key_of(call.at<void*>(0), 64));
              return code;
            }
            if (call.is("cudaFree")) {
              lent.erase(call.at<CUdeviceptr>(0));
              return call.proceed();
            }
            if (keeps_opened(call)) return noted_client(call);
            const std::string handle =
                lent.get(begin_of(call.at<CUdeviceptr>(1)));
            return !handle.empty() && client_died(handle) ? lost(call)
                                                          : call.proceed();
          });

  fault("repeated-copy-from-import-lost", {"PIPE-01"},
        "an asynchronous copy from opened memory is lost if the process made a "
        "copy between the same two addresses before")
      .on({kCopyAsync}, [](Call& call) -> int {
        static Table<std::pair<void*, void*>> made;
        void* const from = call.value<void*>(kSource);
        if (!is_opened(from) || made.put({call.value<void*>(kPointer), from}))
          return call.proceed();
        return lost(call);
      });
}

}  // namespace
}  // namespace ipclab::faults
