// What the programs of the CIFAR-10 tutorial print and take: the log line, the flags.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <regex>

#include "examples/cifar10/speed_report.h"
#include "examples/cifar10/step_log.h"
#include "examples/cifar10/train_flags.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

using namespace examples::cifar10;

TEST(StepLog, LineHasPublishedFormat) {
  std::tm parts{};
  parts.tm_year = 2019 - 1900;
  parts.tm_mon = 1;
  parts.tm_mday = 20;
  parts.tm_hour = 10;
  parts.tm_min = 10;
  parts.tm_sec = 28;
  parts.tm_isdst = -1;
  const double seconds = static_cast<double>(std::mktime(&parts)) + 0.4504612;
  EXPECT_EQ(step_line(seconds, 1260, 2.1693, step_speed(0.8454, 128, 1)),
            "2019-02-20 10:10:28.450461: step 1260, loss = 2.17 (151.4 examples/sec; "
            "0.845 sec/batch)");
}

TEST(StepLog, ProductOfBothSpeedsIsTheBatchOfATower) {
  for (const std::size_t towers : {1, 2, 4}) {
    const StepSpeed speed = step_speed(0.9, 128, towers);
    EXPECT_DOUBLE_EQ(speed.examples_per_second, 128.0 * static_cast<double>(towers) / 0.9);
    EXPECT_DOUBLE_EQ(speed.seconds_per_batch, 0.9 / static_cast<double>(towers));
    EXPECT_DOUBLE_EQ(speed.examples_per_second * speed.seconds_per_batch, 128.0);
  }
}

TEST(SpeedReport, ComparesMeanOfMeasuredStepsWithPublishedSpeed) {
  std::vector<double> seconds(10, 9.0);  // these make what is made at first use
  seconds.insert(seconds.end(), {0.8, 0.9, 0.8, 0.9});
  const SpeedReport one = speed_report(seconds, 10, 128, 1);
  EXPECT_EQ(one.num_steps, 4);
  EXPECT_NEAR(one.speed.examples_per_second, 128.0 / 0.85, 1e-9);
  EXPECT_NEAR(one.speed.seconds_per_batch, 0.85, 1e-12);
  EXPECT_NEAR(one.times_published(), 128.0 / 0.85 / 155.7, 1e-12);
  EXPECT_EQ(to_string(one),
            "150.6 examples/sec (0.850 sec/batch) in 4 steps; published: 151.4 to 155.7 "
            "examples/sec; 0.97 times as fast");
  const SpeedReport two = speed_report(std::vector<double>{0.1}, 0, 128, 2);
  EXPECT_NEAR(two.speed.examples_per_second, 2560.0, 1e-9);
  EXPECT_NEAR(two.speed.seconds_per_batch, 0.05, 1e-12);
  EXPECT_GT(two.times_published(), 16.4);
  testing::expect_error(ErrorCode::kInvalidArgument, {"speed_report", "10", "--steps"},
                        [&] { speed_report(std::vector<double>(10, 1.0), 10, 128, 1); });
}

int parse(std::vector<std::string> words, bool with_towers, TrainFlags& flags) {
  words.insert(words.begin(), "program");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  return parse_train_flags(static_cast<int>(arguments.size()), arguments.data(), with_towers,
                           flags);
}

TEST(TrainFlags, HaveNamesAndDefaultsOfTheTutorial) {
  TrainFlags flags;
  ASSERT_EQ(parse({}, true, flags), -1);
  EXPECT_EQ(flags.batch_size, 128);
  EXPECT_EQ(flags.num_gpus, 1);
  EXPECT_EQ(flags.max_steps, 1'000'000);
  EXPECT_EQ(flags.log_frequency, 10);
  EXPECT_EQ(flags.data_dir, "/tmp/cifar10_data");
  EXPECT_FALSE(flags.use_fp16);
  EXPECT_FALSE(flags.log_device_placement);
  ASSERT_EQ(parse({"--num_gpus=2", "--batch_size", "64", "--max_steps=50", "--train_dir=runs/t",
                   "--data_dir=data/d", "--log_device_placement=True", "--use_fp16=true",
                   "--log_frequency=5", "--devices=cpu:0-1"},
                  true, flags),
            -1);
  EXPECT_EQ(flags.num_gpus, 2);
  EXPECT_EQ(flags.batch_size, 64);
  EXPECT_EQ(flags.max_steps, 50);
  EXPECT_EQ(flags.train_dir, "runs/t");
  EXPECT_EQ(flags.data_dir, "data/d");
  EXPECT_EQ(flags.log_frequency, 5);
  EXPECT_TRUE(flags.log_device_placement);
  EXPECT_TRUE(flags.use_fp16);
}

TEST(TrainFlags, AreAlsoSpelledWithDashes) {
  TrainFlags flags;
  ASSERT_EQ(parse({"--num-gpus", "3", "--max-steps", "7", "--use-fp16", "--devices", "cpu:0"}, true,
                  flags),
            -1);
  EXPECT_EQ(flags.num_gpus, 3);
  EXPECT_EQ(flags.max_steps, 7);
  EXPECT_TRUE(flags.use_fp16);
}

TEST(TrainFlags, BadOnesEndTheProgramWith2) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--num_gpus", "0"},
                                             {"--num_gpus", "1000"},
                                             {"--batch_size", "0"},
                                             {"--max_steps", "0"},
                                             {"--log_frequency", "0"},
                                             {"--seed", "-1"},
                                             {"--devices", "cpu:0,cpu:0"},
                                             {"--variable_device", "cpu:x"},
                                             {"--max_steps", "many"},
                                             {"--no_such_flag"}}) {
    TrainFlags flags;
    EXPECT_EQ(parse(words, true, flags), 2) << words[0];
  }
  TrainFlags flags;
  EXPECT_EQ(parse({"--num_gpus", "2"}, false, flags), 2);  // cifar10_train has one tower
}

TEST(TrainFlags, TowersAreOnTheFirstDevices) {
  TrainFlags flags;
  flags.num_gpus = 3;
  if (default_devices().front().type == DeviceType::kCpu) {  // there is no GPU
    EXPECT_EQ(tower_devices(flags), parse_devices("cpu:0-2"));
  }
  flags.devices = "cpu:4,cpu:1";
  EXPECT_EQ(tower_devices(flags), parse_devices("cpu:4,cpu:1"));
  EXPECT_EQ(variable_device(flags, tower_devices(flags)), Device{});
  flags.variable_device = "first";
  EXPECT_EQ(variable_device(flags, tower_devices(flags)), (Device{DeviceType::kCpu, 4}));
  flags.variable_device = "/cpu:2";
  EXPECT_EQ(variable_device(flags, tower_devices(flags)), (Device{DeviceType::kCpu, 2}));
}

}  // namespace
}  // namespace tutti
