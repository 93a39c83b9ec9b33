// Lesson 65: two pods share memory through a broker for descriptors.
//
//   exporter, in a pod      broker, no CUDA    importer, in a pod
//   cuMemCreate
//   lend, revoke - token 1 ->
//   lend      - descriptor, token ->
//   close                   keep     <- token --  take
//                           close    - descriptor -> import
//   read              <----- done ------------ done
//   unmap, release, leave
//                           - owner has left ->  read, release, leave
//
// The pods share the path of a socket, and two tokens as a secret.
//
// nvcc -cudart shared samples/65_pods/pods.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "../common/vmm.h"
#include "pods.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);  // 2 MiB: one granule
constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 2000000;

//! [exporter]
int exporter(int broker, const std::string& pod) {
  say("has namespaces of its own: [%s]", pod.c_str());
  CUDA_CHECK(cudaFree(nullptr));  // the driver API needs a context
  const CUmemAllocationProp wanted = shareable();
  Memory memory;
  CU_CHECK(DRIVER(cuMemCreate)(&memory, kBytes, &wanted, 0));
  void* data = map_memory(memory, kBytes);
  write_values(data, kCount, kExporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  // Token 1 is revoked before the importer can take anything: it first
  // waits for token 0, which is lent after that.
  bool good = lend(broker, token(1), export_memory(memory));
  good &= ask(broker, What::kRevoke, token(1)) == What::kYes;
  good &= lend(broker, token(0), export_memory(memory));

  good &= hear(broker, start_limit) == What::kDone;
  const int wrong = count_wrong(data, kCount, kImporterValue);
  say("reads the importer's values: %d wrong", wrong);
  unmap_memory(data, kBytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  say("has released its memory, leaves");
  SYS_CHECK(close(broker));  // so the broker tells the importer

  return good && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(int broker, const std::string& pod) {
  CUDA_CHECK(cudaFree(nullptr));
  const int fd = take(broker, token(0));
  Memory memory;
  CU_CHECK(import_memory(&memory, fd));
  SYS_CHECK(close(fd));
  void* data = map_memory(memory, kBytes);
  int wrong = count_wrong(data, kCount, kExporterValue);
  // Said only now, so that the lines have one order.
  say("has namespaces of its own: [%s]", pod.c_str());
  say("imports it, reads the exporter's values: %d wrong", wrong);
  write_values(data, kCount, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());

  for (const int which : {0, 1}) {  // used, and revoked
    const What answer = ask(broker, What::kTake, token(which));
    say("asks with token %d: %s", which,
        answer == What::kNo ? "refused" : "NOT REFUSED");
    wrong += answer != What::kNo;
  }

  send_message(broker, What::kDone, token(0));
  wrong += hear(broker) != What::kOtherLeft;
  wrong += count_wrong(data, kCount, kImporterValue);
  say("still has the memory, without its owner: %d wrong", wrong);
  unmap_memory(data, kBytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  SYS_CHECK(close(broker));

  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

int main(int argc, char** argv) {
  if (argc == 1) return start_three_pods(argv);
  const std::string role = role_of(argc, argv);

  // A container has its namespaces. A child of main makes its own.
  const bool child = argc > 4;
  const auto pod = child ? enter_pod() : "those of its container";
  if (child) start_limit = 10s;  // main starts them together
  if (role == "broker")
    return broker(child ? std::atoi(argv[4]) : listen_at(argv[3]),
                  !child);
  const int end = connect_to(argv[3]);
  return role == "importer" ? importer(end, pod) : exporter(end, pod);
}
