// The memory of one case: what the ranks bring, guarded, and whether it became what it must.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "testing/cross_device_ops/expected.h"
#include "tutti/cross_device_ops/collective.h"
#include "tutti/tensor/tensor.h"
#include "tutti/testing/cross_device_ops/case.h"

namespace tutti::conformance {

// Where the elements of a case lie, and what each must become.

/// A run of a rank's output.
struct Segment {
  static constexpr int kCombination = -1;
  std::size_t output_first = 0;
  std::size_t count = 0;
  int source = kCombination;  // the rank whose input is copied, or the combination of all
  std::size_t input_first = 0;
};

struct RankLayout {
  std::size_t input_count = 0;
  std::size_t output_count = 0;
  /// In place input and output share memory and begin so many elements behind its start.
  std::size_t input_place = 0;
  std::size_t output_place = 0;
  bool shares_memory = false;
  std::vector<Segment> segments;  // together the whole output
};

struct Layout {
  std::vector<RankLayout> ranks;
  /// all_gather, reduce_scatter: [world]; all_to_all: [world * world], row r: what r sends to each.
  std::vector<std::size_t> counts;
};

/// Bytes at a chosen distance from a multiple of 64, with zones around them that must stay. On a
/// GPU, with a copy in host memory that is made and read.
class GuardedBytes {
 public:
  GuardedBytes(std::size_t size, std::size_t offset, Device device);
  /// The bytes in host memory.
  std::byte* data() const { return memory_->data() + kZone + offset_; }
  /// The bytes that an operation gets.
  std::byte* address() const;
  void upload() const;
  /// Waits for the GPU.
  void download() const;
  bool guards_are_intact() const;

 private:
  static constexpr std::size_t kZone = 128;
  BufferRef memory_;
  std::size_t size_;
  std::size_t offset_;
  MutableTensor on_gpu_;
  bool is_on_gpu_;
};

/// Threads: buffers of different ranks at once; check() when all have ended.
class Problem {
 public:
  /// `devices`: one per rank; none: CPUs.
  explicit Problem(const Case& c, std::vector<Device> devices = {});
  const Case& of() const { return case_; }
  const Layout& layout() const { return layout_; }

  ReplicaBuffer input(int rank) const;
  ReplicaBuffer output(int rank) const;
  std::vector<ReplicaBuffer> inputs() const;
  std::vector<ReplicaBuffer> outputs() const;

  /// Nothing, or the first thing that is wrong.
  std::string check(Determinism grade) const;
  /// Nothing, or what was written to although the call was refused.
  std::string check_untouched() const;
  /// Whether all outputs have the same bits as those of `other`, an equal problem.
  bool has_outputs_of(const Problem& other) const;

 private:
  struct Memory {
    GuardedBytes input;
    GuardedBytes output;  // in place: of no bytes
  };
  const RankLayout& rank(int r) const { return layout_.ranks[static_cast<std::size_t>(r)]; }
  Device device(int r) const;
  std::byte* host_input(int r) const;
  std::byte* host_output(int r) const;
  bool has_output(int r, const std::byte* bytes) const;
  void download() const;
  template <class T>
  std::string check_as(Determinism grade) const;
  template <class T>
  std::string check_segment(Determinism grade, int rank, const Segment& segment) const;
  template <class T>
  std::string check_input(int rank) const;
  std::string check_guards() const;

  Case case_;
  std::vector<Device> devices_;
  Layout layout_;
  Values values_;
  std::vector<Memory> memory_;
};

}  // namespace tutti::conformance
