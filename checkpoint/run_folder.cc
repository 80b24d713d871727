// The versions in the folder of a run: which there are, and which go.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/run_folder.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <tuple>
#include <utility>

#include "checkpoint/safetensors_types.h"
#include "tutti/core/logging.h"
#include "tutti/core/random.h"

namespace tutti::internal {
namespace {

constexpr std::string_view kPrefix = "step_";
constexpr std::string_view kFileSuffix = ".safetensors";
constexpr const char* kLatest = "latest";         // names the newest among single files of old
constexpr std::string_view kMark = "is_shared_";  // and a unique name: a FolderMark
constexpr std::size_t kMaxLatestBytes = 4096;
constexpr std::int64_t kUnknownAge = std::numeric_limits<std::int64_t>::max();

/// The step in a name that version_name(step) + suffix made; nothing for other names.
std::optional<std::int64_t> step_of(std::string_view name, std::string_view suffix) {
  if (!name.starts_with(kPrefix) || !name.ends_with(suffix)) return std::nullopt;
  if (name.size() <= kPrefix.size() + suffix.size()) return std::nullopt;
  const std::string_view digits =
      name.substr(kPrefix.size(), name.size() - kPrefix.size() - suffix.size());
  std::int64_t step = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool whole = result.ec == std::errc() && result.ptr == digits.data() + digits.size();
  return whole && concat(version_name(step), suffix) == name ? std::optional(step) : std::nullopt;
}

bool is_version_name(std::string_view name) {
  return step_of(name, "") || step_of(name, kFileSuffix);
}

void inspect_folder(const Folder& folder, FoundVersion& version) {
  version.manifest = read_manifest(folder);
  if (!version.manifest) {
    version.shown.state = VersionState::kUnfinished;
    version.shown.problem =
        concat(folder.path(), ": no ", kManifestName, ": saving was interrupted");
    return;
  }
  version.shown.sequence = version.manifest->info.sequence;
  version.shown.num_bytes = bytes_of_files(*version.manifest);
  version.shown.num_tensors = version.manifest->tensors.size();
  if (version.manifest->info.step != version.shown.step) {
    fail(ErrorCode::kDataLoss, folder.path(), ": expected step ", version.shown.step,
         " by its name, got ", version.manifest->info.step);
  }
  require_files(folder, *version.manifest);
}

void inspect_file(const Folder& run, FoundVersion& version) {
  const FileReader reader = run.open_file(version.name);
  version.shown.num_bytes = reader.size();
  const std::uint64_t first = std::min<std::uint64_t>(reader.size(), kSafetensorsLengthBytes);
  std::uint64_t length = 0;
  const std::string bytes = reader.read_text(0, static_cast<std::size_t>(first));
  for (std::size_t i = bytes.size(); i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(bytes[i]);
  }
  length = std::min<std::uint64_t>(length, kSafetensorsMaxHeaderBytes);
  const std::uint64_t head = std::min(reader.size(), first + length);
  const std::string text = reader.read_text(0, static_cast<std::size_t>(head));
  version.shown.num_tensors =
      parse_safetensors_header(text, static_cast<std::size_t>(reader.size()), reader.path())
          .entries.size();
}

/// The number of the save as the names of its parts tell it; where nothing tells it, the newest: a
/// version that cannot be read must not pass for an old one.
std::int64_t guess_sequence(const Folder& folder) {
  std::int64_t sequence = 0;
  for (const std::string& name : folder.names()) {
    sequence = std::max(sequence, sequence_of_part(name).value_or(0));
  }
  return sequence > 0 ? sequence : kUnknownAge;
}

FoundVersion inspect(const Folder& run, const std::string& name, std::int64_t step,
                     const std::optional<Folder>& folder) {
  FoundVersion version;
  version.name = name;
  version.shown.path = run.path_of(name);
  version.shown.step = step;
  try {
    folder ? inspect_folder(*folder, version) : inspect_file(run, version);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss && error.code() != ErrorCode::kUnimplemented) throw;
    version.shown.state = VersionState::kDamaged;
    version.shown.problem = error.message();
  }
  version.age = version.shown.sequence;
  if (folder && version.shown.state == VersionState::kDamaged && !version.manifest) {
    version.age = guess_sequence(*folder);
  }
  return version;
}

std::string name_in_latest(const Folder& run) {
  const std::optional<std::uint64_t> size = run.size_of(kLatest);
  if (!size || *size > kMaxLatestBytes) return "";
  std::string name = run.open_file(kLatest).read_text(0, static_cast<std::size_t>(*size));
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

/// Whether files of that name in a version's folder are its own, or left by an interrupted save.
bool is_ours(const std::string& name) {
  return sequence_of_part(name).has_value() || name == kNewManifestName;
}

bool is_listed(const std::optional<Manifest>& manifest, const std::string& name) {
  if (!manifest) return false;
  return std::any_of(manifest->files.begin(), manifest->files.end(),
                     [&](const ManifestFile& file) { return file.name == name; });
}

void remove_unlisted(const Folder& folder, const std::optional<Manifest>& manifest) {
  for (const std::string& name : folder.names()) {
    if (is_ours(name) && !is_listed(manifest, name)) folder.remove(name);
  }
}

/// Whether it is a FolderMark's file, and no other.
bool is_mark(const Folder& run, const std::string& name) {
  return name.starts_with(kMark) && name.size() == kMark.size() + new_unique_name().size() &&
         name.find_first_not_of("0123456789abcdef", kMark.size()) == std::string::npos &&
         run.size_of(name) == 0u;
}

/// What interrupted saves left behind. The folder of a damaged manifest is left to people.
void remove_debris(const Folder& run, const std::vector<FoundVersion>& versions) {
  for (const std::string& name : run.names()) {
    if (is_mark(run, name)) run.remove(name);
  }
  for (const FoundVersion& version : versions) {
    const bool unfinished = version.shown.state == VersionState::kUnfinished;
    if (!version.manifest && !unfinished) continue;
    const std::optional<Folder> folder = run.find_folder(version.name);
    if (!folder) continue;
    remove_unlisted(*folder, version.manifest);
    if (unfinished) run.remove_folder(version.name);
  }
}

/// The manifest goes first: what is left without it was never a version.
bool delete_version(const Folder& run, const FoundVersion& version) {
  if (!version.manifest) return run.remove(version.name);
  const std::optional<Folder> folder = run.find_folder(version.name);
  if (!folder) return true;
  if (!folder->remove(kManifestName)) return false;
  folder->sync();
  remove_unlisted(*folder, std::nullopt);
  return run.remove_folder(version.name);
}

bool is_good(const FoundVersion& version, const SaveSettings& settings) {
  return version.shown.state == VersionState::kWhole && !settings.damaged.contains(version.name);
}

bool is_single_file(const FoundVersion& version) {
  return step_of(version.name, kFileSuffix).has_value();
}

/// `latest` goes with the last of the single files that it chose from.
void remove_latest(const Folder& run) {
  const std::vector<FoundVersion> versions = find_versions(run);
  if (std::any_of(versions.begin(), versions.end(), is_single_file)) return;
  if (step_of(name_in_latest(run), kFileSuffix)) run.remove(kLatest);
}

/// All that is older than the newest max_to_keep good ones goes; what cannot be read stays for
/// people to look at.
void delete_old(const Folder& run, const SaveSettings& settings) {
  if (settings.max_to_keep == 0) return;
  std::vector<FoundVersion> versions = find_versions(run);
  int num_good = 0;
  for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
    const bool is_readable = version->manifest || (is_single_file(*version) &&
                                                   version->shown.state == VersionState::kWhole);
    const bool is_kept = num_good < settings.max_to_keep;
    num_good += is_good(*version, settings);
    if (is_kept || !is_readable || delete_version(run, *version)) continue;
    log_warning(concat("CheckpointManager: cannot delete '", version->shown.path, "'"));
  }
  remove_latest(run);
}

}  // namespace

void take_back(const BegunVersion& begun) noexcept {
  try {
    std::optional<Manifest> manifest = read_manifest(begun.folder);
    if (manifest && manifest->info.sequence == begun.sequence) return;
    remove_unlisted(begun.folder, manifest);
    if (!manifest) begun.run.remove_folder(begun.name);
  } catch (const std::exception& error) {
    log_warning(
        concat("CheckpointManager: cannot clean up '", begun.folder.path(), "': ", error.what()));
  }
}

std::string version_name(std::int64_t step) { return concat(kPrefix, step); }

std::vector<FoundVersion> find_versions(const Folder& run) {
  std::vector<FoundVersion> versions;
  for (const std::string& name : run.names()) {
    if (const auto step = step_of(name, "")) {
      const std::optional<Folder> folder = run.find_folder(name);
      if (folder) versions.push_back(inspect(run, name, *step, folder));
    } else if (const auto file_step = step_of(name, kFileSuffix); file_step && run.size_of(name)) {
      versions.push_back(inspect(run, name, *file_step, std::nullopt));
    }
    if (is_version_name(name) && run.is_link(name)) {
      log_warning_once(concat("CheckpointManager: '", run.path_of(name),
                              "' is a symbolic link, which is not followed, so this version is not "
                              "seen; copy the version itself there"));
    }
  }
  const std::string latest = name_in_latest(run);
  const auto age = [&](const FoundVersion& version) {
    return std::tuple(version.age, version.name == latest, version.shown.step);
  };
  std::sort(versions.begin(), versions.end(),
            [&](const auto& a, const auto& b) { return age(a) < age(b); });
  return versions;
}

BegunVersion begin_version(const std::string& directory, std::int64_t step) {
  Folder run = Folder::make(directory);
  run.lock();
  const std::vector<FoundVersion> versions = find_versions(run);
  remove_debris(run, versions);
  std::int64_t sequence = 1;
  for (const FoundVersion& version : versions) {
    if (version.age != kUnknownAge) sequence = std::max(sequence, version.age + 1);
  }
  const std::string name = version_name(step);
  Folder folder = run.make_folder(name);
  return {std::move(run), std::move(folder), name, sequence};
}

void finish_version(const BegunVersion& begun, const Manifest& manifest,
                    const SaveSettings& settings) {
  commit_version(begun.folder, manifest);
  remove_unlisted(begun.folder, manifest);
  delete_old(begun.run, settings);
}

void save_version(const std::string& directory, const CheckpointFile& file,
                  const SaveSettings& settings) {
  const BegunVersion begun = begin_version(directory, file.info.step);
  try {
    finish_version(begun, write_part(begun.folder, describe(file, begun.sequence), file), settings);
  } catch (...) {
    take_back(begun);
    throw;
  }
}

FolderMark::FolderMark(const std::string& directory)
    : folder_(Folder::make(directory)),
      name_(concat(kMark, new_unique_name())),
      file_(folder_.create_file(name_, 0)) {}

bool FolderMark::is_in(const std::string& directory, const std::string& name) {
  const std::optional<Folder> folder = Folder::open_if_there(directory);
  return folder && is_plain_name(name) && folder->size_of(name).has_value();
}

void delete_versions(const std::string& directory) {
  const std::optional<Folder> run = Folder::open_if_there(directory);
  if (!run) return;
  run->lock();
  for (const FoundVersion& version : find_versions(*run)) {
    if (!version.manifest || delete_version(*run, version)) continue;
    log_warning(concat("CheckpointManager: cannot delete '", version.shown.path, "'"));
  }
  std::error_code ignored;  // other files: it stays
  std::filesystem::remove(directory, ignored);
}

}  // namespace tutti::internal
