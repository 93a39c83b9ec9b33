// The ranks of lesson 76. With -DUSE_MPI they are the ranks that mpirun
// has started on this node; otherwise two processes play the ranks.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "../common/roles.h"
#ifdef USE_MPI
#include <mpi.h>
#endif

/// This process as one of the ranks of its node.
class MpiRanks {
 public:
  /// Takes the arguments of main(). Without MPI, rank 0 starts rank 1.
  MpiRanks(int argc, char** argv);
  MpiRanks(const MpiRanks&) = delete;
  ~MpiRanks();

  int rank() const { return rank_; }  ///< from 0
  int size() const { return size_; }  ///< number of ranks

  /// Every rank passes a value and gets the values of all ranks, in the
  /// order of the ranks.
  template <class T>
  std::vector<T> all_gather(const T& mine);

  /// Returns after every rank has called this function.
  void barrier() { all_gather('.'); }

  /// Every rank prints its line, rank 0 first.
  void say_in_turn(const std::string& line) {
    for (int turn = 0; turn < size_; ++turn) {
      if (turn == rank_) say("%s", line.c_str());
      barrier();
    }
  }

  /// Returns the exit code of the program from the codes of all ranks.
  /// It is kSkipped if no rank has read memory of another rank. Every
  /// rank calls this.
  int finish(int code) {
    bool proved = false;
    for (const int one : all_gather(code)) {
      if (one == EXIT_FAILURE) return EXIT_FAILURE;
      proved |= one == EXIT_SUCCESS;
    }
    if (!proved && rank_ == 0)
      std::printf("SKIP: no rank can access the GPU of another rank\n");
    return proved ? EXIT_SUCCESS : kSkipped;
  }

 private:
  int rank_ = 0, size_ = 2;
  std::string name_;
#ifdef USE_MPI
  MPI_Comm node_ = MPI_COMM_NULL;
#else
  std::vector<Child> other_;      // in rank 0: rank 1
  std::vector<Channel> channel_;  // in rank 1: to rank 0
#endif
};

#ifdef USE_MPI

inline MpiRanks::MpiRanks(int argc, char** argv) {
  alarm(60);  // a rank that runs longer ends all ranks
  MPI_Init(&argc, &argv);
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0,
                      MPI_INFO_NULL, &node_);
  MPI_Comm_rank(node_, &rank_);
  MPI_Comm_size(node_, &size_);
  name_ = "rank " + std::to_string(rank_);
  role_name() = name_.c_str();
}

inline MpiRanks::~MpiRanks() {
  MPI_Comm_free(&node_);
  MPI_Finalize();
}

template <class T>
std::vector<T> MpiRanks::all_gather(const T& mine) {
  std::vector<char> bytes(size_ * sizeof(T));
  MPI_Allgather(&mine, sizeof(T), MPI_BYTE, bytes.data(), sizeof(T),
                MPI_BYTE, node_);
  std::vector<T> all(size_);
  for (int i = 0; i < size_; ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    all[i] = value;
  }
  return all;
}

#else

inline MpiRanks::MpiRanks(int argc, char** argv) {
  if (is_child(argc, argv)) {
    rank_ = 1;
    channel_.push_back(channel_from_parent(argv));
  } else {
    other_.push_back(start_again(argv));
  }
  name_ = "rank " + std::to_string(rank_);
  role_name() = name_.c_str();
}

inline MpiRanks::~MpiRanks() {
  for (Child& other : other_) other.wait(10s);
}

template <class T>
std::vector<T> MpiRanks::all_gather(const T& mine) {
  Channel& other = rank_ == 0 ? other_[0].channel : channel_[0];
  other.send("gather", mine);
  const T theirs = other.receive<T>("gather");
  return rank_ == 0 ? std::vector<T>{mine, theirs}
                    : std::vector<T>{theirs, mine};
}

#endif

//! [reverse]
/// Makes odd ranks see GPU 1 and GPU 0, in this order, as some job
/// scripts do. Changes nothing if the machine has one GPU or if
/// CUDA_VISIBLE_DEVICES is set.
inline void see_gpus_in_another_order(MpiRanks& ranks) {
  int devices = 0;  // only rank 0 calls CUDA before setenv()
  if (ranks.rank() == 0) CUDA_CHECK(cudaGetDeviceCount(&devices));
  devices = ranks.all_gather(devices)[0];
  if (ranks.rank() % 2 == 1 && devices > 1 &&
      std::getenv("CUDA_VISIBLE_DEVICES") == nullptr)
    setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
}
//! [reverse]
