// Runs rounds in which all operations and the lower bound are measured in turn.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/tutti_bench/bench_all_reduce.h"

#include <algorithm>

#include "benchmarks/tutti_bench/bench_floor.h"
#include "benchmarks/tutti_bench/bench_subject.h"

namespace tutti::bench {
namespace {

/// Memory of all ranks for the largest size.
class Ranks {
 public:
  explicit Ranks(const BenchOptions& options) : options_(options) {
    std::size_t largest = 0;
    for (const std::size_t size : options.sizes) {
      largest = std::max(largest, bytes_of_list(counts_of(size), options.dtype));
    }
    const bool needs_outputs = options.shape == BenchShape::kSpread;
    for (int r = 0; r < options.replicas; ++r) {
      inputs_.emplace_back(largest);
      outputs_.emplace_back(needs_outputs ? largest : 0);
    }
  }

  void resize(std::size_t num_bytes) {
    const std::vector<std::size_t> counts = counts_of(num_bytes);
    ranks_.clear();
    count_ = 0;
    for (const std::size_t count : counts) count_ += count;
    for (std::size_t r = 0; r < inputs_.size(); ++r) {
      ranks_.push_back({list_in(inputs_[r], counts, options_.dtype),
                        {inputs_[r].data(), count_, options_.dtype},
                        {outputs_[r].data(), count_, options_.dtype}});
    }
  }
  std::size_t count() const { return count_; }
  std::span<const BenchRank> all() const { return ranks_; }
  const BenchRank& rank(int r) const { return ranks_[static_cast<std::size_t>(r)]; }
  std::vector<float*> floats() const {
    std::vector<float*> starts;
    for (const BenchMemory& each : inputs_) starts.push_back(reinterpret_cast<float*>(each.data()));
    return starts;
  }

 private:
  std::vector<std::size_t> counts_of(std::size_t num_bytes) const {
    const std::size_t size = size_of(options_.dtype);
    return scaled_gradients(options_.gradients, std::max<std::size_t>(1, num_bytes / size));
  }

  const BenchOptions& options_;
  std::vector<BenchMemory> inputs_, outputs_;
  std::vector<BenchRank> ranks_;
  std::size_t count_ = 0;
};

/// Operation that is measured, with the times of its rounds.
struct Contender {
  std::string name;
  std::unique_ptr<BenchSubject> subject;
  std::vector<double> in_place, out_of_place, of_floor;
  std::size_t wrong_in_place = 0, wrong_out_of_place = 0;
  double largest_error = 0.0;  // maximum over all sizes
};

class Measurement {
 public:
  explicit Measurement(const BenchOptions& options)
      : options_(options),
        rank_team_(options.replicas),
        single_team_(1),
        floor_team_(std::min(options.replicas, num_hardware_threads())),
        ranks_(options) {}

  std::vector<BenchSkipped> add_contenders() {
    std::vector<BenchSkipped> skipped;
    for (const std::string& name : options_.op_names) {
      try {
        contenders_.push_back({name, make_bench_subject(name, options_), {}, {}, {}, 0, 0, 0.0});
      } catch (const Error& error) {
        skipped.push_back({name, error.message()});
      }
    }
    return skipped;
  }

  std::vector<BenchRow> measure(std::size_t num_bytes) {
    ranks_.resize(num_bytes);
    const CallPlan plan = plan_calls(options_.iterations, options_.warm_up, num_bytes);
    for (Contender& each : contenders_) begin(each);
    std::vector<double> floor_rounds;
    for (int round = 0; round < options_.rounds; ++round) {
      const double floor = floor_round(plan);
      floor_rounds.push_back(floor);
      for (Contender& each : contenders_) run_round(each, plan, floor);
    }
    std::vector<BenchRow> rows;
    for (const Contender& each : contenders_) rows.push_back(row_of(each, floor_rounds));
    return rows;
  }

 private:
  BenchTeam& team_of(const Contender& contender) {
    return contender.subject->num_threads() == 1 ? single_team_ : rank_team_;
  }

  /// Fills the memory again. Each rank's thread writes the rank's memory, so that the memory is
  /// allocated near that thread's core.
  void refill() {
    rank_team_.run([&](int rank) { fill(ranks_.rank(rank).list, rank, options_.op); });
  }

  void begin(Contender& contender) {
    contender.in_place.clear();
    contender.out_of_place.clear();
    contender.of_floor.clear();
    if (!options_.check) return;
    refill();
    team_of(contender).run([&](int t) { contender.subject->in_place(ranks_.all(), t); });
    contender.wrong_in_place =
        wrong(contender, [](const BenchRank& rank) { return std::span(rank.list); });
    if (!contender.subject->has_out_of_place()) return;
    rank_team_.run([&](int rank) { fill({&ranks_.rank(rank).flat_input, 1}, rank, options_.op); });
    team_of(contender).run([&](int t) { contender.subject->out_of_place(ranks_.all(), t); });
    contender.wrong_out_of_place =
        wrong(contender, [](const BenchRank& rank) { return std::span(&rank.flat_output, 1); });
  }

  template <class Result>
  std::size_t wrong(Contender& contender, const Result& result) {
    std::vector<ListErrors> errors(static_cast<std::size_t>(options_.replicas));
    rank_team_.run([&](int rank) {
      errors[static_cast<std::size_t>(rank)] =
          errors_of(result(ranks_.rank(rank)), options_.replicas, options_.op,
                    contender.subject->max_relative_error());
    });
    std::size_t total = 0;
    for (const ListErrors& each : errors) {
      total += each.checksum == errors[0].checksum ? each.num_wrong : ranks_.count();
      contender.largest_error = std::max(contender.largest_error, each.largest);
    }
    return total;
  }

  double floor_round(const CallPlan& plan) {
    // Fills the inputs with zeros, because the memory may hold elements of another type, whose
    // bytes could be infinities if read as float32.
    rank_team_.run([&](int rank) {
      const Elements& flat = ranks_.rank(rank).flat_input;
      std::fill_n(flat.data, flat.num_bytes(), std::byte{0});
    });
    const std::vector<float*> replicas = ranks_.floats();
    const std::size_t num_bytes = ranks_.count() * size_of(options_.dtype);
    return median_of(time_calls(floor_team_, plan, [&](int thread) {
      floor_pass(floor_team_, thread, replicas, num_bytes);
    }));
  }

  void run_round(Contender& contender, const CallPlan& plan, double floor) {
    BenchSubject& subject = *contender.subject;
    refill();
    contender.in_place.push_back(median_of(
        time_calls(team_of(contender), plan, [&](int t) { subject.in_place(ranks_.all(), t); })));
    contender.of_floor.push_back(floor / contender.in_place.back());
    if (!subject.has_out_of_place()) return;
    contender.out_of_place.push_back(median_of(time_calls(
        team_of(contender), plan, [&](int t) { subject.out_of_place(ranks_.all(), t); })));
  }

  BenchRow row_of(const Contender& contender, const std::vector<double>& floor_rounds) const {
    BenchRow row;
    row.name = contender.name;
    row.count = ranks_.count();
    row.num_bytes = row.count * size_of(options_.dtype);
    row.in_place = {summary_of(contender.in_place), contender.wrong_in_place};
    if (!contender.out_of_place.empty()) {
      row.out_of_place = {summary_of(contender.out_of_place), contender.wrong_out_of_place};
    }
    row.largest_error = contender.largest_error;
    row.floor = summary_of(floor_rounds);
    row.of_floor = summary_of(contender.of_floor);
    return row;
  }

  const BenchOptions& options_;
  BenchTeam rank_team_, single_team_, floor_team_;
  Ranks ranks_;
  std::vector<Contender> contenders_;
};

}  // namespace

BenchTime summary_of(const std::vector<double>& rounds) {
  const auto [least, most] = std::ranges::minmax(rounds);
  return {median_of(rounds), least, most};
}

double algorithm_bandwidth(std::size_t num_bytes, double seconds) {
  return static_cast<double>(num_bytes) / seconds / 1e9;
}

double bus_bandwidth(std::size_t num_bytes, double seconds, int num_ranks) {
  return algorithm_bandwidth(num_bytes, seconds) * 2.0 * (num_ranks - 1) / num_ranks;
}

BenchResults bench_all_reduce(const BenchOptions& options,
                              const std::function<void(const BenchResults&)>& begin,
                              const std::function<void(const BenchRow&)>& row) {
  BenchResults results;
  results.ping_pong_before = ping_pong_nanoseconds();
  Measurement measurement(options);
  results.skipped = measurement.add_contenders();
  begin(results);
  for (const std::size_t size : options.sizes) {
    for (const BenchRow& each : measurement.measure(size)) {
      row(each);
      results.rows.push_back(each);
    }
  }
  results.ping_pong_after = ping_pong_nanoseconds();
  return results;
}

}  // namespace tutti::bench
