// Progress lines, without a terminal, on a clock of the test.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Time that passes when the test says so.
class HandClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void sleep_until(TimePoint time) override { now_ = time; }

 private:
  TimePoint now_{};
};

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

/// What a `steps`-step epoch of 64 rows and a tenth of a second per step prints.
std::string printed(std::int64_t steps, std::optional<std::int64_t> known, TimeSplit split,
                    Verbosity verbosity = Verbosity::kProgress) {
  const std::unique_ptr<std::FILE, CloseFile> file(std::tmpfile());
  HandClock clock;
  Progress progress(file.get(), clock, verbosity);
  progress.begin_epoch(1, 3, known);
  const std::array<std::pair<std::string, double>, 2> values = {
      {{"loss", 0.25}, {"accuracy", 0.875}}};
  for (std::int64_t step = 1; step <= steps; ++step) {
    clock.sleep_for(std::chrono::milliseconds(100));
    progress.step(step, 64, values);
  }
  clock.sleep_for(std::chrono::seconds(10));  // validation is no step
  progress.end_epoch(values, split);
  std::rewind(file.get());
  std::string text(1 << 16, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  return text;
}

TEST(ProgressTest, ALinePerEpochIsOneLine) {
  const auto text_of = [](std::optional<std::int64_t> known) {
    return printed(20, known, {.compute = 6, .communication = 3}, Verbosity::kLinePerEpoch);
  };
  const std::string values = "  loss 0.2500  accuracy 0.8750  640 examples/s  12.0 s\n";
  EXPECT_EQ(text_of(20), "epoch 2/3  20/20 steps" + values);
  EXPECT_EQ(text_of(std::nullopt), "epoch 2/3  20 steps" + values);
}

TEST(ProgressTest, ALogGetsALinePerTenthAndTheSplit) {
  const std::string text = printed(200, 200, {.compute = 6, .communication = 3, .input_wait = 1});
  EXPECT_THAT(text, HasSubstr("epoch 2/3\n"));
  EXPECT_THAT(text, HasSubstr("100/200  loss 0.2500  accuracy 0.8750  640 examples/s  ETA 10.0 s"));
  EXPECT_THAT(text, HasSubstr("200/200  loss 0.2500  accuracy 0.8750  640 examples/s  30.0 s"));
  EXPECT_THAT(text, HasSubstr("compute 60 %  communication 30 %  input wait 10 %"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 12);
  EXPECT_THAT(text, Not(HasSubstr("\r"))) << "no terminal";
}

TEST(ProgressTest, AnUnknownNumberOfStepsHasNoBar) {
  const std::string text = printed(250, std::nullopt, {});
  EXPECT_THAT(text, HasSubstr("  200 steps"));
  EXPECT_THAT(text, Not(HasSubstr("ETA")));
  EXPECT_THAT(text, Not(HasSubstr("compute")));
}

TEST(ProgressTest, DurationsAreReadable) {
  EXPECT_EQ(duration_text(2.14), "2.1 s");
  EXPECT_EQ(duration_text(205), "3:25");
  EXPECT_EQ(duration_text(3727), "1:02:07");
}

}  // namespace
}  // namespace tutti
