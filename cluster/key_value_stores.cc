// Values by key: as files, written by renaming; as two messages each, lengths and text.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/key_value_stores.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <system_error>
#include <utility>

#include "core/file.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

// Of this process; with its number a name that no other writer uses.
int next_temporary_number() {
  static std::atomic<int> number{0};
  return number.fetch_add(1);
}

}  // namespace

FileKeyValueStore::FileKeyValueStore(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (std::filesystem::is_directory(folder_)) return;
  fail(ErrorCode::kUnavailable, name(), ": is no folder and cannot be made one: ", error.message());
}

std::string FileKeyValueStore::name() const { return concat("file store '", folder_, "'"); }

std::string FileKeyValueStore::path_of(std::string_view key) const {
  internal::check_store_key(name(), key);
  // '~' is no character of keys, so no two keys share a file; the front keeps "." and ".." away.
  std::string file = "key=";
  file += key;
  std::ranges::replace(file, '/', '~');
  return folder_ + "/" + file;
}

void FileKeyValueStore::set(std::string_view key, std::string_view value) {
  const std::string path = path_of(key);
  internal::check_store_value(name(), key, value);
  const std::string temporary = concat(folder_, "/new=", ::getpid(), "-", next_temporary_number());
  const FileSizeLimitScope error_instead_of_signal;
  std::ofstream file(temporary, std::ios::binary);
  file.write(value.data(), static_cast<std::streamsize>(value.size()));
  file.close();
  const char* const action = file ? "renaming" : "writing";
  if (file && std::rename(temporary.c_str(), path.c_str()) == 0) return;
  const int reason = errno;
  std::remove(temporary.c_str());
  fail(ErrorCode::kUnavailable, name(), ": ", action, " the value of '", key,
       "' failed: ", std::strerror(reason));
}

std::optional<std::string> FileKeyValueStore::get(std::string_view key) {
  const std::string path = path_of(key);
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    if (errno == ENOENT) return std::nullopt;
    fail(ErrorCode::kUnavailable, name(), ": reading the value of '", key,
         "' failed: ", std::strerror(errno));
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string FileKeyValueStore::wait(std::string_view key, TimePoint deadline) {
  Clock& clock = Clock::system();
  Duration pause = durations::kStorePause;
  for (;;) {
    if (std::optional<std::string> value = get(key)) return *std::move(value);
    const TimePoint now = clock.now();
    if (now >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, name(), ": nobody has set the key '", key,
           "' before the deadline");
    }
    clock.sleep_until(std::min(deadline, deadline_after(now, pause)));
    pause = std::min<Duration>(2 * pause, std::chrono::milliseconds(50));
  }
}

// Each value is two messages to each other rank: lengths, and text.

namespace {

// Beside those of communicators on the same transport.
constexpr std::uint64_t kLengthsTag = ~std::uint64_t{0} - 16;
constexpr std::uint64_t kTextTag = kLengthsTag - 1;
constexpr std::uint64_t kLongestText = std::uint64_t{2} << 20;
constexpr std::string_view kName = "message store";

/// Whether the work has ended, well or because its peer is gone.
bool is_over(Work& work) {
  try {
    return work.test();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;
    return true;
  }
}

}  // namespace

MessageKeyValueStore::MessageKeyValueStore(std::shared_ptr<Transport> transport)
    : transport_(std::move(transport)) {
  MutexLock lock(mutex_);
  incoming_.resize(static_cast<std::size_t>(transport_->size()));
  for (int peer = 0; peer < transport_->size(); ++peer) {
    if (peer != transport_->rank()) {
      expect_lengths(peer, incoming_[static_cast<std::size_t>(peer)]);
    }
  }
}

MessageKeyValueStore::~MessageKeyValueStore() = default;

void MessageKeyValueStore::expect_lengths(int peer, Incoming& incoming) {
  incoming.is_text = false;
  incoming.work =
      transport_->recv(peer, kLengthsTag, {}, std::as_writable_bytes(std::span(incoming.lengths)));
}

void MessageKeyValueStore::set(std::string_view key, std::string_view value) {
  internal::check_store_key(kName, key);
  internal::check_store_value(kName, key, value);
  MutexLock lock(mutex_);
  values_.insert_or_assign(std::string(key), std::string(value));
  Outgoing& message = outgoing_.emplace_back();
  message.lengths = {key.size(), value.size()};
  message.text = std::string(key) + std::string(value);
  const auto text = std::as_bytes(std::span(message.text.data(), message.text.size()));
  for (int peer = 0; peer < transport_->size(); ++peer) {
    if (peer == transport_->rank()) continue;
    message.works.push_back(
        transport_->send(peer, kLengthsTag, {}, std::as_bytes(std::span(message.lengths))));
    message.works.push_back(transport_->send(peer, kTextTag, {}, text));
  }
  look();
}

std::optional<std::string> MessageKeyValueStore::get(std::string_view key) {
  internal::check_store_key(kName, key);
  MutexLock lock(mutex_);
  look();
  const auto found = values_.find(key);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

std::string MessageKeyValueStore::wait(std::string_view key, TimePoint deadline) {
  Clock& clock = Clock::system();
  for (;;) {
    if (std::optional<std::string> value = get(key)) return *std::move(value);
    if (clock.now() >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, kName, " of rank ", transport_->rank(), " of ",
           transport_->size(), " (", transport_->name(), "): no rank has set '", key,
           "' before the deadline");
    }
    clock.sleep_for(durations::kStorePause);
  }
}

void MessageKeyValueStore::look() {
  for (std::size_t r = 0; r < incoming_.size(); ++r) {
    while (incoming_[r].work && take(static_cast<int>(r), incoming_[r])) {
    }
  }
  for (Outgoing& message : outgoing_) {
    std::erase_if(message.works, [](const auto& work) { return is_over(*work); });
  }
  std::erase_if(outgoing_, [](const Outgoing& message) { return message.works.empty(); });
}

/// Whether a message came, and the next one is waited for.
bool MessageKeyValueStore::take(int peer, Incoming& incoming) {
  try {
    if (!incoming.work->test()) return false;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;
    incoming.work.reset();
    return false;
  }
  const auto [key_length, value_length] = incoming.lengths;
  if (incoming.is_text) {
    values_.insert_or_assign(incoming.text.substr(0, key_length), incoming.text.substr(key_length));
    expect_lengths(peer, incoming);
    return true;
  }
  if (key_length > kLongestText || value_length > kLongestText) {
    fail(ErrorCode::kDataLoss, kName, ": rank ", peer, " tells a value of ", key_length, " and ",
         value_length, " bytes; expected at most ", kLongestText);
  }
  incoming.is_text = true;
  incoming.text.resize(key_length + value_length);
  incoming.work = transport_->recv(
      peer, kTextTag, {},
      std::as_writable_bytes(std::span(incoming.text.data(), incoming.text.size())));
  return true;
}

}  // namespace tutti
