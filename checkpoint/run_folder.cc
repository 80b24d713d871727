// Implements saving and reading the versions in a run's folder, and the functions that tools call.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/run_folder.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <regex>
#include <tuple>
#include <utility>

#include "checkpoint/safetensors_types.h"
#include "core/hash.h"
#include "core/names.h"
#include "tutti/core/logging.h"
#include "tutti/core/random.h"

namespace tutti {
namespace internal {
namespace {

constexpr std::string_view kPrefix = "step_";
constexpr std::string_view kFileSuffix = ".safetensors";
constexpr const char* kLatest = "latest";  // earlier format: contains the name of the newest file
constexpr std::string_view kMark = "is_shared_";  // prefix of a unique name: see SharedFolderMark
constexpr std::size_t kMaxLatestBytes = 4096;
constexpr std::int64_t kUnknownAge = std::numeric_limits<std::int64_t>::max();

/// Returns the step in a name made by version_name(step) + suffix; nullopt for other names.
std::optional<std::int64_t> step_of(std::string_view name, std::string_view suffix) {
  if (!name.starts_with(kPrefix) || !name.ends_with(suffix)) return std::nullopt;
  if (name.size() <= kPrefix.size() + suffix.size()) return std::nullopt;
  const std::string_view digits =
      name.substr(kPrefix.size(), name.size() - kPrefix.size() - suffix.size());
  const auto step = parse_number<std::int64_t>(digits);
  return step && concat(version_name(*step), suffix) == name ? step : std::nullopt;
}

bool is_single_file(const FoundVersion& version) {
  return step_of(version.name, kFileSuffix).has_value();
}

bool is_state_file(const std::string& name) {
  static const std::regex pattern(R"(state(\.save_\d+)?\.json)");
  return std::regex_match(name, pattern);
}

bool is_tensor_file(const std::string& name) {
  static const std::regex pattern(R"(model-\d{5,}-of-\d{5,}(\.save_\d+)?\.safetensors)");
  return std::regex_match(name, pattern);
}

/// Returns the sequence number in the name of a tensor file in the earlier format; nullopt for
/// other names.
std::optional<std::int64_t> earlier_sequence(const std::string& name) {
  static const std::regex pattern(R"(part_\d+_of_\d+\.save_(\d{1,19})\.safetensors)");
  std::smatch match;
  if (!std::regex_match(name, match, pattern)) return std::nullopt;
  // A number that is out of range counts as 0.
  return parse_number<std::int64_t>(match[1].str()).value_or(0);
}

/// Returns true if tutti writes files with this name into a version's folder, in the current format
/// or the earlier one. Excludes the committed index.
bool is_ours(const std::string& name) {
  return is_state_file(name) || is_tensor_file(name) || name == kNewIndexName ||
         name == kEarlierManifestName || earlier_sequence(name).has_value();
}

void inspect_folder(const Folder& folder, FoundVersion& version) {
  version.index = read_index(folder);
  if (!version.index) {
    version.shown.state = VersionState::kUnfinished;
    version.shown.problem = concat(folder.path(), ": no ", kIndexName, ": saving was interrupted");
    return;
  }
  version.shown.sequence = version.index->sequence;
  for (const auto& [name, file] : version.index->files) version.shown.num_bytes += file.num_bytes;
  version.shown.num_tensors = version.index->weight_map.size() + version.index->parts.size();
  if (version.index->step != version.shown.step) {
    fail(ErrorCode::kDataLoss, folder.path(), ": expected step ", version.shown.step,
         ", as in its name, got ", version.index->step);
  }
  require_files(folder, *version.index);
}

void inspect_file(const Folder& run, FoundVersion& version) {
  const FileReader reader = run.open_file(version.name);
  version.shown.num_bytes = reader.size();
  version.shown.num_tensors =
      parse_safetensors_header(read_safetensors_head(reader), reader.size(), reader.path())
          .entries.size();
}

/// Returns the sequence of a version whose index cannot be read, from its state file or, in the
/// earlier format, from the names of its files. If neither contains a sequence, the version counts
/// as the newest, because a version that cannot be read must not pass for an old one.
std::int64_t guess_sequence(const Folder& folder) {
  std::int64_t sequence = 0;
  const auto consider = [&](std::int64_t found) {
    if (found <= kMaxSequence) sequence = std::max(sequence, found);
  };
  for (const std::string& name : folder.names()) {
    consider(earlier_sequence(name).value_or(0));
    if (!is_state_file(name)) continue;
    (void)error_of([&] {
      const FileReader reader = folder.open_file(name);
      const Json state = Json::parse(reader.read_text(0, reader.size()));
      consider(state.at("sequence").as_int());
    });
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
    if (error.code() == ErrorCode::kUnimplemented) version.refusal = error;
  }
  version.age = version.shown.sequence;
  if (folder && version.shown.state == VersionState::kDamaged && !version.index) {
    version.age = guess_sequence(*folder);
  }
  return version;
}

std::string name_in_latest(const Folder& run) {
  const std::optional<std::uint64_t> size = run.size_of(kLatest);
  if (!size || *size > kMaxLatestBytes) return "";
  std::string name = run.open_file(kLatest).read_text(0, *size);
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

void remove_unlisted(const Folder& folder, const std::optional<VersionIndex>& index) {
  for (const std::string& name : folder.names()) {
    if (is_ours(name) && !(index && index->files.contains(name))) folder.remove(name);
  }
}

/// Removes the remains of interrupted saves. Keeps a folder with a damaged index, so that the user
/// can inspect it.
void remove_debris(const Folder& run, const std::vector<FoundVersion>& versions) {
  for (const std::string& name : run.names()) {
    const bool is_mark =
        name.starts_with(kMark) && name.size() == kMark.size() + new_unique_name().size() &&
        name.find_first_not_of("0123456789abcdef", kMark.size()) == std::string::npos &&
        run.size_of(name) == 0u;
    if (is_mark) run.remove(name);
  }
  for (const FoundVersion& version : versions) {
    const bool unfinished = version.shown.state == VersionState::kUnfinished;
    if (!version.index && !unfinished) continue;
    const std::optional<Folder> folder = run.find_folder(version.name);
    if (!folder) continue;
    remove_unlisted(*folder, version.index);
    if (unfinished) run.remove_folder(version.name);
  }
}

/// Deletes the index first, because without it, the remaining files are not a version.
void delete_version(const Folder& run, const FoundVersion& version) {
  bool is_deleted = !version.index && run.remove(version.name);
  if (const auto folder = version.index ? run.find_folder(version.name) : std::nullopt) {
    is_deleted = folder->remove(kIndexName);
    if (is_deleted) {
      folder->sync();
      remove_unlisted(*folder, std::nullopt);
      is_deleted = run.remove_folder(version.name);
    }
  }
  if (is_deleted) return;
  log_warning(concat("CheckpointManager: cannot delete '", version.shown.path, "'"));
}

/// Deletes all versions older than the max_to_keep newest valid ones. Keeps versions that cannot be
/// read, so that users can inspect them.
void delete_old(const Folder& run, const SaveSettings& settings) {
  if (settings.max_to_keep == 0) return;
  const std::vector<FoundVersion> versions = find_versions(run);
  int num_good = 0;
  for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
    const bool is_whole = version->shown.state == VersionState::kWhole;
    const bool is_readable = version->index || (is_single_file(*version) && is_whole);
    const bool is_kept = num_good < settings.max_to_keep;
    num_good += is_whole && !settings.damaged.contains(version->name);
    if (!is_kept && is_readable) delete_version(run, *version);
  }
  // Delete `latest` if it names a single-file version and no such version is left.
  if (std::ranges::any_of(find_versions(run), is_single_file)) return;
  if (step_of(name_in_latest(run), kFileSuffix)) run.remove(kLatest);
}

/// Version that is being saved.
struct BegunVersion {
  Folder run;  // locked
  Folder folder;
  std::string name;
  std::int64_t sequence = 0;
  /// Tag in the file names of this version, so that its files do not replace those of an existing
  /// version of the same step; empty if there is no such version.
  std::string tag;
};

/// Locks the folder against other savers, removes the remains of interrupted saves, and creates the
/// version's folder. Throws the same errors as Folder.
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
  const bool replaces = folder.size_of(kIndexName).has_value();
  return {std::move(run), std::move(folder), name, sequence,
          replaces ? concat(".save_", sequence) : ""};
}

/// Commits the version, then deletes older ones. The version's tensor files must already be synced.
void finish_version(const BegunVersion& begun, VersionIndex index, const CheckpointFile& file,
                    const SaveSettings& settings) {
  index.step = file.info.step;
  index.sequence = begun.sequence;
  index.state_file = concat("state", begun.tag, ".json");
  remove_unlisted(begun.folder, commit_version(begun.folder, std::move(index), file));
  delete_old(begun.run, settings);
}

/// Frees the space of a failed save, unless the save was committed after all.
void remove_failed(const BegunVersion& begun) noexcept {
  try {
    const std::optional<VersionIndex> index = read_index(begun.folder);
    if (index && index->sequence == begun.sequence) return;
    remove_unlisted(begun.folder, index);
    if (!index) begun.run.remove_folder(begun.name);
  } catch (const std::exception& error) {
    log_warning(
        concat("CheckpointManager: cannot clean up '", begun.folder.path(), "': ", error.what()));
  }
}

}  // namespace

std::string version_name(std::int64_t step) { return concat(kPrefix, step); }

std::vector<FoundVersion> find_versions(const Folder& run) {
  std::vector<FoundVersion> versions;
  for (const std::string& name : run.names()) {
    const auto folder_step = step_of(name, ""), file_step = step_of(name, kFileSuffix);
    if (folder_step) {
      const std::optional<Folder> folder = run.find_folder(name);
      if (folder) versions.push_back(inspect(run, name, *folder_step, folder));
    } else if (file_step && run.size_of(name)) {
      versions.push_back(inspect(run, name, *file_step, std::nullopt));
    }
    if ((folder_step || file_step) && run.is_link(name)) {
      log_warning_once(
          concat("CheckpointManager: '", run.path_of(name),
                 "' is a symbolic link, which is not followed, so the version that it points to is "
                 "ignored; copy the version itself there"));
    }
  }
  const std::string latest = name_in_latest(run);
  const auto age = [&](const FoundVersion& version) {
    return std::tuple(version.age, version.name == latest, version.shown.step);
  };
  std::ranges::sort(versions, {}, age);
  return versions;
}

void delete_versions(const std::string& directory) {
  const std::optional<Folder> run = Folder::open_if_there(directory);
  if (!run) return;
  run->lock();
  for (const FoundVersion& version : find_versions(*run)) {
    if (version.index) delete_version(*run, version);
  }
  std::error_code ignored;  // the folder remains if it contains other files
  std::filesystem::remove(directory, ignored);
}

// Workers that save together exchange short strings: the plan, file indexes, errors. A version that
// lacks a file is never committed, regardless of the order of crashes and errors, because worker 0
// commits only after every writer has reported its file and worker 0 has seen that file itself.

namespace {

constexpr const char* kRemedy =
    "; try a folder that all workers share, or CheckpointManagerOptions::sharded = false, with "
    "which worker 0 writes and reads everything";

/// Error that all workers throw.
struct SharedError : Error {
  using Error::Error;
};

/// Runs `body` on all workers and returns their results, indexed by worker. If a worker fails, all
/// throw its error as a SharedError once every worker has finished.
std::vector<Json> by_all(const CheckpointWorker& self, const std::function<Json()>& body) {
  Json own;
  if (const auto error = error_of([&] { own = Json::Object{{"value", body()}}; })) {
    own = json_of(*error);
  }
  std::vector<Json> values;
  std::vector<std::string> messages;
  std::optional<ErrorCode> code;  // first code other than kDataLoss, or else kDataLoss
  const std::vector<std::string> texts = self.exchange(own.dump());
  for (std::size_t w = 0; w < texts.size(); ++w) {
    const Json told = Json::parse(texts[w], concat("worker ", w));
    if (const Json* const value = told.find("value")) {
      values.push_back(*value);
      continue;
    }
    const Error error = error_in(told);
    messages.push_back(texts.size() == 1 ? error.message()
                                         : concat("worker ", w, ": ", error.message()));
    if (!code || *code == ErrorCode::kDataLoss) code = error.code();
  }
  if (code) throw SharedError(*code, join(messages, "; "));
  return values;
}

/// Returns the numbers of the workers for whose values is_set() returns false.
template <class Values, class IsSet>
std::string missing(const Values& values, const IsSet& is_set) {
  std::vector<std::string> numbers;
  for (std::size_t w = 0; w < values.size(); ++w) {
    if (!is_set(values[w])) numbers.push_back(concat(w));
  }
  return join(numbers);
}

/// Writes this worker's parts. Worker 0 also writes a separate file with all tensors that are not
/// sharded, because all workers read them. Empty parts are not written.
VersionIndex write_own(const Folder& folder, const std::string& tag, const CheckpointFile& all,
                       int worker, int num_workers) {
  if (num_workers == 1) return write_tensors(folder, tensor_file_name(0, 1, tag), all);
  CheckpointFile cut, whole;
  cut.info = whole.info = all.info;
  whole.tensors = all.tensors;
  for (const auto& [name, part] : all.parts) {
    if (part.count() > 0) cut.parts.emplace(name, part);
    if (part.shape.num_elements() == 0) whole.parts.emplace(name, part);
  }
  const auto name = [&](int number) { return tensor_file_name(number, num_workers + 1, tag); };
  VersionIndex index = write_tensors(folder, name(worker + 1), cut);
  if (worker == 0) add_files(index, write_tensors(folder, name(0), whole));
  return index;
}

/// Merges the workers' files into one index. Throws kFailedPrecondition unless worker 0 sees all
/// files.
VersionIndex join_files(const Folder& folder, const std::vector<Json>& by_worker) {
  VersionIndex all;
  for (std::size_t w = 0; w < by_worker.size(); ++w) {
    const VersionIndex own = index_in(by_worker[w]);
    for (const auto& [name, file] : own.files) {
      const auto size = folder.size_of(name);
      if (size == file.num_bytes) continue;
      fail(ErrorCode::kFailedPrecondition, "Checkpoint: expected worker ", w, "'s file ", name,
           " of ", file.num_bytes, " bytes in '", folder.path(), "', got ",
           size ? concat(*size, " bytes") : std::string("none"), "; worker ", w,
           " writes to another folder with the same name", kRemedy);
    }
    add_files(all, own);
  }
  return all;
}

/// Empty file by which workers recognize worker 0's folder. If the destructor cannot delete the
/// file, the next save does.
struct SharedFolderMark {
  explicit SharedFolderMark(const std::string& directory)
      : folder(Folder::make(directory)),
        name(concat(kMark, new_unique_name())),
        file(folder.create_file(name, 0)) {}
  const Folder folder;
  const std::string name;
  const FileWriter file;
};

/// Returns the checksum of a version's index as seen by a worker; empty if the worker sees no
/// index.
std::string identity_of(const std::string& path) {
  const auto folder = Folder::open_if_there(path);
  const auto index = folder ? read_index(*folder) : std::nullopt;
  return index ? hash_of(format_index(*index)) : "";
}

/// Reads this worker's parts of a version while all other workers read theirs. Returns nullopt if a
/// worker sees a different folder.
std::optional<CheckpointFile> read_own(const std::string& path, const std::string& identity,
                                       const ShardedRead& reading, const CheckpointWorker& self) {
  std::optional<CheckpointFile> own;
  const std::vector<Json> outcomes = by_all(self, [&] {
    const bool is_same = identity_of(path) == identity;
    if (is_same) own = read_version(Folder::open(path), reading.wanted);
    return Json(is_same);
  });
  const std::string elsewhere = missing(outcomes, [](const Json& seen) { return seen.as_bool(); });
  if (elsewhere.empty()) return own;
  const std::string problem =
      concat("Checkpoint: workers ", elsewhere, " cannot see worker 0's '", path, "'");
  if (reading.must_be_shared) fail(ErrorCode::kFailedPrecondition, problem, kRemedy);
  if (self.number == 0) {
    log_warning_once(concat(problem, ", so worker 0 reads everything and sends it to all workers"));
  }
  return std::nullopt;
}

}  // namespace

bool is_shared(const std::string& directory, const CheckpointWorker& self) {
  std::optional<SharedFolderMark> mark;
  if (self.number == 0) (void)error_of([&] { mark.emplace(directory); });
  const std::string name = self.exchange(mark ? mark->name : "").front();
  if (name.empty()) return false;  // the save that follows reports the reason
  bool is_here = false;
  (void)error_of([&] {
    const std::optional<Folder> folder = Folder::open_if_there(directory);
    is_here = folder && is_plain_name(name) && folder->size_of(name).has_value();
  });
  const std::string elsewhere = missing(self.exchange(is_here ? "here" : ""),
                                        [](const std::string& text) { return !text.empty(); });
  if (!elsewhere.empty() && self.number == 0) {
    log_warning_once(concat("CheckpointManager: workers ", elsewhere, " cannot see worker 0's '",
                            directory,
                            "', so worker 0 gathers all variables and writes all "
                            "files; try a folder that all workers share"));
  }
  return elsewhere.empty();
}

void save_version(const std::string& directory, const CheckpointFile& file,
                  const SaveSettings& settings, const CheckpointWorker& workers) {
  CheckpointWorker self = workers;
  if (!self.exchange) self.exchange = [](const std::string& own) { return std::vector{own}; };
  std::optional<BegunVersion> begun;  // set in worker 0
  std::optional<Folder> folder;       // set on all workers except worker 0
  VersionIndex index;                 // this worker's files; after join_files(), all files
  try {
    const std::vector<Json> plans = by_all(self, [&] {
      if (self.number != 0) return Json();
      begun.emplace(begin_version(directory, file.info.step));
      return Json(Json::Object{{"name", begun->name}, {"tag", begun->tag}});
    });
    const std::string& name = plans[0].at("name").as_string();
    const std::vector<Json> written = by_all(self, [&] {
      const auto run = begun ? std::nullopt : Folder::open_if_there(directory);
      if (run) folder = run->find_folder(name);
      if (!begun && !folder) {
        fail(ErrorCode::kFailedPrecondition, "Checkpoint: expected the folder of worker 0, in ",
             "which that worker created '", name, "', got another folder at '", directory, "'",
             kRemedy);
      }
      index = write_own(begun ? begun->folder : *folder, plans[0].at("tag").as_string(), file,
                        self.number, static_cast<int>(plans.size()));
      return to_json(index);
    });
    by_all(self, [&] {
      if (begun) index = join_files(begun->folder, written);
      return Json();
    });
    folder.reset();  // from now on, this worker's file may be part of a version
    by_all(self, [&] {
      if (begun) finish_version(*begun, index, file, settings);
      return Json();
    });
  } catch (const SharedError&) {
    for (const auto& [name, written] : index.files) {
      if (folder) folder->remove(name);
    }
    if (begun) remove_failed(*begun);
    throw;
  } catch (...) {  // keeps this worker's files, because the other workers may have continued
    if (begun) remove_failed(*begun);
    throw;
  }
}

// Worker 0 sends the other workers the name of each version that they must read and, at the end,
// the outcome.
std::optional<CheckpointFile> read_sharded(
    const std::function<std::optional<CheckpointFile>(const ReadPath& read)>& find,
    const ShardedRead& reading, const CheckpointWorker& self, const CheckpointOptions& options) {
  std::optional<CheckpointFile> own;
  Json end;
  if (self.number == 0) {
    bool reads_whole = false;  // true if a version is one file, or is not visible to all workers
    const ReadPath read = [&](const std::string& path) {
      const std::string identity =
          reads_whole || !std::filesystem::is_directory(path) ? "" : identity_of(path);
      if (!identity.empty()) {
        const std::string name = std::filesystem::path(path).filename().string();
        self.exchange(Json(Json::Object{{"name", name}, {"identity", identity}}).dump());
        if (auto seen = read_own(path, identity, reading, self)) return std::move(*seen);
      }
      reads_whole = true;
      return read_checkpoint(path);
    };
    const auto error = error_of([&] { own = find(read); });
    end = error ? json_of(*error) : Json::object();
    end.set("found", own.has_value()).set("whole", !error && reads_whole);
    self.exchange(end.dump());
  }
  while (self.number != 0) {
    end = Json::parse(self.exchange("").front(), "worker 0");
    const Json* const name = end.find("name");
    if (!name) break;
    own.reset();
    (void)error_of([&] {  // worker 0 receives and reports the error
      own = read_own(reading.own_path(name->as_string()), end.at("identity").as_string(), reading,
                     self);
    });
  }
  if (end.find("code")) throw error_in(end);
  if (end.at("whole").as_bool()) return read_by_writer([&] { return std::move(own); }, options);
  return end.at("found").as_bool() ? std::move(own) : std::nullopt;
}

}  // namespace internal

// Functions for tools that list, verify and describe checkpoints.

std::string_view to_string(VersionState state) {
  constexpr std::string_view kNames[] = {"whole", "unfinished", "damaged"};
  return internal::name_in(kNames, state, "VersionState");
}

std::vector<CheckpointVersion> list_checkpoints(const std::string& directory) {
  std::vector<CheckpointVersion> versions;
  for (internal::FoundVersion& version :
       internal::find_versions(internal::Folder::open(directory))) {
    versions.push_back(std::move(version.shown));
  }
  return versions;
}

std::vector<std::string> verify_checkpoint(const std::string& path) {
  try {
    if (std::filesystem::is_directory(path)) {
      const auto folder = internal::Folder::open(path);
      return internal::find_damage(folder, internal::require_index(folder));
    }
    internal::read_checkpoint(path);
    return {};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss) throw;
    return {error.message()};
  }
}

Json describe_checkpoint(const std::string& path) {
  internal::CheckpointFile file;
  std::map<std::string, internal::StoredTensor> tensors;
  Json files = Json::array();
  if (std::filesystem::is_directory(path)) {
    const auto folder = internal::Folder::open(path);
    const internal::VersionIndex index = internal::require_index(folder);
    file = internal::read_state(folder, index);
    tensors = internal::tensors_in(folder, index);
    for (const auto& [name, listed] : index.files) {
      files.push_back(
          Json::Object{{"name", name}, {"bytes", listed.num_bytes}, {"checksum", listed.xxh3}});
    }
  } else {
    file = internal::read_checkpoint(path);
    files.push_back(Json::Object{{"name", path}, {"bytes", std::filesystem::file_size(path)}});
    for (const auto& [name, tensor] : file.tensors)
      tensors[name] = {tensor.dtype(), tensor.shape(), {path}};
  }
  Json states = Json::object();
  for (const auto& [name, state] : file.states) states.set(name, state);
  const auto tensor_json = [](const auto& named) {
    const auto& [name, tensor] = named;
    return Json(Json::Object{{"name", name},
                             {"dtype", internal::safetensors_name_of(tensor.dtype)},
                             {"shape", Json::array_of(tensor.shape)},
                             {"files", Json::array_of(tensor.files)}});
  };
  return Json::Object{{"path", path},
                      {"step", file.info.step},
                      {"sequence", file.info.sequence},
                      {"tutti", file.info.tutti_version},
                      {"numerics", file.info.numerics},
                      {"about", file.info.about},
                      {"states", std::move(states)},
                      {"files", std::move(files)},
                      {"tensors", Json::array_of(tensors, tensor_json)}};
}

}  // namespace tutti
