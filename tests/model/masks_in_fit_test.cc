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

}  // namespace masks_in_fit

TEST(MasksInFit, LabelsOfGapsDoNotMatter) {
  const auto zeros = masks_in_fit::train(true, 0), ones = masks_in_fit::train(true, 1);
  EXPECT_EQ(zeros.loss, ones.loss);
  EXPECT_EQ(zeros.weights, ones.weights);
  EXPECT_NE(masks_in_fit::train(false, 0).loss, masks_in_fit::train(false, 1).loss);
}

}  // namespace
}  // namespace tutti
