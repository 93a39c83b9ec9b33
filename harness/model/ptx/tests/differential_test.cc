// SPDX-License-Identifier: Apache-2.0
// Compares the same functions on the interpreter and on the host, on random
// inputs. IPCLAB_SEED is the seed of the inputs.
#include "differential.h"

#include <random>

#include "evaluate.h"

namespace {

using namespace ipclab::ptx;
using namespace ipclab::ptx::testing;

constexpr int kCount = 20000;

class Differential : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const char* seed = std::getenv("IPCLAB_SEED");
    random_.seed(seed != nullptr ? std::strtoul(seed, nullptr, 0) : 1);
    module_ = Module::parse(read_file(std::string(IPCLAB_PTX_FILES) +
                                      "/differential_" +
                                      std::to_string(GetParam()) + ".ptx"));
    device_.load(*module_);
  }

  /// Random bits. A random number of the upper bits is 0.
  uint64_t number() { return random_() >> (random_() % 64); }

  /// The results of a kernel for all inputs.
  template <class T>
  std::vector<T> run(const char* name, const std::vector<T>& a,
                     const std::vector<T>& b) {
    const uint64_t out = device_.upload(std::vector<T>(kCount * kResults));
    const auto fault = launch(
        device_, module_->kernel(name), Shape{(kCount + 95) / 96}, Shape{96}, 0,
        60, false, device_.upload(a), device_.upload(b), out, kCount);
    EXPECT_FALSE(fault) << fault->what;
    return device_.download<T>(out, kCount * kResults);
  }

  std::mt19937_64 random_;
  std::unique_ptr<Module> module_;
  Device device_;
};

INSTANTIATE_TEST_SUITE_P(Architectures, Differential,
                         ::testing::Values(75, 90, 100), [](const auto& info) {
                           return "sm_" + std::to_string(info.param);
                         });

TEST_P(Differential, Integers) {
  std::vector<uint64_t> a(kCount), b(kCount);
  for (uint64_t& v : a) v = number();
  for (uint64_t& v : b) v = number();
  const auto got = run("run_integers", a, b);
  for (int k = 0; k < kCount; ++k) {
    uint64_t expected[kResults];
    integers(a[k], b[k], expected);
    for (int r = 0; r < kResults; ++r)
      ASSERT_EQ(got[k * kResults + r], expected[r])
          << "result " << r << " of " << a[k] << ", " << b[k];
  }
}

TEST_P(Differential, Floats) {
  std::vector<double> a(kCount), b(kCount);
  std::uniform_real_distribution<double> small(-1000, 1000), exponent(-30, 30);
  for (double& v : a) v = small(random_) * std::exp2(exponent(random_));
  for (double& v : b) v = small(random_);
  const auto got = run("run_floats", a, b);
  for (int k = 0; k < kCount; ++k) {
    double expected[kResults];
    floats(a[k], b[k], static_cast<float>(b[k]), static_cast<float>(a[k]),
           expected);
    for (int r = 0; r < kResults; ++r)
      ASSERT_TRUE(same(got[k * kResults + r], expected[r]))
          << "result " << r << " of " << a[k] << ", " << b[k] << ": "
          << got[k * kResults + r] << " not " << expected[r];
  }
}

}  // namespace
