// Compares XLA with the CPU: the table of operations, their gradients, and networks.
// SPDX-License-Identifier: Apache-2.0
#include "examples/common/resnet.h"

#include <algorithm>
#include <map>

#include "tensor/xla/emitters.h"
#include "tests/autograd/gradient_check.h"
#include "tests/support/op_table.h"
#include "tests/xla/xla_test_support.h"
#include "tutti/tensor/dispatch.h"

namespace tutti::testing::networks_test {

Dataset examples_of(const Shape& features, int classes) {
  const std::int64_t rows = features.dim(0);
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < rows; ++i) labels.push_back(static_cast<std::int32_t>(i % classes));
  return Dataset::from_tensor_slices(random_normal(features, RandomKey{3}),
                                     Tensor::from<std::int32_t>({rows}, labels))
      .batch(rows / 2);
}

/// Returns a trainee whose steps train the model like fit() with SGD.
template <class MakeModel>
Trainee trainee_of(const MakeModel& make_model, double learning_rate = 0.05) {
  const auto model = make_model();
  auto optimizer = std::make_shared<Sgd>(model->trainable_variables(),
                                         SgdOptions{.learning_rate = learning_rate});
  auto step = [model, optimizer](const Batch& batch) {
    GradientTape tape;
    const Tensor logits = (*model)(batch.features(), {.training = true});
    const Tensor loss = compute_average_loss(
        losses::sparse_categorical_crossentropy(batch.labels(), logits), batch.global_rows());
    optimizer->minimize(tape, loss);
    return loss;
  };
  const auto& all = model->variables();
  return {step, {all.begin(), all.end()}};
}

TEST(XlaNetworks, ConvolutionalNetworkMatchesMirrored) {
  const auto make = [] {
    return std::make_shared<Sequential>(Input{{8, 8, 3}}, Conv2D(8, 3, {.padding = "same"}),
                                        BatchNormalization(), Activation("relu"), MaxPooling2D(2),
                                        Conv2D(8, 3, {.padding = "same", .activation = "relu"}),
                                        AveragePooling2D(2), Flatten(), Dense(5));
  };
  for (const int replicas : {1, 4}) {
    expect_close_to_mirrored(
        replicas, examples_of({16, 8, 8, 3}, 5), [&] { return trainee_of(make); }, 10, 1e-5);
  }
}

TEST(XlaNetworks, SynchronizedBatchNormalizationMatchesMirrored) {
  const auto make = [] {
    return std::make_shared<Sequential>(Input{{6}}, Dense(8),
                                        BatchNormalization({.synchronized = true}),
                                        Activation("relu"), Dense(3));
  };
  expect_close_to_mirrored(
      2, examples_of({16, 6}, 3), [&] { return trainee_of(make); }, 10, 1e-5);
}

TEST(XlaNetworks, LstmMatchesMirrored) {
  const auto make = [] { return std::make_shared<Sequential>(Input{{5, 4}}, LSTM(6), Dense(3)); };
  expect_close_to_mirrored(
      2, examples_of({16, 5, 4}, 3), [&] { return trainee_of(make); }, 10, 1e-5);
}

/// Returns a network with self-attention and two dense layers, each part with a shortcut
/// connection, and a classifier.
std::shared_ptr<Functional> transformer() {
  const SymbolicTensor in = Input{{6, 8}};
  const SymbolicTensor seen = LayerNormalization()(Add()({in, MultiHeadAttention(2, 4)(in)}));
  const SymbolicTensor inner = Dense(8)(Dense(16, {.activation = "gelu"})(seen));
  const SymbolicTensor out = LayerNormalization()(Add()({seen, inner}));
  return std::make_shared<Functional>(std::vector{in},
                                      std::vector{Dense(3)(GlobalAveragePooling1D()(out))});
}

TEST(XlaNetworks, TransformerMatchesMirrored) {
  expect_close_to_mirrored(
      2, examples_of({16, 6, 8}, 3), [] { return trainee_of(transformer); }, 10, 1e-5);
}

TEST(XlaNetworks, TransformerBlockMatchesMirrored) {
  const auto make = [] {
    return std::make_shared<Sequential>(Input{{6, 8}},
                                        TransformerBlock(4, 4, 10, {.num_key_value_heads = 2}),
                                        GlobalAveragePooling1D(), Dense(3));
  };
  expect_close_to_mirrored(
      2, examples_of({16, 6, 8}, 3), [&] { return trainee_of(make); }, 10, 1e-5);
}

// Uses float64, because a rounding difference can move the input of a ReLU across 0, and then two
// runs diverge. In float32, some plugins diverge in the second step.
TEST(XlaNetworks, ResNet20MatchesMirrored) {
  const auto make = [] {
    set_dtype_policy("float64");
    auto model = std::make_shared<Sequential>(examples::small_resnet(3, 16));
    set_dtype_policy("float32");
    return model;
  };
  expect_close_to_mirrored(
      2, examples_of({16, 16, 16, 3}, 10), [&] { return trainee_of(make, 0.01); }, 5, 1e-8);
}

TEST(XlaNetworks, SparseEmbeddingGradientsMatchMirrored) {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> labels;
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 4; ++k) ids.push_back((i * 3 + k * k) % 10);
    labels.push_back(i % 3);
  }
  const Dataset dataset = Dataset::from_tensor_slices(Tensor::from<std::int32_t>({16, 4}, ids),
                                                      Tensor::from<std::int32_t>({16}, labels))
                              .batch(8);
  const auto make = [] {
    return std::make_shared<Sequential>(Input{{4}}, Embedding(10, 6), Flatten(), Dense(3));
  };
  expect_close_to_mirrored(
      2, dataset, [&] { return trainee_of(make); }, 10, 1e-5);
}

/// Returns true if XLA and the reference kernels compute `op` on `dtype`; false for float16, which
/// XLA handles like bfloat16, to save compile time.
bool xla_has(OpId op, DType dtype) {
  if (dtype == DType::kFloat16) return false;
  const bool is_of_floats = op == OpId::kPower || op == OpId::kFloorDivide || op == OpId::kFloorMod;
  if (is_of_floats && !is_floating(dtype)) return false;
  return internal::find_emitter(op) != nullptr && reference_has(op, dtype);
}

std::vector<std::vector<Tensor>> run_on_xla(std::span<const OpCall> calls) {
  TpuStrategy strategy;
  std::vector<std::vector<Tensor>> results;
  strategy.run([&] {
    for (const OpCall& call : calls) results.push_back(dispatch(call));
  });
  return results;
}

/// Returns a large tolerance, because XLA uses different approximations of functions and a
/// different order of additions.
double xla_ulps(const OpCase& c) { return std::max(4.0 * c.ulps, 200.0); }

/// Returns true for bilinear upsampling, which XLA steps do not support, and for special numbers
/// whose results XLA leaves unspecified. XLA flushes the smallest numbers to 0, and specifies the
/// result for NaN only in a maximum or minimum, where the result is NaN.
bool xla_leaves_out(const OpCase& c) {
  constexpr OpId kOfNan[] = {OpId::kRelu,      OpId::kMaximum,   OpId::kMinimum,
                             OpId::kReduceMax, OpId::kReduceMin, OpId::kMaxPool};
  if (c.has_special_numbers) return std::ranges::find(kOfNan, c.call.op) == std::end(kOfNan);
  const auto* const upsampling = std::get_if<UpsampleAttributes>(&c.call.attributes);
  return upsampling != nullptr && upsampling->interpolation == Interpolation::kBilinear;
}

const OpBackend kXla{"xla",    xla_has,        run_on_xla,
                     xla_ulps, xla_leaves_out, 2};  // few cases, to save compile time

class XlaKernels : public OpTableTest {};

TEST_P(XlaKernels, AgreeWithTheReference) { expect_agreement(kXla, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Operations, XlaKernels, ValuesIn(op_families()), family_name);

TEST(XlaOpTable, CoversEveryXlaOperation) { expect_cases_of_all_kernels(kXla); }

using gradient_check::Case;

/// Returns at most two evenly distributed cases of each operation, to save compile time.
std::vector<Case> some_cases(const OpFamily& family) {
  std::map<OpId, std::vector<Case>> by_op;
  for (const Case& c : gradient_check::cases_of(family)) {
    const auto* const upsample = std::get_if<UpsampleAttributes>(&c.call.attributes);
    if (upsample && upsample->interpolation == Interpolation::kBilinear) continue;
    by_op[c.call.op].push_back(c);
  }
  std::vector<Case> chosen;
  for (const auto& [op, cases] : by_op) {
    const std::size_t count = std::min<std::size_t>(cases.size(), 2);
    for (std::size_t i = 0; i < count; ++i) chosen.push_back(cases[i * cases.size() / count]);
  }
  return chosen;
}

class XlaGradients : public OpTableTest {};

TEST_P(XlaGradients, AgreeWithTheCpu) {
  const std::vector<Case> cases = some_cases(GetParam());
  TpuStrategy strategy;
  std::vector<std::vector<Tensor>> results;
  strategy.run([&] {
    for (const Case& c : cases) results.push_back(value_and_gradients(c, Device{}));
  });
  for (std::size_t i = 0; i < cases.size(); ++i) expect_near_cpu(cases[i], results[i], 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Operations, XlaGradients, ValuesIn(op_families()), family_name);

TEST(XlaOperations, MaxPoolGradientFlowsToFirstMaximumOrNan) {
  const Tensor x = Tensor::from<float>({1, 4, 2, 1}, {1, 1, 1, 0, 2, std::nanf(""), 3, 1});
  const Tensor dy = Tensor::from<float>({1, 2, 1, 1}, {5, 7});
  TpuStrategy strategy;
  Tensor got;
  strategy.run([&] { got = max_pool2d_grad(x, dy, {}); });
  expect_tensor(got, x.shape(), {5, 0, 0, 0, 0, 7, 0, 0});
}

TEST(XlaOperations, SixteenBitRoundingMatchesCpu) {
  const Tensor x = random_normal({3, 5}, RandomKey{1});
  const auto rounded = [&] {
    const Tensor half = cast(x, DType::kBFloat16);
    return cast(half * half + half, DType::kFloat32);
  };
  TpuStrategy strategy;
  Tensor got;
  strategy.run([&] { got = rounded(); });
  expect_tensor(got, x.shape(), rounded().to_doubles(), 2e-5);
}

}  // namespace tutti::testing::networks_test
