// Implements the flags of the two training programs.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/train_flags.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "tutti/core/error.h"
#include "tutti/core/flags.h"

namespace tutti::examples::cifar10 {
namespace {

/// Returns the result of `read`. Adds the flag's name to errors thrown by `read`.
template <class Read>
auto named(const char* flag, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    throw error.with_context(flag);
  }
}

void declare(Flags& flags, TrainFlags& values) {
  flags.add("--batch_size,--batch-size", values.batch_size, "batch size of each tower");
  flags.add("--data_dir,--data-dir", values.data_dir,
            "folder with CIFAR-10's binary files, or with cifar-10-binary.tar.gz");
  flags.add("--use_fp16,--use-fp16", values.use_fp16, "computes in float16");
  flags.add("--train_dir,--train-dir", values.train_dir, "folder for checkpoints and summaries");
  flags.add("--max_steps,--max-steps", values.max_steps, "global step at which training ends");
  flags.add("--log_device_placement,--log-device-placement", values.log_device_placement,
            "prints the devices of variables and operations");
  flags.add("--log_frequency,--log-frequency", values.log_frequency, "steps between two log lines");
  flags.add("--synthetic", values.synthetic,
            "uses synthetic images, written to <data_dir>/synthetic");
  flags.add("--resume", values.resume, "continues from the latest checkpoint of train_dir");
  flags.add("--seed", values.seed, "seed of weights, shuffling and distortions");
  flags.add("--variable_device,--variable-device", values.variable_device,
            "device of the variables; 'first': the first tower's device");
  flags.add("--memory_report,--memory-report", values.memory_report,
            "prints the bytes of variables per device, for this and other placements");
}

void check(const TrainFlags& flags) {
  const auto at_least = [](const char* flag, std::int64_t value, std::int64_t least) {
    if (value >= least) return;
    fail(ErrorCode::kInvalidArgument, flag, ": expected >= ", least, ", got ", value);
  };
  at_least("--batch_size", flags.batch_size, 1);
  at_least("--max_steps", flags.max_steps, 1);
  at_least("--num_gpus", flags.num_gpus, 1);
  at_least("--log_frequency", flags.log_frequency, 1);
  at_least("--seed", flags.seed, 0);
  const std::vector<Device> towers = tower_devices(flags);
  (void)variable_device(flags, towers);
  (void)tower_weights(flags, towers.size());
}

}  // namespace

int parse_train_flags(int argc, char** argv, bool with_towers, TrainFlags& values) {
  Flags flags(with_towers ? "Trains the CIFAR-10 tutorial's network with a tower on each GPU"
                          : "Trains the CIFAR-10 tutorial's network on one device");
  declare(flags, values);
  if (with_towers) {
    flags.add("--num_gpus,--num-gpus", values.num_gpus, "number of towers");
    flags.add("--devices", values.devices,
              "devices of the towers, instead of --num_gpus: gpu:0,gpu:2 or cpu:0-3");
    flags.add("--tower_weights,--tower-weights", values.tower_weights,
              "relative share of the batch per tower, such as 3,1; empty: equal shares");
  }
  if (const int code = flags.parse(argc, argv); code >= 0) return code;
  try {
    check(values);
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
  return -1;
}

std::vector<Device> tower_devices(const TrainFlags& flags) {
  if (!flags.devices.empty()) {
    return named("--devices", [&] { return parse_devices(flags.devices); });
  }
  std::vector<Device> devices = default_devices();
  const bool has_gpus = devices.front().type == DeviceType::kGpu;
  const auto available =
      has_gpus ? static_cast<std::int64_t>(devices.size()) : std::int64_t{kNumVirtualCpuDevices};
  if (flags.num_gpus > available) {
    fail(ErrorCode::kInvalidArgument, "--num_gpus: expected at most ", available,
         has_gpus ? " (the GPUs of this machine)" : " (virtual CPU devices; there is no GPU)",
         ", got ", flags.num_gpus);
  }
  if (has_gpus) {
    devices.resize(static_cast<std::size_t>(flags.num_gpus));
    return devices;
  }
  devices.clear();
  for (int i = 0; i < flags.num_gpus; ++i) devices.push_back({DeviceType::kCpu, i});
  return devices;
}

std::vector<double> tower_weights(const TrainFlags& flags, std::size_t num_towers) {
  if (flags.tower_weights.empty()) return {};
  std::vector<double> weights;
  std::istringstream text(flags.tower_weights);
  bool is_good = true;
  for (std::string part; std::getline(text, part, ',');) {
    double weight = 0.0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), weight);
    is_good = is_good && error == std::errc() && end == part.data() + part.size() && weight > 0.0 &&
              std::isfinite(weight);
    weights.push_back(weight);
  }
  if (is_good && weights.size() == num_towers) return weights;
  fail(ErrorCode::kInvalidArgument, "--tower_weights: expected ", num_towers,
       " positive numbers separated by commas, one per tower, got '", flags.tower_weights, "'");
}

Device variable_device(const TrainFlags& flags, const std::vector<Device>& towers) {
  if (flags.variable_device == "first") return towers.front();
  return named("--variable_device", [&] { return Device::parse(flags.variable_device); });
}

}  // namespace tutti::examples::cifar10
