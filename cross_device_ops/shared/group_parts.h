// The parts of a collective that ranks do on each other's memory, whoever maps it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tutti/cross_device_ops/collective.h"
#include "tutti/cross_device_ops/collective_header.h"

namespace tutti::internal {

/// What all ranks brought to the call that runs, with addresses that this thread can use.
class GroupCalls {
 public:
  virtual ~GroupCalls() = default;
  virtual const CollectiveCall& call(int rank) const = 0;
  virtual const CollectiveHeader& header(int rank) const = 0;
  /// The start of one of a rank's outputs, and whether they are its inputs.
  virtual std::byte* output(int rank, std::size_t buffer) const = 0;
  virtual bool in_place(int rank) const = 0;
};

/// A call's buffers, one after the other, are its *elements*. *Part* r of a reduction of n elements
/// is [n * r / size, n * (r + 1) / size), cut at multiples of 64 elements; of a copy it is rank r's
/// result. Reductions go along the canonical tree. One thread.
class GroupParts {
 public:
  GroupParts(const GroupCalls& calls, int size);

  /// Reads and writes all ranks' memory where it lies.
  void do_part(const CollectiveCall& call, int part);
  /// Of an all_to_all: what rank r sends to rank s is as long as s expects. Throws kInvalidArgument
  /// naming both.
  void require_counts_fit() const;

 private:
  void combine_part(const CollectiveCall& call, int part);
  void combine(const CollectiveCall& call, std::size_t buffer, std::size_t begin, std::size_t end);
  void combine_for(int rank);
  void gather_for(int rank) const;
  void exchange_for(int rank) const;

  const GroupCalls& calls_;
  const int size_;
  // Starts of a range in every rank's memory, kept to spare the allocation.
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
};

}  // namespace tutti::internal
