// SPDX-License-Identifier: Apache-2.0
// The files that the simulated machine consists of. Each file is a memfd, so
// nothing is left when its processes end. Its name says to which machine it
// belongs. Its seals make sure that no process shortens it while it is mapped.
// A lock on the file shows every process of the machine how much memory of a
// GPU the file uses.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace ipclab::model {

/// The machine that this process sees: the machine that IPCLAB_MODEL_MACHINE
/// names, or, without this variable, the machine of the login session. Handles
/// and memory of another machine do not exist here.
uint64_t machine_id();

/// Why other processes may have a file.
enum class Sharing { kNo, kExported, kImported };

class SharedFile {
 public:
  enum class Size { kFixed, kGrows };

  SharedFile() = default;
  SharedFile(SharedFile&& other) noexcept;
  SharedFile& operator=(SharedFile&& other) noexcept;
  ~SharedFile();

  /// A new file of `size` bytes, which are all zero. If resources are missing,
  /// the file is not valid and errno is set. `what` is a part of its name.
  static SharedFile create(const char* what, uint64_t size, Size kind);
  /// Takes over a descriptor. If it does not name a file of this machine, or if
  /// it is a dma-buf, closes the descriptor, and the result is not valid.
  static SharedFile adopt(int descriptor);
  /// Opens the file that another process of the machine has under this number.
  /// If this is not possible, or if it is not a file of this machine, the
  /// result is not valid. Only a failed system call sets errno.
  static SharedFile open_of(uint32_t pid, int descriptor);

  bool valid() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  uint64_t size() const;
  /// Makes the file as large as `size`; only for Size::kGrows.
  bool grow_to(uint64_t size);
  /// Sets how many bytes of a GPU this file uses. They count as long as a
  /// process has the file open or mapped.
  void count(int gpu, uint64_t bytes);
  /// Notes that other processes may have this file.
  void share(Sharing how);
  /// Opens the file again for a program: a new descriptor, which keeps the
  /// bytes counted and which adopt() refuses. -1 if this is not possible.
  int open_as_dma_buf() const;

 private:
  explicit SharedFile(int descriptor);
  void close_now();
  int descriptor_ = -1;
};

/// The sum of the bytes of this GPU that the files of this machine use. Each
/// file is added once.
uint64_t counted_bytes(int gpu);

/// Does this process have a file that was exported or imported?
bool shares_memory();
/// Does this process have a file that was imported?
bool has_imports();

/// The bytes that this process counts, now and later, count for nobody until
/// count_again(). Memory that other processes count stays counted.
void stop_counting();
/// False, without any effect, if a GPU does not have so many bytes; `most` is
/// what a GPU has.
bool count_again(uint64_t most);

/// Does a process have a file of this machine open, as far as /proc shows?
bool has_files_of_machine(int pid);

}  // namespace ipclab::model
