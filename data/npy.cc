// NumPy files: a .npy file holds one array; a .npz file is a zip archive of several arrays.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/npy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>

#include "core/file.h"
#include "core/file_kind.h"
#include "core/names.h"
#include "data/input_file.h"
#include "tutti/core/logging.h"

// A .npy file consists of "\x93NUMPY", major and minor version, header length (2 bytes in version
// 1, else 4), the header and the elements. The header is a Python dictionary such as {'descr':
// '<f4', 'fortran_order': False, 'shape': (2, 3), } with spaces up to a newline.

namespace tutti {
namespace {

using internal::fail_at;

constexpr std::string_view kMagic = "\x93NUMPY";

/// A NumPy type and the tensor type that represents it. Integer types that tensors lack become
/// int32 or int64.
struct TypeName {
  DType dtype;
  std::string_view name;  // numpy's name without the byte order
  std::size_t bytes;      // size of an element in the file

  bool is_exact() const { return bytes == size_of(dtype); }
};
constexpr std::array kTypeNames = {
    TypeName{DType::kFloat32, "f4", 4}, TypeName{DType::kFloat64, "f8", 8},
    TypeName{DType::kInt32, "i4", 4},   TypeName{DType::kInt64, "i8", 8},
    TypeName{DType::kUInt8, "u1", 1},   TypeName{DType::kBool, "b1", 1},
    TypeName{DType::kFloat16, "f2", 2}, TypeName{DType::kInt32, "i1", 1},
    TypeName{DType::kInt32, "i2", 2},   TypeName{DType::kInt32, "u2", 2},
    TypeName{DType::kInt64, "u4", 4}};

struct Header {
  TypeName type = kTypeNames[0];
  bool big_endian = false;
  bool fortran_order = false;
  Shape shape;
  std::size_t end = 0;  // offset of the elements
};

/// Parser of the header's dictionary; reads it from left to right.
class HeaderParser {
 public:
  HeaderParser(std::string_view bytes, std::size_t begin, std::size_t end,
               const std::string& source)
      : bytes_(bytes.substr(0, end)), place_(begin), source_(source) {}

  Header run() {
    Header header;
    header.end = bytes_.size();
    std::array<bool, 3> seen{};
    expect('{');
    while (!accept('}')) {
      const std::size_t start = place_;
      const std::string_view key = text();
      expect(':');
      if (key == "descr") {
        read_type(header);
        seen[0] = true;
      } else if (key == "fortran_order") {
        header.fortran_order = truth();
        seen[1] = true;
      } else if (key == "shape") {
        header.shape = shape();
        seen[2] = true;
      } else {
        fail_at(source_, start, "expected the keys descr, fortran_order and shape, got '", key,
                "'");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (std::count(seen.begin(), seen.end(), true) != 3) {
      fail_at(source_, place_, "the header lacks a key; expected descr, fortran_order and shape");
    }
    return header;
  }

 private:
  void skip_spaces() {
    while (place_ < bytes_.size() && (bytes_[place_] == ' ' || bytes_[place_] == '\n')) ++place_;
  }
  bool accept(char wanted) {
    skip_spaces();
    if (place_ == bytes_.size() || bytes_[place_] != wanted) return false;
    ++place_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) {
      fail_at(source_, place_, "expected '", wanted, "' in the npy header, got ",
              place_ == bytes_.size() ? std::string("the end of the header")
                                      : std::string(1, bytes_[place_]));
    }
  }

  std::string_view text() {
    const char quote = accept('"') ? '"' : (expect('\''), '\'');
    const std::size_t start = place_;
    const std::size_t end = bytes_.find(quote, start);
    if (end == std::string_view::npos)
      fail_at(source_, start, "expected a quoted string, got no closing quote");
    place_ = end + 1;
    return bytes_.substr(start, end - start);
  }

  bool truth() {
    skip_spaces();
    for (const auto& [word, value] :
         {std::pair{std::string_view("True"), true}, {"False", false}}) {
      if (bytes_.substr(place_, word.size()) != word) continue;
      place_ += word.size();
      return value;
    }
    fail_at(source_, place_, "expected True or False for fortran_order");
  }

  void read_type(Header& header) {
    skip_spaces();
    const std::size_t start = place_;
    if (start < bytes_.size() && bytes_[start] == '[') {
      fail(ErrorCode::kUnimplemented, source_, ": offset ", start,
           ": expected elements of a plain type, got a structured array; save each field "
           "separately");
    }
    const std::string_view type = text();
    const std::string_view name = type.substr(std::min<std::size_t>(type.size(), 1));
    for (const TypeName& known : kTypeNames) {
      if (name != known.name || std::string_view("<>|=").find(type[0]) == std::string_view::npos) {
        continue;
      }
      header.type = known;
      header.big_endian = type[0] == '>';
      return;
    }
    fail(ErrorCode::kUnimplemented, source_, ": offset ", start, ": elements of type '", type,
         "' have no tensor type; expected f2, f4, f8, i1, i2, i4, i8, u1, u2, u4 or b1; call "
         "astype() before saving");
  }

  Shape shape() {
    std::vector<std::int64_t> dims;
    const std::size_t start = place_;
    expect('(');
    while (!accept(')')) {
      skip_spaces();
      std::int64_t dim = 0;
      const char* first = bytes_.data() + place_;
      const auto [end, error] = std::from_chars(first, bytes_.data() + bytes_.size(), dim);
      if (error != std::errc() || dim < 0) fail_at(source_, place_, "expected a dimension >= 0");
      place_ += static_cast<std::size_t>(end - first);
      accept('L');  // suffix of Python 2's long
      dims.push_back(dim);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    if (dims.size() > static_cast<std::size_t>(Shape::kMaxRank)) {
      fail_at(source_, start, "expected at most ", Shape::kMaxRank, " dimensions, got ",
              dims.size());
    }
    if (!Shape::count(dims)) {
      fail_at(source_, start, "expected smaller dimensions, got (", tutti::join(dims), ")");
    }
    return Shape(std::span<const std::int64_t>(dims));
  }

  std::string_view bytes_;
  std::size_t place_;
  const std::string& source_;
};

Header read_header(std::string_view bytes, const std::string& source) {
  auto require = [&](std::size_t size) {
    if (bytes.size() >= size) return;
    fail_at(source, bytes.size(), "the file ends within its header; expected ", size,
            " bytes, got ", bytes.size());
  };
  if (!kMagic.starts_with(bytes.substr(0, kMagic.size())) || bytes.empty()) {
    fail_at(source, 0, "expected a .npy file, got ", internal::describe_file(bytes));
  }
  require(kMagic.size() + 2);
  const int version = static_cast<unsigned char>(bytes[kMagic.size()]);
  if (version < 1 || version > 3) {
    fail_at(source, kMagic.size(), "expected version 1, 2 or 3, got ", version);
  }
  const std::size_t length_at = kMagic.size() + 2;
  const std::size_t begin = length_at + (version == 1 ? 2 : 4);
  require(begin);
  const std::size_t length = version == 1
                                 ? internal::get_little_endian<std::uint16_t>(bytes, length_at)
                                 : internal::get_little_endian<std::uint32_t>(bytes, length_at);
  require(begin + length);
  return HeaderParser(bytes, begin, begin + length, source).run();
}

std::size_t data_bytes(const Header& header, const std::string& source) {
  std::size_t size = 0;
  if (__builtin_mul_overflow(static_cast<std::size_t>(header.shape.num_elements()),
                             header.type.bytes, &size)) {
    fail(ErrorCode::kDataLoss, source, ": expected an array of fewer than 2^64 bytes, got ",
         header.shape);
  }
  return size;
}

// Copies elements to C order. An element's position in the file is the sum of its indices, each
// multiplied by its Fortran stride.
void copy_from_fortran_order(const char* from, const Shape& shape, std::size_t size,
                             std::byte* to) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(shape.rank()), 0);
  for (std::int64_t i = 0; i < shape.num_elements(); ++i) {
    std::int64_t place = 0;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      place = place * shape[axis] + index[static_cast<std::size_t>(axis)];
    }
    std::memcpy(to + static_cast<std::size_t>(i) * size,
                from + static_cast<std::size_t>(place) * size, size);
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      if (++index[static_cast<std::size_t>(axis)] < shape[axis]) break;
      index[static_cast<std::size_t>(axis)] = 0;
    }
  }
}

// Copies the file's elements, converting them to C order and this machine's byte order.
void copy_elements(const char* from, const Header& header, std::size_t bytes, std::byte* to) {
  if (header.fortran_order && header.shape.rank() > 1) {
    copy_from_fortran_order(from, header.shape, header.type.bytes, to);
  } else if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
  if (header.big_endian) internal::reverse_each(to, bytes, header.type.bytes);
}

template <class From, class To>
void widen_as(const std::vector<std::byte>& from, MutableTensor& tensor) {
  const auto to = tensor.span<To>();
  for (std::size_t i = 0; i < to.size(); ++i) {
    From value;
    std::memcpy(&value, from.data() + i * sizeof(From), sizeof(From));
    to[i] = value;
  }
}

void widen(const std::vector<std::byte>& from, std::string_view name, MutableTensor& tensor) {
  if (name == "i1") return widen_as<std::int8_t, std::int32_t>(from, tensor);
  if (name == "i2") return widen_as<std::int16_t, std::int32_t>(from, tensor);
  if (name == "u2") return widen_as<std::uint16_t, std::int32_t>(from, tensor);
  widen_as<std::uint32_t, std::int64_t>(from, tensor);
}

}  // namespace

Tensor parse_npy(std::string_view bytes, const std::string& source) {
  const Header header = read_header(bytes, source);
  const std::size_t expected = data_bytes(header, source);
  const std::size_t found = bytes.size() - header.end;
  if (found != expected) {
    fail_at(source, header.end + std::min(found, expected),
            found < expected ? "the file ends early" : "the file continues after its last element",
            "; expected ", expected, " bytes of elements for shape ", header.shape, " of ", "type ",
            header.type.name, ", got ", found);
  }
  MutableTensor tensor(header.shape, header.type.dtype, Device{});
  const char* data = bytes.data() + header.end;
  if (header.type.is_exact()) {
    copy_elements(data, header, expected, tensor.data());
  } else {
    std::vector<std::byte> narrow(expected);
    copy_elements(data, header, expected, narrow.data());
    widen(narrow, header.type.name, tensor);
  }
  if (header.type.dtype == DType::kBool) {  // normalizes the bytes to 0 and 1
    for (std::size_t i = 0; i < expected; ++i) {
      tensor.data()[i] = std::byte{tensor.data()[i] != std::byte{0}};
    }
  }
  return tensor.freeze();
}

std::string format_npy(const Tensor& tensor) {
  std::string_view name;
  for (const TypeName& known : kTypeNames) {
    if (known.dtype == tensor.dtype() && known.is_exact()) name = known.name;
  }
  if (name.empty()) {
    fail(ErrorCode::kUnimplemented, "format_npy: .npy files have no type for ", tensor.dtype(),
         "; expected float16, float32, float64, int32, int64, uint8 or bool; call cast()");
  }
  std::string dims;
  for (std::int64_t dim : tensor.shape()) dims += concat(dims.empty() ? "" : " ", dim, ",");
  if (tensor.rank() > 1) dims.pop_back();
  std::string header = concat("{'descr': '", size_of(tensor.dtype()) == 1 ? '|' : '<', name,
                              "', 'fortran_order': False, 'shape': (", dims, "), }");
  constexpr std::size_t kAlignment = 64;
  const std::size_t before = kMagic.size() + 4;
  const std::size_t unpadded = before + header.size() + 1;
  header.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  header.push_back('\n');
  std::string bytes(kMagic);
  bytes += std::string_view("\x01\0", 2);
  internal::put_little_endian(bytes, static_cast<std::uint16_t>(header.size()));
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(tensor.bytes().data()), tensor.num_bytes());
  return bytes;
}

Tensor read_npy(const std::string& path) {
  const std::string bytes = internal::read_file_for("read_npy", path);
  return internal::name_when_out_of_memory(path, [&] { return parse_npy(bytes, path); });
}

void write_npy(const std::string& path, const Tensor& tensor) {
  write_file_atomically(path, format_npy(tensor));
}

// A zip file consists of members (local header, name, extra field, data), the central directory
// with an entry per member, and an end record with the offset of the directory.

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

struct Entry {
  std::string name;
  std::uint16_t flags = 0;
  std::uint16_t method = 0;
  std::uint32_t crc = 0;
  std::uint32_t packed_bytes = 0;
  std::uint32_t bytes = 0;
  std::uint32_t local_offset = 0;
  std::size_t data_offset = 0;  // offset of the data, after the local header

  std::size_t end() const { return data_offset + packed_bytes; }
};

void require_record(std::string_view bytes, std::size_t offset, std::string_view magic,
                    std::size_t size, const std::string& source) {
  const bool fits = offset <= bytes.size() && size <= bytes.size() - offset;
  if (fits && bytes.substr(offset, magic.size()) == magic) return;
  fail_at(source, offset, "expected a zip record of ", size, " bytes that begins with PK, got ",
          fits ? "other bytes" : "the end of the file");
}

std::size_t find_end_record(std::string_view bytes, const std::string& source) {
  const std::size_t found = bytes.rfind(kEndMagic);
  if (found == std::string_view::npos || bytes.size() - found < kEndBytes) {
    if (bytes.substr(0, 2) != "PK") {
      fail_at(source, 0, "expected a .npz file, got ", internal::describe_file(bytes));
    }
    fail_at(source, bytes.size(),
            "expected the end record of a zip file, got none; the file is truncated");
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

// Sets the entry's data_offset from its local header. Throws if the file lacks some of the
// member's data.
void find_data(std::string_view bytes, Entry& entry, const std::string& source) {
  const std::size_t offset = entry.local_offset;
  if ((entry.flags & 1) != 0 || entry.packed_bytes == UINT32_MAX || entry.bytes == UINT32_MAX ||
      (entry.method != 0 && entry.method != 8)) {
    fail(ErrorCode::kUnimplemented, source, ": offset ", offset,
         ": expected a stored or deflated member without encryption or zip64, got method ",
         entry.method, ", flags ", entry.flags, "; use numpy.savez with smaller arrays");
  }
  require_record(bytes, offset, kLocalMagic, kLocalBytes, source);
  const std::size_t begin = offset + kLocalBytes +
                            get_little_endian<std::uint16_t>(bytes, offset + 26) +
                            get_little_endian<std::uint16_t>(bytes, offset + 28);
  if (begin > bytes.size() || entry.packed_bytes > bytes.size() - begin) {
    fail_at(source, begin, "the file ends within a member; expected ", entry.packed_bytes,
            " bytes");
  }
  entry.data_offset = begin;
}

std::string member_name(const Entry& entry, const std::string& source) {
  return concat(source, ": member '", entry.name, "'");
}

// Throws if members overlap, because a small file whose members share bytes could unpack to any
// size.
void require_no_overlap(const std::vector<Entry>& entries, const std::string& source) {
  std::vector<const Entry*> by_place;
  for (const Entry& entry : entries) by_place.push_back(&entry);
  std::ranges::sort(by_place, {}, &Entry::local_offset);
  for (std::size_t i = 1; i < by_place.size(); ++i) {
    const Entry& before = *by_place[i - 1];
    if (by_place[i]->local_offset >= before.end()) continue;
    fail_at(member_name(*by_place[i], source), by_place[i]->local_offset,
            "members overlap; expected this member to begin after the end of '", before.name,
            "' at ", before.end());
  }
}

/// Returns the name without ".npy", or nullopt for a member that is not an array.
std::optional<std::string> array_name(const Entry& entry) {
  if (!entry.name.ends_with(kSuffix)) return std::nullopt;
  return entry.name.substr(0, entry.name.size() - kSuffix.size());
}

/// Returns the entries called `names`, in that order, or the entries of all arrays if `names` is
/// empty.
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
      fail(ErrorCode::kNotFound, source, ": there is no array named '", name,
           "'; expected one of [", join(known), "]");
    }
    wanted.push_back(*found);
  }
  return wanted;
}

// Returns the members to read; checks all of them before any is unpacked.
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
    fail_at(source, begin, "expected a member of ", entry.bytes, " bytes, got ", content.size());
  }
  const std::uint32_t crc = internal::crc32(content);
  if (crc != entry.crc) {
    fail_at(source, begin, "the member's checksum is wrong; expected ", entry.crc, ", got ", crc);
  }
  return content;
}

// Appends the fields that a local header and a directory entry share.
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
  internal::require(!name.empty() && name.size() <= kMaxName && seen.insert(name).second,
                    "format_npz: expected distinct names of 1 to ", kMaxName, " bytes, got '", name,
                    "', which is empty, too long or repeated");
}

}  // namespace

const Tensor& NamedTensors::at(std::string_view name) const {
  for (const auto& [own, tensor] : *this) {
    if (own == name) return tensor;
  }
  const auto known = internal::names_of(*this, [](const auto& named) { return named.first; });
  fail(ErrorCode::kNotFound, "NamedTensors: there is no array named '", name,
       "'; expected one of [", join(known), "]");
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
    log_warning(concat(source, ": skipped ", join(left_out),
                       "; to choose the arrays, set NpzOptions::names"));
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
    internal::require(
        bytes.size() + content.size() < UINT32_MAX && seen.size() < UINT16_MAX,
        "format_npz: expected less than 4 GiB and fewer than 65535 arrays, exceeded with array '",
        name, "'; call write_npy() for each array");
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
