// Which connections send without pauses: those within a machine that the system would pace.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/local_pace.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "tests/cluster/rpc_kit.h"
#include "tutti/cluster/rpc/rpc_wires.h"
#include "tutti/cluster/tcp/socket.h"

namespace tutti {
namespace local_pace_test {

using internal::FileDescriptor;
using internal::send_without_pauses_if_local;
using internal::send_without_pauses_if_local_at;

std::string pace_of(const FileDescriptor& socket) {
  char name[16] = {};
  socklen_t length = sizeof(name) - 1;
  ::getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name, &length);
  return name;
}

/// Both ends of a connection, paced where this system can do so.
struct Connection {
  explicit Connection(const std::string& host) : listener(internal::listen_on(host)) {
    near = internal::start_connecting(listener.endpoint);
    while (!far.is_open()) far = internal::accept_from(listener.socket);
    for (const FileDescriptor* end : {&near, &far}) {
      ::setsockopt(end->get(), IPPROTO_TCP, TCP_CONGESTION, "bbr", 3);
    }
    before = pace_of(near);
    expected = before == "bbr" ? "reno" : before;
  }
  internal::Listener listener;
  FileDescriptor near, far;
  std::string before, expected;
};

TEST(LocalPace, AConnectionWithinTheMachineIsNotPaced) {
  const Connection connection("127.0.0.1");
  ASSERT_FALSE(connection.before.empty());
  send_without_pauses_if_local(connection.near.get());
  EXPECT_EQ(pace_of(connection.near), connection.expected);
  EXPECT_EQ(pace_of(connection.far), connection.before);  // each end for itself
}

TEST(LocalPace, OthersStayAsTheSystemChose) {
  const Connection elsewhere("127.0.0.2");  // whose other end is 127.0.0.1
  send_without_pauses_if_local(elsewhere.near.get());
  send_without_pauses_if_local_at(elsewhere.listener.endpoint.port);
  EXPECT_EQ(pace_of(elsewhere.near), elsewhere.before);
  EXPECT_EQ(pace_of(elsewhere.far), elsewhere.before);
  send_without_pauses_if_local(elsewhere.listener.socket.get());  // has no other end
  EXPECT_EQ(pace_of(elsewhere.listener.socket), pace_of(internal::listen_on("127.0.0.1").socket));
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const FileDescriptor reads(pipe[0]), writes(pipe[1]);
  for (const int no_socket : {-1, reads.get(), 1 << 20}) send_without_pauses_if_local(no_socket);
}

TEST(LocalPace, ByItsPortAConnectionIsFoundAmongTheProcesss) {
  const Connection wanted("127.0.0.1"), other("127.0.0.1");
  send_without_pauses_if_local_at(wanted.listener.endpoint.port);
  EXPECT_EQ(pace_of(wanted.near), wanted.expected);
  EXPECT_EQ(pace_of(wanted.far), wanted.expected);
  EXPECT_EQ(pace_of(other.near), other.before);
  EXPECT_EQ(pace_of(other.far), other.before);
}

/// IPv4 or IPv6, where the port is at the same place; 0: not connected.
int port_of(int socket, int (*name_of)(int, sockaddr*, socklen_t*)) {
  sockaddr_in6 name{};
  socklen_t length = sizeof(name);
  const bool has_name = name_of(socket, reinterpret_cast<sockaddr*>(&name), &length) == 0;
  const bool is_ip = name.sin6_family == AF_INET || name.sin6_family == AF_INET6;
  return has_name && is_ip ? ntohs(name.sin6_port) : 0;
}

/// What is connected at this port, of all that this process has open.
std::vector<std::string> paces_at(int port) {
  std::vector<std::string> paces;
  for (int number = 3; number < 1024; ++number) {
    const int there = port_of(number, ::getpeername);
    if (there == 0 || (there != port && port_of(number, ::getsockname) != port)) continue;
    paces.push_back(pace_of(FileDescriptor(::dup(number))));
  }
  return paces;
}

TEST(LocalPace, CallsBetweenTasksOfAMachineAreNotPaced) {
  const testing::HangWatchdog watchdog("local pace", std::chrono::seconds(60));
  for (const RpcWire wire : {RpcWire::kGrpc, RpcWire::kTcp}) {
    if (wire == RpcWire::kGrpc && !internal::rpc_has_grpc()) continue;  // a build without it
    rpc_suite::Handler handler;
    const auto server = RpcServer::start(rpc_suite::server_options(wire), handler);
    const auto client = RpcClient::connect(server->target(), rpc_suite::client_options());
    (void)client->call(rpc_suite::packet("here"), rpc_suite::late());
    const std::string target = server->target();
    const auto endpoint = internal::parse_endpoint(target.substr(target.find("://") + 3));
    ASSERT_TRUE(endpoint);
    const auto paces = paces_at(endpoint->port);
    EXPECT_EQ(paces.size(), 2u) << to_string(wire);
    for (const std::string& pace : paces) EXPECT_NE(pace, "bbr") << to_string(wire);
  }
}

}  // namespace local_pace_test
}  // namespace tutti
