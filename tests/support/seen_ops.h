// Records the operations that run, for tests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <span>

#include "tutti/tensor/dispatch.h"

namespace tutti::thrown {

/// Collects the operations that this thread dispatches during this object's lifetime.
class SeenOps final : public OpObserver {
 public:
  void on_op(const OpCall& call, std::span<const Tensor>) override { ops.insert(call.op); }
  std::set<OpId> ops;

 private:
  ObserverScope scope_{*this};
};

}  // namespace tutti::thrown
