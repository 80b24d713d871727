// The functions of a member, as questions to the server.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/control/control_client.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "tutti/cluster/control/control_session.h"
#include "tutti/cluster/control/health_rules.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti {
namespace {

using internal::MembersRequest;
using internal::StoreReply;
using internal::StoreRequest;
using Action = internal::StoreRequest::Action;

/// The server answers at once, or it is lost long before this.
constexpr Duration kLongestAnswer = std::chrono::seconds(60);
constexpr Duration kLongestAgreement = std::chrono::seconds(4);

TimePoint soon() { return deadline_after(Clock::system().now(), kLongestAnswer); }

void check(std::string_view key, std::string_view value = "") {
  internal::check_store_key("control store", key);
  internal::check_store_value("control store", key, value);
}

/// Those who never came; if all have, those who are gone again.
std::string missing_names(const std::vector<Member>& members) {
  std::vector<std::string> never, gone;
  for (const Member& member : members) {
    if (!member.is_here) (member.pid == 0 ? never : gone).push_back(member.to_string());
  }
  return join(never.empty() ? gone : never);
}

}  // namespace

ControlClient::ControlClient(std::unique_ptr<internal::ControlSession> session)
    : session_(std::move(session)), exceptions_at_begin_(std::uncaught_exceptions()) {}

ControlClient::~ControlClient() {
  if (std::uncaught_exceptions() > exceptions_at_begin_) {
    MutexLock lock(mutex_);
    const std::string why = failure_.empty() ? "; its log says which" : concat(": ", failure_);
    report_failure(Error(ErrorCode::kAborted, concat("ended by an exception", why)));
  }
  leave();
}

void ControlClient::note_failure(std::string_view text) {
  MutexLock lock(mutex_);
  failure_ = text;
}

void ControlClient::set(std::string_view key, std::string_view value) {
  check(key, value);
  (void)session_->ask(
      StoreRequest{Action::kSet, std::string(key), std::string(value), std::nullopt}, soon(),
      concat("no answer to setting '", key, "'"));
}

std::optional<std::string> ControlClient::get(std::string_view key) {
  check(key);
  return session_
      ->ask(StoreRequest{Action::kGet, std::string(key), "", std::nullopt}, soon(),
            concat("no answer to reading '", key, "'"))
      .value;
}

std::string ControlClient::wait(std::string_view key, TimePoint deadline) {
  return wait_for_value(key, deadline, std::nullopt);
}

std::string ControlClient::wait_unless_lost(std::string_view key, std::uint64_t last_verdict,
                                            TimePoint deadline) {
  return wait_for_value(key, deadline, last_verdict);
}

std::string ControlClient::wait_for_value(std::string_view key, TimePoint deadline,
                                          std::optional<std::uint64_t> last_verdict) {
  check(key);
  try {
    const auto value =
        session_
            ->ask(StoreRequest{Action::kWait, std::string(key), "", std::nullopt}, deadline,
                  concat("control store: nobody has set '", key, "' in time"), last_verdict)
            .value;
    TUTTI_CHECK(value.has_value(), "a wait ended without a value");
    return *value;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDeadlineExceeded) throw;
    // What is there is found, however late the question was.
    if (auto value = get(key)) return *std::move(value);
    throw;
  }
}

bool ControlClient::remove(std::string_view key) {
  check(key);
  return session_
      ->ask(StoreRequest{Action::kRemove, std::string(key), "", std::nullopt}, soon(),
            concat("no answer to removing '", key, "'"))
      .changed;
}

bool ControlClient::compare_and_set(std::string_view key, std::optional<std::string_view> expected,
                                    std::string_view value) {
  check(key, value);
  StoreRequest request{Action::kCompareAndSet, std::string(key), std::string(value), std::nullopt};
  if (expected) {
    internal::check_store_value("control store", key, *expected);
    request.expected = std::string(*expected);
  }
  return session_->ask(request, soon(), concat("no answer to changing '", key, "'")).changed;
}

void ControlClient::wait_for_members(TimePoint deadline) {
  Clock& clock = Clock::system();
  const TimePoint begin = clock.now();
  const std::string self = session_->self().task.to_string();
  for (;;) {
    const TimePoint say_at = deadline_after(clock.now(), session_->options().say_every);
    try {
      (void)session_->members(true, std::min(deadline, say_at));
      return;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDeadlineExceeded) throw;
    }
    const std::string missing = missing_names(members());
    if (missing.empty()) return;
    const std::string time = internal::seconds_text(clock.now() - begin);
    if (clock.now() >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, "control: ", self, ": ", missing, " did not come within ",
           time, " s; start what is missing, or check its address and its log");
    }
    log_info(concat("control: ", self, " waits for ", missing, " since ", time, " s"));
  }
}

std::vector<Member> ControlClient::members() { return session_->members(false, soon()); }

Member ControlClient::self() const { return session_->self(); }

std::vector<Verdict> ControlClient::verdicts() const { return session_->verdicts(); }

std::optional<Verdict> ControlClient::fatal_verdict() const {
  for (const Verdict& verdict : session_->verdicts()) {
    if (verdict.is_fatal) return verdict;
  }
  return std::nullopt;
}

void ControlClient::report_failure(const Error& error) noexcept {
  try {
    (void)session_->ask(internal::FailureReport{error.code(), error.message()},
                        deadline_after(Clock::system().now(), std::chrono::seconds(1)),
                        "no answer to the report of a failure");
  } catch (const std::exception&) {  // the server is gone, which is news of its own
  }
}

void ControlClient::request_stop(std::string_view reason) {
  (void)session_->ask(internal::StopRequest{std::string(reason)}, soon(),
                      "no answer to the request to stop");
}

std::optional<std::uint64_t> ControlClient::agreed_stop_step() const {
  return session_->gate().final_step();
}

bool ControlClient::stops_after(std::uint64_t step) {
  return session_->gate().stops_after(step,
                                      deadline_after(Clock::system().now(), kLongestAgreement));
}

std::string ControlClient::stop_reason() const { return session_->gate().reason(); }

void ControlClient::leave() noexcept { session_->leave(); }

std::unique_ptr<ControlClient> connect_control(const std::string& target, const MemberTask& self,
                                               const ControlOptions& options) {
  return std::make_unique<ControlClient>(
      std::make_unique<internal::ControlSession>(target, self, options));
}

}  // namespace tutti
