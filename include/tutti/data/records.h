// TFRecord files, files of fixed-length records, tf.train.Example, and file name patterns.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/element.h"
#include "tutti/data/input_limits.h"

namespace tutti {

// TFRecord files: records of bytes, each with its length and two checksums.

/// Compression of a file (tf's compression_type).
enum class Compression { kNone, kGzip, kZlib };

struct TFRecordOptions {
  Compression compression = Compression::kNone;
  /// Limits on reading compressed files.
  InputLimits limits = {};
};

/// Parser of the records of an unpacked file in memory. A record is the length (8 bytes, little
/// endian), the masked CRC-32C of these 8 bytes, the data, and the masked CRC-32C of the data.
/// Throws kDataLoss with `source` (the name of the bytes), the record number and the offset. Does
/// not copy `bytes`, which must outlive the parser.
class TFRecordParser {
 public:
  TFRecordParser(std::string_view bytes, std::string source)
      : bytes_(bytes), source_(std::move(source)) {}

  /// Returns a view of the next record's data, or nullopt at the end.
  std::optional<std::string_view> next();
  /// Skips up to `count` records without reading their data; returns the number skipped.
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

/// Writer of a TFRecord file. Keeps all records in memory until close().
class TFRecordWriter {
 public:
  explicit TFRecordWriter(std::string path, TFRecordOptions options = {});

  /// Throws kFailedPrecondition after close().
  void write(std::string_view record);
  /// Writes the file atomically; without close(), no file is written. Throws kUnavailable as
  /// write_file_atomically() does.
  void close();

 private:
  std::string path_;
  TFRecordOptions options_;
  std::string bytes_;
  bool closed_ = false;
};

/// Returns the records of the files, one file after the other, as elements {features uint8
/// [bytes]}. Each file is read in full when it is reached. Like tf.data.TFRecordDataset. Throws
/// kInvalidArgument if `paths` is empty.
Dataset tfrecord_dataset(std::vector<std::string> paths, TFRecordOptions options = {});

/// Returns the bytes of a uint8 tensor, such as a record.
std::string_view bytes_of(const Tensor& record);

// Files of fixed-length records.

struct FixedLengthRecordOptions {
  /// Number of bytes skipped at the beginning and at the end of each file.
  std::int64_t header_bytes = 0;
  std::int64_t footer_bytes = 0;
  /// Limits for .gz files.
  InputLimits limits = {};
};

/// Returns elements {features uint8 [record_bytes]}: the records of the files, one file after the
/// other, read on demand (a .gz file is unpacked in memory when it is reached). Like
/// tf.data.FixedLengthRecordDataset. Throws kInvalidArgument if `paths` is empty, if the size is
/// below 1, or if an option is negative. While reading, throws kNotFound for a missing file;
/// kDataLoss, naming the path and the offset, for a file that does not consist of whole records;
/// and kResourceExhausted beyond the limits.
Dataset fixed_length_record_dataset(std::vector<std::string> paths, std::int64_t record_bytes,
                                    FixedLengthRecordOptions options = {});

// File name patterns.

struct ListFilesOptions {
  /// If true, returns the paths in a random order drawn from `seed` instead of in ascending order.
  bool shuffle = false;
  std::uint64_t seed = 0;
};

/// Returns the paths that match `pattern`, sorted bytewise in every locale. In "train-*.tfrecord"
/// `*` matches any characters except "/", `?` one such character, "[a-c]" one of several, and "\*"
/// a star. A leading dot is matched only by a dot. Like tf.data.Dataset.list_files. Use it for
/// readers of several files: `tfrecord_dataset(list_files(p))`. Throws kNotFound, naming the
/// pattern, if nothing matches, and kUnavailable for a folder that cannot be read.
std::vector<std::string> list_files(const std::string& pattern, ListFilesOptions options = {});

// tf.train.Example: named lists of byte strings, floats or integers, encoded as protobuf.

/// Value of one feature: a list of byte strings, floats or integers; monostate if no kind is set.
using Feature = std::variant<std::monostate, std::vector<std::string>, std::vector<float>,
                             std::vector<std::int64_t>>;

/// tf.train.Example: features by name.
using Example = std::map<std::string, Feature>;

/// Parses protobuf bytes as any protobuf reader would: packed or not, in any order; the last value
/// for a name wins, and unknown fields are skipped. `source` names the bytes in errors. Throws
/// kDataLoss with the offset.
Example parse_example(std::string_view bytes, const std::string& source);

/// Returns the bytes of `example`: names in ascending order, numbers packed.
std::string serialize_example(const Example& example);

/// Description of one component of an element, like tf.io.FixedLenFeature. Without a shape, it is
/// like tf.io.VarLenFeature, but dense: [n].
struct FeatureSpec {
  std::string name;
  /// kInt64 (integers), kFloat32 (floats) or kUInt8 (the bytes of one string, as from
  /// tf.io.decode_raw).
  DType dtype = DType::kInt64;
  /// Shape of the tensor. Default: [n] for n values.
  std::optional<Shape> shape = {};
  /// Value for an example without this feature. If undefined, such an example is an error.
  Tensor default_value = {};
};

/// Returns the features that `specs` lists, as an element with these names. `source` names the
/// example in errors. Throws kNotFound for a missing feature, and kInvalidArgument, naming the
/// feature, for a wrong kind or number of values.
Element element_of(const Example& example, const std::vector<FeatureSpec>& specs,
                   const std::string& source);

}  // namespace tutti
