// `tutti ckpt`: lists checkpoints, verifies them, and shows their contents.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include "checkpoint/version.h"
#include "tools/commands.h"
#include "tutti/checkpoint/checkpoint_versions.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"

namespace tutti::tools {
namespace {

namespace fs = std::filesystem;

/// Returns true if `path` is a file or the folder of one version, even if the version is
/// unreadable.
bool is_single(const std::string& path) {
  return fs::is_regular_file(path) || fs::exists(fs::path(path) / internal::kIndexName) ||
         fs::exists(fs::path(path) / internal::kEarlierManifestName);
}

struct Row {
  CheckpointVersion version;
  std::vector<std::string> problems;
};

/// Returns the errors from verify_checkpoint(). A version in an unknown format also counts as an
/// error.
std::vector<std::string> problems_of(const std::string& path) {
  try {
    return verify_checkpoint(path);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnimplemented) throw;
    return {error.message()};
  }
}

void inspect_row(Row& row) {
  if (row.version.state == VersionState::kUnfinished) return;
  for (std::string& problem : problems_of(row.version.path)) {
    if (std::ranges::count(row.problems, problem) == 0) row.problems.push_back(std::move(problem));
  }
  row.version.state = row.problems.empty() ? VersionState::kWhole : VersionState::kDamaged;
}

std::vector<Row> rows_of(const std::string& path) {
  std::vector<Row> rows;
  for (CheckpointVersion& version : list_checkpoints(path)) {
    rows.push_back({std::move(version), {}});
    if (!rows.back().version.problem.empty()) {
      rows.back().problems = {rows.back().version.problem};
    }
  }
  return rows;
}

int count(const std::vector<Row>& rows, VersionState state) {
  return static_cast<int>(std::count_if(
      rows.begin(), rows.end(), [&](const Row& row) { return row.version.state == state; }));
}

Json to_json(const Row& row) {
  Json json = Json::object();
  json.set("path", row.version.path).set("state", to_string(row.version.state));
  json.set("step", row.version.step).set("sequence", row.version.sequence);
  json.set("bytes", row.version.num_bytes);
  json.set("tensors", static_cast<std::int64_t>(row.version.num_tensors));
  json.set("problems", Json::array_of(row.problems));
  return json;
}

void print_json(const std::vector<Row>& rows, const std::string& path) {
  Json report = Json::object();
  report.set("directory", path).set("versions", Json::array_of(rows, to_json));
  for (const VersionState state :
       {VersionState::kWhole, VersionState::kDamaged, VersionState::kUnfinished}) {
    report.set(std::string(to_string(state)), count(rows, state));
  }
  std::printf("%s\n", report.dump(2).c_str());
}

void print_text(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    const CheckpointVersion& version = row.version;
    std::printf("%-10s  step %-10lld  save %-6lld  %6zu tensors  %14llu bytes  %s\n",
                std::string(to_string(version.state)).c_str(), static_cast<long long>(version.step),
                static_cast<long long>(version.sequence), version.num_tensors,
                static_cast<unsigned long long>(version.num_bytes), version.path.c_str());
    for (const std::string& problem : row.problems) std::printf("  %s\n", problem.c_str());
  }
  std::printf("%d whole, %d damaged, %d unfinished\n", count(rows, VersionState::kWhole),
              count(rows, VersionState::kDamaged), count(rows, VersionState::kUnfinished));
}

int report(const std::vector<Row>& rows, const std::string& path, OutputFormat format) {
  format == OutputFormat::kJson ? print_json(rows, path) : print_text(rows);
  return count(rows, VersionState::kDamaged) > 0 ? 1 : 0;
}

/// Returns the path of the version for the requested step, or of the newest valid version if no
/// step is given.
std::string choose(const CkptOptions& options) {
  if (is_single(options.path)) return options.path;
  std::string chosen;
  std::vector<std::string> steps;
  for (const CheckpointVersion& version : list_checkpoints(options.path)) {
    steps.push_back(
        concat(version.step, version.state == VersionState::kWhole ? "" : " (damaged)"));
    const bool wanted =
        options.step < 0 ? version.state == VersionState::kWhole : version.step == options.step;
    if (wanted) chosen = version.path;
  }
  if (!chosen.empty()) return chosen;
  fail(ErrorCode::kNotFound, "ckpt show: expected ",
       options.step < 0 ? std::string("an undamaged checkpoint") : concat("step ", options.step),
       " in '", options.path, "', got ",
       steps.empty() ? "no checkpoint" : concat("steps [", join(steps), "]"));
}

void print_contents(const Json& contents) {
  std::printf("path      %s\nstep      %s\nsave      %s\ntutti     %s\nnumerics  %s\n",
              contents.at("path").as_string().c_str(), contents.at("step").dump().c_str(),
              contents.at("sequence").dump().c_str(), contents.at("tutti").as_string().c_str(),
              contents.at("numerics").as_string().c_str());
  for (const auto& [key, value] : contents.at("about").as_object()) {
    std::printf("%-9s %s\n", key.c_str(), value.dump().c_str());
  }
  for (const auto& [name, state] : contents.at("states").as_object()) {
    std::printf("state     %s = %s\n", name.c_str(), state.dump().c_str());
  }
  for (const Json& file : contents.at("files").as_array()) {
    std::printf("file      %s, %s bytes\n", file.at("name").as_string().c_str(),
                file.at("bytes").dump().c_str());
  }
  for (const Json& tensor : contents.at("tensors").as_array()) {
    std::printf("tensor    %-5s %-20s %s\n", tensor.at("dtype").as_string().c_str(),
                tensor.at("shape").dump().c_str(), tensor.at("name").as_string().c_str());
  }
}

}  // namespace

int checkpoint_list_command(const CkptOptions& options) {
  return report(rows_of(options.path), options.path, options.format);
}

int checkpoint_verify_command(const CkptOptions& options) {
  std::vector<Row> rows;
  if (is_single(options.path)) {
    Row row;
    row.version.path = options.path;
    rows.push_back(std::move(row));
  } else {
    rows = rows_of(options.path);
  }
  for (Row& row : rows) inspect_row(row);
  return report(rows, options.path, options.format);
}

int checkpoint_show_command(const CkptOptions& options) {
  const Json contents = describe_checkpoint(choose(options));
  if (options.format == OutputFormat::kJson) {
    std::printf("%s\n", contents.dump(2).c_str());
  } else {
    print_contents(contents);
  }
  return 0;
}

}  // namespace tutti::tools
