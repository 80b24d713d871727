// Implements communicators and cross-device operations as subjects of a measurement.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/tutti_bench/bench_subject.h"

#include "benchmarks/tutti_bench/bench_team.h"
#include "cross_device_ops/in_process/in_process_transport.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::bench {
namespace {

/// Returns communicators whose ranks are threads. They use shared memory if the algorithm supports
/// it, and messages otherwise.
std::vector<std::unique_ptr<Communicator>> communicators_of(const std::string& name,
                                                            const BenchOptions& bench) {
  const int size = bench.replicas;
  CommunicatorOptions options;
  options.algorithm = name;
  options.plugin_options = bench.plugin_options_of(name);
  auto communicators = in_process_communicators(size, options);
  if (communicators.front()->name() == name) return communicators;
  // Creates them concurrently, because some algorithms connect to their peers on creation.
  const auto transports = in_process_transports(size, /*shares_memory=*/false);
  const auto store = std::make_shared<InProcessStore>();
  BenchTeam team(size);
  team.run([&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    communicators[r] =
        make_communicator(Group{size, rank, {Device{}}, store, transports[r]}, options);
  });
  return communicators;
}

/// Subject in which each rank calls a separate communicator, as in a program with several threads
/// or processes.
class SpreadSubject final : public BenchSubject {
 public:
  SpreadSubject(const std::string& name, const BenchOptions& options)
      : op_(options.op), communicators_(communicators_of(name, options)) {
    const Communicator& first = *communicators_.front();
    if (!first.supports(Collective::kAllReduce, options.op, options.dtype)) {
      fail(ErrorCode::kUnimplemented, "does not support ", options.op, " of ", options.dtype);
    }
  }
  int num_threads() const override { return static_cast<int>(communicators_.size()); }
  double max_relative_error() const override { return communicators_[0]->max_relative_error(); }
  bool has_out_of_place() const override { return true; }
  void in_place(std::span<const BenchRank> ranks, int thread) override {
    const auto t = static_cast<std::size_t>(thread);
    communicators_[t]->all_reduce(op_, std::span<const Elements>(ranks[t].list));
  }
  void out_of_place(std::span<const BenchRank> ranks, int thread) override {
    const auto t = static_cast<std::size_t>(thread);
    communicators_[t]->all_reduce(op_, ConstElements(ranks[t].flat_input), ranks[t].flat_output);
  }

 private:
  const ReduceOp op_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
};

/// Subject in which one thread passes the buffers of all replicas, one gradient at a time.
class LocalSubject final : public BenchSubject {
 public:
  LocalSubject(const std::string& name, const BenchOptions& options) : op_(options.op) {
    Group group;
    group.world_size = options.replicas;
    for (int r = 0; r < options.replicas; ++r) {
      group.local_devices.push_back({DeviceType::kCpu, r});
    }
    ops_ = build_cross_device_ops(make_cross_device_ops(name, {}, options.plugin_options_of(name)),
                                  group);
    const ReduceOp needed = options.op == ReduceOp::kMean ? ReduceOp::kSum : options.op;
    if (!ops_->supports(needed, options.dtype, DeviceType::kCpu)) {
      fail(ErrorCode::kUnimplemented, "does not support ", options.op, " of ", options.dtype);
    }
    devices_ = group.local_devices;
  }
  int num_threads() const override { return 1; }
  double max_relative_error() const override { return ops_->max_relative_error(); }
  bool has_out_of_place() const override { return false; }
  void in_place(std::span<const BenchRank> ranks, int) override {
    for (std::size_t i = 0; i < ranks.front().list.size(); ++i) {
      buffers_.clear();
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        const Elements& each = ranks[r].list[i];
        buffers_.push_back({each.data, each.count, each.dtype, devices_[r]});
      }
      ops_->all_reduce_in_place(op_, buffers_);
    }
  }
  void out_of_place(std::span<const BenchRank>, int) override {
    fail(ErrorCode::kInternal,
         "tutti bench: --shape local: expected an in-place call, got an out-of-place call");
  }

 private:
  const ReduceOp op_;
  std::unique_ptr<CrossDeviceOps> ops_;
  std::vector<Device> devices_;
  std::vector<ReplicaBuffer> buffers_;
};

}  // namespace

std::unique_ptr<BenchSubject> make_bench_subject(const std::string& name,
                                                 const BenchOptions& options) {
  if (options.shape == BenchShape::kLocal) return std::make_unique<LocalSubject>(name, options);
  return std::make_unique<SpreadSubject>(name, options);
}

}  // namespace tutti::bench
