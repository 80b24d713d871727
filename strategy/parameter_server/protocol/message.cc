// Serializes and parses messages, after checking their lengths.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/protocol/message.h"

#include <algorithm>
#include <limits>

namespace tutti::internal {

std::vector<std::byte> serialized(const google::protobuf::MessageLite& message,
                                  std::size_t longest) {
  const std::size_t size = message.ByteSizeLong();
  constexpr std::size_t kMost = std::numeric_limits<int>::max();  // limit of protobuf
  if (size > std::min(longest, kMost)) {
    fail(ErrorCode::kResourceExhausted, message.GetTypeName(), ": expected a message of at most ",
         std::min(longest, kMost), " bytes, got ", size,
         "; use tensors for large data, or several requests");
  }
  std::vector<std::byte> bytes(size);
  message.SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(bytes.data()));
  return bytes;
}

void parse(std::span<const std::byte> bytes, google::protobuf::MessageLite& message) {
  const bool fits = bytes.size() <= static_cast<std::size_t>(std::numeric_limits<int>::max());
  if (fits && message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  fail(ErrorCode::kDataLoss, message.GetTypeName(), ": expected a message of this type, got ",
       bytes.size(), " bytes that cannot be parsed");
}

void put_head(const TensorSpec& spec, v1::TensorHead& out) {
  out.set_dtype(static_cast<std::uint32_t>(spec.dtype));
  out.mutable_dims()->Add(spec.shape.begin(), spec.shape.end());
}

TensorSpec spec_of(const v1::TensorHead& in) {
  const std::span dims(in.dims().data(), static_cast<std::size_t>(in.dims_size()));
  return {checked_shape(dims), checked_dtype(in.dtype())};
}

void put_tensor(const Tensor& tensor, PayloadWriter& payload, v1::TensorHead& out) {
  if (!tensor.defined()) {
    fail(ErrorCode::kInvalidArgument,
         "message: expected a tensor with a value, got an undefined tensor");
  }
  put_head({tensor.shape(), tensor.dtype()}, out);
  payload.put(tensor);
}

Tensor get_tensor(const v1::TensorHead& in, PayloadReader& payload) {
  return payload.take(in.dtype(), {in.dims().data(), static_cast<std::size_t>(in.dims_size())});
}

}  // namespace tutti::internal
