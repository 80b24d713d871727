// One pass against two.
// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_update.h"

#include <algorithm>
#include <cstring>

#include "tools/bench_memory.h"
#include "tools/bench_team.h"
#include "tools/bench_update_floor.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/optimizer/sgd.h"

namespace tutti::tools {
namespace {

/// Gradients, weights and perhaps momenta of one rank, as lists in memory of their own.
class Replica {
 public:
  Replica(std::size_t num_bytes, std::size_t slot_bytes)
      : gradients_memory_(num_bytes), weights_memory_(num_bytes), momenta_memory_(slot_bytes) {}

  void resize(std::span<const std::size_t> counts, bool has_slot) {
    gradients = list_in(gradients_memory_, counts, DType::kFloat32);
    weights = list_in(weights_memory_, counts, DType::kFloat32);
    momenta =
        has_slot ? list_in(momenta_memory_, counts, DType::kFloat32) : std::vector<Elements>();
    inputs.assign(gradients.begin(), gradients.end());
    slots.assign(has_slot ? 1 : 0, momenta);
  }

  void start(int rank) {
    fill(gradients, rank, ReduceOp::kSum);
    fill(weights, 0, ReduceOp::kSum);
    for (const Elements& each : momenta) std::memset(each.data, 0, each.num_bytes());
  }
  void clear_gradients() {
    for (const Elements& each : gradients) std::memset(each.data, 0, each.num_bytes());
  }
  bool has_bits_of(const Replica& other) const {
    const auto equal = [](const Elements& a, const Elements& b) {
      return std::memcmp(a.data, b.data, a.num_bytes()) == 0;
    };
    return std::ranges::equal(weights, other.weights, equal) &&
           std::ranges::equal(momenta, other.momenta, equal);
  }

  std::vector<Elements> gradients, weights, momenta;
  std::vector<ConstElements> inputs;             // the gradients, to read
  std::vector<std::span<const Elements>> slots;  // [slot][gradient]

 private:
  BenchMemory gradients_memory_, weights_memory_, momenta_memory_;
};

BenchTime summary_of(const std::vector<double>& rounds) {
  const auto [least, most] = std::ranges::minmax(rounds);
  return {median_of(rounds), least, most};
}

class UpdateMeasurement {
 public:
  UpdateMeasurement(const BenchOptions& options, double momentum)
      : options_(options),
        rule_(momentum),
        has_slot_(momentum != 0.0),
        team_(options.replicas),
        communicators_(in_process_communicators(options.replicas)) {
    std::size_t largest = 0;
    for (const std::size_t size : options.sizes) {
      largest = std::max(largest, bytes_of_list(counts_of(size), DType::kFloat32));
    }
    for (int r = 0; r < options.replicas; ++r) {
      replicas_.emplace_back(largest, has_slot_ ? largest : 0);
      copies_.emplace_back(largest, has_slot_ ? largest : 0);
    }
  }

  UpdateRow measure(std::size_t num_bytes) {
    const std::vector<std::size_t> counts = counts_of(num_bytes);
    UpdateRow row;
    for (const std::size_t count : counts) row.count += count;
    row.num_bytes = row.count * sizeof(float);
    row.same_bits = compare(counts);
    std::vector<double> all_reduce, separate, fused, gain, of_all_reduce, of_floor;
    const CallPlan plan = plan_calls(options_.iterations, options_.warm_up, num_bytes);
    for (int round = 0; round < options_.rounds; ++round) {
      all_reduce.push_back(time([&](int rank) { reduce(rank, replica(rank)); }, plan));
      separate.push_back(time([&](int rank) { run_separate(rank, replica(rank)); }, plan));
      fused.push_back(time([&](int rank) { run_fused(rank, replica(rank)); }, plan));
      gain.push_back(separate.back() / fused.back());
      of_all_reduce.push_back(fused.back() / all_reduce.back());
      if (!has_slot_) {
        const double floor = time([&](int rank) { run_floor(rank); }, plan);
        of_floor.push_back(floor / fused.back());
      }
    }
    row.all_reduce = summary_of(all_reduce);
    row.separate = summary_of(separate);
    row.fused = summary_of(fused);
    row.gain = summary_of(gain);
    row.of_all_reduce = summary_of(of_all_reduce);
    if (!has_slot_) row.of_floor = summary_of(of_floor);
    return row;
  }

 private:
  std::vector<std::size_t> counts_of(std::size_t num_bytes) const {
    return scaled_gradients(options_.gradients,
                            std::max<std::size_t>(1, num_bytes / sizeof(float)));
  }
  Replica& replica(int rank) { return replicas_[static_cast<std::size_t>(rank)]; }
  /// Each rank has just written its gradients, as after a backward pass.
  double time(const std::function<void(int)>& call, const CallPlan& plan) {
    return median_of(time_prepared_calls(
        team_, plan, [&](int rank) { replica(rank).clear_gradients(); }, call));
  }

  void reduce(int rank, const Replica& replica) {
    communicators_[static_cast<std::size_t>(rank)]->all_reduce(
        ReduceOp::kSum, std::span<const Elements>(replica.gradients));
  }

  void run_separate(int rank, const Replica& replica) {
    reduce(rank, replica);
    for (std::size_t i = 0; i < replica.weights.size(); ++i) {
      std::vector<void*> slots;
      if (has_slot_) slots.push_back(replica.momenta[i].data);
      const Elements& weights = replica.weights[i];
      rule_.apply({DType::kFloat32, weights.count, weights.data, slots, replica.gradients[i].data,
                   scalars_});
    }
  }

  void run_fused(int rank, const Replica& replica) {
    communicators_[static_cast<std::size_t>(rank)]->all_reduce_and_update(
        ReduceOp::kSum, replica.inputs,
        {.rule = &rule_, .scalars = scalars_, .weights = replica.weights, .slots = replica.slots});
  }

  /// The lists as one buffer each: their gaps are a few bytes.
  void run_floor(int rank) {
    std::vector<const float*> gradients;
    std::vector<float*> weights;
    for (const Replica& each : replicas_) {
      gradients.push_back(reinterpret_cast<const float*>(each.gradients.front().data));
      weights.push_back(reinterpret_cast<float*>(each.weights.front().data));
    }
    const Elements& last = replicas_.front().weights.back();
    const auto count = static_cast<std::size_t>(reinterpret_cast<const float*>(last.data) -
                                                weights.front() + last.count);
    update_floor_pass(team_, rank, {gradients, weights, count}, 1e-3f);
  }

  /// Three steps of each, from the same start.
  bool compare(std::span<const std::size_t> counts) {
    for (auto* set : {&replicas_, &copies_}) {
      for (Replica& each : *set) each.resize(counts, has_slot_);
      team_.run([&](int rank) { (*set)[static_cast<std::size_t>(rank)].start(rank); });
    }
    team_.run([&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      for (int step = 0; step < 3; ++step) {
        fill(replicas_[r].gradients, rank, ReduceOp::kSum);
        run_separate(rank, replicas_[r]);
        run_fused(rank, copies_[r]);
      }
    });
    return std::ranges::all_of(
               replicas_, [&](const Replica& each) { return each.has_bits_of(copies_.front()); }) &&
           std::ranges::all_of(
               copies_, [&](const Replica& each) { return each.has_bits_of(copies_.front()); });
  }

  const BenchOptions& options_;
  const SgdRule rule_;
  const UpdateScalars scalars_{.learning_rate = 1e-3};
  const bool has_slot_;
  BenchTeam team_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<Replica> replicas_, copies_;
};

}  // namespace

UpdateResults bench_update(const BenchOptions& options, double momentum,
                           const std::function<void(const UpdateResults&)>& begin,
                           const std::function<void(const UpdateRow&)>& row) {
  UpdateResults results;
  results.ping_pong_before = ping_pong_nanoseconds();
  UpdateMeasurement measurement(options, momentum);
  begin(results);
  for (const std::size_t size : options.sizes) {
    results.rows.push_back(measurement.measure(size));
    row(results.rows.back());
  }
  results.ping_pong_after = ping_pong_nanoseconds();
  return results;
}

}  // namespace tutti::tools
