// Ranks whose calls differ: an error on every rank, naming both sides.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cross_device_ops/cdo_helpers.h"
#include "tests/support/ranks.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti {
namespace communicator_mismatch_test {
using namespace cdo_tests;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Each rank makes the call that `calls` gives for it; all must get an error with `kind`.
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
                                   HasSubstr("communicator_mismatch_test.cc:"))))
        << kind;
    // Nothing works afterwards, and says why.
    const auto later = errors_of_ranks(size, [&](int rank) { of(all, rank).barrier(); });
    EXPECT_THAT(later, Each(HasSubstr("collective mismatch (" + kind + ")"))) << kind;
  }
}

using Floats = std::span<float>;

TEST(CommunicatorMismatch, IsAnErrorOnEveryRankNamingBothSides) {
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
  expect_mismatch("compression", [](Communicator& c, bool odd, Floats a, Floats) {
    c.all_reduce(ReduceOp::kSum, a, {.compression = odd ? DType::kBFloat16 : DType::kFloat16});
  });
  expect_mismatch("name", [](Communicator& c, bool odd, Floats a, Floats) {
    c.all_reduce(ReduceOp::kSum, a, {.name = odd ? "dense/bias" : "dense/kernel"});
  });
  expect_mismatch("count", [](Communicator& c, bool odd, Floats a, Floats b) {
    if (c.size() != 2) return c.all_reduce(ReduceOp::kSum, odd ? a.first(3) : a);
    const std::vector<std::size_t> sent = {odd ? std::size_t{5} : 6, odd ? std::size_t{7} : 6};
    c.all_to_all(a, b, sent, std::vector<std::size_t>{6, 6});
  });
}

TEST(CommunicatorMismatch, InvalidOptionOfOneRankFailsOnAll) {
  for (const char* algorithm : {"ring", "tree", "halving_doubling"}) {
    for (const int size : {2, 3, 5}) {
      const auto errors =
          errors_of_communicators(size, {.algorithm = algorithm}, [&](Communicator& mine) {
            std::vector<float> a(12, 1.0f);
            CallOptions options;
            if (mine.rank() == 1) options.compression = DType::kFloat16;
            mine.all_reduce(ReduceOp::kSum, std::span(a), options);
          });
      EXPECT_THAT(errors, Each(AllOf(HasSubstr("collective mismatch (compression)"),
                                     HasSubstr("rank 1 calls"), HasSubstr("float16"))))
          << algorithm;
    }
  }
}

TEST(CommunicatorMismatch, WhatAllRanksMayNotAskForIsRefusedAndTheyGoOn) {
  const auto errors = errors_of_communicators(3, {.algorithm = "ring"}, [&](Communicator& mine) {
    std::vector<float> a(12, 1.0f);
    EXPECT_THROW(mine.all_reduce(ReduceOp::kSum, std::span(a), {.compression = DType::kFloat16}),
                 Error);
    mine.all_reduce(ReduceOp::kSum, std::span(a));
    EXPECT_THAT(a, Each(3.0f));
  });
  EXPECT_THAT(errors, Each(std::string()));
}

/// What a rank must not ask for, whatever the others do.
struct WrongCall {
  const char* reason;  // as it reaches the others
  void (*call)(Communicator& own, bool wrong, Floats a, Floats b);
};

const WrongCall kWrongCalls[] = {
    {"expected a root from 0 to ",
     [](Communicator& c, bool wrong, Floats a, Floats) { c.broadcast(a, wrong ? c.size() : 0); }},
    {"expected a root from 0 to ",
     [](Communicator& c, bool wrong, Floats a, Floats b) {
       c.reduce(ReduceOp::kSum, a, b, wrong ? -1 : 0, {.name = "kernel"});
     }},
    // The calls are alike but for the memory.
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
    {"MEAN needs a floating type, got int32",
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

constexpr const char* kAlgorithms[] = {"canonical", "auto", "ring", "tree", "halving_doubling"};

TEST(CommunicatorMismatch, InvalidArgumentsOfOneRankFailOnAll) {
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
        const auto is_told =
            AllOf(HasSubstr("collective mismatch (arguments)"), HasSubstr("rank 1 calls"),
                  HasSubstr("which it refuses: "), HasSubstr(wrong.reason),
                  HasSubstr("communicator_mismatch_test.cc:"));
        EXPECT_THAT(errors, Each(is_told)) << algorithm;
        // Nothing works afterwards, and says why.
        const auto later = errors_of_ranks(size, [&](int rank) { of(all, rank).barrier(); });
        EXPECT_THAT(later, Each(is_told)) << algorithm;
      }
    }
  }
}

TEST(CommunicatorMismatch, ArgumentsThatAreWrongOnAllRanksAreRefusedAndTheyGoOn) {
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

TEST(CommunicatorMismatch, WhoRefusesDoesNotWaitForRanksThatDoNotCome) {
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

TEST(CommunicatorMismatch, AGroupThatIsNoneIsAnErrorOnEveryRank) {
  for (const std::vector<int>& wrong : {std::vector{0, 0}, {0, 2}, {1, 3}, {2, 1}}) {
    const Communicators all = in_process_communicators(3);
    auto errors = errors_of_ranks(3, [&](int rank) {
      of(all, rank).group(rank == 1 ? wrong : std::vector{0, 1, 2});
    });
    EXPECT_THAT(errors[1], HasSubstr("rank 1: group: expected "));
    errors.erase(errors.begin() + 1);
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("collective mismatch (group)"),
                                   HasSubstr("rank 1 names no group"))));
    expect_on_ranks(3, [&](int rank) { of(all, rank).barrier(); });
  }
}

TEST(CommunicatorMismatch, AReasonOfTheCallersOwnReachesTheOthers) {
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

/// What one rank calls while all others call something else; parts of 4 floats of each.
struct Plain {
  const char* name;
  void (*call)(Communicator& own, Floats a, Floats b);
  bool is_of_last = false;  // of two ranks that is 1
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

/// Messages of both have the same lengths, so nothing but the headers can tell; a rank that gets a
/// result of the other call is worse than one that waits. `who`: a bit for each rank that makes
/// `one`.
void expect_no_result(const char* algorithm, int size, unsigned who, const Plain& one,
                      const Plain& other) {
  const auto errors =
      errors_of_communicators(size, {.algorithm = algorithm}, [&](Communicator& mine) {
        std::vector<float> a(4 * static_cast<std::size_t>(size), 1.0f), b(a.size());
        const bool makes_one = (who >> mine.rank() & 1) != 0;
        (makes_one ? one : other).call(mine, std::span(a), std::span(b));
      });
  EXPECT_THAT(errors, Each(HasSubstr("collective mismatch (")))
      << algorithm << ", " << size << " ranks: " << one.name << " on the ranks of " << who << ", "
      << other.name << " on the others";
}

class MixedCalls : public ::testing::TestWithParam<const char*> {};

TEST_P(MixedCalls, FailOnEveryRank) {
  for (const int size : {2, 3, 4, 5}) {
    for (unsigned who = 1; who < (1u << size) - 1; who += 2) {  // rank 0 and some others
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
                         ::testing::Values("canonical", "ring", "tree", "halving_doubling"),
                         [](const auto& param) { return std::string(param.param); });

TEST(CommunicatorMismatch, OrderIsNamedWhenTheOtherCallIsKnown) {
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

}  // namespace communicator_mismatch_test
}  // namespace tutti
