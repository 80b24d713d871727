// Tests JSON: reading, refusing, writing, and round trips.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/names.h"
#include "tests/support/thrown.h"
#include "tutti/core/random.h"

namespace tutti::json_test {

std::string json_error(std::string_view text) {
  try {
    Json::parse(text, "config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
  return "accepted";
}

TEST(JsonParse, ReadsEveryKindOfValue) {
  const Json json = Json::parse(
      R"( {"z": null, "t": true, "i": -42, "d": 2.5e3, "s": "a\u00e9\n\ud83d\ude00", "a": [1, []], "o": {}} )");
  EXPECT_TRUE(json.at("z").is_null());
  EXPECT_TRUE(json.at("t").as_bool());
  EXPECT_EQ(json.at("i").as_int(), -42);
  EXPECT_EQ(json.at("d").as_double(), 2500.0);
  EXPECT_EQ(json.at("d").as_int(), 2500);
  EXPECT_EQ(json.at("i").as_double(), -42.0);
  EXPECT_EQ(json.at("s").as_string(), "a\xC3\xA9\n\xF0\x9F\x98\x80");
  EXPECT_EQ(json.at("a").as_array().size(), 2u);
  EXPECT_TRUE(json.at("o").as_object().empty());
  EXPECT_EQ(json.as_object().front().first, "z");  // order is kept
  EXPECT_EQ(json.as_object().back().first, "o");
}

TEST(JsonParse, ErrorsNameSourceLineAndColumn) {
  EXPECT_NE(json_error("{\n  \"a\": 1,\n  \"b\" 2\n}")
                .find("config.json: not valid JSON at line 3, column 7"),
            std::string::npos)
      << json_error("{\n  \"a\": 1,\n  \"b\" 2\n}");
  EXPECT_NE(json_error("[1, 2").find("line 1, column 6"), std::string::npos) << json_error("[1, 2");
}

TEST(JsonParse, RefusesMalformedInput) {
  for (const std::string& text : split_text(
           R"(| |{|}|[|[1,]|{"a":}|{a:1}|{"a":1,}|nul|truee|01|1.|.5|+1|1e|-|'a'|"|"\x"|"\u12")"
           R"(|"\ud800"|[1] 2|1 1|NaN|Infinity|1e999|{"a":1,"a":2})",
           '|')) {
    EXPECT_NE(json_error(text), "accepted") << text;
  }
  for (const char* text : {"\"\n\"", "\"\x01\"", "\"\xFF\"", "\"\xC0\x80\"", "// c\n1"}) {
    EXPECT_NE(json_error(text), "accepted") << text;
  }
  EXPECT_NE(json_error("{\"a\":1,\"a\":2}").find("'a' stands twice"), std::string::npos);
  EXPECT_EQ(json_error(R"({"x": [0, {"b": {"a": 1, "a": 2}}]})"),
            "config.json.x[1].b: member 'a' stands twice in an object; expected each once");
  EXPECT_EQ(json_error(R"({"x\ny": {"a\nb": 1, "a\nb": 2}})"),
            R"(config.json.x\ny: member 'a\nb' stands twice in an object; expected each once)");
  // The reader stops in the middle of a character.
  EXPECT_NE(json_error("{\"a\"\xef\xbb\xbf:1}").find("last read: '\"a\"?'"), std::string::npos);
}

TEST(JsonParse, RefusesZeroBytesWhereverTheyStand) {
  using namespace std::string_view_literals;
  EXPECT_EQ(json_error("{}\0"sv), "config.json: not valid JSON at line 1, column 3: a zero byte");
  EXPECT_EQ(json_error("[1]\n\0[2]"sv),
            "config.json: not valid JSON at line 2, column 1: a zero byte");
  EXPECT_NE(json_error("\0"sv), "accepted");
  EXPECT_NE(json_error("[\"a\0b\"]"sv), "accepted");
}

TEST(JsonParse, ErrorsStayShortAndTheDepthIsLimited) {
  const std::string error = json_error(concat("{\"", std::string(100'000, 'a'), "\n"));
  EXPECT_LT(error.size(), 500u);
  EXPECT_NE(error.find("control character"), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos);
  const std::string open(256, '['), close(256, ']');
  EXPECT_EQ(Json::parse(open + close).as_array().size(), 1u);
  const std::string message = json_error("[\"[[\\\"\", \n" + open + close + "]");
  EXPECT_NE(message.find("line 2, column 256: nested more than 256"), std::string::npos) << message;
  EXPECT_NE(json_error(std::string(1'000'000, '[')).find("nested more"), std::string::npos);
}

TEST(JsonParse, KeepsBigNumbersAsWellAsItCan) {
  EXPECT_EQ(Json::parse("9223372036854775807").as_int(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(Json::parse("-9223372036854775808").as_int(), std::numeric_limits<std::int64_t>::min());
  const Json beyond = Json::parse("9223372036854775808");
  EXPECT_EQ(beyond.as_double(), 0x1p63);
  EXPECT_THROW(beyond.as_int(), Error);
  EXPECT_THROW(Json(std::uint64_t{1} << 63), Error);
  EXPECT_EQ(Json(std::uint64_t{1} << 62).as_int(), std::int64_t{1} << 62);
}

TEST(JsonValue, WrongKindsAreNamed) {
  EXPECT_EQ(thrown::error_of([] { (void)Json("text").as_int(); }),
            "Json: wrong kind of value; expected a whole number, got a text");
  EXPECT_THROW(Json(1.5).as_int(), Error);
  EXPECT_THROW(Json(1).as_bool(), Error);
  EXPECT_THROW(Json(1).find("a"), Error);
  EXPECT_THROW(Json::object().at("a"), Error);
  EXPECT_THROW(Json::array().set("a", 1), Error);
  EXPECT_THROW(Json::object().push_back(1), Error);
  EXPECT_EQ(Json::object().find("a"), nullptr);
}

TEST(JsonDump, WritesCompactAndIndented) {
  Json json = Json::object();
  json.set("b", 1)
      .set("a", Json::Array{1.0, "x", nullptr, false})
      .set("b", 2)
      .set("e", Json::object());
  EXPECT_EQ(json.dump(), R"({"b":2,"a":[1.0,"x",null,false],"e":{}})");
  EXPECT_EQ(json.dump(2),
            "{\n  \"b\": 2,\n  \"a\": [\n    1.0,\n    \"x\",\n    null,\n    false\n  ],\n  "
            "\"e\": {}\n}");
}

TEST(JsonDump, EscapesWhatJsonForbids) {
  EXPECT_EQ(Json("\"\\\n\t\x01/").dump(), R"("\"\\\n\t\u0001/")");
  EXPECT_EQ(Json("\xC3\xA9").dump(), "\"\xC3\xA9\"");
  EXPECT_EQ(Json("a\xFF\xC3").dump(), "\"a\xEF\xBF\xBD\xEF\xBF\xBD\"");
  EXPECT_EQ(Json("\xED\xA0\x80").dump(),
            "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");  // a surrogate
  EXPECT_EQ(Json(std::nan("")).dump(), "null");
  EXPECT_EQ(Json(-std::numeric_limits<double>::infinity()).dump(), "null");
}

TEST(JsonDump, DoublesReadBackToTheSameBits) {
  const RandomStream stream({.seed = 1, .purpose = kUserPurpose});
  int finite = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t bits = stream.bits64(i);
    double value;
    std::memcpy(&value, &bits, sizeof(value));
    if (!std::isfinite(value)) continue;
    ++finite;
    const Json json(value);
    const double back = Json::parse(json.dump()).as_double();
    ASSERT_EQ(std::memcmp(&back, &value, sizeof(value)), 0) << json.dump();
    ASSERT_EQ(Json::parse(json.dump()), json);  // remains a double
  }
  EXPECT_GT(finite, 19'000);
  EXPECT_EQ(Json(-0.0).dump(), "-0.0");
  EXPECT_EQ(Json(0.1).dump(), "0.1");
}

TEST(JsonDump, EveryTextThatParsesIsWrittenTheSame) {
  const std::string text =
      R"({"a":[1,-2,3.5,1e-09,"\u0000",{"b":[[],{}]}],"c":null,"d":[true,false]})";
  EXPECT_EQ(Json::parse(text).dump(), text);
  EXPECT_EQ(Json::parse(Json::parse(text).dump(3)), Json::parse(text));
}

}  // namespace tutti::json_test
