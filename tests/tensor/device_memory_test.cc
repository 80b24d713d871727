// Virtual CPU devices with memory of their own: counting, limits, copies instead of sharing.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/device_memory.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/support/tensor_matchers.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/variable_memory.h"

namespace tutti {
namespace {

using testing::expect_error;
using testing::expect_tensor;

namespace device_memory_test {

constexpr Device kOwn{DeviceType::kCpu, 61};
constexpr Device kOther{DeviceType::kCpu, 62};
constexpr std::int64_t kKibi = 256;  // float32 elements of 1 KiB

/// kOwn has a memory of its own while it lives.
struct OwnMemory {
  explicit OwnMemory(std::size_t bytes = kUnlimitedMemory) {
    set_memory_limit(kOwn, bytes);
    trim_allocator_cache(kOwn);
    reset_peak_memory(kOwn);
  }
  ~OwnMemory() { clear_memory_limit(kOwn); }
};

Tensor zeros_there(std::int64_t kibibytes) {
  return Tensor::zeros({kibibytes * kKibi}, DType::kFloat32, kOwn);
}

}  // namespace device_memory_test

using namespace device_memory_test;

TEST(DeviceMemory, CountsWhatIsInUseAndItsPeak) {
  const OwnMemory memory;
  EXPECT_EQ(device_memory(kOwn).in_use, 0u);
  {
    const Tensor a = zeros_there(4);
    const Tensor b = zeros_there(8);
    EXPECT_EQ(device_memory(kOwn).in_use, 12u << 10);
  }
  EXPECT_EQ(device_memory(kOwn).in_use, 0u);
  EXPECT_EQ(device_memory(kOwn).peak, 12u << 10);
  EXPECT_EQ(device_memory(kOwn).limit, kUnlimitedMemory);
  const Tensor c = zeros_there(1);
  reset_peak_memory(kOwn);
  EXPECT_EQ(device_memory(kOwn).peak, 1u << 10);
}

TEST(DeviceMemory, OtherDevicesAreNotCounted) {
  const OwnMemory memory;
  const std::size_t shared = device_memory(kOther).in_use;
  const Tensor here = Tensor::zeros({kKibi}, DType::kFloat32, kOther);
  EXPECT_EQ(device_memory(kOwn).in_use, 0u);
  EXPECT_EQ(device_memory(kOther).in_use, shared + (1u << 10));
}

TEST(DeviceMemory, RequestBeyondTheLimitIsRefusedWithNumbers) {
  const OwnMemory memory(16u << 10);
  std::optional<Tensor> first = zeros_there(12);
  expect_error(ErrorCode::kResourceExhausted,
               {"cpu:61: no memory for 8192 bytes", "12288 in use", "limit 16384",
                "try a smaller batch, or parts of the model on several devices"},
               [] { zeros_there(8); });
  EXPECT_EQ(device_memory(kOwn).in_use, 12u << 10);  // the failure took nothing
  EXPECT_EQ(device_memory(kOwn).peak, 12u << 10);
  first.reset();
  EXPECT_NO_THROW(zeros_there(8));  // what waits in the cache makes room
}

TEST(DeviceMemory, ValuesFromElsewhereAreCopied) {
  const Tensor x = Tensor::full({kKibi}, 2.0, DType::kFloat32, kOther);
  EXPECT_EQ(x.to(kOwn).address(), x.address());  // CPU devices share the host's memory
  const OwnMemory memory;
  const Tensor moved = x.to(kOwn);
  EXPECT_NE(moved.address(), x.address());
  EXPECT_EQ(moved.to_doubles(), x.to_doubles());
  EXPECT_EQ(device_memory(kOwn).in_use, 1u << 10);
  EXPECT_NE(moved.to(kOther).address(), moved.address());
}

TEST(DeviceMemory, AVariableTakesItsBytesOnce) {
  const OwnMemory memory;
  const Tensor initial = Tensor::zeros({kKibi}, DType::kFloat32, kOther);
  const auto variable = std::make_shared<VariableMemory>(initial, kOwn);
  EXPECT_EQ(device_memory(kOwn).in_use, 1u << 10);
  EXPECT_EQ(device_memory(kOwn).peak, 1u << 10);
  (void)variable->writable();  // nobody else has it
  EXPECT_EQ(device_memory(kOwn).peak, 1u << 10);
  variable->assign(negate(variable->read()));
  EXPECT_EQ(device_memory(kOwn).in_use, 1u << 10);
}

TEST(DeviceMemory, GpusHaveLimitsOfTheirOwn) {
  expect_error(ErrorCode::kUnavailable, {"gpu:63"}, [] {
    set_memory_limit({DeviceType::kGpu, 63}, 1);
  });
}

}  // namespace
}  // namespace tutti
