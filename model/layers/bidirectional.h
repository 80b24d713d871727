// A recurrent layer in both directions of time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <string>

#include "tutti/model/layers/recurrent.h"

namespace tutti {

struct BidirectionalOptions {
  /// "concat", "sum", "mul" or "ave".
  std::string merge_mode = "concat";
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// `Bidirectional(LSTM(64))`: two layers of this kind, "forward_<name>" and "backward_<name>", the
/// second over the steps from last to first; its sequence is turned round again before both results
/// are merged. Steps of sequences that do not count (masks.h) are 0. Layers that return states are
/// refused.
class Bidirectional : public LayerOf<Bidirectional> {
 public:
  template <std::derived_from<Recurrent> L>
  explicit Bidirectional(const L& layer, BidirectionalOptions options = {})
      : Bidirectional(layer, layer.name(), std::move(options)) {}

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kOwn; }

 private:
  Tensor merge(const Tensor& forward, const Tensor& backward) const;
  Bidirectional(const Recurrent& layer, const std::string& layer_name,
                BidirectionalOptions options);

  std::shared_ptr<Recurrent> forward_;
  std::shared_ptr<Recurrent> backward_;
  std::string merge_mode_;
};

}  // namespace tutti
