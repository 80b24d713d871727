// Implements PayloadWriter and PayloadReader.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/protocol/tensor_payload.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "tensor/tensor_impl.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kPlace = 64;
/// Tensors below this size, in bytes, are copied into a common chunk, because a separate chunk for
/// each tensor would cost more.
constexpr std::size_t kCopiedBelow = 4096;
/// A tensor of at least this size, in bytes, stays in the receive buffer unless the buffer is more
/// than kLargestPart times as large.
constexpr std::size_t kWorthSharing = 65536;
constexpr std::size_t kLargestPart = 4;
constexpr std::int64_t kMostElements = std::int64_t{1} << 48;

std::size_t padded(std::size_t size) { return (size + kPlace - 1) / kPlace * kPlace; }

template <class... Parts>
[[noreturn]] void refuse_payload(const Parts&... parts) {
  fail(ErrorCode::kDataLoss, "payload of tensors: ", parts...);
}

/// Throws kDataLoss for bools that are neither 0 nor 1.
void check_values(const Tensor& tensor) {
  if (tensor.dtype() == DType::kBool &&
      std::ranges::any_of(tensor.bytes(), [](std::byte each) { return each > std::byte{1}; })) {
    refuse_payload("expected bools of 0 or 1, got another value");
  }
}

}  // namespace

void PayloadWriter::put(const Tensor& tensor) {
  const Tensor host = tensor.to(Device{});
  std::span<const std::byte> bytes = host.bytes();
  if (bytes.size() >= kCopiedBelow) {
    flush();
    const std::size_t whole = bytes.size() / kPlace * kPlace;
    if (!tensors_) tensors_ = std::make_shared<std::vector<Tensor>>();
    tensors_->push_back(host);
    pieces_.push_back({bytes.first(whole), tensors_});
    bytes = bytes.subspan(whole);
  }
  small_.insert(small_.end(), bytes.begin(), bytes.end());
  small_.resize(padded(small_.size()));
}

void PayloadWriter::flush() {
  if (small_.empty()) return;
  auto owner = std::make_shared<const std::vector<std::byte>>(std::exchange(small_, {}));
  const std::span<const std::byte> bytes = *owner;
  pieces_.push_back({bytes, std::move(owner)});
}

std::vector<SharedBytes> PayloadWriter::take() {
  flush();
  tensors_.reset();
  return std::exchange(pieces_, {});
}

PayloadReader::PayloadReader(const Packet& packet, InPlace in_place)
    : pieces_(packet.payload), in_place_(in_place), left_(packet.payload_bytes()) {}

Shape checked_shape(std::span<const std::int64_t> dims) {
  if (dims.size() > static_cast<std::size_t>(Shape::kMaxRank)) {
    refuse_payload("expected a rank of at most ", Shape::kMaxRank, ", got ", dims.size());
  }
  std::int64_t product = 1;  // product of the nonzero dimensions; must not overflow
  for (const std::int64_t dim : dims) {
    if (dim < 0 || dim > kMostElements / product) {
      refuse_payload("expected a valid shape, got dimension ", dim, " after ", product,
                     " elements");
    }
    product *= std::max<std::int64_t>(dim, 1);
  }
  return Shape(dims);
}

DType checked_dtype(std::uint64_t number) {
  if (number > static_cast<std::uint64_t>(DType::kFloat16))
    refuse_payload("expected the number of a dtype, got ", number);
  return static_cast<DType>(number);
}

Tensor PayloadReader::take(std::uint64_t dtype_number, std::span<const std::int64_t> dims) {
  const DType dtype = checked_dtype(dtype_number);
  const Shape shape = checked_shape(dims);
  const std::size_t size = static_cast<std::size_t>(shape.num_elements()) * size_of(dtype);
  if (padded(size) > left_) {
    refuse_payload("expected ", padded(size), " bytes for a tensor ", shape, " of ", dtype,
                   ", got only ", left_);
  }
  Tensor tensor = take_in_place(shape, dtype, size);
  if (!tensor.defined()) {
    MutableTensor own(shape, dtype, Device{});
    copy(own.data(), size);
    tensor = own.freeze();
  }
  copy(nullptr, padded(size) - size);
  check_values(tensor);
  return tensor;
}

/// Returns the next tensor without copying it out of its receive buffer; returns an undefined
/// tensor if the elements must be copied. With InPlace::kLarge, the tensor must fill most of the
/// buffer, because it keeps the whole buffer in memory.
Tensor PayloadReader::take_in_place(const Shape& shape, DType dtype, std::size_t size) {
  if (pieces_.empty() || size == 0) return {};
  if (in_place_ == InPlace::kLarge && size < kWorthSharing) return {};
  if (size > pieces_.front().bytes.size() - offset_) return {};
  const BufferRef buffer = buffer_of(pieces_.front());
  if (!buffer) return {};
  if (in_place_ == InPlace::kLarge && size < buffer->size() / kLargestPart) return {};
  const std::byte* const place = pieces_.front().bytes.data() + offset_;
  const auto offset = static_cast<std::size_t>(place - buffer->data());
  if (offset % kPlace != 0) return {};
  copy(nullptr, size);
  return tensor_in_buffer(buffer, offset, shape, dtype);
}

/// Copies `count` bytes to `out`, or skips them if `out` is null. Requires: `count` bytes remain.
void PayloadReader::copy(std::byte* out, std::size_t count) {
  left_ -= count;
  while (count > 0) {
    const auto rest = pieces_.front().bytes.subspan(offset_);
    const std::size_t now = std::min(count, rest.size());
    if (out != nullptr && now > 0) {
      std::memcpy(out, rest.data(), now);
      out += now;
    }
    count -= now;
    offset_ += now;
    if (now == rest.size()) {
      pieces_ = pieces_.subspan(1);
      offset_ = 0;
    }
  }
}

void PayloadReader::finish() const {
  if (left_ > 0) refuse_payload("got ", left_, " bytes more than the tensors of the head need");
}

}  // namespace tutti::internal
