// Where a server listens, and which connections reach it.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/grpc/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "cluster/grpc/job_authority.h"
#include "cluster/net/socket.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

/// While it lives servers get gRPC's health service; the process's own setting comes back.
class HealthServiceOn {
 public:
  HealthServiceOn() { grpc::EnableDefaultHealthCheckService(true); }
  ~HealthServiceOn() { grpc::EnableDefaultHealthCheckService(before_); }
  HealthServiceOn(const HealthServiceOn&) = delete;
  HealthServiceOn& operator=(const HealthServiceOn&) = delete;

 private:
  const bool before_ = grpc::DefaultHealthCheckServiceEnabled();
};

std::shared_ptr<grpc::ServerCredentials> server_credentials(const GrpcOptions& options) {
  if (!options.tls.is_set() && !options.secret.is_set()) return grpc::InsecureServerCredentials();
  const TlsIdentity identity =
      options.tls.is_set() ? read_identity(options.tls) : derive_identity(options.secret);
  grpc::SslServerCredentialsOptions ssl(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  ssl.pem_root_certs = identity.authorities;
  ssl.pem_key_cert_pairs.push_back({identity.private_key, identity.certificate});
  return grpc::SslServerCredentials(ssl);
}

/// Returns the loopback addresses at which a server of `options` listens by UNIX-domain sockets.
std::vector<std::string> loopback_hosts(const GrpcOptions& options) {
  const std::string& host = options.endpoint.host;
  if (options.is_local()) return {host};
  if (host == "::") return {"127.0.0.1", "::1"};  // Linux also accepts IPv4 there
  if (host.empty() || host == "0.0.0.0") return {"127.0.0.1"};
  return {};
}

}  // namespace

Endpoint checked_listen_address(std::string_view who, const std::string& text,
                                const Exposure& exposure) {
  const auto endpoint = parse_listen_address(text);
  if (!endpoint) {
    fail(ErrorCode::kInvalidArgument, who, ": the address '", text,
         "'; expected host:port, for example 127.0.0.1:4711 (port 0 takes a free one)");
  }
  check_exposure(who, endpoint->host, exposure);
  return *endpoint;
}

GrpcServer::GrpcServer(const GrpcOptions& options, const std::vector<grpc::Service*>& services)
    : endpoint_(options.endpoint), wake_(make_wake_event()) {
  require_threads_of_grpc();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(options.most_bytes);
  builder.SetMaxSendMessageSize(options.most_bytes);
  builder.AddChannelArgument(
      GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
      static_cast<int>(durations::kUnreachableAfter / std::chrono::milliseconds(1)));
  for (const auto& [name, value] : kConnectionArguments) builder.AddChannelArgument(name, value);
  if (options.keeps_alive) {
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
    for (const auto& [name, value] : kKeepAliveArguments) builder.AddChannelArgument(name, value);
  }
  const bool is_local = options.is_local();
  if (!is_local) {
    listener_ = listen_at(options.endpoint);
    endpoint_ = listener_->endpoint;
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        server_credentials(options));
  }
  for (const std::string& host : loopback_hosts(options)) {
    const LocalSocketClaim& claim = claims_.emplace_back(Endpoint{host, endpoint_.port});
    if (is_local) endpoint_ = claim.endpoint();
    builder.AddListeningPort(concat("unix:", claim.path()), grpc::InsecureServerCredentials());
  }
  for (grpc::Service* service : services) builder.RegisterService(service);
  const HealthServiceOn health;
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  server_ = builder.BuildAndStart();
  if (!server_) {
    fail(ErrorCode::kUnavailable, "grpc: listening at ", endpoint_.to_string(),
         " failed; expected a file system with room for sockets in /tmp");
  }
  if (acceptor_) thread_ = Executor::system().start("grpc-listener", [this] { accept_all(); });
}

GrpcServer::~GrpcServer() { shutdown(Duration::zero()); }

void GrpcServer::shutdown(Duration grace) {
  if (!server_) return;
  stop_.set();
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
  if (thread_) thread_->join();
  const auto milliseconds = grace / std::chrono::milliseconds(1);
  server_->Shutdown(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(milliseconds, GPR_TIMESPAN)));
  server_->Wait();
  server_.reset();
}

void GrpcServer::accept_all() {
  TimePoint accept_again{};
  while (!stop_.is_set()) {
    const TimePoint now = Clock::system().now();
    const bool accepts = now >= accept_again;
    std::array<pollfd, 2> descriptors{
        {{wake_.get(), POLLIN, 0},
         {listener_->socket.get(), static_cast<short>(accepts ? POLLIN : 0), 0}}};
    (void)poll_until(descriptors, accepts ? TimePoint::max() : accept_again);
    errno = 0;
    FileDescriptor socket = accept_from(listener_->socket);
    if (socket.is_open()) {
      hand_over(std::move(socket));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
      accept_again = deadline_after(now, durations::kTryAgain);
    }
  }
}

void GrpcServer::hand_over(FileDescriptor socket) {
  const TimePoint now = Clock::system().now();
  const std::string address = address_of_peer(socket);
  if (!limit_.allows(address, now)) return refusals_.note(concat(address, " opens too many"), now);
  Acceptor::NewConnectionParameters parameters;
  parameters.listener_fd = listener_->socket.get();
  parameters.fd = socket.release();  // gRPC closes it
  acceptor_->HandleNewConnection(&parameters);
}

}  // namespace tutti::internal
