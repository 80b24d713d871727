// A folder of checkpoints.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/checkpoint/checkpoint_manager.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

#include "tutti/core/file.h"
#include "tutti/core/logging.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step_";
constexpr std::string_view kSuffix = ".safetensors";
constexpr const char* kLatest = "latest";

std::string file_name(std::int64_t step) { return concat(kPrefix, step, kSuffix); }

/// The step in a name that file_name() made; nothing for other files.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  if (name.size() <= kPrefix.size() + kSuffix.size()) return std::nullopt;
  const std::string_view digits =
      name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  std::int64_t step = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool whole = result.ec == std::errc() && result.ptr == digits.data() + digits.size();
  return whole && file_name(step) == name ? std::optional(step) : std::nullopt;
}

}  // namespace

CheckpointManager::CheckpointManager(Checkpoint checkpoint, std::string directory,
                                     CheckpointManagerOptions options)
    : checkpoint_(std::move(checkpoint)), directory_(std::move(directory)), options_(options) {
  if (options_.max_to_keep < 0) {
    fail(ErrorCode::kInvalidArgument,
         "CheckpointManager: expected max_to_keep of at least 0 (0: all), got ",
         options_.max_to_keep);
  }
}

std::string CheckpointManager::save(std::int64_t step) {
  if (step < 0) {
    fail(ErrorCode::kInvalidArgument,
         "CheckpointManager::save: expected a step of at least 0, got ", step);
  }
  const std::string path = (fs::path(directory_) / file_name(step)).string();
  checkpoint_.save(path, step);
  write_file_atomically((fs::path(directory_) / kLatest).string(), file_name(step) + "\n");
  delete_old(path);
  return path;
}

std::optional<std::string> CheckpointManager::latest() const {
  const fs::path pointer = fs::path(directory_) / kLatest;
  if (!fs::exists(pointer)) return std::nullopt;
  std::string name = read_file(pointer.string());
  while (!name.empty() && name.back() == '\n') name.pop_back();
  const fs::path path = fs::path(directory_) / name;
  if (!step_of(name) || !fs::exists(path)) {
    std::vector<std::string> names;
    for (const std::string& other : checkpoints()) names.push_back(fs::path(other).filename());
    fail(ErrorCode::kDataLoss, pointer.string(),
         ": expected the name of a checkpoint in this folder [", join(names), "], got '", name,
         "'; try to write one of these names into the file");
  }
  return path.string();
}

std::optional<CheckpointInfo> CheckpointManager::restore_latest(RestoreOptions options) const {
  const std::optional<std::string> path = latest();
  if (!path) return std::nullopt;
  return checkpoint_.restore(*path, options);
}

std::vector<std::string> CheckpointManager::checkpoints() const {
  std::vector<std::pair<std::int64_t, std::string>> found;
  std::error_code missing;  // no folder: no checkpoints
  for (const fs::directory_entry& entry : fs::directory_iterator(directory_, missing)) {
    const std::optional<std::int64_t> step = step_of(entry.path().filename().string());
    if (step) found.emplace_back(*step, entry.path().string());
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

// By step, smallest first; but never the one that `latest` names, which is not the last one after
// going back to an earlier step.
void CheckpointManager::delete_old(const std::string& newest) const {
  if (options_.max_to_keep == 0) return;
  std::vector<std::string> paths = checkpoints();
  std::erase(paths, newest);
  const std::size_t kept = static_cast<std::size_t>(options_.max_to_keep) - 1;
  for (std::size_t i = 0; i + kept < paths.size(); ++i) {
    std::error_code error;
    fs::remove(paths[i], error);
    if (error) {
      log_warning(concat("CheckpointManager: cannot delete '", paths[i], "': ", error.message()));
    }
  }
}

}  // namespace tutti
