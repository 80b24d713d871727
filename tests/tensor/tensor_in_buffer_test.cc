// Tensors of bytes that were there before: shared, never written through, never beyond the end.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor_impl.h"

#include <cstring>

#include "tests/support/tensor_matchers.h"

namespace tutti {
namespace {

using testing::expect_error;
using testing::expect_tensor;

/// 64 floats, 0 to 63.
BufferRef numbered_buffer() {
  BufferRef buffer = BufferRef::allocate(256);
  for (int i = 0; i < 64; ++i) {
    const auto value = static_cast<float>(i);
    std::memcpy(buffer->data() + 4 * i, &value, 4);
  }
  return buffer;
}

TEST(TensorInBuffer, HasTheBytesWhereTheyAreAndKeepsThem) {
  BufferRef buffer = numbered_buffer();
  const std::byte* const place = buffer->data() + 64;
  const Tensor tensor = tensor_in_buffer(buffer, 64, {2, 2}, DType::kFloat32);
  buffer = BufferRef();
  EXPECT_EQ(tensor.bytes().data(), place);
  expect_tensor(tensor, {2, 2}, {16, 17, 18, 19});
  EXPECT_EQ(tensor_in_buffer(numbered_buffer(), 256, {0}, DType::kFloat64).num_elements(), 0);
}

TEST(TensorInBuffer, WhoeverTakesItOverCopiesItWhileOthersHaveIt) {
  const BufferRef buffer = numbered_buffer();
  MutableTensor variable({64}, DType::kFloat32, Device{});
  variable.assign(tensor_in_buffer(buffer, 0, {64}, DType::kFloat32));
  EXPECT_EQ(variable.data(), buffer->data());
  variable.make_unique();
  EXPECT_NE(variable.data(), buffer->data());
  variable.span<float>()[3] = -1.0f;
  float kept = 0.0f;
  std::memcpy(&kept, buffer->data() + 12, 4);
  EXPECT_EQ(kept, 3.0f);
}

TEST(TensorInBuffer, APartIsCopiedToMemoryThatNobodyElseHas) {
  const BufferRef buffer = numbered_buffer();
  MutableTensor variable({4}, DType::kFloat32, Device{});
  const std::byte* const own = variable.data();
  variable.assign(tensor_in_buffer(buffer, 64, {4}, DType::kFloat32));
  EXPECT_EQ(variable.data(), own);
  const Tensor read = variable.freeze();
  variable.assign(tensor_in_buffer(buffer, 128, {4}, DType::kFloat32));
  EXPECT_NE(variable.data(), own);
  EXPECT_NE(variable.data(), buffer->data() + 128);
  expect_tensor(read, {4}, {16, 17, 18, 19});
  expect_tensor(variable.freeze(), {4}, {32, 33, 34, 35});
}

TEST(TensorInBuffer, RefusesPlacesThatAreNone) {
  const BufferRef buffer = numbered_buffer();
  const auto make = [&](std::size_t offset, const Shape& shape) {
    (void)tensor_in_buffer(buffer, offset, shape, DType::kFloat32);
  };
  make(192, {16});
  expect_error(ErrorCode::kInvalidArgument, {"68 bytes", "buffer of 256", "byte 192"},
               [&] { make(192, {17}); });
  expect_error(ErrorCode::kInvalidArgument, {"byte 320"}, [&] { make(320, {0}); });
  expect_error(ErrorCode::kInvalidArgument, {"multiple of 64", "byte 32"}, [&] { make(32, {1}); });
  expect_error(ErrorCode::kInvalidArgument, {"buffer of 0 bytes"},
               [] { (void)tensor_in_buffer({}, 0, {1}, DType::kFloat32); });
}

}  // namespace
}  // namespace tutti
