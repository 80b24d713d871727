// Tar files as shards of a dataset, and writing them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/tar.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "core/file.h"
#include "core/names.h"
#include "data/file_sequence.h"
#include "data/forwarding_source.h"
#include "data/tar_reader.h"
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
  std::string extension(name.substr(dot + 1));
  for (char& letter : extension) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return std::pair(std::string(name.substr(0, dot)), std::move(extension));
}

// Whether entry_ is the first file of a sample.
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
      fail(ErrorCode::kDataLoss, reader_.source(), ": offset ", entry.offset,
           ": expected one file per extension in sample '", sample.key, "', got '", entry.name,
           "' for '", extension, "' again");
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

// Writing.

namespace {

using internal::kTarBlock;

constexpr std::size_t kNameBytes = 100;
constexpr std::uint64_t kLargestOctal = (std::uint64_t{1} << 33) - 1;  // 8 GiB, 11 digits

void put_text(std::string& block, std::size_t offset, std::string_view text) {
  block.replace(offset, text.size(), text);
}

void put_octal(std::string& block, std::size_t offset, int digits, std::uint64_t number) {
  char text[24];
  std::snprintf(text, sizeof(text), "%0*llo", digits, static_cast<unsigned long long>(number));
  put_text(block, offset, text);
}

// By POSIX.1-1988 (ustar).
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

// "<length> <key>=<value>\n"; the length counts its own digits.
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
    fail(ErrorCode::kInvalidArgument, "TarWriter::write: expected the name of a file, got '", name,
         "'");
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
  if (sample.files.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "TarWriter::write: expected a sample with files, got none in '", sample.key, "'");
  }
  for (const auto& [extension, bytes] : sample.files) {
    const std::string name = concat(sample.key, ".", extension);
    const auto read = internal::split_tar_name(name);
    if (!read || read->first != sample.key || read->second != extension) {
      fail(ErrorCode::kInvalidArgument, "TarWriter::write: the file '", name,
           "' would not be read as '", extension, "' of '", sample.key,
           "'; expected a key without a dot in its name and an extension of small letters");
    }
  }
  for (const auto& [extension, bytes] : sample.files) {
    write(concat(sample.key, ".", extension), bytes);
  }
}

void TarWriter::close() {
  if (closed_) return;
  // Whole records of 20 blocks, with at least two blocks of zeros, as tar writes them.
  constexpr std::size_t kRecord = 20 * kTarBlock;
  bytes_.append(2 * kTarBlock, '\0');
  bytes_.append((kRecord - bytes_.size() % kRecord) % kRecord, '\0');
  write_file_atomically(path_, bytes_);
  closed_ = true;
  bytes_.clear();
}

}  // namespace tutti
