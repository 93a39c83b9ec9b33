// SPDX-License-Identifier: Apache-2.0
// What the hosts tell each other.
#include "core/race_host.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "core/race_file.h"

extern "C" {
// The linker's names for this library's own first and last byte of code.
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char etext[] __attribute__((visibility("hidden")));
}

namespace ipclab::model::race {
namespace {

// System calls are made as such here: messages/ has functions in front of the C
// library's.

void add(Slot* to, const Slot& from) {
  if (from.count == 0) return;
  Clock clock;
  clock.join(from.entries, from.entries + from.count);
  race::add(to, clock);
}

/// The entry of a process, or null. The file is locked.
Host* find(pid_t pid) {
  const uint32_t count = std::min<uint32_t>(file->hosts, kHosts);
  for (uint32_t k = count; k > 0; --k)
    if (file->host[k - 1].pid == static_cast<uint32_t>(pid))
      return &file->host[k - 1];
  return nullptr;
}

/// The entry of this process. A child of vfork has none.
Host* me() {
  static std::atomic<uint64_t> known{0};  // the process, and its number
  const auto pid = static_cast<uint32_t>(getpid());
  const uint64_t last = known.load(std::memory_order_relaxed);
  if (last >> 32 == pid) return &file->host[last & 0xFFFFFFFFu];
  Host* host = find(static_cast<pid_t>(pid));
  if (host != nullptr)
    known = uint64_t{pid} << 32 | static_cast<uint64_t>(host - file->host);
  return host;
}

/// A new entry for this process; null if there is no room.
Host* make_me() {
  Host* host = find(getpid());
  if (host == nullptr) {
    const uint32_t number = file->hosts;
    if (number == kHosts) {
      file->unseen = static_cast<uint32_t>(getpid());
      return nullptr;
    }
    host = &file->host[number];
    host->pid = static_cast<uint32_t>(getpid());
    file->hosts = number + 1;
  }
  host->uses_gpu = 0;
  host->text_begin = host->text_end = 0;
  host->shared_count = 0;
  return host;
}

Channel* channel_of(uint64_t key, bool make) {
  uint64_t at = key * 0x9E3779B97F4A7C15u >> 32;
  for (uint32_t tries = 0; tries < kChannels; ++tries, ++at) {
    Channel& channel = file->channel[at % kChannels];
    if (channel.key == key) return &channel;
    if (channel.key != 0) continue;
    if (!make) return nullptr;
    channel.key = key;
    return &channel;
  }
  file->unseen = static_cast<uint32_t>(getpid());
  return nullptr;
}

void add_to(Channel* channel, const Host& host) {
  if (host.knows.count == 0) return;
  if (channel->slot == 0) channel->slot = take(file->slots, kSlots);
  if (channel->slot != 0) add(&file->slot[channel->slot], host.knows);
}

void read_shared(Host* host) {
  for (uint32_t k = 0; k < host->shared_count; ++k)
    if (const uint32_t slot = file->channel[host->shared[k]].slot; slot != 0)
      add(&host->knows, file->slot[slot]);
}

void write_shared(const Host& host) {
  for (uint32_t k = 0; k < host.shared_count; ++k)
    if (host.writes[k] != 0) add_to(&file->channel[host.shared[k]], host);
}

uint32_t known_of(const Slot& slot, uint32_t actor) {
  for (uint32_t k = 0; k < slot.count; ++k)
    if (slot.entries[k].step == (kActor | actor)) return slot.entries[k].clock;
  return 0;
}

/// Can a process still do something? A zombie cannot.
bool lives(uint32_t pid) {
  char path[32], text[512];
  std::snprintf(path, sizeof path, "/proc/%u/stat", pid);
  const auto file = static_cast<int>(
      syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
  if (file < 0) return false;
  const long size = syscall(SYS_read, file, text, sizeof text - 1);
  syscall(SYS_close, file);
  text[size > 0 ? size : 0] = '\0';
  const char* const name_end = std::strrchr(text, ')');
  return name_end != nullptr && std::strlen(name_end) > 2 &&
         name_end[2] != 'Z' && name_end[2] != 'X';
}

/// Does each process that uses a GPU and still lives know so many steps?
bool all_know(uint32_t actor, uint32_t steps) {
  if (file->unseen != 0) return true;
  const uint32_t count = file->hosts;
  for (uint32_t k = 0; k < count; ++k) {
    const Host& host = file->host[k];
    if (host.uses_gpu == 0 || known_of(host.knows, actor) >= steps) continue;
    if (lives(host.pid)) return false;
  }
  return true;
}

/// Marks the destroyed streams that all hosts know to their end.
void settle() {
  const Slot& any = file->any_host;
  for (uint32_t k = 0; k < any.count; ++k) {
    if ((any.entries[k].step & kActor) == 0) continue;
    const uint32_t number = any.entries[k].step & ~kActor;
    Closed& actor = file->actor[number % kActors];
    const uint32_t steps = __atomic_load_n(&actor.steps, __ATOMIC_ACQUIRE);
    if (steps != 0 && any.entries[k].clock + 1 >= steps &&
        all_know(number, steps - 1))
      __atomic_store_n(&actor.over, 1, __ATOMIC_RELEASE);
  }
}

void join(Clock* into, const Slot& slot) {
  into->join(slot.entries, slot.entries + slot.count);
}

}  // namespace

void fetch_host(Clock* into) {
  const Guard guard(&file->lock);
  Host* host = me();
  if (host == nullptr || file->unseen != 0) return join(into, file->any_host);
  read_shared(host);
  join(into, host->knows);
}

void tell_host(const Clock& clock) {
  const Guard guard(&file->lock);
  race::add(&file->any_host, clock);
  if (Host* host = me()) {
    race::add(&host->knows, clock);
    read_shared(host);
    write_shared(*host);
  }
  settle();
}

void fetch_any_host(Clock* into) {
  const Guard guard(&file->lock);
  join(into, file->any_host);
}

void host_uses_gpu() {
  const Guard guard(&file->lock);
  Host* host = me();
  if (host == nullptr) {
    file->unseen = static_cast<uint32_t>(getpid());
    return;
  }
  host->uses_gpu = 1;
  host->text_begin = reinterpret_cast<uintptr_t>(__ehdr_start);
  host->text_end = reinterpret_cast<uintptr_t>(etext);
}

void host_began() {
  const Guard guard(&file->lock);
  const bool after_exec = find(getpid()) != nullptr;
  Host* host = make_me();
  if (host == nullptr || after_exec) return;
  const Host* parent = find(getppid());
  add(&host->knows, parent != nullptr ? parent->knows : file->any_host);
}

void host_forked(pid_t pid) {
  const Guard guard(&file->lock);
  Host* host = make_me();
  const Host* parent = find(pid);
  if (host == nullptr || parent == nullptr) return;
  const auto own = host->pid;
  *host = *parent;
  host->pid = own;
  host->uses_gpu = 0;  // CUDA does not survive a fork
}

bool is_by_model(const void* address) {
  const Host* host = me();
  const auto at = reinterpret_cast<uintptr_t>(address);
  return host != nullptr && at >= host->text_begin && at < host->text_end;
}

void sent(uint64_t key) {
  const Guard guard(&file->lock);
  Host* host = me();
  if (host == nullptr) return;
  read_shared(host);
  Channel* channel = channel_of(key, true);
  if (channel == nullptr) return;
  channel->sent = 1;
  add_to(channel, *host);
}

void received(uint64_t key, bool unseen) {
  const Guard guard(&file->lock);
  Host* host = me();
  if (host == nullptr) return;
  const Channel* channel = channel_of(key, false);
  if (channel != nullptr && channel->slot != 0)
    add(&host->knows, file->slot[channel->slot]);
  if (unseen && (channel == nullptr || channel->sent == 0))
    add(&host->knows, file->any_host);
  write_shared(*host);
}

void shares(uint64_t key, bool writes) {
  const Guard guard(&file->lock);
  Host* host = me();
  Channel* channel = channel_of(key, true);
  if (host == nullptr || channel == nullptr) return;
  const auto number = static_cast<uint32_t>(channel - file->channel);
  uint32_t* const end = host->shared + host->shared_count;
  const auto place = static_cast<uint32_t>(
      std::find(host->shared, end, number) - host->shared);
  if (place == kShared) {
    file->unseen = host->pid;
    return;
  }
  if (place == host->shared_count) {
    host->shared[host->shared_count++] = number;
    host->writes[place] = 0;
  }
  if (writes) host->writes[place] = 1;
  write_shared(*host);
}

void learned_from(pid_t pid) {
  const Guard guard(&file->lock);
  Host* host = me();
  if (host == nullptr) return;
  const Host* other = find(pid);
  add(&host->knows, other != nullptr ? other->knows : file->any_host);
  write_shared(*host);
}

void told(pid_t pid) {
  const Guard guard(&file->lock);
  const Host* host = me();
  if (host == nullptr) return;
  const uint32_t count = file->hosts;
  for (uint32_t k = 0; k < count; ++k) {
    Host& other = file->host[k];
    if (pid > 0 && other.pid != static_cast<uint32_t>(pid)) continue;
    add(&other.knows, host->knows);
  }
}

void learned_from_ended() {
  const Guard guard(&file->lock);
  Host* host = me();
  if (host == nullptr) return;
  const uint32_t count = file->hosts;
  for (uint32_t k = 0; k < count; ++k)
    if (file->host[k].knows.count != 0 && !lives(file->host[k].pid))
      add(&host->knows, file->host[k].knows);
  write_shared(*host);
}

}  // namespace ipclab::model::race
