// Values of replicas as bytes.
// SPDX-License-Identifier: Apache-2.0
//
// Number of replicas; per replica the number of values; per value its kind and, unless it is none,
// a tensor: dtype, number of dimensions, dimensions, elements. Slices are two tensors and the
// dimensions of the whole.
#include "strategy/multi_worker/worker_team.h"

#include <array>
#include <cstring>
#include <iterator>

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

enum class Kind : std::uint8_t { kNone = 0, kDense = 1, kSlices = 2 };

class Writer {
 public:
  void number(std::int64_t value) { append(&value, sizeof value); }
  void shape(const Shape& shape) {
    number(shape.rank());
    for (const std::int64_t dim : shape) number(dim);
  }
  void tensor(const Tensor& tensor) {
    const Tensor on_host = tensor.to(Device{});
    number(static_cast<std::int64_t>(on_host.dtype()));
    shape(on_host.shape());
    append(on_host.bytes().data(), on_host.bytes().size());
  }
  void value(const Gradient& value) {
    if (value.is_none()) return number(static_cast<std::int64_t>(Kind::kNone));
    if (value.is_dense()) {
      number(static_cast<std::int64_t>(Kind::kDense));
      return tensor(value.dense());
    }
    number(static_cast<std::int64_t>(Kind::kSlices));
    const IndexedSlices slices = value.slices();
    tensor(slices.values);
    tensor(slices.indices);
    shape(slices.dense_shape);
  }
  std::string take() { return std::move(bytes_); }

 private:
  void append(const void* data, std::size_t size) {
    if (size > 0) bytes_.append(static_cast<const char*>(data), size);
  }

  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  std::int64_t number(std::int64_t limit) {
    std::int64_t value = 0;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    if (value < 0 || value > limit) fail_with(concat("the number ", value, " above ", limit));
    return value;
  }
  /// A count of things that take at least `bytes_each`.
  std::size_t count(std::size_t bytes_each) {
    return static_cast<std::size_t>(number(static_cast<std::int64_t>(rest_.size() / bytes_each)));
  }
  Shape shape() {
    std::array<std::int64_t, Shape::kMaxRank> dims{};
    const auto rank = static_cast<std::size_t>(number(Shape::kMaxRank));
    for (std::size_t axis = 0; axis < rank; ++axis) dims[axis] = number(std::int64_t{1} << 40);
    return Shape(std::span<const std::int64_t>(dims.data(), rank));
  }
  Tensor tensor() {
    const auto dtype =
        static_cast<DType>(number(static_cast<std::int64_t>(std::size(kAllDTypes)) - 1));
    const Shape dims = shape();
    std::size_t size = size_of(dtype);
    for (const std::int64_t dim : dims) {
      if (__builtin_mul_overflow(size, static_cast<std::size_t>(dim), &size)) {
        fail_with("more elements than memory");
      }
    }
    const std::string_view bytes = take(size);
    return Tensor::from_bytes(dims, dtype, std::as_bytes(std::span(bytes)));
  }
  Gradient value() {
    switch (static_cast<Kind>(number(static_cast<std::int64_t>(Kind::kSlices)))) {
      case Kind::kNone:
        return {};
      case Kind::kDense:
        return tensor();
      case Kind::kSlices:
        break;
    }
    Tensor values = tensor();
    Tensor indices = tensor();
    return IndexedSlices{std::move(values), std::move(indices), shape()};
  }
  void end() const {
    if (!rest_.empty()) fail_with(concat(rest_.size(), " bytes too many"));
  }

 private:
  std::string_view take(std::size_t size) {
    if (size > rest_.size()) fail_with(concat(size, " bytes expected, ", rest_.size(), " left"));
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }
  [[noreturn]] void fail_with(const std::string& what) const {
    fail(ErrorCode::kDataLoss, "the values of another worker's replicas: ", what,
         "; expected what encode_values() made; try the same version of tutti on all workers");
  }

  std::string_view rest_;
};

}  // namespace

std::string encode_values(const ReplicaValues& values) {
  Writer writer;
  writer.number(static_cast<std::int64_t>(values.size()));
  for (const std::vector<Gradient>& replica : values) {
    writer.number(static_cast<std::int64_t>(replica.size()));
    for (const Gradient& value : replica) writer.value(value);
  }
  return writer.take();
}

ReplicaValues decode_values(std::string_view bytes) {
  Reader reader(bytes);
  ReplicaValues values(reader.count(sizeof(std::int64_t)));
  for (std::vector<Gradient>& replica : values) {
    const std::size_t count = reader.count(sizeof(std::int64_t));
    for (std::size_t i = 0; i < count; ++i) replica.push_back(reader.value());
  }
  reader.end();
  return values;
}

}  // namespace tutti::internal
