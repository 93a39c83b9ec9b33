// Exercise 51: the attribute says yes.
//
// This machine can share events, but not memory, and there is one
// attribute for both. The program looks only at the attribute. Try the
// export instead. If CUDA refuses the export, send the values through
// the channel: this is slow, but it always works. The exercise fails
// now with the error code of the export, although the attribute is 1.
//
// SPDX-License-Identifier: Apache-2.0
#include "exercise.h"

constexpr int kCount = 1 << 12;
constexpr int kValue = 1000000;

struct Offer {
  bool shared;  // if false, the values follow
  cudaIpcMemHandle_t handle;
};

struct Values {
  unsigned value[kCount];
};

int exporter(Channel& channel) {
  void* data = allocate_values(kCount, kValue);
  int attribute = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&attribute,
                                    cudaDevAttrIpcEventSupport, 0));

  Offer offer{};
  offer.shared = attribute != 0;
  if (offer.shared) offer.handle = handle_of(data);
  channel.send("offer", offer);

  if (!offer.shared) {
    Values values;
    CUDA_CHECK(
        cudaMemcpy(&values, data, sizeof values, cudaMemcpyDefault));
    channel.send("values", values);
  }
  channel.wait("closed");
  CUDA_CHECK(cudaFree(data));

  return EXIT_SUCCESS;
}

int importer(Channel channel) {
  const auto offer = channel.receive<Offer>("offer");
  int wrong = 0;
  if (offer.shared) {
    void* data = open_memory(offer.handle);
    wrong = count_wrong(data, kCount, kValue);
    CUDA_CHECK(cudaIpcCloseMemHandle(data));
  } else {
    const auto values = channel.receive<Values>("values");
    wrong = count_wrong_on_host(&values, kCount, kValue);
  }
  say("has the values, %s: %d wrong",
      offer.shared ? "shared" : "copied", wrong);
  channel.signal("closed");

  return exit_code(wrong);
}

int main(int argc, char** argv) {
  if (is_child(argc, argv)) return importer(channel_from_parent(argv));
  require_gpus(1);

  Child child = start_again(argv);
  return child.finish(exporter(child.channel));
}
