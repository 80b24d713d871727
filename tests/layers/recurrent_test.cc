// Recurrent layers: weights, states, masks of dropout, both directions; tests/parity has their
// values.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/recurrent.h"

#include <algorithm>
#include <cmath>

#include "tests/layers/layer_checks.h"
#include "tutti/model/layers/layers.h"

namespace tutti {
namespace {

using namespace layer_tests;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST(RecurrentTest, TakesSequencesWithoutSteps) {
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
  EXPECT_ERROR(layer({x, zeros, zeros}), kInvalidArgument,
               "layer 'lstm' (LSTM): has 3 results, but one was asked for");
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
  EXPECT_ERROR(Bidirectional bad(LSTM(2), {.merge_mode = "max"}), kInvalidArgument,
               "'concat', 'sum', 'mul' or 'ave', got 'max'");
  EXPECT_ERROR(Bidirectional bad(LSTM(2, {.return_state = true})), kInvalidArgument,
               "returns its states");
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
  EXPECT_ERROR(GRU bad(0), kInvalidArgument, "a positive number of units");
  LSTM lstm(3);
  lstm.build_for({4, 2});
  EXPECT_ERROR(lstm(Tensor::ones({1, 4, 5})), kInvalidArgument, "layer 'lstm' (LSTM): ");
}

}  // namespace
}  // namespace tutti
