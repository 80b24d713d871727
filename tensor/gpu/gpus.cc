// The GPUs of this process, found once.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/gpu/gpus.h"

#include <cstdlib>
#include <memory>
#include <utility>

#include "tensor/gpu/gpu_device.h"
#include "tensor/gpu/inventory.h"
#include "tensor/gpu/load_backend.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace {

struct Found {
  GpuModule module;
  DeviceBackend* backend = nullptr;
  std::vector<LogicalGpu> gpus;
  std::string reason;
  bool required = false;
};

struct State {
  Mutex mutex;
  std::optional<VirtualGpus> wanted TUTTI_GUARDED_BY(mutex);
  std::unique_ptr<const Found> found TUTTI_GUARDED_BY(mutex);
};

/// Lives as long as the process, as what it found does.
State& state() {
  static State& state = *std::make_unique<State>().release();
  return state;
}

std::optional<std::string> environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

VirtualGpus virtual_gpus_of(const std::optional<VirtualGpus>& wanted) {
  constexpr const char* kVariable = "TUTTI_VIRTUAL_GPUS";
  if (wanted) return *wanted;
  const auto text = environment(kVariable);
  return text ? parse_virtual_gpus(kVariable, *text) : VirtualGpus{};
}

void log_found(const Found& found, const LoadedBackend& loaded) {
  if (found.gpus.empty()) {
    // Nothing to say on a machine without a driver, little where the user hides the GPUs; else
    // somebody wonders why they are not used.
    const bool surprising = !loaded.module.empty() && !environment("CUDA_VISIBLE_DEVICES");
    for (const std::string& library : loaded.missing) log_warning("GPUs: missing " + library);
    log(surprising ? LogLevel::kWarning : LogLevel::kDebug, "GPUs: none: " + found.reason);
    return;
  }
  log_info("GPUs: " + found.module.description);
  for (const std::string& line : describe(*found.backend, found.gpus)) log_info(line);
}

std::unique_ptr<const Found> find_gpus(const std::optional<VirtualGpus>& wanted) {
  const VirtualGpus virtual_gpus = virtual_gpus_of(wanted);
  const BackendRequest request = BackendRequest::from_environment();
  LoadedBackend loaded = load_backend(request);
  auto found = std::make_unique<Found>();
  found->module = {loaded.module, "", loaded.is_simulated, loaded.missing};
  found->reason = loaded.reason;
  found->required = request.mode == CudaMode::kRequire;
  if (loaded.backend) {
    found->gpus = split_gpus(*loaded.backend, environment("CUDA_VISIBLE_DEVICES"), virtual_gpus);
    found->module.description = loaded.backend->description();
    found->backend = loaded.backend;
  }
  log_found(*found, loaded);
  return found;
}

const Found& found_gpus() {
  State& shared = state();
  MutexLock lock(shared.mutex);
  if (!shared.found) shared.found = find_gpus(shared.wanted);
  return *shared.found;
}

/// Tests put other GPUs in the place of these.
const internal::GpusForTest*& replaced() {
  static const internal::GpusForTest* gpus = nullptr;
  return gpus;
}

}  // namespace

void internal::set_gpus_for_test(const GpusForTest* gpus) { replaced() = gpus; }

void set_virtual_gpus(const VirtualGpus& virtual_gpus) {
  check_virtual_gpus("set_virtual_gpus", virtual_gpus);
  State& shared = state();
  MutexLock lock(shared.mutex);
  if (shared.found && !shared.found->gpus.empty()) {
    fail(ErrorCode::kFailedPrecondition,
         "set_virtual_gpus: the GPUs are in use; expected a call before devices are named");
  }
  shared.wanted = virtual_gpus;
}

const std::vector<LogicalGpu>& logical_gpus() {
  if (replaced()) return replaced()->gpus;
  const Found& found = found_gpus();
  if (found.required && found.gpus.empty()) {
    fail(ErrorCode::kUnavailable, "TUTTI_CUDA=require: no GPU: ", found.reason);
  }
  return found.gpus;
}

const std::string& gpu_unavailable_reason() {
  static const std::string none;
  return replaced() ? none : found_gpus().reason;
}

const GpuModule& gpu_module() { return found_gpus().module; }
DeviceBackend* gpu_backend() { return replaced() ? replaced()->backend : found_gpus().backend; }

}  // namespace tutti
