// Lesson 75: a server lends memory to clients that it does not know.
//
//   exporter                            importers, at any time
//   cudaMalloc, write the common input
//   listen at a path    <- connect ---  connect
//   cuMemCreate: memory for this client
//             -- handle, descriptor ->  open and map them
//                                       read the input, write an answer
//   check the answer    <- answered --  unmap, close, end - or die
//   see the client's end, release its memory
//
// nvcc -cudart shared
//   samples/75_unrelated_processes/unrelated_processes.cu
//
// SPDX-License-Identifier: Apache-2.0

#include <atomic>
#include <thread>

#include "../common/data.h"
#include "../common/roles.h"
#include "../common/vmm.h"

constexpr int kCount = 1 << 19;
constexpr size_t kBytes = kCount * sizeof(int);  // 2 MiB: one granule
constexpr int kExporterValue = 1000000;
constexpr int kImporterValue = 2000000;

std::atomic<bool> stopped{false};  // asks the server to end

//! [client]
struct Client {
  int connection;
  Memory memory;
  void* data;
};

// Lends memory to the process at the other end.
Client welcome(int connection, const cudaIpcMemHandle_t& input) {
  say("meets a client [%d]", peer_of(connection).pid);
  Client client{connection, 0, nullptr};
  const CUmemAllocationProp wanted = shareable();
  CU_CHECK(DRIVER(cuMemCreate)(&client.memory, kBytes, &wanted, 0));
  client.data = map_memory(client.memory, kBytes);
  CUDA_CHECK(cudaMemset(client.data, kPoison, kBytes));
  CUDA_CHECK(cudaDeviceSynchronize());

  const int fd = export_memory(client.memory);
  // The result is not checked: a dead client is not an error here.
  send_packet(connection, &input, sizeof input, fd);
  SYS_CHECK(close(fd));
  return client;
}

// Checks new answers. Returns false if the client has left.
bool serve(const Client& client, int* wrong) {
  char word = 0;
  ssize_t got = 0;
  while ((got = recv(client.connection, &word, 1, MSG_DONTWAIT)) == 1) {
    *wrong += count_wrong(client.data, kCount, kImporterValue);
    say("checks the answer: %d wrong so far", *wrong);
  }
  if (got == -1 && errno == EAGAIN) return true;  // still connected
  unmap_memory(client.data, kBytes);
  CU_CHECK(DRIVER(cuMemRelease)(client.memory));
  SYS_CHECK(close(client.connection));
  say("sees a client go, releases its memory");
  return false;
}
//! [client]

//! [exporter]
int exporter(int listener) {
  void* data = allocate_values(kCount, kExporterValue);
  cudaIpcMemHandle_t input;
  CUDA_CHECK(cudaIpcGetMemHandle(&input, data));

  int wrong = 0;
  std::vector<Client> clients;
  while (!stopped || !clients.empty()) {
    std::vector<pollfd> asked{{stopped ? -1 : listener, POLLIN, 0}};
    for (const Client& client : clients) {
      if (stopped) shutdown(client.connection, SHUT_WR);
      asked.push_back({client.connection, POLLIN, 0});
    }
    if (poll(asked.data(), asked.size(), 200) <= 0) continue;

    for (size_t i = clients.size(); i > 0; --i)
      if (asked[i].revents != 0 && !serve(clients[i - 1], &wrong))
        clients.erase(clients.begin() + i - 1);
    const int newcomer = asked[0].revents ? accept_from(listener) : -1;
    if (newcomer != -1) clients.push_back(welcome(newcomer, input));
  }
  SYS_CHECK(close(listener));
  CUDA_CHECK(cudaFree(data));  // no client has it open any more
  say("stops");
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [exporter]

//! [importer]
int importer(int server, const std::string& end) {
  cudaIpcMemHandle_t input{};
  int fd = -1;
  SYS_CHECK(receive_packet(server, &input, sizeof input, &fd));
  void* data = nullptr;
  CUDA_CHECK(cudaIpcOpenMemHandle(&data, input,
                                  cudaIpcMemLazyEnablePeerAccess));
  Memory memory;
  CU_CHECK(import_memory(&memory, fd));
  SYS_CHECK(close(fd));
  void* answer = map_memory(memory, kBytes);
  const int wrong = count_wrong(data, kCount, kExporterValue);
  say("reads the input: %d wrong, writes its answer", wrong);
  write_values(answer, kCount, kImporterValue);
  CUDA_CHECK(cudaDeviceSynchronize());
  if (wrong == 0) send_packet(server, "a", 1, -1);
  if (end == "dies") raise(SIGKILL);

  // By hand, a client waits for Enter or for the server's end.
  pollfd ends[] = {{STDIN_FILENO, POLLIN, 0}, {server, POLLIN, 0}};
  while (end.empty() && poll(ends, 2, 1000) <= 0) continue;

  unmap_memory(answer, kBytes);
  CU_CHECK(DRIVER(cuMemRelease)(memory));
  CUDA_CHECK(cudaIpcCloseMemHandle(data));
  SYS_CHECK(close(server));  // last: now the server may free
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
//! [importer]

// Starts three clients one after the other. The second client dies.
void send_clients(char** argv, const std::string& path, bool* good) {
  for (const char* end : {"leaves", "dies", "leaves"}) {
    Child client = start(argv, {"--role", "importer", path, end});
    *good &= (client.wait(10s) == EXIT_SUCCESS) != (end[0] == 'd');
  }
  stopped = true;
}

int main(int argc, char** argv) {
  if (is_child(std::min(argc, 4), argv))  // argv[4]: how to end
    return importer(connect_to(argv[3]), argc > 4 ? argv[4] : "");

  require_gpus(1);
  require_legacy_ipc();
  require(
      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
      "memory as a descriptor");
  std::signal(SIGINT, [](int) { stopped = true; });
  if (by_hand(argc, argv)) return exporter(listen_at(argv[3]));

  const auto path = "/tmp/ipclab." + std::to_string(getpid());
  const int listener = listen_at(path.c_str());
  bool good = true;
  std::thread clients(send_clients, argv, path, &good);
  const int code = exporter(listener);
  clients.join();
  return good ? code : EXIT_FAILURE;
}
