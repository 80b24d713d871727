// System calls for sockets, and connection limits per address.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/net/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "core/network_address.h"
#include "core/process_probe.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

/// Returns true if a later look-up may succeed: a pod's name, for example, resolves only after the
/// pod is ready.
bool may_be_known_later(int error) {
  if (error == EAI_AGAIN || error == EAI_MEMORY || error == EAI_SYSTEM) return true;
  return error == EAI_NONAME && std::getenv("KUBERNETES_SERVICE_HOST") != nullptr;
}

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { ::freeaddrinfo(addresses); }
};

/// Calls getaddrinfo() with `flags`. Throws the same errors as start_connecting().
std::unique_ptr<addrinfo, FreeAddresses> look_up(const Endpoint& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(endpoint.port);
  const int error = ::getaddrinfo(endpoint.host.c_str(), service.c_str(), &hints, &found);
  if (error == 0) return std::unique_ptr<addrinfo, FreeAddresses>(found);
  fail(may_be_known_later(error) ? ErrorCode::kUnavailable : ErrorCode::kNotFound,
       "tcp: the address '", endpoint.host, "' cannot be looked up: ", ::gai_strerror(error));
}

FileDescriptor open_socket(const addrinfo& address) {
  return FileDescriptor(::socket(
      address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
}

/// Returns a listening socket; if it is not open, errno has the reason.
FileDescriptor try_to_listen(const addrinfo& address) {
  FileDescriptor socket = open_socket(address);
  if (!socket.is_open()) return socket;
  const int on = 1;  // a restarted server need not wait for old connections
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool listens = ::bind(socket.get(), address.ai_addr, address.ai_addrlen) == 0 &&
                       ::listen(socket.get(), 1024) == 0;
  if (listens) return socket;
  const int reason = errno;
  socket = FileDescriptor();
  errno = reason;
  return FileDescriptor();
}

/// Returns the socket's port. Requires: the socket is bound.
int port_of(const FileDescriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

void disable_nagle(const FileDescriptor& socket) {
  const int on = 1;
  (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/// Converts "@0001f" to the system's form: a zero byte, then the name without a terminator.
socklen_t local_address(const std::string& name, sockaddr_un& address) {
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, name.data(), length);
  address.sun_path[0] = '\0';
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
}

FileDescriptor open_local_socket() {
  return FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

/// Returns true for strings such as "10.0.0.300": digits and dots that are neither an address nor a
/// host name.
bool is_no_host(const std::string& host) {
  in_addr address{};
  return host.find_first_not_of("0123456789.") == host.npos &&
         ::inet_aton(host.c_str(), &address) == 0;
}

bool is_local_name(const std::string& text) {
  return text.size() > 1 && text.size() < 100 && text.front() == '@' &&
         text.find_first_not_of("0123456789abcdef", 1) == std::string::npos;
}

/// Returns true if the cause is this machine's configuration: it has no such address, address
/// family or route, or no free port.
bool lies_in_this_machine(int error) {
  return error == EADDRNOTAVAIL || error == EAFNOSUPPORT || error == EINVAL || error == EACCES ||
         error == ENETUNREACH;
}

bool is_connected_to_itself(const FileDescriptor& socket) {
  sockaddr_storage own{}, peer{};
  socklen_t own_length = sizeof(own), peer_length = sizeof(peer);
  return ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
         ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0 &&
         own_length == peer_length && std::memcmp(&own, &peer, own_length) == 0;
}

void note_failure(OpenedConnection& opened, int error) {
  opened.reason = std::strerror(error);
  opened.is_connection_refused = error == ECONNREFUSED;
  opened.is_hopeless = lies_in_this_machine(error);
  opened.socket = FileDescriptor();
}

}  // namespace

std::string Endpoint::to_string() const { return is_local() ? host : join_address(host, port); }

std::optional<Endpoint> parse_endpoint(const std::string& text) {
  if (is_local_name(text)) return Endpoint{text, 0};
  const auto parts = split_address(text);
  if (!parts || parts->host.empty()) return std::nullopt;
  Endpoint endpoint{parts->has_brackets ? canonical_ipv6(parts->host) : std::string(parts->host)};
  const char* const end = parts->port.data() + parts->port.size();
  const auto [rest, error] = std::from_chars(parts->port.data(), end, endpoint.port);
  const bool is_port =
      error == std::errc() && rest == end && endpoint.port > 0 && endpoint.port < 65536;
  const bool is_host = !endpoint.host.empty() && !is_no_host(endpoint.host) &&
                       !endpoint.is_local() &&  // rejects malformed local names
                       endpoint.host.find_first_of("[]") == std::string::npos;
  if (!is_port || !is_host) return std::nullopt;
  return endpoint;
}

std::optional<Endpoint> parse_listen_address(const std::string& text) {
  if (!text.ends_with(":0")) return parse_endpoint(text);
  auto endpoint = parse_endpoint(concat(text.substr(0, text.size() - 1), 1));
  if (endpoint) endpoint->port = 0;
  return endpoint;
}

Listener listen_at(const Endpoint& endpoint) {
  const auto addresses = look_up(endpoint, AI_PASSIVE);
  FileDescriptor socket = try_to_listen(*addresses);
  if (!socket.is_open()) {
    const int reason = errno;
    const bool is_taken = reason == EADDRINUSE;
    const std::string owner = is_taken ? owner_of_port(endpoint.port) : "";
    fail(ErrorCode::kUnavailable, "tcp: listening on ", endpoint.to_string(),
         " failed: ", std::strerror(reason), owner.empty() ? "" : concat(" by ", owner),
         is_taken ? "; end that process or try another port (0 selects a free one)"
                  : "; expected an address of this machine");
  }
  const int port = port_of(socket);
  return {std::move(socket), {endpoint.host, port}};
}

void check_can_listen(const std::string& where, const Endpoint& endpoint) {
  std::string reason;
  try {
    const auto addresses = look_up(endpoint, AI_PASSIVE);
    if (try_to_listen(*addresses).is_open() || !lies_in_this_machine(errno)) return;
    reason = std::strerror(errno);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) return;
    reason = error.message();
  }
  fail(ErrorCode::kInvalidArgument, where,
       ": expected an address of this machine that this process may listen on, got '",
       endpoint.to_string(), "': ", reason);
}

Listener listen_locally() {
  FileDescriptor socket = open_local_socket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // Binding without a name makes the system choose a free name.
  if (!socket.is_open() ||
      ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) != 0 ||
      ::listen(socket.get(), 1024) != 0) {
    fail(ErrorCode::kUnavailable, "shm: cannot create a local socket: ", std::strerror(errno));
  }
  socklen_t length = sizeof(address);
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  const std::size_t name_bytes = length - offsetof(sockaddr_un, sun_path);
  std::string name(address.sun_path, name_bytes);
  name.at(0) = '@';
  return {std::move(socket), {name, 0}};
}

FileDescriptor accept_from(const FileDescriptor& listener) {
  FileDescriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.is_open()) disable_nagle(socket);
  return socket;
}

void enable_keep_alive(const FileDescriptor& socket) {
  const auto set = [&](int level, int option, int value) {
    (void)::setsockopt(socket.get(), level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 2);   // s
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);  // s
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

FileDescriptor start_connecting(const Endpoint& endpoint) {
  if (endpoint.is_local()) {
    FileDescriptor socket = open_local_socket();
    sockaddr_un address{};
    const socklen_t length = local_address(endpoint.host, address);
    const bool connected =
        socket.is_open() &&
        ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) == 0;
    return connected ? std::move(socket) : FileDescriptor();
  }
  const auto addresses = look_up(endpoint, 0);
  FileDescriptor socket = open_socket(*addresses);
  if (!socket.is_open()) return socket;
  disable_nagle(socket);
  if (::connect(socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 &&
      errno != EINPROGRESS) {
    const int reason = errno;
    socket = FileDescriptor();
    errno = reason;
  }
  return socket;
}

int connect_result(const FileDescriptor& socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

bool is_only_later(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR || error == ENOBUFS;
}

ByteFlow read_now(const FileDescriptor& socket, std::span<std::byte> bytes, std::size_t& count) {
  count = 0;
  const ssize_t n = ::recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (n > 0) count = static_cast<std::size_t>(n);
  return n > 0 || (n < 0 && is_only_later(errno)) ? ByteFlow::kOpen : ByteFlow::kClosed;
}

ByteFlow write_now(const FileDescriptor& socket, std::span<const std::byte> bytes,
                   std::size_t& count) {
  count = 0;
  if (bytes.empty()) return ByteFlow::kOpen;
  const ssize_t n = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n > 0) count = static_cast<std::size_t>(n);
  return n >= 0 || is_only_later(errno) ? ByteFlow::kOpen : ByteFlow::kClosed;
}

bool send_whole(const FileDescriptor& socket, std::span<const std::byte> bytes) {
  std::size_t count = 0;
  return write_now(socket, bytes, count) == ByteFlow::kOpen && count == bytes.size();
}

bool send_byte(const FileDescriptor& socket, std::byte byte, const FileDescriptor& attached) {
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (attached.is_open()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = attached.get();
    std::memcpy(CMSG_DATA(rights), &number, sizeof(number));
  }
  return ::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

ByteFlow read_byte(const FileDescriptor& socket, std::size_t& count, FileDescriptor& attached) {
  std::byte byte{};
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  count = n > 0 ? 1 : 0;
  const cmsghdr* const first = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (first != nullptr && first->cmsg_type == SCM_RIGHTS) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(first), sizeof(number));
    attached = FileDescriptor(number);
  }
  return n > 0 || (n < 0 && is_only_later(errno)) ? ByteFlow::kOpen : ByteFlow::kClosed;
}

OpenedConnection begin_opening(const Endpoint& endpoint) {
  OpenedConnection opened;
  try {
    opened.socket = start_connecting(endpoint);
    if (!opened.socket.is_open()) note_failure(opened, errno);
  } catch (const Error& unknown_name) {
    opened.reason = unknown_name.message();
    opened.is_hopeless = unknown_name.code() == ErrorCode::kNotFound;
  }
  return opened;
}

void finish_opening(OpenedConnection& opened) {
  if (const int error = connect_result(opened.socket); error != 0) {
    note_failure(opened, error);
  } else if (is_connected_to_itself(opened.socket)) {
    note_failure(opened, ECONNREFUSED);
    opened.is_connection_refused = false;  // the next attempt may use another port
  }
}

OpenedConnection connect_until(const Endpoint& endpoint, TimePoint deadline) {
  OpenedConnection opened = begin_opening(endpoint);
  if (!opened.socket.is_open()) return opened;
  pollfd descriptor{opened.socket.get(), POLLOUT, 0};
  if (poll_until(std::span(&descriptor, 1), deadline) > 0) {
    finish_opening(opened);
  } else {
    opened.reason = "no answer";
    opened.socket = FileDescriptor();
  }
  return opened;
}

std::string address_of_peer(const FileDescriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  std::array<char, 64> text{};
  if (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, text.data(), text.size(),
                    nullptr, 0, NI_NUMERICHOST) != 0) {
    return "unknown";
  }
  return text.data();
}

PeerProcess peer_process(const FileDescriptor& socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return {};
  return {credentials.pid, credentials.uid == ::geteuid()};
}

double AddressLimit::left_in(const Bucket& bucket, TimePoint now) const {
  const double seconds = std::chrono::duration<double>(now - bucket.at).count();
  return std::min(most_, bucket.left + seconds * per_second_);
}

bool AddressLimit::allows(const std::string& address, TimePoint now) {
  if (buckets_.size() >= kMostAddresses && !buckets_.contains(address)) forget_idle(now);
  Bucket& bucket = buckets_.try_emplace(address, Bucket{most_, now}).first->second;
  bucket = {left_in(bucket, now), now};
  if (bucket.left < 1) return false;
  bucket.left -= 1;
  return true;
}

void AddressLimit::release(const std::string& address) {
  const auto found = buckets_.find(address);
  if (found != buckets_.end()) found->second.left = std::min(most_, found->second.left + 1);
}

void AddressLimit::forget_idle(TimePoint now) {
  std::erase_if(buckets_, [&](const auto& each) { return left_in(each.second, now) >= most_; });
  if (buckets_.size() < kMostAddresses) return;
  buckets_.erase(
      std::ranges::min_element(buckets_, {}, [](const auto& each) { return each.second.at; }));
}

RefusalLog::RefusalLog(std::string who) : who_(std::move(who)) {}

void RefusalLog::note(std::string_view reason, TimePoint now) {
  if (now < next_) {
    ++num_unlogged_;
    return;
  }
  next_ = deadline_after(now, durations::kSayAgainEvery);
  log_warning(concat(who_, ": refused a connection: ", reason,
                     num_unlogged_ > 0 ? concat(" (and ", num_unlogged_, " more)") : ""));
  num_unlogged_ = 0;
}

}  // namespace tutti::internal
