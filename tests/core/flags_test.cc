// Tests command-line flags: values, defaults, errors and subcommands.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/flags.h"

#include <gtest/gtest.h>

#include "tutti/core/error.h"

namespace tutti::testing::flags_test {

struct FlagsOfTest {
  std::string name = "default";
  std::int64_t steps = 10;
  double rate = 0.5;
  bool resume = false;
  std::string mode = "sync";
  int exit_code = 0;
  std::string output, errors;
};

int parse_flags(Flags& flags, std::vector<std::string> words, FlagsOfTest& result) {
  words.insert(words.begin(), "bin/prog");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int code = flags.parse(static_cast<int>(arguments.size()), arguments.data());
  result.output = ::testing::internal::GetCapturedStdout();
  result.errors = ::testing::internal::GetCapturedStderr();
  return code;
}

FlagsOfTest parse_words(std::vector<std::string> words) {
  FlagsOfTest result;
  Flags flags("Trains something.");
  flags.add("--name", result.name, "name of the run");
  flags.add("--steps", result.steps, "steps to run");
  flags.add("--rate", result.rate, "learning rate");
  flags.add("--resume", result.resume, "resume from the checkpoint");
  flags.add_choice("--mode", result.mode, {"sync", "async"}, "how updates are synchronized");
  result.exit_code = parse_flags(flags, std::move(words), result);
  return result;
}

TEST(Flags, DefaultsApplyWithoutArguments) {
  const FlagsOfTest flags = parse_words({});
  EXPECT_EQ(flags.exit_code, -1);
  EXPECT_EQ(flags.name, "default");
  EXPECT_EQ(flags.steps, 10);
  EXPECT_EQ(flags.rate, 0.5);
  EXPECT_FALSE(flags.resume);
}

TEST(Flags, ParsesEveryFlagType) {
  const FlagsOfTest flags =
      parse_words({"--name", "a b", "--steps=-3", "--rate", "1e-3", "--resume", "--mode", "async"});
  EXPECT_EQ(flags.exit_code, -1) << flags.errors;
  EXPECT_EQ(flags.name, "a b");
  EXPECT_EQ(flags.steps, -3);
  EXPECT_EQ(flags.rate, 1e-3);
  EXPECT_TRUE(flags.resume);
  EXPECT_EQ(flags.mode, "async");
  EXPECT_EQ(parse_words({"--steps", "-3"}).steps, -3);
  EXPECT_EQ(parse_words({"--name", ""}).name, "");
}

TEST(Flags, LastOfDuplicateFlagsApplies) {
  const FlagsOfTest flags = parse_words({"--steps", "3", "--steps", "5"});
  EXPECT_EQ(flags.exit_code, -1) << flags.errors;
  EXPECT_EQ(flags.steps, 5);
}

TEST(Flags, InvalidUsagePrintsOneLineAndExitsWith2) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"--steps", "3x"}, "prog: --steps: expected a 64-bit integer, got '3x'"},
      {{"--steps", "99999999999999999999"},
       "prog: --steps: expected a 64-bit integer, got '99999999999999999999'"},
      {{"--rate", "fast"}, "prog: --rate: expected a number, got 'fast'"},
      {{"--mode", "maybe"}, "prog: --mode: expected one of sync, async, got 'maybe'"},
      {{"--stepz", "3"},
       "prog: unknown flag --stepz; expected one of --help, --name, --steps, --rate, --resume, "
       "--mode; did you mean '--steps'?"},
      {{"--resum=1"},
       "prog: unknown flag --resum; expected one of --help, --name, --steps, --rate, --resume, "
       "--mode; did you mean '--resume'?"},
      {{"--colour"},
       "prog: unknown flag --colour; expected one of --help, --name, --steps, --rate, --resume, "
       "--mode"},
      {{"word"}, "prog: unexpected argument 'word'; expected flags only; see --help"},
  };
  for (const auto& [words, message] : cases) {
    const FlagsOfTest flags = parse_words(words);
    EXPECT_EQ(flags.exit_code, 2);
    EXPECT_EQ(flags.errors, message + "\n");
  }
  const FlagsOfTest missing = parse_words({"--steps"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_NE(missing.errors.find("--steps"), std::string::npos) << missing.errors;
}

TEST(Flags, RemovedFlagIsUnknown) {
  FlagsOfTest result;
  Flags flags("Trains something.");
  flags.add("--name", result.name, "name of the run");
  flags.add("--steps", result.steps, "steps to run");
  flags.remove({"--steps"});
  EXPECT_EQ(parse_flags(flags, {"--steps", "3"}, result), 2);
  EXPECT_EQ(result.errors, "prog: unknown flag --steps; expected one of --help, --name\n");
  EXPECT_EQ(result.steps, 10);
  EXPECT_THROW(flags.remove({"--stepz"}), Error);
}

TEST(Flags, ListFlagAppendsOneValuePerUse) {
  FlagsOfTest result;
  std::vector<std::string> values;
  Flags flags("Trains something.");
  flags.add("--env", values, "a variable");
  flags.add("--name", result.name, "name of the run");
  EXPECT_EQ(parse_flags(flags, {"--env", "A=1 2", "--name", "x", "--env", "B=,"}, result), -1);
  EXPECT_EQ(values, (std::vector<std::string>{"A=1 2", "B=,"}));
  Flags help("Trains something.");
  help.add_footer("Examples:\n  prog --env A=1");
  EXPECT_EQ(parse_flags(help, {"--help"}, result), 0);
  EXPECT_NE(result.output.find("Examples:\n  prog --env A=1"), std::string::npos);
}

TEST(Flags, HelpShowsFlagsDefaultsAndChoices) {
  const FlagsOfTest flags = parse_words({"--help"});
  EXPECT_EQ(flags.exit_code, 0);
  for (const char* text :
       {"Trains something.", "--steps", "10", "0.5", "sync, async", "--resume"}) {
    EXPECT_NE(flags.output.find(text), std::string::npos) << text << " in\n" << flags.output;
  }
}

FlagsOfTest parse_command(std::vector<std::string> words) {
  FlagsOfTest result;
  Flags flags("A tool.");
  const auto declare = [&](Flags& sub) { sub.add("--json", result.resume, "print JSON"); };
  flags.add_command("devices", "lists devices", declare, [&] { return result.resume ? 11 : 10; });
  flags.add_command("doctor", "checks", declare, [] { return 20; });
  result.exit_code = parse_flags(flags, std::move(words), result);
  return result;
}

TEST(Flags, SubcommandRunsItsBody) {
  EXPECT_EQ(parse_command({"devices"}).exit_code, 10);
  EXPECT_EQ(parse_command({"devices", "--json"}).exit_code, 11);
  EXPECT_EQ(parse_command({"doctor"}).exit_code, 20);
}

TEST(Flags, UnknownOrMissingSubcommandErrorListsSubcommands) {
  const FlagsOfTest unknown = parse_command({"dance"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(unknown.errors, "prog: unknown command 'dance'; expected one of devices, doctor\n");
  const FlagsOfTest none = parse_command({});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_EQ(none.errors, "prog: no command given; expected one of devices, doctor\n");
  const FlagsOfTest flag = parse_command({"devices", "--jsn"});
  EXPECT_EQ(flag.exit_code, 2);
  EXPECT_EQ(flag.errors,
            "prog: unknown flag --jsn; expected one of --help, --json; did you mean "
            "'--json'?\n");
  EXPECT_EQ(parse_command({"devices", "--help"}).exit_code, 0);
}

FlagsOfTest parse_nested(std::vector<std::string> words) {
  FlagsOfTest result;
  Flags flags("A tool.");
  flags.add_command(
      "bench", "measures",
      [&](Flags& bench) {
        bench.add_command(
            "sum", "sums",
            [&](Flags& sum) { sum.add("-n,--steps", result.steps, "number of steps"); },
            [&] { return 30 + static_cast<int>(result.steps); });
        bench.add_command(
            "copy", "copies", [](Flags&) {}, [] { return 21; });
      },
      [] { return 0; });
  flags.add_command(
      "doctor", "checks", [](Flags&) {}, [] { return 20; });
  result.exit_code = parse_flags(flags, std::move(words), result);
  return result;
}

TEST(Flags, SubcommandsCanNest) {
  EXPECT_EQ(parse_nested({"bench", "sum"}).exit_code, 40);
  EXPECT_EQ(parse_nested({"bench", "sum", "-n", "2"}).exit_code, 32);
  EXPECT_EQ(parse_nested({"bench", "sum", "--steps", "3"}).exit_code, 33);
  EXPECT_EQ(parse_nested({"bench", "copy"}).exit_code, 21);
  EXPECT_EQ(parse_nested({"doctor"}).exit_code, 20);
  EXPECT_EQ(parse_nested({"bench", "--help"}).exit_code, 0);
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"bench"}, "prog: no command given; expected one of sum, copy"},
      {{"bench", "dance"}, "prog: unknown command 'dance'; expected one of sum, copy"},
      {{"dance"}, "prog: unknown command 'dance'; expected one of bench, doctor"},
      {{"bench", "sum", "--jsn"}, "prog: unknown flag --jsn; expected one of --help, --steps"},
      {{"bench", "copy", "word"},
       "prog: unexpected argument 'word'; expected flags only; see --help"},
  };
  for (const auto& [words, message] : cases) {
    const FlagsOfTest flags = parse_nested(words);
    EXPECT_EQ(flags.exit_code, 2);
    EXPECT_EQ(flags.errors, message + "\n");
  }
}

}  // namespace tutti::testing::flags_test
