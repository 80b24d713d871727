// Implements one rank of an inter-process measurement.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/tutti_bench/bench_processes.h"

#include <algorithm>
#include <optional>

#include "benchmarks/tutti_bench/bench_floor.h"
#include "benchmarks/tutti_bench/bench_subject.h"
#include "cluster/worker_group.h"
#include "tensor/buffer_allocator.h"
#include "tutti/core/executor.h"

namespace tutti::bench {
namespace {

/// Buffers of one rank, in memory that calls can use without a copy, if available.
class RankMemory {
 public:
  RankMemory(std::size_t num_bytes, const std::shared_ptr<BufferAllocator>& allocator) {
    if (allocator) {
      shared_ = allocator->allocate(num_bytes);
    } else {
      own_.emplace(num_bytes);
    }
  }
  std::byte* data() { return own_ ? own_->data() : shared_->data(); }

 private:
  BufferRef shared_;
  std::optional<BenchMemory> own_;
};

/// Measurement of the lower bound, in process 0, for as many replicas as there are ranks.
class Floor {
 public:
  Floor(int ranks, std::size_t num_bytes) : team_(std::min(ranks, num_hardware_threads())) {
    for (int r = 0; r < ranks; ++r) {
      memory_.emplace_back(num_bytes);
      std::fill_n(memory_.back().data(), num_bytes, std::byte{0});
      starts_.push_back(reinterpret_cast<float*>(memory_.back().data()));
    }
  }
  double round(const CallPlan& plan, std::size_t num_bytes) {
    return median_of(time_calls(
        team_, plan, [&](int thread) { floor_pass(team_, thread, starts_, num_bytes); }));
  }

 private:
  BenchTeam team_;
  std::vector<BenchMemory> memory_;
  std::vector<float*> starts_;
};

class ProcessMeasurement {
 public:
  ProcessMeasurement(const BenchOptions& options, WorkerGroup& group)
      : options_(options), group_(group), meeting_(group.make_communicator()) {
    for (const std::size_t size : options.sizes) {
      largest_ = std::max(largest_, bytes_of_list(counts_of(size), options.dtype));
    }
    if (group.worker() == 0) floor_.emplace(options.replicas, largest_);
  }

  const std::string& connections() const { return connections_; }

  /// Returns ping_pong_nanoseconds() as measured by process 0 while the other processes wait.
  double ping_pong() {
    double nanoseconds = group_.worker() == 0 ? ping_pong_nanoseconds() : 0.0;
    tell_all(nanoseconds);
    return nanoseconds;
  }

  /// Connects the ranks for this operation. Returns the reason if that is impossible, otherwise "".
  std::string begin(const std::string& name) {
    std::string reason;
    try {
      connect(name);
    } catch (const Error& error) {
      reason = error.message();
    }
    std::int64_t failed = reason.empty() ? 0 : 1;
    meeting_->all_reduce(ReduceOp::kMax, Elements(std::span(&failed, 1)));
    if (failed == 0) return "";
    end();
    return reason.empty() ? "another process cannot use this operation" : reason;
  }
  void end() {
    memory_.clear();
    communicator_.reset();
  }

  BenchRow measure(const std::string& name, std::size_t size) {
    resize(size);
    const CallPlan plan = plan_calls(options_.iterations, options_.warm_up, size);
    BenchRow row;
    row.name = name;
    row.num_bytes = count_ * size_of(options_.dtype);
    row.count = count_;
    row.out_of_place.emplace();
    if (options_.check) check(row);
    std::vector<double> in_place, out_of_place, floors, of_floor;
    for (int round = 0; round < options_.rounds; ++round) {
      double floor = floor_ ? floor_->round(plan, row.num_bytes) : 0.0;
      tell_all(floor);
      floors.push_back(floor);
      fill(list_, group_.worker(), options_.op);
      in_place.push_back(time_of(plan, [this] { reduce_list(); }));
      of_floor.push_back(floor / in_place.back());
      out_of_place.push_back(time_of(plan, [this] { reduce_flat(); }));
    }
    row.in_place.time = summary_of(in_place);
    row.out_of_place->time = summary_of(out_of_place);
    row.floor = summary_of(floors);
    row.of_floor = summary_of(of_floor);
    return row;
  }

 private:
  std::vector<std::size_t> counts_of(std::size_t num_bytes) const {
    const std::size_t size = size_of(options_.dtype);
    return scaled_gradients(options_.gradients, std::max<std::size_t>(1, num_bytes / size));
  }

  void connect(const std::string& name) {
    ControlClient* const store = group_.control();
    if (store == nullptr) {
      fail(ErrorCode::kFailedPrecondition,
           "these processes have no control server; use tutti run, or set TUTTI_CONTROL");
    }
    ConnectedRanks ranks =
        connect_ranks(group_.worker(), group_.num_workers(), *store,
                      {.way = options_.way, .key_prefix = concat("bench/", name)});
    connections_ = ranks.line;
    const std::shared_ptr<KeyValueStore> borrowed(std::shared_ptr<void>(), store);
    communicator_ =
        make_communicator(Group{.world_size = group_.num_workers(),
                                .first_rank = group_.worker(),
                                .local_devices = {Device{}},
                                .store = borrowed,
                                .transport = ranks.transport},
                          {.algorithm = name, .plugin_options = options_.plugin_options_of(name)});
    if (!communicator_->supports(Collective::kAllReduce, options_.op, options_.dtype)) {
      fail(ErrorCode::kUnimplemented, "does not support ", options_.op, " of ", options_.dtype);
    }
    for (int i = 0; i < 2; ++i) memory_.emplace_back(largest_, communicator_->allocator());
  }

  void resize(std::size_t size) {
    const std::vector<std::size_t> counts = counts_of(size);
    count_ = 0;
    for (const std::size_t count : counts) count_ += count;
    list_ = list_at(memory_[0].data(), counts, options_.dtype);
    input_ = {memory_[0].data(), count_, options_.dtype};
    output_ = {memory_[1].data(), count_, options_.dtype};
  }

  void reduce_list() { communicator_->all_reduce(options_.op, std::span<const Elements>(list_)); }
  void reduce_flat() { communicator_->all_reduce(options_.op, ConstElements(input_), output_); }

  void check(BenchRow& row) {
    fill(list_, group_.worker(), options_.op);
    reduce_list();
    row.in_place.num_wrong = wrong_of_all(list_, row.largest_error);
    fill({&input_, 1}, group_.worker(), options_.op);
    reduce_flat();
    row.out_of_place->num_wrong = wrong_of_all({&output_, 1}, row.largest_error);
  }

  std::size_t wrong_of_all(std::span<const Elements> list, double& largest_error) {
    const ListErrors errors =
        errors_of(list, options_.replicas, options_.op, communicator_->max_relative_error());
    std::int64_t checksum = errors.checksum;
    meeting_->broadcast(Elements(std::span(&checksum, 1)), 0);
    auto wrong = static_cast<std::int64_t>(checksum == errors.checksum ? errors.num_wrong : count_);
    meeting_->all_reduce(ReduceOp::kSum, Elements(std::span(&wrong, 1)));
    largest_error = std::max(largest_error, errors.largest);
    meeting_->all_reduce(ReduceOp::kMax, Elements(std::span(&largest_error, 1)));
    return static_cast<std::size_t>(wrong);
  }

  void tell_all(double& of_process_0) {
    meeting_->broadcast(Elements(std::span(&of_process_0, 1)), 0);
  }

  /// Returns the seconds per call: the median, over the batches, of the slowest process's time.
  double time_of(const CallPlan& plan, const std::function<void()>& call) {
    const Clock& clock = Clock::system();
    std::optional<PinnedThread> pinned;
    if (options_.replicas <= num_hardware_threads()) pinned.emplace(group_.worker());
    for (int i = 0; i < plan.warm_up; ++i) call();
    std::vector<double> seconds;
    for (int batch = 0; batch < plan.batches; ++batch) {
      meeting_->barrier();
      const TimePoint begin = clock.now();
      for (int i = 0; i < plan.calls; ++i) call();
      seconds.push_back(seconds_between(begin, clock.now()) / plan.calls);
    }
    meeting_->all_reduce(ReduceOp::kMax, Elements(std::span(seconds)));
    return median_of(seconds);
  }

  const BenchOptions& options_;
  WorkerGroup& group_;
  const std::unique_ptr<Communicator> meeting_;
  std::size_t largest_ = 0, count_ = 0;
  std::optional<Floor> floor_;  // only in process 0
  std::string connections_;
  std::unique_ptr<Communicator> communicator_;
  std::vector<RankMemory> memory_;
  std::vector<Elements> list_;
  Elements input_, output_;
};

}  // namespace

BenchResults bench_processes(
    const BenchOptions& options, const ClusterResolver& resolver,
    const std::function<void(const BenchResults&, const std::string& connections)>& begin,
    const std::function<void(const BenchRow&)>& row) {
  const auto group = WorkerGroup::join(resolver, {.way = options.way});
  BenchOptions own = options;
  own.replicas = group->num_workers();
  ProcessMeasurement measurement(own, *group);
  BenchResults results;
  results.rank = group->worker();
  results.ping_pong_before = measurement.ping_pong();
  bool is_first = true;
  for (const std::string& name : own.op_names) {
    const std::string reason = measurement.begin(name);
    if (results.rank == 0 && std::exchange(is_first, false)) {
      begin(results, measurement.connections());
    }
    if (!reason.empty()) {
      results.skipped.push_back({name, reason});
      continue;
    }
    for (const std::size_t size : own.sizes) {
      results.rows.push_back(measurement.measure(name, size));
      if (results.rank == 0) row(results.rows.back());
    }
    measurement.end();
  }
  results.ping_pong_after = measurement.ping_pong();
  return results;
}

}  // namespace tutti::bench
