// The caching allocator: alignment, reuse, statistics, limits, threads.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {
namespace {

TEST(Buffer, IsAlignedForEverySize) {
  for (std::size_t size = 0; size < 5000; size = size * 5 / 4 + 1) {
    const BufferRef buffer = BufferRef::allocate(size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 64, 0u) << size;
    EXPECT_EQ(buffer->size(), size);
    std::memset(buffer->data(), 1, size);  // a sanitizer sees a class that is too small
  }
}

TEST(Buffer, WastesAtMostAQuarter) {
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
  const BufferRef again = BufferRef::allocate(1010);  // the same class
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
  constexpr std::size_t kPiece = std::size_t{384}
                                 << 20;  // memory that is never touched costs nothing
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

TEST(Buffer, PeakFollowsTheLargestUse) {
  const std::size_t in_use = allocator_statistics().in_use;
  { const BufferRef buffer = BufferRef::allocate(50'000'000); }
  EXPECT_GE(allocator_statistics().peak_in_use, in_use + 50'000'000);
}

TEST(Buffer, ImpossibleSizesAreRefused) {
  testing::expect_error(ErrorCode::kResourceExhausted, {"no memory"},
                        [] { BufferRef::allocate(std::size_t{1} << 62); });
}

TEST(Buffer, ThreadsShareTheCache) {
  // Each thread makes tensors of many sizes, keeps some alive, and hands some to another thread for
  // release.
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

}  // namespace
}  // namespace tutti
