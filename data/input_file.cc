// Incremental reading of files, compression, file name patterns and byte formats.
// SPDX-License-Identifier: Apache-2.0
#include "data/input_file.h"

#include <glob.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <system_error>
#include <utility>

#include "core/file.h"
#include "core/file_kind.h"
#include "core/hash.h"
#include "core/names.h"
#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/data/records.h"

namespace tutti::internal {

// Limits on the cost of reading.

void require_within(const InputLimits& limits, std::uint64_t unpacked, std::uint64_t packed,
                    const std::string& source) {
  constexpr std::uint64_t kAlwaysFine = std::uint64_t{1} << 28;
  if (unpacked > static_cast<std::uint64_t>(std::max<std::int64_t>(limits.max_bytes, 0))) {
    fail(ErrorCode::kResourceExhausted, source, ": expected at most ", limits.max_bytes,
         " bytes, got ", unpacked, " or more; if the file is valid, raise InputLimits::max_bytes");
  }
  if (unpacked <= kAlwaysFine || packed == 0) return;
  if (unpacked / packed <
      static_cast<std::uint64_t>(std::max<std::int64_t>(limits.max_expansion, 1))) {
    return;
  }
  fail(ErrorCode::kResourceExhausted, source, ": ", packed, " compressed bytes expand to ",
       unpacked, " or more bytes; expected less than ", limits.max_expansion,
       " times the compressed size; if the file is valid, raise InputLimits::max_expansion");
}

namespace {

constexpr std::size_t kChunk = std::size_t{1} << 16;

[[noreturn]] void fail_with_errno(const std::string& path) {
  const int reason = errno;
  fail(reason == ENOENT ? ErrorCode::kNotFound : ErrorCode::kUnavailable, "cannot read '", path,
       "': ", std::generic_category().message(reason));
}

}  // namespace

InputFile::InputFile(const std::string& path, const InputLimits& limits)
    : source_(path), file_(std::fopen(path.c_str(), "rbe")) {
  if (!file_) fail_with_errno(path);
  struct stat information {};
  if (::fstat(::fileno(file_.get()), &information) == 0 && S_ISREG(information.st_mode)) {
    size_ = static_cast<std::uint64_t>(information.st_size);
  }
  std::setvbuf(file_.get(), nullptr, _IONBF, 0);  // buffer_ is used instead
  refill();
  if (!is_gzip(buffer_)) return;
  std::string packed;
  while (place_ < buffer_.size() || refill()) {
    packed += buffer_;
    place_ = buffer_.size();
  }
  *this = of_bytes(gunzip(packed, path, limits), path);
}

InputFile InputFile::of_bytes(std::string bytes, std::string source) {
  InputFile file;
  file.source_ = std::move(source);
  file.size_ = bytes.size();
  file.buffer_ = std::move(bytes);
  return file;
}

bool InputFile::refill() {
  if (!file_) return false;
  buffer_.resize(kChunk);
  place_ = 0;
  const std::size_t count = std::fread(buffer_.data(), 1, kChunk, file_.get());
  const bool failed = count == 0 && std::ferror(file_.get()) != 0;
  buffer_.resize(count);
  if (failed) fail_with_errno(source_);
  return count > 0;
}

std::uint64_t InputFile::read(std::string& to, std::uint64_t count) {
  std::uint64_t done = 0;
  while (done < count && (place_ < buffer_.size() || refill())) {
    const std::uint64_t step = std::min<std::uint64_t>(count - done, buffer_.size() - place_);
    to.append(buffer_, place_, static_cast<std::size_t>(step));
    place_ += static_cast<std::size_t>(step);
    done += step;
  }
  offset_ += done;
  return done;
}

std::uint64_t InputFile::skip(std::uint64_t count) {
  std::uint64_t done = std::min<std::uint64_t>(count, buffer_.size() - place_);
  place_ += static_cast<std::size_t>(done);
  offset_ += done;
  if (file_ && size_ && done < count && offset_ < *size_) {
    const std::uint64_t step = std::min(count - done, *size_ - offset_);
    if (::fseeko(file_.get(), static_cast<off_t>(step), SEEK_CUR) != 0) fail_with_errno(source_);
    offset_ += step;
    done += step;
  }
  while (done < count && get() >= 0) ++done;  // for pipes, and for files that have grown
  return done;
}

// Decompression and compression with zlib.

bool is_gzip(std::string_view bytes) { return bytes.substr(0, 2) == "\x1f\x8b"; }

std::uint32_t crc32(std::string_view bytes) {
  const auto* data = reinterpret_cast<const Bytef*>(bytes.data());
  return static_cast<std::uint32_t>(::crc32_z(0, data, bytes.size()));
}

namespace {

int window_bits(DeflateFormat format) {
  constexpr int kLargest = 15;
  if (format == DeflateFormat::kRaw) return -kLargest;
  return format == DeflateFormat::kGzip ? kLargest + 16 : kLargest;
}

/// Decompressor that unpacks all members in sequence.
class Inflater {
 public:
  Inflater(std::string_view bytes, DeflateFormat format, const std::string& source,
           const InputLimits& limits, std::size_t stated_bytes)
      : bytes_(bytes),
        source_(source),
        limits_(limits),
        stated_bytes_(stated_bytes),
        begins_wrong_(format != DeflateFormat::kRaw && !is_gzip(bytes)) {
    const int status = inflateInit2(&stream_, window_bits(format));
    if (status != Z_OK) fail(ErrorCode::kInternal, "gunzip: cannot start zlib: status ", status);
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater& operator=(Inflater&&) = delete;

  std::string run() {
    std::string content;
    while (offset_ < bytes_.size()) run_member(content);
    return content;
  }

 private:
  void run_member(std::string& content) {
    inflateReset(&stream_);
    for (int status = Z_OK; status != Z_STREAM_END;) {
      const std::size_t in = std::min<std::size_t>(bytes_.size() - offset_, kChunk);
      buffer_.resize(kChunk);
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes_.data() + offset_));
      stream_.avail_in = static_cast<uInt>(in);
      stream_.next_out = reinterpret_cast<Bytef*>(buffer_.data());
      stream_.avail_out = static_cast<uInt>(kChunk);
      status = inflate(&stream_, Z_NO_FLUSH);
      offset_ += in - stream_.avail_in;
      const std::size_t out = kChunk - stream_.avail_out;
      if (out > stated_bytes_ - content.size()) fail_too_large();
      require_within(limits_, content.size() + out, bytes_.size(), source_);
      content.append(buffer_.data(), out);
      if (status == Z_BUF_ERROR) fail_truncated();
      if (status != Z_OK && status != Z_STREAM_END) fail_damaged();
    }
  }

  [[noreturn]] void fail_truncated() const {
    fail_at(source_, offset_,
            "the compressed file ends early; expected more bytes, got the end of the file");
  }

  [[noreturn]] void fail_damaged() const {
    fail_at(source_, offset_,
            "expected deflate data (gzip, zlib or zip), got bytes that zlib refuses: ",
            stream_.msg ? stream_.msg : "zlib gives no reason",
            begins_wrong_ ? kind_note(bytes_) : "");
  }

  [[noreturn]] void fail_too_large() const {
    fail_at(source_, offset_, "expected data that expands to at most ", stated_bytes_,
            " bytes, got more");
  }

  static constexpr std::size_t kChunk = std::size_t{1} << 20;
  std::string_view bytes_;
  const std::string& source_;
  const InputLimits& limits_;
  std::size_t stated_bytes_;
  const bool begins_wrong_;  // true if neither raw nor gzip; errors then name the data's kind
  std::size_t offset_ = 0;
  std::string buffer_;
  z_stream stream_{};
};

}  // namespace

std::string gunzip(std::string_view bytes, const std::string& source, const InputLimits& limits) {
  return inflate_bytes(bytes, DeflateFormat::kGzip, source, limits);
}

std::string inflate_bytes(std::string_view bytes, DeflateFormat format, const std::string& source,
                          const InputLimits& limits, std::size_t stated_bytes) {
  return Inflater(bytes, format, source, limits, stated_bytes).run();
}

std::string deflate_bytes(std::string_view bytes, DeflateFormat format) {
  z_stream stream{};
  constexpr int kMemoryLevel = 8;
  int status = deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, window_bits(format),
                            kMemoryLevel, Z_DEFAULT_STRATEGY);
  if (status != Z_OK) fail(ErrorCode::kInternal, "deflate: cannot start zlib: status ", status);
  constexpr std::size_t kChunk = std::size_t{1} << 20;
  std::string packed;
  std::string buffer(kChunk, '\0');
  std::size_t offset = 0;
  while (status == Z_OK) {
    const std::size_t in = std::min(bytes.size() - offset, kChunk);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + offset));
    stream.avail_in = static_cast<uInt>(in);
    stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream.avail_out = static_cast<uInt>(kChunk);
    status = deflate(&stream, offset + in == bytes.size() ? Z_FINISH : Z_NO_FLUSH);
    offset += in - stream.avail_in;
    packed.append(buffer.data(), kChunk - stream.avail_out);
  }
  deflateEnd(&stream);
  TUTTI_CHECK(status == Z_STREAM_END, "deflate: zlib ended with status ", status);
  return packed;
}

std::string read_file_for(const char* who, const std::string& path) {
  return naming(who,
                [&] { return name_when_out_of_memory(path, [&] { return read_file(path); }); });
}

std::string read_plain_or_gzip(const char* who, const std::string& path,
                               const InputLimits& limits) {
  std::string bytes = read_file_for(who, path);
  return is_gzip(bytes) ? gunzip(bytes, path, limits) : std::move(bytes);
}

// Datasets over files that are read sequentially.

namespace {

struct Files {
  std::vector<std::string> paths;
  OpenFile open;
  const char* who;  // the function that the user called
};

class FilesIterator : public ElementIterator {
 public:
  explicit FilesIterator(std::shared_ptr<const Files> files) : files_(std::move(files)) {}

  std::optional<Element> next() override {
    while (open_ || open_next()) {
      auto element = name_when_out_of_memory(path(), [&] { return open_->next(); });
      if (element) return element;
      open_.reset();
    }
    return std::nullopt;
  }

  void skip(std::int64_t count) override {
    while (count > 0 && (open_ || open_next())) {
      count -= name_when_out_of_memory(path(), [&] { return open_->skip(count); });
      if (count > 0) open_.reset();
    }
  }

 private:
  bool open_next() {
    if (file_ == files_->paths.size()) return false;
    const std::string& path = files_->paths[file_];
    open_ = naming(files_->who, [&] {
      return name_when_out_of_memory(path, [&] { return files_->open(path); });
    });
    ++file_;
    return true;
  }

  /// Returns the path of the open file.
  const std::string& path() const { return files_->paths[file_ - 1]; }

  std::shared_ptr<const Files> files_;
  std::size_t file_ = 0;
  std::unique_ptr<FileElements> open_;  // null between files
};

/// Returns the paths with the indices `index`, `index` + `count`, ...
std::vector<std::string> every_nth(const std::vector<std::string>& paths, std::int64_t count,
                                   std::int64_t index) {
  std::vector<std::string> chosen;
  for (std::int64_t i = index; i < std::ssize(paths); i += count) {
    chosen.push_back(paths[static_cast<std::size_t>(i)]);
  }
  return chosen;
}

class FilesSource : public DatasetSource {
 public:
  explicit FilesSource(Files files) : files_(std::make_shared<const Files>(std::move(files))) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t) const override {
    return std::make_unique<FilesIterator>(files_);
  }
  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }
  std::optional<int> batch_depth() const override { return 0; }
  std::optional<SourceFiles> files() const override {
    return SourceFiles{std::ssize(files_->paths), [files = files_](auto count, auto index) {
                         return std::make_shared<FilesSource>(
                             Files{every_nth(files->paths, count, index), files->open, files->who});
                       }};
  }

 private:
  std::shared_ptr<const Files> files_;
};

}  // namespace

Dataset dataset_of_files(std::vector<std::string> paths, OpenFile open, const char* who) {
  internal::require(!paths.empty(), who, ": expected at least one path, got none");
  return Dataset(std::make_shared<FilesSource>(Files{std::move(paths), std::move(open), who}));
}

}  // namespace tutti::internal

namespace tutti {

// Files that match a pattern, found with the system's glob().

std::vector<std::string> list_files(const std::string& pattern, ListFilesOptions options) {
  ::glob_t found{};
  const std::unique_ptr<::glob_t, void (*)(::glob_t*)> owner(&found, &::globfree);
  // Continues if a path component of the pattern does not exist or is not a folder, because such a
  // pattern matches nothing.
  const auto stop_at = [](const char*, int reason) {
    return reason == ENOENT || reason == ENOTDIR ? 0 : 1;
  };
  const int status = ::glob(pattern.c_str(), GLOB_NOSORT, stop_at, &found);
  if (status == GLOB_NOMATCH) {
    fail(ErrorCode::kNotFound, "list_files: no file matches '", pattern,
         "'; expected at least one; use the full path, or another working directory");
  }
  if (status != 0) {
    fail(ErrorCode::kUnavailable, "list_files: cannot search for '", pattern,
         "': ", std::generic_category().message(errno));
  }
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  std::sort(paths.begin(), paths.end());
  if (options.shuffle) {
    internal::shuffle(paths, RandomStream({.seed = options.seed, .purpose = kShufflePurpose}));
  }
  return paths;
}

}  // namespace tutti

namespace tutti::internal {

// Byte order conversion, and TFRecord checksums and records.

void reverse_each(std::byte* data, std::size_t bytes, std::size_t size) {
  if (size == 1) return;
  for (std::size_t i = 0; i < bytes; i += size) std::reverse(data + i, data + i + size);
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  const std::uint32_t crc = crc32c_of(std::as_bytes(std::span(bytes)));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

void put_record(std::string& bytes, std::string_view record) {
  std::string length;
  put_little_endian(length, std::uint64_t{record.size()});
  bytes += length;
  put_little_endian(bytes, masked_crc32c(length));
  bytes += record;
  put_little_endian(bytes, masked_crc32c(record));
}

}  // namespace tutti::internal
