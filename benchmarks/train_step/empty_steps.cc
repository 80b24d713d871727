// Measures a step without work: microseconds per run(), and per small operation.
// SPDX-License-Identifier: Apache-2.0
//
// Usage: empty_steps [STEPS [ROUNDS]]. The contenders alternate in each round; the table shows the
// median over rounds and the minimum.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/elementwise.h"

namespace {

using namespace tutti;

struct Contender {
  std::string name;
  std::function<void()> step;
  std::vector<double> microseconds = {};  // microseconds per step, for each round
};

void run_round(Contender& contender, int steps) {
  contender.step();  // a warm-up step
  const TimePoint begin = Clock::system().now();
  for (int i = 0; i < steps; ++i) contender.step();
  contender.microseconds.push_back(1e6 * seconds_between(begin, Clock::system().now()) / steps);
}

int argument(int argc, char** argv, int index, int otherwise) {
  const int value = argc > index ? std::atoi(argv[index]) : otherwise;
  return value > 0 ? value : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argument(argc, argv, 1, 10'000);
  const int rounds = argument(argc, argv, 2, 7);
  OneDeviceStrategy one("cpu:0");
  MirroredStrategy two({.devices = "cpu:0-1"});
  const auto nothing = [] {};
  const Tensor x = Tensor::ones({8});
  std::vector<Contender> contenders{
      {"no strategy", [&] { default_strategy().run(nothing); }},
      {"one_device", [&] { one.run(nothing); }},
      {"mirrored, 2 replicas", [&] { two.run(nothing); }},
      {"negate [8]", [&] { (void)negate(x); }},
      {"negate [8] in a device scope",
       [&] {
         const DeviceScope scope(Device{});
         (void)negate(x);
       }},
      {"negate [8] moved to cpu:1",
       [&] {
         const DeviceScope scope(Device{DeviceType::kCpu, 1});
         (void)negate(x);
       }},
  };
  for (int round = 0; round < rounds; ++round) {
    for (Contender& contender : contenders) run_round(contender, steps);
  }
  std::printf("%d steps, %d rounds\n%-30s %10s %10s\n", steps, rounds, "step", "median us",
              "least us");
  for (Contender& contender : contenders) {
    std::vector<double>& times = contender.microseconds;
    std::ranges::sort(times);
    std::printf("%-30s %10.3f %10.3f\n", contender.name.c_str(), times[times.size() / 2],
                times.front());
  }
  return 0;
}
