// Global state of the simulation. It is created from the environment, and tests can replace it.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_simulation/state.h"

#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "tensor/gpu/inventory.h"
#include "tutti/core/error.h"

namespace tutti::cuda_simulation {
namespace {

constexpr std::size_t kAlignment = 256, kFence = 256, kPage = 4096;
constexpr int kFenceByte = 0xFB, kPoison = 0xCD;
// number of bytes at the start of a block that are poisoned
constexpr std::size_t kPoisoned = std::size_t{4} << 20;

/// Returns the state, which is not destroyed at exit, because threads may still use it.
std::unique_ptr<World>& the_world() {
  static std::unique_ptr<World>& world = *std::make_unique<std::unique_ptr<World>>().release();
  return world;
}

std::optional<std::string> environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

std::int64_t number(const std::string& text, const char* variable) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    fail(ErrorCode::kInvalidArgument, variable, ": expected a number >= 0, got '", text, "'");
  }
  return value;
}

Faults read_faults(const std::string& text) {
  constexpr const char* kVariable = "TUTTI_SIMULATED_GPU_FAULTS";
  Faults faults;
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const std::size_t colon = entry.find(':');
    const std::string name = entry.substr(0, colon);
    const std::string value = colon == std::string::npos ? "" : entry.substr(colon + 1);
    if (name == "kernel") {
      faults.kernel = number(value, kVariable);
    } else if (name == "allocation") {
      faults.allocation = number(value, kVariable);
    } else if (entry == "peers:none") {
      faults.peers = false;
    } else {
      fail(ErrorCode::kInvalidArgument, kVariable,
           ": expected kernel:N, allocation:N or peers:none, got '", entry, "'");
    }
  }
  return faults;
}

}  // namespace

Arena::Arena(int num_gpus, std::size_t bytes_each, bool guard)
    : bytes_each_(bytes_each),
      bytes_(bytes_each * static_cast<std::size_t>(std::max(num_gpus, 1))),
      guard_(guard),
      used_(static_cast<std::size_t>(num_gpus)) {
  void* const base = mmap(nullptr, bytes_, guard ? PROT_NONE : PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TUTTI_CHECK(base != MAP_FAILED, "simulated GPUs: mmap() of ", bytes_, " bytes failed");
  base_ = static_cast<std::byte*>(base);
}

Arena::~Arena() { munmap(base_, bytes_); }

void Arena::protect(bool closed) {
  if (guard_) mprotect(base_, bytes_, closed ? PROT_NONE : PROT_READ | PROT_WRITE);
}

void* Arena::allocate(int gpu, std::size_t bytes) {
  if (bytes > bytes_each_) return nullptr;
  const std::size_t span = (bytes + kAlignment - 1) / kAlignment * kAlignment + kFence;
  const std::size_t first = bytes_each_ * static_cast<std::size_t>(gpu);
  std::size_t offset = first;
  for (auto block = blocks_.lower_bound(first); block != blocks_.end(); ++block) {
    if (block->first >= offset + span) break;
    offset = std::max(offset, block->first + block->second.span);
  }
  if (offset + span > first + bytes_each_) return nullptr;
  blocks_[offset] = {bytes, span};
  used_[static_cast<std::size_t>(gpu)] += span;
  const Opened opened(*this);
  std::memset(base_ + offset, kPoison, std::min(bytes, kPoisoned));
  std::memset(base_ + offset + bytes, kFenceByte, span - bytes);
  return base_ + offset;
}

Arena::Freed Arena::release(void* data) {
  const auto* const address = static_cast<std::byte*>(data);
  if (address < base_ || address >= base_ + bytes_) return Freed::kNoBlock;
  const auto found = blocks_.find(static_cast<std::size_t>(address - base_));
  if (found == blocks_.end()) return Freed::kNoBlock;
  const auto [offset, block] = *found;
  blocks_.erase(found);
  used_[offset / bytes_each_] -= block.span;
  const Opened opened(*this);
  std::byte* const begin = base_ + offset;
  const bool whole = std::all_of(begin + block.bytes, begin + block.span,
                                 [](std::byte b) { return b == std::byte{kFenceByte}; });
  std::memset(begin, kPoison, std::min(block.span, kPoisoned));
  if (block.span > kPoisoned + kPage) {  // returns the remaining memory to the system
    const std::size_t rest = (offset + kPoisoned + kPage - 1) / kPage * kPage;
    const std::size_t end = (offset + block.span) / kPage * kPage;
    if (end > rest) madvise(base_ + rest, end - rest, MADV_DONTNEED);
  }
  return whole ? Freed::kYes : Freed::kOverrun;
}

int Arena::gpu_of(const void* data, std::size_t bytes) const {
  const auto* const address = static_cast<const std::byte*>(data);
  if (address < base_ || address >= base_ + bytes_) return kHost;
  const auto offset = static_cast<std::size_t>(address - base_);
  auto block = blocks_.upper_bound(offset);
  if (block == blocks_.begin()) return kNowhere;
  --block;
  if (offset + bytes > block->first + block->second.bytes) return kNowhere;
  return static_cast<int>(offset / bytes_each_);
}

Machine machine_of_environment() {
  constexpr const char* kVariable = "TUTTI_SIMULATED_GPUS";
  Machine machine;
  if (const auto gpus = environment(kVariable)) {
    const std::size_t colon = gpus->find(':');
    machine.num_gpus = static_cast<int>(number(gpus->substr(0, colon), kVariable));
    if (colon != std::string::npos) {
      machine.bytes = static_cast<std::size_t>(number(gpus->substr(colon + 1), kVariable)) << 20;
    }
  }
  machine.guard = environment("TUTTI_SIMULATED_GPU_GUARD") != "0";
  machine.visible = environment("CUDA_VISIBLE_DEVICES");
  if (const auto faults = environment("TUTTI_SIMULATED_GPU_FAULTS")) {
    machine.faults = read_faults(*faults);
  }
  return machine;
}

World::World(const Machine& of)
    : machine(of),
      // An entry that is a UUID matches no GPU, because simulated GPUs have no UUIDs.
      visible(visible_devices(of.visible, of.num_gpus).value_or(std::vector<int>())),
      arena(static_cast<int>(visible.size()), of.bytes, of.guard),
      gpus(visible.size()) {
  for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu) {
    gpus[gpu].default_queue = std::make_shared<Queue>();
    gpus[gpu].default_queue->gpu = static_cast<int>(gpu);
    gpus[gpu].queues.push_back(gpus[gpu].default_queue);
  }
}

World::~World() {
  // Breaks reference cycles: a stream owns its pending work, whose records own streams.
  for (const Gpu& gpu : gpus) {
    for (const auto& queue : gpu.queues) queue->items.clear();
  }
}

bool World::is_pinned(const void* data) const {
  const auto* const address = static_cast<const std::byte*>(data);
  auto block = pinned.upper_bound(address);
  if (block == pinned.begin()) return false;
  --block;
  return address < block->first + block->second.first;
}

std::shared_ptr<Queue> World::queue_of(cudaStream_t stream) {
  if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    return gpus.empty() ? nullptr : gpus[static_cast<std::size_t>(this_thread().gpu)].default_queue;
  }
  const auto found = streams.find(stream);
  return found == streams.end() ? nullptr : found->second->queue;
}

Mutex& Locked::mutex() {
  static Mutex& mutex = *std::make_unique<Mutex>().release();
  return mutex;
}

CondVar& Locked::changed() {
  static CondVar& changed = *std::make_unique<CondVar>().release();
  return changed;
}

Locked::Locked()
    : lock_(mutex()), world_([]() -> World& {
        std::unique_ptr<World>& world = the_world();
        if (!world) world = std::make_unique<World>(machine_of_environment());
        return *world;
      }()) {}

ThreadState& this_thread() {
  thread_local ThreadState state;
  return state;
}

void set_machine(const Machine& machine) {
  MutexLock lock(Locked::mutex());
  the_world() = std::make_unique<World>(machine);
  this_thread() = {};
}

void inject(const Faults& faults) {
  const Locked world;
  world->machine.faults = faults;
  world->num_kernels = world->num_allocations = 0;
}

Counts counts() {
  const Locked world;
  Counts counts;
  counts.kernels = world->num_kernels;
  counts.live_blocks = static_cast<std::int64_t>(world->arena.num_blocks());
  for (std::size_t gpu = 0; gpu < world->gpus.size(); ++gpu) {
    counts.used_bytes += static_cast<std::int64_t>(world->arena.used(static_cast<int>(gpu)));
    for (const auto& queue : world->gpus[gpu].queues) {
      counts.waiting += static_cast<std::int64_t>(queue->items.size());
    }
  }
  return counts;
}

bool is_device_memory(const void* data) {
  const Locked world;
  return world->arena.gpu_of(data) >= 0;
}

}  // namespace tutti::cuda_simulation
