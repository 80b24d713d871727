// TFRecord files, files of fixed-length records, and tf.train.Example.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/records.h"

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <utility>

#include "core/file.h"
#include "core/file_kind.h"
#include "core/names.h"
#include "data/input_file.h"

namespace tutti {
namespace {

using internal::fail_at;
using internal::get_little_endian;
using internal::masked_crc32c;

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kSumBytes = 4;
constexpr std::size_t kHeaderBytes = kLengthBytes + kSumBytes;

std::string read_unpacked(const std::string& path, const TFRecordOptions& options) {
  std::string bytes = internal::read_file_for("tfrecord_dataset", path);
  // An empty file has no records, whatever the compression.
  if (options.compression == Compression::kNone || bytes.empty()) return bytes;
  const bool is_gzip = options.compression == Compression::kGzip;
  return internal::inflate_bytes(
      bytes, is_gzip ? internal::DeflateFormat::kGzip : internal::DeflateFormat::kZlib, path,
      options.limits);
}

class TFRecords : public internal::FileElements {
 public:
  TFRecords(const std::string& path, const TFRecordOptions& options)
      : bytes_(read_unpacked(path, options)), parser_(bytes_, path) {}

  std::optional<Element> next() override {
    const auto record = parser_.next();
    if (!record) return std::nullopt;
    return Element({internal::tensor_of_bytes(*record)});
  }
  std::int64_t skip(std::int64_t count) override { return parser_.skip(count); }

 private:
  const std::string bytes_;
  TFRecordParser parser_;  // refers to bytes_
};

}  // namespace

template <class... Parts>
void TFRecordParser::fail_at(std::size_t offset, const Parts&... parts) const {
  const bool packed = record_ == 0 && internal::is_gzip(bytes_);
  fail(ErrorCode::kDataLoss, source_, ": record ", record_, ": offset ", offset, ": ", parts...,
       packed         ? "; the file is compressed: use Compression::kGzip"
       : record_ == 0 ? internal::kind_note(bytes_)
                      : "");
}

std::size_t TFRecordParser::read_length() {
  const std::size_t left = bytes_.size() - offset_;
  if (left < kHeaderBytes) {
    fail_at(offset_, "the file ends within a record's length; expected ", kHeaderBytes,
            " bytes, got ", left);
  }
  const auto sum = get_little_endian<std::uint32_t>(bytes_, offset_ + kLengthBytes);
  const std::uint32_t expected = masked_crc32c(bytes_.substr(offset_, kLengthBytes));
  if (sum != expected) {
    fail_at(offset_ + kLengthBytes, "the length's checksum is wrong; expected ", expected, ", got ",
            sum);
  }
  const auto length = get_little_endian<std::uint64_t>(bytes_, offset_);
  const std::size_t after_header = left - kHeaderBytes;
  if (after_header < kSumBytes || length > after_header - kSumBytes) {
    fail_at(offset_ + kHeaderBytes, "the file ends within a record; expected ", length,
            " bytes of data and ", kSumBytes, " of checksum, got ", after_header);
  }
  return static_cast<std::size_t>(length);
}

std::optional<std::string_view> TFRecordParser::next() {
  if (offset_ == bytes_.size()) return std::nullopt;
  const std::size_t length = read_length();
  const std::string_view data = bytes_.substr(offset_ + kHeaderBytes, length);
  const std::size_t sum_offset = offset_ + kHeaderBytes + length;
  const auto sum = get_little_endian<std::uint32_t>(bytes_, sum_offset);
  const std::uint32_t expected = masked_crc32c(data);
  if (sum != expected) {
    fail_at(sum_offset, "the data's checksum is wrong; expected ", expected, ", got ", sum);
  }
  offset_ = sum_offset + kSumBytes;
  ++record_;
  return data;
}

std::int64_t TFRecordParser::skip(std::int64_t count) {
  std::int64_t skipped = 0;
  for (; skipped < count && offset_ < bytes_.size(); ++skipped, ++record_) {
    const std::size_t length = read_length();
    offset_ += kHeaderBytes + length + kSumBytes;
  }
  return skipped;
}

TFRecordWriter::TFRecordWriter(std::string path, TFRecordOptions options)
    : path_(std::move(path)), options_(options) {}

void TFRecordWriter::write(std::string_view record) {
  if (closed_) {
    fail(ErrorCode::kFailedPrecondition, "TFRecordWriter::write: '", path_,
         "' is closed; expected write() before close()");
  }
  internal::put_record(bytes_, record);
}

void TFRecordWriter::close() {
  if (closed_) return;
  if (options_.compression != Compression::kNone) {
    bytes_ = internal::deflate_bytes(bytes_, options_.compression == Compression::kGzip
                                                 ? internal::DeflateFormat::kGzip
                                                 : internal::DeflateFormat::kZlib);
  }
  write_file_atomically(path_, bytes_);
  closed_ = true;
  bytes_.clear();
}

Dataset tfrecord_dataset(std::vector<std::string> paths, TFRecordOptions options) {
  return internal::dataset_of_files(
      std::move(paths),
      [options](const std::string& path) { return std::make_unique<TFRecords>(path, options); },
      "tfrecord_dataset");
}

Tensor internal::tensor_of_bytes(std::string_view bytes) {
  const Shape shape{static_cast<std::int64_t>(bytes.size())};
  return Tensor::from_bytes(shape, DType::kUInt8, std::as_bytes(std::span(bytes)));
}

std::string_view bytes_of(const Tensor& record) {
  const auto bytes = record.host_span<std::uint8_t>();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Files of fixed-length records.

namespace {

struct Layout {
  std::uint64_t record = 0, header = 0, footer = 0;  // bytes
};

class FixedLengthRecords : public internal::FileElements {
 public:
  FixedLengthRecords(const std::string& path, const Layout& layout, const InputLimits& limits)
      : file_(path, limits), layout_(layout) {
    left_ = count_records();
    file_.skip(layout_.header);
  }

  std::optional<Element> next() override {
    if (left_ == 0) return std::nullopt;
    std::string record;
    if (const std::uint64_t got = file_.read(record, layout_.record); got < layout_.record) {
      fail_truncated(file_.offset(), layout_.record, got);  // the file has shrunk
    }
    --left_;
    return Element({internal::tensor_of_bytes(record)});
  }

  std::int64_t skip(std::int64_t count) override {
    const std::int64_t skipped = std::min(count, left_);
    file_.skip(static_cast<std::uint64_t>(skipped) * layout_.record);
    left_ -= skipped;
    return skipped;
  }

 private:
  std::int64_t count_records() const {
    internal::require(file_.size(), "fixed_length_record_dataset: expected a regular file, got '",
                      file_.source(), "', which has no size");
    const std::uint64_t size = *file_.size();
    if (size < layout_.header || size - layout_.header < layout_.footer) {
      fail_truncated(size, layout_.header + layout_.footer, size);
    }
    const std::uint64_t records = size - layout_.header - layout_.footer;
    const std::uint64_t rest = records % layout_.record;
    if (rest != 0) fail_truncated(layout_.header + records - rest, layout_.record, rest);
    return static_cast<std::int64_t>(records / layout_.record);
  }

  [[noreturn]] void fail_truncated(std::uint64_t offset, std::uint64_t expected,
                                   std::uint64_t got) const {
    fail_at(file_.source(), offset, "the file does not consist of whole records of ",
            layout_.record, " bytes between ", layout_.header, " bytes of header and ",
            layout_.footer, " bytes of footer; expected ", expected, " bytes, got ", got,
            file_.offset() == 0 ? internal::kind_note(file_.bytes_ahead()) : "");
  }

  internal::InputFile file_;
  Layout layout_;
  std::int64_t left_ = 0;
};

}  // namespace

Dataset fixed_length_record_dataset(std::vector<std::string> paths, std::int64_t record_bytes,
                                    FixedLengthRecordOptions options) {
  constexpr const char* kWho = "fixed_length_record_dataset";
  constexpr std::int64_t kLargestPart = std::int64_t{1} << 60;
  const auto fits = [](std::int64_t size) { return size >= 0 && size < kLargestPart; };
  internal::require(record_bytes >= 1 && fits(record_bytes) && fits(options.header_bytes) &&
                        fits(options.footer_bytes),
                    kWho,
                    ": expected record_bytes >= 1 and header_bytes and footer_bytes >= 0, "
                    "got ",
                    record_bytes, ", ", options.header_bytes, " and ", options.footer_bytes);
  const Layout layout{static_cast<std::uint64_t>(record_bytes),
                      static_cast<std::uint64_t>(options.header_bytes),
                      static_cast<std::uint64_t>(options.footer_bytes)};
  return internal::dataset_of_files(
      std::move(paths),
      [layout, limits = options.limits](const std::string& path) {
        return std::make_unique<FixedLengthRecords>(path, layout, limits);
      },
      kWho);
}

// tf.train.Example: its protobuf encoding, as defined by the messages of tensorflow/core/example.

// message Example { Features features = 1; }
// message Features { map<string, Feature> feature = 1; }    // an entry: key = 1, value = 2
// message Feature { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2;
//                                Int64List int64_list = 3; } }
// Each list: repeated value = 1, numbers packed.

namespace {

using internal::put_bytes;
using internal::put_varint;
using internal::WireType;

struct WireTag {
  std::uint32_t field = 0;
  WireType type = WireType::kVarint;
};

/// Reader for one protobuf message, whose bytes it does not copy. Throws kDataLoss for a malformed
/// message, naming `source` and the offset in the outermost message.
class WireReader {
 public:
  WireReader(std::string_view bytes, const std::string& source, std::size_t first_offset = 0)
      : bytes_(bytes), source_(&source), first_offset_(first_offset) {}

  bool at_end() const { return place_ == bytes_.size(); }
  WireTag tag() {
    const std::size_t start = place_;
    const std::uint64_t key = varint();
    const auto type = static_cast<int>(key & 7);
    const std::uint64_t field = key >> 3;
    constexpr std::uint64_t kMaxField = (std::uint64_t{1} << 29) - 1;
    if (field == 0 || field > kMaxField || type == 3 || type == 4 || type > 5) {
      fail_at(*source_, first_offset_ + start,
              "expected a protobuf field number and wire type, got field ", field, ", type ", type);
    }
    return {static_cast<std::uint32_t>(field), static_cast<WireType>(type)};
  }
  std::uint64_t varint() {
    const std::size_t start = place_;
    std::uint64_t value = 0;
    constexpr int kMaxBytes = 10;
    for (int i = 0; i < kMaxBytes; ++i) {
      require(1, "a variable-length number");
      const auto byte = static_cast<unsigned char>(bytes_[place_++]);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << (7 * i);
      if ((byte & 0x80) == 0) return value;
    }
    fail_at(*source_, first_offset_ + start, "expected a variable-length number of at most ",
            kMaxBytes, " bytes, got more");
  }
  std::uint32_t fixed32() {
    require(4, "a 4-byte number");
    place_ += 4;
    return internal::get_little_endian<std::uint32_t>(bytes_, place_ - 4);
  }
  /// Reads a length and then that number of bytes.
  std::string_view bytes() {
    const std::uint64_t length = varint();
    require(length, "a field");
    const std::string_view found = bytes_.substr(place_, static_cast<std::size_t>(length));
    place_ += static_cast<std::size_t>(length);
    return found;
  }
  /// Same as bytes(), but returns a reader of the nested message.
  WireReader message() {
    const std::string_view inner = bytes();
    return WireReader(inner, *source_, first_offset_ + place_ - inner.size());
  }
  /// Skips the value after `tag`.
  void skip(const WireTag& tag) {
    switch (tag.type) {
      case WireType::kVarint:
        varint();
        return;
      case WireType::kFixed64:
        require(8, "an 8-byte number");
        place_ += 8;
        return;
      case WireType::kBytes:
        bytes();
        return;
      case WireType::kFixed32:
        fixed32();
        return;
    }
  }

 private:
  void require(std::uint64_t count, const char* what) const {
    if (count > bytes_.size() - place_) {
      fail_at(*source_, first_offset_ + place_, "the message ends within ", what, "; expected ",
              count, " bytes, got ", bytes_.size() - place_);
    }
  }

  std::string_view bytes_;
  const std::string* source_;
  std::size_t first_offset_;
  std::size_t place_ = 0;
};

// Parsers of the messages of tf.train.Example.

void read_value(WireReader& list, WireType type, std::vector<std::string>& values) {
  if (type == WireType::kBytes)
    values.emplace_back(list.bytes());
  else
    list.skip({1, type});
}

/// Reads numbers, packed or not: every protobuf reader must accept both forms.
template <class Number>
void read_value(WireReader& list, WireType type, std::vector<Number>& values) {
  constexpr bool kIsFloat = std::is_same_v<Number, float>;
  const auto read_from = [&](WireReader& bytes) {
    if constexpr (kIsFloat) {
      values.push_back(std::bit_cast<float>(bytes.fixed32()));
    } else {
      values.push_back(static_cast<Number>(bytes.varint()));
    }
  };
  if (type == (kIsFloat ? WireType::kFixed32 : WireType::kVarint)) {
    read_from(list);
  } else if (type == WireType::kBytes) {
    for (WireReader packed = list.message(); !packed.at_end();) read_from(packed);
  } else {
    list.skip({1, type});
  }
}

// A later list of the same kind is appended to the earlier one, because protobuf merges messages.
template <class Values>
void read_list(WireReader list, Feature& feature) {
  if (!std::holds_alternative<Values>(feature)) feature = Values{};
  auto& values = std::get<Values>(feature);
  while (!list.at_end()) {
    const WireTag tag = list.tag();
    if (tag.field == 1)
      read_value(list, tag.type, values);
    else
      list.skip(tag);
  }
}

void read_feature(WireReader message, Feature& feature) {
  while (!message.at_end()) {
    const WireTag tag = message.tag();
    if (tag.type != WireType::kBytes || tag.field > 3) {
      message.skip(tag);
    } else if (tag.field == 1) {
      read_list<std::vector<std::string>>(message.message(), feature);
    } else if (tag.field == 2) {
      read_list<std::vector<float>>(message.message(), feature);
    } else {
      read_list<std::vector<std::int64_t>>(message.message(), feature);
    }
  }
}

void read_entry(WireReader entry, Example& example) {
  std::string name;
  Feature feature;
  while (!entry.at_end()) {
    const WireTag tag = entry.tag();
    if (tag.field == 1 && tag.type == WireType::kBytes) {
      name = entry.bytes();
    } else if (tag.field == 2 && tag.type == WireType::kBytes) {
      read_feature(entry.message(), feature);
    } else {
      entry.skip(tag);
    }
  }
  example.insert_or_assign(std::move(name), std::move(feature));
}

/// Calls `read` for every message in field 1.
template <class Read>
void for_each_first_field(WireReader message, Read read) {
  while (!message.at_end()) {
    const WireTag tag = message.tag();
    if (tag.field == 1 && tag.type == WireType::kBytes)
      read(message.message());
    else
      message.skip(tag);
  }
}

std::string list_bytes(const std::vector<std::string>& values) {
  std::string list;
  for (const std::string& value : values) put_bytes(list, 1, value);
  return list;
}

template <class Number>
std::string list_bytes(const std::vector<Number>& values) {
  std::string packed, list;
  for (const Number value : values) {
    if constexpr (std::is_same_v<Number, float>) {
      internal::put_little_endian(packed, std::bit_cast<std::uint32_t>(value));
    } else {
      put_varint(packed, static_cast<std::uint64_t>(value));
    }
  }
  if (!values.empty()) put_bytes(list, 1, packed);
  return list;
}

std::string feature_bytes(const Feature& feature) {
  std::string bytes;
  std::visit(
      [&]<class Values>(const Values& values) {
        if constexpr (!std::is_same_v<Values, std::monostate>) {
          put_bytes(bytes, static_cast<std::uint32_t>(feature.index()), list_bytes(values));
        }
      },
      feature);
  return bytes;
}

}  // namespace

Example parse_example(std::string_view bytes, const std::string& source) {
  Example example;
  for_each_first_field(WireReader(bytes, source), [&](const WireReader& features) {
    for_each_first_field(features, [&](const WireReader& entry) { read_entry(entry, example); });
  });
  return example;
}

std::string serialize_example(const Example& example) {
  std::string features;
  for (const auto& [name, feature] : example) {
    std::string entry;
    put_bytes(entry, 1, name);
    put_bytes(entry, 2, feature_bytes(feature));
    put_bytes(features, 1, entry);
  }
  std::string bytes;
  put_bytes(bytes, 1, features);
  return bytes;
}

// tf.train.Examples as elements of datasets.

namespace {

constexpr std::array kKinds = {"no list", "a bytes_list", "a float_list", "an int64_list"};

std::size_t wanted_kind(const FeatureSpec& spec) {
  if (spec.dtype == DType::kUInt8) return 1;
  if (spec.dtype == DType::kFloat32) return 2;
  if (spec.dtype == DType::kInt64) return 3;
  fail(ErrorCode::kInvalidArgument, "element_of: feature '", spec.name,
       "': expected dtype int64, float32 or uint8, got ", spec.dtype, "; call cast() in map()");
}

std::span<const std::byte> value_bytes(const Feature& feature, const FeatureSpec& spec,
                                       const std::string& source) {
  if (const auto* floats = std::get_if<std::vector<float>>(&feature)) {
    return std::as_bytes(std::span(*floats));
  }
  if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&feature)) {
    return std::as_bytes(std::span(*integers));
  }
  const auto& strings = std::get<std::vector<std::string>>(feature);
  internal::require(strings.size() == 1, source, ": feature '", spec.name,
                    "': expected one string, got ", strings.size());
  return std::as_bytes(std::span(strings[0]));
}

Tensor tensor_of(const Feature& feature, const FeatureSpec& spec, const std::string& source) {
  const std::size_t kind = wanted_kind(spec);
  internal::require(feature.index() == kind, source, ": feature '", spec.name, "': expected ",
                    kKinds[kind], " for dtype ", spec.dtype, ", got ", kKinds[feature.index()]);
  const std::span<const std::byte> bytes = value_bytes(feature, spec, source);
  const auto count = static_cast<std::int64_t>(bytes.size() / size_of(spec.dtype));
  const Shape shape = spec.shape ? *spec.shape : Shape{count};
  internal::require(shape.num_elements() == count, source, ": feature '", spec.name, "': expected ",
                    shape.num_elements(), " values for shape ", shape, ", got ", count);
  return Tensor::from_bytes(shape, spec.dtype, bytes);
}

}  // namespace

Element element_of(const Example& example, const std::vector<FeatureSpec>& specs,
                   const std::string& source) {
  std::vector<Tensor> tensors;
  std::vector<std::string> names;
  for (const FeatureSpec& spec : specs) {
    names.push_back(spec.name);
    const auto found = example.find(spec.name);
    const bool has_values = found != example.end() && found->second.index() != 0;
    if (has_values) {
      tensors.push_back(tensor_of(found->second, spec, source));
    } else if (spec.default_value.defined()) {
      tensors.push_back(spec.default_value);
    } else {
      const auto known = internal::names_of(example, [](const auto& each) { return each.first; });
      fail(ErrorCode::kNotFound, source, ": the example has no feature '", spec.name,
           "'; expected one of [", join(known), "]; try a default_value");
    }
  }
  return Element(std::move(tensors), std::move(names));
}

}  // namespace tutti
