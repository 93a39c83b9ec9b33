// Bugs of a driver against the rules of this folder (harness/faults/README.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "harness/faults/words/words.h"

namespace ipclab::faults {
namespace {

bool are_of_one_handle(const Opened& one, const Opened& other) {
  return one.handle == other.handle && one.context != other.context;
}

// The attribute `wanted` of opened memory is reported as `value`.
template <CUpointer_attribute wanted, class Value, int value>
int import_attribute(Call& call) {
  if (!call.is("cuPointerGetAttribute")) return call.proceed();
  const int code = call.proceed();
  if (code != kSuccess || call.at<CUpointer_attribute>(1) != wanted ||
      !opened_at(call.at<void*>(2)))
    return code;
  *call.at<Value*>(0) = static_cast<Value>(value);
  call.fired();
  return code;
}

// Pairs of GPUs: the program itself has given the first GPU access to the
// second GPU.
Table<std::pair<int, int>> enabled;

int noted_peers(Call& call) {
  const int code = call.proceed();
  if (code != kSuccess || !call.is_runtime()) return code;
  if (call.is("cudaDeviceEnablePeerAccess"))
    enabled.put({current_device(), call.at<int>(0)});
  else if (call.is("cudaDeviceDisablePeerAccess"))
    enabled.erase({current_device(), call.at<int>(0)});
  return code;
}

int device_of_exporter(Call& call) {
  if (exports_memory(call)) {
    const int device = attribute_of<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                         call.at<CUdeviceptr>(1));
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes(
          "device-" + key_of_handle(*call.at<cudaIpcMemHandle_t*>(0)),
          static_cast<unsigned long long>(device));
    return code;
  }
  void* const begin = opened_around(call.at<void*>(1));
  const int code = call.proceed();
  if (code != kSuccess || begin == nullptr) return code;
  int& device = call.at<cudaPointerAttributes*>(0)->device;
  const int theirs =
      static_cast<int>(told("device-" + opened.get(begin).handle, 0));
  if (theirs != device) call.fired();
  device = theirs;
  return code;
}

bool is_last_byte(CUdeviceptr address) {
  const Addresses range = allocation_around(address);
  return range.first != 0 && address == range.first + range.second - 1;
}

int counts_in_first_context(Call& call) {
  static Table<std::string, CUcontext> first;
  const int code = call.proceed();
  if (code != kSuccess) return code;
  const std::string key = key_of_opened(call);
  const CUcontext context = current_context();
  if (!first.has(key)) first.put(key, context);
  if (first.get(key) == context) return code;
  void* again = nullptr;
  DRIVER_CALL(cuCtxPushCurrent)(first.get(key));
  if (already_open(call) != nullptr &&
      cudaIpcOpenMemHandle(&again, call.at<cudaIpcMemHandle_t>(1),
                           cudaIpcMemLazyEnablePeerAccess) == cudaSuccess)
    call.fired();
  CUcontext popped = nullptr;
  DRIVER_CALL(cuCtxPopCurrent)(&popped);
  return code;
}

int results_by_number(Call& call) {
  const auto count = call.at<unsigned>(0);
  auto* const wanted = call.at<CUpointer_attribute*>(1);
  std::vector<CUpointer_attribute> sorted(wanted, wanted + count);
  std::sort(sorted.begin(), sorted.end());
  if (std::equal(sorted.begin(), sorted.end(), wanted)) return call.proceed();
  // Two results can be exchanged only if their sizes are equal. So only the
  // memory type and the ordinal of the device are exchanged.
  const auto is_small = [](CUpointer_attribute one) {
    return one == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ||
           one == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
  };
  const int code = call.proceed();
  void** const data = call.at<void**>(2);
  for (unsigned i = 0; code == kSuccess && i < count; ++i)
    for (unsigned k = i + 1; k < count; ++k)
      if (is_small(wanted[i]) && is_small(wanted[k]) && wanted[i] > wanted[k]) {
        std::swap(*static_cast<unsigned*>(data[i]),
                  *static_cast<unsigned*>(data[k]));
        call.fired();
      }
  return code;
}

// The device whose memory this is, as this process numbers devices; -1 if the
// driver does not know the address.
int device_of(CUdeviceptr address) {
  int device = -1;
  DRIVER_CALL(cuPointerGetAttribute)
  (&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
  return device;
}

// Was this memory opened on another GPU than the current one?
bool is_open_on_other_gpu(void* begin) {
  int device = current_device();
  if (opened.has(begin))
    in_context(opened.get(begin).context,
               [&device] { device = current_device(); });
  return device != current_device();
}

// The last close of a peer's memory ends other mappings, for which `applies` is
// true.
template <bool (*applies)(const Opened& closed, const Opened& other)>
int peer_close_ends(Call& call) {
  if (exports_memory(call)) {
    const int code = told_owner(call);
    if (code == kSuccess)
      tell_processes("exporter-" + key_of_exported(call),
                     static_cast<unsigned long long>(getpid()));
    return code;
  }
  if (!is_close_call(call)) return call.proceed();
  void* const address = call.at<void*>(0);
  const Opened closed = opened.get(address);
  const bool ends = closed.count == 1 && is_of_peer(address);
  const int code = call.proceed();
  if (code != kSuccess || !ends) return code;
  for (const auto& [other, one] : opened.all())
    if (applies(closed, one)) unmap_fully(call, other, one);
  return code;
}

bool is_of_owner(const Opened& closed, const Opened& other) {
  return closed.handle == other.handle && closed.context != other.context;
}

// Does the process see only one GPU of several?
bool sees_one_gpu() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible != nullptr && std::strchr(visible, ',') == nullptr;
}

int ordinal_of_exporter(Call& call) {
  if (exports_memory(call)) {
    const int device = device_of(call.at<CUdeviceptr>(1));
    const int code = call.proceed();
    if (code == kSuccess)
      tell_processes("ordinal-" + key_of_exported(call),
                     static_cast<unsigned long long>(device));
    return code;
  }
  const bool many = call.is("cuPointerGetAttributes");
  void* const begin =
      opened_around(many ? call.at<void*>(3) : call.at<void*>(2));
  const int code = call.proceed();
  if (code != kSuccess || begin == nullptr) return code;
  const auto replace = [&](CUpointer_attribute which, void* answer) {
    if (which != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) return;
    int& device = *static_cast<int*>(answer);
    const int theirs =
        static_cast<int>(told("ordinal-" + opened.get(begin).handle, 0));
    if (theirs != device) call.fired();
    device = theirs;
  };
  if (!many)
    replace(call.at<CUpointer_attribute>(1), call.at<void*>(0));
  else
    for (unsigned i = 0; i < call.at<unsigned>(0); ++i)
      replace(call.at<CUpointer_attribute*>(1)[i], call.at<void**>(2)[i]);
  return code;
}

int close_counts_on_other_gpu(Call& call) {
  void* const memory = call.at<void*>(0);
  const Opened one = opened.get(memory);
  const int code = call.proceed();
  if (code != kSuccess) return code;
  for (const auto& [address, other] : opened.all()) {
    if (other.handle != one.handle || other.context == one.context ||
        other.count < 2)
      continue;
    DRIVER_CALL(cuCtxPushCurrent)(other.context);
    if (DRIVER_CALL(cuIpcCloseMemHandle)(number(address)) == CUDA_SUCCESS) {
      count_close(address);
      call.fired();
    }
    CUcontext popped = nullptr;
    DRIVER_CALL(cuCtxPopCurrent)(&popped);
  }
  return code;
}

int peer_reopen_refused(Call& call) {
  static Table<void*> of_peers;
  static std::atomic<bool> over{false};
  if (exports_memory(call)) return told_owner(call);
  if (is_close_call(call)) {
    void* const memory = call.at<void*>(0);
    const int code = call.proceed();
    if (code == kSuccess && !opened.has(memory) && of_peers.erase(memory) &&
        of_peers.all().empty())
      over = true;
    return code;
  }
  if (owner_of(call.at<cudaIpcMemHandle_t>(1)) == current_place())
    return call.proceed();
  if (over) return refused(call, cudaErrorTooManyPeers);
  const int code = call.proceed();
  if (code == kSuccess) of_peers.put(*call.at<void**>(0));
  return code;
}

// A synchronous copy into opened memory of a peer. `wrong` gets the copy, and
// answers for it. The exporter tells whose memory it is.
template <class Wrong>
auto copies_to_peer(Wrong wrong) {
  return [wrong](Call& call) -> int {
    if (exports_memory(call)) return told_owner(call);
    return is_of_peer(call.value<void*>(kPointer)) ? wrong(call)
                                                   : call.proceed();
  };
}

// The copy is made, but only when the next one comes.
int late(Call& copy) {
  struct Waiting {
    void* to;
    std::vector<char> bytes;
  };
  static auto& waiting = *new std::vector<Waiting>;
  for (const Waiting& one : waiting)
    if (opened_around(one.to) != nullptr)
      cudaMemcpy(one.to, one.bytes.data(), one.bytes.size(), cudaMemcpyDefault);
  waiting.clear();
  const auto size = copy.value<size_t>(kBytes);
  Waiting next{copy.value<void*>(kPointer), std::vector<char>(size)};
  if (cudaMemcpy(next.bytes.data(), copy.value<const void*>(kSource), size,
                 cudaMemcpyDefault) != cudaSuccess)
    return copy.proceed();
  waiting.push_back(std::move(next));
  copy.fired();
  return kSuccess;
}

FAULTS {
  fault("peer-write-lost", {"LMEM-33", "PEER-01"},
        "synchronous copies into opened memory of a peer do nothing")
      .with_gpus(2)
      .on({kGetHandle, kCopy}, copies_to_peer(lost));

  fault("peer-write-late", {"LMEM-33", "PEER-01"},
        "a synchronous copy into opened memory of a peer arrives only with the "
        "next one")
      .with_gpus(2)
      .on({kGetHandle, kCopy}, copies_to_peer(late));

  fault("peer-write-misdirected", {"LMEM-33", "PEER-01"},
        "synchronous copies into opened memory of a peer arrive in other "
        "memory of this process")
      .with_gpus(2)
      .on({kGetHandle, kCopy}, copies_to_peer([](Call& copy) -> int {
            void* other = nullptr;
            if (cudaMalloc(&other, copy.value<size_t>(kBytes)) == cudaSuccess) {
              copy.value<void*>(kPointer) = other;
              copy.fired();
            }
            return copy.proceed();
          }));

  fault("peer-write-cut", {"LMEM-33", "PEER-01"},
        "the last half of a synchronous copy into opened memory of a peer is "
        "lost")
      .with_gpus(2)
      .on({kGetHandle, kCopy}, copies_to_peer([](Call& copy) -> int {
            copy.value<size_t>(kBytes) /= 2;
            copy.fired();
            return copy.proceed();
          }));

  fault("one-context-per-process", {"LMEM-27"},
        "two contexts of a process cannot have memory open at the same time")
      .with_gpus(2)
      .on({kOpen}, [](Call& call) -> int {
        if (is_open_call(call))
          for (const auto& each : opened.all())
            if (each.second.context != current_context())
              return refused(call, cudaErrorInvalidResourceHandle);
        return call.proceed();
      });

  fault("visible-only", {"LMEM-33"},
        "memory of a GPU that is hidden from the importer cannot be opened")
      .with_gpus(2)
      .on({kGetHandle, kOpen}, [](Call& call) -> int {
        if (exports_memory(call)) return told_owner(call);
        const unsigned long long wanted = owner_of(given(call));
        int count = 0;
        DRIVER_CALL(cuDeviceGetCount)(&count);
        for (int device = 0; device < count; ++device)
          if (place_of(device) == wanted) return call.proceed();
        return refused(call);
      });

  fault(
      "lazy-peer-noop", {"LMEM-30"},
      "an open on another GPU is refused until the program enables peer access")
      .with_gpus(2)
      .on({kGetHandle, kOpen, "cudaDeviceEnablePeerAccess"},
          [](Call& call) -> int {
            static std::atomic<bool> enabled{false};
            if (call.is("cudaDeviceEnablePeerAccess")) {
              const int code = call.proceed();
              if (code == kSuccess) enabled = true;
              return code;
            }
            if (exports_memory(call)) return told_owner(call);
            return enabled || owner_of(given(call)) == current_place()
                       ? call.proceed()
                       : refused(call, cudaErrorPeerAccessUnsupported);
          });

  fault("peer-resource-leak", {"LMEM-34"},
        "a close on a GPU other than GPU 0 gives nothing back")
      .with_gpus(2)
      .on({kOpen, kClose}, [](Call& call) {
        int device = 0;
        cudaPointerAttributes known{};
        if (is_open_call(call) || cudaGetDevice(&device) != cudaSuccess ||
            device == 0 ||
            cudaPointerGetAttributes(&known, closed(call)) != cudaSuccess ||
            !is_opened(closed(call)))
          return call.proceed();
        opened.erase(closed(call));
        return lost(call);
      });

  fault("import-attr-wrong", {"LMEM-36"},
        "an imported pointer is reported as memory that CUDA does not know")
      .on({kPointerAttributes}, [](Call& call) {
        const bool imported = is_opened(call.at<void*>(1));
        const int code = call.proceed();
        if (code != kSuccess || !imported) return code;
        auto& attributes = *call.at<cudaPointerAttributes*>(0);
        attributes.type = cudaMemoryTypeUnregistered;
        call.fired();
        return code;
      });

  fault("import-range-wrong", {"LMEM-36"},
        "the range of an imported pointer does not contain this pointer")
      .on({"cuMemGetAddressRange"}, [](Call& call) {
        void* const address = call.at<void*>(2);
        const bool imported = is_opened(address);
        const int code = call.proceed();
        if (code != kSuccess || !imported ||
            call.at<CUdeviceptr*>(0) == nullptr)
          return code;
        *call.at<CUdeviceptr*>(0) =
            reinterpret_cast<CUdeviceptr>(address) + 4096;
        call.fired();
        return code;
      });

  fault("peer-denied", {"LMEM-31"}, "peer GPUs are reported as not being peers")
      .with_gpus(2)
      .after({"cudaDeviceCanAccessPeer"}, WHEN(*call.at<int*>(0) != 0),
             [](Call& call) { *call.at<int*>(0) = 0; });

  fault("nonpeer-open-ok", {"LMEM-31"},
        "opening memory of a GPU that is not a peer succeeds and gives other "
        "memory")
      .with_gpus(2)
      .on_machine("no-peer")
      .on({kOpen}, [](Call& call) -> int {
        const int code = call.proceed();
        if (code != cudaErrorMapBufferObjectFailed &&
            code != cudaErrorPeerAccessUnsupported)
          return code;
        if (call.is_runtime()) cudaGetLastError();
        if (cudaMalloc(call.at<void**>(0), 2 << 20) != cudaSuccess) return code;
        return lost(call);
      });

  fault("peer-one-way", {"LMEM-31"},
        "cudaDeviceCanAccessPeer says that GPU 1 cannot reach GPU 0, although "
        "it can")
      .with_gpus(2)
      .after({"cudaDeviceCanAccessPeer"},
             WHEN(call.at<int>(1) >= call.at<int>(2)), [](Call& call) {
               if (*call.at<int*>(0) != 0) call.fired();
               *call.at<int*>(0) = 0;
               return kSuccess;
             });

  fault("close-ends-other-gpu", {"LMEM-27"},
        "the last close on one GPU ends the mapping on the other GPU")
      .with_gpus(2)
      .on({kOpen, kClose}, close_ends_others<are_of_one_handle>);

  fault("open-changes-device", {"LMEM-30"},
        "an open makes GPU 0 the current device")
      .with_gpus(2)
      .on({kOpen}, [](Call& open) {
        int device = 0;
        const int code = open.proceed();
        if (code != kSuccess || cudaGetDevice(&device) != cudaSuccess ||
            device == 0)
          return code;
        cudaSetDevice(0);
        open.fired();
        return code;
      });

  fault(
      "import-attr-begin-only", {"LMEM-36"},
      "cudaPointerGetAttributes knows only the first address of opened memory")
      .on({kPointerAttributes}, [](Call& call) {
        void* const address = call.at<void*>(1);
        char* const begin = opened_at(address);
        const int code = call.proceed();
        if (code != kSuccess || begin == nullptr || begin == address)
          return code;
        *call.at<cudaPointerAttributes*>(0) = {};
        call.fired();
        return code;
      });

  fault("import-is-managed", {"LMEM-36"},
        "opened memory is reported as managed memory")
      .on({kOpen, kClose, kGetAttribute},
          import_attribute<CU_POINTER_ATTRIBUTE_IS_MANAGED, bool, true>);

  fault("import-is-of-host", {"LMEM-36"},
        "the driver API reports opened memory as host memory")
      .on({kOpen, kClose, kGetAttribute},
          import_attribute<CU_POINTER_ATTRIBUTE_MEMORY_TYPE, unsigned,
                           CU_MEMORYTYPE_HOST>);

  fault("open-on-gpu-0-not-second", {"LMEM-27"},
        "a handle that is open on another GPU cannot be opened on GPU 0")
      .with_gpus(2)
      .on({kOpen, kClose}, [](Call& call) -> int {
        int gpu = -1;
        cudaGetDevice(&gpu);
        if (!is_open_call(call) || gpu != 0 || already_open(call) != nullptr)
          return call.proceed();
        const auto& handle = call.at<cudaIpcMemHandle_t>(1);
        for (const auto& each : opened.all())
          if (std::memcmp(&each.second.bytes, &handle, sizeof handle) == 0)
            return refused(call, cudaErrorMapBufferObjectFailed);
        return call.proceed();
      });

  fault("attributes-without-context", {"LMEM-36"},
        "cuPointerGetAttributes does not tell the context of opened memory, "
        "but cuPointerGetAttribute does")
      .after({kGetAttributes}, WHEN(is_opened(call.at<CUdeviceptr>(3))),
             [](Call& call) {
               const auto* const wanted =
                   call.at<const CUpointer_attribute*>(1);
               for (unsigned i = 0; i < call.at<unsigned>(0); ++i) {
                 auto* const answer =
                     static_cast<CUcontext*>(call.at<void**>(2)[i]);
                 if (wanted[i] != CU_POINTER_ATTRIBUTE_CONTEXT ||
                     *answer == nullptr)
                   continue;
                 *answer = nullptr;
                 call.fired();
               }
               return kSuccess;
             });

  fault("close-ends-peer-mappings", {"LMEM-34"},
        "a close on a second GPU also ends the other mappings of this GPU")
      .with_gpus(2)
      .on({kOpen, kClose}, [](Call& call) {
        const int code = call.proceed();
        int device = 0;
        cudaGetDevice(&device);
        if (code != kSuccess || !is_close_call(call) || device == 0)
          return code;
        for (const auto& [address, one] : opened.all()) {
          if (one.context != current_context()) continue;
          for (int i = 0; i < one.count; ++i) cudaIpcCloseMemHandle(address);
          opened.erase(address);
          call.fired();
        }
        return code;
      });

  fault("close-disables-own-peers", {"LMEM-34"},
        "the last close ends peer access that the program has enabled")
      .with_gpus(2)
      .on({kOpen, kClose, "cudaDeviceEnablePeerAccess",
           "cudaDeviceDisablePeerAccess"},
          [](Call& call) {
            const bool is_last =
                is_close_call(call) && opened.get(call.at<void*>(0)).count == 1;
            const int code = noted_peers(call);
            if (code != kSuccess || !is_last) return code;
            for (const auto& one : enabled.all())
              if (one.first.first == current_device() &&
                  enabled.erase(one.first) &&
                  cudaDeviceDisablePeerAccess(one.first.second) == cudaSuccess)
                call.fired();
            return code;
          });

  fault("open-enables-twice", {"LMEM-30"},
        "an open is refused if the program has enabled peer access")
      .with_gpus(2)
      .on({kOpen, kClose, "cudaDeviceEnablePeerAccess",
           "cudaDeviceDisablePeerAccess"},
          [](Call& call) -> int {
            if (is_open_call(call))
              for (const auto& one : enabled.all())
                if (one.first.first == current_device())
                  return refused(call, cudaErrorPeerAccessAlreadyEnabled);
            return noted_peers(call);
          });

  fault("range-begins-at-pointer", {"LMEM-36"},
        "the range of an address inside an allocation begins at this address")
      .after({"cuMemGetAddressRange"},
             WHEN(call.at<CUdeviceptr*>(0) != nullptr &&
                  *call.at<CUdeviceptr*>(0) != call.at<CUdeviceptr>(2)),
             [](Call& call) {
               CUdeviceptr* const begin = call.at<CUdeviceptr*>(0);
               *begin = call.at<CUdeviceptr>(2);
             });

  fault("range-null-refused", {"LMEM-36"},
        "the query of a range needs room for both results")
      .on({"cuMemGetAddressRange"},
          WHEN(call.at<void*>(0) == nullptr || call.at<void*>(1) == nullptr),
          refuses());

  fault("device-pointer-is-begin", {"LMEM-36"},
        "the device pointer of an address is the start of its allocation")
      .on({kPointerAttributes}, [](Call& call) {
        const int code = call.proceed();
        auto& found = *call.at<cudaPointerAttributes*>(0);
        if (code != kSuccess || found.type != cudaMemoryTypeDevice) return code;
        const CUdeviceptr begin = range_of(call.at<void*>(1)).begin;
        if (begin == 0 || begin == call.at<CUdeviceptr>(1)) return code;
        found.devicePointer = reinterpret_cast<void*>(begin);
        call.fired();
        return code;
      });

  fault("import-device-of-exporter", {"LMEM-36"},
        "cudaPointerGetAttributes reports the exporter's number of the device "
        "of opened memory")
      .with_gpus(2)
      .on({kGetHandle, kPointerAttributes}, device_of_exporter);

  fault("import-range-refused", {"LMEM-36"},
        "cuMemGetAddressRange does not know opened memory")
      .on({"cuMemGetAddressRange"}, WHEN(is_opened(call.at<CUdeviceptr>(2))),
          refuses(CUDA_ERROR_NOT_FOUND));

  fault("ptrattrs-end-at-undefined", {"LMEM-36"},
        "the query of many attributes ends at the first attribute that the "
        "memory does not have")
      .on({kGetAttributes}, [](Call& call) {
        const auto address = call.at<CUdeviceptr>(3);
        auto& count = call.at<unsigned>(0);
        unsigned char room[64];
        if (DRIVER_CALL(cuPointerGetAttribute)(room,
                                               CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                               address) != CUDA_SUCCESS)
          return call.proceed();
        for (unsigned i = 0; i + 1 < count; ++i) {
          if (DRIVER_CALL(cuPointerGetAttribute)(
                  room, call.at<const CUpointer_attribute*>(1)[i], address) ==
              CUDA_SUCCESS)
            continue;
          count = i + 1;
          call.fired();
        }
        return call.proceed();
      });

  fault("import-device-current", {"LMEM-36"},
        "opened memory is reported as memory of the current GPU")
      .with_gpus(2)
      .after({kPointerAttributes},
             WHEN(opened.has(call.at<void*>(1)) &&
                  (*call.at<cudaPointerAttributes*>(0)).device !=
                      current_device()),
             [](Call& call) {
               auto& found = *call.at<cudaPointerAttributes*>(0);
               found.device = current_device();
             });

  fault("import-unknown-to-other-threads", {"LMEM-36"},
        "only the thread that has opened memory finds its attributes")
      .after({kPointerAttributes},
             WHEN(opened.get(call.at<void*>(1)).count != 0 &&
                  opened.get(call.at<void*>(1)).thread != this_thread()),
             [](Call& call) { *call.at<cudaPointerAttributes*>(0) = {}; });

  fault("hidden-gpu-copy-lost", {"LMEM-33"},
        "synchronous copies into or out of opened memory are lost in a process "
        "that sees one GPU of several")
      .with_gpus(2)
      .on({kCopy}, [](Call& call) {
        const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
        if (visible == nullptr || std::strchr(visible, ',') != nullptr)
          return call.proceed();
        for (const Role role : {kPointer, kSource})
          if (is_opened(call.value<void*>(role))) return lost(call);
        return call.proceed();
      });

  fault("driver-opens-current-gpu-only", {"LMEM-30"},
        "the driver API cannot open memory of a GPU other than the current GPU")
      .with_gpus(2)
      .on({kOpen, kGetHandle}, [](Call& call) -> int {
        if (call.is("cudaIpcGetMemHandle")) return told_owner(call);
        const int code = call.proceed();
        if (code != kSuccess || call.is_runtime() ||
            owner_of(call.at<cudaIpcMemHandle_t>(1)) == current_place())
          return code;
        DRIVER_CALL(cuIpcCloseMemHandle)(*call.at<CUdeviceptr*>(0));
        return refused(call);
      });

  fault("import-host-pointer-told", {"LMEM-36"},
        "opened memory is reported with an address for the host")
      .on({kPointerAttributes, kOpen, kClose}, [](Call& call) {
        return retold(call, is_opened, [](cudaPointerAttributes& attributes) {
          attributes.hostPointer = attributes.devicePointer;
        });
      });

  fault("import-device-pointer-null", {"LMEM-36"},
        "opened memory is reported without an address for the GPU")
      .on({kPointerAttributes, kOpen, kClose}, [](Call& call) {
        return retold(call, is_opened, [](cudaPointerAttributes& attributes) {
          attributes.devicePointer = nullptr;
        });
      });

  fault("driver-open-unknown-to-runtime", {"LMEM-36"},
        "the runtime does not know memory that the driver API has opened")
      .on({kPointerAttributes, kOpen, kClose}, [](Call& call) -> int {
        static Table<void*> by_driver;
        const int code = retold(
            call,
            [](const void* pointer) {
              void* const one = opened_around(pointer);
              return one != nullptr && by_driver.has(one);
            },
            forget);
        if (code == kSuccess && is_open_call(call) && !call.is_runtime())
          by_driver.put(*call.at<void**>(0));
        if (code == kSuccess && is_close_call(call))
          by_driver.erase(call.at<void*>(0));
        return code;
      });

  fault("import-host-pointer-by-driver", {"LMEM-36"},
        "the driver API gives a host address of opened memory")
      .on({kGetAttribute, kOpen, kClose}, [](Call& call) {
        if (!asks(call, CU_POINTER_ATTRIBUTE_HOST_POINTER))
          return call.proceed();
        const int code = call.proceed();
        if (code == kSuccess || !is_opened(asked(call))) return code;
        answer_to<void*>(call) = asked(call);
        return accepted(call);
      });

  fault("import-mapped-denied", {"LMEM-36"},
        "opened memory is reported as not mapped")
      .on({kGetAttribute, kOpen, kClose}, [](Call& call) {
        if (!asks(call, CU_POINTER_ATTRIBUTE_MAPPED)) return call.proceed();
        const int code = call.proceed();
        if (code != kSuccess || !is_opened(asked(call))) return code;
        answer_to<bool>(call) = false;
        call.fired();
        return code;
      });

  fault("range-size-from-pointer", {"LMEM-36"},
        "the reported size counts from an address inside the allocation, not "
        "from its start")
      .after({kGetAttribute}, WHEN(asks(call, CU_POINTER_ATTRIBUTE_RANGE_SIZE)),
             [](Call& call) -> int {
               CUdeviceptr begin = 0;
               DRIVER_CALL(cuPointerGetAttribute)
               (&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                call.at<CUdeviceptr>(2));
               if (begin == 0 || begin == call.at<CUdeviceptr>(2))
                 return kSuccess;
               answer_to<size_t>(call) -= call.at<CUdeviceptr>(2) - begin;
               call.fired();
               return kSuccess;
             });

  fault("range-start-at-pointer", {"LMEM-36"},
        "an address inside an allocation is reported as its start")
      .after({kGetAttribute},
             WHEN(asks(call, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) &&
                  answer_to<void*>(call) != asked(call)),
             [](Call& call) { answer_to<void*>(call) = asked(call); });

  fault(
      "range-in-2-mib", {"LMEM-36"},
      "the reported size of an allocation is rounded up to a multiple of 2 MiB")
      .on({"cuMemGetAddressRange"}, [](Call& call) {
        constexpr size_t kStep = 2 << 20;
        const int code = call.proceed();
        auto* const size = call.at<size_t*>(1);
        if (code != kSuccess || size == nullptr || *size % kStep == 0)
          return code;
        *size += kStep - *size % kStep;
        call.fired();
        return code;
      });

  fault("many-id-zero", {"LMEM-36"},
        "the query of many attributes reports each id as 0")
      .after({kGetAttributes}, [](Call& call) {
        for (unsigned i = 0; i < call.at<unsigned>(0); ++i) {
          if (call.at<CUpointer_attribute*>(1)[i] !=
              CU_POINTER_ATTRIBUTE_BUFFER_ID)
            continue;
          *static_cast<unsigned long long*>(call.at<void**>(2)[i]) = 0;
          call.fired();
        }
        return kSuccess;
      });

  fault("ptrattrs-to-8", {"LMEM-36"},
        "the query of many attributes reports only the first eight")
      .before({kGetAttributes}, [](Call& call) {
        unsigned& count = call.at<unsigned>(0);
        if (count > 8) {
          count = 8;
          call.fired();
        }
        return kSuccess;
      });

  fault("open-on-second-gpu-counts-on-first", {"LMEM-27"},
        "an open on a second GPU also raises the count on the first GPU")
      .with_gpus(2)
      .on({kOpen}, counts_in_first_context);

  fault("import-range-last-byte-refused", {"LMEM-36"},
        "the last byte of opened memory has no range")
      .on({"cuMemGetAddressRange"},
          WHEN(opened_begin(call.at<CUdeviceptr>(2)) != 0 &&
               is_last_byte(call.at<CUdeviceptr>(2))),
          [](Call& call) { return refused(call, CUDA_ERROR_NOT_FOUND); });

  fault("import-attr-last-byte-unknown", {"LMEM-36"},
        "cudaPointerGetAttributes does not know the last byte of opened memory")
      .after({kPointerAttributes},
             WHEN(opened_begin(call.at<CUdeviceptr>(1)) != 0 &&
                  is_last_byte(call.at<CUdeviceptr>(1))),
             [](Call& call) {
               *call.at<cudaPointerAttributes*>(0) = cudaPointerAttributes{};
             });

  fault("ptrattrs-sorted", {"LMEM-36"},
        "the query of many attributes exchanges the memory type and the GPU's "
        "number if the number is asked first")
      .on({kGetAttributes}, results_by_number);

  fault("import-access-read-only", {"LMEM-36"},
        "cuPointerGetAttribute says that opened memory can only be read")
      .after({kGetAttribute},
             WHEN(call.at<CUpointer_attribute>(1) ==
                      CU_POINTER_ATTRIBUTE_ACCESS_FLAGS &&
                  opened_begin(call.at<CUdeviceptr>(2)) != 0),
             [](Call& call) {
               *call.at<unsigned*>(0) = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ;
             });

  fault("import-said-of-pool", {"LMEM-36"},
        "cuPointerGetAttribute says that opened memory is of the default pool "
        "of GPU 0")
      .after({kGetAttribute},
             WHEN(call.at<CUpointer_attribute>(1) ==
                      CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE &&
                  opened_begin(call.at<CUdeviceptr>(2)) != 0),
             [](Call& call) {
               DRIVER_CALL(cuDeviceGetDefaultMemPool)
               (call.at<CUmemoryPool*>(0), 0);
             });

  fault("peer-copy-64-mib", {"LMEM-34"},
        "synchronous copies of opened memory of a peer take offsets modulo 64 "
        "MiB")
      .with_gpus(2)
      .on({kGetHandle, kCopy}, [](Call& call) -> int {
        constexpr size_t kMost = 64 << 20;
        if (exports_memory(call)) return told_owner(call);
        for (const Role role : {kPointer, kSource}) {
          auto& address = call.value<CUdeviceptr>(role);
          if (!is_of_peer(call.value<void*>(role))) continue;
          const CUdeviceptr begin = begin_of(address);
          if (address - begin < kMost) continue;
          address = begin + (address - begin) % kMost;
          call.fired();
        }
        return call.proceed();
      });

  fault("peer-suballoc-offset-lost", {"LMEM-30"},
        "on another GPU, a small allocation opens at the start of its block")
      .with_gpus(2)
      .on({kGetHandle, kOpen}, [](Call& call) -> int {
        if (exports_memory(call)) return told_owner(call);
        const int code = call.proceed();
        if (code != kSuccess) return code;
        auto& address = *call.at<CUdeviceptr*>(0);
        if (address % kBlock == 0 || !is_of_peer(*call.at<void**>(0)))
          return code;
        address -= address % kBlock;
        call.fired();
        return code;
      });

  fault("handle-of-current-gpu", {"LMEM-27"},
        "the handle of memory of another GPU than the current one names memory "
        "of the current GPU")
      .with_gpus(2)
      .before({kGetHandle}, [](Call& get) {
        const int device = device_of(get.at<CUdeviceptr>(1));
        void* other = nullptr;
        if (device >= 0 && device != current_device() &&
            cudaMalloc(&other, size_of(get.at<CUdeviceptr>(1))) ==
                cudaSuccess) {
          get.at<void*>(1) = other;
          get.fired();
        }
        return kSuccess;
      });

  fault("free-on-other-gpu-lost", {"LMEM-34"},
        "exported memory is not freed while another GPU is current")
      .with_gpus(2)
      .on({kGetHandle, kFree}, [](Call& call) {
        static auto& exported = *new Table<void*>;
        if (exports_memory(call)) {
          const int code = call.proceed();
          if (code == kSuccess) exported.put(call.at<void*>(1));
          return code;
        }
        void* const address = call.at<void*>(0);
        if (exported.has(address) &&
            device_of(number(address)) != current_device())
          return lost(call);
        exported.erase(address);
        return call.proceed();
      });

  fault("close-on-other-gpu-lost", {"LMEM-27"},
        "a close succeeds and does nothing while another GPU is current")
      .with_gpus(2)
      .on({kClose}, WHEN(is_open_on_other_gpu(call.at<void*>(0))), lost);

  fault("import-unknown-on-other-gpu", {"LMEM-27"},
        "cudaPointerGetAttributes does not know opened memory while another "
        "GPU is current")
      .with_gpus(2)
      .after({kPointerAttributes},
             WHEN(is_open_on_other_gpu(call.at<void*>(1))),
             [](Call& call) { *call.at<cudaPointerAttributes*>(0) = {}; });

  fault("import-copy-on-other-gpu-lost", {"LMEM-27"},
        "synchronous copies of opened memory do nothing while another GPU is "
        "current")
      .with_gpus(2)
      .on({kCopy},
          WHEN(is_open_on_other_gpu(call.value<void*>(kPointer)) ||
               is_open_on_other_gpu(
                   const_cast<void*>(call.value<const void*>(kSource)))),
          lost);

  fault("peer-close-ends-owners-mapping", {"LMEM-27"},
        "the last close on another GPU also ends the mapping on the memory's "
        "own GPU")
      .with_gpus(2)
      .on({kGetHandle, kOpen, kClose}, peer_close_ends<is_of_owner>);

  fault("peer-close-ends-other-exporters", {"LMEM-34"},
        "the last close of a peer's memory also ends the mappings of other "
        "exporters' memory")
      .with_gpus(2)
      .on({kGetHandle, kOpen, kClose}, peer_close_ends<is_of_other_exporter>);

  fault("hidden-gpu-copy-in-lost", {"LMEM-33"},
        "synchronous copies into opened memory are lost in a process that sees "
        "one GPU of several")
      .with_gpus(2)
      .on({kCopy},
          WHEN(sees_one_gpu() && is_opened(call.value<void*>(kPointer))), lost);

  fault(
      "hidden-gpu-open-not-counted", {"LMEM-33"},
      "a second open does not count in a process that sees one GPU of several")
      .with_gpus(2)
      .on({kOpen, kClose}, [](Call& call) {
        void* const before =
            is_open_call(call) && sees_one_gpu() ? already_open(call) : nullptr;
        return before == nullptr ? call.proceed() : uncounted(call, before);
      });

  fault("import-ordinal-of-exporter", {"LMEM-36"},
        "the driver's number of the device of opened memory is the exporter's "
        "number")
      .with_gpus(2)
      .on({kGetHandle, kGetAttribute, kGetAttributes}, ordinal_of_exporter);

  fault("hidden-gpu-memory-unknown", {"LMEM-33"},
        "cudaPointerGetAttributes does not know opened memory in a process "
        "that sees one GPU of several")
      .with_gpus(2)
      .after({kPointerAttributes},
             WHEN(sees_one_gpu() && is_opened(call.at<void*>(1))),
             [](Call& call) { *call.at<cudaPointerAttributes*>(0) = {}; });

  fault("attributes-as-first-call-unknown", {"LMEM-36"},
        "cudaPointerGetAttributes does not know opened memory as the first "
        "call of a thread")
      .on({kPointerAttributes}, [](Call& call) {
        const bool applies =
            is_first_call_of_thread(call) && opened.has(call.at<void*>(1));
        const int code = call.proceed();
        if (code != kSuccess || !applies) return code;
        *call.at<cudaPointerAttributes*>(0) = {};
        call.fired();
        return code;
      });

  fault("close-counts-on-other-gpu", {"LMEM-27"},
        "a close on one GPU also lowers the count on another GPU, if the "
        "memory is open more than once there")
      .with_gpus(2)
      .on({kClose}, close_counts_on_other_gpu);

  fault("peer-reopen-refused", {"LMEM-30"},
        "after the last close of a peer's memory, no memory of a peer can be "
        "opened")
      .with_gpus(2)
      .on({kGetHandle, kOpen, kClose}, peer_reopen_refused);

  fault(
      "ok-open-enables-peer-access",
      {"LMEM-30", "LMEM-27", "LMEM-32", "LMEM-34", "LMEM-36"},
      "after an open has enabled peer access, cudaDeviceEnablePeerAccess says "
      "that it is enabled")
      .with_gpus(2)
      .after({"cudaDeviceEnablePeerAccess"}, WHEN(!opened.all().empty()),
             refuses(cudaErrorPeerAccessAlreadyEnabled));

  fault("close-ends-enabled-peer-access", {"LMEM-30"},
        "the last close ends peer access that the program has enabled while "
        "the memory was open")
      .with_gpus(2)
      .after({"cudaDeviceEnablePeerAccess"}, WHEN(!opened.all().empty()),
             NOTE(marks.put(1, 1 + call.at<int>(0))))
      .after({kClose}, WHEN(opened.all().empty() && marks.get(1) != 0),
             [](Call&) {
               const bool ended =
                   cudaDeviceDisablePeerAccess(static_cast<int>(marks.get(1)) -
                                               1) == cudaSuccess;
               marks.erase(1);
               return ended;
             });
}

}  // namespace
}  // namespace ipclab::faults
