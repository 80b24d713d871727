// Tests local_map(): values and gradients of each collective equal those of the same function
// applied to unsharded tensors on one device.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/mesh/local_map.h"

#include <functional>
#include <string>
#include <vector>

#include "strategy/mesh/mesh_position.h"
#include "tests/mesh/mesh_helpers.h"
#include "tests/support/ranks.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/strategy/strategies.h"

namespace tutti::mesh_tests {
namespace {

using internal::MeshPosition;
using ::testing::AllOf;
using ::testing::HasSubstr;

Tensor doubles(const Shape& shape, std::uint64_t seed) {
  return cast(numbers(shape, seed), DType::kFloat64);
}

/// Returns `count` rows of x, beginning with row `first`.
Tensor rows(const Tensor& x, std::int64_t first, std::int64_t count) {
  return slice(x, {first, 0}, {count, -1});
}

/// Collective over the axis "a" of the mesh {a: 3, b: 2}; its input x [6, 12] is split into shards
/// of [2, 6].
struct Collective {
  std::string name;
  std::function<Tensor(const LocalMapContext&, const Tensor&)> local;
  std::function<Tensor(const Tensor&)> whole;  // same computation on one device
  Layout out = {"a", "b"};
};

Tensor sum_of_blocks(const Tensor& x) { return reduce_sum(reshape(x, {3, 2, 12}), {.axes = {0}}); }

/// For each position i of the axis, moves its columns to row block i.
Tensor columns_to_rows(const Tensor& x) {
  const std::int64_t count = x.shape()[0];
  return reshape(transpose(reshape(x, {count, 2, 3, 2}), {2, 0, 1, 3}), {3 * count, 4});
}

const std::vector<Collective>& collectives() {
  using Context = LocalMapContext;
  static const std::vector<Collective> all = {
      {"all_reduce", [](const Context& c, const Tensor& x) { return c.all_reduce(x, "a"); },
       [](const Tensor& x) {
         const Tensor sum = sum_of_blocks(x);
         return concat({sum, sum, sum}, 0);
       }},
      {"all_reduce, one copy",
       [](const Context& c, const Tensor& x) { return c.all_reduce(x, "a"); },
       sum_of_blocks,
       {"", "b"}},
      {"all_gather", [](const Context& c, const Tensor& x) { return c.all_gather(x, "a", 0); },
       [](const Tensor& x) {
         return concat({x, x, x}, 0);
       }},
      {"all_gather, one copy",
       [](const Context& c, const Tensor& x) { return c.all_gather(x, "a", -2); },
       [](const Tensor& x) { return x; },
       {"", "b"}},
      {"reduce_scatter",
       [](const Context& c, const Tensor& x) { return c.reduce_scatter(x, "a", 1); },
       [](const Tensor& x) { return columns_to_rows(sum_of_blocks(x)); }},
      {"all_to_all", [](const Context& c, const Tensor& x) { return c.all_to_all(x, "a", 1, 0); },
       columns_to_rows},
      {"send_receive", [](const Context& c, const Tensor& x) { return c.send_receive(x, "a", 1); },
       [](const Tensor& x) {
         return concat({rows(x, 4, 2), rows(x, 0, 4)}, 0);
       }},
      {"send_receive back",
       [](const Context& c, const Tensor& x) { return c.send_receive(x, "a", -4); },
       [](const Tensor& x) {
         return concat({rows(x, 2, 4), rows(x, 0, 2)}, 0);
       }},
      {"broadcast", [](const Context& c, const Tensor& x) { return c.broadcast(x, "a", 1); },
       [](const Tensor& x) {
         const Tensor root = rows(x, 2, 2);
         return concat({root, root, root}, 0);
       }},
      {"reduce", [](const Context& c, const Tensor& x) { return c.reduce(x, "a", 2); },
       [](const Tensor& x) {
         return concat({zeros_like(rows(x, 0, 4)), sum_of_blocks(x)}, 0);
       }}};
  return all;
}

/// Returns the function's value, and the gradients of a weighted sum of its squares with respect to
/// the inputs.
std::vector<std::vector<double>> value_and_gradients(
    const std::vector<Tensor>& inputs,
    const std::function<Tensor(const std::vector<Tensor>&)>& function) {
  GradientTape tape;
  for (const Tensor& input : inputs) tape.watch(input);
  const Tensor y = function(inputs);
  const Tensor loss = reduce_sum(square(y) * doubles(y.shape(), 9));
  std::vector<std::vector<double>> results = {y.to_doubles()};
  for (const Gradient& gradient : tape.gradient(loss, inputs)) {
    results.push_back(gradient.to_dense().to_doubles());
  }
  return results;
}

/// Runs value_and_gradients() inside a step of the strategy and returns the result.
std::vector<std::vector<double>> in_step(
    MeshStrategy& strategy, const std::vector<Tensor>& inputs,
    const std::function<Tensor(const std::vector<Tensor>&)>& function) {
  std::vector<std::vector<double>> results;
  strategy.run([&] {
    auto own = value_and_gradients(inputs, function);
    if (ReplicaContext::current().device() == strategy.replica_devices()[0]) results = own;
  });
  return results;
}

void expect_near(const std::vector<std::vector<double>>& actual,
                 const std::vector<std::vector<double>>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_THAT(actual[i], ::testing::Pointwise(::testing::DoubleNear(1e-10), expected[i]))
        << (i == 0 ? "value" : "gradient");
  }
}

/// Compares each collective on x * v with the same computation on one device; v is not sharded over
/// "a".
void compare_collectives(MeshStrategy& strategy) {
  const std::vector<Tensor> inputs = {doubles({6, 12}, 1), doubles({1, 12}, 2)};
  for (const Collective& each : collectives()) {
    SCOPED_TRACE(each.name);
    const auto expected = value_and_gradients(
        inputs, [&](const std::vector<Tensor>& in) { return each.whole(in[0] * in[1]); });
    const auto actual = in_step(strategy, inputs, [&](const std::vector<Tensor>& in) {
      return local_map(
          [&](LocalMapContext& context, const std::vector<Tensor>& local) {
            return std::vector{each.local(context, local[0] * local[1])};
          },
          in, {{"a", "b"}, {"", "b"}}, {each.out})[0];
    });
    expect_near(actual, expected);
  }
}

TEST(LocalMap, CollectivesMatchOneDevice) {
  MeshStrategy strategy(on_mesh({{"a", 3}, {"b", 2}}));
  compare_collectives(strategy);
}

TEST(LocalMap, CollectivesOverWorkersMatchOneDevice) {
  for (const int workers : {3, 6}) {
    SCOPED_TRACE(workers);
    auto communicators = in_process_communicators(workers);
    const auto errors = errors_of_ranks(workers, [&](int worker) {
      MeshStrategy strategy(std::move(communicators[static_cast<std::size_t>(worker)]),
                            on_mesh({{"a", 3}, {"b", 2}}));
      compare_collectives(strategy);
    });
    EXPECT_THAT(errors, ::testing::Each(""));
  }
}

TEST(LocalMap, RefusesMeshThatCannotBeDividedAmongWorkers) {
  auto communicators = in_process_communicators(2);
  const auto errors = errors_of_ranks(2, [&](int worker) {
    MeshStrategy(std::move(communicators[static_cast<std::size_t>(worker)]),
                 on_mesh({{"a", 3}, {"b", 2}}));
  });
  EXPECT_THAT(errors, ::testing::Each(HasSubstr("3 of the 6 positions")));
}

/// Multiplies x and w, both sharded by rows; the shards of w are passed around the ring.
Tensor ring_matmul(const std::vector<Tensor>& in) {
  return local_map(
      [](LocalMapContext& context, const std::vector<Tensor>& local) {
        const int count = context.size("ring");
        const std::int64_t length = local[1].shape()[0];
        Tensor w = local[1], sum;
        for (int step = 0; step < count; ++step) {
          const int owner = (context.index("ring") + count - step) % count;
          const Tensor product = matmul(slice(local[0], {0, owner * length}, {-1, length}), w);
          sum = step == 0 ? product : sum + product;
          if (step + 1 < count) w = context.send_receive(w, "ring", 1);
        }
        return std::vector{sum};
      },
      in, {{"ring", ""}, {"ring", ""}}, {{"ring", ""}})[0];
}

TEST(LocalMap, RingMatmulMatchesOneDevice) {
  const std::vector<Tensor> inputs = {doubles({8, 12}, 1), doubles({12, 5}, 2)};
  const auto expected = value_and_gradients(
      inputs, [](const std::vector<Tensor>& in) { return matmul(in[0], in[1]); });
  MeshStrategy strategy(on_mesh({{"ring", 4}}));
  expect_near(in_step(strategy, inputs, ring_matmul), expected);
  // Each of four positions sends a shard of w three times in the forward pass, and a shard of its
  // gradient three times in the backward pass.
  const std::map<std::string, MeshTraffic> traffic = strategy.traffic();
  EXPECT_EQ(traffic.at("send_receive").bytes, 2u * 3 * 4 * (3 * 5 * 8));
  EXPECT_EQ(traffic.at("send_receive").busiest_bytes, 2u * 3 * (3 * 5 * 8));
  expect_near(value_and_gradients(inputs, ring_matmul), expected);  // works without a mesh, too
  MirroredStrategy mirrored(LocalStrategyOptions{.devices = "cpu:0-1"});
  mirrored.run([&] { expect_near(value_and_gradients(inputs, ring_matmul), expected); });
}

TEST(LocalMap, ResultHasDeclaredLayout) {
  MeshStrategy strategy(on_mesh({{"a", 2}, {"b", 2}}));
  strategy.run([&] {
    const Tensor y = local_map(
        [](LocalMapContext& context, const std::vector<Tensor>& local) {
          EXPECT_EQ(local[0].shape(), (Shape{4, 3}));
          return std::vector{context.all_to_all(local[0], "b", 0, 1)};
        },
        {Tensor::ones({4, 6})}, {{"", "b"}}, {{"b", ""}})[0];
    EXPECT_EQ(y.shape(), (Shape{4, 6}));
    EXPECT_EQ(MeshPosition::current()->part_of(y).local.shape(), (Shape{2, 6}));
  });
}

TEST(LocalMap, SecondDerivativesMatchOneDevice) {
  MeshStrategy strategy(on_mesh({{"a", 4}}));
  strategy.run([] {
    const Tensor x = Tensor::from<double>({4}, {1, 2, 3, 4});
    GradientTape outer;
    outer.watch(x);
    GradientTape inner;
    inner.watch(x);
    const Tensor y = local_map(
        [](LocalMapContext& context, const std::vector<Tensor>& local) {
          const Tensor& own = local[0];
          return std::vector{context.all_gather(own * own * own, "a", 0)};
        },
        {x}, {{"a"}}, {{""}})[0];
    const Tensor gradient = inner.gradient(reduce_sum(y), x).to_dense();
    EXPECT_EQ(gradient.to_doubles(), (std::vector<double>{3, 12, 27, 48}));
    EXPECT_EQ(outer.gradient(reduce_sum(gradient), x).to_dense().to_doubles(),
              (std::vector<double>{6, 12, 18, 24}));
  });
}

TEST(MeshTraffic, MatchesCollectiveFormulas) {
  MeshStrategy strategy(on_mesh({{"a", 2}, {"b", 4}}));
  strategy.run([] {
    local_map(
        [](LocalMapContext& c, const std::vector<Tensor>& local) {
          const Tensor& x = local[0];  // 32 bytes
          c.all_reduce(x, "b");
          c.all_gather(x, "b", 0);
          c.reduce_scatter(x, "b", 0);
          c.all_to_all(x, "b", 0, 0);
          c.send_receive(x, "b", 5);
          c.send_receive(x, "b", 4);
          c.broadcast(x, "b", 3);
          c.reduce(x, "b", 3);
          return local;
        },
        {Tensor::ones({8})}, {{""}}, {{""}});
  });
  std::map<std::string, std::vector<std::uint64_t>> bytes;
  for (const auto& [kind, traffic] : strategy.traffic()) {
    bytes[kind] = {traffic.bytes, traffic.busiest_bytes};
  }
  const std::map<std::string, std::vector<std::uint64_t>> expected = {
      {"all_reduce", {8 * 48, 48}},     {"all_gather", {8 * 96, 96}},
      {"reduce_scatter", {8 * 24, 24}}, {"all_to_all", {8 * 24, 24}},
      {"send_receive", {8 * 32, 32}},   {"broadcast", {2 * 96, 96}},
      {"reduce", {2 * 96, 96}}};
  EXPECT_EQ(bytes, expected);
}

/// Returns the error message of a step that calls local_map() with x [4, 6].
std::string message_of_step(const LocalFunction& fn, const std::vector<Layout>& in,
                            const std::vector<Layout>& out) {
  MeshOptions options = on_mesh({{"a", 2}, {"b", 3}});
  options.local.timeout = std::chrono::seconds(5);
  MeshStrategy strategy(options);
  return message_of([&] { strategy.run([&] { local_map(fn, {Tensor::ones({4, 6})}, in, out); }); });
}

TEST(LocalMap, RefusesLayoutsThatDoNotFit) {
  const auto same = [](LocalMapContext&, const std::vector<Tensor>& local) { return local; };
  EXPECT_THAT(
      message_of_step(same, {}, {{"", ""}}),
      AllOf(HasSubstr("local_map_test.cc"), HasSubstr("expected 1 layouts, one per input")));
  EXPECT_THAT(message_of_step(same, {{"", ""}}, {}),
              HasSubstr("expected 1 layouts, one per result"));
  EXPECT_THAT(message_of_step(same, {{"a"}}, {{"", ""}}), HasSubstr("input 0: the layout [a]"));
  EXPECT_THAT(message_of_step(same, {{"", ""}}, {{"a", "b", ""}}),
              HasSubstr("result 0: the layou"));
  EXPECT_THAT(message_of_step(same, {{"b", ""}}, {{"", ""}}),
              HasSubstr("[4, 6] is not divisible by the 3 positions of the axis 'b'"));
  EXPECT_THAT(message_of_step(same, {{"c", ""}}, {{"", ""}}), HasSubstr("one of a, b"));
}

TEST(LocalMap, RefusesInvalidCollectiveArguments) {
  const auto message =
      [](const std::function<Tensor(const LocalMapContext&, const Tensor&)>& call) {
        return message_of_step(
            [&](LocalMapContext& context, const std::vector<Tensor>& local) {
              return std::vector{call(context, local[0])};
            },
            {{"", ""}}, {{"", ""}});
      };
  using Context = LocalMapContext;
  EXPECT_THAT(message([](const Context& c, const Tensor& x) { return c.all_reduce(x, "c"); }),
              HasSubstr("one of a, b"));
  EXPECT_THAT(message([](const Context& c, const Tensor& x) { return c.all_gather(x, "a", 2); }),
              HasSubstr("axis 2 is out of range"));
  EXPECT_THAT(
      message([](const Context& c, const Tensor& x) { return c.reduce_scatter(x, "b", 0); }),
      AllOf(HasSubstr("reduce_scatter at local_map_test.cc"), HasSubstr("dimension 0")));
  EXPECT_THAT(message([](const Context& c, const Tensor& x) { return c.broadcast(x, "b", 3); }),
              HasSubstr("expected an index from 0 to 2"));
  EXPECT_THAT(message([](const Context& c, const Tensor& x) {
                return c.index("a") == 0 ? c.all_reduce(x, "a") : c.all_gather(x, "a", 0);
              }),
              HasSubstr("local_map_test.cc"));
}

TEST(LocalMap, RefusesResultsOfDifferentShapes) {
  EXPECT_THAT(message_of_step(
                  [](LocalMapContext& context, const std::vector<Tensor>& local) {
                    return std::vector{rows(local[0], 0, 1 + context.index("a"))};
                  },
                  {{"", ""}}, {{"", ""}}),
              AllOf(HasSubstr("[1, 6]"), HasSubstr("[2, 6]"), HasSubstr("local_map_test.cc")));
}

TEST(LocalMap, RefusesCapturedValuesRecordedByTape) {
  MeshStrategy strategy(on_mesh({{"a", 2}}));
  std::optional<Variable> w;
  {
    const auto scope = strategy.scope();
    w.emplace(Tensor::ones({4}), VariableOptions{.name = "w"});
  }
  const auto message = [&](const std::function<Tensor(const Tensor&)>& outside,
                           const std::function<Tensor(const Tensor&, const Tensor&)>& inside) {
    return message_of([&] {
      strategy.run([&] {
        GradientTape tape;
        const Tensor x = Tensor::ones({4});
        tape.watch(x);
        const Tensor value = outside(x);
        local_map(
            [&](LocalMapContext&, const std::vector<Tensor>& local) {
              return std::vector{inside(local[0], value)};
            },
            {x}, {{""}}, {{""}});
      });
    });
  };
  const auto doubled = [](const Tensor& x) { return x * 2.0f; };
  const auto sum = [](const Tensor& local, const Tensor& value) { return local + value; };
  EXPECT_THAT(message(doubled, sum),
              HasSubstr("uses a tensor [4] that a GradientTape recorded outside"));
  EXPECT_THAT(message(doubled, [](const Tensor&, const Tensor& value) { return value; }),
              HasSubstr("uses a tensor [4] that a GradientTape recorded outside"));
  EXPECT_THAT(message([](const Tensor& x) { return relayout(x, {"a"}); }, sum),
              HasSubstr("a sharded tensor in the function of local_map at local_map_test.cc"));
  EXPECT_THAT(
      message(doubled, [](const Tensor& local, const Tensor&) { return relayout(local, {"a"}); }),
      HasSubstr("relayout: got a sharded tensor"));
  EXPECT_THAT(
      message(doubled, [&](const Tensor& local, const Tensor&) { return local * w->value(); }),
      HasSubstr("the function reads the variable 'w'"));
  EXPECT_EQ(message([](const Tensor& x) { return stop_gradient(x * 2.0f); }, sum), "");
}

TEST(LocalMap, RefusesGradientComputedAfterStep) {
  MeshStrategy strategy(on_mesh({{"a", 2}}));
  const std::string message = message_of([&] {
    const Tensor x = Tensor::ones({4});
    std::function<void()> gradient;
    strategy.run([&] {
      auto tape = std::make_shared<GradientTape>();
      tape->watch(x);
      const Tensor y = local_map(
          [](LocalMapContext& context, const std::vector<Tensor>& local) {
            return std::vector{context.all_reduce(local[0], "a")};
          },
          {x}, {{"a"}}, {{""}})[0];
      tape->stop();
      if (MeshPosition::current()->number() == 0) {
        gradient = [tape, y, x] { tape->gradient(y, x); };
      }
    });
    gradient();
  });
  EXPECT_THAT(message, HasSubstr("local_map: the context or a gradient was used outside"));
}

}  // namespace
}  // namespace tutti::mesh_tests
