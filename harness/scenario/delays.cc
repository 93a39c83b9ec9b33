// SPDX-License-Identifier: Apache-2.0
#include "delays.h"

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

namespace ipclab {
namespace {

using std::chrono::microseconds;

constexpr microseconds kLongest[] = {microseconds(0), microseconds(5'000),
                                     microseconds(40'000)};
// A loop of thousands of calls must still end before the test's deadline.
constexpr int kPausesOfAStep = 50;

class Delays {
 public:
  void before(Board::Kind kind) {
    if (kind != Board::kCall) begin_step();
    if (longest_ == microseconds(0) || left_ == 0 || draw(4) != 0) return;
    --left_;
    std::this_thread::sleep_for(microseconds(draw(longest_.count())));
  }

 private:
  // A number from 0 to `limit` - 1.
  long draw(long limit) {
    return std::uniform_int_distribution<long>(0, limit - 1)(random_);
  }

  void begin_step() {
    longest_ = kLongest[draw(3)];
    left_ = kPausesOfAStep;
  }

  std::mt19937 random_{std::random_device{}()};
  microseconds longest_ = kLongest[draw(3)];
  int left_ = kPausesOfAStep;
};

}  // namespace

void delay(Board::Kind kind) {
  static const bool wanted = std::getenv("IPCLAB_DELAYS") != nullptr;
  if (!wanted) return;
  thread_local Delays delays;
  delays.before(kind);
}

}  // namespace ipclab
