// Processes that share only the path of a socket lend each other
// memory and events; a server outlives clients that leave or are killed.
// Mirror of samples/75_unrelated_processes.
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "harness/scenario/leaks.h"
#include "harness/scenario/pool.h"
#include "harness/scenario/vmm.h"
#include "samples/common/named_socket.h"

using namespace ipclab;

namespace {

constexpr int kClients = 6;
constexpr size_t kBytes = 2 << 20;
constexpr size_t kLarge = 256 << 20;  // far above other changes

struct Offer {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
  size_t bytes;  // of the chunk whose descriptor comes with it
};

// In the folder that the runner removes: a killed server leaves its socket.
std::string path_of_this_process() {
  return std::filesystem::temp_directory_path() /
         ("ipclab." + std::to_string(getpid()));
}

Descriptor connection_of(int listener, Role& me) {
  const bool comes = ::wait_for(listener, POLLIN, 20s);
  const int end = comes ? accept_from(listener) : -1;
  if (end == -1) me.broken("nobody of this user connects to the named socket");
  return Descriptor(end);
}

void send_offer(const Descriptor& connection, const Offer& offer,
                const Descriptor& chunk, Role& me) {
  if (send_packet(connection.get(), &offer, sizeof offer, chunk.get()) !=
      sizeof offer)
    me.broken("a packet cannot be sent through the named socket");
}

Offer receive_offer(const Descriptor& connection, Descriptor* chunk, Role& me) {
  Offer offer{};
  int number = -1;
  if (!::wait_for(connection.get(), POLLIN, 50s) ||
      receive_packet(connection.get(), &offer, sizeof offer, &number) !=
          sizeof offer ||
      number == -1)
    me.broken("no handles came over the named socket");
  *chunk = Descriptor(number);
  return offer;
}

// Waits until the process at the other end has closed the connection or has
// ended. Returns false if this does not happen within 20 s.
bool hangs_up(const Descriptor& connection) {
  char byte = 0;
  return ::wait_for(connection.get(), POLLIN, 20s) &&
         recv(connection.get(), &byte, 1, MSG_DONTWAIT) <= 0;
}

}  // namespace

// Goes on in a child of this process, which has not used CUDA. The child is no
// child of the other roles' parent, and is in a session of its own. This
// process ends as the child ends; if the referee ends it at the deadline, the
// child ends, too.
static void go_on_as_a_stranger(Role& me) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || setsid() == -1)
      me.broken("the process cannot begin a session");
    return;
  }
  if (child == -1) me.broken("the process cannot have a child");
  int status = 0;
  while (waitpid(child, &status, 0) == -1 && errno == EINTR) {
  }
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

// An exporter that offers memory, an event and a chunk at a path.
static void offers_memory_and_an_event(Role& me) {
  const DeviceBuffer memory(kBytes);
  const SharedEvent event;
  const size_t bytes = granule();
  const Chunk chunk = Chunk::create(bytes);
  const Mapping mapping(chunk, bytes);
  mapping.fill(pattern("exporter's chunk"));
  memory.fill(pattern("old"));
  WrongWords wrong;

  const std::string path = path_of_this_process();
  const Descriptor listener(listen_at(path.c_str()));
  me.send_bytes("path", path);
  const Descriptor connection = connection_of(listener.get(), me);

  Latch latch;
  const Stream stream;
  latch.hold(stream);
  memory.queue_fill(pattern("exporter's memory"), stream);
  CALL(cudaEventRecord(event, stream));
  send_offer(connection, {memory.legacy_handle(), event.handle(), bytes},
             chunk.descriptor(), me);
  me.wait("importer waits");
  latch.release();

  // Now the importer records the event, and a stream of this process waits.
  me.wait("importer records");
  const Stream waits;
  CALL(cudaStreamWaitEvent(waits, event, 0));
  wrong.queue_count(memory, pattern("importer's memory"), waits);
  EXPECT_TRUE(is_held(waits));
  me.signal("exporter waits");
  EXPECT_TRUE(passes(waits));
  EXPECT_EQ(wrong.so_far(), 0u);

  EXPECT_TRUE(hangs_up(connection));
  EXPECT_TRUE(kernel_reads(memory, pattern("importer's memory")));
  EXPECT_TRUE(copy_reads(mapping, pattern("importer's chunk")));
}

TEST(UnrelatedProcesses, APathIsEnough) {
  covers("SERV-01");
  needs(gpus(1), legacy_memory, legacy_events, vmm_fd);
  Scenario scenario;

  scenario.role("exporter", offers_memory_and_an_event);

  scenario.role("importer", [](Role& me) {
    go_on_as_a_stranger(me);
    const Descriptor connection(connect_to(me.receive_bytes("path").c_str()));
    CALL(cudaFree(nullptr));
    Descriptor exported;
    const Offer offer = receive_offer(connection, &exported, me);
    LegacyMapping memory(offer.memory, kBytes);
    SharedEvent event(offer.event);
    const Chunk chunk = Chunk::import(exported);
    const Mapping mapping(chunk, offer.bytes);
    WrongWords wrong;
    const Stream stream;
    CALL(cudaStreamWaitEvent(stream, event, 0));
    wrong.queue_count(memory, pattern("exporter's memory"), stream);
    EXPECT_TRUE(is_held(stream));
    me.signal("importer waits");

    EXPECT_TRUE(passes(stream));
    EXPECT_EQ(wrong.so_far(), 0u);
    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter's chunk")));
    mapping.fill(pattern("importer's chunk"));
    Latch latch;
    latch.hold(stream);
    memory.queue_fill(pattern("importer's memory"), stream);
    CALL(cudaEventRecord(event, stream));
    me.signal("importer records");
    me.wait("exporter waits");
    latch.release();
    EXPECT_TRUE(passes(stream));
    event.destroy();
    memory.close();
  });

  scenario.run(30s);
}

// A server that continues when clients leave or die, and serves one more
// client.
static void serves_clients_and_a_latecomer(Role& me) {
  DeviceBuffer whole(kLarge, DeviceBuffer::Fresh::kUnwritten);
  const Words input(whole.data, kBytes);
  input.fill(pattern("input"));
  EXPECT_READS(input, pattern("input"));
  const size_t before = free_memory();  // no client uses CUDA yet
  const size_t descriptors = open_descriptors().size();
  const std::string path = path_of_this_process();
  const Descriptor listener(listen_at(path.c_str()));
  for (int i = 0; i < kClients; ++i) me.send_bytes("path", path);

  struct Client {
    Descriptor connection;
    Chunk chunk;
    std::unique_ptr<Mapping> answer;
  };
  std::vector<Client> clients;
  for (int i = 0; i < kClients; ++i) {
    Client client{connection_of(listener.get(), me), Chunk::create(kLarge),
                  nullptr};
    client.answer = std::make_unique<Mapping>(client.chunk, kLarge);
    Words(client.answer->data, kBytes).fill(pattern("poison"));
    send_offer(client.connection, {whole.legacy_handle(), {}, kLarge},
               client.chunk.descriptor(), me);
    clients.push_back(std::move(client));
  }
  me.wait("answered", kClients);
  me.signal("die or leave");

  for (Client& client : clients) {
    EXPECT_TRUE(hangs_up(client.connection));
    EXPECT_TRUE(
        copy_reads(Words(client.answer->data, kBytes), pattern("answer")));
    EXPECT_TRUE(kernel_reads(input, pattern("input")));
    client.answer->unmap();
    client.chunk.release();
  }
  for (int i = 0; i < kClients; ++i)
    me.wait_for_end("client " + std::to_string(i));
  EXPECT_TRUE(returned(before - kLarge, kLarge)) << "what a client was sent";
  clients.clear();
  EXPECT_LT(open_descriptors().size(), descriptors + kClients)
      << "a descriptor is left for each client";

  me.send_bytes("path again", path);
  const Descriptor connection = connection_of(listener.get(), me);
  const Chunk chunk = Chunk::create(kLarge);
  send_offer(connection, {whole.legacy_handle(), {}, kLarge},
             chunk.descriptor(), me);
  EXPECT_TRUE(hangs_up(connection));
  if (me.receive<bool>("served"))
    EXPECT_TRUE(kernel_reads(input, pattern("late")));
  me.wait_for_end("latecomer");  // its context's memory is free again
  // Clients that ended had it open: no sentence says what this free gives.
  const size_t held = free_memory();
  observe_code(me, "the free of what dead clients had open",
               NOTED(cudaFree(std::exchange(whole.data, nullptr))));
  me.observe(returned(held, kLarge) ? "its memory is free again"
                                    : "its memory is not free again");
  EXPECT_TRUE(context_is_usable());
}

// The GPU that a client uses: the last GPU if it is a peer of the first, else
// GPU 0.
static int last_peer() {
  int gpus = 0, reaches = 0;
  CALL(cudaGetDeviceCount(&gpus));
  if (gpus > 1) CALL(cudaDeviceCanAccessPeer(&reaches, gpus - 1, 0));
  return reaches != 0 ? gpus - 1 : 0;
}

// A client. Half of the clients are killed; one of these uses another GPU than
// the server. One client exits and gives nothing back; the others give all
// back.
static void is_served(Role& me) {
  const bool dies = me.name() == "client 1" || me.name() == "client 3" ||
                    me.name() == "client 5";
  const Descriptor connection(connect_to(me.receive_bytes("path").c_str()));
  const int gpu = me.name() == "client 3" ? last_peer() : 0;
  CALL(cudaSetDevice(gpu));
  CALL(cudaFree(nullptr));
  Descriptor exported;
  const Offer offer = receive_offer(connection, &exported, me);
  auto& input = abandoned<LegacyMapping>(offer.memory, kBytes);
  auto& chunk = abandoned<Chunk>(Chunk::import(exported));
  auto& mapping = abandoned<Mapping>(chunk, offer.bytes,
                                     CU_MEM_ACCESS_FLAGS_PROT_READWRITE, gpu);
  EXPECT_TRUE(kernel_reads(input, pattern("input")));
  Words(mapping.data, kBytes).fill(pattern("answer"));
  me.signal("answered");
  me.wait("die or leave");
  if (dies) me.die(SIGKILL);
  if (me.name() == "client 4") return;
  if (me.name() == "client 0") {
    for (const char* other : {"client 1", "client 3", "client 5"})
      me.wait_for_end(other);
    EXPECT_TRUE(copy_reads(input, pattern("input"))) << "after the deaths";
  }
  mapping.unmap();
  chunk.release();
  input.close();
}

TEST(UnrelatedProcesses, AServerGoesOnWithoutItsClients) {
  covers("SERV-02");
  needs(gpus(1), second_gpu, legacy_memory, vmm_fd, alone);
  Scenario scenario;

  scenario.role("exporter", serves_clients_and_a_latecomer);

  for (int i = 0; i < kClients; ++i) {
    auto& client = scenario.role("client " + std::to_string(i), is_served);
    if (i % 2 == 1) client.may_end_by(SIGKILL);
  }

  scenario.role("latecomer", [](Role& me) {
    const std::string path = me.receive_bytes("path again");
    const Descriptor connection(connect_to(path.c_str()));
    CALL(cudaFree(nullptr));
    Descriptor exported;
    const Offer offer = receive_offer(connection, &exported, me);
    void* opened = nullptr;
    const cudaError_t code = NOTED(cudaIpcOpenMemHandle(
        &opened, offer.memory, cudaIpcMemLazyEnablePeerAccess));
    observe_code(me, "a later client's open of what dead clients had open",
                 code);
    me.send("served", code == cudaSuccess);
    if (code != cudaSuccess) return;
    const Words input(opened, kBytes);
    EXPECT_TRUE(kernel_reads(input, pattern("input")));
    input.fill(pattern("late"));
    EXPECT_SUCCESS(cudaIpcCloseMemHandle(opened));
  });

  scenario.run(90s);
}
