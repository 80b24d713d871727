// Emitters that write operations in StableHLO.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/xla/hlo.h"
#include "tutti/tensor/op.h"

namespace tutti {
struct DeviceRule;
}  // namespace tutti

namespace tutti::internal {

using HloInputs = std::span<const Hlo>;
using Hlos = std::vector<Hlo>;

/// Writes an operation and returns its outputs. `inputs` are the inputs of the call, with 16-bit
/// types widened; dropout has an additional input, words_of_key().
using HloEmitter = Hlos (*)(HloText& text, const OpCall& call, HloInputs inputs);

/// Returns the emitter that writes the operation in StableHLO; nullptr if there is none.
HloEmitter find_emitter(OpId op);

/// Returns Philox's initial words for this key: the two halves of Philox's key, then the halves of
/// its counter's upper part.
std::array<std::int64_t, 4> words_of_key(const RandomKey& key);

/// Returns `values` (the weights, then the rule's slots) after an update. `constants` is
/// [kNumConstants] of the weights' type, with the meaning that tensor/cpu/update_rules.h gives.
std::vector<Hlo> emit_update(const DeviceRule& rule, std::span<const Hlo> values,
                             const Hlo& gradient, const Hlo& constants);

/// Table of emitters, indexed by operation.
class HloEmitters {
 public:
  void set(OpId op, HloEmitter emitter) { emitters_[static_cast<std::size_t>(op)] = emitter; }
  HloEmitter find(OpId op) const { return emitters_[static_cast<std::size_t>(op)]; }

 private:
  std::array<HloEmitter, static_cast<std::size_t>(OpId::kCount)> emitters_{};
};
void register_elementwise_emitters(HloEmitters& emitters);
void register_image_emitters(HloEmitters& emitters);
void register_linear_emitters(HloEmitters& emitters);
void register_normalization_emitters(HloEmitters& emitters);
void register_reduction_emitters(HloEmitters& emitters);
void register_shape_emitters(HloEmitters& emitters);

}  // namespace tutti::internal
