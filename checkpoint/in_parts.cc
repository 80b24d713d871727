// Versions that several workers save and read together.
// SPDX-License-Identifier: Apache-2.0
//
// What they tell each other is small: the plan, manifests of parts, errors. No order of deaths and
// errors commits a version that lacks a file: worker 0 commits after it was told of every file by
// its writer, and has seen it.
#include "checkpoint/in_parts.h"

#include <filesystem>
#include <utility>

#include "core/hash.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr const char* kRemedy =
    "; try a folder that all workers share, or CheckpointManagerOptions::sharded = false, with "
    "which worker 0 writes and reads all";

Json json_of(const Error& error) {
  return Json::Object{{"code", static_cast<int>(error.code())}, {"message", error.message()}};
}

Error error_in(const Json& json) {
  return Error(static_cast<ErrorCode>(json.at("code").as_int()), json.at("message").as_string());
}

/// An error that all workers know of.
struct ToldError : Error {
  using Error::Error;
};

/// What `body` gives each worker, by worker. When all have ended, a worker's error is thrown by all
/// of them as a ToldError.
std::vector<Json> by_all(const WorkerOfMany& self, const std::function<Json()>& body) {
  Json own;
  if (const auto error = error_of([&] { own = Json::Object{{"value", body()}}; })) {
    own = json_of(*error);
  }
  std::vector<Json> values;
  std::vector<std::string> messages;
  std::optional<ErrorCode> code;  // of the first, but damage counts least: there may be more to it
  const std::vector<std::string> texts = self.exchange(own.dump());
  for (std::size_t w = 0; w < texts.size(); ++w) {
    const Json told = Json::parse(texts[w], concat("worker ", w));
    if (const Json* const value = told.find("value")) {
      values.push_back(*value);
      continue;
    }
    const Error error = error_in(told);
    messages.push_back(concat("worker ", w, ": ", error.message()));
    if (!code || *code == ErrorCode::kDataLoss) code = error.code();
  }
  if (code) throw ToldError(*code, join(messages, "; "));
  return values;
}

/// The same of worker 0 alone.
Json by_first(const WorkerOfMany& self, const std::function<Json()>& body) {
  return by_all(self, [&] { return self.number == 0 ? body() : Json(); }).front();
}

/// What a worker writes. What all have is in the file of worker 0; empty parts are in none.
CheckpointFile share_of(const CheckpointFile& all, int worker) {
  CheckpointFile own;
  own.info = all.info;
  for (const auto& [name, part] : all.parts) {
    const bool is_first_of_nothing = part.shape.num_elements() == 0 && worker == 0;
    if (part.count() > 0 || is_first_of_nothing) own.parts.emplace(name, part);
  }
  if (worker > 0) return own;
  own.tensors = all.tensors;
  own.states = all.states;
  return own;
}

/// A version while all workers write it.
class VersionInParts {
 public:
  VersionInParts(const std::string& directory, const CheckpointFile& file, const WorkerOfMany& self)
      : directory_(directory), file_(file), self_(self) {}

  void save(const SaveSettings& settings) {
    try {
      const std::vector<Json> plans =
          by_all(self_, [&] { return self_.number == 0 ? begin() : Json(); });
      const PartNumber part{self_.number, static_cast<int>(plans.size())};
      const std::vector<Json> parts = by_all(self_, [&] { return write(plans.front(), part); });
      Manifest manifest;
      by_first(self_, [&] {
        manifest = joined(parts);
        return Json();
      });
      written_.clear();  // from here on it may be a part of a version
      by_first(self_, [&] {
        finish_version(*begun_, manifest, settings);
        return Json();
      });
    } catch (const ToldError&) {
      if (folder_ && !written_.empty()) folder_->remove(written_);
      if (begun_) take_back(*begun_);
      throw;
    } catch (...) {  // the others may have gone on: what this worker has written stays
      if (begun_) take_back(*begun_);
      throw;
    }
  }

 private:
  Json begin() {
    begun_.emplace(begin_version(directory_, file_.info.step));
    return Json::Object{{"name", begun_->name}, {"sequence", begun_->sequence}};
  }

  const Folder& open(const std::string& name) {
    if (begun_) return begun_->folder;
    const auto run = Folder::open_if_there(directory_);
    folder_ = run ? run->find_folder(name) : std::nullopt;
    if (folder_) return *folder_;
    fail(ErrorCode::kFailedPrecondition, "Checkpoint: '", directory_,
         "' is another folder than worker 0 sees; expected ", name,
         " in it, which worker 0 has made", kRemedy);
  }

  Json write(const Json& plan, PartNumber part) {
    const std::int64_t sequence = plan.at("sequence").as_int();
    const Folder& folder = open(plan.at("name").as_string());
    const CheckpointFile own = share_of(file_, self_.number);
    const Manifest manifest = write_part(folder, describe(own, sequence), own, part);
    written_ = manifest.files.front().name;
    return Json(format_manifest(manifest));
  }

  /// Worker 0 sees the files of all.
  Manifest joined(const std::vector<Json>& parts) const {
    std::vector<Manifest> manifests;
    for (std::size_t w = 0; w < parts.size(); ++w) {
      manifests.push_back(parse_manifest(parts[w].as_string(), concat("the part of worker ", w)));
      const ManifestFile& file = manifests.back().files.front();
      const auto size = begun_->folder.size_of(file.name);
      if (size == file.num_bytes) continue;
      fail(ErrorCode::kFailedPrecondition, "Checkpoint: expected the file of worker ", w, ", ",
           file.name, " of ", file.num_bytes, " bytes, in '", begun_->folder.path(), "', got ",
           size ? concat(*size, " bytes") : std::string("none"), ": worker ", w,
           " writes into another folder of this name", kRemedy);
    }
    return join_parts(manifests);
  }

  const std::string& directory_;
  const CheckpointFile& file_;
  const WorkerOfMany& self_;
  std::optional<BegunVersion> begun_;  // of worker 0
  std::optional<Folder> folder_;       // of the others
  std::string written_;                // the file of this worker
};

}  // namespace

bool is_shared(const std::string& directory, const WorkerOfMany& self) {
  std::optional<FolderMark> mark;
  if (self.number == 0) (void)error_of([&] { mark.emplace(directory); });
  const std::string name = self.exchange(mark ? mark->name() : "").front();
  if (name.empty()) return false;  // the save says why
  bool is_here = false;
  (void)error_of([&] { is_here = FolderMark::is_in(directory, name); });
  const std::vector<std::string> texts = self.exchange(is_here ? "here" : "");
  std::vector<std::string> elsewhere;
  for (std::size_t w = 0; w < texts.size(); ++w) {
    if (texts[w].empty()) elsewhere.push_back(concat(w));
  }
  if (elsewhere.empty()) return true;
  if (self.number == 0) {
    log_warning_once(concat("CheckpointManager: workers ", join(elsewhere), " do not see '",
                            directory,
                            "' of worker 0, which gathers all variables and writes them "
                            "alone; try a folder that all workers share"));
  }
  return false;
}

void save_version_in_parts(const std::string& directory, const CheckpointFile& file,
                           const SaveSettings& settings, const WorkerOfMany& self) {
  VersionInParts(directory, file, self).save(settings);
}

// Reading. Worker 0 tells the others what to read, any number of times, and then how it ended.

namespace {

/// Of a version as a worker sees it; empty: it does not.
std::string identity_of(const std::string& path) {
  const auto folder = Folder::open_if_there(path);
  const auto manifest = folder ? read_manifest(*folder) : std::nullopt;
  return manifest ? hash_of(format_manifest(*manifest)) : "";
}

class ReaderInParts {
 public:
  ReaderInParts(const ReadingInParts& reading, const WorkerOfMany& self)
      : reading_(reading), self_(self) {}

  /// Of worker 0.
  CheckpointFile read(const std::string& path) {
    const std::string identity =
        reads_whole_ || !std::filesystem::is_directory(path) ? "" : identity_of(path);
    if (identity.empty()) {
      reads_whole_ = true;
      return read_checkpoint(path);
    }
    const std::string name = std::filesystem::path(path).filename().string();
    self_.exchange(Json(Json::Object{{"name", name}, {"identity", identity}}).dump());
    std::optional<CheckpointFile> own = read_own(path, identity);
    if (own) return std::move(*own);
    reads_whole_ = true;
    return read_checkpoint(path);
  }

  /// Of the others: as often as worker 0 reads. Its last words.
  Json follow(std::optional<CheckpointFile>& own) {
    for (;;) {
      Json told = Json::parse(self_.exchange("").front(), "worker 0");
      const Json* const name = told.find("name");
      if (!name) return told;
      own.reset();
      (void)error_of([&] {  // worker 0 knows of it
        own = read_own(reading_.own_path(name->as_string()), told.at("identity").as_string());
      });
    }
  }

  bool reads_whole() const { return reads_whole_; }

 private:
  /// By all; nothing: a worker sees another folder.
  std::optional<CheckpointFile> read_own(const std::string& path, const std::string& identity) {
    std::optional<CheckpointFile> own;
    const std::vector<Json> outcomes = by_all(self_, [&] {
      if (identity_of(path) != identity) return Json(false);
      own = read_version(Folder::open(path), reading_.wanted);
      return Json(true);
    });
    std::vector<std::string> elsewhere;
    for (std::size_t w = 0; w < outcomes.size(); ++w) {
      if (!outcomes[w].as_bool()) elsewhere.push_back(concat(w));
    }
    if (elsewhere.empty()) return own;
    const std::string problem =
        concat("Checkpoint: workers ", join(elsewhere), " do not see '", path, "' of worker 0");
    if (reading_.must_be_shared) fail(ErrorCode::kFailedPrecondition, problem, kRemedy);
    if (self_.number == 0) {
      log_warning_once(concat(problem, ", which reads all and hands it to them"));
    }
    return std::nullopt;
  }

  const ReadingInParts& reading_;
  const WorkerOfMany& self_;
  bool reads_whole_ = false;
};

}  // namespace

std::optional<CheckpointFile> read_in_parts(
    const std::function<std::optional<CheckpointFile>(const ReadPath& read)>& find,
    const ReadingInParts& reading, const WorkerOfMany& self, const CheckpointOptions& options) {
  ReaderInParts reader(reading, self);
  std::optional<CheckpointFile> own;
  std::optional<Error> error;
  Json end;
  if (self.number == 0) {
    error =
        error_of([&] { own = find([&](const std::string& path) { return reader.read(path); }); });
    end = error ? json_of(*error) : Json::object();
    end.set("found", own.has_value()).set("whole", !error && reader.reads_whole());
    self.exchange(end.dump());
  } else {
    end = reader.follow(own);
  }
  if (end.find("code")) throw error_in(end);
  if (end.at("whole").as_bool()) return read_by_writer([&] { return std::move(own); }, options);
  return end.at("found").as_bool() ? std::move(own) : std::nullopt;
}

}  // namespace tutti::internal
