#include "core/runtime/plugin/load_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "core/runtime/plugin/plugin.h"
#include "core/runtime/testing/files.h"

namespace backplane::runtime {
namespace {

using ::testing::HasSubstr;
using testing_files::TempFolder;
using testing_files::testing_plugin;
using testing_files::write_file;

const std::string kHash(64, 'a'), kOther(64, 'b');

class LoadPolicyTest : public ::testing::Test {
 protected:
  LoadPolicyTest() {
    ::setenv("XDG_CONFIG_HOME", folder_.path().c_str(), 1);
    std::filesystem::create_directories(folder_.path() + "/backplane/trusted_keys");
  }
  ~LoadPolicyTest() override {
    for (const char* name : {"XDG_CONFIG_HOME", "BACKPLANE_LOAD_POLICY", "BACKPLANE_SAFE_MODE"})
      ::unsetenv(name);
  }
  void put(const std::string& name, const std::string& text) {
    write_file(folder_.path() + "/backplane/" + name, text);
  }
  std::string refusal(const std::string& hash) {
    const auto policy = read_load_policy();
    if (!policy.ok()) return policy.status().message();
    return check_load(*policy, "/plugins/libbackplane_acme.so", hash, "2026-11-26").message();
  }

  TempFolder folder_;
};

TEST_F(LoadPolicyTest, NothingIsAskedByItself) {
  EXPECT_EQ(read_load_policy()->text(), "off");
  EXPECT_EQ(refusal(kHash), "");
}

TEST_F(LoadPolicyTest, AllThatAnybodyAsksForHolds) {
  put("policy", "# of this machine\nallow-list\n");
  EXPECT_EQ(read_load_policy()->text(), "allow-list");
  ::setenv("BACKPLANE_LOAD_POLICY", "signed", 1);
  EXPECT_EQ(read_load_policy()->text(), "signed+allow-list");
  ::setenv("BACKPLANE_LOAD_POLICY", "off", 1);
  EXPECT_EQ(read_load_policy()->text(), "allow-list");
}

TEST_F(LoadPolicyTest, AllowList) {
  put("policy", "allow-list");
  EXPECT_THAT(refusal(kHash), HasSubstr("does not stand on the allow list; add its sha256 aaaa"));
  put("allowed", kHash + "  # acme 1.0\n");
  EXPECT_EQ(refusal(kHash), "");
  EXPECT_THAT(refusal(kOther), HasSubstr("allow list"));
}

TEST_F(LoadPolicyTest, DenyListHoldsUnderEveryPolicy) {
  put("denied", kHash + " writes past its outputs, ACME-12\n");
  put("allowed", kHash);
  EXPECT_THAT(refusal(kHash), HasSubstr("deny list: writes past its outputs, ACME-12"));
  EXPECT_EQ(refusal(kOther), "");
}

TEST_F(LoadPolicyTest, SafeModeLoadsNothing) {
  ::setenv("BACKPLANE_SAFE_MODE", "1", 1);
  EXPECT_THAT(refusal(kHash), HasSubstr("safe mode loads no plugin"));
  ::setenv("BACKPLANE_SAFE_MODE", "0", 1);
  EXPECT_EQ(refusal(kHash), "");
}

TEST_F(LoadPolicyTest, SignedWantsACertificate) {
  put("policy", "signed");
  EXPECT_THAT(refusal(kHash), HasSubstr("libbackplane_acme.so.certificate is not there"));
}

TEST_F(LoadPolicyTest, APolicyThatCannotBeReadLoadsNothing) {
  put("policy", "sometimes");
  EXPECT_THAT(refusal(kHash), HasSubstr("/policy:1: \"sometimes\" is no policy"));
  put("policy", "off");
  put("allowed", "1234");
  EXPECT_THAT(refusal(kHash), HasSubstr("/allowed:1: \"1234\" is no sha256"));
  put("allowed", "");
  put("trusted_keys/acme.pub", "AAAA acme");
  EXPECT_THAT(refusal(kHash), HasSubstr("acme.pub:1: no Ed25519 public key"));
  EXPECT_FALSE(Plugin::load(testing_plugin("good")).ok());
}

TEST_F(LoadPolicyTest, HoldsForEveryLoad) {
  put("policy", "allow-list");
  const auto refused = Plugin::load(testing_plugin("good"));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("libbackplane_good.so"));
  EXPECT_THAT(refused.status().message(), HasSubstr("allow list"));
}

}  // namespace
}  // namespace backplane::runtime
