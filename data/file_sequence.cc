// Several files: read one after the other, or found by a pattern.
// SPDX-License-Identifier: Apache-2.0
#include "data/file_sequence.h"

#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "data/input_file.h"
#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/data/input_limits.h"
#include "tutti/data/records.h"

namespace tutti::internal {
namespace {

struct Files {
  std::vector<std::string> paths;
  OpenFile open;
  const char* who;  // the function that the user called
};

class FilesIterator : public ElementIterator {
 public:
  explicit FilesIterator(std::shared_ptr<const Files> files) : files_(std::move(files)) {}

  std::optional<Element> next() override {
    while (open_ || open_next()) {
      auto element = name_when_out_of_memory(path(), [&] { return open_->next(); });
      if (element) return element;
      open_.reset();
    }
    return std::nullopt;
  }

  void skip(std::int64_t count) override {
    while (count > 0 && (open_ || open_next())) {
      count -= name_when_out_of_memory(path(), [&] { return open_->skip(count); });
      if (count > 0) open_.reset();
    }
  }

 private:
  bool open_next() {
    if (file_ == files_->paths.size()) return false;
    const std::string& path = files_->paths[file_];
    open_ = naming(files_->who, [&] {
      return name_when_out_of_memory(path, [&] { return files_->open(path); });
    });
    ++file_;
    return true;
  }

  /// Of the open file.
  const std::string& path() const { return files_->paths[file_ - 1]; }

  std::shared_ptr<const Files> files_;
  std::size_t file_ = 0;
  std::unique_ptr<FileElements> open_;  // null between files
};

/// Paths index, index + count, ...
std::vector<std::string> every_nth(const std::vector<std::string>& paths, std::int64_t count,
                                   std::int64_t index) {
  std::vector<std::string> chosen;
  for (std::int64_t i = index; i < std::ssize(paths); i += count) {
    chosen.push_back(paths[static_cast<std::size_t>(i)]);
  }
  return chosen;
}

class FilesSource : public DatasetSource {
 public:
  explicit FilesSource(Files files) : files_(std::make_shared<const Files>(std::move(files))) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t) const override {
    return std::make_unique<FilesIterator>(files_);
  }
  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }
  std::optional<int> batch_depth() const override { return 0; }
  std::optional<SourceFiles> files() const override {
    return SourceFiles{std::ssize(files_->paths), [files = files_](auto count, auto index) {
                         return std::make_shared<FilesSource>(
                             Files{every_nth(files->paths, count, index), files->open, files->who});
                       }};
  }

 private:
  std::shared_ptr<const Files> files_;
};

}  // namespace

Dataset dataset_of_files(std::vector<std::string> paths, OpenFile open, const char* who) {
  if (paths.empty()) {
    fail(ErrorCode::kInvalidArgument, who, ": expected at least one path, got none");
  }
  return Dataset(std::make_shared<FilesSource>(Files{std::move(paths), std::move(open), who}));
}

}  // namespace tutti::internal

namespace tutti {

// The files that a pattern names, by the system's glob.

namespace {

class Glob {
 public:
  explicit Glob(const std::string& pattern) : status_(run(pattern)) {}
  ~Glob() { ::globfree(&found_); }
  Glob(const Glob&) = delete;
  Glob& operator=(const Glob&) = delete;

  int status() const { return status_; }
  std::vector<std::string> paths() const {
    return {found_.gl_pathv, found_.gl_pathv + found_.gl_pathc};
  }

 private:
  int run(const std::string& pattern) {
    // A folder of the pattern that is a file, or is not there, matches nothing.
    const auto stop_at = [](const char*, int reason) {
      return reason == ENOENT || reason == ENOTDIR ? 0 : 1;
    };
    return ::glob(pattern.c_str(), GLOB_NOSORT, stop_at, &found_);
  }

  ::glob_t found_{};
  int status_;
};

}  // namespace

std::vector<std::string> list_files(const std::string& pattern, ListFilesOptions options) {
  const Glob glob(pattern);
  if (glob.status() == GLOB_NOMATCH) {
    fail(ErrorCode::kNotFound, "list_files: no file matches '", pattern,
         "'; expected at least one; try the whole path, or another working directory");
  }
  if (glob.status() != 0) {
    fail(ErrorCode::kUnavailable, "list_files: cannot look for '", pattern,
         "': ", std::generic_category().message(errno));
  }
  std::vector<std::string> paths = glob.paths();
  std::sort(paths.begin(), paths.end());
  if (options.shuffle) {
    internal::shuffle(paths, RandomStream({.seed = options.seed, .purpose = kShufflePurpose}));
  }
  return paths;
}

}  // namespace tutti
