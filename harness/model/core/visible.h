// SPDX-License-Identifier: Apache-2.0
// CUDA_VISIBLE_DEVICES: which GPUs of the profile the program sees, and in
// which order.
#pragma once

#include <cuda.h>

#include <string>
#include <vector>

namespace ipclab::model {

/// The GPUs that the program sees of `count` GPUs, in the order of
/// CUDA_VISIBLE_DEVICES; all GPUs if the variable is not set. Entries are
/// numbers or beginnings of "GPU-<uuid>". The list ends at the first entry that
/// names no GPU, or a GPU that the list already has (Programming Guide,
/// environment variables).
std::vector<int> visible_gpus(int count);

/// "GPU-xxxxxxxx-xxxx-…" as nvidia-smi prints it.
std::string uuid_text(const CUuuid& uuid);

}  // namespace ipclab::model
