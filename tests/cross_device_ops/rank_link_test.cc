// Values that the ranks of a group tell each other by way of rank 0.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/rank_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "cross_device_ops/collective_header.h"
#include "cross_device_ops/in_process/in_process_transport.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"

namespace tutti::internal {
namespace {
using testing::expect_error;

TimePoint in(int milliseconds) {
  return deadline_after(Clock::system().now(), std::chrono::milliseconds(milliseconds));
}

TEST(RankLink, AllRanksGetTheValuesOfAll) {
  for (const int size : {1, 2, 5}) {
    const auto transports = in_process_transports(size);
    std::vector<std::uint64_t> expected;
    for (int r = 0; r < size; ++r) expected.push_back(static_cast<std::uint64_t>(10 * r + 3));
    expect_on_ranks(size, [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      EXPECT_EQ(link_all(transports[r]).exchange(Purpose::kNonce, expected[r], in(20'000), "here"),
                expected);
    });
  }
}

void expect_missing(int size, const std::vector<int>& missing, const char* named) {
  const auto transports = in_process_transports(size);
  expect_on_ranks(size, [&](int rank) {
    if (std::ranges::find(missing, rank) != missing.end()) return;
    expect_error(ErrorCode::kDeadlineExceeded, {"here: expected all 4 ranks", named}, [&] {
      const RankLink link = link_all(transports[static_cast<std::size_t>(rank)]);
      link.exchange(Purpose::kNonce, rank, in(100), "here");
    });
  });
}

TEST(RankLink, AllRanksNameThoseThatDidNotCome) {
  expect_missing(4, {3}, "; rank 3 did not come");
  expect_missing(4, {1, 3}, "; rank 1, rank 3 did not come");
  expect_missing(4, {0}, "; rank 0 did not come");
}

}  // namespace
}  // namespace tutti::internal
