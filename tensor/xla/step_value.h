// A value of a traced step: not computed as yet, or on a device of the PJRT plugin.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tensor/distant_values.h"
#include "tensor/xla/pjrt_client.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

std::size_t num_bytes_of(const TensorSpec& spec);

/// Any thread may bring it to the host; the rest is for the thread that runs the step.
class StepValue final : public DistantValue {
 public:
  /// `trace`: the number of the trace in which it was made, as value `index`; `what` (a literal)
  /// made it, for the line `where`. It belongs to device `device`.
  StepValue(std::uint64_t trace, std::size_t index, int device, const TensorSpec& spec,
            std::string_view what, const SourceLocation& where)
      : trace_(trace), index_(index), device_(device), spec_(spec), what_(what), where_(where) {}

  std::uint64_t trace() const { return trace_; }
  std::size_t index() const { return index_; }
  int device() const { return device_; }
  const TensorSpec& spec() const { return spec_; }
  /// "matmul at train.cc:41".
  std::string maker() const;

  /// nullptr: nothing has been computed.
  std::shared_ptr<PjrtBuffer> buffer() const;
  void set_buffer(std::shared_ptr<PjrtBuffer> buffer);
  /// It will never be computed; does nothing to one that has been.
  void give_up();

  void bring(std::byte* to) override;

 private:
  const std::uint64_t trace_;
  const std::size_t index_;
  const int device_;
  const TensorSpec spec_;
  const std::string_view what_;
  const SourceLocation where_;
  mutable Mutex mutex_;
  std::shared_ptr<PjrtBuffer> buffer_ TUTTI_GUARDED_BY(mutex_);
  bool is_home_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_lost_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti::internal
