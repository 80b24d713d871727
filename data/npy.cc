// One array of numpy as a file.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/npy.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstring>

#include "core/file.h"
#include "core/file_kind.h"
#include "data/format_bytes.h"
#include "data/input_file.h"

// "\x93NUMPY", major, minor, header length (2 bytes in version 1, else 4), the header: a Python
// dictionary such as {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } and spaces up to a
// newline. Then the elements.

namespace tutti {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

/// A type of numpy and that of its tensor. Integers that no tensor has become the next wider type.
struct TypeName {
  DType dtype;
  std::string_view name;  // without byte order
  std::size_t bytes;      // of an element of the file

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
  std::size_t end = 0;  // where the elements begin
};

/// Reads the dictionary from left to right.
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
        fail_at(start, "expected the keys descr, fortran_order and shape, got '", key, "'");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (std::count(seen.begin(), seen.end(), true) != 3) {
      fail_at(place_, "the header lacks a key; expected descr, fortran_order and shape");
    }
    return header;
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail_at(std::size_t offset, const Parts&... parts) const {
    fail(ErrorCode::kDataLoss, source_, ": offset ", offset, ": ", parts...);
  }

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
      fail_at(place_, "expected '", wanted, "' in the npy header, got ",
              place_ == bytes_.size() ? std::string("its end") : std::string(1, bytes_[place_]));
    }
  }

  std::string_view text() {
    const char quote = accept('"') ? '"' : (expect('\''), '\'');
    const std::size_t start = place_;
    const std::size_t end = bytes_.find(quote, start);
    if (end == std::string_view::npos) fail_at(start, "expected a quoted text, got no end of it");
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
    fail_at(place_, "expected True or False for fortran_order");
  }

  void read_type(Header& header) {
    skip_spaces();
    const std::size_t start = place_;
    if (start < bytes_.size() && bytes_[start] == '[') {
      fail(ErrorCode::kUnimplemented, source_, ": offset ", start,
           ": structured arrays have no tensor type; expected one plain type; try to save each "
           "field on its own");
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
         "' have no tensor type; expected f2, f4, f8, i1, i2, i4, i8, u1, u2, u4 or b1; try "
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
      if (error != std::errc() || dim < 0) fail_at(place_, "expected a dimension of 0 or more");
      place_ += static_cast<std::size_t>(end - first);
      accept('L');  // a long of Python 2
      dims.push_back(dim);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    if (dims.size() > static_cast<std::size_t>(Shape::kMaxRank)) {
      fail_at(start, "expected at most ", Shape::kMaxRank, " dimensions, got ", dims.size());
    }
    if (!Shape::count(dims)) {
      fail_at(start, "expected dimensions of a file that exists, got (", tutti::join(dims), ")");
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
    fail(ErrorCode::kDataLoss, source, ": offset ", bytes.size(),
         ": the file ends within its header; expected ", size, " bytes, got ", bytes.size());
  };
  if (!kMagic.starts_with(bytes.substr(0, kMagic.size())) || bytes.empty()) {
    fail(ErrorCode::kDataLoss, source, ": offset 0: expected a .npy file, got ",
         internal::describe_file(bytes));
  }
  require(kMagic.size() + 2);
  const int version = static_cast<unsigned char>(bytes[kMagic.size()]);
  if (version < 1 || version > 3) {
    fail(ErrorCode::kDataLoss, source, ": offset ", kMagic.size(),
         ": expected version 1, 2 or 3, got ", version);
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
    fail(ErrorCode::kDataLoss, source, ": expected dimensions of a file that exists, got ",
         header.shape);
  }
  return size;
}

// Element number i in C order is stored at the sum of its indices times Fortran's strides.
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

// The elements of the file, in C order and this machine's bytes.
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
    fail(ErrorCode::kDataLoss, source, ": offset ", header.end + std::min(found, expected), ": ",
         found < expected ? "the file ends early" : "the file goes on after its last element",
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
  if (header.type.dtype == DType::kBool) {  // any other byte is no bool
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
    fail(ErrorCode::kUnimplemented, "format_npy: numpy's files have no type for ", tensor.dtype(),
         "; expected float16, float32, float64, int32, int64, uint8 or bool; try cast()");
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

}  // namespace tutti
