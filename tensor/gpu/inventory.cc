// Discovery of this process's GPUs: the module, logical devices, and descriptions for the log.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/gpu/inventory.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>
#include <sstream>
#include <utility>

#include "core/names.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"

namespace tutti {

// CUDA's rules for CUDA_VISIBLE_DEVICES.

std::optional<std::vector<int>> visible_devices(const std::optional<std::string>& mask,
                                                int num_devices) {
  std::vector<int> indices;
  if (!mask) {
    indices.resize(static_cast<std::size_t>(num_devices));
    std::iota(indices.begin(), indices.end(), 0);
    return indices;
  }
  if (mask->starts_with("GPU-") || mask->starts_with("MIG-")) return {};
  std::istringstream entries(*mask);
  for (std::string entry; std::getline(entries, entry, ',');) {
    // CUDA parses the list like strtol: it ignores leading blanks and text after the digits.
    char* end = nullptr;
    const long index = std::strtol(entry.c_str(), &end, 10);
    if (end == entry.c_str() || index < 0 || index >= num_devices) break;
    const int found = static_cast<int>(index);
    if (std::find(indices.begin(), indices.end(), found) != indices.end()) {
      return std::vector<int>();
    }
    indices.push_back(found);
  }
  return indices;
}

namespace {

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
constexpr int kMaxParts = 64;

std::int64_t parse_number(std::string_view who, std::string_view text) {
  if (const auto value = internal::parse_number<std::int64_t>(text)) return *value;
  fail(ErrorCode::kInvalidArgument, who,
       ": expected a number of parts per GPU, such as 4, or 4:512 for 512 MiB each, got '", text,
       "'");
}

std::string decimal(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string gib(std::int64_t bytes) {
  return decimal(static_cast<double>(bytes) / static_cast<double>(kMebibyte << 10), 2) + " GiB";
}

/// Returns the memory limit of each of the device's virtual GPUs.
std::int64_t limit_of(const PhysicalDevice& device, int ordinal, const VirtualGpus& wanted) {
  const std::int64_t share = device.free_bytes / wanted.per_gpu / kMebibyte * kMebibyte;
  if (wanted.memory_limit == 0) return share;
  internal::require(wanted.memory_limit <= device.total_bytes / wanted.per_gpu,
                    "virtual GPUs: expected at most ", device.total_bytes / kMebibyte,
                    " MiB in total, the memory of GPU ", ordinal, " (", device.name, "), got ",
                    wanted.per_gpu, " parts of ", wanted.memory_limit / kMebibyte,
                    " MiB each; try smaller parts");
  return wanted.memory_limit;
}

}  // namespace

void check_virtual_gpus(std::string_view who, const VirtualGpus& virtual_gpus) {
  internal::require(virtual_gpus.per_gpu >= 1 && virtual_gpus.per_gpu <= kMaxParts, who,
                    ": expected 1 to ", kMaxParts, " virtual GPUs per GPU, got ",
                    virtual_gpus.per_gpu);
  internal::require(virtual_gpus.memory_limit >= 0, who, ": expected a memory limit >= 0, got ",
                    virtual_gpus.memory_limit, " bytes");
}

VirtualGpus parse_virtual_gpus(std::string_view who, const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::int64_t parts = parse_number(who, std::string_view(text).substr(0, colon));
  VirtualGpus wanted;
  wanted.per_gpu = static_cast<int>(std::clamp<std::int64_t>(parts, std::numeric_limits<int>::min(),
                                                             std::numeric_limits<int>::max()));
  if (colon != std::string::npos) {
    const std::int64_t mebibytes = parse_number(who, std::string_view(text).substr(colon + 1));
    internal::require(
        mebibytes >= 1 && mebibytes <= std::numeric_limits<std::int64_t>::max() / kMebibyte, who,
        ": expected a memory limit of 1 MiB or more, got ", mebibytes, " MiB");
    wanted.memory_limit = mebibytes * kMebibyte;
  }
  check_virtual_gpus(who, wanted);
  return wanted;
}

std::vector<LogicalGpu> split_gpus(const DeviceBackend& backend,
                                   const std::optional<std::string>& mask,
                                   const VirtualGpus& virtual_gpus) {
  const int num_devices = backend.num_devices();
  // The number of GPUs in the machine is unknown here: the backend shows only the visible ones.
  const auto physical = visible_devices(mask, mask ? std::numeric_limits<int>::max() : num_devices);
  std::vector<LogicalGpu> gpus;
  for (int ordinal = 0; ordinal < num_devices; ++ordinal) {
    LogicalGpu gpu;
    gpu.ordinal = ordinal;
    const auto place = static_cast<std::size_t>(ordinal);
    if (physical && place < physical->size()) gpu.physical = (*physical)[place];
    gpu.num_parts = virtual_gpus.per_gpu;
    gpu.properties = backend.inspect(ordinal);
    gpu.memory_limit = limit_of(gpu.properties, ordinal, virtual_gpus);
    for (gpu.part = 0; gpu.part < gpu.num_parts; ++gpu.part) {
      gpu.index = static_cast<int>(gpus.size());
      gpus.push_back(gpu);
    }
  }
  return gpus;
}

std::string describe(const PhysicalDevice& device, int ordinal) {
  return concat("Found device ", ordinal, " with properties: name: ", device.name,
                ", compute capability: ", device.major, ".", device.minor,
                ", memory clock: ", decimal(device.memory_clock_ghz, 3),
                " GHz, PCI bus id: ", device.pci_bus_id,
                ", total memory: ", gib(device.total_bytes),
                ", free memory: ", gib(device.free_bytes));
}

std::string describe(const LogicalGpu& gpu) {
  std::string line = concat("Created gpu:", gpu.index, " -> (device: ", gpu.ordinal);
  if (gpu.physical && *gpu.physical != gpu.ordinal) {
    line += concat(", GPU ", *gpu.physical, " of this machine");
  }
  line += concat(", name: ", gpu.properties.name, ", PCI bus id: ", gpu.properties.pci_bus_id);
  if (gpu.num_parts > 1) line += concat(", part ", gpu.part + 1, " of ", gpu.num_parts);
  return concat(line, ", memory limit: ", gib(gpu.memory_limit), ")");
}

std::vector<std::string> describe_peers(const DeviceBackend& backend) {
  const int num_devices = backend.num_devices();
  std::string columns = "DMA:";
  for (int to = 0; to < num_devices; ++to) columns += concat(" ", to);
  std::vector<std::string> lines{columns};
  for (int from = 0; from < num_devices; ++from) {
    std::string line = concat(from, ":");
    line.resize(std::max(line.size(), std::string_view("DMA:").size()), ' ');
    for (int to = 0; to < num_devices; ++to) {
      const std::size_t width = concat(to).size();
      line += concat(std::string(width, ' '), backend.can_access_peer(from, to) ? "Y" : "N");
    }
    lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> describe(const DeviceBackend& backend, std::span<const LogicalGpu> gpus) {
  std::vector<std::string> lines;
  for (const LogicalGpu& gpu : gpus) {
    if (gpu.part == 0) lines.push_back(describe(gpu.properties, gpu.ordinal));
  }
  for (std::string& line : describe_peers(backend)) lines.push_back(std::move(line));
  for (const LogicalGpu& gpu : gpus) lines.push_back(describe(gpu));
  return lines;
}

// Finds the driver, the module and the libraries with dlopen().

namespace {

namespace fs = std::filesystem;

constexpr const char* kDriver = "libcuda.so.1";
constexpr const char* kModule = "libtutti_cuda.so";
constexpr std::size_t kReasonBytes = 1024;

std::string last_dl_error() {
  const char* const text = dlerror();
  return text ? text : "unknown reason";
}

/// Returns the folder of the program or library that this code was linked into.
fs::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&last_dl_error), &info) == 0 || !info.dli_fname) return {};
  std::error_code error;
  return fs::weakly_canonical(info.dli_fname, error).parent_path();
}

fs::path program_folder() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

/// Opens the module's backend.
void ask_module(void* module, LoadedBackend& loaded) {
  const auto open = reinterpret_cast<OpenBackend>(dlsym(module, "tutti_open_backend"));
  if (!open) {
    loaded.reason = concat(loaded.module,
                           " is not a CUDA module of tutti: it has no symbol "
                           "tutti_open_backend; unset TUTTI_CUDA_MODULE");
    return;
  }
  std::array<char, kReasonBytes> reason{};
  loaded.backend = open(backend_build_id(), reason.data(), reason.size());
  if (!loaded.backend) loaded.reason = reason.data();
}

bool has_driver(std::string& reason) {
  if (dlopen(kDriver, RTLD_NOW | RTLD_LOCAL)) return true;
  reason = concat("no NVIDIA driver (", last_dl_error(), "); install it, or use cpu:0");
  return false;
}

/// Returns the first existing candidate. The last is a bare name, which only dlopen can look up.
std::string existing_module() {
  for (const std::string& candidate : module_candidates()) {
    std::error_code error;
    const bool is_there = candidate == kModule ? dlopen(kModule, RTLD_NOW | RTLD_LOCAL) != nullptr
                                               : fs::exists(candidate, error);
    if (is_there) return candidate;
  }
  return "";
}

/// Opens the named module before the driver, because only the module shows whether its GPUs are
/// simulated and need no driver.
LoadedBackend load_named(const std::string& path) {
  LoadedBackend loaded;
  loaded.module = path;
  void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!module) {
    loaded.reason = concat("TUTTI_CUDA_MODULE cannot be opened: ", last_dl_error());
    return loaded;
  }
  loaded.is_simulated = dlsym(module, "tutti_backend_is_simulated") != nullptr;
  const bool is_module = dlsym(module, "tutti_open_backend") != nullptr;
  if (is_module && !loaded.is_simulated && !has_driver(loaded.reason)) return loaded;
  ask_module(module, loaded);
  return loaded;
}

/// Opens the module of this build.
LoadedBackend load_own() {
  LoadedBackend loaded;
  if (!std::string(TUTTI_WITHOUT_CUDA_MODULE).empty()) {
    loaded.reason = TUTTI_WITHOUT_CUDA_MODULE;
    return loaded;
  }
  if (!has_driver(loaded.reason)) return loaded;
  loaded.module = existing_module();
  if (loaded.module.empty()) {
    loaded.reason = concat("the CUDA module was not found (looked for ", join(module_candidates()),
                           "); set TUTTI_CUDA_MODULE to its path");
    return loaded;
  }
  void* const module = dlopen(loaded.module.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module) {
    ask_module(module, loaded);
    return loaded;
  }
  const std::string why = last_dl_error();
  return explain_failure(loaded.module, why, find_libraries(needed_libraries()));
}

}  // namespace

LoadedBackend explain_failure(const std::string& module, const std::string& why,
                              std::span<const FoundLibrary> libraries) {
  LoadedBackend loaded;
  loaded.module = module;
  for (const FoundLibrary& library : libraries) {
    if (library.path.empty()) loaded.missing.push_back(library.name);
  }
  const std::size_t count = loaded.missing.size();
  loaded.reason = count == 0 ? concat("the CUDA module cannot be opened: ", why)
                             : concat("CUDA librar", count == 1 ? "y" : "ies",
                                      " missing: ", join(loaded.missing),
                                      "; install CUDA, cuDNN and NCCL, or add their folder to "
                                      "LD_LIBRARY_PATH");
  return loaded;
}

BackendRequest BackendRequest::from_environment() {
  BackendRequest request;
  if (const char* const module = std::getenv("TUTTI_CUDA_MODULE")) request.module = module;
  const char* const value = std::getenv("TUTTI_CUDA");
  const std::string mode = value ? value : "auto";
  if (mode == "off") {
    request.mode = CudaMode::kOff;
  } else if (mode == "require") {
    request.mode = CudaMode::kRequire;
  } else if (mode != "auto") {
    fail(ErrorCode::kInvalidArgument, "TUTTI_CUDA: expected off, auto or require, got '", mode,
         "'");
  }
  return request;
}

LoadedBackend load_backend(const BackendRequest& request) {
  if (request.mode == CudaMode::kOff) {
    LoadedBackend loaded;
    loaded.reason = "TUTTI_CUDA=off hides the GPUs; unset it";
    return loaded;
  }
  return request.module.empty() ? load_own() : load_named(request.module);
}

std::vector<FoundLibrary> find_libraries(std::span<const std::string> names) {
  std::vector<FoundLibrary> found;
  for (const std::string& name : names) {
    FoundLibrary library{name, ""};
    void* handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
    for (const std::string& folder : split_text(TUTTI_CUDA_LIBRARY_FOLDERS)) {
      if (!handle) handle = dlopen((fs::path(folder) / name).c_str(), RTLD_LAZY | RTLD_LOCAL);
    }
    link_map* map = nullptr;
    if (handle && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map) library.path = map->l_name;
    // The library stays open, because some libraries contain their own C++ runtime, whose memory
    // would leak if its code were unloaded.
    found.push_back(std::move(library));
  }
  return found;
}

std::vector<std::string> needed_libraries() { return split_text(TUTTI_CUDA_LIBRARIES); }

std::vector<std::string> module_candidates() {
  std::vector<std::string> paths;
  const auto add = [&](const fs::path& folder) {
    const std::string path = (folder / kModule).lexically_normal().string();
    for (const std::string& known : paths) {
      if (known == path) return;
    }
    paths.push_back(path);
  };
  for (const fs::path& folder : {program_folder(), own_folder()}) {
    if (folder.empty()) continue;
    add(folder);
    add(folder / "../lib");
    add(folder / ".." / TUTTI_INSTALL_LIBDIR);
  }
  paths.emplace_back(kModule);
  return paths;
}

// The GPUs of this process, found once.

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

/// Returns the state, which is never destroyed, because the backend and the GPUs live as long as
/// the process.
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
    // Without a module (for lack of a driver, say), or if CUDA_VISIBLE_DEVICES is set, the reason
    // is logged only at debug level. Otherwise the reason is a warning, because the user may expect
    // the GPUs to be used.
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

/// Returns the GPUs that a test uses instead of the real ones.
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
         "set_virtual_gpus: the GPUs are in use; expected a call before the first use of a GPU");
  }
  shared.wanted = virtual_gpus;
}

const std::vector<LogicalGpu>& logical_gpus() {
  if (replaced()) return replaced()->gpus;
  const Found& found = found_gpus();
  if (found.required && found.gpus.empty()) {
    fail(ErrorCode::kUnavailable, "TUTTI_CUDA=require, but there is no GPU: ", found.reason);
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
