// Tests sampling and generation: the tokens that can be drawn, their frequencies, and that a cache
// does not change results.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/generate.h"

#include <cmath>
#include <set>

#include "tests/model/model_helpers.h"
#include "tutti/model/layers/key_value_cache.h"

namespace tutti::testing::generate_test {

/// Returns, for each class, the fraction of `count` draws that chose it. All draws use the same
/// logits.
std::vector<double> shares_drawn(const std::vector<float>& logits, const SamplingOptions& options,
                                 std::int64_t count) {
  const auto classes = static_cast<std::int64_t>(logits.size());
  const Tensor rows = broadcast_to(Tensor::from({1, classes}, logits), {count, classes});
  std::vector<double> shares(logits.size());
  for (const double drawn : sample(rows, {.seed = 7}, options).to_doubles())
    shares.at(static_cast<std::size_t>(drawn)) += 1.0 / static_cast<double>(count);
  return shares;
}

const std::vector<float> kLogits = {std::log(1.f), std::log(4.f), std::log(3.f), std::log(2.f)};
constexpr std::int64_t kDraws = 20000;
constexpr double kSpread = 0.015;  // four standard deviations of a fraction near 0.5

TEST(SampleTest, DrawsFollowTemperatureAndTopKProbabilities) {
  const std::vector<double> shares = shares_drawn(kLogits, {}, kDraws);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(shares[i], std::exp(kLogits[i]) / 10, kSpread);
  const std::vector<double> cooled = shares_drawn(kLogits, {.temperature = 0.5}, kDraws);
  const double squares[] = {1, 16, 9, 4};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(cooled[i], squares[i] / 30, kSpread);
  EXPECT_THAT(shares_drawn(kLogits, {.temperature = 0.0}, 100),
              ElementsAre(0, DoubleNear(1, 1e-9), 0, 0));
  const std::vector<double> likeliest = shares_drawn(kLogits, {.top_k = 2}, kDraws);
  EXPECT_EQ(likeliest[0] + likeliest[3], 0.0);
  EXPECT_NEAR(likeliest[1], 4.0 / 7, kSpread);
  EXPECT_EQ(shares_drawn(kLogits, {.top_k = 9}, 50), shares_drawn(kLogits, {}, 50));
}

TEST(SampleTest, TopPKeepsLikeliestClassesUpToProbabilityMass) {
  // The two likeliest classes have the probability 0.4 + 0.3, which is below 0.75. With the third
  // class's 0.2, the sum exceeds 0.75.
  const std::vector<double> shares = shares_drawn(kLogits, {.top_p = 0.75}, kDraws);
  EXPECT_EQ(shares[0], 0.0);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_NEAR(shares[i], std::exp(kLogits[i]) / 9, kSpread);
  EXPECT_THAT(shares_drawn(kLogits, {.top_p = 0.39}, 100),
              ElementsAre(0, DoubleNear(1, 1e-9), 0, 0));
  // top_p applies to the classes that top_k keeps. The likeliest class alone exceeds 0.5, because
  // its probability is 4 / 7.
  EXPECT_THAT(shares_drawn(kLogits, {.top_k = 2, .top_p = 0.5}, 100),
              ElementsAre(0, DoubleNear(1, 1e-9), 0, 0));
}

TEST(SampleTest, SameKeyRepeatsDrawsAndTiesFavorFirstClasses) {
  EXPECT_THAT(sample(Tensor::zeros({2, 5}), {}, {.temperature = 0.0}).to_doubles(), Each(0.0));
  const std::vector<double> shares = shares_drawn({0, 0, 0, 0}, {.top_k = 2}, 200);
  EXPECT_EQ(shares[2] + shares[3], 0.0);
  const Tensor logits = random_normal({6, 9}, {.seed = 3});
  const std::vector<double> all = sample(logits, {.seed = 1}).to_doubles();
  EXPECT_EQ(sample(logits, {.seed = 1}).to_doubles(), all);
  EXPECT_NE(sample(logits, {.seed = 2}).to_doubles(), all);
  EXPECT_EQ(sample(logits.detached_rows(0, 1), {.seed = 1}).to_doubles()[0], all[0]);
}

TEST(SampleTest, ErrorsContainExpectedValues) {
  const auto refused = [](const Tensor& logits, const SamplingOptions& options) {
    return error_of([&] { (void)sample(logits, {}, options); });
  };
  const Tensor logits = Tensor::zeros({2, 3});
  EXPECT_THAT(refused(logits, {.temperature = -1.0}), HasSubstr("temperature >= 0, got -1"));
  EXPECT_THAT(refused(logits, {.top_k = 0}), HasSubstr("top_k >= 1, got 0"));
  EXPECT_THAT(refused(logits, {.top_p = 0.0}), HasSubstr("top_p in (0, 1], got 0"));
  EXPECT_THAT(refused(Tensor::zeros({3}), {}), HasSubstr("expected logits [batch, classes]"));
  EXPECT_THAT(refused(Tensor::from<float>({2, 1}, {0, NAN}), {}),
              HasSubstr("expected logits without NaN, got NaN in row 1"));
}

constexpr std::int64_t kVocabulary = 11;

Sequential small_gpt(std::int64_t context) {
  return Sequential(Input{{context}},
                    Embedding(kVocabulary, 8, {.embeddings_initializer = "normal"}),
                    PositionEmbedding(context), TransformerBlock(2, 4, 16),
                    TransformerBlock(2, 4, 16), LayerNormalization(),
                    Dense(kVocabulary, {.kernel_initializer = initializers::random_normal(0, 1)}));
}

Tensor prompt_of(std::int64_t batch, std::int64_t steps) {
  return cast(random_uniform({batch, steps}, {.seed = 5}, 0.0, kVocabulary), DType::kInt64);
}

TEST(GenerateTest, CachedTokensMatchTokensComputedWithoutCache) {
  set_random_seed(4);
  const Sequential model = small_gpt(40);
  const Tensor prompt = prompt_of(3, 5);
  for (const SamplingOptions& sampling :
       {SamplingOptions{.temperature = 0.0}, SamplingOptions{},
        SamplingOptions{.temperature = 0.8, .top_k = 5, .top_p = 0.9}}) {
    GenerateOptions options{.max_new_tokens = 30, .sampling = sampling, .seed = 9};
    const Tensor cached = generate(model, prompt, options);
    options.use_cache = false;
    const Tensor whole = generate(model, prompt, options);
    ASSERT_EQ(cached.shape(), (Shape{3, 35}));
    EXPECT_EQ(cached.to_doubles(), whole.to_doubles());
    EXPECT_EQ(slice(cached, {0, 0}, {-1, 5}).to_doubles(), prompt.to_doubles());
    // Shows that the tokens are not all equal.
    const std::vector<double> tokens = cached.to_doubles();
    EXPECT_GT(std::set<double>(tokens.begin() + 5, tokens.begin() + 35).size(), 2u);
  }
}

TEST(GenerateTest, CachedLogitsAreCloseToLogitsOfFullSequence) {
  set_random_seed(4);
  const Sequential model = small_gpt(40);
  const Tensor tokens = prompt_of(2, 40);
  const Tensor whole = model(tokens);
  KeyValueCache cache;
  for (std::int64_t step = 0; step < 40; ++step) {
    const Tensor logits = cache.call(model, slice(tokens, {0, step}, {-1, 1}));
    expect_near(logits.to_doubles(), slice(whole, {0, step, 0}, {-1, 1, -1}).to_doubles(), 1e-5);
  }
}

TEST(GenerateTest, SameSeedRepeatsTokensAndOtherSeedsDoNot) {
  set_random_seed(4);
  const Sequential model = small_gpt(40);
  const Tensor prompt = prompt_of(1, 2);
  const auto drawn = [&](const GenerateOptions& options) {
    return generate(model, prompt, options).to_doubles();
  };
  EXPECT_EQ(drawn({.max_new_tokens = 20, .seed = 1}), drawn({.max_new_tokens = 20, .seed = 1}));
  EXPECT_NE(drawn({.max_new_tokens = 20, .seed = 1}), drawn({.max_new_tokens = 20, .seed = 2}));
  EXPECT_EQ(drawn({.max_new_tokens = 20}), drawn({.max_new_tokens = 20, .seed = 4}));
  EXPECT_EQ(drawn({.max_new_tokens = 0}), prompt.to_doubles());
}

/// Layer whose logits predict token t + 1 after token t.
class Counting : public Layer {
 public:
  Counting() { build_for({1}); }
  mutable std::int64_t largest = 0;

 protected:
  Shape build(const Shape& input) override { return {input[0], kVocabulary}; }
  Tensor call(const Tensor& input, CallContext) const override {
    largest = std::max(largest, input.shape()[1]);
    return one_hot(input + Tensor::ones(input.shape(), input.dtype()), kVocabulary) * 9.0;
  }
};

TEST(GenerateTest, RowsArePaddedAfterEndToken) {
  const Counting model;
  const Tensor prompt = Tensor::from<std::int64_t>({2, 1}, {3, 5});
  const Tensor tokens = generate(
      model, prompt,
      {.max_new_tokens = 8, .sampling = {.temperature = 0.0}, .end_token = 7, .use_cache = false});
  EXPECT_EQ(tokens.shape(), (Shape{2, 5}));
  EXPECT_THAT(tokens.to_doubles(), ElementsAre(3, 4, 5, 6, 7, 5, 6, 7, 7, 7));
}

TEST(GenerateTest, WindowLimitsContext) {
  const Counting model;
  const Tensor prompt = Tensor::from<std::int64_t>({1, 4}, {0, 0, 0, 1});
  const GenerateOptions options{
      .max_new_tokens = 5, .sampling = {.temperature = 0.0}, .window = 3, .use_cache = false};
  EXPECT_THAT(generate(model, prompt, options).to_doubles(),
              ElementsAre(0, 0, 0, 1, 2, 3, 4, 5, 6));
  EXPECT_EQ(model.largest, 3);

  set_random_seed(4);
  const Sequential gpt = small_gpt(6);
  EXPECT_EQ(generate(gpt, prompt_of(1, 4), {.max_new_tokens = 20, .window = 6}).shape(),
            (Shape{1, 24}));
  EXPECT_INVALID((void)generate(gpt, prompt_of(1, 4), {.max_new_tokens = 20}),
                 "expected at most 6 steps, got 7; try shorter sequences, or generate() with "
                 ".window = 6");
}

TEST(GenerateTest, WorksUnderAnyStrategy) {
  std::vector<double> expected;
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    set_random_seed(4);
    const auto scope = strategy->scope();
    const Sequential model = small_gpt(12);
    const std::vector<double> tokens =
        generate(model, prompt_of(2, 3), {.max_new_tokens = 9}).to_doubles();
    if (expected.empty()) expected = tokens;
    EXPECT_EQ(tokens, expected);
  }
}

TEST(GenerateTest, ErrorsContainExpectedValues) {
  const Counting model;
  EXPECT_INVALID(
      (void)generate(model, Tensor::zeros({1, 2})),
      "generate: expected an int32 or int64 prompt [batch, steps] with at least one step, got "
      "float32 [1, 2]");
  EXPECT_INVALID((void)generate(model, prompt_of(1, 2).detached_rows(0, 1), {.window = 0}),
                 "a window >= 1");
  EXPECT_ERROR((void)generate(model, prompt_of(1, 2)), kFailedPrecondition,
               "contains a MultiHeadAttention, found none");
}

}  // namespace tutti::testing::generate_test
