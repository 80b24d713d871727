// Masks: which steps of a sequence count. They travel beside the tensors, not in them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <unordered_map>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// While one lives, this thread remembers masks of layers' results: bool [batch, steps], true where
/// a step counts. Embedding and Masking make them; recurrent layers, attention, pooling over steps
/// and losses read them; see Layer::mask_use() for the others. A call of a model, or of any layer,
/// lives in one of its own unless there is one already: make one around layers that are called one
/// by one, or around a model and its loss, as Model::fit does. Scopes that nest are one.
class MaskScope {
 public:
  MaskScope();
  ~MaskScope();
  MaskScope(const MaskScope&) = delete;
  MaskScope& operator=(const MaskScope&) = delete;

  /// The mask of this value; undefined when all steps count.
  static Tensor mask_of(const Tensor& x);
  /// An undefined mask is none. Throws kInvalidArgument when the mask is not bool or x does not
  /// begin with its dimensions.
  static void set_mask(const Tensor& x, const Tensor& mask);
  /// Whether any value has a mask.
  static bool has_masks();

 private:
  bool is_outermost_;
  std::unordered_map<std::uint64_t, Tensor> masks_;  // by Tensor::id()
};

/// What a layer does with a mask of its first input: nothing, so that it ends there and a warning
/// says so; it is also the mask of the result; the layer reads and sets masks itself.
enum class MaskUse { kEnds, kKeeps, kOwn };

}  // namespace tutti
