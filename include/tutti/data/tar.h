// Tar files as shards of a dataset: samples of several files each, as in WebDataset.
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

/// Files of one sample: adjacent files in a tar file whose paths are equal up to the first dot of
/// the file name. "train/0001.jpg" and "train/0001.seg.png" are the files "jpg" and "seg.png" (in
/// lower case) of the sample "train/0001".
struct TarSample {
  std::string key;
  std::map<std::string, std::string> files;  // extension -> bytes

  /// Returns the bytes of the file with this extension. If there is none, throws kNotFound, naming
  /// the sample and its files.
  const std::string& at(const std::string& extension) const;
};

struct TarOptions {
  /// Number of samples decoded concurrently; 1: the caller's thread decodes them.
  int num_parallel_calls = 1;
  /// Limits for .tar.gz files, and for each file in a tar file.
  InputLimits limits = {};
};

/// Returns the samples of the files, one file after the other, read on demand (a .tar.gz file is
/// unpacked in memory when it is reached). An element has uint8 components [bytes]: "__key__", then
/// the extensions in ascending order. As in WebDataset, folders, links, "__...__" and files without
/// a dot or with a leading dot are skipped. Throws kInvalidArgument if `paths` is empty. While
/// reading, throws errors with the path and the offset: kDataLoss for damaged, truncated and empty
/// files, other types of archives, and two files with the same extension in a sample;
/// kResourceExhausted beyond `limits`; kUnimplemented for sparse files and multi-volume archives.
Dataset tar_dataset(std::vector<std::string> paths, InputLimits limits = {});
/// Same as tar_dataset() above, but yields decode(sample). `decode` must depend only on the sample
/// and, with several parallel calls, be thread-safe. next() rethrows its exceptions; the message of
/// an Error then begins with the sample's key.
Dataset tar_dataset(std::vector<std::string> paths, std::function<Element(const TarSample&)> decode,
                    TarOptions options = {});

/// Writer for a tar file. Keeps all files in memory until close(). Identical contents produce
/// identical bytes: owner 0, time 0 (1970) and mode rw-r--r--.
class TarWriter {
 public:
  explicit TarWriter(std::string path) : path_(std::move(path)) {}

  /// Adds a file. Throws kFailedPrecondition after close(), kInvalidArgument for a name that is
  /// empty, ends in "/" or contains a zero byte.
  void write(const std::string& name, std::string_view bytes);
  /// Adds the files of a sample, as "<key>.<extension>". Throws kInvalidArgument for a sample that
  /// would be read back differently, such as one without files or with a dot in the last part of
  /// its key.
  void write(const TarSample& sample);
  /// Writes the file atomically; without close(), no file is written. Throws kUnavailable as
  /// write_file_atomically() does.
  void close();

 private:
  std::string path_;
  std::string bytes_;
  bool closed_ = false;
};

}  // namespace tutti
