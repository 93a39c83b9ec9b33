// SPDX-License-Identifier: Apache-2.0
// The PTX interpreter of the reference model. It finds the PTX that nvcc
// embeds, decodes it once and runs kernels on the CPU.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ipclab::ptx {

/// The memory that a launch may use. Device addresses lie in one window of the
/// process's address space; host pointers in that range fault, so the
/// interpreter adds `alias` to reach the bytes.
struct AddressSpace {
  uint64_t window_begin = 0;
  uint64_t window_size = 0;  ///< bytes
  int64_t alias = 0;         ///< host address = device address + alias
  /// One byte for each 2 MiB page of the window, as this GPU sees it: bit 0
  /// read, bit 1 write, bit 2 "ask" (see `lookup`).
  const uint8_t* page_access = nullptr;
  /// For addresses outside the window and for "ask" pages: returns the host
  /// address of [address, address + size), or null if the access is not
  /// allowed. If there is no function, every such access is a fault. It is
  /// called from the thread that calls run() (and from helper threads if
  /// IPCLAB_MODEL_THREADS is above 1).
  void* (*lookup)(void* context, uint64_t address, uint64_t size,
                  bool write) = nullptr;
  void* lookup_context = nullptr;
  /// malloc and free of device code. malloc returns 0 if there is no room.
  /// Without these functions there is never room. They are called from the same
  /// threads as `lookup`.
  uint64_t (*allocate)(void* heap, uint64_t size) = nullptr;
  void (*release)(void* heap, uint64_t address) = nullptr;
  void* heap = nullptr;
};

/// Why a kernel ended early.
struct Fault {
  /// A CUresult: 218 if the kernel cannot be interpreted, 700 illegal address,
  /// 702 timeout, 710 assert, 715 illegal instruction, 716 misaligned address,
  /// 718 call of something that is not a function, 719 trap, stack overflow or
  /// a wrong use of an mbarrier.
  int code = 0;
  uint64_t address = 0;
  uint32_t size = 0;  ///< bytes of the access
  bool write = false;
  std::string kernel;
  int line = 0;      ///< in the PTX text
  std::string what;  ///< one line for people; it names what is known
};

/// What an instruction does to memory.
struct Effect {
  enum Kind {
    kNothing,
    kRead,
    kWrite,
    kUpdate,
    kFence,
    kCopy,
    kBulkCopy,
    kCopyGroup,  ///< cp.async.commit_group, wait_group, wait_all
  };
  /// As in the PTX ISA, "Memory Consistency Model". `volatile` and `mmio` count
  /// as kRelaxed at kSystem.
  enum Order { kWeak, kRelaxed, kAcquire, kRelease, kAcquireRelease };
  enum Scope { kBlock, kCluster, kGpu, kSystem };
  /// How a thread can wait for its asynchronous copies: groups of cp.async,
  /// groups of cp.async.bulk, or an mbarrier.
  enum Copies { kNoCopies, kGroups, kBulkGroups, kCounted };

  uint16_t kind : 3;
  uint16_t order : 3;
  uint16_t scope : 2;
  uint16_t bytes : 6;   ///< that one thread accesses
  uint16_t copies : 2;  ///< the access is one of these, or completes them
};
static_assert(sizeof(Effect) == 2);

/// One access of the lanes of a warp. A block is named by its number in the
/// grid (x first), a thread by warp * 32 + lane.
struct Touch {
  enum Memory { kGlobal, kShared, kGrid };
  Effect effect;  ///< kRead, kWrite or kUpdate
  int line;       ///< in the PTX text
  uint32_t block;
  uint32_t warp;
  uint32_t lanes;  ///< one bit for each lane
  uint32_t bytes;  ///< of one lane
  Memory memory;
  uint32_t owner;  ///< kShared: the block whose memory it is
  /// Device addresses, or offsets in the shared memory of `owner`, or in the
  /// barrier of a cooperative grid.
  uint64_t address[32];
};

/// Watches a launch. All functions are called on the thread that calls run().
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void begin(uint32_t block, uint32_t threads,
                     uint32_t shared_bytes) = 0;
  virtual void end(uint32_t block) = 0;
  /// Before a write or an update is done, and after a read or an update.
  virtual void before(const Touch& touch) = 0;
  virtual void after(const Touch& touch) = 0;
  virtual void fence(uint32_t block, uint32_t warp, uint32_t lanes,
                     Effect::Scope scope) = 0;
  /// Lanes end the open group of their copies if `commits`, and wait until at
  /// most `left` groups are not done (kNoWait: they do not wait).
  static constexpr uint32_t kNoWait = ~0u;
  virtual void group_copies(uint32_t block, uint32_t warp, uint32_t lanes,
                            Effect::Copies copies, bool commits,
                            uint32_t left) = 0;
  /// Lanes arrive at a barrier of their block. If `waits`, they go on when it
  /// is complete.
  virtual void arrive(uint32_t block, uint32_t warp, uint32_t lanes,
                      uint32_t barrier, bool waits) = 0;
  /// `all`: every thread of the block that has not ended has arrived.
  virtual void complete(uint32_t block, uint32_t barrier, bool all) = 0;
  /// The lanes have met at bar.warp.sync.
  virtual void meet(uint32_t block, uint32_t warp, uint32_t lanes) = 0;
  /// barrier.cluster.arrive and .wait.
  virtual void arrive_at_cluster(uint32_t block, uint32_t warp, uint32_t lanes,
                                 uint32_t cluster) = 0;
  virtual void leave_cluster(uint32_t block, uint32_t warp, uint32_t lanes,
                             uint32_t cluster) = 0;
};

struct Function;  // code.h
struct Program;   // code.h

/// One `.entry` of a module.
class Kernel {
 public:
  struct Parameter {
    uint32_t offset, size;  ///< bytes
  };

  const std::string& name() const { return name_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  uint32_t parameter_bytes() const { return parameter_bytes_; }
  uint32_t static_shared_bytes() const { return static_shared_bytes_; }
  uint32_t local_bytes() const { return local_bytes_; }
  /// An estimate: the number of registers in the PTX, at least 8, at most 255.
  uint32_t register_count() const { return register_count_; }
  /// The value of .maxntid or .reqntid; 1024 without these directives.
  uint32_t max_threads_per_block() const { return max_threads_per_block_; }
  /// The three values of .reqnctapercluster; zeros without this directive.
  const unsigned* required_cluster() const { return required_cluster_; }
  /// The line of source ("file.cu:12") from which a line of the PTX text was
  /// made; empty if the program was built without -lineinfo.
  std::string source_of(int line) const;
  /// Empty, or why the kernel cannot run: "instruction 'xyz' (line N) is not
  /// supported".
  const std::string& unsupported() const { return unsupported_; }

 private:
  friend class ModuleBuilder;
  friend class Module;
  friend class Grid;
  friend class Worker;
  std::string name_;
  std::vector<Parameter> parameters_;
  uint32_t parameter_bytes_ = 0;
  uint32_t static_shared_bytes_ = 0;
  uint32_t local_bytes_ = 0;
  uint32_t register_count_ = 0;
  uint32_t max_threads_per_block_ = 1024;
  unsigned required_cluster_[3] = {0, 0, 0};
  std::string unsupported_;
  const Function* function_ = nullptr;
  const Program* program_ = nullptr;
  uint32_t stack_bytes_ = 0;
};

/// A parsed and decoded PTX text.
class Module {
 public:
  /// A variable at module scope.
  struct Variable {
    std::string name;
    uint64_t size = 0;
    uint64_t alignment = 1;
    bool constant = false;
    bool managed = false;
    std::vector<uint8_t> initial;  ///< empty, or `size` bytes
    uint64_t address = 0;          ///< set by the caller before link()
    /// Places in `initial` where link() writes an address.
    struct Relocation {
      uint64_t offset;
      std::string symbol;
      int64_t addend;
    };
    std::vector<Relocation> relocations;
  };

  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Parses and decodes. Several texts may be concatenated (separate
  /// compilation). A `.version` line starts the next text, and a text sees only
  /// .visible and .weak names of other texts. If a text is malformed, throws
  /// std::runtime_error, which names the PTX line. An unsupported instruction
  /// only marks its kernel.
  static std::unique_ptr<Module> parse(std::string_view ptx);

  /// The kernel of that name, or null.
  const Kernel* kernel(std::string_view name) const;
  const std::vector<std::unique_ptr<Kernel>>& kernels() const;

  /// All `.global` and `.const` variables. The caller allocates memory for
  /// them, sets `address`, calls link() and then writes `initial`.
  std::vector<Variable>& variables();
  /// Resolves names to addresses in the code and in initialisers. Throws
  /// std::runtime_error for a name that no text defines.
  void link();

 private:
  friend class ModuleBuilder;
  Module();
  std::unique_ptr<Program> program_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<Variable> variables_;
};

struct Launch {
  const Kernel* kernel = nullptr;
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned cluster[3] = {1, 1, 1};  ///< blocks; each divides the grid's size
  unsigned dynamic_shared_bytes = 0;
  /// kernel->parameter_bytes() bytes, in the layout of kernel->parameters().
  const void* parameters = nullptr;
  const AddressSpace* space = nullptr;
  double limit_seconds = 0;  ///< an endless kernel ends with 702; 0 = no limit
  /// May be null. Another thread can set it to end the kernel (code 702).
  const std::atomic<bool>* cancel = nullptr;
  /// Prints the text of device printf; if null, the text goes to standard
  /// output.
  void (*print)(void* context, const char* text) = nullptr;
  void* print_context = nullptr;
  /// All blocks become resident at once, so that grid.sync() can work.
  bool cooperative = false;
  /// May be null. With an observer, one host thread runs the launch.
  Observer* observer = nullptr;
};

/// Runs a grid on the calling thread. Returns when the grid is done: nullopt,
/// or the fault that ended it. Several threads may run kernels at once, also
/// the same kernel. IPCLAB_MODEL_THREADS (default 1) is the number of host
/// threads of one launch.
std::optional<Fault> run(const Launch& launch);

/// The PTX text inside the image that __cudaRegisterFatBinary or
/// cuModuleLoadData gets: a fatbin wrapper, a bare container, or PTX text. The
/// PTX may be compressed with zstd (needs libzstd.so.1). Returns one text for
/// each translation unit. If a unit has texts for several architectures, the
/// newest that is at most sm_<newest> is taken. If there is no such text,
/// throws std::runtime_error with a text that says what to do.
std::vector<std::string> ptx_of_image(const void* image, unsigned newest = 100);

}  // namespace ipclab::ptx
