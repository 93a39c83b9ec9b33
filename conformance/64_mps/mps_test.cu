// Processes that are clients of MPS share memory with each other, with clients
// of another server, and with a process that is not a client. Mirror of
// samples/64_mps; the daemons are started as in the lesson.
//
// SPDX-License-Identifier: Apache-2.0
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"
#include "harness/scenario/vmm.h"
#include "samples/64_mps/daemon.h"

using namespace ipclab;

namespace {

using Handle = cudaIpcMemHandle_t;

constexpr size_t kBytes = 4 << 20;
constexpr char kMps[] = "MPS", kSecondMps[] = "second MPS";  // their roles

// The folder of a daemon. The referee makes and removes this folder, whatever a
// role does.
struct Folder {
  const std::string path = in_role() ? "" : new_folder();
  Folder() = default;
  Folder(const Folder&) = delete;
  ~Folder() {
    if (!path.empty()) std::filesystem::remove_all(path);
  }
};

// Of which daemon exporter and importer are clients; empty: of none.
struct Cast {
  std::string exporter, importer;

  std::vector<std::string> daemons() const {
    std::vector<std::string> all;
    for (const std::string& each : {exporter, importer})
      if (!each.empty() && (all.empty() || all.front() != each))
        all.push_back(each);
    return all;
  }
  const std::string& of(const Role& me) const {
    return me.name() == "exporter" ? exporter : importer;
  }
  std::string text() const {
    const auto part = [](const std::string& daemon) {
      return daemon.empty() ? "no client" : "client of " + daemon;
    };
    return "exporter: " + part(exporter) + ", importer: " + part(importer);
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

// Starts MPS in the folder of this role's environment, and tells the others.
// Returns false if MPS does not start.
bool starts_mps(Role& me) {
  const std::string path = std::getenv(kPipes);
  const std::string problem = start_mps(path);
  me.send_bytes("problem of " + me.name(), problem);
  me.send_bytes("pipes of " + me.name(), path);
  if (!problem.empty()) me.not_applicable(problem);
  return problem.empty();
}

// The role that starts MPS, and ends MPS after the roles of `clients` have
// ended.
std::function<void(Role&)> runs_mps(std::vector<std::string> clients) {
  return [=](Role& me) {
    const bool runs = starts_mps(me);
    for (const std::string& client : clients) me.wait_for_end(client);
    if (runs) end_mps();
    EXPECT_EQ(any_child(), 0) << "of MPS is left";
  };
}

// Joins MPS if the role has to be a client, and sends the result to the other
// role. Returns false, with the reason in the report, if a daemon does not run
// or if one of the roles cannot join.
bool all_are_there(Role& me, const Cast& cast) {
  const std::string& mine = cast.of(me);
  bool good = true;
  std::string pipes = "/nowhere";
  for (const std::string& daemon : cast.daemons()) {
    good &= me.receive_bytes("problem of " + daemon).empty();
    const std::string path = me.receive_bytes("pipes of " + daemon);
    if (daemon == mine) pipes = path;
  }
  if (!good) return false;
  setenv(kPipes, pipes.c_str(), 1);
  const std::string problem = mine.empty() ? "" : cannot_join();
  if (mine.empty()) EXPECT_FALSE(is_mps_client()) << "finds no daemon";
  if (!problem.empty()) me.not_applicable(problem);
  me.send_bytes("problem of " + me.name(), problem);
  for (const std::string role : {"exporter", "importer"})
    if (role != me.name())
      good &= me.receive_bytes("problem of " + role).empty();
  return good && problem.empty();
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
std::function<void(Role&)> lends_as(const Cast& cast) {
  return [=](Role& me) {
    if (!all_are_there(me, cast)) return;
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
std::function<void(Role&)> borrows_as(const Cast& cast) {
  return [=](Role& me) {
    if (!all_are_there(me, cast)) return;
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

// Runs both roles beside the daemons of which they are clients.
void run(const Cast& cast, std::function<void(Role&)> exporter,
         std::function<void(Role&)> importer) {
  SCOPED_TRACE(cast.text());
  std::deque<Folder> folders;
  Scenario scenario;
  for (const std::string& daemon : cast.daemons())
    scenario.role(daemon, runs_mps({"exporter", "importer"}))
        .env(kPipes, folders.emplace_back().path);
  scenario.role("exporter", std::move(exporter));
  scenario.role("importer", std::move(importer));
  scenario.run(120s);
}

void lend(const Cast& cast) { run(cast, lends_as(cast), borrows_as(cast)); }

}  // namespace

TEST(Mps, AClientAndAnotherProcessShareMemory) {
  covers("MPS-01");
  needs(gpus(1), legacy_memory, legacy_events, alone);
  lend({kMps, ""});
  lend({"", kMps});
}

TEST(Mps, TwoClientsShareMemory) {
  covers("MPS-02");
  needs(gpus(1), legacy_memory, legacy_events, alone);
  lend({kMps, kMps});
}

TEST(Mps, ClientsOfTwoServersShareMemory) {
  covers("MPS-04");
  needs(gpus(1), legacy_memory, legacy_events, alone);
  lend({kMps, kSecondMps});
}

// Lends a chunk and memory of a pool by descriptors, and reads what the
// importer has written there.
static std::function<void(Role&)> lends_by_descriptors(const Cast& cast) {
  return [=](Role& me) {
    if (!all_are_there(me, cast)) return;
    const Chunk chunk = Chunk::create(granule());
    const Mapping mapping(chunk, granule());
    mapping.fill(pattern("chunk"));
    me.send_descriptor("chunk", chunk.descriptor().get());
    const Pool pool(shareable());
    me.send_descriptor("pool", pool.exported().get());
    const AsyncBuffer buffer(pool, kBytes);
    buffer.fill(pattern("pool"));
    me.send("pointer", buffer.exported());
    me.wait_for_end("importer");
    EXPECT_TRUE(kernel_reads(quarter(mapping, 0), pattern("by a kernel")));
    EXPECT_TRUE(copy_reads(quarter(mapping, 1), pattern("by a copy")));
    EXPECT_TRUE(kernel_reads(quarter(buffer, 0), pattern("by a kernel")));
    EXPECT_TRUE(copy_reads(quarter(buffer, 1), pattern("by a copy")));
  };
}

// Writes two of the four parts of imported memory.
static void write_halves(const Words& memory) {
  quarter(memory, 0).fill(pattern("by a kernel"));
  const DeviceBuffer own(memory.bytes() / 4);
  own.fill(pattern("by a copy"));
  CALL(cudaMemcpy(quarter(memory, 1).data, own.data, own.bytes(),
                  cudaMemcpyDefault));
  CALL(cudaDeviceSynchronize());
}

static std::function<void(Role&)> borrows_by_descriptors(const Cast& cast) {
  return [=](Role& me) {
    if (!all_are_there(me, cast)) return;
    const Mapping mapping(Chunk::import(me.receive_descriptor("chunk")),
                          granule());
    EXPECT_READS(mapping, pattern("chunk"));
    write_halves(mapping);
    const Pool pool(me.receive_descriptor("pool"));
    AsyncBuffer buffer(pool, me.receive<cudaMemPoolPtrExportData>("pointer"),
                       kBytes);
    EXPECT_READS(buffer, pattern("pool"));
    write_halves(buffer);
    buffer.free();
    EXPECT_TRUE(context_is_usable());
  };
}

TEST(Mps, ClientsShareByDescriptors) {
  covers("MPS-05");
  needs(gpus(1), vmm_fd, pools, pool_fd, alone);
  for (const Cast& cast : {Cast{kMps, kSecondMps}, Cast{kMps, kMps},
                           Cast{kMps, ""}, Cast{"", kMps}})
    run(cast, lends_by_descriptors(cast), borrows_by_descriptors(cast));
}

// The importer's kernel writes to address 0.
static void makes_a_fault(Role& me) {
  launch_write(nullptr, 1);
  observe_code(me, "the importer's kernel writes to address 0",
               NOTED(cudaDeviceSynchronize()));
}

// Observes whether the memory can still be read. A read that succeeds must not
// give other values.
static void expect_no_other_values(Role& me, const Words& memory,
                                   Pattern wanted) {
  std::vector<uint32_t> words(memory.count);
  const cudaError_t code = NOTED(
      cudaMemcpy(words.data(), memory.data, memory.bytes(), cudaMemcpyDefault));
  observe_code(me, "a copy of the memory", code);
  if (code == cudaSuccess) {
    EXPECT_TRUE(host_reads(Words(words.data(), memory.bytes()), wanted));
  }
}

TEST(Mps, AFaultOfOneClient) {
  covers("MPS-03");
  needs(gpus(1), legacy_memory, alone);
  const Cast cast{kMps, kMps};
  const Folder folder;
  Scenario scenario;
  scenario.role(kMps, runs_mps({"exporter", "importer", "latecomer"}))
      .env(kPipes, folder.path);

  scenario.role("exporter", [=](Role& me) {
    if (!all_are_there(me, cast)) return;
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
    if (!all_are_there(me, cast)) return;
    void* const opened = open_handle(me.receive<Handle>("handle"));
    EXPECT_TRUE(kernel_reads(Words(opened, kBytes), pattern("exporter")));
    makes_a_fault(me);
  });

  scenario.role("latecomer", [=](Role& me) {
    for (const char* role : {"exporter", "importer"}) me.wait_for_end(role);
    const bool runs =
        me.receive_bytes(std::string("problem of ") + kMps).empty();
    setenv(kPipes, me.receive_bytes(std::string("pipes of ") + kMps).c_str(),
           1);
    if (!runs) return;
    const std::string problem = cannot_join();
    me.observe("after both have ended a new client " +
               (problem.empty() ? "starts" : "cannot start: " + problem));
    if (problem.empty())
      observe_check(me, "the new client", [] { return context_is_usable(); });
  });

  scenario.run(120s);
}

TEST(Mps, AFaultOfAClientOfAnotherServer) {
  covers("MPS-06");
  needs(gpus(1), legacy_memory, alone);
  const Cast cast{kMps, kSecondMps};
  run(
      cast,
      [=](Role& me) {
        if (!all_are_there(me, cast)) return;
        const DeviceBuffer buffer(kBytes);
        buffer.fill(pattern("exporter"));
        me.send("handle", buffer.legacy_handle());
        me.wait_for_end("importer");
        observe_code(me, "the exporter's next synchronisation",
                     NOTED(cudaDeviceSynchronize()));
        expect_no_other_values(me, buffer, pattern("exporter"));
      },
      [=](Role& me) {
        if (!all_are_there(me, cast)) return;
        void* const opened = open_handle(me.receive<Handle>("handle"));
        EXPECT_TRUE(kernel_reads(Words(opened, kBytes), pattern("exporter")));
        makes_a_fault(me);
      });
}

// The exporter's server ends while a client of another server has the
// exporter's memory open.
TEST(Mps, TheExportersServerEnds) {
  covers("MPS-07");
  needs(gpus(1), legacy_memory, alone);
  const Cast cast{kMps, kSecondMps};
  const Folder folder, second;
  Scenario scenario;
  scenario
      .role(kMps,
            [](Role& me) {
              const bool runs = starts_mps(me);
              me.wait("importer has opened");
              if (runs) mps_control(nullptr, "quit -t 2\n");
              if (runs) end_mps();
              EXPECT_EQ(any_child(), 0) << "of MPS is left";
              me.signal("MPS has ended");
            })
      .env(kPipes, folder.path);
  scenario.role(kSecondMps, runs_mps({"exporter", "importer"}))
      .env(kPipes, second.path);

  scenario.role("exporter", [=](Role& me) {
    if (!all_are_there(me, cast)) return;
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    me.send("handle", buffer.legacy_handle());
    me.wait("MPS has ended");
    observe_code(me, "the exporter's next synchronisation",
                 NOTED(cudaDeviceSynchronize()));
    expect_no_other_values(me, buffer, pattern("exporter"));
    me.wait_for_end("importer");
  });

  scenario.role("importer", [=](Role& me) {
    const StepsAtTheEnd steps(me, {"importer has opened"});
    if (!all_are_there(me, cast)) return;
    const LegacyMapping mapping(me.receive<Handle>("handle"), kBytes);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
    me.signal("importer has opened");
    me.wait("MPS has ended");
    expect_no_other_values(me, mapping, pattern("exporter"));
    observe_check(me, "the importer works", [] { return context_is_usable(); });
  });

  scenario.run(180s);
}
