// Tests TensorBoard event files, and the progress that fit() prints.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "tests/strategy/worker_threads.h"
#include "tests/support/protobuf_fields.h"
#include "tests/support/test_folder.h"
#include "tutti/core/error.h"
#include "tutti/data/records.h"
#include "tutti/model/log_files.h"
#include "tutti/model/progress.h"

namespace tutti::testing::event_file_test {

using namespace protobuf_fields;

template <class T>
T take(std::string_view& bytes) {
  T value{};
  EXPECT_GE(bytes.size(), sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

/// Returns the events of a file, without their length and checksums.
std::vector<std::string> events_of(const std::string& path) {
  std::vector<std::string> events;
  for (const Element& record : tfrecord_dataset({path})) {
    const auto bytes = record[0].host_span<std::uint8_t>();
    events.emplace_back(bytes.begin(), bytes.end());
  }
  return events;
}

TEST(EventFileTest, WritesScalarsInTensorBoardFormat) {
  EventFileWriter writer(empty_folder());
  writer.scalar("epoch_loss", 0, 0.5);
  writer.scalar("epoch_loss", 300, -1.25);
  const std::vector<std::string> events = events_of(writer.path());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(fields_of(events[0])[3], "brain.Event:2");
  auto last = fields_of(events[2]);
  std::string_view time = last[1], step = last[2];
  EXPECT_GT(take<double>(time), 1.6e9);
  EXPECT_EQ(take_varint(step), 300u);
  auto value = fields_of(fields_of(last[5])[1]);
  EXPECT_EQ(value[1], "epoch_loss");
  std::string_view number = value[2];
  EXPECT_EQ(take<float>(number), -1.25f);
}

/// Writes summaries inside strategy.run(), as tf.summary.scalar() and histogram() do.
void write_from_inside_run(Strategy& strategy, EventFileWriter& writer) {
  strategy.run([&] {
    const double number = ReplicaContext::current().replica_id();
    writer.scalar("loss", 7, 2.0 + number);
    writer.histogram("weights", 7, std::vector<double>{number});
  });
}

TEST(EventFileTest, OnlyReplica0WritesSummariesInsideRun) {
  for (const strategy_tests::StrategyCase& each : strategy_tests::all_strategies()) {
    SCOPED_TRACE(each.name);
    EventFileWriter writer(empty_folder(each.name));
    const auto strategy = each.make();
    write_from_inside_run(*strategy, writer);
    const std::vector<std::string> events = events_of(writer.path());
    ASSERT_EQ(events.size(), 3u);  // file header, scalar and histogram
    auto value = fields_of(fields_of(fields_of(events[1])[5])[1]);
    std::string_view number = value[2];
    EXPECT_EQ(take<float>(number), 2.0f);
  }
}

TEST(EventFileTest, OnlyOneWorkerWritesSummariesInsideRun) {
  std::size_t num_events[2] = {};
  strategy_tests::expect_no_error(strategy_tests::run_workers(
      strategy_tests::workers_with({2, 1}), [&](MultiWorkerMirroredStrategy& strategy) {
        const int worker = strategy.worker();
        EventFileWriter writer(empty_folder(concat("_", worker)));
        write_from_inside_run(strategy, writer);
        num_events[worker] = events_of(writer.path()).size();
      }));
  EXPECT_EQ(num_events[0], 3u);
  EXPECT_EQ(num_events[1], 1u);  // only the file header
}

TEST(EventFileTest, ReportsFileSizeLimitAsError) {
  const std::string folder = empty_folder();
  std::optional<EventFileWriter> writer(folder);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 100;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = error_of([&] {
    for (int step = 0; step < 10; ++step) writer->scalar("epoch_loss", step, 0.5);
  });
  writer.reset();  // the destructor must not write while the limit applies
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(message, HasSubstr("File too large"));
}

/// Returns the numbers of a packed protobuf field.
std::vector<double> doubles_in(std::string_view bytes) {
  std::vector<double> numbers;
  while (!bytes.empty()) numbers.push_back(take<double>(bytes));
  return numbers;
}

TEST(EventFileTest, HistogramCountsValuesBelowEachLimit) {
  EventFileWriter writer(empty_folder());
  const std::vector<double> values = {-3.0, 0.0, 0.0, 0.5, 0.5, 0.5, 7.25};
  writer.histogram("conv1/activations", 100, values);
  writer.histogram("empty", 100, {});
  const std::vector<std::string> events = events_of(writer.path());
  ASSERT_EQ(events.size(), 3u);
  auto value = fields_of(fields_of(fields_of(events[1])[5])[1]);
  EXPECT_EQ(value[1], "conv1/activations");
  auto histogram = fields_of(value[5]);
  const double expected[] = {-3.0, 7.25, 7.0, 5.75, 9.0 + 3 * 0.25 + 7.25 * 7.25};
  for (std::uint64_t field = 1; field <= 5; ++field) {
    EXPECT_EQ(doubles_in(histogram[field]), (std::vector<double>{expected[field - 1]})) << field;
  }
  const std::vector<double> limits = doubles_in(histogram[6]), counts = doubles_in(histogram[7]);
  ASSERT_EQ(limits.size(), counts.size());
  EXPECT_TRUE(std::ranges::is_sorted(limits));
  // The number of values below a limit equals the sum of the counts of all buckets up to that
  // limit.
  double total = 0.0;
  for (std::size_t i = 0; i < limits.size(); ++i) {
    total += counts[i];
    EXPECT_EQ(total, std::ranges::count_if(values, [&](double v) { return v < limits[i]; })) << i;
  }
  EXPECT_EQ(total, 7.0);
  EXPECT_LT(limits.size(), 12u);  // adjacent empty buckets are merged
  EXPECT_EQ(doubles_in(fields_of(fields_of(fields_of(fields_of(events[2])[5])[1])[5])[3]),
            (std::vector<double>{0.0}));
}

TEST(EventFileTest, RejectsNanHistogramAndUncreatableFolder) {
  EventFileWriter writer(TempDir() + "tutti_histogram_of_nan");
  const std::vector<double> values = {1.0, std::nan("")};
  EXPECT_INVALID(writer.histogram("weights", 3, values), "'weights' at step 3");
  EXPECT_ERROR(EventFileWriter("/proc/no_such_folder"), kUnavailable, "/proc/no_such_folder");
}

/// Clock that only the test advances.
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
using File = std::unique_ptr<std::FILE, CloseFile>;

using Values = std::vector<std::pair<std::string, double>>;
const Values kValues = {{"loss", 0.25}, {"accuracy", 0.875}};

/// Writes the progress of an epoch with `steps` steps. Each step has 64 rows and takes 0.1 s.
void write_epoch(std::FILE* file, std::int64_t steps, std::optional<std::int64_t> known,
                 TimeSplit split, Verbosity verbosity, const Values& values) {
  HandClock clock;
  Progress progress(file, clock, verbosity);
  progress.begin_epoch(1, 3, known);
  for (std::int64_t step = 1; step <= steps; ++step) {
    clock.sleep_for(std::chrono::milliseconds(100));
    progress.step(step, 64, values);
  }
  clock.sleep_for(std::chrono::seconds(10));  // validation time does not count as step time
  progress.end_epoch(values, split);
}

std::string printed(std::int64_t steps, std::optional<std::int64_t> known, TimeSplit split,
                    Verbosity verbosity = Verbosity::kProgress, const Values& values = kValues) {
  const File file(std::tmpfile());
  write_epoch(file.get(), steps, known, split, verbosity, values);
  std::rewind(file.get());
  std::string text(1 << 16, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  return text;
}

TEST(ProgressTest, PrintsOneLinePerEpochOutsideTerminal) {
  const TimeSplit split = {.compute = 6, .communication = 3, .input_wait = 1};
  const std::string values = "  loss 0.2500  accuracy 0.8750  640 examples/s  12.0 s";
  const auto per_epoch = Verbosity::kLinePerEpoch;
  EXPECT_EQ(printed(20, 20, split, per_epoch), "epoch 2/3  20/20 steps" + values + "\n");
  EXPECT_EQ(printed(20, std::nullopt, split, per_epoch), "epoch 2/3  20 steps" + values + "\n");
  EXPECT_EQ(printed(20, 20, split), "epoch 2/3  20/20 steps" + values +
                                        "  compute 60 %  communication 30 %  input wait 10 %\n");
  EXPECT_EQ(printed(20, 20, {}), "epoch 2/3  20/20 steps" + values + "\n");
}

TEST(ProgressTest, PrintsSignificantDigitsOfSmallAndLargeValues) {
  const Values values = {{"a", 1e-5}, {"b", 0.0}, {"c", -0.00025}, {"d", 2e9}, {"e", std::nan("")}};
  EXPECT_THAT(printed(1, 1, {}, Verbosity::kLinePerEpoch, values),
              HasSubstr("  a 1e-05  b 0.0000  c -0.00025  d 2e+09  e nan  "));
}

TEST(ProgressTest, FormatsDurationsAsSecondsMinutesOrHours) {
  EXPECT_EQ(duration_text(2.14), "2.1 s");
  EXPECT_EQ(duration_text(205), "3:25");
  EXPECT_EQ(duration_text(3727), "1:02:07");
}

/// Returns the output of an epoch on a terminal with `columns` columns.
std::string on_terminal(unsigned short columns, const Values& values) {
  const internal::FileDescriptor terminal(posix_openpt(O_RDWR | O_NOCTTY));
  EXPECT_TRUE(grantpt(terminal.get()) == 0 && unlockpt(terminal.get()) == 0);
  const winsize size = {.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  EXPECT_EQ(ioctl(terminal.get(), TIOCSWINSZ, &size), 0);
  {
    const File file(std::fopen(ptsname(terminal.get()), "w"));
    write_epoch(file.get(), 5, 5, {.compute = 1, .communication = 1}, Verbosity::kProgress, values);
  }
  std::string text;
  std::array<char, 4096> part;
  for (ssize_t length; (length = read(terminal.get(), part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(length));
  }
  const std::string clear_line = "\x1b[K";
  for (std::size_t at; (at = text.find(clear_line)) != std::string::npos;) {
    text.erase(at, clear_line.size());
  }
  return text;
}

TEST(ProgressTest, TerminalLineIsRewrittenAndNeverWraps) {
  Values many = kValues;
  for (int i = 0; i < 6; ++i) many.emplace_back(concat("val_metric_", i), 0.5);
  for (const unsigned short columns : {200, 80, 50, 20}) {
    for (const Values& values : {kValues, many}) {
      const std::string text = on_terminal(columns, values);
      // Three lines: the epoch's title, its values, and its shares of time.
      EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;
      const std::size_t end = text.find("  compute");
      ASSERT_NE(end, std::string::npos) << text;
      std::size_t column = 0;
      for (std::size_t i = 0; i < end; ++i) {
        column = text[i] == '\r' || text[i] == '\n' ? 0 : column + 1;
        EXPECT_LT(column, columns) << text;
      }
    }
  }
  EXPECT_THAT(on_terminal(200, kValues),
              HasSubstr("  [#########...............] 2/5  loss 0.2500  accuracy 0.8750  "
                        "640 examples/s  ETA 0.3 s"));
  EXPECT_THAT(on_terminal(80, kValues), Not(HasSubstr("examples/s")));
  EXPECT_THAT(on_terminal(50, kValues),
              HasSubstr("  2/5  loss 0.2500  accuracy 0.8750  ETA 0.3 s"));
}

}  // namespace tutti::testing::event_file_test
