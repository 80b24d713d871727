// Device measurements of gpu_bench: copies, optimizer updates, all_reduce and empty steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/tensor/device.h"

namespace tutti::benchmarks {

struct BenchArguments {
  std::string devices = "gpu:0";
  std::string ops = "";                // for all_reduce: operation; empty: the default
  std::string optimizer = "sgd";       // for update: sgd (momentum 0.9) or adam
  std::string gradients = "resnet50";  // for update: network, scaled to `elements`
  std::string execution = "eager";     // for empty_step: eager or captured
  std::int64_t elements = 25'600'000;  // number of float32 elements
  std::int64_t iterations = 20;
  std::int64_t rounds = 5;
};

/// Each function returns one object with its results and "seconds" per iteration: median, minimum
/// and maximum of the rounds. Times include waiting for the devices to finish.
///
/// Measures copies within a device. "bytes_per_second" counts bytes read and written.
Json copy_bench(const BenchArguments& arguments);
/// Measures steps of an optimizer with given gradients. "bytes_per_second" counts bytes read and
/// written.
Json update_bench(const BenchArguments& arguments);
/// Measures sums of one buffer per device. "algbw" and "busbw" are as in nccl-tests; "wrong" is the
/// number of incorrect elements.
Json all_reduce_bench(const BenchArguments& arguments);
/// Measures strategy.run() with a step that does one addition per replica.
Json empty_step_bench(const BenchArguments& arguments);

}  // namespace tutti::benchmarks
