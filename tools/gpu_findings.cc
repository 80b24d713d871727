// GPUs, the module that knows them, and its libraries.
// SPDX-License-Identifier: Apache-2.0
#include "tools/gpu_findings.h"

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/tensor/gpu/gpus.h"
#include "tutti/tensor/gpu/load_backend.h"

namespace tutti::tools {
namespace {

/// The reason in two: what is, and what to do.
Finding without_gpus(const std::string& reason, Verdict verdict) {
  const std::size_t remedy = reason.rfind("; ");
  if (remedy == std::string::npos) return {"GPU", verdict, "none: " + reason, ""};
  return {"GPU", verdict, "none: " + reason.substr(0, remedy), reason.substr(remedy + 2)};
}

std::string names_of(const std::vector<LogicalGpu>& gpus) {
  std::vector<std::string> names;
  for (const LogicalGpu& gpu : gpus)
    names.push_back(concat("gpu:", gpu.index, " ", gpu.properties.name));
  return join(names);
}

Finding inspect_library(const FoundLibrary& library, bool needed) {
  if (!library.path.empty()) return {library.name, Verdict::kGood, library.path, ""};
  return {library.name, needed ? Verdict::kLimited : Verdict::kGood, "not found",
          needed ? "install it, or add its folder to LD_LIBRARY_PATH" : ""};
}

/// What the module needs, and NCCL, without which the GPUs sum gradients otherwise.
std::vector<std::string> libraries_of_interest() {
  std::vector<std::string> names = needed_libraries();
  if (!names.empty()) names.emplace_back("libnccl.so.2");
  return names;
}

}  // namespace

std::vector<Finding> inspect_gpus() {
  std::vector<Finding> findings;
  // Machines without a driver are complete as they are; one whose module does not work is not.
  const std::string reason = gpu_unavailable_reason();
  const GpuModule& module = gpu_module();
  const bool broken = !reason.empty() && !module.path.empty();
  try {
    const std::vector<LogicalGpu>& gpus = logical_gpus();
    findings.push_back(gpus.empty()
                           ? without_gpus(reason, broken ? Verdict::kLimited : Verdict::kGood)
                           : Finding{"GPU", Verdict::kGood, names_of(gpus), ""});
  } catch (const Error&) {  // TUTTI_CUDA=require
    findings.push_back(without_gpus(reason, Verdict::kBad));
  }
  std::string path = module.path;
  if (module.is_simulated) path += " (simulated GPUs)";
  if (!module.description.empty()) path += ": " + module.description;
  findings.push_back({"CUDA module", Verdict::kGood, path.empty() ? "not opened" : path, ""});
  findings.push_back({"CUDA module's build", Verdict::kGood, backend_build_id(), ""});
  for (const FoundLibrary& library : find_libraries(libraries_of_interest())) {
    findings.push_back(inspect_library(library, broken || reason.empty()));
  }
  return findings;
}

}  // namespace tutti::tools
