// Measurements of gpu_bench on devices: copies, optimizer updates, all_reduce, an empty step.
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
  std::string ops = "";                // all_reduce: a registered operation; empty: the default
  std::string optimizer = "sgd";       // update: sgd (momentum 0.9) or adam
  std::string gradients = "resnet50";  // update: network whose list of variables is scaled
  std::string execution = "eager";     // empty_step: eager or captured
  std::int64_t elements = 25'600'000;  // float32
  std::int64_t iterations = 20;
  std::int64_t rounds = 5;
};

/// Each returns one object with its results and "seconds" per iteration: median, minimum and
/// maximum of the rounds. Times include waiting for the devices' work.
///
/// Copies within a device: "bytes_per_second" counts bytes read and written.
Json copy_bench(const BenchArguments& arguments);
/// Steps of an optimizer with given gradients; counts bytes likewise.
Json update_bench(const BenchArguments& arguments);
/// Sums of one buffer per device: "algbw" and "busbw" as in nccl-tests; "wrong": incorrect
/// elements.
Json all_reduce_bench(const BenchArguments& arguments);
/// strategy.run() of a step that does one addition per replica.
Json empty_step_bench(const BenchArguments& arguments);

}  // namespace tutti::benchmarks
