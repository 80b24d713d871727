// TFRecord files.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/records.h"

#include <utility>

#include "tutti/core/file.h"
#include "tutti/data/file_sequence.h"
#include "tutti/data/format_bytes.h"
#include "tutti/data/input_file.h"

namespace tutti {
namespace {

using internal::get_little_endian;
using internal::masked_crc32c;

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kSumBytes = 4;
constexpr std::size_t kHeaderBytes = kLengthBytes + kSumBytes;

std::string read_unpacked(const std::string& path, const TFRecordOptions& options) {
  std::string bytes = read_file(path);
  // An empty file has no records, however it is packed.
  if (options.compression == Compression::kNone || bytes.empty()) return bytes;
  const bool is_gzip = options.compression == Compression::kGzip;
  return internal::inflate_bytes(
      bytes, is_gzip ? internal::DeflateFormat::kGzip : internal::DeflateFormat::kZlib, path,
      options.limits);
}

class TFRecordIterator : public ElementIterator {
 public:
  TFRecordIterator(std::shared_ptr<const std::vector<std::string>> paths, TFRecordOptions options)
      : paths_(std::move(paths)), options_(options) {}

  std::optional<Element> next() override {
    while (parser_ || open_next()) {
      if (const auto record = parser_->next()) {
        const Shape shape{static_cast<std::int64_t>(record->size())};
        return Element(
            {Tensor::from_bytes(shape, DType::kUInt8, std::as_bytes(std::span(*record)))});
      }
      parser_.reset();
    }
    return std::nullopt;
  }

  void skip(std::int64_t count) override {
    while (count > 0 && (parser_ || open_next())) {
      count -= parser_->skip(count);
      if (count > 0) parser_.reset();
    }
  }

 private:
  bool open_next() {
    if (file_ == paths_->size()) return false;
    const std::string& path = (*paths_)[file_];
    bytes_ = internal::name_when_out_of_memory(path, [&] { return read_unpacked(path, options_); });
    ++file_;
    parser_.emplace(bytes_, path);
    return true;
  }

  std::shared_ptr<const std::vector<std::string>> paths_;
  TFRecordOptions options_;
  std::size_t file_ = 0;
  std::string bytes_;
  std::optional<TFRecordParser> parser_;  // of bytes_; empty between files
};

class TFRecordSource : public DatasetSource {
 public:
  TFRecordSource(std::vector<std::string> paths, TFRecordOptions options)
      : paths_(std::make_shared<const std::vector<std::string>>(std::move(paths))),
        options_(options) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t) const override {
    return std::make_unique<TFRecordIterator>(paths_, options_);
  }
  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }
  std::optional<int> batch_depth() const override { return 0; }
  std::optional<SourceFiles> files() const override {
    return SourceFiles{std::ssize(*paths_),
                       [paths = paths_, options = options_](auto count, auto index) {
                         return std::make_shared<TFRecordSource>(
                             internal::every_nth(*paths, count, index), options);
                       }};
  }

 private:
  std::shared_ptr<const std::vector<std::string>> paths_;
  TFRecordOptions options_;
};

}  // namespace

template <class... Parts>
void TFRecordParser::fail_at(std::size_t offset, const Parts&... parts) const {
  const bool packed = record_ == 0 && internal::is_gzip(bytes_);
  fail(ErrorCode::kDataLoss, source_, ": record ", record_, ": offset ", offset, ": ", parts...,
       packed ? "; the file is compressed: try Compression::kGzip" : "");
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
  std::string length;
  internal::put_little_endian(length, std::uint64_t{record.size()});
  bytes_ += length;
  internal::put_little_endian(bytes_, masked_crc32c(length));
  bytes_ += record;
  internal::put_little_endian(bytes_, masked_crc32c(record));
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
  if (paths.empty()) {
    fail(ErrorCode::kInvalidArgument, "tfrecord_dataset: expected at least one path, got none");
  }
  return Dataset(std::make_shared<TFRecordSource>(std::move(paths), options));
}

std::string_view bytes_of(const Tensor& record) {
  const auto bytes = record.host_span<std::uint8_t>();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace tutti
