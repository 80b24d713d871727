// Measures the cost of comparing and recording each call: times all_reduce through a Communicator,
// and direct calls to an engine that reuse one header.
// SPDX-License-Identifier: Apache-2.0
//
// Usage: collective_checks [GROUPS]. The two ranks are threads of one process, because calls
// between threads are the fastest. A group's memory addresses affect the time of a call more than
// the checks do. So the program creates GROUPS (25) new groups for each buffer size, alternates
// between the two kinds of calls in each group, and prints the median over the groups with
// quartiles. Before that, it measures one thread with an engine that does nothing; that time varies
// by only about a nanosecond.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "cross_device_ops/collective_engine.h"
#include "cross_device_ops/in_process/in_process_transport.h"
#include "tutti/core/executor.h"
#include "tutti/core/flags.h"
#include "tutti/cross_device_ops/communicator.h"

namespace {

using namespace tutti;

// Engine for two ranks that does nothing and treats each call as completed.
class IdleEngine final : public internal::CollectiveEngine {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string_view name() const override { return "idle"; }
  bool supports(Collective, ReduceOp, DType) const override { return true; }
  Determinism determinism() const override { return Determinism::kCanonical; }
  void run(const CollectiveCall&, const internal::CollectiveHeader& header, TimePoint) override {
    fingerprints_ += header.fingerprint();
  }
  void abort(const Error&) noexcept override {}
  std::unique_ptr<CollectiveEngine> subgroup(const std::vector<int>&, std::uint32_t) override {
    return std::make_unique<IdleEngine>();
  }
  void answer_state_queries(const std::function<std::string()>&) override {}
  std::vector<std::string> states_of_ranks(TimePoint) override { return {"", ""}; }

 private:
  std::uint64_t fingerprints_ = 0;
};

// Returns the duration of an all_reduce call, in nanoseconds, without the engine's work.
double nanoseconds_alone() {
  constexpr int kCalls = 1'000'000;
  Communicator communicator(std::make_unique<IdleEngine>());
  std::vector<float> data(16'384);
  const Elements elements = std::span(data);
  double least = 1.0;
  for (int round = 0; round < 5; ++round) {
    const TimePoint begin = Clock::system().now();
    for (int i = 0; i < kCalls; ++i) {
      communicator.all_reduce(ReduceOp::kSum, elements, {.name = "block1/conv2d/kernel"});
    }
    least = std::min(least, seconds_between(begin, Clock::system().now()) / kCalls);
  }
  return least * 1e9;
}

// Seconds per call on rank 0 in one round, with and without checks.
struct Round {
  double bare = 0.0;
  double checked = 0.0;
};

class Bench {
 public:
  Bench() : all_(in_process_communicators(2)) {
    for (std::shared_ptr<Transport>& transport : in_process_transports(2)) {
      engines_.push_back(internal::window_engine(std::move(transport)));
    }
  }

  std::vector<Round> run(std::size_t count) {
    std::vector<Round> rounds(21);
    const auto other = Executor::system().start("rank-1", [&] { rank_main(1, count, rounds); });
    rank_main(0, count, rounds);
    other->join();
    return rounds;
  }

 private:
  void rank_main(int rank, std::size_t count, std::vector<Round>& rounds) {
    const auto r = static_cast<std::size_t>(rank);
    std::vector<float> data(count, 0.0f);
    const Elements elements = std::span(data);
    const ConstElements input = elements;
    CollectiveCall call;
    call.count = count;
    call.inputs = {&input, 1};
    call.outputs = {&elements, 1};
    internal::CollectiveHeader header;
    header.count = count;
    header.rank = rank;
    for (Round& round : rounds) {
      const double bare = seconds([&] { engines_[r]->run(call, header, TimePoint::max()); });
      const double checked = seconds(
          [&] { all_[r]->all_reduce(ReduceOp::kSum, elements, {.name = "block1/conv2d/kernel"}); });
      if (rank == 0) round = {bare, checked};
    }
  }

  template <class Fn>
  double seconds(const Fn& fn) const {
    fn();
    const TimePoint begin = Clock::system().now();
    for (int i = 0; i < kCalls; ++i) fn();
    return seconds_between(begin, Clock::system().now()) / kCalls;
  }

  static constexpr int kCalls = 500;
  std::vector<std::unique_ptr<internal::CollectiveEngine>> engines_;
  std::vector<std::unique_ptr<Communicator>> all_;
};

double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}
double median(const std::vector<double>& values) { return quantile(values, 0.5); }

}  // namespace

int main(int argc, char** argv) {
  std::int64_t num_groups = 25;
  Flags flags("Measures the cost of the checks of collective calls");
  flags.add("GROUPS", num_groups,
            "number of groups of rounds; the program prints medians over groups");
  if (const int code = flags.parse(argc, argv); code >= 0) return code;
  if (num_groups < 1) {
    std::fprintf(stderr, "collective_checks: GROUPS: expected >= 1, got %lld\n",
                 static_cast<long long>(num_groups));
    return 2;
  }
  std::printf("a call alone: %.1f ns\n", nanoseconds_alone());
  std::printf("%10s %12s %12s %14s %8s %16s\n", "bytes", "bare us", "checked us", "difference ns",
              "share", "quartiles");
  for (const std::size_t bytes : {1024u, 16384u, 65536u, 262144u}) {
    std::vector<double> bare, checked, differences;  // per group: medians over its rounds
    for (int group = 0; group < num_groups; ++group) {
      Bench bench;
      std::vector<double> a, b, d;
      for (const Round& round : bench.run(bytes / 4)) {
        a.push_back(round.bare);
        b.push_back(round.checked);
        d.push_back(round.checked - round.bare);
      }
      bare.push_back(median(a));
      checked.push_back(median(b));
      differences.push_back(median(d));
    }
    const double share = 100.0 / median(bare);
    std::printf("%10zu %12.3f %12.3f %14.1f %7.1f%% %6.1f%% .. %4.1f%%\n", bytes,
                median(bare) * 1e6, median(checked) * 1e6, median(differences) * 1e9,
                share * median(differences), share * quantile(differences, 0.25),
                share * quantile(differences, 0.75));
  }
  return 0;
}
