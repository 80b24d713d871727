// The IDX format of MNIST.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/image_sets.h"

#include <algorithm>
#include <cstring>

#include "tutti/data/input_file.h"
#include "tutti/data/readers.h"

namespace tutti {
namespace {

constexpr std::size_t kMagicBytes = 4;

template <class... Parts>
[[noreturn]] void fail_at(const std::string& source, std::size_t offset, const Parts&... parts) {
  fail(ErrorCode::kDataLoss, source, ": offset ", offset, ": ", parts...);
}

unsigned byte_at(std::string_view bytes, std::size_t offset) {
  return static_cast<unsigned char>(bytes[offset]);
}

DType element_type(std::string_view bytes, const std::string& source) {
  constexpr std::size_t kOffset = 2;
  switch (const unsigned code = byte_at(bytes, kOffset)) {
    case 0x08:
      return DType::kUInt8;
    case 0x0C:
      return DType::kInt32;
    case 0x0D:
      return DType::kFloat32;
    case 0x0E:
      return DType::kFloat64;
    case 0x09:
    case 0x0B:
      fail(ErrorCode::kUnimplemented, source, ": offset ", kOffset, ": IDX elements of type ",
           code == 0x09 ? "0x09 (signed byte)" : "0x0B (short)",
           " have no tensor type; expected 0x08 (unsigned byte), 0x0C (int), 0x0D (float) or 0x0E "
           "(double); try to convert the file");
    default:
      fail_at(source, kOffset,
              "wrong IDX magic number; expected element type 0x08, 0x0C, 0x0D or "
              "0x0E, got ",
              code);
  }
}

Shape read_shape(std::string_view bytes, const std::string& source) {
  const unsigned rank = byte_at(bytes, 3);
  if (rank > static_cast<unsigned>(Shape::kMaxRank)) {
    fail_at(source, 3, "expected at most ", Shape::kMaxRank, " dimensions, got ", rank);
  }
  if (bytes.size() < kMagicBytes + 4 * std::size_t{rank}) {
    fail_at(source, bytes.size(), "the file ends within its header; expected ",
            kMagicBytes + 4 * std::size_t{rank}, " bytes for ", rank, " dimensions, got ",
            bytes.size());
  }
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  for (std::size_t i = 0; i < rank; ++i) {
    for (std::size_t j = 0; j < 4; ++j) {
      dims[i] = dims[i] << 8 | byte_at(bytes, kMagicBytes + 4 * i + j);
    }
  }
  const std::span<const std::int64_t> all(dims.data(), rank);
  if (!Shape::count(all)) {
    fail_at(source, kMagicBytes, "expected dimensions of a file that exists, got [", join(all),
            "]");
  }
  return Shape(all);
}

std::size_t checked_data_bytes(const Shape& shape, DType dtype, const std::string& source) {
  std::size_t size = 0;
  if (__builtin_mul_overflow(static_cast<std::size_t>(shape.num_elements()), size_of(dtype),
                             &size)) {
    fail_at(source, kMagicBytes, "expected dimensions of a file that exists, got ", shape);
  }
  return size;
}

template <class Bits>
void reverse_each(std::byte* data, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += sizeof(Bits)) {
    std::reverse(data + i, data + i + sizeof(Bits));
  }
}

void from_big_endian(std::byte* data, std::size_t bytes, DType dtype) {
  if (size_of(dtype) == 4) reverse_each<std::uint32_t>(data, bytes);
  if (size_of(dtype) == 8) reverse_each<std::uint64_t>(data, bytes);
}

}  // namespace

Tensor parse_idx(std::string_view bytes, const std::string& source) {
  if (bytes.size() < kMagicBytes) {
    fail_at(source, bytes.size(), "the file ends within its header; expected at least ",
            kMagicBytes, " bytes, got ", bytes.size());
  }
  if (byte_at(bytes, 0) != 0 || byte_at(bytes, 1) != 0) {
    fail_at(source, 0, "wrong IDX magic number; expected two zero bytes, got ", byte_at(bytes, 0),
            " and ", byte_at(bytes, 1));
  }
  const DType dtype = element_type(bytes, source);
  const Shape shape = read_shape(bytes, source);
  const std::size_t header = kMagicBytes + 4 * static_cast<std::size_t>(shape.rank());
  const std::size_t expected = checked_data_bytes(shape, dtype, source);
  const std::size_t found = bytes.size() - header;
  if (found != expected) {
    fail_at(source, header + std::min(found, expected),
            found < expected ? "the file ends early" : "the file goes on after its last element",
            "; expected ", expected, " bytes of elements for shape ", shape, " of ", dtype,
            ", got ", found);
  }
  MutableTensor tensor(shape, dtype, Device{});
  if (expected > 0) {
    std::memcpy(tensor.data(), bytes.data() + header, expected);
    from_big_endian(tensor.data(), expected, dtype);
  }
  return tensor.freeze();
}

Tensor read_idx(const std::string& path, const InputLimits& limits) {
  return internal::name_when_out_of_memory(
      path, [&] { return parse_idx(internal::read_plain_or_gzip(path, limits), path); });
}

}  // namespace tutti
