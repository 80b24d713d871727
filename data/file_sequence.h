// Datasets over several files that are read one after the other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/dataset.h"

namespace tutti::internal {

/// The elements of one open file. Used by one thread.
class FileElements {
 public:
  virtual ~FileElements() = default;
  /// The next element; nothing at the end.
  virtual std::optional<Element> next() = 0;
  /// Leaves out up to `count` elements; gives how many there were.
  virtual std::int64_t skip(std::int64_t count) = 0;
};

/// What a file or a record holds: uint8 [bytes]. The opposite of bytes_of() (records.h).
Tensor tensor_of_bytes(std::string_view bytes);

using OpenFile = std::function<std::unique_ptr<FileElements>(const std::string& path)>;

/// The elements of the files, one file after the other; `open` is called when a file is reached,
/// once per pass. Throws kInvalidArgument naming `who` for no path, and from next() for a file that
/// cannot be opened.
Dataset dataset_of_files(std::vector<std::string> paths, OpenFile open, const char* who);

}  // namespace tutti::internal
