// `tutti doctor`: what this build has, what this machine offers, and whether that is enough.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "tools/build_info.h"
#include "tools/commands.h"
#include "tools/gpu_findings.h"
#include "tools/machine.h"
#include "tutti/core/json.h"
#include "tutti/core/logging.h"
#include "tutti/core/text.h"
#include "tutti/cross_device_ops/mpi/mpi_transport.h"
#include "tutti/tensor/numerics.h"

namespace tutti::tools {
namespace {

constexpr std::int64_t kNeededMemory = std::int64_t{1} << 30;

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kGood:
      return "ok";
    case Verdict::kLimited:
      return "warning";
    case Verdict::kBad:
      return "bad";
  }
  return "bad";
}

Finding optional_library(const char* name, std::string_view version, const char* without,
                         const char* package) {
  if (!version.empty()) return {name, Verdict::kGood, std::string(version), ""};
  return {name, Verdict::kLimited, concat("not in this build: ", without),
          concat("apt-get install ", package, ", then configure and build again")};
}

/// The library, and whether its programs can be started.
Finding inspect_mpi() {
  const std::string library = mpi_library();
  const char* const packages = "libopenmpi-dev openmpi-bin";
  if (library.empty()) {
    return optional_library("MPI", "", "no transport and collectives by MPI", packages);
  }
  const std::string launcher = find_program("mpirun");
  if (!launcher.empty()) return {"MPI", Verdict::kGood, concat(library, ", ", launcher), ""};
  return {"MPI", Verdict::kLimited, concat(library, ", but no mpirun in PATH"),
          "apt-get install openmpi-bin, or start ranks with srun"};
}

std::vector<Finding> inspect_build() {
  const BuildInfo& build = build_info();
  std::vector<Finding> findings;
  findings.push_back({"tutti", Verdict::kGood,
                      concat(build.version, ", ", build.build_type, ", ", build.compiler), ""});
  findings.push_back(
      optional_library("oneDNN", build.onednn_version, "slow kernels", "libdnnl-dev"));
  findings.push_back(optional_library("zlib", build.zlib_version, "no .gz files", "zlib1g-dev"));
  findings.push_back(
      optional_library("libpng", build.png_version, "no PNG pictures", "libpng-dev"));
  findings.push_back(
      optional_library("libjpeg", build.jpeg_version, "no JPEG pictures", "libjpeg-dev"));
  findings.push_back(inspect_mpi());
  const bool sanitized = !build.sanitizers.empty();
  findings.push_back({"sanitizers", sanitized ? Verdict::kLimited : Verdict::kGood,
                      sanitized ? std::string(build.sanitizers) : "none",
                      sanitized ? "use another build folder for real work" : ""});
  findings.push_back({"numerics", Verdict::kGood, numerics_fingerprint(), ""});
  return findings;
}

std::vector<Finding> inspect_host(const std::string& data_dir) {
  const Machine machine = inspect_machine();
  std::vector<Finding> findings;
  findings.push_back({"processor", Verdict::kGood,
                      concat(machine.cpu_model, ", ", machine.num_cores, " cores"), ""});
  const bool wide = machine.best_isa != "baseline" && machine.best_isa != "SSE4.2";
  findings.push_back({"vector instructions", wide ? Verdict::kGood : Verdict::kLimited,
                      concat(machine.best_isa, " (", join(machine.isa_flags, " "), ")"),
                      wide ? "" : "expect slow training on this processor"});
  const bool enough = machine.available_memory_bytes >= kNeededMemory;
  findings.push_back({"memory", enough ? Verdict::kGood : Verdict::kBad,
                      concat(machine.available_memory_bytes >> 20, " of ",
                             machine.memory_bytes >> 20, " MiB available"),
                      enough ? "" : "at least 1024 MiB are needed to train the examples"});
  const std::string data = find_fashion_mnist(data_dir);
  findings.push_back(
      {"Fashion-MNIST", data.empty() ? Verdict::kLimited : Verdict::kGood,
       data.empty() ? "not found" : data,
       data.empty() ? "apt-get install dataset-fashion-mnist, or pass --data-dir" : ""});
  return findings;
}

Verdict worst_of(const std::vector<Finding>& findings) {
  Verdict worst = Verdict::kGood;
  for (const Finding& finding : findings) worst = std::max(worst, finding.verdict);
  return worst;
}

std::string verdict_line(Verdict verdict) {
  switch (verdict) {
    case Verdict::kGood:
      return "everything is there";
    case Verdict::kLimited:
      return "works, with the limits named above";
    case Verdict::kBad:
      return "something needed is missing, see above";
  }
  return "";
}

Json to_json(const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    Json entry = Json::object();
    entry.set("subject", finding.subject).set("verdict", name_of(finding.verdict));
    entry.set("found", finding.found).set("advice", finding.advice);
    list.push_back(std::move(entry));
  }
  return list;
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
  set_log_level(LogLevel::kError);  // the report says it
  std::vector<Finding> build = inspect_build(), host = inspect_host(data_dir);
  for (Finding& finding : inspect_gpus()) host.push_back(std::move(finding));
  const Verdict verdict = std::max(worst_of(build), worst_of(host));
  if (format == OutputFormat::kJson) {
    Json report = Json::object();
    report.set("build", to_json(build)).set("machine", to_json(host));
    report.set("verdict", name_of(verdict)).set("summary", verdict_line(verdict));
    std::printf("%s\n", report.dump(2).c_str());
  } else {
    print_text("This build", build);
    print_text("This machine", host);
    std::printf("Verdict: %s.\n", verdict_line(verdict).c_str());
  }
  return verdict == Verdict::kBad ? 1 : 0;
}

}  // namespace tutti::tools
