// Descriptors that reach their importer through other processes: a broker
// that does not use CUDA, or an importer that is done. Mirror of
// samples/65_pods.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/scenario/namespaces.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 2 << 20;
constexpr size_t kWatched = size_t{1} << 30;  // far above other changes
constexpr int kOtherNumber = 200;             // no other process uses it here
constexpr int kEachOfItsOwn =
    CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET;

// Receives a descriptor, and keeps it under another number.
Descriptor receive_as_another_number(Role& me, const std::string& step) {
  const Descriptor came = me.receive_descriptor(step);
  Descriptor kept(fcntl(came.get(), F_DUPFD_CLOEXEC, kOtherNumber));
  if (!kept) me.broken("a descriptor cannot be copied");
  return kept;
}

// A process that does not use CUDA. It keeps a descriptor until its sender has
// given up the memory, and sends it on.
std::function<void(Role&)> hands_on(const std::string& given_up) {
  return [=](Role& me) {
    const Descriptor descriptor =
        receive_as_another_number(me, "to the broker");
    me.wait(given_up);
    me.send_descriptor("to the first importer", descriptor.get());
  };
}

// Lets pidfd_getfd fail with EPERM in this process, as a container's profile
// does. Returns false if the system allows no filter.
bool forbid_pidfd_getfd() {
  constexpr unsigned kPidfdGetfd = 438;  // on all architectures
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPidfdGetfd, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{4, steps};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0 &&
         syscall(kPidfdGetfd, -1, -1, 0) == -1 && errno == EPERM;
}

}  // namespace

TEST(Pods, AChunkGoesFromHandToHand) {
  covers("PODS-01");
  needs(gpus(1), vmm_fd);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    const Chunk chunk = Chunk::create(granule());
    const Mapping mapping(chunk, granule());
    mapping.fill(pattern("exporter"));
    me.send_descriptor("to the broker", chunk.descriptor().get());
  });

  scenario.role("broker", hands_on("end of exporter"));

  scenario.role("first importer", [](Role& me) {
    const Descriptor descriptor =
        receive_as_another_number(me, "to the first importer");
    {
      const Mapping mapping(Chunk::import(descriptor), granule());
      EXPECT_READS(mapping, pattern("exporter"));
      mapping.fill(pattern("first importer"));
      CALL(cudaDeviceSynchronize());
    }
    me.send_descriptor("to the second importer", descriptor.get());
  });

  // Now no other process has the memory.
  scenario.role("second importer", [](Role& me) {
    me.wait_for_end("broker");
    me.wait_for_end("first importer");
    const Descriptor descriptor =
        receive_as_another_number(me, "to the second importer");
    const Mapping mapping(Chunk::import(descriptor), granule());
    EXPECT_READS(mapping, pattern("first importer"));
    mapping.fill(pattern("second importer"));
    EXPECT_READS(Mapping(Chunk::import(descriptor), granule()),
                 pattern("second importer"));
  });
  scenario.run(30s);
}

// Imports a pool and an allocation of it, and writes the allocation.
static void use_pool(Role& me, const Descriptor& descriptor,
                     const std::string& finds) {
  const Pool pool(descriptor);
  AsyncBuffer memory(
      pool, me.receive<cudaMemPoolPtrExportData>("pointer for " + me.name()),
      kBytes);
  EXPECT_READS(memory, pattern(finds));
  memory.fill(pattern(me.name()));
  CALL(cudaDeviceSynchronize());
  memory.free();
}

TEST(Pods, APoolGoesFromHandToHand) {
  covers("PODS-02");
  needs(gpus(1), pool_fd);
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    const Pool pool(shareable());
    me.send_descriptor("to the broker", pool.exported().get());
    me.signal("closed");
    const AsyncBuffer memory(pool, kBytes);
    memory.fill(pattern("exporter"));
    CALL(cudaDeviceSynchronize());
    me.send("pointer for first importer", memory.exported());
    me.wait_for_end("first importer");
    me.send("pointer for second importer", memory.exported());
    me.wait_for_end("second importer");
    EXPECT_READS(memory, pattern("second importer"));
  });

  scenario.role("broker", hands_on("closed"));

  scenario.role("first importer", [](Role& me) {
    const Descriptor descriptor =
        receive_as_another_number(me, "to the first importer");
    use_pool(me, descriptor, "exporter");
    me.send_descriptor("to the second importer", descriptor.get());
  });

  scenario.role("second importer", [](Role& me) {
    const Descriptor descriptor =
        receive_as_another_number(me, "to the second importer");
    use_pool(me, descriptor, "first importer");
  });
  scenario.run(30s);
}

// An exporter that lends two chunks and gives both up. Nobody takes the first.
static void watches_its_broker(Role& me) {
  Chunk chunks[] = {Chunk::create(kWatched), Chunk::create(kWatched)};
  for (Chunk& chunk : chunks) {
    Mapping mapping(chunk, kWatched);
    Words(mapping.data, granule()).fill(pattern("exporter"));
    CALL(cudaDeviceSynchronize());
    mapping.unmap();
  }
  me.send_descriptor("not taken", chunks[0].descriptor().get());
  me.send_descriptor("taken", chunks[1].descriptor().get());
  me.wait("mapped");
  const size_t free = free_memory();
  for (Chunk& chunk : chunks) chunk.release();
  EXPECT_LT(free_memory(), free + kWatched / 2) << "the broker has it";
  me.signal("given up");
  me.wait_for_end("broker");
  EXPECT_TRUE(returned(free, kWatched)) << "only the broker had it";
  me.signal("returned");
  me.wait_for_end("importer");
  EXPECT_TRUE(returned(free + kWatched, kWatched)) << "the importer has ended";
}

TEST(Pods, WhatOnlyABrokerHoldsEndsWithIt) {
  covers("PODS-03");
  needs(gpus(1), vmm_fd, alone);
  Scenario scenario;

  scenario.role("exporter", watches_its_broker);

  scenario.role("broker", [](Role& me) {
    const Descriptor not_taken = me.receive_descriptor("not taken");
    me.send_descriptor("to the importer", me.receive_descriptor("taken").get());
    me.wait("given up");
    me.die(SIGKILL);
  });

  scenario.role("importer", [](Role& me) {
    const Mapping mapping(
        Chunk::import(me.receive_descriptor("to the importer")), kWatched);
    const Words words(mapping.data, granule());
    EXPECT_READS(words, pattern("exporter"));
    me.signal("mapped");
    me.wait("returned");
    EXPECT_READS(words, pattern("exporter"));
    words.fill(pattern("importer"));
    EXPECT_READS(words, pattern("importer"));
  });
  scenario.run(60s);
}

// Tries to import in a process that is set apart.
static void try_import(Role& me, const std::string& how) {
  const Descriptor descriptor = me.receive_descriptor("for the " + me.name());
  CALL(cudaFree(nullptr));
  Sentinel<CUmemGenericAllocationHandle> imported;
  const CUresult code = NOTED(DRIVER(cuMemImportFromShareableHandle)(
      imported.out(), by_value(descriptor.get()),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  me.observe(how + ": cuMemImportFromShareableHandle gives " + name_of(code));
  if (code == CUDA_SUCCESS) {
    const Mapping mapping(Chunk(imported.result()), granule());
    EXPECT_READS(mapping, pattern("exporter"));
    mapping.fill(pattern(me.name()));
    CALL(cudaDeviceSynchronize());
    me.send("imported by the " + me.name(), true);
  } else {
    me.send("imported by the " + me.name(), false);
  }
  EXPECT_TRUE(context_is_usable());
}

TEST(Pods, HowFarApartAnImporterMayBe) {
  covers("PODS-04");
  needs(gpus(1), vmm_fd, namespaces);
  struct Apart {
    std::string importer;  // the role
    std::string how;       // for the report
    int kinds;             // the namespaces of its own
    bool filtered;         // without pidfd_getfd
  };
  const std::vector<Apart> all = {
      {"filtered importer", "without pidfd_getfd", 0, true},
      {"importer without a network", "in a network namespace of its own",
       CLONE_NEWNET, false},
      {"importer of a user namespace", "in a user namespace of its own",
       CLONE_NEWUSER, false},
      {"importer in a pod", "in five namespaces of its own, no pidfd_getfd",
       kEachOfItsOwn, true}};
  Scenario scenario;

  scenario.role("exporter", [&all](Role& me) {
    const Chunk chunk = Chunk::create(granule());
    const Mapping mapping(chunk, granule());
    for (const Apart& apart : all) {
      SCOPED_TRACE(apart.how);
      mapping.fill(pattern("exporter"));
      CALL(cudaDeviceSynchronize());
      me.send_descriptor("for the " + apart.importer, chunk.descriptor().get());
      const bool imported =
          me.receive<bool>("imported by the " + apart.importer);
      EXPECT_READS(mapping, pattern(imported ? apart.importer : "exporter"));
    }
  });

  for (const Apart& apart : all)
    scenario.role(apart.importer, [&apart](Role& me) {
      const auto refused =
          apart.kinds == 0 ? std::nullopt : enter_namespaces(apart.kinds);
      if (refused) {
        me.observe(apart.how + ": this machine refuses it, " + *refused);
        me.receive_descriptor("for the " + me.name());
        return me.send("imported by the " + me.name(), false);
      }
      if (apart.filtered && !forbid_pidfd_getfd())
        me.broken("the system allows no filter of system calls");
      SCOPED_TRACE(apart.how);
      try_import(me, apart.how);
    });
  scenario.run(60s);
}
