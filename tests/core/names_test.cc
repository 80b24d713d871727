// Suggestions for unknown names, and the helpers for texts.
// SPDX-License-Identifier: Apache-2.0
#include "core/names.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace tutti::internal {
namespace names_test {

const std::vector<std::string> kNames = {"mirrored", "one_device", "sgd", "adam", "adamw"};

TEST(Choices, NameWhatWasMeant) {
  const std::string all = "mirrored, one_device, sgd, adam, adamw";
  EXPECT_EQ(choices(kNames, "mirorred"), all + "; did you mean 'mirrored'?");
  EXPECT_EQ(choices(kNames, "one-device"), all + "; did you mean 'one_device'?");
  EXPECT_EQ(choices(kNames, "mirored"), all + "; did you mean 'mirrored'?");
  EXPECT_EQ(choices(kNames, "miror"), all + "; did you mean 'mirrored'?");
  EXPECT_EQ(choices(kNames, "one_dev"), all + "; did you mean 'one_device'?");
  EXPECT_EQ(choices(kNames, "gsd"), all + "; did you mean 'sgd'?");
  EXPECT_EQ(choices(kNames, "admaw"), all + "; did you mean 'adamw'?");
}

TEST(Choices, WhatIsLikeNoneOfThemGetsTheListAlone) {
  const std::string all = "mirrored, one_device, sgd, adam, adamw";
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

}  // namespace names_test
}  // namespace tutti::internal
