// Tests messages: errors, suggestions for unknown names, network addresses, the log, and traces of
// spans in Chrome's format.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/error.h"

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/call_site.h"
#include "core/file.h"
#include "core/names.h"
#include "core/network_address.h"
#include "tests/support/thrown.h"
#include "tests/support/warnings.h"
#include "tutti/core/executor.h"
#include "tutti/core/json.h"
#include "tutti/core/logging.h"
#include "tutti/core/source_location.h"
#include "tutti/core/trace.h"

namespace tutti::testing::messages_test {

struct Spoken {
  std::string to_string() const { return "spoken"; }
};

TEST(Text, ConcatFormatsValuesAndJoinAddsSeparators) {
  EXPECT_EQ(concat("a", 1, ' ', 2.5, Spoken{}), "a1 2.5spoken");
  EXPECT_EQ(concat(), "");
  EXPECT_EQ(join(std::vector<int>{1, 2, 3}), "1, 2, 3");
  EXPECT_EQ(join(std::vector<int>{7}, "-"), "7");
  EXPECT_EQ(join(std::vector<int>{}), "");
}

TEST(ErrorTest, FailPrependsContextToMessage) {
  try {
    fail(ErrorCode::kNotFound, "reader: no file ", 3);
    FAIL() << "fail() returned";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_STREQ(error.what(), "reader: no file 3");
  }
  const Error error = Error(ErrorCode::kAborted, "peer died").with_context("replica 1");
  EXPECT_EQ(error.code(), ErrorCode::kAborted);
  EXPECT_EQ(error.message(), "replica 1: peer died");
}

TEST(ErrorTest, CodesUseGrpcNames) {
  const std::pair<int, std::string_view> grpc[] = {{0, "OK"},
                                                   {1, "CANCELLED"},
                                                   {3, "INVALID_ARGUMENT"},
                                                   {4, "DEADLINE_EXCEEDED"},
                                                   {5, "NOT_FOUND"},
                                                   {6, "ALREADY_EXISTS"},
                                                   {8, "RESOURCE_EXHAUSTED"},
                                                   {9, "FAILED_PRECONDITION"},
                                                   {10, "ABORTED"},
                                                   {11, "OUT_OF_RANGE"},
                                                   {12, "UNIMPLEMENTED"},
                                                   {13, "INTERNAL"},
                                                   {14, "UNAVAILABLE"},
                                                   {15, "DATA_LOSS"}};
  for (const auto& [code, name] : grpc) EXPECT_EQ(to_string(static_cast<ErrorCode>(code)), name);
}

TEST(ErrorTest, BrokenInvariantNamesFileConditionAndValues) {
  try {
    TUTTI_CHECK(1 + 1 == 3, "got ", 2);
    FAIL() << "the check passed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_NE(error.message().find("messages_test.cc:"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("1 + 1 == 3; got 2"), std::string::npos) << error.message();
  }
  TUTTI_CHECK(1 + 1 == 2);
}

TEST(CallSite, InnermostScopeOfThreadApplies) {
  EXPECT_EQ(CallSite::current().line(), 0u);
  const SourceLocation outer = SourceLocation::current("train.cc", 7);
  {
    const CallSite first(outer);
    {
      const CallSite second(SourceLocation::current("step.cc", 9));
      const CallSite without(SourceLocation{});
      EXPECT_EQ(CallSite::current().line(), 9u);
      EXPECT_STREQ(CallSite::current().file_name(), "step.cc");
    }
    EXPECT_EQ(CallSite::current().line(), 7u);
    std::uint_least32_t elsewhere = 1;
    Executor::system().start("elsewhere", [&] { elsewhere = CallSite::current().line(); })->join();
    EXPECT_EQ(elsewhere, 0u);
  }
  EXPECT_EQ(CallSite::current().line(), 0u);
}

SourceLocation line_of_caller(SourceLocation where = SourceLocation::current()) { return where; }

struct LocatedNumber {
  LocatedNumber(int, SourceLocation location = SourceLocation::current()) : where(location) {}
  SourceLocation where;
};

SourceLocation line_of_conversion(const LocatedNumber& number) { return number.where; }

TEST(SourceLocationTest, CapturesCallerLineEvenInImplicitConversion) {
  const SourceLocation here = line_of_caller();
  EXPECT_EQ(here.line(), __LINE__ - 1);
  EXPECT_TRUE(std::string(here.file_name()).ends_with("messages_test.cc"));
  EXPECT_STREQ(here.function_name(), "TestBody");
  EXPECT_EQ(line_of_conversion(3).line(), __LINE__);
}

using namespace internal;

const std::vector<std::string> kNames = {"mirrored", "one_device", "sgd", "adam", "adamw"};

TEST(Choices, SuggestNearestName) {
  const std::string all = "mirrored, one_device, sgd, adam, adamw";
  EXPECT_EQ(choices(kNames, "mirorred"), all + "; did you mean 'mirrored'?");
  EXPECT_EQ(choices(kNames, "one-device"), all + "; did you mean 'one_device'?");
  EXPECT_EQ(choices(kNames, "mirored"), all + "; did you mean 'mirrored'?");
  EXPECT_EQ(choices(kNames, "miror"), all + "; did you mean 'mirrored'?");
  EXPECT_EQ(choices(kNames, "one_dev"), all + "; did you mean 'one_device'?");
  EXPECT_EQ(choices(kNames, "gsd"), all + "; did you mean 'sgd'?");
  EXPECT_EQ(choices(kNames, "admaw"), all + "; did you mean 'adamw'?");
  for (const char* name : {"", "x", "ftrl", "central_storage", "lsd1"}) {
    EXPECT_EQ(choices(kNames, name), all) << name;
  }
  EXPECT_EQ(choices({}, "adam"), "");
}

TEST(TextHelpers, EditDistanceLowerCaseAndHexMatchExpectedValues) {
  for (const auto& [a, b, expected] : {std::tuple{"", "", 0u},
                                       {"", "abc", 3u},
                                       {"abc", "", 3u},
                                       {"kitten", "sitting", 3u},
                                       {"adam", "adma", 1u},  // two adjacent letters swapped
                                       {"adam", "Adam", 1u},
                                       {"adam", "adamw", 1u}}) {
    EXPECT_EQ(edit_distance(a, b), expected) << a << " " << b;
  }
  for (const auto& [text, expected] : {std::pair{"", ""},
                                       {"AUTO", "auto"},
                                       {"@AZ[az`09_", "@az[az`09_"},
                                       {"\xC3\x84", "\xC3\x84"}}) {
    EXPECT_EQ(lower_case(text), expected);
  }
  for (const auto& [others, text, expected] : {std::tuple{"", "", true},
                                               {"", "azAZ09", true},
                                               {"_-", "a_b-c", true},
                                               {"_", "a_b-c", false},
                                               {"", "a b", false},
                                               {"", "\xC3\xA4", false},
                                               {"", "@", false},
                                               {"", "[", false},
                                               {"", "`", false},
                                               {"", "{", false},
                                               {"", "/", false},
                                               {"", ":", false}}) {
    EXPECT_EQ(has_only_alphanumerics_and(others, text), expected) << text;
  }
  const std::vector<std::byte> bytes = {std::byte{0x00}, std::byte{0x0A}, std::byte{0x7F},
                                        std::byte{0xF0}, std::byte{0xFF}};
  EXPECT_EQ(hex_of(bytes), "000a7ff0ff");
  EXPECT_EQ(hex_of({}), "");
}

TEST(TextHelpers, ParseNumberAcceptsOnlyCompleteNumbersInRange) {
  for (const auto& [text, expected] : {std::pair<const char*, std::optional<int>>{"0", 0},
                                       {"-12", -12},
                                       {"2147483647", std::numeric_limits<int>::max()},
                                       {"2147483648", std::nullopt},
                                       {"", std::nullopt},
                                       {"12x", std::nullopt},
                                       {"12 ", std::nullopt},
                                       {" 12", std::nullopt},
                                       {"+12", std::nullopt},
                                       {"1.5", std::nullopt},
                                       {"0x1", std::nullopt}}) {
    EXPECT_EQ(parse_number<int>(text), expected) << text;
  }
  EXPECT_EQ(parse_number<std::uint64_t>("18446744073709551615"), ~std::uint64_t{0});
  EXPECT_EQ(parse_number<std::uint64_t>("-1"), std::nullopt);
  EXPECT_EQ(parse_number<double>("1.5e2"), 150.0);
}

TEST(SplitText, SplitsAtEachSeparator) {
  EXPECT_THAT(split_text(""), ElementsAre());
  EXPECT_THAT(split_text("a:1"), ElementsAre("a:1"));
  EXPECT_THAT(split_text("a:1,b:2"), ElementsAre("a:1", "b:2"));
  EXPECT_THAT(split_text(",a,,b,"), ElementsAre("", "a", "", "b"));
  EXPECT_THAT(split_text("/bin:/usr/bin", ':'), ElementsAre("/bin", "/usr/bin"));
}

TEST(OneLine, ReplacesEachControlCharacterWithQuestionMark) {
  for (const char* const text :
       {"", "worker:2222", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x8e\xb5"}) {
    EXPECT_EQ(one_line(text), text);
  }
  EXPECT_EQ(one_line("a\nb\rc\td"), "a?b?c?d");
  EXPECT_EQ(one_line(std::string("\0\x1b[31m\x7f", 7)), "??[31m?");
  EXPECT_EQ(one_line("a\xc2\x85z"), "a?z");
  EXPECT_EQ(one_line("a\xe2\x80\xa8z\xe2\x80\xa9"), "a?z?");
}

TEST(OneLine, ReplacesInvalidUtf8AndTruncatesAtCodePoints) {
  EXPECT_EQ(one_line("\xff"
                     "a\x80"),
            "?a?");
  EXPECT_EQ(one_line("\xe2\x80"), "??");            // truncated sequence
  EXPECT_EQ(one_line("\xc0\xaf"), "??");            // overlong encoding of '/'
  EXPECT_EQ(one_line("\xed\xa0\x80"), "???");       // half of a UTF-16 surrogate pair
  EXPECT_EQ(one_line("\xf4\x90\x80\x80"), "????");  // beyond the last code point
  EXPECT_EQ(one_line("abcdef", 6), "abcdef");
  EXPECT_EQ(one_line("abcdefg", 6), "abcdef...");
  EXPECT_EQ(one_line("abcd\xe2\x82\xac", 6), "abcd...");
  EXPECT_EQ(one_line(std::string(100'000, 'x')).size(), 63U);
}

// JSON replaces invalid UTF-8, so a line that is unchanged after a round trip is valid.
TEST(OneLine, IsValidUtf8ForEveryPairOfBytes) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const char bytes[] = {static_cast<char>(first), static_cast<char>(second), '\x80'};
      const std::string line = one_line({bytes, 3});
      EXPECT_EQ(Json::parse(Json(line).dump()).as_string(), line) << first << ' ' << second;
    }
  }
}

std::string parts_of(std::string_view text) {
  const auto parts = split_address(text);
  if (!parts) return "none";
  return std::string(parts->host) + " " + std::string(parts->port) +
         (parts->has_brackets ? " in brackets" : "");
}

TEST(NetworkAddress, SplitsAtColonBeforePort) {
  EXPECT_EQ(parts_of("host:80"), "host 80");
  EXPECT_EQ(parts_of("127.0.0.1:4711"), "127.0.0.1 4711");
  EXPECT_EQ(parts_of("[::1]:4711"), "::1 4711 in brackets");
  EXPECT_EQ(parts_of("[fe80::1%eth0]:1"), "fe80::1%eth0 1 in brackets");
  EXPECT_EQ(parts_of(":80"), " 80");
  EXPECT_EQ(parts_of("host:"), "host ");
  EXPECT_EQ(parts_of("::1:80"), " :1:80");  // invalid, because ":1:80" is not a port
  for (const char* text : {"", "host", "[::1]", "[::1:80", "[::1]80", "[", "[]"}) {
    EXPECT_EQ(parts_of(text), "none") << text;
  }
}

TEST(NetworkAddress, JoinAddsBracketsAroundIpv6) {
  EXPECT_EQ(join_address("host", 80), "host:80");
  EXPECT_EQ(join_address("10.0.0.7", 80), "10.0.0.7:80");
  EXPECT_EQ(join_address("::1", 80), "[::1]:80");
  EXPECT_EQ(join_address("[::1]", 80), "[::1]:80");
}

// Examples from RFC 5952, section 4.
TEST(NetworkAddress, NormalizesIpv6Text) {
  EXPECT_EQ(canonical_ipv6("0:0:0:0:0:0:0:1"), "::1");
  EXPECT_EQ(canonical_ipv6("2001:0DB8::0001"), "2001:db8::1");
  EXPECT_EQ(canonical_ipv6("::0"), "::");
  EXPECT_EQ(canonical_ipv6("FE80:0::1%eth0"), "fe80::1%eth0");
  for (const char* text : {"", "host", "127.0.0.1", "[::1]", "::zz", "1:2", "::1%", "::1:80:"}) {
    EXPECT_EQ(canonical_ipv6(text), "") << text;
  }
}

using Lines = std::vector<std::string>;

TEST(Logging, DropsLinesBelowLevel) {
  const LogLines collected;
  set_log_level(LogLevel::kWarning);
  log_info("quiet");
  log_warning("loud");
  set_log_level(LogLevel::kDebug);
  log_debug("detail");
  set_log_level(LogLevel::kInfo);
  EXPECT_EQ(collected.list(), (Lines{"loud", "detail"}));
}

TEST(LoggingDeathTest, DefaultsToWarningUnlessSetByEnvironment) {
  // A process reads the level only once, so each case starts a new process.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto log_with = [](const char* level) {
    level ? ::setenv("TUTTI_LOG_LEVEL", level, 1) : ::unsetenv("TUTTI_LOG_LEVEL");
    log_info("info line");
    log_warning("warning line");
    std::exit(0);
  };
  EXPECT_EXIT(log_with(nullptr), ExitedWithCode(0),
              AllOf(HasSubstr("warning line"), Not(HasSubstr("info line"))));
  EXPECT_EXIT(log_with("info"), ExitedWithCode(0), HasSubstr("info line"));
}

TEST(Logging, DefaultSinkIsStandardError) {
  const LogSink previous = set_log_sink(nullptr);
  ::testing::internal::CaptureStderr();
  log_warning("100 % {braces}");
  const std::string text = ::testing::internal::GetCapturedStderr();
  set_log_sink(previous);
  EXPECT_NE(text.find("warning: 100 % {braces}\n"), std::string::npos) << text;
}

TEST(Logging, WarnsOncePerText) {
  const LogLines collected;
  EXPECT_TRUE(log_warning_once("only once, logging_test"));
  EXPECT_FALSE(log_warning_once("only once, logging_test"));
  EXPECT_TRUE(log_warning_once("another, logging_test"));
  EXPECT_EQ(collected.list().size(), 2u);
}

TEST(Logging, SinkCanLogRecursively) {
  const LogSink previous = set_log_sink([](LogLevel, std::string_view) { log_warning("nested"); });
  ::testing::internal::CaptureStderr();
  log_info("outer");
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("nested"), std::string::npos);
  set_log_sink(previous);
}

TEST(Logging, KeepsAllLinesOfConcurrentThreads) {
  const LogLines collected;
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int t = 0; t < 4; ++t) {
      threads.push_back(Executor::system().start("logger", [] {
        for (int i = 0; i < 100; ++i) log_info("line");
      }));
    }
  }
  EXPECT_EQ(collected.list().size(), 400u);
}

class TraceTest : public Test {
 protected:
  void TearDown() override {
    stop_trace();
    std::filesystem::remove(path_);
  }
  Json stopped() {
    stop_trace();
    return Json::parse(read_file(path_), path_);
  }
  static std::vector<Json> named(const Json& trace, std::string_view name) {
    std::vector<Json> found;
    for (const Json& event : trace.at("traceEvents").as_array()) {
      if (event.at("name").as_string() == name) found.push_back(event);
    }
    return found;
  }
  // The path differs between tests, because tests run concurrently.
  const std::string path_ =
      TempDir() + "trace_" + UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(TraceTest, SpansRecordArgumentsTimesAndThread) {
  start_trace(path_);
  {
    const TraceSpan outer("outer", "test", {{"replica", 3}, {"bucket", -1}});
    const TraceSpan inner("inner", "test");
  }
  trace_instant("moment", "test", "a \"label\"\n", {{"n", 7}});
  Executor::system().start("worker-1", [] { const TraceSpan span("elsewhere", "test"); })->join();
  const Json trace = stopped();
  const auto outer = named(trace, "outer"), inner = named(trace, "inner");
  ASSERT_EQ(outer.size(), 1U);
  ASSERT_EQ(inner.size(), 1U);
  EXPECT_EQ(outer[0].at("ph").as_string(), "X");
  EXPECT_EQ(outer[0].at("args").at("replica").as_int(), 3);
  EXPECT_EQ(outer[0].at("args").at("bucket").as_int(), -1);
  EXPECT_EQ(outer[0].at("tid"), inner[0].at("tid"));
  EXPECT_LE(outer[0].at("ts").as_double(), inner[0].at("ts").as_double());
  EXPECT_GE(outer[0].at("dur").as_double(), inner[0].at("dur").as_double());
  const auto moment = named(trace, "moment");
  ASSERT_EQ(moment.size(), 1U);
  EXPECT_EQ(moment[0].at("ph").as_string(), "i");
  EXPECT_EQ(moment[0].at("args").at("label").as_string(), "a \"label\"\n");
  EXPECT_EQ(moment[0].at("args").at("n").as_int(), 7);
  const auto elsewhere = named(trace, "elsewhere");
  ASSERT_EQ(elsewhere.size(), 1U);
  EXPECT_NE(elsewhere[0].at("tid"), outer[0].at("tid"));
  bool has_name = false;
  for (const Json& thread : named(trace, "thread_name")) {
    if (thread.at("tid") != elsewhere[0].at("tid")) continue;
    has_name = thread.at("args").at("name").as_string() == "worker-1";
  }
  EXPECT_TRUE(has_name);
}

TEST_F(TraceTest, RecordsNothingWhileDisabled) {
  { const TraceSpan before("before", "test"); }
  trace_instant("before", "test");
  EXPECT_FALSE(trace_is_on());
  start_trace(path_);
  EXPECT_TRUE(trace_is_on());
  EXPECT_TRUE(named(stopped(), "before").empty());
  EXPECT_FALSE(trace_is_on());
  stop_trace();  // does nothing: no trace is active
}

TEST_F(TraceTest, RejectsSecondTraceAndMissingPath) {
  EXPECT_THROW(start_trace(""), Error);
  start_trace(path_);
  EXPECT_ERROR(start_trace("other.json"), kFailedPrecondition, path_);
}

TEST_F(TraceTest, EachTaskHasItsOwnFileAndProcessNumber) {
  const std::filesystem::path path = path_ + ".json";
  start_trace(path);
  { const TraceSpan span("step", "test"); }
  internal::set_trace_task("worker-3", 3);  // works even if start_trace() has already set the path
  internal::set_trace_task("worker-3", 3);
  stop_trace();
  EXPECT_FALSE(std::filesystem::exists(path));
  const std::string own = path_ + ".worker-3.json";
  const Json trace = Json::parse(read_file(own), own);
  std::filesystem::remove(own);
  for (const Json& event : trace.at("traceEvents").as_array()) {
    EXPECT_EQ(event.at("pid").as_int(), 3);
  }
  EXPECT_EQ(named(trace, "process_name")[0].at("args").at("name").as_string(), "worker-3");
  internal::set_trace_task("worker-2", 2);  // a process with two tasks has no task name
  start_trace(path_);
  { const TraceSpan span("step", "test"); }
  EXPECT_EQ(named(stopped(), "step").size(), 1U);
}

TEST_F(TraceTest, UnwritableFileIsAnError) {
  start_trace("/proc/no/such/trace.json");
  EXPECT_THROW(stop_trace(), Error);
  EXPECT_FALSE(trace_is_on());
}

}  // namespace tutti::testing::messages_test
