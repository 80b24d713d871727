// Several arrays of numpy in a zip file.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "core/file.h"
#include "core/file_kind.h"
#include "core/names.h"
#include "data/format_bytes.h"
#include "data/input_file.h"
#include "tutti/core/logging.h"
#include "tutti/data/npy.h"

// A zip file: members (local header, name, extra field, data), the central directory with an entry
// per member, and an end record that says where the directory is.

namespace tutti {
namespace {

using internal::get_little_endian;
using internal::put_little_endian;

constexpr std::string_view kLocalMagic("PK\x03\x04", 4);
constexpr std::string_view kEntryMagic("PK\x01\x02", 4);
constexpr std::string_view kEndMagic("PK\x05\x06", 4);
constexpr std::size_t kLocalBytes = 30;
constexpr std::size_t kEntryBytes = 46;
constexpr std::size_t kEndBytes = 22;
constexpr std::string_view kSuffix = ".npy";

template <class... Parts>
[[noreturn]] void fail_in_archive(const std::string& source, std::size_t offset,
                                  const Parts&... parts) {
  fail(ErrorCode::kDataLoss, source, ": offset ", offset, ": ", parts...);
}

struct Entry {
  std::string name;
  std::uint16_t flags = 0;
  std::uint16_t method = 0;
  std::uint32_t crc = 0;
  std::uint32_t packed_bytes = 0;
  std::uint32_t bytes = 0;
  std::uint32_t local_offset = 0;
  std::size_t data_offset = 0;  // behind the local header

  std::size_t end() const { return data_offset + packed_bytes; }
};

void require_record(std::string_view bytes, std::size_t offset, std::string_view magic,
                    std::size_t size, const std::string& source) {
  const bool fits = offset <= bytes.size() && size <= bytes.size() - offset;
  if (fits && bytes.substr(offset, magic.size()) == magic) return;
  fail_in_archive(source, offset, "expected a zip record of ", size,
                  " bytes that begins with PK, got ", fits ? "other bytes" : "the end of the file");
}

std::size_t find_end_record(std::string_view bytes, const std::string& source) {
  const std::size_t found = bytes.rfind(kEndMagic);
  if (found == std::string_view::npos || bytes.size() - found < kEndBytes) {
    if (bytes.substr(0, 2) != "PK") {
      fail_in_archive(source, 0, "expected a .npz file, got ", internal::describe_file(bytes));
    }
    fail_in_archive(source, bytes.size(),
                    "expected the end record of a zip file, got none; the file is cut short");
  }
  return found;
}

Entry read_entry(std::string_view bytes, std::size_t& offset, const std::string& source) {
  require_record(bytes, offset, kEntryMagic, kEntryBytes, source);
  Entry entry;
  entry.flags = get_little_endian<std::uint16_t>(bytes, offset + 8);
  entry.method = get_little_endian<std::uint16_t>(bytes, offset + 10);
  entry.crc = get_little_endian<std::uint32_t>(bytes, offset + 16);
  entry.packed_bytes = get_little_endian<std::uint32_t>(bytes, offset + 20);
  entry.bytes = get_little_endian<std::uint32_t>(bytes, offset + 24);
  entry.local_offset = get_little_endian<std::uint32_t>(bytes, offset + 42);
  const std::size_t name_bytes = get_little_endian<std::uint16_t>(bytes, offset + 28);
  const std::size_t rest = std::size_t{get_little_endian<std::uint16_t>(bytes, offset + 30)} +
                           get_little_endian<std::uint16_t>(bytes, offset + 32);
  require_record(bytes, offset, kEntryMagic, kEntryBytes + name_bytes + rest, source);
  entry.name = bytes.substr(offset + kEntryBytes, name_bytes);
  offset += kEntryBytes + name_bytes + rest;
  return entry;
}

// Reads the local header, too, and looks whether the file holds the data.
void find_data(std::string_view bytes, Entry& entry, const std::string& source) {
  const std::size_t offset = entry.local_offset;
  if ((entry.flags & 1) != 0 || entry.packed_bytes == UINT32_MAX || entry.bytes == UINT32_MAX ||
      (entry.method != 0 && entry.method != 8)) {
    fail(ErrorCode::kUnimplemented, source, ": offset ", offset,
         ": expected a stored or deflated member without encryption and zip64, got method ",
         entry.method, ", flags ", entry.flags, "; try numpy.savez with smaller arrays");
  }
  require_record(bytes, offset, kLocalMagic, kLocalBytes, source);
  const std::size_t begin = offset + kLocalBytes +
                            get_little_endian<std::uint16_t>(bytes, offset + 26) +
                            get_little_endian<std::uint16_t>(bytes, offset + 28);
  if (begin > bytes.size() || entry.packed_bytes > bytes.size() - begin) {
    fail_in_archive(source, begin, "the file ends within a member; expected ", entry.packed_bytes,
                    " bytes");
  }
  entry.data_offset = begin;
}

std::string member_name(const Entry& entry, const std::string& source) {
  return concat(source, ": member '", entry.name, "'");
}

// Members that share their bytes let a small file unpack to anything.
void require_no_overlap(const std::vector<Entry>& entries, const std::string& source) {
  std::vector<const Entry*> by_place;
  for (const Entry& entry : entries) by_place.push_back(&entry);
  std::ranges::sort(by_place, {}, &Entry::local_offset);
  for (std::size_t i = 1; i < by_place.size(); ++i) {
    const Entry& before = *by_place[i - 1];
    if (by_place[i]->local_offset >= before.end()) continue;
    fail_in_archive(member_name(*by_place[i], source), by_place[i]->local_offset,
                    "members overlap; expected it behind the end of '", before.name, "' at ",
                    before.end());
  }
}

/// Without ".npy"; nothing for a member that is not an array.
std::optional<std::string> array_name(const Entry& entry) {
  if (!entry.name.ends_with(kSuffix)) return std::nullopt;
  return entry.name.substr(0, entry.name.size() - kSuffix.size());
}

/// The entries that `names` asks for, in that order; all arrays where it is empty.
std::vector<Entry> wanted_entries(const std::vector<Entry>& entries,
                                  const std::vector<std::string>& names, const std::string& source,
                                  std::vector<std::string>& left_out) {
  std::vector<Entry> wanted;
  for (const Entry& entry : entries) {
    if (!names.empty()) break;
    if (array_name(entry)) {
      wanted.push_back(entry);
    } else {
      left_out.push_back(concat("member '", entry.name, "': not a .npy file"));
    }
  }
  for (const std::string& name : names) {
    const auto found = std::ranges::find_if(entries, [&](const Entry& entry) {
      return array_name(entry).value_or(entry.name) == name;
    });
    if (found == entries.end()) {
      const auto known = internal::names_of(
          entries, [](const Entry& entry) { return array_name(entry).value_or(entry.name); });
      fail(ErrorCode::kNotFound, source, ": no array is called '", name, "'; expected one of [",
           join(known), "]");
    }
    wanted.push_back(*found);
  }
  return wanted;
}

// The members to read, all of them looked at before the first one is unpacked.
std::vector<Entry> read_entries(std::string_view bytes, const std::string& source,
                                const NpzOptions& options, std::vector<std::string>& left_out) {
  const std::size_t end = find_end_record(bytes, source);
  const std::size_t count = get_little_endian<std::uint16_t>(bytes, end + 10);
  std::size_t offset = get_little_endian<std::uint32_t>(bytes, end + 16);
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < count; ++i) entries.push_back(read_entry(bytes, offset, source));
  entries = wanted_entries(entries, options.names, source, left_out);
  std::uint64_t unpacked = 0;
  for (Entry& entry : entries) {
    find_data(bytes, entry, member_name(entry, source));
    internal::require_within(options.limits, entry.bytes, 0, member_name(entry, source));
    unpacked += entry.bytes;
  }
  require_no_overlap(entries, source);
  internal::require_within({options.limits.max_expansion, INT64_MAX}, unpacked, bytes.size(),
                           source);
  return entries;
}

std::string member_bytes(std::string_view bytes, const Entry& entry, const std::string& source,
                         const InputLimits& limits) {
  const std::size_t begin = entry.data_offset;
  const std::string_view packed = bytes.substr(begin, entry.packed_bytes);
  std::string content = entry.method == 0
                            ? std::string(packed)
                            : internal::inflate_bytes(packed, internal::DeflateFormat::kRaw, source,
                                                      limits, entry.bytes);
  if (content.size() != entry.bytes) {
    fail_in_archive(source, begin, "expected a member of ", entry.bytes, " bytes, got ",
                    content.size());
  }
  const std::uint32_t crc = internal::crc32(content);
  if (crc != entry.crc) {
    fail_in_archive(source, begin, "the member's checksum is wrong; expected ", entry.crc, ", got ",
                    crc);
  }
  return content;
}

// The fields that a local header and a directory entry share.
void put_common(std::string& bytes, const Entry& entry) {
  constexpr std::uint16_t kVersion = 20;
  constexpr std::uint32_t kFirstOfJanuary1980 = 0x00210000;
  put_little_endian(bytes, kVersion);
  put_little_endian(bytes, entry.flags);
  put_little_endian(bytes, entry.method);
  put_little_endian(bytes, kFirstOfJanuary1980);
  put_little_endian(bytes, entry.crc);
  put_little_endian(bytes, entry.packed_bytes);
  put_little_endian(bytes, entry.bytes);
  put_little_endian(bytes, static_cast<std::uint16_t>(entry.name.size()));
  put_little_endian(bytes, std::uint16_t{0});
}

void put_entry(std::string& bytes, const Entry& entry) {
  bytes += kEntryMagic;
  put_little_endian(bytes, std::uint16_t{20});
  put_common(bytes, entry);
  bytes.append(10, '\0');  // no comment, disk 0, no attributes
  put_little_endian(bytes, entry.local_offset);
  bytes += entry.name;
}

void require_name(const std::string& name, std::set<std::string>& seen) {
  constexpr std::size_t kMaxName = 1000;
  if (name.empty() || name.size() > kMaxName || !seen.insert(name).second) {
    fail(ErrorCode::kInvalidArgument, "format_npz: expected names of 1 to ", kMaxName,
         " bytes, each once, got '", name, "'");
  }
}

}  // namespace

const Tensor& NamedTensors::at(std::string_view name) const {
  for (const auto& [own, tensor] : *this) {
    if (own == name) return tensor;
  }
  const auto known = internal::names_of(*this, [](const auto& named) { return named.first; });
  fail(ErrorCode::kNotFound, "NamedTensors: no array is called '", name, "'; expected one of [",
       join(known), "]");
}

bool NamedTensors::has(std::string_view name) const {
  return std::ranges::any_of(*this, [&](const auto& named) { return named.first == name; });
}

NamedTensors parse_npz(std::string_view bytes, const std::string& source,
                       const NpzOptions& options) {
  NamedTensors tensors;
  std::vector<std::string> left_out;
  const bool reads_all = options.names.empty();
  for (const Entry& entry : read_entries(bytes, source, options, left_out)) {
    const std::string member = member_name(entry, source);
    const std::string content = member_bytes(bytes, entry, member, options.limits);
    try {
      tensors.emplace_back(array_name(entry).value_or(entry.name), parse_npy(content, member));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnimplemented || !reads_all) throw;
      left_out.push_back(error.message().substr(source.size() + 2));
    }
  }
  if (!left_out.empty()) {
    log_warning(concat(source, ": left out ", join(left_out),
                       "; NpzOptions::names says which arrays are read"));
  }
  return tensors;
}

std::string format_npz(const NamedTensors& tensors) {
  std::string bytes;
  std::string directory;
  std::set<std::string> seen;
  for (const auto& [name, tensor] : tensors) {
    require_name(name, seen);
    const std::string content = format_npy(tensor);
    if (bytes.size() + content.size() >= UINT32_MAX || seen.size() >= UINT16_MAX) {
      fail(ErrorCode::kInvalidArgument,
           "format_npz: expected less than 4 GiB and 65535 arrays, got more at '", name,
           "'; try write_npy()");
    }
    Entry entry;
    entry.name = concat(name, kSuffix);
    entry.crc = internal::crc32(content);
    entry.packed_bytes = entry.bytes = static_cast<std::uint32_t>(content.size());
    entry.local_offset = static_cast<std::uint32_t>(bytes.size());
    bytes += kLocalMagic;
    put_common(bytes, entry);
    bytes += entry.name;
    bytes += content;
    put_entry(directory, entry);
  }
  const auto begin = static_cast<std::uint32_t>(bytes.size());
  bytes += directory;
  bytes += kEndMagic;
  bytes.append(4, '\0');
  put_little_endian(bytes, static_cast<std::uint16_t>(tensors.size()));
  put_little_endian(bytes, static_cast<std::uint16_t>(tensors.size()));
  put_little_endian(bytes, static_cast<std::uint32_t>(directory.size()));
  put_little_endian(bytes, begin);
  put_little_endian(bytes, std::uint16_t{0});
  return bytes;
}

NamedTensors read_npz(const std::string& path, const NpzOptions& options) {
  const std::string bytes = internal::read_file_for("read_npz", path);
  return internal::name_when_out_of_memory(path, [&] { return parse_npz(bytes, path, options); });
}

void write_npz(const std::string& path, const NamedTensors& tensors) {
  write_file_atomically(path, format_npz(tensors));
}

}  // namespace tutti
