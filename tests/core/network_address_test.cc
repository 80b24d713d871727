// Addresses as text, with names, IPv4 and IPv6.
// SPDX-License-Identifier: Apache-2.0
#include "core/network_address.h"

#include <gtest/gtest.h>

namespace tutti::internal {
namespace {

std::string parts_of(std::string_view text) {
  const auto parts = split_address(text);
  if (!parts) return "none";
  return std::string(parts->host) + " " + std::string(parts->port) +
         (parts->has_brackets ? " in brackets" : "");
}

TEST(NetworkAddress, IsSplitAtTheColonBeforeThePort) {
  EXPECT_EQ(parts_of("host:80"), "host 80");
  EXPECT_EQ(parts_of("127.0.0.1:4711"), "127.0.0.1 4711");
  EXPECT_EQ(parts_of("[::1]:4711"), "::1 4711 in brackets");
  EXPECT_EQ(parts_of("[fe80::1%eth0]:1"), "fe80::1%eth0 1 in brackets");
  EXPECT_EQ(parts_of(":80"), " 80");
  EXPECT_EQ(parts_of("host:"), "host ");
  EXPECT_EQ(parts_of("::1:80"), " :1:80");  // ambiguous: no port is ":1:80"
  for (const char* text : {"", "host", "[::1]", "[::1:80", "[::1]80", "[", "[]"}) {
    EXPECT_EQ(parts_of(text), "none") << text;
  }
}

TEST(NetworkAddress, IsJoinedWithBracketsAroundIpv6) {
  EXPECT_EQ(join_address("host", 80), "host:80");
  EXPECT_EQ(join_address("10.0.0.7", 80), "10.0.0.7:80");
  EXPECT_EQ(join_address("::1", 80), "[::1]:80");
  EXPECT_EQ(join_address("[::1]", 80), "[::1]:80");
}

// The texts are those of RFC 5952, section 4.
TEST(NetworkAddress, HasOneTextPerIpv6Address) {
  EXPECT_EQ(canonical_ipv6("0:0:0:0:0:0:0:1"), "::1");
  EXPECT_EQ(canonical_ipv6("2001:0DB8::0001"), "2001:db8::1");
  EXPECT_EQ(canonical_ipv6("::0"), "::");
  EXPECT_EQ(canonical_ipv6("FE80:0::1%eth0"), "fe80::1%eth0");
  for (const char* text : {"", "host", "127.0.0.1", "[::1]", "::zz", "1:2", "::1%", "::1:80:"}) {
    EXPECT_EQ(canonical_ipv6(text), "") << text;
  }
}

}  // namespace
}  // namespace tutti::internal
