// Lesson 64: processes that use the GPU through MPS share memory.
//
//   parent            exporter            importers
//   start MPS
//           <-------- cudaMalloc, write
//           ----------- memory -------->  a client of MPS: open, read,
//           <-------- its end ----------    write, wait, close
//           ----------- memory -------->  not a client: the same
//           <-------- its end ----------
//           --------> read what the last importer wrote
//                     cudaFree
//   end MPS
//
// nvcc -cudart shared samples/64_mps/mps.cu
//
// SPDX-License-Identifier: Apache-2.0

#include "../common/data.h"
#include "daemon.h"

constexpr int kCount = 1 << 20;
constexpr int kExporterValue = 1000000;
constexpr int kClientValue = 2000000;
constexpr int kOutsiderValue = 3000000;

struct Loan {
  cudaIpcMemHandle_t memory;
  int expected;  // the first value that the importer reads
  int written;   // the first value that the importer writes
};

//! [exporter]
int exporter(Channel parent) {
  const bool client = is_mps_client();
  say("is %s of MPS, lends memory", client ? "a client" : "NO CLIENT");
  void* data = allocate_values(kCount, kExporterValue);
  cudaIpcMemHandle_t handle;
  CUDA_CHECK(cudaIpcGetMemHandle(&handle, data));
  parent.send("memory", handle);

  parent.wait("closed");
  const int wrong = count_wrong(data, kCount, kOutsiderValue);
  say("reads what the last importer has written: %d wrong", wrong);
  CUDA_CHECK(cudaFree(data));
  return client && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(Channel parent) {
  const auto loan = parent.receive<Loan>("memory");
  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, loan.memory,
                                  cudaIpcMemLazyEnablePeerAccess));
  const int wrong = count_wrong(data, kCount, loan.expected);
  say("is %s of MPS, reads: %d wrong",
      is_mps_client() ? "a client" : "not a client", wrong);

  // A client must not end before its work is done.
  write_values(data, kCount, loan.written);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

// Skips (77) if a client of MPS cannot share memory here.
int look() {
  require_gpus(1);
  require(cudaDevAttrIpcEventSupport, "CUDA IPC");
  int integrated = 0;
  CUDA_CHECK(
      cudaDeviceGetAttribute(&integrated, cudaDevAttrIntegrated, 0));
  if (integrated != 0) skip("no CUDA IPC for memory on Tegra");
  if (!is_mps_client())
    skip("a process with %s is not a client of MPS", kPipes);
  return EXIT_SUCCESS;
}

int child(Channel parent) {
  const char part = parent.receive<char>("part");
  if (part == 'l') return look();
  role_name() = part == 'e' ? "exporter" : "importer";
  return part == 'e' ? exporter(std::move(parent))
                     : importer(std::move(parent));
}

Child start_as(char part, char** argv) {
  Child made = start_again(argv);
  made.channel.send("part", part);
  return made;
}

//! [parent]
// Lends the memory to a new importer. Returns true if it succeeds.
bool lend(char** argv, const Loan& loan) {
  Child importer = start_as('i', argv);
  importer.channel.send("memory", loan);
  return importer.wait(30s) == EXIT_SUCCESS;
}

// The parent makes no CUDA call, so it is not a client, and it can
// wait for the end of all clients.
int main(int argc, char** argv) {
  if (is_child(argc, argv)) return child(channel_from_parent(argv));

  role_name() = "parent";
  const std::string problem = start_mps(new_folder());
  if (!problem.empty()) skip("%s", problem.c_str());
  const int code = start_as('l', argv).wait(60s);  // starts the server
  if (code != EXIT_SUCCESS) return code;
  say("has started MPS in [%s]", mps_folder().c_str());

  Child exporter = start_as('e', argv);
  const auto memory =
      exporter.channel.receive<cudaIpcMemHandle_t>("memory");
  bool good = lend(argv, {memory, kExporterValue, kClientValue});
  setenv(kPipes, "/nowhere", 1);  // the next importer finds no daemon
  good &= lend(argv, {memory, kClientValue, kOutsiderValue});
  exporter.channel.signal("closed");
  good &= exporter.wait(30s) == EXIT_SUCCESS;

  setenv(kPipes, mps_folder().c_str(), 1);  // for the command quit
  end_mps();
  say("has ended MPS: %s",
      any_child() == 0 ? "no process is left" : "A PROCESS IS LEFT");
  return good && any_child() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [parent]
