// The system's calls behind listening at a port and handshakes on sockets.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/stream.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "tutti/core/error.h"
#include "tutti/core/process_probe.h"

namespace tutti::internal {
namespace {

/// Not open: errno says why.
FileDescriptor try_to_listen(const addrinfo& address) {
  FileDescriptor socket(::socket(
      address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
  if (!socket.is_open()) return socket;
  const int on = 1;  // a server that was started anew need not wait for old connections
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool listens = ::bind(socket.get(), address.ai_addr, address.ai_addrlen) == 0 &&
                       ::listen(socket.get(), 1024) == 0;
  if (listens) return socket;
  const int reason = errno;
  socket = FileDescriptor();
  errno = reason;
  return FileDescriptor();
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

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
    fail(ErrorCode::kUnavailable, "tcp: listening at ", endpoint.to_string(),
         " failed: ", std::strerror(reason), owner.empty() ? "" : concat(" by ", owner),
         is_taken ? "; end that process or try another port (0 takes a free one)"
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
       ": expected an address of this machine where it may listen, got '", endpoint.to_string(),
       "': ", reason);
}

ByteFlow read_now(const FileDescriptor& socket, std::span<std::byte> bytes, std::size_t& count) {
  count = 0;
  const ssize_t n = ::recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (n > 0) count = static_cast<std::size_t>(n);
  return n > 0 || (n < 0 && would_block()) ? ByteFlow::kOpen : ByteFlow::kClosed;
}

ByteFlow write_now(const FileDescriptor& socket, std::span<const std::byte> bytes,
                   std::size_t& count) {
  count = 0;
  if (bytes.empty()) return ByteFlow::kOpen;
  const ssize_t n = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n > 0) count = static_cast<std::size_t>(n);
  return n >= 0 || would_block() ? ByteFlow::kOpen : ByteFlow::kClosed;
}

ByteFlow read_now(const FileDescriptor& socket, std::span<iovec> places, std::size_t& count) {
  msghdr message{};
  message.msg_iov = places.data();
  message.msg_iovlen = places.size();
  count = 0;
  const ssize_t n = ::recvmsg(socket.get(), &message, MSG_DONTWAIT);
  if (n > 0) count = static_cast<std::size_t>(n);
  return n > 0 || (n < 0 && would_block()) ? ByteFlow::kOpen : ByteFlow::kClosed;
}

ByteFlow write_now(const FileDescriptor& socket, std::span<const iovec> places,
                   std::size_t& count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(places.data());  // which is not changed
  message.msg_iovlen = places.size();
  count = 0;
  const ssize_t n = ::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n > 0) count = static_cast<std::size_t>(n);
  return n >= 0 || would_block() ? ByteFlow::kOpen : ByteFlow::kClosed;
}

OpenedConnection connect_until(const Endpoint& endpoint, TimePoint deadline) {
  OpenedConnection opened;
  const auto give_up = [&](int error) {
    opened.reason = std::strerror(error);
    opened.is_nobody_there = error == ECONNREFUSED;
    opened.is_hopeless = lies_in_this_machine(error);
    opened.socket = FileDescriptor();
  };
  try {
    opened.socket = start_connecting(endpoint);
  } catch (const Error& unknown_name) {
    opened.reason = unknown_name.message();
    opened.is_hopeless = unknown_name.code() == ErrorCode::kNotFound;
    return opened;
  }
  if (!opened.socket.is_open()) {
    give_up(errno);
    return opened;
  }
  pollfd descriptor{opened.socket.get(), POLLOUT, 0};
  if (poll_until(std::span(&descriptor, 1), deadline) <= 0) {
    opened.reason = "no answer";
    opened.socket = FileDescriptor();
  } else if (const int error = connect_result(opened.socket); error != 0) {
    give_up(error);
  } else if (is_connected_to_itself(opened.socket)) {
    give_up(ECONNREFUSED);
    opened.is_nobody_there = false;  // the next attempt may get another port
  }
  return opened;
}

void end_connection(const FileDescriptor& socket) { (void)::shutdown(socket.get(), SHUT_RDWR); }

bool is_connected_to_itself(const FileDescriptor& socket) {
  sockaddr_storage own{}, peer{};
  socklen_t own_length = sizeof(own), peer_length = sizeof(peer);
  return ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
         ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0 &&
         own_length == peer_length && std::memcmp(&own, &peer, own_length) == 0;
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

}  // namespace tutti::internal
