// Two processes in separate namespaces, as in two containers: what can still be
// shared between them. Mirror of samples/61_namespaces.
//
// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/cuda.h"
#include "harness/scenario/namespaces.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 2 << 20;
constexpr int kContainer = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC;

/// What the exporter lends: memory, and an event that is pending.
struct Handles {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
};

// Moves this process into new namespaces of these kinds for the rest of the
// role.
void enter(Role& me, int kinds, int number = 1) {
  if (kinds == 0) return;
  if (const auto refused = enter_namespaces(kinds, number)) me.broken(*refused);
}

// Does the call open something? This is only observed.
bool opens(Role& me, const std::string& where, const char* call,
           cudaError_t code) {
  me.observe(where + ": " + call + " gives " + name_of(code));
  cudaGetLastError();
  return code == cudaSuccess;
}

// Judges that an open gives the exporter's memory, and that a refusal does no
// harm.
void try_memory(Role& me, const std::string& where,
                const cudaIpcMemHandle_t& handle) {
  void* opened = nullptr;
  if (opens(me, where, "cudaIpcOpenMemHandle",
            NOTED(cudaIpcOpenMemHandle(&opened, handle,
                                       cudaIpcMemLazyEnablePeerAccess)))) {
    Words words(opened, kBytes);
    EXPECT_READS(words, pattern("exporter"));
    // What this role writes must be there in another open: no open may give a
    // copy.
    words.fill(pattern("importer"));
    CALL(cudaIpcCloseMemHandle(opened));
    words = Words(open_handle(handle), kBytes);
    EXPECT_TRUE(kernel_reads(words, pattern("importer")));
    words.fill(pattern("exporter"));
    CALL(cudaIpcCloseMemHandle(words.data));
  }
  EXPECT_TRUE(context_is_usable());
}

// Judges that an event that opens is the exporter's, whose record is pending.
void try_event(Role& me, const std::string& where,
               const cudaIpcEventHandle_t& handle) {
  cudaEvent_t event = nullptr;
  if (opens(me, where, "cudaIpcOpenEventHandle",
            NOTED(cudaIpcOpenEventHandle(&event, handle)))) {
    EXPECT_CODE(cudaErrorNotReady, cudaEventQuery(event));
    CALL(cudaEventDestroy(event));
  }
  EXPECT_TRUE(context_is_usable());
}

// Where an importer opens what the exporter lends.
struct Place {
  std::string importer;  // the role
  std::string where;     // for the report
  int kinds;             // the namespaces of its own
  int number = 1;        // of its process
};

void observe_deaths(const Scenario& scenario,
                    const std::vector<Place>& places) {
  for (const Place& place : places) {
    const Ended& importer = scenario.ended(place.importer);
    if (!importer.reached_end)
      observe(place.where + ": the importer dies, " +
              outcome_of(importer).code);
  }
}

// Lends memory and an event from its own namespaces to one importer after the
// other. The end of an importer must not harm this role.
std::function<void(Role&)> lends_from(int kinds,
                                      const std::vector<Place>& places) {
  return [=](Role& me) {
    enter(me, kinds);
    const DeviceBuffer buffer(kBytes);
    const Stream stream;
    const SharedEvent event;
    buffer.fill(pattern("exporter"));
    for (const Place& place : places) {
      SCOPED_TRACE(place.where);
      Latch latch;
      latch.hold(stream);
      CALL(cudaEventRecord(event, stream));
      me.send("handles for the " + place.importer,
              Handles{buffer.legacy_handle(), event.handle()});
      me.wait_for_end(place.importer);
      latch.release();
      EXPECT_TRUE(passes(stream));
      EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
      EXPECT_TRUE(context_is_usable());
    }
  };
}

}  // namespace

TEST(Namespaces, LegacyHandlesAndSharedMemoryFiles) {
  covers("PLAT-10");
  needs(gpus(1), namespaces, legacy_memory, legacy_events);
  const std::vector<Place> places = {
      {"importer", "the importer has all in common", 0},
      {"importer with IPC", "the importer has an IPC namespace of its own",
       CLONE_NEWIPC},
      {"importer with files", "the importer has a /dev/shm of its own",
       CLONE_NEWNS},
      {"importer with both", "the importer has both of its own",
       CLONE_NEWIPC | CLONE_NEWNS}};
  Scenario scenario;
  scenario.role("exporter", lends_from(0, places));
  for (const Place& place : places)
    scenario
        .role(place.importer,
              [&place](Role& me) {
                SCOPED_TRACE(place.where);
                enter(me, place.kinds);
                const auto handles =
                    me.receive<Handles>("handles for the " + place.importer);
                CALL(cudaFree(nullptr));
                try_memory(me, place.where, handles.memory);
                try_event(me, place.where, handles.event);
              })
        .may_end_by(SIGSEGV);
  scenario.run(60s);
  observe_deaths(scenario, places);
}

TEST(Namespaces, LegacyHandlesAndProcessNumbers) {
  covers("PLAT-11");
  needs(gpus(1), namespaces, legacy_memory, legacy_events);
  std::vector<Place> places;
  for (const int number : {1, 2})
    places.push_back({"importer " + std::to_string(number),
                      "process 1 exports, process " + std::to_string(number) +
                          " of another namespace opens",
                      kContainer, number});
  Scenario scenario;
  scenario.role("exporter", lends_from(kContainer, places));
  for (const Place& place : places)
    scenario
        .role(place.importer,
              [&place](Role& me) {
                SCOPED_TRACE(place.where);
                enter(me, place.kinds, place.number);
                EXPECT_EQ(getpid(), place.number);
                const auto handles =
                    me.receive<Handles>("handles for the " + place.importer);
                CALL(cudaFree(nullptr));
                try_memory(me, place.where, handles.memory);
              })
        .may_end_by(SIGSEGV);
  scenario.run(40s);
  observe_deaths(scenario, places);
}

// Two exporters have one process number, each in its namespace. An open must
// not confuse their memory.
TEST(Namespaces, TwoExportersWithOneProcessNumber) {
  covers("PLAT-11");
  needs(gpus(1), namespaces, legacy_memory);
  const std::vector<std::string> exporters = {"exporter A", "exporter B"};
  Scenario scenario;
  for (const std::string& name : exporters)
    scenario.role(name, [&](Role& me) {
      enter(me, kContainer);
      const DeviceBuffer buffer(kBytes);
      buffer.fill(pattern(me.name()));
      me.send("handle of " + me.name(), buffer.legacy_handle());
      me.wait_for_end("importer");
      EXPECT_TRUE(kernel_reads(buffer, pattern(me.name())));
    });
  scenario
      .role(
          "importer",
          [&](Role& me) {
            enter(me, kContainer, 2);
            CALL(cudaFree(nullptr));
            std::vector<void*> opened;
            for (const std::string& name : exporters) {
              const auto handle =
                  me.receive<cudaIpcMemHandle_t>("handle of " + name);
              void* memory = nullptr;
              if (!opens(me, "memory of " + name, "cudaIpcOpenMemHandle",
                         NOTED(cudaIpcOpenMemHandle(
                             &memory, handle, cudaIpcMemLazyEnablePeerAccess))))
                continue;
              const Words words(memory, kBytes);
              EXPECT_READS(words, pattern(name));
              opened.push_back(memory);  // the other open meets it
            }
            for (void* memory : opened) CALL(cudaIpcCloseMemHandle(memory));
            EXPECT_TRUE(context_is_usable());
          })
      .may_end_by(SIGSEGV);
  scenario.run(40s);
}

// A descriptor that was sent belongs to its receiver, in any namespaces. To
// fetch a descriptor, a process must be able to see the other process.
TEST(Namespaces, ASentDescriptorNeedsNothingInCommon) {
  covers("PLAT-12");
  needs(gpus(1), namespaces, vmm_fd);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    enter(me, kContainer);
    const Chunk chunk = Chunk::create(granule());
    const Mapping mapping(chunk, granule());
    mapping.fill(pattern("exporter"));
    me.send("pid", getpid());
    me.send_descriptor("descriptor", chunk.descriptor().get());
    me.wait("written");
    EXPECT_TRUE(kernel_reads(mapping, pattern("importer")));
  });

  scenario.role("importer", [](Role& me) {
    enter(me, kContainer, 2);
    const auto pid = me.receive<pid_t>("pid");
    const Descriptor exporter(
        static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    me.observe("process " + std::to_string(pid) + " of the exporter's " +
               (exporter ? "namespace is another process here"
                         : "namespace is nobody here"));
    const Mapping mapping(Chunk::import(me.receive_descriptor("descriptor")),
                          granule());
    EXPECT_READS(mapping, pattern("exporter"));
    mapping.fill(pattern("importer"));
    me.signal("written");
  });

  scenario.run(20s);
}
