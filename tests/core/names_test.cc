// What is said about a name that nothing has.
// SPDX-License-Identifier: Apache-2.0
#include "core/names.h"

#include <gtest/gtest.h>

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

}  // namespace names_test
}  // namespace tutti::internal
