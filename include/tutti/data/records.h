// tf's records, records of one size, what stands in them, and the files that a pattern names.
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

// Files of records, and the files that a pattern names.

// TFRecord files: records of bytes, each with its length and two checksums.

/// How a whole file is packed (tf's compression_type).
enum class Compression { kNone, kGzip, kZlib };

struct TFRecordOptions {
  Compression compression = Compression::kNone;
  /// For compressed files that are read.
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

// Files of records that all have one size.

struct FixedLengthRecordOptions {
  /// Left out at the begin and at the end of each file.
  std::int64_t header_bytes = 0;
  std::int64_t footer_bytes = 0;
  /// For .gz files.
  InputLimits limits = {};
};

/// Elements {features uint8 [record_bytes]}: the records of the files, one file after the other,
/// read as they are asked for (a .gz file is unpacked in memory when it is reached).
/// tf.data.FixedLengthRecordDataset. Throws kInvalidArgument for no path, a size below 1 or
/// negative options; while reading, kNotFound, and kDataLoss naming path, offset, expected and
/// found where a file does not hold whole records, kResourceExhausted beyond the limits.
Dataset fixed_length_record_dataset(std::vector<std::string> paths, std::int64_t record_bytes,
                                    FixedLengthRecordOptions options = {});

// The files that a pattern names.

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

// tf.train.Example: named lists of bytes, floats or integers, as protobuf bytes.

/// One feature: no list (monostate: no kind is set), bytes, floats or integers.
using Feature = std::variant<std::monostate, std::vector<std::string>, std::vector<float>,
                             std::vector<std::int64_t>>;

/// tf.train.Example: features by name.
using Example = std::map<std::string, Feature>;

/// Reads protobuf bytes as any protobuf reader would: packed or not, in any order, the last value
/// of a name holds, unknown fields are left out. `source` names the bytes in errors: kDataLoss with
/// the offset.
Example parse_example(std::string_view bytes, const std::string& source);

/// The bytes of `example`: names in ascending order, numbers packed.
std::string serialize_example(const Example& example);

/// What one component of an element is made of (tf.io.FixedLenFeature; without shape
/// tf.io.VarLenFeature as a dense tensor [n]).
struct FeatureSpec {
  std::string name;
  /// kInt64 (integers), kFloat32 (floats) or kUInt8 (the bytes of one string, as tf.io.decode_raw).
  DType dtype = DType::kInt64;
  /// The tensor's shape; nothing: [n] for n values.
  std::optional<Shape> shape = {};
  /// For an example without this feature; undefined: such an example is refused.
  Tensor default_value = {};
};

/// The features that `specs` names, as an element with these names. `source` names the example in
/// errors: kNotFound for a missing feature, kInvalidArgument naming feature, expected and got for
/// another kind or number of values.
Element element_of(const Example& example, const std::vector<FeatureSpec>& specs,
                   const std::string& source);

}  // namespace tutti
