// TFRecord files: records of bytes, each with its length and two checksums.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/input_limits.h"

namespace tutti {

/// How a whole file is packed (tf's compression_type).
enum class Compression { kNone, kGzip, kZlib };

struct TFRecordOptions {
  Compression compression = Compression::kNone;
  /// Of compressed files that are read.
  InputLimits limits = {};
};

/// Walks over the records of an unpacked file in memory. A record is length (8 bytes, little
/// endian), masked CRC-32C of these 8 bytes, the data, masked CRC-32C of the data. `source` names
/// the bytes in errors: kDataLoss with record number and offset. Views `bytes`, which must outlive
/// it.
class TFRecordParser {
 public:
  TFRecordParser(std::string_view bytes, std::string source)
      : bytes_(bytes), source_(std::move(source)) {}

  /// The next record's data, a view; nothing at the end.
  std::optional<std::string_view> next();
  /// Leaves out up to `count` records without reading their data; gives how many there were.
  std::int64_t skip(std::int64_t count);

 private:
  std::size_t read_length();
  template <class... Parts>
  [[noreturn]] void fail_at(std::size_t offset, const Parts&... parts) const;

  std::string_view bytes_;
  std::string source_;
  std::size_t offset_ = 0;
  std::int64_t record_ = 0;
};

/// Collects records and writes them as one file: in memory until close().
class TFRecordWriter {
 public:
  explicit TFRecordWriter(std::string path, TFRecordOptions options = {});

  /// Throws kFailedPrecondition after close().
  void write(std::string_view record);
  /// Writes the file, so that readers see all of it or none; without it no file is written. Throws
  /// kUnavailable as write_file_atomically() does.
  void close();

 private:
  std::string path_;
  TFRecordOptions options_;
  std::string bytes_;
  bool closed_ = false;
};

/// The records of the files, one file after the other, as elements {features uint8 [bytes]}.
/// Files are read when they are reached, each whole. tf.data.TFRecordDataset. Throws
/// kInvalidArgument for no path.
Dataset tfrecord_dataset(std::vector<std::string> paths, TFRecordOptions options = {});

/// The bytes of a uint8 tensor, such as a record's.
std::string_view bytes_of(const Tensor& record);

}  // namespace tutti
