// Flags shared by all examples.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tutti/core/flags.h"
#include "tutti/strategy/factory/make_strategy.h"

namespace tutti::examples {

/// Options that all examples accept. TUTTI_STRATEGY, TUTTI_DEVICES and TUTTI_CROSS_DEVICE_OPS can
/// also set the inherited strategy options.
struct ExampleOptions : StrategySpec {
  ExampleOptions();

  std::string virtual_gpus = "";  // same format as TUTTI_VIRTUAL_GPUS
  // path of a plugin; its operation becomes the default for cross_device_ops
  std::string plugin = "";
  std::string dtype_policy = "float32";
  std::int64_t batch_size = 64;
  std::int64_t epochs = 3;
  std::int64_t steps = 0;
  std::int64_t seed = 1;
  std::string data_dir = "";
  std::string log_dir = "";
  std::string checkpoint_dir = "";
  bool resume = false;
  std::string metrics_json = "";
  std::string trace = "";
};

/// Parses the command line into `options`, whose values are the defaults. `add_more` adds the flags
/// of this example and removes shared flags that do not apply. Returns -1, or the exit code if the
/// program should end: after --help, or after an error, which it prints.
int parse_options(int argc, char** argv, const std::string& description, ExampleOptions& options,
                  const std::function<void(Flags&)>& add_more = {});

/// If `value` is empty, throws an error that makes run_example() return exit code 2.
void require_flag(const char* flag, const std::string& value, const char* expected);

/// Prints devices, strategy, replicas and reduction. Called before training starts.
void print_setup(const ExampleOptions& options, Strategy& strategy);

/// Runs `body` and returns its result. If it throws, prints the exception to standard error and
/// returns 1, or 2 for incorrect usage.
int run_example(const std::function<int()>& body);

}  // namespace tutti::examples
