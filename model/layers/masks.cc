// Masks: which steps of a sequence count.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/masks.h"

#include "tutti/core/error.h"

namespace tutti {
namespace {

thread_local MaskScope* current_scope = nullptr;

}  // namespace

MaskScope::MaskScope() : is_outermost_(current_scope == nullptr) {
  if (is_outermost_) current_scope = this;
}

MaskScope::~MaskScope() {
  if (is_outermost_) current_scope = nullptr;
}

bool MaskScope::has_masks() { return current_scope && !current_scope->masks_.empty(); }

Tensor MaskScope::mask_of(const Tensor& x) {
  if (!has_masks()) return Tensor();
  const auto found = current_scope->masks_.find(x.id());
  return found == current_scope->masks_.end() ? Tensor() : found->second;
}

void MaskScope::set_mask(const Tensor& x, const Tensor& mask) {
  if (!mask.defined() || !current_scope) return;
  bool fits = mask.dtype() == DType::kBool && mask.rank() <= x.rank();
  for (int axis = 0; fits && axis < mask.rank(); ++axis)
    fits = mask.shape()[axis] == x.shape()[axis];
  if (!fits) {
    fail(ErrorCode::kInvalidArgument, "MaskScope: expected a bool mask [batch, steps] for a value ",
         x.shape(), ", got ", mask.dtype(), " ", mask.shape());
  }
  current_scope->masks_.insert_or_assign(x.id(), mask);
}

}  // namespace tutti
