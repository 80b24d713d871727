// Collectives of ranks on plain memory: sums, order, deadlines, aborts, records. The conformance
// kit has the other collectives.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cross_device_ops/communicator/communicator_state.h"
#include "tests/cross_device_ops/cdo_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace communicator_test {

using namespace cdo_tests;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<float> numbers(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] =
        0.1f * static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 13) % 31) - 1.0f;
  }
  return values;
}

std::vector<float> tree_sum(int size, std::size_t count) {
  std::vector<std::vector<float>> values;
  for (int r = 0; r < size; ++r) values.push_back(numbers(r, count));
  return tree_sums(std::move(values));
}

class CommunicatorSizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, CommunicatorSizes, ::testing::Values(1, 2, 3, 4, 5, 7, 8, 9, 16),
                         ::testing::PrintToStringParamName());

TEST_P(CommunicatorSizes, AllReduceAddsAlongTheTreeInEveryRanksMemory) {
  const int size = GetParam();
  std::vector<std::vector<float>> sums;
  for (const std::size_t count : {0u, 1u, 63u, 1000u, 70001u}) {
    sums.push_back(tree_sum(size, count));
  }
  expect_on_communicators(size, [&](Communicator& mine) {
    const int rank = mine.rank();
    for (const std::vector<float>& expected : sums) {
      const std::size_t count = expected.size();
      std::vector<float> own = numbers(rank, count);
      std::vector<float> out(count);
      mine.all_reduce(ReduceOp::kSum, std::span<const float>(own), std::span(out), {.name = "out"});
      EXPECT_EQ(out, expected) << count;
      EXPECT_EQ(own, numbers(rank, count)) << count;
      mine.all_reduce(ReduceOp::kSum, std::span(own));
      EXPECT_EQ(own, expected) << count;
    }
  });
}

TEST_P(CommunicatorSizes, AListIsReducedAsIfItWereOne) {
  const int size = GetParam();
  const std::vector<float> expected = tree_sum(size, 700);
  expect_on_communicators(size, [&](Communicator& mine) {
    std::vector<float> own = numbers(mine.rank(), 700);
    const std::span<float> values(own);
    const std::vector<Elements> list = {values.subspan(0, 3), values.subspan(3, 0),
                                        values.subspan(3, 500), values.subspan(503)};
    mine.all_reduce(ReduceOp::kSum, list);
    EXPECT_EQ(own, expected);
  });
}

TEST(Communicator, ThreadsMayUseAnyAlgorithm) {
  for (const char* name : {"ring", "halving_doubling", "tree", "auto", "reduction_to_one_device"}) {
    SCOPED_TRACE(name);
    expect_on_communicators(3, {.algorithm = name}, [&](Communicator& mine) {
      std::vector<int> sum = {mine.rank(), 1};
      mine.all_reduce(ReduceOp::kSum, std::span(sum));
      EXPECT_EQ(sum, (std::vector{3, 3})) << name;
    });
  }
  EXPECT_THROW(in_process_communicators(2, {.algorithm = "no_such"}), Error);
}

TEST(Communicator, ListsAreCombinedAsOneByEveryAlgorithm) {
  for (const std::string& name : internal::message_algorithms()) {
    SCOPED_TRACE(name);
    expect_on_communicators(3, {.algorithm = name}, [&](Communicator& mine) {
      std::vector<std::vector<std::int64_t>> values;
      std::int64_t number = 0;
      for (const std::size_t count : {5, 0, 1000, 17}) {
        values.emplace_back(count);
        for (std::int64_t& value : values.back()) value = number++ * (mine.rank() + 1);
      }
      std::vector<Elements> list;
      for (std::vector<std::int64_t>& each : values) list.emplace_back(std::span(each));
      mine.all_reduce(ReduceOp::kSum, list);
      number = 0;
      for (const std::vector<std::int64_t>& each : values) {
        for (const std::int64_t value : each) EXPECT_EQ(value, 6 * number++) << name;
      }
    });
  }
}

TEST(Communicator, CompressedSumsAreRoundedOnTheWayInAndOnce) {
  expect_on_communicators(3, [&](Communicator& mine) {
    std::vector<float> own = numbers(mine.rank(), 100), mean = own;
    mine.all_reduce(ReduceOp::kSum, std::span(own), {.compression = DType::kBFloat16});
    mine.all_reduce(ReduceOp::kMean, std::span(mean), {.compression = DType::kBFloat16});
    for (std::size_t i = 0; i < 100; ++i) {
      float sum = 0.0f;  // (0 + 1) + 2 along the tree
      for (int r = 0; r < 3; ++r) {
        sum += static_cast<float>(BFloat16(numbers(r, 100)[i]));
      }
      const auto rounded = static_cast<float>(BFloat16(sum));
      EXPECT_EQ(own[i], rounded);
      EXPECT_EQ(mean[i], rounded / 3.0f);
    }
  });
}

TEST(Communicator, CompressionIsRefusedWhereItWouldRoundTwiceOrCannotBe) {
  const auto errors = errors_of_communicators(2, {.algorithm = "ring"}, [](Communicator& mine) {
    std::vector<float> own(8);
    mine.all_reduce(ReduceOp::kSum, std::span(own), {.compression = DType::kFloat16});
  });
  EXPECT_THAT(errors, Each(HasSubstr("ring: adds float16 in several steps")));
  std::vector<float> a(8);
  std::vector<double> b(8);
  const Communicators all = in_process_communicators(2);
  const auto refused = [&](const auto& call) {
    EXPECT_THAT([&] { call(of(all, 0)); },
                ::testing::ThrowsMessage<Error>(HasSubstr("compression")));
  };
  refused([&](Communicator& c) {
    c.all_reduce(ReduceOp::kSum, std::span(b), {.compression = DType::kFloat16});
  });
  refused([&](Communicator& c) {
    c.all_reduce(ReduceOp::kMax, std::span(a), {.compression = DType::kFloat16});
  });
  refused([&](Communicator& c) {
    c.all_reduce(ReduceOp::kSum, std::span(a), {.compression = DType::kInt32});
  });
  refused([&](Communicator& c) { c.broadcast(std::span(a), 0, {.compression = DType::kFloat16}); });
}

TEST(Communicator, MeanOf16BitNumbersIsRoundedOnce) {
  expect_on_communicators(3, [&](Communicator& mine) {
    // The sum, 90000, is too large for float16.
    std::vector<Float16> own(5, Float16(30000.0f));
    mine.all_reduce(ReduceOp::kMean, std::span(own));
    EXPECT_EQ(static_cast<float>(own[4]), 30000.0f);
  });
}

TEST(Communicator, MemoryMayHaveAnyAlignment) {
  expect_on_communicators(2, [&](Communicator& mine) {
    std::vector<std::byte> bytes(4 * 100 + 1);
    const std::vector<float> own = numbers(mine.rank(), 100);
    std::memcpy(bytes.data() + 1, own.data(), 400);
    mine.all_reduce(ReduceOp::kSum, Elements(bytes.data() + 1, 100, DType::kFloat32));
    std::vector<float> sum(100);
    std::memcpy(sum.data(), bytes.data() + 1, 400);
    EXPECT_EQ(sum, tree_sum(2, 100));
  });
}

TEST(Communicator, StartedCallsRunInOrderAndAreWaitedForInAny) {
  expect_on_communicators(3, [&](Communicator& mine) {
    const int rank = mine.rank();
    std::vector<std::vector<float>> data(20, numbers(rank, 500));
    std::vector<CollectiveHandle> handles;
    for (auto& values : data) {
      handles.push_back(mine.start_all_reduce(ReduceOp::kSum, std::span(values)));
    }
    std::vector<int> after = {rank};
    mine.all_reduce(ReduceOp::kMax, std::span(after));
    EXPECT_EQ(after[0], 2);
    for (std::size_t i = 20; i-- > 0;) handles[(i * 7 + rank) % 20].wait();
    for (const auto& values : data) EXPECT_EQ(values, tree_sum(3, 500));
  });
}

TEST(Communicator, GroupsWorkAtOnceAndApart) {
  expect_on_communicators(5, [&](Communicator& mine) {
    const int rank = mine.rank();
    const bool is_even = rank % 2 == 0;
    const auto half = mine.group(is_even ? std::vector{0, 2, 4} : std::vector{1, 3});
    const auto others = mine.group(rank == 4 ? std::vector<int>{} : std::vector{0, 1, 2, 3});
    EXPECT_EQ(others == nullptr, rank == 4);
    // Each half at its own pace.
    for (int i = 0; i < (is_even ? 20 : 35); ++i) {
      std::vector<int> sum = {rank};
      half->all_reduce(ReduceOp::kSum, std::span(sum));
      EXPECT_EQ(sum[0], is_even ? 6 : 4);
    }
    if (others) {
      std::vector<int> sum = {rank};
      others->all_reduce(ReduceOp::kSum, std::span(sum));
      EXPECT_EQ(sum[0], 6);
      EXPECT_EQ(others->rank(), rank);
    }
  });
}

TEST(Communicator, GroupsThatContradictEachOtherAreAnErrorOnEveryRank) {
  const auto errors = errors_of_communicators(3, [&](Communicator& mine) {
    mine.group(mine.rank() == 0 ? std::vector{0, 1} : std::vector{0, 1, 2});
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("mismatch (group)"), HasSubstr("rank 0 names"),
                                 HasSubstr("0, 1, 2"))));
}

TEST(Communicator, WrongArgumentsOfAllRanksAreAnErrorAndTheyGoOn) {
  const Communicators all = in_process_communicators(2);
  const auto refused = [&](const std::string& expected, const auto& call) {
    const auto errors = errors_of_ranks(2, [&](int rank) {
      std::vector<float> a(10);
      try {
        call(of(all, rank), rank, std::span<float>(a));
      } catch (const Error& error) {
        EXPECT_EQ(to_string(error.code()), to_string(ErrorCode::kInvalidArgument));
        throw;
      }
    });
    EXPECT_THAT(errors, Each(HasSubstr(expected)));
  };
  using Floats = std::span<float>;
  refused("bool has MIN and MAX only", [](Communicator& c, int, Floats) {
    bool flags[4] = {};
    c.all_reduce(ReduceOp::kSum, std::span<bool>(flags));
  });
  refused("all_gather",
          [](Communicator& c, int, Floats x) { c.all_gather(x.first(3), x.subspan(3, 7)); });
  refused("multiple of 2", [](Communicator& c, int, Floats x) {
    c.reduce_scatter(ReduceOp::kSum, x.first(5), x.subspan(5, 2));
  });
  refused("this rank in it", [](Communicator& c, int rank, Floats) { c.group({1 - rank}); });
  refused("increasing", [](Communicator& c, int, Floats) { c.group({0, 0}); });
  expect_on_ranks(2, [&](int rank) { of(all, rank).barrier(); });
}

TEST(Communicator, ARankThatStaysAwayIsNamedAtTheDeadline) {
  const auto errors =
      errors_of_communicators(3, {.timeout = milliseconds(60)}, [&](Communicator& mine) {
        std::vector<float> a(4);
        mine.all_reduce(ReduceOp::kSum, std::span(a), {.name = "early"});
        if (mine.rank() != 1) mine.all_reduce(ReduceOp::kSum, std::span(a), {.name = "late"});
      });
  EXPECT_EQ(errors[1], "");
  EXPECT_THAT(errors[0], AllOf(HasSubstr("'late'"), HasSubstr("rank 1")));
  EXPECT_THAT(errors[0] + errors[2], HasSubstr("rank 1 is in no collective; its last one was"));
}

TEST(Communicator, AbortEndsCallsOfAllRanks) {
  const Communicators all = in_process_communicators(3);
  const auto errors = errors_of_ranks(3, [&](int rank) {
    std::vector<float> a(4);
    if (rank == 2) {
      Clock::system().sleep_for(milliseconds(20));
      return of(all, 2).abort(Error(ErrorCode::kInternal, "rank 2 has had enough"));
    }
    of(all, rank).all_reduce(ReduceOp::kSum, std::span(a));
  });
  EXPECT_EQ(errors[2], "");
  EXPECT_THAT(errors[0], HasSubstr("rank 2 has had enough"));
  EXPECT_THAT(errors[1], HasSubstr("rank 2 has had enough"));
}

TEST(Communicator, ARankThatLeavesIsNamed) {
  Communicators all = in_process_communicators(2);
  const auto errors = errors_of_ranks(2, [&](int rank) {
    if (rank == 1) return all[1].reset();
    of(all, 0).barrier();
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1 has left the group"),
                               HasSubstr("rank 0 was in barrier() #")));
}

TEST(Communicator, AStalledCallSaysWhoIsMissingAndWhere) {
  const thrown::LogLines log;
  expect_on_communicators(2, {.stall_after = milliseconds(50)}, [](Communicator& mine) {
    std::vector<float> a(4);
    mine.all_reduce(ReduceOp::kSum, std::span(a), {.name = "before"});
    if (mine.rank() == 1) Clock::system().sleep_for(milliseconds(300));
    mine.all_reduce(ReduceOp::kSum, std::span(a), {.name = "waiting"});
  });
  const std::string lines = log.text();
  EXPECT_THAT(lines, HasSubstr("stalled: rank 0 waits in all_reduce(SUM, float32 x 4, 'waiting')"));
  EXPECT_THAT(lines, HasSubstr("rank 1 is in no collective; its last one was "
                               "all_reduce(SUM, float32 x 4, 'before')"));
}

TEST(Communicator, TheLastCallsAreKept) {
  const Communicators all = in_process_communicators(2);
  const int num_calls = static_cast<int>(internal::CallRecorder::kCapacity) + 10;
  errors_of_ranks(2, [&](int rank) {
    std::vector<float> a(4);
    for (int i = 0; i < num_calls; ++i) of(all, rank).all_reduce(ReduceOp::kMin, std::span(a));
  });
  const std::vector<std::string> calls = of(all, 0).recent_calls();
  ASSERT_THAT(calls, SizeIs(internal::CallRecorder::kCapacity));
  EXPECT_THAT(calls.front(), HasSubstr("all_reduce(MIN, float32 x 4) #10 at"));
  EXPECT_THAT(calls.back(), AllOf(HasSubstr("#" + std::to_string(num_calls - 1)),
                                  HasSubstr("communicator_test.cc"), HasSubstr("done")));
}

}  // namespace communicator_test
}  // namespace tutti
