// Implements channels: credentials, retries until a server responds, and parsing of gRPC's errors.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/grpc/grpc_channel.h"

#include <grpc/grpc.h>

#include <cstring>
#include <string_view>
#include <vector>

#include "cluster/grpc/grpc_server.h"
#include "cluster/grpc/job_authority.h"
#include "core/names.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/executor.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr const char* kErrorMark = "tutti-error";

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const GrpcOptions& options) {
  if (!options.tls.is_set() && !options.secret.is_set()) {
    return grpc::InsecureChannelCredentials();
  }
  TlsIdentity identity =
      options.tls.is_set() ? read_identity(options.tls) : derive_identity(options.secret);
  return grpc::SslCredentials({std::move(identity.authorities), std::move(identity.private_key),
                               std::move(identity.certificate)});
}

}  // namespace

void initialize_grpc() {
  // gRPC stays initialized until the process ends. Shutting it down with the last server or channel
  // would wait up to 10 s for one of gRPC's pollers if a write had been blocked shortly before.
  [[maybe_unused]] static const bool is_initialized = (grpc_init(), true);
  constexpr int kThreads = 12;  // number of threads used by a server and a channel on two cores
  [[maybe_unused]] static const bool is_checked = [] {
    Event all_here;
    std::vector<std::unique_ptr<Thread>> threads;
    const auto wait = [&all_here] { all_here.wait_until(TimePoint::max()); };
    try {
      for (int i = 0; i < kThreads; ++i) threads.push_back(Executor::system().start("grpc", wait));
    } catch (const Error&) {
      all_here.set();
      throw;
    }
    all_here.set();
    return true;
  }();
}

std::shared_ptr<grpc::Channel> open_channel(const GrpcOptions& options) {
  initialize_grpc();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(options.most_bytes);
  arguments.SetMaxSendMessageSize(options.most_bytes);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // connects to members directly
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  for (const auto& [name, value] : kConnectionArguments) arguments.SetInt(name, value);
  if (options.keeps_alive) {
    for (const auto& [name, value] : kKeepAliveArguments) arguments.SetInt(name, value);
  }
  if (options.is_local()) {
    return grpc::CreateCustomChannel(concat("unix:", local_socket_path(options.endpoint)),
                                     grpc::InsecureChannelCredentials(), arguments);
  }
  if (!options.tls.is_set()) arguments.SetSslTargetNameOverride(kDerivedName);
  return grpc::CreateCustomChannel(options.endpoint.to_string(), channel_credentials(options),
                                   arguments);
}

grpc::Status to_status(grpc::ServerContextBase& context, const Error& error) {
  context.AddTrailingMetadata(kErrorMark, "1");
  return {static_cast<grpc::StatusCode>(error.code()), error.message()};
}

bool is_of_handler(const grpc::ClientContext& context) {
  return context.GetServerTrailingMetadata().contains(kErrorMark);
}

Error to_error(const grpc::Status& status) {
  return Error(static_cast<ErrorCode>(status.error_code()), status.error_message());
}

std::string connect_reason(const grpc::Status& status) {
  std::string text = status.error_message();
  for (const std::string_view begin :
       {"last error: ", "UNKNOWN: ", "Failed to connect to remote host: "}) {
    const std::size_t place = text.find(begin);
    if (place != text.npos) text = text.substr(place + begin.size());
  }
  // Example of `text`: "unix:/tmp/tutti-0/4026531840/127.0.0.1_4711: No such file or directory".
  const bool is_absent =
      text.starts_with("unix:") &&
      (text.ends_with("No such file or directory") || text.ends_with("Connection refused"));
  return is_absent ? "Connection refused" : text;
}

std::optional<ConnectAttempt> probe_listener(const GrpcOptions& options) {
  if (!options.is_local() || has_local_socket(options.endpoint)) return std::nullopt;
  return ConnectAttempt{.reason = std::strerror(ECONNREFUSED), .is_connection_refused = true};
}

ConnectAttempt failed_attempt(const grpc::Status& status, bool is_refused,
                              const GrpcOptions& options, TimePoint deadline) {
  const bool is_cut_short = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  const bool may_pass = status.error_code() == grpc::StatusCode::UNAVAILABLE;
  if (is_cut_short) return {.reason = "it does not answer", .is_cut_short = true};
  if (is_refused) return {.reason = status.error_message(), .is_final = !may_pass};
  if (status.ok()) return {.reason = "it does not answer as a server of the job"};
  ConnectAttempt attempt{.reason = connect_reason(status), .is_connection_refused = may_pass};
  if (!may_pass || options.is_local()) return attempt;
  const OpenedConnection opened = connect_until(options.endpoint, deadline);
  attempt.is_hopeless = opened.is_hopeless;
  attempt.is_connection_refused = opened.is_connection_refused;
  attempt.is_other_job =
      opened.socket.is_open() && (options.secret.is_set() || options.tls.is_set());
  if (!opened.reason.empty()) attempt.reason = opened.reason;
  return attempt;
}

namespace {

/// Number of consecutive TLS failures that rules out damaged packets as the cause.
constexpr int kTlsFailures = 10;

}  // namespace

void reach_server(const ServerTarget& server,
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
           "; waiting longer will not help; correct ", server.address_in,
           ", or this machine's names, interfaces, routes or port range");
    }
    if (Clock::system().now() >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, server.who, " did not reach ", server.name, " within ",
           seconds_text(server.timeout), " s: ", reason,
           "; start the server, or check its address and its log");
    }
    if (Clock::system().now() >= say_at) {
      log_warning(concat(server.who, " has waited ", seconds_text(Clock::system().now() - begin),
                         " s for ", server.name, ": ", reason));
      say_at = deadline_after(Clock::system().now(), server.say_every);
    }
    Clock::system().sleep_for(durations::kTryAgain);
  }
}

}  // namespace tutti::internal
