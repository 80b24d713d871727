// Recurrent layers against plain loops over steps, units and features.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/recurrent.h"

#include <algorithm>
#include <cmath>

#include "tests/layers/layer_checks.h"
#include "tutti/model/layers/layers.h"

namespace tutti {
namespace {

using layer_tests::check_layer;
using layer_tests::error_of;
using layer_tests::expect_values;
using layer_tests::spread;
using layer_tests::weights_of_layer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

/// One sequence, by loops: what the documents say, written down.
struct PlainRecurrence {
  std::vector<double> kernel, recurrent, bias;
  std::size_t features, units, gates;

  explicit PlainRecurrence(const Layer& layer) {
    const std::vector<Variable> weights = layer.variables();
    kernel = weights[0].value().to_doubles();
    recurrent = weights[1].value().to_doubles();
    bias = weights[2].value().to_doubles();
    features = static_cast<std::size_t>(weights[0].shape()[0]);
    units = static_cast<std::size_t>(weights[1].shape()[0]);
    gates = static_cast<std::size_t>(weights[0].shape()[1]) / units;
  }
  double from_input(const double* x, std::size_t column) const {
    double sum = 0.0;
    for (std::size_t i = 0; i < features; ++i) sum += x[i] * kernel[i * gates * units + column];
    return sum;
  }
  double from_state(const std::vector<double>& h, std::size_t column) const {
    double sum = 0.0;
    for (std::size_t i = 0; i < units; ++i) sum += h[i] * recurrent[i * gates * units + column];
    return sum;
  }
};

using Step = std::function<void(const PlainRecurrence&, const double* x, std::vector<double>& h,
                                std::vector<double>& c)>;

void plain_rnn(const PlainRecurrence& r, const double* x, std::vector<double>& h,
               std::vector<double>&) {
  std::vector<double> next(r.units);
  for (std::size_t u = 0; u < r.units; ++u)
    next[u] = std::tanh(r.from_input(x, u) + r.from_state(h, u) + r.bias[u]);
  h = next;
}

void plain_lstm(const PlainRecurrence& r, const double* x, std::vector<double>& h,
                std::vector<double>& c) {
  std::vector<double> next(r.units);
  for (std::size_t u = 0; u < r.units; ++u) {
    auto gate = [&](std::size_t number) {
      const std::size_t column = number * r.units + u;
      return r.from_input(x, column) + r.from_state(h, column) + r.bias[column];
    };
    c[u] = sigmoid_of(gate(1)) * c[u] + sigmoid_of(gate(0)) * std::tanh(gate(2));
    next[u] = sigmoid_of(gate(3)) * std::tanh(c[u]);
  }
  h = next;
}

void plain_gru_reset_after(const PlainRecurrence& r, const double* x, std::vector<double>& h,
                           std::vector<double>&) {
  std::vector<double> next(r.units);
  for (std::size_t u = 0; u < r.units; ++u) {
    auto input = [&](std::size_t g) {
      return r.from_input(x, g * r.units + u) + r.bias[g * r.units + u];
    };
    auto state = [&](std::size_t g) {
      return r.from_state(h, g * r.units + u) + r.bias[3 * r.units + g * r.units + u];
    };
    const double z = sigmoid_of(input(0) + state(0)), reset = sigmoid_of(input(1) + state(1));
    next[u] = z * h[u] + (1 - z) * std::tanh(input(2) + reset * state(2));
  }
  h = next;
}

void plain_gru_reset_before(const PlainRecurrence& r, const double* x, std::vector<double>& h,
                            std::vector<double>&) {
  std::vector<double> next(r.units), shrunk(r.units);
  auto gate = [&](std::size_t g, std::size_t u) {
    const std::size_t column = g * r.units + u;
    return sigmoid_of(r.from_input(x, column) + r.from_state(h, column) + r.bias[column]);
  };
  for (std::size_t u = 0; u < r.units; ++u) shrunk[u] = gate(1, u) * h[u];
  for (std::size_t u = 0; u < r.units; ++u) {
    const std::size_t column = 2 * r.units + u;
    const double candidate =
        std::tanh(r.from_input(x, column) + r.from_state(shrunk, column) + r.bias[column]);
    next[u] = gate(0, u) * h[u] + (1 - gate(0, u)) * candidate;
  }
  h = next;
}

/// The layer on random sequences against `step`, forwards and backwards, all results.
template <class L>
void check_recurrence(const Step& step, RecurrentOptions options) {
  constexpr std::size_t kRows = 3, kSteps = 4, kFeatures = 2, kUnits = 3;
  const layer_tests::ExactLayers exact;
  options.return_sequences = options.return_state = true;
  for (const bool backwards : {false, true}) {
    options.go_backwards = backwards;
    L layer(kUnits, options);
    layer.build_for({kSteps, kFeatures});
    for (Variable weight : layer.variables()) weight.assign(spread(weight.shape(), 5));
    const PlainRecurrence plain(layer);
    const Tensor x = spread({kRows, kSteps, kFeatures}, 8);
    const std::vector<double> values = x.to_doubles();
    std::vector<double> sequences, last_h, last_c;
    for (std::size_t row = 0; row < kRows; ++row) {
      std::vector<double> h(kUnits, 0.0), c(kUnits, 0.0);
      for (std::size_t t = 0; t < kSteps; ++t) {
        const std::size_t at = backwards ? kSteps - 1 - t : t;
        step(plain, &values[(row * kSteps + at) * kFeatures], h, c);
        sequences.insert(sequences.end(), h.begin(), h.end());
      }
      last_h.insert(last_h.end(), h.begin(), h.end());
      last_c.insert(last_c.end(), c.begin(), c.end());
    }
    const std::vector<Tensor> results = layer.apply({&x, 1});
    expect_values(results[0], sequences, 1e-12);
    expect_values(results[1], last_h, 1e-12);
    if (results.size() > 2) expect_values(results[2], last_c, 1e-12);
  }
}

TEST(RecurrentTest, EqualsPlainLoops) {
  check_recurrence<SimpleRNN>(plain_rnn, {});
  check_recurrence<LSTM>(plain_lstm, {});
  check_recurrence<GRU>(plain_gru_reset_after, {});
  check_recurrence<GRU>(plain_gru_reset_before, {.reset_after = false});
}

TEST(RecurrentTest, HasKerasWeights) {
  LSTM lstm(3);
  lstm.build_for({5, 2});
  EXPECT_THAT(weights_of_layer(lstm),
              ElementsAre("lstm/lstm_cell/kernel [2, 12]",
                          "lstm/lstm_cell/recurrent_kernel [3, 12]", "lstm/lstm_cell/bias [12]"));
  expect_values(lstm.variables()[2].value(), {0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0});
  GRU gru(3), before(3, {.reset_after = false});
  gru.build_for({5, 2});
  before.build_for({5, 2});
  EXPECT_THAT(weights_of_layer(gru),
              ElementsAre("gru/gru_cell/kernel [2, 9]", "gru/gru_cell/recurrent_kernel [3, 9]",
                          "gru/gru_cell/bias [2, 9]"));
  EXPECT_EQ(before.variables()[2].shape(), (Shape{9}));
  SimpleRNN rnn(3, {.use_bias = false});
  rnn.build_for({5, 2});
  EXPECT_THAT(weights_of_layer(rnn),
              ElementsAre("simple_rnn/simple_rnn_cell/kernel [2, 3]",
                          "simple_rnn/simple_rnn_cell/recurrent_kernel [3, 3]"));
}

TEST(RecurrentTest, KeepsPromisesAndGradients) {
  check_layer([] { return SimpleRNN(3); }, {{4, 2}});
  check_layer([] { return SimpleRNN(2, {.use_bias = false, .return_sequences = true}); }, {{3, 2}});
  check_layer([] { return LSTM(2); }, {{3, 2}});
  check_layer([] { return LSTM(2, {.return_sequences = true, .return_state = true}); }, {{3, 2}});
  check_layer([] { return LSTM(2, {.go_backwards = true}); }, {{3, 2}, {2}, {2}});
  check_layer([] { return GRU(2, {.return_state = true}); }, {{3, 2}});
  check_layer([] { return GRU(2, {.reset_after = false}); }, {{3, 2}, {2}});
  check_layer([] { return GRU(2, {.use_bias = false}); }, {{3, 2}});
  check_layer([] { return Bidirectional(GRU(2)); }, {{3, 2}});
  check_layer([] { return Bidirectional(LSTM(2, {.return_sequences = true})); }, {{3, 2}});
  LSTM dropping(3, {.dropout = 0.5, .recurrent_dropout = 0.5});
  layer_tests::check_shapes(dropping, {{4, 2}});
  LSTM no_steps(3, {.return_sequences = true});
  no_steps.build_for({0, 2});
  EXPECT_EQ(no_steps(Tensor::zeros({2, 0, 2})).shape(), (Shape{2, 0, 3}));
}

TEST(RecurrentTest, FirstStatesContinueASequence) {
  LSTM layer(3, {.return_state = true});
  layer.build_for(std::vector<Shape>{{4, 2}, {3}, {3}});
  const Tensor x = cast(spread({2, 4, 2}, 3), DType::kFloat32);
  const Tensor zeros = Tensor::zeros({2, 3});
  const std::vector<Tensor> whole = layer.apply(std::vector<Tensor>{x, zeros, zeros});
  const std::vector<Tensor> half =
      layer.apply(std::vector<Tensor>{slice(x, {0, 0, 0}, {-1, 2, -1}), zeros, zeros});
  const std::vector<Tensor> rest =
      layer.apply(std::vector<Tensor>{slice(x, {0, 2, 0}, {-1, 2, -1}), half[1], half[2]});
  expect_values(rest[0], whole[0].to_doubles(), 1e-6);
  expect_values(rest[2], whole[2].to_doubles(), 1e-6);
  EXPECT_THAT(error_of([&] {
                layer({x, zeros, zeros});
              }),
              HasSubstr("layer 'lstm' (LSTM): has 3 results, but one was asked for"));
}

TEST(RecurrentTest, DropoutMasksServeAllSteps) {
  // With a kernel of ones, dropped inputs show as missing ones in every step alike.
  SimpleRNN layer(1, {.activation = "linear",
                      .use_bias = false,
                      .kernel_initializer = "ones",
                      .recurrent_initializer = "zeros",
                      .dropout = 0.5,
                      .return_sequences = true});
  layer.build_for({6, 4});
  const std::vector<double> y = layer(Tensor::ones({8, 6, 4}), {.training = true}).to_doubles();
  for (std::size_t row = 0; row < 8; ++row)
    for (std::size_t t = 1; t < 6; ++t) EXPECT_EQ(y[row * 6 + t], y[row * 6]);
  EXPECT_NE(*std::min_element(y.begin(), y.end()), *std::max_element(y.begin(), y.end()));
}

TEST(BidirectionalTest, IsBothDirectionsSideBySide) {
  Bidirectional layer(GRU(2, {.return_sequences = true}));
  EXPECT_EQ(layer.build_for({3, 2}), (Shape{3, 4}));
  EXPECT_EQ(layer.variables()[0].name(), "bidirectional/forward_gru/gru_cell/kernel");
  EXPECT_EQ(layer.variables()[5].name(), "bidirectional/backward_gru/gru_cell/bias");
  auto copy_of = [&](std::size_t first, bool backwards) {
    GRU gru(2, {.return_sequences = true, .go_backwards = backwards});
    gru.build_for({3, 2});
    for (std::size_t i = 0; i < 3; ++i) {
      Variable weight = gru.variables()[i];
      weight.assign(layer.variables()[first + i].value());
    }
    return gru;
  };
  const Tensor x = cast(spread({2, 3, 2}, 4), DType::kFloat32);
  const std::vector<double> y = layer(x).to_doubles();
  const std::vector<double> forward = copy_of(0, false)(x).to_doubles();
  const std::vector<double> backward = copy_of(3, true)(x).to_doubles();
  for (std::size_t row = 0; row < 2; ++row) {
    for (std::size_t t = 0; t < 3; ++t) {
      for (std::size_t u = 0; u < 2; ++u) {
        EXPECT_NEAR(y[(row * 3 + t) * 4 + u], forward[(row * 3 + t) * 2 + u], 1e-6);
        EXPECT_NEAR(y[(row * 3 + t) * 4 + 2 + u], backward[(row * 3 + 2 - t) * 2 + u], 1e-6);
      }
    }
  }
  for (const char* mode : {"sum", "mul", "ave"}) {
    Bidirectional merged(LSTM(2), {.merge_mode = mode});
    EXPECT_EQ(merged.build_for({3, 2}), (Shape{2})) << mode;
  }
  EXPECT_THAT(error_of([] { Bidirectional bad(LSTM(2), {.merge_mode = "max"}); }),
              HasSubstr("'concat', 'sum', 'mul' or 'ave', got 'max'"));
  EXPECT_THAT(error_of([] { Bidirectional bad(LSTM(2, {.return_state = true})); }),
              HasSubstr("returns its states"));
}

TEST(RecurrentTest, ErrorsNameLayerAndShapes) {
  auto error_for = [](auto layer, const std::vector<Shape>& shapes) {
    return error_of([&] { layer.build_for(shapes); });
  };
  EXPECT_THAT(error_for(LSTM(3), {{4}}),
              HasSubstr("layer 'lstm' (LSTM): LSTM: expected examples of shape [steps, channels]"));
  EXPECT_THAT(error_for(LSTM(3), {{4, 2}, {3}}),
              HasSubstr("alone or with 2 first states, got 2 inputs"));
  EXPECT_THAT(error_for(GRU(3), {{4, 2}, {2}}), HasSubstr("first states of shape [3], got [2]"));
  EXPECT_THAT(error_of([] { GRU bad(0); }), HasSubstr("a positive number of units"));
  LSTM lstm(3);
  lstm.build_for({4, 2});
  EXPECT_THAT(error_of([&] { lstm(Tensor::ones({1, 4, 5})); }), HasSubstr("layer 'lstm' (LSTM): "));
}

}  // namespace
}  // namespace tutti
