// Flags of the two training programs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/tensor/device.h"

namespace tutti::examples::cifar10 {

/// Flags of the training programs. Flags of the tutorial keep their names and defaults. In flag
/// names, dashes may replace underscores.
struct TrainFlags {
  std::int64_t batch_size = 128;
  std::string data_dir = "/tmp/cifar10_data";
  bool use_fp16 = false;
  std::string train_dir = "/tmp/cifar10_train";
  std::int64_t max_steps = 1'000'000;
  std::int64_t num_gpus = 1;
  bool log_device_placement = false;
  std::int64_t log_frequency = 10;
  // The tutorial does not have these flags.
  bool synthetic = false;
  bool resume = false;
  std::int64_t seed = 0;
  std::string devices = "";
  std::string variable_device = "cpu:0";
  std::string tower_weights = "";
  bool memory_report = false;
};

/// Parses the command line. Accepts --num_gpus and --devices only if `with_towers`. Returns -1, or
/// the exit code if the program should end: after --help, or after an error, which it prints.
int parse_train_flags(int argc, char** argv, bool with_towers, TrainFlags& flags);

/// Returns the devices of the towers: those of --devices, or else the first --num_gpus GPUs, or as
/// many virtual CPU devices if there is no GPU. Throws kInvalidArgument if there are too few.
std::vector<Device> tower_devices(const TrainFlags& flags);

/// Parses --tower_weights; empty means equal shares. Throws kInvalidArgument naming the flag unless
/// the flag has one positive number per tower.
std::vector<double> tower_weights(const TrainFlags& flags, std::size_t num_towers);

/// Parses --variable_device. "first" is the device of the first tower; the default is host memory.
Device variable_device(const TrainFlags& flags, const std::vector<Device>& towers);

}  // namespace tutti::examples::cifar10
