// The world of the simulation: made from the environment, replaced by tests.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_simulation/state.h"

#include <charconv>
#include <cstdlib>
#include <sstream>

#include "tensor/gpu/inventory.h"
#include "tutti/core/error.h"

namespace tutti::cuda_simulation {
namespace {

/// Lives as long as the process: threads may still use it while the process ends.
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
    fail(ErrorCode::kInvalidArgument, variable, ": cannot read '", text, "'; expected a number");
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
      fail(ErrorCode::kInvalidArgument, kVariable, ": cannot read '", entry,
           "'; expected kernel:N, allocation:N or peers:none");
    }
  }
  return faults;
}

}  // namespace

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
      // By UUID: the simulated GPUs have none, so nothing matches.
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
  // Work that never ran: its records hold the streams that hold it.
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
