// Workers that train apart on common servers, each a thread with a strategy of its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "strategy/parameter_server/server/server_store.h"
#include "tests/strategy/worker_threads.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

namespace tutti::workers_apart {

using strategy_tests::num;
using strategy_tests::on_cpus;

using Body = std::function<void(ParameterServerStrategy&)>;
using Services = std::vector<std::shared_ptr<internal::VariableService>>;

inline Services make_servers(int count) {
  Services servers;
  for (int i = 0; i < count; ++i) {
    servers.push_back(std::make_shared<internal::VariableStore>(concat("ps ", i)));
  }
  return servers;
}

inline ServerStatistics statistics_of(const Services& servers) {
  ServerStatistics sum;
  for (const auto& each : servers) {
    sum += static_cast<const internal::VariableStore&>(*each).statistics();
  }
  return sum;
}

inline std::vector<std::string> run_apart(int num_workers, const Services& servers,
                                          const ParameterServerOptions& options, const Body& body) {
  return errors_of_ranks(num_workers, [&](int worker) {
    ParameterServerStrategy strategy(worker, num_workers, servers, options);
    body(strategy);
  });
}

inline ParameterServerOptions options_of(UpdateMode mode, int replicas = 1) {
  ParameterServerOptions options;
  options.local = on_cpus(1, replicas);
  options.update_mode = mode;
  return options;
}

/// Ends when `count` workers have come: inside a step, they have all joined.
class Gathering {
 public:
  explicit Gathering(int count) : missing_(count) {}
  void meet() {
    if (--missing_ == 0) all_here_.set();
    (void)all_here_.wait_until(TimePoint::max());
  }

 private:
  std::atomic<int> missing_;
  Event all_here_;
};

/// A variable that every step of every worker lowers by 1.
struct Countdown {
  Countdown() : optimizer(std::vector<Variable>{w}, {.learning_rate = 1.0}) {}
  /// `between`: after the read and before the update. Returns what was read, as a count.
  int step(
      Strategy& strategy, const std::function<void()>& between = [] {}) {
    double read = 0.0;
    strategy.run([&] {
      GradientTape tape;
      (void)optimizer.learning_rate();  // all that a step reads is read here
      const Tensor value = w.value();
      read = -value.item();
      between();
      optimizer.minimize(tape, value * 1.0f);
    });
    return static_cast<int>(read);
  }
  int count() const { return static_cast<int>(-w.value().item()); }
  Variable w{num(0.0), {.name = "w"}};
  Sgd optimizer;
};

inline void wait_for(const std::atomic<int>& counter, int at_least) {
  while (counter.load() < at_least) Clock::system().sleep_for(std::chrono::microseconds(200));
}

}  // namespace tutti::workers_apart
