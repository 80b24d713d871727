// Tar files as shards of a dataset: reading and writing.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/tar.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <utility>

#include "core/file.h"
#include "core/file_kind.h"
#include "core/names.h"
#include "data/forwarding_source.h"
#include "data/input_file.h"
#include "data/tar_reader.h"
#include "tutti/core/error.h"
#include "tutti/data/records.h"

namespace tutti {

const std::string& TarSample::at(const std::string& extension) const {
  const auto found = files.find(extension);
  if (found != files.end()) return found->second;
  const auto known = internal::names_of(files, [](const auto& file) { return file.first; });
  fail(ErrorCode::kNotFound, "TarSample: sample '", key, "' has no file '", extension,
       "'; expected one of [", join(known), "]");
}

namespace internal {

std::optional<std::pair<std::string, std::string>> split_tar_name(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  const std::size_t begin = slash == std::string_view::npos ? 0 : slash + 1;
  const std::size_t dot = name.find('.', begin);
  const std::string_view file = name.substr(begin);
  if (dot == std::string_view::npos || dot == begin) return std::nullopt;
  if (file.starts_with("__") && file.ends_with("__")) return std::nullopt;
  return std::pair(std::string(name.substr(0, dot)), lower_case(name.substr(dot + 1)));
}

// Makes entry_ the first file of a sample; returns false at the end.
bool TarSampleReader::find_first() {
  while (!entry_) {
    entry_ = reader_.next();
    if (!entry_) return false;
    auto split = split_tar_name(entry_->name);
    if (split) {
      std::tie(key_, extension_) = std::move(*split);
    } else {
      entry_.reset();
    }
  }
  return true;
}

// Calls take(entry, extension) for each file of the sample that begins with entry_.
template <class Take>
void TarSampleReader::take_sample(Take take) {
  const std::string key = key_;
  do {
    const TarEntry entry = *std::exchange(entry_, std::nullopt);
    take(entry, extension_);
  } while (find_first() && key_ == key);
}

std::optional<TarSample> TarSampleReader::next() {
  if (!find_first()) return std::nullopt;
  TarSample sample{key_, {}};
  take_sample([&](const TarEntry& entry, const std::string& extension) {
    if (!sample.files.emplace(extension, reader_.read()).second) {
      fail_at(reader_.source(), entry.offset, "expected one file per extension in sample '",
              sample.key, "', got a second '", extension, "' file: '", entry.name, "'");
    }
  });
  return sample;
}

std::int64_t TarSampleReader::skip(std::int64_t count) {
  std::int64_t skipped = 0;
  for (; skipped < count && find_first(); ++skipped) {
    take_sample([](const TarEntry&, const std::string&) {});
  }
  return skipped;
}

}  // namespace internal

namespace {

constexpr const char* kKeyName = "__key__";

Element element_of(const TarSample& sample) {
  std::vector<Tensor> tensors = {internal::tensor_of_bytes(sample.key)};
  std::vector<std::string> names = {kKeyName};
  for (const auto& [extension, bytes] : sample.files) {
    tensors.push_back(internal::tensor_of_bytes(bytes));
    names.push_back(extension);
  }
  return Element(std::move(tensors), std::move(names));
}

TarSample sample_of(const Element& element) {
  TarSample sample{std::string(bytes_of(element[0])), {}};
  for (std::size_t i = 1; i < element.size(); ++i) {
    sample.files.emplace(element.names()[i], bytes_of(element[i]));
  }
  return sample;
}

class TarElements : public internal::FileElements {
 public:
  TarElements(const std::string& path, const InputLimits& limits)
      : samples_(internal::TarReader(internal::InputFile(path, limits), limits)) {}

  std::optional<Element> next() override {
    const std::optional<TarSample> sample = samples_.next();
    if (!sample) return std::nullopt;
    return element_of(*sample);
  }
  std::int64_t skip(std::int64_t count) override { return samples_.skip(count); }

 private:
  internal::TarSampleReader samples_;
};

}  // namespace

Dataset tar_dataset(std::vector<std::string> paths, InputLimits limits) {
  return internal::dataset_of_files(
      std::move(paths),
      [limits](const std::string& path) { return std::make_unique<TarElements>(path, limits); },
      "tar_dataset");
}

Dataset tar_dataset(std::vector<std::string> paths, std::function<Element(const TarSample&)> decode,
                    TarOptions options) {
  internal::require_function(decode, "tar_dataset");
  return tar_dataset(std::move(paths), options.limits)
      .map(
          [decode = std::move(decode)](const Element& element) {
            const TarSample sample = sample_of(element);
            try {
              return decode(sample);
            } catch (const Error& error) {
              throw error.with_context(concat("tar_dataset: sample '", sample.key, "'"));
            }
          },
          MapOptions{options.num_parallel_calls});
}

// Writer for tar files.

namespace {

using internal::kTarBlock;

constexpr std::size_t kNameBytes = 100;
constexpr std::uint64_t kLargestOctal = (std::uint64_t{1} << 33) - 1;  // 11 octal digits

void put_text(std::string& block, std::size_t offset, std::string_view text) {
  block.replace(offset, text.size(), text);
}

void put_octal(std::string& block, std::size_t offset, int digits, std::uint64_t number) {
  char text[24];
  std::snprintf(text, sizeof(text), "%0*llo", digits, static_cast<unsigned long long>(number));
  put_text(block, offset, text);
}

// Returns a header as in POSIX.1-1988 (ustar).
std::string header_of(std::string_view name, std::uint64_t size, char type) {
  std::string block(kTarBlock, '\0');
  put_text(block, 0, name.substr(0, kNameBytes));
  put_text(block, 100, "0000644");
  put_text(block, 108, "0000000");
  put_text(block, 116, "0000000");
  put_octal(block, 124, 11, size);
  put_text(block, 136, "00000000000");
  put_text(block, 148, "        ");
  block[156] = type;
  put_text(block, 257,
           std::string_view("ustar\0"
                            "00",
                            8));
  std::uint64_t sum = 0;
  for (char byte : block) sum += static_cast<unsigned char>(byte);
  put_octal(block, 148, 6, sum);
  block[154] = '\0';
  return block;
}

void append_padded(std::string& bytes, std::string_view content) {
  bytes += content;
  bytes.append((kTarBlock - content.size() % kTarBlock) % kTarBlock, '\0');
}

// Returns "<length> <key>=<value>\n"; the length includes its own digits.
std::string pax_record(std::string_view key, const std::string& value) {
  const std::size_t rest = 1 + key.size() + 1 + value.size() + 1;
  std::size_t length = rest;
  while (length != rest + std::to_string(length).size()) {
    length = rest + std::to_string(length).size();
  }
  return concat(length, " ", key, "=", value, "\n");
}

}  // namespace

void TarWriter::write(const std::string& name, std::string_view bytes) {
  if (closed_) {
    fail(ErrorCode::kFailedPrecondition, "TarWriter::write: '", path_,
         "' is closed; expected write() before close()");
  }
  if (name.empty() || name.ends_with('/') || name.find('\0') != std::string::npos) {
    fail(ErrorCode::kInvalidArgument, "TarWriter::write: expected a file name, got '", name, "'");
  }
  std::string records;
  if (name.size() > kNameBytes) records += pax_record("path", name);
  if (bytes.size() > kLargestOctal) records += pax_record("size", std::to_string(bytes.size()));
  if (!records.empty()) {
    bytes_ += header_of("@PaxHeader", records.size(), 'x');
    append_padded(bytes_, records);
  }
  bytes_ += header_of(name, std::min<std::uint64_t>(bytes.size(), kLargestOctal), '0');
  append_padded(bytes_, bytes);
}

void TarWriter::write(const TarSample& sample) {
  internal::require(!sample.files.empty(),
                    "TarWriter::write: expected a sample with files, got none in '", sample.key,
                    "'");
  for (const auto& [extension, bytes] : sample.files) {
    const std::string name = concat(sample.key, ".", extension);
    const auto read = internal::split_tar_name(name);
    internal::require(
        read && read->first == sample.key && read->second == extension,
        "TarWriter::write: the file '", name, "' would not be read as '", extension, "' of '",
        sample.key,
        "'; expected a key without a dot in its file name, and an extension without upper-case "
        "letters");
  }
  for (const auto& [extension, bytes] : sample.files) {
    write(concat(sample.key, ".", extension), bytes);
  }
}

void TarWriter::close() {
  if (closed_) return;
  // A tar file consists of whole records of 20 blocks and ends with at least two blocks of zeros.
  constexpr std::size_t kRecord = 20 * kTarBlock;
  bytes_.append(2 * kTarBlock, '\0');
  bytes_.append((kRecord - bytes_.size() % kRecord) % kRecord, '\0');
  write_file_atomically(path_, bytes_);
  closed_ = true;
  bytes_.clear();
}

// Reading of tar files. A tar file contains, for each file, a one-block header and then the
// content, padded to whole blocks. It ends with blocks of zeros (two, but one is enough to
// recognise the end). A long name or a large size that does not fit in the header precedes it, in
// records that look like files. Concatenated archives continue after the zeros.

namespace internal {
namespace {

constexpr std::uint64_t kLargestExtra = std::uint64_t{1} << 20;

std::string_view text_at(std::string_view block, std::size_t offset, std::size_t length) {
  const std::string_view field = block.substr(offset, length);
  return field.substr(0, field.find('\0'));
}

bool is_zero(std::string_view block) {
  return block.find_first_not_of('\0') == std::string_view::npos;
}

std::string name_of(std::string_view block) {
  const std::string name(text_at(block, 0, 100));
  const std::string_view prefix = text_at(block, 345, 155);
  const bool is_posix = block.substr(257, 6) == std::string_view("ustar\0", 6);
  return is_posix && !prefix.empty() ? concat(prefix, "/", name) : name;
}

}  // namespace

std::uint64_t TarReader::octal_at(std::string_view block, std::size_t offset,
                                  std::size_t length) const {
  std::string_view digits = text_at(block, offset, length);
  digits.remove_prefix(std::min(digits.find_first_not_of(' '), digits.size()));
  digits = digits.substr(0, digits.find(' '));
  std::uint64_t number = 0;
  const char* end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, number, 8);
  if (!digits.empty() && (result.ptr != end || result.ec != std::errc())) {
    fail_at(source(), header_ + offset,
            "expected an octal number in a tar header, got other bytes");
  }
  return number;
}

// Returns the number in a header field. GNU tar writes numbers that are too large for octal digits
// in binary, with the top bit of the first byte set.
std::uint64_t TarReader::number_at(std::string_view block, std::size_t offset,
                                   std::size_t length) const {
  const auto first = static_cast<unsigned char>(block[offset]);
  if (first < 0x80) return octal_at(block, offset, length);
  std::uint64_t number = first & 0x7f;
  for (std::size_t i = 1; i < length; ++i) {
    if (number >> 54 != 0) {
      fail_at(source(), header_ + offset, "expected a size of less than 2^62 bytes, got more");
    }
    number = number << 8 | static_cast<unsigned char>(block[offset + i]);
  }
  return number;
}

// Returns "" if the header's checksum is right, else the expected and the actual value.
std::string TarReader::wrong_checksum(std::string_view block) const {
  constexpr std::size_t kPlace = 148, kLength = 8;
  const std::uint64_t expected = octal_at(block, kPlace, kLength);
  std::int64_t sum = 0, signed_sum = 0;  // some old tar programs summed signed bytes
  for (std::size_t i = 0; i < block.size(); ++i) {
    const bool blank = i >= kPlace && i < kPlace + kLength;
    sum += blank ? ' ' : static_cast<unsigned char>(block[i]);
    signed_sum += blank ? ' ' : static_cast<signed char>(block[i]);
  }
  const auto wanted = static_cast<std::int64_t>(expected);
  if (wanted == sum || wanted == signed_sum) return "";
  return concat("expected ", sum, ", got ", expected);
}

// Returns true if another archive begins after the zeros; sets `block` to its first header.
bool TarReader::find_next_archive(std::string& block) {
  do {
    header_ = file_.offset();
    block.clear();
    if (file_.read(block, kTarBlock) < kTarBlock) return false;
  } while (is_zero(block));
  return block.substr(257, 5) == "ustar" && wrong_checksum(block).empty();
}

// If the first block shows that the file is not a tar file, throws an error that names the file's
// kind.
void TarReader::require_tar(std::string_view block) const {
  if (header_ != 0) return;
  const std::string kind = kind_of_file(block);
  if (kind.empty() || block.substr(std::min<std::size_t>(block.size(), 257), 5) == "ustar") return;
  fail_at(source(), 0, "expected a tar file, got ", kind);
}

// Reads the next header; returns false at the end of the tar file.
bool TarReader::read_header(std::string& block) {
  if (ended_) return false;
  skip_content();
  header_ = file_.offset();
  block.clear();
  if (const std::uint64_t got = file_.read(block, kTarBlock); got < kTarBlock) {
    require_tar(block);
    fail_at(source(), header_, "the tar file ends early; expected a header or a block of zeros of ",
            kTarBlock, " bytes, got ", got);
  }
  if (is_zero(block)) {
    ended_ = !find_next_archive(block);
    return !ended_;
  }
  require_tar(block);
  if (const std::string wrong = wrong_checksum(block); !wrong.empty()) {
    fail_at(source(), header_ + 148, "the checksum of a tar header is wrong; ", wrong,
            header_ == 0 ? "; is this a tar file?" : "");
  }
  return true;
}

std::string TarReader::read_content(std::uint64_t size, const char* what) {
  const std::uint64_t begin = file_.offset();
  std::string content;
  const std::uint64_t got = file_.read(content, size);
  const std::uint64_t filled = file_.skip(padding_);
  if (got < size || filled < padding_) {
    fail_at(source(), begin, "the tar file ends within ", what, "; expected ", size + padding_,
            " bytes, got ", got + filled);
  }
  content_ = padding_ = 0;
  return content;
}

void TarReader::skip_content() {
  const std::uint64_t begin = file_.offset();
  const std::uint64_t whole = content_ + padding_;
  if (const std::uint64_t got = file_.skip(whole); got < whole) {
    fail_at(source(), begin, "the tar file ends within a file; expected ", whole, " bytes, got ",
            got);
  }
  content_ = padding_ = 0;
}

std::string TarReader::read() {
  require_within(limits_, content_, 0, source());
  return read_content(content_, "a file");
}

// Parses records "<length> <key>=<value>\n"; the length is that of the whole record.
void TarReader::parse_pax(std::string_view records, Extra& extra) {
  while (!records.empty() && records.front() != '\0') {
    std::size_t length = 0;
    const char* end = records.data() + records.size();
    const auto result = std::from_chars(records.data(), end, length);
    const auto digits = static_cast<std::size_t>(result.ptr - records.data());
    if (result.ec != std::errc() || length > records.size() || length < digits + 3 ||
        *result.ptr != ' ' || records[length - 1] != '\n') {
      fail_at(source(), header_, "expected pax records '<length> <key>=<value>', got other bytes");
    }
    const std::string_view record = records.substr(digits + 1, length - digits - 2);
    const std::size_t equals = std::min(record.find('='), record.size());
    const std::string_view key = record.substr(0, equals);
    const std::string_view value = record.substr(std::min(equals + 1, record.size()));
    if (key.starts_with("GNU.sparse.")) {
      fail(ErrorCode::kUnimplemented, source(), ": offset ", header_,
           ": expected plain files, got a sparse one; use tar without --sparse");
    }
    if (key == "path") extra.name = value;
    if (key == "size") {
      const auto size = parse_number<std::uint64_t>(value);
      if (!size || *size >> 62 != 0) {
        fail_at(source(), header_,
                "expected a number as the size in a pax record, got other bytes");
      }
      extra.size = size;
    }
    records.remove_prefix(length);
  }
}

// If this header starts records that describe the next file, reads them and returns true; otherwise
// returns false.
bool TarReader::read_extra(char type, std::uint64_t size, Extra& extra) {
  constexpr std::string_view kRecords = "xgLK";
  if (kRecords.find(type) == std::string_view::npos) return false;
  if (size > kLargestExtra) {
    fail_at(source(), header_, "expected at most ", kLargestExtra,
            " bytes of names and records, got ", size);
  }
  const std::string records = read_content(size, "a record of names");
  if (type == 'L') extra.name = records.substr(0, records.find('\0'));
  if (type == 'x') parse_pax(records, extra);
  Extra global;
  if (type == 'g') parse_pax(records, global);
  if (global.name || global.size) {
    fail(ErrorCode::kUnimplemented, source(), ": offset ", header_,
         ": expected names and sizes per file, got a pax record that sets them for all files");
  }
  return true;
}

std::optional<TarEntry> TarReader::next() {
  Extra extra;
  for (std::string block; read_header(block);) {
    const char type = block[156];
    const std::uint64_t stated = number_at(block, 124, 12);
    const auto set_content = [&](std::uint64_t size) {
      content_ = size;
      padding_ = (kTarBlock - size % kTarBlock) % kTarBlock;
    };
    set_content(stated);
    if (read_extra(type, stated, extra)) continue;
    if (type == 'S' || type == 'M') {
      fail(ErrorCode::kUnimplemented, source(), ": offset ", header_,
           ": expected complete regular files, got ",
           type == 'S' ? "a sparse file" : "part of a file");
    }
    TarEntry entry{extra.name.value_or(name_of(block)), header_, extra.size.value_or(stated)};
    extra = {};
    const bool is_file = type == '0' || type == '\0' || type == '7';
    // Links and devices have no content, whatever their size field contains.
    const bool has_none = type >= '1' && type <= '6';
    set_content(has_none ? 0 : entry.size);
    // Old programs wrote folders as files whose names end in "/".
    if (is_file && !entry.name.ends_with('/')) return entry;
  }
  if (extra.name || extra.size) {
    fail_at(source(), header_, "expected a file after its name, got the end of the tar file");
  }
  return std::nullopt;
}

}  // namespace internal
}  // namespace tutti
