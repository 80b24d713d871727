// Tar files as shards of a dataset.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <utility>

#include "tutti/data/file_sequence.h"
#include "tutti/data/records.h"
#include "tutti/data/tar_reader.h"

namespace tutti {

const std::string& TarSample::at(const std::string& extension) const {
  const auto found = files.find(extension);
  if (found != files.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [name, bytes] : files) known.push_back(name);
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

Tensor tensor_of(const std::string& bytes) {
  return Tensor::from_bytes({static_cast<std::int64_t>(bytes.size())}, DType::kUInt8,
                            std::as_bytes(std::span(bytes)));
}

Element element_of(const TarSample& sample) {
  std::vector<Tensor> tensors = {tensor_of(sample.key)};
  std::vector<std::string> names = {kKeyName};
  for (const auto& [extension, bytes] : sample.files) {
    tensors.push_back(tensor_of(bytes));
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
  if (!decode) fail(ErrorCode::kInvalidArgument, "tar_dataset: expected a function, got none");
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

}  // namespace tutti
