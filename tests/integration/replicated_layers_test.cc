// Every kind of layer trains on two replicas as on one device.
// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>

#include "tests/integration/seed_training.h"

namespace tutti {
namespace replicated_layers_test {

using seed_training::expect_near;
using seed_training::noise;
using seed_training::trained;
using seed_training::two_mirrored;

using Kinds = std::map<std::string, std::function<Sequential()>>;

constexpr std::int64_t kRows = 10;
constexpr int kSteps = 5;
const Shape kImage{6, 6, 2};

template <class Make>
std::function<Sequential()> on_images(Make layer) {
  return [layer] { return Sequential(Input{kImage}, layer(), Flatten(), Dense(2)); };
}

/// The images as 6 steps of 12 features.
template <class Make>
std::function<Sequential()> on_sequences(Make layer) {
  return [layer] {
    return Sequential(Input{kImage}, Reshape({6, 12}), layer(), Flatten(), Dense(2));
  };
}

/// A layer that makes one tensor of two.
template <class Make>
std::function<Sequential()> on_pairs(Make layer) {
  return [layer] {
    const SymbolicTensor x = Input{kImage};
    const SymbolicTensor flat = Flatten()(x);
    const SymbolicTensor a = Dense(4)(flat), b = Dense(4)(flat);
    const SymbolicTensor y = Flatten()(layer()({a, b}));
    return Sequential(Input{kImage}, Functional({x}, {Dense(2)(y)}));
  };
}

/// Layers that treat each row of a batch by itself, or, synchronized, all rows as one.
Kinds kinds_by_row() {
  return {
      {"Dense", on_images([] { return Dense(3); })},
      {"Conv2D", on_images([] { return Conv2D(3, 3); })},
      {"DepthwiseConv2D", on_images([] { return DepthwiseConv2D(3); })},
      {"SeparableConv2D", on_images([] { return SeparableConv2D(3, 3); })},
      {"Conv2DTranspose", on_images([] { return Conv2DTranspose(3, 3); })},
      {"Conv1D", on_sequences([] { return Conv1D(3, 3); })},
      {"MaxPooling2D", on_images([] { return MaxPooling2D(); })},
      {"AveragePooling2D", on_images([] { return AveragePooling2D(); })},
      {"MaxPooling1D", on_sequences([] { return MaxPooling1D(); })},
      {"AveragePooling1D", on_sequences([] { return AveragePooling1D(); })},
      {"GlobalAveragePooling2D", on_images([] { return GlobalAveragePooling2D(); })},
      {"GlobalMaxPooling2D", on_images([] { return GlobalMaxPooling2D(); })},
      {"GlobalAveragePooling1D", on_sequences([] { return GlobalAveragePooling1D(); })},
      {"GlobalMaxPooling1D", on_sequences([] { return GlobalMaxPooling1D(); })},
      {"LocalResponseNormalization", on_images([] { return LocalResponseNormalization(); })},
      {"BatchNormalization, synchronized",
       on_images([] { return BatchNormalization({.synchronized = true}); })},
      {"LayerNormalization", on_images([] { return LayerNormalization(); })},
      {"GroupNormalization", on_images([] { return GroupNormalization(2); })},
      {"UnitNormalization", on_images([] { return UnitNormalization(); })},
      {"SimpleRNN", on_sequences([] { return SimpleRNN(4); })},
      {"LSTM", on_sequences([] { return LSTM(4); })},
      {"GRU", on_sequences([] { return GRU(4); })},
      {"Bidirectional", on_sequences([] { return Bidirectional(GRU(3)); })},
      {"TimeDistributed", on_sequences([] { return TimeDistributed(Dense(3)); })},
      {"MultiHeadAttention", on_sequences([] { return MultiHeadAttention(2, 3); })},
      {"Masking", on_sequences([] { return Masking(); })},
      {"Activation", on_images([] { return Activation("swish"); })},
      {"Relu", on_images([] { return Relu(); })},
      {"Sigmoid", on_images([] { return Sigmoid(); })},
      {"Tanh", on_images([] { return Tanh(); })},
      {"Elu", on_images([] { return Elu(); })},
      {"Gelu", on_images([] { return Gelu(); })},
      {"Softmax", on_images([] { return Softmax(); })},
      {"LeakyRelu", on_images([] { return LeakyRelu(); })},
      {"PReLU", on_images([] { return PReLU(); })},
      {"Lambda", on_images([] { return Lambda([](const Tensor& x) { return x * x; }); })},
      {"Reshape", on_images([] { return Reshape({72}); })},
      {"Permute", on_images([] {
         return Permute({3, 1, 2});
       })},
      {"RepeatVector",
       [] { return Sequential(Input{kImage}, Flatten(), RepeatVector(2), Flatten(), Dense(2)); }},
      {"ZeroPadding2D", on_images([] { return ZeroPadding2D(); })},
      {"ZeroPadding1D", on_sequences([] { return ZeroPadding1D(); })},
      {"Cropping2D", on_images([] { return Cropping2D(1); })},
      {"CenterCrop", on_images([] { return CenterCrop(4); })},
      {"UpSampling2D", on_images([] { return UpSampling2D(); })},
      {"Rescaling", on_images([] { return Rescaling(0.5); })},
      {"Add", on_pairs([] { return Add(); })},
      {"Subtract", on_pairs([] { return Subtract(); })},
      {"Multiply", on_pairs([] { return Multiply(); })},
      {"Average", on_pairs([] { return Average(); })},
      {"Maximum", on_pairs([] { return Maximum(); })},
      {"Minimum", on_pairs([] { return Minimum(); })},
      {"Concatenate", on_pairs([] { return Concatenate(); })},
      {"Dot", on_pairs([] {
         return Dot({.axes = {1, 1}, .normalize = true});
       })},
  };
}

/// Layers that draw numbers for each replica, or treat the rows of a replica as one.
Kinds kinds_by_replica() {
  return {
      {"BatchNormalization", on_images([] { return BatchNormalization(); })},
      {"Dropout", on_images([] { return Dropout(0.4); })},
      {"SpatialDropout2D", on_images([] { return SpatialDropout2D(0.4); })},
      {"SpatialDropout1D", on_sequences([] { return SpatialDropout1D(0.4); })},
      {"GaussianNoise", on_images([] { return GaussianNoise(0.3); })},
      {"GaussianDropout", on_images([] { return GaussianDropout(0.4); })},
      {"RandomFlip", on_images([] { return RandomFlip(); })},
      {"RandomBrightness", on_images([] { return RandomBrightness(0.2); })},
      {"RandomContrast", on_images([] { return RandomContrast(0.2); })},
  };
}

/// Without a strategy: a model on one device computes each half of the batch as the replica of its
/// number would, and the two gradients are added. The trainable weights then.
std::vector<Tensor> trained_by_halves(const std::function<Sequential()>& make, const Tensor& x,
                                      const Tensor& y) {
  set_random_seed(5);
  const Sequential model = make();
  const std::vector<Variable> weights = model.trainable_variables();
  Sgd optimizer(weights, {.learning_rate = 0.1});
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    std::vector<Gradient> sums;
    for (std::uint32_t replica = 0; replica < 2; ++replica) {
      const RandomContextScope random({random_seed(), step, replica});
      const auto half = [&](const Tensor& all) {
        return all.detached_rows(replica * kRows / 2, kRows / 2);
      };
      GradientTape tape;
      const Tensor each = losses::mean_squared_error(half(y), model(half(x), {.training = true}));
      const std::vector<Gradient> own = tape.gradient(compute_average_loss(each, kRows), weights);
      for (std::size_t i = 0; i < own.size(); ++i) {
        if (replica == 0) {
          sums.push_back(own[i]);
        } else {
          sums[i] = sums[i].dense() + own[i].dense();
        }
      }
    }
    optimizer.apply_gradients(sums);
  }
  std::vector<Tensor> values;
  for (const Variable& weight : weights) values.push_back(weight.value());
  return values;
}

TEST(ReplicatedLayers, RowwiseLayersMatchTheWholeBatch) {
  const Tensor x = noise({kRows, 6, 6, 2}, 3), y = noise({kRows, 2}, 4);
  for (const auto& [name, make] : kinds_by_row()) {
    SCOPED_TRACE(name);
    OneDeviceStrategy one("cpu:0");
    MirroredStrategy two = two_mirrored();
    expect_near(trained(two, make, x, y, kSteps), trained(one, make, x, y, kSteps), 2e-5);
  }
}

TEST(ReplicatedLayers, EmbeddingsMatchTheWholeBatch) {
  std::vector<std::int64_t> words;
  for (std::int64_t i = 0; i < kRows * 4; ++i) words.push_back(i * i % 7);  // many more than once
  const Tensor x = Tensor::from<std::int64_t>({kRows, 4}, words), y = noise({kRows, 2}, 4);
  const auto make = [] { return Sequential(Input{{4}}, Embedding(7, 3), Flatten(), Dense(2)); };
  OneDeviceStrategy one("cpu:0");
  MirroredStrategy two = two_mirrored();
  expect_near(trained(two, make, x, y, kSteps), trained(one, make, x, y, kSteps), 2e-5);
}

TEST(ReplicatedLayers, BatchwiseLayersMatchTheHalfOfTheReplica) {
  const Tensor x = noise({kRows, 6, 6, 2}, 3), y = noise({kRows, 2}, 4);
  for (const auto& [name, make] : kinds_by_replica()) {
    SCOPED_TRACE(name);
    MirroredStrategy two = two_mirrored();
    const std::vector<Tensor> expected = trained_by_halves(make, x, y);
    std::vector<Tensor> got = trained(two, make, x, y, kSteps);
    got.resize(expected.size());  // moving averages: UpdatesOfAllTowersAreAveraged
    expect_near(got, expected, 2e-5);
    OneDeviceStrategy one("cpu:0");
    const std::vector<Tensor> whole = trained(one, make, x, y, kSteps);
    EXPECT_NE(whole[0].to_doubles(), expected[0].to_doubles());  // it does matter
  }
}

}  // namespace replicated_layers_test
}  // namespace tutti
