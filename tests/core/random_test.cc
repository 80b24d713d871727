// Compares Philox with its published vectors, and tests the statistics of random numbers derived
// from it.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "tutti/core/executor.h"

namespace tutti::testing::random_test {

using Words = std::array<std::uint32_t, 4>;

// From Random123, tests/kat_vectors, lines "philox4x32 10".
TEST(Philox, MatchesRandom123KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, EveryFieldOfTheKeyChangesTheStream) {
  const RandomKey keys[] = {
      {},       {.seed = 1},      {.purpose = 1},       {.a = 1},         {.b = 1},
      {.c = 1}, {.a = 1, .b = 1}, {.seed = 1ull << 63}, {.c = 1ull << 63}};
  std::set<std::uint64_t> first_values;
  for (const RandomKey& key : keys) first_values.insert(RandomStream(key).bits64(0));
  EXPECT_EQ(first_values.size(), std::size(keys));
}

TEST(RandomStream, AdjacentKeysDifferInAboutHalfTheBits) {
  double changed = 0;
  constexpr int kKeys = 500;
  for (std::uint64_t step = 0; step < kKeys; ++step) {
    const std::uint64_t one = RandomStream({.seed = 7, .a = step}).bits64(0);
    const std::uint64_t next = RandomStream({.seed = 7, .a = step + 1}).bits64(0);
    changed += __builtin_popcountll(one ^ next);
  }
  EXPECT_NEAR(changed / kKeys, 32.0,
              0.9);  // five standard deviations of a mean over 500 keys: 5 * 4 / sqrt(500)
}

TEST(RandomStream, FillMatchesSingleElementsAtEveryOffsetAndLength) {
  const RandomStream stream({.seed = 3, .purpose = kUserPurpose});
  for (std::uint64_t first : {0ull, 1ull, 3ull, 4ull, 63ull, 4'294'967'290ull * 4}) {
    for (std::size_t count : {0, 1, 3, 4, 63, 64, 65, 200}) {
      std::vector<float> values(count, -1.0f);
      stream.fill_uniform(first, values);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(values[i], stream.uniform(first + i)) << first << " + " << i << " of " << count;
      }
    }
  }
}

TEST(RandomStream, UniformHasExpectedMomentsAndRange) {
  std::vector<float> values(1'000'000);
  RandomStream({.seed = 11}).fill_uniform(0, values);
  double sum = 0, squares = 0, lag = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_GE(values[i], 0.0f);
    ASSERT_LT(values[i], 1.0f);
    sum += values[i];
    squares += double{values[i]} * values[i];
    if (i > 0) lag += (values[i] - 0.5) * (values[i - 1] - 0.5);
  }
  const double n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0.5, 5 * std::sqrt(1 / 12.0 / n));
  EXPECT_NEAR(squares / n, 1 / 3.0, 5 * std::sqrt(4 / 45.0 / n));
  EXPECT_NEAR(lag / n, 0.0, 5 * (1 / 12.0) / std::sqrt(n));
}

TEST(RandomStream, UniformPassesAChiSquareTest) {
  constexpr int kCells = 256, kCount = 1 << 18;
  const RandomStream stream({.seed = 5, .a = 9});
  std::vector<int> cells(kCells);
  for (int i = 0; i < kCount; ++i) ++cells[static_cast<int>(stream.uniform(i) * kCells)];
  double chi = 0;
  const double expected = double{kCount} / kCells;
  for (int count : cells) chi += (count - expected) * (count - expected) / expected;
  // A chi-square distribution with 255 degrees of freedom has mean 255 and standard deviation 22.6.
  EXPECT_GT(chi, 255 - 5 * 22.6);
  EXPECT_LT(chi, 255 + 5 * 22.6);
}

TEST(RandomStream, NormalHasExpectedMomentsAndTails) {
  constexpr int kCount = 200'000;
  const RandomStream stream({.seed = 2, .purpose = kInitializerPurpose});
  double moments[5] = {};
  int beyond_two = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = stream.normal(i);
    ASSERT_TRUE(std::isfinite(x));
    for (int p = 1; p <= 4; ++p) moments[p] += std::pow(x, p) / kCount;
    if (std::fabs(x) > 2) ++beyond_two;
  }
  const double error = 5 / std::sqrt(double{kCount});
  EXPECT_NEAR(moments[1], 0, error);
  EXPECT_NEAR(moments[2], 1, error * std::sqrt(2));
  EXPECT_NEAR(moments[3], 0, error * std::sqrt(15));
  EXPECT_NEAR(moments[4], 3, error * std::sqrt(96));
  EXPECT_NEAR(beyond_two / double{kCount}, 0.0455, error * std::sqrt(0.0455));
}

TEST(RandomStream, BelowReturnsUniformNumbersInRange) {
  const RandomStream stream({.seed = 8, .purpose = kShufflePurpose});
  std::vector<int> counts(7);
  for (int i = 0; i < 70'000; ++i) {
    const std::uint64_t value = stream.below(i, 7);
    ASSERT_LT(value, 7u);
    ++counts[value];
  }
  for (int count : counts) EXPECT_NEAR(count, 10'000, 5 * std::sqrt(10'000 * 6 / 7.0));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(stream.below(i, 1), 0u);
  EXPECT_LT(stream.below(0, ~0ull), ~0ull);
}

TEST(RandomContextTest, ScopesNestPerThread) {
  set_random_seed(42);
  EXPECT_EQ(current_random_context().seed, 42u);
  RandomContextScope outer({.seed = 1, .step = 2, .replica = 3});
  {
    RandomContextScope inner({.seed = 4, .step = 5, .replica = 6});
    EXPECT_EQ(current_random_context().step, 5u);
    std::uint64_t seen = 0;
    Executor::system().start("other", [&] { seen = current_random_context().seed; })->join();
    EXPECT_EQ(seen, 42u);
  }
  EXPECT_EQ(current_random_context().replica, 3u);
  set_random_seed(0);
}

TEST(RandomContextTest, CountsCallsPerScopeAndCallSite) {
  set_random_seed(0);
  EXPECT_EQ(next_call_ordinal(7), 0u);
  EXPECT_EQ(next_call_ordinal(7), 1u);
  for (int replay = 0; replay < 2; ++replay) {
    RandomContextScope scope({.seed = 1, .step = 2, .replica = 3});
    EXPECT_EQ(next_call_ordinal(7), 0u);
    EXPECT_EQ(next_call_ordinal(8), 0u);
    EXPECT_EQ(next_call_ordinal(7), 1u);
  }
  EXPECT_EQ(next_call_ordinal(7), 2u);
  set_random_seed(0);
  EXPECT_EQ(next_call_ordinal(7), 0u);
}

TEST(RandomContextTest, SettingTheSeedResetsCounters) {
  set_random_seed(9);
  EXPECT_EQ(random_seed(), 9u);
  EXPECT_EQ(next_variable_number(), 0u);
  EXPECT_EQ(next_variable_number(), 1u);
  EXPECT_EQ(next_layer_number(), 0u);
  set_random_seed(9);
  EXPECT_EQ(next_variable_number(), 0u);
  set_random_seed(0);
}

}  // namespace tutti::testing::random_test
