// The ranks of lesson 72 are processes that do the same work. The user
// starts rank 0. Rank 0 starts the other ranks and forwards all
// messages between them.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "../common/roles.h"

/// What one rank knows about all ranks.
class Ranks {
 public:
  int rank;  ///< this process
  int size;  ///< the number of ranks

  /// For rank 0: starts the other ranks. `argv` comes from main().
  Ranks(char** argv, int ranks) : rank(0), size(ranks) {
    for (int i = 1; i < size; ++i) {
      others_.push_back(start_again(argv));
      others_.back().channel.send("place", Place{i, size});
    }
    name();
  }

  /// For any other rank. `parent` is its channel to rank 0.
  explicit Ranks(Channel parent) {
    const auto place = parent.receive<Place>("place");
    rank = place.rank;
    size = place.size;
    parent_.push_back(std::move(parent));
    name();
  }

  /// Returns the values of all ranks, in the order of the ranks. Every
  /// rank calls this. The call returns when all ranks have called it.
  template <class T>
  std::vector<T> gather(const T& mine) {
    std::vector<T> all{mine};
    if (rank == 0) {
      for (Child& other : others_)
        all.push_back(other.channel.receive<T>("value"));
      for (Child& other : others_)
        for (const T& value : all) other.channel.send("values", value);
    } else {
      parent_[0].send("value", mine);
      all.clear();
      for (int i = 0; i < size; ++i)
        all.push_back(parent_[0].receive<T>("values"));
    }
    return all;
  }

  /// Waits for the other ranks; each has 30 s to end. Returns `mine` if
  /// it is a failure, else the code of the first other rank that
  /// failed, else EXIT_SUCCESS.
  int finish(int mine) {
    for (Child& other : others_) {
      const int theirs = other.wait(30s);
      if (mine == EXIT_SUCCESS) mine = theirs;
    }
    return mine;
  }

 private:
  struct Place {
    int rank, size;
  };

  void name() {
    static char name[16];
    std::snprintf(name, sizeof name, "rank %d", rank);
    role_name() = name;
  }

  std::vector<Child> others_;    // empty if this is not rank 0
  std::vector<Channel> parent_;  // one channel; empty in rank 0
};
