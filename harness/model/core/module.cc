// SPDX-License-Identifier: Apache-2.0
// Modules and libraries.
#include "core/module.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "core/device.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/profile.h"
#include "core/registry.h"

namespace ipclab::model {
namespace {

Registry<CUmod_st>& modules() {
  static auto& registry = *new Registry<CUmod_st>;
  return registry;
}

Registry<CUfunc_st>& functions() {
  static auto& registry = *new Registry<CUfunc_st>;
  return registry;
}

Registry<CUlib_st>& libraries() {
  static auto& registry = *new Registry<CUlib_st>;
  return registry;
}

Registry<CUkern_st>& kernels() {
  static auto& registry = *new Registry<CUkern_st>;
  return registry;
}

CUresult read_image(const void* image, std::string* ptx) {
  try {
    *ptx = joined_ptx(image);
    return CUDA_SUCCESS;
  } catch (const std::exception& error) {
    say(error.what());
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
}

// True if the text has an entry of exactly this name.
bool declares_entry(const std::string& ptx, const std::string& name) {
  const std::string wanted = ".entry " + name;
  for (size_t at = ptx.find(wanted); at != std::string::npos;
       at = ptx.find(wanted, at + 1)) {
    const char next = ptx[at + wanted.size()];
    if (next == '(' || next == '\n' || next == ' ' || next == '{') return true;
  }
  return false;
}

CUresult place_variable(CUcontext context, ptx::Module::Variable* variable) {
  const uint64_t size = std::max<uint64_t>(variable->size, 1);
  uint64_t address = 0;
  const CUresult error =
      variable->managed
          ? host_allocate(context, size, Kind::kManaged, 0, &address)
          : memory_allocate(context, size, Kind::kVariable, &address);
  if (error == CUDA_SUCCESS) {
    std::memset(variable_bytes(address), 0, variable->size);
    variable->address = address;
  }
  return error;
}

CUresult load(CUcontext context, const std::string& ptx, CUmodule* module) {
  auto made = std::make_shared<CUmod_st>();
  made->context = context;
  try {
    made->code = ptx::Module::parse(ptx);
    for (ptx::Module::Variable& variable : made->code->variables()) {
      if (CUresult error = place_variable(context, &variable)) return error;
    }
    made->code->link();
  } catch (const std::exception& error) {
    say(error.what());
    return CUDA_ERROR_INVALID_PTX;
  }
  for (const ptx::Module::Variable& variable : made->code->variables()) {
    if (variable.initial.empty()) continue;
    std::memcpy(variable_bytes(variable.address), variable.initial.data(),
                variable.initial.size());
  }
  for (const auto& kernel : made->code->kernels()) {
    auto function = std::make_unique<CUfunc_st>();
    function->module = made.get();
    function->kernel = kernel.get();
    made->functions.push_back(std::move(function));
  }
  for (const auto& function : made->functions) {
    functions().add(std::shared_ptr<CUfunc_st>(made, function.get()));
  }
  *module = modules().add(std::move(made));
  return CUDA_SUCCESS;
}

// Makes the functions of a module unknown to later calls and frees its
// variables.
void withdraw(const CUmod_st& module) {
  for (const auto& function : module.functions) {
    functions().remove(function.get());
  }
  for (const ptx::Module::Variable& variable : module.code->variables()) {
    variable_free(variable.address);
  }
}

}  // namespace

std::string joined_ptx(const void* image) {
  std::string ptx;
  for (const std::string& unit :
       ptx::ptx_of_image(image, profile().capability.newest_ptx)) {
    ptx += unit.c_str();  // without the terminating zeros
    ptx += '\n';
  }
  return ptx;
}

CUresult module_load(CUcontext context, const void* image, CUmodule* module) {
  std::string ptx;
  if (CUresult error = read_image(image, &ptx)) return error;
  return load(context, ptx, module);
}

CUresult module_unload(CUmodule module) {
  const std::shared_ptr<CUmod_st> removed = modules().remove(module);
  if (removed == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  context_synchronize(removed->context);
  withdraw(*removed);
  return CUDA_SUCCESS;
}

std::shared_ptr<CUmod_st> find_module(CUmodule module) {
  return modules().find(module);
}

CUresult module_function(CUmodule module, const char* name,
                         CUfunction* function) {
  const std::shared_ptr<CUmod_st> found = modules().find(module);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto& candidate : found->functions) {
    if (candidate->kernel->name() != name) continue;
    *function = candidate.get();
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

CUresult module_global(CUmodule module, const char* name, uint64_t* address,
                       uint64_t* size) {
  const std::shared_ptr<CUmod_st> found = modules().find(module);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (const ptx::Module::Variable& variable : found->code->variables()) {
    if (variable.name != name) continue;
    if (address != nullptr) *address = variable.address;
    if (size != nullptr) *size = variable.size;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

CUresult library_load(const void* image, CUlibrary* library) {
  auto made = std::make_shared<CUlib_st>();
  if (CUresult error = read_image(image, &made->ptx)) return error;
  *library = libraries().add(std::move(made));
  return CUDA_SUCCESS;
}

CUresult library_unload(CUlibrary library) {
  const std::shared_ptr<CUlib_st> removed = libraries().remove(library);
  if (removed == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto& entry : removed->kernels) {
    kernels().remove(entry.second.get());
  }
  for (const auto& entry : removed->modules) module_unload(entry.second);
  return CUDA_SUCCESS;
}

std::shared_ptr<CUlib_st> find_library(CUlibrary library) {
  return libraries().find(library);
}

CUresult library_kernel(CUlibrary library, const char* name, CUkernel* kernel) {
  const std::shared_ptr<CUlib_st> found = libraries().find(library);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard lock(found->mutex);
  std::unique_ptr<CUkern_st>& entry = found->kernels[name];
  if (entry == nullptr) {
    // The name is looked up here, so that a wrong name is refused at once.
    if (!declares_entry(found->ptx, name)) {
      found->kernels.erase(name);
      return CUDA_ERROR_NOT_FOUND;
    }
    entry = std::make_unique<CUkern_st>();
    entry->library = library;
    entry->name = name;
    kernels().add(std::shared_ptr<CUkern_st>(found, entry.get()));
  }
  *kernel = entry.get();
  return CUDA_SUCCESS;
}

CUresult library_module(CUlibrary library, CUcontext context,
                        CUmodule* module) {
  const std::shared_ptr<CUlib_st> found = libraries().find(library);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard lock(found->mutex);
  CUmodule& entry = found->modules[context->id];
  if (entry == nullptr) {
    if (CUresult error = load(context, found->ptx, &entry)) return error;
    find_module(entry)->of_library = true;
  }
  *module = entry;
  return CUDA_SUCCESS;
}

CUresult kernel_function(CUkernel kernel, CUcontext context,
                         CUfunction* function) {
  const std::shared_ptr<CUkern_st> found = kernels().find(kernel);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  CUmodule module = nullptr;
  if (CUresult error = library_module(found->library, context, &module)) {
    return error;
  }
  return module_function(module, found->name.c_str(), function);
}

std::shared_ptr<CUfunc_st> resolve_function(CUfunction function,
                                            CUcontext context) {
  auto* kernel = reinterpret_cast<CUkernel>(function);
  CUfunction of_kernel = nullptr;
  return kernel_function(kernel, context, &of_kernel) == CUDA_SUCCESS
             ? functions().find(of_kernel)
             : functions().find(function);
}

void destroy_modules(CUcontext context) {
  for (const auto& module : modules().remove_if([&](const CUmod_st& candidate) {
         return candidate.context == context;
       })) {
    withdraw(*module);
  }
}

}  // namespace ipclab::model
