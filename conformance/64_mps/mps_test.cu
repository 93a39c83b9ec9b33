// Processes that are clients of MPS share memory with each other and with a
// process that is not a client. Mirror of samples/64_mps; the daemon is started
// as in the lesson.
//
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "harness/scenario/cuda.h"
#include "harness/scenario/kernels.h"
#include "samples/64_mps/daemon.h"

using namespace ipclab;

namespace {

using Handle = cudaIpcMemHandle_t;

constexpr size_t kBytes = 4 << 20;

// The daemon's folder. The referee makes and removes this folder, whatever a
// role does.
struct Folder {
  const std::string path = in_role() ? "" : new_folder();
  ~Folder() {
    if (!path.empty()) std::filesystem::remove_all(path);
  }
};

// Why this process is not a client of MPS although it should be; empty if it is
// a client. Makes the first CUDA call of the process.
std::string cannot_join() {
  const cudaError_t code = cudaFree(nullptr);
  cudaGetLastError();
  if (code != cudaSuccess) return "a client gets " + name_of(code);
  return is_mps_client() ? "" : "CUDA does not make the process a client";
}

// The role that starts MPS in the folder of its environment, and ends MPS after
// the roles of `clients` have ended.
std::function<void(Role&)> runs_mps(std::vector<std::string> clients) {
  return [=](Role& me) {
    const std::string path = std::getenv(kPipes);
    const std::string problem = start_mps(path);
    me.send_bytes("problem of MPS", problem);
    me.send_bytes("pipes", path);
    if (!problem.empty()) me.not_applicable(problem);
    for (const std::string& client : clients) me.wait_for_end(client);
    if (problem.empty()) end_mps();
    EXPECT_EQ(any_child(), 0) << "of MPS is left";
  };
}

// Joins MPS if the role has to be a client, and sends the result to the other
// roles. Returns false, with the reason in the report, if MPS does not run or
// if one of the roles cannot join.
bool all_are_there(Role& me, const std::vector<std::string>& roles,
                   bool client) {
  const bool runs = me.receive_bytes("problem of MPS").empty();
  const std::string pipes = me.receive_bytes("pipes");
  if (!runs) return false;
  setenv(kPipes, client ? pipes.c_str() : "/nowhere", 1);
  const std::string problem = client ? cannot_join() : "";
  if (!client) EXPECT_FALSE(is_mps_client()) << "finds no daemon";
  if (!problem.empty()) me.not_applicable(problem);
  me.send_bytes("problem of " + me.name(), problem);
  bool good = problem.empty();
  for (const std::string& role : roles)
    if (role != me.name())
      good &= me.receive_bytes("problem of " + role).empty();
  return good;
}

// Lends memory and reads what the importer has written there.
std::function<void(Role&)> lends_as(bool client) {
  return [=](Role& me) {
    if (!all_are_there(me, {"exporter", "importer"}, client)) return;
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    const Words by_kernel(buffer.data, kBytes / 2);
    const Words by_copy(buffer.data + buffer.count / 2, kBytes / 2);
    const SharedEvent event;
    const Stream stream;
    Latch latch;
    latch.hold(stream);
    CALL(cudaEventRecord(event, stream));
    me.send("event", event.handle());
    me.send("handle", buffer.legacy_handle());
    // Waits for the end, not for a step: the importer may return early.
    me.wait_for_end("importer");
    latch.release();
    EXPECT_TRUE(kernel_reads(by_kernel, pattern("importer")));
    EXPECT_TRUE(copy_reads(by_copy, pattern("importer's copy")));
  };
}

// Reads the lent memory by a kernel and by a copy, and writes half of it in
// each way. Also judges that the exporter's event is pending.
std::function<void(Role&)> borrows_as(bool client) {
  return [=](Role& me) {
    if (!all_are_there(me, {"exporter", "importer"}, client)) return;
    LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    EXPECT_TRUE(copy_reads(mapping, pattern("exporter")));
    SharedEvent event(me.receive<cudaIpcEventHandle_t>("event"));
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
    event.destroy();
    Words(mapping.data, kBytes / 2).fill(pattern("importer"));
    const DeviceBuffer own(kBytes / 2);
    own.fill(pattern("importer's copy"));
    CALL(cudaMemcpy(mapping.data + mapping.count / 2, own.data, kBytes / 2,
                    cudaMemcpyDefault));
    mapping.close();
    EXPECT_TRUE(context_is_usable());
  };
}

void lend(bool exporter_is_client, bool importer_is_client) {
  SCOPED_TRACE(std::string("exporter: ") +
               (exporter_is_client ? "client" : "no client") +
               ", importer: " + (importer_is_client ? "client" : "no client"));
  const Folder folder;
  Scenario scenario;
  scenario.role("daemon", runs_mps({"exporter", "importer"}))
      .env(kPipes, folder.path);
  scenario.role("exporter", lends_as(exporter_is_client));
  scenario.role("importer", borrows_as(importer_is_client));
  scenario.run(90s);
}

}  // namespace

TEST(Mps, AClientAndAnotherProcessShareMemory) {
  covers("MPS-01");
  needs(gpus(1), legacy_memory, legacy_events, alone);
  lend(true, false);
  lend(false, true);
}

TEST(Mps, TwoClientsShareMemory) {
  covers("MPS-02");
  needs(gpus(1), legacy_memory, legacy_events, alone);
  lend(true, true);
}

TEST(Mps, AFaultOfOneClient) {
  covers("MPS-03");
  needs(gpus(1), legacy_memory, alone);
  const std::vector<std::string> roles{"exporter", "importer"};
  const Folder folder;
  Scenario scenario;
  scenario.role("daemon", runs_mps({"exporter", "importer", "latecomer"}))
      .env(kPipes, folder.path);

  scenario.role("exporter", [=](Role& me) {
    if (!all_are_there(me, roles, true)) return;
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    me.send("handle", buffer.legacy_handle());
    me.wait_for_end("importer");
    observe_code(me, "the exporter's next synchronisation",
                 NOTED(cudaDeviceSynchronize()));
    observe_check(me, "the exporter reads its memory",
                  [&] { return copy_reads(buffer, pattern("exporter")); });
    cudaGetLastError();
  });

  scenario.role("importer", [=](Role& me) {
    if (!all_are_there(me, roles, true)) return;
    void* const opened = open_handle(me.receive<Handle>("handle"));
    EXPECT_TRUE(kernel_reads(Words(opened, kBytes), pattern("exporter")));
    launch_write(nullptr, 1);
    observe_code(me, "the importer's kernel writes to address 0",
                 NOTED(cudaDeviceSynchronize()));
  });

  scenario.role("latecomer", [=](Role& me) {
    for (const std::string& role : roles) me.wait_for_end(role);
    const bool runs = me.receive_bytes("problem of MPS").empty();
    setenv(kPipes, me.receive_bytes("pipes").c_str(), 1);
    if (!runs) return;
    const std::string problem = cannot_join();
    me.observe("after both have ended a new client " +
               (problem.empty() ? "starts" : "cannot start: " + problem));
    if (problem.empty())
      observe_check(me, "the new client", [] { return context_is_usable(); });
  });

  scenario.run(120s);
}
