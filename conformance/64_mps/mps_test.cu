// Processes that are clients of MPS share memory with each other and with a
// process that is not a client. Mirror of samples/64_mps; the daemon is started
// as in the lesson.
//
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/both_apis.h"
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

// One of four parts of the memory. The importer writes each part in another
// way.
Words quarter(const Words& all, size_t number) {
  const size_t count = all.count / 4;
  return Words(all.data + number * count, count * sizeof(uint32_t));
}
constexpr unsigned char kByte = 0x5C;  // the importer's memset

// At the end of a function that fails early, signals the steps for which the
// other role waits. Otherwise that role would wait forever, and MPS would run
// on.
class StepsAtTheEnd {
 public:
  StepsAtTheEnd(Role& me, std::vector<std::string> steps)
      : me_(me), steps_(std::move(steps)) {}
  StepsAtTheEnd(const StepsAtTheEnd&) = delete;
  ~StepsAtTheEnd() {
    for (const std::string& step : steps_) me_.signal(step);
  }

 private:
  Role& me_;
  std::vector<std::string> steps_;
};

// Lends memory and an event. Reads what the importer has written, and sees the
// importer's record.
std::function<void(Role&)> lends_as(bool client) {
  return [=](Role& me) {
    if (!all_are_there(me, {"exporter", "importer"}, client)) return;
    const StepsAtTheEnd steps(me, {"exporter has asked"});
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    const SharedEvent event;
    const Stream stream;
    Latch latch;
    latch.hold(stream);
    CALL(cudaEventRecord(event, stream));
    me.send("event", event.handle());
    me.send("handle", buffer.legacy_handle());
    me.wait("importer waits");
    latch.release();
    EXPECT_TRUE(passes(stream));
    me.wait("importer has recorded");
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
    EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
    EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
    me.signal("exporter has asked");
    EXPECT_TRUE(passes(stream));
    me.wait_for_end("importer");
    EXPECT_TRUE(kernel_reads(quarter(buffer, 0), pattern("importer")));
    EXPECT_TRUE(copy_reads(quarter(buffer, 1), pattern("importer's copy")));
    EXPECT_TRUE(copy_reads(quarter(buffer, 2), pattern("importer's copy")));
    std::vector<unsigned char> set(kBytes / 4);
    CALL(cudaMemcpy(set.data(), quarter(buffer, 3).data, set.size(),
                    cudaMemcpyDefault));
    EXPECT_EQ(set, std::vector<unsigned char>(set.size(), kByte));
  };
}

// Waits for the exporter's record, and records the event itself.
void waits_and_records(Role& me, cudaEvent_t event) {
  const Stream stream;
  EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
  EXPECT_SUCCESS(cudaStreamWaitEvent(stream, event, 0));
  EXPECT_CODE(cudaErrorNotReady, cudaStreamQuery(stream));
  HostWait host(event);
  EXPECT_TRUE(host.is_held());
  me.signal("importer waits");
  EXPECT_TRUE(passes(stream));
  EXPECT_EQ(host.join(), cudaSuccess);
  Latch latch;
  latch.hold(stream);
  EXPECT_SUCCESS(cudaEventRecord(event, stream));
  me.signal("importer has recorded");
  me.wait("exporter has asked");
  latch.release();
  EXPECT_TRUE(passes(stream));
}

// Opens the lent memory three times, by both APIs. Reads it by a kernel and by
// a copy, and writes it by a kernel, by copies and by a memset.
std::function<void(Role&)> borrows_as(bool client) {
  return [=](Role& me) {
    if (!all_are_there(me, {"exporter", "importer"}, client)) return;
    const StepsAtTheEnd steps(me, {"importer waits", "importer has recorded"});
    const auto handle = me.receive<Handle>("handle");
    CALL(cudaFree(nullptr));  // a context for the driver API
    MappingBy first(DriverApi{}, handle, kBytes);
    LegacyMapping mapping(handle, kBytes), again(handle, kBytes);
    for (const Words& each : {Words(first), Words(mapping), Words(again)}) {
      EXPECT_READS(each, pattern("exporter"));
    }
    SharedEvent event(me.receive<cudaIpcEventHandle_t>("event"));
    waits_and_records(me, event);
    event.destroy();

    quarter(first, 0).fill(pattern("importer"));
    const DeviceBuffer own(kBytes / 4);
    own.fill(pattern("importer's copy"));
    CALL(cudaMemcpy(quarter(mapping, 1).data, own.data, own.bytes(),
                    cudaMemcpyDefault));
    const Stream stream;
    CALL(cudaMemcpyAsync(quarter(again, 2).data, own.data, own.bytes(),
                         cudaMemcpyDefault, stream));
    CALL(cudaMemsetAsync(quarter(mapping, 3).data, kByte, own.bytes(), stream));
    EXPECT_TRUE(passes(stream));
    again.close();
    first.close();
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
