// Subject of a measurement: a communicator or a cross-device operation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "benchmarks/tutti_bench/bench_memory.h"
#include "benchmarks/tutti_bench/bench_options.h"

namespace tutti::bench {

/// Memory of one rank: its gradients as a list, and a flat input and output of the same total
/// length.
struct BenchRank {
  std::vector<Elements> list;
  Elements flat_input;
  Elements flat_output;
};

class BenchSubject {
 public:
  virtual ~BenchSubject() = default;
  /// Returns the number of threads that must call in_place(): the number of ranks, or one.
  virtual int num_threads() const = 0;
  virtual double max_relative_error() const = 0;
  virtual bool has_out_of_place() const = 0;
  /// Run the part of one all_reduce that belongs to `thread`: in_place() on the lists,
  /// out_of_place() from flat_input to flat_output.
  virtual void in_place(std::span<const BenchRank> ranks, int thread) = 0;
  virtual void out_of_place(std::span<const BenchRank> ranks, int thread) = 0;
};

/// Creates the subject. Throws an Error with the reason if this operation does not support the
/// shape, reduction or type.
std::unique_ptr<BenchSubject> make_bench_subject(const std::string& name,
                                                 const BenchOptions& options);

}  // namespace tutti::bench
