// Writes the values of epochs as a table.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/csv_logger.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/file_size_limit.h"
#include "tutti/model/cut_file.h"

namespace tutti {
namespace {

/// The shortest text that reads back as this number.
std::string exact_text(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

std::vector<std::string> names_of_head(const std::string& line, const std::string& separator) {
  std::vector<std::string> names;
  std::size_t begin = 0;
  for (std::size_t end; (end = line.find(separator, begin)) != std::string::npos;
       begin = end + separator.size())
    names.push_back(line.substr(begin, end - begin));
  names.push_back(line.substr(begin));
  names.erase(names.begin());  // "epoch"
  return names;
}

}  // namespace

CsvLogger::CsvLogger(std::string path, CsvLoggerOptions options)
    : path_(std::move(path)), options_(std::move(options)) {
  if (options_.separator.empty())
    fail(ErrorCode::kInvalidArgument, "CsvLogger: expected a separator, got an empty text");
}

void CsvLogger::on_train_begin() {
  names_.clear();
  wrote_head_ = false;
  if (options_.mode == CsvMode::kReplace || !std::filesystem::exists(path_)) return;
  const std::string text = read_file(path_);
  if (text.empty()) return;
  names_ = names_of_head(text.substr(0, text.find('\n')), options_.separator);
  wrote_head_ = true;
}

void CsvLogger::write_line(const std::string& line, std::ios::openmode mode) {
  if (!is_chief()) return;  // the others keep count, for when they are to continue its state
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  std::error_code ignored;  // opening the file says what is wrong
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  const FileSizeLimitScope error_instead_of_signal;
  std::ofstream file(path_, mode);
  file << line << '\n';
  file.flush();
  if (!file) fail(ErrorCode::kUnavailable, "CsvLogger: cannot write ", path_);
}

void CsvLogger::on_epoch_end(std::int64_t epoch, const Logs& logs) {
  if (!wrote_head_) {
    for (const auto& [name, value] : logs) names_.push_back(name);
    std::ranges::sort(names_);
    std::string head = "epoch";
    for (const std::string& name : names_) head += options_.separator + name;
    write_line(head, options_.mode == CsvMode::kReplace ? std::ios::trunc : std::ios::app);
    wrote_head_ = true;
  }
  std::string line = concat(epoch);
  for (const std::string& name : names_)
    line += options_.separator + (logs.has(name) ? exact_text(logs.at(name)) : "NA");
  write_line(line, std::ios::app);
}

Json CsvLogger::save_state() const {
  Json names = Json::array();
  for (const std::string& name : names_) names.push_back(name);
  Json state = Json::object();
  state.set("names", std::move(names)).set("wrote_head", wrote_head_);
  state.set("length", internal::length_of_file(path_, is_chief()));
  return state;
}

void CsvLogger::restore_state(const Json& state) {
  names_.clear();
  for (const Json& name : state.at("names").as_array()) names_.push_back(name.as_string());
  wrote_head_ = state.at("wrote_head").as_bool();
  internal::cut_file(path_, state.at("length"), is_chief());
}

}  // namespace tutti
