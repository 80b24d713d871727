// Collectives of ranks on plain memory: results, order, deadlines, aborts, records.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "cross_device_ops/communicator/call_recorder.h"
#include "tests/support/ranks.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace communicator_test {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Communicators = std::vector<std::unique_ptr<Communicator>>;

Communicator& of(const Communicators& all, int rank) {
  return *all[static_cast<std::size_t>(rank)];
}

std::vector<float> numbers(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] =
        0.1f * static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 13) % 31) - 1.0f;
  }
  return values;
}

// The canonical tree, spelled out: neighbours are added until one is left.
std::vector<float> tree_sum(int size, std::size_t count) {
  std::vector<std::vector<float>> level;
  for (int r = 0; r < size; ++r) level.push_back(numbers(r, count));
  while (level.size() > 1) {
    std::vector<std::vector<float>> next;
    for (std::size_t i = 0; i < level.size(); i += 2) {
      next.push_back(level[i]);
      if (i + 1 == level.size()) continue;
      for (std::size_t k = 0; k < count; ++k) next.back()[k] += level[i + 1][k];
    }
    level = std::move(next);
  }
  return level[0];
}

class CommunicatorSizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, CommunicatorSizes, ::testing::Values(1, 2, 3, 4, 5, 7, 8, 9, 16),
                         ::testing::PrintToStringParamName());

TEST_P(CommunicatorSizes, AllReduceAddsAlongTheTreeInEveryRanksMemory) {
  const int size = GetParam();
  const Communicators all = in_process_communicators(size);
  for (const std::size_t count : {0u, 1u, 63u, 1000u, 70001u}) {
    const std::vector<float> expected = tree_sum(size, count);
    EXPECT_EQ(error_of_ranks(size,
                             [&](int rank) {
                               std::vector<float> own = numbers(rank, count);
                               std::vector<float> out(count);
                               of(all, rank).all_reduce(ReduceOp::kSum, std::span<const float>(own),
                                                        std::span(out), {.name = "out"});
                               if (out != expected) throw Error(ErrorCode::kInternal, "out");
                               if (own != numbers(rank, count)) {
                                 throw Error(ErrorCode::kInternal, "the input changed");
                               }
                               of(all, rank).all_reduce(ReduceOp::kSum, std::span(own));
                               if (own != expected) throw Error(ErrorCode::kInternal, "in place");
                             }),
              "");
  }
}

TEST_P(CommunicatorSizes, AListIsReducedAsIfItWereOne) {
  const int size = GetParam();
  const Communicators all = in_process_communicators(size);
  const std::vector<float> expected = tree_sum(size, 700);
  EXPECT_EQ(error_of_ranks(size,
                           [&](int rank) {
                             std::vector<float> own = numbers(rank, 700);
                             const std::span<float> values(own);
                             const std::vector<Elements> list = {
                                 values.subspan(0, 3), values.subspan(3, 0), values.subspan(3, 500),
                                 values.subspan(503)};
                             of(all, rank).all_reduce(ReduceOp::kSum, list);
                             if (own != expected) throw Error(ErrorCode::kInternal, "list");
                           }),
            "");
}

TEST_P(CommunicatorSizes, OtherCollectivesMoveWhatMpiSays) {
  const int size = GetParam();
  const Communicators all = in_process_communicators(size);
  const auto n = static_cast<std::size_t>(size);
  EXPECT_EQ(
      error_of_ranks(
          size,
          [&](int rank) {
            Communicator& mine = of(all, rank);
            const auto r = static_cast<std::size_t>(rank);
            const auto expect = [](bool holds, const char* what) {
              if (!holds) throw Error(ErrorCode::kInternal, what);
            };
            for (int root = 0; root < size; ++root) {
              std::vector<int> data = {rank, 10 * rank};
              mine.broadcast(std::span(data), root);
              expect(data == std::vector<int>{root, 10 * root}, "broadcast");
              std::vector<int> own = {rank, 1}, most(2, -1);
              mine.reduce(ReduceOp::kMax, std::span(own), std::span(most), root);
              expect(most == (rank == root ? std::vector<int>{size - 1, 1} : std::vector{-1, -1}),
                     "reduce");
            }
            // Rank r brings r elements.
            std::vector<std::size_t> counts(n);
            std::iota(counts.begin(), counts.end(), std::size_t{0});
            const std::vector<std::int64_t> part(r, rank);
            std::vector<std::int64_t> gathered(n * (n - 1) / 2), expected;
            for (std::size_t s = 0; s < n; ++s) expected.insert(expected.end(), s, s);
            mine.all_gather(std::span(part), std::span(gathered), counts);
            expect(gathered == expected, "all_gather");
            std::vector<std::uint8_t> even = {static_cast<std::uint8_t>(rank), 7};
            std::vector<std::uint8_t> evens(2 * n);
            mine.all_gather(std::span(even), std::span(evens));
            expect(evens[2 * (n - 1)] == n - 1 && evens.back() == 7, "all_gather of even parts");

            std::vector<double> whole(n * (n - 1) / 2, rank + 1.0), scattered(r);
            mine.reduce_scatter(ReduceOp::kSum, std::span(whole), std::span(scattered), counts);
            expect(scattered == std::vector<double>(r, static_cast<double>(n * (n + 1) / 2)),
                   "reduce_scatter");

            // Rank r sends s + 1 elements "100 r + s" to rank s.
            std::vector<std::size_t> sent(n), received(n, r + 1);
            std::iota(sent.begin(), sent.end(), std::size_t{1});
            std::vector<int> outgoing, incoming(n * (r + 1)), wanted;
            for (int s = 0; s < size; ++s) {
              outgoing.insert(outgoing.end(), static_cast<std::size_t>(s) + 1, 100 * rank + s);
              wanted.insert(wanted.end(), r + 1, 100 * s + rank);
            }
            mine.all_to_all(std::span(outgoing), std::span(incoming), sent, received);
            expect(incoming == wanted, "all_to_all");
            mine.barrier();
          }),
      "");
}

TEST(Communicator, ThreadsMayUseAnyAlgorithm) {
  for (const char* name : {"ring", "halving_doubling", "tree", "auto", "reduction_to_one_device"}) {
    const Communicators all = in_process_communicators(3, {.algorithm = name});
    EXPECT_EQ(error_of_ranks(3,
                             [&](int rank) {
                               std::vector<int> sum = {rank, 1};
                               of(all, rank).all_reduce(ReduceOp::kSum, std::span(sum));
                               if (sum != std::vector{3, 3}) throw Error(ErrorCode::kInternal, "");
                             }),
              "")
        << name;
  }
  EXPECT_THROW(in_process_communicators(2, {.algorithm = "no_such"}), Error);
}

TEST(Communicator, CompressedSumsAreRoundedOnTheWayInAndOnce) {
  const Communicators all = in_process_communicators(3);
  EXPECT_EQ(error_of_ranks(3,
                           [&](int rank) {
                             std::vector<float> own = numbers(rank, 100), mean = own;
                             of(all, rank).all_reduce(ReduceOp::kSum, std::span(own),
                                                      {.compression = DType::kBFloat16});
                             of(all, rank).all_reduce(ReduceOp::kMean, std::span(mean),
                                                      {.compression = DType::kBFloat16});
                             for (std::size_t i = 0; i < 100; ++i) {
                               float sum = 0.0f;  // (0 + 1) + 2 along the tree
                               for (int r = 0; r < 3; ++r) {
                                 sum += static_cast<float>(BFloat16(numbers(r, 100)[i]));
                               }
                               const auto rounded = static_cast<float>(BFloat16(sum));
                               if (own[i] != rounded || mean[i] != rounded / 3.0f) {
                                 throw Error(ErrorCode::kInternal, concat(own[i], " ", mean[i]));
                               }
                             }
                           }),
            "");
}

TEST(Communicator, CompressionIsRefusedWhereItWouldRoundTwiceOrCannotBe) {
  const Communicators ring = in_process_communicators(2, {.algorithm = "ring"});
  std::vector<float> a(8);
  std::vector<double> b(8);
  EXPECT_THAT(errors_of_ranks(2,
                              [&](int rank) {
                                std::vector<float> own(8);
                                of(ring, rank)
                                    .all_reduce(ReduceOp::kSum, std::span(own),
                                                {.compression = DType::kFloat16});
                              }),
              Each(HasSubstr("ring: adds float16 in several steps")));
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
  const Communicators all = in_process_communicators(3);
  EXPECT_EQ(error_of_ranks(3,
                           [&](int rank) {
                             // The sum, 90000, is too large for float16.
                             std::vector<Float16> own(5, Float16(30000.0f));
                             of(all, rank).all_reduce(ReduceOp::kMean, std::span(own));
                             if (static_cast<float>(own[4]) != 30000.0f) {
                               throw Error(ErrorCode::kInternal, "mean");
                             }
                           }),
            "");
}

TEST(Communicator, MemoryMayHaveAnyAlignment) {
  const Communicators all = in_process_communicators(2);
  EXPECT_EQ(error_of_ranks(2,
                           [&](int rank) {
                             std::vector<std::byte> bytes(4 * 100 + 1);
                             const std::vector<float> own = numbers(rank, 100);
                             std::memcpy(bytes.data() + 1, own.data(), 400);
                             of(all, rank).all_reduce(
                                 ReduceOp::kSum, Elements(bytes.data() + 1, 100, DType::kFloat32));
                             std::vector<float> sum(100);
                             std::memcpy(sum.data(), bytes.data() + 1, 400);
                             if (sum != tree_sum(2, 100)) throw Error(ErrorCode::kInternal, "sum");
                           }),
            "");
}

TEST(Communicator, StartedCallsRunInOrderAndAreWaitedForInAny) {
  const Communicators all = in_process_communicators(3);
  EXPECT_EQ(error_of_ranks(3,
                           [&](int rank) {
                             Communicator& mine = of(all, rank);
                             std::vector<std::vector<float>> data(20, numbers(rank, 500));
                             std::vector<CollectiveHandle> handles;
                             for (auto& values : data) {
                               handles.push_back(
                                   mine.start_all_reduce(ReduceOp::kSum, std::span(values)));
                             }
                             std::vector<int> after = {rank};
                             mine.all_reduce(ReduceOp::kMax, std::span(after));
                             if (after[0] != 2) throw Error(ErrorCode::kInternal, "after");
                             for (std::size_t i = 20; i-- > 0;) handles[(i * 7 + rank) % 20].wait();
                             for (const auto& values : data) {
                               if (values != tree_sum(3, 500)) {
                                 throw Error(ErrorCode::kInternal, "started");
                               }
                             }
                           }),
            "");
}

TEST(Communicator, GroupsWorkAtOnceAndApart) {
  const Communicators all = in_process_communicators(5);
  EXPECT_EQ(error_of_ranks(
                5,
                [&](int rank) {
                  Communicator& mine = of(all, rank);
                  const bool is_even = rank % 2 == 0;
                  const auto half = mine.group(is_even ? std::vector{0, 2, 4} : std::vector{1, 3});
                  const auto others =
                      mine.group(rank == 4 ? std::vector<int>{} : std::vector{0, 1, 2, 3});
                  if ((others == nullptr) != (rank == 4)) {
                    throw Error(ErrorCode::kInternal, "group of none");
                  }
                  // Each half at its own pace.
                  for (int i = 0; i < (is_even ? 20 : 35); ++i) {
                    std::vector<int> sum = {rank};
                    half->all_reduce(ReduceOp::kSum, std::span(sum));
                    if (sum[0] != (is_even ? 6 : 4)) throw Error(ErrorCode::kInternal, "half");
                  }
                  if (others) {
                    std::vector<int> sum = {rank};
                    others->all_reduce(ReduceOp::kSum, std::span(sum));
                    if (sum[0] != 6 || others->rank() != rank) {
                      throw Error(ErrorCode::kInternal, "others");
                    }
                  }
                }),
            "");
}

TEST(Communicator, GroupsThatContradictEachOtherAreAnErrorOnEveryRank) {
  const Communicators all = in_process_communicators(3);
  const auto errors = errors_of_ranks(3, [&](int rank) {
    of(all, rank).group(rank == 0 ? std::vector{0, 1} : std::vector{0, 1, 2});
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
  refused("MEAN needs a floating type, got int32", [](Communicator& c, int, Floats) {
    std::vector<std::int32_t> i(10);
    c.all_reduce(ReduceOp::kMean, std::span(i));
  });
  refused("bool has MIN and MAX only", [](Communicator& c, int, Floats) {
    bool flags[4] = {};
    c.all_reduce(ReduceOp::kSum, std::span<bool>(flags));
  });
  refused("overlap", [](Communicator& c, int, Floats x) {
    c.all_reduce(ReduceOp::kSum, x.first(4), x.subspan(2, 4));
  });
  refused("root from 0 to 1, got 2", [](Communicator& c, int, Floats x) { c.broadcast(x, 2); });
  refused("all_gather",
          [](Communicator& c, int, Floats x) { c.all_gather(x.first(3), x.subspan(3, 7)); });
  refused("multiple of 2", [](Communicator& c, int, Floats x) {
    c.reduce_scatter(ReduceOp::kSum, x.first(5), x.subspan(5, 2));
  });
  refused("this rank in it", [](Communicator& c, int rank, Floats) { c.group({1 - rank}); });
  refused("increasing", [](Communicator& c, int, Floats) { c.group({0, 0}); });
  EXPECT_EQ(error_of_ranks(2, [&](int rank) { of(all, rank).barrier(); }), "");
}

TEST(Communicator, ARankThatStaysAwayIsNamedAtTheDeadline) {
  const Communicators all = in_process_communicators(3, {.timeout = milliseconds(60)});
  const auto errors = errors_of_ranks(3, [&](int rank) {
    std::vector<float> a(4);
    of(all, rank).all_reduce(ReduceOp::kSum, std::span(a), {.name = "early"});
    if (rank != 1) of(all, rank).all_reduce(ReduceOp::kSum, std::span(a), {.name = "late"});
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
  Mutex mutex;
  std::string lines;
  const LogSink before = set_log_sink([&](LogLevel, std::string_view line) {
    MutexLock lock(mutex);
    lines += std::string(line) + "\n";
  });
  {
    const Communicators all = in_process_communicators(2, {.stall_after = milliseconds(50)});
    errors_of_ranks(2, [&](int rank) {
      std::vector<float> a(4);
      of(all, rank).all_reduce(ReduceOp::kSum, std::span(a), {.name = "before"});
      if (rank == 1) Clock::system().sleep_for(milliseconds(300));
      of(all, rank).all_reduce(ReduceOp::kSum, std::span(a), {.name = "waiting"});
    });
  }
  set_log_sink(before);
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
