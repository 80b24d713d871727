// A layer applied to every step of a sequence.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <utility>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

struct TimeDistributedOptions {
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// [batch, steps, ...] -> [batch, steps, ...]: the same layer for each step, as if steps were rows.
class TimeDistributed : public LayerOf<TimeDistributed> {
 public:
  template <std::derived_from<Layer> L>
  explicit TimeDistributed(L layer, TimeDistributedOptions options = {})
      : TimeDistributed(std::make_shared<L>(std::move(layer)), std::move(options)) {}
  explicit TimeDistributed(std::shared_ptr<Layer> layer, TimeDistributedOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  std::shared_ptr<Layer> layer_;
};

}  // namespace tutti
