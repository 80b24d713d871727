// Implements JSON paths and the errors that contain them.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/json_place.h"

#include "core/names.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kMaxShown = 60;

bool is_plain(std::string_view name) {
  return !name.empty() && name.size() <= kMaxShown && has_only_alphanumerics_and("_", name);
}

// Returns a shortened copy of a large value, so that dump() does not write all of it.
Json shortened(const Json& value) {
  if (value.is_string() && value.as_string().size() > 2 * kMaxShown) {
    return Json(value.as_string().substr(0, 2 * kMaxShown));
  }
  const std::size_t kFew = 8;
  if (value.is_array() && value.as_array().size() > kFew) {
    return Json(Json::Array(value.as_array().begin(), value.as_array().begin() + kFew));
  }
  if (value.is_object() && value.as_object().size() > kFew) {
    return Json(Json::Object(value.as_object().begin(), value.as_object().begin() + kFew));
  }
  return value;
}

}  // namespace

std::string shown(const Json& value) {
  return one_line(shortened(value).dump(), kMaxShown);  // JSON does not escape all line breaks
}

std::string member_path(std::string_view path, std::string_view name) {
  return is_plain(name) ? concat(path, ".", name) : concat(path, "[", shown(Json(name)), "]");
}

std::string element_path(std::string_view path, std::size_t index) {
  return concat(path, "[", index, "]");
}

void fail_place(std::string_view path, std::string_view expected, std::string_view got,
                std::string_view remedy) {
  tutti::fail(ErrorCode::kInvalidArgument, path, ": expected ", expected, ", got ", got,
              remedy.empty() ? "" : "; ", remedy);
}

Json parse_json(std::string_view text, std::string_view source, std::string_view expected) {
  constexpr std::size_t kMaxMessage = 300;
  try {
    return Json::parse(text, source);
  } catch (const Error& error) {
    // Truncate the message, because the parser quotes the last token, which may be long.
    const bool is_python = text.find("{'") != text.npos || text.find("['") != text.npos;
    tutti::fail(error.code(), one_line(error.message(), kMaxMessage), "; expected ", expected,
                " as JSON", is_python ? "; use double quotes, as json.dumps() writes them" : "");
  }
}

void JsonPlace::fail(std::string_view expected, std::string_view remedy) const {
  fail_place(path_, expected, shown(*value_), remedy);
}

const Json::Object& JsonPlace::object(std::string_view expected) const {
  if (!value_->is_object()) fail(expected);
  return value_->as_object();
}

const Json::Array& JsonPlace::array(std::string_view expected) const {
  if (!value_->is_array()) fail(expected);
  return value_->as_array();
}

const std::string& JsonPlace::text(std::string_view expected) const {
  if (!value_->is_string()) fail(expected);
  return value_->as_string();
}

int JsonPlace::index(int largest, std::string_view expected) const {
  std::optional<int> index;
  if (value_->is_string()) index = parse_index(value_->as_string(), largest);
  if (value_->is_number())
    index = parse_index(value_->dump(), largest);  // rejects "1.5", "-1", "1e9"
  if (!index) fail(expected);
  return *index;
}

std::optional<JsonPlace> JsonPlace::find(std::string_view name) const {
  const Json* const found = value_->find(name);
  if (found == nullptr) return std::nullopt;
  return JsonPlace(*found, member_path(path_, name));
}

std::optional<int> parse_index(std::string_view text, int largest) {
  const auto index = parse_number<int>(text);
  const bool padded = text.size() > 1 && (text[0] == '0' || text[0] == '-');
  return index && !padded && *index >= 0 && *index <= largest ? index : std::nullopt;
}

}  // namespace tutti::internal
