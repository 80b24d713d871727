// Implements GrpcServer: listening, admission of connections, and local sockets.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/grpc/grpc_server.h"

#include <fcntl.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cluster/grpc/job_authority.h"
#include "core/process_probe.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

/// Enables gRPC's health service for new servers; the destructor restores the process's setting.
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

/// Returns the loopback addresses at which a server with `options` listens on UNIX-domain sockets.
std::vector<std::string> loopback_hosts(const GrpcOptions& options) {
  const std::string& host = options.endpoint.host;
  if (options.is_local()) return {host};
  if (host == "::") return {"127.0.0.1", "::1"};  // on Linux, "::" also accepts IPv4
  if (host.empty() || host == "0.0.0.0") return {"127.0.0.1"};
  return {};
}

}  // namespace

Endpoint checked_listen_address(std::string_view who, const std::string& text,
                                const Exposure& exposure) {
  const auto endpoint = parse_listen_address(text);
  if (!endpoint) {
    fail(ErrorCode::kInvalidArgument, who, ": expected an address host:port, got '", text,
         "'; use for example 127.0.0.1:4711 (port 0 selects a free port)");
  }
  check_exposure(who, endpoint->host, exposure);
  return *endpoint;
}

GrpcServer::GrpcServer(const GrpcOptions& options, const std::vector<grpc::Service*>& services)
    : endpoint_(options.endpoint), wake_(make_wake_event()) {
  initialize_grpc();
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
    fail(ErrorCode::kUnavailable, "grpc: cannot listen on ", endpoint_.to_string(),
         "; expected space for a socket in /tmp or TMPDIR; free some space there");
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
      adopt_socket(std::move(socket));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
      accept_again = deadline_after(now, durations::kTryAgain);
    }
  }
}

void GrpcServer::adopt_socket(FileDescriptor socket) {
  const TimePoint now = Clock::system().now();
  const std::string address = address_of_peer(socket);
  if (!limit_.allows(address, now)) {
    return refusals_.note(concat(address, " opens too many connections"), now);
  }
  Acceptor::NewConnectionParameters parameters;
  parameters.listener_fd = listener_->socket.get();
  parameters.fd = socket.release();  // gRPC closes the descriptor
  acceptor_->HandleNewConnection(&parameters);
}

// Local sockets: folders with mode 0700, locks, free ports.

namespace {

constexpr int kFirstFreePort = 32768;  // start of Linux's range of ephemeral ports
constexpr std::size_t kNumFreePorts = 28232, kTries = 1000;

/// Returns the user's folder for sockets. It is in /tmp, so that processes with different values of
/// TMPDIR find each other, or in TMPDIR if /tmp is not writable.
std::string user_folder() {
  const char* const folder = ::access("/tmp", W_OK | X_OK) == 0 ? nullptr : std::getenv("TMPDIR");
  return concat(folder ? folder : "/tmp", "/tutti-", ::geteuid());
}

std::string network_folder() {
  std::error_code error;
  const std::string link = std::filesystem::read_symlink("/proc/self/ns/net", error).string();
  const std::size_t begin = link.find('['), end = link.find(']');  // "net:[4026531840]"
  if (error || begin == link.npos || end == link.npos) return concat(user_folder(), "/net");
  return concat(user_folder(), "/", link.substr(begin + 1, end - begin - 1));
}

/// Creates the folder if needed. Throws unless it is private, because other users could replace a
/// path in a folder that they may write to.
void make_private_folder(const std::string& path) {
  struct stat found {};
  const bool is_made = ::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST;
  const bool is_private = is_made && ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
                          found.st_uid == ::geteuid() && (found.st_mode & 0777) == 0700;
  if (is_private) return;
  const int reason = errno;
  fail(ErrorCode::kUnavailable, "local socket: ", path, ": expected a folder owned by user ",
       ::geteuid(), " with mode 0700, got ",
       is_made ? concat("one owned by user ", found.st_uid, " or with another mode; remove it")
               : concat(std::strerror(reason),
                        "; use TMPDIR=FOLDER with a folder that this user can write to, "
                        "the same for all processes"));
}

/// Removes sockets and locks of processes that were killed.
void remove_orphans(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() != ".lock") continue;
    const FileDescriptor lock(::open(entry->path().c_str(), O_RDWR | O_CLOEXEC));
    if (!lock.is_open() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    ::unlink(std::filesystem::path(entry->path()).replace_extension().c_str());
    ::unlink(entry->path().c_str());
  }
}

std::string read_owner(const FileDescriptor& lock) {
  std::array<char, 32> text{};
  const ssize_t size = ::pread(lock.get(), text.data(), text.size() - 1, 0);
  std::int64_t pid = 0;
  if (size <= 0 || std::from_chars(text.data(), text.data() + size, pid).ec != std::errc()) {
    return "another process";
  }
  return process_text(pid);
}

}  // namespace

std::string local_socket_path(const Endpoint& endpoint) {
  const std::string host = endpoint.host == "localhost" ? "127.0.0.1" : endpoint.host;
  return concat(network_folder(), "/", host, "_", endpoint.port);
}

bool has_local_socket(const Endpoint& endpoint) {
  struct stat found {};
  return ::stat(local_socket_path(endpoint).c_str(), &found) == 0 && S_ISSOCK(found.st_mode);
}

LocalSocketClaim::LocalSocketClaim(const Endpoint& endpoint) : endpoint_(endpoint) {
  make_private_folder(user_folder());
  make_private_folder(network_folder());
  remove_orphans(network_folder());
  std::string owner;
  if (endpoint.port != 0) {
    path_ = local_socket_path(endpoint_);
    owner = try_to_lock(durations::kOneTry);
  } else {
    // Processes start their search at different ports, so that processes that start together do not
    // collide.
    const std::size_t begin = std::hash<std::string>{}(this_process().unique);
    for (std::size_t i = 0; i < kTries && !lock_.is_open(); ++i) {
      endpoint_.port = kFirstFreePort + static_cast<int>((begin + i) % kNumFreePorts);
      path_ = local_socket_path(endpoint_);
      owner = try_to_lock(Duration::zero());
    }
  }
  if (lock_.is_open()) return;
  fail(ErrorCode::kUnavailable, "grpc: listening on ", endpoint_.to_string(),
       " failed: Address already in use by ", owner,
       "; end that process or try another port (0 selects a free one)");
}

/// Waits for the lock: another server that is starting at the same time may be in remove_orphans(),
/// which briefly locks every file, even one that was just created here.
std::string LocalSocketClaim::try_to_lock(Duration patience) {
  const std::string path = concat(path_, ".lock");
  const TimePoint deadline = deadline_after(Clock::system().now(), patience);
  for (;;) {
    FileDescriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!lock.is_open()) {
      fail(ErrorCode::kUnavailable, "local socket: cannot open '", path,
           "': ", std::strerror(errno));
    }
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      if (Clock::system().now() >= deadline) return read_owner(lock);
      Clock::system().sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    // A process that has exited in the meantime may have removed this descriptor's file.
    struct stat held {
    }, named{};
    const bool is_named = ::fstat(lock.get(), &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
                          held.st_ino == named.st_ino;
    if (!is_named) continue;
    const std::string pid = std::to_string(::getpid());
    (void)!::ftruncate(lock.get(), 0);
    (void)!::pwrite(lock.get(), pid.data(), pid.size(), 0);
    ::unlink(path_.c_str());  // socket of a killed process
    lock_ = std::move(lock);
    return "";
  }
}

LocalSocketClaim::~LocalSocketClaim() {
  ::unlink(path_.c_str());
  ::unlink(concat(path_, ".lock").c_str());
}

}  // namespace tutti::internal
