// Tests suggestions for unknown names, helpers for texts and lists, and addresses as text.
// SPDX-License-Identifier: Apache-2.0
#include "core/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "core/network_address.h"
#include "tutti/core/json.h"

namespace tutti::internal::names_test {

const std::vector<std::string> kNames = {"mirrored", "one_device", "sgd", "adam", "adamw"};

TEST(Choices, NameWhatWasMeantOrListThemAlone) {
  const std::string all = "mirrored, one_device, sgd, adam, adamw";
  EXPECT_EQ(choices(kNames, "mirorred"), all + "; did you mean 'mirrored'?");
  EXPECT_EQ(choices(kNames, "one-device"), all + "; did you mean 'one_device'?");
  EXPECT_EQ(choices(kNames, "mirored"), all + "; did you mean 'mirrored'?");
  EXPECT_EQ(choices(kNames, "miror"), all + "; did you mean 'mirrored'?");
  EXPECT_EQ(choices(kNames, "one_dev"), all + "; did you mean 'one_device'?");
  EXPECT_EQ(choices(kNames, "gsd"), all + "; did you mean 'sgd'?");
  EXPECT_EQ(choices(kNames, "admaw"), all + "; did you mean 'adamw'?");
  for (const char* name : {"", "x", "ftrl", "central_storage", "lsd1"}) {
    EXPECT_EQ(choices(kNames, name), all) << name;
  }
  EXPECT_EQ(choices({}, "adam"), "");
}

TEST(TextHelpers, HaveTheseValues) {
  for (const auto& [a, b, expected] : {std::tuple{"", "", 0u},
                                       {"", "abc", 3u},
                                       {"abc", "", 3u},
                                       {"kitten", "sitting", 3u},
                                       {"adam", "adma", 1u},  // swapped
                                       {"adam", "Adam", 1u},
                                       {"adam", "adamw", 1u}}) {
    EXPECT_EQ(edit_distance(a, b), expected) << a << " " << b;
  }
  for (const auto& [text, expected] : {std::pair{"", ""},
                                       {"AUTO", "auto"},
                                       {"@AZ[az`09_", "@az[az`09_"},
                                       {"\xC3\x84", "\xC3\x84"}}) {
    EXPECT_EQ(lower_case(text), expected);
  }
  for (const auto& [others, text, expected] : {std::tuple{"", "", true},
                                               {"", "azAZ09", true},
                                               {"_-", "a_b-c", true},
                                               {"_", "a_b-c", false},
                                               {"", "a b", false},
                                               {"", "\xC3\xA4", false},
                                               {"", "@", false},
                                               {"", "[", false},
                                               {"", "`", false},
                                               {"", "{", false},
                                               {"", "/", false},
                                               {"", ":", false}}) {
    EXPECT_EQ(has_only_alphanumerics_and(others, text), expected) << text;
  }
  const std::vector<std::byte> bytes = {std::byte{0x00}, std::byte{0x0A}, std::byte{0x7F},
                                        std::byte{0xF0}, std::byte{0xFF}};
  EXPECT_EQ(hex_of(bytes), "000a7ff0ff");
  EXPECT_EQ(hex_of({}), "");
}

TEST(TextHelpers, ParseNumberTakesTheWholeText) {
  for (const auto& [text, expected] : {std::pair<const char*, std::optional<int>>{"0", 0},
                                       {"-12", -12},
                                       {"2147483647", std::numeric_limits<int>::max()},
                                       {"2147483648", std::nullopt},
                                       {"", std::nullopt},
                                       {"12x", std::nullopt},
                                       {"12 ", std::nullopt},
                                       {" 12", std::nullopt},
                                       {"+12", std::nullopt},
                                       {"1.5", std::nullopt},
                                       {"0x1", std::nullopt}}) {
    EXPECT_EQ(parse_number<int>(text), expected) << text;
  }
  EXPECT_EQ(parse_number<std::uint64_t>("18446744073709551615"), ~std::uint64_t{0});
  EXPECT_EQ(parse_number<std::uint64_t>("-1"), std::nullopt);
  EXPECT_EQ(parse_number<double>("1.5e2"), 150.0);
}

TEST(SplitText, PartsStandBetweenSeparators) {
  using ::testing::ElementsAre;
  EXPECT_THAT(split_text(""), ElementsAre());
  EXPECT_THAT(split_text("a:1"), ElementsAre("a:1"));
  EXPECT_THAT(split_text("a:1,b:2"), ElementsAre("a:1", "b:2"));
  EXPECT_THAT(split_text(",a,,b,"), ElementsAre("", "a", "", "b"));
  EXPECT_THAT(split_text("/bin:/usr/bin", ':'), ElementsAre("/bin", "/usr/bin"));
}

TEST(OneLine, LeavesPlainTextAndShowsWhatBreaksLinesAsOneQuestionMark) {
  for (const char* const text :
       {"", "worker:2222", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x8e\xb5"}) {
    EXPECT_EQ(one_line(text), text);
  }
  EXPECT_EQ(one_line("a\nb\rc\td"), "a?b?c?d");
  EXPECT_EQ(one_line(std::string("\0\x1b[31m\x7f", 7)), "??[31m?");
  EXPECT_EQ(one_line("a\xc2\x85z"), "a?z");
  EXPECT_EQ(one_line("a\xe2\x80\xa8z\xe2\x80\xa9"), "a?z?");
}

TEST(OneLine, ShowsBytesThatAreNoUtf8AsQuestionMarksAndIsCutBetweenOthers) {
  EXPECT_EQ(one_line("\xff"
                     "a\x80"),
            "?a?");
  EXPECT_EQ(one_line("\xe2\x80"), "??");            // truncated
  EXPECT_EQ(one_line("\xc0\xaf"), "??");            // overlong encoding of '/'
  EXPECT_EQ(one_line("\xed\xa0\x80"), "???");       // half of a UTF-16 surrogate pair
  EXPECT_EQ(one_line("\xf4\x90\x80\x80"), "????");  // beyond the last code point
  EXPECT_EQ(one_line("abcdef", 6), "abcdef");
  EXPECT_EQ(one_line("abcdefg", 6), "abcdef...");
  EXPECT_EQ(one_line("abcd\xe2\x82\xac", 6), "abcd...");
  EXPECT_EQ(one_line(std::string(100'000, 'x')).size(), 63U);
}

// JSON replaces invalid UTF-8, so all pairs of bytes must survive a round trip.
TEST(OneLine, IsValidUtf8ForEveryPairOfBytes) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const char bytes[] = {static_cast<char>(first), static_cast<char>(second), '\x80'};
      const std::string line = one_line({bytes, 3});
      EXPECT_EQ(Json::parse(Json(line).dump()).as_string(), line) << first << ' ' << second;
    }
  }
}

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
  EXPECT_EQ(parts_of("::1:80"), " :1:80");  // ambiguous, because no port is ":1:80"
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

// Texts from RFC 5952, section 4.
TEST(NetworkAddress, HasOneTextPerIpv6Address) {
  EXPECT_EQ(canonical_ipv6("0:0:0:0:0:0:0:1"), "::1");
  EXPECT_EQ(canonical_ipv6("2001:0DB8::0001"), "2001:db8::1");
  EXPECT_EQ(canonical_ipv6("::0"), "::");
  EXPECT_EQ(canonical_ipv6("FE80:0::1%eth0"), "fe80::1%eth0");
  for (const char* text : {"", "host", "127.0.0.1", "[::1]", "::zz", "1:2", "::1%", "::1:80:"}) {
    EXPECT_EQ(canonical_ipv6(text), "") << text;
  }
}

}  // namespace tutti::internal::names_test
