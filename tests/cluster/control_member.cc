// Program that joins a job as a member; processes_test.cc runs it.
// SPDX-License-Identifier: Apache-2.0
//
// control_member TARGET JOB INDEX ADDRESS TIMEOUT_S [WAIT_S [CERTIFICATE KEY]]: joins and writes
// "joined". With WAIT_S, it then waits for all members and writes "all". It writes each verdict
// ("verdict KIND FATAL NANOSECONDS MESSAGE") and executes the lines of its standard input:
//   fail TEXT           reports a failure
//   stop TEXT           requests a stop of all members
//   steps MS            runs MS-millisecond steps until the stop, then writes "stopped N REASON"
//   end of input        exits
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "cluster/control/control_client.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace {

tutti::TimePoint now() { return tutti::Clock::system().now(); }

void say(const std::string& line) {
  static tutti::Mutex mutex;
  tutti::MutexLock lock(mutex);
  std::cout << line << std::endl;
}

void run_steps(tutti::ControlClient& client, int milliseconds) {
  for (std::uint64_t step = 1;; ++step) {
    tutti::Clock::system().sleep_for(std::chrono::milliseconds(milliseconds));
    if (!client.stops_after(step)) continue;
    say(tutti::concat("stopped ", step, " ", client.stop_reason()));
    return;
  }
}

void obey(tutti::ControlClient& client, const std::string& line) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  int milliseconds = 0;
  if (word == "fail") {
    client.report_failure(tutti::Error(tutti::ErrorCode::kInternal, line.substr(5)));
  } else if (word == "stop") {
    client.request_stop(line.substr(5));
  } else if (word == "steps" && words >> milliseconds) {
    run_steps(client, milliseconds);
  }
}

void run(int argc, char** argv) {
  if (argc < 6)
    tutti::fail(tutti::ErrorCode::kInvalidArgument,
                "control_member: expected at least 5 arguments, got ", argc - 1);
  tutti::ControlOptions options;
  options.secret = tutti::JobSecret::from_environment();
  if (const char* const job = std::getenv("TUTTI_JOB_ID")) options.job_id = job;
  options.timeout = std::chrono::seconds(std::atoi(argv[5]));
  if (argc > 8) options.tls = {argv[7], argv[8], argv[7]};
  options.on_verdict = [](const tutti::Verdict& verdict) {
    say(tutti::concat("verdict ", to_string(verdict.kind), " ", verdict.is_fatal ? 1 : 0, " ",
                      now().time_since_epoch().count(), " ", verdict.message));
  };
  const auto client =
      tutti::connect_control(argv[1], {argv[2], std::atoi(argv[3]), argv[4]}, options);
  say("joined");
  if (argc > 6) {
    client->wait_for_members(
        tutti::deadline_after(now(), std::chrono::seconds(std::atoi(argv[6]))));
    say("all");
  }
  std::string line;
  while (std::getline(std::cin, line)) obey(*client, line);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    say(tutti::concat("error ", error.what()));
    return 1;
  }
}
