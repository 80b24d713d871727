// Masks from the embedding to the loss of fit and evaluate.
// SPDX-License-Identifier: Apache-2.0
#include "tests/model/model_helpers.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

namespace masks_in_fit {

Tensor words() { return Tensor::from<std::int64_t>({4, 3}, {1, 2, 0, 3, 0, 0, 2, 2, 1, 1, 3, 0}); }

/// Labels of steps that do not count are `gap`.
Tensor labels(std::int64_t gap) {
  return Tensor::from<std::int64_t>({4, 3}, {0, 1, gap, 1, gap, gap, 1, 1, 0, 0, 1, gap});
}

struct Trained {
  double loss = 0.0;
  std::vector<std::vector<double>> weights;
};

Trained train(bool mask_zero, std::int64_t gap) {
  set_random_seed(7);
  Sequential model(Input{{3}}, Embedding(4, 3, {.mask_zero = mask_zero}),
                   LSTM(4, {.return_sequences = true}), Dense(2));
  model.compile(
      {.optimizer = SgdOptions{.learning_rate = 0.5}, .loss = "sparse_categorical_crossentropy"});
  model.fit(words(), labels(gap),
            {.epochs = 3, .batch_size = 2, .verbose = Verbosity::kSilent, .shuffle = false});
  Trained result{model.evaluate(words(), labels(gap)).at("loss"), {}};
  for (const Variable& weight : model.variables())
    result.weights.push_back(weight.value().to_doubles());
  return result;
}

/// Right among the steps that are words, by weight.
double accuracy_of_words(const Tensor& words, const Tensor& labels, const Tensor& predictions,
                         const std::vector<double>& weights) {
  const std::vector<double> word = words.to_doubles(), label = labels.to_doubles();
  const std::vector<double> score = predictions.to_doubles();
  double right = 0.0, all = 0.0;
  for (std::size_t i = 0; i < word.size(); ++i) {
    if (word[i] == 0.0) continue;
    all += weights[i];
    if ((score[2 * i + 1] > score[2 * i]) == (label[i] == 1.0)) right += weights[i];
  }
  return right / all;
}

}  // namespace masks_in_fit

TEST(MasksInFit, LabelsOfGapsDoNotMatter) {
  const auto zeros = masks_in_fit::train(true, 0), ones = masks_in_fit::train(true, 1);
  EXPECT_EQ(zeros.loss, ones.loss);
  EXPECT_EQ(zeros.weights, ones.weights);
  EXPECT_NE(masks_in_fit::train(false, 0).loss, masks_in_fit::train(false, 1).loss);
}

TEST(MasksInFit, MetricsCountTheStepsThatCountUnderEveryStrategy) {
  const Tensor words = masks_in_fit::words();
  const Tensor labels = Tensor::from<std::int64_t>({4, 3}, {0, 1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 1});
  const std::vector<double> ones(12, 1.0), steps = {1, 2, 9, 0.5, 9, 9, 0, 4, 1, 0.25, 3, 9};
  const Tensor of_steps = cast(Tensor::from({4, 3}, steps), DType::kFloat32);
  const Tensor of_rows = Tensor::from<float>({4}, {1, 0.5, 0, 2});
  const std::vector<double> spread = {1, 1, 1, 0.5, 0.5, 0.5, 0, 0, 0, 2, 2, 2};
  for (const auto& strategy : model_tests::several_strategies()) {
    SCOPED_TRACE(model_tests::label_of(*strategy));
    auto scope = strategy->scope();
    set_random_seed(7);
    Sequential model(Input{{3}}, Embedding(4, 3, {.mask_zero = true}), Dense(2));
    model.compile({.optimizer = SgdOptions{.learning_rate = 0.0},
                   .loss = "sparse_categorical_crossentropy",
                   .metrics = {"accuracy"},
                   .weighted_metrics = {"accuracy"}});
    const Tensor predictions = model.predict(words);
    const auto expected = [&](const std::vector<double>& weights) {
      return masks_in_fit::accuracy_of_words(words, labels, predictions, weights);
    };
    ASSERT_NE(expected(ones), expected(steps));
    for (const auto& [given, weights] :
         {std::pair(Tensor(), ones), std::pair(of_steps, steps), std::pair(of_rows, spread)}) {
      // Batches of 3 rows and of 1: some replicas have none.
      const Logs measured =
          model.evaluate(words, labels, {.batch_size = 3, .sample_weight = given});
      const History trained = model.fit(words, labels,
                                        {.batch_size = 3,
                                         .verbose = Verbosity::kSilent,
                                         .shuffle = false,
                                         .sample_weight = given});
      EXPECT_NEAR(measured.at("accuracy"), expected(ones), 1e-12);
      EXPECT_NEAR(measured.at("weighted_accuracy"), expected(weights), 1e-12);
      EXPECT_NEAR(trained["accuracy"][0], expected(ones), 1e-12);
      EXPECT_NEAR(trained["weighted_accuracy"][0], expected(weights), 1e-12);
    }
  }
}

TEST(MasksInFit, AResidualAroundAttentionKeepsTheMask) {
  const SymbolicTensor words = Input{{3}};
  const SymbolicTensor x = Embedding(4, 4, {.mask_zero = true})(words);
  const SymbolicTensor sum = Add()({x, MultiHeadAttention(2, 2)({x, x})});
  const Functional block({words}, {LayerNormalization()(sum)});
  const MaskScope masks;
  const Tensor mask = MaskScope::mask_of(block(masks_in_fit::words()));
  ASSERT_TRUE(mask.defined());
  EXPECT_EQ(mask.to_doubles(), (std::vector<double>{1, 1, 0, 1, 0, 0, 1, 1, 1, 1, 1, 0}));
}

}  // namespace
}  // namespace tutti
