// SPDX-License-Identifier: Apache-2.0
// This program runs the model's own tests. A test starts the program again as
// its peer.
#include <gtest/gtest.h>

#include "peer.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  ipclab::model::test::run_role(argc, argv);
  return RUN_ALL_TESTS();
}
