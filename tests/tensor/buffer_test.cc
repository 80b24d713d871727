// Tests memory of tensors: the caching allocator, limits of devices, tensors in the caller's
// memory, copies that bypass the caches.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "tensor/cpu/vectorized.h"
#include "tensor/tensor_impl.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"
#include "tutti/tensor/device_memory.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/variable_memory.h"

namespace tutti::buffer_test {

using testing::expect_tensor;

TEST(Buffer, IsAlignedForEverySizeAndWastesAtMostAQuarter) {
  for (std::size_t size = 0; size < 5000; size = size * 5 / 4 + 1) {
    const BufferRef buffer = BufferRef::allocate(size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 64, 0u) << size;
    EXPECT_EQ(buffer->size(), size);
    std::memset(buffer->data(), 1, size);  // lets a sanitizer detect a class that is too small
  }
  trim_allocator_cache();
  for (std::size_t size = 257; size < 3'000'000; size = size * 9 / 8 + 1) {
    const std::size_t before = allocator_statistics().in_use;
    const BufferRef buffer = BufferRef::allocate(size);
    const std::size_t taken = allocator_statistics().in_use - before;
    EXPECT_GE(taken, size);
    EXPECT_LE(taken, size + size / 4 + 64) << size;
  }
}

TEST(Buffer, IsReusedAfterItsLastReference) {
  trim_allocator_cache();
  const AllocatorStatistics before = allocator_statistics();
  const std::byte* first = BufferRef::allocate(1000)->data();
  EXPECT_EQ(allocator_statistics().in_use, before.in_use);
  EXPECT_GE(allocator_statistics().cached, 1000u);
  const BufferRef again = BufferRef::allocate(1010);  // the same size class
  EXPECT_EQ(again->data(), first);
  const BufferRef other = BufferRef::allocate(1000);
  EXPECT_NE(other->data(), first);
  const AllocatorStatistics after = allocator_statistics();
  EXPECT_EQ(after.allocations, before.allocations + 3);
  EXPECT_EQ(after.cache_hits, before.cache_hits + 1);
}

TEST(Buffer, CopiesCountAndMovesDoNot) {
  BufferRef a = BufferRef::allocate(10);
  EXPECT_TRUE(a.unique());
  {
    const BufferRef b = a;
    EXPECT_FALSE(a.unique());
    EXPECT_EQ(a.get(), b.get());
  }
  EXPECT_TRUE(a.unique());
  const BufferRef c = std::move(a);
  EXPECT_TRUE(c.unique());
  EXPECT_FALSE(a);  // NOLINT: the state after a move is part of the contract
}

TEST(Buffer, TrimEmptiesTheCache) {
  { const BufferRef buffer = BufferRef::allocate(100'000); }
  EXPECT_GT(allocator_statistics().cached, 0u);
  trim_allocator_cache();
  EXPECT_EQ(allocator_statistics().cached, 0u);
}

TEST(Buffer, CacheStaysBelowItsLimitAndKeepsWhatWasUsedLast) {
  trim_allocator_cache();
  constexpr std::size_t kPiece = std::size_t{384} << 20;  // untouched memory costs nothing
  {
    std::vector<BufferRef> buffers;
    for (std::size_t i = 0; i < 4; ++i)
      buffers.push_back(BufferRef::allocate(kPiece + i * kPiece / 4));
  }
  const AllocatorStatistics statistics = allocator_statistics();
  EXPECT_LE(statistics.cached, kMaxCachedBytes);
  EXPECT_GT(statistics.cached, 0u);
  const BufferRef last = BufferRef::allocate(kPiece + 3 * kPiece / 4);
  EXPECT_EQ(allocator_statistics().cache_hits, statistics.cache_hits + 1);
  trim_allocator_cache();
}

TEST(Buffer, PeakFollowsTheLargestUseAndImpossibleSizesAreRefused) {
  const std::size_t in_use = allocator_statistics().in_use;
  { const BufferRef buffer = BufferRef::allocate(50'000'000); }
  EXPECT_GE(allocator_statistics().peak_in_use, in_use + 50'000'000);
  EXPECT_ERROR(BufferRef::allocate(std::size_t{1} << 62), kResourceExhausted, "no memory");
}

TEST(Buffer, ThreadsShareTheCache) {
  // Each thread makes tensors of many sizes, keeps some alive, and passes some to another thread
  // for release.
  constexpr int kThreads = 4;
  std::vector<std::vector<Tensor>> handed(kThreads);
  const std::size_t in_use = allocator_statistics().in_use;
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.push_back(Executor::system().start("allocator-test", [&handed, t] {
        std::vector<Tensor> alive(16);
        for (int i = 0; i < 2000; ++i) {
          const std::int64_t size = 1 + (i * 37 + t * 11) % 3000;
          const Tensor tensor = Tensor::full({size}, i);
          const Tensor sum = tensor + alive.front().defined();
          alive[static_cast<std::size_t>(i) % alive.size()] = sum;
          if (i % 100 == 0) handed[static_cast<std::size_t>(t)].push_back(tensor);
        }
      }));
    }
  }
  double sum = 0.0;
  for (const auto& tensors : handed) {
    for (const Tensor& tensor : tensors) sum += tensor.to_doubles().back();
  }
  EXPECT_EQ(sum, kThreads * 19000.0);  // 0 + 100 + ... + 1900, from each thread
  handed.clear();
  EXPECT_EQ(allocator_statistics().in_use, in_use);
}

TEST(Buffer, ReadersOnSeveralThreadsAndThenOneWriter) {
  MutableTensor value({1000}, DType::kFloat32, {});
  std::ranges::fill(value.span<float>(), 1.0f);
  for (int round = 0; round < 50; ++round) {
    std::vector<double> sums(3);
    std::vector<std::unique_ptr<Thread>> threads;
    for (double& sum : sums) {
      threads.push_back(Executor::system().start("reader", [&sum, view = value.freeze()]() mutable {
        const auto elements = view.host_span<float>();
        sum = std::accumulate(elements.begin(), elements.end(), 0.0);
        view = Tensor();
      }));
    }
    value.make_unique();  // while readers may still hold the old storage
    for (float& x : value.span<float>()) x += 1.0f;
    threads.clear();  // joins
    for (double sum : sums) EXPECT_EQ(sum, 1000.0 * (round + 1));
  }
}

TEST(CopyPastCachesTest, CopiesEveryLengthToEveryPlaceAndNothingBesides) {
  constexpr std::byte kUntouched{0xA5};
  std::vector<std::byte> from(700);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (std::size_t begin = 0; begin < 66; ++begin) {
    for (const std::size_t count : {0, 1, 15, 16, 63, 64, 65, 127, 128, 129, 500}) {
      std::vector<std::byte> to(from.size(), kUntouched);
      internal::copy_past_caches(to.data() + begin, from.data() + 3, count);
      internal::finish_copies();
      for (std::size_t i = 0; i < to.size(); ++i) {
        const bool is_copy = i >= begin && i < begin + count;
        ASSERT_EQ(to[i], is_copy ? from[3 + i - begin] : kUntouched)
            << "byte " << i << " of " << count << " from " << begin;
      }
    }
  }
}

/// Returns 64 floats, 0 to 63.
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
  EXPECT_INVALID(make(192, {17}), "68 bytes", "buffer of 256", "byte 192");
  EXPECT_INVALID(make(320, {0}), "byte 320");
  EXPECT_INVALID(make(32, {1}), "multiple of 64", "byte 32");
  EXPECT_INVALID((void)tensor_in_buffer({}, 0, {1}, DType::kFloat32), "buffer of 0 bytes");
}

constexpr Device kOwn{DeviceType::kCpu, 61};
constexpr Device kOther{DeviceType::kCpu, 62};
constexpr std::int64_t kKibi = 256;  // float32 elements in 1 KiB

/// Gives kOwn a separate memory for its lifetime.
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
  EXPECT_ERROR(zeros_there(8), kResourceExhausted, "cpu:61: no memory for 8192 bytes",
               "12288 in use", "limit 16384",
               "try a smaller batch, or parts of the model on several devices");
  EXPECT_EQ(device_memory(kOwn).in_use, 12u << 10);  // the failed call allocated nothing
  EXPECT_EQ(device_memory(kOwn).peak, 12u << 10);
  first.reset();
  EXPECT_NO_THROW(zeros_there(8));  // the cached memory is released to make room
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
  (void)variable->writable();  // not shared
  EXPECT_EQ(device_memory(kOwn).peak, 1u << 10);
  variable->assign(negate(variable->read()));
  EXPECT_EQ(device_memory(kOwn).in_use, 1u << 10);
}

TEST(DeviceMemory, GpusHaveLimitsOfTheirOwn) {
  EXPECT_ERROR(set_memory_limit({DeviceType::kGpu, 63}, 1), kUnavailable, "gpu:63");
}

}  // namespace tutti::buffer_test
