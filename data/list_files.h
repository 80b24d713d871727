// The files that a pattern names.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

struct ListFilesOptions {
  /// In an order drawn from `seed` instead of the ascending one.
  bool shuffle = false;
  std::uint64_t seed = 0;
};

/// The paths that match `pattern`, in ascending order of their bytes, whatever the locale:
/// "train-*.tfrecord", with `*` for any characters and `?` for one (but "/"), "[a-c]" for one of
/// several, and "\*" for a star. Names that begin with a dot are matched by a dot alone.
/// tf.data.Dataset.list_files. For readers of several files: `tfrecord_dataset(list_files(p))`.
/// Throws kNotFound naming the pattern where nothing matches, kUnavailable for a folder that cannot
/// be read.
std::vector<std::string> list_files(const std::string& pattern, ListFilesOptions options = {});

}  // namespace tutti
