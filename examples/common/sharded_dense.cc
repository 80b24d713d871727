// Implements dense layers that are sharded over the workers of a mesh.
// SPDX-License-Identifier: Apache-2.0
#include "examples/common/sharded_dense.h"

namespace tutti::examples {
namespace {

constexpr const char* kAxis = "worker";

/// Splits the rows into `count` equal parts; returns part `index`.
Tensor part_of_rows(const Tensor& x, int index, int count) {
  const std::int64_t rows = x.shape()[0] / count;
  std::vector<std::int64_t> begin(static_cast<std::size_t>(x.rank()), 0);
  std::vector<std::int64_t> size(static_cast<std::size_t>(x.rank()), -1);
  begin[0] = index * rows;
  size[0] = rows;
  return slice(x, begin, size);
}

/// Splits each worker's rows into `rounds` equal parts; returns part `round`. Does not communicate.
Tensor share_of_rows(const Tensor& x, int round, int rounds) {
  if (rounds == 1) return x;
  Layout by_rows;
  by_rows.axes.resize(static_cast<std::size_t>(x.rank()));
  by_rows.axes[0] = kAxis;
  return local_map(
      [=](LocalMapContext&, const std::vector<Tensor>& in) {
        return std::vector{part_of_rows(in[0], round, rounds)};
      },
      {x}, {by_rows}, {by_rows})[0];
}

/// Returns the logits of features [rows, n]. `weights` contains the kernels and biases of the
/// hidden layer and of the output layer.
Tensor sharded_dense(const Tensor& features, const std::vector<Variable>& weights,
                     DenseScheme scheme) {
  const auto of_parts = [scheme](LocalMapContext& context, const std::vector<Tensor>& in) {
    // Terms that this worker's hidden units add to the logits of the rows.
    const auto terms = [&](const Tensor& rows) {
      return matmul(relu(matmul(rows, in[1]) + in[2]), in[3]);
    };
    const auto of_all = [&](const Tensor& own) {
      return context.reduce_scatter(terms(context.all_gather(own, kAxis, 0)), kAxis, 0);
    };
    const int workers = context.size(kAxis);
    std::vector<Tensor> logits;
    for (int round = 0; round < workers && scheme != DenseScheme::kAllAtOnce; ++round) {
      if (scheme == DenseScheme::kSharesOfAll) {
        logits.push_back(of_all(part_of_rows(in[0], round, workers)));
      } else {
        const Tensor rows = context.broadcast(in[0], kAxis, round);
        // The result is 0 on all workers except worker `round`.
        const Tensor own = context.reduce(terms(rows), kAxis, round);
        logits = {logits.empty() ? own : logits[0] + own};
      }
    }
    if (scheme == DenseScheme::kAllAtOnce) logits = {of_all(in[0])};
    return std::vector{concat(logits, 0) + in[4]};
  };
  return local_map(
      of_parts,
      {features, weights[0].value(), weights[1].value(), weights[2].value(), weights[3].value()},
      {{kAxis, ""}, {"", kAxis}, {kAxis}, {kAxis, ""}, {""}}, {{kAxis, ""}})[0];
}

}  // namespace

LayoutMap sharded_dense_layouts() {
  return {{"(^|/)hidden/kernel$", {"", kAxis}},
          {"(^|/)hidden/bias$", {kAxis}},
          {"(^|/)output/kernel$", {kAxis, ""}}};
}

Tensor hybrid_step(const Batch& batch, const Model& below, Optimizer& below_optimizer,
                   const Model& dense, Optimizer& dense_optimizer, DenseScheme scheme, int rounds) {
  const std::vector<Variable> weights = dense.trainable_variables();
  GradientTape tape_below;
  const Tensor features = below(batch.features(), {.training = true});
  tape_below.stop();
  Tensor loss, feature_gradient;
  for (int round = 0; round < rounds; ++round) {
    GradientTape tape;
    tape.watch(features);
    const Tensor logits = sharded_dense(share_of_rows(features, round, rounds), weights,
                                        rounds == 1 ? scheme : DenseScheme::kAllAtOnce);
    const Tensor mean = reduce_mean(losses::sparse_categorical_crossentropy(
        share_of_rows(batch.labels(), round, rounds), logits));
    std::vector<Gradient> gradients =
        tape.gradient_with(mean, Tensor::ones({}), weights, std::span(&features, 1));
    const Tensor gradient = gradients.back().to_dense() / static_cast<double>(rounds);
    gradients.pop_back();
    dense_optimizer.apply_gradients(gradients);
    feature_gradient = round == 0 ? gradient : feature_gradient + gradient;
    loss = round == 0 ? mean : loss + mean;
  }
  below_optimizer.apply_gradients(
      tape_below.gradient_with(features, feature_gradient, below.trainable_variables()));
  return loss / static_cast<double>(rounds);
}

}  // namespace tutti::examples
