// Times causal attention forward and backward: as one operation, and composed of simpler
// operations.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/clock.h"
#include "tutti/core/flags.h"
#include "tutti/core/random.h"
#include "tutti/tensor/device_memory.h"
#include "tutti/tensor/tensor_ops.h"

using namespace tutti;

namespace {

struct Options {
  std::int64_t batch = 4, heads = 8, steps = 512, features = 64;
  double seconds = 1.0;
  std::string way = "fused";
};

/// Computes attention from simpler operations, as attention() does on devices without an attention
/// kernel.
Tensor of_parts(const Tensor& query, const Tensor& key, const Tensor& value) {
  const std::int64_t steps = query.shape()[2];
  const double scale = 1.0 / std::sqrt(static_cast<double>(query.shape()[3]));
  const Tensor seen = internal::causal_mask(steps, steps, 0, Device{});
  return internal::mixed_values(internal::attention_shares(query, key, scale, seen), value);
}

int run(const Options& options) {
  const Shape shape{options.batch, options.heads, options.steps, options.features};
  const auto values = [&](std::uint64_t number) {
    return random_normal(shape, RandomKey{.seed = number, .purpose = kUserPurpose});
  };
  const Tensor query = values(1), key = values(2), value = values(3);
  reset_peak_memory(Device{});
  const std::size_t before = device_memory(Device{}).in_use;
  const auto step = [&] {
    GradientTape tape;
    for (const Tensor& each : {query, key, value}) tape.watch(each);
    const Tensor result = options.way == "fused" ? attention(query, key, value, {.is_causal = true})
                                                 : of_parts(query, key, value);
    return tape.gradient(reduce_sum(result), std::vector<Tensor>{query, key, value});
  };
  step();
  const Clock& clock = Clock::system();
  std::vector<double> times;
  for (const TimePoint begin = clock.now();
       times.size() < 3 || seconds_between(begin, clock.now()) < options.seconds;) {
    const TimePoint start = clock.now();
    step();
    times.push_back(seconds_between(start, clock.now()));
  }
  std::ranges::nth_element(times, times.begin() + std::ssize(times) / 2);
  std::printf("{\"seconds\": %.9g, \"bytes\": %zu}\n", times[times.size() / 2],
              device_memory(Device{}).peak - before);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  Flags flags("Times causal attention, forward and backward, on one thread");
  flags.add("--batch", options.batch, "batch size");
  flags.add("--heads", options.heads, "number of heads");
  flags.add("--steps", options.steps, "number of queries and of keys");
  flags.add("--features", options.features, "features of a head");
  flags.add("--seconds", options.seconds, "time limit in seconds; at least 3 runs are timed");
  flags.add_choice("--way", options.way, {"fused", "parts"}, "one operation, or simpler ones");
  if (const int code = flags.parse(argc, argv); code >= 0) return code;
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attention_time: %s\n", error.what());
    return 1;
  }
}
