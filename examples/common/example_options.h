// The flags that all examples share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tutti/core/flags.h"
#include "tutti/strategy/factory/make_strategy.h"

namespace tutti::examples {

/// With the options of strategies, which TUTTI_STRATEGY, TUTTI_DEVICES and TUTTI_CROSS_DEVICE_OPS
/// can set, too.
struct ExampleOptions : StrategySpec {
  ExampleOptions();

  std::string virtual_gpus = "";  // as TUTTI_VIRTUAL_GPUS
  std::string plugin = "";        // its operation is used where cross_device_ops is not set
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

/// Parses the command line into `options` (whose values are the defaults). `add_more` declares the
/// flags that this example adds, and removes those of the shared ones that it has no use for.
/// Prints what is wrong and returns the exit code when the program should end; -1 to go on.
int parse_options(int argc, char** argv, const std::string& description, ExampleOptions& options,
                  const std::function<void(Flags&)>& add_more = {});

/// Throws what run_example() turns into exit code 2 if `value` is empty.
void require_flag(const char* flag, const std::string& value, const char* expected);

/// Prints devices, strategy, replicas and reduction: what a user wants to see before training
/// starts.
void print_setup(const ExampleOptions& options, Strategy& strategy);

/// Runs `body` and turns what it throws into a line on standard error and exit code 1 (2 for wrong
/// usage).
int run_example(const std::function<int()>& body);

}  // namespace tutti::examples
