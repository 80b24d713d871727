// Starting a server: what holds for both wires.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/control/control_server.h"

#include "tutti/cluster/control/wires.h"
#include "tutti/cluster/tcp/stream.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

void check_durations(const HealthOptions& health) {
  const bool in_order = health.heartbeat_every > Duration::zero() &&
                        health.silent_after >= 2 * health.heartbeat_every &&
                        health.unreachable_after >= health.silent_after &&
                        health.warn_stuck_after > Duration::zero() &&
                        health.abort_stuck_after >= health.warn_stuck_after;
  if (in_order) return;
  fail(ErrorCode::kInvalidArgument,
       "ControlServer: expected heartbeat_every above 0, silent_after at least twice that, "
       "unreachable_after not below silent_after, and abort_stuck_after not below "
       "warn_stuck_after");
}

}  // namespace

HealthOptions HealthOptions::fast_detect() {
  HealthOptions options;
  options.heartbeat_every = std::chrono::milliseconds(100);
  options.silent_after = std::chrono::milliseconds(400);
  options.unreachable_after = std::chrono::seconds(1);
  return options;
}

std::unique_ptr<ControlServer> ControlServer::start(const ControlServerOptions& options) {
  const auto endpoint = internal::parse_listen_address(options.address);
  if (!endpoint) {
    fail(ErrorCode::kInvalidArgument, "ControlServer: the address '", options.address,
         "'; expected host:port, for example 127.0.0.1:4711 (port 0 takes a free one)");
  }
  check_durations(options.health);
  check_exposure("ControlServer", endpoint->host,
                 {.has_secret = options.secret.is_set(),
                  .has_tls = options.tls.is_set(),
                  .allow_insecure_network = options.allow_insecure_network,
                  .allow_any_address = options.allow_any_address});
  if (options.wire == "grpc") return internal::start_grpc_server(options, *endpoint);
  if (options.wire == "tcp") return internal::start_tcp_server(options, *endpoint);
  fail(ErrorCode::kInvalidArgument, "ControlServer: the wire '", options.wire,
       "'; expected tcp or grpc");
}

namespace internal {

ControlTarget parse_target(const std::string& text) {
  const std::size_t slashes = text.find("://");
  ControlTarget target;
  if (slashes != text.npos) {
    target.wire = text.substr(0, slashes);
    const auto endpoint = parse_endpoint(text.substr(slashes + 3));
    if (endpoint && (target.wire == "tcp" || target.wire == "grpc")) {
      target.endpoint = *endpoint;
      return target;
    }
  }
  fail(ErrorCode::kInvalidArgument, "control: the target '", text,
       "'; expected tcp://host:port or grpc://host:port");
}

PeerHello server_hello(const ControlServerOptions& options) {
  PeerHello hello = make_hello(ConnectionPurpose::kControl, options.host.job, options.host.index);
  hello.job_id = options.job_id;
  // A launcher does not train: its processor may be another one.
  if (options.host.job == "launcher") hello.numerics.clear();
  return hello;
}

ProcessState probe_member(const JoinRequest& joined) {
  if (joined.machine != this_process().machine) return {};
  return look_at_process(joined.who.pid, joined.start_time);
}

}  // namespace internal
}  // namespace tutti
