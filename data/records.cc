// Files of records: TFRecord files, and records that all have one size.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/records.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/file.h"
#include "core/file_kind.h"
#include "data/file_sequence.h"
#include "data/format_bytes.h"
#include "data/input_file.h"

namespace tutti {
namespace {

using internal::get_little_endian;
using internal::masked_crc32c;

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kSumBytes = 4;
constexpr std::size_t kHeaderBytes = kLengthBytes + kSumBytes;

std::string read_unpacked(const std::string& path, const TFRecordOptions& options) {
  std::string bytes = internal::read_file_for("tfrecord_dataset", path);
  // An empty file has no records, however it is packed.
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
  TFRecordParser parser_;  // of bytes_
};

}  // namespace

template <class... Parts>
void TFRecordParser::fail_at(std::size_t offset, const Parts&... parts) const {
  const bool packed = record_ == 0 && internal::is_gzip(bytes_);
  fail(ErrorCode::kDataLoss, source_, ": record ", record_, ": offset ", offset, ": ", parts...,
       packed         ? "; the file is compressed: try Compression::kGzip"
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

// Records that all have one size.

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
    if (!file_.size()) {
      fail(ErrorCode::kInvalidArgument, "fixed_length_record_dataset: expected a file, got '",
           file_.source(), "', which has no size");
    }
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
    fail(ErrorCode::kDataLoss, file_.source(), ": offset ", offset,
         ": the file does not hold whole records of ", layout_.record, " bytes behind ",
         layout_.header, " bytes of header and before ", layout_.footer,
         " bytes of footer; expected ", expected, " bytes, got ", got,
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
  if (record_bytes < 1 || !fits(record_bytes) || !fits(options.header_bytes) ||
      !fits(options.footer_bytes)) {
    fail(ErrorCode::kInvalidArgument, kWho,
         ": expected record_bytes of at least 1 and header_bytes and footer_bytes of at least 0, "
         "got ",
         record_bytes, ", ", options.header_bytes, " and ", options.footer_bytes);
  }
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

}  // namespace tutti
