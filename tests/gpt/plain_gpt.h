// GPT-2 and Llama in plain loops of doubles, after their published forward passes.
// SPDX-License-Identifier: Apache-2.0
//
// What modeling_gpt2.py and modeling_llama.py of Hugging Face's `transformers` compute, from
// tensors under their names there; it shares nothing with the library.
#pragma once

#include <cmath>
#include <map>
#include <numbers>
#include <string>
#include <vector>

namespace tutti::gpt_tests {

/// Rows of equal length.
struct Matrix {
  std::size_t rows = 0, columns = 0;
  std::vector<double> values;

  Matrix(std::size_t num_rows, std::size_t num_columns)
      : rows(num_rows), columns(num_columns), values(num_rows * num_columns) {}
  double& at(std::size_t row, std::size_t column) { return values[row * columns + column]; }
  double at(std::size_t row, std::size_t column) const { return values[row * columns + column]; }
};

using Weights = std::map<std::string, Matrix>;  // vectors: one row

struct PlainSizes {
  std::size_t layers, heads, key_value_heads, features;
  double epsilon;
  double wavelength = 0.0;
};

/// x * w, w [in, out] (GPT-2's Conv1D).
inline Matrix times(const Matrix& x, const Matrix& w) {
  Matrix y(x.rows, w.columns);
  for (std::size_t r = 0; r < x.rows; ++r)
    for (std::size_t o = 0; o < w.columns; ++o)
      for (std::size_t i = 0; i < x.columns; ++i) y.at(r, o) += x.at(r, i) * w.at(i, o);
  return y;
}

/// x * w^T, w [out, in] (torch.nn.Linear).
inline Matrix times_turned(const Matrix& x, const Matrix& w) {
  Matrix y(x.rows, w.rows);
  for (std::size_t r = 0; r < x.rows; ++r)
    for (std::size_t o = 0; o < w.rows; ++o)
      for (std::size_t i = 0; i < x.columns; ++i) y.at(r, o) += x.at(r, i) * w.at(o, i);
  return y;
}

/// Of each row; a matrix of one row is added to all.
inline Matrix plus(Matrix a, const Matrix& b) {
  for (std::size_t r = 0; r < a.rows; ++r)
    for (std::size_t c = 0; c < a.columns; ++c) a.at(r, c) += b.at(b.rows == 1 ? 0 : r, c);
  return a;
}

inline Matrix rows_of(const Matrix& table, const std::vector<std::size_t>& numbers) {
  Matrix y(numbers.size(), table.columns);
  for (std::size_t r = 0; r < numbers.size(); ++r)
    for (std::size_t c = 0; c < table.columns; ++c) y.at(r, c) = table.at(numbers[r], c);
  return y;
}

inline Matrix columns_of(const Matrix& x, std::size_t first, std::size_t count) {
  Matrix y(x.rows, count);
  for (std::size_t r = 0; r < x.rows; ++r)
    for (std::size_t c = 0; c < count; ++c) y.at(r, c) = x.at(r, first + c);
  return y;
}

inline Matrix layer_norm(Matrix x, const Matrix& scale, const Matrix& shift, double epsilon) {
  const auto count = static_cast<double>(x.columns);
  for (std::size_t r = 0; r < x.rows; ++r) {
    double mean = 0.0, variance = 0.0;
    for (std::size_t c = 0; c < x.columns; ++c) mean += x.at(r, c) / count;
    for (std::size_t c = 0; c < x.columns; ++c)
      variance += (x.at(r, c) - mean) * (x.at(r, c) - mean) / count;
    for (std::size_t c = 0; c < x.columns; ++c)
      x.at(r, c) =
          (x.at(r, c) - mean) / std::sqrt(variance + epsilon) * scale.at(0, c) + shift.at(0, c);
  }
  return x;
}

inline Matrix rms_norm(Matrix x, const Matrix& scale, double epsilon) {
  for (std::size_t r = 0; r < x.rows; ++r) {
    double squares = 0.0;
    for (std::size_t c = 0; c < x.columns; ++c)
      squares += x.at(r, c) * x.at(r, c) / static_cast<double>(x.columns);
    for (std::size_t c = 0; c < x.columns; ++c)
      x.at(r, c) *= scale.at(0, c) / std::sqrt(squares + epsilon);
  }
  return x;
}

/// rotate_half(): features i and i + half of a head are a pair.
inline Matrix turned(const Matrix& x, std::size_t heads, double wavelength) {
  Matrix y = x;
  const std::size_t length = x.columns / heads, half = length / 2;
  for (std::size_t step = 0; step < x.rows; ++step) {
    for (std::size_t head = 0; head < heads; ++head) {
      for (std::size_t i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(step) /
            std::pow(wavelength, static_cast<double>(2 * i) / static_cast<double>(length));
        const std::size_t low = head * length + i, high = low + half;
        y.at(step, low) = x.at(step, low) * std::cos(angle) - x.at(step, high) * std::sin(angle);
        y.at(step, high) = x.at(step, high) * std::cos(angle) + x.at(step, low) * std::sin(angle);
      }
    }
  }
  return y;
}

/// Causal; q, k, v [steps, heads * length].
inline Matrix attention(const Matrix& q, const Matrix& k, const Matrix& v, std::size_t heads,
                        std::size_t shared) {
  Matrix y(q.rows, q.columns);
  const std::size_t length = q.columns / heads;
  for (std::size_t head = 0; head < heads; ++head) {
    const std::size_t from = head * length, from_shared = head / (heads / shared) * length;
    for (std::size_t i = 0; i < q.rows; ++i) {
      std::vector<double> shares;
      double total = 0.0;
      for (std::size_t j = 0; j <= i; ++j) {
        double score = 0.0;
        for (std::size_t d = 0; d < length; ++d)
          score += q.at(i, from + d) * k.at(j, from_shared + d);
        shares.push_back(std::exp(score / std::sqrt(static_cast<double>(length))));
        total += shares.back();
      }
      for (std::size_t j = 0; j <= i; ++j)
        for (std::size_t d = 0; d < length; ++d)
          y.at(i, from + d) += shares[j] / total * v.at(j, from_shared + d);
    }
  }
  return y;
}

/// [tokens, vocabulary].
inline Matrix gpt2_logits(const Weights& w, const PlainSizes& sizes,
                          const std::vector<std::size_t>& tokens) {
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < tokens.size(); ++i) positions.push_back(i);
  const auto get = [&](const std::string& name) -> const Matrix& {
    return w.at("transformer." + name);
  };
  const auto conv1d = [&](const Matrix& x, const std::string& name) {
    return plus(times(x, get(name + ".weight")), get(name + ".bias"));
  };
  const auto norm = [&](const Matrix& x, const std::string& name) {
    return layer_norm(x, get(name + ".weight"), get(name + ".bias"), sizes.epsilon);
  };
  Matrix x = plus(rows_of(get("wte.weight"), tokens), rows_of(get("wpe.weight"), positions));
  for (std::size_t layer = 0; layer < sizes.layers; ++layer) {
    const std::string h = "h." + std::to_string(layer);
    const Matrix all = conv1d(norm(x, h + ".ln_1"), h + ".attn.c_attn");
    const std::size_t n = sizes.features;
    const Matrix mixed = attention(columns_of(all, 0, n), columns_of(all, n, n),
                                   columns_of(all, 2 * n, n), sizes.heads, sizes.heads);
    x = plus(x, conv1d(mixed, h + ".attn.c_proj"));
    Matrix hidden = conv1d(norm(x, h + ".ln_2"), h + ".mlp.c_fc");
    for (double& u : hidden.values)  // gelu_new
      u = 0.5 * u *
          (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (u + 0.044715 * u * u * u)));
    x = plus(x, conv1d(hidden, h + ".mlp.c_proj"));
  }
  return times_turned(norm(x, "ln_f"), get("wte.weight"));
}

inline Matrix llama_logits(const Weights& w, const PlainSizes& sizes,
                           const std::vector<std::size_t>& tokens) {
  const auto linear = [&](const Matrix& x, const std::string& name) {
    return times_turned(x, w.at(name + ".weight"));
  };
  Matrix x = rows_of(w.at("model.embed_tokens.weight"), tokens);
  for (std::size_t layer = 0; layer < sizes.layers; ++layer) {
    const std::string l = "model.layers." + std::to_string(layer);
    const Matrix a = rms_norm(x, w.at(l + ".input_layernorm.weight"), sizes.epsilon);
    const Matrix q = turned(linear(a, l + ".self_attn.q_proj"), sizes.heads, sizes.wavelength);
    const Matrix k =
        turned(linear(a, l + ".self_attn.k_proj"), sizes.key_value_heads, sizes.wavelength);
    const Matrix v = linear(a, l + ".self_attn.v_proj");
    const Matrix mixed = attention(q, k, v, sizes.heads, sizes.key_value_heads);
    x = plus(x, linear(mixed, l + ".self_attn.o_proj"));
    const Matrix b = rms_norm(x, w.at(l + ".post_attention_layernorm.weight"), sizes.epsilon);
    Matrix hidden = linear(b, l + ".mlp.gate_proj");
    const Matrix up = linear(b, l + ".mlp.up_proj");
    for (std::size_t i = 0; i < hidden.values.size(); ++i)
      hidden.values[i] = hidden.values[i] / (1.0 + std::exp(-hidden.values[i])) * up.values[i];
    x = plus(x, linear(hidden, l + ".mlp.down_proj"));
  }
  const bool tied = !w.contains("lm_head.weight");
  return linear(rms_norm(x, w.at("model.norm.weight"), sizes.epsilon),
                tied ? "model.embed_tokens" : "lm_head");
}

}  // namespace tutti::gpt_tests
