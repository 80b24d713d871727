// The flags that all examples share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tutti/core/flags.h"
#include "tutti/cross_device_ops/communication_options.h"
#include "tutti/strategy/strategy.h"

namespace tutti::examples {

struct ExampleOptions {
  std::string strategy = "mirrored";
  std::string devices = "cpu:0-1";
  std::string virtual_gpus = "";  // as TUTTI_VIRTUAL_GPUS
  std::int64_t replicas = 0;
  std::string cross_device_ops = "canonical";
  std::string transport = "auto";  // between workers
  std::string plugin = "";         // its operation is used where cross_device_ops is not set
  std::int64_t bytes_per_pack = 0;
  std::string compression = "none";
  std::string non_finite = "ignore";
  std::string update_mode = "sync";
  std::int64_t staleness = 3;              // of update mode ssp
  std::int64_t replicas_to_aggregate = 0;  // of update mode sync_replicas; 0: all workers
  std::int64_t parameter_servers = 1;
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
/// flags that this example adds. Prints what is wrong and returns the exit code when the program
/// should end; -1 to go on.
int parse_options(int argc, char** argv, const std::string& description, ExampleOptions& options,
                  const std::function<void(Flags&)>& add_more = {});

/// How the flags want gradients to be summed.
CommunicationOptions communication_options(const ExampleOptions& options);

/// The strategy that the flags name. Throws kInvalidArgument for a combination that makes no sense.
std::unique_ptr<Strategy> make_strategy(const ExampleOptions& options);

/// Prints devices, strategy, replicas and reduction: what a user wants to see before training
/// starts.
void print_setup(const ExampleOptions& options, Strategy& strategy);

/// Runs `body` and turns what it throws into a line on standard error and exit code 1 (2 for wrong
/// usage).
int run_example(const std::function<int()>& body);

}  // namespace tutti::examples
