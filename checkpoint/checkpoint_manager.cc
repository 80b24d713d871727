// Implements CheckpointManager, which saves versions to a folder and restores them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/checkpoint/checkpoint_manager.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>

#include "checkpoint/run_folder.h"
#include "core/names.h"
#include "tutti/core/executor.h"
#include "tutti/core/logging.h"

namespace tutti {
namespace internal {

/// Save that runs on its own thread. The constructor starts the thread, and the destructor waits
/// for it.
class BackgroundSave {
 public:
  explicit BackgroundSave(std::function<void()> save) {
    thread_ = Executor::system().start("checkpoint",
                                       [this, save = std::move(save)] { error_ = error_of(save); });
  }
  ~BackgroundSave() { wait(); }
  BackgroundSave& operator=(BackgroundSave&&) = delete;

  /// Waits until the save has finished; returns its error, if any. Not thread-safe.
  const std::optional<Error>& wait() {
    if (thread_) thread_->join();
    thread_.reset();
    return error_;
  }

 private:
  std::optional<Error> error_;  // written by the thread before it ends
  std::unique_ptr<Thread> thread_;
};

}  // namespace internal

namespace {

using internal::FoundVersion;

// Maximum number of scans if another process saves and deletes versions during each scan.
constexpr int kMaxScans = 20;

std::vector<FoundVersion> versions_in(const std::string& directory) {
  const auto run = internal::Folder::open_if_there(directory);
  return run ? internal::find_versions(*run) : std::vector<FoundVersion>();
}

/// Returns true if another process deleted or saved a version since `versions` were found.
bool has_changed(const std::vector<FoundVersion>& versions, const std::string& directory) {
  const auto is_same = [](const FoundVersion& a, const FoundVersion& b) {
    return a.name == b.name && a.index == b.index;
  };
  return !std::ranges::equal(versions, versions_in(directory), is_same);
}

/// Values that restore_latest() found, and the problems of newer versions.
struct Found {
  std::optional<internal::CheckpointFile> file;
  std::vector<std::string> problems;
  std::vector<std::string> damaged;  // names of damaged versions
};

/// Reads the newest undamaged version. Rethrows errors that do not mean damage (permissions,
/// memory, ...).
Found read_newest(const std::vector<FoundVersion>& versions, const internal::ReadPath& read) {
  Found found;
  for (auto version = versions.rbegin(); version != versions.rend() && !found.file; ++version) {
    if (version->shown.state == VersionState::kUnfinished) {
      log_warning(concat("CheckpointManager::restore_latest: skipping ", version->shown.problem));
      continue;
    }
    try {
      found.file = read(version->shown.path);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDataLoss && error.code() != ErrorCode::kNotFound) throw;
      found.problems.push_back(error.message());
      found.damaged.push_back(version->name);
    }
  }
  return found;
}

void report(const Found& found, const std::string& directory, bool strict) {
  if (found.problems.empty()) return;
  const std::string problems = join(found.problems, "; ");
  if (!found.file) {
    fail(ErrorCode::kDataLoss, "CheckpointManager::restore_latest: every checkpoint in '",
         directory, "' is damaged: ", problems);
  }
  if (strict) {
    fail(ErrorCode::kDataLoss,
         "CheckpointManager::restore_latest: the newest checkpoint is "
         "damaged: ",
         problems, "; to restore '", found.file->info.path,
         "', which is undamaged, use strict = false");
  }
  log(LogLevel::kError, concat("CheckpointManager::restore_latest: damaged: ", problems,
                               "; restoring '", found.file->info.path, "' instead"));
}

}  // namespace

CheckpointManager::CheckpointManager(Checkpoint checkpoint, std::string directory,
                                     CheckpointManagerOptions options)
    : checkpoint_(std::move(checkpoint)), directory_(std::move(directory)), options_(options) {
  internal::require(options_.max_to_keep >= 0,
                    "CheckpointManager: expected max_to_keep >= 0 (0: all), got ",
                    options_.max_to_keep);
}

CheckpointManager::CheckpointManager(CheckpointManager&&) noexcept = default;
CheckpointManager& CheckpointManager::operator=(CheckpointManager&&) noexcept = default;

CheckpointManager::~CheckpointManager() {
  if (!under_way_) return;
  if (const auto& error = under_way_->wait()) log(LogLevel::kError, error->message());
}

std::string CheckpointManager::save(std::int64_t step) {
  internal::require(step >= 0, "CheckpointManager::save: expected a step >= 0, got ", step);
  wait();
  start(step);
  if (!options_.asynchronous) wait();
  return (std::filesystem::path(directory_) / internal::version_name(step)).string();
}

void CheckpointManager::start(std::int64_t step) {
  internal::CheckpointWorker self = connect();
  const bool is_sharded = self.exchange != nullptr;
  const auto form = is_sharded ? internal::SavedAs::kParts : internal::SavedAs::kWholeOfWorkers;
  auto values = std::make_shared<internal::CheckpointFile>(checkpoint_.values(step, form));
  if (!is_sharded && !checkpoint_.options().writes) return;
  const internal::SaveSettings settings{options_.max_to_keep, damaged_};
  auto save = [values = std::move(values), directory = directory_, settings,
               self = std::move(self)]() mutable {
    const auto last_reference = std::move(values);
    internal::save_version(directory, *last_reference, settings, std::exchange(self, {}));
  };
  if (options_.asynchronous) {
    under_way_ = std::make_unique<internal::BackgroundSave>(std::move(save));
    return;
  }
  last_error_ = internal::error_of(save);
  if (last_error_) note(*last_error_);
}

internal::CheckpointWorker CheckpointManager::connect() const {
  const CheckpointOptions& saving = checkpoint_.options();
  if (!saving.connect || !options_.sharded.value_or(true) || checkpoint_.own_parts().empty()) {
    return {};
  }
  internal::CheckpointWorker self{saving.worker, saving.connect()};
  if (!options_.sharded && !internal::is_shared(directory_, self)) self.exchange = nullptr;
  return self;
}

void CheckpointManager::wait() {
  if (!under_way_) return;
  last_error_ = std::exchange(under_way_, nullptr)->wait();
  if (last_error_) note(*last_error_);
}

void CheckpointManager::note(const Error& error) {
  if (options_.on_error == OnSaveError::kThrow) throw error;
  log(LogLevel::kError,
      concat(error.message(), "; training continues, and the next save tries again"));
}

std::optional<std::string> CheckpointManager::latest() const {
  const std::vector<FoundVersion> versions = versions_in(directory_);
  for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
    if (version->refusal) throw *version->refusal;
    if (version->shown.state == VersionState::kWhole) return version->shown.path;
  }
  return std::nullopt;
}

std::optional<CheckpointInfo> CheckpointManager::restore_latest(RestoreOptions options) {
  wait();
  const auto find = [&](const internal::ReadPath& read) {
    return read_newest_whole(options.strict, read);
  };
  const auto own_path = [&](const std::string& name) {
    return (std::filesystem::path(directory_) / name).string();
  };
  return checkpoint_.restore_found(find, own_path, options_.sharded, options);
}

std::optional<internal::CheckpointFile> CheckpointManager::read_newest_whole(
    bool strict, const internal::ReadPath& read) {
  Found found;
  for (int i = 0; i < kMaxScans; ++i) {
    const std::vector<FoundVersion> versions = versions_in(directory_);
    found = read_newest(versions, read);
    if (found.problems.empty() || !has_changed(versions, directory_)) break;
  }
  report(found, directory_, strict);
  if (found.file) damaged_.insert(found.damaged.begin(), found.damaged.end());
  return std::move(found.file);
}

void CheckpointManager::delete_all() {
  wait();
  if (checkpoint_.options().writes) internal::delete_versions(directory_);
}

std::vector<std::string> CheckpointManager::checkpoints() const {
  std::vector<std::string> paths;
  for (const FoundVersion& version : versions_in(directory_)) {
    if (version.shown.state == VersionState::kWhole) paths.push_back(version.shown.path);
    if (version.refusal) {
      log_warning_once(concat("CheckpointManager::checkpoints: skipping ", version.shown.problem));
    }
  }
  return paths;
}

}  // namespace tutti
