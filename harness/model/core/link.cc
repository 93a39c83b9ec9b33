// SPDX-License-Identifier: Apache-2.0
// The linker of the driver API.
#include "core/link.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <utility>

#include "core/log.h"
#include "core/module.h"
#include "core/registry.h"

namespace ipclab::model {
namespace {

Registry<CUlinkState_st>& states() {
  static auto& registry = *new Registry<CUlinkState_st>;
  return registry;
}

void write(const char* message, char* buffer, size_t size) {
  if (buffer != nullptr && size > 0) std::snprintf(buffer, size, "%s", message);
}

}  // namespace

CUresult link_create(const LinkLog& log, CUlinkState* state) {
  auto made = std::make_shared<CUlinkState_st>();
  made->log = log;
  write("", log.information, log.information_size);
  write("", log.errors, log.errors_size);
  *state = states().add(std::move(made));
  return CUDA_SUCCESS;
}

CUresult link_add(CUlinkState handle, const void* image) {
  const std::shared_ptr<CUlinkState_st> state = states().find(handle);
  if (state == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  CUresult refusal = CUDA_ERROR_NO_BINARY_FOR_GPU;
  try {
    const std::string ptx = joined_ptx(image);
    refusal = CUDA_ERROR_INVALID_PTX;
    ptx::Module::parse(ptx);
    state->ptx += ptx;
    return CUDA_SUCCESS;
  } catch (const std::exception& error) {
    say(error.what());
    write(error.what(), state->log.errors, state->log.errors_size);
    return refusal;
  }
}

CUresult link_complete(CUlinkState handle, void** image, size_t* size) {
  const std::shared_ptr<CUlinkState_st> state = states().find(handle);
  if (state == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *image = state->ptx.data();
  if (size != nullptr) *size = state->ptx.size() + 1;  // with the final 0
  return CUDA_SUCCESS;
}

CUresult link_destroy(CUlinkState state) {
  return states().remove(state) != nullptr ? CUDA_SUCCESS
                                           : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace ipclab::model
