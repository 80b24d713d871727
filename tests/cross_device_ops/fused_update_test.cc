// Sum of gradients and optimizer step in one pass: the same bits as one after the other.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/ranks.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti {
namespace fused_update_test {

using ::testing::HasSubstr;

// A rule with two slots, in both types.
class MomentsRule final : public UpdateRule {
 public:
  std::string_view name() const override { return "moments"; }
  std::vector<SlotSpec> slots() const override { return {{"first", 0.0}, {"second", 1.0}}; }
  void apply(const UpdateArgs& args) const override {
    visit_arithmetic_floating(args.dtype, "moments", [&]<class T>() {
      const T lr = static_cast<T>(args.scalars.learning_rate);
      for (std::size_t i = 0; i < args.count; ++i) {
        const T g = args.gradient<T>()[i];
        args.slot<T>(0)[i] = T(0.9) * args.slot<T>(0)[i] + g;
        args.slot<T>(1)[i] = T(0.99) * args.slot<T>(1)[i] + g * g;
        args.weights<T>()[i] -= lr * args.slot<T>(0)[i] / std::sqrt(args.slot<T>(1)[i]);
      }
    });
  }
};

template <class T>
struct Replica {
  explicit Replica(int rank, const std::vector<std::size_t>& sizes) {
    for (const std::size_t size : sizes) {
      std::vector<T>& gradient = gradients.emplace_back(size);
      std::vector<T>& weight = weights.emplace_back(size);
      for (std::size_t i = 0; i < size; ++i) {
        gradient[i] = static_cast<T>(std::sin(0.37 * static_cast<double>(i) + rank));
        weight[i] = static_cast<T>(std::cos(0.11 * static_cast<double>(i)));
      }
      first.emplace_back(size, T(0));
      second.emplace_back(size, T(1));
    }
  }
  static std::vector<Elements> elements(std::vector<std::vector<T>>& lists) {
    std::vector<Elements> result;
    for (auto& list : lists) result.emplace_back(std::span(list));
    return result;
  }
  bool operator==(const Replica&) const = default;
  std::vector<std::vector<T>> gradients, weights, first, second;
};

template <class T>
void expect_same_bits(int size, ReduceOp op, const std::vector<std::size_t>& sizes) {
  const MomentsRule rule;
  const UpdateScalars scalars{.learning_rate = 0.05};
  const auto fused = in_process_communicators(size);
  const auto apart = in_process_communicators(size);
  EXPECT_EQ(error_of_ranks(
                size,
                [&](int rank) {
                  const auto r = static_cast<std::size_t>(rank);
                  Replica<T> a(rank, sizes), b(rank, sizes);
                  for (int step = 0; step < 3; ++step) {
                    const auto sums = Replica<T>::elements(a.gradients);
                    const std::vector<ConstElements> gradients(sums.begin(), sums.end());
                    const auto weights = Replica<T>::elements(a.weights);
                    const auto first = Replica<T>::elements(a.first);
                    const auto second = Replica<T>::elements(a.second);
                    const std::vector<std::span<const Elements>> slots = {first, second};
                    fused[r]->all_reduce_and_update(
                        op, gradients,
                        {.rule = &rule, .scalars = scalars, .weights = weights, .slots = slots});

                    Replica<T> summed = b;
                    apart[r]->all_reduce(op, Replica<T>::elements(summed.gradients));
                    for (std::size_t i = 0; i < sizes.size(); ++i) {
                      void* const slot_data[] = {b.first[i].data(), b.second[i].data()};
                      rule.apply({dtype_of<T>(), sizes[i], b.weights[i].data(), slot_data,
                                  summed.gradients[i].data(), scalars});
                    }
                  }
                  if (!(a == b)) throw Error(ErrorCode::kInternal, "bits differ");
                }),
            "");
}

TEST(FusedUpdate, GivesTheBitsOfSumThenUpdate) {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
      expect_same_bits<float>(size, op, {5, 0, 3000, 64, 1});
      expect_same_bits<double>(size, op, {700});
    }
  }
}

TEST(FusedUpdate, GivesThemForMemoryLargerThanCaches) {
  expect_same_bits<float>(2, ReduceOp::kSum, {1000003, 4097, 2500000});
}

TEST(FusedUpdate, WrongStepsAreRefused) {
  const auto all = in_process_communicators(2);
  const MomentsRule rule;
  std::vector<float> g(8), w(8), short_one(7);
  const std::vector<ConstElements> gradients = {std::span(g)};
  const std::vector<Elements> weights = {std::span(w)}, wrong = {std::span(short_one)};
  const auto message = [&](const FusedUpdate& update, ReduceOp op = ReduceOp::kSum) {
    try {
      all[0]->all_reduce_and_update(op, gradients, update);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("no error");
  };
  EXPECT_THAT(message({.weights = weights}), HasSubstr("expected an update rule"));
  EXPECT_THAT(message({.rule = &rule, .weights = wrong}), HasSubstr("weights[0] of 8 x float32"));
  EXPECT_THAT(message({.rule = &rule, .weights = weights}), HasSubstr("expected 2 slots"));
  EXPECT_THAT(message({.rule = &rule, .weights = weights}, ReduceOp::kMax), HasSubstr("got MAX"));
}

TEST(FusedUpdate, RanksWithDifferentLearningRatesAreAMismatch) {
  const auto all = in_process_communicators(2);
  const MomentsRule rule;
  const auto errors = errors_of_ranks(2, [&](int rank) {
    Replica<float> own(rank, {16});
    const auto g = Replica<float>::elements(own.gradients);
    const auto weights = Replica<float>::elements(own.weights);
    const auto first = Replica<float>::elements(own.first);
    const auto second = Replica<float>::elements(own.second);
    const std::vector<std::span<const Elements>> slots = {first, second};
    const std::vector<ConstElements> gradients(g.begin(), g.end());
    all[static_cast<std::size_t>(rank)]->all_reduce_and_update(
        ReduceOp::kSum, gradients,
        {.rule = &rule,
         .scalars = {.learning_rate = 0.1 * rank},
         .weights = weights,
         .slots = slots});
  });
  EXPECT_THAT(errors, ::testing::Each(HasSubstr("collective mismatch (operation)")));
}

}  // namespace fused_update_test
}  // namespace tutti
