// A dataset made of a user's function.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tutti/data/dataset.h"

namespace tutti {
namespace {

class GeneratorIterator : public ElementIterator {
 public:
  explicit GeneratorIterator(Dataset::Generator generate) : generate_(std::move(generate)) {}

  std::optional<Element> next() override {
    if (!generate_) return std::nullopt;
    std::optional<Element> element = generate_();
    if (!element) generate_ = nullptr;  // the function must not be asked again
    return element;
  }

 private:
  Dataset::Generator generate_;
};

class GeneratorSource : public DatasetSource {
 public:
  using Make = std::function<Dataset::Generator(std::uint64_t epoch)>;
  explicit GeneratorSource(Make make) : make_(std::move(make)) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    Dataset::Generator generate = make_(epoch);
    if (!generate) {
      fail(ErrorCode::kInvalidArgument,
           "Dataset::from_generator: expected a function that yields elements, got an empty one");
    }
    return std::make_unique<GeneratorIterator>(std::move(generate));
  }
  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }

 private:
  Make make_;
};

}  // namespace

Dataset Dataset::from_generator(std::function<Generator(std::uint64_t epoch)> make) {
  if (!make) {
    fail(ErrorCode::kInvalidArgument, "Dataset::from_generator: expected a function, got none");
  }
  return Dataset(std::make_shared<GeneratorSource>(std::move(make)));
}

}  // namespace tutti
