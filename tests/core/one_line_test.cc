// Text of others in messages: one line of valid UTF-8, whatever it was.
// SPDX-License-Identifier: Apache-2.0
#include "core/names.h"

#include <gtest/gtest.h>

#include "tutti/core/json.h"

namespace tutti {
namespace one_line_test {

TEST(OneLine, LeavesPlainTextAndLettersOfAllSizes) {
  for (const char* const text :
       {"", "worker:2222", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x8e\xb5"}) {
    EXPECT_EQ(one_line(text), text);
  }
}

TEST(OneLine, ShowsWhatBreaksLinesAsOneQuestionMark) {
  EXPECT_EQ(one_line("a\nb\rc\td"), "a?b?c?d");
  EXPECT_EQ(one_line(std::string("\0\x1b[31m\x7f", 7)), "??[31m?");
  EXPECT_EQ(one_line("a\xc2\x85z"), "a?z");
  EXPECT_EQ(one_line("a\xe2\x80\xa8z\xe2\x80\xa9"), "a?z?");
}

TEST(OneLine, ShowsBytesThatAreNoUtf8AsQuestionMarks) {
  EXPECT_EQ(one_line("\xff"
                     "a\x80"),
            "?a?");
  EXPECT_EQ(one_line("\xe2\x80"), "??");            // cut
  EXPECT_EQ(one_line("\xc0\xaf"), "??");            // '/' written too long
  EXPECT_EQ(one_line("\xed\xa0\x80"), "???");       // half a pair of UTF-16
  EXPECT_EQ(one_line("\xf4\x90\x80\x80"), "????");  // beyond the last character
}

TEST(OneLine, IsCutBetweenCharacters) {
  EXPECT_EQ(one_line("abcdef", 6), "abcdef");
  EXPECT_EQ(one_line("abcdefg", 6), "abcdef...");
  EXPECT_EQ(one_line("abcd\xe2\x82\xac", 6), "abcd...");
  EXPECT_EQ(one_line(std::string(100'000, 'x')).size(), 63U);
}

// JSON writes invalid UTF-8 otherwise: a text of all pairs of bytes comes back as it was.
TEST(OneLine, IsValidUtf8ForEveryPairOfBytes) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const char bytes[] = {static_cast<char>(first), static_cast<char>(second), '\x80'};
      const std::string line = one_line({bytes, 3});
      EXPECT_EQ(Json::parse(Json(line).dump()).as_string(), line) << first << ' ' << second;
    }
  }
}

}  // namespace one_line_test
}  // namespace tutti
