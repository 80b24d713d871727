// Generation of token sequences from a model's logits.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/names.h"
#include "model/layers/labels_and_weights.h"
#include "tutti/model/layers/key_value_cache.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Sampling of one token.

namespace {

void check_sampling(const SamplingOptions& options) {
  const auto refuse = [](const char* what, const auto& got) {
    fail(ErrorCode::kInvalidArgument, "sample: expected ", what, ", got ", got);
  };
  if (!(options.temperature >= 0.0)) refuse("a temperature >= 0", options.temperature);
  if (options.top_k && *options.top_k < 1) refuse("top_k >= 1", *options.top_k);
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) refuse("top_p in (0, 1]", options.top_p);
}

/// Returns the most likely classes, in order of decreasing probability: one if the temperature is
/// 0, else top_k if set, else all.
std::vector<std::size_t> candidates(std::span<const double> logits,
                                    const SamplingOptions& options) {
  std::vector<std::size_t> classes(logits.size());
  std::iota(classes.begin(), classes.end(), std::size_t{0});
  const std::size_t wanted = options.temperature == 0.0 ? 1
                             : options.top_k            ? static_cast<std::size_t>(*options.top_k)
                                                        : classes.size();
  const std::size_t count = std::min(wanted, classes.size());
  std::ranges::partial_sort(classes, classes.begin() + static_cast<std::ptrdiff_t>(count),
                            [&](std::size_t a, std::size_t b) {
                              return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                            });
  classes.resize(count);
  return classes;
}

/// Returns the class selected by the random number `draw`, in [0, 1).
std::int64_t sampled_class(std::span<const double> logits, double draw,
                           const SamplingOptions& options) {
  std::vector<std::size_t> classes = candidates(logits, options);
  std::vector<double> up_to;  // cumulative weights
  for (const std::size_t each : classes) {
    // A single class has weight 1 without a division by the temperature, which may be 0.
    const double below = classes.size() == 1 ? 0.0 : logits[each] - logits[classes[0]];
    const double weight = below == 0.0 ? 1.0 : std::exp(below / options.temperature);
    up_to.push_back(weight + (up_to.empty() ? 0.0 : up_to.back()));
  }
  const double nucleus = options.top_p * up_to.back();
  const auto last = std::min(std::ranges::lower_bound(up_to, nucleus), up_to.end() - 1);
  const auto drawn = std::upper_bound(up_to.begin(), last, draw * *last);
  return static_cast<std::int64_t>(classes[static_cast<std::size_t>(drawn - up_to.begin())]);
}

}  // namespace

Tensor sample(const Tensor& logits, const RandomKey& key, const SamplingOptions& options) {
  check_sampling(options);
  internal::require(logits.rank() == 2 && logits.shape()[1] != 0,
                    "sample: expected logits [batch, classes], got ", logits.shape());
  const std::vector<double> values = logits.to_doubles();
  const auto classes = static_cast<std::size_t>(logits.shape()[1]);
  const RandomStream stream(key);
  std::vector<std::int64_t> result;
  for (std::size_t row = 0; row * classes < values.size(); ++row) {
    const auto of_row = std::span(values).subspan(row * classes, classes);
    if (std::ranges::any_of(of_row, [](double value) { return std::isnan(value); }))
      fail(ErrorCode::kInvalidArgument, "sample: expected logits without NaN, got NaN in row ",
           row);
    result.push_back(sampled_class(of_row, stream.uniform64(row), options));
  }
  return Tensor::from(Shape{logits.shape()[0]}, result);
}

// Generation of sequences.

namespace {

/// Sequences of equal length that are being generated, with the model's logits for their next
/// tokens.
class Generation {
 public:
  Generation(const Layer& model, const Tensor& prompt, const GenerateOptions& options)
      : model_(model),
        options_(options),
        tokens_(internal::whole_numbers(prompt.to(Device{}), "generate")) {
    const std::vector<Variable> variables = model.variables();
    if (!variables.empty()) device_ = variables.front().value().device();
  }

  const Tensor& tokens() const { return tokens_; }
  std::int64_t steps() const { return tokens_.shape()[1]; }

  /// Returns the logits of the next tokens, [batch, vocabulary].
  Tensor next_logits() {
    const Tensor all = options_.use_cache ? with_cache() : model_(last(window()));
    if (all.rank() != 3) {
      fail(ErrorCode::kInvalidArgument, "generate: layer '", model_.name(), "' (",
           model_.type_name(), "): expected logits [batch, steps, vocabulary], got ", all.shape());
    }
    return squeeze(slice(all, {0, all.shape()[1] - 1, 0}, {-1, 1, -1}), 1).to(Device{});
  }

  /// Appends `next` [batch]. Returns true if all sequences have ended.
  bool append(const Tensor& next) {
    std::vector<std::int64_t> column;
    bool all_ended = options_.end_token.has_value();
    for (std::int64_t row = 0; row < next.shape()[0]; ++row) {
      const std::int64_t before =
          tokens_.host_span<std::int64_t>()[static_cast<std::size_t>(row * steps() + steps() - 1)];
      const bool had_ended = num_new_ > 0 && options_.end_token == before;
      column.push_back(had_ended ? before
                                 : next.host_span<std::int64_t>()[static_cast<std::size_t>(row)]);
      all_ended = all_ended && options_.end_token == column.back();
    }
    tokens_ = concat({tokens_, Tensor::from(Shape{next.shape()[0], 1}, column)}, 1);
    ++num_new_;
    return all_ended;
  }

 private:
  std::int64_t window() const { return options_.window.value_or(steps()); }

  /// Returns the last tokens of each sequence, at most `count`, on the device of the model's
  /// weights.
  Tensor last(std::int64_t count) const {
    const std::int64_t from = std::max<std::int64_t>(steps() - count, 0);
    return slice(tokens_, {0, from}, {-1, -1}).to(device_);
  }

  Tensor with_cache() {
    if (cached_ == 0) return call(last(window()));
    if (cache_.steps() + steps() - cached_ <= window()) return call(last(steps() - cached_));
    cache_ = KeyValueCache();
    return call(last(std::max<std::int64_t>(window() / 2, 1)));
  }

  Tensor call(const Tensor& tokens) {
    cached_ = steps();
    return cache_.call(model_, tokens);
  }

  const Layer& model_;
  const GenerateOptions& options_;
  Tensor tokens_;
  Device device_;
  KeyValueCache cache_;
  std::int64_t cached_ = 0;  // steps() at the last call of the cache; 0 before the first call
  std::int64_t num_new_ = 0;
};

}  // namespace

Tensor generate(const Layer& model, const Tensor& prompt, const GenerateOptions& options) {
  const bool is_index = prompt.dtype() == DType::kInt64 || prompt.dtype() == DType::kInt32;
  internal::require(
      is_index && prompt.rank() == 2 && prompt.shape()[1] != 0,
      "generate: expected an int32 or int64 prompt [batch, steps] with at least one step, got ",
      prompt.dtype(), " ", prompt.shape());
  if (options.window.value_or(1) < 1 || options.max_new_tokens < 0) {
    fail(ErrorCode::kInvalidArgument,
         "generate: expected a window >= 1 and max_new_tokens >= 0, got ",
         options.window.value_or(1), " and ", options.max_new_tokens);
  }
  Generation generation(model, prompt, options);
  for (std::int64_t i = 0; i < options.max_new_tokens; ++i) {
    const RandomKey key{.seed = options.seed.value_or(random_seed()),
                        .purpose = kUserPurpose,
                        .a = static_cast<std::uint64_t>(generation.steps())};
    const Tensor next = sample(generation.next_logits(), key, options.sampling);
    if (generation.append(next)) break;
  }
  return generation.tokens();
}

}  // namespace tutti
