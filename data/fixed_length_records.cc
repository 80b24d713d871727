// Files of records that all have one size.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/records.h"

#include <algorithm>
#include <utility>

#include "tutti/data/file_sequence.h"
#include "tutti/data/input_file.h"

namespace tutti {
namespace {

struct Layout {
  std::uint64_t record = 0, header = 0, footer = 0;  // bytes
};

class FixedLengthRecords : public internal::FileElements {
 public:
  FixedLengthRecords(const std::string& path, const Layout& layout, const InputLimits& limits)
      : file_(path, limits), layout_(layout) {
    left_ = count_records();
    file_.skip(layout_.header);
  }

  std::optional<Element> next() override {
    if (left_ == 0) return std::nullopt;
    std::string record;
    if (const std::uint64_t got = file_.read(record, layout_.record); got < layout_.record) {
      fail_truncated(file_.offset(), layout_.record, got);  // the file has shrunk
    }
    --left_;
    const Shape shape{static_cast<std::int64_t>(record.size())};
    return Element({Tensor::from_bytes(shape, DType::kUInt8, std::as_bytes(std::span(record)))});
  }

  std::int64_t skip(std::int64_t count) override {
    const std::int64_t skipped = std::min(count, left_);
    file_.skip(static_cast<std::uint64_t>(skipped) * layout_.record);
    left_ -= skipped;
    return skipped;
  }

 private:
  std::int64_t count_records() const {
    if (!file_.size()) {
      fail(ErrorCode::kInvalidArgument, "fixed_length_record_dataset: expected a file, got '",
           file_.source(), "', which has no size");
    }
    const std::uint64_t size = *file_.size();
    if (size < layout_.header || size - layout_.header < layout_.footer) {
      fail_truncated(size, layout_.header + layout_.footer, size);
    }
    const std::uint64_t records = size - layout_.header - layout_.footer;
    const std::uint64_t rest = records % layout_.record;
    if (rest != 0) fail_truncated(layout_.header + records - rest, layout_.record, rest);
    return static_cast<std::int64_t>(records / layout_.record);
  }

  [[noreturn]] void fail_truncated(std::uint64_t offset, std::uint64_t expected,
                                   std::uint64_t got) const {
    fail(ErrorCode::kDataLoss, file_.source(), ": offset ", offset,
         ": the file does not hold whole records of ", layout_.record, " bytes behind ",
         layout_.header, " bytes of header and before ", layout_.footer,
         " bytes of footer; expected ", expected, " bytes, got ", got);
  }

  internal::InputFile file_;
  Layout layout_;
  std::int64_t left_ = 0;
};

}  // namespace

Dataset fixed_length_record_dataset(std::vector<std::string> paths, std::int64_t record_bytes,
                                    FixedLengthRecordOptions options) {
  constexpr const char* kWho = "fixed_length_record_dataset";
  constexpr std::int64_t kLargestPart = std::int64_t{1} << 60;
  const auto fits = [](std::int64_t size) { return size >= 0 && size < kLargestPart; };
  if (record_bytes < 1 || !fits(record_bytes) || !fits(options.header_bytes) ||
      !fits(options.footer_bytes)) {
    fail(ErrorCode::kInvalidArgument, kWho,
         ": expected record_bytes of at least 1 and header_bytes and footer_bytes of at least 0, "
         "got ",
         record_bytes, ", ", options.header_bytes, " and ", options.footer_bytes);
  }
  const Layout layout{static_cast<std::uint64_t>(record_bytes),
                      static_cast<std::uint64_t>(options.header_bytes),
                      static_cast<std::uint64_t>(options.footer_bytes)};
  return internal::dataset_of_files(
      std::move(paths),
      [layout, limits = options.limits](const std::string& path) {
        return std::make_unique<FixedLengthRecords>(path, layout, limits);
      },
      kWho);
}

}  // namespace tutti
