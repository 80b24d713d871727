// Tests gradient tapes: watching, nesting, persistence, ready callbacks, pruning, custom gradients,
// device scopes.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/gradient_tape.h"

#include <map>

#include "tests/support/tensor_matchers.h"
#include "tutti/autograd/variable.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing::gradient_tape_test {

namespace tape_test {

Variable variable(double value, const char* name = "v") {
  VariableOptions options;
  options.name = name;
  return Variable(Tensor::scalar(value, DType::kFloat64), options);
}

double number(const Gradient& gradient) { return gradient.dense().item_double(); }

template <class T>
concept HasRows = requires(const T& x) {
  x.rows(0, 1);
};
template <class T>
concept HasReshaped = requires(const T& x) {
  x.reshaped(Shape{1});
};

/// Observer that counts the operations that run.
class Counter final : public OpObserver {
 public:
  void on_op(const OpCall& call, std::span<const Tensor>) override { ++counts[call.op]; }
  std::map<OpId, int> counts;

 private:
  ObserverScope scope_{*this};
};

}  // namespace tape_test

using tape_test::number;

TEST(GradientTape, DifferentiatesVariablesThatWereRead) {
  const Variable v = tape_test::variable(3.0);
  GradientTape tape;
  const Tensor y = v * v + 2.0 * v;
  EXPECT_EQ(number(tape.gradient(y, v)), 8.0);
}

TEST(GradientTape, AccumulatesOverAllReadsOfVariable) {
  const Variable v = tape_test::variable(2.0);
  GradientTape tape;
  Tensor y = v.value();
  for (int i = 0; i < 4; ++i) y = y * v;
  EXPECT_EQ(number(tape.gradient(y, v)), 5.0 * 16.0);
}

TEST(GradientTape, NonScalarTargetIsSummed) {
  const Tensor x = Tensor::from<double>({2, 2}, {1, 2, 3, 4});
  GradientTape tape;
  tape.watch(x);
  const Tensor y = square(x);
  EXPECT_EQ(tape.gradient(y, x).dense().to_doubles(), (std::vector<double>{2, 4, 6, 8}));
}

TEST(GradientTape, OutputGradientArgumentReplacesDefaultOfOnes) {
  const Variable v(Tensor::from<double>({2}, {1, 2}));
  GradientTape tape;
  const Tensor y = square(v);
  const auto gradients =
      tape.gradient_with(y, Tensor::from<double>({2}, {10, 100}), std::span(&v, 1));
  EXPECT_EQ(gradients[0].dense().to_doubles(), (std::vector<double>{20, 400}));
}

TEST(GradientTape, GradientOfTargetWithRespectToItselfIsOne) {
  const Variable v = tape_test::variable(3.0);
  GradientTape tape({.persistent = true});
  const Tensor y = v.value();
  const Tensor z = square(y);
  EXPECT_EQ(number(tape.gradient(y, v)), 1.0);
  EXPECT_EQ(number(tape.gradient(z, z)), 1.0);
}

TEST(GradientTape, IntermediateTensorsCanBeSources) {
  const Tensor x = Tensor::scalar(3.0, DType::kFloat64);
  GradientTape tape({.persistent = true});
  tape.watch(x);
  const Tensor y = square(x);
  const Tensor z = square(y);
  const Tensor both[] = {x, y};
  const auto gradients = tape.gradient(z, both);
  EXPECT_EQ(number(gradients[0]), 108.0);
  EXPECT_EQ(number(gradients[1]), 18.0);
}

TEST(GradientTape, SingleReadOfVariableCanBeSource) {
  const Variable v = tape_test::variable(3.0);
  GradientTape tape({.persistent = true});
  const Tensor first = v.value(), second = v.value();
  const Tensor y = first * first * second;
  EXPECT_EQ(number(tape.gradient(y, first)), 18.0);
  EXPECT_EQ(number(tape.gradient(y, second)), 9.0);
  EXPECT_EQ(number(tape.gradient(y, v)), 27.0);
}

TEST(GradientTape, SourcesUnconnectedToTargetHaveNoGradient) {
  const Variable used = tape_test::variable(1.0), unused = tape_test::variable(2.0),
                 read_only = tape_test::variable(3.0);
  const Tensor unseen = Tensor::scalar(1.0, DType::kFloat64);
  GradientTape tape({.persistent = true});
  const Tensor side = square(read_only);
  const Tensor y = square(used);
  const Variable sources[] = {unused, used, read_only};
  const auto gradients = tape.gradient(y, sources);
  EXPECT_TRUE(gradients[0].is_none());
  EXPECT_EQ(number(gradients[1]), 2.0);
  EXPECT_TRUE(gradients[2].is_none());
  EXPECT_TRUE(tape.gradient(y, unseen).is_none());
  EXPECT_TRUE(tape.gradient(unseen, used).is_none());
}

TEST(GradientTape, ViewsHaveGradientsUnlessDetached) {
  static_assert(!tape_test::HasRows<Tensor> && !tape_test::HasReshaped<Tensor>);
  const Variable v(Tensor::ones({2, 3}), {.name = "v"});
  const auto has_gradient = [&](auto view) {
    GradientTape tape;
    return !tape.gradient(view(v.value()), v).is_none();
  };
  EXPECT_FALSE(has_gradient([](const Tensor& x) { return x.detached_rows(0, 1); }));
  EXPECT_FALSE(has_gradient([](const Tensor& x) { return x.detached_reshape({6}); }));
  EXPECT_TRUE(has_gradient([](const Tensor& x) { return x[0]; }));
  EXPECT_TRUE(has_gradient([](const Tensor& x) { return x.reshape({6}); }));
}

TEST(GradientTape, WatchesOnlyTrainableVariablesByDefault) {
  VariableOptions options;
  options.trainable = false;
  const Variable frozen(Tensor::scalar(2.0, DType::kFloat64), options);
  {
    GradientTape tape;
    EXPECT_TRUE(tape.gradient(square(frozen), frozen).is_none());
  }
  GradientTape tape;
  tape.watch(frozen);
  EXPECT_EQ(number(tape.gradient(square(frozen), frozen)), 4.0);
}

TEST(GradientTape, DoesNotWatchAccessedVariablesIfOptionIsOff) {
  const Variable a = tape_test::variable(2.0), b = tape_test::variable(3.0);
  GradientTape tape({.watch_accessed_variables = false});
  tape.watch(b);
  const Tensor y = a * b;
  const Variable sources[] = {a, b};
  const auto gradients = tape.gradient(y, sources);
  EXPECT_TRUE(gradients[0].is_none());
  EXPECT_EQ(number(gradients[1]), 2.0);
}

TEST(GradientTape, ListsWatchedVariablesInOrderOfFirstUse) {
  const Variable a = tape_test::variable(1.0, "a"), b = tape_test::variable(1.0, "b"),
                 c = tape_test::variable(1.0, "c");
  GradientTape tape;
  tape.watch(c);
  const Tensor y = b * a * b;
  const auto watched = tape.watched_variables();
  ASSERT_EQ(watched.size(), 3u);
  EXPECT_EQ(watched[0].name(), "c");
  EXPECT_EQ(watched[1].name(), "b");
  EXPECT_EQ(watched[2].name(), "a");
}

TEST(GradientTape, SecondGradientCallOfNonPersistentTapeFails) {
  const Variable v = tape_test::variable(1.0);
  GradientTape tape;
  const Tensor y = square(v);
  tape.gradient(y, v);
  EXPECT_ERROR(tape.gradient(y, v), kFailedPrecondition, "persistent");
}

TEST(GradientTape, PersistentTapeComputesRepeatedlyAndRecordsBackwardPass) {
  const Variable v = tape_test::variable(3.0);
  GradientTape tape({.persistent = true});
  const Tensor y = v * v * v;
  const Tensor first = tape.gradient(y, v).dense();
  EXPECT_EQ(first.item_double(), 27.0);
  EXPECT_EQ(number(tape.gradient(y, v)), 27.0);
  EXPECT_EQ(number(tape.gradient(first, v)), 18.0);
}

TEST(GradientTape, NonPersistentTapeStopsRecordingAtGradient) {
  const Variable v = tape_test::variable(3.0);
  GradientTape outer;
  GradientTape inner;
  const Tensor y = v * v * v;
  const Tensor first = inner.gradient(y, v).dense();
  // the outer tape records this product, and has recorded the backward pass of `inner`
  const Tensor later = first * v;
  EXPECT_EQ(number(outer.gradient(later, v)), 18.0 * 3.0 + 27.0);
}

TEST(GradientTape, ComputesThirdOrderDerivatives) {
  const Tensor x = Tensor::scalar(2.0, DType::kFloat64);
  GradientTape first, second, third;
  first.watch(x);
  second.watch(x);
  third.watch(x);
  const Tensor y = square(square(x));  // x^4
  const Tensor d1 = third.gradient(y, x).dense();
  const Tensor d2 = second.gradient(d1, x).dense();
  EXPECT_EQ(number(first.gradient(d2, x)), 48.0);
}

TEST(GradientTape, NestedTapesCanEndInAnyOrder) {
  const Variable v = tape_test::variable(3.0);
  auto first = std::make_unique<GradientTape>();
  auto second = std::make_unique<GradientTape>();
  const Tensor y = square(v);
  first.reset();
  const Tensor z = square(y);
  EXPECT_EQ(number(second->gradient(z, v)), 108.0);
  second.reset();
  GradientTape third;
  EXPECT_EQ(number(third.gradient(square(v), v)), 6.0);
}

TEST(GradientTape, StopRecordingHidesOperationsAndReads) {
  const Variable v = tape_test::variable(3.0);
  GradientTape tape;
  Tensor hidden;
  {
    const GradientTape::StopRecording stop;
    { const GradientTape::StopRecording again; }
    hidden = square(v);
  }
  const Tensor y = hidden * v;
  EXPECT_EQ(number(tape.gradient(y, v)), 9.0);
}

/// The target is the sum of relu(x w0 + b0) w1 + b1; the sources are w0, b0, w1, b1, and an unused
/// variable between b0 and w1.
TEST(GradientTape, ReportsGradientsAsTheyBecomeReadyLastLayerFirst) {
  const Variable w0(Tensor::full({3, 4}, 0.5, DType::kFloat64)),
      b0(Tensor::zeros({4}, DType::kFloat64)), unused(Tensor::zeros({2}, DType::kFloat64)),
      w1(Tensor::full({4, 2}, 0.25, DType::kFloat64)), b1(Tensor::zeros({2}, DType::kFloat64));
  const Variable sources[] = {w0, b0, unused, w1, b1};
  const Tensor x = Tensor::ones({5, 3}, DType::kFloat64);
  std::vector<std::size_t> order;
  std::vector<Gradient> reported(5);
  tape_test::Counter counter;
  GradientTape tape;
  const Tensor hidden = relu(matmul(x, w0) + b0);
  const Tensor loss = reduce_sum(matmul(hidden, w1) + b1);
  counter.counts.clear();
  std::vector<int> products;
  const auto gradients =
      tape.gradient(loss, sources, [&](std::size_t index, const Gradient& gradient) {
        order.push_back(index);
        reported[index] = gradient;
        products.push_back(counter.counts[OpId::kMatMul]);
      });
  EXPECT_EQ(order, (std::vector<std::size_t>{4, 3, 1, 0, 2}));
  EXPECT_EQ(products, (std::vector<int>{0, 2, 2, 3, 3})) << "a gradient was reported late";
  GradientTape second;
  const Tensor same_loss = reduce_sum(matmul(relu(matmul(x, w0) + b0), w1) + b1);
  const auto expected = second.gradient(same_loss, sources);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(gradients[i].is_none()) << "a gradient passed to the callback is also returned";
    EXPECT_EQ(reported[i].is_none(), i == 2);
    EXPECT_EQ(expected[i].is_none(), i == 2);
    if (i == 2) continue;
    EXPECT_EQ(expected[i].dense().to_doubles(), reported[i].dense().to_doubles());
  }
}

TEST(GradientTape, GradientOfSharedVariableIsReportedAfterEarliestUse) {
  const Variable shared = tape_test::variable(2.0), late = tape_test::variable(3.0);
  const Variable sources[] = {shared, late};
  GradientTape tape;
  const Tensor early = square(shared);
  const Tensor middle = early * late;
  const Tensor y = middle * shared;
  std::vector<std::size_t> order;
  std::vector<double> values;
  tape.gradient(y, sources, [&](std::size_t index, const Gradient& gradient) {
    order.push_back(index);
    values.push_back(number(gradient));
  });
  EXPECT_EQ(order, (std::vector<std::size_t>{1, 0}));
  EXPECT_EQ(values, (std::vector<double>{8.0, 36.0}));
}

TEST(GradientTape, ReportsEachUnconnectedSourceOnce) {
  const Variable a = tape_test::variable(1.0), b = tape_test::variable(1.0);
  const Variable sources[] = {a, b, a};
  GradientTape tape;
  std::vector<std::size_t> order;
  tape.gradient(Tensor(1.0f), sources, [&](std::size_t index, const Gradient& gradient) {
    EXPECT_TRUE(gradient.is_none());
    order.push_back(index);
  });
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2}));
}

TEST(GradientTape, SourceListedTwiceGetsGradientTwice) {
  const Variable v = tape_test::variable(3.0);
  const Variable sources[] = {v, v};
  GradientTape tape;
  const auto gradients = tape.gradient(square(v), sources);
  EXPECT_EQ(number(gradients[0]), 6.0);
  EXPECT_EQ(number(gradients[1]), 6.0);
}

TEST(GradientTape, SkipsGradientsNotNeededForSources) {
  const Variable filter(Tensor::full({2, 2, 1, 1}, 0.5, DType::kFloat64));
  const Variable unrelated(Tensor::full({2, 2}, 0.5, DType::kFloat64));
  const Tensor image = Tensor::ones({1, 4, 4, 1}, DType::kFloat64);
  tape_test::Counter counter;
  GradientTape tape;
  const Tensor side = reduce_sum(matmul(unrelated, unrelated));
  const Tensor y = reduce_sum(conv2d(image, filter)) * stop_gradient(side) + side;
  counter.counts.clear();
  EXPECT_FALSE(tape.gradient(y, filter).is_none());
  EXPECT_EQ(counter.counts[OpId::kConv2dBackwardFilter], 1);
  EXPECT_EQ(counter.counts[OpId::kConv2dBackwardInput], 0) << "the image is not a source";
  EXPECT_EQ(counter.counts[OpId::kMatMul], 0) << "no source is an input of these products";
}

TEST(GradientTape, RunsNoOperationIfSourceIsUnconnected) {
  const Variable a = tape_test::variable(1.0), b = tape_test::variable(2.0);
  GradientTape tape;
  const Tensor y = exp(square(a));
  tape_test::Counter counter;
  EXPECT_TRUE(tape.gradient(y, b).is_none());
  EXPECT_TRUE(counter.counts.empty());
}

TEST(GradientTape, ReleasesTensorsDuringBackwardPass) {
  const std::size_t before = allocator_statistics().in_use;
  const Variable v(Tensor::zeros({1024}, DType::kFloat64));
  GradientTape tape;
  Tensor y = v.value();
  for (int i = 0; i < 20; ++i) y = sigmoid(y);
  const std::size_t recorded = allocator_statistics().in_use;
  EXPECT_GE(recorded, before + 20 * 8192);
  std::size_t at_end = 0;
  tape.gradient(y, std::span(&v, 1),
                [&](std::size_t, const Gradient&) { at_end = allocator_statistics().in_use; });
  EXPECT_LE(at_end, before + 6 * 8192) << "results of differentiated operations are still held";
}

TEST(GradientTape, KeepsOnlyTensorsNeededByGradients) {
  const Variable v(Tensor::zeros({1024}, DType::kFloat64));
  GradientTape tape;
  Tensor y = v.value();
  const std::size_t before = allocator_statistics().in_use;
  for (int i = 0; i < 20; ++i) y = -(y + 1.0);
  EXPECT_LE(allocator_statistics().in_use, before + 3 * 8192);
  EXPECT_EQ(tape.gradient(y, v).dense().to_doubles()[0], 1.0);
}

TEST(GradientTape, SparseGradientsAreConcatenatedInBackwardOrder) {
  const Variable table(Tensor::zeros({5, 2}, DType::kFloat64));
  const Tensor first = Tensor::from<std::int64_t>({2}, {1, 3});
  const Tensor second = Tensor::from<std::int32_t>({1, 1}, {3});
  GradientTape tape;
  const Tensor once = reduce_sum(gather(table, first));
  const Tensor twice = 2.0 * reduce_sum(gather(table, second));
  const Tensor y = once + twice;
  const Gradient gradient = tape.gradient(y, table);
  ASSERT_TRUE(gradient.is_slices());
  EXPECT_EQ(gradient.slices().dense_shape, (Shape{5, 2}));
  EXPECT_EQ(gradient.slices().indices.dtype(), DType::kInt64);
  EXPECT_EQ(gradient.slices().indices.to_doubles(), (std::vector<double>{3, 1, 3}));
  EXPECT_EQ(gradient.slices().values.to_doubles(), (std::vector<double>{2, 2, 1, 1, 1, 1}));
  EXPECT_EQ(gradient.to_dense().to_doubles(), (std::vector<double>{0, 0, 1, 1, 0, 0, 3, 3, 0, 0}));
}

TEST(GradientTape, SparsePlusDenseGradientIsDense) {
  const Variable table(Tensor::ones({3, 1}, DType::kFloat64));
  GradientTape tape;
  const Tensor y = reduce_sum(gather(table, Tensor::from<std::int64_t>({2}, {2, 2}))) +
                   reduce_sum(square(table));
  const Gradient gradient = tape.gradient(y, table);
  ASSERT_TRUE(gradient.is_dense());
  EXPECT_EQ(gradient.dense().to_doubles(), (std::vector<double>{2, 2, 4}));
}

TEST(GradientTape, RepeatedRunsAreBitIdentical) {
  const Variable v(Tensor::from<float>({3}, {0.1f, 0.7f, -0.3f}));
  const auto run = [&] {
    GradientTape tape;
    Tensor y = reduce_sum(exp(v) * v) + reduce_sum(sigmoid(v)) / 3.0 + reduce_mean(tanh(v) * v);
    return tape.gradient(y, v).dense().to_doubles();
  };
  EXPECT_EQ(run(), run());
}

TEST(GradientTape, RejectsNonFloatingPointTargetsAndWatchedValues) {
  const Tensor integers = Tensor::from<std::int32_t>({2}, {1, 2});
  const Variable v = tape_test::variable(1.0);
  GradientTape tape({.persistent = true});
  EXPECT_INVALID(tape.watch(integers), "watch");
  EXPECT_INVALID(tape.watch(Tensor()), "watch");
  EXPECT_INVALID(tape.watch(Variable(integers)), "watch");
  EXPECT_INVALID(tape.gradient(integers, v), "a floating-point target, got int32");
  EXPECT_INVALID(tape.gradient(Tensor(), v), "an undefined tensor");
  EXPECT_ERROR(tape.gradient(square(v), Variable()), kFailedPrecondition,
               "does not refer to a variable");
  EXPECT_INVALID(
      tape.gradient_with(square(v), Tensor::ones({2}, DType::kFloat64), std::span(&v, 1)),
      "does not match the target");
}

TEST(RecordCustomGradient, ReplacesGradientOfUnrecordedOperations) {
  const Variable v = tape_test::variable(3.0);
  GradientTape tape;
  const Tensor x = square(v);
  Tensor y;
  {
    const GradientTape::StopRecording stop;
    y = exp(x * 0.0) * 5.0;
  }
  record_custom_gradient(std::span(&x, 1), std::span(&y, 1), [](std::span<const Tensor> dy) {
    return std::vector<Gradient>{Gradient(dy[0] * 10.0)};
  });
  EXPECT_EQ(number(tape.gradient(y * 2.0, v)), 2.0 * 10.0 * 6.0);
}

TEST(RecordCustomGradient, HandlesUndefinedOutputAndMissingInputGradients) {
  const Tensor a = Tensor::scalar(1.0, DType::kFloat64), b = Tensor::scalar(2.0, DType::kFloat64);
  const Tensor inputs[] = {a, b};
  const Tensor outputs[] = {a.alias(), b.alias()};
  GradientTape tape;
  tape.watch(a);
  tape.watch(b);
  record_custom_gradient(inputs, outputs, [](std::span<const Tensor> dy) {
    EXPECT_FALSE(dy[0].defined());
    EXPECT_TRUE(dy[1].defined());
    return std::vector<Gradient>{Gradient(), Gradient(dy[1])};
  });
  const auto gradients = tape.gradient(square(outputs[1]), inputs);
  EXPECT_TRUE(gradients[0].is_none());
  EXPECT_EQ(number(gradients[1]), 4.0);
}

TEST(RecordCustomGradient, OuterTapesDifferentiateTheBackwardFunction) {
  const Variable v = tape_test::variable(3.0);
  GradientTape outer;
  GradientTape inner;
  const Tensor x = v.value();
  const Tensor y = [&] {
    const GradientTape::StopRecording stop;
    return x * x * x;
  }();
  record_custom_gradient(std::span(&x, 1), std::span(&y, 1), [x](std::span<const Tensor> dy) {
    return std::vector<Gradient>{Gradient(dy[0] * 3.0 * square(x))};
  });
  const Tensor d1 = inner.gradient(y, v).dense();
  EXPECT_EQ(d1.item_double(), 27.0);
  EXPECT_EQ(number(outer.gradient(d1, v)), 18.0);
}

TEST(RecordCustomGradient, ValidatesGradientCountShapeAndOutputIdentity) {
  const Tensor x = Tensor::zeros({2}, DType::kFloat64);
  const auto differentiate = [&](const std::vector<Gradient>& given) {
    GradientTape tape;
    tape.watch(x);
    const Tensor y = x.alias();
    record_custom_gradient(std::span(&x, 1), std::span(&y, 1),
                           [&](std::span<const Tensor>) { return given; });
    tape.gradient(y, x);
  };
  differentiate({Gradient(Tensor::zeros({2}, DType::kFloat64))});
  EXPECT_INVALID(differentiate({}),
                 "record_custom_gradient: expected 1 gradients, one per input, got 0");
  EXPECT_INVALID(
      differentiate({Gradient(Tensor::zeros({3}, DType::kFloat64))}),
      "record_custom_gradient: the gradient of input 0 has the wrong shape; expected [2], "
      "got [3]");
  EXPECT_INVALID(record_custom_gradient(std::span(&x, 1), std::span(&x, 1), {}),
                 "return output.alias()");
}

namespace device_scope_gradients {

constexpr Device on_cpu(int index) { return {DeviceType::kCpu, index}; }

Tensor numbers(const Shape& shape, std::uint64_t seed) {
  return random_uniform(shape, {.seed = seed, .purpose = kUserPurpose}, -1.0, 1.0);
}

/// Program from the documentation: weights_1 and biases_1 are on the first device, weights_2 and
/// biases_2 on the second, and all computation is on the third.
struct ThreeDevices {
  explicit ThreeDevices(const std::vector<std::string>& devices) : compute(devices[2]) {
    {
      const DeviceScope scope(devices[0]);
      variables.emplace_back(numbers({6, 5}, 1), VariableOptions{.name = "weights_1"});
      variables.emplace_back(numbers({5}, 2), VariableOptions{.name = "biases_1"});
    }
    const DeviceScope scope(devices[1]);
    variables.emplace_back(numbers({5, 3}, 3), VariableOptions{.name = "weights_2"});
    variables.emplace_back(numbers({3}, 4), VariableOptions{.name = "biases_2"});
  }
  /// Returns the loss, then the gradients.
  std::vector<Tensor> step(const Tensor& x) {
    GradientTape tape;
    Tensor loss;
    {
      const DeviceScope scope(compute);
      const Tensor hidden = tanh(matmul(x, variables[0]) + variables[1]);
      loss = reduce_mean(square(matmul(hidden, variables[2]) + variables[3]));
    }
    std::vector<Tensor> results{loss};
    for (const Gradient& gradient : tape.gradient(loss, variables)) {
      results.push_back(gradient.dense());
    }
    return results;
  }
  std::string compute;
  std::vector<Variable> variables;
};

}  // namespace device_scope_gradients

using namespace device_scope_gradients;

TEST(DeviceScopeGradients, ComputesOnThirdDeviceWithWeightsOnTwoOthers) {
  const Tensor x = numbers({4, 6}, 9).to(on_cpu(2));
  ThreeDevices split({"/cpu:0", "/cpu:1", "/cpu:2"});
  TransferLog log;
  const std::vector<Tensor> results = split.step(x);
  std::vector<std::string> moved;
  for (const Transfer& transfer : log.transfers()) moved.push_back(transfer.to_string());
  EXPECT_THAT(
      moved,
      ElementsAre(
          "cpu:0 -> cpu:2: float32 [6, 5], 120 bytes", "cpu:0 -> cpu:2: float32 [5], 20 bytes",
          "cpu:1 -> cpu:2: float32 [5, 3], 60 bytes", "cpu:1 -> cpu:2: float32 [3], 12 bytes",
          // then the gradients, last layer first
          "cpu:2 -> cpu:1: float32 [3], 12 bytes", "cpu:2 -> cpu:1: float32 [5, 3], 60 bytes",
          "cpu:2 -> cpu:0: float32 [5], 20 bytes", "cpu:2 -> cpu:0: float32 [6, 5], 120 bytes"));
  EXPECT_EQ(log.bytes(), 2u * (120 + 20 + 60 + 12));

  ThreeDevices together({"/cpu:0", "/cpu:0", "/cpu:0"});
  const std::vector<Tensor> expected = together.step(x.to(on_cpu(0)));
  ASSERT_EQ(results.size(), 5u);
  for (std::size_t i = 0; i < results.size(); ++i) {
    expect_same_bits(results[i], expected[i]);
  }
  EXPECT_EQ(results[1].device(), on_cpu(0));
  EXPECT_EQ(results[3].device(), on_cpu(1));
}

TEST(DeviceScopeGradients, VariablesAreCreatedOnScopeDevice) {
  const ThreeDevices split({"/cpu:0", "/device:CPU:1", "cpu:2"});
  std::vector<std::string> devices;
  for (const Variable& variable : split.variables) {
    devices.push_back(full_device_name(variable.storage().devices().at(0)));
    EXPECT_EQ(variable.value().device(), variable.storage().devices()[0]);
  }
  EXPECT_THAT(devices, ElementsAre("/job:localhost/replica:0/task:0/device:CPU:0",
                                   "/job:localhost/replica:0/task:0/device:CPU:0",
                                   "/job:localhost/replica:0/task:0/device:CPU:1",
                                   "/job:localhost/replica:0/task:0/device:CPU:1"));
  const DeviceScope scope("cpu:3");
  const Variable made([](const InitializerContext& context) {
    EXPECT_EQ(context.device, on_cpu(3));
    return Tensor::zeros({2}, DType::kFloat32, context.device);
  });
  EXPECT_EQ(made.storage().devices().at(0), on_cpu(3));
  EXPECT_EQ(Variable(made.storage().create_slot("slot", 1.0)).value().device(), on_cpu(3));
}

// As in TensorFlow's multi-GPU tutorial, variables are on the CPU by default, and towers compute on
// other devices.
TEST(DeviceScopeGradients, LogsPlacementOfVariablesAndComputations) {
  const DeviceScope by_default("/cpu:0");
  const Variable weights(numbers({3, 2}, 5), {.name = "weights"});
  const Tensor x = numbers({4, 3}, 6);
  std::vector<std::string> lines;
  set_log_device_placement(true, [&](const std::string& line) { lines.push_back(line); });
  for (const char* tower : {"/cpu:1", "/cpu:2"}) {
    const DeviceScope scope(tower);
    matmul(x, weights);
  }
  set_log_device_placement(false);
  EXPECT_EQ(weights.storage().devices().at(0), on_cpu(0));
  EXPECT_THAT(lines, ElementsAre("MatMul: /job:localhost/replica:0/task:0/device:CPU:1",
                                 "MatMul: /job:localhost/replica:0/task:0/device:CPU:2"));
}

TEST(DeviceScopeGradients, BackwardPassRunsOnForwardDevice) {
  const Variable v(Tensor::full({2}, 3.0), {.name = "v"});
  GradientTape tape({.persistent = true});
  Tensor y;
  {
    const DeviceScope scope("cpu:1");
    y = square(v);
  }
  const DeviceScope another("cpu:2");  // must not change the device of the backward pass
  std::vector<std::string> lines;
  set_log_device_placement(true, [&](const std::string& line) { lines.push_back(line); });
  const Gradient gradient = tape.gradient(y, v);
  set_log_device_placement(false);
  EXPECT_EQ(gradient.dense().device(), on_cpu(0));
  expect_tensor(gradient.dense(), {2}, {6, 6});
  ASSERT_FALSE(lines.empty());
  for (const std::string& line : lines) EXPECT_TRUE(line.ends_with("CPU:1")) << line;
}

TEST(DeviceScopeGradients, SecondDerivativesFlowThroughTransfers) {
  const Tensor x = Tensor::full({}, 2.0);
  GradientTape outer;
  outer.watch(x);
  Tensor first;
  {
    GradientTape inner;
    inner.watch(x);
    const Tensor moved = transfer(x, on_cpu(1));
    first = inner.gradient(moved * moved * moved, x).dense();  // 3 x^2
  }
  EXPECT_EQ(first.device(), on_cpu(0));
  EXPECT_FLOAT_EQ(first.item(), 12.0f);
  EXPECT_FLOAT_EQ(outer.gradient(first, x).dense().item(), 12.0f);  // 6 x
}

TEST(DeviceScopeGradients, SumsGradientsOfValueUsedOnTwoDevices) {
  const Variable v(Tensor::full({2}, 1.5), {.name = "v"});
  GradientTape tape;
  const Tensor here = v * 2.0f;
  const Tensor there = transfer(v, on_cpu(1)) * 5.0f;
  const Tensor total = here + transfer(there, on_cpu(0));
  const Gradient gradient = tape.gradient(total, v);
  EXPECT_EQ(gradient.dense().device(), on_cpu(0));
  expect_tensor(gradient.dense(), {2}, {7, 7});
}

TEST(DeviceScopeGradients, StoppedTapeRecordsNoTransfers) {
  const Tensor x = Tensor::ones({2});
  GradientTape tape;
  tape.watch(x);
  Tensor moved;
  {
    const GradientTape::StopRecording stop;
    moved = transfer(x, on_cpu(1));
  }
  EXPECT_TRUE(tape.gradient(moved * 2.0f, x).is_none());
}

TEST(GradientTape, DifferentiatesVariablesAndTensorsInOnePass) {
  const Variable w(Tensor::full({2}, 3.0), {.name = "w"});
  const Tensor x = Tensor::full({2}, 5.0);
  GradientTape tape;
  tape.watch(x);
  const Tensor y = w * x;
  tape.stop();
  (void)(w * 100.0f);  // not recorded: the tape is stopped
  const std::vector<Variable> variables{w};
  const std::vector<Tensor> values{x};
  const std::vector<Gradient> gradients =
      tape.gradient_with(y, Tensor::full({2}, 2.0), variables, values);
  ASSERT_EQ(gradients.size(), 2u);
  expect_tensor(gradients[0].dense(), {2}, {10, 10});
  expect_tensor(gradients[1].dense(), {2}, {6, 6});
}

}  // namespace tutti::testing::gradient_tape_test
