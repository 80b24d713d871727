// Ranks whose calls differ: an error on every rank, naming both sides.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti {
namespace communicator_mismatch_test {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Communicators = std::vector<std::unique_ptr<Communicator>>;

Communicator& of(const Communicators& all, int rank) {
  return *all[static_cast<std::size_t>(rank)];
}

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

TEST(CommunicatorMismatch, REL_G12_WhatOneRankMayNotAskForDoesNotLeaveTheOthersWaiting) {
  for (const char* algorithm : {"ring", "tree", "halving_doubling"}) {
    for (const int size : {2, 3, 5}) {
      const Communicators all = in_process_communicators(size, {.algorithm = algorithm});
      const auto errors = errors_of_ranks(size, [&](int rank) {
        std::vector<float> a(12, 1.0f);
        CallOptions options;
        if (rank == 1) options.compression = DType::kFloat16;
        of(all, rank).all_reduce(ReduceOp::kSum, std::span(a), options);
      });
      EXPECT_THAT(errors, Each(AllOf(HasSubstr("collective mismatch (compression)"),
                                     HasSubstr("rank 1 calls"), HasSubstr("float16"))))
          << algorithm;
    }
  }
}

TEST(CommunicatorMismatch, WhatAllRanksMayNotAskForIsRefusedAndTheyGoOn) {
  const Communicators all = in_process_communicators(3, {.algorithm = "ring"});
  const auto errors = errors_of_ranks(3, [&](int rank) {
    std::vector<float> a(12, 1.0f);
    EXPECT_THROW(
        of(all, rank).all_reduce(ReduceOp::kSum, std::span(a), {.compression = DType::kFloat16}),
        Error);
    of(all, rank).all_reduce(ReduceOp::kSum, std::span(a));
    EXPECT_THAT(a, Each(3.0f));
  });
  EXPECT_THAT(errors, Each(std::string()));
}

TEST(CommunicatorMismatch, OrderIsNamedWhenTheOtherCallIsKnown) {
  const Communicators all = in_process_communicators(2);
  const auto errors = errors_of_ranks(2, [&](int rank) {
    std::vector<float> a(4);
    for (int step = 0; step < 3; ++step) {
      const bool swaps = step == 2 && rank == 1;
      of(all, rank).all_reduce(ReduceOp::kSum, std::span(a), {.name = swaps ? "bias" : "kernel"});
      of(all, rank).all_reduce(ReduceOp::kSum, std::span(a), {.name = swaps ? "kernel" : "bias"});
    }
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("mismatch (order)"), HasSubstr("'kernel'"),
                                 HasSubstr("'bias'"))));
}

}  // namespace communicator_mismatch_test
}  // namespace tutti
