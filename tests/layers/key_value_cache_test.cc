// Layers that are called with further steps behind those that a cache has.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/key_value_cache.h"

#include "tests/layers/layer_checks.h"
#include "tutti/model/layers/convolution.h"
#include "tutti/model/layers/core_layers.h"
#include "tutti/model/layers/multi_head_attention.h"
#include "tutti/model/layers/pooling.h"
#include "tutti/model/layers/recurrent.h"
#include "tutti/model/layers/transformer.h"

namespace tutti {
namespace {

using namespace layer_tests;
using ::testing::HasSubstr;

constexpr std::int64_t kSteps = 7, kFeatures = 4;

/// Learnt and turned positions, two blocks, keys that heads share.
class Decoder : public Layer {
 protected:
  Shape build(const Shape& input) override {
    add_layer(positions_, input);
    add_layer(first_, input);
    return add_layer(second_, input);
  }
  Tensor call(const Tensor& input, CallContext context) const override {
    return second_(first_(positions_(input, context), context), context);
  }

 private:
  PositionEmbedding positions_{kSteps};
  TransformerBlock first_{2, 4, 5, {.num_key_value_heads = 1}};
  TransformerBlock second_{2, 2, 3, {.rotary_max_wavelength = std::nullopt}};
};

Tensor steps_of(const Tensor& x, std::int64_t first, std::int64_t count) {
  return slice(x, {0, first, 0}, {-1, count, -1});
}

TEST(KeyValueCacheTest, FurtherStepsGetTheResultsOfOneCall) {
  const ExactLayers exact;
  Decoder decoder;
  decoder.build_for({kSteps, kFeatures});
  const Tensor x = spread({3, kSteps, kFeatures}, 1);
  const Tensor whole = decoder(x);
  for (const std::vector<std::int64_t>& parts :
       {std::vector<std::int64_t>{7}, {4, 3}, {1, 1, 1, 1, 1, 1, 1}, {3, 1, 2, 1}}) {
    KeyValueCache cache;
    for (const std::int64_t count : parts) {
      const std::int64_t first = cache.steps();
      const Tensor y = cache.call(decoder, steps_of(x, first, count));
      expect_values(y, steps_of(whole, first, count).to_doubles(), 1e-12);
      EXPECT_EQ(cache.steps(), first + count);
    }
  }
}

TEST(KeyValueCacheTest, RotationsGoOn) {
  const ExactLayers exact;
  class Turned : public Layer {
   protected:
    Shape build(const Shape& input) override {
      add_layer(attention_, input);
      return add_layer(rotation_, input);
    }
    Tensor call(const Tensor& input, CallContext context) const override {
      return rotation_(attention_(input, context), context);
    }

   private:
    MultiHeadAttention attention_{1, 2, {.use_causal_mask = true}};
    RotaryEmbedding rotation_;
  };
  Turned layer;
  layer.build_for({kSteps, kFeatures});
  const Tensor x = spread({1, kSteps, kFeatures}, 1);
  KeyValueCache cache;
  (void)cache.call(layer, steps_of(x, 0, 5));
  expect_values(cache.call(layer, steps_of(x, 5, 2)), steps_of(layer(x), 5, 2).to_doubles(), 1e-12);
}

TEST(KeyValueCacheTest, ErrorsChangeNothing) {
  Decoder decoder;
  decoder.build_for({kSteps, kFeatures});
  const Tensor x = cast(spread({2, kSteps, kFeatures}, 1), DType::kFloat32);
  KeyValueCache cache;
  (void)cache.call(decoder, steps_of(x, 0, 5));
  EXPECT_ERROR((void)cache.call(decoder, steps_of(x, 4, 3)), kInvalidArgument,
               "expected at most 7 steps, got 8; try shorter sequences, or generate()");
  EXPECT_ERROR((void)cache.call(decoder, x.detached_rows(0, 1)), kInvalidArgument,
               "PositionEmbedding");
  EXPECT_ERROR((void)cache.call(decoder, steps_of(x.detached_rows(0, 1), 5, 1)), kInvalidArgument,
               "KeyValueCache: expected a batch of 2 as in the first call, got 1");
  EXPECT_ERROR((void)cache.call(decoder, Tensor::zeros({2})), kInvalidArgument,
               "expected [batch, steps, ...], got [2]");
  EXPECT_EQ(cache.steps(), 5);
  expect_values(cache.call(decoder, steps_of(x, 5, 2)), steps_of(decoder(x), 5, 2).to_doubles(),
                1e-5);
}

TEST(KeyValueCacheTest, IsRefusedWhereStepsMeetOtherwise) {
  const auto refusal = [](Layer&& layer) {
    layer.build_for({kSteps, kFeatures});
    KeyValueCache cache;
    return error_of([&] { (void)cache.call(layer, Tensor::zeros({1, kSteps, kFeatures})); });
  };
  const auto not_kept = HasSubstr(
      "its result depends on earlier steps, which a KeyValueCache "
      "does not keep; try generate() with .use_cache = false");
  EXPECT_THAT(refusal(GRU(2)), not_kept);
  EXPECT_THAT(refusal(Conv1D(2, 2)), not_kept);
  EXPECT_THAT(refusal(MaxPooling1D(2)), not_kept);
  EXPECT_THAT(refusal(GlobalAveragePooling1D()), not_kept);
  EXPECT_THAT(refusal(MultiHeadAttention(1, 2)), HasSubstr("needs .use_causal_mask = true"));
  EXPECT_THAT(refusal(Dense(2)), HasSubstr("expected a MultiHeadAttention in it, found none"));
}

TEST(KeyValueCacheTest, IsRefusedForStepsThatDoNotCount) {
  MultiHeadAttention attention(1, 2, {.use_causal_mask = true});
  attention.build_for({2, kFeatures});
  const MaskScope scope;
  const Tensor x = Tensor::zeros({1, 2, kFeatures});
  MaskScope::set_mask(x, cast(Tensor::from<float>({1, 2}, {0, 1}), DType::kBool));
  KeyValueCache cache;
  EXPECT_ERROR((void)cache.call(attention, x), kUnimplemented, "without a mask");
}

}  // namespace
}  // namespace tutti
