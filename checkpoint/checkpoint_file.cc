// Conversion between checkpoints and safetensors files.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_file.h"

#include <exception>
#include <filesystem>
#include <new>
#include <optional>

#include "checkpoint/folder.h"
#include "checkpoint/version.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/names.h"
#include "tutti/tensor/numerics.h"

namespace tutti::internal {
namespace {

using Metadata = std::map<std::string, std::string, std::less<>>;

constexpr std::int64_t kFormatVersion = 2;
constexpr std::int64_t kFirstWithChecksums = 2;
constexpr std::string_view kFormatKey = "tutti_format";
constexpr std::string_view kVersionKey = "tutti_version";
constexpr std::string_view kNumericsKey = "numerics";
constexpr std::string_view kStepKey = "step";
constexpr std::string_view kAboutKey = "about";
constexpr std::string_view kStatePrefix = "state/";
constexpr std::string_view kChecksumKey = "xxh3";
constexpr std::string_view kTensorChecksumPrefix = "xxh3/";

std::int64_t read_number(const std::string& path, std::string_view key, const std::string& text) {
  if (const auto number = parse_number<std::int64_t>(text)) return *number;
  fail(ErrorCode::kDataLoss, path, ": metadata '", key, "': expected a whole number, got '", text,
       "'");
}

Json read_json(const std::string& path, const std::string& key, const std::string& text) {
  return damage_if_refused([&] { return path + ": metadata"; },
                           [&] { return Json::parse(text, key); });
}

std::int64_t read_format(const std::string& path, const Metadata& metadata) {
  const auto found = metadata.find(kFormatKey);
  if (found == metadata.end()) {
    fail(ErrorCode::kDataLoss, path, ": metadata: expected '", kFormatKey, "', got none");
  }
  const std::int64_t format = read_number(path, kFormatKey, found->second);
  if (format >= 1 && format <= kFormatVersion) return format;
  fail(ErrorCode::kUnimplemented, path, ": expected checkpoint format 1 to ", kFormatVersion,
       ", got ", format, "; try a later version of tutti");
}

void read_metadata(const std::string& path, const std::string& key, const std::string& value,
                   CheckpointFile& file) {
  if (key == kStepKey) {
    file.info.step = read_number(path, key, value);
  } else if (key == kVersionKey) {
    file.info.tutti_version = value;
  } else if (key == kNumericsKey) {
    file.info.numerics = value;
  } else if (key == kAboutKey) {
    file.info.about = read_json(path, key, value);
  } else if (key.starts_with(kStatePrefix)) {
    file.states[key.substr(kStatePrefix.size())] = read_json(path, key, value);
  }
}

/// Returns a checksum of everything except elements, whose checksums are in the metadata.
std::string checksum_of(const Metadata& metadata, const std::map<std::string, Tensor>& tensors) {
  Hasher hasher;
  const auto add = [&](std::string_view text) {
    hasher.update(concat(text.size(), ":"));
    hasher.update(text);
  };
  for (const auto& [key, value] : metadata) {
    if (key == kChecksumKey) continue;
    add(key);
    add(value);
  }
  for (const auto& [name, tensor] : tensors) {
    add(name);
    add(concat(tensor.dtype(), tensor.shape()));
  }
  return hasher.hex_digest();
}

std::string find(const Metadata& metadata, std::string_view key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? "none" : found->second;
}

void require_checksums(const std::string& path, const Metadata& metadata,
                       const std::map<std::string, Tensor>& tensors) {
  const std::string stated = find(metadata, kChecksumKey);
  if (const std::string actual = checksum_of(metadata, tensors); actual != stated) {
    fail(ErrorCode::kDataLoss, path, ": the header is damaged; expected checksum ", stated,
         ", got ", actual);
  }
  for (const auto& [name, tensor] : tensors) {
    const std::string expected = find(metadata, concat(kTensorChecksumPrefix, name));
    if (const std::string actual = hash_of(tensor.bytes()); actual != expected) {
      fail(ErrorCode::kDataLoss, path, ": tensor '", name, "' is damaged; expected checksum ",
           expected, ", got ", actual);
    }
  }
}

/// Returns true if any of tutti's keys exists, because tutti then wrote the file, even if another
/// key is damaged.
bool is_ours(const Metadata& metadata) {
  const auto checksum = metadata.lower_bound(kTensorChecksumPrefix);
  return metadata.contains(kFormatKey) || metadata.contains(kChecksumKey) ||
         metadata.contains(kNumericsKey) ||
         (checksum != metadata.end() && checksum->first.starts_with(kTensorChecksumPrefix));
}

/// Returns the contents of a file: tensors on the host, and everything else in the metadata.
SafetensorsFile to_safetensors(const CheckpointFile& file) {
  SafetensorsFile out;
  out.metadata = {{std::string(kFormatKey), concat(kFormatVersion)},
                  {std::string(kVersionKey), TUTTI_VERSION},
                  {std::string(kNumericsKey), numerics_fingerprint()},
                  {std::string(kStepKey), concat(file.info.step)},
                  {std::string(kAboutKey), file.info.about.dump()}};
  for (const auto& [name, state] : file.states) {
    out.metadata.emplace_back(concat(kStatePrefix, name), state.dump());
  }
  for (const auto& [name, tensor] : file.tensors) {
    out.tensors.push_back({name, tensor.to(Device{})});
    out.metadata.emplace_back(concat(kTensorChecksumPrefix, name),
                              hash_of(out.tensors.back().value.bytes()));
  }
  const Metadata all(out.metadata.begin(), out.metadata.end());
  out.metadata.emplace_back(kChecksumKey, checksum_of(all, file.tensors));
  return out;
}

CheckpointFile from_safetensors(SafetensorsFile in, const std::string& source) {
  CheckpointFile file;
  for (NamedTensor& tensor : in.tensors) file.tensors[tensor.name] = std::move(tensor.value);
  const Metadata metadata(in.metadata.begin(), in.metadata.end());
  if (!is_ours(metadata)) return file;
  if (read_format(source, metadata) >= kFirstWithChecksums) {
    require_checksums(source, metadata, file.tensors);
  }
  for (const auto& [key, value] : metadata) read_metadata(source, key, value, file);
  return file;
}

}  // namespace

std::string format_checkpoint_file(const CheckpointFile& file) {
  return format_safetensors(to_safetensors(file));
}

CheckpointFile parse_checkpoint_file(std::string_view bytes, const std::string& source) {
  return from_safetensors(parse_safetensors(bytes, source), source);
}

std::optional<Error> error_of(const std::function<void()>& body) {
  try {
    body();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted, "Checkpoint: not enough memory");
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, concat("Checkpoint: ", error.what()));
  }
}

CheckpointFile read_checkpoint(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return read_version(Folder::open(path));
  CheckpointFile file = parse_checkpoint_file(read_file(path), path);
  file.info.path = path;
  return file;
}

// One process reads the file for all workers. It sends two strings: first the outcome (path and
// sequence, an error, or nothing), then the values in the file format. Each receiver verifies the
// checksums again.

Json json_of(const Error& error) {
  return Json::Object{{"code", static_cast<int>(error.code())}, {"message", error.message()}};
}

Error error_in(const Json& json) {
  return Error(static_cast<ErrorCode>(json.at("code").as_int()), json.at("message").as_string());
}

std::optional<CheckpointFile> read_by_writer(
    const std::function<std::optional<CheckpointFile>()>& read, const CheckpointOptions& options) {
  std::optional<CheckpointFile> found;
  Json about = Json::object();
  if (options.writes) {
    const auto error = error_of([&] { found = read(); });
    if (error) about = json_of(*error);
    if (found) about.set("path", found->info.path).set("sequence", found->info.sequence);
  }
  about = Json::parse(options.from_writer(about.dump()), "checkpoint");
  if (about.find("code")) throw error_in(about);
  if (!about.find("path")) return std::nullopt;
  const std::string bytes = options.from_writer(found ? format_checkpoint_file(*found) : "");
  if (found) return found;
  const std::string path = about.at("path").as_string();
  CheckpointFile file = parse_checkpoint_file(bytes, concat(path, " as another process read it"));
  file.info.path = path;
  file.info.sequence = about.at("sequence").as_int();
  return file;
}

// Transfer of snapshots in chunks.

SafetensorsLayout pieces_of(const CheckpointSnapshot& snapshot) {
  return lay_out_safetensors(to_safetensors(snapshot.values()));
}

ArrivingSnapshot::ArrivingSnapshot(std::string_view head, std::size_t num_bytes, std::string source)
    : source_(std::move(source)), header_(parse_safetensors_header(head, num_bytes, source_)) {
  for (const SafetensorsEntry& entry : header_.entries) {
    tensors_.emplace_back(entry.shape, entry.dtype, Device{});
  }
}

CheckpointSnapshot ArrivingSnapshot::finish() {
  SafetensorsFile file;
  file.metadata = std::move(header_.metadata);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto* const first = reinterpret_cast<const char*>(tensors_[i].data());
    require_elements({first, tensors_[i].num_bytes()}, header_.entries[i], header_.entries[i].begin,
                     source_);
    file.tensors.push_back({header_.entries[i].name, tensors_[i].freeze()});
  }
  tensors_.clear();
  return CheckpointSnapshot(
      std::make_shared<const CheckpointFile>(from_safetensors(std::move(file), source_)));
}

}  // namespace tutti::internal
