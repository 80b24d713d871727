// Tar files as shards of a dataset: samples of several files each, as WebDataset keeps them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/input_limits.h"

namespace tutti {

/// The files of one sample, which stand one behind the other in their tar file: those whose paths
/// are equal up to the first dot of their names. "train/0001.jpg" and "train/0001.seg.png" are the
/// files "jpg" and "seg.png" (in small letters) of the sample "train/0001".
struct TarSample {
  std::string key;
  std::map<std::string, std::string> files;  // extension -> bytes

  /// Throws kNotFound naming the sample and its files.
  const std::string& at(const std::string& extension) const;
};

struct TarOptions {
  /// Samples decoded at once; 1: on the caller's thread.
  int num_parallel_calls = 1;
  /// For .tar.gz files, and for the bytes of each file in them.
  InputLimits limits = {};
};

/// The samples of the files, one file after the other, read as they are asked for (a .tar.gz file
/// is unpacked in memory when it is reached): uint8 components [bytes] "__key__" and the extensions
/// in ascending order. Files without a dot, or with one in front, folders, links and "__...__" are
/// left out, as in WebDataset. Throws kInvalidArgument for no path; while reading, naming path and
/// offset: kDataLoss for damaged, truncated and empty files and other archives, and where a sample
/// has two files of one extension, kResourceExhausted beyond `limits`, kUnimplemented for sparse
/// files and volumes.
Dataset tar_dataset(std::vector<std::string> paths, InputLimits limits = {});
/// What `decode` makes of each sample. It must be a function of the sample alone and, with several
/// calls at once, safe on several threads. What it throws comes out of next(), with the sample's
/// key in front where it is an Error.
Dataset tar_dataset(std::vector<std::string> paths, std::function<Element(const TarSample&)> decode,
                    TarOptions options = {});

/// Collects files and writes them as one tar file: in memory until close(). The same files give the
/// same bytes: owners, times and modes are those of nobody, 1970 and rw-r--r--.
class TarWriter {
 public:
  explicit TarWriter(std::string path) : path_(std::move(path)) {}

  /// Adds a file. Throws kFailedPrecondition after close(), kInvalidArgument for a name that is
  /// empty, ends in "/" or has a byte 0.
  void write(const std::string& name, std::string_view bytes);
  /// Adds the files of a sample, as "<key>.<extension>". Throws kInvalidArgument for a sample that
  /// would not be read as it is: without files, or with a dot in the name of its key, ...
  void write(const TarSample& sample);
  /// Writes the file, so that readers see all of it or none; without it no file is written. Throws
  /// kUnavailable as write_file_atomically() does.
  void close();

 private:
  std::string path_;
  std::string bytes_;
  bool closed_ = false;
};

}  // namespace tutti
