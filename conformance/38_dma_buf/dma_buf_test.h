// What the tests of dma-bufs and of external memory share.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/cuda.h"
#include "harness/scenario/leaks.h"
#include "harness/scenario/vmm.h"

namespace ipclab {

/// The addresses and sizes of a range must be multiples of it.
inline size_t host_page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

/// A size that every GPU can allocate and export, also one without virtual
/// memory management.
inline constexpr size_t kTwoMib = 2 << 20;

/// The whole pages in memory. No sentence says that memory of cuMemAlloc begins
/// with a page.
inline Words pages_of(const Words& memory) {
  const CUdeviceptr page = host_page(), begin = address_of(memory.data),
                    first = (begin + page - 1) / page * page,
                    end = (begin + memory.bytes()) / page * page;
  return words_at(first, end - first);
}

/// Device memory of cuMemAlloc, poisoned. It begins with a page.
class DriverBuffer : public Words {
 public:
  explicit DriverBuffer(size_t bytes) {
    CALL(cudaFree(nullptr));  // the driver API needs a context
    allocate(bytes);
    if (begin_ % host_page() != 0) {  // then a part of larger memory
      CALL(DRIVER(cuMemFree)(begin_));
      allocate(bytes + host_page());
    }
    const Words pages = pages_of(words_at(begin_, allocated_));
    static_cast<Words&>(*this) = Words(pages.data, bytes);
    poison();
  }
  DriverBuffer(const DriverBuffer&) = delete;
  ~DriverBuffer() {
    if (data != nullptr) DRIVER(cuMemFree)(begin_);
  }
  CUdeviceptr address() const { return address_of(data); }
  /// Frees now, not in the destructor, for tests of this step.
  void free() {
    CALL(DRIVER(cuMemFree)(begin_));
    data = nullptr;
  }

 private:
  void allocate(size_t bytes) {
    Sentinel<CUdeviceptr> memory;
    CALL(DRIVER(cuMemAlloc)(memory.out(), bytes));
    begin_ = memory.result();
    allocated_ = bytes;
  }
  CUdeviceptr begin_ = 0;
  size_t allocated_ = 0;
};

/// Asks for a dma-buf of a range. The result is open, or there is none.
struct Export {
  CUresult code;
  Descriptor descriptor;

  Export(CUdeviceptr address, size_t bytes, unsigned long long flags = 0,
         CUmemRangeHandleType type = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) {
    Sentinel<int> number;
    code = NOTED(DRIVER(cuMemGetHandleForAddressRange)(number.out(), address,
                                                       bytes, type, flags));
    if (code == CUDA_SUCCESS) descriptor = Descriptor(number.result());
  }
  bool accepted() const { return code == CUDA_SUCCESS; }
  /// Is the result an open descriptor?
  bool is_open() const { return fcntl(descriptor.get(), F_GETFD) != -1; }
};

/// The dma-buf of a range; the call must succeed.
inline Descriptor dma_buf_of(CUdeviceptr address, size_t bytes) {
  Export range(address, bytes);
  CALL(range.code);
  return std::move(range.descriptor);
}

/// Is this the reference model? Where it has dma-bufs that can be mapped, it
/// makes one only of a range that begins where memory begins, and lies in one
/// memory.
inline bool is_the_model() {
  cudaDeviceProp properties;
  CALL(cudaGetDeviceProperties(&properties, 0));
  return std::strcmp(properties.name, "ipclab reference model") == 0;
}

/// Is the result an open dma-buf of at least these bytes? The kernel says the
/// size of a dma-buf at its end. A dma-buf of the model has a size only if it
/// can be mapped.
inline testing::AssertionResult is_dma_buf(const Export& range, size_t bytes) {
  if (!range.is_open())
    return testing::AssertionFailure() << "gives no open descriptor";
  int maps = 0;  // a driver before CUDA 13.3 does not know the attribute
  DRIVER(cuDeviceGetAttribute)
  (&maps, CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED, 0);
  if (maps != 1 && is_the_model()) return testing::AssertionSuccess();
  const off_t size = lseek(range.descriptor.get(), 0, SEEK_END);
  if (size >= static_cast<off_t>(bytes)) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "gives a descriptor that is no dma-buf of " << bytes
         << " bytes: its size is " << size;
}

/// Does the model say that it cannot make a dma-buf of this range? Then there
/// is nothing to judge. A driver must be able to make it.
inline bool beyond_the_model(Role& me, const Export& range) {
  if (range.code != CUDA_ERROR_NOT_SUPPORTED || !is_the_model()) return false;
  me.not_applicable(
      "the reference model can map a dma-buf only of one memory, from its "
      "first byte on");
  return true;
}

/// A dma-buf that a process maps without CUDA.
class HostMapping {
 public:
  HostMapping(const Descriptor& buffer, size_t bytes,
              int access = PROT_READ | PROT_WRITE, size_t offset = 0)
      : buffer_(buffer.get()), bytes_(bytes) {
    memory_ = mmap(nullptr, bytes, access, MAP_SHARED, buffer_,
                   static_cast<off_t>(offset));
    error_ = memory_ == MAP_FAILED ? errno : 0;
  }
  HostMapping(const HostMapping&) = delete;
  ~HostMapping() {
    if (error_ == 0) munmap(memory_, bytes_);
  }

  /// Did mmap(2) succeed? If not, the reason.
  testing::AssertionResult works() const {
    if (error_ == 0) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "mmap: " << std::strerror(error_);
  }
  bool is_there() const { return error_ == 0; }
  Words words() const { return Words(memory_, bytes_); }
  /// Does the CPU read the pattern?
  testing::AssertionResult reads(Pattern expected) const {
    return reads(0, bytes_, expected);
  }
  /// Does the CPU read the pattern in a part of the mapping?
  testing::AssertionResult reads(size_t offset, size_t bytes,
                                 Pattern expected) const {
    const Access access(buffer_, DMA_BUF_SYNC_READ);
    return host_reads(Words(words().data + offset / sizeof(uint32_t), bytes),
                      expected);
  }
  /// In how many words does the CPU read this value?
  size_t count(uint32_t value) const {
    const Access access(buffer_, DMA_BUF_SYNC_READ);
    const Words all = words();
    return static_cast<size_t>(
        std::count(all.data, all.data + all.count, value));
  }
  /// The CPU writes the pattern. The writes have arrived when this returns.
  void write(Pattern values) const {
    const Access access(buffer_, DMA_BUF_SYNC_WRITE);
    host_writes(words(), values);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }

 private:
  // The kernel asks for these calls around each access. They may be refused
  // where they are not needed.
  class Access {
   public:
    Access(int buffer, unsigned long long how) : buffer_(buffer), how_(how) {
      sync(DMA_BUF_SYNC_START);
    }
    Access(const Access&) = delete;
    ~Access() { sync(DMA_BUF_SYNC_END); }

   private:
    void sync(unsigned long long when) const {
      dma_buf_sync wanted{};
      wanted.flags = how_ | when;
      ioctl(buffer_, DMA_BUF_IOCTL_SYNC, &wanted);
    }
    int buffer_;
    unsigned long long how_;
  };

  int buffer_;
  size_t bytes_;
  void* memory_ = MAP_FAILED;
  int error_ = 0;
};

/// What a CPU finds in a mapping: the name of the pattern whose values it
/// reads, or "other values".
inline std::string seen_by_host(
    const HostMapping& mapping,
    std::initializer_list<std::pair<const char*, Pattern>> known) {
  if (!mapping.is_there()) return mapping.works().message();
  for (const auto& [name, values] : known)
    if (mapping.reads(values)) return name;
  return "other values";
}

/// The file to which a descriptor refers.
struct FileIdentity {
  dev_t device = 0;
  ino_t number = 0;
  bool open = false;

  explicit FileIdentity(int descriptor) {
    struct stat file {};
    open = fstat(descriptor, &file) == 0;
    if (open) device = file.st_dev, number = file.st_ino;
  }
  bool operator==(const FileIdentity& other) const {
    return open == other.open && device == other.device &&
           number == other.number;
  }
};

// --- external memory --------------------------------------------------------

/// What an import of external memory gets.
struct Wanted {
  int descriptor;
  size_t bytes;
  unsigned flags = 0;
  int type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
};

/// CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD, which CUDA 13.0 added.
inline constexpr int kDmaBufType = 9;

inline cudaError_t import_external(RuntimeApi, cudaExternalMemory_t* memory,
                                   const Wanted& wanted) {
  cudaExternalMemoryHandleDesc told{};
  told.type = static_cast<cudaExternalMemoryHandleType>(wanted.type);
  told.handle.fd = wanted.descriptor;
  told.size = wanted.bytes;
  told.flags = wanted.flags;
  return NOTED(cudaImportExternalMemory(memory, &told));
}
inline CUresult import_external(DriverApi, cudaExternalMemory_t* memory,
                                const Wanted& wanted) {
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC told{};
  told.type = static_cast<CUexternalMemoryHandleType>(wanted.type);
  told.handle.fd = wanted.descriptor;
  told.size = wanted.bytes;
  told.flags = wanted.flags;
  return NOTED(DRIVER(cuImportExternalMemory)(
      reinterpret_cast<CUexternalMemory*>(memory), &told));
}

inline cudaError_t map_external(RuntimeApi, void** address,
                                cudaExternalMemory_t memory, size_t offset,
                                size_t bytes, unsigned flags = 0) {
  cudaExternalMemoryBufferDesc told{};
  told.offset = offset;
  told.size = bytes;
  told.flags = flags;
  return NOTED(cudaExternalMemoryGetMappedBuffer(address, memory, &told));
}
inline CUresult map_external(DriverApi, void** address,
                             cudaExternalMemory_t memory, size_t offset,
                             size_t bytes, unsigned flags = 0) {
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC told{};
  told.offset = offset;
  told.size = bytes;
  told.flags = flags;
  return NOTED(DRIVER(cuExternalMemoryGetMappedBuffer)(
      reinterpret_cast<CUdeviceptr*>(address),
      reinterpret_cast<CUexternalMemory>(memory), &told));
}

inline cudaError_t destroy_external(RuntimeApi, cudaExternalMemory_t memory) {
  return NOTED(cudaDestroyExternalMemory(memory));
}
inline CUresult destroy_external(DriverApi, cudaExternalMemory_t memory) {
  return NOTED(DRIVER(cuDestroyExternalMemory)(
      reinterpret_cast<CUexternalMemory>(memory)));
}

/// A second descriptor of the same object. The caller must close it.
inline int duplicate(const Descriptor& descriptor) {
  return fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0);
}

/// Imported external memory.
template <class Api>
class External {
 public:
  /// Imports. The descriptor belongs to the driver afterwards.
  External(Api api, Descriptor descriptor, size_t bytes) {
    Sentinel<cudaExternalMemory_t> memory;
    CALL(import_external(api, memory.out(), {descriptor.get(), bytes}));
    descriptor.release();
    memory_ = memory.result();
  }
  External(const External&) = delete;
  ~External() {
    if (memory_ != nullptr) destroy_external(Api{}, memory_);
  }
  /// The object itself.
  cudaExternalMemory_t get() const { return memory_; }
  /// Destroys now, not in the destructor, for tests of this step.
  void destroy() {
    CALL(destroy_external(Api{}, memory_));
    memory_ = nullptr;
  }
  /// The test has destroyed it.
  void forget() { memory_ = nullptr; }

 private:
  cudaExternalMemory_t memory_ = nullptr;
};

/// A buffer that is mapped onto external memory.
template <class Api>
class ExternalBuffer : public Words {
 public:
  ExternalBuffer(Api api, const External<Api>& memory, size_t offset,
                 size_t bytes) {
    Sentinel<void*> address;
    CALL(map_external(api, address.out(), memory.get(), offset, bytes));
    static_cast<Words&>(*this) = Words(address.result(), bytes);
  }
  ExternalBuffer(const ExternalBuffer&) = delete;
  ~ExternalBuffer() {
    if (data != nullptr) Api::mem_free(data);
  }
  /// Frees now, not in the destructor, for tests of this step.
  void free() {
    CALL(Api::mem_free(data));
    data = nullptr;
  }
};

}  // namespace ipclab
