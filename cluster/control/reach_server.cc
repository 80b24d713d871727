// Trying again, and saying so; what is no use to try again.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/control/reach_server.h"

#include "cluster/control/health_rules.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

/// So many TLS handshakes that failed one after the other were not damaged on their way.
constexpr int kTlsFailures = 10;

}  // namespace

void reach_server(const ServerToReach& server,
                  const std::function<ConnectAttempt(TimePoint deadline)>& attempt) {
  const TimePoint begin = Clock::system().now();
  const TimePoint deadline = deadline_after(begin, server.timeout);
  TimePoint say_at = deadline_after(begin, server.say_every);
  TimePoint last_hope = begin;
  int num_tls_failures = 0;
  std::string reason;
  for (;;) {
    const ConnectAttempt last = attempt(deadline);
    if (last.is_done) return;
    if (!last.is_cut_short || reason.empty()) reason = last.reason;
    if (last.is_final) {
      fail(ErrorCode::kFailedPrecondition, server.who, " cannot ", server.wants, ": ", reason);
    }
    num_tls_failures = last.is_other_job ? num_tls_failures + 1 : 0;
    if (num_tls_failures == kTlsFailures) {
      fail(ErrorCode::kFailedPrecondition, server.who, " cannot ", server.wants,
           ": the TLS handshake fails: ", reason,
           "; expected a server that knows this job's secret (or has a certificate of its "
           "authority); check TUTTI_JOB_SECRET_FILE and the address");
    }
    if (!last.is_hopeless) last_hope = Clock::system().now();
    if (Clock::system().now() - last_hope >= durations::kHopelessLongEnough) {
      fail(ErrorCode::kUnavailable, server.who, " cannot reach ", server.name, ": ", reason,
           "; waiting does not help; correct ", server.address_in,
           ", or this machine's names, interfaces, routes or range of ports");
    }
    if (Clock::system().now() >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, server.who, " did not reach ", server.name, " within ",
           seconds_text(server.timeout), " s: ", reason,
           "; start it, or check the address and its log");
    }
    if (Clock::system().now() >= say_at) {
      log_info(concat(server.who, " waits for ", server.name, " since ",
                      seconds_text(Clock::system().now() - begin), " s: ", reason));
      say_at = deadline_after(Clock::system().now(), server.say_every);
    }
    Clock::system().sleep_for(durations::kTryAgain);
  }
}

}  // namespace tutti::internal
