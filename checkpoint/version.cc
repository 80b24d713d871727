// Implements checkpoint versions: writes the index last, and verifies every file's checksum when
// reading.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/version.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "checkpoint/folder.h"
#include "checkpoint/safetensors_types.h"
#include "core/hash.h"
#include "tutti/tensor/numerics.h"

namespace tutti::internal {
namespace {

constexpr std::string_view kFormat = "tutti checkpoint";
constexpr std::int64_t kIndexVersion = 3;  // formats 1 and 2 had a manifest.json
constexpr std::size_t kMaxIndexBytes = 256u << 20;
/// Size of a block, in bytes. A block fits in the cache, so hashing it needs no second read of
/// memory.
constexpr std::size_t kBlockBytes = 1u << 20;

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, parts...);
}

void require_checksum(const std::string& path, const IndexedFile& file, const std::string& actual) {
  if (actual == file.xxh3) return;
  fail(ErrorCode::kDataLoss, path, ": the file is damaged; expected checksum ", file.xxh3, ", got ",
       actual);
}

// Reading and writing the index.

template <class Map, class Make>
Json object_of(const Map& map, const Make& make) {
  Json json = Json::object();
  for (const auto& [name, value] : map) json.append(name, make(value));
  return json;
}

Json file_json(const IndexedFile& file) {
  return Json::Object{{"bytes", file.num_bytes}, {"xxh3", file.xxh3}};
}

Json cut_json(const CutTensor& cut) {
  const auto range_json = [](const ElementRange& range) {
    return Json(Json::Array{range.first, range.second});
  };
  return Json::Object{{"dtype", safetensors_name_of(cut.dtype)},
                      {"shape", Json::array_of(cut.shape)},
                      {"elements", object_of(cut.ranges, range_json)}};
}

std::int64_t read_count(const Json& json, const char* name) {
  const std::int64_t count = json.at(name).as_int();
  if (count < 0) refuse("expected '", name, "' >= 0, got ", count);
  return count;
}

const std::string& require_tensor_file(const VersionIndex& index, const std::string& file) {
  if (index.files.contains(file) && file != index.state_file) return file;
  refuse("expected one of the tensor files that the metadata lists, got '", file, "'");
}

CutTensor cut_in(const Json& json, const VersionIndex& index) {
  const std::string& dtype = json.at("dtype").as_string();
  const auto known = dtype_of_safetensors_name(dtype);
  if (!known) refuse("expected a safetensors dtype, got '", dtype, "'");
  std::vector<std::int64_t> dims;
  for (const Json& dim : json.at("shape").as_array()) dims.push_back(dim.as_int());
  CutTensor cut{*known, Shape(dims)};
  const std::int64_t count = cut.shape.num_elements();
  for (const auto& [file, ends] : json.at("elements").as_object()) {
    if (ends.as_array().size() != 2)
      refuse("expected a range [begin, end], got a list of length ", ends.as_array().size());
    const ElementRange range{ends.as_array()[0].as_int(), ends.as_array()[1].as_int()};
    if (range.first < 0 || range.second < range.first || range.second > count) {
      refuse("expected elements within [0, ", count, "], got [", range.first, ", ", range.second,
             "]");
    }
    cut.ranges.emplace(require_tensor_file(index, file), range);
  }
  return cut;
}

/// Throws kDataLoss unless the parts of every tensor cover each of its elements exactly once.
void require_whole(const VersionIndex& index, const std::string& source) {
  for (const auto& [name, cut] : index.parts) {
    std::set<ElementRange> ranges;
    for (const auto& [file, range] : cut.ranges) ranges.insert(range);
    bool is_whole = ranges.size() == cut.ranges.size() && !index.weight_map.contains(name);
    std::string got = index.weight_map.contains(name) ? "all in one file" : "";
    std::int64_t next = 0;
    for (const auto& [first, end] : ranges) {
      is_whole = is_whole && first == next;
      next = end;
      got += concat(got.empty() ? "[" : ", [", first, ", ", end, ")");
    }
    if (is_whole && next == cut.shape.num_elements()) continue;
    fail(ErrorCode::kDataLoss, source, ": tensor '", name, "': expected each of its elements [0, ",
         cut.shape.num_elements(), ") exactly once, got ", got.empty() ? "no elements" : got);
  }
}

}  // namespace

Json to_json(const VersionIndex& index) {
  Json metadata = Json::Object{{"total_size", index.total_size}, {"format", kFormat},
                               {"version", kIndexVersion},       {"step", index.step},
                               {"sequence", index.sequence},     {"state", index.state_file}};
  metadata.set("files", object_of(index.files, file_json));
  const auto file_name = [](const std::string& file) { return Json(file); };
  return Json::Object{{"metadata", std::move(metadata)},
                      {"weight_map", object_of(index.weight_map, file_name)},
                      {"parts", object_of(index.parts, cut_json)}};
}

VersionIndex index_in(const Json& json) {
  VersionIndex index;
  const Json& metadata = json.at("metadata");
  index.total_size = static_cast<std::uint64_t>(read_count(metadata, "total_size"));
  index.step = read_count(metadata, "step");
  index.sequence = read_count(metadata, "sequence");
  index.state_file = metadata.at("state").as_string();
  for (const auto& [name, file] : metadata.at("files").as_object()) {
    if (!is_plain_name(name) || name == kIndexName) {
      refuse("expected a file name of letters, digits, '.', '_' and '-', got '", name, "'");
    }
    index.files[name] = {static_cast<std::uint64_t>(read_count(file, "bytes")),
                         file.at("xxh3").as_string()};
  }
  for (const auto& [tensor, file] : json.at("weight_map").as_object()) {
    index.weight_map[tensor] = require_tensor_file(index, file.as_string());
  }
  for (const auto& [tensor, cut] : json.at("parts").as_object()) {
    index.parts[tensor] = cut_in(cut, index);
  }
  return index;
}

std::string sealed(Json json) {
  json.append("checksum", hash_of(json.dump(1)));
  return json.dump(1);
}

std::string format_index(const VersionIndex& index) { return sealed(to_json(index)); }

// An index has exactly one valid encoding, so every changed byte is detected. A correct checksum
// proves nothing about the author, so index_in() checks that the values agree with each other.
VersionIndex parse_index(std::string_view text, const std::string& source) {
  return damage_if_refused(
      [&] { return source; },
      [&] {
        Json::Object members = Json::parse(text, "index").as_object();
        if (!members.empty()) members.pop_back();
        const Json json(std::move(members));
        if (sealed(json) != text) {
          refuse(
              "the index is damaged, or another program wrote it; expected a checksum at the end; "
              "for another program's model, call load_weights()");
        }
        const Json& metadata = json.at("metadata");
        const std::string& format = metadata.at("format").as_string();
        if (format != kFormat) refuse("expected format '", kFormat, "', got '", format, "'");
        if (const std::int64_t version = metadata.at("version").as_int();
            version != kIndexVersion) {
          fail(ErrorCode::kUnimplemented, source, ": expected version ", kIndexVersion, ", got ",
               version, "; try a later version of tutti");
        }
        VersionIndex index = index_in(json);
        if (!index.files.contains(index.state_file)) {
          refuse("expected 'state' to be one of the files that the metadata lists, got '",
                 index.state_file, "'");
        }
        if (index.sequence < 1 || index.sequence > kMaxSequence) {
          refuse("expected a sequence number from 1 to ", kMaxSequence, ", got ", index.sequence);
        }
        require_whole(index, source);
        return index;
      });
}

// Writing a version.

namespace {

IndexedFile write_text(const Folder& folder, const std::string& name, const std::string& text) {
  FileWriter writer = folder.create_file(name, text.size());
  writer.write(text);
  writer.finish();
  return {text.size(), hash_of(text)};
}

/// Returns the parts of a checkpoint; a full tensor counts as a part with all elements.
std::map<std::string, TensorPart> parts_of(const CheckpointFile& file) {
  std::map<std::string, TensorPart> parts = file.parts;
  for (const auto& [name, tensor] : file.tensors) {
    parts.emplace(name, TensorPart{name, tensor.shape(), tensor.dtype(), 0, {tensor}});
  }
  return parts;
}

}  // namespace

std::string tensor_file_name(int number, int count, const std::string& tag) {
  char text[40];
  std::snprintf(text, sizeof(text), "model-%05d-of-%05d", number + 1, count);
  return concat(text, tag, ".safetensors");
}

VersionIndex write_tensors(const Folder& folder, const std::string& name,
                           const CheckpointFile& values) {
  const std::map<std::string, TensorPart> parts = parts_of(values);
  VersionIndex index;
  std::vector<SafetensorsEntry> entries;
  for (const auto& [tensor, part] : parts) {
    // A part that has all elements of a sharded tensor is also stored as a range, so that workers
    // without elements find the tensor's shape in the index.
    const bool is_cut = part.has_others || !part.is_whole();
    entries.push_back({tensor, part.dtype, is_cut ? Shape{part.count()} : part.shape});
    if (is_cut) {
      const ElementRange range{part.first, part.first + part.count()};
      index.parts[tensor] = {part.dtype, part.shape, {{name, range}}};
    } else {
      index.weight_map[tensor] = name;
    }
  }
  const std::string head = format_safetensors_head(
      {{"step", concat(values.info.step)}, {"tutti_version", TUTTI_VERSION}}, entries);
  const std::size_t num_bytes = entries.empty() ? head.size() : entries.back().end;
  FileWriter writer = folder.create_file(name, num_bytes);
  writer.reserve();
  Hasher hasher;
  const auto write = [&](std::span<const std::byte> bytes) {
    for (std::size_t at = 0; at < bytes.size(); at += kBlockBytes) {
      const auto block = bytes.subspan(at, std::min(kBlockBytes, bytes.size() - at));
      hasher.update(block);
      writer.write(block);
    }
  };
  write(std::as_bytes(std::span(head)));
  for (const SafetensorsEntry& entry : entries) {
    for (const Tensor& value : parts.at(entry.name).values) write(value.to(Device{}).bytes());
  }
  writer.finish();
  index.total_size = num_bytes - head.size();
  index.files[name] = {num_bytes, hasher.hex_digest()};
  return index;
}

void add_files(VersionIndex& index, const VersionIndex& more) {
  index.total_size += more.total_size;
  index.files.insert(more.files.begin(), more.files.end());
  for (const auto& [tensor, file] : more.weight_map) {
    const auto [same, is_new] = index.weight_map.emplace(tensor, file);
    if (is_new) continue;
    refuse("Checkpoint: '", tensor, "' is stored in ", same->second, " and ", file,
           "; expected each tensor once");
  }
  for (const auto& [tensor, cut] : more.parts) {
    CutTensor& same = index.parts.emplace(tensor, cut).first->second;
    if (same.shape != cut.shape || same.dtype != cut.dtype) {
      refuse("Checkpoint: '", tensor, "' is ", same.dtype, " ", same.shape, " in ",
             same.ranges.begin()->first, " and ", cut.dtype, " ", cut.shape, " in ",
             cut.ranges.begin()->first, "; expected the same variables in all processes");
    }
    same.ranges.insert(cut.ranges.begin(), cut.ranges.end());
  }
}

VersionIndex commit_version(const Folder& folder, VersionIndex index,
                            const CheckpointFile& values) {
  require_whole(index, folder.path_of(kIndexName));
  const Json states = object_of(values.states, [](const Json& state) { return state; });
  const Json state =
      Json::Object{{"step", index.step},         {"sequence", index.sequence},
                   {"tutti", TUTTI_VERSION},     {"numerics", numerics_fingerprint()},
                   {"about", values.info.about}, {"states", states}};
  index.files[index.state_file] = write_text(folder, index.state_file, state.dump(1));
  const std::string text = format_index(index);
  if (text.size() > kMaxIndexBytes || index.sequence > kMaxSequence) {
    fail(ErrorCode::kFailedPrecondition, "Checkpoint: '", folder.path_of(kIndexName),
         "': expected at most ", kMaxIndexBytes, " bytes and a sequence number of at most ",
         kMaxSequence, ", got ", text.size(), " bytes and sequence ", index.sequence,
         "; try fewer variables, or another folder");
  }
  write_text(folder, kNewIndexName, text);
  folder.sync();  // writes the file names to disk before the index
  folder.rename(kNewIndexName, kIndexName);
  folder.sync();
  return index;
}

// Reading a version.

namespace {

/// Destination for a tensor's bytes, starting from byte `first`.
struct Destination {
  const TensorPart* part = nullptr;  // nullptr: the whole tensor
  std::uint64_t first = 0;
  MutableTensor values;
};
/// Destinations by tensor name. Bytes of tensors without a destination are hashed and dropped.
using Destinations = std::map<std::string, Destination>;

/// A tensor file whose header agrees with the index.
class TensorFile {
 public:
  TensorFile(const Folder& folder, const VersionIndex& index, const std::string& name)
      : index_(index), name_(name), reader_(folder.open_file(name)) {
    head_ = read_safetensors_head(reader_);
    try {
      entries_ = parse_safetensors_header(head_, reader_.size(), reader_.path()).entries;
    } catch (const Error& error) {
      // The file must be damaged, because tutti writes no unsupported types.
      throw Error(ErrorCode::kDataLoss, error.message());
    }
    require_agreement();
  }

  const std::vector<SafetensorsEntry>& entries() const { return entries_; }

  /// Reads all bytes of the file and copies the wanted ones to `destinations`. Throws kDataLoss
  /// unless the checksum equals the one in the index.
  void read(const Destinations& destinations) const {
    Hasher hasher;
    hasher.update(head_);
    std::vector<std::byte> scratch;
    for (const SafetensorsEntry& entry : entries_) {
      // Bytes [begin, end) of the file are read into `to`.
      std::size_t begin = entry.end, end = entry.end;
      std::byte* to = nullptr;
      if (const auto found = destinations.find(entry.name); found != destinations.end()) {
        const Destination& wanted = found->second;
        const std::uint64_t place = first_byte(entry), place_end = place + entry.end - entry.begin;
        const std::uint64_t first = std::clamp(wanted.first, place, place_end);
        const std::uint64_t last =
            std::clamp(wanted.first + wanted.values.num_bytes(), first, place_end);
        begin = entry.begin + (first - place);
        end = entry.begin + (last - place);
        if (begin < end) to = wanted.values.data() + (first - wanted.first);
      }
      read_range(entry, entry.begin, begin, nullptr, scratch, hasher);
      read_range(entry, begin, end, to, scratch, hasher);
      read_range(entry, end, entry.end, nullptr, scratch, hasher);
    }
    require_checksum(reader_.path(), index_.files.at(name_), hasher.hex_digest());
  }

 private:
  /// Returns the range of a tensor that is in this file; nullptr if the file contains the whole
  /// tensor.
  const ElementRange* range_of(const std::string& tensor) const {
    const auto cut = index_.parts.find(tensor);
    if (cut == index_.parts.end()) return nullptr;
    const auto range = cut->second.ranges.find(name_);
    return range == cut->second.ranges.end() ? nullptr : &range->second;
  }

  /// Returns the offset, within the whole tensor, of the first byte that this file contains.
  std::uint64_t first_byte(const SafetensorsEntry& entry) const {
    const ElementRange* const range = range_of(entry.name);
    return range ? static_cast<std::uint64_t>(range->first) * size_of(entry.dtype) : 0;
  }

  void require_agreement() const {
    std::size_t num_listed = 0;
    for (const auto& [tensor, file] : index_.weight_map) num_listed += file == name_;
    for (const auto& [tensor, cut] : index_.parts) num_listed += cut.ranges.contains(name_);
    const auto is_listed = [&](const SafetensorsEntry& entry) {
      const auto whole = index_.weight_map.find(entry.name);
      const ElementRange* const range = range_of(entry.name);
      if (!range) return whole != index_.weight_map.end() && whole->second == name_;
      return entry.dtype == index_.parts.at(entry.name).dtype &&
             entry.shape == Shape{range->second - range->first};
    };
    if (entries_.size() == num_listed && std::ranges::all_of(entries_, is_listed)) return;
    fail(ErrorCode::kDataLoss, reader_.path(), ": expected the ", num_listed, " tensors that ",
         kIndexName, " lists for this file, got ", entries_.size(), " different ones");
  }

  void read_range(const SafetensorsEntry& entry, std::size_t begin, std::size_t end, std::byte* to,
                  std::vector<std::byte>& scratch, Hasher& hasher) const {
    if (!to && begin < end) scratch.resize(kBlockBytes);
    while (begin < end) {
      const std::size_t size = std::min(end - begin, kBlockBytes);
      const std::span<std::byte> block(to ? to : scratch.data(), size);
      reader_.read(begin, block);
      hasher.update(block);
      require_elements({reinterpret_cast<const char*>(block.data()), size}, entry, begin,
                       reader_.path());
      begin += size;
      if (to) to += size;
    }
  }

  const VersionIndex& index_;
  const std::string& name_;
  FileReader reader_;
  std::string head_;
  std::vector<SafetensorsEntry> entries_;
};

/// Returns the wanted part of a tensor; nullptr if the whole tensor is wanted.
const TensorPart* wanted_part(const WantedParts& wanted, const std::string& tensor, DType dtype,
                              const Shape& shape) {
  const auto part = wanted.find(tensor);
  if (part == wanted.end() || part->second.shape != shape || part->second.dtype != dtype)
    return nullptr;
  return &part->second;
}

/// Returns true if the file must be read: it contains wanted elements, or it contains no tensors
/// and is read only to verify its checksum.
bool holds_wanted(const VersionIndex& index, const std::string& file, const WantedParts& wanted) {
  for (const auto& [tensor, whole] : index.weight_map) {
    if (whole == file) return true;
  }
  bool holds_any = false;
  for (const auto& [tensor, cut] : index.parts) {
    const auto range = cut.ranges.find(file);
    if (range == cut.ranges.end()) continue;
    holds_any = true;
    const TensorPart* const part = wanted_part(wanted, tensor, cut.dtype, cut.shape);
    if (!part) return true;
    const auto [first, end] = range->second;
    if (std::max(first, part->first) < std::min(end, part->first + part->count())) return true;
  }
  return !holds_any;
}

void add_destination(Destinations& destinations, const WantedParts& wanted,
                     const std::string& tensor, DType dtype, const Shape& shape) {
  const TensorPart* const part = wanted_part(wanted, tensor, dtype, shape);
  const std::int64_t first = part ? part->first : 0;
  destinations.emplace(
      tensor, Destination{part, static_cast<std::uint64_t>(first) * size_of(dtype),
                          MutableTensor(part ? Shape{part->count()} : shape, dtype, Device{})});
}

}  // namespace

std::string read_safetensors_head(const FileReader& file) {
  const std::uint64_t first = std::min<std::uint64_t>(file.size(), kSafetensorsLengthBytes);
  const std::uint64_t length = std::min<std::uint64_t>(
      safetensors_header_length(file.read_text(0, first)), kSafetensorsMaxHeaderBytes);
  return file.read_text(0, std::min(file.size(), first + length));
}

std::optional<VersionIndex> read_index(const Folder& folder) {
  const std::optional<std::uint64_t> size = folder.size_of(kIndexName);
  if (!size && folder.exists(kIndexName)) (void)folder.open_file(kIndexName);  // throws kDataLoss
  if (!size && folder.exists(kEarlierManifestName)) {
    fail(
        ErrorCode::kUnimplemented, folder.path(), ": expected a version with ", kIndexName,
        ", got one in tutti's earlier format with ", kEarlierManifestName,
        "; call Checkpoint::restore() and Checkpoint::save(\"", folder.path(),
        ".safetensors\", step) in a program built from commit 90f32457, then move away all folders "
        "that contain ",
        kEarlierManifestName, ", and retry");
  }
  if (!size) return std::nullopt;
  if (*size > kMaxIndexBytes) {
    fail(ErrorCode::kDataLoss, folder.path_of(kIndexName), ": expected at most ", kMaxIndexBytes,
         " bytes, got ", *size);
  }
  return parse_index(folder.open_file(kIndexName).read_text(0, *size), folder.path_of(kIndexName));
}

VersionIndex require_index(const Folder& folder) {
  std::optional<VersionIndex> index = read_index(folder);
  if (index) return std::move(*index);
  fail(
      ErrorCode::kNotFound, "Checkpoint: '", folder.path(), "': expected a version with ",
      kIndexName,
      ", got none; the folder is not a checkpoint, or its save never finished; try another folder");
}

void require_files(const Folder& folder, const VersionIndex& index) {
  for (const auto& [name, file] : index.files) {
    const std::optional<std::uint64_t> size = folder.size_of(name);
    if (size == file.num_bytes) continue;
    fail(ErrorCode::kDataLoss, folder.path_of(name), ": expected a file of ", file.num_bytes,
         " bytes, got ",
         folder.is_link(name)
             ? "a symbolic link, which is not followed; replace it with a copy of the file"
         : size ? concat(*size)
                : std::string("none"));
  }
}

CheckpointFile read_state(const Folder& folder, const VersionIndex& index) {
  const FileReader reader = folder.open_file(index.state_file);
  const std::string text = reader.read_text(0, reader.size());
  require_checksum(reader.path(), index.files.at(index.state_file), hash_of(text));
  return damage_if_refused([&] { return reader.path(); },
                           [&] {
                             const Json json = Json::parse(text, "state");
                             CheckpointFile file;
                             file.info = {index.step,
                                          json.at("tutti").as_string(),
                                          json.at("numerics").as_string(),
                                          index.sequence,
                                          folder.path(),
                                          json.at("about")};
                             for (const auto& [name, state] : json.at("states").as_object())
                               file.states[name] = state;
                             return file;
                           });
}

std::map<std::string, StoredTensor> tensors_in(const Folder& folder, const VersionIndex& index) {
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, file] : index.files) {
    if (name == index.state_file) continue;
    const TensorFile source(folder, index, name);
    for (const SafetensorsEntry& entry : source.entries()) {
      const auto cut = index.parts.find(entry.name);
      StoredTensor& tensor = tensors[entry.name];
      tensor.dtype = entry.dtype;
      tensor.shape = cut == index.parts.end() ? entry.shape : cut->second.shape;
      tensor.files.push_back(name);
    }
  }
  return tensors;
}

CheckpointFile read_version(const Folder& folder, const WantedParts& wanted) {
  const VersionIndex index = require_index(folder);
  require_files(folder, index);
  CheckpointFile file = read_state(folder, index);
  std::vector<TensorFile> sources;
  for (const auto& [name, listed] : index.files) {
    if (name != index.state_file && holds_wanted(index, name, wanted)) {
      sources.emplace_back(folder, index, name);
    }
  }
  // Allocate memory only after checking that the index, headers and file sizes agree.
  Destinations destinations;
  for (const auto& [tensor, cut] : index.parts) {
    add_destination(destinations, wanted, tensor, cut.dtype, cut.shape);
  }
  for (const TensorFile& source : sources) {
    for (const SafetensorsEntry& entry : source.entries()) {
      if (index.parts.contains(entry.name)) continue;
      add_destination(destinations, wanted, entry.name, entry.dtype, entry.shape);
    }
  }
  for (const TensorFile& source : sources) source.read(destinations);
  for (const auto& [name, read] : destinations) {
    if (!read.part) {
      file.tensors[name] = read.values.freeze();
    } else {
      file.parts[name] = {
          name, read.part->shape, read.part->dtype, read.part->first, {read.values.freeze()}};
    }
  }
  return file;
}

std::vector<std::string> find_damage(const Folder& folder, const VersionIndex& index) {
  std::vector<std::string> problems;
  for (const auto& [name, file] : index.files) {
    try {
      if (name == index.state_file) {
        read_state(folder, index);
      } else {
        TensorFile(folder, index, name).read({});
      }
    } catch (const Error& error) {
      problems.push_back(error.message());
    }
  }
  return problems;
}

}  // namespace tutti::internal
