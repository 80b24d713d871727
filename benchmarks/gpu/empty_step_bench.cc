// Measures the cost of a replicated step that does almost no work.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/gpu_bench_timing.h"
#include "tutti/strategy/captured_step.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::benchmarks {
namespace {

template <class Step>
Json time_step(Strategy& strategy, const BenchArguments& arguments, const Step& step) {
  const PerReplica<Tensor> x =
      strategy.distribute_values_from_function([&](const ValueContext& context) {
        const auto r = static_cast<std::size_t>(context.replica_id_in_sync_group);
        return Tensor::full({}, 1.0, DType::kFloat32, strategy.replica_devices()[r]);
      });
  PerReplica<Tensor> y = strategy.run(step, x);
  y = strategy.run(step, x);  // if the step is to be captured, the second call captures it
  return seconds_per_call(
      arguments, [&] { y = strategy.run(step, x); },
      [&] {
        for (std::size_t r = 0; r < y.size(); ++r) y[r].item();
      });
}

}  // namespace

Json empty_step_bench(const BenchArguments& arguments) {
  LocalStrategyOptions options;
  options.devices = parse_devices(arguments.devices);
  MirroredStrategy strategy(options);
  const auto step = [](const Tensor& x) { return x + x; };
  Json seconds = arguments.execution == "captured" ? time_step(strategy, arguments, captured(step))
                                                   : time_step(strategy, arguments, step);
  Json report = Json::object();
  report.set("execution", arguments.execution).set("replicas", strategy.num_replicas_in_sync());
  report.set("microseconds", 1e6 * seconds.at("median").as_double());
  report.set("seconds", std::move(seconds));
  return report;
}

}  // namespace tutti::benchmarks
