// "host:port" as cluster specifications write it: reading, and saying what is wrong with it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tutti {

/// Where a task is: a host name, an IPv4 address or an IPv6 address without its brackets, and a
/// port from 1 to 65535. A value.
struct HostPort {
  std::string host = {};
  int port = 0;

  /// Throws kInvalidArgument "<who>: expected ..., got ...".
  static HostPort parse(std::string_view text, std::string_view who = "HostPort::parse");
  /// With brackets around an IPv6 address: "[::1]:2222".
  std::string to_string() const;
  /// Whether only this machine can be meant: localhost, 127.0.0.0/8, ::1.
  bool is_loopback() const;
  bool operator==(const HostPort&) const = default;
};

namespace internal {
/// What is wrong with an address: what would have been right, and what to do.
struct AddressProblem {
  std::string expected, remedy;
};
/// Nothing for a good one.
std::optional<AddressProblem> find_address_problem(std::string_view text);
}  // namespace internal

}  // namespace tutti
