// One walk back over a recording.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "tutti/autograd/gradient_sum.h"
#include "tutti/autograd/recording.h"

namespace tutti::internal {

/// Whether nodes give up their tensors as soon as they were walked over.
enum class NodeLifetime { kKeep, kRelease };

/// Computes the gradients of one target. A node is *active* when a source leads to it and it leads
/// to the target: only active nodes run their gradient functions. Used once.
class BackwardPass {
 public:
  /// `source_slots` may hold kNoSlot (a source that the recording never saw) and repetitions.
  BackwardPass(Recording& recording, std::vector<int> source_slots, NodeLifetime lifetime);

  /// `initial` is the gradient with respect to the target itself.
  std::vector<Gradient> run(int target_slot, const Tensor& initial,
                            const GradientTape::OnReady& on_ready);

 private:
  void mark_dependents();
  void mark_active(int target_slot);
  void order_sources();
  void process(Node& node);
  std::vector<Gradient> input_gradients(const Node& node, std::span<const Tensor> gradients);
  /// Adds a Gradient or a GradientBlock.
  template <class Part>
  void accumulate(int slot, const Part& part);
  /// Reports the sources whose first active use is node `index`.
  void report_ready(std::size_t index, const GradientTape::OnReady& on_ready);
  void report_missing(const GradientTape::OnReady& on_ready);
  bool depends(int slot) const { return slot != kNoSlot && depends_[index_of(slot)]; }
  static std::size_t index_of(int slot) { return static_cast<std::size_t>(slot); }

  Recording& recording_;
  std::vector<int> source_slots_;
  NodeLifetime lifetime_;
  std::size_t num_nodes_;      // what a persistent tape records during the walk is not walked
  std::vector<char> wanted_;   // by slot: is a source
  std::vector<char> depends_;  // by slot: a source leads to it
  std::vector<char> active_;   // by node
  std::vector<std::size_t> first_use_;     // by slot: the earliest active node that uses it
  std::vector<std::size_t> report_order_;  // of sources
  std::size_t num_reported_ = 0;
  std::vector<GradientSum> sums_;     // by slot
  std::vector<Gradient> results_;     // by source
  std::vector<std::size_t> missing_;  // sources without gradient
};

}  // namespace tutti::internal
