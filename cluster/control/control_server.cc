// Implements ControlServer: the service, and the thread that detects silent members.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/control/control_server.h"

#include <utility>

#include "cluster/control/job_service.h"
#include "cluster/grpc/grpc_server.h"
#include "tutti/core/error.h"
#include "tutti/core/executor.h"

namespace tutti {

bool control_has_grpc() { return true; }

namespace {

void check_durations(const HealthOptions& health) {
  const bool in_order = health.heartbeat_every > Duration::zero() &&
                        health.silent_after >= 2 * health.heartbeat_every &&
                        health.unreachable_after >= health.silent_after &&
                        health.warn_stuck_after > Duration::zero() &&
                        health.abort_stuck_after >= health.warn_stuck_after;
  if (in_order) return;
  fail(ErrorCode::kInvalidArgument,
       "ControlServer: expected heartbeat_every > 0, silent_after >= 2 * heartbeat_every, "
       "unreachable_after >= silent_after, and abort_stuck_after >= warn_stuck_after > 0; "
       "correct the HealthOptions");
}

/// Returns the state of a process on this machine; unknown for processes on other machines.
internal::ProcessState probe_process(const internal::JoiningProcess& joined) {
  if (joined.machine != internal::this_process().machine) return {};
  return internal::inspect_process(joined.who.pid, joined.start_time);
}

class GrpcControlServer final : public ControlServer {
 public:
  GrpcControlServer(const ControlServerOptions& options, const internal::Endpoint& endpoint)
      : linger_(options.linger),
        service_(options, probe_process),
        server_({endpoint, options.secret, options.tls}, {&service_}) {
    ticker_ = Executor::system().start("control-server", [this] { tick(); });
  }

  ~GrpcControlServer() override {
    service_.wait_until_all_have_left(deadline_after(Clock::system().now(), linger_));
    stop_.set();
    ticker_->join();
    service_.announce_server_end();
    server_.shutdown(durations::kLinger);
  }

  std::string target() const override { return concat("grpc://", server_.endpoint().to_string()); }
  std::vector<Member> members() const override { return service_.members(); }
  std::vector<Verdict> verdicts_after(std::uint64_t number) const override {
    return service_.verdicts_after(number);
  }
  std::vector<Member> missing() const override { return service_.missing(); }

 private:
  void tick() {
    while (!stop_.wait_until(deadline_after(Clock::system().now(), durations::kTryAgain))) {
      service_.tick();
    }
  }

  const Duration linger_;
  internal::JobService service_;
  internal::GrpcServer server_;
  Event stop_;
  std::unique_ptr<Thread> ticker_;
};

}  // namespace

std::unique_ptr<ControlServer> ControlServer::start(const ControlServerOptions& options) {
  check_durations(options.health);
  const internal::Endpoint endpoint =
      internal::checked_listen_address("ControlServer", options.address,
                                       {.has_secret = options.secret.is_set(),
                                        .has_tls = options.tls.is_set(),
                                        .allow_insecure_network = options.allow_insecure_network,
                                        .allow_any_address = options.allow_any_address});
  return std::make_unique<GrpcControlServer>(options, endpoint);
}

}  // namespace tutti
