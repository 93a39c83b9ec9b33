// Exporter and importer on different GPUs: the open enables peer access, also
// to a GPU that is hidden from the importer, and each device has its own count.
// Mirror of samples/07_legacy_two_gpus.
//
// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "harness/scenario/both_apis.h"
#include "harness/scenario/kernels.h"

using namespace ipclab;

namespace {

constexpr size_t kBytes = 4 << 20;
constexpr size_t kSmall = 4096;       // shares a block with others
constexpr size_t kLarge = 256 << 20;  // far more than anything else uses
constexpr unsigned kLazy = cudaIpcMemLazyEnablePeerAccess;
constexpr unsigned kAddsPerThread = 100;  // in each of 256 threads
constexpr int kRounds = 200;
constexpr int kPeersWithoutASwitch = 8;  // simpleIPC's limit

// A role's body that makes this device current and then runs `body`.
std::function<void(Role&)> on_device(int device,
                                     std::function<void(Role&)> body) {
  return [device, body = std::move(body)](Role& me) {
    CALL(cudaSetDevice(device));
    body(me);
  };
}

std::string uuid_of(int device) {
  cudaDeviceProp properties;
  CALL(cudaGetDeviceProperties(&properties, device));
  return std::string(properties.uuid.bytes, sizeof properties.uuid.bytes);
}

// An exporter that lends memory and then checks what the importer has written.
void lends_both_ways(Role& me) {
  int device = 0;
  CALL(cudaGetDevice(&device));
  const DeviceBuffer buffer(kBytes);
  buffer.fill(pattern("exporter"));
  me.send_bytes("uuid", uuid_of(device));
  me.send("handle", buffer.legacy_handle());
  me.wait("written");
  EXPECT_READS(buffer, pattern("importer"));
  me.signal("seen");
  me.wait("closed");
}

// Judges that the driver gives no address for the host.
void expect_no_host_pointer(CUdeviceptr address) {
  int other = 0;
  void* host_pointer = &other;
  EXPECT_CODE(CUDA_ERROR_INVALID_VALUE,
              DRIVER(cuPointerGetAttribute)(
                  &host_pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, address));
  // The query for many attributes may give null instead of this refusal. Then
  // it also gives the attributes after this one.
  unsigned type = 77;
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_HOST_POINTER,
                                 CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  void* answers[] = {&host_pointer, &type};
  const CUresult code =
      NOTED(DRIVER(cuPointerGetAttributes)(2, asked, answers, address));
  if (code == CUDA_SUCCESS) {
    EXPECT_EQ(host_pointer, nullptr) << "the host cannot use it";
    EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE}) << "the next attribute";
  } else {
    EXPECT_EQ(name_of(code), name_of(CUDA_ERROR_INVALID_VALUE));
  }
}

// Judges two attributes that only the list of all attributes describes. The
// driver may refuse them, but if it answers, the answer must be right.
void expect_usable_and_of_no_pool(CUdeviceptr address) {
  unsigned access = 77;
  if (NOTED(DRIVER(cuPointerGetAttribute)(
          &access, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, address)) == CUDA_SUCCESS)
    EXPECT_EQ(access, unsigned{CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE});
  int other = 0;
  auto pool = reinterpret_cast<CUmemoryPool>(&other);
  if (NOTED(DRIVER(cuPointerGetAttribute)(
          &pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address)) == CUDA_SUCCESS)
    EXPECT_EQ(pool, nullptr) << "no pool has made it";
}

// Judges the driver's attributes of an address inside the mapping, by the query
// for one attribute and by the query for many.
void expect_attributes(const Words& mapping, const uint32_t* at) {
  const CUdeviceptr address = address_of(at);
  CUcontext context = nullptr;
  unsigned type = 77, managed = 77, mapped = 77, capable = 77;
  CUdeviceptr device_pointer = 77, start = 77;
  unsigned long long id = 77, id_alone = 77;
  size_t size = 77;
  int ordinal = 77;
  // Not in the order of their numbers: the order of the request decides.
  CUpointer_attribute asked[] = {
      CU_POINTER_ATTRIBUTE_CONTEXT,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
      CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE,
      CU_POINTER_ATTRIBUTE_MAPPED,
      CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void* answers[] = {&context, &ordinal, &device_pointer, &managed, &type,
                     &capable, &start,   &size,           &mapped,  &id};
  // No sentence says that opened memory has an id.
  const bool has_id =
      NOTED(DRIVER(cuPointerGetAttribute)(
          &id_alone, CU_POINTER_ATTRIBUTE_BUFFER_ID, address)) == CUDA_SUCCESS;
  constexpr unsigned kAll = std::size(asked);
  EXPECT_SUCCESS(DRIVER(cuPointerGetAttributes)(has_id ? kAll : kAll - 1, asked,
                                                answers, address));
  if (has_id) EXPECT_EQ(id, id_alone);
  const auto alone = [at](auto value, CUpointer_attribute which) {
    return pointer_attribute<decltype(value)>(which, at);
  };
  EXPECT_EQ(alone(context, CU_POINTER_ATTRIBUTE_CONTEXT), context);
  EXPECT_EQ(
      alone(capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) & 0xff,
      capable & 0xff);
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(alone(type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE), type);
  EXPECT_EQ(device_pointer, address);
  EXPECT_EQ(alone(address, CU_POINTER_ATTRIBUTE_DEVICE_POINTER), address);
  expect_no_host_pointer(address);
  EXPECT_EQ(managed & 0xff, 0u);
  EXPECT_EQ(alone(ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), ordinal);
  // All addresses of the mapping have the same range.
  EXPECT_LE(start, address_of(mapping.data));
  EXPECT_GE(start + size, address_of(mapping.data) + mapping.bytes());
  const auto* const begin = mapping.data;
  EXPECT_EQ(start, pointer_attribute<CUdeviceptr>(
                       CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, begin));
  EXPECT_EQ(size,
            pointer_attribute<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, begin));
  EXPECT_EQ(alone(start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), start);
  EXPECT_EQ(alone(size, CU_POINTER_ATTRIBUTE_RANGE_SIZE), size);
  EXPECT_EQ(mapped & 0xff, 1u) << "it is mapped";
  EXPECT_EQ(alone(mapped, CU_POINTER_ATTRIBUTE_MAPPED) & 0xff, 1u);
  expect_usable_and_of_no_pool(address);
}

// Judges that the pointer queries return the kind and the place of the mapping.
void expect_known(Role& me, const Words& mapping, const std::string& uuid) {
  // First queries memory of this process: each pointer must get its own answer.
  const DeviceBuffer own(kBytes);
  Sentinel<cudaPointerAttributes> of_own, of_mapping;
  EXPECT_SUCCESS(cudaPointerGetAttributes(of_own.out(), own.data));
  EXPECT_EQ(of_own.result().devicePointer, own.data);
  uint32_t* const last = mapping.data + mapping.count - 1;
  EXPECT_SUCCESS(cudaPointerGetAttributes(of_mapping.out(), last));
  EXPECT_EQ(of_mapping.result().type, cudaMemoryTypeDevice) << "the last word";
  EXPECT_EQ(of_mapping.result().devicePointer, last);
  const char* const last_byte = reinterpret_cast<char*>(last + 1) - 1;
  EXPECT_SUCCESS(cudaPointerGetAttributes(of_mapping.out(), last_byte));
  EXPECT_EQ(of_mapping.result().type, cudaMemoryTypeDevice) << "the last byte";
  EXPECT_SUCCESS(cudaPointerGetAttributes(of_mapping.out(), mapping.data));
  const cudaPointerAttributes& attributes = of_mapping.result();
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.devicePointer, mapping.data);
  EXPECT_EQ(attributes.hostPointer, nullptr) << "the host cannot use it";
  expect_attributes(mapping, mapping.data);
  expect_attributes(mapping, mapping.data + mapping.count / 2);
  const auto seen_by_another_thread = in_a_thread([&] {
    cudaPointerAttributes told{};
    CALL(cudaPointerGetAttributes(&told, mapping.data));
    return told.type;
  });
  EXPECT_EQ(seen_by_another_thread, cudaMemoryTypeDevice);
  // The query may be the first CUDA call of a thread.
  cudaPointerAttributes told_first{};
  cudaError_t code = cudaErrorUnknown;
  std::thread([&] {
    code = cudaPointerGetAttributes(&told_first, mapping.data);
  }).join();
  EXPECT_SUCCESS(code);
  EXPECT_EQ(told_first.type, cudaMemoryTypeDevice) << "in a new thread";
  int count = 0;
  CALL(cudaGetDeviceCount(&count));
  ASSERT_GE(attributes.device, 0);
  ASSERT_LT(attributes.device, count);
  EXPECT_TRUE(uuid_of(attributes.device) == uuid)
      << "device " << attributes.device << " is not where the memory lies";
  EXPECT_EQ(
      pointer_attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, mapping.data),
      attributes.device)
      << "both APIs name one device";
  EXPECT_EQ(pointer_attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        mapping.data),
            unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(pointer_attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                        mapping.data),
            0u);
  const auto address = reinterpret_cast<CUdeviceptr>(mapping.data);
  const auto range_of = [](const Words& words, CUdeviceptr* base) {
    Sentinel<CUdeviceptr> begin;
    Sentinel<size_t> bytes;
    const auto first = reinterpret_cast<CUdeviceptr>(words.data);
    EXPECT_SUCCESS(
        DRIVER(cuMemGetAddressRange)(begin.out(), bytes.out(), first));
    EXPECT_LE(begin.result(), first);
    EXPECT_GE(begin.result() + bytes.result(), first + words.bytes());
    *base = begin.result();
    return bytes.result();
  };
  CUdeviceptr base = 0;
  range_of(own, &base);
  // These queries are for an address inside the allocation, and for one result
  // only.
  const auto inside = address_of(own.data + own.count / 2);
  Sentinel<CUdeviceptr> begin;
  Sentinel<size_t> bytes;
  EXPECT_SUCCESS(DRIVER(cuMemGetAddressRange)(begin.out(), nullptr, inside));
  EXPECT_EQ(begin.result(), address_of(own.data));
  EXPECT_SUCCESS(DRIVER(cuMemGetAddressRange)(nullptr, bytes.out(), inside));
  EXPECT_EQ(bytes.result(), kBytes);
  // The range of a small allocation ends before its neighbour begins.
  const DeviceBuffer small[] = {DeviceBuffer(kSmall), DeviceBuffer(kSmall)};
  for (const int i : {0, 1}) {
    const size_t length = range_of(small[i], &base);
    const CUdeviceptr other = address_of(small[1 - i].data);
    EXPECT_EQ(base, address_of(small[i].data));
    EXPECT_FALSE(base <= other && other < base + length)
        << "two allocations, one range";
  }
  const size_t size = range_of(mapping, &base);
  EXPECT_SUCCESS(DRIVER(cuMemGetAddressRange)(begin.out(), bytes.out(),
                                              address_of(last_byte)));
  EXPECT_EQ(begin.result(), base) << "of the last byte";
  EXPECT_EQ(bytes.result(), size) << "of the last byte";
  me.observe("cuMemGetAddressRange of " + std::to_string(mapping.bytes()) +
             " bytes: " + std::to_string(size) + " bytes, from " +
             std::to_string(address - base) + " before the pointer");
}

// Takes from this process the right to open the GPU's device file, as in a
// container without this GPU. Returns why this is not possible, or nothing.
std::optional<std::string> lock_out(const std::string& pci_bus_id) {
  std::ifstream facts("/proc/driver/nvidia/gpus/" + pci_bus_id +
                      "/information");
  std::string line, minor;
  while (std::getline(facts, line))
    if (line.rfind("Device Minor:", 0) == 0)
      minor = line.substr(line.find_first_not_of(" \t", 13));
  if (minor.empty()) return "no device file of GPU " + pci_bus_id;
  const std::string file = "/dev/nvidia" + minor;
  const char* path = file.c_str();
  if (unshare(CLONE_NEWNS) == -1 ||
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == -1 ||
      mount(path, path, nullptr, MS_BIND, nullptr) == -1 ||
      mount(nullptr, path, nullptr, MS_BIND | MS_REMOUNT | MS_NODEV, nullptr) ==
          -1)
    return "cannot hide " + file + ": " + std::strerror(errno);
  return std::nullopt;
}

}  // namespace

// An exporter that makes another GPU current before it exports memory.
static void lends_with_another_gpu_current(Role& me) {
  const DeviceBuffer buffer(kBytes);  // on GPU 0
  buffer.fill(pattern("exporter"));
  CALL(cudaSetDevice(1));
  const DeviceBuffer other(kBytes);  // what a wrong handle could name
  me.send("handle", buffer.legacy_handle());
  CALL(cudaSetDevice(0));
  me.wait("closed", 3);
}

// Judges that CUDA does not know the address.
static void expect_unregistered(const void* address) {
  cudaPointerAttributes attributes{};
  CALL(cudaPointerGetAttributes(&attributes, address));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

// Closes a mapping of GPU 0. If GPU 1 is current, the driver may refuse the
// close, but a close that succeeds must close.
static void closes_with_this_gpu_current(Role& me, const Words& on_0,
                                         int current) {
  CALL(cudaSetDevice(0));
  EXPECT_READS(on_0, pattern("exporter"));
  CALL(cudaSetDevice(current));
  const cudaError_t code = NOTED(cudaIpcCloseMemHandle(on_0.data));
  if (current == 0) EXPECT_EQ(name_of(code), name_of(cudaSuccess));
  if (code == cudaSuccess) return;
  me.observe("a close with another GPU current: " + name_of(code));
  cudaGetLastError();
  CALL(cudaSetDevice(0));
  CALL(cudaIpcCloseMemHandle(on_0.data));
}

// An importer that opens one handle once on GPU 0 and twice on GPU 1, and
// closes first what it opened on GPU `first_closed`.
static void opens_on_both_gpus(Role& me, const cudaIpcMemHandle_t& handle,
                               int first_closed) {
  CALL(cudaSetDevice(0));
  const Words on_0(open_handle(handle), kBytes);
  CALL(cudaSetDevice(1));
  // While GPU 1 is current, CUDA knows what was opened on GPU 0.
  Sentinel<cudaPointerAttributes> told;
  EXPECT_SUCCESS(cudaPointerGetAttributes(told.out(), on_0.data));
  EXPECT_EQ(told.result().type, cudaMemoryTypeDevice);
  EXPECT_TRUE(copy_reads(on_0, pattern("exporter"))) << "GPU 1 is current";
  void *first = nullptr, *second = nullptr;
  EXPECT_SUCCESS(cudaIpcOpenMemHandle(&first, handle, kLazy));
  EXPECT_SUCCESS(cudaIpcOpenMemHandle(&second, handle, kLazy));
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first, second) << "the second open in one context counts";
  const Words on_1(first, kBytes);
  EXPECT_READS(on_1, pattern("exporter"));
  const bool one_address = first == on_0.data;
  me.observe(one_address ? "both devices have one address"
                         : "each device has an address of its own");
  if (first_closed == 0) closes_with_this_gpu_current(me, on_0, 0);
  CALL(cudaSetDevice(1));
  EXPECT_TRUE(kernel_reads(on_1, pattern("exporter")));
  EXPECT_SUCCESS(cudaIpcCloseMemHandle(first));
  EXPECT_TRUE(kernel_reads(on_1, pattern("exporter"))) << "one open is left";
  EXPECT_SUCCESS(cudaIpcCloseMemHandle(first));
  if (first_closed == 0 || !one_address)
    EXPECT_REFUSED(cudaIpcCloseMemHandle(first), cudaErrorInvalidValue,
                   cudaErrorMapBufferObjectFailed, cudaErrorNotSupported);
  if (first_closed == 1)
    closes_with_this_gpu_current(me, on_0, one_address ? 0 : 1);
  // The opens of one device have not counted on the other device.
  expect_unregistered(first);
  expect_unregistered(on_0.data);
  me.signal("closed");
}

// An importer that opens one handle first on GPU 1 and then on GPU 0, and
// closes what it opened in the same order.
static void opens_on_gpu_1_first(Role& me, const cudaIpcMemHandle_t& handle) {
  CALL(cudaSetDevice(1));
  const Words on_1(open_handle(handle), kBytes);
  CALL(cudaSetDevice(0));
  Sentinel<void*> opened;
  EXPECT_SUCCESS(cudaIpcOpenMemHandle(opened.out(), handle, kLazy));
  const Words on_0(opened.result(), kBytes);
  EXPECT_READS(on_0, pattern("exporter"));
  CALL(cudaSetDevice(1));
  EXPECT_TRUE(kernel_reads(on_1, pattern("exporter")));
  EXPECT_SUCCESS(cudaIpcCloseMemHandle(on_1.data));
  CALL(cudaSetDevice(0));
  EXPECT_TRUE(kernel_reads(on_0, pattern("exporter"))) << "GPU 1 has closed";
  EXPECT_TRUE(copy_reads(on_0, pattern("exporter"))) << "GPU 1 has closed";
  EXPECT_SUCCESS(cudaIpcCloseMemHandle(on_0.data));
  expect_unregistered(on_0.data);
  me.signal("closed");
}

TEST(LegacyTwoGpus, EachDeviceOfTheImporterHasAMappingOfItsOwn) {
  covers("LMEM-27");
  needs(gpus(2), legacy_memory, peer_access);
  Scenario scenario;
  scenario.role("exporter", lends_with_another_gpu_current);
  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
    for (const int first_closed : {0, 1}) {
      SCOPED_TRACE("closed first on GPU " + std::to_string(first_closed));
      opens_on_both_gpus(me, handle, first_closed);
    }
    opens_on_gpu_1_first(me, handle);
  });
  scenario.run(20s);
}

// The exporter of a test in which a peer writes to the memory and adds to a
// counter in it.
static void lends_to_a_peer(Role& me) {
  const DeviceBuffer buffer(kBytes);
  buffer.fill(pattern("exporter"));
  const DeviceBuffer before(kSmall), small(kSmall);  // usually in one block
  small.fill(pattern("small"));
  me.send("small", small.legacy_handle());
  me.send("handle", buffer.legacy_handle());
  me.wait("written");
  EXPECT_READS(buffer, pattern("importer"));
  CALL(cudaMemset(buffer.data, 0, kBytes));
  CALL(cudaDeviceSynchronize());
  me.signal("zeroed");
  const auto added = me.receive<unsigned>("added");
  unsigned sum = 1;
  CALL(cudaMemcpy(&sum, buffer.data, sizeof sum, cudaMemcpyDeviceToHost));
  expected_but_saw(std::to_string(added), std::to_string(sum));
  EXPECT_EQ(sum, added);
  me.signal("summed");
  me.wait("closed");
}

// The importer of this test. First the open enables peer access, and later the
// program enables peer access itself.
template <class Api>
static void borrows_from_a_peer(Role& me, Api api, int from, int to) {
  CALL(cudaFree(nullptr));  // the driver API needs a context
  const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
  MappingBy mapping(api, handle, kBytes);
  int current = -1;
  CALL(cudaGetDevice(&current));
  EXPECT_EQ(current, to) << "an open makes no other device current";
  EXPECT_READS(mapping, pattern("exporter"));
  mapping.fill(pattern("importer"));
  me.signal("written");
  MappingBy small(api, me.receive<cudaIpcMemHandle_t>("small"), kSmall);
  EXPECT_READS(small, pattern("small"));
  small.close();

  me.wait("zeroed");
  int native = 0;
  CALL(cudaDeviceGetP2PAttribute(&native, cudaDevP2PAttrNativeAtomicSupported,
                                 to, from));
  if (native != 0) {
    launch_add(mapping.data, kAddsPerThread);
    CALL(cudaDeviceSynchronize());
  } else {
    me.observe("these GPUs have no atomics between them");
  }
  me.send("added", native != 0 ? 256 * kAddsPerThread : 0u);
  me.wait("summed");
  // Whether the open counts as an enable of the program is not documented. An
  // enable that succeeds lasts until the program disables peer access.
  const cudaError_t while_open = NOTED(cudaDeviceEnablePeerAccess(from, 0));
  me.observe("GPU " + std::to_string(to) +
             ", cudaDeviceEnablePeerAccess while the handle is open: " +
             name_of(while_open));
  EXPECT_TRUE(while_open == cudaSuccess ||
              while_open == cudaErrorPeerAccessAlreadyEnabled);
  cudaGetLastError();
  EXPECT_TRUE(context_is_usable());
  mapping.close();

  // The open also works if the program has enabled peer access itself.
  const cudaError_t code = NOTED(cudaDeviceEnablePeerAccess(from, 0));
  EXPECT_TRUE(code == cudaErrorPeerAccessAlreadyEnabled ||
              (code == cudaSuccess && while_open != cudaSuccess))
      << name_of(code);
  cudaGetLastError();
  Sentinel<void*> again;
  EXPECT_SUCCESS(api.ipc_open_mem_handle(again.out(), handle));
  const Words late(again.result(), kBytes);
  late.fill(pattern("late"));
  EXPECT_READS(late, pattern("late"));
  EXPECT_SUCCESS(api.ipc_close_mem_handle(late.data));
  me.signal("closed");
}

TEST(LegacyTwoGpus, TheOpenEnablesPeerAccess) {
  covers("LMEM-30");
  needs(gpus(2), legacy_memory, peer_access);
  for (const int from : {0, 1}) {
    const int to = 1 - from;
    for_each_api([=](auto api) {
      Scenario scenario;
      scenario.role("exporter", on_device(from, lends_to_a_peer));
      scenario.role("importer", on_device(to, [=](Role& me) {
                      borrows_from_a_peer(me, api, from, to);
                    }));
      scenario.run(20s);
    });
  }
}

TEST(LegacyTwoGpus, TheDriverOpensMemoryOfAPeer) {
  covers("LMEM-30");
  needs(gpus(2), legacy_memory, peer_access);
  Scenario scenario;
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role(
      "importer", on_device(1, [](Role& me) {
        const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
        CUdeviceptr opened = 0;
        ASSERT_TRUE(gives(NOTED(DRIVER(cuIpcOpenMemHandle)(
                              &opened, same_bytes<CUipcMemHandle>(handle),
                              CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)),
                          "cuIpcOpenMemHandle", CUDA_SUCCESS));
        const Words words(reinterpret_cast<void*>(opened), kBytes);
        EXPECT_READS(words, pattern("exporter"));
        EXPECT_SUCCESS(DRIVER(cuIpcCloseMemHandle)(opened));
        me.signal("closed");
      }));
  scenario.run(20s);
}

TEST(LegacyTwoGpus, WhereTheGpusAreNoPeersTheOpenIsRefused) {
  covers("LMEM-31");
  needs(gpus(2), legacy_memory);
  Scenario scenario;

  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role(
      "importer", on_device(1, [](Role& me) {
        const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
        int can = 0;
        CALL(cudaDeviceCanAccessPeer(&can, 1, 0));
        if (can == 0) {
          Sentinel<int> same_answer;
          CALL(DRIVER(cuDeviceCanAccessPeer)(same_answer.out(), 1, 0));
          EXPECT_EQ(same_answer.result(), 0);
          Sentinel<void*> pointer;
          EXPECT_REFUSED(cudaIpcOpenMemHandle(pointer.out(), handle, kLazy),
                         cudaErrorMapBufferObjectFailed,
                         cudaErrorInvalidResourceHandle,
                         cudaErrorDeviceUninitialized, cudaErrorTooManyPeers,
                         cudaErrorNotSupported, cudaErrorInvalidValue);
          Sentinel<void*> same;
          EXPECT_REFUSED(DriverApi::ipc_open_mem_handle(same.out(), handle),
                         CUDA_ERROR_MAP_FAILED, CUDA_ERROR_INVALID_HANDLE,
                         CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_TOO_MANY_PEERS,
                         CUDA_ERROR_INVALID_VALUE);
          EXPECT_TRUE(context_is_usable());
          CALL(cudaSetDevice(0));  // this GPU can open the handle
          EXPECT_TRUE(context_is_usable());
          for_each_api([&](auto api) {
            MappingBy mapping(api, handle, kBytes);
            EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
            mapping.close();
          });
        }
        if (can != 0) me.not_applicable("GPU 1 reaches GPU 0");
        me.signal("closed");
      }));
  scenario.run(20s);
}

TEST(LegacyTwoGpus, WhereTheOpenWorksTheGpusAreSaidToBePeers) {
  covers("LMEM-31");
  needs(gpus(2), legacy_memory, peer_access);
  Scenario scenario;
  scenario.role("exporter", lends(pattern("exporter"), kBytes));
  scenario.role("importer", on_device(1, [](Role& me) {
                  const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
                  Sentinel<int> can, same;
                  CALL(cudaDeviceCanAccessPeer(can.out(), 1, 0));
                  EXPECT_EQ(can.result(), 1);
                  CALL(DRIVER(cuDeviceCanAccessPeer)(same.out(), 1, 0));
                  EXPECT_EQ(same.result(), 1);
                  by_both_apis([&](auto api) {
                    MappingBy mapping(api, handle, kBytes);
                    EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
                    mapping.close();
                  });
                  me.signal("closed");
                }));
  scenario.run(20s);
}

// An importer that opens the handles of all other GPUs, one GPU after another.
static void opens_handles_of_all_other_gpus(Role& me) {
  int count = 0;
  CALL(cudaGetDeviceCount(&count));
  CALL(cudaSetDevice(count - 1));
  std::vector<Words> mappings;
  const auto expect_all = [&] {
    for (size_t device = 0; device < mappings.size(); ++device)
      EXPECT_TRUE(kernel_reads(mappings[device],
                               pattern("GPU " + std::to_string(device))));
  };
  bool refused = false;
  for (int device = 0; device < count - 1 && !refused; ++device) {
    const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
    void* opened = nullptr;
    const cudaError_t code =
        NOTED(cudaIpcOpenMemHandle(&opened, handle, kLazy));
    if (code == cudaSuccess) {
      mappings.emplace_back(opened, kBytes);
      continue;
    }
    refused = true;
    EXPECT_EQ(name_of(code), name_of(cudaErrorTooManyPeers));
    EXPECT_EQ(cudaGetLastError(), code);
    EXPECT_TRUE(context_is_usable());
    ASSERT_FALSE(mappings.empty());
    expect_all();
    CALL(cudaIpcCloseMemHandle(mappings.back().data));  // makes room for a peer
    mappings.pop_back();
    LegacyMapping instead(handle, kBytes);
    EXPECT_TRUE(
        kernel_reads(instead, pattern("GPU " + std::to_string(device))));
    instead.close();
  }
  expect_all();
  const size_t peers = mappings.size();
  for (const Words& mapping : mappings)
    CALL(cudaIpcCloseMemHandle(mapping.data));
  me.signal("closed");
  if (refused) return;
  if (peers > kPeersWithoutASwitch)
    me.lifted(std::to_string(peers) + " peers at the same time");
  else
    me.not_applicable("a GPU has room for all other GPUs of this machine");
}

// One GPU borrows from the other GPUs until it can have no more peers.
TEST(LegacyTwoGpus, TooManyPeersAreRefused) {
  covers("LMEM-32");
  needs(gpus(4), legacy_memory, peer_access);
  Scenario scenario(Scenario::kShared);

  scenario.role("exporter", [](Role& me) {
    int count = 0;
    CALL(cudaGetDeviceCount(&count));
    std::vector<std::unique_ptr<DeviceBuffer>> buffers;
    for (int device = 0; device < count - 1; ++device) {
      CALL(cudaSetDevice(device));
      buffers.push_back(std::make_unique<DeviceBuffer>(kBytes));
      buffers.back()->fill(pattern("GPU " + std::to_string(device)));
      me.send("handle", buffers.back()->legacy_handle());
    }
    me.wait("closed");
  });

  scenario.role("importer", opens_handles_of_all_other_gpus);
  scenario.run(60s);
}

// An importer that does not see the GPU whose memory it opens.
static void borrows_from_a_hidden_gpu(Role& me) {
  int count = 0;
  CALL(cudaGetDeviceCount(&count));
  ASSERT_EQ(count, 1);
  ASSERT_TRUE(uuid_of(0) != me.receive_bytes("uuid"));
  const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
  Sentinel<void*> opened, again;
  EXPECT_SUCCESS(cudaIpcOpenMemHandle(opened.out(), handle, kLazy));
  const Words mapping(opened.result(), kBytes);
  EXPECT_READS(mapping, pattern("exporter"));
  // Each open counts, also here.
  EXPECT_SUCCESS(cudaIpcOpenMemHandle(again.out(), handle, kLazy));
  EXPECT_EQ(again.result(), mapping.data);
  EXPECT_SUCCESS(cudaIpcCloseMemHandle(mapping.data));
  EXPECT_TRUE(kernel_reads(mapping, pattern("exporter"))) << "one is left";

  CALL(cudaMemset(mapping.data, 0x3C, kBytes));
  CALL(cudaDeviceSynchronize());
  std::vector<unsigned char> bytes(kBytes, 0);
  CALL(cudaMemcpy(bytes.data(), mapping.data, kBytes, cudaMemcpyDefault));
  EXPECT_EQ(bytes, std::vector<unsigned char>(kBytes, 0x3C));
  // A kernel writes the first half and a copy the second half.
  const size_t half = mapping.count / 2;
  std::vector<uint32_t> values(half);
  const Pattern written = pattern("importer");
  for (size_t i = 0; i < half; ++i) values[i] = written.at(half + i);
  Words(mapping.data, kBytes / 2).fill(pattern("importer"));
  CALL(cudaMemcpy(mapping.data + half, values.data(), kBytes / 2,
                  cudaMemcpyHostToDevice));
  CALL(cudaDeviceSynchronize());
  me.signal("written");
  me.wait("seen");
  Sentinel<cudaPointerAttributes> told;
  EXPECT_SUCCESS(cudaPointerGetAttributes(told.out(), mapping.data));
  EXPECT_EQ(told.result().type, cudaMemoryTypeDevice);
  EXPECT_EQ(told.result().devicePointer, mapping.data);
  me.observe("memory of a hidden GPU counts as device " +
             std::to_string(told.result().device));
  EXPECT_SUCCESS(cudaIpcCloseMemHandle(mapping.data));
  me.signal("closed");
}

TEST(LegacyTwoGpus, AHandleOfAHiddenGpuOpens) {
  covers("LMEM-33");
  needs(gpus(2), legacy_memory, peer_access);
  for (const int from : {0, 1}) {
    Scenario scenario;
    scenario.role("exporter", on_device(from, lends_both_ways));
    scenario.role("importer", borrows_from_a_hidden_gpu)
        .env("CUDA_VISIBLE_DEVICES", visible_gpus({1 - from}));
    scenario.run(20s);
  }
}

// An importer that opens two allocations of a peer. Its closes end the peer
// access that its opens enabled.
template <class Api>
static void closes_what_a_peer_lent(Role& me, Api api) {
  CALL(cudaFree(nullptr));  // the driver API needs a context
  const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
  leaves_nothing(kRounds, [&](int) { MappingBy(api, handle, kBytes).close(); });
  // The first of two closes leaves the peer access that the other mapping
  // needs.
  MappingBy first(api, handle, kBytes);
  MappingBy second(api, me.receive<cudaIpcMemHandle_t>("second"), kBytes);
  first.close();
  EXPECT_READS(second, pattern("second"));
  second.close();
  // The same is true if the other mapping is of another exporter.
  MappingBy other(api, me.receive<cudaIpcMemHandle_t>("other"), kBytes);
  {
    MappingBy whole(api, handle, kLarge);
    const Words tail(whole.data + whole.count - kBytes / 4, kBytes);
    EXPECT_READS(tail, pattern("tail"));
    whole.close();
  }
  EXPECT_READS(other, pattern("other"));
  other.close();
  // Whether the open counts as an enable of the program is not documented.
  const cudaError_t enabled = NOTED(cudaDeviceEnablePeerAccess(0, 0));
  EXPECT_TRUE(enabled == cudaSuccess ||
              enabled == cudaErrorPeerAccessAlreadyEnabled)
      << name_of(enabled);
  observe_code(me, "an enable of peer access after the last close", enabled);
  MappingBy mapping(api, handle, kBytes);
  EXPECT_TRUE(kernel_reads(mapping, pattern("exporter")));
  mapping.close();
  // The close ends only the peer access that the open enabled.
  EXPECT_CODE(cudaErrorPeerAccessAlreadyEnabled,
              cudaDeviceEnablePeerAccess(0, 0));
  EXPECT_SUCCESS(cudaDeviceDisablePeerAccess(0));
  EXPECT_CODE(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(0));
  me.signal("closed");
  me.wait("memory is back");
}

// The exporter of this test. It frees the memory while another GPU is current.
template <class Api>
static void frees_what_a_peer_has_closed(Role& me, Api api) {
  CALL(cudaFree(nullptr));  // the driver API needs a context
  DeviceBuffer buffer(kLarge);
  Words(buffer.data, kBytes).fill(pattern("exporter"));
  Words(buffer.data + buffer.count - kBytes / 4, kBytes).fill(pattern("tail"));
  me.send("handle", handle_of(api, buffer));
  const DeviceBuffer second(kBytes);
  second.fill(pattern("second"));
  me.send("second", handle_of(api, second));
  me.wait("closed");
  const size_t held = free_memory();
  CALL(cudaSetDevice(1));
  buffer.free();
  CALL(cudaSetDevice(0));
  EXPECT_TRUE(returned(held, kLarge)) << "the importer has closed all";
  me.signal("memory is back");
}

TEST(LegacyTwoGpus, TheLastCloseFreesWhatPeerAccessTook) {
  covers("LMEM-34");
  needs(gpus(2), alone, legacy_memory, peer_access);
  for_each_api([](auto api) {
    Scenario scenario;
    scenario.role("exporter",
                  [=](Role& me) { frees_what_a_peer_has_closed(me, api); });
    scenario.role("other exporter", [](Role& me) {
      const DeviceBuffer other(kBytes);
      other.fill(pattern("other"));
      me.send("other", other.legacy_handle());
      me.wait("memory is back");  // the end of this process gives back more
    });
    scenario.role("importer", on_device(1, [=](Role& me) {
                    closes_what_a_peer_lent(me, api);
                  }));
    scenario.run(60s);
  });
}

TEST(LegacyTwoGpus, PointerQueriesKnowAnImportedPointer) {
  covers("LMEM-36");
  needs(gpus(1), legacy_memory);
  Scenario scenario(Scenario::kShared);
  scenario.role("exporter", [](Role& me) {
    me.send_bytes("uuid", uuid_of(0));
    const DeviceBuffer before(kSmall), small(kSmall);  // usually in one block
    me.send("small", small.legacy_handle());
    lends(pattern("exporter"), kBytes)(me);
  });
  scenario.role("importer", [](Role& me) {
    const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
    const auto of_small = me.receive<cudaIpcMemHandle_t>("small");
    const std::string uuid = me.receive_bytes("uuid");
    by_both_apis([&](auto api) {
      MappingBy mapping(api, handle, kBytes);
      expect_known(me, mapping, uuid);
      mapping.close();
      MappingBy small(api, of_small, kSmall);
      expect_known(me, small, uuid);
      small.close();
    });
    me.signal("closed");
  });
  scenario.run(20s);
}

TEST(LegacyTwoGpus, PointerQueriesSpeakOfTheImportersNumbering) {
  covers("LMEM-36");
  needs(gpus(2), legacy_memory, peer_access);
  for (const int opens_on : {0, 1}) {
    Scenario scenario;
    scenario.role("exporter", lends_both_ways);
    scenario
        .role("importer",
              on_device(opens_on,
                        [](Role& me) {
                          const std::string uuid = me.receive_bytes("uuid");
                          ASSERT_TRUE(uuid_of(1) == uuid);
                          LegacyMapping mapping(
                              me.receive<cudaIpcMemHandle_t>("handle"), kBytes);
                          expect_known(me, mapping, uuid);
                          mapping.fill(pattern("importer"));
                          me.signal("written");
                          me.wait("seen");
                          mapping.close();
                          me.signal("closed");
                        }))
        .env("CUDA_VISIBLE_DEVICES", visible_gpus({1, 0}));
    scenario.run(20s);
  }
}

TEST(LegacyTwoGpus, AGpuOutsideTheContainer) {
  covers("PLAT-16");
  needs(gpus(2), legacy_memory, peer_access);
  static constexpr char kTable[] = "a GPU whose device file cannot be opened";
  Scenario scenario;

  scenario.role("exporter", [](Role& me) {
    const DeviceBuffer buffer(kBytes);
    buffer.fill(pattern("exporter"));
    char bus[32] = {};
    CALL(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
    me.send_bytes("bus", bus);
    me.send("handle", buffer.legacy_handle());
    me.wait_for_end("importer");
    EXPECT_TRUE(kernel_reads(buffer, pattern("exporter")));
  });

  scenario
      .role(
          "importer",
          [](Role& me) {
            std::string bus = me.receive_bytes("bus");
            for (char& c : bus)
              c = static_cast<char>(
                  std::tolower(static_cast<unsigned char>(c)));
            const auto handle = me.receive<cudaIpcMemHandle_t>("handle");
            if (const auto hindered = lock_out(bus))
              return me.not_applicable(*hindered);
            int count = 0;
            const cudaError_t code = NOTED(cudaGetDeviceCount(&count));
            me.observe("without the other GPU's device file: " +
                       std::to_string(count) + " GPUs, " + name_of(code));
            // Without a GPU nothing can be opened, so nothing was seen.
            if (code != cudaSuccess || count == 0)
              return me.not_applicable("CUDA sees no GPU: " + name_of(code));
            void* opened = nullptr;
            const Outcome outcome = outcome_of(
                NOTED(cudaIpcOpenMemHandle(&opened, handle, kLazy)),
                {cudaErrorMapBufferObjectFailed, cudaErrorInvalidResourceHandle,
                 cudaErrorDeviceUninitialized, cudaErrorTooManyPeers,
                 cudaErrorNotSupported, cudaErrorInvalidValue});
            me.tabulate(kTable, "cudaIpcOpenMemHandle", outcome);
            if (outcome.kind == Outcome::kWrongSuccess)
              CALL(cudaIpcCloseMemHandle(opened));
            EXPECT_TRUE(context_is_usable());
          })
      .may_end_by(SIGSEGV);
  scenario.run(20s);
}
