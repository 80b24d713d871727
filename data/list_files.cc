// The files that a pattern names, by the system's glob.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/records.h"

#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "tutti/core/error.h"
#include "tutti/core/random.h"

namespace tutti {
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

void shuffle(std::vector<std::string>& paths, std::uint64_t seed) {
  const RandomStream random({.seed = seed, .purpose = kShufflePurpose});
  for (std::size_t left = paths.size(); left > 1; --left) {
    std::swap(paths[left - 1], paths[static_cast<std::size_t>(random.below(left, left))]);
  }
}

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
  if (options.shuffle) shuffle(paths, options.seed);
  return paths;
}

}  // namespace tutti
