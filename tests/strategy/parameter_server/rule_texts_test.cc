// One text for each rule, however often it is asked for.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/client/parameter_servers.h"

#include <gtest/gtest.h>

#include "tests/support/tensor_matchers.h"
#include "tutti/core/json.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/optimizer/update_rule_spec.h"

namespace tutti {
namespace rule_texts_test {

using internal::RuleTexts;
using internal::SharedText;

TEST(RuleTexts, OfOneRuleAreOneText) {
  RuleTexts texts;
  const SgdRule plain, heavy(0.5);
  const SharedText first = texts.of(plain);
  EXPECT_EQ(first.text(), describe_update_rule(plain));
  EXPECT_EQ(&texts.of(plain).text(), &first.text());
  EXPECT_EQ(texts.of(heavy).text(), describe_update_rule(heavy));
  EXPECT_EQ(&texts.of(plain).text(), &first.text());
}

TEST(RuleTexts, ARuleThatChangedOrCameAtAnothersPlaceIsDescribedAnew) {
  RuleTexts texts;
  SgdRule rule(0.5);
  EXPECT_EQ(texts.of(rule).text(), describe_update_rule(SgdRule(0.5)));
  const std::uint64_t number = rule.number();
  rule = SgdRule(0.25);  // the same place in memory
  EXPECT_NE(rule.number(), number);
  EXPECT_EQ(texts.of(rule).text(), describe_update_rule(SgdRule(0.25)));
  const SgdRule copy = rule;
  EXPECT_NE(copy.number(), rule.number());
  EXPECT_EQ(texts.of(copy).text(), texts.of(rule).text());
}

TEST(RuleTexts, MoreRulesThanAreRememberedAreAllRight) {
  RuleTexts texts;
  std::vector<SgdRule> rules;
  for (int i = 0; i < 40; ++i) rules.emplace_back(i / 64.0);
  for (int round = 0; round < 2; ++round) {
    for (const SgdRule& rule : rules) {
      EXPECT_EQ(texts.of(rule).text(), describe_update_rule(rule));
    }
  }
}

class Silent final : public UpdateRule {
 public:
  std::string_view name() const override { return "silent"; }
  std::vector<SlotSpec> slots() const override { return {}; }
  void apply(const UpdateArgs&) const override {}
};

TEST(RuleTexts, ARuleThatDoesNotSayWhatItIsIsRefusedEachTime) {
  RuleTexts texts;
  const Silent rule;
  for (int i = 0; i < 2; ++i) {
    EXPECT_ERROR((void)texts.of(rule), kUnimplemented, "'silent'", "register_update_rule");
  }
}

}  // namespace rule_texts_test
}  // namespace tutti
