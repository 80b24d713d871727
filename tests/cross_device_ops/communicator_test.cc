// Tests collectives on plain memory: sums, order, deadlines, aborts, and mismatched calls.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/communicator.h"

#include <cstring>

#include "cross_device_ops/communicator/communicator_state.h"
#include "tests/cross_device_ops/cdo_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/core/sync.h"

namespace tutti::communicator_test {
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

TEST_P(CommunicatorSizes, AllReduceAddsAlongTreeOnEveryRank) {
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

TEST_P(CommunicatorSizes, ListOfBuffersIsReducedAsOneBuffer) {
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

TEST(Communicator, InProcessRanksMayUseAnyAlgorithm) {
  for (const char* name : {"ring", "hierarchical_copy", "reduction_to_one_device"}) {
    SCOPED_TRACE(name);
    expect_on_communicators(3, {.algorithm = name}, [&](Communicator& mine) {
      std::vector<int> sum = {mine.rank(), 1};
      mine.all_reduce(ReduceOp::kSum, std::span(sum));
      EXPECT_EQ(sum, (std::vector{3, 3})) << name;
    });
  }
  EXPECT_THROW(in_process_communicators(2, {.algorithm = "no_such"}), Error);
}

TEST(Communicator, EveryAlgorithmReducesListOfBuffersAsOneBuffer) {
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

TEST(Communicator, ReducesMoreBuffersThanSlotHolds) {
  constexpr std::size_t kBuffers = 700, kCount = 33;  // more buffers than a rank's slot can list
  expect_on_communicators(3, {}, [](Communicator& mine) {
    std::vector<std::vector<float>> buffers(kBuffers);
    std::vector<Elements> list;
    for (std::size_t b = 0; b < kBuffers; ++b) {
      buffers[b].assign(kCount, static_cast<float>(b * 10) + static_cast<float>(mine.rank()));
      list.emplace_back(std::span(buffers[b]));
    }
    for (int call = 0; call < 2; ++call) mine.all_reduce(ReduceOp::kSum, list);
    for (std::size_t b = 0; b < kBuffers; ++b) {
      const float sum = static_cast<float>(3 * b * 10 + 0 + 1 + 2);
      ASSERT_EQ(buffers[b], std::vector<float>(kCount, 3 * sum)) << b;
    }
  });
}

TEST(Communicator, MeanOfFloat16IsRoundedOnce) {
  expect_on_communicators(3, [&](Communicator& mine) {
    // The sum, 90000, exceeds float16's maximum.
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

TEST(Communicator, AsyncCallsRunInOrderAndMayBeAwaitedInAnyOrder) {
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

TEST(Communicator, GroupsRunConcurrently) {
  expect_on_communicators(5, [&](Communicator& mine) {
    const int rank = mine.rank();
    const bool is_even = rank % 2 == 0;
    const auto half = mine.group(is_even ? std::vector{0, 2, 4} : std::vector{1, 3});
    const auto others = mine.group(rank == 4 ? std::vector<int>{} : std::vector{0, 1, 2, 3});
    EXPECT_EQ(others == nullptr, rank == 4);
    // The two halves make different numbers of calls.
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

TEST(Communicator, ContradictoryGroupsFailOnAllRanks) {
  const auto errors = errors_of_communicators(3, [&](Communicator& mine) {
    mine.group(mine.rank() == 0 ? std::vector{0, 1} : std::vector{0, 1, 2});
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("mismatch (group)"), HasSubstr("rank 0 names"),
                                 HasSubstr("0, 1, 2"))));
}

TEST(Communicator, GroupStaysUsableAfterInvalidArgumentsOnAllRanks) {
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
  refused("expected MIN or MAX for bool", [](Communicator& c, int, Floats) {
    bool flags[4] = {};
    c.all_reduce(ReduceOp::kSum, std::span<bool>(flags));
  });
  refused("all_gather",
          [](Communicator& c, int, Floats x) { c.all_gather(x.first(3), x.subspan(3, 7)); });
  refused("multiple of 2", [](Communicator& c, int, Floats x) {
    c.reduce_scatter(ReduceOp::kSum, x.first(5), x.subspan(5, 2));
  });
  refused("includes this rank", [](Communicator& c, int rank, Floats) { c.group({1 - rank}); });
  refused("increasing", [](Communicator& c, int, Floats) { c.group({0, 0}); });
  expect_on_ranks(2, [&](int rank) { of(all, rank).barrier(); });
}

TEST(Communicator, TimeoutNamesMissingRank) {
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

TEST(Communicator, AbortEndsCallsOnAllRanks) {
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

TEST(Communicator, ErrorNamesDisconnectedRank) {
  for (const bool meets_before : {false, true}) {
    Communicators all = in_process_communicators(2);
    const auto errors = errors_of_ranks(2, [&](int rank) {
      if (meets_before) of(all, rank).barrier();
      if (rank == 1) return all[1].reset();
      of(all, 0).barrier();
    });
    EXPECT_THAT(errors[0], AllOf(HasSubstr(meets_before ? "rank 1 has left the group of 2 ranks"
                                                        : "rank 1 has exited"),
                                 HasSubstr("rank 0 was in barrier() #")));
  }
}

TEST(Communicator, StalledCallLogsMissingRanksAndTheirState) {
  const thrown::LogLines log;
  expect_on_communicators(2, {.stall_after = milliseconds(50)}, [](Communicator& mine) {
    std::vector<float> a(4);
    mine.all_reduce(ReduceOp::kSum, std::span(a), {.name = "before"});
    if (mine.rank() == 1) Clock::system().sleep_for(milliseconds(300));
    mine.all_reduce(ReduceOp::kSum, std::span(a), {.name = "waiting"});
  });
  const std::string lines = log.text();
  EXPECT_THAT(lines, ::testing::ContainsRegex("stalled: rank 0 has waited [0-9.]+ s in "
                                              "all_reduce\\(SUM, float32 x 4, 'waiting'\\)"));
  EXPECT_THAT(lines, HasSubstr("rank 1 is in no collective; its last one was "
                               "all_reduce(SUM, float32 x 4, 'before')"));
}

// Runs `calls` on each rank, with different arguments on rank 1. Expects an error of kind `kind` on
// all ranks.
template <class Calls>
void expect_mismatch(const std::string& kind, const Calls& calls) {
  for (const int size : {2, 3, 5}) {
    const Communicators all = in_process_communicators(size);
    const auto errors = errors_of_ranks(size, [&](int rank) {
      std::vector<float> a(12, 1.0f), b(12);
      calls(of(all, rank), rank == 1, std::span(a), std::span(b));
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("collective mismatch (" + kind + ")"),
                                   HasSubstr("rank 0 calls"), HasSubstr("rank 1 calls"),
                                   HasSubstr("communicator_test.cc:"))))
        << kind;
    // All later calls fail with the same reason.
    const auto later = errors_of_ranks(size, [&](int rank) { of(all, rank).barrier(); });
    EXPECT_THAT(later, Each(HasSubstr("collective mismatch (" + kind + ")"))) << kind;
  }
}

using Floats = std::span<float>;

TEST(CommunicatorMismatch, ErrorOnEveryRankNamesBothCalls) {
  expect_mismatch("operation", [](Communicator& c, bool odd, Floats a, Floats b) {
    odd ? c.broadcast(a, 0) : c.all_reduce(ReduceOp::kSum, a, b);
  });
  expect_mismatch("reduce op", [](Communicator& c, bool odd, Floats a, Floats b) {
    c.all_reduce(odd ? ReduceOp::kMean : ReduceOp::kSum, a, b);
  });
  expect_mismatch("dtype", [](Communicator& c, bool odd, Floats a, Floats) {
    std::vector<std::int32_t> integers(12);
    odd ? c.all_reduce(ReduceOp::kSum, std::span(integers)) : c.all_reduce(ReduceOp::kSum, a);
  });
  expect_mismatch("count", [](Communicator& c, bool odd, Floats a, Floats) {
    c.all_reduce(ReduceOp::kSum, odd ? a.first(11) : a);
  });
  expect_mismatch("count", [](Communicator& c, bool odd, Floats a, Floats) {
    const std::size_t cut = odd ? 5 : 6;
    c.all_reduce(ReduceOp::kSum, std::vector<Elements>{a.first(cut), a.subspan(cut)});
  });
  expect_mismatch("shape", [](Communicator& c, bool odd, Floats a, Floats) {
    const Shape shape = odd ? Shape{3, 4} : Shape{4, 3};
    c.all_reduce(ReduceOp::kSum, a, {.shape = &shape});
  });
  expect_mismatch("root",
                  [](Communicator& c, bool odd, Floats a, Floats) { c.broadcast(a, odd ? 1 : 0); });
  expect_mismatch("name", [](Communicator& c, bool odd, Floats a, Floats) {
    c.all_reduce(ReduceOp::kSum, a, {.name = odd ? "dense/bias" : "dense/kernel"});
  });
  expect_mismatch("count", [](Communicator& c, bool odd, Floats a, Floats b) {
    if (c.size() != 2) return c.all_reduce(ReduceOp::kSum, odd ? a.first(3) : a);
    const std::vector<std::size_t> sent = {odd ? std::size_t{5} : 6, odd ? std::size_t{7} : 6};
    c.all_to_all(a, b, sent, std::vector<std::size_t>{6, 6});
  });
}

/// Call that is invalid on one rank, regardless of the calls of the other ranks.
struct WrongCall {
  const char* reason;  // reason that the other ranks report
  void (*call)(Communicator& own, bool wrong, Floats a, Floats b);
};

const WrongCall kWrongCalls[] = {
    {"expected a root from 0 to ",
     [](Communicator& c, bool wrong, Floats a, Floats) { c.broadcast(a, wrong ? c.size() : 0); }},
    {"expected a root from 0 to ",
     [](Communicator& c, bool wrong, Floats a, Floats b) {
       c.reduce(ReduceOp::kSum, a, b, wrong ? -1 : 0, {.name = "kernel"});
     }},
    // Both calls have equal headers: only their memory differs.
    {"input and output overlap; expected the same memory where the call can work in place",
     [](Communicator& c, bool wrong, Floats a, Floats b) {
       c.all_reduce(ReduceOp::kSum, a.first(6), wrong ? a.subspan(3, 6) : b.first(6));
     }},
    {"expected memory for 12 elements, got a null pointer",
     [](Communicator& c, bool wrong, Floats a, Floats) {
       Elements elements(a);
       if (wrong) elements.data = nullptr;
       c.all_reduce(ReduceOp::kSum, elements);
     }},
    {"MEAN needs a floating-point type, got int32",
     [](Communicator& c, bool wrong, Floats a, Floats) {
       std::vector<std::int32_t> integers(12);
       wrong ? c.all_reduce(ReduceOp::kMean, std::span(integers))
             : c.all_reduce(ReduceOp::kMean, a);
     }},
    {"expected an output of ",
     [](Communicator& c, bool wrong, Floats a, Floats) {
       std::vector<float> all(12 * static_cast<std::size_t>(c.size()));
       const std::vector<std::size_t> counts(static_cast<std::size_t>(c.size()), 12);
       c.all_gather(a, std::span(all).first(all.size() - (wrong ? 1 : 0)), counts);
     }},
    {"expected a buffer, got none",
     [](Communicator& c, bool wrong, Floats a, Floats) {
       const std::vector<Elements> one{a};
       c.all_reduce(ReduceOp::kSum, wrong ? std::span<const Elements>() : std::span(one));
     }},
    {"expected a root from 0 to ",
     [](Communicator& c, bool wrong, Floats a, Floats b) {
       CollectiveHandle before = c.start_all_reduce(ReduceOp::kSum, a);
       c.start_broadcast(b, wrong ? 77 : 0).wait();
       before.wait();
     }},
};

constexpr const char* kAlgorithms[] = {"canonical", "ring", "hierarchical_copy"};

TEST(CommunicatorMismatch, InvalidArgumentsOnOneRankFailOnAllRanks) {
  for (const char* algorithm : kAlgorithms) {
    for (const WrongCall& wrong : kWrongCalls) {
      for (const int size : {2, 3, 5}) {
        const Communicators all = in_process_communicators(size, {.algorithm = algorithm});
        auto errors = errors_of_ranks(size, [&](int rank) {
          std::vector<float> a(12, 1.0f), b(12);
          try {
            wrong.call(of(all, rank), rank == 1, std::span(a), std::span(b));
          } catch (const Error& error) {
            EXPECT_EQ(to_string(error.code()), to_string(ErrorCode::kInvalidArgument));
            throw;
          }
        });
        EXPECT_THAT(errors[1], AllOf(HasSubstr("rank 1: "), HasSubstr(wrong.reason))) << algorithm;
        errors.erase(errors.begin() + 1);
        const auto is_told = AllOf(HasSubstr("collective mismatch (arguments)"),
                                   HasSubstr("rank 1 calls"), HasSubstr("which it refuses: "),
                                   HasSubstr(wrong.reason), HasSubstr("communicator_test.cc:"));
        EXPECT_THAT(errors, Each(is_told)) << algorithm;
        // All later calls fail with the same reason.
        const auto later = errors_of_ranks(size, [&](int rank) { of(all, rank).barrier(); });
        EXPECT_THAT(later, Each(is_told)) << algorithm;
      }
    }
  }
}

TEST(CommunicatorMismatch, InvalidArgumentsOnAllRanksLeaveGroupUsable) {
  for (const char* algorithm : kAlgorithms) {
    for (const WrongCall& wrong : kWrongCalls) {
      const auto errors =
          errors_of_communicators(3, {.algorithm = algorithm}, [&](Communicator& own) {
            std::vector<float> a(12, 1.0f), b(12);
            for (const char* name : {"first", "second"}) {
              own.all_reduce(ReduceOp::kMax, std::span(b), {.name = name});
              EXPECT_THROW(wrong.call(own, true, std::span(a), std::span(b)), Error);
            }
            std::vector<float> ones(12, 1.0f);
            own.all_reduce(ReduceOp::kSum, std::span(ones), {.name = "second"});
            EXPECT_THAT(ones, Each(3.0f));
            own.barrier();
          });
      EXPECT_THAT(errors, Each(std::string())) << algorithm << ": " << wrong.reason;
    }
  }
}

TEST(CommunicatorMismatch, RefusalDoesNotWaitForMissingRanks) {
  for (const char* algorithm : kAlgorithms) {
    const Communicators all = in_process_communicators(2, {.algorithm = algorithm});
    std::vector<float> a(12);
    const std::chrono::milliseconds timeout(50);
    const auto errors = errors_of_ranks(
        1, [&](int) { of(all, 0).broadcast(std::span(a), 7, {.timeout = timeout}); });
    EXPECT_THAT(errors, Each(HasSubstr("rank 0: broadcast: expected a root from 0 to 1, got 7")));
    const auto late = errors_of_ranks(1, [&](int) { of(all, 1).broadcast(std::span(a), 0); });
    EXPECT_THAT(late, Each(HasSubstr("which it refuses: expected a root from 0 to 1, got 7")))
        << algorithm;
  }
}

TEST(CommunicatorMismatch, InvalidGroupOnOneRankFailsOnAllRanks) {
  for (const std::vector<int>& wrong : {std::vector{0, 0}, {0, 2}, {1, 3}, {2, 1}}) {
    const Communicators all = in_process_communicators(3);
    auto errors = errors_of_ranks(3, [&](int rank) {
      of(all, rank).group(rank == 1 ? wrong : std::vector{0, 1, 2});
    });
    EXPECT_THAT(errors[1], HasSubstr("rank 1: group: expected "));
    errors.erase(errors.begin() + 1);
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("collective mismatch (group)"),
                                   HasSubstr("rank 1 did not name a valid group"))));
    expect_on_ranks(3, [&](int rank) { of(all, rank).barrier(); });
  }
}

TEST(CommunicatorMismatch, CallRefusedOnOneRankFailsOnAllRanks) {
  auto errors = errors_of_communicators(3, [&](Communicator& mine) {
    std::vector<float> a(12);
    if (mine.rank() != 1) return mine.all_reduce(ReduceOp::kSum, std::span(a));
    mine.refuse(Collective::kAllReduce,
                Error(ErrorCode::kDataLoss, concat("no numbers left; ", std::string(200, 'x'))));
  });
  EXPECT_THAT(errors[1], HasSubstr("no numbers left; xxx"));
  errors.erase(errors.begin() + 1);
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("collective mismatch (arguments)"),
                                 HasSubstr("which it refuses: no numbers left; xxx"))));
}

/// Call that some ranks make while the other ranks make a different call; 4 floats per rank.
struct Plain {
  const char* name;
  void (*call)(Communicator& own, Floats a, Floats b);
  bool is_of_last = false;  // true if the root is the last rank, which is rank 1 of two ranks
};
const Plain kPlain[] = {
    {"all_reduce", [](Communicator& c, Floats a,
                      Floats b) { c.all_reduce(ReduceOp::kSum, a.first(4), b.first(4)); }},
    {"reduce to 0", [](Communicator& c, Floats a,
                       Floats b) { c.reduce(ReduceOp::kSum, a.first(4), b.first(4), 0); }},
    {"reduce to 1", [](Communicator& c, Floats a,
                       Floats b) { c.reduce(ReduceOp::kSum, a.first(4), b.first(4), 1); }},
    {"broadcast of 0", [](Communicator& c, Floats a, Floats) { c.broadcast(a.first(4), 0); }},
    {"broadcast of 1", [](Communicator& c, Floats a, Floats) { c.broadcast(a.first(4), 1); }},
    {"broadcast of the last",
     [](Communicator& c, Floats a, Floats) { c.broadcast(a.first(4), c.size() - 1); }, true},
    {"all_gather", [](Communicator& c, Floats a, Floats b) { c.all_gather(a.first(4), b); }},
    {"reduce_scatter",
     [](Communicator& c, Floats a, Floats b) { c.reduce_scatter(ReduceOp::kSum, a, b.first(4)); }},
    {"all_to_all", [](Communicator& c, Floats a, Floats b) { c.all_to_all(a, b); }},
    {"barrier", [](Communicator& c, Floats, Floats) { c.barrier(); }},
};

/// Expects an error on each rank when some ranks call `one` and the other ranks call `other`. The
/// messages of both calls may have equal lengths, so that only the headers reveal the mismatch.
/// `who` has a bit for each rank that calls `one`.
void expect_no_result(const char* algorithm, int size, unsigned who, const Plain& one,
                      const Plain& other) {
  const auto errors =
      errors_of_communicators(size, {.algorithm = algorithm}, [&](Communicator& mine) {
        std::vector<float> a(4 * static_cast<std::size_t>(size), 1.0f), b(a.size());
        const bool makes_one = (who >> mine.rank() & 1) != 0;
        (makes_one ? one : other).call(mine, std::span(a), std::span(b));
      });
  EXPECT_THAT(errors, Each(HasSubstr("collective mismatch (")))
      << algorithm << ", " << size << " ranks: " << one.name << " on the ranks of bit mask " << who
      << ", " << other.name << " on the other ranks";
}

class MixedCalls : public ::testing::TestWithParam<const char*> {};

TEST_P(MixedCalls, FailOnEveryRank) {
  for (const int size : {2, 3, 4, 5}) {
    for (unsigned who = 1; who < (1u << size) - 1; who += 2) {  // rank 0 and some other ranks
      for (const Plain& one : kPlain) {
        for (const Plain& other : kPlain) {
          const bool has_last = one.is_of_last || other.is_of_last;
          if (&one == &other || (size == 2 && has_last)) continue;
          expect_no_result(GetParam(), size, who, one, other);
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Algorithms, MixedCalls,
                         ::testing::Values("canonical", "ring", "hierarchical_copy"),
                         [](const auto& param) { return std::string(param.param); });

TEST(CommunicatorMismatch, ErrorReportsSwappedOrderOfRepeatedCalls) {
  const auto errors = errors_of_communicators(2, [&](Communicator& mine) {
    std::vector<float> a(4);
    for (int step = 0; step < 3; ++step) {
      const bool swaps = step == 2 && mine.rank() == 1;
      mine.all_reduce(ReduceOp::kSum, std::span(a), {.name = swaps ? "bias" : "kernel"});
      mine.all_reduce(ReduceOp::kSum, std::span(a), {.name = swaps ? "kernel" : "bias"});
    }
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("mismatch (order)"), HasSubstr("'kernel'"),
                                 HasSubstr("'bias'"))));
}

}  // namespace tutti::communicator_test
