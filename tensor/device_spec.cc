// Reading, merging and printing of device specifications.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/device_spec.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/one_line.h"

namespace tutti {
namespace {

[[noreturn]] void fail_part(std::string_view text, std::string_view part,
                            std::string_view reason = "no such part") {
  fail(ErrorCode::kInvalidArgument, "DeviceSpec::parse: cannot read '", one_line(part), "' in '",
       one_line(text), "': ", reason,
       "; expected parts of /job:<name>/replica:<n>/task:<n>/device:<CPU|GPU>:<n>");
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::vector<std::string_view> split_text(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// Reads one specification; `part` is the piece between two slashes under way, for messages.
class SpecParser {
 public:
  explicit SpecParser(std::string_view text) : text_(text) {}

  DeviceSpec parse() {
    if (text_.empty() || text_ == "/") return spec_;
    if (text_.front() != '/') fail_part(text_, text_, "no '/' in front");
    for (std::string_view part : split_text(text_.substr(1), '/')) parse_part(part);
    return spec_;
  }

 private:
  void parse_part(std::string_view part) {
    part_ = part;
    std::vector<std::string_view> words = split_text(part, ':');
    const std::string key = lower(words[0]);
    if (key == "cpu" || key == "gpu") {
      words.insert(words.begin(), "device");
    } else if (key != "device" && words.size() != 2) {
      fail_part(text_, part);
    }
    if (key == "job") {
      if (words[1].empty()) fail_part(text_, part, "no name");
      set(spec_.job, std::optional<std::string>(words[1]));
    } else if (key == "replica") {
      set(spec_.replica, number(words[1]));
    } else if (key == "task") {
      set(spec_.task, number(words[1]));
    } else if (words[0] == "device" || key == "device") {
      parse_device(words);
    } else {
      fail_part(text_, part);
    }
  }

  /// words: "device", type, index.
  void parse_device(const std::vector<std::string_view>& words) {
    if (words.size() < 2 || words.size() > 3) fail_part(text_, part_);
    const std::string type = lower(words[1]);
    if (type != "cpu" && type != "gpu") fail_part(text_, part_, "the type is neither CPU nor GPU");
    set(spec_.type, std::optional(type == "cpu" ? DeviceType::kCpu : DeviceType::kGpu));
    if (words.size() == 3) set(spec_.index, number(words[2]));
  }

  /// A number, or nothing for "*", which is what a missing part means too.
  std::optional<int> number(std::string_view word) const {
    if (word == "*") return std::nullopt;
    int value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || value < 0) {
      fail_part(text_, part_, "no whole number of at least 0, and no *");
    }
    return value;
  }

  template <class T>
  void set(std::optional<T>& member, std::optional<T> value) const {
    if (member) fail_part(text_, part_, "stands twice");
    member = std::move(value);
  }

  std::string_view text_;
  std::string_view part_;
  DeviceSpec spec_;
};

}  // namespace

DeviceSpec DeviceSpec::parse(std::string_view text) { return SpecParser(text).parse(); }

DeviceSpec DeviceSpec::merged_with(const DeviceSpec& inner) const {
  DeviceSpec merged = *this;
  if (inner.job) merged.job = inner.job;
  if (inner.replica) merged.replica = inner.replica;
  if (inner.task) merged.task = inner.task;
  if (inner.type) merged.type = inner.type;
  if (inner.index) merged.index = inner.index;
  return merged;
}

std::string DeviceSpec::to_string() const {
  std::string text;
  if (job) text += "/job:" + *job;
  if (replica) text += concat("/replica:", *replica);
  if (task) text += concat("/task:", *task);
  if (!type) return text;  // an index alone names nothing
  text += concat("/device:", *type == DeviceType::kGpu ? "GPU" : "CPU", ":");
  return text + (index ? concat(*index) : "*");
}

Device resolve(const DeviceSpec& spec) {
  const Device device{spec.type.value_or(DeviceType::kCpu), spec.index.value_or(0)};
  require_available(device);
  return device;
}

}  // namespace tutti
