// This is the main() of an exercise with two roles, as in lesson 01.
// The linker takes it from the library if the exercise has no main().
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));

  require_gpus(1);
  require_legacy_ipc();

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
