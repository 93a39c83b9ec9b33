// SPDX-License-Identifier: Apache-2.0
// Checkpoints of processes. Quoted sentences are those of cuCheckpointProcess*
// in the Driver API reference.
#include "core/checkpoint.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

#include "core/capacity.h"
#include "core/choice.h"
#include "core/device.h"
#include "core/handle.h"
#include "core/machine.h"
#include "core/shared_file.h"
#include "core/stream.h"

namespace ipclab::model {
namespace {

constexpr std::chrono::seconds kSilence{5};
constexpr int kTickMs = 1, kFullTickMs = 100;

struct Question {
  CheckpointRequest request;
  uint32_t argument;
};

struct Answer {
  CUresult code;
  int value = 0;
};

struct Gate {
  std::mutex mutex;
  std::condition_variable opened;
};

Gate& gate() {
  static auto& only = *new Gate;
  return only;
}

void set_locked(bool locked) {
  {
    const std::lock_guard lock(gate().mutex);
    process_is_locked = locked;
  }
  if (!locked) gate().opened.notify_all();
}

// ---- the socket of a process

// An address without a file: it begins with a zero byte.
socklen_t address_of(int pid, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const int length =
      std::snprintf(address->sun_path + 1, sizeof address->sun_path - 1,
                    "ipclab-model-checkpoint-%016llx-%llx-%d",
                    static_cast<unsigned long long>(machine_id()),
                    static_cast<unsigned long long>(process_namespace()), pid);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                static_cast<size_t>(length));
}

bool is_allowed(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == getuid() || peer.uid == 0);
}

// ---- what the restore thread does

bool all_work_is_done() {
  std::vector<CUcontext> active;
  {
    const Locked machine;
    for (const auto& context : machine->contexts) {
      if (context->active) active.push_back(context.get());
    }
  }
  for (CUcontext context : active) {
    for (const std::shared_ptr<Stream>& stream : streams_of(context)) {
      if (!stream->idle()) return false;
    }
  }
  return true;
}

// Waits for all submitted work; false if the time is over, or if the process
// that asks has ended. Without a timeout (0) it waits as long as that takes.
bool finish_work(uint32_t timeout_ms, int asker) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!all_work_is_done()) {
    if (timeout_ms != 0 && std::chrono::steady_clock::now() >= until) {
      return false;
    }
    pollfd gone{asker, POLLRDHUP, 0};
    if (poll(&gone, 1, kTickMs) > 0) return false;
  }
  return true;
}

// "If timeoutMs is specified and the timeout is reached the process will be
// left in the RUNNING state upon return."
CUresult lock(CUprocessState* state, uint32_t timeout_ms, int asker) {
  if (*state != CU_PROCESS_STATE_RUNNING) return CUDA_ERROR_ILLEGAL_STATE;
  set_locked(true);
  if (!finish_work(timeout_ms, asker)) {
    set_locked(false);
    return CUDA_ERROR_NOT_READY;
  }
  *state = CU_PROCESS_STATE_LOCKED;
  return CUDA_SUCCESS;
}

// "The GPU memory contents will be brought into host memory and all underlying
// references will be released." The bytes of the model are in host memory
// already, so only their count ends.
CUresult checkpoint(CUprocessState* state, int asker) {
  if (*state != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
  if (shares_memory() && !chosen(Choice::kCheckpointsShared) &&
      !chosen(Choice::kRestoresNoImports)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  // A call that was inside the driver before the lock may have given work.
  if (!finish_work(0, asker)) return CUDA_ERROR_NOT_SUPPORTED;
  stop_counting();
  *state = CU_PROCESS_STATE_CHECKPOINTED;
  return CUDA_SUCCESS;
}

// "If an array of GPU UUID pairs is specified, it must contain every
// checkpointed GPU."
CUresult restore(CUprocessState* state, uint32_t gpus) {
  if (*state != CU_PROCESS_STATE_CHECKPOINTED) return CUDA_ERROR_ILLEGAL_STATE;
  if (has_imports() && chosen(Choice::kRestoresNoImports)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  for (const Device& device : devices()) {
    const bool listed = gpus == 0 || (gpus >> device.gpu & 1) != 0;
    if (!listed && device.primary->active) return CUDA_ERROR_INVALID_VALUE;
  }
  if (!count_again(total_bytes(0))) return CUDA_ERROR_OUT_OF_MEMORY;
  *state = CU_PROCESS_STATE_LOCKED;
  return CUDA_SUCCESS;
}

CUresult unlock(CUprocessState* state) {
  if (*state != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
  *state = CU_PROCESS_STATE_RUNNING;
  set_locked(false);
  return CUDA_SUCCESS;
}

Answer answer_to(const Question& question, CUprocessState* state, int asker) {
  switch (question.request) {
    case CheckpointRequest::kState:
      return {CUDA_SUCCESS, *state};
    case CheckpointRequest::kThread:
      return {CUDA_SUCCESS, static_cast<int>(syscall(SYS_gettid))};
    case CheckpointRequest::kLock:
      return {lock(state, question.argument, asker)};
    case CheckpointRequest::kCheckpoint:
      return {checkpoint(state, asker)};
    case CheckpointRequest::kRestore:
      return {restore(state, question.argument)};
    case CheckpointRequest::kUnlock:
      return {unlock(state)};
  }
  return {CUDA_ERROR_INVALID_VALUE};
}

void serve(int listener) {
  CUprocessState state = CU_PROCESS_STATE_RUNNING;
  for (;;) {
    const int asker = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (asker < 0) {  // no descriptor is left: the next try may find one
      if (errno != EINTR) poll(nullptr, 0, kFullTickMs);
      continue;
    }
    const timeval limit{kSilence.count(), 0};
    setsockopt(asker, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    Question question;
    if (is_allowed(asker) &&
        recv(asker, &question, sizeof question, 0) == sizeof question) {
      const Answer answer = answer_to(question, &state, asker);
      send(asker, &answer, sizeof answer, MSG_NOSIGNAL);
    }
    close(asker);
  }
}

int listening = -1;

}  // namespace

std::atomic<bool> process_is_locked{false};

void wait_for_unlock() {
  std::unique_lock lock(gate().mutex);
  gate().opened.wait(lock, [] { return !process_is_locked; });
}

void start_restore_thread() {
  listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t length = address_of(static_cast<int>(getpid()), &address);
  if (bind(listening, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listening, SOMAXCONN) != 0) {
    return;  // then nobody finds this process
  }
  std::thread(serve, listening).detach();
  // A child of fork has the socket, but no thread that answers.
  pthread_atfork(nullptr, nullptr, [] { close(listening); });
}

CUresult ask_process(int pid, CheckpointRequest request, uint32_t argument,
                     int* answer) {
  if (pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t length = address_of(pid, &address);
  const Question question{request, argument};
  Answer received{CUDA_ERROR_NOT_INITIALIZED};
  if (connect(connection, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
      send(connection, &question, sizeof question, MSG_NOSIGNAL) ==
          sizeof question &&
      recv(connection, &received, sizeof received, 0) != sizeof received) {
    received = {CUDA_ERROR_INVALID_VALUE};  // it has ended meanwhile
  }
  close(connection);
  if (received.code == CUDA_SUCCESS && answer != nullptr) {
    *answer = received.value;
  }
  return received.code;
}

}  // namespace ipclab::model
