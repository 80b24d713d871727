// Network addresses as text: host and port, with IPv6 addresses in brackets.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tutti::internal {

/// Parts of an address, as views into the address.
struct AddressParts {
  std::string_view host;  // without brackets
  std::string_view port;  // not checked
  bool has_brackets = false;
};

/// Splits "host:port" at its first colon and "[::1]:port" after its bracket. Returns nullopt if
/// that colon is missing.
std::optional<AddressParts> split_address(std::string_view text);

/// Returns "host:port". Encloses an IPv6 address in brackets unless it already has them.
std::string join_address(std::string_view host, int port);

/// Returns the shortest form of an IPv6 address ("::1" for "0:0:0:0:0:0:0:1"), with its zone
/// ("%eth0") if it has one, or "" for any other text. `host` has no brackets.
std::string canonical_ipv6(std::string_view host);

}  // namespace tutti::internal
