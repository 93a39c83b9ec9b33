// The roles of lesson 35 are two processes of one node, as in other
// lessons. With -DUSE_MPI the roles are the two ranks that mpirun has
// started, and class Channel uses MPI. Every wait has a deadline. If
// one rank fails, the other rank ends, too.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#ifndef USE_MPI
#include "../common/roles.h"
#else
#include <mpi.h>

#include <csignal>

#include "../common/require.h"

// The scope of a Deadline object has 20 s for its MPI calls. After 20 s
// this rank prints the name of the step, and ends. Then mpirun ends the
// other rank.
class Deadline {
 public:
  explicit Deadline(const char* step) {
    std::snprintf(line_, sizeof line_,
                  "[%s %d] step '%s': still waiting after 20 s\n",
                  role_name(), static_cast<int>(getpid()), step);
    std::signal(SIGALRM, [](int) {
      [[maybe_unused]] const ssize_t written =
          write(STDERR_FILENO, line_, std::strlen(line_));
      _exit(EXIT_FAILURE);
    });
    alarm(20);
  }
  ~Deadline() { alarm(0); }

 private:
  inline static char line_[128];
};

// A step is a message between the ranks; MPI keeps the steps in order.
class Channel {
 public:
  void signal(const char* step) { send(step, '!'); }

  void wait(const char* step) { receive<char>(step); }

  template <class T>
  void send(const char* step, const T& value) {
    const Deadline deadline(step);
    MPI_Send(&value, sizeof value, MPI_BYTE, other(), 0,
             MPI_COMM_WORLD);
  }

  template <class T>
  T receive(const char* step) {
    const Deadline deadline(step);
    T value;
    MPI_Recv(&value, sizeof value, MPI_BYTE, other(), 0, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
    return value;
  }

 private:
  static int other() {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return 1 - rank;
  }
};

// Each rank calls this function once, and says whether its node has
// what the lesson needs. Returns true if both nodes have everything.
inline bool have_met = false;
inline bool meet(int ready) {
  const Deadline deadline("meet");
  have_met = true;
  MPI_Allreduce(MPI_IN_PLACE, &ready, 1, MPI_INT, MPI_MIN,
                MPI_COMM_WORLD);
  return ready;
}

// Runs when this rank calls exit, so the other rank notices the end of
// this rank.
inline void leave(int code, void*) {
  std::fflush(stdout);
  if (code != EXIT_SUCCESS && code != kSkipped)
    MPI_Abort(MPI_COMM_WORLD, code);
  if (!have_met) meet(false);
  const Deadline deadline("end");
  MPI_Finalize();
}

inline bool is_child(int argc, char** argv) {
  // stderr prints whole lines: mpirun mixes what the ranks print.
  std::setvbuf(stderr, nullptr, _IOLBF, BUFSIZ);
  role_name() = "rank";
  const Deadline deadline("start");
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks != 2 || argc != 1) {
    if (rank == 0)
      std::fprintf(stderr, "two ranks, no arguments: mpirun -n 2 %s\n",
                   argv[0]);
    MPI_Finalize();
    std::exit(2);
  }
  role_name() = rank == 0 ? "exporter" : "importer";
  on_exit(leave, nullptr);
  return rank == 1;
}

inline Channel channel_from_parent(char**) {
  if (!meet(true)) {
    say("skips: the other rank says what its node lacks");
    std::exit(kSkipped);
  }
  return {};
}

struct Child {
  Channel channel;

  // Returns the exporter's code. A failed importer ends the exporter.
  int finish(int mine) { return mine; }
};

// mpirun has started the importer.
inline Child start_again(char** argv) {
  return {channel_from_parent(argv)};
}
#endif
