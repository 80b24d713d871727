// Device and DeviceSpec: reading, printing, merging, availability.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/device.h"

#include <gtest/gtest.h>

#include <functional>

#include "core/names.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/tensor/device_scope.h"

namespace tutti {
namespace {

using testing::expect_error;

TEST(DeviceTest, WhateverTheTextErrorsAreOneShortLine) {
  const std::string strange = std::string(5000, 'x') + "\n\xff";
  for (const std::string& text : {std::string("cpu\n0"), std::string("\xe2\x80\xa8"), strange}) {
    for (const auto& read : std::vector<std::function<void()>>{
             [&] { Device::parse(text); }, [&] { parse_devices(text); },
             [&] { DeviceSpec::parse(text); }, [&] { DeviceSpec::parse("/" + text); }}) {
      try {
        read();
        ADD_FAILURE() << text;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_EQ(error.message(), one_line(error.message(), 400));
      }
    }
  }
}

TEST(Device, ReadsTfsSpellings) {
  const Device expected{DeviceType::kCpu, 3};
  for (const char* text : {"cpu:3", "CPU:3", "/cpu:3", "/device:CPU:3", "/device:cpu:3"}) {
    EXPECT_EQ(Device::parse(text), expected) << text;
  }
  EXPECT_EQ(expected.to_string(), "cpu:3");
  EXPECT_EQ(Device::parse(expected.to_string()), expected);
}

TEST(Device, TpusAreDevicesOfXla) {
  const Device expected{DeviceType::kXla, 2};
  for (const char* text : {"xla:2", "tpu:2", "TPU:2", "/tpu:2", "/device:TPU:2", "/device:xla:2"}) {
    EXPECT_EQ(Device::parse(text), expected) << text;
  }
  EXPECT_EQ(expected.to_string(), "xla:2");
  EXPECT_EQ(parse_devices("xla:0-1,tpu:2").back(), expected);
  EXPECT_EQ(DeviceSpec::parse("/task:1/device:TPU:2").to_string(), "/task:1/device:XLA:2");
  expect_error(ErrorCode::kUnavailable, {"xla:64"}, [] { Device::parse("xla:64"); });
  expect_error(ErrorCode::kUnavailable, {"xla:9999"}, [] { parse_devices("xla:0-9999"); });
}

TEST(Device, CudaNamesGpus) {
  for (const char* text : {"cuda:77", "CUDA:77", "/device:CUDA:77"}) {
    expect_error(ErrorCode::kUnavailable, {"gpu:77 is unavailable"}, [&] { Device::parse(text); });
  }
  EXPECT_EQ(DeviceSpec::parse("/task:1/device:CUDA:2").to_string(), "/task:1/device:GPU:2");
  expect_error(ErrorCode::kInvalidArgument, {"expected 'cpu:0', 'gpu:0'", "'cude:0'"},
               [] { Device::parse("cude:0"); });
}

TEST(Device, TensorsAndScopesAreNotForDevicesOfXla) {
  const Device device{DeviceType::kXla, 1};
  const auto expect_refused = [](const std::function<void()>& action) {
    expect_error(ErrorCode::kUnimplemented, {"xla:1", "MirroredStrategy(\"xla:1\")", "cpu:0"},
                 action);
  };
  expect_refused([&] { require_available(device); });
  expect_refused([&] { Tensor::zeros({2}, DType::kFloat32, device); });
  expect_refused([&] { Tensor::from<float>({2}, {1, 2}, device); });
  expect_refused([&] { (void)Tensor::zeros({2}).to(device); });
  expect_refused([&] { DeviceScope scope("/device:TPU:1"); });
  expect_refused([&] { (void)resolve(DeviceSpec::parse("/tpu:1")); });
}

TEST(Device, RefusesWhatItCannotRead) {
  for (const char* text : {"", "cpu", "cpu:", "cpu:-1", "cpu:x", "cpu:1:2", "fpga:0", "cpu:*", "/",
                           "/job:worker/cpu:0", "cpu:99999999999"}) {
    expect_error(ErrorCode::kInvalidArgument, {"Device::parse", concat("'", text, "'")},
                 [&] { Device::parse(text); });
  }
}

TEST(Device, MissingDevicesAreUnavailableAndListsThoseHere) {
  for (const char* text : {"gpu:77", "/gpu:77", "/device:GPU:77"}) {
    expect_error(ErrorCode::kUnavailable,
                 {"gpu:77 is unavailable: ", "; devices here: cpu:0 ... cpu:63 (virtual)"},
                 [&] { Device::parse(text); });
  }
  EXPECT_NO_THROW(Device::parse("cpu:63"));
  expect_error(ErrorCode::kUnavailable, {"cpu:64 is unavailable"}, [] { Device::parse("cpu:64"); });
  expect_error(ErrorCode::kUnavailable, {"gpu:77 is unavailable"}, [] {
    Tensor::zeros({2}, DType::kFloat32, {DeviceType::kGpu, 77});
  });
}

TEST(Device, ReadsListsWithRanges) {
  const auto cpu = [](int index) { return Device{DeviceType::kCpu, index}; };
  EXPECT_EQ(parse_devices("cpu:0-3"), (std::vector{cpu(0), cpu(1), cpu(2), cpu(3)}));
  EXPECT_EQ(parse_devices("cpu:4"), (std::vector{cpu(4)}));
  EXPECT_EQ(parse_devices("cpu:2, cpu:0"), (std::vector{cpu(2), cpu(0)}));  // the order stays
  EXPECT_EQ(parse_devices("cpu:0-1,cpu:5-5"), (std::vector{cpu(0), cpu(1), cpu(5)}));
  EXPECT_FALSE(default_devices().empty());
}

TEST(Device, RefusesListsWithGapsAndDuplicates) {
  expect_error(ErrorCode::kInvalidArgument, {"empty"}, [] { parse_devices(""); });
  expect_error(ErrorCode::kInvalidArgument, {"empty"}, [] { parse_devices("cpu:0,"); });
  expect_error(ErrorCode::kInvalidArgument, {"cpu:1 stands twice"},
               [] { parse_devices("cpu:0-2,cpu:1"); });
  expect_error(ErrorCode::kInvalidArgument, {"cpu:3-1"}, [] { parse_devices("cpu:3-1"); });
  expect_error(ErrorCode::kUnavailable, {"cpu:64"}, [] { parse_devices("cpu:62-64"); });
  expect_error(ErrorCode::kUnavailable, {"gpu:77"}, [] { parse_devices("gpu:77,gpu:78"); });
}

TEST(DeviceSpec, RoundTrips) {
  for (const char* text : {"", "/job:worker", "/job:worker/replica:0/task:1/device:GPU:0",
                           "/task:3", "/job:ps/device:CPU:1", "/device:GPU:*"}) {
    EXPECT_EQ(DeviceSpec::parse(text).to_string(), text);
  }
  EXPECT_EQ(DeviceSpec::parse("/job:a/gpu:2").to_string(), "/job:a/device:GPU:2");
  EXPECT_EQ(DeviceSpec::parse("/device:GPU").to_string(), "/device:GPU:*");
}

TEST(DeviceSpec, NeverChecksThatTheDeviceExists) {
  const DeviceSpec spec = DeviceSpec::parse("/job:worker/task:7/device:GPU:99");
  EXPECT_EQ(spec.job, "worker");
  EXPECT_EQ(spec.task, 7);
  EXPECT_EQ(spec.type, DeviceType::kGpu);
  EXPECT_EQ(spec.index, 99);
  EXPECT_FALSE(spec.replica);
  expect_error(ErrorCode::kUnavailable, {"gpu:99", "cpu:0 ... cpu:63"}, [&] { resolve(spec); });
}

TEST(DeviceSpec, NamesThePartItCannotRead) {
  expect_error(ErrorCode::kInvalidArgument, {"'task:x'", "/job:a/task:x"},
               [] { DeviceSpec::parse("/job:a/task:x"); });
  for (const char* text : {"job:a", "/job", "/job:", "/task:-1", "/device:FPGA:0",
                           "/device:CPU:0:1", "/color:red", "/job:a/job:b", "/task:1:2", "//"}) {
    expect_error(ErrorCode::kInvalidArgument, {"DeviceSpec::parse", text},
                 [&] { DeviceSpec::parse(text); });
  }
}

TEST(DeviceSpec, SaysWhatIsWrongWithThePart) {
  const std::vector<std::pair<const char*, const char*>> cases{
      {"job:a", "no '/' in front"},     {"/job:", "no name"},
      {"/task:-1", "no whole number"},  {"/device:FPGA:0", "none of CPU, GPU, XLA"},
      {"/job:a/job:b", "stands twice"}, {"/gpu:0/device:CPU:0", "stands twice"},
      {"/color:red", "no such part"},   {"/task:99999999999", "no whole number"},
      {"/cpu:0/cpu:1", "stands twice"}, {"/device:CPU:x", "no whole number"},
  };
  for (const auto& [wrong, reason] : cases) {
    const char* const text = wrong;  // clang 14 captures no structured binding
    expect_error(ErrorCode::kInvalidArgument, {text, reason}, [&] { DeviceSpec::parse(text); });
  }
}

TEST(DeviceSpec, AnIndexWithoutTypeNamesNothing) {
  EXPECT_EQ((DeviceSpec{.job = "worker", .index = 2}).to_string(), "/job:worker");
}

TEST(DeviceSpec, APartIsReplacedInACopy) {
  DeviceSpec spec = DeviceSpec::parse("/job:worker/replica:0/task:1/device:GPU:0");
  spec.task = 4;
  spec.index.reset();
  EXPECT_EQ(spec.to_string(), "/job:worker/replica:0/task:4/device:GPU:*");
}

TEST(DeviceSpec, InnerPartsWinWhenMerged) {
  const DeviceSpec outer = DeviceSpec::parse("/job:worker/task:1/device:GPU:0");
  const DeviceSpec merged = outer.merged_with(DeviceSpec::parse("/task:2/device:CPU:*"));
  EXPECT_EQ(merged.to_string(), "/job:worker/task:2/device:CPU:0");
  EXPECT_EQ(outer.merged_with({}), outer);
}

TEST(DeviceSpec, MissingPartsResolveToTheFirstCpu) {
  EXPECT_EQ(resolve({}), (Device{DeviceType::kCpu, 0}));
  EXPECT_EQ(resolve(DeviceSpec::parse("/job:worker/cpu:5")), (Device{DeviceType::kCpu, 5}));
}

}  // namespace
}  // namespace tutti
