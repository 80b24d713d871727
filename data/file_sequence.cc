// Datasets over several files that are read one after the other.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/file_sequence.h"

#include <utility>

#include "tutti/data/input_limits.h"

namespace tutti::internal {
namespace {

struct Files {
  std::vector<std::string> paths;
  OpenFile open;
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
    open_ = name_when_out_of_memory(path, [&] { return files_->open(path); });
    ++file_;
    return true;
  }

  /// Of the open file.
  const std::string& path() const { return files_->paths[file_ - 1]; }

  std::shared_ptr<const Files> files_;
  std::size_t file_ = 0;
  std::unique_ptr<FileElements> open_;  // null between files
};

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
                             Files{every_nth(files->paths, count, index), files->open});
                       }};
  }

 private:
  std::shared_ptr<const Files> files_;
};

}  // namespace

std::vector<std::string> every_nth(const std::vector<std::string>& paths, std::int64_t count,
                                   std::int64_t index) {
  std::vector<std::string> chosen;
  for (std::int64_t i = index; i < std::ssize(paths); i += count) {
    chosen.push_back(paths[static_cast<std::size_t>(i)]);
  }
  return chosen;
}

Dataset dataset_of_files(std::vector<std::string> paths, OpenFile open, const char* who) {
  if (paths.empty()) {
    fail(ErrorCode::kInvalidArgument, who, ": expected at least one path, got none");
  }
  return Dataset(std::make_shared<FilesSource>(Files{std::move(paths), std::move(open)}));
}

}  // namespace tutti::internal
