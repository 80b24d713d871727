// `tutti doctor`: contents of this build, properties of this machine, and a verdict.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "data/image_sets.h"
#include "tensor/gpu/inventory.h"
#include "tools/commands.h"
#include "tools/launch/child_process.h"
#include "tutti/core/error.h"
#include "tutti/core/executor.h"
#include "tutti/core/json.h"
#include "tutti/core/logging.h"
#include "tutti/core/text.h"
#include "tutti/cross_device_ops/mpi/mpi_transport.h"
#include "tutti/tensor/gpu/gpus.h"
#include "tutti/tensor/numerics.h"
#include "tutti/tensor/xla/xla_devices.h"

namespace tutti::tools {
namespace {

enum class Verdict { kGood, kAbsent, kLimited, kBad };

/// One line of the report.
struct Finding {
  std::string subject;
  Verdict verdict = Verdict::kGood;
  std::string found;
  std::string advice = {};  // remedy; empty if none is needed
};

/// Versions of the libraries in this build, set by tools/CMakeLists.txt; empty for libraries that
/// the build does not contain.
constexpr struct {
  std::string_view version = TUTTI_VERSION, build_type = TUTTI_BUILD_TYPE;
  std::string_view compiler = TUTTI_COMPILER, sanitizers = TUTTI_SANITIZERS;
  std::string_view onednn_version = TUTTI_ONEDNN_VERSION, png_version = TUTTI_PNG_VERSION;
  std::string_view jpeg_version = TUTTI_JPEG_VERSION, grpc_version = TUTTI_GRPC_VERSION;
  std::string_view cuda_version = TUTTI_CUDA_VERSION, nccl_version = TUTTI_NCCL_VERSION;
} kBuild{};

constexpr std::int64_t kNeededMemory = std::int64_t{1} << 30;

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kGood:
      return "ok";
    case Verdict::kAbsent:
      return "none";
    case Verdict::kLimited:
      return "warning";
    case Verdict::kBad:
      return "bad";
  }
  return "bad";
}

Finding optional_library(const char* name, std::string_view version, const char* without,
                         const char* package) {
  if (!version.empty()) return {name, Verdict::kGood, std::string(version)};
  return {name, Verdict::kLimited, concat("not in this build: ", without),
          concat("apt-get install ", package, ", then configure and build again")};
}

/// Returns the path of MPI's launcher, or "".
std::string find_mpirun() {
  try {
    return launch::find_program("mpirun");
  } catch (const Error&) {
    return "";
  }
}

/// Checks the MPI library and its launcher, mpirun.
Finding inspect_mpi() {
  const std::string library = mpi_library();
  const char* const packages = "libopenmpi-dev openmpi-bin";
  if (library.empty()) {
    return optional_library("MPI", "", "no MPI transport or collectives", packages);
  }
  const std::string launcher = find_mpirun();
  if (!launcher.empty()) return {"MPI", Verdict::kGood, concat(library, ", ", launcher)};
  return {"MPI", Verdict::kLimited, concat(library, ", but no mpirun in PATH"),
          "apt-get install openmpi-bin, or start ranks with srun"};
}

/// Lists the transports of this build, through which replicas exchange values.
Finding inspect_transports() {
  std::vector<std::string> names{"threads"};
  if (!kBuild.grpc_version.empty()) names.insert(names.end(), {"shared memory", "TCP"});
  if (!mpi_library().empty()) names.emplace_back("MPI");
  if (!kBuild.nccl_version.empty()) names.emplace_back("NCCL");
  return {"transports", Verdict::kGood, join(names)};
}

std::vector<Finding> inspect_build() {
  const bool has_cuda = !kBuild.cuda_version.empty(), sanitized = !kBuild.sanitizers.empty();
  return {{"tutti", Verdict::kGood,
           concat(kBuild.version, ", ", kBuild.build_type, ", ", kBuild.compiler)},
          optional_library("oneDNN", kBuild.onednn_version, "slow kernels", "libdnnl-dev"),
          optional_library("libpng", kBuild.png_version, "no PNG images", "libpng-dev"),
          optional_library("libjpeg", kBuild.jpeg_version, "no JPEG images", "libjpeg-dev"),
          optional_library("gRPC", kBuild.grpc_version, "jobs of several processes need mpirun",
                           "libgrpc++-dev protobuf-compiler-grpc"),
          inspect_mpi(),
          // No limitation is reported, because machines without GPUs do not need CUDA.
          {"CUDA", has_cuda ? Verdict::kGood : Verdict::kAbsent,
           has_cuda ? concat(kBuild.cuda_version, ", NCCL ", kBuild.nccl_version)
                    : "not in this build: no GPUs"},
          inspect_transports(),
          {"sanitizers", sanitized ? Verdict::kLimited : Verdict::kGood,
           sanitized ? std::string(kBuild.sanitizers) : "none",
           sanitized ? "use another build folder for real work" : ""},
          {"numerics", Verdict::kGood, numerics_fingerprint()}};
}

/// Returns a string that names the folders of the four Fashion-MNIST files; "" if a file is
/// missing. Searches `data_dir` or, if `data_dir` is empty, read_mnist()'s default folders.
std::string find_fashion_mnist(const std::string& data_dir) {
  try {
    std::set<std::string> folders;
    for (const char* name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                             "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
      const std::filesystem::path file = find_mnist_file(data_dir, name);
      folders.insert(file.parent_path().string());
    }
    return join(folders);
  } catch (const Error&) {
    return "";
  }
}

std::vector<Finding> inspect_host(const std::string& data_dir) {
  const Machine machine = inspect_machine();
  const bool wide = machine.best_isa != "baseline" && machine.best_isa != "SSE4.2";
  const bool enough = machine.available_memory_bytes >= kNeededMemory;
  const std::string data = find_fashion_mnist(data_dir);
  return {
      {"processor", Verdict::kGood, concat(machine.cpu_model, ", ", machine.num_cores, " cores")},
      {"vector instructions", wide ? Verdict::kGood : Verdict::kLimited,
       concat(machine.best_isa, " (", join(machine.isa_flags, " "), ")"),
       wide ? "" : "expect slow training on this processor"},
      {"memory", enough ? Verdict::kGood : Verdict::kBad,
       concat(machine.available_memory_bytes >> 20, " of ", machine.memory_bytes >> 20,
              " MiB available"),
       enough ? "" : "at least 1024 MiB are needed to train the examples"},
      {"Fashion-MNIST", data.empty() ? Verdict::kLimited : Verdict::kGood,
       data.empty() ? "not found" : data,
       data.empty() ? "apt-get install dataset-fashion-mnist, or pass --data-dir" : ""}};
}

/// Returns a finding "none: <reason>". Text after the last "; " of `reason` becomes the advice.
Finding without(const char* subject, const std::string& reason, Verdict verdict) {
  const std::size_t remedy = reason.rfind("; ");
  if (remedy == std::string::npos) return {subject, verdict, "none: " + reason};
  return {subject, verdict, "none: " + reason.substr(0, remedy), reason.substr(remedy + 2)};
}

std::string names_of(const std::vector<LogicalGpu>& gpus) {
  std::vector<std::string> names;
  for (const LogicalGpu& gpu : gpus)
    names.push_back(concat("gpu:", gpu.index, " ", gpu.properties.name));
  return join(names);
}

Finding inspect_library(const FoundLibrary& library, bool needed) {
  if (!library.path.empty()) return {library.name, Verdict::kGood, library.path};
  return {library.name, needed ? Verdict::kLimited : Verdict::kAbsent, "not found",
          needed ? "install it, or add its folder to LD_LIBRARY_PATH" : ""};
}

/// Returns the names of the libraries that the CUDA module needs, and of NCCL, which is optional.
std::vector<std::string> libraries_of_interest() {
  std::vector<std::string> names = needed_libraries();
  if (!names.empty()) names.emplace_back("libnccl.so.2");
  return names;
}

/// Checks the GPUs, the CUDA module, and each CUDA library that the module needs.
std::vector<Finding> inspect_gpus() {
  std::vector<Finding> findings;
  // A machine without a driver merely has no GPU, but a GPU module that cannot be loaded is a
  // limitation of this build.
  const std::string reason = gpu_unavailable_reason();
  const GpuModule& module = gpu_module();
  const bool broken = !reason.empty() && !module.path.empty();
  try {
    const std::vector<LogicalGpu>& gpus = logical_gpus();
    findings.push_back(gpus.empty()
                           ? without("GPU", reason, broken ? Verdict::kLimited : Verdict::kAbsent)
                           : Finding{"GPU", Verdict::kGood, names_of(gpus)});
  } catch (const Error&) {  // thrown with TUTTI_CUDA=require
    findings.push_back(without("GPU", reason, Verdict::kBad));
  }
  std::string path = module.path;
  if (module.is_simulated) path += " (simulated GPUs)";
  if (!module.description.empty()) path += ": " + module.description;
  findings.push_back({"CUDA module", path.empty() ? Verdict::kAbsent : Verdict::kGood,
                      path.empty() ? "not opened" : path});
  findings.push_back({"CUDA module's build", Verdict::kGood, backend_build_id()});
  for (const FoundLibrary& library : find_libraries(libraries_of_interest())) {
    findings.push_back(inspect_library(library, broken || reason.empty()));
  }
  return findings;
}

/// Checks the XLA plugin. A machine may have no plugin, but a configured plugin that does not load
/// is reported as a limitation.
Finding inspect_xla() {
  const XlaDevices& devices = xla_devices();
  if (devices.count > 0) {
    return {"XLA", Verdict::kGood,
            concat(devices.count, " devices, ", devices.platform, ", xla:0-", devices.count - 1,
                   ", PJRT ", devices.version, ": ", devices.plugin)};
  }
  const bool is_named = std::getenv("TUTTI_PJRT_PLUGIN") != nullptr;
  return without("XLA", devices.why_none, is_named ? Verdict::kLimited : Verdict::kAbsent);
}

Verdict worst_of(const std::vector<Finding>& findings) {
  Verdict worst = Verdict::kGood;
  for (const Finding& finding : findings) worst = std::max(worst, finding.verdict);
  return worst == Verdict::kAbsent ? Verdict::kGood : worst;
}

/// Returns the accelerators that this machine could have but lacks, such as "GPU, XLA".
std::string absent_accelerators(const std::vector<Finding>& findings) {
  std::vector<std::string> absent;
  for (const Finding& finding : findings) {
    const bool is_accelerator = finding.subject == "GPU" || finding.subject == "XLA";
    if (is_accelerator && finding.verdict == Verdict::kAbsent) absent.push_back(finding.subject);
  }
  return join(absent);
}

std::string verdict_line(Verdict verdict, const std::vector<Finding>& host) {
  const std::string absent = absent_accelerators(host);
  switch (verdict) {
    case Verdict::kGood:
    case Verdict::kAbsent:
      return absent.empty()
                 ? "everything needed is available"
                 : concat("trains on CPUs, for which everything needed is available; without ",
                          absent);
    case Verdict::kLimited:
      return "works, with the limitations marked 'warning'";
    case Verdict::kBad:
      return "a requirement is missing; see the entries marked 'bad'";
  }
  return "";
}

Json to_json(const std::vector<Finding>& findings) {
  return Json::array_of(findings, [](const Finding& finding) {
    return Json::Object{{"subject", finding.subject},
                        {"verdict", name_of(finding.verdict)},
                        {"found", finding.found},
                        {"advice", finding.advice}};
  });
}

void print_text(const char* title, const std::vector<Finding>& findings) {
  std::printf("%s\n", title);
  for (const Finding& finding : findings) {
    std::printf("  %-8s %-20s %s\n", name_of(finding.verdict), finding.subject.c_str(),
                finding.found.c_str());
    if (!finding.advice.empty()) std::printf("  %29s %s\n", "->", finding.advice.c_str());
  }
}

}  // namespace

int doctor_command(OutputFormat format, const std::string& data_dir) {
  set_log_level(LogLevel::kError);  // the report contains the log's messages
  std::vector<Finding> build = inspect_build(), host = inspect_host(data_dir);
  for (Finding& finding : inspect_gpus()) host.push_back(std::move(finding));
  host.push_back(inspect_xla());
  const Verdict verdict = std::max(worst_of(build), worst_of(host));
  if (format == OutputFormat::kJson) {
    print(Json::Object{{"build", to_json(build)},
                       {"machine", to_json(host)},
                       {"verdict", name_of(verdict)},
                       {"summary", verdict_line(verdict, host)}});
  } else {
    print_text("This build", build);
    print_text("This machine", host);
    std::printf("Verdict: %s.\n", verdict_line(verdict, host).c_str());
  }
  return verdict == Verdict::kBad ? 1 : 0;
}

// Parsing of /proc/cpuinfo and /proc/meminfo.

namespace {

/// Returns the value in the first line "name   : value" of `text`; "" if the name does not occur.
std::string field(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name)) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

/// Returns the number of bytes that a /proc/meminfo line such as "MemTotal:  16384 kB" states.
std::int64_t memory_field(const std::string& text, const std::string& name) {
  return std::strtoll(field(text, name).c_str(), nullptr, 10) * 1024;
}

std::vector<std::string> known_flags(const std::string& flags) {
  static constexpr const char* kKnown[] = {
      "sse4_2",      "avx",         "f16c",        "fma",      "avx2",  "avx512f", "avx512bw",
      "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "sve"};
  std::istringstream words(flags);
  std::vector<std::string> found;
  for (std::string word; words >> word;) {
    if (std::find(std::begin(kKnown), std::end(kKnown), word) != std::end(kKnown)) {
      found.push_back(word);
    }
  }
  return found;
}

std::string best_isa(const std::vector<std::string>& flags) {
  static constexpr std::pair<const char*, const char*> kFromBest[] = {
      {"amx_bf16", "AMX"},  {"avx512f", "AVX-512"}, {"avx2", "AVX2"}, {"avx", "AVX"},
      {"sse4_2", "SSE4.2"}, {"sve", "SVE"},         {"asimd", "NEON"}};
  for (const auto& [flag, name] : kFromBest) {
    if (std::find(flags.begin(), flags.end(), flag) != flags.end()) return name;
  }
  return "baseline";
}

}  // namespace

Machine inspect_machine() {
  const std::string cpu = read_file_if_any("/proc/cpuinfo");
  const std::string memory = read_file_if_any("/proc/meminfo");
  Machine machine;
  machine.cpu_model = field(cpu, "model name");
  if (machine.cpu_model.empty()) machine.cpu_model = "unknown";
  machine.num_cores = num_hardware_threads();
  machine.memory_bytes = memory_field(memory, "MemTotal");
  machine.available_memory_bytes = memory_field(memory, "MemAvailable");
  const std::string flags = field(cpu, "flags");
  machine.isa_flags = known_flags(flags.empty() ? field(cpu, "Features") : flags);
  machine.best_isa = best_isa(machine.isa_flags);
  return machine;
}

}  // namespace tutti::tools
