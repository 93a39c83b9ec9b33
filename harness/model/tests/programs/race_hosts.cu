// SPDX-License-Identifier: Apache-2.0
// Small programs for the race detector: `race_hosts WAY right` orders two
// processes by a message between their hosts; `race_hosts WAY wrong` sends the
// same message too early, so only luck orders them. harness/runner/tests/
// test_races.py has the table of ways.
#include <fcntl.h>
#include <linux/futex.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#define CHECK(call)                                                     \
  do {                                                                  \
    if (const cudaError_t error = (call); error != cudaSuccess) {       \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorName(error)); \
      std::exit(2);                                                     \
    }                                                                   \
  } while (false)
#define REQUIRE(condition)     \
  do {                         \
    if (!(condition)) {        \
      std::perror(#condition); \
      std::exit(3);            \
    }                          \
  } while (false)

namespace {

constexpr int kThreads = 64;

__global__ void write_all(int* data) { data[threadIdx.x] = 1; }
__global__ void read_all(const int* data, int* to) {
  to[threadIdx.x] = data[threadIdx.x];
}

/// What both processes inherit.
struct Ends {
  int control[2];  ///< a socket for the handle
  int way[2];      ///< a pipe
  int behind[2];   ///< the pipe after a relay
  int memory;      ///< a page that both may map
} ends;

std::atomic<int>* shared_word() {
  void* place =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ends.memory, 0);
  REQUIRE(place != MAP_FAILED);
  return static_cast<std::atomic<int>*>(place);
}

std::string path() { return "/proc/self/fd/" + std::to_string(ends.memory); }

// ---- the ways: the first process tells, the second one hears

void write_byte() { REQUIRE(write(ends.way[1], "x", 1) == 1); }
void read_byte() {
  char byte;
  REQUIRE(read(ends.way[0], &byte, 1) == 1);
}

void send_message() {
  char byte = 'x';
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  REQUIRE(sendmsg(ends.control[0], &message, 0) == 1);
}
void receive_message() {
  char byte;
  REQUIRE(recv(ends.control[1], &byte, 1, 0) == 1);
}

void print_line() {
  FILE* file = fdopen(ends.way[1], "w");
  std::fprintf(file, "go on\n");
  std::fflush(file);
}
void read_line() {
  char line[32];
  REQUIRE(std::fgets(line, sizeof line, fdopen(ends.way[0], "r")) != nullptr);
}

void wake() {
  std::atomic<int>* word = shared_word();
  *word = 1;
  syscall(SYS_futex, word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}
void wait_for_word() {
  std::atomic<int>* word = shared_word();
  while (*word == 0)
    syscall(SYS_futex, word, FUTEX_WAIT, 0, nullptr, nullptr, 0);
}

sem_t* semaphore(pid_t first) {
  const std::string name = "/ipclab-race-" + std::to_string(first);
  sem_t* made = sem_open(name.c_str(), O_CREAT, 0600, 0);
  REQUIRE(made != SEM_FAILED);
  return made;
}
void post() { REQUIRE(sem_post(semaphore(getpid())) == 0); }
void wait_for_post() {
  REQUIRE(sem_wait(semaphore(getppid())) == 0);
  sem_unlink(("/ipclab-race-" + std::to_string(getppid())).c_str());
}

void write_file() { REQUIRE(pwrite(ends.memory, "x", 1, 0) == 1); }
void look_at_file() {
  const int file = open(path().c_str(), O_RDONLY);
  char byte = 0;
  while (pread(file, &byte, 1, 0) != 1 || byte != 'x') usleep(1000);
  close(file);
}

void end_pipe() { close(ends.way[1]); }
void wait_for_end() {
  close(ends.way[1]);
  char byte;
  REQUIRE(read(ends.way[0], &byte, 1) == 0);
}

void read_behind_relay() {
  char byte;
  REQUIRE(read(ends.behind[0], &byte, 1) == 1);
}

struct Way {
  const char* name;
  void (*tell)();
  void (*hear)();
} const kWays[] = {
    {"pipe", write_byte, read_byte},
    {"socket", send_message, receive_message},
    {"line", print_line, read_line},
    {"futex", wake, wait_for_word},
    {"semaphore", post, wait_for_post},
    {"file", write_file, look_at_file},
    {"end", end_pipe, wait_for_end},
    {"relay", write_byte, read_behind_relay},
    {"start", [] {}, [] {}},
};

// ---- the processes

void put(const void* bytes, size_t size, int side) {
  REQUIRE(write(ends.control[side], bytes, size) == ssize_t(size));
}
void get(void* bytes, size_t size, int side) {
  REQUIRE(read(ends.control[side], bytes, size) == ssize_t(size));
}

int* new_data() {
  int* data = nullptr;
  CHECK(cudaMalloc(&data, kThreads * sizeof(int)));
  CHECK(cudaMemset(data, 0, kThreads * sizeof(int)));
  CHECK(cudaDeviceSynchronize());
  return data;
}

void act(bool writes, int* data) {
  if (writes)
    write_all<<<1, kThreads>>>(data);
  else
    read_all<<<1, kThreads>>>(data, new_data());
  CHECK(cudaDeviceSynchronize());
}

/// Luck: the other process is probably done by then.
void trust_in_luck() { usleep(50'000); }

int second(const Way* way, bool right) {
  if (way == nullptr || std::strcmp(way->name, "relay") == 0)
    close(ends.way[1]);
  cudaIpcMemHandle_t handle;
  get(&handle, sizeof handle, 1);
  void* opened = nullptr;
  CHECK(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
  if (way != nullptr) {
    put("r", 1, 1);
    way->hear();
    if (!right) trust_in_luck();
  }
  act(way == nullptr, static_cast<int*>(opened));
  if (way != nullptr) put("d", 1, 1);
  return 0;
}

pid_t start(char** argv, bool relay) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child != 0) return child;
  if (relay) {
    dup2(ends.way[0], STDIN_FILENO);
    dup2(ends.behind[1], STDOUT_FILENO);
    close(ends.way[1]);
    execlp("cat", "cat", nullptr);
  }
  std::string text;
  for (const int end :
       {ends.control[0], ends.control[1], ends.way[0], ends.way[1],
        ends.behind[0], ends.behind[1], ends.memory})
    text += std::to_string(end) + " ";
  execl("/proc/self/exe", argv[0], argv[1], argv[2], text.c_str(), nullptr);
  _exit(3);
}

void wait_for(pid_t child) {
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (status != 0) std::exit(4);
}

int first(char** argv, const Way* way, bool right) {
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.control) == 0);
  REQUIRE(pipe(ends.way) == 0 && pipe(ends.behind) == 0);
  REQUIRE((ends.memory = memfd_create("way", 0)) >= 0);
  REQUIRE(ftruncate(ends.memory, 4096) == 0);
  int* data = new_data();
  const bool early = way != nullptr && std::strcmp(way->name, "start") == 0;
  if (early && right) act(true, data);
  const bool relayed = way != nullptr && std::strcmp(way->name, "relay") == 0;
  const pid_t relay = relayed ? start(argv, true) : 0;
  const pid_t child = start(argv, false);
  cudaIpcMemHandle_t handle;
  CHECK(cudaIpcGetMemHandle(&handle, data));
  put(&handle, sizeof handle, 0);
  if (way == nullptr) {  // the child writes, and ends
    if (right)
      wait_for(child);
    else
      trust_in_luck();
    act(false, data);
    if (!right) wait_for(child);
    return 0;
  }
  char byte;
  get(&byte, 1, 0);
  if (!right) way->tell();
  if (!early || !right) act(true, data);
  if (right) way->tell();
  get(&byte, 1, 0);
  wait_for(child);
  close(ends.way[1]);
  if (relayed) wait_for(relay);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  alarm(120);  // the deadline of every wait, in each process
  const bool right = std::strcmp(argv[2], "right") == 0;
  const Way* way = nullptr;
  for (const Way& one : kWays)
    if (std::strcmp(argv[1], one.name) == 0) way = &one;
  if (way == nullptr && std::strcmp(argv[1], "exit") != 0) return 2;
  if (argc == 3) return first(argv, way, right);
  if (std::sscanf(argv[3], "%d %d %d %d %d %d %d", &ends.control[0],
                  &ends.control[1], &ends.way[0], &ends.way[1], &ends.behind[0],
                  &ends.behind[1], &ends.memory) != 7)
    return 2;
  return second(way, right);
}
